// Finds the requests of a step, and what of their logs was accepted.

#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "recurrence/kernel.h"

namespace LANES {

// Tokens of one request in a step: one sequence, or several of one token with the same slot.
struct Request {
    int slot;
    int token_begin, token_end;
    int past_len;      // tokens before them
    int num_accepted;  // rows of the log that come before them
    bool is_logged;    // its rows may be rejected

    int num_rows() const { return token_end - token_begin; }
    bool is_fresh() const { return past_len == 0; }  // the slot may hold anything
};

[[noreturn]] inline void refuse(int slot, const std::string& problem) {
    throw std::invalid_argument("slot " + std::to_string(slot) + " of the recurrence: " + problem);
}

// Return the requests of a step; rows of padding belong to none.
inline std::vector<Request> find_requests(const DeltaLayer& layer, const DeltaStep& step) {
    std::vector<Request> requests;
    for (int sequence = 0; sequence < step.num_sequences; ++sequence) {
        const int begin = step.sequence_begins[sequence], end = step.sequence_begins[sequence + 1];
        const int slot = step.slots[sequence], past_len = step.past_lens[sequence];
        if (slot < 0 || begin == end) continue;
        if (requests.empty() || requests.back().slot != slot) {
            if (slot >= step.num_slots) refuse(slot, "there are " + std::to_string(step.num_slots));
            for (const Request& other : requests)
                if (other.slot == slot) refuse(slot, "two requests have it");
            requests.push_back({slot, begin, end, past_len, 0, end == begin + 1});
            continue;
        }
        Request& request = requests.back();
        if (!request.is_logged || end != begin + 1) refuse(slot, "a chunk is a request's only sequence");
        if (begin != request.token_end || past_len != request.past_len + request.num_rows())
            refuse(slot, "its rows do not follow each other");
        request.token_end = end;
    }
    for (Request& request : requests) {
        if (request.is_logged && request.num_rows() > step.num_log_rows)
            refuse(request.slot, std::to_string(request.num_rows()) + " rows do not fit a log of " +
                                     std::to_string(step.num_log_rows));
        if (request.is_fresh()) continue;
        const Progress kept = *State(step.states + request.slot * layer.state_floats(), layer).progress;
        const int64_t num_accepted = int64_t(request.past_len) - kept.num_tokens;
        if (num_accepted < 0 || num_accepted > std::min<int64_t>(kept.num_logged, step.num_log_rows))
            refuse(request.slot, std::to_string(request.past_len) + " tokens come before, but it has a state of " +
                                     std::to_string(kept.num_tokens) + " and a log of " +
                                     std::to_string(kept.num_logged));
        request.num_accepted = static_cast<int>(num_accepted);
    }
    return requests;
}

}  // namespace LANES

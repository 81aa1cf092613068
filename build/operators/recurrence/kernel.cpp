// Gated delta networks of one step: compiled twice, for AVX2 and for AVX-512; LANES is the form's namespace.
//
// A row's bits depend on the rows of its request before it alone: they are added to a state one by one, and a
// row that a log keeps is added by the same instructions. A column of a state depends on no other.

#include "recurrence/kernel.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lanes.h"
#include "recurrence/activations.h"
#include "recurrence/requests.h"
#include "tasks.h"

namespace LANES {
namespace {

constexpr int kColumnLanes = kColumns / kLanes;
constexpr float kSmallestSquare = 1e-6f;  // is added to the squared length of a query or key

// A row that is added to a state: the state decays, and grows by key times correction.
struct Addition {
    const float* key;         // [size]
    const float* correction;  // [kColumns]
    float decay;
};

// Products of a state with the key and the query of a row.
struct Products {
    float of_key[kColumns];
    float of_query[kColumns];
};

// Add a row to the states `from` [size, kColumns] if `adds`, and write them to `to`; then multiply them with
// the key and query of the next row if `multiplies`. Each sum is in the order of the key's numbers.
template <bool adds, bool multiplies>
void pass(const float* from, float* to, int size, const Addition& row, const float* key, const float* query,
          Products& products) {
    Lanes of_key[kColumnLanes], of_query[kColumnLanes], correction[kColumnLanes];
    for (int lane = 0; lane < kColumnLanes; ++lane) {
        of_key[lane] = of_query[lane] = every(0);
        if constexpr (adds) correction[lane] = load(row.correction + lane * kLanes);
    }
    for (int i = 0; i < size; ++i)
        for (int lane = 0; lane < kColumnLanes; ++lane) {
            const int at = i * kColumns + lane * kLanes;
            Lanes state = load(from + at);
            if constexpr (adds) {
                state = multiply_add(every(row.key[i]), correction[lane], multiply(every(row.decay), state));
                store(to + at, state);
            }
            if constexpr (multiplies) {
                of_key[lane] = multiply_add(every(key[i]), state, of_key[lane]);
                of_query[lane] = multiply_add(every(query[i]), state, of_query[lane]);
            }
        }
    for (int lane = 0; multiplies && lane < kColumnLanes; ++lane) {
        store(products.of_key + lane * kLanes, of_key[lane]);
        store(products.of_query + lane * kLanes, of_query[lane]);
    }
}

// Sum of products, in an order that the size alone decides.
float dot(const float* a, const float* b, int size) {
    Lanes total = every(0);
    for (int i = 0; i < size; i += kLanes) total = multiply_add(load(a + i), load(b + i), total);
    return sum(total);
}

class Recurrence {
public:
    Recurrence(const DeltaLayer& layer, const DeltaStep& step)
        : layer_(layer), step_(step), requests_(find_requests(layer, step)) {}

    void run() const {
        fill_padding();
        size_t num_rows = 0;
        for (const Request& request : requests_) num_rows += request.num_rows() + request.num_accepted;
        const size_t of_a_row = 4 * layer_.value_channels() * layer_.key_size;
        in_parallel(requests_.size() * layer_.num_key_heads, num_rows * of_a_row, [&](size_t task) {
            compute(requests_[task / layer_.num_key_heads], task % layer_.num_key_heads);
        });
        for (const Request& request : requests_)
            *state_of(request).progress =
                request.is_logged ? Progress{request.past_len, request.num_rows()}
                                  : Progress{request.past_len + request.num_rows(), 0};
    }

private:
    // Memory of a task: what the value heads that share a head of keys have in common, then that of one head.
    struct Working {
        float *queries, *keys;  // [rows, key_size], of length 1, queries scaled
        float* products;        // [rows], of query and key
        float *decays, *betas;  // [rows, and up to 15 more]
        float* values;          // [rows, value_size], replaced by what is read from the state
        float* states;          // [key_size, kColumns], with rows that may be rejected
    };

    Working prepare(int num_rows) const {
        static thread_local Scratch memory;
        const size_t rows = (num_rows + kLanes - 1) / kLanes * kLanes;
        const size_t keys = rows * layer_.key_size, values = rows * layer_.value_size;
        float* at = memory.of(2 * keys + values + 3 * rows + size_t(layer_.key_size) * kColumns);
        auto take = [&](size_t floats) { return (at += floats) - floats; };
        return {take(keys), take(keys), take(rows), take(rows), take(rows), take(values),
                take(size_t(layer_.key_size) * kColumns)};
    }

    State state_of(const Request& request) const {
        return State(step_.states + request.slot * layer_.state_floats(), layer_);
    }

    LogRow log_row(const Request& request, int row) const {
        const size_t index = size_t(request.slot) * step_.num_log_rows + row;
        return LogRow(step_.logs + index * layer_.log_floats(), layer_);
    }

    const float* projected(const Request& request, int row) const {
        return step_.projected + size_t(request.token_begin + row) * layer_.width();
    }

    // Inputs of the convolution at a row, or before the first one if it is negative.
    const float* inputs(const Request& request, int row) const {
        if (row >= 0) return projected(request, row);
        const int logged = request.num_accepted + row;
        if (logged >= 0) return log_row(request, logged).inputs;
        return state_of(request).history + (kTaps - 1 + logged) * layer_.channels();
    }

    void fill_padding() const {
        for (int sequence = 0; sequence < step_.num_sequences; ++sequence)
            if (step_.slots[sequence] < 0)
                std::fill(step_.output + step_.sequence_begins[sequence] * layer_.value_channels(),
                          step_.output + step_.sequence_begins[sequence + 1] * layer_.value_channels(), 0.0f);
    }

    // Compute the rows of a request for a head of keys and the value heads that share it.
    void compute(const Request& request, int key_head) const {
        const int size = layer_.key_size, group = layer_.num_value_heads / layer_.num_key_heads;
        const size_t query_channel = size_t(key_head) * size;
        const size_t key_channel = layer_.key_channels() + query_channel;
        const size_t value_channel = 2 * layer_.key_channels() + size_t(key_head) * group * layer_.value_size;
        const Working working = prepare(request.num_rows());
        if (request.is_fresh()) {
            clear_history(request, query_channel, size);
            clear_history(request, key_channel, size);
            clear_history(request, value_channel, group * layer_.value_size);
        }
        convolve(request, query_channel, size, working.queries);
        convolve(request, key_channel, size, working.keys);
        for (int row = 0; row < request.num_rows(); ++row) {
            float *query = working.queries + row * size, *key = working.keys + row * size;
            normalize(query, 1 / std::sqrt(float(size)));
            normalize(key, 1);
            working.products[row] = dot(query, key, size);
        }
        for (int head = key_head * group; head < (key_head + 1) * group; ++head) {
            convolve(request, 2 * layer_.key_channels() + size_t(head) * layer_.value_size, layer_.value_size,
                     working.values);
            gate(request, head, working);
            for (int column = 0; column < layer_.value_size; column += kColumns)
                recur(request, key_head, head, column, working);
            for (int row = 0; request.is_logged && row < request.num_rows(); ++row)
                log_row(request, row).decays[head] = working.decays[row];
            finish(request, head, working);
        }
        remember(request, query_channel, size);
        remember(request, key_channel, size);
        remember(request, value_channel, group * layer_.value_size);
        for (int row = 0; request.is_logged && row < request.num_rows(); ++row)
            std::copy_n(working.keys + row * size, size, log_row(request, row).keys + query_channel);
    }

    void clear_history(const Request& request, size_t channel, size_t count) const {
        for (int row = 0; row < kTaps - 1; ++row)
            std::fill_n(state_of(request).history + row * layer_.channels() + channel, count, 0.0f);
    }

    // Compute the convolution of some channels, to [rows, count].
    void convolve(const Request& request, size_t channel, int count, float* to) const {
        const float* weights = layer_.convolution + channel;
        for (int row = 0; row < request.num_rows(); ++row, to += count) {
            const float* taps[kTaps];
            for (int tap = 0; tap < kTaps; ++tap)
                taps[tap] = inputs(request, row - (kTaps - 1) + tap) + channel;
            for (int i = 0; i < count; i += kLanes) {
                Lanes total = multiply(load(weights + i), load(taps[0] + i));
                for (int tap = 1; tap < kTaps; ++tap)
                    total = multiply_add(load(weights + tap * layer_.channels() + i), load(taps[tap] + i), total);
                store(to + i, silu(total));
            }
        }
    }

    void normalize(float* numbers, float length) const {
        const float factor = length / std::sqrt(dot(numbers, numbers, layer_.key_size) + kSmallestSquare);
        for (int i = 0; i < layer_.key_size; i += kLanes)
            store(numbers + i, multiply(load(numbers + i), every(factor)));
    }

    // Compute how much the state of a head decays, and how much of each row it takes.
    void gate(const Request& request, int head, const Working& working) const {
        const int num_rows = request.num_rows();
        for (int row = 0; row < num_rows; ++row) {
            const float* gates = projected(request, row) + layer_.channels() + layer_.value_channels();
            working.betas[row] = gates[head];
            working.decays[row] = gates[layer_.num_value_heads + head] + layer_.biases[head];
        }
        for (int row = 0; row < num_rows; row += kLanes) {
            const Lanes rate = every(-layer_.rates[head]);
            store(working.betas + row, sigmoid(load(working.betas + row)));
            store(working.decays + row, exponential(multiply(rate, softplus(load(working.decays + row)))));
        }
    }

    // Replace some values of a head by what the rows read from its state, to which they are added.
    void recur(const Request& request, int key_head, int head, int column, const Working& working) const {
        const int size = layer_.key_size, num_rows = request.num_rows();
        const size_t value = size_t(head) * layer_.value_size + column;
        float* kept = state_of(request).heads + value * size;
        if (request.is_fresh()) std::fill_n(kept, size * kColumns, 0.0f);
        Products products;
        auto add = [&](const float* from, float* to, const Addition& added, int next) {
            const float *key = working.keys + next * size, *query = working.queries + next * size;
            (next < num_rows ? pass<true, true> : pass<true, false>)(from, to, size, added, key, query, products);
        };
        for (int row = 0; row < request.num_accepted; ++row) {
            const LogRow logged = log_row(request, row);
            const Addition added{logged.keys + size_t(key_head) * size, logged.corrections + value,
                                 logged.decays[head]};
            add(kept, kept, added, row + 1 < request.num_accepted ? num_rows : 0);
        }
        if (!request.num_accepted)
            pass<false, true>(kept, nullptr, size, {}, working.keys, working.queries, products);
        const float* from = kept;
        float* to = request.is_logged ? working.states : kept;
        for (int row = 0; row < num_rows; ++row) {
            float* values = working.values + row * layer_.value_size + column;
            float of_step[kColumns];
            float* correction = request.is_logged ? log_row(request, row).corrections + value : of_step;
            const float decay = working.decays[row];
            for (int i = 0; i < kColumns; i += kLanes) {
                const Lanes missing = multiply_add(every(-decay), load(products.of_key + i), load(values + i));
                const Lanes corrected = multiply(every(working.betas[row]), missing);
                const Lanes before = multiply(every(decay), load(products.of_query + i));
                store(correction + i, corrected);
                store(values + i, multiply_add(every(working.products[row]), corrected, before));
            }
            if (request.is_logged && row + 1 == num_rows) break;
            add(from, to, {working.keys + row * size, correction, decay}, row + 1);
            from = to;
        }
    }

    // Norm what a head has read, and multiply it with its output gate.
    void finish(const Request& request, int head, const Working& working) const {
        const int size = layer_.value_size;
        for (int row = 0; row < request.num_rows(); ++row) {
            const float* values = working.values + row * size;
            const float* gates = projected(request, row) + layer_.channels() + size_t(head) * size;
            const size_t at = (request.token_begin + row) * layer_.value_channels() + size_t(head) * size;
            const float factor = 1 / std::sqrt(dot(values, values, size) / size + layer_.norm_epsilon);
            for (int i = 0; i < size; i += kLanes) {
                const Lanes normed = multiply(load(layer_.norm + i), multiply(load(values + i), every(factor)));
                store(step_.output + at + i, multiply(normed, silu(load(gates + i))));
            }
        }
    }

    // Keep the inputs of the convolution of some channels: those before the next row, or those of the log.
    void remember(const Request& request, size_t channel, size_t count) const {
        const int end = request.is_logged ? 0 : request.num_rows();
        for (int row = 0; row < kTaps - 1; ++row) {
            const float* from = inputs(request, end - (kTaps - 1) + row) + channel;
            std::copy(from, from + count, state_of(request).history + row * layer_.channels() + channel);
        }
        for (int row = 0; request.is_logged && row < request.num_rows(); ++row)
            std::copy_n(projected(request, row) + channel, count, log_row(request, row).inputs + channel);
    }

    const DeltaLayer& layer_;
    const DeltaStep& step_;
    const std::vector<Request> requests_;
};

}  // namespace

void recur(const DeltaLayer& layer, const DeltaStep& step) { Recurrence(layer, step).run(); }

}  // namespace LANES

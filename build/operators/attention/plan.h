// Divides the tokens of a step into requests, and the rows of a request into tiles.
//
// A row is one query head of one token.

#pragma once

#include <algorithm>
#include <vector>

#include "attention/kernel.h"
#include "attention/products.h"
#include "lanes.h"

namespace LANES {

constexpr int kTile = 128;  // rows that share a read of the cache from memory

// Tokens of one request in a step: one sequence, or several of one token with the same blocks.
struct Request {
    int token_begin, token_end;
    const int32_t *blocks, *blocks_end;
};

// Rows of consecutive tokens, and of the query heads that share a head of keys and values.
struct Tile {
    const Request* request;
    int kv_head;
    int first_row, num_rows;  // among the request's rows for this head, ordered by token and query head
    int begin, end;           // positions that any row attends to

    int num_lanes() const { return (num_rows + kLanes - 1) / kLanes * kLanes; }
    int first_part() const { return begin / kPart; }
    int end_part() const { return (end + kPart - 1) / kPart; }
};

class Plan {
public:
    Plan(const Layer& layer, const Step& step)
        : num_heads_(layer.num_heads), group_(layer.num_heads / layer.num_kv_heads), window_(layer.window) {
        find_requests(step);
        for (const Request& request : requests)
            for (int kv_head = 0; kv_head < layer.num_kv_heads; ++kv_head) add_tiles(request, kv_head);
    }

    std::vector<Request> requests;
    std::vector<int> context_lens;  // of each token, with itself
    std::vector<Tile> tiles;
    size_t num_scores = 0;  // of all rows

    // Positions that a row of a tile attends to.
    int end_of(const Tile& tile, int row) const { return context_lens[token_of(tile, row)]; }
    int begin_of(const Tile& tile, int row) const {
        return window_ ? std::max(0, end_of(tile, row) - window_) : 0;
    }

    int head_of(const Tile& tile, int row) const {
        return tile.kv_head * group_ + (tile.first_row + row) % group_;
    }

    // Number of a row among those of the whole step, which are ordered by token and head.
    size_t row_of_step(const Tile& tile, int row) const {
        return size_t(token_of(tile, row)) * num_heads_ + head_of(tile, row);
    }

private:
    int token_of(const Tile& tile, int row) const {
        return tile.request->token_begin + (tile.first_row + row) / group_;
    }

    void find_requests(const Step& step) {
        for (int sequence = 0; sequence < step.num_sequences; ++sequence) {
            const int begin = step.sequence_begins[sequence], end = step.sequence_begins[sequence + 1];
            const int32_t* blocks = step.blocks + step.block_begins[sequence];
            const int32_t* blocks_end = step.blocks + step.block_begins[sequence + 1];
            for (int token = begin; token < end; ++token)
                context_lens.push_back(step.past_lens[sequence] + token - begin + 1);
            if (begin == end) continue;
            if (!requests.empty() &&
                std::equal(blocks, blocks_end, requests.back().blocks, requests.back().blocks_end))
                requests.back().token_end = end;
            else
                requests.push_back({begin, end, blocks, blocks_end});
        }
    }

    void add_tiles(const Request& request, int kv_head) {
        const int num_rows = (request.token_end - request.token_begin) * group_;
        for (int first = 0; first < num_rows; first += kTile) {
            Tile tile{&request, kv_head, first, std::min(kTile, num_rows - first), 0, 0};
            tile.begin = begin_of(tile, 0);
            for (int row = 0; row < tile.num_rows; row += 1) {
                tile.begin = std::min(tile.begin, begin_of(tile, row));
                tile.end = std::max(tile.end, end_of(tile, row));
            }
            tiles.push_back(tile);
            num_scores += size_t(tile.num_rows) * (tile.end - tile.begin);
        }
    }

    const int num_heads_;
    const int group_;
    const int window_;
};

}  // namespace LANES

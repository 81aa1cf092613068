// Attention of one step: compiled twice, for AVX2 and for AVX-512; LANES is the namespace of the form.
//
// A row's bits depend on its own query and context alone: the context is
// cut at fixed positions into segments, whose positions are added in order and which are joined in order.
// Which rows share a read of the cache, and which thread computes what, changes none of these additions.

#include "attention/kernel.h"

#include <tbb/task_arena.h>

#include <algorithm>
#include <vector>

#include "attention/block.h"
#include "attention/plan.h"
#include "attention/products.h"
#include "lanes.h"
#include "tasks.h"

namespace LANES {
namespace {

#ifdef __AVX512F__
constexpr int kRows = 8;  // rows that share a read from the first cache; as many as the registers hold
#else
constexpr int kRows = 2;
#endif
constexpr size_t kMostScratch = size_t(1) << 24;  // floats
constexpr size_t kSlowWriting = 16;               // a number is written so much slower than it is multiplied

// Call `work` with `count`, 1 to `Most`, as a constant of the compiler.
template <int Most, class Work>
void with_constant(int count, const Work& work) {
    if (count == Most)
        work(std::integral_constant<int, Most>());
    else if constexpr (Most > 1)
        with_constant<Most - 1>(count, work);
}

// Sums of a tile's rows over a part of the context.
struct Sums {
    float* largest;   // [rows], score
    float* total;     // [rows], of exp(score - largest)
    float* weighted;  // [rows, size], of exp(score - largest) times the value

    static size_t floats(const Tile& tile, int size) { return size_t(tile.num_lanes()) * (size + 2); }
    Sums(float* memory, const Tile& tile)
        : largest(memory), total(largest + tile.num_lanes()), weighted(total + tile.num_lanes()) {}
};

template <class Number>
class Attention {
public:
    Attention(const Layer& layer, const Step& step)
        : layer_(layer),
          step_(step),
          size_(layer.head_size),
          head_bytes_(head_bytes(layer.head_size, layer.precision)),
          plan_(layer, step) {}

    void run() const {
        const size_t written = plan_.context_lens.size() * layer_.num_kv_heads * size_;
        in_parallel(layer_.num_kv_heads, kSlowWriting * written, [&](size_t head) { write(head); });
        size_t floats = 0;
        for (const Tile& tile : plan_.tiles)
            floats += Sums::floats(tile, size_) * (tile.end_segment() - tile.first_segment() + 1);
        const size_t num_threads = tbb::this_task_arena::max_concurrency();
        if (plan_.tiles.size() < 4 * num_threads && floats < kMostScratch)
            run_by_segment(floats);
        else
            run_by_tile();
    }

private:
    Block<Number> block(uint8_t* cache, int index, int kv_head) const {
        return Block<Number>(cache + (size_t(index) * layer_.num_kv_heads + kv_head) * head_bytes_);
    }

    // The processor's own prefetching ends with each page, and the next block is elsewhere.
    void prefetch(const uint8_t* cache, int index, int kv_head) const {
        const uint8_t* from = cache + (size_t(index) * layer_.num_kv_heads + kv_head) * head_bytes_;
        for (size_t at = 0; at < head_bytes_; at += 64) _mm_prefetch(from + at, _MM_HINT_T1);
    }

    void write(int kv_head) const {
        for (const Request& request : plan_.requests)
            for (int token = request.token_begin; token < request.token_end; ++token) {
                const int position = plan_.context_lens[token] - 1, slot = position % kBlock;
                const int index = request.blocks[position / kBlock];
                const size_t at = (size_t(token) * layer_.num_kv_heads + kv_head) * size_;
                block(step_.key_cache, index, kv_head).write_key(step_.key + at, size_, slot);
                block(step_.value_cache, index, kv_head).write_value(step_.value + at, size_, slot);
            }
    }

    // One task per tile, which joins each segment with those before it.
    void run_by_tile() const {
        in_parallel(plan_.tiles.size(), plan_.num_scores * size_, [&](size_t index) {
            static thread_local Scratch memory;
            const Tile& tile = plan_.tiles[index];
            float* at = memory.of(2 * Sums::floats(tile, size_));
            const Sums joined(at, tile), part(at + Sums::floats(tile, size_), tile);
            const Working working = prepare(tile);
            clear(joined, tile);
            for (int segment = tile.first_segment(); segment < tile.end_segment(); ++segment) {
                attend(tile, segment, working, part);
                join(joined, part, tile);
            }
            finish(tile, joined);
        });
    }

    // One task per segment of a tile, where there are few tiles; their sums are joined afterwards.
    void run_by_segment(size_t floats) const {
        struct Part {
            const Tile* tile;
            int segment;
            Sums sums;
        };
        static thread_local Scratch memory;
        float* at = memory.of(floats);
        std::vector<Part> parts;
        for (const Tile& tile : plan_.tiles)
            for (int segment = tile.first_segment(); segment < tile.end_segment(); ++segment) {
                parts.push_back({&tile, segment, Sums(at, tile)});
                at += Sums::floats(tile, size_);
            }
        in_parallel(parts.size(), plan_.num_scores * size_, [&](size_t index) {
            const Part& part = parts[index];
            attend(*part.tile, part.segment, prepare(*part.tile), part.sums);
        });
        const FlushSubnormals flush;
        auto part = parts.begin();
        for (const Tile& tile : plan_.tiles) {
            const Sums joined(at, tile);
            at += Sums::floats(tile, size_);
            clear(joined, tile);
            for (; part != parts.end() && part->tile == &tile; ++part) join(joined, part->sums, tile);
            finish(tile, joined);
        }
    }

    // Memory of a task.
    struct Working {
        float* queries;     // [rows, size], scaled
        float* query_sums;  // [rows], for integers
        float* scores;      // [rows, kSegment]
    };

    Working prepare(const Tile& tile) const {
        static thread_local Scratch memory;
        float* queries = memory.of(size_t(kTile) * (size_ + 1 + kSegment));
        const Working working{queries, queries + kTile * size_, queries + kTile * (size_ + 1)};
        for (int row = 0; row < tile.num_rows; ++row) {
            const float* from = step_.query + plan_.row_of_step(tile, row) * size_;
            Lanes total = every(0);
            for (int i = 0; i < size_; i += kLanes) {
                const Lanes scaled = multiply(load(from + i), every(layer_.scale));
                store(queries + row * size_ + i, scaled);
                if constexpr (is_integer<Number>) total = add(total, scaled);
            }
            if constexpr (is_integer<Number>) working.query_sums[row] = sum(total);
        }
        return working;
    }

    // Compute the sums of a tile's rows over a segment.
    void attend(const Tile& tile, int segment, const Working& working, const Sums& result) const {
        const float *queries = working.queries, *query_sums = working.query_sums;
        float* scores = working.scores;
        const int start = segment * kSegment;
        const int begin = std::max(tile.begin - start, 0), end = std::min(tile.end - start, kSegment);
        const int first = begin / kBlock, last = (end + kBlock - 1) / kBlock;
        const int32_t* indices = tile.request->blocks + start / kBlock;
        auto by_rows = [&](const auto& work) {
            for (int row = 0; row < tile.num_rows; row += kRows)
                with_constant<kRows>(std::min(kRows, tile.num_rows - row), [&](auto num) { work(row, num); });
        };
        for (int index = first; index < last; ++index) {
            prefetch(index + 1 < last ? step_.key_cache : step_.value_cache,
                     indices[index + 1 < last ? index + 1 : first], tile.kv_head);
            const Block<Number> keys = block(step_.key_cache, indices[index], tile.kv_head);
            by_rows([&](int row, auto num) {
                score<num()>(queries + row * size_, query_sums + row, size_, keys,
                             scores + row * kSegment + index * kBlock);
            });
        }
        auto values_at = [&](int index) { return block(step_.value_cache, indices[index], tile.kv_head); };
        const Levels<Number> levels(values_at, begin, end);
        for (int row = 0; row < tile.num_rows; ++row) {
            float* weights = scores + row * kSegment;
            const int row_begin = plan_.begin_of(tile, row) - start;
            const int row_end = plan_.end_of(tile, row) - start;
            if (layer_.softcap > 0) cap(weights, layer_.softcap, first * kBlock, last * kBlock);
            const Softmax found = exponentials(weights, row_begin, row_end, first * kBlock, last * kBlock);
            result.largest[row] = found.largest;
            result.total[row] = found.total;
            const float offset = levels.apply(weights, first * kBlock, last * kBlock);
            std::fill_n(result.weighted + row * size_, size_, offset);
        }
        for (int index = first; index < last; ++index) {
            if (index + 1 < last) prefetch(step_.value_cache, indices[index + 1], tile.kv_head);
            const Block<Number> values = values_at(index);
            const int from = std::max(begin - index * kBlock, 0), to = std::min(end - index * kBlock, kBlock);
            by_rows([&](int row, auto num) {
                for (int column = 0; column < size_; column += 2 * kLanes)
                    with_constant<2>(std::min(2, (size_ - column) / kLanes), [&](auto columns) {
                        add_weighted<num(), columns()>(scores + row * kSegment + index * kBlock, from, to,
                                                       values.numbers + column, size_,
                                                       result.weighted + row * size_ + column);
                    });
            });
        }
    }

    void clear(const Sums& sums, const Tile& tile) const {
        std::fill_n(sums.largest, tile.num_lanes(), kLowest);
        std::fill_n(sums.total, tile.num_lanes(), 0.0f);
        std::fill_n(sums.weighted, size_t(tile.num_rows) * size_, 0.0f);
    }

    void join(const Sums& joined, const Sums& part, const Tile& tile) const {
        for (int first = 0; first < tile.num_rows; first += kLanes) {
            const Lanes before = load(joined.largest + first), other = load(part.largest + first);
            const Lanes top = larger(before, other);
            float keep[kLanes], take[kLanes];
            store(keep, exponential(subtract(before, top)));
            store(take, exponential(subtract(other, top)));
            store(joined.largest + first, top);
            for (int row = first; row < std::min(first + kLanes, tile.num_rows); ++row) {
                const float kept = joined.total[row] * keep[row - first];
                joined.total[row] = kept + part.total[row] * take[row - first];
                for (int i = 0; i < size_; i += kLanes) {
                    float* at = joined.weighted + row * size_ + i;
                    const Lanes kept_lanes = multiply(load(at), every(keep[row - first]));
                    const Lanes taken = load(part.weighted + row * size_ + i);
                    store(at, multiply_add(taken, every(take[row - first]), kept_lanes));
                }
            }
        }
    }

    void finish(const Tile& tile, const Sums& sums) const {
        for (int row = 0; row < tile.num_rows; ++row)
            for (int i = 0; i < size_; i += kLanes)
                store(step_.output + plan_.row_of_step(tile, row) * size_ + i,
                      multiply(load(sums.weighted + row * size_ + i), every(1 / sums.total[row])));
    }

    const Layer& layer_;
    const Step& step_;
    const int size_;
    const size_t head_bytes_;
    const Plan plan_;
};

}  // namespace

void attend(const Layer& layer, const Step& step) {
    if (layer.precision == Precision::int8)
        Attention<uint8_t>(layer, step).run();
    else if (layer.precision == Precision::float16)
        Attention<Half>(layer, step).run();
    else
        Attention<float>(layer, step).run();
}

}  // namespace LANES

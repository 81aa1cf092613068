// Attention of one step: compiled twice, for AVX2 and for AVX-512; LANES is the namespace of the form.
//
// A row's bits depend on its own query and context alone: the context is cut at fixed positions into parts,
// and these into segments. Positions are added in order, segments are joined in order to parts, and parts
// in order. Which rows share a read of the cache, and which thread computes what, changes none of that. A
// number that is not finite reaches only the rows that attend to its position.

#include "attention/kernel.h"

#include <tbb/task_arena.h>

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention/block.h"
#include "attention/plan.h"
#include "attention/products.h"
#include "lanes.h"
#include "tasks.h"

namespace LANES {
namespace {

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

// Sums of a tile's rows over some positions.
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
            floats += Sums::floats(tile, size_) * (tile.end_part() - tile.first_part() + 1);
        const size_t num_threads = tbb::this_task_arena::max_concurrency();
        if (plan_.tiles.size() < 4 * num_threads && floats < kMostScratch)
            run_by_part(floats);
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

    // One task per tile, which joins each part with those before it.
    void run_by_tile() const {
        in_parallel(plan_.tiles.size(), plan_.num_scores * size_, [&](size_t index) {
            static thread_local Scratch memory;
            const Tile& tile = plan_.tiles[index];
            float* at = memory.of(2 * Sums::floats(tile, size_));
            const Sums joined(at, tile), of_part(at + Sums::floats(tile, size_), tile);
            clear(joined, tile);
            for (int part = tile.first_part(); part < tile.end_part(); ++part) {
                attend_part(tile, part, of_part);
                join(joined, of_part, tile);
            }
            finish(tile, joined);
        });
    }

    // One task per part of a tile, where there are few tiles; their sums are joined afterwards. An engine
    // computes one layer at a time, so no other layer uses the memory of this thread while it waits.
    void run_by_part(size_t floats) const {
        struct Part {
            const Tile* tile;
            int number;
            Sums sums;
        };
        struct Whole {
            size_t begin, end;  // in `parts`
            Sums sums;
        };
        static thread_local Scratch memory;
        float* at = memory.of(floats);
        auto sums_of = [&](const Tile& tile) {
            return Sums(std::exchange(at, at + Sums::floats(tile, size_)), tile);
        };
        std::vector<Part> parts;
        std::vector<Whole> wholes;
        for (const Tile& tile : plan_.tiles) {
            const size_t begin = parts.size();
            for (int part = tile.first_part(); part < tile.end_part(); ++part)
                parts.push_back({&tile, part, sums_of(tile)});
            wholes.push_back({begin, parts.size(), sums_of(tile)});
        }
        in_parallel(parts.size(), plan_.num_scores * size_, [&](size_t index) {
            attend_part(*parts[index].tile, parts[index].number, parts[index].sums);
        });
        in_parallel(wholes.size(), floats, [&](size_t index) {
            const Whole& whole = wholes[index];
            const Tile& tile = plan_.tiles[index];
            clear(whole.sums, tile);
            for (size_t part = whole.begin; part < whole.end; ++part)
                join(whole.sums, parts[part].sums, tile);
            finish(tile, whole.sums);
        });
    }

    // Memory of a task.
    struct Working {
        float* queries;     // [rows, size], scaled
        float* query_sums;  // [rows], of the coordinates
        float* scores;      // [rows, kSegment]
        float* numbers;     // [32 * size], of a block, converted
    };

    Working prepare(const Tile& tile) const {
        static thread_local Scratch memory;
        const size_t num_floats = size_t(kTile) * (size_ + 1 + kSegment);
        float* queries = memory.of(num_floats + size_t(kBlock) * size_);
        const Working working{queries, queries + kTile * size_, queries + kTile * (size_ + 1),
                              queries + num_floats};
        for (int row = 0; row < tile.num_rows; ++row) {
            const float* from = step_.query + plan_.row_of_step(tile, row) * size_;
            Lanes total = every(0);
            for (int i = 0; i < size_; i += kLanes) {
                const Lanes scaled = multiply(load(from + i), every(layer_.scale));
                store(queries + row * size_ + i, scaled);
                total = add(total, scaled);
            }
            working.query_sums[row] = sum(total);
        }
        return working;
    }

    // Compute the sums of a tile's rows over a part of the context.
    void attend_part(const Tile& tile, int part, const Sums& result) const {
        static thread_local Scratch memory;
        const Sums of_segment(memory.of(Sums::floats(tile, size_)), tile);
        const Working working = prepare(tile);
        clear(of_segment, tile);
        clear(result, tile);
        for (int at = part * kPart; at < (part + 1) * kPart; at += kSegment) {
            if (at + kSegment <= tile.begin || at >= tile.end) continue;
            attend_segment(tile, at, working, of_segment);
            join(result, of_segment, tile);
        }
    }

    // Compute the sums of a tile's rows over the segment at `start`.
    void attend_segment(const Tile& tile, int start, const Working& working, const Sums& result) const {
        float* scores = working.scores;
        const int begin = std::max(tile.begin - start, 0), end = std::min(tile.end - start, kSegment);
        const int first = begin / kBlock, last = (end + kBlock - 1) / kBlock;
        const int32_t* indices = tile.request->blocks + start / kBlock;
        auto keys_at = [&](int index) { return block(step_.key_cache, indices[index], tile.kv_head); };
        auto values_at = [&](int index) { return block(step_.value_cache, indices[index], tile.kv_head); };
        auto by_rows = [&](const auto& work) {
            const int num_groups = (tile.num_rows + kRows - 1) / kRows;  // of nearly equal size
            for (int group = 0; group < num_groups; ++group) {
                const int row = group * tile.num_rows / num_groups;
                const int next = (group + 1) * tile.num_rows / num_groups;
                with_constant<kRows>(next - row, [&](auto num) { work(row, num); });
            }
        };
        for (int index = first; index < last; ++index) {
            prefetch(index + 1 < last ? step_.key_cache : step_.value_cache,
                     indices[index + 1 < last ? index + 1 : first], tile.kv_head);
            with_numbers(keys_at(index), tile, working.numbers, [&](const auto* keys) {
                by_rows([&](int row, auto num) {
                    score<num()>(working.queries + row * size_, size_, keys,
                                 scores + row * kSegment + index * kBlock);
                });
            });
        }
        const Levels<Number> of_keys(keys_at, begin, end), of_values(values_at, begin, end);
        int begins[kTile], ends[kTile];  // of the positions that a row attends to
        for (int row = 0; row < tile.num_rows; ++row) {
            float* weights = scores + row * kSegment;
            const int row_begin = begins[row] = plan_.begin_of(tile, row) - start;
            const int row_end = ends[row] = plan_.end_of(tile, row) - start;
            of_keys.to_scores(weights, working.query_sums[row], first * kBlock, last * kBlock);
            if (layer_.softcap > 0) cap(weights, layer_.softcap, first * kBlock, last * kBlock);
            const Softmax found = exponentials(weights, row_begin, row_end, first * kBlock, last * kBlock);
            result.largest[row] = found.largest;
            result.total[row] = found.total;
            const float offset = of_values.to_weights(weights, first * kBlock, last * kBlock);
            std::fill_n(result.weighted + row * size_, size_, offset);
        }
        for (int index = first; index < last; ++index) {
            if (index + 1 < last) prefetch(step_.value_cache, indices[index + 1], tile.kv_head);
            with_numbers(values_at(index), tile, working.numbers, [&](const auto* values) {
                const int offset = index * kBlock;
                auto add = [&](int row, auto num, int from, int to) {
                    constexpr int most = columns_for(num());
                    if (from >= to) return;
                    for (int column = 0; column < size_; column += most * kLanes)
                        with_constant<most>(std::min(most, (size_ - column) / kLanes), [&](auto columns) {
                            add_weighted<num(), columns()>(scores + row * kSegment + offset, from - offset,
                                                           to - offset, values + column, size_,
                                                           result.weighted + row * size_ + column);
                        });
                };
                by_rows([&](int row, auto num) {
                    // Rows share the positions that all of them attend to. Others would count 0 times a value
                    // that is perhaps not finite.
                    constexpr std::integral_constant<int, 1> alone;
                    const int stop = std::min(end, offset + kBlock);
                    int all_begin = offset, all_end = stop;
                    for (int each = row; each < row + num(); ++each) {
                        all_begin = std::max(all_begin, begins[each]);
                        all_end = std::min(all_end, ends[each]);
                    }
                    all_begin = std::min(all_begin, stop), all_end = std::max(all_begin, all_end);
                    for (int each = row; each < row + num(); ++each)
                        add(each, alone, std::max(begins[each], offset), std::min(ends[each], all_begin));
                    add(row, num, all_begin, all_end);
                    for (int each = row; each < row + num(); ++each)
                        add(each, alone, std::max(begins[each], all_end), std::min(ends[each], stop));
                });
            });
        }
    }

    // Call `work` with the numbers of a block: as floats where several groups of rows read them, so that they
    // are converted once.
    template <class Work>
    void with_numbers(const Block<Number>& block, const Tile& tile, float* memory, const Work& work) const {
        if (std::is_same_v<Number, float> || tile.num_rows <= kRows) return work(block.numbers);
        for (int at = 0; at < kBlock * size_; at += kLanes) store(memory + at, load(block.numbers + at));
        work(memory);
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
        for (int row = 0; row < tile.num_rows; ++row) {
            const Softmax found{sums.largest[row], sums.total[row]};
            const Lanes factor = every(share_of_values(plan_.head_of(tile, row), found));
            for (int i = 0; i < size_; i += kLanes)
                store(step_.output + plan_.row_of_step(tile, row) * size_ + i,
                      multiply(load(sums.weighted + row * size_ + i), factor));
        }
    }

    // Return the factor of a row's weighted sum over its whole context. A sink joins here, behind all parts,
    // so that it counts once.
    float share_of_values(int head, const Softmax& found) const {
        if (layer_.sinks == nullptr) return 1 / found.total;
        const float sink = layer_.sinks[head], top = std::max(found.largest, sink);
        const float keep = exponential(found.largest - top);
        return keep / (found.total * keep + exponential(sink - top));
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

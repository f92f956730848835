// Reduction of segments of rows: y[o, s, j] = x[o, r, j] op ... over the rows r = order[i] for i from offsets[s] to before
// offsets[s + 1], in this order; r = i without an order. The columns j are adjacent in memory. Every element is read once
// and every result written once, in one launch, and the time does not depend on how long segments are.
//
// Rows and ends of segments form a "path": all rows of a segment, then its end, then the next segment. Segments are
// numbered as in segments.cu. The path is cut into equal shares. A group of LANES threads takes a share, and each
// thread VEC adjacent columns of its rows. LANES x VEC columns are a strip; every strip has equally many blocks.
// Template parameters:
//     LANES      threads of a group
//     GROUPS     groups of a block
//     ROWS       rows that a thread loads before it uses the first
//     VEC        adjacent columns that a thread loads as one vector
//     JOINS      whether an initial element is before each segment; otherwise Starts holds the result of an empty
//                segment
//     Scan       the operator and the elements (see scan.cu): Op, Raw, Result, element(raw), result(state, raw, next)
//     Offset     the type of offsets
//     Inputs, Outputs, Starts    the arrays (see scan.cu)
//
// Phases:
//   1. A warp searches the offsets for the block's part of the path. In this part, each group searches for its share.
//   2. A group goes along its rows. A segment that begins and ends in the share is stored at its end.
//   3. A share may hold only parts of its first and of its last segment. The block combines the parts of its groups,
//      and the last block of the strip to arrive (see ticket.cuh) combines the parts of all blocks.
// Operands stay in order: the operator need not be commutative. It needs no identity. The grouping depends on offsets and
// shape alone, so the same input gives the same bits.
// Wrong offsets give wrong results, but never accesses outside the arrays.

#include "block.cuh"
#include "common.cuh"
#include "search.cuh"
#include "segment_parts.cuh"
#include "ticket.cuh"
#include "view.cuh"

// An operator on adjacent columns.
template <class Op, int VEC>
struct Across {
    struct State {
        typename Op::State of[VEC];
    };
    static DEVICE State combine(const State& earlier, const State& later) {
        State both;
#pragma unroll
        for (int k = 0; k < VEC; ++k) both.of[k] = Op::combine(earlier.of[k], later.of[k]);
        return both;
    }
};

template <int LANES, int GROUPS, int ROWS, int VEC, bool JOINS, int SHARED_BYTES, class Scan, class Offset, class Inputs,
          class Outputs, class Starts>
DEVICE void reduce_rows_of_segments(const Inputs& in, const Outputs& out, const Starts& starts, const Offset* offsets,
                                    const int* order, unsigned* tickets, unsigned* partials, Index low, Index n,
                                    Index inner, Index segments, Index share, unsigned strips, unsigned blocks) {
    using Op = Across<typename Scan::Op, VEC>;
    using State = typename Op::State;
    using Raw = typename Scan::Raw;
    using Result = typename Scan::Result;
    using Whole = Part<State>;
    constexpr int THREADS = LANES * GROUPS;
    constexpr int TOGETHER = GROUPS >= 64 ? 16 : 1;  // groups whose parts are combined first
    static_assert(THREADS * sizeof(Whole) + (GROUPS + 1) * sizeof(Index) <= SHARED_BYTES, "see rows.py");
    extern __shared__ uint4 shared[];
    __shared__ Index bounds[2];
    Whole* const parts = reinterpret_cast<Whole*>(shared);
    Index* const firsts = reinterpret_cast<Index*>(parts + THREADS);  // the first segments that have not ended
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const unsigned strip = blockIdx.x / blocks, block = blockIdx.x % blocks;
    const Index line = strip / strips;
    const LineIndex place = line_index(line, low);
    Index j = ((Index)(strip % strips) * LANES + lane) * VEC;
    const bool exists = j < inner;
    if (!exists) j = 0;  // threads without a column repeat another thread's, and store nothing
    const Inputs from = views_at(in, place.high, place.low, j);
    const Outputs to = views_at(out, place.high, place.low, j);
    const auto finish = [&](Index segment, const Optional<State>& found) {
        if (segment == 0 || !exists) return;
        Result results[VEC];
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            typename Scan::Op::State state = found.state.of[k];
            if (JOINS || !found.valid) {
                const typename Scan::Op::State start = starts.load(place.high, place.low, j + k);
                state = found.valid ? Scan::Op::combine(start, state) : start;
            }
            results[k] = Scan::result(state, Raw(), 0);
        }
        store_across(to, results, segment - 1);
    };

    // The share: rows from `begin` to `past`, ends of segments from `first` to `end`.
    const Index items = n + segments + 1;
    const auto item_of = [&](int at) { return min(items, ((Index)block * GROUPS + at) * share); };
    const auto is_before = [&](Index segment, Index item) { return (Index)offsets[segment] + segment < item; };
    find_bounds(bounds, item_of(0), item_of(GROUPS), [&](Index item) { return min(item, segments + 1); }, is_before);
    __syncthreads();  // separates the writes of bounds from their reads
    for (int at = threadIdx.x; at <= GROUPS; at += THREADS) {
        const Index item = item_of(at);
        const Index first = bounds[0], past = max(first, bounds[1]);
        firsts[at] = first_not_before(first, past, [&](Index segment) { return is_before(segment, item); });
    }
    __syncthreads();  // separates the writes of firsts from their reads
    const Index first = firsts[group], end = max(first, firsts[group + 1]);
    const Index begin = min(n, max((Index)0, item_of(group) - first));
    const Index past = min(n, max(begin, item_of(group + 1) - end));

    Index next = first;  // the first segment that has not ended
    Optional<State> total;
    total.valid = parts[threadIdx.x].first.valid = false;
    const auto end_of = [&](Index segment) { return segment < end ? (Index)offsets[segment] : past; };
    Index ends = end_of(next);
    const auto close = [&]() {
        if (next == first)
            parts[threadIdx.x].first = total;
        else
            finish(next, total);
        total.valid = false;
        ends = end_of(++next);
    };
    for (Index base = begin; base < past; base += ROWS) {
        Index rows[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const Index i = min(base + r, past - 1);
            rows[r] = order ? (Index)order[i] : i;
        }
        Raw raw[ROWS][VEC];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) load_across(from, raw[r], rows[r]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (base + r < past) {
                while (next < end && ends <= base + r) close();
                State one;
#pragma unroll
                for (int k = 0; k < VEC; ++k) one.of[k] = Scan::element(raw[r][k]);
                append<Op>(total, one);
            }
    }
    while (next < end) close();

    // Combines the parts of all groups, in threads of the first group. `all` says that these are all parts of the
    // strip.
    const auto fold_block = [&](bool all) {
        Whole mine;
        if constexpr (TOGETHER > 1) {
            if (group < GROUPS / TOGETHER)
                mine = fold_parts<Op>(
                    TOGETHER, false, [&](int at) { return parts[(group * TOGETHER + at) * LANES + lane]; }, finish);
            __syncthreads();  // separates the reads of parts from the writes of those together
            if (group < GROUPS / TOGETHER) parts[threadIdx.x] = mine;
            __syncthreads();  // separates these writes from their reads
        }
        if (group == 0)
            mine = fold_parts<Op>(
                GROUPS / TOGETHER, all, [&](int at) { return parts[at * LANES + lane]; }, finish);
        return mine;
    };
    Whole& own = parts[threadIdx.x];
    own.rest = total;
    own.segment = first;
    own.ends = next > first;
    __syncthreads();  // separates the writes of parts from their reads
    const Whole of_block = fold_block(blocks == 1);
    if (blocks == 1) return;
    if (group == 0) store_for_others(partials, (Index)blockIdx.x * LANES + lane, of_block);
    if (!is_last_to_arrive(tickets + strip, blocks)) return;
    const int each = ((int)blocks + GROUPS - 1) / GROUPS;
    const int from_block = min((int)blocks, group * each), number = min((int)blocks, from_block + each) - from_block;
    const auto part_of = [&](int at) {
        return load_of_others<Whole>(partials, ((Index)strip * blocks + from_block + at) * LANES + lane);
    };
    own = fold_parts<Op>(number, false, part_of, finish);
    __syncthreads();  // separates the writes of parts from their reads
    fold_block(true);
}

// Reduction of elements by the numbers of their segments, "ids": y[o, s] = x[o, i] op x[o, j] op ... over the places i
// < j < ... with id s. The states of a few segments fit in tables in shared memory, so nothing is sorted.
//
// A "line" is one (o, :). `blocks` blocks share a line, and each of their warps takes a contiguous run of elements, all
// runs of one length.
// Template parameters:
//     WARPS      warps of a block
//     STEPS      elements that a lane loads before it uses the first
//     STORES     whether the last block of a line stores results; otherwise combine_tables does so in a launch of its own
//     JOINS      whether an initial element is before each segment; otherwise Starts holds the result of an empty
//                segment
//     Scan       the operator and the elements (see scan.cu): Op, Raw, Result, element(raw), result(state, raw, next)
//     Id         the type of ids
//     Inputs, Outputs, Starts    the arrays (see scan.cu)
//
// Phases:
//   1. Every warp combines its elements in a table of its own. Adjacent lanes with one segment combine their elements
//      first, if there are many such lanes: ids may be in order. Lanes with equal ids then take turns, from the lowest
//      lane to the highest.
//   2. Every block combines the tables of its warps in order.
//   3. The tables of all blocks of a line are combined in order: first by groups of threads, one for each run of
//      adjacent blocks, then by one thread for each segment.
// Operands stay in order: the operator need not be commutative. It needs no identity. The grouping depends on ids and shape
// alone, so the same input gives the same bits.
//
// The turns follow the histograms of C. Nugteren, G.-J. van den Braak, H. Corporaal and B. Mesman, High Performance
// Predictable Histogramming on GPUs, GPGPU-4, 2011.

#include "block.cuh"
#include "common.cuh"
#include "segment_runs.cuh"
#include "ticket.cuh"
#include "view.cuh"

namespace tables {

// Stores the result of a segment. `found` is the combination of its elements, if it has any.
template <bool JOINS, class Scan, class Outputs>
DEVICE void finish(const Outputs& to, const typename Scan::State& start, const Optional<typename Scan::State>& found,
                   Index segment, Index segments) {
    typename Scan::State state = found.valid ? found.state : start;
    if (JOINS && found.valid) state = Scan::Op::combine(start, found.state);
    const typename Scan::Result results[1] = {Scan::result(state, typename Scan::Raw(), 0)};
    store_along(to, results, segment, segments);
}

// Appends the states of `count` tables. SEVERAL loads are in flight.
template <class Op, class Load>
DEVICE void append_tables(Optional<typename Op::State>& total, Index count, const Load& load) {
    constexpr int SEVERAL = 8;
    for (Index from = 0; from < count; from += SEVERAL) {
        Optional<typename Op::State> found[SEVERAL];
#pragma unroll
        for (int k = 0; k < SEVERAL; ++k) found[k] = load(min(from + k, count - 1));
#pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            if (from + k < count && found[k].valid) append<Op>(total, found[k].state);
    }
}

// Combines the tables of all blocks of a line for the segments from `first` to `past`, and stores the results. A block
// takes WIDTH segments at once, and its groups of threads share the tables. `slots` is shared memory, one slot for each
// thread.
template <int THREADS, bool JOINS, class Scan, class Outputs>
DEVICE void combine_blocks(const Outputs& to, const typename Scan::State& start, const unsigned* partials,
                           Optional<typename Scan::State>* slots, Index line, Index blocks, Index segments, Index first,
                           Index past) {
    using Slot = Optional<typename Scan::State>;
    int width = THREADS;
    while (width > 1 && width / 2 >= past - first) width /= 2;
    const int groups = THREADS / width, group = threadIdx.x / width, at = threadIdx.x % width;
    const Index each = (blocks + groups - 1) / groups, begin = min(blocks, group * each);
    const Index count = min(blocks, begin + each) - begin;
    for (Index from = first; from < past; from += width) {
        const Index segment = from + at;
        Slot total;
        total.valid = false;
        if (segment < past)
            append_tables<typename Scan::Op>(total, count, [&](Index k) {
                return load_of_others<Slot>(partials, (line * blocks + begin + k) * segments + segment);
            });
        slots[threadIdx.x] = total;
        __syncthreads();  // separates the writes of slots from their reads
        if (group == 0 && segment < past) {
            for (int other = 1; other < groups; ++other) {
                const Slot later = slots[other * width + at];
                if (later.valid) append<typename Scan::Op>(total, later.state);
            }
            finish<JOINS, Scan>(to, start, total, segment, segments);
        }
        // If more segments follow, there is only one group, and no thread reads another's slot.
    }
}

template <int WARPS, int STEPS, bool STORES, bool JOINS, int SLOT_BYTES, class Scan, class Id, class Inputs,
          class Outputs, class Starts>
DEVICE void reduce_in_tables(const Inputs& in, const Outputs& out, const Starts& starts, const Id* ids,
                             unsigned* tickets, unsigned* partials, Index n, Index segments, Index ids_line_stride,
                             Index ids_stride, Index each, unsigned blocks) {
    using Op = typename Scan::Op;
    using Slot = Optional<typename Op::State>;
    constexpr int THREADS = WARPS * WARP_SIZE, ROW = STEPS * WARP_SIZE;
    static_assert(sizeof(Slot) == SLOT_BYTES, "see tables.py");
    extern __shared__ uint4 shared[];
    Slot* const tables = reinterpret_cast<Slot*>(shared);
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const Index line = blockIdx.x / blocks, block = blockIdx.x % blocks;
    const Inputs from = views_at(in, line, 0, 0);
    const Outputs to = views_at(out, line, 0, 0);
    const Id* const numbers = ids + line * ids_line_stride;
    for (int at = threadIdx.x; at < WARPS * segments; at += THREADS) tables[at].valid = false;
    __syncthreads();  // separates the empty tables from what is combined in them

    Slot* const own = tables + warp * segments;
    const Index begin = min(n, (block * WARPS + warp) * each), past = min(n, begin + each);
    for (Index base = begin; base < past; base += ROW) {
        typename Scan::Raw raw[STEPS][1];
        Id found[STEPS];
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const Index at = min(base + k * WARP_SIZE + lane, past - 1);
            load_along(from, raw[k], at, n);
            found[k] = numbers[at * ids_stride];
        }
        typename Op::State one[STEPS];
        int segment[STEPS], turn[STEPS];  // -1 for elements of no segment
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            one[k] = Scan::element(raw[k][0]);
            segment[k] = base + k * WARP_SIZE + lane < past ? segment_of(found[k], segments) : -1;
        }
        join_runs<Op, STEPS>(one, segment);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const unsigned equal = __match_any_sync(ALL_LANES, segment[k]);
            turn[k] = segment[k] < 0 ? -1 : __popc(equal & ((1u << lane) - 1));
        }
#pragma unroll
        for (int k = 0; k < STEPS; ++k)
            for (int now = 0; __any_sync(ALL_LANES, turn[k] >= now); ++now) {
                if (turn[k] == now) append<Op>(own[segment[k]], one[k]);
                __syncwarp();  // separates the turns of lanes with equal ids
            }
    }
    __syncthreads();  // separates the writes of tables from their reads below
    const typename Op::State start = starts.load(line, 0, 0);
    for (int at = threadIdx.x; at < segments; at += THREADS) {
        Slot total = tables[at];
        for (int other = 1; other < WARPS; ++other) {
            const Slot later = tables[other * segments + at];
            if (later.valid) append<Op>(total, later.state);
        }
        if (STORES && blocks == 1)
            finish<JOINS, Scan>(to, start, total, at, segments);
        else
            store_for_others(partials, (Index)blockIdx.x * segments + at, total);
    }
    if constexpr (STORES)
        if (blocks > 1 && is_last_to_arrive(tickets + line, blocks))
            combine_blocks<THREADS, JOINS, Scan>(to, start, partials, tables, line, blocks, segments, 0, segments);
}

// Combines the tables of the blocks of each line, WIDTH segments in a block.
template <int THREADS, int WIDTH, bool JOINS, class Scan, class Outputs, class Starts>
DEVICE void combine_tables(const Outputs& out, const Starts& starts, const unsigned* partials, Index segments,
                           unsigned blocks) {
    __shared__ Optional<typename Scan::State> slots[THREADS];
    const Index parts = (segments + WIDTH - 1) / WIDTH, line = blockIdx.x / parts, first = blockIdx.x % parts * WIDTH;
    const Outputs to = views_at(out, line, 0, 0);
    combine_blocks<THREADS, JOINS, Scan>(to, starts.load(line, 0, 0), partials, slots, line, blocks, segments, first,
                                         min(segments, first + WIDTH));
}

}  // namespace tables

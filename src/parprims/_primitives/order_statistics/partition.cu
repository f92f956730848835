// Partition of every row of an array around one of its elements, the pivot, which quantile.cu has found: the smaller
// elements, then the equal ones, then the larger ones, each in the order they had.
//
// Three kernels:
//   count_parts    a block for each tile of a row counts the smaller and the equal elements
//   scan_parts     a block for each row turns these counts into the numbers before each tile, and in the row
//   move_parts     a block for each tile brings its elements in order in shared memory, and writes each of the three
//                  parts as one contiguous piece
// Traffic: every element is read twice and written once, after the three passes (for 32 bits) that find the pivot: 24
// bytes for each element of 4 bytes. A radix sort moves 36 bytes, and ranks every element four times.
//
// M. Billeter, O. Olsson and U. Assarsson, Efficient Stream Compaction on Wide SIMD Many-Core Architectures, HPG, 2009.

#include "common.cuh"
#include "digits.cuh"
#include "key_order.cuh"

namespace partitions {

using namespace digits;

// The numbers of elements that are smaller than the pivot, and equal to it.
struct Counts {
    Index smaller, equal;
};
static_assert(sizeof(Counts) == 16, "partition_cuda.py reserves memory for them");

// Returns 0 for an element smaller than the pivot, 1 for an equal one, and 2 for a larger one.
template <class Order>
DEVICE int part_of(typename Order::Key x, typename Order::Key pivot) {
    const auto one = sorting::compared<Order>(x), other = sorting::compared<Order>(pivot);
    return one < other ? 0 : one == other ? 1 : 2;
}

// The parts of the elements of a tile. Element i of lane l is number i * WARP_SIZE + l among the elements of its warp.
template <int THREADS, int ITEMS, class Order>
struct Parts {
    using Key = typename Order::Key;
    static constexpr int SIZE = THREADS * ITEMS, WARPS = THREADS / WARP_SIZE;
    struct Shared {
        int smaller[WARPS], equal[WARPS];
    };

    Key keys[ITEMS];
    Index row, tile, begin;
    int length, smaller, equal;  // in the tile

    DEVICE Parts(const Key* x, Key const* pivots, Index columns, Index n, Index tiles, Shared& shared) {
        const unsigned number = blockIdx.x / (unsigned)tiles;
        row = number, tile = blockIdx.x - number * (unsigned)tiles;
        begin = tile * SIZE, length = (int)min((Index)SIZE, n - begin);
        const Key* const from = x + row * n + begin;
        pivot = pivots[row * columns];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int at = in_tile<ITEMS>(threadIdx.x, i);
            keys[i] = from[at < length ? at : 0];  // no load waits for another, as it would in a branch
        }
        int own_smaller = 0, own_equal = 0;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            own_smaller += __popc(__ballot_sync(ALL_LANES, part(i) == 0));
            own_equal += __popc(__ballot_sync(ALL_LANES, part(i) == 1));
        }
        if (threadIdx.x % WARP_SIZE == 0) {
            shared.smaller[threadIdx.x / WARP_SIZE] = own_smaller;
            shared.equal[threadIdx.x / WARP_SIZE] = own_equal;
        }
        __syncthreads();  // separates the writes of counts from their reads
        smaller = equal = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) smaller += shared.smaller[warp], equal += shared.equal[warp];
    }

    // Elements past the end have part 3.
    DEVICE int part(int i) const {
        return in_tile<ITEMS>(threadIdx.x, i) < length ? part_of<Order>(keys[i], pivot) : 3;
    }

    // Calls take(i, place) for the elements of this thread, where `place` is the element's place in the order of parts.
    template <class Take>
    DEVICE void rank(const Shared& shared, Take take) const {
        const int own = threadIdx.x / WARP_SIZE;
        int next[3] = {0, smaller, smaller + equal};  // of the parts, in this warp
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp)
            if (warp < own) {
                next[0] += shared.smaller[warp], next[1] += shared.equal[warp];
                next[2] += WARP_SIZE * ITEMS - shared.smaller[warp] - shared.equal[warp];  // earlier warps are full
            }
        const unsigned before = (1u << threadIdx.x % WARP_SIZE) - 1;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int mine = part(i);
#pragma unroll
            for (int which = 0; which < 3; ++which) {
                const unsigned votes = __ballot_sync(ALL_LANES, mine == which);
                if (mine == which) take(i, next[which] + __popc(votes & before));
                next[which] += __popc(votes);
            }
        }
    }

private:
    Key pivot;
};

template <int THREADS, int ITEMS, class Order>
DEVICE void count_parts(const typename Order::Key* x, const typename Order::Key* pivots, Counts* counts, Index columns,
                        Index n, Index tiles) {
    using Tile = Parts<THREADS, ITEMS, Order>;
    __shared__ typename Tile::Shared shared;
    const Tile own(x, pivots, columns, n, tiles, shared);
    if (threadIdx.x == 0) counts[own.row * (tiles + 1) + own.tile] = {own.smaller, own.equal};
}

// Replaces the counts of a row's tiles by the counts of all tiles before, and writes the counts of the row after them.
template <int THREADS>
DEVICE void scan_parts(Counts* counts, Index tiles) {
    __shared__ Index sums[2][THREADS / WARP_SIZE];
    __shared__ Counts total;
    Counts* const own = counts + blockIdx.x * (tiles + 1);
    Counts before = {0, 0};
    for (Index begin = 0; begin < tiles; begin += THREADS) {
        const Index at = begin + threadIdx.x;
        const Counts mine = at < tiles ? own[at] : Counts{0, 0};
        const Index smaller = before.smaller + exclusive_scan<THREADS, THREADS>(mine.smaller, threadIdx.x, sums[0]);
        const Index equal = before.equal + exclusive_scan<THREADS, THREADS>(mine.equal, threadIdx.x, sums[1]);
        if (at < tiles) own[at] = {smaller, equal};
        if (threadIdx.x == THREADS - 1) total = {smaller + mine.smaller, equal + mine.equal};
        __syncthreads();  // separates the write of the total, and the reads of sums, from what follows
        before = total;
        __syncthreads();  // separates the read of the total from its next write
    }
    if (threadIdx.x == 0) own[tiles] = before;
}

// Writes elements, or if PLACES the positions of the elements in their row.
template <int THREADS, int ITEMS, bool PLACES, class Order, class V>
DEVICE void move_parts(const typename Order::Key* x, const typename Order::Key* pivots, const Counts* counts, V* out,
                       Index columns, Index n, Index tiles) {
    using Key = typename Order::Key;
    using Tile = Parts<THREADS, ITEMS, Order>;
    __shared__ typename Tile::Shared shared;
    __shared__ Key keys[PLACES ? 1 : Tile::SIZE];
    __shared__ unsigned short places[PLACES ? Tile::SIZE : 1];
    const Tile own(x, pivots, columns, n, tiles, shared);
    own.rank(shared, [&](int i, int place) {
        if constexpr (PLACES)
            places[place] = (unsigned short)in_tile<ITEMS>(threadIdx.x, i);
        else
            keys[place] = own.keys[i];
    });
    __syncthreads();  // separates the writes of elements from their reads
    const Counts before = counts[own.row * (tiles + 1) + own.tile], all = counts[own.row * (tiles + 1) + tiles];
    // The number to add to a place in the tile, for each part.
    const Index row = own.row * n, smaller = row + before.smaller;
    const Index equal = row + all.smaller + before.equal - own.smaller;
    const Index larger = row + all.smaller + all.equal + (own.begin - before.smaller - before.equal) -
                            own.smaller - own.equal;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const int at = k * THREADS + threadIdx.x;
        if (at >= own.length) break;
        const Index to = (at < own.smaller ? smaller : at < own.smaller + own.equal ? equal : larger) + at;
        if constexpr (PLACES)
            out[to] = (V)(own.begin + places[at]);
        else
            out[to] = keys[at];
    }
}

}  // namespace partitions

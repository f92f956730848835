// Stable merge of two sorted runs of keys, and of the arrays that move with them, for every row of an array.
//
// Phases of merge_runs:
//   1. A block has one tile of the result. The merge path gives the number of keys of the first run before the tile,
//      and before its end: i of the first d keys of the result come from the first run if first[i - 1] does not come
//      after second[d - i] and first[i] comes after second[d - i - 1]. A warp searches for i by 32 probes at a time. If
//      there are many tiles, find_splits finds these numbers in a launch before, one number for each thread: so no
//      block waits.
//   2. The keys of the tile, which are adjacent in each run, are copied to shared memory. A key that comes after all
//      others follows them, and fills a tile that is not whole: so only the end of the first run needs a test.
//   3. Each thread searches for its own place on the merge path and merges ITEMS keys one after the other.
//   4. Keys go to their places in shared memory and are stored by adjacent threads. Adjacent threads load the elements
//      that move with them, too: adjacent keys of the result come from two places of memory.
//
// Template parameters besides those in sort.cu:
//   Bound     the integer type of the places of runs
//   Moved...  the arrays that move with the keys, any number of Merged<V>
//
// O. Green, R. McColl and D. A. Bader, GPU Merge Path: A GPU Merging Algorithm, ICS 2012.

#include "common.cuh"
#include "key_order.cuh"
#include "merge_path.cuh"

namespace sorting {

// Rows of two runs, and their rows in the result.
template <class V>
struct Merged {
    const V* first;
    const V* second;
    V* out;
};

// A row of `first` has `first_n` elements, a row of `second` has `second_n`, and a row of the result has `n`. If
// `bounds` is not null it has five numbers for every row: the beginning of the run in `first`, its length, the
// beginning and the length of the run in `second`, and whether of equal keys the keys of `second` come first. The
// lengths add up to at most n. Without `bounds` the runs are whole rows.
template <class Bound>
struct Runs {
    const Bound* bounds;
    Index first_n, second_n, n, tiles;
};

// The runs of one row: their beginnings and lengths. Of equal keys, keys of the first run come first: if `bounds` asks
// for the other order, the runs are exchanged (`turned`).
template <class Order>
struct RunsOfRow {
    const typename Order::Key* first;
    const typename Order::Key* second;
    Index first_at, second_at, first_n, second_n;
    bool turned = false;

    template <class Bound>
    DEVICE RunsOfRow(const Merged<typename Order::Key>& keys, const Runs<Bound>& runs, Index row)
        : first_at(row * runs.first_n), second_at(row * runs.second_n), first_n(runs.first_n), second_n(runs.second_n) {
        if (runs.bounds) {
            const Bound* const own = runs.bounds + row * 5;
            turned = own[4] != 0;
            first_at += own[0], first_n = own[1], second_at += own[2], second_n = own[3];
        }
        first = keys.first + first_at;
        second = keys.second + second_at;
        if (turned) exchange(first, second), exchange(first_at, second_at), exchange(first_n, second_n);
    }

    template <class T>
    DEVICE static void exchange(T& one, T& other) {
        const T kept = one;
        one = other;
        other = kept;
    }
};

// Finds the number of keys of the first run before each tile. A row has one more number, for the end of its last tile.
// A thread finds one number. If all numbers of a warp belong to one row, the warp first finds the least and the largest
// of them, each by half of its lanes. The threads then search between these two, and so read memory that lies close
// together. A thread looks at PROBES places at a time.
// PROBES places at a time.
template <int TILE, class Order, class Bound>
DEVICE void find_splits(Merged<typename Order::Key> keys, Runs<Bound> runs, Index* splits, Index count) {
    constexpr int PROBES = 3;
    const Index at = (Index)blockIdx.x * blockDim.x + threadIdx.x, last = min(at, count - 1);
    const Index row = (unsigned)last / (unsigned)(runs.tiles + 1);  // there are fewer than 2^32 numbers
    const RunsOfRow<Order> own(keys, runs, row);
    const Index diagonal = min((last - row * (runs.tiles + 1)) * TILE, own.first_n + own.second_n);
    Index low = max((Index)0, diagonal - own.second_n), high = min(diagonal, own.first_n);
    if (__all_sync(ALL_LANES, row == __shfl_sync(ALL_LANES, row, 0))) {
        const int lane = threadIdx.x % WARP_SIZE, end = lane < WARP_SIZE / 2 ? 0 : WARP_SIZE - 1;
        const Index wanted = __shfl_sync(ALL_LANES, diagonal, end);
        const Index found = merge_path<Order, WARP_SIZE / 2>(own.first, own.first_n, own.second, own.second_n, wanted);
        low = max(low, __shfl_sync(ALL_LANES, found, 0));
        high = min(high, __shfl_sync(ALL_LANES, found, WARP_SIZE - 1));
    }
    while (low < high) {  // invariant: low <= i <= high
        const Index step = (high - low) / (PROBES + 1) + 1;
        int passed = 0;
#pragma unroll
        for (int k = 0; k < PROBES; ++k) {
            const Index place = min(low + (k + 1) * step, high) - 1;
            passed += comes_first<Order>(own.first[place], own.second[diagonal - 1 - place]);
        }
        high = min(high, low + (passed + 1) * step - 1);
        low = min(high, low + passed * step);
    }
    if (at < count) splits[at] = low;
}

// `splits` is the result of find_splits, or null.
template <int THREADS, int ITEMS, class Order, class Bound, class... Moved>
DEVICE void merge_runs(Merged<typename Order::Key> keys, Runs<Bound> runs, const Index* splits, Moved... moved) {
    using Key = typename Order::Key;
    constexpr int TILE = THREADS * ITEMS;
    constexpr bool MOVES = sizeof...(Moved) > 0;
    static_assert(THREADS >= 2 * WARP_SIZE, "two warps search for the ends of a tile");
    static_assert(TILE <= 32768, "the highest bit of a place tells the run");
    __shared__ Key held[TILE + 1];
    __shared__ unsigned short places[MOVES ? TILE : 1];
    __shared__ Index ends[2];

    const unsigned row_number = blockIdx.x / (unsigned)runs.tiles;
    const Index row = row_number, begin = (Index)(blockIdx.x - row_number * (unsigned)runs.tiles) * TILE;
    const RunsOfRow<Order> own(keys, runs, row);
    const Index first_at = own.first_at, second_at = own.second_at, first_n = own.first_n, second_n = own.second_n;
    const Key* const first = own.first;
    const Key* const second = own.second;
    const Index total = first_n + second_n;
    if (begin >= total) return;
    const int length = (int)min((Index)TILE, total - begin);
    if (splits) {
        if (threadIdx.x < 2) ends[threadIdx.x] = splits[blockIdx.x + row + threadIdx.x];
    } else if (threadIdx.x < 2 * WARP_SIZE) {
        const int which = threadIdx.x / WARP_SIZE;
        const Index found = merge_path<Order>(first, first_n, second, second_n, begin + which * length);
        if (threadIdx.x % WARP_SIZE == 0) ends[which] = found;
    }
    __syncthreads();  // separates the write of the ends from their reads
    const Index first_begin = ends[0], second_begin = begin - first_begin;
    // Runs that are not sorted are merged in a wrong order, but without accesses outside the runs.
    const int first_length = (int)max((Index)0, min(ends[1] - first_begin, (Index)length));

    merge_tile_of_runs<ITEMS, MOVES, Order>(held, places, first + first_begin, second + second_begin, first_length,
                                            length);

    const Index out = row * runs.n + begin;
    Key* const to = keys.out + out + threadIdx.x;
    const int mine = length - (int)threadIdx.x;
#pragma unroll
    for (int k = 0; k < ITEMS; ++k)
        if (length == TILE || k * THREADS < mine) to[k * THREADS] = held[k * THREADS + threadIdx.x];
    const auto move = [&](auto array) {
        if (own.turned) own.exchange(array.first, array.second);
        const auto* const from_first = array.first + first_at + first_begin;
        const auto* const from_second = array.second + second_at + second_begin - first_length;
#pragma unroll 4  // more loads at a time would take too many registers
        for (int k = 0; k < ITEMS; ++k) {
            const int at = k * THREADS + threadIdx.x;
            if (at >= length) break;
            const int place = places[at];
            array.out[out + at] = (place < first_length ? from_first : from_second)[place];
        }
    };
    (move(moved), ...);
}

}  // namespace sorting

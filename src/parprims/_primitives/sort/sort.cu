// Stable sort along the last axis of an array of rows.
//
// Three kernels, by the length n of a row:
//   sort_lanes     n <= 32: one lane holds one key. It compares the key with all others of its row; the number of
//                  smaller keys is its place. Equal keys are counted only if two lanes claim the same place.
//   sort_rows      n <= 8192, few rows of keys without values also 8192 < n <= 16384, if keys and their original positions
//                  fit in shared memory: radix sort, least significant digit first, by a warp or a block for each row. The
//                  row stays in registers and shared memory for all digits. Values move once, when their places are known.
//   sort_tiles     long rows: radix sort with one launch for each digit, which reads and writes every key once.
//                  count_digits first counts the digits of all keys.
//
// Template parameters:
//   Order     the keys and their order (see key_order.cuh). Keys are moved with their bits unchanged; ordered(key) is
//             compared.
//   Asked...  the results asked for, any number of: Keys<Key> (the sorted keys), Move<V> (an array of elements of V
//             that move with the keys) and Indices<Result> (the original positions of the sorted keys).
//
// The kernels of long rows are in sort_tiles.cu.

#include "common.cuh"
#include "digits.cuh"
#include "key_order.cuh"
#include "sort_results.cuh"

namespace sorting {

using namespace digits;

// ---- Rows of at most 32 keys: one key for each lane -------------------------------------------------------------

// A thread has one key of each of ROWS rows, which are THREADS / LANES rows apart. LANES threads share a row.
template <int THREADS, int LANES, int ROWS, class Order>
struct SortedLanes {
    using Key = typename Order::Key;

    const Key* in;
    Index row, rows, at;  // the first row, the number of rows, and this thread's element of the first
    int n, lane, places[ROWS];

    static constexpr int TOGETHER = LANES * sizeof(Key) < 16 ? LANES : 16 / sizeof(Key);  // keys of a vector
    using Vector = typename Word<TOGETHER * sizeof(Key)>::Type;

    DEVICE SortedLanes(const Key* keys_in, Index count, int length) : in(keys_in), rows(count), n(length) {
        __shared__ Vector shared[ROWS][THREADS / TOGETHER];
        __shared__ int owners[ROWS][THREADS];
        row = (Index)blockIdx.x * (THREADS / LANES * ROWS) + threadIdx.x / LANES;
        lane = threadIdx.x % LANES;
        at = row * n + lane;
        const int first = threadIdx.x - lane;
        Key keys[ROWS];
        // Lanes without a key hold the largest key. They come after all others, because their numbers are higher.
#pragma unroll
        for (int i = 0; i < ROWS; ++i) keys[i] = in[exists(i) ? at + step(i) : 0];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) keys[i] = exists(i) ? ordered<Order>(keys[i]) : (Key)~(Key)0;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) reinterpret_cast<Key*>(shared[i])[threadIdx.x] = keys[i];
        __syncwarp();  // separates the writes of keys from their reads
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const Key key = keys[i];
            places[i] = counted(shared[i] + first / TOGETHER, [&](Key other, int) { return other < key; });
            if (exists(i)) atomicExch(&owners[i][first + places[i]], lane);
        }
        __syncwarp();  // separates the writes of owners from their reads
        bool equals = false;  // whether two lanes claim one place
#pragma unroll
        for (int i = 0; i < ROWS; ++i) equals |= exists(i) && owners[i][first + places[i]] != lane;
        if (__any_sync(ALL_LANES, equals))
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const Key key = keys[i];
                places[i] += counted(
                    shared[i] + first / TOGETHER, [&](Key other, int its) { return other == key && its < lane; });
            }
    }

    // Returns for how many keys of a row counts(key, lane) is true.
    template <class Counts>
    DEVICE static int counted(const Vector* row, Counts counts) {
        int count = 0;
#pragma unroll
        for (int first = 0; first < LANES; first += TOGETHER) {
            Key keys[TOGETHER];
            memcpy(keys, &row[first / TOGETHER], sizeof(Vector));
#pragma unroll
            for (int k = 0; k < TOGETHER; ++k) count += counts(keys[k], first + k);
        }
        return count;
    }

    DEVICE bool exists(int i) const { return lane < n && row + i * (THREADS / LANES) < rows; }
    DEVICE int step(int i) const { return i * (THREADS / LANES) * n; }  // from this thread's first element to its i-th

    DEVICE void answer(Keys<Key> keys) const { move(in + at, keys.out); }

    template <class V>
    DEVICE void answer(Move<V> array) const {
        move(array.in + at, array.out);
    }

    template <class Result>
    DEVICE void answer(Indices<Result> indices) const {
        Result held[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) held[i] = (Result)lane;
        write(held, indices.out);
    }

    template <class V>
    DEVICE void move(const V* from, V* to) const {
        V held[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            if (exists(i)) held[i] = from[step(i)];
        write(held, to);
    }

    template <class V>
    DEVICE void write(const V (&held)[ROWS], V* to) const {
        to += at - lane;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            if (exists(i)) to[step(i) + places[i]] = held[i];
    }
};

// Sorts THREADS / LANES * ROWS rows of n keys in each block.
template <int THREADS, int LANES, int ROWS, class Order, class... Asked>
DEVICE void sort_lanes(const typename Order::Key* keys, Index rows, Index n, Asked... asked) {
    const SortedLanes<THREADS, LANES, ROWS, Order> sorted(keys, rows, (int)n);
    (sorted.answer(asked), ...);
}

// ---- Rows in the registers of a warp or a block ---------------------------------------------------------------

// GROUP threads hold a row, and a block has THREADS threads. Digits have BITS bits. FULL promises that each thread has
// ITEMS keys. With SOURCES, every key is kept with its original position.
template <int THREADS, int GROUP, int ITEMS, int BITS, bool FULL, bool SOURCES, class Order>
struct SortedRows {
    using Key = typename Order::Key;
    static constexpr int SIZE = GROUP * ITEMS, DIGITS = 1 << BITS, WARPS = GROUP / WARP_SIZE;
    static_assert(GROUP == WARP_SIZE || GROUP == THREADS, "every digit has barriers, and rows skip different digits");
    struct Shared {
        Key keys[SIZE];
        unsigned short sources[SOURCES ? SIZE : 1];
        alignas(16) unsigned counts[WARPS][DIGITS];  // aligned so that a thread reads the counts of 4 digits at once
        unsigned sums[DIGITS / WARP_SIZE + 1], needed;
    };

    Key keys[ITEMS];
    unsigned short sources[SOURCES ? ITEMS : 1];
    Index row, rows;
    int n, thread;

    DEVICE SortedRows(const Key* in, Index count, int length) : rows(count), n(length) {
        extern __shared__ uint4 dynamic[];
        if (FULL) n = SIZE;
        const int group = THREADS == GROUP ? 0 : threadIdx.x / GROUP;
        Shared& shared = reinterpret_cast<Shared*>(dynamic)[group];
        thread = threadIdx.x % GROUP;
        row = (Index)blockIdx.x * (THREADS / GROUP) + group;
        const Key* from = in + (row < rows ? row : rows - 1) * n;
        if (WARPS > 1 && thread == 0) shared.needed = 0;
        // All keys are loaded before the first is used, so that no load waits for another. Past the end, the first key
        // is loaded.
        const Key first = ordered<Order>(from[0]);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int at = in_tile<ITEMS>(thread, i);
            keys[i] = from[exists(i) ? at : 0];
            if (SOURCES) sources[i] = (unsigned short)at;
        }
        Key differing = 0;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            differing |= ordered<Order>(keys[i]) ^ first;
            if (!exists(i)) keys[i] = LastKey<Order>::bits();
        }
        if (!FULL && !LastKey<Order>::ALL_ARE_SET)  // the key past the end may differ, too
            differing |= ordered<Order>(LastKey<Order>::bits()) ^ first;
        unsigned needed = 0;  // a bit for each digit in which keys of the row differ
#pragma unroll
        for (int shift = 0; shift < Order::WIDTH; shift += BITS)
            needed |= (unsigned)(__any_sync(ALL_LANES, (differing >> shift & (DIGITS - 1)) != 0) != 0) << shift / BITS;
        if (WARPS > 1) {
            __syncthreads();  // separates the zero from what is added to it
            if (threadIdx.x % WARP_SIZE == 0) atomicOr(&shared.needed, needed);
            __syncthreads();  // separates the additions from the read
            needed = shared.needed;
        }
        for (; needed; needed &= needed - 1) sort_by(shared, (__ffs(needed) - 1) * BITS);
    }

    DEVICE bool exists(int i) const { return FULL || in_tile<ITEMS>(thread, i) < n; }

    DEVICE void sort_by(Shared& shared, int shift) {
        unsigned digits[ITEMS];
        // Elements past the end have the last key, and no element with the same digit comes after them: they stay there.
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) digits[i] = digit_of<Order, BITS>(keys[i], shift);
        unsigned(&own)[DIGITS] = shared.counts[WARPS == 1 ? 0 : thread / WARP_SIZE];
        count_in_warp<BITS>(digits, own);
        place_digits<GROUP, DIGITS>(shared.counts, thread, shared.sums, [](unsigned) {});
        rank_in_warp<BITS>(digits, own, [&](int i, unsigned next) {
            shared.keys[next - 1] = keys[i];
            if (SOURCES) shared.sources[next - 1] = sources[i];
        });
        wait_for_group<GROUP>();  // separates the writes of keys from their reads
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            keys[i] = shared.keys[in_tile<ITEMS>(thread, i)];
            if (SOURCES) sources[i] = shared.sources[in_tile<ITEMS>(thread, i)];
        }
    }

    // Calls write(i, at) for the elements of this thread, where `at` is the element's place in the sorted row.
    template <class Write>
    DEVICE void each(Write write) const {
        asm volatile("" ::: "memory");  // else the compiler computes the addresses of all arrays first: more registers
        if (row >= rows) return;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (exists(i)) write(i, in_tile<ITEMS>(thread, i));
    }

    DEVICE void answer(Keys<Key> sorted) const {
        Key* to = sorted.out + row * n;
        each([&](int i, int at) { to[at] = keys[i]; });
    }

    template <class V>
    DEVICE void answer(Move<V> array) const {
        static_assert(SOURCES);
        if (row >= rows) return;
        const V* from = array.in + row * n;
        V* to = array.out + row * n;
        constexpr int TOGETHER = ITEMS < 8 ? ITEMS : 8;  // loads that wait together
#pragma unroll
        for (int begin = 0; begin < ITEMS; begin += TOGETHER) {
            V held[TOGETHER];
#pragma unroll
            for (int i = begin; i < min(begin + TOGETHER, ITEMS); ++i)
                held[i - begin] = from[exists(i) ? sources[i] : 0];
#pragma unroll
            for (int i = begin; i < min(begin + TOGETHER, ITEMS); ++i)
                if (exists(i)) to[in_tile<ITEMS>(thread, i)] = held[i - begin];
        }
    }

    template <class Result>
    DEVICE void answer(Indices<Result> indices) const {
        static_assert(SOURCES);
        Result* to = indices.out + row * n;
        each([&](int i, int at) { to[at] = (Result)sources[i]; });
    }
};

// Sorts THREADS / GROUP rows of n keys in each block, which has SHARED_BYTES of dynamic shared memory.
template <int THREADS, int GROUP, int ITEMS, int BITS, bool FULL, bool SOURCES, int SHARED_BYTES, class Order,
          class... Asked>
DEVICE void sort_rows(const typename Order::Key* keys, Index rows, Index n, Asked... asked) {
    using Rows = SortedRows<THREADS, GROUP, ITEMS, BITS, FULL, SOURCES, Order>;
    static_assert(sizeof(typename Rows::Shared) * (THREADS / GROUP) <= SHARED_BYTES);
    const Rows sorted(keys, rows, (int)n);
    (sorted.answer(asked), ...);
}

}  // namespace sorting

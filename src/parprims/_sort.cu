// Stable sort along the last axis of an array of rows, by the least significant digit first.
//
// Three kernels, by the length n of a row:
//   sort_lanes     n <= 32: a lane to a key, which it compares with all others of its row to count how many go before
//                  its own; equal keys are looked for only where two want one place. Nothing moves before the end.
//   sort_rows      n <= 8192, as far as shared memory holds keys and where they come from: a warp or a block to a row,
//                  which stays in registers and shared memory for all digits. Values wait until their places are known
//                  and move once.
//   sort_tiles     Long rows: after count_digits, which counts the digits of all keys, each launch sorts by one digit,
//                  with one read and one write.
//
// Template parameters:
//   Order     the keys and their order: Key (an unsigned integer as wide as a key), KIND, INFINITE (the bits of
//             infinity), DESCENDING (whether the largest key comes first), WIDTH (how many bits of ordered(key) can
//             differ). Keys are moved as the bits they are; `ordered` says where they go.
//   Asked...  what is asked for, any number of: Keys<Key> (the sorted keys), Move<V> (an array of elements of V that
//             move as the keys do) and Indices<Index> (where the keys come from).
//
// The kernels of long rows are in _sort_tiles.cu.

namespace sorting {

using namespace digits;

using Position = long long;

// ---- Keys -------------------------------------------------------------------------------------------------------

enum Kind { BOOL, SIGNED, UNSIGNED, FLOATING };

// Returns an unsigned integer in the order asked for: equal where keys are, the largest (descending, least) for NaN.
template <class Order>
DEVICE typename Order::Key ordered(typename Order::Key bits) {
    using Key = typename Order::Key;
    constexpr Key SIGN = (Key)1 << (8 * sizeof(Key) - 1);
    Key key = bits;
    if (Order::KIND == BOOL) key = bits != 0;
    if (Order::KIND == SIGNED) key = bits ^ SIGN;
    if (Order::KIND == FLOATING && sizeof(Key) == 4) {
        // A sum is never -0, and all that are NaN have the same bits, all set but the sign.
        key = (Key)__float_as_uint(__fadd_rn(__uint_as_float((unsigned)bits), 0.0f));
        key ^= (Key)((int)key >> 31) | SIGN;
    } else if (Order::KIND == FLOATING) {
        // A magnitude with its sign, counted from -infinity: NaN of either sign lie above +infinity and become one.
        const Key negative = bits & SIGN ? (Key)~(Key)0 : (Key)0;
        key = (Key)((bits ^ (negative | SIGN)) - negative - (Key)(SIGN - Order::INFINITE));
        key = min(key, (Key)(2 * Order::INFINITE + 1));
    }
    return Order::DESCENDING ? (Key)~key : key;
}

template <class Order, int BITS>
DEVICE unsigned digit_of(typename Order::Key bits, int shift) {
    return (unsigned)(ordered<Order>(bits) >> shift) & ((1u << BITS) - 1);
}

// ---- What is asked for ------------------------------------------------------------------------------------------

// The sorted keys.
template <class Key>
struct Keys {
    Key* out;
};

// Elements that move as their keys do. In long rows they go by way of `own`, temporary memory of the same size.
template <class V>
struct Move {
    const V* in;
    V* own;
    V* out;
};

// Where the keys of a row come from. In long rows these are numbers of type Place on the way, in `own`, which is
// temporary memory, and in `aside`. Rows in `aside` are `apart` bytes an element longer than these numbers.
template <class Index, class Place = Index>
struct Indices {
    Place* own;
    Place* aside;
    Index* out;
    int apart;
};

// ---- Rows that a warp holds, a key to a lane --------------------------------------------------------------------

// A thread has a key of each of ROWS rows, which lie THREADS / LANES rows apart.
template <int THREADS, int LANES, int ROWS, class Order>
struct SortedLanes {
    using Key = typename Order::Key;

    const Key* in;
    Position row, rows, at;  // the first row, how many there are, and this thread's element of the first
    int n, lane, places[ROWS];

    static constexpr int TOGETHER = LANES * sizeof(Key) < 16 ? LANES : 16 / sizeof(Key);  // keys read at once
    using Vector = typename Word<TOGETHER * sizeof(Key)>::Type;

    DEVICE SortedLanes(const Key* keys_in, Position count, int length) : in(keys_in), rows(count), n(length) {
        __shared__ Vector shared[ROWS][THREADS / TOGETHER];
        __shared__ int owners[ROWS][THREADS];
        row = (Position)blockIdx.x * (THREADS / LANES * ROWS) + threadIdx.x / LANES;
        lane = threadIdx.x % LANES;
        at = row * n + lane;
        const int first = threadIdx.x - lane;
        const Key* from = in + at;
        Key keys[ROWS];
        // Lanes without a key stand behind all others, whatever those are.
#pragma unroll
        for (int i = 0; i < ROWS; ++i) keys[i] = exists(i) ? ordered<Order>(from[step(i)]) : (Key)~(Key)0;
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
        bool equals = false;  // two lanes want one place
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

    // Returns how many of a row's keys `counts`, which is given a key and its lane.
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
    DEVICE int step(int i) const { return i * (THREADS / LANES) * n; }  // from the first element to element i

    DEVICE void answer(Keys<Key> keys) const { move(in + at, keys.out); }

    template <class V>
    DEVICE void answer(Move<V> array) const {
        move(array.in + at, array.out);
    }

    template <class Index>
    DEVICE void answer(Indices<Index> indices) const {
        Index held[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) held[i] = (Index)lane;
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
DEVICE void sort_lanes(const typename Order::Key* keys, Position rows, Position n, Asked... asked) {
    const SortedLanes<THREADS, LANES, ROWS, Order> sorted(keys, rows, (int)n);
    (sorted.answer(asked), ...);
}

// ---- Rows that a warp or a block holds ------------------------------------------------------------------------

// GROUP threads to a row, and THREADS to a block; digits of BITS bits. FULL promises that each thread has ITEMS keys.
// With SOURCES each key is followed by where it comes from.
template <int THREADS, int GROUP, int ITEMS, int BITS, bool FULL, bool SOURCES, class Order>
struct SortedRows {
    using Key = typename Order::Key;
    static constexpr int SIZE = GROUP * ITEMS, DIGITS = 1 << BITS, WARPS = GROUP / WARP;
    static_assert(GROUP == WARP || GROUP == THREADS, "a barrier for every digit, and each row has its own digits");
    struct Shared {
        Key keys[SIZE];
        unsigned short sources[SOURCES ? SIZE : 1];
        alignas(16) unsigned counts[WARPS][DIGITS];  // so that a thread reads those of 4 digits at once
        unsigned sums[DIGITS / WARP + 1], needed;
    };

    Key keys[ITEMS];
    unsigned short sources[SOURCES ? ITEMS : 1];
    Position row, rows;
    int n, thread;

    DEVICE SortedRows(const Key* in, Position count, int length) : rows(count), n(length) {
        extern __shared__ uint4 dynamic[];
        if (FULL) n = SIZE;
        const int group = THREADS == GROUP ? 0 : threadIdx.x / GROUP;
        Shared& shared = reinterpret_cast<Shared*>(dynamic)[group];
        thread = threadIdx.x % GROUP;
        row = (Position)blockIdx.x * (THREADS / GROUP) + group;
        const Key* from = in + (row < rows ? row : rows - 1) * n;
        if (WARPS > 1 && thread == 0) shared.needed = 0;
        Key differing = 0;
        const Key first = ordered<Order>(from[0]);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int at = in_tile<ITEMS>(thread, i);
            keys[i] = exists(i) ? from[at] : (Key)0;
            if (SOURCES) sources[i] = (unsigned short)at;
            if (exists(i)) differing |= ordered<Order>(keys[i]) ^ first;
        }
        unsigned needed = 0;  // by digit
#pragma unroll
        for (int shift = 0; shift < Order::WIDTH; shift += BITS)
            needed |= (unsigned)(__any_sync(ALL_LANES, (differing >> shift & (DIGITS - 1)) != 0) != 0) << shift / BITS;
        if (WARPS > 1) {
            __syncthreads();  // separates the zero from what is added to it
            if (threadIdx.x % WARP == 0) atomicOr(&shared.needed, needed);
            __syncthreads();  // separates the additions from the read
            needed = shared.needed;
        }
        for (; needed; needed &= needed - 1) sort_by(shared, (__ffs(needed) - 1) * BITS);
    }

    DEVICE bool exists(int i) const { return FULL || in_tile<ITEMS>(thread, i) < n; }

    DEVICE void sort_by(Shared& shared, int shift) {
        unsigned digits[ITEMS];
        // Elements past the end have the largest digit and stand behind all others, so there they stay.
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            digits[i] = exists(i) ? digit_of<Order, BITS>(keys[i], shift) : DIGITS - 1;
        unsigned(&own)[DIGITS] = shared.counts[WARPS == 1 ? 0 : thread / WARP];
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

    // Calls write(i, at) for the elements of this thread, `at` being where they go in the row.
    template <class Write>
    DEVICE void each(Write write) const {
        asm volatile("" ::: "memory");  // else the compiler has the addresses of all arrays at once, in more registers
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
        const V* from = array.in + row * n;
        V* to = array.out + row * n;
        each([&](int i, int at) { to[at] = from[sources[i]]; });
    }

    template <class Index>
    DEVICE void answer(Indices<Index> indices) const {
        static_assert(SOURCES);
        Index* to = indices.out + row * n;
        each([&](int i, int at) { to[at] = (Index)sources[i]; });
    }
};

// Sorts THREADS / GROUP rows of n keys in each block, which has SHARED_BYTES of dynamic shared memory.
template <int THREADS, int GROUP, int ITEMS, int BITS, bool FULL, bool SOURCES, int SHARED_BYTES, class Order,
          class... Asked>
DEVICE void sort_rows(const typename Order::Key* keys, Position rows, Position n, Asked... asked) {
    using Rows = SortedRows<THREADS, GROUP, ITEMS, BITS, FULL, SOURCES, Order>;
    static_assert(sizeof(typename Rows::Shared) * (THREADS / GROUP) <= SHARED_BYTES);
    const Rows sorted(keys, rows, (int)n);
    (sorted.answer(asked), ...);
}

}  // namespace sorting

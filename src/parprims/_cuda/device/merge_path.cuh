// The merge of two sorted runs of keys: the number of keys of the first run before a place of the result, and the merge
// of a tile of the result by a block.
//
// O. Green, R. McColl and D. A. Bader, GPU Merge Path: A GPU Merging Algorithm, ICS 2012.

#include "common.cuh"
#include "key_order.cuh"

namespace sorting {

// Returns the number that a key is compared by: floating-point keys as they are, others in the order asked for.
template <class Order>
DEVICE auto comparable(typename Order::Key bits) {
    using Key = typename Order::Key;
    if constexpr (Order::KIND != FLOATING)
        return ordered<Order>(bits);
    else if constexpr (sizeof(Key) == 8)
        return __longlong_as_double((long long)bits);
    else if constexpr (sizeof(Key) == 4)
        return __uint_as_float(bits);
    else if constexpr (Order::INFINITE == 0x7c00)
        return value(Half{bits});
    else
        return value(Bfloat{bits});
}

// Returns whether a key of the first run comes before a key of the second run. Of equal keys, the first run's key does.
template <class Order>
DEVICE bool comes_first(typename Order::Key first, typename Order::Key second) {
    const auto one = comparable<Order>(first), other = comparable<Order>(second);
    if constexpr (Order::KIND != FLOATING)
        return one <= other;
    else  // NaN is the largest number
        return Order::DESCENDING ? one >= other || one != one : one <= other || other != other;
}

// The last of all keys: every key of the first run comes before it.
template <class Order>
DEVICE constexpr typename Order::Key last_key() {
    using Key = typename Order::Key;
    constexpr Key SIGN = (Key)((Key)1 << (8 * sizeof(Key) - 1));
    if (Order::KIND == SIGNED) return (Key)(Order::DESCENDING ? SIGN : SIGN - 1);
    if (Order::KIND == FLOATING && Order::DESCENDING) return (Key)(SIGN | Order::INFINITE);
    return (Key)(Order::DESCENDING ? 0 : ~(Key)0);  // NaN, if a number of floating point
}

// Returns how many of the first `diagonal` keys of the merged runs come from the first run. All lanes of a warp call
// it, and each group of LANES searches for itself.
template <class Order, int LANES = WARP_SIZE>
DEVICE Index merge_path(const typename Order::Key* first, Index first_n, const typename Order::Key* second,
                           Index second_n, Index diagonal) {
    const int lane = threadIdx.x % LANES, group = threadIdx.x % WARP_SIZE - lane;
    Index low = diagonal > second_n ? diagonal - second_n : 0, high = diagonal < first_n ? diagonal : first_n;
    while (__any_sync(ALL_LANES, low < high)) {  // invariant: low <= i <= high
        const Index step = (high - low + LANES - 1) / LANES, at = low + lane * step;
        const bool before = at < high && comes_first<Order>(first[at], second[diagonal - 1 - at]);
        // The first `count` lanes of the group.
        const int count = __popc(__ballot_sync(ALL_LANES, before) >> group & ALL_LANES >> (WARP_SIZE - LANES));
        const Index next = low + count * step;
        if (next < high) high = next;
        if (count) low = next - step + 1;
    }
    return low;
}

// Merges the `length` keys of a tile: `first_length` keys of the first run, from `first` on, and then keys of the
// second run, from `second` on. Afterwards `held` has the keys in order. With MOVES, `places` has the place of each
// before the merge. All threads of a block call it; a thread merges ITEMS keys.
template <int ITEMS, bool MOVES, class Order, int SIZE, int PLACES>
DEVICE void merge_tile_of_runs(typename Order::Key (&held)[SIZE], unsigned short (&places)[PLACES],
                               const typename Order::Key* first, const typename Order::Key* second, int first_length,
                               int length) {
    using Key = typename Order::Key;
    constexpr int TILE = SIZE - 1, THREADS = TILE / ITEMS;
    static_assert(THREADS * ITEMS == TILE, "one key more marks the end");
    const int thread = threadIdx.x, before = first_length - thread;
    first += thread;
    second += thread - first_length;
    Key loaded[ITEMS];
    if (length == TILE) {
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) loaded[k] = (k * THREADS < before ? first : second)[k * THREADS];
    } else {  // keys that come after all others follow the second run
        const int own = length - thread;
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {  // no load depends on a branch, so that all begin before the first is used
            const int at = min(k * THREADS, own - 1);
            loaded[k] = (at < before ? first : second)[at];
        }
#pragma unroll
        for (int k = 0; k < ITEMS; ++k)
            if (k * THREADS >= own) loaded[k] = last_key<Order>();
    }
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) held[k * THREADS + thread] = loaded[k];
    if (thread == 0) held[TILE] = last_key<Order>();
    __syncthreads();  // separates the writes of keys from their reads

    const int diagonal = thread * ITEMS, high = min(diagonal, first_length);
    int one = max(0, diagonal - (TILE - first_length));
#pragma unroll
    for (int step = 1 << 14; step; step /= 2)  // no thread searches among more than half of a tile
        if (step <= TILE / 2 && step <= high - one &&
            comes_first<Order>(held[one + step - 1], held[first_length + diagonal - one - step]))
            one += step;
    const int other = first_length + diagonal;  // `one` and `k` say how far the second run has been read
    unsigned short from[ITEMS];
    Key a = held[one], b = held[other - one];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const bool takes = one < first_length & comes_first<Order>(a, b);  // true where the second run is at its end
        loaded[k] = takes ? a : b;
        from[k] = (unsigned short)(takes ? one : other + k - one);
        one += takes;
        const Key next = held[takes ? one : other + k + 1 - one];
        a = takes ? next : a;
        b = takes ? b : next;
    }
    __syncthreads();  // separates the reads of keys from the writes of merged ones
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        held[diagonal + k] = loaded[k];
        if (MOVES) places[diagonal + k] = from[k];
    }
    __syncthreads();  // separates the writes of merged keys from their reads
}

}  // namespace sorting

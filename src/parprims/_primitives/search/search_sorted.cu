// Search in sorted keys: for each wanted key, the number of n sorted keys before it.
//
// Two ways, and a launch for one of them:
//   search_directly   a thread halves the range of a key: for few keys.
//   search_tree       Sorted keys are the leaves of a tree. Each level holds the last key of each full group of the level
//   search_tree       Sorted keys are the leaves of a tree. Each level holds the last key of each full group of the
//                     level before. A group of level 0, which is x, has LEAF keys: 64 bytes, the least that memory
//                     reads at once, if keys have 4 or 8 bytes. A group of another level has FAN keys. If r keys of x
//                     are before the wanted key, then r / LEAF keys of level 1 are, and r / LEAF / FAN keys of level 2.
//                     The lowest level that fits is held in shared memory, where a thread halves the range. Below, one
//                     group of each level is read. A thread searches for EACH keys at once, so that EACH reads are in
//                     flight.
//   sample_keys       writes all levels but level 0, as integers in the order of the keys. If all keys fit in shared
//                     memory, there are no such levels.
//
// Traffic: a wanted key and its place are read and written once. For each wanted key, one group of every level between
// shared memory and x is read. Those levels stay in the cache up to about 2^26 keys, when they take 19 MB together; of
// x, 64 bytes are read. Wanted keys and places are the first to leave the cache (ld.cs, st.cs). The levels are written
// once for all wanted keys.
//
// Template parameters besides those in sort.cu:
//   RIGHT     whether equal keys are before the wanted one
//   VECTOR    whether x begins at a multiple of 16 bytes
//   Place     the integer type of results
//
// C. Kim et al., FAST: Fast Architecture Sensitive Tree Search on Modern CPUs and GPUs, SIGMOD 2010.

#include "common.cuh"
#include "key_order.cuh"
#include "search.cuh"

namespace searches {

using sorting::Compared;

constexpr int FAN_BITS = 3, FAN = 1 << FAN_BITS;
template <class Key>
constexpr int LEAF_BITS = sizeof(Key) <= 4 ? 4 : 3;

// A level has fewer keys than x by this power of two; the number of its keys; and the memory that levels take: each
// begins at a whole group.
template <class Key>
DEVICE int shift_of(int level) {
    return level > 0 ? LEAF_BITS<Key> + FAN_BITS * (level - 1) : 0;
}
template <class Key>
DEVICE Index keys_of(Index n, int level) {
    return n >> shift_of<Key>(level);
}
template <class Key>
DEVICE Index taken_by(Index n, int level) {
    return (keys_of<Key>(n, level) + FAN - 1) / FAN * FAN;
}

template <bool RIGHT, class Wide>
DEVICE bool is_before(Wide key, Wide wanted) {
    return RIGHT ? key <= wanted : key < wanted;
}

// Writes levels 1, 2, ..., `levels`, one after the other. A thread writes one key.
template <int THREADS, class Order>
DEVICE void sample_keys(const typename Order::Key* x, typename Compared<typename Order::Key>::Type* nodes, Index n,
                        Index levels) {
    using Key = typename Order::Key;
    using Wide = typename Compared<Key>::Type;
    Index at = (Index)blockIdx.x * THREADS + threadIdx.x;
    for (int level = 1; level <= levels; ++level) {
        const Index taken = taken_by<Key>(n, level);
        if (at < taken) {
            const Index last = ((at + 1) << shift_of<Key>(level)) - 1;
            nodes[at] = at < keys_of<Key>(n, level) ? sorting::compared<Order>(x[last]) : ~Wide{};
            return;
        }
        at -= taken, nodes += taken;
    }
}

// Loads the keys of a group, which is whole.
template <bool VECTOR, int COUNT, class Key>
DEVICE void load_group(Key (&keys)[COUNT], const Key* from) {
    constexpr int BYTES = COUNT * sizeof(Key) < 16 ? COUNT * sizeof(Key) : 16, EACH = BYTES / sizeof(Key);
    using Vector = typename Word<BYTES>::Type;
    if (VECTOR)
#pragma unroll
        for (int k = 0; k < COUNT; k += EACH) {
            const Vector vector = *reinterpret_cast<const Vector*>(from + k);
            memcpy(keys + k, &vector, BYTES);
        }
    else
#pragma unroll
        for (int k = 0; k < COUNT; ++k) keys[k] = from[k];
}

// Block b searches for the keys from b * THREADS * EACH on, and for the keys a whole grid further, and so on. Its
// dynamic shared memory holds the keys of the lowest level.
template <int THREADS, int EACH, bool RIGHT, bool VECTOR, class Order, class Place>
DEVICE void search_tree(const typename Order::Key* x, const typename Order::Key* wanted, Place* found,
                        const typename Compared<typename Order::Key>::Type* nodes, Index n, Index m,
                        Index levels) {
    using Key = typename Order::Key;
    using Wide = typename Compared<Key>::Type;
    constexpr int LEAF = 1 << LEAF_BITS<Key>;
    extern __shared__ uint4 dynamic[];
    Wide* const top = reinterpret_cast<Wide*>(dynamic);
    const int held = (int)keys_of<Key>(n, (int)levels);
    const Wide* highest = nodes;
    for (int level = 1; level < levels; ++level) highest += taken_by<Key>(n, level);
    for (int at = threadIdx.x; at < held; at += THREADS)
        top[at] = levels > 0 ? highest[at] : sorting::compared<Order>(x[at]);
    __syncthreads();  // separates the writes of the keys from their reads
    int step = 1;
    while (step <= held / 2) step *= 2;

    constexpr int TOGETHER = THREADS * EACH;
    for (Index begin = (Index)blockIdx.x * TOGETHER; begin < m; begin += (Index)gridDim.x * TOGETHER) {
        const Index mine = begin + threadIdx.x;
        Wide keys[EACH];
        int first[EACH];
        Index places[EACH];
#pragma unroll
        for (int one = 0; one < EACH; ++one) {
            keys[one] = sorting::compared<Order>(__ldcs(wanted + min(mine + one * THREADS, m - 1)));
            first[one] = 0;
        }
        for (int half = step; half > 0; half /= 2)
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                const int next = first[one] + half;
                if (next <= held && is_before<RIGHT>(top[next - 1], keys[one])) first[one] = next;
            }
#pragma unroll
        for (int one = 0; one < EACH; ++one) places[one] = first[one];
        const Wide* nodes_of = highest;
        for (int level = (int)levels - 1; level > 0; --level) {
            nodes_of -= taken_by<Key>(n, level);
            const Index count = keys_of<Key>(n, level), last = taken_by<Key>(n, level) - FAN;
            Wide own[EACH][FAN];
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                places[one] *= FAN;
                load_group<true>(own[one], nodes_of + min(places[one], last));
            }
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                const int length = (int)min(count - places[one], (Index)FAN);
#pragma unroll
                for (int k = 0; k < FAN; ++k)
                    places[one] += k < length && is_before<RIGHT>(own[one][k], keys[one]);
            }
        }
        if (levels > 0) {  // then there are several groups
            Key own[EACH][LEAF];
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                places[one] *= LEAF;
                load_group<VECTOR>(own[one], x + (places[one] + LEAF <= n ? places[one] : 0));
            }
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                const Index group = places[one];
                if (group + LEAF <= n)
#pragma unroll
                    for (int k = 0; k < LEAF; ++k)
                        places[one] += is_before<RIGHT>(sorting::compared<Order>(own[one][k]), keys[one]);
                else
                    for (Index at = group; at < n; ++at)
                        places[one] += is_before<RIGHT>(sorting::compared<Order>(x[at]), keys[one]);
            }
        }
#pragma unroll
        for (int one = 0; one < EACH; ++one)
            if (mine + one * THREADS < m) __stcs(found + mine + one * THREADS, (Place)places[one]);
    }
}

// Searches for a key in each thread.
template <int THREADS, bool RIGHT, class Order, class Place>
DEVICE void search_directly(const typename Order::Key* x, const typename Order::Key* wanted, Place* found, Index n,
                            Index m) {
    const Index mine = (Index)blockIdx.x * THREADS + threadIdx.x;
    if (mine >= m) return;
    const auto key = sorting::compared<Order>(wanted[mine]);
    const auto before = [&](Index at) { return is_before<RIGHT>(sorting::compared<Order>(x[at]), key); };
    found[mine] = (Place)first_not_before(0, n, before);
}

}  // namespace searches

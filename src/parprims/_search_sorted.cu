// Search in sorted keys: for each key that is wanted, how many of n sorted keys are before it.
//
// Two ways, and a launch for one of them:
//   search_directly   a thread halves the range of a key: for few keys, or hardly any sorted ones.
//   search_tree       Sorted keys are the leaves of a tree. A node is a group of FAN adjacent keys of a level, and level k
//                     holds every FAN^k-th key of x: the last of each full group of level k - 1. So of n >> 3 k keys of
//                     level k, r >> 3 k are before a key that r keys of x are before. The lowest level that fits is held in
//                     shared memory, where a thread halves the range. Below, one group of each level is read, which is 32
//                     adjacent bytes if keys have 4: a sector of memory. A thread searches for EACH keys at once, so that
//                     as many reads are under way.
//   sample_keys       writes the levels but the lowest, as integers in the order of the keys. Where all keys fit in shared
//                     memory there are none.
//
// Traffic: a wanted key and its place are read and written once. For each, one sector of every level between shared memory
// and x is read, of which the upper ones stay in the cache: 3 levels of 2^24 keys, 10 MB together, and 32 bytes of x. The
// levels hold a seventh as many keys as x, and are written once for all.
//
// Template parameters besides those in _sort.cu:
//   RIGHT     whether equal keys are before the wanted one
//   VECTOR    whether x begins at a multiple of 16 bytes
//   Place     the integer type of results
//
// C. Kim et al., FAST: Fast Architecture Sensitive Tree Search on Modern CPUs and GPUs, SIGMOD 2010.

namespace searches {

using sorting::Compared;
using sorting::Position;

constexpr int FAN_BITS = 3, FAN = 1 << FAN_BITS;

// How many keys level k has, and how much memory they take: levels begin at whole groups.
DEVICE Position keys_of(Position n, int level) { return n >> FAN_BITS * level; }
DEVICE Position taken_by(Position n, int level) { return (keys_of(n, level) + FAN - 1) / FAN * FAN; }

template <bool RIGHT, class Wide>
DEVICE bool is_before(Wide key, Wide wanted) {
    return RIGHT ? key <= wanted : key < wanted;
}

// Writes levels 1, 2, ..., `levels`, one after the other. A thread writes one key.
template <int THREADS, class Order>
DEVICE void sample_keys(const typename Order::Key* x, typename Compared<typename Order::Key>::Type* nodes, Position n,
                        Position levels) {
    using Wide = typename Compared<typename Order::Key>::Type;
    Position at = (Position)blockIdx.x * THREADS + threadIdx.x;
    for (int level = 1; level <= levels; ++level) {
        const Position taken = taken_by(n, level);
        if (at < taken) {
            nodes[at] = at < keys_of(n, level) ? sorting::compared<Order>(x[((at + 1) << FAN_BITS * level) - 1]) : ~Wide{};
            return;
        }
        at -= taken, nodes += taken;
    }
}

// Loads the FAN keys of a group, which is whole.
template <bool VECTOR, class Key>
DEVICE void load_group(Key (&keys)[FAN], const Key* from) {
    constexpr int BYTES = FAN * sizeof(Key) < 16 ? FAN * sizeof(Key) : 16, EACH = BYTES / sizeof(Key);
    using Vector = typename Word<BYTES>::Type;
    if (VECTOR)
#pragma unroll
        for (int k = 0; k < FAN; k += EACH) {
            const Vector vector = *reinterpret_cast<const Vector*>(from + k);
            memcpy(keys + k, &vector, BYTES);
        }
    else
#pragma unroll
        for (int k = 0; k < FAN; ++k) keys[k] = from[k];
}

// Block b searches for the keys from b * THREADS * EACH on, and for those a whole grid further. Its dynamic shared memory
// holds the keys of the lowest level.
template <int THREADS, int EACH, bool RIGHT, bool VECTOR, class Order, class Place>
DEVICE void search_tree(const typename Order::Key* x, const typename Order::Key* wanted, Place* found,
                        const typename Compared<typename Order::Key>::Type* nodes, Position n, Position m,
                        Position levels) {
    using Key = typename Order::Key;
    using Wide = typename Compared<Key>::Type;
    extern __shared__ uint4 dynamic[];
    Wide* const top = reinterpret_cast<Wide*>(dynamic);
    const int held = (int)keys_of(n, (int)levels);
    const Wide* highest = nodes;
    for (int level = 1; level < levels; ++level) highest += taken_by(n, level);
    for (int at = threadIdx.x; at < held; at += THREADS)
        top[at] = levels > 0 ? highest[at] : sorting::compared<Order>(x[at]);
    __syncthreads();  // separates the writes of the keys from their reads
    int step = 1;
    while (step <= held / 2) step *= 2;

    constexpr int TOGETHER = THREADS * EACH;
    for (Position begin = (Position)blockIdx.x * TOGETHER; begin < m; begin += (Position)gridDim.x * TOGETHER) {
        const Position mine = begin + threadIdx.x;
        Wide keys[EACH];
        int first[EACH];
        Position places[EACH];
#pragma unroll
        for (int one = 0; one < EACH; ++one) {
            keys[one] = sorting::compared<Order>(wanted[min(mine + one * THREADS, m - 1)]);
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
            nodes_of -= taken_by(n, level);
            const Position count = keys_of(n, level), last = taken_by(n, level) - FAN;
            Wide own[EACH][FAN];
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                places[one] *= FAN;
                load_group<true>(own[one], nodes_of + min(places[one], last));
            }
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                const int length = (int)min(count - places[one], (Position)FAN);
#pragma unroll
                for (int k = 0; k < FAN; ++k)
                    places[one] += k < length && is_before<RIGHT>(own[one][k], keys[one]);
            }
        }
        if (levels > 0) {  // so there is more than one group
            Key own[EACH][FAN];
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                places[one] *= FAN;
                load_group<VECTOR>(own[one], x + (places[one] + FAN <= n ? places[one] : 0));
            }
#pragma unroll
            for (int one = 0; one < EACH; ++one) {
                const Position group = places[one];
                if (group + FAN <= n)
#pragma unroll
                    for (int k = 0; k < FAN; ++k)
                        places[one] += is_before<RIGHT>(sorting::compared<Order>(own[one][k]), keys[one]);
                else
                    for (Position at = group; at < n; ++at)
                        places[one] += is_before<RIGHT>(sorting::compared<Order>(x[at]), keys[one]);
            }
        }
#pragma unroll
        for (int one = 0; one < EACH; ++one)
            if (mine + one * THREADS < m) found[mine + one * THREADS] = (Place)places[one];
    }
}

// Searches for a key in each thread.
template <int THREADS, bool RIGHT, class Order, class Place>
DEVICE void search_directly(const typename Order::Key* x, const typename Order::Key* wanted, Place* found, Position n,
                            Position m) {
    const Position mine = (Position)blockIdx.x * THREADS + threadIdx.x;
    if (mine >= m) return;
    const auto key = sorting::compared<Order>(wanted[mine]);
    Position low = 0, high = n;
    while (low < high) {
        const Position middle = low + (high - low) / 2;
        if (is_before<RIGHT>(sorting::compared<Order>(x[middle]), key))
            low = middle + 1;
        else
            high = middle;
    }
    found[mine] = (Place)low;
}

}  // namespace searches

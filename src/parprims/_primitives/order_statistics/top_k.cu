// The first k elements of every row in the order of a sort, and their positions. Every element is read once, in one
// launch.
//
// A row is cut into parts, each for one block. Phases:
//   1. A block goes through its part in batches and keeps candidates in shared memory: the elements that are not after
//      a limit. The limit comes from the first batch: at least k of its elements have at most this key (see edge). A
//      batch has elements of the whole part, so that the limit is good in rows that ascend or descend, too.
//   2. If the candidates no longer fit, they are settled: only candidates that can be among the first k stay. They are
//      sorted, the first k stay, and the last of them is the limit.
//   3. The candidates are settled, and the first k are the block's.
//   4. If a row has several parts, the last block of the row (see ticket.cuh) goes through the first k of all parts by
//      phases 1 to 3: first the first elements of all parts, then their second elements, and so on, as most later
//      elements are after the limit that the first batch gives.
// Candidates are ordered by key, equal ones by position. No two are equal, so the result does not depend on the order in
// which threads append them. Sorts are bitonic networks.
// Reproducibility: elements are copied unchanged, and the choice of elements depends on the input alone.
//
// K. E. Batcher, Sorting Networks and Their Applications, AFIPS Spring Joint Computer Conference, 1968.
// J. Zhang, A. Naruse, X. Li and Y. Wang, Parallel Top-K Algorithms on GPU: A Comprehensive Study and New Methods,
// SC, 2023.

#include "block.cuh"
#include "common.cuh"
#include "key_order.cuh"
#include "ticket.cuh"

namespace top {

// ---- Candidates -------------------------------------------------------------------------------------------------

// A key of 32 bits and its position in the part, in one number that orders both.
template <class Key>
struct Candidate {
    unsigned long long both;

    DEVICE static Candidate of(Key key, unsigned position) { return {(unsigned long long)key << 32 | position}; }
    DEVICE static Candidate none() { return {~0ull}; }  // comes after all others
    DEVICE Key key() const { return (Key)(both >> 32); }
    DEVICE unsigned position() const { return (unsigned)both; }
    DEVICE bool operator<(const Candidate& other) const { return both < other.both; }
};

// A key of 64 bits and its position.
template <>
struct __align__(16) Candidate<unsigned long long> {
    unsigned long long its_key, its_position;

    DEVICE static Candidate of(unsigned long long key, unsigned position) { return {key, position}; }
    DEVICE static Candidate none() { return {~0ull, ~0ull}; }
    DEVICE unsigned long long key() const { return its_key; }
    DEVICE unsigned position() const { return (unsigned)its_position; }
    DEVICE bool operator<(const Candidate& other) const {
        return its_key < other.its_key || (its_key == other.its_key && its_position < other.its_position);
    }
};

// The result of a block, for the last block of its row.
struct Told {
    unsigned long long key;
    Index position;  // in the row
};

// Sorts the first `count` candidates by all threads. There is memory for the next power of two, at least 64. A warp
// compares pairs within 64 neighbours at distances up to 32, which needs no barrier of the block.
template <int THREADS, class One>
DEVICE void sort_candidates(One* all, int count) {
    int size = 2 * WARP_SIZE;
    while (size < count) size *= 2;
    __syncthreads();  // separates the writes of candidates from the sort
    for (int at = count + threadIdx.x; at < size; at += THREADS) all[at] = One::none();
    __syncthreads();  // separates the writes of none from the sort
    for (int span = 2; span <= size; span *= 2)
        for (int distance = span / 2; distance > 0; distance /= 2) {
#pragma unroll 1  // which saves registers
            for (int pair = threadIdx.x; pair < size / 2; pair += THREADS) {
                const int low = 2 * pair - (pair & (distance - 1)), high = low + distance;
                const One one = all[low], other = all[high];
                if ((other < one) == ((low & span) == 0)) {
                    all[low] = other;
                    all[high] = one;
                }
            }
            const int next = distance > 1 ? distance / 2 : span;  // the distance of the next step
            if (distance <= WARP_SIZE && next <= WARP_SIZE)
                __syncwarp();  // separates the steps of the warp
            else
                __syncthreads();  // separates the steps of the block
        }
    __syncthreads();  // separates the sort from the reads of what is sorted
}

// ---- The first k of a part ----------------------------------------------------------------------------------------

// A block's candidates. CAPACITY is a power of two, at least THREADS + k.
template <int THREADS, int ITEMS, int CAPACITY, class Key>
struct Best {
    using One = Candidate<Key>;

    One* all;
    int k, held;
    Key limit;                // candidates have at most this key
    unsigned limit_position;  // and candidates with that key are before this position

    DEVICE Best(One* memory, int first)
        : all(memory), k(first), held(0), limit(~(Key)0), limit_position(~0u) {}

    // Returns the place of the calling thread's first candidate among the candidates that the block adds now, if the
    // thread has `mine` of them; `added` counts them.
    DEVICE static int reserve(int mine, unsigned* added) {
        const int lane = threadIdx.x % WARP_SIZE, upto = scan_lanes<Sum<int>, WARP_SIZE>(mine, lane);
        int first = 0;
        if (lane == WARP_SIZE - 1 && upto > 0) first = (int)atomicAdd(added, (unsigned)upto);
        return __shfl_sync(ALL_LANES, first, WARP_SIZE - 1) + upto - mine;
    }

    // Returns a key with at least k of all threads' keys not above it, and only a few more unless keys are equal. There
    // are at least k keys. The search halves the range of possible keys.
    template <int EACH>
    DEVICE Key edge(const Key (&keys)[EACH]) const {
        __shared__ unsigned counted[3];  // by the steps, in turn
        if (threadIdx.x < 3) counted[threadIdx.x] = 0;
        __syncthreads();  // separates the zeros from the counting
        Key low = 0, high = ~(Key)0;
        for (int turn = 0; low < high;) {
            const Key middle = low + (high - low) / 2;
            int of_warp = 0;
#pragma unroll
            for (int e = 0; e < EACH; ++e) of_warp += __popc(__ballot_sync(ALL_LANES, keys[e] <= middle));
            if (threadIdx.x % WARP_SIZE == 0 && of_warp > 0) atomicAdd(&counted[turn], (unsigned)of_warp);
            const int next = turn == 2 ? 0 : turn + 1;
            if (threadIdx.x == 0) counted[next] = 0;  // which all threads read before the barrier of the step before
            __syncthreads();                          // separates the counting from the read of the count
            const int count = (int)counted[turn];
            turn = next;
            if (count < k) {
                low = middle + 1;
            } else {
                high = middle;
                if (count <= enough()) break;
            }
        }
        __syncthreads();  // separates the reads of the counts from what comes next
        return high;
    }

    // The number of candidates from which on it pays to drop some before they are sorted.
    DEVICE int enough() const { return k + k / 4 + WARP_SIZE; }

    // Drops candidates that cannot be among the first k.
    DEVICE void drop() {
        constexpr int EACH = CAPACITY / THREADS;
        __shared__ unsigned kept;
        __syncthreads();  // separates the writes of candidates from their reads
        One mine[EACH];
        Key keys[EACH];
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int at = e * THREADS + (int)threadIdx.x;
            mine[e] = at < held ? all[at] : One::none();
            keys[e] = mine[e].key();
        }
        if (threadIdx.x == 0) kept = 0;
        const Key last = edge(keys);  // whose barriers separate the reads of candidates and the zero from the writes
        unsigned stays = 0;
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (keys[e] <= last && e * THREADS + (int)threadIdx.x < held) stays |= 1u << e;
        int place = reserve(__popc(stays), &kept);
#pragma unroll
        for (int e = 0; e < EACH; ++e)
            if (stays >> e & 1u) all[place++] = mine[e];
        __syncthreads();  // separates the counting from the read of the count
        held = (int)kept;
    }

    // Keeps the first k of the candidates, in order, and lowers the limit if there are k.
    DEVICE void settle() {
        if (held > enough()) drop();
        sort_candidates<THREADS>(all, held);
        if (held < k) return;
        held = k;
        limit = all[k - 1].key();
        limit_position = all[k - 1].position();
        __syncthreads();  // separates the read of the last from what is appended
    }

    // Elements that a block looks at together: thread t has the elements first + i * step + t.
    struct Batch {
        unsigned first, step;
        int count;

        DEVICE unsigned at(int i) const { return first + i * step + threadIdx.x; }
        DEVICE bool has(int i) const { return i * THREADS + (int)threadIdx.x < count; }
    };

    // Goes through `count` elements and sorts the candidates. load(at) returns the bits of an element, key_of(bits) its
    // key and position_of(at) its position. If elements are `spread`, each whole batch has elements of all parts of the
    // range. A batch is loaded while the previous batch is looked at.
    template <class Load, class KeyOf, class PositionOf>
    DEVICE void find(unsigned count, bool spread, const Load& load, const KeyOf& key_of, const PositionOf& position_of) {
        using Bits = decltype(load(0));
        constexpr int SIZE = THREADS * ITEMS;
        __shared__ unsigned added[3];  // by the batches, in turn
        if (threadIdx.x < 3) added[threadIdx.x] = 0;
        __syncthreads();  // separates the zeros from the counting
        int turn = 0;
        const unsigned whole = count / SIZE, batches = whole + (count > whole * SIZE);
        const auto batch = [&](unsigned number) {
            if (number == whole) return Batch{whole * SIZE, THREADS, (int)(count - whole * SIZE)};
            return spread ? Batch{number * THREADS, whole * THREADS, SIZE} : Batch{number * SIZE, THREADS, SIZE};
        };
        Key ahead[ITEMS];  // the bits, in whole registers
        const auto load_ahead = [&](unsigned number) {
            if (number >= whole) return;  // a batch that is not whole is loaded when it is looked at
            const Batch next = batch(number);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) ahead[i] = load(next.at(i));
        };
        load_ahead(0);
        for (unsigned number = 0; number < batches; ++number) {
            const Batch here = batch(number);
            Key keys[ITEMS];
            unsigned exist = ~0u;
            if (number < whole) {
#pragma unroll
                for (int i = 0; i < ITEMS; ++i) keys[i] = key_of((Bits)ahead[i]);
                load_ahead(number + 1);
            } else {
#pragma unroll
                for (int i = 0; i < ITEMS; ++i) {
                    keys[i] = key_of(load(here.has(i) ? here.at(i) : here.first));
                    if (!here.has(i)) {
                        keys[i] = ~(Key)0;
                        exist &= ~(1u << i);
                    }
                }
            }
            Key best[1] = {keys[0]};
#pragma unroll
            for (int i = 1; i < ITEMS; ++i) best[0] = min(best[0], keys[i]);
            if (number == 0 && here.count > enough()) {  // the best keys of many threads are of nearly the first elements
                limit = 4 * k <= THREADS && here.count > THREADS ? edge(best) : edge(keys);
            }
            unsigned wanted = 0;
            int place = held;
            if (__any_sync(ALL_LANES, best[0] <= limit)) {
#pragma unroll
                for (int i = 0; i < ITEMS; ++i)
                    if (keys[i] <= limit) wanted |= 1u << i;
                wanted &= exist;
                // A second pass, for ties alone: is_wanted for every element is slower, as it needs every position.
                if (limit_position != ~0u) {
#pragma unroll
                    for (int i = 0; i < ITEMS; ++i)
                        if (keys[i] == limit && position_of(here.at(i)) >= limit_position) wanted &= ~(1u << i);
                }
                place += reserve(__popc(wanted), &added[turn]);
            }
            const int next = turn == 2 ? 0 : turn + 1;
            if (threadIdx.x == 0) added[next] = 0;  // which all threads read before the barrier of the batch before
            __syncthreads();                        // separates the counting from the read of the count
            const int all_held = held + (int)added[turn];
            turn = next;
            if (all_held <= CAPACITY) {
#pragma unroll
                for (int i = 0; i < ITEMS; ++i)
                    if (wanted >> i & 1u) all[place++] = One::of(keys[i], position_of(here.at(i)));
                held = all_held;
            } else {
                find_step_by_step(here, [&](unsigned at) { return key_of(load(at)); }, position_of);
            }
        }
        settle();
    }

    DEVICE bool is_wanted(Key key, unsigned position) const {
        return key < limit || (key == limit && position < limit_position);
    }

    // Goes through a batch with more candidates than there is room for, one element of each thread at a time.
    template <class Load, class PositionOf>
    DEVICE void find_step_by_step(const Batch& here, const Load& load, const PositionOf& position_of) {
        __shared__ unsigned added;
#pragma unroll 1
        for (int i = 0; i < ITEMS && i * THREADS < here.count; ++i) {
            if (held + THREADS > CAPACITY) settle();
            const unsigned at = here.has(i) ? here.at(i) : here.first;
            const Key key = load(at);
            const unsigned position = position_of(at);
            const bool wanted = here.has(i) && is_wanted(key, position);
            if (threadIdx.x == 0) added = 0;
            __syncthreads();  // separates the zero from the counting
            const int place = held + reserve(wanted, &added);
            if (wanted) all[place] = One::of(key, position);
            __syncthreads();  // separates the counting from the read of the count
            held += (int)added;
            __syncthreads();  // separates the read of the count from its next zero
        }
    }
};

// ---- The kernel ---------------------------------------------------------------------------------------------------

// Writes the first k elements of every row of n, and their positions. A row has `parts` parts of `length` elements,
// fewer than 2^32 - 1; only the last part may have fewer. If there are several parts, `told` has k places for each, and
// `tickets` a zero for each row.
template <int THREADS, int ITEMS, int CAPACITY, class Order, class Result>
DEVICE void find_top(const typename Order::Key* x, typename Order::Key* values, Result* indices, unsigned* told,
                     unsigned* tickets, Index n, Index first, Index parts, Index length) {
    using Key = typename sorting::Compared<typename Order::Key>::Type;
    using One = Candidate<Key>;
    extern __shared__ __align__(16) uint4 memory[];
    One* const all = reinterpret_cast<One*>(memory);
    const int k = (int)first;
    const Index row = blockIdx.x / parts, part = blockIdx.x - row * parts;
    const Index begin = part * length, end = min(begin + length, n);
    const typename Order::Key* const from = x + row * n;
    const auto write = [&](int place, Index position) {
        values[row * k + place] = from[position];
        indices[row * k + place] = (Result)position;
    };
    Best<THREADS, ITEMS, CAPACITY, Key> own(all, k);
    own.find(
        (unsigned)(end - begin), true, [&](unsigned at) { return __ldg(from + begin + at); },
        [](typename Order::Key bits) { return sorting::compared<Order>(bits); },
        [](unsigned at) { return at; });
    if (parts == 1) {
        for (int place = threadIdx.x; place < k; place += THREADS) write(place, all[place].position());
        return;
    }
    const Index others = row * parts * k;
    for (int place = threadIdx.x; place < k; place += THREADS) {
        // Elements past the end of the last part come after all others.
        const bool exists = place < own.held;
        const Told one = {exists ? all[place].key() : ~0ull, exists ? begin + all[place].position() : 0};
        store_for_others(told, others + place * parts + part, one);
    }
    if (!is_last_to_arrive(tickets + row, parts)) return;
    // Of equal keys, keys of earlier parts come first, and within a part keys of lower position.
    Best<THREADS, ITEMS, CAPACITY, Key> together(all, k);
    together.find(
        (unsigned)(parts * k), false, [&](unsigned at) { return (Key)load_of_others<Told>(told, others + at).key; },
        [](Key key) { return key; },
        [&](unsigned at) {
            const unsigned place = at / (unsigned)parts;
            return (at - place * (unsigned)parts) * (unsigned)k + place;
        });
    for (int place = threadIdx.x; place < k; place += THREADS) {
        const unsigned position = all[place].position(), its_part = position / (unsigned)k;
        const Index at = (Index)(position - its_part * (unsigned)k) * parts + its_part;
        write(place, load_of_others<Told>(told, others + at).position);
    }
}

}  // namespace top

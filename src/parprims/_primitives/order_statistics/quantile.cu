// The element at a place of every sorted row, the element after it, and the last element, by a radix select: the digits
// of the key are found one after another, the highest first. For each digit all keys are read, and the keys that begin
// with the digits found so far are counted.
//
// Two kernels:
//   select_alone    many rows: a block for each row finds all digits
//   select_digit    few rows: a launch for each digit, in which several blocks share a row
// Phases of one digit:
//   1. A block counts the digits of its keys in shared memory. There are COPIES counters for each digit, and a lane
//      uses one of them, because additions to one counter wait for each other.
//   2. Only select_digit: blocks add their counters to those of the row in global memory, and the last block (see
//      ticket.cuh) goes on. Counters are integers, so the order of additions does not matter.
//   3. A scan of the counters gives the digit of the place, and the number of keys before this digit.
// With the last digit, the blocks also find the largest key, and the smallest key with first digits above those found
// before. This is the next element, unless a key with these digits is.
// Reproducibility: the results depend on the keys alone. The two zeros have one key, and so have all NaN.
//
// T. Alabi, J. D. Blanchard, B. Gordon and R. Steinbach, Fast K-Selection Algorithms for Graphics Processing Units, ACM
// Journal of Experimental Algorithmics 17, 2012.

#include "common.cuh"
#include "digits.cuh"
#include "key_order.cuh"
#include "ticket.cuh"

namespace quantiles {

using namespace digits;

using Count = unsigned long long;
using Wide = unsigned long long;  // a key of any size

constexpr int BITS = 11, RADIX = 1 << BITS, COPIES = 4;

// Returns the bits of an element from its key. For both zeros, these are the bits of +0.
template <class Order>
DEVICE typename Order::Key bits_of(Wide wide) {
    using Key = typename Order::Key;
    constexpr Key SIGN = (Key)1 << (8 * sizeof(Key) - 1);
    const Key key = (Key)wide;
    if (Order::KIND == sorting::SIGNED) return (Key)(key ^ SIGN);
    if (Order::KIND == sorting::UNSIGNED) return key;
    if (sizeof(Key) == 4) return key & SIGN ? (Key)(key ^ SIGN) : (Key)~key;
    return key >= Order::INFINITE ? (Key)(key - Order::INFINITE) : (Key)(SIGN | (Key)(Order::INFINITE - key));
}

// A digit of the keys, and what precedes it. Keys that begin with `prefix` matter; number `rank` of them, in order, is
// the element at the place. If `first`, all keys matter.
struct Digit {
    int shift, bits;
    bool first;
    Wide prefix;
    Count rank;

    template <class Key>
    DEVICE bool matters(Key key) const {
        return first || key >> (shift + bits) == (Key)prefix;
    }
    template <class Key>
    DEVICE bool is_above(Key key) const {
        return !first && key >> (shift + bits) > (Key)prefix;
    }
    template <class Key>
    DEVICE int of(Key key) const {
        return (int)(key >> shift) & ((1 << bits) - 1);
    }
};

// The digit of a place, the next digit that a key has (RADIX if there is none), and whether the next key has the same
// digit.
struct Choice {
    int digit, next;
    bool same;
    Count before;  // the number of keys that matter with a smaller digit
};

// The largest key, and the complement of the smallest key with higher first digits.
template <class Key>
struct Ends {
    Key largest, above;
};

template <int THREADS, class Key>
struct Memory {
    unsigned counters[RADIX * COPIES];
    Count sums[THREADS / WARP_SIZE];
    Choice choice;
    unsigned next;  // the complement of the next digit
    Key largest, above;
};

// Counts the digits of the keys load(begin), ... before `end`; with LAST finds the ends too, in `ends` of each thread.
template <int THREADS, int ITEMS, bool LAST, class Key, class Load>
DEVICE void count(unsigned* counters, Ends<Key>& ends, const Digit& digit, Index begin, Index end, const Load& load) {
    for (int at = threadIdx.x; at < RADIX * COPIES; at += THREADS) counters[at] = 0;
    __syncthreads();  // separates the zeros from the counting
    const auto take = [&](Key key) {
        if (digit.matters(key)) atomicAdd(&counters[digit.of(key) * COPIES + threadIdx.x % COPIES], 1u);
        if (LAST) {
            ends.largest = max(ends.largest, key);
            if (digit.is_above(key)) ends.above = max(ends.above, (Key)~key);
        }
    };
    Index at = begin + threadIdx.x;
    for (; at + (ITEMS - 1) * THREADS < end; at += ITEMS * THREADS) {
        Key keys[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) keys[i] = load(at + i * THREADS);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) take(keys[i]);
    }
    for (; at < end; at += THREADS) take(load(at));
    __syncthreads();  // separates the counting from the reads of the counters
}

// Returns the number of keys with a digit, from the counters of a block.
DEVICE Count counted(const unsigned* counters, int digit) {
    Count sum = 0;
#pragma unroll
    for (int copy = 0; copy < COPIES; ++copy) sum += counters[digit * COPIES + copy];
    return sum;
}

// Returns the digit of the place `rank`, to all threads. load(digit) returns the number of keys with a digit.
template <int THREADS, class Key, class Load>
DEVICE Choice choose(Memory<THREADS, Key>& memory, Count rank, const Load& load) {
    constexpr int EACH = RADIX / THREADS;
    Count own[EACH], sum = 0;
#pragma unroll
    for (int k = 0; k < EACH; ++k) sum += own[k] = load(threadIdx.x * EACH + k);
    if (threadIdx.x == 0) memory.next = 0;
    __syncthreads();  // separates the reads in an earlier call from the writes of sums
    Count before = exclusive_scan<THREADS, THREADS>(sum, threadIdx.x, memory.sums);
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const int digit = threadIdx.x * EACH + k;
        if (before <= rank && rank < before + own[k])
            memory.choice = {digit, 0, rank + 1 < before + own[k], before};
        else if (own[k] > 0 && before > rank)
            atomicMax(&memory.next, ~(unsigned)digit);
        before += own[k];
    }
    __syncthreads();  // separates the writes of the choice from its reads
    Choice found = memory.choice;
    found.next = memory.next ? (int)~memory.next : RADIX;
    return found;
}

// Writes the element at the place, the next element and the last element, given the last digit and the ends of all
// keys. After the last element, the next one is unspecified.
template <class Order>
DEVICE void write(typename Order::Key* out, const Digit& digit, const Choice& choice, Wide largest,
                  Wide above) {
    const Wide start = digit.first ? 0 : digit.prefix << digit.bits;
    const Wide key = start | choice.digit;
    const Wide next = choice.same ? key : choice.next < RADIX ? start | choice.next : ~above;
    out[0] = bits_of<Order>(key);
    out[1] = bits_of<Order>(next);
    out[2] = bits_of<Order>(largest);
}

// Combines the ends that all threads of a block have found, in `largest` and `above`, which are zero before.
template <class Key>
DEVICE void combine(const Ends<Key>& ends, Key* largest, Key* above) {
    Ends<Key> all = ends;
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        all.largest = max(all.largest, __shfl_xor_sync(ALL_LANES, all.largest, distance));
        all.above = max(all.above, __shfl_xor_sync(ALL_LANES, all.above, distance));
    }
    if (threadIdx.x % WARP_SIZE == 0) {
        atomicMax(largest, all.largest);
        atomicMax(above, all.above);
    }
}

// ---- A block for each row -----------------------------------------------------------------------------------------

// Finds the elements at a place of every row of n keys. The rows of the result are `columns` long; their elements
// `column` to `column + 2` are written.
template <int THREADS, int ITEMS, class Order>
DEVICE void select_alone(const typename Order::Key* x, typename Order::Key* out, Index n, Count place,
                         Index column, Index columns) {
    constexpr int WIDTH = Order::WIDTH;
    using Key = typename sorting::Compared<typename Order::Key>::Type;
    __shared__ Memory<THREADS, Key> memory;
    const typename Order::Key* const from = x + blockIdx.x * n;
    const auto load = [&](Index at) { return sorting::compared<Order>(__ldg(from + at)); };
    const auto of_block = [&](int digit) { return counted(memory.counters, digit); };
    Digit digit = {WIDTH, 0, true, 0, place};
    Ends<Key> ends = {0, 0};
    if (threadIdx.x == 0) memory.largest = memory.above = 0;
    while (digit.shift > BITS) {
        digit.bits = BITS;
        digit.shift -= BITS;
        count<THREADS, ITEMS, false>(memory.counters, ends, digit, 0, n, load);
        const Choice choice = choose(memory, digit.rank, of_block);
        digit.prefix = digit.prefix << BITS | choice.digit;
        digit.rank -= choice.before;
        digit.first = false;
    }
    digit.bits = digit.shift;
    digit.shift = 0;
    count<THREADS, ITEMS, true>(memory.counters, ends, digit, 0, n, load);
    combine(ends, &memory.largest, &memory.above);
    const Choice choice = choose(memory, digit.rank, of_block);
    if (threadIdx.x == 0)
        write<Order>(out + blockIdx.x * columns + column, digit, choice, memory.largest, memory.above);
}

// ---- A launch for each digit --------------------------------------------------------------------------------------

// Memory that the blocks of a row share, zero before and after every launch.
template <class Key>
struct Shared {
    Key largest, above;
    unsigned ticket, unused;
    Count counts[RADIX];
};

// The result of the launch of a digit, for the next launch.
struct Found {
    Wide prefix;
    Count rank;
};

// Does the work of select_alone for one digit, the `bits` bits above `shift`. Only the first launch reads `place`. The
// last launch writes the result.
template <int THREADS, int ITEMS, bool FIRST, bool LAST, class Order>
DEVICE void select_digit(const typename Order::Key* x, typename Order::Key* out, void* shared_by_rows, Found* found, Index n,
                         Index parts, Index shift, Index bits, Count place, Index column,
                         Index columns) {
    using Key = typename sorting::Compared<typename Order::Key>::Type;
    __shared__ Memory<THREADS, Key> memory;
    const Index row = blockIdx.x / parts, part = blockIdx.x - row * parts;
    const typename Order::Key* const from = x + row * n;
    auto& shared = reinterpret_cast<Shared<Key>*>(shared_by_rows)[row];
    Digit digit = {(int)shift, (int)bits, FIRST, 0, place};
    if (!FIRST) {
        digit.prefix = found[row].prefix;
        digit.rank = found[row].rank;
    }
    Ends<Key> ends = {0, 0};
    count<THREADS, ITEMS, LAST>(memory.counters, ends, digit, n * part / parts, n * (part + 1) / parts,
                                [&](Index at) { return sorting::compared<Order>(__ldg(from + at)); });
    for (int one = threadIdx.x; one < RADIX; one += THREADS) {
        const Count sum = counted(memory.counters, one);
        if (sum > 0) atomicAdd(&shared.counts[one], sum);
    }
    if (LAST) combine(ends, &shared.largest, &shared.above);
    if (!is_last_to_arrive(&shared.ticket, parts)) return;
    const Choice choice = choose(memory, digit.rank, [&](int one) {
        const Count sum = __ldcg(&shared.counts[one]);
        shared.counts[one] = 0;
        return sum;
    });
    if (threadIdx.x != 0) return;
    if (LAST) {
        const Key largest = __ldcg(&shared.largest), above = __ldcg(&shared.above);
        write<Order>(out + row * columns + column, digit, choice, largest, above);
        shared.largest = shared.above = 0;
    } else {
        found[row] = {digit.prefix << bits | choice.digit, digit.rank - choice.before};
    }
}

}  // namespace quantiles

// Reduction by numbers of segments where the order of elements does not matter: y[s] is the combination of all x[i]
// with ids[i] == s, and of `start` if there is one. Elements are combined in place by atomic operations on integers,
// whose results do not depend on the order. Nothing is sorted.
//
// An element is coded as a word, an unsigned integer of 32 or 64 bits. The code turns every operator into one of four:
// a sum, a maximum, a disjunction, or an exclusive disjunction. Its identity is coded as zero (see Coded).
//
// Phases:
//   1. Words of all segments are zero. A few words are in scratch that is zero between launches. Many words are in the
//      memory of the result, or in memory of the call if results are narrower, and a launch clears them.
//   2. Blocks combine elements in words of shared memory, and add these to the global words. If there are too many
//      words for shared memory, elements are combined in the global words directly. Adjacent lanes with one segment
//      combine their elements first, if there are many such lanes: ids may be in order.
//   3. The last block decodes words as results (see ticket.cuh). If there are many, a launch of its own does.

#include "common.cuh"
#include "segment_runs.cuh"
#include "ticket.cuh"

namespace atomics {

enum Operation { ADD, MAXIMUM, MINIMUM, AND, OR, XOR };

template <int BYTES>
struct Unsigned {
    using Type = unsigned;
};
template <>
struct Unsigned<1> {
    using Type = unsigned char;
};
template <>
struct Unsigned<2> {
    using Type = unsigned short;
};
template <>
struct Unsigned<8> {
    using Type = unsigned long long;
};

// The bits of infinity, 0 for types without one; and whether the type has negative numbers.
template <class R>
struct Form {
    static constexpr unsigned long long INFINITE = 0;
    static constexpr bool SIGNED = ops::Traits<R>::SIGNED;
};
template <unsigned long long BITS>
struct FormOfFloats {
    static constexpr unsigned long long INFINITE = BITS;
    static constexpr bool SIGNED = true;
};
template <>
struct Form<Half> : FormOfFloats<0x7c00> {};
template <>
struct Form<Bfloat> : FormOfFloats<0x7f80> {};
template <>
struct Form<float> : FormOfFloats<0x7f800000> {};
template <>
struct Form<double> : FormOfFloats<0x7ff0000000000000> {};

template <class R>
constexpr bool IS_BOOL = false;
template <>
constexpr bool IS_BOOL<bool> = true;

// Elements of type R as words.
//     integers     their bits, some of which are flipped, so that the identity is 0: the sign bit for an extremum, then
//                  all bits for a minimum; all bits for a conjunction, which is the disjunction of the opposites
//     floats       for a maximum their place among all numbers, counted from -infinity. -0 is before +0, and every NaN
//                  is one number after all others. The minimum is the opposite of the maximum of opposites.
template <class R, Operation OPERATION>
struct Coded {
    using Result = R;
    using Bits = typename Unsigned<sizeof(R)>::Type;
    using Word = typename Unsigned<sizeof(R) < 4 ? 4 : sizeof(R)>::Type;

    static constexpr bool FLOATING = Form<R>::INFINITE != 0, EXTREMUM = OPERATION == MAXIMUM || OPERATION == MINIMUM;
    static constexpr Word ALL = (Bits)~(Bits)0, SIGN = ALL / 2 + 1;
    static constexpr Word ONES = IS_BOOL<R> ? (Word)1 : ALL;  // the bits that a conjunction or a minimum flips
    static constexpr Word FLIPPED = (EXTREMUM && Form<R>::SIGNED ? SIGN : (Word)0) ^
                                    (OPERATION == MINIMUM || OPERATION == AND ? ONES : (Word)0);
    static constexpr Word INFINITE = (Word)Form<R>::INFINITE;
    static constexpr Word BELOW = SIGN - 1 - INFINITE;  // negative NaN, the first of a float's bits in order
    static constexpr Word NOT_A_NUMBER = 2 * INFINITE + 2;
    // Whether combining an element twice changes nothing, so that a word that already contains the element can be left
    // alone.
    static constexpr bool IDEMPOTENT = OPERATION != ADD && OPERATION != XOR;

    static DEVICE Word encode(const R& x) {
        Bits bits;
        memcpy(&bits, &x, sizeof(bits));
        Word word = bits;
        if constexpr (FLOATING) {
            if (OPERATION == MINIMUM) word ^= SIGN;
            word = (word ^ (word & SIGN ? ALL : SIGN)) - BELOW;
            return word < NOT_A_NUMBER ? word : NOT_A_NUMBER;
        } else {
            return word ^ FLIPPED;
        }
    }

    static DEVICE R decode(Word word) {
        if constexpr (!FLOATING) {
            word ^= FLIPPED;
        } else if (word == NOT_A_NUMBER) {
            word = INFINITE | (INFINITE & (0 - INFINITE)) / 2;
        } else {
            word += BELOW;
            word ^= word & SIGN ? SIGN : ALL;
            if (OPERATION == MINIMUM) word ^= SIGN;
        }
        const Bits bits = (Bits)word;
        R x;
        memcpy(&x, &bits, sizeof(x));
        return x;
    }

    static DEVICE Word combine(Word a, Word b) {
        if (OPERATION == ADD) return a + b;
        if (OPERATION == XOR) return a ^ b;
        if (EXTREMUM) return a > b ? a : b;
        return a | b;
    }

    // Combines a word in memory with another word.
    static DEVICE void put(Word* to, Word word) {
        if (word == 0) return;
        if (OPERATION == ADD)
            atomicAdd(to, word);
        else if (OPERATION == XOR)
            atomicXor(to, word);
        else if (EXTREMUM)
            atomicMax(to, word);
        else
            atomicOr(to, word);
    }

    // `put` for shared memory, which has no 64-bit addition: both halves are added separately, and the thread that
    // makes the lower half overflow carries.
    static DEVICE void put_shared(Word* to, Word word) {
        if constexpr (OPERATION == ADD && sizeof(Word) == 8) {
            unsigned* const halves = reinterpret_cast<unsigned*>(to);
            const unsigned low = (unsigned)word;
            unsigned high = (unsigned)(word >> 32);
            if (low != 0 && atomicAdd(&halves[0], low) + low < low) ++high;
            if (high != 0) atomicAdd(&halves[1], high);
        } else {
            put(to, word);
        }
    }
};

// Stores the results of every `step`-th segment from `first` on, and with CLEARS zeros in place of their words. Several
// loads are in flight. `words` may be the memory of the results.
template <class Code, bool CLEARS>
DEVICE void decode_words(typename Code::Word* words, const typename Code::Result* start, typename Code::Result* results,
                         Index first, Index step, Index segments) {
    using Word = typename Code::Word;
    constexpr int SEVERAL = 4;
    const Word begin = start ? Code::encode(*start) : (Word)0;
    for (Index from = first; from < segments; from += SEVERAL * step) {
        Word found[SEVERAL];
#pragma unroll
        for (int k = 0; k < SEVERAL; ++k) found[k] = from + k * step < segments ? __ldcg(&words[from + k * step]) : 0;
#pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            if (from + k * step < segments) {
                if (CLEARS) words[from + k * step] = 0;
                results[from + k * step] = Code::decode(Code::combine(begin, found[k]));
            }
    }
}

// Combines all elements, of type T, in the words of their segments. Ids of no segment are left out. `words` are zero.
//     ROWS      elements that a thread loads before it uses the first
//     SHARED    whether a block combines its elements in shared memory first
//     LOOKS     whether a thread reads a word before it combines it with an element, which mostly changes nothing
//     STORES    whether the last block stores the results, and zeros in place of words
template <class Code, class T, class Id, int THREADS, int ROWS, bool SHARED, bool LOOKS, bool STORES>
DEVICE void combine_elements(const T* x, const Id* ids, const typename Code::Result* start,
                             typename Code::Result* results, unsigned* ticket, typename Code::Word* words, Index n,
                             Index segments, Index x_stride, Index ids_stride) {
    using Word = typename Code::Word;
    extern __shared__ __align__(16) uint4 memory[];
    Word* const own = reinterpret_cast<Word*>(memory);
    if (SHARED) {
        for (int at = threadIdx.x; at < segments; at += THREADS) own[at] = 0;
        __syncthreads();  // separates the zeros from what is combined with them
    }
    for (Index from = (Index)blockIdx.x * (ROWS * THREADS); from < n; from += (Index)gridDim.x * (ROWS * THREADS)) {
        T elements[ROWS];
        Id numbers[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const Index at = min(from + k * THREADS + threadIdx.x, n - 1);
            elements[k] = x[at * x_stride];
            numbers[k] = ids[at * ids_stride];
        }
        Word some[ROWS];
        int found[ROWS];  // the segment of each element, or -1
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            found[k] = from + k * THREADS + threadIdx.x < n ? segment_of(numbers[k], segments) : -1;
            some[k] = Code::encode((typename Code::Result)elements[k]);
            join_runs<Code, 1>(&some[k], &found[k]);
        }
        if constexpr (LOOKS) {
            Word now[ROWS];
#pragma unroll
            for (int k = 0; k < ROWS; ++k) now[k] = found[k] >= 0 ? read_current(&words[found[k]]) : (Word)0;
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (Code::combine(now[k], some[k]) == now[k]) found[k] = -1;
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (found[k] >= 0) {
                if (SHARED)
                    Code::put_shared(&own[found[k]], some[k]);
                else
                    Code::put(&words[found[k]], some[k]);
            }
    }
    if (SHARED) {
        __syncthreads();  // separates the combinations from their reads
        for (int at = threadIdx.x; at < segments; at += THREADS) Code::put(&words[at], own[at]);
    }
    if constexpr (STORES)
        if (is_last_to_arrive(ticket, gridDim.x))
            decode_words<Code, true>(words, start, results, threadIdx.x, THREADS, segments);
}

// Makes words zero.
template <class Word>
DEVICE void clear_words(Word* words, Index count) {
    const Index step = (Index)gridDim.x * blockDim.x;
    for (Index at = (Index)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) words[at] = 0;
}

// Stores the results of all segments, after the launch that combined the elements.
template <class Code>
DEVICE void decode_all(typename Code::Word* words, const typename Code::Result* start, typename Code::Result* results,
                       Index segments) {
    const Index step = (Index)gridDim.x * blockDim.x;
    decode_words<Code, false>(words, start, results, (Index)blockIdx.x * blockDim.x + threadIdx.x, step, segments);
}

}  // namespace atomics

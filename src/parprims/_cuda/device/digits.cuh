// Counting and ranking of digits: how many elements have each digit, and the rank of each element among those with the
// same digit. A digit is a small number that belongs to an element, such as a few bits of its sort key.
//
// The functions take digits, not keys. A tile is the elements that a group of threads, a warp or a whole block, holds
// in registers: ITEMS per thread.

#include "common.cuh"

namespace digits {

// Barrier of the threads that hold one tile.
template <int THREADS>
DEVICE void wait_for_group() {
    if (THREADS == WARP_SIZE)
        __syncwarp();
    else
        __syncthreads();
}

// The position in its tile of element i of a thread. Every warp has a contiguous part of the tile, and element i of its
// lanes are adjacent: row i of the warp.
template <int ITEMS>
DEVICE int in_tile(int thread, int i) {
    return thread / WARP_SIZE * (WARP_SIZE * ITEMS) + i * WARP_SIZE + threadIdx.x % WARP_SIZE;
}

// ---- Ranks among equal digits -----------------------------------------------------------------------------------

// Returns the mask of the lanes with the same digit as this one, by a vote on each bit. Both asm statements are empty
// and only guide the compiler. The first lets it set the predicates of 7 bits by one instruction. The second lets it
// invert the votes under the predicate of the vote.
template <int BITS>
DEVICE unsigned lanes_with(unsigned digit) {
    unsigned equal = ALL_LANES;
#pragma unroll
    for (int bit = 0; bit < BITS; ++bit) {
        unsigned set = digit & 1u << bit;
        asm("" : "+r"(set));
        unsigned votes = __ballot_sync(ALL_LANES, set);
        if (!set) {
            votes = ~votes;
            asm volatile("" : "+r"(votes));
        }
        equal &= votes;
    }
    return equal;
}

// Counts the elements of a warp by their digits. Overwrites `counts`.
template <int BITS, int ITEMS>
DEVICE void count_in_warp(const unsigned (&digits)[ITEMS], unsigned* counts) {
    for (int digit = threadIdx.x % WARP_SIZE; digit < 1 << BITS; digit += WARP_SIZE) counts[digit] = 0;
    __syncwarp();  // separates the zeros from what is added to them
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) atomicAdd(&counts[digits[i]], 1u);
}

// Ranks the ITEMS rows of a warp, row by row and within a row lane by lane. firsts[digit] is the place of the warp's
// first element with the digit, and is advanced past each element. Calls take(i, place + 1) for every row i.
template <int BITS, int ITEMS, class Take>
DEVICE void rank_in_warp(const unsigned (&digits)[ITEMS], unsigned* firsts, Take take) {
    // The mask of this lane and those before it.
    const unsigned upto = ALL_LANES >> (WARP_SIZE - 1 - threadIdx.x % WARP_SIZE);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        unsigned digit = digits[i];
        asm("" : "+r"(digit));  // else the compiler keeps the addresses from counting in registers
        unsigned& first = firsts[digit];
        const unsigned equal = lanes_with<BITS>(digit);
        const unsigned next = first + __popc(equal & upto);
        __syncwarp();  // separates the reads of places from their writes
        if (equal <= upto) first = next;  // in the last of the lanes with this digit
        __syncwarp();  // separates the writes of places from the reads for the next row
        take(i, next);
    }
}

// Exclusive scan of one number from each of the first SIZE threads of a group. It does not call scan_lanes, by which
// numbers of 64 bits take up to 8 more registers.
template <int THREADS, int SIZE, class T>
DEVICE T exclusive_scan(T mine, int thread, T* sums) {
    constexpr int LANES = SIZE < WARP_SIZE ? SIZE : WARP_SIZE;
    const int lane = threadIdx.x % WARP_SIZE;
    T total = mine;
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        const T before = __shfl_up_sync(ALL_LANES, total, distance);
        if (lane >= distance) total += before;
    }
    T start = total - mine;
    if (SIZE > WARP_SIZE) {
        if (lane == WARP_SIZE - 1 && thread < SIZE) sums[thread / WARP_SIZE] = total;
        wait_for_group<THREADS>();  // separates the writes of sums from their reads
#pragma unroll
        for (int warp = 0; warp < SIZE / WARP_SIZE; ++warp)
            if (warp < thread / WARP_SIZE) start += sums[warp];
    }
    return start;
}

// Replaces counts[warp][digit] by the place in the tile of the warp's first element with the digit. Each of the first
// threads has RADIX / THREADS consecutive digits, at least one. It returns the place of the tile's first element with
// the first of these digits, and calls counted(number) as soon as it knows the number of elements with its digits.
template <int THREADS, int RADIX, class Counted>
DEVICE unsigned place_digits(unsigned (*counts)[RADIX], int thread, unsigned* sums, Counted counted) {
    constexpr int EACH = RADIX > THREADS ? RADIX / THREADS : 1, SIZE = RADIX / EACH;
    wait_for_group<THREADS>();  // separates the warps' counts from their reads
    unsigned count = 0;
    if (thread < SIZE) {
#pragma unroll
        for (int one = 0; one < EACH; ++one)
#pragma unroll
            for (int warp = 0; warp < THREADS / WARP_SIZE; ++warp) count += counts[warp][thread * EACH + one];
        counted(count);
    }
    const unsigned start = exclusive_scan<THREADS, SIZE>(count, thread, sums);
    if (thread < SIZE) {
        unsigned place = start;
#pragma unroll
        for (int one = 0; one < EACH; ++one)
#pragma unroll 4
            for (int warp = 0; warp < THREADS / WARP_SIZE; ++warp) {
                const unsigned own = counts[warp][thread * EACH + one];
                counts[warp][thread * EACH + one] = place;
                place += own;
            }
    }
    wait_for_group<THREADS>();  // separates the writes of places from their reads
    return start;
}

// ---- Digit counts of a block ------------------------------------------------------------------------------------

// Digit counts in shared memory, without bank conflicts. An element consists of words. A word has DIGITS digits (1, 2
// or 4), which are 8 bits apart and have RADIX values, a power of two. There are COPIES counters for each value of a
// digit, and every counter of a word and value has a bank of its own. Lane l adds to copy l % COPIES. The DIGITS lanes
// that share a copy go through the digits of their words in turn, each beginning with another digit, so that in every
// step all lanes add in different banks.
template <int DIGITS, int RADIX>
struct DigitCounts {
    static constexpr int COPIES = WARP_SIZE / DIGITS, COUNTS = RADIX * WARP_SIZE;  // of a word
    static_assert(DIGITS == 1 || RADIX <= 256, "the digits of a word have 8 bits each");

    unsigned banks[DIGITS];
    int rotation;

    DEVICE DigitCounts() {
        const int lane = threadIdx.x % WARP_SIZE;
        rotation = lane / COPIES * 8;
#pragma unroll
        for (int digit = 0; digit < DIGITS; ++digit) {
            banks[digit] = (lane + digit * COPIES) % WARP_SIZE * sizeof(unsigned);
            asm("" : "+r"(banks[digit]));  // else the compiler computes it from the thread's number for every addition
        }
    }

    // Adds `number` to the counters of all digits of word number `word` of an element. The word is `value`.
    DEVICE void add(unsigned* counts, int word, unsigned value, unsigned number) const {
        // The bytes of a value's counters: byte offsets save an instruction.
        constexpr int EACH = WARP_SIZE * sizeof(unsigned);
        const unsigned long long bits = value;
        const unsigned long long rotated = DIGITS == 1 ? bits : (unsigned)((bits << 8 * DIGITS | bits) >> rotation);
#pragma unroll
        for (int digit = 0; digit < DIGITS; ++digit) {
            const unsigned offset = (unsigned)(rotated * EACH >> 8 * digit) & (RADIX - 1) * EACH;
            char* const at = (char*)counts + word * RADIX * EACH + (offset | banks[digit]);
            atomicAdd(reinterpret_cast<unsigned*>(at), number);
        }
    }

    // Returns the number of elements that have `value` as digit number `digit` of a word.
    DEVICE static unsigned sum(const unsigned* counts, int word, int value, int digit) {
        unsigned sum = 0;
#pragma unroll
        for (int copy = 0; copy < COPIES; ++copy)
            sum += counts[((word * RADIX + value) * DIGITS + digit) * COPIES + copy];
        return sum;
    }
};

}  // namespace digits

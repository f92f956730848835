// Digits: how many elements have each, and where each element stands among those with the same one. A digit is any
// small number of an element: some bits of a sort's key, or the bin of a histogram.
//
// The functions take digits that are known already and depend neither on keys nor on what else is done with them. A
// tile is what a group of threads, a warp or a whole block, holds in registers: ITEMS elements to a thread.

namespace digits {

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// The threads that hold one tile together wait for each other.
template <int THREADS>
DEVICE void wait_for_group() {
    if (THREADS == WARP)
        __syncwarp();
    else
        __syncthreads();
}

// Where element i of a thread is in its tile: warps have one stretch each, lanes lie side by side.
template <int ITEMS>
DEVICE int in_tile(int thread, int i) {
    return thread / WARP * (WARP * ITEMS) + i * WARP + threadIdx.x % WARP;
}

// ---- Ranks among equal digits -----------------------------------------------------------------------------------

// Returns which lanes of the warp have the digit of this one. Neither empty asm does anything: the first lets the
// compiler set the predicates of 7 bits at once, the second lets it turn votes under the predicate it votes with.
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

// Leaves in a warp's counts how many of its elements have each digit.
template <int BITS, int ITEMS>
DEVICE void count_in_warp(const unsigned (&digits)[ITEMS], unsigned* counts) {
    for (int digit = threadIdx.x % WARP; digit < 1 << BITS; digit += WARP) counts[digit] = 0;
    __syncwarp();  // separates the zeros from what is added to them
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) atomicAdd(&counts[digits[i]], 1u);
}

// Calls take(i, place + 1) for each of ITEMS rows of lanes, given their digits and for each digit the place of the
// warp's first element with it, which is counted on. The order is that of rows, then lanes.
template <int BITS, int ITEMS, class Take>
DEVICE void rank_in_warp(const unsigned (&digits)[ITEMS], unsigned* firsts, Take take) {
    const unsigned upto = ALL_LANES >> (WARP - 1 - threadIdx.x % WARP);  // this lane and those before it
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        unsigned digit = digits[i];
        asm("" : "+r"(digit));  // else the compiler keeps addresses since the digits were counted
        unsigned& first = firsts[digit];
        const unsigned equal = lanes_with<BITS>(digit);
        const unsigned next = first + __popc(equal & upto);
        __syncwarp();  // separates the reads of places from their writes
        if (equal <= upto) first = next;  // the last of the equal lanes
        __syncwarp();  // separates the writes of places from the reads for the next row
        take(i, next);
    }
}

// Returns the exclusive scan of a number of each of the first SIZE threads of a group.
template <int THREADS, int SIZE, class T>
DEVICE T exclusive_scan(T mine, int thread, T* sums) {
    constexpr int LANES = SIZE < WARP ? SIZE : WARP;
    const int lane = threadIdx.x % WARP;
    T total = mine;
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        const T before = __shfl_up_sync(ALL_LANES, total, distance);
        if (lane >= distance) total += before;
    }
    T start = total - mine;
    if (SIZE > WARP) {
        if (lane == WARP - 1 && thread < SIZE) sums[thread / WARP] = total;
        wait_for_group<THREADS>();  // separates the writes of sums from their reads
#pragma unroll
        for (int warp = 0; warp < SIZE / WARP; ++warp)
            if (warp < thread / WARP) start += sums[warp];
    }
    return start;
}

// Turns counts[warp][digit] into the place in the tile of the warp's first element with the digit. A thread has
// `RADIX / THREADS` digits, at least one, and returns the place of the tile's first element with the first of them.
// Calls counted(number) as soon as that is the number of elements of a thread's digits.
template <int THREADS, int RADIX, class Counted>
DEVICE unsigned place_digits(unsigned (*counts)[RADIX], int thread, unsigned* sums, Counted counted) {
    constexpr int EACH = RADIX > THREADS ? RADIX / THREADS : 1, SIZE = RADIX / EACH;
    wait_for_group<THREADS>();  // separates the warps' counts from their reads
    unsigned count = 0;
    if (thread < SIZE) {
#pragma unroll
        for (int one = 0; one < EACH; ++one)
#pragma unroll
            for (int warp = 0; warp < THREADS / WARP; ++warp) count += counts[warp][thread * EACH + one];
        counted(count);
    }
    const unsigned start = exclusive_scan<THREADS, SIZE>(count, thread, sums);
    if (thread < SIZE) {
        unsigned place = start;
#pragma unroll
        for (int one = 0; one < EACH; ++one)
#pragma unroll 4
            for (int warp = 0; warp < THREADS / WARP; ++warp) {
                const unsigned own = counts[warp][thread * EACH + one];
                counts[warp][thread * EACH + one] = place;
                place += own;
            }
    }
    wait_for_group<THREADS>();  // separates the writes of places from their reads
    return start;
}

// ---- Counts of a block ------------------------------------------------------------------------------------------

// Counts in shared memory, for which lanes never wait. Elements consist of words, each of which has DIGITS digits, 1, 2
// or 4 of them, 8 bits apart. A digit has RADIX values, a power of two, and COPIES of the counts of each, in banks of
// their own. Lanes with the same copy take their digits in turn, each beginning with another.
template <int DIGITS, int RADIX>
struct DigitCounts {
    static constexpr int COPIES = WARP / DIGITS, COUNTS = RADIX * WARP;  // of a word
    static_assert(DIGITS == 1 || RADIX <= 256, "the digits of a word have 8 bits each");

    unsigned banks[DIGITS];
    int turn;

    DEVICE DigitCounts() {
        const int lane = threadIdx.x % WARP;
        turn = lane / COPIES * 8;
#pragma unroll
        for (int digit = 0; digit < DIGITS; ++digit) {
            banks[digit] = (lane + digit * COPIES) % WARP * sizeof(unsigned);
            asm("" : "+r"(banks[digit]));  // else the compiler takes it from the thread's number again for every add
        }
    }

    // Adds a number of elements to the counts of the digits that they have in one of their words, which is `value`.
    DEVICE void add(unsigned* counts, int word, unsigned value, unsigned number) const {
        constexpr int EACH = WARP * sizeof(unsigned);  // offsets are in bytes: an instruction less for each digit
        const unsigned long long bits = value;
        const unsigned long long turned = DIGITS == 1 ? bits : (unsigned)((bits << 8 * DIGITS | bits) >> turn);
#pragma unroll
        for (int digit = 0; digit < DIGITS; ++digit) {
            const unsigned offset = (unsigned)(turned * EACH >> 8 * digit) & (RADIX - 1) * EACH;
            char* const at = (char*)counts + word * RADIX * EACH + (offset | banks[digit]);
            atomicAdd(reinterpret_cast<unsigned*>(at), number);
        }
    }

    // Returns how many elements have a value of one of the digits of a word.
    DEVICE static unsigned sum(const unsigned* counts, int word, int value, int digit) {
        unsigned sum = 0;
#pragma unroll
        for (int copy = 0; copy < COPIES; ++copy)
            sum += counts[((word * RADIX + value) * DIGITS + digit) * COPIES + copy];
        return sum;
    }
};

}  // namespace digits

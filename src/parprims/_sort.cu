// Stable sort along the last axis of an array of rows, by the least significant digit first.
//
// The text before this one defines, for the call at hand: Key (an unsigned integer as wide as a key), KIND, INFINITE
// (the bits of infinity), FALLING (whether the largest key comes first), WIDTH (how many bits of ordered(key) can
// differ), Place (an integer that counts the elements of a row), Count (the same, with 2 bits to spare), INDEX (the
// dtype of indices) and SEGMENTS (whether Count is longer than the words between tiles).
// Keys and values are moved as the bits they are; `ordered` says where they go.
//
// Three ways, by the length n of a row:
//   SortedLanes  n <= 32: a lane to a key, which it compares with all others of its row to count how many go before its
//                own; equal keys are looked for only where two want one place. Nothing moves before the end.
//   SortedRows   n <= 8192, as far as shared memory holds keys and where they come from: a warp or a block to a row,
//                which stays in registers and shared memory for all digits. Values wait until their places are known
//                and move once.
//   SortedTile   One launch for each digit, with one read and one write, after one that counts the digits of all keys
//                (count_digits). Keys go from the input to the output by way of a temporary array, in turn.
// Phases of SortedTile:
//   1. A block draws a ticket, which gives the launch (tickets are counted through all launches) and the tile, so that a
//      tile only ever waits for tiles that have been begun. The launch gives the digit: of all digits those that are
//      not the same in a whole row are sorted by, and launches that are left over end here. Nobody asks the host.
//   2. Each warp counts its digits. The block sums the warps' counts digit by digit and publishes them, so that they
//      are there when later tiles look for them; a scan over digits gives places in the tile.
//   3. Each warp ranks its keys among its equal digits: ballots for every bit leave the lanes with the same digit,
//      whose last counts the place of the digit on.
//   4. Keys go to their places in shared memory, and meanwhile the tiles before finish.
//   5. A thread for each digit looks back over the tiles before: where they have published what stands before them it
//      takes that and stops. The first tile of a row starts from the scan of the row's digits.
//   6. Keys, then values, leave shared memory in runs of equal digits, side by side.
// Many rows whose counts would take more memory than there is for them are sorted in turns: the same launches once more
// for the next rows, which the tickets tell.
// Words between blocks: 2 bits say what a word is, the rest counts, so that no fence is needed. Launches in turn give
// the 2 bits another meaning, under which the last word of every tile of the launch before reads as not there yet;
// therefore the words are zeroed once (by count_digits) and not for every digit.
// A word has 32 bits. The tiles of longer rows than it can count are divided into segments (SEGMENTS), whose first tiles
// start from 0, and a word of 64 bits for each digit says what goes before a segment. The last tile of the segment
// before publishes it, as the first tile of the row does for the first segment.
//
// A. Adinets and D. Merrill, Onesweep: A Faster Least Significant Digit Radix Sort for GPUs, arXiv:2206.01784, 2022.

using Index = long long;

constexpr int WARP = 32, DIGIT = WIDTH < 8 ? WIDTH : 8, RADIX = 1 << DIGIT, PASSES = (WIDTH + 7) / 8;
constexpr unsigned ALL = 0xffffffffu;

// Returns an unsigned integer in the order asked for: equal where keys are, the largest (descending, least) for NaN.
DEVICE Key ordered(Key bits) {
    constexpr Key SIGN = (Key)1 << (8 * sizeof(Key) - 1);
    Key key = bits;
    if (KIND == BOOL) key = bits != 0;
    if (KIND == SIGNED) key = bits ^ SIGN;
    if (KIND == FLOATING && sizeof(Key) == 4) {
        // A sum is never -0, and all that are NaN have the same bits, all set but the sign.
        key = (Key)__float_as_uint(__fadd_rn(__uint_as_float((unsigned)bits), 0.0f));
        key ^= (Key)((int)key >> 31) | SIGN;
    } else if (KIND == FLOATING) {
        // A magnitude with its sign, counted from -infinity: NaN of either sign lie above +infinity and become one.
        const Key negative = bits & SIGN ? (Key)~(Key)0 : (Key)0;
        key = (Key)((bits ^ (negative | SIGN)) - negative - (Key)(SIGN - INFINITE));
        key = min(key, (Key)(2 * INFINITE + 1));
    }
    return FALLING ? (Key)~key : key;
}

template <int BITS>
DEVICE unsigned digit_of(Key bits, int shift) {
    return (unsigned)(ordered(bits) >> shift) & ((1u << BITS) - 1);
}

// The threads that sort one row, or one tile, together.
template <int THREADS>
DEVICE void wait_for_group() {
    if (THREADS == WARP)
        __syncwarp();
    else
        __syncthreads();
}

// Returns which lanes of the warp have the digit of this one. Neither empty asm does anything: the first lets the
// compiler set the predicates of 7 bits at once, the second lets it turn votes under the predicate it votes with.
template <int BITS>
DEVICE unsigned lanes_with(unsigned digit) {
    unsigned equal = ALL;
#pragma unroll
    for (int bit = 0; bit < BITS; ++bit) {
        unsigned set = digit & 1u << bit;
        asm("" : "+r"(set));
        unsigned votes = __ballot_sync(ALL, set);
        if (!set) {
            votes = ~votes;
            asm volatile("" : "+r"(votes));
        }
        equal &= votes;
    }
    return equal;
}

// Leaves in a warp's counts how many of its keys have each digit.
template <int BITS, int ITEMS>
DEVICE void count_in_warp(const unsigned (&digits)[ITEMS], unsigned* counts) {
    for (int digit = threadIdx.x % WARP; digit < 1 << BITS; digit += WARP) counts[digit] = 0;
    __syncwarp();  // separates the zeros from what is added to them
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) atomicAdd(&counts[digits[i]], 1u);
}

// Calls take(i, place + 1) for each of ITEMS rows of lanes, given their digits and for each digit the place of the
// warp's first key with it, which is counted on. The order is that of rows, then lanes.
template <int BITS, int ITEMS, class Take>
DEVICE void rank_in_warp(const unsigned (&digits)[ITEMS], unsigned* firsts, Take take) {
    const unsigned upto = ALL >> (WARP - 1 - threadIdx.x % WARP);  // this lane
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
DEVICE T scan_digits(T mine, int thread, T* sums) {
    constexpr int LANES = SIZE < WARP ? SIZE : WARP;
    const int lane = threadIdx.x % WARP;
    T total = mine;
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        const T before = __shfl_up_sync(ALL, total, distance);
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

// Turns counts[warp][digit] into the place in the tile of the warp's first key with the digit. A thread has `DIGITS /
// THREADS` digits, at least one, and returns the place of the tile's first key with the first of them. Calls
// counted(number) as soon as that is the number of keys of a thread's digits.
template <int THREADS, int DIGITS, class Counted>
DEVICE unsigned place_digits(unsigned (*counts)[DIGITS], int thread, unsigned* sums, Counted counted) {
    constexpr int EACH = DIGITS > THREADS ? DIGITS / THREADS : 1, SIZE = DIGITS / EACH;
    wait_for_group<THREADS>();  // separates the warps' counts from their reads
    unsigned count = 0;
    if (thread < SIZE) {
#pragma unroll
        for (int one = 0; one < EACH; ++one)
#pragma unroll
            for (int warp = 0; warp < THREADS / WARP; ++warp) count += counts[warp][thread * EACH + one];
        counted(count);
    }
    const unsigned start = scan_digits<THREADS, SIZE>(count, thread, sums);
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

// Where element i of a thread is in its tile: warps have one stretch each, lanes lie side by side.
template <int ITEMS>
DEVICE int in_tile(int thread, int i) {
    return thread / WARP * (WARP * ITEMS) + i * WARP + threadIdx.x % WARP;
}

// ---- Rows that a warp holds, a key to a lane ------------------------------------------------------------------

// A thread has a key of each of ROWS rows, which lie THREADS / LANES rows apart.
template <int THREADS, int LANES, int ROWS>
struct SortedLanes {
    Index row, rows, at;  // the first row, how many there are, and this thread's element of the first
    int n, lane, places[ROWS];

    static constexpr int TOGETHER = LANES * sizeof(Key) < 16 ? LANES : 16 / sizeof(Key);  // keys read at once
    using Vector = typename Word<TOGETHER * sizeof(Key)>::Type;

    DEVICE SortedLanes(const void* in, Index count, int length) : rows(count), n(length) {
        __shared__ Vector shared[ROWS][THREADS / TOGETHER];
        __shared__ int owners[ROWS][THREADS];
        row = (Index)blockIdx.x * (THREADS / LANES * ROWS) + threadIdx.x / LANES;
        lane = threadIdx.x % LANES;
        at = row * n + lane;
        const int first = threadIdx.x - lane;
        const Key* from = static_cast<const Key*>(in) + at;
        Key keys[ROWS];
        // Lanes without a key stand behind all others, whatever those are.
#pragma unroll
        for (int i = 0; i < ROWS; ++i) keys[i] = exists(i) ? ordered(from[step(i)]) : (Key)~(Key)0;
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
        if (__any_sync(ALL, equals))
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

    template <class V>
    DEVICE void move(const void* in, void* out) const {
        const V* from = static_cast<const V*>(in) + at;
        V held[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            if (exists(i)) held[i] = from[step(i)];
        write(held, static_cast<V*>(out));
    }

    DEVICE void indices(void* out) const {
        INDEX held[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) held[i] = (INDEX)lane;
        write(held, static_cast<INDEX*>(out));
    }

    template <class V>
    DEVICE void write(const V (&held)[ROWS], V* to) const {
        to += at - lane;
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
            if (exists(i)) to[step(i) + places[i]] = held[i];
    }
};

// ---- Rows that a warp or a block holds ------------------------------------------------------------------------

// GROUP threads to a row, and THREADS to a block; digits of BITS bits. FULL promises that each thread has ITEMS keys.
// With SOURCES each key is followed by where it comes from.
template <int THREADS, int GROUP, int ITEMS, int BITS, bool FULL, bool SOURCES>
struct SortedRows {
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
    Index row, rows;
    int n, thread;

    DEVICE SortedRows(const void* in, Index count, int length) : rows(count), n(length) {
        extern __shared__ uint4 dynamic[];
        if (FULL) n = SIZE;
        const int group = THREADS == GROUP ? 0 : threadIdx.x / GROUP;
        Shared& shared = reinterpret_cast<Shared*>(dynamic)[group];
        thread = threadIdx.x % GROUP;
        row = (Index)blockIdx.x * (THREADS / GROUP) + group;
        const Key* from = static_cast<const Key*>(in) + (row < rows ? row : rows - 1) * n;
        if (WARPS > 1 && thread == 0) shared.needed = 0;
        Key differing = 0;
        const Key first = ordered(from[0]);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int at = in_tile<ITEMS>(thread, i);
            keys[i] = exists(i) ? from[at] : (Key)0;
            if (SOURCES) sources[i] = (unsigned short)at;
            if (exists(i)) differing |= ordered(keys[i]) ^ first;
        }
        unsigned needed = 0;  // by digit
#pragma unroll
        for (int shift = 0; shift < WIDTH; shift += BITS)
            needed |= (unsigned)(__any_sync(ALL, (differing >> shift & (DIGITS - 1)) != 0) != 0) << shift / BITS;
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
            digits[i] = exists(i) ? digit_of<BITS>(keys[i], shift) : DIGITS - 1;
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
        if (row >= rows) return;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            if (exists(i)) write(i, in_tile<ITEMS>(thread, i));
    }

    DEVICE void store(void* out) const {
        Key* to = static_cast<Key*>(out) + row * n;
        each([&](int i, int at) { to[at] = keys[i]; });
    }

    template <class V>
    DEVICE void move(const void* in, void* out) const {
        const V* from = static_cast<const V*>(in) + row * n;
        V* to = static_cast<V*>(out) + row * n;
        each([&](int i, int at) { to[at] = from[sources[i]]; });
    }

    DEVICE void indices(void* out) const {
        INDEX* to = static_cast<INDEX*>(out) + row * n;
        each([&](int i, int at) { to[at] = (INDEX)sources[i]; });
    }
};

// ---- Long rows ------------------------------------------------------------------------------------------------

// The scratch that is zero between calls begins with a word that has the tickets drawn in its low bits, and above them
// the digits that are not the same in a whole row.
constexpr int NEEDED = 56;
constexpr unsigned long long TICKETS = (1ull << NEEDED) - 1;

// Returns where it stands how many keys of a row have each value of a digit. Where several blocks count a row, these
// numbers are zero between calls too.
DEVICE Count* counts_of(void* counts, Index row, int pass) {
    return static_cast<Count*>(counts) + (row * PASSES + pass) * RADIX;
}

DEVICE void publish(unsigned* to, unsigned word) {
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
DEVICE void publish(unsigned long long* to, unsigned long long word) {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
DEVICE unsigned look(const unsigned* from) {
    unsigned word;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}
DEVICE unsigned long long look(const unsigned long long* from) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}

// Returns the first of the rows that are sorted together, in turn with others, and takes from a ticket those of the
// launches for the rows before.
DEVICE Index first_together(Index& ticket, Index tickets, Index together) {
    Index first = 0;
    for (; ticket >= tickets; ticket -= tickets) first += together;
    return first;
}

// Counts the digits of all keys of the rows sorted together, `chunk` of a row in each block, and zeroes the words of
// their `tiles`. Keys are loaded VECTOR at a time. A word of a key has BYTES digits and COPIES of the counts of each, in
// banks of their own. Lanes with the same copy take their digits in turn, each beginning with another, so that a warp
// never waits for a bank.
template <int THREADS, int VECTOR>
DEVICE void count_digits(const void* in, void* control, void* totals, void* words, Index rows, Index together, Index n,
                         Index tiles, Index chunk, Index chunks, Index total) {
    constexpr int WORDS = (PASSES + 3) / 4, BYTES = PASSES / WORDS, COPIES = WARP / BYTES;
    extern __shared__ uint4 dynamic[];
    unsigned* counts = reinterpret_cast<unsigned*>(dynamic);  // [WORDS][RADIX][BYTES][COPIES]
    Index ticket = (Index)(look(static_cast<unsigned long long*>(control)) & TICKETS);
    for (Index at = (Index)blockIdx.x * THREADS + threadIdx.x; at < total; at += (Index)gridDim.x * THREADS)
        static_cast<uint4*>(words)[at] = uint4{};
    for (int at = threadIdx.x; at < WORDS * RADIX * WARP / 4; at += THREADS) dynamic[at] = uint4{};
    __syncthreads();  // separates the zeros from what is added to them

    const Index first_row = first_together(ticket, together * tiles * PASSES, together);
    const unsigned row = blockIdx.x / (unsigned)chunks;
    if (first_row + row >= rows) return;
    const Index begin = (blockIdx.x - row * chunks) * chunk;
    const Index end = min(begin + chunk, n);
    const Key* keys = static_cast<const Key*>(in) + (first_row + row) * n;
    const Key first = ordered(keys[0]);
    constexpr int EACH = WARP * sizeof(unsigned);  // offsets are in bytes: an instruction less for each digit
    const int lane = threadIdx.x % WARP, turn = lane / COPIES * 8;
    unsigned banks[BYTES];
#pragma unroll
    for (int byte = 0; byte < BYTES; ++byte) {
        banks[byte] = (lane + byte * COPIES) % WARP * sizeof(unsigned);
        asm("" : "+r"(banks[byte]));  // else the compiler takes it from the thread's number again for every key
    }
    // Adds a number of keys to the counts of the digits that a key has in one of its words.
    const auto add = [&](Key key, int word, unsigned number) {
        const unsigned long long bits = (unsigned)(key >> word * 32 % WIDTH);
        const unsigned long long turned = (unsigned)((bits << 8 * BYTES | bits) >> turn);
#pragma unroll
        for (int byte = 0; byte < BYTES; ++byte) {
            const unsigned digit = (unsigned)(turned * EACH >> 8 * byte) & (RADIX - 1) * EACH;
            atomicAdd(reinterpret_cast<unsigned*>((char*)counts + word * RADIX * EACH + (digit | banks[byte])), number);
        }
    };
    unsigned like_first = 0;  // how many keys with the first one's upper word are not yet counted there
    const auto count = [&](Key bits, bool together) {
        const Key key = ordered(bits);
        add(key, 0, 1);
        if (WORDS == 1) return;
        if (together && !__any_sync(ALL, (unsigned)((key ^ first) >> 32 % WIDTH) != 0))
            ++like_first;
        else
            add(key, 1, 1);
    };
    constexpr int AHEAD = 4;  // loads of a thread under way
    Index at = begin + (Index)threadIdx.x * VECTOR;
    for (; at + (AHEAD * THREADS - (int)threadIdx.x) * VECTOR <= end; at += AHEAD * THREADS * VECTOR) {  // all threads
        using Vector = typename Word<VECTOR * sizeof(Key)>::Type;
        Vector vectors[AHEAD];
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ++ahead)
            vectors[ahead] = __ldg(reinterpret_cast<const Vector*>(keys + at + ahead * THREADS * VECTOR));
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ++ahead) {
            Key loaded[VECTOR];
            memcpy(loaded, &vectors[ahead], sizeof(Vector));
#pragma unroll
            for (int k = 0; k < VECTOR; ++k) count(loaded[k], true);
        }
    }
    for (; at < end; at += THREADS * VECTOR)
        for (Index k = at; k < min(at + VECTOR, end); ++k) count(keys[k], false);
    if (like_first) add(first, 1, like_first);
    __syncthreads();  // separates the additions from the reads

    const auto sum = [&](int word, int digit, int byte) {
        unsigned sum = 0;
#pragma unroll
        for (int copy = 0; copy < COPIES; ++copy) sum += counts[((word * RADIX + digit) * BYTES + byte) * COPIES + copy];
        return sum;
    };
    if (threadIdx.x < WARP) {  // a lane for each digit that may be needed: not all keys have the first one's
        const unsigned its = (unsigned)(first >> min(lane, PASSES - 1) * 8) & (RADIX - 1);
        const bool differs = lane < PASSES && sum(lane / BYTES, its, lane % BYTES) != (unsigned)(end - begin);
        const unsigned long long needed = __ballot_sync(ALL, differs);
        if (lane == 0 && needed) atomicOr(static_cast<unsigned long long*>(control), needed << NEEDED);
    }
    for (int at = threadIdx.x; at < PASSES * RADIX; at += THREADS) {  // side by side in shared memory
        const int word = at / (RADIX * BYTES), digit = at / BYTES % RADIX, byte = at % BYTES;
        const Count number = sum(word, digit, byte);
        Count* to = counts_of(totals, row, word * BYTES + byte) + digit;
        if (chunks == 1)
            *to = number;
        else if (number)
            atomicAdd(to, number);
    }
}

// One tile of a row, in one launch.
template <int THREADS, int ITEMS>
struct SortedTile {
    static constexpr int SIZE = THREADS * ITEMS, WARPS = THREADS / WARP;
    static constexpr unsigned PARTIAL = 1u << 30, WHOLE = 2u << 30;      // 0: not there yet
    static constexpr Count KNOWN = (Count)1 << (8 * sizeof(Count) - 1);  // what goes before a segment
    static_assert(RADIX <= THREADS && SIZE < 1 << 16, "a thread for each digit, and 16 bits for a place");

    struct Drawn {
        Index row, tile, begin;  // the row among those sorted together, the tile in it, its first element in the array
        int length, shift;
        bool first, last, into_out, odd;
    };

    unsigned places[(ITEMS + 1) / 2];  // + 1, in the tile, of what this thread has read, two to a word
    unsigned bins[(ITEMS + 3) / 4];    // the digits of what it writes, four to a word
    const Count* bases;                // for each digit, what is to be added to a place in the tile
    const Drawn* drawn;                // these two in shared memory
    bool left, full;

    // Draws a tile and moves its keys; `left` tells whether there was a digit left to sort by. The last launch does
    // without keys where only indices are asked for. So does every launch into the out side if `through`, which is where
    // places wait there, is not null: the next launch reads the keys of the input through them. `segment` counts tiles.
    // Rows of `out` are each `apart` bytes an element longer than their keys.
    DEVICE SortedTile(const void* in, void* temporary, void* out, void* control, void* totals, void* words, Index rows,
                      Index together, Index n, unsigned tiles, bool keyless, unsigned segment, const void* through,
                      int apart) {
        __shared__ Drawn shared;
        __shared__ unsigned counts[WARPS][RADIX];
        __shared__ Count offsets[RADIX], sums[RADIX / WARP + 1];
        extern __shared__ uint4 dynamic[];
        if (threadIdx.x == 0) shared = draw(*static_cast<unsigned long long*>(control), rows, together, tiles, n);
        __syncthreads();  // separates the write of what is drawn from its reads
        bases = offsets, drawn = &shared;
        left = shared.shift >= 0, full = shared.length == SIZE;
        if (!left) return;

        out = static_cast<char*>(out) + row_begin() * apart;
        Key keys[ITEMS];
        if (through && !shared.first && !shared.into_out)
            gather(keys, static_cast<const Key*>(in), static_cast<const Place*>(through));
        else
            load(keys, static_cast<const Key*>(shared.first ? in : shared.into_out ? temporary : out));
        const int shift = shared.shift;
        unsigned digits[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) digits[i] = digit_of<DIGIT>(keys[i], shift);
        if (!full)  // elements past the end have the largest digit and stand behind all others
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (place_of(i) >= shared.length) digits[i] = RADIX - 1;
        unsigned(&own)[RADIX] = counts[threadIdx.x / WARP];
        count_in_warp<DIGIT>(digits, own);

        // What a word means in launches of odd number differs by its highest bit.
        const unsigned flip = shared.odd ? WHOLE : 0;
        const Count flip_base = shared.odd ? KNOWN : 0;
        const unsigned tile = (unsigned)shared.tile, in_segment = SEGMENTS ? tile % segment : tile;
        unsigned* mine = static_cast<unsigned*>(words) + (shared.row * tiles + tile) * RADIX + threadIdx.x;
        Count* base = nullptr;  // that of the segment, behind the words of all tiles
        if (SEGMENTS)
            base = reinterpret_cast<Count*>(static_cast<unsigned*>(words) + together * tiles * RADIX) +
                   (shared.row * ((tiles - 1) / segment + 1) + tile / segment) * RADIX + threadIdx.x;
        unsigned count = 0;
        const unsigned start =
            place_digits<THREADS, RADIX>(counts, threadIdx.x, (unsigned*)sums, [&](unsigned number) {
                count = number - (threadIdx.x == RADIX - 1 ? SIZE - shared.length : 0);
                if (in_segment > 0)
                    publish(mine, (count | PARTIAL) ^ flip);
                else if (SEGMENTS)
                    publish(mine, (count | WHOLE) ^ flip);
            });
        Count before = 0;  // of the row's keys, those that go before the tile's with this thread's digit
        if (tile == 0) {
            const Count all = threadIdx.x < RADIX ? take(totals) : 0;
            before = scan_digits<THREADS, RADIX>(all, threadIdx.x, sums);
            if (threadIdx.x < RADIX) {
                if (SEGMENTS)
                    publish(base, (before | KNOWN) ^ flip_base);
                else
                    publish(mine, (((unsigned)before + count) | WHOLE) ^ flip);
            }
        }

        Key* exchange = reinterpret_cast<Key*>(dynamic);
        rank_in_warp<DIGIT>(digits, own, [&](int i, unsigned next) {
            exchange[next - 1] = keys[i];
            places[i / 2] = i % 2 ? places[i / 2] | next << 16 : next;
            asm("" : "+r"(places[i / 2]));  // else the compiler keeps each in a register
        });
        if (threadIdx.x < RADIX) {
            Count known = SEGMENTS && tile > 0 ? look(base) : 0;
            if (in_segment > 0) {
                const unsigned seen = look_back(mine - RADIX, (int)in_segment, flip);
                publish(mine, ((seen + count) | WHOLE) ^ flip);
                before = seen;
            }
            if (SEGMENTS && tile > 0) {
                while ((known ^ flip_base) < KNOWN) known = look(base);
                before += (known ^ flip_base) - KNOWN;
            }
            if (SEGMENTS && in_segment == segment - 1 && tile < tiles - 1)
                publish(base + RADIX, ((before + count) | KNOWN) ^ flip_base);
            offsets[threadIdx.x] = before - start;  // modulo the range of Count
        }
        __syncthreads();  // separates the writes of keys and offsets from their reads

#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            keys[k] = exchange[k * THREADS + threadIdx.x];
            digits[k] = digit_of<DIGIT>(keys[k], shift);
            bins[k / 4] = k % 4 ? bins[k / 4] | digits[k] << k % 4 * 8 : digits[k];
            asm("" : "+r"(bins[k / 4]));  // else the compiler keeps each in a register
        }
        if (keyless && (shared.last || (through && shared.into_out))) return;
        write(keys, static_cast<Key*>(shared.into_out ? out : temporary), [&](int k) { return digits[k]; });
    }

    DEVICE Index row_begin() const { return drawn->begin - drawn->tile * SIZE; }
    DEVICE static int place_of(int i) { return in_tile<ITEMS>(threadIdx.x, i); }

    template <class V>
    DEVICE void load(V (&to)[ITEMS], const V* from) const {
        from += drawn->begin + place_of(0);
        const int length = drawn->length - place_of(0);
        if (full)
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) to[i] = from[i * WARP];
        else
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (i * WARP < length) to[i] = from[i * WARP];
    }

    // Loads keys through the places they have in the row, which wait in the registers of the keys if they fit.
    DEVICE void gather(Key (&to)[ITEMS], const Key* from, const Place* through) const {
        from += row_begin();
        if constexpr (sizeof(Place) == sizeof(Key)) {
            load(to, reinterpret_cast<const Key*>(through));
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (place_of(i) < drawn->length) to[i] = from[to[i]];
        } else {
            Place places[ITEMS];
            load(places, through);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (place_of(i) < drawn->length) to[i] = from[places[i]];
        }
    }

    DEVICE static Drawn draw(unsigned long long& control, Index rows, Index together, unsigned tiles, Index n) {
        const unsigned long long word = atomicAdd(&control, 1ull);
        const Index blocks = together * tiles;
        Index ticket = word & TICKETS;
        const Index first = first_together(ticket, blocks * PASSES, together);
        if (ticket == blocks * PASSES - 1)  // nobody will draw any more, or not before more digits are counted
            control = first + together < rows ? (word & TICKETS) + 1 : 0;
        int launch = 0;
        for (; ticket >= blocks; ticket -= blocks) ++launch;
        const unsigned block = (unsigned)ticket, row = blocks > tiles ? block / tiles : 0;
        const unsigned needed = max(1u, (unsigned)(word >> NEEDED));  // one launch moves what is in order already
        const int wanted = __popc(needed);
        Drawn drawn;
        drawn.row = row, drawn.tile = block - row * tiles;
        drawn.begin = (first + row) * n + drawn.tile * SIZE;
        drawn.length = (int)min(n - drawn.tile * SIZE, (Index)SIZE);
        drawn.first = launch == 0, drawn.last = launch == wanted - 1, drawn.odd = launch % 2;
        drawn.into_out = (wanted - 1 - launch) % 2 == 0;
        unsigned rest = needed;
        for (int before = 0; before < launch; ++before) rest &= rest - 1;
        drawn.shift = rest && first + row < rows ? (__ffs(rest) - 1) * 8 : -1;
        return drawn;
    }

    // Returns how many of a row's keys have this thread's digit, and leaves zero in its place, in the last launch also
    // in those of digits that were not sorted by.
    DEVICE Count take(void* totals) const {
        Count* counts = counts_of(totals, drawn->row, drawn->shift / 8) + threadIdx.x;
        const Count count = *counts;
        *counts = 0;
        if (drawn->last)
            for (int pass = 0; pass < PASSES; ++pass) counts_of(totals, drawn->row, pass)[threadIdx.x] = 0;
        return count;
    }

    // Returns how many keys go before a tile's with this thread's digit, given its word in the tile before and how many
    // tiles there are before. The first of them says all, so that nothing is read before it.
    DEVICE static unsigned look_back(const unsigned* word, int tiles, unsigned flip) {
        constexpr int AHEAD = 8;  // words asked for together
        unsigned sum = 0;
        while (true) {
            unsigned seen[AHEAD];
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ++ahead)
                seen[ahead] = look(word - min(ahead, tiles - 1) * RADIX) ^ flip;
            int taken = 0;
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ++ahead) {
                if (taken < ahead || seen[ahead] < PARTIAL) continue;
                sum += seen[ahead] & (PARTIAL - 1);
                if (seen[ahead] >= WHOLE) return sum;
                ++taken;
            }
            word -= taken * RADIX, tiles -= taken;
        }
    }

    template <class V>
    DEVICE void move(const void* in, void* temporary, void* out) const {
        V held[ITEMS];
        load(held, static_cast<const V*>(drawn->first ? in : drawn->into_out ? temporary : out));
        rearrange(held, static_cast<V*>(drawn->into_out ? out : temporary));
    }

    // Indices begin as what they are and wait as Place; `aside` is where they wait on the out side, in rows `apart` bytes
    // an element longer.
    DEVICE void indices(void* temporary, void* aside, void* out, int apart) const {
        aside = static_cast<char*>(aside) + row_begin() * apart;
        Place held[ITEMS];
        if (drawn->first) {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) held[i] = (Place)(drawn->tile * SIZE + place_of(i));
        } else {
            load(held, static_cast<const Place*>(drawn->into_out ? temporary : aside));
        }
        if (drawn->last)
            rearrange(held, static_cast<INDEX*>(out));
        else
            rearrange(held, static_cast<Place*>(drawn->into_out ? aside : temporary));
    }

    // Writes what belongs to the keys that this thread writes, given their digits.
    template <class V, class To, class Digit>
    DEVICE void write(const V (&held)[ITEMS], To* to, Digit digit) const {
        Index start = row_begin() * (Index)sizeof(To);
        asm("" : "+l"(start));  // else the compiler multiplies for every element
        to = reinterpret_cast<To*>(reinterpret_cast<char*>(to) + start);
        const int length = drawn->length - (int)threadIdx.x;
        const auto one = [&](int k) {
            const Count target = bases[digit(k)] + (Count)(k * THREADS + threadIdx.x);
            to[target] = (To)held[k];
        };
        if (full)
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) one(k);
        else
#pragma unroll
            for (int k = 0; k < ITEMS; ++k)
                if (k * THREADS < length) one(k);
    }

    // Writes what belongs to the keys that this thread has read.
    template <class V, class To>
    DEVICE void rearrange(V (&held)[ITEMS], To* to) const {
        extern __shared__ uint4 dynamic[];
        V* exchange = reinterpret_cast<V*>(dynamic);
        __syncthreads();  // separates the reads of what was exchanged before from these writes
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) exchange[(places[i / 2] >> i % 2 * 16 & 0xffff) - 1] = held[i];
        __syncthreads();  // separates the writes from the reads
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) held[k] = exchange[k * THREADS + threadIdx.x];
        write(held, to, [&](int k) { return bins[k / 4] >> k % 4 * 8 & 255; });
    }
};

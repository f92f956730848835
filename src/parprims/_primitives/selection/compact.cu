// Stream compaction: the marked ones of n elements move to the front, in order. Every mark is read once, and every
// element that moves is read and written once, in one launch.
//
// Template parameters of compact:
//     THREADS, ITEMS    the threads of a block and the elements of each: together a tile
//     VEC               adjacent elements that a thread loads as one vector, at most 4
//     Marks             which elements are kept: Marked (the elements of a mask) or Changes (the first of every run)
//     Results           the outputs: Values, Parted, Places or Runs
// Phases:
//   1. Every warp reads the marks of a contiguous part of the tile, row by row: lane l has vector l of each row. Scans
//      over the lanes, of the counts of several rows in one word, and over the warps give every element its place among
//      the kept elements of the tile. The tile publishes the number that it keeps.
//   2. Vectors with elements that move are loaded. These elements are written to shared memory, each to its place.
//   3. The tile gets the number of elements kept before it (see look_back).
//   4. The kept elements, which are now adjacent, are written as one contiguous piece.
// The slots after the last kept element are filled without waiting for the total. If the r-th element that is not kept
// fills slot n - 1 - r, these elements together fill all slots from the total to n, and each tile a contiguous piece.
// Reproducibility: the place of an element depends on the marks alone.
// Progress: a block draws its tile's number from a counter when it starts (see draw_ticket).
// A block does not wait by wait_for_state (see tile_scan.cuh): its barrier also separates the writes of staged elements
// from their reads, and is needed where there is one tile too.
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016.
// M. Billeter, O. Olsson and U. Assarsson, Efficient Stream Compaction on Wide SIMD Many-Core Architectures, HPG, 2009.

#include "block.cuh"
#include "common.cuh"
#include "look_back.cuh"
#include "ticket.cuh"

namespace compaction {

// Loads N elements, as one vector if they are aligned.
template <class T, int N>
DEVICE void load_adjacent(T (&to)[N], const T* from) {
    if ((unsigned long long)from % (N * sizeof(T)) == 0) {
        load_vector(to, from);
    } else {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const auto word = __ldg(reinterpret_cast<const typename Word<sizeof(T)>::Type*>(from + k));
            memcpy(to + k, &word, sizeof(T));
        }
    }
}

// ---- Marks ------------------------------------------------------------------------------------------------------

// A class of marks has, for elements:
//     at(i)          whether element i is marked
//     of<VEC>(i)     a bit for each of the VEC elements from i on
// and for count_marks, which goes over elements in units, each counted by one thread:
//     units(n)       the number of units
//     count(u, n)    the number of marked elements of unit u

// The elements for which a mask is true, that is not zero. A unit is 16 aligned bytes.
struct Marked {
    const unsigned char* mask;

    DEVICE bool at(Index i) const { return __ldg(mask + i) != 0; }

    template <int VEC>
    DEVICE unsigned of(Index i) const {
        unsigned char marks[VEC];
        load_adjacent(marks, mask + i);
        unsigned bits = 0;
        if constexpr (VEC == 4) {
            unsigned word;
            memcpy(&word, marks, sizeof(word));
            bits = (upper_bits(word) >> 7) * 0x01020408u >> 24;  // which makes bits 0, 8, 16 and 24 adjacent
        } else {
#pragma unroll
            for (int k = 0; k < VEC; ++k) bits |= (unsigned)(marks[k] != 0) << k;
        }
        return bits;
    }

    // Returns the upper bit of every byte that is not zero.
    DEVICE static unsigned upper_bits(unsigned word) {
        return (((word & 0x7f7f7f7fu) + 0x7f7f7f7fu) | word) & 0x80808080u;
    }

    DEVICE int before() const { return (int)((unsigned long long)mask & 15); }  // bytes of the first unit before the mask
    DEVICE Index units(Index n) const { return (n + before() + 15) / 16; }

    DEVICE int count(Index u, Index n) const {
        const Index first = u * 16 - before();
        int count = 0;
        if (first >= 0 && first + 16 <= n) {
            unsigned words[4];
            const uint4 vector = __ldg(reinterpret_cast<const uint4*>(mask + first));
            memcpy(words, &vector, sizeof(words));
#pragma unroll
            for (int word = 0; word < 4; ++word) count += __popc(upper_bits(words[word]));
        } else {
            for (Index i = max(first, (Index)0); i < min(first + 16, n); ++i) count += at(i);
        }
        return count;
    }
};

// Whether two elements are different. NaN are equal.
template <class T>
DEVICE bool differ(T a, T b) {
    const auto one = value(a);
    const auto other = value(b);
    return ops::not_equal(one, other) && !(ops::not_equal(one, one) && ops::not_equal(other, other));
}

// The elements that differ from the one before them, and the first.
template <class T>
struct Changes {
    const T* x;

    DEVICE bool at(Index i) const { return differ(x[max(i - 1, (Index)0)], x[i]) || i == 0; }

    template <int VEC>
    DEVICE unsigned of(Index i) const {
        T own[VEC];
        load_adjacent(own, x + i);
        unsigned bits = differ(x[max(i - 1, (Index)0)], own[0]) || i == 0;
#pragma unroll
        for (int k = 1; k < VEC; ++k) bits |= (unsigned)differ(own[k - 1], own[k]) << k;
        return bits;
    }

    DEVICE Index units(Index n) const { return n; }
    DEVICE int count(Index u, Index) const { return at(u); }
};

// ---- The states of the look-back -------------------------------------------------------------------------------

// The number of kept elements.
struct Kept {
    static constexpr bool TELLS_LAST = false;
    struct State {
        Index kept;
    };
    static DEVICE State combine(const State& a, const State& b) { return {a.kept + b.kept}; }
    static DEVICE State of(Index kept, Index) { return {kept}; }
};

// The number of kept elements, and the position of the last.
struct KeptAndLast {
    static constexpr bool TELLS_LAST = true;
    struct State {
        Index kept, last;
    };
    static DEVICE State combine(const State& a, const State& b) {
        return {a.kept + b.kept, b.kept > 0 ? b.last : a.last};
    }
    static DEVICE State of(Index kept, Index last) { return {kept, last}; }
};

// ---- Results ----------------------------------------------------------------------------------------------------

// The length of the results, which is `*known` if that is not null. Every tile fills `beyond` of the slots from n on.
template <class Count>
struct Size {
    Index given, beyond;
    const Count* known;

    DEVICE Index length() const { return known ? (Index)*known : given; }
};

// A tile: its number, its first element, the number of its elements, and the number of its kept elements.
struct Tile {
    Index number, begin;
    int here, kept;
};

// Writes one value to elements `from` to `end` of an array, by the threads of the block, as vectors where it can.
template <int THREADS, class T>
DEVICE void fill_slots(T* out, Index from, Index end, T value) {
    constexpr int N = 16 / sizeof(T);
    T values[N];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = value;
    uint4 vector;
    memcpy(&vector, values, sizeof(vector));
    const int before = (int)((16 - (unsigned long long)(out + from) % 16) % 16 / sizeof(T));  // the first vector
    const Index whole = max((Index)0, end - from - before) / N, behind = from + before + whole * N;
    if (threadIdx.x < before && from + threadIdx.x < end) out[from + threadIdx.x] = value;
#pragma unroll 1  // which saves registers
    for (Index at = threadIdx.x; at < whole; at += THREADS) reinterpret_cast<uint4*>(out + from + before)[at] = vector;
    if (threadIdx.x < N && behind + threadIdx.x < end) out[behind + threadIdx.x] = value;
}

// Calls fill(from, end) for the tile's parts of the slots after the last kept element. `kept` elements are kept before
// the tile.
template <class Count, class Fill>
DEVICE void fill_behind(const Size<Count>& size, const Tile& tile, Index kept, Index n, const Fill& fill) {
    const Index length = size.length(), end = n - (tile.begin - kept), from = n + tile.number * size.beyond;
    fill(end - (tile.here - tile.kept), min(end, length));
    if (size.beyond > 0) fill(from, min(from + size.beyond, length));
}

// The fill value after the last kept element, as bits, 32 in each number.
struct Bits {
    Index one, two, three, four;

    template <class T>
    DEVICE T as() const {
        const unsigned words[4] = {(unsigned)one, (unsigned)two, (unsigned)three, (unsigned)four};
        T value;
        memcpy(&value, words, sizeof(T));
        return value;
    }
};

// The kept elements, of type T, and their number (if `count` is not null).
template <class T, class Count>
struct Values {
    using Op = Kept;
    using Staged = T;
    static constexpr bool OTHERS = false;

    const T* x;
    T* out;
    Count* count;
    Size<Count> size;
    Bits fill;

    DEVICE T element(Index begin, int at) const { return __ldg(x + begin + at); }
    template <int N>
    DEVICE void load(T (&to)[N], Index begin, int at) const {
        load_adjacent(to, x + begin + at);
    }

    template <int THREADS>
    DEVICE void write(const T* staged, const Tile& tile, const Kept::State& before, Index n) const {
        const int inside = (int)min((Index)tile.kept, max(size.length() - before.kept, (Index)0));
        T* const to = out + before.kept;
#pragma unroll 2
        for (int k = threadIdx.x; k < inside; k += THREADS) to[k] = staged[k];
        fill_behind(size, tile, before.kept, n, [&](Index from, Index end) {
            fill_slots<THREADS>(out, from, end, fill.as<T>());
        });
        if (count && threadIdx.x == 0 && tile.begin + tile.here == n) *count = (Count)(before.kept + tile.kept);
    }
};

// The kept elements, then the others, in order. `total` is the number of kept elements. If it is null, there is one
// tile, which counts them.
template <class T, class Count>
struct Parted {
    using Op = Kept;
    using Staged = T;
    static constexpr bool OTHERS = true;

    const T* x;
    T* out;
    Count* count;
    const Count* total;

    DEVICE T element(Index begin, int at) const { return __ldg(x + begin + at); }
    template <int N>
    DEVICE void load(T (&to)[N], Index begin, int at) const {
        load_adjacent(to, x + begin + at);
    }

    template <int THREADS>
    DEVICE void write(const T* staged, const Tile& tile, const Kept::State& before, Index) const {
        T* const to = out + before.kept;
#pragma unroll 2
        for (int k = threadIdx.x; k < tile.kept; k += THREADS) to[k] = staged[k];
        const Index all = total ? (Index)__ldcg(total) : tile.kept;
        T* const others = out + all + (tile.begin - before.kept) - tile.kept;
#pragma unroll 2
        for (int k = tile.kept + threadIdx.x; k < tile.here; k += THREADS) others[k] = staged[k];
        if (!total && threadIdx.x == 0) *count = (Count)tile.kept;
    }
};

// The positions of the kept elements, n after the last, and their number (if `count` is not null).
template <class Count>
struct Places {
    using Op = Kept;
    using Staged = int;
    static constexpr bool OTHERS = false;

    Count* out;
    Count* count;
    Size<Count> size;

    DEVICE int element(Index, int at) const { return at; }
    template <int N>
    DEVICE void load(int (&to)[N], Index, int at) const {
#pragma unroll
        for (int k = 0; k < N; ++k) to[k] = at + k;
    }

    template <int THREADS>
    DEVICE void write(const int* staged, const Tile& tile, const Kept::State& before, Index n) const {
        const int inside = (int)min((Index)tile.kept, max(size.length() - before.kept, (Index)0));
        Count* const to = out + before.kept;
#pragma unroll 2
        for (int k = threadIdx.x; k < inside; k += THREADS) to[k] = (Count)(tile.begin + staged[k]);
        fill_behind(
            size, tile, before.kept, n, [&](Index from, Index end) { fill_slots<THREADS>(out, from, end, (Count)n); });
        if (count && threadIdx.x == 0 && tile.begin + tile.here == n) *count = (Count)(before.kept + tile.kept);
    }
};

// The kept elements, of type T; the distance from each to the next one, and from the last to n; and their number (if
// `count` is not null). A tile writes the distances to its own elements, so tiles publish the position of their last
// one.
template <class T, class Count>
struct Runs {
    using Op = KeptAndLast;
    using Staged = int;
    static constexpr bool OTHERS = false;

    const T* x;
    T* out;
    Count* lengths;
    Count* count;
    Size<Count> size;
    Bits fill;

    DEVICE int element(Index, int at) const { return at; }
    template <int N>
    DEVICE void load(int (&to)[N], Index, int at) const {
#pragma unroll
        for (int k = 0; k < N; ++k) to[k] = at + k;
    }

    template <int THREADS>
    DEVICE void write(const int* staged, const Tile& tile, const KeptAndLast::State& before, Index n) const {
        const Index length = size.length();
#pragma unroll 2
        for (int k = threadIdx.x; k < tile.kept; k += THREADS) {
            const Index slot = before.kept + k, here = tile.begin + staged[k];
            const Index last = k > 0 ? tile.begin + staged[k - 1] : before.last;
            if (slot < length) out[slot] = x[here];
            if (slot > 0 && slot <= length) lengths[slot - 1] = (Count)(here - last);
        }
        fill_behind(size, tile, before.kept, n, [&](Index from, Index end) {
            fill_slots<THREADS>(out, from, end, fill.as<T>());
            fill_slots<THREADS>(lengths, from, end, (Count)0);
        });
        if (threadIdx.x == 0 && tile.begin + tile.here == n) {
            const Index total = before.kept + tile.kept;
            const Index last = tile.kept > 0 ? tile.begin + staged[tile.kept - 1] : before.last;
            if (total <= length) lengths[total - 1] = (Count)(n - last);
            if (count) *count = (Count)total;
        }
    }
};

// ---- Kernels ----------------------------------------------------------------------------------------------------

// Counts the marked elements. `total` is zero before and after.
template <int THREADS, class Marks, class Count>
DEVICE void count_marks(const Marks& marks, Count* count, unsigned* ticket, unsigned long long* total, Index n) {
    const Index step = (Index)gridDim.x * THREADS, units = marks.units(n);
    Kept::State mine = {0};
#pragma unroll 4
    for (Index u = (Index)blockIdx.x * THREADS + threadIdx.x; u < units; u += step) mine.kept += marks.count(u, n);
    __shared__ Kept::State states[THREADS / WARP_SIZE];
    __shared__ bool valid[THREADS / WARP_SIZE];
    mine = reduce_warps<Kept>(reduce_lanes<Kept, WARP_SIZE>({mine, true}), states, valid).state;
    if (threadIdx.x == 0) atomicAdd(total, (unsigned long long)mine.kept);
    if (is_last_to_arrive(ticket, gridDim.x) && threadIdx.x == 0) {
        *count = (Count)__ldcg(total);
        *total = 0;
    }
}

// Moves the marked elements of n to the front. `scratch` is the scratch of look_back, null if there is one tile.
template <int THREADS, int ITEMS, int VEC, class Marks, class Results>
DEVICE void compact(const Marks& marks, const Results& results, ulonglong2* scratch, Index n, unsigned tiles) {
    using Op = typename Results::Op;
    using State = typename Op::State;
    using Staged = typename Results::Staged;
    constexpr int WARPS = THREADS / WARP_SIZE, ROWS = ITEMS / VEC, ROW = WARP_SIZE * VEC;
    constexpr int WORDS = (ROWS + 3) / 4;  // of counts, of four rows each
    static_assert(VEC <= 4 && ITEMS % VEC == 0, "a byte counts up to WARP_SIZE * VEC elements");
    extern __shared__ __align__(16) uint4 memory[];
    Staged* const staged = reinterpret_cast<Staged*>(memory);
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    __shared__ unsigned long long drawn;  // here, for inside the branch below it makes kernels spill up to 32 bytes
    TileStates<State> states = {{nullptr, 0}, 1, tiles};
    Tile tile = {0, 0, 0, 0};
    if (tiles > 1) {
        const Ticket ticket = draw_ticket(scratch, 1, tiles, drawn);
        tile.number = ticket.number();
        states.slots = first_slot<State>(scratch, ticket);
    }
    tile.begin = tile.number * (THREADS * ITEMS);
    tile.here = (int)min((Index)(THREADS * ITEMS), n - tile.begin);

    const int first = (warp * ROWS * WARP_SIZE + lane) * VEC;  // the thread's first element in the tile
    unsigned marked[ROWS];                                     // a bit for each element of the thread's vectors
    if (tile.here == THREADS * ITEMS) {  // no load depends on a branch, so that all begin before the first is used
#pragma unroll
        for (int r = 0; r < ROWS; ++r) marked[r] = marks.template of<VEC>(tile.begin + first + r * ROW);
    } else {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            marked[r] = 0;
#pragma unroll 1
            for (int k = 0; k < VEC; ++k) {
                const int at = first + r * ROW + k;
                if (at < tile.here) marked[r] |= (unsigned)marks.at(tile.begin + at) << k;
            }
        }
    }
    unsigned upto[WORDS], totals[WORDS];  // a byte for each row: kept up to the thread's vector, and in the row
    int count = 0;                        // the number kept in the warp
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
        upto[w] = 0;
#pragma unroll
        for (int r = 4 * w; r < min(4 * w + 4, ROWS); ++r) upto[w] |= (unsigned)__popc(marked[r]) << r % 4 * 8;
        // Not by scan_lanes, with which the largest elements make a kernel spill 16 bytes.
#pragma unroll
        for (int distance = 1; distance < WARP_SIZE; distance *= 2) {
            const unsigned before = __shfl_up_sync(ALL_LANES, upto[w], distance);
            if (lane >= distance) upto[w] += before;
        }
        totals[w] = __shfl_sync(ALL_LANES, upto[w], WARP_SIZE - 1);
#pragma unroll
        for (int r = 4 * w; r < min(4 * w + 4, ROWS); ++r) count += (int)(totals[w] >> r % 4 * 8 & 0xff);
    }
    int last = 0;  // the position of the last element kept in the warp
    if constexpr (Op::TELLS_LAST) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
            if (marked[r]) last = first + r * ROW + 31 - __clz((int)marked[r]);
#pragma unroll
        for (int distance = 1; distance < WARP_SIZE; distance *= 2)
            last = max(last, __shfl_xor_sync(ALL_LANES, last, distance));
    }
    State total = Op::of(count, tile.begin + last);
    __shared__ State of_warps[WARPS];
    const Optional<State> earlier = scan_warps<Op>(total, of_warps);
    tile.kept = (int)total.kept;
    if (threadIdx.x == 0) states.publish(0, (unsigned)tile.number, total);

    int kept = earlier.valid ? (int)earlier.state.kept : 0;  // the number kept before the row
    const auto load = [&](Staged(&to)[VEC], int at) {
        if (at + VEC <= tile.here) {
            results.load(to, tile.begin, at);
        } else {
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                if (at + k < tile.here) to[k] = results.element(tile.begin, at + k);
        }
    };
    constexpr int TOGETHER = VEC * sizeof(Staged) < 16 ? 4 : 2;  // rows; more at once would take registers
#pragma unroll
    for (int begin = 0; begin < ROWS; begin += TOGETHER) {
        Staged held[TOGETHER][VEC];
#pragma unroll
        for (int r = begin; r < min(begin + TOGETHER, ROWS); ++r)
            if (Results::OTHERS || marked[r]) load(held[r - begin], first + r * ROW);
#pragma unroll
        for (int r = begin; r < min(begin + TOGETHER, ROWS); ++r) {
            int rank = kept + (int)(upto[r / 4] >> r % 4 * 8 & 0xff) - __popc(marked[r]);
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const int at = first + r * ROW + k;
                const bool is_marked = marked[r] >> k & 1u;
                if (is_marked || (Results::OTHERS && at < tile.here))
                    staged[is_marked ? rank : tile.kept + at - rank] = held[r - begin][k];
                rank += is_marked;
            }
            kept += (int)(totals[r / 4] >> r % 4 * 8 & 0xff);
        }
    }

    Optional<State> found = {Op::of(0, 0), false};  // the state of all earlier tiles
    __shared__ State groups[looking_warps(WARPS)];
    if (tiles > 1) found = look_back<Op, WARPS>(states, 0, (unsigned)tile.number, total, found, groups);
    __shared__ State before;
    if (threadIdx.x == 0) before = found.state;
    __syncthreads();  // separates the writes of before and of staged elements from their reads
    results.template write<THREADS>(staged, tile, before, n);
}

}  // namespace compaction

// Stream compaction: what is marked among n elements moves to the front, in order. Every mark is read once, every
// element that moves is read and written once, in one launch. Needs _common.cuh, _block_reduce.cuh, _block.cuh and
// _ticket.cuh.
//
// Template parameters of compact:
//     THREADS, ITEMS    the threads of a block and the elements of each: together a tile
//     Marks             which elements are kept: Marked (those of a mask) or Changes (the first of every run)
//     Results           what is written: Values, Parted, Places or Runs
// Phases:
//   1. Every warp reads the marks of a contiguous part of the tile, row by row: lane l has element l of each row. Votes
//      count them, and a scan over the warps gives every element its place among the kept ones of the tile.
//   2. Elements that move are copied from global to shared memory, each to its place. Only these are read.
//   3. Meanwhile the tile publishes how many it keeps, and gets the number kept before it (see look_back).
//   4. The kept elements, which now lie side by side, are written as one contiguous piece.
// The slots behind the last kept element are filled without waiting for the total. If the r-th element that is not kept
// fills slot n - 1 - r, these elements together fill all slots from the total to n, and each tile a contiguous piece.
// Reproducibility: the place of an element depends on the marks alone.
// Progress: a block draws its tile's number from a counter when it starts (see draw_ticket).
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016.
// M. Billeter, O. Olsson and U. Assarsson, Efficient Stream Compaction on Wide SIMD Many-Core Architectures, HPG, 2009.

namespace compaction {

constexpr unsigned ALL_LANES = 0xffffffffu;

// ---- Marks ------------------------------------------------------------------------------------------------------

// count_marks goes over elements in units, each counted by one thread:
//     units(n)       how many there are
//     count(u, n)    how many elements of unit u are marked

// The elements for which a mask is true, that is not zero. A unit is 16 aligned bytes.
struct Marked {
    const unsigned char* mask;

    DEVICE bool at(Index i) const { return __ldg(mask + i) != 0; }

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
            for (int word = 0; word < 4; ++word)  // the upper bit of a byte becomes 1 if any of its bits is
                count += __popc((((words[word] & 0x7f7f7f7fu) + 0x7f7f7f7fu) | words[word]) & 0x80808080u);
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
    DEVICE Index units(Index n) const { return n; }
    DEVICE int count(Index u, Index) const { return at(u); }
};

// ---- What tiles tell each other ---------------------------------------------------------------------------------

// How many elements are kept.
struct Kept {
    struct State {
        Index kept;
    };
    static DEVICE State combine(const State& a, const State& b) { return {a.kept + b.kept}; }
    static DEVICE State of(Index kept, Index) { return {kept}; }
};

// The same, and which is the last of them.
struct KeptAndLast {
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

// A tile: its number, its first element, how many elements it has, and how many of these are kept.
struct Tile {
    Index number, begin;
    int here, kept;
};

// Calls write(slot) for all slots from one to before another, by the threads of the block.
template <int THREADS, class Write>
DEVICE void write_slots(Index from, Index end, const Write& write) {
#pragma unroll 1  // which saves registers
    for (Index slot = from + threadIdx.x; slot < end; slot += THREADS) write(slot);
}

// Calls fill(slot) for the tile's part of the slots behind the last kept element. `kept` elements are kept before it.
template <int THREADS, class Count, class Fill>
DEVICE void fill_behind(const Size<Count>& size, const Tile& tile, Index kept, Index n, const Fill& fill) {
    const Index length = size.length(), end = n - (tile.begin - kept);
    write_slots<THREADS>(end - (tile.here - tile.kept), min(end, length), fill);
    const Index from = n + tile.number * size.beyond;
    write_slots<THREADS>(from, min(from + size.beyond, length), fill);
}

// What stands behind the last kept element: its bits, 32 in each number.
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

// The kept elements, of type T, and how many there are (if `count` is not null).
template <class T, class Count>
struct Values {
    using Op = Kept;
    using Staged = T;
    static constexpr bool OTHERS = false, COPIES = sizeof(T) >= 4;

    const T* x;
    T* out;
    Count* count;
    Size<Count> size;
    Bits fill;

    DEVICE T load(Index begin, int at) const { return __ldg(x + begin + at); }

    template <int THREADS>
    DEVICE void write(const T* staged, const Tile& tile, const Kept::State& before, Index n) const {
        const int inside = (int)min((Index)tile.kept, max(size.length() - before.kept, (Index)0));
        T* const to = out + before.kept;
#pragma unroll 2
        for (int k = threadIdx.x; k < inside; k += THREADS) to[k] = staged[k];
        fill_behind<THREADS>(size, tile, before.kept, n, [&](Index slot) { out[slot] = fill.as<T>(); });
        if (count && threadIdx.x == 0 && tile.begin + tile.here == n) *count = (Count)(before.kept + tile.kept);
    }
};

// The kept elements, then the others, in order. `total` says how many are kept, which null leaves to the only tile.
template <class T, class Count>
struct Parted {
    using Op = Kept;
    using Staged = T;
    static constexpr bool OTHERS = true, COPIES = sizeof(T) >= 4;

    const T* x;
    T* out;
    Count* count;
    const Count* total;

    DEVICE T load(Index begin, int at) const { return __ldg(x + begin + at); }

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

// The positions of the kept elements, n behind the last, and how many there are (if `count` is not null).
template <class Count>
struct Places {
    using Op = Kept;
    using Staged = int;
    static constexpr bool OTHERS = false, COPIES = false;

    Count* out;
    Count* count;
    Size<Count> size;

    DEVICE int load(Index, int at) const { return at; }

    template <int THREADS>
    DEVICE void write(const int* staged, const Tile& tile, const Kept::State& before, Index n) const {
        const int inside = (int)min((Index)tile.kept, max(size.length() - before.kept, (Index)0));
        Count* const to = out + before.kept;
#pragma unroll 2
        for (int k = threadIdx.x; k < inside; k += THREADS) to[k] = (Count)(tile.begin + staged[k]);
        fill_behind<THREADS>(size, tile, before.kept, n, [&](Index slot) { out[slot] = (Count)n; });
        if (count && threadIdx.x == 0 && tile.begin + tile.here == n) *count = (Count)(before.kept + tile.kept);
    }
};

// The kept elements, of type T, the distances from each to the next, of the last to n, and how many there are (if
// `count` is not null). A tile writes the distances to its own elements: tiles tell each other where their last one is.
template <class T, class Count>
struct Runs {
    using Op = KeptAndLast;
    using Staged = int;
    static constexpr bool OTHERS = false, COPIES = false;

    const T* x;
    T* out;
    Count* lengths;
    Count* count;
    Size<Count> size;
    Bits fill;

    DEVICE int load(Index, int at) const { return at; }

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
        fill_behind<THREADS>(size, tile, before.kept, n, [&](Index slot) {
            out[slot] = fill.as<T>();
            lengths[slot] = 0;
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
    mine = reduce_warps<Kept, THREADS>(reduce_lanes<Kept, WARP_SIZE>({mine, true})).state;
    if (threadIdx.x == 0) atomicAdd(total, (unsigned long long)mine.kept);
    if (is_last_to_arrive(ticket, gridDim.x) && threadIdx.x == 0) {
        *count = (Count)__ldcg(total);
        *total = 0;
    }
}

// Moves the marked elements of n to the front. `scratch` is that of look_back, null if there is one tile.
template <int THREADS, int ITEMS, class Marks, class Results>
DEVICE void compact(const Marks& marks, const Results& results, ulonglong2* scratch, Index n, unsigned tiles) {
    using Op = typename Results::Op;
    using State = typename Op::State;
    using Staged = typename Results::Staged;
    constexpr int WARPS = THREADS / WARP_SIZE;
    static_assert(ITEMS <= 32, "a thread keeps its marks in one word");
    extern __shared__ __align__(16) uint4 memory[];
    Staged* const staged = reinterpret_cast<Staged*>(memory);
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const unsigned lower = (1u << lane) - 1u;  // the lanes before this one
    TileStates<State> states = {{nullptr, 0}, 1, tiles};
    Tile tile = {0, 0, 0, 0};
    if (tiles > 1) {
        const Ticket ticket = draw_ticket(scratch, 1, tiles);
        tile.number = ticket.number();
        states.slots = first_slot<State>(scratch, ticket);
    }
    tile.begin = tile.number * (THREADS * ITEMS);
    tile.here = (int)min((Index)(THREADS * ITEMS), n - tile.begin);

    const int first = warp * (WARP_SIZE * ITEMS) + lane;  // the thread's first element in the tile
    unsigned marked = 0;                                  // bit i stands for the thread's element i
    if (tile.here == THREADS * ITEMS) {  // no load depends on a branch, so that all begin before the first is used
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) marked |= (unsigned)marks.at(tile.begin + first + i * WARP_SIZE) << i;
    } else {
#pragma unroll 4
        for (int i = 0; i < ITEMS; ++i) {
            const int at = first + i * WARP_SIZE;
            const bool is_marked = marks.at(tile.begin + min(at, tile.here - 1));
            marked |= (unsigned)(is_marked && at < tile.here) << i;
        }
    }
    int count = 0, last = 0;  // of the warp: how many are kept, and which is the last
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        const unsigned votes = __ballot_sync(ALL_LANES, marked >> i & 1u);
        count += __popc(votes);
        if (votes) last = first - lane + i * WARP_SIZE + 31 - __clz((int)votes);
    }
    State total = Op::of(count, tile.begin + last);
    __shared__ State totals[WARPS];
    const Optional<State> earlier = scan_warps<Op>(total, totals);
    tile.kept = (int)total.kept;

    Staged held[Results::COPIES ? 1 : ITEMS];
    const auto moves = [&](int i) { return Results::OTHERS ? first + i * WARP_SIZE < tile.here : marked >> i & 1u; };
    if constexpr (!Results::COPIES) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            held[i] = results.load(tile.begin, moves(i) ? first + i * WARP_SIZE : 0);
    }
    int kept = earlier.valid ? (int)earlier.state.kept : 0;  // before the row of elements i
    constexpr int TOGETHER = Results::COPIES ? 4 : ITEMS;    // more at once would take registers
#pragma unroll TOGETHER
    for (int i = 0; i < ITEMS; ++i) {
        const int at = first + i * WARP_SIZE;
        const unsigned votes = __ballot_sync(ALL_LANES, marked >> i & 1u);
        const int rank = kept + __popc(votes & lower);
        kept += __popc(votes);
        if (moves(i)) {
            Staged& to = staged[marked >> i & 1u ? rank : tile.kept + at - rank];
            if constexpr (Results::COPIES)
                copy_async(to, results.x[tile.begin + at]);
            else
                to = held[i];
        }
    }

    Optional<State> found = {Op::of(0, 0), false};  // the state of all earlier tiles
    if (tiles > 1) found = look_back<Op, WARPS>(states, 0, (unsigned)tile.number, total, found);
    __shared__ State before;
    if (threadIdx.x == 0) before = found.state;
    wait_for_staged();
    __syncthreads();  // separates the writes of before and of staged elements from their reads
    results.template write<THREADS>(staged, tile, before, n);
}

}  // namespace compaction

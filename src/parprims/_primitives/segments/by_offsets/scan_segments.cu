// Scan of every segment along one axis: y[o, i, j] = x[o, offsets[s], j] op ... op x[o, i, j] for offsets[s] <= i <
// offsets[s + 1]. Every element is read once and every result written once, in one launch, and the time does not depend
// on how long segments are.
//
// Template parameters, besides those of scan_rows in scan.cu:
//     REVERSE        whether the scan runs from the ends of segments; the views then run backward
//     STATE_BYTES    the size of a state with its flag
//     Offset         the type of offsets
//
// Phases:
//   1. A block begins to copy its tile of a line to shared memory. Meanwhile one warp searches for the offsets in the
//      tile, and all threads mark the elements at these offsets: the heads of segments.
//   2. Every thread combines its consecutive elements anew from every head on. A scan over lanes and warps, of states
//      with a flag that says whether a head has occurred, gives it the prefix of its elements within the tile.
//   3. The tile gets its own prefix from other blocks (see Carry), also with flags.
//   4. Every thread goes over its elements again, and stores the results.
// The search for bounds and the wait for the state are written here: with find_bounds of search.cuh and wait_for_state of
// tile_scan.cuh, some kernels take up to 8 registers more or spill.
// A head takes the initial state, if there is one, and nothing from before it. The first element of a line is always a
// head. The grouping of elements depends on shape and offsets alone, so the same input gives the same bits. Wrong
// offsets give wrong results, but never accesses outside the arrays.
//
// G. Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990; D. Merrill and M. Garland, Single-pass Parallel
// Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016.

#include "block.cuh"
#include "common.cuh"
#include "look_back.cuh"
#include "search.cuh"
#include "tile_scan.cuh"
#include "view.cuh"

// States with a flag: whether one of the elements is a head. Nothing before a head counts.
template <class Op>
struct Flagged {
    struct State {
        typename Op::State state;
        unsigned flag;
    };
    static DEVICE State combine(const State& earlier, const State& later) {
        if (later.flag) return later;
        return {Op::combine(earlier.state, later.state), earlier.flag};
    }
};

// Marks of the elements of a tile in shared memory: a byte, or two, for every vector of VEC elements.
template <int VECTORS, int VEC>
struct Marks {
    static constexpr int BITS = VEC <= 8 ? 8 : 16;
    unsigned words[(VECTORS * BITS + 31) / 32];

    DEVICE void clear(int thread, int threads) {
        for (int at = thread; at < (int)(sizeof(words) / sizeof(unsigned)); at += threads) words[at] = 0;
    }
    DEVICE void set(int place) {
        const int bit = place / VEC * BITS + place % VEC;
        atomicOr(&words[bit / 32], 1u << bit % 32);
    }
    DEVICE unsigned of_vector(int vector) const {
        return words[vector * BITS / 32] >> vector * BITS % 32 & ((1u << BITS) - 1);
    }
};

// Marks the places `boundary(j)` of a tile, for j from `first` to `past`. They are ascending numbers within the tile of
// SIZE elements from `begin` on. If there are so many that many must be equal, every thread searches for boundaries
// among its own places.
template <int SIZE, int THREADS, class Marks, class Boundary>
DEVICE void mark_boundaries(Marks& marks, Index begin, Index first, Index past, const Boundary& boundary) {
    constexpr Index MANY = 8;
    if (past - first <= MANY * SIZE) {
        for (Index at = first + threadIdx.x; at < past; at += THREADS) {
            const Index place = boundary(at) - begin;
            if (place >= 0 && place < SIZE) marks.set((int)place);
        }
        return;
    }
    Index from = begin + threadIdx.x * (SIZE / THREADS);
    const Index to = from + SIZE / THREADS;
    while (from < to) {
        const Index at = first_not_before(first, past, [&](Index middle) { return boundary(middle) < from; });
        if (at == past || boundary(at) >= to) break;
        marks.set((int)(boundary(at) - begin));
        from = boundary(at) + 1;
    }
}

template <int THREADS, int ROUNDS, int VEC, Carry CARRY, bool REVERSE, int SHARED_BYTES, int STATE_BYTES, class Scan,
          class Offset, class Inputs, class Outputs, class Starts>
DEVICE void scan_segments(const Inputs& in, const Outputs& out, const Starts& starts, const Offset* offsets,
                          ulonglong2* scratch, Index lines, Index low, Index n, Index segments, unsigned tiles,
                          unsigned ahead) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    using FlaggedOp = Flagged<Op>;
    using FlaggedState = typename FlaggedOp::State;
    using Raw = typename Scan::Raw;
    using Result = typename Scan::Result;
    using Peek = typename Scan::Peek;
    constexpr int WARPS = THREADS / WARP_SIZE, EACH = ROUNDS * VEC, RUN = WARP_SIZE * EACH, TILE = THREADS * EACH;
    using Place = Slots<ROUNDS, WARP_SIZE, 8>;
    using Buffers = typename Inputs::template Buffers<VEC, Place::count(THREADS * ROUNDS)>;
    static_assert(sizeof(Buffers) <= SHARED_BYTES && sizeof(FlaggedState) == STATE_BYTES, "see cuda.py");
    extern __shared__ uint4 shared[];
    Buffers& staged = *reinterpret_cast<Buffers*>(shared);
    __shared__ Marks<THREADS * ROUNDS, VEC> marks;
    __shared__ Index bounds[2];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    __shared__ unsigned long long drawn;
    const auto tile = draw_tile<FlaggedState, CARRY>(scratch, (unsigned)lines, tiles, drawn);
    const Index line = tile.line, begin = (Index)tile.number * TILE, own_run = begin + warp * RUN;
    const auto [h, l] = line_index(line, low);
    const Inputs from = views_at(in, h, l, 0);
    const Outputs to = views_at(out, h, l, 0);
    const Place slots = {(threadIdx.x - lane) * ROUNDS, (unsigned)lane};
    each_vector<ROUNDS, WARP_SIZE, VEC>(lane, own_run, n, [&](int r, Index i, Index past) {
        stage_vectors<VEC>(from, staged, slots.copied(r), i, past);
    });
    if constexpr (CARRY == LOOK_BACK)
        visit_later_tile<CARRY>(tile, ahead, (unsigned)lines, tiles, [&](unsigned line, unsigned number) {
            const Index begin = (Index)number * TILE;
            prefetch_along<THREADS>(in, line, low, begin, min(n, begin + TILE));
        });

    const auto boundary = [&](Index at) { return REVERSE ? n - (Index)offsets[segments - at] : (Index)offsets[at]; };
    marks.clear(threadIdx.x, THREADS);
    if (warp == 0) {
        const Index limit = lane < HALF_WARP ? begin : begin + TILE;
        const Index found = count_before(segments + 1, [&](Index at) { return boundary(at) < limit; });
        if (lane % HALF_WARP == 0) bounds[lane / HALF_WARP] = found;
    }
    __syncthreads();  // separates the writes of bounds and the cleared marks from what follows
    mark_boundaries<TILE, THREADS>(marks, begin, bounds[0], bounds[1], boundary);
    if (begin == 0 && threadIdx.x == 0) marks.set(0);
    wait_for_staged();
    __syncthreads();  // separates the marks and the lanes' copies from each other's reads

    const State start = starts.load(h, l, 0);
    const auto head_of = [&](Raw raw) {
        if (!Scan::STARTS) read_as_first<Scan>(raw);
        const State one = Scan::element(raw);
        return Scan::STARTS ? Op::combine(start, one) : one;
    };
    FlaggedState mine;
    mine.flag = 0;
#pragma unroll 4
    for (int r = 0; r < ROUNDS; ++r) {
        Raw raw[VEC];
        fetch_vectors(from, raw, staged, slots.own(r));
        const unsigned heads = marks.of_vector(threadIdx.x * ROUNDS + r);
        mine.flag |= heads;
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            if (heads >> k & 1)
                mine.state = head_of(raw[k]);
            else
                mine.state = r + k > 0 ? Op::combine(mine.state, Scan::element(raw[k])) : Scan::element(raw[k]);
        }
    }
    mine = scan_lanes<FlaggedOp, WARP_SIZE>(mine, lane);
    FlaggedState before = shuffle_up(mine, 1), total = shuffle(mine, WARP_SIZE - 1);
    Optional<FlaggedState> prefix, tile_prefix;  // of the warp's run in the tile; of the tile in the line
    prefix.valid = tile_prefix.valid = false;
    if constexpr (WARPS > 1) {
        __shared__ FlaggedState totals[WARPS];
        prefix = scan_warps<FlaggedOp>(total, totals);
    }
    if constexpr (CARRY != ALONE) {
        __shared__ FlaggedState state_before, groups[looking_warps(WARPS)];
        const TileStates<FlaggedState> states = {tile.slots, lines, tiles};
        if (threadIdx.x == 0) Scan::before_publishing(tile.number);
        if (CARRY == LOOK_BACK && threadIdx.x == 0) states.publish(line, tile.number, total);
        if (CARRY == LOOK_BACK)
            tile_prefix = look_back<FlaggedOp, WARPS>(states, line, tile.number, total, tile_prefix, groups);
        else if (threadIdx.x == 0)
            tile_prefix = chain<FlaggedOp>(states, line, tile.number, total, tile_prefix);
        if (threadIdx.x == 0 && tile.number > 0) state_before = tile_prefix.state;
        __syncthreads();  // separates the write of state_before from its reads
        tile_prefix.valid = tile.number > 0;
        if (tile.number > 0) tile_prefix.state = state_before;
    }
    if (prefix.valid) before = lane > 0 ? FlaggedOp::combine(prefix.state, before) : prefix.state;
    if (tile_prefix.valid)
        before = lane > 0 || prefix.valid ? FlaggedOp::combine(tile_prefix.state, before) : tile_prefix.state;

    State state = before.state;  // in the first thread of a line it is not read
#pragma unroll 4
    for (int r = 0; r < ROUNDS; ++r) {
        Raw raw[VEC];
        fetch_vectors(from, raw, staged, slots.own(r));
        const unsigned heads = marks.of_vector(threadIdx.x * ROUNDS + r);
        Result results[VEC];
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            const bool is_head = heads >> k & 1;
            const Next<Peek> next = {Scan::peek(raw[k]), false};
            if (Scan::EXCLUSIVE) results[k] = Scan::result(is_head ? start : state, raw[k], next);
            if (is_head)
                state = head_of(raw[k]);
            else
                state = Op::combine(state, Scan::element(raw[k]));
            if (!Scan::EXCLUSIVE) results[k] = Scan::result(state, raw[k], next);
        }
        put_vectors(to, results, staged, slots.own(r));  // only this thread reads these slots
    }
    __syncwarp();  // separates the lanes' results from each other's stores
    each_vector<ROUNDS, WARP_SIZE, VEC>(lane, own_run, n, [&](int r, Index i, Index past) {
        flush_vectors<VEC>(to, staged, slots.copied(r), i, past);
    });
}

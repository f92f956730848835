// Filters along contiguous lines: S sections of order K one after another, each with constant coefficients,
//     y = b[0] x + z[0],   z[i] = z[i + 1] + b[i + 1] x - a[i + 1] y,
// which is the transposed direct form II. Every sample is read once and every result written once, in one launch.
//
// Template parameters:
//     W          the type of states: double, or Complex<double>
//     Powers     the tables: Lattice of one section (see filters_lattice.cuh), or Tables of a cascade
//     In, Out    the types of samples and results in memory; C of coefficients, Z of the states given and returned
//     STATES     whether states are given, and returned
//     INSIDE     whether every block makes the tables of powers; otherwise a launch before has made them
//     others     as of scan_rows in scan.cu
//
// Phases:
//   1. Every thread sums the contributions of its consecutive samples to the state after them: each sample times a
//      constant vector, the response of the state to it. The contribution of the state before is one constant matrix
//      times that state, as every thread has equally many samples.
//   2. The states are scanned over lanes, over warps, and over tiles by look-back, with constant powers of that matrix:
//      a state is K numbers for each section, whatever the length of a tile.
//   3. Every thread filters its samples again, from the state before them on, and stores the results.
// The responses and the powers are computed from the coefficients on the device.
// States are scanned here, not by scan_lanes: the matrix of a combination depends on the distance of the states alone,
// and comes from the tables.
// Accuracy: all computations are in double precision. If poles are close to each other and to the unit circle, the
// numbers z nearly cancel each other. So between threads the state is in other numbers: with Lattice in the numbers s
// of filters_lattice.cuh, with Tables in w[j] = (row 0 of (M - s)^j) z, where M is the matrix of one step, and s, 1 or
// -1 (or i or -i), is on the side of the poles. In these numbers one step is
//     w[j]' = s w[j] + w[j + 1] + g[j] x,   w[K - 1]' = s w[K - 1] + last[0] w[0] + ... + last[K - 1] w[K - 1] + g[K - 1] x,
// where -last are the coefficients of the polynomial a around s, summed in twice the precision, and g is the impulse
// response in terms of 1 / (z - s). A state loses digits only within the samples of one thread, and is then replaced.
// Causality: a value that is not finite changes nothing before it. All values after it may become NaN.
// Reproducibility: the grouping of samples depends only on shape and alignment. The same input gives the same bits.
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016;
// R. H. Middleton and G. C. Goodwin, Improved finite word length characteristics in digital control using delta operators,
// IEEE Trans. Automatic Control 31(11), 1986.

#include "block.cuh"
#include "common.cuh"
#include "filters_common.cuh"
#include "filters_lattice.cuh"
#include "filters_tables.cuh"
#include "look_back.cuh"
#include "tile_scan.cuh"
#include "view.cuh"

namespace filters {

// The type that an element is computed in before it is stored.
template <class T>
struct Stored {
    using Type = T;
};
template <>
struct Stored<Half> {
    using Type = float;
};
template <>
struct Stored<Bfloat> {
    using Type = float;
};
template <class T, class W>
DEVICE T stored(W x) {
    return store<T>(ops::cast<typename Stored<T>::Type>(x));
}

template <class Tables>
constexpr int TABLE_BYTES = (sizeof(Tables) + 15) / 16 * 16;

// Makes the tables of one set of sections in global memory. One block runs it.
template <class Tables, class W, class C>
DEVICE void make_tables(const Coefficients<C>& given, W* to) {
    extern __shared__ uint4 shared[];
    Tables& tables = *reinterpret_cast<Tables*>(shared);
    char* const spare = reinterpret_cast<char*>(shared) + TABLE_BYTES<Tables>;
    tables.make(given, *reinterpret_cast<typename Tables::Spare*>(spare));
    const W* from = reinterpret_cast<const W*>(&tables);
    for (int at = threadIdx.x; at < (int)(sizeof(Tables) / sizeof(W)); at += blockDim.x) to[at] = from[at];
}

// Makes the tables where they are used.
template <class Tables, class W, class C>
DEVICE void make_lattice(const Coefficients<C>& given, W* to) {
    extern __shared__ uint4 shared[];
    reinterpret_cast<Tables*>(to)->make(given, *reinterpret_cast<typename Tables::Spare*>(shared));
}

// ---- The filter ------------------------------------------------------------------------------------------------

// The contributions of tiles to the state, for look-back. The tables are at the beginning of shared memory.
template <class Tables, class W, int D>
struct Join {
    struct State {
        W w[D];
        unsigned tiles;  // the number of tiles
    };
    static DEVICE State combine(const State& earlier, const State& later) {
        extern __shared__ uint4 shared[];
        const Tables& tables = *reinterpret_cast<const Tables*>(shared);
        State both = later;
        tables.add_after_tiles(both.w, later.tiles, earlier.w);
        both.tiles += earlier.tiles;
        return both;
    }
};

// Filters lines of `n` samples. `zi` and `zf` are the states of all sections: `sections` sections for every line, and
// this launch has the sections from `first` on. `from` are the tables, unless INSIDE.
template <class Powers, class W, int S, int K, int THREADS, int LANES, int ROUNDS, int VEC, Carry CARRY, bool INSIDE,
          bool STATES, int SHARED_BYTES, class C, class Z, class In, class Out>
DEVICE void filter_rows(const In& in, const Out& out, const Coefficients<C>& given, const Z* zi, Z* zf, const W* from,
                        ulonglong2* scratch, Index lines, Index n, unsigned tiles, unsigned ahead, Index sections,
                        Index first) {
    constexpr int D = S * K, ITEMS = ROUNDS * VEC, WIDTH = LANES < WARP_SIZE ? LANES : WARP_SIZE;
    constexpr int WARPS = LANES / WIDTH, RUN = WIDTH * ITEMS;
    constexpr bool TILES = CARRY != ALONE;
    using Op = Join<Powers, W, D>;
    using State = typename Op::State;
    using Sample = typename In::Element;
    using Result = typename Out::Element;
    constexpr int BYTES = VEC * (sizeof(Sample) > sizeof(Result) ? sizeof(Sample) : sizeof(Result));
    using Place = Slots<ROUNDS, WIDTH, ROUNDS>;
    static_assert(TABLE_BYTES<Powers> + Place::count(THREADS * ROUNDS) * BYTES <= SHARED_BYTES, "see cuda.py");
    static_assert(!INSIDE || TABLE_BYTES<Powers> + sizeof(typename Powers::Spare) <= SHARED_BYTES, "see cuda.py");

    extern __shared__ uint4 shared[];
    Powers& tables = *reinterpret_cast<Powers*>(shared);
    char* const staged = reinterpret_cast<char*>(shared) + TABLE_BYTES<Powers>;
    const int lane = threadIdx.x % WIDTH, warp = WARPS == 1 ? 0 : threadIdx.x / WARP_SIZE;
    __shared__ unsigned long long drawn;
    const auto tile = draw_tile<State, CARRY>(scratch, (unsigned)lines, tiles, drawn);
    const auto [line, exists] = own_line<THREADS, LANES>(tile.line, lines);
    const In samples = in.at(line, 0, 0);
    const Out results = out.at(line, 0, 0);
    const Index begin = ((Index)(WARPS == 1 ? 0u : tile.number) * WARPS + warp) * RUN;
    const Place slots = {(threadIdx.x - lane) * ROUNDS, (unsigned)lane};
    const auto stage = [&] {
        each_vector<ROUNDS, WIDTH, VEC>(lane, begin, n, [&](int r, Index i, Index past) {
            samples.template stage<VEC>(
                *reinterpret_cast<typename In::template Staged<VEC>*>(staged + slots.copied(r) * BYTES), i, past);
        });
    };
    if constexpr (INSIDE) {
        tables.make(given, *reinterpret_cast<typename Powers::Spare*>(staged));
        __syncthreads();  // separates the tables from their reads, and the reads of what is spare from the copies
        stage();
    } else {
        stage();
        W* const to = reinterpret_cast<W*>(shared);
        for (int at = threadIdx.x; at < (int)(sizeof(Powers) / sizeof(W)); at += THREADS) to[at] = from[at];
        __syncthreads();  // separates the tables from their reads
    }
    if constexpr (TILES)
        visit_later_tile<CARRY>(tile, ahead, (unsigned)lines, tiles, [&](unsigned line, unsigned number) {
            const Index begin = (Index)number * WARPS * RUN;
            in.at(line, 0, 0).template prefetch<THREADS>(begin, min(n, begin + WARPS * RUN));
        });
    const auto fetch = [&](int r, W(&x)[VEC]) {
        Sample found[VEC];
        samples.fetch(found, *reinterpret_cast<const typename In::template Staged<VEC>*>(staged + slots.own(r) * BYTES));
#pragma unroll
        for (int k = 0; k < VEC; ++k) x[k] = ops::cast<W>(value(found[k]));
    };
    wait_for_staged();
    __syncwarp();  // separates the lanes' copies from each other's reads

    // The contributions of the thread's samples to the state; then also those of the lanes before.
    W mine[D], before[D];
#pragma unroll
    for (int j = 0; j < D; ++j) mine[j] = W();
#pragma unroll 2
    for (int r = 0; r < ROUNDS; ++r) {
        W x[VEC];
        fetch(r, x);
#pragma unroll
        for (int k = 0; k < VEC; ++k)
#pragma unroll
            for (int j = 0; j < D; ++j)
                mine[j] = product_sum(tables.responses[(ITEMS - 1 - r * VEC - k) * D + j], x[k], mine[j]);
    }
    const auto above = [](const W(&from)[D], int distance, W(&to)[D]) {
#pragma unroll
        for (int j = 0; j < D; ++j) to[j] = shuffle_up(from[j], distance);
    };
#pragma unroll Powers::UNROLLED
    for (int distance = 1; distance < WIDTH; distance *= 2) {
        above(mine, distance, before);
        if (lane >= distance) tables.add_after_lanes(mine, distance, before);
    }
    above(mine, 1, before);

    // The state before the warp's samples, at first without the contribution of earlier tiles.
    W start[D];
#pragma unroll
    for (int j = 0; j < D; ++j) start[j] = W();
    State total;
    total.tiles = 1;
    if constexpr (WARPS > 1) {
        __shared__ W totals[WARPS][D];
        if (lane == WARP_SIZE - 1) {
#pragma unroll
            for (int j = 0; j < D; ++j) totals[warp][j] = mine[j];
        }
        __syncthreads();  // separates the writes of totals from their reads
        W up_to[D], other[D];
#pragma unroll
        for (int j = 0; j < D; ++j) up_to[j] = totals[lane % WARPS][j];
#pragma unroll Powers::UNROLLED
        for (int distance = 1; distance < WARPS; distance *= 2) {
            above(up_to, distance, other);
            if (lane % WARPS >= distance) tables.add_after_warps(up_to, distance, other);
        }
#pragma unroll
        for (int j = 0; j < D; ++j) {
            const W earlier = shuffle(up_to[j], warp > 0 ? warp - 1 : 0);
            if (warp > 0) start[j] = earlier;
            total.w[j] = shuffle(up_to[j], WARPS - 1);
        }
    }
    // The state before the tile.
    const Index own = (line * sections + first) * K;
    Optional<State> carry;
    carry.valid = STATES;
    if constexpr (STATES) {
        W given_z[D];
#pragma unroll
        for (int j = 0; j < D; ++j) given_z[j] = ops::cast<W>(value(zi[own + j]));
        carry.state.tiles = 1;
        // Tiles after the first group take the state of the groups before instead.
        if (Powers::DIRECT || !TILES || tile.number < WARP_SIZE) tables.between_threads(given_z, carry.state.w);
    }
    if constexpr (TILES) {
        __shared__ State state_before, groups[looking_warps(WARPS)];
        const TileStates<State> states = {tile.slots, lines, tiles};
        if (CARRY == LOOK_BACK && threadIdx.x == 0) states.publish(line, tile.number, total);
        carry = wait_for_state<Op, CARRY, WARPS>(states, line, tile.number, total, carry, state_before, groups);
    }
    if (carry.valid) {
        if (warp > 0) {
            tables.add_after_warps(start, warp, carry.state.w);
        } else {
#pragma unroll
            for (int j = 0; j < D; ++j) start[j] = carry.state.w[j];
        }
    }
    if (lane > 0) {
        tables.add_after_lanes(before, lane, start);
    } else {
#pragma unroll
        for (int j = 0; j < D; ++j) before[j] = start[j];
    }
    W z[D];
    tables.within_thread(before, z);

    const auto filter = tables.filter();  // not kept in registers meanwhile
#pragma unroll 2
    for (int r = 0; r < ROUNDS; ++r) {
        W x[VEC];
        Result y[VEC];
        fetch(r, x);
        const Index i = begin + (lane * ROUNDS + r) * VEC;
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            y[k] = stored<Result>(filter.step(z, x[k]));
            if (STATES && exists && i + k == n - 1) {
#pragma unroll
                for (int j = 0; j < D; ++j) zf[own + j] = stored<Z>(z[j]);
            }
        }
        // Only this thread reads these places.
        results.put(y, *reinterpret_cast<typename Out::template Staged<VEC>*>(staged + slots.own(r) * BYTES));
    }
    __syncwarp();  // separates the lanes' results from each other's stores
    if (exists)
        each_vector<ROUNDS, WIDTH, VEC>(lane, begin, n, [&](int r, Index i, Index past) {
            results.template flush<VEC>(
                *reinterpret_cast<const typename Out::template Staged<VEC>*>(staged + slots.copied(r) * BYTES), i, past);
        });
}

}  // namespace filters

// Reduction along one axis: y[o, j] = element(o, 0, j) op element(o, 1, j) op ... op element(o, n - 1, j).
//
// Inputs are seen as (outer, n, inner); reduce_short_rows and reduce_rows serve inner == 1, reduce_columns the rest.
// Template parameters:
//     Op         the operator: State, combine(earlier, later) (see block.cuh) and COMMUTATIVE
//     Inputs     the input arrays (see strided.cuh), with Inputs::element(raw), which maps raw elements to a State
//     Outputs    the output arrays, with out.each(visit), which calls visit(pointer, member of State) for every array
//     THREADS    threads of a block
//     LANES      threads that share a row
//     VEC        adjacent elements that a thread loads as one vector
//     UNROLL     vectors that a thread loads before it uses the first
//
// Phases:
//   1. Every thread repeatedly loads UNROLL vectors of VEC elements and combines them by a tree.
//   2. Lanes combine in order by shuffles, then warps (or row groups) in order through shared memory.
//   3. If several blocks share a row, one for each "chunk" of it, each stores its partial result and takes a ticket.
//      The block with the last ticket combines all partial results in order (see ticket.cuh).
// Order: if the operator is commutative, lanes stride over the row. Otherwise every warp takes one contiguous run and
// combines it across lanes at every step, so that nothing is combined out of order. The operator needs no identity: a
// lane or warp without elements has no partial result.
//
// M. Harris, Optimizing Parallel Reduction in CUDA, 2007.

#include "block.cuh"
#include "common.cuh"
#include "strided.cuh"
#include "ticket.cuh"

// Stores a state as one element of every output. Callers pass a copy of a state that they still need: a state whose
// address is never taken stays in registers.
template <class Outputs, class State>
DEVICE void store_element(const Outputs& out, Index at, const State& state) {
    out.each([&](auto* y, auto member) { store_to(y[at], state.*member); });
}

// Combines the elements [begin, end) of a row, which LANES threads share. For a commutative operator each thread
// returns the combination of the elements it loaded. Otherwise lane 0 of every warp (or of LANES < 32 threads) returns
// the combination of one run, and the runs are in the order of the warps.
template <int LANES, int UNROLL, int VEC, class Op, class Inputs>
DEVICE Optional<typename Op::State> reduce_range(const Inputs& in, Index row, Index begin, Index end, int lane) {
    using State = typename Op::State;
    using Raw = typename Inputs::Raw;
    constexpr int WIDTH = Op::COMMUTATIVE || LANES < WARP_SIZE ? LANES : WARP_SIZE;  // threads that share one run
    constexpr Index STEP = WIDTH * VEC, ROUND = STEP * UNROLL;
    if (WIDTH < LANES) {
        constexpr int RUNS = LANES / WIDTH;
        const Index run = ((end - begin + RUNS - 1) / RUNS + STEP - 1) / STEP * STEP;
        begin = min(end, begin + (lane / WIDTH) * run);
        end = min(end, begin + run);
        lane %= WIDTH;
    }
    Optional<State> total;
    total.valid = false;
    Index at = begin;
    for (; at + ROUND <= end; at += ROUND) {
        Raw raw[UNROLL][VEC];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) load_vectors<false>(in, raw[u], row, at + u * STEP + lane * VEC, 0);
        State folded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            State s[VEC];
#pragma unroll
            for (int k = 0; k < VEC; ++k) s[k] = Inputs::element(raw[u][k]);
            folded[u] = reduce_items<Op>(s);
            if (!Op::COMMUTATIVE) {
                const Optional<State> whole = {folded[u], true};
                folded[u] = reduce_lanes<Op, WIDTH>(whole).state;
            }
        }
        append<Op>(total, reduce_items<Op>(folded));
    }
    for (; at < end; at += STEP) {  // the bounds are the same in all lanes, so that they shuffle together
        Optional<State> part;
        part.valid = false;
        const Index mine = at + lane * VEC;
        Raw raw[VEC];
        if (mine + VEC <= end) {
            load_vectors<false>(in, raw, row, mine, 0);
            State s[VEC];
#pragma unroll
            for (int k = 0; k < VEC; ++k) s[k] = Inputs::element(raw[k]);
            append<Op>(part, reduce_items<Op>(s));
        } else {
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                if (mine + k < end) append<Op>(part, Inputs::element(load_one(in, row, mine + k, 0)));
        }
        if (!Op::COMMUTATIVE) part = reduce_lanes<Op, WIDTH>(part);
        if (part.valid) append<Op>(total, part.state);
    }
    return total;
}

// Many short rows: LANES <= 32 threads to a row.
template <int THREADS, int LANES, int UNROLL, int VEC, class Op, class Inputs, class Outputs>
DEVICE void reduce_short_rows(const Inputs& in, const Outputs& out, Index rows, Index n) {
    using State = typename Op::State;
    const Index thread = (Index)blockIdx.x * THREADS + threadIdx.x;
    const Index row = thread / LANES;
    const int lane = threadIdx.x % LANES;
    // Lanes past the last row repeat it, so that whole warps shuffle. They store nothing.
    auto total = reduce_range<LANES, UNROLL, VEC, Op>(in, row < rows ? row : rows - 1, 0, n, lane);
    if (Op::COMMUTATIVE) total = reduce_lanes<Op, LANES>(total);
    if (lane == 0 && row < rows) store_element(out, row, State(total.state));
}

// Long rows: one block for each chunk of a row.
template <int THREADS, int UNROLL, int VEC, class Op, class Inputs, class Outputs>
DEVICE void reduce_rows(const Inputs& in, const Outputs& out, unsigned* tickets, unsigned* partials, Index n,
                        Index chunk, Index chunks) {
    using State = typename Op::State;
    const unsigned row = blockIdx.x / (unsigned)chunks;
    const Index begin = (blockIdx.x - row * (unsigned)chunks) * chunk;
    auto total = reduce_range<THREADS, UNROLL, VEC, Op>(in, row, begin, min(n, begin + chunk), threadIdx.x);
    if (Op::COMMUTATIVE) total = reduce_lanes<Op, WARP_SIZE>(total);
    __shared__ State states[THREADS / WARP_SIZE];
    __shared__ bool valid[THREADS / WARP_SIZE];
    total = reduce_warps<Op>(total, states, valid);
    if (chunks > 1) {
        if (threadIdx.x == 0) store_for_others(partials, blockIdx.x, State(total.state));
        if (!is_last_to_arrive(tickets + row, chunks)) return;
        const Index run = (chunks + THREADS - 1) / THREADS;
        const Index first = threadIdx.x * run, past = min(chunks, first + run);
        total.valid = false;
        for (Index slot = first; slot < past; ++slot)
            append<Op>(total, load_of_others<State>(partials, row * chunks + slot));
        total = reduce_warps<Op>(reduce_lanes<Op, WARP_SIZE>(total), states, valid);
    }
    if (threadIdx.x == 0) store_element(out, row, State(total.state));
}

// inner > 1: adjacent threads take VEC adjacent columns each, and row groups share the axis. A block has
// OUTERS x GROUPS x COLUMNS threads. Groups take contiguous runs of the axis or, if INTERLEAVED, every GROUPS-th
// element. INTERLEAVED is for commutative operators, and faster where rows are so narrow that several of them make one
// long read.
template <int THREADS, int COLUMNS, int GROUPS, int UNROLL, int VEC, bool INTERLEAVED, class Op, class Inputs,
          class Outputs>
DEVICE void reduce_columns(const Inputs& in, const Outputs& out, unsigned* tickets, unsigned* partials, Index outer,
                           Index n, Index inner, Index chunk, Index chunks) {
    using State = typename Op::State;
    using Raw = typename Inputs::Raw;
    constexpr int OUTERS = THREADS / (COLUMNS * GROUPS), WIDTH = COLUMNS * VEC;
    // A thread starts a new total after this many rounds, which keeps chains of rounding errors short. The bits of
    // results depend on it.
    constexpr int CASCADE = 256;
    const int column = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS % GROUPS;
    const int outer_in_block = threadIdx.x / (COLUMNS * GROUPS);
    const unsigned across = (unsigned)((inner + WIDTH - 1) / WIDTH);
    const unsigned tile = blockIdx.x / (unsigned)chunks, tile_row = tile / across;
    const Index begin = (blockIdx.x - tile * (unsigned)chunks) * chunk;
    const Index o = (Index)tile_row * OUTERS + outer_in_block;
    const Index j = (Index)(tile - tile_row * across) * WIDTH + column * VEC;
    const bool exists = o < outer && j < inner;
    const Index length = min(n, begin + chunk) - begin;
    constexpr int STEP = INTERLEAVED ? GROUPS : 1;
    const Index run = (length + GROUPS - 1) / GROUPS;
    Index i = begin + (INTERLEAVED ? group : min(length, group * run));
    const Index past = begin + (INTERLEAVED ? length : min(length, (group + 1) * run));
    const bool valid = i < past;
    State total[VEC];
    if (exists && valid) {
        const bool whole = j + VEC <= inner;
        bool has_total = false;
        while (i < past) {
            State recent[VEC];
            const Index pause = min(past, i + CASCADE * UNROLL * STEP);
            bool has_recent = false;
            for (; i < pause; i += UNROLL * STEP) {
                Raw raw[UNROLL][VEC];
                State folded[VEC];
                const Index left = (past - i + STEP - 1) / STEP;
                const int count = left < UNROLL ? (int)left : UNROLL;
                if (whole && count == UNROLL) {  // without branches between the loads, none waits for another
#pragma unroll
                    for (int u = 0; u < UNROLL; ++u) load_vectors<true>(in, raw[u], o, i + u * STEP, j);
#pragma unroll
                    for (int k = 0; k < VEC; ++k) {
                        State s[UNROLL];
#pragma unroll
                        for (int u = 0; u < UNROLL; ++u) s[u] = Inputs::element(raw[u][k]);
                        folded[k] = reduce_items<Op>(s);
                    }
                } else {
#pragma unroll
                    for (int u = 0; u < UNROLL; ++u) {
                        if (u < count) {
                            if (whole) {
                                load_vectors<true>(in, raw[u], o, i + u * STEP, j);
                            } else {
#pragma unroll
                                for (int k = 0; k < VEC; ++k)
                                    raw[u][k] = load_one(in, o, i + u * STEP, j + k < inner ? j + k : j);
                            }
                        }
                    }
#pragma unroll
                    for (int k = 0; k < VEC; ++k) {
                        folded[k] = Inputs::element(raw[0][k]);
#pragma unroll
                        for (int u = 1; u < UNROLL; ++u)
                            if (u < count) folded[k] = Op::combine(folded[k], Inputs::element(raw[u][k]));
                    }
                }
#pragma unroll
                for (int k = 0; k < VEC; ++k)
                    recent[k] = has_recent ? Op::combine(recent[k], folded[k]) : folded[k];
                has_recent = true;
            }
#pragma unroll
            for (int k = 0; k < VEC; ++k) total[k] = has_total ? Op::combine(total[k], recent[k]) : recent[k];
            has_total = true;
        }
    }
    __shared__ State states[THREADS][VEC];
    __shared__ bool is_valid[THREADS];
    reduce_groups<Op, COLUMNS, GROUPS>(total, group, exists && valid, states, is_valid);
    if (chunks > 1) {
        constexpr int SLOTS = OUTERS * WIDTH;
        const int slot = outer_in_block * WIDTH + column * VEC;
        if (exists && group == 0) {
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                store_for_others(partials, (Index)blockIdx.x * SLOTS + slot + k, total[k]);
        }
        if (!is_last_to_arrive(tickets + tile, chunks)) return;
        const Index share = (chunks + GROUPS - 1) / GROUPS;
        const Index first = min(chunks, group * share), end = min(chunks, first + share);
        if (exists) {
            constexpr int MOST = 16 / (VEC * WORDS_OF<State>);
            constexpr int MANY = MOST < 1 ? 1 : MOST > 8 ? 8 : MOST;  // chunks at once, whose loads overlap
            for (Index c = first; c < end; c += MANY) {
                State later[MANY][VEC];
#pragma unroll
                for (int a = 0; a < MANY; ++a)
#pragma unroll
                    for (int k = 0; k < VEC; ++k)
                        later[a][k] = load_of_others<State>(
                            partials, (tile * chunks + min(c + a, end - 1)) * SLOTS + slot + k);
#pragma unroll
                for (int a = 0; a < MANY; ++a)
#pragma unroll
                    for (int k = 0; k < VEC; ++k)
                        if (c + a < end)
                            total[k] = c + a == first ? later[a][k] : Op::combine(total[k], later[a][k]);
            }
        }
        reduce_groups<Op, COLUMNS, GROUPS>(total, group, exists && first < end, states, is_valid);
    }
    if (exists && group == 0) {
#pragma unroll
        for (int k = 0; k < VEC; ++k)
            if (j + k < inner) store_element(out, o * inner + j + k, total[k]);
    }
}

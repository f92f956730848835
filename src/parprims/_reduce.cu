// Reduction along one axis: y[o, j] = element(o, 0, j) op element(o, 1, j) op ... op element(o, n - 1, j).
//
// The text before this one defines, for the call at hand: State (a partial result), Raw (one element of every input
// as memory holds it), element(raw) (the map), combine(earlier, later), COMMUTATIVE, Inputs and Outputs. Inputs are
// seen as (outer, n, inner); reduce_rows serves inner == 1, reduce_columns the rest.
//
// Phases of both kernels:
//   1. Every thread loads UNROLL vectors of VEC elements before it uses the first, and folds them by a tree.
//   2. Lanes combine in order by shuffles, warps (or row groups) in order through shared memory.
//   3. Where one row is shared by several blocks ("chunks"), each stores its partial and takes a ticket; the block
//      that draws the last one folds all partials in order. So the result does not depend on the order in which
//      blocks finish, and one launch is enough. The ticket wraps to zero by itself.
// Order: in a commutative reduction lanes stride over the row; otherwise every warp takes one contiguous run of it
// and combines lane by lane at every step, so that nothing is ever combined out of order. No lane needs the
// operator's identity: a lane or warp without elements is marked invalid and left out.
//
// M. Harris, Optimizing Parallel Reduction in CUDA, 2007; the ticket is the threadFenceReduction scheme of the same
// author; the in-order shuffle tree follows Ladner and Fischer, J. ACM 27(4), 1980.

using Index = long long;

constexpr int WARP = 32;

struct Partial {
    State state;
    bool valid;
};

DEVICE void append(Partial& total, const State& later) {
    total.state = total.valid ? combine(total.state, later) : later;
    total.valid = true;
}

// Returns s[0] op s[1] op ... op s[N - 1] by a tree.
template <int N>
DEVICE State fold(State (&s)[N]) {
#pragma unroll
    for (int stride = 1; stride < N; stride *= 2)
#pragma unroll
        for (int at = 0; at + stride < N; at += 2 * stride) s[at] = combine(s[at], s[at + stride]);
    return s[0];
}

// Lane 0 of every WIDTH lanes returns the combination of them all, in order; the others return scraps of it.
template <int WIDTH>
DEVICE Partial reduce_lanes(Partial mine) {
#pragma unroll
    for (int distance = 1; distance < WIDTH; distance *= 2) {
        const Partial theirs = shuffle_down(mine, distance);
        if (theirs.valid) append(mine, theirs.state);
    }
    return mine;
}

// Thread 0 returns the combination of lane 0 of every warp, in order.
template <int THREADS>
DEVICE Partial reduce_warps(Partial mine) {
    constexpr int WARPS = THREADS / WARP;
    __shared__ State states[WARPS];
    __shared__ bool valid[WARPS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    __syncthreads();  // separates the reads below, in an earlier call, from the writes here
    if (lane == 0) {
        states[warp] = mine.state;
        valid[warp] = mine.valid;
    }
    __syncthreads();  // separates the writes above from the reads below
    Partial all = mine;
    if (warp == 0) {
        all.valid = lane < WARPS && valid[lane < WARPS ? lane : 0];
        if (all.valid) all.state = states[lane];
        all = reduce_lanes<WARPS>(all);
    }
    return all;
}

// Partials cross from block to block through L2, as whole words.
constexpr int STATE_WORDS = (sizeof(State) + 3) / 4;

DEVICE void store_partial(unsigned* partials, Index slot, const State& state) {
    unsigned words[STATE_WORDS] = {};
    memcpy(words, &state, sizeof(State));
#pragma unroll
    for (int word = 0; word < STATE_WORDS; ++word) __stcg(partials + slot * STATE_WORDS + word, words[word]);
}

DEVICE State load_partial(const unsigned* partials, Index slot) {
    unsigned words[STATE_WORDS];
#pragma unroll
    for (int word = 0; word < STATE_WORDS; ++word) words[word] = __ldcg(partials + slot * STATE_WORDS + word);
    State state;
    memcpy(&state, words, sizeof(State));
    return state;
}

// Tells every thread of the block whether all `blocks` that share the ticket have stored their partials.
DEVICE bool last_to_arrive(unsigned* ticket, Index blocks) {
    __shared__ bool last;
    __threadfence();  // this thread's partials are visible before its block's ticket is
    __syncthreads();  // all threads of the block have passed the fence
    if (threadIdx.x == 0) last = atomicInc(ticket, (unsigned)blocks - 1u) == (unsigned)blocks - 1u;
    __syncthreads();  // separates the write of last from its reads
    __threadfence();  // partials are read after the ticket was
    return last;
}

// Combines the elements [begin, end) of a row, shared by LANES threads. For a commutative operator each thread returns
// the part it saw; otherwise lane 0 of every warp (or group of LANES < 32) returns its run, runs being in order.
template <int LANES, int UNROLL>
DEVICE Partial reduce_range(const Inputs& in, Index row, Index begin, Index end, int lane) {
    constexpr int WIDTH = COMMUTATIVE || LANES < WARP ? LANES : WARP;  // threads that stride over one run
    constexpr Index STEP = WIDTH * VEC, ROUND = STEP * UNROLL;
    if (WIDTH < LANES) {
        constexpr int RUNS = LANES / WIDTH;
        const Index run = ((end - begin + RUNS - 1) / RUNS + STEP - 1) / STEP * STEP;
        begin = min(end, begin + (lane / WIDTH) * run);
        end = min(end, begin + run);
        lane %= WIDTH;
    }
    Partial total;
    total.valid = false;
    Index at = begin;
    for (; at + ROUND <= end; at += ROUND) {
        Raw raw[UNROLL][VEC];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) in.load_along(raw[u], row, at + u * STEP + lane * VEC);
        State folded[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            State s[VEC];
#pragma unroll
            for (int k = 0; k < VEC; ++k) s[k] = element(raw[u][k]);
            folded[u] = fold(s);
            if (!COMMUTATIVE) {
                const Partial whole = {folded[u], true};
                folded[u] = reduce_lanes<WIDTH>(whole).state;
            }
        }
        append(total, fold(folded));
    }
    for (; at < end; at += STEP) {  // the same bounds in all lanes, so that they shuffle together
        Partial part;
        part.valid = false;
        const Index mine = at + lane * VEC;
        Raw raw[VEC];
        if (mine + VEC <= end) {
            in.load_along(raw, row, mine);
            State s[VEC];
#pragma unroll
            for (int k = 0; k < VEC; ++k) s[k] = element(raw[k]);
            append(part, fold(s));
        } else {
#pragma unroll
            for (int k = 0; k < VEC; ++k)
                if (mine + k < end) append(part, element(in.load_one(row, mine + k, 0)));
        }
        if (!COMMUTATIVE) part = reduce_lanes<WIDTH>(part);
        if (part.valid) append(total, part.state);
    }
    return total;
}

// Many short rows: LANES <= 32 threads to a row.
template <int THREADS, int LANES, int UNROLL>
DEVICE void reduce_short_rows(const Inputs& in, const Outputs& out, Index rows, Index n) {
    const Index thread = (Index)blockIdx.x * THREADS + threadIdx.x;
    const Index row = thread / LANES;
    const int lane = threadIdx.x % LANES;
    // Lanes past the last row repeat it, so that whole warps shuffle; they write nothing.
    Partial total = reduce_range<LANES, UNROLL>(in, row < rows ? row : rows - 1, 0, n, lane);
    if (COMMUTATIVE) total = reduce_lanes<LANES>(total);
    if (lane == 0 && row < rows) out.write(row, total.state);
}

// Long rows: a block to a chunk of a row.
template <int THREADS, int UNROLL>
DEVICE void reduce_rows(const Inputs& in, const Outputs& out, unsigned* tickets, unsigned* partials, Index n,
                        Index chunk, Index chunks) {
    const unsigned row = blockIdx.x / (unsigned)chunks;
    const Index begin = (blockIdx.x - row * (unsigned)chunks) * chunk;
    Partial total = reduce_range<THREADS, UNROLL>(in, row, begin, min(n, begin + chunk), threadIdx.x);
    if (COMMUTATIVE) total = reduce_lanes<WARP>(total);
    total = reduce_warps<THREADS>(total);
    if (chunks > 1) {
        if (threadIdx.x == 0) store_partial(partials, blockIdx.x, total.state);
        if (!last_to_arrive(tickets + row, chunks)) return;
        const Index run = (chunks + THREADS - 1) / THREADS;
        const Index first = threadIdx.x * run, past = min(chunks, first + run);
        total.valid = false;
        for (Index slot = first; slot < past; ++slot) append(total, load_partial(partials, row * chunks + slot));
        total = reduce_warps<THREADS>(reduce_lanes<WARP>(total));
    }
    if (threadIdx.x == 0) out.write(row, total.state);
}

// Combines VEC columns over the row groups of a block, in order; group 0 ends with the whole.
template <int COLUMNS, int GROUPS>
DEVICE void reduce_groups(State (&total)[VEC], int group, bool valid) {
    constexpr int THREADS = 256;
    __shared__ State states[THREADS][VEC];
    __shared__ bool is_valid[THREADS];
#pragma unroll
    for (int distance = 1; distance < GROUPS; distance *= 2) {
        __syncthreads();  // separates the reads of the round before from the writes here
#pragma unroll
        for (int k = 0; k < VEC; ++k) states[threadIdx.x][k] = total[k];
        is_valid[threadIdx.x] = valid;
        __syncthreads();  // separates the writes above from the reads below
        const int other = threadIdx.x + distance * COLUMNS;
        if (group % (2 * distance) == 0 && group + distance < GROUPS && is_valid[other]) {
#pragma unroll
            for (int k = 0; k < VEC; ++k) total[k] = combine(total[k], states[other][k]);
        }
    }
}

// inner > 1: threads side by side take VEC adjacent columns each, row groups share the axis. A block is
// OUTERS x GROUPS x COLUMNS threads. Groups take contiguous runs of the axis or, with TURNS, every GROUPS-th element:
// right where the order is immaterial, and better where a row is so narrow that several together make a long read.
template <int COLUMNS, int GROUPS, int UNROLL, bool TURNS>
DEVICE void reduce_columns(const Inputs& in, const Outputs& out, unsigned* tickets, unsigned* partials, Index outer,
                           Index n, Index inner, Index chunk, Index chunks) {
    constexpr int THREADS = 256, OUTERS = THREADS / (COLUMNS * GROUPS), WIDTH = COLUMNS * VEC;
    // A thread folds this many rounds into one total before it starts another, so that chains of roundings stay short.
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
    constexpr int TURN = TURNS ? GROUPS : 1;
    const Index run = (length + GROUPS - 1) / GROUPS;
    Index i = begin + (TURNS ? group : min(length, group * run));
    const Index past = begin + (TURNS ? length : min(length, (group + 1) * run));
    const bool valid = i < past;
    State total[VEC];
    if (exists && valid) {
        const bool whole = j + VEC <= inner;
        bool has_total = false;
        while (i < past) {
            State recent[VEC];
            const Index pause = min(past, i + CASCADE * UNROLL * TURN);
            bool has_recent = false;
            for (; i < pause; i += UNROLL * TURN) {
                Raw raw[UNROLL][VEC];
                const Index left = (past - i + TURN - 1) / TURN;
                const int count = left < UNROLL ? (int)left : UNROLL;
#pragma unroll
                for (int u = 0; u < UNROLL; ++u) {
                    if (u < count) {
                        if (whole) {
                            in.load_across(raw[u], o, i + u * TURN, j);
                        } else {
#pragma unroll
                            for (int k = 0; k < VEC; ++k)
                                raw[u][k] = in.load_one(o, i + u * TURN, j + k < inner ? j + k : j);
                        }
                    }
                }
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    State folded = element(raw[0][k]);
                    if (count == UNROLL) {
                        State s[UNROLL];
#pragma unroll
                        for (int u = 0; u < UNROLL; ++u) s[u] = element(raw[u][k]);
                        folded = fold(s);
                    } else {
#pragma unroll
                        for (int u = 1; u < UNROLL; ++u)
                            if (u < count) folded = combine(folded, element(raw[u][k]));
                    }
                    recent[k] = has_recent ? combine(recent[k], folded) : folded;
                }
                has_recent = true;
            }
#pragma unroll
            for (int k = 0; k < VEC; ++k) total[k] = has_total ? combine(total[k], recent[k]) : recent[k];
            has_total = true;
        }
    }
    reduce_groups<COLUMNS, GROUPS>(total, group, exists && valid);
    if (chunks > 1) {
        constexpr int SLOTS = OUTERS * WIDTH;
        const int slot = outer_in_block * WIDTH + column * VEC;
        if (exists && group == 0) {
#pragma unroll
            for (int k = 0; k < VEC; ++k) store_partial(partials, (Index)blockIdx.x * SLOTS + slot + k, total[k]);
        }
        if (!last_to_arrive(tickets + tile, chunks)) return;
        const Index share = (chunks + GROUPS - 1) / GROUPS;
        const Index first = min(chunks, group * share), end = min(chunks, first + share);
        if (exists) {
            for (Index c = first; c < end; ++c) {
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    const State later = load_partial(partials, (tile * chunks + c) * SLOTS + slot + k);
                    total[k] = c == first ? later : combine(total[k], later);
                }
            }
        }
        reduce_groups<COLUMNS, GROUPS>(total, group, exists && first < end);
    }
    if (exists && group == 0) {
#pragma unroll
        for (int k = 0; k < VEC; ++k)
            if (j + k < inner) out.write(o * inner + j + k, total[k]);
    }
}

// Scan along one axis: y[o, i, j] = x[o, 0, j] op x[o, 1, j] op ... op x[o, i, j]. Every element is read once and every
// result written once, in one launch.
//
// A "line" is one (o, :, j). scan_rows serves arrays with contiguous or few lines, scan_columns arrays with lines that
// are adjacent in memory. scan_strips serves large arrays of the latter kind with few lines or unaligned vectors.
// Template parameters of all:
//     Scan       the operator, the elements and the results:
//                Scan::Op                  the operator (see block.cuh)
//                Scan::Raw                 one element of every input, of its type in memory
//                Scan::Result              one element of every output
//                Scan::Peek                the part of the next element that a result needs
//                Scan::element(raw)        the State of an element
//                Scan::peek(raw)           the Peek of an element
//                Scan::result(state, raw, next)    the results of one element; next is a Next<Peek>
//                Scan::before_publishing(number)   called before a tile publishes its state; tests put delays here
//                Scan::EXCLUSIVE           whether a result leaves out its own element
//                Scan::STARTS              whether lines have an initial state
//                Scan::PEEKS               whether results depend on next
//                Scan::IGNORES_FIRST       whether the first member of a line's first element counts as zero
//     Inputs     the input arrays: views of Scan::Raw (see view.cuh). In an Inputs::Buffers<VEC, COUNT>, COUNT vectors
//                of VEC elements of every input and output can be staged in shared memory
//     Outputs    the output arrays: views of Scan::Result
//     Starts     the initial states of lines: starts.load(h, l, j) returns a State
//     VEC        elements that a thread loads and stores as one vector
//     CARRY      how a tile gets the prefix of the tiles before it (see Carry in tile_scan.cuh)
// With LOOK_BACK a block prefetches the tile that is `ahead` tiles after its own into the L2 cache, unless `ahead` is
// 0. So memory is not idle while tiles wait for each other.
//
// Phases:
//   1. Every thread loads its elements of a tile, beginning all loads before it uses the first, and combines them.
//      A scan over lanes by shuffles and over warps through shared memory gives each thread the prefix of its elements
//      within the tile. Operands stay in order: the operator need not be commutative.
//   2. If a line has several tiles, either a block goes along the line, or a part of it, and carries the prefix from
//      tile to tile; or every tile publishes its aggregate and gets its prefix from other blocks (see look_back.cuh).
//   3. Every thread goes over its elements again, which are still in registers or shared memory, from their prefix on,
//      and stores the results.
// The operator is applied only to elements of the line. Past the end of a line some elements are repeated, which
// changes no result before the end. No identity is needed.
// Reproducibility: the grouping of elements depends only on shape and memory layout, never on the order of blocks.
// Tiles have a fixed size and are combined from left to right, or in groups. The same input gives the same bits.
// Progress: a block draws its tile's number from a counter when it starts (see draw_ticket).
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016.

#include "block.cuh"
#include "common.cuh"
#include "look_back.cuh"
#include "tile_scan.cuh"
#include "view.cuh"

// ---- Threads along the lines: scan_rows -----------------------------------------------------------------------

// LANES threads share a tile of a line: part of a warp, a warp, or several warps, which then are all THREADS threads of
// the block. Each thread loads and stores ROUNDS vectors of VEC elements, adjacent threads adjacent vectors. With
// DIRECT, where a line is one tile, these are the thread's own elements and stay in registers. Otherwise they are
// staged in shared memory, from which a thread takes ROUNDS consecutive vectors. This saves shuffles, and registers, so
// that more loads are in flight. `low` is the length of the axis low of the views, `read` the length of the inputs, `n`
// the length of the outputs. With SERIAL, `tiles` is the number of parts of a line; all parts but the last have equally
// many tiles.
// Loops over rounds are written here, not with each_vector (see view.cuh), which has each loop twice, with and without a
// test for the end: that takes up to 20 registers, or spills.
// If views are skewed, the first vector of a line begins before the line, and a thread leaves out the elements before
// the line. So vectors are aligned in memory wherever lines begin. The last tile of some lines has no element.
template <int THREADS, int LANES, int ROUNDS, int VEC, Carry CARRY, bool DIRECT, int SHARED_BYTES, class Scan,
          class Inputs, class Outputs, class Starts>
DEVICE void scan_rows(const Inputs& in, const Outputs& out, const Starts& starts, ulonglong2* scratch, Index lines,
                      Index low, Index read, Index n, unsigned tiles, unsigned ahead) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    using Raw = typename Scan::Raw;
    using Result = typename Scan::Result;
    using Peek = typename Scan::Peek;
    constexpr int WIDTH = LANES < WARP_SIZE ? LANES : WARP_SIZE, WARPS = LANES / WIDTH, RUN = WIDTH * ROUNDS * VEC;
    static_assert(CARRY == ALONE || (CARRY != CHAINED && !DIRECT), "see above");
    const int lane = threadIdx.x % WIDTH, warp = WARPS == 1 ? 0 : threadIdx.x / WARP_SIZE;
    __shared__ unsigned long long drawn;
    const auto tile = draw_tile<State, CARRY>(scratch, (unsigned)lines, tiles, drawn);
    const OwnLine own = own_line<THREADS, LANES>(tile.line, lines);
    const Index line = own.line;
    const auto [h, l] = line_index(line, low);
    const Inputs from = views_at(in, h, l, 0);
    const Outputs to = views_at(out, h, l, 0);
    // Adjacent threads read slots that are ROUNDS apart. If that is even, a gap after every 8 avoids bank conflicts.
    constexpr int GAP = ROUNDS % 2 == 0 ? 8 : THREADS * ROUNDS;
    extern __shared__ uint4 shared[];
    using Buffers = typename Inputs::template Buffers<VEC, THREADS * ROUNDS + THREADS * ROUNDS / GAP>;
    static_assert(DIRECT || (CARRY == SERIAL ? 2 : 1) * sizeof(Buffers) <= SHARED_BYTES, "see tiling.py");
    auto* const buffers = reinterpret_cast<Buffers*>(shared);
    const auto slot = [&](int at) {
        at += (threadIdx.x - lane) * ROUNDS;
        return at + at / GAP;
    };
    const int skew = Outputs::SKEWED ? skew_of<VEC>(to) : 0;  // outputs are never constant
    const auto begin_of = [&](unsigned number) { return ((Index)number * WARPS + warp) * RUN - skew; };
    const auto buffer_of = [&](unsigned number) -> auto& { return buffers[CARRY == SERIAL ? number % 2 : 0]; };
    const auto stage = [&](unsigned number) {
#pragma unroll 4
        for (int r = 0; r < ROUNDS; ++r)
            stage_vectors<VEC>(from, buffer_of(number), slot(r * WIDTH + lane),
                               begin_of(number) + (r * WIDTH + lane) * VEC, read);
        if (CARRY == SERIAL) end_group_of_staged();
    };
    unsigned number = tile.number, past = tiles;  // the tiles of this block: the present one, and where they end
    if (CARRY == SERIAL) {
        const Index most = n + (Inputs::SKEWED ? VEC - 1 : 0);  // elements of a line, with the elements before it
        const unsigned all = (unsigned)((most + WARPS * RUN - 1) / (WARPS * RUN)), each = (all + tiles - 1) / tiles;
        number = tile.number * each;
        past = min(all, number + each);
    }
    if (!DIRECT) stage(number);
    if constexpr (CARRY == LOOK_BACK)
        visit_later_tile<CARRY>(tile, ahead, (unsigned)lines, tiles, [&](unsigned line, unsigned number) {
            const Index begin = (Index)number * WARPS * RUN;
            prefetch_along<THREADS>(in, line, low, begin, min(read, begin + WARPS * RUN));
        });
    Optional<State> start;  // the prefix of the tile
    start.valid = Scan::STARTS;
    if (Scan::STARTS) start.state = starts.load(h, l, 0);
    if (CARRY == SERIAL && tile.number > 0) start.valid = false;  // until the previous part has published it
    do {
        const Index begin = begin_of(number);  // the first element of the run of WIDTH threads
        const int skipped = begin == -skew && lane == 0 ? skew : 0;  // elements before the line
        auto& staged = buffer_of(number);
        Raw raw[DIRECT ? ROUNDS : 1][VEC];
        const auto fetch = [&](int r) -> Raw(&)[VEC] {
            Raw(&found)[VEC] = raw[DIRECT ? r : 0];
            if (!DIRECT) fetch_vectors(from, found, staged, slot(lane * ROUNDS + r));
            if (!Scan::STARTS && r == 0 && lane == 0 && begin == -skew)
#pragma unroll
                for (int k = 0; k < (Inputs::SKEWED ? VEC : 1); ++k)
                    if (k == skew) read_as_first<Scan>(found[k]);
            return found;
        };
        // The Peek of the element after the run of WIDTH threads, and the Peek of the element after the thread's own
        // elements if these are consecutive.
        Peek behind_run, behind;
        if (Scan::PEEKS) {
            Raw beyond[VEC];
            load_along(from, beyond, begin + RUN, read);
            behind_run = Scan::peek(beyond[0]);
        }
        // The prefix of the thread's elements within the run (with DIRECT of each round), and the aggregate of the run.
        State before[DIRECT ? ROUNDS : 1], total;
        if constexpr (DIRECT) {
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) load_along(from, raw[r], begin + (r * WIDTH + lane) * VEC, read);
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                const Raw(&found)[VEC] = fetch(r);
                State mine = Scan::element(found[0]);
#pragma unroll
                for (int k = 1; k < VEC; ++k) {
                    const State one = Scan::element(found[k]);
                    mine = r > 0 || k > skipped ? Op::combine(mine, one) : one;
                }
                mine = scan_lanes<Op, WIDTH>(mine, lane);
                before[r] = shuffle_up(mine, 1);
                const State all = shuffle(mine, (threadIdx.x % WARP_SIZE) | (WIDTH - 1));
                if (r > 0) before[r] = lane > 0 ? Op::combine(total, before[r]) : total;
                total = r > 0 ? Op::combine(total, all) : all;
            }
        } else {
            if (CARRY == SERIAL) {
                if (number + 1 < past)
                    stage(number + 1);
                else
                    end_group_of_staged();
                wait_for_earlier_groups();
            } else {
                wait_for_staged();
            }
            __syncwarp();  // separates the lanes' copies from each other's reads
#pragma unroll 4
            for (int r = 0; r < ROUNDS; ++r) {
                const Raw(&found)[VEC] = fetch(r);
                if (Scan::PEEKS && r == 0) behind = shuffle_down(Scan::peek(found[0]), 1);
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    const State one = Scan::element(found[k]);
                    total = r > 0 || k > skipped ? Op::combine(total, one) : one;
                }
            }
            total = scan_lanes<Op, WIDTH>(total, lane);
            before[0] = shuffle_up(total, 1);
            total = shuffle(total, (threadIdx.x % WARP_SIZE) | (WIDTH - 1));
            if (lane == WIDTH - 1) behind = behind_run;
        }

        Optional<State> prefix;  // of the warp's run, in the tile and then in the line
        prefix.valid = false;
        if (WARPS > 1) {
            __shared__ State all_totals[CARRY == SERIAL ? 2 : 1][WARPS];
            prefix = scan_warps<Op>(total, all_totals[CARRY == SERIAL ? number % 2 : 0]);
        }
        const TileStates<State> states = {tile.slots, lines, tiles};
        if (CARRY == SERIAL && tile.number > 0 && !start.valid) {
            __shared__ State state_before;
            if (threadIdx.x == 0)
                states.of_tiles(line).at((Index)tile.number - 1).wait(state_before);
            __syncthreads();  // separates the write of state_before from its reads
            start = {state_before, true};
        }
        const Optional<State> next_start = {start.valid ? Op::combine(start.state, total) : total, true};
        if (CARRY == LOOK_BACK) {
            __shared__ State state_before, groups[looking_warps(WARPS)];
            if (threadIdx.x == 0) {
                Scan::before_publishing(number);
                states.publish(line, number, total);
            }
            start = wait_for_state<Op, CARRY, WARPS>(states, line, number, total, start, state_before, groups);
        }
        if (CARRY == SERIAL && threadIdx.x == 0 && number + 1 == past) {
            Scan::before_publishing(tile.number);
            states.publish(line, tile.number, next_start.state);
        }
        if (start.valid) prefix = {prefix.valid ? Op::combine(start.state, prefix.state) : start.state, true};

        State state;
        const auto results_of = [&](int r, Result(&results)[VEC]) {
            const bool alone = !prefix.valid && lane == 0 && r == 0;  // the thread's elements have no prefix
            if (DIRECT || r == 0) {
                state = before[DIRECT ? r : 0];
                if (prefix.valid) state = lane > 0 || r > 0 ? Op::combine(prefix.state, state) : prefix.state;
            }
            const Raw(&found)[VEC] = fetch(r);
            const Index i = begin + (DIRECT ? r * WIDTH + lane : lane * ROUNDS + r) * VEC;
            Peek last = behind;  // the Peek of the element after the vector
            if constexpr (Scan::PEEKS && DIRECT) {
                last = shuffle_down(Scan::peek(found[0]), 1);
                const Peek wrapped =
                    r + 1 < ROUNDS
                        ? shuffle(Scan::peek(raw[min(r + 1, ROUNDS - 1)][0]), threadIdx.x % WARP_SIZE & -WIDTH)
                        : behind_run;
                if (lane == WIDTH - 1) last = wrapped;
            } else if (Scan::PEEKS && r + 1 < ROUNDS) {
                Raw following[VEC];
                fetch_vectors(from, following, staged, slot(lane * ROUNDS + r + 1));
                last = Scan::peek(following[0]);
            }
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const State one = Scan::element(found[k]);
                const Next<Peek> next = {k + 1 < VEC ? Scan::peek(found[min(k + 1, VEC - 1)]) : last, i + k + 1 < read};
                if (Scan::EXCLUSIVE) results[k] = Scan::result(state, found[k], next);
                if (r > 0 || k >= skipped) state = k == skipped && alone ? one : Op::combine(state, one);
                if (!Scan::EXCLUSIVE) results[k] = Scan::result(state, found[k], next);
            }
        };
        if constexpr (DIRECT) {
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                Result results[VEC];
                results_of(r, results);
                if (own.exists) store_along(to, results, begin + (r * WIDTH + lane) * VEC, n);
            }
        } else {
#pragma unroll 4
            for (int r = 0; r < ROUNDS; ++r) {
                Result results[VEC];
                results_of(r, results);
                put_vectors(to, results, staged, slot(lane * ROUNDS + r));  // only this thread reads these slots
            }
            __syncwarp();  // separates the lanes' results from each other's stores
            if (own.exists) {
#pragma unroll 4
                for (int r = 0; r < ROUNDS; ++r)
                    flush_vectors<VEC>(to, staged, slot(r * WIDTH + lane), begin + (r * WIDTH + lane) * VEC, n);
            }
            if (CARRY == SERIAL) __syncwarp();  // separates these reads from the lanes' next copies
        }
        start = next_start;
    } while (CARRY == SERIAL && ++number < past);
}

// ---- Threads across the lines: scan_columns -------------------------------------------------------------------

// A thread takes ROWS consecutive elements of VEC adjacent lines. A block has OUTERS x GROUPS x COLUMNS threads: its
// columns of threads are adjacent across the lines, its groups follow each other along the lines. If lines have
// several tiles, OUTERS is 1. A tile is cut from a strip of COLUMNS x VEC lines.
template <int COLUMNS, int GROUPS, int ROWS, int VEC, Carry CARRY, class Scan, class Inputs, class Outputs,
          class Starts>
DEVICE void scan_columns(const Inputs& in, const Outputs& out, const Starts& starts, ulonglong2* scratch, Index outer,
                         Index low, Index read, Index n, Index inner, unsigned tiles, unsigned ahead) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    using Raw = typename Scan::Raw;
    using Result = typename Scan::Result;
    using Peek = typename Scan::Peek;
    constexpr int THREADS = 256, WIDTH = COLUMNS * VEC, OUTERS = THREADS / (COLUMNS * GROUPS);
    constexpr int IN_WARP = COLUMNS >= WARP_SIZE ? 1 : GROUPS < WARP_SIZE / COLUMNS ? GROUPS : WARP_SIZE / COLUMNS;
    constexpr int CHUNKS = GROUPS / IN_WARP;  // a chunk is the groups that share a warp
    const int column = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS % GROUPS;
    const int outer_in_block = threadIdx.x / (COLUMNS * GROUPS);
    const unsigned strips = (unsigned)((inner + WIDTH - 1) / WIDTH);
    const unsigned blocks = (unsigned)((outer + OUTERS - 1) / OUTERS) * strips;
    __shared__ unsigned long long drawn;
    const auto tile = draw_tile<State, CARRY>(scratch, blocks, tiles, drawn);
    const unsigned block_row = tile.line / strips;
    Index o = (Index)block_row * OUTERS + outer_in_block;
    const Index strip = (Index)(tile.line - block_row * strips) * WIDTH;
    Index j = strip + column * VEC;
    const bool exists = o < outer && j < inner;
    if (o >= outer) o = outer - 1;  // threads without a line repeat another, and store nothing
    if (j >= inner) j = inner - VEC;
    const auto [h, l] = line_index(o, low);
    const Inputs from = views_at(in, h, l, j);
    const Index begin = ((Index)tile.number * GROUPS + group) * ROWS;
    if (CARRY == LOOK_BACK)
        visit_later_tile<CARRY>(tile, ahead, blocks, tiles, [&](unsigned strip_number, unsigned number) {
            const Index row = strip_number / strips, first = (strip_number - row * strips) * (Index)WIDTH + column * VEC;
            if (first >= inner) return;
            Inputs::template each<1>(in, [&](const auto& view, auto, auto, auto) {
                const auto lines = view.at(low == 1 ? row : row / low, low == 1 ? 0 : row % low, first);
                for (int u = 0; u < ROWS; ++u) {
                    const Index i = ((Index)number * GROUPS + group) * ROWS + u;
                    if (i < read) lines.prefetch_across(i, column * VEC);
                }
            });
        });
    Raw raw[ROWS][VEC];
#pragma unroll
    for (int u = 0; u < ROWS; ++u) load_across(from, raw[u], min(begin + u, read - 1));
    Raw behind[VEC];  // the elements after the thread's own
    if (Scan::PEEKS) load_across(from, behind, min(begin + ROWS, read - 1));
    if (!Scan::STARTS && begin == 0) {
#pragma unroll
        for (int k = 0; k < VEC; ++k) read_as_first<Scan>(raw[0][k]);
    }

    __shared__ State totals[CHUNKS][OUTERS * WIDTH];
    __shared__ State states_before[CARRY == ALONE ? 1 : WIDTH], groups[looking_warps(1)];
    const int slot = outer_in_block * WIDTH + column * VEC, chunk = group / IN_WARP, place = group % IN_WARP;
    State before[VEC];  // the prefix of the thread's elements within the chunk
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        State mine = Scan::element(raw[0][k]);
#pragma unroll
        for (int u = 1; u < ROWS; ++u) mine = Op::combine(mine, Scan::element(raw[u][k]));
        before[k] = mine;
        if (IN_WARP > 1) {
            mine = scan_lanes<Op, IN_WARP>(mine, place, COLUMNS);
            before[k] = shuffle_up(mine, COLUMNS);
        }
        if (place == IN_WARP - 1) totals[chunk][slot + k] = mine;
    }
    __syncthreads();  // separates the writes of totals from their reads
    if (CARRY != ALONE) {
        // One thread serves a line if the previous tile's state is enough, else a warp does.
        constexpr int EACH = CARRY == CHAINED ? 1 : WARP_SIZE;
        const TileStates<State> states = {tile.slots, (Index)blocks * WIDTH, tiles};
        const auto total_of = [&](int at) {
            State total = totals[0][at];
#pragma unroll
            for (int c = 1; c < CHUNKS; ++c) total = Op::combine(total, totals[c][at]);
            return total;
        };
        Scan::before_publishing(tile.number);
        // The totals of all lines are published before a warp waits for one of them.
        if (CARRY == LOOK_BACK)
            for (int at = threadIdx.x; at < WIDTH; at += THREADS)
                states.publish((Index)tile.line * WIDTH + at, tile.number, total_of(at));
        for (int at = threadIdx.x / EACH; at < WIDTH; at += THREADS / EACH) {
            const State total = total_of(at);
            Optional<State> start;
            start.valid = Scan::STARTS;
            if (Scan::STARTS) start.state = starts.load(h, l, min(strip + at, inner - 1));
            const Index line = (Index)tile.line * WIDTH + at;
            if (CARRY == CHAINED)
                start = chain<Op>(states, line, tile.number, total, start);
            else
                start = look_back<Op, 1>(states, line, tile.number, total, start, groups);
            if (start.valid && threadIdx.x % EACH == 0) states_before[at] = start.state;
        }
        __syncthreads();  // separates the writes of states_before from their reads
    }

    const Outputs to = views_at(out, h, l, j);
    State state[VEC];
    bool valid = Scan::STARTS || tile.number > 0;
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        State all = totals[0][slot + k];  // becomes the prefix of the chunk, if it has one
        if (valid) {
            const State start = CARRY == ALONE ? starts.load(h, l, j + k) : states_before[slot + k];
            all = chunk > 0 ? Op::combine(start, all) : start;
        }
        for (int c = 1; c < chunk; ++c) all = Op::combine(all, totals[c][slot + k]);
        state[k] = place == 0 ? all : valid || chunk > 0 ? Op::combine(all, before[k]) : before[k];
    }
    valid = valid || group > 0;
#pragma unroll
    for (int u = 0; u < ROWS; ++u) {
        Result results[VEC];
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            const Next<Peek> next = {Scan::peek(u + 1 < ROWS ? raw[min(u + 1, ROWS - 1)][k] : behind[k]),
                                     begin + u + 1 < read};
            results[k] = scan_element<Scan>(state[k], valid || u > 0, raw[u][k], next);
        }
        if (exists && begin + u < n) store_across(to, results, begin + u);
    }
}

// ---- Threads across the lines, elements in shared memory: scan_strips -----------------------------------------

// This kernel has a look-back of its own: a thread serves a line, so that no warp is free to poll for it, and adjacent
// threads poll adjacent slots.

// The states that tiles of adjacent lines publish: the last tile of a group publishes the prefix of the next group,
// every other tile its total. Threads that serve adjacent lines access adjacent slots.
template <class State>
struct StripStates {
    StateSlots<State> slots;  // the slots of one line
    Index lines;

    DEVICE StateSlots<State> of_tile(unsigned tile) const { return slots.at(tile * lines); }
};

// Waits for the totals of the tiles from `first` to before `past` and combines them.
template <class Op>
DEVICE Optional<typename Op::State> wait_for_totals(const StripStates<typename Op::State>& states, unsigned first,
                                                    unsigned past) {
    constexpr unsigned AT_ONCE = 4;  // their loads overlap
    Optional<typename Op::State> all;
    all.valid = false;
    for (; first < past; first += AT_ONCE) {
        typename Op::State found[AT_ONCE];
        const auto totals = states.of_tile(first);
        bool arrived[AT_ONCE];
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; ++k)
            arrived[k] = totals.at(first + k < past ? k * states.lines : 0).poll(found[k]);
#pragma unroll
        for (unsigned k = 0; k < AT_ONCE; ++k) {
            if (first + k >= past) break;
            while (!arrived[k]) arrived[k] = totals.at(k * states.lines).poll(found[k]);
            append<Op>(all, found[k]);
        }
    }
    return all;
}

// A strip is `width` adjacent lines, a tile `rows` elements of each. A block has groups of `width` threads, which
// follow each other along the lines; a thread serves one line. Tiles are drawn across the strips. So adjacent memory is
// read, and written, at nearly the same time.
// With WHOLE a strip is the whole inner axis, and a tile is contiguous memory: the threads copy it to shared memory,
// and the results from there, by vectors of VEC elements. The views then see the memory of all lines with one o as one
// line of stride 1. If `backward`, the scan begins at the end of this memory. Without WHOLE a thread copies its own
// elements one by one, adjacent threads adjacent elements, and stores its own results.
// `span` tiles are a group. A tile publishes its total. It waits for the totals of the tiles before it in its group,
// and for the prefix of the group, which the last tile of the group before publishes. With a span of 1, tiles are
// chained.
template <int THREADS, int VEC, int COUNT, bool WHOLE, int SHARED_BYTES, class Scan, class Inputs, class Outputs,
          class Starts>
DEVICE void scan_strips(const Inputs& in, const Outputs& out, const Starts& starts, ulonglong2* scratch, Index outer,
                        Index low, Index n, Index inner, int width, int rows, unsigned tiles, unsigned span,
                        unsigned ahead, bool backward) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    using Raw = typename Scan::Raw;
    using Result = typename Scan::Result;
    using Peek = typename Scan::Peek;
    extern __shared__ uint4 shared[];
    using Buffers = typename Inputs::template Buffers<VEC, COUNT / VEC>;
    constexpr int WORDS = (sizeof(Buffers) + 15) / 16;
    static_assert(16 * WORDS + 2 * THREADS * sizeof(State) <= SHARED_BYTES, "see tiling.py");
    auto& buffers = *reinterpret_cast<Buffers*>(shared);
    State* const totals = reinterpret_cast<State*>(shared + WORDS);  // the totals of the groups
    State* const parts = totals + THREADS;                           // the parts of the tile's prefix
    const int column = threadIdx.x % width, group = threadIdx.x / width, groups = THREADS / width;
    const unsigned strips = (unsigned)((inner + width - 1) / width), lines = (unsigned)outer * strips;
    __shared__ unsigned long long drawn;
    const Ticket ticket = draw_ticket(scratch, lines, tiles, drawn);
    const unsigned number = ticket.number() / lines, line = ticket.number() % lines;
    const auto rows_of = [&](unsigned tile, Index& first) {  // the number of rows, and the first
        first = (Index)(backward ? tiles - 1 - tile : tile) * rows;
        return (int)min((Index)rows, n - first);
    };
    Index first;
    const int count = rows_of(number, first), each = (rows + groups - 1) / groups | 1;  // odd, for the banks of memory
    const int filled = (count + each - 1) / each;  // the groups that have elements
    const Index o = line / strips, j = (line % strips) * (Index)width + column;
    const auto [h, l] = line_index(o, low);
    const bool exists = group < groups && j < inner;
    const int begin = group * each, mine = exists ? max(0, min(each, count - begin)) : 0;
    const Inputs from = views_at(in, h, l, WHOLE ? 0 : j);
    // With WHOLE: the beginning of the tile's memory, and an element at its end that is in no whole vector.
    const Index memory = first * width;
    const int elements = count * width, rest = elements / VEC * VEC + threadIdx.x;

    if constexpr (WHOLE) {
#pragma unroll 4
        for (int at = threadIdx.x * VEC; at + VEC <= elements; at += THREADS * VEC)
            stage_vectors<VEC>(from, buffers, at / VEC, memory + at, memory + at + VEC);
        if (rest < elements) stage_across(from, buffers, rest, memory + rest);
    } else {
#pragma unroll 4
        for (int u = 0; u < mine; ++u) stage_across(from, buffers, (begin + u) * width + column, first + begin + u);
    }
    const unsigned later = ticket.number() + ahead;
    if (ahead > 0 && later < lines * tiles) {
        const Index row = later % lines / strips, strip = (later % lines % strips) * (Index)width;
        Index start;
        const int there = rows_of(later / lines, start);
        if (WHOLE)
            prefetch_along<THREADS>(in, row, low, start * width, (start + there) * width);
        else
            Inputs::template each<1>(in, [&](const auto& view, auto, auto, auto place) {
                if constexpr (decltype(place)::WAITS)
                    for (int u = threadIdx.x; u < there; u += THREADS)
                        view.at(low == 1 ? row : row / low, low == 1 ? 0 : row % low, strip)
                            .prefetch_row(start + u, (int)min((Index)width, inner - strip));
            });
    }
    wait_for_staged();
    __syncthreads();  // separates the threads' copies from each other's reads

    // The thread's element u is element place + u * step of the buffers.
    const int step = backward ? -width : width, place = (backward ? count - 1 : 0) * width + begin * step + column;
    const auto fetch = [&](int u) {
        Raw raw = fetch_element(from, buffers, place + u * step);
        if (!Scan::STARTS && number == 0 && begin + u == 0) read_as_first<Scan>(raw);
        return raw;
    };
    Peek behind;  // the Peek of the element after the thread's own
    if (Scan::PEEKS && mine > 0) {
        if (begin + mine < count) {
            behind = Scan::peek(fetch(mine));
        } else {
            const Index row = max((Index)0, min(n - 1, backward ? first - 1 : first + count));
            Raw beyond[1];
            load_across(from, beyond, WHOLE ? row * width + column : row);
            behind = Scan::peek(beyond[0]);
        }
    }
    if (mine > 0) {
        State total = Scan::element(fetch(0));
#pragma unroll 4
        for (int u = 1; u < mine; ++u) total = Op::combine(total, Scan::element(fetch(u)));
        totals[threadIdx.x] = total;
    }
    __syncthreads();  // separates the writes of totals from their reads
    for (int distance = 1; distance < filled; distance *= 2) {
        const bool takes = mine > 0 && group >= distance;
        State total;
        if (takes) total = Op::combine(totals[threadIdx.x - distance * width], totals[threadIdx.x]);
        __syncthreads();  // separates the reads of totals from their writes
        if (takes) totals[threadIdx.x] = total;
        __syncthreads();  // separates the writes of totals from their reads
    }
    const bool leads = exists && group == 0;
    const State& total = totals[(filled - 1) * width + column];

    // The groups of threads share the tiles before this tile in its group of tiles.
    const unsigned in_group = number % span, share = (in_group + groups - 1) / groups;
    const bool last = number + 1 == tiles, closes = in_group + 1 == span && !last;
    const unsigned adjacent = line * width + column;  // among fewer than 2^31 lines
    const StripStates<State> states = {first_slot<State>(scratch, ticket).at(adjacent), lines * width};
    if (leads) Scan::before_publishing(number);
    if (leads && !closes && !last) states.of_tile(number).publish(total);
    if (exists) {
        const auto part = wait_for_totals<Op>(states, number - in_group + min(in_group, group * share),
                                              number - in_group + min(in_group, (group + 1) * share));
        if (part.valid) parts[threadIdx.x] = part.state;
    }
    __syncthreads();  // separates the writes of parts from their reads
    if (leads) {
        Optional<State> part, start;
        part.valid = false;
        for (unsigned g = 0; g * share < in_group; ++g) append<Op>(part, parts[g * width + column]);
        const State both = part.valid ? Op::combine(part.state, total) : total;
        start.valid = Scan::STARTS || number >= span;
        if (number >= span) {
            states.of_tile(number - in_group - 1).wait(start.state);
        } else if (Scan::STARTS) {
            start.state = starts.load(h, l, j);
        }
        if (closes) states.of_tile(number).publish(start.valid ? Op::combine(start.state, both) : both);
        if (part.valid) append<Op>(start, part.state);
        if (start.valid) parts[column] = start.state;
    }
    __syncthreads();  // separates the writes of the tile's prefix from its reads
    const Outputs to = views_at(out, h, l, WHOLE ? 0 : j);
    bool valid = Scan::STARTS || number > 0;
    State state;
    if (mine > 0) {
        if (valid) state = parts[column];
        if (group > 0) {
            const State before = totals[threadIdx.x - width];
            state = valid ? Op::combine(state, before) : before;
        }
        valid = valid || group > 0;
    }
#pragma unroll 4
    for (int u = 0; u < mine; ++u) {
        const Raw raw = fetch(u);
        Next<Peek> next = {behind, begin + u + 1 < count || !last};
        if (Scan::PEEKS && u + 1 < mine) next.peek = Scan::peek(fetch(u + 1));
        const Result results[1] = {scan_element<Scan>(state, valid || u > 0, raw, next)};
        if constexpr (WHOLE)
            put_element(to, results[0], buffers, place + u * step);
        else
            store_across(to, results, first + begin + u);
    }
    if constexpr (WHOLE) {
        __syncthreads();  // separates the threads' results from each other's stores
#pragma unroll 4
        for (int at = threadIdx.x * VEC; at + VEC <= elements; at += THREADS * VEC)
            flush_vectors<VEC>(to, buffers, at / VEC, memory + at, memory + at + VEC);
        if (rest < elements) {
            const Result results[1] = {fetch_element(to, buffers, rest)};
            store_across(to, results, memory + rest);
        }
    }
}

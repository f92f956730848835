// Scan along one axis: y[o, i, j] = x[o, 0, j] op x[o, 1, j] op ... op x[o, i, j], every element read once and every
// result written once, in one launch.
//
// The text before this one defines, for the call at hand: State (a partial result), Raw (one element of every input
// as memory holds it), Result (one element of every output), element(raw), combine(earlier, later), result(state, raw,
// next), first(raw) (what the first element of a line without a start is read as), EXCLUSIVE, STARTS (whether
// something stands before the first element), PEEKS (whether results depend on next, what peek(raw) gives of the
// element behind), Inputs, Outputs and Starts. A "line" is one (o, j); scan_rows serves arrays whose lines are
// contiguous or few, scan_columns those whose lines lie side by side.
//
// Phases of both kernels:
//   1. Every thread begins to load its elements of a tile of the line, all before it uses the first, and folds them;
//      lanes combine by shuffles, warps through shared memory, so that each thread knows what stands before its own
//      elements in the tile. Always earlier with later: the operator need not be commutative.
//   2. Where a line has several tiles, a block goes along the line and knows what stands before the next tile, or, if
//      lines are few, the tile publishes its total and learns what stands before it (look_back).
//   3. Every thread walks over its elements, still in shared memory or registers, from what stands before them, and
//      stores the results.
// Nothing is fed to the operator but elements of the line: past its end some are repeated, which changes no result
// before it. No identity is needed.
// Order and bits: how elements are grouped depends on the shape and layout alone (tiles of fixed size, from left to
// right or in groups of 32), never on which block came first, so the same input gives the same bits.
// Progress: a tile's number is drawn from a counter when its block starts, so a tile only ever waits for tiles whose
// blocks have started before it, whatever order the device starts blocks in.
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016; the shuffle
// scan within a warp follows Hillis and Steele, CACM 29(12), 1986.

using Index = long long;

constexpr int WARP = 32;
constexpr int LOOKERS = 4;  // warps that look back; 2, 8 and 16 are no faster on an H200

struct Partial {
    State state;
    bool valid;
};

// What a result sees of the element behind its own, if there is one.
struct Next {
    Peek peek;
    bool exists;
};

// Combines every lane with all before it, LANES lanes being a unit; `lane` counts within the unit.
template <int LANES>
DEVICE State scan_lanes(State mine, int lane, int apart = 1) {
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        const State before = shuffle_up(mine, distance * apart);
        if (lane >= distance) mine = combine(before, mine);
    }
    return mine;
}

// ---- What blocks tell each other ------------------------------------------------------------------------------

// A state crosses from block to block in words of 16 bytes, 8 of payload and 8 of flag, which move as one: a word whose
// flag is seen is a word that has arrived, and no fence is needed. A state of several words has arrived when all of
// them have. The flag counts the launches over this scratch, so that what an earlier launch left is not mistaken.
constexpr int STATE_WORDS = (sizeof(State) + 7) / 8;

struct Slots {
    ulonglong2* first;
    unsigned long long flag;

    DEVICE Slots at(Index slot) const { return {first + slot * STATE_WORDS, flag}; }

    DEVICE void publish(const State& state) const {
        unsigned long long words[STATE_WORDS] = {};
        memcpy(words, &state, sizeof(State));
#pragma unroll
        for (int word = 0; word < STATE_WORDS; ++word)
            asm volatile("{ .reg .b128 w; mov.b128 w, {%1, %2}; st.relaxed.gpu.b128 [%0], w; }" ::"l"(first + word),
                         "l"(words[word]), "l"(flag)
                         : "memory");
    }

    // Tells whether a state has arrived; leaves `state` alone if not.
    DEVICE bool poll(State& state) const {
        unsigned long long words[STATE_WORDS], flags[STATE_WORDS];
#pragma unroll
        for (int word = 0; word < STATE_WORDS; ++word)
            asm volatile("{ .reg .b128 w; ld.relaxed.gpu.b128 w, [%2]; mov.b128 {%0, %1}, w; }"
                         : "=l"(words[word]), "=l"(flags[word])
                         : "l"(first + word)
                         : "memory");
        bool arrived = true;
#pragma unroll
        for (int word = 0; word < STATE_WORDS; ++word) arrived = arrived && flags[word] == flag;
        if (arrived) memcpy(&state, words, sizeof(State));
        return arrived;
    }
};

// Scratch: a counter, then a slot for every tile of every line, then one for every group of 32 tiles.
constexpr int COUNTER_WORDS = 8;

// How a tile learns what stands before it. ALONE: it is the only one of its line. WALK: the same block had the tile
// before it, and began to load this one meanwhile; for lines so many that each block may have its own. NEIGHBOUR: from
// the tile before it, which is nearly always done, for tiles are drawn across the lines. GROUPS: as look_back says, for
// lines so few that many tiles of one are in flight.
enum Look { ALONE, WALK, NEIGHBOUR, GROUPS };

struct Tile {
    unsigned line, number, tiles;
    Slots slots;
};

// Draws a tile; the same for all threads of the block. The counter holds the number of launches above 31 bits of tiles
// drawn; the block that draws the last counts one launch more. (It would take 2^33 launches to see a flag again.)
template <Look LOOK>
DEVICE Tile draw(ulonglong2* scratch, unsigned lines, unsigned tiles) {
    if (LOOK == ALONE || LOOK == WALK) return {blockIdx.x, 0u, tiles, {nullptr, 0}};
    __shared__ unsigned long long drawn;
    if (threadIdx.x == 0) {
        const unsigned long long count = (unsigned long long)lines * tiles;
        drawn = atomicAdd(&scratch->x, 1ull);
        if ((drawn & 0x7fffffffull) == count - 1) atomicAdd(&scratch->x, 0x80000000ull - count);
    }
    __syncthreads();  // separates the write of drawn from its reads
    const unsigned order = (unsigned)(drawn & 0x7fffffffull);
    const unsigned number = LOOK == NEIGHBOUR ? order / lines : order % tiles;
    const unsigned line = LOOK == NEIGHBOUR ? order % lines : order / tiles;
    return {line, number, tiles, {scratch + COUNTER_WORDS, (drawn >> 31) + 1}};
}

// Waits for what stands before a tile, which the tile before publishes, and publishes what stands before the next. One
// thread calls it. `start` is what stands before the line, one of `lines`.
DEVICE Partial ask_neighbour(const Tile& tile, Index line, const State& total, Partial start) {
    const Slots slots = tile.slots.at(line * tile.tiles + tile.number);
    if (tile.number > 0) {
        start.valid = true;
        while (!slots.at(-1).poll(start.state)) {
        }
    }
    if (tile.number + 1 < tile.tiles) slots.publish(start.valid ? combine(start.state, total) : total);
    return start;
}

// Returns to warp 0 what stands before a tile, and publishes what the tiles after it need. WARPS warps call it, all
// threads with the same arguments.
//
// Tiles are in groups of 32, and every tile publishes its total. Warp w waits for the totals of the w-th group before
// the tile's own, one a lane, and combines them; warp 0 does so with those of the own group that stand before the
// tile. The last tile of a group publishes the whole: the combination of everything up to there. So what stands before
// a tile is the last whole that is there already, combined from left to right with the groups since and the tiles
// since: the same bits, whichever group that was.
template <int WARPS>
DEVICE Partial look_back(const Tile& tile, Index line, Index lines, const State& total, Partial start) {
    constexpr int LOOKING = WARPS < LOOKERS ? WARPS : LOOKERS;
    const int lane = threadIdx.x % WARP, warp = WARPS == 1 ? 0 : threadIdx.x / WARP, place = tile.number % WARP;
    const unsigned group = tile.number / WARP;
    const bool last = tile.number + 1 == tile.tiles, closes = place == WARP - 1 && !last;
    const Slots totals = tile.slots.at(line * tile.tiles);
    const Slots wholes = tile.slots.at(lines * tile.tiles + line * ((tile.tiles + WARP - 1) / WARP));
    if (warp == 0 && lane == 0 && !last) totals.at(tile.number).publish(total);

    State mine = total, whole = total;
    const bool looks = warp == 0 && lane < LOOKING && (unsigned)lane < group;
    bool seen = false;
    if (warp < LOOKING && (unsigned)warp <= group) {
        bool arrived = warp == 0 && lane >= place;
        do {
            if (!arrived) arrived = totals.at((Index)(group - warp) * WARP + lane).poll(mine);
            if (looks && !seen) seen = wholes.at((Index)group - 1 - lane).poll(whole);
        } while (!__all_sync(0xffffffffu, arrived));
        mine = scan_lanes<WARP>(mine, lane);  // in warp 0 lane `place` has the tile's own total in it
    }
    __shared__ State groups[LOOKING];
    if (LOOKING > 1) {
        if (warp < LOOKING && lane == WARP - 1) groups[warp] = mine;
        __syncthreads();  // separates the writes of groups from their reads
    }
    if (warp == 0) {
        if (group > 0) {
            unsigned there;
            while ((there = __ballot_sync(0xffffffffu, seen)) == 0)
                if (looks) seen = wholes.at((Index)group - 1 - lane).poll(whole);
            int since = __ffs(there) - 1;
            start = {shuffle(whole, since), true};
            if (LOOKING > 1)
                for (; since > 0; --since) start.state = combine(start.state, groups[since]);
        }
        if (closes && lane == place) wholes.at(group).publish(start.valid ? combine(start.state, mine) : mine);
        if (place > 0) {
            const State before = shuffle(mine, place - 1);
            start = {start.valid ? combine(start.state, before) : before, true};
        }
    }
    return start;
}

// ---- Lines along which threads lie side by side ---------------------------------------------------------------

// LANES threads to a tile of a line: less than a warp, a warp, or several, then THREADS of them. They load and store
// ROUNDS vectors of VEC elements each, side by side with their neighbours. With DIRECT these are a thread's own
// elements and stay in registers; otherwise they wait in shared memory, where a thread takes ROUNDS vectors that follow
// each other, which spares shuffles and leaves registers, and so blocks, to have more loads in flight. `low` is the
// length of the axis low of the views, `read` the length of the inputs, `n` that of the outputs.
template <int THREADS, int LANES, int ROUNDS, Look LOOK, bool DIRECT>
DEVICE void scan_rows(const Inputs& in, const Outputs& out, const Starts& starts, ulonglong2* scratch, Index lines,
                      Index low, Index read, Index n, unsigned tiles) {
    constexpr int WIDTH = LANES < WARP ? LANES : WARP, WARPS = LANES / WIDTH, RUN = WIDTH * ROUNDS * VEC;
    const int lane = threadIdx.x % WIDTH, warp = WARPS == 1 ? 0 : threadIdx.x / WARP;
    const Tile tile = draw<LOOK>(scratch, (unsigned)lines, tiles);
    Index line = tile.line;
    bool exists = true;
    if (WARPS == 1) {
        line = ((Index)blockIdx.x * THREADS + threadIdx.x) / LANES;
        exists = line < lines;
        if (!exists) line = lines - 1;  // repeats the last line, so that whole warps shuffle, and writes nothing
    }
    const Index h = low == 1 ? line : line / low, l = low == 1 ? 0 : line - h * low;
    const Inputs from = in.at(h, l, 0);
    const Outputs to = out.at(h, l, 0);
    // Neighbouring threads read ROUNDS apart: if that is even, gaps after every 8 keep them out of each other's banks.
    constexpr int GAP = ROUNDS % 2 == 0 ? 8 : THREADS * ROUNDS;
    extern __shared__ uint4 shared[];
    auto* const buffers = reinterpret_cast<Staged<THREADS * ROUNDS + THREADS * ROUNDS / GAP>*>(shared);
    const auto slot = [&](int at) {
        at += (threadIdx.x - lane) * ROUNDS;
        return at + at / GAP;
    };
    const auto begin_of = [&](unsigned number) { return ((Index)number * WARPS + warp) * RUN; };
    const auto buffer_of = [&](unsigned number) -> auto& { return buffers[LOOK == WALK ? number % 2 : 0]; };
    const auto stage = [&](unsigned number) {
#pragma unroll 4
        for (int r = 0; r < ROUNDS; ++r)
            from.stage(buffer_of(number), slot(r * WIDTH + lane), begin_of(number) + (r * WIDTH + lane) * VEC, read);
        if (LOOK == WALK) end_group_of_staged();
    };
    if (!DIRECT) stage(tile.number);
    Partial start;  // of what stands before the tile
    start.valid = STARTS;
    if (STARTS) start.state = starts.load(h, l, 0);
    unsigned number = tile.number;
    do {
        const Index begin = begin_of(number);  // of the run of WIDTH threads
        auto& staged = buffer_of(number);
        Raw raw[DIRECT ? ROUNDS : 1][VEC];
        const auto fetch = [&](int r) -> Raw(&)[VEC] {
            Raw(&found)[VEC] = raw[DIRECT ? r : 0];
            if (!DIRECT) from.fetch(found, staged, slot(lane * ROUNDS + r));
            if (!STARTS && r == 0 && lane == 0 && begin == 0) first(found[0]);
            return found;
        };
        // Of the element behind the run of WIDTH threads, and of the one behind the thread's own if these follow each
        // other.
        Peek behind_run, behind;
        if (PEEKS) {
            Raw beyond[VEC];
            from.load_along(beyond, begin + RUN, read);
            behind_run = peek(beyond[0]);
        }
        // Of what stands before the thread's elements in the run, in each round or at all; and of the run.
        State before[DIRECT ? ROUNDS : 1], total;
        if constexpr (DIRECT) {
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) from.load_along(raw[r], begin + (r * WIDTH + lane) * VEC, read);
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                const Raw(&found)[VEC] = fetch(r);
                State mine = element(found[0]);
#pragma unroll
                for (int k = 1; k < VEC; ++k) mine = combine(mine, element(found[k]));
                mine = scan_lanes<WIDTH>(mine, lane);
                before[r] = shuffle_up(mine, 1);
                const State all = shuffle(mine, (threadIdx.x % WARP) | (WIDTH - 1));
                if (r > 0) before[r] = lane > 0 ? combine(total, before[r]) : total;
                total = r > 0 ? combine(total, all) : all;
            }
        } else {
            if (LOOK == WALK) {
                if (number + 1 < tiles)
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
                if (PEEKS && r == 0) behind = shuffle_down(peek(found[0]), 1);
#pragma unroll
                for (int k = 0; k < VEC; ++k) total = r + k > 0 ? combine(total, element(found[k])) : element(found[k]);
            }
            total = scan_lanes<WIDTH>(total, lane);
            before[0] = shuffle_up(total, 1);
            total = shuffle(total, (threadIdx.x % WARP) | (WIDTH - 1));
            if (lane == WIDTH - 1) behind = behind_run;
        }

        Partial prefix;  // of what stands before the warp's run
        prefix.valid = false;
        if (WARPS > 1) {
            __shared__ State all_totals[LOOK == WALK ? 2 : 1][WARPS];
            State(&totals)[WARPS] = all_totals[LOOK == WALK ? number % 2 : 0];
            if (lane == 0) totals[warp] = total;
            __syncthreads();  // separates the writes of totals from their reads
            const State up_to = scan_lanes<WARPS>(totals[lane % WARPS], lane % WARPS);
            prefix = {shuffle(up_to, warp > 0 ? warp - 1 : 0), warp > 0};
            total = shuffle(up_to, WARPS - 1);
        }
        const Partial next_start = {start.valid ? combine(start.state, total) : total, true};
        if (LOOK == NEIGHBOUR || LOOK == GROUPS) {
            __shared__ State state_before;
            if (threadIdx.x == 0) before_publishing(number);
            if (LOOK == GROUPS)
                start = look_back<WARPS>(tile, line, lines, total, start);
            else if (threadIdx.x == 0)
                start = ask_neighbour(tile, line, total, start);
            if (threadIdx.x == 0 && start.valid) state_before = start.state;
            __syncthreads();  // separates the write of state_before from its reads
            start.valid = STARTS || number > 0;
            if (start.valid) start.state = state_before;
        }
        if (start.valid) prefix = {prefix.valid ? combine(start.state, prefix.state) : start.state, true};

        State state;
        const auto results_of = [&](int r, Result(&results)[VEC]) {
            const bool alone = !prefix.valid && lane == 0 && r == 0;  // nothing stands before the thread's elements
            if (DIRECT || r == 0) {
                state = before[DIRECT ? r : 0];
                if (prefix.valid) state = lane > 0 || r > 0 ? combine(prefix.state, state) : prefix.state;
            }
            const Raw(&found)[VEC] = fetch(r);
            const Index i = begin + (DIRECT ? r * WIDTH + lane : lane * ROUNDS + r) * VEC;
            Peek last = behind;  // of the element behind the vector
            if constexpr (PEEKS && DIRECT) {
                last = shuffle_down(peek(found[0]), 1);
                const Peek wrapped =
                    r + 1 < ROUNDS ? shuffle(peek(raw[min(r + 1, ROUNDS - 1)][0]), threadIdx.x % WARP & -WIDTH) : behind_run;
                if (lane == WIDTH - 1) last = wrapped;
            } else if (PEEKS && r + 1 < ROUNDS) {
                Raw following[VEC];
                from.fetch(following, staged, slot(lane * ROUNDS + r + 1));
                last = peek(following[0]);
            }
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                const State one = element(found[k]);
                const Next next = {k + 1 < VEC ? peek(found[min(k + 1, VEC - 1)]) : last, i + k + 1 < read};
                if (EXCLUSIVE) results[k] = result(state, found[k], next);
                state = k == 0 && alone ? one : combine(state, one);
                if (!EXCLUSIVE) results[k] = result(state, found[k], next);
            }
        };
        if constexpr (DIRECT) {
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                Result results[VEC];
                results_of(r, results);
                if (exists) to.store_along(results, begin + (r * WIDTH + lane) * VEC, n);
            }
        } else {
#pragma unroll 4
            for (int r = 0; r < ROUNDS; ++r) {
                Result results[VEC];
                results_of(r, results);
                to.put(results, staged, slot(lane * ROUNDS + r));  // where only this thread has read
            }
            __syncwarp();  // separates the lanes' results from each other's stores
            if (exists) {
#pragma unroll 4
                for (int r = 0; r < ROUNDS; ++r)
                    to.flush(staged, slot(r * WIDTH + lane), begin + (r * WIDTH + lane) * VEC, n);
            }
            if (LOOK == WALK) __syncwarp();  // separates these reads from the lanes' next copies
        }
        start = next_start;
    } while (LOOK == WALK && ++number < tiles);
}

// ---- Lines that lie side by side ------------------------------------------------------------------------------

// A thread takes ROWS consecutive elements of VEC adjacent lines. A block is OUTERS x GROUPS x COLUMNS threads: its
// columns of threads lie side by side, its groups follow each other along the lines. If lines have several tiles,
// OUTERS is 1. Strips of COLUMNS x VEC lines are what tiles are cut from.
template <int COLUMNS, int GROUPS, int ROWS, Look LOOK>
DEVICE void scan_columns(const Inputs& in, const Outputs& out, const Starts& starts, ulonglong2* scratch, Index outer,
                         Index low, Index read, Index n, Index inner, unsigned tiles) {
    constexpr int THREADS = 256, WIDTH = COLUMNS * VEC, OUTERS = THREADS / (COLUMNS * GROUPS);
    constexpr int IN_WARP = COLUMNS >= WARP ? 1 : GROUPS < WARP / COLUMNS ? GROUPS : WARP / COLUMNS;
    constexpr int CHUNKS = GROUPS / IN_WARP;  // of the groups, those that share a warp
    const int column = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS % GROUPS;
    const int outer_in_block = threadIdx.x / (COLUMNS * GROUPS);
    const unsigned strips = (unsigned)((inner + WIDTH - 1) / WIDTH);
    const unsigned blocks = (unsigned)((outer + OUTERS - 1) / OUTERS) * strips;
    const Tile tile = draw<LOOK>(scratch, blocks, tiles);
    const unsigned block_row = tile.line / strips;
    Index o = (Index)block_row * OUTERS + outer_in_block;
    const Index strip = (Index)(tile.line - block_row * strips) * WIDTH;
    Index j = strip + column * VEC;
    const bool exists = o < outer && j < inner;
    if (o >= outer) o = outer - 1;  // threads without a line repeat another, and write nothing
    if (j >= inner) j = inner - VEC;
    const Index h = low == 1 ? o : o / low, l = low == 1 ? 0 : o - h * low;
    const Inputs from = in.at(h, l, j);
    const Index begin = ((Index)tile.number * GROUPS + group) * ROWS;
    Raw raw[ROWS][VEC];
#pragma unroll
    for (int u = 0; u < ROWS; ++u) from.load_across(raw[u], min(begin + u, read - 1));
    Raw behind[VEC];  // the elements behind the thread's own
    if (PEEKS) from.load_across(behind, min(begin + ROWS, read - 1));
    if (!STARTS && begin == 0) {
#pragma unroll
        for (int k = 0; k < VEC; ++k) first(raw[0][k]);
    }

    __shared__ State totals[CHUNKS][OUTERS * WIDTH];
    __shared__ State states_before[LOOK == ALONE ? 1 : WIDTH];
    const int slot = outer_in_block * WIDTH + column * VEC, chunk = group / IN_WARP, place = group % IN_WARP;
    State before[VEC];  // of what stands before the thread's elements in the chunk
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        State mine = element(raw[0][k]);
#pragma unroll
        for (int u = 1; u < ROWS; ++u) mine = combine(mine, element(raw[u][k]));
        before[k] = mine;
        if (IN_WARP > 1) {
            mine = scan_lanes<IN_WARP>(mine, place, COLUMNS);
            before[k] = shuffle_up(mine, COLUMNS);
        }
        if (place == IN_WARP - 1) totals[chunk][slot + k] = mine;
    }
    __syncthreads();  // separates the writes of totals from their reads
    if (LOOK != ALONE) {
        // A thread to a line where the neighbour is enough, else a warp.
        constexpr int EACH = LOOK == NEIGHBOUR ? 1 : WARP;
        before_publishing(tile.number);
        for (int at = threadIdx.x / EACH; at < WIDTH; at += THREADS / EACH) {
            State total = totals[0][at];
#pragma unroll
            for (int c = 1; c < CHUNKS; ++c) total = combine(total, totals[c][at]);
            Partial start;
            start.valid = STARTS;
            if (STARTS) start.state = starts.load(h, l, min(strip + at, inner - 1));
            const Index line = (Index)tile.line * WIDTH + at;
            if (LOOK == NEIGHBOUR)
                start = ask_neighbour(tile, line, total, start);
            else
                start = look_back<1>(tile, line, (Index)blocks * WIDTH, total, start);
            if (start.valid && threadIdx.x % EACH == 0) states_before[at] = start.state;
        }
        __syncthreads();  // separates the writes of states_before from their reads
    }

    const Outputs to = out.at(h, l, j);
    State state[VEC];
    bool valid = STARTS || tile.number > 0;
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
        State all = totals[0][slot + k];  // of what stands before the chunk, if anything does
        if (valid) {
            const State start = LOOK == ALONE ? starts.load(h, l, j + k) : states_before[slot + k];
            all = chunk > 0 ? combine(start, all) : start;
        }
        for (int c = 1; c < chunk; ++c) all = combine(all, totals[c][slot + k]);
        state[k] = place == 0 ? all : valid || chunk > 0 ? combine(all, before[k]) : before[k];
    }
    valid = valid || group > 0;
#pragma unroll
    for (int u = 0; u < ROWS; ++u) {
        Result results[VEC];
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            const State one = element(raw[u][k]);
            const Next next = {peek(u + 1 < ROWS ? raw[min(u + 1, ROWS - 1)][k] : behind[k]), begin + u + 1 < read};
            if (EXCLUSIVE) results[k] = result(state[k], raw[u][k], next);
            state[k] = valid || u > 0 ? combine(state[k], one) : one;
            if (!EXCLUSIVE) results[k] = result(state[k], raw[u][k], next);
        }
        if (exists && begin + u < n) to.store_across(results, begin + u);
    }
}

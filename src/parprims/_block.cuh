// Scans within a warp and a block, and what blocks of one launch tell each other: the tile counter and the look-back.
// Follows _common.cuh and _block_reduce.cuh.
//
// Every template takes an operator type `Op` with
//     Op::State                      a partial result, a plain structure of any size
//     Op::combine(earlier, later)    static and associative; it need not be commutative and needs no identity
// An Optional<State> that is not valid stands for nothing at all, for there is no identity.

using Index = long long;

// ---- Scans within a warp and a block --------------------------------------------------------------------------

// Combines every lane with all before it, LANES lanes being a unit; `lane` counts within the unit, whose lanes are
// `apart` from each other. The shuffle scan of Hillis and Steele, CACM 29(12), 1986.
template <class Op, int LANES>
DEVICE typename Op::State scan_lanes(typename Op::State mine, int lane, int apart = 1) {
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        const typename Op::State before = shuffle_up(mine, distance * apart);
        if (lane >= distance) mine = Op::combine(before, mine);
    }
    return mine;
}

// Returns the combination of the totals of all warps before this one, and makes `total`, which all lanes of a warp have
// alike, that of the whole block. `totals` is shared memory that nobody else uses before all threads have returned.
template <class Op, int WARPS>
DEVICE Optional<typename Op::State> scan_warps(typename Op::State& total, typename Op::State (&totals)[WARPS]) {
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    if (lane == 0) totals[warp] = total;
    __syncthreads();  // separates the writes of totals from their reads
    const typename Op::State up_to = scan_lanes<Op, WARPS>(totals[lane % WARPS], lane % WARPS);
    const Optional<typename Op::State> before = {shuffle(up_to, warp > 0 ? warp - 1 : 0), warp > 0};
    total = shuffle(up_to, WARPS - 1);
    return before;
}

// ---- The tile counter -----------------------------------------------------------------------------------------

// A block draws the number of its tile when it starts. So a tile that waits for tiles of lower numbers waits for blocks
// that have started, and the launch makes progress in whatever order the device starts blocks.
struct Ticket {
    unsigned long long drawn;

    DEVICE unsigned number() const { return (unsigned)(drawn & 0x7fffffffull); }
    // Counts the launches that used the counter, from 1 on.
    DEVICE unsigned long long launch() const { return (drawn >> 31) + 1; }
};

// Returns one ticket of as many as `lines` of so many `tiles` have, the same to all threads of the block. The counter,
// which is zero before its first launch, holds the number of launches above 31 bits of tickets drawn; the block that
// draws the last ticket counts one launch more. (It would take 2^33 launches to see a launch's number again.)
DEVICE Ticket draw_ticket(ulonglong2* counter, unsigned lines, unsigned tiles) {
    __shared__ unsigned long long drawn;
    if (threadIdx.x == 0) {
        const unsigned long long tickets = (unsigned long long)lines * tiles;
        drawn = atomicAdd(&counter->x, 1ull);
        if ((drawn & 0x7fffffffull) == tickets - 1) atomicAdd(&counter->x, 0x80000000ull - tickets);
    }
    __syncthreads();  // separates the write of drawn from its reads
    return {drawn};
}

// ---- States that cross from block to block --------------------------------------------------------------------

// A slot holds a state in words of 16 bytes, 8 of payload and 8 of flag, which move as one: a word whose flag is seen is
// a word that has arrived, and no fence is needed. A state of several words has arrived when all of them have. The flag
// is the number of the launch, so that what an earlier launch left is not mistaken.
template <class State>
struct StateSlots {
    static constexpr int WORDS = (sizeof(State) + 7) / 8;
    ulonglong2* first;
    unsigned long long flag;

    DEVICE StateSlots at(Index slot) const { return {first + slot * WORDS, flag}; }

    DEVICE void publish(const State& state) const {
        unsigned long long words[WORDS] = {};
        memcpy(words, &state, sizeof(State));
#pragma unroll
        for (int word = 0; word < WORDS; ++word)
            asm volatile("{ .reg .b128 w; mov.b128 w, {%1, %2}; st.relaxed.gpu.b128 [%0], w; }" ::"l"(first + word),
                         "l"(words[word]), "l"(flag)
                         : "memory");
    }

    // Tells whether a state has arrived; leaves `state` alone if not.
    DEVICE bool poll(State& state) const {
        unsigned long long words[WORDS], flags[WORDS];
#pragma unroll
        for (int word = 0; word < WORDS; ++word)
            asm volatile("{ .reg .b128 w; ld.relaxed.gpu.b128 w, [%2]; mov.b128 {%0, %1}, w; }"
                         : "=l"(words[word]), "=l"(flags[word])
                         : "l"(first + word)
                         : "memory");
        bool arrived = true;
#pragma unroll
        for (int word = 0; word < WORDS; ++word) arrived = arrived && flags[word] == flag;
        if (arrived) memcpy(&state, words, sizeof(State));
        return arrived;
    }
};

// ---- What stands before a tile --------------------------------------------------------------------------------

// The scratch of a launch whose lines are cut into tiles: the tile counter, then a slot for every tile of every line,
// then one for every group of 32 tiles (look_back_bytes of _block.py).
constexpr int COUNTER_WORDS = 8;

template <class State>
struct TileStates {
    StateSlots<State> slots;  // the first
    Index lines;
    unsigned tiles;  // of a line

    DEVICE StateSlots<State> of_tiles(Index line) const { return slots.at(line * tiles); }
    DEVICE StateSlots<State> of_groups(Index line) const {
        return slots.at(lines * tiles + line * ((tiles + WARP_SIZE - 1) / WARP_SIZE));
    }
};

template <class State>
DEVICE StateSlots<State> first_slot(ulonglong2* scratch, const Ticket& ticket) {
    return {scratch + COUNTER_WORDS, ticket.launch()};
}

// Chained scan: waits for what stands before tile `number` of a line, which the tile before publishes, and publishes
// what stands before the next. It is enough where the tile before is nearly always done, for tiles are drawn across
// many lines. One thread calls it. `start` is what stands before the line.
template <class Op>
DEVICE Optional<typename Op::State> chain(const TileStates<typename Op::State>& states, Index line, unsigned number,
                                          const typename Op::State& total, Optional<typename Op::State> start) {
    const auto slots = states.slots.at(line * states.tiles + number);
    if (number > 0) {
        start.valid = true;
        while (!slots.at(-1).poll(start.state)) {
        }
    }
    if (number + 1 < states.tiles) slots.publish(start.valid ? Op::combine(start.state, total) : total);
    return start;
}

// Decoupled look-back: returns to warp 0 what stands before tile `number` of a line, and publishes what the tiles after
// it need. WARPS warps call it, all threads with the same arguments.
//
// Tiles are in groups of 32, and every tile publishes its total. Warp w waits for the totals of the w-th group before
// the tile's own, one a lane, and combines them; warp 0 does so with those of the own group that stand before the
// tile. The last tile of a group publishes the group's prefix: the combination of everything up to its end. So what
// stands before a tile is the last prefix that is there already, combined from left to right with the groups since and
// the tiles since: the same bits, whichever group that was.
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016.
constexpr int MOST_LOOKING = 4;  // warps that look back; 2, 8 and 16 are no faster on an H200

template <class Op, int WARPS>
DEVICE Optional<typename Op::State> look_back(const TileStates<typename Op::State>& states, Index line, unsigned number,
                                              const typename Op::State& total, Optional<typename Op::State> start) {
    using State = typename Op::State;
    constexpr int LOOKING = WARPS < MOST_LOOKING ? WARPS : MOST_LOOKING;
    const int lane = threadIdx.x % WARP_SIZE, warp = WARPS == 1 ? 0 : threadIdx.x / WARP_SIZE;
    const int place = number % WARP_SIZE;
    const unsigned group = number / WARP_SIZE;
    const bool last = number + 1 == states.tiles, closes = place == WARP_SIZE - 1 && !last;
    const auto totals = states.of_tiles(line), prefixes = states.of_groups(line);
    if (warp == 0 && lane == 0 && !last) totals.at(number).publish(total);

    State mine = total, prefix = total;
    const bool looks = warp == 0 && lane < LOOKING && (unsigned)lane < group;
    bool seen = false;
    if (warp < LOOKING && (unsigned)warp <= group) {
        bool arrived = warp == 0 && lane >= place;
        do {
            if (!arrived) arrived = totals.at((Index)(group - warp) * WARP_SIZE + lane).poll(mine);
            if (looks && !seen) seen = prefixes.at((Index)group - 1 - lane).poll(prefix);
        } while (!__all_sync(0xffffffffu, arrived));
        mine = scan_lanes<Op, WARP_SIZE>(mine, lane);  // in warp 0 lane `place` has the tile's own total in it
    }
    __shared__ State groups[LOOKING];
    if (LOOKING > 1) {
        if (warp < LOOKING && lane == WARP_SIZE - 1) groups[warp] = mine;
        __syncthreads();  // separates the writes of groups from their reads
    }
    if (warp == 0) {
        if (group > 0) {
            unsigned there;
            while ((there = __ballot_sync(0xffffffffu, seen)) == 0)
                if (looks) seen = prefixes.at((Index)group - 1 - lane).poll(prefix);
            int since = __ffs(there) - 1;
            start = {shuffle(prefix, since), true};
            if (LOOKING > 1)
                for (; since > 0; --since) start.state = Op::combine(start.state, groups[since]);
        }
        if (closes && lane == place) prefixes.at(group).publish(start.valid ? Op::combine(start.state, mine) : mine);
        if (place > 0) {
            const State before = shuffle(mine, place - 1);
            start = {start.valid ? Op::combine(start.state, before) : before, true};
        }
    }
    return start;
}

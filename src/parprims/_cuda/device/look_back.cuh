// Scans across the blocks of a launch: tile counter, chained scan and decoupled look-back. Operators are as in
// block.cuh; an Optional<State> that is not valid means "no elements", in place of an identity.

#include "block.cuh"
#include "common.cuh"

// ---- The tile counter -----------------------------------------------------------------------------------------

// A block draws the number of its tile when it starts. So all tiles of lower numbers belong to blocks that have
// started, and a tile can wait for them without deadlock, in whatever order the device starts blocks.
struct Ticket {
    unsigned long long drawn;

    DEVICE unsigned number() const { return (unsigned)(drawn & 0x7fffffffull); }
    // The number of this launch among all that used the counter, from 1 on.
    DEVICE unsigned long long launch() const { return (drawn >> 31) + 1; }
};

// Draws one of lines * tiles tickets for the block and returns it to all threads. The counter is zero before its first
// launch. Its lower 31 bits count the tickets drawn in this launch, its upper 33 bits count launches. The block that
// draws the last ticket resets the lower bits and adds one launch. (A launch's number recurs after 2^33 launches.)
// `drawn` is shared memory.
DEVICE Ticket draw_ticket(ulonglong2* counter, unsigned lines, unsigned tiles, unsigned long long& drawn) {
    if (threadIdx.x == 0) {
        const unsigned long long tickets = (unsigned long long)lines * tiles;
        drawn = atomicAdd(&counter->x, 1ull);
        if ((drawn & 0x7fffffffull) == tickets - 1) atomicAdd(&counter->x, 0x80000000ull - tickets);
    }
    __syncthreads();  // separates the write of drawn from its reads
    return {drawn};
}

// ---- States published from block to block ---------------------------------------------------------------------

// A slot holds a state as words of 16 bytes, 8 of payload and 8 of flag, each stored and loaded by one instruction. A
// word whose flag is set has arrived whole, so no fence is needed. A state has arrived when all its words have. The
// flag is the number of the launch, so that a state left by an earlier launch is not taken for a new one.
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

    // Returns whether the state has arrived. Writes `state` only if so.
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

    // Waits until the state has arrived, and writes it to `state`.
    DEVICE void wait(State& state) const {
        while (!poll(state)) {
        }
    }
};

// ---- The prefix of a tile -------------------------------------------------------------------------------------

// The scratch of a launch whose lines are cut into tiles: the tile counter, one slot for every tile of every line, and
// one slot for every group of 32 tiles. Its size is look_back_bytes of look_back.py.
constexpr int COUNTER_WORDS = 8;

template <class State>
struct TileStates {
    StateSlots<State> slots;  // the slots of line 0
    Index lines;
    unsigned tiles;  // in a line

    DEVICE StateSlots<State> of_tiles(Index line) const { return slots.at(line * tiles); }
    DEVICE StateSlots<State> of_groups(Index line) const {
        return slots.at(lines * tiles + line * ((tiles + WARP_SIZE - 1) / WARP_SIZE));
    }

    // Publishes the aggregate of tile `number` of a line, for which later tiles of the line wait. One thread calls it.
    DEVICE void publish(Index line, unsigned number, const State& total) const {
        if (number + 1 < tiles) of_tiles(line).at(number).publish(total);
    }
};

template <class State>
DEVICE StateSlots<State> first_slot(ulonglong2* scratch, const Ticket& ticket) {
    return {scratch + COUNTER_WORDS, ticket.launch()};
}

// Chained scan: waits until the previous tile publishes the exclusive prefix of tile `number` of a line, and publishes
// the exclusive prefix of the next tile. This suffices if tiles are drawn across many lines: then the previous tile is
// nearly always done. One thread calls it. `total` is the tile's aggregate, `start` the prefix of the line.
template <class Op>
DEVICE Optional<typename Op::State> chain(const TileStates<typename Op::State>& states, Index line, unsigned number,
                                          const typename Op::State& total, Optional<typename Op::State> start) {
    const auto slots = states.slots.at(line * states.tiles + number);
    if (number > 0) {
        start.valid = true;
        slots.at(-1).wait(start.state);
    }
    if (number + 1 < states.tiles) slots.publish(start.valid ? Op::combine(start.state, total) : total);
    return start;
}

// Decoupled look-back: returns the exclusive prefix of tile `number` of a line to warp 0. `total` is the aggregate of
// the tile, which has been published, and `start` the prefix of the line. All threads of WARPS warps call it, with the
// same arguments. `groups` is shared memory.
//
// Tiles are in groups of 32. The last tile of a group publishes the group's inclusive prefix. Warp 0 waits for the
// aggregates of the earlier tiles of this tile's group, one per lane, and scans them. Warp w > 0 does this for all
// tiles of the w-th group before. The exclusive prefix of the tile is then combined from left to right: the latest
// group prefix that has arrived, the aggregates of the groups after it, the aggregates of the earlier tiles of this
// tile's group. The bits do not depend on which group prefix has arrived.
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016.
// Of WARPS warps so many look back: 2, 8 and 16 are no faster on an H200.
constexpr int looking_warps(int warps) { return warps < 4 ? warps : 4; }

template <class Op, int WARPS, int LOOKING>
DEVICE Optional<typename Op::State> look_back(const TileStates<typename Op::State>& states, Index line, unsigned number,
                                              const typename Op::State& total, Optional<typename Op::State> start,
                                              typename Op::State (&groups)[LOOKING]) {
    static_assert(LOOKING == looking_warps(WARPS), "see above");
    using State = typename Op::State;
    const int lane = threadIdx.x % WARP_SIZE, warp = WARPS == 1 ? 0 : threadIdx.x / WARP_SIZE;
    const int place = number % WARP_SIZE;
    const unsigned group = number / WARP_SIZE;
    const bool last = number + 1 == states.tiles, closes = place == WARP_SIZE - 1 && !last;
    const auto totals = states.of_tiles(line), prefixes = states.of_groups(line);

    State mine = total, prefix = total;
    const bool looks = warp == 0 && lane < LOOKING && (unsigned)lane < group;
    bool seen = false;
    if (warp < LOOKING && (unsigned)warp <= group) {
        bool arrived = warp == 0 && lane >= place;
        do {
            if (!arrived) arrived = totals.at((Index)(group - warp) * WARP_SIZE + lane).poll(mine);
            if (looks && !seen) seen = prefixes.at((Index)group - 1 - lane).poll(prefix);
        } while (!__all_sync(ALL_LANES, arrived));
        mine = scan_lanes<Op, WARP_SIZE>(mine, lane);  // in warp 0, lane `place` also has the tile's own aggregate
    }
    if (LOOKING > 1) {
        if (warp < LOOKING && lane == WARP_SIZE - 1) groups[warp] = mine;
        __syncthreads();  // separates the writes of groups from their reads
    }
    if (warp == 0) {
        if (group > 0) {
            unsigned there;
            while ((there = __ballot_sync(ALL_LANES, seen)) == 0)
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

// The tiles of scans along lines: how a block draws its tile, gets the state before it, and goes over its elements.
//
// A `Scan` is described in scan.cu, views in view.cuh, the waiting of tiles for each other in look_back.cuh.

#include "block.cuh"
#include "common.cuh"
#include "look_back.cuh"

// ---- The tile of a block --------------------------------------------------------------------------------------

// The source of a tile's prefix, the state before its first element.
//     ALONE        none: the line has no other tile
//     SERIAL       the previous tile in the same block: a block goes along a part of the line, and loads a tile while
//                  it works on the previous one. The prefix of a part comes from the block of the previous part, nearly
//                  always in time, because parts are drawn across the lines. For so many lines that each block may have
//                  a part of its own
//     CHAINED      the previous tile, which is nearly always done, because tiles are drawn across the lines
//     LOOK_BACK    all previous tiles; for so few lines that many tiles of one line are in flight
enum Carry { ALONE, SERIAL, CHAINED, LOOK_BACK };

template <class State>
struct Tile {
    unsigned line, number;
    StateSlots<State> slots;
    unsigned order;  // the number of tiles drawn before
};

// Returns the tile of this block to all its threads. With SERIAL, a part of a line counts as a tile. `drawn` is shared
// memory.
template <class State, Carry CARRY>
DEVICE Tile<State> draw_tile(ulonglong2* scratch, unsigned lines, unsigned tiles, unsigned long long& drawn) {
    if (CARRY == ALONE) return {blockIdx.x, 0u, {nullptr, 0}, blockIdx.x};
    const Ticket ticket = draw_ticket(scratch, lines, tiles, drawn);
    const unsigned order = ticket.number();
    const unsigned number = CARRY == LOOK_BACK ? order % tiles : order / lines;
    const unsigned line = CARRY == LOOK_BACK ? order / tiles : order % lines;
    return {line, number, first_slot<State>(scratch, ticket), order};
}

// Calls visit(line, number) for the tile that is drawn `ahead` tiles after this one, if there is one.
template <Carry CARRY, class State, class Visit>
DEVICE void visit_later_tile(const Tile<State>& tile, unsigned ahead, unsigned lines, unsigned tiles,
                             const Visit& visit) {
    const unsigned order = tile.order + ahead;
    if (ahead == 0 || order >= lines * tiles) return;
    visit(CARRY == CHAINED ? order % lines : order / tiles, CARRY == CHAINED ? order / lines : order % tiles);
}

// A thread's line, and whether it has elements. LANES threads serve a line: with fewer than a warp, or one warp, the
// blocks of THREADS threads have the lines in turn. Threads after the last line repeat it, so that whole warps shuffle,
// and store nothing. With more threads, `drawn` is the line of the block's tile.
struct OwnLine {
    Index line;
    bool exists;
};
template <int THREADS, int LANES>
DEVICE OwnLine own_line(unsigned drawn, Index lines) {
    if (LANES > WARP_SIZE) return {drawn, true};
    const Index line = ((Index)blockIdx.x * THREADS + threadIdx.x) / LANES;
    return {line < lines ? line : lines - 1, line < lines};
}

// ---- The state before a tile ----------------------------------------------------------------------------------

// Returns to all threads the state before tile `number` of a line: CHAINED from the tile before, or by LOOK_BACK from
// all tiles before. `total` is the tile's aggregate, which with LOOK_BACK has been published, and `start` the state
// before the line. `before` and `groups` are shared memory.
template <class Op, Carry CARRY, int WARPS, int LOOKING>
DEVICE Optional<typename Op::State> wait_for_state(const TileStates<typename Op::State>& states, Index line,
                                                   unsigned number, const typename Op::State& total,
                                                   Optional<typename Op::State> start, typename Op::State& before,
                                                   typename Op::State (&groups)[LOOKING]) {
    const bool valid = start.valid || number > 0;
    if (CARRY == LOOK_BACK)
        start = look_back<Op, WARPS>(states, line, number, total, start, groups);
    else if (threadIdx.x == 0)
        start = chain<Op>(states, line, number, total, start);
    if (threadIdx.x == 0 && start.valid) before = start.state;
    __syncthreads();  // separates the write of the state from its reads
    start.valid = valid;
    if (valid) start.state = before;
    return start;
}

// ---- The elements of a tile -----------------------------------------------------------------------------------

// The Peek of the next element of the line, if there is a next element.
template <class Peek>
struct Next {
    Peek peek;
    bool exists;
};

template <class Scan>
DEVICE void read_as_first(typename Scan::Raw& raw) {
    if constexpr (Scan::IGNORES_FIRST) raw.x0 = {};
}

// Returns the results of one element, and takes it into the state: `valid` says whether there is a state before it.
template <class Scan>
DEVICE typename Scan::Result scan_element(typename Scan::Op::State& state, bool valid, const typename Scan::Raw& raw,
                                          const Next<typename Scan::Peek>& next) {
    using Op = typename Scan::Op;
    const typename Op::State one = Scan::element(raw);
    if constexpr (Scan::EXCLUSIVE) {
        const typename Scan::Result result = Scan::result(state, raw, next);
        state = valid ? Op::combine(state, one) : one;
        return result;
    } else {
        state = valid ? Op::combine(state, one) : one;
        return Scan::result(state, raw, next);
    }
}

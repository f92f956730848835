// The tiles that lines are cut into for a scan: which one a block has, and how it gets its prefix.

#include "common.cuh"
#include "look_back.cuh"

// What a result knows of the next element, if there is one.
template <class Peek>
struct Next {
    Peek peek;
    bool exists;
};

// How a tile gets its prefix, that is the state before its first element.
//     ALONE        the line has no other tile
//     SERIAL       from the previous tile in the same block, which began to load this tile meanwhile: a block goes along
//                  a part of the line. The prefix of the part comes from the block that has the previous part, and is
//                  nearly always there, because parts are drawn across the lines; for so many lines that each block may
//                  have a part of its own
//     CHAINED      from the previous tile, which is nearly always done, because tiles are drawn across the lines
//     LOOK_BACK    from all previous tiles; for so few lines that many tiles of one line are in flight
enum Carry { ALONE, SERIAL, CHAINED, LOOK_BACK };

template <class State>
struct Tile {
    unsigned line, number;
    StateSlots<State> slots;
    unsigned order;  // how many are drawn before
};

// Returns the tile of this block to all its threads, or with SERIAL the part of a line, as if that were a tile.
template <class State, Carry CARRY>
DEVICE Tile<State> draw_tile(ulonglong2* scratch, unsigned lines, unsigned tiles) {
    if (CARRY == ALONE) return {blockIdx.x, 0u, {nullptr, 0}, blockIdx.x};
    const Ticket ticket = draw_ticket(scratch, lines, tiles);
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

template <class Scan>
DEVICE void read_as_first(typename Scan::Raw& raw) {
    if constexpr (Scan::IGNORES_FIRST) raw.x0 = {};
}

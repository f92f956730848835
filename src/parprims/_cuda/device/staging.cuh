// Vectors that lanes copy for each other. WIDTH lanes copy ROUNDS x WIDTH adjacent vectors of VEC elements through
// shared memory. There each lane then has ROUNDS adjacent vectors. A lane copies every WIDTH-th vector, so that
// adjacent lanes access adjacent memory.

#include "common.cuh"

// Calls copy(r, i, past) for the vector that a lane copies in each round r, which begins with element i. If all
// elements from `begin` on are before the end, `past` is the end of the vector: the compiler leaves out the test for
// the end.
template <int ROUNDS, int WIDTH, int VEC, class Copy>
DEVICE void each_vector(int lane, long long begin, long long past, const Copy& copy) {
    const long long first = begin + lane * VEC;
    if (begin + ROUNDS * WIDTH * VEC <= past) {
#pragma unroll 4
        for (int r = 0; r < ROUNDS; ++r) copy(r, first + r * WIDTH * VEC, first + r * WIDTH * VEC + VEC);
    } else {
#pragma unroll 1
        for (int r = 0; r < ROUNDS; ++r) copy(r, first + r * WIDTH * VEC, past);
    }
}

// Slots of these vectors in shared memory. Adjacent lanes read slots that are ROUNDS apart. If ROUNDS is even, an empty
// slot after every GAP slots avoids bank conflicts.
template <int ROUNDS, int WIDTH, int GAP>
struct Slots {
    static constexpr bool GAPS = ROUNDS % 2 == 0;
    unsigned first, lane;  // the first vector of the WIDTH lanes, a multiple of WIDTH x ROUNDS

    static constexpr int count(int vectors) { return GAPS ? vectors + vectors / GAP : vectors; }
    static DEVICE int slot(unsigned vector) { return GAPS ? vector + vector / GAP : vector; }

    // `copied` is the slot of the vector that the lane copies in round r, `own` the slot of its own vector r. Where
    // possible, the steps from round to round are constants.
    DEVICE int copied(int r) const {
        if (!GAPS || WIDTH % GAP == 0) return slot(first + lane) + r * (GAPS ? WIDTH + WIDTH / GAP : WIDTH);
        return slot(first + r * WIDTH + lane);
    }
    DEVICE int own(int r) const {
        if (!GAPS || ROUNDS % GAP == 0) return slot(first + lane * ROUNDS) + r + (GAPS ? r / GAP : 0);
        return slot(first + lane * ROUNDS + r);
    }
};

// Shared by the kernels for long tridiagonal systems, which do not fit in one block. A few launches solve them, some in
// phases (phases.cuh). A launch leaves the systems that it does not solve to later ones, on lists. A launch whose list
// is empty returns at once.

#include "common.cuh"
#include "phases.cuh"
#include "tridiagonal_common.cuh"

// The record of a system that launches share.
struct SystemState {
    // The largest backward errors of the first and the second solution, as bits.
    unsigned long long errors[2];
    // Whether the system is not diagonally dominant, is to be refined, and has unknowns that are not finite.
    unsigned exchange, refine, not_finite;
    // Bits: 1, the first solution has too large an error; 2, refining windows in registers did not fix it; 4, refining
    // windows by the stable solver did not fix it, or does not pay.
    unsigned unsolved;
    // The number of warps with many rows with a large error; the numbers of windows that the first and the second phase
    // did not fix.
    unsigned failures[3];
};

// Returns the least length of an array of at least `count` numbers that is made of whole vectors of 16 bytes.
template <class T>
DEVICE Index whole_vectors(Index count) {
    return (count + Vector<T>::PARTS - 1) / Vector<T>::PARTS * Vector<T>::PARTS;
}

// The number of systems that a launch works on: the systems on a list or, if there is none, all.
DEVICE Index count_due(const Worklist& due, Index systems) { return due.counts ? (Index)*due.counts : systems; }
DEVICE Index due_system(const Worklist& due, Index at) { return due.counts ? (Index)due.list[at] : at; }

// Sets a bit of `unsolved` and, unless the system already has one of the bits `known`, puts the system on a list.
DEVICE void leave_system(const Worklist& left, Index system, SystemState& state, unsigned bit, unsigned known) {
    if ((atomicOr(&state.unsolved, bit) & known) == 0) left.list[atomicAdd(&left.counts[0], 1u)] = (unsigned)system;
}
DEVICE void leave_system(const Worklist& left, Index system, SystemState& state, unsigned bit) {
    leave_system(left, system, state, bit, bit);
}

// Calls each(system, part) for this block's parts of the systems that are due. A system has `parts` parts.
template <class Due, class Each>
DEVICE void for_each_part(Index systems, Index parts, Due due, Each each) {
#pragma unroll 1
    for (Index number = blockIdx.x; number < systems * parts; number += gridDim.x) {
        const Index system = quotient(number, parts);
        if (due(system))
            each(system, number - system * parts);
        else  // go to this block's last part of the system
            number += quotient((system + 1) * parts - 1 - number, gridDim.x) * gridDim.x;
    }
}

// The number of this thread's warp, and whether a condition holds in any thread of the block. The shuffle and the vote
// tell the compiler that all lanes of a warp have one result. Otherwise it would compile shuffles in a branch on the
// result twice: for whole warps, and for lanes that arrive one by one.
DEVICE int warp_number() { return __shfl_sync(ALL_LANES, (int)threadIdx.x / 32, 0); }
DEVICE bool any_of_block(bool mine) { return __any_sync(ALL_LANES, __syncthreads_or(mine)); }

// Systems are reduced level by level until one block can solve the rest, the top level. The given level has number 0. A
// level says how many parts a system has there, one for each block, and which level is the next.
template <class Level>
DEVICE int count_levels_below_top(Level level) {
    int top = 0;
#pragma unroll 1
    for (; level.parts() > 1; level = level.next()) ++top;
    return top;
}
template <class Level>
DEVICE Level level_above(Level level, int number) {
#pragma unroll 1
    for (; number > 0; --number) level = level.next();
    return level;
}

enum LevelStep { REDUCE, SOLVE, EXPAND };

// Solves reduced systems in phases: the levels below the top are reduced, the top is solved, the levels below it are
// expanded. Calls each(step, level, system, part) for this block's parts of the first `systems` systems.
template <class Level, class Each>
DEVICE void for_each_reduced_part(PhaseCounters* counters, const Level& lowest, Index systems, Each each) {
    const int top = count_levels_below_top(lowest);
    const auto level_of = [&](int phase) { return level_above(lowest, phase <= top ? phase : 2 * top - phase); };
    const auto length = [&](int phase) { return systems * level_of(phase).parts(); };
    for_each_item(counters, 2 * top + 1, length, [&](int phase, Index item) {
        const Level mine = level_of(phase);
        const Index system = quotient(item, mine.parts());
        each(phase < top ? REDUCE : phase == top ? SOLVE : EXPAND, mine, system, item - system * mine.parts());
    });
}

// A window of a system: adjacent rows that are refined together, while all other rows stay as they are. Window 0 ends
// and window 1 begins near row `shift`.
struct Window {
    Index low, high;    // its rows
    Index middle, end;  // the range of rows that are at least `far` rows from an end, unless the system ends there too

    DEVICE Window(Index rows, Index at, Index length, Index shift, int granularity, int far) {
        low = at > 0 ? shift + (at - 1) * length : 0, high = at > 0 ? low + length : shift / granularity * granularity;
        middle = low > 0 ? low + far : 0, end = high < rows ? high - far : rows;
        high = min(high, rows);
    }
    static DEVICE Index count(Index rows, Index length, Index shift) {
        return 1 + (max((Index)0, rows - shift) + length - 1) / length;
    }
    // Returns whether all rows of a thread are in the middle.
    DEVICE bool is_in_middle(Index begin, int count) const {
        return count > 0 && begin >= middle && begin + count <= end;
    }
};

// Returns whether one of the first phases found so many errors that refining windows does not pay.
DEVICE bool has_many_failures(const SystemState& state, int phases, Index rows) {
    bool many = false;
#pragma unroll 1
    for (int k = 0; k < phases; ++k) many = many || state.failures[k] > 8 + rows / 16384;
    return many;
}

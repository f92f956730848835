// Searches by a thread, by a warp and for a block.

#include "common.cuh"

// Returns the first of the places first, first + 1, ..., past - 1 for which is_before(place) does not hold, or `past`: it
// holds up to some place, and not after it. A thread calls it by itself.
template <class IsBefore>
DEVICE Index first_not_before(Index first, Index past, const IsBefore& is_before) {
    while (first < past) {
        const Index middle = first + (past - first) / 2;
        if (is_before(middle))
            first = middle + 1;
        else
            past = middle;
    }
    return first;
}

constexpr int HALF_WARP = 16;

// Returns the number of places 0, 1, ..., count - 1 for which is_before(place) holds: it holds up to some place, and
// not after it. A warp calls it together. Its two halves search each for themselves. In every step 16 lanes look at one
// place each, so that a seventeenth of the places is left.
template <class IsBefore>
DEVICE Index count_before(Index count, const IsBefore& is_before) {
    const int lane = threadIdx.x % HALF_WARP, half = threadIdx.x % WARP_SIZE / HALF_WARP;
    Index found = 0;
    while (__any_sync(ALL_LANES, count > 0)) {
        const Index step = count / (HALF_WARP + 1) + 1;
        const Index at = step * (lane + 1) - 1;
        const bool before = at < count && is_before(found + at);
        const int steps = __popc(__ballot_sync(ALL_LANES, before) >> half * HALF_WARP & 0xffffu);
        found += steps * step;
        count = min(count, (steps + 1) * step - 1) - steps * step;
    }
    return found;
}

// Finds the number of places before each of two limits, by the first warp of a block: of places 0, 1, ...,
// count_of(limit) - 1 those for which is_before(place, limit) holds, as in count_before. `bounds` is shared memory.
template <class CountOf, class IsBefore>
DEVICE void find_bounds(Index (&bounds)[2], Index lower, Index upper, const CountOf& count_of,
                        const IsBefore& is_before) {
    if (threadIdx.x >= WARP_SIZE) return;
    const Index limit = threadIdx.x < HALF_WARP ? lower : upper;
    const Index found = count_before(count_of(limit), [&](Index at) { return is_before(at, limit); });
    if (threadIdx.x % HALF_WARP == 0) bounds[threadIdx.x / HALF_WARP] = found;
}

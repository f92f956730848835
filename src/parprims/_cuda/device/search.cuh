// Searches by a warp.

#include "common.cuh"

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

// Elements with the numbers of their segments, in the lanes of a warp.

#include "common.cuh"

// Lanes combine elements with each other only if the elements of a warp have, on average, at most this many runs of
// equal segments.
constexpr int MOST_RUNS = 16;

// Returns the number of the segment that an id names, or -1 if there is no such segment. Negative ids convert to large
// numbers here.
template <class Id>
DEVICE int segment_of(Id id, long long segments) {
    return (unsigned long long)id < (unsigned long long)segments ? (int)id : -1;
}

// Combines, in order, the elements of adjacent lanes that have one segment, if there are many such lanes. The first
// lane of each such run keeps its segment, the segments of the other lanes become -1. Every lane has MANY elements, and
// each is combined with the elements of that number in other lanes.
template <class Op, int MANY, class Element>
DEVICE void join_runs(Element* elements, int* segments) {
    const int lane = threadIdx.x % WARP_SIZE;
    unsigned firsts[MANY];  // the lanes in which runs begin
    int runs = 0;
#pragma unroll
    for (int k = 0; k < MANY; ++k) {
        const int before = __shfl_up_sync(ALL_LANES, segments[k], 1);
        firsts[k] = __ballot_sync(ALL_LANES, lane == 0 || before != segments[k]);
        runs += __popc(firsts[k]);
    }
    if (runs > MANY * MOST_RUNS) return;
#pragma unroll
    for (int k = 0; k < MANY; ++k) {
        const unsigned behind = firsts[k] & ~((2u << lane) - 1);
        const int past = behind != 0 ? __ffs(behind) - 1 : WARP_SIZE;  // the first lane after the run
#pragma unroll
        for (int distance = 1; distance < WARP_SIZE; distance *= 2) {
            const Element later = shuffle_down(elements[k], distance);
            if (lane + distance < past) elements[k] = Op::combine(elements[k], later);
        }
        if ((firsts[k] >> lane & 1) == 0) segments[k] = -1;
    }
}

// Reductions and scans by one thread, by the lanes of a warp and by the warps of a block. All combine in the order of
// elements.
//
// Every template takes an operator type `Op` with
//     Op::State                      a partial result, a plain structure of any size
//     Op::combine(earlier, later)    static and associative; it need not be commutative and needs no identity
// A thread without elements has no partial result: its Optional is not valid and is left out.
//
// R. E. Ladner and M. J. Fischer, Parallel Prefix Computation, J. ACM 27(4), 1980: the in-order tree of shuffles.

#include "common.cuh"

// A state, or no state.
template <class State>
struct Optional {
    State state;
    bool valid;
};

template <class Op>
DEVICE void append(Optional<typename Op::State>& total, const typename Op::State& later) {
    total.state = total.valid ? Op::combine(total.state, later) : later;
    total.valid = true;
}

// ---- Reductions -----------------------------------------------------------------------------------------------

// Returns s[0] op s[1] op ... op s[N - 1], combined by a tree. Overwrites s.
template <class Op, int N>
DEVICE typename Op::State reduce_items(typename Op::State (&s)[N]) {
#pragma unroll
    for (int stride = 1; stride < N; stride *= 2)
#pragma unroll
        for (int at = 0; at + stride < N; at += 2 * stride) s[at] = Op::combine(s[at], s[at + stride]);
    return s[0];
}

// Lane 0 of every WIDTH lanes returns the combination of all of them, in order. Other lanes' results are meaningless.
template <class Op, int WIDTH>
DEVICE Optional<typename Op::State> reduce_lanes(Optional<typename Op::State> mine) {
#pragma unroll
    for (int distance = 1; distance < WIDTH; distance *= 2) {
        const Optional<typename Op::State> theirs = shuffle_down(mine, distance);
        if (theirs.valid) append<Op>(mine, theirs.state);
    }
    return mine;
}

// Thread 0 returns the combination, in order, of the values that lane 0 of every warp passes. `states` and `valid` are
// shared memory. They may be used for something else after the next barrier.
template <class Op, int WARPS>
DEVICE Optional<typename Op::State> reduce_warps(Optional<typename Op::State> mine, typename Op::State (&states)[WARPS],
                                                 bool (&valid)[WARPS]) {
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    __syncthreads();  // separates the reads below, in an earlier call, from the writes here
    if (lane == 0) {
        states[warp] = mine.state;
        valid[warp] = mine.valid;
    }
    __syncthreads();  // separates the writes above from the reads below
    Optional<typename Op::State> all = mine;
    if (warp == 0) {
        all.valid = lane < WARPS && valid[lane < WARPS ? lane : 0];
        if (all.valid) all.state = states[lane];
        all = reduce_lanes<Op, WARPS>(all);
    }
    return all;
}

// Combines N adjacent columns over the row groups of a block, in order. Group 0 gets the result. Thread t is in column
// t % COLUMNS of group t / COLUMNS % GROUPS. `states` and `is_valid` are shared memory.
template <class Op, int COLUMNS, int GROUPS, int THREADS, int N>
DEVICE void reduce_groups(typename Op::State (&total)[N], int group, bool valid, typename Op::State (&states)[THREADS][N],
                          bool (&is_valid)[THREADS]) {
#pragma unroll
    for (int distance = 1; distance < GROUPS; distance *= 2) {
        __syncthreads();  // separates the reads of the round before from the writes here
#pragma unroll
        for (int k = 0; k < N; ++k) states[threadIdx.x][k] = total[k];
        is_valid[threadIdx.x] = valid;
        __syncthreads();  // separates the writes above from the reads below
        const int other = threadIdx.x + distance * COLUMNS;
        if (group % (2 * distance) == 0 && group + distance < GROUPS && is_valid[other]) {
#pragma unroll
            for (int k = 0; k < N; ++k) total[k] = Op::combine(total[k], states[other][k]);
        }
    }
}

// ---- Scans ----------------------------------------------------------------------------------------------------

// Inclusive scan over units of LANES lanes. `lane` is the caller's number in its unit. Adjacent lanes of a unit are
// `apart` lanes of the warp from each other. The shuffle scan of Hillis and Steele, CACM 29(12), 1986.
template <class Op, int LANES>
DEVICE typename Op::State scan_lanes(typename Op::State mine, int lane, int apart = 1) {
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
        const typename Op::State before = shuffle_up(mine, distance * apart);
        if (lane >= distance) mine = Op::combine(before, mine);
    }
    return mine;
}

// Exclusive scan over the warps of a block. `total` is the warp's total, the same in all lanes, and becomes the total
// of the block. Returns the combination of the totals of all earlier warps. `totals` is shared memory. It must not be
// used for anything else before all threads have returned.
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

// The sum, as an operator of scan_lanes.
template <class T>
struct Sum {
    using State = T;
    static DEVICE T combine(T earlier, T later) { return earlier + later; }
};

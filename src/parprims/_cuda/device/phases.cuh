// Runs several phases in one launch. Each phase needs the results of the phases before it.
//
// The work of a phase is cut into items. They are numbered through all phases, and blocks take them in this order from
// a counter. A block whose item belongs to a later phase waits until all items of the phases before are done. Running
// blocks have taken all of these, and none of them waits for a later phase. So the launch ends, however few blocks run
// at a time. The counters are zero before a launch, and the last block to leave zeroes them again.

#include "common.cuh"

struct PhaseCounters {
    unsigned long long taken, apart[15];  // items that blocks have taken; `apart` separates this word from `done`
    unsigned long long done;              // items that are done
    unsigned left;                        // blocks that have left
};

// Calls each(phase, item) for the items that this block takes. Items are numbered from 0 in each phase. length(phase)
// returns the number of items of a phase, and is called when the phases before are done. All threads of a block call
// both. Returns true in one thread of the launch, in the block that leaves last. It may zero the counts that lengths
// depend on: other threads then ask for the length of the last phase at most, and leave whatever shorter length they
// get, as they have no item of it.
template <class Length, class Each>
DEVICE bool for_each_item(PhaseCounters* counters, int phases, Length length, Each each) {
    using Count = unsigned long long;
    __shared__ Count given;
    Count next = 0, begin = 0, end = length(0), finished = 0;
    if (threadIdx.x == 0) next = atomicAdd(&counters->taken, (Count)1);
    int phase = 0;
#pragma unroll 1
    while (true) {
        if (threadIdx.x == 0) given = next;
        __syncthreads();  // the number of the item is there for all
        const Count item = given;
        if (item >= end) {
            if (phase + 1 < phases) {
                __threadfence();  // what this thread wrote is visible before its block's items count as done
                __syncthreads();  // all threads of the block have passed the fence
                if (threadIdx.x == 0 && finished > 0) atomicAdd(&counters->done, finished);
                finished = 0;
            }
#pragma unroll 1
            while (item >= end && ++phase < phases) {
                if (threadIdx.x == 0)
                    while (read_current(&counters->done) < end) continue;
                __syncthreads();  // the phases before are done
                __threadfence();  // what they wrote is read after that
                begin = end, end += length(phase);
            }
            if (phase == phases) break;
        }
        if (threadIdx.x == 0) next = atomicAdd(&counters->taken, (Count)1);  // early: it takes a while
        each(phase, (long long)(item - begin));
        ++finished;
        __syncthreads();  // all have read the number of the item, and the shared memory is free for the next
    }
    bool last = false;
    if (threadIdx.x == 0) {
        last = atomicAdd(&counters->left, 1u) == gridDim.x - 1;
        if (last) counters->taken = counters->done = counters->left = 0;
    }
    return last;
}

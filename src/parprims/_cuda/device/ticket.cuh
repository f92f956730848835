// The last-block ticket: several blocks contribute to one result, and the block that finishes last completes it.
//
// Each block stores its partial result, then takes a ticket. The block that takes the last ticket sees the partial
// results of all others and combines them in a fixed order. So the result does not depend on the order in which blocks
// finish, and one launch is enough. The ticket wraps to zero by itself and is ready for the next launch.
//
// This is the scheme of NVIDIA's threadFenceReduction sample (M. Harris).

#include "common.cuh"

// Returns whether the calling threads are the last of `blocks` groups of threads to arrive at this ticket. `barrier`
// synchronizes the threads of one group, and `thread` is the caller's number in it. If it returns true, all that the
// threads of all groups wrote before they arrived can be read.
template <class Barrier>
DEVICE bool is_last_to_arrive(unsigned* ticket, long long blocks, int thread, const Barrier& barrier) {
    __shared__ bool last;
    __threadfence();  // this thread's partials are visible before its block's ticket is
    barrier();        // all threads of the block have passed the fence
    if (thread == 0) last = atomicInc(ticket, (unsigned)blocks - 1u) == (unsigned)blocks - 1u;
    barrier();        // separates the write of last from its reads
    __threadfence();  // partials are read after the ticket was
    return last;
}

// Returns whether the calling block is the last of `blocks` blocks to arrive at this ticket.
DEVICE bool is_last_to_arrive(unsigned* ticket, long long blocks) {
    return is_last_to_arrive(ticket, blocks, threadIdx.x, [] { __syncthreads(); });
}

// ---- Partial results for the last block: structures stored and loaded through L2, as 32-bit words ------------------

template <class T>
constexpr int WORDS_OF = (sizeof(T) + 3) / 4;

template <class T>
DEVICE void store_for_others(unsigned* memory, long long slot, const T& value) {
    unsigned words[WORDS_OF<T>] = {};
    memcpy(words, &value, sizeof(T));
#pragma unroll
    for (int word = 0; word < WORDS_OF<T>; ++word) __stcg(memory + slot * WORDS_OF<T> + word, words[word]);
}

template <class T>
DEVICE T load_of_others(const unsigned* memory, long long slot) {
    unsigned words[WORDS_OF<T>];
#pragma unroll
    for (int word = 0; word < WORDS_OF<T>; ++word) words[word] = __ldcg(memory + slot * WORDS_OF<T> + word);
    T value;
    memcpy(&value, words, sizeof(T));
    return value;
}

// The last-block ticket: several blocks work at one result, and the last of them to come finishes it.
//
// Each block stores its partial result, then takes a ticket. The block that draws the last ticket sees what all others
// stored and combines it in a fixed order, so that the result does not depend on the order in which blocks finish, and
// one launch is enough. The ticket wraps to zero by itself: the next launch finds it as this one did.
//
// This is the scheme of NVIDIA's threadFenceReduction sample (M. Harris).

// Tells the threads that `barrier` makes wait for each other whether theirs is the last of so many `blocks` to come to
// this ticket. `thread` is the number of the caller among them. A true answer means: what the threads of all the blocks
// wrote before they came can be read.
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

// The same for all threads of a block.
DEVICE bool is_last_to_arrive(unsigned* ticket, long long blocks) {
    return is_last_to_arrive(ticket, blocks, threadIdx.x, [] { __syncthreads(); });
}

// ---- What blocks leave for the last of them: structures that cross through L2, as whole words ---------------------

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

// Numbers of segments, one for each place along an axis: their conversion to a narrow type, and to offsets if they
// ascend.

#include "common.cuh"
#include "search.cuh"

// keys[i] = ids[i] if that is a number from 0 to count - 1, else count. A block takes THREADS x EACH places, and a
// thread begins EACH loads before it uses the first.
template <int THREADS, int EACH, class Id, class Key>
DEVICE void narrow_ids(const Id* ids, Key* keys, Index n, Index stride, Index count) {
    const Index begin = (Index)blockIdx.x * (THREADS * EACH) + threadIdx.x;
    Id own[EACH];
#pragma unroll
    for (int k = 0; k < EACH; ++k) own[k] = ids[min(begin + k * THREADS, n - 1) * stride];
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        const bool is_one = own[k] >= (Id)0 && (unsigned long long)own[k] < (unsigned long long)count;
        if (begin + k * THREADS < n) keys[begin + k * THREADS] = is_one ? (Key)own[k] : (Key)count;
    }
}

// offsets[s] is the number of ids less than s, of n ascending ids, for s from 0 to count. A block finds THREADS x EACH
// offsets: a warp searches for the first and the last of them, and each thread searches between these two. If ids do
// not ascend, offsets are any numbers from 0 to n.
template <int THREADS, int EACH, class Id, class Offset>
DEVICE void find_offsets(const Id* ids, Offset* offsets, Index n, Index stride, Index count) {
    const auto is_before = [&](Index at, Index segment) {
        const Id id = ids[at * stride];
        return id < (Id)0 || (unsigned long long)id < (unsigned long long)segment;
    };
    __shared__ Index bounds[2];
    const Index begin = (Index)blockIdx.x * (THREADS * EACH), last = min(count, begin + (THREADS * EACH - 1));
    find_bounds(bounds, begin, last, [&](Index) { return n; }, is_before);
    __syncthreads();  // separates the writes of bounds from their reads
    for (Index segment = begin + threadIdx.x; segment <= last; segment += THREADS) {
        const Index first = bounds[0], past = max(first, bounds[1]);
        offsets[segment] = (Offset)first_not_before(first, past, [&](Index at) { return is_before(at, segment); });
    }
}

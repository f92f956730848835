// Stable merge of two sorted arrays along the last axis, in one launch that reads and writes every element once. Needs
// _common.cuh, _sort.cu, _block_reduce.cuh, _block.cuh and _search.cuh.
//
// Template parameters:
//     THREADS    threads of a block
//     EACH       elements of the result that a thread finds; odd, so that threads reach shared memory without conflicts
//     VALUES     whether values move with their keys
//     Order      the keys and their order (see _sort.cu)
//     Value      an unsigned word as wide as a value
//
// A block makes a tile of THREADS x EACH elements of the result. The first d elements of the result are some i of the
// first array and d - i of the second; the search for i is one for the place where a diagonal crosses the "merge path".
// A warp searches for both ends of the tile in the arrays. All threads copy the tile's elements of both arrays to shared
// memory, where each searches for its own elements, and merges them one by one. Of equal elements those of the first
// array come first.
// If an array is not sorted, the result is some of the elements, and all places that are read are within the arrays.
//
// O. Green, R. McColl and D. A. Bader, GPU Merge Path, ICS 2012.

// Returns the number of elements of the first array among the first `diagonal` of the result, between `least` and `most`.
// Both arrays are given as functions of a place that return ordered keys.
template <class First, class Second>
DEVICE int split_by_thread(int diagonal, int least, int most, const First& first, const Second& second) {
    while (least < most) {
        const int middle = (least + most) / 2;
        if (second(diagonal - 1 - middle) < first(middle))
            most = middle;
        else
            least = middle + 1;
    }
    return least;
}

template <int THREADS, int EACH, bool VALUES, class Order, class Value>
DEVICE void merge_tiles(const typename Order::Key* keys1, const typename Order::Key* keys2, typename Order::Key* keys,
                        const Value* values1, const Value* values2, Value* values, Index n1, Index n2, unsigned tiles) {
    using Key = typename Order::Key;
    constexpr int TILE = THREADS * EACH;
    static_assert(TILE <= 1 << 16, "sources have 16 bits");
    __shared__ Key staged[TILE], merged[TILE];
    __shared__ unsigned short sources[VALUES ? TILE : 1];
    __shared__ Index bounds[2];
    const Index line = blockIdx.x / tiles, begin = (Index)(blockIdx.x % tiles) * TILE;
    const Index n = n1 + n2, past = min(n, begin + TILE);
    keys1 += line * n1;
    keys2 += line * n2;
    keys += line * n;
    if (threadIdx.x < WARP_SIZE) {
        const Index diagonal = threadIdx.x < HALF_WARP ? begin : past;
        const Index least = max((Index)0, diagonal - n2), most = min(diagonal, n1);
        const Index found = count_before(most - least, [&](Index at) {
            at += least;
            return !(sorting::ordered<Order>(keys2[diagonal - 1 - at]) < sorting::ordered<Order>(keys1[at]));
        });
        if (threadIdx.x % HALF_WARP == 0) bounds[threadIdx.x / HALF_WARP] = least + found;
    }
    __syncthreads();  // separates the writes of bounds from their reads
    const int size = (int)(past - begin);
    const Index from1 = bounds[0], from2 = begin - from1;
    const int of1 = (int)min((Index)size, max((Index)0, bounds[1] - from1)), of2 = size - of1;
    // The place of element `at` of the tile, first those of the first array, in its array.
    const auto place1 = [&](int at) { return min(from1 + at, n1 - 1); };
    const auto place2 = [&](int at) { return min(from2 + at - of1, n2 - 1); };
#pragma unroll 4
    for (int k = 0; k < EACH; ++k) {
        const int at = k * THREADS + threadIdx.x;
        if (at < size) copy_async(staged[at], at < of1 ? keys1[place1(at)] : keys2[place2(at)]);
    }
    wait_for_staged();
    __syncthreads();  // separates the copies of elements from their reads

    const auto first = [&](int at) { return sorting::ordered<Order>(staged[at]); };
    const auto second = [&](int at) { return sorting::ordered<Order>(staged[of1 + at]); };
    const int diagonal = min(size, (int)threadIdx.x * EACH);
    int i = split_by_thread(diagonal, max(0, diagonal - of2), min(diagonal, of1), first, second);
    int j = diagonal - i;
#pragma unroll
    for (int k = 0; k < EACH; ++k) {
        if (diagonal + k < size) {
            const bool takes_first = j >= of2 || (i < of1 && !(second(j) < first(i)));
            const int at = takes_first ? i++ : of1 + j++;
            merged[diagonal + k] = staged[at];
            if (VALUES) sources[diagonal + k] = (unsigned short)at;
        }
    }
    __syncthreads();  // separates the writes of results from their reads
#pragma unroll 4
    for (int k = 0; k < EACH; ++k) {
        const int at = k * THREADS + threadIdx.x;
        if (at < size) keys[begin + at] = merged[at];
    }
    if constexpr (VALUES) {
        values1 += line * n1;
        values2 += line * n2;
        values += line * n;
        constexpr int TOGETHER = 4;  // loads that a thread begins before it uses the first
        for (int k = 0; k < EACH; k += TOGETHER) {
            Value moved[TOGETHER];
#pragma unroll
            for (int u = 0; u < TOGETHER; ++u) {
                const int at = (k + u) * THREADS + threadIdx.x;
                if (k + u < EACH && at < size) {
                    const int source = sources[at];
                    moved[u] = source < of1 ? values1[place1(source)] : values2[place2(source)];
                }
            }
#pragma unroll
            for (int u = 0; u < TOGETHER; ++u) {
                const int at = (k + u) * THREADS + threadIdx.x;
                if (k + u < EACH && at < size) values[begin + at] = moved[u];
            }
        }
    }
}

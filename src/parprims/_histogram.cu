// Histogram: counts[b] is the number of x with edges[b] <= x < edges[b + 1], or the sum of their weights. The last bin
// includes its right edge. Elements outside all bins, and NaN, are ignored.
//
// Phases of count_bins, which counts elements:
//   1. Every block counts in a shared-memory histogram, in a grid-stride loop. The counters are integers, so atomic
//      additions give the same result in any order.
//   2. Blocks add their counters to totals in global memory, again by atomic additions of integers.
//   3. The last block (see _ticket.cuh) stores the totals as the result, and zeros them for the next launch.
//   If the bins do not fit in shared memory, elements are counted in the totals directly.
// Phases of sum_bins, which sums weights without atomic additions of floating-point numbers:
//   1. Every warp sums a contiguous run of the elements in a shared-memory histogram of its own. Lanes with equal bins
//      take turns, from the lowest lane to the highest.
//   2. Every block adds up the histograms of its warps in order, and stores the sums.
//   3. The last block adds up the sums of all blocks in order, and stores the result.
//   If the bins do not fit in shared memory, there are several groups of blocks. Each reads all elements and sums the
//   weights of one range of bins.
// Reproducibility: the elements of a warp and of a block depend only on the numbers of elements and bins, and so does
// the order of every sum of weights.
//
// C. Nugteren, G.-J. van den Braak, H. Corporaal and B. Mesman, High Performance Predictable Histogramming on GPUs,
// GPGPU-4, 2011.

namespace histogram {

using Index = long long;

// The edges of the bins, of type E; elements are converted to E and compared. EVEN promises that the edges have equal
// distances up to rounding. Then the bin is computed, and corrected by comparison with its edges. Otherwise it is found
// by binary search.
template <class E, bool EVEN>
struct Bins {
    const E* edges;
    int count;

    // Returns the bin of an element, or -1 if it is in none.
    template <class T>
    DEVICE int find(T element) const {
        const E x = ops::cast<E>(value(element)), first = edges[0], last = edges[count];
        if (!(x >= first && x <= last)) return -1;
        int bin;
        if constexpr (EVEN) {
            bin = (int)((x - first) / (last - first) * (E)count);
            bin = bin < 0 ? 0 : bin < count ? bin : count - 1;
            while (bin > 0 && x < edges[bin]) --bin;
            while (bin + 1 < count && x >= edges[bin + 1]) ++bin;
        } else {
            int low = 0, high = count;  // invariant: edges[low] <= x, and x < edges[high] or high == count
            while (high - low > 1) {
                const int middle = (low + high) / 2;
                if (x >= edges[middle])
                    low = middle;
                else
                    high = middle;
            }
            bin = low;
        }
        return bin;
    }
};

// Counts the elements of every bin. T, E and R are the types of elements, edges and result. SHARED tells whether a
// block counts in shared memory first. `totals` has a zero for every bin, and is zero again in the end.
template <class T, class E, class R, bool EVEN, bool SHARED>
DEVICE void count_bins(const T* x, const E* edges, R* counts, unsigned* ticket, unsigned long long* totals,
                       Index n, Index bins) {
    extern __shared__ __align__(16) unsigned counters[];
    const Bins<E, EVEN> all{edges, (int)bins};
    if constexpr (SHARED) {
        for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) counters[bin] = 0;
        __syncthreads();  // separates the zeros from the counting
    }
    const Index step = (Index)gridDim.x * blockDim.x;
    for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        const int bin = all.find(x[i]);
        if (bin < 0) continue;
        if constexpr (SHARED)
            atomicAdd(&counters[bin], 1u);
        else
            atomicAdd(&totals[bin], 1ull);
    }
    if constexpr (SHARED) {
        __syncthreads();  // separates the counting from the reads below
        for (int bin = threadIdx.x; bin < bins; bin += blockDim.x)
            if (counters[bin]) atomicAdd(&totals[bin], (unsigned long long)counters[bin]);
    }
    if (is_last_to_arrive(ticket, gridDim.x)) {
        for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) {
            counts[bin] = (R)__ldcg(&totals[bin]);
            totals[bin] = 0;
        }
    }
}

// Sums the weights of every bin. T, E, W and R are the types of elements, edges, weights and result, S is the type of
// the sums. A block has WARPS warps. Every group of `runs` blocks has `width` bins, and every block of it one run of
// the elements. `sums` has a place for every bin of every run.
template <class T, class E, class W, class S, class R, bool EVEN, int WARPS>
DEVICE void sum_bins(const T* x, const E* edges, const W* weights, R* result, unsigned* tickets, S* sums, Index n,
                     Index bins, Index width, Index runs) {
    extern __shared__ __align__(16) uint4 memory[];
    S* const histograms = reinterpret_cast<S*>(memory);
    const Bins<E, EVEN> all{edges, (int)bins};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Index group = blockIdx.x / runs, run = blockIdx.x % runs;
    const int first = (int)(group * width), here = (int)min(width, bins - group * width);
    for (int at = threadIdx.x; at < WARPS * here; at += blockDim.x) histograms[at] = S();
    __syncthreads();  // separates the zeros from the sums

    S* const own = histograms + warp * here;
    const Index each = (n + runs * WARPS - 1) / (runs * WARPS), begin = min(n, (run * WARPS + warp) * each);
    const Index end = min(n, begin + each);
    for (Index from = begin; from < end; from += 32) {
        const bool inside = from + lane < end;
        int bin = inside ? all.find(x[from + lane]) - first : -1;
        if (bin >= here) bin = -1;
        const S weight = inside ? ops::cast<S>(value(weights[from + lane])) : S();
        const unsigned equal = __match_any_sync(0xffffffffu, bin);
        const int turn = bin < 0 ? -1 : __popc(equal & ((1u << lane) - 1u));
        for (int now = 0; __any_sync(0xffffffffu, turn >= now); ++now) {
            if (turn == now) own[bin] = ops::add(own[bin], weight);
            __syncwarp();  // separates the turns of lanes with equal bins
        }
    }
    __syncthreads();  // separates the sums of warps from their reads below
    for (int at = threadIdx.x; at < here; at += blockDim.x) {
        S sum = histograms[at];
        for (int other = 1; other < WARPS; ++other) sum = ops::add(sum, histograms[other * here + at]);
        __stcg(&sums[run * bins + first + at], sum);
    }
    if (is_last_to_arrive(tickets + group, runs)) {
        for (int at = threadIdx.x; at < here; at += blockDim.x) {
            S sum = __ldcg(&sums[first + at]);
            for (Index other = 1; other < runs; ++other) sum = ops::add(sum, __ldcg(&sums[other * bins + first + at]));
            result[first + at] = store<R>(sum);
        }
    }
}

}  // namespace histogram

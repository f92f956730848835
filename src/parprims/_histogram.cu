// Histogram: counts[b] = the number of x, or the sum of their weights, with edges[b] <= x < edges[b + 1]; the last bin
// holds its right edge too. What lies outside, and NaN, counts nowhere.
//
// Phases:
//   1. Every block counts a run of the elements in shared memory. Numbers of elements are counted by atomic additions
//      to one histogram a block: integers, whose order does not matter. Weights are summed in one histogram a warp,
//      where lanes with equal bins take turns from the lowest lane to the highest: no atomic addition of floats.
//   2. Counts: blocks add theirs to totals in global memory, by atomic additions of integers. Weights: every block
//      folds its warps in order and stores the sums.
//   3. The block that draws the last ticket stores the result: the totals, which it leaves zero for the next launch,
//      or the sums of all blocks, added in order.
// More bins than fit shared memory are counted in the totals at once; their weights are summed by several groups of
// blocks, each for a range of bins, which read all elements.
// Bits: which elements a warp and a block have depends on the numbers of elements and bins alone, and so does the order
// of every sum of weights.
//
// C. Nugteren, G.-J. van den Braak, H. Corporaal and B. Mesman, High Performance Predictable Histogramming on GPUs,
// GPGPU-4, 2011.

namespace histogram {

using Index = long long;

// The edges of the bins, of type E, which elements are compared as. EVEN promises edges at equal distances, up to
// rounding: the bin is then computed and corrected by its edges; otherwise it is searched.
template <class E, bool EVEN>
struct Bins {
    const E* edges;
    int count;

    // Returns the bin of x, or -1 if there is none.
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
            int low = 0, high = count;  // edges[low] <= x, and x < edges[high] or high is the last
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

// Counts the elements in every bin. SHARED tells whether a block has counters of its own in shared memory. `totals` has
// a zero for every bin.
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

// Sums the weights in every bin. Blocks are `groups` groups of `runs`, each for `width` bins; a warp of a block sums
// in a histogram of its own. `sums` has a place for every bin of every run. S is what weights are summed in, W and R
// are what they and the result are in memory.
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

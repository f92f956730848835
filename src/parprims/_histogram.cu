// Histogram: counts[b] is the number of x with edges[b] <= x < edges[b + 1], or the sum of their weights. The last bin
// includes its right edge. Elements outside all bins, and NaN, are ignored.
//
// If the range is that of the elements, find_ends finds it in a launch before.
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

// How many elements a thread loads before it uses the first.
template <class T>
constexpr int AT_ONCE = sizeof(T) < 8 ? 4 : 2;

DEVICE float product_and_sum(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }
DEVICE double product_and_sum(double a, double b, double c) { return __dadd_rn(__dmul_rn(a, b), c); }

// The edges of `count` bins, of type E. Elements are converted to E and compared with them.
template <class E, bool EVEN>
struct Bins;

// Edges in memory. A bin is found by binary search.
template <class E>
struct Bins<E, false> {
    const E* edges;
    int count;

    DEVICE Bins(const E* edges, Index, Index, Index count) : edges(edges), count((int)count) {}

    DEVICE E edge(int bin) const { return edges[bin]; }

    DEVICE int near(E x) const {
        int low = 0, high = count;  // invariant: edges[low] <= x, and x < edges[high] or high == count
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (x >= edges[middle])
                low = middle;
            else
                high = middle;
        }
        return low;
    }
};

// Edges at equal distances. They are computed with a product and a sum that are rounded one after the other, as the
// array form computes them. A bin is computed, and corrected by comparison with its edges.
template <class E>
struct Bins<E, true> {
    E first, last, step;
    int count;

    // `ends` points to the first and the last edge. If it is null, `low` and `high` are their bits as doubles.
    DEVICE Bins(const E* ends, Index low, Index high, Index count)
        : first(ends ? ends[0] : (E)__longlong_as_double(low)),
          last(ends ? ends[1] : (E)__longlong_as_double(high)),
          step((last - first) / (E)count),
          count((int)count) {}

    DEVICE E edge(int bin) const { return bin == count ? last : product_and_sum((E)bin, step, first); }

    DEVICE int near(E x) const {
        int bin = (int)((x - first) / (last - first) * (E)count);
        bin = bin < 0 ? 0 : bin < count ? bin : count - 1;
        while (bin > 0 && x < edge(bin)) --bin;
        while (bin + 1 < count && x >= edge(bin + 1)) ++bin;
        return bin;
    }
};

// Returns the bin of an element, or -1 if it is in none.
template <class E, bool EVEN, class T>
DEVICE int bin_of(const Bins<E, EVEN>& all, T element) {
    const E x = ops::cast<E>(value(element));
    return x >= all.edge(0) && x <= all.edge(all.count) ? all.near(x) : -1;
}

// Writes the edges, a part of them by every block.
template <class E, bool EVEN>
DEVICE void write_edges(const Bins<E, EVEN>& all, E* edges) {
    for (Index at = (Index)blockIdx.x * blockDim.x + threadIdx.x; at <= all.count; at += (Index)gridDim.x * blockDim.x)
        edges[at] = all.edge((int)at);
}

// ---- The ends of the range ------------------------------------------------------------------------------------

// The least and the greatest of some elements; NaN if one of them is NaN.
template <class E>
struct Extrema {
    struct State {
        E least, greatest;
    };
    static DEVICE State combine(const State& a, const State& b) {
        return {ops::minimum(a.least, b.least), ops::maximum(a.greatest, b.greatest)};
    }
};

// Finds the first and the last edge: the least and the greatest element, half less and more if these are equal, and
// NaN in place of the first if one of them is not finite. Every block stores the extrema of its elements, and the last
// block combines them. `n` is positive, and no block is without elements.
template <class T, class E, int THREADS>
DEVICE void find_ends(const T* x, E* ends, unsigned* partials, unsigned* ticket, Index n) {
    using Op = Extrema<E>;
    using State = typename Op::State;
    const Index step = (Index)gridDim.x * THREADS, start = (Index)blockIdx.x * THREADS + threadIdx.x;
    const auto load = [&](Index at) { return ops::cast<E>(value(x[at])); };
    const E any = load(min(start, n - 1));
    State mine = {any, any};
    for (Index from = start; from < n; from += AT_ONCE<T> * step) {
        E several[AT_ONCE<T>];
#pragma unroll
        for (int k = 0; k < AT_ONCE<T>; ++k) several[k] = from + k * step < n ? load(from + k * step) : any;
#pragma unroll
        for (int k = 0; k < AT_ONCE<T>; ++k) mine = Op::combine(mine, {several[k], several[k]});
    }
    const auto of_block = [](const State& state) {
        return reduce_warps<Op, THREADS>(reduce_lanes<Op, WARP_SIZE>({state, true})).state;
    };
    mine = of_block(mine);
    if (threadIdx.x == 0) store_for_others(partials, blockIdx.x, mine);
    if (!is_last_to_arrive(ticket, gridDim.x)) return;
    mine = load_of_others<State>(partials, min((Index)threadIdx.x, (Index)gridDim.x - 1));
    for (Index at = threadIdx.x; at < gridDim.x; at += THREADS)
        mine = Op::combine(mine, load_of_others<State>(partials, at));
    mine = of_block(mine);
    if (threadIdx.x == 0) {
        const E half = mine.least == mine.greatest ? (E)0.5 : (E)0;
        const E first = mine.least - half, last = mine.greatest + half;
        const bool finite = first - first == (E)0 && last - last == (E)0;
        ends[0] = finite ? first : (E)__longlong_as_double(0x7ff8000000000000ll);
        ends[1] = last;
    }
}

// ---- Counts and sums ------------------------------------------------------------------------------------------

// Counts the elements of every bin, and writes the edges. T, E and R are the types of elements, edges and counts.
// SHARED tells whether a block counts in shared memory first. `totals` has a zero for every bin, and is zero again in
// the end. `given`, `low` and `high` make the bins (see Bins).
template <class T, class E, class R, bool EVEN, bool SHARED>
DEVICE void count_bins(const T* x, const E* given, R* counts, E* edges, unsigned* ticket, unsigned long long* totals,
                       Index n, Index bins, Index low, Index high) {
    extern __shared__ __align__(16) unsigned counters[];
    const Bins<E, EVEN> all(given, low, high, bins);
    if constexpr (SHARED) {
        for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) counters[bin] = 0;
        __syncthreads();  // separates the zeros from the counting
    }
    const auto count = [&](T element) {
        const int bin = bin_of(all, element);
        if (bin < 0) return;
        if constexpr (SHARED)
            atomicAdd(&counters[bin], 1u);
        else
            atomicAdd(&totals[bin], 1ull);
    };
    const Index step = (Index)gridDim.x * blockDim.x;
    Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + (AT_ONCE<T> - 1) * step < n; i += AT_ONCE<T> * step) {
        T several[AT_ONCE<T>];
#pragma unroll
        for (int k = 0; k < AT_ONCE<T>; ++k) several[k] = x[i + k * step];
#pragma unroll
        for (int k = 0; k < AT_ONCE<T>; ++k) count(several[k]);
    }
    for (; i < n; i += step) count(x[i]);
    write_edges(all, edges);
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

// Sums the weights of every bin, and writes the edges. T, E, W and R are the types of elements, edges, weights and
// result, S is the type of the sums. A block has WARPS warps. Every group of `runs` blocks has `width` bins, and every
// block of it one run of the elements. `sums` has a place for every bin of every run. `given`, `low` and `high` make
// the bins (see Bins).
template <class T, class E, class W, class S, class R, bool EVEN, int WARPS>
DEVICE void sum_bins(const T* x, const E* given, const W* weights, R* result, E* edges, unsigned* tickets, S* sums,
                     Index n, Index bins, Index low, Index high, Index width, Index runs) {
    extern __shared__ __align__(16) uint4 memory[];
    S* const histograms = reinterpret_cast<S*>(memory);
    const Bins<E, EVEN> all(given, low, high, bins);
    write_edges(all, edges);
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
        int bin = inside ? bin_of(all, x[from + lane]) - first : -1;
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

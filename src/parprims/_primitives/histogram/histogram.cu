// Histogram: counts[b] is the number of x with edges[b] <= x < edges[b + 1], or the sum of their weights. The last bin
// includes its right edge. Elements outside all bins, and NaN, are ignored.
//
// If the range is the range of the elements, find_ends finds it in a launch before.
// Phases of count_bins, which counts elements:
//   1. Every block counts in a shared-memory histogram, in a grid-stride loop. The counters are integers, so atomic
//      additions give the same result in any order. If there are many bins, counters have 16 bits: a counter that
//      reaches half of this range moves that half to the total of its bin.
//   2. Blocks add their counters to totals in global memory, again by atomic additions of integers.
//      If the bins do not fit in shared memory, elements are counted in the totals directly.
//   3. The last block (see ticket.cuh) stores the totals as the result, and zeros them for the next launch. If there
//      are many totals, a launch of its own, store_counts, stores them.
// Phases of sum_bins, which sums weights without atomic additions of floating-point numbers:
//   1. Every warp sums a contiguous run of the elements in a shared-memory histogram of its own. Lanes with equal bins
//      take turns, from the lowest lane to the highest.
//   2. Every block adds up the histograms of its warps in order, and stores the sums.
//   3. The last block adds up the sums of all blocks in order, and stores the result.
//   If the bins do not fit in shared memory, there are several groups of blocks. Each reads all elements and sums the
//   weights of one range of bins.
// Reproducibility: the elements of a warp and of a block, and the order of every sum of weights, depend only on the
// numbers of elements and bins.
// If there would be many groups, number_bins writes the number of every element's bin instead. The weights are then
// sorted by these numbers and reduced by segments (see public.py).
//
// C. Nugteren, G.-J. van den Braak, H. Corporaal and B. Mesman, High Performance Predictable Histogramming on GPUs,
// GPGPU-4, 2011.

#include "block.cuh"
#include "common.cuh"
#include "ticket.cuh"

namespace histogram {

// The number of elements that a thread loads before it uses the first.
template <class T>
constexpr int AT_ONCE = sizeof(T) < 8 ? 8 : 4;

DEVICE float product_and_sum(float a, float b, float c) { return __fadd_rn(__fmul_rn(a, b), c); }
DEVICE double product_and_sum(double a, double b, double c) { return __dadd_rn(__dmul_rn(a, b), c); }

// How edges are found: edges at equal distances are computed; others are in global memory, or are copied from there to
// shared memory.
enum Edges { EVEN, GLOBAL, SHARED };

// The edges of `count` bins, of type E. Elements are converted to E and compared with them.
template <class E, Edges EDGES>
struct Bins {
    const E* edges;
    int count;

    // With SHARED, the edges are copied to `shared`. The block must wait before it uses them.
    DEVICE Bins(const E* given, Index, Index, Index count, void* shared = nullptr)
        : edges(EDGES == SHARED ? (const E*)shared : given), count((int)count) {
        if constexpr (EDGES == SHARED)
            for (int at = threadIdx.x; at <= count; at += blockDim.x) ((E*)shared)[place(at)] = given[at];
    }

    // In shared memory there is a gap after every 32 edges. Otherwise the edges that a binary search compares with, at
    // distances that are powers of two in the worst case, would be in the same bank.
    static DEVICE int place(int bin) { return EDGES == SHARED ? bin + bin / 32 : bin; }

    DEVICE E edge(int bin) const { return edges[place(bin)]; }
    DEVICE E left_edge(int bin) const { return edge(bin); }
};

// Edges at equal distances. They are computed with a product and a sum that are rounded one after the other, as the
// array form computes them.
template <class E>
struct Bins<E, EVEN> {
    E first, last, step, bins_per_unit;
    int count;

    // `ends` points to the first and the last edge. If it is null, `low` and `high` are their bits as doubles.
    DEVICE Bins(const E* ends, Index low, Index high, Index count, void* = nullptr)
        : first(ends ? ends[0] : (E)__longlong_as_double(low)),
          last(ends ? ends[1] : (E)__longlong_as_double(high)),
          step((last - first) / (E)count),
          bins_per_unit((E)count / (last - first)),
          count((int)count) {}

    DEVICE E edge(int bin) const { return bin == count ? last : left_edge(bin); }
    DEVICE E left_edge(int bin) const { return product_and_sum((E)bin, step, first); }  // of all but the last edge

    // Returns the bin of x, or one near it, as the product is rounded.
    DEVICE int guess(E x) const { return min(max((int)((x - first) * bins_per_unit), 0), count - 1); }
};

// Returns whether x, which is not after the last edge, is in a bin. It does not branch.
template <class E>
DEVICE bool is_in(const Bins<E, EVEN>& all, E x, int bin) {
    return x >= all.left_edge(bin) & (x < all.left_edge(bin + 1) | bin + 1 == all.count);
}

// Finds, for each x, the last bin with a left edge that is not after x; the first bin if there is none. The binary
// searches take their steps together, because every step waits for shared memory.
template <class E, Edges EDGES, int MANY>
DEVICE void search(const Bins<E, EDGES>& all, const E (&x)[MANY], int (&bins)[MANY]) {
#pragma unroll
    for (int k = 0; k < MANY; ++k) bins[k] = 0;
    for (int left = all.count; left > 1; left -= left / 2)  // `left` bins, from bins[k] on, are still possible
#pragma unroll
        for (int k = 0; k < MANY; ++k)
            if (x[k] >= all.left_edge(bins[k] + left / 2)) bins[k] += left / 2;
}

// Returns the bin that `search` finds for one x.
template <class E, Edges EDGES>
DEVICE int searched(const Bins<E, EDGES>& all, E x) {
    const E one[1] = {x};
    int found[1];
    search(all, one, found);
    return found[0];
}

// Returns the bin of x, given a bin near it, most often a neighbour.
template <class E>
DEVICE int corrected(const Bins<E, EVEN>& all, E x, int bin) {
    const int other = x < all.left_edge(bin) ? max(bin - 1, 0) : min(bin + 1, all.count - 1);
    if (is_in(all, x, other)) return other;
    return searched(all, x);
}

// Finds the bins of elements; -1 for elements in no bin.
template <class E, Edges EDGES, class T, int MANY>
DEVICE void find_bins(const Bins<E, EDGES>& all, const T (&elements)[MANY], int (&bins)[MANY]) {
    E x[MANY];
#pragma unroll
    for (int k = 0; k < MANY; ++k) x[k] = ops::cast<E>(value(elements[k]));
    if constexpr (EDGES == EVEN) {
#pragma unroll
        for (int k = 0; k < MANY; ++k) bins[k] = all.guess(x[k]);
    } else if constexpr (EDGES == SHARED) {
        search(all, x, bins);
    } else {  // one after another, so that they do not drive each other's edges out of the L1 cache
#pragma unroll
        for (int k = 0; k < MANY; ++k) bins[k] = searched(all, x[k]);
    }
    const E first = all.edge(0), last = all.edge(all.count);
    unsigned wrong = 0;  // the elements to correct, as bits
#pragma unroll
    for (int k = 0; k < MANY; ++k) {
        const bool inside = x[k] >= first & x[k] <= last;
        if constexpr (EDGES == EVEN) wrong |= (unsigned)(inside & !is_in(all, x[k], bins[k])) << k;
        bins[k] = inside ? bins[k] : -1;
    }
    if constexpr (EDGES == EVEN)
        if (wrong) {
#pragma unroll
            for (int k = 0; k < MANY; ++k)
                if (wrong >> k & 1) bins[k] = corrected(all, x[k], bins[k]);
        }
}

// Writes the edges; every block writes a part of them.
template <class E, Edges EDGES>
DEVICE void write_edges(const Bins<E, EDGES>& all, E* edges) {
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

// Finds the first and the last edge: the least and the greatest element; if they are equal, half less and half more; if
// one is not finite, NaN for both. Every block stores the extrema of its elements, and the last block combines them.
// `n` is positive, and no block is without elements.
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
    __shared__ State states[THREADS / WARP_SIZE];
    __shared__ bool valid[THREADS / WARP_SIZE];
    const auto of_block = [&](const State& state) {
        return reduce_warps<Op>(reduce_lanes<Op, WARP_SIZE>({state, true}), states, valid).state;
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
        const E nan = (E)__longlong_as_double(0x7ff8000000000000ll);
        ends[0] = finite ? first : nan;
        ends[1] = finite ? last : nan;
    }
}

// ---- Counts and sums ------------------------------------------------------------------------------------------

// Where elements are counted: in the totals, in words of shared memory, or in halves of these words.
enum Counters { TOTALS, WORDS, HALVES };

using Total = unsigned long long;

// The count that a half of a word moves to the total. Until then, the half may grow to twice this number.
constexpr unsigned HANDED_OVER = 1u << 15;

// ROUNDS is the number of rounds of AT_ONCE elements after which a thread waits for the others. With at most
// MOST_THREADS threads, no counter exceeds its half: they count these rounds, and in the end up to AT_ONCE + 1 elements
// each.
constexpr int ROUNDS = 2, MOST_THREADS = 1024;
static_assert((ROUNDS * 8 + 9) * MOST_THREADS <= HANDED_OVER, "halves of words overflow");

// Counts an element, in a half of a word.
DEVICE void count_in_half(unsigned* words, Total* totals, int bin) {
    const int shift = bin % 2 * 16;
    const unsigned before = atomicAdd(&words[bin / 2], 1u << shift) >> shift & 0xffffu;
    if (before == HANDED_OVER - 1) {  // true in one thread only, until it has subtracted the number
        atomicAdd(&words[bin / 2], 0u - (HANDED_OVER << shift));
        atomicAdd(&totals[bin], (Total)HANDED_OVER);
    }
}

// Takes totals as the counts of every `step`-th bin from `first` on, and leaves zeros. Several loads are in flight.
template <class R>
DEVICE void take_totals(Total* totals, R* counts, Index first, Index step, Index bins) {
    constexpr int SEVERAL = 4;
    for (Index from = first; from < bins; from += SEVERAL * step) {
        Total found[SEVERAL];
#pragma unroll
        for (int k = 0; k < SEVERAL; ++k) found[k] = from + k * step < bins ? __ldcg(&totals[from + k * step]) : 0;
#pragma unroll
        for (int k = 0; k < SEVERAL; ++k)
            if (from + k * step < bins) {
                counts[from + k * step] = (R)found[k];
                totals[from + k * step] = 0;
            }
    }
}

// Counts the elements of every bin, and writes the edges. T, E and R are the types of elements, edges and counts.
// `totals` has a zero for every bin. If STORES, they are stored as counts and are zero again in the end. `given`, `low`
// and `high` make the bins (see Bins).
template <class T, class E, class R, Edges EDGES, Counters COUNTERS, bool STORES>
DEVICE void count_bins(const T* x, const E* given, R* counts, E* edges, unsigned* ticket, Total* totals, Index n,
                       Index bins, Index low, Index high) {
    extern __shared__ __align__(16) unsigned words[];
    const int used = COUNTERS == TOTALS ? 0 : COUNTERS == WORDS ? (int)bins : (int)(bins + 1) / 2;
    const Bins<E, EDGES> all(given, low, high, bins, words + (used + 1) / 2 * 2);
    for (int at = threadIdx.x; at < used; at += blockDim.x) words[at] = 0;
    __syncthreads();  // separates the zeros, and the edges in shared memory, from the counting
    const auto count = [&](int bin) {
        if (bin < 0) return;
        if constexpr (COUNTERS == TOTALS)
            atomicAdd(&totals[bin], (Total)1);
        else if constexpr (COUNTERS == WORDS)
            atomicAdd(&words[bin], 1u);
        else
            count_in_half(words, totals, bin);
    };
    const Index step = (Index)gridDim.x * blockDim.x;
    Index from = (Index)blockIdx.x * blockDim.x;  // equal in all threads, so that all do equally many rounds
    for (int round = 1; from + blockDim.x + (AT_ONCE<T> - 1) * step <= n; from += AT_ONCE<T> * step, ++round) {
        T several[AT_ONCE<T>];
#pragma unroll
        for (int k = 0; k < AT_ONCE<T>; ++k) several[k] = x[from + threadIdx.x + k * step];
        int found[AT_ONCE<T>];
        find_bins(all, several, found);
#pragma unroll
        for (int k = 0; k < AT_ONCE<T>; ++k) count(found[k]);
        if constexpr (COUNTERS == HALVES)
            if (round % ROUNDS == 0) __syncthreads();  // what was to be handed over is, before more is counted
    }
    for (Index i = from + threadIdx.x; i < n; i += step) {
        const T one[1] = {x[i]};
        int found[1];
        find_bins(all, one, found);
        count(found[0]);
    }
    write_edges(all, edges);
    if constexpr (COUNTERS != TOTALS) {
        __syncthreads();  // separates the counting from the reads below
        for (int bin = threadIdx.x; bin < bins; bin += blockDim.x) {
            const unsigned here = COUNTERS == WORDS ? words[bin] : words[bin / 2] >> bin % 2 * 16 & 0xffffu;
            if (here) atomicAdd(&totals[bin], (Total)here);
        }
    }
    if constexpr (STORES)
        if (is_last_to_arrive(ticket, gridDim.x)) take_totals(totals, counts, threadIdx.x, blockDim.x, bins);
}

// Stores totals as counts, after the launch in which elements were counted in them, and leaves zeros.
template <class R>
DEVICE void store_counts(R* counts, Total* totals, Index bins) {
    const Index step = (Index)gridDim.x * blockDim.x;
    take_totals(totals, counts, (Index)blockIdx.x * blockDim.x + threadIdx.x, step, bins);
}

// Sums the weights of every bin, and writes the edges. T, E, W and R are the types of elements, edges, weights and
// result, S is the type of the sums. A block has WARPS warps. Every group of `runs` blocks has `width` bins, and each
// of its blocks has one run of the elements. `sums` has a place for every bin of every run. `given`, `low` and `high`
// make the bins (see Bins).
template <class T, class E, class W, class S, class R, Edges EDGES, int WARPS>
DEVICE void sum_bins(const T* x, const E* given, const W* weights, R* result, E* edges, unsigned* tickets, S* sums,
                     Index n, Index bins, Index low, Index high, Index width, Index runs) {
    extern __shared__ __align__(16) uint4 memory[];
    S* const histograms = reinterpret_cast<S*>(memory);
    const Bins<E, EDGES> all(given, low, high, bins);
    write_edges(all, edges);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Index group = blockIdx.x / runs, run = blockIdx.x % runs;
    const int first = (int)(group * width), here = (int)min(width, bins - group * width);
    for (int at = threadIdx.x; at < WARPS * here; at += blockDim.x) histograms[at] = S();
    __syncthreads();  // separates the zeros from the sums

    S* const own = histograms + warp * here;
    const Index each = (n + runs * WARPS - 1) / (runs * WARPS), begin = min(n, (run * WARPS + warp) * each);
    const Index end = min(n, begin + each);
    constexpr int STEPS = 4;  // of 32 elements: work that does not depend on the sums is done for all steps at once
    for (Index from = begin + lane; from < end + lane; from += STEPS * 32) {
        T several[STEPS];
        S added[STEPS];
        int found[STEPS], turn[STEPS];
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            const Index at = min(from + k * 32, end - 1);
            several[k] = x[at];
            added[k] = ops::cast<S>(value(weights[at]));
        }
        find_bins(all, several, found);
#pragma unroll
        for (int k = 0; k < STEPS; ++k) {
            found[k] = from + k * 32 < end && found[k] >= first && found[k] < first + here ? found[k] - first : -1;
            const unsigned equal = __match_any_sync(ALL_LANES, found[k]);
            turn[k] = found[k] < 0 ? -1 : __popc(equal & ((1u << lane) - 1u));
        }
#pragma unroll
        for (int k = 0; k < STEPS; ++k)
            for (int now = 0; __any_sync(ALL_LANES, turn[k] >= now); ++now) {
                if (turn[k] == now) own[found[k]] = ops::add(own[found[k]], added[k]);
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

// Writes the number of the bin of every element, `bins` for elements in no bin, and the edges. T, E and N are the types
// of elements, edges and numbers. `given`, `low` and `high` make the bins (see Bins).
template <class T, class E, class N, Edges EDGES>
DEVICE void number_bins(const T* x, const E* given, N* numbers, E* edges, Index n, Index bins, Index low, Index high) {
    extern __shared__ __align__(16) uint4 memory[];
    constexpr int MANY = sizeof(T) < sizeof(E) ? AT_ONCE<E> : AT_ONCE<T>;  // elements of a thread at once
    const Bins<E, EDGES> all(given, low, high, bins, memory);
    __syncthreads();  // separates the edges in shared memory from the searches
    const Index step = (Index)gridDim.x * blockDim.x;
    for (Index from = (Index)blockIdx.x * blockDim.x + threadIdx.x; from < n; from += MANY * step) {
        T several[MANY];
#pragma unroll
        for (int k = 0; k < MANY; ++k) several[k] = x[min(from + k * step, n - 1)];
        int found[MANY];
        find_bins(all, several, found);
#pragma unroll
        for (int k = 0; k < MANY; ++k)
            if (from + k * step < n) numbers[from + k * step] = (N)(found[k] < 0 ? bins : found[k]);
    }
    write_edges(all, edges);
}

}  // namespace histogram

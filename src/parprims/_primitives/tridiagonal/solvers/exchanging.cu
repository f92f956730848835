// Elimination with row exchanges, in registers. It is fast, and accurate for most systems. It checks the residual of
// every row, and leaves the systems that it did not solve to the stable solver.
//
// Short systems are solved by one launch, solve_exchanging:
//   1. Forward elimination: every thread loads ROWS adjacent rows and eliminates all of their unknowns but the first
//      and the last. It does so twice: downwards, without its first row, and upwards, without its last. In every step
//      the pivot comes from the equation, of two, with the larger coefficient. If rows wait (WAITS), they do so in
//      shared memory until phase 3.
//   2. The rows of adjacent threads are merged by such steps: pairs of threads, then pairs of pairs, in a tree.
//   3. Back substitution: down the tree, every thread gets its first and last unknown and the unknowns before and after
//      them. Then it computes its other unknowns from the pivot equations. If rows wait, it first has to eliminate
//      downwards again to have these equations.
//   4. Every thread checks the residuals of its rows. If one is too large, the system is solved once more, for the
//      residual. If that is not enough, it is left to the stable solver.
// Why it may fail: the two eliminations of phase 1 are independent factorisations. So errors may grow with the
// condition number of a part of the matrix, and a part without one of its rows may be singular though the matrix is
// not.
//
// Long systems: see exchanging_long.cu.

#include "common.cuh"
#include "exchanging.cuh"
#include "tridiagonal_common.cuh"

template <class T>
struct Pair {
    T first, second;
};

// Returns the unknowns at the ends of a thread's rows.
template <class T, int THREADS, int SYSTEMS, bool INTERLEAVED>
DEVICE Boundary<T> solve_boundaries(const ChainEquation<T>& up, const ChainEquation<T>& down, int system, int rank) {
    constexpr int WIDTH = THREADS < 32 ? THREADS : 32, WARPS = THREADS / WIDTH;
    constexpr bool TRANSPOSE = THREADS > 1 && SYSTEMS > 1 && INTERLEAVED;
    EliminationTree<WIDTH, T> tree = {up, down};
    if constexpr (TRANSPOSE) {
        const auto other = transpose_lanes<T, THREADS, SYSTEMS, false>(Pair<ChainEquation<T>>{up, down}, system, rank);
        tree.up = other.first, tree.down = other.second;
    }
    tree.merge();
    Boundary<T> known;
    if constexpr (WARPS == 1) {
        known = tree.close();
    } else {
        // The first warp of a system merges the rows of its warps.
        __shared__ ChainEquation<T> warp_equations[SYSTEMS * WARPS][2];
        __shared__ Boundary<T> warp_boundaries[SYSTEMS * WARPS];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) warp_equations[warp][0] = tree.up, warp_equations[warp][1] = tree.down;
        __syncthreads();  // the equations of all warps are there
        if (warp % WARPS == 0) {
            const int mine = warp + lane % WARPS;
            EliminationTree<WARPS, T> of_warps = {warp_equations[mine][0], warp_equations[mine][1]};
            of_warps.merge();
            const Boundary<T> one = of_warps.back_substitute(of_warps.close());
            if (lane < WARPS) warp_boundaries[mine] = one;
        }
        __syncthreads();  // the unknowns around all warps are there
        known = warp_boundaries[warp];
    }
    known = tree.back_substitute(known);
    if constexpr (TRANSPOSE) known = transpose_lanes<T, THREADS, SYSTEMS, true>(known, system, rank);
    return known;
}

// ---- Short systems --------------------------------------------------------------------------------------------

// Solves all systems, or the systems that an earlier launch has left (given). Leaves the systems whose backward error
// is still too large after one refinement (remaining).
template <class T, int ROWS, int THREADS, int SYSTEMS, bool INTERLEAVED, bool WAITS, Access LOWER, Access DIAG,
          Access UPPER, Access RHS, Access OUT>
DEVICE void solve_exchanging(BatchView<const T> lower, BatchView<const T> diag, BatchView<const T> upper,
                             BatchView<const T> rhs, BatchView<T> out, Index systems, Index middles, Index lows,
                             Index rows, Worklist given, Worklist remaining) {
    constexpr bool SHARED = shares_memory(THREADS, INTERLEAVED);
    const int thread = threadIdx.x;
    const int system = INTERLEAVED ? thread % SYSTEMS : thread / THREADS;
    const int rank = INTERLEAVED ? thread / SYSTEMS : thread % THREADS;
    const Index begin = rank * ROWS, listed = given.counts ? given.take() : systems;
    // The rows of a thread may wait in shared memory, after the numbers that are transposed. An empty vector between
    // two threads avoids bank conflicts. Threads past the end of a system have no place.
    constexpr int PLACE = 4 * ROWS + Vector<T>::PARTS;
    constexpr int TRANSPOSED = INTERLEAVED && SYSTEMS > 1 ? 8 * SYSTEMS * (THREADS + 1) : 0;
    extern __shared__ uint4 shared[];
    const int segments = ((int)rows + ROWS - 1) / ROWS, waiting = WAITS && rank < segments ? ROWS : 0;
    T* const place =
        reinterpret_cast<T*>(shared) + TRANSPOSED + PLACE * (INTERLEAVED ? thread : system * segments + rank);
#pragma unroll 1
    for (Index base = (Index)blockIdx.x * SYSTEMS; base < listed; base += (Index)gridDim.x * SYSTEMS) {
        // Threads past the last system repeat it, but store nothing.
        const bool stores = base + system < listed;
        const Index counted = stores ? base + system : listed - 1, mine = given.counts ? given.list[counted] : counted;
        const BatchIndex at = batch_index(mine, systems, middles, lows);
        ThreadRows<T, ROWS> own;
        own.template load_scaled<LOWER, DIAG, UPPER, RHS>({lower, diag, upper, rhs}, at, begin, rows);
        if (waiting) own.store_arrays(place, ROWS);
        T x[ROWS] = {}, residual[ROWS], before = T(), behind = T();
#pragma unroll
        for (int k = 0; k < ROWS; ++k) residual[k] = own.d[k];
        // The second pass solves for the residual. Systems that do not need it keep their solution.
        bool off = true, more = true;
#pragma unroll 1
        for (int pass = 0; pass < 2 && more; ++pass) {
            ChainEquation<T> up, down;
            own.forward_eliminate(residual, up, down);
            const Boundary<T> known = solve_boundaries<T, THREADS, SYSTEMS, INTERLEAVED>(up, down, system, rank);
            if constexpr (WAITS) {
                // Rows are loaded and eliminated again: registers have no room to keep the rows or the pivot equations.
                __syncwarp();  // without it, the compiler would keep them all the same
                own.load_arrays(place, ROWS, waiting);
                own.eliminate_down(residual);
            }
            T y[ROWS];
            own.back_substitute(known, y);
            if constexpr (WAITS) {
                __syncwarp();  // the same
                own.load_arrays(place, ROWS, waiting);
            }
            before = ops::add(before, known.before), behind = ops::add(behind, known.behind);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) x[k] = ops::add(x[k], y[k]);
            const bool large = own.template has_large_error<false>(x, before, behind, residual);
            off = any_of_system<THREADS, SYSTEMS, SHARED>(large, system);
            if constexpr (!SHARED)
                more = __any_sync(ALL_LANES, off);
            else
                more = SYSTEMS == 1 ? off : __syncthreads_or(off);
            if (!off) {
#pragma unroll
                for (int k = 0; k < ROWS; ++k) residual[k] = T();
            }
        }
        remaining.add(off && stores && rank == 0, mine);
        if (stores && !off) save<OUT>(out.system(at) + begin * out.along, out.along, (int)(rows - begin), x);
    }
}

// Elimination with row exchanges in the order of a binary tree. It is always accurate: a pivot is found for every
// regular matrix, and the solution is refined once by its residual.
//
// A segment represents the rows i ... j-1 of a system by two equations between the pairs of unknowns y[i] = (x[i-1],
// x[i]) and y[j] = (x[j-1], x[j]). Short systems are solved by one launch, solve_stable. If the error of the first
// solution is too large, it repeats phases 3 to 6 for the residual:
//   1. The threads copy the rows of the block's systems to shared memory, adjacent threads adjacent rows.
//   2. AUTO, for periodic systems: they check whether every row is diagonally dominant. Then rows are not exchanged.
//   3. Forward elimination: every thread reduces its rows to one segment. Every row that is appended eliminates x[j-1]
//      from three equations. The pivot equation is kept for back substitution.
//   4. Adjacent segments are merged in pairs, log2(THREADS) times. Two segments are four equations, and two of these
//      eliminate the pair that the segments share. The pivot equations replace the right segment in shared memory.
//   5. The last segment begins and ends with the same pair, as a periodic system does; in other systems the corner
//      coefficients are zero. It is solved for this pair. Back substitution down the tree then computes every shared
//      pair from the pairs before and after it.
//   6. Every thread computes its unknowns from its first and last pair, and checks the residuals of its rows.
//   7. If there are two solutions, the one with the smaller backward error is stored, by way of shared memory.
// Pivots: every row is scaled by a power of two so that its largest coefficient is from 1 to 2. The pivot equation is
// the equation with the largest coefficient of the unknown, or without exchanges the unknown's own row. All rows that
// contain the unknown are among the three or four equations, so a pivot is found for every regular matrix.
//
// Template parameters besides those in tridiagonal_common.cuh:
//   PIVOT       when rows are exchanged: PARTIAL, always; NONE, never; AUTO, unless all rows are diagonally dominant
//   PERIODIC    whether the first and the last unknown are neighbours

#include "common.cuh"
#include "stable.cuh"
#include "tridiagonal_common.cuh"

enum Pivot { AUTO, PARTIAL, NONE };

template <class T, int ROWS, int THREADS, int SYSTEMS, bool INTERLEAVED, Pivot PIVOT, bool PERIODIC>
DEVICE void solve_stable(BatchView<const T> lower, BatchView<const T> diag, BatchView<const T> upper,
                         BatchView<const T> rhs, BatchView<T> out, Index systems, Index middles, Index lows,
                         Index rows, Worklist given) {
    using B = BlockSolver<T, ROWS, THREADS, SYSTEMS, INTERLEAVED>;
    extern __shared__ uint4 shared[];
    B block;
    const int n = block.n = (int)rows;
    block.segments = (n + ROWS - 1) / ROWS;
    block.pitch = block.segments * (INTERLEAVED ? ROWS : ROWS + 1);
    const int places = SYSTEMS * block.pitch;
    block.lower = reinterpret_cast<T*>(shared);
    block.diag = block.lower + places;
    block.upper = block.diag + places;
    block.rhs = block.upper + places;
    block.slots.first = block.rhs + places;
    block.state = reinterpret_cast<BlockState*>(block.slots.first + SLOT_NUMBERS * (B::BLOCK_THREADS + 2));
    const int thread = threadIdx.x;
    const int system = block.system = INTERLEAVED ? thread % SYSTEMS : thread / THREADS;
    const int rank = block.rank = INTERLEAVED ? thread / SYSTEMS : thread % THREADS;
    block.own = block.place(rank * ROWS);
    block.count = max(0, min(ROWS, n - rank * ROWS));
    const Index listed = given.counts ? given.take() : systems;
#pragma unroll 1
    for (Index base = (Index)blockIdx.x * SYSTEMS; base < listed; base += (Index)gridDim.x * SYSTEMS) {
        // Threads past the last system repeat it, but store nothing.
        const Index first = base + system;
        const bool stores = first < listed;
        const Index counted = stores ? first : listed - 1;
        const BatchIndex at = batch_index(given.counts ? given.list[counted] : counted, systems, middles, lows);
        const T *from_lower = lower.system(at), *from_diag = diag.system(at), *from_upper = upper.system(at);

        // Adjacent threads load adjacent numbers.
        const auto loaded = [&](int k) { return INTERLEAVED ? rank * ROWS + k : rank + k * THREADS; };
        const T* from_rhs = rhs.system(at);
        BlockState& state = block.state[system];
        if (rank == 0) state = {{0, 0}, PIVOT == PARTIAL, 0, 0};
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const int row = loaded(k), place = block.place(row);
            if (row < n) {
                block.lower[place] = row > 0 || PERIODIC ? from_lower[row * lower.along] : T();
                block.diag[place] = from_diag[row * diag.along];
                block.upper[place] = row < n - 1 || PERIODIC ? from_upper[row * upper.along] : T();
                block.rhs[place] = from_rhs[row * rhs.along];
            }
        }
        B::sync();  // rows and states are there for all
        if (PIVOT == AUTO) {
            if (!block.dominant()) atomicOr(&state.exchange, 1u);
            B::sync();  // all have checked their rows
        }
        const bool exchange = PIVOT != NONE && state.exchange != 0;

        // The second pass solves for the residual of the first solution. Systems that do not need it keep the first
        // solution.
        T x[ROWS] = {}, last[ROWS], before = T(), behind = T();
        Real<T> errors[2] = {};
        bool refine = false, together = false;
#pragma unroll 1
        for (int pass = 0; pass <= together; ++pass) {
            T more_before, more_behind;
#pragma unroll
            for (int k = 0; k < ROWS; ++k) last[k] = x[k];
            block.solve(
                exchange,
                [&](int k) {
                    if (pass == 0) return block.given_rhs(k);
                    return block.residual(k, block.row(k), last, before, behind, errors[0]);
                },
                x, more_before, more_behind);
            before = ops::add(before, more_before), behind = ops::add(behind, more_behind);
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < block.count) x[k] = ops::add(last[k], x[k]);
            if (PIVOT != NONE && pass == 0) {
                if (exchange && block.has_large_error(x, before, behind)) atomicOr(&state.refine, 1u);
                B::sync();  // all have checked their rows
                refine = state.refine != 0;
                if constexpr (INTERLEAVED || THREADS > 32)
                    together = __syncthreads_or(refine);
                else
                    together = __any_sync(ALL_LANES, refine);
            }
        }
        if (together) {
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < block.count) block.residual(k, block.row(k), x, before, behind, errors[1]);
            block.record_errors(errors);
            B::sync();  // all have recorded their errors
            if (!refine || !(state.errors[1] < state.errors[0])) {
#pragma unroll
                for (int k = 0; k < ROWS; ++k) x[k] = last[k];
            }
        }
        bool finite = true;
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < block.count) {
                block.rhs[block.own + (INTERLEAVED ? k * SYSTEMS : k)] = x[k];
                finite = finite && ops::isfinite(x[k]);
            }
        if (!finite) atomicOr(&state.not_finite, 1u);
        B::sync();  // the solution is there for all
        T* to = out.system(at);
        const T nan = from_real<T>(infinity(Real<T>()) - infinity(Real<T>()));
        const bool not_finite = state.not_finite != 0;
        if (stores) {
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (loaded(k) < n) to[loaded(k) * out.along] = not_finite ? nan : block.rhs[block.place(loaded(k))];
        }
        B::sync();  // all have read the solution before the next systems come
    }
}

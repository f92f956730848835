// Elimination with row exchanges in registers (see exchanging.cu) for long systems.
//
// The first and last unknowns of the blocks' rows form a tridiagonal system again. Three launches solve it:
//   reduce_exchanging           reduces the given rows to it.
//   solve_reduced_exchanging    solves that system, in phases: it is reduced again, level by level, until one block can
//                               solve it, and then every level computes its other unknowns.
//   expand_exchanging           computes the unknowns of the given systems, and checks the residuals.
// Where rows have too large a backward error, windows around them are refined in registers (refine_windows) and, if
// that does not suffice, by the stable solver. A window mostly suffices, because the inverse of a matrix that needs row
// exchanges mostly decays fast away from its diagonal. If no window does, the whole system is left to the stable
// solver.

#include "common.cuh"
#include "exchanging.cuh"
#include "phases.cuh"
#include "tridiagonal_common.cuh"
#include "tridiagonal_long.cuh"

// A level of reduced systems. Its unknowns are the first and last unknowns of the blocks of the level below. Its three
// arrays of coefficients, the right-hand sides and the unknowns follow each other; the next level follows them. Arrays
// have whole vectors.
template <class T, int PART>
struct BoundaryLevel {
    T* numbers;
    Index systems, rows;

    DEVICE Index parts() const { return (rows + PART - 1) / PART; }
    DEVICE Index pitch() const { return whole_vectors<T>(rows); }
    DEVICE BoundaryLevel next() const { return {numbers + 5 * systems * pitch(), systems, 2 * parts()}; }
    DEVICE T* unknown(Index system, Index at) const { return numbers + (4 * systems + system) * pitch() + at; }

    // Loads a thread's rows. Rows past the end become x = 0.
    template <int ROWS>
    DEVICE void load_part(Index system, Index begin, ThreadRows<T, ROWS>& to) const {
        const Index all = systems * pitch();
        const int count = (int)max((Index)0, min((Index)ROWS, rows - begin));
        const T* const from = numbers + system * pitch() + begin;
        to.load_arrays(from, all, count);
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            if (k >= count) to.a[k] = to.d[k] = T(), to.b[k] = from_real<T>(1);
            if (begin + k >= rows - 1) to.c[k] = T();
        }
        if (begin == 0) to.a[0] = T();
        to.scale();
    }

    // Stores the two rows to which a part of the level below has been reduced.
    DEVICE void store(Index system, Index part, const ChainEquation<T>& up, const ChainEquation<T>& down) const {
        const Index all = systems * pitch();
        T* const to = numbers + system * pitch() + 2 * part;
        to[0] = up.next, to[all] = up.last, to[2 * all] = up.start, to[3 * all] = up.rhs;
        to[1] = down.start, to[all + 1] = down.last, to[2 * all + 1] = down.next, to[3 * all + 1] = down.rhs;
    }
    // Returns the unknowns at the ends of a part of the level below.
    DEVICE Boundary<T> boundary(Index system, Index part) const {
        const T* const from = unknown(system, 2 * part);
        return {part > 0 ? from[-1] : T(), from[0], from[1], 2 * part + 2 < rows ? from[2] : T()};
    }
};

// The rows of a block's threads, merged in a tree.
template <class T, int THREADS>
struct BlockTree {
    static constexpr int WARPS = THREADS / 32;
    EliminationTree<32, T> of_lanes;
    EliminationTree<WARPS, T> of_warps;

    // Merges the rows of all threads. The first thread gets the equations of all rows.
    DEVICE void merge(ChainEquation<T>& up, ChainEquation<T>& down) {
        of_lanes.up = up, of_lanes.down = down;
        of_lanes.merge();
        up = of_lanes.up, down = of_lanes.down;
        if constexpr (WARPS > 1) {
            __shared__ ChainEquation<T> equations[WARPS][2];
            const int warp = threadIdx.x / 32;
            if (threadIdx.x % 32 == 0) equations[warp][0] = up, equations[warp][1] = down;
            __syncthreads();  // the equations of all warps are there
            if (warp == 0) {
                of_warps.up = equations[threadIdx.x % WARPS][0], of_warps.down = equations[threadIdx.x % WARPS][1];
                of_warps.merge();
                up = of_warps.up, down = of_warps.down;
            }
        }
    }
    // Returns the unknowns at the ends of a thread's rows. In the first thread, `known` are the unknowns at the ends of
    // all rows.
    DEVICE Boundary<T> back_substitute(Boundary<T> known) const {
        if constexpr (WARPS > 1) {
            __shared__ Boundary<T> boundaries[WARPS];
            const int warp = threadIdx.x / 32;
            if (warp == 0) {
                known = of_warps.back_substitute(known);
                if (threadIdx.x < WARPS) boundaries[threadIdx.x] = known;
            }
            __syncthreads();  // the unknowns around all warps are there
            known = boundaries[warp];
        }
        return of_lanes.back_substitute(known);
    }
};

// The rows of a thread of a given system, and the unknowns before and after them.
template <class T, int ROWS, Access LOWER, Access DIAG, Access UPPER, Access RHS, Access OUT>
struct GivenRows {
    ThreadRows<T, ROWS> rows;
    BatchIndex at;
    T before = T(), behind = T();

    DEVICE GivenRows(const SystemBatch<T>& s, Index system, Index begin, int count) {
        at = s.index(system);
        rows.template load_scaled<LOWER, DIAG, UPPER, RHS>({s.lower, s.diag, s.upper, s.rhs}, at, begin,
                                                    count > 0 ? s.rows : 0);
    }
    // Loads the solution of the rows and the unknowns before and after them.
    DEVICE void load_solution(const SystemBatch<T>& s, Index begin, int count, T (&x)[ROWS]) {
        const T* const from = s.out.system(at) + begin * s.out.along;
        load<OUT>(from, s.out.along, count, T(), x);
        if (count > 0 && begin > 0) before = from[-s.out.along];
        if (count > 0 && begin + ROWS < s.rows) behind = from[ROWS * s.out.along];
    }
    DEVICE void store(const SystemBatch<T>& s, Index begin, int count, const T (&x)[ROWS]) const {
        save<OUT>(s.out.system(at) + begin * s.out.along, s.out.along, count, x);
    }
};

// Reduces the systems that are due.
template <class T, int ROWS, int THREADS, Access LOWER, Access DIAG, Access UPPER, Access RHS>
DEVICE void reduce_exchanging(SystemBatch<T> s, T* levels, Worklist due) {
    constexpr int PART = ROWS * THREADS;
    const Index systems = count_due(due, s.systems), parts = (s.rows + PART - 1) / PART;
    const BoundaryLevel<T, PART> next = {levels, s.systems, 2 * parts};
    for_each_part(systems, parts, [](Index) { return true; }, [&](Index at, Index part) {
        const Index system = due_system(due, at);
        ThreadRows<T, ROWS> rows;
        rows.template load_scaled<LOWER, DIAG, UPPER, RHS>({s.lower, s.diag, s.upper, s.rhs}, s.index(system),
                                                    part * PART + threadIdx.x * ROWS, s.rows);
        BlockTree<T, THREADS> tree;
        ChainEquation<T> up, down;
        rows.forward_eliminate(rows.d, up, down);
        tree.merge(up, down);
        if (threadIdx.x == 0) next.store(system, part, up, down);
        if (THREADS > 32) __syncthreads();  // the shared equations have been read before they are written again
    });
}

// Solves the reduced systems. A block of the given systems had BELOW rows.
template <class T, int ROWS, int THREADS, int BELOW>
DEVICE void solve_reduced_exchanging(T* levels, Index all_systems, Index all_rows, SystemState* states, Worklist due,
                                     PhaseCounters* counters) {
    using Level = BoundaryLevel<T, ROWS * THREADS>;
    const Index systems = count_due(due, all_systems);
    if (systems == 0) return;
    const Level lowest = {levels, all_systems, 2 * ((all_rows + BELOW - 1) / BELOW)};
    for_each_reduced_part(counters, lowest, systems, [&](LevelStep step, const Level& mine, Index at, Index part) {
        const Level next = mine.next();
        const Index system = due_system(due, at);
        const Index begin = (part * THREADS + threadIdx.x) * ROWS;
        ThreadRows<T, ROWS> rows;
        mine.load_part(system, begin, rows);
        BlockTree<T, THREADS> tree;
        ChainEquation<T> up, down;
        rows.forward_eliminate(rows.d, up, down);
        tree.merge(up, down);
        if (step == REDUCE) {
            if (threadIdx.x == 0) next.store(system, part, up, down);
            return;
        }
        if (step == SOLVE && !due.counts && threadIdx.x == 0) states[system] = {{0, 0}, 1};
        const Boundary<T> known =
            step == SOLVE ? EliminationTree<1, T>{up, down}.close() : next.boundary(system, part);
        T x[ROWS];
        rows.back_substitute(tree.back_substitute(known), x);
        save<ASCENDING>(mine.unknown(system, begin), 1, (int)max((Index)0, min((Index)ROWS, mine.rows - begin)), x);
    });
}

// Computes the unknowns of the systems that are due, marks the lanes with a large error, and leaves the systems with
// marked lanes (left).
template <class T, int ROWS, int THREADS, Access LOWER, Access DIAG, Access UPPER, Access RHS, Access OUT>
DEVICE void expand_exchanging(SystemBatch<T> s, T* levels, SystemState* states, unsigned* marks, Worklist due,
                              Worklist left) {
    constexpr int PART = ROWS * THREADS;
    const Index systems = count_due(due, s.systems), parts = (s.rows + PART - 1) / PART;
    const BoundaryLevel<T, PART> next = {levels, s.systems, 2 * parts};
    for_each_part(systems, parts, [](Index) { return true; }, [&](Index at, Index part) {
        // The rows that were read last come first, as they may still be in the cache.
        part = parts - 1 - part;
        const Index system = due_system(due, systems - 1 - at), begin = part * PART + threadIdx.x * ROWS;
        const int count = (int)max((Index)0, min((Index)ROWS, s.rows - begin));
        GivenRows<T, ROWS, LOWER, DIAG, UPPER, RHS, OUT> given(s, system, begin, count);
        ChainEquation<T> up, down;
        given.rows.forward_eliminate(given.rows.d, up, down);
        BlockTree<T, THREADS> tree;
        tree.merge(up, down);
        const Boundary<T> known = tree.back_substitute(next.boundary(system, part));
        T x[ROWS], residual[ROWS];
        given.rows.back_substitute(known, x);
        given.store(s, begin, count, x);
        bool any = false;
        const bool off =
            count > 0 && given.rows.template has_large_error<true>(x, known.before, known.behind, residual, &any);
        const bool leave = __any_sync(ALL_LANES, off);
        const unsigned off_lanes = __ballot_sync(ALL_LANES, any && count > 0);
        if (threadIdx.x % 32 > 0 || count == 0) return;
        const Index warps = (s.rows + 32 * ROWS - 1) / (32 * ROWS);
        unsigned* const mark = marks + system * warps + begin / (32 * ROWS);
        mark[0] = off_lanes, mark[s.systems * warps] = 0;
        if (leave) leave_system(left, system, states[system], 1);
        if (__popc(off_lanes) > 7) atomicAdd(&states[system].failures[0], 1u);
    });
}

// Refines the marked lanes, which have a row with too large a backward error, together with the rows around them. A
// warp takes a window and solves for the residual of the marked lanes in its middle. The rows are divided into lanes,
// and the lanes merged, in another way than before, so that the same error is not made again. The first and the last
// unknown of a window stay as they are, so that the rows outside do not change. Every row is in the middle of a window
// in one of two phases. Lanes that the phases do not fix are marked in a second array of marks, which follows the
// first, and their systems are left to the stable solver (left). Systems with many errors are left to later launches
// (hopeless). A warp checks the marks of `each` windows at once. `before` is the list of the launches before, which is
// emptied.
template <class T, int ROWS, Access LOWER, Access DIAG, Access UPPER, Access RHS, Access OUT>
DEVICE void refine_windows(SystemBatch<T> s, Index each, unsigned* marks, SystemState* states, Worklist before,
                           Worklist due, Worklist left, Worklist hopeless, PhaseCounters* counters) {
    constexpr int LENGTH = 32 * ROWS;
    const Index systems = count_due(due, s.systems), in_block = each * (blockDim.x / 32);
    if (before.counts && blockIdx.x == 0 && threadIdx.x == 0) *before.counts = 0;
    if (systems == 0) return;
    // Both bits stand for the same list if there is only one.
    const unsigned known = left.counts == hopeless.counts ? 2 | 4 : 0;
    const auto shift_of = [](int phase) -> Index { return (4 + phase * 16) * ROWS + ROWS / 2; };
    const auto parts_of = [&](int phase) -> Index {
        return (Window::count(s.rows, LENGTH, shift_of(phase)) + in_block - 1) / in_block;
    };
    const auto length = [&](int phase) { return systems * parts_of(phase); };
    const bool finished = for_each_item(counters, 2, length, [&](int phase, Index item) {
        const Index at = quotient(item, parts_of(phase)), block = item - at * parts_of(phase);
        const Index system = due_system(due, at), shift = shift_of(phase);
        const Index windows = Window::count(s.rows, LENGTH, shift);
        if (has_many_failures(states[system], 1 + phase, s.rows)) {
            if (threadIdx.x == 0) leave_system(hopeless, system, states[system], 4, known | 4);
            return;
        }
        const int lane = threadIdx.x % 32;
        const Index base = block * in_block + threadIdx.x / 32 * each;
        const Index warps = (s.rows + LENGTH - 1) / LENGTH;
        unsigned *const first_marks = marks + system * warps, *const others = first_marks + s.systems * warps;
        const auto window_at = [&](Index at) -> Window { return {s.rows, at, LENGTH, shift, ROWS, 7 * ROWS}; };
        const auto marked = [&](const Window& window) {
            if (window.middle >= window.end) return false;
            const Index first = window.middle / ROWS, last = (window.end - 1) / ROWS;  // at most 33 lanes
            const unsigned long long both = first_marks[first / 32] | (unsigned long long)first_marks[last / 32] << 32;
            return both << (63 - (last - first) - first % 32) >> (63 - (last - first)) != 0;
        };
        unsigned todo = __ballot_sync(ALL_LANES, lane < each && base + lane < windows && marked(window_at(base + lane)));
#pragma unroll 1
        for (; todo; todo &= todo - 1) {
            const Window window = window_at(base + __ffs(todo) - 1);
            const Index begin = window.low + lane * ROWS;
            const int count = (int)max((Index)0, min((Index)ROWS, window.high - begin));
            GivenRows<T, ROWS, LOWER, DIAG, UPPER, RHS, OUT> mine(s, system, begin, count);
            EliminationTree<32, T> tree;
            T x[ROWS], y[ROWS], residual[ROWS];
            mine.load_solution(s, begin, count, x);
            const bool middle = window.is_in_middle(begin, count);
            bool off = false, kept = false, fails = false;  // at first; left to another window; still
            unsigned wrong = 0;
#pragma unroll 1
            for (int pass = 0;; ++pass) {
                bool any;
                fails = mine.rows.template has_large_error<true>(x, mine.before, mine.behind, residual, &any);
                if (pass == 0) off = fails, kept = any && !middle;
                fails = fails && (middle || !off);
                const unsigned before = wrong;
                wrong = __ballot_sync(ALL_LANES, any && !kept);
                if (pass == 3 || !wrong) break;
                // Another pass would not help.
                if (pass > 0 && __popc(wrong) > 2 && 2 * __popc(wrong) > __popc(before)) break;
                if (!(wrong >> lane & 1)) {
#pragma unroll
                    for (int k = 0; k < ROWS; ++k) residual[k] = T();
                }
                mine.rows.forward_eliminate(residual, tree.up, tree.down);
                tree.merge();
                const Boundary<T> known = tree.back_substitute(tree.close());
                mine.rows.back_substitute(known, y);
                const bool first = window.low > 0 && begin == window.low;
                const bool last = window.high < s.rows && begin + ROWS == window.high;
#pragma unroll
                for (int k = 0; k < ROWS; ++k)
                    if (!(k == 0 && first) && !(k == ROWS - 1 && last)) x[k] = ops::add(x[k], y[k]);
                mine.before = ops::add(mine.before, known.before), mine.behind = ops::add(mine.behind, known.behind);
            }
            if (!__any_sync(ALL_LANES, fails)) {
                mine.store(s, begin, count, x);
                continue;
            }
            if (lane == 0) {
                leave_system(left, system, states[system], 2, known | 2);
                atomicAdd(&states[system].failures[1 + phase], 1u);
            }
            if (off && middle) {
                for (Index row = begin; row < begin + count; row += ROWS / 2)
                    atomicOr(&others[row / ROWS / 32], 1u << row / ROWS % 32);
            }
        }
    });
    if (finished) *due.counts = 0;
}

// Elimination without row exchanges. It suits diagonally dominant matrices, definite matrices and M-matrices: the Schur
// complement of such a matrix is of the same kind, so without rounding no pivot is zero.
//
// Short systems are solved by one launch, solve_in_order:
//   1. Forward elimination: every thread loads ROWS adjacent rows and eliminates all of their unknowns but the last.
//      What remains is a tridiagonal system of the threads' last unknowns, with one interface row for each thread.
//   2. The lanes of a warp solve that system by cyclic reduction. If a system has several warps, each warp leaves one
//      row, and the first warp solves these rows by cyclic reduction, too.
//   3. Back substitution: every thread computes its other unknowns.
//
// Long systems take three launches:
//   reduce_in_order           reduces the rows of every block to one.
//   solve_reduced_in_order    solves the remaining system, in phases: it is reduced again, level by level, until one
//                             block can solve it, and then every level computes its other unknowns.
//   expand_in_order           computes the unknowns of the given systems.
// Elimination of rows is repeated, so that little is stored in between.
//
// Template parameters besides those in tridiagonal_common.cuh:
//   CHECKED        whether systems that are not diagonally dominant are left to later launches, which exchange rows
//   FIRST_LEVEL    whether the rows are those of the given systems

#include "common.cuh"
#include "phases.cuh"
#include "ticket.cuh"
#include "tridiagonal_common.cuh"
#include "tridiagonal_long.cuh"

// ---- The rows of a thread -------------------------------------------------------------------------------------

// The interface row of a thread, and the first unknown of its rows. The interface row is the equation
//     lower * previous + diag * own + upper * (first unknown of the next thread) = rhs
// where own is the last unknown of the thread, and previous the last unknown of the thread before. The first unknown of
// the thread is first - first_previous * previous - first_own * own.
template <class T>
struct InterfaceRow {
    T lower, diag, upper, rhs;
    T first, first_previous, first_own;

    // Substitutes the first unknown of the next thread, which is given in the same form. Then the row contains last
    // unknowns only.
    DEVICE void couple(T next, T next_previous, T next_own) {
        diag = fnma(upper, next_previous, diag);
        rhs = fnma(upper, next, rhs);
        upper = ops::negative(mul(upper, next_own));
    }
    // Stores the seven numbers, `stride` elements apart.
    DEVICE void store(T* to, Index stride) const {
        to[0] = lower, to[stride] = diag, to[2 * stride] = upper, to[3 * stride] = rhs;
        to[4 * stride] = first, to[5 * stride] = first_previous, to[6 * stride] = first_own;
    }
};

// Forward elimination. Afterwards x[k] = rhs[k] - upper[k] x[k+1] - lower[k] previous for all k but the last.
template <class T, int ROWS>
DEVICE InterfaceRow<T> forward_eliminate(T (&lower)[ROWS], const T (&diag)[ROWS], T (&upper)[ROWS], T (&rhs)[ROWS]) {
    constexpr int LAST = ROWS - 1;
    if constexpr (LAST == 0) {
        return {lower[0], diag[0], upper[0], rhs[0], T(), T(), from_real<T>(-1)};
    } else {
#pragma unroll
        for (int k = 0; k < LAST; ++k) {
            if (k == 0) {
                const T w = reciprocal(diag[0]);
                rhs[0] = mul(rhs[0], w), lower[0] = mul(lower[0], w), upper[0] = mul(upper[0], w);
            } else {
                const T w = reciprocal(fnma(lower[k], upper[k - 1], diag[k]));
                rhs[k] = mul(fnma(lower[k], rhs[k - 1], rhs[k]), w);
                lower[k] = ops::negative(mul(mul(lower[k], lower[k - 1]), w));
                upper[k] = mul(upper[k], w);
            }
        }
        InterfaceRow<T> row;
        row.lower = ops::negative(mul(lower[LAST], lower[LAST - 1]));
        row.diag = fnma(lower[LAST], upper[LAST - 1], diag[LAST]);
        row.upper = upper[LAST];
        row.rhs = fnma(lower[LAST], rhs[LAST - 1], rhs[LAST]);
        row.first = rhs[LAST - 1], row.first_previous = lower[LAST - 1], row.first_own = upper[LAST - 1];
#pragma unroll
        for (int k = LAST - 2; k >= 0; --k) {
            row.first = fnma(upper[k], row.first, rhs[k]);
            row.first_previous = fnma(upper[k], row.first_previous, lower[k]);
            row.first_own = ops::negative(mul(upper[k], row.first_own));
        }
        return row;
    }
}

// Back substitution. Replaces `rhs` by the unknowns of a thread's rows, given the last one (own) and the one before the
// rows (previous).
template <class T, int ROWS>
DEVICE void back_substitute(const T (&lower)[ROWS], const T (&upper)[ROWS], T (&rhs)[ROWS], T previous, T own) {
    rhs[ROWS - 1] = own;
#pragma unroll
    for (int k = ROWS - 2; k >= 0; --k) rhs[k] = fnma(upper[k], rhs[k + 1], fnma(lower[k], previous, rhs[k]));
}

// Scales each of a thread's rows by a power of two if some numbers in them are near the ends of the range.
template <class T, int ROWS>
DEVICE void scale_rows(T (&lower)[ROWS], T (&diag)[ROWS], T (&upper)[ROWS], T (&rhs)[ROWS]) {
    using R = Real<T>;
    R least = abs1(diag[0]), most = least;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        least = ::fmin(least, abs1(diag[k]));
        most = ::fmax(most, ::fmax(abs1(diag[k]), abs1(lower[k]) + abs1(upper[k])));
    }
    constexpr R FAR = (R)0x1p60f;
    if (least * FAR >= (R)1 && most <= FAR) return;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        const R scale = binary_scale(::fmax(::fmax(abs1(lower[k]), abs1(diag[k])), abs1(upper[k])));
        lower[k] = scaled(lower[k], scale), diag[k] = scaled(diag[k], scale);
        upper[k] = scaled(upper[k], scale), rhs[k] = scaled(rhs[k], scale);
    }
}

// Returns whether all rows of a thread are diagonally dominant.
template <class T, int ROWS>
DEVICE bool is_dominant(const T (&lower)[ROWS], const T (&diag)[ROWS], const T (&upper)[ROWS]) {
    bool dominant = true;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) dominant = dominant && abs1(lower[k]) + abs1(upper[k]) <= abs_max(diag[k]);
    return dominant;
}

// ---- The interface rows of several threads --------------------------------------------------------------------

template <int WIDTH, class T>
DEVICE T from_below(T mine, int distance) {
    return __shfl_up_sync(ALL_LANES, mine, distance, WIDTH);
}
template <int WIDTH, class T>
DEVICE T from_above(T mine, int distance) {
    return __shfl_down_sync(ALL_LANES, mine, distance, WIDTH);
}
template <int WIDTH, class T>
DEVICE Complex<T> from_below(Complex<T> mine, int distance) {
    return {from_below<WIDTH>(mine.re, distance), from_below<WIDTH>(mine.im, distance)};
}
template <int WIDTH, class T>
DEVICE Complex<T> from_above(Complex<T> mine, int distance) {
    return {from_above<WIDTH>(mine.re, distance), from_above<WIDTH>(mine.im, distance)};
}

// Cyclic reduction of the interface rows of WIDTH adjacent lanes. In every step, every second remaining row eliminates
// the unknowns of the rows `apart` lanes below and above it. In back substitution, those rows compute their unknowns
// from it. This is one factorisation, and its error does not grow with the condition number. The error would grow if
// every lane reduced its own row to the end. Afterwards the unknown of a lane is d - a x - c y, where x and y are the
// unknowns of the lanes that eliminated it.
template <int WIDTH, class T>
struct CyclicReduction {
    T a, c, d;

    // Returns in the last lane the interface row of all lanes together.
    DEVICE InterfaceRow<T> reduce(const InterfaceRow<T>& own_row) {
        const int place = threadIdx.x % WIDTH + 1;
        InterfaceRow<T> row = own_row;
        if constexpr (WIDTH > 1) {
            const T next = from_above<WIDTH>(own_row.first, 1);
            const T next_previous = from_above<WIDTH>(own_row.first_previous, 1);
            const T next_own = from_above<WIDTH>(own_row.first_own, 1);
            if (place < WIDTH) row.couple(next, next_previous, next_own);
        }
        const T scale = reciprocal(row.diag);
        T outer = mul(row.upper, scale);  // the last lane's coefficient of the unknown after all lanes
        a = mul(row.lower, scale), c = place < WIDTH ? outer : T(), d = mul(row.rhs, scale);
#pragma unroll
        for (int apart = 1; apart < WIDTH; apart *= 2) {
            const T a_below = from_below<WIDTH>(a, apart), a_above = from_above<WIDTH>(a, apart);
            const T c_below = from_below<WIDTH>(c, apart), c_above = from_above<WIDTH>(c, apart);
            const T d_below = from_below<WIDTH>(d, apart), d_above = from_above<WIDTH>(d, apart);
            if (place % (2 * apart) == 0) {
                const T w = reciprocal(fnma(c, a_above, fnma(a, c_below, from_real<T>(1))));
                d = mul(fnma(c, d_above, fnma(a, d_below, d)), w);
                a = ops::negative(mul(mul(a, a_below), w));
                c = ops::negative(mul(mul(c, c_above), w));
                outer = mul(outer, w);
            }
        }
        // The first unknown of all lanes depends on the last unknown of the first lane. This depends on the unknown of
        // the lane that eliminated it, and so on up to the last lane.
        const int lane = threadIdx.x % 32 - (place - 1);
        T first = shuffle(own_row.first, lane), previous = shuffle(own_row.first_previous, lane);
        T own = shuffle(own_row.first_own, lane);
#pragma unroll
        for (int apart = 1; apart < WIDTH; apart *= 2) {
            first = fnma(own, shuffle(d, lane + apart - 1), first);
            previous = fnma(own, shuffle(a, lane + apart - 1), previous);
            own = ops::negative(mul(own, shuffle(c, lane + apart - 1)));
        }
        return {a, from_real<T>(1), outer, d, first, previous, own};
    }
    // Returns the last unknown of this lane's rows. `before` is the unknown before all lanes. `last` is the last lane's
    // own unknown, and only that lane needs it.
    DEVICE T back_substitute(T before, T last) const {
        const int place = threadIdx.x % WIDTH + 1;
        T x = place < WIDTH ? d : last;
#pragma unroll
        for (int apart = WIDTH / 2; apart > 0; apart /= 2) {
            const T below = from_below<WIDTH>(x, apart), above = from_above<WIDTH>(x, apart);
            if (place % (2 * apart) == apart) x = fnma(c, above, fnma(a, place == apart ? before : below, x));
        }
        return x;
    }
};

// The last unknown of a thread's rows, and the unknown before them.
template <class T>
struct InterfaceUnknowns {
    T own, previous;
};

// Solves the interface rows of all systems of a block.
template <class T, int THREADS, int SYSTEMS, bool INTERLEAVED>
DEVICE InterfaceUnknowns<T> solve_interfaces(InterfaceRow<T> row, int system, int rank) {
    constexpr int WIDTH = THREADS < 32 ? THREADS : 32, WARPS = THREADS / WIDTH;
    constexpr bool TRANSPOSE = THREADS > 1 && SYSTEMS > 1 && INTERLEAVED;
    if constexpr (TRANSPOSE) row = transpose_lanes<T, THREADS, SYSTEMS, false>(row, system, rank);
    CyclicReduction<WIDTH, T> reduction;
    const InterfaceRow<T> all = reduction.reduce(row);
    InterfaceUnknowns<T> known = {all.rhs, T()};  // of a system with at most one warp, only this row is left
    if constexpr (WARPS > 1) {
        // The first warp of a system solves the interface rows of all its warps.
        __shared__ InterfaceRow<T> warp_rows[SYSTEMS * WARPS];
        __shared__ T warp_unknowns[SYSTEMS * WARPS];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 31) warp_rows[warp] = all;
        __syncthreads();  // the rows of all warps are there
        if (warp % WARPS == 0) {
            const int mine = warp + lane % WARPS;
            CyclicReduction<WARPS, T> of_warps;
            const T last = of_warps.back_substitute(T(), of_warps.reduce(warp_rows[mine]).rhs);
            if (lane < WARPS) warp_unknowns[mine] = last;
        }
        __syncthreads();  // their last unknowns are there
        known = {warp_unknowns[warp], warp % WARPS > 0 ? warp_unknowns[warp > 0 ? warp - 1 : 0] : T()};
    }
    const T before = known.previous;
    known.own = reduction.back_substitute(before, known.own);
    known.previous = from_below<WIDTH>(known.own, 1);
    if (threadIdx.x % WIDTH == 0) known.previous = before;
    if constexpr (TRANSPOSE) known = transpose_lanes<T, THREADS, SYSTEMS, true>(known, system, rank);
    return known;
}

// ---- Short systems --------------------------------------------------------------------------------------------

template <class T, int ROWS, int THREADS, int SYSTEMS, bool INTERLEAVED, bool CHECKED, Access LOWER, Access DIAG,
          Access UPPER, Access RHS, Access OUT>
DEVICE void solve_in_order(BatchView<const T> lower, BatchView<const T> diag, BatchView<const T> upper,
                           BatchView<const T> rhs, BatchView<T> out, Index systems, Index middles, Index lows,
                           Index rows, Worklist remaining) {
    constexpr bool SHARED = shares_memory(THREADS, INTERLEAVED);
    const int thread = threadIdx.x, n = (int)rows;
    const int system = INTERLEAVED ? thread % SYSTEMS : thread / THREADS;
    const int rank = INTERLEAVED ? thread / SYSTEMS : thread % THREADS;
    const Index mine = (Index)blockIdx.x * SYSTEMS + system;
    // Threads past the last system repeat it, but store nothing.
    bool stores = mine < systems;
    const BatchIndex at = batch_index(stores ? mine : systems - 1, systems, middles, lows);
    const int begin = rank * ROWS, count = n - begin;
    T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
    load_rows<LOWER, DIAG, UPPER, RHS>({lower, diag, upper, rhs}, at, begin, rows, a, b, c, d);

    if constexpr (CHECKED) {
        const bool leave = any_of_system<THREADS, SYSTEMS, SHARED>(!is_dominant(a, b, c), system);
        remaining.add(leave && stores && rank == 0, mine);
        if (leave) stores = false;
        if (SHARED && SYSTEMS == 1 ? leave : !SHARED && __all_sync(ALL_LANES, leave)) return;
    }

    scale_rows(a, b, c, d);
    const InterfaceRow<T> row = forward_eliminate(a, b, c, d);
    const InterfaceUnknowns<T> known = solve_interfaces<T, THREADS, SYSTEMS, INTERLEAVED>(row, system, rank);
    back_substitute(a, c, d, known.previous, known.own);

    T sum = T();  // stays zero if all are finite
#pragma unroll
    for (int k = 0; k < ROWS; ++k) sum = fnma(T(), d[k], sum);
    const bool finite = ops::equal(sum, T());
    if (any_of_system<THREADS, SYSTEMS, SHARED>(!finite, system)) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k) d[k] = from_real<T>(infinity(Real<T>()) - infinity(Real<T>()));
    }
    if (stores) save<OUT>(out.system(at) + begin * out.along, out.along, count, d);
}

// ---- Long systems ---------------------------------------------------------------------------------------------

// The interface rows of a block's threads, reduced to one.
template <class T, int THREADS>
struct BlockReduction {
    static constexpr int WARPS = THREADS / 32, LAST = WARPS > 1 ? WARPS - 1 : 31;
    CyclicReduction<32, T> of_lanes;
    CyclicReduction<WARPS, T> of_warps;

    // Returns in thread LAST the interface row of all threads together.
    DEVICE InterfaceRow<T> reduce(const InterfaceRow<T>& row) {
        InterfaceRow<T> all = of_lanes.reduce(row);
        if constexpr (WARPS > 1) {
            __shared__ InterfaceRow<T> rows[WARPS];
            if (threadIdx.x % 32 == 31) rows[threadIdx.x / 32] = all;
            __syncthreads();  // the rows of all warps are there
            if (warp_number() == 0) all = of_warps.reduce(rows[threadIdx.x % WARPS]);
        }
        return all;
    }
    // Returns a thread's unknowns. `before` is the unknown before all threads' rows. `last` is the last unknown of all,
    // and only thread LAST needs it.
    DEVICE InterfaceUnknowns<T> back_substitute(T before, T last) const {
        if constexpr (WARPS > 1) {
            __shared__ T unknowns[WARPS];
            const int warp = warp_number();
            if (warp == 0) {
                const T known = of_warps.back_substitute(before, last);
                if (threadIdx.x < WARPS) unknowns[threadIdx.x] = known;
            }
            __syncthreads();  // the last unknowns of all warps are there
            last = unknowns[warp], before = warp > 0 ? unknowns[warp > 0 ? warp - 1 : 0] : before;
        }
        InterfaceUnknowns<T> known = {of_lanes.back_substitute(before, last), before};
        const T previous = from_below<32>(known.own, 1);
        if (threadIdx.x % 32 > 0) known.previous = previous;
        return known;
    }
};

// A level of reduced systems. Its rows are the interface rows of the blocks of the level below: 7 arrays of numbers for
// each system. The unknowns of all systems follow them, then the next level. Arrays have whole vectors.
template <class T, int PART>
struct InterfaceLevel {
    T* numbers;
    Index systems, rows;

    DEVICE Index pitch() const { return whole_vectors<T>(rows); }
    DEVICE T* row(Index system, Index at) const { return numbers + system * 7 * pitch() + at; }
    DEVICE T* unknown(Index system, Index at) const { return numbers + (7 * systems + system) * pitch() + at; }
    DEVICE Index parts() const { return (rows + PART - 1) / PART; }
    DEVICE InterfaceLevel next() const { return {numbers + 8 * systems * pitch(), systems, parts()}; }
};

// Loads a thread's rows of a level. Each is coupled with the next row. Rows past the end become x = 0.
template <class T, int PART, int ROWS>
DEVICE void load_level(const InterfaceLevel<T, PART>& level, Index system, Index begin, T (&a)[ROWS], T (&b)[ROWS],
                       T (&c)[ROWS], T (&d)[ROWS]) {
    const Index pitch = level.pitch();
    const int count = (int)max((Index)0, min((Index)ROWS, level.rows - begin));
    const T* const from = level.row(system, begin);
    T first[3][ROWS];
    load<ASCENDING>(from, 1, count, T(), a);
    load<ASCENDING>(from + pitch, 1, count, T(), b);
    load<ASCENDING>(from + 2 * pitch, 1, count, T(), c);
    load<ASCENDING>(from + 3 * pitch, 1, count, T(), d);
#pragma unroll
    for (int k = 0; k < 3; ++k) load<ASCENDING>(from + (4 + k) * pitch, 1, count, T(), first[k]);
    const bool more = begin + ROWS < level.rows;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        InterfaceRow<T> row = {a[k], b[k], T(), d[k]};
        if (k + 1 < ROWS && k + 1 < count) {
            constexpr int LAST = ROWS - 1;
            const int next = k < LAST ? k + 1 : LAST;
            row.upper = c[k], row.couple(first[0][next], first[1][next], first[2][next]);
        } else if (k + 1 == ROWS && more) {
            row.upper = c[k], row.couple(from[4 * pitch + ROWS], from[5 * pitch + ROWS], from[6 * pitch + ROWS]);
        }
        if (k >= count) row = {T(), from_real<T>(1)};
        a[k] = row.lower, b[k] = row.diag, c[k] = row.upper, d[k] = row.rhs;
    }
}

// Carries out a step of an elimination whose rows are loaded. REDUCE: stores the part's row of the next level. SOLVE,
// EXPAND: d becomes the unknowns, all unknowns of the system or the unknowns between those of the next level; returns
// true.
template <int THREADS, class T, int ROWS, class Level>
DEVICE bool eliminate_part(LevelStep step, const Level& next, Index system, Index part, T (&a)[ROWS], T (&b)[ROWS],
                           T (&c)[ROWS], T (&d)[ROWS]) {
    BlockReduction<T, THREADS> reduction;
    const InterfaceRow<T> all = reduction.reduce(forward_eliminate(a, b, c, d));
    if (step == REDUCE) {
        if (threadIdx.x == reduction.LAST) all.store(next.row(system, part), next.pitch());
        return false;
    }
    T before = T(), last = all.rhs;
    if (step == EXPAND) {
        const T* const known = next.unknown(system, part);
        last = known[0], before = part > 0 ? known[-1] : T();
    }
    const InterfaceUnknowns<T> known = reduction.back_substitute(before, last);
    back_substitute(a, c, d, known.previous, known.own);
    return true;
}

// Reduces the given systems. CHECKED: marks those that are not diagonally dominant.
template <class T, int ROWS, int THREADS, bool CHECKED, Access LOWER, Access DIAG, Access UPPER, Access RHS>
DEVICE void reduce_in_order(SystemBatch<T> s, T* levels, unsigned* undominated) {
    constexpr int PART = ROWS * THREADS;
    const Index parts = (s.rows + PART - 1) / PART;
    const InterfaceLevel<T, PART> next = {levels, s.systems, parts};
    Index passed_over = -1;  // in thread 0, a system that another block has found not to be dominant
    for_each_part(s.systems, parts, [](Index) { return true; }, [&](Index system, Index part) {
        if (CHECKED && any_of_block(threadIdx.x == 0 && passed_over == system)) return;
        T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
        const Index begin = part * PART + threadIdx.x * ROWS;
        load_rows<LOWER, DIAG, UPPER, RHS>({s.lower, s.diag, s.upper, s.rhs}, s.index(system), begin, s.rows, a, b, c,
                                           d);
        if constexpr (CHECKED) {
            const bool leave = any_of_block(!is_dominant(a, b, c));
            if (leave) {
                if (threadIdx.x == 0) {
                    atomicOr(&undominated[system], 1u);
                    passed_over = system;
                }
                return;
            }
            if (threadIdx.x == 0 && read_current(&undominated[system]) != 0) passed_over = system;
        }
        scale_rows(a, b, c, d);
        eliminate_part<THREADS>(REDUCE, next, system, part, a, b, c, d);
        if (THREADS > 32) __syncthreads();  // the shared rows have been read before they are written again
    });
}

// Solves the reduced systems, and initialises the states of all systems. CHECKED: leaves the marked systems (left). A
// block of the given systems had BELOW rows.
template <class T, int ROWS, int THREADS, int BELOW, bool CHECKED>
DEVICE void solve_reduced_in_order(T* levels, Index systems, Index rows, SystemState* states, unsigned* undominated,
                                   Worklist left, PhaseCounters* counters) {
    using Level = InterfaceLevel<T, ROWS * THREADS>;
    const Level lowest = {levels, systems, (rows + BELOW - 1) / BELOW};
    for_each_reduced_part(counters, lowest, systems, [&](LevelStep step, const Level& mine, Index system, Index part) {
        if (step == SOLVE) {
            bool exchange = false;
            if constexpr (CHECKED) {
                exchange = any_of_block(threadIdx.x == 0 && undominated[system] != 0);
                if (exchange && threadIdx.x == 0) {
                    undominated[system] = 0;
                    left.list[atomicAdd(&left.counts[0], 1u)] = (unsigned)system;
                }
            }
            if (threadIdx.x == 0) states[system] = {{0, 0}, exchange};
            if (exchange) return;
        }
        if (CHECKED && step == EXPAND && states[system].exchange) return;
        const Index begin = (part * THREADS + threadIdx.x) * ROWS;
        T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
        load_level(mine, system, begin, a, b, c, d);
        if (eliminate_part<THREADS>(step, mine.next(), system, part, a, b, c, d))
            save<ASCENDING>(mine.unknown(system, begin), 1, (int)max((Index)0, min((Index)ROWS, mine.rows - begin)), d);
    });
}

// Computes the unknowns of the given systems. `lost` lists the solutions with a number that is not finite, and the
// block that finishes last fills these with NaN.
template <class T, int ROWS, int THREADS, bool CHECKED, Access LOWER, Access DIAG, Access UPPER, Access RHS, Access OUT>
DEVICE void expand_in_order(SystemBatch<T> s, T* levels, SystemState* states, Worklist lost, unsigned* ticket) {
    constexpr int PART = ROWS * THREADS;
    const Index parts = (s.rows + PART - 1) / PART;
    const InterfaceLevel<T, PART> next = {levels, s.systems, parts};
    const auto due = [&](Index system) { return !CHECKED || !states[s.systems - 1 - system].exchange; };
    for_each_part(s.systems, parts, due, [&](Index system, Index part) {
        // The rows that were read last come first, as they may still be in the cache.
        system = s.systems - 1 - system, part = parts - 1 - part;
        const BatchIndex at = s.index(system);
        const Index begin = part * PART + threadIdx.x * ROWS;
        const int count = (int)max((Index)0, min((Index)ROWS, s.rows - begin));
        T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
        load_rows<LOWER, DIAG, UPPER, RHS>({s.lower, s.diag, s.upper, s.rhs}, at, begin, s.rows, a, b, c, d);
        scale_rows(a, b, c, d);
        eliminate_part<THREADS>(EXPAND, next, system, part, a, b, c, d);
        save<OUT>(s.out.system(at) + begin * s.out.along, s.out.along, count, d);
        T sum = T();  // stays zero if all are finite
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < count) sum = fnma(T(), d[k], sum);
        if (!ops::equal(sum, T()) && atomicOr(&states[system].not_finite, 1u) == 0)
            lost.list[atomicAdd(&lost.counts[0], 1u)] = (unsigned)system;
    });
    if (!is_last_to_arrive(ticket, gridDim.x)) return;
    const unsigned count = read_current(lost.counts);
#pragma unroll 1
    for (unsigned k = 0; k < count; ++k) {
        const Index system = lost.list[k];
        T* const to = s.out.system(s.index(system));
#pragma unroll 1
        for (Index row = threadIdx.x; row < s.rows; row += THREADS)
            to[row * s.out.along] = from_real<T>(infinity(Real<T>()) - infinity(Real<T>()));
    }
    __syncthreads();  // all have read the count
    if (threadIdx.x == 0) *lost.counts = 0;
}

// The stable solver (see stable.cu) for long systems, in phases of one launch (phases.cuh), solve_stably. If only some
// rows have too large an error, it first solves windows around them.
//
// A system is cut into chunks of THREADS * ROWS rows, with one block for each:
//   1. Every chunk is reduced to one segment.
//   2. Segments are merged, THREADS at a time, level by level until one is left. This segment is solved, and back
//      substitution computes the pair of unknowns y at the beginning of every chunk.
//   3. The elimination of a chunk's rows is repeated, which computes the unknowns between two pairs.
//   4. If a row then has too large an error, all phases are repeated for the residual.
//   5. Second solutions are copied to the result if they are better. A solution with a number that is not finite
//      becomes NaN.

#include "common.cuh"
#include "phases.cuh"
#include "stable.cuh"
#include "tridiagonal_common.cuh"
#include "tridiagonal_long.cuh"

template <class T, int ROWS, int THREADS>
struct ChunkSolver : BlockSolver<T, ROWS, THREADS, 1, false> {
    static constexpr int LENGTH = ROWS * THREADS, PLACES = (ROWS + 1) * THREADS;
    T* to;  // the solution
    // The solution so far: the unknowns of this thread's rows, the unknown before them and the unknown after.
    T solution[ROWS], before, behind;

    DEVICE void set_places() {
        extern __shared__ uint4 shared[];
        this->lower = reinterpret_cast<T*>(shared);
        this->diag = this->lower + PLACES;
        this->upper = this->diag + PLACES;
        this->rhs = this->upper + PLACES;
        this->slots.first = this->rhs + PLACES;
    }
    DEVICE void load(const BatchView<const T>& array, const BatchIndex& at, Index begin, T* places) const {
        const T* from = array.system(at) + (begin + threadIdx.x) * array.along;
        const Index step = THREADS * array.along;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const int row = threadIdx.x + k * THREADS;
            if (row < this->n) places[this->place(row)] = *from;
            from += step;
        }
    }
    // Loads rows to shared memory. The solution so far becomes the first one if `refine`, zeros otherwise.
    template <bool PERIODIC>
    DEVICE void load_rows(const SystemBatch<T>& s, Index system, Index begin, Index end, bool refine) {
        const BatchIndex p = s.index(system);
        this->n = (int)(end - begin);
        this->segments = (this->n + ROWS - 1) / ROWS;
        this->pitch = PLACES;
        this->system = 0, this->rank = threadIdx.x;
        this->own = this->place(this->rank * ROWS);
        this->count = max(0, min(ROWS, this->n - this->rank * ROWS));
        set_places();
        to = s.out.system(p);
        load(s.lower, p, begin, this->lower);
        load(s.diag, p, begin, this->diag);
        load(s.upper, p, begin, this->upper);
        load(s.rhs, p, begin, this->rhs);
        if (!PERIODIC) {  // by the threads that have loaded these numbers
            const int last = (int)(s.rows - 1 - begin);
            if (begin == 0 && threadIdx.x == 0) this->lower[this->place(0)] = T();
            if (end == s.rows && threadIdx.x == last % THREADS) this->upper[this->place(last)] = T();
        }
        const Index first = begin + this->rank * ROWS, along = s.out.along, whole = s.rows * along;
        const T* from = to + first * along;
        before = behind = T();
        if (refine && this->count > 0) {
            before = first > 0 ? from[-along] : from[whole - along];
            behind = first + this->count < s.rows ? from[this->count * along] : *to;
        }
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            solution[k] = refine && k < this->count ? *from : T();
            from += along;
        }
        __syncthreads();  // rows are there for all
    }
    // Takes the known unknown `x` out of row k of this thread. Its coefficient is in `array`.
    DEVICE void fix(int k, T* array, T x) const {
        const int at = this->own + k;
        const T rhs = this->rhs[at];
        this->rhs[at] = fnma(array[at], x, rhs);
        array[at] = T();
    }
};

// The segments of all systems on one level, then the first unknowns y of every segment, then the next level.
template <class T, int THREADS>
struct SegmentLevel {
    T* numbers;
    Index systems, count;

    DEVICE SegmentStore<T, 0> segments(Index system) const { return {numbers + system * 10 * count, count}; }
    DEVICE T* pairs(Index system, int k) const { return numbers + (10 * systems + 2 * system + k) * count; }
    DEVICE Index parts() const { return (count + THREADS - 1) / THREADS; }
    DEVICE SegmentLevel next() const { return {numbers + 12 * systems * count, systems, parts()}; }
};

// Raises `largest` to the largest backward error of the threads of a block.
template <class R>
DEVICE void record_error(R mine, unsigned long long* largest) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) mine = ::fmax(mine, __shfl_xor_sync(ALL_LANES, mine, lanes));
    const unsigned long long bits = (unsigned long long)__double_as_longlong((double)mine);
    if (threadIdx.x % 32 == 0 && bits > read_current(largest)) atomicMax(largest, bits);
}

// Solves the systems that are due. WINDOWED: first refines windows as refine_windows does, of the systems on the list
// `windowed`, and adds the systems that this did not fix to those that are due. A mark stands for MARKED rows.
// EXCHANGE: exchanges rows, and solves systems with a large error again for the residual; `again` lists them, and
// `second` takes the sums with the first solution.
template <class T, int ROWS, int THREADS, int MARKED, bool WINDOWED, bool EXCHANGE, bool PERIODIC>
DEVICE void solve_stably(SystemBatch<T> s, T* segments, T* second, SystemState* states, const unsigned* marks,
                         Worklist windowed, Worklist due, Worklist again, PhaseCounters* counters) {
    using C = ChunkSolver<T, ROWS, THREADS>;
    using Level = SegmentLevel<T, THREADS>;
    const Index chunks = (s.rows + C::LENGTH - 1) / C::LENGTH;
    if (count_due(due, s.systems) == 0 && (!WINDOWED || *windowed.counts == 0)) return;
    const Level lowest = {segments, s.systems, chunks};
    const int levels = count_levels_below_top(lowest) + 1;  // of segments
    // The first two phases refine windows. Steps of a pass: chunks are reduced to the segments of level 0; the levels 0
    // ... levels-2 are merged, the last level is closed, the levels before it are expanded; chunks are solved. There
    // are two passes, one of them without row exchanges. The last phase copies second solutions.
    // passes, one without row exchanges. The last phase copies second solutions.
    constexpr int begin_passes = WINDOWED ? 2 : 0;
    const int steps = 2 * levels + 1, copying = begin_passes + (EXCHANGE ? 2 : 1) * steps;
    const auto shift_of = [](int phase) -> Index { return (THREADS / 8 + phase * (THREADS / 2)) * ROWS; };
    const auto number_of_level = [=](int step) {
        return step == 0 || step == steps - 1 ? -1 : step <= levels ? step - 1 : 2 * levels - 1 - step;
    };
    const auto parts_of = [&](int phase) {
        if (phase < begin_passes) return Window::count(s.rows, C::LENGTH, shift_of(phase));
        const int number = number_of_level((phase - begin_passes) % steps);
        return phase == copying || number < 0 ? chunks : level_above(lowest, number).parts();
    };
    const auto length = [&](int phase) -> Index {
        const bool passes_again = phase >= begin_passes + steps && phase < copying;
        const Index systems = phase < begin_passes ? (Index)*windowed.counts
                              : passes_again       ? (Index)*again.counts
                                                   : count_due(due, s.systems);
        return systems * parts_of(phase);
    };
    const bool finished = for_each_item(counters, copying + 1, length, [&](int phase, Index item) {
        const bool windows = WINDOWED && phase < begin_passes;
        const bool refine = EXCHANGE && phase >= begin_passes + steps;
        const int step = windows ? steps - 1 : (phase - begin_passes) % steps, number = number_of_level(step);
        const Index parts = parts_of(phase), at = quotient(item, parts), part = item - at * parts;
        const Index system = windows                     ? (Index)windowed.list[at]
                             : refine && phase < copying ? (Index)again.list[at]
                                                         : due_system(due, at);
        SystemState& state = states[system];
        Index begin = part * C::LENGTH, end = min(s.rows, begin + C::LENGTH);
        if (phase == copying) {
            const bool use_second = state.refine && state.errors[1] < state.errors[0];
            if (!state.not_finite && !use_second) return;
            T* const to = s.out.system(s.index(system));
            const T nan = from_real<T>(infinity(Real<T>()) - infinity(Real<T>()));
#pragma unroll 1
            for (Index row = begin + threadIdx.x; row < end; row += THREADS)
                to[row * s.out.along] = use_second ? second[system * s.rows + row] : nan;
            return;
        }
        // The rows of a window that are not refined, and its first and last unknown if these stay as they are.
        bool middle = true, first = false, last = false;
        if (windows) {
            if (has_many_failures(state, 3, s.rows)) {
                if (threadIdx.x == 0) leave_system(due, system, state, 4);
                return;
            }
            const Window window(s.rows, part, C::LENGTH, shift_of(phase), ROWS, (THREADS / 4 - 1) * ROWS);
            const unsigned* const others =
                marks + (s.systems + system) * ((s.rows + 32 * MARKED - 1) / (32 * MARKED));
            const Index mine = window.low + threadIdx.x * ROWS;
            const int count = (int)max((Index)0, min((Index)ROWS, window.high - mine));
            middle = window.is_in_middle(mine, count);
            bool marked = false;
#pragma unroll 1
            for (Index row = mine; middle && row < mine + count; row += MARKED)
                marked = marked || others[row / MARKED / 32] >> row / MARKED % 32 & 1;
            if (!__syncthreads_or(marked)) return;
            first = threadIdx.x == 0 && window.low > 0;
            last = count > 0 && mine + count == window.high && window.high < s.rows;
            begin = window.low, end = window.high;
        }
        // The segments of a level, or if `number` is -1 of rows, are merged into one.
        const Level mine = level_above(lowest, max(number, 0)), next = number < 0 ? mine : mine.next();
        C chunk;
        if (number < 0) {
            chunk.template load_rows<PERIODIC>(s, system, begin, end, refine || windows);
            // The unknowns outside a window are known. Their terms go to the right-hand sides.
            if (first) chunk.fix(0, chunk.lower, chunk.before);
            if (last) chunk.fix(chunk.count - 1, chunk.upper, chunk.behind);
        } else {
            chunk.set_places();
        }
        T(&x)[ROWS] = chunk.solution;
        Real<T> error = 0;
        bool wrong = false, kept = false;  // left to another window
#pragma unroll 1
        for (int pass = 0;; ++pass) {
            Equation<T, 5> equations[ROWS];
            int count;
            if (number < 0) {
                if (pass == 1 && !windows && !EXCHANGE) break;
                T rhs[ROWS];
                if (pass > 0 || refine || windows) {
                    error = chunk.residuals(x, chunk.before, chunk.behind, rhs);
                } else {
#pragma unroll
                    for (int k = 0; k < ROWS; ++k) rhs[k] = k < chunk.count ? chunk.given_rhs(k) : T();
                }
                if (windows) {
                    wrong = exceeds((Real<T>)8, error, (Real<T>)1);
                    if (pass == 0) kept = wrong && !middle;
                    wrong = wrong && !kept;
                    if (pass == 3 || !__syncthreads_or(wrong)) break;
                } else if (pass == 1) {
                    break;
                }
                if (refine && step == 0) record_error(error, &state.errors[0]);
                chunk.reduce_rows(EXCHANGE, [&](int k) { return windows && !wrong ? T() : rhs[k]; }, equations);
                count = chunk.segments;
            } else {
                count = (int)min((Index)THREADS, mine.count - part * THREADS);
                if (threadIdx.x < count)
                    chunk.slots.store(threadIdx.x, mine.segments(system).load(part * THREADS + threadIdx.x));
                __syncthreads();  // the segments are there
            }
            const auto slot = [](int i) { return i; };
            merge_all(chunk.slots, count, (int)threadIdx.x, THREADS, EXCHANGE, slot, C::sync);
            if (step < levels) {
                if (threadIdx.x == 0) next.segments(system).store(part, chunk.slots.load(0));
                return;
            }
            const bool closes = windows || step == levels;
            if (closes) {
                if (threadIdx.x == 0) {
                    chunk.slots.close(0);
                    if (!windows && !refine) state = {{0, 0}, 1};
                }
            } else if (threadIdx.x < 2) {
                const T* y = next.pairs(system, threadIdx.x);
                chunk.slots.at(0, threadIdx.x) = y[part];
                chunk.slots.at(THREADS, threadIdx.x) = y[part + 1 < next.count ? part + 1 : 0];
            }
            __syncthreads();  // both ends are known to all
            const int last_slot = closes ? 0 : THREADS;
            back_substitute_all(chunk.slots, count, (int)threadIdx.x, THREADS, (Index)last_slot, slot, C::sync);
            if (number >= 0) {
                for (int k = 0; k < 2; ++k)
                    if (threadIdx.x < count)
                        mine.pairs(system, k)[part * THREADS + threadIdx.x] = chunk.slots.at(threadIdx.x, k);
                return;
            }
            T y[ROWS], before, behind;
            chunk.expand_rows(equations, last_slot, y, before, behind);
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < chunk.count && !(k == 0 && first) && !(k == chunk.count - 1 && last))
                    x[k] = ops::add(x[k], y[k]);
            chunk.before = ops::add(chunk.before, before), chunk.behind = ops::add(chunk.behind, behind);
        }
        if (windows) {
            if (__syncthreads_or(wrong)) {
                if (threadIdx.x == 0) leave_system(due, system, state, 4);
                return;
            }
        } else if (refine) {
            record_error(error, &state.errors[1]);
        } else {
            bool finite = true;
#pragma unroll
            for (int k = 0; k < ROWS; ++k) finite = finite && (k >= chunk.count || ops::isfinite(x[k]));
            if (__syncthreads_or(!finite) && threadIdx.x == 0) atomicOr(&state.not_finite, 1u);
            if (EXCHANGE && __syncthreads_or(exceeds((Real<T>)6, error, (Real<T>)1)) && threadIdx.x == 0 &&
                atomicOr(&state.refine, 1u) == 0)
                again.list[atomicAdd(&again.counts[0], 1u)] = (unsigned)system;
        }
        __syncthreads();  // all have read the right-hand sides
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < chunk.count) chunk.rhs[chunk.own + k] = x[k];
        __syncthreads();  // the solution is there for all
        const Index along = refine ? 1 : s.out.along;
        T* to = (refine ? second + system * s.rows : chunk.to) + (begin + threadIdx.x) * along;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const int row = threadIdx.x + k * THREADS;
            if (row < chunk.n) *to = chunk.rhs[chunk.place(row)];
            to += THREADS * along;
        }
    });
    if (finished) {
        *again.counts = 0;
        if (WINDOWED) *windowed.counts = 0;
        if (due.counts) *due.counts = 0;
    }
}

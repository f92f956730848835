// The stable solver (see _tridiagonal_stable.cu) for long systems.
//
// A system is cut into chunks of THREADS * ROWS rows, with one block for each:
//   reduce_chunks     reduces every chunk to one segment.
//   merge_segments    merges segments, THREADS at a time, until one is left. This one is solved, and back substitution
//                     computes the pair of unknowns y with which every chunk begins.
//   solve_chunks      repeats the elimination of a chunk's rows and computes the unknowns between two pairs.
// If a row then has too large an error, all of it is repeated for the residual (REFINE). The blocks of a launch take
// the chunks in turn, and return at once if there is nothing to do.
//
// Template parameters besides those in _tridiagonal_common.cuh:
//   EXCHANGE    whether rows are exchanged
//   PERIODIC    whether the first and the last unknown are neighbours
//   UNSOLVED    the bits of SystemState::unsolved by which earlier launches leave a system to these, or 0
//   REFINE      whether the launch solves for the residual of the first solution

// Returns whether the launch has to do with a system.
template <int UNSOLVED, bool REFINE>
DEVICE bool is_due(const SystemState& state) {
    return REFINE ? state.refine != 0 : UNSOLVED == 0 || state.unsolved & UNSOLVED;
}

template <class T, int ROWS, int THREADS, bool PERIODIC, bool REFINE>
struct ChunkSolver : BlockSolver<T, ROWS, THREADS, 1, false> {
    static constexpr int LENGTH = ROWS * THREADS, PLACES = (ROWS + 1) * THREADS;
    Index at, chunk, chunks;  // the system, and which of its chunks this block has
    T* to;                    // its solution
    // The first solution: the unknowns of this thread's rows, the one before and the one after.
    T first_solution[ROWS], before, behind;

    static DEVICE Index count_chunks(Index rows) { return (rows + LENGTH - 1) / LENGTH; }

    // Loads the chunk's rows to shared memory.
    DEVICE void load_chunk(const SystemBatch<T>& s, Index system, Index part) {
        chunks = count_chunks(s.rows), at = system, chunk = part;
        load_rows(s, at, chunk * LENGTH, min(s.rows, (chunk + 1) * LENGTH));
    }
    DEVICE void load_rows(const SystemBatch<T>& s, Index system, Index begin, Index end) {
        extern __shared__ uint4 shared[];
        const BatchIndex p = s.index(system);
        this->n = (int)(end - begin);
        this->segments = (this->n + ROWS - 1) / ROWS;
        this->pitch = PLACES;
        this->system = 0, this->rank = threadIdx.x;
        this->own = this->place(this->rank * ROWS);
        this->count = max(0, min(ROWS, this->n - this->rank * ROWS));
        this->lower = reinterpret_cast<T*>(shared);
        this->diag = this->lower + PLACES;
        this->upper = this->diag + PLACES;
        this->rhs = this->upper + PLACES;
        this->slots.first = this->rhs + PLACES;
        const T *a = s.lower.system(p), *b = s.diag.system(p);
        const T *c = s.upper.system(p), *d = s.rhs.system(p);
        to = s.out.system(p);
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const int row = this->rank + k * THREADS, place = this->place(row);
            const Index i = begin + row;
            if (row < this->n) {
                this->lower[place] = i > 0 || PERIODIC ? a[i * s.lower.along] : T();
                this->diag[place] = b[i * s.diag.along];
                this->upper[place] = i < s.rows - 1 || PERIODIC ? c[i * s.upper.along] : T();
                this->rhs[place] = d[i * s.rhs.along];
            }
        }
        if constexpr (REFINE) {
            const Index first = begin + this->rank * ROWS, last = first + this->count;
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                first_solution[k] = k < this->count ? to[(first + k) * s.out.along] : T();
            before = behind = T();
            if (this->count > 0) {
                before = to[(first > 0 ? first - 1 : s.rows - 1) * s.out.along];
                behind = to[(last < s.rows ? last : 0) * s.out.along];
            }
        }
        __syncthreads();  // rows are there for all
    }
    // Reduces the chunk to one segment. `error` becomes the backward error of the first solution in this thread's rows.
    DEVICE void reduce_all(bool exchange, Equation<T, 5> (&equations)[ROWS], Real<T>& error) const {
        this->reduce(
            exchange,
            [&](int k, typename ChunkSolver::Row row) {
                if constexpr (REFINE)
                    return this->residual(k, row, first_solution, before, behind, error);
                else
                    return this->rhs[this->own + k];
            },
            equations);
    }
};

// Refines windows as refine_windows does, but by the stable solver, where that did not fix a large error, as where the
// matrix is nearly singular. A block takes a window. A mark stands for MARKED rows.
template <class T, int ROWS, int THREADS, int MARKED>
DEVICE void refine_windows_stably(SystemBatch<T> s, const unsigned* marks, SystemState* states) {
    using C = ChunkSolver<T, ROWS, THREADS, false, true>;
    const Index launch = launch_number(&states->refining_blocks[1]);
    const Index shift = (THREADS / 8 + launch * (THREADS / 2)) * ROWS;
    const Index windows = Window::count(s.rows, C::LENGTH, shift), parts = (s.rows + 32 * MARKED - 1) / (32 * MARKED);
    const auto due = [&](Index system) {
        return (states[system].unsolved & 2) != 0 && !has_many_failures(states[system], 3, s.rows);
    };
    for_each_part(s.systems, windows, due, [&](Index system, Index number) {
        const Window window(s.rows, number, C::LENGTH, shift, ROWS, (THREADS / 4 - 1) * ROWS);
        const unsigned* const others = marks + (s.systems + system) * parts;
        const Index begin = window.low + threadIdx.x * ROWS;
        const int count = (int)max((Index)0, min((Index)ROWS, window.high - begin));
        const bool middle = window.is_in_middle(begin, count);
        bool marked = false;
        for (Index row = begin; middle && row < begin + count; row += MARKED)
            marked = marked || others[row / MARKED / 32] >> row / MARKED % 32 & 1;
        if (!__syncthreads_or(marked)) return;
        C chunk;
        chunk.load_rows(s, system, window.low, window.high);
        // The unknowns outside the window are known. Their terms go to the right-hand sides.
        const bool first = threadIdx.x == 0 && window.low > 0, last = count > 0 && begin + count == window.high &&
                                                                       window.high < s.rows;
        if (first) {
            const T rhs = chunk.rhs[chunk.own];
            chunk.rhs[chunk.own] = fnma(chunk.lower[chunk.own], chunk.before, rhs);
            chunk.lower[chunk.own] = T();
        }
        if (last) {
            const int at = chunk.own + count - 1;
            const T rhs = chunk.rhs[at];
            chunk.rhs[at] = fnma(chunk.upper[at], chunk.behind, rhs);
            chunk.upper[at] = T();
        }
        T(&x)[ROWS] = chunk.first_solution;
        bool wrong = chunk.has_large_error(x, chunk.before, chunk.behind, 8);
        const bool kept = wrong && !middle;  // left to another window
        wrong = wrong && middle;
#pragma unroll 1
        for (int pass = 0; pass < 3 && __syncthreads_or(wrong); ++pass) {
            T y[ROWS], before, behind;
            Real<T> error = 0;
            chunk.solve(
                true,
                [&](int k, typename C::Row row) {
                    return wrong ? chunk.residual(k, row, x, chunk.before, chunk.behind, error) : T();
                },
                y, before, behind);
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < chunk.count && !(k == 0 && first) && !(k == chunk.count - 1 && last))
                    x[k] = ops::add(x[k], y[k]);
            chunk.before = ops::add(chunk.before, before), chunk.behind = ops::add(chunk.behind, behind);
            wrong = chunk.has_large_error(x, chunk.before, chunk.behind, 8) && !kept;
        }
        if (!__syncthreads_or(wrong)) {
            const Index along = s.out.along;
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < chunk.count) chunk.to[(begin + k) * along] = x[k];
        } else if (threadIdx.x == 0) {
            atomicOr(&states[system].unsolved, 4u);
        }
    });
}

// Raises `largest` to the largest backward error of the threads of a block.
template <class R>
DEVICE void record_error(R mine, unsigned long long* largest) {
    double error = (double)mine;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) error = ::fmax(error, __shfl_xor_sync(0xffffffffu, error, lanes));
    const unsigned long long bits = (unsigned long long)__double_as_longlong(error);
    if (threadIdx.x % 32 == 0 && bits > __ldcg(largest)) atomicMax(largest, bits);
}

template <class T, int ROWS, int THREADS, bool EXCHANGE, bool PERIODIC, int UNSOLVED, bool REFINE>
DEVICE void reduce_chunks(SystemBatch<T> s, T* segments, SystemState* states) {
    using C = ChunkSolver<T, ROWS, THREADS, PERIODIC, REFINE>;
    const auto due = [&](Index system) { return is_due<UNSOLVED, REFINE>(states[system]); };
    for_each_part(s.systems, C::count_chunks(s.rows), due, [&](Index system, Index part) {
        C chunk;
        SystemState& state = states[system];
        chunk.load_chunk(s, system, part);
        Equation<T, 5> equations[ROWS];
        Real<T> error = 0;
        chunk.reduce_all(EXCHANGE, equations, error);
        if (REFINE) record_error(error, &state.errors[0]);
        const SegmentStore<T, 0> kept = {segments + chunk.at * 10 * chunk.chunks, chunk.chunks};
        if (threadIdx.x == 0) kept.store(chunk.chunk, chunk.slots.load(0));
        __syncthreads();  // the segment has been read before the slots are written again
    });
}

enum MergePhase { MERGE, CLOSE, SUBSTITUTE };

// Takes the `count` segments of every system, THREADS at a time. MERGE: merges them to segments of the next level.
// CLOSE: merges them to one and solves it, and computes the pair with which every segment begins. SUBSTITUTE: merges
// them again and computes these pairs from those of the next level.
template <class T, int THREADS, bool EXCHANGE, int UNSOLVED, bool REFINE, MergePhase PHASE>
DEVICE void merge_segments(const T* segments, T* merged, const T* known, T* ys, SystemState* states, Index systems,
                          Index count) {
    extern __shared__ uint4 shared[];
    const SegmentStore<T, THREADS + 2> slots = {reinterpret_cast<T*>(shared), 0};
    const int thread = threadIdx.x;
    const Index parts = (count + THREADS - 1) / THREADS;
    const auto slot = [](int i) { return i; };
    const auto sync = [] { __syncthreads(); };
    const auto due = [&](Index system) { return is_due<UNSOLVED, REFINE>(states[system]); };
    for_each_part(systems, parts, due, [&](Index system, Index part) {
        SystemState& state = states[system];
        const int here = (int)min((Index)THREADS, count - part * THREADS);
        const SegmentStore<T, 0> from = {const_cast<T*>(segments) + system * 10 * count, count};
        if (thread < here) slots.store(thread, from.load(part * THREADS + thread));
        __syncthreads();  // the segments are there
        merge_all(slots, here, thread, THREADS, EXCHANGE, slot, sync);
        if constexpr (PHASE == MERGE) {
            const SegmentStore<T, 0> next = {merged + system * 10 * parts, parts};
            if (thread == 0) next.store(part, slots.load(0));
        } else {
            if (PHASE == CLOSE && thread == 0) {
                slots.close(0);
                if (!REFINE) state = {{0, 0}, UNSOLVED != 0, 0, 0, UNSOLVED ? 15 : 0};
            }
            if (PHASE == SUBSTITUTE && thread < 2) {
                const T* y = known + (system * 2 + thread) * parts;
                slots.at(0, thread) = y[part], slots.at(THREADS, thread) = y[part + 1 < parts ? part + 1 : 0];
            }
            __syncthreads();  // both ends are known to all
            back_substitute_all(slots, here, thread, THREADS, PHASE == CLOSE ? 0 : THREADS, slot, sync);
            if (thread < here) {
                for (int k = 0; k < 2; ++k)
                    ys[(system * 2 + k) * count + part * THREADS + thread] = slots.at(thread, k);
            }
        }
        __syncthreads();  // all have read the slots before they are written again
    });
}

template <class T, int ROWS, int THREADS, bool EXCHANGE, bool PERIODIC, int UNSOLVED, bool REFINE>
DEVICE void solve_chunks(SystemBatch<T> s, const T* ys, T* second, SystemState* states) {
    using C = ChunkSolver<T, ROWS, THREADS, PERIODIC, REFINE>;
    const auto due = [&](Index system) { return is_due<UNSOLVED, REFINE>(states[system]); };
    for_each_part(s.systems, C::count_chunks(s.rows), due, [&](Index system, Index part) {
        C chunk;
        SystemState& state = states[system];
        chunk.load_chunk(s, system, part);
        Equation<T, 5> equations[ROWS];
        Real<T> error = 0;
        chunk.reduce_all(EXCHANGE, equations, error);
        const Index chunks = chunk.chunks, next = chunk.chunk + 1 < chunks ? chunk.chunk + 1 : 0;
        if (threadIdx.x < 2) {
            const T* y = ys + (chunk.at * 2 + threadIdx.x) * chunks;
            chunk.slots.at(0, threadIdx.x) = y[chunk.chunk];
            chunk.slots.at(THREADS, threadIdx.x) = y[next];
        }
        __syncthreads();  // both ends are known to all
        T x[ROWS], before, behind;
        chunk.expand(equations, THREADS, x, before, behind);
        if constexpr (REFINE) {
            before = ops::add(before, chunk.before), behind = ops::add(behind, chunk.behind);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) x[k] = ops::add(x[k], chunk.first_solution[k]);
            error = 0;
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < chunk.count) chunk.residual(k, chunk.row(k), x, before, behind, error);
            record_error(error, &state.errors[1]);
        } else {
            bool finite = true;
#pragma unroll
            for (int k = 0; k < ROWS; ++k) finite = finite && (k >= chunk.count || ops::isfinite(x[k]));
            if (__syncthreads_or(!finite) && threadIdx.x == 0) atomicOr(&state.not_finite, 1u);
            if (EXCHANGE && __syncthreads_or(chunk.has_large_error(x, before, behind)) && threadIdx.x == 0)
                atomicOr(&state.refine, 1u);
        }
        __syncthreads();  // all have read the right-hand sides
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < chunk.count) chunk.rhs[chunk.own + k] = x[k];
        __syncthreads();  // the solution is there for all
        const Index begin = chunk.chunk * C::LENGTH;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const int row = threadIdx.x + k * THREADS;
            if (row >= chunk.n) continue;
            const T value = chunk.rhs[chunk.place(row)];
            if constexpr (REFINE)
                second[chunk.at * s.rows + begin + row] = value;
            else
                chunk.to[(begin + row) * s.out.along] = value;
        }
        __syncthreads();  // all have read the solution before the next rows come
    });
}


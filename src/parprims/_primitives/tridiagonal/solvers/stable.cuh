// Equations, segments and the block of the stable solver (see stable.cu).

#include "common.cuh"
#include "tridiagonal_common.cuh"

// ---- Equations ------------------------------------------------------------------------------------------------

template <class T, int COUNT>
struct Equation {
    T a[COUNT];
    T rhs;
};

// Exchanges two equations, if exchanges are allowed, so that `first` has the larger coefficient of an unknown.
template <class T, int COUNT>
DEVICE void choose_pivot(bool exchange, int unknown, Equation<T, COUNT>& first, Equation<T, COUNT>& other) {
    if (exchange && abs1(other.a[unknown]) > abs1(first.a[unknown])) {
        const Equation<T, COUNT> larger = other;
        other = first;
        first = larger;
    }
}

// a / b, given the reciprocal of b. Nearly always rounded correctly.
DEVICE float divide(float a, float b, float reciprocal_b) {
    const float quotient = a * reciprocal_b;
    return __fmaf_rn(fnma(quotient, b, a), reciprocal_b, quotient);
}
DEVICE double divide(double a, double b, double reciprocal_b) {
    const double quotient = a * reciprocal_b;
    return __fma_rn(fnma(quotient, b, a), reciprocal_b, quotient);
}
template <class T>
DEVICE Complex<T> divide(Complex<T> a, Complex<T> b, Complex<T> reciprocal_b) {
    const Complex<T> quotient = mul(a, reciprocal_b), correction = mul(fnma(quotient, b, a), reciprocal_b);
    return {quotient.re + correction.re, quotient.im + correction.im};
}

// Eliminates an unknown from the equation `other` by the pivot equation `first`, given the reciprocal of the pivot.
// Does not write the eliminated coefficient of `other`, which is not read again.
template <class T, int COUNT>
DEVICE void eliminate(int unknown, const Equation<T, COUNT>& first, T pivot_reciprocal, Equation<T, COUNT>& other) {
    const T factor = divide(other.a[unknown], first.a[unknown], pivot_reciprocal);
#pragma unroll
    for (int k = 0; k < COUNT; ++k)
        if (k != unknown) other.a[k] = fnma(factor, first.a[k], other.a[k]);
    other.rhs = fnma(factor, first.rhs, other.rhs);
}

// Two equations in (x[i-1], x[i], x[j-1], x[j]). Without row exchanges, p comes from row i and q from row j-1.
template <class T>
struct Segment {
    Equation<T, 4> p, q;
};

// Appends row j to a segment. Returns the pivot equation, in (x[i-1], x[i], x[j-1], x[j], x[j+1]), from which back
// substitution computes x[j-1]. The pivot is replaced by its reciprocal.
template <class T>
DEVICE Equation<T, 5> append_row(Segment<T>& s, bool exchange, T lower, T diag, T upper, T rhs) {
    Equation<T, 5> first = {{s.q.a[0], s.q.a[1], s.q.a[2], s.q.a[3], T()}, s.q.rhs};
    Equation<T, 5> other = {{s.p.a[0], s.p.a[1], s.p.a[2], s.p.a[3], T()}, s.p.rhs};
    Equation<T, 5> row = {{T(), T(), lower, diag, upper}, rhs};
    choose_pivot(exchange, 2, first, other);
    choose_pivot(exchange, 2, first, row);
    const T pivot_reciprocal = reciprocal(first.a[2]);
    eliminate(2, first, pivot_reciprocal, other);
    eliminate(2, first, pivot_reciprocal, row);
    first.a[2] = pivot_reciprocal;
    s.p = {{other.a[0], other.a[1], other.a[3], other.a[4]}, other.rhs};
    s.q = {{row.a[0], row.a[1], row.a[3], row.a[4]}, row.rhs};
    return first;
}

// The numbers of a slot. It first holds a segment, then the two pivot equations of a merge, then a pair y.
constexpr int SLOT_NUMBERS = 13;

// Slots in memory: number k of slot i is element COUNT * k + i, or count * k + i if COUNT is 0.
template <class T, int COUNT>
struct SegmentStore {
    T* first;
    Index count;

    DEVICE T& at(Index slot, int k) const {
        if constexpr (COUNT > 0)
            return first[k * COUNT + (int)slot];
        else
            return first[k * count + slot];
    }

    DEVICE void store(Index slot, const Segment<T>& s) const {
#pragma unroll
        for (int k = 0; k < 4; ++k) at(slot, k) = s.p.a[k], at(slot, 4 + k) = s.q.a[k];
        at(slot, 8) = s.p.rhs, at(slot, 9) = s.q.rhs;
    }
    DEVICE Segment<T> load(Index slot) const {
        Segment<T> s;
#pragma unroll
        for (int k = 0; k < 4; ++k) s.p.a[k] = at(slot, k), s.q.a[k] = at(slot, 4 + k);
        s.p.rhs = at(slot, 8), s.q.rhs = at(slot, 9);
        return s;
    }

    // Merges two segments into the slot of the left one. The pivot equations of the pair that they share go to the slot
    // of the right one.
    DEVICE void merge(Index left_slot, Index right_slot, bool exchange) const {
        const Segment<T> left = load(left_slot), right = load(right_slot);
        // Columns: the shared pair, the pair before it, the pair after it.
        const auto of_left = [](const Equation<T, 4>& e) -> Equation<T, 6> {
            return {{e.a[2], e.a[3], e.a[0], e.a[1], T(), T()}, e.rhs};
        };
        const auto of_right = [](const Equation<T, 4>& e) -> Equation<T, 6> {
            return {{e.a[0], e.a[1], T(), T(), e.a[2], e.a[3]}, e.rhs};
        };
        Equation<T, 6> first = of_left(left.q), second = of_right(right.p), p = of_left(left.p), q = of_right(right.q);
        choose_pivot(exchange, 0, first, second);
        choose_pivot(exchange, 0, first, p);
        choose_pivot(exchange, 0, first, q);
        const T reciprocal0 = reciprocal(first.a[0]);
        eliminate(0, first, reciprocal0, second);
        eliminate(0, first, reciprocal0, p);
        eliminate(0, first, reciprocal0, q);
        first.a[0] = reciprocal0;
        choose_pivot(exchange, 1, second, p);
        choose_pivot(exchange, 1, second, q);
        const T reciprocal1 = reciprocal(second.a[1]);
        eliminate(1, second, reciprocal1, p);
        eliminate(1, second, reciprocal1, q);
        second.a[1] = reciprocal1;
        store(left_slot, {{{p.a[2], p.a[3], p.a[4], p.a[5]}, p.rhs}, {{q.a[2], q.a[3], q.a[4], q.a[5]}, q.rhs}});
#pragma unroll
        for (int k = 0; k < 6; ++k) at(right_slot, k) = first.a[k];
        at(right_slot, 6) = first.rhs;
#pragma unroll
        for (int k = 1; k < 6; ++k) at(right_slot, 6 + k) = second.a[k];
        at(right_slot, 12) = second.rhs;
    }

    // Replaces the pivot equations in a slot by the pair that they eliminated, given the pairs before and after it.
    DEVICE void back_substitute(Index before, Index slot, Index behind) const {
        const T known[4] = {at(before, 0), at(before, 1), at(behind, 0), at(behind, 1)};
        T shared0 = at(slot, 6), shared1 = at(slot, 12);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            shared0 = fnma(at(slot, 2 + k), known[k], shared0);
            shared1 = fnma(at(slot, 8 + k), known[k], shared1);
        }
        shared1 = mul(shared1, at(slot, 7));
        shared0 = mul(fnma(at(slot, 1), shared1, shared0), at(slot, 0));
        at(slot, 0) = shared0, at(slot, 1) = shared1;
    }

    // Closes the tree: replaces the only segment of a whole system by the pair at the beginning and the end of the
    // system.
    DEVICE void close(Index slot) const {
        const Segment<T> s = load(slot);
        Equation<T, 2> first = {{ops::add(s.q.a[0], s.q.a[2]), ops::add(s.q.a[1], s.q.a[3])}, s.q.rhs};
        Equation<T, 2> second = {{ops::add(s.p.a[0], s.p.a[2]), ops::add(s.p.a[1], s.p.a[3])}, s.p.rhs};
        choose_pivot(true, 0, first, second);
        eliminate(0, first, reciprocal(first.a[0]), second);
        const T y1 = ops::divide(second.rhs, second.a[1]);
        at(slot, 0) = ops::divide(fnma(first.a[1], y1, first.rhs), first.a[0]);
        at(slot, 1) = y1;
    }
};

// Merges the segments 0 ... count-1 in pairs until segment 0 represents all of them. Segment i is in slot(i).
template <class N, class Kept, class Slot, class Sync>
DEVICE void merge_all(const Kept& slots, N count, int thread, int threads, bool exchange, Slot slot, Sync sync) {
#pragma unroll 1
    for (N apart = 1; apart < count; apart *= 2) {
#pragma unroll 1
        for (N left = 2 * apart * thread; left + apart < count; left += 2 * apart * threads)
            slots.merge(slot(left), slot(left + apart), exchange);
        sync();
    }
}

// Puts into the slot of every segment the pair at its beginning, given the first pair in slot(0) and the last pair in
// the slot `end`.
template <class N, class Kept, class Slot, class Sync>
DEVICE void back_substitute_all(const Kept& slots, N count, int thread, int threads, Index end, Slot slot, Sync sync) {
    N apart = 1;
    while (2 * apart < count) apart *= 2;
#pragma unroll 1
    for (; apart > 0; apart /= 2) {
#pragma unroll 1
        for (N left = 2 * apart * thread; left + apart < count; left += 2 * apart * threads) {
            const N middle = left + apart;
            slots.back_substitute(slot(left), slot(middle), middle + apart < count ? (Index)slot(middle + apart) : end);
        }
        sync();
    }
}

// ---- A block --------------------------------------------------------------------------------------------------

// State that the threads of a system share: the bits of the largest backward errors of the first and the second
// solution; whether rows are exchanged, the solution is to be refined, and unknowns are not finite.
struct BlockState {
    unsigned long long errors[2];
    unsigned exchange, refine, not_finite;
};

template <class T, int ROWS, int THREADS, int SYSTEMS, bool INTERLEAVED>
struct BlockSolver {
    static constexpr int BLOCK_THREADS = THREADS * SYSTEMS;

    T *lower, *diag, *upper, *rhs;  // in shared memory
    // One more slot for the pair after the last segment of a chunk, and one more to align the memory after it.
    SegmentStore<T, BLOCK_THREADS + 2> slots;
    BlockState* state;
    // The rows of a system, its segments (threads that have rows) and its places in an array; the number of this
    // system, the number of this thread in it, the number of this thread's rows and the place of the first.
    int n, segments, pitch, system, rank, count, own;

    // Returns the place of a row of this thread's system in shared memory. Unless systems are interleaved, one place is
    // unused after every ROWS places, which avoids bank conflicts.
    DEVICE int place(int row) const {
        return INTERLEAVED ? row * SYSTEMS + system : system * pitch + row + row / ROWS;
    }
    DEVICE int slot(int other) const { return INTERLEAVED ? other * SYSTEMS + system : system * THREADS + other; }

    // Barrier of the threads of a system, or of more.
    static DEVICE void sync() {
        if constexpr (!INTERLEAVED && THREADS <= 32)
            __syncwarp();
        else
            __syncthreads();
    }

    struct Row {
        T lower, diag, upper;
    };
    DEVICE Row row(int k) const {
        const int at = own + (INTERLEAVED ? k * SYSTEMS : k);
        return {lower[at], diag[at], upper[at]};
    }
    static DEVICE Real<T> scaling(const Row& r) {
        return binary_scale(::fmax(::fmax(abs1(r.lower), abs1(r.diag)), abs1(r.upper)));
    }
    DEVICE bool dominant() const {
        bool all = true;
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < count) {
                const Row r = row(k);
                all = all && abs1(r.lower) + abs1(r.upper) <= abs_max(r.diag);
            }
        return all;
    }

    // Reduces the rows of each thread, with right-hand sides b(k), to a segment in the thread's slot.
    template <class Rhs>
    DEVICE void reduce_rows(bool exchange, Rhs b, Equation<T, 5> (&kept)[ROWS]) const {
        Segment<T> s = {};
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < count) {
                const Row r = row(k);
                const Real<T> scale = scaling(r);
                const T l = scaled(r.lower, scale), d = scaled(r.diag, scale), u = scaled(r.upper, scale);
                const T f = scaled(b(k), scale);
                if (k == 0) {
                    // A segment of one row. Both of its pairs contain x[i], which is its second equation.
                    s.p = {{l, d, T(), u}, f};
                    s.q = {{T(), from_real<T>(1), from_real<T>(-1), T()}, T()};
                } else if (k == 1) {
                    s.p.a[2] = s.p.a[3], s.p.a[3] = T();
                    s.q = {{T(), l, d, u}, f};
                } else {
                    kept[k] = append_row(s, exchange, l, d, u, f);
                }
            }
        slots.store(slot(rank), s);
        sync();
    }

    // Computes the unknowns of a thread and the unknowns before and after them, given the pairs of all threads in their
    // slots, and the last pair in the slot `end`.
    DEVICE void expand_rows(const Equation<T, 5> (&kept)[ROWS], int end, T (&x)[ROWS], T& before, T& behind) const {
        before = slots.at(slot(rank), 0);
        const T start = slots.at(slot(rank), 1);
        const int next = rank + 1 < segments ? slot(rank + 1) : end;
        T near = slots.at(next, 0), far = slots.at(next, 1);
        behind = far;
#pragma unroll
        for (int k = ROWS - 1; k > 0; --k)
            if (k < count) {
                x[k] = near;
                if (k > 1) {
                    const Equation<T, 5>& e = kept[k];
                    T y = fnma(e.a[0], before, e.rhs);
                    y = fnma(e.a[1], start, y);
                    y = fnma(e.a[3], near, y);
                    y = mul(fnma(e.a[4], far, y), e.a[2]);
                    far = near, near = y;
                }
            }
        x[0] = start;
        sync();  // all have read their ys before the slots are written again
    }

    template <class Rhs>
    DEVICE void solve(bool exchange, Rhs b, T (&x)[ROWS], T& before, T& behind) const {
        const auto slot_of = [&](int i) { return slot(i); };
        Equation<T, 5> kept[ROWS];
        reduce_rows(exchange, b, kept);
        merge_all(slots, segments, rank, THREADS, exchange, slot_of, sync);
        if (rank == 0) slots.close(slot(0));
        sync();
        back_substitute_all(slots, segments, rank, THREADS, slot(0), slot_of, sync);
        expand_rows(kept, slot(0), x, before, behind);
    }

    DEVICE T given_rhs(int k) const { return rhs[own + (INTERLEAVED ? k * SYSTEMS : k)]; }
    // Returns the residual of row k of this thread. Raises `largest` to the backward error of the row, or to infinity
    // if the error is not finite.
    DEVICE T residual(int k, const Row& c, const T (&x)[ROWS], T before, T behind, Real<T>& largest) const {
        using R = Real<T>;
        const T f = given_rhs(k);
        const T below = ops::multiply(c.lower, k > 0 ? x[k > 0 ? k - 1 : 0] : before);
        const T own = ops::multiply(c.diag, x[k]);
        const T above = ops::multiply(c.upper, k + 1 < count ? x[k + 1 < ROWS ? k + 1 : k] : behind);
        const T r = ops::subtract(ops::subtract(ops::subtract(f, below), own), above);
        const R all = abs1(f) + abs1(below) + abs1(own) + abs1(above);
        const R error = all == (R)0 ? (R)0 : abs1(r) / all;
        largest = error <= (R)4 && all - all == (R)0 ? ::fmax(largest, error) : infinity(R());
        return r;
    }
    // Computes the residuals of this thread's rows. Returns the largest backward error, infinity if it is not finite.
    DEVICE Real<T> residuals(const T (&x)[ROWS], T before, T behind, T (&all)[ROWS]) const {
        Real<T> largest = 0;
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < count) all[k] = residual(k, row(k), x, before, behind, largest);
        return largest;
    }
    // Returns whether the backward error of a row of this thread is above 6 times the machine epsilon.
    DEVICE bool has_large_error(const T (&x)[ROWS], T before, T behind) const {
        bool off = false;
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < count) {
                const Row r = row(k);
                Real<T> all;
                const T residual = row_residual(r.lower, r.diag, r.upper, given_rhs(k),
                                                k > 0 ? x[k > 0 ? k - 1 : 0] : before, x[k],
                                                k + 1 < count ? x[k + 1 < ROWS ? k + 1 : k] : behind, all);
                off = off || exceeds((Real<T>)6, abs1(residual), all);
            }
        return off;
    }
    DEVICE void record_errors(const Real<T> (&errors)[2]) const {
        if (count == 0) return;
        for (int k = 0; k < 2; ++k)
            atomicMax(&state[system].errors[k], (unsigned long long)__double_as_longlong((double)errors[k]));
    }
};

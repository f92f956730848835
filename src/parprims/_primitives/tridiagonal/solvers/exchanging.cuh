// The rows of a thread, and of several threads, where elimination exchanges rows in registers (see exchanging.cu).

#include "common.cuh"
#include "tridiagonal_common.cuh"

// ---- The rows of a thread -------------------------------------------------------------------------------------

// A chain of eliminations that has come to row k. Its state is the equation start x[i] + last x[k-1] + next x[k] = rhs.
// The chain begins with the row after x[i]. Every further row eliminates the last unknown, and the next unknown takes
// its place. In an upward chain, unknowns are numbered backwards.
template <class T>
struct ChainEquation {
    T start, last, next, rhs;
};

// The equation start x[i] + x[k-1] / pivot_reciprocal + next x[k] + behind x[k+1] = rhs, which eliminated x[k-1] and
// from which back substitution computes it.
template <class T>
struct PivotEquation {
    T start, next, behind, rhs, pivot_reciprocal;

    DEVICE T solve(T start_x, T next_x, T behind_x) const {
        return mul(fnma(next, next_x, fnma(behind, behind_x, fnma(start, start_x, rhs))), pivot_reciprocal);
    }
};

// An approximation of 1 / x; for complex x, a real number of about its size. refined_reciprocal computes 1 / x from it.
DEVICE float approximate_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE double approximate_reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
}
template <class T>
DEVICE T approximate_reciprocal(Complex<T> x) {
    return approximate_reciprocal(abs1(x));
}
DEVICE float refined_reciprocal(float, float near) { return near; }  // its error is at most a unit in the last place
DEVICE double refined_reciprocal(double x, double near) {
    near = __fma_rn(near, fnma(x, near, 1.), near);
    return __fma_rn(near, fnma(x, near, 1.), near);
}
template <class T>
DEVICE Complex<T> refined_reciprocal(Complex<T> x, T) {
    return reciprocal(x);
}

// Appends the row a x[k-1] + b x[k] + c x[k+1] = f to a chain and eliminates x[k-1]. Returns the pivot equation: the
// equation, of two, with the larger coefficient of x[k-1].
template <class T>
DEVICE PivotEquation<T> eliminate_next(ChainEquation<T>& chain, T a, T b, T c, T f) {
    const bool swap = abs1(a) > abs1(chain.last);
    const T pivot = swap ? a : chain.last;
    const Real<T> near = approximate_reciprocal(pivot);
    const PivotEquation<T> kept = {swap ? T() : chain.start, swap ? b : chain.next, swap ? c : T(),
                                   swap ? f : chain.rhs, refined_reciprocal(pivot, near)};
    // Both equations are multiplied: the pivot equation by the smaller factor, the other by about 1.
    const T of_chain = scaled(a, near), of_row = scaled(chain.last, near);
    chain = {mul(of_chain, chain.start), fnma(of_row, b, mul(of_chain, chain.next)), mul(ops::negative(of_row), c),
             fnma(of_row, f, mul(of_chain, chain.rhs))};
    return kept;
}

// The unknowns at the ends of some adjacent rows: the first and the last, the one before and the one after.
template <class T>
struct Boundary {
    T before, first, last, behind;
};

// The rows of a thread, and their pivot equations.
template <class T, int ROWS>
struct ThreadRows {
    T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
    PivotEquation<T> kept[ROWS];

    template <Access LOWER, Access DIAG, Access UPPER, Access RHS>
    DEVICE void load_scaled(const BatchView<const T> (&arrays)[4], const BatchIndex& at, Index begin, Index rows) {
        load_rows<LOWER, DIAG, UPPER, RHS>(arrays, at, begin, rows, a, b, c, d);
        scale();
    }
    // Scales all rows by one power of two, or each row by its own if their sizes differ much.
    DEVICE void scale() {
        using R = Real<T>;
        const auto size_of = [&](int k) { return abs1(a[k]) + abs1(b[k]) + abs1(c[k]); };
        R least = size_of(0), most = least;
#pragma unroll
        for (int k = 1; k < ROWS; ++k) least = ::fmin(least, size_of(k)), most = ::fmax(most, size_of(k));
        const auto multiply = [&](int k, R scale) {
            a[k] = scaled(a[k], scale), b[k] = scaled(b[k], scale);
            c[k] = scaled(c[k], scale), d[k] = scaled(d[k], scale);
        };
        if (least * (R)8 >= most) {
            const R scale = binary_scale(most);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) multiply(k, scale);
        } else {
#pragma unroll
            for (int k = 0; k < ROWS; ++k) multiply(k, binary_scale(size_of(k)));
        }
    }
    // Loads the first `count` rows, in whole vectors, from four arrays whose beginnings are `apart` numbers apart. Rows
    // past the last vector become x = 0.
    DEVICE void load_arrays(const T* from, Index apart, int count) {
        load<ASCENDING>(from, 1, count, T(), a);
        load<ASCENDING>(from + apart, 1, count, from_real<T>(1), b);
        load<ASCENDING>(from + 2 * apart, 1, count, T(), c);
        load<ASCENDING>(from + 3 * apart, 1, count, T(), d);
    }
    DEVICE void store_arrays(T* to, Index apart) const {
        save<ASCENDING>(to, 1, ROWS, a), save<ASCENDING>(to + apart, 1, ROWS, b);
        save<ASCENDING>(to + 2 * apart, 1, ROWS, c), save<ASCENDING>(to + 3 * apart, 1, ROWS, d);
    }
    // Eliminates all unknowns but the first and the last, downwards, and keeps the pivot equations.
    DEVICE ChainEquation<T> eliminate_down(const T (&rhs)[ROWS]) {
        ChainEquation<T> down = {a[1], b[1], c[1], rhs[1]};
#pragma unroll
        for (int k = 2; k < ROWS; ++k) kept[k - 1] = eliminate_next(down, a[k], b[k], c[k], rhs[k]);
        return down;
    }
    // Eliminates all unknowns but the first and the last, downwards and also upwards.
    DEVICE void forward_eliminate(const T (&rhs)[ROWS], ChainEquation<T>& up, ChainEquation<T>& down) {
        down = eliminate_down(rhs);
        up = {c[ROWS - 2], b[ROWS - 2], a[ROWS - 2], rhs[ROWS - 2]};
#pragma unroll
        for (int k = ROWS - 3; k >= 0; --k) eliminate_next(up, c[k], b[k], a[k], rhs[k]);
    }
    DEVICE void back_substitute(const Boundary<T>& known, T (&x)[ROWS]) const {
        T behind = known.behind, next = known.last;
        x[0] = known.first, x[ROWS - 1] = known.last;
#pragma unroll
        for (int k = ROWS - 2; k > 0; --k) {
            x[k] = kept[k].solve(known.first, next, behind);
            behind = next, next = x[k];
        }
    }
    // Computes the residuals and returns whether the backward error of a row is too large. EXCUSING accepts rows with a
    // residual that is negligible compared to the numbers in the thread's other rows, as where x is zero. `any` becomes
    // whether any row has a large error, including accepted rows.
    template <bool EXCUSING>
    DEVICE bool has_large_error(const T (&x)[ROWS], T before, T behind, T (&residual)[ROWS],
                                bool* any = nullptr) const {
        using R = Real<T>;
        bool off = false, finite = true;
        R worst = 0, most = 0;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            R all;
            residual[k] = row_residual(a[k], b[k], c[k], d[k], k > 0 ? x[k > 0 ? k - 1 : 0] : before, x[k],
                                       k + 1 < ROWS ? x[k + 1 < ROWS ? k + 1 : k] : behind, all);
            const bool exceeding = exceeds((R)8, abs1(residual[k]), all);
            off = off || exceeding;
            if constexpr (EXCUSING) {
                finite = finite && all < infinity(R());
                most = ::fmax(most, all), worst = exceeding ? ::fmax(worst, abs1(residual[k])) : worst;
            }
        }
        if (any) *any = off;
        return EXCUSING ? !finite || (off && exceeds((R)0x1p-10f, worst, most)) : off;
    }
};

// ---- The rows of several threads ------------------------------------------------------------------------------

// The rows of WIDTH adjacent lanes, merged in pairs log2(WIDTH) times. The rows of a lane, or the merged rows of
// several lanes, are represented by the last equations of two chains: `up`, in their unknowns (last, first, before),
// and `down`, in (first, last, after). Every lane but the first also has two pivot equations: those of the two unknowns
// between left and right rows, from the merge in which this lane was the first of the right rows.
template <int WIDTH, class T>
struct EliminationTree {
    ChainEquation<T> up, down;
    PivotEquation<T> first, second;

    // Merges the rows of all lanes. The first lane gets their equations.
    DEVICE void merge() {
        const int lane = threadIdx.x % 32;
        ChainEquation<T> mine = up;
#pragma unroll
        for (int apart = 1; apart < WIDTH; apart *= 2) {
            // The left rows extend the upward chain of the right rows, the right rows the downward chain of the left
            // rows.
            const bool right = lane & apart;
            ChainEquation<T> chain, near, outer;
            if (apart == 1) {
                near = right ? up : down, outer = right ? down : up;
                chain = shuffle(near, lane ^ 1);
            } else {
                // Of merged rows, the first lane has `up`, and the first lane of their second half has `down`.
                const int half = apart / 2;
                chain = shuffle(mine, right ? lane - half : lane + apart);
                near = shuffle(mine, right ? lane : lane + half), outer = shuffle(mine, right ? lane + half : lane);
            }
            const PivotEquation<T> one = eliminate_next(chain, near.next, near.last, near.start, near.rhs);
            const PivotEquation<T> two = eliminate_next(chain, outer.start, outer.last, outer.next, outer.rhs);
            mine = chain;
            if (lane % apart == 0) first = one, second = two;
        }
        if (WIDTH > 1) up = mine, down = shuffle_down(mine, WIDTH / 2);
    }
    // Closes the tree: solves the equations of a whole system, in the lane that has them.
    DEVICE Boundary<T> close() const {
        ChainEquation<T> chain = {T(), up.last, up.start, up.rhs};
        const PivotEquation<T> one = eliminate_next(chain, down.start, down.last, T(), down.rhs);
        const T last = mul(chain.rhs, reciprocal(chain.last));
        return {T(), one.solve(T(), last, T()), last, T()};
    }
    // Returns the unknowns at the ends of this lane's rows. In the first lane, `known` are the unknowns at the ends of
    // all lanes' rows.
    DEVICE Boundary<T> back_substitute(Boundary<T> known) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int apart = WIDTH / 2; apart > 0; apart /= 2) {
            const Boundary<T> both = shuffle_up(known, apart);
            const T behind = second.solve(both.first, both.last, both.behind);
            const T before = first.solve(both.first, behind, both.last);
            const T last_of_left = shuffle_down(before, apart), behind_left = shuffle_down(behind, apart);
            const bool right = lane & apart;
            known = {right ? before : known.before, right ? behind : known.first, right ? both.last : last_of_left,
                     right ? both.behind : behind_left};
        }
        return known;
    }
};

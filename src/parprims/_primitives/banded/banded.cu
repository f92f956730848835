// Banded and block tridiagonal systems by elimination with row exchanges: one thread solves one system, so that many
// systems keep a device busy.
//
// Rows are taken in groups of K: the rows of a block, or for bands as many rows as the matrix has diagonals on either
// side. So a group has coefficients in its own columns, and in those of the groups before and after it.
// Template parameters:
//     T          the type of elements: float, double or Complex of these
//     Rows       the coefficients: rows.at(system, group, row, column) is a coefficient of a group's row, with columns
//                counted from the first column of the group before; rows.index(group, row) is the number of that row in
//                the system, or -1 if there is no such row; rows.length() is the number of rows
//     ONE        whether there is one column of right-hand sides, which then stays in registers
//     AHEAD      whether the next group is loaded while a group is eliminated
//
// Phases:
//   1. Forward: a window in registers holds the remaining K rows of a group, with coefficients in the columns of that
//      group and the next, and the K rows of the next group. K columns are eliminated. The pivot of a column is the
//      largest of all its coefficients in the window, which has all rows with coefficients in that column that are not
//      yet eliminated. The first K rows are then part of the triangular factor and are saved; the other rows are the
//      remaining rows of the next group.
//   2. Backward: the unknowns of every group from the unknowns of the two groups after it.
// If the last group is not full, rows of the identity fill it. Saved numbers are interleaved, so that adjacent threads
// access adjacent elements.
// Accuracy: the accuracy of Gaussian elimination with partial pivoting.
// Reproducibility: a thread solves a system by the same operations in every batch.
//
// G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, 2013, 4.3 and 4.5.

#include "common.cuh"

namespace banded {

// ---- Arithmetic ------------------------------------------------------------------------------------------------

// a - b c
DEVICE float minus_product(float a, float b, float c) { return __fmaf_rn(-b, c, a); }
DEVICE double minus_product(double a, double b, double c) { return __fma_rn(-b, c, a); }
template <class F>
DEVICE Complex<F> minus_product(Complex<F> a, Complex<F> b, Complex<F> c) {
    return {minus_product(minus_product(a.re, b.re, c.re), -b.im, c.im),
            minus_product(minus_product(a.im, b.re, c.im), b.im, c.re)};
}

// The size by which pivots are compared.
template <class T>
DEVICE T size_of(T x) {
    return ::fabs(x);
}
template <class F>
DEVICE F size_of(Complex<F> x) {
    return ::fabs(x.re) + ::fabs(x.im);
}

// ---- Coefficients ----------------------------------------------------------------------------------------------

// Bands: the coefficient of row i in column i - below + c, counted modulo n if PERIODIC, is base[system * apart +
// offset + c * diagonal + i]. With BY_COLUMN, the layout that callers pass, it is base[system * apart + (below + above
// - c) * n + column].
template <class T, int K, bool BY_COLUMN>
struct Bands {
    const T* base;
    Index apart, below, above, n;

    DEVICE Index length() const { return n; }
    DEVICE Index index(Index group, int row) const { return group * K + row < n ? group * K + row : -1; }
    DEVICE T load(Index system, Index i, Index j, Index c) const {
        return base[system * apart + (BY_COLUMN ? (below + above - c) * n + j : c * n + i)];
    }
    DEVICE T at(Index system, Index group, int row, int column) const {
        const Index i = group * K + row, j = (group - 1) * K + column, c = j - i + below;
        if (i >= n) return ops::cast<T>(i == j ? 1.f : 0.f);
        return c < 0 || c > below + above || j < 0 || j >= n ? T() : load(system, i, j, c);
    }
    // The coefficient of row i in column j of a periodic system.
    DEVICE T entry(Index system, Index i, Index j) const {
        Index c = j - i + below;
        c = c < 0 ? c + n : c >= n ? c - n : c;
        return c > below + above ? T() : load(system, i, j, c);
    }
};

// Blocks below, on and above the diagonal, each K x K. The blocks of adjacent systems are `apart` elements apart.
template <class T, int K>
struct Blocks {
    const T *lower, *diag, *upper;
    Index lower_apart, diag_apart, upper_apart, groups;

    DEVICE Index length() const { return groups * K; }
    DEVICE Index index(Index group, int row) const { return group < groups ? group * K + row : -1; }
    DEVICE T at(Index system, Index group, int row, int column) const {
        const Index place = (group * K + row) * K + column % K;
        if (column < K) return group > 0 ? lower[system * lower_apart + place] : T();
        if (column < 2 * K) return diag[system * diag_apart + place];
        return group + 1 < groups ? upper[system * upper_apart + place] : T();
    }
    DEVICE T entry(Index system, Index i, Index j) const {
        const Index group = i / K, other = j / K, place = i * K + j % K;
        if (group == other) return diag[system * diag_apart + place];
        if (other == (group > 0 ? group : groups) - 1) return lower[system * lower_apart + place];
        return other == (group + 1 < groups ? group + 1 : 0) ? upper[system * upper_apart + place] : T();
    }
};

// A periodic system, folded: a group holds K rows from the front and K from the back. So the first and the last rows
// are in one group, and a group has coefficients only in its own columns and in the columns of adjacent groups. The
// last group may have fewer rows.
template <class T, int K, class Rows>
struct Folded {
    Rows rows;

    DEVICE Index length() const { return rows.length(); }
    DEVICE Index index(Index group, int row) const {
        const Index n = length();
        if (group < 0 || 2 * group * K >= n) return -1;
        const Index i = row < K ? group * K + row : n - (group + 2) * K + row;
        return (row < K ? i < n - group * K : i >= (group + 1) * K) ? i : -1;
    }
    DEVICE T at(Index system, Index group, int row, int column) const {
        const Index i = index(group, row), j = index(group - 1 + column / (2 * K), column % (2 * K));
        if (i < 0) return ops::cast<T>(column == 2 * K + row ? 1.f : 0.f);
        return j < 0 ? T() : rows.entry(system, i, j);
    }
};

// ---- Solutions -------------------------------------------------------------------------------------------------

// The saved numbers of a group: the triangle of its own columns, the columns of the next two groups and, with ONE, its
// right-hand sides.
template <int K, bool ONE>
constexpr int SAVED = K * (K + 1) / 2 + 2 * K * K + (ONE ? K : 0);

// Exchanges row `first` of a window with row `pivot`, which is not above it, without an index into registers.
template <int ROWS, class T>
DEVICE void exchange(T (&rows)[ROWS], int first, int pivot) {
#pragma unroll
    for (int row = 0; row < ROWS; ++row)
        if (row > first && row == pivot) {
            const T kept = rows[first];
            rows[first] = rows[row];
            rows[row] = kept;
        }
}

// Solves systems with `columns` right-hand sides each. `b` and `x` are (systems, rows, columns). `saved` has SAVED
// elements for every group of every system.
template <class T, int K, bool ONE, bool AHEAD, int THREADS, class Rows>
DEVICE void solve(const Rows& rows, const T* b, T* x, T* saved, Index systems, Index columns) {
    constexpr int EACH = SAVED<K, ONE>;
    const Index system = (Index)blockIdx.x * THREADS + threadIdx.x, n = rows.length(), groups = (n + K - 1) / K;
    if (system >= systems) return;
    const T* const right = b + system * n * columns;
    T* const found = x + system * n * columns;
    const auto keep = [&](Index group, int at) -> T& { return saved[(group * EACH + at) * systems + system]; };
    const auto load = [&](Index group, T(&to)[K][3 * K], T(&side)[K]) {
#pragma unroll
        for (int row = 0; row < K; ++row) {
#pragma unroll
            for (int c = 0; c < 3 * K; ++c) to[row][c] = group < groups ? rows.at(system, group, row, c) : T();
            if (ONE) {
                const Index i = group < groups ? rows.index(group, row) : -1;
                side[row] = i < 0 ? T() : right[i];
            }
        }
    };

    T a[3 * K][2 * K], r[2 * K];  // the window, column by column
    T next[K][3 * K], next_side[K];
    load(0, next, next_side);
#pragma unroll
    for (int row = 0; row < K; ++row) {
#pragma unroll
        for (int c = 0; c < 3 * K; ++c) a[c][row] = c < 2 * K ? next[row][c < 2 * K ? K + c : 0] : T();
        r[row] = ONE ? next_side[row] : T();
        const Index i = rows.index(0, row);
        if (!ONE && i >= 0)
            for (Index column = 0; column < columns; ++column) found[i * columns + column] = right[i * columns + column];
    }
    if (AHEAD) load(1, next, next_side);
    for (Index group = 0; group < groups; ++group) {
        if (!AHEAD) load(group + 1, next, next_side);
#pragma unroll
        for (int row = 0; row < K; ++row) {
#pragma unroll
            for (int c = 0; c < 3 * K; ++c) a[c][K + row] = next[row][c];
            r[K + row] = ONE ? next_side[row] : T();
        }
        if (AHEAD) load(group + 2, next, next_side);

        int pivots[K];
        T factors[K][2 * K];
#pragma unroll
        for (int j = 0; j < K; ++j) {
            auto best = size_of(a[j][j]);
            pivots[j] = j;
#pragma unroll
            for (int row = j + 1; row < 2 * K; ++row) {
                const auto size = size_of(a[j][row]);
                if (size > best) {
                    best = size;
                    pivots[j] = row;
                }
            }
#pragma unroll
            for (int c = j; c < 3 * K; ++c) exchange(a[c], j, pivots[j]);
            if (ONE) exchange(r, j, pivots[j]);
#pragma unroll
            for (int row = j + 1; row < 2 * K; ++row) {
                const T factor = ops::divide(a[j][row], a[j][j]);
                factors[j][row] = factor;
#pragma unroll
                for (int c = j + 1; c < 3 * K; ++c) a[c][row] = minus_product(a[c][row], factor, a[c][j]);
                if (ONE) r[row] = minus_product(r[row], factor, r[j]);
            }
        }
        int at = 0;
#pragma unroll
        for (int row = 0; row < K; ++row) {
#pragma unroll
            for (int c = row; c < 3 * K; ++c) keep(group, at++) = a[c][row];
            if (ONE) keep(group, at++) = r[row];
        }
        if (!ONE) {
            // The remaining right-hand sides are stored in the memory of the solutions.
            for (Index column = 0; column < columns; ++column) {
                T side[2 * K];
                const auto row_of = [&](int row) { return group + row / K < groups ? rows.index(group + row / K, row % K) : -1; };
#pragma unroll
                for (int row = 0; row < 2 * K; ++row) {
                    const Index i = row_of(row);
                    side[row] = i < 0 ? T() : row < K ? found[i * columns + column] : right[i * columns + column];
                }
#pragma unroll
                for (int j = 0; j < K; ++j) {
                    exchange(side, j, pivots[j]);
#pragma unroll
                    for (int row = j + 1; row < 2 * K; ++row) side[row] = minus_product(side[row], factors[j][row], side[j]);
                }
#pragma unroll
                for (int row = 0; row < 2 * K; ++row) {
                    const Index i = row_of(row);
                    if (i >= 0) found[i * columns + column] = side[row];
                }
            }
        }
#pragma unroll
        for (int row = 0; row < K; ++row) {
#pragma unroll
            for (int c = 0; c < 3 * K; ++c) a[c][row] = c < 2 * K ? a[c < 2 * K ? K + c : 0][K + row] : T();
            r[row] = r[K + row];
        }
    }

    for (Index column = 0; column < (ONE ? 1 : columns); ++column) {
        T later[2 * K];  // the unknowns of the next two groups
#pragma unroll
        for (int c = 0; c < 2 * K; ++c) later[c] = T();
        for (Index group = groups - 1; group >= 0; --group) {
            T own[K];
            int at = EACH;
#pragma unroll
            for (int row = K - 1; row >= 0; --row) {
                const Index i = rows.index(group, row);
                T total = ONE ? keep(group, --at) : i < 0 ? T() : found[i * columns + column];
                // Row `row` is saved from its own column on.
                at -= 3 * K - row;
#pragma unroll
                for (int c = row + 1; c < 3 * K; ++c)
                    total = minus_product(total, keep(group, at + c - row), c < K ? own[c < K ? c : 0] : later[c < K ? 0 : c - K]);
                own[row] = ops::divide(total, keep(group, at));
                if (i >= 0) found[i * columns + column] = own[row];
            }
#pragma unroll
            for (int c = 0; c < K; ++c) {
                later[K + c] = later[c];
                later[c] = own[c];
            }
        }
    }
}

}  // namespace banded

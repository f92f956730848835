// Shared by the tables of all filters: arithmetic, the coefficients of sections, and one step of a filter.

#include "common.cuh"

namespace filters {

// ---- Arithmetic ------------------------------------------------------------------------------------------------

using Wide = Complex<double>;

// a b + c
DEVICE double product_sum(double a, double b, double c) { return __fma_rn(a, b, c); }
DEVICE Wide product_sum(Wide a, Wide b, Wide c) {
    return {__fma_rn(a.re, b.re, __fma_rn(-a.im, b.im, c.re)), __fma_rn(a.re, b.im, __fma_rn(a.im, b.re, c.im))};
}

// Numbers that are not finite become the largest finite number: then a power that overflows leaves a state of zero
// unchanged.
DEVICE double bounded(double x) { return ::fabs(x) <= 1.7976931348623157e308 ? x : 1.7976931348623157e308; }
DEVICE Wide bounded(Wide x) { return {bounded(x.re), bounded(x.im)}; }

// The sum of a and b, and its error in addition to `error`.
DEVICE double exact_sum(double a, double b, double& error) {
    const double sum = __dadd_rn(a, b), part = __dadd_rn(sum, -a);
    error = __dadd_rn(error, __dadd_rn(__dadd_rn(a, -__dadd_rn(sum, -part)), __dadd_rn(b, -part)));
    return sum;
}
DEVICE Wide exact_sum(Wide a, Wide b, Wide& error) {
    return {exact_sum(a.re, b.re, error.re), exact_sum(a.im, b.im, error.im)};
}

// Of a few points on the unit circle, the nearest to the mean of the poles. The sum of the poles is -a.
DEVICE double side_of_poles(double a) { return a > 0 ? -1. : 1.; }
DEVICE Wide side_of_poles(Wide a) {
    if (::fabs(a.re) >= ::fabs(a.im)) return {side_of_poles(a.re), 0.};
    return {0., side_of_poles(a.im)};
}

template <class W>
DEVICE W one() {
    return ops::cast<W>(1.);
}

// y += M x for the D x D matrix M, whose elements are STEP apart. A section does not depend on later sections.
template <int D, int K, int STEP, class W>
DEVICE void add_product(W (&y)[D], const W* m, const W (&x)[D]) {
#pragma unroll
    for (int row = 0; row < D; ++row)
#pragma unroll
        for (int column = 0; column < D; ++column)
            if (column / K <= row / K) y[row] = product_sum(m[(row * D + column) * STEP], x[column], y[row]);
}

// ---- Coefficients ----------------------------------------------------------------------------------------------

// The coefficients in memory: section t has `b_count` coefficients from b + t * step on, and `a_count` from a + t *
// step on.
template <class C>
struct Coefficients {
    const C *b, *a;
    Index b_count, a_count, step;
};

// Filters one sample, and changes the states.
template <int S, int K, class W>
DEVICE W filter_sample(const W (&b)[S][K + 1], const W (&a)[S][K], W (&z)[S * K], W x) {
#pragma unroll
    for (int t = 0; t < S; ++t) {
        const W y = product_sum(b[t][0], x, z[t * K]);
#pragma unroll
        for (int i = 0; i < K; ++i) {
            const W moved = i + 1 < K ? product_sum(b[t][i + 1], x, z[t * K + (i + 1 < K ? i + 1 : 0)])
                                      : ops::multiply(b[t][i + 1], x);
            z[t * K + i] = product_sum(ops::negative(a[t][i]), y, moved);
        }
        x = y;
    }
    return x;
}

// The sections that a thread applies: coefficients in registers.
template <class W, int S, int K>
struct Sections {
    W b[S][K + 1], a[S][K];

    template <class Tables>
    explicit DEVICE Sections(const Tables& tables) {
#pragma unroll
        for (int t = 0; t < S; ++t) {
#pragma unroll
            for (int i = 0; i <= K; ++i) {
                b[t][i] = tables.b[t][i];
                if (i < K) a[t][i] = tables.a[t][i];
            }
        }
    }

    DEVICE W step(W (&z)[S * K], W x) const { return filter_sample<S, K>(b, a, z, x); }
};

}  // namespace filters

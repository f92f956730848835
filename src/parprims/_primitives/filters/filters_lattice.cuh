// Tables of filters of any order K, of one section (see filters.cu).
//
// The numbers z[i] of a state are the coefficients of a polynomial, z[0] p^(K-1) + ... + z[K-1]. A step without a
// sample multiplies it by p modulo the polynomial a. Between threads the state is s instead, the coefficients of the
// same polynomial in another basis: polynomials f[0], ..., f[K-1] of degrees 0, ..., K - 1 that are orthonormal on the
// unit circle with the weight 1 / |a|^2. So |s|^2 is the energy of all later outputs without samples. Then no power of
// the matrix of one step has a norm above 1, and an error of s changes the outputs by no more than its own energy.
// These are the polynomials of Szego. Levinson's recursion, run backwards, makes them from a by reflection coefficients
// that are below 1 in magnitude if and only if all poles are inside the unit circle. If they are not, or hardly, a
// wider circle replaces the unit circle: the first that suffices in a list. On this circle powers may grow as they
// must.
// The coefficients of f[j] are column j of the matrix T, z = T s, which is zero above the other diagonal. They are
// rounded to double precision. Everything else is computed from the rounded T in twice that precision, and then
// rounded: the matrix of one step, T^-1 M T, its powers, and the responses. So an inaccurate basis changes only the
// size of numbers. Within a thread the state is z, with the rounding errors of a loop over its samples.
// Powers are computed by squaring: the powers of 1, 2, 4, ... threads, or if K is high of 1, 4, 16, ..., one after
// another.
//
// G. Szego, Orthogonal Polynomials, AMS, 1939, chapter 11; N. Levinson, J. Math. Phys. 25, 1947;
// T. J. Dekker, A Floating-Point Technique for Extending the Available Precision, Numerische Mathematik 18, 1971.

#include "common.cuh"
#include "filters_common.cuh"

namespace filters {

// ---- Twice the precision ---------------------------------------------------------------------------------------

// A number as the sum of two numbers; the first is the rounded sum. A complex number has two such parts.
template <class W>
struct Twice;
template <>
struct Twice<double> {
    double high, low;
};
template <>
struct Twice<Wide> {
    Twice<double> re, im;
};

DEVICE Twice<double> twice(double x) { return {x, 0.}; }
DEVICE Twice<Wide> twice(Wide x) { return {twice(x.re), twice(x.im)}; }
DEVICE double rounded(Twice<double> x) { return x.high; }
DEVICE Wide rounded(Twice<Wide> x) { return {rounded(x.re), rounded(x.im)}; }

// The sum of two numbers; the first is the larger.
DEVICE Twice<double> sum_of_unequal(double a, double b) {
    const double sum = __dadd_rn(a, b);
    return {sum, __dadd_rn(b, -__dadd_rn(sum, -a))};
}

DEVICE Twice<double> plus(Twice<double> a, Twice<double> b) {
    double high_error = 0, low_error = 0;
    const double high = exact_sum(a.high, b.high, high_error), low = exact_sum(a.low, b.low, low_error);
    const Twice<double> sum = sum_of_unequal(high, __dadd_rn(high_error, low));
    return sum_of_unequal(sum.high, __dadd_rn(sum.low, low_error));
}
DEVICE Twice<double> minus(Twice<double> a, Twice<double> b) { return plus(a, {-b.high, -b.low}); }
DEVICE Twice<double> times(Twice<double> a, Twice<double> b) {
    const double product = __dmul_rn(a.high, b.high), error = __fma_rn(a.high, b.high, -product);
    return sum_of_unequal(product, __fma_rn(a.high, b.low, __fma_rn(a.low, b.high, error)));
}
DEVICE Twice<double> over(Twice<double> a, Twice<double> b) {
    const double first = a.high / b.high;
    const Twice<double> left = minus(a, times(twice(first), b));
    const double second = left.high / b.high;
    const double third = minus(left, times(twice(second), b)).high / b.high;
    return plus(sum_of_unequal(first, second), twice(third));
}
DEVICE Twice<double> conjugate(Twice<double> a) { return a; }
DEVICE Twice<double> squared_magnitude(Twice<double> a) { return times(a, a); }
DEVICE double real_part(double a) { return a; }

DEVICE Twice<Wide> plus(Twice<Wide> a, Twice<Wide> b) { return {plus(a.re, b.re), plus(a.im, b.im)}; }
DEVICE Twice<Wide> minus(Twice<Wide> a, Twice<Wide> b) { return {minus(a.re, b.re), minus(a.im, b.im)}; }
DEVICE Twice<Wide> times(Twice<Wide> a, Twice<Wide> b) {
    return {minus(times(a.re, b.re), times(a.im, b.im)), plus(times(a.re, b.im), times(a.im, b.re))};
}
DEVICE Twice<Wide> times(Twice<Wide> a, Twice<double> b) { return {times(a.re, b), times(a.im, b)}; }
DEVICE Twice<Wide> over(Twice<Wide> a, Twice<double> b) { return {over(a.re, b), over(a.im, b)}; }
DEVICE Twice<Wide> conjugate(Twice<Wide> a) { return {a.re, {-a.im.high, -a.im.low}}; }
DEVICE Twice<double> squared_magnitude(Twice<Wide> a) { return plus(times(a.re, a.re), times(a.im, a.im)); }
DEVICE double real_part(Wide a) { return a.re; }

DEVICE Twice<double> bounded(Twice<double> x) { return bounded(x.high) == x.high ? x : twice(bounded(x.high)); }
DEVICE Twice<Wide> bounded(Twice<Wide> x) { return {bounded(x.re), bounded(x.im)}; }

// ---- The tables ------------------------------------------------------------------------------------------------

// The inverse of the radius of circle number `at`, from the unit circle on: 1 - 2^-24, 1 - 2^-22, ..., 1 - 2^-2, 2^-1,
// 2^-2, ..., 2^-30.
DEVICE double inverse_radius(int at) {
    double part = 1;
    for (int halves = at == 0 ? 0 : at <= 12 ? 26 - 2 * at : at - 12; halves > 0; --halves) part *= 0.5;
    return at == 0 || at > 12 ? part : 1 - part;
}

// The number of digits, of `bits` bits each, of a count.
constexpr int digits(int count, int bits) { return count ? 1 + digits(count >> bits, bits) : 0; }

// The parameters are those of Tables, for one section.
template <class W, int K, int ITEMS, int WARPS, bool TILES>
struct Lattice {
    static constexpr int D = K;
    enum { UNROLLED = 1, ROWS = D <= 4 ? D : 2 };  // unrolled: no steps of scans, and rows of products
    static constexpr bool DIRECT = false;
    static constexpr int DIGIT = K * sizeof(W) > 128 ? 2 : 1;  // bits of a number of threads with a stored power
    static constexpr double MARGIN = 9.1e-13;  // the least difference from 1 of the square of a reflection coefficient
    static constexpr int CIRCLES = 43;         // of inverse_radius
    static constexpr bool IN_REGISTERS = K * sizeof(W) <= 96;  // whether coefficients are in registers

    static constexpr int POWERS = digits(TILES ? WARP_SIZE * WARP_SIZE * WARPS : WARP_SIZE * WARPS - 1, DIGIT);

    W powers[POWERS][D * D];  // of the matrix of a thread's samples: to the power 1, 2^DIGIT, 4^DIGIT, ...
    W basis[K][K];            // T
    W responses[ITEMS * D];   // the contribution of a sample to the state after it and 0, 1, ... samples more
    W b[1][K + 1], a[1][K];

    // Memory in which the tables are made.
    struct Spare {
        Twice<W> matrices[4][D * D], responses[ITEMS * D], polynomials[2][K + 1];
    };

    // The coefficients in shared memory.
    struct Filter {
        const Lattice& tables;
        DEVICE W step(W (&z)[K], W x) const { return filter_sample<1, K>(tables.b, tables.a, z, x); }
    };
    DEVICE auto filter() const {
        if constexpr (IN_REGISTERS)
            return Sections<W, 1, K>(*this);
        else
            return Filter{*this};
    }

    // Makes all tables, by all threads of a block, more than K threads. No other block uses them meanwhile.
    template <class C>
    DEVICE void make(const Coefficients<C>& given, Spare& spare) {
        const int thread = threadIdx.x, all = D * D;
        if (thread <= K) {
            const auto load = [&](const C* from, Index count) {
                return thread < count ? ops::cast<W>(value(from[thread])) : W();
            };
            const W first = ops::cast<W>(value(given.a[0]));
            b[0][thread] = ops::divide(load(given.b, given.b_count), first);
            if (thread > 0) a[0][thread - 1] = ops::divide(load(given.a, given.a_count), first);
        }
        for (int at = thread; at < all; at += blockDim.x) (&basis[0][0])[at] = W();
        bool found = false;
        for (int circle = 0; circle < CIRCLES && !found; ++circle)
            found = make_basis(inverse_radius(circle), spare.polynomials);
        __syncthreads();  // separates the basis from its reads, and from its writes of another
        if (!found) {  // as where coefficients are not finite
            for (int at = thread; at < all; at += blockDim.x)
                (&basis[0][0])[at] = at / K + at % K == K - 1 ? one<W>() : W();
            __syncthreads();
        }
        // Squares of the matrix: each doubles the number of responses, and the power ITEMS is the product of some.
        Twice<W>*square = spare.matrices[0], *next = spare.matrices[1];
        Twice<W>*power = spare.matrices[2], *spare_power = spare.matrices[3];
        if (thread < K)
            solve<D>([&](int i) { return after_step(i, thread); }, square + thread);
        if (thread == K)
            solve<1>([&](int i) { return after_sample(i); }, spare.responses);
        for (int at = thread; at < all; at += blockDim.x) power[at] = twice(at % (D + 1) == 0 ? one<W>() : W());
        for (int bit = 1; bit <= ITEMS; bit *= 2) {
            __syncthreads();  // separates squares, powers and responses from their reads
            for (int at = thread; at < D * min(bit, ITEMS - bit); at += blockDim.x)
                spare.responses[bit * D + at] = element<1>(square, spare.responses + at / D * D, at % D);
            for (int at = thread; at < all; at += blockDim.x) {
                next[at] = element<D>(square, square + at % D, at / D);
                if (ITEMS & bit) spare_power[at] = element<D>(power, square + at % D, at / D);
            }
            Twice<W> *const old_square = square, *const old_power = power;
            square = next, next = old_square;
            if (ITEMS & bit) power = spare_power, spare_power = old_power;
        }
        for (int number = 0; number < POWERS; ++number)
            for (int bit = 0; bit < DIGIT; ++bit) {
                __syncthreads();  // separates the power from its reads
                for (int at = thread; at < all; at += blockDim.x) {
                    if (bit == 0) powers[number][at] = rounded(power[at]);
                    spare_power[at] = element<D>(power, power + at % D, at / D);
                }
                Twice<W>* const old_power = power;
                power = spare_power, spare_power = old_power;
            }
        for (int at = thread; at < ITEMS * D; at += blockDim.x) responses[at] = rounded(spare.responses[at]);
    }

    // Makes the basis of the circle of radius 1 / r, and returns whether it could.
    DEVICE bool make_basis(double r, Twice<W> (&polynomials)[2][K + 1]) {
        const int i = threadIdx.x;
        __syncthreads();  // separates coefficients, and reads of the polynomials of another circle, from what follows
        if (i <= K) {
            Twice<double> scale = twice(1.);
            for (int j = 0; j < i; ++j) scale = times(scale, twice(r));
            polynomials[0][i] = times(twice(i ? a[0][i ? i - 1 : 0] : one<W>()), scale);
        }
        double norm = 1;
        for (int j = K - 1; j >= 0; --j) {  // the polynomial of degree j of that of degree j + 1, highest powers first
            const Twice<W>* const from = polynomials[(K - 1 - j) % 2];
            __syncthreads();  // separates a polynomial from its reads
            const Twice<W> reflection = from[j + 1];
            const Twice<double> left = minus(twice(1.), squared_magnitude(reflection));
            if (!(left.high > MARGIN)) return false;
            norm *= ::sqrt(left.high);
            if (i <= j) {
                const Twice<W> lower = over(minus(from[i], times(reflection, conjugate(from[j + 1 - i]))), left);
                const Twice<W> mine = i == 0 ? twice(one<W>()) : lower;
                polynomials[(K - j) % 2][i] = mine;
                double scale = norm;
                for (int k = K - 1 - j + i; k > 0; --k) scale /= r;
                basis[K - 1 - j + i][j] = rounded(times(mine, twice(scale)));
            }
        }
        return true;
    }

    // Number i of the state after a sample of 1.
    DEVICE Twice<W> after_sample(int i) const {
        return minus(twice(b[0][i + 1]), times(twice(a[0][i]), twice(b[0][0])));
    }

    // Number i of the state after a step from number `column` of the basis: M T.
    DEVICE Twice<W> after_step(int i, int column) const {
        const Twice<W> moved = times(twice(a[0][i]), twice(basis[0][column]));
        return minus(twice(i + 1 < K ? basis[i + 1 < K ? i + 1 : 0][column] : W()), moved);
    }

    // Writes T^-1 x for the numbers x(0), ..., x(K - 1), STEP apart.
    template <int STEP, class X>
    DEVICE void solve(const X& x, Twice<W>* to) const {
#pragma unroll 1
        for (int i = 0; i < K; ++i) {
            Twice<W> sum = x(i);
#pragma unroll 1
            for (int j = K - i; j < K; ++j) sum = minus(sum, times(twice(basis[i][j]), to[j * STEP]));
            to[(K - 1 - i) * STEP] = over(sum, twice(real_part(basis[i][K - 1 - i])));
        }
    }

    // Returns a number of a matrix times a vector, whose numbers are STEP apart.
    template <int STEP>
    static DEVICE Twice<W> element(const Twice<W>* x, const Twice<W>* y, int row) {
        Twice<W> sum = twice(W());
        for (int i = 0; i < D; ++i) sum = plus(sum, times(x[row * D + i], y[i * STEP]));
        return bounded(sum);
    }

    // y += the state that a state x becomes after the samples of `count` threads, warps or tiles.
    DEVICE void add_after_lanes(W (&y)[D], unsigned count, const W (&x)[D]) const {
        W moved[D];
#pragma unroll
        for (int j = 0; j < D; ++j) moved[j] = x[j];
#pragma unroll 1
        for (const W* power = powers[0]; count > 0; count >>= DIGIT, power += D * D)
#pragma unroll 1
            for (unsigned times = count % (1 << DIGIT); times > 0; --times) {
                W next[D];  // for many rows in local memory, as registers have no index
#pragma unroll ROWS
                for (int row = 0; row < D; ++row) {
                    W sum = W();
#pragma unroll
                    for (int column = 0; column < D; ++column)
                        sum = product_sum(power[row * D + column], moved[column], sum);
                    next[row] = sum;
                }
#pragma unroll
                for (int j = 0; j < D; ++j) moved[j] = next[j];
            }
#pragma unroll
        for (int j = 0; j < D; ++j) y[j] = ops::add(y[j], moved[j]);
    }
    DEVICE void add_after_warps(W (&y)[D], unsigned count, const W (&x)[D]) const {
        add_after_lanes(y, count * WARP_SIZE, x);
    }
    DEVICE void add_after_tiles(W (&y)[D], unsigned count, const W (&x)[D]) const {
        add_after_lanes(y, count * (WARP_SIZE * WARPS), x);
    }

    // Converts the state to the numbers s, and back.
    DEVICE void between_threads(const W (&z)[D], W (&s)[D]) const {
        Twice<W> found[D];
        solve<1>([&](int i) { return twice(z[i]); }, found);
#pragma unroll
        for (int j = 0; j < D; ++j) s[j] = rounded(found[j]);
    }
    DEVICE void within_thread(const W (&s)[D], W (&z)[D]) const {
#pragma unroll
        for (int i = 0; i < D; ++i) {
            z[i] = W();
#pragma unroll
            for (int j = D - 1 - i; j < D; ++j) z[i] = product_sum(basis[i][j], s[j], z[i]);
        }
    }
};

}  // namespace filters

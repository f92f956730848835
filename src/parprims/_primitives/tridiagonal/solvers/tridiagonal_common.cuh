// Shared by all kernels for tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i].
//
// There are three solvers. Each has kernels for short systems, which fit in one block, and for long ones:
//   in_order.cu    elimination without row exchanges, in registers
//   exchanging.cu  elimination with row exchanges, in registers: fast, and mostly accurate
//   stable.cu      elimination with row exchanges, in the order of a binary tree: always accurate
// pivot="none" uses in_order.cu. pivot="partial" uses exchanging.cu, and solves systems again by stable.cu if their
// backward error is too large. pivot="auto" uses in_order.cu, and the others for systems that are not diagonally
// dominant. Periodic systems use stable.cu alone. A launch that solves a short system reads every number once and writes
// every unknown once.
//
// Template parameters used throughout:
//   T             the type of all numbers
//   ROWS          adjacent rows of a system that a thread has
//   THREADS       threads that share a system
//   SYSTEMS       systems of a block; `system` is the number of a thread's system in the block, `rank` the number of
//                 the thread in its system
//   INTERLEAVED   whether adjacent systems, not the rows of a system, are adjacent in memory; then adjacent threads
//                 have adjacent systems
//   LOWER, DIAG, UPPER, RHS, OUT    how each array is accessed
//
// Reproducibility: the rows of a thread and of a block depend only on n and the dtype. So a system gives the same bits
// alone and in any batch.
//
// References: M. Giles, E. Laszlo, I. Reguly, J. Appleyard and J. Demouth, GPU Implementation of Finite Difference
// Solvers, 2014 (reading the data once, a few rows for each thread); C. Klein and R. Strzodka, Tridiagonal GPU Solver
// with Scaled Partial Pivoting at Maximum Bandwidth, ICPP 2021 (elimination from both ends); S. J. Wright, Stable
// Parallel Algorithms for Two-Point Boundary Value Problems, SIAM J. Sci. Stat. Comput. 13(3), 1992 (the tree);
// R. D. Skeel, Math. Comp. 35, 1980 (refinement).

#include "common.cuh"

// ---- Systems in memory ----------------------------------------------------------------------------------------

// a / b by 32-bit division. Both are below 2^32, for no batch has more parts.
DEVICE Index quotient(Index a, Index b) { return a < b ? 0 : (unsigned)a / (unsigned)b; }

// The index of a system along each of the three axes of a batch.
struct BatchIndex {
    Index high, middle, low;
};
template <bool FEW = false>  // FEW: fewer than 2^32 systems
DEVICE BatchIndex batch_index(Index at, Index systems, Index middles, Index lows) {
    if (lows == systems) return {0, 0, at};
    if (!FEW && systems >> 32) return {at / lows / middles, at / lows % middles, at % lows};
    const unsigned row = (unsigned)at / (unsigned)lows;
    return {row / (unsigned)middles, row % (unsigned)middles, (unsigned)at - row * (unsigned)lows};
}

// One array of a batch, with its strides in elements along the three axes of the batch and along the rows of a system.
template <class T>
struct BatchView {
    T* base;
    Index high, middle, low, along;

    DEVICE T* system(const BatchIndex& p) const { return base + p.high * high + p.middle * middle + p.low * low; }
};

// The arrays of a batch of long systems, the number of systems, the lengths of the two inner axes of the batch, and the
// number of rows of a system.
template <class T>
struct SystemBatch {
    BatchView<const T> lower, diag, upper, rhs;
    BatchView<T> out;
    Index systems, middles, lows, rows;

    DEVICE BatchIndex index(Index system) const { return batch_index<true>(system, systems, middles, lows); }
};

// ---- Arithmetic -----------------------------------------------------------------------------------------------

DEVICE float real_part(float x) { return x; }
DEVICE double real_part(double x) { return x; }
template <class T>
DEVICE T real_part(Complex<T> x) {
    return x.re;
}
template <class T>
using Real = decltype(real_part(T()));

// The absolute value. For complex numbers: the sum of the absolute values of the parts (abs1, as LAPACK's cabs1), or
// the larger of the two (abs_max).
template <class T>
DEVICE T abs1(T x) {
    return ::fabs(x);
}
template <class T>
DEVICE T abs1(Complex<T> x) {
    return ::fabs(x.re) + ::fabs(x.im);
}
template <class T>
DEVICE T abs_max(T x) {
    return ::fabs(x);
}
template <class T>
DEVICE T abs_max(Complex<T> x) {
    return ::fmax(::fabs(x.re), ::fabs(x.im));
}

template <class T>
DEVICE T scaled(T x, T scale) {
    return x * scale;
}
template <class T>
DEVICE Complex<T> scaled(Complex<T> x, T scale) {
    return {x.re * scale, x.im * scale};
}
template <class T>
DEVICE T from_real(Real<T> x) {
    return ops::cast<T>(x);
}
// Returns the power of two that scales x >= 0 to [1, 2), or to less if x is subnormal. Returns NaN if x is not finite.
DEVICE float binary_scale(float x) {
    const int exponent = __float_as_int(x) >> 23;
    if (exponent > 253) return exponent > 254 ? __int_as_float(0x7fc00000) : __int_as_float(0x00400000);
    return __int_as_float((254 - exponent) << 23);
}
DEVICE double binary_scale(double x) {
    const long long exponent = __double_as_longlong(x) >> 52;
    if (exponent > 2045)
        return __longlong_as_double(exponent > 2046 ? 0x7ff8000000000000ll : 0x0008000000000000ll);
    return __longlong_as_double((2046 - exponent) << 52);
}

DEVICE float infinity(float) { return __int_as_float(0x7f800000); }
DEVICE double infinity(double) { return __longlong_as_double(0x7ff0000000000000ll); }

// Fused multiply-subtract, z - x y, and the product x y. Each rounds in one way wherever it is used.
DEVICE float fnma(float x, float y, float z) { return __fmaf_rn(-x, y, z); }
DEVICE double fnma(double x, double y, double z) { return __fma_rn(-x, y, z); }
template <class T>
DEVICE Complex<T> fnma(Complex<T> x, Complex<T> y, Complex<T> z) {
    return {fnma(-x.im, y.im, fnma(x.re, y.re, z.re)), fnma(x.im, y.re, fnma(x.re, y.im, z.im))};
}
DEVICE float mul(float x, float y) { return x * y; }
DEVICE double mul(double x, double y) { return x * y; }
template <class T>
DEVICE Complex<T> mul(Complex<T> x, Complex<T> y) {
    return {fnma(x.im, y.im, x.re * y.re), fnma(-x.im, y.re, x.re * y.im)};
}

// 1 / x, with an error of one or two units in the last place. NaN or infinite if x is zero or not finite. Rows are
// scaled, so x is far from the ends of the range.
DEVICE float reciprocal(float x) {
    const float y = __fdividef(1.f, x);
    return __fmaf_rn(y, fnma(x, y, 1.f), y);
}
DEVICE double reciprocal(double x) { return 1. / x; }
template <class T>
DEVICE Complex<T> reciprocal(Complex<T> x) {
    const T scale = binary_scale(::fmax(::fabs(x.re), ::fabs(x.im)));
    const T re = x.re * scale, im = x.im * scale;
    const T factor = reciprocal(fnma(-im, im, re * re)) * scale;
    return {re * factor, -im * factor};
}

// Returns the residual of the row a x[k-1] + b x[k] + c x[k+1] = f. `all` becomes the sum of the magnitudes of its
// terms.
template <class T>
DEVICE T row_residual(T a, T b, T c, T f, T x_before, T x, T x_behind, Real<T>& all) {
    const T below = ops::multiply(a, x_before), here = ops::multiply(b, x), above = ops::multiply(c, x_behind);
    all = abs1(f) + abs1(below) + abs1(here) + abs1(above);
    return ops::subtract(ops::subtract(ops::subtract(f, below), here), above);
}
// Returns whether the backward error residual / all is above `eps` times the machine epsilon, or is NaN.
template <class R>
DEVICE bool exceeds(R eps, R residual, R all) {
    return !(residual <= eps * (sizeof(R) == 4 ? (R)0x1p-23f : (R)0x1p-52) * all);
}

// ---- The rows of a thread -------------------------------------------------------------------------------------

template <class T>
struct alignas(16) Vector {
    static constexpr int PARTS = 16 / sizeof(T);
    T part[PARTS];
};

// Loads the first `count` of COUNT numbers (all, if count is larger) and sets the others to `beyond`. ACCESS is
// STRIDED, CONSTANT, or ASCENDING: then numbers are loaded as whole aligned vectors of 16 bytes.
template <Access ACCESS, class T, int COUNT>
DEVICE void load(const T* from, Index along, int count, T beyond, T (&to)[COUNT]) {
    if constexpr (ACCESS == ASCENDING) {
        constexpr int PARTS = Vector<T>::PARTS;
#pragma unroll
        for (int k = 0; k < COUNT; k += PARTS) {
            Vector<T> some;
#pragma unroll
            for (int part = 0; part < PARTS; ++part) some.part[part] = beyond;
            if (k < count) some = *reinterpret_cast<const Vector<T>*>(from + k);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) to[k + part] = some.part[part];
        }
    } else if constexpr (ACCESS == CONSTANT) {
        const T one = count > 0 ? *from : beyond;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) to[k] = k < count ? one : beyond;
    } else {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) to[k] = k < count ? from[k * along] : beyond;
    }
}

// Stores the first `count` of COUNT numbers.
template <Access ACCESS, class T, int COUNT>
DEVICE void save(T* to, Index along, int count, const T (&from)[COUNT]) {
    if constexpr (ACCESS == ASCENDING) {
        constexpr int PARTS = Vector<T>::PARTS;
#pragma unroll
        for (int k = 0; k < COUNT; k += PARTS) {
            Vector<T> some;
#pragma unroll
            for (int part = 0; part < PARTS; ++part) some.part[part] = from[k + part];
            if (k < count) *reinterpret_cast<Vector<T>*>(to + k) = some;
        }
    } else {
#pragma unroll
        for (int k = 0; k < COUNT; ++k)
            if (k < count) to[k * along] = from[k];
    }
}

// Loads the rows of a thread, from row `begin` of a system of `rows` rows on. Rows past its end become x = 0.
template <Access LOWER, Access DIAG, Access UPPER, Access RHS, class T, int ROWS>
DEVICE void load_rows(const BatchView<const T> (&arrays)[4], const BatchIndex& at, Index begin, Index rows,
                      T (&a)[ROWS], T (&b)[ROWS], T (&c)[ROWS], T (&d)[ROWS]) {
    const int count = (int)max((Index)0, min((Index)ROWS, rows - begin));
    const auto from = [&](int k) { return arrays[k].system(at) + begin * arrays[k].along; };
    load<LOWER>(from(0), arrays[0].along, count, T(), a);
    load<DIAG>(from(1), arrays[1].along, count, from_real<T>(1), b);
    load<UPPER>(from(2), arrays[2].along, count, T(), c);
    load<RHS>(from(3), arrays[3].along, count, T(), d);
    if (begin == 0) a[0] = T();
    if (begin + ROWS >= rows) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k >= count - 1) c[k] = T();
    }
}

// ---- The threads of a system ----------------------------------------------------------------------------------

// Transposes structures between the threads of a block: from threads of interleaved systems to threads of one system in
// adjacent lanes; if INVERSE, back. Calls alternate between the two directions. So a thread writes the places that it
// read in the call before, and no barrier is needed between calls.
template <class T, int THREADS, int SYSTEMS, bool INVERSE, class Struct>
DEVICE Struct transpose_lanes(const Struct& mine, int system, int rank) {
    constexpr int COUNT = sizeof(Struct) / sizeof(T), WIDE = THREADS + 1, ALL = WIDE * SYSTEMS;
    extern __shared__ uint4 shared[];
    T* const places = reinterpret_cast<T*>(shared);
    const int interleaved = system * WIDE + rank, adjacent = threadIdx.x / THREADS * WIDE + threadIdx.x % THREADS;
    T numbers[COUNT];
    memcpy(numbers, &mine, sizeof(Struct));
#pragma unroll
    for (int k = 0; k < COUNT; ++k) places[k * ALL + (INVERSE ? adjacent : interleaved)] = numbers[k];
    __syncthreads();  // all threads have written their numbers
#pragma unroll
    for (int k = 0; k < COUNT; ++k) numbers[k] = places[k * ALL + (INVERSE ? interleaved : adjacent)];
    Struct other;
    memcpy(&other, numbers, sizeof(Struct));
    return other;
}

// A list of the systems that one launch leaves to a later one. counts[0] is their number, counts[1] the number of
// blocks of the later launch that have read it.
struct Worklist {
    unsigned* counts;
    unsigned* list;

    // Adds a system for every lane of the warp whose `mine` is true.
    DEVICE void add(bool mine, Index system) const {
        const unsigned all = __ballot_sync(ALL_LANES, mine);
        if (all == 0) return;
        const int lane = threadIdx.x % 32, leader = __ffs((int)all) - 1;
        unsigned at = 0;
        if (lane == leader) at = atomicAdd(&counts[0], (unsigned)__popc(all));
        at = __shfl_sync(ALL_LANES, at, leader);
        if (mine) list[at + __popc(all & ((1u << lane) - 1u))] = (unsigned)system;
    }
    // Returns the number of systems on the list to all threads of a block. The last block to ask zeros the counts.
    DEVICE unsigned take() const {
        const unsigned count = __ldcg(counts);
        __syncthreads();  // all threads have read the count before the last block clears it
        if (threadIdx.x == 0 && atomicAdd(&counts[1], 1u) == gridDim.x - 1) counts[0] = counts[1] = 0;
        return count;
    }
};

// Returns whether the threads of a system exchange data in shared memory. Otherwise they are lanes of one warp.
constexpr DEVICE bool shares_memory(int threads, bool interleaved) {
    return threads > 1 && (interleaved || threads > 32);
}

// Returns whether a condition holds in any thread of the system. All threads of the block must call it.
template <int THREADS, int SYSTEMS, bool SHARED>
DEVICE bool any_of_system(bool mine, int system) {
    if constexpr (!SHARED) {
        constexpr unsigned GROUP = THREADS == 32 ? ~0u : (1u << (THREADS & 31)) - 1u;
        return (__ballot_sync(ALL_LANES, mine) >> (threadIdx.x % 32 & ~(THREADS - 1)) & GROUP) != 0;
    } else {
        const bool any = __syncthreads_or(mine);
        if (SYSTEMS == 1 || !any) return any;
        __shared__ unsigned marks[SYSTEMS];
        if (threadIdx.x < SYSTEMS) marks[threadIdx.x] = 0;
        __syncthreads();  // the marks are cleared
        if (mine) marks[system] = 1;
        __syncthreads();  // all threads have marked their systems
        const bool found = marks[system] != 0;
        __syncthreads();  // all threads have read the marks
        return found;
    }
}

// Tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i]. Of those that a block can hold every
// number is read once and every unknown written once. A thread, `unit`, has some rows of a system that follow each
// other. ACROSS says that the systems, and not their rows, lie side by side in memory. There are three ways:
//
// Without exchanges (solve_in_order): a thread has its rows in registers. It eliminates all of their unknowns but the
// last, downwards; the units' last unknowns are a tridiagonal system of their own, solved by cyclic reduction between
// the lanes of a warp, and what remains of several warps by one of them in the same way; then each thread computes its
// others. The Schur complement of a definite, dominant or M-matrix is one, so no pivot vanishes before rounding.
// CHECKED leaves the systems that are not diagonally dominant to the launch behind.
//
// With exchanges in registers (solve_exchanging): a thread eliminates its unknowns but the first and the last, once
// downwards without its first row and once upwards without its last, each time by that of two equations which has more
// of the unknown. Neighbouring units, then pairs of them and so on are joined in the same way. That is two
// factorisations which do not know of each other, so errors may grow with the condition number of a part, and a part
// without one of its rows may be singular though the matrix is not. So every row's residual is looked at: where one is
// too large the system is solved again for the residual, and if that was not enough it is left to the launch behind.
//
// With exchanges in the stable way (solve_systems): a block has SYSTEMS systems, UNITS threads to each with ROWS rows,
// in shared memory.
// A segment of rows i ... j-1 is known by two equations between y[i] = (x[i-1], x[i]) and y[j] = (x[j-1], x[j]).
// Phases, of which 3 to 6 run again, for the residual of the first solution, where its error asks for that:
//   1. The threads of a block copy the rows of its systems to shared memory, neighbours reading neighbours.
//   2. AUTO looks whether every row is diagonally dominant; rows of such systems (periodic ones) are not exchanged.
//   3. Every thread makes its rows one segment: a row that joins the segment lets it eliminate x[j-1] from three
//      equations. The one used for that is kept, to compute x[j-1] once its neighbours are known.
//   4. Neighbouring segments are joined in pairs, log2(UNITS) times: two segments are four equations of which two
//      eliminate the y they share; these two take the place of the right segment in shared memory.
//   5. The last segment begins and ends with the same y, that of a periodic system; the corners of others are zero.
//      Down the same tree, every pair kept gives the y between two that are known.
//   6. Every thread computes its unknowns from the first and last of them, and looks at the residual of its rows.
//   7. Of two solutions the one with the smaller backward error goes to shared memory, and from there to the result.
// The equation that eliminates an unknown is the one with its largest coefficient, rows having been scaled by a power
// of two to a largest coefficient from 1 to 2; without exchanges it is the unknown's own row. All of the rows that hold
// an unknown are among the three or four equations, so no regular matrix lacks a pivot.
// Order and bits: which rows make a unit or a segment depends on n and the dtype alone, so a system gives the same bits
// alone and in any batch.
//
// S. J. Wright, Stable Parallel Algorithms for Two-Point Boundary Value Problems, SIAM J. Sci. Stat. Comput. 13(3),
// 1992; two chains of eliminations to a thread: C. Klein and R. Strzodka, Tridiagonal GPU Solver with Scaled Partial
// Pivoting at Maximum Bandwidth, ICPP 2021; one read of the data, a few rows to a thread: M. Giles, E. Laszlo,
// I. Reguly, J. Appleyard and J. Demouth, GPU Implementation of Finite Difference Solvers, 2014; R. D. Skeel, Math.
// Comp. 35, 1980, for the refinement.

using Index = long long;

enum Pivot { AUTO, PARTIAL, NONE };

// a / b of numbers below 2^32, such as count the parts of all systems.
DEVICE Index quotient(Index a, Index b) { return a < b ? 0 : (unsigned)a / (unsigned)b; }

// Where a system stands along the three axes.
struct Place {
    Index high, middle, low;
};
DEVICE Place place_of(Index at, Index systems, Index middles, Index lows) {
    if (lows == systems) return {0, 0, at};
    if (systems >> 32) return {at / lows / middles, at / lows % middles, at % lows};
    const unsigned row = (unsigned)at / (unsigned)lows;
    return {row / (unsigned)middles, row % (unsigned)middles, (unsigned)at - row * (unsigned)lows};
}

// A batch of systems as three axes and the one along which the unknowns are numbered, with its strides in elements.
template <class T>
struct Batch {
    T* base;
    Index high, middle, low, along;

    DEVICE T* system(const Place& p) const { return base + p.high * high + p.middle * middle + p.low * low; }
};

DEVICE float part(float x) { return x; }
DEVICE double part(double x) { return x; }
template <class T>
DEVICE T part(Complex<T> x) {
    return x.re;
}
template <class T>
using Real = decltype(part(T()));

// The absolute value; of a complex number the sum of those of its parts, or the larger of them.
template <class T>
DEVICE T size(T x) {
    return ::fabs(x);
}
template <class T>
DEVICE T size(Complex<T> x) {
    return ::fabs(x.re) + ::fabs(x.im);
}
template <class T>
DEVICE T least_size(T x) {
    return ::fabs(x);
}
template <class T>
DEVICE T least_size(Complex<T> x) {
    return ::fmax(::fabs(x.re), ::fabs(x.im));
}

template <class T>
DEVICE T times(T x, T scale) {
    return x * scale;
}
template <class T>
DEVICE Complex<T> times(Complex<T> x, T scale) {
    return {x.re * scale, x.im * scale};
}
template <class T>
DEVICE T number(Real<T> x) {
    return ops::cast<T>(x);
}
// Returns the power of two that scales a number to 1 ... 2 (less for subnormal ones); NaN for what is not finite.
DEVICE float scale_of(float x) {
    const int exponent = __float_as_int(x) >> 23;
    if (exponent > 253) return exponent > 254 ? __int_as_float(0x7fc00000) : __int_as_float(0x00400000);
    return __int_as_float((254 - exponent) << 23);
}
DEVICE double scale_of(double x) {
    const long long exponent = __double_as_longlong(x) >> 52;
    if (exponent > 2045)
        return __longlong_as_double(exponent > 2046 ? 0x7ff8000000000000ll : 0x0008000000000000ll);
    return __longlong_as_double((2046 - exponent) << 52);
}

DEVICE float infinity(float) { return __int_as_float(0x7f800000); }
DEVICE double infinity(double) { return __longlong_as_double(0x7ff0000000000000ll); }

// ---- Without exchanges ----------------------------------------------------------------------------------------

// How the rows of a system lie in memory: a stride apart, all in one place, or in whole aligned words of 16 bytes.
enum Lies { APART, SAME, VECTORS };

template <class T>
struct alignas(16) Vector {
    static constexpr int PARTS = 16 / sizeof(T);
    T part[PARTS];
};

// Loads `count` rows that a thread has, or COUNT if there are more; `beyond` stands for those behind.
template <Lies LIES, class T, int COUNT>
DEVICE void load(const T* from, Index along, int count, T beyond, T (&to)[COUNT]) {
    if constexpr (LIES == VECTORS) {
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
    } else if constexpr (LIES == SAME) {
        const T one = count > 0 ? *from : beyond;
#pragma unroll
        for (int k = 0; k < COUNT; ++k) to[k] = k < count ? one : beyond;
    } else {
#pragma unroll
        for (int k = 0; k < COUNT; ++k) to[k] = k < count ? from[k * along] : beyond;
    }
}

template <Lies LIES, class T, int COUNT>
DEVICE void save(T* to, Index along, int count, const T (&from)[COUNT]) {
    if constexpr (LIES == VECTORS) {
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

// Loads the rows of a thread, from row `begin` of a system; those beyond its end leave x = 0 alone.
template <Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS, class T, int ROWS>
DEVICE void load_part(const Batch<const T> (&batches)[4], const Place& at, Index begin, Index rows, T (&a)[ROWS],
                      T (&b)[ROWS], T (&c)[ROWS], T (&d)[ROWS]) {
    const int count = (int)max((Index)0, min((Index)ROWS, rows - begin));
    const auto from = [&](int k) { return batches[k].system(at) + begin * batches[k].along; };
    load<LOWER>(from(0), batches[0].along, count, T(), a);
    load<DIAG>(from(1), batches[1].along, count, number<T>(1), b);
    load<UPPER>(from(2), batches[2].along, count, T(), c);
    load<RHS>(from(3), batches[3].along, count, T(), d);
    if (begin == 0) a[0] = T();
    if (begin + ROWS >= rows) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k >= count - 1) c[k] = T();
    }
}

// a - b c and a b, in the same roundings wherever they are used.
DEVICE float less(float a, float b, float c) { return __fmaf_rn(-b, c, a); }
DEVICE double less(double a, double b, double c) { return __fma_rn(-b, c, a); }
template <class T>
DEVICE Complex<T> less(Complex<T> a, Complex<T> b, Complex<T> c) {
    return {less(less(a.re, b.re, c.re), -b.im, c.im), less(less(a.im, b.re, c.im), b.im, c.re)};
}
DEVICE float of_both(float a, float b) { return a * b; }
DEVICE double of_both(double a, double b) { return a * b; }
template <class T>
DEVICE Complex<T> of_both(Complex<T> a, Complex<T> b) {
    return {less(a.re * b.re, a.im, b.im), less(a.re * b.im, -a.im, b.re)};
}

// 1 / x, to a unit in the last place or two; what is not finite or zero gives no number. The rows' scale keeps it
// from the ends of the range.
DEVICE float inverse(float x) {
    const float y = __fdividef(1.f, x);
    return __fmaf_rn(y, less(1.f, x, y), y);
}
DEVICE double inverse(double x) { return 1. / x; }
template <class T>
DEVICE Complex<T> inverse(Complex<T> x) {
    const T scale = scale_of(::fmax(::fabs(x.re), ::fabs(x.im)));
    const T re = x.re * scale, im = x.im * scale;
    const T factor = inverse(less(re * re, -im, im)) * scale;
    return {re * factor, -im * factor};
}

// What remains of a unit, some rows that follow each other, when all of its unknowns but the last are eliminated: the
// row of that, between the last unknown of the unit before (`left`) and the first of the unit behind; and its first
// unknown, which is first - first_left left - first_own own.
template <class T>
struct Ends {
    T lower, diag, upper, rhs;
    T first, first_left, first_own;

    // Puts what is known of the first unknown of the unit behind into the row.
    DEVICE void link(T next, T next_left, T next_own) {
        diag = less(diag, upper, next_left);
        rhs = less(rhs, upper, next);
        upper = ops::negative(of_both(upper, next_own));
    }
    // Writes the numbers `apart` places from one another.
    DEVICE void put(T* to, Index apart) const {
        to[0] = lower, to[apart] = diag, to[2 * apart] = upper, to[3 * apart] = rhs;
        to[4 * apart] = first, to[5 * apart] = first_left, to[6 * apart] = first_own;
    }
};

// Eliminates downwards. Afterwards x[k] = rhs[k] - upper[k] x[k+1] - lower[k] left for all k but the last.
template <class T, int COUNT>
DEVICE Ends<T> shorten(T (&lower)[COUNT], const T (&diag)[COUNT], T (&upper)[COUNT], T (&rhs)[COUNT]) {
    constexpr int LAST = COUNT - 1;
    if constexpr (LAST == 0) {
        return {lower[0], diag[0], upper[0], rhs[0], T(), T(), number<T>(-1)};
    } else {
#pragma unroll
        for (int k = 0; k < LAST; ++k) {
            if (k == 0) {
                const T w = inverse(diag[0]);
                rhs[0] = of_both(rhs[0], w), lower[0] = of_both(lower[0], w), upper[0] = of_both(upper[0], w);
            } else {
                const T w = inverse(less(diag[k], lower[k], upper[k - 1]));
                rhs[k] = of_both(less(rhs[k], lower[k], rhs[k - 1]), w);
                lower[k] = ops::negative(of_both(of_both(lower[k], lower[k - 1]), w));
                upper[k] = of_both(upper[k], w);
            }
        }
        Ends<T> ends;
        ends.lower = ops::negative(of_both(lower[LAST], lower[LAST - 1]));
        ends.diag = less(diag[LAST], lower[LAST], upper[LAST - 1]);
        ends.upper = upper[LAST];
        ends.rhs = less(rhs[LAST], lower[LAST], rhs[LAST - 1]);
        ends.first = rhs[LAST - 1], ends.first_left = lower[LAST - 1], ends.first_own = upper[LAST - 1];
#pragma unroll
        for (int k = LAST - 2; k >= 0; --k) {
            ends.first = less(rhs[k], upper[k], ends.first);
            ends.first_left = less(lower[k], upper[k], ends.first_left);
            ends.first_own = ops::negative(of_both(upper[k], ends.first_own));
        }
        return ends;
    }
}

// Computes the unknowns of a shortened unit, in the place of `rhs`.
template <class T, int COUNT>
DEVICE void lengthen(const T (&lower)[COUNT], const T (&upper)[COUNT], T (&rhs)[COUNT], T left, T own) {
    rhs[COUNT - 1] = own;
#pragma unroll
    for (int k = COUNT - 2; k >= 0; --k) rhs[k] = less(less(rhs[k], lower[k], left), upper[k], rhs[k + 1]);
}

template <int WIDTH, class T>
DEVICE T from_below(T mine, int distance) {
    return __shfl_up_sync(0xffffffffu, mine, distance, WIDTH);
}
template <int WIDTH, class T>
DEVICE T from_above(T mine, int distance) {
    return __shfl_down_sync(0xffffffffu, mine, distance, WIDTH);
}
template <int WIDTH, class T>
DEVICE Complex<T> from_below(Complex<T> mine, int distance) {
    return {from_below<WIDTH>(mine.re, distance), from_below<WIDTH>(mine.im, distance)};
}
template <int WIDTH, class T>
DEVICE Complex<T> from_above(Complex<T> mine, int distance) {
    return {from_above<WIDTH>(mine.re, distance), from_above<WIDTH>(mine.im, distance)};
}

// Threads of a block whose systems lie side by side change places, so that the units of a system are neighbouring lanes
// (BACK: and the way back): gives each what the thread in whose place it comes had. A thread reads the places that it
// writes the next time, so no other has to wait for that.
template <class T, int UNITS, int SYSTEMS, bool BACK, class Numbers>
DEVICE Numbers turned(const Numbers& mine, int system, int unit) {
    constexpr int COUNT = sizeof(Numbers) / sizeof(T), WIDE = UNITS + 1, ALL = WIDE * SYSTEMS;
    extern __shared__ uint4 shared[];
    T* const places = reinterpret_cast<T*>(shared);
    const int across = system * WIDE + unit, along = threadIdx.x / UNITS * WIDE + threadIdx.x % UNITS;
    T numbers[COUNT];
    memcpy(numbers, &mine, sizeof(Numbers));
#pragma unroll
    for (int k = 0; k < COUNT; ++k) places[k * ALL + (BACK ? along : across)] = numbers[k];
    __syncthreads();  // all numbers are there
#pragma unroll
    for (int k = 0; k < COUNT; ++k) numbers[k] = places[k * ALL + (BACK ? across : along)];
    Numbers other;
    memcpy(&other, numbers, sizeof(Numbers));
    return other;
}

// The units that neighbouring lanes have, WIDTH of them, joined by cyclic reduction: every second row that is left
// eliminates those `apart` lanes below and above, and on the way back these take their unknowns from it. So it is one
// factorisation, whose error does not grow with the condition number, as it does where every lane reduces its own row
// to the end. Afterwards the unknown of a lane is d - a x - c y, x and y those of the lanes that eliminated it.
template <int WIDTH, class T>
struct Ladder {
    T a, c, d;

    // Returns to the last lane what remains of all units.
    DEVICE Ends<T> join(const Ends<T>& ends) {
        const int place = threadIdx.x % WIDTH + 1;
        Ends<T> row = ends;
        if constexpr (WIDTH > 1) {
            const T first = from_above<WIDTH>(ends.first, 1), first_left = from_above<WIDTH>(ends.first_left, 1);
            const T first_own = from_above<WIDTH>(ends.first_own, 1);
            if (place < WIDTH) row.link(first, first_left, first_own);
        }
        const T scale = inverse(row.diag);
        T outer = of_both(row.upper, scale);  // of the last, to what is behind
        a = of_both(row.lower, scale), c = place < WIDTH ? outer : T(), d = of_both(row.rhs, scale);
#pragma unroll
        for (int apart = 1; apart < WIDTH; apart *= 2) {
            const T a_below = from_below<WIDTH>(a, apart), a_above = from_above<WIDTH>(a, apart);
            const T c_below = from_below<WIDTH>(c, apart), c_above = from_above<WIDTH>(c, apart);
            const T d_below = from_below<WIDTH>(d, apart), d_above = from_above<WIDTH>(d, apart);
            if (place % (2 * apart) == 0) {
                const T w = inverse(less(less(number<T>(1), a, c_below), c, a_above));
                d = of_both(less(less(d, a, d_below), c, d_above), w);
                a = ops::negative(of_both(of_both(a, a_below), w));
                c = ops::negative(of_both(of_both(c, c_above), w));
                outer = of_both(outer, w);
            }
        }
        // The first unknown by the last of its unit, that by the one that eliminated it, until it is the last of all.
        const int lane = threadIdx.x % 32 - (place - 1);
        T first = shuffle(ends.first, lane), left = shuffle(ends.first_left, lane), own = shuffle(ends.first_own, lane);
#pragma unroll
        for (int apart = 1; apart < WIDTH; apart *= 2) {
            first = less(first, own, shuffle(d, lane + apart - 1));
            left = less(left, own, shuffle(a, lane + apart - 1));
            own = ops::negative(of_both(own, shuffle(c, lane + apart - 1)));
        }
        return {a, number<T>(1), outer, d, first, left, own};
    }
    // Returns the last unknown of this lane's unit, given that before all of them and, in the last lane, the last.
    DEVICE T resolve(T before, T last) const {
        const int place = threadIdx.x % WIDTH + 1;
        T x = place < WIDTH ? d : last;
#pragma unroll
        for (int apart = WIDTH / 2; apart > 0; apart /= 2) {
            const T below = from_below<WIDTH>(x, apart), above = from_above<WIDTH>(x, apart);
            if (place % (2 * apart) == apart) x = less(less(x, a, place == apart ? before : below), c, above);
        }
        return x;
    }
};

// The last unknown of a unit and of that before.
template <class T>
struct Last {
    T own, left;
};

// Solves for the last unknowns of the units of a block's systems.
template <class T, int UNITS, int SYSTEMS, bool ACROSS>
DEVICE Last<T> solve_ends(Ends<T> ends, int system, int unit) {
    constexpr int WIDTH = UNITS < 32 ? UNITS : 32, WARPS = UNITS / WIDTH;
    constexpr bool TURN = UNITS > 1 && SYSTEMS > 1 && ACROSS;
    if constexpr (TURN) ends = turned<T, UNITS, SYSTEMS, false>(ends, system, unit);
    Ladder<WIDTH, T> ladder;
    const Ends<T> all = ladder.join(ends);
    Last<T> known = {all.rhs, T()};  // a whole system is this one row
    if constexpr (WARPS > 1) {
        // A system is several warps, the first of which joins what they have joined.
        __shared__ Ends<T> joined[SYSTEMS * WARPS];
        __shared__ T lasts[SYSTEMS * WARPS];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 31) joined[warp] = all;
        __syncthreads();  // what remains of all warps is there
        if (warp % WARPS == 0) {
            const int mine = warp + lane % WARPS;
            Ladder<WARPS, T> of_warps;
            const T last = of_warps.resolve(T(), of_warps.join(joined[mine]).rhs);
            if (lane < WARPS) lasts[mine] = last;
        }
        __syncthreads();  // their last unknowns are there
        known = {lasts[warp], warp % WARPS > 0 ? lasts[warp > 0 ? warp - 1 : 0] : T()};
    }
    const T before = known.left;
    known.own = ladder.resolve(before, known.own);
    known.left = from_below<WIDTH>(known.own, 1);
    if (threadIdx.x % WIDTH == 0) known.left = before;
    if constexpr (TURN) known = turned<T, UNITS, SYSTEMS, true>(known, system, unit);
    return known;
}

// Multiplies a thread's rows by powers of two if numbers near the ends of the range are among them.
template <class T, int COUNT>
DEVICE void scale_rows(T (&lower)[COUNT], T (&diag)[COUNT], T (&upper)[COUNT], T (&rhs)[COUNT]) {
    using R = Real<T>;
    R least = size(diag[0]), most = least;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        least = ::fmin(least, size(diag[k]));
        most = ::fmax(most, ::fmax(size(diag[k]), size(lower[k]) + size(upper[k])));
    }
    constexpr R FAR = (R)0x1p60f;
    if (least * FAR >= (R)1 && most <= FAR) return;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
        const R scale = scale_of(::fmax(::fmax(size(lower[k]), size(diag[k])), size(upper[k])));
        lower[k] = times(lower[k], scale), diag[k] = times(diag[k], scale);
        upper[k] = times(upper[k], scale), rhs[k] = times(rhs[k], scale);
    }
}

// The systems that are left to a later launch: how many, how many of its blocks know, and which.
struct Left {
    unsigned* counts;
    unsigned* list;

    // Adds a system for every lane of the warp that has one.
    DEVICE void add(bool mine, Index system) const {
        const unsigned all = __ballot_sync(0xffffffffu, mine);
        if (all == 0) return;
        const int lane = threadIdx.x % 32, leader = __ffs((int)all) - 1;
        unsigned at = 0;
        if (lane == leader) at = atomicAdd(&counts[0], (unsigned)__popc(all));
        at = __shfl_sync(0xffffffffu, at, leader);
        if (mine) list[at + __popc(all & ((1u << lane) - 1u))] = (unsigned)system;
    }
    // Returns how many there are, to every thread of a block; the last block to ask leaves none.
    DEVICE unsigned take() const {
        const unsigned count = __ldcg(counts);
        __syncthreads();  // all have the count before it may be gone
        if (threadIdx.x == 0 && atomicAdd(&counts[1], 1u) == gridDim.x - 1) counts[0] = counts[1] = 0;
        return count;
    }
};

// Returns whether the units of a system meet in shared memory; else they are lanes of a warp.
constexpr DEVICE bool meets(int units, bool across) { return units > 1 && (across || units > 32); }

// Returns whether a condition holds in any thread of the system; all threads of the block ask.
template <int UNITS, int SYSTEMS, bool MEET>
DEVICE bool any_of_system(bool mine, int system) {
    if constexpr (!MEET) {
        constexpr unsigned GROUP = UNITS == 32 ? ~0u : (1u << (UNITS & 31)) - 1u;
        return (__ballot_sync(0xffffffffu, mine) >> (threadIdx.x % 32 & ~(UNITS - 1)) & GROUP) != 0;
    } else {
        const bool any = __syncthreads_or(mine);
        if (SYSTEMS == 1 || !any) return any;
        __shared__ unsigned marks[SYSTEMS];
        if (threadIdx.x < SYSTEMS) marks[threadIdx.x] = 0;
        __syncthreads();  // there are no marks yet
        if (mine) marks[system] = 1;
        __syncthreads();  // all marks are there
        const bool found = marks[system] != 0;
        __syncthreads();  // all have read them
        return found;
    }
}

template <class T, int ROWS, int UNITS, int SYSTEMS, bool ACROSS, bool CHECKED, Lies LOWER, Lies DIAG,
          Lies UPPER, Lies RHS, Lies OUT>
DEVICE void solve_in_order(Batch<const T> lower, Batch<const T> diag, Batch<const T> upper, Batch<const T> rhs,
                           Batch<T> out, Index systems, Index middles, Index lows, Index rows, Left left_over) {
    constexpr bool MEET = meets(UNITS, ACROSS);
    const int thread = threadIdx.x, n = (int)rows;
    const int system = ACROSS ? thread % SYSTEMS : thread / UNITS, unit = ACROSS ? thread / SYSTEMS : thread % UNITS;
    const Index mine = (Index)blockIdx.x * SYSTEMS + system;
    // Threads beyond the last system do as it does, but store nothing.
    bool stores = mine < systems;
    const Place at = place_of(stores ? mine : systems - 1, systems, middles, lows);
    const int begin = unit * ROWS, count = n - begin;
    T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
    load_part<LOWER, DIAG, UPPER, RHS>({lower, diag, upper, rhs}, at, begin, rows, a, b, c, d);

    if constexpr (CHECKED) {
        bool dominant = true;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) dominant = dominant && size(a[k]) + size(c[k]) <= least_size(b[k]);
        const bool leave = any_of_system<UNITS, SYSTEMS, MEET>(!dominant, system);
        left_over.add(leave && stores && unit == 0, mine);
        if (leave) stores = false;
        if (MEET && SYSTEMS == 1 ? leave : !MEET && __all_sync(0xffffffffu, leave)) return;
    }

    scale_rows(a, b, c, d);
    const Last<T> last = solve_ends<T, UNITS, SYSTEMS, ACROSS>(shorten(a, b, c, d), system, unit);
    lengthen(a, c, d, last.left, last.own);

    T sum = T();  // stays zero if all are finite
#pragma unroll
    for (int k = 0; k < ROWS; ++k) sum = less(sum, T(), d[k]);
    const bool whole = ops::equal(sum, T());
    const bool nowhere = any_of_system<UNITS, SYSTEMS, MEET>(!whole, system);
    if (nowhere) {
#pragma unroll
        for (int k = 0; k < ROWS; ++k) d[k] = number<T>(infinity(Real<T>()) - infinity(Real<T>()));
    }
    if (stores) save<OUT>(out.system(at) + begin * out.along, out.along, count, d);
}

// ---- Long systems, in registers -------------------------------------------------------------------------------

// A system longer than a block holds is shortened by warps, again until a block can solve what remains, and the way
// back is gone level by level. That repeats the elimination of the rows, so that little is kept between.

// What is known of a long system as a whole.
struct Verdict {
    unsigned long long errors[2];  // bits of the backward errors of both solutions, of which the largest stays
    unsigned exchange, again, lost;  // exchange: is not dominant
    unsigned left;        // 1: not solved at once, 2: nor mended in registers, 4: nor stably, 8: nor for the residual
    unsigned menders[2];  // blocks that have begun to mend, in either way; the first verdict counts those of all systems
    unsigned failed[3];   // parts with many rows to mend; windows that could not be mended in registers, by launch
};

template <class T>
struct System {
    Batch<const T> lower, diag, upper, rhs;
    Batch<T> out;
    Index systems, middles, lows, rows;
};

// Calls `each` with the systems that are due and the parts, of how many each has, that this block has of them in turn.
template <class Due, class Each>
DEVICE void take_parts(Index systems, Index parts, Due due, Each each) {
#pragma unroll 1
    for (Index number = blockIdx.x; number < systems * parts; number += gridDim.x) {
        const Index system = quotient(number, parts);
        if (due(system))
            each(system, number - system * parts);
        else  // the last before those of the next system
            number += ((system + 1) * parts - 1 - number) / gridDim.x * gridDim.x;
    }
}

// Which part of a system a warp has, of how many; the first row of this lane and how many it has.
template <int ROWS>
struct Part {
    static constexpr int ALL = 32 * ROWS;
    Index number, parts, begin;
    int count;

    // How many parts the blocks have, one to each warp.
    static DEVICE Index of_blocks(Index rows) { return (rows + blockDim.x * ROWS - 1) / (blockDim.x * ROWS); }

    DEVICE Part(Index rows, Index block) {
        number = block * (blockDim.x / 32) + threadIdx.x / 32, parts = (rows + ALL - 1) / ALL;
        begin = number * ALL + threadIdx.x % 32 * ROWS;
        count = (int)max((Index)0, min((Index)ROWS, rows - begin));
    }
};

// Without exchanges a warp leaves one row, that of its last unknown, as `Ends`.

// Returns the rows that are kept at some place as 7 arrays to each system, with their unknowns behind all of them.
template <class T>
DEVICE System<T> kept_ends(T* kept, Index systems, Index rows) {
    System<T> s = {};
    s.lower.base = kept, s.out = {kept + 7 * systems * rows, 0, 0, rows, 1};
    s.systems = s.lows = systems, s.middles = 1, s.rows = rows;
    return s;
}

// Loads a thread's rows: those given, or of what is kept the row of a unit's last unknown with what the unit behind
// says of its first.
template <bool GIVEN, Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS, class T, int ROWS>
DEVICE void load_level(const System<T>& s, Index system, Index begin, T (&a)[ROWS], T (&b)[ROWS], T (&c)[ROWS],
                       T (&d)[ROWS]) {
    if constexpr (GIVEN) {
        const Place at = place_of(system, s.systems, s.middles, s.lows);
        load_part<LOWER, DIAG, UPPER, RHS>({s.lower, s.diag, s.upper, s.rhs}, at, begin, s.rows, a, b, c, d);
    } else {
        const T* kept = s.lower.base + system * 7 * s.rows;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const Index row = begin + k, next = min(row + 1, s.rows - 1);
            Ends<T> one = {T(), number<T>(1)};
            if (row < s.rows) {
                one = {kept[row], kept[s.rows + row], kept[2 * s.rows + row], kept[3 * s.rows + row]};
                one.link(kept[4 * s.rows + next], kept[5 * s.rows + next], kept[6 * s.rows + next]);
            }
            a[k] = one.lower, b[k] = one.diag, c[k] = one.upper, d[k] = one.rhs;
        }
    }
}

template <class T, int ROWS, bool CHECKED, bool GIVEN, Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS>
DEVICE void shorten_long(System<T> s, System<T> next, unsigned* marks) {
    const Index blocks = Part<ROWS>::of_blocks(s.rows);
    take_parts(s.systems, blocks, [](Index) { return true; }, [&](Index system, Index block) {
        const Part<ROWS> part(s.rows, block);
        T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
        load_level<GIVEN, LOWER, DIAG, UPPER, RHS>(s, system, part.begin, a, b, c, d);
        if constexpr (CHECKED && GIVEN) {
            bool dominant = true;
#pragma unroll
            for (int k = 0; k < ROWS; ++k) dominant = dominant && size(a[k]) + size(c[k]) <= least_size(b[k]);
            const bool leave = __syncthreads_or(!dominant);
            if (threadIdx.x == 0) marks[system * blocks + block] = leave;
            if (leave) return;
        }
        if (GIVEN) scale_rows(a, b, c, d);
        Ladder<32, T> ladder;
        const Ends<T> ends = ladder.join(shorten(a, b, c, d));
        if (threadIdx.x % 32 == 31 && part.number < part.parts)
            ends.put(const_cast<T*>(next.lower.base) + system * 7 * next.rows + part.number, next.rows);
    });
}

// Solves for the rows of a level, a block to each system, and says what is known of the system.
template <class T, int ROWS, int UNITS, bool CHECKED>
DEVICE void solve_top(System<T> s, Verdict* verdicts, const unsigned* marks, Index blocks) {
    take_parts(s.systems, 1, [](Index) { return true; }, [&](Index system, Index) {
        bool exchange = false;
        if constexpr (CHECKED) {
            for (Index block = threadIdx.x; block < blocks; block += UNITS)
                exchange |= marks[system * blocks + block] != 0;
            exchange = __syncthreads_or(exchange);
        }
        if (threadIdx.x == 0) verdicts[system] = {{0, 0}, exchange, 0, 0, 0};
        if (exchange) return;
        const Index begin = threadIdx.x * ROWS;
        T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
        load_level<false, APART, APART, APART, APART>(s, system, begin, a, b, c, d);
        const Last<T> last = solve_ends<T, UNITS, 1, false>(shorten(a, b, c, d), 0, threadIdx.x);
        lengthen(a, c, d, last.left, last.own);
        save<APART>(s.out.base + system * s.rows + begin, 1, (int)(s.rows - begin), d);
        __syncthreads();  // all have read what remains of the system before
    });
}

template <class T, int ROWS, bool CHECKED, bool GIVEN, Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS, Lies OUT>
DEVICE void lengthen_long(System<T> s, System<T> next, Verdict* verdicts) {
    const auto due = [&](Index system) { return !CHECKED || !verdicts[system].exchange; };
    take_parts(s.systems, Part<ROWS>::of_blocks(s.rows), due, [&](Index system, Index block) {
        const Part<ROWS> part(s.rows, block);
        T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
        load_level<GIVEN, LOWER, DIAG, UPPER, RHS>(s, system, part.begin, a, b, c, d);
        if (GIVEN) scale_rows(a, b, c, d);
        Ladder<32, T> ladder;
        ladder.join(shorten(a, b, c, d));
        const T* const known = next.out.base + system * next.rows + min(part.number, part.parts - 1);
        const T before = part.number > 0 ? known[-1] : T(), own = ladder.resolve(before, known[0]);
        T left = from_below<32>(own, 1);
        if (threadIdx.x % 32 == 0) left = before;
        lengthen(a, c, d, left, own);
        const Place at = place_of(system, s.systems, s.middles, s.lows);
        save<OUT>(s.out.system(at) + part.begin * s.out.along, s.out.along, part.count, d);
        if constexpr (GIVEN) {
            T sum = T();  // stays zero if all are finite
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < part.count) sum = less(sum, T(), d[k]);
            if (!ops::equal(sum, T())) atomicOr(&verdicts[system].lost, 1u);
        }
    });
}

// ---- With exchanges, in registers -----------------------------------------------------------------------------

// An equation start x[i] + last x[k-1] + next x[k] = rhs, by which a chain of eliminations stands at row k: it began
// with the row behind x[i], and every row that it takes gives it the next unknown for the last. A chain that goes up
// counts the unknowns backwards.
template <class T>
struct Link {
    T start, last, next, rhs;
};
// The equation start x[i] + x[k-1] / inverse_of + next x[k] + behind x[k+1] = rhs, kept to give x[k-1].
template <class T>
struct Pivoted {
    T start, next, behind, rhs, inverse_of;

    DEVICE T solve(T start_x, T next_x, T behind_x) const {
        return of_both(less(less(less(rhs, start, start_x), behind, behind_x), next, next_x), inverse_of);
    }
};

// A number of about the size of 1 / x, and 1 / x itself.
DEVICE float near_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE double near_inverse(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    return y;
}
template <class T>
DEVICE T near_inverse(Complex<T> x) {
    return near_inverse(size(x));
}
DEVICE float sharpened(float, float near) { return near; }  // which is within a unit in the last place
DEVICE double sharpened(double x, double near) {
    near = __fma_rn(near, less(1., x, near), near);
    return __fma_rn(near, less(1., x, near), near);
}
template <class T>
DEVICE Complex<T> sharpened(Complex<T> x, T) {
    return inverse(x);
}

// Takes the row a x[k-1] + b x[k] + c x[k+1] = f: x[k-1] is eliminated, and kept is the equation that has more of it.
template <class T>
DEVICE Pivoted<T> advance(Link<T>& chain, T a, T b, T c, T f) {
    const bool swap = size(a) > size(chain.last);
    const T pivot = swap ? a : chain.last;
    const Real<T> near = near_inverse(pivot);
    const Pivoted<T> kept = {swap ? T() : chain.start, swap ? b : chain.next, swap ? c : T(), swap ? f : chain.rhs,
                             sharpened(pivot, near)};
    // Both are multiplied, one by about 1.
    const T of_chain = times(a, near), of_row = times(chain.last, near);
    chain = {of_both(of_chain, chain.start), less(of_both(of_chain, chain.next), of_row, b),
             of_both(ops::negative(of_row), c), less(of_both(of_chain, chain.rhs), of_row, f)};
    return kept;
}

// Returns the residual of a row, and the size of what it is the sum of.
template <class T>
DEVICE T rest_of(T a, T b, T c, T f, T x_before, T x, T x_behind, Real<T>& all) {
    const T below = ops::multiply(a, x_before), here = ops::multiply(b, x), above = ops::multiply(c, x_behind);
    all = size(f) + size(below) + size(here) + size(above);
    return ops::subtract(ops::subtract(ops::subtract(f, below), here), above);
}
// Returns whether a backward error is more than so many eps, or not a number.
template <class R>
DEVICE bool exceeds(R eps, R rest, R all) {
    return !(rest <= eps * (sizeof(R) == 4 ? (R)0x1p-23f : (R)0x1p-52) * all);
}

template <class T>
struct Pair {
    T first, second;
};

// What is known of some units that follow each other: their first and last unknown, that before and that behind.
template <class T>
struct Known {
    T before, first, last, behind;
};

// The units that neighbouring lanes have, WIDTH of them a system, joined in pairs log2(WIDTH) times. Of each unit, or
// some that are joined, a chain that goes up ends with an equation in (last, first, before), one that goes down with
// one in (first, last, behind). Beyond that every lane but the first keeps the equations for the two unknowns where
// those two of the units joined meet whose second one begins with it.
template <int WIDTH, class T>
struct Joins {
    Link<T> up, down;
    Pivoted<T> first, second;

    // Leaves to the first lane of a system the equations of all of it.
    DEVICE void join() {
        const int lane = threadIdx.x % 32;
        Link<T> mine = up;
#pragma unroll
        for (int apart = 1; apart < WIDTH; apart *= 2) {
            // The left of two goes up, from the equation of the right one, the right one down from that of the left.
            const bool right = lane & apart;
            Link<T> chain, near, outer;
            if (apart == 1) {
                near = right ? up : down, outer = right ? down : up;
                chain = shuffle(near, lane ^ 1);
            } else {
                // Those that are joined have `up` in their first lane, `down` in the first of their second half.
                const int half = apart / 2;
                chain = shuffle(mine, right ? lane - half : lane + apart);
                near = shuffle(mine, right ? lane : lane + half), outer = shuffle(mine, right ? lane + half : lane);
            }
            const Pivoted<T> one = advance(chain, near.next, near.last, near.start, near.rhs);
            const Pivoted<T> two = advance(chain, outer.start, outer.last, outer.next, outer.rhs);
            mine = chain;
            if (lane % apart == 0) first = one, second = two;
        }
        if (WIDTH > 1) up = mine, down = shuffle_down(mine, WIDTH / 2);
    }
    // Returns what is known of a whole system to the lane that has both its equations.
    DEVICE Known<T> close() const {
        Link<T> chain = {T(), up.last, up.start, up.rhs};
        const Pivoted<T> one = advance(chain, down.start, down.last, T(), down.rhs);
        const T last = of_both(chain.rhs, inverse(chain.last));
        return {T(), one.solve(T(), last, T()), last, T()};
    }
    // Given in its first lane what is known of all units, returns what is known of this lane's.
    DEVICE Known<T> resolve(Known<T> known) const {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int apart = WIDTH / 2; apart > 0; apart /= 2) {
            const Known<T> both = shuffle_up(known, apart);
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

// Solves for the first and last unknowns of the units of a block's systems.
template <class T, int UNITS, int SYSTEMS, bool ACROSS>
DEVICE Known<T> solve_links(const Link<T>& up, const Link<T>& down, int system, int unit) {
    constexpr int WIDTH = UNITS < 32 ? UNITS : 32, WARPS = UNITS / WIDTH;
    constexpr bool TURN = UNITS > 1 && SYSTEMS > 1 && ACROSS;
    Joins<WIDTH, T> joins = {up, down};
    if constexpr (TURN) {
        const auto other = turned<T, UNITS, SYSTEMS, false>(Pair<Link<T>>{up, down}, system, unit);
        joins.up = other.first, joins.down = other.second;
    }
    joins.join();
    Known<T> known;
    if constexpr (WARPS == 1) {
        known = joins.close();
    } else {
        // A system is several warps, the first of which joins what they have joined.
        __shared__ Link<T> links[SYSTEMS * WARPS][2];
        __shared__ Known<T> knowns[SYSTEMS * WARPS];
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        if (lane == 0) links[warp][0] = joins.up, links[warp][1] = joins.down;
        __syncthreads();  // all warps' equations are there
        if (warp % WARPS == 0) {
            const int mine = warp + lane % WARPS;
            Joins<WARPS, T> of_warps = {links[mine][0], links[mine][1]};
            of_warps.join();
            const Known<T> one = of_warps.resolve(of_warps.close());
            if (lane < WARPS) knowns[mine] = one;
        }
        __syncthreads();  // what is known of the warps is there
        known = knowns[warp];
    }
    known = joins.resolve(known);
    if constexpr (TURN) known = turned<T, UNITS, SYSTEMS, true>(known, system, unit);
    return known;
}

// The rows that a thread has.
template <class T, int ROWS>
struct Unit {
    T a[ROWS], b[ROWS], c[ROWS], d[ROWS];
    Pivoted<T> kept[ROWS];

    template <Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS>
    DEVICE void load(const Batch<const T> (&batches)[4], const Place& at, Index begin, Index rows) {
        load_part<LOWER, DIAG, UPPER, RHS>(batches, at, begin, rows, a, b, c, d);
        // Multiplies all rows by one power of two, or where their sizes differ much each by its own.
        using R = Real<T>;
        const auto size_of = [&](int k) { return size(a[k]) + size(b[k]) + size(c[k]); };
        R least = size_of(0), most = least;
#pragma unroll
        for (int k = 1; k < ROWS; ++k) least = ::fmin(least, size_of(k)), most = ::fmax(most, size_of(k));
        const auto multiply = [&](int k, R scale) {
            a[k] = times(a[k], scale), b[k] = times(b[k], scale), c[k] = times(c[k], scale), d[k] = times(d[k], scale);
        };
        if (least * (R)8 >= most) {
            const R scale = scale_of(most);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) multiply(k, scale);
        } else {
#pragma unroll
            for (int k = 0; k < ROWS; ++k) multiply(k, scale_of(size_of(k)));
        }
    }
    // Eliminates all unknowns but the first and the last, downwards and upwards.
    DEVICE void shorten(const T (&rhs)[ROWS], Link<T>& up, Link<T>& down) {
        down = {a[1], b[1], c[1], rhs[1]};
#pragma unroll
        for (int k = 2; k < ROWS; ++k) kept[k - 1] = advance(down, a[k], b[k], c[k], rhs[k]);
        up = {c[ROWS - 2], b[ROWS - 2], a[ROWS - 2], rhs[ROWS - 2]};
#pragma unroll
        for (int k = ROWS - 3; k >= 0; --k) advance(up, c[k], b[k], a[k], rhs[k]);
    }
    DEVICE void lengthen(const Known<T>& known, T (&x)[ROWS]) const {
        T behind = known.behind, next = known.last;
        x[0] = known.first, x[ROWS - 1] = known.last;
#pragma unroll
        for (int k = ROWS - 2; k > 0; --k) {
            x[k] = kept[k].solve(known.first, next, behind);
            behind = next, next = x[k];
        }
    }
    // Puts the residual in `rest`; returns whether the backward error of a row is too large. BESIDE excuses rows whose
    // residual is nothing beside the numbers in the others, as where x is zero, but not in `any`.
    template <bool BESIDE>
    DEVICE bool is_off(const T (&x)[ROWS], T before, T behind, T (&rest)[ROWS], bool* any = nullptr) const {
        using R = Real<T>;
        bool off = false, finite = true;
        R worst = 0, most = 0;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            R all;
            rest[k] = rest_of(a[k], b[k], c[k], d[k], k > 0 ? x[k > 0 ? k - 1 : 0] : before, x[k],
                              k + 1 < ROWS ? x[k + 1 < ROWS ? k + 1 : k] : behind, all);
            const bool exceeding = exceeds((R)8, size(rest[k]), all);
            off = off || exceeding;
            if constexpr (BESIDE) {
                finite = finite && all < infinity(R());
                most = ::fmax(most, all), worst = exceeding ? ::fmax(worst, size(rest[k])) : worst;
            }
        }
        if (any) *any = off;
        return BESIDE ? !finite || (off && exceeds((R)0x1p-10f, worst, most)) : off;
    }
};

// Solves the systems, or those that a launch before has left; leaves those whose solution, once refined, has too large
// a backward error.
template <class T, int ROWS, int UNITS, int SYSTEMS, bool ACROSS, Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS, Lies OUT>
DEVICE void solve_exchanging(Batch<const T> lower, Batch<const T> diag, Batch<const T> upper, Batch<const T> rhs,
                             Batch<T> out, Index systems, Index middles, Index lows, Index rows, Left given,
                             Left left_over) {
    constexpr bool MEET = meets(UNITS, ACROSS);
    const int thread = threadIdx.x;
    const int system = ACROSS ? thread % SYSTEMS : thread / UNITS, unit = ACROSS ? thread / SYSTEMS : thread % UNITS;
    const Index begin = unit * ROWS, listed = given.counts ? given.take() : systems;
#pragma unroll 1
    for (Index base = (Index)blockIdx.x * SYSTEMS; base < listed; base += (Index)gridDim.x * SYSTEMS) {
        // Threads beyond the last system do as it does, but store nothing.
        const bool stores = base + system < listed;
        const Index counted = stores ? base + system : listed - 1, mine = given.counts ? given.list[counted] : counted;
        const Place at = place_of(mine, systems, middles, lows);
        Unit<T, ROWS> part;
        part.template load<LOWER, DIAG, UPPER, RHS>({lower, diag, upper, rhs}, at, begin, rows);
        T x[ROWS] = {}, rest[ROWS], before = T(), behind = T();
#pragma unroll
        for (int k = 0; k < ROWS; ++k) rest[k] = part.d[k];
        // Solves, and solves again for the residual if that is too large; systems that need none keep what they have.
        bool off = true, more = true;
#pragma unroll 1
        for (int pass = 0; pass < 2 && more; ++pass) {
            Link<T> up, down;
            part.shorten(rest, up, down);
            const Known<T> known = solve_links<T, UNITS, SYSTEMS, ACROSS>(up, down, system, unit);
            T y[ROWS];
            part.lengthen(known, y);
            before = ops::add(before, known.before), behind = ops::add(behind, known.behind);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) x[k] = ops::add(x[k], y[k]);
            off = any_of_system<UNITS, SYSTEMS, MEET>(part.template is_off<false>(x, before, behind, rest), system);
            if constexpr (!MEET)
                more = __any_sync(0xffffffffu, off);
            else
                more = SYSTEMS == 1 ? off : __syncthreads_or(off);
            if (!off) {
#pragma unroll
                for (int k = 0; k < ROWS; ++k) rest[k] = T();
            }
        }
        left_over.add(off && stores && unit == 0, mine);
        if (stores && !off) save<OUT>(out.system(at) + begin * out.along, out.along, (int)(rows - begin), x);
    }
}

// ---- Long systems with exchanges, in registers ----------------------------------------------------------------

// The first and last unknowns of some rows that follow each other are a tridiagonal system of their own, in the order
// in which they come. reduce_long makes one of the rows of every warp, again until a block can solve it (solve_short);
// expand_long goes the way back. Rows with too large a backward error are mended from the rows around them (mend_long,
// mend_stably): the inverse of a matrix that needs exchanges mostly fades fast away from its diagonal. Where that was not
// enough the system is solved once more for the residual (AGAIN), and if that was not either left to the launches behind.

// Returns the system that is kept at some place, each of its arrays after the other, with its solution behind.
template <class T>
DEVICE System<T> kept_system(T* kept, Index systems, Index rows) {
    const Index all = systems * rows;
    const auto array = [&](int k) -> Batch<const T> { return {kept + k * all, 0, 0, rows, 1}; };
    return {array(0), array(1), array(2), array(3), {kept + 4 * all, 0, 0, rows, 1}, systems, 1, systems, rows};
}

// Returns whether a system is solved here: CHECKED says that launches before have found which are to be exchanged.
template <bool CHECKED, bool AGAIN>
DEVICE bool is_exchanged(const Verdict& verdict) {
    return AGAIN ? (verdict.left & 4) != 0 : !CHECKED || verdict.exchange;
}

// The rows of a warp: lane for lane a unit, and what joins those.
template <class T, int ROWS, Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS, Lies OUT>
struct WarpRows {
    Unit<T, ROWS> unit;
    Joins<32, T> joins;
    Place at;
    T before = T(), behind = T();

    DEVICE WarpRows(const System<T>& s, Index system, const Part<ROWS>& part) {
        at = place_of(system, s.systems, s.middles, s.lows);
        const Index rows = part.count > 0 ? s.rows : 0;
        unit.template load<LOWER, DIAG, UPPER, RHS>({s.lower, s.diag, s.upper, s.rhs}, at, part.begin, rows);
    }
    DEVICE void join(const T (&rhs)[ROWS]) {
        unit.shorten(rhs, joins.up, joins.down);
        joins.join();
    }
    // Joins the rows for what the first solution leaves of their right-hand sides, or those themselves.
    template <bool RESIDUAL>
    DEVICE void join_for(const System<T>& s, const Part<ROWS>& part) {
        if constexpr (RESIDUAL) {
            T guess[ROWS], rest[ROWS];
            load_residual(s, part, guess, rest);
            join(rest);
        } else {
            join(unit.d);
        }
    }
    // Loads the unknowns, and those before and behind; answers as `is_off`.
    DEVICE bool load_residual(const System<T>& s, const Part<ROWS>& part, T (&guess)[ROWS], T (&rest)[ROWS],
                              bool* any = nullptr) {
        load_guess(s, part, guess);
        const T* const from = s.out.system(at) + part.begin * s.out.along;
        if (part.count > 0 && part.begin > 0) before = from[-s.out.along];
        if (part.count > 0 && part.begin + ROWS < s.rows) behind = from[ROWS * s.out.along];
        return unit.template is_off<true>(guess, before, behind, rest, any);
    }
    DEVICE void load_guess(const System<T>& s, const Part<ROWS>& part, T (&guess)[ROWS]) const {
        load<OUT>((const T*)s.out.system(at) + part.begin * s.out.along, s.out.along, part.count, T(), guess);
    }
};

// GIVEN: the rows are those of the systems given, and not of what is kept of them.
template <class T, int ROWS, bool CHECKED, bool GIVEN, bool AGAIN, Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS, Lies OUT>
DEVICE void reduce_long(System<T> s, System<T> next, const Verdict* verdicts) {
    const auto due = [&](Index system) { return is_exchanged<CHECKED, AGAIN>(verdicts[system]); };
    take_parts(s.systems, Part<ROWS>::of_blocks(s.rows), due, [&](Index system, Index block) {
        const Part<ROWS> part(s.rows, block);
        WarpRows<T, ROWS, LOWER, DIAG, UPPER, RHS, OUT> mine(s, system, part);
        mine.template join_for<GIVEN && AGAIN>(s, part);
        if (threadIdx.x % 32 == 0 && part.number < part.parts) {
            const Index all = s.systems * next.rows;
            T* const to = const_cast<T*>(next.lower.base) + system * next.rows + 2 * part.number;
            const Link<T>&up = mine.joins.up, &down = mine.joins.down;
            to[0] = up.next, to[all] = up.last, to[2 * all] = up.start, to[3 * all] = up.rhs;
            to[1] = down.start, to[all + 1] = down.last, to[2 * all + 1] = down.next, to[3 * all + 1] = down.rhs;
        }
    });
}

template <class T, int ROWS, int UNITS, bool CHECKED, bool AGAIN>
DEVICE void solve_short(System<T> s, Verdict* verdicts) {
    const auto due = [&](Index system) { return is_exchanged<CHECKED, AGAIN>(verdicts[system]); };
    take_parts(s.systems, 1, due, [&](Index system, Index) {
        if (!CHECKED && !AGAIN && threadIdx.x == 0) verdicts[system] = {{0, 0}, 1, 0, 0, 0};
        const Place at = {0, 0, system};
        const Index begin = threadIdx.x * ROWS;
        Unit<T, ROWS> unit;
        unit.template load<APART, APART, APART, APART>({s.lower, s.diag, s.upper, s.rhs}, at, begin, s.rows);
        Link<T> up, down;
        unit.shorten(unit.d, up, down);
        T x[ROWS];
        unit.lengthen(solve_links<T, UNITS, 1, false>(up, down, 0, threadIdx.x), x);
        save<APART>(s.out.system(at) + begin, 1, (int)(s.rows - begin), x);
        __syncthreads();  // all have read what is known of the system before
    });
}

// The solution for the residual goes to `better`.
template <class T, int ROWS, bool CHECKED, bool GIVEN, bool AGAIN, Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS, Lies OUT>
DEVICE void expand_long(System<T> s, System<T> next, T* better, Verdict* verdicts, unsigned* marks) {
    const auto due = [&](Index system) { return is_exchanged<CHECKED, AGAIN>(verdicts[system]); };
    take_parts(s.systems, Part<ROWS>::of_blocks(s.rows), due, [&](Index system, Index block) {
        const Part<ROWS> part(s.rows, block);
        WarpRows<T, ROWS, LOWER, DIAG, UPPER, RHS, OUT> mine(s, system, part);
        mine.template join_for<GIVEN && AGAIN>(s, part);
        const T* const ends = next.out.base + system * next.rows + 2 * min(part.number, part.parts - 1);
        const T first = part.number > 0 ? ends[-1] : T(), last = part.number + 1 < part.parts ? ends[2] : T();
        const Known<T> known = mine.joins.resolve({first, ends[0], ends[1], last});
        T x[ROWS], rest[ROWS], before = known.before, behind = known.behind;
        mine.unit.lengthen(known, x);
        if constexpr (GIVEN && AGAIN) {
            before = ops::add(before, mine.before), behind = ops::add(behind, mine.behind);
            mine.load_guess(s, part, rest);  // once more, for want of registers
#pragma unroll
            for (int k = 0; k < ROWS; ++k) x[k] = ops::add(x[k], rest[k]);
            save<APART>(better + system * s.rows + part.begin, 1, part.count, x);
        } else {
            save<OUT>(s.out.system(mine.at) + part.begin * s.out.along, s.out.along, part.count, x);
        }
        if constexpr (GIVEN) {
            bool any = false;
            const bool off = part.count > 0 && mine.unit.template is_off<true>(x, before, behind, rest, &any);
            const bool leave = __any_sync(0xffffffffu, off);
            const unsigned off_lanes = AGAIN ? 0 : __ballot_sync(0xffffffffu, any && part.count > 0);
            if (threadIdx.x % 32 > 0 || part.number >= part.parts) return;
            unsigned* const mark = marks + system * part.parts + part.number;
            if (!AGAIN) mark[0] = off_lanes, mark[s.systems * part.parts] = 0;
            if (leave) atomicOr(&verdicts[system].left, AGAIN ? 8u : 1u);
            if (__popc(off_lanes) > 7) atomicAdd(&verdicts[system].failed[0], 1u);
        }
    });
}

// The rows around some that are to be mended. The first window of a system ends and the second begins near row `shift`.
struct Window {
    Index low, high, middle, end;  // its rows, and those of them that are `far` from an end that is not the system's

    DEVICE Window(Index rows, Index at, Index length, Index shift, int unit, int far) {
        low = at > 0 ? shift + (at - 1) * length : 0, high = at > 0 ? low + length : shift / unit * unit;
        middle = low > 0 ? low + far : 0, end = high < rows ? high - far : rows;
        high = min(high, rows);
    }
    static DEVICE Index count(Index rows, Index length, Index shift) {
        return 1 + (max((Index)0, rows - shift) + length - 1) / length;
    }
    DEVICE bool amid(Index begin, int count) const { return count > 0 && begin >= middle && begin + count <= end; }
};

// Returns which launch of a way to mend this is; the same for all threads of a block.
DEVICE Index count_menders(unsigned* menders) {
    const Index launch = *menders / gridDim.x;
    __syncthreads();  // all have read the number
    if (threadIdx.x == 0) atomicAdd(menders, 1u);
    return launch;
}

// Returns whether one of so many launches has found that errors are not those of few rows, and are to be met otherwise.
DEVICE bool is_hopeless(Verdict& verdict, int launches, Index rows) {
    bool many = false;
    for (int k = 0; k < launches; ++k) many = many || verdict.failed[k] > 8 + rows / 16384;
    if (many) atomicOr(&verdict.left, 4u);
    return many;
}

// Mends the units with a row whose backward error is too large, each from the rows around it: a warp has a window, and
// solves for the residual of the marked units in its middle. Its units and joins are others than those of the launches
// before, and find what those have lost. The window's first and last unknown stay as they are, so that the rows beyond
// hear nothing of it. Two launches have every row in a middle. Units that they leave get other marks, behind all of
// theirs. A warp looks at the marks of `each` windows at once.
template <class T, int ROWS, Lies LOWER, Lies DIAG, Lies UPPER, Lies RHS, Lies OUT>
DEVICE void mend_long(System<T> s, Index each, unsigned* marks, Verdict* verdicts) {
    constexpr unsigned ALL = 0xffffffffu;
    constexpr int LENGTH = 32 * ROWS;
    const Index launch = count_menders(&verdicts->menders[0]), shift = (4 + launch * 16) * ROWS + ROWS / 2;
    const Index windows = Window::count(s.rows, LENGTH, shift), in_block = each * (blockDim.x / 32);
    const auto due = [&](Index system) {
        return verdicts[system].left != 0 && !is_hopeless(verdicts[system], 1 + (int)launch, s.rows);
    };
    take_parts(s.systems, (windows + in_block - 1) / in_block, due, [&](Index system, Index block) {
        const int lane = threadIdx.x % 32;
        const Index base = block * in_block + threadIdx.x / 32 * each;
        Part<ROWS> part(s.rows, 0);
        unsigned *const units = marks + system * part.parts, *const others = units + s.systems * part.parts;
        const auto window_at = [&](Index at) -> Window { return {s.rows, at, LENGTH, shift, ROWS, 7 * ROWS}; };
        const auto marked = [&](const Window& window) {
            if (window.middle >= window.end) return false;
            const Index first = window.middle / ROWS, last = (window.end - 1) / ROWS;  // 33 units at most
            const unsigned long long both = units[first / 32] | (unsigned long long)units[last / 32] << 32;
            return both << (63 - (last - first) - first % 32) >> (63 - (last - first)) != 0;
        };
        unsigned todo = __ballot_sync(ALL, lane < each && base + lane < windows && marked(window_at(base + lane)));
#pragma unroll 1
        for (; todo; todo &= todo - 1) {
            const Window window = window_at(base + __ffs(todo) - 1);
            part.begin = window.low + lane * ROWS;
            part.count = (int)max((Index)0, min((Index)ROWS, window.high - part.begin));
            WarpRows<T, ROWS, LOWER, DIAG, UPPER, RHS, OUT> mine(s, system, part);
            T x[ROWS], y[ROWS], rest[ROWS];
            bool any;
            const bool off = mine.load_residual(s, part, x, rest, &any), middle = window.amid(part.begin, part.count);
            const bool kept = any && !middle;
            unsigned wrong = __ballot_sync(ALL, any && middle), before = wrong;
            bool fails = off && middle;
#pragma unroll 1
            for (int pass = 0; pass < 3 && wrong; ++pass) {
                if (!(wrong >> lane & 1)) {
#pragma unroll
                    for (int k = 0; k < ROWS; ++k) rest[k] = T();
                }
                mine.join(rest);
                const Known<T> known = mine.joins.resolve(mine.joins.close());
                mine.unit.lengthen(known, y);
                const bool first = window.low > 0 && part.begin == window.low;
                const bool last = window.high < s.rows && part.begin + ROWS == window.high;
#pragma unroll
                for (int k = 0; k < ROWS; ++k)
                    if (!(k == 0 && first) && !(k == ROWS - 1 && last)) x[k] = ops::add(x[k], y[k]);
                mine.before = ops::add(mine.before, known.before), mine.behind = ops::add(mine.behind, known.behind);
                fails = mine.unit.template is_off<true>(x, mine.before, mine.behind, rest, &any) && !(off && !middle);
                wrong = __ballot_sync(ALL, any && !kept);
                if (__popc(wrong) > 2 && 2 * __popc(wrong) > __popc(before)) break;  // this will not become better
                before = wrong;
            }
            if (!__any_sync(ALL, fails)) {
                save<OUT>(s.out.system(mine.at) + part.begin * s.out.along, s.out.along, part.count, x);
                continue;
            }
            if (lane == 0) {
                atomicOr(&verdicts[system].left, 2u);
                atomicAdd(&verdicts[system].failed[1 + launch], 1u);
            }
            if (off && middle) {
                for (Index row = part.begin; row < part.begin + part.count; row += ROWS / 2)
                    atomicOr(&others[row / ROWS / 32], 1u << row / ROWS % 32);
            }
        }
    });
}

// ---- Equations ------------------------------------------------------------------------------------------------

template <class T, int COUNT>
struct Equation {
    T a[COUNT];
    T rhs;
};

// Makes `first` the equation with the larger coefficient of an unknown.
template <class T, int COUNT>
DEVICE void choose(bool exchange, int unknown, Equation<T, COUNT>& first, Equation<T, COUNT>& other) {
    if (exchange && size(other.a[unknown]) > size(first.a[unknown])) {
        const Equation<T, COUNT> larger = other;
        other = first;
        first = larger;
    }
}

// a / b, given the inverse of b, rounded once but for a few.
DEVICE float divided(float a, float b, float inverse_b) {
    const float quotient = a * inverse_b;
    return __fmaf_rn(less(a, quotient, b), inverse_b, quotient);
}
DEVICE double divided(double a, double b, double inverse_b) {
    const double quotient = a * inverse_b;
    return __fma_rn(less(a, quotient, b), inverse_b, quotient);
}
template <class T>
DEVICE Complex<T> divided(Complex<T> a, Complex<T> b, Complex<T> inverse_b) {
    const Complex<T> quotient = of_both(a, inverse_b), rest = of_both(less(a, quotient, b), inverse_b);
    return {quotient.re + rest.re, quotient.im + rest.im};
}

// Takes an unknown out of an equation by another, given the inverse of its coefficient there; the one in the equation
// itself is not read again.
template <class T, int COUNT>
DEVICE void eliminate(int unknown, const Equation<T, COUNT>& first, T inverse_of, Equation<T, COUNT>& other) {
    const T factor = divided(other.a[unknown], first.a[unknown], inverse_of);
#pragma unroll
    for (int k = 0; k < COUNT; ++k)
        if (k != unknown) other.a[k] = less(other.a[k], factor, first.a[k]);
    other.rhs = less(other.rhs, factor, first.rhs);
}

// Two equations in (x[i-1], x[i], x[j-1], x[j]); without exchanges p is that of row i and q that of row j-1.
template <class T>
struct Segment {
    Equation<T, 4> p, q;
};

// Adds row j to a segment; returns the equation, in (x[i-1], x[i], x[j-1], x[j], x[j+1]), that is to give x[j-1], with
// the inverse of its coefficient in its place. So do joins.
template <class T>
DEVICE Equation<T, 5> append(Segment<T>& s, bool exchange, T lower, T diag, T upper, T rhs) {
    Equation<T, 5> first = {{s.q.a[0], s.q.a[1], s.q.a[2], s.q.a[3], T()}, s.q.rhs};
    Equation<T, 5> other = {{s.p.a[0], s.p.a[1], s.p.a[2], s.p.a[3], T()}, s.p.rhs};
    Equation<T, 5> row = {{T(), T(), lower, diag, upper}, rhs};
    choose(exchange, 2, first, other);
    choose(exchange, 2, first, row);
    const T inverse_of = inverse(first.a[2]);
    eliminate(2, first, inverse_of, other);
    eliminate(2, first, inverse_of, row);
    first.a[2] = inverse_of;
    s.p = {{other.a[0], other.a[1], other.a[3], other.a[4]}, other.rhs};
    s.q = {{row.a[0], row.a[1], row.a[3], row.a[4]}, row.rhs};
    return first;
}

// What is kept of a segment: itself, then the two equations of a join, then a y. COUNT places, or as many as `count` if
// that is 0, lie between one of its numbers and the next.
constexpr int KEPT = 13;

template <class T, int COUNT>
struct Slots {
    T* first;
    Index count;

    DEVICE T& at(Index slot, int k) const {
        if constexpr (COUNT > 0)
            return first[k * COUNT + (int)slot];
        else
            return first[k * count + slot];
    }

    DEVICE void put(Index slot, const Segment<T>& s) const {
#pragma unroll
        for (int k = 0; k < 4; ++k) at(slot, k) = s.p.a[k], at(slot, 4 + k) = s.q.a[k];
        at(slot, 8) = s.p.rhs, at(slot, 9) = s.q.rhs;
    }
    DEVICE Segment<T> get(Index slot) const {
        Segment<T> s;
#pragma unroll
        for (int k = 0; k < 4; ++k) s.p.a[k] = at(slot, k), s.q.a[k] = at(slot, 4 + k);
        s.p.rhs = at(slot, 8), s.q.rhs = at(slot, 9);
        return s;
    }

    // Joins two segments, in the place of the left one; what is to give the y they share takes that of the right one.
    DEVICE void join(Index left_slot, Index right_slot, bool exchange) const {
        const Segment<T> left = get(left_slot), right = get(right_slot);
        // Unknowns: the y shared, the one before it, the one behind it.
        const auto of_left = [](const Equation<T, 4>& e) -> Equation<T, 6> {
            return {{e.a[2], e.a[3], e.a[0], e.a[1], T(), T()}, e.rhs};
        };
        const auto of_right = [](const Equation<T, 4>& e) -> Equation<T, 6> {
            return {{e.a[0], e.a[1], T(), T(), e.a[2], e.a[3]}, e.rhs};
        };
        Equation<T, 6> first = of_left(left.q), second = of_right(right.p), p = of_left(left.p), q = of_right(right.q);
        choose(exchange, 0, first, second);
        choose(exchange, 0, first, p);
        choose(exchange, 0, first, q);
        const T inverse0 = inverse(first.a[0]);
        eliminate(0, first, inverse0, second);
        eliminate(0, first, inverse0, p);
        eliminate(0, first, inverse0, q);
        first.a[0] = inverse0;
        choose(exchange, 1, second, p);
        choose(exchange, 1, second, q);
        const T inverse1 = inverse(second.a[1]);
        eliminate(1, second, inverse1, p);
        eliminate(1, second, inverse1, q);
        second.a[1] = inverse1;
        put(left_slot, {{{p.a[2], p.a[3], p.a[4], p.a[5]}, p.rhs}, {{q.a[2], q.a[3], q.a[4], q.a[5]}, q.rhs}});
#pragma unroll
        for (int k = 0; k < 6; ++k) at(right_slot, k) = first.a[k];
        at(right_slot, 6) = first.rhs;
#pragma unroll
        for (int k = 1; k < 6; ++k) at(right_slot, 6 + k) = second.a[k];
        at(right_slot, 12) = second.rhs;
    }

    // Puts the y that a join eliminated in the join's place, given those before and behind.
    DEVICE void resolve(Index before, Index slot, Index behind) const {
        const T ends[4] = {at(before, 0), at(before, 1), at(behind, 0), at(behind, 1)};
        T shared0 = at(slot, 6), shared1 = at(slot, 12);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            shared0 = less(shared0, at(slot, 2 + k), ends[k]);
            shared1 = less(shared1, at(slot, 8 + k), ends[k]);
        }
        shared1 = of_both(shared1, at(slot, 7));
        shared0 = of_both(less(shared0, at(slot, 1), shared1), at(slot, 0));
        at(slot, 0) = shared0, at(slot, 1) = shared1;
    }

    // Puts the y with which a whole system begins and ends in the place of its segment.
    DEVICE void close(Index slot) const {
        const Segment<T> s = get(slot);
        Equation<T, 2> first = {{ops::add(s.q.a[0], s.q.a[2]), ops::add(s.q.a[1], s.q.a[3])}, s.q.rhs};
        Equation<T, 2> second = {{ops::add(s.p.a[0], s.p.a[2]), ops::add(s.p.a[1], s.p.a[3])}, s.p.rhs};
        choose(true, 0, first, second);
        eliminate(0, first, inverse(first.a[0]), second);
        const T y1 = ops::divide(second.rhs, second.a[1]);
        at(slot, 0) = ops::divide(less(first.rhs, first.a[1], y1), first.a[0]);
        at(slot, 1) = y1;
    }
};

// Joins the segments 0 ... count-1 in pairs until the first is all of them; slot(i) is where segment i is kept.
template <class N, class Kept, class Slot, class Sync>
DEVICE void join_all(const Kept& slots, N count, int thread, int threads, bool exchange, Slot slot, Sync sync) {
#pragma unroll 1
    for (N apart = 1; apart < count; apart *= 2) {
#pragma unroll 1
        for (N left = 2 * apart * thread; left + apart < count; left += 2 * apart * threads)
            slots.join(slot(left), slot(left + apart), exchange);
        sync();
    }
}

// Goes the way back: puts the y with which every segment begins in its place, that of the first and the last being
// there, in slot(0) and `end`.
template <class N, class Kept, class Slot, class Sync>
DEVICE void resolve_all(const Kept& slots, N count, int thread, int threads, Index end, Slot slot, Sync sync) {
    N apart = 1;
    while (2 * apart < count) apart *= 2;
#pragma unroll 1
    for (; apart > 0; apart /= 2) {
#pragma unroll 1
        for (N left = 2 * apart * thread; left + apart < count; left += 2 * apart * threads) {
            const N middle = left + apart;
            slots.resolve(slot(left), slot(middle), middle + apart < count ? (Index)slot(middle + apart) : end);
        }
        sync();
    }
}

// ---- A block --------------------------------------------------------------------------------------------------

// What the threads of a system tell each other.
struct Tidings {
    unsigned long long errors[2];  // bits of the backward errors of both solutions, of which the largest stays
    unsigned exchange, again, lost;
};

template <class T, int ROWS, int UNITS, int SYSTEMS, bool ACROSS>
struct Block {
    static constexpr int THREADS = UNITS * SYSTEMS;

    T *lower, *diag, *upper, *rhs;  // in shared memory
    Slots<T, THREADS + 2> slots;  // one for the y behind the last of a chunk, one so that what follows is aligned
    Tidings* tidings;
    // The rows of a system, the threads that have some and its places in an array; where in the block this thread is,
    // how many rows it has and where.
    int n, segments, pitch, system, unit, count, own;

    // Where a row of this thread's system is. Along a system one place in ROWS + 1 is left out, against bank conflicts.
    DEVICE int place(int row) const {
        return ACROSS ? row * SYSTEMS + system : system * pitch + row + row / ROWS;
    }
    DEVICE int slot(int other) const { return ACROSS ? other * SYSTEMS + system : system * UNITS + other; }

    // Separates what threads of a system wrote from what others of them read.
    static DEVICE void sync() {
        if constexpr (!ACROSS && UNITS <= 32)
            __syncwarp();
        else
            __syncthreads();
    }

    struct Row {
        T lower, diag, upper;
    };
    DEVICE Row row(int k) const {
        const int at = own + (ACROSS ? k * SYSTEMS : k);
        return {lower[at], diag[at], upper[at]};
    }
    static DEVICE Real<T> scaling(const Row& r) {
        return scale_of(::fmax(::fmax(size(r.lower), size(r.diag)), size(r.upper)));
    }
    DEVICE bool dominant() const {
        bool all = true;
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < count) {
                const Row r = row(k);
                all = all && size(r.lower) + size(r.upper) <= least_size(r.diag);
            }
        return all;
    }

    // Makes one segment of all rows of the system with right-hand sides b(k, row), and puts it in slot 0.
    template <class Rhs>
    DEVICE void reduce(bool exchange, Rhs b, Equation<T, 5> (&kept)[ROWS]) const {
        Segment<T> s = {};
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < count) {
                const Row r = row(k);
                const Real<T> scale = scaling(r);
                const T l = times(r.lower, scale), d = times(r.diag, scale), u = times(r.upper, scale);
                const T f = times(b(k, r), scale);
                if (k == 0) {
                    // A row alone shares x[i] with the next y, which its second equation says.
                    s.p = {{l, d, T(), u}, f};
                    s.q = {{T(), number<T>(1), number<T>(-1), T()}, T()};
                } else if (k == 1) {
                    s.p.a[2] = s.p.a[3], s.p.a[3] = T();
                    s.q = {{T(), l, d, u}, f};
                } else {
                    kept[k] = append(s, exchange, l, d, u, f);
                }
            }
        slots.put(slot(unit), s);
        sync();
        join_all(slots, segments, unit, UNITS, exchange, [&](int i) { return slot(i); }, sync);
    }

    // Returns the unknowns, and x[i-1] and x[j], once slot 0 and `end` hold the first and the last y.
    DEVICE void expand(const Equation<T, 5> (&kept)[ROWS], int end, T (&x)[ROWS], T& before, T& behind) const {
        resolve_all(slots, segments, unit, UNITS, end, [&](int i) { return slot(i); }, sync);
        before = slots.at(slot(unit), 0);
        const T start = slots.at(slot(unit), 1);
        const int next = unit + 1 < segments ? slot(unit + 1) : end;
        T near = slots.at(next, 0), far = slots.at(next, 1);
        behind = far;
#pragma unroll
        for (int k = ROWS - 1; k > 0; --k)
            if (k < count) {
                x[k] = near;
                if (k > 1) {
                    const Equation<T, 5>& e = kept[k];
                    T y = less(e.rhs, e.a[0], before);
                    y = less(y, e.a[1], start);
                    y = less(y, e.a[3], near);
                    y = of_both(less(y, e.a[4], far), e.a[2]);
                    far = near, near = y;
                }
            }
        x[0] = start;
        sync();  // all have read their ys before the slots are written again
    }

    template <class Rhs>
    DEVICE void solve(bool exchange, Rhs b, T (&x)[ROWS], T& before, T& behind) const {
        Equation<T, 5> kept[ROWS];
        reduce(exchange, b, kept);
        if (unit == 0) slots.close(slot(0));
        sync();
        expand(kept, slot(0), x, before, behind);
    }

    // Returns the residual of a row of this thread; `largest` becomes its backward error if that is larger, infinity
    // where it is none.
    DEVICE T residual(int k, const Row& c, const T (&x)[ROWS], T before, T behind, Real<T>& largest) const {
        using R = Real<T>;
        const T f = rhs[own + (ACROSS ? k * SYSTEMS : k)];
        const T below = ops::multiply(c.lower, k > 0 ? x[k > 0 ? k - 1 : 0] : before);
        const T own = ops::multiply(c.diag, x[k]);
        const T above = ops::multiply(c.upper, k + 1 < count ? x[k + 1 < ROWS ? k + 1 : k] : behind);
        const T r = ops::subtract(ops::subtract(ops::subtract(f, below), own), above);
        const R all = size(f) + size(below) + size(own) + size(above);
        const R error = all == (R)0 ? (R)0 : size(r) / all;
        largest = error <= (R)4 && all - all == (R)0 ? ::fmax(largest, error) : infinity(R());
        return r;
    }
    // Returns whether the backward error of a row of this thread is more than so many eps.
    DEVICE bool is_off(const T (&x)[ROWS], T before, T behind, Real<T> eps = 6) const {
        bool off = false;
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < count) {
                const Row r = row(k);
                Real<T> all;
                const T rest = rest_of(r.lower, r.diag, r.upper, rhs[own + (ACROSS ? k * SYSTEMS : k)],
                                       k > 0 ? x[k > 0 ? k - 1 : 0] : before, x[k],
                                       k + 1 < count ? x[k + 1 < ROWS ? k + 1 : k] : behind, all);
                off = off || exceeds(eps, size(rest), all);
            }
        return off;
    }
    DEVICE void tell_errors(const Real<T> (&errors)[2]) const {
        if (count == 0) return;
        for (int k = 0; k < 2; ++k)
            atomicMax(&tidings[system].errors[k], (unsigned long long)__double_as_longlong((double)errors[k]));
    }
};

template <class T, int ROWS, int UNITS, int SYSTEMS, bool ACROSS, Pivot PIVOT, bool PERIODIC>
DEVICE void solve_systems(Batch<const T> lower, Batch<const T> diag, Batch<const T> upper, Batch<const T> rhs,
                          Batch<T> out, Index systems, Index middles, Index lows, Index rows, Left left_over) {
    using B = Block<T, ROWS, UNITS, SYSTEMS, ACROSS>;
    extern __shared__ uint4 shared[];
    B block;
    const int n = block.n = (int)rows;
    block.segments = (n + ROWS - 1) / ROWS;
    block.pitch = block.segments * (ACROSS ? ROWS : ROWS + 1);
    const int places = SYSTEMS * block.pitch;
    block.lower = reinterpret_cast<T*>(shared);
    block.diag = block.lower + places;
    block.upper = block.diag + places;
    block.rhs = block.upper + places;
    block.slots.first = block.rhs + places;
    block.tidings = reinterpret_cast<Tidings*>(block.slots.first + KEPT * (B::THREADS + 2));
    const int thread = threadIdx.x;
    const int system = block.system = ACROSS ? thread % SYSTEMS : thread / UNITS;
    const int unit = block.unit = ACROSS ? thread / SYSTEMS : thread % UNITS;
    block.own = block.place(unit * ROWS);
    block.count = max(0, min(ROWS, n - unit * ROWS));
    const Index listed = left_over.counts ? left_over.take() : systems;
#pragma unroll 1
    for (Index base = (Index)blockIdx.x * SYSTEMS; base < listed; base += (Index)gridDim.x * SYSTEMS) {
        // Threads beyond the last system do as it does, but store nothing.
        const Index first = base + system;
        const bool stores = first < listed;
        const Index counted = stores ? first : listed - 1;
        const Place at = place_of(left_over.counts ? left_over.list[counted] : counted, systems, middles, lows);
        const T *from_lower = lower.system(at), *from_diag = diag.system(at), *from_upper = upper.system(at);

        // Rows are loaded by the threads that are side by side in memory.
        const auto loaded = [&](int k) { return ACROSS ? unit * ROWS + k : unit + k * UNITS; };
        const T* from_rhs = rhs.system(at);
        Tidings& tidings = block.tidings[system];
        if (unit == 0) tidings = {{0, 0}, PIVOT == PARTIAL, 0, 0};
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const int row = loaded(k), place = block.place(row);
            if (row < n) {
                block.lower[place] = row > 0 || PERIODIC ? from_lower[row * lower.along] : T();
                block.diag[place] = from_diag[row * diag.along];
                block.upper[place] = row < n - 1 || PERIODIC ? from_upper[row * upper.along] : T();
                block.rhs[place] = from_rhs[row * rhs.along];
            }
        }
        B::sync();  // rows and tidings are there for all
        if (PIVOT == AUTO) {
            if (!block.dominant()) atomicOr(&tidings.exchange, 1u);
            B::sync();  // all have looked at their rows
        }
        const bool exchange = PIVOT != NONE && tidings.exchange != 0;

        // A second pass refines the solution of the first. Systems that need none go along, and keep the first.
        T x[ROWS] = {}, last[ROWS], before = T(), behind = T();
        Real<T> errors[2] = {};
        bool again = false, together = false;
#pragma unroll 1
        for (int pass = 0; pass <= together; ++pass) {
            T more_before, more_behind;
#pragma unroll
            for (int k = 0; k < ROWS; ++k) last[k] = x[k];
            block.solve(
                exchange,
                [&](int k, typename B::Row row) {
                    if (pass == 0) return block.rhs[block.own + (ACROSS ? k * SYSTEMS : k)];
                    return block.residual(k, row, last, before, behind, errors[0]);
                },
                x, more_before, more_behind);
            before = ops::add(before, more_before), behind = ops::add(behind, more_behind);
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < block.count) x[k] = ops::add(last[k], x[k]);
            if (PIVOT != NONE && pass == 0) {
                if (exchange && block.is_off(x, before, behind)) atomicOr(&tidings.again, 1u);
                B::sync();  // all have looked at their rows
                again = tidings.again != 0;
                if constexpr (ACROSS || UNITS > 32)
                    together = __syncthreads_or(again);
                else
                    together = __any_sync(0xffffffffu, again);
            }
        }
        if (together) {
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < block.count) block.residual(k, block.row(k), x, before, behind, errors[1]);
            block.tell_errors(errors);
            B::sync();  // all have told their errors
            if (!again || !(tidings.errors[1] < tidings.errors[0])) {
#pragma unroll
                for (int k = 0; k < ROWS; ++k) x[k] = last[k];
            }
        }
        bool finite = true;
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < block.count) {
                block.rhs[block.own + (ACROSS ? k * SYSTEMS : k)] = x[k];
                finite = finite && ops::isfinite(x[k]);
            }
        if (!finite) atomicOr(&tidings.lost, 1u);
        B::sync();  // the solution is there for all
        T* to = out.system(at);
        const T nan = number<T>(infinity(Real<T>()) - infinity(Real<T>()));
        const bool lost = tidings.lost != 0;
        if (stores) {
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (loaded(k) < n) to[loaded(k) * out.along] = lost ? nan : block.rhs[block.place(loaded(k))];
        }
        B::sync();  // all have read the solution before the next systems come
    }
}

// ---- Long systems with exchanges, in the stable way ------------------------------------------------------------

// A system longer than a block holds is cut in chunks of UNITS * ROWS rows, a block to each. reduce_chunks makes one
// segment of every chunk; join_segments joins those, UNITS at a time, until one is left, closes the system and goes the
// way back, so that the y with which every chunk begins is known; solve_chunks repeats the elimination of its rows and
// computes the unknowns between two of these ys. Where that leaves a row with too large an error, all of it is done
// once more for the residual (AGAIN). The blocks of every launch return at once where there is nothing to do, and take
// the chunks in turn.

// LEFT are the bits that say that launches before have left a system to these, or 0 if there were none.
template <int LEFT, bool AGAIN>
DEVICE bool is_due(const Verdict& verdict) {
    return AGAIN ? verdict.again != 0 : LEFT == 0 || verdict.left & LEFT;
}

template <class T, int ROWS, int UNITS, bool PERIODIC, bool AGAIN>
struct Chunk : Block<T, ROWS, UNITS, 1, false> {
    static constexpr int LENGTH = ROWS * UNITS, PLACES = (ROWS + 1) * UNITS;
    Index at, chunk, chunks;  // the system, the chunk of it that this block has, of how many
    T* to;  // where its solution goes
    T guess[ROWS], before, behind;  // the first solution, that of the rows before and behind

    static DEVICE Index count_chunks(Index rows) { return (rows + LENGTH - 1) / LENGTH; }

    // Loads the chunk's rows to shared memory.
    DEVICE void load_chunk(const System<T>& s, Index system, Index part) {
        chunks = count_chunks(s.rows), at = system, chunk = part;
        load_rows(s, at, chunk * LENGTH, min(s.rows, (chunk + 1) * LENGTH));
    }
    DEVICE void load_rows(const System<T>& s, Index system, Index begin, Index end) {
        extern __shared__ uint4 shared[];
        const Place p = place_of(system, s.systems, s.middles, s.lows);
        this->n = (int)(end - begin);
        this->segments = (this->n + ROWS - 1) / ROWS;
        this->pitch = PLACES;
        this->system = 0, this->unit = threadIdx.x;
        this->own = this->place(this->unit * ROWS);
        this->count = max(0, min(ROWS, this->n - this->unit * ROWS));
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
            const int row = this->unit + k * UNITS, place = this->place(row);
            const Index i = begin + row;
            if (row < this->n) {
                this->lower[place] = i > 0 || PERIODIC ? a[i * s.lower.along] : T();
                this->diag[place] = b[i * s.diag.along];
                this->upper[place] = i < s.rows - 1 || PERIODIC ? c[i * s.upper.along] : T();
                this->rhs[place] = d[i * s.rhs.along];
            }
        }
        if constexpr (AGAIN) {
            const Index first = begin + this->unit * ROWS, last = first + this->count;
#pragma unroll
            for (int k = 0; k < ROWS; ++k) guess[k] = k < this->count ? to[(first + k) * s.out.along] : T();
            before = behind = T();
            if (this->count > 0) {
                before = to[(first > 0 ? first - 1 : s.rows - 1) * s.out.along];
                behind = to[(last < s.rows ? last : 0) * s.out.along];
            }
        }
        __syncthreads();  // rows are there for all
    }
    // Makes one segment of the chunk; `error` becomes the backward error of the first solution in this thread's rows.
    DEVICE void reduce_all(bool exchange, Equation<T, 5> (&equations)[ROWS], Real<T>& error) const {
        this->reduce(
            exchange,
            [&](int k, typename Chunk::Row row) {
                if constexpr (AGAIN)
                    return this->residual(k, row, guess, before, behind, error);
                else
                    return this->rhs[this->own + k];
            },
            equations);
    }
};

// Mends as mend_long does, but in the stable way, what that has left: rows around which the matrix is near to a singular
// one. A block has a window. MARKED rows have one mark.
template <class T, int ROWS, int UNITS, int MARKED>
DEVICE void mend_stably(System<T> s, const unsigned* marks, Verdict* verdicts) {
    using C = Chunk<T, ROWS, UNITS, false, true>;
    const Index launch = count_menders(&verdicts->menders[1]);
    const Index shift = (UNITS / 8 + launch * (UNITS / 2)) * ROWS;
    const Index windows = Window::count(s.rows, C::LENGTH, shift), parts = (s.rows + 32 * MARKED - 1) / (32 * MARKED);
    const auto due = [&](Index system) {
        return (verdicts[system].left & 2) != 0 && !is_hopeless(verdicts[system], 3, s.rows);
    };
    take_parts(s.systems, windows, due, [&](Index system, Index number) {
        const Window window(s.rows, number, C::LENGTH, shift, ROWS, (UNITS / 4 - 1) * ROWS);
        const unsigned* const units = marks + (s.systems + system) * parts;
        const Index begin = window.low + threadIdx.x * ROWS;
        const int count = (int)max((Index)0, min((Index)ROWS, window.high - begin));
        const bool middle = window.amid(begin, count);
        bool marked = false;
        for (Index row = begin; middle && row < begin + count; row += MARKED)
            marked = marked || units[row / MARKED / 32] >> row / MARKED % 32 & 1;
        if (!__syncthreads_or(marked)) return;
        C chunk;
        chunk.load_rows(s, system, window.low, window.high);
        // What the unknowns beyond the window contribute is known, and goes to the right-hand sides.
        const bool first = threadIdx.x == 0 && window.low > 0, last = count > 0 && begin + count == window.high &&
                                                                       window.high < s.rows;
        if (first) {
            chunk.rhs[chunk.own] = less(chunk.rhs[chunk.own], chunk.lower[chunk.own], chunk.before);
            chunk.lower[chunk.own] = T();
        }
        if (last) {
            const int at = chunk.own + count - 1;
            chunk.rhs[at] = less(chunk.rhs[at], chunk.upper[at], chunk.behind);
            chunk.upper[at] = T();
        }
        T(&x)[ROWS] = chunk.guess;
        bool wrong = chunk.is_off(x, chunk.before, chunk.behind, 8);
        const bool kept = wrong && !middle;
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
                if (k < chunk.count && !(k == 0 && first) && !(k == chunk.count - 1 && last)) x[k] = ops::add(x[k], y[k]);
            chunk.before = ops::add(chunk.before, before), chunk.behind = ops::add(chunk.behind, behind);
            wrong = chunk.is_off(x, chunk.before, chunk.behind, 8) && !kept;
        }
        if (!__syncthreads_or(wrong)) {
            const Index along = s.out.along;
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < chunk.count) chunk.to[(begin + k) * along] = x[k];
        } else if (threadIdx.x == 0) {
            atomicOr(&verdicts[system].left, 4u);
        }
    });
}

// Adds the backward error that the threads of a block have found.
template <class R>
DEVICE void tell_error(R mine, unsigned long long* largest) {
    double error = (double)mine;
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) error = ::fmax(error, __shfl_xor_sync(0xffffffffu, error, lanes));
    const unsigned long long bits = (unsigned long long)__double_as_longlong(error);
    if (threadIdx.x % 32 == 0 && bits > __ldcg(largest)) atomicMax(largest, bits);
}

template <class T, int ROWS, int UNITS, bool EXCHANGE, bool PERIODIC, int LEFT, bool AGAIN>
DEVICE void reduce_chunks(System<T> s, T* segments, Verdict* verdicts) {
    using C = Chunk<T, ROWS, UNITS, PERIODIC, AGAIN>;
    const auto due = [&](Index system) { return is_due<LEFT, AGAIN>(verdicts[system]); };
    take_parts(s.systems, C::count_chunks(s.rows), due, [&](Index system, Index part) {
        C chunk;
        Verdict& verdict = verdicts[system];
        chunk.load_chunk(s, system, part);
        Equation<T, 5> equations[ROWS];
        Real<T> error = 0;
        chunk.reduce_all(EXCHANGE, equations, error);
        if (AGAIN) tell_error(error, &verdict.errors[0]);
        const Slots<T, 0> kept = {segments + chunk.at * 10 * chunk.chunks, chunk.chunks};
        if (threadIdx.x == 0) kept.put(chunk.chunk, chunk.slots.get(0));
        __syncthreads();  // the segment has been read before the slots are written again
    });
}

enum Step { JOIN, CLOSE, RESOLVE };

// Joins `count` segments, UNITS at a time, to those of the next level (JOIN) or the whole system, of which it gives the
// y with which every segment begins (CLOSE); or goes the way back from those of the next level (RESOLVE).
template <class T, int UNITS, bool EXCHANGE, int LEFT, bool AGAIN, Step STEP>
DEVICE void join_segments(const T* segments, T* joined, const T* known, T* ys, Verdict* verdicts, Index systems,
                          Index count) {
    extern __shared__ uint4 shared[];
    const Slots<T, UNITS + 2> slots = {reinterpret_cast<T*>(shared), 0};
    const int thread = threadIdx.x;
    const Index parts = (count + UNITS - 1) / UNITS;
    const auto slot = [](int i) { return i; };
    const auto sync = [] { __syncthreads(); };
    const auto due = [&](Index system) { return is_due<LEFT, AGAIN>(verdicts[system]); };
    take_parts(systems, parts, due, [&](Index system, Index part) {
        Verdict& verdict = verdicts[system];
        const int here = (int)min((Index)UNITS, count - part * UNITS);
        const Slots<T, 0> from = {const_cast<T*>(segments) + system * 10 * count, count};
        if (thread < here) slots.put(thread, from.get(part * UNITS + thread));
        __syncthreads();  // the segments are there
        join_all(slots, here, thread, UNITS, EXCHANGE, slot, sync);
        if constexpr (STEP == JOIN) {
            const Slots<T, 0> next = {joined + system * 10 * parts, parts};
            if (thread == 0) next.put(part, slots.get(0));
        } else {
            if (STEP == CLOSE && thread == 0) {
                slots.close(0);
                if (!AGAIN) verdict = {{0, 0}, LEFT != 0, 0, 0, LEFT ? 15 : 0};
            }
            if (STEP == RESOLVE && thread < 2) {
                const T* y = known + (system * 2 + thread) * parts;
                slots.at(0, thread) = y[part], slots.at(UNITS, thread) = y[part + 1 < parts ? part + 1 : 0];
            }
            __syncthreads();  // both ends are known to all
            resolve_all(slots, here, thread, UNITS, STEP == CLOSE ? 0 : UNITS, slot, sync);
            if (thread < here) {
                for (int k = 0; k < 2; ++k)
                    ys[(system * 2 + k) * count + part * UNITS + thread] = slots.at(thread, k);
            }
        }
        __syncthreads();  // all have read the slots before they are written again
    });
}

template <class T, int ROWS, int UNITS, bool EXCHANGE, bool PERIODIC, int LEFT, bool AGAIN>
DEVICE void solve_chunks(System<T> s, const T* ys, T* better, Verdict* verdicts) {
    using C = Chunk<T, ROWS, UNITS, PERIODIC, AGAIN>;
    const auto due = [&](Index system) { return is_due<LEFT, AGAIN>(verdicts[system]); };
    take_parts(s.systems, C::count_chunks(s.rows), due, [&](Index system, Index part) {
        C chunk;
        Verdict& verdict = verdicts[system];
        chunk.load_chunk(s, system, part);
        Equation<T, 5> equations[ROWS];
        Real<T> error = 0;
        chunk.reduce_all(EXCHANGE, equations, error);
        const Index chunks = chunk.chunks, next = chunk.chunk + 1 < chunks ? chunk.chunk + 1 : 0;
        if (threadIdx.x < 2) {
            const T* y = ys + (chunk.at * 2 + threadIdx.x) * chunks;
            chunk.slots.at(0, threadIdx.x) = y[chunk.chunk];
            chunk.slots.at(UNITS, threadIdx.x) = y[next];
        }
        __syncthreads();  // both ends are known to all
        T x[ROWS], before, behind;
        chunk.expand(equations, UNITS, x, before, behind);
        if constexpr (AGAIN) {
            before = ops::add(before, chunk.before), behind = ops::add(behind, chunk.behind);
#pragma unroll
            for (int k = 0; k < ROWS; ++k) x[k] = ops::add(x[k], chunk.guess[k]);
            error = 0;
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < chunk.count) chunk.residual(k, chunk.row(k), x, before, behind, error);
            tell_error(error, &verdict.errors[1]);
        } else {
            bool finite = true;
#pragma unroll
            for (int k = 0; k < ROWS; ++k) finite = finite && (k >= chunk.count || ops::isfinite(x[k]));
            if (__syncthreads_or(!finite) && threadIdx.x == 0) atomicOr(&verdict.lost, 1u);
            if (EXCHANGE && __syncthreads_or(chunk.is_off(x, before, behind)) && threadIdx.x == 0)
                atomicOr(&verdict.again, 1u);
        }
        __syncthreads();  // all have read the right-hand sides
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (k < chunk.count) chunk.rhs[chunk.own + k] = x[k];
        __syncthreads();  // the solution is there for all
        const Index begin = chunk.chunk * C::LENGTH;
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const int row = threadIdx.x + k * UNITS;
            if (row >= chunk.n) continue;
            const T value = chunk.rhs[chunk.place(row)];
            if constexpr (AGAIN)
                better[chunk.at * s.rows + begin + row] = value;
            else
                chunk.to[(begin + row) * s.out.along] = value;
        }
        __syncthreads();  // all have read the solution before the next rows come
    });
}

// Takes the second solutions where they are better, and makes those that are lost in one unknown lost in all.
template <class T>
DEVICE void finish_long(System<T> s, const T* better, const Verdict* verdicts) {
    // Several blocks to a system, or several systems to a block.
    const Index each = max((Index)1, gridDim.x / s.systems);
#pragma unroll 1
    for (Index system = blockIdx.x / each; system < s.systems; system += gridDim.x / each) {
        const Verdict verdict = verdicts[system];
        const bool second = verdict.left == 7 || (verdict.again && verdict.errors[1] < verdict.errors[0]);
        if (!verdict.lost && !second) continue;
        const Place p = place_of(system, s.systems, s.middles, s.lows);
        T* to = s.out.system(p);
        const T nan = number<T>(infinity(Real<T>()) - infinity(Real<T>()));
        for (Index row = blockIdx.x % each * blockDim.x + threadIdx.x; row < s.rows; row += each * blockDim.x)
            to[row * s.out.along] = second ? better[system * s.rows + row] : nan;
    }
}

// Tridiagonal systems: lower[i] x[i-1] + diag[i] x[i] + upper[i] x[i+1] = rhs[i]. Of those that a block can hold every
// number is read once and every unknown written once, in one launch (solve_systems); longer ones take two launches that
// read the data once each (reduce_chunks and solve_chunks, see there). A block has SYSTEMS systems, UNITS threads to
// each: thread `unit` has the ROWS rows from unit * ROWS on, in shared memory. ACROSS says that the systems, and not
// their rows, lie side by side in memory.
//
// A segment of rows i ... j-1 is known by two equations between y[i] = (x[i-1], x[i]) and y[j] = (x[j-1], x[j]).
// Phases, of which 3 to 6 run twice where rows are exchanged, the second time for the residual of the first solution:
//   1. The threads of a block copy the rows of its systems to shared memory, neighbours reading neighbours.
//   2. AUTO looks whether every row is diagonally dominant; rows of such systems are not exchanged.
//   3. Every thread makes its rows one segment: a row that joins the segment lets it eliminate x[j-1] from three
//      equations. The one used for that is kept, to compute x[j-1] once its neighbours are known.
//   4. Neighbouring segments are joined in pairs, log2(UNITS) times: two segments are four equations of which two
//      eliminate the y they share; these two take the place of the right segment in shared memory.
//   5. The last segment begins and ends with the same y, that of a periodic system; the corners of others are zero.
//      Down the same tree, every pair kept gives the y between two that are known.
//   6. Every thread computes its unknowns from the first and last of them, and the residual of its rows.
//   7. Of both solutions the one with the smaller backward error goes to shared memory, and from there to the result.
// The equation that eliminates an unknown is the one with its largest coefficient, rows having been scaled by a power
// of two to a largest coefficient from 1 to 2; without exchanges it is the unknown's own row. All of the rows that hold
// an unknown are among the three or four equations, so no regular matrix lacks a pivot.
// Order and bits: which rows make a segment depends on n and the dtype alone, so a system gives the same bits alone and
// in any batch.
//
// S. J. Wright, Stable Parallel Algorithms for Two-Point Boundary Value Problems, SIAM J. Sci. Stat. Comput. 13(3),
// 1992; one read of the data, a few rows to a thread: M. Giles, E. Laszlo, I. Reguly, J. Appleyard and J. Demouth, GPU
// Implementation of Finite Difference Solvers, 2014; R. D. Skeel, Math. Comp. 35, 1980, for the refinement.

using Index = long long;

enum Pivot { AUTO, PARTIAL, NONE };

// A batch of systems as three axes and the one along which the unknowns are numbered, with its strides in elements.
template <class T>
struct Batch {
    T* base;
    Index high, middle, low, along;

    DEVICE T* system(Index h, Index m, Index l) const { return base + h * high + m * middle + l * low; }
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
// a - b c
template <class T>
DEVICE T less_product(T a, T b, T c) {
    return ops::subtract(a, ops::multiply(b, c));
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

// Takes an unknown out of an equation; its coefficient there is not read again.
template <class T, int COUNT>
DEVICE void eliminate(int unknown, const Equation<T, COUNT>& first, Equation<T, COUNT>& other) {
    const T factor = ops::divide(other.a[unknown], first.a[unknown]);
#pragma unroll
    for (int k = 0; k < COUNT; ++k)
        if (k != unknown) other.a[k] = less_product(other.a[k], factor, first.a[k]);
    other.rhs = less_product(other.rhs, factor, first.rhs);
}

// Two equations in (x[i-1], x[i], x[j-1], x[j]); without exchanges p is that of row i and q that of row j-1.
template <class T>
struct Segment {
    Equation<T, 4> p, q;
};

// Adds row j to a segment; returns the equation, in (x[i-1], x[i], x[j-1], x[j], x[j+1]), that is to give x[j-1].
template <class T>
DEVICE Equation<T, 5> append(Segment<T>& s, bool exchange, T lower, T diag, T upper, T rhs) {
    Equation<T, 5> first = {{s.q.a[0], s.q.a[1], s.q.a[2], s.q.a[3], T()}, s.q.rhs};
    Equation<T, 5> other = {{s.p.a[0], s.p.a[1], s.p.a[2], s.p.a[3], T()}, s.p.rhs};
    Equation<T, 5> row = {{T(), T(), lower, diag, upper}, rhs};
    choose(exchange, 2, first, other);
    choose(exchange, 2, first, row);
    eliminate(2, first, other);
    eliminate(2, first, row);
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
        eliminate(0, first, second);
        eliminate(0, first, p);
        eliminate(0, first, q);
        choose(exchange, 1, second, p);
        choose(exchange, 1, second, q);
        eliminate(1, second, p);
        eliminate(1, second, q);
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
            shared0 = less_product(shared0, at(slot, 2 + k), ends[k]);
            shared1 = less_product(shared1, at(slot, 8 + k), ends[k]);
        }
        shared1 = ops::divide(shared1, at(slot, 7));
        shared0 = ops::divide(less_product(shared0, at(slot, 1), shared1), at(slot, 0));
        at(slot, 0) = shared0, at(slot, 1) = shared1;
    }

    // Puts the y with which a whole system begins and ends in the place of its segment.
    DEVICE void close(Index slot) const {
        const Segment<T> s = get(slot);
        Equation<T, 2> first = {{ops::add(s.q.a[0], s.q.a[2]), ops::add(s.q.a[1], s.q.a[3])}, s.q.rhs};
        Equation<T, 2> second = {{ops::add(s.p.a[0], s.p.a[2]), ops::add(s.p.a[1], s.p.a[3])}, s.p.rhs};
        choose(true, 0, first, second);
        eliminate(0, first, second);
        const T y1 = ops::divide(second.rhs, second.a[1]);
        at(slot, 0) = ops::divide(less_product(first.rhs, first.a[1], y1), first.a[0]);
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
    unsigned exchange, lost;
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
                    T y = less_product(e.rhs, e.a[0], before);
                    y = less_product(y, e.a[1], start);
                    y = less_product(y, e.a[3], near);
                    y = ops::divide(less_product(y, e.a[4], far), e.a[2]);
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
    DEVICE void tell_errors(const Real<T> (&errors)[2]) const {
        if (count == 0) return;
        for (int k = 0; k < 2; ++k)
            atomicMax(&tidings[system].errors[k], (unsigned long long)__double_as_longlong((double)errors[k]));
    }
};

template <class T, int ROWS, int UNITS, int SYSTEMS, bool ACROSS, Pivot PIVOT, bool PERIODIC>
DEVICE void solve_systems(Batch<const T> lower, Batch<const T> diag, Batch<const T> upper, Batch<const T> rhs,
                          Batch<T> out, Index systems, Index middles, Index lows, Index rows, Index columns,
                          Index columns_each, Index rhs_column, Index out_column) {
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
    // Threads beyond the last system do as it does, but store nothing.
    const Index blocks = (systems + SYSTEMS - 1) / SYSTEMS;
    const Index first = blockIdx.x % blocks * SYSTEMS + system;
    const Index begin = blockIdx.x / blocks * columns_each, end = min(columns, begin + columns_each);
    const bool stores = first < systems;
    const Index at = stores ? first : systems - 1;
    const Index l = at % lows, m = at / lows % middles, h = at / lows / middles;
    const T *from_lower = lower.system(h, m, l), *from_diag = diag.system(h, m, l), *from_upper = upper.system(h, m, l);

    // Rows are loaded by the threads that are side by side in memory.
    const auto loaded = [&](int k) { return ACROSS ? unit * ROWS + k : unit + k * UNITS; };
    const auto load_rhs = [&](Index column) {
        const T* from = rhs.system(h, m, l) + column * rhs_column;
#pragma unroll
        for (int k = 0; k < ROWS; ++k)
            if (loaded(k) < n) block.rhs[block.place(loaded(k))] = from[loaded(k) * rhs.along];
    };
    Tidings& tidings = block.tidings[system];
    if (unit == 0) tidings.exchange = PIVOT == PARTIAL;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        const int row = loaded(k), place = block.place(row);
        if (row < n) {
            block.lower[place] = row > 0 || PERIODIC ? from_lower[row * lower.along] : T();
            block.diag[place] = from_diag[row * diag.along];
            block.upper[place] = row < n - 1 || PERIODIC ? from_upper[row * upper.along] : T();
        }
    }
    load_rhs(begin);
    B::sync();  // rows and tidings are there for all
    if (PIVOT == AUTO) {
        if (!block.dominant()) atomicOr(&tidings.exchange, 1u);
        B::sync();  // all have looked at their rows
    }
    const bool exchange = PIVOT != NONE && tidings.exchange != 0;
    // Systems whose rows are not exchanged go along where others of the block are solved again, and keep the first.
    bool again;
    if constexpr (ACROSS || UNITS > 32)
        again = __syncthreads_or(exchange);
    else
        again = __any_sync(0xffffffffu, exchange);

#pragma unroll 1
    for (Index column = begin; column < end; ++column) {
        if (column > begin) load_rhs(column);
        if (unit == 0) tidings.errors[0] = tidings.errors[1] = 0, tidings.lost = 0;
        B::sync();  // the right-hand sides are there, and the tidings are new
        // The solution of one pass is what the next one refines; both are there at the end.
        T x[ROWS] = {}, last[ROWS], before = T(), behind = T();
        Real<T> errors[2] = {};
#pragma unroll 1
        for (int pass = 0; pass <= again; ++pass) {
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
        }
        if (again) {
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (k < block.count) block.residual(k, block.row(k), x, before, behind, errors[1]);
            block.tell_errors(errors);
            B::sync();  // all have told their errors
            if (!exchange || !(tidings.errors[1] < tidings.errors[0])) {
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
        T* to = out.system(h, m, l) + column * out_column;
        const T nan = number<T>(infinity(Real<T>()) - infinity(Real<T>()));
        const bool lost = tidings.lost != 0;
        if (stores) {
#pragma unroll
            for (int k = 0; k < ROWS; ++k)
                if (loaded(k) < n) to[loaded(k) * out.along] = lost ? nan : block.rhs[block.place(loaded(k))];
        }
        B::sync();  // all have read the solution before the next right-hand sides come
    }
}

// ---- Long systems ---------------------------------------------------------------------------------------------

// A system longer than a block holds is cut in chunks of UNITS * ROWS rows, a block to each, and takes two launches:
// reduce_chunks makes one segment of every chunk, and the block that is the last to do so for a system joins them all,
// closes the system and goes the way back, so that `kept` holds the y with which every chunk begins. solve_chunks
// repeats the elimination of its rows and computes the unknowns between two of these ys.

template <class T, int ROWS, int UNITS, bool PERIODIC>
struct Chunk : Block<T, ROWS, UNITS, 1, false> {
    Index at, chunk, chunks;  // the system, the chunk of it that this block has, of how many

    // Loads the chunk's rows to shared memory.
    DEVICE void load(Batch<const T> from_lower, Batch<const T> from_diag, Batch<const T> from_upper,
                     Batch<const T> from_rhs, Index middles, Index lows, Index rows) {
        extern __shared__ uint4 shared[];
        constexpr int LENGTH = ROWS * UNITS, PLACES = (ROWS + 1) * UNITS;
        chunks = (rows + LENGTH - 1) / LENGTH;
        at = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
        const Index begin = chunk * LENGTH, l = at % lows, m = at / lows % middles, h = at / lows / middles;
        this->n = (int)min((Index)LENGTH, rows - begin);
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
        const T *a = from_lower.system(h, m, l), *b = from_diag.system(h, m, l), *c = from_upper.system(h, m, l);
        const T* d = from_rhs.system(h, m, l);
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const int row = this->unit + k * UNITS, place = this->place(row);
            const Index i = begin + row;
            if (row < this->n) {
                this->lower[place] = i > 0 || PERIODIC ? a[i * from_lower.along] : T();
                this->diag[place] = b[i * from_diag.along];
                this->upper[place] = i < rows - 1 || PERIODIC ? c[i * from_upper.along] : T();
                this->rhs[place] = d[i * from_rhs.along];
            }
        }
        __syncthreads();  // rows are there for all
    }
    DEVICE void reduce_all(bool exchange, Equation<T, 5> (&equations)[ROWS]) const {
        this->reduce(exchange, [&](int k, typename Chunk::Row) { return this->rhs[this->own + k]; }, equations);
    }
};

template <class T, int ROWS, int UNITS, bool EXCHANGE, bool PERIODIC>
DEVICE void reduce_chunks(Batch<const T> lower, Batch<const T> diag, Batch<const T> upper, Batch<const T> rhs, T* kept,
                          unsigned* arrived, Index middles, Index lows, Index rows) {
    Chunk<T, ROWS, UNITS, PERIODIC> chunk;
    chunk.load(lower, diag, upper, rhs, middles, lows, rows);
    Equation<T, 5> equations[ROWS];
    chunk.reduce_all(EXCHANGE, equations);
    const Index chunks = chunk.chunks;
    const Slots<T, 0> all = {kept + chunk.at * KEPT * chunks, chunks};
    bool last = false;
    if (threadIdx.x == 0) {
        all.put(chunk.chunk, chunk.slots.get(0));
        __threadfence();  // the segment is there before its arrival is counted
        last = atomicAdd(&arrived[chunk.at], 1u) == (unsigned)(chunks - 1);
        if (last) arrived[chunk.at] = 0;
    }
    if (!__syncthreads_or(last)) return;
    __threadfence();  // the segments that were counted are read after the count
    const auto slot = [](Index i) { return i; };
    const auto sync = [] { __syncthreads(); };
    join_all(all, chunks, threadIdx.x, UNITS, EXCHANGE, slot, sync);
    if (threadIdx.x == 0) all.close(0);
    __syncthreads();
    resolve_all(all, chunks, threadIdx.x, UNITS, 0, slot, sync);
}

template <class T, int ROWS, int UNITS, bool EXCHANGE, bool PERIODIC>
DEVICE void solve_chunks(Batch<const T> lower, Batch<const T> diag, Batch<const T> upper, Batch<const T> rhs,
                         const T* kept, Batch<T> out, Index middles, Index lows, Index rows) {
    Chunk<T, ROWS, UNITS, PERIODIC> chunk;
    chunk.load(lower, diag, upper, rhs, middles, lows, rows);
    Equation<T, 5> equations[ROWS];
    chunk.reduce_all(EXCHANGE, equations);
    const Index chunks = chunk.chunks, next = chunk.chunk + 1 < chunks ? chunk.chunk + 1 : 0;
    if (threadIdx.x < 2) {
        const T* y = kept + (chunk.at * KEPT + threadIdx.x) * chunks;
        chunk.slots.at(0, threadIdx.x) = y[chunk.chunk];
        chunk.slots.at(UNITS, threadIdx.x) = y[next];
    }
    __syncthreads();  // both ends are known to all
    T x[ROWS], before, behind;
    chunk.expand(equations, UNITS, x, before, behind);
#pragma unroll
    for (int k = 0; k < ROWS; ++k)
        if (k < chunk.count) chunk.rhs[chunk.own + k] = x[k];
    __syncthreads();  // the solution is there for all
    const Index l = chunk.at % lows, m = chunk.at / lows % middles, h = chunk.at / lows / middles;
    T* to = out.system(h, m, l) + chunk.chunk * (ROWS * UNITS) * out.along;
#pragma unroll
    for (int k = 0; k < ROWS; ++k) {
        const int row = threadIdx.x + k * UNITS;
        if (row < chunk.n) to[row * out.along] = chunk.rhs[chunk.place(row)];
    }
}

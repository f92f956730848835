// Filters along contiguous lines: S sections of order K one after another, each with constant coefficients,
//     y = b[0] x + z[0],   z[i] = z[i + 1] + b[i + 1] x - a[i + 1] y,
// which is the transposed direct form II. Every sample is read once and every result written once, in one launch. Needs
// scan.cu with all that it needs, and staging.cuh.
//
// Template parameters:
//     W          the type of states: double, or Complex<double>
//     Powers     the tables: Lattice of one section (see filters_lattice.cu), or Tables of a cascade
//     In, Out    the types of samples and results in memory; C of coefficients, Z of the states given and returned
//     STATES     whether states are given, and returned
//     INSIDE     whether every block makes the tables of powers; otherwise a launch before has made them
//     others     as of scan_rows in scan.cu
//
// Phases:
//   1. Every thread sums what its consecutive samples add to the state after them: each sample times a constant vector,
//      the response of the state to it. What the state before adds is one constant matrix times that state, as every
//      thread has the same number of samples.
//   2. The states are scanned over lanes, over warps, and over tiles by look-back, with constant powers of that matrix:
//      a state is K numbers for each section, whatever the length of a tile.
//   3. Every thread filters its samples again, from the state that is before them on, and stores the results.
// The responses and the powers are made of the coefficients on the device.
// Accuracy: all is computed in double precision. Where poles are close to each other and to the unit circle, the numbers
// z nearly cancel each other. So between threads the state is in other numbers: with Lattice those that
// filters_lattice.cu explains, with Tables w[j] = (row 0 of (M - s)^j) z, where M is the matrix of one step, and s, 1 or
// -1 (or i or -i), is on the side of the poles. In these numbers one step is
//     w[j]' = s w[j] + w[j + 1] + g[j] x,   w[K - 1]' = s w[K - 1] + last[0] w[0] + ... + last[K - 1] w[K - 1] + g[K - 1] x,
// where -last are the coefficients of the polynomial a around s, summed in twice the precision, and g the impulse
// response in terms of 1 / (z - s). A state loses digits only within the samples of one thread, which forget them with it.
// Causality: what is not finite changes nothing before it. All that follows it may become NaN.
// Reproducibility: the grouping of samples depends only on shape and alignment. The same input gives the same bits.
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016;
// R. H. Middleton and G. C. Goodwin, Improved finite word length characteristics in digital control using delta operators,
// IEEE Trans. Automatic Control 31(11), 1986.

namespace filters {

// ---- Arithmetic ------------------------------------------------------------------------------------------------

using Wide = Complex<double>;

// a b + c
DEVICE double product_sum(double a, double b, double c) { return __fma_rn(a, b, c); }
DEVICE Wide product_sum(Wide a, Wide b, Wide c) {
    return {__fma_rn(a.re, b.re, __fma_rn(-a.im, b.im, c.re)), __fma_rn(a.re, b.im, __fma_rn(a.im, b.re, c.im))};
}

// Numbers that are not finite become the largest: a power that overflows then leaves a state of zero as it is.
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

// The point on the unit circle, of few, that is nearest to the mean of the poles, whose sum is -a.
DEVICE double side_of_poles(double a) { return a > 0 ? -1. : 1.; }
DEVICE Wide side_of_poles(Wide a) {
    if (::fabs(a.re) >= ::fabs(a.im)) return {side_of_poles(a.re), 0.};
    return {0., side_of_poles(a.im)};
}

// The type that an element is computed in before it is stored.
template <class T>
struct Stored {
    using Type = T;
};
template <>
struct Stored<Half> {
    using Type = float;
};
template <>
struct Stored<Bfloat> {
    using Type = float;
};
template <class T, class W>
DEVICE T stored(W x) {
    return store<T>(ops::cast<typename Stored<T>::Type>(x));
}

template <class W>
DEVICE W one() {
    return ops::cast<W>(1.);
}

// y += M x for the D x D matrix M, whose elements are STEP apart. A section depends on none that comes after it.
template <int D, int K, int STEP, class W>
DEVICE void add_product(W (&y)[D], const W* m, const W (&x)[D]) {
#pragma unroll
    for (int row = 0; row < D; ++row)
#pragma unroll
        for (int column = 0; column < D; ++column)
            if (column / K <= row / K) y[row] = product_sum(m[(row * D + column) * STEP], x[column], y[row]);
}

// ---- Coefficients and tables of powers -------------------------------------------------------------------------

// The coefficients in memory: section t has `b_count` of them from b + t * step on, and `a_count` from a + t * step on.
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

// The sections at hand: coefficients in registers.
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

// What is the same for all samples. An entry of `lanes`, `warps` and `tiles` is a power of the matrix of one step: over
// the samples of 1, 2, ... threads, warps and tiles. Entry i of `responses` is what a sample adds to the state after it
// and i samples more. ITEMS are the samples of a thread.
template <class W, int S, int K, int ITEMS, int WARPS, bool TILES>
struct Tables {
    static constexpr int D = S * K, GROUP = TILES ? WARP_SIZE : 1;
    enum { UNROLLED = 8 };                     // the steps of scans: all of them
    static constexpr bool DIRECT = true;       // whether between_threads takes few products
    using Spare = W[2 * D * D];                // what the tables are made in: two matrices
    W lanes[D * D * WARP_SIZE];  // element by element: lanes read the same element of different powers
    W warps[WARPS * D * D];
    W tiles[GROUP * D * D];
    W responses[ITEMS * D];
    W b[S][K + 1], a[S][K], side[S], last[S][K], g[S][K];
    W rows[S][K][K];  // w[j] is the sum of rows[j][i] z[i]; rows[j][j] is 1, and what is above it 0

    // Returns what filters samples.
    DEVICE Sections<W, S, K> filter() const { return Sections<W, S, K>(*this); }

    // Makes what belongs to section t.
    template <class C>
    DEVICE void make_section(const Coefficients<C>& given, int t) {
        const auto load = [](const C* from, Index i, Index count) {
            return i < count ? ops::cast<W>(value(from[i])) : W();
        };
        const C *from_b = given.b + t * given.step, *from_a = given.a + t * given.step;
        const W first = load(from_a, 0, given.a_count);
        W up[K + 1], down[K + 1], up_error[K + 1], down_error[K + 1];
#pragma unroll
        for (int i = 0; i <= K; ++i) {
            up[i] = b[t][i] = ops::divide(load(from_b, i, given.b_count), first);
            down[i] = i ? ops::divide(load(from_a, i, given.a_count), first) : one<W>();
            if (i) a[t][i - 1] = down[i];
            up_error[i] = down_error[i] = W();
        }
        const W s = side_of_poles(down[1]);
        side[t] = s;
        // Both polynomials around s, by repeated division by what is zero there.
#pragma unroll
        for (int done = 0; done < K; ++done)
#pragma unroll
            for (int i = 1; i <= K - done; ++i) {
                up_error[i] = ops::add(up_error[i], ops::multiply(s, up_error[i - 1]));
                up[i] = exact_sum(up[i], ops::multiply(s, up[i - 1]), up_error[i]);
                down_error[i] = ops::add(down_error[i], ops::multiply(s, down_error[i - 1]));
                down[i] = exact_sum(down[i], ops::multiply(s, down[i - 1]), down_error[i]);
            }
        W alpha[K];
#pragma unroll
        for (int i = 0; i < K; ++i) {
            alpha[i] = ops::add(down[i + 1], down_error[i + 1]);
            last[t][K - 1 - i] = ops::negative(alpha[i]);
            W sum = ops::add(up[i + 1], up_error[i + 1]);
            sum = product_sum(ops::negative(alpha[i]), b[t][0], sum);
#pragma unroll
            for (int j = 0; j < i; ++j) sum = product_sum(ops::negative(alpha[j]), g[t][i - 1 - j], sum);
            g[t][i] = sum;
        }
        for (int j = 0; j < K; ++j)
            for (int i = 0; i < K; ++i) {
                if (j == 0) {
                    rows[t][j][i] = i == 0 ? one<W>() : W();
                    continue;
                }
                W sum = i > 0 ? rows[t][j - 1][i - 1] : W();
                if (i == 0)
                    for (int c = 0; c < j; ++c) sum = product_sum(ops::negative(rows[t][j - 1][c]), a[t][c], sum);
                rows[t][j][i] = product_sum(ops::negative(s), rows[t][j - 1][i], sum);
            }
    }

    // Makes the state after one step that begins with state number `column` one, or for column D with a sample of one, and
    // with zeros else. Its numbers are STEP apart.
    template <int STEP>
    DEVICE void make_column(W* to, int column) const {
        W x = column == D ? one<W>() : W();
        for (int t = 0; t < S; ++t) {
            const auto state = [&](int j) { return t * K + j == column ? one<W>() : W(); };
            for (int j = 0; j < K; ++j) {
                W next = product_sum(side[t], state(j), product_sum(g[t][j], x, j + 1 < K ? state(j + 1) : W()));
                if (j + 1 == K)
                    for (int i = 0; i < K; ++i) next = product_sum(last[t][i], state(i), next);
                to[(t * K + j) * STEP] = next;
            }
            x = product_sum(b[t][0], x, state(0));
        }
    }

    // Returns an element of the product of matrices, whose elements are STEP apart.
    template <int STEP = 1>
    static DEVICE W element(const W* x, const W* y, int at) {
        return row_times<STEP, D * STEP>(x, y + at % D * STEP, at / D);
    }

    // Returns a row of a matrix times a vector.
    template <int STEP = 1, int VECTOR_STEP = 1>
    static DEVICE W row_times(const W* x, const W* y, int row) {
        W sum = W();
        for (int i = 0; i < D; ++i) sum = product_sum(x[(row * D + i) * STEP], y[i * VECTOR_STEP], sum);
        return bounded(sum);
    }

    // Makes powers 2, 3, ..., COUNT of the first.
    template <int COUNT, int STEP, int APART>
    static DEVICE void make_powers(W* all) {
        for (int there = 1; there < COUNT; there *= 2) {
            const W* last = all + (there - 1) * APART;
            for (int at = threadIdx.x; at < there * D * D; at += blockDim.x)
                all[(there + at / (D * D)) * APART + at % (D * D) * STEP] =
                    element<STEP>(all + at / (D * D) * APART, last, at % (D * D));
            __syncthreads();  // separates these powers from their reads
        }
    }

    // Makes all of it, by all threads of a block, in shared memory.
    template <class C>
    DEVICE void make(const Coefficients<C>& given, Spare& spare) {
        const int thread = threadIdx.x, all = D * D;
        if (thread < S) make_section(given, thread);
        __syncthreads();  // separates the sections from their reads
        if (thread < D) make_column<D>(spare + thread, thread);
        if (thread == D) make_column<1>(responses, thread);
        __syncthreads();  // separates the matrix from its reads
        // Squares of the matrix: each doubles the number of responses, and the power ITEMS is the product of some.
        W *square = spare, *next = spare + all, *power = warps, *spare_power = tiles;
        for (int at = thread; at < all; at += blockDim.x) power[at] = at % (D + 1) == 0 ? one<W>() : W();
        for (int bit = 1; bit <= ITEMS; bit *= 2) {
            __syncthreads();  // separates squares, powers and responses from their reads
            for (int at = thread; at < D * min(bit, ITEMS - bit); at += blockDim.x)
                responses[bit * D + at] = row_times(square, responses + at / D * D, at % D);
            for (int at = thread; at < all; at += blockDim.x) {
                next[at] = element(square, square, at);
                if (ITEMS & bit) spare_power[at] = element(power, square, at);
            }
            W *const old_square = square, *const old_power = power;
            square = next, next = old_square;
            if (ITEMS & bit) power = spare_power, spare_power = old_power;
        }
        __syncthreads();  // separates the power from its reads
        for (int at = thread; at < all; at += blockDim.x) lanes[at * WARP_SIZE] = power[at];
        __syncthreads();  // separates the first power of every table from its reads, here and below
        make_powers<WARP_SIZE, WARP_SIZE, 1>(lanes);
        for (int at = thread; at < all; at += blockDim.x) warps[at] = lanes[at * WARP_SIZE + WARP_SIZE - 1];
        __syncthreads();
        make_powers<WARPS, 1, D * D>(warps);
        for (int at = thread; at < all; at += blockDim.x) tiles[at] = warps[(WARPS - 1) * all + at];
        __syncthreads();
        make_powers<GROUP, 1, D * D>(tiles);
    }

    // y += what a state x becomes over the samples of so many threads, warps or tiles, from 1 on.
    DEVICE void add_after_lanes(W (&y)[D], int count, const W (&x)[D]) const {
        add_product<D, K, WARP_SIZE>(y, lanes + count - 1, x);
    }
    DEVICE void add_after_warps(W (&y)[D], int count, const W (&x)[D]) const {
        add_product<D, K, 1>(y, warps + (count - 1) * D * D, x);
    }
    DEVICE void add_after_tiles(W (&y)[D], unsigned count, const W (&x)[D]) const {
        add_product<D, K, 1>(y, tiles + (count - 1) * D * D, x);
    }

    // The state as numbers w, and back.
    DEVICE void between_threads(const W (&z)[D], W (&w)[D]) const {
#pragma unroll
        for (int j = 0; j < D; ++j) {
            w[j] = z[j];
#pragma unroll
            for (int i = j / K * K; i < j; ++i) w[j] = product_sum(rows[j / K][j % K][i % K], z[i], w[j]);
        }
    }
    DEVICE void within_thread(const W (&w)[D], W (&z)[D]) const {
#pragma unroll
        for (int j = 0; j < D; ++j) {
            z[j] = w[j];
#pragma unroll
            for (int i = j / K * K; i < j; ++i)
                z[j] = product_sum(ops::negative(rows[j / K][j % K][i % K]), z[i], z[j]);
        }
    }
};

template <class Tables>
constexpr int TABLE_BYTES = (sizeof(Tables) + 15) / 16 * 16;

// Makes the tables of one set of sections in global memory. One block runs it.
template <class Tables, class W, class C>
DEVICE void make_tables(const Coefficients<C>& given, W* to) {
    extern __shared__ uint4 shared[];
    Tables& tables = *reinterpret_cast<Tables*>(shared);
    char* const spare = reinterpret_cast<char*>(shared) + TABLE_BYTES<Tables>;
    tables.make(given, *reinterpret_cast<typename Tables::Spare*>(spare));
    const W* from = reinterpret_cast<const W*>(&tables);
    for (int at = threadIdx.x; at < (int)(sizeof(Tables) / sizeof(W)); at += blockDim.x) to[at] = from[at];
}

// ---- The filter ------------------------------------------------------------------------------------------------

// What tiles add to the state, for look-back. The tables are at the beginning of shared memory.
template <class Tables, class W, int D>
struct Join {
    struct State {
        W w[D];
        unsigned tiles;  // how many
    };
    static DEVICE State combine(const State& earlier, const State& later) {
        extern __shared__ uint4 shared[];
        const Tables& tables = *reinterpret_cast<const Tables*>(shared);
        State both = later;
        tables.add_after_tiles(both.w, later.tiles, earlier.w);
        both.tiles += earlier.tiles;
        return both;
    }
};

// Filters lines of `n` samples. `zi` and `zf` are the states of all sections: `sections` of them for every line, of which
// these are those from `first` on. `from` are the tables, unless INSIDE.
template <class Powers, class W, int S, int K, int THREADS, int LANES, int ROUNDS, int VEC, Carry CARRY, bool INSIDE,
          bool STATES, int SHARED_BYTES, class C, class Z, class In, class Out>
DEVICE void filter_rows(const In& in, const Out& out, const Coefficients<C>& given, const Z* zi, Z* zf, const W* from,
                        ulonglong2* scratch, Index lines, Index n, unsigned tiles, unsigned ahead, Index sections,
                        Index first) {
    constexpr int D = S * K, ITEMS = ROUNDS * VEC, WIDTH = LANES < WARP_SIZE ? LANES : WARP_SIZE;
    constexpr int WARPS = LANES / WIDTH, RUN = WIDTH * ITEMS;
    constexpr bool TILES = CARRY != ALONE;
    using Op = Join<Powers, W, D>;
    using State = typename Op::State;
    using Sample = typename In::Element;
    using Result = typename Out::Element;
    constexpr int BYTES = VEC * (sizeof(Sample) > sizeof(Result) ? sizeof(Sample) : sizeof(Result));
    using Place = Slots<ROUNDS, WIDTH, ROUNDS>;
    static_assert(TABLE_BYTES<Powers> + Place::count(THREADS * ROUNDS) * BYTES <= SHARED_BYTES, "see cuda.py");
    static_assert(!INSIDE || TABLE_BYTES<Powers> + sizeof(typename Powers::Spare) <= SHARED_BYTES, "see cuda.py");

    extern __shared__ uint4 shared[];
    Powers& tables = *reinterpret_cast<Powers*>(shared);
    char* const staged = reinterpret_cast<char*>(shared) + TABLE_BYTES<Powers>;
    const int lane = threadIdx.x % WIDTH, warp = WARPS == 1 ? 0 : threadIdx.x / WARP_SIZE;
    const auto tile = draw_tile<State, CARRY>(scratch, (unsigned)lines, tiles);
    Index line = tile.line;
    bool exists = true;
    if (WARPS == 1) {
        line = ((Index)blockIdx.x * THREADS + threadIdx.x) / LANES;
        exists = line < lines;
        if (!exists) line = lines - 1;  // repeats the last line, so that whole warps shuffle, and stores nothing
    }
    const In samples = in.at(line, 0, 0);
    const Out results = out.at(line, 0, 0);
    const Index begin = ((Index)(WARPS == 1 ? 0u : tile.number) * WARPS + warp) * RUN;
    const Place slots = {(threadIdx.x - lane) * ROUNDS, (unsigned)lane};
    const auto stage = [&] {
        each_vector<ROUNDS, WIDTH, VEC>(lane, begin, n, [&](int r, Index i, Index past) {
            samples.template stage<VEC>(
                *reinterpret_cast<typename In::template Staged<VEC>*>(staged + slots.copied(r) * BYTES), i, past);
        });
    };
    if constexpr (INSIDE) {
        tables.make(given, *reinterpret_cast<typename Powers::Spare*>(staged));
        __syncthreads();  // separates the tables from their reads, and the reads of what is spare from the copies
        stage();
    } else {
        stage();
        W* const to = reinterpret_cast<W*>(shared);
        for (int at = threadIdx.x; at < (int)(sizeof(Powers) / sizeof(W)); at += THREADS) to[at] = from[at];
        __syncthreads();  // separates the tables from their reads
    }
    if constexpr (TILES)
        visit_later_tile<CARRY>(tile, ahead, (unsigned)lines, tiles, [&](unsigned line, unsigned number) {
            const Index begin = (Index)number * WARPS * RUN;
            in.at(line, 0, 0).template prefetch<THREADS>(begin, min(n, begin + WARPS * RUN));
        });
    const auto fetch = [&](int r, W(&x)[VEC]) {
        Sample found[VEC];
        samples.fetch(found, *reinterpret_cast<const typename In::template Staged<VEC>*>(staged + slots.own(r) * BYTES));
#pragma unroll
        for (int k = 0; k < VEC; ++k) x[k] = ops::cast<W>(value(found[k]));
    };
    wait_for_staged();
    __syncwarp();  // separates the lanes' copies from each other's reads

    // What the thread's samples add to the state; then also those of the lanes before.
    W mine[D], before[D];
#pragma unroll
    for (int j = 0; j < D; ++j) mine[j] = W();
#pragma unroll 2
    for (int r = 0; r < ROUNDS; ++r) {
        W x[VEC];
        fetch(r, x);
#pragma unroll
        for (int k = 0; k < VEC; ++k)
#pragma unroll
            for (int j = 0; j < D; ++j)
                mine[j] = product_sum(tables.responses[(ITEMS - 1 - r * VEC - k) * D + j], x[k], mine[j]);
    }
    const auto above = [](const W(&from)[D], int distance, W(&to)[D]) {
#pragma unroll
        for (int j = 0; j < D; ++j) to[j] = shuffle_up(from[j], distance);
    };
#pragma unroll Powers::UNROLLED
    for (int distance = 1; distance < WIDTH; distance *= 2) {
        above(mine, distance, before);
        if (lane >= distance) tables.add_after_lanes(mine, distance, before);
    }
    above(mine, 1, before);

    // The state before the warp's samples, first without what is before the tile.
    W start[D];
#pragma unroll
    for (int j = 0; j < D; ++j) start[j] = W();
    State total;
    total.tiles = 1;
    if constexpr (WARPS > 1) {
        __shared__ W totals[WARPS][D];
        if (lane == WARP_SIZE - 1) {
#pragma unroll
            for (int j = 0; j < D; ++j) totals[warp][j] = mine[j];
        }
        __syncthreads();  // separates the writes of totals from their reads
        W up_to[D], other[D];
#pragma unroll
        for (int j = 0; j < D; ++j) up_to[j] = totals[lane % WARPS][j];
#pragma unroll Powers::UNROLLED
        for (int distance = 1; distance < WARPS; distance *= 2) {
            above(up_to, distance, other);
            if (lane % WARPS >= distance) tables.add_after_warps(up_to, distance, other);
        }
#pragma unroll
        for (int j = 0; j < D; ++j) {
            const W earlier = shuffle(up_to[j], warp > 0 ? warp - 1 : 0);
            if (warp > 0) start[j] = earlier;
            total.w[j] = shuffle(up_to[j], WARPS - 1);
        }
    }
    // The state before the tile.
    const Index own = (line * sections + first) * K;
    Optional<State> carry;
    carry.valid = STATES;
    if constexpr (STATES) {
        W given_z[D];
#pragma unroll
        for (int j = 0; j < D; ++j) given_z[j] = ops::cast<W>(value(zi[own + j]));
        carry.state.tiles = 1;
        // Tiles after the first group take the state of the groups before instead.
        if (Powers::DIRECT || !TILES || tile.number < WARP_SIZE) tables.between_threads(given_z, carry.state.w);
    }
    if constexpr (TILES) {
        __shared__ State state_before;
        const TileStates<State> states = {tile.slots, lines, tiles};
        if (CARRY == LOOK_BACK && threadIdx.x == 0) states.publish(line, tile.number, total);
        if (CARRY == LOOK_BACK)
            carry = look_back<Op, WARPS>(states, line, tile.number, total, carry);
        else if (threadIdx.x == 0)
            carry = chain<Op>(states, line, tile.number, total, carry);
        if (threadIdx.x == 0 && carry.valid) state_before = carry.state;
        __syncthreads();  // separates the write of state_before from its reads
        carry.valid = STATES || tile.number > 0;
        if (carry.valid) carry.state = state_before;
    }
    if (carry.valid) {
        if (warp > 0) {
            tables.add_after_warps(start, warp, carry.state.w);
        } else {
#pragma unroll
            for (int j = 0; j < D; ++j) start[j] = carry.state.w[j];
        }
    }
    if (lane > 0) {
        tables.add_after_lanes(before, lane, start);
    } else {
#pragma unroll
        for (int j = 0; j < D; ++j) before[j] = start[j];
    }
    W z[D];
    tables.within_thread(before, z);

    const auto filter = tables.filter();  // not kept in registers meanwhile
#pragma unroll 2
    for (int r = 0; r < ROUNDS; ++r) {
        W x[VEC];
        Result y[VEC];
        fetch(r, x);
        const Index i = begin + (lane * ROUNDS + r) * VEC;
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
            y[k] = stored<Result>(filter.step(z, x[k]));
            if (STATES && exists && i + k == n - 1) {
#pragma unroll
                for (int j = 0; j < D; ++j) zf[own + j] = stored<Z>(z[j]);
            }
        }
        // Only this thread reads these places.
        results.put(y, *reinterpret_cast<typename Out::template Staged<VEC>*>(staged + slots.own(r) * BYTES));
    }
    __syncwarp();  // separates the lanes' results from each other's stores
    if (exists)
        each_vector<ROUNDS, WIDTH, VEC>(lane, begin, n, [&](int r, Index i, Index past) {
            results.template flush<VEC>(
                *reinterpret_cast<const typename Out::template Staged<VEC>*>(staged + slots.copied(r) * BYTES), i, past);
        });
}

}  // namespace filters

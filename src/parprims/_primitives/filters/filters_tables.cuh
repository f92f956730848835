// Tables of cascades of short sections (see filters.cu).

#include "common.cuh"
#include "filters_common.cuh"

namespace filters {

// Tables that are constant for all samples. An entry of `lanes`, `warps` and `tiles` is a power of the matrix of one
// step: over the samples of 1, 2, ... threads, warps and tiles. Entry i of `responses` is the contribution of a sample
// to the state after it and i samples more. ITEMS is the number of samples of a thread.
template <class W, int S, int K, int ITEMS, int WARPS, bool TILES>
struct Tables {
    static constexpr int D = S * K, GROUP = TILES ? WARP_SIZE : 1;
    enum { UNROLLED = 8 };                     // the steps of scans: all of them
    static constexpr bool DIRECT = true;       // whether between_threads takes few products
    using Spare = W[2 * D * D];                // memory in which the tables are made: two matrices
    W lanes[D * D * WARP_SIZE];  // element by element: lanes read the same element of different powers
    W warps[WARPS * D * D];
    W tiles[GROUP * D * D];
    W responses[ITEMS * D];
    W b[S][K + 1], a[S][K], side[S], last[S][K], g[S][K];
    W rows[S][K][K];  // w[j] is the sum of rows[j][i] z[i]; rows[j][j] is 1, and elements above it are 0

    // Returns the sections that filter samples.
    DEVICE Sections<W, S, K> filter() const { return Sections<W, S, K>(*this); }

    // Makes the tables of section t.
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
        // Both polynomials around s, by repeated division by the polynomial that is zero there.
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

    // Makes column `column` of the matrix of one step: the state after one step that begins with 1 in number `column`
    // and zeros elsewhere, or for column D the state after a sample of 1. Its numbers are STEP apart.
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

    // Makes all tables, by all threads of a block, in shared memory.
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

    // y += the state that a state x becomes after the samples of `count` threads, warps or tiles, at least one.
    DEVICE void add_after_lanes(W (&y)[D], int count, const W (&x)[D]) const {
        add_product<D, K, WARP_SIZE>(y, lanes + count - 1, x);
    }
    DEVICE void add_after_warps(W (&y)[D], int count, const W (&x)[D]) const {
        add_product<D, K, 1>(y, warps + (count - 1) * D * D, x);
    }
    DEVICE void add_after_tiles(W (&y)[D], unsigned count, const W (&x)[D]) const {
        add_product<D, K, 1>(y, tiles + (count - 1) * D * D, x);
    }

    // Converts the state to the numbers w, and back.
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

}  // namespace filters

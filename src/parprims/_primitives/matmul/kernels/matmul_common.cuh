// Shared by all kernels for matrix products: the work of a block, the division of a tile between threads, and split
// sums.

#include "common.cuh"
#include "ticket.cuh"

constexpr int BAND = 8;

// ---- Work of a block ----------------------------------------------------------------------------------------------

// A factor of one product, as `length` lines along k: the rows of a, or the columns of b. Its strides are in elements:
// `outer` from line to line, `along` along k.
template <class T>
struct Factor {
    const T* base;
    Index outer, along, length;

    DEVICE T at(Index line, Index k) const { return base[line * outer + k * along]; }
};

// The result of one product: m rows and n columns in row-major order.
template <class T>
struct Result {
    T* base;
    Index m, n;
};

// A unit of work: the tile of the result that begins at (row, column), and the part of the sum over k from begin to
// end. `matrix` numbers the products of the batch, `tile` the tiles of all products, and `split` the `splits` parts of
// the sum.
struct WorkTile {
    Index row, column, begin, end, tile;
    int split, splits, matrix;
};

// Returns the tile and the part of a unit of work. Divisions are slow. Most are by 1 or have the quotient 0, and these
// are avoided.
template <int M, int N>
DEVICE WorkTile work_tile(
    unsigned unit, unsigned matrix, Index m, Index n, Index k, unsigned tiles, unsigned splits, Index part) {
    unit -= matrix * tiles * splits;
    const unsigned at = splits == 1 ? unit : unit / splits, split = unit - at * splits;
    const unsigned rows = (unsigned)((m + M - 1) / M), band = BAND * (unsigned)min((n + N - 1) / N, 1LL << 28);
    const unsigned group = at < band ? 0 : at / band, inside = at - group * band;
    const unsigned first = group * BAND, height = min((unsigned)BAND, rows - first);
    const unsigned column = height == BAND ? inside / BAND : inside / height, row = first + inside - column * height;
    const Index begin = split * part;
    return {(Index)row * M, (Index)column * N, begin, min(begin + part, k), (Index)matrix * tiles + at, (int)split,
            (int)splits, (int)matrix};
}

// An axis of a batch: its length and its strides in elements, in a and in b.
struct BatchAxis {
    Index length, step_a, step_b;
};

// The axes of a batch, the innermost first. find returns where a matrix of the batch begins in a and in b.
template <int AXES>
struct Batch {
    BatchAxis axes[AXES];

    DEVICE void find(unsigned matrix, Index& offset_a, Index& offset_b) const {
        offset_a = offset_b = 0;
        unsigned rest = matrix;
#pragma unroll
        for (int axis = 0; axis < AXES; ++axis) {
            const unsigned length = (unsigned)axes[axis].length;
            offset_a += rest % length * axes[axis].step_a,
            offset_b += rest % length * axes[axis].step_b,
            rest /= length;
        }
    }
};
template <>
struct Batch<0> {
    DEVICE void find(unsigned, Index& offset_a, Index& offset_b) const { offset_a = offset_b = 0; }
};

// A factor of all products of a batch, in the array that was given.
template <class T>
struct StridedFactor {
    using Element = T;
    const T* base;
    Index outer, along;

    DEVICE Factor<T> of(unsigned, Index offset, Index length) const { return {base + offset, outer, along, length}; }
};

// A factor as stored by pack_lines: contiguous along k, `pitch` elements from line to line, `step` from matrix to
// matrix.
template <class T>
struct PackedFactor {
    using Element = T;
    const T* base;
    Index pitch, step;

    DEVICE Factor<T> of(unsigned matrix, Index, Index length) const { return {base + matrix * step, pitch, 1, length}; }
};

// Returns the number of the product that a unit of work belongs to. Every product has `units` units.
DEVICE unsigned matrix_of(unsigned unit, Index units) { return unit < units ? 0 : unit / (unsigned)units; }

enum Which { FACTOR_A, FACTOR_B };

// A batch of products c = a b, each of an m x k and a k x n matrix. Every result has `tiles` tiles, and every sum is
// split into `splits` parts of length `part`. A unit of work is one part of a tile.
template <class A, class B, int AXES>
struct ProductBatch {
    using T = typename A::Element;
    A a;
    B b;
    T* c;
    Index m, n, k, tiles, splits, part;
    Batch<AXES> batch;

    // The factors, the result and the tile of a unit of work.
    struct Work {
        Factor<T> a, b;
        Result<T> c;
        WorkTile tile;
    };

    DEVICE Result<T> result(unsigned matrix) const { return {c + matrix * m * n, m, n}; }

    template <Which WHICH>
    DEVICE Factor<T> factor(unsigned matrix) const {
        Index offset_a, offset_b;
        batch.find(matrix, offset_a, offset_b);
        return WHICH == FACTOR_A ? a.of(matrix, offset_a, m) : b.of(matrix, offset_b, n);
    }

    // Returns a unit of work. The kernel's tile has M lines of its left factor and N lines of its right factor. These
    // factors are a and b, or b and a if SWAPPED.
    template <int M, int N, bool SWAPPED = false>
    DEVICE Work work(unsigned unit) const {
        const unsigned matrix = matrix_of(unit, splits * tiles);
        return {factor<FACTOR_A>(matrix), factor<FACTOR_B>(matrix), result(matrix), tile<M, N, SWAPPED>(unit, matrix)};
    }

    template <int M, int N, bool SWAPPED = false>
    DEVICE WorkTile tile(unsigned unit, unsigned matrix) const {
        return work_tile<M, N>(
            unit, matrix, SWAPPED ? n : m, SWAPPED ? m : n, k, (unsigned)tiles, (unsigned)splits, part);
    }
};

// ---- Threads of a block -----------------------------------------------------------------------------------------

// How threads divide a tile of HEIGHT rows with ACROSS vectors each: `row` and `vector` are the position of the e-th of
// a thread's EACH vectors. If the threads make up whole rows (EVEN), the rows of a thread are DOWN apart, a constant.
template <int HEIGHT, int ACROSS, int THREADS>
struct ThreadMap {
    static constexpr bool EVEN = THREADS % ACROSS == 0;
    static constexpr int DOWN = EVEN ? THREADS / ACROSS : 1, EACH = (HEIGHT * ACROSS + THREADS - 1) / THREADS;

    static DEVICE int thread() { return threadIdx.x % THREADS; }  // tells the compiler the range
    static DEVICE int row(int e) { return EVEN ? thread() / ACROSS + e * DOWN : (thread() + e * THREADS) / ACROSS; }
    static DEVICE int vector(int e) { return (EVEN ? thread() : thread() + e * THREADS) % ACROSS; }
    static DEVICE bool beyond(int e) { return HEIGHT * ACROSS % THREADS && row(e) >= HEIGHT; }
};

// ---- Sums split along k -----------------------------------------------------------------------------------------

// Combines the partial sums of all blocks of a tile, in the order of k. Returns whether this block has the result: the
// last block to arrive has. THREADS threads of a block take part, and together() is their barrier.
template <class Op, int THREADS, int COUNT, class Together>
DEVICE bool combine_parts(typename Op::Sum (&sums)[COUNT], const WorkTile& tile, void* parts, void* tickets, int thread,
                          const Together& together) {
    using S = typename Op::Sum;
    if (tile.splits == 1) return true;
    S *part = static_cast<S*>(parts) + tile.tile * tile.splits * (COUNT * THREADS) + thread,
      *const own = part + (Index)tile.split * (COUNT * THREADS);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) own[i * THREADS] = sums[i];
    if (!is_last_to_arrive(static_cast<unsigned*>(tickets) + tile.tile, tile.splits, thread, together)) return false;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = part[i * THREADS];
#pragma unroll 1
    for (int split = 1; split < tile.splits; ++split) {
        part += COUNT * THREADS;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = Op::combine(sums[i], part[i * THREADS]);
    }
    return true;
}

template <class Op, int THREADS, int COUNT>
DEVICE bool combine_parts(typename Op::Sum (&sums)[COUNT], const WorkTile& tile, void* parts, void* tickets) {
    return combine_parts<Op, THREADS>(sums, tile, parts, tickets, threadIdx.x, [] { __syncthreads(); });
}

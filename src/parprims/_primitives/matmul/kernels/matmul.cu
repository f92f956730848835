// Matrix product over any two operators: c[i, j] = a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + ..., combined in this order.
//
// Every kernel is a template over the arithmetic of the product:
//   struct Op {
//       using Element, Sum;                       // the type of a number in memory, and in registers
//       using Element, Sum;                       // the type of a number in memory, and in registers
//       static Sum load(Element);                 // converts a number in memory to registers
//       static Element save(Sum);                 // and back
//       static Sum identity();                    // the identity of the sum
//       static Sum combine(Sum earlier, Sum later);
//       static constexpr int STEPS;               // how many steps are unrolled
//   };
//
// Each of these kernels improves on the one before:
//   multiply_naive          A thread computes an element of c. It reads a row of a and a column of b from global memory.
//   multiply_tiled          A block computes a tile of c. Tiles of a and b are staged in shared memory, so that an
//                           element is read from global memory once for a whole row or column of threads.
//   multiply_packed         As multiply_tiled, after pack_tiles has stored the elements of every tile of a and b
//                           contiguously, in the order in which they are read. So reads are coalesced, whatever the
//                           strides.
//   multiply_conflict_free  A thread computes a register tile, so that an element read from shared memory serves
//                           several products. Reads of shared memory take 16 bytes and have no bank conflicts. Tiles
//                           are double buffered: the next ones are loaded while these are multiplied.
// The kernels for tensor cores are in matmul_tensor.cuh and matmul_groups.cu.
//
// Tiles are processed in bands of BAND tile rows, so that blocks in flight share their reads of a and b in the L2
// cache. If there are few tiles, the sum over k is split: blocks store partial sums, and the last block (see
// ticket.cuh) combines them in the order of k. So the result does not depend on which block was last.
//
// Template parameters of the kernels:
//   M, N, K              the tile of a block: M x N of c, M x K of a, K x N of b
//   BYTES                dynamic shared memory
//   A_VECTOR, B_VECTOR   elements of a and b that a thread loads as one vector
//   A_ALONG, B_ALONG     whether these vectors are along k
//   C_VECTOR             whether rows of c are stored in aligned vectors
//   Products             a ProductBatch
//
// K. Goto and R. A. van de Geijn, Anatomy of High-Performance Matrix Multiplication, ACM TOMS 34(3), 2008 (packing);
// R. Nath, S. Tomov and J. Dongarra, An Improved MAGMA GEMM for Fermi GPUs, IJHPCA 24(4), 2010 (register tiles).

#include "common.cuh"
#include "matmul_common.cuh"

// ---- naive ------------------------------------------------------------------------------------------------------

// A block has M x N threads. Adjacent threads of a warp read adjacent columns of b.
template <class Op, int M, int N, class Products>
DEVICE void multiply_naive(const Products& products) {
    const auto work = products.template work<M, N>(blockIdx.x);
    const auto &a = work.a, &b = work.b;
    const auto& c = work.c;
    const WorkTile& tile = work.tile;
    const Index i = tile.row + threadIdx.x / N, j = tile.column + threadIdx.x % N;
    if (i >= c.m || j >= c.n) return;
    typename Op::Sum sum = Op::identity();
    for (Index k = tile.begin; k < tile.end; ++k) sum = Op::step(sum, Op::load(a.at(i, k)), Op::load(b.at(j, k)));
    c.base[i * c.n + j] = Op::save(sum);
}

// ---- tiled and packed -------------------------------------------------------------------------------------------

// Adds to each thread's sum the products of two tiles in shared memory, in the order [k][line].
template <class Op, int M, int N, class S>
DEVICE S add_tile(S sum, const S* a, const S* b, int depth) {
    const int row = threadIdx.x / N, column = threadIdx.x % N;
    for (int k = 0; k < depth; ++k) sum = Op::step(sum, a[k * M + row], b[k * N + column]);
    return sum;
}

template <class Op, int N>
DEVICE void save_element(typename Op::Sum sum, const Result<typename Op::Element>& c, const WorkTile& tile) {
    const Index i = tile.row + threadIdx.x / N, j = tile.column + threadIdx.x % N;
    if (i < c.m && j < c.n) c.base[i * c.n + j] = Op::save(sum);
}

// Copies the K elements of LENGTH lines, from line `first` and from k on, to shared memory in the order [k][line].
// Elements outside the factor become zero; no result depends on them.
template <class Op, int LENGTH, int K, int THREADS>
DEVICE void copy_tile(
    typename Op::Sum* to, const Factor<typename Op::Element>& from, Index first, Index k, Index end) {
    for (int at = threadIdx.x; at < LENGTH * K; at += THREADS) {
        // Adjacent threads read adjacent elements of memory.
        const int line = from.along == 1 ? at / K : at % LENGTH, depth = from.along == 1 ? at % K : at / LENGTH;
        const bool inside = first + line < from.length && k + depth < end;
        to[depth * LENGTH + line] = inside ? Op::load(from.at(first + line, k + depth)) : typename Op::Sum();
    }
}

// A block has M x N threads.
template <class Op, int M, int N, int K, int BYTES, class Products>
DEVICE void multiply_tiled(const Products& products) {
    using S = typename Op::Sum;
    static_assert((M + N) * K * sizeof(S) <= BYTES, "a tile of each factor fits in shared memory");
    const auto work = products.template work<M, N>(blockIdx.x);
    const WorkTile& tile = work.tile;
    extern __shared__ uint4 memory[];
    S *const tile_a = reinterpret_cast<S*>(memory), *const tile_b = tile_a + M * K;
    S sum = Op::identity();
    for (Index k = tile.begin; k < tile.end; k += K) {
        copy_tile<Op, M, K, M * N>(tile_a, work.a, tile.row, k, tile.end);
        copy_tile<Op, N, K, M * N>(tile_b, work.b, tile.column, k, tile.end);
        __syncthreads();  // separates the writes of the tiles from their reads
        sum = add_tile<Op, M, N>(sum, tile_a, tile_b, (int)min((Index)K, tile.end - k));
        __syncthreads();  // separates the reads from the writes of the next tiles
    }
    save_element<Op, N>(sum, work.c, tile);
}

// Packs a factor, one tile for each block, without conversion, in the order [k][line]. Every matrix has `tiles` tiles.
template <Which WHICH, int LENGTH, int K, int THREADS, class Products>
DEVICE void pack_tiles(const Products& products, Index tiles, typename Products::T* to) {
    const unsigned matrix = matrix_of(blockIdx.x, tiles);
    const auto from = products.template factor<WHICH>(matrix);
    const Index number = blockIdx.x % tiles, depth = products.k;
    const Index deep = (depth + K - 1) / K, first = number / deep * LENGTH, k = number % deep * K;
    to += matrix * (tiles * (LENGTH * K)) + number * LENGTH * K;
    for (int at = threadIdx.x; at < LENGTH * K; at += THREADS) {
        const Index line = first + at % LENGTH, along = k + at / LENGTH;
        to[at] = line < from.length && along < depth ? from.at(line, along) : typename Products::T();
    }
}

// The place and layout of a packed factor: every line is contiguous along k. Lines are padded by zeros to `pitch`
// elements, a multiple of 16 bytes, and matrices are `step` elements apart. A block transposes a tile; every matrix has
// `tiles` tiles.
template <class T>
struct Packing {
    T* to;
    Index tiles, blocks, pitch, step;
};

// Packs a tile of SIDE elements of SIDE lines.
template <Which WHICH, int SIDE, int THREADS, class Products, class Shared>
DEVICE void pack_tile_of_lines(const Products& products, const Packing<typename Products::T>& packing, unsigned block,
                               Shared& tile) {
    using T = typename Products::T;
    constexpr int EACH = SIDE * SIDE / THREADS, VECTOR = 16 / (int)sizeof(T), ACROSS = SIDE / VECTOR;
    const Index pitch = packing.pitch;
    const unsigned matrix = matrix_of(block, packing.tiles), number = block - matrix * (unsigned)packing.tiles;
    const auto from = products.template factor<WHICH>(matrix);
    const Index depth = products.k;
    const unsigned deep = (unsigned)((depth + SIDE - 1) / SIDE);
    const Index first = (Index)(number / deep) * SIDE, k = (Index)(number % deep) * SIDE;
    T* const to = packing.to + matrix * packing.step;
    // Adjacent threads read adjacent elements of memory. All reads of a thread are in flight at once.
    const int lane = threadIdx.x % SIDE, begin = threadIdx.x / SIDE;
    const bool straight = from.along == 1;
    T x[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int i = begin + e * (THREADS / SIDE);
        const Index line = first + (straight ? i : lane), along = k + (straight ? lane : i);
        x[e] = line < from.length && along < depth ? from.at(line, along) : T();
    }
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int i = begin + e * (THREADS / SIDE);
        tile[straight ? i : lane][straight ? lane : i] = x[e];
    }
    __syncthreads();  // separates the writes of the tile from its reads
    for (int at = threadIdx.x; at < SIDE * ACROSS; at += THREADS) {
        const int line = at / ACROSS, along = at % ACROSS * VECTOR;
        if (first + line >= from.length || k + along >= pitch) continue;
        uint4 vector;
        T parts[VECTOR];
#pragma unroll
        for (int e = 0; e < VECTOR; ++e) parts[e] = tile[line][along + e];
        memcpy(&vector, parts, sizeof(vector));
        *reinterpret_cast<uint4*>(to + (first + line) * pitch + k + along) = vector;
    }
}

// Packs one factor, or both, in one launch.
template <bool A, bool B, int SIDE, int THREADS, class Products>
DEVICE void pack_lines(const Products& products, const Packing<typename Products::T>& a,
                       const Packing<typename Products::T>& b) {
    using T = typename Products::T;
    __shared__ T tile[SIDE][SIDE + 4 / sizeof(T)];  // neither rows nor columns have bank conflicts
    if (A && (!B || blockIdx.x < a.blocks))
        pack_tile_of_lines<FACTOR_A, SIDE, THREADS>(products, a, blockIdx.x, tile);
    else if (B)
        pack_tile_of_lines<FACTOR_B, SIDE, THREADS>(products, b, blockIdx.x - (unsigned)a.blocks, tile);
}

// A block has M x N threads. a and b are results of pack_tiles, with tiles_a and tiles_b tiles in every matrix.
template <class Op, int M, int N, int K, int BYTES, class Products>
DEVICE void multiply_packed(const Products& products, const typename Op::Element* a, const typename Op::Element* b,
                            Index tiles_a, Index tiles_b) {
    using S = typename Op::Sum;
    static_assert((M + N) * K * sizeof(S) <= BYTES, "a tile of each factor fits in shared memory");
    const unsigned matrix = matrix_of(blockIdx.x, products.splits * products.tiles);
    const WorkTile tile = products.template tile<M, N>(blockIdx.x, matrix);
    extern __shared__ uint4 memory[];
    S *const tile_a = reinterpret_cast<S*>(memory), *const tile_b = tile_a + M * K;
    const Index deep = (tile.end + K - 1) / K;
    a += matrix * (tiles_a * (M * K)) + tile.row / M * deep * (M * K);
    b += matrix * (tiles_b * (N * K)) + tile.column / N * deep * (N * K);
    S sum = Op::identity();
    for (Index k = 0; k < tile.end; k += K, a += M * K, b += N * K) {
        for (int at = threadIdx.x; at < M * K; at += M * N) tile_a[at] = Op::load(a[at]);
        for (int at = threadIdx.x; at < N * K; at += M * N) tile_b[at] = Op::load(b[at]);
        __syncthreads();  // separates the writes of the tiles from their reads
        sum = add_tile<Op, M, N>(sum, tile_a, tile_b, (int)min((Index)K, tile.end - k));
        __syncthreads();  // separates the reads from the writes of the next tiles
    }
    save_element<Op, N>(sum, products.result(matrix), tile);
}

// ---- conflict_free ----------------------------------------------------------------------------------------------

// Numbers in 16 bytes of shared memory, which a lane reads by one instruction.
template <class S>
struct alignas(16) SharedVector {
    static constexpr int COUNT = 16 / (int)sizeof(S);
    S at[COUNT];
};

// The register tile of a thread has ROWS x COLUMNS elements. The lanes of a warp form a grid of 4 rows and 8 columns,
// with a square of 16-byte vectors for each lane. The grid is repeated side by side to make up the tile of the warp. So
// each quarter of a warp reads few different rows and columns of the shared tiles.
template <class S>
struct OuterProduct {
    static constexpr int ROWS = sizeof(S) > 8 ? 4 : 8, COLUMNS = sizeof(S) > 4 ? 4 : 8;
    static constexpr int WARP_ROWS = 4 * ROWS, WARP_COLUMNS = 8 * COLUMNS;
};

// A tile of a factor on its way from global memory through registers to shared memory, where its order is [k][line]. It
// is loaded in vectors along k (ALONG) or along its lines. Along k, the lanes of K / VECTOR vectors have the same line
// and would write to the same banks. So the line is swizzled: it is combined by exclusive or with a multiple of UNIT
// that differs among these lanes.
template <class Op, int LENGTH, int K, int THREADS, int VECTOR, bool ALONG>
struct RegisterTile {
    using T = typename Op::Element;
    using S = typename Op::Sum;
    using Row = SharedVector<S>;
    static constexpr int ROW = Row::COUNT;
    static constexpr int ACROSS = (ALONG ? K : LENGTH) / VECTOR;
    using Map = ThreadMap<ALONG ? LENGTH : K, ACROSS, THREADS>;
    static constexpr int BANKS = 128 / (int)sizeof(S), MOST = BANKS / ROW;
    static constexpr int SPREAD = !ALONG ? 1 : ACROSS < MOST ? ACROSS : MOST, UNIT = BANKS / SPREAD;
    static_assert(LENGTH % BANKS == 0, "lines are swizzled within a multiple of the banks");
    T held[Map::EACH][VECTOR];
    const T* next;  // the first element that this thread loads of the next tile

    static DEVICE int swizzled(int line, int k) { return line ^ k / VECTOR % SPREAD * UNIT * ALONG; }

    // Sets the next tile to the tile from line `first` and from k = begin on.
    DEVICE void start(const Factor<T>& from, Index first, Index begin) {
        const Index across = Map::vector(0) * VECTOR, down = Map::row(0);
        next = from.base + (first + (ALONG ? down : across)) * from.outer +
               (begin + (ALONG ? across : down)) * from.along;
    }

    // Loads the next tile, which is wholly inside the factor.
    DEVICE void fetch_whole(const Factor<T>& from) {
        const Index down = ALONG ? from.outer : from.along, right = ALONG ? from.along : from.outer;  // strides
#pragma unroll
        for (int e = 0; e < Map::EACH; ++e) {
            if (Map::beyond(e)) break;
            const int rows = Map::row(e) - Map::row(0), columns = (Map::vector(e) - Map::vector(0)) * VECTOR;
            const T* const at = next + rows * down + columns * right;
            if constexpr (VECTOR > 1)
                load_vector(held[e], at);
            else
                held[e][0] = *at;
        }
        next += K * from.along;
    }

    // Loads the tile from line `first` and from k = begin on. Elements outside the factor become zero.
    DEVICE void fetch(const Factor<T>& from, Index first, Index begin, Index end) {
        const Index rows = ALONG ? from.length - first : end - begin,
                    columns = ALONG ? end - begin : from.length - first;
        const Index down = ALONG ? from.outer : from.along, right = ALONG ? from.along : from.outer;  // strides
        const T* const start = from.base + first * from.outer + begin * from.along;
#pragma unroll
        for (int e = 0; e < Map::EACH; ++e) {
            const int row = Map::row(e), column = Map::vector(e) * VECTOR;
            if (Map::beyond(e)) break;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                const bool inside = row < rows && column + i < columns;
                held[e][i] = inside ? start[row * down + (column + i) * right] : T();
            }
        }
    }

    DEVICE void put(S* shared) const {
#pragma unroll
        for (int e = 0; e < Map::EACH; ++e) {
            const int row = Map::row(e), column = Map::vector(e) * VECTOR;
            if (Map::beyond(e)) break;
            if constexpr (!ALONG && VECTOR % ROW == 0) {
                Row* const to = reinterpret_cast<Row*>(shared + row * LENGTH + column);
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) to[i / ROW].at[i % ROW] = Op::load(held[e][i]);
            } else {
                // If a thread's rows are a multiple of the banks apart, all rows are swizzled alike.
                constexpr bool ALIKE = ALONG && Map::EVEN && Map::DOWN % BANKS == 0;
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) {
                    const int line = ALONG ? row : column + i, k = ALONG ? column + i : row;
                    const int place = ALIKE ? swizzled(Map::row(0), column) + e * Map::DOWN : swizzled(line, k);
                    shared[k * LENGTH + place] = Op::load(held[e][i]);
                }
            }
        }
    }

    // Reads COUNT lines as vectors of ROW: from `line` on, one vector of every LANES * ROW lines. LANES lanes share a
    // part of the tile, which begins at a multiple of COUNT * LANES. The swizzle is split into the part that changes
    // the lane's line and the part that changes the vector.
    template <int LANES, int COUNT>
    static DEVICE void get(S (&to)[COUNT], const S* shared, int line, int k) {
        static_assert(COUNT * LANES >= BANKS, "lines are swizzled within the part");
        const int swizzle = swizzled(0, k), lane = swizzle % (LANES * ROW);
#pragma unroll
        for (int i = 0; i < COUNT; i += ROW) {
            const int later = k * LENGTH + (i * LANES ^ (swizzle - lane));
            const Row row = *reinterpret_cast<const Row*>(shared + (line ^ lane) + later);
#pragma unroll
            for (int e = 0; e < ROW; ++e) to[i + e] = row.at[e];
        }
    }
};

// A block has (M / WARP_ROWS) x (N / WARP_COLUMNS) warps.
template <class Op, int M, int N, int K, int BYTES, int A_VECTOR, bool A_ALONG, int B_VECTOR, bool B_ALONG,
          bool C_VECTOR,
          class Products>
DEVICE void multiply_conflict_free(const Products& products, void* parts, void* tickets) {
    using T = typename Op::Element;
    using S = typename Op::Sum;
    using Own = OuterProduct<S>;
    constexpr int ROW = SharedVector<S>::COUNT, ROWS = Own::ROWS, COLUMNS = Own::COLUMNS;
    constexpr int WARPS = N / Own::WARP_COLUMNS, THREADS = M / Own::WARP_ROWS * WARPS * WARP_SIZE;
    static_assert(M % Own::WARP_ROWS == 0 && N % Own::WARP_COLUMNS == 0, "a tile is made of whole tiles of warps");
    static_assert(2 * (M + N) * K * sizeof(S) <= BYTES, "two tiles of each factor fit in shared memory");
    using TileA = RegisterTile<Op, M, K, THREADS, A_VECTOR, A_ALONG>;
    using TileB = RegisterTile<Op, N, K, THREADS, B_VECTOR, B_ALONG>;
    const auto work = products.template work<M, N>(blockIdx.x);
    const auto &a = work.a, &b = work.b;
    const auto& c = work.c;
    const WorkTile& part = work.tile;
    extern __shared__ uint4 memory[];
    S *shared_a = reinterpret_cast<S*>(memory), *shared_b = shared_a + 2 * M * K;
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const int lane_row = lane / 16 * 2 + lane % 2, lane_column = lane / 2 % 8;
    const int row = warp / WARPS * Own::WARP_ROWS + lane_row * ROW,
              column = warp % WARPS * Own::WARP_COLUMNS + lane_column * ROW;

    S sums[ROWS * COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS; ++i) sums[i] = Op::identity();
    const auto add_products = [&](int k, const S* from_a, const S* from_b) {
        S x[ROWS], y[COLUMNS];
        TileA::template get<4>(x, from_a, row, k);
        TileB::template get<8>(y, from_b, column, k);
#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS; ++i) sums[i] = Op::step(sums[i], x[i / COLUMNS], y[i % COLUMNS]);
    };

    TileA tile_a;
    TileB tile_b;
    int stage = 0;
    const auto put = [&] {
        tile_a.put(shared_a + stage * M * K);
        tile_b.put(shared_b + stage * N * K);
        __syncthreads();  // separates reads of the last tiles from later writes in their place, and writes from reads
    };
    tile_a.fetch(a, part.row, part.begin, part.end);
    tile_b.fetch(b, part.column, part.begin, part.end);
    put();
    // First the tiles that a whole tile follows, then the other tiles.
    const bool inside = part.row + M <= a.length && part.column + N <= b.length;
    const int tiles = (int)((part.end - part.begin + K - 1) / K),
              quick = inside ? (int)((part.end - part.begin) / K) - 1 : 0;
    tile_a.start(a, part.row, part.begin + K);
    tile_b.start(b, part.column, part.begin + K);
    int at = 0;
#pragma unroll 1
    for (; at < quick; ++at) {
        tile_a.fetch_whole(a);
        tile_b.fetch_whole(b);
        const S *const from_a = shared_a + stage * M * K, *const from_b = shared_b + stage * N * K;
#pragma unroll(Op::STEPS)
        for (int i = 0; i < K; ++i) add_products(i, from_a, from_b);
        stage ^= 1;
        put();
    }
#pragma unroll 1
    for (; at < tiles; ++at) {
        const Index k = part.begin + (Index)at * K;
        if (at + 1 < tiles) {
            tile_a.fetch(a, part.row, k + K, part.end);
            tile_b.fetch(b, part.column, k + K, part.end);
        }
        const S *const from_a = shared_a + stage * M * K, *const from_b = shared_b + stage * N * K;
        const int depth = (int)min((Index)K, part.end - k);
#pragma unroll 1
        for (int i = 0; i < depth; ++i) add_products(i, from_a, from_b);
        stage ^= 1;
        if (at + 1 < tiles) put();
    }

    if (!combine_parts<Op, THREADS>(sums, part, parts, tickets)) return;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const Index i = part.row + row + r / ROW * 4 * ROW + r % ROW;
        if (i >= c.m) continue;
#pragma unroll
        for (int s = 0; s < COLUMNS; s += ROW) {
            const Index j = part.column + column + s * 8;
            T saved[ROW];
#pragma unroll
            for (int e = 0; e < ROW; ++e) saved[e] = Op::save(sums[r * COLUMNS + s + e]);
            T* const to = c.base + i * c.n + j;
            if (C_VECTOR && j + ROW <= c.n) {
                using Vector = typename Word<ROW * sizeof(T)>::Type;
                Vector vector;
                memcpy(&vector, saved, sizeof(Vector));
                *reinterpret_cast<Vector*>(to) = vector;
            } else {
#pragma unroll
                for (int e = 0; e < ROW; ++e)
                    if (j + e < c.n) to[e] = saved[e];
            }
        }
    }
}

// Matrix product by any two operators: c[i, j] = a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + ..., combined in this order.
//
// Every kernel is a template over the arithmetic of the product:
//   struct Op {
//       using Element, Sum;                       // a number as memory holds it, and one in registers
//       static Sum load(Element);                 // from the one to the other
//       static Element save(Sum);                 // and back
//       static Sum identity();                    // of the sum
//       static Sum combine(Sum earlier, Sum later);
//       static Sum step(Sum sum, Sum x, Sum y);   // combines a sum with the product of x and y
//   };
//
// A ladder, each kernel with what the one before lacks:
//   multiply_naive          A thread computes an element and reads a row and a column of it from memory.
//   multiply_tiled          A block computes a tile. Tiles of a and b wait in shared memory, so that an element is read
//                           from memory once for a whole row or column of threads.
//   multiply_packed         The same, after pack_tiles has laid the elements of a tile side by side in memory, in the
//                           order in which they are asked for: whatever the strides, reads are of whole lines.
//   multiply_conflict_free  A thread computes a small tile in registers, so that an element read from shared memory
//                           serves several products; reads are of 16 bytes and meet no bank conflict, and the next
//                           tiles are on their way from memory while these are multiplied.
// Past these stand the tensor cores, in _matmul_tensor.cu and _matmul_groups.cu.
//
// Tiles are walked in bands of BAND tile rows, so that blocks in flight share what they read of a and b in the L2
// cache. Where there are few tiles, the sum over k is cut: blocks leave their parts in memory, and the last of them to
// come, by a ticket, combines the parts in the order of k, so that the result does not depend on who was last.
//
// K. Goto and R. A. van de Geijn, Anatomy of High-Performance Matrix Multiplication, ACM TOMS 34(3), 2008 (packing);
// R. Nath, S. Tomov and J. Dongarra, An Improved MAGMA GEMM for Fermi GPUs, IJHPCA 24(4), 2010 (tiles in registers).

using Index = long long;

constexpr int WARP = 32, BAND = 8;

// ---- What a block works at ----------------------------------------------------------------------------------------

// A factor of one product, seen as `length` lines along k (the rows of a, the columns of b), with strides in elements:
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

// A tile of the result, which begins at (row, column), and the part of the sum from begin to end. `matrix` is the number
// of the product in the batch; `tile` counts the tiles of all products, `split` the parts of the sum.
struct WorkTile {
    Index row, column, begin, end, tile;
    int split, splits, matrix;
};

// Finds the tile and the part that a unit of work of a product stands for. Divisions take long, and most are by 1 or have
// a quotient of 0.
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

// An axis of a batch: its length, and how far its neighbours are apart in a and in b, in elements.
struct BatchAxis {
    Index length, step_a, step_b;
};

// The axes of a batch, the innermost first. A matrix of the batch lies offset_a, offset_b elements behind the first one.
template <int AXES>
struct Batch {
    BatchAxis axes[AXES];

    DEVICE void find(unsigned matrix, Index& offset_a, Index& offset_b) const {
        offset_a = offset_b = 0;
        unsigned rest = matrix;
#pragma unroll
        for (int axis = 0; axis < AXES; ++axis) {
            const unsigned length = (unsigned)axes[axis].length;
            offset_a += rest % length * axes[axis].step_a, offset_b += rest % length * axes[axis].step_b, rest /= length;
        }
    }
};
template <>
struct Batch<0> {
    DEVICE void find(unsigned, Index& offset_a, Index& offset_b) const { offset_a = offset_b = 0; }
};

// A factor of all products of a batch as an array holds it.
template <class T>
struct StridedFactor {
    using Element = T;
    const T* base;
    Index outer, along;

    DEVICE Factor<T> of(unsigned, Index offset, Index length) const { return {base + offset, outer, along, length}; }
};

// The same as pack_lines leaves it: along k, lines `pitch` apart, one matrix `step` after the other.
template <class T>
struct PackedFactor {
    using Element = T;
    const T* base;
    Index pitch, step;

    DEVICE Factor<T> of(unsigned matrix, Index, Index length) const { return {base + matrix * step, pitch, 1, length}; }
};

// Returns the number of the product that a unit of work belongs to, where each has so many units.
DEVICE unsigned matrix_of(unsigned unit, Index units) { return unit < units ? 0 : unit / (unsigned)units; }

enum Which { FACTOR_A, FACTOR_B };

// A batch of products c = a b, m by k times k by n. The result of each is made of `tiles` tiles, its sums are cut in
// `splits` parts of the length `part`. A unit of work is a part of a tile.
template <class A, class B, int AXES>
struct ProductBatch {
    using T = typename A::Element;
    A a;
    B b;
    T* c;
    Index m, n, k, tiles, splits, part;
    Batch<AXES> batch;

    // What a unit consists of.
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

    // Returns a unit. The kernel's tile has M lines of its left factor, which is a, and N of its right one, which is b;
    // SWAPPED says that it is the other way round.
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

// ---- naive ------------------------------------------------------------------------------------------------------

// A block of M x N threads; neighbours in a warp read neighbouring columns of b.
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

// Adds to each thread's sum the products of tiles that wait in shared memory, as lines of M and of N for every k.
template <class Op, int M, int N, class S>
DEVICE S add_tile(S sum, const S* a, const S* b, int depth) {
    const int row = threadIdx.x / N, column = threadIdx.x % N;
    for (int k = 0; k < depth; ++k) sum = Op::step(sum, a[k * M + row], b[k * N + column]);
    return sum;
}

template <class Op, int M, int N>
DEVICE void save_element(typename Op::Sum sum, const Result<typename Op::Element>& c, const WorkTile& tile) {
    const Index i = tile.row + threadIdx.x / N, j = tile.column + threadIdx.x % N;
    if (i < c.m && j < c.n) c.base[i * c.n + j] = Op::save(sum);
}

// Copies the K elements of LENGTH lines, from line `first` and from k on, to the order [k][line]. What is outside is
// zero, or anything: nothing comes of it.
template <class Op, int LENGTH, int K, int THREADS>
DEVICE void copy_tile(
    typename Op::Sum* to, const Factor<typename Op::Element>& from, Index first, Index k, Index end) {
    for (int at = threadIdx.x; at < LENGTH * K; at += THREADS) {
        // Neighbouring threads take the neighbours in memory.
        const int line = from.along == 1 ? at / K : at % LENGTH, depth = from.along == 1 ? at % K : at / LENGTH;
        const bool inside = first + line < from.length && k + depth < end;
        to[depth * LENGTH + line] = inside ? Op::load(from.at(first + line, k + depth)) : typename Op::Sum();
    }
}

// A block of M x N threads, with BYTES of dynamic shared memory.
template <class Op, int M, int N, int K, int BYTES, class Products>
DEVICE void multiply_tiled(const Products& products) {
    using S = typename Op::Sum;
    static_assert((M + N) * K * sizeof(S) <= BYTES, "a tile of each factor fits shared memory");
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
    save_element<Op, M, N>(sum, work.c, tile);
}

// A block packs one tile of a factor, whose matrices have `tiles` each: its elements as they are, in the order [k][line].
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

// A block moves SIDE numbers of SIDE lines of a factor, whose matrices have `tiles` such tiles each: so that each line
// lies along k, `pitch` numbers after the one before, and ends with zeros, and matrices are `step` numbers apart.
template <Which WHICH, int SIDE, int THREADS, class Products>
DEVICE void pack_lines(const Products& products, Index tiles, Index pitch, Index step, typename Products::T* to) {
    using T = typename Products::T;
    __shared__ T tile[SIDE][SIDE + 1];
    const unsigned matrix = matrix_of(blockIdx.x, tiles), number = blockIdx.x % (unsigned)tiles;
    const auto from = products.template factor<WHICH>(matrix);
    const Index depth = products.k;
    const unsigned deep = (unsigned)((depth + SIDE - 1) / SIDE);
    const Index first = (Index)(number / deep) * SIDE, k = (Index)(number % deep) * SIDE;
    const int lane = threadIdx.x % SIDE;
    to += matrix * step;
    for (int i = threadIdx.x / SIDE; i < SIDE; i += THREADS / SIDE) {
        // Neighbouring threads take the neighbours in memory.
        const int line = from.along == 1 ? i : lane, along = from.along == 1 ? lane : i;
        if (first + line < from.length && k + along < depth) tile[line][along] = from.at(first + line, k + along);
    }
    __syncthreads();  // separates the writes of the tile from its reads
    for (int i = threadIdx.x / SIDE; i < SIDE; i += THREADS / SIDE)
        if (first + i < from.length && k + lane < pitch)
            to[(first + i) * pitch + k + lane] = k + lane < depth ? tile[i][lane] : T();
}

// A block of M x N threads, with BYTES of dynamic shared memory; a and b are what pack_tiles left, so many tiles a matrix.
template <class Op, int M, int N, int K, int BYTES, class Products>
DEVICE void multiply_packed(const Products& products, const typename Op::Element* a, const typename Op::Element* b,
                            Index tiles_a, Index tiles_b) {
    using S = typename Op::Sum;
    static_assert((M + N) * K * sizeof(S) <= BYTES, "a tile of each factor fits shared memory");
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
    save_element<Op, M, N>(sum, products.result(matrix), tile);
}

// ---- Sums cut along k -------------------------------------------------------------------------------------------

// Combines the sums of all blocks of a tile, in the order of k, and returns whether this block has them: the last to
// come. These are the sums of `threads` threads, which together() makes wait for each other.
template <class Op, int COUNT, class Together>
DEVICE bool combine_parts(typename Op::Sum (&sums)[COUNT], const WorkTile& tile, void* parts, void* tickets, int thread,
                          int threads, const Together& together) {
    using S = typename Op::Sum;
    if (tile.splits == 1) return true;
    S* const all = static_cast<S*>(parts) + tile.tile * tile.splits * COUNT * threads + thread;
    unsigned* const ticket = static_cast<unsigned*>(tickets) + tile.tile;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) all[(Index)(tile.split * COUNT + i) * threads] = sums[i];
    if (!is_last_to_arrive(ticket, tile.splits, thread, together)) return false;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = all[(Index)i * threads];
#pragma unroll 1
    for (int split = 1; split < tile.splits; ++split)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = Op::combine(sums[i], all[(Index)(split * COUNT + i) * threads]);
    return true;
}

template <class Op, int COUNT>
DEVICE bool combine_parts(typename Op::Sum (&sums)[COUNT], const WorkTile& tile, void* parts, void* tickets) {
    return combine_parts<Op>(sums, tile, parts, tickets, threadIdx.x, blockDim.x, [] { __syncthreads(); });
}

// ---- conflict_free ----------------------------------------------------------------------------------------------

// Numbers in 16 bytes of shared memory, which a lane reads at once.
template <class S>
struct alignas(16) SharedVector {
    static constexpr int COUNT = 16 / (int)sizeof(S);
    S at[COUNT];
};

// The tile of a thread, ROWS x COLUMNS, and of a warp, whose lanes stand in 4 rows and 8 columns: 2 x 2 of them side by
// side, so that each quarter of a warp reads few different rows of a tile and few columns.
template <class S>
struct OuterProduct {
    static constexpr int ROWS = sizeof(S) > 8 ? 4 : 8, COLUMNS = sizeof(S) > 4 ? 4 : 8;
    static constexpr int WARP_ROWS = 4 * ROWS, WARP_COLUMNS = 8 * COLUMNS;
};

// How threads take the vectors of a tile of HEIGHT rows with ACROSS vectors each: `row` and `vector` of the thread's e-th of
// EACH. Where whole rows fit the threads, the rows of a thread are DOWN apart, a number all threads share.
template <int HEIGHT, int ACROSS, int THREADS>
struct ThreadMap {
    static constexpr bool EVEN = THREADS % ACROSS == 0;
    static constexpr int DOWN = EVEN ? THREADS / ACROSS : 1, EACH = (HEIGHT * ACROSS + THREADS - 1) / THREADS;

    static DEVICE int thread() { return threadIdx.x % THREADS; }  // tells the compiler how many there are
    static DEVICE int row(int e) { return EVEN ? thread() / ACROSS + e * DOWN : (thread() + e * THREADS) / ACROSS; }
    static DEVICE int vector(int e) { return (EVEN ? thread() : thread() + e * THREADS) % ACROSS; }
    static DEVICE bool beyond(int e) { return HEIGHT * ACROSS % THREADS && row(e) >= HEIGHT; }
};

// A tile of a factor on its way from memory, in vectors along k (ALONG) or along its lines, to shared memory, in the
// order [k][line]. Along k a warp would write to few banks, for K / VECTOR of its lanes have the same line: there the
// line is changed by a multiple of UNIT that differs for these.
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
    static_assert(LENGTH % BANKS == 0, "lines are changed within a multiple of the banks");
    T held[Map::EACH][VECTOR];
    const T* next;  // what the thread reads first of the next tile

    static DEVICE int changed(int line, int k) { return line ^ k / VECTOR % SPREAD * UNIT * ALONG; }

    // Begins at line `first` and at k = begin.
    DEVICE void start(const Factor<T>& from, Index first, Index begin) {
        const Index across = Map::vector(0) * VECTOR, down = Map::row(0);
        next = from.base + (first + (ALONG ? down : across)) * from.outer + (begin + (ALONG ? across : down)) * from.along;
    }

    // Reads the next tile, all of which lies inside.
    DEVICE void fetch_whole(const Factor<T>& from) {
        const Index down = ALONG ? from.outer : from.along, right = ALONG ? from.along : from.outer;  // strides
#pragma unroll
        for (int e = 0; e < Map::EACH; ++e) {
            if (Map::beyond(e)) break;
            const int rows = Map::row(e) - Map::row(0), columns = (Map::vector(e) - Map::vector(0)) * VECTOR;
            const T* const at = next + rows * down + columns * right;
            using Vector = typename Word<VECTOR * sizeof(T)>::Type;
            if constexpr (VECTOR > 1) {
                const Vector vector = __ldg(reinterpret_cast<const Vector*>(at));
                memcpy(held[e], &vector, sizeof(Vector));
            } else {
                held[e][0] = *at;
            }
        }
        next += K * from.along;
    }

    // Reads the tile from line `first` and from `begin` on; what is outside becomes zero.
    DEVICE void fetch(const Factor<T>& from, Index first, Index begin, Index end) {
        const Index rows = ALONG ? from.length - first : end - begin, columns = ALONG ? end - begin : from.length - first;
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
                // Where rows are whole parts of the banks apart, all are changed alike.
                constexpr bool ALIKE = ALONG && Map::EVEN && Map::DOWN % BANKS == 0;
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) {
                    const int line = ALONG ? row : column + i, k = ALONG ? column + i : row;
                    const int place = ALIKE ? changed(Map::row(0), column) + e * Map::DOWN : changed(line, k);
                    shared[k * LENGTH + place] = Op::load(held[e][i]);
                }
            }
        }
    }

    // Reads COUNT lines, ROW side by side in every LANES * ROW, from `line` on: of a lane among LANES, in a part of the tile
    // that begins at a multiple of COUNT * LANES. What changes a line is split in what changes the lane and what does not.
    template <int LANES, int COUNT>
    static DEVICE void get(S (&to)[COUNT], const S* shared, int line, int k) {
        static_assert(COUNT * LANES >= BANKS, "lines are changed within the part");
        const int change = changed(0, k), lane = change % (LANES * ROW);
#pragma unroll
        for (int i = 0; i < COUNT; i += ROW) {
            const int later = k * LENGTH + (i * LANES ^ (change - lane));
            const Row row = *reinterpret_cast<const Row*>(shared + (line ^ lane) + later);
#pragma unroll
            for (int e = 0; e < ROW; ++e) to[i + e] = row.at[e];
        }
    }
};

// A block of (M / WARP_ROWS) x (N / WARP_COLUMNS) warps, with BYTES of dynamic shared memory.
template <class Op, int M, int N, int K, int BYTES, int A_VECTOR, bool A_ALONG, int B_VECTOR, bool B_ALONG, bool C_VECTOR,
          class Products>
DEVICE void multiply_conflict_free(const Products& products, void* parts, void* tickets) {
    using T = typename Op::Element;
    using S = typename Op::Sum;
    using Own = OuterProduct<S>;
    constexpr int ROW = SharedVector<S>::COUNT, ROWS = Own::ROWS, COLUMNS = Own::COLUMNS;
    constexpr int WARPS = N / Own::WARP_COLUMNS, THREADS = M / Own::WARP_ROWS * WARPS * WARP;
    static_assert(M % Own::WARP_ROWS == 0 && N % Own::WARP_COLUMNS == 0, "a tile is made of whole tiles of warps");
    static_assert(2 * (M + N) * K * sizeof(S) <= BYTES, "two tiles of each factor fit shared memory");
    using TileA = RegisterTile<Op, M, K, THREADS, A_VECTOR, A_ALONG>;
    using TileB = RegisterTile<Op, N, K, THREADS, B_VECTOR, B_ALONG>;
    const auto work = products.template work<M, N>(blockIdx.x);
    const auto &a = work.a, &b = work.b;
    const auto& c = work.c;
    const WorkTile& part = work.tile;
    extern __shared__ uint4 memory[];
    S *shared_a = reinterpret_cast<S*>(memory), *shared_b = shared_a + 2 * M * K;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int lane_row = lane / 16 * 2 + lane % 2, lane_column = lane / 2 % 8;
    const int row = warp / WARPS * Own::WARP_ROWS + lane_row * ROW, column = warp % WARPS * Own::WARP_COLUMNS + lane_column * ROW;

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
        __syncthreads();  // separates reads of the last tiles from the writes after the next, and those from their reads
    };
    tile_a.fetch(a, part.row, part.begin, part.end);
    tile_b.fetch(b, part.column, part.begin, part.end);
    put();
    // Tiles with a whole one behind them, then the others.
    const bool inside = part.row + M <= a.length && part.column + N <= b.length;
    const int tiles = (int)((part.end - part.begin + K - 1) / K), quick = inside ? (int)((part.end - part.begin) / K) - 1 : 0;
    tile_a.start(a, part.row, part.begin + K);
    tile_b.start(b, part.column, part.begin + K);
    int at = 0;
#pragma unroll 1
    for (; at < quick; ++at) {
        tile_a.fetch_whole(a);
        tile_b.fetch_whole(b);
        const S *const from_a = shared_a + stage * M * K, *const from_b = shared_b + stage * N * K;
        if constexpr (Op::LONG) {  // K times over it would fill the instruction cache, and the compiler's time
#pragma unroll 1
            for (int i = 0; i < K; ++i) add_products(i, from_a, from_b);
        } else {
#pragma unroll
            for (int i = 0; i < K; ++i) add_products(i, from_a, from_b);
        }
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

    if (!combine_parts<Op>(sums, part, parts, tickets)) return;
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

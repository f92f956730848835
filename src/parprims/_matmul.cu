// Matrix product by any two operators: c[i, j] = a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + ..., combined in this order.
//
// The text before this one defines, for the call at hand: T (an element as memory holds it), S (one in registers),
// load(T) and save(S) between the two, identity() of the sum, combine(earlier, later), and step(sum, x, y), which combines a
// sum with the product of x and y.
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
// Tiles are walked in bands of GROUP tile rows, so that blocks in flight share what they read of a and b in the L2
// cache. Where there are few tiles, the sum over k is cut: blocks leave what they have in memory, and the last of them
// to come, by a ticket, combines it in the order of k, so that the result does not depend on who was last.
//
// K. Goto and R. A. van de Geijn, Anatomy of High-Performance Matrix Multiplication, ACM TOMS 34(3), 2008 (packing);
// R. Nath, S. Tomov and J. Dongarra, An Improved MAGMA GEMM for Fermi GPUs, IJHPCA 24(4), 2010 (tiles in registers).

using Index = long long;

constexpr int WARP = 32, GROUP = 8;

// A factor seen as `length` lines along k (the rows of a, the columns of b), with its strides in elements.
struct Factor {
    const T* base;
    Index outer, along, length;

    DEVICE S at(Index line, Index k) const { return load(base[line * outer + k * along]); }
};

// What a block computes: the tile of the result that begins at (row, column), the part of the sum from begin to end.
// `matrix` is its number in the batch; `tile` counts the tiles of all of them, `split` the parts.
struct Place {
    Index row, column, begin, end, tile;
    int split, splits, matrix;
};

// The place of a unit that belongs to a matrix of the batch. Divisions take long, and most are by 1 or have a quotient of 0.
template <int M, int N>
DEVICE Place place(unsigned unit, unsigned matrix, Index m, Index n, Index k, unsigned tiles, unsigned splits, Index part) {
    unit -= matrix * tiles * splits;
    const unsigned at = splits == 1 ? unit : unit / splits, split = unit - at * splits;
    const unsigned rows = (unsigned)((m + M - 1) / M), band = GROUP * (unsigned)min((n + N - 1) / N, 1LL << 28);
    const unsigned group = at < band ? 0 : at / band, inside = at - group * band;
    const unsigned first = group * GROUP, height = min((unsigned)GROUP, rows - first);
    const unsigned column = height == GROUP ? inside / GROUP : inside / height, row = first + inside - column * height;
    const Index begin = split * part;
    return {(Index)row * M, (Index)column * N, begin, min(begin + part, k), (Index)matrix * tiles + at, (int)split,
            (int)splits, (int)matrix};
}

// Where c, in row-major order, has m rows and n columns.
struct Result {
    T* base;
    Index m, n;
};

// ---- naive ------------------------------------------------------------------------------------------------------

// A block of M x N threads; neighbours in a warp read neighbouring columns of b.
template <int M, int N>
DEVICE void multiply_naive(const Factor& a, const Factor& b, const Result& c, const Place& p) {
    const Index i = p.row + threadIdx.x / N, j = p.column + threadIdx.x % N;
    if (i >= c.m || j >= c.n) return;
    S sum = identity();
    for (Index k = p.begin; k < p.end; ++k) sum = step(sum, a.at(i, k), b.at(j, k));
    c.base[i * c.n + j] = save(sum);
}

// ---- tiled and packed -------------------------------------------------------------------------------------------

// Adds to each thread's sum the products of tiles that wait in shared memory, as lines of M and of N for every k.
template <int M, int N>
DEVICE S add_tile(S sum, const S* a, const S* b, int depth) {
    const int row = threadIdx.x / N, column = threadIdx.x % N;
    for (int k = 0; k < depth; ++k) sum = step(sum, a[k * M + row], b[k * N + column]);
    return sum;
}

template <int M, int N>
DEVICE void save_element(S sum, const Result& c, const Place& p) {
    const Index i = p.row + threadIdx.x / N, j = p.column + threadIdx.x % N;
    if (i < c.m && j < c.n) c.base[i * c.n + j] = save(sum);
}

// Copies the K elements of LENGTH lines, from line `first` and from k on, to the order [k][line]. What is outside is
// zero, or anything: nothing comes of it.
template <int LENGTH, int K, int THREADS>
DEVICE void copy_tile(S* to, const Factor& from, Index first, Index k, Index end) {
    for (int at = threadIdx.x; at < LENGTH * K; at += THREADS) {
        // Neighbouring threads take the neighbours in memory.
        const int line = from.along == 1 ? at / K : at % LENGTH, depth = from.along == 1 ? at % K : at / LENGTH;
        const bool inside = first + line < from.length && k + depth < end;
        to[depth * LENGTH + line] = inside ? from.at(first + line, k + depth) : S();
    }
}

// A block of M x N threads.
template <int M, int N, int K>
DEVICE void multiply_tiled(const Factor& a, const Factor& b, const Result& c, const Place& p) {
    extern __shared__ uint4 memory[];
    S *const tile_a = reinterpret_cast<S*>(memory), *const tile_b = tile_a + M * K;
    S sum = identity();
    for (Index k = p.begin; k < p.end; k += K) {
        copy_tile<M, K, M * N>(tile_a, a, p.row, k, p.end);
        copy_tile<N, K, M * N>(tile_b, b, p.column, k, p.end);
        __syncthreads();  // separates the writes of the tiles from their reads
        sum = add_tile<M, N>(sum, tile_a, tile_b, (int)min((Index)K, p.end - k));
        __syncthreads();  // separates the reads from the writes of the next tiles
    }
    save_element<M, N>(sum, c, p);
}

// A block packs one tile: its elements as T, in the order [k][line].
template <int LENGTH, int K, int THREADS>
DEVICE void pack_tiles(const Factor& from, Index depth, T* to, Index at) {
    const Index tiles = (depth + K - 1) / K, first = at / tiles * LENGTH, k = at % tiles * K;
    to += at * LENGTH * K;
    for (int at = threadIdx.x; at < LENGTH * K; at += THREADS) {
        const Index line = first + at % LENGTH, along = k + at / LENGTH;
        to[at] = line < from.length && along < depth ? from.base[line * from.outer + along * from.along] : T();
    }
}

// A block moves SIDE numbers of SIDE lines, so that each line lies along k, `pitch` numbers after the one before, and ends
// with zeros.
template <int SIDE, int THREADS>
DEVICE void pack_lines(const Factor& from, Index depth, Index pitch, T* to, unsigned at) {
    __shared__ T tile[SIDE][SIDE + 1];
    const unsigned tiles = (unsigned)((depth + SIDE - 1) / SIDE);
    const Index first = (Index)(at / tiles) * SIDE, k = (Index)(at % tiles) * SIDE;
    const int lane = threadIdx.x % SIDE;
    for (int i = threadIdx.x / SIDE; i < SIDE; i += THREADS / SIDE) {
        // Neighbouring threads take the neighbours in memory.
        const int line = from.along == 1 ? i : lane, along = from.along == 1 ? lane : i;
        if (first + line < from.length && k + along < depth)
            tile[line][along] = from.base[(first + line) * from.outer + (k + along) * from.along];
    }
    __syncthreads();  // separates the writes of the tile from its reads
    for (int i = threadIdx.x / SIDE; i < SIDE; i += THREADS / SIDE)
        if (first + i < from.length && k + lane < pitch)
            to[(first + i) * pitch + k + lane] = k + lane < depth ? tile[i][lane] : T();
}

// A block of M x N threads; a and b are what pack_tiles left for this matrix of the batch.
template <int M, int N, int K>
DEVICE void multiply_packed(const T* a, const T* b, const Result& c, const Place& p) {
    extern __shared__ uint4 memory[];
    S *const tile_a = reinterpret_cast<S*>(memory), *const tile_b = tile_a + M * K;
    const Index tiles = (p.end + K - 1) / K;
    a += p.row / M * tiles * (M * K);
    b += p.column / N * tiles * (N * K);
    S sum = identity();
    for (Index k = 0; k < p.end; k += K, a += M * K, b += N * K) {
        for (int at = threadIdx.x; at < M * K; at += M * N) tile_a[at] = load(a[at]);
        for (int at = threadIdx.x; at < N * K; at += M * N) tile_b[at] = load(b[at]);
        __syncthreads();  // separates the writes of the tiles from their reads
        sum = add_tile<M, N>(sum, tile_a, tile_b, (int)min((Index)K, p.end - k));
        __syncthreads();  // separates the reads from the writes of the next tiles
    }
    save_element<M, N>(sum, c, p);
}

// ---- Sums cut along k -------------------------------------------------------------------------------------------

// Combines the sums of all blocks of a tile, in the order of k, and returns whether this block has them: the last to
// come, which leaves the ticket at zero. These are the sums of `threads` threads, which together() makes wait for all.
template <int COUNT, class Together>
DEVICE bool combine_parts(S (&sums)[COUNT], const Place& p, void* parts, void* tickets, int thread, int threads,
                          const Together& together) {
    if (p.splits == 1) return true;
    S* const all = static_cast<S*>(parts) + p.tile * p.splits * COUNT * threads + thread;
    unsigned* const ticket = static_cast<unsigned*>(tickets) + p.tile;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) all[(Index)(p.split * COUNT + i) * threads] = sums[i];
    __threadfence();  // a block that sees the ticket sees the sums
    __shared__ bool last;
    together();  // separates all threads' sums from the ticket
    if (thread == 0) last = atomicAdd(ticket, 1u) == (unsigned)p.splits - 1;
    together();  // separates the write of last from its reads
    if (!last) return false;
    __threadfence();
    if (thread == 0) *ticket = 0;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = all[(Index)i * threads];
#pragma unroll 1
    for (int split = 1; split < p.splits; ++split)
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = combine(sums[i], all[(Index)(split * COUNT + i) * threads]);
    return true;
}

template <int COUNT>
DEVICE bool combine_parts(S (&sums)[COUNT], const Place& p, void* parts, void* tickets) {
    return combine_parts(sums, p, parts, tickets, threadIdx.x, blockDim.x, [] { __syncthreads(); });
}

// ---- conflict_free ----------------------------------------------------------------------------------------------

// Numbers in 16 bytes of shared memory, which a lane reads at once.
constexpr int ROW = 16 / (int)sizeof(S);
struct alignas(16) Row {
    S at[ROW];
};

// The tile of a thread, and of a warp, whose lanes stand in 4 rows and 8 columns: 2 x 2 of them side by side, so that each
// quarter of a warp reads few different rows of a tile and few columns.
constexpr int ROWS = sizeof(S) > 8 ? 4 : 8, COLUMNS = sizeof(S) > 4 ? 4 : 8;
constexpr int WARP_ROWS = 4 * ROWS, WARP_COLUMNS = 8 * COLUMNS;

// How threads take the vectors of a tile of HEIGHT rows with ACROSS vectors each: `row` and `vector` of the thread's e-th of
// EACH. Where whole rows fit the threads, the rows of a thread are DOWN apart, a number all threads share.
template <int HEIGHT, int ACROSS, int THREADS>
struct Spread {
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
template <int LENGTH, int K, int THREADS, int VECTOR, bool ALONG>
struct Tile {
    static constexpr int ACROSS = (ALONG ? K : LENGTH) / VECTOR;
    using Mine = Spread<ALONG ? LENGTH : K, ACROSS, THREADS>;
    static constexpr int BANKS = 128 / (int)sizeof(S), MOST = BANKS / ROW;
    static constexpr int SPREAD = !ALONG ? 1 : ACROSS < MOST ? ACROSS : MOST, UNIT = BANKS / SPREAD;
    static_assert(LENGTH % BANKS == 0, "lines are changed within a multiple of the banks");
    T held[Mine::EACH][VECTOR];
    const T* next;  // what the thread reads first of the next tile

    static DEVICE int changed(int line, int k) { return line ^ k / VECTOR % SPREAD * UNIT * ALONG; }

    // Begins at line `first` and at k = begin.
    DEVICE void start(const Factor& from, Index first, Index begin) {
        const Index across = Mine::vector(0) * VECTOR, down = Mine::row(0);
        next = from.base + (first + (ALONG ? down : across)) * from.outer + (begin + (ALONG ? across : down)) * from.along;
    }

    // Reads the next tile, all of which lies inside.
    DEVICE void fetch_whole(const Factor& from) {
        const Index down = ALONG ? from.outer : from.along, right = ALONG ? from.along : from.outer;  // strides
#pragma unroll
        for (int e = 0; e < Mine::EACH; ++e) {
            if (Mine::beyond(e)) break;
            const int rows = Mine::row(e) - Mine::row(0), columns = (Mine::vector(e) - Mine::vector(0)) * VECTOR;
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
    DEVICE void fetch(const Factor& from, Index first, Index begin, Index end) {
        const Index rows = ALONG ? from.length - first : end - begin, columns = ALONG ? end - begin : from.length - first;
        const Index down = ALONG ? from.outer : from.along, right = ALONG ? from.along : from.outer;  // strides
        const T* const start = from.base + first * from.outer + begin * from.along;
#pragma unroll
        for (int e = 0; e < Mine::EACH; ++e) {
            const int row = Mine::row(e), column = Mine::vector(e) * VECTOR;
            if (Mine::beyond(e)) break;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) {
                const bool inside = row < rows && column + i < columns;
                held[e][i] = inside ? start[row * down + (column + i) * right] : T();
            }
        }
    }

    DEVICE void put(S* shared) const {
#pragma unroll
        for (int e = 0; e < Mine::EACH; ++e) {
            const int row = Mine::row(e), column = Mine::vector(e) * VECTOR;
            if (Mine::beyond(e)) break;
            if constexpr (!ALONG && VECTOR % ROW == 0) {
                Row* const to = reinterpret_cast<Row*>(shared + row * LENGTH + column);
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) to[i / ROW].at[i % ROW] = load(held[e][i]);
            } else {
                // Where rows are whole parts of the banks apart, all are changed alike.
                constexpr bool ALIKE = ALONG && Mine::EVEN && Mine::DOWN % BANKS == 0;
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) {
                    const int line = ALONG ? row : column + i, k = ALONG ? column + i : row;
                    const int place = ALIKE ? changed(Mine::row(0), column) + e * Mine::DOWN : changed(line, k);
                    shared[k * LENGTH + place] = load(held[e][i]);
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

// A block of (M / WARP_ROWS) x (N / WARP_COLUMNS) warps.
template <int M, int N, int K, int A_VECTOR, bool A_ALONG, int B_VECTOR, bool B_ALONG, bool C_VECTOR>
DEVICE void multiply_conflict_free(
    const Factor& a, const Factor& b, const Result& c, const Place& p, void* parts, void* tickets) {
    constexpr int WARPS = N / WARP_COLUMNS, THREADS = M / WARP_ROWS * WARPS * WARP;
    using TileA = Tile<M, K, THREADS, A_VECTOR, A_ALONG>;
    using TileB = Tile<N, K, THREADS, B_VECTOR, B_ALONG>;
    extern __shared__ uint4 memory[];
    S *shared_a = reinterpret_cast<S*>(memory), *shared_b = shared_a + 2 * M * K;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int lane_row = lane / 16 * 2 + lane % 2, lane_column = lane / 2 % 8;
    const int row = warp / WARPS * WARP_ROWS + lane_row * ROW, column = warp % WARPS * WARP_COLUMNS + lane_column * ROW;

    S sums[ROWS * COLUMNS];
#pragma unroll
    for (int i = 0; i < ROWS * COLUMNS; ++i) sums[i] = identity();
    const auto add_products = [&](int k, const S* from_a, const S* from_b) {
        S x[ROWS], y[COLUMNS];
        TileA::template get<4>(x, from_a, row, k);
        TileB::template get<8>(y, from_b, column, k);
#pragma unroll
        for (int i = 0; i < ROWS * COLUMNS; ++i) sums[i] = step(sums[i], x[i / COLUMNS], y[i % COLUMNS]);
    };

    TileA tile_a;
    TileB tile_b;
    int stage = 0;
    const auto put = [&] {
        tile_a.put(shared_a + stage * M * K);
        tile_b.put(shared_b + stage * N * K);
        __syncthreads();  // separates reads of the last tiles from the writes after the next, and those from their reads
    };
    tile_a.fetch(a, p.row, p.begin, p.end);
    tile_b.fetch(b, p.column, p.begin, p.end);
    put();
    // Tiles with a whole one behind them, then the others.
    const bool inside = p.row + M <= a.length && p.column + N <= b.length;
    const int tiles = (int)((p.end - p.begin + K - 1) / K), quick = inside ? (int)((p.end - p.begin) / K) - 1 : 0;
    tile_a.start(a, p.row, p.begin + K);
    tile_b.start(b, p.column, p.begin + K);
    int at = 0;
#pragma unroll 1
    for (; at < quick; ++at) {
        tile_a.fetch_whole(a);
        tile_b.fetch_whole(b);
        const S *const from_a = shared_a + stage * M * K, *const from_b = shared_b + stage * N * K;
#pragma unroll
        for (int i = 0; i < K; ++i) add_products(i, from_a, from_b);
        stage ^= 1;
        put();
    }
#pragma unroll 1
    for (; at < tiles; ++at) {
        const Index k = p.begin + (Index)at * K;
        if (at + 1 < tiles) {
            tile_a.fetch(a, p.row, k + K, p.end);
            tile_b.fetch(b, p.column, k + K, p.end);
        }
        const S *const from_a = shared_a + stage * M * K, *const from_b = shared_b + stage * N * K;
        const int depth = (int)min((Index)K, p.end - k);
#pragma unroll 1
        for (int i = 0; i < depth; ++i) add_products(i, from_a, from_b);
        stage ^= 1;
        if (at + 1 < tiles) put();
    }

    if (!combine_parts(sums, p, parts, tickets)) return;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const Index i = p.row + row + r / ROW * 4 * ROW + r % ROW;
        if (i >= c.m) continue;
#pragma unroll
        for (int s = 0; s < COLUMNS; s += ROW) {
            const Index j = p.column + column + s * 8;
            T saved[ROW];
#pragma unroll
            for (int e = 0; e < ROW; ++e) saved[e] = save(sums[r * COLUMNS + s + e]);
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

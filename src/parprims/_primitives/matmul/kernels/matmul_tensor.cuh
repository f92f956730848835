// Matrix product on tensor cores by the instructions of a warp (mma.sync, compute capability 8.0 and later).
//
// KIND says which numbers are multiplied, and how:
//   HALF, BFLOAT  16-bit floats, summed in float32: m16n8k16, with fragments loaded by ldmatrix, which can transpose
//   TF32          float32 rounded to 10 fraction bits: m16n8k8
//   SPLIT         float32 as the sum of two such numbers. The second number, the remainder, is multiplied by UNITS, so
//                 that it keeps its digits if the first number is near the smallest float. There are three products, in
//                 two separate sums. A tensor core truncates when it adds, so long sums would lose the digits that the
//                 split has gained. Therefore both sums are added, after every K products, to sums in ordinary
//                 registers, which round to nearest.
//   DOUBLE        float64, or float32 widened to it: m16n8k8, and m8n8k4 before compute capability 9.0
// Rounding float32 makes numbers near infinity infinite, and an infinity leaves a remainder that is NaN. Therefore sums
// that are not finite are computed again in float32.
// Asynchronous copies fill a ring of STAGES tiles in shared memory while older tiles are multiplied. The fragments of
// the next step are loaded before they are needed, also across the end of a tile. Elements outside the factors are
// copied as zeros. Rows in shared memory are swizzled: within each 128 bytes, parts of 16 bytes are permuted by the
// number of the row. So neither copies nor ldmatrix nor reads of single numbers have bank conflicts. Rows whose length
// does not allow a swizzle are padded.
//
// Template parameters besides those in matmul.cu:
//   KIND            see above
//   DOWN, ACROSS    the warps of a block, which divide its tile
//   STAGES          tiles in shared memory
//
// S. Markidis et al., NVIDIA Tensor Core Programmability, Performance & Precision, IPDPSW 2018; H. Ootomo and R.
// Yokota, Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak
// performance, IJHPCA 36(4), 2022.

#include "common.cuh"
#include "matmul_common.cuh"

enum Kind { HALF, BFLOAT, TF32, SPLIT, DOUBLE };

// The register of a fragment, the numbers along k of one instruction, and the registers for one number.
template <Kind KIND>
struct Fragment {
    using Register = unsigned;
    using Sum = float;
    static constexpr int DEPTH = KIND == HALF || KIND == BFLOAT ? 16 : 8, PARTS = KIND == SPLIT ? 2 : 1;
};
template <>
struct Fragment<DOUBLE> {
    using Register = double;
    using Sum = double;
    static constexpr int DEPTH = 8, PARTS = 1;
};

// c += a b for a tile of 16 x 8. Lane 4 g + t holds
//   of c the elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1);
//   of a in register i row g + 8 (i % 2) and k = t + 4 (i / 2);
//   of b in register i column g and k = t + 4 i.
// A register with two 16-bit numbers has k = 2t and 2t + 1 in place of t, and 8 in place of 4.
template <Kind KIND>
DEVICE void multiply_add(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    if constexpr (KIND == HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else if constexpr (KIND == BFLOAT)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    __trap();
#endif
}
template <Kind KIND>
DEVICE void multiply_add(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
    asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#elif __CUDA_ARCH__ >= 800
#pragma unroll
    for (int i = 0; i < 4; ++i)
        asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+d"(c[i % 2 * 2]), "+d"(c[i % 2 * 2 + 1])
            : "d"(a[i]), "d"(b[i / 2]));
#else
    __trap();
#endif
}

// Loads four tiles of 8 x 8 16-bit numbers as registers of fragments. Lanes 8 i to 8 i + 7 point to the rows of tile i.
// TRANSPOSED: rows become columns.
template <bool TRANSPOSED>
DEVICE void load_matrices(unsigned& w, unsigned& x, unsigned& y, unsigned& z, const void* row) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(row);
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w), "=r"(x), "=r"(y), "=r"(z)
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w), "=r"(x), "=r"(y), "=r"(z)
                     : "r"(address)
                     : "memory");
}

// Rounds a float32 to the 10 fraction bits that a tensor core multiplies.
DEVICE unsigned rounded(float x) {
    unsigned y = 0;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));  // one instruction; ties go to even
#elif __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
#endif
    return y;
}

constexpr float UNITS = 2048;  // a remainder is smaller than its number by this factor, at least

// Converts a number to the registers of its fragments. SPLIT rounds by integer arithmetic, and if x is not finite, the
// remainder is NaN. The tensor core truncates at most one bit of the remainder, which causes no bias.
template <Kind KIND, class Register, int PARTS, class Number>
DEVICE void split(Register (&to)[PARTS], Number x) {
    if constexpr (KIND == DOUBLE) {
        to[0] = x;
    } else if constexpr (KIND == SPLIT) {
        to[0] = (__float_as_uint(x) + 0x1000) & ~0x1fffu;
        to[1] = __float_as_uint((x - __uint_as_float(to[0])) * UNITS);
    } else {
        to[0] = rounded(x);
    }
}

// Copies `count` of N elements to shared memory, asynchronously if they have 4 bytes or more. The other elements become
// zero.
template <int N, class T>
DEVICE void copy_or_clear(T* to, const T* from, int count) {
    constexpr int BYTES = N * sizeof(T);
#if __CUDA_ARCH__ >= 800
    if constexpr (BYTES >= 4) {
        const unsigned address = (unsigned)__cvta_generic_to_shared(to);
        const int bytes = count * (int)sizeof(T);
        if constexpr (BYTES == 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
                         : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(BYTES),
                         "r"(bytes)
                         : "memory");
        return;
    }
#endif
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = i < count ? from[i] : T();
}

// Waits until at most LEFT groups of this thread's asynchronous copies are in flight.
template <int LEFT>
DEVICE void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// Copies the tiles of a factor, one after the other along k, to shared memory. A tile has rows: LENGTH lines of K
// numbers (ALONG), or K rows with a number of every line. They are copied in vectors to Layout::place(row, column),
// which is Layout::PITCH times the row plus an offset that depends on row % 8 and the column alone. Numbers from `end`
// on, and past the last line, become zero.
template <class T, class Layout, int LENGTH, int K, int THREADS, int VECTOR, bool ALONG>
struct TileCopies {
    using Map = ThreadMap<ALONG ? LENGTH : K, (ALONG ? K : LENGTH) / VECTOR, THREADS>;
    // A thread's rows have the same remainders modulo 8 again after this many of its vectors.
    static constexpr int PERIOD = Map::DOWN % 8 == 0 ? 1 : Map::DOWN % 4 == 0 ? 2 : Map::DOWN % 2 == 0 ? 4 : 8;
    const Factor<T>& from;
    const Index first, end, down, right;  // down and right are strides
    Index begin;                          // the beginning of the next tile
    const T* next;                        // the first element that this thread reads of the next tile
    int whole;                            // the number of tiles, from the next one on, that are inside the factor

    DEVICE TileCopies(const Factor<T>& from, Index first, Index begin, Index end)
        : from(from), first(first), end(end), down(ALONG ? from.outer : from.along),
          right(VECTOR > 1 ? 1 : ALONG ? from.along : from.outer), begin(begin),
          next(from.base + first * from.outer + begin * from.along),
          whole(first + LENGTH <= from.length ? (int)((end - begin) / K) : 0) {
        next += Map::row(0) * down + Map::vector(0) * VECTOR * right;
    }

    // Begins to copy the next tile.
    DEVICE void copy(T* shared) {
        if (--whole >= 0) {
            T* to[PERIOD];
            const T* at = next;
#pragma unroll
            for (int e = 0; e < Map::EACH; ++e) {
                const int row = Map::row(e), column = Map::vector(e) * VECTOR;
                if (Map::beyond(e)) break;
                if (!Map::EVEN) at = next + (row - Map::row(0)) * down + (column - Map::vector(0) * VECTOR) * right;
                if (!Map::EVEN || e < PERIOD) to[e % PERIOD] = shared + Layout::place(row, column);
                const int later = Map::EVEN ? e / PERIOD * PERIOD * Map::DOWN * Layout::PITCH : 0;
                using Vector = typename Word<VECTOR * sizeof(T)>::Type;
                copy_async(*reinterpret_cast<Vector*>(to[e % PERIOD] + later), *reinterpret_cast<const Vector*>(at));
                at += Map::DOWN * down;
                asm("" : "+l"(at));  // else the compiler replaces the sum by products with e
            }
        } else {
            const Index rows = ALONG ? from.length - first : end - begin,
                        columns = ALONG ? end - begin : from.length - first;
            const T* const start = from.base + first * from.outer + begin * from.along;
#pragma unroll 1
            for (int e = 0; e < Map::EACH; ++e) {
                const int row = Map::row(e), column = Map::vector(e) * VECTOR;
                if (Map::beyond(e)) break;
                const Index count = row < rows ? max((Index)0, min((Index)VECTOR, columns - column)) : 0;
                const T* const at = start + row * down + column * right;
                copy_or_clear<VECTOR>(shared + Layout::place(row, column), count ? at : from.base, (int)count);
            }
        }
        begin += K;
        next += K * from.along;
    }
};

// A tile of a factor in shared memory. A warp reads 16 bytes from each of 8 rows at a time (EIGHT), or 32 bytes from
// each of 4 rows.
template <class T, int LENGTH, int K, int THREADS, int VECTOR, bool ALONG>
struct PaddedTile {
    using Element = T;
    static constexpr int ROW = ALONG ? K : LENGTH, ROWS = ALONG ? LENGTH : K, PART = 16 / (int)sizeof(T);
    static constexpr bool SWIZZLED = ROW % (8 * PART) == 0, EIGHT = sizeof(T) == 2 || (sizeof(T) == 4 && ALONG);
    static constexpr int PITCH = ROW + (SWIZZLED ? 0 : EIGHT ? PART : 2 * PART), SIZE = ROWS * PITCH;
    static constexpr bool LINES = ALONG;  // whether rows are lines

    static DEVICE int place(int row, int column) {
        return row * PITCH + (SWIZZLED ? column ^ (EIGHT ? row % 8 : row % 4 * 2) * PART : column);
    }

    using Copies = TileCopies<T, PaddedTile, LENGTH, K, THREADS, VECTOR, ALONG>;

    static DEVICE const T* at(const T* shared, int line, int k) {
        return shared + (ALONG ? place(line, k) : place(k, line));
    }
};

// Reads the numbers of a thread from one tile after the other. at(line, k) is the number `line` lines and k numbers
// after the beginning of the thread's part; both are constants, multiples of LINE and DEPTH. So there are few swizzled
// places, and they are computed in advance.
template <class Shared, int LINE, int DEPTH>
struct TileReader {
    using T = typename Shared::Element;
    static constexpr int GRAIN = Shared::LINES ? DEPTH : LINE;
    static constexpr int CYCLE = Shared::SWIZZLED ? 8 * Shared::PART : GRAIN, COUNT = CYCLE / GRAIN;
    static_assert((Shared::LINES ? LINE : DEPTH) % (Shared::EIGHT ? 8 : 4) == 0, "all rows are swizzled alike");
    int places[COUNT];
    const T* from[COUNT];

    DEVICE TileReader(int line, int k) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            places[i] = Shared::LINES ? Shared::place(line, k + i * GRAIN) : Shared::place(k, line + i * GRAIN);
    }

    DEVICE void move_to(const T* tile) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) from[i] = tile + places[i];
    }

    DEVICE T at(int line, int k) const {
        const int row = Shared::LINES ? line : k, column = Shared::LINES ? k : line;
        return from[column % CYCLE / GRAIN][row * Shared::PITCH + column / CYCLE * CYCLE];
    }
};

// Computes the sums of a thread that are not finite again, by a chain of products in float32: they may be infinite or
// NaN only because numbers were rounded or split. where(at, i, j) sets i and j to the place in c of the sum `at`.
template <class Op, int COUNT, class Where>
DEVICE void recompute_not_finite(const typename Op::Sum (&sums)[COUNT], const Factor<typename Op::Element>& a,
                           const Factor<typename Op::Element>& b, const Result<typename Op::Element>& c, Index depth,
                           const Where& where) {
    unsigned wanted[(COUNT + 31) / 32] = {};
#pragma unroll
    for (int at = 0; at < COUNT; ++at)
        if (sums[at] - sums[at] != 0) wanted[at / 32] |= 1u << at % 32;
#pragma unroll
    for (int word = 0; word < (COUNT + 31) / 32; ++word) {
#pragma unroll 1
        for (unsigned left = wanted[word]; left; left &= left - 1) {
            Index i, j;
            where(word * 32 + __ffs((int)left) - 1, i, j);
            if (i >= c.m || j >= c.n) continue;
            typename Op::Sum sum = 0;
#pragma unroll 1
            for (Index k = 0; k < depth; ++k) sum = Op::step(sum, Op::load(a.at(i, k)), Op::load(b.at(j, k)));
            c.base[i * c.n + j] = Op::save(sum);
        }
    }
}

// Stores the sums of a thread in c, in pairs of adjacent columns. where(at, i, j) sets i and j to the place of the
// first sum of a pair.
template <class Op, bool C_VECTOR, int COUNT, class Where>
DEVICE void save_pairs(
    const typename Op::Sum (&sums)[COUNT], const Result<typename Op::Element>& c, const Where& where) {
    using T = typename Op::Element;
#pragma unroll
    for (int at = 0; at < COUNT; at += 2) {
        Index i, j;
        where(at, i, j);
        if (i >= c.m) continue;
        const T saved[2] = {Op::save(sums[at]), Op::save(sums[at + 1])};
        T* const to = c.base + i * c.n + j;
        if (C_VECTOR && j + 1 < c.n) {
            using Vector = typename Word<2 * sizeof(T)>::Type;
            Vector vector;
            memcpy(&vector, saved, sizeof(Vector));
            *reinterpret_cast<Vector*>(to) = vector;
        } else {
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (j + e < c.n) to[e] = saved[e];
        }
    }
}

// Calls take(register, number) for a thread's registers of a fragment: take_rows for 8 numbers along k of 16 lines of
// the left factor, take_columns for 8 numbers along k of 8 lines of the right factor.
template <class Shared, class Take>
DEVICE void take_rows(const typename Shared::Element* from, int line, int k, const Take& take) {
    const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int i = 0; i < 4; ++i) take(i, *Shared::at(from, line + lane / 4 + i % 2 * 8, k + lane % 4 + i / 2 * 4));
}
template <class Shared, class Take>
DEVICE void take_columns(const typename Shared::Element* from, int line, int k, const Take& take) {
    const int lane = threadIdx.x % WARP_SIZE;
#pragma unroll
    for (int i = 0; i < 2; ++i) take(i, *Shared::at(from, line + lane / 4, k + lane % 4 + i * 4));
}

// The fragments that a warp multiplies in a step of DEPTH along k. They make up TALL x BROAD instructions.
template <Kind KIND, int TALL, int BROAD>
struct WarpStep {
    using S = typename Fragment<KIND>::Sum;
    static constexpr int DEPTH = Fragment<KIND>::DEPTH, PARTS = Fragment<KIND>::PARTS;
    using Register = typename Fragment<KIND>::Register;
    Register x[PARTS][TALL][4], y[PARTS][BROAD][2];

    template <int COUNT, int EACH, class T>
    static DEVICE void keep(Register (&to)[PARTS][COUNT][EACH], int tile, int at, T number) {
        Register both[PARTS];
        split<KIND>(both, number);
#pragma unroll
        for (int part = 0; part < PARTS; ++part) to[part][tile][at] = both[part];
    }

    // Loads the fragments of the warp's part of two tiles, which begins at lines `row` and `column`, from k on.
    template <class SharedA, class SharedB, class T>
    DEVICE void load(const T* from_a, const T* from_b, int row, int column, int k) {
        if constexpr (KIND == HALF || KIND == BFLOAT) {
            const int lane = threadIdx.x % WARP_SIZE;
            // The row of a quarter of a fragment that this lane points to. The second quarter of a is further down, the
            // second quarter of b further along k.
            const int near = lane % 8, second = lane / 8 % 2 * 8, later = lane / 16 * 8;
#pragma unroll
            for (int i = 0; i < TALL; ++i) {
                const int line = row + i * 16 + second;
                const T* const at = SharedA::LINES ? SharedA::at(from_a, line + near, k + later)
                                                   : SharedA::at(from_a, line, k + later + near);
                load_matrices<!SharedA::LINES>(x[0][i][0], x[0][i][1], x[0][i][2], x[0][i][3], at);
            }
#pragma unroll
            for (int j = 0; j < BROAD; j += 2) {
                const int line = column + j * 8 + later;
                const T* const at = SharedB::LINES ? SharedB::at(from_b, line + near, k + second)
                                                   : SharedB::at(from_b, line, k + second + near);
                load_matrices<!SharedB::LINES>(y[0][j][0], y[0][j][1], y[0][j + 1][0], y[0][j + 1][1], at);
            }
        } else {
#pragma unroll
            for (int i = 0; i < TALL; ++i)
                take_rows<SharedA>(from_a, row + i * 16, k, [&](int at, T number) { keep(x, i, at, number); });
#pragma unroll
            for (int j = 0; j < BROAD; ++j)
                take_columns<SharedB>(from_b, column + j * 8, k, [&](int at, T number) { keep(y, j, at, number); });
        }
    }

    // The place in the warp's tile of a thread's sum number `at`.
    static DEVICE int row_of(int at) { return at / 4 / BROAD * 16 + at % 4 / 2 * 8 + threadIdx.x % WARP_SIZE / 4; }
    static DEVICE int column_of(int at) { return at / 4 % BROAD * 8 + threadIdx.x % 4 * 2 + at % 2; }

    // Adds the products to `sums`; SPLIT adds those with remainders to `rest`.
    DEVICE void multiply(S (&sums)[TALL][BROAD][4], S (&rest)[TALL][BROAD][4]) const {
#pragma unroll
        for (int i = 0; i < TALL; ++i)
#pragma unroll
            for (int j = 0; j < BROAD; ++j) {
                if constexpr (KIND == SPLIT) {
                    multiply_add<KIND>(rest[i][j], x[1][i], y[0][j]);
                    multiply_add<KIND>(rest[i][j], x[0][i], y[1][j]);
                }
                multiply_add<KIND>(sums[i][j], x[0][i], y[0][j]);
            }
    }
};

// A block has DOWN x ACROSS warps. Each has a tile of M / DOWN x N / ACROSS.
template <class Op, Kind KIND, int M, int N, int K, int DOWN, int ACROSS, int STAGES, int BYTES, int A_VECTOR,
          bool A_ALONG,
          int B_VECTOR, bool B_ALONG, bool C_VECTOR, class Products>
DEVICE void multiply_tensor(const Products& products, void* parts, void* tickets) {
    using T = typename Op::Element;
    using S = typename Op::Sum;
    constexpr int THREADS = DOWN * ACROSS * WARP_SIZE, HIGH = M / DOWN, WIDE = N / ACROSS;
    constexpr int TALL = HIGH / 16, BROAD = WIDE / 8;  // instructions
    constexpr int DEPTH = Fragment<KIND>::DEPTH;
    using SharedA = PaddedTile<T, M, K, THREADS, A_VECTOR, A_ALONG>;
    using SharedB = PaddedTile<T, N, K, THREADS, B_VECTOR, B_ALONG>;
    static_assert(HIGH % 16 == 0 && WIDE % 16 == 0 && K % DEPTH == 0, "a warp's tile is made of whole fragments");
    static_assert(STAGES * (SharedA::SIZE + SharedB::SIZE) * sizeof(T) + 128 <= BYTES,
                  "the stages fit in shared memory");
    const auto work = products.template work<M, N>(blockIdx.x);
    const auto &a = work.a, &b = work.b;
    const auto& c = work.c;
    const WorkTile& part = work.tile;
    extern __shared__ __align__(128) uint4 memory[];  // aligned, so that rows of 128 bytes are
    T *const shared_a = reinterpret_cast<T*>(memory), *const shared_b = shared_a + STAGES * SharedA::SIZE;
    const int warp = threadIdx.x / WARP_SIZE;
    const int row = warp / ACROSS * HIGH, column = warp % ACROSS * WIDE;

    S sums[TALL * BROAD * 4];
#pragma unroll
    for (int i = 0; i < TALL * BROAD * 4; ++i) sums[i] = 0;
    // The sums of the instructions, for SPLIT since they were last added to `sums`; and the sums of products with
    // remainders.
    S tile[TALL][BROAD][4] = {}, rest[TALL][BROAD][4] = {};

    const int tiles = (int)((part.end - part.begin + K - 1) / K);
    typename SharedA::Copies copies_a(a, part.row, part.begin, part.end);
    typename SharedB::Copies copies_b(b, part.column, part.begin, part.end);
    const auto copy = [&](int at) {
        if (at < tiles) {
            copies_a.copy(shared_a + at % STAGES * SharedA::SIZE);
            copies_b.copy(shared_b + at % STAGES * SharedB::SIZE);
        }
        end_group_of_staged();
    };
#pragma unroll
    for (int at = 0; at < STAGES - 1; ++at) copy(at);

    // Fragments are double buffered: those of the next step are loaded before the products of this one. DOUBLE has too
    // few registers for that.
    constexpr int STEPS = K / DEPTH, TURNS = STEPS > 1 && KIND != DOUBLE ? 2 : 1;
    WarpStep<KIND, TALL, BROAD> steps[TURNS];
    const auto load = [&](int turn, int at, int k) {
        steps[turn].template load<SharedA, SharedB>(
            shared_a + at % STAGES * SharedA::SIZE, shared_b + at % STAGES * SharedB::SIZE, row, column, k);
    };
    // Separates all threads' copies of a tile from its reads, and reads of the last tile from copies in its place.
    const auto next_tile = [] {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
    };
    next_tile();
    load(0, 0, 0);

#pragma unroll 1
    for (int at = 0; at < tiles; ++at) {
        copy(at + STAGES - 1);
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            if (TURNS == 1) steps[0].multiply(tile, rest);
            if (s + 1 < STEPS) {
                load((s + 1) % TURNS, at, (s + 1) * DEPTH);
            } else {
                next_tile();
                if (at + 1 < tiles) load(0, at + 1, 0);
            }
            if (TURNS == 2) steps[s % TURNS].multiply(tile, rest);
        }
        if constexpr (KIND == SPLIT) {
#pragma unroll
            for (int i = 0; i < TALL * BROAD * 4; ++i) {
                const int down = i / 4 / BROAD, right = i / 4 % BROAD;
                sums[i] = tile[down][right][i % 4] + (rest[down][right][i % 4] * (1 / UNITS) + sums[i]);
                tile[down][right][i % 4] = rest[down][right][i % 4] = 0;
            }
        }
    }
    wait_for_copies<0>();
    if constexpr (KIND != SPLIT) {
#pragma unroll
        for (int i = 0; i < TALL * BROAD * 4; ++i) sums[i] = tile[i / 4 / BROAD][i / 4 % BROAD][i % 4];
    }

    if (!combine_parts<Op, THREADS>(sums, part, parts, tickets)) return;
    const auto where = [&](int at, Index& i, Index& j) {
        i = part.row + row + WarpStep<KIND, TALL, BROAD>::row_of(at);
        j = part.column + column + WarpStep<KIND, TALL, BROAD>::column_of(at);
    };
    save_pairs<Op, C_VECTOR>(sums, c, where);
    if constexpr (KIND == TF32 || KIND == SPLIT) recompute_not_finite<Op>(sums, a, b, c, products.k, where);
}

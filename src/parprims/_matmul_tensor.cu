// Matrix product on tensor cores, by the instructions of a warp (mma.sync, compute capability 8.0 and later).
//
// Stands after _matmul.cu, whose view of a batch of products it takes. KIND says what is multiplied:
//   HALF, BFLOAT  16-bit floats, summed in float32: m16n8k16, fragments by ldmatrix, which also transposes
//   TF32          float32 rounded to 10 fraction bits: m16n8k8
//   SPLIT         float32 as the sum of two such numbers, the second in units of 1 / UNITS, so that it keeps its digits
//                 where the first is close to the least a float can be: three products, which two sums keep apart. A
//                 tensor core truncates what it adds, so that long sums lose what the split has won: every K products
//                 both are added to sums in ordinary registers, which round to nearest.
//   DOUBLE        float64, or float32 widened to it: m16n8k8, and m8n8k4 before compute capability 9.0
// Where a float32 is split, infinity leaves a remainder that is NaN, and numbers close to it are rounded to it: an element
// that is not finite in the end is computed again by a chain of products in float32.
//
// Phases: copies to a ring of STAGES tiles in shared memory go on past the registers while older tiles are multiplied, and
// so do loads of the fragments of the next step, over the end of a tile too; what lies outside the factors arrives as
// zeros. Within each 128 bytes of a row the parts of 16 are exchanged as the row says, so that neither copies nor
// ldmatrix nor the reads of single numbers meet bank conflicts; rows of other lengths are padded.
//
// S. Markidis et al., NVIDIA Tensor Core Programmability, Performance & Precision, IPDPSW 2018; H. Ootomo and R. Yokota,
// Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance,
// IJHPCA 36(4), 2022.

enum Kind { HALF, BFLOAT, TF32, SPLIT, DOUBLE };

// A register of a fragment, and the numbers of k that an instruction takes.
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

// c += a b on a tile of 16 x 8. Lane 4 g + t holds of c the elements (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
// Register i of a has row g + 8 (i % 2), register i of b column g. In 32-bit registers and wider their k is t + 4 (i / 2)
// and t + 4 i; a pair of 16-bit numbers has k = 2t and 2t + 1, and 8 more where the others have 4 more.
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

// Four tiles of 8 x 8 16-bit numbers, whose rows the lanes point to, 8 to a tile, as registers of fragments; the rows
// become columns if TRANSPOSED.
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

// Returns a float32 rounded to the 10 fraction bits a tensor core multiplies.
DEVICE unsigned rounded(float x) {
    unsigned y = 0;
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));  // one instruction; ties go to even numbers
#elif __CUDA_ARCH__ >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
#endif
    return y;
}

constexpr float UNITS = 2048;  // as many as a remainder is smaller than what it is left by, at least

// A number as the registers of the fragments it goes to. SPLIT rounds by integers: what is not finite leaves a remainder that
// is NaN. Of the remainder the tensor core cuts at most one digit, which has no bias.
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

// Copies `count` of N elements to shared memory, and zeros for the others, past the registers where they are wide enough.
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

// Waits until no more than LEFT groups of this thread's copies are under way.
template <int LEFT>
DEVICE void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// Copies tiles of a factor that follow each other along k to shared memory: rows, which are LENGTH lines of K numbers (ALONG)
// or K rows with a number of every line, in vectors to Layout::place(row, column). That is Layout::PITCH times row and what
// depends on row % 8 alone. From `end` on, and beyond the last line, there are zeros.
template <class T, class Layout, int LENGTH, int K, int THREADS, int VECTOR, bool ALONG>
struct TileCopies {
    using Map = ThreadMap<ALONG ? LENGTH : K, (ALONG ? K : LENGTH) / VECTOR, THREADS>;
    // After so many vectors of a thread its rows have the same remainder modulo 8.
    static constexpr int PERIOD = Map::DOWN % 8 == 0 ? 1 : Map::DOWN % 4 == 0 ? 2 : Map::DOWN % 2 == 0 ? 4 : 8;
    const Factor<T>& from;
    const Index first, end, down, right;  // down and right are strides
    Index begin;                          // of the next tile
    const T* next;                        // what the thread reads first of it
    int whole;                            // tiles from it on that lie inside

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
                asm("" : "+l"(at));  // keeps the sum from being written as products with e
            }
        } else {
            const Index rows = ALONG ? from.length - first : end - begin, columns = ALONG ? end - begin : from.length - first;
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

// A tile of a factor in shared memory. A warp reads at once 16 bytes of 8 rows, or 32 of 4.
template <class T, int LENGTH, int K, int THREADS, int VECTOR, bool ALONG>
struct PaddedTile {
    using Element = T;
    static constexpr int ROW = ALONG ? K : LENGTH, ROWS = ALONG ? LENGTH : K, PART = 16 / (int)sizeof(T);
    static constexpr bool EXCHANGED = ROW % (8 * PART) == 0, EIGHT = sizeof(T) == 2 || (sizeof(T) == 4 && ALONG);
    static constexpr int PITCH = ROW + (EXCHANGED ? 0 : EIGHT ? PART : 2 * PART), SIZE = ROWS * PITCH;
    static constexpr bool LINES = ALONG;  // are rows

    static DEVICE int place(int row, int column) {
        return row * PITCH + (EXCHANGED ? column ^ (EIGHT ? row % 8 : row % 4 * 2) * PART : column);
    }

    using Copies = TileCopies<T, PaddedTile, LENGTH, K, THREADS, VECTOR, ALONG>;

    static DEVICE const T* at(const T* shared, int line, int k) {
        return shared + (ALONG ? place(line, k) : place(k, line));
    }
};

// What a thread reads of tiles that follow each other: numbers a constant way, of `line` lines and `k` along k, from where its
// part begins, at places known before. LINE and DEPTH are what these ways are multiples of.
template <class Shared, int LINE, int DEPTH>
struct TileReader {
    using T = typename Shared::Element;
    static constexpr int GRAIN = Shared::LINES ? DEPTH : LINE;
    static constexpr int CYCLE = Shared::EXCHANGED ? 8 * Shared::PART : GRAIN, COUNT = CYCLE / GRAIN;
    static_assert((Shared::LINES ? LINE : DEPTH) % (Shared::EIGHT ? 8 : 4) == 0, "parts are exchanged alike");
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

// Computes again, in float32 from the first to the last product, the sums of a thread that are not finite: some may only be that
// because of how numbers were split or rounded. where(at, i, j) says which elements of c they are.
template <class Op, int COUNT, class Where>
DEVICE void multiply_again(const typename Op::Sum (&sums)[COUNT], const Factor<typename Op::Element>& a,
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

// Writes the sums of a thread to c: two by two side by side in rows, those at `at` and behind it where where(at, i, j) says.
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

// Calls take(register, number) for what a thread has of 8 numbers along k of 16 lines of the left factor, of 8 of the right.
template <class Shared, class Take>
DEVICE void take_rows(const typename Shared::Element* from, int line, int k, const Take& take) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 4; ++i) take(i, *Shared::at(from, line + lane / 4 + i % 2 * 8, k + lane % 4 + i / 2 * 4));
}
template <class Shared, class Take>
DEVICE void take_columns(const typename Shared::Element* from, int line, int k, const Take& take) {
    const int lane = threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 2; ++i) take(i, *Shared::at(from, line + lane / 4, k + lane % 4 + i * 4));
}

// What a warp multiplies in a step of DEPTH along k: TALL x BROAD tiles of an instruction.
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

    // Loads the warp's part of tiles in shared memory, which begins at (row, column), from k on.
    template <class SharedA, class SharedB, class T>
    DEVICE void load(const T* from_a, const T* from_b, int row, int column, int k) {
        if constexpr (KIND == HALF || KIND == BFLOAT) {
            const int lane = threadIdx.x % WARP;
            // The lane's row in the quarter of a fragment that it points to: of a quarters go down first, of b along k.
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

    // Where in the warp's tile the sum of a thread is that has the number `at`, counted through its tiles.
    static DEVICE int row_of(int at) { return at / 4 / BROAD * 16 + at % 4 / 2 * 8 + threadIdx.x % WARP / 4; }
    static DEVICE int column_of(int at) { return at / 4 % BROAD * 8 + threadIdx.x % 4 * 2 + at % 2; }

    // Adds the products to sums, for SPLIT those with remainders to others.
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

// A block of DOWN x ACROSS warps, each with a tile of M / DOWN x N / ACROSS, and BYTES of dynamic shared memory.
template <class Op, Kind KIND, int M, int N, int K, int DOWN, int ACROSS, int STAGES, int BYTES, int A_VECTOR, bool A_ALONG,
          int B_VECTOR, bool B_ALONG, bool C_VECTOR, class Products>
DEVICE void multiply_tensor(const Products& products, void* parts, void* tickets) {
    using T = typename Op::Element;
    using S = typename Op::Sum;
    constexpr int THREADS = DOWN * ACROSS * WARP, HIGH = M / DOWN, WIDE = N / ACROSS;
    constexpr int TALL = HIGH / 16, BROAD = WIDE / 8;  // tiles of an instruction
    constexpr int DEPTH = Fragment<KIND>::DEPTH;
    using SharedA = PaddedTile<T, M, K, THREADS, A_VECTOR, A_ALONG>;
    using SharedB = PaddedTile<T, N, K, THREADS, B_VECTOR, B_ALONG>;
    static_assert(HIGH % 16 == 0 && WIDE % 16 == 0 && K % DEPTH == 0, "a warp's tile is made of whole fragments");
    static_assert(STAGES * (SharedA::SIZE + SharedB::SIZE) * sizeof(T) + 128 <= BYTES, "the stages fit shared memory");
    const auto work = products.template work<M, N>(blockIdx.x);
    const auto &a = work.a, &b = work.b;
    const auto& c = work.c;
    const WorkTile& part = work.tile;
    extern __shared__ __align__(128) uint4 memory[];  // so that copies of rows of 128 bytes are
    T *const shared_a = reinterpret_cast<T*>(memory), *const shared_b = shared_a + STAGES * SharedA::SIZE;
    const int warp = threadIdx.x / WARP;
    const int row = warp / ACROSS * HIGH, column = warp % ACROSS * WIDE;

    S sums[TALL * BROAD * 4];
#pragma unroll
    for (int i = 0; i < TALL * BROAD * 4; ++i) sums[i] = 0;
    // The sums of the instructions, for SPLIT those since the last promotion; those with remainders.
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

    // Two in turn: one is loaded before the products of the other. DOUBLE has no registers for that.
    constexpr int STEPS = K / DEPTH, TURNS = STEPS > 1 && KIND != DOUBLE ? 2 : 1;
    WarpStep<KIND, TALL, BROAD> steps[TURNS];
    const auto load = [&](int turn, int at, int k) {
        steps[turn].template load<SharedA, SharedB>(
            shared_a + at % STAGES * SharedA::SIZE, shared_b + at % STAGES * SharedB::SIZE, row, column, k);
    };
    // Separates all threads' copies of a tile from its reads, and reads of the one before from copies to where that was.
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

    if (!combine_parts<Op>(sums, part, parts, tickets)) return;
    const auto where = [&](int at, Index& i, Index& j) {
        i = part.row + row + WarpStep<KIND, TALL, BROAD>::row_of(at);
        j = part.column + column + WarpStep<KIND, TALL, BROAD>::column_of(at);
    };
    save_pairs<Op, C_VECTOR>(sums, c, where);
    if constexpr (KIND == TF32 || KIND == SPLIT) multiply_again<Op>(sums, a, b, c, products.k, where);
}

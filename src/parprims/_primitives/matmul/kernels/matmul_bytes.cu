// The products of bytes of matmul_residues.cu, on tensor cores (wgmma, compute capability 9.0 alone).
//
// The text after this defines the instruction, for bytes with signs:
//   struct ByteWgmma {
//       static constexpr int WIDTH;
//       // c += a b, or c = a b if `more` is 0, asynchronously. Both factors are in shared memory, along k.
//       static void multiply(int (&c)[WIDTH / 2], unsigned long long a, unsigned long long b, int more);
//   };
//   find_lost          multiplies the leading bits, a lower bound of sum |a| |b|, and marks the tiles of c where
//                      rounding may have changed an element by more than the promised error
//   multiply_residues  multiplies the residues for each modulus, in tiles that are not marked
//   multiply_lost      multiplies marked tiles in float64
// Tiles are stored in the layout of shared memory, so that bulk copies need no tensor maps.

#include "common.cuh"
#include "matmul_common.cuh"
#include "matmul_pipeline.cuh"
#include "matmul_residues.cuh"
#include "matmul_tensor.cuh"

namespace residues {

#if __CUDA_ARCH__ == 900

// Copies contiguous bytes to shared memory. One thread calls it.
DEVICE void copy_bytes(void* to, const char* from, int bytes, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            (unsigned)__cvta_generic_to_shared(to)),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

template <int COUNT>
DEVICE void keep_after_wait(int (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(sums[i])::"memory");
}

// How blocks multiply stored tiles: two groups of four warps multiply 128 lines of a and 256 of b.
template <class Wgmma, int STAGES, int BYTES>
struct Multiplication {
    static constexpr int M = SIDE, N = 2 * SIDE;
    static constexpr int STAGE = TILE * 3;
    static_assert(Wgmma::WIDTH == N, "the instruction is one for this tile");
    static_assert(STAGES * STAGE + 1024 <= BYTES, "the stages fit in shared memory");
    using Ring = Pipeline<2, STAGES, false, false, AT_ONCE>;
    const Ring& ring;
    char* const shared;
    unsigned at = 0;  // counts tiles along k, through all units

    // Copies tiles of both factors from two places on, by one thread.
    DEVICE void copy(const char* a, const char* b, Index step_b, int tiles) {
        const auto copy = [&](unsigned at) {
            char* const to = shared + at % STAGES * STAGE;
            const unsigned full = ring.full(at);
            arrive_for(full, STAGE);
            copy_bytes(to, a, TILE, full);
            copy_bytes(to + TILE, b, TILE, full);
            copy_bytes(to + 2 * TILE, b + step_b, TILE, full);
            a += TILE, b += TILE;
        };
#pragma unroll 1
        for (const unsigned end = at + tiles; at < end; ++at) ring.copy_tile(at, copy, Nothing());
    }

    // Adds the products of a group's lines, from `row` on, to sums.
    DEVICE void multiply(int (&sums)[N / 2], int row, int tiles) {
        const Descriptor a(shared + row * SIDE, 0), b(shared, 0);
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, ++at) {
            const unsigned stage = at % STAGES * STAGE;
            ring.wait_for_tile(at);
            begin_products();
#pragma unroll
            for (int k = 0; k < SIDE; k += 32)
                Wgmma::multiply(sums, a.at(stage + k), b.at(stage + TILE + k), 1);
            end_products();
            wait_for_products<1>();
            if (tile > 0) ring.release_tile(at - 1);
        }
        wait_for_products<0>();
        keep_after_wait(sums);
        ring.release_tile(at - 1);
    }
};

// Marks tiles of c. At first only `some` tiles along k are multiplied. If their lower bound does not suffice, which
// `tried` records, up to `most` tiles are multiplied.
template <class Wgmma, class Moduli, int STAGES, int BYTES, class Products>
DEVICE void find_lost(const Products& products, unsigned units, const Stored& a, const Stored& b, int some, int most,
                      const Line* lines_a, const Line* lines_b, unsigned char* tried, unsigned char* marks) {
    using Way = Multiplication<Wgmma, STAGES, BYTES>;
    const typename Way::Ring ring;
    Way way{ring, swizzled_memory<char>()};
    const bool copying = own_warp() < 4;  // one thread of the first group copies
    const int row = ((int)threadIdx.x / 128 - 1) * 64, warp = threadIdx.x / WARP_SIZE - 4;
    const float allowed = Moduli::TOLERANCE * sqrtf((float)products.k);
    __shared__ unsigned long long shared[2][Way::N];  // `lost` and `size` of columns
    int turn = 0;
#pragma unroll 1
    for (int again = 0; again < (some < most ? 2 : 1); ++again) {
        const int tiles = again ? most : some;
#pragma unroll 1
        for (unsigned unit = blockIdx.x; unit < units; unit += gridDim.x) {
            if (again && !is_marked(tried, unit)) continue;
            const unsigned matrix = matrix_of(unit, products.tiles);
            const WorkTile part = products.template tile<Way::M, Way::N>(unit, matrix);
            if (copying) {
                if (threadIdx.x == 0)
                    way.copy(a.tile<Moduli::COUNT + 1>(matrix, Moduli::COUNT, part.row / SIDE),
                             b.tile<Moduli::COUNT + 1>(matrix, Moduli::COUNT, part.column / SIDE), b.deep * TILE,
                             tiles);
                continue;
            }
            // The bounds of the columns, for all groups. Two copies take turns, so that one barrier suffices.
            unsigned long long* const across = shared[turn];
            turn = 1 - turn;
            const Index column = part.column + threadIdx.x - 128;
            const Line of_column = column < products.n ? lines_b[matrix * products.n + column] : Line{0, 0, 0, 0};
            across[threadIdx.x - 128] =
                (unsigned long long)__float_as_uint(of_column.size) << 32 | __float_as_uint(of_column.lost);
            asm volatile("bar.sync 1, %0;" ::"n"(256) : "memory");
            int sums[Way::N / 2];
#pragma unroll
            for (int i = 0; i < Way::N / 2; ++i) sums[i] = 0;
            way.multiply(sums, row, tiles);
            bool lost = false;
            // Volatile, else the compiler begins more loads at once than there are registers.
            const volatile unsigned long long* const own = across + threadIdx.x % 4 * 2;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const Index i = part.row + row + row_of(2 * half);
                const Line of_a = i < products.m ? lines_a[matrix * products.m + i] : Line{0, 0, 0, 0};
#pragma unroll
                for (int at = 2 * half; at < Way::N / 2; at += 4) {
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const unsigned long long both = own[at / 4 * 8 + e];
                        const float of_b_lost = __uint_as_float((unsigned)both);
                        const float of_b_size = __uint_as_float((unsigned)(both >> 32));
                        const float error = of_a.lost * of_b_size + of_a.size * of_b_lost;
                        lost |= !(error <= allowed * (float)sums[at + e]);
                    }
                }
            }
            const bool any = __any_sync(ALL_LANES, lost);
            if (threadIdx.x % WARP_SIZE == 0) {
                marks[(Index)unit * 8 + warp] = any;
                if (!again) tried[(Index)unit * 8 + warp] = any;
            }
        }
        __syncthreads();  // separates marks from their reads
    }
}

// Multiplies residues, LONGEST tiles along k before sums are reduced. All tiles are multiplied for one modulus, then
// for the next one, so that blocks in flight share the residues of one modulus in the L2 cache. A residue of an element
// is a byte of `residues`, which for each tile has one modulus after the other.
template <class Wgmma, class Moduli, int STAGES, int BYTES, int LONGEST, class Products>
DEVICE void multiply_residues(const Products& products, unsigned tiles, const Stored& a, const Stored& b,
                              const unsigned char* marks, unsigned* residues) {
    using Way = Multiplication<Wgmma, STAGES, BYTES>;
    constexpr int COUNT = Moduli::COUNT;
    const typename Way::Ring ring;
    Way way{ring, swizzled_memory<char>()};
    const bool copying = own_warp() < 4;  // one thread of the first group copies
    if (copying && threadIdx.x > 0) return;
    const int row = ((int)threadIdx.x / 128 - 1) * 64;
#pragma unroll 1
    for (unsigned unit = blockIdx.x; unit < tiles * COUNT; unit += gridDim.x) {
        const int at = (int)(unit / tiles);
        const unsigned tile = unit - at * tiles;
        if (is_marked(marks, tile)) continue;
        const unsigned matrix = matrix_of(tile, products.tiles);
        const WorkTile part = products.template tile<Way::M, Way::N>(tile, matrix);
        if (copying) {
            way.copy(a.tile<COUNT + 1>(matrix, at, part.row / SIDE), b.tile<COUNT + 1>(matrix, at, part.column / SIDE),
                     b.deep * TILE, (int)a.deep);
            continue;
        }
        unsigned modulus = 1;
#pragma unroll
        for (int one = 0; one < COUNT; ++one)
            if (one == at) modulus = Moduli::VALUES[one];
        // Sums begin with a multiple of the modulus that makes them positive as unsigned numbers.
        const unsigned start = 0x80000000u / modulus * modulus, inverse = 0xffffffffu / modulus;
        int sums[Way::N / 2];
#pragma unroll
        for (int i = 0; i < Way::N / 2; ++i) sums[i] = (int)start;
        const auto reduced = [&](int sum) {
            const unsigned rest = (unsigned)sum - __umulhi((unsigned)sum, inverse) * modulus;
            return min(rest, rest - modulus);  // the quotient may have been too small by one
        };
#pragma unroll 1
        for (int left = (int)a.deep; left > 0; left -= LONGEST) {
            way.multiply(sums, row, min(left, LONGEST));
            const unsigned next = left > LONGEST ? start : 0;
#pragma unroll
            for (int i = 0; i < Way::N / 2; ++i) sums[i] = (int)(next + reduced(sums[i]));
        }
        unsigned* const to = residues + ((Index)tile * COUNT + at) * RESIDUES + row / 8 * 512 + threadIdx.x % 128;
#pragma unroll
        for (int i = 0; i < Way::N / 2; i += 4)
            to[i / 4 * 128] = bytes_of(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
    }
}

#endif

// Multiplies the marked tiles, M x N at a time.
template <class Op, Kind KIND, int M, int N, int K, int DOWN, int ACROSS, int STAGES, int BYTES, int A_VECTOR,
          bool A_ALONG, int B_VECTOR, bool B_ALONG, bool C_VECTOR, class Products>
DEVICE void multiply_lost(const Products& products, Index tiles, const unsigned char* marks) {
    static_assert(SIDE % M == 0 && 2 * SIDE % N == 0, "a tile is inside one that may be marked");
    const unsigned matrix = matrix_of(blockIdx.x, products.tiles);
    const WorkTile part = products.template tile<M, N>(blockIdx.x, matrix);
    if (!is_marked(marks, matrix * tiles + tile_at(part.row, part.column, products.m, products.n))) return;
    multiply_tensor<Op, KIND, M, N, K, DOWN, ACROSS, STAGES, BYTES, A_VECTOR, A_ALONG, B_VECTOR, B_ALONG, C_VECTOR>(
        products, nullptr, nullptr);
}

}  // namespace residues

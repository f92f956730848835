// Matrix product of floats by products of integers, and of integers by residues.
//
// Every line of a factor, a row of a or a column of b, is scaled by a power of two and rounded to integers. The product
// of integers is computed by its residues modulo several small numbers: one product of bytes for each modulus, with
// exact sums in 32 bits. The Chinese remainder theorem then gives the product itself, which is rounded once. So the
// only errors are from rounding to integers, and from the last rounding.
//   measure_lines      finds the scale of every line, and bounds the error of rounding
//   take_residues      rounds both factors to integers, and stores their residues and their leading bits
//   find_lost          marks the tiles of c where rounding may have changed an element by more than the promised error
//   multiply_residues  multiplies the residues for each modulus, in tiles that are not marked
//   combine_residues   computes the result from its residues
//   multiply_lost      multiplies marked tiles in float64
// The kernels that multiply are in matmul_bytes.cu. The scales are such that the norms of two lines multiply to less
// than half the product of all moduli, which bounds their product (Cauchy-Schwarz).
//
// Residues of a factor are stored in the layout of shared memory: swizzled tiles of 128 lines of 128 bytes along k.
// Residues of c are stored in the order of the registers that hold them. Elements outside the factors are zero.
//
// The text after this defines, for a number of moduli and the type of an element:
//   struct Moduli {
//       static constexpr int COUNT, WORDS;         // the number of moduli; 32-bit words of an integer
//       static constexpr int VALUES[COUNT];        // the moduli: coprime, at most 256
//       static constexpr int OF_A[COUNT][WORDS];   // residues of the powers of 256, four to a word
//       static constexpr int OF_B[COUNT][WORDS];   // OF_A times the inverse of the product of the other moduli
//       static constexpr int GROUPS, COLUMNS;      // of three moduli; of 64 bits in sums
//       static constexpr unsigned WEIGHTS[COUNT];  // the product of the other moduli of a group
//       static constexpr unsigned long long TERMS[GROUPS][COLUMNS], WHOLE[COLUMNS];  // of other groups; of all moduli
//       static constexpr float PARTS[GROUPS];      // 1 by the product of a group
//       static constexpr double LARGEST;           // the largest norm of a line of integers
//       static constexpr float TOLERANCE;          // the error allowed by sum |a| |b|, for lines of length 1
//   };
//
// K. Ozaki, Y. Uchino and T. Imamura, Ozaki Scheme II: A GEMM-oriented emulation of floating-point matrix
// multiplication using an integer modular technique, arXiv 2504.08009, 2025.

#include "common.cuh"
#include "matmul_common.cuh"
#include "matmul_residues.cuh"

namespace residues {

// An integer of WORDS words of 32 bits.
template <int WORDS>
struct WholeOf {
    using Type = long long;
};
template <>
struct WholeOf<1> {
    using Type = int;
};

// ---- Scales -----------------------------------------------------------------------------------------------------

// Bounds of the numbers of a line.
template <class T>
struct Measure {
    using Bits = typename WholeOf<sizeof(T) / 4>::Type;
    T sum = 0, squares = 0;  // sums of magnitudes and squares; a number that is not finite makes them not finite
    Bits top = 0;            // the bits of the largest magnitude

    static DEVICE int bits_of(float x) { return __float_as_int(x) & 0x7fffffff; }
    static DEVICE long long bits_of(double x) { return __double_as_longlong(x) & 0x7fffffffffffffffll; }
    static DEVICE double number_of(int bits) { return (double)__int_as_float(bits); }
    static DEVICE double number_of(long long bits) { return __longlong_as_double(bits); }
    static DEVICE float multiply_add(float x, float sum) { return __fmaf_rn(x, x, sum); }
    static DEVICE double multiply_add(double x, double sum) { return __fma_rn(x, x, sum); }

    DEVICE void add(T x) {
        sum += fabs(x);
        squares = multiply_add(x, squares);
        top = max(top, bits_of(x));
    }

    DEVICE void add(const Measure& other) {
        sum += other.sum;
        squares += other.squares;
        top = max(top, other.top);
    }

    // Returns how to round a line of this length. The sums may be too small by one part in 512.
    template <class Moduli>
    DEVICE Line line(Index length) const {
        if (top == 0) return {0, 0, 0, 0};
        const float never = __int_as_float(0x7f800000);
        if (!(sum - sum == 0)) return {0, 0, never, never};
        constexpr int MOST = sizeof(T) == 4 ? 40 : 400;  // exponents of numbers with squares far from the limits
        const int largest = exponent(number_of(top));
        const double root = sqrt((double)length), more = 1 + power(-8);
        const bool fits = largest > -MOST && largest < MOST && length <= 1 << 20;
        const double norm = fits ? sqrt((double)squares) * power(-largest) * more : 2 * root;
        Line line;
        line.scale = exponent((Moduli::LARGEST - root) / norm) - largest;
        line.leading = 6 - largest;
        line.lost = 0;
        line.size = (float)(Power(line.leading).times((double)sum) * more + length * (double)line.rounding());
        return line;
    }
};

// Measures 32 lines: each warp measures a line (ALONG), or each lane does, together with that lane of all other warps.
template <class Moduli, Which WHICH, bool ALONG, class Products, class Shared>
DEVICE void measure_factor(const Products& products, unsigned block, Index groups, Line* lines, Shared& shared) {
    const unsigned matrix = matrix_of(block, groups);
    const auto from = products.template factor<WHICH>(matrix);
    const int warp = threadIdx.x / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    const Index line = (block - matrix * groups) * WARP_SIZE + (ALONG ? warp : lane);
    lines += matrix * from.length;
    Measure<typename Products::T> measure;
    if (line < from.length) {
        const auto* at = from.base + line * from.outer;
#pragma unroll 8
        for (Index k = ALONG ? lane : warp; k < products.k; k += WARP_SIZE) measure.add(at[k * from.along]);
    }
    if constexpr (ALONG) {
#pragma unroll
        for (int step = WARP_SIZE / 2; step > 0; step /= 2) measure.add(shuffle_down(measure, step));
        if (lane == 0 && line < from.length) lines[line] = measure.template line<Moduli>(products.k);
    } else {
        shared[warp][lane] = measure;
        __syncthreads();  // separates writes from reads
        if (warp == 0 && line < from.length) {
#pragma unroll 1
            for (int other = 1; other < WARP_SIZE; ++other) measure.add(shared[other][lane]);
            lines[line] = measure.template line<Moduli>(products.k);
        }
    }
}

// Measures both factors. A block of 1024 threads measures 32 of the lines.
template <class Moduli, bool A_ALONG, bool B_ALONG, class Products>
DEVICE void measure_lines(const Products& products, Index groups_a, Index groups_b, Index blocks_a, Line* lines_a,
                          Line* lines_b) {
    __shared__ Measure<typename Products::T> shared[A_ALONG && B_ALONG ? 1 : WARP_SIZE][WARP_SIZE];
    if (blockIdx.x < blocks_a)
        measure_factor<Moduli, FACTOR_A, A_ALONG>(products, blockIdx.x, groups_a, lines_a, shared);
    else
        measure_factor<Moduli, FACTOR_B, B_ALONG>(products, blockIdx.x - blocks_a, groups_b, lines_b, shared);
}

// ---- Residues ---------------------------------------------------------------------------------------------------

// The digits of an integer in base 256, from -128 to 127, four to a word.
template <int WORDS>
struct Digits {
    int words[WORDS];

    DEVICE void set(long long x) {
        constexpr unsigned HALVES = 0x80808080u;
        if constexpr (WORDS == 1) {
            words[0] = (int)(((unsigned)x + HALVES) ^ HALVES);
        } else {
            const unsigned long long moved = (unsigned long long)x + (HALVES | (unsigned long long)HALVES << 32);
            words[0] = (int)((unsigned)moved ^ HALVES), words[1] = (int)((unsigned)(moved >> 32) ^ HALVES);
        }
    }
};

constexpr float UNIT = 12582912;  // 1.5 2^23: the last bits of UNIT plus a small integer are that integer

// Returns an integer whose last byte is a residue of x modulo VALUE, from -VALUE / 2 to VALUE / 2. `weights` are the
// weights of the digits.
template <int VALUE, int WORDS>
DEVICE unsigned residue(const Digits<WORDS>& x, const int (&weights)[WORDS]) {
    int sum = __float_as_int(UNIT);
#pragma unroll
    for (int word = 0; word < WORDS; ++word) sum = __dp4a(x.words[word], weights[word], sum);
    const float at = __int_as_float(sum);
    const float quotient = __fadd_rn(__fmaf_rn(at - UNIT, 1.f / VALUE, UNIT), -UNIT);
    return __float_as_uint(__fmaf_rn(quotient, -(float)VALUE, at));
}

// Stores residues of 16 integers for the moduli from AT on; `to` is the place of the first integer's residues.
template <class Moduli, Which WHICH, int AT, int WORDS>
DEVICE void store_residues(const Digits<WORDS> (&x)[16], uint4* to, Index step) {
    if constexpr (AT < Moduli::COUNT) {
        unsigned four[4];
        const auto& weights = WHICH == FACTOR_A ? Moduli::OF_A[AT] : Moduli::OF_B[AT];
#pragma unroll
        for (int i = 0; i < 4; ++i)
            four[i] = bytes_of(residue<Moduli::VALUES[AT]>(x[4 * i], weights),
                               residue<Moduli::VALUES[AT]>(x[4 * i + 1], weights),
                               residue<Moduli::VALUES[AT]>(x[4 * i + 2], weights),
                               residue<Moduli::VALUES[AT]>(x[4 * i + 3], weights));
        *to = make_uint4(four[0], four[1], four[2], four[3]);
        store_residues<Moduli, WHICH, AT + 1>(x, to + step, step);
    }
}

// Returns the nearest integer. `rounded` becomes true if it differs from x.
DEVICE int nearest(double x, bool& rounded, int) {
    constexpr double PLACE = 6755399441055744.;  // 1.5 2^52
    const double moved = __dadd_rn(x, PLACE);
    rounded |= __dadd_rn(moved, -PLACE) != x;
    return (int)__double_as_longlong(moved);
}
DEVICE long long nearest(double x, bool& rounded, long long) {
    const long long whole = __double2ll_rn(x);
    rounded |= (double)whole != x;
    return whole;
}

constexpr int LINES = 32, EACH = 16, SHARED = SIDE * LINES + SIDE / EACH * 4;

// Stores the residues of 32 lines and 128 numbers along k. Each of the 256 threads has 16 numbers of a line. They are
// read from memory if they are adjacent there (ALONG), otherwise through shared memory, which is padded so that neither
// writes nor reads have bank conflicts.
template <class Moduli, Which WHICH, bool ALONG, int VECTOR, class Products>
DEVICE void take_factor(const Products& products, unsigned block, Line* lines, const Stored& to,
                        typename Products::T* shared) {
    using T = typename Products::T;
    using Whole = typename WholeOf<Moduli::WORDS>::Type;
    const Index wide = to.down * (SIDE / LINES), units = wide * to.deep;
    const unsigned matrix = matrix_of(block, units);
    const Index unit = block - matrix * units;
    const Index first = (ALONG ? unit / to.deep : unit % wide) * LINES, deep = ALONG ? unit % to.deep : unit / wide;
    const auto from = products.template factor<WHICH>(matrix);
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int row = warp * 4 + (ALONG ? lane / 8 : lane % 4), part = ALONG ? lane % 8 : lane / 4;
    const Index line = first + row, k = deep * SIDE + part * EACH;
    T x[EACH];
    if constexpr (ALONG) {
        const T* const at = from.base + line * from.outer + k * from.along;
        if (line < from.length && k + EACH <= products.k) {
#pragma unroll
            for (int i = 0; i < EACH; i += VECTOR) {
                using Vector = typename Word<VECTOR * sizeof(T)>::Type;
                const Vector vector = *reinterpret_cast<const Vector*>(at + i * (VECTOR > 1 ? 1 : from.along));
                memcpy(x + i, &vector, sizeof(Vector));
            }
        } else {
#pragma unroll
            for (int i = 0; i < EACH; ++i)
                x[i] = line < from.length && k + i < products.k ? at[i * from.along] : T();
        }
    } else {
        const Index other = first + lane;
#pragma unroll
        for (int i = 0; i < SIDE; i += 8) {
            const Index at = deep * SIDE + i + warp;
            shared[(i + warp) * LINES + i / EACH * 4 + lane] =
                other < from.length && at < products.k ? from.at(other, at) : T();
        }
        __syncthreads();  // separates writes from reads
#pragma unroll
        for (int i = 0; i < EACH; ++i) x[i] = shared[(part * EACH + i) * LINES + part * 4 + row];
    }
    lines += matrix * from.length + line;
    Line own = {0, 0, 0, 0};
    if (line < from.length) own.scale = lines->scale, own.leading = lines->leading, own.size = lines->size;
    const bool finite = own.size - own.size == 0;
    const Power scale(own.scale);
    Digits<Moduli::WORDS> digits[EACH];
    unsigned leading[EACH];
    bool rounded = false;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const double scaled = sizeof(T) == 4 ? (double)x[i] * scale.first : scale.times((double)x[i]);
        const Whole whole = nearest(finite ? scaled : 0, rounded, Whole());
        digits[i].set(whole);
        leading[i] = (unsigned)((whole < 0 ? -whole : whole) >> (own.scale - own.leading));
    }
    if (rounded) lines->lost = own.rounding();
    // Parts of a line of 128 bytes are permuted within each 8 lines: the swizzle.
    const int place = (int)(first % SIDE) + row;
    char* const tile = to.template tile<Moduli::COUNT + 1>(matrix, 0, first / SIDE) + deep * TILE;
    uint4* const own_part = reinterpret_cast<uint4*>(tile) + place * 8 + (part ^ place % 8);
    const Index step = to.down * to.deep * (TILE / 16);
    store_residues<Moduli, WHICH, 0>(digits, own_part, step);
    unsigned words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        words[i] = bytes_of(leading[4 * i], leading[4 * i + 1], leading[4 * i + 2], leading[4 * i + 3]);
    own_part[Moduli::COUNT * step] = make_uint4(words[0], words[1], words[2], words[3]);
}

// Stores the residues of both factors. The factor that was measured last comes first, as it may still be in the cache.
template <class Moduli, bool A_ALONG, int A_VECTOR, bool B_ALONG, int B_VECTOR, class Products>
DEVICE void take_residues(const Products& products, Index blocks_a, Line* lines_a, Line* lines_b, const Stored& a,
                          const Stored& b) {
    __shared__ typename Products::T shared[A_ALONG && B_ALONG ? 1 : SHARED];
    const unsigned block = gridDim.x - 1 - blockIdx.x;
    if (block < blocks_a)
        take_factor<Moduli, FACTOR_A, A_ALONG, A_VECTOR>(products, block, lines_a, a, shared);
    else
        take_factor<Moduli, FACTOR_B, B_ALONG, B_VECTOR>(products, block - (unsigned)blocks_a, lines_b, b, shared);
}

// ---- The result -------------------------------------------------------------------------------------------------

// Returns the integer between -WHOLE / 2 and WHOLE / 2 with these residues, multiplied as OF_B is. First, residues of
// three moduli are combined. A float tells how many times WHOLE has to be subtracted, because the integer is not near
// the middle between two of its multiples. Columns of 64 bits hold all carries.
template <class Moduli>
DEVICE double integer_of(const unsigned (&residues)[Moduli::COUNT]) {
    constexpr int COLUMNS = Moduli::COLUMNS;
    unsigned long long columns[COLUMNS] = {};
    float quotient = 0;
#pragma unroll
    for (int group = 0; group < Moduli::GROUPS; ++group) {
        unsigned sum = 0;
#pragma unroll
        for (int at = 3 * group; at < 3 * group + 3 && at < Moduli::COUNT; ++at)
            sum += residues[at] * Moduli::WEIGHTS[at];
#pragma unroll
        for (int column = 0; column < COLUMNS; ++column) columns[column] += sum * Moduli::TERMS[group][column];
        quotient = __fmaf_rn((float)sum, Moduli::PARTS[group], quotient);
    }
    const unsigned times = __float_as_uint(__fadd_rn(quotient, UNIT)) - __float_as_uint(UNIT);
#pragma unroll
    for (int column = 0; column < COLUMNS; ++column) columns[column] -= times * Moduli::WHOLE[column];
    if constexpr (COLUMNS == 1) {
        return (double)(long long)columns[0];
    } else {
        const long long first = (long long)columns[0], second = (long long)columns[1] + (first >> 32);
        const unsigned long long low = (unsigned long long)(unsigned)second << 32 | (unsigned)first;
        const long long high = (long long)columns[2] + (second >> 32) + (long long)(low >> 63);
        return __fma_rn((double)high, 18446744073709551616., (double)(long long)low);
    }
}

// Computes four elements in each thread: two adjacent in a row, and two 8 rows below. A word of `residues` has a
// residue of each. Words are in the order of the sums in the registers of a group of `multiply_residues`. A block of
// 512 threads computes the elements of four words of each thread of a group.
template <class Moduli, class Products>
DEVICE void combine_residues(const Products& products, const unsigned char* marks, const unsigned* residues,
                             const Line* lines_a, const Line* lines_b) {
    using T = typename Products::T;
    const unsigned tile = blockIdx.x / 16, piece = blockIdx.x % 16;
    if (is_marked(marks, tile)) return;
    const unsigned matrix = matrix_of(tile, products.tiles);
    const WorkTile part = products.template tile<SIDE, 2 * SIDE>(tile, matrix);
    const unsigned* const from = residues + (Index)tile * Moduli::COUNT * RESIDUES + piece * 512 + threadIdx.x;
    unsigned words[Moduli::COUNT];
#pragma unroll
    for (int at = 0; at < Moduli::COUNT; ++at) words[at] = from[at * RESIDUES];
    const auto c = products.result(matrix);
    const int thread = threadIdx.x % 128, word = threadIdx.x / 128;
    const Index i = part.row + piece / 8 * 64 + thread / WARP_SIZE * 16 + thread % WARP_SIZE / 4;
    const Index j = part.column + piece % 8 * 32 + word * 8 + thread % 4 * 2;
    int across[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) across[e] = j + e < c.n ? lines_b[matrix * c.n + j + e].scale : 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const Index row = i + 8 * half;
        if (row >= c.m) continue;
        const int down = lines_a[matrix * c.m + row].scale;
        T both[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            unsigned own[Moduli::COUNT];
#pragma unroll
            for (int at = 0; at < Moduli::COUNT; ++at) own[at] = words[at] >> (16 * half + 8 * e) & 0xff;
            both[e] = (T)Power(-(down + across[e])).times(integer_of<Moduli>(own));
        }
        T* const to = c.base + row * c.n + j;
        if (j + 1 < c.n && c.n % 2 == 0) {
            using Vector = typename Word<2 * sizeof(T)>::Type;
            Vector vector;
            memcpy(&vector, both, sizeof(Vector));
            *reinterpret_cast<Vector*>(to) = vector;
        } else {
#pragma unroll
            for (int e = 0; e < 2; ++e)
                if (j + e < c.n) to[e] = both[e];
        }
    }
}

}  // namespace residues

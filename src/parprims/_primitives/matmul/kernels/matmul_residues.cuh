// Shared by the kernels that multiply matrices by residues: scales of lines, stored tiles, and tiles of the result.

#include "common.cuh"
#include "matmul_common.cuh"

namespace residues {

constexpr int SIDE = 128, TILE = SIDE * SIDE;  // lines, and bytes along k, of a stored tile
constexpr int RESIDUES = 2 * TILE / 4;         // words with residues of a tile of c for one modulus

// ---- Powers of two ----------------------------------------------------------------------------------------------

// Returns 2^e, for a normal number.
DEVICE double power(int e) { return __longlong_as_double((long long)(e + 1023) << 52); }

// The factors of 2^e, for numbers that may be subnormal or large.
struct Power {
    double first, second;

    DEVICE explicit Power(int e) {
        const int near = max(-1000, min(1000, e));
        first = power(near), second = power(max(-1000, min(1000, e - near)));
    }
    DEVICE double times(double x) const { return x * first * second; }
};

// Returns the exponent of a positive number.
DEVICE int exponent(double x) {
    const int found = (int)(__double_as_longlong(x) >> 52);
    return found ? found - 1023 : (int)(__double_as_longlong(x * power(54)) >> 52) - 1023 - 54;
}

// How a line is rounded. Bounds are relative to 2^-leading.
struct Line {
    int scale, leading;  // exponents of the powers of two by which numbers, and their leading bits, are multiplied
    float lost, size;    // bounds of the error of rounding a number, and of the sum of magnitudes

    // Returns the largest error of rounding a number that is not exact.
    DEVICE float rounding() const { return (float)power(leading - scale - 1); }
};

// ---- Stored tiles -----------------------------------------------------------------------------------------------

// The stored tiles of a factor: `down` tiles of lines and `deep` tiles along k for each modulus, and for the leading
// bits.
struct Stored {
    char* base;
    Index down, deep;

    // Returns a tile of one of PLANES kinds. Tiles along k follow each other.
    template <int PLANES>
    DEVICE char* tile(unsigned matrix, int plane, Index row) const {
        return base + ((matrix * PLANES + plane) * down + row) * deep * TILE;
    }
};

// Returns the last bytes of four words in one.
DEVICE unsigned bytes_of(unsigned x, unsigned y, unsigned z, unsigned w) {
    return __byte_perm(__byte_perm(x, y, 0x0040), __byte_perm(z, w, 0x0040), 0x5410);
}

// ---- Tiles of the result ----------------------------------------------------------------------------------------

// Returns the number of the tile of c that contains an element, the inverse of `work_tile`.
DEVICE Index tile_at(Index row, Index column, Index m, Index n) {
    const Index rows = (m + SIDE - 1) / SIDE, columns = (n + 2 * SIDE - 1) / (2 * SIDE);
    const Index at = row / SIDE, first = at / BAND * BAND, height = min((Index)BAND, rows - first);
    return first * columns + column / (2 * SIDE) * height + at - first;
}

// Returns whether any of the 8 warps that multiply a tile has marked it.
DEVICE bool is_marked(const unsigned char* marks, Index tile) {
    return *reinterpret_cast<const unsigned long long*>(marks + tile * 8) != 0;
}

}  // namespace residues

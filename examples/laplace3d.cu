// Jacobi iteration for Laplace's equation: v = (sum of the six neighbours of u) / 6 inside, v = u on the faces.
//
// Grids are (nz, ny, nx), x fastest. Sums are formed in one order, x- x+ y- y+ z- z+, and multiplied by 1/6, so that
// every form gives the same bits. Blocks are numbered along x, then y, then z.
//
// sweep_marching   one sweep; a block holds a tile of x and y and marches along z, three planes in registers, and reads
//                  and writes several cells of a row at once
// sweep_boxes      one sweep; a block is a box, a thread a cell, and the caches share the neighbours
// sweep_times      T sweeps at once; a block marches along z with T planes in flight: in a round it reads plane k of u
//                  and computes plane k - t after t sweeps, t = 1 ... T, from the planes one sweep before. Tiles
//                  overlap by T cells, which turn stale one cell further in with every sweep and are not written.
//                  (Nguyen, Satish, Chhugani, Kim and Dubey, 3.5-D Blocking Optimization for Stencil Computations,
//                  SC 2010.)

constexpr float SIXTH = 1.0f / 6.0f;

__device__ inline float sixth(float west, float east, float south, float north, float below, float above) {
    return (((((west + east) + south) + north) + below) + above) * SIXTH;
}

struct Sizes {
    long long nz, ny, nx;
    __device__ long long index(long long z, long long y, long long x) const { return (z * ny + y) * nx + x; }
    __device__ bool inside(long long z, long long y, long long x) const {
        return z > 0 && z < nz - 1 && y > 0 && y < ny - 1 && x > 0 && x < nx - 1;
    }
};

template <int VECTOR>
struct alignas(4 * VECTOR) Cells {
    float cell[VECTOR];
};

// Grid: tiles of BX * VECTOR times BY cells, times pieces of `planes` planes. Threads: BX * BY, each with VECTOR cells
// side by side, which nx must be a multiple of.
template <int BX, int BY, int VECTOR>
__device__ void sweep_marching(const float* __restrict__ u, float* __restrict__ v, Sizes n, long long planes) {
    using Row = Cells<VECTOR>;
    const long long across = (n.nx + BX * VECTOR - 1) / (BX * VECTOR), down = (n.ny + BY - 1) / BY;
    const long long x = (blockIdx.x % across * BX + threadIdx.x % BX) * VECTOR;
    const long long y = blockIdx.x / across % down * BY + threadIdx.x / BX;
    const long long first = blockIdx.x / (across * down) * planes;
    const long long end = first + planes < n.nz ? first + planes : n.nz;
    if (x >= n.nx || y >= n.ny) return;
    const long long plane = n.ny * n.nx;
    long long at = n.index(first, y, x);
    const auto row_at = [u](long long index) { return *reinterpret_cast<const Row*>(u + index); };
    Row below = {}, here = row_at(at);
    if (first > 0) below = row_at(at - plane);
#pragma unroll 4
    for (long long z = first; z < end; ++z, at += plane) {
        Row above = {}, result = here;
        if (z < n.nz - 1) above = row_at(at + plane);
        if (y > 0 && y < n.ny - 1 && z > 0 && z < n.nz - 1) {
            const Row south = row_at(at - n.nx), north = row_at(at + n.nx);
            const float west = x > 0 ? u[at - 1] : 0.0f, east = x + VECTOR < n.nx ? u[at + VECTOR] : 0.0f;
#pragma unroll
            for (int k = 0; k < VECTOR; ++k) {
                const float left = k > 0 ? here.cell[k > 0 ? k - 1 : 0] : west;
                const float right = k < VECTOR - 1 ? here.cell[k < VECTOR - 1 ? k + 1 : 0] : east;
                if (x + k > 0 && x + k < n.nx - 1)
                    result.cell[k] =
                        sixth(left, right, south.cell[k], north.cell[k], below.cell[k], above.cell[k]);
            }
        }
        *reinterpret_cast<Row*>(v + at) = result;
        below = here;
        here = above;
    }
}

// Grid: boxes of BX * BY * BZ cells. Threads: BX * BY * BZ.
template <int BX, int BY, int BZ>
__device__ void sweep_boxes(const float* __restrict__ u, float* __restrict__ v, Sizes n) {
    const long long across = (n.nx + BX - 1) / BX, down = (n.ny + BY - 1) / BY;
    const long long x = blockIdx.x % across * BX + threadIdx.x % BX;
    const long long y = blockIdx.x / across % down * BY + threadIdx.x / BX % BY;
    const long long z = blockIdx.x / (across * down) * BZ + threadIdx.x / (BX * BY);
    if (x >= n.nx || y >= n.ny || z >= n.nz) return;
    const long long at = n.index(z, y, x), plane = n.ny * n.nx;
    float result = u[at];
    if (n.inside(z, y, x))
        result = sixth(u[at - 1], u[at + 1], u[at - n.nx], u[at + n.nx], u[at - plane], u[at + plane]);
    v[at] = result;
}

// Grid: tiles of (BX - 2T) * (BY * ROWS - 2T) cells that are written, times pieces of `planes` planes. Threads:
// BX * BY, each with ROWS rows one above the other. Dynamic shared memory: 2 T BX BY ROWS floats.
template <int T, int BX, int BY, int ROWS>
__device__ void sweep_times(const float* __restrict__ u, float* __restrict__ v, Sizes n, long long planes) {
    constexpr int HEIGHT = BY * ROWS;
    static_assert(BX > 2 * T && HEIGHT > 2 * T, "a tile must be wider than what turns stale");
    extern __shared__ float shared[];  // [2][T][HEIGHT][BX]: middle planes, written in one round and read in the next
    const int tx = threadIdx.x % BX, ty = threadIdx.x / BX * ROWS;
    const long long across = (n.nx + BX - 2 * T - 1) / (BX - 2 * T);
    const long long down = (n.ny + HEIGHT - 2 * T - 1) / (HEIGHT - 2 * T);
    const long long x = blockIdx.x % across * (BX - 2 * T) - T + tx;
    const long long y = blockIdx.x / across % down * (HEIGHT - 2 * T) - T + ty;
    const long long first = blockIdx.x / (across * down) * planes;
    const long long end = first + planes < n.nz ? first + planes : n.nz;
    const bool in_x = x > 0 && x < n.nx - 1;
    const bool written_x = tx >= T && tx < BX - T && x < n.nx;
    // A neighbour outside the tile is replaced by one inside: its value is stale as the true one would be.
    const int west = tx > 0 ? -1 : 0, east = tx < BX - 1 ? 1 : 0;
    const int south = ty > 0 ? -BX : 0, north = ty + ROWS < HEIGHT ? BX : 0;

    float below[T][ROWS] = {}, here[T][ROWS] = {};
    for (int at = threadIdx.x; at < 2 * T * HEIGHT * BX; at += BX * BY) shared[at] = 0.0f;
    __syncthreads();  // zeros, before other threads' values
    int side = 0;
    for (long long k = first > T ? first - T : 0; k < end + T; ++k, side ^= 1) {
        float next[ROWS];
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            const bool there = k < n.nz && x >= 0 && x < n.nx && y + row >= 0 && y + row < n.ny;
            next[row] = there ? u[n.index(k, y + row, x)] : 0.0f;
        }
#pragma unroll
        for (int t = 0; t < T; ++t) {  // from planes after t sweeps to plane k - t - 1 after t + 1
            const long long z = k - t - 1;
            const float* const now = shared + ((side * T + t) * HEIGHT + ty) * BX + tx;
            float* const later = shared + (((side ^ 1) * T + t) * HEIGHT + ty) * BX + tx;
            float result[ROWS];
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const float lower = row > 0 ? here[t][row - 1] : now[south];
                const float upper = row < ROWS - 1 ? here[t][row + 1] : now[(ROWS - 1) * BX + north];
                const bool inside = in_x && y + row > 0 && y + row < n.ny - 1 && z > 0 && z < n.nz - 1;
                const float* const cell = now + row * BX;
                result[row] = inside ? sixth(cell[west], cell[east], lower, upper, below[t][row], next[row])
                                     : here[t][row];
                later[row * BX] = next[row];
            }
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                below[t][row] = here[t][row];
                here[t][row] = next[row];
                next[row] = result[row];
            }
        }
        const long long z = k - T;
        if (z >= first && z < end) {
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
                if (written_x && ty + row >= T && ty + row < HEIGHT - T && y + row < n.ny)
                    v[n.index(z, y + row, x)] = next[row];
        }
        __syncthreads();  // this round's planes are written before the next reads them, and read before it writes there
    }
}

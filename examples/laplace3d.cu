// Jacobi iteration for Laplace's equation: v = (sum of the six neighbours of u) / 6 inside, v = u on the faces.
//
// Grids are (nz, ny, nx), x fastest. Sums are formed in one order, x- x+ y- y+ z- z+, and multiplied by 1/6, so that
// every form gives the same bits. Blocks are numbered along x, then y, then z.
//
// sweep_marching   one sweep; a block holds a tile of x and y and marches along z, four planes in registers, and reads
//                  and writes several cells of a row at once
// sweep_boxes      one sweep; a block is a box, a thread a cell, and the caches share the neighbours
// sweep_times      several sweeps at once (laplace3d_times.cu)

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

template <int VECTOR>
__device__ void store(float* to, const Cells<VECTOR>& cells) {  // to be read by another launch
    if constexpr (VECTOR == 4)
        __stcs(reinterpret_cast<float4*>(to), make_float4(cells.cell[0], cells.cell[1], cells.cell[2], cells.cell[3]));
    else
        for (int k = 0; k < VECTOR; ++k) __stcs(to + k, cells.cell[k]);
}

// Copies 16 bytes to shared memory while the thread goes on.
__device__ inline void copy_async(void* to, const float* from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from));
#else
    *static_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
#endif
}

__device__ inline void end_group_of_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;");
#endif
}

// Waits for the thread's copies, but not for those of the last GROUPS groups.
template <int GROUPS>
__device__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS));
#endif
}

// Grid: tiles of BX * VECTOR times BY * ROWS cells, times pieces of `planes` planes. Threads: BX * BY, each with ROWS
// rows of VECTOR cells, which nx must be a multiple of. A plane is read two rounds before it is computed. Where rows
// fill whole warps, lanes ask each other. Reads beyond the grid are of cells inside, and go nowhere.
template <int BX, int BY, int VECTOR, int ROWS>
__device__ void sweep_marching(const float* __restrict__ u, float* __restrict__ v, Sizes n, long long planes) {
    using Row = Cells<VECTOR>;
    const long long across = (n.nx + BX * VECTOR - 1) / (BX * VECTOR), down = (n.ny + BY * ROWS - 1) / (BY * ROWS);
    const long long x = (blockIdx.x % across * BX + threadIdx.x % BX) * VECTOR;
    const long long y = (blockIdx.x / across % down * BY + threadIdx.x / BX) * ROWS;
    const long long first = blockIdx.x / (across * down) * planes;
    if (y >= n.ny) return;
    const int lane = threadIdx.x % 32, rows = n.ny - y < ROWS ? n.ny - y : ROWS;
    const bool there = x < n.nx, west_face = x == 0, east_face = x + VECTOR >= n.nx;
    const bool asks_west = there && (BX % 32 || lane == 0) && !west_face;
    const bool asks_east = there && (BX % 32 || lane == 31) && !east_face;
    const long long plane = n.ny * n.nx, south_row = y > 0 ? -n.nx : 0, north_row = y + rows < n.ny ? rows * n.nx : 0;
    const int count = planes < n.nz - first ? planes : n.nz - first, known = first + count < n.nz ? count : count - 1;

    const long long start = n.index(first, y, there ? x : 0);
    const float *from = u + start, *ahead = from;  // planes z and z + 2, or the last that is needed
    float* to = v + start;
    Row below[ROWS], here[ROWS], above[ROWS], beyond[ROWS];
    const auto read = [&](Row(&to)[ROWS], const float* at) {
#pragma unroll
        for (int row = 0; row < ROWS; ++row)
            to[row] = *reinterpret_cast<const Row*>(row < rows ? at + row * n.nx : at);
    };
    read(below, first > 0 ? from - plane : from);
    read(here, from);
    if (known > 0) ahead += plane;
    read(above, ahead);
#pragma unroll 2
    for (int z = 0; z < count; ++z, from += plane, to += plane) {
        if (z + 2 <= known) ahead += plane;
        read(beyond, ahead);
        const Row south = *reinterpret_cast<const Row*>(from + south_row);
        const Row north = *reinterpret_cast<const Row*>(from + north_row);
        const bool face = first + z == 0 || first + z == n.nz - 1;
        const float* at = from;
        float* into = to;
#pragma unroll
        for (int row = 0; row < ROWS; ++row, at += n.nx, into += n.nx) {
            float west = 0, east = 0;
            if (BX % 32 == 0) {
                west = __shfl_up_sync(~0u, here[row].cell[VECTOR - 1], 1);
                east = __shfl_down_sync(~0u, here[row].cell[0], 1);
            }
            if (asks_west && row < rows) west = at[-1];
            if (asks_east && row < rows) east = at[VECTOR];
            const Row& lower = row > 0 ? here[row > 0 ? row - 1 : 0] : south;
            const bool kept = face || y + row == 0 || y + row == n.ny - 1;
            Row result;
#pragma unroll
            for (int k = 0; k < VECTOR; ++k) {
                const float upper = row < ROWS - 1 ? here[row < ROWS - 1 ? row + 1 : 0].cell[k] : north.cell[k];
                const float mean = sixth(k > 0 ? here[row].cell[k > 0 ? k - 1 : 0] : west,
                                         k < VECTOR - 1 ? here[row].cell[k < VECTOR - 1 ? k + 1 : 0] : east,
                                         lower.cell[k], upper, below[row].cell[k], above[row].cell[k]);
                const bool on_face = kept || (k == 0 && west_face) || (k == VECTOR - 1 && east_face);
                result.cell[k] = on_face ? here[row].cell[k] : mean;
            }
            if (there && row < rows) store<VECTOR>(into, result);
        }
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            below[row] = here[row];
            here[row] = above[row];
            above[row] = beyond[row];
        }
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

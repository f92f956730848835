// Jacobi iteration for Laplace's equation: v = (sum of the six neighbours of u) / 6 inside, v = u on the faces.
//
// Grids are (nz, ny, nx), x fastest. Sums are formed in one order, x- x+ y- y+ z- z+, and multiplied by 1/6, so that
// every form gives the same bits. Blocks are numbered along x, then y, then z.
//
// sweep_marching   one sweep; a block holds a tile of x and y and marches along z, four planes in registers, and reads
//                  and writes several cells of a row at once
// sweep_boxes      one sweep; a block is a box, a thread a cell, and the caches share the neighbours
// sweep_times      T sweeps at once; a block marches along z with T planes in flight: in a round it reads plane k of u
//                  and computes plane k - t after t sweeps, t = 1 ... T, from the planes one sweep before. Tiles
//                  overlap by 2T cells: a tile's outer cells turn stale, one cell further in with every sweep, and are
//                  not written.
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

template <bool VALUE>
struct Flag {
    static constexpr bool value = VALUE;
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
    const bool asks_west = (BX % 32 || lane == 0) && !west_face, asks_east = (BX % 32 || lane == 31) && !east_face;
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

// Tiles of `length` cells along an axis of n, of which each shares `halo` cells at either end with the next. The last
// ends where the axis does.
struct Tiles {
    long long n;
    int length, halo;
    __device__ long long step() const { return length - 2 * halo; }
    __device__ long long count() const { return n <= length ? 1 : (n - 2 * halo + step() - 1) / step(); }
    __device__ long long begin(long long tile) const {
        const long long last = n > length ? n - length : 0;
        return tile * step() < last ? tile * step() : last;
    }
    // The cells that a tile writes.
    __device__ long long low(long long tile) const { return tile > 0 ? tile * step() + halo : 0; }
    __device__ long long high(long long tile) const { return tile < count() - 1 ? (tile + 1) * step() + halo : n; }
};

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

// Grid: tiles of 128 times BY * ROWS cells, which share 8 and 2T cells with the next, times pieces of `planes` planes.
// Threads: 32 * BY, each with ROWS rows of 4 cells, which nx must be a multiple of: a row of a tile lies in a warp, whose
// lanes ask each other. A warp's first and last rows go through shared memory, written in one round and read in the
// next. Planes of u are copied to shared memory SLOTS - 1 rounds before they are read; what lies beyond the grid is not,
// and has any value. Dynamic shared memory: 512 (SLOTS BY ROWS + 4 T BY + 1) bytes.
template <int T, int BY, int ROWS, int SLOTS>
__device__ void sweep_times(const float* __restrict__ u, float* __restrict__ v, Sizes n, long long planes) {
    constexpr int VECTOR = 4, HEIGHT = BY * ROWS, SLOT = HEIGHT * 32, SIDE = T * BY * 64;
    constexpr unsigned FACE = 1, INSIDE = 1 << 8, WRITTEN = 1 << 16, FACES = 255;
    using Row = Cells<VECTOR>;
    static_assert(ROWS <= 8 && T <= VECTOR && HEIGHT > 2 * T, "a tile must be wider than what turns stale");
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // [SLOTS][HEIGHT][32] planes of u to come, [2][T][BY][2][32] edges, 32 of any value
    Row* const copies = reinterpret_cast<Row*>(shared) + warp * ROWS * 32 + lane;
    Row *now = reinterpret_cast<Row*>(shared) + SLOTS * SLOT + warp * 64 + lane, *later = now + SIDE;
    const Tiles across{n.nx, 32 * VECTOR, VECTOR}, down{n.ny, HEIGHT, T};
    const long long column = blockIdx.x % across.count(), rest = blockIdx.x / across.count();
    const long long line = rest % down.count(), first = rest / down.count() * planes;
    const long long x = across.begin(column) + lane * VECTOR, y = down.begin(line) + warp * ROWS;
    const bool west_face = x == 0, east_face = x == n.nx - VECTOR;
    const bool written_x = x >= across.low(column) && x < across.high(column);
    unsigned bits = 0;  // of every row: whether it is on a face, inside the grid, written
#pragma unroll
    for (int row = 0; row < ROWS; ++row) {
        bits |= (y + row == 0 || y + row == n.ny - 1 ? FACE : 0) << row;
        bits |= (x < n.nx && y + row < n.ny ? INSIDE : 0) << row;
        bits |= (written_x && y + row >= down.low(line) && y + row < down.high(line) ? WRITTEN : 0) << row;
    }
    // Planes are counted from `first`. The first of the grid is `bottom`, or far below; the last is `top`.
    const int left = n.nz - first < 1 << 30 ? n.nz - first : 1 << 30, count = planes < left ? planes : left;
    const int bottom = first < 1 << 30 ? -first : -1 << 30, top = left - 1;
    int k = bottom > -T ? bottom : -T;
    const long long plane = n.ny * n.nx;
    long long next_copied = n.index(first + k, y, x);
    Row below[T][ROWS] = {}, here[T][ROWS] = {};
    int slot = 0;  // the one that the next plane is read from; in a round, the one before is free
    const auto copy = [&](bool there, int free) {
        const float* at = u + next_copied;
        const unsigned which = there ? bits : 0;
#pragma unroll
        for (int row = 0; row < ROWS; ++row, at += n.nx)
            if (which & INSIDE << row) copy_async(copies + free + row * 32, at);
        end_group_of_copies();
        next_copied += plane;
    };
    for (int ahead = 0; ahead < SLOTS - 1; ++ahead) copy(k + ahead <= top, ahead * SLOT);
    // Copies plane k + SLOTS - 1 and goes on with plane k. `steady`: all planes computed are inside, and the last is
    // written.
    const auto round = [&](auto steady) {
        Row next[ROWS];
        copy(k + SLOTS - 1 <= top, slot > 0 ? slot - SLOT : (SLOTS - 1) * SLOT);
        wait_for_copies<SLOTS - 1>();
#pragma unroll
        for (int row = 0; row < ROWS; ++row) next[row] = copies[slot + row * 32];
        slot = slot == (SLOTS - 1) * SLOT ? 0 : slot + SLOT;
#pragma unroll
        for (int t = 0; t < T; ++t) {  // from planes after t sweeps to plane k - t - 1 after t + 1
            // A tile's first and last rows have any value for a neighbour: they turn stale.
            const Row south = now[t * BY * 64 - 32], north = now[t * BY * 64 + 64];
            Row result[ROWS];
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                const Row& cells = here[t][row];
                const Row& lower = row > 0 ? here[t][row > 0 ? row - 1 : 0] : south;
                const Row& upper = row < ROWS - 1 ? here[t][row < ROWS - 1 ? row + 1 : 0] : north;
                const float west = __shfl_up_sync(~0u, cells.cell[VECTOR - 1], 1);
                const float east = __shfl_down_sync(~0u, cells.cell[0], 1);
#pragma unroll
                for (int i = 0; i < VECTOR; ++i)
                    result[row].cell[i] = sixth(i > 0 ? cells.cell[i > 0 ? i - 1 : 0] : west,
                                                i < VECTOR - 1 ? cells.cell[i < VECTOR - 1 ? i + 1 : 0] : east,
                                                lower.cell[i], upper.cell[i], below[t][row].cell[i], next[row].cell[i]);
                if (west_face) result[row].cell[0] = cells.cell[0];
                if (east_face) result[row].cell[VECTOR - 1] = cells.cell[VECTOR - 1];
            }
            unsigned kept = bits & FACES;
            if (!steady.value && (k - t - 1 <= bottom || k - t - 1 >= top)) kept = FACES;
            if (kept) {
                asm volatile("" : "+r"(kept));  // so that its bits are looked at here alone
#pragma unroll
                for (int row = 0; row < ROWS; ++row)
                    if (kept & FACE << row) result[row] = here[t][row];
            }
            later[t * BY * 64] = next[0];
            later[t * BY * 64 + 32] = next[ROWS - 1];
#pragma unroll
            for (int row = 0; row < ROWS; ++row) {
                below[t][row] = here[t][row];
                here[t][row] = next[row];
                next[row] = result[row];
            }
        }
        if (steady.value || (k >= T && k < count + T)) {
            float* at = v + (next_copied - (SLOTS + T) * plane);
#pragma unroll
            for (int row = 0; row < ROWS; ++row, at += n.nx)
                if (bits & WRITTEN << row) *reinterpret_cast<Row*>(at) = next[row];
        }
        Row* const other = now;
        now = later;
        later = other;
        ++k;
        __syncthreads();  // this round's rows are written before the next reads them, and read before it writes there
    };
    const int begin = bottom < 0 ? T : T + 1, end = count + T, stop = end <= top ? end : top + 1;
    while (k < end) {
        if (k >= begin && k + 2 * T < stop) {
#pragma unroll
            for (int i = 0; i < 2 * T + 1; ++i) round(Flag<true>());  // then each plane is in the registers it was in
        } else {
            round(Flag<false>());
        }
    }
    wait_for_copies<0>();
}

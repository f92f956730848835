// sweep_times: T sweeps at once of what laplace3d.cu, the text before this one, does one by one. A block marches along z
// with T planes in flight: in a round it reads plane k of u and computes plane k - t after t sweeps, t = 1 ... T, from the
// planes one sweep before. Tiles overlap by 2T cells: a tile's outer cells turn stale, one cell further in with every
// sweep, and are not written.
//
// A. Nguyen, N. Satish, J. Chhugani, C. Kim and P. Dubey, 3.5-D Blocking Optimization for Stencil Computations on Modern
// CPUs and GPUs, SC 2010.

template <bool VALUE>
struct Flag {
    static constexpr bool value = VALUE;
};

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

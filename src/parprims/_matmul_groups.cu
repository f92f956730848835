// Matrix product on tensor cores by the instructions of a group of four warps (wgmma, compute capability 9.0 alone).
//
// Stands after _matmul_tensor.cu, whose kinds and copies it takes, and after multiply_group, one wgmma, which Python
// writes for the kind and the width at hand: c += a b, a of 64 x DEPTH from shared memory or registers, b of DEPTH x WIDTH
// from shared memory, asynchronously. What an instruction reads from shared memory lies in rows of 128 bytes whose parts of
// 16 are exchanged within each 8 rows (the 128-byte swizzle), so that neither copies nor reads meet bank conflicts.
//   multiply_by_groups        16-bit floats: both factors from shared memory, whichever way they lie.
//   multiply_floats_by_groups TF32 and SPLIT: instructions on 32-bit numbers take factors whose lines lie along k only.
//                             So does the right factor here, while the left one goes through registers, where it is
//                             rounded or split on the way. Where only a lies so, it is the right one: the result is
//                             transposed when it is written. For SPLIT each thread splits in shared memory what it has
//                             copied itself.
// A group of warps multiplies 64 lines of the left factor.
//
// Phases of a step: wait for the own copies of a tile; show them to the tensor cores (which read shared memory past the
// caches of ordinary reads) and wait for those of all threads; start the products; start the copies of a later tile to where
// nobody reads any more; wait for products.

#if __CUDA_ARCH__ == 900

template <Kind KIND>
constexpr int GROUP_DEPTH = KIND == HALF || KIND == BFLOAT ? 16 : 8;

// A tile of a factor in rows of 128 bytes: LENGTH lines of K numbers (ALONG), or for each 128 bytes of lines K rows.
template <int LENGTH, int K, int THREADS, bool ALONG>
struct Swizzled {
    static constexpr int VECTOR = 16 / (int)sizeof(T), ROW = 8 * VECTOR, SIZE = LENGTH * K;
    static_assert(ALONG ? K == ROW : LENGTH % ROW == 0, "rows have 128 bytes");

    static DEVICE int place(int row, int column) {
        const int part = column / VECTOR;
        return (part / 8 * K * !ALONG + row) * ROW + (part % 8 ^ row % 8) * VECTOR;
    }

    static DEVICE void copy(T* shared, const Factor& from, Index first, Index begin, Index end) {
        begin_to_copy<LENGTH, K, THREADS, VECTOR, ALONG>(
            from, first, begin, end, [&](int row, int column) { return shared + place(row, column); });
    }

    // What tells an instruction where lines from `line` on and numbers from k on lie: the address; the distance of
    // blocks of 128 bytes of lines; that of 8 rows; the swizzle.
    static DEVICE unsigned long long descriptor(const T* shared, int line, int k) {
        const T* const at = shared + (ALONG ? line * ROW + k : (line / ROW * K + k) * ROW);
        const unsigned address = (unsigned)__cvta_generic_to_shared(at);
        return (address & 0x3ffff) >> 4 | (unsigned long long)(K * 128 >> 4) << 16 | (unsigned long long)(1024 >> 4) << 32 |
               1ull << 62;
    }
};

// Shows ordinary writes to shared memory, copies among them, to the tensor cores.
DEVICE void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Lets products use registers that were written before.
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until no more than LEFT ended groups of products are under way. The empty asm keeps reads of sums behind it.
template <int LEFT, int COUNT>
DEVICE void wait_for_products(float (&sums)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    if constexpr (LEFT == 0) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
    }
}

// Returns the first place in dynamic shared memory that is a multiple of 1024 bytes, as swizzled rows begin.
DEVICE T* swizzled_memory() {
    extern __shared__ uint4 memory[];
    const unsigned address = (unsigned)__cvta_generic_to_shared(memory);
    return reinterpret_cast<T*>(memory + (-address % 1024) / 16);
}

// The element of c, in the tile of a group, that register `at` of a thread holds.
DEVICE int row_of(int at) { return threadIdx.x / WARP % 4 * 16 + at / 2 % 2 * 8 + threadIdx.x % WARP / 4; }
DEVICE int column_of(int at) { return at / 4 * 8 + threadIdx.x % 4 * 2 + at % 2; }

// A block of M / 64 groups. A tile is copied to where the one but last was.
template <Kind KIND, int M, int N, int K, int STAGES, bool A_ALONG, bool B_ALONG, bool C_VECTOR>
DEVICE void multiply_by_groups(const Factor& a, const Factor& b, const Result& c, const Place& p, Index depth, void* parts,
                               void* tickets) {
    constexpr int THREADS = M / 64 * 128;
    using TileA = Swizzled<M, K, THREADS, A_ALONG>;
    using TileB = Swizzled<N, K, THREADS, B_ALONG>;
    T *const shared_a = swizzled_memory(), *const shared_b = shared_a + STAGES * TileA::SIZE;
    const int row = threadIdx.x / 128 * 64;
    float sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = 0;

    const int tiles = (int)((p.end - p.begin + K - 1) / K);
    const auto copy = [&](int at) {
        const Index k = p.begin + (Index)at * K;
        if (at < tiles) {
            TileA::copy(shared_a + at % STAGES * TileA::SIZE, a, p.row, k, p.end);
            TileB::copy(shared_b + at % STAGES * TileB::SIZE, b, p.column, k, p.end);
        }
        end_group_of_staged();
    };
#pragma unroll
    for (int at = 0; at < STAGES - 2; ++at) copy(at);

#pragma unroll 1
    for (int at = 0; at < tiles; ++at) {
        wait_for_copies<STAGES - 3>();
        show_to_tensor_cores();
        __syncthreads();  // separates all copies of this tile from its products, and those of the one but last from copies
        const T* const from_a = shared_a + at % STAGES * TileA::SIZE;
        const T* const from_b = shared_b + at % STAGES * TileB::SIZE;
        begin_products();
#pragma unroll
        for (int k = 0; k < K; k += GROUP_DEPTH<KIND>)
            multiply_group(sums, TileA::descriptor(from_a, row, k), TileB::descriptor(from_b, 0, k), 1);
        end_products();
        copy(at + STAGES - 2);
        wait_for_products<1>(sums);
    }
    wait_for_products<0>(sums);
    wait_for_copies<0>();

    if (!combine_parts(sums, p, parts, tickets)) return;
    save_pairs<KIND, C_VECTOR>(sums, a, b, c, depth, [&](int at, Index& i, Index& j) {
        i = p.row + row + row_of(at);
        j = p.column + column_of(at);
    });
}

// A block of M / 64 groups; M lines of the left factor, N of the right one. TURNED: these are columns and rows of c. While
// the products of a tile are under way the right half of the next one is split, and the left half loaded.
template <Kind KIND, int M, int N, int K, int STAGES, int LEFT_VECTOR, bool LEFT_ALONG, bool TURNED, bool C_VECTOR>
DEVICE void multiply_floats_by_groups(const Factor& left, const Factor& right, const Result& c, const Place& p, Index depth,
                                      void* parts, void* tickets) {
    constexpr int THREADS = M / 64 * 128, PARTS = KIND == SPLIT ? 2 : 1;
    using Left = Staged<M, K, THREADS, LEFT_VECTOR, LEFT_ALONG>;
    using Right = Swizzled<N, K, THREADS, true>;
    T* const shared_right = swizzled_memory();
    T* const remainders = shared_right + STAGES * Right::SIZE;  // of three tiles in turn, for SPLIT
    T* const shared_left = remainders + (PARTS - 1) * 3 * Right::SIZE;
    const int row = threadIdx.x / 128 * 64, third = threadIdx.x % 4;
    float sums[N / 2], tile[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = tile[i] = 0;

    const int tiles = (int)((p.end - p.begin + K - 1) / K);
    const auto copy = [&](int at) {
        const Index k = p.begin + (Index)at * K;
        if (at < tiles) {
            Left::copy(shared_left + at % STAGES * Left::SIZE, left, p.row, k, p.end);
            Right::copy(shared_right + at % STAGES * Right::SIZE, right, p.column, k, p.end);
        }
        end_group_of_staged();
    };
    // Splits the vectors that begin_to_copy gave this thread, and shows all that it has copied.
    const auto prepare = [&](int at) {
        if constexpr (KIND == SPLIT) {
#pragma unroll
            for (int e = threadIdx.x; e < Right::SIZE / 4; e += THREADS) {
                const int place = Right::place(e / 8, e % 8 * 4);
                float4& whole = *reinterpret_cast<float4*>(shared_right + at % STAGES * Right::SIZE + place);
                float4& rest = *reinterpret_cast<float4*>(remainders + at % 3 * Right::SIZE + place);
                unsigned x[2], y[2], z[2], w[2];
                split<KIND>(x, whole.x), split<KIND>(y, whole.y), split<KIND>(z, whole.z), split<KIND>(w, whole.w);
                whole = make_float4(__uint_as_float(x[0]), __uint_as_float(y[0]), __uint_as_float(z[0]),
                                    __uint_as_float(w[0]));
                rest = make_float4(__uint_as_float(x[1]), __uint_as_float(y[1]), __uint_as_float(z[1]),
                                   __uint_as_float(w[1]));
            }
        }
        show_to_tensor_cores();
    };
    T waiting[K / 2];  // what the thread has of the left half: split when no product reads the registers it goes to
    const auto load_left = [&](int at) {
        const T* const from = shared_left + at % STAGES * Left::SIZE;
#pragma unroll
        for (int i = 0; i < K / 2; ++i)
            waiting[i] = *Left::at(from, row + row_of(i % 2 * 2), i / 4 * 8 + i % 4 / 2 * 4 + third);
    };
#pragma unroll
    for (int at = 0; at < STAGES - 1; ++at) copy(at);
    wait_for_copies<STAGES - 2>();
    prepare(0);
    __syncthreads();  // separates all copies of the first tile from its products and reads
    load_left(0);

#pragma unroll 1
    for (int at = 0; at < tiles; ++at) {
        const T *const from = shared_right + at % STAGES * Right::SIZE, *const rest = remainders + at % 3 * Right::SIZE;
        unsigned x[K / 8][PARTS][4];
#pragma unroll
        for (int i = 0; i < K / 2; ++i) {
            unsigned both[PARTS];
            split<KIND>(both, waiting[i]);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) x[i / 4][part][i % 4] = both[part];
        }
        begin_products();
#pragma unroll
        for (int k = 0; k < K; k += 8) {
            if constexpr (KIND == SPLIT) {
                multiply_group(tile, x[k / 8][1], Right::descriptor(from, 0, k), k > 0);
                multiply_group(tile, x[k / 8][0], Right::descriptor(rest, 0, k), 1);
            } else {
                multiply_group(tile, x[k / 8][0], Right::descriptor(from, 0, k), 1);
            }
        }
        end_products();
        if (at + 1 < tiles) {
            wait_for_copies<STAGES - 3>();
            prepare(at + 1);
            __syncthreads();  // separates all copies of the next tile from its products, and those of the last from copies
            load_left(at + 1);
            copy(at + STAGES - 1);
        }
        wait_for_products<0>(tile);
        if constexpr (KIND == SPLIT) {
#pragma unroll
            for (int i = 0; i < N / 2; ++i) sums[i] += tile[i] * (1 / UNITS);
            begin_products();
#pragma unroll
            for (int k = 0; k < K; k += 8) multiply_group(tile, x[k / 8][0], Right::descriptor(from, 0, k), k > 0);
            end_products();
            wait_for_products<0>(tile);
#pragma unroll
            for (int i = 0; i < N / 2; ++i) sums[i] += tile[i];
        }
    }
    wait_for_copies<0>();
    if constexpr (KIND != SPLIT) {
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[i] = tile[i];
    }

    if (!combine_parts(sums, p, parts, tickets)) return;
    const auto where = [&](int at, Index& i, Index& j) {
        i = TURNED ? p.column + column_of(at) : p.row + row + row_of(at);
        j = TURNED ? p.row + row + row_of(at) : p.column + column_of(at);
    };
    if constexpr (!TURNED) {
        save_pairs<KIND, C_VECTOR>(sums, left, right, c, depth, where);
    } else {
#pragma unroll
        for (int at = 0; at < N / 2; ++at) {
            Index i, j;
            where(at, i, j);
            if (i < c.m && j < c.n) c.base[i * c.n + j] = save(sums[at]);
        }
        multiply_again(sums, right, left, c, depth, where);
    }
}

#endif

// Matrix product on tensor cores by the instructions of a warp group (wgmma, compute capability 9.0 alone).
//
// Needs _matmul_tensor.cu. The instruction is a template parameter, which depends on the kind and the width:
//   struct Wgmma {
//       static constexpr int WIDTH;
//       // c += a b, or c = a b if `more` is 0, asynchronously. a is 64 x DEPTH, in shared memory (given by its
//       // descriptor) or in registers. b is DEPTH x WIDTH, in shared memory.
//       static void multiply(float (&c)[WIDTH / 2], a, unsigned long long b, int more);
//   };
// Operands in shared memory have the layout of the 128-byte swizzle: rows of 128 bytes, whose parts of 16 bytes are
// permuted within each 8 rows. So neither copies nor reads have bank conflicts.
//   multiply_by_groups        16-bit floats. Both factors are read from shared memory, along k or not.
//   multiply_floats_by_groups TF32 and SPLIT. Instructions on 32-bit numbers only take operands from shared memory
//                             whose lines are along k. The right factor is read from there. The left one goes through
//                             registers, where it is rounded or split. If only a is along k, it is the right factor
//                             (SWAPPED), and the result is transposed when it is stored. If neither is, pack_lines
//                             packs one of them first. For SPLIT, each copying thread splits in shared memory what it
//                             has copied.
//   multiply_doubles_by_groups  DOUBLE, for which there is no such instruction: warps use mma.sync.
//
// Copies: tiles are copied by threads, 16 bytes at a time, or by bulk tensor copies. One thread issues a bulk copy for
// a whole tile, which can also round the right factor of TF32. A bulk copy needs a tensor map in memory, which
// describes the factor. Each block makes its own, because addresses are not known before. That takes 0.7 us, which is
// more than bulk copies of 16-bit floats save in small products.
//
// Roles: a block goes from one unit of work to the next, so that copies for the next unit are in flight while a result
// is stored. The first group of a block copies. Each other group multiplies 64 lines of the left factor. They
// synchronize by two barriers in shared memory for each of the STAGES tiles: `full` when all of a tile has arrived,
// `empty` when all that multiply have released it. Tensor cores read shared memory by another path than ordinary reads
// (the async proxy), so ordinary writes need a fence. It is called by the threads that waited for a tile, or by those
// that copied and prepared it.
//
// Template parameters besides those in _matmul.cu and _matmul_tensor.cu:
//   Wgmma      see above
//   HOW        how tiles are copied (see Copying)
//   SWAPPED    whether the left factor is b
//   LEFT_VECTOR, LEFT_ALONG    A_VECTOR and A_ALONG for the left factor
//
// A. Kerr et al., CUTLASS: Fast Linear Algebra in CUDA C++, NVIDIA, 2017 (pipelines); M. Bauer, H. Cook and B.
// Khailany, CudaDMA: Optimizing GPU Memory Bandwidth via Warp Specialization, SC 2011 (warps that copy for others).

#if __CUDA_ARCH__ == 900

// How tiles are copied: by threads; both factors by bulk copies; the right factor by bulk copies and the left by
// threads.
enum Copying { BY_THREADS, AT_ONCE, RIGHT_AT_ONCE };

// A tensor map, which describes an array for bulk copies.
struct alignas(128) TensorMap {
    unsigned words[32];
};
static_assert(2 * sizeof(TensorMap) == 256, "the scratch of a block, for the maps of both factors");

// What bulk copies need besides: the length of lines along k; the number of matrices; the distances between matrices of
// a and of b in elements, 0 if all products share one; memory for the tensor maps of all blocks.
struct Bulk {
    Index depth, count, step_a, step_b;
    void* maps;
};

// A tile of a factor in rows of 128 bytes: LENGTH rows of K numbers (ALONG), or K rows for every 128 bytes of lines.
template <class T, int LENGTH, int K, int THREADS, bool ALONG>
struct SwizzledTile {
    static constexpr int VECTOR = 16 / (int)sizeof(T), ROW = 8 * VECTOR, PITCH = ROW, SIZE = LENGTH * K;
    static_assert(ALONG ? K == ROW : LENGTH % ROW == 0, "rows have 128 bytes");

    static DEVICE int place(int row, int column) {
        const int part = column / VECTOR;
        return (part / 8 * K * !ALONG + row) * ROW + (part % 8 ^ row % 8) * VECTOR;
    }

    using Copies = TileCopies<T, SwizzledTile, LENGTH, K, THREADS, VECTOR, ALONG>;

    // Returns the descriptor of the operand that begins at (line, k): the address, the distance between blocks of 128
    // bytes of lines, the distance between groups of 8 rows, and the swizzle.
    static DEVICE unsigned long long descriptor(const T* shared, int line, int k) {
        const T* const at = shared + (ALONG ? line * ROW + k : (line / ROW * K + k) * ROW);
        const unsigned address = (unsigned)__cvta_generic_to_shared(at);
        return (address & 0x3ffff) >> 4 | (unsigned long long)(K * 128 >> 4) << 16 |
               (unsigned long long)(1024 >> 4) << 32 |
               1ull << 62;
    }

    static constexpr int BOXES = ALONG ? 1 : LENGTH / ROW;  // bulk copies for a tile

    // Makes the tensor map of a factor whose matrices are `step` apart. A warp calls it. The map is made in shared
    // memory and then copied to `map`.
    template <Kind KIND>
    static DEVICE void describe(TensorMap* map, TensorMap& shared, const Factor<T>& factor, const Bulk& bulk,
                              Index step) {
        shared.words[threadIdx.x % WARP] = 0;
        map->words[threadIdx.x % WARP] = 0;  // initialised, because the copy below is an atomic exchange
        __syncwarp();
        const unsigned address = (unsigned)__cvta_generic_to_shared(&shared);
        if (threadIdx.x % WARP == 0) {
            const Index across = ALONG ? bulk.depth : factor.length, down = ALONG ? factor.length : bulk.depth;
            const auto bytes = [](Index step) { return max((Index)16, step * (Index)sizeof(T)); };
            constexpr int TYPE = KIND == HALF ? 6 : KIND == BFLOAT ? 10 : 11;  // 11: float32, rounded to tf32
            asm volatile(
                "tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1; "
                "tensormap.replace.tile.rank.shared::cta.b1024.b32 [%0], 2; "
                "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %2; "
                "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %3; "
                "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 2, %4; "
                "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %5; "
                "tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 1, %6; "
                "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 0, %7; "
                "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 1, %8; "
                "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%0], 2, %9; "
                "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 0, %9; "
                "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 1, %9; "
                "tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%0], 2, %9; "
                "tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%0], %10; "
                "tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%0], 0; "
                "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%0], 3; "
                "tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%0], 0;" ::"r"(address),
                "l"(factor.base), "r"((unsigned)across), "r"((unsigned)down), "r"(step ? (unsigned)bulk.count : 1u),
                "l"(bytes(ALONG ? factor.outer : factor.along)), "l"(bytes(step)), "r"(ROW), "r"(ALONG ? LENGTH : K),
                "r"(1), "n"(TYPE)
                : "memory");
        }
        __syncwarp();
        asm volatile(
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::"l"(
                map),
            "r"(address)
            : "memory");
        asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
    }

    // Copies the tile of a matrix from (line, k) on. One thread calls it. What is outside the factor arrives as zeros.
    static DEVICE void copy_at_once(const TensorMap* map, T* shared, unsigned barrier, int line, int k, int matrix) {
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
            const unsigned to = (unsigned)__cvta_generic_to_shared(shared + box * K * ROW);
            asm volatile(
                "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                "l"(map), "r"(ALONG ? k : line + box * ROW), "r"(ALONG ? line : k), "r"(matrix), "r"(barrier)
                : "memory");
        }
    }
};

// A fence that makes ordinary writes to shared memory, copies among them, visible to the tensor cores.
DEVICE void fence_for_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A fence between earlier accesses to registers and the products that use them.
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Commits the products since the last commit as one group.
DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most LEFT groups of products are in flight.
template <int LEFT>
DEVICE void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Keeps the compiler from moving reads of sums before the wait for their products.
template <int COUNT>
DEVICE void keep_after_wait(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// A barrier of 8 bytes at an address in shared memory (mbarrier). A phase ends after `count` arrivals. The parities of
// phases alternate, beginning with 0.
DEVICE void initialize(unsigned barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

DEVICE void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and makes the phase also wait for bulk copies of `bytes` bytes.
DEVICE void arrive_for(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives as soon as all asynchronous copies that this thread has begun are complete.
DEVICE void arrive_when_copied(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase with the given parity has ended. Before the first phase, parity 1 counts as ended.
DEVICE void wait(unsigned barrier, int parity) {
    unsigned ended;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(ended)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (!ended);
}

// How the groups of a block synchronize. PREPARED: the threads that copied a tile prepare it and make it visible when
// it has arrived, while LAG - 1 later tiles are in flight. LOADED: threads load from a tile, and each thread releases
// it. Otherwise tensor cores read it, and each warp releases it.
template <int GROUPS, int STAGES, bool PREPARED, bool LOADED, Copying HOW>
struct Pipeline {
    static constexpr int COPIERS = (HOW != AT_ONCE) * 128 + (HOW != BY_THREADS), READERS = GROUPS * (LOADED ? 128 : 4);
    static constexpr unsigned LAG = 2;
    unsigned barriers;

    DEVICE Pipeline() {
        __shared__ unsigned long long memory[2 * STAGES];
        barriers = (unsigned)__cvta_generic_to_shared(memory);
        asm("" : "+r"(barriers));  // else the compiler computes the address again, which is slow, wherever it is used
        if (threadIdx.x == 0) {
#pragma unroll
            for (int stage = 0; stage < STAGES; ++stage) {
                initialize(full(stage), COPIERS);
                initialize(empty(stage), READERS);
            }
            fence_for_tensor_cores();  // and to bulk copies
        }
        __syncthreads();  // separates the beginning of barriers from their use
    }

    DEVICE unsigned full(unsigned at) const { return barriers + at % STAGES * 8; }
    DEVICE unsigned empty(unsigned at) const { return full(at) + STAGES * 8; }

    DEVICE void wait_for_tile(unsigned at) const { wait(full(at), at / STAGES % 2); }

    // Releases a tile, which this thread or warp does not read any more.
    DEVICE void release_tile(unsigned at) const {
        __syncwarp();
        if (LOADED || threadIdx.x % WARP == 0) arrive(empty(at));
    }

    // Begins to copy a tile, by copy(at). prepare(stage) prepares what this thread has copied.
    template <class Copy, class Prepare>
    DEVICE void copy_tile(unsigned at, const Copy& copy, const Prepare& prepare) const {
        if (PREPARED && at >= LAG) {
            wait_for_copies<LAG - 1>();
            show(at - LAG, prepare);
        }
        wait(empty(at), 1 - at / STAGES % 2);
        copy(at);
        if constexpr (PREPARED)
            end_group_of_staged();
        else if constexpr (HOW != AT_ONCE)
            arrive_when_copied(full(at));
    }

    // Prepares the last of `count` tiles, and waits for all copies.
    template <class Prepare>
    DEVICE void end_copies(unsigned count, const Prepare& prepare) const {
        wait_for_staged();
        if constexpr (PREPARED)
#pragma unroll 1
            for (unsigned at = count < LAG ? 0 : count - LAG; at < count; ++at) show(at, prepare);
    }

    // Prepares a tile that has arrived, and makes it visible.
    template <class Prepare>
    DEVICE void show(unsigned at, const Prepare& prepare) const {
        prepare(at % STAGES);
        fence_for_tensor_cores();
        arrive(full(at));
    }
};

// combine_parts for all threads but those that copy, which a barrier of the whole block would wait for.
template <class Op, int GROUPS, int COUNT>
DEVICE bool combine_parts_of_groups(
    typename Op::Sum (&sums)[COUNT], const WorkTile& tile, void* parts, void* tickets) {
    return combine_parts<Op>(sums, tile, parts, tickets, (int)threadIdx.x - 128, GROUPS * 128,
                         [] { asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory"); });
}

// Returns the first place in dynamic shared memory that is aligned to 1024 bytes, where swizzled rows must begin.
template <class T>
DEVICE T* swizzled_memory() {
    extern __shared__ uint4 memory[];
    const unsigned address = (unsigned)__cvta_generic_to_shared(memory);
    return reinterpret_cast<T*>(memory + (-address % 1024) / 16);
}

// The row and column, in the tile of a group, of the element of c in register `at` of a thread.
DEVICE int row_of(int at) { return threadIdx.x / WARP % 4 * 16 + at / 2 % 2 * 8 + threadIdx.x % WARP / 4; }
DEVICE int column_of(int at) { return at / 4 * 8 + threadIdx.x % 4 * 2 + at % 2; }

// Transposes 2 x 2 numbers between two threads whose numbers differ in one bit. Afterwards the lower thread has what
// was `first` in both, and the upper thread what was `second` in both.
DEVICE void exchange(unsigned& first, unsigned& second, int bit) {
    const bool upper = threadIdx.x & bit;
    const unsigned other = __shfl_xor_sync(0xffffffffu, upper ? first : second, bit);
    if (upper)
        first = other;
    else
        second = other;
}

// Stores the sums of a group in c, from (row, column) on, as 16-bit numbers. The length of a row of c is a multiple of
// 8. Four adjacent threads transpose their numbers, so that each stores 8 adjacent ones at once.
template <class Op, int COUNT>
DEVICE void save_eights(const float (&sums)[COUNT], const Result<typename Op::Element>& c, Index row, Index column) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const Index i = row + row_of(half * 2);
#pragma unroll
        for (int at = half * 2; at < COUNT; at += 16) {
            unsigned pairs[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const typename Op::Element pair[2] = {Op::save(sums[at + e * 4]), Op::save(sums[at + e * 4 + 1])};
                memcpy(&pairs[e], pair, sizeof(unsigned));
            }
            exchange(pairs[0], pairs[1], 1), exchange(pairs[2], pairs[3], 1);
            exchange(pairs[0], pairs[2], 2), exchange(pairs[1], pairs[3], 2);
            const Index j = column + at / 16 * 32 + threadIdx.x % 4 * 8;
            if (i < c.m && j < c.n)
                *reinterpret_cast<uint4*>(c.base + i * c.n + j) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
}

// Calls then(work, tiles) for all units of work of the block, where `tiles` is the number of tiles along k. The
// kernel's tile has M lines of its left factor and N lines of its right factor.
template <int M, int N, int K, bool SWAPPED, class Products, class Then>
DEVICE void for_each_unit(const Products& products, unsigned units, const Then& then) {
#pragma unroll 1
    for (unsigned unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const auto work = products.template work<M, N, SWAPPED>(unit);
        then(work, (int)((work.tile.end - work.tile.begin + K - 1) / K));
    }
}

// Prepares nothing.
struct Nothing {
    DEVICE void operator()(int) const {}
};

// Divides the roles in a block. Returns false to the groups that are to multiply. The first group copies the tiles of
// all units, of the left and the right factor, and gets true when it is done. It passes `prepare` to the pipeline. If
// there are two groups that multiply, the first one gives registers to them.
template <Kind KIND, int M, int N, int K, class Left, class Right, bool SWAPPED, int GROUPS, int STAGES, bool PREPARED,
          bool LOADED, Copying HOW, class Products, class Prepare = Nothing, class T = typename Products::T>
DEVICE bool copy_units(const Pipeline<GROUPS, STAGES, PREPARED, LOADED, HOW>& pipeline, const Products& products,
                       unsigned units, T* left, T* right, const Bulk& bulk = {}, const Prepare& prepare = {}) {
    if (threadIdx.x >= 128) {
        if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(216));
        return false;
    }
    if constexpr (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(72));
    TensorMap *const right_map = static_cast<TensorMap*>(bulk.maps) + blockIdx.x * 2, *const left_map = right_map + 1;
    const Index left_step = SWAPPED ? bulk.step_b : bulk.step_a, right_step = SWAPPED ? bulk.step_a : bulk.step_b;
    if constexpr (HOW != BY_THREADS) {
        __shared__ TensorMap shared[2];
        if (threadIdx.x < WARP) {
            const auto work = products.template work<M, N, SWAPPED>(0);
            const auto &from_left = SWAPPED ? work.b : work.a, &from_right = SWAPPED ? work.a : work.b;
            Right::template describe<KIND>(right_map, shared[0], from_right, bulk, right_step);
            if constexpr (HOW == AT_ONCE)
                Left::template describe<KIND>(left_map, shared[1], from_left, bulk, left_step);
        }
        if (HOW == AT_ONCE && threadIdx.x > 0) return true;
    }
    unsigned at = 0;
    for_each_unit<M, N, K, SWAPPED>(products, units, [&](const auto& work, int tiles) {
        const WorkTile& part = work.tile;
        typename Left::Copies from_left(SWAPPED ? work.b : work.a, part.row, part.begin, part.end);
        typename Right::Copies from_right(SWAPPED ? work.a : work.b, part.column, part.begin, part.end);
        int k = (int)part.begin;
        const auto copy = [&](unsigned at) {
            T *const to_left = left + at % STAGES * Left::SIZE, *const to_right = right + at % STAGES * Right::SIZE;
            if constexpr (HOW != BY_THREADS) {
                if (threadIdx.x == 0) {
                    const unsigned full = pipeline.full(at);
                    arrive_for(full, (Right::SIZE + (HOW == AT_ONCE) * Left::SIZE) * sizeof(T));
                    Right::copy_at_once(right_map, to_right, full, (int)part.column, k, right_step ? part.matrix : 0);
                    if constexpr (HOW == AT_ONCE)
                        Left::copy_at_once(left_map, to_left, full, (int)part.row, k, left_step ? part.matrix : 0);
                }
                k += K;
            } else {
                from_right.copy(to_right);
            }
            if constexpr (HOW != AT_ONCE) from_left.copy(to_left);
        };
#pragma unroll 1
        for (const unsigned end = at + tiles; at < end; ++at) pipeline.copy_tile(at, copy, prepare);
    });
    pipeline.end_copies(at, prepare);
    return true;
}

// 16-bit floats. Each group multiplies 64 rows of a and N columns of b.
template <class Op, class Wgmma, Kind KIND, int M, int N, int K, int STAGES, int BYTES, Copying HOW, bool A_ALONG,
          bool B_ALONG, bool C_VECTOR, class Products>
DEVICE void multiply_by_groups(
    const Products& products, unsigned units, void* parts, void* tickets, const Bulk& bulk = {}) {
    using T = typename Op::Element;
    constexpr int GROUPS = M / 64;
    using TileA = SwizzledTile<T, M, K, 128, A_ALONG>;
    using TileB = SwizzledTile<T, N, K, 128, B_ALONG>;
    static_assert(Wgmma::WIDTH == N, "the instruction is one for this tile");
    static_assert(STAGES * (TileA::SIZE + TileB::SIZE) * sizeof(T) + 1024 <= BYTES, "the stages fit in shared memory");
    T *const shared_a = swizzled_memory<T>(), *const shared_b = shared_a + STAGES * TileA::SIZE;
    const Pipeline<GROUPS, STAGES, false, false, HOW> pipeline;
    if (copy_units<KIND, M, N, K, TileA, TileB, false>(pipeline, products, units, shared_a, shared_b, bulk)) return;
    const int row = ((int)threadIdx.x / 128 - 1) * 64;
    unsigned at = 0;  // counts tiles along k, through all units
    for_each_unit<M, N, K, false>(products, units, [&](const auto& work, int tiles) {
        const auto& c = work.c;
        const WorkTile& part = work.tile;
        float sums[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[i] = 0;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, ++at) {
            const T* const from_a = shared_a + at % STAGES * TileA::SIZE;
            const T* const from_b = shared_b + at % STAGES * TileB::SIZE;
            pipeline.wait_for_tile(at);
            if (HOW == BY_THREADS) fence_for_tensor_cores();
            begin_products();
#pragma unroll
            for (int k = 0; k < K; k += Fragment<KIND>::DEPTH)
                Wgmma::multiply(sums, TileA::descriptor(from_a, row, k), TileB::descriptor(from_b, 0, k), 1);
            end_products();
            wait_for_products<1>();
            if (tile > 0) pipeline.release_tile(at - 1);
        }
        wait_for_products<0>();
        keep_after_wait(sums);
        pipeline.release_tile(at - 1);

        if (!combine_parts_of_groups<Op, GROUPS>(sums, part, parts, tickets)) return;
        if constexpr (C_VECTOR) {
            save_eights<Op>(sums, c, part.row + row, part.column);
        } else {
            save_pairs<Op, false>(sums, c, [&](int at, Index& i, Index& j) {
                i = part.row + row + row_of(at);
                j = part.column + column_of(at);
            });
        }
    });
}

// TF32 and SPLIT. A tile has M lines of the left factor and N of the right one, which are columns and rows of c if
// SWAPPED. TF32 starts the products of a tile before those of the last one have ended. SPLIT sums the products of each
// tile apart, and adds them to sums in registers while the products with remainders are in flight. Those are summed
// through all tiles, for their sums need less accuracy.
template <class Op, class Wgmma, Kind KIND, int M, int N, int K, int STAGES, int BYTES, Copying HOW, int LEFT_VECTOR,
          bool LEFT_ALONG, bool SWAPPED, bool C_VECTOR, class Products>
DEVICE void multiply_floats_by_groups(
    const Products& products, unsigned units, void* parts, void* tickets, const Bulk& bulk = {}) {
    using T = typename Op::Element;
    constexpr int GROUPS = M / 64, PARTS = Fragment<KIND>::PARTS;
    using Left = PaddedTile<T, M, K, 128, LEFT_VECTOR, LEFT_ALONG>;
    using Right = SwizzledTile<T, N, K, 128, true>;
    static_assert(Wgmma::WIDTH == N, "the instruction is one for this tile");
    static_assert(STAGES * (Left::SIZE + PARTS * Right::SIZE) * sizeof(T) + 1024 <= BYTES,
                  "the stages fit in shared memory");
    static_assert(N % 16 == 0, "128 threads split 16 lines at once");
    T* const shared_right = swizzled_memory<T>();
    T* const remainders = shared_right + STAGES * Right::SIZE;  // for SPLIT
    T* const shared_left = remainders + (PARTS - 1) * STAGES * Right::SIZE;
    const Pipeline<GROUPS, STAGES, KIND == SPLIT, true, HOW> pipeline;
    // Splits the vectors that this thread has copied.
    const auto prepare = [&](int stage) {
        if constexpr (KIND == SPLIT) {
            const int begin = stage * Right::SIZE + Right::place(threadIdx.x / 8, threadIdx.x % 8 * 4);
#pragma unroll
            for (int e = 0; e < N / 16; ++e) {
                const int place = begin + e * 16 * Right::ROW;
                float4& whole = *reinterpret_cast<float4*>(shared_right + place);
                float4& rest = *reinterpret_cast<float4*>(remainders + place);
                unsigned x[2], y[2], z[2], w[2];
                split<KIND>(x, whole.x), split<KIND>(y, whole.y), split<KIND>(z, whole.z), split<KIND>(w, whole.w);
                whole = make_float4(__uint_as_float(x[0]), __uint_as_float(y[0]), __uint_as_float(z[0]),
                                    __uint_as_float(w[0]));
                rest = make_float4(__uint_as_float(x[1]), __uint_as_float(y[1]), __uint_as_float(z[1]),
                                   __uint_as_float(w[1]));
            }
        }
    };
    if (copy_units<KIND, M, N, K, Left, Right, SWAPPED>(
            pipeline, products, units, shared_left, shared_right, bulk, prepare))
        return;
    const int row = ((int)threadIdx.x / 128 - 1) * 64;
    unsigned at = 0;  // counts tiles along k, through all units

    const auto load_left = [&](T (&to)[K / 2], unsigned at) {
        const T* const from = shared_left + at % STAGES * Left::SIZE;
#pragma unroll
        for (int k = 0; k < K; k += 8)
            take_rows<Left>(from, row + threadIdx.x / WARP % 4 * 16, k,
                            [&](int i, T number) { to[k / 2 + i] = number; });
    };
    using Registers = unsigned[K / 8][PARTS][4];
    const auto split_left = [&](Registers& to, const T (&x)[K / 2]) {
#pragma unroll
        for (int i = 0; i < K / 2; ++i) {
            unsigned both[PARTS];
            split<KIND>(both, x[i]);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) to[i / 4][part][i % 4] = both[part];
        }
    };
    for_each_unit<M, N, K, SWAPPED>(products, units, [&](const auto& work, int tiles) {
        const auto& c = work.c;
        const WorkTile& part = work.tile;
        float sums[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[i] = 0;
        T next[K / 2];  // this thread's numbers of the next tile; split when no product reads the registers they go to
        const auto take = [&](unsigned tile) {
            pipeline.wait_for_tile(tile);
            if (KIND != SPLIT && HOW == BY_THREADS) fence_for_tensor_cores();
            load_left(next, tile);
        };
        take(at);
        if constexpr (KIND == SPLIT) {
            float tile[N / 2], rest[N / 2];
#pragma unroll
            for (int i = 0; i < N / 2; ++i) tile[i] = rest[i] = 0;
#pragma unroll 1
            for (const unsigned end = at + tiles; at < end; ++at) {
                const int place = at % STAGES * Right::SIZE;
                Registers x;
                split_left(x, next);
                begin_products();
#pragma unroll
                for (int k = 0; k < K; k += 8)
                    Wgmma::multiply(tile, x[k / 8][0], Right::descriptor(shared_right + place, 0, k), k > 0);
                end_products();
#pragma unroll
                for (int k = 0; k < K; k += 8) {
                    Wgmma::multiply(rest, x[k / 8][1], Right::descriptor(shared_right + place, 0, k), 1);
                    Wgmma::multiply(rest, x[k / 8][0], Right::descriptor(remainders + place, 0, k), 1);
                }
                end_products();
                if (at + 1 < end) take(at + 1);
                wait_for_products<1>();
                keep_after_wait(tile);
#pragma unroll
                for (int i = 0; i < N / 2; ++i) sums[i] += tile[i];
                wait_for_products<0>();
                keep_after_wait(rest);
                pipeline.release_tile(at);
            }
#pragma unroll
            for (int i = 0; i < N / 2; ++i) sums[i] += rest[i] * (1 / UNITS);
        } else {
            Registers x[2];
            split_left(x[0], next);
            const unsigned begin = at, end = at + tiles;
            const auto multiply = [&](const Registers& now, Registers& later) {
                const T* const from = shared_right + at % STAGES * Right::SIZE;
                begin_products();
#pragma unroll
                for (int k = 0; k < K; k += 8) Wgmma::multiply(sums, now[k / 8][0], Right::descriptor(from, 0, k), 1);
                end_products();
                const bool more = at + 1 < end;
                if (more) take(at + 1);
                wait_for_products<1>();
                if (at > begin) pipeline.release_tile(at - 1);
                if (more) split_left(later, next);
                ++at;
            };
#pragma unroll 1
            while (at < end) {
                multiply(x[0], x[1]);
                if (at < end) multiply(x[1], x[0]);
            }
            wait_for_products<0>();
            keep_after_wait(sums);
            pipeline.release_tile(at - 1);
        }

        if (!combine_parts_of_groups<Op, GROUPS>(sums, part, parts, tickets)) return;
        const auto where = [&](int at, Index& i, Index& j) {
            i = SWAPPED ? part.column + column_of(at) : part.row + row + row_of(at);
            j = SWAPPED ? part.row + row + row_of(at) : part.column + column_of(at);
        };
        if constexpr (!SWAPPED) {
            save_pairs<Op, C_VECTOR>(sums, c, where);
        } else {
#pragma unroll
            for (int at = 0; at < N / 2; ++at) {
                Index i, j;
                where(at, i, j);
                if (i < c.m && j < c.n) c.base[i * c.n + j] = Op::save(sums[at]);
            }
        }
        recompute_not_finite<Op>(sums, work.a, work.b, c, products.k, where);
    });
}

// DOUBLE. Each warp has a tile of 64 x 32. While it multiplies 16 rows of it, it loads the next 16 rows, and a part of
// the right factor for the next step along k.
template <class Op, Kind KIND, int M, int N, int K, int STAGES, int BYTES, int A_VECTOR, bool A_ALONG, int B_VECTOR,
          bool B_ALONG, bool C_VECTOR, class Products>
DEVICE void multiply_doubles_by_groups(const Products& products, unsigned units, void* parts, void* tickets) {
    using T = typename Op::Element;
    using S = typename Op::Sum;
    constexpr int TALL = 4, BROAD = 4, ACROSS = N / (BROAD * 8), GROUPS = M / (TALL * 16) * ACROSS / 4;
    constexpr int DEPTH = Fragment<KIND>::DEPTH, STEPS = K / DEPTH;
    static_assert(STEPS % 2 == 0 && TALL == BROAD, "two sets of registers take turns");
    using SharedA = PaddedTile<T, M, K, 128, A_VECTOR, A_ALONG>;
    using SharedB = PaddedTile<T, N, K, 128, B_VECTOR, B_ALONG>;
    static_assert(STAGES * (SharedA::SIZE + SharedB::SIZE) * sizeof(T) + 1024 <= BYTES,
                  "the stages fit in shared memory");
    T *const shared_a = swizzled_memory<T>(), *const shared_b = shared_a + STAGES * SharedA::SIZE;
    const Pipeline<GROUPS, STAGES, false, true, BY_THREADS> pipeline;
    if (copy_units<KIND, M, N, K, SharedA, SharedB, false>(pipeline, products, units, shared_a, shared_b)) return;
    const int warp = threadIdx.x / WARP - 4;
    const int row = warp / ACROSS * TALL * 16, column = warp % ACROSS * BROAD * 8;
    const int lane = threadIdx.x % WARP;
    TileReader<SharedA, 8, 4> from_a(row + lane / 4, lane % 4);
    TileReader<SharedB, 8, 4> from_b(column + lane / 4, lane % 4);
    S x[2][4], y[2][BROAD][2];
    const auto load_x = [&](S (&to)[4], int i, int k) {
#pragma unroll
        for (int e = 0; e < 4; ++e) to[e] = Op::load(from_a.at(i * 16 + e % 2 * 8, k + e / 2 * 4));
    };
    const auto load_y = [&](S (&to)[2], int j, int k) {
#pragma unroll
        for (int e = 0; e < 2; ++e) to[e] = Op::load(from_b.at(j * 8, k + e * 4));
    };
    const auto move_a = [&](unsigned at) { from_a.move_to(shared_a + at % STAGES * SharedA::SIZE); };
    const auto move_b = [&](unsigned at) { from_b.move_to(shared_b + at % STAGES * SharedB::SIZE); };
    unsigned at = 0;  // counts tiles along k, through all units
    for_each_unit<M, N, K, false>(products, units, [&](const auto& work, int tiles) {
        const auto& c = work.c;
        const WorkTile& part = work.tile;
        S tile[TALL][BROAD][4] = {};
        pipeline.wait_for_tile(at);
        move_a(at), move_b(at);
#pragma unroll
        for (int j = 0; j < BROAD; ++j) load_y(y[0][j], j, 0);
        load_x(x[0], 0, 0);
        const auto multiply = [&](auto more) {  // more.value: another tile follows
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const bool last = step == STEPS - 1, next = !last || more.value;
                const int k = last ? 0 : (step + 1) * DEPTH;  // of the next step, in its tile
                if (last && next) {
                    pipeline.wait_for_tile(at + 1);
                    move_b(at + 1);
                }
#pragma unroll
                for (int i = 0; i < TALL; ++i) {
                    multiply_add<KIND>(tile[i][0], x[i % 2], y[step % 2][0]);
                    if (i + 1 < TALL) {
                        load_x(x[(i + 1) % 2], i + 1, step * DEPTH);
                    } else if (next) {
                        if (last) move_a(at + 1);
                        load_x(x[0], 0, k);
                    }
                    if (next) load_y(y[(step + 1) % 2][i], i, k);
                    if (last && i == TALL - 2) pipeline.release_tile(at);
#pragma unroll
                    for (int j = 1; j < BROAD; ++j) multiply_add<KIND>(tile[i][j], x[i % 2], y[step % 2][j]);
                }
            }
            ++at;
        };
#pragma unroll 1
        for (int left = tiles - 1; left > 0; --left) multiply(Flag<true>());
        multiply(Flag<false>());
        S sums[TALL * BROAD * 4];
#pragma unroll
        for (int i = 0; i < TALL * BROAD * 4; ++i) sums[i] = tile[i / 4 / BROAD][i / 4 % BROAD][i % 4];
        if (!combine_parts_of_groups<Op, GROUPS>(sums, part, parts, tickets)) return;
        save_pairs<Op, C_VECTOR>(sums, c, [&](int at, Index& i, Index& j) {
            i = part.row + row + WarpStep<KIND, TALL, BROAD>::row_of(at);
            j = part.column + column + WarpStep<KIND, TALL, BROAD>::column_of(at);
        });
    });
}

#endif

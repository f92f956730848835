// Matrix product on tensor cores by the instructions of a group of four warps (wgmma, compute capability 9.0 alone).
//
// Stands after _matmul_tensor.cu, whose kinds and copies it takes. The instruction itself depends on the kind and the width:
//   struct Wgmma {
//       static constexpr int WIDTH;
//       // c += a b, or without `more` c = a b, asynchronously: a of 64 x DEPTH from shared memory (by its descriptor) or
//       // from registers, b of DEPTH x WIDTH from shared memory.
//       static void multiply(float (&c)[WIDTH / 2], a, unsigned long long b, int more);
//   };
// What an instruction reads from shared memory lies in rows of 128 bytes whose parts of
// 16 are exchanged within each 8 rows (the 128-byte swizzle), so that neither copies nor reads meet bank conflicts.
//   multiply_by_groups        16-bit floats: both factors from shared memory, whichever way they lie.
//   multiply_floats_by_groups TF32 and SPLIT: instructions on 32-bit numbers take factors whose lines lie along k only.
//                             So does the right factor here, while the left one goes through registers, where it is
//                             rounded or split on the way. Where only a lies so, it is the right one: the result is
//                             transposed when it is written. Where neither does, pack_lines has laid one so. For SPLIT
//                             each thread that copies splits in shared memory what it has copied itself.
//   multiply_doubles_by_groups  DOUBLE, which has no such instructions: the four warps multiply by those of a warp.
//
// Tiles are copied by threads, 16 bytes at a time, or at once by an instruction (a bulk tensor copy), which one thread
// issues, and which rounds the right factor of TF32 on the way. What such a copy knows of a factor, its tensor map, has to
// lie in memory: each block makes its own, for addresses are not known before. That takes 0.7 us, more than bulk copies of
// 16-bit floats win for small products.
//
// A block goes from one tile of the result, or part of its sum, to the next, so that copies for that are under way while a
// result is written. The first group of a block copies; each other group multiplies 64 lines of the left factor. They meet at two barriers
// in shared memory for each of the STAGES tiles there: `full`, when all that a tile consists of has come; `empty`, when all
// that multiply are done with it. What was written is shown to the tensor cores, which read shared memory past the
// caches of ordinary reads, by those who have waited for it, or by those who have copied it and seen to it.
//
// A. Kerr et al., CUTLASS: Fast Linear Algebra in CUDA C++, NVIDIA, 2017 (pipelines); M. Bauer, H. Cook and B. Khailany,
// CudaDMA: Optimizing GPU Memory Bandwidth via Warp Specialization, SC 2011 (warps that copy for others).

#if __CUDA_ARCH__ == 900

// Whether tiles are copied by threads, or by instructions that copy all of one: of both factors, or of the right one.
enum Copying { BY_THREADS, AT_ONCE, RIGHT_AT_ONCE };

// What a bulk copy knows of the memory it reads from.
struct alignas(128) TensorMap {
    unsigned words[32];
};
static_assert(2 * sizeof(TensorMap) == 256, "a block has as much scratch, for the maps of both factors");

// What bulk copies know besides: the length of lines along k; how many matrices there are, and how far those of a and of b are
// apart, in elements: 0 if all products share one; memory for the tensor maps of all blocks.
struct Bulk {
    Index depth, count, step_a, step_b;
    void* maps;
};

// A tile of a factor in rows of 128 bytes: LENGTH lines of K numbers (ALONG), or for each 128 bytes of lines K rows.
template <class T, int LENGTH, int K, int THREADS, bool ALONG>
struct SwizzledTile {
    static constexpr int VECTOR = 16 / (int)sizeof(T), ROW = 8 * VECTOR, PITCH = ROW, SIZE = LENGTH * K;
    static_assert(ALONG ? K == ROW : LENGTH % ROW == 0, "rows have 128 bytes");

    static DEVICE int place(int row, int column) {
        const int part = column / VECTOR;
        return (part / 8 * K * !ALONG + row) * ROW + (part % 8 ^ row % 8) * VECTOR;
    }

    using Copies = TileCopies<T, SwizzledTile, LENGTH, K, THREADS, VECTOR, ALONG>;

    // What tells an instruction where lines from `line` on and numbers from k on lie: the address; the distance of
    // blocks of 128 bytes of lines; that of 8 rows; the swizzle.
    static DEVICE unsigned long long descriptor(const T* shared, int line, int k) {
        const T* const at = shared + (ALONG ? line * ROW + k : (line / ROW * K + k) * ROW);
        const unsigned address = (unsigned)__cvta_generic_to_shared(at);
        return (address & 0x3ffff) >> 4 | (unsigned long long)(K * 128 >> 4) << 16 | (unsigned long long)(1024 >> 4) << 32 |
               1ull << 62;
    }

    static constexpr int BOXES = ALONG ? 1 : LENGTH / ROW;

    // Describes a factor, whose matrices are `step` apart, for bulk copies (a tensor map), as a warp: in shared memory, from
    // where it goes to `map`.
    template <Kind KIND>
    static DEVICE void describe(TensorMap* map, TensorMap& shared, const Factor<T>& factor, const Bulk& bulk, Index step) {
        shared.words[threadIdx.x % WARP] = 0;
        map->words[threadIdx.x % WARP] = 0;  // what goes there is exchanged with what lies there, atomically
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

    // Copies the tile of a matrix from line `line` and from k on, as one thread; from beyond the factor come zeros.
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

// Shows ordinary writes to shared memory, copies among them, to the tensor cores.
DEVICE void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Lets products use registers that were written before.
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVICE void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until no more than LEFT ended groups of products are under way.
template <int LEFT>
DEVICE void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

// Keeps reads of sums, whose products have been waited for, behind that.
template <int COUNT>
DEVICE void keep_behind(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// A barrier of 8 bytes at an address in shared memory, whose phases end when `count` arrivals have come; the parities of
// phases alternate, from 0 on.
DEVICE void initialize(unsigned barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

DEVICE void arrive(unsigned barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives for bulk copies that bring so many bytes, without which the phase does not end.
DEVICE void arrive_for(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Arrives as soon as all has come that this thread has begun to copy.
DEVICE void arrive_when_copied(unsigned barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Waits until the phase of a parity has ended; that of parity 1 has before any began.
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

// What the groups of a block are to each other. PREPARED: who has copied sees to a tile before it is shown, and shows it,
// where it has come, when the copies of LAG - 1 later ones are under way. LOADED: threads load from a tile, and each of them
// leaves it; otherwise the tensor cores read it, and a warp leaves it as one.
template <int GROUPS, int STAGES, bool PREPARED, bool LOADED, Copying HOW>
struct Pipeline {
    static constexpr int COPIERS = (HOW != AT_ONCE) * 128 + (HOW != BY_THREADS), READERS = GROUPS * (LOADED ? 128 : 4);
    static constexpr unsigned LAG = 2;
    unsigned barriers;

    DEVICE Pipeline() {
        __shared__ unsigned long long memory[2 * STAGES];
        barriers = (unsigned)__cvta_generic_to_shared(memory);
        asm("" : "+r"(barriers));  // keeps the address from being found again, which takes long, wherever it is used
        if (threadIdx.x == 0) {
#pragma unroll
            for (int stage = 0; stage < STAGES; ++stage) {
                initialize(full(stage), COPIERS);
                initialize(empty(stage), READERS);
            }
            show_to_tensor_cores();  // and to bulk copies
        }
        __syncthreads();  // separates the beginning of barriers from their use
    }

    DEVICE unsigned full(unsigned at) const { return barriers + at % STAGES * 8; }
    DEVICE unsigned empty(unsigned at) const { return full(at) + STAGES * 8; }

    DEVICE void wait_for_tile(unsigned at) const { wait(full(at), at / STAGES % 2); }

    // Says that a tile is read no more.
    DEVICE void leave_tile(unsigned at) const {
        __syncwarp();
        if (LOADED || threadIdx.x % WARP == 0) arrive(empty(at));
    }

    // Begins to copy a tile, by copy(at). prepare(stage) sees to what the thread has copied.
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

    // Sees to what is left of `count` tiles.
    template <class Prepare>
    DEVICE void end_copies(unsigned count, const Prepare& prepare) const {
        wait_for_staged();
        if constexpr (PREPARED)
#pragma unroll 1
            for (unsigned at = count < LAG ? 0 : count - LAG; at < count; ++at) show(at, prepare);
    }

    template <class Prepare>
    DEVICE void show(unsigned at, const Prepare& prepare) const {
        prepare(at % STAGES);
        show_to_tensor_cores();
        arrive(full(at));
    }
};

// Combines parts as all threads but those that copy; the barrier of all is not for them.
template <class Op, int GROUPS, int COUNT>
DEVICE bool combine_parts_of_groups(
    typename Op::Sum (&sums)[COUNT], const WorkTile& tile, void* parts, void* tickets) {
    return combine_parts<Op>(sums, tile, parts, tickets, (int)threadIdx.x - 128, GROUPS * 128,
                         [] { asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory"); });
}

// Returns the first place in dynamic shared memory that is a multiple of 1024 bytes, as swizzled rows begin.
template <class T>
DEVICE T* swizzled_memory() {
    extern __shared__ uint4 memory[];
    const unsigned address = (unsigned)__cvta_generic_to_shared(memory);
    return reinterpret_cast<T*>(memory + (-address % 1024) / 16);
}

// The element of c, in the tile of a group, that register `at` of a thread holds.
DEVICE int row_of(int at) { return threadIdx.x / WARP % 4 * 16 + at / 2 % 2 * 8 + threadIdx.x % WARP / 4; }
DEVICE int column_of(int at) { return at / 4 * 8 + threadIdx.x % 4 * 2 + at % 2; }

// Exchanges numbers with the thread whose number differs in a bit: of the two threads, the lower one has both that were
// first then, the upper one both that were second.
DEVICE void exchange(unsigned& first, unsigned& second, int bit) {
    const bool upper = threadIdx.x & bit;
    const unsigned other = __shfl_xor_sync(0xffffffffu, upper ? first : second, bit);
    if (upper)
        first = other;
    else
        second = other;
}

// Writes the sums of a group, as numbers of 16 bits, to c from (row, column) on, where c has rows of whole eights of them:
// each thread those that its four neighbours have side by side.
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

// Calls then(work, tiles) for all units of the block, with what a unit consists of, for a kernel whose tile has M lines of
// its left factor and N of its right one, and with its number of tiles along k.
template <int M, int N, int K, bool SWAPPED, class Products, class Then>
DEVICE void for_each_unit(const Products& products, unsigned units, const Then& then) {
#pragma unroll 1
    for (unsigned unit = blockIdx.x; unit < units; unit += gridDim.x) {
        const auto work = products.template work<M, N, SWAPPED>(unit);
        then(work, (int)((work.tile.end - work.tile.begin + K - 1) / K));
    }
}

// For tiles that are shown as they come.
struct Nothing {
    DEVICE void operator()(int) const {}
};

// Begins a block: returns false to the groups that are to multiply. The first group copies the tiles of all units, of the left
// factor and the right one (b and a if SWAPPED), prepare(stage) as in `Pipeline`, and is done. Where three groups share the
// registers, it gives some of its own to the others.
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
            if constexpr (HOW == AT_ONCE) Left::template describe<KIND>(left_map, shared[1], from_left, bulk, left_step);
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

template <class Op, class Wgmma, Kind KIND, int M, int N, int K, int STAGES, int BYTES, Copying HOW, bool A_ALONG,
          bool B_ALONG, bool C_VECTOR, class Products>
DEVICE void multiply_by_groups(
    const Products& products, unsigned units, void* parts, void* tickets, const Bulk& bulk = {}) {
    using T = typename Op::Element;
    constexpr int GROUPS = M / 64;
    using TileA = SwizzledTile<T, M, K, 128, A_ALONG>;
    using TileB = SwizzledTile<T, N, K, 128, B_ALONG>;
    static_assert(Wgmma::WIDTH == N, "the instruction is one for this tile");
    static_assert(STAGES * (TileA::SIZE + TileB::SIZE) * sizeof(T) + 1024 <= BYTES, "the stages fit shared memory");
    T *const shared_a = swizzled_memory<T>(), *const shared_b = shared_a + STAGES * TileA::SIZE;
    const Pipeline<GROUPS, STAGES, false, false, HOW> pipeline;
    if (copy_units<KIND, M, N, K, TileA, TileB, false>(pipeline, products, units, shared_a, shared_b, bulk)) return;
    const int row = ((int)threadIdx.x / 128 - 1) * 64;
    unsigned at = 0;  // the number of a tile along k, of all units
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
            if (HOW == BY_THREADS) show_to_tensor_cores();
            begin_products();
#pragma unroll
            for (int k = 0; k < K; k += Fragment<KIND>::DEPTH)
                Wgmma::multiply(sums, TileA::descriptor(from_a, row, k), TileB::descriptor(from_b, 0, k), 1);
            end_products();
            wait_for_products<1>();
            if (tile > 0) pipeline.leave_tile(at - 1);
        }
        wait_for_products<0>();
        keep_behind(sums);
        pipeline.leave_tile(at - 1);

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

// M lines of the left factor, N of the right one, which are columns and rows of c if SWAPPED. TF32 starts the products of a
// tile before those of the last one have ended. SPLIT sums the products of a tile apart, and adds them to sums in
// registers while those with remainders, whose sums need no such care, are under way.
template <class Op, class Wgmma, Kind KIND, int M, int N, int K, int STAGES, int BYTES, Copying HOW, int LEFT_VECTOR,
          bool LEFT_ALONG, bool SWAPPED, bool C_VECTOR, class Products>
DEVICE void multiply_floats_by_groups(
    const Products& products, unsigned units, void* parts, void* tickets, const Bulk& bulk = {}) {
    using T = typename Op::Element;
    constexpr int GROUPS = M / 64, PARTS = Fragment<KIND>::PARTS;
    using Left = PaddedTile<T, M, K, 128, LEFT_VECTOR, LEFT_ALONG>;
    using Right = SwizzledTile<T, N, K, 128, true>;
    static_assert(Wgmma::WIDTH == N, "the instruction is one for this tile");
    static_assert(STAGES * (Left::SIZE + PARTS * Right::SIZE) * sizeof(T) + 1024 <= BYTES, "the stages fit shared memory");
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
    unsigned at = 0;  // the number of a tile along k, of all units

    const auto load_left = [&](T (&to)[K / 2], unsigned at) {
        const T* const from = shared_left + at % STAGES * Left::SIZE;
#pragma unroll
        for (int k = 0; k < K; k += 8)
            take_rows<Left>(from, row + threadIdx.x / WARP % 4 * 16, k, [&](int i, T number) { to[k / 2 + i] = number; });
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
        T next[K / 2];  // what the thread has of the next tile: split when no product reads the registers it goes to
        const auto take = [&](unsigned tile) {
            pipeline.wait_for_tile(tile);
            if (KIND != SPLIT && HOW == BY_THREADS) show_to_tensor_cores();
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
                keep_behind(tile);
#pragma unroll
                for (int i = 0; i < N / 2; ++i) sums[i] += tile[i];
                wait_for_products<0>();
                keep_behind(rest);
                pipeline.leave_tile(at);
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
                if (at > begin) pipeline.leave_tile(at - 1);
                if (more) split_left(later, next);
                ++at;
            };
#pragma unroll 1
            while (at < end) {
                multiply(x[0], x[1]);
                if (at < end) multiply(x[1], x[0]);
            }
            wait_for_products<0>();
            keep_behind(sums);
            pipeline.leave_tile(at - 1);
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
        multiply_again<Op>(sums, work.a, work.b, c, products.k, where);
    });
}

template <bool VALUE>
struct Flag {
    static constexpr bool value = VALUE;
};

// Each warp has a tile of 64 x 32. While it multiplies 16 rows of that, it loads those that follow, and a part of what the
// next step along k has of the right factor.
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
    static_assert(STAGES * (SharedA::SIZE + SharedB::SIZE) * sizeof(T) + 1024 <= BYTES, "the stages fit shared memory");
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
    unsigned at = 0;  // the number of a tile along k, of all units
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
                    if (last && i == TALL - 2) pipeline.leave_tile(at);
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

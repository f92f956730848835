// How the warp groups of a block multiply matrices (compute capability 9.0 alone): one group copies tiles of the factors
// to shared memory, and the others multiply them there.
//
// Roles: a block goes from one unit of work to the next, so that copies for the next unit are in flight while a result
// is stored. The first group of a block copies. Each other group multiplies 64 lines of the left factor. Groups
// synchronize by two barriers in shared memory for each of the STAGES tiles: `full` when the whole tile has arrived,
// `empty` when all groups that multiply have released it. Tensor cores read shared memory by another path than ordinary
// reads (the async proxy), so ordinary writes need a fence. The threads that waited for a tile call it, or the threads
// that copied and prepared the tile.
//
// Copies: tiles are copied by threads, 16 bytes at a time, or by bulk tensor copies. One thread issues a bulk copy for
// a whole tile, which can also round the right factor of TF32. A bulk copy needs a tensor map in memory, which
// describes the factor. Each block makes its own, because addresses are not known before. Two warps make the two maps
// while others begin the barriers.
//
// Clusters: neighbouring tiles of the result need the same tile of a factor. Blocks of a cluster load parts of it, and
// copy each part to all blocks of the cluster, so that less is read from the L2 cache. These reads limit large products
// whose lines do not begin at multiples of 128 bytes. If the result has few tiles, blocks of a cluster multiply parts
// of the same sums, and add them up through their shared memory.
//
// A. Kerr et al., CUTLASS: Fast Linear Algebra in CUDA C++, NVIDIA, 2017 (pipelines); M. Bauer, H. Cook and B.
// Khailany, CudaDMA: Optimizing GPU Memory Bandwidth via Warp Specialization, SC 2011 (warps that copy for others).

#include "common.cuh"
#include "matmul_common.cuh"
#include "matmul_tensor.cuh"

#if __CUDA_ARCH__ == 900

// The warp of the first group that begins bulk copies. Warps before it make tensor maps and initialize barriers.
constexpr int ISSUES = 3;

// How tiles are copied: by threads; both factors by bulk copies; the right factor by bulk copies and the left by
// threads.
enum Copying { BY_THREADS, AT_ONCE, RIGHT_AT_ONCE };

// A cluster of blocks, which run at the same time and can copy to each other. They have a grid of tiles of the result,
// DOWN below one another and ACROSS side by side. So DOWN blocks need the same tile of the right factor, and ACROSS
// blocks the same tile of the left factor. Each of these blocks copies a part of the tile to all of them. If sums are
// split in PARTS parts, the cluster has PARTS such grids of blocks.
template <int DOWN, int ACROSS, int PARTS = 1>
struct Cluster {
    static constexpr int LEFT_PARTS = ACROSS, RIGHT_PARTS = DOWN, SIZE = DOWN * ACROSS, SPLITS = PARTS;
    static constexpr int SOURCES = DOWN + ACROSS - 1;  // the blocks that copy to a block, including itself

    static DEVICE int rank() { return blockIdx.x % SIZE; }  // among the blocks with the same part of sums
    static DEVICE int row() { return rank() / ACROSS; }
    static DEVICE int column() { return rank() % ACROSS; }

    // The rank, in the cluster, of the first block with the same part of sums; and of the block with this tile and
    // another part.
    static DEVICE int first() { return SPLITS == 1 ? 0 : blockIdx.x / SIZE % SPLITS * SIZE; }
    static DEVICE int of_split(int split) { return split * SIZE + rank(); }

    // The blocks, as bits, that need the tiles of this block.
    static DEVICE unsigned share_left() { return ((1u << ACROSS) - 1) << (first() + row() * ACROSS); }
    static DEVICE unsigned share_right() {
        unsigned blocks = 0;
#pragma unroll
        for (int row = 0; row < DOWN; ++row) blocks |= 1u << row * ACROSS;
        return blocks << (first() + column());
    }

    // The rank of the i-th source.
    static DEVICE int source(int i) {
        const int among = i < DOWN ? i * ACROSS + column() : row() * ACROSS + i - DOWN + (i - DOWN >= column());
        return first() + among;
    }
};
using Alone = Cluster<1, 1>;

// A tensor map, which describes an array for bulk copies.
struct alignas(128) TensorMap {
    unsigned words[32];
};
static_assert(2 * sizeof(TensorMap) == 256, "the scratch of a block, for the maps of both factors");

// Further parameters of bulk copies: the length of lines along k; the number of matrices; the distances between
// matrices of a and of b in elements, 0 if all products share one matrix; memory for the tensor maps of all blocks.
struct Bulk {
    Index depth, count, step_a, step_b;
    void* maps;
};

// The row and column, in the tile of a group, of the element of c in register `at` of a thread.
DEVICE int row_of(int at) { return threadIdx.x / WARP_SIZE % 4 * 16 + at / 2 % 2 * 8 + threadIdx.x % WARP_SIZE / 4; }
DEVICE int column_of(int at) { return at / 4 * 8 + threadIdx.x % 4 * 2 + at % 2; }

// Returns a value that all lanes of a warp have. The shuffle tells the compiler so. It then computes in the uniform
// registers of the warp, from which products take descriptors: copying descriptors there took longer than a product of
// 64 x 64 numbers.
DEVICE unsigned same_in_warp(unsigned value) { return __shfl_sync(ALL_LANES, value, 0); }

// The number of the warp in the block.
DEVICE int own_warp() { return (int)same_in_warp(threadIdx.x / WARP_SIZE); }

// Returns whether this is the chosen lane of a warp, the same lane each time. All lanes call it. The compiler then
// knows that one thread continues, which a comparison with the thread's number does not tell it.
DEVICE bool is_chosen() {
    unsigned chosen;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(chosen));
    return chosen != 0;
}

// Describes operands in shared memory to the tensor cores. One half has the address of the first operand, the other
// half the layout of all. So an addition leads from one operand to another.
class Descriptor {
    unsigned address, layout;

public:
    // Blocks of 128 bytes of lines are `apart` bytes apart, groups of 8 rows are 1024 bytes apart. The swizzle is the
    // 128-byte swizzle.
    DEVICE Descriptor(const void* shared, int apart) {
        address = ((unsigned)__cvta_generic_to_shared(shared) & 0x3ffff) >> 4 | (unsigned)apart >> 4 << 16;
        layout = 1024 >> 4 | 1u << 30;
        address = same_in_warp(address);
    }

    // The descriptor of the operand that is `bytes` bytes further.
    DEVICE unsigned long long at(unsigned bytes) const { return (unsigned long long)layout << 32 | (address + bytes / 16); }
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

    // Returns the descriptor of the operands that begin at a line, in the tile of a stage; and the distance in bytes to
    // the operand at k.
    static DEVICE Descriptor descriptor(const T* shared, int line) {
        return Descriptor(shared + (ALONG ? line : line / ROW * K) * ROW, K * 128);
    }
    static DEVICE unsigned further(unsigned stage, int k) {
        return (stage * SIZE + (ALONG ? k : k * ROW)) * (unsigned)sizeof(T);
    }

    static constexpr int BOXES = ALONG ? 1 : LENGTH / ROW;  // bulk copies for a tile
    static constexpr int DOWN = ALONG ? LENGTH : K;         // rows of a box

    // Makes the tensor map of a factor with matrices that are `step` apart. The tile is copied in PARTS parts. A warp
    // calls it. The map is made in shared memory and then copied to `map`.
    template <Kind KIND, int PARTS>
    static DEVICE void describe(TensorMap* map, TensorMap& shared, const Factor<T>& factor, const Bulk& bulk,
                              Index step) {
        shared.words[threadIdx.x % WARP_SIZE] = 0;
        map->words[threadIdx.x % WARP_SIZE] = 0;  // initialised, because the copy below is an atomic exchange
        __syncwarp();
        const unsigned address = (unsigned)__cvta_generic_to_shared(&shared);
        if (threadIdx.x % WARP_SIZE == 0) {
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
                "l"(bytes(ALONG ? factor.outer : factor.along)), "l"(bytes(step)), "r"(ROW), "r"(DOWN / PARTS), "r"(1),
                "n"(TYPE)
                : "memory");
        }
        __syncwarp();
        asm volatile(
            "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::"l"(
                map),
            "r"(address)
            : "memory");
    }

    // Copies one of PARTS parts of the tile of a matrix from (line, k) on, to the given blocks of the cluster. One
    // thread calls it. Elements outside the factor arrive as zeros.
    template <int PARTS>
    static DEVICE void copy_at_once(const TensorMap* map, T* shared, unsigned barrier, int line, int k, int matrix,
                                    int part, unsigned blocks) {
        static_assert(DOWN % (PARTS * 8) == 0, "parts begin where the swizzle does");
        const int across = ALONG ? k : line, down = (ALONG ? line : k) + part * (DOWN / PARTS);
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
            const unsigned to = (unsigned)__cvta_generic_to_shared(shared + (box * K + part * (DOWN / PARTS)) * ROW);
            if constexpr (PARTS == 1)
                asm volatile(
                    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                    "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                    "l"(map), "r"(across + box * ROW), "r"(down), "r"(matrix), "r"(barrier)
                    : "memory");
            else
                asm volatile(
                    "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                    "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
                    "l"(map), "r"(across + box * ROW), "r"(down), "r"(matrix), "r"(barrier),
                    "h"((unsigned short)blocks)
                    : "memory");
        }
    }
};

// A fence that makes ordinary writes to shared memory, including copies, visible to the tensor cores.
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

// Arrives at the barrier that has this address in a block of the cluster.
DEVICE void arrive_in_cluster(unsigned barrier, int block) {
    asm volatile(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
        "r"(block)
        : "memory");
}

// A barrier of all threads of a cluster that have not ended. It puts no order on ordinary writes.
DEVICE void synchronize_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait.acquire;" ::: "memory");
}

// Stores numbers in the shared memory of a block of the cluster, at the address of `shared` in this block. The phase of
// that block's barrier may have to wait for them (see `arrive_for`).
DEVICE void store_in_cluster(const float (&from)[4], float* shared, unsigned barrier, int block) {
    asm volatile(
        "{ .reg .b32 there, barrier; mapa.shared::cluster.u32 there, %0, %6; "
        "mapa.shared::cluster.u32 barrier, %1, %6; "
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%2, %3, %4, %5}, [barrier]; }" ::"r"(
            (unsigned)__cvta_generic_to_shared(shared)),
        "r"(barrier), "f"(from[0]), "f"(from[1]), "f"(from[2]), "f"(from[3]), "r"(block)
        : "memory");
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
// it. Otherwise tensor cores read it, and each warp releases it. Blocks of a cluster copy to each other, so all blocks
// that share a tile must have released it.
template <int GROUPS, int STAGES, bool PREPARED, bool LOADED, Copying HOW, class Cluster = Alone>
struct Pipeline {
    static constexpr int COPIERS = (HOW != AT_ONCE) * 128 + (HOW != BY_THREADS);
    static constexpr int READERS = Cluster::SOURCES * GROUPS * (LOADED ? 128 : 4);
    static_assert(Cluster::SIZE == 1 || (HOW == AT_ONCE && !LOADED), "the blocks of a cluster copy at once");
    static constexpr unsigned LAG = 2;
    unsigned barriers;
    static constexpr int COUNT = 2 * STAGES + (Cluster::SPLITS > 1);

    DEVICE Pipeline() {
        __shared__ unsigned long long memory[COUNT];
        barriers = (unsigned)__cvta_generic_to_shared(memory);
        asm("" : "+r"(barriers));  // else the compiler computes the address again, which is slow, wherever it is used
        if (threadIdx.x == 2 * WARP_SIZE) {  // the first two warps may make tensor maps
#pragma unroll
            for (int stage = 0; stage < STAGES; ++stage) {
                initialize(full(stage), COPIERS);
                initialize(empty(stage), READERS);
            }
            if constexpr (Cluster::SPLITS > 1) initialize(sums(), 1);
            fence_for_tensor_cores();  // and to bulk copies
            if constexpr (Cluster::SIZE * Cluster::SPLITS > 1)
                asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();  // separates the beginning of barriers and the making of maps from their use
        if constexpr (Cluster::SIZE > 1) synchronize_cluster();  // the same for barriers of the other blocks
    }

    DEVICE unsigned full(unsigned at) const { return barriers + at % STAGES * 8; }
    DEVICE unsigned empty(unsigned at) const { return full(at) + STAGES * 8; }
    DEVICE unsigned sums() const { return barriers + 2 * STAGES * 8; }  // barrier of other blocks' sums

    DEVICE void wait_for_tile(unsigned at) const { wait(full(at), at / STAGES % 2); }

    // Releases a tile, which this thread or warp does not read any more.
    DEVICE void release_tile(unsigned at) const {
        __syncwarp();
        if constexpr (Cluster::SIZE > 1) {
            const int lane = threadIdx.x % WARP_SIZE;
            if (lane < Cluster::SOURCES) arrive_in_cluster(empty(at), Cluster::source(lane));
        } else {
            if (LOADED || threadIdx.x % WARP_SIZE == 0) arrive(empty(at));
        }
    }

    // The last call of a block's threads, except those that copy, which have ended: other blocks of the cluster may
    // still copy or arrive there.
    DEVICE void end() const {
        if constexpr (Cluster::SIZE > 1) synchronize_cluster();
    }

    // Begins to copy a tile, by copy(at). prepare(stage) prepares the vectors that this thread has copied.
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

// Returns a unit of work of the block. The kernel's tile has M lines of its left factor and N lines of its right factor.
// A unit of a cluster has a tile for each of its blocks.
template <int M, int N, bool SWAPPED, class Cluster, class Products>
DEVICE typename Products::Work work_of_block(const Products& products, unsigned unit) {
    auto work = products.template work<Cluster::RIGHT_PARTS * M, Cluster::LEFT_PARTS * N, SWAPPED>(unit);
    if constexpr (Cluster::SIZE > 1) {
        work.tile.row += Cluster::row() * M;
        work.tile.column += Cluster::column() * N;
        work.tile.tile = work.tile.tile * Cluster::SIZE + Cluster::rank();
    }
    return work;
}

// Returns the first unit. Warps that do not need it do other work before the barrier of the pipeline.
template <int M, int N, bool SWAPPED, Copying HOW, class Cluster, class Products>
DEVICE typename Products::Work first_work(const Products& products) {
    typename Products::Work work = {};
    if (HOW != AT_ONCE || own_warp() >= ISSUES)
        work = work_of_block<M, N, SWAPPED, Cluster>(products, blockIdx.x / Cluster::SIZE);
    return work;
}

// Calls then(work, tiles) for all units of work of the block, where `tiles` is the number of tiles along k.
template <int M, int N, int K, bool SWAPPED, class Cluster, class Products, class Then>
DEVICE void for_each_unit(
    const Products& products, typename Products::Work work, unsigned units, const Then& then) {
#pragma unroll 1
    for (unsigned unit = blockIdx.x / Cluster::SIZE; unit < units;) {
        then(work, (int)((work.tile.end - work.tile.begin + K - 1) / K));
        unit += gridDim.x / Cluster::SIZE;
        if (unit < units) work = work_of_block<M, N, SWAPPED, Cluster>(products, unit);
    }
}

// Makes the tensor maps of a block: the first warp makes the map of the right factor, the second warp that of the left
// factor. The barrier of the pipeline has to follow.
template <Kind KIND, int M, int N, class Left, class Right, bool SWAPPED, Copying HOW, class Cluster, class Products>
DEVICE void make_maps(const Products& products, const Bulk& bulk) {
    if constexpr (HOW != BY_THREADS) {
        __shared__ TensorMap shared[2];
        TensorMap* const maps = static_cast<TensorMap*>(bulk.maps) + blockIdx.x * 2;
        const auto work = products.template work<M, N, SWAPPED>(0);
        if (threadIdx.x < WARP_SIZE)
            Right::template describe<KIND, Cluster::RIGHT_PARTS>(
                maps, shared[0], SWAPPED ? work.a : work.b, bulk, SWAPPED ? bulk.step_a : bulk.step_b);
        if constexpr (HOW == AT_ONCE)
            if (threadIdx.x / WARP_SIZE == 1)
                Left::template describe<KIND, Cluster::LEFT_PARTS>(
                    maps + 1, shared[1], SWAPPED ? work.b : work.a, bulk, SWAPPED ? bulk.step_b : bulk.step_a);
    }
}

// Makes other threads' writes to a tensor map visible to the bulk copies of this thread.
DEVICE void acquire_map(const TensorMap* map) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

// Prepares nothing.
struct Nothing {
    DEVICE void operator()(int) const {}
};

// Divides the roles in a block. Returns false to the groups that multiply. The first group copies the tiles of both
// factors for all units, from the unit `first` on, and gets true when it is done. It passes `prepare` to the pipeline.
// If two groups multiply, the first group gives registers to them.
template <int M, int N, int K, class Left, class Right, bool SWAPPED, int GROUPS, int STAGES, bool PREPARED, bool LOADED,
          Copying HOW, class Cluster, class Products, class Prepare = Nothing,
          class T = typename Products::T>
DEVICE bool copy_units(const Pipeline<GROUPS, STAGES, PREPARED, LOADED, HOW, Cluster>& pipeline,
                       const Products& products, const typename Products::Work& first, unsigned units, T* left,
                       T* right, const Bulk& bulk = {},
                       const Prepare& prepare = {}) {
    if (own_warp() >= 4) {
        if constexpr (GROUPS == 2) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(216));
        return false;
    }
    if constexpr (GROUPS == 2) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(72));
    TensorMap *const right_map = static_cast<TensorMap*>(bulk.maps) + blockIdx.x * 2, *const left_map = right_map + 1;
    const Index left_step = SWAPPED ? bulk.step_b : bulk.step_a, right_step = SWAPPED ? bulk.step_a : bulk.step_b;
    const bool issues = HOW != BY_THREADS && own_warp() == ISSUES;
    if (HOW == AT_ONCE && !issues) return true;
    if (issues) {
        acquire_map(right_map);
        if (HOW == AT_ONCE) acquire_map(left_map);
    }
    unsigned at = 0;
    for_each_unit<M, N, K, SWAPPED, Cluster>(products, first, units, [&](const auto& work, int tiles) {
        const WorkTile& part = work.tile;
        typename Left::Copies from_left(SWAPPED ? work.b : work.a, part.row, part.begin, part.end);
        typename Right::Copies from_right(SWAPPED ? work.a : work.b, part.column, part.begin, part.end);
        int k = (int)part.begin;
        const auto copy = [&](unsigned at) {
            T *const to_left = left + at % STAGES * Left::SIZE, *const to_right = right + at % STAGES * Right::SIZE;
            if constexpr (HOW != BY_THREADS) {
                if (issues && is_chosen()) {
                    const unsigned full = pipeline.full(at);
                    arrive_for(full, (Right::SIZE + (HOW == AT_ONCE) * Left::SIZE) * sizeof(T));
                    Right::template copy_at_once<Cluster::RIGHT_PARTS>(
                        right_map, to_right, full, (int)part.column, k, right_step ? part.matrix : 0, Cluster::row(),
                        Cluster::share_right());
                    if constexpr (HOW == AT_ONCE)
                        Left::template copy_at_once<Cluster::LEFT_PARTS>(
                            left_map, to_left, full, (int)part.row, k, left_step ? part.matrix : 0, Cluster::column(),
                            Cluster::share_left());
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

// Returns the first place in dynamic shared memory that is aligned to 1024 bytes, where swizzled rows must begin.
template <class T>
DEVICE T* swizzled_memory() {
    extern __shared__ uint4 memory[];
    const unsigned address = (unsigned)__cvta_generic_to_shared(memory);
    return reinterpret_cast<T*>(memory + (-address % 1024) / 16);
}

#endif

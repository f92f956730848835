// Matrix product on tensor cores by the instructions of a warp group (wgmma, compute capability 9.0 alone).
//
// See matmul_pipeline.cuh for how the threads of a block divide the work. The instruction is a template parameter,
// which depends on the kind and the width:
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
//                             with lines along k. The right factor is read from there. The left factor goes through
//                             registers, where it is rounded or split. If only a is along k, it is the right factor
//                             (SWAPPED), and the result is transposed when it is stored. If neither is, pack_lines
//                             packs one of them first. For SPLIT, each copying thread splits the numbers that it has
//                             copied, in shared memory.
//   multiply_doubles_by_groups  DOUBLE, which has no such instruction: warps use mma.sync.
//
// Template parameters besides those in matmul.cu and matmul_tensor.cuh:
//   Wgmma      see above
//   HOW        how tiles are copied (see Copying)
//   Cluster    the cluster of blocks that copy to each other, or have parts of the same sums
//   SWAPPED    whether the left factor is b
//   LEFT_VECTOR, LEFT_ALONG    A_VECTOR and A_ALONG for the left factor

#include "common.cuh"
#include "matmul_common.cuh"
#include "matmul_pipeline.cuh"
#include "matmul_tensor.cuh"

#if __CUDA_ARCH__ == 900

// combine_parts for all threads except those that copy. A barrier of the whole block would wait for these.
template <class Op, int GROUPS, int COUNT>
DEVICE bool combine_parts_of_groups(
    typename Op::Sum (&sums)[COUNT], const WorkTile& tile, void* parts, void* tickets) {
    return combine_parts<Op, GROUPS * 128>(sums, tile, parts, tickets, (int)threadIdx.x - 128,
                                           [] { asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory"); });
}

// Stores the sums of a group in c, from (row, column) on, as 16-bit numbers. Each warp stores 64 columns of its 16 rows
// at a time through shared memory, so that its lanes store whole lines of memory: vectors if rows consist of vectors
// (VECTOR), otherwise words, for a row may begin in the middle of a word.
template <class Op, int GROUPS, bool VECTOR, int COUNT>
DEVICE void save_rows(const float (&sums)[COUNT], const Result<typename Op::Element>& c, Index row, Index column) {
    using T = typename Op::Element;
    constexpr int ROWS = 16, WIDTH = 64, EIGHTS = WIDTH / 8;
    __shared__ __align__(16) T shared[GROUPS * 4][ROWS][WIDTH + 8];  // writes have no bank conflicts
    auto& tile = shared[threadIdx.x / WARP_SIZE - 4];
    const int lane = threadIdx.x % WARP_SIZE;
    row += threadIdx.x / WARP_SIZE % 4 * ROWS;
#pragma unroll
    for (int begin = 0; begin < 2 * COUNT; begin += WIDTH) {
        __syncwarp();  // separates the reads of the last columns from the writes of these
#pragma unroll
        for (int at = begin / 2; at < begin / 2 + WIDTH / 2; at += 2) {
            const T pair[2] = {Op::save(sums[at]), Op::save(sums[at + 1])};
            memcpy(&tile[row_of(at) % ROWS][column_of(at) - begin], pair, sizeof(pair));
        }
        __syncwarp();  // separates these writes from their reads
        const int count = (int)max((Index)0, min((Index)WIDTH, c.n - column - begin));
        T* const to = c.base + row * c.n + column + begin;
        if constexpr (VECTOR) {
#pragma unroll
            for (int at = lane; at < ROWS * EIGHTS; at += WARP_SIZE) {
                const int i = at / EIGHTS, eight = at % EIGHTS;
                if (row + i < c.m && eight * 8 < count)
                    *reinterpret_cast<uint4*>(to + i * c.n + eight * 8) =
                        *reinterpret_cast<const uint4*>(&tile[i][eight * 8]);
            }
        } else {
#pragma unroll 4
            for (int i = 0; i < ROWS; ++i) {
                if (row + i >= c.m) break;
                const T* const from = tile[i];
                T* const line = to + i * c.n;
                const int odd = reinterpret_cast<unsigned long long>(line) / sizeof(T) % 2, at = 2 * lane - odd;
                if (at >= 0 && at + 1 < count) {
                    const T pair[2] = {from[at], from[at + 1]};
                    unsigned word;
                    memcpy(&word, pair, sizeof(word));
                    *reinterpret_cast<unsigned*>(line + at) = word;
                } else {
                    if (at >= 0 && at < count) line[at] = from[at];
                    if (at + 1 < count) line[at + 1] = from[at + 1];
                }
                if (odd && lane == 0 && count == WIDTH) line[WIDTH - 1] = from[WIDTH - 1];
            }
        }
    }
}

// The blocks of a cluster hold partial sums of one tile. Adds them up in the order of k, and stores them in c. Each
// block adds up a share of the columns, OWN times 8 columns, and receives the sums of all blocks in these columns. They
// arrive in shared memory, in place of the tiles of the factors.
template <class Op, int GROUPS, bool PAIRS, class Cluster, class Pipeline, int COUNT>
DEVICE void save_total(const float (&sums)[COUNT], const Result<typename Op::Element>& c, const WorkTile& tile,
                       const Pipeline& pipeline, float* shared) {
    constexpr int SPLITS = Cluster::SPLITS, THREADS = GROUPS * 128, EIGHTS = COUNT / 4;
    constexpr int OWN = (EIGHTS + SPLITS - 1) / SPLITS;
    const int thread = (int)threadIdx.x - 128, first = tile.split * OWN, count = max(0, min(OWN, EIGHTS - first));
    if (thread == 0) arrive_for(pipeline.sums(), SPLITS * count * THREADS * 16);
    synchronize_cluster();  // all products have read shared memory
#pragma unroll
    for (int at = 0; at < EIGHTS; ++at) {
        const float own[4] = {sums[4 * at], sums[4 * at + 1], sums[4 * at + 2], sums[4 * at + 3]};
        store_in_cluster(own, shared + ((tile.split * OWN + at % OWN) * THREADS + thread) * 4, pipeline.sums(),
                         Cluster::of_split(at / OWN));
    }
    wait(pipeline.sums(), 0);
    float total[OWN * 4];
#pragma unroll
    for (int at = 0; at < OWN; ++at) {
        if (at >= count) break;
#pragma unroll
        for (int split = 0; split < SPLITS; ++split) {
            const float4 part = reinterpret_cast<const float4*>(shared)[(split * OWN + at) * THREADS + thread];
            const float four[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
            for (int e = 0; e < 4; ++e)
                total[4 * at + e] = split == 0 ? four[e] : Op::combine(total[4 * at + e], four[e]);
        }
    }
    save_pairs<Op, PAIRS>(total, c, [&](int at, Index& i, Index& j) {
        const int eight = first + at / 4;
        i = tile.row + thread / 128 * 64 + row_of(at);
        j = eight < EIGHTS ? tile.column + eight * 8 + column_of(at % 4) : c.n;
    });
}

// 16-bit floats. Each group multiplies 64 rows of a and N columns of b.
template <class Op, class Wgmma, Kind KIND, int M, int N, int K, int STAGES, int BYTES, Copying HOW, class Cluster,
          bool A_ALONG, bool B_ALONG, int C_VECTOR, class Products>
DEVICE void multiply_by_groups(
    const Products& products, unsigned units, void* parts, void* tickets, const Bulk& bulk = {}) {
    using T = typename Op::Element;
    constexpr int GROUPS = M / 64;
    using TileA = SwizzledTile<T, M, K, 128, A_ALONG>;
    using TileB = SwizzledTile<T, N, K, 128, B_ALONG>;
    static_assert(Wgmma::WIDTH == N, "the instruction is one for this tile");
    static_assert(STAGES * (TileA::SIZE + TileB::SIZE) * sizeof(T) + 1024 <= BYTES, "the stages fit in shared memory");
    T *const shared_a = swizzled_memory<T>(), *const shared_b = shared_a + STAGES * TileA::SIZE;
    make_maps<KIND, M, N, TileA, TileB, false, HOW, Cluster>(products, bulk);
    const auto first = first_work<M, N, false, HOW, Cluster>(products);
    const Pipeline<GROUPS, STAGES, false, false, HOW, Cluster> pipeline;
    if (copy_units<M, N, K, TileA, TileB, false>(pipeline, products, first, units, shared_a, shared_b, bulk)) return;
    const int row = ((int)threadIdx.x / 128 - 1) * 64;
    const Descriptor from_a = TileA::descriptor(shared_a, row), from_b = TileB::descriptor(shared_b, 0);
    unsigned at = 0;  // counts tiles along k, through all units
    for_each_unit<M, N, K, false, Cluster>(products, first, units, [&](const auto& work, int tiles) {
        const auto& c = work.c;
        const WorkTile& part = work.tile;
        float sums[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[i] = 0;
#pragma unroll 1
        for (int tile = 0; tile < tiles; ++tile, ++at) {
            const unsigned stage = at % STAGES;
            pipeline.wait_for_tile(at);
            if (HOW == BY_THREADS) fence_for_tensor_cores();
            begin_products();
#pragma unroll
            for (int k = 0; k < K; k += Fragment<KIND>::DEPTH)
                Wgmma::multiply(sums, from_a.at(TileA::further(stage, k)), from_b.at(TileB::further(stage, k)), 1);
            end_products();
            wait_for_products<1>();
            if (tile > 0) pipeline.release_tile(at - 1);
        }
        wait_for_products<0>();
        keep_after_wait(sums);
        pipeline.release_tile(at - 1);

        if constexpr (Cluster::SPLITS > 1)
            return save_total<Op, GROUPS, C_VECTOR % 2 == 0, Cluster>(
                sums, c, part, pipeline, reinterpret_cast<float*>(shared_a));
        if (!combine_parts_of_groups<Op, GROUPS>(sums, part, parts, tickets)) return;
        save_rows<Op, GROUPS, C_VECTOR == 8>(sums, c, part.row + row, part.column);
    });
    pipeline.end();
}

// TF32 and SPLIT. A tile has M lines of the left factor and N lines of the right factor, which are columns and rows of
// c if SWAPPED. TF32 starts the products of a tile before the products of the previous tile have ended. SPLIT sums the
// products of each tile separately, and adds them to sums in registers while the products with remainders are in
// flight. Products with remainders are summed through all tiles, for their sums need less accuracy.
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
    make_maps<KIND, M, N, Left, Right, SWAPPED, HOW, Alone>(products, bulk);
    const auto first = first_work<M, N, SWAPPED, HOW, Alone>(products);
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
    if (copy_units<M, N, K, Left, Right, SWAPPED>(
            pipeline, products, first, units, shared_left, shared_right, bulk, prepare))
        return;
    const int row = ((int)threadIdx.x / 128 - 1) * 64;
    const Descriptor from_right = Right::descriptor(shared_right, 0);
    unsigned at = 0;  // counts tiles along k, through all units

    const auto load_left = [&](T (&to)[K / 2], unsigned at) {
        const T* const from = shared_left + at % STAGES * Left::SIZE;
#pragma unroll
        for (int k = 0; k < K; k += 8)
            take_rows<Left>(from, row + threadIdx.x / WARP_SIZE % 4 * 16, k,
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
    for_each_unit<M, N, K, SWAPPED, Alone>(products, first, units, [&](const auto& work, int tiles) {
        const auto& c = work.c;
        const WorkTile& part = work.tile;
        float sums[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; ++i) sums[i] = 0;
        T next[K / 2];  // this thread's numbers of the next tile; split when no product reads their registers any more
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
                const unsigned stage = at % STAGES;
                Registers x;
                split_left(x, next);
                begin_products();
#pragma unroll
                for (int k = 0; k < K; k += 8)
                    Wgmma::multiply(tile, x[k / 8][0], from_right.at(Right::further(stage, k)), k > 0);
                end_products();
#pragma unroll
                for (int k = 0; k < K; k += 8) {
                    Wgmma::multiply(rest, x[k / 8][1], from_right.at(Right::further(stage, k)), 1);
                    Wgmma::multiply(rest, x[k / 8][0], from_right.at(Right::further(STAGES + stage, k)), 1);
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
                const unsigned stage = at % STAGES;
                begin_products();
#pragma unroll
                for (int k = 0; k < K; k += 8)
                    Wgmma::multiply(sums, now[k / 8][0], from_right.at(Right::further(stage, k)), 1);
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
    const auto first = first_work<M, N, false, BY_THREADS, Alone>(products);
    const Pipeline<GROUPS, STAGES, false, true, BY_THREADS> pipeline;
    if (copy_units<M, N, K, SharedA, SharedB, false>(pipeline, products, first, units, shared_a, shared_b)) return;
    const int warp = threadIdx.x / WARP_SIZE - 4;
    const int row = warp / ACROSS * TALL * 16, column = warp % ACROSS * BROAD * 8;
    const int lane = threadIdx.x % WARP_SIZE;
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
    for_each_unit<M, N, K, false, Alone>(products, first, units, [&](const auto& work, int tiles) {
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

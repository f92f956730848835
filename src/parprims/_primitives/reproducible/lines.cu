// Steps of a block on its own lines, one after another: reductions (see reduce.cu), and maps of numbers of each line.

#include "common.cuh"
#include "../reduce/kernels/constant.cuh"
#include "../reduce/kernels/reduce.cu"
#include "strided.cuh"

// reduce_lines for the blocks that have a line whose mark is not zero. Results of other blocks are left
// as they are. Marks have the order of results.
template <int THREADS, int RUNS, int LANES, int COLUMNS, int LOADS, int VEC, int DEPTH, bool WHOLE, bool ACROSS,
          bool ROLLED, bool EXACT, class Op, class Inputs, class Outputs>
DEVICE void reduce_marked_lines(const int* marks, const Inputs& in, const Outputs& out, unsigned* tickets,
                                unsigned* partials, Index outer, Index n, Index inner, Index run, Index chunks,
                                Index levels, Index most) {
    constexpr int WIDTH = ACROSS ? VEC : 1, OUTERS = THREADS / (RUNS * LANES * COLUMNS);
    const int column = threadIdx.x % COLUMNS, outer_in_block = threadIdx.x / (COLUMNS * LANES * RUNS);
    const unsigned across = (unsigned)((inner + COLUMNS * WIDTH - 1) / (COLUMNS * WIDTH));
    const unsigned tile = blockIdx.x / (unsigned)chunks, tile_row = tile / across;
    const Index o = (Index)tile_row * OUTERS + outer_in_block;
    const Index j = ((Index)(tile - tile_row * across) * COLUMNS + column) * WIDTH;
    bool is_marked = false;
    for (int k = 0; k < WIDTH; ++k) is_marked |= o < outer && j + k < inner && marks[o * inner + j + k] != 0;
    if (!__syncthreads_or(is_marked)) return;
    reduce_lines<THREADS, RUNS, LANES, COLUMNS, LOADS, VEC, DEPTH, WHOLE, ACROSS, ROLLED, EXACT, Op>(
        in, out, tickets, partials, outer, n, inner, run, chunks, levels, most);
}

// Maps what each line of the block has in the arrays of `in`. A block has OUTERS x WIDTH lines.
template <int OUTERS, int WIDTH, class Op, class Inputs, class Outputs>
DEVICE void map_lines(const Inputs& in, const Outputs& out, Index outer, Index inner) {
    const unsigned across = (unsigned)((inner + WIDTH - 1) / WIDTH), tile_row = blockIdx.x / across;
    for (int at = threadIdx.x; at < OUTERS * WIDTH; at += blockDim.x) {
        const Index o = (Index)tile_row * OUTERS + at / WIDTH;
        const Index j = (Index)(blockIdx.x - tile_row * across) * WIDTH + at % WIDTH;
        if (o >= outer || j >= inner) continue;
        const Index line = o * inner + j;
        const typename Op::State state = Inputs::element(load_one(in, line, 0, 0));
        out.each([&](auto* y, auto member) { store_to(y[line], state.*member); });
    }
}

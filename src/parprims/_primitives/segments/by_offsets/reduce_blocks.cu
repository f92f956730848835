// Reduction of segments along one axis, in the canonical grouping. The tree of reduce/grouping.py combines the elements
// of each segment, as if the segment were a line alone. So a result depends on the elements of its own segment only.
//
// A "line" is one (o, :, j). Template parameters:
//     WARPS      warps of a block
//     JOINS      whether an initial element is before each segment; otherwise Starts holds the result of an empty
//                segment
//     Scan       the operator and the elements (see scan.cu): Op, Raw, Result, element(raw), result(state, raw, next)
//     Offset     the type of offsets
//     Inputs, Outputs, Starts    the arrays (see scan.cu)
//
// Phases, each a launch:
//   1. reduce_blocks: a warp reduces a block of 2048 elements of a segment to a node of the tree. Lines have a node for
//      each segment and one for each 2048 elements: as many as needed, and some that stay empty. So a warp finds its
//      segment by a search of the offsets alone.
//   2. finish_segments: a block of threads combines the nodes of a segment, 32 neighbours by a warp, and then these.
// A whole group of 256 elements has 8 rows of 32, if the operator commutes: lanes combine the elements of their column,
// then their columns. Otherwise a lane combines 8 consecutive elements first. A last node without a neighbour moves up.
// Wrong offsets give wrong results, but never accesses outside the arrays.
// It is compiled with --fmad=false, as canonical reductions of lines are.
//
// N. J. Higham, The accuracy of floating point summation, SIAM J. Sci. Comput. 14, 1993.

#include "block.cuh"
#include "common.cuh"
#include "search.cuh"
#include "tile_scan.cuh"
#include "view.cuh"

constexpr int GROUP = 256, GROUPS = 8, ROWS = 8, BLOCK = GROUP * GROUPS;

template <class Offset>
struct Segments {
    const Offset* offsets;
    Index n;

    DEVICE Index boundary(Index at) const { return max((Index)0, min(n, (Index)offsets[at])); }
    DEVICE Index first_node(Index at) const { return at + boundary(at) / BLOCK; }
};

// Returns to lane 0 of a warp the node of at most 256 elements from `first` to before `past`.
template <class Scan, class Inputs>
DEVICE Optional<typename Scan::Op::State> reduce_group(const Inputs& from, Index first, Index past, int lane) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    const auto load = [&](Index at) {
        typename Scan::Raw raw[1];
        load_along(from, raw, at, past);
        return Scan::element(raw[0]);
    };
    Optional<State> mine;
    mine.valid = true;
    if (Op::COMMUTATIVE && past - first == GROUP) {
        State s[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) s[r] = load(first + r * WARP_SIZE + lane);
        mine.state = reduce_items<Op>(s);
    } else {
        Optional<State> s[ROWS];
#pragma unroll
        for (int k = 0; k < ROWS; ++k) {
            const Index at = first + lane * ROWS + k;
            s[k].valid = at < past;
            if (s[k].valid) s[k].state = load(at);
        }
#pragma unroll
        for (int stride = 1; stride < ROWS; stride *= 2)
#pragma unroll
            for (int at = 0; at + stride < ROWS; at += 2 * stride)
                if (s[at + stride].valid) append<Op>(s[at], s[at + stride].state);
        mine = s[0];
    }
    return reduce_lanes<Op, WARP_SIZE>(mine);
}

template <int WARPS, class Scan, class Offset, class Inputs, class Outputs, class Starts>
DEVICE void reduce_blocks(const Inputs& in, const Outputs&, const Starts&, const Offset* offsets, unsigned* scratch,
                          Index lines, Index low, Index n, Index segments, Index nodes) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    const int lane = threadIdx.x % WARP_SIZE;
    const Index unit = (Index)blockIdx.x * WARPS + threadIdx.x / WARP_SIZE;
    if (unit >= lines * nodes) return;
    const Index line = unit / nodes, node = unit - line * nodes;
    const Segments<Offset> of = {offsets, n};
    const Index before = count_before(segments + 1, [&](Index at) { return of.first_node(at) <= node; });
    if (before < 1 || before > segments) return;
    const Index number = node - of.first_node(before - 1), first = of.boundary(before - 1) + number * BLOCK;
    const Index past = min(of.boundary(before), first + BLOCK);
    if (first >= past) return;
    const auto [h, l] = line_index(line, low);
    const Inputs from = views_at(in, h, l, 0);
    Optional<State> mine;
    mine.valid = false;
    for (int g = 0; first + g * GROUP < past; ++g) {
        const Index begin = first + g * GROUP;
        const auto found = reduce_group<Scan>(from, begin, min(past, begin + GROUP), lane);
        const State whole = shuffle(found.state, 0);
        if (lane == g) mine = {whole, true};
    }
    mine = reduce_lanes<Op, GROUPS>(mine);
    if (lane == 0) reinterpret_cast<State*>(scratch)[unit] = mine.state;
}

template <int WARPS, bool JOINS, class Scan, class Offset, class Inputs, class Outputs, class Starts>
DEVICE void finish_segments(const Inputs&, const Outputs& out, const Starts& starts, const Offset* offsets,
                            unsigned* scratch, Index, Index low, Index n, Index segments, Index nodes) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const Index line = blockIdx.x / segments, segment = blockIdx.x - line * segments;
    const Segments<Offset> of = {offsets, n};
    const Index first = of.first_node(segment), elements = of.boundary(segment + 1) - of.boundary(segment);
    Index count = min(max((Index)0, (elements + BLOCK - 1) / BLOCK), nodes - first), step = 1;
    State* const own = reinterpret_cast<State*>(scratch) + line * nodes + first;
    const auto combined = [&](Index at) {
        Optional<State> mine;
        mine.valid = at + lane < count;
        if (mine.valid) mine.state = own[(at + lane) * step];
        return reduce_lanes<Op, WARP_SIZE>(mine);
    };
    while (count > WARP_SIZE) {
        const Index chunks = (count + WARP_SIZE - 1) / WARP_SIZE;
        for (Index chunk = warp; chunk < chunks; chunk += WARPS) {
            const auto node = combined(chunk * WARP_SIZE);
            __syncwarp();  // separates the lanes' reads from the write of their first node
            if (lane == 0) own[chunk * WARP_SIZE * step] = node.state;
        }
        count = chunks;
        step *= WARP_SIZE;
        __syncthreads();  // separates the writes of nodes from their reads
    }
    if (warp > 0) return;
    const auto total = combined(0);
    if (lane > 0) return;
    const auto [h, l] = line_index(line, low);
    State state = starts.load(h, l, 0);
    if (total.valid) state = JOINS ? Op::combine(state, total.state) : total.state;
    const typename Scan::Result results[1] = {
        Scan::result(state, typename Scan::Raw(), Next<typename Scan::Peek>())};
    store_across(views_at(out, h, l, 0), results, segment);
}

"""The changes of kernels that the tests on the emulator must notice: see run.py.

They are one table, so they are one file in spite of its length.
"""

from tests.mutation.mutation import Mutation
from tests.mutation.mutation import dropped as _dropped
from tests.mutation.mutations_of_segments import MUTATIONS as OF_SEGMENTS

_IN = "tests/primitives/"


def _reduce(case: str) -> str:
    return f"{_IN}reduce/test_reduce_kernel.py::TestSanitized::test_every_kernel[emulated-{case}]"


def _scan(case: str) -> str:
    return f"{_IN}scan/test_scan_kernel.py::TestSanitized::test_every_kernel[emulated-{case}]"


def _sort(case: int) -> str:
    return f"{_IN}sort/test_sort_kernel.py::TestSanitized::test_every_kernel[emulated-shape{case}]"


def _matmul(test: str) -> str:
    return f"{_IN}matmul/test_matmul_{'groups' if test.startswith('TestGroups') else 'kernel'}.py::{test}"


def _residues(test: str, case: str = "float32") -> str:
    return f"{_IN}matmul/test_matmul_residues.py::{test}[emulated-{case}]"


REDUCE_CHUNKS, REDUCE_COLUMNS, REDUCE_SHORT = _reduce("shape3-1"), _reduce("shape5-0"), _reduce("shape1-1")
REDUCE_TREE = f"{_IN}reduce/test_reduce_grouping.py::TestLaws::test_the_tree[kernel-emulated-add-float64]"
REDUCE_NODES = f"{_IN}reduce/test_reduce_kernel.py::TestSanitized::test_columns_in_one_block[emulated-shape3-0]"
REST, REST_OF_TILES = (
    f"{_IN}scan/test_scan_kernel.py::TestSanitized::test_rest_of_a_line[emulated-{n}]" for n in (1003, 40003)
)
REST_OF_ROW = _IN + "reduce/test_reduce_kernel.py::TestSanitized::test_rest_of_a_row[emulated]"
BETWEEN = _IN + "order_statistics/test_order_statistics_kernel.py::TestBetween::test_as_by_operations[emulated-3]"
SEGMENTS = _IN + "sort/test_sort_kernel.py::TestSanitized::test_segments[emulated]"
SKEWED = _IN + "sort/test_sort_kernel.py::TestDistributions::test_skewed[emulated-True]"
SHORT_LINES, LONG_LINES, LINES_BACKWARDS, LINES_IN_PARTS, FIRST_OF_LINE = (
    f"{_IN}scan/test_scan_skewed.py::TestSkewedLines::test_{one}]"
    for one in (
        *("every_kernel[emulated-shape1", "every_kernel[emulated-shape4"),
        *("narrow[emulated-True-1003", "parts_of_lines[emulated-8447-part"),
        "first_coefficient_counts_for_nothing[emulated-shape1",
    )
)
ORDERED = _IN + "sort/test_sort_kernel.py::TestSanitized::test_order_is_found_wherever_it_ends[emulated-int32]"
MANY_LINES = _IN + "scan/test_scan_kernel.py::TestSanitized::test_many_lines[emulated]"
STRIPS, STRIPS_ADJOINT, STRIPS_IN_GROUPS = (
    f"{_IN}scan/test_scan_kernel.py::TestStrips::test_{one}]"
    for one in ("every_kernel[emulated-shape0-0", "adjoint[emulated-shape0-0", "looks_past_groups[emulated")
)
SERIAL, PARTS_OF_LINES = (
    f"{_IN}scan/test_scan_kernel.py::TestBlocksThatGoAlong::test_repeated_coefficients[emulated-{way}]"
    for way in ("line", "part")
)
IN_ORDER, AUTO, PARTIAL = (
    f"{_IN}tridiagonal/test_tridiagonal_kernel.py::test_small[emulated-False-{pivot}]"
    for pivot in ("none", "auto", "partial")
)
CHUNKS = _IN + "tridiagonal/test_tridiagonal_kernel.py::test_small_chunks[emulated-True-none]"
SEVERAL = _IN + "tridiagonal/test_tridiagonal_kernel.py::test_several_warps_solve_the_rest[emulated]"
TURNS, TURNS_ACROSS = (
    f"{_IN}tridiagonal/test_tridiagonal_kernel.py::test_blocks_take_systems_in_turn[emulated-{axis}]"
    for axis in (-1, 0)
)
REGISTERS = _IN + "tridiagonal/test_tridiagonal_kernel.py::test_registers_suffice[emulated-False]"
CUT = _matmul("TestSanitized::test_cut[emulated-conflict_free]")
HALVES = _matmul("TestGroups::test_blocks_go_on[emulated-float16-float32]")
SPLIT = _matmul("TestGroups::test_blocks_go_on[emulated-float32-float32]")
TF32 = _matmul("TestGroups::test_blocks_go_on[emulated-float32-tf32]")
BY_THREADS = _matmul("TestGroups::test_copied_by_threads[emulated-float16-views0]")
CLUSTERS = _matmul("TestGroups::test_clusters_sanitized[emulated-cluster2]")
SPLITS = _matmul("TestGroups::test_split_in_clusters[emulated-cluster4-AT_ONCE]")
MANY_BINS, COUNTERS, EQUAL = (
    f"{_IN}histogram/test_histogram.py::TestKernel::test_{name}[emulated]"
    for name in ("many_bins", "counters_of_16_bits", "equal_elements")
)
PARTS = "__syncthreads();  // separates the writes of parts from their reads"
NUMBERS = _IN + "histogram/test_histogram_weights.py::TestSorted::test_lengths[emulated]"
EDGES = _IN + "histogram/test_histogram.py::TestBins::test_edges_are_found_exactly[emulated-kernel]"
PACKED = _matmul("TestGroups::test_packed[emulated-float16-views0]")

_C, _R, _S, _O = (
    "_cuda/device/common.cuh",
    "_primitives/reduce/kernels/reduce.cu",
    "_primitives/scan/kernels/scan.cu",
    "_primitives/sort/sort.cu",
)
_D, _OT = "_cuda/device/digits.cuh", "_primitives/sort/sort_tiles.cu"
_B, _TICKET, _L, _V = (
    "_cuda/device/block.cuh",
    "_cuda/device/ticket.cuh",
    "_cuda/device/look_back.cuh",
    "_cuda/device/view.cuh",
)
_TILES = "_cuda/device/tile_scan.cuh"
_TC, _TL, _TI = (
    "_primitives/tridiagonal/solvers/tridiagonal_common.cuh",
    "_primitives/tridiagonal/solvers/tridiagonal_long.cuh",
    "_primitives/tridiagonal/solvers/in_order.cu",
)
_TE, _TS, _TSL = (
    "_primitives/tridiagonal/solvers/exchanging.cu",
    "_primitives/tridiagonal/solvers/stable.cu",
    "_primitives/tridiagonal/solvers/stable_long.cu",
)
_TEL, _PH = "_primitives/tridiagonal/solvers/exchanging_long.cu", "_cuda/device/phases.cuh"
_M, _W, _G, _P = (
    "_primitives/matmul/kernels/matmul.cu",
    "_primitives/matmul/kernels/matmul_tensor.cuh",
    "_primitives/matmul/kernels/matmul_groups.cu",
    "_primitives/matmul/kernels/matmul_pipeline.cuh",
)
_RESIDUES, _BYTES = "_primitives/matmul/kernels/matmul_residues.cu", "_primitives/matmul/kernels/matmul_bytes.cu"
_TEH, _TSH = "_primitives/tridiagonal/solvers/exchanging.cuh", "_primitives/tridiagonal/solvers/stable.cuh"
_MC = "_primitives/matmul/kernels/matmul_common.cuh"
_H = "_primitives/histogram/histogram.cu"

MUTATIONS = (
    # ---- What all share
    _dropped(_C, 'asm volatile("cp.async.wait_all;" ::: "memory");', _scan("shape6-1")),
    _dropped(_C, 'asm volatile("cp.async.wait_group 1;" ::: "memory");', SERIAL),
    _dropped(_C, 'asm volatile("cp.async.commit_group;" ::: "memory");', SERIAL),
    Mutation(
        _C,
        "__shfl_up_sync(ALL_LANES, word, distance)",
        "__shfl_up_sync(ALL_LANES, word, distance + 1)",
        _scan("shape5-1"),
    ),
    Mutation(
        _V,
        "return (!SKEWED || i >= 0) && i + N <= past;",
        "return (!SKEWED || i >= 0) && i + N <= past + 1;",
        REST,
    ),
    Mutation(_V, "return (!SKEWED || i >= 0) && i + N <= past;", "return i + N <= past;", SHORT_LINES),
    Mutation(_V, "&& i + k < past) base[(i + k) * along]", "&& i + k <= past) base[(i + k) * along]", SHORT_LINES),
    Mutation(_V, "if ((!SKEWED || i + k >= 0) && i + k < past)", "if (i + k < past)", LONG_LINES),
    Mutation(
        _V,
        "loaded[ACCESS == DESCENDING ? N - 1 - k : k] = nearest(i + k, past);",
        "loaded[k] = nearest(i + k, past);",
        LINES_BACKWARDS,
    ),
    Mutation(_V, "ACCESS == ASCENDING ? at : N - 1 - at;", "at;", LINES_BACKWARDS),
    Mutation(
        _V,
        "to[k] = loaded[ACCESS == DESCENDING ? N - 1 - k : k];",
        "to[k] = loaded[k];",
        REST_OF_TILES,
    ),
    # ---- Reduction
    Mutation(_B, "s[at] = Op::combine(s[at], s[at + stride]);", "s[at] = Op::combine(s[at], s[stride]);", REDUCE_TREE),
    Mutation(
        _R,
        "s[u] = join(choose(is_later, got, kept), choose(is_later, kept, got),",
        "s[u] = join(choose(is_later, kept, got), choose(is_later, got, kept),",
        REDUCE_SHORT,
    ),
    Mutation(
        _R,
        "return WHOLE || begin_of_later < parts ? Op::combine(earlier, later) : earlier;",
        "return WHOLE || begin_of_later <= parts ? Op::combine(earlier, later) : earlier;",
        REDUCE_SHORT,
    ),
    Mutation(_R, "if (lane / EACH >= groups) mine[0][0]", "if (lane / EACH > groups) mine[0][0]", REDUCE_TREE),
    Mutation(_R, "node[k] = Op::combine(slot[k], node[k]);", "node[k] = Op::combine(node[k], slot[k]);", REDUCE_NODES),
    Mutation(
        _R,
        "begun ? Op::combine(slot[k], total[k]) : slot[k];",
        "begun ? Op::combine(total[k], slot[k]) : slot[k];",
        REDUCE_NODES,
    ),
    _dropped(
        _R,
        "__syncthreads();  // separates the reads of the batch before from the writes here",
        REDUCE_CHUNKS,
        "is_last_to_arrive, which has barriers, stands between the two batches",
    ),
    _dropped(_R, "__syncthreads();  // separates the writes above from the reads below", REDUCE_CHUNKS),
    _dropped(
        _TICKET, "__threadfence();  // this thread's partials are visible before its block's ticket is", REDUCE_CHUNKS
    ),
    _dropped(_TICKET, "barrier();        // all threads of the block have passed the fence", REDUCE_COLUMNS),
    _dropped(_TICKET, "barrier();        // separates the write of last from its reads", REDUCE_CHUNKS),
    _dropped(_TICKET, "__threadfence();  // partials are read after the ticket was", REDUCE_CHUNKS),
    Mutation(
        _TICKET,
        "atomicInc(ticket, (unsigned)blocks - 1u) == (unsigned)blocks - 1u;",
        "atomicAdd(ticket, 1u) == (unsigned)blocks - 1u;",
        REDUCE_CHUNKS,
    ),
    Mutation(_R, "if (WHOLE || i + ALONG <= n) {", "if (WHOLE || i + ALONG <= n + 1) {", REST_OF_ROW),
    Mutation(
        "_cuda/device/strided.cuh",
        "to[k].*member = (T)(ACROSS ? i : i + k);",
        "to[k].*member = (T)i;",
        _IN + "reduce/test_extrema.py::test_long_lines_by_kernels[emulated]",
    ),
    Mutation(
        _R,
        "const Index chunk = part * EACH + min(u * LANES + lane, count - 1);",
        "const Index chunk = part * EACH + count - 1 - min(u * LANES + lane, count - 1);",
        REDUCE_CHUNKS,
    ),
    _dropped(
        _B, "__syncthreads();  // separates the reads of the round before from the writes here", _reduce("shape4-0")
    ),
    _dropped(
        _B,
        "__syncthreads();  // separates the writes above from the reads below",
        _reduce("shape4-0"),
        before="\n        const int other",
    ),
    # ---- Scan
    Mutation(
        _B,
        "if (lane >= distance) mine = Op::combine(before, mine);",
        "if (lane > distance) mine = Op::combine(before, mine);",
        _scan("shape5-1"),
    ),
    Mutation(
        _B,
        "if (lane >= distance) mine = Op::combine(before, mine);",
        "if (lane >= distance) mine = Op::combine(mine, before);",
        _scan("shape5-1"),
    ),
    _dropped(_L, "__syncthreads();  // separates the write of drawn from its reads", _scan("shape0-0")),
    _dropped(
        _L,
        "if ((drawn & 0x7fffffffull) == tickets - 1) atomicAdd(&counter->x, 0x80000000ull - tickets);",
        _scan("shape0-0"),
    ),
    Mutation(_L, "return (drawn >> 31) + 1;", "return drawn >> 31;", _scan("shape0-0")),
    Mutation(
        _L,
        "slots.publish(start.valid ? Op::combine(start.state, total) : total);",
        "slots.publish(start.valid ? Op::combine(total, start.state) : total);",
        MANY_LINES,
    ),
    _dropped(_L, "__syncthreads();  // separates the writes of groups from their reads", _scan("shape0-0")),
    Mutation(
        _L,
        "for (; since > 0; --since) start.state = Op::combine(start.state, groups[since]);",
        "for (; since > 1; --since) start.state = Op::combine(start.state, groups[since]);",
        _IN + "scan/test_scan_kernel.py::TestSanitized::test_looks_past_groups[emulated]",
    ),
    _dropped(_S, "__syncwarp();  // separates the lanes' copies from each other's reads", _scan("shape6-1")),
    _dropped(
        _B,
        "__syncthreads();  // separates the writes of totals from their reads",
        _scan("shape6-1"),
    ),
    Mutation(_S, "all_totals[CARRY == SERIAL ? number % 2 : 0]);", "all_totals[0]);", SERIAL),
    _dropped(_TILES, "__syncthreads();  // separates the write of the state from its reads", _scan("shape0-0")),
    _dropped(_S, "__syncthreads();  // separates the write of state_before from its reads", PARTS_OF_LINES),
    Mutation(_S, "past = min(all, number + each);", "past = all;", PARTS_OF_LINES),
    Mutation(_S, "n + (Inputs::SKEWED ? VEC - 1 : 0);", "n;", LINES_IN_PARTS),
    Mutation(_S, "mine = r > 0 || k > skipped ?", "mine = r > 0 || k > 0 ?", SHORT_LINES),
    Mutation(_S, "total = r > 0 || k > skipped ?", "total = r > 0 || k > 0 ?", LONG_LINES),
    Mutation(_S, "if (r > 0 || k >= skipped) state =", "state =", LONG_LINES),
    Mutation(_S, "k == skipped && alone ?", "k == 0 && alone ?", LONG_LINES),
    Mutation(_S, "if (k == skew) read_as_first", "if (k == 0) read_as_first", FIRST_OF_LINE),
    Mutation(
        _S,
        "states.publish(line, tile.number, next_start.state);",
        "states.publish(line, tile.number, total);",
        PARTS_OF_LINES,
    ),
    Mutation(_S, "if (CARRY == SERIAL && tile.number > 0) start.valid = false;", "", PARTS_OF_LINES),
    Mutation(_S, "states.of_tile(number - in_group - 1)", "states.of_tile(number - 1)", STRIPS_IN_GROUPS),
    _dropped(_S, "__syncwarp();  // separates the lanes' results from each other's stores", _scan("shape6-1")),
    _dropped(
        _S,
        "if (CARRY == SERIAL) __syncwarp();  // separates these reads from the lanes' next copies",
        SERIAL,
        "a lane copies to the places that it has read",
    ),
    _dropped(
        _S,
        "__syncthreads();  // separates the writes of totals from their reads",
        _scan("shape8-0"),
        before="\n    if (CARRY != ALONE)",
    ),
    _dropped(_S, "__syncthreads();  // separates the writes of states_before from their reads", _scan("shape9-0")),
    Mutation(
        _S,
        "for (int c = 1; c < chunk; ++c) all = Op::combine(all, totals[c][slot + k]);",
        "for (int c = 1; c <= chunk; ++c) all = Op::combine(all, totals[c][slot + k]);",
        _scan("shape8-0"),
    ),
    _dropped(_S, "__syncthreads();  // separates the threads' copies from each other's reads", STRIPS),
    _dropped(
        _S,
        "__syncthreads();  // separates the writes of totals from their reads",
        STRIPS,
        before="\n    for (int distance",
    ),
    _dropped(_S, "__syncthreads();  // separates the reads of totals from their writes", STRIPS),
    _dropped(
        _S,
        "__syncthreads();  // separates the writes of totals from their reads",
        STRIPS,
        after="if (takes) totals[threadIdx.x] = total;\n        ",
    ),
    _dropped(_S, "__syncthreads();  // separates the writes of parts from their reads", STRIPS),
    _dropped(_S, "__syncthreads();  // separates the writes of the tile's prefix from its reads", STRIPS),
    _dropped(_S, "__syncthreads();  // separates the threads' results from each other's stores", STRIPS),
    Mutation(_S, "number == 0 && begin + u == 0", "begin + u == 0", STRIPS),
    Mutation(_S, "first = (Index)(backward ? tiles - 1 - tile : tile)", "first = (Index)tile", STRIPS),
    Mutation(
        _S,
        "for (unsigned g = 0; g * share < in_group; ++g)",
        "for (unsigned g = 0; g * share + 1 < in_group; ++g)",
        STRIPS,
    ),
    Mutation(_S, "if (part.valid) append<Op>(start, part.state);", "", STRIPS_IN_GROUPS),
    Mutation(_S, "start.valid ? Op::combine(start.state, both) : both", "both", STRIPS_IN_GROUPS),
    Mutation(_S, "backward ? first - 1 : first + count", "backward ? first : first + count", STRIPS_ADJOINT),
    Mutation(_S, "if (begin + mine < count) {", "if (begin + mine <= count) {", STRIPS_ADJOINT),
    _dropped(_S, "if (rest < elements) stage_across(from, buffers, rest, memory + rest);", STRIPS),
    # ---- Order statistics
    Mutation("_primitives/order_statistics/interpolate.cu", "far = (T)(1 - part)", "far = (T)part", BETWEEN),
    Mutation("_primitives/order_statistics/interpolate.cu", "if (last != last) found = (Working)last;", "", BETWEEN),
    # ---- Sort
    _dropped(_D, "__syncwarp();  // separates the zeros from what is added to them", _sort(2)),
    _dropped(_D, "__syncwarp();  // separates the reads of places from their writes", _sort(2)),
    _dropped(_D, "__syncwarp();  // separates the writes of places from the reads for the next row", _sort(2)),
    Mutation(_D, "if (equal <= upto) first = next;", "if (equal < upto) first = next;", _sort(2)),
    _dropped(_D, "wait_for_group<THREADS>();  // separates the writes of sums from their reads", _sort(4)),
    _dropped(_D, "wait_for_group<THREADS>();  // separates the warps' counts from their reads", _sort(4)),
    _dropped(_D, "wait_for_group<THREADS>();  // separates the writes of places from their reads", _sort(4)),
    _dropped(_O, "__syncwarp();  // separates the writes of keys from their reads", _sort(0)),
    _dropped(_O, "__syncwarp();  // separates the writes of owners from their reads", _sort(0)),
    Mutation(_O, "return other == key && its < lane;", "return other == key && its > lane;", _sort(0)),
    _dropped(_O, "__syncthreads();  // separates the zero from what is added to it\n", _sort(4)),
    _dropped(_O, "__syncthreads();  // separates the additions from the read\n", _sort(4)),
    _dropped(_O, "wait_for_group<GROUP>();  // separates the writes of keys from their reads", _sort(4)),
    _dropped(_O, "if (!exists(i)) keys[i] = LastKey<Order>::bits();", SKEWED),
    Mutation(_O, "if (!FULL && !LastKey<Order>::ALL_ARE_SET)", "if (false)", SKEWED),
    _dropped(_OT, "__syncthreads();  // separates the zeros from what is added to them", _sort(6)),
    Mutation(_OT, "__syncthreads_and(ordering.forward)", "ordering.forward", ORDERED),
    Mutation(_OT, "__syncthreads_and(ordering.reverse)", "ordering.reverse", ORDERED),
    Mutation(_OT, "if (threadIdx.x % WARP_SIZE < WARP_SIZE - 1) add(keys[N - 1], next);", "", ORDERED),
    Mutation(
        _OT,
        "THREADS * LOADED)\n            if (k > 0) ordering.add",
        "THREADS * LOADED)\n            if (false) ordering.add",
        ORDERED,
    ),
    Mutation(
        _OT,
        "k += THREADS)\n            if (k > 0) ordering.add",
        "k += THREADS)\n            if (false) ordering.add",
        ORDERED,
    ),
    Mutation(_OT, "(!MOVES && bits == next_bits)", "bits == next_bits", ORDERED),
    Mutation(
        _OT, "row_begin() + drawn->behind - place_of(0);", "row_begin() + drawn->behind - 1 - place_of(0);", ORDERED
    ),
    _dropped(_OT, "__syncthreads();  // separates the write of what is drawn from its reads", _sort(6)),
    _dropped(_OT, "__syncthreads();  // separates the writes of keys and offsets from their reads", _sort(6)),
    _dropped(_OT, "__syncthreads();  // separates the reads of what was exchanged before from these writes", _sort(6)),
    _dropped(_OT, "__syncthreads();  // separates the writes from the reads", _sort(6)),
    _dropped(_OT, "*counts = 0;", SEGMENTS, "the last launch zeroes the counts of every digit"),
    Mutation(
        _OT,
        "for (int pass = 0; pass < PASSES; ++pass) counts_of<Order>",
        "for (int pass = 1; pass < PASSES; ++pass) counts_of<Order>",
        SEGMENTS,
    ),
    Mutation(_OT, "drawn.odd = launch % 2;", "drawn.odd = false;", _sort(6)),
    Mutation(
        _OT,
        "if (taken < ahead || seen[ahead] < AGGREGATE) continue;",
        "if (seen[ahead] < AGGREGATE) continue;",
        _IN + "sort/test_sort_kernel.py::TestTiles::test_in_flight[emulated-6]",
    ),
    # ---- Tridiagonal systems
    _dropped(_TC, "__syncthreads();  // all threads have written their numbers", IN_ORDER),
    Mutation(_TI, "if (place % (2 * apart) == 0) {", "if (place % (2 * apart) == apart) {", IN_ORDER),
    Mutation(
        _TI,
        "const int mine = warp + lane % WARPS;\n            CyclicReduction",
        "const int mine = warp + lane % WARPS / 2;\n            CyclicReduction",
        IN_ORDER,
    ),
    _dropped(
        _TI,
        "__syncthreads();  // the rows of all warps are there",
        IN_ORDER,
        after="if (lane == 31) warp_rows[warp] = all;\n        ",
    ),
    _dropped(_TI, "__syncthreads();  // their last unknowns are there", IN_ORDER),
    _dropped(_TC, "__syncthreads();  // all threads have read the count before the last block clears it", TURNS),
    Mutation(_TC, "== gridDim.x - 1) counts[0] = counts[1] = 0;", "== gridDim.x - 1) counts[0] = 0;", AUTO),
    _dropped(_TC, "__syncthreads();  // the marks are cleared", TURNS_ACROSS),
    _dropped(_TC, "__syncthreads();  // all threads have marked their systems", TURNS_ACROSS),
    _dropped(
        _TC, "__syncthreads();  // all threads have read the marks", TURNS_ACROSS, "the next call begins with a barrier"
    ),
    _dropped(_TE, "__syncthreads();  // the equations of all warps are there", PARTIAL),
    _dropped(_TE, "__syncthreads();  // the unknowns around all warps are there", PARTIAL),
    Mutation(_TEH, "swap = abs1(a) > abs1(chain.last);", "swap = abs1(a) < abs1(chain.last);", REGISTERS),
    Mutation(_TE, "PLACE * (INTERLEAVED ? thread : system * segments + rank)", "PLACE * thread", PARTIAL),
    Mutation(_TE, "if (waiting) own.store_arrays(place, ROWS);", "own.store_arrays(place, ROWS);", PARTIAL),
    Mutation(
        _TSH,
        "const T factor = divide(other.a[unknown], first.a[unknown], pivot_reciprocal);",
        "const T factor = divide(first.a[unknown], other.a[unknown], pivot_reciprocal);",
        _IN + "tridiagonal/test_tridiagonal_kernel.py::test_small[emulated-True-partial]",
    ),
    _dropped(
        _TSH,
        "sync();  // all have read their ys before the slots are written again",
        TURNS,
        "every caller has another barrier before that",
    ),
    _dropped(
        _TS,
        "B::sync();  // rows and states are there for all",
        _IN + "tridiagonal/test_tridiagonal_kernel.py::test_small[emulated-True-partial]",
    ),
    _dropped(
        _TS,
        "B::sync();  // the solution is there for all",
        _IN + "tridiagonal/test_tridiagonal_kernel.py::test_small[emulated-True-partial]",
    ),
    _dropped(_TS, "B::sync();  // all have read the solution before the next systems come", TURNS),
    _dropped(
        _TI,
        "__syncthreads();  // the rows of all warps are there",
        SEVERAL,
        after="if (threadIdx.x % 32 == 31) rows[threadIdx.x / 32] = all;\n            ",
    ),
    _dropped(_TI, "__syncthreads();  // the last unknowns of all warps are there", SEVERAL),
    _dropped(
        _TI,
        "if (THREADS > 32) __syncthreads();  // the shared rows have been read before they are written again",
        SEVERAL,
    ),
    _dropped(_TEL, "__syncthreads();  // the equations of all warps are there", SEVERAL),
    _dropped(_TEL, "__syncthreads();  // the unknowns around all warps are there", SEVERAL),
    _dropped(
        _TEL,
        "if (THREADS > 32) __syncthreads();  // the shared equations have been read before they are written again",
        SEVERAL,
    ),
    _dropped(_TSL, "__syncthreads();  // rows are there for all", CHUNKS),
    _dropped(_TSL, "__syncthreads();  // the segments are there", CHUNKS),
    _dropped(_TSL, "__syncthreads();  // both ends are known to all", CHUNKS),
    _dropped(
        _TSL,
        "__syncthreads();  // all have read the right-hand sides",
        CHUNKS,
        "a thread reads those of its own rows alone",
    ),
    _dropped(_TSL, "__syncthreads();  // the solution is there for all", CHUNKS),
    Mutation(
        _TL,
        "number += quotient((system + 1) * parts - 1 - number, gridDim.x) * gridDim.x;",
        "number += quotient((system + 1) * parts - number, gridDim.x) * gridDim.x;",
        _IN + "tridiagonal/test_tridiagonal_kernel.py::test_long_systems_dominant_or_not[emulated]",
    ),
    # ---- Launches in phases
    _dropped(_PH, "__syncthreads();  // the number of the item is there for all", CHUNKS),
    _dropped(
        _PH, "__threadfence();  // what this thread wrote is visible before its block's items count as done", CHUNKS
    ),
    _dropped(_PH, "__syncthreads();  // all threads of the block have passed the fence", CHUNKS),
    _dropped(_PH, "__syncthreads();  // the phases before are done", CHUNKS),
    _dropped(_PH, "__threadfence();  // what they wrote is read after that", CHUNKS),
    Mutation(
        _PH, "while (read_current(&counters->done) < end)", "while (read_current(&counters->done) < begin)", CHUNKS
    ),
    _dropped(
        _PH,
        "__syncthreads();  // all have read the number of the item, and the shared memory is free for the next",
        CHUNKS,
    ),
    Mutation(
        _PH, "counters->taken = counters->done = counters->left = 0;", "counters->taken = counters->left = 0;", CHUNKS
    ),
    # ---- Products
    _dropped(
        _M,
        "__syncthreads();  // separates the writes of the tiles from their reads",
        _matmul("TestSanitized::test_ladder[emulated-tiled]"),
        after="copy_tile<Op, N, K, M * N>(tile_b, work.b, tile.column, k, tile.end);\n        ",
    ),
    _dropped(
        _M,
        "__syncthreads();  // separates the reads from the writes of the next tiles",
        _matmul("TestSanitized::test_ladder[emulated-packed]"),
        before="\n    }\n    save_element<Op, N>(sum, products.result(matrix), tile);\n}\n\n// ---- conflict_free",
    ),
    _dropped(
        _M,
        "__syncthreads();  // separates the writes of the tile from its reads",
        _matmul("TestGroups::test_laid_along_k[emulated-tf32-views0]"),
    ),
    Mutation(_MC, "Op::combine(sums[i], part[", "Op::combine(part[(i - COUNT) * THREADS], part[", CUT),
    Mutation(
        _MC,
        "for (int split = 1; split < tile.splits; ++split)",
        "for (int split = 1; split <= tile.splits - 2; ++split)",
        CUT,
    ),
    _dropped(_M, "__syncthreads();  ", CUT, before="// separates reads of the last tiles"),
    Mutation(_M, "row < rows && column + i < columns", "row <= rows && column + i < columns", CUT),
    Mutation(_M, "row < rows && column + i < columns", "row < rows && column + i <= columns", CUT),
    Mutation(
        _M,
        "const int depth = (int)min((Index)K, part.end - k);\n#pragma unroll 1",
        "const int depth = K;\n#pragma unroll 1",
        _matmul("TestSanitized::test_semiring[emulated]"),
    ),
    # ---- Products on tensor cores
    Mutation(
        _W,
        "        wait_for_copies<STAGES - 2>();",
        "        wait_for_copies<STAGES - 1>();",
        _matmul("TestSanitized::test_tensor[emulated-float16-float32-views0]"),
    ),
    _dropped(
        _W,
        "__syncthreads();",
        _matmul("TestSanitized::test_tensor[emulated-float16-float32-views0]"),
        after="wait_for_copies<STAGES - 2>();\n        ",
    ),
    Mutation(
        _W,
        "const int near = lane % 8, second = lane / 8 % 2 * 8, later = lane / 16 * 8;",
        "const int near = lane % 8, second = lane / 16 * 8, later = lane / 8 % 2 * 8;",
        _matmul("TestSanitized::test_tensor[emulated-float16-float32-views0]"),
    ),
    Mutation(
        _W,
        "multiply_add<KIND>(rest[i][j], x[0][i], y[1][j]);",
        "multiply_add<KIND>(rest[i][j], x[1][i], y[1][j]);",
        _matmul("TestSanitized::test_tensor[emulated-float32-float32-views0]"),
    ),
    Mutation(
        _W,
        "columns - column)) : 0;",
        "columns - column + 1)) : 0;",
        _matmul("TestSanitized::test_tensor[emulated-float16-float32-views0]"),
    ),
    # ---- Products by groups of warps
    _dropped(
        _P, "__syncthreads();  // separates the beginning of barriers and the making of maps from their use", HALVES
    ),
    Mutation(_P, "wait(full(at), at / STAGES % 2);", "wait(full(at), 1 - at / STAGES % 2);", HALVES),
    _dropped(_P, "wait(empty(at), 1 - at / STAGES % 2);", HALVES),
    _dropped(
        _P, "__syncwarp();", HALVES, before="\n        if constexpr (Cluster::SIZE > 1) {\n            const int lane"
    ),
    Mutation(
        _P,
        "if (LOADED || threadIdx.x % WARP_SIZE == 0) arrive(empty(at));",
        "if (threadIdx.x % 128 == 0) arrive(empty(at));",
        HALVES,
    ),
    _dropped(_G, "begin_products();", HALVES, after="if (HOW == BY_THREADS) fence_for_tensor_cores();\n            "),
    _dropped(_G, "if (HOW == BY_THREADS) fence_for_tensor_cores();", BY_THREADS),
    Mutation(
        _G,
        "wait_for_products<1>();\n            if (tile > 0) pipeline.release_tile(at - 1);",
        "wait_for_products<1>();\n            pipeline.release_tile(at);",
        HALVES,
    ),
    Mutation(_P, "wait_for_copies<LAG - 1>();", "wait_for_copies<LAG>();", SPLIT),
    _dropped(_P, "fence_for_tensor_cores();", SPLIT, after="prepare(at % STAGES);\n        "),
    _dropped(_G, "wait_for_products<0>();", SPLIT, before="\n                keep_after_wait(rest);"),
    Mutation(_G, "if (at > begin) pipeline.release_tile(at - 1);", "pipeline.release_tile(at);", TF32),
    Mutation(
        _P,
        "arrive_for(full, (Right::SIZE + (HOW == AT_ONCE) * Left::SIZE) * sizeof(T));",
        "arrive_for(full, Right::SIZE * sizeof(T));",
        HALVES,
    ),
    Mutation(
        _G,
        '[] { asm volatile("bar.sync 1, %0;" ::"n"(GROUPS * 128) : "memory"); }',
        "[] {}",
        _matmul("TestGroups::test_layouts[emulated-float16-float32-views0]"),
    ),
    Mutation(_P, "READERS = Cluster::SOURCES * GROUPS", "READERS = GROUPS", CLUSTERS),
    Mutation(_P, "if (lane < Cluster::SOURCES) arrive", "if (lane < 1) arrive", CLUSTERS),
    Mutation(
        _P,
        "const int across = ALONG ? k : line, down = (ALONG ? line : k) + part * (DOWN / PARTS);",
        "const int across = ALONG ? k : line, down = ALONG ? line : k;",
        CLUSTERS,
    ),
    Mutation(_P, "work.tile.column += Cluster::column() * N;", "", CLUSTERS),
    _dropped(_G, "synchronize_cluster();  // all products have read shared memory", SPLITS),
    Mutation(_G, "SPLITS * count * THREADS * 16", "count * THREADS * 16", SPLITS),
    Mutation(_P, "return split * SIZE + rank();", "return split;", SPLITS),
    _dropped(_G, "__syncwarp();  // separates these writes from their reads", PACKED),
    Mutation(_G, "if (odd && lane == 0 && count == WIDTH)", "if (false)", PACKED),
    Mutation(
        _M, "x[e] = line < from.length && along < depth ?", "x[e] = line < from.length && along <= depth ?", PACKED
    ),
    # Products by residues: what a line is rounded by, the swizzle, carries, and what is found to be lost.
    _dropped(
        _RESIDUES, "if (rounded) lines->lost = own.rounding();", _residues("TestOtherWay::test_small_beside_large")
    ),
    Mutation(_RESIDUES, "place * 8 + (part ^ place % 8);", "place * 8 + part;", _residues("TestBound::test_exact")),
    Mutation(_RESIDUES, " + (long long)(low >> 63);", ";", _residues("TestBound::test_cancellation", "float64")),
    Mutation(
        _RESIDUES,
        "exponent((Moduli::LARGEST - root) / norm) - largest;",
        "exponent((Moduli::LARGEST - root) / norm) - largest + 9;",
        _residues("TestBound::test_exact", "float64"),
    ),
    Mutation(_BYTES, "left > LONGEST ? start : 0;", "0;", _residues("TestBound::test_sums_are_reduced")),
    Mutation(_BYTES, "return min(rest, rest - modulus);", "return rest;", _residues("TestBound::test_exact")),
    Mutation(_BYTES, "of_a.lost * of_b_size + ", "", _residues("TestOtherWay::test_diagonal")),
    Mutation(
        _BYTES,
        "if (is_marked(marks, tile)) continue;",
        "if (is_marked(marks, tile) && !copying) continue;",
        _residues("TestOtherWay::test_some_tiles"),
    ),
    # ---- Histograms
    _dropped(
        _H, "__syncthreads();  // separates the zeros, and the edges in shared memory, from the counting", MANY_BINS
    ),
    _dropped(_H, "__syncthreads();  // separates the counting from the reads below", MANY_BINS),
    _dropped(_H, "atomicAdd(&totals[bin], (Total)HANDED_OVER);", COUNTERS),
    Mutation(_H, "0u - (HANDED_OVER << shift)", "0u - HANDED_OVER", COUNTERS),
    Mutation(_H, "words[bin / 2] >> bin % 2 * 16 & 0xffffu", "words[bin / 2] & 0xffffu", COUNTERS),
    Mutation(_H, "x < all.left_edge(bin + 1) |", "x <= all.left_edge(bin + 1) |", EDGES),
    Mutation(
        _H, "if (x[k] >= all.left_edge(bins[k] + left / 2))", "if (x[k] > all.left_edge(bins[k] + left / 2))", EDGES
    ),
    _dropped(_H, "__syncthreads();  // separates the zeros from the sums", MANY_BINS),
    _dropped(_H, "__syncwarp();  // separates the turns of lanes with equal bins", EQUAL),
    _dropped(_H, "__syncthreads();  // separates the sums of warps from their reads below", MANY_BINS),
    _dropped(_H, "__syncthreads();  // separates the edges in shared memory from the searches", NUMBERS),
    Mutation(_H, "if (from + k * step < n) numbers[from", "if (from + k * step <= n) numbers[from", NUMBERS),
    Mutation(_H, "(N)(found[k] < 0 ? bins : found[k])", "(N)(found[k] < 0 ? bins - 1 : found[k])", NUMBERS),
    *OF_SEGMENTS,
)

"""The changes of kernels for reductions of segments that the tests on the emulator must notice: see run.py."""

from tests.mutation.mutation import Mutation, dropped

_IN = "tests/primitives/"


def _atomics(name: str, n: int, count: int) -> str:
    return f"{_IN}segments/test_segment_atomics.py::test_ids[emulated-{n}-{count}-{name}]"


def _tables(n: int, count: int) -> str:
    return f"{_IN}segments/test_segment_tables.py::test_order[emulated-{n}-{count}]"


SUMS = _IN + "segments/test_segment_tables.py::test_sums[emulated-float32]"
ROWS, FEW_ROWS, STRIPS_OF_ROWS = (
    f"{_IN}segments/test_segment_rows_kernel.py::test_offsets[emulated-shape{at}]" for at in ("4-0", "5-1", "3-0")
)
ROWS_BY_IDS = _IN + "segments/test_segment_rows_kernel.py::test_ids[emulated-shape2-0]"
ZEROS, TRUTH = (
    f"{_IN}segments/test_segment_atomics.py::test_{one}]"
    for one in ("special_values[emulated-float16", "truth_values[emulated-logical_and")
)

_SA, _SR, _ST, _SU = (
    "_primitives/segments/tables/segment_atomics.cu",
    "_primitives/segments/tables/segment_rows.cu",
    "_primitives/segments/tables/segment_tables.cu",
    "_primitives/segments/tables/segment_runs.cuh",
)

MUTATIONS = (
    # ---- What warps do with numbers of segments
    Mutation(_SU, "if (runs > MANY * MOST_RUNS) return;", "if (lane) return;", _atomics("add", 700, 3)),
    Mutation(_SU, "if (lane + distance < past)", "if (lane + distance <= past)", _atomics("add", 700, 3)),
    Mutation(_SU, "if ((firsts[k] >> lane & 1) == 0)", "if (lane)", _tables(700, 3)),
    Mutation(_SU, "~((2u << lane) - 1)", "~((1u << lane) - 1)", _tables(700, 3)),
    Mutation(_SU, "(unsigned long long)id < (unsigned", "(long long)id < (", _atomics("add", 700, 3)),
    Mutation(_SU, "Op::combine(elements[k], later)", "Op::combine(later, elements[k])", _tables(700, 3)),
    # ---- In tables
    dropped(_ST, "__syncthreads();  // separates the empty tables from what is combined in them", _tables(700, 3)),
    dropped(_ST, "__syncwarp();  // separates the turns of lanes with equal ids", _tables(700, 3)),
    dropped(_ST, "__syncthreads();  // separates the writes of tables from their reads below", _tables(700, 3)),
    dropped(_ST, "__syncthreads();  // separates the writes of slots from their reads", _tables(700, 3)),
    dropped(_ST, "if (JOINS && found.valid) state = Scan::Op::combine(start, found.state);", _tables(9, 40)),
    Mutation(_ST, "if (from + k < count && found[k].valid)", "if (found[k].valid)", SUMS),
    Mutation(_ST, "min(from + k, count - 1)", "count - 1", _tables(900, 130)),
    Mutation(_ST, "base + k * WARP_SIZE + lane < past", "base + k * WARP_SIZE + lane <= past", SUMS),
    Mutation(_ST, "line * blocks + begin + k", "line * blocks + k", _tables(700, 3)),
    Mutation(_ST, "blockIdx.x % parts * WIDTH", "blockIdx.x % parts", _tables(900, 90)),
    # ---- By atomic operations, and of rows
    dropped(_SA, "__syncthreads();  // separates the zeros from what is combined with them", _atomics("add", 700, 3)),
    dropped(_SA, "__syncthreads();  // separates the combinations from their reads", _atomics("add", 700, 3)),
    dropped(_SA, "if (CLEARS) words[from + k * step] = 0;", _atomics("maximum", 700, 3)),
    Mutation(_SA, "+ low < low) ++high;", "+ low < low) high += 0;", _atomics("add", 700, 3)),
    Mutation(
        _SA,
        "if (high != 0) atomicAdd(&halves[1], high);",
        "if (high == 1) atomicAdd(&halves[1], high);",
        _atomics("add", 700, 3),
    ),
    Mutation(_SA, "Code::combine(now[k], some[k]) == now[k]", "now[k] != 0", _atomics("maximum", 900, 900)),
    Mutation(_SA, "threadIdx.x < n ? segment_of", "threadIdx.x <= n ? segment_of", _atomics("add", 700, 3)),
    dropped(_SA, "if (OPERATION == MINIMUM) word ^= SIGN;", ZEROS, before="\n            word = (word ^"),
    Mutation(_SA, "return word < NOT_A_NUMBER ? word : NOT_A_NUMBER;", "return word;", ZEROS),
    Mutation(
        _SA, "(OPERATION == MINIMUM || OPERATION == AND ?", "(OPERATION == MINIMUM ?", _atomics("bitwise_and", 700, 3)
    ),
    Mutation(_SA, "IS_BOOL<R> ? (Word)1 : ALL", "ALL", TRUTH),
    Mutation(_SA, "(EXTREMUM && Form<R>::SIGNED ? SIGN : (Word)0)", "(Word)0", _atomics("maximum", 700, 3)),
    Mutation(_SA, "start ? Code::encode(*start) : (Word)0", "(Word)0", TRUTH),
    Mutation(
        _SA,
        "at < count; at += step) words[at] = 0;",
        "at + 1 < count; at += step) words[at] = 0;",
        _atomics("add", 700, 5000),
    ),
    dropped(_SR, "__syncthreads();  // separates the writes of bounds from their reads", ROWS),
    dropped(_SR, "__syncthreads();  // separates the writes of firsts from their reads", ROWS),
    dropped(_SR, "__syncthreads();  // separates the reads of parts from the writes of those together", ROWS),
    dropped(_SR, "__syncthreads();  // separates these writes from their reads", ROWS),
    dropped(
        _SR,
        "__syncthreads();  // separates the writes of parts from their reads",
        ROWS,
        before="\n    const Whole of_block",
    ),
    dropped(
        _SR,
        "__syncthreads();  // separates the writes of parts from their reads",
        ROWS,
        before="\n    fold_block(true)",
    ),
    dropped(_SR, "while (next < end) close();", ROWS),
    Mutation(_SR, "ends <= base + r", "ends < base + r", ROWS),
    Mutation(_SR, "order ? (Index)order[i] : i", "i", ROWS_BY_IDS),
    Mutation(_SR, "found.valid ? Scan::Op::combine(start, state) : start", "found.valid ? state : start", ROWS_BY_IDS),
    Mutation(_SR, "starts.load(place.high, place.low, j + k)", "starts.load(place.high, place.low, j)", ROWS_BY_IDS),
    Mutation(_SR, "if (next == first)", "if (next == first && blocks > 1)", FEW_ROWS),
    Mutation(_SR, "total.valid = false;\n        ends", "ends", ROWS),
    Mutation(_SR, "strip % strips", "strip / strips", STRIPS_OF_ROWS),
    Mutation(_SR, "if (base + r < past)", "if (base + r <= past)", ROWS),
)

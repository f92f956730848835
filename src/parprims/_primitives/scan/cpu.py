"""Scans and linear recurrences by kernels for CPUs: their text, the division of work, and the call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

from parprims import _cpu
from parprims._core.arrays import (
    Array,
    Namespace,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    library,
    mode,
    ring_dtype,
)
from parprims._core.memo import Memo
from parprims._cpu.language import loaded
from parprims._dispatch import derivative_rules
from parprims._dispatch.dispatch import directly
from parprims._operators.in_place import is_own
from parprims._operators.languages import Captured, captured_identity
from parprims._operators.operator import BUILT_IN, EXACT, Operator, check_components, rounds
from parprims._operators.tracing import Trace, trace_combine
from parprims._primitives.recurrence import array as recurrence_array
from parprims._primitives.recurrence.call import Recurrence
from parprims._primitives.reduce.call import refused_shapes
from parprims._primitives.scan import array as scan_array
from parprims._primitives.scan.call import Scan
from parprims._primitives.scan.grouping import LARGEST_BLOCK, block_elements

_COLUMNS, _MOST_COLUMNS, _SUM_BYTES = 512, 4096, 4096
"""The least and the most columns of a tile, and the bytes of sums in a row: its states stay in the cache."""
_LEAST = _cpu.threads.ELEMENTS
"""The fewest elements for each thread."""
_FEW, _PIECE = 4, 1 << 10
"""Several threads share a long line if there are fewer lines than ``_FEW``. A piece of a recurrence then has ``_PIECE``
elements."""
_HALVED, _COMPOSED = 1 << 13, 1 << 17
"""The length from which a line of a recurrence is computed in halves, and the length from which the maps of its blocks
are composed where the line does not decay."""
_GROUP, _BLOCKS, _BLOCK = LARGEST_BLOCK, 8, 1040
"""The elements of a group of blocks of a recurrence, its blocks, and the elements of each block but the last.

Results depend on them: see recurrence_loops.py. Cache lines of blocks 1024 elements apart would displace each other.
"""
_LOST = 1e-25
"""The size below which a product of coefficients may have lost digits."""
_SHARED = 3
"""The fewest threads that share a memory-bound line of a scan, because most of the line is then read twice."""

Call = Scan | Recurrence


# ---- Specialisation ---------------------------------------------------------------------------------------------

_traces: Memo[Trace] = Memo()


def code_of(xp: Namespace, op: Operator, operation: Any, working: tuple[Any, ...]) -> Trace:
    """Return the trace of an operator on states of the working dtypes; raise Untraceable if it has none.

    Traces are cached under the operator's key ``operation``, unless it is None.
    """
    states = tuple([dtype_name(dtype) for dtype in working])
    key = (operation, states, is_jax(xp), mode(xp))
    cached = None if operation is None else _traces.get(key)
    if cached is None:
        check_components(op, working)
        cached = trace_combine(op, states, immutable=is_jax(xp), language=_cpu.NUMBA)
        if operation is not None:
            _traces.keep(key, cached)
    return cached


def _traced(xp: Namespace, r: Scan) -> Trace:
    return code_of(xp, r.op, r.operation, r.working)


def captured(xp: Namespace, r: Call) -> tuple[Captured, ...]:
    """Return the numbers that kernels take as parameters: those that the operator reads, and its identity."""
    if not isinstance(r, Scan):
        return ()
    identity = identity_parameters(r.op, None if r.starts else r.identity, [dtype_name(dtype) for dtype in r.working])
    return (*_traced(xp, r).captured, *identity)


def identity_parameters(op: Operator, identity: Sequence[Any] | None, states: Sequence[str]) -> tuple[Captured, ...]:
    """Return the identity of a caller's operator as parameters of a kernel, if results begin with it."""
    if identity is None or op._built_in:
        return ()
    return captured_identity(_cpu.NUMBA, identity, states)


def identity_codes(op: Operator, identity: Sequence[Any] | None, states: Sequence[str]) -> list[str]:
    """Return the identity as expressions of a kernel, if results begin with it."""
    if identity is None:
        return []
    names = [one.name for one in identity_parameters(op, identity, states)]
    return names or [_cpu.NUMBA.literal(*one) for one in zip(identity, states, strict=True)]


def functions(
    xp: Namespace,
    r: Call,
    exclusive: bool,
    views: Sequence[Sequence[_cpu.View]],
    steps: tuple[Sequence[int], Sequence[int]],
) -> tuple[str, ...]:
    """Return the text of the functions that the loops call.

    ``views`` are the views of inputs, outputs and starts; ``steps`` are the strides of inputs and outputs in the
    innermost loop.
    """
    text, language, (inputs, outputs, starts) = _cpu.text, _cpu.NUMBA, views
    started = [loaded(x.dtype, f"load(starts[{at}], from_[{at}])") for at, x in enumerate(starts)]
    read = text.elements(inputs, steps[0])
    if isinstance(r, Scan):
        states = [dtype_name(dtype) for dtype in r.working]
        converted = [
            language.cast(f"x{at}", one.dtype, to) for at, (one, to) in enumerate(zip(inputs, states, strict=True))
        ]
        constants = identity_codes(r.op, None if starts else r.identity, states)
        advance, combine = f"combine(state, {text.packed(converted)})", text.operator(states, _traced(xp, r))
    else:
        states, constants = [_state(xp, r)], []
        a, b = [language.cast(f"x{at}", one.dtype, states[0]) for at, one in enumerate(inputs)]
        maps = _functions_of_maps(xp, r, read, a)
        converted, combine = [b], "\n".join((text.states_in_memory(states), *maps))
        advance = f"({_cpu.register_type(states[0])}({a} * state[0] + {b}),)"
    begun = [language.cast(one, view.dtype, to) for one, view, to in zip(started, starts, states, strict=False)]
    in_blocks = not isinstance(r, Scan) or _rounds(r)
    opening = [*text.elements(inputs, [0] * len(inputs)), f"return {text.packed(converted)}"]
    first = ["return advance(before(starts, from_), inputs, at, steps, 0)"]
    if starts:
        opening = ["return before(starts, from_)"] if in_blocks else first
    if in_blocks:
        first = opening
    results = [
        _cpu.register_cast(f"state[{at}]", state, view.dtype)
        for at, (state, view) in enumerate(zip(states, outputs, strict=True))
    ]
    places = [text.position(at, step, "to") for at, step in enumerate(steps[1])]
    written = text.stores([one.dtype for one in outputs], results, places)
    return (
        *text.groups(["in", "out", "start"], views, NUMBERS),
        combine,
        *_way(r),
        _equal_bits(states),
        text.function("loses(state, inputs, at, steps, i)", (*read, f"return {_loses(r, converted[0])}")),
        text.function("element(inputs, at, steps, i)", (*read, f"return {text.packed(converted)}")),
        text.function("advance(state, inputs, at, steps, i)", (*read, f"return {advance}")),
        text.function("before(starts, from_)", (f"return {text.packed(begun or constants)}",)),
        text.function("opening(inputs, starts, at, steps, from_)", opening),
        text.function("first_state(inputs, starts, at, steps, from_)", first if exclusive else opening),
        text.function("is_known()", (f"return {bool(starts)}",)),
        text.function("block()", (f"return {_block(states) if isinstance(r, Scan) else _BLOCK}",)),
        text.function("group()", (f"return {_GROUP}",)),
        text.function("memory()", (f"return {'scratch(32)' if _is_sum(r) else 0}",)),
        text.function("rows(width)", (f"return {_rows(r)}",)),
        text.function("nothing()", (f"return {_nothing(states)}",)) if _is_sum(r) else "",
        text.function(
            "begin_line(outputs, to, steps, starts, from_)",
            ["finish(outputs, to, steps, 0, before(starts, from_))" if exclusive else "return 0"],
        ),
        text.function("shift()", (f"return {int(exclusive)}",)),
        text.function("finish(outputs, to, steps, i, state)", written),
        text.loops("_primitives/scan/loops/scan_loops.py"),
        text.loops("_primitives/scan/loops/columns_loops.py"),
        "" if isinstance(r, Scan) else text.loops("_primitives/scan/loops/recurrence_loops.py"),
        text.loops("_primitives/scan/loops/blocks_loops.py"),
    )


def _functions_of_maps(xp: Namespace, r: Recurrence, read: Sequence[str], a: str) -> list[str]:
    """Return the functions of the maps x -> factor x + term of blocks of a recurrence with the coefficient ``a``."""
    function, state = _cpu.text.function, _state(xp, r)
    number, zero = _cpu.register_type(state), f"{_cpu.register_type(state)}(0)"
    if not _has_maps(state, dtype_name(r.dtype)):
        return [
            *(function(head, [f"return {zero}"]) for head in ("one()", "none()")),
            function("following(factor, inputs, at, steps, i)", [f"return {zero}"]),
            function("zero()", [f"return ({zero},)"]),
            function("lost(factor)", ["return True"]),
            function("joined(earlier, factor, term, state)", ["return state"]),
        ]
    real = {"complex64": "float32", "complex128": "float64"}.get(state, state)
    read_ahead = [f"inputs[{at}], at[{at}] + steps[{at}]" for at in range(2)]

    def size(x: str) -> str:
        return f"abs(({x}).real) + abs(({x}).imag)" if state.startswith("complex") else f"abs({x})"

    functions = [
        function("zero()", [f"return ({zero},)"]),
        function("one()", [f"return {number}(1)"]),
        function("none()", [f"return {number}(nan)"]),
        function("lost(factor)", ["return factor != factor"]),
        function("is_small(factor)", [f"return {size('factor')} < {real}({_LOST})"]),
        function(
            "following(factor, inputs, at, steps, i)",
            [*read, f"return select({size('factor')} < {real}({_LOST}), {number}(nan), {number}({a} * factor))"],
        ),
        function(
            "joined(earlier, factor, term, state)",
            [
                f"x = {number}(factor * earlier[0] + term[0])",
                f"return (select(({size('factor')} >= {real}({_LOST})) & (x - x == 0), x, state[0]),)",
            ],
        ),
        function("result(outputs, to, steps, i)", ["return (load(outputs[0], to[0] + steps[0] * i),)"]),
        function("size_of(inputs, at, steps, i)", [*read, f"return float64({size(a)})"]),
    ]
    if not _in_parts(xp, r):
        nowhere = function("in_parts(kept, line)", ["return False"])
        return [*functions, nowhere, function("marks_of(kept)", ["return kept[0]"])]
    composed = (
        "term{u} = advance(term{u}, inputs, at, steps, i + {first})",
        "factor{u} = following(factor{u}, inputs, at, steps, i + {first})",
    )
    walked = (
        "state{u} = advance(state{u}, inputs, at, steps, i + {first})",
        "finish(outputs, to, steps_out, i + {first}, state{u})",
    )
    return [
        *functions,
        function("in_parts(kept, line)", ["return load(kept[0], line) > 0"]),
        function("marks_of(kept)", ["return kept[3]"]),
        function(
            "composed(inputs, at, steps, kept, to)",
            [
                *_for_each_block("term{u} = zero()", "factor{u} = one()"),
                *_side_by_side(composed, ahead=read_ahead),
                *_for_each_block("store(kept[1], to + {u}, factor{u})", "store(kept[2], to + {u}, term{u}[0])"),
            ],
        ),
        function(
            "walked(inputs, outputs, at, to, steps, steps_out, kept, spot, state)",
            [
                "state0 = state",
                *_for_each_block("state{u} = (load(kept[2], spot + {u} - 1),)")[1:],
                *_side_by_side(walked, ahead=[*read_ahead, "outputs[0], to[0] + steps_out[0]"]),
                *_for_each_block("finish(outputs, to, steps_out, {last}, (load(kept[2], spot + {u}),))"),
            ],
        ),
    ]


def _for_each_block(*lines: str, count: int = _BLOCKS) -> list[str]:
    """Return the lines once for each of the blocks of a group, or for the first ``count``."""
    places = [(u, u * _BLOCK, min((u + 1) * _BLOCK, _GROUP) - 1) for u in range(count)]
    return [one.format(u=u, first=first, last=last) for u, first, last in places for one in lines]


def _side_by_side(step: Sequence[str], *, ahead: Sequence[str]) -> list[str]:
    """Return the lines that walk the blocks of a group side by side.

    The processor does not prefetch so many streams. So the next group of each array in ``ahead`` is prefetched.
    """
    shortest = _GROUP - (_BLOCKS - 1) * _BLOCK
    lines = [f"for i in range({shortest}):"]
    lines += [f"    prefetch({one} * ({_GROUP} + {-(-_GROUP // shortest)} * i))" for one in ahead]
    lines += [f"    {one}" for one in _for_each_block(*step)]
    lines += [f"for i in range({shortest}, {_BLOCK}):"]
    lines += [f"    {one}" for one in _for_each_block(*step, count=_BLOCKS - 1)]
    return lines


def _equal_bits(states: Sequence[str]) -> str:
    """Return the function that compares the bits of two states."""
    bits = {"float32": "as_uint32", "complex64": "as_uint32", "float64": "as_uint64", "complex128": "as_uint64"}
    equal = []
    for at, state in enumerate(states):
        layout = bits.get(_cpu.register_type(state), "")
        for part in (".real", ".imag") if state.startswith("complex") else ("",):
            equal.append(f"({layout}(one[{at}]{part}) == {layout}(other[{at}]{part}))")
    return _cpu.text.function("same(one, other)", [f"return {' & '.join(equal)}"])


_POSITIONS = {BUILT_IN["argmax"]: "<", BUILT_IN["argmin"]: ">"}
"""Operators on values and positions, with the comparison under which an element loses whatever its position."""


def _loses(r: Call, value: str) -> str:
    """Return the condition under which an element loses by its value alone; its position is then not read."""
    compare = _POSITIONS.get(r.op) if isinstance(r, Scan) else None
    return "False" if compare is None else f"{value} {compare} state[0]"


def _has_maps(state: str, output: str) -> bool:
    """Return whether a recurrence has maps of blocks: in dtypes of floats, if a result is its state.

    Only recurrences of floats depend on the grouping, and may decay. Threads share their lines.
    """
    return state == output and dtype_kind(state) in ("float", "complex") and dtype_bits(state) >= 32


def _rows(r: Call) -> str:
    """Return the memory of `down_in_blocks` and `down_sums`, or of `down_recurrence`."""
    count = 0 if isinstance(r, Scan) and not _rounds(r) else 5 if isinstance(r, Scan) else 3
    return f"({', '.join(['scratch(width)'] * count)})" if count else "0"


def _rounds(r: Scan) -> bool:
    """Return whether results depend on the order in which states are combined."""
    return rounds(r.op, r.working)


def _is_sum(r: Call) -> TypeGuard[Scan]:
    """Return whether the call is a scan that adds real floats."""
    if not isinstance(r, Scan):
        return False
    return r.op is BUILT_IN["add"] and all(dtype_kind(dtype) == "float" for dtype in r.working)


def _block(states: Sequence[Any]) -> int:
    """Return the elements of a block of states of these dtypes."""
    return block_elements(sum(dtype_bits(one) for one in states) // 8)


def _nothing(states: Sequence[str]) -> str:
    """Return the state -0.0 as an expression of a kernel."""
    return _cpu.text.packed(f"{_cpu.register_type(one)}(-0.0)" for one in states)


def _way(r: Call) -> list[str]:
    """Return the functions that scan lines and columns: by the canonical grouping if operators round, else in order.

    A recurrence has a grouping of its own, in which most rounding errors decay with it.
    """
    way = "recurrence" if isinstance(r, Recurrence) else "in_blocks" if _rounds(r) else "in_order"
    way = "sums" if _is_sum(r) else way
    along = "by_changes" if isinstance(r, Scan) and r.op in EXACT else way
    calls = {
        "go_along(inputs, outputs, at, to, steps, steps_out, n, state, rest)": f"along_{along}",
        "go_down(inputs, outputs, at, to, numbers, n, columns, lanes, rest)": f"down_{way}",
    }
    if isinstance(r, Scan):
        calls |= {
            "go_through(inputs, at, steps, state)": f"through_{along}",
            "go_behind(inputs, outputs, at, to, steps, steps_out, n, earlier, rest)": f"behind_{along}",
        }
    return [_cpu.text.function(head, (f"return {name}{head[head.index('(') :]}",)) for head, name in calls.items()]


NUMBERS = 4
"""The count of numbers before the numbers of views: low, n, inner and the width of a tile."""


def has_few_long(lines: int, n: int) -> bool:
    """Return whether several threads share each of ``lines`` lines of a recurrence."""
    return lines < _FEW and n >= _HALVED


def width_of_tiles(lines: int, inner: int, n: int) -> int:
    """Return how many of ``inner`` adjacent lines of length n a tile has."""
    return min(inner, max(_COLUMNS, min(_MOST_COLUMNS, lines // _cpu.threads.worth(lines * n // _LEAST))))


def waits_for_memory(r: Call, kinds: Sequence[str]) -> bool:
    """Return whether the call is memory-bound."""
    return isinstance(r, Scan) and len(r.inputs) == 1 and _cpu.is_memory_bound(r.op, kinds)


# ---- Plan -------------------------------------------------------------------------------------------------------


def _plan(
    xp: Namespace, r: Call, hosts: Sequence[np.ndarray[Any, Any]], names: Sequence[str], *, shared: int = 0
) -> _cpu.Plan | None:
    """Return the plan for the layouts and dtypes of inputs, then starts.

    ``shared`` is the number of threads that share a line, or 0. Return None if arrays cannot be layout as
    (high, low, n, inner) with one stride each.
    """
    count, axis, n = len(r.inputs), r.axis, r.n
    result = (*r.shape[:axis], n, *r.shape[axis + 1 :])
    dtypes = [dtype_name(one) for one in (r.dtypes if isinstance(r, Scan) else (r.dtype,))]
    arrays, outputs = [*zip(hosts, names, strict=True)], tuple([(result, dtype) for dtype in dtypes])
    layout = _cpu.lines_of(r.shape, axis, arrays[:count], outputs, starts=arrays[count:], reverse=r.reverse)
    if layout is None:
        return None
    kinds = (*names[:count], *dtypes, *names[count:])
    has_columns, layout = layout.inner > 1, layout.by_low()
    low, inner, lines, outer = layout.low, layout.inner, layout.count, layout.high * layout.low
    long = has_few_long(lines, n) if isinstance(r, Recurrence) else lines < _FEW and n >= 8 * _LEAST
    in_parts = long and isinstance(r, Recurrence) and _in_parts(xp, r)
    columns = has_columns and not (in_parts or (shared and long))
    width = width_of_tiles(lines, inner, n)
    if _is_sum(r):  # six states of each column
        width = min(width, _SUM_BYTES * 8 // dtype_bits(r.working[0]))
    numbers = _cpu.text.numbers_of(layout.groups)
    tasks = outer * (-(-inner // width) if columns else inner)
    exclusive = isinstance(r, Scan) and (r.exclusive or n > r.shape[axis])
    name = "scan_columns" if columns else "scan_lines"
    if isinstance(r, Recurrence) and not columns:
        name = "scan_pairs_of_lines"
    least = _cpu.threads.least_of_elements(tasks, lines * n)
    if waits_for_memory(r, kinds):
        least = _cpu.threads.least_of_bytes(tasks, lines * n * _cpu.bytes_of(kinds[: count + len(dtypes)]))
    launches = [_cpu.Launch(name, tasks, least)]
    scratch: list[tuple[int, str]] = []
    shares: tuple[int, ...] = ()
    if not columns and long:
        if isinstance(r, Scan) and shared:
            block = _block(r.working)
            total = -(-(n - int(exclusive)) // block)
            front = max(1, total // (shared + 2))
            stretch = -(-(total - front) // (2 * shared))
            stretches = -(-(total - front) // stretch)
            shares = front, stretch, (stretches - 1) * stretch
            states = lines * (1 + shares[-1])
            launches = [
                _cpu.Launch("scan_fronts", states, max(1, _LEAST // block)),
                _cpu.Launch("scan_totals", lines, reads=0, writes=False),
                _cpu.Launch("scan_stretches", lines * stretches),
            ]
            scratch = [(states, dtype_name(dtype)) for dtype in r.working]
        elif isinstance(r, Recurrence) and _has_maps(_state(xp, r), dtypes[0]):
            width, pieces = _PIECE, -(-n // _PIECE)
            least = _LEAST // _PIECE
            launches = [_cpu.Launch("follow_lines", lines * pieces, least), _cpu.Launch("mend_lines", lines)]
            scratch = [(lines * pieces, "int64")]
            if in_parts:
                groups = n // _GROUP * lines
                launches = [
                    _cpu.Launch("weigh_lines", lines, writes=False),
                    _cpu.Launch("compose_blocks", groups, _LEAST // _GROUP, writes=False),
                    _cpu.Launch("join_blocks", lines, writes=False),
                    _cpu.Launch("walk_blocks", groups, _LEAST // _GROUP),
                    *launches,
                ]
                scratch = [(lines, "int64"), *[(_BLOCKS * groups, _state(xp, r))] * 2, *scratch]
    named = enumerate(("front_of", "stretch_of", "totals_of")[: len(shares)], start=NUMBERS + len(numbers))
    return _cpu.Plan(
        tuple(launches),
        (
            *functions(xp, r, exclusive, views=layout.groups, steps=layout.steps(columns=columns)),
            *(_cpu.text.function(f"{name}(numbers)", (f"return numbers[{at}]",)) for at, name in named),
        ),
        tuple(names[:count]),
        outputs,
        tuple(scratch),
        (low, n, inner, width, *numbers, *shares),
        starts=tuple(names[count:]),
        captured=captured(xp, r),
    )


def _in_parts(xp: Namespace, r: Recurrence) -> bool:
    """Return whether a few lines are so long that parts are composed where they do not decay.

    Adjacent lines are not divided: every part would read the memory of all lines.
    """
    adjacent = math.prod(r.shape[r.axis + 1 :]) == 1
    return adjacent and r.n >= _COMPOSED and _has_maps(_state(xp, r), dtype_name(r.dtype))


def _state(xp: Namespace, r: Recurrence) -> str:
    """Return the dtype in which a recurrence is computed."""
    return dtype_name(ring_dtype(xp, r.dtype))


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, r: Call) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    reason = _cpu.refusal(xp, r.arrays, differentiable=True) or _cpu.unknown_dtype(r.arrays)
    reason = reason or refused_shapes(r) or _cpu.too_many(r.inputs)
    if reason is not None or not isinstance(r, Scan):
        return reason
    return _cpu.untraceable(lambda: _traced(xp, r))


def kind(xp: Namespace, r: Call) -> str:
    """Return the kind of a call in `CROSSOVERS`: its operator, elements and lines where the library has a routine."""
    if not isinstance(r, Scan):
        return "recurrence"
    in_program = _cpu.in_program(xp, r.arrays)
    if (is_jax(xp) and not in_program) or scan_array.native_refusal(xp, r) is not None:
        return "operator"
    if in_program and not (BUILT_IN.get(r.op.name) is r.op and r.op.name in _MEASURED):
        return "operator"
    whole = _cpu.of_elements(library(xp), r.inputs[0].dtype, r.dtypes[0])
    return f"{_cpu.family(r.op.name)}{whole}, {_cpu.of_lines(library(xp), r.shape, r.axis, r.n)}"


CROSSOVERS = _cpu.crossovers(__name__)
_MEASURED = ("add", "multiply", "maximum", "minimum", "argmax", "argmin", "logaddexp")
"""The operators that are kinds of their own in programs of JAX, which scans by any other operator in equal time."""


_PAGED = 1 << 25
"""Bytes of a result from which on glibc requests new memory from Linux in every call. The small pages of PyTorch take
longer than the scan. NumPy allocates for kernels, and gets huge pages.
"""


def slower(xp: Namespace, r: Call) -> str | None:
    """Return the reason why another method is faster, or None."""
    if library(xp) == "torch" and isinstance(r, Scan) and r.op is not BUILT_IN["logaddexp"]:
        nbytes = math.prod(r.shape) * max(dtype_bits(dtype) for dtype in r.dtypes) // 8
        if nbytes >= _PAGED:
            return None
    is_callers = isinstance(r, Scan) and is_own(r.op)
    reason = _cpu.compiles_in_vain(library(xp), math.prod(r.shape)) if is_callers else None
    return reason or _cpu.measured(CROSSOVERS, xp, r.arrays).slower(library(xp), kind(xp, r), math.prod(r.shape))


def prepare(xp: Namespace, r: Call) -> Callable[..., Any]:
    """Return a function of the arrays that computes the result."""
    if 0 in r.shape:
        return directly(scan_array.array if isinstance(r, Scan) else recurrence_array.array)(xp, r)
    run = _prepare_outputs(xp, r)
    if isinstance(r, Scan):  # the dispatch adds the derivative of recurrences
        run = derivative_rules.by_operations(xp, r.arrays, run, lambda: scan_array.operations(xp, r))
        if not r.single:
            return run
    return lambda *arrays: run(*arrays)[0]


def batched(xp: Namespace, r: Call, arrays: tuple[Array, ...]) -> Call:
    """Return the call on arrays with one more leading axis."""
    ndim, size = len(r.shape), max(x.shape[0] for x in arrays)
    arrays = tuple([xp.reshape(x, (x.shape[0], *(1,) * (ndim + 1 - x.ndim), *x.shape[1:])) for x in arrays])
    kept = 0 if isinstance(r, Scan) else 2  # the inputs of a recurrence broadcast
    arrays = (*arrays[:kept], *(xp.broadcast_to(x, (size, *x.shape[1:])) for x in arrays[kept:]))
    if isinstance(r, Recurrence):
        r = dataclasses.replace(r, constant=False)
    return dataclasses.replace(r, arrays=arrays, shape=(size, *r.shape), axis=r.axis + 1, key=None)


def _prepare_outputs(xp: Namespace, r: Call) -> Callable[..., tuple[Array, ...]]:
    """Return a function from the arrays of a call to the outputs of the kernel."""
    names = [dtype_name(x.dtype) for x in r.arrays]
    count, shape = len(r.inputs), r.shape
    hosts, readers = [_cpu.host(x) for x in r.arrays], None
    plan = _plan(xp, r, hosts, names)
    if plan is None:

        def copied(x: Array) -> Any:
            return _cpu.arranged(x, lambda numpy, x: numpy.broadcast_to(x, shape))

        copies = [copied] * count + [_cpu.in_order] * len(r.starts)
        hosts = [_cpu.host(copy(x)) for copy, x in zip(copies, r.arrays, strict=True)]
        plan = _plan(xp, r, hosts, names)
        readers = [lambda x, copy=copy: copy(x).reshape(-1) for copy in copies]
    assert plan is not None
    if isinstance(r, Scan) and not (_rounds(r) or r.op._built_in):
        return _cpu.runner(plan, r.arrays, readers)

    def planned(threads: int) -> _cpu.Plan:
        result = _plan(xp, r, hosts, names, shared=threads)
        assert result is not None
        return result

    if len(planned(2).launches) == len(plan.launches):
        return _cpu.runner(plan, r.arrays, readers)
    if isinstance(r, Scan):
        lines = math.prod(shape) // shape[r.axis]
        least = _SHARED if waits_for_memory(r, (*names, *map(dtype_name, r.dtypes))) else 2
    runs: dict[int, Callable[..., tuple[Array, ...]]] = {}

    def run(*arrays: Array) -> tuple[Array, ...]:
        threads = _cpu.threads.free()
        if isinstance(r, Recurrence):  # its plan does not depend on the number of threads
            threads = 2 if threads >= _SHARED else 0
        else:
            threads = threads // lines if threads // lines >= least else 0
        if threads not in runs:
            runs[threads] = _cpu.runner(planned(threads) if threads else plan, arrays, readers)
        return runs[threads](*arrays)

    return run

"""Reductions by a kernel for CPUs: the text for an operator, the division of work, and the call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims import _cpu
from parprims._core.arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, dtype_kind, dtype_name, library, mode
from parprims._core.elements import flattened
from parprims._core.layout import fold
from parprims._core.memo import Memo
from parprims._core.options import dtype_named
from parprims._dispatch import derivative_rules
from parprims._dispatch.dispatch import directly
from parprims._operators.function_key import lasting_key
from parprims._operators.in_place import is_own
from parprims._operators.operator import BUILT_IN, Operator
from parprims._operators.tracing import Untraceable
from parprims._primitives.reduce import native
from parprims._primitives.reduce.array import array
from parprims._primitives.reduce.call import (
    OWN_MAPS,
    Reduction,
    assembled,
    conjugate_product,
    refused_shapes,
    result_dtypes,
)
from parprims._primitives.reduce.grouping import block_elements
from parprims._primitives.reduce.traced import Traced, dtype_names, traced, with_initial

_BLOCK_OF_INTEGERS = 1 << 17
"""Elements of a block for built-in operators on integers."""
_FEW = 16
"""Below this number of elements a line is reduced in registers."""
_ROWS = 256
"""Rows of a block of columns, a power of two."""
_COLUMNS, _MOST_COLUMNS = 512, 4096
"""The least and the most columns of a tile: its states stay in the cache.

The processor prefetches only along long rows, but every thread should have two tiles. Bits of results do not depend on
the tiles.
"""
_NUMBERS = 6
"""The count of numbers before the numbers of views."""
_NARROW = 16
"""Below this number of columns each column is reduced separately."""


# ---- Specialisation ---------------------------------------------------------------------------------------------

_traces: Memo[Traced] = Memo()


def _traced(xp: Namespace, r: Reduction) -> Traced:
    """Return the trace of the call, from the cache if possible; raise Untraceable if it has none."""
    names, fn = dtype_names(r), lasting_key(r.fn)
    if r.operation is None or fn is None:
        return traced(xp, r, names, _cpu.NUMBA)
    key = (r.operation, fn, xp, mode(xp), names, r.single, r.dtypes)
    return _traces.get(key) or _traces.keep(key, traced(xp, r, names, _cpu.NUMBA))


def _outputs(code: Traced, r: Reduction) -> tuple[str, ...]:
    # If an initial element follows, results keep the working dtype.
    return code.results if r.initial is None else code.states


_EXTREMA = {BUILT_IN["argmax"]: (">", "<="), BUILT_IN["argmin"]: ("<", ">=")}
"""Operators that compare no positions if these ascend, with the comparisons of a later element that wins or loses."""


def way_of(op: Operator, states: Sequence[str]) -> str:
    """Return the way in which elements of a line are combined to states of these dtypes: "all" or "tree"."""
    # A product of integers takes so long that it needs more sums side by side than the compiler gives it.
    simple = op._built_in and op.name != "multiply" and len(states) == 1
    return "all" if simple and dtype_kind(states[0]) in ("bool", "int", "uint") else "tree"


def functions_of_blocks(op: Operator, way: str, begun: str) -> tuple[str, ...]:
    """Return the functions that reduce blocks: in a way of `way_of`, or "few" elements in registers.

    ``begun`` is the initial state of the way "all", and the number of elements that it then combines.
    """
    function, states = _cpu.text.function, ", states" if way == "tree" else ""
    return (
        function(
            "state_of_block(inputs, at, steps, count, states)",
            (f"return {way}_of_block(inputs, at, steps, count{states})",),
        ),
        function("begun(inputs, at, steps, count)", (f"return {begun}",)),
        function("has_groups()", (f"return {op.commutative}",)),
        _cpu.text.loops("_primitives/reduce/reduce_loops.py"),
    )


def _initial_state(code: Traced) -> str:
    """Return the initial state of a loop over a block, and the number of elements that it then combines.

    For integers the state is the identity: a loop over all elements of a short line compiles to little besides SIMD
    code. Otherwise it is the last element, so that the loop begins at aligned memory.
    """
    identity = code.op.identity(*code.states) if way_of(code.op, code.states) == "all" else None
    if identity is None:
        return "element(inputs, at, steps, count - 1), count - 1"
    return f"({_cpu.NUMBA.literal(identity[0], code.states[0])},), count"


def _in_order(code: Traced, r: Reduction, columns: bool, across: tuple[int, ...]) -> list[str]:
    """Return the functions by which rows are combined in order, for extrema whose positions ascend from row to row."""
    function, rows, combined = _cpu.text.function, ["return False"], ["return combine(earlier, later)"]
    if columns and code.op in _EXTREMA and r.fn in OWN_MAPS and len(code.inputs) == 2 and across[1] == 0:
        rows = ["return positions_ascend(inputs, at, steps, count)"]
        better, worse = _EXTREMA[code.op]
        wins = f"later[0] {better} earlier[0]"
        if dtype_kind(code.states[0]) == "float":  # the first NaN wins
            wins = f"(not (later[0] {worse} earlier[0])) & (earlier[0] == earlier[0])"
        chosen = (f"select(wins, later[{at}], earlier[{at}])" for at in range(2))
        combined = [f"wins = {wins}", f"return {_cpu.text.packed(chosen)}"]
    return [
        function("rows_ascend(inputs, at, steps, count)", rows),
        function("combine_in_order(earlier, later)", combined),
    ]


def _texts(
    code: Traced,
    outputs: tuple[str, ...],
    views: list[_cpu.View],
    steps: tuple[int, ...],
    way: str,
    in_order: list[str],
) -> tuple[str, ...]:
    pairs = list(zip(code.values, code.states, code.codes, strict=True))
    values = [_cpu.NUMBA.cast(one, value, state) for value, state, one in pairs]
    results = [
        _cpu.register_cast(f"state[{at}]", state, output)
        for at, (state, output) in enumerate(zip(code.states, outputs, strict=True))
    ]
    text = _cpu.text
    return (
        *text.groups(["in"], [views], _NUMBERS, axes=2),
        text.function(
            "element(inputs, at, steps, i)",
            (*text.elements(views, steps), *code.lines, f"return {text.packed(values)}"),
        ),
        text.operator(code.states, code.combined),
        *in_order,
        text.function("finish(outputs, i, state)", text.stores(outputs, results, ["i"] * len(outputs))),
        *functions_of_blocks(code.op, way, _initial_state(code)),
    )


# ---- Plan -------------------------------------------------------------------------------------------------------


def _plan(
    code: Traced, outputs: tuple[str, ...], r: Reduction, hosts: tuple[np.ndarray[Any, Any], ...]
) -> _cpu.Plan | None:
    """Return the plan for the layouts of arrays, or None if they cannot be viewed as (outer, n, inner)."""
    commutative = code.op.commutative
    kept, combined = fold(r.shape, r.axes, [_cpu.strides(x) for x in hosts], reorder=commutative)
    if len(kept) > 2 or len(combined) > 1:
        return None
    nothing = (1, (0,) * len(hosts))
    n, along = combined[0] if combined else nothing
    (outer, outward), (inner, across) = (nothing, nothing, *kept)[-2:]
    if len(kept) == 1 and not abs(across[0]) < abs(along[0]):
        outer, outward, inner, across = inner, across, 1, (0,) * len(hosts)
    columns = inner >= _NARROW and all(step in (0, 1) for step in across)
    way = way_of(code.op, code.states)
    if columns:
        size, steps = _ROWS, across
        share = outer * -(-n // size) * inner // (2 * _cpu.threads.limit())
        tiles = -(-inner // max(_COLUMNS, min(_MOST_COLUMNS, share)))
        width = -(-inner // tiles)
    else:
        size = _BLOCK_OF_INTEGERS if way == "all" else block_elements(_cpu.bytes_of(code.states))
        width = 1 + min(n, size) // 4
        steps = along
        if way == "tree" and n < _FEW:
            way = "few"
        if inner == 1:  # the kernel steps from line to line of an outer index without a division
            outer, outward, inner, across = inner, across, outer, outward
    in_order = _in_order(code, r, columns, steps)
    blocks = -(-n // size)
    lines = outer * inner
    tasks = outer * blocks * -(-inner // width) if columns else lines * blocks
    views = [
        _cpu.View(dtype, _cpu.first(x), (outward[at], across[at]), along[at])
        for at, (dtype, x) in enumerate(zip(code.inputs, hosts, strict=True))
    ]
    numbers = [inner, n, size, blocks, width, inner if columns else 1]
    name = "reduce_columns" if columns else "reduce_lines" if blocks > 1 else "reduce_short_lines"
    elements = math.prod(r.shape)
    least = _cpu.threads.least_of_elements(tasks, elements)
    if len(code.states) == 1 and r.fn in OWN_MAPS and _cpu.is_memory_bound(code.op, code.inputs):
        least = _cpu.threads.least_of_bytes(tasks, elements * _cpu.bytes_of(code.inputs))
    launches = [_cpu.Launch(name, tasks, least)]
    if blocks > 1:
        least = _cpu.threads.least_of_elements(lines, lines * blocks)
        launches.append(_cpu.Launch("fold_partials", lines, least, reads=0))
    return _cpu.Plan(
        tuple(launches),
        _texts(code, outputs, views, steps, way=way, in_order=in_order),
        code.inputs,
        tuple([(r.result_shape, dtype) for dtype in outputs]),
        tuple([(lines * blocks if blocks > 1 else 0, dtype) for dtype in code.states]),
        (*numbers, *_cpu.text.numbers_of([views])),
        captured=code.captured,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, r: Reduction) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    reason = _cpu.refusal(xp, r.arrays, differentiable=True) or refused_shapes(r)
    if reason is not None:
        return reason
    try:
        code = _traced(xp, r)
    except Untraceable as reason:
        return str(reason)
    return _cpu.too_many(code.inputs, code.states)


def kind(xp: Namespace, r: Reduction) -> str:
    """Return the kind of a call in `CROSSOVERS`: its operator, elements and lines where the library has a routine."""
    if native.refusal(xp, r) is not None:
        return "operator"
    # Nodes of torch.compile get mapped elements, so the operator alone is their kind.
    name = "dot" if r.fn is conjugate_product else "map" if r.fn not in OWN_MAPS else r.op.name
    name = _cpu.family(name)
    dtype = r.arrays[0].dtype
    if name == "logical_and":
        whole = " of bools" if dtype_kind(dtype) == "bool" else ""
    elif dtype_name(dtype) in SIXTEEN_BIT_FLOATS and name != "argmax":
        whole = " of 16-bit floats"
    else:
        result = result_dtypes(xp, r, (dtype,))[0] if name in ("add", "multiply") else dtype
        whole = _cpu.of_elements(library(xp), dtype, result)
    if math.prod(r.result_shape) == 1:
        return f"{name}{whole}, single line"
    last = max(r.axes, default=0)
    if name == "argmax":  # no library has one routine for it
        return f"{name}{whole}, {_cpu.of_columns(r.shape, last)}"
    return f"{name}{whole}, {_cpu.of_lines(library(xp), r.shape, last, r.n)}"


CROSSOVERS = _cpu.crossovers(__name__)


def slower(xp: Namespace, r: Reduction) -> str | None:
    """Return the reason why another method is faster, or None."""
    call_kind = kind(xp, r)
    is_callers = call_kind == "operator" and (is_own(r.op) or r.fn not in OWN_MAPS)
    reason = _cpu.compiles_in_vain(library(xp), math.prod(r.shape)) if is_callers else None
    return reason or _cpu.measured(CROSSOVERS, xp, r.arrays).slower(library(xp), call_kind, math.prod(r.shape))


def prepare(xp: Namespace, r: Reduction) -> Callable[..., Any]:
    """Return a function of the arrays that computes the result."""
    if r.n == 0 or 0 in r.result_shape:
        return directly(array)(xp, r)
    code = _traced(xp, r)
    outputs = _outputs(code, r)
    run = _prepare_totals(code, outputs, r)

    def operations() -> Callable[..., Any]:
        totals = dataclasses.replace(
            r, initial=None, begun=False, dtypes=tuple([dtype_named(xp, one) for one in outputs])
        )
        compute = native.prepare if native.refusal(xp, totals) is None else directly(array)
        return lambda *arrays: tuple(flattened(compute(xp, totals)(*arrays))[0])

    run = derivative_rules.by_operations(xp, r.arrays, run, operations)
    if r.initial is not None:
        return with_initial(xp, r, code, run)
    if code.structure is None and code.single:
        return lambda *arrays: run(*arrays)[0]
    return lambda *arrays: assembled(run(*arrays), code.single, code.structure)


def batched(xp: Namespace, r: Reduction, arrays: tuple[Array, ...]) -> Reduction | None:
    """Return the call on arrays with one more leading axis, or None if every row has its initial element."""
    if r.begun:
        return None
    return r.of(*xp.broadcast_arrays(*arrays), axes=tuple([axis + 1 for axis in r.axes]))


def _prepare_totals(code: Traced, outputs: tuple[str, ...], r: Reduction) -> Callable[..., tuple[Array, ...]]:
    """Return a function from the arrays of a call to the outputs of the kernel."""
    hosts = tuple([_cpu.host(x) for x in r.arrays])
    plan = _plan(code, outputs, r, hosts)
    if plan is not None:
        return _cpu.runner(plan, r.arrays)
    # The arrays have no view (outer, n, inner), but copies with the axes last have.
    kept = tuple([axis for axis in range(len(r.shape)) if axis not in r.axes])
    order = kept + r.axes

    def copied(x: Array) -> Any:
        return _cpu.arranged(x, lambda numpy, x: numpy.permute_dims(x, order))

    copies = tuple([_cpu.host(copied(x)) for x in r.arrays])
    axes = tuple(range(len(kept), len(r.shape)))
    plan = _plan(
        code, outputs, dataclasses.replace(r, arrays=(), shape=copies[0].shape, axes=axes, keepdims=False), copies
    )
    assert plan is not None
    plan = dataclasses.replace(plan, outputs=tuple([(r.result_shape, dtype) for dtype in outputs]))
    return _cpu.runner(plan, r.arrays, [lambda x: copied(x).reshape(-1)] * len(copies))

"""The matrix product by a kernel for CPUs: the text for two operators, the plan, and the prepared call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims import _cpu
from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    library,
    library_title,
)
from parprims._core.layout import Axis, broadcast_strides, fold
from parprims._core.memo import Memo
from parprims._cpu.language import loaded
from parprims._dispatch import derivative_rules
from parprims._dispatch.dispatch import directly
from parprims._operators.in_place import is_own
from parprims._operators.operator import BUILT_IN
from parprims._operators.tracing import Trace, trace_combine
from parprims._primitives.matmul.array import tiled_product
from parprims._primitives.matmul.call import Product

_HEIGHT, _WIDTH, _DEPTH = 128, 256, 128
"""Rows, columns and products of a chain in a tile: its copies and sums stay in the cache."""
_ROWS, _DEEP = 4, 2
"""Rows and products of a step. More of them take little less time, and longer to compile."""
_LONG = 24
"""The most lines of both operators that are repeated in a kernel; longer texts would take long to compile."""
_TILES, _LOWEST = 8, 32
"""The fewest tiles of a product, as long as tiles have at least ``_LOWEST`` rows."""
_NARROW, _SMALL = 4, 8
"""The most columns, and the most rows and columns, for which no factor is copied and rows are computed alone."""
_FEW, _WIDE = 2, 2048
"""The most rows for which a step has a single row, and the columns of a tile then: reading b takes the time."""
_IN_PLACE = 1 << 13
"""The most elements of a factor with adjacent columns that is read in place."""
_LEAST = 1 << 16
"""The fewest products for a thread."""


# ---- Specialisation ---------------------------------------------------------------------------------------------

_traces: Memo[tuple[Trace, Trace]] = Memo()


def _traced(p: Product) -> tuple[Trace, Trace]:
    """Return the translations of add and multiply, remembered for the operators; raise Untraceable."""
    state = dtype_name(p.working)
    key = p.operation, state
    traces = _traces.get(key) if p.lasts else None
    if traces is None:
        add = trace_combine(p.add, (state,), language=_cpu.NUMBA, told="captured_add")
        traces = add, trace_combine(p.multiply, (state,), language=_cpu.NUMBA, told="captured_multiply")
        if p.lasts:
            _traces.keep(key, traces)
    return traces


def _is_long(p: Product) -> bool:
    """Return whether operators are too long, or call functions too slow, for steps of several products to pay."""
    lines = [one.lines for one in _traced(p)]
    return any(one.long for one in lines) or sum(map(len, lines)) > _LONG


def _binary(name: str, of: Trace, *, backwards: bool = False) -> str:
    """Return the text of an operator as a function of two numbers; ``backwards`` if the later number comes first."""
    sides = "later_0, earlier_0" if backwards else "earlier_0, later_0"
    return _cpu.text.function(f"{name}({sides})", (*of.lines, f"return {of.outputs[0]}"))


def _extremum(p: Product, cut: _Cut) -> str | None:
    """Return the comparison by which a minimum or maximum keeps the earlier of two numbers, if neither is NaN.

    It takes half the time of a comparison that handles NaN. None if the sum is no extremum of floats, if the factors do
    not show whether a product is NaN, or if rows are too few for this check to pay.
    """
    if cut.few or dtype_kind(p.working) != "float" or p.multiply not in (BUILT_IN["add"], BUILT_IN["multiply"]):
        return None
    return {BUILT_IN["minimum"]: "<", BUILT_IN["maximum"]: ">"}.get(p.add)


def _calm(p: Product, comparison: str | None) -> str:
    """Return the function that finds whether no product of a piece can be NaN.

    Then factors have no NaN. If factors are multiplied, they have no infinities; if added, none of one sign.
    """
    head = "calm_of(inputs, left, right, depth, padded, d, at, pitch, w)"
    if comparison is None:
        return _cpu.text.function(head, ("return True",))
    number = _cpu.register_type(dtype_name(p.working))
    counted = (f"low += 1 - int64(x > {number}(-inf))", f"high += 1 - int64(x < {number}(inf))")
    lines = ["low, high = 0, 0"]
    for outer, inner, element in (
        ("padded", "d", "load(left, outer * depth + inner)"),
        ("d", "w", "load(panel(inputs, right), at + outer * pitch + inner)"),
    ):
        lines += [f"for outer in range({outer}):", f"    for inner in range({inner}):", f"        x = {element}"]
        lines += [f"        {one}" for one in counted]
    both = "low + high == 0" if p.multiply is BUILT_IN["multiply"] else "(low == 0) | (high == 0)"
    return _cpu.text.function(head, (*lines, f"return {both}"))


def _step(rows: int, deep: int) -> str:
    """Return the function that adds ``deep`` products to the sums of ``rows`` rows.

    Each row of the sums is a region of its own, as is the right factor's panel.
    """
    lines = [f"x{r}_{u} = load(left, at + {r} * depth + {u})" for r in range(rows) for u in range(deep)]
    lines.append("for j in range(w):")
    lines += [f"    y{u} = load_from(0, panel(inputs, right), spot + {u} * pitch + j)" for u in range(deep)]
    for r in range(rows):
        place = f"{r + 1}, sums, to + {r} * width + j"
        lines.append(f"    total{r} = load_from({place})")
        lines += [f"    total{r} = combine_calm(total{r}, times(x{r}_{u}, y{u}))" for u in range(deep)]
        lines.append(f"    store_to({place}, total{r})")
    return _cpu.text.function("step(inputs, left, right, sums, at, spot, to, depth, pitch, width, w)", lines)


def _texts(p: Product, names: Sequence[str], cut: _Cut) -> tuple[str, ...]:
    """Return the functions that the loops call, for factors of these dtypes."""
    text, language = _cpu.text, _cpu.NUMBA
    add, multiply = _traced(p)
    state, result = dtype_name(p.working), dtype_name(p.dtype)

    def element(at: int) -> str:
        code = loaded(names[at], f"load(inputs[{at}], at)")
        code = code if names[at] == result else language.cast(code, names[at], result)
        return _cpu.register_cast(code, result, state)

    comparison = _extremum(p, cut)
    rows, deep = (1, 1) if _is_long(p) else (1, _ROWS * _DEEP) if cut.few else (_ROWS, _DEEP)
    backwards = cut.swapped and not p.multiply.commutative
    along = "1" if cut.by_rows and cut.left.along == 1 else "numbers[12]"
    copy = "copy_in_place" if cut.in_place else "copy_of_right"
    arguments = "inputs, right, numbers, at, width, d, w"
    return (
        text.function("scratch(count)", (f"return np.empty(count, np.{text.numpy_type(state)})",)),
        text.function("left_of(inputs, at)", (f"return {element(0)}",)),
        text.function("right_of(inputs, at)", (f"return {element(1)}",)),
        _binary("times", multiply, backwards=backwards),
        _binary("combine", add),
        _binary("combine_calm", add)
        if comparison is None
        else text.function("combine_calm(x, y)", (f"return select(x {comparison} y, x, y)",)),
        text.function("rows_at_once()", (f"return {rows}",)),
        text.function("deep_at_once()", (f"return {deep}",)),
        _step(rows, deep),
        _calm(p, comparison),
        text.function("panel(inputs, right)", (f"return {'inputs[1]' if cut.in_place else 'right'}",)),
        text.function("panel_size(width, depth)", (f"return {'1' if cut.in_place else 'width * depth'}",)),
        text.function("panel_at(at)", (f"return {'at' if cut.in_place else '0'}",)),
        text.function("panel_pitch(numbers)", (f"return numbers[{14 if cut.in_place else 4}]",)),
        text.function(f"copy_right({arguments})", (f"return {copy}({arguments})",)),
        text.function("along_left(numbers)", (f"return {along}",)),
        text.function("across_result(numbers)", (f"return {'numbers[7]' if cut.swapped else '1'}",)),
        text.function(
            "finish(outputs, at, total)",
            text.stores((result,), (_cpu.register_cast("total", state, result),), ("at",)),
        ),
        text.loops("_primitives/matmul/kernels/matmul_loops.py"),
    )


# ---- Plan -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Factor:
    """A factor as lines along k: their number, the index of the first, and the strides between lines and along k."""

    lines: int
    begin: int
    line: int
    along: int


@dataclasses.dataclass(frozen=True)
class _Cut:
    """The division of a product: the left factor has rows, the right has columns; ``swapped`` if these are b and a."""

    left: _Factor
    right: _Factor
    k: int
    axes: list[Axis]
    swapped: bool
    by_rows: bool
    in_place: bool

    @property
    def few(self) -> bool:
        """Whether there are few rows, and results are not computed row by row."""
        return not self.by_rows and self.left.lines <= _FEW


def _cut(p: Product, names: Sequence[str], hosts: Sequence[np.ndarray[Any, Any]]) -> _Cut:
    """Return how the product of factors of these layouts is cut."""
    x, y = hosts[0], hosts[1]
    x, y = x if x.ndim > 1 else _cpu.with_axis(x, 0), y if y.ndim > 1 else _cpu.with_axis(y, 1)
    (m, k), n = x.shape[-2:], y.shape[-1]
    steps = [_cpu.strides(one) for one in (x, y)]
    (down, along_a), (along_b, across) = (one[-2:] for one in steps)
    batches = [
        broadcast_strides(one[:-2], factor.shape[:-2], len(p.batch)) for one, factor in zip(steps, (x, y), strict=True)
    ]
    axes, _ = fold(p.batch, (), batches)
    # Matrices that share b, and have one stride between all their rows, are one matrix.
    while axes and axes[-1][1][1] == 0 and (m == 1 or axes[-1][1][0] == m * down):
        length, (step, _) = axes.pop()
        m, down = m * length, step if m == 1 else down
    a = _Factor(m, _cpu.first(x), down, along_a)
    b = _Factor(n, _cpu.first(y), across, along_b)
    long, short = max(m, n), min(m, n)
    of_lines = a if m >= n else b
    by_rows = long <= _SMALL or (short <= _NARROW and abs(of_lines.along) <= abs(of_lines.line))
    by_rows = by_rows and not _is_long(p)
    # The rows are the longer side if each is computed by itself; else the columns, unless both are long enough.
    swapped = n > m if by_rows else m > n and n < 2 * _LOWEST
    left, right = (b, a) if swapped else (a, b)
    state, name = dtype_name(p.working), names[0 if swapped else 1]
    in_place = name == state and name not in SIXTEEN_BIT_FLOATS and right.line == 1
    in_place = in_place and (left.lines <= _SMALL or right.lines * k <= _IN_PLACE)
    return _Cut(left=left, right=right, k=k, axes=axes, swapped=swapped, by_rows=by_rows, in_place=in_place)


def _plan(p: Product, names: Sequence[str], cut: _Cut) -> _cpu.Plan:
    """Return the plan for the left and the right factor of a cut, which have these dtypes."""
    left, right, k = cut.left, cut.right, cut.k
    rows, columns = left.lines, right.lines
    matrices = math.prod(length for length, _ in cut.axes)
    across = -(-columns // (_WIDE if cut.few else _WIDTH))
    width = columns if across == 1 or cut.by_rows else -(-columns // (16 * across)) * 16
    height = rows if cut.few else min(_HEIGHT, -(-rows // _ROWS) * _ROWS)
    while height > _LOWEST and -(-rows // height) * across * matrices < _TILES:
        height = -(-height // (2 * _ROWS)) * _ROWS
    tasks = matrices * -(-rows // height) * (1 if cut.by_rows else -(-columns // width))
    steps_out = (1, rows) if cut.swapped else (columns, 1)
    axes = [(length, *(steps[::-1] if cut.swapped else steps)) for length, steps in reversed(cut.axes)]
    numbers = (
        *(rows, columns, k, height, width, min(k, _DEPTH)),
        *(*steps_out, rows * columns, len(axes)),
        *(left.begin, left.line, left.along, right.begin, right.along, right.line),
        *(number for one in axes for number in one),
    )
    name = "multiply_rows" if cut.by_rows else "multiply_tiles"
    each = min(rows, height) * min(columns, width) * k
    return _cpu.Plan(
        (_cpu.Launch(name, tasks, -(-_LEAST // each)),),
        _texts(p, names, cut),
        inputs=tuple(names),
        outputs=((p.shape, dtype_name(p.dtype)),),
        scratch=(),
        numbers=numbers,
        captured=tuple([one for of in _traced(p) for one in of.captured]),
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, p: Product) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    reason = _cpu.refusal(xp, p.arrays, differentiable=True)
    if reason is not None:
        return reason
    if p.kernel is not None:
        return f"kernel {p.kernel} runs in CUDA, and the arrays are not on a CUDA device"
    if p.tile is not None:
        return "the kernel for CPUs takes no tile"
    return _cpu.unknown_dtype((*p.arrays, p)) or _cpu.untraceable(lambda: _traced(p))


CROSSOVERS = _cpu.crossovers(__name__)
"""Numbers of products, in all or of each matrix of a batch; lengths of sums and least sides, if the kind says so.

"integers" are products of integers, which no BLAS has; "operators" are all operators but sums of products.
"""
_THIN, _LENGTH = 16, 128
"""Rows or columns up to which a product is thin, and the length of its sums from which the kernel takes less time."""


def slower(xp: Namespace, p: Product) -> str | None:
    """Return the reason why another method is faster, or None."""
    if p.ring and dtype_kind(p.dtype) in ("float", "complex"):
        return f"{library_title(xp)}'s own way is preferred at any size"
    k = p.arrays[0].shape[-1]
    if p.ring:
        return None
    if is_own(p.add) or is_own(p.multiply):
        reason = _cpu.compiles_in_vain(library(xp), math.prod(p.shape) * k)
        if reason is not None:
            return reason
    least = _cpu.measured(CROSSOVERS, xp, p.arrays).of(library(xp))
    if "operators" not in least:
        return f"{library_title(xp)}'s own way is preferred at any size"
    if k < least.get("length of operators", 0):
        return (
            f"{library_title(xp)}'s own way is preferred for sums of fewer than {least['length of operators']} products"
        )
    if math.prod(p.shape) * k < least["operators"]:
        return f"{library_title(xp)}'s own way is preferred below {least['operators']} products"
    return None


def is_faster_for_integers(xp: Namespace, p: Product) -> bool:
    """Return whether the kernel takes less time than the library's product of integers, which is no BLAS's."""
    a, b = p.arrays
    k, results, matrices = a.shape[-1], math.prod(p.shape), math.prod(p.batch)
    rows, columns = a.shape[-2] if a.ndim > 1 else 1, b.shape[-1] if b.ndim > 1 else 1
    least = _cpu.for_processor(CROSSOVERS).of(library(xp))
    if is_jax(xp):
        products = least["integers of 32 bits" if dtype_bits(p.dtype) == 32 else "integers"]
        return bool(min(rows, k, columns) >= least["side of integers"] and results * k >= products)
    is_large = results > matrices and results * k >= max(least["integers"], matrices * least["integers, each"])
    if library(xp) == "numpy":
        return bool(is_large)
    if matrices > 1:
        return bool(is_large and b.ndim > 2)  # with one b for all matrices, PyTorch computes one product
    is_thin = min(rows, columns) <= _THIN and k >= _LENGTH
    return bool(is_large and is_thin and results * k >= least["integers, thin"])


def when_called(xp: Namespace, p: Product) -> Callable[..., Array]:
    """Return a lazy `prepare`, which builds the plan at the first call."""
    bare = p.on(None, None)
    run: list[Callable[..., Array]] = []

    def multiply(a: Array, b: Array) -> Array:
        if not run:
            run.append(prepare(xp, bare.on(a, b)))
        return run[0](a, b)

    return multiply


def prepare(xp: Namespace, p: Product) -> Callable[..., Array]:
    """Return a function of both factors that multiplies them."""
    operations: Callable[..., Array] = directly(tiled_product)(xp, p)
    if 0 in p.shape or p.arrays[0].shape[-1] == 0:
        return operations
    run = _prepared(p)
    if p.ring:  # the dispatch adds the derivative
        return run
    differentiable = derivative_rules.by_operations(xp, p.arrays, lambda a, b: (run(a, b),), lambda: operations)
    return lambda a, b: differentiable(a, b)[0]


def _prepared(p: Product) -> Callable[..., Array]:
    names = [dtype_name(x.dtype) for x in p.arrays]
    cut = _cut(p, names, [_cpu.host(x) for x in p.arrays])
    if cut.swapped:
        run = _cpu.runner(_plan(p, names[::-1], cut), p.arrays[::-1])
        return lambda a, b: run(b, a)[0]
    run = _cpu.runner(_plan(p, names, cut), p.arrays)
    return lambda a, b: run(a, b)[0]

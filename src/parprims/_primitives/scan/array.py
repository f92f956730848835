"""Scans by array operations: by the canonical grouping, or by pairs; and by the library's own routine."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    along,
    cast,
    dtype_kind,
    filled,
    is_jax,
    lacks_arithmetic,
    library,
    library_title,
    offers,
)
from parprims._core.jax_arrays import varying_alike
from parprims._dispatch.derivative_rules import by_operations, own_refusal
from parprims._dispatch.dispatch import directly
from parprims._libraries.steps import doubled, in_programs
from parprims._operators.in_place import check_axes, harmless
from parprims._operators.operator import BUILT_IN, Operator, op_never_warns, rounds
from parprims._primitives.reduce.call import SUMS
from parprims._primitives.scan.call import Scan
from parprims._primitives.scan.grouping import Scans, in_blocks

Inclusive = Callable[[Namespace, tuple[Array, ...], Operator, int], tuple[Array, ...]]
"""An inclusive scan of two or more elements along an axis counted from the front, such as `inclusive`."""

After = Callable[..., tuple[Array, ...]]
"""An inclusive scan of one or more elements, with ``starts``, an initial element or none, such as `grouped`."""

_FEW = 8192
"""Elements up to which step doubling is faster than pairing on NumPy, where calls take the time.

Measured on shapes from (8192,) to (10000, 2) along either axis; the size of the whole array decides.
"""


# ---- The array form ---------------------------------------------------------------------------------------------


def array(xp: Namespace, r: Scan) -> Any:
    """Return the scan by the canonical grouping."""
    axis = None if r.shapes is None else r.axis
    op = harmless(xp, r.op, r.operation, r.inputs, axis=axis)
    check_axes(xp, r.op, r.operation, r.inputs, axis=r.axis)
    return _result(xp, dataclasses.replace(r, op=op), grouped)


def array_refusal(xp: Namespace, r: Scan) -> str | None:
    """Return the reason why the library cannot compute with the elements, or None."""
    return lacks_arithmetic(xp, r.working)


def _result(xp: Namespace, r: Scan, inclusive: After) -> Any:
    """Return the result of a call; ``inclusive`` scans from the front."""
    options = ScanOptions(
        op=r.op,
        axis=r.axis,
        exclusive=r.exclusive,
        reverse=r.reverse,
        identity=r.identity,
        n=r.n,
        working=r.working,
        dtypes=r.dtypes,
    )
    ys = scanned(xp, r.inputs, r.starts, options, inclusive=inclusive)
    return ys[0] if r.single else ys


class ScanOptions(NamedTuple):
    """The fields of `Scan` that describe the scan of its arrays, in a type that torch.compile can trace."""

    op: Operator
    axis: int
    exclusive: bool
    reverse: bool
    identity: tuple[Any, ...] | None
    n: int
    working: tuple[Any, ...]
    dtypes: tuple[Any, ...]


def scanned(
    xp: Namespace, xs: tuple[Array, ...], starts: tuple[Array, ...], options: ScanOptions, *, inclusive: After
) -> tuple[Array, ...]:
    """Return the components of a scan; ``inclusive`` scans from the front. torch.compile traces this function."""
    op, axis, exclusive, reverse, identity, n, working, dtypes = options
    if n == 0:  # XLA's compiler for CPUs crashes on an empty slice of a concatenation
        return tuple([cast(xp, xp.concat([x], axis=axis), dtype) for x, dtype in zip(xs, dtypes, strict=True)])
    xs = tuple([cast(xp, x, dtype) for x, dtype in zip(xs, working, strict=True)])
    if reverse:
        xs = tuple([xp.flip(x, axis=axis) for x in xs])
    if exclusive:
        xs = tuple([x[along(axis, 0, max(x.shape[axis] - 1, 0))] for x in xs])
    starts = tuple([cast(xp, start, x.dtype) for start, x in zip(starts, xs, strict=False)])
    count = xs[0].shape[axis]
    # One element is copied, because a result never shares memory with an input. Empty arrays are copied too: the
    # library may have no arithmetic for their dtype.
    combines = count + len(starts) > 1 and count > 0 and not all(0 in x.shape for x in xs)
    ys = inclusive(xp, xs, op, axis, starts=starts) if combines else tuple([xp.concat([x], axis=axis) for x in xs])
    if n > count:
        heads = starts
        if identity is not None:
            heads = tuple([filled(xp, value, y, axis) for value, y in zip(identity, ys, strict=True)])
        ys = tuple([xp.concat([head, y], axis=axis) for head, y in zip(heads, ys, strict=True)])
    if reverse:
        ys = tuple([xp.flip(y, axis=axis) for y in ys])
    return tuple([cast(xp, y, dtype) for y, dtype in zip(ys, dtypes, strict=True)])


def grouped(
    xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int, *, starts: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Return the inclusive scan by the grouping of grouping.py.

    Pairs are faster. They do if the order is immaterial, and for segments by offsets, which the grouping does not suit.
    """
    if rounds(op, [x.dtype for x in xs]) and not _by_offsets(op):
        return in_blocks(Scans(xp, op, axis), xs, starts)
    return _after(inclusive)(xp, xs, op, axis, starts=starts)


def _by_offsets(op: Operator) -> bool:
    """Return whether an operator scans segments by offsets."""
    return op._segments is not None and op.name == op._segments.name


def _after(inclusive: Inclusive) -> After:
    """Return an inclusive scan that takes the initial element as the first of its elements."""

    def scan(
        xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int, *, starts: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        if len(starts) == 0:
            return inclusive(xp, xs, op, axis)
        xs = tuple([xp.concat(list(pair), axis=axis) for pair in zip(starts, xs, strict=True)])
        return tuple([y[along(axis, 1, None)] for y in inclusive(xp, xs, op, axis)])

    return scan


def inclusive(xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the inclusive scan along an axis counted from the front, in order, by pairs.

    Neighbours are combined and the pairs scanned, which gives every second result. Each result between takes one more
    combination: for w x y z the pairs wx and yz scan to wx and wxyz, and wxy is wx combined with y. On JAX, where the
    program would grow with n, short lanes are scanned side by side.
    """
    n = xs[0].shape[axis]
    if n <= (LANE if in_programs(xp) else 2) or max([math.prod(x.shape) for x in xs]) <= _FEW:
        return doubled(xp, xs, op, axis)
    if in_programs(xp):
        return _by_lanes(xp, xs, op, axis)
    firsts, seconds = along(axis, 0, n - 1, 2), along(axis, 1, n, 2)
    odd = inclusive(xp, op(tuple(x[firsts] for x in xs), tuple(x[seconds] for x in xs)), op, axis)
    before, rest = along(axis, 0, (n - 1) // 2), along(axis, 2, n, 2)
    even = op(tuple(y[before] for y in odd), tuple(x[rest] for x in xs))
    return tuple(interleave(xp, x, e, o, axis=axis) for x, e, o in zip(xs, even, odd, strict=True))


def interleave(xp: Namespace, x: Array, even: Array, odd: Array, axis: int) -> Array:
    """Return x[0], odd[0], even[0], odd[1], even[1], ... along the axis, of the shape of x."""
    half = odd.shape[axis]
    even = xp.concat([x[along(axis, 0, 1)], even], axis=axis)
    pairs = xp.stack([even[along(axis, 0, half)], odd], axis=axis + 1)
    joined = xp.reshape(pairs, (*x.shape[:axis], 2 * half, *x.shape[axis + 1 :]))
    return xp.concat([joined, even[along(axis, half, None)]], axis=axis) if x.shape[axis] % 2 else joined


def _by_lanes(xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the inclusive scan on JAX: of lanes step by step, combined with the scan of their totals."""
    totals, ys, length = _lanes(xp, xs, op, axis)
    ys = tuple([_merge_axis(xp, xp.moveaxis(y, 0, axis + 1), axis) for y in ys])
    count = ys[0].shape[axis] // length
    totals = doubled(xp, totals, op, axis)
    before = tuple([xp.repeat(x[along(axis, 0, count - 1)], length, axis=axis) for x in totals])
    later = op(before, tuple([y[along(axis, length, None)] for y in ys]))
    first, rest = along(axis, 0, length), along(axis, count, None)  # no element after the last lane takes a total
    parts = [
        [y[first], cast(xp, combined, y.dtype), cast(xp, total[rest], y.dtype)]
        for y, combined, total in zip(ys, later, totals, strict=True)
    ]
    return tuple([xp.concat(three, axis=axis) for three in parts])


def _lanes(
    xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int
) -> tuple[tuple[Array, ...], tuple[Array, ...], int]:
    """Return the totals of lanes on JAX, their prefixes along a new first axis, and a lane's length.

    A lane has ``length`` adjacent elements. The totals are followed by the elements after the last full lane, fewer
    than ``length``, uncombined. At most log2 n elements are combined one after another, as the bounds of trees need.
    """
    import jax

    n = xs[0].shape[axis]
    length = min(LANE, (n - 1).bit_length())
    count = n // length
    xs = varying_alike(xs)
    rows = tuple(
        [
            xp.moveaxis(
                xp.reshape(x[along(axis, 0, count * length)], (*x.shape[:axis], count, length, *x.shape[axis + 1 :])),
                axis + 1,
                0,
            )
            for x in xs
        ]
    )

    def step(total: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[tuple[Array, ...], Any]:
        total = op(total, later)
        return total, total

    first = tuple([row[0] for row in rows])
    totals, ys = jax.lax.scan(step, first, tuple([row[1:] for row in rows]))
    ys = tuple([xp.concat([xp.expand_dims(x, axis=0), y]) for x, y in zip(first, ys, strict=True)])
    rest = along(axis, count * length, None)
    totals = tuple([xp.concat([total, x[rest]], axis=axis) for total, x in zip(totals, xs, strict=True)])
    return totals, ys, length


LANE = 16
"""Elements of a lane; longer lanes leave fewer totals to scan in log n steps."""


def _merge_axis(xp: Namespace, x: Array, axis: int) -> Array:
    """Return an array with an axis and the next axis merged."""
    return xp.reshape(x, (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]))


# ---- By the library's own routine -------------------------------------------------------------------------------

_TORCH = {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin", "logaddexp": "logcumsumexp"}
_JAX = {"maximum": "cummax", "minimum": "cummin"}
_STANDARD = {"add": "cumulative_sum", "multiply": "cumulative_prod"}


def _routine(xp: Namespace, op: Operator) -> Callable[[Array, int], Array] | None:
    """Return the library's own scan of one array along an axis with the operator, or None."""
    name = op.name if BUILT_IN.get(op.name) is op and op.components is None else None
    if name is None:
        return None
    if array_api_compat.is_numpy_namespace(xp):
        ufunc = getattr(np, name)
        return lambda x, axis: _accumulated(ufunc, x, axis, x.dtype)
    if array_api_compat.is_torch_namespace(xp) and name in _TORCH:
        function = getattr(xp, _TORCH[name])
        if name in ("maximum", "minimum"):
            return lambda x, axis: function(x, dim=axis).values
        return lambda x, axis: function(x, dim=axis, **({} if name == "logaddexp" else {"dtype": x.dtype}))
    if is_jax(xp) and steps_in_jax():
        return None
    if is_jax(xp) and name in _JAX:
        from jax import lax

        cumulative: Callable[[Array, int], Array] = getattr(lax, _JAX[name])
        return cumulative
    if name in _STANDARD and offers(xp, _STANDARD[name]):
        function = getattr(xp, _STANDARD[name])
        return lambda x, axis: function(x, axis=axis, dtype=x.dtype)
    return None


_WIDE = 256
"""Elements after the axis from which on NumPy is faster by adding rows than by ``accumulate`` along columns.

NumPy's accumulate visits one column after another; on 2 to 1000 rows it takes 1.4 to 160 times as long.
"""


def _is_narrow(shape: tuple[int, ...], axis: int) -> bool:
    return len(shape) == axis + 1 or math.prod(shape[axis + 1 :]) < _WIDE


def _accumulated(ufunc: np.ufunc, x: Array, axis: int, dtype: Any, out: Array | None = None) -> Array:
    """Return the inclusive scan of a NumPy array in a dtype, with the bits of NumPy's ``accumulate``."""
    if _is_narrow(x.shape, axis) or not x.flags.c_contiguous:
        return ufunc.accumulate(x, axis, dtype, out)
    result = np.empty(x.shape, dtype) if out is None else out
    if x.dtype != dtype:  # to widen all rows at once, and add in place, is faster than to widen each row
        result[...] = x
        x = result
    rows, totals = np.moveaxis(x, axis, 0), np.moveaxis(result, axis, 0)
    totals[:1] = rows[:1]
    for total, row, later in zip(totals, rows[1:], totals[1:], strict=False):
        ufunc(total, row, out=later)
    return result


def library_inclusive(xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the inclusive scan by the library's own routine for the operator, or by JAX's routine for any operator."""
    routine = _routine(xp, op)
    if routine is not None:
        return (routine(xs[0], axis),)
    import jax

    if steps_in_jax():
        return _by_steps(xp, xs, op, axis)
    # XLA's compiler for GPUs aborts at some products of matrices that are parts of a concatenation, as with the initial
    # element before the others ("triton_tiling_propagation.cc: Check failed"). The barrier hides the concatenation.
    scanned: tuple[Array, ...] = jax.lax.associative_scan(op, jax.lax.optimization_barrier(xs), axis=axis)
    return scanned


def steps_in_jax() -> bool:
    """Return whether JAX scans one element after another: on a CPU, where its other scans are slower.

    They take up to 14 times as long, along one line of 10 to 10^6 elements and along 10 to 16384 lines.
    """
    import jax

    return bool(jax.default_backend() == "cpu")


def _by_steps(xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the inclusive scan by a loop of JAX; the operator's arguments keep their number of dimensions."""
    import jax

    xs = varying_alike(xs)

    def step(total: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        total = op(total, tuple([xp.expand_dims(x, axis=axis) for x in later]))
        return total, tuple([xp.squeeze(y, axis=axis) for y in total])

    first = tuple([x[along(axis, 0, 1)] for x in xs])
    _, ys = jax.lax.scan(step, first, tuple([xp.moveaxis(x[along(axis, 1, None)], axis, 0) for x in xs]))
    return tuple([xp.concat([x, xp.moveaxis(y, 0, axis)], axis=axis) for x, y in zip(first, ys, strict=True)])


def native_refusal(xp: Namespace, r: Scan) -> str | None:
    """Return the reason why the library has no routine for the call, or None."""
    if is_jax(xp) or _routine(xp, r.op) is not None:
        return own_refusal(xp, r.op) or array_refusal(xp, r)
    by_segments = " by segments" if _by_offsets(r.op) else ""
    return f"{library_title(xp)} has no scan with the operator {r.op.name}{by_segments}"


def prepare_native(xp: Namespace, r: Scan) -> Callable[..., Any]:
    """Return a function of the arrays; where one call of the library suffices, that call alone."""
    routine, axis = _routine(xp, r.op), r.axis
    least = 1 if library(xp) == "numpy" else 2  # NumPy copies a single element
    if routine is None or r.starts or r.n < least:
        return directly(_native)(xp, r)
    source, dtype = r.inputs[0].dtype, r.dtypes[0]
    plain = not (r.exclusive or r.reverse) and r.n == r.shape[axis]
    if r.working != r.dtypes:
        if library(xp) == "numpy" and plain and source == dtype:  # 16-bit floats
            (working,), widened = r.working, routine
            return lambda x: widened(x.astype(working), axis).astype(dtype)
        return directly(_native)(xp, r)
    in_numpy = library(xp) == "numpy"
    widens = r.op in SUMS and {dtype_kind(one) for one in (source, dtype)} <= {"bool", "int", "uint"}
    if in_numpy and plain and (source == dtype or widens) and _is_narrow(r.shape, axis):
        accumulate = getattr(np, r.op.name).accumulate
        return lambda x: accumulate(x, axis, dtype)
    if source == dtype and plain:
        inclusive_of = routine  # keep the routine in the closure
        return lambda x: inclusive_of(x, axis)
    if library(xp) == "torch" and plain and widens and lacks_arithmetic(xp, (source, dtype)) is None:
        function = getattr(xp, _TORCH[r.op.name])
        return lambda x: function(x, dim=axis, dtype=dtype)
    if in_numpy and (source == dtype or widens):  # both widen integers as they go
        ufunc = getattr(np, r.op.name)
        return (lambda x: _accumulated(ufunc, x, axis, dtype)) if plain else _accumulated_within(ufunc, r)
    return directly(_native)(xp, r)


def never_warns(xp: Namespace, r: Scan) -> bool:
    """Return whether NumPy's routine cannot warn."""
    del xp
    return op_never_warns(r.op, tuple([x.dtype for x in r.arrays]), r.dtypes)


def native_derivative(xp: Namespace, r: Scan, run: Callable[..., Any], method: str) -> Callable[..., Any]:
    """Return the library's routine with a correct derivative: for logaddexp the derivative of the array form."""
    del method
    if r.op is not BUILT_IN["logaddexp"]:
        return run
    differentiable = by_operations(xp, r.arrays, lambda *xs: (run(*xs),), lambda: directly(array)(xp, r))
    return lambda *xs: differentiable(*xs)[0]


def operations(xp: Namespace, r: Scan) -> Callable[..., Any]:
    """Return a function of the arrays in operations of the library: the fastest with the correct derivative."""
    by_library = r.op is not BUILT_IN["logaddexp"] and native_refusal(xp, r) is None
    return prepare_native(xp, r) if by_library else directly(array)(xp, r)


def _accumulated_within(ufunc: np.ufunc, r: Scan) -> Callable[..., Any]:
    """Return a function that scans a NumPy array in the memory of the result, in reverse or after the identity."""
    axis, dtype, begins = r.axis, r.dtypes[0], r.exclusive or r.n > r.shape[r.axis]
    shape = (*r.shape[:axis], r.n, *r.shape[axis + 1 :])
    identity = None if r.identity is None else r.identity[0]
    backward: tuple[Any, ...] = (slice(None),) * axis + (slice(None, None, -1), ...)
    terms, first, rest = along(axis, 0, r.n - 1), along(axis, 0, 1), along(axis, 1, None)

    def run(x: Array) -> Array:
        result = out = np.empty(shape, dtype)
        if r.reverse:
            x, out = x[backward], out[backward]
        if begins:
            out[first] = identity
            x, out = x[terms], out[rest]
        _accumulated(ufunc, x, axis, dtype, out=out)
        return result

    return run


def _native(xp: Namespace, r: Scan) -> Any:
    """Return the scan by the library's own routine."""
    check_axes(xp, r.op, r.operation, r.inputs, axis=r.axis)
    return _result(xp, r, _after(library_inclusive))

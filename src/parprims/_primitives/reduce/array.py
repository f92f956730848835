"""Reductions by array operations: by a tree, on every library, block by block in bounded memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import array_api_compat

from parprims._core.arrays import (
    Array,
    Namespace,
    along,
    as_result,
    cast,
    device,
    dtype_bits,
    is_jax,
    lacks_arithmetic,
    namespace_of,
)
from parprims._core.elements import flattened, is_structured
from parprims._core.jax_arrays import varying_alike
from parprims._core.options import check_entries, is_array
from parprims._core.scalars import as_array, as_number, is_scalar
from parprims._dispatch.dispatch import Checked, Method
from parprims._dispatch.primitive import Arguments
from parprims._libraries.settings import compiling
from parprims._libraries.steps import in_programs, repeated
from parprims._operators.in_place import check_axes, harmless
from parprims._operators.operator import BUILT_IN, Operator, restructured, rounds
from parprims._operators.tracing import Untraceable
from parprims._primitives.reduce.call import (
    OWN_MAPS,
    Reduction,
    Values,
    after_start,
    assembled,
    empty,
    evaluate,
    finish,
    has_sixteen_bits,
    names_of_start,
    result_dtypes,
    result_of_empty,
    working_dtype,
)
from parprims._primitives.reduce.traced import dtype_names, traced

# ---- By a tree --------------------------------------------------------------------------------------------------


def array(xp: Namespace, r: Reduction) -> Any:
    """Return the combinations by a tree."""
    if r.n == 0:
        return result_of_empty(xp, r)
    return finish(xp, r, *by_blocks(xp, r, _by_tree))


def refusal(xp: Namespace, r: Reduction) -> str | None:
    """Return the reason why the library cannot compute with the arrays, or None."""
    if r.fn not in OWN_MAPS:
        return lacks_arithmetic(xp, [x.dtype for x in r.arrays])
    if BUILT_IN.get(r.op.name) is r.op and r.op.name in _ON_UNSIGNED:
        return None
    return lacks_arithmetic(xp, result_dtypes(xp, r, tuple([x.dtype for x in r.arrays])))


_ON_UNSIGNED = ("add", "multiply", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_xor")


def _by_tree(xp: Namespace, r: Reduction) -> Combined:
    values = evaluate(xp, r)
    xs, axis = as_one_axis(xp, values.arrays, r.axes)
    op = harmless(xp, values.op, r.operation, xs, axis=axis if values.differ else None)
    check_axes(xp, values.op, r.operation, xs, axis=axis)
    return dataclasses.replace(values, op=op), tree(xs, op, axis)


def tree(xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the combination of all elements along an axis counted from the front, which keeps length 1.

    Elements are grouped as grouping.py says, unless their order is immaterial. There must be at least one element.
    """
    n = xs[0].shape[axis]
    xp = namespace_of(xs[0])
    in_any_order = op.commutative and not rounds(op, [x.dtype for x in xs])
    paired = _halves if in_any_order else _neighbours
    # A JAX program of the whole tree would grow with n.
    in_a_loop = in_programs(xp) and n > _SHORT and not _is_light(xs, op, axis)
    group = _GROUP if op.commutative else _COLUMNS
    whole = n // group * group
    if whole > 0 and (in_a_loop or (op.commutative and not in_any_order)):
        behind = tree(tuple([x[along(axis, whole, n)] for x in xs]), op, axis) if whole < n else None
        xs = tuple([x[along(axis, 0, whole)] for x in xs])
        if op.commutative:
            apart = op._built_in and len({x.shape for x in xs}) == 1
            for rows in (8, 4, 2):
                xs = op(*_rows(xp, xs, axis, rows, apart=apart))
                xs = tuple([_reshaped(xp, x, axis, (-1,), count=3) for x in xs]) if apart else xs
        for _ in range(_COLUMNS.bit_length() - 1):
            xs = op(*paired(xs, axis))
        if behind is not None:
            xs = tuple([xp.concat(list(pair), axis=axis) for pair in zip(xs, behind, strict=True)])
        n = xs[0].shape[axis]
    if in_a_loop:
        return _in_a_loop(xs, op, axis)
    rest = None
    while n > 1:
        if n % 2:
            last = tuple([x[along(axis, n - 1, n)] for x in xs])
            rest = last if rest is None else op(last, rest)
        xs, n = op(*paired(xs, axis)), n // 2
    return xs if rest is None else op(xs, rest)


_GROUP, _COLUMNS = 256, 32
"""The elements of a group of the tree, and of a row of a group."""

_SHORT = 16
"""The most elements for which JAX's programs hold a whole tree of any operator."""

Pairs = tuple[tuple[Array, ...], tuple[Array, ...]]
"""Earlier and later elements."""


def _neighbours(xs: tuple[Array, ...], axis: int) -> Pairs:
    """Return every second element and its neighbour; the last element is left out if it has none."""
    whole = xs[0].shape[axis] // 2 * 2
    earlier, later = along(axis, 0, whole, 2), along(axis, 1, whole, 2)
    return tuple([x[earlier] for x in xs]), tuple([x[later] for x in xs])


def _halves(xs: tuple[Array, ...], axis: int) -> Pairs:
    """Return the two halves, which are longer runs of memory; the last element of an odd number is left out."""
    half = xs[0].shape[axis] // 2
    earlier, later = along(axis, 0, half), along(axis, half, 2 * half)
    return tuple([x[earlier] for x in xs]), tuple([x[later] for x in xs])


def _rows(xp: Namespace, xs: tuple[Array, ...], axis: int, rows: int, *, apart: bool) -> Pairs:
    """Return every second of the rows of each group, and their neighbours.

    If ``apart``, groups and rows have axes of their own, which saves copies. An operator of the caller's may depend on
    the number of axes.
    """
    split = [_reshaped(xp, x, axis, (-1, rows, _COLUMNS)) for x in xs]
    sides = [[x[along(axis + 1, first, None, 2)] for x in split] for first in range(2)]
    if not apart:
        sides = [[_reshaped(xp, x, axis, (-1,), count=3) for x in side] for side in sides]
    return tuple(sides[0]), tuple(sides[1])


def _reshaped(xp: Namespace, x: Array, axis: int, lengths: tuple[int, ...], count: int = 1) -> Array:
    """Return an array with axes of the given lengths in place of ``count`` axes from ``axis`` on."""
    whole = math.prod(x.shape[axis : axis + count])
    known = math.prod([length for length in lengths if length > 0])
    lengths = tuple([whole // known if length < 0 else length for length in lengths])
    return xp.reshape(x, (*x.shape[:axis], *lengths, *x.shape[axis + count :]))


def of_nodes(xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the combination of nodes of the tree: of neighbours, then of their results."""
    xp = namespace_of(xs[0])
    if in_programs(xp) and xs[0].shape[axis] > 1 and not _is_light(xs, op, axis):
        return _in_a_loop(xs, op, axis)
    neighbours = Operator(op.combine, identity=op.identity, name=op.name, components=op.components)
    return tree(xs, neighbours, axis)


def _in_a_loop(xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the combination of all elements on JAX, by a loop over the levels of the tree.

    A node without a neighbour stays as it is. In its place the first two nodes are combined, and the result is
    discarded: no other values are combined that could make a derivative NaN.
    """
    xp, n = namespace_of(xs[0]), xs[0].shape[axis]
    if n == 1:
        return xs
    half = (n + 1) // 2
    place = 2 * xp.arange(half, device=device(xs[0])) + 1
    first = along(axis, 0, 1)
    xs = tuple([xp.concat([x, x[first]], axis=axis) if n % 2 else x for x in varying_alike(xs)])

    def level(i: Any, xs: tuple[Array, ...]) -> tuple[Array, ...]:
        nodes = (n + (1 << i) - 1) >> i
        # Components may have different numbers of axes behind the axis.
        paired = [xp.reshape(place < nodes, (half, *(1,) * (x.ndim - 1 - axis))) for x in xs]
        earlier, later = _neighbours(xs, axis)
        sides = [[xp.where(has, x, x[first]) for has, x in zip(paired, side, strict=True)] for side in (earlier, later)]
        combined = [xp.where(*three) for three in zip(paired, op(*map(tuple, sides)), earlier, strict=True)]
        return tuple([xp.concat([x, x], axis=axis) for x in combined])

    return tuple([x[first] for x in repeated(xp, (n - 1).bit_length(), level, xs)])


_LIGHT = 2
"""The most equations of an operator on JAX for which a tree of 2^31 elements is a program of at most 40 memory maps."""


def _is_light(xs: tuple[Array, ...], op: Operator, axis: int) -> bool:
    """Return whether JAX compiles a whole tree, which is as small as a program of lanes, and faster."""
    import jax

    states = tuple([jax.ShapeDtypeStruct((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x.dtype) for x in xs])
    equations = jax.make_jaxpr(op)(states, states).jaxpr.eqns
    programs = [value for equation in equations for value in equation.params.values() if hasattr(value, "jaxpr")]
    return len(xs) == 1 and len(equations) <= _LIGHT and not programs


def as_one_axis(xp: Namespace, xs: tuple[Array, ...], axes: tuple[int, ...]) -> tuple[tuple[Array, ...], int]:
    """Return the arrays with the axes merged in row-major order, and the position of the merged axis.

    Adjacent axes merge in place; others are moved to the end first.
    """
    shape = xs[0].shape
    if not axes:
        return tuple([xp.expand_dims(x, axis=0) for x in xs]), 0
    first, last = axes[0], axes[-1]
    if last - first + 1 != len(axes):
        kept = tuple([axis for axis in range(len(shape)) if axis not in axes])
        xs = tuple([xp.permute_dims(x, kept + axes) for x in xs])
        shape, first, last = xs[0].shape, len(kept), len(shape) - 1
    if first != last:
        merged = (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
        xs = tuple([xp.reshape(x, merged) for x in xs])
    return xs, first


# ---- After an initial element that is an array ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Started(Checked):
    """A reduction with arrays in its initial element. Its arrays are those of the reduction, then the initial element.

    A prepared call of it takes the initial element of each later call. ``whole`` is the reduction.
    """

    whole: Reduction

    def for_method(self, method: str) -> Any:
        return dataclasses.replace(super().for_method(method), whole=self.whole.for_method(method))

    @property
    def lasts(self) -> bool:
        return self.whole.lasts

    def empty(self, xp: Namespace) -> Any:
        return empty(xp, self.whole)

    def trial(self, xp: Namespace) -> str | None:
        return self.whole.trial(xp)

    def described(self) -> Any:
        key = dataclasses.replace(self.whole, initial=None).described()
        return None if key is None else ("started", key)


def started(xp: Namespace, r: Reduction, asked: Arguments) -> Reduction | Started:
    """Return a reduction with an array in its initial element as a call that later calls can find.

    That is left out for 16-bit floats, whose results are rounded once, and on JAX for numbers beside arrays where the
    dtypes of a map's values are not known.
    """
    given = asked["initial"]
    entries = given if isinstance(given, tuple) else (given,)
    key = asked.key_of(*r.arrays, *entries)
    converts = is_jax(xp) and any(map(_is_number, entries))  # a program takes numbers as arrays of the right dtypes
    sixteen = has_sixteen_bits((*r.arrays, *filter(is_array, entries)))
    if key is None or r.n == 0 or sixteen or (converts and r.fn is not None):
        return r
    if not converts:
        return Started(arrays=(*r.arrays, *entries), key=key, whole=r)
    count, on = len(r.arrays), device(r.arrays[0])
    dtypes = result_dtypes(xp, r, tuple([x.dtype for x in r.arrays]))

    def complete(*arrays: Any) -> tuple[Array, ...]:
        pairs = zip(arrays[count:], dtypes, strict=True)
        starts = [as_array("initial", x, xp, to, device=on, shape=()) if _is_number(x) else x for x, to in pairs]
        return *arrays[:count], *starts

    return Started(arrays=complete(*r.arrays, *entries), key=key, complete=complete, whole=r)


def _is_number(value: Any) -> bool:
    """Return whether an entry of an initial element is a number, as an array of NumPy without axes is too."""
    return is_scalar(as_number(value))


def without_start(call: Reduction | Started) -> Reduction:
    """Return the reduction of a call."""
    return call.whole if isinstance(call, Started) else call


def with_array_starts(method: Method) -> Method:
    """Return a method of reductions that also takes `Started` calls."""

    def of_whole(ask: Callable[..., Any]) -> Callable[..., Any]:
        return lambda xp, call: ask(xp, without_start(call))

    def prepare(xp: Namespace, call: Reduction | Started) -> Callable[..., Any]:
        if not isinstance(call, Started):
            return method.prepare(xp, call)
        count, reduced = len(call.whole.arrays), dataclasses.replace(call.whole, initial=None, begun=False)
        run, bare = method.prepare(xp, reduced), reduced.on(*(None,) * count)
        return lambda *arrays: _begun_by(xp, bare, run(*arrays[:count]), arrays[count:])

    return dataclasses.replace(
        method,
        prepare=prepare,
        refusal=method.refusal and of_whole(method.refusal),
        slower=method.slower and of_whole(method.slower),
        eager=method.eager and of_whole(method.eager),
        quiet=method.quiet if isinstance(method.quiet, bool) else of_whole(method.quiet),
    )


def _begun_by(xp: Namespace, bare: Reduction, result: Any, starts: tuple[Array, ...]) -> Any:
    """Return the result of a reduction, combined with the initial element."""
    totals, structure = flattened(result)
    structure = structure if is_structured(result) else None
    op = restructured(bare.op, structure)
    dtypes = [total.dtype for total in totals]
    working = [working_dtype(op)(xp, dtype) for dtype in dtypes]
    names = names_of_start(op, len(totals))
    check_entries("initial", starts, len(totals))
    elements = [
        as_array(name, start, xp, total.dtype, device=device(total), shape=tuple(total.shape))
        for name, start, total in zip(names, starts, totals, strict=True)
    ]
    sides = [tuple([cast(xp, x, to) for x, to in zip(side, working, strict=True)]) for side in (elements, totals)]
    combined = zip(after_start(xp, bare, op, start=sides[0], totals=sides[1]), dtypes, strict=True)
    built_in = BUILT_IN.get(op.name) is op
    return assembled(
        tuple([as_result(cast(xp, x, to) if built_in else xp.astype(x, to, copy=True)) for x, to in combined]),
        not isinstance(result, tuple),
        structure,
    )


# ---- Block by block, in bounded memory --------------------------------------------------------------------------

SMALLEST_BLOCK, LARGEST_BLOCK, BLOCKS = 2**22, 2**28, 2**7
"""The least and the most bytes of a block, and the number of blocks between them."""

Combined = tuple[Values, tuple[Array, ...]]
"""The elements, and their combinations in the working dtypes."""


def by_blocks(xp: Namespace, r: Reduction, combine: Callable[[Namespace, Reduction], Combined]) -> Combined:
    """Return the result of ``combine`` in the memory of one block of elements and of the results.

    Blocks are nodes of the tree of grouping.py, which combines their totals.
    """
    lengths = block_lengths(xp, r)
    if lengths is None:
        return combine(xp, r)
    kept = tuple([axis for axis in range(len(r.shape)) if axis not in r.axes])
    cuts = [
        (axis, [slice(start, min(start + length, r.shape[axis])) for start in range(0, r.shape[axis], length)])
        for axis, length in zip(kept, lengths, strict=False)
    ]

    def total(where: tuple[slice, ...]) -> Combined:
        """Return the combinations for some of the kept positions, with the combined axes of length 1."""
        nonlocal r
        waiting: list[tuple[int, tuple[Array, ...]]] = []  # (level, totals of 2^level blocks), in order
        place = dict(zip(kept, where, strict=True))
        lines = [x[tuple([place.get(axis, slice(None)) for axis in range(x.ndim)])] for x in r.arrays]
        shape = tuple([1 if axis in r.axes else length for axis, length in enumerate(lines[0].shape)])
        for start in range(0, r.n, lengths[-1]):
            pieces = [stretch(xp, x, r.axes, range(start, min(start + lengths[-1], r.n))) for x in lines]
            values, totals = combine(xp, r.of(*[x for x, _ in pieces], axes=pieces[0][1], keepdims=True, initial=None))
            r = dataclasses.replace(r, op=restructured(r.op, values.structure))
            totals = tuple([xp.reshape(total, shape) for total in totals])
            level = 0
            while waiting and waiting[-1][0] == level:
                totals, level = values.op(waiting.pop()[1], totals), level + 1
            waiting.append((level, totals))
        totals = waiting.pop()[1]
        while waiting:
            totals = values.op(waiting.pop()[1], totals)
        return values, totals

    return _joined(xp, cuts, total, ())


def stretch(xp: Namespace, x: Array, axes: tuple[int, ...], places: range) -> tuple[Array, tuple[int, ...]]:
    """Return the elements at ``places`` of the axes in row-major order, and the axes that hold them."""
    first, last = axes[0], axes[-1]
    if len(axes) > 1 and len(places) == math.prod([x.shape[axis] for axis in axes]):
        return x, axes
    if last - first + 1 != len(axes):
        kept = tuple([axis for axis in range(x.ndim) if axis not in axes])
        x, first = xp.permute_dims(x, kept + axes), len(kept)
    return _stretch(xp, x, range(first, first + len(axes)), places), (first,)


def _stretch(xp: Namespace, x: Array, axes: range, places: range) -> Array:
    """Return the elements at ``places`` of adjacent axes, as one axis."""
    first, start, stop = axes[0], places.start, places.stop
    if len(axes) == 1:
        return x[along(first, start, stop)]
    row = math.prod([x.shape[axis] for axis in axes[1:]])
    whole, at = (-(-start // row), stop // row), start // row
    if stop <= (at + 1) * row and whole != (at, at + 1):  # a part of one row
        x = x[(slice(None),) * first + (at, ...)]
        return _stretch(xp, x, axes[:-1], range(start - at * row, stop - at * row))
    parts = [_reshaped(xp, x[along(first, *whole)], first, (-1,), count=len(axes))] if whole[0] < whole[1] else []
    if start < whole[0] * row:
        parts.insert(0, _stretch(xp, x, axes, range(start, whole[0] * row)))
    if stop > whole[1] * row:
        parts.append(_stretch(xp, x, axes, range(whole[1] * row, stop)))
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=first)


def _joined(
    xp: Namespace,
    cuts: list[tuple[int, list[slice]]],
    total: Callable[[tuple[slice, ...]], Combined],
    where: tuple[slice, ...],
) -> Combined:
    """Return the combinations for all kept positions with the given beginning.

    This is no nested function: a nested recursive function would hold the arrays until garbage collection.
    """
    if len(where) == len(cuts):
        return total(where)
    axis, parts = cuts[len(where)]
    result = [_joined(xp, cuts, total, (*where, part)) for part in parts]
    if len(result) == 1:
        return result[0]
    columns = zip(*(totals for _, totals in result), strict=True)
    return result[0][0], tuple([xp.concat(list(column), axis=axis) for column in columns])


def block_lengths(xp: Namespace, r: Reduction) -> tuple[int, ...] | None:
    """Return the lengths of a block along the kept axes and along the combined elements, or None for one block.

    The longest is halved until a block is small enough. Of combined elements, a block has a power of two, at least 256.
    Compiled programs, and functions that may not be elementwise, get one block.
    """
    if is_jax(xp) or compiling(r.arrays) or r.shapes is not None:
        return None
    itemsize = sum(max(8, dtype_bits(x.dtype) // 8) for x in r.arrays)
    elements = math.prod(r.shape)
    least = LARGEST_BLOCK if _on_gpu(xp, r.arrays[0]) else SMALLEST_BLOCK
    size = max(least, min(elements * itemsize // BLOCKS, LARGEST_BLOCK))
    block = max(1, size // itemsize)
    if elements <= block or not _is_elementwise(xp, r):
        return None
    lengths = [length for axis, length in enumerate(r.shape) if axis not in r.axes] + [r.n]
    least_lengths = [*(1,) * (len(lengths) - 1), _GROUP]
    while math.prod(lengths) > block:
        free = [at for at, least in enumerate(least_lengths) if lengths[at] > least]
        if not free:
            break
        longest = max(free, key=lambda at: lengths[at])
        half = -(-lengths[longest] // 2)
        lengths[longest] = half if longest < len(lengths) - 1 else 1 << (half - 1).bit_length()
    return tuple(lengths)


def _on_gpu(xp: Namespace, x: Array) -> bool:
    return array_api_compat.is_cupy_namespace(xp) or bool(getattr(x, "is_cuda", False))


def _is_elementwise(xp: Namespace, r: Reduction) -> bool:
    """Return whether map and operator are elementwise, which a trace shows."""
    if r.fn in OWN_MAPS and BUILT_IN.get(r.op.name) is r.op:
        return True
    try:
        traced(xp, r, dtype_names(r))
    except Untraceable:
        return False
    return True

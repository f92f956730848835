"""Reductions by array operations: by a tree, on every library, block by block in bounded memory."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import array_api_compat

from parprims._core.arrays import (
    Array,
    Namespace,
    along,
    dtype_bits,
    is_jax,
    lacks_arithmetic,
    namespace_of,
)
from parprims._libraries.settings import compiling
from parprims._libraries.steps import doubled
from parprims._operators.in_place import harmless
from parprims._operators.operator import BUILT_IN, Operator, restructured
from parprims._operators.tracing import Untraceable
from parprims._primitives.reduce.call import (
    OWN_MAPS,
    Reduction,
    Values,
    evaluate,
    finish,
    result_dtypes,
    result_of_empty,
)
from parprims._primitives.reduce.traced import dtype_names, traced
from parprims._primitives.scan.array import LANE, lanes

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
    return dataclasses.replace(values, op=op), tree(xs, op, axis)


def tree(xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the combination of all elements along an axis counted from the front, which keeps length 1.

    Neighbours are combined, then neighbours of those, ceil(log2 n) times. There must be at least one element.
    """
    n = xs[0].shape[axis]
    xp = namespace_of(xs[0])
    if n > LANE and is_jax(xp) and not _is_light(xs, op, axis):  # a JAX program of the whole tree would grow with n
        totals, _, _ = lanes(xp, xs, op, axis, prefixes=False, contiguous=not op.commutative)
        return tuple([x[along(axis, x.shape[axis] - 1, None)] for x in doubled(xp, totals, op, axis)])
    rest = None
    while n > 1:
        half = n // 2
        if n % 2:
            last = tuple([x[along(axis, n - 1, n)] for x in xs])
            rest = last if rest is None else op(last, rest)
        # Adjacent pairs keep the order. Commutative operators combine the two halves, in longer runs of memory.
        if op.commutative:
            earlier, later = along(axis, 0, half), along(axis, half, 2 * half)
        else:
            earlier, later = along(axis, 0, 2 * half, 2), along(axis, 1, 2 * half, 2)
        xs = op(tuple([x[earlier] for x in xs]), tuple([x[later] for x in xs]))
        n = half
    return xs if rest is None else op(xs, rest)


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


# ---- Block by block, in bounded memory --------------------------------------------------------------------------

SMALLEST_BLOCK, LARGEST_BLOCK, BLOCKS = 2**22, 2**28, 2**7
"""The least and the most bytes of a block, and the number of blocks between them. Bits of results depend on these."""

Combined = tuple[Values, tuple[Array, ...]]
"""The elements, and their combinations in the working dtypes."""


def by_blocks(xp: Namespace, r: Reduction, combine: Callable[[Namespace, Reduction], Combined]) -> Combined:
    """Return the result of ``combine`` in the memory of one block of elements and of the results.

    The totals of blocks are combined by a tree, so the order of combinations depends on the shape and dtypes alone.
    """
    lengths = block_lengths(xp, r)
    if lengths is None:
        return combine(xp, r)
    slices = [
        [slice(start, min(start + length, n)) for start in range(0, n, length)]
        for n, length in zip(r.shape, lengths, strict=True)
    ]
    kept = tuple([axis for axis in range(len(r.shape)) if axis not in r.axes])

    def total(where: tuple[slice, ...]) -> Combined:
        """Return the combinations for some of the kept positions, with the combined axes of length 1."""
        nonlocal r
        waiting: list[tuple[int, tuple[Array, ...]]] = []  # (level, totals of 2^level blocks), in order
        for cut in itertools.product(*(slices[axis] for axis in r.axes)):
            place = {**dict(zip(kept, where, strict=True)), **dict(zip(r.axes, cut, strict=True))}
            slices_of_block = tuple([place[axis] for axis in range(len(r.shape))])
            part = r.of(*(x[slices_of_block] for x in r.arrays), keepdims=True, initial=None)
            values, totals = combine(xp, part)
            r = dataclasses.replace(r, op=restructured(r.op, values.structure))
            totals = tuple([xp.reshape(total, part.result_shape) for total in totals])
            level = 0
            while waiting and waiting[-1][0] == level:
                totals, level = values.op(waiting.pop()[1], totals), level + 1
            waiting.append((level, totals))
        totals = waiting.pop()[1]
        while waiting:
            totals = values.op(waiting.pop()[1], totals)
        return values, totals

    return _joined(xp, [(axis, slices[axis]) for axis in kept], total, ())


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
    """Return the lengths of a block along the axes, or None for one block.

    The longest axis is halved until a block is small enough. For an operator that does not commute, the first combined
    axis longer than 1 is halved. Compiled programs, and functions that may not be elementwise, get one block.
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
    lengths = list(r.shape)
    while math.prod(lengths) > block:
        free = list(range(len(lengths)))
        if not r.op.commutative:
            longer = [axis for axis in r.axes if lengths[axis] > 1]
            free = [axis for axis in free if axis not in r.axes or axis in longer[:1]]
        longest = max(free, key=lambda axis: lengths[axis])
        lengths[longest] = -(-lengths[longest] // 2)
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

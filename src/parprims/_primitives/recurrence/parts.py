"""Linear recurrences by array operations, in parts of parts. The grouping depends on the place in a line alone.

From its first element on, a line is cut into groups of 8192 elements, a group into 16 parts, each of these into 8, and
each of these into 8 again, which have 8 elements. Every part maps the state before it to the state behind it:
x -> a x + b. These maps are a recurrence with 8 or 16 times fewer elements, which is solved in the same way; that of
groups is solved in order. Its results are the last results of the parts. With them, the other results of all parts are
computed side by side, in order. So there are about n / 8192 + 70 steps, and a line may be continued at every multiple
of 8192 elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from parprims._core.arrays import Array, Namespace, along, dtype_kind
from parprims._core.jax_arrays import varying_alike
from parprims._libraries.settings import compiling
from parprims._libraries.steps import in_programs
from parprims._operators.operator import BUILT_IN
from parprims._primitives.scan.grouping import LARGEST_BLOCK, Arrays, Scans, on_gpu, parts_of

_PARTS = (8, 8, 8, 16)
"""The elements of a part, the parts of the next larger part, and so on up to a group."""
_SHORTEST, _LONGEST = 1 << 15, 1 << 18
"""The elements, of all lines, that are solved at once: a quarter of all within these bounds.

So intermediate results stay in the cache of a CPU, and take less memory than the coefficients.
"""


def by_parts(xp: Namespace, a: Array, b: Array, axis: int, start: Array | None) -> Array:
    """Return the solution along an axis, after the state ``start`` of length 1 along it; a and b are not empty."""
    n, count = b.shape[axis], math.prod(b.shape)
    elements = min(max(count // 4, _SHORTEST), _LONGEST)
    stretch = max(elements * n // count // LARGEST_BLOCK, 1) * LARGEST_BLOCK
    if in_programs(xp) or compiling((a, b)) or on_gpu(b):
        stretch = n
    done: list[Array] = []
    for at in range(0, n, stretch):
        part = along(axis, at, min(at + stretch, n))
        pair = a[part], b[part]
        if start is None:  # a[0] is not read: 0 times -0.0 is -0.0, and changes no bit of b[0]
            first = along(axis, 0, 1)
            start = -xp.zeros_like(b[first])
            pair = xp.concat([xp.zeros_like(a[first]), pair[0][along(axis, 1, None)]], axis=axis), pair[1]
        done.append(_solved(xp, pair, axis, start, level=0))
        start = done[-1][along(axis, done[-1].shape[axis] - 1, None)]
    return done[0] if len(done) == 1 else xp.concat(done, axis=axis)


def _solved(xp: Namespace, pair: Arrays, axis: int, start: Array, *, level: int) -> Array:
    """Return the solution of the recurrence of elements, at level 0, or of the maps of parts, after a state."""
    n = pair[0].shape[axis]
    size = _PARTS[level] if level < len(_PARTS) else n + 1
    whole, parts = n // size, -(-n // size)
    if whole == 0:
        size = n
    elif whole < parts:
        behind = along(axis, 0, parts * size - n)
        pair = tuple([xp.concat([x, xp.zeros_like(x[behind])], axis=axis) for x in pair])
    rows = tuple([parts_of(xp, x, axis, size) for x in pair])
    states = start
    if whole > 0:
        ends = _solved(xp, _maps(xp, rows, axis, whole, level=level), axis, start, level=level + 1)
        states = xp.concat([start, ends[along(axis, 0, parts - 1)]], axis=axis)
        rows = tuple([x[: size - 1, ...] for x in rows])
    results = _walked(xp, rows, states, level=level)
    if whole > 0:
        if whole < parts:
            ends = xp.concat([ends, start], axis=axis)  # for elements that do not exist
        results = xp.concat([results, xp.expand_dims(ends, axis=0)], axis=0)
    (found,) = Scans(xp, BUILT_IN["affine"], axis).flat((results,), n)
    return found


def _maps(xp: Namespace, rows: Arrays, axis: int, whole: int, *, level: int) -> Arrays:
    """Return the coefficients and right-hand sides of the maps of the first ``whole`` parts.

    A product of coefficients may have overflowed. It is harmless if the next coefficient, or the number that it
    multiplies, is zero. A coefficient of the call that is infinite or NaN is not: the right-hand side becomes NaN.
    """
    a, b = rows = tuple([x[along(axis + 1, 0, whole)] for x in rows])
    is_float = dtype_kind(b.dtype) in ("float", "complex")
    first = a[0, ...], (b[0, ...] + (a[0, ...] - a[0, ...]) if is_float and level == 0 else b[0, ...])

    def composed(earlier: Arrays, later: Arrays) -> Arrays:
        (factor, term), (a, b) = earlier, later
        moved = _product(xp, a, term, term == 0) if is_float and level > 0 else a * term
        return a * factor, moved + b

    (factor, term), _ = _followed(xp, composed, first, tuple([x[1:, ...] for x in rows]))
    return _or_zero(xp, factor, xp.any(a == 0, axis=0)) if is_float else factor, term


def _product(xp: Namespace, a: Array, x: Array, zero: Array) -> Array:
    """Return a x, where an overflowed a times a zero is zero."""
    return _or_zero(xp, a * x, zero)


def _or_zero(xp: Namespace, product: Array, zero: Array) -> Array:
    """Return products with 0 for NaN where a factor is zero. All others stay, and have their derivatives."""
    return xp.where((product != product) & zero, xp.zeros_like(product), product)


def _walked(xp: Namespace, rows: Arrays, states: Array, *, level: int) -> Array:
    """Return the results of rows of parts, given the state before each part."""
    overflows = level > 0 and dtype_kind(states.dtype) in ("float", "complex")

    def step(earlier: Arrays, later: Arrays) -> Arrays:
        (x,), (a, b) = earlier, later
        return ((_product(xp, a, x, x == 0) if overflows else a * x) + b,)

    _, results = _followed(xp, step, (states,), rows)
    return results[0]


def _followed(
    xp: Namespace, step: Callable[[Arrays, Arrays], Arrays], state: Arrays, rows: Arrays
) -> tuple[Arrays, Arrays]:
    """Return the last state and all states after ``step(state, row)`` over rows, in order."""
    if in_programs(xp):
        import jax

        count = len(state)
        varying = varying_alike((*state, *rows))

        def both(state: Arrays, row: Arrays) -> tuple[Arrays, Arrays]:
            state = step(state, row)
            return state, state

        last, states = jax.lax.scan(both, varying[:count], varying[count:])
        return last, states
    found = []
    for i in range(rows[0].shape[0]):
        state = step(state, tuple([x[i, ...] for x in rows]))
        found.append(state)
    if not found:
        return state, tuple([x[None, ...][:0, ...] for x in state])
    return state, tuple([xp.stack(list(column)) for column in zip(*found, strict=True)])

"""The canonical grouping of a scan, on which the bits of a floating-point result depend.

A line is cut into blocks from its first element on. A block has 8192 elements, or fewer if states are wide. With z for
the result of an element within its block, its result is

    y = state before the block op z

and the state before the next block is that of the last element. So a line may be continued at a multiple of a block.

In a block, eight parts of 32 elements are a part of 256, and eight of these a part of 2048. The parts that come before
an element in the next larger part, or in the block, are combined from left to right; where there are none, they are
left out.

- Sums of real floats: 32 elements are eight leaves of four.

      z = 2048s before + (256s before + (32s before + (leaves before + elements of the leaf)))

  The last result of each part is the one that the results behind it begin with, so sums of terms >= 0 never descend.
- Other operators, which may take long, in two combinations for each element:

      z = (2048s before op (256s before op 32s before)) op elements of the 32
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import array_api_compat

from parprims._core.arrays import Array, Namespace, along, device, dtype_bits, dtype_kind, move_axis
from parprims._core.jax_arrays import varying_alike
from parprims._libraries.settings import compiling
from parprims._libraries.steps import in_programs
from parprims._operators.operator import BUILT_IN, Operator

LARGEST_BLOCK = 8192
"""A multiple of every block."""


def block_elements(state_bytes: int) -> int:
    """Return the elements of a block, given the bytes of a state: 32 KiB of states, and 256 to 8192 elements."""
    elements = LARGEST_BLOCK
    while elements > 256 and elements * state_bytes > 4 * LARGEST_BLOCK:
        elements //= 2
    return elements


# ---- By array operations ---------------------------------------------------------------------------------------------
#
# Rows of an axis are its parts of a few elements side by side: element i of all parts along a new first axis, and the
# parts along the axis. So a step from element to element is an operation on long arrays.

Arrays = tuple[Array, ...]


class Scans(NamedTuple):
    """The scans along one axis. torch.compile traces this type.

    Parameters
    ----------
    xp : namespace
        The library.
    op : Operator
        The operator.
    axis : int
        The axis, counted from the front.
    """

    xp: Namespace
    op: Operator
    axis: int

    def nested(self, xs: Arrays, radices: list[int]) -> Arrays:
        """Return the rows of the scan within blocks: parts before (... (smallest parts before op elements))."""
        rows = self.steps(xs, radices[0])
        parts, size = rows[0].shape[self.axis + 1], 1
        for radix in radices[1:]:
            if parts <= size:
                break
            count = -(-parts // size) - 1
            before = self.flat(self.steps(self.ends(rows, size, count), radix), count)
            rows = self.behind(before, rows, size=size, every=radix)
            size *= radix
        return rows

    def steps(self, xs: Arrays, radix: int) -> Arrays:
        """Return the rows of the scan of each part of ``radix`` elements, from left to right.

        The last part may have fewer elements. The results behind them are those of the first part, so that no values
        are combined that the result does not need.
        """
        xp, op, axis = self
        n = xs[0].shape[axis]
        radix = min(radix, n)
        parts = -(-n // radix)
        end = n - (parts - 1) * radix
        if end < radix:
            xs = tuple([xp.concat([x, x[along(axis, end, radix)]], axis=axis) for x in xs])
        rows = tuple([parts_of(xp, x, axis, radix) for x in xs])
        if in_programs(xp) and radix > (4 if adds(op, xs) else 2):
            return self._steps_in_a_loop(rows, end)
        total = tuple([x[0, ...] for x in rows])
        totals, combine = [total], _combine(op, xs)
        for i in range(1, radix):
            if i == end:
                whole, first = along(axis, 0, parts - 1), along(axis, 0, 1)
                total = tuple([xp.concat([x[whole], x[first]], axis=axis) for x in total])
            total = combine(total, tuple([x[i, ...] for x in rows]))
            totals.append(total)
        return tuple([xp.stack(list(column)) for column in zip(*totals, strict=True)])

    def _steps_in_a_loop(self, rows: Arrays, end: int) -> Arrays:
        """Return the rows of a scan on JAX by a loop, so that the program holds the operator once."""
        import jax

        xp, op, axis = self
        rows = varying_alike(rows)
        radix, parts = rows[0].shape[0], rows[0].shape[axis + 1]
        is_last = xp.arange(parts, device=device(rows[0])) == parts - 1

        def step(total: Arrays, later: tuple[Arrays, Any]) -> tuple[Arrays, Arrays]:
            row, ends = later
            if end < radix:  # a part that has ended goes on as the first part
                first = along(axis, 0, 1)
                ended = [xp.reshape(is_last & ends, (parts, *(1,) * (x.ndim - 1 - axis))) for x in total]
                total = tuple([xp.where(here, x[first], x) for here, x in zip(ended, total, strict=True)])
            total = op(total, row)
            return total, total

        begin = tuple([x[0, ...] for x in rows])
        ends = xp.arange(1, radix, device=device(rows[0])) == end
        _, ys = jax.lax.scan(step, begin, (tuple([x[1:, ...] for x in rows]), ends))
        return tuple([xp.concat([x[:1, ...], y]) for x, y in zip(rows, ys, strict=True)])

    def behind(self, before: Arrays, rows: Arrays, *, size: int, every: int = 0, first: bool = True) -> Arrays:
        """Return rows with the state ``before`` each group of ``size`` parts combined with them.

        There is no state before the first group, if ``first``, and before each group whose number is a multiple of
        ``every``, if that is given.
        """
        xp, op, axis = self
        parts = rows[0].shape[axis + 1]
        begin = size if first else 0
        rest = tuple([x[along(axis + 1, begin, None)] for x in rows])
        if size > 1:
            before = tuple([xp.repeat(x, size, axis=axis) for x in before])
        before = tuple([x[along(axis, 0, parts - begin)] for x in before])
        absent: list[Array] = []
        if every and parts > size * every:
            missing = xp.arange(begin, parts, device=device(rows[0])) // size % every == 0
            absent = [xp.reshape(missing, (parts - begin, *(1,) * (x.ndim - 1 - axis))) for x in before]
        if absent and adds(op, rows):
            before = (xp.where(absent[0], -xp.zeros_like(before[0]), before[0]),)
            absent = []
        later = rest
        if absent:  # the first state is combined with its part again, and the result is discarded
            one = along(axis, 0, 1)
            before = tuple([xp.where(none, x[one], x) for none, x in zip(absent, before, strict=True)])
            one = along(axis + 1, 0, 1)
            later = tuple([xp.where(none, x[one], x) for none, x in zip(absent, rest, strict=True)])
        combined = self._on_rows(before, later)
        if absent:
            combined = tuple([xp.where(*three) for three in zip(absent, rest, combined, strict=True)])
        if not begin:
            return combined
        head = along(axis + 1, 0, begin)
        return tuple([xp.concat([x[head], y], axis=axis + 1) for x, y in zip(rows, combined, strict=True)])

    def _on_rows(self, before: Arrays, rows: Arrays) -> Arrays:
        """Return the combination of a state of each part with its elements, which are rows."""
        xp, op, axis = self
        if op._built_in and len({x.shape for x in rows}) == 1:
            return op(tuple([xp.expand_dims(x, axis=0) for x in before]), rows)
        # An operator of the caller's may depend on the number of axes: rows become one axis.
        shapes = [(*x.shape[1 : axis + 1], *x.shape[:1], *x.shape[axis + 1 :]) for x in rows]
        merged = [(*x[:axis], x[axis] * x[axis + 1], *x[axis + 2 :]) for x in shapes]
        states = [xp.broadcast_to(xp.expand_dims(x, axis=axis), shape) for x, shape in zip(before, shapes, strict=True)]
        earlier = tuple([xp.reshape(x, to) for x, to in zip(states, merged, strict=True)])
        later = tuple([xp.reshape(move_axis(xp, x, 0, axis), to) for x, to in zip(rows, merged, strict=True)])
        combined = op(earlier, later)
        return tuple([move_axis(xp, xp.reshape(x, shape), axis, 0) for x, shape in zip(combined, shapes, strict=True)])

    def ends(self, rows: Arrays, size: int, count: int) -> Arrays:
        """Return the last result of each of the first ``count`` groups of ``size`` parts."""
        ends = along(self.axis, min(size - 1, count * size), count * size, size)
        return tuple([x[-1, ...][ends] for x in rows])

    def flat(self, rows: Arrays, n: int) -> Arrays:
        """Return arrays with the elements of rows along the axis again, the first n."""
        xp, axis = self.xp, self.axis
        found = []
        for x in rows:
            moved = move_axis(xp, x, 0, axis + 1)
            length = moved.shape[axis] * moved.shape[axis + 1]  # not -1: another axis may have no elements
            flat = xp.reshape(moved, (*moved.shape[:axis], length, *moved.shape[axis + 2 :]))
            found.append(flat[along(axis, 0, n)])
        return tuple(found)


def in_blocks(scans: Scans, xs: Arrays, starts: Arrays) -> Arrays:
    """Return the inclusive scan, after an initial element if there is one.

    A long axis is scanned stretch by stretch, so that intermediate results stay in the cache of a CPU.
    """
    xp, op, axis = scans
    n, block = xs[0].shape[axis], block_of(xs, axis)
    stretch = max(_STRETCH * n // max([math.prod(x.shape) for x in xs]) // block, 1) * block
    if in_programs(xp) or compiling(xs) or n <= stretch or on_gpu(xs[0]):
        if not op._built_in and 2 < n == math.prod(xs[0].shape) <= 32:
            # Each step takes one element. An operator that branches on a value raises an error on several alone.
            op(*[tuple([x[along(axis, at, at + 2)] for x in xs]) for at in range(2)])
        return _scanned(scans, xs, starts, block)
    done = []
    for at in range(0, n, stretch):
        part = tuple([x[along(axis, at, min(at + stretch, n))] for x in xs])
        done.append(_scanned(scans, part, starts, block))
        starts = tuple([y[along(axis, y.shape[axis] - 1, None)] for y in done[-1]])
    return tuple([xp.concat(list(ys), axis=axis) for ys in zip(*done, strict=True)])


_STRETCH = 1 << 18
"""Elements of a stretch."""


def _scanned(scans: Scans, xs: Arrays, starts: Arrays, block: int) -> Arrays:
    """Return the inclusive scan of all elements at once."""
    xp, op, axis = scans
    n = xs[0].shape[axis]
    of_sums = adds(op, xs)
    part = 4 if of_sums else 32
    radices = radices_of(block // 32)
    if of_sums:
        rows = scans.nested(xs, [4, 8, *radices])
    else:
        rows = scans.steps(xs, 32)
        parts = rows[0].shape[axis + 1]
        if parts > 1:
            totals = scans.ends(rows, 1, parts - 1)
            before = scans.flat(scans.nested(totals, radices), parts - 1)
            rows = scans.behind(before, rows, size=1, every=block // 32)
    if n > block or starts:
        size = block // part
        totals = scans.ends(rows, size, (n - 1) // block)
        if starts:
            totals = tuple([xp.concat(list(pair), axis=axis) for pair in zip(starts, totals, strict=True)])
        count = totals[0].shape[axis]
        before = scans.flat(scans.steps(totals, count), count)
        rows = scans.behind(before, rows, size=size, first=len(starts) == 0)
    return scans.flat(rows, n)


def on_gpu(x: Array) -> bool:
    """Return whether an array is of CuPy, or of PyTorch on a GPU."""
    return array_api_compat.is_cupy_array(x) or bool(getattr(x, "is_cuda", False))


def adds(op: Operator, xs: Arrays) -> bool:
    """Return whether results are sums of real floats."""
    return op is BUILT_IN["add"] and dtype_kind(xs[0].dtype) == "float"


def block_of(xs: Arrays, axis: int) -> int:
    """Return the elements of a block. If arrays have several shapes, a state has all numbers behind the axis."""
    differ = len({x.ndim for x in xs}) > 1
    bits = [dtype_bits(x.dtype) * (math.prod(x.shape[axis + 1 :]) if differ else 1) for x in xs]
    return block_elements(sum(bits) // 8)


def radices_of(parts: int) -> list[int]:
    """Return the numbers of parts of 32, of 256, and of 2048 elements that make the next larger part."""
    found = []
    while parts > 1:
        found.append(min(parts, 8))
        parts //= found[-1]
    return found


def _combine(op: Operator, xs: Arrays) -> Callable[[Arrays, Arrays], Arrays]:
    """Return the operator, without checks if it is a built-in one on an array."""
    if not op._built_in or len(xs) > 1:
        return op
    return lambda earlier, later: (op.combine(earlier[0], later[0]),)


def parts_of(xp: Namespace, x: Array, axis: int, radix: int) -> Array:
    """Return an array with ``radix`` elements of each part of an axis along a new first axis, in adjacent memory."""
    split = xp.reshape(x, (*x.shape[:axis], x.shape[axis] // radix, radix, *x.shape[axis + 1 :]))
    moved = xp.permute_dims(split, (axis + 1, *range(axis + 1), *range(axis + 2, split.ndim)))
    return xp.reshape(xp.reshape(moved, (-1,)), moved.shape)

"""The memory of strided arrays as kernels see it: axes merged into few, and elements that can be read as vectors.

The layout of an array has its strides in elements, one for each axis, and its address modulo 16; `_cuda.layout` returns
it. The functions here take several arrays of one (broadcast) shape, because a kernel has one index for all of them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

Layout = tuple[tuple[int, ...], int]
"""The strides of an array in elements, and its address modulo 16."""

Axis = tuple[int, tuple[int, ...]]
"""An axis of several arrays: its length, and its stride in each array."""


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array of this shape whose elements are adjacent, the last axis fastest."""
    return tuple([math.prod(shape[at + 1 :]) for at in range(len(shape))])


def broadcast_strides(strides: Sequence[int], shape: Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return the strides of an array of this shape that is broadcast to ``ndim`` axes: 0 along axes of length 1."""
    own = [0 if length == 1 else stride for length, stride in zip(shape, strides, strict=True)]
    return (*(0,) * (ndim - len(own)), *own)


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """Return the axes, ordered from the outermost to the innermost, with neighbours merged where possible.

    Two neighbours can be merged if, in every array, a step along the outer axis is as long as the whole inner axis.
    Axes of length 1 are removed.
    """
    result: list[Axis] = []
    for length, strides in axes:
        if length == 1:
            continue
        if result and all(outer == length * inner for outer, inner in zip(result[-1][1], strides, strict=True)):
            result[-1] = result[-1][0] * length, strides
        else:
            result.append((length, strides))
    return result


def fold(
    shape: Sequence[int], axes: Sequence[int], strides: Sequence[Sequence[int]], *, reorder: bool = False
) -> tuple[list[Axis], list[Axis]]:
    """Return the other axes and the named axes of arrays, each merged.

    ``reorder`` puts the named axes into the order of the first array's memory, so that more of them merge.
    """
    named: list[Axis] = []
    others: list[Axis] = []
    for axis, length in enumerate(shape):
        (named if axis in axes else others).append((length, tuple([steps[axis] for steps in strides])))
    if reorder:
        named = sorted((one for one in named if one[0] != 1), key=lambda one: -abs(one[1][0]))
    return merged(others), merged(named)


def before_and_behind(
    shape: Sequence[int], axis: int, strides: Sequence[Sequence[int]]
) -> tuple[list[Axis], list[Axis]]:
    """Return the axes before an axis and the axes behind it, each merged."""
    axes = [(length, tuple([steps[at] for steps in strides])) for at, length in enumerate(shape)]
    return merged(axes[:axis]), merged(axes[axis + 1 :])


@dataclasses.dataclass(frozen=True)
class Lines:
    """The axes around an axis of several arrays, as (high, low, axis, inner), with a stride of each array.

    There are ``high`` times ``low`` times ``inner`` lines along the axis. ``upward``, ``downward``, ``along`` and
    ``across`` are the strides along high, low, the axis and inner.
    """

    high: int
    low: int
    inner: int
    upward: tuple[int, ...]
    downward: tuple[int, ...]
    along: tuple[int, ...]
    across: tuple[int, ...]


def lines_along(shape: Sequence[int], axis: int, strides: Sequence[Sequence[int]]) -> Lines | None:
    """Return the lines along an axis, or None if the other axes do not merge into three."""
    before, behind = before_and_behind(shape, axis, strides)
    nothing: Axis = (1, (0,) * len(strides))
    inner, across = behind.pop() if behind else nothing
    others = before + behind
    if len(others) > 2:
        return None
    (high, upward), (low, downward) = (nothing, nothing, *others)[-2:]
    return Lines(high, low, inner, upward, downward, tuple([steps[axis] for steps in strides]), across)


def is_aligned(address: int, strides: Iterable[int], vector: int, itemsize: int) -> bool:
    """Return whether every vector of ``vector`` adjacent elements begins at a multiple of its size.

    ``address`` is the address of the first vector modulo 16; ``strides`` are the steps to other vectors, in elements.
    """
    return address % (vector * itemsize) == 0 and all(stride % vector == 0 for stride in strides)


def skew(step: int, address: int, strides: Iterable[int], vector: int, itemsize: int) -> tuple[int, ...]:
    """Return the number of elements that precede the first element of a row in its vector, modulo ``vector``.

    The first number is for the row at ``address`` modulo 16; each other number is the change by a stride to another
    row. ``step`` is 1 or -1, the stride along the row.
    """
    first = address // itemsize
    return tuple([(step * one) % vector for one in (first if step == 1 else first + 1, *strides)])


def access(
    step: int, address: int, strides: Iterable[int], vector: int, itemsize: int, *, backward: bool = True
) -> str:
    """Return the way in which a thread reads ``vector`` elements in a row, a name of `Access` in common.cuh.

    ``step`` is the stride along the row. The other parameters are those of `is_aligned`; a row that descends in memory
    begins at its lowest address. Without ``backward``, only ascending addresses make vectors.
    """
    if step == 0:
        return "CONSTANT"
    if step in ((1, -1) if backward else (1,)) and is_aligned(address, strides, vector, itemsize):
        return "ASCENDING" if step == 1 else "DESCENDING"
    return "STRIDED"

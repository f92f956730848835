"""The record of a checked merge, and the checks that make it."""

from __future__ import annotations

import dataclasses
from typing import Any

from parprims._core.arrays import Array, Namespace, admit, check_flag, dtype_name, normalize_axis
from parprims._core.promotion import promoted
from parprims._dispatch.composite import Composed
from parprims._dispatch.primitive import Arguments
from parprims._primitives.search.call import REAL


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Merge(Composed):
    """A checked merge. ``arrays`` are x1 and x2, or keys1, values1, keys2, values2; ``dtypes`` are of the results."""

    axis: int
    descending: bool
    dtypes: tuple[Any, ...]

    @property
    def each(self) -> int:
        """The number of arrays in either run: 1, or 2 with values."""
        return len(self.dtypes)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the results."""
        return self.results[0][0]


def check(asked: Arguments) -> tuple[Namespace, Merge]:
    """Return the namespace and the record of a merge; raise, naming the argument, for wrong arguments."""
    xp, arrays = admit(asked.arrays)
    descending = check_flag("descending", asked["descending"])
    names, each = list(asked.arrays), len(arrays) // 2
    first, second = arrays[0], arrays[each]
    dtypes = [promoted(xp, {names[0]: first, names[each]: second}, REAL)]
    axis = normalize_axis(asked["axis"], first.ndim)
    if _shape_without_axis(first, axis) != _shape_without_axis(second, axis):
        shapes = f"{tuple(first.shape)} and {tuple(second.shape)}"
        raise ValueError(f"{names[0]} and {names[each]} must have equal shapes except along axis {axis}, got {shapes}")
    if each == 2:
        for which in (1, 3):
            if arrays[which].shape != arrays[which - 1].shape:
                shapes = f"{tuple(arrays[which - 1].shape)}, got {tuple(arrays[which].shape)}"
                raise ValueError(f"{names[which]} must have the shape of {names[which - 1]}, {shapes}")
        if arrays[1].dtype != arrays[3].dtype:
            both = f"{dtype_name(arrays[1].dtype)} and {dtype_name(arrays[3].dtype)}"
            raise TypeError(f"values1 and values2 must have one dtype, got {both}")
        dtypes.append(arrays[1].dtype)
    length = first.shape[axis] + second.shape[axis]
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return xp, Merge(
        arrays=tuple(arrays),
        key=asked.key_of(*arrays),
        results=tuple([(shape, dtype) for dtype in dtypes]),
        axis=axis,
        descending=descending,
        dtypes=tuple(dtypes),
    )


def _shape_without_axis(x: Array, axis: int) -> tuple[int, ...]:
    return tuple([n for dimension, n in enumerate(x.shape) if dimension != axis]) if axis < x.ndim else (-1,)

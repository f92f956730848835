"""The record of a checked search, and the checks that make it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Namespace,
    admit,
    check_choice,
    check_kind,
    device,
    dtype_kind,
    dtype_name,
    namespace_named,
)
from parprims._core.options import is_array
from parprims._core.promotion import promoted
from parprims._core.scalars import NUMBERS, float_format
from parprims._dispatch.composite import Composed
from parprims._dispatch.primitive import Arguments
from parprims._primitives.sort.call import index_dtype

REAL = ("int", "uint", "float")
"""The kinds of dtypes that have an order."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Search(Composed):
    """A checked search. ``arrays`` are x1, x2 and perhaps the sorter; ``dtype`` is the dtype of comparisons."""

    dtype: Any
    right: bool

    @property
    def is_empty(self) -> bool:
        """Whether x1 or x2 is empty."""
        return 0 in self.arrays[0].shape or 0 in self.arrays[1].shape


def check_searchsorted(asked: Arguments) -> tuple[Namespace, Search]:
    """Return the namespace and the record of a search; raise, naming the argument, for wrong arguments."""
    xp, arrays = admit(asked.given)
    x1, x2, *sorter = arrays
    check_choice("side", asked["side"], ("left", "right"))
    dtype = promoted(xp, {"x1": x1, "x2": x2}, REAL)
    if x1.ndim != 1:
        raise ValueError(f"x1 must have one dimension, got shape {tuple(x1.shape)}")
    if sorter:
        check_kind("sorter", sorter[0], ("int", "uint"))
        if sorter[0].shape != x1.shape:
            raise ValueError(f"sorter must have the shape of x1, {tuple(x1.shape)}, got {tuple(sorter[0].shape)}")
    return xp, Search(
        arrays=tuple(arrays),
        key=asked.key_of(*arrays),
        results=((tuple(x2.shape), index_dtype(xp)),),
        single=True,
        dtype=dtype,
        right=str(asked["side"]) == "right",
    )


def with_array(asked: Arguments) -> Arguments:
    """Return the call with x2, if it is a number, as an array of the dtype of x1, and a side that finds its index.

    A number between two integers becomes the larger of them, a number out of range the largest or the smallest.
    """
    x1, x2, side = asked["x1"], asked["x2"], asked["side"]
    if type(x2) not in NUMBERS and (not isinstance(x2, np.generic) or isinstance(x1, np.ndarray)):
        return asked
    number = x2.item() if isinstance(x2, np.generic) else x2
    kind = dtype_kind(x1.dtype) if is_array(x1) else "other"
    check_choice("side", side, ("left", "right"))
    if type(number) not in (int, float) or kind not in REAL:
        return asked.on({**asked.arrays, "x2": number})
    if kind == "float":
        digits, exponent = float_format(dtype_name(x1.dtype))
        if math.inf > abs(number) > (2 - 2 ** (1 - digits)) * 2**exponent:
            number, side = (math.inf, "left") if number > 0 else (-math.inf, "right")
        number = float(number)
    else:
        limits = np.iinfo(dtype_name(x1.dtype))
        if not number <= limits.max:  # NaN too
            number, side = limits.max, "right"
        elif number < limits.min:
            number, side = limits.min, "left"
        elif number != math.floor(number):
            number, side = math.ceil(number), "left"
        number = int(number)
    x2 = namespace_named("x1", x1).asarray(number, dtype=x1.dtype, device=device(x1))
    return asked.on({**asked.arrays, "x2": x2}, side=side)

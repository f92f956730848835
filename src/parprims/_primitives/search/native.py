"""Searches by the library's own routine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    as_result,
    cast,
    dtype_kind,
    lacks_arithmetic,
    library,
    library_title,
)
from parprims._dispatch.dispatch import directly
from parprims._libraries.numpy_bridge import numpy_orders, reader, shares_memory
from parprims._primitives.search.array import keys
from parprims._primitives.search.call import Search
from parprims._primitives.sort.call import index_dtype


def _by_library(xp: Namespace, c: Search) -> Array:
    """Return the result of the library's own function, on integers if it orders floats in another way than `sort`."""
    if library(xp) == "numpy" and numpy_orders(c.dtype):
        x1, x2, *sorter = c.arrays
        places = xp.searchsorted(cast(xp, x1, c.dtype), cast(xp, x2, c.dtype), "right" if c.right else "left", *sorter)
        return xp.asarray(places, dtype=index_dtype(xp))
    if _torch_compares(xp, c):
        x1, x2 = (cast(xp, x, c.dtype).contiguous() for x in c.arrays)
        last = x1[-1:]
        if not bool((last != last).any()):  # no NaN: then PyTorch finds the place of a wanted NaN, too
            return xp.searchsorted(x1, x2, right=c.right)
    x1, x2 = keys(xp, c)
    if library(xp) == "torch":
        import torch

        return torch.searchsorted(x1.contiguous(), x2.contiguous(), right=c.right)
    return cast(xp, as_result(xp.searchsorted(x1, x2, side="right" if c.right else "left")), index_dtype(xp))


def prepare(xp: Namespace, c: Search) -> Callable[..., Array]:
    """Return a search by the library's own function, without conversions if it takes the arrays as they are."""
    plain = len(c.arrays) == 2 and all(x.dtype == c.dtype for x in c.arrays) and numpy_orders(c.dtype)
    if plain and _torch_compares(xp, c) and all(x.is_contiguous() for x in c.arrays):
        return _prepare_torch(xp, c)
    if not plain or library(xp) != "numpy":
        return directly(_by_library)(xp, c)
    side: Literal["left", "right"] = "right" if c.right else "left"
    if c.arrays[1].ndim and np.intp is np.int64:  # else NumPy returns a scalar, or other integers
        return lambda x1, x2: x1.searchsorted(x2, side)
    return lambda x1, x2: np.asarray(x1.searchsorted(x2, side), np.int64)


def _prepare_torch(xp: Namespace, c: Search) -> Callable[..., Array]:
    """Return PyTorch's own search; if the last sorted element is NaN, it searches integers."""
    import torch

    search = functools.partial(torch.searchsorted, right=True) if c.right else torch.searchsorted
    if dtype_kind(c.dtype) != "float" or c.is_empty:
        return search
    read, otherwise = reader(xp, c.arrays), directly(_by_library)(xp, c)

    def run(x1: Array, x2: Array) -> Array:
        last = read(x1)[-1]
        return search(x1, x2) if last == last else otherwise(x1, x2)

    return run


def _torch_compares(xp: Namespace, c: Search) -> bool:
    """Return whether PyTorch's search takes the elements as they are, if there is no NaN."""
    ordered = library(xp) == "torch" and len(c.arrays) == 2 and lacks_arithmetic(xp, [c.dtype]) is None
    return ordered and shares_memory(xp, c.arrays)


def refusal(xp: Namespace, c: Search) -> str | None:
    """Return the sentence why the library cannot serve the call, or None."""
    del c
    return f"{library_title(xp)} has no searchsorted" if library(xp) == "other" else None

"""Checks of values that can be read at once: offsets of segments, edges of bins, divisors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    cast,
    check_flag,
    check_kind,
    dtype_kind,
    is_tensor,
    library,
    namespace_of,
)
from parprims._core.jax_arrays import is_traced, jax_platform
from parprims._core.options import listed_as_array, of_numpy
from parprims._core.signature import torch_observed
from parprims._dispatch.dispatch import Abstract
from parprims._libraries.numpy_bridge import as_numpy, is_shared

Check = Callable[[Array], None]
"""Raises ValueError for offsets that do not ascend from 0 to the length of the axis."""


def as_offsets(offsets: Any, beside: Any, axis: Any, check: Any, *, alone: bool = True) -> Any:
    """Return offsets of a list, a tuple, a range or NumPy as an array of the library of ``beside``; others unchanged.

    Unless ``check`` is False they are checked here, because the array may be on a GPU or in a traced program. With
    ``alone``, ``beside`` has the length of the axis; else it may be broadcast, and the last offset is the length.
    """
    if not isinstance(offsets, list | tuple | range | np.ndarray) or not hasattr(type(beside), "shape"):
        return offsets
    try:
        xp = namespace_of(beside)
    except TypeError:  # no array of a library: the checks of the call name it
        return offsets
    if isinstance(offsets, np.ndarray):
        array = of_numpy("offsets", offsets, beside)
        if array is offsets or offsets.ndim != 1:
            return array
    else:
        array = listed_as_array("offsets", offsets, xp, beside)
    position = -1 if axis is None else axis
    known = dtype_kind(array.dtype) in ("int", "uint") and check is not False and len(offsets) > 0
    if known and isinstance(position, int | np.integer) and -beside.ndim <= position < beside.ndim:
        n = beside.shape[position] if alone else int(offsets[-1])
        _check(_ascend(np.asarray(offsets), n), n)
    return array


def checking(xp: Namespace, offsets: Array, n: int, check: Any, method: str) -> Check | None:
    """Check offsets for an axis of length n; return the check of later offsets like these, or None for no check.

    Values in the memory of a CPU are read unless ``check`` is False, other values only if it is True.
    """
    check = None if check is None else check_flag("check", check)
    check_kind("offsets", offsets, ("int", "uint"))
    if offsets.ndim != 1 or offsets.shape[0] == 0:
        raise ValueError(f"offsets must have one dimension and at least one entry, got shape {tuple(offsets.shape)}")
    checker = None if check is False or isinstance(method, Abstract) else _checker(xp, offsets, n, check is True)
    if checker is not None:
        checker(offsets)
    return checker


def checked_first(check: Check | None, at: int, complete: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Return the `complete` of a later call; it first checks the offsets, the array at index ``at``."""
    if check is None:
        return complete

    def completed(*arrays: Array) -> tuple[Array, ...]:
        check(arrays[at])
        return arrays if complete is None else complete(*arrays)

    return completed


def _checker(xp: Namespace, offsets: Array, n: int, wanted: bool) -> Check | None:
    read = reading(xp, offsets)
    if read is not None:
        return lambda offsets: _check(_ascend(read(offsets), n), n)
    if not wanted:
        return None
    if is_traced(offsets) or (is_tensor(offsets) and _is_wrapped(offsets)):
        raise ValueError("check must be None or False for traced offsets, which have no values")

    def by_library(offsets: Array) -> None:
        where = cast(xp, offsets, xp.int64) if library(xp) != "jax" else offsets
        _check(bool((where[0] == 0) & (where[-1] == n) & xp.all(where[1:] >= where[:-1])), n)

    return by_library


def _check(right: bool, n: int) -> None:
    if not right:
        raise ValueError(
            f"offsets must ascend from 0 to the length of the axis, {n}; "
            "lengths of segments become offsets by a cumulative sum behind 0"
        )


_FEW = 64
"""The most numbers that Python compares faster than NumPy."""


def ascend(values: np.ndarray[Any, Any]) -> bool:
    """Return whether no number is less than its predecessor, and none is NaN."""
    if len(values) <= _FEW:
        some: Sequence[Any] = values.tolist()
        return all(map(operator.le, some, some[1:]))
    return bool((values[1:] >= values[:-1]).all())


def _ascend(offsets: np.ndarray[Any, Any], n: int) -> bool:
    return bool(offsets[0] == 0 and offsets[-1] == n) and ascend(offsets)


def reading(xp: Namespace, x: Array) -> Callable[[Array], np.ndarray[Any, Any]] | None:
    """Return a function that reads arrays like this as NumPy arrays; None unless they are in CPU memory."""
    name = library(xp)
    if name == "numpy":
        return lambda x: x
    if name == "torch":
        if x.device.type != "cpu" or _is_wrapped(x):
            return None
        if not torch_observed()():
            return as_numpy if is_shared(x.dtype) else _listed
        return _listed if _transformed() else None  # what a transformation of torch.func does not follow has values
    if name == "jax":
        here = not is_traced(x) and x.is_fully_addressable and jax_platform((x,)) == "cpu"
        return np.asarray if here else None
    return np.asarray if "cpu" in str(getattr(x, "device", "")).lower() else None


def checked_values(
    xp: Namespace, x: Array, at: int, check: Callable[[np.ndarray[Any, Any]], None]
) -> Callable[..., tuple[Array, ...]] | None:
    """Check the values of an array; return a function that checks array ``at`` of a later call and returns its arrays.

    None if the values cannot be read at once.
    """
    read = reading(xp, x)
    if read is None:
        return None

    def checked(*arrays: Array) -> tuple[Array, ...]:
        check(read(arrays[at]))
        return arrays

    check(read(x))
    return checked


def _listed(x: Array) -> np.ndarray[Any, Any]:
    return np.asarray(x.tolist())


def _transformed() -> bool:
    import torch

    return bool(torch._C._are_functorch_transforms_active())


def _is_wrapped(x: Array) -> bool:
    """Return whether a tensor stands for others in a transformation of torch.func, or has no values."""
    import torch

    plain = type(x) in (torch.Tensor, torch.nn.Parameter)
    return not plain or bool(torch._C._functorch.is_functorch_wrapped_tensor(x))

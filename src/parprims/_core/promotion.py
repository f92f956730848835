"""Promotion of dtypes, and the casts that are allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from parprims._core.arrays import Array, Namespace, check_kind, dtype_kind, dtype_name


def promoted(xp: Namespace, named: Mapping[str, Array], kinds: Sequence[str]) -> Any:
    """Return the dtype that arrays of some kinds promote to.

    Raises TypeError, which names the arrays, if an array is of another kind, or integers meet floats.
    """
    for name, array in named.items():
        check_kind(name, array, kinds)
    arrays = list(named.values())
    first = arrays[0].dtype
    if all(array.dtype == first for array in arrays):
        return first
    array_kinds = [dtype_kind(array.dtype) for array in arrays]
    mixed = len({kind in ("int", "uint") for kind in array_kinds}) > 1
    try:
        dtype = None if mixed else xp.result_type(*arrays)
    except (TypeError, ValueError, RuntimeError):
        dtype = None
    if dtype is None or dtype_kind(dtype) not in array_kinds:
        hint = ""
        if mixed:
            integers = [name for name, kind in zip(named, array_kinds, strict=True) if kind in ("int", "uint")]
            hint = f": cast {' and '.join(integers)} to a float dtype"
        *others, last = named
        *names, final = (dtype_name(array.dtype) for array in arrays)
        raise TypeError(
            f"{', '.join(others)} and {last} must have dtypes that promote together, "
            f"got {', '.join(names)} and {final}{hint}"
        )
    return dtype


def check_casts(sources: Sequence[Any], targets: Sequence[Any]) -> None:
    """Raise TypeError if the option ``dtype`` casts complex elements to a dtype that is not complex."""
    for index, (source, target) in enumerate(zip(sources, targets, strict=True)):
        if dtype_kind(source) == "complex" != dtype_kind(target):
            name = "dtype" if len(targets) == 1 else f"dtype[{index}]"
            raise TypeError(
                f"{name} must be complex for elements of {dtype_name(source)}, got {dtype_name(target)}: "
                "take their real part by xp.real first"
            )

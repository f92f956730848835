"""Options: values of other types than Python's are converted, as in NumPy and SciPy, so that calls have keys.

Public functions convert options only for calls that they do not remember, so remembered calls lose no time.
"""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import (
    DTYPES,
    STATIC,
    Array,
    Namespace,
    device,
    dtype_name,
    is_jax,
    is_number,
    library_title,
    mode,
    namespace_of,
    repr_short,
)

_NUMBERS = ("axis", "k", "size", "num_segments", "bins")
"""Options that are a number, or may be a number."""
_SEVERAL = ("q", "kth", "range", "l_and_u", "tile")
"""Options that are a number or several numbers."""
NUMBERS_OR_SEVERAL = frozenset((*_NUMBERS, *_SEVERAL))
"""The options of `_NUMBERS` and `_SEVERAL`."""
_PLAIN = frozenset({int, float, complex, bool, str, type(None)})


def made_plain(several: tuple[str, ...] = (), /, **options: Any) -> dict[str, Any] | None:
    """Return the options with Python's numbers and tuples in place of other types; None if no option changes.

    ``several`` are the options of `_NUMBERS` that may be several numbers in this call.

    A list, a range or a 1-d array becomes a tuple if several numbers are allowed, and a 0-d array becomes a number.
    Other values stay unchanged: the checks refuse them. Raises TypeError, which names the option, for a traced array of
    JAX.
    """
    changed = None
    for name, value in options.items():
        plain = _plain(name, value, several=name in _SEVERAL or name in several)
        if plain is not value:
            changed = changed or dict(options)
            changed[name] = plain
    return changed


def _plain(name: str, value: Any, several: bool) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return _number(value)
    if type(value) is tuple or (several and isinstance(value, list | range)):
        parts = [_plain(name, one, several=False) for one in value]
        return value if type(value) is tuple and all(map(operator.is_, parts, value)) else tuple(parts)
    if not is_array(value):
        indexes = hasattr(type(value), "__index__") and not type(value).__module__.startswith("torch")
        return operator.index(value) if indexes else value
    if value.ndim > (1 if several else 0):
        return value
    jax: Any = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} must have a value when a program is made, got {repr_short(value)}{STATIC}")
    listed = _listed(value)
    return tuple(listed) if isinstance(listed, list) else listed


def _number(value: np.generic) -> Any:
    if isinstance(value, np.timedelta64) or not isinstance(value, np.number | np.bool_ | np.str_):
        return value
    number = value.item()
    if isinstance(number, np.longdouble | np.clongdouble):
        return float(number) if isinstance(number, np.longdouble) else complex(number)
    return number


def check_entries(name: str, entries: tuple[Any, ...], count: int) -> None:
    """Raise ValueError unless an option, as a tuple, has an entry for each of ``count`` components."""
    if count > 1 and len(entries) == 1 and isinstance(entries[0], list):
        raise TypeError(f"{name} must be a tuple of {count} entries, one per component, got {repr_short(entries[0])}")
    if len(entries) != count:
        raise ValueError(f"{name} must have {count} entries, one per component, got {len(entries)}")


def integer_of(name: str, value: Any, low: int, high: int) -> int:
    """Return an integer of a range; raise an error that names the argument for anything else."""
    try:
        number = operator.index(value) if type(value) is not bool else None
    except TypeError:
        number = None
    if number is None or is_array(value):
        raise TypeError(f"{name} must be an integer, got {repr_short(value)}")
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {number}")
    return number


def is_array(value: Any) -> bool:
    """Return whether a value is an array, not a number of NumPy. The class decides: a nested tensor's shape raises."""
    kind = type(value)
    return hasattr(kind, "shape") and hasattr(kind, "dtype") and not isinstance(value, np.generic)


def _listed(x: Array) -> Any:
    """Return the values of an array as lists of Python's numbers, or the array if it has no values."""
    try:
        return x.tolist() if hasattr(x, "tolist") else np.asarray(x).tolist()
    except (RuntimeError, TypeError, ValueError):
        return x


def listed_as_array(name: str, values: Sequence[Any], xp: Namespace, like: Array) -> Array:
    """Return the numbers of a list, a tuple or a range as an array on the device of ``like``, with NumPy's dtype."""
    numbers = [_plain(name, number, several=False) for number in values]
    kinds = {type(number) for number in numbers}
    if not kinds <= {int, float}:
        raise TypeError(f"{name} must hold integers or floats only, got {repr_short(values)}")
    bits = 32 if is_jax(xp) and not mode(xp) else 64
    if float in kinds:
        return xp.asarray(numbers, dtype=getattr(xp, f"float{bits}"), device=device(like))
    if any(not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) for number in numbers):
        raise ValueError(f"{name} must be in the range of int{bits}, got {repr_short(values)}")
    return xp.asarray(numbers, dtype=getattr(xp, f"int{bits}"), device=device(like))


def of_numpy(name: str, values: Any, like: Any) -> Any:
    """Return a NumPy array as an array of the library of ``like``, on its device; any other value unchanged.

    Raises
    ------
    TypeError
        If the library would round the numbers, as JAX does without 64-bit dtypes.
    """
    if type(values) is not np.ndarray or isinstance(like, np.ndarray) or not is_array(like):
        return values
    try:
        xp = namespace_of(like)
    except TypeError:  # not an array: the checks of the call refuse it, and name it
        return values
    dtype = values.dtype.name
    narrow = _NARROW.get(dtype) if is_jax(xp) and not mode(xp) else None
    if narrow is not None:
        narrowed = values.astype(narrow)
        if not np.array_equal(narrowed.astype(dtype), values, equal_nan=values.dtype.kind in "fc"):
            raise TypeError(
                f"{name} is an array of NumPy, and JAX would round its {dtype} numbers to {narrow}: pass "
                f"jax.numpy.asarray({name}), or set jax_enable_x64"
            )
        values, dtype = narrowed, narrow
    kind = getattr(xp, dtype, None)
    return values if kind is None else xp.asarray(np.array(values), dtype=kind, device=device(like))


_NARROW = {"float64": "float32", "complex128": "complex64", "int64": "int32", "uint64": "uint32"}
"""The dtypes that JAX uses in place of 64-bit dtypes, unless jax_enable_x64 is set."""


# ---- The option dtype ------------------------------------------------------------------------------------------------

BUILT_IN_DTYPES: dict[Any, str] = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def as_dtype(xp: Namespace, dtype: Any, name: str = "dtype") -> Any:
    """Return the library's dtype for its own dtype, a name of the standard, or a Python type.

    Raises TypeError, naming the argument, for anything else and for a dtype the library does not have.
    """
    converted = _as_dtype(xp, dtype)
    if converted is None or not is_number(converted):
        raise TypeError(
            f"{name} must be a dtype of {library_title(xp)}, or the standard's name of one, got {repr_short(dtype)}"
        )
    if array_api_compat.is_jax_namespace(xp):
        import jax

        canonical = jax.dtypes.canonicalize_dtype(converted)
        if canonical != converted:
            if isinstance(dtype, type) and dtype in BUILT_IN_DTYPES:
                return canonical
            raise TypeError(f"{name} must be a dtype that JAX has without jax_enable_x64, got {dtype_name(converted)}")
    return converted


def dtype_named(xp: Namespace, name: str) -> Any:
    """Return the library's dtype with this name."""
    library_dtype = getattr(xp, name, None)
    return np.dtype(name) if library_dtype is None else library_dtype  # ml_dtypes adds bfloat16 to NumPy and CuPy


def _as_dtype(xp: Namespace, dtype: Any) -> Any:
    if isinstance(dtype, str) and dtype in DTYPES:
        candidate = getattr(xp, dtype, None)
        if candidate is None and dtype == "bfloat16" and _has_numpy_dtypes(xp):
            try:
                return np.dtype("bfloat16")  # ml_dtypes adds this dtype
            except TypeError:
                return None
    elif array_api_compat.is_torch_namespace(xp):
        import torch

        candidate = dtype if isinstance(dtype, torch.dtype) else None
        if candidate is None and isinstance(dtype, type) and dtype in BUILT_IN_DTYPES:
            candidate = getattr(xp, BUILT_IN_DTYPES[dtype])
        return candidate
    elif _has_numpy_dtypes(xp):
        names = hasattr(dtype, "dtype") and not isinstance(dtype, np.generic)
        candidate = dtype if isinstance(dtype, (str, type, np.dtype)) or names else None
    else:
        return next((own for own in (getattr(xp, one, None) for one in DTYPES) if _same_dtype(own, dtype)), None)
    if candidate is None or not _has_numpy_dtypes(xp):
        return candidate
    try:
        converted = np.dtype(candidate)
    except (TypeError, ValueError, SyntaxError):
        return None
    return converted.newbyteorder("=") if not converted.isnative else converted


def _same_dtype(candidate: Any, dtype: Any) -> bool:
    return candidate is dtype or (type(candidate) is type(dtype) and bool(candidate == dtype))


@functools.cache
def _has_numpy_dtypes(xp: Namespace) -> bool:
    return any(getattr(array_api_compat, f"is_{one}_namespace")(xp) for one in ("numpy", "cupy", "jax"))


def as_dtypes(xp: Namespace, dtype: Any) -> tuple[Any, ...] | None:
    """Return the library's dtypes for the option dtype: None, a dtype, or a tuple with a dtype for each component."""
    if dtype is None:
        return None
    if not isinstance(dtype, tuple):
        return (as_dtype(xp, dtype),)
    return tuple(as_dtype(xp, one, f"dtype[{index}]") for index, one in enumerate(dtype))

"""Python numbers among the arguments: as arrays, or as values of a dtype that holds them exactly."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import (
    LONG_DOUBLES,
    Array,
    Namespace,
    admit,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    library,
    library_title,
    quiet,
    repr_short,
)
from parprims._core.jax_arrays import is_traced
from parprims._core.memo import Memo
from parprims._core.programs import one_program

_SCALAR_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool", "int", "uint", "float", "complex"),
    int: ("int", "uint", "float", "complex"),
    float: ("float", "complex"),
    complex: ("complex",),
}
NUMBERS = frozenset(_SCALAR_KINDS)
"""The types of Python's numbers."""

_PYTHON_TYPES: dict[str, type] = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}


def is_scalar(value: Any) -> bool:
    """Return whether a value is a number of Python or NumPy, not an array."""
    return type(value) in _SCALAR_KINDS or isinstance(value, np.generic)


def as_number(value: Any) -> Any:
    """Return the number in a 0-d array of NumPy, and any other value unchanged."""
    return value[()] if type(value) is np.ndarray and value.ndim == 0 else value


def as_array(
    name: str, value: Any, xp: Namespace, dtype: Any, device: Any, shape: tuple[int, ...], axis: int | None = None
) -> Array:
    """Return a scalar or array as an array of a dtype, on a device, broadcast to a shape.

    With ``axis`` the result has one more axis there, of length 1. Numbers are rounded to the dtype, except integers of
    NumPy, which the dtype must hold exactly. A 0-d array of NumPy counts as a number. Raises TypeError, which names the
    argument, for an array of another library or dtype and for a scalar of a kind that the dtype cannot hold (2.5 for an
    integer). Raises ValueError for a number out of the dtype's range, an integer of NumPy that the dtype would round,
    or an array that does not broadcast.
    """
    value = as_number(value)
    if is_scalar(value):
        held = library(xp) == "numpy" and isinstance(value, np.generic) and value.dtype == dtype
        number = value if held else as_scalar(name, value, dtype)
        return number_as_array(xp, number, dtype, device=device, shape=_with_axis(shape, axis))
    other, (array,) = admit({name: value})
    if other is not xp:
        raise TypeError(f"{name} must be a scalar or an array of {library_title(xp)}, got {type(value).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype_name(dtype)}, got {dtype_name(array.dtype)}")
    _check_on(name, array, device)
    try:
        return _shaper(xp, array, shape, axis)(array)
    except (ValueError, RuntimeError, TypeError):  # the libraries raise different errors
        raise ValueError(f"{name} must broadcast to shape {shape}, got shape {tuple(array.shape)}") from None


def maker(
    name: str, value: Any, xp: Namespace, dtype: Any, device: Any, shape: tuple[int, ...], axis: int | None = None
) -> Callable[[Any], Array]:
    """Return a function that converts later values as `as_array` does, but checks only numbers.

    Later values have the signature of this value, which `as_array` has accepted.
    """
    if is_scalar(as_number(value)):
        return lambda number: as_array(name, number, xp, dtype, device=device, shape=shape, axis=axis)
    return _shaper(xp, value, shape, axis)


def _with_axis(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return shape if axis is None else (*shape[:axis], 1, *shape[axis:])


def _shaper(xp: Namespace, x: Array, shape: tuple[int, ...], axis: int | None) -> Callable[[Array], Array]:
    """Return a function that broadcasts arrays like x to a shape, and adds the axis if it is given."""
    if isinstance(x, np.ndarray) and x.shape == shape:
        whole = _with_axis(shape, axis)
        return lambda x: x.reshape(whole)

    def shaped(x: Array) -> Array:
        x = x if x.shape == shape else xp.broadcast_to(x, shape)
        return x if axis is None else xp.expand_dims(x, axis=axis)

    if not is_jax(xp) or is_traced(x) or (axis is None and x.shape == shape):
        return shaped
    # A single operation of JAX takes three times as long as a compiled program.
    key = shape, axis
    return _shaping.get(key) or _shaping.keep(key, one_program(shaped))


_shaping: Memo[Callable[[Array], Array]] = Memo()
_numbers: Memo[Array] = Memo()

_SMALL = 1024
"""The most elements of an array that is kept for all calls with a number."""


def number_as_array(xp: Namespace, number: Any, dtype: Any, device: Any, shape: tuple[int, ...] = ()) -> Array:
    """Return an array of one number. Unlike ``asarray``, it does not wait for a GPU."""
    if library(xp) == "numpy":
        return np.array(number, dtype, ndmin=len(shape)) if math.prod(shape) == 1 else np.full(shape, number, dtype)
    if library(xp) in ("cupy", "torch") and not (isinstance(number, int) and abs(number) >= 2**63):
        return xp.full(shape, number, dtype=dtype, device=device)
    if not is_jax(xp):
        return xp.broadcast_to(xp.asarray(number, dtype=dtype, device=device), shape)
    # JAX takes ten times as long to convert a number as to run a program. Its arrays never change, so they are kept.
    # Without a device the call is inside a traced program. The array may belong to that program, so it is not kept.
    key = repr(number), dtype, device, shape
    array = None if device is None else _numbers.get(key)
    if array is None:
        with quiet(xp):
            array = xp.broadcast_to(xp.asarray(number, dtype=dtype, device=device), shape)
        if device is not None and math.prod(shape) <= _SMALL and not is_traced(array):
            _numbers.keep(key, array)
    return array


def _check_on(name: str, x: Array, device: Any) -> None:
    """Raise ValueError unless an array is on a device, or on all devices of a sharding of JAX."""
    if device is None or is_traced(x) or array_api_compat.is_numpy_array(x):
        return
    if array_api_compat.is_jax_array(x):
        wanted = getattr(device, "device_set", {device})
        fits = x.devices() == wanted
    else:
        wanted, fits = device, array_api_compat.device(x) == device
    if not fits:
        raise ValueError(f"{name} is on device {array_api_compat.device(x)}, but must be on {device}")


def as_scalar(name: str, value: Any, dtype: Any) -> Any:
    """Return a number of Python or NumPy as a Python number that the dtype holds; raise as `as_array`."""
    value = as_number(value)
    python_type = type(value)
    if isinstance(value, np.generic):
        if dtype_name(value.dtype) == dtype_name(dtype):
            return value if dtype_name(dtype) in LONG_DOUBLES else value.item()
        python_type = _PYTHON_TYPES.get(dtype_kind(value.dtype), object)
    to = dtype_name(dtype)
    if dtype_kind(dtype) not in _SCALAR_KINDS.get(python_type, ()):
        raise TypeError(f"{name} must fit dtype {to}, got {repr_short(value)}")
    number = python_type(value)
    low, high = _range(to)
    parts = (number.real, number.imag) if python_type is complex else (number,)
    if not all(low <= part <= high or (python_type not in (bool, int) and not math.isfinite(part)) for part in parts):
        raise ValueError(f"{name} must be in the range of {to}, got {repr_short(value)}")
    # Python's numbers and NumPy's floats are rounded to the dtype; it must hold integers of NumPy exactly.
    if python_type is not type(value) and python_type in (bool, int) and not _is_exact(number, to):
        raise ValueError(f"{name} must be exact in {to}, got {repr_short(value)}")
    return number


_FLOATS = {"float16": (11, 15), "bfloat16": (8, 127), "float32": (24, 127), "float64": (53, 1023)}
"""The bits of a significand, and the largest exponent."""


def float_format(name: str) -> tuple[int, int]:
    """Return the bits of a significand of a dtype, and its largest exponent."""
    return _FLOATS.get("float32" if name == "complex64" else name, _FLOATS["float64"])


@functools.cache
def _range(name: str) -> tuple[Any, Any]:
    """Return the least and the largest finite number of a dtype, or of the parts of a complex dtype."""
    kind, bits = dtype_kind(name), dtype_bits(name)
    if kind == "bool":
        return 0, 1
    if kind == "uint":
        return 0, 2**bits - 1
    if kind == "int":
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    digits, exponent = float_format(name)
    largest = (2.0 - 2.0 ** (1 - digits)) * 2.0**exponent
    return -largest, largest


def _is_exact(number: Any, name: str) -> bool:
    """Return whether a dtype holds a number of its range exactly."""
    if dtype_kind(name) not in ("float", "complex") or (isinstance(number, float) and not math.isfinite(number)):
        return True
    if float(number) != number:
        return False
    digits, most = float_format(name)
    exponent = max(math.frexp(number)[1], 2 - most)  # subnormal numbers have the least exponent of normal numbers
    return math.ldexp(number, digits - exponent).is_integer()

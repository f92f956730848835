"""What every public function asks of its arrays: one namespace, a valid axis, dtypes by name."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np

Array = Any
"""An array of any library that conforms to the array API standard."""

Namespace = Any
"""The module (or object) that holds a library's array functions, usually called xp."""

SIXTEEN_BIT_FLOATS = ("float16", "bfloat16")


def namespace(**arrays: Array) -> Namespace:
    """Return the array namespace the named arrays share.

    Raises TypeError, naming the argument, if one is no array or comes from another library, and ValueError if
    one lives on another device.
    """
    shared: Namespace = None
    first = ""
    for name, array in arrays.items():
        if shared is not None and type(array) is type(arrays[first]):
            xp = shared
        else:
            try:
                xp = _numpy() if type(array) is np.ndarray else array_api_compat.array_namespace(array)
            except TypeError:
                raise TypeError(f"{name} must be an array, got {type(array).__name__}") from None
        if shared is None:
            shared, first = xp, name
        elif xp is not shared:
            raise TypeError(
                f"{name} is an array of {xp.__name__}, but {first} is one of {shared.__name__}: "
                "all arrays must come from one library"
            )
        elif not array_api_compat.is_numpy_array(array):
            _check_same_device(first, arrays[first], name, array)
    return shared


@functools.cache
def _numpy() -> Namespace:
    return array_api_compat.array_namespace(np.empty(0))


def _check_same_device(first: str, one: Array, name: str, other: Array) -> None:
    if is_traced(one) or is_traced(other):
        return
    here, there = array_api_compat.device(one), array_api_compat.device(other)
    if here != there:
        raise ValueError(f"{name} is on device {there}, but {first} is on {here}: all arrays must be on one device")


def is_traced(x: Array) -> bool:
    """Return whether x is a JAX array without a value: one inside jit, vmap or grad."""
    if not array_api_compat.is_jax_array(x):
        return False
    import jax

    return isinstance(x, jax.core.Tracer)


def device(x: Array) -> Any:
    """Return the device of an array; None, which leaves it to the program, for a JAX array without a value."""
    if is_tensor(x):
        return x.device
    return None if is_traced(x) else array_api_compat.device(x)


def is_tensor(x: Any) -> bool:
    """Return whether x is a tensor of PyTorch, in words that torch.compile can read."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def namespace_of(x: Array) -> Namespace:
    """Return the namespace of an array, in words that torch.compile can read."""
    if is_tensor(x):
        from array_api_compat import torch

        return torch
    return array_api_compat.array_namespace(x)


def compiling(x: Any) -> bool:
    """Return whether torch.compile or torch.export reads the program that called us, and x or an entry is its tensor.

    Every public function asks this first: its call is then to be a node of the graph (`_torch_ops`).
    """
    if "torch._dynamo" not in sys.modules:  # which PyTorch loads when its compiler or exporter is first used
        return False
    import torch

    if not (torch.compiler.is_dynamo_compiling() or torch.compiler.is_exporting()):
        return False
    return any(isinstance(one, torch.Tensor) for one in (x if isinstance(x, tuple) else (x,)))


def normalize_axis(axis: Any, ndim: int, name: str = "axis") -> int:
    """Return the axis counted from the front; IndexError if there is none such, TypeError if it is no integer."""
    try:
        index = operator.index(axis)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {axis!r}") from None
    if not -ndim <= index < ndim:
        raise IndexError(f"{name} {index} is out of range for an array of {ndim} dimensions")
    return index % ndim


def normalize_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes meant by None (all), an integer or a tuple of integers, in ascending order."""
    if axis is None:
        return tuple(range(ndim))
    if not isinstance(axis, tuple):
        return (normalize_axis(axis, ndim),)
    axes = tuple(normalize_axis(one, ndim) for one in axis)
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis {axis} names an axis twice")
    return tuple(sorted(axes))


@functools.cache
def _name_and_kind(_type: Any, dtype: Any) -> tuple[str, str]:
    # The type leads the cache's key, because dtypes of two libraries may share a hash and object to comparison.
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype).rpartition(".")[2]
    kind = "float" if name == "bfloat16" else name.rstrip("0123456789")
    return name, kind if kind in ("bool", "int", "uint", "float", "complex") else "other"


def dtype_name(dtype: Any) -> str:
    """Return the standard's name of a dtype of any library, such as "float32"."""
    library: Any = type(dtype)
    return _name_and_kind(library, dtype)[0]


def dtype_kind(dtype: Any) -> str:
    """Return "bool", "int", "uint", "float", "complex" or, for anything else, "other"."""
    library: Any = type(dtype)
    return _name_and_kind(library, dtype)[1]


def dtype_bits(dtype: Any) -> int:
    """Return the width of a numeric dtype in bits; 8 for bool."""
    digits = dtype_name(dtype).lstrip("abcdefghijklmnopqrstuvwxyz")
    return int(digits) if digits else 8


def check_kind(name: str, x: Array, kinds: Sequence[str]) -> None:
    """Raise TypeError, naming the argument, unless x has a dtype of one of the kinds."""
    if dtype_kind(x.dtype) not in kinds:
        raise TypeError(f"{name} must have a dtype of kind {' or '.join(kinds)}, got {dtype_name(x.dtype)}")


def compute_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype sums and products of this dtype are formed in: float32 for 16-bit floats, else the same."""
    return xp.float32 if dtype_name(dtype) in SIXTEEN_BIT_FLOATS else dtype


def cast(xp: Namespace, x: Array, dtype: Any) -> Array:
    """Return x in a dtype: x itself where it has that."""
    return x if x.dtype == dtype else xp.astype(x, dtype)


def ring_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype sums and products are formed in where the result keeps this dtype and integers wrap around.

    As `compute_dtype`, but int64 for the unsigned integers a library cannot add (PyTorch); the low bits are the same.
    """
    if dtype_kind(dtype) == "uint" and dtype_bits(dtype) > 8 and array_api_compat.is_torch_namespace(xp):
        return xp.int64
    return compute_dtype(xp, dtype)


def lacks_products(xp: Namespace, x: Array, dtype: Any) -> bool:
    """Return whether the library has no products of vectors of the dtype where x is: PyTorch, of integers on GPUs."""
    return array_api_compat.is_torch_namespace(xp) and x.is_cuda and dtype_kind(dtype) in ("int", "uint")


def sum_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype of a sum by the standard: integers narrower than the default widen to it, others stay.

    bool counts as an integer. A library without arithmetic on wide unsigned integers (PyTorch) sums them in its
    default integer, as its own sum does.
    """
    kind = dtype_kind(dtype)
    if kind not in ("bool", "int", "uint"):
        return dtype
    default = xp.__array_namespace_info__().default_dtypes()["integral"]
    if kind != "uint":
        return dtype if kind == "int" and dtype_bits(dtype) >= dtype_bits(default) else default
    if dtype_bits(dtype) >= dtype_bits(default) and not array_api_compat.is_torch_namespace(xp):
        return dtype
    if array_api_compat.is_torch_namespace(xp):
        return default
    return getattr(xp, f"uint{dtype_bits(default)}")


_SCALAR_KINDS: dict[type, tuple[str, ...]] = {
    bool: ("bool", "int", "uint", "float", "complex"),
    int: ("int", "uint", "float", "complex"),
    float: ("float", "complex"),
    complex: ("complex",),
}


def as_array(name: str, value: Any, xp: Namespace, dtype: Any, device: Any, shape: tuple[int, ...]) -> Array:
    """Return a scalar or array as an array of a dtype, on a device, broadcast to a shape, never rounding it.

    Raises TypeError, naming the argument, for an array of another library or dtype and for a Python scalar of a
    kind the dtype cannot hold (2.5 for an integer), and ValueError for an integer out of the dtype's range or an
    array that does not broadcast.
    """
    array = _typed(name, value, xp, dtype, device)
    try:
        return xp.broadcast_to(array, shape)
    except (ValueError, RuntimeError, TypeError):  # the libraries differ
        raise ValueError(f"{name} must broadcast to shape {shape}, got shape {array.shape}") from None


def _typed(name: str, value: Any, xp: Namespace, dtype: Any, device: Any) -> Array:
    for scalar, kinds in _SCALAR_KINDS.items():
        if type(value) is scalar:
            if dtype_kind(dtype) not in kinds:
                raise TypeError(f"{name} must fit dtype {dtype_name(dtype)}, got {value!r}")
            if scalar is int and dtype_kind(dtype) in ("int", "uint"):
                info = xp.iinfo(dtype)
                if not info.min <= value <= info.max:
                    raise ValueError(f"{name} must be in the range of {dtype_name(dtype)}, got {value}")
            return xp.asarray(value, dtype=dtype, device=device)
    if namespace(**{name: value}) is not xp:
        raise TypeError(f"{name} must be a scalar or an array of {xp.__name__}, got {type(value).__name__}")
    if value.dtype != dtype:
        raise TypeError(f"{name} must have dtype {dtype_name(dtype)}, got {dtype_name(value.dtype)}")
    return value


def move_axis(xp: Namespace, x: Array, source: int, destination: int) -> Array:
    """Return x with one axis moved: moveaxis, in an operation for which torch.func.vmap has a rule."""
    if source % x.ndim == destination % x.ndim:
        return x
    order = list(range(x.ndim))
    axis = order.pop(source)
    order.insert(destination % x.ndim, axis)
    return xp.permute_dims(x, tuple(order))


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return what shapes broadcast to; ValueError if they do not. Lengths may be symbols of torch.compile."""
    result: list[int] = []
    for shape in shapes:
        result[:0] = [1] * (len(shape) - len(result))
        for at, length in enumerate(shape, len(result) - len(shape)):
            if result[at] == 1:
                result[at] = length
            elif length not in (1, result[at]):
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
    return tuple(result)


def along(axis: int, *bounds: int | None) -> tuple[Any, ...]:
    """Return the index that applies slice(*bounds) to one axis, counted from the front, and takes all of the others."""
    return (slice(None),) * axis + (slice(*bounds), ...)

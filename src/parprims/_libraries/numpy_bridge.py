"""PyTorch and JAX arrays on a CPU as NumPy arrays that share their memory, for routines of NumPy and SciPy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, dtype_name, is_tensor, library
from parprims._core.memo import Memo
from parprims._core.signature import torch_observed

_SHARED = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
"""The dtypes that NumPy and PyTorch both have."""

NOT_IN_NUMPY = {"torch": ", and NumPy reads tensors only outside of transformations and in the memory of a CPU"}
"""The end of a refusal for tensors for which `in_numpy` returns False."""


def in_numpy(xp: Namespace, arrays: tuple[Array, ...]) -> bool:
    """Return whether the arrays are NumPy's, or plain tensors of PyTorch that have values in the memory of a CPU.

    Return False for tensors while a transformation, a compiler or another observer records PyTorch's operations.
    Callers check whether a derivative may be requested (`carries_derivative`).
    """
    if library(xp) != "torch":
        return library(xp) == "numpy"
    import torch

    return not torch_observed()() and all(
        type(x) in (torch.Tensor, torch.nn.Parameter) and x.device.type == "cpu" for x in arrays
    )


def has_values(xp: Namespace, arrays: tuple[Array, ...]) -> bool:
    """Return whether the arrays are JAX's, with values in the memory of one CPU that NumPy can read."""
    if library(xp) != "jax":
        return False
    import jax

    return all(
        isinstance(x, jax.Array)
        and not isinstance(x, jax.core.Tracer)
        and type(x.sharding) is jax.sharding.SingleDeviceSharding
        and next(iter(x.devices())).platform == "cpu"
        and is_shared(x.dtype)
        for x in arrays
    )


def carries_derivative(xp: Namespace, arrays: tuple[Array, ...]) -> bool:
    """Return whether autograd may request a derivative by an array. It would not see operations of NumPy."""
    if library(xp) != "torch":
        return False
    import torch

    return torch.is_grad_enabled() and any(x.requires_grad for x in arrays)


def is_shared(dtype: Any) -> bool:
    """Return whether NumPy has this dtype of PyTorch or JAX."""
    return dtype_name(dtype) in _SHARED


def shares_memory(xp: Namespace, arrays: Sequence[Array]) -> bool:
    """Return whether NumPy can read these PyTorch or JAX arrays in their memory, and no derivative may be requested."""
    given = tuple(arrays)
    if library(xp) == "jax":
        return has_values(xp, given)
    shared = library(xp) == "torch" and in_numpy(xp, given) and not carries_derivative(xp, given)
    return shared and all(is_shared(x.dtype) for x in given)


def numpy_computes(xp: Namespace, arrays: Sequence[Array]) -> bool:
    """Return whether NumPy may compute a call: its arrays are NumPy's, or `shares_memory` holds."""
    return library(xp) == "numpy" or shares_memory(xp, arrays)


def numpy_orders(dtype: Any) -> bool:
    """Return whether NumPy sorts NaN of a dtype behind all numbers. It does not recognise NaN of bfloat16."""
    return dtype_name(dtype) != "bfloat16"


def numpy_namespace() -> Namespace:
    """Return the namespace of NumPy's arrays."""
    from array_api_compat import numpy  # slower to import than all of this library

    return numpy


def as_numpy(x: Array) -> np.ndarray[Any, Any]:
    """Return a NumPy array that shares the memory of x, for which `in_numpy` or `has_values` holds."""
    found: np.ndarray[Any, Any] = x.numpy(force=True) if is_tensor(x) else np.asarray(x)
    return found


try:  # the object that `numpy.errstate` makes anew and sets in every call
    from numpy._core.umath import _extobj_contextvar, _make_extobj

    _switch: tuple[Any, Any] | None = _extobj_contextvar, _make_extobj(all="ignore")
except ImportError:
    _switch = None


def quietly(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run``, a function of NumPy arrays, without warnings of infinities and NaN."""
    if _switch is None:
        quiet_run: Callable[..., Any] = np.errstate(all="ignore")(run)
        return quiet_run
    tell, take_back, silence = _switch[0].set, _switch[0].reset, _switch[1]

    def quiet(*arrays: Any) -> Any:
        told = tell(silence)
        try:
            return run(*arrays)
        finally:
            take_back(told)

    return quiet


def by_numpy(xp: Namespace, arrays: Sequence[Array], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arrays like these, given a function of NumPy arrays. NumPy must be able to read the arrays.

    ``function`` must return a new array. All decisions that do not depend on the values are made now, because they take
    longer than a call of a hundred elements.
    """
    if library(xp) == "numpy":
        return function
    read = reader(xp, arrays)
    if library(xp) == "torch":
        make = _torch_maker()
        return lambda *arrays: make(function(*map(read, arrays)))
    return lambda *arrays: to_jax((function(*map(read, arrays)),), arrays)[0]


def all_by_numpy(
    xp: Namespace, arrays: Sequence[Array], function: Callable[..., tuple[Any, ...]]
) -> Callable[..., tuple[Array, ...]]:
    """Return `by_numpy` for a function that returns several arrays."""
    if library(xp) == "numpy":
        return function
    read = reader(xp, arrays)
    if library(xp) == "torch":
        make = _torch_maker()
        return lambda *arrays: tuple(map(make, function(*map(read, arrays))))
    return lambda *arrays: to_jax(function(*map(read, arrays)), arrays)


def reader(xp: Namespace, arrays: Sequence[Array]) -> Callable[[Array], np.ndarray[Any, Any]]:
    """Return a faster `as_numpy` for arrays with the signatures of these."""
    if library(xp) != "torch":
        return np.asarray
    if any(x.requires_grad or x.is_conj() or x.is_neg() for x in arrays):
        return as_numpy
    import torch

    plainly: Callable[[Array], np.ndarray[Any, Any]] = torch.Tensor.numpy
    return plainly


def _torch_maker() -> Callable[[np.ndarray[Any, Any]], Array]:
    import torch

    found: Callable[[np.ndarray[Any, Any]], Array] = torch.from_numpy
    return found


class _Writable:
    """Presents the memory of an array to NumPy as writeable."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.x = x  # keeps the memory alive
        self.__array_interface__ = {**x.__array_interface__, "data": (x.ctypes.data, False)}


def searchable(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array for NumPy's argmax and argmin. They copy read-only arrays, such as those of JAX."""
    if x.flags.writeable or x.nbytes < _COPIED or x.dtype.kind not in "iuf" or not x.dtype.isbuiltin:
        return x
    return np.asarray(_Writable(x))


_COPIED = 1 << 17
"""The most bytes for which a copy takes less time than handing over the memory."""


_OFTEN = 8
"""Conversions of results of equal shapes before a program is compiled, which takes a third of the time or less."""

_handed: Memo[int] = Memo()
"""The number of conversions so far, by device and shapes of the results; counted up to `_OFTEN`."""

_takers: Memo[Callable[..., tuple[Array, ...]]] = Memo()
"""Programs that convert results, by device and shapes that were converted `_OFTEN` times."""


@functools.cache
def _taker(device: Any) -> Callable[..., tuple[Array, ...]]:
    """Return a function that converts arrays by a program; with a device, it commits the arrays to the device."""
    import jax

    place = {} if device is None else {"out_shardings": jax.sharding.SingleDeviceSharding(device)}
    mesh, put, identity = jax.sharding.get_abstract_mesh, jax.device_put, jax.jit(lambda *ys: ys, **place)

    def take(*ys: np.ndarray[Any, Any]) -> tuple[Array, ...]:
        found: tuple[Array, ...] = identity(*ys) if mesh().empty else put(ys, device)  # a mesh would place the program
        return found

    return take


def to_jax(ys: tuple[Any, ...], arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Return NumPy arrays as JAX arrays on the device of a call's arrays. No other object may use their memory."""
    # The result is committed to a device if an array of the call is, as with JAX's own operations.
    device = None
    for x in arrays:
        if x.committed:
            (device,) = x.devices()
            break
    shapes = device, *[(y.shape, y.dtype) for y in ys]
    take = _takers.get(shapes)
    return _put(ys, shapes) if take is None else take(*ys)


def _put(ys: tuple[Any, ...], shapes: tuple[Any, ...]) -> tuple[Array, ...]:
    """Return results as JAX arrays. A program converts them if they are short and their shapes are frequent."""
    import jax

    device = shapes[0]
    if sum([y.nbytes for y in ys]) <= _COPIED and jax.sharding.get_abstract_mesh().empty:
        seen = _handed.keep(shapes, (_handed.get(shapes) or 0) + 1)
        if seen > _OFTEN:
            return _takers.keep(shapes, _taker(device))(*ys)
        if device is None:
            return tuple([jax.numpy.asarray(y) for y in ys])
    found: tuple[Array, ...] = jax.device_put(ys, device)
    return found


def all_returned(xp: Namespace, ys: Sequence[Any], arrays: tuple[Array, ...] = ()) -> tuple[Array, ...]:
    """Return `returned` of several arrays. JAX converts them together."""
    if library(xp) == "jax":
        return to_jax(tuple(ys), arrays)
    return tuple([returned(xp, y) for y in ys])


def returned(xp: Namespace, y: Any, arrays: tuple[Array, ...] = ()) -> Array:
    """Return a NumPy array as an array of the library, on JAX on the device of ``arrays``. It takes over the memory."""
    if library(xp) == "jax":
        return to_jax((y,), arrays)[0]
    if library(xp) != "torch":
        return y
    import torch

    return torch.from_numpy(y if min(y.strides, default=0) >= 0 else y.copy())

"""Stand-ins for arrays in functions that call NumPy or PyTorch: both let their arguments override a function."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import Array, Namespace, dtype_name, library
from parprims._operators.foreign.composed import named
from parprims._operators.foreign.names import Dtype, number_of


class StandIn:
    """An array of any library, as an argument that overrides the functions of NumPy and PyTorch."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, xp: Namespace, array: Array) -> None:
        self._xp, self.array = xp, array

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # a protocol through which another library would read the array
            raise AttributeError(name)
        if name == "dtype":
            return Dtype(dtype_name(self.array.dtype))
        found = getattr(self.array, name, None)
        if found is None:  # a method that only arrays of another library have
            return functools.partial(_function(self._xp, name, "torch"), self)
        return _on_arrays(self._xp, found) if callable(found) else _stood_for(self._xp, found)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _Namespace(self._xp)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        return _function(self._xp, ufunc.__name__, "numpy")(*inputs, **options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _function(self._xp, func.__name__, "numpy")(*args, **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next(x for x in (*args, *(kwargs or {}).values()) if isinstance(x, StandIn))
        return _function(first._xp, func.__name__, "torch")(*args, **(kwargs or {}))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a function of NumPy asks for the values of an array")

    def __bool__(self) -> bool:
        return bool(self.array)

    def __getitem__(self, index: Any) -> Any:
        return StandIn(self._xp, self.array[index])


def _in_place(self: StandIn, _: Any) -> Any:
    """Refuse to change an array. Arrays of JAX never change: for them Python uses the binary operator."""
    if array_api_compat.is_jax_namespace(self._xp):
        return NotImplemented
    raise TypeError("the function changes its argument in place")


def _add_operators() -> None:
    def method(apply: Callable[..., Any], reflected: bool) -> Callable[..., Any]:
        def operate(self: StandIn, *others: Any) -> Any:
            operands = (*others, self) if reflected else (self, *others)
            return _on_arrays(self._xp, apply)(*operands)

        return operate

    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
        apply = getattr(operator, f"__{name}__")
        setattr(StandIn, f"__{name}__", method(apply, reflected=False))
        setattr(StandIn, f"__r{name}__", method(apply, reflected=True))
        setattr(StandIn, f"__i{name}__", _in_place)
    for name in "eq ne lt le gt ge neg pos invert abs".split():
        setattr(StandIn, f"__{name}__", method(getattr(operator, f"__{name}__"), reflected=False))


_add_operators()


class _Namespace:
    """The namespace of the stand-ins' arrays, as functions of stand-ins."""

    def __init__(self, xp: Namespace) -> None:
        self._xp = xp

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._xp, name)
        return _on_arrays(self._xp, found) if callable(found) and not isinstance(found, type) else found


def _function(xp: Namespace, name: str, home: str) -> Callable[..., Any]:
    """Return the library's function for a name of NumPy or PyTorch, as a function of stand-ins."""
    return _on_arrays(xp, named(xp, name, home))


def _on_arrays(xp: Namespace, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of stand-ins that calls a function of arrays."""

    def run(*args: Any, **kwargs: Any) -> Any:
        arrays = [_array_of(xp, x) for x in args]
        return _stood_for(xp, function(*arrays, **{name: _array_of(xp, x) for name, x in kwargs.items()}))

    return run


def _array_of(xp: Namespace, x: Any) -> Any:
    """Return the array of a stand-in, and the library's dtype for a dtype of another library; all else unchanged."""
    if isinstance(x, StandIn):
        return x.array
    if isinstance(x, tuple | list):
        return type(x)(_array_of(xp, part) for part in x)
    if isinstance(x, Dtype | np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)) or _is_torch_dtype(x):
        return getattr(xp, dtype_name(x))
    number = number_of(x)
    if isinstance(number, np.generic) and library(xp) == "other":  # the standard has no numbers of NumPy
        return xp.asarray(number.item(), dtype=getattr(xp, dtype_name(number.dtype)))
    return number


def _is_torch_dtype(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.dtype)


def _stood_for(xp: Namespace, result: Any) -> Any:
    """Return stand-ins for the arrays of a result."""
    if isinstance(result, tuple | list):
        return tuple(_stood_for(xp, part) for part in result)
    is_array = array_api_compat.is_array_api_obj(result) or isinstance(result, np.generic)
    return StandIn(xp, result) if is_array else result

"""Elementwise functions by the names that NumPy and PyTorch give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Namespace


class Untranslatable(Exception):
    """A function has no translation into elementwise functions of the standard; the message says why."""


NUMPY_NAMES = {
    "true_divide": "divide",
    "div": "divide",
    "sub": "subtract",
    "mul": "multiply",
    "neg": "negative",
    "absolute": "abs",
    "power": "pow",
    "conjugate": "conj",
    "invert": "bitwise_invert",
    "bitwise_not": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "rint": "round",
    "clamp": "clip",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
"""The array API standard's names of functions, by their other names in NumPy or PyTorch."""


def _either(name: str) -> Callable[..., Any]:
    """Return PyTorch's max or min of two arrays. With a number as second argument, PyTorch reduces an axis."""

    def of_two(xp: Namespace, x: Any, y: Any) -> Any:
        if not hasattr(y, "dtype"):
            raise Untranslatable(f"it calls {name[:3]} of an axis, which is not elementwise")
        return getattr(xp, name)(x, y)

    return of_two


def fmod(xp: Namespace, x: Any, y: Any) -> Any:
    """Return the remainder of a division rounded toward zero, from the remainder of a division rounded down."""
    if xp.isdtype((x if hasattr(x, "dtype") else y).dtype, "integral"):
        rest = xp.remainder(x, y)
        return xp.where((rest != 0) & ((x < 0) != (y < 0)), rest - y, rest)
    rest = xp.remainder(abs(x), abs(y))
    return xp.where(x < 0, -rest, rest)


def _not_nan(name: str) -> Callable[..., Any]:
    def chosen(xp: Namespace, x: Any, y: Any) -> Any:
        return xp.where(x != x, y, xp.where(y != y, x, getattr(xp, name)(x, y)))

    return chosen


COMPOSED: dict[str, Callable[..., Any]] = {
    "fmax": _not_nan("maximum"),
    "fmin": _not_nan("minimum"),
    "fmod": fmod,
    "max": _either("maximum"),
    "min": _either("minimum"),
    "relu": lambda xp, x: xp.maximum(x, xp.zeros_like(x)),
    "rsqrt": lambda xp, x: 1.0 / xp.sqrt(x),
    "sigmoid": lambda xp, x: 1.0 / (1.0 + xp.exp(-x)),
    "silu": lambda xp, x: x / (1.0 + xp.exp(-x)),
}
"""Elementwise functions of NumPy and PyTorch that the standard lacks, as functions of a namespace and the operands."""

"""The names of elementwise functions, dtypes and numbers in functions that any library may have written."""

from __future__ import annotations

from typing import Any

import numpy as np

from parprims._core.arrays import dtype_name


class Untranslatable(Exception):
    """A function has no translation into elementwise functions of the standard; the message says why."""


class Dtype:
    """A dtype in a function that any library may have written: a name, equal to any dtype of that name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return (other.name if isinstance(other, Dtype) else dtype_name(other)) == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return self.name

    @property
    def dtype(self) -> Any:
        """The dtype as NumPy has it, so that NumPy's own functions take it."""
        return np.dtype(self.name)


OTHER_NAMES = {
    **dict.fromkeys(("true_divide", "div"), "divide"),
    **dict.fromkeys(("absolute", "fabs"), "abs"),
    **dict.fromkeys(("conjugate", "conj_physical"), "conj"),
    **dict.fromkeys(("invert", "bitwise_not"), "bitwise_invert"),
    **dict.fromkeys(("left_shift", "lshift"), "bitwise_left_shift"),
    **dict.fromkeys(("right_shift", "rshift"), "bitwise_right_shift"),
    **dict.fromkeys(("rint", "around"), "round"),
    **dict.fromkeys(("radians", "radian"), "deg2rad"),
    "sub": "subtract",
    "mul": "multiply",
    "neg": "negative",
    "mod": "remainder",
    "floordiv": "floor_divide",
    "power": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "clamp": "clip",
    "degrees": "rad2deg",
    "fix": "trunc",
    "sgn": "sign",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "expit": "sigmoid",
    "log_expit": "log_sigmoid",
    "logsigmoid": "log_sigmoid",
    "gammaln": "lgamma",
    "psi": "digamma",
    "_threshold": "threshold",
}
"""The names of functions here, by their other names in NumPy, PyTorch or SciPy."""

SPECIAL = ("cbrt", "erf", "erfc", "gamma", "lgamma", "nextafter")
"""Functions that the standard lacks, but the mathematical libraries of the languages of kernels have."""


def standard_name(name: str) -> str:
    """Return the name of a function here, given its name in NumPy, PyTorch or SciPy."""
    name = name.removeprefix("special_")
    if name.startswith("__"):  # PyTorch's operators
        name = name.strip("_")
    return OTHER_NAMES.get(name, name)


def number_of(x: Any) -> Any:
    """Return the number of an array without axes of NumPy, CuPy or PyTorch, and any other object unchanged.

    The number has the dtype of the array; PyTorch gives it that of the arrays beside it. JAX's own numbers stay, for
    JAX traces the functions that make them.
    """
    library = type(x).__module__.partition(".")[0]
    if library not in ("numpy", "cupy", "torch") or getattr(x, "shape", None) != ():
        return x
    if library == "torch":
        return x.item()
    return (x.get() if library == "cupy" else x)[()]

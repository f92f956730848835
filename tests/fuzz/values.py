"""Results in higher precision, and the bounds of their errors."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import parprims
from tests.support.contract import numpy_dtype

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64", "float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
REAL = (*INTEGERS, *FLOATS)
NUMBERS = (*REAL, *COMPLEX)

# Name: (digits of the significand, largest exponent, smallest positive number).
FORMATS = {
    "float16": (11, 15, 2.0**-24),
    "bfloat16": (8, 127, 2.0**-133),
    "float32": (24, 127, 2.0**-149),
    "float64": (53, 1023, 5e-324),
    "complex64": (24, 127, 2.0**-149),
    "complex128": (53, 1023, 5e-324),
}


@dataclasses.dataclass
class Expected:
    """What an array of a result is to be: values within bounds, but where nothing is known; bits where exact."""

    values: np.ndarray
    dtype: str | None
    bound: Any = 0.0
    unknown: Any = False
    bits: np.ndarray | None = None


@dataclasses.dataclass
class Call:
    """One call, what it must return, and by which names an error is to call what is wrong with it."""

    function: str
    args: list[Any]
    options: dict[str, Any]
    check: Callable[[Any], str | None]
    wrong: set[str] = dataclasses.field(default_factory=set)
    hostile: list[str] = dataclasses.field(default_factory=list)
    may_refuse: bool = False

    def text(self) -> str:
        """Return the call in a line."""
        words = [described(x) for x in self.args] + [f"{k}={described(v)}" for k, v in self.options.items()]
        return f"{self.function}({', '.join(words)})" + (f"  [{'; '.join(self.hostile)}]" if self.hostile else "")


def described(value: Any) -> str:
    """Return a few words for an argument."""
    if isinstance(value, tuple):
        return f"({', '.join(map(described, value))},)"
    try:
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    except RuntimeError:
        shape = dtype = None
    if isinstance(shape, tuple) and dtype is not None and not isinstance(value, np.generic):
        return f"{type(value).__name__}{tuple(shape)}:{dtype}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    try:
        text = repr(value)
    except Exception:
        text = "?"
    return text if len(text) < 60 else type(value).__name__


# ---- Results in higher precision --------------------------------------------------------------------------------


def kind(dtype: str) -> str:
    """Return bool, int, uint, float or complex."""
    return "float" if dtype == "bfloat16" else dtype.rstrip("0123456789")


def wide(x: np.ndarray) -> np.ndarray:
    """Return numbers in higher precision, integers as Python's."""
    name = kind(x.dtype.name)
    if name in ("int", "uint"):
        return x.astype(object)
    return x.astype({"float": np.longdouble, "complex": np.clongdouble}.get(name, x.dtype))


def wrapped(x: np.ndarray, dtype: str) -> np.ndarray:
    """Return exact numbers in a dtype: integers wrap around."""
    if kind(dtype) in ("int", "uint"):
        bits = int(dtype.lstrip("uint"))
        x = np.asarray(x, dtype=object) % (1 << bits)
        return np.asarray(x, dtype=object).astype(f"uint{bits}").astype(dtype)
    return x


def eps(dtype: str) -> float:
    """Return the distance from 1 to the next number."""
    return 2.0 ** (1 - FORMATS[dtype][0]) if dtype in FORMATS else 0.0


def working_eps(dtype: str) -> float:
    """Return the eps of what a dtype is computed in."""
    return eps("float32" if dtype in ("float16", "bfloat16") else dtype)


def tiny(dtype: str) -> float:
    """Return a bound of what a library loses that takes subnormal numbers for zeros."""
    return 2.0 ** (1 - FORMATS[dtype][1]) if dtype in FORMATS else 0.0


def largest(dtype: str) -> float:
    """Return half the largest number."""
    return 2.0 ** FORMATS[dtype][1]


def result_of_sum(dtype: str) -> str:
    """Return the dtype of a sum by default."""
    if dtype == "bool":
        return "int64"
    if kind(dtype) == "uint":
        return "uint64"
    return "int64" if kind(dtype) == "int" else dtype


Step = tuple[np.ndarray, Any, Any]
"""Values, bounds of their errors, and where nothing is known."""


def folded(op: str, elements: list[np.ndarray], dtype: str) -> list[Step]:
    """Return what the elements before and with each combine to, in a dtype."""
    if op in ("add", "multiply"):
        return (sums if op == "add" else products)(elements, dtype)
    steps: list[Step] = []
    for x in elements:
        if not steps:
            steps.append((x, 0.0, False))
            continue
        y = steps[-1][0]
        with np.errstate(all="ignore"):
            if op == "logaddexp":
                value = np.logaddexp(wide(y), wide(x))
                far = np.where(np.isfinite(value), abs(value), 0) + 4
                bound = steps[-1][1] + far * 16 * working_eps(dtype) + far * eps(dtype)
                steps.append((value, bound, False))
                continue
            steps.append((np.asarray(getattr(np, op)(y, x)), 0.0, False))
    return steps


def sums(elements: list[np.ndarray], dtype: str) -> list[Step]:
    total: Any = 0
    size: Any = 0.0
    steps = []
    for n, one in enumerate(elements, 2):
        x = wide(one)
        with np.errstate(all="ignore"):
            total = total + x
            if dtype not in FORMATS:
                steps.append((wrapped(total, dtype), 0.0, False))
                continue
            size = size + np.where(np.isfinite(x), abs(x), 0)
            bound = (eps(dtype) * abs(total) if dtype in ("float16", "bfloat16") else 0) + 0.0
            bound = np.where(np.isfinite(bound), bound, 0) + 2 * n * working_eps(dtype) * size + n * tiny(dtype)
            steps.append((np.asarray(total), bound, np.asarray(size > largest(dtype) / 2)))
    return steps


def products(elements: list[np.ndarray], dtype: str) -> list[Step]:
    total: Any = 1
    high: Any = 0.0
    low: Any = 0.0
    strange: Any = False
    steps = []
    for n, one in enumerate(elements, 2):
        x = wide(one)
        with np.errstate(all="ignore"):
            total = total * x
            if dtype not in FORMATS:
                steps.append((wrapped(total, dtype), 0.0, False))
                continue
            logs = np.where((x == 0) | ~np.isfinite(x), 0, np.log2(abs(x).astype(np.float64)))
            high, low = high + np.maximum(logs, 0), low + np.minimum(logs, 0)
            if kind(dtype) == "complex":
                strange = strange | ~np.isfinite(x)
            unknown = strange | (high > FORMATS[dtype][1] - 2) | (low < 4 - FORMATS[dtype][1])
            scale = 4 if kind(dtype) == "complex" else 1
            bound = np.where(np.isfinite(total), abs(total), 0) * (scale * 2 * n * working_eps(dtype) + eps(dtype))
            steps.append((np.asarray(total), bound + tiny(dtype), unknown))
    return steps


IDENTITIES: dict[str, Callable[[str], Any]] = {
    "add": lambda _: 0,
    "multiply": lambda _: 1,
    "maximum": lambda dtype: lowest(dtype),
    "minimum": lambda dtype: highest(dtype),
    "logical_and": lambda _: True,
    "logical_or": lambda _: False,
    "bitwise_and": lambda dtype: True if dtype == "bool" else -1 if kind(dtype) == "int" else highest(dtype),
    "bitwise_or": lambda _: 0,
    "bitwise_xor": lambda _: 0,
    "logaddexp": lambda _: -math.inf,
}


def lowest(dtype: str) -> Any:
    return int(np.iinfo(dtype).min) if kind(dtype) in ("int", "uint") else -math.inf


def highest(dtype: str) -> Any:
    return int(np.iinfo(dtype).max) if kind(dtype) in ("int", "uint") else math.inf


def single(op: str, dtype: str, shape: tuple[int, ...]) -> Step:
    """Return the identity as a step."""
    return np.full(shape, IDENTITIES[op](dtype), dtype=numpy_dtype(dtype)), 0.0, False


def stacked(steps: list[Step], axis: int, shape: tuple[int, ...], dtype: str) -> Expected:
    """Return steps side by side along an axis of a shape."""
    if not steps:
        return Expected(np.zeros(shape, dtype=numpy_dtype(dtype)), dtype)
    parts = [np.broadcast_arrays(*step) for step in steps]
    values, bounds, unknown = (np.stack(ones, axis=axis) for ones in zip(*parts, strict=True))
    return Expected(values, dtype, bounds, unknown)


def same_memory(one: Any, other: Any) -> bool:
    """Return whether two arrays of NumPy or PyTorch, or of a library that wraps NumPy, may share memory."""
    one, other = (getattr(x, "_array", x) for x in (one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.may_share_memory(one, other))
    if type(one).__module__.startswith("torch") and type(other).__module__.startswith("torch"):
        here, there = one.untyped_storage(), other.untyped_storage()
        return here.nbytes() > 0 and here.data_ptr() == there.data_ptr()
    if type(one).__module__.startswith("cupy") and type(other).__module__.startswith("cupy"):
        return bool(one.nbytes and one.data.mem.ptr == other.data.mem.ptr)
    return False


def differs(backend: Any, got: Any, expected: Expected) -> str | None:
    """Return what is wrong with an array of a result, or None."""
    try:
        xp = parprims._core.arrays.namespace(result=got)
    except TypeError as error:
        return f"result is no array: {error}"
    if xp is not backend.xp or isinstance(got, np.generic):
        return f"result is a {type(got).__name__}"
    x = backend.to_numpy(got)
    if x.shape != np.shape(expected.values):
        return f"shape is {x.shape}, not {np.shape(expected.values)}"
    if expected.dtype is not None and x.dtype.name != expected.dtype:
        return f"dtype is {x.dtype.name}, not {expected.dtype}"
    if not x.dtype.isnative:
        return "dtype is not of native byte order"
    if expected.bits is not None and x.tobytes() != expected.bits.tobytes():
        return f"bits differ: {x.tolist()} instead of {expected.bits.tolist()}"
    if x.dtype.kind in "biu":
        wrong = x != expected.values
    else:
        to = np.clongdouble if x.dtype.kind == "c" else np.longdouble
        with np.errstate(all="ignore"):
            wanted = np.asarray(expected.values).astype(to)
            wrong = unlike(x.real.astype(np.longdouble), wanted.real, expected.bound)
            if x.dtype.kind == "c":
                wrong = wrong | unlike(x.imag.astype(np.longdouble), wanted.imag, expected.bound)
    wrong = np.asarray(wrong & ~np.broadcast_to(np.asarray(expected.unknown, dtype=bool), x.shape))
    if not wrong.any():
        return None
    at = tuple(int(i[0]) for i in np.nonzero(wrong)) if x.ndim else ()
    return f"value {x[at]!r} instead of {np.asarray(expected.values)[at]!r}"


def unlike(x: np.ndarray, wanted: np.ndarray, bound: Any) -> np.ndarray:
    """Return where real numbers differ by more than a bound."""
    return ~((x == wanted) | (np.isnan(x) & np.isnan(wanted)) | (abs(x - wanted) <= bound))

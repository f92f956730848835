"""Random calls of every public function, valid and hostile: the result is right, or an error names the argument.

    python -m tests.fuzz --calls 20000 --seed 1            # what nox -s fuzz runs
    python -m tests.fuzz --backend numpy --seed 1 --call 1234   # one call again, as a violation's line says

A call is drawn from (seed, backend, number) alone. A valid one is compared with a loop in higher precision, or in exact
integers, that shares no code with the library. A hostile one has an argument or two replaced by what they must not be.
Of every call is asked:

- that it returns what is right, as arrays of its library, or raises ValueError, TypeError, IndexError or MethodRefused
  with a message that names an argument replaced;
- that inputs keep their bytes, results share no memory with them, and nothing warns;
- that `parprims.methods` raises what the call raises, and that what it promises serves.
"""

import argparse
import collections
import contextlib
import dataclasses
import importlib
import inspect
import math
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import parprims
from parprims._dispatch import primitives
from tests import conftest
from tests.contract import VIEWS, numpy_dtype

ERRORS = (ValueError, TypeError, IndexError, parprims.MethodRefused)
FUNCTIONS: tuple[str, ...] = (
    "all", "any", "argsort", "check_associative", "cumulative_prod", "cumulative_sum", "linear_recurrence",
    "map_reduce", "matmul", "max", "min", "prod", "reduce", "scan", "solve_tridiagonal", "sort", "sort_by_key", "sum",
    "vecdot",
)  # fmt: skip
WEIGHTS = {"numpy": 10, "array-api-strict": 2, "jax": 1, "torch": 4}
"""How often a backend is drawn; others as often as PyTorch."""

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


def result_of_sum(backend: str, dtype: str) -> str:
    """Return the dtype of a sum by default."""
    if dtype == "bool":
        return "int64"
    if kind(dtype) == "uint":
        return "int64" if backend.startswith("torch") else "uint64"
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
        xp = parprims._arrays.namespace(result=got)
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


# ---- Own operators ----------------------------------------------------------------------------------------------


def keep_first(earlier: Any, later: Any) -> Any:  # noqa: ARG001
    return earlier


def keep_last(earlier: Any, later: Any) -> Any:  # noqa: ARG001
    return later


def largest_of(earlier: Any, later: Any) -> Any:
    from array_api_compat import array_namespace

    return array_namespace(earlier).where(later > earlier, later, earlier)


def plus(earlier: Any, later: Any) -> Any:
    return earlier + later


GOOD_OPERATORS = {keep_first: None, keep_last: None, largest_of: "maximum", plus: "add"}


def returns_text(earlier: Any, later: Any) -> Any:  # noqa: ARG001
    return "text"


def returns_none(earlier: Any, later: Any) -> Any:  # noqa: ARG001
    return None


def returns_float(earlier: Any, later: Any) -> Any:  # noqa: ARG001
    return 1.5


def returns_list(earlier: Any, later: Any) -> Any:  # noqa: ARG001
    return [earlier]


BAD_OPERATORS = (returns_text, returns_none, returns_float, returns_list)


def minus(earlier: Any, later: Any) -> Any:
    return earlier - later


def square(x: Any) -> Any:
    return x * x


def product(x: Any, y: Any) -> Any:
    return x * y


def itself(x: Any) -> Any:
    return x


# ---- What is drawn ----------------------------------------------------------------------------------------------


class Plain(np.ndarray):
    """A subclass of NumPy's arrays that nobody here knows."""


class Opaque:
    """An object whose repr is long."""

    def __repr__(self) -> str:
        return "Opaque(" + "x" * 500 + ")"


def dask_array() -> Any:
    """Return an array whose library chunks arrays, or what looks like one to the door."""
    kind = type("Array", (), {"shape": (3,), "ndim": 1, "dtype": np.dtype("float64")})
    kind.__module__ = "dask.array.core"
    return kind()


class Draw:
    """All that a call is made of, drawn for one backend."""

    def __init__(self, backend: Any, rng: np.random.Generator, folder: str) -> None:
        self.backend, self.rng, self.folder = backend, rng, folder
        self.few = backend.name.startswith("jax")
        self.cast = self.sub_normal = not self.few

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def one(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def dtype(self, *names: str) -> str:
        """Return one of the dtypes that the backend has, wide unsigned ones of PyTorch seldom."""
        if self.few:
            few = ("bool", "int32", "uint8", "float32", "bfloat16", "complex64")
            names = tuple(name for name in names if name in few) or names
        own = [name for name in names if hasattr(self.backend.xp, name) or name in ("bool", "bfloat16")]
        if self.backend.name in ("array-api-strict", "cupy"):
            own = [name for name in own if name not in ("float16", "bfloat16") or self.backend.name == "cupy"]
            own = [name for name in own if name != "bfloat16"] or own
        usual = [name for name in own if self.backend.supports(name)]
        return self.one(usual if usual and self.chance(0.95) else own)

    def shape(self, least: int = 0, most: int = 3) -> tuple[int, ...]:
        """Return a shape of so many dimensions."""
        if self.few:
            return self.one([shape for shape in ((), (1,), (0,), (5,), (3, 4)) if least <= len(shape) <= most])
        ndim = int(self.rng.integers(least, most + 1))
        if ndim == 1 and self.chance(0.15):
            return (int(self.rng.integers(1, 90)),)
        return tuple(int(n) for n in self.rng.choice([0, 1, 1, 2, 3, 4, 5, 7, 8, 9], ndim))

    def values(self, shape: tuple[int, ...], dtype: str, *, tame: bool = False) -> np.ndarray:
        """Return numbers, strange ones among them unless tame."""
        rng = self.rng
        # PyTorch adds complex numbers as a + 1 b, which makes NaN of their infinities.
        tame = tame or (kind(dtype) == "complex" and self.backend.name.startswith("torch"))
        if dtype == "bool":
            return rng.integers(0, 2, shape).astype(bool)
        if kind(dtype) in ("int", "uint"):
            info = np.iinfo(dtype)
            x = rng.integers(max(info.min, -9), min(info.max, 9) + 1, shape).astype(dtype)
            if not tame and self.chance(0.3):
                strange = np.array([info.min, info.max, info.max - 1, info.min + 1, 0], dtype=dtype)
                x = np.where(rng.random(shape) < 0.3, strange[rng.integers(0, len(strange), shape)], x)
            return np.asarray(x)
        if kind(dtype) == "complex":
            x = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        else:
            x = rng.standard_normal(shape)
        with np.errstate(all="ignore"):
            x = np.asarray(x).astype(numpy_dtype(dtype))
            if not tame and self.chance(0.4):
                _, exponent, smallest = FORMATS[dtype]
                strange = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 2.0 ** (exponent - 1)]
                if self.sub_normal:
                    strange += [smallest, -3 * smallest]
                chosen = rng.choice(len(strange), int(rng.integers(1, 4)))
                picks = np.array([strange[i] for i in chosen]).astype(numpy_dtype(dtype))
                x = np.where(rng.random(shape) < 0.3, picks[rng.integers(0, len(picks), shape)], x)
                if kind(dtype) == "float" and x.ndim and self.chance(0.5):
                    x = strange_nans(np.ascontiguousarray(x), rng)
        return np.asarray(x)

    def array(self, x: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return numbers as an array of the library, in some layout, and as NumPy's array."""
        if self.few or x.ndim == 0 or self.chance(0.4):
            return self.plain(x), x
        if self.backend.name in ("numpy", "emulated") and self.chance(0.6):
            return self.numpy_view(x)
        view = self.one(VIEWS)
        if self.chance(0.2):
            x = np.broadcast_to(x[:1], x.shape)
            return self.backend.xp.broadcast_to(self.plain(x[:1].copy()), x.shape), x
        if x.size and x.dtype.name != "bfloat16" and (x.dtype == bool or self.backend.supports(x.dtype.name)):
            return view(self.backend, x), x
        return self.plain(x), x

    def plain(self, x: np.ndarray) -> Any:
        return self.backend.asarray(np.array(x, order="C"))

    def numpy_view(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return numbers in a layout that only NumPy has."""
        ways = ("big", "memmap", "overlapping", "frozen", "negative", "unaligned", "field")
        way = self.one(ways[:5] if self.backend.name == "emulated" else ways)  # no GPU has the others
        if way == "big" and x.dtype.name != "bfloat16":
            return x.astype(x.dtype.newbyteorder(">")), x
        if way == "unaligned":
            raw = np.zeros(x.nbytes + 1, dtype=np.uint8)
            y = raw[1:].view(x.dtype).reshape(x.shape)
            y[...] = x
            return y, x
        if way == "memmap" and x.size:
            with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
                y = np.memmap(file, dtype=x.dtype, mode="w+", shape=x.shape)
            y[...] = x
            return y, x
        if way == "field":
            y = np.zeros(x.shape, dtype=[("flag", "i1"), ("x", x.dtype)])
            y["x"] = x
            return y["x"], x
        if way == "overlapping" and x.ndim == 1 and x.size > 3:
            rows = np.lib.stride_tricks.sliding_window_view(np.array(x), 1 + x.size // 2)
            y = rows[: rows.shape[0], 0]
            full = np.lib.stride_tricks.as_strided(np.array(x), x.shape, (0,)) if self.chance(0.3) else None
            return (full, np.array(full)) if full is not None else (y, np.array(y)) if y.shape == x.shape else (x, x)
        if way == "negative":
            return np.array(x[..., ::-1])[..., ::-1], x
        y = np.array(x)
        y.flags.writeable = False
        return y, x

    def flag(self, share: float = 0.3) -> Any:
        value = self.chance(share)
        return np.bool_(value) if self.chance(0.1) else value

    def axis(self, ndim: int) -> int:
        axis = int(self.rng.integers(-ndim, ndim))
        return np.int64(axis) if self.chance(0.1) else axis  # type: ignore[return-value]

    def asked(self, dtype: str) -> Any:
        """Return a dtype as the library has it, or by name."""
        if self.chance(0.3):
            return dtype
        if dtype in ("bool", "bfloat16") or self.chance(0.5):
            return self.plain(np.zeros((), dtype=numpy_dtype(dtype))).dtype
        return self.backend.dtype(dtype)


def strange_nans(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return floats with NaN of other signs and payloads where there are NaN."""
    words = x.view(f"u{x.dtype.itemsize}")
    payload = rng.integers(1, 60, x.shape).astype(words.dtype)
    sign = rng.integers(0, 2, x.shape).astype(words.dtype) << (8 * x.dtype.itemsize - 1)
    return np.where(np.isnan(x), words | payload | sign, words).astype(words.dtype).view(x.dtype)


# ---- Valid calls ------------------------------------------------------------------------------------------------


def draw_reduce(d: Draw, name: str) -> Call:
    ops = {
        "sum": "add",
        "prod": "multiply",
        "max": "maximum",
        "min": "minimum",
        "any": "logical_or",
        "all": "logical_and",
    }
    fixed = ops.get(name)
    own = None
    if fixed is None and d.chance(0.25):
        own = d.one(tuple(GOOD_OPERATORS))
    op = fixed or GOOD_OPERATORS.get(own) or (None if own else d.one(tuple(IDENTITIES)))
    x = d.values(d.shape(), d.dtype(*dtypes_of(name if fixed else own.__name__ if own else op)))
    array, x = d.array(x)
    axes: Any = None
    if x.ndim and d.chance(0.7):
        axes = d.axis(x.ndim)
        if d.chance(0.3):
            axes = tuple(int(a) for a in d.rng.permutation(x.ndim)[: int(d.rng.integers(0, x.ndim + 1))])
    options: dict[str, Any] = {}
    if axes is not None or d.chance(0.5):
        options["axis"] = axes
    keepdims = d.flag()
    if keepdims or d.chance(0.3):
        options["keepdims"] = keepdims
    taken = range(x.ndim) if axes is None else axes if isinstance(axes, tuple) else (int(axes),)
    taken = sorted(a % x.ndim for a in taken)
    kept = [a for a in range(x.ndim) if a not in taken]
    if name in ("any", "all"):
        x = x != 0
    dtype = x.dtype.name
    if own is None and op in ("add", "multiply"):
        dtype = result_of_sum(d.backend.name, dtype)
        if d.chance(0.2) and kind(x.dtype.name) != "bool":
            dtype = d.dtype(*wider(x.dtype.name))
            options["dtype"] = d.asked(dtype)
    with np.errstate(all="ignore"):
        y = x.astype(numpy_dtype(dtype))
    n = math.prod(x.shape[a] for a in taken)
    shape = tuple(x.shape[a] for a in kept)
    elements = list(np.moveaxis(np.transpose(y, (*kept, *taken)).reshape((*shape, n)), -1, 0))
    no_identity = own is not None and n == 0
    if name == "reduce" and (no_identity or d.chance(0.2)):
        options["initial"], start = draw_initial(d, () if keepdims else shape, dtype)
        elements = [np.broadcast_to(start, shape), *elements]
    steps = fold_own(own, op, elements, dtype)
    step = steps[-1] if steps else None
    if step is None and own is None:
        step = single(op, dtype, shape)
    wrong: set[str] = set()
    if step is None or (n == 0 and name in ("max", "min")):
        wrong = {"x"}
        step = (np.zeros(shape), 0.0, False)
    expected = Expected(np.asarray(step[0]), dtype, step[1], step[2])
    if keepdims:
        long = tuple(1 if a in taken else m for a, m in enumerate(x.shape))
        parts = np.broadcast_arrays(expected.values, expected.bound, expected.unknown)
        expected.values, expected.bound, expected.unknown = (one.reshape(long) for one in parts)
    args: list[Any] = [array]
    if not fixed:
        args.append(own or op)
        if own is None and op == "add" and d.chance(0.5):
            args.pop()
    return Call(name, args, options, lambda got: differs(d.backend, got, expected), wrong)


def fold_own(own: Any, op: str | None, elements: list[np.ndarray], dtype: str) -> list[Step]:
    """Return the steps of an operator, an own one perhaps."""
    if own is keep_first:
        return [(elements[0], 0.0, False) for _ in elements]
    if own is keep_last:
        return [(one, 0.0, False) for one in elements]
    if own is largest_of:  # a NaN is never larger, nor is anything larger than one
        steps: list[Step] = []
        for x in elements:
            with np.errstate(all="ignore"):
                if steps:
                    y, _, unknown = steps[-1]
                    steps.append((np.where(x > y, x, y), 0.0, unknown | (x != x)))
                else:
                    steps.append((x, 0.0, x != x))
        return steps
    assert op is not None
    return folded(op, elements, dtype)


def draw_initial(d: Draw, shape: tuple[int, ...], dtype: str) -> tuple[Any, np.ndarray]:
    """Return an initial element as it is given, and as an array of the shape."""
    x = d.values(shape if d.chance(0.4) else (), dtype, tame=True)
    full = np.broadcast_to(x, shape)
    if x.ndim == 0 and d.chance(0.6):
        value = x[()].item()
        if d.chance(0.3) and dtype != "bfloat16":
            value = x[()]
            if dtype in ("float32", "float16") and d.chance(0.5):
                value = np.float64(value)
        return value, full
    array, x = d.array(x)
    return array, np.broadcast_to(x, shape)


def dtypes_of(op: str) -> tuple[str, ...]:
    """Return the dtypes of elements of an operator or a function."""
    return {
        "add": ("bool", *NUMBERS),
        "multiply": ("bool", *NUMBERS),
        "sum": ("bool", *NUMBERS),
        "prod": ("bool", *NUMBERS),
        "cumulative_sum": ("bool", *NUMBERS),
        "cumulative_prod": ("bool", *NUMBERS),
        "max": REAL,
        "min": REAL,
        "maximum": REAL,
        "minimum": REAL,
        "largest_of": REAL,
        "logical_and": ("bool",),
        "logical_or": ("bool",),
        "bitwise_and": ("bool", *INTEGERS),
        "bitwise_or": ("bool", *INTEGERS),
        "bitwise_xor": ("bool", *INTEGERS),
        "logaddexp": ("float32", "float64"),
        "plus": NUMBERS,
    }.get(op, ("bool", *NUMBERS))


def wider(dtype: str) -> tuple[str, ...]:
    """Return dtypes that hold the numbers of one, or floats of other widths."""
    if kind(dtype) == "complex":
        return COMPLEX
    if kind(dtype) == "float":
        return ("float32", "float64")
    return (dtype, "int64", "float64", "float32") if dtype != "uint64" else ("uint64", "float64")


def draw_scan(d: Draw, name: str) -> Call:
    fixed = {"cumulative_sum": "add", "cumulative_prod": "multiply"}.get(name)
    own = d.one(tuple(GOOD_OPERATORS)) if fixed is None and d.chance(0.2) else None
    op = fixed or GOOD_OPERATORS.get(own) or (None if own else d.one(tuple(IDENTITIES)))
    x = d.values(d.shape(1), d.dtype(*dtypes_of(own.__name__ if own else op)))
    array, x = d.array(x)
    axis = d.axis(x.ndim)
    options: dict[str, Any] = {"axis": axis}
    if fixed and x.ndim == 1 and d.chance(0.5):
        axis = 0
        options = d.one(({}, {"axis": None}))
    axis = int(axis) % x.ndim
    dtype = x.dtype.name
    if own is None and op in ("add", "multiply"):
        dtype = result_of_sum(d.backend.name, dtype)
        if d.chance(0.2) and kind(x.dtype.name) != "bool":
            dtype = d.dtype(*wider(x.dtype.name))
            options["dtype"] = d.asked(dtype)
    with np.errstate(all="ignore"):
        y = x.astype(numpy_dtype(dtype))
    shape = y.shape[:axis] + y.shape[axis + 1 :]
    elements = list(np.moveaxis(y, axis, 0))
    exclusive = reverse = include = False
    wrong: set[str] = set()
    start = None
    if fixed:
        include = d.flag()
        if include or d.chance(0.3):
            options["include_initial"] = include
    else:
        exclusive, reverse = d.flag(), d.flag()
        options |= {"exclusive": exclusive} if exclusive or d.chance(0.3) else {}
        options |= {"reverse": reverse} if reverse or d.chance(0.3) else {}
        if d.chance(0.3) or (own and exclusive and d.chance(0.8)):
            options["initial"], start = draw_initial(d, shape, dtype)
        elif own and exclusive:
            wrong = {"initial"}
    if reverse:
        elements.reverse()
    steps = fold_own(own, op, elements if start is None else [start, *elements], dtype)
    if start is not None:
        steps = steps[:-1] if exclusive else steps[1:]
    elif exclusive and elements:
        steps = [single(op, dtype, shape) if op and not own else steps[0], *steps[:-1]]
    elif include:
        steps = [single(op, dtype, shape), *steps]
    if reverse:
        steps.reverse()
    length = y.shape[axis] + int(include)
    expected = stacked(steps, axis, (*y.shape[:axis], length, *y.shape[axis + 1 :]), dtype)
    args = [array] if fixed or (op == "add" and not own and d.chance(0.3)) else [array, own or op]
    return Call(name, args, options, lambda got: differs(d.backend, got, expected), wrong)


def draw_recurrence(d: Draw, name: str) -> Call:
    dtype = d.dtype(*NUMBERS)
    shape = d.shape(1)
    axis = d.axis(len(shape))
    a = d.values(d.one((shape, (), tuple(d.one((n, 1)) for n in shape))), dtype, tame=True)
    b = d.values(shape, dtype, tame=d.chance(0.8))
    if dtype in FORMATS:
        a = (a / numpy_dtype(dtype).type(2)).astype(a.dtype)
    given_a, a = d.array(a)
    given_b, b = d.array(b)
    if a.ndim == 0 and d.chance(0.5):
        given_a = a[()].item()
        if dtype == "float32" and d.chance(0.3) and d.backend.name not in ("numpy", "emulated"):
            given_a = np.float64(given_a)
    options: dict[str, Any] = {"axis": axis} if int(axis) != -1 or d.chance(0.5) else {}
    axis = int(axis) % len(shape)
    reverse = d.flag()
    if reverse or d.chance(0.3):
        options["reverse"] = reverse
    rest = shape[:axis] + shape[axis + 1 :]
    elements = list(zip(*(np.moveaxis(np.broadcast_to(x, shape), axis, 0) for x in (a, b)), strict=True))
    if reverse:
        elements.reverse()
    state: Any = None
    if d.chance(0.4):
        options["initial"], state = draw_initial(d, rest, dtype)
        state = wide(state)
    size: Any = None if state is None else abs(state)
    steps: list[Step] = []
    strange: Any = np.zeros(rest, dtype=bool)
    for n, (x, y) in enumerate(elements, 2):
        u, v = wide(x), wide(y)
        with np.errstate(all="ignore"):
            state, size = (v, abs(v)) if state is None else (u * state + v, abs(u) * size + abs(v))
            if dtype not in FORMATS:
                steps.append((wrapped(state, dtype), 0.0, False))
                continue
            strange = strange | ~np.isfinite(v.astype(np.clongdouble)) | (size > largest(dtype) / 4)
            scale = 12 if kind(dtype) == "complex" else 4
            bound = size * (scale * n * working_eps(dtype) + eps(dtype)) + n * tiny(dtype)
            steps.append((np.asarray(state), bound, strange))
    if reverse:
        steps.reverse()
    expected = stacked(steps, axis, shape, dtype)
    return Call(name, [given_a, given_b], options, lambda got: differs(d.backend, got, expected))


def order(x: np.ndarray, descending: bool) -> list[int]:
    """Return the stable order of a row: NaN last, or first if descending."""
    ints = x.dtype.kind in "biu"

    def key(i: int) -> tuple[bool, Any]:
        value = int(x[i]) if ints else float(x[i])
        nan = value != value
        return (not nan, 0 if nan else -value) if descending else (nan, 0 if nan else value)

    return sorted(range(len(x)), key=key)


def draw_sort(d: Draw, name: str) -> Call:
    x = d.values(d.shape(1), d.dtype("bool", *REAL))
    array, x = d.array(x)
    axis = d.axis(x.ndim)
    options: dict[str, Any] = {"axis": axis} if int(axis) != -1 or d.chance(0.5) else {}
    axis = int(axis) % x.ndim
    descending, stable = d.flag(), d.flag(0.8)
    options |= {"descending": descending} if descending or d.chance(0.3) else {}
    options |= {"stable": stable} if not stable or d.chance(0.3) else {}
    rows = np.moveaxis(x, axis, -1)
    flat = rows.reshape((-1, rows.shape[-1])) if rows.size else rows.reshape((0, rows.shape[-1]))
    indices = np.array([order(row, bool(descending)) for row in flat], dtype=np.int64).reshape(rows.shape)
    indices = np.moveaxis(indices, -1, axis)
    values = []
    if name == "sort_by_key":
        for _ in range(int(d.rng.integers(0, 3))):
            values.append(d.array(d.values(x.shape, d.dtype("bool", *NUMBERS))))
    arrays = [x, *(one for _, one in values)]
    moved = [np.take_along_axis(one, indices, axis=axis) for one in arrays]
    backend = d.backend

    def check(got: Any) -> str | None:
        results = got if name == "sort_by_key" else (got,)
        if not isinstance(results, tuple) or len(results) != (len(arrays) if name == "sort_by_key" else 1):
            return f"result is {type(got).__name__} of other length"
        if name == "argsort" and not stable:
            found = np.sort(backend.to_numpy(got), axis=axis)
            if found.shape != x.shape or (found != np.sort(indices, axis=axis)).any():
                return "indices are no permutation"
            again = np.take_along_axis(x, backend.to_numpy(got).astype(np.int64), axis=axis)
            return None if np.array_equal(again, moved[0], equal_nan=x.dtype.kind != "b") else "order is wrong"
        if name == "argsort":
            return differs(backend, got, Expected(indices, None))
        for at, (one, wanted) in enumerate(zip(results, moved, strict=True)):
            if at and not stable:
                continue  # equal keys may come in any order
            # The bits of NaN may change on the way to us, and on JAX's.
            exact = bool(stable) and not backend.name.startswith("jax") and wanted.dtype.name != "bfloat16"
            problem = differs(backend, one, Expected(wanted, wanted.dtype.name, bits=wanted if exact else None))
            if problem:
                return f"array {at}: {problem}"
        return None

    return Call(name, [array, *(one for one, _ in values)], options, check)


def draw_tridiagonal(d: Draw, name: str) -> Call:
    dtype = d.dtype("float32", "float64", *COMPLEX, "float16", "bfloat16")
    n = d.one((1, 2, 5)) if d.few else int(d.rng.integers(0, 12))
    batch = d.one(((), (3,))) if not d.few else ()
    shape = (*batch, n)
    numbers = d.chance(0.2)
    coefficients, given = [], []
    for at in range(3):
        x = d.values(() if numbers else shape, dtype, tame=True)
        if at == 1:
            x = np.asarray(x / numpy_dtype(dtype).type(4) + numpy_dtype(dtype).type(4)).astype(x.dtype)
        else:
            x = np.asarray(np.clip(x.real, -1, 1)).astype(x.dtype)
        if numbers and d.chance(0.7):
            given.append(x[()].item())
        else:
            array, x = d.array(x)
            given.append(array)
        coefficients.append(np.broadcast_to(x, shape))
    columns = not numbers and d.chance(0.2)
    rhs = d.values((*shape, 2) if columns else shape, dtype, tame=True)
    array, rhs = d.array(rhs)
    options: dict[str, Any] = {}
    periodic, transpose, residual, status = d.flag(0.2), d.flag(0.2), d.flag(0.2), d.flag(0.2)
    for key, value in (
        ("periodic", periodic),
        ("transpose", transpose),
        ("return_residual", residual),
        ("return_status", status),
    ):
        if value or d.chance(0.2):
            options[key] = value
    if d.chance(0.4):
        options["pivot"] = d.one(("auto", "partial", "none"))
    if d.chance(0.2):
        options["axis"] = -1
    backend = d.backend

    def check(got: Any) -> str | None:
        results = got if residual or status else (got,)
        if not isinstance(results, tuple) or len(results) != 1 + bool(residual) + bool(status):
            return "result has another number of arrays"
        right = rhs if columns else rhs[..., None]
        wrong = differs(backend, results[0], Expected(np.zeros(rhs.shape), dtype, unknown=True))
        if wrong:
            return wrong
        x = wide(backend.to_numpy(results[0]))
        x = x if columns else x[..., None]
        matrix = np.zeros((*shape, n), dtype=x.dtype)
        for i in range(n):
            matrix[..., i, i] += wide(coefficients[1][..., i])
            for at, j in ((0, i - 1), (2, i + 1)):
                if periodic or 0 <= j < n:
                    matrix[..., i, j % n] += wide(coefficients[at][..., i])
        if transpose:
            matrix = np.swapaxes(matrix, -1, -2)
        size = abs(matrix) @ abs(x) + abs(wide(right))
        wrong = abs(matrix @ x - wide(right)) > (200 * working_eps(dtype) + 4 * eps(dtype)) * size + 8 * tiny(dtype)
        if not np.isfinite(x.astype(np.clongdouble)).all() or wrong.any():
            return f"solution is wrong: {x[..., 0].tolist()}"
        for one in results[1:]:
            wrong = differs(backend, one, Expected(np.zeros((*batch, 2) if columns else batch), None, unknown=True))
            if wrong:
                return f"residual or status: {wrong}"
        if status and backend.to_numpy(results[-1]).any():
            return "status is not 0"
        return None

    return Call(name, [*given, array], options, check)


def draw_matmul(d: Draw, name: str) -> Call:
    ring = d.chance(0.7)
    pairs = {("minimum", "add"): ("float32", "float64", "int32"), ("logical_or", "logical_and"): ("bool",)}
    add, multiply = ("add", "multiply") if ring else d.one(tuple(pairs))
    dtype = d.dtype(*(NUMBERS if ring else pairs[add, multiply]))
    m, n, k = (2, 3, 4) if d.few else (int(one) for one in d.rng.choice([0, 1, 2, 3, 5, 8, 17], 3))
    batch = () if d.few else d.one(((), (), (2,), (1, 3)))
    shapes = [d.one(((*batch, m, k), (m, k), (k,))), d.one(((*batch, k, n), (k, n), (k,)))]
    x, y = (d.values(shape, dtype, tame=True) for shape in shapes)
    (a, x), (b, y) = d.array(x), d.array(y)
    options: dict[str, Any] = {} if ring else {"add": add, "multiply": multiply}
    if d.chance(0.2):
        options["tile"] = d.one((1, 4, (2, 3, 4)))
    if d.chance(0.1) and ring and dtype == "float32":
        options["precision"] = d.one(("float32", "tf32", "highest"))
    rows, columns = (x if x.ndim > 1 else x[None]), (y if y.ndim > 1 else y[:, None])
    u, v = wide(rows)[..., :, :, None], wide(columns)[..., None, :, :]
    with np.errstate(all="ignore"):
        terms = np.moveaxis(getattr(np, multiply)(u, v), -2, 0)
    shape = terms.shape[1:]
    exact = kind(dtype) not in ("float", "complex")
    if ring:
        values = terms.sum(axis=0) if k else np.zeros(shape, dtype=terms.dtype)
        size = abs(terms).sum(axis=0) if k else np.zeros(shape)
    else:
        function = getattr(np, add)
        values = np.full(shape, IDENTITIES[add](dtype), dtype=terms.dtype)
        for one in terms:
            values = np.asarray(function(values, one))
        size = np.where(np.isfinite(values.astype(np.float64)), abs(values.astype(np.float64)), 0)
    if exact:
        values, bound = (wrapped(values, dtype) if kind(dtype) != "bool" else values.astype(bool)), 0.0
    else:
        loose = 2.0**-9 if options.get("precision") == "tf32" else 0.0
        bound = np.asarray(size).astype(np.float64) * (16 * (k + 2) * working_eps(dtype) + eps(dtype) + loose)
    unknown = False
    if kind(dtype) in ("int", "uint") and not ring:
        unknown = False
    final = (*shape[:-2], *(shape[-2:-1] if x.ndim > 1 else ()), *(shape[-1:] if y.ndim > 1 else ()))
    parts = np.broadcast_arrays(values, bound, unknown)
    values, bound, unknown = (np.asarray(one).reshape(final) for one in parts)
    expected = Expected(values, dtype, bound, unknown)
    call = Call(name, [a, b], options, lambda got: differs(d.backend, got, expected))
    call.may_refuse = "precision" in options
    return call


def draw_vecdot(d: Draw, name: str) -> Call:
    dtype = d.dtype(*NUMBERS)
    shape = d.shape(1)
    x, y = (d.values(shape, dtype, tame=True) for _ in range(2))
    (a, x), (b, y) = d.array(x), d.array(y)
    axis = -1 - int(d.rng.integers(len(shape)))
    options = {"axis": axis} if axis != -1 or d.chance(0.5) else {}
    u, v = wide(x), wide(y)
    terms = (np.conj(u) if kind(dtype) == "complex" else u) * v
    values, size = terms.sum(axis=axis), abs(terms).sum(axis=axis)
    if dtype in FORMATS:
        bound = np.asarray(size) * (16 * (shape[axis] + 2) * working_eps(dtype) + eps(dtype))
    else:
        values, bound = wrapped(np.asarray(values, dtype=object), dtype), 0.0
    expected = Expected(np.asarray(values), dtype, bound)
    return Call(name, [a, b], options, lambda got: differs(d.backend, got, expected))


def draw_map_reduce(d: Draw, name: str) -> Call:
    fn = d.one((square, product, itself))
    dtype = d.dtype(*(one for one in REAL if one not in ("float16", "bfloat16")))
    shape = d.shape()
    given = [d.array(d.values(shape, dtype, tame=True)) for _ in range(2 if fn is product else 1)]
    op = d.one(("add", "maximum"))
    x = fn(*(one for _, one in given))
    axis: Any = d.one((None, d.axis(len(shape)))) if shape else None
    options = {"op": op, "axis": axis}
    total = result_of_sum(d.backend.name, dtype) if op == "add" else dtype
    y = np.moveaxis(x.astype(total), int(axis), -1) if axis is not None else x.astype(total).reshape(-1)
    steps = folded(op, list(np.moveaxis(y, -1, 0)), total)
    value, bound, unknown = steps[-1] if steps else single(op, total, y.shape[:-1])
    if total in FORMATS:
        bound = bound + 4 * eps(total) * abs(x).sum(axis=axis)
    expected = Expected(np.asarray(value), total, bound, unknown)
    call = Call(name, [fn, *(one for one, _ in given)], options, lambda got: differs(d.backend, got, expected))
    call.may_refuse = not d.backend.supports(dtype)
    return call


def draw_tuple(d: Draw, name: str) -> Call:
    """Return a reduction or a scan of elements of several components along an axis."""
    op = d.one(("argmax", "argmin", "affine", "segmented"))
    shape = d.shape(1, 2)
    axis = d.axis(len(shape))
    options: dict[str, Any] = {"axis": axis} if name == "scan" or len(shape) > 1 or d.chance(0.5) else {}
    axis = int(axis) % len(shape)
    reverse = name == "scan" and d.chance(0.2)
    if reverse:
        options["reverse"] = True
    if op in ("argmax", "argmin"):
        values = d.values(shape, d.dtype("int32", "float32", "float64", "uint8"))
        values = np.where(np.isfinite(values), values, 1).astype(values.dtype)
        xs = [values, np.broadcast_to(np.arange(math.prod(shape)).reshape(shape), shape).astype("int32")]
    elif op == "affine":
        xs = [d.values(shape, d.one(("int32", "int64")), tame=True) for _ in range(1)] * 2
    else:
        xs = [d.values(shape, "bool"), d.values(shape, "int64", tame=True)]
    given = [d.array(x) for x in xs]
    arrays, xs = tuple(one for one, _ in given), [one for _, one in given]
    elements = list(zip(*(np.moveaxis(x, axis, 0) for x in xs), strict=True))
    if reverse:
        elements.reverse()
    steps: list[tuple[np.ndarray, ...]] = []
    for element in elements:
        steps.append(element if not steps else combined(op, steps[-1], element))
    call_op = parprims.segmented("add") if op == "segmented" else op
    dtypes = [x.dtype.name for x in xs]
    wrong = set()
    if name == "reduce":
        if steps:
            results = [np.asarray(one) for one in steps[-1]]
        elif op == "affine":
            results = [np.full(shape[:axis] + shape[axis + 1 :], one, dtype=dtypes[0]) for one in (1, 0)]
        else:
            return draw_tuple(d, name)  # the identity is a matter of the operator
    else:
        steps = steps[::-1] if reverse else steps
        results = [
            np.stack([step[at] for step in steps], axis=axis) if steps else np.zeros(shape, dtype=dtypes[at])
            for at in range(2)
        ]

    def check(got: Any) -> str | None:
        if not isinstance(got, tuple) or len(got) != 2:
            return "result is no pair"
        for one, wanted, dtype in zip(got, results, dtypes, strict=True):
            problem = differs(d.backend, one, Expected(wanted, dtype))
            if problem:
                return problem
        return None

    if name == "reduce" and len(shape) > 1 and "axis" not in options:
        options["axis"] = axis
    return Call(name, [arrays, call_op], options, check, wrong)


def combined(op: str, earlier: tuple[np.ndarray, ...], later: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Return two elements combined, element by element in NumPy."""
    (a, b), (c, e) = earlier, later
    if op == "affine":
        with np.errstate(all="ignore"):
            return c * a, c * b + e
    if op == "segmented":
        return a | c, np.where(c, e, b + e)
    better = c > a if op == "argmax" else c < a
    take = better | ((c == a) & (e < b))
    return np.where(take, c, a), np.where(take, e, b)


def draw_check(d: Draw, name: str) -> Call:
    """Return a check of an operator on examples, which holds or says where it does not."""
    right = (("add", "int64"), ("maximum", "float32"), (largest_of, "int32"), (keep_last, "int32"))
    not_right = ((minus, "int64"), (minus, "float64"), (returns_text, "float32"), (returns_none, "int32"))
    holds = d.chance(0.5)
    op, dtype = d.one(right if holds else not_right)
    n = int(d.rng.integers(0, 9)) if not d.few else d.one((3, 5))
    x = d.values((n,), dtype, tame=True)
    x = np.where(x == 0, np.ones_like(x), x)
    array, x = d.array(x)
    wrong = set() if holds and n >= 3 else {"examples"} if n < 3 else {"op"}
    return Call(name, [op, array], {}, lambda got: None if got is True else f"result is {got!r}", wrong)


DRAWS: dict[str, Callable[[Draw, str], Call]] = {
    "check_associative": draw_check,
    "linear_recurrence": draw_recurrence,
    "map_reduce": draw_map_reduce,
    "matmul": draw_matmul,
    "solve_tridiagonal": draw_tridiagonal,
    "vecdot": draw_vecdot,
}


def discover() -> None:
    """Take over what test files of other primitives, tests/test_<name>.py, say of hostile and valid calls."""
    global FUNCTIONS
    for name in sorted({*primitives} - {*FUNCTIONS}):
        module = importlib.import_module(f"tests.test_{name}")
        FUNCTIONS += (name,)
        DRAWS[name] = module.draw
        WRONG_OPTIONS.update(module.WRONG_OPTIONS)


def draw_call(d: Draw, name: str) -> Call:
    """Return a valid call of a function, by some method."""
    if name in ("sort", "argsort", "sort_by_key"):
        call = draw_sort(d, name)
    elif name in ("reduce", "scan") and d.chance(0.2):
        call = draw_tuple(d, name)
    elif name in ("scan", "cumulative_sum", "cumulative_prod"):
        call = draw_scan(d, name)
    else:
        call = DRAWS.get(name, draw_reduce)(d, name)
    if name == "check_associative":
        return call
    method = d.one(("auto", "auto", "array", "array", "native", "kernel"))
    if method != "auto" or d.chance(0.2):
        call.options["method"] = np.str_(method) if d.chance(0.05) else method
    return call


# ---- Hostile calls ----------------------------------------------------------------------------------------------

NO_ARRAYS: dict[str, Callable[[Draw], Any]] = {
    "None": lambda _: None,
    "object": lambda _: STRANGER,
    "opaque": lambda _: Opaque(),
    "text": lambda _: "text",
    "bytes": lambda _: b"text",
    "list": lambda _: [1.0, 2.0],
    "dict": lambda _: {},
    "set": lambda _: {1},
    "type": lambda _: np.ndarray,
    "generator": lambda _: (i for i in range(3)),
    "masked": lambda _: np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]),
    "matrix": lambda _: np.array([[1.0, 2.0]]).view(np.matrix),
    "recarray": lambda _: np.rec.array([(1, 2.0)], dtype=[("a", int), ("b", float)]),
    "structured": lambda _: np.zeros(3, dtype=[("a", int), ("b", float)]),
    "objects": lambda _: np.array([1, 2, None], dtype=object),
    "strings": lambda _: np.array(["a", "b"]),
    "new strings": lambda _: np.array(["a", "b"], dtype=np.dtypes.StringDType()),
    "datetime": lambda _: np.array(["2020", "2021"], dtype="datetime64[s]"),
    "timedelta": lambda _: np.array([1, 2], dtype="timedelta64[s]"),
    "void": lambda _: np.zeros(2, dtype="V5"),
    "subclass": lambda _: np.arange(3.0).view(Plain),
    "dask": lambda _: dask_array(),
    "sparse": lambda d: sparse(d),
    "library": lambda d: of_its_library(d),
}


def sparse(_: Draw) -> Any:
    """Return a sparse matrix of SciPy, where there is one."""
    try:
        from scipy.sparse import csr_array
    except ImportError:
        return None
    return csr_array(np.eye(3))


def of_its_library(d: Draw) -> Any:
    """Return an array of the backend that is none of ours."""
    name = d.backend.name.partition("-")[0]
    if name == "torch":
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return d.one(
                (
                    lambda: torch.eye(3).to_sparse(),
                    lambda: torch.eye(3).to_sparse_csr(),
                    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
                    lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
                    lambda: torch.zeros(3).to(torch.float8_e4m3fn),
                    lambda: torch.zeros(3, dtype=torch.complex32),
                    lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
                    lambda: torch.ones(3).as_subclass(type("Own", (torch.Tensor,), {})),
                )
            )()
    if name == "jax":
        import jax

        return d.one((lambda: jax.random.key(0), lambda: jax.random.split(jax.random.key(0), 3)))()
    return None


FLAGS = (
    "keepdims", "exclusive", "reverse", "include_initial", "descending", "stable", "periodic", "transpose",
    "return_residual", "return_status",
)  # fmt: skip


@dataclasses.dataclass
class Made:
    """A value that is made anew for every call."""

    make: Callable[[Draw], Any]


class Stranger:
    """An object of which only its name is known, the same in every run."""

    def __repr__(self) -> str:
        return "a stranger"


STRANGER = Stranger()
OPAQUE = Opaque()
WRONG_OPTIONS: dict[str, tuple[Any, ...]] = {
    "axis": (
        "0", 1.5, [0], 10**30, -(10**30), 7, STRANGER, np.array([0, 1]), math.nan, True, (0, 0), {}, np.float64(0), 1j,
        OPAQUE, (0, "a"),
    ),
    "dtype": (
        "floaty", 3, "float23", STRANGER, np.array(1.0), str, "datetime64[s]", "O", np.dtype([("a", int)]), (), [], {},
        ("float32", "float32", "float32"), object, b"float32", OPAQUE,
    ),
    "initial": (
        "text", STRANGER, [1.0], {}, (1, 2, 3, 4), (), np.str_("a"), np.datetime64("2020"), 10**400, OPAQUE, b"1",
        np.ma.masked_array([1.0, 2.0], [0, 1]), Made(lambda d: d.plain(np.zeros((3, 1, 2, 3, 9), dtype=np.float32))),
    ),
    "method": (
        "bogus", None, 3, ["array"], {}, np.array(["array"]), b"array", STRANGER, ("auto",), "", "Array", OPAQUE,
        np.array(["auto", "array"]),
    ),
    "op": (
        "bogus", 3, None, [], {}, STRANGER, b"add", "welford", "affine", np.array(1), *BAD_OPERATORS,
    ),
    "add": ("bogus", 3, None, [], "affine"),
    "multiply": ("bogus", 3, None, [], "affine"),
    "pivot": ("bogus", 3, None, ["auto"], np.array(["auto", "none"])),
    "precision": ("bogus", 3, None, ["tf32"], np.array(["tf32", "a"])),
    "kernel": ("bogus", 3, ["naive"], np.array(["naive", "a"]), {}),
    "tile": ("4", 1.5, (1, 2), 0, -3, [1, 2, 3], {}, (1, 2, "a"), True, np.array([1, 2, 3]), STRANGER),
}  # fmt: skip
WRONG_FLAGS: tuple[Any, ...] = (
    "yes", None, 1, 0.0, np.array(True), np.array([True, False]), [], STRANGER, math.nan, OPAQUE, "",
    Made(lambda d: d.plain(np.array([True]))),
)  # fmt: skip


discover()


def array_places(call: Call) -> list[tuple[int, str]]:
    """Return where a call has arrays among its arguments, and by which name errors call them."""
    names = {
        "linear_recurrence": ("a", "b"),
        "matmul": ("a", "b"),
        "vecdot": ("x1", "x2"),
        "solve_tridiagonal": ("lower", "diag", "upper", "rhs"),
        "map_reduce": ("", "arrays", "arrays", "arrays"),
        "sort_by_key": ("keys", "values", "values", "values"),
        "check_associative": ("", "examples"),
    }.get(call.function, ("x",))
    return [(at, name) for at, name in enumerate(names[: len(call.args)]) if name]


def spoil(d: Draw, call: Call) -> None:
    """Make a call a hostile one."""
    places = array_places(call)
    parameters = inspect.signature(getattr(parprims, call.function)).parameters
    options = [name for name in parameters if name in WRONG_OPTIONS or name in FLAGS]
    if d.chance(0.45):
        at, name = d.one(places)
        what = d.one(tuple(NO_ARRAYS))
        moved = call.function == "sort_by_key" and at > 0
        if moved and what in (
            "recarray",
            "structured",
            "objects",
            "strings",
            "new strings",
            "datetime",
            "timedelta",
            "void",
        ):
            what = "masked"
        value = NO_ARRAYS[what](d)
        if isinstance(call.args[at], tuple) and d.chance(0.7):  # only a component
            value = (call.args[at][0], value)
        if call.function == "solve_tridiagonal" and at < 3 and value is None:
            value = "text"
        call.args[at] = value
        call.wrong.add(name)
        call.hostile.append(f"{name} is {what}")
        if len(places) > 1:  # of two libraries either may be named
            call.wrong |= {other for _, other in places}
        return
    if d.chance(0.15):
        at, name = d.one(places)
        if wrong_array(d, call, at, name):
            return
    name = d.one(options)
    if call.function == "check_associative" and name == "op":
        call.args[0] = value = d.one(("bogus", 3, None, [], STRANGER, "affine"))
        call.wrong |= {"op", "examples"}
        call.hostile.append(f"op is {described(value)}")
        return
    value = d.one(WRONG_FLAGS if name in FLAGS else WRONG_OPTIONS[name])
    value = value.make(d) if isinstance(value, Made) else value
    if isinstance(call.args[0], tuple) and isinstance(value, str) and value == "affine":
        value = "bogus"
    if name == "op" and call.function in ("reduce", "scan"):
        call.args[1:] = [value]
    else:
        call.options[name] = value
    if name in ("op", "add", "multiply"):
        # Where nothing is combined an operator returns nothing wrong; one of other elements is wrong of x, or a.
        shapes = [() if isinstance(x, type) else tuple(getattr(x, "shape", ())) for x in call.args]
        call.may_refuse |= any(value is one for one in BAD_OPERATORS) and any(
            {0, 1} & set(shape or (0,)) for shape in shapes
        )
        call.wrong |= {"x", "a", "arrays"} if isinstance(value, str) else set()
    if name == "dtype" and isinstance(value, tuple) and not value:
        call.wrong.add("dtype")
    call.wrong.add(name)
    call.hostile.append(f"{name} is {described(value)}")
    if name == "op" and "initial" in call.options:  # whose dtype goes by the operator
        call.wrong.add("initial")


def wrong_array(d: Draw, call: Call, at: int, name: str) -> bool:
    """Replace an array by one that is right in itself but not here; return whether there is such."""
    way = d.one(("library", "dtype", "shape", "dimensions"))
    places = array_places(call)
    others = {other for _, other in places}
    rest = [x for i, x in enumerate(call.args) if i != at]
    if way == "library" and any(hasattr(x, "shape") for x in rest) and call.function != "map_reduce":
        if d.backend.name in ("numpy", "emulated"):
            import array_api_strict

            call.args[at] = array_api_strict.asarray([1.0, 2.0])
        else:
            call.args[at] = np.array([1.0, 2.0])
    elif way == "dtype" and call.function in ("sort", "argsort", "max", "min"):
        call.args[at] = d.plain(np.array([1j, 2.0], dtype=np.complex64))
    elif way == "dtype" and call.function == "solve_tridiagonal":
        call.args[at] = d.plain(np.array([1, 2], dtype=np.int32))
    elif way == "dimensions" and call.function in ("matmul", "vecdot", "sort", "argsort", "cumulative_sum"):
        call.args[at] = d.plain(np.array(1.0, dtype=np.float32))
    elif way == "shape" and call.function in (
        "matmul",
        "vecdot",
        "linear_recurrence",
        "solve_tridiagonal",
        "map_reduce",
    ):
        if not any(set(getattr(x, "shape", ())) - {1} for x in rest):
            return False
        call.args[at] = d.plain(np.zeros((2, 3, 97, 89, 97), dtype=np.float32)[:1, :1])
        others |= {"coefficients"}
    else:
        return False
    call.wrong |= others | {"axis"}
    call.hostile.append(f"{name} has another {way}")
    return True


# ---- Running ----------------------------------------------------------------------------------------------------


def leaves(value: Any) -> Iterator[Any]:
    """Yield the arrays of an argument or a result."""
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from leaves(one)
    elif not isinstance(value, (type, np.generic)):
        with contextlib.suppress(Exception):  # a nested tensor has no shape
            if hasattr(value, "shape") and hasattr(value, "dtype"):
                yield value


def snapshot(backend: Any, x: Any) -> bytes:
    """Return the bytes of an array, with those between its elements where NumPy shows them."""
    if isinstance(x, np.ndarray):
        while isinstance(x.base, np.ndarray):
            x = x.base
        if x.dtype.hasobject:
            return repr(np.asarray(x).tolist()).encode()
        return np.asarray(x).tobytes()
    try:
        return backend.to_numpy(x).tobytes()
    except Exception:  # a stranger's array
        return b""


def outcome(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, BaseException | None]:
    """Return what a function returns and what it raises."""
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        # PyTorch's own, of its first use of something that is still young.
        warnings.filterwarnings("ignore", message=".*(nested tensors|Sparse CSR|beta state|prototype stage).*")
        try:
            return function(*args, **options), None
        except Exception as error:
            return None, error


def violations(backend: Any, call: Call) -> Iterator[tuple[str, str]]:
    """Make a call; yield the kind of each violation, and what happened."""
    function = getattr(parprims, call.function)
    arrays = [x for value in (*call.args, *call.options.values()) for x in leaves(value)]
    before = [snapshot(backend, x) for x in arrays]
    listed = call.function != "check_associative"
    promised, listing_error = (
        outcome(parprims.methods, function, *call.args, **call.options) if listed else (None, None)
    )
    result, error = outcome(function, *call.args, **call.options)
    for x, old in zip(arrays, before, strict=True):
        if snapshot(backend, x) != old:
            yield "an input changed", described(x)
    yield from judged_error(call, error)
    if error is None:
        if call.wrong and not call.may_refuse:
            yield "a hostile call is served", str(sorted(call.wrong))
        elif not call.wrong:
            problem = call.check(result)
            if problem:
                yield "wrong result", problem
        if any(same_memory(x, y) for x in arrays for y in leaves(result)):
            yield "a result shares memory with an input", ""
    method = str(call.options.get("method", "auto"))
    if isinstance(error, Warning) or not listed:
        return
    if listing_error is not None:
        if error is None:
            yield "methods() raises what the call does not", f"{type(listing_error).__name__}: {listing_error}"
        elif not isinstance(error, parprims.MethodRefused) and described_error(error) != described_error(listing_error):
            yield (
                "methods() raises another error than the call",
                f"{type(listing_error).__name__}: {listing_error}; {type(error).__name__}: {error}",
            )
    elif error is not None and promised is not None:
        serves = (
            any(reason is None for reason in promised.values()) if method == "auto" else promised.get(method) is None
        )
        if serves and not any(word in BAD_NAMES for word in call.hostile):
            yield "methods() promised what raised", f"{type(error).__name__}: {error}"
    elif error is None and method == "auto" and promised is not None and None not in promised.values():
        yield "methods() promised nothing, and auto served", ""


def described_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


BAD_NAMES = {f"op is {one.__name__}" for one in BAD_OPERATORS}
"""What only the call itself finds out: nothing is computed to list its methods."""


def judged_error(call: Call, error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an error."""
    if error is None:
        return
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, Warning):
        yield "a warning", words
    elif not isinstance(error, ERRORS):
        yield "an error of another kind", words
    elif isinstance(error, parprims.MethodRefused):
        if call.wrong and call.options.get("method", "auto") == "auto":
            yield "refused instead of named", words
    elif not call.wrong:
        if not call.may_refuse:
            yield "a valid call is refused", words
    elif not any(re.search(rf"(?<!\w){name}(?!\w)", str(error)) for name in call.wrong):
        yield "an error names no argument", words


def single_call(backend: Any, seed: int, number: int, folder: str) -> Call:
    """Return the call of a number."""
    words = [seed, number, *backend.name.encode()]
    d = Draw(backend, np.random.default_rng(words), folder)
    call = draw_call(d, d.one(FUNCTIONS))
    if d.chance(0.45) and not call.wrong:
        spoil(d, call)
        if d.chance(0.1):
            spoil(d, call)
    return call


def run(backends: list[str], calls: int, seed: int, only: int | None = None, log: Any = sys.stderr) -> dict[Any, Any]:
    """Make calls; return how often each violation came, its first call, and what happened there."""
    found: dict[tuple[str, str, str], list[Any]] = {}
    counts: collections.Counter[str] = collections.Counter()
    chooser = np.random.default_rng([seed, 0])
    weights = np.array([WEIGHTS.get(name, 4) for name in backends], dtype=float)
    chosen = chooser.choice(len(backends), calls, p=weights / weights.sum())
    start = last = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ready = {name: prepared(name, stack) for name in backends}
        for number in range(calls) if only is None else (only,):
            name = backends[int(chosen[number])] if only is None else backends[0]
            backend = ready[name]
            call = single_call(backend, seed, number, folder)
            if only is not None:
                print(call.text(), file=log)
            counts["valid" if not call.wrong else "hostile"] += 1
            counts[name] += 1
            for violation, detail in violations(backend, call):
                key = (violation, call.function, re.sub(r"\d+", "n", detail)[:70])
                repro = f"python -m tests.fuzz --backend {name} --seed {seed} --call {number}"
                found.setdefault(key, [0, repro, call.text(), detail])[0] += 1
            if log and time.monotonic() - last > 10:
                last = time.monotonic()
                many = sum(one[0] for one in found.values())
                print(f"{number + 1}/{calls} calls, {many} violations, {last - start:.0f} s", file=log, flush=True)
    print(f"{dict(counts)}, seed {seed}, {time.monotonic() - start:.0f} s", file=log)
    return found


def prepared(name: str, stack: contextlib.ExitStack) -> Any:
    """Return a backend, the emulator installed where it is that."""
    if name == "emulated":
        import pytest

        from tests import emulator

        emulator.install(stack.enter_context(pytest.MonkeyPatch.context()))
    return conftest._backend(name)


def report(found: dict[Any, Any]) -> str:
    """Return the violations by kind, the commonest first."""
    lines = []
    for violation in dict.fromkeys(key[0] for key in found):
        group = {key: one for key, one in found.items() if key[0] == violation}
        lines.append(f"{violation}: {sum(one[0] for one in group.values())} in {len(group)} groups")
        for (_, function, _), (count, repro, text, detail) in sorted(group.items(), key=lambda one: -one[1][0]):
            lines += [f"  {count} x {function}: {detail[:300]}", f"      {text}", f"      {repro}"]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the calls asked for; return how many violations there were, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random calls, valid and hostile.")
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=None, help="drawn if not given")
    parser.add_argument("--call", type=int, default=None, help="only the call of this number")
    parser.add_argument("--backend", action="append", choices=conftest.BACKENDS, help="any but emulated if not given")
    options = parser.parse_args(argv)
    seed = options.seed if options.seed is not None else int(np.random.SeedSequence().entropy % 2**31)  # type: ignore[operator]
    usual = [name for name in conftest.BACKENDS if name != "emulated" and conftest.available(name)]
    backends = options.backend or usual
    print(f"{options.calls} calls on {', '.join(backends)}, seed {seed}", file=sys.stderr)
    found = run(backends, options.calls, seed, options.call)
    if found:
        print(report(found))
    print(f"{sum(one[0] for one in found.values())} violations in {len(found)} groups, seed {seed}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""What calls are made of: arrays in every layout, strange numbers, operators of our own."""

import math
import tempfile
from typing import Any

import numpy as np

from tests.fuzz.values import FORMATS, kind
from tests.support.contract import VIEWS, numpy_dtype

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

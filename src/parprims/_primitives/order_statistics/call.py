"""The records of checked calls of order statistics, and the checks that make them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    check_choice,
    check_flag,
    compute_dtype,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    mode,
    normalize_axes,
    normalize_axis,
    repr_short,
)
from parprims._core.options import integer_of, is_array
from parprims._dispatch.composite import Composed
from parprims._dispatch.dispatch import Abstract
from parprims._dispatch.primitive import Arguments, plainer
from parprims._primitives.sort.call import index_dtype

INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")
"""The interpolations of `quantile` between two elements."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Selection(Composed):
    """A checked call along ``axis``, counted from the front. ``places`` are k, or the places of a partition."""

    axis: int
    descending: bool = False
    places: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Quantiles(Composed):
    """A checked call. ``steps`` has for each q the places of two elements, and the fraction of the way from the first.

    ``working`` is the dtype between elements, ``many`` says whether there is an axis for q.
    """

    axes: tuple[int, ...]
    steps: tuple[tuple[int, int, float], ...]
    many: bool
    working: Any

    @property
    def lows(self) -> tuple[int, ...]:
        """The places of the first of two elements, of all quantiles."""
        return tuple(sorted({low for low, _, _ in self.steps}))


def check_top_k(asked: Arguments) -> tuple[Namespace, Selection]:
    """Return the namespace and the record of a call of `top_k`; raise, naming the argument, for wrong arguments."""
    xp, x = _admitted(asked)
    check_choice("mode", asked["mode"], ("largest", "smallest"))
    check_flag("sorted", asked["sorted"])
    axis = normalize_axis(asked["axis"], x.ndim)
    k = integer_of("k", asked["k"], 0, x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return xp, Selection(
        arrays=(x,),
        key=asked.key_of(x),
        results=((shape, x.dtype), (shape, index_dtype(xp))),
        axis=axis,
        descending=str(asked["mode"]) == "largest",
        places=(k,),
    )


def check_partition(asked: Arguments) -> tuple[Namespace, Selection]:
    """Return the namespace and the record of a call of `partition`."""
    xp, x = _admitted(asked)
    return xp, _partition(asked, x, x.dtype)


def check_argpartition(asked: Arguments) -> tuple[Namespace, Selection]:
    """Return the namespace and the record of a call of `argpartition`."""
    xp, x = _admitted(asked)
    return xp, _partition(asked, x, index_dtype(xp))


def check_median(asked: Arguments) -> tuple[Namespace, Quantiles]:
    """Return the namespace and the record of a call of `median`."""
    return _quantiles(asked, 0.5, "linear")


def check_quantile(asked: Arguments) -> tuple[Namespace, Quantiles]:
    """Return the namespace and the record of a call of `quantile`."""
    return _quantiles(asked, asked["q"], asked["interpolation"])


def plainer_axes(asked: Arguments) -> Arguments | None:
    """Return the call of a quantile with Python's own numbers and tuples as options, None if it has them already.

    Raise ValueError if the method is one of the names that NumPy's ``method`` gives to interpolations.
    """
    method = asked.method
    if isinstance(method, str) and method in INTERPOLATIONS:
        raise ValueError(f"method must name an implementation, got {method!r}: pass it as interpolation")
    return plainer(asked, several=("axis",))


def _admitted(asked: Arguments) -> tuple[Namespace, Array]:
    """Return the namespace, and x as every method takes it."""
    xp, (x,) = admit(asked.arrays)
    if dtype_kind(x.dtype) not in ("int", "uint", "float") or dtype_bits(x.dtype) not in (8, 16, 32, 64):
        raise TypeError(f"x must be of an integer or real floating dtype of 8 to 64 bits, got {dtype_name(x.dtype)}")
    return xp, x


def _partition(asked: Arguments, x: Array, dtype: Any) -> Selection:
    """Return the record of a partition with a result of a dtype."""
    axis, kth = normalize_axis(asked["axis"], x.ndim), asked["kth"]
    n, places = x.shape[axis], kth if isinstance(kth, tuple) else (kth,)
    if not places:
        raise ValueError("kth must hold at least one index, got ()")
    if n == 0:
        raise ValueError(f"kth must be an index along the axis, which is empty, got {repr_short(kth)}")
    places = tuple([integer_of("kth", place, -n, n - 1) % n for place in places])
    results = ((tuple(x.shape), dtype),)
    return Selection(arrays=(x,), key=asked.key_of(x), results=results, single=True, axis=axis, places=places)


def _quantiles(asked: Arguments, q: Any, interpolation: Any) -> tuple[Namespace, Quantiles]:
    """Return the namespace and the record of quantiles."""
    xp, x = _admitted(asked)
    keepdims = check_flag("keepdims", asked["keepdims"])
    check_choice("interpolation", interpolation, INTERPOLATIONS)
    axes = normalize_axes(asked["axis"], x.ndim)
    n = math.prod([x.shape[axis] for axis in axes])
    if n == 0:
        raise ValueError(f"x must not be empty along the axes of a {asked.name}, got shape {tuple(x.shape)}")
    many = isinstance(q, tuple)
    if many and not q:
        raise ValueError("q must hold at least one number, got ()")
    # Where nothing is computed a length may be a symbol, and places among so many elements would limit its values.
    length = 1 if isinstance(asked.method, Abstract) else n
    steps = tuple([_step(_share_of(share), length, str(interpolation)) for share in (q if many else (q,))])
    shape = [1 if axis in axes else m for axis, m in enumerate(x.shape) if keepdims or axis not in axes]
    dtype = x.dtype
    if dtype_kind(dtype) != "float":
        dtype = xp.float32 if is_jax(xp) and not mode(xp) else xp.float64
    return xp, Quantiles(
        arrays=(x,),
        key=asked.key_of(x),
        results=(((*((len(steps),) if many else ()), *shape), dtype),),
        single=True,
        axes=axes,
        steps=steps,
        many=many,
        working=compute_dtype(xp, dtype),
    )


def _share_of(q: Any) -> float:
    """Return an element of q as a float; raise, naming the argument, for anything else."""
    if type(q) is bool or is_array(q):
        raise TypeError(f"q must be a number or a sequence of numbers, got {repr_short(q)}")
    try:
        share = float(q) if not isinstance(q, (str, bytes)) else None
    except (TypeError, ValueError, RuntimeError):
        share = None
    if share is None:
        raise TypeError(f"q must be a number or a sequence of numbers, got {repr_short(q)}")
    if not 0 <= share <= 1:
        raise ValueError(f"q must be from 0 to 1, got {repr_short(q)}")
    return share


def _step(share: float, n: int, interpolation: str) -> tuple[int, int, float]:
    """Return the indices of the sorted elements below and above a fraction of n, and the weight of the upper one."""
    place = share * (n - 1)
    low = min(math.floor(place), n - 1)
    high, part = min(low + 1, n - 1), place - low
    if interpolation == "nearest":
        low = high = min(round(place), n - 1)
    if interpolation in ("lower", "nearest") or part == 0:
        return low, low, 0.0
    return (high, high, 0.0) if interpolation == "higher" else (low, high, 0.5 if interpolation == "midpoint" else part)

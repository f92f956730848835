"""The record of a checked histogram, and the checks that make it."""

from __future__ import annotations

import builtins
import dataclasses
import math
import operator
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    dtype_kind,
    is_jax,
    mode,
    namespace_named,
    repr_short,
    sum_dtype,
)
from parprims._core.jax_arrays import is_split
from parprims._core.options import is_array, listed_as_array, made_plain, of_numpy
from parprims._core.promotion import promoted
from parprims._core.scalars import as_scalar
from parprims._dispatch.ascending import ascend, checked_values
from parprims._dispatch.dispatch import Abstract, Checked, exact
from parprims._dispatch.primitive import Arguments

_UNORDERED = "bins must be edges that ascend, none of them NaN"


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Histogram(Checked):
    """A checked call. ``arrays`` are x, the weights if ``weighted``, and the edges unless they are ``even``.

    ``ends`` are the first and the last of even edges, None if they come from x. ``edges`` is the dtype in which
    elements and edges are compared, ``result`` the dtype of counts.
    """

    bins: int
    even: bool
    ends: tuple[float, float] | None
    edges: Any
    weighted: bool
    density: bool
    result: Any

    def empty(self, xp: Namespace) -> tuple[Array, Array]:
        """Return arrays like the result."""
        on = device(self.arrays[0])
        counts = xp.empty((self.bins,), dtype=self.edges if self.density else self.result, device=on)
        return counts, xp.empty((self.bins + 1,), dtype=self.edges, device=on)


def named(x: Array, weights: Any, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays by name, including edges if they are an array, and all other options."""
    arrays = {"x": x, "weights": weights}
    if is_array(options["bins"]):
        return {**arrays, "bins": options["bins"]}, {name: value for name, value in options.items() if name != "bins"}
    return arrays, options


def plainer(asked: Arguments) -> Arguments | None:
    """Return the call with Python's own numbers, and edges of a list or of NumPy beside x; None if it is so.

    If several devices or chunks hold x, the edges stay a tuple, and each device makes its array.
    """
    bins, x, weights = asked["bins"], asked["x"], asked["weights"]
    plain = None
    if isinstance(bins, list | tuple | builtins.range):
        if asked.axis_name is None and not is_split((x, weights)):
            plain = {"bins": listed_as_array("bins", bins, namespace_named("x", x), x)}
        elif not isinstance(bins, tuple):
            plain = {"bins": tuple(bins)}
        _check_edges(np.asarray(bins))
    elif not is_split((x, weights)):
        edges = of_numpy("bins", bins, x)
        plain = None if edges is bins else {"bins": edges}
    plain = plain or made_plain(bins=bins, range=asked["range"])
    if plain is None:
        return None
    options = {"bins": bins, "range": asked["range"], "density": asked["density"], **plain}
    return Arguments(asked.name, *named(x, weights, options), asked.method, asked.axis_name)


def check(asked: Arguments) -> tuple[Namespace, Histogram]:
    """Return the namespace and the record of a histogram; raise, naming the argument, for wrong arguments."""
    if isinstance(asked["bins"], tuple):  # of arrays that are split, see `plainer`
        edges = listed_as_array("bins", asked["bins"], np, np.empty(0))
        _check_listed(edges, asked["range"])
        asked = asked.on(asked.arrays, bins=edges.shape[0] - 1)
    bins, weighted = _bin_count(asked["bins"]), asked["weights"] is not None
    xp, arrays = admit(asked.given)
    x, *others = arrays
    for name, array in zip(asked.given, arrays, strict=True):
        check_kind(name, array, ("int", "uint", "float"))
    if weighted and others[0].shape != x.shape:
        raise ValueError(f"weights must have the shape of x, {tuple(x.shape)}, got {tuple(others[0].shape)}")
    density = check_flag("density", asked["density"])
    ends = complete = None
    if bins is None:
        edges = others[-1]
        _check_listed(edges, asked["range"])
        # Edges in the memory of a CPU ascend, in later calls too.
        complete = None if isinstance(asked.method, Abstract) else checked_values(xp, edges, -1, _check_edges)
        dtype = _compared(xp, x, edges)
    else:
        dtype = _edge_dtype(xp, x.dtype)
        ends = None if asked["range"] is None else _range(asked["range"], dtype)
    return xp, Histogram(
        arrays=tuple(arrays),
        key=asked.key_of(*arrays),
        complete=complete,
        bins=bins if bins is not None else others[-1].shape[0] - 1,
        even=bins is not None,
        ends=ends,
        edges=dtype,
        weighted=weighted,
        density=density,
        result=_result_dtype(xp, others[0].dtype if weighted else None),
    )


def _check_listed(edges: Array, range: Any) -> None:
    """Raise ValueError if edges are no array of edges, or come with a range."""
    if range is not None:
        raise ValueError("range must be None if bins are edges")
    if edges.ndim != 1 or edges.shape[0] < 2:
        got = f"shape {tuple(edges.shape)}"
        if edges.ndim == 0:
            got += ": pass a number of bins as an int, which a program does not trace"
        raise ValueError(f"bins must have one dimension and at least two edges, got {got}")


def _check_edges(edges: np.ndarray[Any, Any]) -> None:
    if not ascend(edges):
        raise ValueError(_UNORDERED)


def _bin_count(bins: Any) -> int | None:
    """Return a number of bins, or None for edges."""
    if is_array(bins):
        return None
    try:
        count = operator.index(bins) if type(bins) is not bool else 0
    except TypeError:
        count = 0
    if count == 0 and (type(bins) is bool or not isinstance(bins, int)):
        raise TypeError(f"bins must be an integer or an array of edges, got {repr_short(bins)}")
    if not 0 < count < 2**31:
        raise ValueError(f"bins must be at least 1 and less than 2^31, got {count}")
    return count


def _range(range: Any, dtype: Any) -> tuple[float, float]:
    if not isinstance(range, (tuple, list)) or len(range) != 2:
        raise TypeError(f"range must be a pair of numbers, got {repr_short(range)}")
    first, last = (float(as_scalar("range", end, dtype)) for end in range)
    if not (math.isfinite(first) and math.isfinite(last) and first <= last):
        raise ValueError(f"range must be finite and ascend, got {repr_short(range)}")
    return (first - 0.5, last + 0.5) if first == last else (first, last)


def _edge_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype of computed edges, for elements of a dtype."""
    if dtype_kind(dtype) == "float":
        return compute_dtype(xp, dtype)
    return xp.float32 if is_jax(xp) and not mode(xp) else xp.float64


def _compared(xp: Namespace, x: Array, edges: Array) -> Any:
    """Return the dtype in which elements and the caller's edges are compared."""
    floats = [array for array in (edges, x) if dtype_kind(array.dtype) == "float"]
    if len(floats) == 1:
        return compute_dtype(xp, floats[0].dtype)
    return compute_dtype(xp, promoted(xp, {"x": x, "bins": edges}, ("int", "uint", "float")))


def _result_dtype(xp: Namespace, weights: Any) -> Any:
    if weights is None:
        return xp.__array_namespace_info__().default_dtypes()["integral"]
    return sum_dtype(xp, weights)


def departs(name: str, xp: Namespace, h: Histogram) -> str | None:
    """Return the sentence why a method does not add weights canonically, or None."""
    if name != "native" and h.weighted and dtype_kind(h.result) in ("float", "complex"):
        return "weights are added in blocks of all elements"
    return exact(name, xp, h)

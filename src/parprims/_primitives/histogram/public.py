"""Histogram: how many elements, or how much weight, lies between each edge and the next."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Never

import numpy as np

from parprims import _cuda
from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    cast,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    dtype_kind,
    dtype_name,
    is_jax,
    is_split,
    is_tensor,
    lacks_arithmetic,
    library,
    mode,
    namespace_named,
    ring_dtype,
    shown,
    spoken,
    sum_dtype,
)
from parprims._core.options import is_array, listed_as_array, made_plain
from parprims._core.other_words import unknown_option
from parprims._core.promotion import promoted
from parprims._core.scalars import as_scalar
from parprims._dispatch.ascending import ascend, checked_values
from parprims._dispatch.by_device import by_device
from parprims._dispatch.dispatch import (
    Abstract,
    Checked,
    Inside,
    Method,
    Methods,
    call_key,
    devices,
    directly,
    in_graph,
    nodes,
    primitive,
    recalled,
    unwatched,
)
from parprims._libraries.numpy_bridge import all_by_numpy, as_numpy, numpy_namespace, quietly, shares_memory
from parprims._libraries.settings import asked_for
from parprims._operators.languages import C_TYPES
from parprims._operators.operator import BUILT_IN, segmented
from parprims._primitives.histogram import cpu, cuda
from parprims._primitives.histogram.numpy_routines import (
    FEW,
    counts_between,
    counts_of_integers,
    even_edges,
    is_almost_even,
    places_in_even,
    searchable,
)
from parprims._primitives.reduce.call import library_routine
from parprims._primitives.scan.array import inclusive
from parprims._primitives.search.array import above
from parprims._primitives.segments.public import segment_reduce
from parprims._primitives.sort.call import comparable, flushes, from_comparable, widened
from parprims._primitives.sort.public import sort, sort_by_key


@primitive
def histogram(
    x: Array,
    /,
    bins: int | Array = 10,
    *,
    range: tuple[float, float] | None = None,
    weights: Array | None = None,
    density: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> tuple[Array, Array]:
    """Count the elements between each edge and the next: counts[b] of edges[b] <= x < edges[b + 1].

    The last bin holds its right edge too. Elements outside of the edges, and NaN, count nowhere.

    Parameters
    ----------
    x : array
        The elements, of any shape and of an integer or real floating dtype.
    bins : int, array or sequence of float
        The number of bins of equal width, or their edges: one dimension, at least two elements, ascending. Edges that
        do not ascend raise ValueError in the memory of a CPU; on a GPU, and in a program that is traced, they are not
        looked at, and what they count is left open.
    range : pair of float, optional
        The first and the last edge, where bins is a number. By default the least and the largest element, and half
        less and more where these are equal, or 0 and 1 where there are none.
    weights : array, optional
        What an element counts, of the shape of x and of an integer or real floating dtype; by default 1.
    density : bool
        Whether counts are divided by their sum and the width of their bin, so that the histogram has area 1.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map` the axes of the mesh, on PyTorch the group of processes, that
        x, and weights, are split over: docs/devices.md.

    Returns
    -------
    counts : array
        Of length bins: of the default integer dtype, of that of a sum of the weights, or with density of the edges'.
    edges : array
        Of length bins + 1. Computed edges are of the dtype of x, float32 if that has 16 bits, and the widest floating
        dtype the library has if x is of integers.

    Raises
    ------
    TypeError
        If x, weights or an array of bins is no array of numbers, or bins or range is not what is described above.
    ValueError
        If bins is less than 1 or has fewer than two edges, edges descend or hold NaN, range is not finite or
        descends or stands beside edges, the
        shapes of x and weights differ, or an argument has an unknown value.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: one search of the edges for each element, then a sort of the bins' numbers (array). Kernel: one
    launch that reads every element once, and one before it that finds the range where none is given. By CUDA, weights
    in many bins (of float32 for 2^26 elements more than 5120) are sorted by the numbers of their bins.
    Error: counts are exact. A sum of weights owes half a unit in the last place of its sum of |weights| for each of at
    most n additions by kernel (by CUDA n / 2112 + 264 + 8 if elements are many, (n + bins) / 2^19 + 100 if sorted),
    4 log2 n by array.
    Bins: an element belongs to the bin whose edges, as returned, it lies between, by every method.
    Non-finite elements: with range of its own the edges are NaN, and all counts 0, if x holds an infinity or NaN.
    Reproducibility: the same input gives the same bits by kernel and array; by native too, but for weights on a GPU.
    Methods: kernel (CUDA arrays, and CPU arrays by Numba), native (NumPy, CuPy, PyTorch and JAX), array.
    Derivatives: none.
    Memory besides the result: kernel a few MB, but by CUDA 14 bytes for each element with sorted weights of float32 in
    up to 65 535 bins, 20 in more.
    Memory of all cases, reference and more: docs/histogram.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> counts, edges = parprims.histogram(np.array([1.0, 2.0, 2.5, 4.0]), 3)
    >>> counts
    array([1, 2, 1])
    >>> edges
    array([1., 2., 3., 4.])
    >>> parprims.histogram(np.array([1, 2, 2, 9]), np.array([0, 2, 4]), weights=np.array([0.5, 1.0, 2.0, 4.0]))[0]
    array([0.5, 3. ])
    """
    if others:
        raise unknown_option("histogram", others)
    if in_graph((x, weights, bins), method) and axis_name is None:
        given = {"x": x, "weights": weights, **({"bins": bins} if is_array(bins) else {})}
        options = {"range": range, "density": density, **({} if "bins" in given else {"bins": bins})}
        counts, edges = nodes().call("histogram", given, options, method)
        return counts, edges
    key = None
    if axis_name is None:
        given_edges = is_array(bins)
        own = (x,) if weights is None else (x, weights)
        own = (*own, bins) if given_edges else own
        key = call_key("histogram", own, None if given_edges else bins, range, weights is None, density, method)
        run = recalled(key)
        if run is not None:
            found: tuple[Array, Array] = run(*own)
            return found
    plainer = _plainer(x, bins, range, apart=axis_name is not None or is_split((x, weights)))
    if plainer is not None:
        rest: dict[str, Any] = {"weights": weights, "density": density, "method": method, "axis_name": axis_name}
        again: tuple[Array, Array] = histogram(x, **plainer, **rest)
        return again
    if axis_name is not None or is_split((x, weights)):
        split: tuple[Array, Array] = devices().compute(
            "histogram", (x, weights), axis_name, x, bins, range, weights, density, method
        )
        return split
    named = {"x": x} if weights is None else {"x": x, "weights": weights}
    counted = _bin_count(bins)
    if counted is None:
        named["bins"] = bins
    xp, arrays = admit(named)
    for name, one in zip(named, arrays, strict=True):
        check_kind(name, one, ("int", "uint", "float"))
    if weights is not None and arrays[1].shape != arrays[0].shape:
        shapes = f"{tuple(arrays[0].shape)}, got {tuple(arrays[1].shape)}"
        raise ValueError(f"weights must have the shape of x, {shapes}")
    density = check_flag("density", density)
    _METHODS.check(method)
    ends = complete = None
    if counted is None:
        if range is not None:
            raise ValueError("range must be None where bins are edges")
        if arrays[-1].ndim != 1 or arrays[-1].shape[0] < 2:
            got = f"shape {tuple(arrays[-1].shape)}"
            if arrays[-1].ndim == 0:
                got += ": a number of bins is an int, in a program one that it does not trace"
            raise ValueError(f"bins must have one dimension and two edges at least, got {got}")
        counted = arrays[-1].shape[0] - 1
        # Edges in the memory of a CPU ascend, in later calls too.
        complete = None if isinstance(method, Abstract) else checked_values(xp, arrays[-1], -1, _check_edges)
        edges = _compared(xp, arrays[0], arrays[-1])
    else:
        edges = _edge_dtype(xp, arrays[0].dtype)
        ends = None if range is None else _range(range, edges)
    if any(one is not given for one, given in zip(arrays, named.values(), strict=True)):
        key = None
    return _METHODS(  # type: ignore[no-any-return]
        method,
        xp,
        _Histogram(
            arrays=tuple(arrays),
            key=key,
            complete=complete,
            bins=counted,
            even=bins is not named.get("bins"),
            ends=ends,
            edges=edges,
            weighted=weights is not None,
            density=density,
            result=_result_dtype(xp, arrays[1].dtype if weights is not None else None),
        ),
    )


_UNORDERED = "bins must be edges that ascend, none of them NaN"


def _plainer(x: Array, bins: Any, range: Any, apart: bool) -> dict[str, Any] | None:
    """Return bins and range with Python's own numbers, and edges in a list as an array; None if they have these.

    ``apart`` says that several devices, or chunks, hold x: each makes an array of the edges then.
    """
    if isinstance(bins, list | tuple | builtins.range):
        if not apart:
            edges = listed_as_array("bins", bins, namespace_named("x", x), x)
            if not ascend(np.asarray(bins)):
                raise ValueError(_UNORDERED)
            return {"bins": edges, "range": range}
        if not isinstance(bins, tuple):
            return {"bins": tuple(bins), "range": range}
    return made_plain(bins=bins, range=range)


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
        raise TypeError(f"bins must be an integer or an array of edges, got {shown(bins)}")
    if not 0 < count < 2**31:
        raise ValueError(f"bins must be at least 1 and less than 2^31, got {count}")
    return count


def _range(range: Any, dtype: Any) -> tuple[float, float]:
    if not isinstance(range, (tuple, list)) or len(range) != 2:
        raise TypeError(f"range must be a pair of numbers, got {shown(range)}")
    first, last = (float(as_scalar("range", one, dtype)) for one in range)
    if not (math.isfinite(first) and math.isfinite(last) and first <= last):
        raise ValueError(f"range must be finite and ascend, got {shown(range)}")
    return (first - 0.5, last + 0.5) if first == last else (first, last)


def _edge_dtype(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype of computed edges, for elements of a dtype."""
    if dtype_kind(dtype) == "float":
        return compute_dtype(xp, dtype)
    return xp.float32 if is_jax(xp) and not mode(xp) else xp.float64


def _compared(xp: Namespace, x: Array, edges: Array) -> Any:
    """Return the dtype that elements and given edges are compared in."""
    floats = [one for one in (edges, x) if dtype_kind(one.dtype) == "float"]
    if len(floats) == 1:
        return compute_dtype(xp, floats[0].dtype)
    return compute_dtype(xp, promoted(xp, {"x": x, "bins": edges}, ("int", "uint", "float")))


def _result_dtype(xp: Namespace, weights: Any) -> Any:
    if weights is None:
        return xp.__array_namespace_info__().default_dtypes()["integral"]
    return sum_dtype(xp, weights)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Histogram(Checked):
    """A checked call. ``arrays`` are x, the weights if ``weighted``, and the edges unless they are ``even``.

    ``ends`` are the first and the last of even edges, None where x has them. ``edges`` is the dtype that elements and
    edges are compared in, ``result`` that of the counts.
    """

    bins: int
    even: bool
    ends: tuple[float, float] | None
    edges: Any
    weighted: bool
    density: bool
    result: Any

    def parts(self, xp: Namespace, edges: Array | None = None) -> tuple[Array, Array | None, Array]:
        """Return the elements, the weights, both of one dimension, and the edges, which are no array of the call's.

        ``edges`` are these where they are known.
        """
        x = xp.reshape(self.arrays[0], (-1,))
        weights = xp.reshape(self.arrays[1], (-1,)) if self.weighted else None
        if edges is None and self.even:
            edges = _even_edges(xp, x, self)
        elif edges is None:
            edges = widened(xp, self.arrays[-1], self.edges)
            edges = xp.astype(edges, edges.dtype, copy=True) if edges is self.arrays[-1] else edges
        return x, weights, edges

    def empty(self, xp: Namespace) -> tuple[Array, Array]:
        """Return arrays like the result."""
        on = device(self.arrays[0])
        counts = xp.empty((self.bins,), dtype=self.edges if self.density else self.result, device=on)
        return counts, xp.empty((self.bins + 1,), dtype=self.edges, device=on)


def _even_edges(xp: Namespace, x: Array, h: _Histogram) -> Array:
    """Return edges at equal distances; no x is needed where the ends are given."""
    place = {"dtype": h.edges, "device": None if x is None else device(x)}
    if h.ends is not None or x.shape[0] == 0:
        return _edges_between(xp, *(h.ends or (0.0, 1.0)), h.bins, place)
    keys = comparable(xp, x)
    ends = (library_routine(xp, name, (keys,))(keys) for name in ("min", "max"))
    first, last = (widened(xp, from_comparable(xp, one, x.dtype), h.edges) for one in ends)
    half = cast(xp, first == last, h.edges) * 0.5
    first, last = (xp.where(half > 0, end, one) for one, end in ((first, first - half), (last, last + half)))
    if dtype_kind(x.dtype) == "float":  # NaN has no place between others
        first = xp.where(xp.isfinite(first) & xp.isfinite(last), first, xp.full_like(first, math.nan))
    bins = xp.full((), h.bins, **place)  # an array: by a number PyTorch does not divide on GPUs, but multiplies
    steps = xp.arange(h.bins, **place) * ((last - first) / bins) + first
    if flushes(xp, h.edges):  # a first edge that is subnormal, and steps that the library takes for equal
        steps = xp.where(steps == first, first, steps)
    return xp.concat([steps, xp.reshape(last, (1,))])


def _edges_between(xp: Namespace, first: float, last: float, bins: int, place: dict[str, Any]) -> Array:
    """Return edges at equal distances, rounded as NumPy rounds them, whatever a library or its compiler does.

    On JAX they are a constant of the program, which might else compute those it returns in another way than others.
    """
    kind = np.dtype(dtype_name(place["dtype"])).type
    with np.errstate(all="ignore"):
        low, high = kind(first), kind(last)
        width = (high - low) / kind(bins)
        if is_jax(xp):
            steps = np.arange(bins, dtype=kind) * width + low
            return xp.asarray(np.append(steps, high), device=place["device"])
    return xp.concat([xp.arange(bins, **place) * float(width) + float(low), xp.full((1,), float(high), **place)])


def _finish(xp: Namespace, h: _Histogram, counts: Array, edges: Array) -> tuple[Array, Array]:
    """Return the result, given the counts or sums in every bin."""
    counts = cast(xp, counts, h.result)
    if not h.density:
        return counts, edges
    wide = edges if dtype_kind(edges.dtype) == "float" else xp.astype(edges, xp.float64)
    counts = xp.astype(counts, wide.dtype)
    return counts / xp.sum(counts) / (wide[1:] - wide[:-1]), edges


# ---- The array form ---------------------------------------------------------------------------------------------


def _bin_of(xp: Namespace, h: _Histogram, x: Array, edges: Array, search: Callable[[Array, Array], Array]) -> Array:
    """Return the bin of every element, and the number of bins for those that have none.

    ``search`` returns how many of the edges are at most each element.
    """
    x = widened(xp, x, h.edges)
    one, ends = comparable(xp, x), comparable(xp, edges)
    found = search(ends, one) - 1
    found = xp.where(one == ends[-1], xp.full_like(found, h.bins - 1), found)
    inside = (one >= ends[0]) & (one <= ends[-1])
    if one is not x:
        inside = inside & (x <= edges[-1])  # neither is NaN
    return xp.where(inside, found, xp.full_like(found, h.bins))


def _array(xp: Namespace, h: _Histogram) -> tuple[Array, Array]:
    """Return the counts by sorting the bins of elements: those of a bin lie side by side."""
    x, weights, edges = h.parts(xp)
    bin_of = _bin_of(xp, h, x, edges, functools.partial(above, xp))
    narrow = next(one for one in ("uint8", "int16", "int32", "int64") if h.bins <= np.iinfo(one).max)
    bin_of = xp.astype(bin_of, getattr(xp, narrow))
    every = xp.arange(h.bins, dtype=bin_of.dtype, device=device(x))
    if weights is None:
        with unwatched():
            bin_of = sort(bin_of, method="array")
        ends = above(xp, bin_of, every)
        starts = xp.concat([xp.zeros_like(ends[:1]), ends[:-1]])
        return _finish(xp, h, ends - starts, edges)
    with unwatched():
        bin_of, weights = sort_by_key(bin_of, cast(xp, weights, ring_dtype(xp, h.result)), method="array")
    zero = xp.zeros((h.bins,), dtype=weights.dtype, device=device(x))
    if x.shape[0] == 0:
        return _finish(xp, h, zero, edges)
    begins = xp.concat([xp.ones_like(bin_of[:1], dtype=xp.bool), bin_of[1:] != bin_of[:-1]])
    _, sums = inclusive(xp, (begins, weights), segmented(BUILT_IN["add"]), 0)
    ends = above(xp, bin_of, every)
    starts = xp.concat([xp.zeros_like(ends[:1]), ends[:-1]])
    last = xp.take(sums, xp.where(ends > 0, ends - 1, ends), axis=0)
    return _finish(xp, h, xp.where(ends > starts, last, zero), edges)


# ---- The libraries' own -----------------------------------------------------------------------------------------


def _prepare_native(xp: Namespace, h: _Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return a function of the arrays: the counts by the library's own routines, or by NumPy's in the same memory.

    NumPy makes even edges between given ends once, which takes longer than to count a hundred elements.
    """
    name = library(xp)
    if shares_memory(xp, h.arrays):
        edges, result = (np.dtype(dtype_name(one)) for one in (h.edges, h.result))
        given = tuple(map(as_numpy, h.arrays))  # their dtypes and shapes count
        run = _prepare_native(numpy_namespace(), dataclasses.replace(h, arrays=given, edges=edges, result=result))
        return all_by_numpy(xp, h.arrays, run)
    if name == "numpy" and h.even:
        return _prepare_even(xp, h)
    plainly: Callable[..., tuple[Array, Array]] = directly(_native)(xp, h)
    return quietly(plainly) if name == "numpy" else plainly


def _prepare_even(xp: Namespace, h: _Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return the same for NumPy and even edges, which are made of the elements unless their ends are known."""
    x, nothing = h.arrays[0], h.on(*(None,) * len(h.arrays))
    known, plain = None if h.ends is None else _even_edges(xp, None, h), x.dtype == h.edges and 0 not in x.shape
    made = even_edges(h.bins, np.dtype(h.edges)) if plain else None

    def edges_of(x: Any) -> Any:
        return known.copy() if known is not None else None if made is None else made(x)

    if math.prod(x.shape) > FEW or h.weighted or h.density or not plain or np.intp != h.result:
        return quietly(lambda *arrays: _native(xp, nothing.on(*arrays), edges_of(arrays[0])))
    ends, length = None if known is None else searchable(known), h.bins + 2

    def counted(x: Any) -> tuple[Any, Any]:
        edges = edges_of(x)
        if edges is None:
            return _native(xp, nothing.on(x))
        found = (searchable(edges) if ends is None else ends).searchsorted(x.reshape(-1), "right")
        return np.bincount(found, None, length)[1:-1], edges

    return counted if known is not None else quietly(counted)  # of known edges there is no cause to warn


def _native(xp: Namespace, h: _Histogram, edges: Array | None = None) -> tuple[Array, Array]:
    """Return the counts by the library's own search, and its own counting or scattered addition."""
    name = library(xp)
    x, weights, edges = h.parts(xp, edges)
    wide = None if weights is None else cast(xp, weights, ring_dtype(xp, h.result))
    if name == "numpy" and wide is None and dtype_kind(x.dtype) != "float" and len(x) > FEW:
        counts = counts_of_integers(x, edges)
        if counts is not None:
            return _finish(xp, h, counts, edges)
    if name == "numpy":
        x = cast(xp, x, h.edges)
        if not h.even and wide is None and len(x) > FEW:
            return _finish(xp, h, counts_between(x, edges), edges)
    if name == "numpy" and h.even and len(x) <= FEW:
        found = searchable(edges).searchsorted(x, "right")
        found[found == 0] = h.bins + 1
        found -= 1
    elif name == "numpy" and h.even and is_almost_even(edges):
        found = places_in_even(x, edges)
    elif name == "torch":
        import torch

        found = _bin_of(xp, h, x, edges, lambda ends, x: torch.bucketize(x.contiguous(), ends.contiguous(), right=True))
    else:
        found = _bin_of(xp, h, x, edges, functools.partial(xp.searchsorted, side="right"))
    if name == "jax":
        start = xp.zeros((h.bins + 1,), dtype=h.result if wide is None else wide.dtype)
        counts = start.at[found].add(1 if wide is None else wide)
    elif wide is None:
        counts = xp.bincount(found, minlength=h.bins + 1)
    elif name == "torch":  # of every dtype, at the very number of each bin
        counts = xp.zeros((h.bins + 1,), dtype=wide.dtype, device=device(x)).index_add(0, found, wide)
    elif dtype_kind(wide.dtype) != "float":
        counts = xp.zeros((h.bins + 1,), dtype=wide.dtype, device=device(x))
        xp.add.at(counts, found, wide)
    else:
        counts = xp.bincount(found, weights=wide, minlength=h.bins + 1)
    return _finish(xp, h, counts[: h.bins], edges)


def _native_refusal(xp: Namespace, h: _Histogram) -> str | None:
    if library(xp) == "other":
        return f"{spoken(xp)} has no histogram"
    if h.weighted and is_tensor(h.arrays[1]) and asked_for(h.arrays[1]):
        return "a derivative by weights is asked for, which is computed by operations"
    return _array_refusal(xp, h)


def _array_refusal(xp: Namespace, h: _Histogram) -> str | None:
    return lacks_arithmetic(xp, [x.dtype for x in h.arrays])


# ---- The kernel -------------------------------------------------------------------------------------------------


def _kernel_refusal(xp: Namespace, h: _Histogram) -> str | None:
    for x in h.arrays:
        if dtype_name(x.dtype) not in C_TYPES:
            return f"the kernel has no dtype {dtype_name(x.dtype)}"
    return _cuda.refusal(xp, h.arrays)


def _prepare(xp: Namespace, h: _Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return what computes the counts and the edges by CUDA kernels."""
    if 0 in h.arrays[0].shape:
        nothing: Callable[..., tuple[Array, Array]] = directly(_array)(xp, h)
        return nothing
    x, *others = h.arrays
    edges = None
    if not h.even:
        edges = others.pop()
    elif h.ends is not None and is_jax(xp):  # where a number is a part of the compiled kernel
        edges = np.array(h.ends, dtype=dtype_name(h.edges))
    given = [x] if edges is None else [x, widened(xp, edges, h.edges)]
    bare = h.on(*(None,) * len(h.arrays))

    def by_library(*arrays: Array) -> tuple[Array, ...]:
        return _native(xp, dataclasses.replace(bare, density=False).on(*arrays))

    given += others
    sorts = h.weighted and cuda.sorts(xp, bare, given)
    run = _by_sort(xp, bare, given) if sorts else cuda.run(xp, bare, given, by_library)

    def flat(x: Array) -> Array:
        return _cuda.contiguous(xp, _cuda.plain(xp, x if x.ndim == 1 else xp.reshape(x, (-1,))))

    def counted(x: Array, *others: Array) -> tuple[Array, Array]:
        weights, ends = others[: int(bare.weighted)], [] if edges is None else [edges]
        if not bare.even:
            ends = [flat(widened(xp, others[-1], bare.edges))]
        counts, found = run(flat(x), *ends, *map(flat, weights))
        return _finish(xp, bare, counts, found)

    return counted


def _by_sort(xp: Namespace, h: _Histogram, given: list[Array]) -> Callable[..., tuple[Array, Array]]:
    """Return what sums weights by the numbers of bins: sorted by them, and reduced by segments.

    ``h`` is the call without arrays, ``given`` are the elements, edges or ends if they are arrays, and the weights.
    """
    plain = dataclasses.replace(h, weighted=False)

    def by_library(*arrays: Array) -> tuple[Array, Array]:
        x, _, edges = plain.on(*arrays).parts(xp)
        numbers = _bin_of(xp, plain, x, edges, functools.partial(above, xp))
        return xp.astype(numbers, getattr(xp, cuda.number_dtype(h.bins))), edges

    find = cuda.run(xp, plain, given[:-1], by_library, numbered=True)

    def summed(*arrays: Array) -> tuple[Array, Array]:
        *own, weights = arrays
        numbers, edges = find(*own)
        with unwatched():
            return segment_reduce(weights, numbers, h.bins, method=Inside("kernel")), edges

    return summed


def _prepare_cpu(xp: Namespace, h: _Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return what computes the counts and the edges by kernels for CPUs."""
    if 0 in h.arrays[0].shape:
        return quietly(directly(_array)(xp, h))
    run, bare = cpu.prepare(xp, h), h.on(*(None,) * len(h.arrays))
    if not h.density and compute_dtype(xp, h.result) == h.result:
        return run
    return quietly(lambda *arrays: _finish(xp, bare, *run(*arrays)))


_METHODS = Methods(
    "histogram",
    kernel=by_device(
        Method(_prepare, _kernel_refusal, rehearsed=True),
        Method(_prepare_cpu, cpu.refusal, cpu.slower, quiet=True),
    ),
    native=Method(_prepare_native, _native_refusal, quiet=True, eager=lambda xp, h: shares_memory(xp, h.arrays)),
    array=Method(directly(_array), _array_refusal),
)

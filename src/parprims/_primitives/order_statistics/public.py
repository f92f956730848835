"""Order statistics: the largest or smallest elements, and what stands at a place of the sorted array."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Never

from parprims import _cuda
from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    along,
    check_choice,
    check_flag,
    compute_dtype,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    library,
    move_axis,
    normalize_axes,
    normalize_axis,
    shown,
)
from parprims._core.arrays import mode as wide_dtypes
from parprims._core.options import integer_of, made_plain
from parprims._core.other_words import unknown_option
from parprims._dispatch.by_device import by_device, either_of
from parprims._dispatch.composite import Composed, Part, by_parts, composed, gathered, in_program, native_by_numpy
from parprims._dispatch.derivative_rules import asked_by_torch, asked_for, constant
from parprims._dispatch.dispatch import Inside, Method, call_key, in_graph, primitive, recalled, unwatched
from parprims._libraries.steps import in_programs
from parprims._primitives.order_statistics import cuda, numpy_routines, partition_cuda, top_k_cpu
from parprims._primitives.order_statistics.quantiles import (
    Quantiles,
    between,
    rows_of,
    rows_to_ask_about,
    share_of,
    step,
)
from parprims._primitives.reduce.public import max as largest
from parprims._primitives.reduce.public import min as smallest
from parprims._primitives.sort.call import ascending_integers, bits, index_dtype, moved
from parprims._primitives.sort.public import argsort, sort

_REAL = ("int", "uint", "float")


@primitive
def top_k(
    x: Array,
    k: int,
    /,
    *,
    axis: int = -1,
    mode: str = "largest",
    sorted: bool = True,
    method: str = "auto",
    **others: Never,
) -> tuple[Array, Array]:
    """Find the k largest or smallest elements along an axis, and where they are.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and of integer or real floating dtype, in the order of `sort`: NaN
        counts as larger than all others.
    k : int
        How many elements are wanted, at most the length of the axis.
    axis : int
        The axis to search along.
    mode : {"largest", "smallest"}
        Which elements are wanted.
    sorted : bool
        Whether the results must be in order, the largest first, or the smallest. They are in any case.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    values : array
        The elements, of the shape of x but for length k along the axis, and of its dtype.
    indices : array
        Their positions along the axis, of the library's default dtype for indices. Of equal elements those of smaller
        index are taken, and come first.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order, or k is no integer.
    ValueError
        If k is negative or more than there are elements, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: where k is small, one pass that finds the best element of every chunk of sqrt(n / k), and sorts of
    sqrt(n k) elements; else, and by array on JAX, those of `argsort`. Kernels go through all elements once: on GPUs in
    one launch for k up to 1024, on CPUs for k up to n / 2.
    Error: none, elements are moved as they are.
    Reproducibility: the same input gives the same bits by every method.
    Methods: kernel (CUDA arrays; on CPUs with Numba), native (JAX's top_k; else as `max` and `argsort`), array.
    Derivatives: of values on PyTorch and JAX, by every method. Indices have none.
    Memory and more: docs/order_statistics.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> values, indices = parprims.top_k(np.array([3, 9, 1, 9]), 2)
    >>> values, indices
    (array([9, 9]), array([1, 3]))
    """
    if others:
        raise unknown_option("top_k", others)
    options = {"k": k, "axis": axis, "mode": mode, "sorted": sorted}
    if in_graph(x, method):
        values, indices = in_program("top_k", {"x": x}, options, method)
        return values, indices
    key = call_key("top_k", x, k, axis, mode, sorted, method, gradient=True)
    run = recalled(key)
    if run is not None:
        found: tuple[Array, Array] = run(x)
        return found
    plainer = made_plain(k=k, axis=axis)
    if plainer is not None:
        return top_k(x, plainer["k"], axis=plainer["axis"], mode=mode, sorted=sorted, method=method)
    xp, x, key = _admitted(x, key, method, "top_k")
    check_choice("mode", mode, ("largest", "smallest"))
    check_flag("sorted", sorted)
    at = normalize_axis(axis, x.ndim)
    count = integer_of("k", k, 0, x.shape[at])
    shape = (*x.shape[:at], count, *x.shape[at + 1 :])
    call = _Selection(
        arrays=(x,),
        key=key,
        results=((shape, x.dtype), (shape, index_dtype(xp))),
        axis=at,
        descending=str(mode) == "largest",
        places=(count,),
    )
    return _METHODS["top_k"](method, xp, call)  # type: ignore[no-any-return]


@primitive
def partition(
    x: Array, kth: int | tuple[int, ...], /, *, axis: int = -1, method: str = "auto", **others: Never
) -> Array:
    """Move elements so that the one that would stand at kth in the sorted array does, smaller ones before it.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and of integer or real floating dtype, in the order of `sort`.
    kth : int or sequence of int
        The place, or several. Negative ones count from the end.
    axis : int
        The axis to partition along.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `sort`. The errors and notes of `sort` apply. NumPy's own routine and the kernel on
        GPUs move no more elements than they must; all other implementations sort.

    Returns
    -------
    array
        The elements, of the shape and dtype of x. Those before kth are no larger than the one there, those after it no
        smaller; their order is otherwise left open.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.partition(np.array([5, 3, 8, 1]), 2)[2])
    5
    """
    if others:
        raise unknown_option("partition", others)
    return _partitioned("partition", x, kth, axis, method)


@primitive
def argpartition(
    x: Array, kth: int | tuple[int, ...], /, *, axis: int = -1, method: str = "auto", **others: Never
) -> Array:
    """Find the indices that partition along an axis, as `partition` does.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and of integer or real floating dtype, in the order of `sort`.
    kth : int or sequence of int
        The place, or several. Negative ones count from the end.
    axis : int
        The axis to partition along.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `sort`. The errors and notes of `sort` apply. NumPy's own routine and the kernel on
        GPUs move no more elements than they must; all other implementations sort.

    Returns
    -------
    array
        The indices, of the shape of x and the library's default dtype for indices.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.argpartition(np.array([5, 3, 8, 1]), 2)[2])
    0
    """
    if others:
        raise unknown_option("argpartition", others)
    return _partitioned("argpartition", x, kth, axis, method)


@primitive
def median(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    method: str = "auto",
    **others: Never,
) -> Array:
    """Find the element in the middle along axes, or the mean of the two there.

    Parameters
    ----------
    x : array
        The elements, of any shape and of integer or real floating dtype.
    axis : int, tuple of int or None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `quantile`. The errors and notes of `quantile` apply.

    Returns
    -------
    array
        The medians: NaN where there is a NaN. Of the dtype of x, or for integers of the default floating dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> float(parprims.median(np.array([5, 3, 8, 1])))
    4.0
    """
    if others:
        raise unknown_option("median", others)
    return _quantile("median", x, 0.5, axis, keepdims, "linear", method)


@primitive
def quantile(
    x: Array,
    q: float | tuple[float, ...],
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    interpolation: str = "linear",
    method: str = "auto",
    **others: Never,
) -> Array:
    """Find what stands at a share q of the sorted elements along axes.

    Parameters
    ----------
    x : array
        The elements, of any shape and of integer or real floating dtype.
    q : float or sequence of float
        The share, from 0 to 1, or several.
    axis : int, tuple of int or None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    interpolation : {"linear", "lower", "higher", "nearest", "midpoint"}
        What stands at a place between two elements: what lies on the line between them, the first, the second, the
        nearer (that of even place if none is), or their mean.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    array
        The quantiles, with an axis of the length of q in front if there are several: NaN where there is a NaN. Of the
        dtype of x, or for integers of the default floating dtype.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order, or q is no number.
    ValueError
        If q is not from 0 to 1, there is no element, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: those of `sort`; NumPy's own partition instead by native, for PyTorch's CPU arrays too. Kernel on
    GPUs, for up to three places, 256 elements or more and no derivative on PyTorch: for each place one pass over x for
    each 11 bits of an element.
    Error: 2 units in the last place of the larger of the two elements; none where one is taken as it is.
    Reproducibility: the same input gives the same bits by every method, but for the sign of a zero if x has both.
    Methods: kernel (CUDA arrays; on CPUs where `sort` has one), native, array.
    Derivatives: by x on PyTorch and JAX, by every method.
    Memory and more: docs/order_statistics.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.quantile(np.array([1.0, 2.0, 4.0]), (0.0, 0.25, 1.0))
    array([1. , 1.5, 4. ])
    """
    if others:
        raise unknown_option("quantile", others)
    return _quantile("quantile", x, q, axis, keepdims, interpolation, method)


# ---- Checks -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Selection(Composed):
    """A checked call along ``axis``, counted from the front. ``places`` are k, or those of a partition."""

    axis: int
    descending: bool = False
    places: tuple[int, ...]


def _admitted(x: Array, key: Any, method: str, name: str) -> tuple[Namespace, Array, Any]:
    """Return the namespace, x as every method takes it, and the key if that is x as given."""
    given = x
    xp, (x,) = admit({"x": x})
    _METHODS[name].check(method)
    if dtype_kind(x.dtype) not in _REAL or dtype_bits(x.dtype) not in (8, 16, 32, 64):
        raise TypeError(f"x must be of an integer or real floating dtype of 8 to 64 bits, got {dtype_name(x.dtype)}")
    return xp, x, key if x is given else None


def _partitioned(name: str, x: Array, kth: Any, axis: Any, method: str) -> Array:
    if in_graph(x, method):
        return in_program(name, {"x": x}, {"kth": kth, "axis": axis}, method)[0]
    key = call_key(name, x, kth, axis, method, gradient=True)
    run = recalled(key)
    if run is not None:
        return run(x)
    plainer = made_plain(kth=kth, axis=axis)
    if plainer is not None:
        return _partitioned(name, x, plainer["kth"], plainer["axis"], method)
    xp, x, key = _admitted(x, key, method, name)
    at = normalize_axis(axis, x.ndim)
    n = x.shape[at]
    places = kth if isinstance(kth, tuple) else (kth,)
    if not places:
        raise ValueError("kth must hold at least one place, got ()")
    if n == 0:
        raise ValueError(f"kth must be a place of the axis, which has no elements, got {shown(kth)}")
    counted = tuple([integer_of("kth", one, -n, n - 1) % n for one in places])
    dtype = x.dtype if name == "partition" else index_dtype(xp)
    call = _Selection(arrays=(x,), key=key, results=((tuple(x.shape), dtype),), single=True, axis=at, places=counted)
    return _METHODS[name](method, xp, call)


_INTERPOLATIONS = ("linear", "lower", "higher", "nearest", "midpoint")


def _quantile(name: str, x: Array, q: Any, axis: Any, keepdims: Any, interpolation: Any, method: str) -> Array:
    if in_graph(x, method):
        own = {} if name == "median" else {"q": q, "interpolation": interpolation}
        return in_program(name, {"x": x}, {**own, "axis": axis, "keepdims": keepdims}, method)[0]
    key = call_key(name, x, q, axis, keepdims, interpolation, method, gradient=True)
    run = recalled(key)
    if run is not None:
        return run(x)
    plainer = made_plain(q=q, axes=axis)
    if plainer is not None:
        return _quantile(name, x, plainer["q"], plainer["axes"], keepdims, interpolation, method)
    if isinstance(method, str) and method in _INTERPOLATIONS:
        raise ValueError(f"method must be who computes, got {method!r}: what stands between elements is interpolation")
    xp, x, key = _admitted(x, key, method, name)
    keepdims = check_flag("keepdims", keepdims)
    check_choice("interpolation", interpolation, _INTERPOLATIONS)
    axes = normalize_axes(axis, x.ndim)
    n = math.prod([x.shape[at] for at in axes])
    if n == 0:
        raise ValueError(f"x must not be empty along the axes of a {name}, got shape {tuple(x.shape)}")
    many = isinstance(q, tuple)
    if many and not q:
        raise ValueError("q must hold at least one share, got ()")
    steps = tuple([step(share_of(one), n, str(interpolation)) for one in (q if many else (q,))])
    shape = [1 if at in axes else m for at, m in enumerate(x.shape) if keepdims or at not in axes]
    dtype = x.dtype
    if dtype_kind(dtype) != "float":
        dtype = xp.float32 if is_jax(xp) and not wide_dtypes(xp) else xp.float64
    call = Quantiles(
        arrays=(x,),
        key=key,
        results=(((*((len(steps),) if many else ()), *shape), dtype),),
        single=True,
        axes=axes,
        steps=steps,
        many=many,
        working=compute_dtype(xp, dtype),
    )
    return _METHODS[name](method, xp, call)


# ---- The largest and smallest -----------------------------------------------------------------------------------


def _fixed(x: Array) -> Array:
    """Return x for an order, by which there is no derivative."""
    return constant(x) if asked_for(x) else x


def _order_parts(xp: Namespace, c: _Selection) -> list[Part]:
    del xp
    return [(argsort, (_fixed(c.arrays[0]),), {"axis": c.axis, "descending": c.descending})]


def _top_parts(xp: Namespace, c: _Selection) -> list[Part]:
    length, x = _chunk(c), _fixed(c.arrays[0])
    if not length:
        return _order_parts(xp, c)
    most = min(x.shape[c.axis], c.places[0] * length)
    x = bits(xp, x) if _as_signed(xp, x) else x
    return [
        (largest if c.descending else smallest, (x,), {"axis": c.axis}),
        (argsort, (x[along(c.axis, 0, most)],), {"axis": c.axis, "descending": c.descending}),
    ]


def _chunk(c: _Selection) -> int:
    """Return the length of chunks that an axis is cut into, or 0 where all of it is to be sorted.

    Of every chunk the best element is found, then that many chunks are searched: both are as much at this length.
    """
    (x,), (k,) = c.arrays, c.places
    length = math.isqrt(x.shape[c.axis] // k) if k else 0
    return length if length >= 4 and 0 not in x.shape else 0


def _as_signed(xp: Namespace, x: Array) -> bool:
    """Return whether the library finds extrema of signed integers alone."""
    return dtype_kind(x.dtype) == "uint" and library(xp) == "torch"


def _first_of_all(xp: Namespace, c: _Selection, method: str) -> Array:
    """Return the indices of the first of all elements in order.

    An element that is one of the first k is in one of the first k chunks, in the order of their best elements: each
    chunk before its own has an element that comes before it. Only these, and what is left over, are sorted.
    """
    (x,), (k,), length = c.arrays, c.places, _chunk(c)
    x = _fixed(x)
    if not length or (method == "array" and in_programs(xp)):  # a program of one sort and not of three
        order = argsort(x, axis=c.axis, descending=c.descending, method=method)
        return xp.concat([order[along(c.axis, 0, k)]], axis=c.axis)  # no view of all of them
    x = move_axis(xp, x, c.axis, -1)
    kind, last, n = dtype_kind(x.dtype), x.ndim - 1, x.shape[-1]
    if (kind == "float" and not c.descending) or _as_signed(xp, x):
        x = ascending_integers(xp, x)  # a smallest element would be any NaN, which here is the largest
    count = n // length
    chunks = xp.reshape(x[..., : count * length], (*x.shape[:-1], count, length))
    best = (largest if c.descending else smallest)(chunks, axis=-1, method=method)
    chosen = argsort(best, descending=c.descending, method=method)[..., :k]
    chosen = sort(xp.concat([chosen], axis=-1), method=method)
    places = xp.expand_dims(chosen * length, axis=-1) + xp.arange(length, dtype=chosen.dtype, device=device(x))
    places = xp.reshape(places, (*x.shape[:-1], k * length))
    if n % length:
        rest = xp.arange(count * length, n, dtype=chosen.dtype, device=device(x))
        places = xp.concat([places, xp.broadcast_to(rest, (*x.shape[:-1], n % length))], axis=-1)
    found = moved(xp, x, lambda one: gathered(xp, one, places, last))
    order = argsort(found, descending=c.descending, method=method)[..., :k]
    return move_axis(xp, gathered(xp, places, order, last), -1, c.axis)


def _top(xp: Namespace, c: _Selection, method: str) -> tuple[Array, Array]:
    """Return the first of all elements, and their indices."""
    index = _first_of_all(xp, c, method)
    return moved(xp, c.arrays[0], lambda one: gathered(xp, one, index, c.axis)), index


def _selected(xp: Namespace, c: _Selection, method: str) -> tuple[Array, Array]:
    """Return the same, by JAX's own function where that is there."""
    if not is_jax(xp) or 0 in c.arrays[0].shape:
        return _top(xp, c, method)
    import jax

    (x,), (k,) = c.arrays, c.places
    keys = move_axis(xp, ascending_integers(xp, _fixed(x), c.descending), c.axis, -1)
    index = xp.astype(jax.lax.top_k(~keys, k)[1], index_dtype(xp))  # which takes equal ones by their index
    index = move_axis(xp, index, -1, c.axis)
    return moved(xp, x, lambda one: gathered(xp, one, index, c.axis)), index


def _is_served(c: _Selection) -> bool:
    """Return whether the kernel of a GPU finds the elements, and no sort of them all does."""
    return 0 not in c.arrays[0].shape and cuda.serves(c.arrays[0].shape[c.axis], c.places[0])


def _prepare_top(xp: Namespace, c: _Selection) -> Callable[..., tuple[Array, Array]]:
    """Return what finds the first of all elements by the kernel of a GPU."""
    (x,), (k,), last = c.arrays, c.places, c.arrays[0].ndim - 1
    carried = asked_by_torch((x,))
    rows = _rows_of(xp, constant(x) if carried else x, c.axis)
    bare = dataclasses.replace(c, arrays=(None,), axis=-1, key=None)

    def otherwise(x: Array) -> tuple[Array, Array]:
        with unwatched():
            return _selected(xp, bare.on(x), "native")

    run = cuda.prepare(xp, rows, k, c.descending, otherwise)

    def found(x: Array) -> tuple[Array, Array]:
        values, index = run(_rows_of(xp, constant(x) if carried else x, c.axis))
        index = index if c.axis == last else move_axis(xp, index, -1, c.axis)
        if carried:
            return moved(xp, x, lambda one: gathered(xp, one, index, c.axis)), index
        return values if c.axis == last else move_axis(xp, values, -1, c.axis), index

    return found


def _rows_of(xp: Namespace, x: Array, axis: int) -> Array:
    """Return an array as kernels read it: contiguous, the axis last."""
    return _cuda.contiguous(xp, _cuda.plain(xp, x if axis == x.ndim - 1 else move_axis(xp, x, axis, -1)))


def _top_refusal(xp: Namespace, c: _Selection) -> str | None:
    (x,) = c.arrays
    return _cuda.refusal(xp, (constant(x),) if asked_by_torch((x,)) else c.arrays)


_BY_SORT = by_parts("kernel", _top, _top_parts)
_TOP = Method(_prepare_top, _top_refusal)
_TOP_BY_SORT = dataclasses.replace(
    _BY_SORT, prepare=lambda xp, c: cuda.prepare_by_sort(xp, c) or _BY_SORT.prepare(xp, c)
)


# ---- Partitions and quantiles -----------------------------------------------------------------------------------


def _sort_parts(xp: Namespace, c: _Selection) -> list[Part]:
    del xp
    return [(sort, c.arrays, {"axis": c.axis})]


def _sorted(xp: Namespace, c: _Selection, method: str) -> Array:
    del xp
    return sort(c.arrays[0], axis=c.axis, method=method)


def _ordered(xp: Namespace, c: _Selection, method: str) -> Array:
    del xp
    return argsort(_fixed(c.arrays[0]), axis=c.axis, method=method)


def _partition_on_gpu(name: str, by_sort: Method) -> Method:
    """Return the kernels of a partition, or the sort of short rows, for several places, or with a derivative."""
    prepare = functools.partial(partition_cuda.prepare, name == "argpartition")
    kernel = Method(prepare, lambda xp, c: _cuda.refusal(xp, c.arrays))

    def serves(c: _Selection) -> bool:
        (x,) = c.arrays
        return 0 not in x.shape and not asked_by_torch((x,)) and partition_cuda.serves(x.shape[c.axis], c.places)

    return either_of(lambda _, c: kernel if serves(c) else by_sort, rehearsed=True)


def _partitioning(name: str, compose: Any, parts: Any) -> dict[str, Method]:
    """Return the methods of a partition."""
    prepare = functools.partial(numpy_routines.prepare_partition, name)
    return {
        "kernel": by_device(
            _partition_on_gpu(name, by_parts("kernel", compose, parts)),
            numpy_routines.unless_partitions(compose, parts),
        ),
        "native": native_by_numpy(numpy_routines.partitioned(name, compose), parts, prepare),
    }


def _quantile_parts(xp: Namespace, c: Quantiles) -> list[Part]:
    return [(sort, (rows_to_ask_about(xp, c),), {})]


def _quantiles(xp: Namespace, c: Quantiles, method: str) -> Array:
    return between(xp, c, sort(rows_of(xp, c), method=method))


def _quantiles_by_numpy(xp: Namespace, c: Quantiles, method: str) -> Array:
    if not numpy_routines.is_ordered(xp, c):
        return _quantiles(xp, c, method)
    rows = rows_of(xp, c)
    places = {at for low, high, _ in c.steps for at in (low, high)} | {rows.shape[-1] - 1}
    return between(xp, c, xp.partition(rows, sorted(places), axis=-1))


def _lows(c: Quantiles) -> tuple[int, ...]:
    """Return the places of the first of two elements, of all quantiles."""
    return tuple(sorted({low for low, _, _ in c.steps}))


def _finds_places(c: Quantiles) -> bool:
    """Return whether the kernel of a GPU finds the elements, and no sort does, which a derivative goes through."""
    (x,) = c.arrays
    if 0 in x.shape or asked_by_torch((x,)):
        return False
    return cuda.finds_places(math.prod([x.shape[at] for at in c.axes]), len(_lows(c)))


def _prepare_quantiles(xp: Namespace, c: Quantiles) -> Callable[..., Array]:
    """Return what finds quantiles by the kernel of a GPU."""
    lows, bare = _lows(c), c.on(None)
    steps = tuple([(3 * lows.index(low), 3 * lows.index(low) + (high > low), part) for low, high, part in c.steps])
    found = dataclasses.replace(bare, steps=steps, key=None)

    def laid_out(x: Array) -> Array:
        return _cuda.contiguous(xp, _cuda.plain(xp, rows_of(xp, bare.on(x))))

    def otherwise(rows: Array) -> tuple[Array]:
        with unwatched():
            ordered, last = sort(rows, method="native"), rows.shape[-1] - 1
        taken = [ordered[..., at] for low in lows for at in (low, min(low + 1, last), last)]
        return (xp.stack(taken, axis=-1),)

    run = cuda.prepare_places(xp, laid_out(c.arrays[0]), lows, otherwise)
    finish = cuda.prepare_between(xp, found, c.arrays[0], 3 * len(lows))
    return lambda x: finish(run(laid_out(x))[0])


def _prepare_sorted(xp: Namespace, c: Quantiles) -> Callable[..., Array]:
    """Return what finds quantiles by a sort on a GPU."""
    (x,), bare = c.arrays, c.on(None)
    if is_jax(xp) or 0 in x.shape or asked_by_torch((x,)):
        return _QUANTILES_BY_SORT.prepare(xp, c)
    finish = cuda.prepare_between(xp, bare, x, math.prod([x.shape[at] for at in c.axes]))

    def run(x: Array) -> Array:
        with unwatched():
            return finish(sort(rows_of(xp, bare.on(x)), method=Inside("kernel")))

    return run


_QUANTILES_BY_SORT = by_parts("kernel", _quantiles, _quantile_parts)
_SORTED = dataclasses.replace(_QUANTILES_BY_SORT, prepare=_prepare_sorted)
_PLACES = Method(_prepare_quantiles, lambda xp, c: _cuda.refusal(xp, c.arrays))


_METHODS = {
    "top_k": composed(
        "top_k",
        _top,
        _top_parts,
        kernel=by_device(
            either_of(lambda _, c: _TOP if _is_served(c) else _TOP_BY_SORT, rehearsed=True),
            top_k_cpu.or_by_sort(_BY_SORT),
        ),
        native=native_by_numpy(_selected, _top_parts, numpy_routines.prepare_top),
    ),
    "partition": composed("partition", _sorted, _sort_parts, **_partitioning("partition", _sorted, _sort_parts)),
    "argpartition": composed(
        "argpartition", _ordered, _order_parts, **_partitioning("argpartition", _ordered, _order_parts)
    ),
    **{
        name: composed(
            name,
            _quantiles,
            _quantile_parts,
            kernel=by_device(
                either_of(lambda _, c: _PLACES if _finds_places(c) else _SORTED, rehearsed=True),
                numpy_routines.unless_partitions(_quantiles, _quantile_parts),
            ),
            native=native_by_numpy(_quantiles_by_numpy, _quantile_parts, numpy_routines.prepare_quantiles),
        )
        for name in ("median", "quantile")
    },
}

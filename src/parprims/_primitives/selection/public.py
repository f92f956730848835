"""Selection: the elements that are marked, runs of equal ones, and each element once."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Never

import numpy as np

from parprims import _cpu
from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    as_result,
    check_kind,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    is_tensor,
    is_traced,
    library,
    spoken,
)
from parprims._core.options import integer_of, made_plain
from parprims._core.other_words import unknown_option
from parprims._core.scalars import as_scalar
from parprims._dispatch.by_device import by_device
from parprims._dispatch.composite import (
    Compose,
    Composed,
    Part,
    Parts,
    by_parts,
    composed,
    in_program,
    made_once,
    native_by_numpy,
    stand_in,
)
from parprims._dispatch.derivative_rules import asked_by_torch, asked_for, constant
from parprims._dispatch.dispatch import (
    Inside,
    Method,
    Methods,
    call_key,
    directly,
    in_graph,
    plain,
    primitive,
    recalled,
    unwatched,
)
from parprims._libraries.numpy_bridge import as_numpy, in_numpy, returned, shares_memory
from parprims._libraries.settings import compiling
from parprims._primitives.scan.public import cumulative_sum
from parprims._primitives.search.public import above
from parprims._primitives.selection import cuda, numpy_routines
from parprims._primitives.sort import cpu as sort_cpu
from parprims._primitives.sort.call import bits, index_dtype, moved
from parprims._primitives.sort.public import argsort, sort


@primitive
def select(
    x: Array, mask: Array, /, *, size: int | None = None, fill_value: Any = 0, method: str = "auto", **others: Never
) -> tuple[Array, Array]:
    """Keep the elements where a mask is true, in their order.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype, taken in row-major order.
    mask : array
        Which of them are kept: of dtype bool and the shape of x.
    size : int, optional
        The length of the result, which must be given where arrays have no values: inside jit, vmap and torch.compile.
        By default the number of elements kept, which is read from the device.
    fill_value : scalar
        Fill value after the last element, if fewer than ``size`` are kept.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    values : array
        The elements kept, of one dimension and the dtype of x: the first ``size`` of them if there are more.
    count : array
        How many are kept, of no dimension and the library's default dtype for indices. It may be more than ``size``.

    Raises
    ------
    TypeError
        If an argument is no array, mask is not of dtype bool, or x cannot hold fill_value.
    ValueError
        If shapes differ, size is negative, or is missing where arrays have no values.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: a cumulative sum of the mask, and for every element of the result a search of it (array); one pass
    over the mask and the elements kept, and one more over the mask without ``size``, except on JAX (kernel on GPUs).
    Error: none, elements are moved as they are.
    Reproducibility: the same input gives the same bits by every method.
    Methods: kernel (CUDA arrays; on CPUs where `argsort` has one), native (NumPy, CuPy, PyTorch and JAX), array.
    Derivatives: of values on PyTorch and JAX, by every method.
    Memory and more: docs/selection.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x = np.array([5, 3, 8, 1])
    >>> values, count = parprims.select(x, x > 2)
    >>> values
    array([5, 3, 8])
    >>> values, count = parprims.select(x, x > 2, size=5, fill_value=-1)
    >>> values
    array([ 5,  3,  8, -1, -1])
    >>> int(count)
    3
    """
    if others:
        raise unknown_option("select", others)
    found = _sized("select", {"x": x, "mask": mask}, size, fill_value, method)
    return found[0], found[1]


@primitive
def partition_by(x: Array, mask: Array, /, *, method: str = "auto", **others: Never) -> tuple[Array, Array]:
    """Move the elements where a mask is true before the others, each in their order.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype, taken in row-major order.
    mask : array
        Which of them come first: of dtype bool and the shape of x.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `select`. The errors and notes of `select` apply. The kernel on GPUs reads the mask
        twice and the elements once. NumPy's own routine takes both parts by the mask; all other implementations sort.

    Returns
    -------
    values : array
        All elements, of one dimension and the dtype of x.
    count : array
        How many come first, of no dimension and the library's default dtype for indices.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x = np.array([5, 1, 8, 2])
    >>> values, count = parprims.partition_by(x, x > 2)
    >>> values
    array([5, 8, 1, 2])
    >>> int(count)
    2
    """
    if others:
        raise unknown_option("partition_by", others)
    if in_graph((x, mask), method):
        values, count = in_program("partition_by", {"x": x, "mask": mask}, {}, method)
        return values, count
    key = call_key("partition_by", (x, mask), method, gradient=True)
    run = recalled(key)
    if run is not None:
        found: tuple[Array, Array] = run(x, mask)
        return found
    given = x, mask
    xp, (x, mask) = admit({"x": x, "mask": mask})
    _METHODS["partition_by"].check(method)
    _check_mask(x, mask)
    call = _Selection(
        arrays=(x, mask),
        key=key if x is given[0] and mask is given[1] else None,
        results=(((math.prod(x.shape),), x.dtype), ((), index_dtype(xp))),
        size=None,
        fill_value=0,
    )
    return _METHODS["partition_by"](method, xp, call)  # type: ignore[no-any-return]


@primitive
def run_lengths(
    x: Array, /, *, size: int | None = None, fill_value: Any = 0, method: str = "auto", **others: Never
) -> tuple[Array, Array, Array]:
    """Find the runs of equal neighbours: the element of each, and how many there are of it.

    Parameters
    ----------
    x : array
        The elements, of one dimension and any dtype. -0 and +0 are equal, and NaN and NaN.
    size : int, optional
        The length of the results, as in `select`, whose errors and notes apply.
    fill_value : scalar
        Fill value after the last element, where there are fewer than ``size`` runs.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`. The kernel on GPUs reads the elements once; without ``size``, except on
        JAX, twice.

    Returns
    -------
    values : array
        The first element of every run, of the dtype of x.
    lengths : array
        The lengths of the runs, of the library's default dtype for indices, 0 behind the last.
    count : array
        How many runs there are, of no dimension and the same dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> values, lengths, count = parprims.run_lengths(np.array([7, 7, 2, 7]))
    >>> values, lengths
    (array([7, 2, 7]), array([2, 1, 1]))
    """
    if others:
        raise unknown_option("run_lengths", others)
    values, lengths, count = _sized("run_lengths", {"x": x}, size, fill_value, method)
    return values, lengths, count


@primitive
def unique(
    x: Array, /, *, size: int | None = None, fill_value: Any = 0, method: str = "auto", **others: Never
) -> tuple[Array, Array, Array]:
    """Find every element once, in order, and how often it occurs.

    Parameters
    ----------
    x : array
        The elements, of any shape and of a dtype that `sort` takes. -0 and +0 are equal, and NaN and NaN.
    size : int, optional
        The length of the results, as in `select`, whose errors and notes apply.
    fill_value : scalar
        Fill value after the last element, where there are fewer than ``size``.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    values : array
        The elements in the order of `sort`, of the dtype of x: of equal ones the first.
    counts : array
        How often each occurs, of the library's default dtype for indices, 0 behind the last.
    count : array
        How many there are, of no dimension and the same dtype.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> values, counts, count = parprims.unique(np.array([7, 2, 7, 3]))
    >>> values, counts
    (array([2, 3, 7]), array([1, 1, 2]))
    """
    if others:
        raise unknown_option("unique", others)
    values, counts, count = _sized("unique", {"x": x}, size, fill_value, method)
    return values, counts, count


# ---- Checks -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Selection(Composed):
    """A checked call. ``size`` is the length of the results, or None for as many as there are."""

    size: int | None
    fill_value: Any


def _check_mask(x: Array, mask: Array) -> None:
    check_kind("mask", mask, ("bool",))
    if mask.shape != x.shape:
        raise ValueError(f"mask must have the shape of x, {tuple(x.shape)}, got {tuple(mask.shape)}")


_UNKNOWN = "size must be given where arrays have no values, inside a program that is traced or compiled"


def _has_no_value(x: Array) -> bool:
    """Return whether an array is one of a program that is being made, or of a transformation."""
    if is_tensor(x):
        import torch

        return bool(compiling(x) or torch._C._are_functorch_transforms_active())
    return is_traced(x)


def _sized(name: str, named: dict[str, Array], size: Any, fill_value: Any, method: str) -> tuple[Array, ...]:
    given = tuple(named.values())
    if in_graph(given, method):
        if size is None:
            raise ValueError(_UNKNOWN)
        return in_program(name, named, {"size": size, "fill_value": fill_value}, method)
    filling = plain(fill_value)
    key = None if filling is None else call_key(name, given, size, filling, method, gradient=True)
    run = recalled(key)
    if run is not None:
        found: tuple[Array, ...] = run(*given)
        return found
    plainer = made_plain(size=size)
    if plainer is not None:
        return _sized(name, named, plainer["size"], fill_value, method)
    xp, arrays = admit(named)
    x = arrays[0]
    length = None if size is None else integer_of("size", size, 0, 2**31 - 1)
    _METHODS[name].check(method)
    if name == "select":
        _check_mask(x, arrays[1])
    elif name == "run_lengths" and x.ndim != 1:
        raise ValueError(f"x must have one dimension, got shape {tuple(x.shape)}")
    elif name == "unique" and (
        dtype_kind(x.dtype) not in ("bool", "int", "uint", "float") or dtype_bits(x.dtype) not in (8, 16, 32, 64)
    ):
        raise TypeError(f"x must be of bool, or of an integer or real floating dtype, got {dtype_name(x.dtype)}")
    if type(fill_value) is int and fill_value == 0 and dtype_kind(x.dtype) == "bool":
        fill_value = False
    filler = as_scalar("fill_value", fill_value, x.dtype)
    if length is None and any(map(_has_no_value, arrays)):
        raise ValueError(_UNKNOWN)
    # A program of JAX finds all that there may be, and is not one for every count. What NumPy computes is no program.
    shortened = length is None and is_jax(xp) and not (method in ("auto", "native") and shares_memory(xp, arrays))
    if shortened:
        length, key = math.prod(x.shape), None
    shape = (math.prod(x.shape) if length is None else length,)
    index = index_dtype(xp)
    counts = ((), index) if name == "select" else (shape, index), ((), index)
    results = ((shape, x.dtype), *(counts[1:] if name == "select" else counts))
    same = all(one is other for one, other in zip(arrays, given, strict=True))
    call = _Selection(arrays=tuple(arrays), key=key if same else None, results=results, size=length, fill_value=filler)
    selected: tuple[Array, ...] = _METHODS[name](method, xp, call)
    if shortened:
        *rows, count = selected
        return (*(row[: int(count)] for row in rows), count)
    return selected


# ---- The work ---------------------------------------------------------------------------------------------------


def _places(xp: Namespace, mask: Array, size: int | None, method: str) -> tuple[Array, Array]:
    """Return the places of the first true elements of a flat mask, of as many as there are or ``size``, and the count.

    Where there are fewer the place is the length of the mask.
    """
    index, n, name = index_dtype(xp), mask.shape[0], library(xp)
    if n == 0:
        return xp.zeros((size or 0,), dtype=index, device=device(mask)), xp.zeros((), dtype=index, device=device(mask))
    if method == "kernel" and not _cpu.on_cpu(xp, (mask,)):
        found, count = cuda.prepare(xp, "places", (mask,), size=size)(mask)
        return found, count
    by_numpy = method in ("native", "kernel") and in_numpy(xp, (mask,))
    if by_numpy or (method == "native" and name in ("cupy", "torch") and not _has_no_value(mask)):
        found = returned(xp, np.flatnonzero(as_numpy(mask))) if by_numpy else xp.nonzero(mask)[0]
        count = xp.asarray(found.shape[0], dtype=index, device=device(mask))
        return (found if size is None else _fitted(xp, found, size, n)), count
    if method == "native" and name == "jax":
        count = xp.sum(mask, dtype=index)
        return xp.nonzero(mask, size=size, fill_value=n)[0].astype(index), count
    if method == "array":
        sums = cumulative_sum(xp.astype(mask, index), method=method)
        count = xp.reshape(sums[n - 1 :], ())
        length = int(count) if size is None else size
        return above(xp, sums, xp.arange(length, dtype=index, device=device(mask))), count
    count = as_result(xp.sum(xp.astype(mask, index), dtype=index))
    order = argsort(~mask, method=method)
    if size is None:
        return order[: int(count)], count
    slots = xp.arange(size, dtype=index, device=device(mask))
    order = _fitted(xp, order, size, n)
    return xp.where(slots < count, order, xp.full_like(order, n)), count


def _fitted(xp: Namespace, x: Array, size: int, fill: int) -> Array:
    """Return the first elements of x, or all and as many of a number as are missing."""
    missing = size - x.shape[0]
    if missing <= 0:
        return x[:size]
    return xp.concat([x, xp.full((missing,), fill, dtype=x.dtype, device=device(x))])


def _taken(xp: Namespace, c: _Selection, x: Array, places: Array) -> Array:
    """Return the elements at places, and what fills up where there is none."""
    n = x.shape[0]
    if n == 0:
        return xp.full(places.shape, c.fill_value, dtype=x.dtype, device=device(x))
    inside = places < n
    at = xp.where(inside, places, xp.zeros_like(places)) if c.size is not None else places
    if c.size is None:
        return moved(xp, x, lambda one: xp.take(one, at, axis=0))
    fill = xp.full((1,), c.fill_value, dtype=x.dtype, device=device(x))

    def taken(one: Array) -> Array:
        return xp.where(inside, xp.take(one, at, axis=0), fill if one.dtype == x.dtype else bits(xp, fill))

    return moved(xp, x, taken)


def _flat(xp: Namespace, x: Array) -> Array:
    return xp.reshape(x, (math.prod(x.shape),))


def _flat_to_ask_about(xp: Namespace, x: Array) -> Array:
    """Return the same where it is a view, else an array that stands for it."""
    return x if x.ndim == 1 else stand_in(xp, x, (math.prod(x.shape),), x.dtype)


def _select(xp: Namespace, c: _Selection, method: str) -> tuple[Array, ...]:
    x, mask = (_flat(xp, one) for one in c.arrays)
    places, count = _places(xp, mask, c.size, method)
    return _taken(xp, c, x, places), count


def _select_parts(xp: Namespace, c: _Selection) -> list[Part]:
    return [(argsort, (_flat_to_ask_about(xp, c.arrays[1]),), {})]


def _partition_by(xp: Namespace, c: _Selection, method: str) -> tuple[Array, ...]:
    x, mask = (_flat(xp, one) for one in c.arrays)
    index = index_dtype(xp)
    if _launches(xp, c, method):
        each = xp.arange(x.shape[0], dtype=index, device=device(x))
        order, count = cuda.prepare(xp, "parted", (each, mask))(each, mask)
    else:
        order = argsort(~mask, method=method)
        count = as_result(xp.sum(xp.astype(mask, index), dtype=index))
    return moved(xp, x, lambda one: xp.take(one, order, axis=0)), count


def _differ(xp: Namespace, x: Array) -> Array:
    """Return where a run begins."""
    x = constant(x) if asked_for(x) else x
    if dtype_kind(x.dtype) == "uint" and dtype_bits(x.dtype) > 8 and library(xp) == "torch":
        x = x.view(getattr(xp, f"int{dtype_bits(x.dtype)}"))  # which PyTorch can compare
    n = x.shape[0]
    before, here = x[: max(n - 1, 0)], x[min(1, n) :]
    changed = before != here
    if dtype_kind(x.dtype) in ("float", "complex"):
        changed = changed & ~((before != before) & (here != here))
    return xp.concat([xp.ones((min(1, n),), dtype=xp.bool, device=device(x)), changed])


def _runs(xp: Namespace, c: _Selection, x: Array, method: str) -> tuple[Array, ...]:
    """Return the runs of x, whose lengths are the distances of their beginnings."""
    n = x.shape[0]
    if _launches(xp, c.on(x), method) and not asked_by_torch((x,)):
        return _prepare("runs", _run_lengths, xp, c.on(x))(x)
    places, count = _places(xp, _differ(xp, x), None if c.size is None else c.size + 1, method)
    if c.size is None:
        places = xp.concat([places, xp.full((1,), n, dtype=places.dtype, device=device(x))])
    return _taken(xp, c, x, places[:-1]), places[1:] - places[:-1], count


def _run_lengths(xp: Namespace, c: _Selection, method: str) -> tuple[Array, ...]:
    return _runs(xp, c, c.arrays[0], method)


def _run_parts(xp: Namespace, c: _Selection) -> list[Part]:
    (x,) = c.arrays
    return [(argsort, (stand_in(xp, x, tuple(x.shape), xp.bool),), {})]


def _unique(xp: Namespace, c: _Selection, method: str) -> tuple[Array, ...]:
    return _runs(xp, c, sort(_flat(xp, c.arrays[0]), method=method), method)


def _unique_parts(xp: Namespace, c: _Selection) -> list[Part]:
    return [(sort, (_flat_to_ask_about(xp, c.arrays[0]),), {})]


def _launches(xp: Namespace, c: _Selection, method: str) -> bool:
    """Return whether kernels of a GPU are to compute a call."""
    return method == "kernel" and 0 not in c.arrays[0].shape and not _cpu.on_cpu(xp, c.arrays)


def _prepare(results: str, compose: Compose, xp: Namespace, c: _Selection) -> Callable[..., tuple[Array, ...]]:
    """Return what computes a call by kernels of a GPU.

    Where PyTorch asks for a derivative it is that of its operations, and kernels only find out what is to be moved.
    """
    if 0 in c.arrays[0].shape or asked_by_torch(c.arrays):
        return directly(lambda xp, call: compose(xp, call, "kernel"))(xp, c)
    bare = c.on(*(None,) * len(c.arrays))

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        with unwatched():
            found: tuple[Array, ...] = compose(xp, bare.on(*arrays), "native")
        return found

    if c.size == 0 and is_jax(xp):  # whose kernels have no results without elements
        return otherwise
    return cuda.prepare(xp, results, c.arrays, otherwise, c.size, c.fill_value)


def _by_kernels(results: str, compose: Compose, cpu: Method) -> Method:
    """Return the method that launches kernels on a GPU, and is the other elsewhere."""

    def refusal(xp: Namespace, c: Any) -> str | None:
        arrays = tuple(map(constant, c.arrays)) if asked_by_torch(c.arrays) else c.arrays
        return cuda.refusal(xp, arrays)

    return by_device(Method(functools.partial(_prepare, results, compose), refusal, rehearsed=True), cpu)


def _by_library(compose: Compose, parts: Parts, alone: Callable[..., Any]) -> dict[str, Method]:
    """Return the kernel, which on a CPU is slower than the library that finds what is marked, and the library's way."""
    sorts = by_parts("kernel", compose, parts)

    def slower(xp: Namespace, c: Any) -> str | None:
        if library(xp) != "other" and _cpu.on_cpu(xp, c.arrays):
            return f"{spoken(xp)} finds what is marked without a sort"
        return None if sorts.slower is None else sorts.slower(xp, c)

    native = native_by_numpy(compose, parts, alone)
    return {"kernel": dataclasses.replace(sorts, slower=slower), "native": native}


def _unique_by_library() -> dict[str, Method]:
    """Return the methods, of which the kernel is the slower where it is for the sort."""
    sorts = by_parts("kernel", _unique, _unique_parts)

    def prepare(xp: Namespace, c: Any) -> Callable[..., tuple[Array, ...]]:
        if not _launches(xp, c, "kernel") or asked_by_torch(c.arrays):
            found = numpy_routines.prepare_unique(xp, c, sort_cpu) if _cpu.on_cpu(xp, c.arrays) else None
            return found or sorts.prepare(xp, c)
        bare = c.on(None)
        runs = made_once(lambda x: _prepare("runs", _run_lengths, xp, bare.on(x)))

        def run(x: Array) -> tuple[Array, ...]:
            with unwatched():
                found: tuple[Array, ...] = runs(sort(_flat(xp, x), method=Inside("kernel")))
            return found

        return run

    kernel = dataclasses.replace(sorts, prepare=prepare, rehearsed=True)
    return {"kernel": kernel, "native": native_by_numpy(_unique, _unique_parts, numpy_routines.prepare_unique)}


def _with_kernels(results: str, primitive: str, compose: Compose, parts: Parts, alone: Callable[..., Any]) -> Methods:
    """Return the methods of a primitive of which the kernel finds the marked elements."""
    own = _by_library(compose, parts, alone)
    return composed(primitive, compose, parts, **{**own, "kernel": _by_kernels(results, compose, own["kernel"])})


_METHODS = {
    "select": _with_kernels("values", "select", _select, _select_parts, numpy_routines.prepare_select),
    "partition_by": _with_kernels(
        "parted", "partition_by", _partition_by, _select_parts, numpy_routines.prepare_partition_by
    ),
    "run_lengths": _with_kernels("runs", "run_lengths", _run_lengths, _run_parts, numpy_routines.prepare_run_lengths),
    "unique": composed("unique", _unique, _unique_parts, **_unique_by_library()),
}

"""Selection: elements where a mask is true, runs of equal elements, and distinct elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import Array, Namespace
from parprims._dispatch.by_device import by_device
from parprims._dispatch.composite import Compose, Parts, by_parts, composed, made_once, native_by_numpy
from parprims._dispatch.derivative_rules import asked_by_torch
from parprims._dispatch.dispatch import Inside, Method, Methods, exact, primitive
from parprims._dispatch.examples import Given, Sample, lines
from parprims._dispatch.primitive import Arguments, Check, Primitive
from parprims._dispatch.registry import nodes
from parprims._dispatch.watch import unwatched
from parprims._primitives.selection import array, cpu, cuda, numpy_routines
from parprims._primitives.selection.call import (
    NO_SIZE,
    Bounded,
    Selection,
    check_partition_by,
    check_run_lengths,
    check_select,
    check_unique,
)
from parprims._primitives.sort.public import sort


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
        True for the elements to keep: of dtype bool and the shape of x.
    size : int, optional
        The length of the results. It is required inside jit, vmap and torch.compile, where the number of elements kept
        is unknown. The default is the number of elements kept, which is read from the device.
    fill_value : scalar, default 0
        The value that fills results up to ``size``, if fewer elements are kept.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    values : array
        The elements kept, of one dimension and the dtype of x; only the first ``size`` if there are more.
    count : array
        The number of elements kept, a 0-d array of the library's default dtype for indices. It may exceed ``size``.

    Raises
    ------
    TypeError
        If an argument is no array, mask is not of dtype bool, or x cannot hold fill_value.
    ValueError
        If shapes differ, or size is negative, or missing inside jit, vmap or torch.compile.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    partition_by : Keeps the other elements too, behind.
    unique : Every distinct element once.

    Notes
    -----
    Work and depth: a cumulative sum of the mask, and a search of this sum for every element of the result (array); one
    pass over the mask and the elements kept, and without ``size`` another over the mask, except on JAX (kernel on
    GPUs).
    Error: none, elements are moved as they are.
    Reproducibility: the same input gives the same bits by every method.
    Methods: kernel (CUDA arrays; on CPUs where `argsort` has one), native (NumPy, CuPy, PyTorch and JAX), array.
    Derivatives: of values on PyTorch and JAX, by every method.
    Memory and more: the page "select" of the documentation.

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

    Inside a program of JAX, for which size is a constant:

    >>> import jax
    >>> kept = jax.jit(lambda x: parprims.select(x, x > 2, size=3))(jax.numpy.asarray(x))
    >>> kept[0].tolist(), int(kept[1])
    ([5, 3, 8], 3)
    """
    arrays = {"x": x, "mask": mask}
    values, count = _SELECT(others, arrays, method, size=size, fill_value=fill_value)
    return values, count


@primitive
def partition_by(x: Array, mask: Array, /, *, method: str = "auto", **others: Never) -> tuple[Array, Array]:
    """Move the elements where a mask is true before all others, both in their order.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype, taken in row-major order.
    mask : array
        True for the elements that come first: of dtype bool and the shape of x.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    values : array
        All elements, of one dimension and the dtype of x.
    count : array
        The number of elements where the mask is true, a 0-d array of the library's default dtype for indices.

    Raises
    ------
    TypeError
        If an argument is no array, or mask is not of dtype bool.
    ValueError
        If shapes differ, or an argument has an unknown value.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    select : Keeps only the elements where the mask is true.
    partition : Reorders elements around an index of the sorted array.

    Notes
    -----
    The notes of `select` apply. The kernel on GPUs reads the mask twice and the elements once. NumPy's own routine
    selects by the mask and by its inverse. All other implementations sort.

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
    values, count = _PARTITION_BY(others, {"x": x, "mask": mask}, method)
    return values, count


@primitive
def run_lengths(
    x: Array, /, *, size: int | None = None, fill_value: Any = 0, method: str = "auto", **others: Never
) -> tuple[Array, Array, Array]:
    """Find the runs of equal neighbours: the element and the length of each run.

    Parameters
    ----------
    x : array
        The elements, of one dimension and any dtype. -0 and +0 are equal, and NaN and NaN.
    size : int, optional
        The length of the results. It is required inside jit, vmap and torch.compile, where the number of runs is
        unknown. The default is the number of runs, which is read from the device.
    fill_value : scalar, default 0
        The value that fills results up to ``size``, if there are fewer runs.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    values : array
        The first element of every run, of the dtype of x.
    lengths : array
        The lengths of the runs, of the library's default dtype for indices, 0 after the last run.
    count : array
        The number of runs, a 0-d array of the dtype of lengths.

    Raises
    ------
    TypeError
        If x is no array, or cannot hold fill_value.
    ValueError
        If x does not have one dimension, or size is negative, or missing inside jit, vmap or torch.compile.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    unique : Every distinct element once.
    segment_reduce : Reduces the elements of segments.

    Notes
    -----
    The notes of `select` apply. The kernel on GPUs reads the elements once; without ``size``, except on JAX, twice.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> values, lengths, count = parprims.run_lengths(np.array([7, 7, 2, 7]))
    >>> values, lengths
    (array([7, 2, 7]), array([2, 1, 1]))

    With a fixed size:

    >>> parprims.run_lengths(np.array([7, 7, 2, 7]), size=4, fill_value=-1)[0]
    array([ 7,  2,  7, -1])
    """
    values, lengths, count = _RUN_LENGTHS(others, {"x": x}, method, size=size, fill_value=fill_value)
    return values, lengths, count


@primitive
def unique(
    x: Array, /, *, size: int | None = None, fill_value: Any = 0, method: str = "auto", **others: Never
) -> tuple[Array, Array, Array]:
    """Find the distinct elements in order, and count them.

    Parameters
    ----------
    x : array
        The elements, of any shape and of a dtype that `sort` takes. -0 and +0 are equal, and NaN and NaN.
    size : int, optional
        The length of the results. It is required inside jit, vmap and torch.compile, where the number of distinct
        elements is unknown. The default is the number of distinct elements, which is read from the device.
    fill_value : scalar, default 0
        The value that fills results up to ``size``, if there are fewer distinct elements.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    values : array
        The distinct elements in the order of `sort`, of the dtype of x. The first of equal elements is kept.
    counts : array
        The number of occurrences of each, of the library's default dtype for indices, 0 after the last.
    count : array
        The number of distinct elements, a 0-d array of the dtype of counts.

    Raises
    ------
    TypeError
        If x is no array, its dtype has no order, or it cannot hold fill_value.
    ValueError
        If size is negative, or missing inside jit, vmap or torch.compile, or an argument has an unknown value.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    run_lengths : Runs of equal neighbours, without a sort.
    histogram : Counts between edges.

    Notes
    -----
    The notes of `select` apply, and the notes of `sort` for the sort.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> values, counts, count = parprims.unique(np.array([7, 2, 7, 3]))
    >>> values, counts
    (array([2, 3, 7]), array([1, 1, 2]))

    With a fixed size:

    >>> parprims.unique(np.array([7, 2, 7, 3]), size=4, fill_value=-1)[0]
    array([ 2,  3,  7, -1])
    """
    values, counts, count = _UNIQUE(others, {"x": x}, method, size=size, fill_value=fill_value)
    return values, counts, count


# ---- Declarations -------------------------------------------------------------------------------------------------


def _in_graph(asked: Arguments) -> tuple[Array, ...]:
    """Return the results as a node of torch.compile's graph, where their length must be known."""
    if asked["size"] is None:
        raise ValueError(NO_SIZE)
    results: tuple[Array, ...] = nodes().call(asked.name, asked)
    return results


def _shortened(methods: Methods, method: str, xp: Namespace, c: Selection) -> tuple[Array, ...]:
    """Return the results by a method. Results of the largest possible length are shortened to their count."""
    results: tuple[Array, ...] = methods(method, xp, c)
    if not isinstance(c, Bounded):
        return results
    *rows, count = results
    return (*(row[: int(count)] for row in rows), count)


def _methods(name: str, results: str, compose: Compose, parts: Parts, alone: Callable[..., Any]) -> Methods:
    """Return the methods of a primitive with a selection kernel on GPUs; ``alone`` prepares NumPy's own routine."""

    def prepare(xp: Namespace, c: Selection) -> cuda.Run:
        return cuda.prepare(results, compose, xp, c)

    gpu = Method(prepare, cuda.refusal, rehearsed=True)
    on_cpu = cpu.by_sort(compose, parts)
    kernel = by_device(gpu, on_cpu, on_cpu)
    return composed(name, exact, compose, parts, kernel=kernel, native=native_by_numpy(compose, parts, alone))


def _with_mask(make: Sample) -> tuple[Any, Any]:
    x = make()
    return x, x > make()


def _sized(name: str, check: Check, methods: Methods) -> Primitive:
    def example(make: Sample) -> Given:
        return (_with_mask(make) if name == "select" else (make(),)), make.sized

    return Primitive(
        name=name,
        check=check,
        methods=methods,
        example=lines(example),
        numbers=("fill_value",),
        compute=_shortened,
        node=_in_graph,
    )


_UNIQUE_BY_SORT = by_parts("kernel", array.unique, array.unique_parts)


def _prepare_unique(xp: Namespace, c: Selection) -> cuda.Run:
    """Return a function that sorts on a GPU and finds the runs of the sorted elements."""
    if not cuda.launches(xp, c, "kernel") or asked_by_torch(c.arrays):
        return _UNIQUE_BY_SORT.prepare(xp, c)
    bare = c.on(None)
    runs = made_once(lambda x: cuda.prepare("runs", array.run_lengths, xp, bare.on(x)))

    def run(x: Array) -> tuple[Array, ...]:
        with unwatched():
            results: tuple[Array, ...] = runs(sort(array.flat(xp, x), method=Inside("kernel")))
        return results

    return run


_SELECT = _sized(
    "select",
    check_select,
    _methods("select", "values", array.select, array.select_parts, alone=numpy_routines.prepare_select),
)
_PARTITION_BY = Primitive(
    name="partition_by",
    check=check_partition_by,
    methods=_methods(
        "partition_by", "parted", array.partition_by, array.select_parts, alone=numpy_routines.prepare_partition_by
    ),
    example=lines(lambda make: (_with_mask(make), {})),
)
_RUN_LENGTHS = _sized(
    "run_lengths",
    check_run_lengths,
    _methods("run_lengths", "runs", array.run_lengths, array.run_parts, alone=numpy_routines.prepare_run_lengths),
)
_UNIQUE = _sized(
    "unique",
    check_unique,
    composed(
        "unique",
        exact,
        array.unique,
        array.unique_parts,
        kernel=by_device(
            dataclasses.replace(_UNIQUE_BY_SORT, prepare=_prepare_unique, rehearsed=True),
            cpu.runs_in_order(_UNIQUE_BY_SORT),
            _UNIQUE_BY_SORT,
        ),
        native=native_by_numpy(array.unique, array.unique_parts, numpy_routines.prepare_unique),
    ),
)

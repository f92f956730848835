"""Order statistics: the largest or smallest elements, partitions, and quantiles."""

from __future__ import annotations

import dataclasses
import functools
from typing import Never

from parprims._core.arrays import Array, Namespace
from parprims._dispatch.by_device import by_device, either_of
from parprims._dispatch.composite import Compose, Parts, by_parts, composed, native_by_numpy
from parprims._dispatch.dispatch import Method, exact, primitive, unordered
from parprims._dispatch.examples import MakesCall, of_an_array
from parprims._dispatch.primitive import Check, Primitive
from parprims._primitives.order_statistics import array, cuda, numpy_routines, partition_cuda
from parprims._primitives.order_statistics.call import (
    Quantiles,
    check_argpartition,
    check_median,
    check_partition,
    check_quantile,
    check_top_k,
    plainer_axes,
)
from parprims._primitives.order_statistics.top_k import cpu as top_k_cpu


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
        The number of elements to find, at most the length of the axis.
    axis : int, default -1
        The axis to search along.
    mode : {"largest", "smallest"}, default "largest"
        Which elements to find.
    sorted : bool, default True
        Whether the results must be in order, the largest or the smallest first. They always are.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    values : array
        The elements, of the shape of x except for length k along the axis, and of the dtype of x.
    indices : array
        Their indices along the axis, of the library's default dtype for indices. Of equal elements the first in x are
        taken, in the order of x.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order, or k is no integer.
    ValueError
        If k is negative or more than there are elements, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    partition : The k smallest elements in any order.
    sort : All elements in order.
    argmax : The index of the largest element.

    Notes
    -----
    Work and depth: for small k, one pass that finds the best element of every chunk of sqrt(n / k), and sorts of
    sqrt(n k) elements; for larger k, and by array on JAX, the work and depth of `argsort`. Kernels read all elements
    once: on GPUs in one launch for k up to 1024, on CPUs for k up to n / 2.
    Error: none, elements are moved as they are.
    Reproducibility: the same input gives the same bits by every method.
    Methods: kernel (CUDA arrays; on CPUs with Numba), native (JAX's top_k; on other libraries `max` and `argsort`),
    array.
    Derivatives: of values on PyTorch and JAX, by every method. Indices have none.
    Memory and more: the page "top_k" of the documentation.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> values, indices = parprims.top_k(np.array([3, 9, 1, 9]), 2)
    >>> values, indices
    (array([9, 9]), array([1, 3]))

    The smallest, along the first axis:

    >>> parprims.top_k(np.array([[3, 9], [1, 4]]), 1, axis=0, mode="smallest")[0]
    array([[1, 4]])

    Inside a program of JAX, for which k is a constant:

    >>> import jax
    >>> jax.jit(parprims.top_k, static_argnums=1)(jax.numpy.array([3, 9, 1]), 2)[0].tolist()
    [9, 3]
    """
    values, indices = _TOP_K(others, {"x": x}, method, k=k, axis=axis, mode=mode, sorted=sorted)
    return values, indices


@primitive
def partition(
    x: Array, kth: int | tuple[int, ...], /, *, axis: int = -1, method: str = "auto", **others: Never
) -> Array:
    """Reorder elements so that kth holds the element of the sorted array, and no smaller element follows it.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and of integer or real floating dtype, in the order of `sort`.
    kth : int or sequence of int
        The index, or several indices. Negative indices count from the end.
    axis : int, default -1
        The axis to partition along.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The elements, of the shape and dtype of x. Elements before kth are no larger than the element at kth, elements
        after it no smaller; their order is unspecified.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order, or kth is no integer.
    ValueError
        If kth is out of range, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    argpartition : The indices that partition.
    top_k : The k largest or smallest elements, in order.
    sort : All elements in order.

    Notes
    -----
    NumPy's own routine and the kernel on GPUs partition. All other implementations sort, and the notes of `sort`
    apply.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.partition(np.array([5, 3, 8, 1]), 2)[2])
    5

    Along the first axis:

    >>> parprims.partition(np.array([[5, 1], [3, 8]]), 0, axis=0)[0]
    array([3, 1])
    """
    return _PARTITION(others, {"x": x}, method, kth=kth, axis=axis)


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
        The index, or several indices. Negative indices count from the end.
    axis : int, default -1
        The axis to partition along.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The indices, of the shape of x and the library's default dtype for indices.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order, or kth is no integer.
    ValueError
        If kth is out of range, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    partition : The partitioned elements.
    argsort : The indices that sort.

    Notes
    -----
    NumPy's own routine and the kernel on GPUs partition. All other implementations sort, and the notes of `sort`
    apply.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.argpartition(np.array([5, 3, 8, 1]), 2)[2])
    0

    Along the first axis:

    >>> parprims.argpartition(np.array([[5, 1], [3, 8]]), 0, axis=0)[0]
    array([1, 0])
    """
    return _ARGPARTITION(others, {"x": x}, method, kth=kth, axis=axis)


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
    """Find the median along axes: the middle of the sorted elements, or the mean of the two middle elements.

    Parameters
    ----------
    x : array
        The elements, of any shape and of integer or real floating dtype.
    axis : int, tuple of int or None, default None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool, default False
        Whether the searched axes stay, with length 1.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The medians, NaN if a searched element is NaN. Of the dtype of x, or for integers of the default floating dtype.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order.
    ValueError
        If there is no element, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    quantile : Other quantiles.

    Notes
    -----
    The notes of `quantile` apply.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> float(parprims.median(np.array([5, 3, 8, 1])))
    4.0

    Along an axis:

    >>> parprims.median(np.array([[5, 3, 8], [1, 2, 4]]), axis=1)
    array([5., 2.])
    """
    return _MEDIAN(others, {"x": x}, method, axis=axis, keepdims=keepdims)


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
    """Find quantiles along axes: the value below which a fraction q of the sorted elements lies.

    Parameters
    ----------
    x : array
        The elements, of any shape and of integer or real floating dtype.
    q : float or sequence of float
        The fraction, from 0 to 1, or several fractions.
    axis : int, tuple of int or None, default None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool, default False
        Whether the searched axes stay, with length 1.
    interpolation : {"linear", "lower", "higher", "nearest", "midpoint"}, default "linear"
        The value between two neighbouring sorted elements: linear interpolation, the lower element, the higher, the
        nearest (at equal distance the element of even index), or the mean of both.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The quantiles, NaN if a searched element is NaN. Several q add a leading axis of their number. Of the dtype of
        x, or for integers of the default floating dtype.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order, or q is no number.
    ValueError
        If q is not from 0 to 1, there is no element, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    median : The quantile 0.5.
    partition : Elements around an index of the sorted array.
    top_k : The k largest or smallest elements.

    Notes
    -----
    Work and depth: as for `sort`. Native is NumPy's partition on NumPy's arrays and PyTorch's CPU arrays. Kernel on
    GPUs, for up to three quantiles of 256 elements or more without a derivative on PyTorch, passes over x once for each
    quantile and each 11 bits of an element.
    Error: 2 units in the last place of the larger of the two elements; none without interpolation.
    Reproducibility: the same input gives the same bits by every method, except for the sign of a zero if x has both.
    Methods: kernel (CUDA arrays; on CPUs where `sort` has one), native, array.
    Derivatives: by x on PyTorch and JAX, by every method.
    Memory and more: the page "quantile" of the documentation.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.quantile(np.array([1.0, 2.0, 4.0]), (0.0, 0.25, 1.0))
    array([1. , 1.5, 4. ])

    Along an axis, and an element in place of a mean of two:

    >>> parprims.quantile(np.array([[1.0, 2.0], [4.0, 8.0]]), 0.5, axis=1)
    array([1.5, 6. ])
    >>> float(parprims.quantile(np.array([1.0, 2.0, 4.0]), 0.4, interpolation="lower"))
    1.0
    """
    options = {"q": q, "axis": axis, "keepdims": keepdims, "interpolation": interpolation}
    return _QUANTILE(others, {"x": x}, method, **options)


# ---- Declarations -------------------------------------------------------------------------------------------------


_TOP_BY_PARTS = by_parts("kernel", array.top, array.top_parts)
_TOP_BY_SORT = dataclasses.replace(
    _TOP_BY_PARTS, prepare=lambda xp, c: cuda.prepare_top_by_sort(xp, c) or _TOP_BY_PARTS.prepare(xp, c)
)
_TOP_ON_GPU = Method(cuda.prepare_top, cuda.top_refusal)

_TOP_K = Primitive(
    name="top_k",
    check=check_top_k,
    methods=composed(
        "top_k",
        exact,
        array.top,
        array.top_parts,
        kernel=by_device(
            either_of(lambda _, c: _TOP_ON_GPU if cuda.finds_top(c) else _TOP_BY_SORT, rehearsed=True),
            top_k_cpu.or_by_sort(_TOP_BY_PARTS),
            _TOP_BY_PARTS,
        ),
        native=native_by_numpy(array.top_by_library, array.top_parts, numpy_routines.prepare_top),
    ),
    example=lambda make: ((make(), make.few), make.along),
)


def _partition(name: str, check: Check, compose: Compose, parts: Parts) -> Primitive:
    by_sort = by_parts("kernel", compose, parts)
    on_gpu = Method(functools.partial(partition_cuda.prepare, name == "argpartition"), partition_cuda.refusal)
    alone = functools.partial(numpy_routines.prepare_partition, name)
    methods = composed(
        name,
        unordered,
        compose,
        parts,
        kernel=by_device(
            either_of(lambda _, c: on_gpu if partition_cuda.partitions(c) else by_sort, rehearsed=True),
            numpy_routines.unless_partitions(by_sort),
            by_sort,
        ),
        native=native_by_numpy(numpy_routines.partitioned(name, compose), parts, alone),
    )
    return Primitive(
        name=name,
        check=check,
        methods=methods,
        example=lambda make: ((make(), make.few), make.along),
        single=True,
    )


_PARTITION = _partition("partition", check_partition, array.partition, array.sort_parts)
_ARGPARTITION = _partition("argpartition", check_argpartition, array.argpartition, array.order_parts)


_QUANTILES_BY_PARTS = by_parts("kernel", array.quantiles, array.quantile_parts)
_QUANTILES_BY_SORT = dataclasses.replace(
    _QUANTILES_BY_PARTS,
    prepare=lambda xp, c: cuda.prepare_quantiles_by_sort(xp, c) or _QUANTILES_BY_PARTS.prepare(xp, c),
)
_QUANTILES_ON_GPU = Method(cuda.prepare_quantiles, cuda.quantiles_refusal)


def _on_gpu(xp: Namespace, c: Quantiles) -> Method:
    """Return the kernel that finds a few elements of a sorted row, or the sort of the row."""
    del xp
    return _QUANTILES_ON_GPU if cuda.finds_quantiles(c) else _QUANTILES_BY_SORT


def _quantiles(name: str, check: Check, example: MakesCall) -> Primitive:
    methods = composed(
        name,
        exact,
        array.quantiles,
        array.quantile_parts,
        kernel=by_device(
            either_of(
                lambda _, c: _QUANTILES_ON_GPU if cuda.finds_quantiles(c) else _QUANTILES_BY_SORT, rehearsed=True
            ),
            numpy_routines.unless_partitions(_QUANTILES_BY_PARTS),
            _QUANTILES_BY_PARTS,
        ),
        native=native_by_numpy(
            numpy_routines.quantiles_by_numpy, array.quantile_parts, numpy_routines.prepare_quantiles
        ),
    )
    return Primitive(name=name, check=check, methods=methods, example=example, single=True, plainer=plainer_axes)


_MEDIAN = _quantiles("median", check_median, of_an_array)
_QUANTILE = _quantiles("quantile", check_quantile, lambda make: ((make(), 0.5), make.along))

"""Searches in sorted arrays, and merges of two sorted arrays."""

from __future__ import annotations

from typing import Never

from parprims._core.arrays import Array
from parprims._dispatch.by_device import by_device, in_programs, or_by_parts
from parprims._dispatch.composite import by_parts, composed, native_by_numpy
from parprims._dispatch.dispatch import Method, Methods, directly, exact, primitive
from parprims._dispatch.examples import Given, Sample, lines
from parprims._dispatch.primitive import Primitive
from parprims._primitives.search import cpu, cuda, merge_cuda, native
from parprims._primitives.search.array import array
from parprims._primitives.search.call import check_searchsorted, with_array
from parprims._primitives.search.merges import array as merges_array
from parprims._primitives.search.merges import call as merges_call
from parprims._primitives.search.merges import cpu as merges_cpu
from parprims._primitives.search.merges import numpy_routines


@primitive
def searchsorted(
    x1: Array, x2: Array, /, *, side: str = "left", sorter: Array | None = None, method: str = "auto", **others: Never
) -> Array:
    """Find the indices at which elements keep a sorted array in order: the array API standard's ``searchsorted``.

    Parameters
    ----------
    x1 : array
        The sorted elements, of one dimension and of integer or real floating dtype, in the order of `sort`: NaN last.
    x2 : array, or int or float
        The elements to search for, of any shape and of a dtype that promotes with x1's.
    side : {"left", "right"}, default "left"
        Whether an index is before all equal elements, x1[i - 1] < x2 <= x1[i], or behind them,
        x1[i - 1] <= x2 < x1[i].
    sorter : array, optional
        The indices that sort x1, as `argsort` returns them; needed if x1 is not sorted.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The indices, of the shape of x2 and the library's default dtype for indices.

    Raises
    ------
    TypeError
        If an argument is no array, or dtypes have no order or do not promote together.
    ValueError
        If x1 does not have one dimension, sorter has another shape than x1, or an argument has an unknown value.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    histogram : Counts of elements between edges.
    merge : Two sorted arrays as one.

    Notes
    -----
    Work and depth: log2 n comparisons for every element of x2, one after another (array, native, kernel on CPUs), or
    by a tree (kernel on GPUs).
    Error: none. If x1 is not sorted, indices are unspecified, from 0 to n.
    Reproducibility: the same input gives the same result by every method.
    Methods: kernel, native (NumPy, CuPy, PyTorch and JAX), array.
    Derivatives: none.
    Memory and more: the page "searchsorted" of the documentation.

    References
    ----------
    C. Kim et al., "FAST: Fast Architecture Sensitive Tree Search on Modern CPUs and GPUs", SIGMOD, 2010.

    P.-V. Khuong and P. Morin, "Array Layouts for Comparison-Based Searching", ACM J. Exp. Algorithmics 22, 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.searchsorted(np.array([1, 3, 3, 5]), np.array([3, 0, 6]))
    array([1, 0, 4])
    >>> parprims.searchsorted(np.array([1, 3, 3, 5]), np.array([3, 0, 6]), side="right")
    array([3, 0, 4])

    In an array that is sorted by indices:

    >>> x = np.array([5, 1, 3])
    >>> parprims.searchsorted(x, np.array([2, 4]), sorter=np.argsort(x))
    array([1, 2])

    Inside a program of JAX:

    >>> import jax
    >>> jax.jit(parprims.searchsorted)(jax.numpy.array([1, 3, 5]), jax.numpy.array([4])).tolist()
    [2]
    """
    return _SEARCHSORTED(others, {"x1": x1, "x2": x2, "sorter": sorter}, method, side=side)


@primitive
def merge(
    x1: Array, x2: Array, /, *, axis: int = -1, descending: bool = False, method: str = "auto", **others: Never
) -> Array:
    """Merge two sorted arrays into one.

    Parameters
    ----------
    x1, x2 : array
        The elements, sorted along the axis, of equal shapes except for its length, and of integer or real floating
        dtypes that promote together.
    axis : int, default -1
        The axis to merge along.
    descending : bool, default False
        Whether the largest elements come first, in the result as in x1 and x2.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        All elements in order. Elements of x1 come before equal elements of x2.

    Raises
    ------
    TypeError
        If an argument is no array, or dtypes have no order or do not promote together.
    ValueError
        If shapes differ in more than the length of the axis, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    merge_by_key : Merges keys, and moves values with them.
    sort : Sorts an array.

    Notes
    -----
    Work and depth: for every element of the result a chain of log2 n comparisons (array), or about one comparison
    (kernel); native sorts all elements.
    Error: none. If x1 or x2 is not sorted, array and kernel return some of their elements in unspecified order, and
    native sorts all.
    Reproducibility: the same input gives the same bits by every method.
    Methods: kernel, native (the native method of `sort`), array.
    Derivatives: by x1 and x2 on PyTorch and JAX, by every method.
    Memory and more: the page "merge" of the documentation.

    References
    ----------
    O. Green, R. McColl and D. A. Bader, "GPU Merge Path: A GPU Merging Algorithm", ICS, 2012.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.merge(np.array([1, 4, 6]), np.array([2, 4, 9]))
    array([1, 2, 4, 4, 6, 9])

    Descending arrays, and rows along the first axis:

    >>> parprims.merge(np.array([6, 1]), np.array([4]), descending=True)
    array([6, 4, 1])
    >>> parprims.merge(np.array([[1], [6]]), np.array([[4]]), axis=0)[:, 0]
    array([1, 4, 6])
    """
    (merged,) = _MERGE(others, {"x1": x1, "x2": x2}, method, axis=axis, descending=descending)
    return merged


@primitive
def merge_by_key(
    keys1: Array,
    values1: Array,
    keys2: Array,
    values2: Array,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    method: str = "auto",
    **others: Never,
) -> tuple[Array, Array]:
    """Merge two arrays of sorted keys, and move values with their keys.

    Parameters
    ----------
    keys1 : array
        Sorted keys, as x1 of `merge`. The notes of `merge` apply.
    values1 : array
        The values of keys1, of its shape and any dtype.
    keys2 : array
        Sorted keys, as x2 of `merge`.
    values2 : array
        The values of keys2, of its shape and the dtype of values1.
    axis : int, default -1
        The axis to merge along.
    descending : bool, default False
        Whether the largest keys come first, in the result as in keys1 and keys2.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    keys : array
        All keys in order. Keys of keys1 come before equal keys of keys2.
    values : array
        The values in the order of their keys.

    Raises
    ------
    TypeError
        If an argument is no array, keys have no order or do not promote together, or values differ in dtype.
    ValueError
        If shapes differ in more than the length of the axis, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    merge : Merges keys alone.
    sort_by_key : Sorts keys, and moves values with them.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> first, second = np.array([1, 4]), np.array([2, 4])
    >>> parprims.merge_by_key(first, np.array([10, 11]), second, np.array([20, 21]))
    (array([1, 2, 4, 4]), array([10, 20, 11, 21]))

    Descending keys:

    >>> parprims.merge_by_key(np.array([6, 1]), np.array([60, 10]), np.array([4]), np.array([40]), descending=True)[1]
    array([60, 40, 10])

    Rows along the first axis:

    >>> keys, values = np.array([[1], [6]]), np.array([[10], [60]])
    >>> parprims.merge_by_key(keys, values, np.array([[4]]), np.array([[40]]), axis=0)[1][:, 0]
    array([10, 40, 60])
    """
    arrays = {"keys1": keys1, "values1": values1, "keys2": keys2, "values2": values2}
    keys, values = _MERGE_BY_KEY(others, arrays, method, axis=axis, descending=descending)
    return keys, values


# ---- Declarations -------------------------------------------------------------------------------------------------


def _of_pairs(make: Sample) -> Given:
    return (make.sorted(), make(), make.sorted(), make()), {}


_ON_CPU = Method(cpu.prepare, cpu.refusal, cpu.slower)
_SEARCHSORTED = Primitive(
    name="searchsorted",
    check=check_searchsorted,
    normalize=with_array,
    methods=Methods(
        "searchsorted",
        exact,
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal),
            _ON_CPU,
            in_programs(_ON_CPU, Method(native.prepare, native.refusal), Method(directly(array))),
        ),
        native=Method(native.prepare, native.refusal),
        array=Method(directly(array)),
    ),
    example=lines(lambda make: ((make.sorted(), make()), {})),
    optional=("sorter",),
    single=True,
)

_MERGES_ON_CPU = Method(merges_cpu.prepare, merges_cpu.refusal, merges_cpu.slower)
_BY_SORTING = by_parts("kernel", merges_array.by_sorting, merges_array.sort_parts)


def _merges(name: str) -> Methods:
    return composed(
        name,
        exact,
        merges_array.by_sorting,
        merges_array.sort_parts,
        kernel=by_device(
            or_by_parts(Method(merge_cuda.prepare, lambda xp, c: merge_cuda.refusal(xp, c.arrays)), _BY_SORTING),
            or_by_parts(_MERGES_ON_CPU, _BY_SORTING),
            in_programs(_MERGES_ON_CPU, Method(directly(merges_array.array))),
        ),
        native=native_by_numpy(numpy_routines.by_merging, numpy_routines.parts, numpy_routines.prepare),
        array=Method(directly(merges_array.array)),
    )


_MERGE = Primitive(
    name="merge",
    check=merges_call.check,
    methods=_merges("merge"),
    example=lines(lambda make: ((make.sorted(), make.sorted()), {})),
)
_MERGE_BY_KEY = Primitive(
    name="merge_by_key", check=merges_call.check, methods=_merges("merge_by_key"), example=lines(_of_pairs)
)

"""Products of vectors: sums of conj(x) y."""

from __future__ import annotations

from typing import Any, Never

from parprims._core.arrays import Array
from parprims._dispatch.dispatch import primitive
from parprims._primitives.reduce.call import conjugate_product
from parprims._primitives.reduce.public import declared_reduction


@primitive
def vecdot(
    x1: Array,
    x2: Array,
    /,
    *,
    axis: int = -1,
    reproducible: str | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Multiply and sum along an axis, sum of conj(x1) x2: the array API standard's ``vecdot``.

    Parameters
    ----------
    x1, x2 : array
        The vectors, of numeric dtypes that promote together, of equal length along the axis and otherwise of shapes
        that broadcast. The first is conjugated. A vector of another dtype is first copied to the promoted dtype.
    axis : int, default -1
        The axis to contract, counted from the end.
    reproducible : {"everywhere"}, optional
        With "everywhere", a product of vectors of real floats has the same bits by every library, method and device, in
        any order of their elements. See the page "reduce".
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The dot products, of the promoted dtype, of the broadcast shape without the axis.

    Raises
    ------
    TypeError
        If x1 or x2 is no array, or their dtypes do not promote together.
    ValueError
        If their lengths along the axis differ, shapes do not broadcast, or method has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    map_reduce : Combine the values of a function of several arrays.
    matmul : Products of matrices.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.vecdot(np.array([[1, 2], [3, 4]]), np.array([[1, 1], [10, 10]]), axis=1)
    array([ 3, 70])
    """
    return VECDOT(others, {"x1": x1, "x2": x2}, method, axis_name, reproducible=reproducible, axis=axis)


VECDOT = declared_reduction("vecdot", fn=conjugate_product, op="add", keepdims=False, dtype=None, initial=None)

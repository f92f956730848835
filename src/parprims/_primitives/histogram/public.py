"""Histogram: how many elements, or how much weight, lies between each edge and the next."""

from __future__ import annotations

from typing import Any, Never

from parprims._core.arrays import Array
from parprims._dispatch.by_device import by_device
from parprims._dispatch.dispatch import Method, Methods, directly, primitive
from parprims._dispatch.primitive import Primitive
from parprims._libraries.numpy_bridge import shares_memory
from parprims._primitives.histogram import cpu, cuda, native
from parprims._primitives.histogram.array import array, array_refusal
from parprims._primitives.histogram.call import check, named, plainer


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
    arrays, options = named(x, weights, {"bins": bins, "range": range, "density": density})
    counts, edges = _HISTOGRAM(others, arrays, method, axis_name, **options)
    return counts, edges


# ---- Declaration --------------------------------------------------------------------------------------------------


_HISTOGRAM = Primitive(
    name="histogram",
    check=check,
    methods=Methods(
        "histogram",
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal, rehearsed=True),
            Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True),
        ),
        native=Method(native.prepare, native.refusal, quiet=True, eager=lambda xp, h: shares_memory(xp, h.arrays)),
        array=Method(directly(array), array_refusal),
    ),
    plainer=plainer,
    gradient=False,
    composed=False,
    sharded=True,
    replicated=("bins",),
)

"""Histogram: how many elements, or how much weight, lies between each edge and the next."""

from __future__ import annotations

import functools
from typing import Any, Never

from parprims._core.arrays import Array
from parprims._dispatch.by_device import by_device, in_programs
from parprims._dispatch.dispatch import Method, Methods, directly, primitive
from parprims._dispatch.examples import lines
from parprims._dispatch.primitive import Arguments, Primitive
from parprims._dispatch.registry import nodes
from parprims._libraries.numpy_bridge import shares_memory
from parprims._primitives.histogram import cpu, cuda, native
from parprims._primitives.histogram.array import array, array_refusal
from parprims._primitives.histogram.call import check, departs, named, plainer


@primitive
def histogram(
    x: Array,
    /,
    bins: int | Array = 10,
    *,
    range: tuple[float, float] | None = None,
    weights: Array | None = None,
    density: bool = False,
    reproducible: str | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> tuple[Array, Array]:
    """Count the elements between each edge and the next: counts[b] of edges[b] <= x < edges[b + 1].

    The last bin includes its right edge. Elements outside the edges, and NaN, are ignored.

    Parameters
    ----------
    x : array
        The elements, of any shape and of an integer or real floating dtype.
    bins : int, array or sequence of float, default 10
        The number of bins of equal width, or their edges: one dimension, at least two elements, ascending. Edges that
        do not ascend raise ValueError in the memory of a CPU; on a GPU, and in a traced program, they are not checked,
        and give unspecified counts.
    range : pair of float, optional
        The first and the last edge, if bins is a number. The default is the least and the largest element; if these are
        equal, 0.5 below and above them; if x is empty, 0 and 1.
    weights : array, optional
        The weight of each element, of the shape of x and of an integer or real floating dtype. The default is 1.
    density : bool, default False
        Whether to divide counts by their sum and by the widths of the bins, so that the histogram has area 1.
    reproducible : {"everywhere"}, optional
        With "everywhere", sums of weights that are real floats have the same bits by every library, method and device,
        in any order of the elements. See the page "reduce".
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that x and weights are split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    counts : array
        The counts, of length bins, and of the default integer dtype; the sums of weights, of the dtype of `sum`; or the
        densities, of the dtype of the edges.
    edges : array
        The edges, of length bins + 1. Computed edges have the dtype of x, float32 if x has 16-bit floats, or the widest
        floating dtype of the library if x has integers.

    Raises
    ------
    TypeError
        If x, weights or an array of bins is no array of numbers, or bins or range has another type than above.
    ValueError
        If bins is less than 1 or has fewer than two edges, edges descend or hold NaN, range is not finite or descends,
        range is given together with edges, the shapes of x and weights differ, or an argument has an unknown value.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    searchsorted : Indices of bins, given the edges.
    segment_reduce : Any reduction of groups of elements.

    Notes
    -----
    Work and depth: one search of the edges for each element, then a sort of the indices of bins (array). Kernel: one
    launch that reads every element once, after a launch that finds the range if none is given. In CUDA, weights in many
    bins (for 2^26 elements of float32, more than 5120) are sorted by the indices of their bins.
    Error: counts are exact. Each addition to a sum of weights adds at most half a unit in the last place of the sum of
    |weights|: at most n additions by kernel (in CUDA n / 2112 + 264 + 8 for many elements, (n + bins) / 2^19 + 100 if
    sorted), 4 log2 n by array.
    Bins: with every method, an element is counted in the bin between the returned edges that enclose it.
    Non-finite elements: without range, if x holds an infinity or NaN, all edges are NaN and all counts are 0.
    Reproducibility: the same input gives the same bits by kernel and array; by native too, except for weights on a GPU.
    Methods: kernel (CUDA arrays, and CPU arrays by Numba), native (NumPy, CuPy, PyTorch and JAX), array.
    Derivatives: by weights on PyTorch, by array, and on JAX. Counts have none.
    Memory besides the result: a few MB by kernel; in CUDA, 14 bytes for each element if weights of float32 are sorted,
    20 with more than 65 535 bins.
    More: the page "histogram" of the documentation.

    References
    ----------
    C. Nugteren, G.-J. van den Braak, H. Corporaal and B. Mesman, "High Performance Predictable Histogramming on GPUs",
    GPGPU-4, 2011.

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

    A probability density, and a range that does not depend on x, inside a program of JAX:

    >>> parprims.histogram(np.array([1.0, 2.0, 2.5, 5.0]), 2, density=True)[0]
    array([0.375, 0.125])
    >>> import jax
    >>> counts = jax.jit(lambda x: parprims.histogram(x, 2, range=(0.0, 4.0))[0])
    >>> counts(jax.numpy.array([1.0, 3.0, 3.5])).tolist()
    [1, 2]
    """
    arrays, options = named(x, weights, {"bins": bins, "range": range, "density": density})
    counts, edges = HISTOGRAM(others, arrays, method, axis_name, reproducible=reproducible, **options)
    return counts, edges


# ---- Declaration --------------------------------------------------------------------------------------------------


def in_graph_as(title: str, asked: Arguments) -> tuple[Array, ...]:
    """Return the results as a node of torch.compile's graph.

    Inside a transformation of torch.func the array form computes them: PyTorch's own routine has no rule for it.
    """
    if asked.method == "auto" and nodes().transformed_in_graph():
        asked = Arguments(asked.name, asked.arrays, asked.options, "array")
    results: tuple[Array, ...] = nodes().call(title, asked)
    return results


_ON_CPU = Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True)
HISTOGRAM = Primitive(
    name="histogram",
    check=check,
    methods=Methods(
        "histogram",
        departs,
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal, rehearsed=True),
            _ON_CPU,
            in_programs(_ON_CPU, Method(native.prepare, native.refusal), Method(directly(array))),
        ),
        native=Method(native.prepare, native.refusal, quiet=True, eager=lambda xp, h: shares_memory(xp, h.arrays)),
        array=Method(directly(array), array_refusal),
    ),
    example=lines(lambda make: ((make(), 10), {})),
    optional=("weights",),
    plainer=plainer,
    gradient=False,
    node=functools.partial(in_graph_as, "histogram"),
    sharded=True,
    replicated=("bins",),
)

"""Sort: x[p[0]] <= x[p[1]] <= ... <= x[p[n-1]], by a radix sort or, in programs, by a network."""

from __future__ import annotations

from typing import Any, Never

from parprims._core.arrays import Array
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device, in_programs
from parprims._dispatch.dispatch import Method, Methods, directly, exact, primitive
from parprims._dispatch.examples import of_an_array, of_two
from parprims._dispatch.primitive import Primitive
from parprims._dispatch.registry import nodes
from parprims._primitives.sort import array, cpu, cuda, native
from parprims._primitives.sort.call import checked


@primitive
def sort(
    x: Array,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: Array | None = None,
    check: bool | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Sort the elements along an axis: the array API standard's ``sort``.

    Every method and every library keeps one order: numbers by value, -0 equal to +0, NaN last whatever its sign,
    and first if descending.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and of bool, integer or real floating dtype.
    axis : int, default -1
        The axis to sort along.
    descending : bool, default False
        Whether the largest elements come first.
    stable : bool, default True
        Whether equal elements (-0 and +0, NaN and NaN) stay in the order they have in x, in both directions.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is sorted separately.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the axis is split over; on PyTorch, the group of processes.
        Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The sorted elements, of the shape and dtype of x.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order.
    ValueError
        If an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call; array refuses more elements than the library's indices can
        count.

    See Also
    --------
    argsort : The indices that sort.
    sort_by_key : Sort keys, and move values with them.
    top_k : The largest elements, and their positions.
    quantile : Quantiles, by selection.

    Notes
    -----
    Work and depth: w / 8 passes over keys of w bits (kernel [2]_), w / 4 in O(log n) steps each (array [1]_;
    on JAX log2(n)^2 / 2 steps of a network, for which the program is as large whatever n and w are).
    Memory besides the result: kernel one more copy of keys and values, 5 % and 1 MB, on a CPU two of keys and indices;
    array 110 bytes for every element.
    Error: none; elements are moved unchanged, but JAX may change the payload of a bfloat16 NaN on the way.
    Reproducibility: the same input gives the same bits if stable; by array and kernel, which are stable, always.
    Methods: kernel (CUDA arrays, and CPU arrays by Numba), native (the library's own sort, of integer keys in our order
    where its own order is another), array.
    Derivatives: of keys and values on PyTorch and JAX, by every method. Indices have none.
    More: the page "sort" of the documentation. CUDA graphs and torch.compile: its page
    "Programs and settings of JAX, PyTorch and CuPy".

    References
    ----------
    .. [1] Satish, Harris and Garland, Designing Efficient Sorting Algorithms for Manycore GPUs, IPDPS 2009.
    .. [2] Adinets and Merrill, Onesweep: A Faster Least Significant Digit Radix Sort for GPUs, arXiv:2206.01784, 2022.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.sort(np.array([2.0, np.nan, -1.0]))
    array([-1.,  2., nan])
    >>> parprims.sort(np.array([2.0, np.nan, -1.0]), descending=True)
    array([nan,  2., -1.])

    Along the first axis, and each segment by itself:

    >>> parprims.sort(np.array([[3, 1], [2, 4]]), axis=0)
    array([[2, 1],
           [3, 4]])
    >>> parprims.sort(np.array([3, 1, 2, 0]), offsets=np.array([0, 3, 4]))
    array([1, 2, 3, 0])

    Inside programs of JAX, with a derivative:

    >>> import jax
    >>> x = jax.numpy.array([2.0, 3.0, 1.0])
    >>> jax.jit(parprims.sort)(x).tolist()
    [1.0, 2.0, 3.0]
    >>> jax.grad(lambda x: parprims.sort(x)[0])(x).tolist()
    [0.0, 0.0, 1.0]
    """
    options = {"axis": axis, "descending": descending, "stable": stable, "offsets": offsets, "check": check}
    return SORT(others, {"x": x}, method, axis_name, **options)[0]


@primitive
def argsort(
    x: Array,
    /,
    *,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: Array | None = None,
    check: bool | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Find the indices that sort along an axis: the array API standard's ``argsort``.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and of bool, integer or real floating dtype.
    axis : int, default -1
        The axis to sort along.
    descending : bool, default False
        Whether the indices of the largest elements come first.
    stable : bool, default True
        Whether the indices of equal elements ascend, in both directions.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is sorted separately; indices are still counted along the whole axis.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the axis is split over; on PyTorch, the group of processes.
        Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The indices, of the shape of x and the library's default dtype for indices.

    Raises
    ------
    TypeError
        If x is no array or its dtype has no order.
    ValueError
        If method has an unknown value, or offsets are wrong.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    sort : The sorted elements; its order and notes apply.
    sort_by_key : Sort keys, and move values with them.
    top_k : The largest elements, and their positions.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.argsort(np.array([2, 3, 1, 2]), descending=True)
    array([1, 0, 3, 2])

    Along the first axis, and each segment by itself:

    >>> parprims.argsort(np.array([[3, 1], [2, 4]]), axis=0)
    array([[1, 0],
           [0, 1]])
    >>> parprims.argsort(np.array([3, 1, 2, 0]), offsets=np.array([0, 2, 4]))
    array([1, 0, 3, 2])
    """
    options = {"axis": axis, "descending": descending, "stable": stable, "offsets": offsets, "check": check}
    return ARGSORT(others, {"x": x}, method, axis_name, **options)[0]


@primitive
def sort_by_key(
    keys: Array,
    /,
    *values: Array,
    axis: int = -1,
    descending: bool = False,
    stable: bool = True,
    offsets: Array | None = None,
    check: bool | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> tuple[Array, ...]:
    """Sort keys along an axis, and move values as their keys move.

    Parameters
    ----------
    keys : array
        The keys, of at least one dimension and of bool, integer or real floating dtype.
    *values : array
        The arrays to move with the keys, of the shape of keys and of any dtype. The kernel takes elements of at most 16
        bytes.
    axis : int, default -1
        The axis to sort along.
    descending : bool, default False
        Whether the largest keys come first.
    stable : bool, default True
        Whether equal keys stay in the order they have in the input, in both directions.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is sorted separately.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the axis is split over; on PyTorch, the group of processes.
        Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    tuple of array
        The sorted keys, then the values in the order of their keys.

    Raises
    ------
    TypeError
        If keys or a value is no array, or the dtype of keys has no order.
    ValueError
        If shapes differ, method has an unknown value, or offsets are wrong.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    sort : Sort elements; its order and notes apply.
    argsort : The indices that sort.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> keys, names = parprims.sort_by_key(np.array([3, 1, 2]), np.array([30, 10, 20]))
    >>> names
    array([10, 20, 30])

    Each segment by itself, with two arrays of values:

    >>> keys, names = np.array([3, 1, 2]), np.array([30, 10, 20])
    >>> parprims.sort_by_key(keys, names, np.arange(3), offsets=np.array([0, 2, 3]))[1:]
    (array([10, 30, 20]), array([1, 0, 2]))

    Along the first axis, the largest keys first:

    >>> parprims.sort_by_key(np.array([[1, 4], [3, 2]]), np.array([[10, 40], [30, 20]]), axis=0, descending=True)[1]
    array([[30, 40],
           [10, 20]])
    """
    arrays = {"keys": keys, "values": values}
    options = {"axis": axis, "descending": descending, "stable": stable, "offsets": offsets, "check": check}
    result: tuple[Array, ...] = SORT_BY_KEY(others, arrays, method, axis_name, **options)
    return result


def _declared(name: str) -> Primitive:
    on_cpu = Method(cpu.prepare, cpu.refusal, cpu.slower)
    methods = Methods(
        name,
        exact,
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal),
            on_cpu,
            in_programs(on_cpu, Method(native.prepare), batched=cpu.batched),
        ),
        native=Method(native.prepare, native.refusal, eager=native.is_eager, quiet=True),
        array=Method(directly(array.array), array.refusal),
    )
    return Primitive(
        name=name,
        check=checked,
        methods=methods,
        example=of_two if name == "sort_by_key" else of_an_array,
        gradient=name != "argsort",
        compute=derivative_rules.sorting,
        node=None if name == "argsort" else lambda asked: nodes().sort(asked),
        rules="sort",
        sharded=True,
    )


SORT, ARGSORT, SORT_BY_KEY = map(_declared, ("sort", "argsort", "sort_by_key"))

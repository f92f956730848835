"""Reductions: x[0] op x[1] op ..., in order, by a tree. Long by the docstrings of functions of one declaration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import Array, Namespace, admit
from parprims._core.elements import flat, is_tree, only_array
from parprims._core.other_words import unknown_option
from parprims._dispatch import derivative_rules, registry
from parprims._dispatch.by_device import by_device, in_programs
from parprims._dispatch.dispatch import Method, Methods, directly, in_graph, primitive, primitives
from parprims._dispatch.examples import MakesCall, of_an_array
from parprims._dispatch.primitive import Arguments, Primitive, check_apart
from parprims._operators.operator import Operator, by_leaves
from parprims._primitives.reduce import array, cpu, cuda, native
from parprims._primitives.reduce.array import Started, started, with_array_starts, without_start
from parprims._primitives.reduce.call import (
    Map,
    Reduction,
    all_values,
    check_values,
    checked,
    checked_pair,
    departs,
    is_nonzero,
    never_warns,
    reduced_values,
)
from parprims._primitives.scan.trailing_axes.parts import of_reductions


@primitive
def reduce(
    x: Array | tuple[Array, ...],
    /,
    op: str | Operator | Callable[[Any, Any], Any] = "add",
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    dtype: Any = None,
    initial: Any = None,
    offsets: Array | None = None,
    check: bool | None = None,
    reproducible: str | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Any:
    """Combine all elements along axes: x[0] op x[1] op ... op x[n-1].

    Parameters
    ----------
    x : array, or tree of array
        The elements, of any shape and any dtype that the operator takes. Several arrays, in tuples, lists, dicts or
        other trees of JAX, are the components of an element. They may have different axes behind the axis of the call.
    op : str, Operator or callable, default "add"
        The operator: a built-in name (add, multiply, maximum, minimum, logical_and, logical_or, bitwise_and,
        bitwise_or, bitwise_xor, logaddexp, affine, argmax, argmin, welford), an `Operator`, or an associative function
        ``combine(earlier, later)``.
    axis : int, tuple of int or None, default None
        The axes to combine along; None for all. Elements are taken in row-major order over these axes.
    keepdims : bool, default False
        Whether the combined axes stay, with length 1.
    dtype : dtype, str or tuple of these, optional
        The dtype that elements are cast to before they are combined, or its name in the standard; for several
        components a tuple. By default, add and multiply widen integers as the standard's ``sum`` does, and every other
        operator keeps the dtype.
    initial : scalar, array, or a tuple of these, optional
        An element that comes before all others: it is combined from the left with the result. For several components it
        is a tuple, or has the structure of the elements.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is combined separately, along a single axis.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    reproducible : {"everywhere"}, optional
        With "everywhere", a sum of real floats has the same bits by every library, method and device, in any order of
        its terms. Only for add, without initial. See the page "reduce".
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array, or tree of array
        The combinations, of the shape of x without the axes, or with length 1 there, and with the structure of x. With
        offsets, one combination for each segment along the axis.

    Raises
    ------
    TypeError
        If x is no array, arrays come from several libraries, or a dtype does not suit the operator. If the operator
        works in place, branches on the value of an array, or returns other than it was given.
    ValueError
        If lengths differ along the axis, an argument has an unknown value, or an empty reduction has no identity.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    sum : Sums.
    map_reduce : Combine the values of a function of several arrays.
    scan : Combine every element with all before it.
    segment_reduce : Combine the elements of each segment, given ids.

    Notes
    -----
    Work and depth: n - 1 combinations in ceil(log2 n) steps (array [1]_). The kernel reads every element once.
    Error: each term of a sum takes part in at most ceil(log2 n) additions by array and by kernel. Each addition errs
    by at most half an ulp of sum(abs(x)). 16-bit floats are combined in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array. With "everywhere", up to
    2^20 terms of float32 are rounded to a grid with an error of at most n 2^-43 max(abs(x)) (float64: 2^-85); up to
    2^28 terms with n 2^-35 max(abs(x)) (2^-69). Their sum on the grid is exact, and rounded once [2]_.
    Methods: kernel (CUDA arrays; by Numba, arrays of NumPy, PyTorch and eager JAX on the CPU; auto takes native instead
    if the library has the operator and is as fast), native (operators that the library has), array. Derivatives are
    those of the library, by array and native, and by kernel on PyTorch's CPU.
    More: the pages "reduce" and "Programs and settings of JAX, PyTorch and CuPy" of the documentation.

    References
    ----------
    .. [1] Ladner and Fischer, Parallel Prefix Computation, J. ACM 27(4), 1980.
    .. [2] Demmel and Nguyen, Parallel Reproducible Summation, IEEE Transactions on Computers 64(7), 2015.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.reduce(np.array([[1, 5], [4, 2]]), "maximum", axis=1)
    array([5, 4])
    >>> parprims.reduce(np.array([1, 2, 3, 4]), offsets=np.array([0, 3, 3, 4]))
    array([6, 0, 4])
    >>> float(parprims.reduce(np.array([0.5, 0.5]), lambda earlier, later: earlier + later - earlier * later))
    0.75
    >>> int(parprims.reduce((np.array([3.0, 9.0, 9.0]), np.arange(3)), "argmax")[1])
    1
    >>> import jax
    >>> jax.jit(parprims.reduce)(jax.numpy.ones(3)).tolist()
    3.0
    """
    if (isinstance(x, tuple) or not hasattr(x, "dtype")) and is_tree(x):
        return by_leaves(
            reduce, x, op, axis=axis, keepdims=keepdims, initial=initial, dtype=dtype, offsets=offsets, check=check,
            reproducible=reproducible, method=method, axis_name=axis_name, **others,
        )  # fmt: skip
    options = {"op": op, "axis": axis, "keepdims": keepdims, "dtype": dtype, "initial": initial}
    forms = {"offsets": offsets, "check": check, "reproducible": reproducible}
    return REDUCE(others, {"x": x}, method, axis_name, **forms, **options)


def map_reduce(
    fn: Map,
    /,
    *arrays: Array,
    op: str | Operator | Callable[[Any, Any], Any] = "add",
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    dtype: Any = None,
    initial: Any = None,
    offsets: Array | None = None,
    check: bool | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Any:
    """Combine fn of the elements along axes, in one pass: fn(x[0], y[0]) op fn(x[1], y[1]) op ...

    Parameters
    ----------
    fn : callable
        An elementwise function of the arrays that returns an array, or a tuple, NamedTuple or dict of arrays, and
        does not change its arguments. The rules for the function of an `Operator` say which functions a CUDA kernel
        can run.
    *arrays : array
        The inputs, broadcast against each other.
    op : str, Operator or callable, default "add"
        The operator, as in `reduce`.
    axis : int, tuple of int or None, default None
        The axes of the broadcast shape to combine along; None for all.
    keepdims : bool, default False
        Whether the combined axes stay, with length 1.
    dtype : dtype, str or tuple of these, optional
        The dtype that values of fn are cast to before they are combined, as in `reduce`.
    initial : scalar, array, or a tuple of these, optional
        An element that comes before all others: it is combined from the left with the result. For several components it
        is a tuple, or has the structure of the elements.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is combined separately, along a single axis; values of fn are stored.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array, or tree of array
        The combinations, as in `reduce`, with the structure of the values of fn.

    Raises
    ------
    TypeError
        If an argument is no array, arrays come from several libraries, or a dtype does not suit the operator.
    ValueError
        If shapes do not broadcast, an argument has an unknown value, or there is nothing to combine.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine the elements themselves.
    vecdot : Dot products along an axis.

    Notes
    -----
    The notes of `reduce` apply. In the kernel the values of fn stay in registers; the other methods store the values
    of one block at a time. A function that cannot be traced is called once, and all of its values are stored.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x, y = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    >>> parprims.map_reduce(lambda x, y: abs(x - y), x[None], y, op="maximum", axis=1)
    array([2.])
    >>> parprims.map_reduce(lambda x: x * x, x, offsets=np.array([0, 1, 3]))
    array([ 1., 13.])
    """
    if others:
        raise unknown_option("map_reduce", others)
    if not callable(fn):
        raise TypeError(f"fn must be callable, and come before the arrays, got {type(fn).__name__}")
    if not arrays:
        raise TypeError("arrays must hold at least one array")
    if offsets is not None:
        check_apart(axis_name)
        mapped: Callable[..., Any] | None = None
        if not in_graph(arrays, method):
            arrays = tuple(admit({f"arrays[{index}]": x for index, x in enumerate(arrays)})[1])

            def mapped(*arrays: Array) -> Any:
                values = all_values(fn, *arrays)
                if dtype is None:
                    check_values(op, values)
                return values

        options = {"axis": axis, "keepdims": keepdims, "offsets": offsets, "check": check, "method": method}

        def segments(values: Any, op: Any, dtype: Any, initial: Any) -> Any:
            return reduce(values, op, dtype=dtype, initial=initial, **options)

        return reduced_values(segments, fn, arrays, op=op, dtype=dtype, initial=initial, call=mapped)
    dtype, initial = flat("dtype", dtype), flat("initial", initial)
    asked = {"fn": fn, "op": op, "axis": axis, "keepdims": keepdims, "dtype": dtype, "initial": initial}
    return _MAP_REDUCE(others, {"arrays": arrays}, method, axis_name, check=check, **asked)


@primitive
def sum(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    keepdims: bool = False,
    reproducible: str | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Sum the elements along axes: the array API standard's ``sum``.

    Parameters
    ----------
    x : array
        The terms, of any shape and numeric dtype; bool counts as an integer.
    axis : int, tuple of int or None, default None
        The axes to sum over; None for all.
    dtype : dtype or str, optional
        The dtype that terms are cast to first. By default, integers narrower than the default integer widen to it;
        unsigned integers stay unsigned. Complex terms are not cast to a real dtype.
    keepdims : bool, default False
        Whether the summed axes stay, with length 1.
    reproducible : {"everywhere"}, optional
        With "everywhere", a sum of real floats has the same bits by every library, method and device, in any order of
        its terms. See the page "reduce".
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The sums; 0 where there are no terms.

    Raises
    ------
    TypeError
        If x is no array, or dtype does not suit its elements.
    ValueError
        If method has an unknown value, or axis names an axis twice.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine by any operator; its notes on cost, error and reproducibility apply.
    cumulative_sum : Sums of all elements up to each.
    segment_reduce : Sums of the elements of each segment.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.sum(np.array([[1, 2], [3, 4]]), axis=0)
    array([4, 6])

    With the same bits in any order:

    >>> float(parprims.sum(np.array([1e8, 1.0, -1e8, 3.0], np.float32), reproducible="everywhere"))
    4.0
    """
    arrays = {"x": only_array(x)}
    options = {"axis": axis, "dtype": dtype, "keepdims": keepdims}
    return SUM(others, arrays, method, axis_name, reproducible=reproducible, **options)


@primitive
def prod(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    keepdims: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Multiply the elements along axes: the array API standard's ``prod``.

    Parameters
    ----------
    x : array
        The factors, of any shape and numeric dtype; bool counts as an integer.
    axis : int, tuple of int or None, default None
        The axes to multiply over; None for all.
    dtype : dtype or str, optional
        The dtype that factors are cast to first. By default, integers narrower than the default integer widen to it;
        unsigned integers stay unsigned. Complex factors are not cast to a real dtype.
    keepdims : bool, default False
        Whether the multiplied axes stay, with length 1.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The products; 1 where there are no factors.

    Raises
    ------
    TypeError
        If x is no array, or dtype does not suit its elements.
    ValueError
        If method has an unknown value, or axis names an axis twice.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine by any operator; its notes on cost, error and reproducibility apply.
    cumulative_prod : Products of all elements up to each.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.prod(np.array([[2, 3], [4, 5]]), axis=1)
    array([ 6, 20])
    """
    arrays = {"x": only_array(x)}
    return _PROD(others, arrays, method, axis_name, axis=axis, dtype=dtype, keepdims=keepdims)


@primitive
def max(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Find the largest element along axes: the array API standard's ``max``.

    Parameters
    ----------
    x : array
        The elements, of any shape and real dtype. NaN counts as larger than all others.
    axis : int, tuple of int or None, default None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool, default False
        Whether the searched axes stay, with length 1.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The largest elements, of the dtype of x.

    Raises
    ------
    TypeError
        If x is no array, or its dtype is bool or complex.
    ValueError
        If an axis has no elements, or method has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine by any operator; its notes on cost, error and reproducibility apply.
    argmax : The position of the largest element.
    cumulative_max : The largest element up to each.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.max(np.array([[1, 5], [4, 2]]), axis=1)
    array([5, 4])
    """
    return _MAX(others, {"x": only_array(x)}, method, axis_name, axis=axis, keepdims=keepdims)


@primitive
def min(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Find the smallest element along axes: the array API standard's ``min``.

    Parameters
    ----------
    x : array
        The elements, of any shape and real dtype. NaN counts as smaller than all others.
    axis : int, tuple of int or None, default None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool, default False
        Whether the searched axes stay, with length 1.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The smallest elements, of the dtype of x.

    Raises
    ------
    TypeError
        If x is no array, or its dtype is bool or complex.
    ValueError
        If an axis has no elements, or method has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine by any operator; its notes on cost, error and reproducibility apply.
    argmin : The position of the smallest element.
    cumulative_min : The smallest element up to each.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.min(np.array([[1, 5], [4, 2]]), axis=1)
    array([1, 2])
    """
    return _MIN(others, {"x": only_array(x)}, method, axis_name, axis=axis, keepdims=keepdims)


@primitive
def any(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Test whether any element along axes is true: the array API standard's ``any``.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype; a number is true unless it is zero.
    axis : int, tuple of int or None, default None
        The axes to search; None for all.
    keepdims : bool, default False
        Whether the searched axes stay, with length 1.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        Of dtype bool; False where there are no elements.

    Raises
    ------
    TypeError
        If x is no array.
    ValueError
        If method has an unknown value, or axis names an axis twice.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine by any operator; its notes on cost, error and reproducibility apply.
    all : Whether all elements are true.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.any(np.array([[0, 2], [0, 0]]), axis=1)
    array([ True, False])
    """
    return _ANY(others, {"x": only_array(x)}, method, axis_name, axis=axis, keepdims=keepdims)


@primitive
def all(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Test whether all elements along axes are true: the array API standard's ``all``.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype; a number is true unless it is zero.
    axis : int, tuple of int or None, default None
        The axes to search; None for all.
    keepdims : bool, default False
        Whether the searched axes stay, with length 1.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the first of the axes is split over; on PyTorch, the group of
        processes. Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        Of dtype bool; True where there are no elements.

    Raises
    ------
    TypeError
        If x is no array.
    ValueError
        If method has an unknown value, or axis names an axis twice.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine by any operator; its notes on cost, error and reproducibility apply.
    any : Whether any element is true.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.all(np.array([[1, 2], [0, 1]]), axis=1)
    array([ True, False])
    """
    return _ALL(others, {"x": only_array(x)}, method, axis_name, axis=axis, keepdims=keepdims)


# ---- Declarations -----------------------------------------------------------------------------------------------


_EXAMPLES: dict[str, MakesCall] = {
    "reduce": lambda make: ((make(), "add"), make.along),
    "map_reduce": lambda make: ((lambda x: x * x, make()), make.along),
    "vecdot": lambda make: ((make(), make()), {"axis": make.axis - len(make.shape)}),
}
"""The examples of functions that take more than one array."""


def _checked(asked: Arguments) -> tuple[Namespace, Reduction | Started]:
    """Return the namespace and the checked call of a reduction."""
    xp, r = checked(asked)
    return xp, started(xp, r, asked) if "initial" in asked.arrays else r


def _computed(methods: Methods, method: str, xp: Namespace, r: Reduction | Started) -> Any:
    """Return the result of a checked call."""
    return methods(method, xp, r) if isinstance(r, Started) else derivative_rules.reduction(methods, method, xp, r)


def declared_reduction(name: str, **defaults: Any) -> Primitive:
    """Return the declaration of a reduction with fixed values of some options."""
    on_cpu = Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True)
    by_library = Method(native.prepare, native.refusal, quiet=never_warns, eager=native.is_eager)
    by_operations = Method(directly(array.array), array.refusal)
    in_program = in_programs(on_cpu, by_library, by_operations, batched=cpu.batched)
    kernels = (Method(cuda.prepare, cuda.refusal, cuda.slower), on_cpu, in_program)
    kernel = by_device(*[of_reductions(one, directly(array.array)) for one in kernels])
    ways = {"kernel": kernel, "native": by_library, "array": by_operations}
    if "initial" not in defaults:
        ways = {name: with_array_starts(method) for name, method in ways.items()}
    methods = Methods(name, lambda way, xp, r: departs(way, xp, without_start(r)), **ways)
    return Primitive(
        name=name,
        check=checked_pair if name == "vecdot" else _checked,
        methods=methods,
        example=_EXAMPLES.get(name, of_an_array),
        defaults=defaults,
        operators=("fn", "op"),
        numbers=("initial",),
        or_arrays="" if "initial" in defaults else "initial",
        compute=_computed,
        node=None if name == "vecdot" else lambda asked: registry.nodes().reduce(asked),
        rules="vecdot" if name == "vecdot" else "reduction",
        single=name == "vecdot",
        sharded=True,
    )


REDUCE = declared_reduction("reduce", fn=None)
_MAP_REDUCE = declared_reduction("map_reduce")
SUM = declared_reduction("sum", fn=None, op="add", initial=None)
_PROD = declared_reduction("prod", fn=None, op="multiply", initial=None)
_MAX = declared_reduction("max", fn=None, op="maximum", dtype=None, initial=None)
_MIN = declared_reduction("min", fn=None, op="minimum", dtype=None, initial=None)
_ANY = declared_reduction("any", fn=is_nonzero, op="logical_or", dtype=None, initial=None)
_ALL = declared_reduction("all", fn=is_nonzero, op="logical_and", dtype=None, initial=None)
primitives["map_reduce"] = map_reduce  # `primitive` does not decorate it

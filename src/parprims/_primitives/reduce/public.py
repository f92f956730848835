"""Reduction: x[0] op x[1] op ... op x[n-1], in that order, by a tree.

The public functions, and the one entry behind them: it asks whether a call like this one was made before, checks the
arguments if not, and hands the checked call, a `Reduction`, to a method. The methods are in `cuda` (our CUDA)
and `reduce_array` (array operations, and the library's own routine); `reduce.call` has what they share.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import (
    Array,
    admit,
    as_dtypes,
    check_apart,
    check_flag,
    dtype_kind,
    dtype_name,
    is_split,
    normalize_axes,
)
from parprims._core.elements import flat, is_structured, only_array
from parprims._core.options import made_plain
from parprims._core.other_words import unknown_option
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device
from parprims._dispatch.composite import fitted
from parprims._dispatch.dispatch import (
    Method,
    Methods,
    call_key,
    devices,
    directly,
    entered,
    extensions,
    in_graph,
    listing,
    nodes,
    plain,
    primitive,
    recalled,
)
from parprims._operators.function_key import lasting_key
from parprims._operators.operator import Operator, as_operator, by_leaves, flags_broadcast
from parprims._primitives.reduce import array as reduce_array
from parprims._primitives.reduce import cpu, cuda
from parprims._primitives.reduce.call import (
    OWN_MAPS,
    Map,
    Reduction,
    all_values,
    axis_of_pair,
    broadcast_to_one,
    check_elements,
    check_mapped,
    check_values,
    conjugate_product,
    is_nonzero,
    never_warns,
    reduced_values,
    with_start,
)


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
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Any:
    """Combine all elements along axes: x[0] op x[1] op ... op x[n-1].

    Parameters
    ----------
    x : array, or tuple, NamedTuple or dict of array
        The elements, of any shape and any dtype the operator takes. Several arrays of equal shape are read as elements
        of several components, which may be nested (the order of a dict's is that of its keys).
    op : str, Operator or callable
        The operator: a built-in name (add, multiply, maximum, minimum, logical_and, logical_or, bitwise_and,
        bitwise_or, bitwise_xor, logaddexp, affine, argmax, argmin, welford), an `Operator`, or an associative
        function ``combine(earlier, later)``.
    axis : int, tuple of int or None
        The axes to combine along; None for all. Elements are taken in row-major order over these axes.
    keepdims : bool
        Whether the combined axes stay, with length 1.
    dtype : dtype, str or tuple of these, optional
        What elements are cast to before they are combined, one for each component, or the standard's name of it. By
        default add and multiply widen integers as the standard's ``sum`` does and every other operator keeps the dtype.
    initial : scalar, array, or a tuple of these, optional
        An element combined from the left with the result; of several components a tuple, or made as the elements are.
    offsets : array or sequence of int, optional
        The offsets of segments, of one dimension and an integer dtype: ascending, from 0 to the length of the axis.
        Segment j is offsets[j] <= i < offsets[j + 1] along the one axis, and perhaps empty; each is combined by itself.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default those in the
        memory of a CPU do. With True others do too, which synchronises a GPU; traced programs are refused. Wrong
        offsets that are not checked give unspecified results.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map` the axes of the mesh, on PyTorch the group of processes, that
        the first of the axes is split over: docs/devices.md.

    Returns
    -------
    array, or tuple, NamedTuple or dict of array
        The combinations, of the shape of x without the axes, or with length 1 there, and made as x is. With offsets one
        for each segment along the axis.

    Raises
    ------
    TypeError
        If x is no array, arrays come from several libraries, or a dtype does not suit the operator. If the operator
        works in place, branches on the value of an array, or returns other than it was given.
    ValueError
        If shapes differ, an argument has an unknown value, or there is nothing to combine and no identity.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: n - 1 combinations in ceil(log2 n) steps (array). Kernel reads every element once, in one launch.
    Error: a term of a sum passes at most 2 ceil(log2 n) additions by array and, in any array that fits a GPU, 500 by
    kernel (64 in a row of up to 2^28), each of which owes half a unit in the last place of sum |x|; 16-bit floats are
    combined in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array.
    Methods: kernel (CUDA arrays; by Numba those of NumPy, PyTorch and eager JAX on the CPU; auto leaves it where the
    library has the operator and is as fast), native (operators the library has), array. Derivatives are those of the
    library, by array and native, and by kernel on PyTorch's CPU.
    Memory, reference and more: docs/reduce.md; CUDA graphs, several devices, torch.compile: docs/libraries.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.reduce(np.array([[1, 5], [4, 2]]), "maximum", axis=1)
    array([5, 4])
    >>> value, index = parprims.reduce((np.array([3.0, 9.0, 9.0]), np.arange(3)), "argmax")
    >>> int(index)
    1
    """
    if others:
        raise unknown_option("reduce", others)
    if isinstance(x, (tuple, dict)) and is_structured(x):
        return by_leaves(
            reduce, x, op, axis=axis, keepdims=keepdims, initial=initial, dtype=dtype, offsets=offsets, check=check,
            method=method, axis_name=axis_name,
        )  # fmt: skip
    if offsets is not None:
        check_apart(axis_name)
        return extensions["reduce by offsets"](x, op, offsets, axis, keepdims, dtype, initial, check, method)
    if check is not None:
        check_flag("check", check)
    return call("reduce", None, x, op, axis, keepdims, dtype, initial, method, axis_name)


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
        Takes as many arrays as are given and returns an array, or a tuple, NamedTuple or dict of arrays, elementwise.
        It does not change its arguments. For it to run in a CUDA kernel it must be written as an `Operator`'s function
        is.
    *arrays : array
        The inputs, broadcast against each other.
    op : str, Operator or callable
        The operator, as in `reduce`.
    axis : int, tuple of int or None
        The axes of the broadcast shape to combine along; None for all.
    keepdims : bool
        Whether the combined axes stay, with length 1.
    dtype : dtype, str or tuple of these, optional
        What the values of fn are cast to before they are combined, as in `reduce`.
    initial : scalar, array, or a tuple of these, optional
        An element combined from the left with the result; of several components a tuple, or made as the elements are.
    offsets : array or sequence of int, optional
        The offsets of segments, of one dimension and an integer dtype: ascending, from 0 to the length of the axis.
        Segments are those of `reduce`; the values of fn are then all stored.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default those in the
        memory of a CPU do. With True others do too, which synchronises a GPU; traced programs are refused. Wrong
        offsets that are not checked give unspecified results.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map` the axes of the mesh, on PyTorch the group of processes, that
        the first of the axes is split over: docs/devices.md.

    Returns
    -------
    array, or tuple, NamedTuple or dict of array
        The combinations, as in `reduce`, made as the values of fn are.

    Raises
    ------
    TypeError
        If an argument is no array, arrays come from several libraries, or a dtype does not suit the operator.
    ValueError
        If shapes do not broadcast, an argument has an unknown value, or there is nothing to combine.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    As for `reduce`; by kernel the values of fn stay in registers, by the other methods those of a block are stored, of
    each component of 8 bytes or less as many as of elements. An fn that cannot be traced, as a kernel would need it,
    is called once with all elements, and all of its values are stored.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x, y = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    >>> float(parprims.map_reduce(lambda x, y: abs(x - y), x, y, op="maximum"))
    2.0
    """
    if others:
        raise unknown_option("map_reduce", others)
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    if not arrays:
        raise TypeError("arrays must hold at least one array")
    if offsets is not None:
        check_apart(axis_name)
        mapped: Callable[..., Any] | None = None
        if not in_graph(arrays, method):
            arrays = tuple(admit({f"arrays[{at}]": one for at, one in enumerate(arrays)})[1])

            def mapped(*arrays: Array) -> Any:
                values = all_values(fn, *arrays)
                if dtype is None:
                    check_values(op, values)
                return values

        options = {"axis": axis, "keepdims": keepdims, "offsets": offsets, "check": check, "method": method}

        def segments(values: Any, op: Any, dtype: Any, initial: Any) -> Any:
            return reduce(values, op, dtype=dtype, initial=initial, **options)

        return reduced_values(segments, fn, arrays, op, dtype, initial, mapped)
    if check is not None:
        check_flag("check", check)
    dtype, initial = flat("dtype", dtype), flat("initial", initial)
    return call("map_reduce", fn, arrays, op, axis, keepdims, dtype, initial, method, axis_name)


@entered
def sum(
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
    """Sum the elements along axes: the array API standard's ``sum``.

    Parameters
    ----------
    x : array
        The terms, of any shape and numeric dtype; bool counts as an integer.
    axis : int, tuple of int or None
        The axes to sum over; None for all.
    dtype : dtype or str, optional
        What terms are cast to first. By default integers narrower than the default integer widen to it; unsigned stay
        unsigned. Complex terms take no real dtype.
    keepdims : bool
        Whether the summed axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `reduce`. The errors and notes of `reduce` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the first of the axes is split over, as in `reduce`.

    Returns
    -------
    array
        The sums; 0 where there are no terms.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.sum(np.array([[1, 2], [3, 4]]), axis=0)
    array([4, 6])
    """
    if others:
        raise unknown_option("sum", others)
    return call("sum", None, only_array(x), "add", axis, keepdims, dtype, None, method, axis_name)


@entered
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
    axis : int, tuple of int or None
        The axes to multiply over; None for all.
    dtype : dtype or str, optional
        What factors are cast to first. By default integers narrower than the default integer widen to it; unsigned stay
        unsigned. Complex factors take no real dtype.
    keepdims : bool
        Whether the multiplied axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `reduce`. The errors and notes of `reduce` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the first of the axes is split over, as in `reduce`.

    Returns
    -------
    array
        The products; 1 where there are no factors.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.prod(np.array([2, 3, 4])))
    24
    """
    if others:
        raise unknown_option("prod", others)
    return call("prod", None, only_array(x), "multiply", axis, keepdims, dtype, None, method, axis_name)


@entered
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
    axis : int, tuple of int or None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `reduce`. The errors and notes of `reduce` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the first of the axes is split over, as in `reduce`.

    Returns
    -------
    array
        The largest elements, of the dtype of x.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.max(np.array([3, 9, 4])))
    9
    """
    if others:
        raise unknown_option("max", others)
    return call("max", None, only_array(x), "maximum", axis, keepdims, None, None, method, axis_name)


@entered
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
    axis : int, tuple of int or None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `reduce`. The errors and notes of `reduce` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the first of the axes is split over, as in `reduce`.

    Returns
    -------
    array
        The smallest elements, of the dtype of x.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.min(np.array([3, 9, 4])))
    3
    """
    if others:
        raise unknown_option("min", others)
    return call("min", None, only_array(x), "minimum", axis, keepdims, None, None, method, axis_name)


@entered
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
    """Tell whether any element along axes is true: the array API standard's ``any``.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype; a number is true unless it is zero.
    axis : int, tuple of int or None
        The axes to search; None for all.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `reduce`. The errors and notes of `reduce` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the first of the axes is split over, as in `reduce`.

    Returns
    -------
    array
        Of dtype bool; False where there are no elements.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.any(np.array([[0, 2], [0, 0]]), axis=1)
    array([ True, False])
    """
    if others:
        raise unknown_option("any", others)
    return call("any", is_nonzero, only_array(x), "logical_or", axis, keepdims, None, None, method, axis_name)


@entered
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
    """Tell whether all elements along axes are true: the array API standard's ``all``.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype; a number is true unless it is zero.
    axis : int, tuple of int or None
        The axes to search; None for all.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `reduce`. The errors and notes of `reduce` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the first of the axes is split over, as in `reduce`.

    Returns
    -------
    array
        Of dtype bool; True where there are no elements.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.all(np.array([[1, 2], [0, 1]]), axis=1)
    array([ True, False])
    """
    if others:
        raise unknown_option("all", others)
    return call("all", is_nonzero, only_array(x), "logical_and", axis, keepdims, None, None, method, axis_name)


@entered
def vecdot(
    x1: Array, x2: Array, /, *, axis: int = -1, method: str = "auto", axis_name: Any = None, **others: Never
) -> Array:
    """Multiply and sum along an axis, sum of conj(x1) x2: the array API standard's ``vecdot``.

    Parameters
    ----------
    x1, x2 : array
        The vectors, of numeric dtypes that promote together, of equal length along the axis and otherwise of
        shapes that broadcast. The first is conjugated. One of another dtype than the promoted is copied to that first.
    axis : int
        The axis to contract, counted from the end.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `reduce`. The errors and notes of `reduce` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the first of the axes is split over, as in `reduce`.

    Returns
    -------
    array
        The dot products, of the promoted dtype, of the broadcast shape without the axis.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.vecdot(np.array([1, 2, 3]), np.array([4, 5, 6])))
    32
    """
    if others:
        raise unknown_option("vecdot", others)
    if in_graph((x1, x2), method) and axis_name is None:
        return nodes().vecdot(x1, x2, axis, method)
    key = call_key("vecdot", (x1, x2), axis, method, gradient=True) if axis_name is None else None
    run = recalled(key)
    if run is not None:
        return run(x1, x2)
    plainer = made_plain(axis=axis)
    if plainer is not None:
        return vecdot(x1, x2, **plainer, method=method, axis_name=axis_name)
    if axis_name is not None or is_split((x1, x2)):
        rest = "vecdot", conjugate_product, (x1, x2), "add", axis, False, None, None, method
        return devices().compute("reduced", (x1, x2), axis_name, *rest)
    given = x1, x2
    xp, (x1, x2) = admit({"x1": x1, "x2": x2})
    index, ndim = axis_of_pair(x1, x2, axis), builtins.min(x1.ndim, x2.ndim)
    try:
        dtype = xp.result_type(x1, x2)
    except (TypeError, ValueError, RuntimeError):
        names = f"{dtype_name(x1.dtype)} and {dtype_name(x2.dtype)}"
        raise TypeError(f"x1 and x2 must have dtypes that promote together, got {names}") from None
    x1, x2 = (fitted(xp, x, dtype) for x in (x1, x2))
    if x1 is not given[0] or x2 is not given[1]:
        key = None
    return _checked("vecdot", key, conjugate_product, (x1, x2), "add", index - ndim, False, dtype, None, method)


def call(
    primitive: str,
    fn: Map | None,
    x: Any,
    op: Any,
    axis: Any,
    keepdims: bool,
    dtype: Any,
    initial: Any,
    method: str,
    axis_name: Any = None,
) -> Any:
    """Compute a call of any public function here but vecdot."""
    if in_graph(x, method) and axis_name is None:
        return nodes().reduce(primitive, None if fn in OWN_MAPS else fn, x, op, axis, keepdims, dtype, initial, method)
    # A prepared call stores `initial`, so only plain numbers can be part of its key.
    key, start = None, None if initial is None else plain(initial)
    if axis_name is None and (initial is None or start is not None):
        mapping, operation = lasting_key(fn), lasting_key(op)
        if mapping is not None and operation is not None:
            key = call_key(primitive, x, mapping, operation, axis, keepdims, dtype, method, start, gradient=True)
            run = recalled(key)
            if run is not None:
                return run(*x) if type(x) is tuple else run(x)
    plainer = made_plain(axis=axis)
    if plainer is not None:
        return call(primitive, fn, x, op, plainer["axis"], keepdims, dtype, initial, method, axis_name)
    if axis_name is not None or is_split(x):
        return devices().compute("reduced", x, axis_name, primitive, fn, x, op, axis, keepdims, dtype, initial, method)
    return _checked(primitive, key, fn, x, op, axis, keepdims, dtype, initial, method)


def _checked(
    primitive: str,
    key: Any,
    fn: Map | None,
    x: Any,
    op: Any,
    axis: Any,
    keepdims: bool,
    dtype: Any,
    initial: Any,
    method: str,
) -> Any:
    """Check a call and hand it to a method, to be found again by ``key`` if that takes the arrays as they are."""
    operator = as_operator(op)
    single = not isinstance(x, tuple)
    given: tuple[Array, ...] = (x,) if single else x
    if not given:
        raise ValueError("x must hold at least one array")
    name = "arrays" if primitive == "map_reduce" else "x"
    xp, admitted = admit({name if single else f"{name}[{index}]": one for index, one in enumerate(given)})
    arrays = tuple(admitted)
    if fn is is_nonzero and dtype_kind(arrays[0].dtype) == "bool":
        fn = None
    if fn is None and operator.flags and builtins.any(one.shape != arrays[0].shape for one in arrays):
        arrays = flags_broadcast(xp, operator, arrays)
    if not single and builtins.any(one.shape != arrays[0].shape for one in arrays):
        shapes = ", ".join(str(one.shape) for one in arrays)
        if fn is None:
            raise ValueError(f"x must be arrays of equal shape, got {shapes}")
        shape = broadcast_to_one(arrays)
        arrays = tuple(fitted(xp, one, one.dtype, shape) for one in arrays)
    axes = normalize_axes(axis, arrays[0].ndim)
    keepdims, dtypes = check_flag("keepdims", keepdims), as_dtypes(xp, dtype)
    _METHODS[primitive].check(method)
    as_given = builtins.all(one is other for one, other in zip(arrays, given, strict=True))
    r = Reduction(
        arrays=arrays,
        key=key if as_given else None,
        shape=tuple(arrays[0].shape),
        fn=fn,
        single=single,
        op=operator,
        axes=axes,
        keepdims=keepdims,
        dtypes=dtypes,
        initial=initial if initial is None or isinstance(initial, tuple) else (initial,),
        operation=lasting_key(op),
    )
    if fn is None:
        check_elements(r, tuple([one.dtype for one in arrays]))
    if r.n == 0 and primitive in ("max", "min"):
        raise ValueError(f"x must not be empty along the axes of a {primitive}, got shape {r.shape}")
    if fn is None:
        r = with_start(xp, r)
    elif listing():
        check_mapped(xp, r)
    return derivative_rules.reduction(_METHODS[primitive], method, xp, r)


_METHODS = {
    primitive: Methods(
        primitive,
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal, cuda.slower),
            Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True),
        ),
        native=Method(
            reduce_array.prepare_native, reduce_array.native_refusal, quiet=never_warns, eager=reduce_array.is_eager
        ),
        array=Method(directly(reduce_array.array), reduce_array.array_refusal),
    )
    for primitive in ("reduce", "map_reduce", "sum", "prod", "max", "min", "any", "all", "vecdot")
}

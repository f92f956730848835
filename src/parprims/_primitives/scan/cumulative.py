"""Cumulative extrema and sums of exponentials: extrema with their positions, and logarithms of running sums."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Never

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    along,
    check_flag,
    check_kind,
    dtype_kind,
    dtype_name,
    filled,
    is_jax,
    namespace_of,
)
from parprims._core.elements import only_array
from parprims._dispatch.by_device import either_of
from parprims._dispatch.composite import (
    Composed,
    Part,
    by_parts,
    composed,
    native_by_numpy,
    positions,
    stand_in,
)
from parprims._dispatch.derivative_rules import asked_for
from parprims._dispatch.dispatch import Method, exact, in_graph, primitive
from parprims._dispatch.examples import floats, of_an_array
from parprims._dispatch.primitive import Arguments, Primitive
from parprims._libraries.numpy_bridge import all_by_numpy, numpy_computes, numpy_orders
from parprims._primitives.scan.call import only_axis
from parprims._primitives.scan.public import declared_scan, scan
from parprims._primitives.sort.call import index_dtype


@primitive
def cumulative_max(
    x: Array,
    /,
    *,
    axis: int | None = None,
    return_indices: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: Array | None = None,
    check: bool | None = None,
    segment_ids: Array | None = None,
    num_segments: int | None = None,
    method: str = "auto",
    **others: Never,
) -> Any:
    """Find the largest element up to each along an axis, and where it is.

    Parameters
    ----------
    x : array
        The elements, of any shape and real dtype. NaN counts as larger than all others.
    axis : int or None, default None
        The axis to search along; None only for an array of one dimension.
    return_indices : bool, default False
        Whether the positions of these elements are returned too.
    exclusive : bool, default False
        Whether every result leaves its own element out; the first result is ``initial``, or minus infinity, for
        integers the least of the dtype.
    reverse : bool, default False
        Whether every element is combined with all behind it, from the last on, and not with all before it.
    initial : scalar or array, optional
        An element before the first, behind the last if ``reverse``. Its shape broadcasts to that of x without the axis.
        With offsets, an array of as many dimensions as x has an element for each segment: its shape broadcasts to that
        of x with the number of segments as the length of the axis.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is scanned separately, with ``initial`` before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    segment_ids : array, optional
        The number of the segment of each position along the axis, in one dimension and any order. Each element is
        combined with the elements of its segment alone. An element whose number is below 0, or num_segments or more, is
        returned as it is.
    num_segments : int, optional
        The number of segments; given with segment_ids.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array or (array, array)
        The largest elements, of the shape and dtype of x; with return_indices also their positions along the axis, of
        the library's default dtype for indices: the first of equal elements, and of NaN.

    Raises
    ------
    TypeError
        If x is no array, or its dtype is bool or complex.
    ValueError
        If axis is None and x has several dimensions, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    scan : Scan with any operator; its notes on cost, error and reproducibility apply.
    max : The largest of all elements.
    argmax : The position of the largest of all elements.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.cumulative_max(np.array([3, 1, 4, 4, 5]))
    array([3, 3, 4, 4, 5])
    >>> parprims.cumulative_max(np.array([3, 1, 4, 4, 5]), return_indices=True)[1]
    array([0, 0, 2, 2, 4])
    >>> parprims.cumulative_max(np.array([3, 1, 4, 4, 5]), offsets=[0, 1, 5], reverse=True)
    array([3, 5, 5, 5, 5])

    Along an axis:

    >>> parprims.cumulative_max(np.array([[1, 5], [4, 2]]), axis=0)
    array([[1, 5],
           [4, 5]])
    """
    arrays, options = {"x": only_array(x), "initial": initial}, {"exclusive": exclusive, "reverse": reverse}
    segments = {"offsets": offsets, "segment_ids": segment_ids, "num_segments": num_segments}
    if check_flag("return_indices", return_indices):
        _check_left_out(**options, initial=initial, **segments)
        return _WITH_INDICES["cumulative_max"](others, {"x": x}, method, check=check, axis=axis, return_indices=True)
    return EXTREMA["cumulative_max"](others, arrays, method, check=check, axis=axis, **segments, **options)


@primitive
def cumulative_min(
    x: Array,
    /,
    *,
    axis: int | None = None,
    return_indices: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: Array | None = None,
    check: bool | None = None,
    segment_ids: Array | None = None,
    num_segments: int | None = None,
    method: str = "auto",
    **others: Never,
) -> Any:
    """Find the smallest element up to each along an axis, and where it is.

    Parameters
    ----------
    x : array
        The elements, of any shape and real dtype. NaN counts as smaller than all others.
    axis : int or None, default None
        The axis to search along; None only for an array of one dimension.
    return_indices : bool, default False
        Whether the positions of these elements are returned too.
    exclusive : bool, default False
        Whether every result leaves its own element out; the first result is ``initial``, or infinity, for integers the
        largest of the dtype.
    reverse : bool, default False
        Whether every element is combined with all behind it, from the last on, and not with all before it.
    initial : scalar or array, optional
        An element before the first, behind the last if ``reverse``. Its shape broadcasts to that of x without the axis.
        With offsets, an array of as many dimensions as x has an element for each segment: its shape broadcasts to that
        of x with the number of segments as the length of the axis.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is scanned separately, with ``initial`` before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    segment_ids : array, optional
        The number of the segment of each position along the axis, in one dimension and any order. Each element is
        combined with the elements of its segment alone. An element whose number is below 0, or num_segments or more, is
        returned as it is.
    num_segments : int, optional
        The number of segments; given with segment_ids.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array or (array, array)
        The smallest elements, of the shape and dtype of x; with return_indices also their positions along the axis, of
        the library's default dtype for indices: the first of equal elements, and of NaN.

    Raises
    ------
    TypeError
        If x is no array, or its dtype is bool or complex.
    ValueError
        If axis is None and x has several dimensions, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    scan : Scan with any operator; its notes on cost, error and reproducibility apply.
    min : The smallest of all elements.
    argmin : The position of the smallest of all elements.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.cumulative_min(np.array([3, 1, 4, 1, 0]))
    array([3, 1, 1, 1, 0])
    >>> parprims.cumulative_min(np.array([3, 1, 4, 1, 0]), return_indices=True)[1]
    array([0, 1, 1, 1, 4])
    >>> parprims.cumulative_min(np.array([3, 1, 4, 1, 0]), offsets=[0, 2, 5], initial=3, reverse=True)
    array([1, 1, 0, 0, 0])

    Along an axis:

    >>> parprims.cumulative_min(np.array([[1, 5], [4, 2]]), axis=0)
    array([[1, 5],
           [1, 2]])
    """
    arrays, options = {"x": only_array(x), "initial": initial}, {"exclusive": exclusive, "reverse": reverse}
    segments = {"offsets": offsets, "segment_ids": segment_ids, "num_segments": num_segments}
    if check_flag("return_indices", return_indices):
        _check_left_out(**options, initial=initial, **segments)
        return _WITH_INDICES["cumulative_min"](others, {"x": x}, method, check=check, axis=axis, return_indices=True)
    return EXTREMA["cumulative_min"](others, arrays, method, check=check, axis=axis, **segments, **options)


@primitive
def cumulative_logsumexp(
    x: Array,
    /,
    *,
    axis: int | None = None,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: Array | None = None,
    check: bool | None = None,
    segment_ids: Array | None = None,
    num_segments: int | None = None,
    method: str = "auto",
    **others: Never,
) -> Array:
    """Sum the exponentials of all elements up to each along an axis: y[i] = log(exp(x[0]) + ... + exp(x[i])).

    No exponential overflows, because the largest element is factored out of every sum.

    Parameters
    ----------
    x : array
        The elements, of any shape and real floating dtype. Minus infinity adds nothing. From plus infinity on, results
        are infinite; from NaN on, they are NaN.
    axis : int or None, default None
        The axis to sum along; None only for an array of one dimension.
    exclusive : bool, default False
        Whether every result leaves its own element out; the first result is ``initial``, or minus infinity.
    reverse : bool, default False
        Whether every element is combined with all behind it, from the last on, and not with all before it.
    initial : scalar or array, optional
        An element before the first, behind the last if ``reverse``. Its shape broadcasts to that of x without the axis.
        With offsets, an array of as many dimensions as x has an element for each segment: its shape broadcasts to that
        of x with the number of segments as the length of the axis.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is scanned separately, with ``initial`` before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    segment_ids : array, optional
        The number of the segment of each position along the axis, in one dimension and any order. Each element is
        combined with the elements of its segment alone. An element whose number is below 0, or num_segments or more, is
        returned as it is.
    num_segments : int, optional
        The number of segments; given with segment_ids.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array
        The logarithms of the sums, of the shape and dtype of x.

    Raises
    ------
    TypeError
        If x is no array, or its dtype is no real floating dtype.
    ValueError
        If axis is None and x has several dimensions, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    scan : Scan with any operator; its notes for logaddexp apply.
    cumulative_sum : Sums of all elements up to each.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.cumulative_logsumexp(np.array([-np.inf, 1000.0, 1000.0])).round(3)
    array([    -inf, 1000.   , 1000.693])
    >>> parprims.cumulative_logsumexp(np.zeros(4), offsets=[0, 1, 4], reverse=True).round(3)
    array([0.   , 1.099, 0.693, 0.   ])

    Along an axis:

    >>> parprims.cumulative_logsumexp(np.zeros((2, 2)), axis=0).round(3)
    array([[0.   , 0.   ],
           [0.693, 0.693]])
    """
    if in_graph(x, method) or asked_for(x):
        x = _terms(x)
    arrays = {"x": only_array(x), "initial": initial}
    options = {"axis": axis, "exclusive": exclusive, "reverse": reverse}
    segments = {"offsets": offsets, "segment_ids": segment_ids, "num_segments": num_segments}
    return CUMULATIVE_LOGSUMEXP(others, arrays, method, check=check, **segments, **options)


def _terms(x: Array) -> Array:
    """Return the elements, without a derivative for elements of minus infinity."""
    if dtype_kind(x.dtype) != "float":
        return x
    xp = namespace_of(x)
    nothing = xp.full_like(x, -math.inf)  # the derivative is 0, even if all terms are minus infinity
    return xp.where(x == -math.inf, nothing, x)


_OPERATORS = {"cumulative_max": ("maximum", "argmax"), "cumulative_min": ("minimum", "argmin")}


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Extrema(Composed):
    """A checked call with indices along ``axis``, counted from the front. ``primitive`` names the function."""

    axis: int
    primitive: str


def _check_left_out(**options: Any) -> None:
    """Raise ValueError if an option is given that a call with indices does not have."""
    for name, value in options.items():
        given = check_flag(name, value) if name in ("exclusive", "reverse") else value is not None
        if given:
            raise ValueError(f"{name} must be left out where return_indices is True: scan pairs by argmax or argmin")


def _checked(asked: Arguments) -> tuple[Namespace, _Extrema]:
    xp, (x,) = admit(asked.arrays)
    check_kind("x", x, ("int", "uint", "float"))
    results = (tuple(x.shape), x.dtype), (tuple(x.shape), index_dtype(xp))
    axis = only_axis(asked["axis"], x.ndim)
    return xp, _Extrema(arrays=(x,), key=asked.key_of(x), results=results, axis=axis, primitive=asked.name)


def _pairs(xp: Namespace, c: _Extrema) -> tuple[Array, Array]:
    (x,) = c.arrays
    return x, positions(xp, x, (c.axis,), index_dtype(xp))


def _parts(xp: Namespace, c: _Extrema) -> list[Part]:
    (x,) = c.arrays
    pair = x, stand_in(xp, x, tuple(x.shape), index_dtype(xp))
    return [(scan, (pair, _OPERATORS[c.primitive][1]), {"axis": c.axis})]


def _compose(xp: Namespace, c: _Extrema, method: str) -> tuple[Array, ...]:
    """Return the scan of elements with their positions."""
    result: tuple[Array, ...] = scan(_pairs(xp, c), _OPERATORS[c.primitive][1], axis=c.axis, method=method)
    return result


def _native_parts(xp: Namespace, c: _Extrema) -> list[Part]:
    del xp
    return [(scan, (c.arrays[0], _OPERATORS[c.primitive][0]), {"axis": c.axis})]


def _native(xp: Namespace, c: _Extrema, method: str) -> tuple[Array, Array]:
    """Return the extrema by the library's own scan, and the indices by a scan for the last position of a change."""
    (x,) = c.arrays
    n, places = x.shape[c.axis], positions(xp, x, (c.axis,), index_dtype(xp))
    ys = scan(x, _OPERATORS[c.primitive][0], axis=c.axis, method=method)
    if n < 2:
        return ys, xp.zeros_like(places)
    here, before = ys[along(c.axis, 1, None)], ys[along(c.axis, 0, n - 1)]
    changed = here != before
    if dtype_kind(x.dtype) == "float":
        changed = changed & ~((here != here) & (before != before))
    rest = places[along(c.axis, 1, None)]
    rest = xp.where(changed, rest, xp.zeros_like(rest))
    steps = xp.concat([filled(xp, 0, rest, c.axis), rest], axis=c.axis)
    return ys, scan(steps, "maximum", axis=c.axis, method=method)


def _in_numpy(xp: Namespace, c: _Extrema) -> bool:
    """Return whether NumPy computes the call; on JAX, a compiled program is as fast for few elements."""
    (x,) = c.arrays
    in_numpy = numpy_computes(xp, c.arrays) and not is_jax(xp)
    return in_numpy and 0 not in x.shape and numpy_orders(x.dtype)


def _prepare_in_numpy(xp: Namespace, c: _Extrema) -> Callable[[Array], tuple[Array, ...]] | None:
    """Return a function of the array by NumPy's routines alone, or None if NumPy does not compute the call."""
    (x,) = c.arrays
    if not _in_numpy(xp, c):
        return None
    axis, n, last = c.axis, x.shape[c.axis], x.ndim - 1
    size, index = math.prod(x.shape), np.dtype(dtype_name(c.results[1][1]))
    shape_of_lines = (*x.shape[:axis], *x.shape[axis + 1 :], n)
    so_far = getattr(np, _OPERATORS[c.primitive][0]).accumulate
    here, before, is_float = along(axis, 1, None), along(axis, 0, n - 1), dtype_kind(x.dtype) == "float"

    def found(x: Array) -> tuple[Array, ...]:
        ys = so_far(x, axis)
        begins = np.ones(x.shape, bool)
        np.not_equal(ys[here], ys[before], begins[here])
        if is_float and (ys[before] != ys[before]).any():
            begins[here] &= ys[before] == ys[before]  # a NaN does not change to a later NaN
        if axis != last:
            x, begins = np.moveaxis(x, axis, -1), np.moveaxis(begins, axis, -1)
        starts = begins.reshape(-1).nonzero()[0]
        lengths = np.empty_like(starts)
        np.subtract(starts[1:], starts[:-1], lengths[:-1])
        lengths[-1] = size - starts[-1]
        values = x.reshape(-1)[starts].repeat(lengths)  # the first of equal zeros, and of NaN
        places = (starts % n).astype(index, copy=False).repeat(lengths)
        if last:
            values, places = values.reshape(shape_of_lines), places.reshape(shape_of_lines)
            if axis != last:
                values, places = np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis)
        return values, places

    return all_by_numpy(xp, c.arrays, found)


def _native_method() -> Method:
    by_numpy = native_by_numpy(_native, _native_parts, _prepare_in_numpy)
    by_library = by_parts("native", _native, _native_parts)
    return either_of(lambda xp, _: by_library if is_jax(xp) else by_numpy, quiet=True)


_FEW = 3000
"""Elements up to which NumPy is faster than the kernel for CPUs."""


def _kernel() -> Method:
    kernel = by_parts("kernel", _compose, _parts)

    def slower(xp: Namespace, c: _Extrema) -> str | None:
        if math.prod(c.arrays[0].shape) <= _FEW and _in_numpy(xp, c):
            return f"NumPy is faster for at most {_FEW} elements"
        return None if kernel.slower is None else kernel.slower(xp, c)

    return dataclasses.replace(kernel, slower=slower)


EXTREMA = {name: declared_scan(name, op=op, dtype=None, include_initial=False) for name, (op, _) in _OPERATORS.items()}
_WITH_INDICES = {
    name: Primitive(
        name=name,
        variant="with indices",
        check=_checked,
        methods=composed(name, exact, _compose, _parts, kernel=_kernel(), native=_native_method()),
        example=lambda make: ((make(),), {**make.along, "return_indices": True}),
    )
    for name in _OPERATORS
}
CUMULATIVE_LOGSUMEXP = declared_scan(
    "cumulative_logsumexp", floats(of_an_array), op="logaddexp", dtype=None, include_initial=False
)

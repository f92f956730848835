"""Reductions by the library's own routine, or by NumPy's in the same memory."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    as_result,
    cast,
    dtype_kind,
    dtype_name,
    is_jax,
    is_tensor,
    lacks_products,
    library,
    library_title,
    move_axis,
    ring_dtype,
)
from parprims._dispatch.derivative_rules import own_refusal
from parprims._dispatch.dispatch import directly
from parprims._libraries import numpy_sums
from parprims._libraries.numpy_bridge import (
    NOT_IN_NUMPY,
    all_by_numpy,
    all_returned,
    as_numpy,
    by_numpy,
    carries_derivative,
    has_values,
    in_numpy,
    is_shared,
    returned,
    searchable,
    shares_memory,
)
from parprims._libraries.settings import UNROUNDED_SUMS, may_round_sums, narrowed, narrowed_in_cupy
from parprims._operators.foreign.calls import call_on
from parprims._operators.operator import BUILT_IN, Operator
from parprims._primitives.reduce import array
from parprims._primitives.reduce.array import Combined, as_one_axis, block_lengths, by_blocks
from parprims._primitives.reduce.call import (
    SUMS,
    Reduction,
    Values,
    check_elements,
    conjugate_product,
    evaluate,
    explain_map_failure,
    finish,
    is_nonzero,
    library_routine,
    mapped,
    refused_shapes,
    result_dtypes,
    result_of_empty,
    widened,
    working_dtype,
)

_ROUTINES = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}

_TORCH_ROUTINES = {**_ROUTINES, "maximum": "amax", "minimum": "amin"}


def refusal(xp: Namespace, r: Reduction) -> str | None:
    """Return the reason why the library has no routine for the call, or None."""
    if r.shapes is not None:
        return refused_shapes(r)
    if _is_extremum(r.op):
        readable = in_numpy(xp, r.arrays) or has_values(xp, r.arrays)
        if not readable or carries_derivative(xp, r.arrays):
            return (
                f"{library_title(xp)} has no reduction with the operator {r.op.name}{NOT_IN_NUMPY.get(library(xp), '')}"
            )
        return array.refusal(xp, r)
    if BUILT_IN.get(r.op.name) is not r.op or r.op.name not in _ROUTINES:
        return f"{library_title(xp)} has no reduction with the operator {r.op.name}"
    return own_refusal(xp, r.op) or array.refusal(xp, r)


def is_eager(xp: Namespace, r: Reduction) -> bool:
    """Return whether NumPy's search or dot product reduces JAX arrays outside of a program."""
    return (_is_extremum(r.op) and has_values(xp, r.arrays)) or _dots_in_numpy(xp, r)


def _dots_in_numpy(xp: Namespace, r: Reduction) -> bool:
    """Return whether NumPy's dot product, which is faster than XLA's for long lines, multiplies JAX arrays."""
    same = r.fn is conjugate_product and r.initial is None and not r.keepdims and r.dtypes == (r.arrays[0].dtype,)
    blas = all(dtype_name(x.dtype) in ("float32", "float64", "complex64", "complex128") for x in r.arrays)
    return same and blas and len(r.shape) == 1 and r.n >= _LONG and has_values(xp, r.arrays)


_LONG = 2**17
"""Elements of a line from which on NumPy is faster, including the transfer of the result."""


def _is_extremum(op: Operator) -> bool:
    """Return whether the operator finds the largest or smallest value and its index."""
    return op is BUILT_IN["argmax"] or op is BUILT_IN["argmin"]


def prepare(xp: Namespace, r: Reduction) -> Callable[..., Any]:
    """Return a function of the arrays; where one call of the library suffices, that call alone."""
    run: Callable[..., Any] | None = None
    if _is_extremum(r.op):
        return _prepare_extremum(xp, r)
    # The routines of NumPy and PyTorch copy a single element.
    least = 1 if r.axes and library(xp) in ("numpy", "torch") else 2
    if r.begun and r.n > 0:
        run = _prepare_with_initial(xp, r)
    elif r.initial is None and r.n >= least and library(xp) in ("numpy", "cupy", "torch", "jax"):
        if r.fn in (None, is_nonzero) and r.op in (BUILT_IN["logical_and"], BUILT_IN["logical_or"]):
            run = _prepare_truth(xp, r)
        if run is None and r.fn is None:
            run = _prepare_routine(xp, r)
        elif run is None:
            run = _prepare_dot(xp, r) if r.fn is conjugate_product else _prepare_mapped(xp, r)
    return run or directly(_native)(xp, r)


def _prepare_with_initial(xp: Namespace, r: Reduction) -> Callable[..., Any] | None:
    """Return the routine followed by a combination with the initial element, or None if the dtypes of both differ."""
    dtype = result_dtypes(xp, r, (r.arrays[0].dtype,))[0]
    if not r.single or working_dtype(r.op)(xp, dtype) != dtype:
        return None
    total, combine = prepare(xp, dataclasses.replace(r, initial=None, begun=False)), r.op.combine
    assert r.initial is not None
    (start,) = r.initial
    return lambda x: as_result(combine(start, total(x)))


def _prepare_routine(xp: Namespace, r: Reduction) -> Callable[..., Any] | None:
    """Return the library's routine, or None if elements or results need a conversion."""
    if r.fn is not None:
        return None
    source, keepdims = r.arrays[0].dtype, r.keepdims
    dtype = result_dtypes(xp, r, (source,))[0]
    working = working_dtype(r.op)(xp, dtype)
    if source in (dtype, working) and dtype != working:
        return _prepare_widened(xp, r, working, dtype)
    if not (source == working == dtype or _widens(xp, r, dtype)):
        return None
    if library(xp) == "numpy":
        reduce = getattr(np, r.op.name).reduce  # the ufunc method that the function calls
        if _adds_floats(xp, r, dtype):
            axes, result = r.axes, r.result_shape
            return lambda x: numpy_sums.total(x, axes, dtype).reshape(result)
        along_axes = r.axes[0] if len(r.axes) == 1 else r.axes
        as_array = np.asarray  # NumPy returns 0-d results as scalars
        return lambda x: as_array(reduce(x, along_axes, dtype, None, keepdims))
    if is_tensor(r.arrays[0]) and (len(r.axes) == 1 or r.op.name != "multiply"):
        return _torch_routine(r, dtype)
    function = library_routine(xp, _ROUTINES[r.op.name], r.arrays)
    options = {"axis": r.axes, "keepdims": keepdims, **({"dtype": dtype} if r.op in SUMS else {})}
    return lambda x: function(x, **options)


def _adds_floats(xp: Namespace, r: Reduction, dtype: Any) -> bool:
    """Return whether NumPy adds too many floats to add them one after another."""
    inexact = dtype_kind(dtype) in ("float", "complex")
    return library(xp) == "numpy" and r.op is BUILT_IN["add"] and inexact and r.n > numpy_sums.MOST


def _prepare_widened(xp: Namespace, r: Reduction, working: Any, dtype: Any) -> Callable[..., Any] | None:
    """Return the routine for elements cast to another dtype, such as 16-bit floats, or None for several blocks."""
    if library(xp) not in ("numpy", "torch") or block_lengths(xp, r) is not None:
        return None
    run = _prepare_routine(xp, dataclasses.replace(r, arrays=(cast(xp, r.arrays[0], working),), dtypes=None))
    assert run is not None
    if library(xp) == "torch":
        return lambda x: run(x.to(working)).to(dtype)
    return lambda x: run(x.astype(working, copy=False)).astype(dtype)


def _torch_routine(r: Reduction, dtype: Any) -> Callable[..., Any]:
    """Return PyTorch's function for the axes; the form for a tuple of axes takes up to three times as long."""
    import torch

    function, axes, keepdims = getattr(torch, _TORCH_ROUTINES[r.op.name]), r.axes, r.keepdims
    # PyTorch itself widens narrower integers to int64.
    usual = dtype == torch.int64 or dtype_kind(dtype) in ("float", "complex")
    typed = {"dtype": dtype} if r.op in SUMS and not usual else {}
    if len(axes) == len(r.shape) and not keepdims:
        return functools.partial(function, **typed) if typed else function
    along_axes = axes[0] if len(axes) == 1 else axes
    if typed:
        return lambda x: function(x, along_axes, keepdims, **typed)
    return lambda x: function(x, along_axes, keepdims)


def _prepare_truth(xp: Namespace, r: Reduction) -> Callable[..., Any] | None:
    """Return the test by NumPy or PyTorch whether all or any elements are nonzero, or None."""
    (x,), axes, keepdims = r.arrays, r.axes, r.keepdims
    kind = dtype_kind(x.dtype)
    if library(xp) not in ("numpy", "torch") or r.dtypes is not None or not is_shared(x.dtype):
        return None
    if r.fn is None and kind != "bool":
        return None
    along_axes = axes[0] if len(axes) == 1 else axes
    inner = math.prod(r.shape[axes[-1] :]) if axes[-1] == len(r.shape) - 1 else r.shape[-1]
    if library(xp) == "numpy" or (inner >= _INNER and shares_memory(xp, r.arrays)):
        reduce = getattr(np, r.op.name).reduce
        return by_numpy(xp, r.arrays, lambda x: np.asarray(reduce(x, along_axes, None, None, keepdims)))
    return None if kind == "uint" or library(xp) == "numpy" else _torch_routine(r, x.dtype)


_INNER = 64
"""Adjacent elements from which on NumPy's test is faster than PyTorch's."""


def _prepare_mapped(xp: Namespace, r: Reduction) -> Callable[..., Any] | None:
    """Return a function that calls the map and then the routine, for elements that are one block.

    The routine chosen for the values of the first call is used for all values of equal dtype and shape. The map gets
    16-bit floats as float32.
    """
    if is_jax(xp) or block_lengths(xp, r) is not None:
        return None
    assert r.fn is not None
    fn, shape, bare = r.fn, r.shape, r.on(*(None,) * len(r.arrays))
    routines: dict[Any, Callable[..., Any] | None] = {}

    def run(*arrays: Array) -> Any:
        if routines:
            try:
                value = call_on(fn, widened(xp, arrays), arrays[0])
            except Exception as error:
                explain_map_failure(error, len(arrays))
                raise
            if type(value) is type(arrays[0]) and value.shape == shape:
                routine = routines.get(value.dtype)
                if routine is not None:
                    return routine(value)
        call = bare.on(*arrays)
        values, own, single, structure = mapped(xp, call)
        if single and structure is None:
            check_elements(call, own)
            dtypes = result_dtypes(xp, call, own)
            call = dataclasses.replace(call, fn=None, single=True, arrays=values, dtypes=dtypes)
            routines[values[0].dtype] = _prepare_routine(xp, call)
        return _native(xp, call)

    return run


def _prepare_dot(xp: Namespace, r: Reduction) -> Callable[..., Any] | None:
    """Return a function that calls the library's dot product, for elements that are one block."""
    x = r.arrays[0]
    if (
        (x.dtype,) != r.dtypes
        or ring_dtype(xp, x.dtype) != x.dtype
        or lacks_products(xp, x, x.dtype)
        or (block_lengths(xp, r) and not _stores_no_products(xp, r))
    ):
        return None
    if _dots_in_numpy(xp, r):
        quietly = np.errstate(all="ignore")
        return quietly(lambda *arrays: returned(xp, np.asarray(np.vecdot(*map(as_numpy, arrays))), arrays))
    axis = r.axes[0] - len(r.shape)
    if library(xp) == "numpy":
        as_array = np.asarray
        routine: Callable[..., Any] = np.vecdot if axis == -1 else functools.partial(np.vecdot, axis=axis)
        return lambda x1, x2: as_array(routine(x1, x2))
    if is_tensor(x) and x.device.type == "cpu" and all(x.ndim == 1 for x in r.arrays):
        import torch

        own: Callable[..., Any] = torch.vdot
        return own
    return lambda x1, x2: as_result(_dot(xp, x1, x2, axis))


def _stores_no_products(xp: Namespace, r: Reduction) -> bool:
    """Return whether the library's dot product stores no products."""
    x1, x2 = r.arrays
    return library(xp) == "numpy" or (is_tensor(x1) and x1.device.type == "cpu" and x1.ndim == x2.ndim == 1)


def _native(xp: Namespace, r: Reduction) -> Any:
    """Return the combinations by the library's own reduction."""
    if r.n == 0:
        return result_of_empty(xp, r)
    if r.fn is None:
        dtype = result_dtypes(xp, r, tuple([x.dtype for x in r.arrays]))[0]
        if working_dtype(r.op)(xp, dtype) == r.arrays[0].dtype:
            return finish(xp, r, *_by_routine(xp, r))  # it takes the elements unconverted
        if _widens(xp, r, dtype):
            totals = (getattr(xp, _ROUTINES[r.op.name])(r.arrays[0], axis=r.axes, dtype=dtype),)
            return finish(xp, r, Values(r.arrays, (dtype,), True, r.op), totals)
    return finish(xp, r, *by_blocks(xp, r, _by_routine))


def _widens(xp: Namespace, r: Reduction, dtype: Any) -> bool:
    """Return whether the routine widens the elements of a sum or product one by one, as NumPy's and CuPy's do.

    PyTorch's routine first widens all elements, which takes little memory if they are few.
    """
    kinds = [dtype_kind(one) for one in (r.arrays[0].dtype, dtype)]
    if r.op not in SUMS or kinds[0] not in ("bool", "int", "uint") or kinds[1] not in ("int", "uint"):
        return False
    if library(xp) == "torch":
        return kinds[1] == "int" and not r.arrays[0].is_cuda and block_lengths(xp, r) is None
    return library(xp) in ("numpy", "cupy")


def _by_routine(xp: Namespace, r: Reduction) -> Combined:
    if r.fn is conjugate_product and not lacks_products(xp, r.arrays[0], r.arrays[0].dtype):
        assert r.dtypes is not None
        dtype = ring_dtype(xp, r.arrays[0].dtype)
        x1, x2 = (cast(xp, x, dtype) for x in r.arrays)
        return Values(r.arrays, r.dtypes, True, r.op), (_dot(xp, x1, x2, r.axes[0] - len(r.shape)),)
    values = evaluate(xp, r)
    (x,) = values.arrays
    if _adds_floats(xp, r, x.dtype):
        kept = r.of(x, keepdims=False).result_shape
        return values, (xp.asarray(numpy_sums.total(x, r.axes, x.dtype)).reshape(kept),)
    typed = {"dtype": x.dtype} if r.op in SUMS else {}
    return values, (library_routine(xp, _ROUTINES[r.op.name], r.arrays)(x, axis=r.axes, **typed),)


def _dot(xp: Namespace, x1: Array, x2: Array, axis: int) -> Array:
    """Return dot products by the library's own routine, along an axis counted from the end."""
    if not is_tensor(x1):
        single = dtype_name(x1.dtype) in ("float32", "complex64")
        if single and array_api_compat.is_cupy_namespace(xp) and narrowed_in_cupy():
            return xp.sum(conjugate_product(x1, x2), axis=axis, dtype=x1.dtype)
        # By default JAX multiplies float32 in lower precision on a GPU.
        precise = {"precision": "highest"} if is_jax(xp) else {}
        return xp.vecdot(x1, x2, axis=axis, **precise)
    if x1.device.type == "cpu":
        import torch

        if x1.ndim == x2.ndim == 1:
            return torch.vdot(x1, x2)
        if dtype_kind(x1.dtype) in ("float", "complex"):
            return torch.linalg.vecdot(x1, x2, dim=axis)
    if narrowed(x1) or not x1.is_cuda:  # products of integer matrices are 300 times as slow
        return xp.sum(conjugate_product(x1, x2), axis=axis, dtype=x1.dtype)
    # The computation of array_api_compat, in operations for which torch.func.vmap has rules.
    x1, x2 = (move_axis(xp, x, axis, -1) for x in (x1, x2))
    with UNROUNDED_SUMS if may_round_sums(x1, x1.dtype) else contextlib.nullcontext():
        return (xp.conj(x1[..., None, :]) @ x2[..., None])[..., 0, 0]


def _prepare_extremum(xp: Namespace, r: Reduction) -> Callable[..., Any]:
    """Return a function of values and indices that finds the extreme values and their indices in NumPy."""
    dtypes = tuple([x.dtype for x in r.arrays])
    plain = r.fn is None and r.initial is None and r.n > 0 and r.axes and r.dtypes in (None, dtypes)
    if not plain or working_dtype(r.op)(xp, dtypes[0]) != dtypes[0]:
        return directly(_native_extremum)(xp, r)
    name = r.op.name
    if len(r.shape) > 1 or r.keepdims:
        return directly(_native_extremum)(xp, r) if _takes_parts(xp, r) else _prepare_extrema(xp, r)
    find = getattr(np.ndarray, name)

    def search(x: Any, index: Any) -> tuple[Any, Any]:
        """Return the winner of a line: the value and the smallest index among equal values."""
        if len(x) <= _SHORT:  # a second search is faster than a comparison
            place = find(x)
            value, rest = x[place], x[place + 1 :]
            if not len(rest) or rest[find(rest)] != value == value:
                return np.array(value), np.array(index[place])
        x, tops = searchable(x), None
        if len(x) < 2 * _PIECE:
            place = getattr(x, name)()
            behind = x[place:]
        else:
            places = _winners(name, x)
            tops = x[places]
            place = places[getattr(tops, name)()]
            behind = x[place : place - place % _PIECE + _PIECE]
        value = x[place]
        equals = _equals(behind, value)
        if tops is not None:
            equals += _equals(tops, value) - 1
        if equals > 1:
            value, winner = _extremum(name, x, index, 0)
            return value.reshape(()), winner.reshape(())
        return np.array(value), np.array(index[place])

    return all_by_numpy(xp, r.arrays, search)


def _takes_parts(xp: Namespace, r: Reduction) -> bool:
    """Return whether elements are combined block by block, or moved first."""
    return block_lengths(xp, r) is not None or r.axes[-1] - r.axes[0] + 1 != len(r.axes)


def _prepare_extrema(xp: Namespace, r: Reduction) -> Callable[..., Any]:
    """Return a function of values and indices that finds the extrema of several lines in NumPy."""
    name, shape, first = r.op.name, r.result_shape, r.axes[0]
    merged = (*r.shape[:first], r.n, *r.shape[r.axes[-1] + 1 :])

    def search(x: Any, index: Any) -> tuple[Any, Any]:
        value, winner = _extremum(name, x.reshape(merged), index.reshape(merged), first)
        return value.reshape(shape), winner.reshape(shape)

    return all_by_numpy(xp, r.arrays, search)


_SHORT = 1000
"""The most elements of a line for which two searches are faster than a comparison."""

_PIECE = 2**14
"""Elements of a piece of a line. Only the piece of the winner is searched again, for equal values."""


def _winners(name: str, x: Any) -> Any:
    """Return the position of the winner of each piece of a line; the last piece may be shorter."""
    places = np.arange(0, len(x), _PIECE)
    pieces = len(x) // _PIECE
    places[:pieces] += getattr(x[: pieces * _PIECE].reshape(pieces, _PIECE), name)(1)
    if pieces < len(places):
        places[pieces] += getattr(x[pieces * _PIECE :], name)()
    return places


def _equals(x: Any, value: Any) -> int:
    """Return the number of elements that equal a value, or are NaN if it is NaN."""
    return int(np.count_nonzero(x == value) or np.count_nonzero(x != x))


def _native_extremum(xp: Namespace, r: Reduction) -> Any:
    """Return the extreme values and their indices by the library's own functions."""
    return result_of_empty(xp, r) if r.n == 0 else finish(xp, r, *by_blocks(xp, r, _by_search))


def _by_search(xp: Namespace, r: Reduction) -> Combined:
    values = evaluate(xp, r)
    xs, axis = as_one_axis(xp, values.arrays, r.axes)
    x, index = (as_numpy(x) for x in xs)
    return values, all_returned(xp, _extremum(r.op.name, x, index, axis), xs)


def _extremum(name: str, x: Any, index: Any, axis: int) -> tuple[Any, Any]:
    """Return the winning values along an axis, where NaN wins, and the smallest indices among equal values."""
    x, last = searchable(x), axis == x.ndim - 1
    if x.flags.c_contiguous and index.flags.c_contiguous:
        result = _without_equals(name, x, index, axis)
        if result is not None:
            return result
    if last:  # elsewhere NumPy looks for places far more slowly than for values
        place = np.expand_dims(getattr(x, name)(axis=axis), axis)
        value = np.take_along_axis(x, place, axis)
    else:
        value = (np.max if name == "argmax" else np.min)(x, axis=axis, keepdims=True)
    equal = x == value
    lost = value != value
    if lost.any():
        equal |= (x != x) & lost
    alone = np.count_nonzero(equal) == value.size
    if alone and last:
        return value, np.take_along_axis(index, place, axis)
    least = np.min(np.where(equal, index, np.iinfo(index.dtype).max), axis=axis, keepdims=True)
    if alone or not (lost | (value == 0)).any():  # equal values have equal bits
        return value, least
    return np.take_along_axis(x, np.expand_dims(np.argmax(equal & (index == least), axis=axis), axis), axis), least


def _without_equals(name: str, x: Any, index: Any, axis: int) -> tuple[Any, Any] | None:
    """Return the winners of contiguous arrays if each is unique in its line and not NaN; else None."""
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    n, lines = x.shape[axis], math.prod(shape)
    if axis == x.ndim - 1:  # elsewhere NumPy looks for places far more slowly than for values
        place = getattr(x, name)(-1).reshape(-1) + np.arange(0, x.size, n)
        value = x.reshape(-1)[place]
        if np.count_nonzero(x.reshape(-1, n) == value[:, None]) != lines or np.count_nonzero(value != value):
            return None
        return value.reshape(shape), index.reshape(-1)[place].reshape(shape)
    value = (np.max if name == "argmax" else np.min)(x, axis=axis, keepdims=True)
    place = np.flatnonzero(x == value)
    if len(place) != lines or np.count_nonzero(value != value):
        return None
    inner = math.prod(shape[axis:])
    least = np.empty(lines, index.dtype)
    least[place // (n * inner) * inner + place % inner] = index.reshape(-1)[place]
    return value, least.reshape(shape)

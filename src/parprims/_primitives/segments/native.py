"""Reductions of segments by libraries' routines: reduceat, bincount, and routines that combine at indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, along, cast, compute_dtype, device, dtype_kind, dtype_name, library
from parprims._dispatch.derivative_rules import asked_for
from parprims._dispatch.dispatch import directly
from parprims._libraries.numpy_bridge import by_numpy, is_shared, numpy_computes, numpy_namespace, quietly
from parprims._operators.operator import BUILT_IN, Operator
from parprims._primitives.scan.call import working_dtypes
from parprims._primitives.segments.call import Segmented

_REDUCEAT = ("add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or",
             "bitwise_xor", "logaddexp")  # fmt: skip

_AT = {"add": "sum", "multiply": "prod", "maximum": "amax", "minimum": "amin"}
"""Maps an operator that libraries apply at indices, one element after another, to PyTorch's name of it."""


def _numpy_dtypes(c: Segmented) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Return NumPy's dtypes of a result and of its combination."""
    dtype = c.dtypes[0]
    result: np.dtype[Any] = dtype if isinstance(dtype, np.dtype) else np.dtype(dtype_name(dtype))
    return result, np.dtype(compute_dtype(numpy_namespace(), result))


def _identity(op: Operator, dtype: str) -> Any:
    """Return the identity of a built-in operator of one component."""
    identity = op.identity(dtype)
    assert identity is not None
    return identity[0]


def _casting(source: Any, *dtypes: np.dtype[Any]) -> Callable[[Any], Any]:
    """Return a function that casts arrays of a dtype to each of ``dtypes`` in turn."""
    name, steps = np.dtype(source if isinstance(source, np.dtype) else dtype_name(source)), []
    for dtype in dtypes:
        if dtype != name:
            steps.append(dtype)
            name = dtype
    if not steps:
        return lambda x: x

    def cast_all(x: Any) -> Any:
        for dtype in steps:
            x = x.astype(dtype)
        return x

    return cast_all


def _quietly(run: Callable[..., Any], dtype: np.dtype[Any]) -> Callable[..., Any]:
    """Return ``run`` without NumPy's warnings, which integers and bools never cause."""
    return run if dtype.kind in "biu" else quietly(run)


# ---- Offsets ----------------------------------------------------------------------------------------------------


def has_reduceat(xp: Namespace, c: Segmented) -> bool:
    """Return whether NumPy's reduceat computes the call, in memory that NumPy reads."""
    if c.op.name not in _REDUCEAT or BUILT_IN.get(c.op.name) is not c.op:
        return False
    return numpy_computes(xp, c.arrays) and (library(xp) == "numpy" or is_shared(c.dtypes[0]))


def prepare_reduceat(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return a function of non-empty arrays that reduces by NumPy."""
    run = by_numpy(xp, c.arrays, _by_reduceat(c))
    return run if c.single else lambda *arrays: (run(*arrays),)


def _by_reduceat(c: Segmented) -> Callable[..., Any]:
    """Return a function of NumPy arrays by reduceat, which takes only starts, and no empty segments."""
    axis, op, n, shape = c.axis, c.op, c.arrays[0].shape[c.axis], c.results[0][0]
    result, dtype = _numpy_dtypes(c)
    as_elements, as_result = _casting(c.arrays[0].dtype, result, dtype), _casting(dtype, result)
    as_state, reduceat = _casting(result, dtype), getattr(np, op.name).reduceat
    identity = None if c.starts else _identity(op, dtype.name)
    before = (slice(None),) * axis
    segments, count_nonzero = c.segments, np.count_nonzero  # the fastest test of a short array

    def totals(x: Any, begin: Any, end: Any, starts: tuple[Any, ...]) -> Any:
        x = as_elements(x)
        y = reduceat(x if end == n else x[along(axis, 0, int(end))], begin, axis, dtype)
        if starts:
            (y,) = op((np.broadcast_to(as_state(np.expand_dims(starts[0], axis)), y.shape),), (y,))
        return as_result(y)

    def run(x: Any, offsets: Any, *starts: Any) -> Any:
        offsets = offsets.astype(np.int64, copy=False)
        begin = offsets[:-1]
        full = begin < offsets[1:]
        if count_nonzero(full) == segments and offsets[0] >= 0 and offsets[-1] <= n:
            return totals(x, begin, offsets[-1], starts)
        offsets = np.maximum.accumulate(offsets.clip(0, n))  # valid offsets stay unchanged
        begin = offsets[:-1]
        full = begin < offsets[1:]
        y = np.empty(shape, result)
        y[...] = np.expand_dims(starts[0], axis) if starts else identity
        if count_nonzero(full):
            y[(*before, full)] = totals(x, begin[full], offsets[-1], starts)
        return y

    return _quietly(run, dtype)


# ---- Numbers ----------------------------------------------------------------------------------------------------


def at_numbers(xp: Namespace, c: Segmented) -> bool:
    """Return whether NumPy, or PyTorch on a CPU, combines elements at their ids in order."""
    x, name = c.arrays[0], c.op.name
    if BUILT_IN.get(name) is not c.op or name not in _AT or 0 in x.shape or c.segments == 0:
        return False
    if dtype_kind(c.dtypes[0]) not in ("int", "uint", "float") or dtype_name(c.dtypes[0]) == "bfloat16":
        return False
    if library(xp) == "numpy":
        return bool(x.ndim == 1)
    if library(xp) != "torch" or x.device.type != "cpu" or not is_shared(c.dtypes[0]):
        return False
    # PyTorch's derivative distributes over all equal largest elements; this library's goes to the first.
    return dtype_kind(working_dtypes(xp, BUILT_IN[name], c.dtypes)[0]) != "uint" and (name == "add" or not asked_for(x))


def prepare_numbers(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return a function of the arrays by the library's routine that combines at indices."""
    if c.arrays[0].ndim == 1 and numpy_computes(xp, c.arrays):
        return by_numpy(xp, c.arrays, _combining(c))
    return directly(_by_torch)(xp, c)


def _combining(c: Segmented) -> Callable[..., Any]:
    """Return a function of one-dimensional NumPy arrays that omits elements without a segment."""
    segments, name, limit = c.segments, c.op.name, np.uintp(c.segments)
    result, dtype = _numpy_dtypes(c)
    sums = name == "add" and dtype.kind == "f"
    as_elements = _casting(c.arrays[0].dtype, result) if sums else _casting(c.arrays[0].dtype, result, dtype)
    combine = getattr(np, name).at
    identity = _identity(c.op, dtype.name)

    def run(x: Any, ids: Any, *starts: Any) -> Any:
        x, ids = as_elements(x), ids.astype(np.intp, copy=False)
        outside = ids.view(np.uintp) >= limit
        if np.count_nonzero(outside):
            x, ids = x[~outside], ids[~outside]
        if sums:
            total = np.bincount(ids, x, segments)  # in float64
            if starts:
                total = starts[0] + total
        else:
            total = np.full(segments, starts[0] if starts else identity, dtype)
            combine(total, ids, x)
        return total.astype(result, copy=False)

    return _quietly(run, dtype)


def _by_torch(xp: Namespace, c: Segmented) -> Array:
    x, ids, *starts = c.arrays
    dtype, name, shape = working_dtypes(xp, c.op, c.dtypes)[0], c.op.name, c.results[0][0]
    x = cast(xp, c.elements(xp)[0], dtype)
    if starts:
        total = xp.broadcast_to(xp.expand_dims(cast(xp, starts[0], dtype), axis=c.axis), shape)
    else:
        total = xp.full(shape, _identity(c.op, dtype_name(dtype)), dtype=dtype, device=device(x))
    # Omitted elements go to one more segment. PyTorch compares no wide unsigned integers, and no number with integers
    # that cannot hold it.
    index = ids.to(xp.int64)
    index = xp.where((index < 0) | (index >= c.segments), c.segments, index)
    total = xp.concat([total, total.narrow(c.axis, 0, 1)], axis=c.axis)
    if name == "add":
        total = total.index_add(c.axis, index, x)
    else:
        like = [-1 if axis == c.axis else 1 for axis in range(x.ndim)]
        total = total.scatter_reduce(c.axis, index.view(like).expand(x.shape), x, _AT[name])
    return xp.astype(total.narrow(c.axis, 0, c.segments), c.dtypes[0], copy=True)

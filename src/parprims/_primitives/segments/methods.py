"""The methods of every primitive that takes segments.

The file is long because the methods of reductions, scans and sorts are composed of each other.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    cast,
    compute_dtype,
    device,
    dtype_kind,
    dtype_name,
    lacks_arithmetic,
    library,
    selected,
    spread,
)
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device, either_of, in_programs, or_by_parts
from parprims._dispatch.composite import Part, by_parts, composed, gathered, made_once, stand_in
from parprims._dispatch.derivative_rules import asked_for, constant
from parprims._dispatch.dispatch import Inside, Method, directly, exact
from parprims._dispatch.watch import unwatched
from parprims._libraries.numpy_bridge import as_numpy, in_numpy, quietly, returned
from parprims._operators.in_place import is_own
from parprims._operators.operator import BUILT_IN, Operator, segmented
from parprims._primitives.recurrence.public import linear_recurrence
from parprims._primitives.reduce.public import reduce
from parprims._primitives.scan.call import working_dtypes
from parprims._primitives.scan.public import scan
from parprims._primitives.search.public import searchsorted
from parprims._primitives.segments import cpu, cuda
from parprims._primitives.segments import native as segments_native
from parprims._primitives.segments.by_offsets import cpu as by_offsets_cpu
from parprims._primitives.segments.by_offsets import grouping
from parprims._primitives.segments.by_offsets import sort_cuda as by_offsets_sort_cuda
from parprims._primitives.segments.by_offsets import sort_native as by_offsets_sort_native
from parprims._primitives.segments.call import MAPS, Segmented, departs_by_ids, departs_by_offsets
from parprims._primitives.segments.tables import atomics as segment_atomics
from parprims._primitives.segments.tables import ids as segment_ids
from parprims._primitives.segments.tables import tables as segment_tables
from parprims._primitives.segments.trailing_axes import of_segments
from parprims._primitives.sort import cuda as sort_cuda
from parprims._primitives.sort.call import Sorting, index_dtype, moved
from parprims._primitives.sort.public import argsort, sort_by_key


def _by_segments(op: Operator) -> Operator:
    """Return the segmented operator, under the name of the caller's operator."""
    restarting = segmented(op)
    restarting.name = op.name
    return restarting


def _segment_numbers(xp: Namespace, c: Segmented, method: str) -> Array:
    """Return a number for each position along the axis that grows where a segment begins."""
    offsets, n = c.arrays[c.count], c.arrays[0].shape[c.axis]
    if method != "array" and in_numpy(xp, (offsets,)):
        marks = np.zeros(n + 1, np.int32 if n < 2**31 else np.int64)
        begin = as_numpy(offsets)
        marks[begin[(begin >= 0) & (begin <= n)]] = 1
        return returned(xp, np.cumsum(marks[:n], dtype=marks.dtype))
    places = xp.arange(n, dtype=index_dtype(xp), device=device(offsets))
    return searchsorted(cast(xp, offsets, places.dtype), places, side="right", method=Inside("auto")) - 1


def _flags(xp: Namespace, c: Segmented, numbers: Array) -> Array:
    """Return flags where a segment begins, or ends if reverse, in a shape that broadcasts with the elements."""
    n = numbers.shape[0]
    edge = xp.ones((min(n, 1),), dtype=xp.bool, device=device(numbers))
    changed = numbers[min(1, n) :] != numbers[: max(0, n - 1)]
    flags = xp.concat([changed, edge] if c.reverse else [edge, changed])
    return along_axis(xp, c, flags)


def along_axis(xp: Namespace, c: Segmented, x: Array) -> Array:
    """Return an array of one dimension along the axis, in a shape that broadcasts with elements.

    If components have several shapes, it lacks the axes behind the axis (see `spread`).
    """
    shape = (*(1,) * c.axis, x.shape[0])
    return xp.reshape(x, shape if c.shapes else (*shape, *(1,) * (len(c.shape) - c.axis - 1)))


def _shape_of_flags(c: Segmented) -> tuple[int, ...]:
    """Return the shape of the flags of the scan: that of elements, or of the axes that all components share."""
    if c.shapes is None:
        return c.shape
    leads = {shape[: c.axis] for shape in c.shapes}
    return (*(leads.pop() if len(leads) == 1 else (1,) * c.axis), c.n)


def chosen(xp: Namespace, mask: Array, xs: tuple[Array, ...], ys: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return components: of the first element where the mask of `along_axis` is True, else of the second."""
    return tuple([selected(xp, spread(xp, mask, x), x, y) for x, y in zip(xs, ys, strict=True)])


def is_recurrence(c: Segmented) -> bool:
    return c.op is MAPS or (c.operation == "recurrence" and c.op is BUILT_IN["affine"])


def _elements(xp: Namespace, c: Segmented, method: str) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """Return the scanned components, flags first, and the options of the scan."""
    xs = c.elements(xp)
    flags = _flags(xp, c, _segment_numbers(xp, c, method))
    if is_recurrence(c):
        a, b = xs
        start = xp.expand_dims(c.starts[0], axis=c.axis) if c.starts else None
        first = b if start is None else a * start + b
        a, b = xp.where(flags, xp.zeros_like(a), a), xp.where(flags, first, b)
        if c.op is MAPS:
            b = xp.where(a - a == 0, b, xp.full_like(b, float("nan")))
        return (xp.broadcast_to(flags, a.shape), a, b), {"axis": c.axis, "reverse": c.reverse}
    options: dict[str, Any] = {"axis": c.axis, "exclusive": c.exclusive, "reverse": c.reverse}
    if c.starts and c.exclusive:
        options["initial"] = (False, *c.starts)
    elif c.starts and not _is_empty(c):
        wide = [compute_dtype(xp, x.dtype) for x in xs]
        starts = tuple([cast(xp, xp.expand_dims(s, axis=c.axis), to) for s, to in zip(c.starts, wide, strict=True)])
        other = tuple([cast(xp, x, to) for x, to in zip(xs, wide, strict=True)])
        starts = tuple([xp.broadcast_to(s, x.shape) for s, x in zip(starts, other, strict=True)])
        both = tuple([cast(xp, y, x.dtype) for y, x in zip(c.op(starts, other), xs, strict=True)])
        xs = chosen(xp, flags, both, xs)
    return (xp.broadcast_to(flags, _shape_of_flags(c)), *xs), options


def _working(xp: Namespace, c: Segmented) -> tuple[Any, ...]:
    """Return the dtypes of all operations until the result: float32 for 16-bit floats with an initial element."""
    wide = working_dtypes(xp, c.op, c.dtypes)
    floats = all(dtype_kind(dtype) == "float" for dtype in c.dtypes)
    return c.dtypes if floats and not c.starts else wide


def _rounded_once(compose: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate ``compose`` to compute in the dtypes of `_working`, and to cast results once."""

    @functools.wraps(compose)
    def computed(xp: Namespace, c: Segmented, method: str) -> Any:
        wide, call = _working(xp, c), c
        if wide != c.dtypes:
            xs = zip((*c.elements(xp), *c.starts), wide * 2, strict=False)  # a recurrence's start has the dtype of b
            cast_all = [cast(xp, x, to) for x, to in xs]
            arrays = (*cast_all[: c.count], *c.arrays[c.count : c.behind], *cast_all[c.count :])
            call = dataclasses.replace(c, arrays=arrays, dtypes=wide)
        result = compose(xp, call, method)
        if not isinstance(result, tuple):  # CuPy's operations convert bfloat16 to float32
            return cast(xp, result, c.dtypes[-1])
        return tuple([cast(xp, y, to) for y, to in zip(result, c.dtypes, strict=True)])

    return computed


@_rounded_once
def _scanned(xp: Namespace, c: Segmented, method: str) -> Any:
    elements, options = _elements(xp, c, method)
    ys = scan(elements, _by_segments(c.op), method=method, **options)[1:]
    if c.operation == "recurrence":
        return ys[1]
    return ys[0] if c.single else ys


def _stand_ins(xp: Namespace, arrays: tuple[Array, ...], dtypes: tuple[Any, ...]) -> tuple[Array, ...]:
    """Return placeholders of arrays of other dtypes; arrays that have their dtype stay as they are."""
    pairs = zip(arrays, dtypes, strict=False)  # a recurrence's initial element is one array
    return tuple([x if x.dtype == to else stand_in(xp, x, tuple(x.shape), to) for x, to in pairs])


def _scan_parts(xp: Namespace, c: Segmented) -> list[Part]:
    """Return the inner scan as a part (see `Part`). Its flags are dummies: only shape and dtype count."""
    working = working_dtypes(xp, c.op, c.dtypes)
    xs, starts = _stand_ins(xp, c.arrays[: c.count], working), _stand_ins(xp, c.starts, working)
    flags = stand_in(xp, xs[0], _shape_of_flags(c), xp.bool)
    options: dict[str, Any] = {"axis": c.axis, "exclusive": c.exclusive, "reverse": c.reverse}
    if starts and c.exclusive:
        options["initial"] = (False, *starts)
    return [(scan, ((flags, *xs), _by_segments(c.op)), options)]


@_rounded_once
def _continued(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the scan of segments that have initial elements of their own.

    Each initial element is combined with the first element of its segment. Then segments are scanned without initial
    elements; exclusive results are these results, moved on by one element.
    """
    xs, offsets, axis = c.elements(xp), c.arrays[c.count], c.axis
    if _is_empty(c):
        ys = tuple([xp.astype(x, x.dtype, copy=True) for x in xs])
        return ys[-1] if c.single else ys
    places = xp.arange(xs[0].shape[axis], dtype=index_dtype(xp), device=device(offsets))
    numbers = searchsorted(cast(xp, offsets[1:-1], places.dtype), places, side="right", method=Inside("auto"))
    flags = _flags(xp, c, numbers)
    starts = tuple([moved(xp, x, lambda x: xp.take(x, numbers, axis=axis)) for x in c.starts])
    options: dict[str, Any] = {"axis": axis, "reverse": c.reverse, "offsets": offsets, "check": False, "method": method}
    if is_recurrence(c):
        a, b = xs
        return linear_recurrence(a, xp.where(flags, a * starts[0] + b, b), **options)
    begun = tuple([cast(xp, y, x.dtype) for y, x in zip(c.op(starts, xs), xs, strict=True)])
    xs = chosen(xp, flags, begun, xs)
    ys = scan(xs, c.op, dtype=tuple([x.dtype for x in xs]), **options)
    if c.exclusive:
        sweep = derivative_rules.Sweep(xp, axis, c.reverse)
        ys = chosen(xp, flags, starts, tuple([sweep.previous(y, sweep.first(y)) for y in ys]))
    return ys[0] if c.single else ys


def _continued_parts(xp: Namespace, c: Segmented) -> list[Part]:
    """Return the inner scan of `_continued`."""
    xs = _stand_ins(xp, c.arrays[: c.count], _working(xp, c))
    options: dict[str, Any] = {"axis": c.axis, "reverse": c.reverse, "offsets": c.arrays[c.count], "check": False}
    if is_recurrence(c):
        return [(linear_recurrence, xs, options)]
    return [(scan, (xs, c.op), {**options, "dtype": tuple([x.dtype for x in xs])})]


def _scan_of_segments(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the scan of segments."""
    if method == "array" and c.grouped_by_array and not _is_empty(c):
        return grouping.scan_of(xp, c)
    return (_continued if c.own else _scanned)(xp, c, method)


def _parts_of_scan(xp: Namespace, c: Segmented) -> list[Part]:
    return (_continued_parts if c.own else _scan_parts)(xp, c)


@_rounded_once
def _reduced(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the last result of the scan of each segment, and for empty segments the initial element or identity."""
    if method == "array" and c.grouped_by_array and not _is_empty(c):
        ys, full, entries = grouping.reduction_of(xp, c)
        return _assembled(xp, c, ys, full=full, entries=entries)
    bare = dataclasses.replace(c, arrays=c.arrays[: c.count + 1])
    elements, options = _elements(xp, bare, method)
    n, offsets = elements[0].shape[c.axis], cast(xp, c.arrays[c.count], index_dtype(xp))
    begin, end = offsets[:-1], offsets[1:]
    empty = _is_empty(c)
    ys = elements[1:] if empty else scan(elements, _by_segments(c.op), method=method, **options)[1:]
    return _assembled(xp, c, ys, full=(begin < end) & (begin >= 0) & (end <= n), entries=end - 1)


def _assembled(xp: Namespace, c: Segmented, ys: tuple[Array, ...], full: Array, entries: Array) -> Any:
    """Return the results: for a segment with elements, ``ys`` at its entry of ``entries`` along the axis."""
    shapes, are_full = [shape for shape, _ in c.results], full
    full = along_axis(xp, c, full)
    starts = tuple([xp.expand_dims(x, axis=c.axis) for x in c.starts])
    if not starts:
        identity = c.op.identity(*(dtype_name(compute_dtype(xp, dtype)) for dtype in c.dtypes))
        assert identity is not None
        values = zip(identity, c.dtypes, shapes, strict=True)
        starts = tuple(
            [xp.full((1,) * len(shape), value, dtype=to, device=device(full)) for value, to, shape in values]
        )
    starts = tuple([xp.broadcast_to(x, shape) for x, shape in zip(starts, shapes, strict=True)])
    if c.n == 0 or c.segments == 0:
        result = tuple([xp.astype(x, x.dtype, copy=True) for x in starts])
        return result[0] if c.single else result
    index = xp.where(are_full, entries, xp.zeros_like(entries))
    totals = tuple([xp.take(y, index, axis=c.axis) for y in ys])
    joined = totals
    if c.starts:
        wide = [compute_dtype(xp, dtype) for dtype in c.dtypes]
        pairs = [
            tuple([cast(xp, x, to) for x, to in zip(components, wide, strict=True)]) for components in (starts, totals)
        ]
        joined = tuple([cast(xp, x, to) for x, to in zip(c.op(*pairs), c.dtypes, strict=True)])
    result = chosen(xp, full, joined, starts)
    return result[0] if c.single else result


def _by_numpy(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the reductions by NumPy's own routine, if it has one."""
    if not segments_native.has_reduceat(xp, c):
        return _reduced(xp, c, method)
    if _is_empty(c):
        return _reduced(xp, c, Inside("array"))
    return segments_native.prepare_reduceat(xp, c)(*c.arrays)


def _by_ids(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the reductions of elements that are first sorted by segment."""
    return _reduced_in_order(xp, c, method, _reduced)


def _by_ids_native(xp: Namespace, c: Segmented, method: str) -> Any:
    return _reduced_in_order(xp, c, method, _by_numpy)


def _ordered(xp: Namespace, c: Segmented, method: str) -> Segmented:
    """Return the call with its elements sorted by segment, and offsets instead of ids."""
    xs, ids, starts = c.arrays[: c.count], cast(xp, c.arrays[c.count], index_dtype(xp)), c.starts
    wanted = xp.arange(c.segments + 1, dtype=ids.dtype, device=device(ids))
    if not c.in_order or dtype_kind(c.arrays[c.count].dtype) == "uint":  # large ids are negative after the cast
        outside = (ids < 0) | (ids >= c.segments)
        ids = xp.where(outside, xp.full_like(ids, c.segments), ids)
    if not c.in_order:
        order = argsort(narrow(xp, ids, c.segments + 1), method=method)
        ids = xp.take(ids, order, axis=0)
        xs = tuple([moved(xp, x, lambda x: xp.take(x, order, axis=c.axis)) for x in xs])
    offsets = searchsorted(ids, wanted, method=Inside("auto"))
    return dataclasses.replace(c, arrays=(*xs, offsets, *starts))


def narrow(xp: Namespace, numbers: Array, count: int) -> Array:
    """Return numbers below a count in the narrowest dtype that holds them, which is the fastest to sort."""
    return cast(xp, numbers, getattr(xp, segment_ids.narrowest(count)))


def narrow_stand_in(xp: Namespace, ids: Array, count: int) -> Array:
    """Return a placeholder of the narrow ids."""
    return stand_in(xp, ids, tuple(ids.shape), getattr(xp, segment_ids.narrowest(count)))


def _reduced_in_order(xp: Namespace, c: Segmented, method: str, reduced: Callable[..., Any]) -> Any:
    return reduced(xp, _ordered(xp, c, method), method)


def _id_parts(xp: Namespace, c: Segmented) -> list[Part]:
    result = _reduce_parts(xp, c)
    ids = c.arrays[c.count]
    return result if c.in_order else [*result, (argsort, (narrow_stand_in(xp, ids, c.segments + 1),), {})]


def _sorting_indices(xp: Namespace, c: Segmented, method: str) -> Array:
    """Return the indices that sort every segment: a sort by keys, then a stable sort by segments."""
    keys = c.arrays[0]
    keys = constant(keys) if asked_for(keys) else keys
    order = argsort(keys, axis=c.axis, descending=c.descending, method=method)
    numbers = narrow(xp, _segment_numbers(xp, c, method) + 1, c.segments + 3)
    shape = order.shape
    by_key = xp.reshape(xp.take(numbers, xp.reshape(order, (-1,)), axis=0), shape) if numbers.shape[0] else order
    again = argsort(by_key, axis=c.axis, method=method)
    return gathered(xp, order, again, c.axis)


def _sorted(xp: Namespace, c: Segmented, method: str) -> tuple[Array, ...]:
    order = _sorting_indices(xp, c, method)
    if not c.keyed:
        return (order,)
    return tuple([moved(xp, x, lambda x: gathered(xp, x, order, c.axis)) for x in c.arrays[: c.count]])


def _sort_parts(xp: Namespace, c: Segmented) -> list[Part]:
    keys = c.arrays[0]
    numbers = stand_in(xp, keys, tuple(keys.shape), xp.uint8)
    fixed = constant(keys) if asked_for(keys) else keys
    return [(argsort, (fixed,), {"axis": c.axis, "descending": c.descending}), (argsort, (numbers,), {"axis": c.axis})]


def _reduceat_ids(xp: Namespace, c: Segmented) -> list[Part]:
    """Return the parts of a reduction by NumPy: only the sort, if ``reduceat`` does the rest."""
    if library(xp) == "numpy" and segments_native.has_reduceat(xp, c):
        return [] if c.in_order else [_id_parts(xp, c)[1]]
    return _id_parts(xp, c)


def _reduce_parts(xp: Namespace, c: Segmented) -> list[Part]:
    return _scan_parts(xp, dataclasses.replace(c, arrays=c.arrays[: c.count + 1]))


def _by_offsets(gpu: Method, compose: Callable[..., Any], parts: Callable[..., list[Part]]) -> Method:
    """Return the kernel method, given that of GPUs; the kernel for CPUs fuses the parts of ``compose``."""
    by_array = by_parts("array", compose, parts)

    def prepare(xp: Namespace, c: Segmented) -> Callable[..., Any]:
        if _is_empty(c):
            return by_array.prepare(xp, c)
        faster = dataclasses.replace(c, canonical=False)  # for derivatives, which promise no bits
        return by_offsets_cpu.prepare(xp, c, lambda: by_array.prepare(xp, faster))

    def slower(xp: Namespace, c: Segmented) -> str | None:
        return by_offsets_cpu.slower(xp, c, c.reduces and segments_native.has_reduceat(xp, c))

    on_cpu = Method(prepare, by_offsets_cpu.refusal, slower, quiet=True)
    return of_segments(by_device(gpu, on_cpu, in_programs(on_cpu, by_array)), by_array.prepare)


def _is_empty(c: Segmented) -> bool:
    """Return whether there are no elements or no results, so that no kernel is launched."""
    return c.segments == 0 or all(0 in x.shape for x in c.arrays[: c.count])


def _by_operations(compose: Callable[..., Any]) -> Callable[[Namespace, Segmented], Any]:
    """Return a function of a call that computes it by ``compose`` in array operations."""

    def computed(xp: Namespace, c: Segmented) -> Any:
        with unwatched():
            return compose(xp, c, Inside("array"))

    return computed


def _by_one_launch(compose: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Return the ``prepare`` of the segment kernel, which fuses the steps of ``compose``."""
    by_operations = _by_operations(compose)

    def prepare(xp: Namespace, c: Segmented) -> Callable[..., Any]:
        if _is_empty(c):
            return directly(by_operations)(xp, c)
        return cuda.prepare(xp, c, by_operations)

    return prepare


def _native_of_offsets() -> Method:
    """Return the native reduction: by NumPy for arrays with memory that it reads, else by a scan."""
    by_scan, by_array = (by_parts(name, _reduced, _reduce_parts) for name in ("native", "array"))

    def prepare(xp: Namespace, c: Segmented) -> Callable[..., Any]:
        return by_array.prepare(xp, c) if _is_empty(c) else segments_native.prepare_reduceat(xp, c)

    by_numpy = Method(prepare, quiet=True)
    return either_of(
        lambda xp, c: by_numpy if segments_native.has_reduceat(xp, c) else by_scan,
        eager=segments_native.has_reduceat,
    )


_IN_ORDER = by_parts("native", _by_ids_native, _reduceat_ids)
_BY_ARRAY = by_parts("array", _by_ids, _id_parts)


def _native_of_ids() -> Method:
    """Return the native reduction by ids: by a routine that combines at ids, or by a sort."""

    def refusal(xp: Namespace, c: Segmented) -> str | None:
        return lacks_arithmetic(xp, working_dtypes(xp, c.op, c.dtypes))

    def prepare(xp: Namespace, c: Segmented) -> Callable[..., Any]:
        run = _IN_ORDER.prepare(xp, c)
        return quietly(run) if library(xp) == "numpy" else run

    in_order = dataclasses.replace(_IN_ORDER, prepare=prepare)
    at_numbers = Method(segments_native.prepare_numbers, refusal)
    return either_of(lambda xp, c: at_numbers if segments_native.at_numbers(xp, c) else in_order, quiet=True)


def _prepare_cpu(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return the runner of the kernel for CPUs, with the derivative of the library's operations."""
    if 0 in c.arrays[0].shape or c.segments == 0:
        return _BY_ARRAY.prepare(xp, c)
    otherwise = segments_native.prepare_numbers if segments_native.at_numbers(xp, c) else _BY_ARRAY.prepare
    run = derivative_rules.by_operations(xp, c.arrays, cpu.prepare(xp, c), lambda: otherwise(xp, c))
    return lambda *arrays: run(*arrays)[0]


def _scan_on_gpu() -> Method:
    """Return the kernel method of scans on GPUs: by segments, or by flags where lines are adjacent in memory."""
    lines = Method(_by_one_launch(_scan_of_segments), cuda.refusal)
    columns = by_parts("kernel", _scanned, _scan_parts)
    continued = by_parts("kernel", _continued, _continued_parts)

    def of(_: Namespace, c: Segmented) -> Method:
        if c.scanned_in_blocks:
            return lines
        if c.own:
            return continued
        return columns if math.prod(c.arrays[0].shape[c.axis + 1 :]) > 1 else lines

    return either_of(of)


_SCAN = _scan_on_gpu()


def _reduced_rows(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the reductions of rows in the order that an array of the call holds."""
    x, offsets, order, *starts = c.arrays
    rows = moved(xp, x, lambda x: xp.take(x, order, axis=c.axis))
    return _reduced(xp, dataclasses.replace(c, arrays=(rows, offsets, *starts), ordered=False), method)


def _sort_by_kernel(xp: Namespace, *arrays: Array, indices: bool = False) -> Callable[..., tuple[Array, ...]]:
    """Return a sort by kernel of keys with values, or with their indices."""
    index = "int32" if indices else None
    call = Sorting(arrays=arrays, axis=0, descending=False, stable=True, keyed=True, indices=indices, index=index)
    return sort_cuda.prepare(xp, call)


def _prepare_rows(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return a runner that sorts the positions of rows by ids and reduces rows in this order, all by GPU kernels."""
    bare = c.on(*(None,) * len(c.arrays))
    narrowed = made_once(lambda ids: segment_ids.narrowing(xp, ids, bare.segments))
    sort = made_once(lambda ids: _sort_by_kernel(xp, ids, indices=True))
    find_offsets = made_once(lambda ids: segment_ids.finding_offsets(xp, ids, bare.segments))
    ordered = dataclasses.replace(bare, ordered=True, key=None)
    reduced = made_once(lambda *arrays: _by_one_launch(_reduced_rows)(xp, ordered.on(*arrays)))

    def run(x: Array, ids: Array, *starts: Array) -> Any:
        with unwatched():
            ids, order = sort(narrowed(ids))
            return reduced(x, find_offsets(ids), order, *starts)

    return run


def _prepare_in_order(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return a runner that sorts elements by ids and reduces them, all by GPU kernels."""
    if not c.in_order and c.arrays[1].shape[0] < 2**31 and math.prod(c.results[0][0][c.axis + 1 :]) > 1:
        return _prepare_rows(xp, c)
    bare, kernel = c.on(*(None,) * len(c.arrays)), Inside("kernel")
    narrowed = made_once(lambda ids: segment_ids.narrowing(xp, ids, bare.segments))
    sort = made_once(lambda ids, x: _sort_by_kernel(xp, ids, x))
    find_offsets = made_once(lambda ids: segment_ids.finding_offsets(xp, ids, bare.segments))
    reduced = made_once(lambda *arrays: _by_one_launch(_reduced)(xp, bare.on(*arrays)))

    def run(x: Array, ids: Array, *starts: Array) -> Any:
        with unwatched():
            if not bare.in_order:
                ids = narrowed(ids)
                if x.ndim == 1:
                    ids, x = sort(ids, x)
                else:
                    order = argsort(ids, method=kernel)
                    ids = xp.take(ids, order, axis=0)
                    x = moved(xp, x, lambda x: xp.take(x, order, axis=bare.axis))
            return reduced(x, find_offsets(ids), *starts)

    return run


def _ids_on_gpu() -> Method:
    """Return the kernel method of reductions by ids on GPUs."""

    def sorts(_: Namespace, c: Segmented) -> list[Part]:
        x, ids = c.arrays[:2]
        return [] if c.in_order else [(sort_by_key, (ids, x if x.ndim == 1 else ids), {})]

    by_sorts, nothing = by_parts("kernel", _by_ids, sorts), by_parts("kernel", _by_ids, _id_parts)

    def refusal(xp: Namespace, c: Segmented) -> str | None:
        assert by_sorts.refusal is not None
        reason = cuda.refusal(xp, c)
        without_sort = segment_atomics.serves(c) or (reason is None and segment_tables.serves(xp, c))
        return reason or (None if without_sort else by_sorts.refusal(xp, c))

    def prepare(xp: Namespace, c: Segmented) -> Callable[..., Any]:
        if _is_empty(c):
            return nothing.prepare(xp, c)
        if segment_atomics.serves(c):
            return segment_atomics.prepare(xp, c, _by_operations(_by_ids))
        if segment_tables.serves(xp, c):
            return segment_tables.prepare(xp, c, _by_operations(_by_ids))
        return _prepare_in_order(xp, c)

    return Method(prepare, refusal, rehearsed=True)


_SORTS = by_parts("kernel", _sorted, _sort_parts)


def _sorts_on_cpu() -> Method:
    """Return the kernel method of sorts for CPUs: two sorts, slower than NumPy for a few segments."""

    def slower(xp: Namespace, c: Segmented) -> str | None:
        if by_offsets_sort_native.is_quick(xp, c):
            return f"NumPy is faster: it sorts {c.segments} segments one after another"
        return None if _SORTS.slower is None else _SORTS.slower(xp, c)

    return dataclasses.replace(_SORTS, slower=slower)


def _prepare_sort(xp: Namespace, c: Segmented) -> Callable[..., tuple[Array, ...]]:
    """Return the runner of the GPU kernels that sort segments."""
    if 0 in c.arrays[0].shape:
        return _SORTS.prepare(xp, c)

    def otherwise(c: Segmented) -> tuple[Array, ...]:
        with unwatched():
            return _sorted(xp, c, Inside("native"))

    return by_offsets_sort_cuda.prepare(xp, c, otherwise)


def _native_of_sorts() -> Method:
    """Return the native sort: by NumPy for arrays in memory that it reads, else two sorts by the library's routine."""
    by_sorts = by_parts("native", _sorted, _sort_parts)

    def is_numpys(xp: Namespace, c: Segmented) -> bool:
        return 0 not in c.arrays[0].shape and by_offsets_sort_native.serves(xp, c)

    by_numpy = Method(by_offsets_sort_native.prepare)
    return either_of(lambda xp, c: by_numpy if is_numpys(xp, c) else by_sorts, quiet=True, eager=is_numpys)


_IDS_ON_CPU = Method(
    _prepare_cpu, cpu.refusal, lambda xp, c: cpu.slower(xp, c, segments_native.at_numbers(xp, c)), quiet=True
)
_ONE_BY_IDS = by_device(_ids_on_gpu(), _IDS_ON_CPU, in_programs(_IDS_ON_CPU, _BY_ARRAY))


def _in_order(c: Segmented, arrays: tuple[Array, ...]) -> Part:
    """Return the reduction by offsets of elements in the order of their segments, given the arrays of the call."""
    xs, starts = arrays[: c.count], arrays[c.behind :]
    options = {"axis": c.axis, "offsets": arrays[c.count], "check": False, "dtype": c.dtypes}
    x, initial = (xs[0], starts[0] if starts else None) if c.single else (xs, starts or None)
    return reduce, (x, c.op), {**options, "initial": initial}


def _by_ids_in_order(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the reductions by ids of elements that are sorted and then reduced by offsets."""
    function, arguments, options = _in_order(c, _ordered(xp, c, method).arrays)
    in_blocks = method == "kernel" and c.grouped_by_kernel
    return function(*arguments, method=Inside("canonical") if in_blocks else method, **options)


def _parts_in_order(xp: Namespace, c: Segmented) -> list[Part]:
    ids = c.arrays[c.count]
    offsets = stand_in(xp, ids, (c.segments + 1,), index_dtype(xp))
    part = _in_order(c, (*c.arrays[: c.count], offsets, *c.starts))
    return [part] if c.in_order else [part, (argsort, (narrow_stand_in(xp, ids, c.segments + 1),), {})]


_SEVERAL_BY_IDS = by_parts("kernel", _by_ids_in_order, _parts_in_order)


def _kernel_of_ids(xp: Namespace, c: Segmented) -> Method:
    """Return the kernel method of a reduction by ids: for an array of numbers, or for all other elements.

    Canonical reductions are by offsets too.
    """
    if c.grouped_by_kernel:
        return _SEVERAL_BY_IDS
    assert _ONE_BY_IDS.refusal is not None
    matrices = is_own(c.op) and len(c.shape) > c.axis + 1 and c.count == 1 and _ONE_BY_IDS.refusal(xp, c) is not None
    return _SEVERAL_BY_IDS if matrices or c.count > 1 else _ONE_BY_IDS


_BY_IDS = {
    "kernel": either_of(_kernel_of_ids, rehearsed=True),
    "native": _native_of_ids(),
    "array": _BY_ARRAY,
}

SCANS = (
    "scan", "cumulative_sum", "cumulative_prod", "cumulative_max", "cumulative_min", "cumulative_logsumexp",
)  # fmt: skip

_SCANNED = _scan_of_segments, _parts_of_scan
_SORTED = by_device(or_by_parts(Method(_prepare_sort, by_offsets_sort_cuda.refusal), _SORTS), _sorts_on_cpu(), _SORTS)
METHODS = {
    "reduce": composed(
        "reduce",
        departs_by_offsets,
        _reduced,
        _reduce_parts,
        kernel=_by_offsets(Method(_by_one_launch(_reduced), cuda.refusal), _reduced, _reduce_parts),
        native=_native_of_offsets(),
    ),
    "segment_reduce": composed("segment_reduce", departs_by_ids, _by_ids, _id_parts, **_BY_IDS),
    **{
        name: composed(name, departs_by_offsets, *_SCANNED, kernel=_by_offsets(_SCAN, *_SCANNED))
        for name in (*SCANS, "linear_recurrence")
    },
    **{
        name: composed(name, exact, _sorted, _sort_parts, kernel=_SORTED, native=_native_of_sorts())
        for name in ("sort", "argsort", "sort_by_key")
    },
}

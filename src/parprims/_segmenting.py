"""What is done to segments: the record of a checked call, and the methods of every primitive that takes them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims import (
    _derivatives,
    _segment_atomics,
    _segment_ids,
    _segments_cpu,
    _segments_kernel,
    _sort_segments_kernel,
)
from parprims._arrays import (
    Array,
    Namespace,
    along,
    cast,
    compute_dtype,
    device,
    dtype_kind,
    dtype_name,
    lacks_arithmetic,
    library,
    namespace_of,
)
from parprims._composed import Composed, Part, by_parts, composed, gathered, made_once, through_numpy
from parprims._derivatives import asked_for, constant
from parprims._dispatch import Inside, Method, directly, unwatched
from parprims._kernels import by_device, either_of, or_by_parts
from parprims._operators import BUILT_IN, Operator, segmented
from parprims._scan import scan
from parprims._search import searchsorted
from parprims._sort import argsort, sort_by_key
from parprims._sorting import index_dtype, moved
from parprims._through_numpy import as_numpy, in_numpy, is_shared, returned


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Segmented(Composed):
    """A checked call. ``arrays`` are the elements, then offsets or ids, then the initial element if there is one.

    ``count`` is the number of arrays that make an element, ``dtypes`` are those of the results. For a sort ``keyed``
    says whether sorted keys are a result, and ``indices`` whether the indices are. If ``ordered``, the array behind the
    offsets says in which order rows are taken.
    """

    count: int
    op: Operator = BUILT_IN["add"]
    operation: Any = None
    axis: int
    exclusive: bool = False
    reverse: bool = False
    dtypes: tuple[Any, ...] = ()
    segments: int = 0
    in_order: bool = False
    keepdims: bool = False
    reduces: bool = False
    descending: bool = False
    keyed: bool = True
    ordered: bool = False

    @property
    def behind(self) -> int:
        """The number of arrays before the initial element."""
        return self.count + 1 + self.ordered

    @property
    def lasts(self) -> bool:
        """Whether the operator can be remembered."""
        return self.operation is not None

    @property
    def starts(self) -> tuple[Array, ...]:
        """The initial element, if there is one."""
        return self.arrays[self.behind :]

    def elements(self, xp: Namespace) -> tuple[Array, ...]:
        """Return the elements in the dtypes of the results."""
        return tuple([cast(xp, x, to) for x, to in zip(self.arrays[: self.count], self.dtypes, strict=True)])


def _compose_maps(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose affine maps. A product of coefficients that overflowed, times zero, counts as zero."""
    (a, b), (c, d) = earlier, later
    xp = namespace_of(a)
    product, moved_on = c * a, c * b
    zero = xp.zeros_like(a)
    product = xp.where((product != product) & ((c == 0) | (a == 0)), zero, product)
    return product, xp.where((moved_on != moved_on) & (b == 0), zero, moved_on) + d


MAPS = Operator(_compose_maps, identity=(1, 0), name="recurrence", components=2)
"""Affine maps, of which a product that overflowed leaves no trace at zeros."""


def _numbers(xp: Namespace, c: Segmented, method: str) -> Array:
    """Return for every place along the axis a number that grows where a segment begins."""
    offsets, n = c.arrays[c.count], c.arrays[0].shape[c.axis]
    if method != "array" and in_numpy(xp, (offsets,)):
        marks = np.zeros(n + 1, np.int32 if n < 2**31 else np.int64)
        begin = as_numpy(offsets)
        marks[begin[(begin >= 0) & (begin <= n)]] = 1
        return returned(xp, np.cumsum(marks[:n], dtype=marks.dtype))
    places = xp.arange(n, dtype=index_dtype(xp), device=device(offsets))
    return searchsorted(cast(xp, offsets, places.dtype), places, side="right", method=Inside("auto")) - 1


def _flags(xp: Namespace, c: Segmented, numbers: Array) -> Array:
    """Return where a segment begins, or ends if reverse, of a shape that broadcasts to that of the elements."""
    n = numbers.shape[0]
    edge = xp.ones((min(n, 1),), dtype=xp.bool, device=device(numbers))
    changed = numbers[min(1, n) :] != numbers[: max(0, n - 1)]
    flags = xp.concat([changed, edge] if c.reverse else [edge, changed])
    return xp.reshape(flags, tuple([n if at == c.axis else 1 for at in range(c.arrays[0].ndim)]))


def _elements(xp: Namespace, c: Segmented, method: str) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """Return what is scanned, flags first, and the options."""
    xs = c.elements(xp)
    flags = _flags(xp, c, _numbers(xp, c, method))
    if c.op is MAPS or (c.operation == "recurrence" and c.op is BUILT_IN["affine"]):
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
    elif c.starts:
        wide = [compute_dtype(xp, x.dtype) for x in xs]
        one = tuple([cast(xp, xp.expand_dims(s, axis=c.axis), to) for s, to in zip(c.starts, wide, strict=True)])
        other = tuple([cast(xp, x, to) for x, to in zip(xs, wide, strict=True)])
        one = tuple([xp.broadcast_to(s, x.shape) for s, x in zip(one, other, strict=True)])
        both = [cast(xp, y, x.dtype) for y, x in zip(c.op(one, other), xs, strict=True)]
        xs = tuple([xp.where(flags, y, x) for y, x in zip(both, xs, strict=True)])
    return (xp.broadcast_to(flags, xs[0].shape), *xs), options


def _scanned(xp: Namespace, c: Segmented, method: str) -> Any:
    elements, options = _elements(xp, c, method)
    ys = scan(elements, segmented(c.op), method=method, **options)[1:]
    if c.operation == "recurrence":
        return ys[1]
    return ys[0] if c.single else ys


def _scan_parts(xp: Namespace, c: Segmented) -> list[Part]:
    """Return the scan of elements like those that are scanned, with no flags worth the name."""
    xs = c.elements(xp)
    flags = xp.broadcast_to(xp.ones((), dtype=xp.bool, device=device(xs[0])), xs[0].shape)
    options: dict[str, Any] = {"axis": c.axis, "exclusive": c.exclusive, "reverse": c.reverse}
    if c.starts and c.exclusive:
        options["initial"] = (False, *c.starts)
    return [(scan, ((flags, *xs), segmented(c.op)), options)]


def _reduced(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the last result of the scan of every segment, and what begins one where it is empty."""
    bare = dataclasses.replace(c, arrays=c.arrays[: c.count + 1])
    elements, options = _elements(xp, bare, method)
    n, offsets = elements[0].shape[c.axis], cast(xp, c.arrays[c.count], index_dtype(xp))
    begin, end = offsets[:-1], offsets[1:]
    ys = scan(elements, segmented(c.op), method=method, **options)[1:] if n else elements[1:]
    return _assembled(xp, c, ys, (begin < end) & (begin >= 0) & (end <= n), end - 1)


def _assembled(xp: Namespace, c: Segmented, ys: tuple[Array, ...], full: Array, at: Array) -> Any:
    """Return the results, given where along the axis those of segments stand that are not empty."""
    n = ys[0].shape[c.axis]
    shape = tuple([c.segments if axis == c.axis else 1 for axis in range(ys[0].ndim)])
    whole = (*ys[0].shape[: c.axis], c.segments, *ys[0].shape[c.axis + 1 :])
    full = xp.reshape(full, shape)
    starts = tuple([xp.expand_dims(one, axis=c.axis) for one in c.starts])
    if not starts:
        identity = c.op.identity(*(dtype_name(compute_dtype(xp, one)) for one in c.dtypes))
        assert identity is not None
        ones = zip(identity, c.dtypes, strict=True)
        starts = tuple([xp.full((1,) * len(whole), one, dtype=to, device=device(full)) for one, to in ones])
    starts = tuple([xp.broadcast_to(one, whole) for one in starts])
    if n == 0 or c.segments == 0:
        found = tuple([xp.astype(one, one.dtype, copy=True) for one in starts])
        return found[0] if c.single else found
    index = xp.where(xp.reshape(full, (-1,)), at, xp.zeros_like(at))
    totals = tuple([xp.take(y, index, axis=c.axis) for y in ys])
    joined = totals
    if c.starts:
        wide = [compute_dtype(xp, one) for one in c.dtypes]
        pairs = [tuple([cast(xp, x, to) for x, to in zip(ones, wide, strict=True)]) for ones in (starts, totals)]
        joined = tuple([cast(xp, x, to) for x, to in zip(c.op(*pairs), c.dtypes, strict=True)])
    found = tuple([xp.where(full, y, one) for y, one in zip(joined, starts, strict=True)])
    return found[0] if c.single else found


_REDUCEAT = ("add", "multiply", "maximum", "minimum", "logical_and", "logical_or", "bitwise_and", "bitwise_or",
             "bitwise_xor", "logaddexp")  # fmt: skip


def _by_numpy(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the reductions by NumPy's reduceat, which takes segments without an end, none of them empty."""
    built_in = BUILT_IN.get(c.op.name) is c.op and c.op.name in _REDUCEAT
    offsets = c.arrays[c.count]
    n = c.arrays[0].shape[c.axis]
    if library(xp) != "numpy" or not built_in:
        return _reduced(xp, c, method)
    offsets = np.asarray(offsets, np.int64)
    begin, end = offsets[:-1], offsets[1:]
    full = (begin < end) & (begin >= 0) & (end <= n)
    if not (full.any() and (np.diff(offsets) >= 0).all()):
        return _reduced(xp, c, Inside("array"))
    x = c.elements(xp)[0]
    x = np.asarray(cast(xp, x, compute_dtype(xp, x.dtype)))[along(c.axis, 0, int(offsets[-1]))]
    y = getattr(np, c.op.name).reduceat(x, begin[full], axis=c.axis, dtype=x.dtype)
    at = np.maximum(np.cumsum(full) - 1, 0)
    return _assembled(xp, c, (cast(xp, y, c.dtypes[0]),), full, at)


def _by_ids(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the reductions of elements that are brought in the order of their segments."""
    return _reduced_in_order(xp, c, method, _reduced)


def _by_ids_native(xp: Namespace, c: Segmented, method: str) -> Any:
    return _reduced_in_order(xp, c, method, _by_numpy)


# ---- At numbers, without an order -------------------------------------------------------------------------------

_AT = {"add": "sum", "multiply": "prod", "maximum": "amax", "minimum": "amin"}
"""Operators that libraries combine at indices by, one element after another, by PyTorch's name."""


def _at_numbers(xp: Namespace, c: Segmented) -> bool:
    """Return whether NumPy, or PyTorch on a CPU, combines elements at the numbers of their segments, in their order."""
    x, name = c.arrays[0], c.op.name
    if BUILT_IN.get(name) is not c.op or name not in _AT or 0 in x.shape or c.segments == 0:
        return False
    if dtype_kind(c.dtypes[0]) not in ("int", "uint", "float") or dtype_name(c.dtypes[0]) == "bfloat16":
        return False
    if library(xp) == "numpy":
        return bool(x.ndim == 1)
    if library(xp) != "torch" or x.device.type != "cpu" or not is_shared(c.dtypes[0]):
        return False
    # Of equal elements that are largest all have a part in PyTorch's derivative, of ours the first.
    return dtype_kind(c.dtypes[0]) != "uint" and (name == "add" or not asked_for(x))


def _by_numbers(xp: Namespace, c: Segmented) -> Any:
    """Return the reductions by what the library adds, or combines, at indices."""
    if library(xp) == "torch" and c.arrays[0].ndim == 1:
        return _of_one_axis(xp, c, "native")
    return _combined(xp, c)


def _combined(xp: Namespace, c: Segmented, method: str = "native") -> Any:
    del method
    x, ids, *starts = c.arrays
    dtype, name = compute_dtype(xp, c.dtypes[0]), c.op.name
    x = cast(xp, c.elements(xp)[0], dtype)
    if library(xp) == "numpy":
        ids = ids.astype(np.intp, copy=False)
        outside = ids.view(np.uintp) >= c.segments
        if outside.any():
            x, ids = x[~outside], ids[~outside]
        if name == "add" and dtype_kind(dtype) == "float":
            total = np.bincount(ids, x, c.segments)
            return xp.astype(starts[0] + total if starts else total, c.dtypes[0], copy=False)
        total = _begun(xp, c, dtype)
        getattr(np, name).at(total, ids, x)
        return xp.astype(total, c.dtypes[0], copy=False)
    # What is left out goes to one more place.
    index = xp.where((ids < 0) | (ids >= c.segments), c.segments, ids).to(xp.int64)
    total = _begun(xp, c, dtype)
    total = xp.concat([total, total.narrow(c.axis, 0, 1)], axis=c.axis)
    if name == "add":
        total = total.index_add(c.axis, index, x)
    else:
        shape = [-1 if at == c.axis else 1 for at in range(x.ndim)]
        total = total.scatter_reduce(c.axis, index.view(shape).expand(x.shape), x, _AT[name])
    return xp.astype(total.narrow(c.axis, 0, c.segments), c.dtypes[0], copy=True)


_of_one_axis = through_numpy(_combined)


def _begun(xp: Namespace, c: Segmented, dtype: Any) -> Array:
    """Return what results begin with: the initial element, or the identity."""
    shape = c.results[0][0]
    if c.starts:
        start = xp.expand_dims(cast(xp, c.starts[0], dtype), axis=c.axis)
        return xp.astype(xp.broadcast_to(start, shape), dtype, copy=True)
    (identity,) = c.op.identity(dtype_name(dtype)) or (0,)
    return xp.full(shape, identity, dtype=dtype, device=device(c.arrays[0]))


def _ordered(xp: Namespace, c: Segmented, method: str) -> Segmented:
    """Return the call with its elements in the order of their segments, and offsets in the place of ids."""
    x, ids, *starts = c.arrays
    ids = cast(xp, ids, index_dtype(xp))
    wanted = xp.arange(c.segments + 1, dtype=ids.dtype, device=device(ids))
    if not c.in_order:
        outside = (ids < 0) | (ids >= c.segments)
        ids = xp.where(outside, xp.full_like(ids, c.segments), ids)
        order = argsort(_narrow(xp, ids, c.segments + 1), method=method)
        ids = xp.take(ids, order, axis=0)
        x = moved(xp, x, lambda one: xp.take(one, order, axis=c.axis))
    offsets = searchsorted(ids, wanted, method=Inside("auto"))
    return dataclasses.replace(c, arrays=(x, offsets, *starts))


def _narrow(xp: Namespace, numbers: Array, count: int) -> Array:
    """Return numbers below a count in the narrowest dtype that holds them, which is the quickest to sort."""
    return cast(xp, numbers, getattr(xp, _segment_ids.narrowest(count)))


def _reduced_in_order(xp: Namespace, c: Segmented, method: str, reduced: Callable[..., Any]) -> Any:
    return reduced(xp, _ordered(xp, c, method), method)


def _id_parts(xp: Namespace, c: Segmented) -> list[Part]:
    found = _reduce_parts(xp, c)
    return found if c.in_order else [*found, (argsort, (_narrow(xp, c.arrays[1], c.segments + 1),), {})]


def _order(xp: Namespace, c: Segmented, method: str) -> Array:
    """Return the indices that sort every segment: sorted by keys, then, in that order, by segments."""
    keys = c.arrays[0]
    keys = constant(keys) if asked_for(keys) else keys
    order = argsort(keys, axis=c.axis, descending=c.descending, method=method)
    numbers = _narrow(xp, _numbers(xp, c, method) + 1, c.segments + 3)
    shape = order.shape
    by_key = xp.reshape(xp.take(numbers, xp.reshape(order, (-1,)), axis=0), shape) if numbers.shape[0] else order
    again = argsort(by_key, axis=c.axis, method=method)
    return gathered(xp, order, again, c.axis)


def _sorted(xp: Namespace, c: Segmented, method: str) -> tuple[Array, ...]:
    order = _order(xp, c, method)
    if not c.keyed:
        return (order,)
    return tuple([moved(xp, x, lambda one: gathered(xp, one, order, c.axis)) for x in c.arrays[: c.count]])


def _sort_parts(xp: Namespace, c: Segmented) -> list[Part]:
    keys = c.arrays[0]
    numbers = xp.zeros(keys.shape, dtype=xp.uint8, device=device(keys))
    fixed = constant(keys) if asked_for(keys) else keys
    return [(argsort, (fixed,), {"axis": c.axis, "descending": c.descending}), (argsort, (numbers,), {"axis": c.axis})]


def _reduceat(xp: Namespace, c: Segmented) -> list[Part]:
    """Return the parts of the native reduction: none where NumPy has it."""
    if library(xp) == "numpy" and BUILT_IN.get(c.op.name) is c.op and c.op.name in _REDUCEAT:
        return []
    return _scan_parts(xp, dataclasses.replace(c, arrays=c.arrays[: c.count + 1]))


def _reduceat_ids(xp: Namespace, c: Segmented) -> list[Part]:
    if library(xp) == "numpy" and BUILT_IN.get(c.op.name) is c.op and c.op.name in _REDUCEAT:
        return [] if c.in_order else [_id_parts(xp, c)[1]]
    return _id_parts(xp, c)


def _reduce_parts(xp: Namespace, c: Segmented) -> list[Part]:
    return _scan_parts(xp, dataclasses.replace(c, arrays=c.arrays[: c.count + 1]))


def _kernel(compose: Callable[..., Any], parts: Callable[..., list[Part]]) -> Method:
    """Return the kernel, which is slower where NumPy reduces segments by itself."""
    found = by_parts("kernel", compose, parts)

    def slower(xp: Namespace, c: Segmented) -> str | None:
        if library(xp) == "numpy" and BUILT_IN.get(c.op.name) is c.op and c.op.name in _REDUCEAT:
            return "numpy reduces segments by itself"
        return None if found.slower is None else found.slower(xp, c)

    return dataclasses.replace(found, slower=slower)


def _nothing(c: Segmented) -> bool:
    """Return whether there are no elements or no results, which no kernel is launched for."""
    return c.segments == 0 or any(0 in x.shape for x in c.arrays[: c.count])


def _by_operations(compose: Callable[..., Any]) -> Callable[[Namespace, Segmented], Any]:
    """Return what computes a call by operations, as ``compose`` does."""

    def computed(xp: Namespace, c: Segmented) -> Any:
        with unwatched():
            return compose(xp, c, Inside("array"))

    return computed


def _by_one_launch(compose: Callable[..., Any]) -> Callable[..., Callable[..., Any]]:
    """Return what prepares a call for the kernel of segments, which computes what ``compose`` does of several parts."""
    by_operations = _by_operations(compose)

    def prepare(xp: Namespace, c: Segmented) -> Callable[..., Any]:
        if _nothing(c):
            return directly(by_operations)(xp, c)
        return _segments_kernel.prepare(xp, c, by_operations)

    return prepare


_IN_ORDER = by_parts("native", _by_ids_native, _reduceat_ids)
_BY_ARRAY = by_parts("array", _by_ids, _id_parts)


def _prepare_ids(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return the library's own way, at numbers or in the order of segments."""
    return (directly(_by_numbers) if _at_numbers(xp, c) else _IN_ORDER.prepare)(xp, c)


def _refusal_of_ids(xp: Namespace, c: Segmented) -> str | None:
    if _at_numbers(xp, c):
        return lacks_arithmetic(xp, [compute_dtype(xp, c.dtypes[0])])
    assert _IN_ORDER.refusal is not None
    return _IN_ORDER.refusal(xp, c)


def _slower_ids(xp: Namespace, c: Segmented) -> str | None:
    return None if _at_numbers(xp, c) or _IN_ORDER.slower is None else _IN_ORDER.slower(xp, c)


def _prepare_cpu(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return what combines by the kernel for CPUs, with the derivative of the library's operations."""
    if 0 in c.arrays[0].shape or c.segments == 0:
        return _BY_ARRAY.prepare(xp, c)
    otherwise = directly(_by_numbers) if _at_numbers(xp, c) else _BY_ARRAY.prepare
    run = _derivatives.by_operations(xp, c.arrays, _segments_cpu.prepare(xp, c), lambda: otherwise(xp, c))
    return lambda *arrays: run(*arrays)[0]


def _scan_on_gpu() -> Method:
    """Return the kernel of scans on GPUs: one of segments, or of flags where lines are adjacent in memory."""
    lines = Method(_by_one_launch(_scanned), _segments_kernel.refusal)
    columns = by_parts("kernel", _scanned, _scan_parts)
    return either_of(lambda _, c: columns if math.prod(c.arrays[0].shape[c.axis + 1 :]) > 1 else lines)


_SCAN = _scan_on_gpu()


def _reduced_rows(xp: Namespace, c: Segmented, method: str) -> Any:
    """Return the reductions of rows that are taken in an order."""
    x, offsets, order, *starts = c.arrays
    rows = moved(xp, x, lambda one: xp.take(one, order, axis=c.axis))
    return _reduced(xp, dataclasses.replace(c, arrays=(rows, offsets, *starts), ordered=False), method)


def _prepare_rows(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return what sorts the places of rows by ids and reduces rows in this order, in each step by kernels for GPUs."""
    bare, kernel = c.on(*(None,) * len(c.arrays)), Inside("kernel")
    narrow = made_once(lambda ids: _segment_ids.narrowing(xp, ids, bare.segments))
    find_offsets = made_once(lambda ids: _segment_ids.finding_offsets(xp, ids, bare.segments))
    ordered = dataclasses.replace(bare, ordered=True, key=None)
    reduce = made_once(lambda *arrays: _by_one_launch(_reduced_rows)(xp, ordered.on(*arrays)))

    def run(x: Array, ids: Array, *starts: Array) -> Any:
        with unwatched():
            places = xp.arange(ids.shape[0], dtype=xp.int32, device=device(ids))
            ids, order = sort_by_key(narrow(ids), places, method=kernel)
            return reduce(x, find_offsets(ids), order, *starts)

    return run


def _prepare_in_order(xp: Namespace, c: Segmented) -> Callable[..., Any]:
    """Return what sorts elements by ids and reduces them, in each step by kernels for GPUs."""
    if not c.in_order and c.arrays[1].shape[0] < 2**31 and math.prod(c.results[0][0][c.axis + 1 :]) > 1:
        return _prepare_rows(xp, c)
    bare, kernel = c.on(*(None,) * len(c.arrays)), Inside("kernel")
    narrow = made_once(lambda ids: _segment_ids.narrowing(xp, ids, bare.segments))
    find_offsets = made_once(lambda ids: _segment_ids.finding_offsets(xp, ids, bare.segments))
    reduce = made_once(lambda *arrays: _by_one_launch(_reduced)(xp, bare.on(*arrays)))

    def run(x: Array, ids: Array, *starts: Array) -> Any:
        with unwatched():
            if not bare.in_order:
                ids = narrow(ids)
                if x.ndim == 1:
                    ids, x = sort_by_key(ids, x, method=kernel)
                else:
                    order = argsort(ids, method=kernel)
                    ids = xp.take(ids, order, axis=0)
                    x = moved(xp, x, lambda one: xp.take(one, order, axis=bare.axis))
            return reduce(x, find_offsets(ids), *starts)

    return run


def _ids_on_gpu() -> Method:
    """Return the kernel of reductions by ids on GPUs."""

    def sorts(_: Namespace, c: Segmented) -> list[Part]:
        x, ids = c.arrays[:2]
        return [] if c.in_order else [(sort_by_key, (ids, x if x.ndim == 1 else ids), {})]

    by_sorts, nothing = by_parts("kernel", _by_ids, sorts), by_parts("kernel", _by_ids, _id_parts)

    def refusal(xp: Namespace, c: Segmented) -> str | None:
        assert by_sorts.refusal is not None
        reason = _segments_kernel.refusal(xp, c)
        return reason or (None if _segment_atomics.serves(c) else by_sorts.refusal(xp, c))

    def prepare(xp: Namespace, c: Segmented) -> Callable[..., Any]:
        if _nothing(c):
            return nothing.prepare(xp, c)
        if _segment_atomics.serves(c):
            return _segment_atomics.prepare(xp, c, _segments_kernel.is_readable, _by_operations(_by_ids))
        return _prepare_in_order(xp, c)

    return Method(prepare, refusal, rehearsed=True)


_SORTS = by_parts("kernel", _sorted, _sort_parts)


def _prepare_sort(xp: Namespace, c: Segmented) -> Callable[..., tuple[Array, ...]]:
    """Return what sorts segments by the kernels of a GPU."""
    if 0 in c.arrays[0].shape:
        return _SORTS.prepare(xp, c)

    def otherwise(c: Segmented) -> tuple[Array, ...]:
        with unwatched():
            return _sorted(xp, c, Inside("native"))

    return _sort_segments_kernel.prepare(xp, c, otherwise)


_BY_IDS = {
    "kernel": by_device(
        _ids_on_gpu(),
        Method(
            _prepare_cpu,
            _segments_cpu.refusal,
            lambda xp, c: _segments_cpu.slower(xp, c, _at_numbers(xp, c)),
            quiet=True,
        ),
    ),
    "native": Method(_prepare_ids, _refusal_of_ids, _slower_ids),
    "array": _BY_ARRAY,
}

METHODS = {
    "reduce": composed(
        "reduce",
        _reduced,
        _reduce_parts,
        kernel=by_device(Method(_by_one_launch(_reduced), _segments_kernel.refusal), _kernel(_reduced, _reduce_parts)),
        native=by_parts("native", _by_numpy, _reduceat),
    ),
    "segment_reduce": composed("segment_reduce", _by_ids, _id_parts, **_BY_IDS),
    **{
        name: composed(name, _scanned, _scan_parts, kernel=by_device(_SCAN, by_parts("kernel", _scanned, _scan_parts)))
        for name in ("scan", "linear_recurrence")
    },
    **{
        name: composed(
            name,
            _sorted,
            _sort_parts,
            kernel=by_device(or_by_parts(Method(_prepare_sort, _sort_segments_kernel.refusal), _SORTS), _SORTS),
        )
        for name in ("sort", "argsort", "sort_by_key")
    },
}

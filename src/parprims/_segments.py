"""Segments of uneven length: reductions, scans, recurrences and sorts by offsets, and reductions by segment numbers.

The elements of a segment stand side by side, segment j from offsets[j] to offsets[j + 1]. A scan of all elements by
an operator that starts anew at flags is one of every segment, so time does not depend on how long they are; its last
results are the reductions. A sort by the number of the segment, after one by the keys, is one of every segment.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._arrays import (
    Array,
    Namespace,
    admit,
    along,
    as_dtypes,
    broadcast_shapes,
    cast,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_tensor,
    is_traced,
    library,
    namespace_of,
    normalize_axis,
    shown,
)
from parprims._composed import Composed, Part, by_parts, composed, gathered, in_program
from parprims._derivatives import asked_for, constant
from parprims._dispatch import Inside, Method, call_key, extensions, in_graph, primitive, recalled
from parprims._lasting import lasting_key
from parprims._operators import BUILT_IN, Operator, as_operator, segmented
from parprims._recurrence import coefficients, promoted
from parprims._scalars import as_array
from parprims._scan import scan
from parprims._scan_array import check_entries, result_dtypes
from parprims._search import searchsorted
from parprims._sort import argsort
from parprims._sorting import index_dtype, moved
from parprims._through_numpy import as_numpy, in_numpy, returned


@primitive
def segment_reduce(
    x: Array,
    ids: Array,
    /,
    num_segments: int,
    op: str | Operator | Callable[[Any, Any], Any] = "add",
    *,
    axis: int = 0,
    indices_are_sorted: bool = False,
    dtype: Any = None,
    initial: Any = None,
    method: str = "auto",
) -> Array:
    """Combine the elements of every segment, given the number of the segment that each belongs to.

    Parameters
    ----------
    x : array
        The elements, of at least one dimension and any dtype that the operator takes.
    ids : array
        For every place along the axis the number of its segment: of one dimension and an integer dtype. Elements whose
        number is none from 0 to num_segments - 1 are left out.
    num_segments : int
        The number of segments.
    op : str, Operator or callable
        The operator, as in `reduce`, on single arrays. It need not be commutative: elements of a segment are combined
        in the order that they have in x.
    axis : int
        The axis to combine along.
    indices_are_sorted : bool
        Whether ids ascend, which saves the sort. That is not checked.
    dtype : dtype or str, optional
        What elements are cast to before they are combined, as in `reduce`.
    initial : scalar or array, optional
        An element combined from the left with every segment, which a segment without elements consists of; by default
        the identity of the operator.
    method : {"auto", "kernel", "native", "array"}
        Who computes.

    Returns
    -------
    array
        The combinations, of the shape of x but for length num_segments along the axis.

    Raises
    ------
    TypeError
        If an argument is no array, ids are no integers, or a dtype does not suit the operator.
    ValueError
        If shapes do not fit, an argument has an unknown value, or the operator has no identity and initial is missing.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: those of a stable `argsort` of ids and a `scan` of the elements.
    Error: as for `scan`.
    Reproducibility: the same input gives the same bits, run after run, by every method, whatever the operator.
    Methods: kernel (where `argsort` and `scan` have one), native, array.
    Derivatives: by x on PyTorch and JAX, those of the operations.
    Memory and more: docs/segments.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.segment_reduce(np.array([1, 2, 3, 4]), np.array([2, 0, 2, 0]), 3)
    array([6, 0, 4])
    """
    if in_graph((x, ids), method):
        options = {"num_segments": num_segments, "op": _named(op), "axis": axis, "dtype": dtype, "initial": initial}
        return in_program(
            "segment_reduce", {"x": x, "ids": ids}, {**options, "indices_are_sorted": indices_are_sorted}, method
        )[0]
    key, operation = None, lasting_key(op)
    if initial is None and operation is not None:
        options_ = (num_segments, operation, axis, indices_are_sorted, dtype, method)
        key = call_key("segment_reduce", (x, ids), *options_, gradient=True)
        run = recalled(key)
        if run is not None:
            return run(x, ids)
    given = x, ids
    xp, (x, ids) = admit({"x": x, "ids": ids})
    check_kind("ids", ids, ("int", "uint"))
    indices_are_sorted = check_flag("indices_are_sorted", indices_are_sorted)
    _METHODS["segment_reduce"].check(method)
    count = _count(num_segments)
    at = normalize_axis(axis, x.ndim)
    if ids.ndim != 1 or ids.shape[0] != x.shape[at]:
        raise ValueError(
            f"ids must have one dimension and the length of x along the axis, {x.shape[at]}, got {tuple(ids.shape)}"
        )
    own = _operator(xp, op, operation, (x,), dtype)
    shape = (*x.shape[:at], count, *x.shape[at + 1 :])
    call = _Segmented(
        arrays=(x, ids, *_starts(xp, own, (x,), initial, at)),
        key=key if x is given[0] and ids is given[1] else None,
        results=((shape, own.dtypes[0]),),
        single=True,
        count=1,
        op=own.op,
        operation=operation,
        axis=at,
        dtypes=own.dtypes,
        segments=count,
        in_order=indices_are_sorted,
    )
    return _METHODS["segment_reduce"](method, xp, call)


def _count(value: Any) -> int:
    try:
        number = operator.index(value) if type(value) is not bool else None
    except TypeError:
        number = None
    if number is None or (hasattr(value, "shape") and not isinstance(value, np.generic)):
        raise TypeError(f"num_segments must be an integer, got {shown(value)}")
    if not 0 <= number < 2**31 - 1:
        raise ValueError(f"num_segments must be from 0 to 2^31 - 2, got {number}")
    return number


# ---- Calls with offsets -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Segmented(Composed):
    """A checked call. ``arrays`` are the elements, then offsets or ids, then the initial element if there is one.

    ``count`` is the number of arrays that make an element, ``dtypes`` are those of the results. For a sort ``keyed``
    says whether sorted keys are a result, and ``indices`` whether the indices are.
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
    descending: bool = False
    keyed: bool = True

    @property
    def lasts(self) -> bool:
        """Whether the operator can be remembered."""
        return self.operation is not None

    @property
    def starts(self) -> tuple[Array, ...]:
        """The initial element, if there is one."""
        return self.arrays[self.count + 1 :]

    def elements(self, xp: Namespace) -> tuple[Array, ...]:
        """Return the elements in the dtypes of the results."""
        return tuple([cast(xp, x, to) for x, to in zip(self.arrays[: self.count], self.dtypes, strict=True)])


@dataclasses.dataclass(frozen=True)
class _Own:
    op: Operator
    dtypes: tuple[Any, ...]


def _operator(xp: Namespace, op: Any, operation: Any, xs: tuple[Array, ...], dtype: Any) -> _Own:
    """Return the operator and the dtypes of results; raise, naming the argument, where it does not suit."""
    del operation
    own = as_operator(op)
    return _Own(own, result_dtypes(xp, own, tuple([x.dtype for x in xs]), as_dtypes(xp, dtype)))


def _starts(xp: Namespace, own: _Own, xs: tuple[Array, ...], initial: Any, axis: int) -> tuple[Array, ...]:
    """Return the initial element as arrays without the axis; raise where nothing can stand for an empty segment."""
    if initial is None:
        if own.op.identity(*(dtype_name(compute_dtype(xp, one)) for one in own.dtypes)) is None:
            raise ValueError(f"initial must be given, for op {own.op.name} has no identity for empty segments")
        return ()
    entries = initial if isinstance(initial, tuple) else (initial,)
    check_entries("initial", entries, xs)
    shape = (*xs[0].shape[:axis], *xs[0].shape[axis + 1 :])
    pairs = zip(entries, own.dtypes, xs, strict=True)
    return tuple([as_array("initial", value, xp, dtype, device(x), shape) for value, dtype, x in pairs])


def _named(op: Any) -> str:
    """Return the name of an operator in a node of torch.compile's graph."""
    if isinstance(op, Operator) and op._built_in:
        return op.name
    if not isinstance(op, str):
        raise ValueError("op must be a built-in name for segments inside of torch.compile")
    return op


def _checked_offsets(xp: Namespace, offsets: Array, n: int, check: Any) -> None:
    check_kind("offsets", offsets, ("int", "uint"))
    if offsets.ndim != 1 or offsets.shape[0] == 0:
        raise ValueError(f"offsets must have one dimension and an entry at least, got shape {tuple(offsets.shape)}")
    if not check_flag("check", check):
        return
    if is_traced(offsets) or (is_tensor(offsets) and _transformed()):
        raise ValueError("check must be False where offsets have no values, inside a program that is traced")
    where = cast(xp, offsets, xp.int64) if library(xp) != "jax" else offsets
    right = (where[0] == 0) & (where[-1] == n) & xp.all(where[1:] >= where[:-1])
    if not bool(right):
        raise ValueError(f"offsets must ascend from 0 to the length of the axis, {n}")


def _transformed() -> bool:
    import torch

    return bool(torch._C._are_functorch_transforms_active())


def _in_graph_by_offsets(name: str, x: Any, offsets: Array, options: dict[str, Any], method: str) -> Any:
    if isinstance(x, tuple):
        raise ValueError("x must be one array for segments inside of torch.compile")
    return in_program(name, {"x": x, "offsets": offsets}, options, method)[0]


def _elementwise(
    name: str,
    x: Any,
    op: Any,
    offsets: Array,
    axis: Any,
    options: dict[str, Any],
    dtype: Any,
    initial: Any,
    check: Any,
    method: str,
) -> Any:
    """Return a reduction or a scan of every segment."""
    single = not isinstance(x, tuple)
    given: tuple[Array, ...] = (x,) if single else x
    if in_graph((*given, offsets), method):
        named = {"op": _named(op), "axis": axis, "dtype": dtype, "initial": initial, "check": check, **options}
        return _in_graph_by_offsets(name, x, offsets, named, method)
    if not given:
        raise ValueError("x must hold at least one array")
    key, operation = None, lasting_key(op)
    if initial is None and operation is not None and check is False:
        key = call_key(
            f"{name} by offsets", (*given, offsets), single, operation, axis, *options.values(), dtype, method,
            gradient=True,
        )  # fmt: skip
        run = recalled(key)
        if run is not None:
            return run(*given, offsets)
    named_arrays = {"x" if single else f"x[{at}]": one for at, one in enumerate(given)}
    xp, arrays = admit({**named_arrays, "offsets": offsets})
    xs, offsets = tuple(arrays[:-1]), arrays[-1]
    options = {what: check_flag(what, one) for what, one in options.items()}
    if options.pop("keepdims", False):
        raise ValueError("keepdims must be False where offsets are given: the axis stays, with the length of segments")
    _METHODS[name].check(method)
    if any(one.shape != xs[0].shape for one in xs):
        raise ValueError(f"x must be arrays of equal shape, got {', '.join(str(tuple(one.shape)) for one in xs)}")
    if axis is None and xs[0].ndim != 1:
        raise ValueError(f"axis must be given with offsets for an array of {xs[0].ndim} dimensions")
    at = normalize_axis(-1 if axis is None else axis, xs[0].ndim)
    _checked_offsets(xp, offsets, xs[0].shape[at], check)
    own = _operator(xp, op, operation, xs, dtype)
    if own.op.flags:
        raise ValueError(f"op must not be segmented itself where offsets are given, got {own.op.name}")
    starts: tuple[Array, ...] = ()
    if name == "reduce" or initial is not None or options["exclusive"]:
        starts = _starts(xp, own, xs, initial, at)
    segments = offsets.shape[0] - 1
    shape = tuple(xs[0].shape)
    if name == "reduce":
        shape = (*shape[:at], segments, *shape[at + 1 :])
    same = all(one is other for one, other in zip(arrays, (*given, offsets), strict=True))
    call = _Segmented(
        arrays=(*xs, offsets, *starts),
        key=key if same else None,
        results=tuple([(shape, one) for one in own.dtypes]),
        single=single,
        count=len(xs),
        op=own.op,
        operation=operation,
        axis=at,
        dtypes=own.dtypes,
        segments=segments,
        **options,
    )
    return _METHODS[name](method, xp, call)


def reduce_by_offsets(
    x: Any, op: Any, *, offsets: Array, axis: Any, keepdims: Any, dtype: Any, initial: Any, check: Any, method: str
) -> Any:
    """Return the reduction of every segment: `reduce` with offsets."""
    return _elementwise("reduce", x, op, offsets, axis, {"keepdims": keepdims}, dtype, initial, check, method)


def scan_by_offsets(
    x: Any,
    op: Any,
    *,
    offsets: Array,
    axis: Any,
    exclusive: Any,
    reverse: Any,
    dtype: Any,
    initial: Any,
    check: Any,
    method: str,
) -> Any:
    """Return the scan of every segment: `scan` with offsets."""
    options = {"exclusive": exclusive, "reverse": reverse}
    return _elementwise("scan", x, op, offsets, axis, options, dtype, initial, check, method)


def recurrence_by_offsets(
    a: Any, b: Any, *, offsets: Array, axis: Any, initial: Any, reverse: Any, check: Any, method: str
) -> Array:
    """Return the solution of every segment: `linear_recurrence` with offsets."""
    if in_graph((a, b, offsets), method):
        if not (is_tensor(a) and is_tensor(b)):
            raise ValueError("a and b must be arrays for segments inside of torch.compile")
        options = {"axis": axis, "initial": initial, "reverse": reverse, "check": check}
        return in_program("linear_recurrence", {"a": a, "b": b, "offsets": offsets}, options, method)[0]
    xp, (a, b) = coefficients(a, b)
    _, (_, offsets) = admit({"b": b, "offsets": offsets})
    reverse = check_flag("reverse", reverse)
    _METHODS["linear_recurrence"].check(method)
    dtype = promoted(xp, a, b)
    try:
        shape = broadcast_shapes(tuple(a.shape), tuple(b.shape))
    except ValueError:
        raise ValueError(
            f"a and b must broadcast against each other, got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        ) from None
    at = normalize_axis(axis, len(shape))
    _checked_offsets(xp, offsets, shape[at], check)
    starts: tuple[Array, ...] = ()
    if initial is not None:
        starts = (as_array("initial", initial, xp, dtype, device(b), (*shape[:at], *shape[at + 1 :])),)
    call = _Segmented(
        arrays=(*(xp.broadcast_to(cast(xp, one, dtype), shape) for one in (a, b)), offsets, *starts),
        results=((shape, dtype),),
        single=True,
        count=2,
        op=_MAPS if dtype_kind(dtype) in ("float", "complex") else BUILT_IN["affine"],
        operation="recurrence",
        axis=at,
        reverse=reverse,
        dtypes=(dtype, dtype),
        segments=offsets.shape[0] - 1,
    )
    return _METHODS["linear_recurrence"](method, xp, call)


def sort_by_offsets(
    name: str,
    keys: Array,
    values: tuple[Array, ...] | None,
    *,
    offsets: Array,
    axis: Any,
    descending: Any,
    stable: Any,
    check: Any,
    method: str,
) -> tuple[Array, ...]:
    """Return every segment sorted: `sort`, `argsort` or `sort_by_key` with offsets."""
    given = (keys, *(values or ()), offsets)
    what = "keys" if name == "sort_by_key" else "x"
    if in_graph(given, method):
        if len(values or ()) > 1:
            raise ValueError("values must be one array for segments inside of torch.compile")
        named = {what: keys, **({"values": values[0]} if values else {}), "offsets": offsets}
        options = {"axis": axis, "descending": descending, "stable": stable, "check": check}
        return in_program(name, named, options, method)
    named = {what: keys, **{f"values[{at}]": one for at, one in enumerate(values or ())}}
    xp, arrays = admit(named, moved=True)
    _, (_, offsets) = admit({what: arrays[0], "offsets": offsets})
    keys = arrays[0]
    descending, stable = check_flag("descending", descending), check_flag("stable", stable)
    _METHODS[name].check(method)
    for at, one in enumerate(arrays[1:]):
        if one.shape != keys.shape:
            raise ValueError(f"values[{at}] must have the shape of keys, {tuple(keys.shape)}, got {tuple(one.shape)}")
    if dtype_kind(keys.dtype) not in ("bool", "int", "uint", "float") or dtype_bits(keys.dtype) not in (8, 16, 32, 64):
        raise TypeError(
            f"{what} must be of bool, or of an integer or real floating dtype of 8 to 64 bits, "
            f"got {dtype_name(keys.dtype)}"
        )
    at = normalize_axis(axis, keys.ndim)
    _checked_offsets(xp, offsets, keys.shape[at], check)
    moves = arrays if values is not None else []
    results = [(tuple(keys.shape), one.dtype) for one in moves] or [(tuple(keys.shape), index_dtype(xp))]
    call = _Segmented(
        arrays=(*arrays, offsets),
        results=tuple(results),
        count=len(arrays),
        operation="sort",
        axis=at,
        segments=offsets.shape[0] - 1,
        descending=descending,
        keyed=values is not None,
    )
    found: tuple[Array, ...] = _METHODS[name](method, xp, call)
    return found


# ---- What is done -----------------------------------------------------------------------------------------------


def _compose_maps(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose affine maps. A product of coefficients that overflowed, times zero, counts as zero."""
    (a, b), (c, d) = earlier, later
    xp = namespace_of(a)
    product, moved_on = c * a, c * b
    zero = xp.zeros_like(a)
    product = xp.where((product != product) & ((c == 0) | (a == 0)), zero, product)
    return product, xp.where((moved_on != moved_on) & (b == 0), zero, moved_on) + d


_MAPS = Operator(_compose_maps, identity=(1, 0), name="recurrence", components=2)


def _numbers(xp: Namespace, c: _Segmented, method: str) -> Array:
    """Return for every place along the axis a number that grows where a segment begins."""
    offsets, n = c.arrays[c.count], c.arrays[0].shape[c.axis]
    if method != "array" and in_numpy(xp, (offsets,)):
        marks = np.zeros(n + 1, np.int32 if n < 2**31 else np.int64)
        begin = as_numpy(offsets)
        marks[begin[(begin >= 0) & (begin <= n)]] = 1
        return returned(xp, np.cumsum(marks[:n], dtype=marks.dtype))
    places = xp.arange(n, dtype=index_dtype(xp), device=device(offsets))
    return searchsorted(cast(xp, offsets, places.dtype), places, side="right", method=Inside("auto")) - 1


def _flags(xp: Namespace, c: _Segmented, numbers: Array) -> Array:
    """Return where a segment begins, or ends if reverse, of a shape that broadcasts to that of the elements."""
    n = numbers.shape[0]
    edge = xp.ones((min(n, 1),), dtype=xp.bool, device=device(numbers))
    changed = numbers[min(1, n) :] != numbers[: max(0, n - 1)]
    flags = xp.concat([changed, edge] if c.reverse else [edge, changed])
    return xp.reshape(flags, tuple([n if at == c.axis else 1 for at in range(c.arrays[0].ndim)]))


def _elements(xp: Namespace, c: _Segmented, method: str) -> tuple[tuple[Array, ...], dict[str, Any]]:
    """Return what is scanned, flags first, and the options."""
    xs = c.elements(xp)
    flags = _flags(xp, c, _numbers(xp, c, method))
    if c.op is _MAPS or (c.operation == "recurrence" and c.op is BUILT_IN["affine"]):
        a, b = xs
        start = xp.expand_dims(c.starts[0], axis=c.axis) if c.starts else None
        first = b if start is None else a * start + b
        a, b = xp.where(flags, xp.zeros_like(a), a), xp.where(flags, first, b)
        if c.op is _MAPS:
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


def _scanned(xp: Namespace, c: _Segmented, method: str) -> Any:
    elements, options = _elements(xp, c, method)
    ys = scan(elements, segmented(c.op), method=method, **options)[1:]
    if c.operation == "recurrence":
        return ys[1]
    return ys[0] if c.single else ys


def _scan_parts(xp: Namespace, c: _Segmented) -> list[Part]:
    """Return the scan of elements like those that are scanned, with no flags worth the name."""
    xs = c.elements(xp)
    flags = xp.broadcast_to(xp.ones((), dtype=xp.bool, device=device(xs[0])), xs[0].shape)
    options: dict[str, Any] = {"axis": c.axis, "exclusive": c.exclusive, "reverse": c.reverse}
    if c.starts and c.exclusive:
        options["initial"] = (False, *c.starts)
    return [(scan, ((flags, *xs), segmented(c.op)), options)]


def _reduced(xp: Namespace, c: _Segmented, method: str) -> Any:
    """Return the last result of the scan of every segment, and what begins one where it is empty."""
    bare = dataclasses.replace(c, arrays=c.arrays[: c.count + 1])
    elements, options = _elements(xp, bare, method)
    n, offsets = elements[0].shape[c.axis], cast(xp, c.arrays[c.count], index_dtype(xp))
    begin, end = offsets[:-1], offsets[1:]
    ys = scan(elements, segmented(c.op), method=method, **options)[1:] if n else elements[1:]
    return _assembled(xp, c, ys, (begin < end) & (begin >= 0) & (end <= n), end - 1)


def _assembled(xp: Namespace, c: _Segmented, ys: tuple[Array, ...], full: Array, at: Array) -> Any:
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


def _by_numpy(xp: Namespace, c: _Segmented, method: str) -> Any:
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


def _by_ids(xp: Namespace, c: _Segmented, method: str) -> Any:
    """Return the reductions of elements that are brought in the order of their segments."""
    return _reduced_in_order(xp, c, method, _reduced)


def _by_ids_native(xp: Namespace, c: _Segmented, method: str) -> Any:
    return _reduced_in_order(xp, c, method, _by_numpy)


def _ordered(xp: Namespace, c: _Segmented, method: str) -> _Segmented:
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
    name = next(one for one in ("uint8", "int16", "int32", "int64") if count <= np.iinfo(one).max)
    return cast(xp, numbers, getattr(xp, name))


def _reduced_in_order(xp: Namespace, c: _Segmented, method: str, reduced: Callable[..., Any]) -> Any:
    return reduced(xp, _ordered(xp, c, method), method)


def _id_parts(xp: Namespace, c: _Segmented) -> list[Part]:
    found = _reduce_parts(xp, c)
    return found if c.in_order else [*found, (argsort, (_narrow(xp, c.arrays[1], c.segments + 1),), {})]


def _order(xp: Namespace, c: _Segmented, method: str) -> Array:
    """Return the indices that sort every segment: sorted by keys, then, in that order, by segments."""
    keys = c.arrays[0]
    keys = constant(keys) if asked_for(keys) else keys
    order = argsort(keys, axis=c.axis, descending=c.descending, method=method)
    numbers = _narrow(xp, _numbers(xp, c, method) + 1, c.segments + 3)
    shape = order.shape
    by_key = xp.reshape(xp.take(numbers, xp.reshape(order, (-1,)), axis=0), shape) if numbers.shape[0] else order
    again = argsort(by_key, axis=c.axis, method=method)
    return gathered(xp, order, again, c.axis)


def _sorted(xp: Namespace, c: _Segmented, method: str) -> tuple[Array, ...]:
    order = _order(xp, c, method)
    if not c.keyed:
        return (order,)
    return tuple([moved(xp, x, lambda one: gathered(xp, one, order, c.axis)) for x in c.arrays[: c.count]])


def _sort_parts(xp: Namespace, c: _Segmented) -> list[Part]:
    keys = c.arrays[0]
    numbers = xp.zeros(keys.shape, dtype=xp.uint8, device=device(keys))
    fixed = constant(keys) if asked_for(keys) else keys
    return [(argsort, (fixed,), {"axis": c.axis, "descending": c.descending}), (argsort, (numbers,), {"axis": c.axis})]


def _reduceat(xp: Namespace, c: _Segmented) -> list[Part]:
    """Return the parts of the native reduction: none where NumPy has it."""
    if library(xp) == "numpy" and BUILT_IN.get(c.op.name) is c.op and c.op.name in _REDUCEAT:
        return []
    return _scan_parts(xp, dataclasses.replace(c, arrays=c.arrays[: c.count + 1]))


def _reduceat_ids(xp: Namespace, c: _Segmented) -> list[Part]:
    if library(xp) == "numpy" and BUILT_IN.get(c.op.name) is c.op and c.op.name in _REDUCEAT:
        return [] if c.in_order else [_id_parts(xp, c)[1]]
    return _id_parts(xp, c)


def _reduce_parts(xp: Namespace, c: _Segmented) -> list[Part]:
    return _scan_parts(xp, dataclasses.replace(c, arrays=c.arrays[: c.count + 1]))


def _kernel(compose: Callable[..., Any], parts: Callable[..., list[Part]]) -> Method:
    """Return the kernel, which is slower where NumPy reduces segments by itself."""
    found = by_parts("kernel", compose, parts)

    def slower(xp: Namespace, c: _Segmented) -> str | None:
        if library(xp) == "numpy" and BUILT_IN.get(c.op.name) is c.op and c.op.name in _REDUCEAT:
            return "numpy reduces segments by itself"
        return None if found.slower is None else found.slower(xp, c)

    return dataclasses.replace(found, slower=slower)


_METHODS = {
    "reduce": composed(
        "reduce",
        _reduced,
        _reduce_parts,
        kernel=_kernel(_reduced, _reduce_parts),
        native=by_parts("native", _by_numpy, _reduceat),
    ),
    "segment_reduce": composed(
        "segment_reduce",
        _by_ids,
        _id_parts,
        kernel=_kernel(_by_ids, _id_parts),
        native=by_parts("native", _by_ids_native, _reduceat_ids),
    ),
    **{name: composed(name, _scanned, _scan_parts) for name in ("scan", "linear_recurrence")},
    **{name: composed(name, _sorted, _sort_parts) for name in ("sort", "argsort", "sort_by_key")},
}

extensions.update(
    {
        "reduce by offsets": reduce_by_offsets,
        "scan by offsets": scan_by_offsets,
        "linear_recurrence by offsets": recurrence_by_offsets,
        "sort by offsets": sort_by_offsets,
    }
)

"""Segments of uneven length: reductions, scans, recurrences and sorts by offsets, and reductions by segment numbers.

The elements of a segment stand side by side, segment j from offsets[j] to offsets[j + 1]. A scan of all elements by
an operator that starts anew at flags is one of every segment, so time does not depend on how long they are; its last
results are the reductions. A sort by the number of the segment, after one by the keys, is one of every segment.
Kernels for GPUs have ways of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    admit,
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
    normalize_axis,
)
from parprims._core.elements import is_structured
from parprims._core.options import check_entries, integer_of, is_array, made_plain
from parprims._core.other_words import unknown_option
from parprims._core.promotion import promoted
from parprims._core.scalars import as_array
from parprims._dispatch.ascending import as_offsets, checked_first, checking
from parprims._dispatch.composite import fitted, in_program
from parprims._dispatch.dispatch import call_key, extensions, in_graph, plain, primitive, recalled
from parprims._operators.function_key import lasting_key
from parprims._operators.operator import BUILT_IN, Operator, as_operator, by_leaves
from parprims._primitives.recurrence.public import coefficients
from parprims._primitives.scan.array import result_dtypes
from parprims._primitives.segments.call import MAPS, METHODS, Segmented
from parprims._primitives.sort.call import index_dtype


@primitive
def segment_reduce(
    x: Array | tuple[Array, ...],
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
    **others: Never,
) -> Any:
    """Combine the elements of every segment, given the number of the segment that each belongs to.

    Parameters
    ----------
    x : array, or tuple, NamedTuple or dict of array
        The elements, of at least one dimension and any dtype that the operator takes; of several components as in
        `reduce`.
    ids : array
        For every place along the axis the number of its segment: of one dimension and an integer dtype. Elements whose
        number is none from 0 to num_segments - 1 are left out.
    num_segments : int
        The number of segments.
    op : str, Operator or callable
        The operator, as in `reduce`. It need not be commutative: elements of a segment are combined
        in the order that they have in x.
    axis : int
        The axis to combine along.
    indices_are_sorted : bool
        Whether ids ascend, which saves the sort where there is one. That is not checked.
    dtype : dtype, str or tuple of these, optional
        What elements are cast to before they are combined, as in `reduce`.
    initial : scalar, array, or a tuple of these, optional
        An element combined from the left with every segment, which a segment without elements consists of; by default
        the identity of the operator.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

    Returns
    -------
    array, or tuple, NamedTuple or dict of array
        The combinations, of the shape of x but for length num_segments along the axis, and made as x is.

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
    Work and depth: one combination for each element (kernel on CPUs, and on GPUs in one dimension where no bits depend
    on the order or segments are few; native where a library has it); those of a stable sort by ids and a `reduce` with
    offsets (kernel on GPUs else), of an `argsort` of ids and a `scan` (array, and kernel of several components).
    Error: a sum owes half a unit in the last place of its sum of |x| for each of at most n additions by kernel
    and native (NumPy adds in float64), as for `scan` by array.
    Reproducibility: the same input gives the same bits, run after run, by every method, whatever the operator.
    Methods: kernel (CPU arrays by Numba; on GPUs operators that can be translated, on few segments of one dimension;
    others where `sort_by_key` and `reduce` have one), native (NumPy, PyTorch on CPUs), array.
    Derivatives: by x on PyTorch and JAX, those of the operations.
    Memory and more: docs/segments.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.segment_reduce(np.array([1, 2, 3, 4]), np.array([2, 0, 2, 0]), 3)
    array([6, 0, 4])
    """
    if others:
        raise unknown_option("segment_reduce", others)
    if isinstance(x, tuple | dict) and is_structured(x):

        def of_leaves(leaves: Any, flat_op: Any, **options: Any) -> Any:
            return segment_reduce(leaves, ids, num_segments, flat_op, **options)

        options: dict[str, Any] = {"axis": axis, "indices_are_sorted": indices_are_sorted, "method": method}
        return by_leaves(of_leaves, x, op, initial=initial, dtype=dtype, **options)
    single = not isinstance(x, tuple)
    arrays: tuple[Array, ...] = (x, ids) if single else (*x, ids)
    if in_graph(arrays, method):
        options = {"num_segments": num_segments, "op": _named(op), "axis": axis, "dtype": dtype, "initial": initial}
        if not single:
            raise ValueError("x must be one array for segments inside of torch.compile")
        return in_program(
            "segment_reduce", {"x": x, "ids": ids}, {**options, "indices_are_sorted": indices_are_sorted}, method
        )[0]
    key, operation = None, lasting_key(op)
    start = None if initial is None else plain(initial)
    if operation is not None and (initial is None or start is not None):
        options_ = (single, num_segments, operation, axis, indices_are_sorted, dtype, method, start)
        key = call_key("segment_reduce", arrays, *options_, gradient=True)
        run = recalled(key)
        if run is not None:
            return run(*arrays)
    plainer = made_plain(num_segments=num_segments, axis=axis)
    if plainer is not None:
        flags = {"indices_are_sorted": indices_are_sorted, "dtype": dtype, "initial": initial}
        return segment_reduce(x, ids, plainer["num_segments"], op, axis=plainer["axis"], **flags, method=method)
    if len(arrays) == 1:
        raise ValueError("x must hold at least one array")
    xp, admitted = admit({**{"x" if single else f"x[{at}]": one for at, one in enumerate(arrays[:-1])}, "ids": ids})
    xs, ids = tuple(admitted[:-1]), admitted[-1]
    check_kind("ids", ids, ("int", "uint"))
    indices_are_sorted = check_flag("indices_are_sorted", indices_are_sorted)
    METHODS["segment_reduce"].check(method)
    count = integer_of("num_segments", num_segments, 0, 2**31 - 2)
    if any(one.shape != xs[0].shape for one in xs):
        raise ValueError(f"x must be arrays of equal shape, got {', '.join(str(tuple(one.shape)) for one in xs)}")
    at = normalize_axis(axis, xs[0].ndim)
    if ids.ndim != 1 or ids.shape[0] != xs[0].shape[at]:
        raise ValueError(
            f"ids must have one dimension and the length of x along the axis, {xs[0].shape[at]}, got {tuple(ids.shape)}"
        )
    own = _operator(xp, op, operation, xs, dtype)
    if own.op.flags:
        raise ValueError(f"op must not be segmented itself where ids are given, got {own.op.name}")
    if own.narrows(xs):
        options = {"axis": at, "indices_are_sorted": indices_are_sorted, "method": method}

        def wide(dtype: Any, initial: Any) -> Any:
            return segment_reduce(x, ids, count, op, dtype=dtype, initial=initial, **options)

        return own.rounded_once(xp, wide, initial)
    shape = (*xs[0].shape[:at], count, *xs[0].shape[at + 1 :])
    starts = _starts(xp, own, xs, initial, at)
    call = Segmented(
        arrays=(*xs, ids, *starts),
        key=key if all(one is other for one, other in zip(admitted, arrays, strict=True)) else None,
        complete=(lambda *arrays: (*arrays, *starts)) if starts else None,
        results=tuple([(shape, one) for one in own.dtypes]),
        single=single,
        count=len(xs),
        op=own.op,
        operation=operation,
        axis=at,
        dtypes=own.dtypes,
        segments=count,
        reduces=True,
        in_order=indices_are_sorted,
    )
    return METHODS["segment_reduce"](method, xp, call)


# ---- Calls with offsets -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Own:
    """The operator of a call, and the dtypes of its results."""

    op: Operator
    dtypes: tuple[Any, ...]

    def narrows(self, xs: tuple[Array, ...]) -> bool:
        """Return whether elements are combined to results of 16-bit floats that they are not themselves."""
        pairs = zip(xs, self.dtypes, strict=True)
        return any(dtype_name(to) in SIXTEEN_BIT_FLOATS and x.dtype != to for x, to in pairs)

    def rounded_once(self, xp: Namespace, compute: Callable[..., Any], initial: Any) -> Any:
        """Return what ``compute`` returns, given wider dtypes and an initial element, rounded to those of results."""
        wide = tuple([compute_dtype(xp, to) for to in self.dtypes])
        if initial is not None:
            entries = initial if isinstance(initial, tuple) else (initial,)
            check_entries("initial", entries, len(wide))
            initial = tuple(
                [
                    cast(xp, one, compute_dtype(xp, to)) if is_array(one) and one.dtype == to else one
                    for one, to in zip(entries, self.dtypes, strict=True)
                ]
            )
        found = compute(wide, initial)
        if not isinstance(found, tuple):
            return cast(xp, found, self.dtypes[0])
        return tuple([cast(xp, one, to) for one, to in zip(found, self.dtypes, strict=True)])


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
    check_entries("initial", entries, len(xs))
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


def _in_graph_by_offsets(name: str, x: Any, offsets: Array, options: dict[str, Any], method: str) -> Any:
    if isinstance(x, tuple):
        raise ValueError("x must be one array for segments inside of torch.compile")
    return in_program(name, {"x": x, "offsets": offsets}, options, method)[0]


_FLAGS = {"reduce": ("keepdims",), "scan": ("exclusive", "reverse")}


def _elementwise(
    name: str,
    x: Any,
    op: Any,
    offsets: Array,
    axis: Any,
    flags: tuple[Any, ...],
    dtype: Any,
    initial: Any,
    check: Any,
    method: str,
) -> Any:
    """Return a reduction or a scan of every segment; ``flags`` are the options of `_FLAGS`."""
    single = not isinstance(x, tuple)
    offsets = as_offsets(offsets, x if single else next(iter(x), None), axis, check)
    arrays: tuple[Array, ...] = (x, offsets) if single else (*x, offsets)
    if in_graph(arrays, method):
        named = {"op": _named(op), "axis": axis, "dtype": dtype, "initial": initial, "check": check}
        named.update(zip(_FLAGS[name], flags, strict=True))
        return _in_graph_by_offsets(name, x, offsets, named, method)
    key, operation = None, lasting_key(op)
    # A prepared call stores `initial`, so only plain numbers can be part of its key.
    start = None if initial is None else plain(initial)
    if operation is not None and check is not True and (initial is None or start is not None):
        told = single, operation, axis, flags, dtype, check, method, start
        key = call_key(name, arrays, "by offsets", *told, gradient=True)
        run = recalled(key)
        if run is not None:
            return run(*arrays)
    plainer = made_plain(axis=axis)
    if plainer is not None:
        return _elementwise(name, x, op, offsets, plainer["axis"], flags, dtype, initial, check, method)
    if len(arrays) == 1:
        raise ValueError("x must hold at least one array")
    named_arrays = {"x" if single else f"x[{at}]": one for at, one in enumerate(arrays[:-1])}
    xp, admitted = admit({**named_arrays, "offsets": offsets})
    xs, offsets = tuple(admitted[:-1]), admitted[-1]
    options = {what: check_flag(what, one) for what, one in zip(_FLAGS[name], flags, strict=True)}
    if options.pop("keepdims", False):
        raise ValueError("keepdims must be False where offsets are given: the axis stays, with the length of segments")
    METHODS[name].check(method)
    if any(one.shape != xs[0].shape for one in xs):
        raise ValueError(f"x must be arrays of equal shape, got {', '.join(str(tuple(one.shape)) for one in xs)}")
    if axis is None and xs[0].ndim != 1:
        raise ValueError(f"axis must be given with offsets for an array of {xs[0].ndim} dimensions")
    at = normalize_axis(-1 if axis is None else axis, xs[0].ndim)
    checks = checking(xp, offsets, xs[0].shape[at], check, method)
    own = _operator(xp, op, operation, xs, dtype)
    if own.op.flags:
        raise ValueError(f"op must not be segmented itself where offsets are given, got {own.op.name}")
    if own.narrows(xs):

        def wide(dtype: Any, initial: Any) -> Any:
            return _elementwise(name, x, op, offsets, at, flags, dtype, initial, check, method)

        return own.rounded_once(xp, wide, initial)
    starts: tuple[Array, ...] = ()
    if name == "reduce" or initial is not None or options["exclusive"]:
        starts = _starts(xp, own, xs, initial, at)
    segments = offsets.shape[0] - 1
    shape = tuple(xs[0].shape)
    if name == "reduce":
        shape = (*shape[:at], segments, *shape[at + 1 :])
    same = all(one is other for one, other in zip(admitted, arrays, strict=True))
    call = Segmented(
        arrays=(*xs, offsets, *starts),
        key=key if same else None,
        complete=checked_first(checks, len(xs), (lambda *arrays: (*arrays, *starts)) if starts else None),
        results=tuple([(shape, one) for one in own.dtypes]),
        single=single,
        count=len(xs),
        op=own.op,
        operation=operation,
        axis=at,
        dtypes=own.dtypes,
        segments=segments,
        reduces=name == "reduce",
        exclusive=options.get("exclusive", False),
        reverse=options.get("reverse", False),
    )
    return METHODS[name](method, xp, call)


def reduce_by_offsets(
    x: Any, op: Any, offsets: Array, axis: Any, keepdims: Any, dtype: Any, initial: Any, check: Any, method: str
) -> Any:
    """Return the reduction of every segment: `reduce` with offsets."""
    return _elementwise("reduce", x, op, offsets, axis, (keepdims,), dtype, initial, check, method)


def scan_by_offsets(
    x: Any,
    op: Any,
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
    return _elementwise("scan", x, op, offsets, axis, (exclusive, reverse), dtype, initial, check, method)


def recurrence_by_offsets(
    a: Any, b: Any, *, offsets: Array, axis: Any, initial: Any, reverse: Any, check: Any, method: str
) -> Array:
    """Return the solution of every segment: `linear_recurrence` with offsets."""
    beside = b if hasattr(type(b), "shape") else a
    alone = beside is a or not is_array(a) or tuple(a.shape) in ((), tuple(b.shape))
    offsets = as_offsets(offsets, beside, axis, check, alone=alone)
    if in_graph((a, b, offsets), method):
        if not (is_tensor(a) and is_tensor(b)):
            raise ValueError("a and b must be arrays for segments inside of torch.compile")
        options = {"axis": axis, "initial": initial, "reverse": reverse, "check": check}
        return in_program("linear_recurrence", {"a": a, "b": b, "offsets": offsets}, options, method)[0]
    key = None
    if initial is None and check is not True:
        key = call_key("linear_recurrence", (a, b, offsets), "by offsets", axis, reverse, check, method, gradient=True)
        run = recalled(key)
        if run is not None:
            return run(a, b, offsets)
    plainer = made_plain(axis=axis)
    if plainer is not None:
        options = {**plainer, "initial": initial, "reverse": reverse, "check": check, "method": method}
        return recurrence_by_offsets(a, b, offsets=offsets, **options)
    given = a, b, offsets
    xp, (a, b) = coefficients(a, b)
    _, (_, offsets) = admit({"b": b, "offsets": offsets})
    reverse = check_flag("reverse", reverse)
    METHODS["linear_recurrence"].check(method)
    dtype = promoted(xp, {"a": a, "b": b}, ("int", "uint", "float", "complex"))
    try:
        shape = broadcast_shapes(tuple(a.shape), tuple(b.shape))
    except ValueError:
        raise ValueError(
            f"a and b must broadcast against each other, got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        ) from None
    at = normalize_axis(axis, len(shape))
    checks = checking(xp, offsets, shape[at], check, method)
    starts: tuple[Array, ...] = ()
    if initial is not None:
        starts = (as_array("initial", initial, xp, dtype, device(b), (*shape[:at], *shape[at + 1 :])),)

    def whole(*pair: Array) -> tuple[Array, ...]:
        return tuple([fitted(xp, one, dtype, shape) for one in pair])

    arrays = (*whole(a, b), offsets)
    same = all(one is other for one, other in zip(arrays, given, strict=True))
    call = Segmented(
        arrays=(*arrays, *starts),
        key=key if offsets is given[2] else None,
        complete=checked_first(
            checks, 2, None if same else lambda a, b, offsets: (*whole(*coefficients(a, b)[1]), offsets)
        ),
        results=((shape, dtype),),
        single=True,
        count=2,
        op=MAPS if dtype_kind(dtype) in ("float", "complex") else BUILT_IN["affine"],
        operation="recurrence",
        axis=at,
        reverse=reverse,
        dtypes=(dtype, dtype),
        segments=offsets.shape[0] - 1,
    )
    return METHODS["linear_recurrence"](method, xp, call)


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
    offsets = as_offsets(offsets, keys, axis, check)
    given = (keys, *(values or ()), offsets)
    what = "keys" if name == "sort_by_key" else "x"
    if in_graph(given, method):
        if len(values or ()) > 1:
            raise ValueError("values must be one array for segments inside of torch.compile")
        named = {what: keys, **({"values": values[0]} if values else {}), "offsets": offsets}
        options = {"axis": axis, "descending": descending, "stable": stable, "check": check}
        return in_program(name, named, options, method)
    key = None
    if check is not True:
        told = values is None, axis, descending, stable, check, method
        key = call_key(name, given, "by offsets", *told, gradient=True)
        run = recalled(key)
        if run is not None:
            sorted_before: tuple[Array, ...] = run(*given)
            return sorted_before
    plainer = made_plain(axis=axis)
    if plainer is not None:
        flags = {"descending": descending, "stable": stable, "check": check}
        return sort_by_offsets(name, keys, values, offsets=offsets, **plainer, **flags, method=method)
    named = {what: keys, **{f"values[{at}]": one for at, one in enumerate(values or ())}}
    xp, arrays = admit(named, moved=True)
    _, (_, offsets) = admit({what: arrays[0], "offsets": offsets})
    keys = arrays[0]
    descending, stable = check_flag("descending", descending), check_flag("stable", stable)
    METHODS[name].check(method)
    for at, one in enumerate(arrays[1:]):
        if one.shape != keys.shape:
            raise ValueError(f"values[{at}] must have the shape of keys, {tuple(keys.shape)}, got {tuple(one.shape)}")
    if dtype_kind(keys.dtype) not in ("bool", "int", "uint", "float") or dtype_bits(keys.dtype) not in (8, 16, 32, 64):
        raise TypeError(
            f"{what} must be of bool, or of an integer or real floating dtype of 8 to 64 bits, "
            f"got {dtype_name(keys.dtype)}"
        )
    at = normalize_axis(axis, keys.ndim)
    checks = checking(xp, offsets, keys.shape[at], check, method)
    moves = arrays if values is not None else []
    results = [(tuple(keys.shape), one.dtype) for one in moves] or [(tuple(keys.shape), index_dtype(xp))]
    call = Segmented(
        arrays=(*arrays, offsets),
        key=key if all(one is other for one, other in zip((*arrays, offsets), given, strict=True)) else None,
        complete=checked_first(checks, len(arrays), None),
        results=tuple(results),
        count=len(arrays),
        operation="sort",
        axis=at,
        segments=offsets.shape[0] - 1,
        descending=descending,
        keyed=values is not None,
    )
    found: tuple[Array, ...] = METHODS[name](method, xp, call)
    return found


extensions.update(
    {
        "reduce by offsets": reduce_by_offsets,
        "scan by offsets": scan_by_offsets,
        "linear_recurrence by offsets": recurrence_by_offsets,
        "sort by offsets": sort_by_offsets,
    }
)

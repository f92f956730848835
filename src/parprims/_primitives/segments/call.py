"""The record of a checked call on segments, and the checks that make it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    admit,
    cast,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    dtype_kind,
    dtype_name,
    namespace_of,
    normalize_axis,
    repr_short,
    shared_axis,
)
from parprims._core.options import as_dtypes, check_entries, integer_of, is_array
from parprims._core.promotion import promoted
from parprims._core.scalars import as_array, maker
from parprims._dispatch.ascending import checked_first, checking
from parprims._dispatch.by_device import in_tiles_on_gpus
from parprims._dispatch.composite import Composed, fitted
from parprims._dispatch.dispatch import exact
from parprims._dispatch.primitive import Arguments
from parprims._operators.flags import of_equal_shapes
from parprims._operators.function_key import lasting_key
from parprims._operators.in_place import Few, operator_failure
from parprims._operators.operator import BUILT_IN, Operator, as_operator, names_of_leaves, rounds
from parprims._primitives.recurrence.call import broadcast_shape, coefficients
from parprims._primitives.scan.call import (
    check_identity,
    entries_of,
    named_start,
    only_axis,
    result_dtypes,
    starts_of_segments,
)
from parprims._primitives.sort import call as sort_call


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Segmented(Composed):
    """A checked call. ``arrays`` are the elements, then offsets or ids, then the initial element if there is one.

    ``count`` is the number of arrays of an element, ``dtypes`` are the dtypes of the results. ``shapes`` are the shapes
    of the components if they differ; all have one length along the axis. The initial element has
    the shape of an element without the axis; if each segment has its ``own``, it has the axis, with the length of the
    segments. If ``ends``, a scan returns last states too. A sort returns sorted keys if ``keyed``, else indices. If
    ``ordered``, the array after the offsets is the order of rows.
    """

    count: int
    op: Operator = BUILT_IN["add"]
    operation: Any = None
    axis: int
    exclusive: bool = False
    reverse: bool = False
    dtypes: tuple[Any, ...] = ()
    shapes: tuple[tuple[int, ...], ...] | None = None
    segments: int = 0
    in_order: bool = False
    keepdims: bool = False
    reduces: bool = False
    own: bool = False
    ends: bool = False
    descending: bool = False
    keyed: bool = True
    ordered: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every component, or of the first if they differ."""
        return tuple(self.arrays[0].shape)

    @property
    def n(self) -> int:
        """The length along the axis."""
        return self.shape[self.axis]

    @property
    def behind(self) -> int:
        """The number of arrays before the initial element."""
        return self.count + 1 + self.ordered

    @property
    def scanned_in_blocks(self) -> bool:
        """Whether the canonical grouping of a scan is asked for, and matters because the operator rounds."""
        return self.canonical and not self.reduces and _rounds(self)

    @property
    def reduced_in_blocks(self) -> bool:
        """Whether the canonical grouping of a reduction is asked for, and matters because the operator rounds."""
        return self.canonical and self.reduces and _rounds(self)

    @property
    def grouped_by_kernel(self) -> bool:
        """Whether the kernel must, and does, group the elements of each segment canonically, also on GPUs."""
        return (self.scanned_in_blocks or self.reduced_in_blocks) and self.shapes is None

    @property
    def grouped_by_array(self) -> bool:
        """Whether the array form must, and does, group the elements of each segment canonically."""
        return self.canonical and _rounds(self) and self.operation != "recurrence"

    @property
    def lasts(self) -> bool:
        """Whether the operator has a key that later calls find it by."""
        return self.operation is not None

    @property
    def starts(self) -> tuple[Array, ...]:
        """The initial element, if there is one."""
        return self.arrays[self.behind :]

    def trial(self, xp: Namespace) -> str | None:
        """Combine a few elements; return the reason why the operator fails, or None."""
        if not self.dtypes:
            return None
        dtypes = tuple([compute_dtype(xp, dtype) for dtype in self.dtypes])
        most = min(2, self.n + bool(self.starts) - 1)
        few = Few(self.arrays[0], shape=self.shape, axes=(self.axis,), most=most, dtypes=dtypes, shapes=self.shapes)
        return operator_failure(xp, self.op, few)

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
"""Affine maps; an overflowed product times zero is zero."""


# ---- Operators --------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Combination:
    """The operator of a call, and the dtypes of its results."""

    op: Operator
    dtypes: tuple[Any, ...]

    def narrows(self, xs: tuple[Array, ...]) -> bool:
        """Return whether results are 16-bit floats of another dtype than the elements."""
        pairs = zip(xs, self.dtypes, strict=True)
        return any(dtype_name(to) in SIXTEEN_BIT_FLOATS and x.dtype != to for x, to in pairs)

    def rounded_once(self, xp: Namespace, compute: Callable[..., Any], initial: Any) -> Any:
        """Return the result of ``compute(wider dtypes, initial)``, rounded to the dtypes of results."""
        wide = tuple([compute_dtype(xp, to) for to in self.dtypes])
        if initial is not None:
            entries = entries_of(initial)
            check_entries("initial", entries, len(wide))
            initial = tuple(
                [
                    cast(xp, entry, compute_dtype(xp, to)) if is_array(entry) and entry.dtype == to else entry
                    for entry, to in zip(entries, self.dtypes, strict=True)
                ]
            )
        result = compute(wide, initial)
        if not isinstance(result, tuple):
            return cast(xp, result, self.dtypes[0])
        return tuple([cast(xp, x, to) for x, to in zip(result, self.dtypes, strict=True)])


def _combination(xp: Namespace, asked: Arguments, xs: tuple[Array, ...]) -> Combination:
    """Return the operator and the dtypes of results; raise, naming the argument, if they do not fit."""
    op, dtype = as_operator(asked["op"]), asked["dtype"]
    return Combination(op, result_dtypes(xp, op, tuple([x.dtype for x in xs]), as_dtypes(xp, dtype)))


def _starts(
    xp: Namespace, combination: Combination, xs: tuple[Array, ...], initial: Any, axis: int
) -> tuple[tuple[Array, ...], Callable[..., tuple[Array, ...]]]:
    """Return the initial element as arrays without the axis, and a converter of later ones (see `maker`).

    Raises ValueError if empty segments have no result.
    """
    if initial is None:
        check_identity(xp, combination.op, combination.dtypes)
        return (), _no_starts
    shapes = [(*x.shape[:axis], *x.shape[axis + 1 :]) for x in xs]
    parts = zip(named_start(combination.op, initial, len(xs)), combination.dtypes, xs, shapes, strict=True)
    arguments = [(name, value, xp, dtype, device(x), shape) for (name, value), dtype, x, shape in parts]
    starts, makers = tuple([as_array(*one) for one in arguments]), [maker(*one) for one in arguments]
    return starts, lambda *values: tuple([make(value) for make, value in zip(makers, values, strict=True)])


def _no_starts(*values: Any) -> tuple[Array, ...]:
    """Return no initial element."""
    del values
    return ()


def _entries(asked: Arguments) -> tuple[Any, ...]:
    """Return the initial element if it is among the arrays of the call."""
    return entries_of(asked.arrays["initial"]) if "initial" in asked.arrays else ()


def _completed(
    asked: Arguments, starts: tuple[Array, ...], begin: Callable[..., tuple[Array, ...]], behind: int
) -> Callable[..., tuple[Array, ...]] | None:
    """Return the `complete` of a call with an initial element behind so many arrays.

    A later call passes its own initial element if that is among the arrays.
    """
    if not starts:
        return None
    if "initial" in asked.arrays:
        return lambda *arrays: (*arrays[:behind], *begin(*arrays[behind:]))
    return lambda *arrays: (*arrays, *starts)


@dataclasses.dataclass(frozen=True)
class Wider:
    """A call with results of 16-bit floats, which is computed in wider floats and rounded once."""

    asked: Arguments
    combination: Combination
    xp: Namespace

    def computed(self, compute: Callable[[Arguments], Any]) -> Any:
        """Return the result; ``compute`` computes a call."""
        arrays = {name: x for name, x in self.asked.arrays.items() if name != "initial"}

        def wide(dtype: Any, initial: Any) -> Any:
            return compute(self.asked.on(arrays, dtype=dtype, initial=initial))

        return self.combination.rounded_once(self.xp, wide, self.asked["initial"])


# ---- Checks -----------------------------------------------------------------------------------------------------


def _elements(asked: Arguments, name: str) -> tuple[Namespace, tuple[Array, ...], Array]:
    """Return the namespace, the elements, and the offsets or ids."""
    x = asked["x"]
    xs = entries_of(x)
    if not xs:
        raise ValueError("x must hold at least one array")
    xp, admitted = admit({**dict(zip(_names(asked), xs, strict=True)), name: asked[name]})
    return xp, tuple(admitted[:-1]), admitted[-1]


def _names(asked: Arguments) -> tuple[str, ...]:
    """Return the names of the components in messages."""
    x = asked["x"]
    return names_of_leaves(as_operator(asked["op"]), len(x)) if isinstance(x, tuple) else ("x",)


def _differing(xp: Namespace, asked: Arguments, xs: tuple[Array, ...], words: str) -> _Shapes:
    """Return the axis of components of several shapes, counted from the front, and the shapes; None if they are equal.

    ``words`` name the argument that gives the segments.
    """
    op = as_operator(asked["op"])
    if op.flags:
        raise ValueError(f"op must not be segmented itself where {words} are given, got {op.name}")
    if not of_equal_shapes(xp, op, xs)[1]:
        return None
    shapes = tuple([tuple(x.shape) for x in xs])
    return shared_axis(asked["axis"], shapes, _names(asked)), shapes


_Shapes = tuple[int, tuple[tuple[int, ...], ...]] | None


def _with_length(xs: tuple[Array, ...], axis: int, length: int) -> list[tuple[int, ...]]:
    """Return the shapes of components with another length along the axis."""
    return [(*x.shape[:axis], length, *x.shape[axis + 1 :]) for x in xs]


def _number_of_segments(given: Any) -> int:
    if isinstance(given, str | Operator) or callable(given):
        op = repr(given) if isinstance(given, str) and given in BUILT_IN else "op"
        hint = f"write segment_reduce(x, ids, num_segments, {op})"
        raise TypeError(f"num_segments must be an integer, got {repr_short(given)}: {hint}")
    return integer_of("num_segments", given, 0, 2**31 - 2)


def _check_ids(name: str, ids: Array, length: int) -> None:
    """Raise ValueError unless there is a number of a segment for each position along the axis."""
    if ids.ndim != 1 or ids.shape[0] != length:
        raise ValueError(
            f"{name} must have one dimension and the length of x along the axis, {length}, got {tuple(ids.shape)}"
        )


def checked_by_ids(asked: Arguments) -> tuple[Namespace, Segmented | Wider]:
    """Return the namespace and the checked call of `segment_reduce`."""
    xp, xs, ids = _elements(asked, "ids")
    check_kind("ids", ids, ("int", "uint"))
    in_order = check_flag("indices_are_sorted", asked["indices_are_sorted"])
    count = _number_of_segments(asked["num_segments"])
    differing = _differing(xp, asked, xs, "ids")
    axis = differing[0] if differing else normalize_axis(asked["axis"], xs[0].ndim)
    _check_ids("ids", ids, xs[0].shape[axis])
    combination = _combination(xp, asked, xs)
    if combination.narrows(xs):
        return xp, Wider(asked, combination, xp)
    starts, begin = _starts(xp, combination, xs, asked["initial"], axis=axis)
    return xp, Segmented(
        arrays=(*xs, ids, *starts),
        key=asked.key_of(*xs, ids, *_entries(asked)),
        complete=_completed(asked, starts, begin, len(xs) + 1),
        results=tuple(zip(_with_length(xs, axis, count), combination.dtypes, strict=True)),
        single=not isinstance(asked["x"], tuple),
        count=len(xs),
        op=combination.op,
        operation=lasting_key(asked["op"]),
        axis=axis,
        dtypes=combination.dtypes,
        shapes=differing and differing[1],
        segments=count,
        reduces=True,
        in_order=in_order,
    )


def checked_scan_by_ids(asked: Arguments) -> tuple[Namespace, Segmented]:
    """Return the namespace and the checked call of a scan with segment_ids."""
    xp, xs, ids = _elements(asked, "segment_ids")
    check_kind("segment_ids", ids, ("int", "uint"))
    options = {name: check_flag(name, asked[name]) for name in ("exclusive", "reverse")}
    if check_flag("include_initial", asked["include_initial"]):
        raise ValueError(
            "include_initial must be False where segment_ids are given: results keep the places of elements"
        )
    segments, ends = integer_of("num_segments", asked["num_segments"], 0, 2**31 - 2), asked.options.get("return_last")
    differing = _differing(xp, asked, xs, "segment_ids")
    axis = differing[0] if differing else only_axis(asked["axis"], xs[0].ndim)
    n = xs[0].shape[axis]
    _check_ids("segment_ids", ids, n)
    combination = _combination(xp, asked, xs)
    starts: tuple[Array, ...] = ()
    own, begin = False, _no_starts
    if asked["initial"] is not None:
        starts, own, begin = starts_of_segments(
            xp,
            named_start(combination.op, asked["initial"], len(xs)),
            xs[0],
            shapes=_with_length(xs, axis, n),
            dtypes=combination.dtypes,
            axis=axis,
            segments=segments,
        )
    elif ends or options["exclusive"]:
        check_identity(xp, combination.op, combination.dtypes)
    return xp, Segmented(
        arrays=(*xs, ids, *starts),
        key=asked.key_of(*xs, ids, *_entries(asked)),
        complete=_completed(asked, starts, begin, len(xs) + 1),
        results=tuple(
            [
                pair
                for length in ((n, segments) if ends else (n,))
                for pair in zip(_with_length(xs, axis, length), combination.dtypes, strict=True)
            ]
        ),
        single=not (isinstance(asked["x"], tuple) or ends),
        count=len(xs),
        op=combination.op,
        operation=lasting_key(asked["op"]),
        axis=axis,
        dtypes=combination.dtypes,
        shapes=differing and differing[1],
        segments=segments,
        own=own,
        ends=bool(ends),
        **options,
    )


def checked_by_offsets(asked: Arguments) -> tuple[Namespace, Segmented | Wider]:
    """Return the namespace and the checked call of a reduction or a scan with offsets."""
    xp, xs, offsets = _elements(asked, "offsets")
    reduces = asked.name == "reduce"
    flags = ("keepdims",) if reduces else ("exclusive", "reverse")
    options = {name: check_flag(name, asked[name]) for name in flags}
    if options.pop("keepdims", False):
        raise ValueError("keepdims must be False where offsets are given: the axis stays, with the length of segments")
    if not reduces and check_flag("include_initial", asked["include_initial"]):
        raise ValueError("include_initial must be False where offsets are given: results keep the places of elements")
    differing = _differing(xp, asked, xs, "offsets")
    if differing is None and asked["axis"] is None and xs[0].ndim != 1:
        raise ValueError(f"axis must be given with offsets for an array of {xs[0].ndim} dimensions")
    axis = differing[0] if differing else normalize_axis(-1 if asked["axis"] is None else asked["axis"], xs[0].ndim)
    n = xs[0].shape[axis]
    checks = checking(xp, offsets, n, check=asked["check"], method=asked.method)
    combination = _combination(xp, asked, xs)
    if combination.narrows(xs):
        return xp, Wider(asked, combination, xp)
    starts: tuple[Array, ...] = ()
    segments, own, begin = offsets.shape[0] - 1, False, _no_starts
    if not reduces and asked["initial"] is not None:
        starts, own, begin = starts_of_segments(
            xp,
            named_start(combination.op, asked["initial"], len(xs)),
            xs[0],
            shapes=_with_length(xs, axis, n),
            dtypes=combination.dtypes,
            axis=axis,
            segments=segments,
        )
    elif reduces or options["exclusive"]:
        starts, begin = _starts(xp, combination, xs, asked["initial"], axis=axis)
    return xp, Segmented(
        arrays=(*xs, offsets, *starts),
        key=_key(asked, asked.key_of(*xs, offsets, *_entries(asked))),
        complete=checked_first(checks, len(xs), _completed(asked, starts, begin, len(xs) + 1)),
        results=tuple(zip(_with_length(xs, axis, segments if reduces else n), combination.dtypes, strict=True)),
        single=not isinstance(asked["x"], tuple),
        count=len(xs),
        op=combination.op,
        operation=lasting_key(asked["op"]),
        axis=axis,
        dtypes=combination.dtypes,
        shapes=differing and differing[1],
        segments=segments,
        reduces=reduces,
        own=own,
        **options,
    )


def _key(asked: Arguments, key: Any) -> Any:
    """Return the key of a call with offsets, or None if later calls must check their offsets."""
    return None if asked.options.get("check") is True else key


def checked_recurrence(asked: Arguments) -> tuple[Namespace, Segmented]:
    """Return the namespace and the checked call of a recurrence with offsets or segment_ids."""
    name = "segment_ids" if "segment_ids" in asked.arrays else "offsets"
    callers, initial = (asked["a"], asked["b"], asked[name]), asked["initial"]
    xp, (a, b) = coefficients(*callers[:2])
    _, (_, numbers) = admit({"b": b, name: callers[2]})
    reverse = check_flag("reverse", asked["reverse"])
    dtype = promoted(xp, {"a": a, "b": b}, ("int", "uint", "float", "complex"))
    shape = broadcast_shape(a, b)
    axis = normalize_axis(asked["axis"], len(shape))
    checks, ends = None, bool(asked.options.get("return_last"))
    if name == "offsets":
        checks = checking(xp, numbers, shape[axis], check=asked["check"], method=asked.method)
        segments = numbers.shape[0] - 1
    else:
        check_kind(name, numbers, ("int", "uint"))
        segments = integer_of("num_segments", asked["num_segments"], 0, 2**31 - 2)
        _check_ids(name, numbers, shape[axis])
    starts: tuple[Array, ...] = ()
    own, begin = False, _no_starts
    if initial is not None:
        starts, own, begin = starts_of_segments(
            xp, [("initial", initial)], b, shapes=[shape], dtypes=(dtype,), axis=axis, segments=segments
        )
    elif ends:
        raise ValueError("initial must be given: a linear recurrence without elements has no last state")

    def whole(*pair: Array) -> tuple[Array, ...]:
        return tuple([fitted(xp, x, dtype, shape) for x in pair])

    def completed(a: Any, b: Any, numbers: Array, *start: Any) -> tuple[Array, ...]:
        return *((a, b) if same else whole(*coefficients(a, b)[1])), numbers, *begin(*start)

    arrays = (*whole(a, b), numbers)
    same = all(x is other for x, other in zip(arrays, callers, strict=True))
    of_ends = [((*shape[:axis], segments, *shape[axis + 1 :]), dtype)] if ends else []
    return xp, Segmented(
        arrays=(*arrays, *starts),
        key=_key(asked, asked.key) if numbers is callers[2] else None,
        complete=checked_first(checks, 2, None if same and initial is None else completed),
        results=((shape, dtype), *of_ends),
        single=not ends,
        count=2,
        op=MAPS if dtype_kind(dtype) in ("float", "complex") else BUILT_IN["affine"],
        operation="recurrence",
        axis=axis,
        reverse=reverse,
        dtypes=(dtype, dtype),
        segments=segments,
        own=own,
        ends=ends,
    )


def checked_sort(asked: Arguments) -> tuple[Namespace, Segmented]:
    """Return the namespace and the checked call of a sort with offsets."""
    xp, call = sort_call.checked(asked)
    _, (keys, offsets) = admit({next(iter(asked.arrays)): call.keys, "offsets": asked["offsets"]})
    shape = tuple(keys.shape)
    checks = checking(xp, offsets, shape[call.axis], check=asked["check"], method=asked.method)
    dtypes = [x.dtype for x in call.arrays] if call.keyed else [sort_call.index_dtype(xp)]
    return xp, Segmented(
        arrays=(*call.arrays, offsets),
        key=_key(asked, asked.key_of(*call.arrays, offsets)),
        complete=checked_first(checks, len(call.arrays), None),
        results=tuple([(shape, dtype) for dtype in dtypes]),
        count=len(call.arrays),
        operation="sort",
        axis=call.axis,
        segments=offsets.shape[0] - 1,
        descending=call.descending,
        keyed=call.keyed,
    )


def departs(name: str, xp: Namespace, s: Segmented) -> str | None:
    """Return the sentence why a method does not group the elements of a segment canonically, or None."""
    if name == "array" and _rounds(s) and not s.grouped_by_array:
        return "the array form groups elements by their places along the whole axis"
    return in_tiles_on_gpus(name, xp, s) if _rounds(s) else exact(name, xp, s)


def departs_by_offsets(name: str, xp: Namespace, s: Segmented) -> str | None:
    """Return the same for reductions and scans by offsets, and for scans by ids."""
    if name == "kernel" and s.grouped_by_kernel:
        return None
    return departs(name, xp, s)


def departs_by_ids(name: str, xp: Namespace, s: Segmented) -> str | None:
    """Return the same for reductions by ids."""
    if (name == "kernel" and s.grouped_by_kernel) or (name == "array" and s.grouped_by_array):
        return None
    if name != "native" and _rounds(s):
        return "elements of a segment are grouped by their places along the whole axis"
    return exact(name, xp, s)


def _rounds(s: Segmented) -> bool:
    return rounds(s.op, [*(x.dtype for x in s.arrays[: s.count]), *s.dtypes])

"""The last states of lines and segments beside the results of a scan or a recurrence, and how calls go on from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from parprims._core.arrays import Array, Namespace, along, cast, device, namespace_of, shared_axis, spread
from parprims._core.options import is_array
from parprims._core.other_words import unknown_option
from parprims._dispatch.dispatch import Abstract, Checked, Methods
from parprims._dispatch.examples import Given, Sample
from parprims._dispatch.primitive import Arguments, Primitive
from parprims._dispatch.watch import computing, listing, unwatched
from parprims._operators.operator import as_operator
from parprims._primitives.scan.call import check_identity, entries_of, starts_of_segments
from parprims._primitives.sort.call import index_dtype, moved


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Asked(Checked):
    """A call with last states. The calls that it is made of check its arguments."""

    asked: Arguments


def with_last(whole: Primitive, *, behind: int = 0) -> Primitive:
    """Return the declaration of a function that returns last states too: a tuple of results, then of their last states.

    ``whole`` is the function without them. ``behind`` is the number of axes of an element behind the axis.
    """

    def normalize(asked: Arguments) -> Arguments:
        if "offsets" not in asked.arrays:
            return asked
        assert whole.by_offsets is not None
        assert whole.by_offsets.normalize is not None
        return asked.on({**asked.arrays, "offsets": whole.by_offsets.normalize(asked)["offsets"]})

    def results(asked: Arguments, method: str, **changes: Any) -> tuple[Array, ...]:
        arrays, options = asked.arrays.copy(), {**asked.options, **changes}
        ys = whole({}, arrays, method, offsets=arrays.pop("offsets", None), **options)
        return ys if isinstance(ys, tuple) else (ys,)

    def compute(methods: Methods, method: str, xp: Namespace, call: _Asked) -> tuple[Array, ...]:
        del methods, xp
        asked = call.asked
        if listing():  # raise the errors that the call would raise
            with computing():
                ys = results(asked, Abstract("array"))
                _last(asked, ys, behind)
        ys = ends = results(asked, method)
        if asked.options.get("exclusive"):  # the results of an exclusive scan do not have the state behind its end
            with unwatched():
                ends = results(asked, method, exclusive=False)
        return *ys, *_last(asked, ends, behind)

    def example(make: Sample) -> Given | None:
        given = whole.example(make)
        return None if given is None else (given[0], {**given[1], "return_last": True})

    return Primitive(
        name=whole.name,
        variant=f"{whole.variant} with last states".lstrip(),
        check=lambda asked: (None, _Asked(arrays=(), asked=asked)),
        methods=whole.methods,
        example=example,
        optional=("initial",),
        normalize=normalize,
        operators=whole.operators,
        compute=compute,
    )


def last_states(
    one: Primitive,
    others: Mapping[str, Any],
    arrays: dict[str, Any],
    method: str,
    /,
    *,
    axis_name: Any = None,
    offsets: Any = None,
    **options: Any,
) -> tuple[Array, ...]:
    """Compute a call of a declaration with last states."""
    if others:
        raise unknown_option(one.name, others)
    if axis_name is not None:
        raise ValueError("axis_name must not be given with return_last: the last state is on another device")
    given = arrays if offsets is None else {**arrays, "offsets": offsets}
    found: tuple[Array, ...] = one.of(Arguments(one.name, given, options, method))
    return found


def paired(results: tuple[Array, ...], *, single: bool) -> Any:
    """Return the results and the last states of a call, each as an array or a tuple."""
    half = len(results) // 2
    return results if single else (results[:half], results[half:])


def _last(asked: Arguments, ys: tuple[Array, ...], behind: int) -> tuple[Array, ...]:
    """Return the last of inclusive results, for each line or segment."""
    xp, offsets = namespace_of(ys[0]), asked.arrays.get("offsets")
    shapes = [tuple(y.shape) for y in ys]
    axis = shared_axis(asked["axis"], [shape[: len(shape) - behind] for shape in shapes], ("x",) * len(ys))
    n = shapes[0][axis]
    if offsets is None and n > 0:
        end = along(axis, 0, 1) if asked["reverse"] else along(axis, n - 1, n)
        return tuple([xp.astype(xp.squeeze(y[end], axis=axis), y.dtype, copy=True) for y in ys])
    segments = 1 if offsets is None else offsets.shape[0] - 1
    starts = _starts(xp, asked, ys, axis=axis, segments=segments)
    if offsets is None:
        return tuple([xp.squeeze(x, axis=axis) for x in starts])
    if n == 0 or segments == 0:
        return starts
    offsets = cast(xp, offsets, index_dtype(xp))
    begin, end = offsets[:-1], offsets[1:]
    full = (begin < end) & (begin >= 0) & (end <= n)
    index = xp.where(full, begin if asked["reverse"] else end - 1, xp.zeros_like(begin))
    full = xp.reshape(full, (*(1,) * axis, segments))
    ends = [moved(xp, y, lambda y: xp.take(y, index, axis=axis)) for y in ys]
    return tuple([_chosen(xp, spread(xp, full, y), y, x) for y, x in zip(ends, starts, strict=True)])


def _chosen(xp: Namespace, full: Array, y: Array, x: Array) -> Array:
    """Return the elements of y where `full`, and of x elsewhere. Both are moved as the same integers (see `moved`)."""
    others: list[Array] = []

    def noted(x: Array) -> Array:
        others.append(x)
        return x

    moved(xp, x, noted)
    return moved(xp, y, lambda y: xp.where(full, y, others[0]))


def _starts(xp: Namespace, asked: Arguments, ys: tuple[Array, ...], axis: int, segments: int) -> tuple[Array, ...]:
    """Return the states before segments, which are the last states of empty segments, as arrays with the axis."""
    shapes = [(*y.shape[:axis], segments, *y.shape[axis + 1 :]) for y in ys]
    if asked["initial"] is not None:
        pairs, starts = zip(entries_of(asked["initial"]), ys, strict=True), []
        for value, y in pairs:
            entry = cast(xp, value, y.dtype) if is_array(value) and value.ndim else value
            (start,), own, _ = starts_of_segments(
                xp, [("initial", entry)], y, shapes=[tuple(y.shape)], dtypes=(y.dtype,), axis=axis, segments=segments
            )
            starts.append(start if own else xp.expand_dims(start, axis=axis))
    elif "op" in asked.options:
        identity = check_identity(xp, as_operator(asked["op"]), tuple([y.dtype for y in ys]))
        starts = [xp.full((), value, dtype=y.dtype, device=device(y)) for value, y in zip(identity, ys, strict=True)]
    else:
        raise ValueError("initial must be given: a linear recurrence without elements has no last state")
    broadcast = [xp.broadcast_to(x, shape) for x, shape in zip(starts, shapes, strict=True)]
    return tuple([xp.astype(x, x.dtype, copy=True) for x in broadcast])

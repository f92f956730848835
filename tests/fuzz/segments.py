"""Valid calls by segments: offsets of segments, some of them empty, or the number of each element."""

import itertools
from typing import Any

import numpy as np

from tests.fuzz.calls import draw_initial, dtypes_of, order
from tests.fuzz.draw import Draw, itself
from tests.fuzz.values import (
    IDENTITIES,
    Call,
    Expected,
    Step,
    differs,
    folded,
    result_of_sum,
    single,
    stacked,
    wide,
    wrapped,
)
from tests.support.contract import numpy_dtype

BY_OFFSETS = (
    "reduce", "map_reduce", "scan", "linear_recurrence", "sort", "argsort", "cumulative_sum", "cumulative_prod",
)  # fmt: skip


def draw_starts(
    d: Draw, shape: tuple[int, ...], axis: int, count: int, dtype: str, *, own: bool
) -> tuple[Any, list[np.ndarray]]:
    """Return initial elements as they are given, and the element of each segment; perhaps their ``own``."""
    rest = shape[:axis] + shape[axis + 1 :]
    if not own or d.chance(0.5):
        given, start = draw_initial(d, rest, dtype)
        return given, [start] * count
    whole = (*shape[:axis], count, *shape[axis + 1 :])
    given, start = d.array(d.values(tuple(d.one((n, 1)) for n in whole), dtype, tame=True))
    return given, list(np.moveaxis(np.broadcast_to(start, whole), axis, 0))


def draw_segments_of_recurrence(
    d: Draw, x: np.ndarray, array: Any, options: dict[str, Any], segments: list[slice], *, lasts: bool, places: Any
) -> Call:
    """Return a recurrence of integers by segments. ``places`` bring its rows into their order."""
    axis, dtype, count = options["axis"], x.dtype.name, len(segments)
    rows, rest = np.moveaxis(x, axis, 0), x.shape[:axis] + x.shape[axis + 1 :]
    rows = rows if places is None else rows[places]
    a = d.values((), dtype, tame=True)[()].item()
    starts = [np.zeros(rest, x.dtype)] * count
    if lasts or d.chance(0.4):
        options["initial"], starts = draw_starts(d, x.shape, axis, count, dtype, own=True)
    reverse = d.chance(0.3)
    options |= {"reverse": True} if reverse else {}
    options |= {"return_last": True} if lasts else {}
    found, ends = np.zeros_like(rows), []
    for part, start in zip(segments, starts, strict=True):
        state: Any = wide(start)
        for at in range(part.start, part.stop)[:: -1 if reverse else 1]:
            state = wide(rows[at]) + wide(np.asarray(a, x.dtype)) * state
            found[at] = state = wrapped(state, dtype)
        ends.append(np.broadcast_to(np.asarray(state), rest))
    found = found if places is None else found[np.argsort(places)]
    expected = Expected(np.moveaxis(found, 0, axis), dtype)
    if not lasts:
        return Call("linear_recurrence", [a, array], options, lambda got: differs(d.backend, got, expected))
    last = Expected(np.moveaxis(np.stack(ends), 0, axis).astype(x.dtype), dtype)
    check = lambda got: differs(d.backend, got[0], expected) or differs(d.backend, got[1], last)  # noqa: E731
    return Call("linear_recurrence", [a, array], options, check)


def draw_segments(d: Draw, name: str) -> Call:
    """Return a call by offsets with some empty segments."""
    exact = ("int32", "int64", "uint8") if d.backend.name != "array-api-strict" else ("int32", "int64")
    floats = ("float32", "float64") if name != "linear_recurrence" else ()
    x = d.values(d.shape(1), d.dtype(*exact, *floats), tame=True)
    array, x = d.array(x)
    axis = int(d.axis(x.ndim)) % x.ndim
    n, count = x.shape[axis], int(d.rng.integers(1, 5))
    offsets = [0, *sorted(int(at) for at in d.rng.integers(0, n + 1, count - 1)), n]
    segments = [slice(begin, end) for begin, end in itertools.pairwise(offsets)]
    rows, rest = np.moveaxis(x, axis, 0), x.shape[:axis] + x.shape[axis + 1 :]
    options: dict[str, Any] = {"axis": axis, "offsets": d.plain(np.array(offsets, d.one(("int32", "int64"))))}
    order_of_rows: Any = None
    if name in ("scan", "cumulative_sum", "cumulative_prod", "linear_recurrence") and d.chance(
        0.3
    ):  # the same segments in any order
        ids = np.repeat(np.arange(count), np.diff(offsets))
        ids = d.rng.permutation(ids).astype(d.one(("int32", "int64")))
        order_of_rows = np.argsort(ids, kind="stable")
        rows = rows[order_of_rows]
        options = {"axis": axis, "segment_ids": d.plain(ids), "num_segments": count}
    if name in ("sort", "argsort"):
        down = d.chance(0.5)
        options |= {"descending": down} if down or d.chance(0.3) else {}
        places = np.zeros(rows.shape, np.int64)
        for part in segments:
            for at in np.ndindex(rest):
                places[(part, *at)] = np.array(order(rows[(part, *at)], down), np.int64) + part.start
        found = np.take_along_axis(rows, places, 0) if name == "sort" else places
        expected = Expected(np.moveaxis(found, 0, axis), x.dtype.name if name == "sort" else None)
        return Call(name, [array], options, lambda got: differs(d.backend, got, expected))
    lasts = name not in ("reduce", "map_reduce") and not name.startswith("cumulative") and d.chance(0.4)
    if name == "linear_recurrence":
        return draw_segments_of_recurrence(d, x, array, options, segments, lasts=lasts, places=order_of_rows)
    fixed = {"cumulative_sum": "add", "cumulative_prod": "multiply"}.get(name)
    op = fixed or d.one([one for one in IDENTITIES if x.dtype.name in dtypes_of(one)])
    dtype = result_of_sum(x.dtype.name) if op in ("add", "multiply") else x.dtype.name
    rows, starts, scans = rows.astype(numpy_dtype(dtype)), [None] * count, name not in ("reduce", "map_reduce")
    if d.chance(0.4):
        options["initial"], starts = draw_starts(d, x.shape, axis, count, dtype, own=scans)
    exclusive, reverse = scans and d.chance(0.3), scans and d.chance(0.3)
    options |= {"exclusive": True} if exclusive else {}
    options |= {"reverse": True} if reverse else {}
    options |= {"return_last": True} if lasts else {}
    steps: list[Step] = []
    ends: list[Step] = []
    for part, start in zip(segments, starts, strict=True):
        elements = list(rows[part])[:: -1 if reverse else 1]
        begun = [single(op, dtype, rest)] if start is None else folded(op, [start], dtype)
        own = begun + folded(op, elements, dtype) if start is None else folded(op, [start, *elements], dtype)
        ends.append(own[-1])
        if scans:
            own = own[:-1] if exclusive else own[1:]
            steps += own[:: -1 if reverse else 1]
        else:
            steps.append(own[-1])
    if order_of_rows is not None:
        steps = [steps[at] for at in np.argsort(order_of_rows)]
    length = n if scans else count
    expected = stacked(steps, axis, (*x.shape[:axis], length, *x.shape[axis + 1 :]), dtype)
    if lasts:
        last = stacked(ends, axis, (*x.shape[:axis], count, *x.shape[axis + 1 :]), dtype)
        check = lambda got: differs(d.backend, got[0], expected) or differs(d.backend, got[1], last)  # noqa: E731
        return Call(name, [array, op], options, check)
    if fixed:
        return Call(name, [array], options, lambda got: differs(d.backend, got, expected))
    if name == "map_reduce":
        return Call(name, [itself, array], {**options, "op": op}, lambda got: differs(d.backend, got, expected))
    return Call(name, [array, op], options, lambda got: differs(d.backend, got, expected))

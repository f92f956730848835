"""The flags of segments as components of elements: their broadcast, and the exclusive scan from flag to flag."""

from __future__ import annotations

from typing import Any

from parprims._core.arrays import Array, Namespace, cast, compute_dtype, normalize_axes, spread
from parprims._operators.in_place import is_own
from parprims._operators.operator import Operator


def of_equal_shapes(
    xp: Namespace, op: Operator, xs: tuple[Array, ...], axis: Any = None
) -> tuple[tuple[Array, ...], bool]:
    """Return the components of elements, with flags broadcast to the others, and whether their shapes still differ.

    ``axis`` is the axis of the call, or several; None for all. Flags do not broadcast to components of several shapes:
    each flag then has the first axes of every component. Raises ValueError if flags do not broadcast, or if a built-in
    operator has components with different numbers of axes: their last axes would broadcast.
    """
    shape, flags = xs[0].shape, op.flags
    if all(x.shape == shape for x in xs):
        return xs, False
    if 0 < flags < len(xs) and all(x.shape == xs[flags].shape for x in xs[flags:]):
        return flags_broadcast(xp, op, xs, normalize_axes(axis, xs[flags].ndim)), False
    if not is_own(op) and any(x.ndim != xs[flags].ndim for x in xs[flags:]):
        shown = ", ".join(str(tuple(x.shape)) for x in xs[flags:])
        raise ValueError(f"x must be arrays of equal shape for op {op.name}, which is elementwise, got {shown}")
    return xs, True


def flags_broadcast(xp: Namespace, op: Operator, xs: tuple[Array, ...], axes: tuple[int, ...]) -> tuple[Array, ...]:
    """Return the components with the flags of a segmented operator broadcast to the shape of the others.

    Flags with fewer axes have the last axes of the elements, as in NumPy, or the first; they must have an axis of the
    call, which are ``axes`` of the elements. Raises ValueError if none of these fits, or if both fit. torch.compile
    traces this function.
    """
    count = op.flags
    if not 0 < count < len(xs):
        return xs
    shape = tuple(xs[count].shape)
    flags = []
    for index, flag in enumerate(xs[:count]):
        places = _places(tuple(flag.shape), shape, axes)
        if len(places) != 1:
            raise ValueError(
                f"x[{index}], the flags of op {op.name}, must broadcast to the shape {shape} of its elements"
                f"{', and have as many axes' if places else ''}, got shape {tuple(flag.shape)}"
            )
        flags.append(flag if flag.shape == shape else xp.broadcast_to(xp.reshape(flag, places[0]), shape))
    return (*flags, *xs[count:])


def _places(flag: tuple[int, ...], shape: tuple[int, ...], axes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the shapes, with as many axes as elements of ``shape``, that flags of another shape may have."""
    spare = len(shape) - len(flag)
    if spare < 0:
        return []
    last, first = (*(1,) * spare, *flag), (*flag, *(1,) * spare)
    found = [last] if not flag or not axes or max(axes) >= spare else []
    if first not in found and (not axes or min(axes) < len(flag)):
        found.append(first)
    return [place for place in found if all(m == 1 or m == n for m, n in zip(place, shape, strict=True))]


def restarted(
    xp: Namespace,
    op: Operator,
    flags: tuple[Array, ...],
    starts: tuple[Array, ...],
    has_initial: bool,
    ys: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Return the exclusive segmented scan, given results ``ys`` that are right except where segments begin.

    ``flags`` are the flags of the elements. Every segment begins with ``starts``. With ``has_initial``, ``starts`` is
    an initial element; in ``ys`` only the first segment begins with it, and without its flags.
    """
    count, inner = op.flags, op
    while inner._segments is not None:
        inner = inner._segments
    is_start, had_start = flags[0], ys[0]
    for flag, y in zip(flags[1:], ys[1:count], strict=True):
        is_start, had_start = is_start | flag, had_start | y
    values = ys[count:]
    if has_initial and all(values[0].shape):  # no operator is called without elements
        first = tuple(xp.broadcast_to(start, y.shape) for start, y in zip(starts[count:], values, strict=True))
        wide = tuple(tuple(cast(xp, x, compute_dtype(xp, x.dtype)) for x in part) for part in (first, values))
        begun = (cast(xp, x, y.dtype) for x, y in zip(inner(*wide), values, strict=True))
        values = tuple(xp.where(spread(xp, had_start, y), x, y) for x, y in zip(begun, values, strict=True))
    marks, before = [ys[0] | starts[0]], flags[0]
    for index in range(1, count):
        marks.append(xp.where(before, starts[index], ys[index] | starts[index]))
        before = before | flags[index]
    return (
        *marks,
        *(xp.where(spread(xp, is_start, y), start, y) for start, y in zip(starts[count:], values, strict=True)),
    )

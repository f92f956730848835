"""Numbers of segments by kernels for GPUs: made narrow for a sort, and turned into offsets where they ascend."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, device, dtype_bits, dtype_name, mode
from parprims._operators.languages import C_TYPES

_THREADS, _EACH = 256, 8

_QUICK = 1 << 20
"""The most segments for which each thread finds one offset alone: it waits for every step of its search."""
_IDS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))


def narrowest(count: int) -> str:
    """Return the narrowest dtype that all libraries sort by and that holds the numbers from 0 to count."""
    return next(one for one in ("uint8", "int16", "int32", "int64") if count <= np.iinfo(one).max)


def narrowing(xp: Namespace, ids: Array, count: int) -> Callable[[Array], Array]:
    """Return a function that casts ids like these to the narrowest dtype, and replaces ids outside [0, count) by count.

    Ids of a dtype as narrow as that stay as they are.
    """
    name = narrowest(count)
    if dtype_bits(ids.dtype) <= dtype_bits(getattr(xp, name)):
        return lambda ids: ids

    def otherwise(ids: Array) -> tuple[Array, ...]:
        outside = (ids < 0) | (ids >= count)
        return (cast(xp, xp.where(outside, xp.full_like(ids, count), ids), getattr(xp, name)),)

    def batched(ids: Array) -> tuple[Array, ...]:
        flat = xp.reshape(ids, (-1,))
        return (xp.reshape(narrowing(xp, flat, count)(flat), ids.shape),)

    return _prepared(xp, "narrow_ids", ids, name, ids.shape[0], count, otherwise, batched)


def finding_offsets(xp: Namespace, ids: Array, count: int) -> Callable[[Array], Array]:
    """Return what finds the offsets of segments, given the number of the segment of each place, in ascending order."""
    name = "int32" if ids.shape[0] < 2**31 else "int64"

    def otherwise(ids: Array) -> tuple[Array, ...]:
        wanted = xp.arange(count + 1, dtype=ids.dtype, device=device(ids))
        return (cast(xp, xp.searchsorted(ids, wanted), getattr(xp, name)),)

    return _prepared(xp, "find_offsets", ids, name, count + 1, count, otherwise, _cuda.row_by_row(otherwise))


def _prepared(
    xp: Namespace,
    template: str,
    ids: Array,
    result: str,
    length: int,
    count: int,
    otherwise: Callable[[Array], tuple[Array, ...]],
    batched: Callable[..., tuple[Array, ...]],
) -> Callable[[Array], Array]:
    def find(arrays: tuple[Array, ...]) -> _cuda.Run:
        (ids,) = arrays
        n, stride, name = ids.shape[0], _cuda.layout(xp, ids)[0][0], dtype_name(ids.dtype)
        key = template, mode(xp), name, result, n, stride, count
        each = 1 if template == "find_offsets" and count <= _QUICK else _EACH

        def plan() -> _cuda.Plan:
            return _plan(template, name, result, n, stride, length, count, each)

        return _cuda.ready(xp, ids, key, plan, lambda: (otherwise, batched))

    return _cuda.only(_cuda.on_readable(xp, (ids,), find, otherwise))


def _plan(template: str, ids: str, result: str, n: int, stride: int, length: int, count: int, each: int) -> _cuda.Plan:
    """Return the launch that writes so many results, ``each`` of them by a thread."""
    numbers = _cuda.Numbers()
    launch = _cuda.Launch(
        _cuda.device_source("_primitives/segments/tables/segment_ids.cu"),
        template,
        (_THREADS, each),
        (
            _cuda.Pointer("in0", f"const {C_TYPES[ids]}"),
            _cuda.Pointer("out0", C_TYPES[result]),
            numbers("n", n),
            numbers("stride", stride),
            numbers("count", count),
        ),
        -(-length // (_THREADS * each)),
        _THREADS,
    )
    return _cuda.Plan((launch,), 1, (((length,), result),), numbers.all())


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of every kind of kernel that calls can ask for."""
    n = 1 << 28
    for ids in _IDS:
        for result in ("int32", "int64"):
            yield f"segments by {ids}", _plan("find_offsets", ids, result, n, 1, 1001, 1000, 1)
        yield f"many segments by {ids}", _plan("find_offsets", ids, "int64", n, 1, _QUICK + 2, _QUICK + 1, _EACH)
        for count in (200, 1000, 10**6):
            name = narrowest(count)
            if np.iinfo(name).bits < np.iinfo(ids).bits:
                yield f"segments by {ids}", _plan("narrow_ids", ids, name, n, 1, n, count, _EACH)

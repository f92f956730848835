"""Ids by kernels for GPUs: cast to a narrow dtype for a sort, and converted to offsets where they ascend."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, device, dtype_bits, dtype_name, mode
from parprims._operators.languages import C_TYPES

_THREADS, _EACH = 256, 8

_QUICK = 1 << 20
"""The most segments for which each thread finds one offset, because its search is bound by latency."""
_IDS = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))


def narrowest(count: int) -> str:
    """Return the narrowest dtype that all libraries sort by and that holds the numbers from 0 to count."""
    return next(name for name in ("uint8", "int16", "int32", "int64") if count <= np.iinfo(name).max)


def narrowing(xp: Namespace, ids: Array, count: int) -> Callable[[Array], Array]:
    """Return a function that casts ids to the narrowest dtype, and replaces ids outside [0, count) by count.

    Ids of a dtype that is as narrow stay unchanged.
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

    kernel = _Kernel("narrow_ids", result=name, length=ids.shape[0], count=count)
    return _prepared(xp, ids, kernel, otherwise, batched=batched)


def finding_offsets(xp: Namespace, ids: Array, count: int) -> Callable[[Array], Array]:
    """Return a function from ascending ids to the offsets of segments."""
    name = "int32" if ids.shape[0] < 2**31 else "int64"

    def otherwise(ids: Array) -> tuple[Array, ...]:
        wanted = xp.arange(count + 1, dtype=ids.dtype, device=device(ids))
        return (cast(xp, xp.searchsorted(ids, wanted), getattr(xp, name)),)

    kernel = _Kernel("find_offsets", result=name, length=count + 1, count=count)
    return _prepared(xp, ids, kernel, otherwise, batched=_cuda.row_by_row(otherwise))


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """A kernel that reads ids and writes one array.

    Parameters
    ----------
    template : str
        The name of the function template.
    result, length : str, int
        The dtype and the length of the array that it writes.
    count : int
        The number of segments.
    """

    template: str
    result: str
    length: int
    count: int

    @property
    def each(self) -> int:
        """The number of results that a thread writes."""
        return 1 if self.template == "find_offsets" and self.count <= _QUICK else _EACH


def _prepared(
    xp: Namespace,
    ids: Array,
    kernel: _Kernel,
    otherwise: Callable[[Array], tuple[Array, ...]],
    *,
    batched: Callable[..., tuple[Array, ...]],
) -> Callable[[Array], Array]:
    def find(arrays: tuple[Array, ...]) -> _cuda.Run:
        (ids,) = arrays
        n, stride, name = ids.shape[0], _cuda.layout(xp, ids)[0][0], dtype_name(ids.dtype)
        key = kernel.template, mode(xp), name, kernel.result, n, stride, kernel.count

        def plan() -> _cuda.Plan:
            return _plan(kernel, name, n, stride)

        return _cuda.ready(xp, ids, key, plan=plan, in_program=lambda: (otherwise, batched))

    return _cuda.only(_cuda.on_readable(xp, (ids,), find, otherwise))


def _plan(kernel: _Kernel, ids: str, n: int, stride: int = 1) -> _cuda.Plan:
    """Return the launch of a kernel on ``n`` ids of a dtype and stride."""
    numbers, result, length, each = _cuda.Numbers(), kernel.result, kernel.length, kernel.each
    launch = _cuda.Launch(
        _cuda.device_source("_primitives/segments/tables/segment_ids.cu"),
        kernel.template,
        (_THREADS, each),
        (
            _cuda.Pointer("in0", f"const {C_TYPES[ids]}"),
            _cuda.Pointer("out0", C_TYPES[result]),
            numbers("n", n),
            numbers("stride", stride),
            numbers("count", kernel.count),
        ),
        -(-length // (_THREADS * each)),
        _THREADS,
    )
    return _cuda.Plan((launch,), 1, (((length,), result),), numbers.all())


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of a call for every kind of kernel."""
    n = 1 << 28
    for ids in _IDS:
        for result in ("int32", "int64"):
            yield f"segments by {ids}", _plan(_Kernel("find_offsets", result, 1001, 1000), ids, n)
        many = _Kernel("find_offsets", "int64", _QUICK + 2, _QUICK + 1)
        yield f"many segments by {ids}", _plan(many, ids, n)
        for count in (200, 1000, 10**6):
            name = narrowest(count)
            if np.iinfo(name).bits < np.iinfo(ids).bits:
                yield f"segments by {ids}", _plan(_Kernel("narrow_ids", name, n, count), ids, n)

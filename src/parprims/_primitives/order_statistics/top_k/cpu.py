"""The first elements of rows by kernels for CPUs: how rows are cut, and the call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._core.arrays import Namespace, dtype_bits, dtype_name, library_title, move_axis
from parprims._dispatch.by_device import either_of
from parprims._dispatch.derivative_rules import asked_by_torch
from parprims._dispatch.dispatch import Method
from parprims._primitives.order_statistics import numpy_routines
from parprims._primitives.order_statistics.call import Selection
from parprims._primitives.sort.cpu import NARROW, Kind, flip, seen_as, sorting_texts

_BLOCK, _BLOCK_OF_WIDE = 32, 64
"""Elements compared for each test that may end early: 32, or 64 if they have 64 bits."""
_ROUNDS = 32
"""The most rounds of a choice among candidates; then they are sorted."""
_LEAST = 1 << 16
"""The fewest elements for a thread."""
_PART, _EACH = 1 << 17, 64
"""The fewest elements of a part of a row: 2^17, or 64 k if that is more."""


def _plan(c: Selection, name: str, index: str, shape: tuple[int, ...]) -> _cpu.Plan:
    """Return the work on adjacent rows, given the shape of the results."""
    n = c.arrays[0].shape[c.axis]
    (k,), rows, threads = c.places, math.prod(shape[:-1]), _cpu.threads.limit()
    kind = Kind(seen_as(name, moved=False), values=(), keyed=True, index=index, narrow=n >> NARROW == 0)
    parts = 1 if rows >= threads else max(1, min(threads, n // max(_PART, _EACH * k)))
    block = _BLOCK_OF_WIDE if kind.bits == 64 else _BLOCK
    launches, scratch = [_cpu.Launch("top_of_rows", rows, -(-_LEAST // n))], []
    if parts > 1:
        launches = [_cpu.Launch("top_of_parts", rows * parts), _cpu.Launch("top_of_all_parts", rows)]
        scratch = [(2 * rows * parts * k, one) for one in kind.states]
    return _cpu.Plan(
        tuple(launches),
        (
            *sorting_texts(kind),
            _cpu.text.function("block()", (f"return {block}",)),
            _cpu.text.loops("_primitives/order_statistics/top_k/top_k_loops.py"),
        ),
        inputs=(kind.key,),
        outputs=((shape, name), (shape, index)),
        scratch=tuple(scratch),
        numbers=(n, k, flip(c.arrays[0].dtype, c.descending), kind.slack, 2 * k + block, _ROUNDS, parts),
        seen=kind.results,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def _refusal(xp: Namespace, c: Selection) -> str | None:
    return _cpu.unknown_dtype(c.arrays) or _cpu.refusal(xp, c.arrays)


_FEW = 1 << 15
"""The fewest elements for the kernel: below, it saves little, and the first call of a process waits for LLVM."""
_SEVERAL, _SHARE = 32, 10
"""In a single row, the kernel is faster than NumPy for k up to 32, or up to n / 2^10 if that is more."""


def _slower(xp: Namespace, c: Selection) -> str | None:
    (x,), (k,) = c.arrays, c.places
    n, elements = x.shape[c.axis], math.prod(x.shape)
    if elements < _FEW:
        return f"{library_title(xp)} is faster below {_FEW} elements"
    many = elements == n and k > max(_SEVERAL, n >> _SHARE) and dtype_bits(x.dtype) != 16
    if many and numpy_routines.serves(xp, c):
        return f"NumPy is faster above {max(_SEVERAL, n >> _SHARE)} elements of a single row of {n}"
    return None


def _prepare(xp: Namespace, c: Selection) -> Callable[..., Any]:
    (x,), axis = c.arrays, c.axis
    last, name = x.ndim - 1, dtype_name(x.dtype)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :], c.places[0])
    plan = _plan(c, name, dtype_name(c.results[1][1]), shape)
    read = _cpu.viewed(x, _cpu.reader_in_order(x, axis), _cpu.bits_dtype(plan.inputs[0]))
    run = _cpu.runner(plan, c.arrays, [read])
    if axis == last:
        return run
    return lambda x: tuple([move_axis(xp, y, -1, axis) for y in run(x)])


_KERNEL = Method(_prepare, _refusal, _slower)


def or_by_sort(by_sort: Method) -> Method:
    """Return the kernel, or ``by_sort`` if k is more than half of a row or PyTorch asks for a derivative."""

    def of(_: Namespace, c: Selection) -> Method:
        (x,), (k,) = c.arrays, c.places
        few = 0 not in x.shape and 0 < k <= x.shape[c.axis] // 2
        return _KERNEL if few and not asked_by_torch(c.arrays) else by_sort

    return either_of(of)

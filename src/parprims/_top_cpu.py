"""The first elements of rows by kernels for CPUs: how rows are cut, and the call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._arrays import Array, Namespace, dtype_name, move_axis
from parprims._sort_cpu import NARROW, Kind, flip, seen_as, sorting_texts, viewed

_BLOCK = 32
"""Elements that are compared at once (see _top.numba)."""
_ROUNDS = 32
"""Rounds of a selection after which what is left is sorted."""
_LEAST = 1 << 16
"""Elements that are worth a thread."""
_PART, _EACH = 1 << 17, 64
"""The fewest elements of a part of a row, and how many times as many as are wanted of it."""
_FEW = 16
"""The share of a row, as its inverse, that no more elements are than those that are kept while it is read."""


def _plan(c: Any, name: str, index: str, shape: tuple[int, ...], n: int) -> _cpu.Plan:
    """Return the work on adjacent rows of n elements."""
    (k,), rows, threads = c.places, math.prod(shape[:-1]), _cpu.threads.limit()
    kind = Kind(seen_as(name, moved=False), (), True, index, n >> NARROW == 0)
    parts = 1 if rows >= threads else max(1, min(threads, n // max(_PART, _EACH * k)))
    launches, scratch = [_cpu.Launch("top_of_rows", rows, -(-_LEAST // n))], []
    if parts > 1:
        launches = [_cpu.Launch("top_of_parts", rows * parts), _cpu.Launch("top_of_all_parts", rows)]
        scratch = [(2 * rows * parts * k, one) for one in kind.states]
    return _cpu.Plan(
        tuple(launches),
        (*sorting_texts(kind), _cpu.text.file("_top.numba")),
        (kind.key,),
        ((shape, name), (shape, index)),
        tuple(scratch),
        (n, k, flip(c.arrays[0].dtype, c.descending), kind.slack, 2 * k + _BLOCK, parts, _ROUNDS),
        seen=kind.results,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def serves(c: Any) -> bool:
    """Return whether elements are found while rows are read, and not by a sort of all."""
    (x,), (k,) = c.arrays, c.places
    return 0 not in x.shape and 0 < k <= x.shape[c.axis] // _FEW


def refusal(xp: Namespace, c: Any) -> str | None:
    """Return the sentence why the kernel cannot serve the call, or None."""
    return _cpu.refusal(xp, c.arrays)


def slower(xp: Namespace, c: Any) -> str | None:
    """Return the sentence why another method is to be preferred, or None."""
    return None


def prepare(xp: Namespace, c: Any) -> Callable[..., Any]:
    """Return a function of the array of a call that `serves` names: the elements and their indices."""
    (x,), axis = c.arrays, c.axis
    last, name = x.ndim - 1, dtype_name(x.dtype)
    shape = (*x.shape[:axis], *x.shape[axis + 1 :], c.places[0])
    plan = _plan(c, name, dtype_name(c.results[1][1]), shape, x.shape[axis])
    seen = _cpu.bits_dtype(plan.inputs[0])
    run = _cpu.runner(plan, c.arrays, [viewed(_cpu.reader_in_order(x, axis), seen)])
    if axis == last:
        return run
    return lambda x: tuple([move_axis(xp, y, -1, axis) for y in run(x)])

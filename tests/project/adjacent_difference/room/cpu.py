"""Differences of neighbours by a kernel for CPUs."""

from __future__ import annotations

import math
from collections.abc import Callable

from parprims._primitives.adjacent_difference.call import Differences

from parprims import _cpu
from parprims._core.arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, dtype_name, move_axis

_LEAST = 1 << 16
"""Elements that are worth a thread."""


def refusal(xp: Namespace, c: Differences) -> str | None:
    """Return the sentence that says why the kernel cannot compute the call, or None."""
    if dtype_name(c.arrays[0].dtype) in SIXTEEN_BIT_FLOATS:
        return f"the kernel does not compute in {dtype_name(c.arrays[0].dtype)}"
    return _cpu.unknown_dtype(c.arrays) or _cpu.refusal(xp, c.arrays)


def prepare(xp: Namespace, c: Differences) -> Callable[..., Array]:
    """Return a function of the array that computes the call."""
    (x,), n, last = c.arrays, c.shape[c.axis], len(c.shape) - 1
    name, moved = dtype_name(x.dtype), (*c.shape[: c.axis], *c.shape[c.axis + 1 :], n)
    lines = math.prod(moved[:-1]) if n else 0
    plan = _cpu.Plan(
        (_cpu.Launch("differences", lines, -(-_LEAST // max(n, 1))),),
        (_cpu.text.loops("_primitives/adjacent_difference/adjacent_difference_loops.py"),),
        (name,),
        ((moved, name),),
        (),
        (n,),
    )
    run = _cpu.runner(plan, c.arrays, [_cpu.reader_in_order(x, c.axis)])

    def computed(x: Array) -> Array:
        (y,) = run(x)
        return y if c.axis == last else move_axis(xp, y, -1, c.axis)

    return computed

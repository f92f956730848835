"""Systems with narrow bands by kernels for CPUs: elimination with row exchanges, a system after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, dtype_name, library

_LEAST = 1 << 12
"""Rows that are worth a thread."""


def refusal(xp: Namespace, s: Any) -> str | None:
    """Return the sentence why the kernel cannot serve the call, or None."""
    if not _cpu.on_cpu(xp, s.arrays):
        return "there is no kernel of banded systems for GPUs yet"
    if s.periodic:
        return "the kernel solves no periodic systems"
    return _cpu.unknown_dtype(s.arrays) or _cpu.refusal(xp, s.arrays, differentiable=True)


CROSSOVERS = _cpu.crossovers(__name__)
"""Rows from which the kernel is faster than LAPACK's routine, or than reflections by array operations.

Eager JAX compiles these for a second and more with every shape, which no call of the kernel loses.
"""


def kind(has_routine: bool) -> str:
    """Return the kind of a call in `CROSSOVERS`: whether LAPACK solves it or only the array form."""
    return "with a routine" if has_routine else "others"


def slower(xp: Namespace, has_routine: bool, rows: int) -> str | None:
    """Return the sentence why another method is to be preferred for so many rows, or None."""
    return _cpu.for_processor(CROSSOVERS).slower(library(xp), kind(has_routine), rows)


def prepare(rows: Array, b: Array, below: int) -> Callable[..., tuple[Array, ...]]:
    """Return a function of arrays like these, (systems, n, l + u + 1) and (systems, n, columns): the solutions.

    The arrays may be in any order of memory.
    """
    systems, n, width = rows.shape
    name, columns, text = dtype_name(rows.dtype), b.shape[-1], _cpu.text
    number = _cpu.register_type(name)

    def in_order(x: Array) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(_cpu.host(x)).reshape(-1)

    plan = _cpu.Plan(
        (_cpu.Launch("solve_systems", systems, max(1, _LEAST // n)),),
        (
            text.function("numbers_of(count)", (f"return np.empty(count, np.{number})",)),
            text.function("nothing()", (f"return {number}(0)",)),
            text.file("_primitives/banded/banded.numba"),
        ),
        (name, name),
        (((systems, n, columns), name),),
        (),
        (n, below, width - 1 - below, columns),
    )
    return _cpu.runner(plan, [rows, b], [in_order, in_order])

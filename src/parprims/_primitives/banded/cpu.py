"""Systems with narrow bands by kernels for CPUs: elimination with row exchanges, one system after another."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, cast, dtype_name, library
from parprims._dispatch.derivative_rules import detached, linear_system
from parprims._dispatch.dispatch import directly
from parprims._primitives.banded import native
from parprims._primitives.banded.array import array
from parprims._primitives.banded.call import System
from parprims._primitives.banded.matrix import Matrix

_LEAST = 1 << 12
"""The fewest rows for a thread."""


def refusal(xp: Namespace, s: System) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    if s.periodic:
        return "the kernel solves no periodic systems"
    return _cpu.unknown_dtype(s.arrays) or _cpu.refusal(xp, s.arrays, differentiable=True)


CROSSOVERS = _cpu.crossovers(__name__)
"""Rows from which the kernel is faster than LAPACK's routine, or than reflections in array operations.

Eager JAX compiles the reflections for a second or more for every new shape; the kernel is compiled once.
"""


def kind(has_routine: bool) -> str:
    """Return the kind of a call in `CROSSOVERS`: whether LAPACK solves it or only the array form."""
    return "with a routine" if has_routine else "others"


def slower(xp: Namespace, s: System) -> str | None:
    """Return the reason why another method is faster, or None."""
    has_routine = native.refusal(xp, s) is None
    return _cpu.measured(CROSSOVERS, xp, s.arrays).slower(library(xp), kind(has_routine), math.prod(s.results[0][0]))


def prepare(xp: Namespace, s: System) -> Any:
    """Return a function that solves by the kernel for CPUs, with derivatives that call the kernel too."""
    if 0 in s.results[0][0]:
        return directly(array)(xp, s)
    (shape, dtype), bare, batch = s.results[0], s.on(*(None,) * len(s.arrays)), s.batch
    systems, columns = math.prod(batch), shape[-1] if s.columns else 1

    def flat(matrix: Matrix, coefficients: tuple[Array, ...], b: Array) -> tuple[Array, Array, int]:
        rows, below = matrix.rows(xp, coefficients)
        n, width = rows.shape[-2:]
        rows = xp.reshape(xp.broadcast_to(rows, (*batch, n, width)), (systems, n, width))
        return rows, xp.reshape(b, (systems, n, columns)), below

    prepared = solver(*flat(s.matrix, *s.parts(xp, *map(detached, s.arrays))))

    def solve(_: Namespace, matrix: Matrix, coefficients: tuple[Array, ...], b: Array) -> Array:
        rows, right, below = flat(matrix, coefficients, b)
        run = prepared if matrix == bare.matrix else solver(rows, right, below)
        return xp.reshape(run(rows, right)[0], b.shape)

    def solved(*arrays: Array) -> Array:
        x = linear_system(xp, bare.matrix, solve, *bare.parts(xp, *arrays))
        return cast(xp, xp.reshape(x, shape), dtype)

    return solved


def solver(rows: Array, b: Array, below: int) -> Callable[..., tuple[Array, ...]]:
    """Return a function of arrays like these, (systems, n, l + u + 1) and (systems, n, columns): the solutions.

    The arrays may be in any order of memory.
    """
    systems, n, width = rows.shape
    name, columns, text = dtype_name(rows.dtype), b.shape[-1], _cpu.text
    plan = _cpu.Plan(
        (_cpu.Launch("solve_systems", systems, max(1, _LEAST // n)),),
        (
            *text.arithmetic(name),
            text.loops("_primitives/banded/banded_loops.py"),
        ),
        inputs=(name, name),
        outputs=(((systems, n, columns), name),),
        scratch=(),
        numbers=(n, below, width - 1 - below, columns),
    )
    return _cpu.runner(plan, [rows, b], [_cpu.flat_in_order] * 2)

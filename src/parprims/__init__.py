"""Parallel primitives for every array library."""

from parprims._dispatch import Call, MethodRefused, explain, methods
from parprims._operators import Operator, check_associative, segmented
from parprims._reduce import all, any, map_reduce, max, min, prod, reduce, sum, vecdot
from parprims._tridiagonal import solve_tridiagonal

__all__ = [
    "Call",
    "MethodRefused",
    "Operator",
    "all",
    "any",
    "check_associative",
    "explain",
    "map_reduce",
    "max",
    "methods",
    "min",
    "prod",
    "reduce",
    "segmented",
    "solve_tridiagonal",
    "sum",
    "vecdot",
]

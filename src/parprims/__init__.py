"""Parallel primitives for every array library."""

from parprims._dispatch import Call, MethodRefused, explain, methods
from parprims._matmul import matmul
from parprims._operators import Operator, check_associative, segmented
from parprims._reduce import all, any, map_reduce, max, min, prod, reduce, sum, vecdot
from parprims._sort import argsort, sort, sort_by_key

__all__ = [
    "Call",
    "MethodRefused",
    "Operator",
    "all",
    "any",
    "argsort",
    "check_associative",
    "explain",
    "map_reduce",
    "matmul",
    "max",
    "methods",
    "min",
    "prod",
    "reduce",
    "segmented",
    "sort",
    "sort_by_key",
    "sum",
    "vecdot",
]

"""Parallel primitives for every array library."""

from typing import Never as _Never

from parprims._core import other_words as _other_words
from parprims._cuda import jax_export_checks
from parprims._dispatch.dispatch import Call, MethodRefused, explain, methods
from parprims._operators.associativity import check_associative
from parprims._operators.operator import Operator, segmented
from parprims._primitives.banded.public import solve_banded, solve_block_tridiagonal
from parprims._primitives.filters.public import lfilter, sosfilt
from parprims._primitives.histogram.public import histogram
from parprims._primitives.matmul.public import matmul
from parprims._primitives.order_statistics.public import argpartition, median, partition, quantile, top_k
from parprims._primitives.recurrence import matrices as _recurrence_matrices  # noqa: F401
from parprims._primitives.recurrence.public import linear_recurrence
from parprims._primitives.reduce.extrema import argmax, argmin
from parprims._primitives.reduce.public import all, any, map_reduce, max, min, prod, reduce, sum
from parprims._primitives.reproducible import public as _reproducible  # noqa: F401
from parprims._primitives.scan.cumulative import cumulative_logsumexp, cumulative_max, cumulative_min
from parprims._primitives.scan.grouping import LARGEST_BLOCK as CANONICAL_BLOCK  # noqa: F401
from parprims._primitives.scan.public import cumulative_prod, cumulative_sum, scan
from parprims._primitives.search.public import merge, merge_by_key, searchsorted
from parprims._primitives.segments.public import segment_reduce
from parprims._primitives.selection.public import partition_by, run_lengths, select, unique
from parprims._primitives.sort.public import argsort, sort, sort_by_key
from parprims._primitives.tridiagonal.public import solve_tridiagonal
from parprims._primitives.vecdot.public import vecdot
from parprims._tools.comparison import Comparison, compare
from parprims._tools.launches import KernelLaunch, launches
from parprims._tools.warm_up import warm

__version__ = "0.1.0"

__all__ = [
    "Call",
    "Comparison",
    "KernelLaunch",
    "MethodRefused",
    "Operator",
    "all",
    "any",
    "argmax",
    "argmin",
    "argpartition",
    "argsort",
    "check_associative",
    "compare",
    "cumulative_logsumexp",
    "cumulative_max",
    "cumulative_min",
    "cumulative_prod",
    "cumulative_sum",
    "explain",
    "histogram",
    "jax_export_checks",
    "launches",
    "lfilter",
    "linear_recurrence",
    "map_reduce",
    "matmul",
    "max",
    "median",
    "merge",
    "merge_by_key",
    "methods",
    "min",
    "partition",
    "partition_by",
    "prod",
    "quantile",
    "reduce",
    "run_lengths",
    "scan",
    "searchsorted",
    "segment_reduce",
    "segmented",
    "select",
    "solve_banded",
    "solve_block_tridiagonal",
    "solve_tridiagonal",
    "sort",
    "sort_by_key",
    "sosfilt",
    "sum",
    "top_k",
    "unique",
    "vecdot",
    "warm",
]


def __getattr__(name: str) -> _Never:
    raise _other_words.unknown_function(name)


_other_words.show_own_options(globals()[name] for name in __all__)

"""Parallel primitives for every array library."""

from parprims import _behind as _behind
from parprims import _recurrence_matrices as _recurrence_matrices
from parprims import _words as _words
from parprims._associativity import check_associative
from parprims._banded import solve_banded, solve_block_tridiagonal
from parprims._compare import Comparison, compare
from parprims._cuda import jax_export_checks
from parprims._cumulative import cumulative_logsumexp, cumulative_max, cumulative_min
from parprims._dispatch import Call, MethodRefused, explain, methods
from parprims._extrema import argmax, argmin
from parprims._filters import lfilter, sosfilt
from parprims._histogram import histogram
from parprims._launches import KernelLaunch, launches
from parprims._matmul import matmul
from parprims._operators import Operator, segmented
from parprims._order_statistics import argpartition, median, partition, quantile, top_k
from parprims._recurrence import linear_recurrence
from parprims._reduce import all, any, map_reduce, max, min, prod, reduce, sum, vecdot
from parprims._scan import cumulative_prod, cumulative_sum, scan
from parprims._search import merge, merge_by_key, searchsorted
from parprims._segments import segment_reduce
from parprims._selection import partition_by, run_lengths, select, unique
from parprims._sort import argsort, sort, sort_by_key
from parprims._tridiagonal import solve_tridiagonal
from parprims._warm import warm

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

_words.show_own_options(globals()[name] for name in __all__)

"""Partitions around the element in the middle of the order, on a GPU: bytes of elements and results per second."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale
from benches.primitives.order_statistics import numbers


def partition_problem(rng, n):
    """Return numbers, and those smaller than the one in the middle of the order, that one, and the larger ones."""
    x = numbers(rng, n)
    kth = np.partition(x, n // 2)[n // 2]
    return Problem((x,), np.concatenate([x[x < kth], x[x == kth], x[x > kth]]))


def _partition(x, *, method):
    return parprims.partition(x, x.shape[0] // 2, method=method)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    if not scale.gpu:
        return []  # other methods leave the parts in another order, which this answer does not have
    k = scale.pick(12, 20, 28)
    make = functools.partial(partition_problem, n=2**k)
    others = dict.fromkeys(("native", "array"), "its parts have another order")
    return [Case("partition", f"float32, 2^{k}", make, _partition, skip=others)]

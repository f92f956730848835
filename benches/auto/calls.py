"""The calls by which `auto` is judged on a CPU, each with all that people would write in its place.

A peer is named after what it calls. Names that begin with ``torch`` or ``jax`` are functions of that library's arrays,
the latter compiled by it; all others are functions of NumPy's arrays, and take those of the other libraries in the
memory that they have.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benches.core.cases import Problem
from benches.primitives import reduce as bench_reduce

FEW = 1000
"""Elements up to which a loop in Python is a peer."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One call: the primitive with what is special about it, its arrays, and the peers.

    ``make(rng)`` returns the problem, ``run(*arrays, method=...)`` calls the primitive. With ``compiled`` JAX compiles
    that call, as people do who ask for its gradient.
    """

    primitive: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    axis: int
    make: Callable[[np.random.Generator], Problem]
    run: Callable[..., Any]
    peers: Mapping[str, Callable[..., Any]]
    compiled: bool = False


def side_by_side(shape: tuple[int, ...], axis: int) -> bool:
    """Return whether a NumPy loop over time has enough to do in each step."""
    return math.prod(shape) >= 16 * shape[axis] and shape[axis] <= 2**14


def small_integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return integers whose sums in any order are exact."""
    low = 0 if np.dtype(dtype).kind in "bu" else -8
    return bench_reduce.integers(rng, shape, low, 8).astype(dtype)


def line(primitive: str, name: str, dtype: str, n: int, make: Any, run: Any, peers: Mapping[str, Any]) -> Call:
    """Return a call on arrays of one axis."""
    return Call(primitive, name, dtype, (n,), 0, functools.partial(make, n=n), run, peers)

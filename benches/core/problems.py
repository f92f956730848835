"""Large arrays, made on all cores: on one, NumPy would take longer than all that is timed on a GPU."""

from __future__ import annotations

import concurrent.futures
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np


@functools.cache
def cores() -> concurrent.futures.ThreadPoolExecutor:
    """Return a thread for every core."""
    return concurrent.futures.ThreadPoolExecutor(os.cpu_count())


PIECE = 2**20


def computed(shape: Any, dtype: Any, call: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Return an array filled on all cores: ``call(*pieces)`` gives a piece's elements from pieces of other arrays."""
    found = np.empty(shape, dtype)
    flat, others = found.reshape(-1), [x.reshape(-1) for x in arrays]

    def fill(start: int) -> None:
        flat[start : start + PIECE] = call(*(x[start : start + PIECE] for x in others))

    list(cores().map(fill, range(0, flat.size, PIECE)))
    return found


def drawn(rng: np.random.Generator, shape: Any, dtype: Any, draw: Callable[..., Any]) -> np.ndarray:
    """Return an array filled on all cores: ``draw(rng, length)`` gives a piece, with a generator of its own."""
    found = np.empty(shape, dtype)
    flat = found.reshape(-1)
    starts = range(0, flat.size, PIECE)

    def fill(start: int, own: np.random.Generator) -> None:
        part = flat[start : start + PIECE]
        part[...] = draw(own, part.size)

    list(cores().map(fill, starts, rng.spawn(len(starts))))
    return found


def copied(x: np.ndarray, times: int, dtype: Any, change: Callable[..., Any] = lambda x, _: x) -> np.ndarray:
    """Return copies of an array one after another along axis 0, the k-th of them ``change(x, k)``."""
    found = np.empty((times, *x.shape), dtype)

    def fill(k: int) -> None:
        found[k] = change(x, k)

    list(cores().map(fill, range(times)))
    return found.reshape(times * x.shape[0], *x.shape[1:])

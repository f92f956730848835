"""What Numba compiles for the short comparison, compiled ahead by a process for every core, into the caches on disk.

One process compiles one text after another, which takes longer than all that is timed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
from collections.abc import Sequence

import numpy as np

from benches.core.cases import Scale
from benches.core.progress import progress
from benches.page.short_cases import ROWS, Row, exponents
from examples.backends import installed


def compile_ahead(rows: Sequence[Row], scale: Scale) -> None:
    """Call our kernels and the loops of peers for rows of the page, at each size once, where there are cores for it."""
    chosen = [row for row in rows if row in ROWS]
    cores = min(len(os.sched_getaffinity(0)), len(chosen))
    if cores < 2 or scale.gpu or scale.quick or not installed("numba"):
        return
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(cores, spawn) as processes:
        compiled = {row: processes.submit(call_once, ROWS.index(row), exponents(scale)) for row in chosen}
        for row in progress(chosen, "compiling"):
            compiled[row].exception()  # it comes again, and is told, where the call is checked


def call_once(index: int, sizes: Sequence[int]) -> None:
    """Call the kernel and the compiled loop of a row at every size."""
    row = ROWS[index]
    loop = row.peers.get("numba")
    for k in sizes:
        inputs = row.case(k).make(np.random.default_rng(k)).inputs
        with contextlib.suppress(Exception):  # likewise
            row.run(*inputs, method="kernel")
        if loop:
            loop(np, *inputs)

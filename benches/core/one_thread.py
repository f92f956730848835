"""Cases in which kernels for CPUs have one thread, beside loops compiled by Numba, which have no more."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from benches.core.cases import Case
from parprims._cpu import threads


def _limited(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def alone(*arrays: Any, **options: Any) -> Any:
        before, threads.limit = threads.limit, lambda: 1
        try:
            return run(*arrays, **options)
        finally:
            threads.limit = before

    return alone


def on_one_thread(case: Case) -> Case:
    """Return the same case on one thread, timed by kernel and beside Numba alone."""
    family, _, size = case.name.partition(", ")
    return dataclasses.replace(
        case,
        name=f"{family} on one thread, {size}",
        run=_limited(case.run),
        peers={"numba": case.peers["numba"]},
        libraries=("numpy",),
        skip=dict.fromkeys(("array", "native"), "it is timed on all threads"),
    )

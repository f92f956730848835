"""The threads on which kernels for CPUs run."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable

_LOCK = threading.Lock()
_pool: concurrent.futures.ThreadPoolExecutor | None = None
_inside = threading.local()


@functools.cache
def limit() -> int:
    """Return how many threads a call may have: one for each CPU of the process, or as the environment says.

    `PARPRIMS_NUM_THREADS` comes before `OMP_NUM_THREADS`; no number of either exceeds the CPUs of the process.
    """
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cpus = os.cpu_count() or 1
    for name in ("PARPRIMS_NUM_THREADS", "OMP_NUM_THREADS"):
        word = os.environ.get(name, "").partition(",")[0].strip()
        if word.isdecimal() and int(word) > 0:
            return min(int(word), cpus)
    return cpus


def _forget() -> None:
    """Have no pool: after a fork there are no threads in it."""
    global _pool, _LOCK
    _pool, _LOCK = None, threading.Lock()
    limit.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _shared() -> concurrent.futures.ThreadPoolExecutor:
    """Return the pool, which all calls of the process share, so that there are never more threads than `limit`."""
    global _pool
    with _LOCK:
        if _pool is None:
            _pool = concurrent.futures.ThreadPoolExecutor(max(1, limit() - 1), "parprims")
        return _pool


def run(task: Callable[[int, int], None], count: int, least: int) -> None:
    """Call ``task(begin, end)`` for ranges that make up 0 ... count, on several threads where there is enough to do.

    A range has at least ``least`` tasks. The thread that calls does its share; a call from within a task has no other.
    """
    threads = min(limit(), count // max(1, least))
    if threads <= 1 or getattr(_inside, "task", False):
        task(0, count)
        return
    # Several ranges for each thread, drawn as threads become free: some may have other work beside.
    ranges = min(4 * threads, count // max(1, least))
    bounds = [count * at // ranges for at in range(ranges + 1)]
    numbers = iter(range(ranges))

    def work() -> None:
        for at in numbers:  # a range iterator gives every number once, whichever thread asks
            task(bounds[at], bounds[at + 1])

    def helper() -> None:
        _inside.task = True
        work()

    pool = _shared()
    others = [pool.submit(helper) for _ in range(threads - 1)]
    try:
        work()
    finally:
        for one in others:
            if not one.cancel():
                one.result()

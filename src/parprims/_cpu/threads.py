"""The threads on which kernels for CPUs run."""

from __future__ import annotations

import concurrent.futures
import math
import os
import threading
from collections.abc import Callable

from parprims._cpu.limits import limit

__all__ = ["ELEMENTS", "free", "least_of_bytes", "least_of_elements", "limit", "run", "worth"]

_LOCK = threading.Lock()
_pool: tuple[concurrent.futures.ThreadPoolExecutor, int] | None = None
"""The pool that all calls of the process share, and how many threads it can have."""
_active = 0
"""Threads of callers that are in `run`, and those of the pool that help them."""
_inside = threading.local()


def _forget() -> None:
    """Have no pool: after a fork there are no threads in it."""
    global _pool, _LOCK, _active
    _pool, _LOCK, _active = None, threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _submitted(task: Callable[[], None], count: int, size: int) -> list[concurrent.futures.Future[None]]:
    """Hand a task to the pool, so often, and return what tells its end; less often where Python is about to end."""
    global _pool
    if _pool is None or _pool[1] < size:
        if _pool is not None:
            _pool[0].shutdown(wait=False)
        _pool = concurrent.futures.ThreadPoolExecutor(size, "parprims"), size
    found: list[concurrent.futures.Future[None]] = []
    try:
        for _ in range(count):
            found.append(_pool[0].submit(task))
    except RuntimeError:  # Python is about to end, and starts no more threads
        pass
    return found


def free() -> int:
    """Return how many threads a call could have now, with the one that calls."""
    return 1 if getattr(_inside, "task", False) else max(1, limit() - _active)


def worth(most: int) -> int:
    """Return how many threads are worth waking for so many times the least work of a thread.

    Waking t threads takes time in proportion to t, as long as the least work for each. What they save is worth that
    while t (t - 1) times the least work is there.
    """
    return (1 + math.isqrt(1 + 4 * most)) // 2


ELEMENTS = 1 << 16
"""The fewest elements of a thread, if an operator takes as long as an addition."""


def least_of_elements(tasks: int, elements: int) -> int:
    """Return the fewest tasks of a thread, given the elements of all tasks."""
    return -(-ELEMENTS * tasks // elements)


_BYTES = 1 << 20
"""Bytes that are read or written in the time that it takes to wake another thread."""
_FIRST = 4
"""How many times as long it takes until the first of them is at work."""


def least_of_bytes(tasks: int, nbytes: int) -> int:
    """Return how many tasks are worth a thread where all of them move so many bytes, and compute meanwhile."""
    return tasks if nbytes < _FIRST * _BYTES else max(1, tasks * _BYTES // nbytes)


def run(task: Callable[[int, int], None], count: int, least: int) -> None:
    """Call ``task(begin, end)`` for ranges that make up 0 ... count, on several threads where there is enough to do.

    A range has at least ``least`` tasks, and t threads at least t - 1 times as many each. The thread that calls does
    its share; a call from within a task has no other.
    Where many threads call at once there are no more than `limit` in all, but for those that call.
    """
    global _active
    most = count // max(1, least)
    if most <= 1 or getattr(_inside, "task", False):
        task(0, count)
        return
    allowed = limit()
    threads = min(allowed, worth(most))
    if threads <= 1:
        task(0, count)
        return
    # Several ranges for each thread, drawn as threads become free: some may have other work beside.
    ranges = min(4 * threads, most)
    bounds = [count * at // ranges for at in range(ranges + 1)]
    numbers = iter(range(ranges))

    def work() -> None:
        for at in numbers:  # a range iterator gives every number once, whichever thread asks
            task(bounds[at], bounds[at + 1])

    def helper() -> None:
        _inside.task = True
        try:
            # It leaves as soon as other callers need the CPUs; the caller does what is left.
            while _active <= allowed and (at := next(numbers, None)) is not None:
                task(bounds[at], bounds[at + 1])
        finally:
            _leave()

    with _LOCK:
        others = _submitted(helper, max(0, min(threads - 1, allowed - _active - 1)), allowed - 1)
        _active += 1 + len(others)
    try:
        work()
    finally:
        _leave()
        errors = [_left(one) for one in others]  # of all before any is raised: none is to write any more
        for error in filter(None, errors):
            raise error


def _left(one: concurrent.futures.Future[None]) -> BaseException | None:
    """Wait until a helper is at its end, or see to it that it does not begin; return its error."""
    if one.cancel():
        _leave()
        return None
    return one.exception()


def _leave() -> None:
    global _active
    with _LOCK:
        _active -= 1

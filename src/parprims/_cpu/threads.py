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
"""The pool that all calls of the process share, and its most threads."""
_active = 0
"""The number of threads in `run`: callers, and threads of the pool that help them."""
_inside = threading.local()


def _forget() -> None:
    """Drop the pool: after a fork it has no threads."""
    global _pool, _LOCK, _active
    _pool, _LOCK, _active = None, threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _submitted(task: Callable[[], None], count: int, size: int) -> list[concurrent.futures.Future[None]]:
    """Submit a task ``count`` times to the pool and return the futures: fewer if Python is about to end."""
    global _pool
    if _pool is None or _pool[1] < size:
        if _pool is not None:
            _pool[0].shutdown(wait=False)
        _pool = concurrent.futures.ThreadPoolExecutor(size, "parprims"), size
    submitted: list[concurrent.futures.Future[None]] = []
    try:
        for _ in range(count):
            submitted.append(_pool[0].submit(task))
    except RuntimeError:  # Python is about to end, and starts no more threads
        pass
    return submitted


def free() -> int:
    """Return the number of threads that a call could have now, the caller included."""
    return 1 if getattr(_inside, "task", False) else max(1, limit() - _active)


def worth(most: int) -> int:
    """Return the number of threads that are worth waking, if there is work for at most ``most`` threads.

    Waking a thread takes as long as the least work of a thread. So t threads are worth it from t (t - 1) times the
    least work on.
    """
    return (1 + math.isqrt(1 + 4 * most)) // 2


ELEMENTS = 1 << 16
"""The fewest elements of a thread, if an operator takes as long as an addition."""


def least_of_elements(tasks: int, elements: int) -> int:
    """Return the fewest tasks of a thread, given the elements of all tasks."""
    return -(-ELEMENTS * tasks // elements)


_BYTES = 1 << 20
"""The bytes that a thread reads or writes in the time in which another thread wakes."""
_FIRST = 4
"""The time until the first thread of the pool begins to work, in units of that time."""


def least_of_bytes(tasks: int, nbytes: int) -> int:
    """Return the fewest tasks of a thread if they are memory-bound, given the bytes of all tasks."""
    return tasks if nbytes < _FIRST * _BYTES else max(1, tasks * _BYTES // nbytes)


def run(task: Callable[[int, int], None], count: int, least: int) -> None:
    """Call ``task(begin, end)`` for ranges that make up 0 ... count, on several threads if there are enough tasks.

    A range has at least ``least`` tasks, and each of t threads has at least (t - 1) ``least``. The caller runs ranges
    too, and runs all of them if it is inside a task. If many threads call at once, there are no more threads than
    `limit` allows, except callers.
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
    # Each thread takes ranges as it becomes free: a CPU may have other work too.
    ranges = min(4 * threads, most)
    bounds = [count * at // ranges for at in range(ranges + 1)]
    numbers = iter(range(ranges))

    def work() -> None:
        for at in numbers:  # a range iterator gives every number once, whichever thread asks
            task(bounds[at], bounds[at + 1])

    def helper() -> None:
        _inside.task = True
        try:
            # A helper leaves as soon as other callers need the CPUs; the caller runs the other ranges.
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
        errors = [_left(one) for one in others]  # before an error is raised, so that no helper still writes
        for error in filter(None, errors):
            raise error


def _left(one: concurrent.futures.Future[None]) -> BaseException | None:
    """Cancel a helper, or wait for its end and return its error."""
    if one.cancel():
        _leave()
        return None
    return one.exception()


def _leave() -> None:
    global _active
    with _LOCK:
        _active -= 1

"""How many threads kernels for CPUs may have: what the process, its environment and its callers allow."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
import warnings
from pathlib import Path
from typing import Any

_asked = threading.local()


def limit() -> int:
    """Return how many threads a call may have: one for each CPU of the process, or fewer where that is asked for.

    threadpoolctl asks for one thread and comes first; then `PARPRIMS_NUM_THREADS`, then `OMP_NUM_THREADS`.
    """
    most = _most()
    return min(getattr(_asked, "threads", None) or most, most)


def _most() -> int:
    """Return how many threads there may be where threadpoolctl asks for nothing."""
    cpus = _cpus()
    return max(1, min(_in_environment() or cpus, quota() or cpus, cpus))


def _cpus() -> int:
    """Return how many CPUs the process may run on now."""
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on, and for some what the user says they are
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@functools.cache
def _in_environment() -> int | None:
    for name in ("PARPRIMS_NUM_THREADS", "OMP_NUM_THREADS"):
        word = os.environ.get(name, "").partition(",")[0].strip()
        if word.isdecimal() and int(word) > 0:
            return int(word)
        if word and name == "PARPRIMS_NUM_THREADS":  # the other is for OpenMP to judge
            warnings.warn(f"{name} must be a positive integer, got {word!r}, and is left out", stacklevel=2)
    return None


@functools.cache
def quota(groups: str = "/proc/self/cgroup", folder: str = "/sys/fs/cgroup") -> int | None:
    """Return how many CPUs Linux's control groups leave the process, or None; containers are limited so.

    A part of a CPU counts as one. More threads would be stopped together when the time of all is spent.
    """
    found: list[float] = []
    with contextlib.suppress(OSError):
        for line in Path(groups).read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = Path(folder) / "cpu" if controllers else Path(folder)
            own = top / path.lstrip("/")
            found += [_share(one) for one in (own, *own.parents) if one.is_relative_to(top)]
    least = min(found, default=float("inf"))
    return None if least == float("inf") else max(1, -int(-least // 1))


def _share(group: Path) -> float:
    """Return how many CPUs one control group has, by the files of both versions; infinity where it is not limited."""
    with contextlib.suppress(OSError, ValueError):
        time, _, period = (group / "cpu.max").read_text().partition(" ")
        return int(time) / int(period)
    with contextlib.suppress(OSError, ValueError):
        time, period = ((group / f"cpu.cfs_{one}_us").read_text() for one in ("quota", "period"))
        return int(time) / int(period) if int(time) > 0 else float("inf")
    return float("inf")


def _register() -> None:
    """Have `threadpoolctl.threadpool_limits` limit the thread that calls it.

    threadpoolctl knows thread pools by shared libraries. Ours has none, and stands with one that is always loaded.
    """
    try:
        threadpoolctl: Any = importlib.import_module("threadpoolctl")
    except Exception:  # not installed, or broken: not for us to say
        return
    if not hasattr(threadpoolctl, "register"):
        return

    class Threads(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = internal_api = "parprims"
        filename_prefixes = ("_multiarray_umath",)

        def get_num_threads(self) -> int:
            return limit()

        def set_num_threads(self, num_threads: int) -> None:
            # What was in force before is set again at the end: then nothing is asked for any more.
            _asked.threads = num_threads if num_threads < _most() else None

        def get_version(self) -> None:
            return None

    threadpoolctl.register(Threads)


def _forget() -> None:
    _in_environment.cache_clear()


# At once and not when the first kernel runs: limits that are in force by then would not be known of.
_register()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

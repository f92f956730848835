"""The limit of threads of kernels for CPUs, from the process, its environment and its callers."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import threading
from pathlib import Path
from typing import Any

_asked = threading.local()


def limit() -> int:
    """Return the most threads of a call: one for each CPU of the process, or fewer if a limit is set.

    The limit of threadpoolctl for the calling thread comes first, then `PARPRIMS_NUM_THREADS`, then `OMP_NUM_THREADS`.
    """
    count = most()
    return min(getattr(_asked, "threads", None) or count, count)


def most() -> int:
    """Return the most threads of a call if threadpoolctl sets no limit."""
    cpus = _cpus()
    return max(1, min(_in_environment() or cpus, quota() or cpus, cpus))


def _cpus() -> int:
    """Return the number of CPUs that the process may run on now."""
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on; a user can set it
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
        if word and name == "PARPRIMS_NUM_THREADS":  # OpenMP judges the other
            raise ValueError(f"{name} must be a positive integer, got {word!r}")
    return None


@functools.cache
def quota(groups: str = "/proc/self/cgroup", folder: str = "/sys/fs/cgroup") -> int | None:
    """Return the number of CPUs that Linux's control groups leave to the process, or None; containers set them.

    A part of a CPU counts as one. With more threads the kernel would stop all of them when their time is spent.
    """
    shares: list[float] = []
    with contextlib.suppress(OSError):
        for line in Path(groups).read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            top = Path(folder) / "cpu" if controllers else Path(folder)
            own = top / path.lstrip("/")
            shares += [_share(group) for group in (own, *own.parents) if group.is_relative_to(top)]
    least = min(shares, default=float("inf"))
    return None if least == float("inf") else max(1, -int(-least // 1))


def _share(group: Path) -> float:
    """Return the CPUs of a control group, by the files of either version, or infinity if it has no limit."""
    with contextlib.suppress(OSError, ValueError):
        time, _, period = (group / "cpu.max").read_text().partition(" ")
        return int(time) / int(period)
    with contextlib.suppress(OSError, ValueError):
        time, period = ((group / f"cpu.cfs_{one}_us").read_text() for one in ("quota", "period"))
        return int(time) / int(period) if int(time) > 0 else float("inf")
    return float("inf")


def _register() -> None:
    """Let `threadpoolctl.threadpool_limits` limit the thread that calls it.

    threadpoolctl finds thread pools by their shared libraries. This pool has none, so it is registered with a library
    of NumPy that is always loaded.
    """
    try:
        threadpoolctl: Any = importlib.import_module("threadpoolctl")
    except Exception:  # not installed, or broken
        return
    if not hasattr(threadpoolctl, "register"):
        return

    class Threads(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = internal_api = "parprims"
        filename_prefixes = ("_multiarray_umath",)

        def get_num_threads(self) -> int:
            return limit()

        def set_num_threads(self, num_threads: int) -> None:
            # threadpoolctl restores the earlier limit at its end; the limit of the process means that none is set.
            _asked.threads = num_threads if num_threads < most() else None

        def get_version(self) -> None:
            return None

    threadpoolctl.register(Threads)


def _forget() -> None:
    _in_environment.cache_clear()


# At import, because threadpoolctl does not apply a limit in force to a library that is registered later.
_register()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

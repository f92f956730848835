"""Programs of JAX: functions that are compiled as a whole. A bounded number of programs is kept."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

Array = Any


def one_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of JAX arrays, compiled as a whole, and again when the program was let go.

    JAX keeps the programs of a function as long as that, and each takes memory maps: a few for everything that XLA
    compiles by itself, some 20 in most programs and 300 in the largest. A process may have 65 530 of them, and ends
    where it has no more. So the oldest programs are let go: there are never more than `MOST_PROGRAMS`, and no more than
    `FEWEST_PROGRAMS` where the process has over half of the maps that it may have.
    """
    import jax

    @functools.wraps(function)
    def traced(*arrays: Array) -> Any:
        _programs.pop(compiled, None)
        _programs[compiled] = None
        _let_go(len(_programs) - MOST_PROGRAMS)
        while len(_programs) > FEWEST_PROGRAMS and memory_maps() > _most_maps() // 2:
            _let_go(max(1, len(_programs) // 4))
        return function(*arrays)

    compiled: Any = jax.jit(traced)
    return compiled  # type: ignore[no-any-return]


def _let_go(count: int) -> None:
    """Let so many of the programs go, the oldest ones."""
    for one in list(_programs)[: max(0, count)]:
        one.clear_cache()
        del _programs[one]


def memory_maps() -> int:
    """Return how many memory maps the process has, 0 where the system does not say."""
    try:
        return pathlib.Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


@functools.cache
def _most_maps() -> int:
    """Return how many memory maps a process may have."""
    try:
        return int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 65530


MOST_PROGRAMS = 512
"""The programs of JAX that are kept, of all functions together."""

FEWEST_PROGRAMS = 32
"""The programs that are kept however many memory maps the process has, most of which are then not theirs."""

_programs: dict[Any, None] = {}
"""Functions that have a program, in the order in which these were made."""

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
    compiles by itself, some 10 in most programs and 200 in the largest. A process may have 65 530 of them, and ends
    where it has no more. So the oldest programs are let go: there are never more than `MOST_PROGRAMS`, and no more than
    `FEWEST_PROGRAMS` where the process has over half of the maps that it may have.

    On a CPU a program of few elements is compiled with `_OPTIONS`; inside of another one JAX allows none.
    """
    import jax

    @functools.wraps(function)
    def traced(*arrays: Array) -> Any:
        _programs.pop(run, None)
        _programs[run] = None
        _let_go(len(_programs) - MOST_PROGRAMS)
        while len(_programs) > FEWEST_PROGRAMS and memory_maps() > _most_maps() // 2:
            _let_go(max(1, len(_programs) // 4))
        return function(*arrays)

    inside: Any = jax.jit(traced)
    alone: Any = jax.jit(traced, compiler_options=_OPTIONS) if jax.default_backend() == "cpu" else inside
    run = _Program(inside, alone, jax.core.Tracer)
    return run


class _Program:
    """A function of JAX arrays in two programs: one for few elements, and one for many or to be part of others."""

    def __init__(self, inside: Any, alone: Any, tracer: type) -> None:
        self._inside, self._alone, self._tracer = inside, alone, tracer

    def __call__(self, *arrays: Array) -> Any:
        elements = 0
        for x in arrays:
            if isinstance(x, (self._tracer, tuple)):
                return self._inside(*arrays)
            elements += getattr(x, "size", 1)
        if elements > _MOST_ELEMENTS:
            return self._inside(*arrays)
        try:
            return self._alone(*arrays)
        except (RuntimeError, ValueError) as error:
            if not any(name in str(error) for name in _OPTIONS):
                raise
            if isinstance(error, RuntimeError):  # this release of XLA lacks the option that it names
                self._alone = self._inside
        return self._inside(*arrays)  # arrays with values, in a program that is traced

    def clear_cache(self) -> None:
        """Let the programs go."""
        self._inside.clear_cache()
        self._alone.clear_cache()


_OPTIONS = {"xla_cpu_parallel_codegen_split_count": 1, "xla_cpu_use_fusion_emitters": False}
"""Options of XLA for CPUs by which programs of many small steps compile in half the time and take a third of the maps.

Their steps are then compiled together. They run as fast for few elements; sorts of many take up to twice as long.
"""

_MOST_ELEMENTS = 2**13
"""Elements of all arrays up to which programs are compiled with these options."""


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

_programs: dict[_Program, None] = {}
"""Functions that have a program, in the order in which these were made."""

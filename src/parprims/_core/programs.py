"""Programs of JAX: functions that are compiled as a whole, in a bounded number."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable
from typing import Any

Array = Any


def one_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of JAX arrays, compiled as a whole, and compiled again after its program was removed.

    JAX keeps the programs of a function as long as the function. Each program takes memory maps, a few for each part
    that XLA compiles: about 10 in most programs, and 200 in the largest. A process may have 65 530 maps, and ends when
    it needs more. So the oldest programs are removed: at most `MOST_PROGRAMS` are kept, and at most `FEWEST_PROGRAMS`
    while the process has more than half of its maps.

    On a CPU, a program of few elements is compiled with `_OPTIONS`. JAX allows no options inside another program.
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
    """A function of JAX arrays as two programs: one for few elements, the other for many, and inside other programs."""

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
            if isinstance(error, RuntimeError):  # this release of XLA lacks an option
                self._alone = self._inside
        return self._inside(*arrays)  # inside a traced program JAX refuses options, even for arrays with values

    def clear_cache(self) -> None:
        """Remove the programs."""
        self._inside.clear_cache()
        self._alone.clear_cache()


_OPTIONS = {"xla_cpu_parallel_codegen_split_count": 1, "xla_cpu_use_fusion_emitters": False}
"""Options of XLA for CPUs. Programs of many small steps compile in half the time, and take a third of the maps.

XLA then compiles steps together. Programs of few elements run as fast; sorts of many elements take up to twice as long.
"""

_MOST_ELEMENTS = 2**13
"""The most elements of all arrays for which programs are compiled with these options."""


def _let_go(count: int) -> None:
    """Remove the ``count`` oldest programs."""
    for one in list(_programs)[: max(0, count)]:
        one.clear_cache()
        del _programs[one]


def memory_maps() -> int:
    """Return the number of memory maps of the process; 0 if the system does not report it."""
    try:
        return pathlib.Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


@functools.cache
def _most_maps() -> int:
    """Return the number of memory maps that a process may have."""
    try:
        return int(pathlib.Path("/proc/sys/vm/max_map_count").read_text())
    except (OSError, ValueError):
        return 65530


MOST_PROGRAMS = 512
"""The most programs of JAX that are kept, for all functions together."""

FEWEST_PROGRAMS = 32
"""The programs that are kept even if the process has many memory maps, most of which then belong to other code."""

_programs: dict[_Program, None] = {}
"""Functions that have a program, in the order in which their programs were made."""

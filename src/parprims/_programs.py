"""Programs of JAX: functions that are compiled as a whole, of which a bounded number is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Array = Any


def one_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of JAX arrays, compiled as a whole, and again when the program was let go.

    JAX keeps the programs of a function as long as that, and each takes up to 40 of the 65 530 memory maps that the
    system gives a process. So only so many are kept, those which were made last.
    """
    import jax

    @functools.wraps(function)
    def traced(*arrays: Array) -> Any:
        _programs.pop(compiled, None)
        _programs[compiled] = None
        while len(_programs) > MOST_PROGRAMS:
            next(iter(_programs)).clear_cache()
            del _programs[next(iter(_programs))]
        return function(*arrays)

    compiled: Any = jax.jit(traced)
    return compiled  # type: ignore[no-any-return]


MOST_PROGRAMS = 512
"""The programs of JAX that are kept, of all functions together."""

_programs: dict[Any, None] = {}
"""Functions that have a program, in the order in which these were made."""

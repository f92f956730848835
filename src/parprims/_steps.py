"""Loops over the steps of an algorithm, such as those of step doubling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from parprims._arrays import Namespace, is_jax

State = TypeVar("State")


def repeated(xp: Namespace, count: int, step: Callable[[Any, State], State], state: State) -> State:
    """Return the state after ``step(i, state)`` for i = 0, 1, ..., count - 1.

    The state is an array or a tuple of arrays whose shapes and dtypes no step changes. On JAX the loop is part of the
    program: its size does not grow with ``count``, and i is a traced integer. Elsewhere i is a Python integer.
    """
    if count > 1 and is_jax(xp):
        from jax import lax

        found: State = lax.fori_loop(0, count, step, state)
        return found
    for i in range(count):
        state = step(i, state)
    return state

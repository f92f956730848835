"""Plans of kernels that are observed, not carried out."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any


class Observed(Exception):
    """Carries a plan out of a call, with the arrays on which it was to be carried out."""

    def __init__(self, plan: Any, arrays: tuple[Any, ...]) -> None:
        self.plan, self.arrays = plan, arrays


_observing: contextvars.ContextVar[bool] = contextvars.ContextVar("observing", default=False)


@contextlib.contextmanager
def observing() -> Iterator[None]:
    """Prevent plans from being carried out inside the block: whatever is to do so raises `Observed`."""
    token = _observing.set(True)
    try:
        yield
    finally:
        _observing.reset(token)


def is_observing() -> bool:
    """Return whether this is inside a block of `observing`."""
    return _observing.get()


def observed(plan: Any, arrays: tuple[Any, ...]) -> None:
    """Raise `Observed` inside a block of `observing`."""
    if is_observing():
        raise Observed(plan, arrays)

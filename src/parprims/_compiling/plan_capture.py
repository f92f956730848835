"""Capture of the plans of kernels, which are then not executed."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any


class Observed(Exception):
    """Carries a plan and its arrays out of a call, instead of executing the plan."""

    def __init__(self, plan: Any, arrays: tuple[Any, ...]) -> None:
        self.plan, self.arrays = plan, arrays


_observing: contextvars.ContextVar[bool] = contextvars.ContextVar("observing", default=False)


@contextlib.contextmanager
def observing() -> Iterator[None]:
    """Prevent the execution of plans inside the block: it raises `Observed`."""
    token = _observing.set(True)
    try:
        yield
    finally:
        _observing.reset(token)


def is_observing() -> bool:
    """Return whether a block of `observing` is active."""
    return _observing.get()


def observed(plan: Any, arrays: tuple[Any, ...]) -> None:
    """Raise `Observed` inside a block of `observing`."""
    if is_observing():
        raise Observed(plan, arrays)

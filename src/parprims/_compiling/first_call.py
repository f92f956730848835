"""Rehearsals: a call of several steps runs through all of them first, so that their kernels compile at the same time.

A call that meets a kernel that is not compiled must wait for it before the next step. So before it first waits, the
call runs from its beginning as a rehearsal: kernels that are not compiled begin to compile, and zeros replace their
outputs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any


class _Now(threading.local):
    whole: Callable[[], Any] | None = None
    """The whole call of this thread, to be rehearsed; None outside a call."""
    rehearses = False


_now = _Now()


def rehearsed(run: Callable[..., Any], *arrays: Any) -> Any:
    """Call ``run``, and return its result.

    If it meets a kernel that is not compiled, it runs first with zeros for the outputs of kernels, so that all its
    kernels compile together. ``run`` must accept these zeros.
    """
    if _now.whole is not None:  # this is a step of another call
        return run(*arrays)
    _now.whole = lambda: run(*arrays)
    try:
        return run(*arrays)
    finally:
        _now.whole = None


def under_way() -> bool:
    """Return whether this thread is in a rehearsal."""
    return _now.rehearses


def rehearse() -> None:
    """Rehearse the call of this thread, at most once. Errors are ignored: the call itself raises them again."""
    whole_call = _now.whole
    if whole_call is None or under_way():
        return
    _now.whole, _now.rehearses = _nothing, True
    try:
        with contextlib.suppress(Exception):
            whole_call()
    finally:
        _now.rehearses = False


def _nothing() -> None:
    """Do nothing: replaces the call after its rehearsal."""

"""Rehearsals: a call of several steps goes through all of them first, so that their kernels compile at the same time.

A call waits for a kernel that is not compiled before it comes to the next step. So before it waits for the first time
it is gone through from its beginning in a rehearsal, in which kernels that are not compiled begin to be, and zeros
stand for what they return.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any


class _Now(threading.local):
    whole: Callable[[], Any] | None = None
    """The call of this thread, from its beginning."""
    rehearses = False


_now = _Now()


def rehearsed(run: Callable[..., Any], *arrays: Any) -> Any:
    """Call ``run``, and return its result.

    If it meets a kernel that is not compiled, it runs first with zeros for the outputs of kernels, so that all its
    kernels compile together. It must take these zeros.
    """
    if _now.whole is not None:  # this is a step of another call
        return run(*arrays)
    _now.whole = lambda: run(*arrays)
    try:
        return run(*arrays)
    finally:
        _now.whole = None


def under_way() -> bool:
    """Return whether this thread rehearses."""
    return _now.rehearses


def rehearse() -> None:
    """Rehearse the call of this thread, if it is to be and has not been; an error is left to the call itself."""
    whole = _now.whole
    if whole is None or under_way():
        return
    _now.whole, _now.rehearses = _nothing, True
    try:
        with contextlib.suppress(Exception):
            whole()
    finally:
        _now.rehearses = False


def _nothing() -> None:
    """Stand for a call that has been rehearsed."""

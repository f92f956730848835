"""The observers of calls: blocks of `explain`, and functions that list methods or kernels without a result.

A context variable holds them, so each thread and each task has its own.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parprims._dispatch.dispatch import Call


class CallEnded(Exception):
    """Ends a call before it computes; its argument holds the methods of the call."""


@dataclasses.dataclass(frozen=True)
class Observers:
    """The observers of a call.

    Parameters
    ----------
    calls : tuple of list
        The lists of all open blocks of `explain`.
    listing : bool
        Whether methods are only listed, and nothing is computed.
    named : bool
        Whether the list has the refusals of methods asked for by name, and not the reasons of ``auto``.
    tries : bool
        Whether functions of the caller's are tried on a few elements first.
    launching : bool
        Whether calls by a method other than kernel end.
    choosing : bool
        Whether calls end when their method is chosen.
    """

    calls: tuple[list[Call], ...] = ()
    listing: bool = False
    named: bool = False
    tries: bool = False
    launching: bool = False
    choosing: bool = False


NOBODY = Observers()
_NO_CHANGE = contextlib.nullcontext()
observers: contextvars.ContextVar[Observers] = contextvars.ContextVar("observers", default=NOBODY)


@contextlib.contextmanager
def observed_by(**changes: Any) -> Iterator[None]:
    """Change fields of the observers inside the block."""
    token = observers.set(dataclasses.replace(observers.get(), **changes))
    try:
        yield
    finally:
        observers.reset(token)


@contextlib.contextmanager
def launching() -> Iterator[None]:
    """End the block at the first call that is not computed by the method kernel."""
    with contextlib.suppress(CallEnded), observed_by(launching=True):
        yield


def explaining() -> bool:
    """Return whether a block of `explain` collects calls."""
    return bool(observers.get().calls)


def unwatched() -> contextlib.AbstractContextManager[None]:
    """Hide the calls inside the block from `explain` and `methods`, as parts of other calls or of derivatives."""
    return (
        _NO_CHANGE if observers.get() is NOBODY else observed_by(calls=(), listing=False, named=False, choosing=False)
    )


def listing() -> bool:
    """Return whether methods are only listed, and nothing is computed."""
    return observers.get().listing


def computing() -> contextlib.AbstractContextManager[None]:
    """Compute the calls inside the block while methods are listed, because a function of the caller's makes them."""
    return observed_by(listing=False)


def tell(repeated: Iterable[Call]) -> None:
    """Record copies of earlier entries in every open block of `explain`."""
    for calls in observers.get().calls:
        calls.extend([dataclasses.replace(call, refusals={**call.refusals}) for call in repeated])

"""Prepared calls, which later calls with equal signatures and options run at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from parprims._core.memo import Memo
from parprims._core.signature import signature
from parprims._dispatch.door import watched
from parprims._dispatch.watch import NOBODY, observers, tell

if TYPE_CHECKING:
    from parprims._dispatch.dispatch import Call


class Prepared:
    """A prepared call: its function, and its entry for `explain`."""

    __slots__ = ("call", "run")

    def __init__(self, run: Callable[..., Any], call: Call) -> None:
        self.run, self.call = run, call


prepared: Memo[Prepared] = Memo()
"""The prepared calls by their keys."""


def call_key(primitive: Any, x: Any, *options: Any, gradient: bool = False) -> Any:
    """Return the key of a call, or None.

    ``x`` is an array, or a tuple of all arrays of the call. Equal options of different types, such as 1 and True, have
    different keys. Functions among the options must be replaced by their `lasting_key`.
    """
    arrays = signature(x, gradient)
    if arrays is None:
        return None
    return primitive, arrays, options, kinds(options)


def kinds(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of options, followed by the types of the entries of those that are tuples."""
    types: tuple[Any, ...] = tuple(map(type, options))
    if tuple in types:
        for option in options:
            if type(option) is tuple:
                types += kinds(option)
    return types


def recalled(key: Any) -> Callable[..., Any] | None:
    """Return the prepared call of a key, as a function of the arrays, or None."""
    known = prepared.get(key)
    if known is None:
        return watched(None)
    present = observers.get()
    if present is not NOBODY:
        if present.listing or present.launching or present.choosing:
            return None
        tell((known.call,))
    return watched(known.run)


def completed(run: Callable[..., Any], complete: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """Return ``run`` on the arrays that ``complete`` makes of the arguments."""
    return lambda *arguments: run(*complete(*arguments))

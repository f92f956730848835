"""The numbers in the code of a caller's function, as distinct from numbers that the function reads."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any


def leaves(constants: tuple[Any, ...]) -> Iterator[Any]:
    """Yield the constants of a function, and the constants in its tuples."""
    for constant in constants:
        yield from leaves(constant) if type(constant) is tuple else (constant,)


def with_own_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function whose code has objects of its own for its numbers.

    Python's compiler makes a single object for all equal numbers of a module.
    """
    if type(function) is functools.partial:
        return functools.partial(with_own_numbers(function.func), *function.args, **function.keywords)
    if type(function) is not types.FunctionType:
        return function
    code = _own_constants(function.__code__)
    parts = function.__globals__, function.__name__, function.__defaults__, function.__closure__
    copy = types.FunctionType(code, *parts)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _own_constants(x: Any) -> Any:
    kind = type(x)
    if kind in (int, float, complex):
        opposite = -x
        return -opposite  # an equal number, but a new object
    if kind is tuple:
        return tuple([_own_constants(constant) for constant in x])
    return x.replace(co_consts=_own_constants(x.co_consts)) if kind is types.CodeType else x

"""Messages about functions of callers that fail, or that return something else than arrays of their library."""

from __future__ import annotations

import re
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import Array, library_title
from parprims._core.elements import ITS_NAMESPACE, not_array

_BRANCHES = re.compile("truth value of an (array|empty array)|Boolean value of Tensor|bool is only allowed on arrays")
"""Words of the error that an array library raises for a branch on an array."""

_AS_NUMBER = re.compile("Python scalar|converted to Scalar|is only allowed on arrays")
"""Words of the error that an array library raises if an array of several elements is used as a number."""

_OF_ANOTHER = re.compile(
    "must be Tensor, not|ndarray or scalar arguments, got|Cannot interpret value of type|not a valid JAX array type|"
    r"Implicit conversion to a NumPy array|[Cc]an't call numpy\(\)|[Cc]an't convert .* tensor to numpy"
)
"""Words of the error that an array library raises for an array of another library."""

_ARGUMENTS = re.compile(r"positional argument|required (positional|keyword)|takes no arguments")
"""Python's messages for a call with a wrong number of arguments."""


class _ExplainedError(TypeError):
    """A TypeError that explains the failure of a caller's function. Enclosing functions do not explain it again."""


_ExplainedError.__name__ = _ExplainedError.__qualname__ = "TypeError"  # callers see a TypeError
_ExplainedError.__module__ = "builtins"


def _known_reason(error: Exception, takes: str) -> str | None:
    """Return a description of the failure of a function, or None for an unknown error."""
    words, kind = str(error), type(error).__name__
    if _BRANCHES.search(words) or kind == "TracerBoolConversionError":
        return "branches on the value of an array: use where of the array library"
    if _AS_NUMBER.search(words):  # as float, int, math.exp and item do
        return "makes a number of an array: use functions of the array library"
    if kind == "TracerArrayConversionError":
        return f"gives arrays of JAX to NumPy: use functions of jax.numpy, or of {ITS_NAMESPACE}"
    if isinstance(error, TypeError) and _OF_ANOTHER.search(words):
        return f"gives arrays to functions of another library: use those of {ITS_NAMESPACE} ({words})"
    if isinstance(error, TypeError) and _ARGUMENTS.search(words) and was_not_entered(error):
        return f"must take {takes}: {words}"
    return None


def explain_failure(what: str, error: Exception, takes: str) -> None:
    """Raise TypeError with the reason if the failure of a caller's function is known; else add a note to the error.

    ``what`` is the name of the function in messages, ``takes`` its arguments.
    """
    reason = None if isinstance(error, _ExplainedError) else _known_reason(error, takes)
    if reason is not None:
        raise _ExplainedError(f"{what} {reason}") from error
    note = f"Raised by {what}."
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def was_not_entered(error: BaseException) -> bool:
    """Return whether an error comes from the call of a function itself, not from its body."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return where is not None and str(where.tb_frame.f_globals.get("__name__", "")).startswith("parprims.")


def check_result(what: str, got: Any, like: Array, component: str | None = None) -> None:
    """Raise TypeError unless the result of a caller's function is an array of the expected library."""
    place = "" if component is None else f" for component {component}"
    try:
        library = array_api_compat.array_namespace(got)
    except TypeError:
        # NumPy's operations turn 0-d arrays into scalars.
        if isinstance(got, np.generic) and isinstance(like, (np.ndarray, np.generic)):
            return
        raise TypeError(f"{what} returned {not_array(got, place)}") from None
    expected = array_api_compat.array_namespace(like) if not isinstance(like, np.generic) else library
    if library is not expected:
        raise TypeError(
            f"{what} returned an array of {library_title(library)}{place}, given arrays of {library_title(expected)}: "
            f"use functions of {library_title(expected)}, or of {ITS_NAMESPACE}"
        )

"""What is asked of a call: its result, its error, its inputs."""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import parprims
from tests.fuzz.values import Call, described, same_memory

ERRORS = (ValueError, TypeError, IndexError, parprims.MethodRefused)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the arrays of an argument or a result."""
    if isinstance(value, (tuple, list)):
        for one in value:
            yield from leaves(one)
    elif not isinstance(value, (type, np.generic)):
        with contextlib.suppress(Exception):  # a nested tensor has no shape
            if hasattr(value, "shape") and hasattr(value, "dtype"):
                yield value


def snapshot(backend: Any, x: Any) -> bytes:
    """Return the bytes of an array, with those between its elements where NumPy shows them."""
    if isinstance(x, np.ndarray):
        while isinstance(x.base, np.ndarray):
            x = x.base
        if x.dtype.hasobject:
            return repr(np.asarray(x).tolist()).encode()
        return np.asarray(x).tobytes()
    try:
        return backend.to_numpy(x).tobytes()
    except Exception:  # a stranger's array
        return b""


def outcome(function: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, BaseException | None]:
    """Return what a function returns and what it raises."""
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        # PyTorch's own, of its first use of something that is still young.
        warnings.filterwarnings("ignore", message=".*(nested tensors|Sparse CSR|beta state|prototype stage).*")
        try:
            return function(*args, **options), None
        except Exception as error:
            return None, error


def violations(backend: Any, call: Call) -> Iterator[tuple[str, str]]:
    """Make a call; yield the kind of each violation, and what happened."""
    function = getattr(parprims, call.function)
    arrays = [x for value in (*call.args, *call.options.values()) for x in leaves(value)]
    before = [snapshot(backend, x) for x in arrays]
    listed = call.function != "check_associative"
    promised, listing_error = (
        outcome(parprims.methods, function, *call.args, **call.options) if listed else (None, None)
    )
    result, error = outcome(function, *call.args, **call.options)
    for x, old in zip(arrays, before, strict=True):
        if snapshot(backend, x) != old:
            yield "an input changed", described(x)
    yield from judged_error(call, error)
    if error is None:
        if call.wrong and not call.may_refuse:
            yield "a hostile call is served", str(sorted(call.wrong))
        elif not call.wrong:
            problem = call.check(result)
            if problem:
                yield "wrong result", problem
        if any(same_memory(x, y) for x in arrays for y in leaves(result)):
            yield "a result shares memory with an input", ""
    method = str(call.options.get("method", "auto"))
    if isinstance(error, Warning) or not listed:
        return
    if listing_error is not None:
        if error is None:
            yield "methods() raises what the call does not", f"{type(listing_error).__name__}: {listing_error}"
        elif not isinstance(error, parprims.MethodRefused) and described_error(error) != described_error(listing_error):
            yield (
                "methods() raises another error than the call",
                f"{type(listing_error).__name__}: {listing_error}; {type(error).__name__}: {error}",
            )
    elif error is not None and promised is not None:
        serves = (
            any(reason is None for reason in promised.values())
            if method in ("auto", "canonical")
            else promised.get(method) is None
        )
        if serves:
            yield "methods() promised what raised", f"{type(error).__name__}: {error}"
    elif error is None and method in ("auto", "canonical") and promised is not None and None not in promised.values():
        yield "methods() promised nothing, and auto served", ""


def described_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def judged_error(call: Call, error: BaseException | None) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with an error."""
    if error is None:
        return
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, Warning):
        yield "a warning", words
    elif not isinstance(error, ERRORS):
        yield "an error of another kind", words
    elif isinstance(error, parprims.MethodRefused):
        # Where every method has a reason of its own, that of one of them may be what is wrong with the argument.
        if call.wrong and call.options.get("method", "auto") == "auto" and not named(call, error):
            yield "refused instead of named", words
    elif not call.wrong:
        if not call.may_refuse:
            yield "a valid call is refused", words
    elif not named(call, error):
        yield "an error names no argument", words


def named(call: Call, error: BaseException) -> bool:
    """Return whether an error names one of the arguments that are wrong."""
    return any(re.search(rf"(?<!\w){name}(?!\w)", str(error)) for name in call.wrong)

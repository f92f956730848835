"""Elements of several arrays: tuples, NamedTuples and dicts of arrays, nested as one likes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

ITS_NAMESPACE = "array_api_compat.array_namespace(x)"
"""In messages: the namespace whose functions an operator for several libraries should call."""

Structure = Any
"""How an element is made of arrays: None for an array, else (type, keys of a dict or None, structures of the parts)."""


def is_structured(x: Any) -> bool:
    """Return whether an element is more than an array or a plain tuple of arrays."""
    if not isinstance(x, tuple):
        return type(x) is dict
    for one in x:  # before every call: a generator would take twice as long
        if isinstance(one, tuple) or type(one) is dict:
            return True
    return type(x) is not tuple and hasattr(type(x), "_fields")


def flattened(x: Any, name: str = "x") -> tuple[tuple[Any, ...], Structure]:
    """Return the parts of an element that are neither tuple nor dict, in order, and its structure.

    The parts of a dict come in the order of its keys.
    """
    if type(x) is dict:
        try:
            keys = tuple(sorted(x))
        except TypeError:
            raise TypeError(f"{name} must have keys that can be sorted, got {', '.join(map(repr, x))}") from None
        parts: Iterable[Any] = [x[key] for key in keys]
        kind: type = dict
    elif isinstance(x, tuple):
        kind, keys, parts = type(x) if hasattr(type(x), "_fields") else tuple, None, x
    else:
        return (x,), None
    found = [flattened(part, name) for part in parts]
    return tuple(one for leaves, _ in found for one in leaves), (kind, keys, tuple(structure for _, structure in found))


def rebuilt(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Return the element of a structure whose parts are given in order."""
    return _rebuilt(structure, iter(leaves))


def _rebuilt(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind, keys, parts = structure
    found = [_rebuilt(part, leaves) for part in parts]
    if kind is dict:
        return dict(zip(keys, found, strict=True))
    return tuple(found) if kind is tuple else kind(*found)


def not_array(got: Any, place: str = "") -> str:
    """Return how messages call what a function returned, at a place, in place of an array, with the remedy if known."""
    hint = ""
    if got is None:
        hint = " (it has no return statement, or an empty one)"
    elif isinstance(got, list):
        hint = f": return a tuple of {len(got)} arrays" if len(got) > 1 else ": return the array itself"
    return f"{type(got).__name__}{place}, not an array{hint}"


def shown(structure: Structure) -> str:
    """Return a structure as messages show it: * for an array."""
    if structure is None:
        return "*"
    kind, keys, parts = structure
    inner = [shown(part) for part in parts]
    if kind is dict:
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(keys, inner, strict=True)) + "}"
    if kind is tuple:
        return f"({', '.join(inner)}{',' if len(inner) == 1 else ''})"
    return f"{kind.__name__}({', '.join(f'{key}={part}' for key, part in zip(kind._fields, inner, strict=True))})"


def flat(name: str, value: Any, structure: Structure = None) -> Any:
    """Return an argument that has an entry for each part of an element as a plain tuple; others as they are.

    Raises TypeError, naming the argument, if it has a structure of its own that is not the element's.
    """
    if value is None or not is_structured(value):
        return value
    leaves, found = flattened(value, name)
    if structure is not None and found != structure:
        raise TypeError(f"{name} must be {shown(structure)} or a tuple, got {shown(found)}")
    return leaves


def only_array(x: Any) -> Any:
    """Return the argument x of a function whose elements are no tuples; raise TypeError where it is one."""
    if isinstance(x, tuple):
        raise TypeError("x must be an array, got tuple")
    return x

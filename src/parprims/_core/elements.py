"""Elements of several arrays: nested tuples, NamedTuples and dicts of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

ITS_NAMESPACE = "array_api_compat.array_namespace(x)"
"""The namespace that messages recommend to operators for several libraries."""

Structure = Any
"""The structure of an element: None for an array, else (type, keys of a dict or None, structures of the parts)."""


def is_structured(x: Any) -> bool:
    """Return whether an element is more than an array or a plain tuple of arrays."""
    if not isinstance(x, tuple):
        return type(x) is dict
    for one in x:  # no generator, which would take twice as long in every call
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
    pairs = [flattened(part, name) for part in parts]
    leaves = tuple(leaf for leaves_of_part, _ in pairs for leaf in leaves_of_part)
    return leaves, (kind, keys, tuple(structure for _, structure in pairs))


def rebuilt(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Return the element of a structure whose parts are given in order."""
    return _rebuilt(structure, iter(leaves))


def _rebuilt(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind, keys, parts = structure
    rebuilt_parts = [_rebuilt(part, leaves) for part in parts]
    if kind is dict:
        return dict(zip(keys, rebuilt_parts, strict=True))
    return tuple(rebuilt_parts) if kind is tuple else kind(*rebuilt_parts)


def not_array(got: Any, place: str = "") -> str:
    """Return the words of a message for a result that is no array, at a place, with the remedy if known."""
    hint = ""
    if got is None:
        hint = " (it has no return statement, or an empty one)"
    elif isinstance(got, list):
        hint = f": return a tuple of {len(got)} arrays" if len(got) > 1 else ": return the array itself"
    return f"{type(got).__name__}{place}, not an array{hint}"


def as_text(structure: Structure) -> str:
    """Return a structure as text, with * for an array."""
    if structure is None:
        return "*"
    kind, keys, parts = structure
    part_texts = [as_text(part) for part in parts]
    if kind is dict:
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(keys, part_texts, strict=True)) + "}"
    if kind is tuple:
        return f"({', '.join(part_texts)}{',' if len(part_texts) == 1 else ''})"
    return f"{kind.__name__}({', '.join(f'{key}={part}' for key, part in zip(kind._fields, part_texts, strict=True))})"


def flat(name: str, value: Any, structure: Structure = None) -> Any:
    """Return an argument as a plain tuple if it has an entry for each part of an element, else unchanged.

    Raises TypeError, which names the argument, if its structure is not that of the element.
    """
    if value is None or not is_structured(value):
        return value
    leaves, given_structure = flattened(value, name)
    if structure is not None and given_structure != structure:
        raise TypeError(f"{name} must be {as_text(structure)} or a tuple, got {as_text(given_structure)}")
    return leaves


def only_array(x: Any) -> Any:
    """Return x; raise TypeError if it is a tuple or a dict, for functions of a single array."""
    if isinstance(x, tuple):
        raise TypeError("x must be an array, got tuple")
    return x

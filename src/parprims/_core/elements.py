"""Elements of several arrays, as trees. Nodes are tuples, NamedTuples, lists, dicts and objects of registered classes.

A class is registered with `jax.tree_util`, or with `torch.utils._pytree`, as a dataclass may be. None inside a tree is
a node without arrays. All other objects are leaves.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

ITS_NAMESPACE = "array_api_compat.array_namespace(x)"
"""The namespace that messages recommend to operators for several libraries."""

Structure = Any
"""The structure of an element: None for a leaf, else (type, keys, structures of the parts).

The type is None for the node None. ``keys`` are the keys of a dict, or the data that a registered class keeps besides
its parts, or None.
"""


def is_structured(x: Any) -> bool:
    """Return whether an element is more than an array or a plain tuple of arrays."""
    if not isinstance(x, tuple):
        return type(x) is dict
    for one in x:  # no generator, which would take twice as long in every call
        if isinstance(one, tuple) or type(one) is dict:
            return True
    return type(x) is not tuple and hasattr(type(x), "_fields")


def is_tree(x: Any) -> bool:
    """Return whether an argument is a tree of arrays, more than an array or a plain tuple of arrays.

    A list without arrays is no tree: it may stand for an array.
    """
    if isinstance(x, tuple):
        return is_structured(x) or any(_opened(one) is not None for one in x if not hasattr(one, "dtype"))
    if type(x) is list:
        return any(hasattr(leaf, "dtype") for leaf in flattened(x)[0])
    return not hasattr(x, "dtype") and x is not None and _opened(x) is not None


def flattened(x: Any, name: str = "x") -> tuple[tuple[Any, ...], Structure]:
    """Return the leaves of an element in order, and its structure.

    The parts of a dict come in the order of its keys. An element that is None as a whole is a leaf.
    """
    node = None if x is None else _opened(x, name)
    if node is None:
        return (x,), None
    kind, keys, parts = node
    pairs = [((), _NOTHING) if part is None else flattened(part, name) for part in parts]
    leaves = tuple(leaf for leaves_of_part, _ in pairs for leaf in leaves_of_part)
    return leaves, (kind, keys, tuple(structure for _, structure in pairs))


_NOTHING = (None, None, ())
"""The structure of None inside a tree."""


def _opened(x: Any, name: str = "x") -> tuple[Any, Any, Iterable[Any]] | None:
    """Return the type, the keys and the parts of a node, or None for a leaf."""
    kind = type(x)
    if kind is dict:
        try:
            keys = tuple(sorted(x))
        except TypeError:
            raise TypeError(f"{name} must have keys that can be sorted, got {', '.join(map(repr, x))}") from None
        return dict, keys, [x[key] for key in keys]
    if isinstance(x, tuple):
        return (kind if hasattr(kind, "_fields") else tuple), None, x
    if kind is list:
        return list, None, x
    if x is None:
        return _NOTHING
    return None if hasattr(x, "dtype") or kind in _NUMBERS else _registered(x)


_NUMBERS = (int, float, complex, bool, str)


def _registered(x: Any) -> tuple[Any, Any, Iterable[Any]] | None:
    """Return the type, the data and the parts of an object of a registered class, or None for other objects."""
    jax: Any = sys.modules.get("jax")
    if jax is not None and hasattr(jax, "tree_util"):
        found = jax.tree_util.default_registry.flatten_one_level(x)
        if found is not None:
            return type(x), ("jax", found[1]), found[0]
    torch: Any = sys.modules.get("torch.utils._pytree")
    node = None if torch is None else torch.SUPPORTED_NODES.get(type(x))
    if node is None:
        return None
    parts, context = node.flatten_fn(x)
    return type(x), ("torch", context), parts


def _of_registered(kind: type, keys: tuple[str, Any], parts: list[Any]) -> Any:
    """Return the object of a registered class with these data and parts."""
    library, data = keys
    if library == "torch":
        return sys.modules["torch.utils._pytree"].SUPPORTED_NODES[kind].unflatten_fn(parts, data)
    tree_util: Any = sys.modules["jax.tree_util"]
    leaves = [tree_util.tree_structure(0)] * len(parts)
    node = tree_util.PyTreeDef.from_node_data_and_children(tree_util.default_registry, (kind, data), leaves)
    return node.unflatten(parts)


def rebuilt(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Return the element of a structure with the given leaves, in order."""
    return _rebuilt(structure, iter(leaves))


def _rebuilt(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure is None:
        return next(leaves)
    kind, keys, parts = structure
    rebuilt_parts = [_rebuilt(part, leaves) for part in parts]
    if kind is dict:
        return dict(zip(keys, rebuilt_parts, strict=True))
    if kind is tuple:
        return tuple(rebuilt_parts)
    if kind is list or kind is None:
        return rebuilt_parts if kind is list else None
    return kind(*rebuilt_parts) if keys is None else _of_registered(kind, keys, rebuilt_parts)


def leaf_count(structure: Structure) -> int:
    """Return the number of leaves of a structure."""
    return 1 if structure is None else sum([leaf_count(part) for part in structure[2]])


def leaf_names(structure: Structure, name: str = "x") -> tuple[str, ...]:
    """Return the names of the leaves in messages, such as ``x['mean'][0]``."""
    if structure is None:
        return (name,)
    kind, keys, parts = structure
    places: Iterable[str] = [f"[{index}]" for index in range(len(parts))]
    if kind is dict:
        places = [f"[{key!r}]" for key in keys]
    elif hasattr(kind, "_fields"):
        places = [f".{field}" for field in kind._fields]
    elif keys is not None and len(names := [*getattr(kind, "__dataclass_fields__", ())]) == len(parts):
        places = [f".{field}" for field in names]
    return tuple(
        [leaf for place, part in zip(places, parts, strict=True) for leaf in leaf_names(part, f"{name}{place}")]
    )


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
    if kind is None:
        return "None"
    part_texts = [as_text(part) for part in parts]
    if kind is dict:
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(keys, part_texts, strict=True)) + "}"
    if kind is tuple:
        return f"({', '.join(part_texts)}{',' if len(part_texts) == 1 else ''})"
    if kind is list:
        return f"[{', '.join(part_texts)}]"
    if keys is not None:
        return f"{kind.__name__}({', '.join(part_texts)})"
    return f"{kind.__name__}({', '.join(f'{key}={part}' for key, part in zip(kind._fields, part_texts, strict=True))})"


def flat(name: str, value: Any, structure: Structure = None) -> Any:
    """Return an argument as a plain tuple if it has an entry for each part of an element, else unchanged.

    Raises TypeError, which names the argument, if it has another structure than the element.
    """
    if value is None or not (is_structured(value) or (structure is not None and _opened(value, name) is not None)):
        return value
    leaves, given_structure = flattened(value, name)
    if given_structure != structure and not is_structured(value):  # a plain tuple has an entry for each leaf
        return value
    if structure is not None and given_structure != structure:
        raise TypeError(f"{name} must be {as_text(structure)} or a tuple, got {as_text(given_structure)}")
    return leaves


def only_array(x: Any) -> Any:
    """Return x; raise TypeError if it is a tuple or a dict, for functions of a single array."""
    if isinstance(x, tuple):
        raise TypeError("x must be an array, got tuple")
    return x

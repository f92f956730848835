"""Options of other types than Python's own, made plain: what NumPy and SciPy take is taken, and calls have keys.

Public functions ask here where they do not remember a call, so that one that they remember waits for nothing.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import STATIC, Array, Namespace, device, is_jax, mode, shown

_NUMBERS = ("axis", "k", "size", "num_segments", "bins")
"""Options that are a number, or a number among others."""
_SEVERAL = ("q", "kth", "range", "l_and_u", "tile")
"""Options that are a number or several."""
NUMBERS_OR_SEVERAL = frozenset((*_NUMBERS, *_SEVERAL))
"""All of these options."""
_PLAIN = frozenset({int, float, complex, bool, str, type(None)})


def made_plain(several: tuple[str, ...] = (), /, **options: Any) -> dict[str, Any] | None:
    """Return options of `_NUMBERS` and `_SEVERAL` by name with Python's own numbers and tuples, None if they have them.

    ``several`` are those of `_NUMBERS` that are a number or several in this call.

    A list, a range or an array of one dimension is a tuple where several numbers may be, and an array of no dimension a
    number. All else stays as it is, for the checks to refuse. Raises TypeError, naming the option, for one without a
    value in a program of JAX.
    """
    changed = None
    for name, value in options.items():
        made = _plain(name, value, several=name in _SEVERAL or name in several)
        if made is not value:
            changed = changed or dict(options)
            changed[name] = made
    return changed


def _plain(name: str, value: Any, several: bool) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic):
        return _number(value)
    if type(value) is tuple or (several and isinstance(value, list | range)):
        parts = [_plain(name, one, several=False) for one in value]
        return value if type(value) is tuple and all(map(operator.is_, parts, value)) else tuple(parts)
    if not is_array(value):
        indexes = hasattr(type(value), "__index__") and not type(value).__module__.startswith("torch")
        return operator.index(value) if indexes else value
    if value.ndim > (1 if several else 0):
        return value
    jax: Any = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} must have a value when a program is made, got {shown(value)}{STATIC}")
    found = _listed(value)
    return tuple(found) if isinstance(found, list) else found


def _number(value: np.generic) -> Any:
    if isinstance(value, np.timedelta64) or not isinstance(value, np.number | np.bool_ | np.str_):
        return value
    found = value.item()
    if isinstance(found, np.longdouble | np.clongdouble):
        return float(found) if isinstance(found, np.longdouble) else complex(found)
    return found


def check_entries(name: str, given: tuple[Any, ...], count: int) -> None:
    """Raise unless an option, given as a tuple or put into one, has an entry for each of so many components."""
    if count > 1 and len(given) == 1 and isinstance(given[0], list):
        raise TypeError(f"{name} must be a tuple of {count} entries, one per component, got {shown(given[0])}")
    if len(given) != count:
        raise ValueError(f"{name} must have {count} entries, one per component, got {len(given)}")


def integer_of(name: str, value: Any, low: int, high: int) -> int:
    """Return an integer of a range; raise, naming the argument, for anything else."""
    try:
        number = operator.index(value) if type(value) is not bool else None
    except TypeError:
        number = None
    if number is None or (hasattr(value, "shape") and not isinstance(value, np.generic)):
        raise TypeError(f"{name} must be an integer, got {shown(value)}")
    if not low <= number <= high:
        raise ValueError(f"{name} must be from {low} to {high}, got {number}")
    return number


def is_array(value: Any) -> bool:
    """Return whether a value is an array, not a number of NumPy. Its class is asked: a nested tensor's shape raises."""
    kind = type(value)
    return hasattr(kind, "shape") and hasattr(kind, "dtype") and not isinstance(value, np.generic)


def _listed(x: Array) -> Any:
    """Return the values of an array as numbers of Python in lists, or the array where it gives none."""
    try:
        return x.tolist() if hasattr(x, "tolist") else np.asarray(x).tolist()
    except (RuntimeError, TypeError, ValueError):
        return x


def listed_as_array(name: str, values: Sequence[Any], xp: Namespace, like: Array) -> Array:
    """Return numbers of a list, a tuple or a range as NumPy would, as an array beside another one of the library."""
    numbers = [_plain(name, one, several=False) for one in values]
    kinds = {type(one) for one in numbers}
    if not kinds <= {int, float}:
        raise TypeError(f"{name} must hold integers or floats only, got {shown(values)}")
    bits = 32 if is_jax(xp) and not mode(xp) else 64
    if float in kinds:
        return xp.asarray(numbers, dtype=getattr(xp, f"float{bits}"), device=device(like))
    if any(not -(2 ** (bits - 1)) <= one < 2 ** (bits - 1) for one in numbers):
        raise ValueError(f"{name} must be in the range of int{bits}, got {shown(values)}")
    return xp.asarray(numbers, dtype=getattr(xp, f"int{bits}"), device=device(like))

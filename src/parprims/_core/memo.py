"""Bounded dictionaries that live from call to call."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, Generic, TypeVar

Found = TypeVar("Found")


class Memo(Generic[Found]):
    """A dictionary with at most 4096 keys."""

    _all: ClassVar[list[Memo[Any]]] = []

    def __init__(self) -> None:
        self._found: dict[Any, Found] = {}
        self._all.append(self)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Any) -> Found | None:
        """Return the value of a key; None if there is none, or if the key has an unhashable part."""
        try:
            return self._found.get(key)
        except TypeError:
            return None

    def keep(self, key: Any, value: Found) -> Found:
        """Keep a value, unless its key has an unhashable part, and return it."""
        if len(self._found) >= 4096:
            self._found.clear()
        with contextlib.suppress(TypeError):
            self._found[key] = value
        return value

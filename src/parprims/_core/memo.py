"""What is remembered from call to call: bounded dictionaries, all of which can be found."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar, Generic, TypeVar

Found = TypeVar("Found")


class Memo(Generic[Found]):
    """Keeps what was found under keys, at most 4096 of them."""

    _all: ClassVar[list[Memo[Any]]] = []

    def __init__(self) -> None:
        self._found: dict[Any, Found] = {}
        self._all.append(self)

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: Any) -> Found | None:
        """Return what was kept for a key, or None; also for one that holds an unhashable argument."""
        try:
            return self._found.get(key)
        except TypeError:
            return None

    def keep(self, key: Any, found: Found) -> Found:
        """Keep what was found, unless its key holds an unhashable argument, and return it."""
        if len(self._found) >= 4096:
            self._found.clear()
        with contextlib.suppress(TypeError):
            self._found[key] = found
        return found

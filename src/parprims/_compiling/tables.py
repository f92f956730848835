"""Tables in data files. Each file is read once, when its first entry is needed.

The table of the module ``scan/cpu.py`` is the file ``scan/data/cpu.json``. It has the unit of its numbers and its
entries by key. Entries are dataclasses, and the file must have the fields and types of their annotations.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import typing
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

Key = TypeVar("Key", int, str)
Entry = TypeVar("Entry")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """An entry whose numbers were chosen by measurements.

    Parameters
    ----------
    record : str
        The results file of the measurements.
    device : str
        The processor or GPU that was measured.
    """

    record: str
    device: str


class Table(MutableMapping[Key, Entry], Generic[Key, Entry]):
    """The table of a module, by keys of one type. Entries that are set remain until the process ends.

    Parameters
    ----------
    key, entry : type
        The types of keys and of entries.
    module : str
        The name of the module, which is also the name of the file.
    """

    def __init__(self, key: type[Key], entry: type[Entry], module: str) -> None:
        self._key: type[Key] = key
        self._entry = entry
        _, *rooms, name = module.split(".")
        self.file = "/".join((*rooms, "data", f"{name}.json"))

    @functools.cached_property
    def _entries(self) -> dict[Key, Entry]:
        import json  # imported late, so that importing the library takes no longer

        found = json.loads(read(self.file))["entries"]
        return {self._key(key): typed(self._entry, one) for key, one in found.items()}

    def __getitem__(self, key: Key) -> Entry:
        return self._entries[key]

    def __setitem__(self, key: Key, entry: Entry) -> None:
        self._entries[key] = entry

    def __delitem__(self, key: Key) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def read(file: str) -> bytes:
    """Return a file of the package, read by the loader of its modules, which also reads archives.

    `importlib.resources` does this too, but takes 2 ms at its first use.
    """
    content: bytes = __spec__.loader.get_data(str(_FOLDER / file))  # type: ignore[union-attr]
    return content


_FOLDER = pathlib.Path(__file__).parents[1]


def typed(kind: Any, value: Any) -> Any:
    """Return a JSON value as the type of an annotation; raise TypeError if it has another type."""
    if type(value) is kind:
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list):
        if arguments[-1] is Ellipsis:
            arguments = arguments[:1] * len(value)
        return tuple([typed(*one) for one in zip(arguments, value, strict=True)])
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {arguments[0](key): typed(arguments[1], one) for key, one in value.items()}
    if isinstance(value, dict) and isinstance(kind, type):  # a dataclass, or a tuple with names
        hints = _hints(kind)
        return kind(**{name: typed(hints[name], one) if name in hints else one for name, one in value.items()})
    raise TypeError(f"{value!r} is not of the type {kind}")


_hints = functools.cache(typing.get_type_hints)

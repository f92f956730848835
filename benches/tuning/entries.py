"""The text of the entries of measured tables, as it stands in the data files of the library."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any


def text(value: Any, indent: int = 0) -> str:
    """Return a value as JSON, one row a line: a list without names in it, or an object of single values."""
    line = json.dumps(value)
    if not isinstance(value, (list, dict)) or (isinstance(value, list) and "{" not in line):
        return line
    parts = value.values() if isinstance(value, dict) else value
    if not any(isinstance(one, (list, dict)) for one in parts):
        return line
    names = [f"{json.dumps(one)}: " for one in value] if isinstance(value, dict) else [""] * len(value)
    lines = [f"{' ' * (indent + 2)}{name}{text(one, indent + 2)}" for name, one in zip(names, parts, strict=True)]
    first, last = line[0], line[-1]
    return "\n".join((first, ",\n".join(lines), " " * indent + last))


def plain(value: Any) -> Any:
    """Return an entry, or what it holds, as the types of JSON: fields by their names."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (tuple, list)):
        return [*map(plain, value)]
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    return value


def entry_text(key: int | str, entry: Any) -> str:
    """Return an entry as it stands in the data file of its table."""
    return f'    "{key}": {text(plain(entry), 4)}'


def file_text(unit: str, table: Mapping[Any, Any]) -> str:
    """Return the data file of a table."""
    return text({"unit": unit, "entries": plain(table)}) + "\n"

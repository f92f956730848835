"""What surrounds the work of a call: the first call, small calls, programs of JAX."""

from __future__ import annotations

import argparse
from collections.abc import Collection


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a command of this room, with the names of its rows."""
    made = argparse.ArgumentParser(prog=f"python -m benches.overhead.{name}", description=description)
    made.add_argument("names", nargs="*", help="only these; default: all")
    return made


def parsed(made: argparse.ArgumentParser, arguments: list[str] | None, rows: Collection[str]) -> argparse.Namespace:
    """Return the options; a name that no row has ends the command with an error that lists the rows."""
    options = made.parse_args(arguments)
    for name in options.names:
        if name not in rows:
            made.error(f"there is no row {name!r}: rows are {', '.join(rows)}")
    return options

"""How far a run is, by a counter on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TextIO, TypeVar

Item = TypeVar("Item")

EVERY = 10.0
"""Seconds between two lines of the counter where no terminal shows it."""
CLEAR = "\r\033[K"


def progress(items: list[Item], unit: str) -> Iterator[Item]:
    """Yield the items and say which it is: on a terminal in one line written anew, elsewhere in a line now and then."""
    told = -EVERY
    for index, one in enumerate(items):
        text = f"[{unit} {index + 1} of {len(items)}] {one}"
        if sys.stderr.isatty():
            print(f"{CLEAR}{text[:100]}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - told >= EVERY:
            told = time.monotonic()
            print(text, file=sys.stderr, flush=True)
        yield one
    if sys.stderr.isatty():
        print(CLEAR, end="", file=sys.stderr, flush=True)


def say(text: str, file: TextIO | None = None) -> None:
    """Print a text, clear of the counter."""
    if sys.stderr.isatty():
        print(CLEAR, end="", file=sys.stderr, flush=True)
    print(text, file=file, flush=True)

"""How far a run is, on a terminal's standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TextIO, TypeVar

from examples.backends import installed

Item = TypeVar("Item")


def progress(items: list[Item], unit: str) -> Iterator[Item]:
    """Yield the items, each named by its text, showing on a terminal's standard error how far the run is."""
    if installed("tqdm"):
        from tqdm import tqdm

        bar = tqdm(items, unit=unit, leave=False, disable=None)
        for one in bar:
            bar.set_postfix_str(str(one))
            yield one
        return
    for index, one in enumerate(items):
        if sys.stderr.isatty():
            print(f"[{index + 1}/{len(items)}] {one}", file=sys.stderr)
        yield one


def say(text: str, file: TextIO | None = None) -> None:
    """Print a text, clear of the progress bar."""
    if installed("tqdm"):
        from tqdm import tqdm

        tqdm.write(text, file)
    else:
        print(text, file=file, flush=True)

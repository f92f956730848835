"""From what size on kernels for CPUs are preferred to a library's own way: the form of the tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crossovers:
    """What was measured of one primitive on one machine.

    A library's own routine is left only where a kernel saves a ten-thousandth of a second: in its first call a process
    waits for Numba, half a second or more.

    Parameters
    ----------
    record : str
        The results file of the measurements; empty where none is kept.
    least : mapping
        By library, then by kind of call: the least size, in elements where nothing else is said.
    """

    record: str
    least: Mapping[str, Mapping[str, int]]

    def slower(self, library: str, kind: str, size: int) -> str | None:
        """Return the sentence why a kernel is not preferred for so much work of a kind, or None."""
        least = self.least.get(library, {}).get(kind)
        if least is None:
            return f"{library}'s own way is preferred at any size"
        return f"{library}'s own way is preferred below {least} elements" if size < least else None


def of_columns(shape: tuple[int, ...], last: int) -> str:
    """Return how the lines of a call lie whose last axis is this: alone, a few next to one another, or many."""
    inner = 1
    for length in shape[last + 1 :]:
        inner *= length
    return "line" if inner == 1 else "narrow" if inner < 16 else "columns"

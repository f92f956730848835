"""How kernels cut their work: one table for each primitive, with an entry for each compute capability measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, TypeVar

Entry = TypeVar("Entry", bound="Tuning")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning:
    """What was chosen by measurements on devices of one compute capability. Each primitive adds fields of its own.

    Parameters
    ----------
    record : str
        The results file of these measurements; empty where the numbers are by reasoning alone.
    multiprocessors : int
        Those of the device that was measured.
    """

    record: str
    multiprocessors: int

    scaled: ClassVar[tuple[str, ...]] = ()
    """Fields that count blocks and on which no bits depend: they are in proportion to a device's multiprocessors.

    The bits of results may depend on the others, which are the same on all devices of a compute capability.
    """

    def on(self: Entry, multiprocessors: int | None) -> Entry:
        """Return the entry for a device with so many multiprocessors, or with as many where None is known."""
        if multiprocessors is None or multiprocessors == self.multiprocessors:
            return self
        counts = {name: getattr(self, name) * multiprocessors // self.multiprocessors for name in self.scaled}
        return dataclasses.replace(self, **{name: max(1, count) for name, count in counts.items()})


def tuned(table: Mapping[int, Entry], capability: int) -> Entry:
    """Return the entry of a table for a device of this compute capability, 90 for 9.0.

    A device without an entry has that of the newest device before it, or of the oldest after it if there is none.
    """
    return table[max((one for one in table if one <= capability), default=min(table))]

"""How kernels cut their work: one table for each primitive, with an entry for each compute capability measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

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

    limited: ClassVar[tuple[str, ...]] = ()
    """Fields that are bytes of shared memory of a block: on other devices, no more than a block of theirs can have."""

    def on(self: Entry, multiprocessors: int | None) -> Entry:
        """Return the entry for a device with so many multiprocessors, or with as many where None is known."""
        if multiprocessors is None or multiprocessors == self.multiprocessors:
            return self
        counts = {name: getattr(self, name) * multiprocessors // self.multiprocessors for name in self.scaled}
        return dataclasses.replace(self, **{name: max(1, count) for name, count in counts.items()})


_SHARED_KIB = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 120: 99, 121: 99}
"""The shared memory that a block can have, in KiB, by compute capability (CUDA C++ Programming Guide, appendix K)."""


_FIXED_BYTES = 1 << 10
"""The most shared memory that kernels have besides that which is given at launch."""


def shared_bytes(capability: int) -> int:
    """Return how many bytes of shared memory a block can have; those of 9.0 on devices that are not listed."""
    return _SHARED_KIB.get(capability, _SHARED_KIB[90]) << 10


def tuned(table: Mapping[int, Entry], capability: int) -> Entry:
    """Return the entry of a table for a device of this compute capability, 90 for 9.0.

    A device without an entry has that of the newest device before it, or of the oldest after it if there is none.
    """
    entry = table[max((one for one in table if one <= capability), default=min(table))]
    most = shared_bytes(capability)
    if any(getattr(entry, name) > most for name in entry.limited):
        most -= _FIXED_BYTES
    over: dict[str, Any] = {name: most for name in entry.limited if getattr(entry, name) > most}
    return dataclasses.replace(entry, **over) if over else entry

"""How kernels cut their work: one table for each primitive, with an entry for each compute capability measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from parprims._compiling.tables import Measured, Table

Entry = TypeVar("Entry", bound="Tuning")


@dataclasses.dataclass(frozen=True)
class Model:
    """What devices of one compute capability have. Sizes come from it where a table has no entry.

    A multiprocessor has 65 536 registers of 32 bits on all of them. Its shared memory and threads are from the CUDA C++
    Programming Guide (Technical Specifications per Compute Capability); the rest is of one of the largest devices.
    """

    device: str
    """The name of that device."""
    block_kib: int
    """The most shared memory of a block, in KiB."""
    shared_kib: int
    """The shared memory of a multiprocessor, in KiB."""
    threads: int
    """The most threads of a multiprocessor."""
    multiprocessors: int
    """The multiprocessors of the device."""
    cache_mib: int
    """Its L2 cache, in MiB."""
    bandwidth: int
    """The bandwidth of its memory, in GB/s."""

    def room(self, blocks: int = 2) -> int:
        """Return the shared memory, in bytes, that a block may be given at launch if so many fit a multiprocessor.

        CUDA takes 1 KiB of each, and kernels have up to 1 KiB besides. A single block that loads, waits and stores
        leaves the memory idle in between; two take turns.
        """
        return min((self.shared_kib << 10) // blocks - 1024, self.block_kib << 10) - 1024

    def resident(self, blocks: int, threads: int) -> int:
        """Return how many of so many blocks of so many threads fit a multiprocessor, at least 1."""
        return max(1, min(blocks, self.threads // threads))


_MODELS = Table(int, Model, __name__)
"""By compute capability."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(Measured):
    """What was chosen by measurements on devices of one compute capability. Each primitive adds fields of its own.

    Parameters
    ----------
    multiprocessors : int
        Those of the device that was measured.
    """

    multiprocessors: int

    scaled: ClassVar[tuple[str, ...]] = ()
    """Fields that count blocks and on which no bits depend: they are in proportion to a device's multiprocessors.

    The bits of results may depend on the others, which are the same on all devices of a compute capability.
    """

    counted: ClassVar[tuple[str, ...]] = ()
    """Fields that grow with the number of multiprocessors if a device has no entry. Bits of results depend on them."""

    limited: ClassVar[tuple[str, ...]] = ()
    """Fields that are the most shared memory of a block: bounded by `Model.room` where there is no entry."""

    prefetched: ClassVar[tuple[str, ...]] = ()
    """Fields that are how many bytes ahead elements are brought into the L2 cache.

    Where there is no entry they are in proportion to the bandwidth of memory, and at most a third of the cache.
    """

    def on(self: Entry, multiprocessors: int | None) -> Entry:
        """Return the entry for a device with so many multiprocessors, or with as many where None is known."""
        if multiprocessors is None or multiprocessors == self.multiprocessors:
            return self
        counts = {name: getattr(self, name) * multiprocessors // self.multiprocessors for name in self.scaled}
        return dataclasses.replace(self, **{name: max(1, count) for name, count in counts.items()})

    def fitted(self: Entry, measured: Model, device: Model) -> Entry:
        """Return the entry for devices of another model than that of the device it was measured on.

        Tables whose tiles are not a number of bytes do more.
        """
        changes: dict[str, Any] = {"multiprocessors": device.multiprocessors}
        for name in self.counted:
            changes[name] = max(1, getattr(self, name) * device.multiprocessors // self.multiprocessors)
        for name in self.limited:
            value = getattr(self, name)
            changes[name] = min(value, device.room(2 if value <= measured.room() else 1))
        for name in self.prefetched:
            ahead = getattr(self, name) * device.bandwidth // measured.bandwidth
            changes[name] = min(ahead, (device.cache_mib << 20) // 3)
        return dataclasses.replace(self.on(device.multiprocessors), **changes)


def tunings(entry: type[Entry], module: str) -> Table[int, Entry]:
    """Return the table of a module, by compute capability."""
    return Table(int, entry, module)


def model(capability: int) -> Model:
    """Return the limits of a compute capability; one that is not listed has those of 9.0."""
    return _MODELS[capability if capability in _MODELS else 90]


def shared_bytes(capability: int) -> int:
    """Return how many bytes of shared memory a block can have."""
    return model(capability).block_kib << 10


def tuned(table: Mapping[int, Entry], capability: int) -> Entry:
    """Return the entry of a table for a device of this compute capability, 90 for 9.0.

    A device without an entry has that of the newest device before it, or of the oldest after it if there is none, as
    the models of both devices change it.
    """
    if capability in table:
        return table[capability]
    measured = max((one for one in table if one <= capability), default=min(table))
    return table[measured].fitted(model(measured), model(capability))

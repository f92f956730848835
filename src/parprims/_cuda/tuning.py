"""The sizes of kernels: a table for each primitive, with an entry for each compute capability that was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from parprims._compiling.tables import Measured, Table

Entry = TypeVar("Entry", bound="Tuning")


@dataclasses.dataclass(frozen=True)
class Model:
    """The limits of devices of one compute capability. They give the sizes for which a table has no entry.

    A multiprocessor has 65 536 registers of 32 bits on all of them. Its shared memory and threads are from the CUDA C++
    Programming Guide (Technical Specifications per Compute Capability), other fields from one of the largest devices.
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
        """Return the most dynamic shared memory of a block, in bytes, with which ``blocks`` fit a multiprocessor.

        CUDA takes 1 KiB of each block, and kernels have up to 1 KiB of static memory. While a single block waits, the
        memory is idle; two blocks take turns.
        """
        return min((self.shared_kib << 10) // blocks - 1024, self.block_kib << 10) - 1024

    def resident(self, blocks: int, threads: int) -> int:
        """Return the number of blocks of ``threads`` that fit a multiprocessor, from 1 to ``blocks``."""
        return max(1, min(blocks, self.threads // threads))


_MODELS = Table(int, Model, __name__)
"""The limits by compute capability."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tuning(Measured):
    """Sizes chosen by measurements on devices of one compute capability. Each primitive adds fields of its own.

    Parameters
    ----------
    multiprocessors : int
        The number of multiprocessors of the measured device.
    """

    multiprocessors: int

    scaled: ClassVar[tuple[str, ...]] = ()
    """Fields that count blocks, and that no bits of results depend on. They are in proportion to multiprocessors.

    Bits may depend on all other fields, so these are equal on all devices of a compute capability.
    """

    counted: ClassVar[tuple[str, ...]] = ()
    """Fields that grow with the number of multiprocessors if a device has no entry. Bits of results depend on them."""

    limited: ClassVar[tuple[str, ...]] = ()
    """Fields for the most shared memory of a block. Without an entry they are bounded by `Model.room`."""

    prefetched: ClassVar[tuple[str, ...]] = ()
    """Fields for the distance in bytes at which elements are prefetched into the L2 cache.

    Without an entry they are in proportion to the bandwidth of memory, and at most a third of the cache.
    """

    def on(self: Entry, multiprocessors: int | None) -> Entry:
        """Return the entry for a device with this number of multiprocessors; this entry if the number is None."""
        if multiprocessors is None or multiprocessors == self.multiprocessors:
            return self
        counts = {name: getattr(self, name) * multiprocessors // self.multiprocessors for name in self.scaled}
        return dataclasses.replace(self, **{name: max(1, count) for name, count in counts.items()})

    def fitted(self: Entry, measured: Model, device: Model) -> Entry:
        """Return the entry for devices of another model than the measured device.

        A primitive overrides this method if the sizes of its tiles are not in bytes.
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
    """Return the limits of a compute capability; capabilities that are not listed have the limits of 9.0."""
    return _MODELS[capability if capability in _MODELS else 90]


def shared_bytes(capability: int) -> int:
    """Return the most shared memory of a block, in bytes."""
    return model(capability).block_kib << 10


def tuned(table: Mapping[int, Entry], capability: int) -> Entry:
    """Return the entry of a table for a device of this compute capability, 90 for 9.0.

    A device without an entry has the entry of the newest older device, or else of the oldest newer device, fitted from
    one model to the other.
    """
    if capability in table:
        return table[capability]
    measured = max((listed for listed in table if listed <= capability), default=min(table))
    return table[measured].fitted(model(measured), model(capability))

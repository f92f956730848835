"""A model of the time of a call on many devices: ``python -m benches.devices.model`` prints what docs/devices.md shows.

The tables are the sizes of parts that divide the work well, and the bytes of the search of a sort.

What a device computes takes the time of its bytes at the rate at which one device does it. A message takes a latency
and the time of its bytes at the rate of the slowest link. Messages and bytes are those that `explain` tells, which
tests/on_devices/test_devices_model.py holds against compiled programs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from parprims._devices.sorts import FEW, digits, search_bytes

READ, SCAN, SORT, MERGE, SOLVE = 4.5e12, 3.54e12, 53e9, 3.1e12, 2.1e12
"""Bytes a second that one H200 reads, that it reads and writes in a scan; keys of 32 bits a second that it sorts; bytes
a second that a merge reads and writes (73 % of a copy); and bytes a second of a tridiagonal solver, counted as 40 bytes
an unknown."""

HOST, LINK, NETWORK = 8, 320e9, 40e9
"""Devices of a host, and bytes a second between two of a host, as measured, and of two hosts, as a network may have."""

LATENCY, HOP = 46e-6, 10e-6
"""Seconds of a message between the devices of a host, as measured, and more for every doubling of the devices."""


def message(devices: int, nbytes: float) -> float:
    """Return the seconds of a message, of so many bytes that a device sends or is sent."""
    if devices == 1:
        return 0.0
    hops = max(math.log2(devices / HOST), 0.0)
    return LATENCY + HOP * hops + nbytes / (LINK if devices <= HOST else NETWORK)


def search(each: float, devices: int) -> list[float]:
    """Return the bytes of each message of the search of a sort of keys of 32 bits, so many on each device."""
    lengths = (int(each),) * devices
    sizes, others = digits(32, 1, lengths), devices - 1
    beside_cuts = [8 * (devices + 1) * others] if devices <= FEW else [16 * others, 4 * others, 4 * others]
    counts = search_bytes(sizes, 1, lengths) - sum(beside_cuts)
    return [*(counts * (2**size - 1) / sum(2**one - 1 for one in sizes) for size in sizes), *beside_cuts]


@dataclasses.dataclass(frozen=True)
class Model:
    """The seconds of a call: ``work`` of one device alone for so many elements, ``split`` of one of many, each so many.

    ``split`` takes the elements of a device and the number of devices.
    """

    name: str
    work: Callable[[float], float]
    split: Callable[[float, int], float]

    def efficiency(self, each: float, devices: int) -> float:
        """Return the time of one device for all, over that of many and their number."""
        return self.work(each * devices) / (devices * self.split(each, devices))

    def least(self, devices: int, wanted: float) -> float:
        """Return the fewest elements of a device for an efficiency; infinity if none has it."""
        if self.efficiency(2.0**60, devices) < wanted:
            return math.inf
        low, high = 0.0, 60.0
        while high - low > 0.01:
            middle = (low + high) / 2
            low, high = (low, middle) if self.efficiency(2.0**middle, devices) >= wanted else (middle, high)
        return 2.0**high


SYSTEMS = 65536

MODELS = (
    Model(
        "reduce, float32",
        lambda n: 4 * n / READ,
        lambda each, p: 4 * each / READ + message(p, 4 * (p - 1)),
    ),
    Model(
        "scan, float32",
        lambda n: 8 * n / SCAN,
        lambda each, p: 4 * each / READ + 8 * each / SCAN + message(p, 4 * (p - 1)),
    ),
    Model(
        "linear_recurrence, float32",
        lambda n: 12 * n / SCAN,
        lambda each, p: 8 * each / READ + 12 * each / SCAN + message(p, 8 * (p - 1)),
    ),
    Model(
        "sort, 32 bits",
        lambda n: n / SORT,
        lambda each, p: (
            each / SORT
            + math.ceil(math.log2(p)) * 8 * each / MERGE
            + 8 * each * (p - 1) / p / SCAN  # the blocks that are cut out
            + sum(message(p, nbytes) for nbytes in search(each, p))
            + message(p, 17 / 16 * 4 * each * (p - 1) / p)
        ),
    ),
    Model(
        f"solve_tridiagonal by ends, {SYSTEMS} systems, float64",
        lambda n: 40 * n / SOLVE,
        lambda each, p: (1 + 1 / 8) * 40 * each / SOLVE + message(p, SYSTEMS * 80 * (p - 1)) + message(p, 8 * (p - 1)),
    ),
    Model(
        "histogram of 1000 bins, float32",
        lambda n: 8 * n / READ,
        lambda each, p: 8 * each / READ + message(p, 8 * (p - 1)) + message(p, 12e3 * (p - 1)),
    ),
)

DEVICES = (2, 8, 64, 1024)


def table() -> list[str]:
    """Return the lines of the table."""
    lines = ["| call | at best | " + " | ".join(f"P = {p}" for p in DEVICES) + " |", "|---" * (2 + len(DEVICES)) + "|"]
    for model in MODELS:
        best = model.efficiency(2.0**60, 2)
        wanted = 0.8 * best
        least = [model.least(p, wanted) for p in DEVICES]
        cells = ["never" if one == math.inf else f"2^{math.log2(one):.0f}" for one in least]
        lines.append(f"| {model.name} | {best:.2f} P | " + " | ".join(cells) + " |")
    return lines


def searches() -> list[str]:
    """Return the lines of the table of searches."""
    lines = [
        "| P | at most 1 % from | messages | sent by a device | of the exchanged bytes |",
        "|---|---|---|---|---|",
    ]
    for p in (2, 4, 8, 16, 64, 128, 256, 512, 1024):
        dear = [k for k in range(20, 32) if max(share(2**k, p, width) for width in (16, 32, 64)) > 0.01]
        least = max(dear, default=19) + 1
        messages = search(2**24, p)
        cells = [f"2^{least}", len(messages), f"{sum(messages) / 1000:.0f} KB", f"{100 * share(2**24, p, 32):.2f} %"]
        lines.append(f"| {p} | " + " | ".join(map(str, cells)) + " |")
    return lines


def share(each: int, devices: int, width: int) -> float:
    """Return the bytes of the search of a sort, over those that the exchange of random keys of this width sends."""
    lengths = (each,) * devices
    sent = search_bytes(digits(width, 1, lengths), 1, lengths)
    return sent / (each * width / 8 * (devices - 1) / devices)


if __name__ == "__main__":
    print("\n".join((*table(), "", *searches())))

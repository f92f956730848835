"""A model of the time of a call on many devices: ``python -m benches.devices.model`` prints what docs/devices.md shows.

What a device computes takes the time of its bytes at the rate at which one device does it. A message takes a latency
and the time of its bytes at the rate of the slowest link. Messages and bytes are those that `explain` tells, which
tests/on_devices/test_devices_model.py holds against compiled programs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

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
            + 4 * message(p, 2**19 * (p - 1))
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


if __name__ == "__main__":
    print("\n".join(table()))

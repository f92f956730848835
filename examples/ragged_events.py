"""A ragged batch: collisions of uneven numbers of particles, summed, scanned and ranked without padding.

Physicists keep the particles of all events in one array, with offsets that say where each event begins (Awkward Array,
ROOT). They ask of every event by itself: its energy, its energy up to each particle, and its hardest particles.
Libraries for GPUs have no scan by offsets, and sorts that cannot be captured when there are more than 500 segments, so
people pad all events to the longest or loop over them.

Energies are multiples of 2^-10 below 2^10, so their sums are exact in float64: sums, scans and ranks must equal the
loop's to the last bit.
"""

import sys

import common
import numpy as np
from array_api_compat import array_namespace

import parprims

SIZES = common.Sizes(small=300, cpu=20_000, cuda=2_000_000)
BEST = 3


def energies(energy, offsets, /, *, method: str = "auto"):
    """Return the energy of every event, 0 of those without particles."""
    return parprims.reduce(energy, offsets=offsets, method=method)


def running(energy, offsets, /, *, method: str = "auto"):
    """Return the energy of every event up to each of its particles."""
    return parprims.scan(energy, offsets=offsets, method=method)


def ranked(energy, offsets, /, *, method: str = "auto"):
    """Return the particles of every event, the hardest first."""
    return parprims.sort(energy, descending=True, offsets=offsets, method=method)


def hardest(energy, offsets, /, *, method: str = "auto"):
    """Return the hardest particles of every event, and 0 where there are fewer."""
    xp = array_namespace(energy)
    best = ranked(energy, offsets, method=method)
    places = xp.stack([offsets[:-1] + at for at in range(BEST)], axis=1)
    there = places < offsets[1:, None]
    found = xp.take(best, xp.reshape(xp.where(there, places, xp.zeros_like(places)), (-1,)), axis=0)
    found = xp.reshape(found, places.shape)
    return xp.where(there, found, xp.zeros_like(found))


def example(run: common.Run) -> None:
    rng = np.random.default_rng(9)
    counts = np.minimum(rng.geometric(1 / 30, run.size), 1000) - 1
    offsets = np.concatenate([[0], np.cumsum(counts)])
    energy = rng.integers(0, 2**20, offsets[-1]) * 2.0**-10
    events = np.split(energy, offsets[1:-1])
    top = np.zeros((run.size, BEST))
    for row, event in zip(top, events, strict=True):
        few = np.sort(event)[::-1][:BEST]
        row[: len(few)] = few
    answers = {
        energies: np.array([event.sum() for event in events]),
        running: np.concatenate([np.cumsum(event) for event in events]),
        ranked: np.concatenate([np.sort(event)[::-1] for event in events]),
        hardest: top,
    }
    arrays = run.asarray(energy), run.asarray(offsets)
    for call, expected in answers.items():

        def check(result, _, expected=expected):
            found = run.to_numpy(result)
            return f"{np.sum(found):.6g} in all", common.distance(found, expected), 0

        row = f"{call.__name__}, {run.size} events of 0 to {counts.max()} particles"
        run.compare(row, call, arrays, check, skip=run.shown_already if call in (ranked, hardest) else ())


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

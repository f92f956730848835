"""The mean of a z^2 + b z + c over normal numbers, four ways, and a fifth that stores no numbers.

With a, b, c = 1, 2, 3 it tends to a + c = 4. The ways are the source's: partial sums of blocks; additions to
one single cell; a transform and a reduction in one pass; and the CPU. It took 1.28e9 numbers and reported 231.9,
1735.3, 11.1 and 2783.1 ms. No way here adds floats atomically, so every one gives the same bits again. The fifth draws
the numbers by a counter where they are used.

A value is rounded 4 times in float32, by half of 2^-23 of |a z^2| + |b z| + |c| at most, and added in float64, where n
roundings are n 2^-53; the CPU computes all in float64. The mean itself must be within 3 standard errors of 4, which
are sqrt((2 a^2 + b^2) / n).
"""

import functools
import math
import sys
import time

import common
import numpy as np
import philox

import parprims

SIZES = common.Sizes(small=20_000, cpu=2**22, cuda=1_280_000_000)
A, B, C = 1.0, 2.0, 3.0
SOURCE = {
    "partial sums": "231.9 ms",
    "one cell": "1735.3 ms",
    "transform-reduce": "11.1 ms",
    "CPU": "2783.1 ms",
    "drawn inside": "",
}


def quadratic(z):
    """Return a z^2 + b z + c."""
    return (A * z + B) * z + C


def partial_sums(xp, z):
    """Return the sum of the sums of blocks of 256."""
    whole = z.shape[0] // 256 * 256
    sums = parprims.map_reduce(quadratic, xp.reshape(z[:whole], (-1, 256)), axis=1, dtype=xp.float64)
    rest = parprims.map_reduce(quadratic, z[whole:], dtype=xp.float64)
    return parprims.sum(sums) + rest


def one_cell(xp, z, cell):
    """Return a cell to which 64 pieces are added in turn."""
    length = -(-z.shape[0] // 64)
    for start in range(0, z.shape[0], length):
        cell = parprims.map_reduce(quadratic, z[start : start + length], dtype=xp.float64, initial=cell)
    return cell


def on_cpu(z, change=np.asarray):
    """Return the sum by NumPy in float64, on all cores."""
    return sum(common.by_pieces(lambda piece: float(np.sum(quadratic(change(piece).astype(np.float64)))), z))


def drawn(index, stream):
    """Return the sum of four values for every index."""
    one, two, three, four = (quadratic(z) for z in philox.normals(1, index, stream))
    return (one + two) + (three + four)


def example(run: common.Run) -> None:
    xp = run.xp
    zero = run.asarray(np.zeros(()))
    chunk = min(run.size, 2**26 if run.cuda else 2**20)
    ways = {
        "partial sums": functools.partial(partial_sums, xp),
        "one cell": lambda z: one_cell(xp, z, zero),
        "transform-reduce": lambda z: parprims.map_reduce(quadratic, z, dtype=xp.float64),
    }
    ways = {way: run.compile(call) for way, call in ways.items()}
    vendor = run.compile(lambda z: xp.sum(quadratic(z), dtype=xp.float64))
    totals, seconds, size = dict.fromkeys(SOURCE, 0.0), dict.fromkeys((*SOURCE, "vendor"), 0.0), 0.0

    def clock(way, call, *arrays):
        began = time.perf_counter()
        total = float(call(*arrays))
        seconds[way] += time.perf_counter() - began
        return total

    starts = range(0, run.size, chunk)
    for start in run.progress("mean of a quadratic", starts, len(starts)):
        z = run.normals(start, (min(chunk, run.size - start),))
        host = run.to_numpy(z)
        run.wait([call(z) for call in (*ways.values(), vendor)])  # compiles, and waits for the copies
        for way, call in ways.items():
            totals[way] += clock(way, call, z)
        clock("vendor", vendor, z)
        totals["CPU"] += clock("CPU", on_cpu, host)
        size += on_cpu(host, abs)

    n = run.size
    allowed = 4 * 2.0**-24 * size / n + n * 2.0**-53 * size / n
    error = math.sqrt((2 * A**2 + B**2) / n)
    reference = totals["CPU"] / n
    for way in (*ways, "CPU"):
        options = {"seconds": seconds[way], "vendor": seconds["vendor"]}
        options["reported"] = SOURCE[way] if n == 1_280_000_000 else ""
        difference, bound = (totals[way] / n - reference, allowed) if way in ways else (reference - A - C, 3 * error)
        run.report(f"B3 {way}, {n}", f"{totals[way] / n:.6f}", abs(difference), bound, **options)

    inside = run.compile(lambda index: parprims.map_reduce(drawn, index, stream, dtype=xp.float64))
    stream, quarter = run.asarray(np.zeros(1, np.int64)), n // 4
    piece = min(quarter, chunk)
    for start in range(0, quarter, piece):
        index = run.asarray(np.arange(start, min(start + piece, quarter)))
        run.wait(inside(index))
        totals["drawn inside"] += clock("drawn inside", inside, index)
    mean = totals["drawn inside"] / (4 * quarter)
    row = f"B3 drawn inside, {4 * quarter}"
    run.report(row, f"{mean:.6f}", abs(mean - A - C), 3 * error, seconds=seconds["drawn inside"])


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

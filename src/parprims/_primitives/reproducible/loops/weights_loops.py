"""Histograms with weights that have the same bits everywhere, on CPUs.

numbers has the numbers of histogram_loops.py, then how many bits the first and the second integer of a weight have.
parts has the first integers of the bins of each block; the least and the largest element of each block; how bins are
guessed; the second integers; what is not finite; the largest finite magnitude of the weights of each block.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parprims._cpu.templates.declarations import int64, load, select, store
from parprims._primitives.histogram.histogram_loops import find_bins
from parprims._primitives.reproducible.loops.reproducible_loops import (
    both_integers,
    power,
    rounded,
    rounded_pair,
    top_of,
)

if TYPE_CHECKING:  # functions that are written for a call
    from parprims._primitives.reproducible.loops.reproducible_loops import (
        exponent,
        finish,
        infinity,
        magnitude,
        value,
        words,
    )


def find_tops_of_weights(inputs, outputs, parts, numbers, begin, end):
    """Find the largest finite magnitudes of the weights of blocks."""
    n, size = numbers[0], numbers[3]
    for block in range(begin, end):
        first, last = block * size, min(n, (block + 1) * size)
        top = magnitude(inputs, first)
        for i in range(first, last):
            one = magnitude(inputs, i)
            top = select(one > top, one, top)
        if top >= infinity():
            top -= top
            for i in range(first, last):
                one = magnitude(inputs, i)
                top = select((one < infinity()) & (one > top), one, top)
        store(parts[5], block, int64(top))


def add_weights(inputs, outputs, parts, numbers, begin, end):
    """Add the integers of the weights of blocks."""
    n, bins, blocks, size, lanes, bits, second = (
        numbers[0], numbers[1], numbers[2], numbers[3], numbers[5], numbers[8], numbers[9]
    )  # fmt: skip
    scale = bits - exponent(top_of(parts[5], 0, blocks))
    half = scale >> 1 if words() == 2 else scale
    factor, factor2, unit, width = power(half), power(scale - half), power(second), bins + 1
    totals, rests = np.empty(lanes * width, np.int64), np.empty(lanes * width, np.int64)
    odds, found = np.empty(width, np.float64), np.empty(256, np.int32)
    for block in range(begin, end):
        for i in range(lanes * width):
            store(totals, i, int64(0))
            store(rests, i, int64(0))
        for i in range(width):
            store(odds, i, 0.0)
        for chunk in range(block * size, min(n, (block + 1) * size), 256):
            few, odd = min(256, min(n, (block + 1) * size) - chunk), 0.0
            find_bins(inputs, outputs, parts, numbers, chunk, few, found)
            for i in range(few):
                # Neighbours are added in different tables: in one table, equal bins would wait for each other.
                place = (i & (lanes - 1)) * width + int64(load(found, i))
                total, rest = both_integers(inputs, chunk + i, factor, factor2, unit)
                store(totals, place, load(totals, place) + total)
                if words() == 2:
                    store(rests, place, load(rests, place) + rest)
                x = value(inputs, chunk + i)
                odd += x - x
            if odd != 0.0:
                for i in range(few):
                    x, place = value(inputs, chunk + i), int64(load(found, i))
                    store(odds, place, load(odds, place) + select(x - x == 0.0, 0.0, x))
        for i in range(bins):
            total, rest = int64(0), int64(0)
            for lane in range(lanes):
                total += load(totals, lane * width + i)
                rest += load(rests, lane * width + i)
            store(parts[0], block * bins + i, total)
            store(parts[3], block * bins + i, rest)
            store(parts[4], block * bins + i, load(odds, i))


def finish_bins(inputs, outputs, parts, numbers, begin, end):
    """Write the sums of bins; a task is 1024 bins."""
    bins, blocks, bits, second = numbers[1], numbers[2], numbers[8], numbers[9]
    scale = bits - exponent(top_of(parts[5], 0, blocks))
    for i in range(1024 * begin, min(1024 * end, bins)):
        total, rest, odd = int64(0), int64(0), 0.0
        for block in range(blocks):
            total += load(parts[0], block * bins + i)
            rest += load(parts[3], block * bins + i)
            odd += load(parts[4], block * bins + i)
        if odd != 0.0:
            finish(outputs, i, odd)
        elif words() == 1:
            finish(outputs, i, rounded(total, scale))
        else:
            finish(outputs, i, rounded_pair(total, rest, scale, second))

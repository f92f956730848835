"""Sums of segments with the same bits everywhere, on CPUs. The grid of a segment is of its own largest magnitude.

By offsets, numbers: n, segments, the bits of the first and of the second integer. Lines lie in memory one after
another, and a task is a segment of a line.

By ids, numbers: n, inner, segments, blocks, size, the bits of the first and of the second integer; parts: for each
segment of each block the largest finite magnitude, the sums of both integers, and what is not finite; for each segment
two factors, and the exponent of their product.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import Arrays, Numbers, float64, int64, load, select, store
from parprims._primitives.reproducible.loops.reproducible_loops import (
    add_integers,
    both_integers,
    power,
    rounded,
    rounded_pair,
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

    def place(inputs: Arrays, i: int) -> int:
        """Return an offset, or the id of an element."""

    def width(numbers: Numbers) -> int:
        """Return the number of elements behind each other that have one id."""


def finish_sum(outputs, i, total, rest, odd, scale, second):
    """Write a sum, given its integers and what is not finite."""
    if odd != 0.0:
        finish(outputs, i, odd)
    elif words() == 1:
        finish(outputs, i, rounded(total, scale))
    else:
        finish(outputs, i, rounded_pair(total, rest, scale, second))


# ---- By offsets -------------------------------------------------------------------------------------------------


def sum_segments(inputs, outputs, parts, numbers, begin, end):
    """Write the sums of segments."""
    n, segments, bits, second = numbers[0], numbers[1], numbers[2], numbers[3]
    for task in range(begin, end):
        line = task // segments
        number = task - line * segments
        first = min(max(place(inputs, number), int64(0)), n)
        count, at = min(max(place(inputs, number + 1), first), n) - first, line * n + first
        total, rest, odd, scale = int64(0), int64(0), 0.0, int64(0)
        if count > 0:
            top = magnitude(inputs, at)
            for i in range(count):
                one = magnitude(inputs, at + i)
                top = select(one > top, one, top)
            if top >= infinity():
                for i in range(count):
                    x = value(inputs, at + i)
                    odd += select(x - x == 0.0, 0.0, x)
            else:
                scale = bits - exponent(int64(top))
                total, rest = add_integers(inputs, at, count, scale, second, True)
        finish_sum(outputs, task, total, rest, odd, scale, second)


# ---- By ids -----------------------------------------------------------------------------------------------------


def find_tops_of_ids(inputs, outputs, parts, numbers, begin, end):
    """Find the largest finite magnitudes of the segments of blocks, and add what is not finite."""
    n, inner, segments, blocks, size = numbers[0], width(numbers), numbers[2], numbers[3], numbers[4]
    for task in range(begin, end):
        outer = task // blocks
        block, marks = task - outer * blocks, task * segments * inner
        for i in range(marks, marks + segments * inner):
            store(parts[0], i, int64(0))
            store(parts[3], i, 0.0)
        for i in range(block * size, min(n, (block + 1) * size)):
            number = place(inputs, i)
            if (number >= 0) & (number < segments):
                row, to = (outer * n + i) * inner, marks + number * inner
                for j in range(inner):
                    one, top = int64(magnitude(inputs, row + j)), load(parts[0], to + j)
                    if one < int64(infinity()):
                        store(parts[0], to + j, select(one > top, one, top))
                    else:
                        store(parts[3], to + j, load(parts[3], to + j) + value(inputs, row + j))


def choose_grids(inputs, outputs, parts, numbers, begin, end):
    """Write the scales of segments; a task is all segments of an outer line."""
    length, blocks, bits = numbers[1] * numbers[2], numbers[3], numbers[5]
    for outer in range(begin, end):
        for i in range(length):
            top = int64(0)
            for block in range(outer * blocks, (outer + 1) * blocks):
                one = load(parts[0], block * length + i)
                top = select(one > top, one, top)
            scale = bits - exponent(top)
            half = scale >> 1 if words() == 2 else scale
            store(parts[4], outer * length + i, power(half))
            store(parts[5], outer * length + i, power(scale - half))
            store(parts[6], outer * length + i, scale)


def add_ids(inputs, outputs, parts, numbers, begin, end):
    """Add the integers of the segments of blocks."""
    n, inner, segments, blocks, size = numbers[0], width(numbers), numbers[2], numbers[3], numbers[4]
    unit, length = power(numbers[6]), segments * inner
    for task in range(begin, end):
        outer = task // blocks
        block, marks, grids = task - outer * blocks, task * length, outer * length
        for i in range(marks, marks + length):
            store(parts[1], i, int64(0))
            store(parts[2], i, int64(0))
        for i in range(block * size, min(n, (block + 1) * size)):
            number = place(inputs, i)
            if (number >= 0) & (number < segments):
                row, at = (outer * n + i) * inner, number * inner
                for j in range(inner):
                    factor, factor2 = load(parts[4], grids + at + j), load(parts[5], grids + at + j)
                    total, rest = both_integers(inputs, row + j, factor, factor2, unit)
                    store(parts[1], marks + at + j, load(parts[1], marks + at + j) + total)
                    if words() == 2:
                        store(parts[2], marks + at + j, load(parts[2], marks + at + j) + rest)


def finish_ids(inputs, outputs, parts, numbers, begin, end):
    """Write the sums of segments; a task is all segments of an outer line."""
    length, blocks, second = numbers[1] * numbers[2], numbers[3], numbers[6]
    for outer in range(begin, end):
        for i in range(length):
            total, rest, odd = int64(0), int64(0), float64(0)
            for block in range(outer * blocks, (outer + 1) * blocks):
                total += load(parts[1], block * length + i)
                rest += load(parts[2], block * length + i)
                odd += load(parts[3], block * length + i)
            finish_sum(outputs, outer * length + i, total, rest, odd, load(parts[6], outer * length + i), second)

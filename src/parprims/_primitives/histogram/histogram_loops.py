"""Histograms on CPUs.

numbers: n, bins, blocks, size, even, the lanes of a table, the bits of two ends.
parts: the counts of each block; the least and the largest element of each block; how bins are guessed.

The elements are cut into blocks by the numbers of elements and bins, and the counts of blocks are added in their order:
a result does not depend on the number of threads.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parprims._cpu.templates.declarations import (
    Arrays,
    Memory,
    Number,
    Numbers,
    float64,
    int32,
    int64,
    load,
    load_from,
    store,
    store_to,
)

if TYPE_CHECKING:  # functions that are written for a call

    def element(inputs: Arrays, i: int) -> Number:
        """Return an element in the dtype of the edges."""

    def weight(inputs: Arrays, i: int) -> Number:
        """Return the weight of an element."""

    def given(inputs: Arrays, numbers: Numbers, i: int) -> Number:
        """Return an edge of the caller, or one of the two ends of even edges."""

    def edge_type(x: Number) -> Number:
        """Return a number in the dtype of the edges."""

    def nan_edge() -> Number:
        """Return NaN as an edge, or 0 if edges are integers."""

    def previous(x: Number) -> Number:
        """Return the number before an edge."""

    def zero_sum() -> Number:
        """Return zero in the dtype of sums."""

    def sums(count: int) -> Memory:
        """Return memory for counts or sums of weights."""

    def edges(count: int) -> Memory:
        """Return memory for edges."""


def find_ends(inputs, outputs, parts, numbers, begin, end):
    """Find the least and the largest element of blocks; an infinity or NaN makes both NaN."""
    n, size = numbers[0], numbers[3]
    lows, highs, oddities = edges(64), edges(64), edges(64)
    for block in range(begin, end):
        first, last = block * size, min(n, (block + 1) * size)
        for j in range(64):
            x = element(inputs, min(first + j, last - 1))
            store_to(0, lows, j, x)
            store_to(1, highs, j, x)
            store_to(2, oddities, j, edge_type(x - x))
        whole = first + (last - first) // 64 * 64
        for row in range(first, whole, 64):
            for j in range(64):
                x = element(inputs, row + j)
                low, high = load_from(0, lows, j), load_from(1, highs, j)
                store_to(0, lows, j, x if x < low else low)
                store_to(1, highs, j, x if x > high else high)
                store_to(2, oddities, j, edge_type(load_from(2, oddities, j) + (x - x)))
        for j in range(last - whole):
            x = element(inputs, whole + j)
            low, high = load_from(0, lows, j), load_from(1, highs, j)
            store_to(0, lows, j, x if x < low else low)
            store_to(1, highs, j, x if x > high else high)
            store_to(2, oddities, j, edge_type(load_from(2, oddities, j) + (x - x)))
        low, high, odd = load(lows, 0), load(highs, 0), load(oddities, 0)
        for j in range(1, 64):
            low = min(low, load(lows, j))
            high = max(high, load(highs, j))
            odd = edge_type(odd + load(oddities, j))
        store(parts[1], 2 * block, edge_type(low + odd))
        store(parts[1], 2 * block + 1, edge_type(high + odd))


def make_edges(inputs, outputs, parts, numbers, begin, end):
    """Write the edges."""
    bins, blocks, even = numbers[1], numbers[2], numbers[4]
    for task in range(begin, end):
        if even == 0:
            for i in range(bins + 1):
                store(outputs[1], i, given(inputs, numbers, i))
        else:
            first, last = given(inputs, numbers, 0), given(inputs, numbers, 1)
            if even == 2:
                first, last = load(parts[1], 0), load(parts[1], 1)
                odd = edge_type(first - first)
                for block in range(1, blocks):
                    low, high = load(parts[1], 2 * block), load(parts[1], 2 * block + 1)
                    odd = edge_type(odd + (low - low))
                    first = low if low < first else first
                    last = high if high > last else last
                half = edge_type(0.5 if first == last else 0.0)
                first, last = edge_type(first - half), edge_type(last + half)
                if odd != odd:
                    first = last = nan_edge()
            step = edge_type((last - first) / edge_type(bins))
            for i in range(bins):
                store(outputs[1], i, edge_type(edge_type(edge_type(i) * step) + first))
            store(outputs[1], bins, last)
        judge_guesses(outputs, parts, numbers)


def judge_guesses(outputs, parts, numbers):
    """Find the distance from an edge from which a guess gives the right bin: -1 if it always does, 2 if never.

    The guess of x is (x - first) scale, which does not descend as x ascends. It always gives the bin of x if the
    guesses of edges are whole numbers, and the guesses of the numbers before edges are less. Otherwise it gives the bin
    if it is further from a whole number than the guess of any edge.
    """
    bins, even = numbers[1], numbers[4]
    first, scale = float64(load(outputs[1], 0)), float64(0)
    margin, exact = 2.0, False
    if even > 0 and bins <= 8 * numbers[0]:
        scale = bins / (float64(load(outputs[1], bins)) - first)
        margin, exact = 0.0, True
        for i in range(bins):
            edge = load(outputs[1], i)
            guess, before = (float64(edge) - first) * scale, (float64(previous(edge)) - first) * scale
            exact = exact and (guess >= i) and (guess < i + 1) and (before < i)
            margin = max(margin, abs(guess - i)) if guess == guess else 2.0
        margin = -1.0 if exact else 2.0 * margin + 1e-12 if margin < 0.1 else 2.0
    store(parts[2], 0, scale)
    store(parts[2], 1, margin)


def find_bins(inputs, outputs, parts, numbers, chunk, few, found):
    """Write the bins of the elements of a chunk, ``bins`` for elements outside of all.

    Bins between even edges are guessed. If a guess is not certain, or the caller gives edges, they are searched.
    """
    bins = numbers[1]
    first, last = load(outputs[1], 0), load(outputs[1], bins)
    origin, scale, margin = float64(first), load(parts[2], 0), load(parts[2], 1)
    unsure = margin >= 2.0
    if not unsure:
        for i in range(few):
            x = element(inputs, chunk + i)
            inside = (x >= first) & (x <= last)
            guess = (float64(x) - origin) * scale if inside else 0.5
            bin = min(int32(guess), int32(bins - 1))
            rest = guess - bin
            unsure |= (rest < margin) | (rest > 1.0 - margin)
            store(found, i, int32(bin if inside else bins))
        unsure &= margin >= 0.0
    if unsure:
        # A step of all searches at a time: searches one by one would branch on every comparison.
        for i in range(few):
            store_to(0, found, i, int32(0))
        length = bins + 1
        while length > 1:
            half = int32(length >> 1)
            for i in range(few):
                low = load_from(0, found, i)
                above = int32(load_from(1, outputs[1], int64(low) + half) <= element(inputs, chunk + i))
                store_to(0, found, i, int32(low + half * above))
            length -= length >> 1
        for i in range(few):
            x = element(inputs, chunk + i)
            inside = (x >= first) & (x <= last)
            store(found, i, int32(min(load(found, i), int32(bins - 1)) if inside else bins))


def count_elements(inputs, outputs, parts, numbers, begin, end):
    """Count the elements of blocks, or add their weights."""
    n, bins, blocks, size, lanes = numbers[0], numbers[1], numbers[2], numbers[3], numbers[5]
    table, found = sums(lanes * (bins + 1)), np.empty(256, np.int32)
    for block in range(begin, end):
        for i in range(lanes * (bins + 1)):
            store(table, i, zero_sum())
        for chunk in range(block * size, min(n, (block + 1) * size), 256):
            few = min(256, min(n, (block + 1) * size) - chunk)
            find_bins(inputs, outputs, parts, numbers, chunk, few, found)
            for i in range(few):
                # Neighbours are counted in different tables: in one table, equal bins would wait for each other.
                place = (i & (lanes - 1)) * (bins + 1) + int64(load(found, i))
                store(table, place, load(table, place) + weight(inputs, chunk + i))
        for i in range(bins):
            total = load(table, i)
            for lane in range(1, lanes):
                total += load(table, lane * (bins + 1) + i)
            if blocks == 1:
                store(outputs[0], i, total)
            else:
                store(parts[0], block * bins + i, total)


def add_blocks(inputs, outputs, parts, numbers, begin, end):
    """Add the counts of blocks in their order; a task is 1024 bins."""
    bins, blocks = numbers[1], numbers[2]
    for i in range(1024 * begin, min(1024 * end, bins)):
        total = load(parts[0], i)
        for block in range(1, blocks):
            total += load(parts[0], block * bins + i)
        store(outputs[0], i, total)

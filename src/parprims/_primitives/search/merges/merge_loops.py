"""Merges of two sorted arrays on CPUs.

numbers: n, m, the elements of a chunk of the result, the chunks of a row, whether the order descends.

A row of the result is cut into chunks, and a chunk into halves. A search along the merge path finds how many elements
before each are of the first array: so no chunk waits for another. The next element is not found by a branch, whose
outcome a CPU would have to guess, but by a choice between two values, and a step of 0 or 1 in either array. Both halves
are merged in turn, because the next step of a half has to wait for its last. NaN, which are at one end of either array,
are copied.
O. Green, R. McColl and D. A. Bader, GPU Merge Path: A GPU Merging Algorithm, ICS 2012.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parprims._cpu.templates.declarations import Arrays, Number, int64, load, select, store

if TYPE_CHECKING:  # functions that are written for a call

    def first_key(inputs: Arrays, i: int) -> Number:
        """Return a key of the first array, in the dtype of the result."""

    def second_key(inputs: Arrays, j: int) -> Number:
        """Return a key of the second array, in the dtype of the result."""

    def comes_first(one: Number, other: Number) -> bool:
        """Return whether a key of the first array comes before a key of the second; neither is NaN."""

    def put(inputs: Arrays, outputs: Arrays, at: int, i: int, j: int, takes: bool) -> None:
        """Write element i of the first array if ``takes``, else element j of the second."""


def merge(inputs, outputs, numbers, begin, end):
    """Merge chunks of rows."""
    n, m, size, chunks, descends = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4] != 0
    ones = np.empty(2, np.int64)
    for task in range(begin, end):
        row, chunk = task // chunks, task % chunks
        # The elements of either array that are numbers: all in front of NaN, or all behind.
        for which in range(2):
            low, high = int64(0), select(which == 0, n, m)
            while low < high:
                middle = (low + high) >> 1
                if which == 0:
                    key = first_key(inputs, row * n + middle)
                else:
                    key = second_key(inputs, row * m + middle)
                goes = (key == key) != descends
                low, high = select(goes, middle + 1, low), select(goes, high, middle)
            store(ones, which, low)
        own, other = load(ones, 0), load(ones, 1)
        if descends:
            own, other = n - own, m - other
        whole = own + other
        start1, start2, start = row * n, row * m, row * (n + m)
        odd1, odd2, odd = start1 + own, start2 + other, start + whole
        if descends:
            odd1, odd2, odd = start1, start2, start
            start1, start2, start = start1 + n - own, start2 + m - other, start + n + m - whole
        end1, end2 = start1 + own, start2 + other

        first, last = min(whole, chunk * size), min(whole, (chunk + 1) * size)
        half = first + ((last - first) >> 1)
        for which in range(2):
            place = select(which == 0, first, half)
            low, high = max(int64(0), place - other), min(place, own)
            while low < high:
                middle = (low + high) >> 1
                goes = comes_first(first_key(inputs, start1 + middle), second_key(inputs, start2 + place - 1 - middle))
                low, high = select(goes, middle + 1, low), select(goes, high, middle)
            store(ones, which, low)
        i, at, stop = start1 + load(ones, 0), start + first, start + half
        j = start2 + first - load(ones, 0)
        k, to, past = start1 + load(ones, 1), start + half, start + last
        l = start2 + half - load(ones, 1)
        while True:
            steps = min(min(stop - at, min(end1 - i, end2 - j)), min(past - to, min(end1 - k, end2 - l)))
            if steps == 0:
                break
            for _ in range(steps):
                takes = comes_first(first_key(inputs, i), second_key(inputs, j))
                also = comes_first(first_key(inputs, k), second_key(inputs, l))
                put(inputs, outputs, at, i, j, takes)
                put(inputs, outputs, to, k, l, also)
                i, j, at = i + int64(takes), j + int64(not takes), at + 1
                k, l, to = k + int64(also), l + int64(not also), to + 1
        for _ in range(2):  # the rest of the first half, then of the second
            while True:
                steps = min(stop - at, min(end1 - i, end2 - j))
                if steps == 0:
                    break
                for _ in range(steps):
                    takes = comes_first(first_key(inputs, i), second_key(inputs, j))
                    put(inputs, outputs, at, i, j, takes)
                    i, j, at = i + int64(takes), j + int64(not takes), at + 1
            more = min(stop - at, end1 - i)
            for step in range(more):
                put(inputs, outputs, at + step, i + step, row * m, True)
            for step in range(stop - at - more):
                put(inputs, outputs, at + more + step, row * n, j + step, False)
            i, j, at, stop = k, l, to, past
        for place in range(max(whole, chunk * size), min(n + m, (chunk + 1) * size)):
            step = place - whole
            if step < n - own:
                put(inputs, outputs, odd + step, odd1 + step, row * m, True)
            else:
                put(inputs, outputs, odd + step, row * n, odd2 + step - (n - own), False)

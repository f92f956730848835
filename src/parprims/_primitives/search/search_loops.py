"""Searches in sorted arrays on CPUs.

numbers: n, m, the number of searches of a task, whether equal keys are in front of the place.

The ranges of some hundred searches are halved in turn. So as many loads are under way, and no search waits for its own
last load. None branches: a range becomes its upper half by a product with 0 or 1.
P. Khuong and P. Morin, Array Layouts for Comparison-Based Searching, ACM J. Experimental Algorithmics 22, 2017.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parprims._cpu.templates.declarations import Arrays, Memory, Number, int64, load, store

if TYPE_CHECKING:  # functions that are written for a call

    def sorted_key(inputs: Arrays, i: int) -> Number:
        """Return a sorted key, in the dtype of comparisons."""

    def wanted_key(inputs: Arrays, i: int) -> Number:
        """Return a wanted key, in the dtype of comparisons."""

    def is_before(key: Number, wanted: Number) -> int:
        """Return 1 if a sorted key is in front of the place of a wanted key, else 0."""

    def keys(count: int) -> Memory:
        """Return memory for wanted keys."""


def search(inputs, outputs, numbers, begin, end):
    """Find the places of wanted keys; a task is some of them."""
    n, m, together, right = numbers[0], numbers[1], numbers[2], numbers[3]
    low, wanted = np.empty(together, np.int64), keys(together)
    first_nan, length = int64(0), n  # NaN come last, and are not in order with others
    while length > 1:
        half = length >> 1
        key = sorted_key(inputs, first_nan + half - 1)
        first_nan += half * int64(key == key)
        length -= half
    key = sorted_key(inputs, first_nan)
    first_nan += int64(key == key)
    place_of_nan = n if right else first_nan
    for task in range(begin, end):
        first = task * together
        few = min(together, m - first)
        for i in range(few):
            store(wanted, i, wanted_key(inputs, first + i))
            store(low, i, int64(0))
        length = n
        while length > 1:
            half = length >> 1
            for i in range(few):
                at = load(low, i)
                store(low, i, at + half * is_before(sorted_key(inputs, at + half - 1), load(wanted, i)))
            length -= half
        for i in range(few):
            at, key = load(low, i), load(wanted, i)
            place = at + is_before(sorted_key(inputs, at), key)
            store(outputs[0], first + i, place if key == key else place_of_nan)

"""Scans and linear recurrences on CPUs, of adjacent lines side by side. Numbers and blocks are as in scan_loops.py.

``go_down`` is one of the functions ``down_...`` below.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    States,
    acrosses_in,
    acrosses_out,
    acrosses_start,
    alongs_in,
    alongs_out,
    get,
    moved_in,
    moved_out,
    moved_start,
    place_in,
    place_out,
    place_start,
    put,
    scratch,
)

if TYPE_CHECKING:  # functions that are written for a call
    from parprims._primitives.scan.loops.scan_loops import advance, begin_line, finish, first_state, shift

    def go_down(inputs, outputs, at, to, numbers, n, columns, lanes, rest):
        """Write n rows of results of a tile of columns, given their `opening` in ``lanes``."""

    def rows(width: int) -> tuple[States, ...]:
        """Return memory for the states of `down_in_blocks`."""


def scan_columns(inputs, starts, outputs, numbers, begin, end):
    """Scan tiles of adjacent lines, row after row: a task is a tile of width columns."""
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    tiles = -(-inner // width)
    lanes, rest = scratch(width), rows(width)
    outer = begin // tiles
    high, middle, left = outer // low, outer % low, begin % tiles * width
    for task in range(begin, end):
        columns = min(width, inner - left)
        at, to = place_in(numbers, high, middle, left), place_out(numbers, high, middle, left)
        tile_down(
            inputs, starts, outputs, at, to, place_start(numbers, high, middle, left), numbers, n, columns, lanes, rest
        )
        # The next tile is found without a division: a tile may have little other work.
        left += width
        if left >= inner:
            left, middle = 0, middle + 1
        if middle == low:
            middle, high = 0, high + 1


def down_in_order(inputs, outputs, at, to, numbers, n, columns, lanes, rest):
    """Write n rows of results, one row after another, given the first row in ``lanes``."""
    steps, steps_out = acrosses_in(numbers), acrosses_out(numbers)
    for j in range(columns):
        finish(outputs, to, steps_out, j, get(lanes, j))
    for i in range(1, n):
        row = moved_in(at, alongs_in(numbers), i)
        results = moved_out(to, alongs_out(numbers), i)
        for j in range(columns):
            state = advance(get(lanes, j), inputs, row, steps, j)
            finish(outputs, results, steps_out, j, state)
            put(lanes, j, state)


def tile_down(inputs, starts, outputs, at, to, from_, numbers, n, columns, lanes, rest):
    """Scan n rows of a tile of columns. Results of an exclusive scan move on by one row."""
    steps, steps_out, across = acrosses_in(numbers), acrosses_out(numbers), acrosses_start(numbers)
    for j in range(columns):
        begin_line(outputs, moved_out(to, steps_out, j), steps_out, starts, moved_start(from_, across, j))
    if n > shift():
        for j in range(columns):
            state = first_state(inputs, starts, moved_in(at, steps, j), steps, moved_start(from_, across, j))
            put(lanes, j, state)
        behind = moved_out(to, alongs_out(numbers), shift())
        go_down(inputs, outputs, at, behind, numbers, n - shift(), columns, lanes, rest)

"""Scans and linear recurrences on CPUs, of adjacent lines side by side. Numbers and pieces are as in scan_loops.py.

``go_down`` is one of the functions ``down_...`` below.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    acrosses_in,
    acrosses_out,
    acrosses_start,
    alongs_in,
    alongs_out,
    combine,
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
    from parprims._primitives.scan.scan_loops import advance, before, element, finish, opening

    def go_down(inputs, outputs, at, to, numbers, n, columns, lanes, groups, group, earlier):
        """Write n rows of results of a tile of columns, given the first row in ``lanes``."""


def scan_columns(inputs, starts, outputs, numbers, begin, end):
    """Scan tiles of adjacent lines, row after row: a task is a tile of width columns."""
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps = acrosses_in(numbers)
    tiles = -(-inner // width)
    lanes, groups, group, earlier = scratch(width), scratch(width), scratch(width), scratch(width)
    outer = begin // tiles
    high, middle, left = outer // low, outer % low, begin % tiles * width
    for task in range(begin, end):
        columns = min(width, inner - left)
        at = place_in(numbers, high, middle, left)
        from_ = place_start(numbers, high, middle, left)
        for j in range(columns):
            put(lanes, j, opening_column(inputs, starts, at, steps, from_, acrosses_start(numbers), j))
        go_down(
            inputs,
            outputs,
            at,
            place_out(numbers, high, middle, left),
            numbers,
            n,
            columns,
            lanes,
            groups,
            group,
            earlier,
        )
        # The next tile is found without a division: a tile may have little other work.
        left += width
        if left >= inner:
            left, middle = 0, middle + 1
        if middle == low:
            middle, high = 0, high + 1


def scan_columns_exclusive(inputs, starts, outputs, numbers, begin, end):
    """Scan tiles as `scan_columns`, with results that leave their own element out: they move on by one."""
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, steps_out = acrosses_in(numbers), acrosses_out(numbers)
    tiles = -(-inner // width)
    lanes, groups, group, earlier = scratch(width), scratch(width), scratch(width), scratch(width)
    outer = begin // tiles
    high, middle, left = outer // low, outer % low, begin % tiles * width
    for task in range(begin, end):
        columns = min(width, inner - left)
        at = place_in(numbers, high, middle, left)
        to = place_out(numbers, high, middle, left)
        from_ = place_start(numbers, high, middle, left)
        for j in range(columns):
            state = before(starts, moved_start(from_, acrosses_start(numbers), j))
            finish(outputs, to, steps_out, j, state)
            put(lanes, j, state)
        if n > 1:
            for j in range(columns):
                put(lanes, j, advance(get(lanes, j), inputs, at, steps, j))
            behind = moved_out(to, alongs_out(numbers), 1)
            go_down(inputs, outputs, at, behind, numbers, n - 1, columns, lanes, groups, group, earlier)
        left += width
        if left >= inner:
            left, middle = 0, middle + 1
        if middle == low:
            middle, high = 0, high + 1


def down_in_order(inputs, outputs, at, to, numbers, n, columns, lanes, groups, group, earlier):
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


def down_in_pieces(inputs, outputs, at, to, numbers, n, columns, lanes, groups, group, earlier):
    """Write n rows of results by pieces and groups of pieces, given the first row in ``lanes``."""
    steps, steps_out = acrosses_in(numbers), acrosses_out(numbers)
    for j in range(columns):
        finish(outputs, to, steps_out, j, get(lanes, j))
    for i in range(1, n):
        row = moved_in(at, alongs_in(numbers), i)
        results = moved_out(to, alongs_out(numbers), i)
        if i < 32:
            for j in range(columns):
                state = combine(get(lanes, j), element(inputs, row, steps, j))
                finish(outputs, results, steps_out, j, state)
                put(lanes, j, state)
        elif i % 32 > 0:
            for j in range(columns):
                state = combine(get(lanes, j), element(inputs, row, steps, j))
                finish(outputs, results, steps_out, j, combine(get(earlier, j), state))
                put(lanes, j, state)
        else:  # loops without branches: a masked store to memory that was never written takes long
            if i % 2048 == 32:
                for j in range(columns):
                    put(group, j, get(lanes, j))
            else:
                for j in range(columns):
                    put(group, j, combine(get(group, j), get(lanes, j)))
            if i < 2048:
                for j in range(columns):
                    put(earlier, j, get(group, j))
            elif i == 2048:
                for j in range(columns):
                    put(groups, j, get(group, j))
                    put(earlier, j, get(group, j))
            elif i % 2048 == 0:
                for j in range(columns):
                    state = combine(get(groups, j), get(group, j))
                    put(groups, j, state)
                    put(earlier, j, state)
            else:
                for j in range(columns):
                    put(earlier, j, combine(get(groups, j), get(group, j)))
            for j in range(columns):
                begun = element(inputs, row, steps, j)
                put(lanes, j, begun)
                finish(outputs, results, steps_out, j, combine(get(earlier, j), begun))


def opening_column(inputs, starts, at, steps, from_, across, j):
    """Return the first state of column j of a tile."""
    return opening(inputs, starts, moved_in(at, steps, j), steps, moved_start(from_, across, j))

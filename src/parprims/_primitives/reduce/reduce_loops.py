"""Reductions on CPUs.

numbers: inner, n, size, blocks, width, the inner lines of partial states, then the numbers of the views of the inputs.

A line is reduced to one result. Lines are cut into blocks of one size, whatever the number of threads. Each block
leaves a state, and the states of a line are combined in order, by a tree.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    Arrays,
    Position,
    State,
    States,
    Steps,
    acrosses_in,
    alongs_in,
    combine,
    get,
    load_from,
    moved_in,
    place_in,
    put,
    scratch,
)

if TYPE_CHECKING:  # functions that are written for a call

    def element(inputs: Arrays, at: Position, steps: Steps, i: int) -> State:
        """Return the state of the element i steps behind a position."""

    def finish(outputs: Arrays, i: int, state: State) -> None:
        """Write the result i."""

    def combine_in_order(earlier: State, later: State) -> State:
        """Return the state of two. If the operator is an extremum of positions, they ascend."""

    def rows_ascend(inputs: Arrays, at: Position, steps: Steps, count: int) -> bool:
        """Return whether each row has one position, and the positions ascend."""

    def ascending(inputs: Arrays, at: Position, steps: Steps, count: int) -> bool:
        """Return whether the positions of a line ascend, and no element is NaN."""

    def begun(inputs: Arrays, at: Position, steps: Steps, count: int) -> tuple[State, int]:
        """Return the initial state of a loop over a block, and the number of elements that it then combines."""

    def quarters(quarter: int) -> tuple[int, int]:
        """Return the distance of four rows that are combined at once, and the distance to the next four."""

    def state_of_block(inputs: Arrays, at: Position, steps: Steps, count: int, width: int, lanes: States) -> State:
        """Return the state of a block by one of the functions below: their names end in ``of_block``."""


def four(inputs, row, row1, row2, row3, steps, j):
    """Return the state of an element of each of four rows.

    With four rows at a time, states are read and written a quarter as often. If order does not count, rows that follow
    one another in memory are taken a quarter of all apart: four places of memory are then read, each without a break.
    """
    s01 = combine(element(inputs, row, steps, j), element(inputs, row1, steps, j))
    s23 = combine(element(inputs, row2, steps, j), element(inputs, row3, steps, j))
    return combine(s01, s23)


def lanes_of_block(inputs, at, steps, count, width, lanes):
    """Return the state of a block for an operator that commutes: `width` lanes side by side are folded at the end."""
    total = element(inputs, at, steps, 0)
    done = 1
    if width > 0 and count >= 2 * width:
        for j in range(width):
            put(lanes, j, element(inputs, at, steps, j))
        rows = count // width
        quarter = (rows - 1) // 4
        gap = quarter * width
        for i in range(1, 1 + quarter):
            row = moved_in(at, steps, i * width)
            row1, row2, row3 = moved_in(row, steps, gap), moved_in(row, steps, 2 * gap), moved_in(row, steps, 3 * gap)
            for j in range(width):
                put(lanes, j, combine(get(lanes, j), four(inputs, row, row1, row2, row3, steps, j)))
        for i in range(1 + 4 * quarter, rows):
            row = moved_in(at, steps, i * width)
            for j in range(width):
                put(lanes, j, combine(get(lanes, j), element(inputs, row, steps, j)))
        row = moved_in(at, steps, rows * width)
        for j in range(count - rows * width):
            put(lanes, j, combine(get(lanes, j), element(inputs, row, steps, j)))
        half = width // 2
        while half > 0:
            for j in range(half):
                put(lanes, j, combine(get(lanes, j), get(lanes, j + half)))
            half //= 2
        total = get(lanes, 0)
        done = count
    for i in range(done, count):
        total = combine(total, element(inputs, at, steps, i))
    return total


def parts_of_block(inputs, at, steps, count, width, lanes):
    """Return the state of a block in order: eight parts side by side hide the latency of the operator."""
    part = count // 8
    done = 1
    total = element(inputs, at, steps, 0)
    if part > 1:
        s1 = element(inputs, at, steps, part)
        s2 = element(inputs, at, steps, 2 * part)
        s3 = element(inputs, at, steps, 3 * part)
        s4 = element(inputs, at, steps, 4 * part)
        s5 = element(inputs, at, steps, 5 * part)
        s6 = element(inputs, at, steps, 6 * part)
        s7 = element(inputs, at, steps, 7 * part)
        for i in range(1, part):
            total = combine_in_order(total, element(inputs, at, steps, i))
            s1 = combine_in_order(s1, element(inputs, at, steps, i + part))
            s2 = combine_in_order(s2, element(inputs, at, steps, i + 2 * part))
            s3 = combine_in_order(s3, element(inputs, at, steps, i + 3 * part))
            s4 = combine_in_order(s4, element(inputs, at, steps, i + 4 * part))
            s5 = combine_in_order(s5, element(inputs, at, steps, i + 5 * part))
            s6 = combine_in_order(s6, element(inputs, at, steps, i + 6 * part))
            s7 = combine_in_order(s7, element(inputs, at, steps, i + 7 * part))
        total = combine_in_order(
            combine_in_order(combine_in_order(total, s1), combine_in_order(s2, s3)),
            combine_in_order(combine_in_order(s4, s5), combine_in_order(s6, s7)),
        )
        done = 8 * part
    for i in range(done, count):
        total = combine_in_order(total, element(inputs, at, steps, i))
    return total


def parts_or_lanes_of_block(inputs, at, steps, count, width, lanes):
    """Return the state of a block, for positions of extrema if elements are not adjacent, as SIMD code needs them."""
    if ascending(inputs, at, steps, count):
        total = parts_of_block(inputs, at, steps, count, width, lanes)
    else:
        total = lanes_of_block(inputs, at, steps, count, width, lanes)
    return total


def all_of_block(inputs, at, steps, count, width, lanes):
    """Return the state of a block for operators on integers: the compiler makes SIMD code of the loop."""
    total, left = begun(inputs, at, steps, count)
    for i in range(left):
        total = combine(total, element(inputs, at, steps, i))
    return total


def positions_ascend(inputs, at, steps, count):
    """Return whether the positions of the elements of a line, or of rows, ascend."""
    found = True
    for i in range(1, count):
        found &= load_from(0, inputs[1], at[1] + steps[1] * (i - 1)) < load_from(0, inputs[1], at[1] + steps[1] * i)
    return found


def reduce_lines(inputs, outputs, partials, numbers, begin, end):
    """Reduce the blocks `begin` ... `end`. Every line has `blocks` of them, more than one."""
    inner, n, size, blocks, width = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    steps = alongs_in(numbers)
    lanes = scratch(max(width, 1))
    for task in range(begin, end):
        line = task // blocks
        outer, first = line // inner, (task - line * blocks) * size
        at = moved_in(place_in(numbers, outer, line - outer * inner), steps, first)
        put(partials, task, state_of_block(inputs, at, steps, min(size, n - first), width, lanes))


def reduce_short_lines(inputs, outputs, partials, numbers, begin, end):
    """Reduce the lines `begin` ... `end`. Each is one block."""
    inner, n, width = numbers[0], numbers[1], numbers[4]
    steps, across = alongs_in(numbers), acrosses_in(numbers)
    lanes = scratch(max(width, 1))
    line = begin
    while line < end:
        outer = line // inner
        inward = line - outer * inner
        first = place_in(numbers, outer, inward)
        count = min(inner - inward, end - line)
        for j in range(count):
            at = moved_in(first, across, j)
            finish(outputs, line + j, state_of_block(inputs, at, steps, n, width, lanes))
        line += count


def reduce_columns(inputs, outputs, partials, numbers, begin, end):
    """Reduce blocks of rows of `inner` adjacent lines: a task is a block of a tile of columns, for one outer index."""
    inner, n, size, blocks, width = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    steps, across = alongs_in(numbers), acrosses_in(numbers)
    tiles = -(-inner // width)
    lanes = scratch(width)
    for task in range(begin, end):
        outer = task // (blocks * tiles)
        block = task // tiles - outer * blocks
        left = (task % tiles) * width
        columns = min(width, inner - left)
        first = block * size
        count = min(size, n - first)
        at = moved_in(place_in(numbers, outer, left), steps, first)
        for j in range(columns):
            put(lanes, j, element(inputs, at, across, j))
        quarter = (count - 1) // 4
        gap, pace = quarters(quarter)
        if rows_ascend(inputs, at, steps, count):
            for i in range(1, 1 + 4 * quarter, 4):
                row, row1 = moved_in(at, steps, i), moved_in(at, steps, i + 1)
                row2, row3 = moved_in(at, steps, i + 2), moved_in(at, steps, i + 3)
                for j in range(columns):
                    state = combine_in_order(get(lanes, j), element(inputs, row, across, j))
                    state = combine_in_order(state, element(inputs, row1, across, j))
                    state = combine_in_order(state, element(inputs, row2, across, j))
                    put(lanes, j, combine_in_order(state, element(inputs, row3, across, j)))
        else:
            for i in range(quarter):
                row = moved_in(at, steps, 1 + i * pace)
                row1, row2, row3 = (
                    moved_in(row, steps, gap),
                    moved_in(row, steps, 2 * gap),
                    moved_in(row, steps, 3 * gap),
                )
                for j in range(columns):
                    put(lanes, j, combine(get(lanes, j), four(inputs, row, row1, row2, row3, across, j)))
        for i in range(1 + 4 * quarter, count):
            row = moved_in(at, steps, i)
            for j in range(columns):
                put(lanes, j, combine(get(lanes, j), element(inputs, row, across, j)))
        to = (outer * blocks + block) * inner + left
        if blocks == 1:
            for j in range(columns):
                finish(outputs, to + j, get(lanes, j))
        else:
            for j in range(columns):
                put(partials, to + j, get(lanes, j))


def fold_partials(inputs, outputs, partials, numbers, begin, end):
    """Combine the states of blocks of the lines `begin` ... `end`: neighbours, then neighbouring pairs, and so on."""
    blocks, inner = numbers[3], numbers[5]
    for line in range(begin, end):
        at = (line // inner) * inner * blocks + line % inner
        step = 1
        while step < blocks:
            for i in range(0, blocks - step, 2 * step):
                put(
                    partials,
                    at + i * inner,
                    combine(get(partials, at + i * inner), get(partials, at + (i + step) * inner)),
                )
            step *= 2
        finish(outputs, line, get(partials, at))

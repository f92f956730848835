"""Reductions on CPUs.

numbers: inner, n, size, blocks, width, the inner lines of partial states, then the numbers of the views of the inputs.

A line is reduced to one result, by the tree of grouping.py if the operator has rounding errors. Lines are cut into
blocks, which are nodes of the tree. Each block leaves a state, and the states of a line are combined.
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

    def begun(inputs: Arrays, at: Position, steps: Steps, count: int) -> tuple[State, int]:
        """Return the initial state of a loop over a block, and the number of elements that it then combines."""

    def has_groups() -> bool:
        """Return whether 256 elements are a group of eight rows."""

    def state_of_block(inputs: Arrays, at: Position, steps: Steps, count: int, states: States) -> State:
        """Return the state of a block by one of the functions below: their names end in ``of_block``."""


# ---- Lines ------------------------------------------------------------------------------------------------------


def four_along(inputs, at, steps, i, gap):
    """Return the state of four elements from i on, ``gap`` apart, which are combined as if they were neighbours."""
    s01 = combine(element(inputs, at, steps, i), element(inputs, at, steps, i + gap))
    s23 = combine(element(inputs, at, steps, i + 2 * gap), element(inputs, at, steps, i + 3 * gap))
    return combine(s01, s23)


def tree_of_block(inputs, at, steps, count, states):
    """Return the state of a block: of the elements behind its groups of 256, and then of these groups if it has any."""
    grouped = 0
    if has_groups():
        grouped = count // 256 * 256
    rest, has_rest = rest_of_block(inputs, at, steps, count)
    nodes = (count - grouped) // 4
    for j in range(nodes):
        put(states, j, four_along(inputs, at, steps, grouped + 4 * j, 1))
    for stage in range(1 + has_groups()):
        if stage > 0:
            nodes, has_rest = nodes_of_groups(inputs, at, steps, grouped, states), grouped < count
        rest = tree_of_states(states, 0, 1, nodes, rest, has_rest)
    return rest


def nodes_of_groups(inputs, at, steps, count, states):
    """Leave a state for each column of eight rows; return the number of states."""
    for first in range(0, count, 256):
        for j in range(32):
            earlier = four_along(inputs, at, steps, first + j, 32)
            put(states, first // 8 + j, combine(earlier, four_along(inputs, at, steps, first + 128 + j, 32)))
    return count // 8


def rest_of_block(inputs, at, steps, count):
    """Return the state of the elements behind the last whole four, and whether there are any."""
    rest = element(inputs, at, steps, count - 1)
    left = count % 4
    if left > 1:
        i = count - left
        pair = combine(element(inputs, at, steps, i), element(inputs, at, steps, i + 1))
        if left > 2:
            rest = combine(pair, rest)
        else:
            rest = pair
    return rest, left > 0


def few_of_block(inputs, at, steps, count):
    """Return the state of a block of fewer than 16 elements, without memory for states."""
    rest, has_rest = rest_of_block(inputs, at, steps, count)
    earlier = rest
    for j in range(count // 4):
        whole = four_along(inputs, at, steps, 4 * j, 1)
        if j == 1:
            whole = combine(earlier, whole)
        if j < 2:
            earlier = whole
        elif has_rest:
            rest = combine(whole, rest)
        else:
            rest = whole
    if count > 11:
        has_rest = True
    if has_rest & (count > 3):
        rest = combine(earlier, rest)
    elif count > 3:
        rest = earlier
    return rest


def tree_of_states(states, first, step, count, rest, has_rest):
    """Return the combination of states by the tree, which overwrites them, and of the rest behind them if there is one.

    There is a state or a rest.
    """
    while count > 0:
        if count % 2 > 0:
            last = get(states, first + step * (count - 1))
            if has_rest:
                rest = combine(last, rest)
            else:
                rest = last
            has_rest = True
        count //= 2
        for j in range(count):
            earlier, later = first + step * (2 * j), first + step * (2 * j + 1)
            put(states, first + step * j, combine(get(states, earlier), get(states, later)))
    return rest


def all_of_block(inputs, at, steps, count):
    """Return the state of a block in any order, for operators on integers: the compiler makes SIMD code of the loop."""
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
    inner, n, size, blocks, kept = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    steps = alongs_in(numbers)
    states = scratch(kept)
    for task in range(begin, end):
        line = task // blocks
        outer, first = line // inner, (task - line * blocks) * size
        at = moved_in(place_in(numbers, outer, line - outer * inner), steps, first)
        put(partials, task, state_of_block(inputs, at, steps, min(size, n - first), states))


def reduce_short_lines(inputs, outputs, partials, numbers, begin, end):
    """Reduce the lines `begin` ... `end`. Each is one block."""
    inner, n, kept = numbers[0], numbers[1], numbers[4]
    steps, across = alongs_in(numbers), acrosses_in(numbers)
    states = scratch(kept)
    line = begin
    while line < end:
        outer = line // inner
        inward = line - outer * inner
        first = place_in(numbers, outer, inward)
        count = min(inner - inward, end - line)
        for j in range(count):
            at = moved_in(first, across, j)
            finish(outputs, line + j, state_of_block(inputs, at, steps, n, states))
        line += count


# ---- Columns ----------------------------------------------------------------------------------------------------
#
# Rows of states form a stack. On it lie the states of nodes of the tree that have no neighbour yet, the largest first.


def four(inputs, row, along, gap, steps, j):
    """Return the state of element j of four rows, ``gap`` apart, which are combined as if they were neighbours."""
    row1, row2, row3 = moved_in(row, along, gap), moved_in(row, along, 2 * gap), moved_in(row, along, 3 * gap)
    s01 = combine(element(inputs, row, steps, j), element(inputs, row1, steps, j))
    s23 = combine(element(inputs, row2, steps, j), element(inputs, row3, steps, j))
    return combine(s01, s23)


def depth_of_stack(count):
    """Return the most rows of states on a stack for ``count`` rows of elements."""
    depth = 2
    while count > 1:
        depth += 1
        count //= 2
    return depth


def push_rows(inputs, at, steps, across, count, columns, width, lanes, depth):
    """Push the states of the last ``count`` rows onto the stack, eight and then one at a time.

    Neighbours are combined, and in the end all states of the stack.
    """
    eights, grouped = count // 8, 0
    if has_groups():
        grouped = count // 256 * 32
    for i in range(eights + count % 8):
        pushed = i + 1
        if i < eights:
            first, gap = 8 * i, 1
            if i < grouped:
                first, gap = i // 32 * 256 + i % 32, 32
            row = moved_in(at, steps, first)
            row4 = moved_in(row, steps, 4 * gap)
            for j in range(columns):
                earlier = four(inputs, row, steps, gap, across, j)
                put(lanes, depth * width + j, combine(earlier, four(inputs, row4, steps, gap, across, j)))
        else:
            pushed = i - eights + 1
            row = moved_in(at, steps, 7 * eights + i)
            for j in range(columns):
                put(lanes, depth * width + j, element(inputs, row, across, j))
        depth = join_neighbours(lanes, columns, width, depth + 1, pushed, i + 1 == eights + count % 8)


def join_neighbours(lanes, columns, width, depth, pushed, is_last):
    """Combine the last two rows of the stack while they are neighbours, or all if these are the last; return its depth.

    After an even number of pushes of one length, the last two are neighbours.
    """
    while (depth > 1) & (is_last | (pushed % 2 == 0)):
        depth -= 1
        to = (depth - 1) * width
        for j in range(columns):
            put(lanes, to + j, combine(get(lanes, to + j), get(lanes, to + width + j)))
        pushed //= 2
    return depth


def reduce_columns(inputs, outputs, partials, numbers, begin, end):
    """Reduce blocks of rows of `inner` adjacent lines: a task is a block of a tile of columns, for one outer index."""
    inner, n, size, blocks, width = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    steps, across = alongs_in(numbers), acrosses_in(numbers)
    tiles = -(-inner // width)
    lanes = scratch(width * depth_of_stack(min(size, n)))
    for task in range(begin, end):
        outer = task // (blocks * tiles)
        block = task // tiles - outer * blocks
        left = (task % tiles) * width
        columns = min(width, inner - left)
        first = block * size
        count = min(size, n - first)
        at = moved_in(place_in(numbers, outer, left), steps, first)
        if rows_ascend(inputs, at, steps, count):
            for j in range(columns):
                put(lanes, j, element(inputs, at, across, j))
            for i in range(1, count):
                row = moved_in(at, steps, i)
                for j in range(columns):
                    put(lanes, j, combine_in_order(get(lanes, j), element(inputs, row, across, j)))
        else:
            push_rows(inputs, at, steps, across, count, columns, width, lanes, 0)
        to = (outer * blocks + block) * inner + left
        if blocks == 1:
            for j in range(columns):
                finish(outputs, to + j, get(lanes, j))
        else:
            for j in range(columns):
                put(partials, to + j, get(lanes, j))


def fold_partials(inputs, outputs, partials, numbers, begin, end):
    """Combine the states of blocks of the lines `begin` ... `end` by the tree."""
    blocks, inner = numbers[3], numbers[5]
    for line in range(begin, end):
        at = (line // inner) * inner * blocks + line % inner
        finish(outputs, line, tree_of_states(partials, at, inner, blocks, get(partials, at), False))

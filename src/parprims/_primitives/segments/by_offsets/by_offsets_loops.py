"""Reductions, scans and recurrences of segments by offsets on CPUs.

numbers: low, n, inner, width, then the numbers of views, then segments, shares, share, slots, block.

A task is a share of a line or of columns: the segments that begin in a share of the axis. Offsets that do not ascend
are clipped to the axis, so no other memory is read, and every result is written.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    Arrays,
    Numbers,
    Position,
    State,
    acrosses_in,
    acrosses_out,
    acrosses_start,
    alongs_in,
    alongs_out,
    alongs_start,
    get,
    moved_in,
    moved_out,
    moved_start,
    place_in,
    put,
    scratch,
)
from parprims._primitives.reduce.reduce_loops import (
    depth_of_stack,
    join_neighbours,
    push_rows,
    tree_of_states,
)
from parprims._primitives.scan.loops.columns_loops import tile_down
from parprims._primitives.scan.loops.scan_loops import indices_of, place_of

if TYPE_CHECKING:  # functions that are written for a call
    from parprims._primitives.reduce.reduce_loops import state_of_block
    from parprims._primitives.scan.loops.columns_loops import rows
    from parprims._primitives.scan.loops.scan_loops import (
        before,
        begin_line,
        finish,
        first_state,
        go_along,
        memory,
        shift,
    )

    def offset(inputs: Arrays, number: int) -> int:
        """Return the place where a segment begins, as the call gives it."""

    def segments_of(numbers: Numbers) -> int:
        """Return the number of segments."""

    def shares_of(numbers: Numbers) -> int:
        """Return the number of shares that the axis is cut into."""

    def share_of(numbers: Numbers) -> int:
        """Return the number of elements of a share."""

    def slots_of(numbers: Numbers) -> int:
        """Return the number of slots that the axis is cut into."""

    def block_of(numbers: Numbers) -> int:
        """Return the number of elements of a slot, and of a block."""

    def turned(n: int, first: int, behind: int) -> int:
        """Return the place from which a segment is walked, counted from the first element of the walk along a line."""

    def closed(starts: Arrays, from_: Position, state: State) -> State:
        """Return the result of a segment, given the state of its elements."""


def segment_from(inputs, numbers, share):
    """Return the number of the first segment that begins in a share or behind it."""
    segments, wanted = segments_of(numbers), share * share_of(numbers)
    low, high = 0, segments
    while low < high:
        middle = (low + high) // 2
        if offset(inputs, middle) < wanted:
            low = middle + 1
        else:
            high = middle
    if share == 0:
        low = 0
    if share == shares_of(numbers):
        low = segments
    return low


def clipped(inputs, number, low, n):
    """Return the place where a segment begins, clipped to low ... n."""
    return min(max(offset(inputs, number), low), n)


def place_of_segment(inputs, numbers, number, n):
    """Return the place where a segment begins, if segments take up the whole axis."""
    place = clipped(inputs, number, 0, n)
    if number == 0:
        place = 0
    if number == segments_of(numbers):
        place = n
    return place


def scan_segments(inputs, starts, outputs, numbers, begin, end):
    """Scan the segments of shares of lines."""
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, steps_out, shares = alongs_in(numbers), alongs_out(numbers), shares_of(numbers)
    steps_start, rest = alongs_start(numbers), memory()
    for task in range(begin, end):
        line = task // shares
        high, middle, across = indices_of(line, low, inner)
        at, to, from_ = place_of(numbers, high, middle, across)
        number = segment_from(inputs, numbers, task - line * shares)
        stop = segment_from(inputs, numbers, task - line * shares + 1)
        first, last = place_of_segment(inputs, numbers, number, n), place_of_segment(inputs, numbers, stop, n)
        while number < stop:
            number += 1
            behind = last
            if number < stop:
                behind = clipped(inputs, number, first, last)
            if behind > first:
                place = turned(n, first, behind)
                at_place, to_place = moved_in(at, steps, place), moved_out(to, steps_out, place)
                start = moved_start(from_, steps_start, number - 1)
                segment_along(
                    inputs, starts, outputs, at_place, to_place, start, steps, steps_out, behind - first, rest
                )
            first = behind


def segment_along(inputs, starts, outputs, at, to, from_, steps, steps_out, count, rest):
    """Scan a segment of a line. Results of an exclusive scan move on by one element."""
    begin_line(outputs, to, steps_out, starts, from_)
    if count > shift():
        state, to = first_state(inputs, starts, at, steps, from_), moved_out(to, steps_out, shift())
        go_along(inputs, outputs, at, to, steps, steps_out, count - shift(), state, rest)


def scan_segments_down(inputs, starts, outputs, numbers, begin, end):
    """Scan the segments of shares of tiles of adjacent lines, row after row."""
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, steps_out, shares = alongs_in(numbers), alongs_out(numbers), shares_of(numbers)
    tiles = -(-inner // width)
    lanes, rest = scratch(width), rows(width)
    for task in range(begin, end):
        tile = task // shares
        outer = tile // tiles
        left = (tile - outer * tiles) * width
        columns = min(width, inner - left)
        at, to, from_ = place_of(numbers, outer // low, outer % low, left)
        number = segment_from(inputs, numbers, task - tile * shares)
        stop = segment_from(inputs, numbers, task - tile * shares + 1)
        first, last = place_of_segment(inputs, numbers, number, n), place_of_segment(inputs, numbers, stop, n)
        while number < stop:
            number += 1
            behind = last
            if number < stop:
                behind = clipped(inputs, number, first, last)
            if behind > first:
                place = turned(n, first, behind)
                at_place, to_place = moved_in(at, steps, place), moved_out(to, steps_out, place)
                tile_down(
                    inputs,
                    starts,
                    outputs,
                    at_place,
                    to_place,
                    moved_start(from_, alongs_start(numbers), number - 1),
                    numbers,
                    behind - first,
                    columns,
                    lanes,
                    rest,
                )
            first = behind


# ---- Reductions -------------------------------------------------------------------------------------------------
#
# Segments are cut into blocks of one size from their first element on. The axis is cut into slots of as many elements.
# Blocks do not overlap, so at most one whole block begins in a slot, where it leaves its state: so threads share the
# longest segment. Blocks are nodes of the tree of reduce/grouping.py. The task of a segment combines the states of its
# blocks, and of the elements behind them, by this tree.


def block_in(inputs, numbers, n, slot):
    """Return the place of the whole block that begins in a slot, or -1 if there is none."""
    block, segments = block_of(numbers), segments_of(numbers)
    last = slot * block + block - 1
    low, high = 0, segments
    while low < high:  # segments that begin at the last place of the slot or before: the last of them holds that place
        middle = (low + high) // 2
        if offset(inputs, middle) <= last:
            low = middle + 1
        else:
            high = middle
    found = -1
    if low > 0:
        first = clipped(inputs, low - 1, 0, n)
        behind = clipped(inputs, low, first, n)
        place = first + max(0, -((first - slot * block) // block)) * block
        if place + block <= behind:
            found = place
    return found


def reduce_blocks(inputs, starts, outputs, partials, numbers, begin, end):
    """Leave the states of whole blocks of lines; a task is a slot."""
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, slots, block = alongs_in(numbers), slots_of(numbers), block_of(numbers)
    lanes = scratch(1 + min(n, block) // 4)
    for task in range(begin, end):
        line = task // slots
        high, middle, across = indices_of(line, low, inner)
        place = block_in(inputs, numbers, n, task - line * slots)
        count = block
        if place < 0:  # a state that nobody reads, unless offsets do not ascend
            place, count = (task - line * slots) * block, 1
        at = moved_in(place_in(numbers, high, middle, across), steps, place)
        put(partials, task, state_of_block(inputs, at, steps, count, lanes))


def reduce_segments(inputs, starts, outputs, partials, numbers, begin, end):
    """Reduce the segments of shares of lines."""
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, steps_out, shares = alongs_in(numbers), alongs_out(numbers), shares_of(numbers)
    slots, block = slots_of(numbers), block_of(numbers)
    lanes = scratch(1 + min(n, block) // 4)
    for task in range(begin, end):
        line = task // shares
        high, middle, across = indices_of(line, low, inner)
        at, to, from_ = place_of(numbers, high, middle, across)
        number = segment_from(inputs, numbers, task - line * shares)
        stop = segment_from(inputs, numbers, task - line * shares + 1)
        first = clipped(inputs, number, 0, n)
        while number < stop:
            behind = clipped(inputs, number + 1, 0, n)
            state = before(starts, from_)
            if first < behind:
                whole = (behind - first) // block
                rest = first + whole * block
                if rest < behind:
                    state = state_of_block(inputs, moved_in(at, steps, rest), steps, behind - rest, lanes)
                if whole > 0:
                    state = tree_of_states(partials, line * slots + first // block, 1, whole, state, rest < behind)
                state = closed(starts, from_, state)
            finish(outputs, to, steps_out, number, state)
            number += 1
            first = behind


def reduce_blocks_of_rows(inputs, starts, outputs, partials, numbers, begin, end):
    """Leave the states of whole blocks of rows; a task is a slot of a tile of columns."""
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, across, slots, block = alongs_in(numbers), acrosses_in(numbers), slots_of(numbers), block_of(numbers)
    tiles = -(-inner // width)
    lanes = scratch(width * depth_of_stack(block))
    for task in range(begin, end):
        tile = task // slots
        slot, outer = task - tile * slots, tile // tiles
        left = (tile - outer * tiles) * width
        columns = min(width, inner - left)
        place = block_in(inputs, numbers, n, slot)
        count = block
        if place < 0:  # as above
            place, count = slot * block, 1
        at = moved_in(place_in(numbers, outer // low, outer % low, left), steps, place)
        push_rows(inputs, at, steps, across, count, columns, width, lanes, 0)
        spot = (outer * slots + slot) * inner + left
        for j in range(columns):
            put(partials, spot + j, get(lanes, j))


def reduce_segments_of_rows(inputs, starts, outputs, partials, numbers, begin, end):
    """Reduce the segments of shares of tiles of columns."""
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, across, steps_out = alongs_in(numbers), acrosses_in(numbers), acrosses_out(numbers)
    shares, slots, block = shares_of(numbers), slots_of(numbers), block_of(numbers)
    tiles = -(-inner // width)
    lanes = scratch(width * depth_of_stack(n))
    for task in range(begin, end):
        tile = task // shares
        outer = tile // tiles
        left = (tile - outer * tiles) * width
        columns = min(width, inner - left)
        at, to, from_ = place_of(numbers, outer // low, outer % low, left)
        number = segment_from(inputs, numbers, task - tile * shares)
        stop = segment_from(inputs, numbers, task - tile * shares + 1)
        first = clipped(inputs, number, 0, n)
        while number < stop:
            behind = clipped(inputs, number + 1, 0, n)
            results = moved_out(to, alongs_out(numbers), number)
            if first < behind:
                whole = (behind - first) // block
                depth = 0
                for i in range(whole):
                    spot = (outer * slots + first // block + i) * inner + left
                    for j in range(columns):
                        put(lanes, depth * width + j, get(partials, spot + j))
                    depth = join_neighbours(lanes, columns, width, depth + 1, i + 1, first + (i + 1) * block == behind)
                rest = first + whole * block
                row = moved_in(at, steps, rest)
                push_rows(inputs, row, steps, across, behind - rest, columns, width, lanes, depth)
                for j in range(columns):
                    state = closed(starts, moved_start(from_, acrosses_start(numbers), j), get(lanes, j))
                    finish(outputs, results, steps_out, j, state)
            else:
                for j in range(columns):
                    finish(
                        outputs, results, steps_out, j, before(starts, moved_start(from_, acrosses_start(numbers), j))
                    )
            number += 1
            first = behind

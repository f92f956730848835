"""Scans and linear recurrences on CPUs.

numbers: low, n, inner, width, then the numbers of the views of inputs, outputs and starts. A line is scanned from its
first element to its last; the first element of a reverse scan is the last in memory.

The bits of a floating-point result depend on the grouping of its elements. Where operators round, the grouping is the
canonical one of scan/grouping.py: it depends on the place of an element in its line alone (blocks_loops.py). Exact
operators, and recurrences, go in order.

``go_along`` is one of the functions ``along_...`` below, and ``go_through`` and ``go_behind`` are likewise among the
functions ``through_...`` and ``behind_...``. Columns are in columns_loops.py.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    Arrays,
    Numbers,
    Position,
    State,
    States,
    Steps,
    acrosses_in,
    acrosses_out,
    acrosses_start,
    alongs_in,
    alongs_out,
    combine,
    get,
    int64,
    moved_in,
    moved_out,
    moved_start,
    place_in,
    place_out,
    place_start,
    put,
)

if TYPE_CHECKING:  # functions that are written for a call

    def element(inputs: Arrays, at: Position, steps: Steps, i: int) -> State:
        """Return the state of the element i steps behind a position."""

    def advance(state: State, inputs: Arrays, at: Position, steps: Steps, i: int) -> State:
        """Return the state after the element i steps behind a position."""

    def opening(inputs: Arrays, starts: Arrays, at: Position, steps: Steps, from_: Position) -> State:
        """Return the first result of an inclusive scan, as a state; by blocks the state before it, or any state."""

    def before(starts: Arrays, from_: Position) -> State:
        """Return the state before the first element."""

    def first_state(inputs: Arrays, starts: Arrays, at: Position, steps: Steps, from_: Position) -> State:
        """Return the state after the first element; by blocks that before it, if there is one."""

    def is_known() -> bool:
        """Return whether lines begin after a state."""

    def block() -> int:
        """Return the number of elements of a block."""

    def finish(outputs: Arrays, to: Position, steps: Steps, i: int, state: State) -> None:
        """Write the result i steps behind a position."""

    def begin_line(outputs: Arrays, to: Position, steps: Steps, starts: Arrays, from_: Position) -> None:
        """Write the result before the first element, if the scan is exclusive."""

    def shift() -> int:
        """Return 1 if the scan is exclusive, else 0."""

    def same(one: State, other: State) -> bool:
        """Return whether two states have equal bits."""

    def loses(state: State, inputs: Arrays, at: Position, steps: Steps, i: int) -> bool:
        """Return whether the first component of an element already shows that it changes nothing."""

    def go_along(
        inputs: Arrays,
        outputs: Arrays,
        at: Position,
        to: Position,
        steps: Steps,
        steps_out: Steps,
        n: int,
        state: State,
        rest: States,
    ) -> State:
        """Write n results of a line, given its `opening`; return the state of its blocks. ``rest`` is its `memory`."""

    def memory() -> States:
        """Return memory for 32 states, if `go_along` needs them."""

    def go_through(inputs: Arrays, at: Position, steps: Steps, state: State) -> State:
        """Return the state of a block, given the state of its first element."""

    def go_behind(inputs, outputs, at, to, steps, steps_out, n, earlier, rest):
        """Write n results of blocks, given the state before them."""

    def front_of(numbers: Numbers) -> int:
        """Return the number of blocks in the front of a line."""

    def stretch_of(numbers: Numbers) -> int:
        """Return the number of blocks in each stretch behind the front."""

    def totals_of(numbers: Numbers) -> int:
        """Return the number of blocks between the front and the last stretch."""


def indices_of(line, low, inner):
    """Return the indices of a line along the axes high, low and inner."""
    outer = line // inner
    return outer // low, outer % low, line % inner


def scan_lines(inputs, starts, outputs, numbers, begin, end):
    """Scan the lines begin ... end, each from its first element to its last; inner counts fastest.

    The results of an exclusive scan leave their own element out: they move on by one.
    """
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, steps_out = alongs_in(numbers), alongs_out(numbers)
    rest = memory()
    line = begin
    while line < end:
        high, middle, across = indices_of(line, low, inner)
        at, to, from_ = place_of(numbers, high, middle, across)
        count = min(inner - across, end - line)
        for j in range(count):
            at_j, to_j, from_j = place_beside(numbers, at, to, from_, j)
            begin_line(outputs, to_j, steps_out, starts, from_j)
            if n > shift():
                state = first_state(inputs, starts, at_j, steps, from_j)
                to_j = moved_out(to_j, steps_out, shift())
                go_along(inputs, outputs, at_j, to_j, steps, steps_out, n - shift(), state, rest)
        line += count


def place_of(numbers, high, middle, across):
    """Return the positions of a line in inputs, outputs and starts."""
    at, to = place_in(numbers, high, middle, across), place_out(numbers, high, middle, across)
    return at, to, place_start(numbers, high, middle, across)


def place_beside(numbers, at, to, from_, j):
    """Return the positions of the line j across from another. A division would take as long as ten elements."""
    beside, beside_to = moved_in(at, acrosses_in(numbers), j), moved_out(to, acrosses_out(numbers), j)
    return beside, beside_to, moved_start(from_, acrosses_start(numbers), j)


def scan_fronts(inputs, starts, outputs, totals, numbers, begin, end):
    """Scan the front of each line, and combine the elements of blocks behind it: the first of three kernels.

    With three kernels, several threads share a long line. A thread scans the front, while others combine the blocks
    behind it. Then the states of blocks are scanned, and then the rest of the line, in several places at once. The
    first task of a line is its front, and every other task is a block. States are combined as in a scan of the whole
    line, so results have equal bits.
    """
    low, inner = numbers[0], numbers[2]
    steps, steps_out, front = alongs_in(numbers), alongs_out(numbers), front_of(numbers)
    tasks, rest = 1 + totals_of(numbers), memory()
    for task in range(begin, end):
        line, number = task // tasks, task % tasks
        high, middle, across = indices_of(line, low, inner)
        at, to, from_ = place_of(numbers, high, middle, across)
        if number == 0:
            begin_line(outputs, to, steps_out, starts, from_)
            state = first_state(inputs, starts, at, steps, from_)
            to = moved_out(to, steps_out, shift())
            put(totals, task, go_along(inputs, outputs, at, to, steps, steps_out, block() * front, state, rest))
        else:
            at = moved_in(at, steps, block() * (front + number - 1))
            state = element(inputs, at, steps, 0)
            put(totals, task, go_through(inputs, at, steps, state))


def scan_totals(inputs, starts, outputs, totals, numbers, begin, end):
    """Scan the states of the front and of the blocks of each line, which `scan_fronts` left."""
    tasks = 1 + totals_of(numbers)
    for line in range(begin, end):
        state = get(totals, line * tasks)
        for task in range(line * tasks + 1, (line + 1) * tasks):
            state = combine(state, get(totals, task))
            put(totals, task, state)


def scan_stretches(inputs, starts, outputs, totals, numbers, begin, end):
    """Write the results behind the fronts. A task is a stretch of blocks, and the state before it is known."""
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, steps_out, front, stretch = alongs_in(numbers), alongs_out(numbers), front_of(numbers), stretch_of(numbers)
    tasks, stretches, rest = 1 + totals_of(numbers), 1 + totals_of(numbers) // stretch, memory()
    for task in range(begin, end):
        line, number = task // stretches, task % stretches
        high, middle, across = indices_of(line, low, inner)
        first = block() * (front + number * stretch)
        at = moved_in(place_in(numbers, high, middle, across), steps, first)
        to = moved_out(place_out(numbers, high, middle, across), steps_out, first + shift())
        count = min(block() * stretch, n - shift() - first)
        earlier = get(totals, line * tasks + number * stretch)
        go_behind(inputs, outputs, at, to, steps, steps_out, count, earlier, rest)


def along_in_order(inputs, outputs, at, to, steps, steps_out, n, state, rest):
    """Write n results of a line, one element after another, given the first as ``state``. Return the last."""
    finish(outputs, to, steps_out, 0, state)
    for i in range(1, n):
        state = advance(state, inputs, at, steps, i)
        finish(outputs, to, steps_out, i, state)
    return state


def along_by_changes(inputs, outputs, at, to, steps, steps_out, n, state, rest):
    """Write the results of `along_in_order`, for operators that mostly leave a state as it is, such as the maximum.

    If each of 32 elements leaves all bits of the state before them as they are, all 32 results are that state. In this
    test no element waits for another.
    """
    finish(outputs, to, steps_out, 0, state)
    for first in range(1, n, 32):
        row = moved_in(at, steps, first)
        results = moved_out(to, steps_out, first)
        count = min(n - first, 32)  # the compiler unrolls a loop of constant length, and makes no SIMD code of it
        if changed_by_some(state, inputs, row, steps, count):
            for i in range(count):
                state = advance(state, inputs, row, steps, i)
                finish(outputs, results, steps_out, i, state)
        else:
            for i in range(count):
                finish(outputs, results, steps_out, i, state)
    return state


def changed_by_some(state, inputs, at, steps, count):
    """Return whether one of ``count`` elements from a position on would change a state."""
    changes = False
    for i in range(count):
        changes |= not loses(state, inputs, at, steps, i)
    if changes:
        changes = False
        for i in range(count):
            changes |= not same(state, advance(state, inputs, at, steps, i))
    return changes


def through_in_order(inputs, at, steps, state):
    """Return the state of a block one element after another, given the state of the first element."""
    for i in range(1, block()):
        state = advance(state, inputs, at, steps, i)
    return state


def through_by_changes(inputs, at, steps, state):
    """Return the state of a block as `through_in_order`, by the test of `along_by_changes`."""
    for first in range(0, block(), 32):
        row = moved_in(at, steps, first)
        if changed_by_some(state, inputs, row, steps, 32):
            for i in range(int64(first == 0), 32):
                state = advance(state, inputs, row, steps, i)
    return state


def behind_in_order(inputs, outputs, at, to, steps, steps_out, n, earlier, rest):
    """Write n results of blocks by `along_in_order`."""
    along_in_order(inputs, outputs, at, to, steps, steps_out, n, advance(earlier, inputs, at, steps, 0), rest)


def behind_by_changes(inputs, outputs, at, to, steps, steps_out, n, earlier, rest):
    """Write n results of blocks by `along_by_changes`."""
    along_by_changes(inputs, outputs, at, to, steps, steps_out, n, advance(earlier, inputs, at, steps, 0), rest)

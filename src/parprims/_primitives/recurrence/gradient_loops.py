"""Derivatives of linear recurrences on CPUs.

inputs: a, g and perhaps x. outputs: the derivatives by b and perhaps by a. numbers: low, n, inner, width, then the
numbers of views.

The recurrence l[n] = g[n] + conj(a[n+1]) l[n+1] begins at the last n, and places are counted from there. The state is
l, which is the derivative by b. The derivative by a is l conj(x), with x at the next place. So a step reads a at the
place behind, and g and x at its own place: every array is read and written once.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    Arrays,
    Position,
    State,
    Steps,
    acrosses_in,
    acrosses_out,
    alongs_in,
    alongs_out,
    get,
    moved_in,
    moved_out,
    place_in,
    place_out,
    put,
    scratch,
)

if TYPE_CHECKING:  # functions that are written for a call

    def begun(inputs: Arrays, at: Position, steps: Steps, i: int) -> State:
        """Return the state at the first place, which is g."""

    def following(inputs: Arrays, behind: Position, at: Position, steps: Steps, i: int, state: State) -> State:
        """Return the state at the place ``at``, given the state at the place ``behind`` it."""

    def results(inputs: Arrays, at: Position, steps: Steps, i: int, state: State) -> State:
        """Return the derivatives at the place behind, given its state."""

    def last_results(state: State) -> State:
        """Return the derivatives at the last place."""

    def write(outputs: Arrays, to: Position, steps: Steps, i: int, results: State) -> None:
        """Write derivatives."""


def adjoint_lines(inputs, outputs, numbers, begin, end):
    """Walk the lines begin ... end, two at once: while an element waits for the one before, the other line goes on."""
    n = numbers[1]
    steps, steps_out = alongs_in(numbers), alongs_out(numbers)
    for line in range(begin, end, 2):
        at, to = line_in(numbers, line), line_out(numbers, line)
        behind, to = moved_in(at, steps, -1), moved_out(to, steps_out, -1)
        state = begun(inputs, at, steps, 0)
        if line + 1 < end:
            other, other_to = line_in(numbers, line + 1), line_out(numbers, line + 1)
            other_behind, other_to = moved_in(other, steps, -1), moved_out(other_to, steps_out, -1)
            second = begun(inputs, other, steps, 0)
            for i in range(1, n):
                write(outputs, to, steps_out, i, results(inputs, at, steps, i, state))
                write(outputs, other_to, steps_out, i, results(inputs, other, steps, i, second))
                state = following(inputs, behind, at, steps, i, state)
                second = following(inputs, other_behind, other, steps, i, second)
            write(outputs, other_to, steps_out, n, last_results(second))
        else:
            for i in range(1, n):
                write(outputs, to, steps_out, i, results(inputs, at, steps, i, state))
                state = following(inputs, behind, at, steps, i, state)
        write(outputs, to, steps_out, n, last_results(state))


def line_in(numbers, line):
    """Return where a line begins in the inputs."""
    low, inner = numbers[0], numbers[2]
    outer = line // inner
    return place_in(numbers, outer // low, outer % low, line % inner)


def line_out(numbers, line):
    """Return where a line begins in the outputs."""
    low, inner = numbers[0], numbers[2]
    outer = line // inner
    return place_out(numbers, outer // low, outer % low, line % inner)


def adjoint_columns(inputs, outputs, numbers, begin, end):
    """Walk tiles of adjacent lines, row after row: a task is a tile of width columns."""
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, steps_out = acrosses_in(numbers), acrosses_out(numbers)
    tiles = -(-inner // width)
    lanes = scratch(width)
    for task in range(begin, end):
        outer, left = task // tiles, task % tiles * width
        columns = min(width, inner - left)
        at = place_in(numbers, outer // low, outer % low, left)
        to = place_out(numbers, outer // low, outer % low, left)
        for j in range(columns):
            put(lanes, j, begun(inputs, at, steps, j))
        for i in range(1, n):
            behind = moved_in(at, alongs_in(numbers), i - 1)
            row = moved_in(at, alongs_in(numbers), i)
            row_to = moved_out(to, alongs_out(numbers), i - 1)
            for j in range(columns):
                state = get(lanes, j)
                write(outputs, row_to, steps_out, j, results(inputs, row, steps, j, state))
                put(lanes, j, following(inputs, behind, row, steps, j, state))
        row_to = moved_out(to, alongs_out(numbers), n - 1)
        for j in range(columns):
            write(outputs, row_to, steps_out, j, last_results(get(lanes, j)))

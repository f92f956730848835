"""Reductions by segment numbers on CPUs.

numbers: n, inner, segments, blocks, size. The elements are (outer, n, inner).

The n rows are cut into blocks by n and the number of segments. Each block has a table with the states of all segments,
and a mark for each segment that it has seen. Rows are combined in their order, and then tables in theirs: a result does
not depend on the number of threads.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import Arrays, Numbers, State, States, combine, get, load, put, store, uint8

if TYPE_CHECKING:  # functions that are written for a call

    def segment(inputs: Arrays, i: int) -> int:
        """Return the number of the segment of row i."""

    def element(inputs: Arrays, at: int) -> State:
        """Return the state of an element."""

    def width(numbers: Numbers) -> int:
        """Return the number of adjacent lines: a constant if it is 1."""

    def mem_of(parts: States) -> States:
        """Return the states of tables."""

    def joined(seen: bool, state: State, later: State) -> State:
        """Return two states combined if seen, else the later: without a branch, which would often be guessed wrong."""

    def before(inputs: Arrays, at: int) -> State:
        """Return the initial element of a segment, or the identity."""

    def begins() -> bool:
        """Return whether segments have an initial element, which is combined with their elements."""

    def finish(outputs: Arrays, at: int, state: State) -> None:
        """Write a result."""


def gather_blocks(inputs, outputs, parts, numbers, begin, end):
    """Combine the rows of blocks into tables; a task is a block of one outer line."""
    n, inner, segments, blocks, size = numbers[0], width(numbers), numbers[2], numbers[3], numbers[4]
    mem = mem_of(parts)
    for task in range(begin, end):
        outer = task // blocks
        block = task - outer * blocks
        marks = task * segments
        for i in range(segments):
            store(parts[1], marks + i, uint8(0))
        for i in range(block * size, min(n, (block + 1) * size)):
            number = segment(inputs, i)
            if (number >= 0) & (number < segments):
                row, to = (outer * n + i) * inner, (marks + number) * inner
                seen = load(parts[1], marks + number) != uint8(0)
                store(parts[1], marks + number, uint8(1))
                for j in range(inner):
                    put(mem, to + j, joined(seen, get(mem, to + j), element(inputs, row + j)))


def finish_segments(inputs, outputs, parts, numbers, begin, end):
    """Combine the tables of the segments begin ... end of all outer lines, and write the results."""
    inner, segments, blocks = width(numbers), numbers[2], numbers[3]
    mem = mem_of(parts)
    for task in range(begin, end):
        outer = task // segments
        number = task - outer * segments
        for j in range(inner):
            state = before(inputs, outer * inner + j)
            known = begins()
            for block in range(blocks):
                at = (outer * blocks + block) * segments + number
                if load(parts[1], at) != 0:
                    part = get(mem, at * inner + j)
                    if known:
                        state = combine(state, part)
                    else:
                        state = part
                    known = True
            finish(outputs, task * inner + j, state)

"""Scans on CPUs by the canonical grouping of scan/grouping.py, along lines and down columns."""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    State,
    acrosses_in,
    acrosses_out,
    alongs_in,
    alongs_out,
    combine,
    get,
    moved_in,
    moved_out,
    put,
)

if TYPE_CHECKING:  # functions that are written for a call
    from parprims._primitives.scan.loops.scan_loops import block, element, finish, is_known

    def nothing() -> State:
        """Return the state that leaves all bits of others as they are: -0.0."""


# ---- Sums -------------------------------------------------------------------------------------------------------


def along_sums(inputs, outputs, at, to, steps, steps_out, n, state, rest):
    """Write n sums of a line, after a state if lines have one. Return the sum of its blocks."""
    before = nothing()
    if (n <= 32) & (not is_known()):
        for i in range(0, n - 3, 4):
            one = element(inputs, at, steps, i)
            two = combine(one, element(inputs, at, steps, i + 1))
            three = combine(two, element(inputs, at, steps, i + 2))
            four = combine(three, element(inputs, at, steps, i + 3))
            finish(outputs, to, steps_out, i, combine(before, one))
            finish(outputs, to, steps_out, i + 1, combine(before, two))
            finish(outputs, to, steps_out, i + 2, combine(before, three))
            before = combine(before, four)
            finish(outputs, to, steps_out, i + 3, before)
        one = nothing()
        for i in range(n // 4 * 4, n):
            one = combine(one, element(inputs, at, steps, i))
            finish(outputs, to, steps_out, i, combine(before, one))
        before = combine(before, one)
    else:
        before = sums_behind(inputs, outputs, at, to, steps, steps_out, n, state if is_known() else before, rest)
    return before


def behind_sums(inputs, outputs, at, to, steps, steps_out, n, earlier, rest):
    """Write n sums of blocks after a state."""
    sums_behind(inputs, outputs, at, to, steps, steps_out, n, earlier, rest)


def sums_behind(inputs, outputs, at, to, steps, steps_out, n, before, rest):
    """Write n sums of blocks after a state. Return the sum of the blocks that are whole."""
    of_32, of_256, of_2048 = nothing(), nothing(), nothing()
    for first in range(0, n, 32):
        row, results = moved_in(at, steps, first), moved_out(to, steps_out, first)
        count, of_4 = min(n - first, 32), nothing()
        for i in range(0, count - 3, 4):
            one = element(inputs, row, steps, i)
            two = combine(one, element(inputs, row, steps, i + 1))
            three = combine(two, element(inputs, row, steps, i + 2))
            four = combine(three, element(inputs, row, steps, i + 3))
            put(rest, i, combine(of_4, one))
            put(rest, i + 1, combine(of_4, two))
            put(rest, i + 2, combine(of_4, three))
            of_4 = combine(of_4, four)
            put(rest, i + 3, of_4)
        one = nothing()
        for i in range(count // 4 * 4, count):
            one = combine(one, element(inputs, row, steps, i))
            put(rest, i, combine(of_4, one))
        for i in range(count):  # a loop of its own becomes SIMD code
            finish(outputs, results, steps_out, i, sum_of(before, of_2048, of_256, of_32, get(rest, i)))
        of_32 = combine(of_32, of_4)
        if first % 256 == 224:
            of_256, of_32 = combine(of_256, of_32), nothing()
            if first % 2048 == 2016:
                of_2048, of_256 = combine(of_2048, of_256), nothing()
                if (first + 32) % block() == 0:
                    before, of_2048 = combine(before, of_2048), nothing()
    return before


def sum_of(before, of_2048, of_256, of_32, state):
    """Return a sum, given the sums before its block, before its 2048, 256 and 32 elements, and its sum among these."""
    return combine(before, combine(of_2048, combine(of_256, combine(of_32, state))))


def through_sums(inputs, at, steps, state):
    """Return the sum of a block."""
    of_32, of_256, of_2048 = nothing(), nothing(), nothing()
    for first in range(0, block(), 32):
        row, of_4 = moved_in(at, steps, first), nothing()
        for i in range(0, 32, 4):
            state = combine(element(inputs, row, steps, i), element(inputs, row, steps, i + 1))
            state = combine(combine(state, element(inputs, row, steps, i + 2)), element(inputs, row, steps, i + 3))
            of_4 = combine(of_4, state)
        of_32 = combine(of_32, of_4)
        if first % 256 == 224:
            of_256, of_32 = combine(of_256, of_32), nothing()
            if first % 2048 == 2016:
                of_2048, of_256 = combine(of_2048, of_256), nothing()
    return of_2048


def down_sums(inputs, outputs, at, to, numbers, n, columns, lanes, rest):
    """Write n rows of sums, after ``lanes`` if lines have a state."""
    steps, steps_out = acrosses_in(numbers), acrosses_out(numbers)
    state, of_4, of_32, of_256, of_2048 = rest
    shallow = (n <= 256) & (not is_known())
    for j in range(columns):
        put(state, j, nothing())
        put(of_4, j, nothing())
        put(of_32, j, nothing())
        if not shallow:
            put(of_256, j, nothing())
            put(of_2048, j, nothing())
            if not is_known():
                put(lanes, j, nothing())
    for i in range(n):
        row, results = moved_in(at, alongs_in(numbers), i), moved_out(to, alongs_out(numbers), i)
        if shallow:
            for j in range(columns):
                one = combine(get(state, j), element(inputs, row, steps, j))
                put(state, j, one)
                finish(outputs, results, steps_out, j, combine(get(of_32, j), combine(get(of_4, j), one)))
        else:
            for j in range(columns):
                one = combine(get(state, j), element(inputs, row, steps, j))
                put(state, j, one)
                one = combine(get(of_4, j), one)
                one = sum_of(get(lanes, j), get(of_2048, j), get(of_256, j), get(of_32, j), one)
                finish(outputs, results, steps_out, j, one)
        if i % 4 == 3:
            move(state, of_4, columns)
        if i % 32 == 31:
            move(of_4, of_32, columns)
        if (i % 256 == 255) & (not shallow):
            move(of_32, of_256, columns)
        if i % 2048 == 2047:
            move(of_256, of_2048, columns)
        if (i + 1) % block() == 0:
            move(of_2048, lanes, columns)


def move(later, states, columns):
    """Add ``later`` to ``states``, column by column, and set ``later`` to -0.0."""
    for j in range(columns):
        put(states, j, combine(get(states, j), get(later, j)))
        put(later, j, nothing())


# ---- Any operator -----------------------------------------------------------------------------------------------


def along_in_blocks(inputs, outputs, at, to, steps, steps_out, n, state, rest):
    """Write n results of a line, after a state if lines have one. Return the state of its blocks."""
    return blocks_behind(inputs, outputs, at, to, steps, steps_out, n, state, is_known())


def behind_in_blocks(inputs, outputs, at, to, steps, steps_out, n, earlier, rest):
    """Write n results of blocks after a state."""
    blocks_behind(inputs, outputs, at, to, steps, steps_out, n, earlier, True)


def blocks_behind(inputs, outputs, at, to, steps, steps_out, n, before, known):
    """Write n results of blocks, after a state if it is known. Return the state of the blocks that are whole."""
    of_32, of_256, of_2048, prefix = before, before, before, before
    for first in range(0, n, 32):
        row, results = moved_in(at, steps, first), moved_out(to, steps_out, first)
        count, place = min(n - first, 32), first % block()
        state = element(inputs, row, steps, 0)
        if (place == 0) & (not known):
            finish(outputs, results, steps_out, 0, state)
            for i in range(1, count):
                state = combine(state, element(inputs, row, steps, i))
                finish(outputs, results, steps_out, i, state)
        elif (place > 0) & known:
            finish(outputs, results, steps_out, 0, combine(before, combine(prefix, state)))
            for i in range(1, count):
                state = combine(state, element(inputs, row, steps, i))
                finish(outputs, results, steps_out, i, combine(before, combine(prefix, state)))
        else:
            if place == 0:
                prefix = before
            finish(outputs, results, steps_out, 0, combine(prefix, state))
            for i in range(1, count):
                state = combine(state, element(inputs, row, steps, i))
                finish(outputs, results, steps_out, i, combine(prefix, state))
        if place + 32 == block():
            total = combine(prefix, state)
            before, known = combine(before, total) if known else total, True
        else:
            prefix, of_32, of_256, of_2048 = behind_32(place, state, of_32, of_256, of_2048)
    return before


def behind_32(place, state, of_32, of_256, of_2048):
    """Return the state before the next 32 elements, and its parts, given the place in the block and the state of 32."""
    of_32 = combine(of_32, state) if place % 256 > 0 else state
    prefix = of_32
    if place % 256 == 224:
        of_256 = combine(of_256, of_32) if place % 2048 >= 256 else of_32
        prefix = of_256
        if place % 2048 == 2016:
            of_2048 = combine(of_2048, of_256) if place >= 2048 else of_256
            prefix = of_2048
        elif place >= 2048:
            prefix = combine(of_2048, prefix)
    elif place >= 256:
        if place % 2048 >= 256:
            prefix = combine(of_256, prefix)
        if place >= 2048:
            prefix = combine(of_2048, prefix)
    return prefix, of_32, of_256, of_2048


def through_in_blocks(inputs, at, steps, state):
    """Return the state of a block."""
    of_32, of_256, of_2048, prefix = state, state, state, state
    for place in range(0, block(), 32):
        row = moved_in(at, steps, place)
        state = element(inputs, row, steps, 0)
        for i in range(1, 32):
            state = combine(state, element(inputs, row, steps, i))
        if place + 32 < block():
            prefix, of_32, of_256, of_2048 = behind_32(place, state, of_32, of_256, of_2048)
    return combine(prefix, state)


def down_in_blocks(inputs, outputs, at, to, numbers, n, columns, lanes, rest):
    """Write n rows of results, after ``lanes`` if lines have a state."""
    steps, steps_out = acrosses_in(numbers), acrosses_out(numbers)
    states, prefixes, of_32, of_256, of_2048 = rest
    known = is_known()
    for i in range(n):
        row, results = moved_in(at, alongs_in(numbers), i), moved_out(to, alongs_out(numbers), i)
        place = i % block()
        if i % 32 == 0:
            for j in range(columns):
                state = element(inputs, row, steps, j)
                put(states, j, state)
                if place > 0:
                    state = combine(get(prefixes, j), state)
                finish(outputs, results, steps_out, j, combine(get(lanes, j), state) if known else state)
        elif (place < 32) & known:
            for j in range(columns):
                state = combine(get(states, j), element(inputs, row, steps, j))
                put(states, j, state)
                finish(outputs, results, steps_out, j, combine(get(lanes, j), state))
        elif place < 32:
            for j in range(columns):
                state = combine(get(states, j), element(inputs, row, steps, j))
                put(states, j, state)
                finish(outputs, results, steps_out, j, state)
        elif known:
            for j in range(columns):
                state = combine(get(states, j), element(inputs, row, steps, j))
                put(states, j, state)
                finish(outputs, results, steps_out, j, combine(get(lanes, j), combine(get(prefixes, j), state)))
        else:
            for j in range(columns):
                state = combine(get(states, j), element(inputs, row, steps, j))
                put(states, j, state)
                finish(outputs, results, steps_out, j, combine(get(prefixes, j), state))
        if place + 1 == block():
            for j in range(columns):
                state = combine(get(prefixes, j), get(states, j))
                put(lanes, j, combine(get(lanes, j), state) if known else state)
            known = True
        elif i % 32 == 31:
            for j in range(columns):
                prefix, one, two, three = behind_32(
                    place - 31, get(states, j), get(of_32, j), get(of_256, j), get(of_2048, j)
                )
                put(prefixes, j, prefix)
                put(of_32, j, one)
                put(of_256, j, two)
                put(of_2048, j, three)

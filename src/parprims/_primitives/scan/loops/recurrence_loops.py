"""Linear recurrences on CPUs. Numbers are as in scan_loops.py.

The bits of a floating-point result depend on its place in its line alone. From its first element on, a line is cut into
groups of 8192 elements, and a group into eight blocks: seven of 1040 elements, and one of the others. In a block, every
result is computed from the one before it. Where a block is whole and has a state before it, its last result is

    product of the coefficients x state before + last result after the state 0

if this number is finite, and if the product of the first coefficients, of one, two, ..., or all of them, is never so
small that it may have lost digits. Otherwise the block is lost: its last result is computed from the one before it, as
all others.

So the blocks of a line may be computed side by side, first as maps x -> factor x + term and then from their states.
Recurrences of integers do not depend on the grouping, and rounded results of 16-bit floats are no states: there all
factors are lost.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    Arrays,
    Memory,
    Number,
    Position,
    State,
    States,
    Steps,
    acrosses_in,
    acrosses_out,
    alongs_in,
    alongs_out,
    get,
    int64,
    load,
    moved_in,
    moved_out,
    place_in,
    place_out,
    place_start,
    put,
    select,
    store,
)
from parprims._primitives.scan.loops.scan_loops import indices_of, place_beside, place_of

if TYPE_CHECKING:  # functions that are written for a call
    from parprims._primitives.scan.loops.scan_loops import (
        advance,
        block,
        element,
        finish,
        is_known,
        opening,
        same,
    )

    def group() -> int:
        """Return the number of elements of a group of blocks."""

    def zero() -> State:
        """Return the state 0."""

    def one() -> Number:
        """Return the factor of no elements."""

    def none() -> Number:
        """Return a factor that is lost."""

    def lost(factor: Number) -> bool:
        """Return whether a factor is lost."""

    def is_small(factor: Number) -> bool:
        """Return whether a factor is so small that no factor follows it."""

    def following(factor: Number, inputs: Arrays, at: Position, steps: Steps, i: int) -> Number:
        """Return the factor after the element i steps behind a position."""

    def joined(earlier: State, factor: Number, term: State, state: State) -> State:
        """Return the last result of a block: that of its map, if it is finite, else ``state``."""

    def in_parts(kept: States, line: int) -> bool:
        """Return whether a line is composed of the maps of its blocks, see `weigh_lines`."""

    def marks_of(kept: States) -> Memory:
        """Return the marks of pieces, see `follow_lines`."""

    def size_of(inputs: Arrays, at: Position, steps: Steps, i: int) -> Number:
        """Return the absolute value of a coefficient, or an upper bound if it is complex."""

    def result(outputs: Arrays, to: Position, steps: Steps, i: int) -> State:
        """Return the state of a result that is written."""

    def composed(inputs: Arrays, at: Position, steps: Steps, kept: States, to: int) -> None:
        """Leave the maps of eight blocks."""

    def walked(inputs, outputs, at, to, steps, steps_out, kept, spot, state):
        """Write the results of eight blocks, given the state before the first and the last result of each block."""


# ---- Lines ------------------------------------------------------------------------------------------------------


def scan_pairs_of_lines(inputs, starts, outputs, numbers, begin, end):
    """Solve recurrences, two lines at once: while an element waits for the one before it, the other line goes on."""
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, steps_out = alongs_in(numbers), alongs_out(numbers)
    line = begin
    while line < end:
        high, middle, across = indices_of(line, low, inner)
        at, to, from_ = place_of(numbers, high, middle, across)
        count = min(inner - across, end - line)
        for j in range(0, count, 2):
            at_j, to_j, from_j = place_beside(numbers, at, to, from_, j)
            state = opening(inputs, starts, at_j, steps, from_j)
            first = behind_opening(outputs, to_j, steps_out, state)
            at_j, to_j = moved_in(at_j, steps, first), moved_out(to_j, steps_out, first)
            fewer, second, other, other_to = 0, state, at_j, to_j
            if j + 1 < count:
                other, other_to, other_from = place_beside(numbers, at, to, from_, j + 1)
                second = opening(inputs, starts, other, steps, other_from)
                fewer = n - behind_opening(outputs, other_to, steps_out, second)
                other, other_to = moved_in(other, steps, first), moved_out(other_to, steps_out, first)
            along_two(
                inputs, outputs, at_j, to_j, other, other_to, steps, steps_out, n - first, fewer, state, second, first,
                first
            )  # fmt: skip
        line += count


def behind_block(place):
    """Return the number of elements from a place of a line to the end of its block."""
    inside = place % group()
    return min(block() - inside % block(), group() - inside)


def begun_at(place, n):
    """Return the factor at a place with n elements of the line: lost unless a block with a map begins there.

    A place inside of a block is behind the first element of a line that has no state before it, or in a lost block.
    """
    inside, left = place % group(), behind_block(place)
    return select((inside % block() == 0) & (n >= left), one(), none())


def behind_opening(outputs, to, steps, state):
    """Return the place of the first element behind the `opening` of a line, whose result is written if it is one."""
    first = 0
    if not is_known():
        finish(outputs, to, steps, 0, state)
        first = 1
    return first


def along_recurrence(inputs, outputs, at, to, steps, steps_out, n, state, rest):
    """Write n results of a line, given its `opening`. Return the last."""
    first = behind_opening(outputs, to, steps_out, state)
    row, results = moved_in(at, steps, first), moved_out(to, steps_out, first)
    return along_one(inputs, outputs, row, results, steps, steps_out, n - first, state, first)


def along_one(inputs, outputs, at, to, steps, steps_out, n, state, place):
    """Write n results from a place of a line on, given the state before it. Return the last. See `begun_at`."""
    earlier, term, factor, left = state, zero(), begun_at(place, n), behind_block(place)
    return go_on(inputs, outputs, at, to, steps, steps_out, n, state, place, earlier, term, factor, left)


def go_on(inputs, outputs, at, to, steps, steps_out, n, state, place, earlier, term, factor, left):
    """Write n results from a place of a line on. Return the last.

    ``earlier`` is the state before its block, ``factor`` and ``term`` are the map of the elements of the block before
    the place, and ``left`` is the number of the others.
    """
    i = 0
    while i < n:
        run = min(n - i, left)
        if lost(factor):
            for j in range(i, i + run):
                state = advance(state, inputs, at, steps, j)
                finish(outputs, to, steps_out, j, state)
        else:
            run = min(run, 128)  # decaying factors are soon lost
            for j in range(i, i + run):
                state = advance(state, inputs, at, steps, j)
                term = advance(term, inputs, at, steps, j)
                factor = following(factor, inputs, at, steps, j)
                finish(outputs, to, steps_out, j, state)
        i += run
        left -= run
        if left == 0:
            state = joined(earlier, factor, term, state)
            finish(outputs, to, steps_out, i - 1, state)
            earlier, term, left = state, zero(), behind_block(place + i)
            factor = select(n - i >= left, one(), none())
    return state


def along_two(
    inputs, outputs, at, to, other, other_to, steps, steps_out, n, fewer, state, second, place, second_place
):  # fmt: skip
    """Walk n elements from one place on and ``fewer`` from another as `along_one`, side by side."""
    earlier, term, factor, left = state, zero(), begun_at(place, n), behind_block(place)
    earlier_second, term_second = second, zero()
    factor_second, left_second = begun_at(second_place, fewer), behind_block(second_place)
    i, both = 0, min(n, fewer)
    while i < both:
        run = min(both - i, min(left, left_second))
        if lost(factor) & lost(factor_second):
            for j in range(i, i + run):
                state = advance(state, inputs, at, steps, j)
                second = advance(second, inputs, other, steps, j)
                finish(outputs, to, steps_out, j, state)
                finish(outputs, other_to, steps_out, j, second)
        else:
            run = min(run, 128)
            for j in range(i, i + run):
                state = advance(state, inputs, at, steps, j)
                second = advance(second, inputs, other, steps, j)
                term = advance(term, inputs, at, steps, j)
                term_second = advance(term_second, inputs, other, steps, j)
                factor = following(factor, inputs, at, steps, j)
                factor_second = following(factor_second, inputs, other, steps, j)
                finish(outputs, to, steps_out, j, state)
                finish(outputs, other_to, steps_out, j, second)
        i += run
        left -= run
        left_second -= run
        if left == 0:
            state = joined(earlier, factor, term, state)
            finish(outputs, to, steps_out, i - 1, state)
            earlier, term, left = state, zero(), behind_block(place + i)
            factor = select(n - i >= left, one(), none())
        if left_second == 0:
            second = joined(earlier_second, factor_second, term_second, second)
            finish(outputs, other_to, steps_out, i - 1, second)
            earlier_second, term_second, left_second = second, zero(), behind_block(second_place + i)
            factor_second = select(fewer - i >= left_second, one(), none())
    row, results, stop, rest = at, to, n, place
    if fewer > n:
        row, results, stop, rest = other, other_to, fewer, second_place
        state, earlier, term, factor, left = second, earlier_second, term_second, factor_second, left_second
    row, results = moved_in(row, steps, i), moved_out(results, steps_out, i)
    go_on(inputs, outputs, row, results, steps, steps_out, stop - i, state, rest + i, earlier, term, factor, left)


def down_recurrence(inputs, outputs, at, to, numbers, n, columns, lanes, rest):
    """Write n rows of results of a tile of columns, given their `opening` in ``lanes``."""
    steps, steps_out = acrosses_in(numbers), acrosses_out(numbers)
    earlier, terms, factors = rest
    begin = 0
    if not is_known():
        for j in range(columns):
            finish(outputs, to, steps_out, j, get(lanes, j))
        begin = 1
    first = 0
    while first < n:
        count = min(n - first, behind_block(first))
        mapped = (count == behind_block(first)) & ((first > 0) | is_known())
        if mapped:
            for j in range(columns):
                put(earlier, j, get(lanes, j))
                put(terms, j, zero())
                put(factors, j, (one(),))
        i, behind = max(first, begin), first + count
        while mapped and i < behind:  # two rows at a time; all blocks have an even number
            row, results = moved_in(at, alongs_in(numbers), i), moved_out(to, alongs_out(numbers), i)
            later, later_to = moved_in(row, alongs_in(numbers), 1), moved_out(results, alongs_out(numbers), 1)
            for j in range(columns):
                state = advance(get(lanes, j), inputs, row, steps, j)
                finish(outputs, results, steps_out, j, state)
                state = advance(state, inputs, later, steps, j)
                finish(outputs, later_to, steps_out, j, state)
                put(lanes, j, state)
                put(terms, j, advance(advance(get(terms, j), inputs, row, steps, j), inputs, later, steps, j))
                factor = following(get(factors, j)[0], inputs, row, steps, j)
                put(factors, j, (following(factor, inputs, later, steps, j),))
            i += 2
            if (i - first) % 128 == 0:
                mapped = False
                for j in range(columns):
                    mapped |= not lost(get(factors, j)[0])
        while i < behind:
            row, results = moved_in(at, alongs_in(numbers), i), moved_out(to, alongs_out(numbers), i)
            for j in range(columns):
                state = advance(get(lanes, j), inputs, row, steps, j)
                finish(outputs, results, steps_out, j, state)
                put(lanes, j, state)
            i += 1
        if mapped:
            results = moved_out(to, alongs_out(numbers), first + count - 1)
            for j in range(columns):
                state = joined(get(earlier, j), get(factors, j)[0], get(terms, j), get(lanes, j))
                finish(outputs, results, steps_out, j, state)
                put(lanes, j, state)
        first += count


# ---- Threads that share a line ------------------------------------------------------------------------------------


def follow_lines(inputs, starts, outputs, kept, numbers, begin, end):
    """Solve recurrences along few long lines. A task is a piece of width elements of a line, and a line has several.

    The tasks of a line in one call are walked in two halves at once, each in order: while an element waits for the one
    before it, the other half goes on. The state before the second half is not known yet, nor is the state before the
    first half unless the line begins there: each half begins as if that state were 0. A recurrence that decays forgets
    it: from some element on results have the bits that they have in order, and `mend_lines` stops there. It begins at
    pieces with a mark: 1, or 2 if nothing was written because the coefficients do not decay.
    """
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, steps_out = alongs_in(numbers), alongs_out(numbers)
    pieces = -(-n // width)
    for line in range(begin // pieces, -(-end // pieces)):
        if in_parts(kept, line):
            continue
        high, middle, across = indices_of(line, low, inner)
        piece = max(begin - line * pieces, 0)
        parts = min(end - line * pieces, pieces) - piece
        first, half = piece * width, (parts + 1) // 2
        count, ahead = min(n - first, parts * width), half * width
        for task in range(line * pieces + piece, line * pieces + piece + parts):
            store(marks_of(kept), task, 0)
        whole, whole_out = place_in(numbers, high, middle, across), place_out(numbers, high, middle, across)
        known, state = True, zero()
        skipped = 0
        if first > 0:
            known = forgets_before(inputs, whole, steps, first, count)
            store(marks_of(kept), line * pieces + piece, 2 - int64(known))
        else:
            state = opening(inputs, starts, whole, steps, place_start(numbers, high, middle, across))
            skipped = behind_opening(outputs, whole_out, steps_out, state)
        if known:
            fewer, second = 0, first + ahead
            if ahead < count and forgets_before(inputs, whole, steps, second, count - ahead):
                store(marks_of(kept), line * pieces + piece + half, 1)
                fewer = count - ahead
            start = first + skipped
            along_two(
                inputs, outputs, moved_in(whole, steps, start), moved_out(whole_out, steps_out, start),
                moved_in(whole, steps, second), moved_out(whole_out, steps_out, second), steps, steps_out,
                (ahead if fewer > 0 else count) - skipped, fewer, state, zero(), start, second
            )  # fmt: skip


def forgets_before(inputs, whole, steps, first, count):
    """Return whether ``count`` elements from a place on, and the map of its block, do not depend on those before it."""
    forgotten = forgets(inputs, moved_in(whole, steps, first), steps, count)
    inside = first % group() % block()
    if forgotten & (inside > 0):
        at = moved_in(whole, steps, first - inside)
        forgotten = is_lost(inputs, at, steps, behind_block(first - inside))
    return forgotten


def forgets(inputs, at, steps, count):
    """Return whether an eighth of these elements makes the state before them negligible."""
    size, i = 1.0, 0
    while i < count // 8 and size >= 1e-25:
        size *= size_of(inputs, at, steps, i)
        i += 1
    return size < 1e-25


def is_lost(inputs, at, steps, count):
    """Return whether a block of ``count`` elements is lost by its coefficients."""
    factor, i, ends = one(), 0, False
    while i < count and not ends:
        factor = following(factor, inputs, at, steps, i)
        ends = lost(factor) | is_small(factor)
        i += 1
    return ends


def mend_lines(inputs, starts, outputs, kept, numbers, begin, end):
    """Correct pieces that `follow_lines` began without the state before them, until results stay as they are.

    A lost block stays as it is from the first result that does, another block if its last result does.
    """
    low, n, inner, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, steps_out = alongs_in(numbers), alongs_out(numbers)
    pieces = -(-n // width)
    for line in range(begin, end):
        if in_parts(kept, line):
            continue
        high, middle, across = indices_of(line, low, inner)
        whole, whole_out = place_in(numbers, high, middle, across), place_out(numbers, high, middle, across)
        mark, first = 0, 0
        while first < n:
            count, piece = min(n - first, behind_block(first)), line * pieces + first // width
            behind = line * pieces + (first + count - 1) // width + 1
            newest = mark
            for i in range(piece, behind):
                if (load(marks_of(kept), i) > 0) & ((i - line * pieces) * width >= first):
                    newest = load(marks_of(kept), i)
            if newest > 0:
                at, to = moved_in(whole, steps, first), moved_out(whole_out, steps_out, first)
                mapped = (count == behind_block(first)) & ((first > 0) | is_known())
                if mapped:
                    mapped = not is_lost(inputs, at, steps, count)
                if mapped:
                    mark = newest
                    state = opening(inputs, starts, at, steps, place_start(numbers, high, middle, across))
                    if first > 0:
                        state = result(outputs, to, steps_out, -1)
                    last = result(outputs, to, steps_out, count - 1)
                    state = along_one(inputs, outputs, at, to, steps, steps_out, count, state, first)
                    if (mark == 1) & same(state, last):
                        mark = 0
                else:
                    state = result(outputs, to, steps_out, max(-1, -first))
                    i = 0
                    while i < count:
                        if (first + i) % width == 0:
                            begun = load(marks_of(kept), line * pieces + (first + i) // width)
                            if begun > 0:
                                mark = begun
                                state = result(outputs, to, steps_out, i - 1)
                        stop = min(count, i + width - (first + i) % width)
                        while i < stop and mark > 0:
                            state = advance(state, inputs, at, steps, i)
                            if (mark == 1) & same(state, result(outputs, to, steps_out, i)):
                                mark = 0
                            finish(outputs, to, steps_out, i, state)
                            i += 1
                        i = stop
            first += count


# ---- Lines that do not decay --------------------------------------------------------------------------------------


def weigh_lines(inputs, starts, outputs, kept, numbers, begin, end):
    """Leave 1 for each line with coefficients that do not decay in samples, else 0.

    With four kernels threads share such lines, and a thread walks several places at once.
    """
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps = alongs_in(numbers)
    for line in range(begin, end):
        high, middle, across = indices_of(line, low, inner)
        whole = place_in(numbers, high, middle, across)
        decays = True
        for spot in range(group(), n - group(), 8 * group()):
            if decays:
                decays = shrinks(inputs, moved_in(whole, steps, spot), steps)
        store(kept[0], line, int64(not decays))


def shrinks(inputs, at, steps):
    """Return whether the product of a block comes near to being lost."""
    size, i = 1.0, 0
    while i < block() and size >= 1e-15:
        size *= size_of(inputs, at, steps, i)
        i += 1
    return size < 1e-15


def compose_blocks(inputs, starts, outputs, kept, numbers, begin, end):
    """Leave the map of each block of whole groups. A task is a group, whose blocks are walked side by side."""
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, groups = alongs_in(numbers), n // group()
    for task in range(begin, end):
        line = task // groups
        if in_parts(kept, line):
            high, middle, across = indices_of(line, low, inner)
            at = moved_in(place_in(numbers, high, middle, across), steps, (task - line * groups) * group())
            composed(inputs, at, steps, kept, 8 * task)


def join_blocks(inputs, starts, outputs, kept, numbers, begin, end):
    """Leave the state behind every block in place of its term. A block without a map is walked."""
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, blocks = alongs_in(numbers), n // group() * 8
    for line in range(begin, end):
        if in_parts(kept, line):
            high, middle, across = indices_of(line, low, inner)
            at = place_in(numbers, high, middle, across)
            state = opening(inputs, starts, at, steps, place_start(numbers, high, middle, across))
            skipped = int64(not is_known())
            for number in range(blocks):
                spot = line * blocks + number
                behind = joined(state, load(kept[1], spot), (load(kept[2], spot),), (none(),))
                if skipped > 0:
                    behind = (none(),)
                    if begins_as_after_zero(inputs, at, steps):
                        behind = (load(kept[2], spot),)
                if lost(behind[0]):
                    first = number // 8 * group() + number % 8 * block()
                    row = moved_in(at, steps, first)
                    for i in range(skipped, behind_block(first)):
                        state = advance(state, inputs, row, steps, i)
                else:
                    state = behind
                skipped = 0
                store(kept[2], spot, state[0])


def begins_as_after_zero(inputs, at, steps):
    """Return whether the first result of a line has the bits that it has after the state 0."""
    return same(element(inputs, at, steps, 0), advance(zero(), inputs, at, steps, 0))


def walk_blocks(inputs, starts, outputs, kept, numbers, begin, end):
    """Write the results of groups, given the states before their blocks. The last task of a line goes on to its end."""
    low, n, inner = numbers[0], numbers[1], numbers[2]
    steps, steps_out, groups = alongs_in(numbers), alongs_out(numbers), n // group()
    for task in range(begin, end):
        line = task // groups
        if in_parts(kept, line):
            high, middle, across = indices_of(line, low, inner)
            number = task - line * groups
            at = moved_in(place_in(numbers, high, middle, across), steps, number * group())
            to = moved_out(place_out(numbers, high, middle, across), steps_out, number * group())
            state = opening(inputs, starts, at, steps, place_start(numbers, high, middle, across))
            before = zero()
            if number > 0:
                before = (load(kept[2], 8 * task - 1),)
            elif is_known():
                before = state
            walked(inputs, outputs, at, to, steps, steps_out, kept, 8 * task, before)
            if (number == 0) & (not is_known()):
                if not begins_as_after_zero(inputs, at, steps):
                    along_recurrence(inputs, outputs, at, to, steps, steps_out, block(), state, 0)
            if number == groups - 1:
                at, to = moved_in(at, steps, group()), moved_out(to, steps_out, group())
                state = (load(kept[2], 8 * task + 7),)
                along_one(inputs, outputs, at, to, steps, steps_out, n - groups * group(), state, 0)

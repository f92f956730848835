"""Sorts on CPUs.

numbers: low, n, inner, width, flip, slack, blocks, size, descending, then the numbers of the views of inputs and
outputs.

A key is an unsigned integer. Keys have the order of their elements once the bits of ``flip`` are inverted. Only one
order is stable: so neither how lines are cut nor which thread sorts which part changes a result.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parprims._cpu.templates.declarations import (
    Arrays,
    Memory,
    Number,
    Position,
    States,
    Steps,
    acrosses_in,
    acrosses_out,
    alongs_in,
    alongs_out,
    get,
    int32,
    int64,
    load,
    moved_in,
    moved_out,
    place_in,
    place_out,
    put,
    scratch,
    store,
    uint16,
    uint64,
)

if TYPE_CHECKING:  # functions that are written for a call

    def encoded(inputs: Arrays, at: Position) -> Number:
        """Return the key of an element, before the bits of ``flip`` are inverted."""

    def is_special(inputs: Arrays, at: Position) -> int:
        """Return 1 if the key does not determine the bits of an element, else 0."""

    def fill(mem: States, spot: int, key: Number, i: int) -> None:
        """Write the i-th key of a line to memory, with i if indices move with keys."""

    def deliver(
        inputs: Arrays, outputs: Arrays, mem: States, spot: int, at: Position, steps: Steps, to: Position, flip: Number
    ) -> None:
        """Write the results of the element at a spot of memory."""

    def deliver_key(outputs: Arrays, to: Position, key: Number) -> None:
        """Write the element of a key."""

    def read(inputs, mem, specials, at, steps, across, n, columns, flip):
        """Read a tile by `read_lines` or `read_rows`."""

    def write(inputs, outputs, mem, founds, at, to, steps, across, steps_out, across_out, n, columns, flip):
        """Write a tile by `write_lines` or `write_rows`."""

    def value(inputs: Arrays, at: Position) -> Number:
        """Return an element."""

    def copy(inputs: Arrays, outputs: Arrays, at: Position, to: Position) -> None:
        """Copy an element to the results."""

    def restore(
        inputs: Arrays,
        outputs: Arrays,
        at: Position,
        steps: Steps,
        to: Position,
        steps_out: Steps,
        n: int,
        descending: int,
    ) -> int:
        """Write the special elements of a line in their order there, by `restore_floats`."""

    def mem_of(scratch: States) -> States:
        """Return the memory for elements."""

    def masks_of(scratch: States) -> Memory:
        """Return the bits in which keys of blocks differ."""

    def counts_of(scratch: States) -> Memory:
        """Return the counts of digits in blocks."""

    def shares_of(scratch: States) -> Memory:
        """Return the buckets of digits."""

    def places_of(scratch: States) -> Memory:
        """Return the places where blocks write into buckets."""

    def starts_of(scratch: States) -> Memory:
        """Return the places where buckets begin."""

    def as_key(x: Number) -> Number:
        """Return a number as a key."""

    def as_state(x: Number) -> Number:
        """Return a number as a key in memory, perhaps beside an index."""

    def low_bit() -> int:
        """Return the lowest bit of a key in memory."""

    def words(count: int) -> Memory:
        """Return memory for keys without indices."""

    def every_key() -> int:
        """Return the number of possible keys."""


def sort_part(mem, table, at, to, n, slack):
    """Sort the n elements from `at` on, with room for as many from `to` on; return their place afterwards.

    Keys are first sorted by some of the highest bits that differ, a digit at a time from the lowest digit. These are a
    few more bits than number the elements, so few elements agree in all of them. Runs of equal bits are sorted by
    insertion, or, if they are long and in disorder, by their other bits.
    """
    source, target, done = at, to, 0
    bottom, high, bits = low_bit(), low_bit(), 8
    if n > 24:
        first, differ = load(mem[0], at), as_state(0)
        for i in range(n):
            differ |= load(mem[0], at + i) ^ first
        left = uint64(differ) >> uint64(low_bit())
        while left != uint64(0):
            left >>= uint64(1)
            high += 1
        length = 0
        while n >> length > 0:
            length += 1
        # No more digits than elements, and at most 8 bits a digit, or 9 if many elements have bits to tell apart.
        bits = min(8, length - 1)
        passes = -(-min(length + slack, high - low_bit()) // bits)
        if length > 12:
            bits = min(9, -(-(high - low_bit()) // max(1, passes)))
        bottom = max(low_bit(), high - passes * bits)
    one, other, count, shift = at, to, n, bottom
    while count > 0:
        while shift < high:
            mask = (uint64(1) << uint64(bits)) - uint64(1)
            for digit in range(int64(mask) + 1):
                store(table, digit, 0)
            for i in range(one, one + count):
                digit = int64((uint64(load(mem[0], i)) >> uint64(shift)) & mask)
                store(table, digit, load(table, digit) + 1)
            # If all have one digit, nothing moves.
            if load(table, int64((uint64(load(mem[0], one)) >> uint64(shift)) & mask)) < count:
                total = other
                for digit in range(int64(mask) + 1):
                    number = load(table, digit)
                    store(table, digit, total)
                    total += number
                for i in range(one, one + count):
                    digit = int64((uint64(load(mem[0], i)) >> uint64(shift)) & mask)
                    place = load(table, digit)
                    store(table, digit, place + 1)
                    put(mem, place, get(mem, i))
                one, other = other, one
            shift += bits
        if high > bottom or n <= 24:
            source, target, high = one, other, bottom
        else:
            if one != source + done:
                for i in range(count):
                    put(mem, source + done + i, get(mem, one + i))
            done += count
        # Insert: no element leaves its run. An element that passes many others measures the run, if it is not known.
        count, known = 0, 0
        if bottom == low_bit() and n > 24:
            done = n
        while count == 0 and done < n:
            spot = source + done
            key, place = load(mem[0], spot), spot
            done += 1
            if done > 1 and load(mem[0], spot - 1) > key:
                moving = get(mem, spot)
                while place > source and load(mem[0], place - 1) > key:
                    put(mem, place, get(mem, place - 1))
                    place -= 1
                put(mem, place, moving)
                if spot - place > 8 and done > known and n > 48:
                    top, known = uint64(key) >> uint64(bottom), done
                    while known < n and uint64(load(mem[0], source + known)) >> uint64(bottom) == top:
                        known += 1
                    while place > source and uint64(load(mem[0], place - 1)) >> uint64(bottom) == top:
                        place -= 1
                    if source + known - place > 48:
                        done = place - source
                        one, other, count, shift, bits = place, target + done, known - done, low_bit(), 8
    return source


def read_lines(inputs, mem, specials, at, steps, across, n, columns, flip):
    """Read the keys of a tile line by line."""
    for j in range(columns):
        line, special = moved_in(at, across, j), 0
        for i in range(n):
            spot = moved_in(line, steps, i)
            fill(mem, 2 * n * j + i, as_key(encoded(inputs, spot) ^ flip), i)
            special |= is_special(inputs, spot)
        store(specials, j, special)


def read_rows(inputs, mem, specials, at, steps, across, n, columns, flip):
    """Read the keys of a tile row by row, if neighbouring lines are nearer than elements of a line."""
    for j in range(columns):
        store(specials, j, 0)
    for i in range(n):
        row = moved_in(at, steps, i)
        for j in range(columns):
            spot = moved_in(row, across, j)
            fill(mem, 2 * n * j + i, as_key(encoded(inputs, spot) ^ flip), i)
            store(specials, j, load(specials, j) | is_special(inputs, spot))


def write_lines(inputs, outputs, mem, founds, at, to, steps, across, steps_out, across_out, n, columns, flip):
    """Write the results of a tile line by line."""
    for j in range(columns):
        line, spot, result = moved_in(at, across, j), load(founds, j), moved_out(to, across_out, j)
        for i in range(n):
            deliver(inputs, outputs, mem, spot + i, line, steps, moved_out(result, steps_out, i), flip)


def write_rows(inputs, outputs, mem, founds, at, to, steps, across, steps_out, across_out, n, columns, flip):
    """Write the results of a tile row by row."""
    for i in range(n):
        row = moved_out(to, steps_out, i)
        for j in range(columns):
            result = moved_out(row, across_out, j)
            deliver(inputs, outputs, mem, load(founds, j) + i, moved_in(at, across, j), steps, result, flip)


def sort_tiles(inputs, outputs, numbers, begin, end):
    """Sort tiles of at most `width` adjacent lines. A task reads and writes a tile."""
    low, n, inner, width, slack = numbers[0], numbers[1], numbers[2], numbers[3], numbers[5]
    flip = as_key(uint64(numbers[4]))
    steps, across = alongs_in(numbers), acrosses_in(numbers)
    steps_out, across_out = alongs_out(numbers), acrosses_out(numbers)
    tiles = -(-inner // width)
    mem = scratch(2 * n * width)
    table, founds, specials = np.empty(512, np.int64), np.empty(width, np.int64), np.empty(width, np.int64)
    for task in range(begin, end):
        outer, left = task // tiles, (task % tiles) * width
        columns = min(width, inner - left)
        at, to = place_in(numbers, outer // low, outer % low, left), place_out(numbers, outer // low, outer % low, left)
        read(inputs, mem, specials, at, steps, across, n, columns, flip)
        for j in range(columns):
            store(founds, j, sort_part(mem, table, 2 * n * j, 2 * n * j + n, n, slack))
        write(inputs, outputs, mem, founds, at, to, steps, across, steps_out, across_out, n, columns, flip)
        for j in range(columns):
            if load(specials, j) > 0:
                line, result = moved_in(at, across, j), moved_out(to, across_out, j)
                restore(inputs, outputs, line, steps, result, steps_out, n, numbers[8])


def line_in(numbers, line):
    """Return the position of the beginning of a line in the inputs."""
    outer = line // numbers[2]
    at = place_in(numbers, outer // numbers[0], outer % numbers[0], line % numbers[2])
    return at


def line_out(numbers, line):
    """Return the position of the beginning of a line in the results."""
    outer = line // numbers[2]
    to = place_out(numbers, outer // numbers[0], outer % numbers[0], line % numbers[2])
    return to


def count_lines(inputs, outputs, numbers, begin, end):
    """Sort lines of keys alone by counting each possible key; a task is a line."""
    n, descending, lanes = numbers[1], numbers[8], 4 if every_key() == 256 else 1
    steps, steps_out = alongs_in(numbers), alongs_out(numbers)
    table = np.empty(lanes * every_key(), np.int64)
    for line in range(begin, end):
        at, to, special = line_in(numbers, line), line_out(numbers, line), 0
        for i in range(lanes * every_key()):
            store(table, i, 0)
        for i in range(n):
            # Neighbours are counted in different tables: in one table, equal keys would wait for each other.
            spot = moved_in(at, steps, i)
            place = (i & (lanes - 1)) * every_key() + int64(encoded(inputs, spot))
            store(table, place, load(table, place) + 1)
            special |= is_special(inputs, spot)
        first = 0
        for k in range(every_key()):
            key = int64((uint64(k) ^ uint64(numbers[4])) & uint64(every_key() - 1))
            count = 0
            for lane in range(lanes):
                count += load(table, lane * every_key() + key)
            for i in range(first, first + count):
                result = moved_out(to, steps_out, i)
                deliver_key(outputs, result, as_key(key))
            first += count
        if special > 0:
            special = restore(inputs, outputs, at, steps, to, steps_out, n, descending)


def place_lines(inputs, outputs, numbers, begin, end):
    """Sort lines of bytes, with values or indices, to places that counts of keys give; a task is a line."""
    n, flip = numbers[1], as_key(uint64(numbers[4]) & uint64(255))
    steps, steps_out = alongs_in(numbers), alongs_out(numbers)
    table, mem = np.empty(256, np.int64), scratch(1)
    for line in range(begin, end):
        at, to, total = line_in(numbers, line), line_out(numbers, line), 0
        for key in range(256):
            store(table, key, 0)
        for i in range(n):
            key = int64(encoded(inputs, moved_in(at, steps, i)) ^ flip)
            store(table, key, load(table, key) + 1)
        for key in range(256):
            count = load(table, key)
            store(table, key, total)
            total += count
        for i in range(n):
            key = as_key(encoded(inputs, moved_in(at, steps, i)) ^ flip)
            place = load(table, int64(key))
            store(table, int64(key), place + 1)
            fill(mem, 0, key, i)
            deliver(inputs, outputs, mem, 0, at, steps, moved_out(to, steps_out, place), flip)


# ---- Long lines: blocks are ordered by the highest digit, then elements with equal highest digits by the others -----


def shift_of(masks, line, blocks):
    """Return the lowest bit of the highest digit of a line: its highest bit is the highest that differs."""
    differ, shift = uint64(0), -12
    for block in range(blocks):
        differ |= load(masks, 2 * (line * blocks + block))
    while differ != uint64(0):
        differ >>= uint64(1)
        shift += 1
    return max(shift, 0)


def survey_blocks(inputs, outputs, parts, numbers, begin, end):
    """Find the bits in which the keys of a block differ from the first key of the line, and whether any is special."""
    n, blocks, size = numbers[1], numbers[6], numbers[7]
    steps, masks = alongs_in(numbers), masks_of(parts)
    for task in range(begin, end):
        line, block = task // blocks, task % blocks
        whole = line_in(numbers, line)
        at = moved_in(whole, steps, block * size)
        first, differ, special = encoded(inputs, whole), as_key(0), 0
        for i in range(min(size, n - block * size)):
            spot = moved_in(at, steps, i)
            differ |= encoded(inputs, spot) ^ first
            special |= is_special(inputs, spot)
        store(masks, 2 * task, uint64(differ))
        store(masks, 2 * task + 1, uint64(special))


def count_blocks(inputs, outputs, parts, numbers, begin, end):
    """Count the highest digits, of 12 bits, of a block."""
    n, blocks, size = numbers[1], numbers[6], numbers[7]
    steps, counts, digits = alongs_in(numbers), counts_of(parts), np.empty(256, np.uint16)
    flip = as_key(uint64(numbers[4]))
    for task in range(begin, end):
        line, block = task // blocks, task % blocks
        shift = uint64(shift_of(masks_of(parts), line, blocks))
        at = moved_in(line_in(numbers, line), steps, block * size)
        for digit in range(4096):
            store(counts, 4096 * task + digit, int32(0))
        count = min(size, n - block * size)
        for chunk in range(0, count, 256):
            few = min(256, count - chunk)
            for i in range(few):
                key = uint64(as_key(encoded(inputs, moved_in(at, steps, chunk + i)) ^ flip))
                store(digits, i, uint16((key >> shift) & uint64(4095)))
            for i in range(few):
                digit = 4096 * task + int64(load(digits, i))
                store(counts, digit, int32(load(counts, digit) + 1))


def share_lines(inputs, outputs, parts, numbers, begin, end):
    """Group neighbouring digits in at most 256 buckets of about one size; find the places where blocks write them."""
    n, blocks = numbers[1], numbers[6]
    counts, shares, places, starts = counts_of(parts), shares_of(parts), places_of(parts), starts_of(parts)
    for line in range(begin, end):
        bucket, filled = -1, n
        for digit in range(4096):
            count = 0
            for block in range(blocks):
                count += int64(load(counts, 4096 * (line * blocks + block) + digit))
            filled += count
            if filled > n // 120 and count > 0:
                bucket += 1
                filled = count
            store(shares, 4096 * line + digit, int32(bucket))
        first = 256 * line * blocks
        for place in range(256 * blocks):
            store(places, first + place, 0)
        for block in range(blocks):
            for digit in range(4096):
                count = int64(load(counts, 4096 * (line * blocks + block) + digit))
                if count > 0:
                    place = first + 256 * block + int64(load(shares, 4096 * line + digit))
                    store(places, place, load(places, place) + count)
        total = 2 * n * line + n
        for bucket in range(256):
            store(starts, 257 * line + bucket, total)
            for block in range(blocks):
                count = load(places, first + 256 * block + bucket)
                store(places, first + 256 * block + bucket, total)
                total += count
        store(starts, 257 * line + 256, total)


def scatter_blocks(inputs, outputs, parts, numbers, begin, end):
    """Bring the elements of a block to their buckets."""
    n, blocks, size = numbers[1], numbers[6], numbers[7]
    steps, shares, places, mem = alongs_in(numbers), shares_of(parts), places_of(parts), mem_of(parts)
    flip = as_key(uint64(numbers[4]))
    keys, digits = words(256), np.empty(256, np.uint16)
    for task in range(begin, end):
        line, block = task // blocks, task % blocks
        shift = uint64(shift_of(masks_of(parts), line, blocks))
        at = moved_in(line_in(numbers, line), steps, block * size)
        count = min(size, n - block * size)
        for chunk in range(0, count, 256):
            # Keys are read first: otherwise each read would wait for the place of the key before.
            few = min(256, count - chunk)
            for i in range(few):
                key = as_key(encoded(inputs, moved_in(at, steps, chunk + i)) ^ flip)
                store(keys, i, key)
                store(digits, i, uint16((uint64(key) >> shift) & uint64(4095)))
            for i in range(few):
                bucket = 256 * task + int64(load(shares, 4096 * line + int64(load(digits, i))))
                place = load(places, bucket)
                store(places, bucket, place + 1)
                fill(mem, place, load(keys, i), block * size + chunk + i)


def sort_buckets(inputs, outputs, parts, numbers, begin, end):
    """Sort buckets, and write the results. A bucket uses the room of a larger one before it, which is in the cache."""
    n, slack = numbers[1], numbers[5]
    flip = as_key(uint64(numbers[4]))
    steps, steps_out, starts, mem = alongs_in(numbers), alongs_out(numbers), starts_of(parts), mem_of(parts)
    table, room, width = np.empty(512, np.int64), 0, 0
    for task in range(begin, end):
        # Neighbouring tasks are buckets far apart: if elements have few digits, only the first buckets are filled.
        line, bucket = task // 256, (task % 32) * 8 + task % 256 // 32
        first = load(starts, 257 * line + bucket)
        count = load(starts, 257 * line + bucket + 1) - first
        if count > 0:
            at = line_in(numbers, line)
            to = moved_out(line_out(numbers, line), steps_out, first - n * (2 * line + 1))
            if count > width:
                room, width = first - n, count
            found = sort_part(mem, table, first, room, count, slack)
            for i in range(count):
                deliver(inputs, outputs, mem, found + i, at, steps, moved_out(to, steps_out, i), flip)


def restore_lines(inputs, outputs, parts, numbers, begin, end):
    """Write the special elements of lines with special elements."""
    n, blocks = numbers[1], numbers[6]
    masks = masks_of(parts)
    for line in range(begin, end):
        special = uint64(0)
        for block in range(blocks):
            special |= load(masks, 2 * (line * blocks + block) + 1)
        if special != uint64(0):
            at, to = line_in(numbers, line), line_out(numbers, line)
            restore(inputs, outputs, at, alongs_in(numbers), to, alongs_out(numbers), n, numbers[8])


def restore_floats(inputs, outputs, at, steps, to, steps_out, n, descending):
    """Write zeros and NaN in the order of the line."""
    below, nans, zeros = 0, 0, 0
    for i in range(n):
        x = value(inputs, moved_in(at, steps, i))
        nans += int64(x != x)
        zeros += int64(x == 0)
        below += int64(x < 0)
    zero = below
    nan = n - nans
    if descending > 0:
        zero = n - below - zeros
        nan = 0
    for i in range(n):
        spot = moved_in(at, steps, i)
        x = value(inputs, spot)
        if x == 0:
            copy(inputs, outputs, spot, moved_out(to, steps_out, zero))
            zero += 1
        if x != x:
            copy(inputs, outputs, spot, moved_out(to, steps_out, nan))
            nan += 1
    return 0

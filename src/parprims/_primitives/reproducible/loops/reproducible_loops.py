"""Sums with the same bits everywhere on CPUs, by the integers of grid.py.

numbers: n, blocks, size, the bits of the first and of the second integer, whether running sums begin with zero, the
lines of the second vectors, the length of a row.
parts: for each block its largest finite magnitude, the sums of both integers, and the sum of what is not finite; the
largest magnitude of the second vector. In columns each block has a row of each, and the last are scales of columns.

Lines lie in memory one after another, or side by side as columns. Each is cut into blocks. In products of vectors the
largest magnitudes include those of infinities and NaN. Adding 1.5 2^52 to a float rounds it to an integer, and leaves
this integer in the last bits of the sum.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parprims._cpu.templates.declarations import (
    Arrays,
    Number,
    float64,
    int64,
    load,
    load_from,
    select,
    store,
    store_to,
    uint64,
)

if TYPE_CHECKING:  # functions that are written for a call, and of functions.py

    def magnitude(inputs: Arrays, i: int) -> Number:
        """Return the bits of the magnitude of an element."""

    def infinity() -> Number:
        """Return the bits of the magnitude of infinity."""

    def value(inputs: Arrays, i: int) -> Number:
        """Return an element as float64."""

    def exponent(top: int) -> int:
        """Return the least exponent of which the power of two is larger than all of a magnitude's."""

    def magnitude2(inputs: Arrays, i: int) -> Number:
        """Return the bits of the magnitude of an element of the second vectors."""

    def value2(inputs: Arrays, i: int) -> Number:
        """Return an element of the second vectors as float64."""

    def is_product() -> bool:
        """Return whether terms are products."""

    def words() -> int:
        """Return the number of integers of an element."""

    def most_bits() -> int:
        """Return the most bits of an integer that is rounded to the result."""

    def rounds_alone() -> bool:
        """Return whether results are float32."""

    def finish(outputs: Arrays, i: int, result: Number) -> None:
        """Write a result of float64."""

    def float32(x: Number) -> Number:
        """Return a number as float32."""

    def as_float64(bits: Number) -> Number:
        """Return the float64 of these bits."""

    def as_uint64(x: Number) -> Number:
        """Return the bits of a float64."""


# ---- Magnitudes -------------------------------------------------------------------------------------------------


def find_tops(inputs, outputs, parts, numbers, begin, end):
    """Find the largest finite magnitudes of blocks, and add what is not finite."""
    n, blocks, size = numbers[0], numbers[1], numbers[2]
    for task in range(begin, end):
        line = task // blocks
        first = (task - line * blocks) * size
        at, count = line * n + first, min(size, n - first)
        top, odd = magnitude(inputs, at), 0.0
        for i in range(count):
            one = magnitude(inputs, at + i)
            top = select(one > top, one, top)
        if top >= infinity():
            top -= top
            for i in range(count):
                one, x = magnitude(inputs, at + i), value(inputs, at + i)
                odd += select(one < infinity(), 0.0, x)
                top = select((one < infinity()) & (one > top), one, top)
        store(parts[0], task, int64(top))
        store(parts[3], task, odd)


def top_of(tops, line, blocks):
    """Return the bits of the largest magnitude of a line."""
    top = int64(0)
    for block in range(line * blocks, (line + 1) * blocks):
        one = load(tops, block)
        top = select(one > top, one, top)
    return top


def scale_of(parts, line, blocks, bits):
    """Return the exponent of the scale of a line."""
    scale = bits - exponent(top_of(parts[0], line, blocks))
    if is_product():
        scale -= exponent(top_of(parts[4], line, blocks))
    return scale


def power(exponent):
    """Return a power of two."""
    return as_float64(uint64(exponent + 1023) << uint64(52))


# ---- Integers ---------------------------------------------------------------------------------------------------


def integer(x):
    """Return an integral float as an integer, after 1.5 2^52 was added to it."""
    return int64(as_uint64(x)) - int64(4843621399236968448)


def add_integers(inputs, at, count, scale, bits, is_finite):
    """Return the sums of the integers of elements. The second integers have ``bits`` bits."""
    half = scale >> 1
    factor, factor2, second = power(half), power(scale - half), power(bits)
    total, rest = int64(0), int64(0)
    if words() == 1:
        factor = power(scale)
        if is_finite:
            for i in range(count):
                total += integer(value(inputs, at + i) * factor + 6755399441055744.0)
        else:
            for i in range(count):
                total += integer(finite(value(inputs, at + i)) * factor + 6755399441055744.0)
    else:
        for i in range(count):
            x = finite(value(inputs, at + i)) * factor * factor2
            high = x + 6755399441055744.0
            total += integer(high)
            rest += integer((x - (high - 6755399441055744.0)) * second + 6755399441055744.0)
    return total, rest


def finite(x):
    """Return a number, or zero in place of infinities and NaN."""
    return select(x - x == 0.0, x, 0.0)


def add_blocks(inputs, outputs, parts, numbers, begin, end):
    """Add the integers of blocks."""
    n, blocks, size, bits, second = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    for task in range(begin, end):
        line = task // blocks
        first = (task - line * blocks) * size
        scale = scale_of(parts, line, blocks, bits)
        is_finite = load(parts[3], task) == 0.0
        total, rest = add_integers(inputs, line * n + first, min(size, n - first), scale, second, is_finite)
        store(parts[1], task, total)
        store(parts[2], task, rest)


# ---- Products of vectors ----------------------------------------------------------------------------------------


def find_tops_of_pairs(inputs, outputs, parts, numbers, begin, end):
    """Find the largest magnitudes of blocks of both vectors."""
    n, blocks, size, other = numbers[0], numbers[1], numbers[2], numbers[6]
    for task in range(begin, end):
        line = task // blocks
        first = (task - line * blocks) * size
        count, at = min(size, n - first), line * n + first
        to = first if other == 1 else at
        top, top2 = magnitude(inputs, at), magnitude2(inputs, to)
        for i in range(count):
            one, two = magnitude(inputs, at + i), magnitude2(inputs, to + i)
            top, top2 = select(one > top, one, top), select(two > top2, two, top2)
        store(parts[0], task, int64(top))
        store(parts[4], task, int64(top2))


def add_products(inputs, outputs, parts, numbers, begin, end):
    """Add the integers of products of blocks, or what is not finite in lines that are not finite."""
    n, blocks, size, bits, second, other = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[6]
    for task in range(begin, end):
        line = task // blocks
        first = (task - line * blocks) * size
        count, at = min(size, n - first), line * n + first
        to = first if other == 1 else at
        top, top2 = top_of(parts[0], line, blocks), top_of(parts[4], line, blocks)
        is_finite = (top < int64(infinity())) & (top2 < int64(infinity()))
        factor, factor2, factor3 = 1.0, 1.0, power(bits - 4)
        if words() == 2:
            factor = power(2 - exponent(top)) if top < int64(infinity()) else 1.0
            factor2 = power(2 - exponent(top2)) if top2 < int64(infinity()) else 1.0
        elif is_finite:
            factor3 = power(bits - exponent(top) - exponent(top2))
        total, rest, odd, unit = int64(0), int64(0), 0.0, power(second)
        if not is_finite:
            for i in range(count):
                x = (value(inputs, at + i) * factor) * (value2(inputs, to + i) * factor2)
                odd += select(x - x == 0.0, 0.0, x)
        elif words() == 1:
            for i in range(count):
                x = value(inputs, at + i) * value2(inputs, to + i)
                total += integer(x * factor3 + 6755399441055744.0)
        else:
            for i in range(count):
                x = (value(inputs, at + i) * factor) * (value2(inputs, to + i) * factor2) * factor3
                high = x + 6755399441055744.0
                total += integer(high)
                rest += integer((x - (high - 6755399441055744.0)) * unit + 6755399441055744.0)
        store(parts[1], task, total)
        store(parts[2], task, rest)
        store(parts[3], task, odd)


# ---- Results ----------------------------------------------------------------------------------------------------


def rounded(total, scale):
    """Return an integer times 2^-scale as a float64 that rounds to the result as the exact number does."""
    more = int64(0)
    limit = int64(1) << int64(most_bits())
    for _ in range((72 - most_bits()) // 10):
        is_long = (total >= limit) | (total < -limit)
        cut = (total >> 10) | int64((total & 1023) != 0)
        total, more = select(is_long, cut, total), select(is_long, more + 10, more)
    return float64(total) * power(more - scale)


def rounded_alone(total, scale):
    """Return the float32 nearest to an integer, times 2^-scale.

    A product that is a subnormal float32 is exact: then the integer has at most 24 bits, or all terms are multiples of
    the least subnormal number.
    """
    return float64(float32(total)) * power(-scale)


def rounded_short_pair(total, rest, factor, factor2, bits, unit):
    """Return the float64 nearest to (total unit + rest) factor factor2, for totals of less than 53 bits."""
    total, rest = total + (rest >> bits), rest & ((int64(1) << bits) - 1)
    return (float64(total) * unit + float64(rest)) * factor * factor2


def rounded_pair(total, rest, scale, bits):
    """Return the float64 nearest to (total + rest 2^-bits) 2^-scale."""
    total, rest = total + (rest >> bits), rest & ((int64(1) << bits) - 1)
    size = int64(as_uint64(float64(abs(total))) >> uint64(52)) - 1022  # the bits of the first integer, or one more
    shift = min(max(62 - size, int64(0)), bits)
    left = bits - shift
    whole = (total << shift) | (rest >> left) | int64((rest & ((int64(1) << left) - 1)) != 0)
    exponent = -scale - shift
    half = exponent >> 1
    return float64(whole) * power(half) * power(exponent - half)


def finish_sums(inputs, outputs, parts, numbers, begin, end):
    """Write the sums of lines."""
    blocks, bits, second = numbers[1], numbers[3], numbers[4]
    for line in range(begin, end):
        total, rest, odd = int64(0), int64(0), 0.0
        for block in range(line * blocks, (line + 1) * blocks):
            total += load(parts[1], block)
            rest += load(parts[2], block)
            odd += load(parts[3], block)
        scale = scale_of(parts, line, blocks, bits)
        if odd != 0.0:
            finish(outputs, line, odd)
        elif words() == 1:
            finish(outputs, line, rounded(total, scale))
        else:
            finish(outputs, line, rounded_pair(total, rest, scale, second))


def scan_blocks(inputs, outputs, parts, numbers, begin, end):
    """Write the running sums of blocks."""
    n, blocks, size, bits, second, initial = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    totals, rests = np.empty(512, np.int64), np.empty(512, np.int64)
    for task in range(begin, end):
        line = task // blocks
        block = task - line * blocks
        scale = scale_of(parts, line, blocks, bits)
        half, back_half = scale >> 1, -(scale + second) >> 1
        factor, factor2, unit = power(half), power(scale - half), power(second)
        back, back2 = power(back_half), power(-(scale + second) - back_half)
        total, rest, odd = int64(0), int64(0), 0.0
        for before in range(line * blocks, task):
            total += load(parts[1], before)
            rest += load(parts[2], before)
            odd += load(parts[3], before)
        is_odd = (odd != 0.0) | (load(parts[3], task) != 0.0)
        last = min(n, (block + 1) * size)
        to = line * (n + initial) + initial
        if (initial > 0) & (block == 0):
            finish(outputs, to - 1, 0.0)
        for chunk in range(block * size, last, 512):
            few, at = min(int64(512), last - chunk), line * n + chunk
            for i in range(few):
                x = finite(value(inputs, at + i)) * factor * factor2
                high = x + 6755399441055744.0
                store_to(1, totals, i, integer(high))
                if words() == 2:
                    store_to(2, rests, i, integer((x - (high - 6755399441055744.0)) * unit + 6755399441055744.0))
            seen = int64(0)
            for i in range(few):
                total += load_from(1, totals, i)
                store_to(1, totals, i, total)
                seen |= total ^ (total >> 63)
                if words() == 2:
                    rest += load_from(2, rests, i)
                    store_to(2, rests, i, rest)
            if words() == 1:
                if rounds_alone():
                    for i in range(few):
                        finish(outputs, to + chunk + i, rounded_alone(load_from(1, totals, i), scale))
                else:
                    for i in range(few):
                        finish(outputs, to + chunk + i, rounded(load_from(1, totals, i), scale))
            elif seen < int64(1) << int64(52):
                for i in range(few):
                    pair = load_from(1, totals, i), load_from(2, rests, i)
                    finish(outputs, to + chunk + i, rounded_short_pair(pair[0], pair[1], back, back2, second, unit))
            else:
                for i in range(few):
                    pair = load_from(1, totals, i), load_from(2, rests, i)
                    finish(outputs, to + chunk + i, rounded_pair(pair[0], pair[1], scale, second))
            if is_odd:
                for i in range(few):
                    x = value(inputs, at + i)
                    odd += select(x - x == 0.0, 0.0, x)
                    if odd != 0.0:
                        finish(outputs, to + chunk + i, odd)


# ---- Columns ----------------------------------------------------------------------------------------------------


def tile():
    """Return the most columns of a task."""
    return 512


def find_column_tops(inputs, outputs, parts, numbers, begin, end):
    """Find the largest finite magnitudes of blocks of columns, and add what is not finite."""
    n, blocks, size, inner = numbers[0], numbers[1], numbers[2], numbers[7]
    tiles = -(-inner // tile())
    for task in range(begin, end):
        place = task // tiles
        column = (task - place * tiles) * tile()
        outer, few = place // blocks, min(int64(tile()), inner - column)
        first = (place - outer * blocks) * size
        count, at, to = min(size, n - first), (outer * n + first) * inner + column, place * inner + column
        seen = int64(0)
        for j in range(few):
            store_to(1, parts[0], to + j, int64(0))
            store_to(2, parts[3], to + j, 0.0)
        whole = count // 4 * 4
        for row in range(0, whole, 4):
            for j in range(few):
                i = at + row * inner + j
                one, two = magnitude(inputs, i), magnitude(inputs, i + inner)
                three, four = magnitude(inputs, i + 2 * inner), magnitude(inputs, i + 3 * inner)
                one, three = select(one > two, one, two), select(three > four, three, four)
                one, top = int64(select(one > three, one, three)), load_from(1, parts[0], to + j)
                store_to(1, parts[0], to + j, select(one > top, one, top))
        for row in range(whole, count):
            for j in range(few):
                one, top = int64(magnitude(inputs, at + row * inner + j)), load_from(1, parts[0], to + j)
                store_to(1, parts[0], to + j, select(one > top, one, top))
        for j in range(few):
            one = load(parts[0], to + j)
            seen = select(one > seen, one, seen)
        if seen >= int64(infinity()):
            for j in range(few):
                store(parts[0], to + j, int64(0))
            for row in range(count):
                for j in range(few):
                    i = at + row * inner + j
                    one, top, x = int64(magnitude(inputs, i)), load(parts[0], to + j), value(inputs, i)
                    is_finite = one < int64(infinity())
                    store(parts[0], to + j, select(is_finite & (one > top), one, top))
                    store(parts[3], to + j, load(parts[3], to + j) + select(is_finite, 0.0, x))


def scale_columns(inputs, outputs, parts, numbers, begin, end):
    """Write the exponents of the scales of columns; a task is a tile of columns."""
    blocks, bits, inner = numbers[1], numbers[3], numbers[7]
    tiles = -(-inner // tile())
    for task in range(begin, end):
        outer = task // tiles
        column = (task - outer * tiles) * tile()
        few, to = min(int64(tile()), inner - column), outer * inner + column
        for j in range(few):
            store_to(4, parts[4], to + j, int64(0))
        for block in range(outer * blocks, (outer + 1) * blocks):
            for j in range(few):
                one, top = load_from(1, parts[0], block * inner + column + j), load_from(4, parts[4], to + j)
                store_to(4, parts[4], to + j, select(one > top, one, top))
        for j in range(few):
            store(parts[4], to + j, bits - exponent(load(parts[4], to + j)))


def add_columns(inputs, outputs, parts, numbers, begin, end):
    """Add the integers of blocks of columns."""
    n, blocks, size, second, inner = numbers[0], numbers[1], numbers[2], numbers[4], numbers[7]
    tiles, unit = -(-inner // tile()), power(second)
    factors, factors2 = np.empty(512, np.float64), np.empty(512, np.float64)
    for task in range(begin, end):
        place = task // tiles
        column = (task - place * tiles) * tile()
        outer, few = place // blocks, min(int64(tile()), inner - column)
        first = (place - outer * blocks) * size
        count, at, to = min(size, n - first), (outer * n + first) * inner + column, place * inner + column
        for j in range(few):
            scale = load(parts[4], outer * inner + column + j)
            half = scale >> 1 if words() == 2 else scale
            store(factors, j, power(half))
            store(factors2, j, power(scale - half))
            store(parts[1], to + j, int64(0))
            store(parts[2], to + j, int64(0))
        whole = count // 4 * 4
        for row in range(0, whole, 4):
            for j in range(few):
                i, factor, factor2 = at + row * inner + j, load_from(3, factors, j), load_from(4, factors2, j)
                one, rest = both_integers(inputs, i, factor, factor2, unit)
                two, rest2 = both_integers(inputs, i + inner, factor, factor2, unit)
                three, rest3 = both_integers(inputs, i + 2 * inner, factor, factor2, unit)
                four, rest4 = both_integers(inputs, i + 3 * inner, factor, factor2, unit)
                store_to(1, parts[1], to + j, load_from(1, parts[1], to + j) + ((one + two) + (three + four)))
                if words() == 2:
                    more = (rest + rest2) + (rest3 + rest4)
                    store_to(2, parts[2], to + j, load_from(2, parts[2], to + j) + more)
        for row in range(whole, count):
            for j in range(few):
                factor, factor2 = load_from(3, factors, j), load_from(4, factors2, j)
                one, rest = both_integers(inputs, at + row * inner + j, factor, factor2, unit)
                store_to(1, parts[1], to + j, load_from(1, parts[1], to + j) + one)
                if words() == 2:
                    store_to(2, parts[2], to + j, load_from(2, parts[2], to + j) + rest)


def both_integers(inputs, i, factor, factor2, unit):
    """Return the integers of an element, zeros for infinities and NaN; without a second integer 0."""
    x, rest = finite(value(inputs, i)) * factor, int64(0)
    if words() == 2:
        x = x * factor2
    high = x + 6755399441055744.0
    if words() == 2:
        rest = integer((x - (high - 6755399441055744.0)) * unit + 6755399441055744.0)
    return integer(high), rest


def finish_columns(inputs, outputs, parts, numbers, begin, end):
    """Write the sums of columns; a task is a tile of columns."""
    blocks, second, inner = numbers[1], numbers[4], numbers[7]
    tiles = -(-inner // tile())
    for task in range(begin, end):
        outer = task // tiles
        column = (task - outer * tiles) * tile()
        for j in range(column, min(column + tile(), inner)):
            total, rest, odd = int64(0), int64(0), 0.0
            for block in range(outer * blocks, (outer + 1) * blocks):
                total += load(parts[1], block * inner + j)
                rest += load(parts[2], block * inner + j)
                odd += load(parts[3], block * inner + j)
            scale = load(parts[4], outer * inner + j)
            if odd != 0.0:
                finish(outputs, outer * inner + j, odd)
            elif words() == 1:
                finish(outputs, outer * inner + j, rounded(total, scale))
            else:
                finish(outputs, outer * inner + j, rounded_pair(total, rest, scale, second))


def scan_columns(inputs, outputs, parts, numbers, begin, end):
    """Write the running sums of blocks of columns."""
    n, blocks, size, second, initial, inner = numbers[0], numbers[1], numbers[2], numbers[4], numbers[5], numbers[7]
    tiles, unit = -(-inner // tile()), power(second)
    factors, factors2, odds = np.empty(512, np.float64), np.empty(512, np.float64), np.empty(512, np.float64)
    totals, rests, scales = np.empty(512, np.int64), np.empty(512, np.int64), np.empty(512, np.int64)
    backs, backs2 = np.empty(512, np.float64), np.empty(512, np.float64)
    for task in range(begin, end):
        place = task // tiles
        column = (task - place * tiles) * tile()
        outer, few = place // blocks, min(int64(tile()), inner - column)
        block = place - outer * blocks
        first = block * size
        count, at = min(size, n - first), (outer * n + first) * inner + column
        to, is_odd = (outer * (n + initial) + initial + first) * inner + column, False
        for j in range(few):
            scale = load(parts[4], outer * inner + column + j)
            half = scale >> 1 if words() == 2 else scale
            back = -(scale + second) >> 1
            store(factors, j, power(half))
            store(factors2, j, power(scale - half))
            store(backs, j, power(back))
            store(backs2, j, power(-(scale + second) - back))
            store(scales, j, scale)
            total, rest, odd = int64(0), int64(0), 0.0
            for before in range(outer * blocks, place):
                total += load(parts[1], before * inner + column + j)
                rest += load(parts[2], before * inner + column + j)
                odd += load(parts[3], before * inner + column + j)
            store(totals, j, total)
            store(rests, j, rest)
            store(odds, j, odd)
            is_odd |= (odd != 0.0) | (load(parts[3], place * inner + column + j) != 0.0)
            if (initial > 0) & (block == 0):
                finish(outputs, to - inner + j, 0.0)
        for row in range(count):
            i, o, seen = at + row * inner, to + row * inner, int64(0)
            for j in range(few):
                one, more = both_integers(inputs, i + j, load_from(3, factors, j), load_from(4, factors2, j), unit)
                total = load_from(1, totals, j) + one
                store_to(1, totals, j, total)
                seen |= total ^ (total >> 63)
                if words() == 2:
                    store_to(2, rests, j, load_from(2, rests, j) + more)
            if words() == 1:
                if rounds_alone():
                    for j in range(few):
                        finish(outputs, o + j, rounded_alone(load_from(1, totals, j), load_from(5, scales, j)))
                else:
                    for j in range(few):
                        finish(outputs, o + j, rounded(load_from(1, totals, j), load_from(5, scales, j)))
            elif seen < int64(1) << int64(52):
                for j in range(few):
                    total, rest = load_from(1, totals, j), load_from(2, rests, j)
                    back, back2 = load_from(6, backs, j), load_from(7, backs2, j)
                    finish(outputs, o + j, rounded_short_pair(total, rest, back, back2, second, unit))
            else:
                for j in range(few):
                    total, rest = load_from(1, totals, j), load_from(2, rests, j)
                    finish(outputs, o + j, rounded_pair(total, rest, load_from(5, scales, j), second))
            if is_odd:
                for j in range(few):
                    x, odd = value(inputs, i + j), load(odds, j)
                    odd += select(x - x == 0.0, 0.0, x)
                    store(odds, j, odd)
                    if odd != 0.0:
                        finish(outputs, o + j, odd)

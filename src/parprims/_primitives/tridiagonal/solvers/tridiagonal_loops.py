"""Tridiagonal systems on CPUs with exchanges of rows, and periodic systems.

numbers: low, n, lanes, width, then the numbers of the views of inputs and x. The inputs are lower, diag, upper and rhs.
A lane is a system, or a right-hand side. Systems without exchanges are in join_parts_loops.py.

The elimination is LAPACK's, operation for operation: of two rows the one with the larger number in the column comes
first. If any unknown is not finite, x[0] is not, for every row has a product with the row behind it. A pivot that is
infinite, by which an unknown would be zero, is made NaN.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parprims._cpu.templates.declarations import (
    Arrays,
    Memory,
    Number,
    Numbers,
    Position,
    acrosses_in,
    acrosses_out,
    alongs_in,
    alongs_out,
    load,
    load_from,
    moved_in,
    numbers_of,
    place_in,
    place_out,
    quotient,
    select,
    store,
    store_to,
    zero,
)

if TYPE_CHECKING:  # functions that are written for a call

    def size(x: Number) -> Number:
        """Return the number that pivots are compared by: |x|, or |re x| + |im x| of a complex number."""

    def unit() -> Number:
        """Return one in the dtype of the system."""

    def nan() -> Number:
        """Return NaN in the dtype of the system."""

    def finite(x: Number) -> Number:
        """Return x, or NaN if it is not finite."""

    def chunk() -> int:
        """Return the number of rows that are copied at a time."""

    def copied(
        inputs: Arrays, rows: Memory, at: Position, numbers: Numbers, first: int, count: int, columns: int
    ) -> None:
        """Copy a chunk of rows of the inputs whose lanes are not adjacent."""

    def element0(inputs: Arrays, rows: Memory, now: Position, k: int, width: int, j: int) -> Number:
        """Return the element of lower in lane j and row k of the chunk."""

    def element1(inputs: Arrays, rows: Memory, now: Position, k: int, width: int, j: int) -> Number:
        """Return the element of diag in lane j and row k of the chunk."""

    def element2(inputs: Arrays, rows: Memory, now: Position, k: int, width: int, j: int) -> Number:
        """Return the element of upper in lane j and row k of the chunk."""

    def element3(inputs: Arrays, rows: Memory, now: Position, k: int, width: int, j: int) -> Number:
        """Return the element of rhs in lane j and row k of the chunk."""

    def solutions(outputs: Arrays, count: int) -> Memory:
        """Return the array in which x is computed: the output, or a copy."""

    def origin(to: Position) -> int:
        """Return the place of row 0 of lane 0 in that array."""

    def stride(numbers: Numbers) -> int:
        """Return the distance from row to row in that array."""

    def delivered(xs: Memory, outputs: Arrays, to: Position, numbers: Numbers, columns: int) -> None:
        """Bring a copy of x to the output."""


def row_by_selects(p, q, y, a, b, c, d):
    """Return a row of the triangle and the next row from (p, q, 0 | y) and (a, b, c | d)."""
    swap = size(a) > size(p)
    pivot = select(swap, a, p)
    near = select(swap, b, q)
    right = select(swap, d, y)
    factor = quotient(select(swap, p, a), pivot)
    left = -(factor * c)
    return (
        near,
        select(swap, c, zero()),
        finite(pivot),
        right,
        select(swap, q, b) - factor * near,
        select(swap, left, c),
        select(swap, y, d) - factor * right,
    )


def row_by_branch(p, q, y, a, b, c, d):
    """Return the rows of `row_by_selects` by a branch: if exchanges can be foreseen, no row waits for a comparison."""
    if size(a) > size(p):
        factor = quotient(p, a)
        pivot, near, far, right = a, b, c, d
        first, second, rest = q - factor * b, -(factor * c), y - factor * d
    else:
        factor = quotient(a, p)
        pivot, near, far, right = p, q, zero(), y
        first, second, rest = b - factor * q, c, d - factor * y
    return (near, far, finite(pivot), right, first, second, rest)


def keep(cs, es, pivots, i, c, e, pivot):
    """Keep a row of the triangle."""
    store_to(1, cs, i, c)
    store_to(2, es, i, e)
    store_to(7, pivots, i, pivot)


def back(cs, es, pivots, i, y, near, beyond):
    """Return the unknown of a row of the triangle, from the two unknowns behind it."""
    x = (y - load_from(1, cs, i) * near) - load_from(2, es, i) * beyond
    return quotient(x, load_from(7, pivots, i))


# ---- One system after another ----------------------------------------------------------------------------------


def solve_lines(inputs, outputs, numbers, begin, end):
    """Solve the systems begin ... end, each from its first row to its last and back."""
    low, n, lanes = numbers[0], numbers[1], numbers[2]
    steps, step = alongs_in(numbers), alongs_out(numbers)[0]
    cs, es, pivots = numbers_of(n), numbers_of(n), numbers_of(n)
    for task in range(begin, end):
        outer = task // lanes
        at = place_in(numbers, outer // low, outer % low, task % lanes)
        to = place_out(numbers, outer // low, outer % low, task % lanes)[0]
        p, y = load_from(0, inputs[1], at[1]), load_from(0, inputs[3], at[3])
        q = load_from(0, inputs[2], at[2]) if n > 1 else zero()
        for i in range(n - 1):
            now = moved_in(at, steps, i + 1)
            c = load_from(0, inputs[2], now[2]) if i < n - 2 else zero()
            a, b, d = load_from(0, inputs[0], now[0]), load_from(0, inputs[1], now[1]), load_from(0, inputs[3], now[3])
            new = row_by_branch(p, q, y, a, b, c, d)
            keep(cs, es, pivots, i, new[0], new[1], new[2])
            store_to(3, outputs[0], to + i * step, new[3])
            p, q, y = new[4], new[5], new[6]
        beyond, x = zero(), quotient(y, finite(p))
        store_to(3, outputs[0], to + (n - 1) * step, x)
        for i in range(n - 2, -1, -1):
            before = back(cs, es, pivots, i, load_from(3, outputs[0], to + i * step), x, beyond)
            beyond = x
            x = before
            store_to(3, outputs[0], to + i * step, x)
        if not (x - x == zero()):
            for i in range(n):
                store_to(3, outputs[0], to + i * step, nan())


# ---- Many systems beside each other ----------------------------------------------------------------------------
#
# A task is a tile: `width` lanes, a row of all of them at a time. Arrays whose lanes are adjacent are read in place. Of
# other arrays a chunk of rows is first copied, so that lanes are adjacent and lines of the cache are read whole.


def solve_tiles(inputs, outputs, numbers, begin, end):
    """Solve tiles of systems."""
    low, n, lanes, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, step = alongs_in(numbers), stride(numbers)
    tiles = -(-lanes // width)
    cs, es, pivots = numbers_of(n * width), numbers_of(n * width), numbers_of(n * width)
    ps, qs, ys = numbers_of(width), numbers_of(width), numbers_of(width)
    rows, xs = numbers_of(4 * chunk() * width), solutions(outputs, n * width)
    for task in range(begin, end):
        outer, lane = task // tiles, (task % tiles) * width
        columns = min(width, lanes - lane)
        at = place_in(numbers, outer // low, outer % low, lane)
        to = place_out(numbers, outer // low, outer % low, lane)
        x0 = origin(to)
        for first in range(0, n, chunk()):
            count = min(chunk(), n - first)
            copied(inputs, rows, at, numbers, first, count, columns)
            if first == 0:
                for j in range(columns):
                    c = element2(inputs, rows, at, 0, width, j)
                    store_to(4, ps, j, element1(inputs, rows, at, 0, width, j))
                    store_to(5, qs, j, zero() if n == 1 else c)
                    store_to(6, ys, j, element3(inputs, rows, at, 0, width, j))
            for k in range(1 if first == 0 else 0, count):
                i = first + k
                now = moved_in(at, steps, i)
                done, put = (i - 1) * width, x0 + (i - 1) * step
                last = i == n - 1
                for j in range(columns):
                    c = element2(inputs, rows, now, k, width, j)
                    new = row_by_selects(
                        load_from(4, ps, j),
                        load_from(5, qs, j),
                        load_from(6, ys, j),
                        element0(inputs, rows, now, k, width, j),
                        element1(inputs, rows, now, k, width, j),
                        zero() if last else c,
                        element3(inputs, rows, now, k, width, j),
                    )
                    keep(cs, es, pivots, done + j, new[0], new[1], new[2])
                    store_to(3, xs, put + j, new[3])
                    store_to(4, ps, j, new[4])
                    store_to(5, qs, j, new[5])
                    store_to(6, ys, j, new[6])
        for j in range(columns):
            x = quotient(load_from(6, ys, j), finite(load_from(4, ps, j)))
            store_to(4, ps, j, x)
            store_to(5, qs, j, zero())
            store_to(3, xs, x0 + (n - 1) * step + j, x)
        for i in range(n - 2, -1, -1):
            done, put = i * width, x0 + i * step
            for j in range(columns):
                near = load_from(4, ps, j)
                x = back(cs, es, pivots, done + j, load_from(3, xs, put + j), near, load_from(5, qs, j))
                store_to(4, ps, j, x)
                store_to(5, qs, j, near)
                store_to(3, xs, put + j, x)
        emptied(xs, x0, step, n, columns, ps)
        delivered(xs, outputs, to, numbers, columns)


def emptied(xs, x0, step, n, columns, firsts):
    """Make a solution NaN if its first unknown is not finite."""
    for j in range(columns):
        x = load_from(4, firsts, j)
        if not (x - x == zero()):
            for i in range(n):
                store_to(3, xs, x0 + i * step + j, nan())


# ---- Many right-hand sides of one matrix -----------------------------------------------------------------------


def solve_shared(inputs, outputs, numbers, begin, end):
    """Solve tiles of right-hand sides of one matrix, which is eliminated once for all tiles in a row."""
    low, n, lanes, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, step = alongs_in(numbers), stride(numbers)
    tiles = -(-lanes // width)
    cs, es, pivots, factors, swaps = numbers_of(n), numbers_of(n), numbers_of(n), numbers_of(n), np.empty(n, np.bool_)
    ps, qs, known = numbers_of(width), numbers_of(width), -1
    rows, xs = numbers_of(4 * chunk() * width), solutions(outputs, n * width)
    for task in range(begin, end):
        outer, lane = task // tiles, (task % tiles) * width
        columns = min(width, lanes - lane)
        at = place_in(numbers, outer // low, outer % low, lane)
        to = place_out(numbers, outer // low, outer % low, lane)
        x0 = origin(to)
        if outer != known:
            known = outer
            p = load_from(0, inputs[1], at[1])
            q = load_from(0, inputs[2], at[2]) if n > 1 else zero()
            for i in range(n - 1):
                now = moved_in(at, steps, i + 1)
                a, b = load_from(0, inputs[0], now[0]), load_from(0, inputs[1], now[1])
                c = load_from(0, inputs[2], now[2]) if i < n - 2 else zero()
                swap = size(a) > size(p)
                new = row_by_branch(p, q, zero(), a, b, c, zero())
                store_to(5, factors, i, quotient(p if swap else a, a if swap else p))
                store(swaps, i, swap)
                keep(cs, es, pivots, i, new[0], new[1], new[2])
                p, q = new[4], new[5]
            store_to(7, pivots, n - 1, finite(p))
        for first in range(0, n, chunk()):
            count = min(chunk(), n - first)
            copied(inputs, rows, at, numbers, first, count, columns)
            if first == 0:
                for j in range(columns):
                    store_to(4, ps, j, element3(inputs, rows, at, 0, width, j))
            for k in range(1 if first == 0 else 0, count):
                i = first + k
                now = moved_in(at, steps, i)
                put = x0 + (i - 1) * step
                factor = load_from(5, factors, i - 1)
                if load(swaps, i - 1):
                    for j in range(columns):
                        right = element3(inputs, rows, now, k, width, j)
                        store_to(3, xs, put + j, right)
                        store_to(4, ps, j, load_from(4, ps, j) - factor * right)
                else:
                    for j in range(columns):
                        right = load_from(4, ps, j)
                        store_to(3, xs, put + j, right)
                        store_to(4, ps, j, element3(inputs, rows, now, k, width, j) - factor * right)
        pivot = load_from(7, pivots, n - 1)
        for j in range(columns):
            x = quotient(load_from(4, ps, j), pivot)
            store_to(4, ps, j, x)
            store_to(6, qs, j, zero())
            store_to(3, xs, x0 + (n - 1) * step + j, x)
        for i in range(n - 2, -1, -1):
            put = x0 + i * step
            for j in range(columns):
                near = load_from(4, ps, j)
                x = back(cs, es, pivots, i, load_from(3, xs, put + j), near, load_from(6, qs, j))
                store_to(4, ps, j, x)
                store_to(6, qs, j, near)
                store_to(3, xs, put + j, x)
        emptied(xs, x0, step, n, columns, ps)
        delivered(xs, outputs, to, numbers, columns)


# ---- Periodic systems ------------------------------------------------------------------------------------------
#
# The circle is folded: L[i] = x[i] and R[i] = x[n-1-i] are a pair, and a row has unknowns of three pairs in a row at
# most. Two rows are carried from pair to pair, in L[i], R[i], L[i+1] and R[i+1]. With the rows of L[i+1] and R[i+1]
# they are four. Two of them become rows of the triangle: for L[i] the row with the largest number of three, then for
# R[i] likewise. The last pair, and the unknown in the middle if n is odd, are left as three equations.
#
# A row is (z0, z1, z2, z3, z4 | y), where z0 belongs to the unknown that is eliminated next.


def sorted_rows(one, other):
    """Return two rows, the one with the larger first number first: by a branch, which can often be foreseen."""
    first, second = one, other
    if size(other[0]) > size(one[0]):
        first, second = other, one
    return (first, second)


def reduced_row(row, first):
    """Return a row without its first unknown; its columns move up."""
    factor = quotient(row[0], first[0])
    return (
        row[1] - factor * first[1],
        row[2] - factor * first[2],
        row[3] - factor * first[3],
        row[4] - factor * first[4],
        zero(),
        row[5] - factor * first[5],
    )


def eliminated(one, other, third):
    """Return the row of the triangle for the first unknown of three rows, pivot last, and the two other rows."""
    pair = sorted_rows(one, other)
    outer = sorted_rows(pair[0], third)
    first = outer[0]
    top = (first[1], first[2], first[3], first[4], first[5], finite(first[0]))
    return (top, reduced_row(pair[1], first), reduced_row(outer[1], first))


def solve_periodic(inputs, outputs, numbers, begin, end):
    """Solve tiles of periodic systems of two unknowns or more."""
    low, n, lanes, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, across, step, aside = (
        alongs_in(numbers),
        acrosses_in(numbers),
        alongs_out(numbers)[0],
        acrosses_out(numbers)[0],
    )
    tiles, pairs = -(-lanes // width), n // 2
    plane = pairs * width
    known, carried, xs = numbers_of(10 * plane), numbers_of(10 * width), numbers_of(4 * width)
    for task in range(begin, end):
        outer, lane = task // tiles, (task % tiles) * width
        columns = min(width, lanes - lane)
        at = place_in(numbers, outer // low, outer % low, lane)
        to = place_out(numbers, outer // low, outer % low, lane)[0]
        end_ = moved_in(at, steps, n - 1)
        for j in range(columns):
            l = moved_in(at, across, j)
            r = moved_in(end_, across, j)
            store_to(2, carried, j, load_from(0, inputs[1], l[1]))
            store_to(2, carried, width + j, load_from(0, inputs[0], l[0]))
            store_to(2, carried, 2 * width + j, load_from(0, inputs[2], l[2]))
            store_to(2, carried, 3 * width + j, zero())
            store_to(2, carried, 4 * width + j, load_from(0, inputs[3], l[3]))
            store_to(2, carried, 5 * width + j, load_from(0, inputs[2], r[2]))
            store_to(2, carried, 6 * width + j, load_from(0, inputs[1], r[1]))
            store_to(2, carried, 7 * width + j, zero())
            store_to(2, carried, 8 * width + j, load_from(0, inputs[0], r[0]))
            store_to(2, carried, 9 * width + j, load_from(0, inputs[3], r[3]))
        for i in range(pairs - 1):
            left, right = moved_in(at, steps, i + 1), moved_in(at, steps, n - 2 - i)
            done, put, back = i * width, to + i * step, to + (n - 1 - i) * step
            for j in range(columns):
                l = moved_in(left, across, j)
                r = moved_in(right, across, j)
                one = (
                    load_from(2, carried, j),
                    load_from(2, carried, width + j),
                    load_from(2, carried, 2 * width + j),
                    load_from(2, carried, 3 * width + j),
                    zero(),
                    load_from(2, carried, 4 * width + j),
                )
                other = (
                    load_from(2, carried, 5 * width + j),
                    load_from(2, carried, 6 * width + j),
                    load_from(2, carried, 7 * width + j),
                    load_from(2, carried, 8 * width + j),
                    zero(),
                    load_from(2, carried, 9 * width + j),
                )
                third = (
                    load_from(0, inputs[0], l[0]),
                    zero(),
                    load_from(0, inputs[1], l[1]),
                    zero(),
                    load_from(0, inputs[2], l[2]),
                    load_from(0, inputs[3], l[3]),
                )
                by_left = eliminated(one, other, third)
                fourth = (
                    load_from(0, inputs[2], r[2]),
                    zero(),
                    load_from(0, inputs[1], r[1]),
                    zero(),
                    load_from(0, inputs[0], r[0]),
                    load_from(0, inputs[3], r[3]),
                )
                by_right = eliminated(by_left[1], by_left[2], fourth)
                top, bottom = by_left[0], by_right[0]
                store_to(1, known, done + j, top[0])
                store_to(1, known, plane + done + j, top[1])
                store_to(1, known, 2 * plane + done + j, top[2])
                store_to(1, known, 3 * plane + done + j, top[3])
                store_to(1, known, 4 * plane + done + j, bottom[0])
                store_to(1, known, 5 * plane + done + j, bottom[1])
                store_to(1, known, 6 * plane + done + j, bottom[2])
                store_to(1, known, 7 * plane + done + j, bottom[3])
                store_to(1, known, 8 * plane + done + j, top[5])
                store_to(1, known, 9 * plane + done + j, bottom[5])
                store_to(3, outputs[0], put + aside * j, top[4])
                store_to(3, outputs[0], back + aside * j, bottom[4])
                one, other = by_right[1], by_right[2]
                store_to(2, carried, j, one[0])
                store_to(2, carried, width + j, one[1])
                store_to(2, carried, 2 * width + j, one[2])
                store_to(2, carried, 3 * width + j, one[3])
                store_to(2, carried, 4 * width + j, one[5])
                store_to(2, carried, 5 * width + j, other[0])
                store_to(2, carried, 6 * width + j, other[1])
                store_to(2, carried, 7 * width + j, other[2])
                store_to(2, carried, 8 * width + j, other[3])
                store_to(2, carried, 9 * width + j, other[5])
        middle, odd = moved_in(at, steps, pairs), n % 2 == 1
        for j in range(columns):
            # L[pairs] and R[pairs] are the unknown in the middle, or R and L of the last pair.
            z0, z1 = load_from(2, carried, j), load_from(2, carried, width + j)
            z2, z3 = load_from(2, carried, 2 * width + j), load_from(2, carried, 3 * width + j)
            one = (
                select(odd, z0, z0 + z3),
                select(odd, z1, z1 + z2),
                select(odd, z2 + z3, zero()),
                zero(),
                zero(),
                load_from(2, carried, 4 * width + j),
            )
            z0, z1 = load_from(2, carried, 5 * width + j), load_from(2, carried, 6 * width + j)
            z2, z3 = load_from(2, carried, 7 * width + j), load_from(2, carried, 8 * width + j)
            other = (
                select(odd, z0, z0 + z3),
                select(odd, z1, z1 + z2),
                select(odd, z2 + z3, zero()),
                zero(),
                zero(),
                load_from(2, carried, 9 * width + j),
            )
            m = moved_in(middle, across, j)
            a, b, c = load_from(0, inputs[0], m[0]), load_from(0, inputs[1], m[1]), load_from(0, inputs[2], m[2])
            d = load_from(0, inputs[3], m[3])
            third = (
                select(odd, a, zero()),
                select(odd, c, zero()),
                select(odd, b, unit()),
                zero(),
                zero(),
                select(odd, d, zero()),
            )
            by_left = eliminated(one, other, third)
            by_right = sorted_rows(by_left[1], by_left[2])
            first = by_right[0]
            rest = reduced_row(by_right[1], first)
            top = by_left[0]
            x2 = quotient(rest[5], finite(rest[0]))
            x1 = quotient(first[5] - first[1] * x2, finite(first[0]))
            x0 = quotient((top[4] - top[1] * x2) - top[0] * x1, top[5])
            if odd:
                store_to(3, outputs[0], to + pairs * step + aside * j, x2)
            store_to(3, outputs[0], to + (pairs - 1) * step + aside * j, x0)
            store_to(3, outputs[0], to + (n - pairs) * step + aside * j, x1)
            store_to(4, xs, j, x0)
            store_to(4, xs, width + j, x1)
            store_to(4, xs, 2 * width + j, select(odd, x2, x1))
            store_to(4, xs, 3 * width + j, select(odd, x2, x0))
        for i in range(pairs - 2, -1, -1):
            done, put, back = i * width, to + i * step, to + (n - 1 - i) * step
            for j in range(columns):
                x0, x1 = load_from(4, xs, j), load_from(4, xs, width + j)
                x2, x3 = load_from(4, xs, 2 * width + j), load_from(4, xs, 3 * width + j)
                y = load_from(3, outputs[0], back + aside * j)
                y = (y - load_from(1, known, 7 * plane + done + j) * x3) - load_from(
                    1, known, 6 * plane + done + j
                ) * x2
                y = (y - load_from(1, known, 5 * plane + done + j) * x1) - load_from(
                    1, known, 4 * plane + done + j
                ) * x0
                y = quotient(y, load_from(1, known, 9 * plane + done + j))
                z = load_from(3, outputs[0], put + aside * j)
                z = (z - load_from(1, known, 3 * plane + done + j) * x2) - load_from(
                    1, known, 2 * plane + done + j
                ) * x1
                z = (z - load_from(1, known, plane + done + j) * x0) - load_from(1, known, done + j) * y
                z = quotient(z, load_from(1, known, 8 * plane + done + j))
                store_to(3, outputs[0], back + aside * j, y)
                store_to(3, outputs[0], put + aside * j, z)
                store_to(4, xs, 2 * width + j, x0)
                store_to(4, xs, 3 * width + j, x1)
                store_to(4, xs, j, z)
                store_to(4, xs, width + j, y)
        for j in range(columns):
            x = load_from(4, xs, j)
            if not (x - x == zero()):
                for i in range(n):
                    store_to(3, outputs[0], to + i * step + aside * j, nan())

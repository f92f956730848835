"""Tridiagonal systems on CPUs without exchanges of rows. Inputs and numbers are as in tridiagonal_loops.py.

The factorization is twisted (Babuska, "Numerical stability in problems of linear algebra", 1972): unknowns are
eliminated from both ends towards the middle. A row waits for the one before it, so a system takes half the time of an
elimination from one end. The rows above the middle are taken from the first on, those below it from the last on, in
which a, b, c are upper, diag, lower. In the middle two rows with two unknowns are left, and the second is the next row
of the first. From there the unknowns are found towards both ends. If any is not finite, the first or the last is not,
for every row has a product with the row behind it. A pivot that is infinite, by which an unknown would be zero, is made
NaN.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    alongs_in,
    alongs_out,
    load_from,
    moved_in,
    numbers_of,
    place_in,
    place_out,
    quotient,
    store_to,
    zero,
)

if TYPE_CHECKING:  # functions that are written for a call
    from parprims._primitives.tridiagonal.solvers.tridiagonal_loops import (
        chunk,
        copied,
        delivered,
        element0,
        element1,
        element2,
        element3,
        finite,
        nan,
        origin,
        solutions,
        stride,
        unit,
    )


def eliminated(p, q, y, a, b, c, d):
    """Return a row of the triangle, divided by its pivot, and the next row, from (p, q, 0 | y) and (a, b, c | d)."""
    pivot = finite(p)
    near, right = quotient(q, pivot), quotient(y, pivot)
    return (near, right, b - a * near, c, d - a * right)


# ---- One system after another ----------------------------------------------------------------------------------


def solve_lines(inputs, outputs, numbers, begin, end):
    """Solve the systems begin ... end, a row of either end at a time."""
    low, n, lanes = numbers[0], numbers[1], numbers[2]
    steps, step = alongs_in(numbers), alongs_out(numbers)[0]
    above, below, cs = n - n // 2, n // 2, numbers_of(n)
    for task in range(begin, end):
        outer = task // lanes
        at = place_in(numbers, outer // low, outer % low, task % lanes)
        to = place_out(numbers, outer // low, outer % low, task % lanes)[0]
        now = moved_in(at, steps, n - 1)
        p, q, y = load_from(0, inputs[1], at[1]), zero(), load_from(0, inputs[3], at[3])
        u, v, w = load_from(0, inputs[1], now[1]), zero(), load_from(0, inputs[3], now[3])
        if n > 1:
            q, v = load_from(0, inputs[2], at[2]), load_from(0, inputs[0], now[0])
        for i in range(above - 1):
            now = moved_in(at, steps, i + 1)
            a, b = load_from(0, inputs[0], now[0]), load_from(0, inputs[1], now[1])
            c, d = load_from(0, inputs[2], now[2]), load_from(0, inputs[3], now[3])
            new = eliminated(p, q, y, a, b, c, d)
            store_to(1, cs, i, new[0])
            store_to(3, outputs[0], to + i * step, new[1])
            p, q, y = new[2], new[3], new[4]
            if i < below - 1:
                now = moved_in(at, steps, n - 2 - i)
                a, b = load_from(0, inputs[2], now[2]), load_from(0, inputs[1], now[1])
                c, d = load_from(0, inputs[0], now[0]), load_from(0, inputs[3], now[3])
                new = eliminated(u, v, w, a, b, c, d)
                store_to(1, cs, n - 1 - i, new[0])
                store_to(3, outputs[0], to + (n - 1 - i) * step, new[1])
                u, v, w = new[2], new[3], new[4]
        if below > 0:
            new = eliminated(p, q, y, v, u, zero(), w)
            other = quotient(new[4], finite(new[2]))
            x = new[1] - new[0] * other
            store_to(3, outputs[0], to + above * step, other)
        else:
            x = quotient(y, finite(p))
            other = x
        store_to(3, outputs[0], to + (above - 1) * step, x)
        for i in range(1, above):
            one = above - 1 - i
            x = load_from(3, outputs[0], to + one * step) - load_from(1, cs, one) * x
            store_to(3, outputs[0], to + one * step, x)
            if i < below:
                one = above + i
                other = load_from(3, outputs[0], to + one * step) - load_from(1, cs, one) * other
                store_to(3, outputs[0], to + one * step, other)
        if not (x - x == zero() and other - other == zero()):
            for i in range(n):
                store_to(3, outputs[0], to + i * step, nan())


# ---- Many systems beside each other ----------------------------------------------------------------------------


def solve_tiles(inputs, outputs, numbers, begin, end):
    """Solve tiles of systems. The memory of a lane has two halves: for rows above the middle and below it."""
    low, n, lanes, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, step = alongs_in(numbers), stride(numbers)
    tiles, above, below = -(-lanes // width), n - n // 2, n // 2
    cs, ps, qs, ys = numbers_of(n * width), numbers_of(2 * width), numbers_of(2 * width), numbers_of(2 * width)
    rows, xs = numbers_of(4 * chunk() * width), solutions(outputs, n * width)
    for task in range(begin, end):
        outer, lane = task // tiles, (task % tiles) * width
        columns = min(width, lanes - lane)
        at = place_in(numbers, outer // low, outer % low, lane)
        to = place_out(numbers, outer // low, outer % low, lane)
        x0 = origin(to)
        for first in range(0, above, chunk()):
            count = min(chunk(), above - first)
            copied(inputs, rows, at, numbers, first, count, columns)
            if first == 0:
                for j in range(columns):
                    store_to(4, ps, j, element1(inputs, rows, at, 0, width, j))
                    store_to(5, qs, j, element2(inputs, rows, at, 0, width, j))
                    store_to(6, ys, j, element3(inputs, rows, at, 0, width, j))
            for k in range(1 if first == 0 else 0, count):
                i = first + k
                now, done, put = moved_in(at, steps, i), (i - 1) * width, x0 + (i - 1) * step
                for j in range(columns):
                    new = eliminated(
                        load_from(4, ps, j),
                        load_from(5, qs, j),
                        load_from(6, ys, j),
                        element0(inputs, rows, now, k, width, j),
                        element1(inputs, rows, now, k, width, j),
                        element2(inputs, rows, now, k, width, j),
                        element3(inputs, rows, now, k, width, j),
                    )
                    store_to(1, cs, done + j, new[0])
                    store_to(3, xs, put + j, new[1])
                    store_to(4, ps, j, new[2])
                    store_to(5, qs, j, new[3])
                    store_to(6, ys, j, new[4])
        for first in range(0, below, chunk()):
            count, last = min(chunk(), below - first), n - 1 - first
            copied(inputs, rows, at, numbers, last - count + 1, count, columns)
            if first == 0:
                now = moved_in(at, steps, last)
                for j in range(columns):
                    store_to(4, ps, width + j, element1(inputs, rows, now, count - 1, width, j))
                    store_to(5, qs, width + j, element0(inputs, rows, now, count - 1, width, j))
                    store_to(6, ys, width + j, element3(inputs, rows, now, count - 1, width, j))
            for past in range(1 if first == 0 else 0, count):
                i, k = last - past, count - 1 - past
                now, done, put = moved_in(at, steps, i), (i + 1) * width, x0 + (i + 1) * step
                for j in range(columns):
                    new = eliminated(
                        load_from(4, ps, width + j),
                        load_from(5, qs, width + j),
                        load_from(6, ys, width + j),
                        element2(inputs, rows, now, k, width, j),
                        element1(inputs, rows, now, k, width, j),
                        element0(inputs, rows, now, k, width, j),
                        element3(inputs, rows, now, k, width, j),
                    )
                    store_to(1, cs, done + j, new[0])
                    store_to(3, xs, put + j, new[1])
                    store_to(4, ps, width + j, new[2])
                    store_to(5, qs, width + j, new[3])
                    store_to(6, ys, width + j, new[4])
        put = x0 + (above - 1) * step
        for j in range(columns):
            p, q, y = load_from(4, ps, j), load_from(5, qs, j), load_from(6, ys, j)
            if below > 0:
                v, u, w = load_from(5, qs, width + j), load_from(4, ps, width + j), load_from(6, ys, width + j)
                new = eliminated(p, q, y, v, u, zero(), w)
                other = quotient(new[4], finite(new[2]))
                x = new[1] - new[0] * other
                store_to(3, xs, put + step + j, other)
            else:
                x = quotient(y, finite(p))
                other = x
            store_to(3, xs, put + j, x)
            store_to(4, ps, j, x)
            store_to(4, ps, width + j, other)
        for i in range(above - 2, -1, -1):
            done, put = i * width, x0 + i * step
            for j in range(columns):
                x = load_from(3, xs, put + j) - load_from(1, cs, done + j) * load_from(4, ps, j)
                store_to(4, ps, j, x)
                store_to(3, xs, put + j, x)
        for i in range(above + 1, n):
            done, put = i * width, x0 + i * step
            for j in range(columns):
                x = load_from(3, xs, put + j) - load_from(1, cs, done + j) * load_from(4, ps, width + j)
                store_to(4, ps, width + j, x)
                store_to(3, xs, put + j, x)
        emptied(xs, x0, step, n, columns, ps, width)
        delivered(xs, outputs, to, numbers, columns)


def emptied(xs, x0, step, n, columns, ends, width):
    """Make a solution NaN if its first or last unknown is not finite."""
    for j in range(columns):
        x, y = load_from(4, ends, j), load_from(4, ends, width + j)
        if not (x - x == zero() and y - y == zero()):
            for i in range(n):
                store_to(3, xs, x0 + i * step + j, nan())


# ---- Many right-hand sides of one matrix -----------------------------------------------------------------------


def solve_shared(inputs, outputs, numbers, begin, end):
    """Solve tiles of right-hand sides of one matrix, which is eliminated once for all tiles in a row."""
    low, n, lanes, width = numbers[0], numbers[1], numbers[2], numbers[3]
    steps, step = alongs_in(numbers), stride(numbers)
    tiles, above, below = -(-lanes // width), n - n // 2, n // 2
    cs, pivots, factors, ys, known = numbers_of(n), numbers_of(n), numbers_of(n), numbers_of(2 * width), -1
    rows, xs = numbers_of(4 * chunk() * width), solutions(outputs, n * width)
    for task in range(begin, end):
        outer, lane = task // tiles, (task % tiles) * width
        columns = min(width, lanes - lane)
        at = place_in(numbers, outer // low, outer % low, lane)
        to = place_out(numbers, outer // low, outer % low, lane)
        x0 = origin(to)
        if outer != known:
            known = outer
            now = moved_in(at, steps, n - 1)
            p, q = load_from(0, inputs[1], at[1]), zero()
            u, v = load_from(0, inputs[1], now[1]), zero()
            if n > 1:
                q, v = load_from(0, inputs[2], at[2]), load_from(0, inputs[0], now[0])
            for i in range(above - 1):
                now = moved_in(at, steps, i + 1)
                a, b = load_from(0, inputs[0], now[0]), load_from(0, inputs[1], now[1])
                c = load_from(0, inputs[2], now[2])
                new = eliminated(p, q, zero(), a, b, c, zero())
                store_to(5, factors, i, a)
                store_to(7, pivots, i, finite(p))
                store_to(1, cs, i, new[0])
                p, q = new[2], new[3]
                if i < below - 1:
                    now = moved_in(at, steps, n - 2 - i)
                    a, b = load_from(0, inputs[2], now[2]), load_from(0, inputs[1], now[1])
                    c = load_from(0, inputs[0], now[0])
                    new = eliminated(u, v, zero(), a, b, c, zero())
                    store_to(5, factors, n - 1 - i, a)
                    store_to(7, pivots, n - 1 - i, finite(u))
                    store_to(1, cs, n - 1 - i, new[0])
                    u, v = new[2], new[3]
            store_to(7, pivots, above - 1, finite(p))
            if below > 0:
                new = eliminated(p, q, zero(), v, u, zero(), zero())
                store_to(5, factors, above - 1, v)
                store_to(1, cs, above - 1, new[0])
                store_to(7, pivots, above, finite(new[2]))
        for first in range(0, above, chunk()):
            count = min(chunk(), above - first)
            copied(inputs, rows, at, numbers, first, count, columns)
            if first == 0:
                for j in range(columns):
                    store_to(4, ys, j, element3(inputs, rows, at, 0, width, j))
            for k in range(1 if first == 0 else 0, count):
                i = first + k - 1
                now, put = moved_in(at, steps, i + 1), x0 + i * step
                factor, pivot = load_from(5, factors, i), load_from(7, pivots, i)
                for j in range(columns):
                    right = quotient(load_from(4, ys, j), pivot)
                    store_to(3, xs, put + j, right)
                    store_to(4, ys, j, element3(inputs, rows, now, k, width, j) - factor * right)
        for first in range(0, below, chunk()):
            count, last = min(chunk(), below - first), n - 1 - first
            copied(inputs, rows, at, numbers, last - count + 1, count, columns)
            if first == 0:
                now = moved_in(at, steps, last)
                for j in range(columns):
                    store_to(4, ys, width + j, element3(inputs, rows, now, count - 1, width, j))
            for past in range(1 if first == 0 else 0, count):
                i, k = last - past + 1, count - 1 - past
                now, put = moved_in(at, steps, i - 1), x0 + i * step
                factor, pivot = load_from(5, factors, i), load_from(7, pivots, i)
                for j in range(columns):
                    right = quotient(load_from(4, ys, width + j), pivot)
                    store_to(3, xs, put + j, right)
                    store_to(4, ys, width + j, element3(inputs, rows, now, k, width, j) - factor * right)
        put, pivot = x0 + (above - 1) * step, load_from(7, pivots, above - 1)
        factor, c, last = zero(), zero(), unit()
        if below > 0:
            factor, c, last = load_from(5, factors, above - 1), load_from(1, cs, above - 1), load_from(7, pivots, above)
        for j in range(columns):
            x = quotient(load_from(4, ys, j), pivot)
            other = x
            if below > 0:
                other = quotient(load_from(4, ys, width + j) - factor * x, last)
                x = x - c * other
                store_to(3, xs, put + step + j, other)
            store_to(3, xs, put + j, x)
            store_to(4, ys, j, x)
            store_to(4, ys, width + j, other)
        for i in range(above - 2, -1, -1):
            c, put = load_from(1, cs, i), x0 + i * step
            for j in range(columns):
                x = load_from(3, xs, put + j) - c * load_from(4, ys, j)
                store_to(4, ys, j, x)
                store_to(3, xs, put + j, x)
        for i in range(above + 1, n):
            c, put = load_from(1, cs, i), x0 + i * step
            for j in range(columns):
                x = load_from(3, xs, put + j) - c * load_from(4, ys, width + j)
                store_to(4, ys, width + j, x)
                store_to(3, xs, put + j, x)
        emptied(xs, x0, step, n, columns, ys, width)
        delivered(xs, outputs, to, numbers, columns)

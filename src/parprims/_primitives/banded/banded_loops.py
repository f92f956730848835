"""Systems with narrow bands on CPUs.

inputs: the rows of all systems, each with the l + u + 1 coefficients from column i - l on, and the right-hand sides.
numbers: n, l, u, the columns of a right-hand side.

Elimination with row exchanges sees l + 1 rows at a time: all that have the next column. They are kept in a window that
begins at the next column, so that rows that change places need not be shifted.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from parprims._cpu.templates.declarations import load, numbers_of, quotient, store, zero


def solve_systems(inputs, outputs, numbers, begin, end):
    """Solve the systems begin ... end."""
    n, below, above, columns = numbers[0], numbers[1], numbers[2], numbers[3]
    width = below + above + 1
    window, upper = numbers_of((below + 1) * width), numbers_of(n * width)
    for system in range(begin, end):
        first, at_right = system * n * width, system * n * columns
        for i in range(n * columns):
            store(outputs[0], at_right + i, load(inputs[1], at_right + i))
        for row in range(below + 1):
            # The first rows have no coefficients before column 0.
            for c in range(width):
                place = c + below - row
                one = load(inputs[0], first + min(row, n - 1) * width + min(place, width - 1))
                store(window, row * width + c, one if (row < n) & (place < width) else zero())
        for j in range(n):
            rows = min(below, n - 1 - j)
            best, pivot = abs(load(window, 0)), 0
            for row in range(1, rows + 1):
                size = abs(load(window, row * width))
                if size > best:
                    best, pivot = size, row
            if pivot > 0:
                for c in range(width):
                    one = load(window, c)
                    store(window, c, load(window, pivot * width + c))
                    store(window, pivot * width + c, one)
                for c in range(columns):
                    here, there = at_right + j * columns + c, at_right + (j + pivot) * columns + c
                    one = load(outputs[0], here)
                    store(outputs[0], here, load(outputs[0], there))
                    store(outputs[0], there, one)
            for c in range(width):
                store(upper, j * width + c, load(window, c))
            for row in range(1, rows + 1):
                factor = quotient(load(window, row * width), load(upper, j * width))
                for c in range(1, width):
                    one = load(window, row * width + c) - factor * load(upper, j * width + c)
                    store(window, (row - 1) * width + c - 1, one)
                store(window, (row - 1) * width + width - 1, zero())
                for c in range(columns):
                    here, there = at_right + (j + row) * columns + c, at_right + j * columns + c
                    store(outputs[0], here, load(outputs[0], here) - factor * load(outputs[0], there))
            following = j + 1 + below
            for c in range(width):
                one = load(inputs[0], first + min(following, n - 1) * width + c)
                store(window, below * width + c, one if following < n else zero())
        for back in range(n):
            j = n - 1 - back
            for c in range(columns):
                total = load(outputs[0], at_right + j * columns + c)
                for i in range(1, min(width, n - j)):
                    total -= load(upper, j * width + i) * load(outputs[0], at_right + (j + i) * columns + c)
                store(outputs[0], at_right + j * columns + c, quotient(total, load(upper, j * width)))

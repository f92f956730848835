"""Filters of high order on CPUs.

inputs: b and a of all sections, the lines, the states before each. outputs: the lines, the states after.
numbers: n, sections, k.

A line is filtered by one section after another. For filters of a low order cpu.py writes a kernel of equal steps, with
coefficients and states in registers.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from parprims._cpu.templates.declarations import load, numbers_of, quotient, store, zero


def filter_long_lines(inputs, outputs, numbers, begin, end):
    """Filter the lines begin ... end in the transposed direct form II."""
    n, sections, k = numbers[0], numbers[1], numbers[2]
    b, a, z = numbers_of(k + 1), numbers_of(k + 1), numbers_of(k + 1)
    for line in range(begin, end):
        for section in range(sections):
            first = load(inputs[1], section * (k + 1))
            for i in range(k + 1):
                store(b, i, quotient(load(inputs[0], section * (k + 1) + i), first))
                store(a, i, quotient(load(inputs[1], section * (k + 1) + i), first))
            for i in range(k):
                store(z, i, load(inputs[3], (line * sections + section) * k + i))
            store(z, k, zero())
            for at in range(line * n, (line + 1) * n):
                x = load(inputs[2], at) if section == 0 else load(outputs[0], at)
                y = load(b, 0) * x + load(z, 0)
                for i in range(k):
                    store(z, i, load(z, i + 1) + load(b, i + 1) * x - load(a, i + 1) * y)
                store(outputs[0], at, y)
            for i in range(k):
                store(outputs[1], (line * sections + section) * k + i, load(z, i))

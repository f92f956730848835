"""Differences of neighbours on CPUs. numbers: the length of a line."""

# mypy: allow-untyped-defs, allow-untyped-calls

from parprims._cpu.templates.declarations import load, store


def differences(inputs, outputs, numbers, begin, end):
    """Compute the lines begin ... end."""
    n = numbers[0]
    for line in range(begin, end):
        before = load(inputs[0], line * n)
        store(outputs[0], line * n, before)
        for i in range(line * n + 1, line * n + n):
            x = load(inputs[0], i)
            store(outputs[0], i, x - before)
            before = x

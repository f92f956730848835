"""The grouping of linear recurrences by kernels for CPUs, in plain NumPy."""

import numpy as np

GROUP, BLOCK, LOST = 8192, 1040, 1e-25


def blocks(n):
    """Return the first place of each block of a line, the place behind it, and whether the block is whole."""
    places = [group + inside for group in range(0, n, GROUP) for inside in range(0, GROUP, BLOCK) if group + inside < n]
    ends = [min(first + BLOCK, first // GROUP * GROUP + GROUP) for first in places]
    return [(first, min(end, n), end <= n) for first, end in zip(places, ends, strict=True)]


def times(x, y):
    """Return products. Of complex ones, NumPy does not round each real product on some processors."""
    if x.dtype.kind == "f":
        return x * y
    product = np.empty_like(x)
    product.real = x.real * y.real - x.imag * y.imag
    product.imag = x.real * y.imag + x.imag * y.real
    return product


def in_blocks(a, b, state=None):
    """Return the solution along the last axis, after the state before it, by the blocks of recurrence_loops.py."""
    x = np.empty_like(b)
    number = b.real.dtype.type
    with np.errstate(all="ignore"):
        for first, end, whole in blocks(b.shape[-1]):
            mapped = whole and state is not None
            before, factor, term = state, np.ones_like(b[..., 0]), np.zeros_like(b[..., 0])
            least = np.full(factor.shape, np.inf)
            for i in range(first, end):
                state = b[..., i] if state is None else times(a[..., i], state) + b[..., i]
                x[..., i] = state
                if mapped:
                    term, factor = times(a[..., i], term) + b[..., i], times(a[..., i], factor)
                    least = np.fmin(least, abs(factor.real) + abs(factor.imag))
            if mapped:
                behind = times(factor, before) + term
                usable = (least >= number(LOST)) & np.isfinite(behind)
                state = x[..., end - 1] = np.where(usable, behind, state)
    return x

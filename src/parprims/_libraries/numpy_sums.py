"""Sums of floats by NumPy that add at most about a thousand terms one after another.

NumPy adds in pairs along the axis with the smallest stride, and one after another along all other axes. So the longest
of the other axes is cut into blocks, and the sums of blocks are summed recursively.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

MOST = 1024
"""The most terms that are added one after another."""


def total(x: Any, axes: tuple[int, ...], dtype: Any) -> Any:
    """Return the sum along axes counted from the front; they stay with length 1."""
    n = math.prod([x.shape[axis] for axis in axes])
    if n <= MOST or _in_pairs(x, axes):
        return np.add.reduce(x, axes, dtype, keepdims=True)
    longest = max(axes, key=lambda axis: x.shape[axis])
    length, others = x.shape[longest], tuple([axis for axis in axes if axis != longest])
    each = MOST * length // n
    if length > MOST and not others:
        each = MOST
    if each < 2:
        return total(total(x, (longest,), dtype), others, dtype)
    before, in_blocks = (slice(None),) * longest, length // each * each
    blocks = x[(*before, slice(in_blocks))]
    blocks = blocks.reshape(*x.shape[:longest], in_blocks // each, each, *x.shape[longest + 1 :])
    inner = (longest + 1, *[axis + (axis > longest) for axis in others])
    sums = np.add.reduce(blocks, inner, dtype, keepdims=True).squeeze(longest + 1)
    result = total(sums, (longest,), dtype)
    if in_blocks < length:
        result += np.add.reduce(x[(*before, slice(in_blocks, None))], axes, dtype, keepdims=True)
    return result


def _in_pairs(x: Any, axes: tuple[int, ...]) -> bool:
    """Return whether NumPy adds in pairs: the axes merge in memory and have the smallest stride."""
    steps = sorted([(abs(x.strides[axis]), x.shape[axis]) for axis in axes if x.shape[axis] > 1])
    merges = all(step * length == later for (step, length), (later, _) in itertools.pairwise(steps))
    return merges and steps[0][0] <= min(
        [abs(step) for step, length in zip(x.strides, x.shape, strict=True) if length > 1]
    )

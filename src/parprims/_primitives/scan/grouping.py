"""The canonical grouping of a scan, on which the bits of a floating-point result depend.

A line is cut into blocks from its first element on. A block has 8192 elements, or fewer if states are wide. With z for
the result of an element within its block, its result is

    y = state before the block op z

and the state before the next block is that of the last element. So a line may be continued at a multiple of a block.

In a block, eight parts of 32 elements are a part of 256, and eight of these a part of 2048. The parts that come before
an element in the next larger part, or in the block, are combined from left to right; where there are none, they are
left out.

- Sums of real floats: 32 elements are eight leaves of four.

      z = 2048s before + (256s before + (32s before + (leaves before + elements of the leaf)))

  The last result of each part is the one that the results behind it begin with, so sums of terms >= 0 never descend.
- Other operators, which may take long, in two combinations for each element:

      z = (2048s before op (256s before op 32s before)) op elements of the 32
"""

from __future__ import annotations

LARGEST_BLOCK = 8192
"""A multiple of every block."""


def block_elements(state_bytes: int) -> int:
    """Return the elements of a block, given the bytes of a state: 32 KiB of states, and 256 to 8192 elements."""
    elements = LARGEST_BLOCK
    while elements > 256 and elements * state_bytes > 4 * LARGEST_BLOCK:
        elements //= 2
    return elements

"""The canonical grouping of a scan, on which the bits of a floating-point result depend.

A line is cut into blocks from its first element on. In a block, four elements are a leaf, eight leaves 32 elements,
eight of these 256, and eight of these 2048. The parts of each are combined from left to right. A result is

    y = state before the block op (2048s before op (256s before op (32s before op (leaves before op elements of leaf))))

where each bracket combines the parts of one size that come before the element in the next larger part, and is left
out if there are none. The state before a block is combined from left to right as well: state op block. So a result
depends on the place of its element in the line alone, a line may be continued at a multiple of a block by the state
before it, and sums of terms >= 0 never descend.
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

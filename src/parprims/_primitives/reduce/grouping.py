"""The canonical grouping of a reduction, on which the bits of a floating-point result depend: a tree by position.

Elements of a line are counted from its first on. The tree combines neighbours, then neighbouring pairs, then
neighbouring fours, and so on. A last node that has no neighbour moves up as it is:

    ((x0 op x1) op (x2 op x3)) op (x4 op x5)

If the operator commutes, every whole 256 elements are a group of 8 rows of 32: in a group, the first three levels of
the tree combine neighbouring rows. So processors combine vectors in place of their elements.

A term of n passes at most ceil(log2 n) combinations. For sums this is pairwise summation: N. J. Higham, "The accuracy
of floating point summation", SIAM Journal on Scientific Computing 14, 1993.

A block is a node of the tree. It may have any power of two from 256 on as its length, so the length of a block never
shows in a result.
"""

from __future__ import annotations

LARGEST_BLOCK = 1 << 14
"""The most elements of a block on CPUs."""


def block_elements(state_bytes: int) -> int:
    """Return the elements of a block on CPUs, an eighth of which leave states in the L1 cache: 8 KiB, or 32 states."""
    elements = LARGEST_BLOCK
    while elements > 256 and elements * state_bytes > 4 * LARGEST_BLOCK:
        elements //= 2
    return elements

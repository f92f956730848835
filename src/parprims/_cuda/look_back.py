"""The scratch of the look-back in device/look_back.cuh."""

from __future__ import annotations

COUNTER_WORDS = 8
"""Words of 16 bytes of the tile counter, at the beginning of the scratch."""


def look_back_bytes(lines: int, tiles: int, state_bytes: int) -> int:
    """Return the bytes of zeroed scratch for lines of several tiles that publish their states to each other.

    A state takes 16 bytes for each 8 of its own. Every tile has a slot for one, and so has every group of 32 tiles.
    """
    return 16 * (COUNTER_WORDS + lines * (tiles + -(-tiles // 32)) * -(-state_bytes // 8))

"""What launches have to know of the pieces in device/look_back.cuh."""

from __future__ import annotations

COUNTER_WORDS = 8
"""Words of 16 bytes that the tile counter takes, at the beginning of the scratch."""


def look_back_bytes(lines: int, tiles: int, state_bytes: int) -> int:
    """Return the bytes of scratch that start at zero for lines of several tiles that tell each other their states.

    A state takes 16 bytes for each 8 of its own. Every tile has a slot for one, and so has every group of 32 tiles.
    """
    return 16 * (COUNTER_WORDS + lines * (tiles + -(-tiles // 32)) * -(-state_bytes // 8))

"""The only module that knows CUDA: compile, cache, borrow arrays, launch, check."""

from __future__ import annotations

from parprims._arrays import Array, Namespace


def refusal(xp: Namespace, arrays: tuple[Array, ...]) -> str | None:
    """Return the sentence why no kernel can take these arrays, or None."""
    del xp, arrays
    return "the arrays are not on a CUDA device"

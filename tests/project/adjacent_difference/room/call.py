"""The record of a checked call, and the checks that make it."""

from __future__ import annotations

import dataclasses

from parprims._core.arrays import Array, Namespace, admit, check_kind, device, normalize_axis
from parprims._dispatch.dispatch import Checked
from parprims._dispatch.primitive import Arguments


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Differences(Checked):
    """A checked call; ``axis`` is counted from the front of ``shape``."""

    shape: tuple[int, ...]
    axis: int

    def empty(self, xp: Namespace) -> Array:
        """Return an array like the result, without values."""
        (x,) = self.arrays
        return xp.empty(self.shape, dtype=x.dtype, device=device(x))


def checked(asked: Arguments) -> tuple[Namespace, Differences]:
    """Return the namespace and the record; raise, naming the argument, for a wrong argument."""
    xp, (x,) = admit(asked.arrays)
    check_kind("x", x, ("int", "uint", "float", "complex"))
    axis = normalize_axis(asked["axis"], x.ndim)
    return xp, Differences(arrays=(x,), key=asked.key_of(x), shape=tuple(x.shape), axis=axis)

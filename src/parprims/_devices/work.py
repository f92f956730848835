"""A call on arrays that are split over devices, as data, and what every engine that computes it has in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from parprims._core.arrays import Array
from parprims._devices.communicator import Collective, Quick, Step
from parprims._dispatch.dispatch import Call, explain, listing, tell, unwatched
from parprims._dispatch.primitive import Arguments
from parprims._operators.function_key import lasting_key

Names = tuple[Any, ...]
"""The mesh axes that an axis of an array is split over, the slowest first; empty if it is not split."""

Split = tuple[Names, ...]
"""The mesh axes that each axis of an array is split over."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A driver, and what the axis that it works along is split over, with the length of that axis."""

    over: Names
    length: int
    steps: Sequence[Step]
    linear: tuple[Sequence[Step], Sequence[Step]] | None = None
    """Where the last array is the right-hand side of linear equations: the drivers of the product and of the transpose.

    The first arrays are the coefficients, and the product takes an array like the solution last.
    """
    quick: Sequence[Quick] = ()
    """Quick ways of the driver, which are tried in turn (see `run_quick`)."""
    apart: int | None = None
    """An axis along which all arrays hold problems of their own, so that they can be solved piece by piece."""
    appended: bool = False
    """Whether the next stage is given the arrays of this one before its result."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A call as an engine is given it.

    Parameters
    ----------
    primitive : str
        The public function.
    arrays : tuple of array
        The arrays of the call.
    inputs : tuple of Split
        How each of them is to be split.
    outputs
        How the results are split: the split of all of them, or a list of those of each.
    stages : tuple of Stage
        What is done: the results of one are the arrays of the next, if not a tuple then the only one.
    plain : callable
        The public call on the own parts, as it would be without other devices.
    key : optional
        What the call can be found again by, or None.
    """

    primitive: str
    arrays: tuple[Array, ...]
    inputs: tuple[Split, ...]
    outputs: Any
    stages: tuple[Stage, ...]
    plain: Callable[..., Any]
    key: Any = None


class Engine(Protocol):
    """Who holds the parts of arrays and moves messages between them."""

    trades: ClassVar[bool]
    """Whether parts trade blocks: else what all have to add up is gathered, in fewer messages."""

    def split(self, name: str, x: Array) -> Split:
        """Return the split of an array; raise, naming the argument, if the engine does not support it."""

    def working(self, found: Names) -> Names:
        """Return the split of the axis worked along, given the split that the arrays have."""

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return the axes to combine along in groups, the last first, each with what its first axis is split over."""

    def length(self, arrays: tuple[Array, ...], axis: int, ndim: int) -> int:
        """Return the length of an axis of the whole shape, of ``ndim`` axes, that arrays broadcast to."""

    def count(self, over: Names) -> int:
        """Return how many parts an axis has that is split over these."""

    def part_shape(self, x: Array, split: Split) -> tuple[int, ...]:
        """Return the shape of the largest part of an array that is split so."""

    def compute(self, work: Work) -> Any:
        """Return the results."""


def every(kind: type, asked: Arguments) -> list[Any]:
    """Return the arguments of a type, and such items of tuples, in order."""
    found: list[Any] = []
    asked.mapped(lambda x: found.append(x) if isinstance(x, kind) else None)
    return found


def replaced(kind: type, asked: Arguments, by: Iterable[Any]) -> Arguments:
    """Return the call with others in the place of `every` argument of a type."""
    others = iter(by)
    return asked.mapped(lambda x: next(others) if isinstance(x, kind) else x)


def groups(split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
    """Return axes in groups, the last first, such that of each group only the first axis is split.

    What is combined group by group is combined in row-major order.
    """
    found: list[tuple[Names, tuple[int, ...]]] = []
    for at in reversed(axes):
        if found and not found[-1][0]:
            found[-1] = split[at], (at, *found[-1][1])
        else:
            found.append((split[at], (at,)))
    return found or [((), ())]


def length(arrays: tuple[Array, ...], axis: int, ndim: int) -> int:
    """Return the length of an axis of the shape, of ``ndim`` axes, that arrays broadcast to."""
    lengths = [x.shape[axis - ndim] for x in arrays if x.ndim >= ndim - axis]
    return int(next((one for one in lengths if one != 1), 1))


def together(engine: Engine, arrays: dict[str, Array], ndim: int | None = None) -> Split:
    """Return the split of the shape that arrays broadcast to, with ``ndim`` axes.

    ValueError, naming the arguments, where two arrays are split differently along an axis.
    """
    ndim = max(x.ndim for x in arrays.values()) if ndim is None else ndim
    found: list[Names] = [()] * ndim
    by: list[str] = [""] * ndim
    for name, x in arrays.items():
        for at, names in enumerate(engine.split(name, x), ndim - x.ndim):
            if names and found[at] and names != found[at]:
                raise ValueError(
                    f"{name} and {by[at]} are split over different axes of the mesh, {names} and {found[at]}: "
                    "reshard one of them"
                )
            if names:
                found[at], by[at] = names, name
    used = [name for names in found for name in names]
    if len(set(used)) < len(used):
        raise ValueError(f"{', '.join(arrays)} are split along different axes over one axis of the mesh: reshard them")
    return tuple(found)


def part_of(split: Split, x: Array) -> Split:
    """Return how an array is split that is broadcast to a shape that is split so."""
    own = split[len(split) - x.ndim :]
    return tuple(() if length == 1 else names for names, length in zip(own, x.shape, strict=True))


def option_key(primitive: str, **options: Any) -> Any:
    """Return a key of a call with these options, or None."""
    found = []
    for name, value in options.items():
        key = repr(value) if _is_plain(value) else lasting_key(value)
        if key is None:
            return None
        found.append((name, type(value), key))
    return (primitive, *found)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | complex | str | np.generic | np.dtype)


@dataclasses.dataclass
class Record:
    """The entry of `explain` for a call: the method of a part, and the messages."""

    calls: list[Call] = dataclasses.field(default_factory=list)
    steps: list[Collective] = dataclasses.field(default_factory=list)

    def tell(self, primitive: str, devices: int) -> None:
        """Tell `explain` of the call."""
        own = [call for call in self.calls if call.primitive == primitive] or self.calls[-1:]
        method, refusals = (own[-1].method, own[-1].refusals) if own else ("array", {})
        tell([Call(primitive, method, refusals, devices, steps=tuple(self.steps))])


def recorded(record: Record, part: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that notes in a record what it computes, in place of telling `explain`."""

    def run(*arrays: Array) -> Any:
        if listing():
            return part(*arrays)
        with unwatched(), explain() as calls:
            found = part(*arrays)
        record.calls[:] = calls
        return found

    return run

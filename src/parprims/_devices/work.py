"""A call on arrays that are split over devices, as data, and the interface of the engines that compute it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from parprims._core.arrays import Array
from parprims._devices.communicator import Collective, Driver, Quick, Step
from parprims._dispatch.dispatch import Call, explain
from parprims._dispatch.primitive import Arguments
from parprims._dispatch.watch import listing, tell, unwatched
from parprims._operators.function_key import lasting_key

Names = tuple[Any, ...]
"""The mesh axes over which an axis of an array is split, the slowest first; empty if it is not split."""

Split = tuple[Names, ...]
"""The mesh axes over which each axis of an array is split."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A driver, with the mesh axes and the length of the axis that it works along."""

    over: Names
    length: int
    steps: Driver
    linear: tuple[Sequence[Step], Sequence[Step]] | None = None
    """The drivers of the product and of the transposed system, if the last array is a right-hand side.

    The stage then solves linear equations. The arrays before the last are coefficients; for the product, the last array
    is the solution.
    """
    quick: Sequence[Quick] = ()
    """Quick ways of the driver, which are tried in turn (see `run_quick`)."""
    apart: int | None = None
    """An axis along which all arrays hold independent problems, which can be solved piece by piece."""
    appended: bool = False
    """Whether the next stage receives the arrays of this stage before its result."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """A call for an engine.

    Parameters
    ----------
    primitive : str
        The public function.
    arrays : tuple of array
        The arrays of the call.
    inputs : tuple of Split
        The split that each array must have.
    outputs
        The split of every result, or a list with the split of each.
    stages : tuple of Stage
        The stages. The results of a stage, a tuple or one array, are the arrays of the next stage.
    plain : callable
        The public call on the local parts, as if there were no other devices.
    key : optional
        The key under which the program of the call is kept, or None.
    canonical : bool
        Whether the stages keep to the canonical grouping if the methods of the parts do.
    """

    primitive: str
    arrays: tuple[Array, ...]
    inputs: tuple[Split, ...]
    outputs: Any
    stages: tuple[Stage, ...]
    plain: Callable[..., Any]
    key: Any = None
    canonical: bool = False


class Engine(Protocol):
    """Holds the parts of arrays, and moves messages between them."""

    trades: ClassVar[bool]
    """Whether parts trade blocks to add products; otherwise they gather the products, which takes fewer messages."""
    moves: ClassVar[bool]
    """Whether arrays that are split otherwise than the work needs move before the call, as XLA decides."""

    def split(self, name: str, x: Array) -> Split:
        """Return the split of an array; raise an error that names the argument if the engine does not support it."""

    def working(self, names: Names) -> Names:
        """Return the split of the axis that the call works along, given the split that the arrays have."""

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return the axes to combine along in groups, the last first, each with the mesh axes of its first axis."""

    def length(self, arrays: tuple[Array, ...], axis: int, ndim: int) -> int:
        """Return the length of an axis of the joint shape of whole arrays, which has ``ndim`` axes."""

    def count(self, over: Names) -> int:
        """Return the number of parts of an axis that is split over these mesh axes."""

    def part_shape(self, x: Array, split: Split) -> tuple[int, ...]:
        """Return the shape of the largest part of an array with this split."""

    def compute(self, work: Work) -> Any:
        """Return the results."""


def every(kind: type, asked: Arguments) -> list[Any]:
    """Return the arguments of a type, and the items of this type in tuples, in order."""
    found: list[Any] = []
    asked.mapped(lambda x: found.append(x) if isinstance(x, kind) else None)
    return found


def replaced(kind: type, asked: Arguments, by: Iterable[Any]) -> Arguments:
    """Return the call with the values ``by`` in place of `every` argument of a type."""
    others = iter(by)
    return asked.mapped(lambda x: next(others) if isinstance(x, kind) else x)


def groups(split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
    """Return axes in groups, the last first. Only the first axis of a group may be split.

    Elements that are combined group by group are combined in row-major order.
    """
    grouped: list[tuple[Names, tuple[int, ...]]] = []
    for axis in reversed(axes):
        if grouped and not grouped[-1][0]:
            grouped[-1] = split[axis], (axis, *grouped[-1][1])
        else:
            grouped.append((split[axis], (axis,)))
    return grouped or [((), ())]


def length(arrays: tuple[Array, ...], axis: int, ndim: int) -> int:
    """Return the length of an axis of the shape that arrays broadcast to, which has ``ndim`` axes."""
    lengths = [x.shape[axis - ndim] for x in arrays if x.ndim >= ndim - axis]
    return int(next((one for one in lengths if one != 1), 1))


def together(engine: Engine, arrays: dict[str, Array], ndim: int | None = None) -> Split:
    """Return the split of the shape that arrays broadcast to, with ``ndim`` axes.

    Raises ValueError, which names the arguments, if two arrays are split differently along an axis.
    """
    ndim = max(x.ndim for x in arrays.values()) if ndim is None else ndim
    return _joined({name: ((),) * (ndim - x.ndim) + engine.split(name, x) for name, x in arrays.items()}, ndim)


def in_front(engine: Engine, arrays: dict[str, Array], ndim: int) -> list[Split]:
    """Return the split of each array; they share their first ``ndim`` axes, and each has axes of its own behind them.

    Raises ValueError, which names the arguments, if an array is split along an axis of its own and does not move, or
    two are split differently along an axis that they share.
    """
    splits = {name: engine.split(name, x) for name, x in arrays.items()}
    for name, split in splits.items():
        if any(split[ndim:]) and not engine.moves:
            raise ValueError(
                f"{name} must not be split behind axis {ndim - 1}, where operators combine axes: reshard it"
            )
    shared = _joined({name: split[:ndim] for name, split in splits.items()}, ndim)
    return [(*shared, *((),) * (x.ndim - ndim)) for x in arrays.values()]


def _joined(splits: dict[str, Split], ndim: int) -> Split:
    """Return the split of axes, given the splits of arrays with these axes."""
    split: list[Names] = [()] * ndim
    by: list[str] = [""] * ndim
    for name, own in splits.items():
        for axis, names in enumerate(own):
            if names and split[axis] and names != split[axis]:
                raise ValueError(
                    f"{name} and {by[axis]} are split over different axes of the mesh, {names} and {split[axis]}: "
                    "reshard one of them"
                )
            if names:
                split[axis], by[axis] = names, name
    used = [name for names in split for name in names]
    if len(set(used)) < len(used):
        raise ValueError(f"{', '.join(splits)} are split along different axes over one axis of the mesh: reshard them")
    return tuple(split)


def part_of(split: Split, x: Array) -> Split:
    """Return the split of an array that broadcasts to a shape with this split."""
    own_axes = split[len(split) - x.ndim :]
    return tuple(() if length == 1 else names for names, length in zip(own_axes, x.shape, strict=True))


def option_key(primitive: str, **options: Any) -> Any:
    """Return a key of a call with these options; None if an option has no key."""
    entries = []
    for name, value in options.items():
        key = repr(value) if _is_plain(value) else lasting_key(value)
        if key is None:
            return None
        entries.append((name, type(value), key))
    return (primitive, *entries)


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | complex | str | np.generic | np.dtype)


@dataclasses.dataclass
class Record:
    """The entry of `explain` for a call: the method of a part, and the messages."""

    calls: list[Call] = dataclasses.field(default_factory=list)
    steps: list[Collective] = dataclasses.field(default_factory=list)

    def tell(self, work: Work, devices: int) -> None:
        """Report the call to `explain`."""
        calls = [call for call in self.calls if call.primitive == work.primitive] or self.calls[-1:]
        of_part = calls[-1] if calls else Call(work.primitive, "array", {})
        canonical = of_part.canonical and (work.canonical or devices == 1)
        steps = tuple(self.steps)
        tell(
            [dataclasses.replace(of_part, primitive=work.primitive, canonical=canonical, devices=devices, steps=steps)]
        )


def recorded(record: Record, part: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that writes its calls into a record, and does not report them to `explain`."""

    def run(*arrays: Array) -> Any:
        if listing():
            return part(*arrays)
        with unwatched(), explain() as calls:
            found = part(*arrays)
        record.calls[:] = calls
        return found

    return run

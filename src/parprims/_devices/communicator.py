"""Messages between the devices that hold the parts of an array, and the execution of drivers.

A driver is a list of steps. A step is a function of where it runs (`Place`), of what the step before it kept, and of
the reply to the message that the step before it sent. It returns a message and what it keeps; the last step returns no
message, and what it keeps are the results. So one driver runs on devices that all execute one program, with a
collective operation for each message, and as tasks of a graph, of which one kind computes and another moves messages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from array_api_extra import at

from parprims._core.arrays import Array, along, dtype_bits, is_tensor, is_traced, namespace_of

Step = Callable[["Place", Any, Any], tuple["Message | None", Any]]


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a step runs.

    Parameters
    ----------
    rank : int or array
        Which part of the axis is here: an array of no dimension where one program runs on all devices.
    lengths : tuple of int
        The lengths of all parts along the axis, in order.
    """

    rank: Any
    lengths: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.lengths)

    @property
    def first(self) -> Any:
        """The index of the first element of the own part along the whole axis."""
        if isinstance(self.rank, int):
            return sum(self.lengths[: self.rank])
        return self.rank * self.lengths[0]  # one program for all: all parts are of one length


def either(condition: Any, one: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """Return the result of the first function, or of the second if the condition is false; neither sends a message."""
    if isinstance(condition, bool):
        return one() if condition else other()
    import jax

    return jax.lax.cond(condition, one, other)


def unless(condition: Any, found: Any, other: Callable[[Any], Any]) -> Any:
    """Return arrays, or what a function makes of them where the condition is false, in their memory in JAX."""
    if isinstance(condition, bool):
        return found if condition else other(found)
    import jax

    state = condition, found
    return jax.lax.while_loop(lambda state: ~state[0], lambda state: (condition | True, other(state[1])), state)[1]


def overwritten(x: Array, part: Array, first: int, axis: int) -> Array:
    """Return an array with a part along an axis in the place of its own elements from ``first`` on.

    JAX writes into the memory of an array that nobody uses any more, see `settled`.
    """
    axis %= x.ndim
    if is_traced(x) or is_traced(part):
        import jax

        return jax.lax.dynamic_update_slice_in_dim(x, part, first, axis)
    return at(x)[along(axis, first, first + part.shape[axis])].set(part)


def settled(*arrays: Array) -> tuple[Array, ...]:
    """Return arrays that all are computed before one of them is used, so that JAX can write into their memory."""
    if not any(map(is_traced, arrays)):
        return arrays
    import jax

    found: tuple[Array, ...] = jax.lax.optimization_barrier(arrays)
    return found


def blotted(x: Array, lost: Array) -> Array:
    """Return an array with NaN where it is lost, which is seldom: one of JAX is not copied where nothing is."""
    xp = namespace_of(x)
    if not is_traced(x):
        return xp.where(lost, xp.full_like(x, math.nan), x) if bool(xp.any(lost)) else x
    import jax

    def blot(state: tuple[Array, ...]) -> tuple[Array, ...]:
        return state[0] & False, xp.where(state[2], xp.full_like(state[1], math.nan), state[1]), state[2]

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def without_copy(x: Array, lost: Array) -> Array:
        found: Array = jax.lax.while_loop(lambda state: state[0], blot, (xp.any(lost), x, lost))[1]
        return found

    without_copy.defjvp(lambda primals, tangents: (without_copy(*primals), tangents[0]))
    found: Array = without_copy(x, lost)
    return found


@dataclasses.dataclass(frozen=True)
class Gather:
    """Asks for the arrays of all devices: each as one array with a new first axis, in the order of the parts.

    ``before`` says that only those of parts before the own one are read, or if True of parts after it: False or True as
    a scan is reversed, and None where all are read.
    """

    arrays: tuple[Array, ...]
    before: bool | None = None


@dataclasses.dataclass(frozen=True)
class Shift:
    """Asks for the arrays of the device that many places further, the first being after the last."""

    arrays: tuple[Array, ...]
    by: int


@dataclasses.dataclass(frozen=True)
class Exchange:
    """Asks for a part of every device's arrays, and gives each device its part of the own.

    Parameters
    ----------
    arrays : tuple of array
        Of shape (rows, length here).
    bounds : array
        Of shape (devices, rows, devices + 1): of every device's rows, where the part for each device begins, and the
        end of the last.
    lengths : tuple of int
        How much of a row each device gets in all. The reply holds the parts of all devices in their order.
    sort : callable
        Sorts the rows of the reply by the first array.
    descending : bool or None
        The order in which each device's rows are sorted. Then the reply may be `Sorted`, by a kernel that merges; None
        asks for the parts as they are.
    """

    arrays: tuple[Array, ...]
    bounds: Array
    lengths: tuple[int, ...]
    sort: Callable[[tuple[Array, ...]], tuple[Array, ...]]
    descending: bool | None


class Sorted(tuple[Array, ...]):
    """The reply to an exchange whose rows are in order."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Trade:
    """Asks for one block of every device's arrays, all of one size, and gives each device its block of the own.

    The first axis of the arrays, and of those of the reply, counts devices.
    """

    arrays: tuple[Array, ...]


Message = Gather | Shift | Exchange | Trade


@dataclasses.dataclass(frozen=True)
class Collective:
    """One exchange between devices, as `explain` tells it.

    Parameters
    ----------
    name : str
        ``gather``, ``shift`` or ``exchange``.
    nbytes : int
        What a device sends to others, as a mean over the devices where the data decide who sends how much.
    """

    name: str
    nbytes: int


class Communicator(Protocol):
    """The transport of messages between devices."""

    @property
    def rank(self) -> Any:
        """The index of this device."""

    @property
    def count(self) -> int:
        """The number of devices."""

    def gather(self, message: Gather) -> tuple[Array, ...]:
        """Return the reply to a message."""

    def shift(self, message: Shift) -> tuple[Array, ...]:
        """Return the reply to a message."""

    def exchange(self, message: Exchange, place: Place) -> tuple[Array, ...]:
        """Return the reply to a message."""

    def trade(self, message: Trade) -> tuple[Array, ...]:
        """Return the reply to a message."""


def run(steps: Sequence[Step], devices: Communicator, lengths: tuple[int, ...], parts: Any) -> tuple[Any, list[Any]]:
    """Return the results of a driver on the local parts, and the collective operations that took place."""
    place, told = Place(devices.rank, lengths), []
    kept, reply = parts, None
    for step in steps:
        message, kept = step(place, kept, reply)
        if message is not None:
            reply = _reply(message, devices, place)
            told.append(collective(message, place))
    return kept, told


Quick = tuple[Sequence[Step], Sequence[Step] | None]
"""A trial, whose result is a pair: whether the quick way serves, which all devices agree on, and what the rest of the
quick way begins with. Without a rest that is the solution, if the way serves."""


def run_quick(
    steps: Sequence[Step],
    quick: Sequence[Quick],
    devices: Communicator,
    lengths: tuple[int, ...],
    parts: Any,
    apart: int | None = None,
) -> tuple[Any, list[Any]]:
    """Return the results of a driver, or of its first quick way with a trial that succeeds, and its collectives.

    The collectives include the messages of all trials made and of the way taken. If a compiled program chooses the way,
    only the driver's messages are reported. All ways but the first run piece by piece along the axis ``apart`` (see
    `in_pieces`).
    """
    if not quick:
        return in_pieces(lambda parts: run(steps, devices, lengths, parts), parts, apart)
    (trial, rest), *others = quick
    (serves, kept), told = run(trial, devices, lengths, parts)
    more: list[Any] = []
    own = getattr(devices, "own", tuple)

    def by_rest() -> Any:
        if rest is None:
            return kept
        found, more[:] = run(rest, devices, lengths, kept)
        return found

    def by_others() -> Any:
        found, more[:] = in_pieces(
            lambda parts: run_quick(steps, others, devices, lengths, parts=parts, apart=apart), parts, apart
        )
        return found

    if is_tensor(serves):
        return (by_rest() if bool(serves) else by_others()), told + more
    ways = (lambda: own((by_rest(),))[0]), (lambda: own((by_others(),))[0])
    found = unless(serves, own((kept,))[0], lambda _: ways[1]()) if rest is None else either(serves, *ways)
    return found, told + more


PIECE = 2**25
"""Elements of each array that are computed with at a time where that may need many times the memory of the arrays."""


def in_pieces(run: Callable[[Any], tuple[Array, list[Any]]], parts: Any, apart: int | None) -> tuple[Any, list[Any]]:
    """Return the result of a function of the local parts; for large arrays in a program, piece by piece.

    Along the axis ``apart``, if given, the arrays hold independent problems with solutions of equal shape. Then the
    function needs the memory of one piece.
    """
    shape = tuple(parts[-1].shape)
    count = -(-math.prod(shape) // PIECE)
    alike = all(tuple(x.shape) == shape for x in parts)
    if apart is None or not alike or min(count, shape[apart]) < 2 or not is_traced(parts[-1]):
        return run(parts)
    import jax

    length = -(-shape[apart] // count)
    told: list[Any] = []
    count = -(-shape[apart] // length)

    def piece(index: Array, found: Array) -> Array:
        first = jax.numpy.minimum(index * length, shape[apart] - length)  # the last one may overlap that before it
        own = tuple(jax.lax.dynamic_slice_in_dim(x, first, length, apart) for x in parts)
        result, told[:] = run(own)
        return jax.lax.dynamic_update_slice_in_dim(found, result, first, apart)

    found = jax.lax.fori_loop(0, count, piece, parts[-1])
    return found, [dataclasses.replace(one, nbytes=one.nbytes * count) for one in told]


def _reply(message: Message, devices: Communicator, place: Place) -> tuple[Array, ...]:
    if isinstance(message, Gather):
        return devices.gather(message)
    if isinstance(message, Shift):
        return devices.shift(message)
    if isinstance(message, Trade):
        return devices.trade(message)
    return devices.exchange(message, place)


def size(message: Message) -> int:
    """Return the bytes of the arrays of a message."""
    return sum(math.prod(x.shape) * dtype_bits(x.dtype) // 8 for x in message.arrays)


def collective(message: Message, place: Place, nbytes: int | None = None) -> Collective:
    """Return the entry of `explain` for a message of ``nbytes`` bytes, by default the size of its arrays."""
    nbytes = size(message) if nbytes is None else nbytes
    others = place.count - 1
    if isinstance(message, Gather):
        return Collective("gather", nbytes * others)
    if isinstance(message, Shift):
        return Collective("shift", nbytes if place.count > 1 else 0)
    return Collective("exchange", nbytes * others // place.count)

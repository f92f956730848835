"""Drivers: algorithms on the parts of an array, as steps and messages; and their execution.

A driver is a list of steps. A step is a function of its place (`Place`), of the data that the step before it saved, and
of the reply to the message of that step. It returns a message and the data to save; the last step returns no message,
and its data are the result. A driver runs in two ways: on devices that execute one program, where each message
is a collective operation, and as a graph of tasks, some for steps and some for messages.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from array_api_extra import at

from parprims._core.arrays import Array, along, dtype_bits, is_tensor, namespace_of
from parprims._core.jax_arrays import is_traced

Step = Callable[["Place", Any, Any], tuple["Message | None", Any]]

Driver = Sequence[Step] | Callable[[tuple[int, ...]], Sequence[Step]]
"""The steps of a driver, or a function that returns them for the lengths of all parts."""


def steps_of(driver: Driver, lengths: tuple[int, ...]) -> Sequence[Step]:
    """Return the steps of a driver for parts of these lengths."""
    return driver(lengths) if callable(driver) else driver


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a step runs.

    Parameters
    ----------
    rank : int or array
        The index of the local part: a 0-d array if one program runs on all devices.
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
        """The index of the first local element along the whole axis."""
        if isinstance(self.rank, int):
            return sum(self.lengths[: self.rank])
        return self.rank * self.lengths[0]  # one program runs on all devices: all parts have equal length


def branch(condition: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
    """Return the result of the first function if the condition is true, else of the second. Neither sends a message."""
    if isinstance(condition, bool):
        return if_true() if condition else if_false()
    import jax

    return jax.lax.cond(condition, if_true, if_false)


def replaced_unless(condition: Any, arrays: Any, replace: Callable[[Any], Any]) -> Any:
    """Return arrays, or a function of them if the condition is false. JAX then writes the result into their memory."""
    if isinstance(condition, bool):
        return arrays if condition else replace(arrays)
    import jax

    state = condition, arrays
    return jax.lax.while_loop(lambda state: ~state[0], lambda state: (condition | True, replace(state[1])), state)[1]


def overwritten(x: Array, part: Array, first: int, axis: int) -> Array:
    """Return an array whose elements along an axis, from ``first`` on, are replaced by those of a part.

    JAX reuses the memory of x if x has no later use, see `all_computed`.
    """
    axis %= x.ndim
    if is_traced(x) or is_traced(part):
        import jax

        return jax.lax.dynamic_update_slice_in_dim(x, part, first, axis)
    return at(x)[along(axis, first, first + part.shape[axis])].set(part)


def all_computed(*arrays: Array) -> tuple[Array, ...]:
    """Return the arrays after a barrier: all are computed before one is used, so that JAX can reuse their memory."""
    if not any(map(is_traced, arrays)):
        return arrays
    import jax

    after: tuple[Array, ...] = jax.lax.optimization_barrier(arrays)
    return after


def with_nan(x: Array, lost: Array) -> Array:
    """Return x with NaN where ``lost`` is true. Lost values are rare, and x is copied only then, on JAX too."""
    xp = namespace_of(x)
    if not is_traced(x):
        return xp.where(lost, xp.full_like(x, math.nan), x) if bool(xp.any(lost)) else x
    import jax

    def blot(state: tuple[Array, ...]) -> tuple[Array, ...]:
        return state[0] & False, xp.where(state[2], xp.full_like(state[1], math.nan), state[1]), state[2]

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def without_copy(x: Array, lost: Array) -> Array:
        result: Array = jax.lax.while_loop(lambda state: state[0], blot, (xp.any(lost), x, lost))[1]
        return result

    without_copy.defjvp(lambda primals, tangents: (without_copy(*primals), tangents[0]))
    result: Array = without_copy(x, lost)
    return result


@dataclasses.dataclass(frozen=True)
class Gather:
    """Requests the arrays of all devices: each as one array with a new first axis, in the order of the parts.

    ``before`` is None if all arrays are read. False says that only arrays of parts before the local part are read, as
    in a scan; True says that only arrays of parts after it are read, as in a reversed scan.
    """

    arrays: tuple[Array, ...]
    before: bool | None = None


@dataclasses.dataclass(frozen=True)
class Reduce:
    """Requests the sums of the arrays of all devices, which are of integers."""

    arrays: tuple[Array, ...]


@dataclasses.dataclass(frozen=True)
class Shift:
    """Requests the arrays of the device whose rank is ``by`` higher, modulo the number of devices."""

    arrays: tuple[Array, ...]
    by: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exchange:
    """Requests a piece of every device's arrays, and sends each device its piece of the local arrays.

    Parameters
    ----------
    arrays : tuple of array
        The local arrays, of shape (rows, local length).
    leaving : array
        The bounds of the pieces in the local arrays, of shape (rows, devices + 1): for each row the begin of the piece
        for each device, and the end of the last piece.
    arriving : array
        The begin and the end of the piece for this device in the arrays of every device, of shape (devices, rows, 2).
    longest : array
        For each row the length of the longest piece that moves to another device, between any devices.
    lengths : tuple of int
        The number of elements of a row that each device receives. The reply holds the pieces of all devices in
        their order.
    sort : callable
        Sorts the rows of the reply by the first array.
    descending : bool or None
        The order in which each device's rows are sorted; a kernel may then merge them, and the reply is `Sorted`. None
        requests the pieces unmerged.
    """

    arrays: tuple[Array, ...]
    leaving: Array
    arriving: Array
    longest: Array
    lengths: tuple[int, ...]
    sort: Callable[[tuple[Array, ...]], tuple[Array, ...]]
    descending: bool | None


class Sorted(tuple[Array, ...]):
    """The reply to an exchange whose rows are in order."""

    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Trade:
    """Requests one block of every device's arrays, and sends each device its block, all of one size.

    The first axis counts devices, in the message and in the reply.
    """

    arrays: tuple[Array, ...]


Message = Gather | Reduce | Shift | Exchange | Trade


@dataclasses.dataclass(frozen=True)
class Collective:
    """One message between devices, as `explain` reports it.

    Parameters
    ----------
    name : str
        ``gather``, ``reduce``, ``shift`` or ``exchange``.
    nbytes : int
        The bytes that a device sends to other devices; the mean over the devices if this depends on the data.
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

    def reduce(self, message: Reduce) -> tuple[Array, ...]:
        """Return the reply to a message."""

    def shift(self, message: Shift) -> tuple[Array, ...]:
        """Return the reply to a message."""

    def exchange(self, message: Exchange, place: Place) -> tuple[Array, ...]:
        """Return the reply to a message."""

    def trade(self, message: Trade) -> tuple[Array, ...]:
        """Return the reply to a message."""


def run(driver: Driver, devices: Communicator, lengths: tuple[int, ...], parts: Any) -> tuple[Any, list[Any]]:
    """Return the results of a driver on the local parts, and its collective operations."""
    place, collectives = Place(devices.rank, lengths), []
    saved, reply = parts, None
    for step in steps_of(driver, lengths):
        message, saved = step(place, saved, reply)
        if message is not None:
            reply = _reply(message, devices, place)
            collectives.append(collective(message, place))
    return saved, collectives


Quick = tuple[Sequence[Step], Sequence[Step] | None]
"""The steps of a trial, and the remaining steps of a quick way. The trial returns whether it succeeded, equal on all
devices, and the data for the remaining steps. Without remaining steps, these data are the solution."""


def run_quick(
    steps: Driver,
    quick: Sequence[Quick],
    devices: Communicator,
    lengths: tuple[int, ...],
    parts: Any,
    apart: int | None = None,
) -> tuple[Any, list[Any]]:
    """Return the results of a driver, or of its first quick way with a trial that succeeds, and its collectives.

    The collectives include the messages of all trials and of the chosen way. If a compiled program chooses, only the
    messages of the driver are reported. All ways but the first run piece by piece along the axis ``apart`` (see
    `in_pieces`).
    """
    if not quick:
        return in_pieces(lambda parts: run(steps, devices, lengths, parts), parts, apart)
    (trial, rest), *others = quick
    (succeeded, saved), collectives = run(trial, devices, lengths, parts)
    later_collectives: list[Any] = []
    varying = getattr(devices, "varying", tuple)

    def by_rest() -> Any:
        if rest is None:
            return saved
        result, later_collectives[:] = run(rest, devices, lengths, saved)
        return result

    def by_others() -> Any:
        result, later_collectives[:] = in_pieces(
            lambda parts: run_quick(steps, others, devices, lengths, parts=parts, apart=apart), parts, apart
        )
        return result

    if is_tensor(succeeded):
        return (by_rest() if bool(succeeded) else by_others()), collectives + later_collectives
    ways = (lambda: varying((by_rest(),))[0]), (lambda: varying((by_others(),))[0])
    result = (
        replaced_unless(succeeded, varying((saved,))[0], lambda _: ways[1]())
        if rest is None
        else branch(succeeded, *ways)
    )
    return result, collectives + later_collectives


PIECE = 2**25
"""Elements of each array in a piece, for computations that need many times the memory of the arrays."""


def in_pieces(run: Callable[[Any], tuple[Array, list[Any]]], parts: Any, apart: int | None) -> tuple[Any, list[Any]]:
    """Return the result of a function of the local parts; for large arrays in a program, piece by piece.

    The arrays hold independent problems along the axis ``apart``, if given, and their solutions have equal shape. The
    function then needs the memory of one piece at a time.
    """
    shape = tuple(parts[-1].shape)
    count = -(-math.prod(shape) // PIECE)
    alike = all(tuple(x.shape) == shape for x in parts)
    if apart is None or not alike or min(count, shape[apart]) < 2 or not is_traced(parts[-1]):
        return run(parts)
    import jax

    length = -(-shape[apart] // count)
    collectives: list[Any] = []
    count = -(-shape[apart] // length)

    def piece(index: Array, results: Array) -> Array:
        first = jax.numpy.minimum(index * length, shape[apart] - length)  # the last piece may overlap the one before it
        part = tuple(jax.lax.dynamic_slice_in_dim(x, first, length, apart) for x in parts)
        result, collectives[:] = run(part)
        return jax.lax.dynamic_update_slice_in_dim(results, result, first, apart)

    found = jax.lax.fori_loop(0, count, piece, parts[-1])
    return found, [dataclasses.replace(one, nbytes=one.nbytes * count) for one in collectives]


def _reply(message: Message, devices: Communicator, place: Place) -> tuple[Array, ...]:
    if isinstance(message, Gather):
        return devices.gather(message)
    if isinstance(message, Reduce):
        return devices.reduce(message)
    if isinstance(message, Shift):
        return devices.shift(message)
    if isinstance(message, Trade):
        return devices.trade(message)
    return devices.exchange(message, place)


def size(message: Message) -> int:
    """Return the bytes of the arrays of a message."""
    return sum(math.prod(x.shape) * dtype_bits(x.dtype) // 8 for x in message.arrays)


def collective(message: Message, place: Place, nbytes: int | None = None) -> Collective:
    """Return the entry of `explain` for a message. ``nbytes`` is by default the size of its arrays."""
    nbytes = size(message) if nbytes is None else nbytes
    others = place.count - 1
    if isinstance(message, Gather):
        return Collective("gather", nbytes * others)
    if isinstance(message, Reduce):  # by a ring, which adds and then gathers
        return Collective("reduce", 2 * nbytes * others // place.count)
    if isinstance(message, Shift):
        return Collective("shift", nbytes if place.count > 1 else 0)
    return Collective("exchange", nbytes * others // place.count)

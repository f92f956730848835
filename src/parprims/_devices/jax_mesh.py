"""Arrays of JAX that are split over a mesh: collective operations of `jax.lax` inside `jax.shard_map`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
from jax.sharding import NamedSharding, PartitionSpec

from parprims._core.arrays import Array, repr_short
from parprims._core.jax_arrays import explicit_sharding, is_traced
from parprims._core.memo import Memo
from parprims._devices.communicator import (
    Exchange,
    Gather,
    Place,
    Reduce,
    Shift,
    Sorted,
    Trade,
    replaced_unless,
    run,
    run_quick,
)
from parprims._devices.work import Names, Record, Split, Stage, Work, every, groups, length, recorded, replaced
from parprims._dispatch.primitive import Arguments, Check
from parprims._dispatch.watch import listing, unwatched
from parprims._primitives.search import merge_cuda as search_merge_cuda
from parprims._primitives.sort.public import sort_by_key

_Run = tuple[tuple[Array, ...], Array, Array]
"""A run, which is sorted: the arrays that hold it, and for every row its begin and its length."""

_Pieces = tuple[Array, Array, Array]
"""The pieces of an exchange: `leaving`, the lengths of those that arrive, of shape (devices, rows), and `longest`."""


LONGEST_BLOCK = 2**26
"""The most elements that a device sends to another device in a round. The blocks to and from all devices need memory in
addition to the parts."""


class Devices:
    """The devices along axes of a mesh, inside of shard_map."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.count: int = jax.lax.axis_size(names) if names else 1

        self.checked = self.count > 1 and set(names) <= _varying(jax.lax.axis_index(names))
        """Whether shard_map checks which values are equal on all devices."""

    def varying(self, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Return arrays marked as varying over the devices.

        Otherwise JAX would sum derivatives over the devices inside a branch that some devices do not take.
        """
        if not self.checked:
            return arrays
        together = frozenset(self.names).union(*map(_varying, arrays))
        return tuple(
            jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if (missing := together - _varying(x)) else x
            for x in arrays
        )

    @property
    def rank(self) -> Any:
        """The index of this device."""
        return jax.lax.axis_index(self.names) if self.count > 1 else 0

    def gather(self, message: Gather) -> tuple[Array, ...]:
        """Return the arrays of all devices."""
        if self.count == 1:
            return tuple(x[None] for x in message.arrays)
        return tuple(self._gathered(x) for x in message.arrays)

    def _gathered(self, x: Array) -> Array:
        (x,) = self.varying((x,))
        gathered: Array = jax.lax.all_gather(x, self.names, to="invarying" if self.checked else "varying")
        return gathered

    def reduce(self, message: Reduce) -> tuple[Array, ...]:
        """Return the sums of the arrays of all devices."""
        if self.count == 1:
            return message.arrays
        return tuple(jax.lax.psum(x, self.names) for x in self.varying(message.arrays))

    def shift(self, message: Shift) -> tuple[Array, ...]:
        """Return the arrays of the device ``by`` places further."""
        pairs = [((at + message.by) % self.count, at) for at in range(self.count)]
        return tuple(jax.lax.ppermute(x, self.names, pairs) for x in message.arrays)

    def trade(self, message: Trade) -> tuple[Array, ...]:
        """Return the blocks that all devices send to this one."""
        return tuple(jax.lax.all_to_all(x, self.names, 0, 0) for x in message.arrays)

    def exchange(self, message: Exchange, place: Place) -> tuple[Array, ...]:
        """Return the parts that all devices send to this one."""
        if self.count == 1:
            return message.arrays
        if self._merges(message):
            return Sorted(self._merged(message, place))
        return self._parts(message, place.rank)

    def _parts(self, message: Exchange, rank: Array) -> tuple[Array, ...]:
        pieces = message.leaving, _lengths(message.arriving), message.longest
        return tuple(self._exchanged(x, pieces, message.lengths[0], rank) for x in message.arrays)

    def _merges(self, message: Exchange) -> bool:
        """Return whether a kernel merges the received rows: for a power of two devices, see `_merged`."""
        if message.descending is None or self.count & (self.count - 1) or 0 in message.arrays[0].shape:
            return False
        return search_merge_cuda.refusal(jax.numpy, message.arrays) is None

    def _merged(self, message: Exchange, place: Place) -> tuple[Array, ...]:
        """Return the received rows in order: merged if each piece fits a block, else sorted."""

        def request(places: tuple[Array, ...], arrays: tuple[Array, ...]) -> Exchange:
            leaving, arriving, longest = places
            return dataclasses.replace(message, arrays=arrays, leaving=leaving, arriving=arriving, longest=longest)

        def by_sorting(places: tuple[Array, ...], rank: Array, *arrays: Array) -> tuple[Array, ...]:
            return self.varying(message.sort(self._parts(request(places, arrays), rank)))

        @jax.custom_jvp  # type: ignore[untyped-decorator]
        def merged(places: tuple[Array, ...], rank: Array, *arrays: Array) -> tuple[Array, ...]:
            block = self._block(arrays[0].shape[1])
            fits = jax.numpy.max(places[2]) <= block
            arrays = replaced_unless(fits, self.varying(arrays), lambda arrays: by_sorting(places, rank, *arrays))
            result: tuple[Array, ...] = jax.lax.cond(
                fits,
                lambda *arrays: self.varying(self._by_merging(request(places, arrays), rank, block)),
                lambda *arrays: arrays,
                *arrays,
            )
            return result

        @merged.defjvp  # type: ignore[untyped-decorator]
        def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            return jax.jvp(by_sorting, primals, tangents)

        places = message.leaving, message.arriving, message.longest
        result: tuple[Array, ...] = merged(places, place.rank, *message.arrays)
        return result

    def _by_merging(self, message: Exchange, rank: Array, block: int) -> tuple[Array, ...]:
        """Return the received runs, merged in pairs.

        In step s, the devices whose ranks differ by the bits of s exchange one block each. Neighbours in the list of
        runs are from neighbouring devices, after the first round of merges from neighbouring pairs, and so on. A bit of
        the local rank decides which of two runs comes first.
        """
        xp, arrays, leaving, arriving = jax.numpy, message.arrays, message.leaving, message.arriving
        rows, n = arrays[0].shape
        counts = _lengths(arriving)

        def begin_of_block(begins: Array) -> Array:  # the block holds the piece, and ends in the array
            return xp.minimum(begins, n - block)

        def cut(x: Array, block_begins: Array) -> Array:  # of shape (rows, block)
            if rows == 1:
                return jax.lax.dynamic_slice_in_dim(x, block_begins[0], block, axis=1)
            positions = block_begins[:, None] + xp.arange(block, dtype=block_begins.dtype)
            return xp.take_along_axis(x, positions, axis=1, mode="promise_in_bounds")

        runs = [(arrays, leaving[:, rank], counts[rank])]
        for step in range(1, self.count):
            pairs = [(at, at ^ step) for at in range(self.count)]
            partner = rank ^ step
            at = begin_of_block(leaving[:, partner])
            got = tuple(jax.lax.ppermute(cut(x, at), self.names, pairs) for x in arrays)
            begins = arriving[partner, :, 0]
            runs.append((got, begins - begin_of_block(begins), counts[partner]))
            level = 0
            while (step + 1) >> level & 1 == 0:  # blocks of later steps may arrive in the meantime
                second_run, first_run = runs.pop(), runs.pop()
                second_first = xp.broadcast_to(rank >> level & 1, (rows,)).astype(leaving.dtype)
                runs.append(self._merged_pair(message, first_run, second_run, second_first))
                level += 1
        return runs[0][0]

    def _merged_pair(self, message: Exchange, first_run: _Run, second_run: _Run, second_first: Array) -> _Run:
        """Return two runs merged. In rows where ``second_first`` is 1, the second run is the earlier one."""
        xp, each = jax.numpy, len(first_run[0])
        n = min(first_run[0][0].shape[1] + second_run[0][0].shape[1], message.lengths[0])
        places = xp.stack([*first_run[1:], *second_run[1:], second_first], axis=-1)

        def array_form(*arguments: Array) -> tuple[Array, ...]:
            *arrays, bounds = arguments
            position = xp.arange(n, dtype=bounds.dtype)
            earlier = xp.where(bounds[:, 4] == 1, 2, 0)[:, None]  # the column of the earlier run's begin
            first = xp.take_along_axis(bounds, earlier + 1, axis=1)
            within = xp.where(position < first, position, position - first)
            of_second = (position < first) == (bounds[:, 4:] == 1)
            place = within + xp.where(of_second, bounds[:, 2:3], bounds[:, :1])

            def joined(x: Array, y: Array) -> Array:
                taken = [
                    xp.take_along_axis(row, xp.clip(place, 0, row.shape[1] - 1), axis=1, mode="promise_in_bounds")
                    for row in (x, y)
                ]
                return xp.where(of_second, taken[1], taken[0])

            merged_arrays = tuple(joined(x, y) for x, y in zip(arrays[:each], arrays[each:], strict=True))
            is_behind = xp.broadcast_to(position, merged_arrays[0].shape) >= (bounds[:, 1] + bounds[:, 3])[:, None]
            *sorted_arrays, is_behind = message.sort((*merged_arrays, is_behind))
            return sort_by_key(is_behind, *sorted_arrays)[1:]  # elements that are in no run come last

        arrays = (*first_run[0], *second_run[0])
        bound = str(places.dtype)
        run = search_merge_cuda.merger(
            xp, arrays, n, descending=bool(message.descending), bound=bound, otherwise=array_form
        )
        return run(*arrays, places), xp.zeros_like(first_run[1]), first_run[2] + second_run[2]

    def _block(self, n: int) -> int:
        """Return the length of a block, enough for a piece of random elements."""
        return min(n, -(-n * 17 // (16 * self.count)) + 4 * math.isqrt(n))

    def _exchanged(self, x: Array, pieces: _Pieces, length: int, rank: Array) -> Array:
        """Return the pieces of one array. The exchange permutes elements, so its derivative is the exchange back."""
        if not jax.numpy.issubdtype(x.dtype, jax.numpy.inexact):
            return self._in_rounds(x, pieces, length, rank)
        leaving, arriving, longest = pieces
        ends = jax.numpy.cumsum(arriving.T, axis=-1)
        leaving_back = jax.numpy.concat([jax.numpy.zeros_like(ends[:, :1]), ends], axis=-1)
        pieces_back = leaving_back, jax.numpy.diff(leaving).T, longest
        n = x.shape[1]

        @jax.custom_jvp  # type: ignore[untyped-decorator]
        def exchanged(x: Array, pieces: _Pieces, pieces_back: _Pieces, rank: Array) -> Array:
            del pieces_back
            return self._in_rounds(x, pieces, length, rank)

        def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
            moved_tangent = jax.custom_derivatives.linear_call(
                lambda given, x: self._in_rounds(x, given[0], length, given[2]),
                lambda given, y: self._in_rounds(y, given[1], n, given[2]),
                primals[1:],
                tangents[0],
            )
            return exchanged(*primals), moved_tangent

        exchanged.defjvp(tangent)
        result: Array = exchanged(x, pieces, pieces_back, rank)
        return result

    def _in_rounds(self, x: Array, pieces: _Pieces, length: int, rank: Any) -> Array:
        """Return the pieces of one array, sent in rounds of equal blocks until the longest piece is complete.

        A piece of random elements is one block unless it is very long. The piece that stays on this device is copied.
        """
        xp = jax.numpy
        rows, n = x.shape
        if n == 0 or rows == 0:
            return x
        (leaving, arriving, longest), total = pieces, self.count
        first = xp.cumsum(arriving, axis=0) - arriving  # the begin of each device's piece in the result
        block = min(self._block(n), LONGEST_BLOCK)
        rounds = -(-xp.max(longest) // block)

        def cut(begins: Array, size: int) -> Array:  # of shape (rows, size)
            at = begins[:, None] + xp.arange(size, dtype=begins.dtype)
            return xp.take_along_axis(x, xp.clip(at, 0, n - 1), axis=1, mode="promise_in_bounds")

        at = xp.arange(length, dtype=first.dtype)[None] - first[rank][:, None]
        from_here = (at >= 0) & (at < arriving[rank][:, None])
        result = xp.where(from_here, cut(leaving[:, rank] - first[rank], length), xp.zeros((), x.dtype))

        def one_round(state: tuple[Array, Array]) -> tuple[Array, Array]:
            round_index, result = state
            sent = xp.stack([cut(leaving[:, to] + round_index * block, block) for to in range(total)])
            got = jax.lax.all_to_all(sent, self.names, 0, 0)
            if rows == 1:  # slices, without an array of positions
                for of in range(total):
                    begin = first[of, 0] + round_index * block
                    begins = xp.minimum(begin, length - block)
                    within = begins - begin + xp.arange(block, dtype=first.dtype)
                    valid = (within >= 0) & (round_index * block + within < arriving[of]) & (rank != of)
                    new = xp.take(got[of, 0], within, mode="clip")
                    old = jax.lax.dynamic_slice_in_dim(result[0], begins, block)
                    result = jax.lax.dynamic_update_slice(result, xp.where(valid, new, old)[None], (0, begins))
                return round_index + 1, result
            within = round_index * block + xp.arange(block, dtype=first.dtype)
            valid = (within < arriving[:, :, None]) & (xp.arange(total) != rank)[:, None, None]
            to = xp.where(valid, first[:, :, None] + within, length)
            row = xp.broadcast_to(xp.arange(rows)[None, :, None], to.shape)
            return round_index + 1, result.at[row, to].set(got, mode="drop", unique_indices=True)

        start = xp.zeros((), rounds.dtype)
        return jax.lax.while_loop(lambda state: state[0] < rounds, one_round, (start, result))[1]


def _lengths(arriving: Array) -> Array:
    """Return the lengths of pieces that arrive, of shape (devices, rows)."""
    lengths: Array = arriving[..., 1] - arriving[..., 0]
    return lengths


def _varying(x: Array) -> frozenset[Any]:
    axes: frozenset[Any] = getattr(jax.typeof(x).manual_axis_type, "varying", frozenset())
    return axes


def _stages(work: Work, record: Record, *parts: Array) -> Any:
    """Return the results of all stages on the local parts."""
    if listing():
        return work.plain(*parts)
    record.steps.clear()
    arrays: Any = parts
    for stage in work.stages:
        devices = Devices(stage.over)
        arrays = devices.varying(arrays if isinstance(arrays, tuple) else (arrays,))
        lengths = (stage.length // devices.count,) * devices.count
        result, collectives = _staged(stage, devices, lengths, arrays)
        arrays = (*arrays, result) if stage.appended else result
        record.steps.extend(one for one in collectives if devices.count > 1)
    return arrays


def _staged(stage: Stage, devices: Devices, lengths: tuple[int, ...], parts: tuple[Array, ...]) -> tuple[Any, Any]:
    """Return the result of a stage, and its collective operations."""
    if stage.linear is None:
        return run_quick(stage.steps, stage.quick, devices, lengths, parts=parts, apart=stage.apart)
    *coefficients, rhs = parts
    multiply, transposed = stage.linear
    collectives: list[Any] = []

    def solve(_: Any, b: Array) -> Any:
        solution, collectives[:] = run_quick(
            stage.steps, stage.quick, devices, lengths, parts=(*coefficients, b), apart=stage.apart
        )
        return solution

    x = jax.lax.custom_linear_solve(
        lambda x: run(multiply, devices, lengths, (*coefficients, x))[0],
        rhs,
        solve,
        lambda _, g: run_quick(transposed, (), devices, lengths, parts=(*coefficients, g), apart=stage.apart)[0],
    )
    return x, collectives


@dataclasses.dataclass(frozen=True)
class Inside:
    """The engine inside a shard_map of the caller's, where arrays are parts."""

    names: Names
    trades: ClassVar[bool] = True
    moves: ClassVar[bool] = False

    @staticmethod
    def of(axis_name: Any) -> Inside:
        """Return the engine for axes of a mesh; ValueError if the program has no axes of these names."""
        names = axis_name if isinstance(axis_name, tuple) else (axis_name,)
        try:
            jax.lax.axis_size(names)
        except (NameError, KeyError, TypeError, ValueError):
            raise ValueError(
                f"axis_name must name axes of a mesh inside jax.shard_map, got {repr_short(axis_name)}"
            ) from None
        return Inside(names)

    def split(self, name: str, x: Array) -> Split:
        """Return a split along no axis: only the caller's ``axis`` says which axis is split."""
        del name
        whole: Split = ((),) * x.ndim
        return whole

    def working(self, names: Names) -> Names:
        """Return the axes of the mesh that the caller named."""
        del names
        return self.names

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return all axes as one group, whose first axis is split."""
        del split
        return [(self.names, axes)]

    def length(self, arrays: tuple[Array, ...], axis: int, ndim: int) -> int:
        """Return the length of the split axis over all parts."""
        return length(arrays, axis, ndim) * int(jax.lax.axis_size(self.names))

    def count(self, over: Names) -> int:
        """Return the number of parts."""
        return int(jax.lax.axis_size(over))

    def part_shape(self, x: Array, split: Split) -> tuple[int, ...]:
        """Return the shape of the array, which is a part."""
        del split
        return tuple(x.shape)

    def compute(self, work: Work) -> Any:
        """Return the results for this part."""
        record = Record()
        found = recorded(record, functools.partial(_stages, work, record))(*work.arrays)
        record.tell(work, self.count(self.names))
        return found


def check_whole(check: Check, asked: Arguments) -> None:
    """Check a call on split arrays as a call on whole arrays of their shapes and dtypes."""

    def checked(*traced: Array) -> tuple[()]:
        check(replaced(jax.Array, asked, traced))
        return ()

    jax.eval_shape(checked, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in every(jax.Array, asked)))


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The engine for whole arrays that are split over a mesh."""

    mesh: Any
    trades: ClassVar[bool] = True
    moves: ClassVar[bool] = False

    @staticmethod
    def of(arrays: tuple[Array, ...]) -> Mesh:
        """Return the engine of arrays. At least one of them is split."""
        shardings = [
            sharding for sharding in map(_sharding, arrays) if sharding is not None and not sharding.mesh.empty
        ]
        split = [sharding.mesh for sharding in shardings if not sharding.is_fully_replicated]
        if not split:
            kind = next(type(x.sharding).__name__ for x in arrays if not is_traced(x) and len(x.devices()) > 1)
            raise ValueError(
                f"arrays are sharded by a {kind}, which names no axes of a mesh: put them by jax.device_put with a "
                "NamedSharding"
            )
        if any(mesh != split[0] for mesh in split):
            raise ValueError("arrays are sharded over different meshes: put them on one by jax.device_put")
        return Mesh(split[0])

    def split(self, name: str, x: Array) -> Split:
        """Return the axes of the mesh that each axis of an array is split over."""
        del name
        sharding = _sharding(x)
        if sharding is None:
            whole: Split = ((),) * x.ndim
            return whole
        return split_of(self.mesh, sharding, x.ndim)

    def working(self, names: Names) -> Names:
        """Return the split that the arrays have."""
        return names

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return the axes in groups. Only the first axis of a group is split."""
        return groups(split, axes)

    def length(self, arrays: tuple[Array, ...], axis: int, ndim: int) -> int:
        """Return the length of an axis."""
        return length(arrays, axis, ndim)

    def count(self, over: Names) -> int:
        """Return the number of parts."""
        return math.prod(self.mesh.shape[name] for name in over)

    def part_shape(self, x: Array, split: Split) -> tuple[int, ...]:
        """Return the shape of a part."""
        return tuple(length // self.count(over) for length, over in zip(x.shape, split, strict=True))

    def compute(self, work: Work) -> Any:
        """Return the results with the splits of the work."""
        if all(math.prod(x.shape) == 0 for x in work.arrays) and not listing():
            return self._of_nothing(work)
        placed = tuple(self._placed(x, split) for x, split in zip(work.arrays, work.inputs, strict=True))
        key = None
        if work.key is not None and not listing():
            kinds = tuple((x.shape, str(x.dtype), jax.typeof(x).weak_type) for x in placed)
            key = work.key, self.mesh, work.inputs, kinds, jax.config.jax_enable_x64
        program = _programs.get(key)
        if program is None:
            if not listing():
                with unwatched():  # so that errors speak of the whole arrays
                    jax.eval_shape(work.plain, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in placed))
            program = self._program(work)
            if key is not None:
                _programs.keep(key, program)
        run_program, record = program
        results = run_program(*placed)
        record.tell(work, self._count(work))
        return results

    def _of_nothing(self, work: Work) -> Any:
        """Return the results for arrays without elements, computed on one device: XLA does not map unread parts."""
        record = Record()
        results = recorded(record, work.plain)(*(jax.numpy.zeros(x.shape, x.dtype) for x in work.arrays))
        record.tell(work, 1)
        if isinstance(work.outputs, list):
            return [self._placed(y, split) for y, split in zip(results, work.outputs, strict=True)]
        return jax.tree.map(lambda y: self._placed(y, work.outputs), results)

    def _count(self, work: Work) -> int:
        return math.prod(self.mesh.shape[name] for name in {name for stage in work.stages for name in stage.over})

    def _program(self, work: Work) -> tuple[Callable[..., Any], Record]:
        record = Record()
        bare = dataclasses.replace(work, arrays=())
        mapped = jax.shard_map(
            recorded(record, functools.partial(_stages, bare, record)),
            mesh=self.mesh,
            in_specs=tuple(spec_of(split) for split in work.inputs),
            out_specs=[spec_of(one) for one in work.outputs]
            if isinstance(work.outputs, list)
            else spec_of(work.outputs),
        )
        return jax.jit(mapped), record

    def _placed(self, x: Array, split: Split) -> Array:
        """Return the array with a split."""
        target = NamedSharding(self.mesh, spec_of(split))
        if not isinstance(x, jax.Array):  # an array of NumPy, which every call accepts as initial element
            x = jax.numpy.asarray(x)
        if is_traced(x):
            sharding = explicit_sharding(x)
            if sharding is not None and not sharding.mesh.empty and sharding.spec == target.spec:
                return x
            return jax.sharding.reshard(x, target)
        if isinstance(self.mesh, jax.sharding.AbstractMesh):  # a derivative outside jit: a constant fits any split
            return x
        if x.sharding.is_equivalent_to(target, x.ndim):
            return x
        return jax.device_put(x, target)


_programs: Memo[tuple[Callable[..., Any], Record]] = Memo()


def _sharding(x: Array) -> Any:
    """Return the sharding of an array over a mesh, or None if it has none or hides it."""
    sharding = explicit_sharding(x) if is_traced(x) else x.sharding
    return sharding if isinstance(sharding, NamedSharding) else None


def split_of(mesh: Any, sharding: Any, ndim: int) -> Split:
    """Return the mesh axes over which a sharding splits each axis of an array."""
    spec = (*sharding.spec, *(None,) * ndim)[:ndim]
    named = tuple(() if one is None else one if isinstance(one, tuple) else (one,) for one in spec)
    return tuple(tuple(name for name in names if mesh.shape[name] > 1) for names in named)


def spec_of(split: Split) -> Any:
    """Return the PartitionSpec of a split."""
    names = [one if len(one) > 1 else one[0] if one else None for one in split]
    return PartitionSpec(*names)

"""Arrays of Dask, chunk by chunk: the steps of a driver are tasks, and so is what moves messages between them.

Nothing is computed here. The number of tasks is linear in that of the chunks, but for a sort, each chunk of which has
something for every other.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import dask
import dask.array
import numpy as np

from parprims._core.arrays import Array, namespace_of
from parprims._core.elements import flattened, rebuilt
from parprims._devices.communicator import Exchange, Gather, Place, Shift, Step, Trade, collective, run, size
from parprims._devices.work import Names, Record, Split, Stage, Work, every, groups, length, replaced
from parprims._dispatch.dispatch import chosen, explaining, listing, unwatched
from parprims._dispatch.primitive import Arguments


class Chunks:  # holds stand-ins by the ids of what they keep alive
    """The engine for arrays of Dask. A call is given stand-ins: arrays of NumPy of the whole shapes, without memory."""

    trades: ClassVar[bool] = False

    def __init__(self) -> None:
        self._sources: dict[int, tuple[Any, Any]] = {}  # by the owner of a stand-in's memory: itself, and the array

    @staticmethod
    def call(lay_out: Callable[..., Any], asked: Arguments) -> Any:
        """Return the results of a call on Dask arrays: Dask arrays that are not computed yet."""
        engine = Chunks()
        aligned = _aligned(every(dask.array.Array, asked), asked.name == "matmul")
        stand_ins = [engine.stand_in(x, labels) for x, labels in aligned]
        return lay_out(engine, replaced(dask.array.Array, asked, stand_ins))

    def stand_in(self, x: Any, labels: Sequence[Any]) -> Array:
        """Return the substitute of an array in a call, with labels on its axes."""
        owner = np.ones((), dtype=x.dtype)
        self._sources[id(owner)] = owner, (x, tuple(labels))
        return np.broadcast_to(owner, x.shape)

    def _source(self, name: str, x: Array) -> Any:
        known = self._sources.get(id(x.base) if x.base is not None else 0)
        if known is None and x.ndim:
            narrow = any(owner.dtype.kind == "f" and owner.dtype.itemsize == 2 for owner, _ in self._sources.values())
            remedy = ": cast 16-bit floats to float32" if narrow else ""
            raise TypeError(
                f"{name} must be an array of Dask, of the dtype of the others, where one of them is{remedy}"
            )
        return None if known is None else known[1]

    def split(self, name: str, x: Array) -> Split:
        """Return which axes have several chunks, and which: a label and the lengths of the chunks."""
        source = self._source(name, x)
        if source is None:
            return ()
        array, labels = source
        return tuple(
            ((label, chunks),) if len(chunks) > 1 else () for label, chunks in zip(labels, array.chunks, strict=True)
        )

    def working(self, found: Names) -> Names:
        """Return the split that the arrays have."""
        return found

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return the axes in groups of which the first is split."""
        return groups(split, axes)

    def length(self, arrays: tuple[Array, ...], axis: int, ndim: int) -> int:
        """Return the length of an axis."""
        return length(arrays, axis, ndim)

    def count(self, over: Names) -> int:
        """Return how many chunks there are."""
        return math.prod(len(chunks) for _, chunks in over)

    def part_shape(self, x: Array, split: Split) -> tuple[int, ...]:
        """Return the shape of the largest chunk."""
        return tuple(max(names[0][1]) if names else int(n) for names, n in zip(split, x.shape, strict=True))

    # ---- The graph ----------------------------------------------------------------------------------------------

    def compute(self, work: Work) -> Any:
        """Return the results as arrays of Dask."""
        grid = sorted({name for split in work.inputs for names in split for name in names}, key=repr)
        largest = {name: max(name[1]) for name in grid}
        if listing():
            return work.plain(*self._like(work, largest))
        small, kinds = _on_small(work, self._like(work, dict.fromkeys(grid, 1)))
        pairs = zip(work.arrays, work.inputs, strict=True)
        sources = [self._blocks(x, split, index) for index, (x, split) in enumerate(pairs)]
        cells: dict[tuple[int, ...], Any] = {}
        sizes = [len(chunks) for _, chunks in grid]
        for at in itertools.product(*map(range, sizes)):
            places = dict(zip(grid, at, strict=True))
            cells[at] = tuple(block(places) for block in sources)
        for stage, messages in zip(work.stages, kinds, strict=True):
            axis = [grid.index(name) for name in stage.over]
            cells = _staged(cells, stage, axis, messages, sizes=sizes)
        if explaining():
            self._tell(work, largest)
        return self._assembled(work, grid, cells, small)

    def _like(self, work: Work, lengths: dict[Any, int]) -> tuple[Array, ...]:
        """Return arrays like parts of the work, of these lengths along what is split, one element in memory."""
        return tuple(self._part(x, split, lengths) for x, split in zip(work.arrays, work.inputs, strict=True))

    def _part(self, x: Array, split: Split, lengths: dict[Any, int]) -> Array:
        shape = tuple(lengths[names[0]] if names and n != 1 else n for names, n in zip(split, x.shape, strict=True))
        source = self._source("x", x)
        if source is None:
            return x
        meta = source[0]._meta
        xp = namespace_of(meta)
        return xp.broadcast_to(xp.ones((), dtype=meta.dtype), shape)

    def _tell(self, work: Work, largest: dict[Any, int]) -> None:
        """Tell `explain` how the largest part will be computed, and how many bytes it will send.

        The bytes of a message are a polynomial in the lengths of a part, of degree one in each. Messages of short parts
        give its coefficients: those of length one, and of length two along some axes.
        """
        record = Record(chosen(work.plain, *self._like(work, largest)))
        subsets = [set(some) for k in range(len(largest) + 1) for some in itertools.combinations(largest, k)]
        known: list[tuple[set[Any], list[int]]] = []  # the coefficient of the product of these lengths less one
        nbytes: list[int] = []
        for names in subsets:
            messages = self._messages(work, {name: 2 if name in names else 1 for name in largest})
            own = [size(message) for message, _ in messages]
            for fewer, part in known:
                if fewer < names:
                    own = [one - less for one, less in zip(own, part, strict=True)]
            known.append((names, own))
            factor = math.prod(largest[name] - 1 for name in names)
            nbytes = [one * factor + sum(rest) for one, *rest in zip(own, *([nbytes] if nbytes else []), strict=True)]
        record.steps.extend(
            collective(message, place, one) for (message, place), one in zip(messages, nbytes, strict=True)
        )
        record.tell(work.primitive, self.count(tuple({name for stage in work.stages for name in stage.over})))

    def _messages(self, work: Work, lengths: dict[Any, int]) -> list[tuple[Any, Place]]:
        """Return the messages of a part of these lengths among as many as there are, and the places they go between."""
        _, kinds = _on_small(work, self._like(work, lengths), lengths)
        return [
            (message, Place(0, _lengths(stage.over)))
            for stage, messages in zip(work.stages, kinds, strict=True)
            if stage.over
            for message in messages
        ]

    def _blocks(self, x: Array, split: Split, index: int) -> Callable[[dict[Any, int]], Any]:
        """Return a function that finds the block of an array at a position of the grid."""
        source = self._source(f"array {index}", x)
        if source is None:
            return lambda _: x
        array, _ = source
        more = x.ndim - array.ndim
        chunks = tuple(names[0][1] if names else (n,) for names, n in zip(split, x.shape, strict=True))
        own = tuple(one if array.shape[at] != 1 else (1,) for at, one in enumerate(chunks[more:]))
        if own != array.chunks:
            array = array.rechunk(own)
        blocks = array.to_delayed(optimize_graph=False)

        def find(places: dict[Any, int]) -> Any:
            at = tuple(
                places[names[0]] if names and array.shape[axis] != 1 else 0 for axis, names in enumerate(split[more:])
            )
            shape = tuple(chunk[places[names[0]] if names else 0] for chunk, names in zip(chunks, split, strict=True))
            block = blocks[at]
            return block if tuple(array.shape) == tuple(x.shape) else _BROADCAST(block, shape)

        return find

    def _assembled(self, work: Work, grid: list[Any], cells: dict[tuple[int, ...], Any], small: Any) -> Any:
        leaves, structure = flattened(tuple(small) if isinstance(small, list) else small)
        outputs = work.outputs if isinstance(work.outputs, list) else [work.outputs] * len(leaves)
        results = []
        for index, (leaf, split) in enumerate(zip(leaves, outputs, strict=True)):
            chunks = [names[0][1] if names else (n,) for names, n in zip(split, leaf.shape, strict=True)]

            meta = leaf[(slice(0, 0),) * leaf.ndim]

            def block(
                at: tuple[int, ...], index: int = index, chunks: Any = chunks, split: Any = split, meta: Any = meta
            ) -> Any:
                places = {names[0]: one for names, one in zip(split, at, strict=True) if names}
                cell = cells[tuple(places.get(name, 0) for name in grid)]
                shape = tuple(chunk[one] for chunk, one in zip(chunks, at, strict=True))
                return dask.array.from_delayed(_LEAF(cell, index), shape, meta=meta)

            results.append(_nested(block, [len(chunk) for chunk in chunks]))
        return rebuilt(structure, results)


def _nested(block: Callable[[tuple[int, ...]], Any], counts: list[int]) -> Any:
    """Return the array whose blocks a function returns."""

    def lists(at: tuple[int, ...]) -> Any:
        return [lists((*at, one)) for one in range(counts[len(at)])] if len(at) < len(counts) else block(at)

    return dask.array.block(lists(())) if counts else block(())


def _aligned(arrays: list[Any], product: bool) -> list[tuple[Any, tuple[Any, ...]]]:
    """Return arrays with labels of their axes, cut alike where the labels are the same."""
    for x in arrays:
        if any(math.isnan(n) for n in x.shape):
            raise ValueError("arrays of Dask must know the lengths of their chunks: call compute_chunk_sizes()")
    labels = []
    for index, x in enumerate(arrays):
        own: list[Any] = [-x.ndim + axis for axis in range(x.ndim)]
        if product and x.ndim:
            ends = ("k",) if x.ndim == 1 else (("m", "k"), ("k", "n"))[index]
            own[x.ndim - len(ends) :] = ends
        labels.append(tuple(own))
    chosen: dict[Any, tuple[int, ...]] = {}
    for x, label_of in zip(arrays, labels, strict=True):
        for label, chunks in zip(label_of, x.chunks, strict=True):
            if len(chunks) > len(chosen.get(label, ())) and sum(chunks) >= sum(chosen.get(label, ())):
                chosen[label] = chunks
    found: list[tuple[Any, tuple[Any, ...]]] = []
    for x, label_of in zip(arrays, labels, strict=True):
        chunks = tuple(
            chosen[label] if sum(chosen[label]) == n else old
            for label, n, old in zip(label_of, x.shape, x.chunks, strict=True)
        )
        found.append((x if chunks == x.chunks else x.rechunk(chunks), label_of))
    return found


# ---- What one part does, on one array ------------------------------------------------------------------------------


@dataclasses.dataclass
class _Dry:
    """The first of parts that are all alike. It notes what it is asked for."""

    kinds: list[Any]
    rank: int = 0
    count: int = 1

    def gather(self, message: Gather) -> tuple[Array, ...]:
        """Return the own arrays, once for each part."""
        self.kinds.append(message)
        return tuple(namespace_of(x).stack([x] * self.count) for x in message.arrays)

    def shift(self, message: Shift) -> tuple[Array, ...]:
        """Return the own arrays."""
        self.kinds.append(message)
        return message.arrays

    def trade(self, message: Trade) -> tuple[Array, ...]:
        """Return the own arrays."""
        self.kinds.append(message)
        return message.arrays

    def exchange(self, message: Exchange, place: Place) -> tuple[Array, ...]:
        """Return the own arrays."""
        del place
        self.kinds.append(message)
        return message.arrays


def _on_small(work: Work, like: tuple[Array, ...], lengths: dict[Any, int] | None = None) -> tuple[Any, list[Any]]:
    """Return the results of the work on small parts, and for each stage the messages of its steps.

    A part is alone, or with ``lengths`` among as many of these lengths as there are.
    """
    kinds: list[Any] = []
    parts: Any = like
    with unwatched(), np.errstate(all="ignore"):
        for stage in work.stages:
            own: tuple[int, ...] = (1,)
            if lengths and stage.over:
                own = (math.prod(lengths[name] for name in stage.over),) * len(_lengths(stage.over))
            device = _Dry([], count=len(own))
            result, _ = run(stage.steps, device, own, _tuple(parts))
            kinds.append(device.kinds)
            parts = (*_tuple(parts), result) if stage.appended else result
    return parts, kinds


# ---- Tasks ------------------------------------------------------------------------------------------------------


def _staged(
    cells: dict[tuple[int, ...], Any], stage: Stage, axis: list[int], messages: list[Any], *, sizes: list[int]
) -> dict[tuple[int, ...], Any]:
    """Return the delayed results of a stage at each place of the grid, given its delayed arrays."""
    lengths = _lengths(stage.over) if axis else (stage.length,)
    if not axis:
        found = {at: _ALONE(stage.steps, lengths, parts) for at, parts in cells.items()}
    else:
        found = {}
        rest = [range(1) if at in axis else range(size) for at, size in enumerate(sizes)]
        for outer in itertools.product(*rest):
            line = []
            for places in itertools.product(*(range(sizes[at]) for at in axis)):
                along = dict(zip(axis, places, strict=True))
                line.append(tuple(along.get(at, place) for at, place in enumerate(outer)))
            for at, result in zip(line, _line(stage, lengths, messages, [cells[one] for one in line]), strict=True):
                found[at] = result
    if stage.appended:
        return {at: (*_tuple(cells[at]), result) for at, result in found.items()}
    return found


def _lengths(over: Names) -> tuple[int, ...]:
    """Return the number of elements of each part of axes that are cut into chunks, in row-major order."""
    return tuple(math.prod(lengths) for lengths in itertools.product(*(chunks for _, chunks in over)))


def _tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _line(stage: Stage, lengths: tuple[int, ...], messages: list[Any], parts: list[Any]) -> list[Any]:
    """Return the delayed results of all parts of an axis."""
    places = [Place(rank, lengths) for rank in range(len(lengths))]
    kept, replies = [_PARTS(one) for one in parts], [None] * len(parts)
    for step, message in itertools.zip_longest(stage.steps, messages):
        done = [_STEP(step, *one) for one in zip(places, kept, replies, strict=True)]
        if message is None:
            return [_KEPT(one) for one in done]
        kept = [_KEPT(one) for one in done]
        sent = [_SENT(one) for one in done]
        replies = _replies(message, sent, lengths)
    return kept


def _replies(message: Any, sent: list[Any], lengths: tuple[int, ...]) -> list[Any]:
    count = len(sent)
    if isinstance(message, Gather) and message.before is None:
        together = _STACKED(sent)
        return [together] * count
    if isinstance(message, Gather):
        order = list(range(count))[:: -1 if message.before else 1]
        found: list[Any] = [None] * count
        so_far: Any = None
        for at in order:
            so_far = _APPENDED(so_far, sent[at])
            found[at] = _FILLED(so_far, count, bool(message.before))
        return found
    if isinstance(message, Shift):
        return [sent[(at + message.by) % count] for at in range(count)]
    if isinstance(message, Exchange):
        return [_JOINED([_PIECE(one, of, to) for of, one in enumerate(sent)]) for to in range(len(lengths))]
    return [_TRADED([_BLOCK(one, to) for one in sent]) for to in range(count)]


def _step(step: Step, place: Place, kept: Any, reply: Any) -> tuple[Any, Any]:
    with unwatched():
        return step(place, kept, reply)


def _alone(steps: Sequence[Step], lengths: tuple[int, ...], parts: Any) -> Any:
    with unwatched():
        return run(steps, _Dry([]), lengths, _tuple(parts))[0]


def _stacked(sent: list[Any]) -> tuple[Array, ...]:
    return tuple(namespace_of(one[0]).stack(one) for one in zip(*(message.arrays for message in sent), strict=True))


def _appended(so_far: Any, message: Any) -> list[Any]:
    return [*(so_far or ()), message.arrays]


def _filled(so_far: list[Any], count: int, reverse: bool) -> tuple[Array, ...]:
    """Return the states so far, in order; those of parts that come later are read by none."""
    rows = [*so_far, *([so_far[-1]] * (count - len(so_far)))]
    rows = rows[::-1] if reverse else rows
    return tuple(namespace_of(one[0]).stack(one) for one in zip(*rows, strict=True))


def _piece(message: Any, of: int, to: int) -> tuple[list[Array], ...]:
    bounds = message.bounds[of]
    return tuple(
        [row[int(bounds[at, to]) : int(bounds[at, to + 1])] for at, row in enumerate(x)] for x in message.arrays
    )


def _joined(pieces: list[Any]) -> tuple[Array, ...]:
    found = []
    for one in zip(*pieces, strict=True):
        rows = [namespace_of(parts[0]).concat(list(parts)) for parts in zip(*one, strict=True)]
        found.append(namespace_of(rows[0]).stack(rows))
    return tuple(found)


def _block(message: Any, to: int) -> tuple[Array, ...]:
    return tuple(x[to, ...] for x in message.arrays)


def _traded(blocks: list[Any]) -> tuple[Array, ...]:
    return tuple(namespace_of(one[0]).stack(one) for one in zip(*blocks, strict=True))


def _leaf(found: Any, index: int) -> Array:
    return flattened(tuple(found) if isinstance(found, list) else found)[0][index]


def _broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    return namespace_of(x).broadcast_to(x, shape)


def _lazy(function: Callable[..., Any]) -> Any:
    return dask.delayed(function, pure=False, traverse=True)


_STEP, _ALONE, _STACKED, _APPENDED, _FILLED = [_lazy(one) for one in (_step, _alone, _stacked, _appended, _filled)]
_PIECE, _JOINED, _BLOCK, _TRADED, _LEAF = [_lazy(one) for one in (_piece, _joined, _block, _traded, _leaf)]
_BROADCAST, _PARTS = _lazy(_broadcast), _lazy(_tuple)
_SENT, _KEPT = _lazy(lambda done: done[0]), _lazy(lambda done: done[1])

"""Tensors of PyTorch that are split over the processes of a group: collective operations of `torch.distributed`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from parprims._devices.communicator import Exchange, Gather, Place, Shift, Trade, run, run_quick
from parprims._devices.work import Names, Record, Split, Stage, Work, groups, length, recorded
from parprims._dispatch.dispatch import listing
from parprims._dispatch.primitive import Arguments

Tensor = Any


# ---- Collective operations, with their derivatives --------------------------------------------------------------


def _bytes(x: Tensor) -> Tensor:
    """Return the memory of a tensor as bytes in one dimension: so groups move every dtype."""
    x = x.contiguous()
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)  # one element may have any stride


def _moved(x: Tensor, sent: list[int], taken: list[int], group: Any) -> Tensor:
    """Exchange parts of a 1-d tensor among all processes, given the numbers of elements to and from each."""
    size = x.element_size()
    found = torch.empty(sum(taken), dtype=x.dtype, device=x.device)
    dist.all_to_all_single(
        found.view(torch.uint8), _bytes(x), [n * size for n in taken], [n * size for n in sent], group=group
    )
    return found


def _gathered(x: Tensor, group: Any) -> Tensor:
    count = dist.get_world_size(group)
    found = torch.empty((count, *x.shape), dtype=x.dtype, device=x.device)
    rows = list(found.reshape(-1).view(torch.uint8).reshape(count, -1).unbind(0))
    dist.all_gather(rows, _bytes(x), group=group)
    return found


def _traded(x: Tensor, group: Any) -> Tensor:
    count, size = dist.get_world_size(group), math.prod(x.shape[1:])
    return _moved(x.reshape(-1), [size] * count, [size] * count, group).reshape(x.shape)


def _shifted(x: Tensor, by: int, group: Any) -> Tensor:
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    sent, taken = [0] * count, [0] * count
    sent[(rank - by) % count] = taken[(rank + by) % count] = x.numel()
    return _moved(x.reshape(-1), sent, taken, group).reshape(x.shape)


def _exchanged(x: Tensor, sent: list[list[int]], taken: list[list[int]], group: Any) -> Tensor:
    """Return the parts of all processes: ``sent`` and ``taken`` say for each how many elements of each row."""
    rows = x.shape[0]
    if rows != 1:  # those for one process side by side
        pieces = [torch.split(row, [one[at] for one in sent]) for at, row in enumerate(x.unbind(0))]
        x = torch.cat([pieces[at][to] for to in range(len(sent)) for at in range(rows)]) if rows else x.reshape(-1)
    found = _moved(x.reshape(-1), [sum(one) for one in sent], [sum(one) for one in taken], group)
    if rows == 1:
        return found.reshape(1, -1)
    width = sum(one[0] for one in taken) if rows else 0
    pieces = [torch.split(found, [n for one in taken for n in one])]
    ordered = [pieces[0][of * rows + at] for at in range(rows) for of in range(len(taken))]
    return torch.cat(ordered).reshape(rows, width) if ordered else found.reshape(0, width)


class _Message(torch.autograd.Function):  # type: ignore[misc]
    """A message, and the message by which its derivative comes back.

    The tensors of a message are those of one node of the graph, so that all processes send what comes back in one
    order. What any of them is asked for adds up.
    """

    @staticmethod
    def forward(ctx: Any, there: Any, back: Any, *xs: Tensor) -> Any:
        ctx.back = back
        ctx.moves = [x.is_floating_point() or x.is_complex() for x in xs]
        found = tuple(there(x) for x in xs)
        ctx.mark_non_differentiable(*(x for x, moves in zip(found, ctx.moves, strict=True) if not moves))
        return found

    @staticmethod
    def backward(ctx: Any, *gs: Tensor) -> Any:
        return None, None, *(ctx.back(g) if moves else None for g, moves in zip(gs, ctx.moves, strict=True))


class _Tied(torch.autograd.Function):  # type: ignore[misc]
    """A result that may not depend on what all processes sent: their derivatives go back all the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *replies: Tensor) -> Tensor:
        ctx.replies = [(one.shape, one.dtype, one.device) for one in replies]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, *(torch.zeros(shape, dtype=dtype, device=on) for shape, dtype, on in ctx.replies)


class _Shared(torch.autograd.Function):  # type: ignore[misc]
    """A result that all processes have: each is asked for its share of the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> Tensor:
        ctx.count = count
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g / ctx.count, None


class _Solved(torch.autograd.Function):  # type: ignore[misc]
    """The solution of linear equations, of which the last tensor is the right-hand side."""

    @staticmethod
    def forward(ctx: Any, solve: Any, transposed: Any, multiply: Any, *parts: Tensor) -> Tensor:
        x = solve(*parts)
        ctx.transposed, ctx.multiply = transposed, multiply
        ctx.save_for_backward(*parts, x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        *parts, x = ctx.saved_tensors
        by_rhs = ctx.transposed(*parts[:-1], g)
        with torch.enable_grad():
            given = [one.detach().requires_grad_() for one in parts[:-1]]
            product = ctx.multiply(*given, x)
            by_given = torch.autograd.grad(product, given, -by_rhs, allow_unused=True)
        by_rhs = by_rhs.sum_to_size(parts[-1].shape)
        return None, None, None, *by_given, by_rhs


class Processes:
    """The processes of a group."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.replies: list[Tensor] = []

    @property
    def rank(self) -> int:
        """Which of the processes this is."""
        return int(dist.get_rank(self.group))

    @property
    def count(self) -> int:
        """The number of processes."""
        return int(dist.get_world_size(self.group))

    def _sent(self, there: Any, back: Any, arrays: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = _Message.apply(there, back, *arrays)
        self.replies.extend(x for x in found if x.requires_grad)
        return found

    def tied(self, result: Any) -> Any:
        """Return results through which every process has the same messages to send for derivatives."""
        if not self.replies:
            return result
        return _mapped(
            lambda x: _Tied.apply(x, *self.replies) if x.is_floating_point() or x.is_complex() else x, result
        )

    def gather(self, message: Gather) -> tuple[Tensor, ...]:
        """Return the tensors of all processes."""
        group = self.group
        return self._sent(
            lambda x: _gathered(x, group), lambda g: _traded(g.contiguous(), group).sum(0), message.arrays
        )

    def shift(self, message: Shift) -> tuple[Tensor, ...]:
        """Return the tensors of another process."""
        group, by = self.group, message.by
        return self._sent(lambda x: _shifted(x, by, group), lambda g: _shifted(g, -by, group), message.arrays)

    def trade(self, message: Trade) -> tuple[Tensor, ...]:
        """Return the blocks of all processes that are for this one."""
        group = self.group
        return self._sent(lambda x: _traded(x, group), lambda g: _traded(g, group), message.arrays)

    def exchange(self, message: Exchange, place: Place) -> tuple[Tensor, ...]:
        """Return the parts of all processes that are for this one."""
        counts = torch.diff(message.bounds, dim=-1).tolist()  # of shape (from, rows, to)
        here, rows, group = self.rank, range(message.bounds.shape[1]), self.group
        sent = [[counts[here][row][to] for row in rows] for to in range(place.count)]
        taken = [[counts[of][row][here] for row in rows] for of in range(place.count)]
        return self._sent(
            lambda x: _exchanged(x, sent, taken, group), lambda g: _exchanged(g, taken, sent, group), message.arrays
        )


# ---- Engines ----------------------------------------------------------------------------------------------------


class _Parts:
    """The base of both engines: the arrays of a call are the local parts."""

    trades: ClassVar[bool] = True

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return the axes in groups of which the first is split."""
        return groups(split, axes)

    def length(self, arrays: tuple[Tensor, ...], axis: int, ndim: int) -> int:
        """Return the length of an axis of the own part."""
        return length(arrays, axis, ndim)

    def count(self, over: Names) -> int:
        """Return how many parts there are."""
        return math.prod(Processes(self.group(name)).count for name in over)

    def part_shape(self, x: Tensor, split: Split) -> tuple[int, ...]:
        """Return the shape of a tensor, which is a part."""
        del split
        return tuple(x.shape)

    def group(self, name: Any) -> Any:
        """Return the group of processes of a name."""
        raise NotImplementedError

    def lengths(self, stage: Stage, like: Tensor) -> tuple[int, ...]:
        """Return the lengths of all parts of the axis that a stage works along."""
        raise NotImplementedError

    def results(self, work: Work) -> tuple[Any, Record]:
        """Return the results for the own part, and what is to be told of them."""
        record = Record()
        if listing():
            return work.plain(*work.arrays), record
        found = recorded(record, functools.partial(self._stages, work, record))(*work.arrays)
        names = {name for stage in work.stages for name in stage.over}
        record.tell(work.primitive, self.count(tuple(names)))
        return found, record

    def _stages(self, work: Work, record: Record, *parts: Tensor) -> Any:
        found: Any = parts
        for stage in work.stages:
            parts = found if isinstance(found, tuple) else (found,)
            if not stage.over:
                result, told = run(stage.steps, _ALONE, (stage.length,), parts)
            else:
                group = self.group(stage.over[0])
                result, told = _staged(stage, group, self.lengths(stage, parts[0]), parts)
                record.steps.extend(told)
            found = (*parts, result) if stage.appended else result
        return found


@dataclasses.dataclass(frozen=True)
class _Alone:
    """One device, which has all."""

    rank: int = 0
    count: int = 1

    def gather(self, message: Gather) -> tuple[Tensor, ...]:
        """Return the own tensors."""
        return tuple(x[None] for x in message.arrays)

    def shift(self, message: Shift) -> tuple[Tensor, ...]:
        """Return the own tensors."""
        return message.arrays

    def trade(self, message: Trade) -> tuple[Tensor, ...]:
        """Return the own tensors."""
        return message.arrays

    def exchange(self, message: Exchange, place: Place) -> tuple[Tensor, ...]:
        """Return the own tensors."""
        del place
        return message.arrays


_ALONE = _Alone()


def _staged(stage: Stage, group: Any, lengths: tuple[int, ...], parts: tuple[Tensor, ...]) -> tuple[Any, Any]:
    """Return the result of a stage, and the collective operations that took place."""
    told: list[Any] = []

    def driven(steps: Any, quick: Any = ()) -> Callable[..., Any]:
        def compute(*parts: Tensor) -> Any:
            processes = Processes(group)
            found, told[:] = run_quick(steps, quick, processes, lengths, parts=parts)
            return processes.tied(found)

        return compute

    if stage.linear is None or not any(x.requires_grad for x in parts):
        return driven(stage.steps, stage.quick)(*parts), told
    multiply, transposed = stage.linear
    return _Solved.apply(driven(stage.steps, stage.quick), driven(transposed), driven(multiply), *parts), told


@dataclasses.dataclass(frozen=True)
class Group(_Parts):
    """The engine for plain tensors, which are the parts of the processes of a group."""

    process_group: Any

    @staticmethod
    def of(group: Any) -> Group:
        """Return the engine of a group; TypeError if it is none."""
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"axis_name must be a group of processes of torch.distributed for tensors, got {type(group).__name__}"
            )
        return Group(group)

    def group(self, name: Any) -> Any:
        """Return the group."""
        return name

    def split(self, name: str, x: Tensor) -> Split:
        """Return no axis: only the caller's `axis` says how x is split."""
        del name
        whole: Split = ((),) * x.ndim
        return whole

    def working(self, found: Names) -> Names:
        """Return the group that the caller named."""
        del found
        return (self.process_group,)

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return all axes as one group, the first of which is split."""
        del split
        return [((self.process_group,), axes)]

    def lengths(self, stage: Stage, like: Tensor) -> tuple[int, ...]:
        """Return the lengths of all parts, which all processes tell each other."""
        own = torch.tensor([stage.length], dtype=torch.int64, device=like.device)
        return tuple(_gathered(own, self.process_group).reshape(-1).tolist())

    def compute(self, work: Work) -> Any:
        """Return the results for the own part."""
        return self.results(work)[0]


@dataclasses.dataclass(frozen=True)
class Distributed(_Parts):
    """The engine for DTensors, of which a call is given the local tensors.

    ``splits`` are those of the tensors by their id, and ``whole`` the lengths of whole axes by what they are split
    over.
    """

    mesh: Any
    splits: dict[int, Split]
    whole: dict[Names, int]

    @staticmethod
    def call(lay_out: Callable[..., Any], asked: Arguments) -> Any:
        """Return the results of a call on DTensors."""
        from torch.distributed.tensor import DTensor

        first = next(x for x in _leaves(asked.flat) if isinstance(x, DTensor))
        engine = Distributed(first.device_mesh, {}, {})
        alive: list[Tensor] = []  # by whose ids the splits are known

        def local(value: Any) -> Any:
            if isinstance(value, DTensor):
                alive.append(engine.part(value))
                return alive[-1]
            if isinstance(value, torch.Tensor) and value.ndim:
                raise TypeError(
                    "arrays must all be DTensors where one is: make one by torch.distributed.tensor.distribute_tensor"
                )
            return value

        return lay_out(engine, asked.mapped(local))

    def part(self, x: Any) -> Tensor:
        """Return the local tensor of a DTensor, and remember how it is split."""
        if x.device_mesh != self.mesh:
            raise ValueError("arrays are on different meshes of devices")
        found: list[Names] = [()] * x.ndim
        for dim, placement in enumerate(x.placements):
            if placement.is_partial():
                raise ValueError("arrays must not be placed as Partial: call redistribute first")
            if not placement.is_shard() or self.mesh.size(dim) == 1:
                continue
            if found[placement.dim]:
                raise ValueError("an axis must be split over one dimension of the mesh: flatten the mesh first")
            found[placement.dim] = (dim,)
            self.whole[(dim,)] = int(x.shape[placement.dim])
        local = x.to_local()
        self.splits[id(local)] = tuple(found)
        return local

    def group(self, name: Any) -> Any:
        """Return the group of a dimension of the mesh."""
        return self.mesh.get_group(name)

    def split(self, name: str, x: Tensor) -> Split:
        """Return how a tensor is split."""
        found = self.splits.get(id(x))
        if found is None:
            if x.ndim:
                raise TypeError(f"{name} must have the dtype of the other arrays where they are DTensors")
            return ()
        return found

    def working(self, found: Names) -> Names:
        """Return the split that the arrays have."""
        return found

    def lengths(self, stage: Stage, like: Tensor) -> tuple[int, ...]:
        """Return the lengths of all parts: as DTensor cuts an axis, all but the last that has elements are equal."""
        del like
        n, count = self.whole[stage.over], self.count(stage.over)
        each = -(-n // count)
        return tuple(max(min(each, n - at * each), 0) for at in range(count))

    def compute(self, work: Work) -> Any:
        """Return the results as DTensors."""
        found, _ = self.results(work)
        outputs = work.outputs
        if isinstance(outputs, list):
            return [self._whole(x, split, work) for x, split in zip(found, outputs, strict=True)]
        return _mapped(lambda x: self._whole(x, outputs, work), found)

    def _whole(self, x: Tensor, split: Split, work: Work) -> Any:
        from torch.distributed.tensor import DTensor, Replicate, Shard

        placements: list[Any] = [Replicate() for _ in range(self.mesh.ndim)]
        shape = list(x.shape)
        for axis, names in enumerate(split):
            for name in names:
                placements[name] = Shard(axis)
                shape[axis] = self.whole[names]
        over = {name for stage in work.stages for name in stage.over if placements[name].is_replicate()}
        if over and x.requires_grad:
            x = _Shared.apply(x, self.count(tuple(over)))
        stride = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        return DTensor.from_local(
            x, self.mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
        )


def _leaves(x: Any) -> list[Any]:
    return [leaf for one in x for leaf in _leaves(one)] if isinstance(x, tuple) else [x]


def _mapped(function: Callable[[Tensor], Any], found: Any) -> Any:
    """Return an element with a function applied to each of its tensors."""
    if isinstance(found, torch.Tensor):
        return function(found)
    if isinstance(found, dict):
        return {key: _mapped(function, one) for key, one in found.items()}
    parts = [_mapped(function, one) for one in found]
    return type(found)(*parts) if hasattr(found, "_fields") else type(found)(parts)

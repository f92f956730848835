"""Tensors of PyTorch that are split over the processes of a group: collective operations of `torch.distributed`."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from parprims._devices.communicator import Exchange, Gather, Place, Reduce, Shift, Trade, run, run_quick
from parprims._devices.work import Names, Record, Split, Stage, Work, groups, length, recorded
from parprims._dispatch.primitive import Arguments
from parprims._dispatch.watch import listing

Tensor = Any


# ---- Collective operations, with their derivatives --------------------------------------------------------------


def _bytes(x: Tensor) -> Tensor:
    """Return the memory of a tensor as a 1-d tensor of bytes, because not every backend moves every dtype."""
    x = x.contiguous()
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)  # view refuses some strides of one element


def _moved(x: Tensor, counts_sent: list[int], counts_received: list[int], group: Any) -> Tensor:
    """Exchange parts of a 1-d tensor among all processes, given the number of elements to and from each."""
    size = x.element_size()
    received = torch.empty(sum(counts_received), dtype=x.dtype, device=x.device)
    dist.all_to_all_single(
        received.view(torch.uint8),
        _bytes(x),
        [n * size for n in counts_received],
        [n * size for n in counts_sent],
        group=group,
    )
    return received


def _gathered(x: Tensor, group: Any) -> Tensor:
    count = dist.get_world_size(group)
    gathered = torch.empty((count, *x.shape), dtype=x.dtype, device=x.device)
    rows = list(gathered.reshape(-1).view(torch.uint8).reshape(count, -1).unbind(0))
    dist.all_gather(rows, _bytes(x), group=group)
    return gathered


def _traded(x: Tensor, group: Any) -> Tensor:
    count, size = dist.get_world_size(group), math.prod(x.shape[1:])
    return _moved(x.reshape(-1), [size] * count, [size] * count, group).reshape(x.shape)


def _shifted(x: Tensor, by: int, group: Any) -> Tensor:
    count, rank = dist.get_world_size(group), dist.get_rank(group)
    sent, received = [0] * count, [0] * count
    sent[(rank - by) % count] = received[(rank + by) % count] = x.numel()
    return _moved(x.reshape(-1), sent, received, group).reshape(x.shape)


def _exchanged(x: Tensor, counts_sent: list[list[int]], counts_received: list[list[int]], group: Any) -> Tensor:
    """Return the parts of all processes. Counts are the numbers of elements by process and row."""
    rows = x.shape[0]
    if rows != 1:  # the pieces for one process are adjacent in memory
        pieces = [torch.split(row, [one[index] for one in counts_sent]) for index, row in enumerate(x.unbind(0))]
        x = (
            torch.cat([pieces[index][to] for to in range(len(counts_sent)) for index in range(rows)])
            if rows
            else x.reshape(-1)
        )
    received = _moved(x.reshape(-1), [sum(one) for one in counts_sent], [sum(one) for one in counts_received], group)
    if rows == 1:
        return received.reshape(1, -1)
    width = sum(one[0] for one in counts_received) if rows else 0
    pieces = [torch.split(received, [n for one in counts_received for n in one])]
    ordered = [pieces[0][of * rows + index] for index in range(rows) for of in range(len(counts_received))]
    return torch.cat(ordered).reshape(rows, width) if ordered else received.reshape(0, width)


class _Message(torch.autograd.Function):  # type: ignore[misc]
    """A message, and the message that sends its derivative back.

    All tensors of a message belong to one node of the graph, so that all processes send derivatives back in one order.
    The derivatives that processes send back for one tensor are added.
    """

    @staticmethod
    def forward(ctx: Any, send: Any, send_back: Any, *xs: Tensor) -> Any:
        ctx.back = send_back
        ctx.moves = [x.is_floating_point() or x.is_complex() for x in xs]
        results = tuple(send(x) for x in xs)
        ctx.mark_non_differentiable(*(x for x, moves in zip(results, ctx.moves, strict=True) if not moves))
        return results

    @staticmethod
    def backward(ctx: Any, *gs: Tensor) -> Any:
        return None, None, *(ctx.back(g) if moves else None for g, moves in zip(gs, ctx.moves, strict=True))


class _Tied(torch.autograd.Function):  # type: ignore[misc]
    """A result that may not depend on all replies to messages. Every reply still gets a derivative, of zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *replies: Tensor) -> Tensor:
        ctx.replies = [(one.shape, one.dtype, one.device) for one in replies]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g, *(torch.zeros(shape, dtype=dtype, device=on) for shape, dtype, on in ctx.replies)


class _Shared(torch.autograd.Function):  # type: ignore[misc]
    """A result that all processes have: each sends back its share of the derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> Tensor:
        ctx.count = count
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g / ctx.count, None


class _Solved(torch.autograd.Function):  # type: ignore[misc]
    """The solution of linear equations. The last tensor is the right-hand side."""

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
            coefficients = [one.detach().requires_grad_() for one in parts[:-1]]
            product = ctx.multiply(*coefficients, x)
            by_coefficients = torch.autograd.grad(product, coefficients, -by_rhs, allow_unused=True)
        by_rhs = by_rhs.sum_to_size(parts[-1].shape)
        return None, None, None, *by_coefficients, by_rhs


class Processes:
    """The processes of a group."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.replies: list[Tensor] = []

    @property
    def rank(self) -> int:
        """The index of this process."""
        return int(dist.get_rank(self.group))

    @property
    def count(self) -> int:
        """The number of processes."""
        return int(dist.get_world_size(self.group))

    def _sent(self, send: Any, send_back: Any, arrays: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        results: tuple[Tensor, ...] = _Message.apply(send, send_back, *arrays)
        self.replies.extend(x for x in results if x.requires_grad)
        return results

    def tied(self, result: Any) -> Any:
        """Return results whose derivatives make every process send the same messages."""
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

    def reduce(self, message: Reduce) -> tuple[Tensor, ...]:
        """Return the sums of the tensors of all processes."""
        sums = tuple(x.contiguous() for x in message.arrays)  # which nobody else reads
        for one in sums:
            dist.all_reduce(one, group=self.group)
        return sums

    def shift(self, message: Shift) -> tuple[Tensor, ...]:
        """Return the tensors of the process ``by`` places further."""
        group, by = self.group, message.by
        return self._sent(lambda x: _shifted(x, by, group), lambda g: _shifted(g, -by, group), message.arrays)

    def trade(self, message: Trade) -> tuple[Tensor, ...]:
        """Return the blocks that all processes send to this one."""
        group = self.group
        return self._sent(lambda x: _traded(x, group), lambda g: _traded(g, group), message.arrays)

    def exchange(self, message: Exchange, place: Place) -> tuple[Tensor, ...]:
        """Return the pieces that all processes send to this one."""
        del place
        group = self.group
        counts_sent = torch.diff(message.leaving, dim=-1).T.tolist()  # by process and row
        counts_received = torch.diff(message.arriving, dim=-1)[..., 0].tolist()
        return self._sent(
            lambda x: _exchanged(x, counts_sent, counts_received, group),
            lambda g: _exchanged(g, counts_received, counts_sent, group),
            message.arrays,
        )


# ---- Engines ----------------------------------------------------------------------------------------------------


class _Parts:
    """The base of both engines. The arrays of a call are local parts."""

    trades: ClassVar[bool] = True
    moves: ClassVar[bool] = False

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return the axes in groups. Only the first axis of a group is split."""
        return groups(split, axes)

    def length(self, arrays: tuple[Tensor, ...], axis: int, ndim: int) -> int:
        """Return the length of an axis of the local part."""
        return length(arrays, axis, ndim)

    def count(self, over: Names) -> int:
        """Return the number of parts."""
        return math.prod(Processes(self.group(name)).count for name in over)

    def part_shape(self, x: Tensor, split: Split) -> tuple[int, ...]:
        """Return the shape of a tensor, which is a part."""
        del split
        return tuple(x.shape)

    def group(self, name: Any) -> Any:
        """Return the group of processes for a name."""
        raise NotImplementedError

    def lengths(self, stage: Stage, like: Tensor) -> tuple[int, ...]:
        """Return the lengths of all parts along the axis of a stage."""
        raise NotImplementedError

    def results(self, work: Work) -> tuple[Any, Record]:
        """Return the results for the local part, and the entry of `explain`."""
        record = Record()
        if listing():
            return work.plain(*work.arrays), record
        found = recorded(record, functools.partial(self._stages, work, record))(*work.arrays)
        names = {name for stage in work.stages for name in stage.over}
        record.tell(work, self.count(tuple(names)))
        return found, record

    def _stages(self, work: Work, record: Record, *parts: Tensor) -> Any:
        results: Any = parts
        for stage in work.stages:
            parts = results if isinstance(results, tuple) else (results,)
            if not stage.over:
                result, collectives = run(stage.steps, _ALONE, (stage.length,), parts)
            else:
                group = self.group(stage.over[0])
                result, collectives = _staged(stage, group, self.lengths(stage, parts[0]), parts)
                record.steps.extend(collectives)
            results = (*parts, result) if stage.appended else result
        return results


@dataclasses.dataclass(frozen=True)
class _Alone:
    """A single device."""

    rank: int = 0
    count: int = 1

    def gather(self, message: Gather) -> tuple[Tensor, ...]:
        """Return the local tensors."""
        return tuple(x[None] for x in message.arrays)

    def reduce(self, message: Reduce) -> tuple[Tensor, ...]:
        """Return the local tensors."""
        return message.arrays

    def shift(self, message: Shift) -> tuple[Tensor, ...]:
        """Return the local tensors."""
        return message.arrays

    def trade(self, message: Trade) -> tuple[Tensor, ...]:
        """Return the local tensors."""
        return message.arrays

    def exchange(self, message: Exchange, place: Place) -> tuple[Tensor, ...]:
        """Return the local tensors."""
        del place
        return message.arrays


_ALONE = _Alone()


def _staged(stage: Stage, group: Any, lengths: tuple[int, ...], parts: tuple[Tensor, ...]) -> tuple[Any, Any]:
    """Return the result of a stage, and its collective operations."""
    collectives: list[Any] = []

    def driven(steps: Any, quick: Any = ()) -> Callable[..., Any]:
        def compute(*parts: Tensor) -> Any:
            processes = Processes(group)
            results, collectives[:] = run_quick(steps, quick, processes, lengths, parts=parts)
            return processes.tied(results)

        return compute

    if stage.linear is None or not any(x.requires_grad for x in parts):
        return driven(stage.steps, stage.quick)(*parts), collectives
    multiply, transposed = stage.linear
    return _Solved.apply(driven(stage.steps, stage.quick), driven(transposed), driven(multiply), *parts), collectives


@dataclasses.dataclass(frozen=True)
class Group(_Parts):
    """The engine for plain tensors: each process of a group has its part."""

    process_group: Any

    @staticmethod
    def of(group: Any) -> Group:
        """Return the engine of a group; TypeError if the argument is no group."""
        if not isinstance(group, dist.ProcessGroup):
            raise TypeError(
                f"axis_name must be a group of processes of torch.distributed for tensors, got {type(group).__name__}"
            )
        return Group(group)

    def group(self, name: Any) -> Any:
        """Return the group."""
        return name

    def split(self, name: str, x: Tensor) -> Split:
        """Return a split along no axis: only the caller's ``axis`` says which axis is split."""
        del name
        whole: Split = ((),) * x.ndim
        return whole

    def working(self, names: Names) -> Names:
        """Return the group that the caller named."""
        del names
        return (self.process_group,)

    def groups(self, split: Split, axes: tuple[int, ...]) -> list[tuple[Names, tuple[int, ...]]]:
        """Return all axes as one group, whose first axis is split."""
        del split
        return [((self.process_group,), axes)]

    def lengths(self, stage: Stage, like: Tensor) -> tuple[int, ...]:
        """Return the lengths of all parts. The processes exchange them."""
        own = torch.tensor([stage.length], dtype=torch.int64, device=like.device)
        return tuple(_gathered(own, self.process_group).reshape(-1).tolist())

    def compute(self, work: Work) -> Any:
        """Return the results for the local part."""
        return self.results(work)[0]


@dataclasses.dataclass(frozen=True)
class Distributed(_Parts):
    """The engine for DTensors. A call receives their local tensors.

    ``splits`` has the split of each local tensor by its id; ``whole`` has the lengths of whole axes by their mesh
    dimensions.
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
        alive: list[Tensor] = []  # keeps the tensors, so that no id is used twice

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
        split: list[Names] = [()] * x.ndim
        for dim, placement in enumerate(x.placements):
            if placement.is_partial():
                raise ValueError("arrays must not be placed as Partial: call redistribute first")
            if not placement.is_shard() or self.mesh.size(dim) == 1:
                continue
            if split[placement.dim]:
                raise ValueError("an axis must be split over one dimension of the mesh: flatten the mesh first")
            split[placement.dim] = (dim,)
            self.whole[(dim,)] = int(x.shape[placement.dim])
        local = x.to_local()
        self.splits[id(local)] = tuple(split)
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

    def working(self, names: Names) -> Names:
        """Return the split that the arrays have; ValueError if it has several dimensions of the mesh."""
        if len(names) > 1:
            raise ValueError(
                "x must be split over one dimension of the mesh where all of its elements are counted: redistribute "
                "it, or flatten the mesh"
            )
        return names

    def length(self, arrays: tuple[Tensor, ...], axis: int, ndim: int) -> int:
        """Return the length of an axis of the whole DTensors; of the part for tensors made of their parts."""
        splits = [(x, self.splits.get(id(x))) for x in arrays if x.ndim >= ndim - axis]
        own = [split[axis - ndim + x.ndim] for x, split in splits if split is not None]
        return next((self.whole[names] for names in own if names), length(arrays, axis, ndim))

    def lengths(self, stage: Stage, like: Tensor) -> tuple[int, ...]:
        """Return the lengths of all parts, as DTensor cuts an axis: equal, up to the last part that has elements."""
        del like
        n, count = self.whole[stage.over], self.count(stage.over)
        each = -(-n // count)
        return tuple(max(min(each, n - at * each), 0) for at in range(count))

    def compute(self, work: Work) -> Any:
        """Return the results as DTensors."""
        results, _ = self.results(work)
        outputs = work.outputs
        if isinstance(outputs, list):
            return [self._whole(x, split, work) for x, split in zip(results, outputs, strict=True)]
        return _mapped(lambda x: self._whole(x, outputs, work), results)

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


def _mapped(function: Callable[[Tensor], Any], result: Any) -> Any:
    """Return a result with a function applied to each of its tensors."""
    if isinstance(result, torch.Tensor):
        return function(result)
    if isinstance(result, dict):
        return {key: _mapped(function, one) for key, one in result.items()}
    parts = [_mapped(function, one) for one in result]
    return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)

"""Reductions by ids of few segments by kernels for GPUs, in the order of elements and without a sort."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, dtype_name, mode
from parprims._core.layout import access
from parprims._operators.languages import C_TYPES
from parprims._operators.operator import Operator, capturing
from parprims._operators.tracing import state_size
from parprims._primitives.scan.call import working_dtypes
from parprims._primitives.scan.source import Specialisation, specialisation, specialised, without_arrays
from parprims._primitives.segments.call import Segmented
from parprims._primitives.segments.cuda import as_scan, on_cast

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernels divide their work on devices of one compute capability.

    All fields determine how elements are grouped, so the bits of results depend on them, and on the number of
    multiprocessors in the entry, not of the device.
    """

    warps: int
    """The most warps of a block."""
    fewest: tuple[tuple[int, int], ...]
    """The fewest warps of a block with tables that must fit, by the most elements; otherwise a sort is faster."""
    resident: tuple[tuple[int, int], ...]
    """The most blocks of a multiprocessor, limited by registers, by the most bytes of a state."""
    shared_bytes: int
    """The most shared memory of a block, and of a multiprocessor, for tables."""
    each: int
    """The fewest elements of a warp, where there are several blocks."""
    flushed: int
    """The most states in the tables of all blocks, by the number of elements."""
    stored: int
    """The most states in the tables of a line's blocks that the last block combines."""

    limited = ("shared_bytes",)


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` returns the entry of other devices."""

# ---- Plan -------------------------------------------------------------------------------------------------------

_STEPS, _WIDTH, _THREADS = 4, 32, 256
"""Elements that a lane loads at once; segments and threads of a block that combines tables."""


@dataclasses.dataclass(frozen=True)
class _Work:
    """The geometry of a reduction.

    ``steps`` are the strides of elements, ids and initial elements from line to line; ``strides`` are the strides of
    elements and ids along a line. If ``batched``, the result has an axis of lines even for one line.
    """

    special: Specialisation
    ids: str
    lines: int
    n: int
    segments: int
    steps: tuple[int, ...]
    strides: tuple[int, int]
    batched: bool = False


def _slot_bytes(states: tuple[str, ...]) -> int:
    """Return the bytes of an optional state."""
    return state_size((*states, "bool"))


def make_plan(work: _Work, tuning: Tuning) -> _cuda.Plan:
    """Return the launches of a reduction."""
    special, lines, n, segments = work.special, work.lines, work.n, work.segments
    slot, warps = _slot_bytes(special.states), tuning.warps
    while warps > 1 and warps * segments * slot > tuning.shared_bytes:
        warps //= 2
    shared_bytes = warps * slot * max(segments, 32)
    most_blocks = next(count for most_bytes, count in tuning.resident if slot <= most_bytes)
    resident = max(1, min(most_blocks, tuning.shared_bytes // (shared_bytes + 1024)))
    blocks = min(resident * tuning.multiprocessors // lines, n // (warps * tuning.each), tuning.flushed * n // segments)
    blocks = max(1, blocks)
    each = -(-n // (blocks * warps * 32)) * 32
    blocks = -(-n // (each * warps))
    stores = blocks == 1 or blocks * segments <= tuning.stored
    numbers = _cuda.Numbers()

    def view(memory: str, dtype: str, line: int, along: int) -> _cuda.Struct:
        name = memory[:-1]
        strides = numbers(f"{name}_line_stride", line), 0, numbers(f"{name}_stride", along), 0
        return _cuda.Struct(_cuda.Pointer(memory, dtype), *strides)

    (x,), (y,) = special.inputs, special.outputs
    reads = _cuda.Struct(view("in0", f"const {C_TYPES[x]}", work.steps[0], work.strides[0]), type="Inputs")
    writes = _cuda.Struct(view("out0", C_TYPES[y], segments, 1), type="Outputs")
    views_of_starts = [
        _cuda.Struct(_cuda.Pointer("in2", f"const {C_TYPES[name]}"), numbers("start_stride", work.steps[2]), 0, 0, 0)
        for name in special.starts
    ]
    starts = _cuda.Struct(*views_of_starts, type="Starts")
    ways = [access(work.strides[0], 0, (), vector=1, itemsize=special.itemsizes[0], backward=False), "ASCENDING"]
    source = special.source("_primitives/segments/tables/segment_tables.cu", ways, stages_outputs=False)
    partials, count = _cuda.Pointer("scratch", "unsigned"), numbers("segments", segments)
    joins = bool(special.starts)
    many = numbers("blocks", blocks)
    launches = [
        _cuda.Launch(
            source,
            "tables::reduce_in_tables",
            (warps, _STEPS, stores, joins, slot, "Scan"),
            (
                reads,
                writes,
                starts,
                _cuda.Pointer("in1", f"const {C_TYPES[work.ids]}"),
                _cuda.Pointer("zeroed", "unsigned"),
                partials,
                numbers("n", n),
                count,
                numbers("ids_line_stride", work.steps[1]),
                numbers("ids_stride", work.strides[1]),
                numbers("each", each),
                many,
            ),
            lines * blocks,
            warps * 32,
            shared_bytes=shared_bytes,
            resident_blocks=most_blocks,
        )
    ]
    if not stores:
        launches.append(
            _cuda.Launch(
                source,
                "tables::combine_tables",
                (_THREADS, _WIDTH, joins, "Scan"),
                (writes, starts, partials, count, many),
                lines * -(-segments // _WIDTH),
                _THREADS,
            )
        )
    several = blocks > 1
    return _cuda.Plan(
        tuple(launches),
        2 + joins,
        (((lines, segments) if work.batched else (segments,), y),),
        numbers.all(),
        zeroed_bytes=4 * lines * (several and stores),
        scratch_bytes=-(-slot // 4) * 4 * lines * blocks * segments * several,
        captured=special.captured,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def serves(xp: Namespace, c: Segmented) -> bool:
    """Return whether tables compute a call: single elements, ids that are not sorted, and few segments."""
    if c.arrays[0].ndim != 1 or c.in_order:
        return False
    tuning = _cuda.tuned_for(TUNING, xp, c.arrays[0])
    states = tuple(map(dtype_name, working_dtypes(xp, c.op, c.dtypes)))
    n = c.arrays[0].shape[0]
    warps = next(count for most, count in tuning.fewest if n <= most)
    return bool(warps * c.segments * _slot_bytes(states) <= tuning.shared_bytes)


def prepare(xp: Namespace, c: Segmented, array: Callable[[Namespace, Segmented], Any]) -> Callable[..., Array]:
    """Return a function of the arrays that launches the kernels; ``array`` computes the call by operations."""
    return on_cast(xp, c, lambda xp, c: _prepared(xp, c, array))


def _prepared(xp: Namespace, c: Segmented, array: Callable[[Namespace, Segmented], Any]) -> _cuda.Run:
    special = specialised(xp, as_scan(xp, c))
    kind = special.like or special
    arrays, c = c.arrays, c.on(*(None,) * len(c.arrays))  # JAX keeps the functions below

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        return (array(xp, c.on(*arrays)),)

    def launched(work: _Work, x: Array, in_program: Callable[[], tuple[_cuda.Run, _cuda.Run]]) -> _cuda.Run:
        key = "segments by tables", mode(xp), work
        plan = functools.partial(make_plan, work, _cuda.tuned_for(TUNING, xp, x))
        return _cuda.ready(xp, x, key, plan=plan, in_program=in_program, captured=special.captured)

    def batched(*arrays: Array) -> tuple[Array, ...]:
        """Compute the rows of a batch as lines."""
        import jax

        x, ids = arrays[:2]
        lines = max(x.shape[0] for x in arrays)
        steps = [0 if x.shape[0] == 1 else math.prod(x.shape[1:]) for x in arrays]
        work = _Work(
            special=kind,
            ids=dtype_name(ids.dtype),
            lines=lines,
            n=x.shape[1],
            segments=c.segments,
            steps=tuple(steps),
            strides=(1, 1),
            batched=True,
        )

        def mapped(*arrays: Array) -> tuple[Array, ...]:
            broadcast = [xp.broadcast_to(x, (lines, *x.shape[1:])) for x in arrays]
            result: tuple[Array, ...] = jax.vmap(otherwise)(*broadcast)
            return result

        return launched(work, x, lambda: (mapped, _cuda.row_by_row(mapped)))(*arrays)

    def find(arrays: tuple[Array, ...]) -> _cuda.Run:
        x, ids = arrays[:2]
        strides = _cuda.layout(xp, x)[0][0], _cuda.layout(xp, ids)[0][0]
        work = _Work(
            special=kind,
            ids=dtype_name(ids.dtype),
            lines=1,
            n=x.shape[0],
            segments=c.segments,
            steps=(0,) * len(arrays),
            strides=strides,
        )
        return launched(work, x, lambda: (otherwise, batched))

    return _cuda.on_readable(xp, arrays, find, otherwise)


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of a call for every kind of kernel."""
    few, several, many = (1 << 28, 100), (1 << 20, 1000), (1000, 100)
    for dtype in C_TYPES:
        yield _case("add", dtype, several)
    for size in (few, many, (1 << 21, 3500)):
        yield _case("add", "float32", size)
        yield _case("logaddexp", "float64", size)
    for ids in ("int8", "int64", "uint64"):
        yield _case("add", "float32", several, ids=ids)
    yield _case("maximum", "float32", several, start=True)
    yield _case("maximum", "float32", few, start=True)
    yield _case("multiply", "complex64", few, strided=True)
    for size in (few, several, many):
        yield _case(capturing(0.5), "float32", size)


def _case(
    op: str | Operator,
    dtype: str,
    size: tuple[int, int],
    *,
    ids: str = "int32",
    start: bool = False,
    strided: bool = False,
) -> tuple[str, _cuda.Plan]:
    from array_api_compat import numpy as xp

    n, segments = size
    call = without_arrays(op, (dtype,), (n,), 0, begins=not start)
    special = specialisation(xp, call, (dtype,), (dtype,) * start)
    work = _Work(
        special=special,
        ids=ids,
        lines=1,
        n=n,
        segments=segments,
        steps=(0, 0, 0),
        strides=(2 if strided else 1, 1),
    )
    plan = make_plan(work, TUNING[90])
    name = op if isinstance(op, str) else op.name
    return f"segments by tables {name} {dtype} {ids}{' start' * start}{' strided' * strided}", plan

"""Reductions and scans of segments by CUDA kernels: the division of work, and the launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, dtype_bits, dtype_kind, dtype_name
from parprims._core.layout import row_major
from parprims._cuda.look_back import look_back_bytes
from parprims._operators.languages import C_TYPES
from parprims._operators.operator import BUILT_IN, Operator, capturing
from parprims._operators.tracing import Untraceable, state_size
from parprims._primitives.recurrence.call import Recurrence
from parprims._primitives.scan import tiling as scan_tiling
from parprims._primitives.scan.call import Scan, working_dtypes
from parprims._primitives.scan.grouping import block_elements
from parprims._primitives.scan.source import Specialisation, specialisation, specialised, without_arrays
from parprims._primitives.segments.call import Segmented
from parprims._primitives.segments.tables import rows as segment_rows
from parprims._primitives.segments.work import Work
from parprims._primitives.sort.call import index_dtype

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernel divides its work on devices of one compute capability.

    All fields determine how elements are grouped, so the bits of results depend on them. They depend on the compute
    capability alone: devices of one kind give the same bits, however many multiprocessors they have.
    """

    warps: int
    """Warps of a block."""
    lane_bytes: int
    """The most bytes of shared memory of a lane, for two runs of elements and the states of one run."""
    shared_bytes: int
    """Shared memory of a multiprocessor."""
    resident: tuple[tuple[int, int], ...]
    """The most blocks of a multiprocessor that run together, by the most bytes of a state."""
    runs: int
    """The fewest runs of elements of a warp, where several warps share a line."""

    limited = ("shared_bytes",)

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, on which two blocks must fit on a multiprocessor."""
        lane_bytes = min(self.lane_bytes, device.room() // (32 * self.warps) // 16 * 16)
        return dataclasses.replace(super().fitted(measured, device), lane_bytes=lane_bytes)


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` returns the entry of other devices."""

# ---- Plan -------------------------------------------------------------------------------------------------------


def _most_shared_bytes(tuning: Tuning) -> int:
    """Return the most shared memory of a block that is alone on a multiprocessor."""
    return tuning.shared_bytes - (2 << 10)


def too_wide(tuning: Tuning, special: Specialisation) -> str | None:
    """Return the reason why the elements of a reduction do not fit in the shared memory of a warp, or None."""
    state = state_size(special.states)
    staged = sum(-(-32 * size // 16) * 16 for size in special.itemsizes[: len(special.inputs)])
    if max(2 * (staged + 32 * state) + 128, 32 * (2 * state + 56)) <= _most_shared_bytes(tuning):
        return None
    return f"an element of {len(special.inputs)} arrays does not fit in the shared memory of a warp"


def plan_reduce(work: Work, tuning: Tuning) -> _cuda.Plan | None:
    """Return the launch of a reduction, or None if the layouts have none."""
    special, n, segments = work.special, work.n, work.segments
    inputs = len(special.inputs)
    result = (*work.shape[: work.axis], segments, *work.shape[work.axis + 1 :])
    merged = work.lines(result)
    if merged is None:
        return None
    lines = merged.high * merged.low

    def accesses_of(vector: int) -> tuple[str, ...]:
        reads = [work.access(merged, index, n, vector) for index in range(inputs)]
        return (
            *reads,
            *["ASCENDING" if merged.along[index] == 1 else "STRIDED" for index in range(inputs, work.arrays)],
        )

    vector = max(1, 16 // max(special.itemsizes[:inputs]))
    accesses = accesses_of(vector)
    if "STRIDED" in accesses[:inputs]:  # adjacent lanes should load adjacent elements
        vector = 1
        accesses = accesses_of(vector)
    _, sizes = special.places(accesses[:inputs])
    state = state_size(special.states)
    if vector > 1 and 64 * vector * (sum(sizes) + state) > _most_shared_bytes(tuning):
        vector = 1
        accesses = accesses_of(vector)
    # An odd number of vectors for a lane, so that lanes read them without bank conflicts.
    most = min(32 // vector, max(1, (tuning.lane_bytes - 2 * state) // (vector * (2 * sum(sizes) + state))))
    rounds = most - (most % 2 == 0)
    each = rounds * vector
    staged = sum(-(-32 * each * size // 16) * 16 for size in sizes) or 16
    run_bytes = 2 * staged + sum(-(-32 * states * state // 16) * 16 for states in (each | 1, 1)) + 128
    items = n + segments + 1
    part_bytes = -(-(2 * state + 48) // 8) * 8
    warps = tuning.warps
    while warps > 1 and warps * max(run_bytes, 32 * part_bytes) > _most_shared_bytes(tuning):
        warps //= 2  # elements of very many arrays
    wide = warps * max(run_bytes, 32 * part_bytes)
    resident = next(blocks for most_bytes, blocks in tuning.resident if state <= most_bytes)
    resident = max(1, min(resident, tuning.shared_bytes // (wide + 1024)))
    most_blocks = resident * tuning.multiprocessors  # all blocks run together, with equal shares
    blocks = max(1, min(most_blocks // lines, -(-items // (warps * tuning.runs * 32 * each))))
    alone = blocks == 1 and (items <= tuning.runs * 32 * each or lines * warps >= most_blocks)
    shared = warps * run_bytes if alone else wide
    numbers = _cuda.Numbers()
    lengths = {
        "lines": lines,
        "low": merged.low,
        "n": n,
        "segments": segments,
        "share": -(-items // (blocks * warps)),
        "blocks": blocks,
    }
    launch = _cuda.Launch(
        special.source("_primitives/segments/segments.cu", accesses, stages_outputs=False),
        "reduce_segments",
        (warps, rounds, vector, alone, bool(special.starts), shared, "Scan"),
        (
            *work.parameters(numbers, merged, segments),
            _cuda.Pointer("zeroed", "unsigned"),
            _cuda.Pointer("scratch", "unsigned"),
            *(numbers(name, value) for name, value in lengths.items()),
        ),
        -(-lines // warps) if alone else lines * blocks,
        32 * warps,
        shared_bytes=shared,
        resident_blocks=resident,
    )
    several = blocks > 1
    return work.plan(
        launch, numbers, result, zeroed_bytes=4 * lines * several, scratch_bytes=lines * blocks * part_bytes * several
    )


_RESIDENT = ((12, 0), (24, 3), (1 << 30, 2))
"""The blocks of a scan that must fit on a multiprocessor, by the most bytes of a state; wide states take registers."""


def plan_scan(work: Work, tuning: scan_tiling.Tuning) -> _cuda.Plan | None:
    """Return the launch of a scan, or None if the layouts have none."""
    special, n = work.special, work.n
    inputs = len(special.inputs)
    merged = work.lines(work.shape)
    if merged is None:
        return None
    lines = merged.high * merged.low

    def accesses_of(vector: int) -> tuple[str, ...]:
        return tuple([work.access(merged, index, n, vector) for index in range(work.arrays)])

    vector = max(1, 16 // max(special.itemsizes))
    accesses = accesses_of(vector)
    if "STRIDED" in accesses[inputs:]:
        vector = 1
        accesses = accesses_of(vector)
    _, sizes = special.places(accesses)
    tuning = scan_tiling.for_wide(tuning, special, vector, sizes)
    least = scan_tiling.staged_bytes(tuning.threads, 1, vector, sizes)
    if vector > 1 and not scan_tiling.fits(tuning, special, tuning.threads, least):
        vector = 1
        accesses = accesses_of(vector)
    vectors = -(-n // vector)
    most = scan_tiling.rounds_in(tuning.shared_bytes, vector * sum(sizes))
    block, rounds = tuning.threads, most
    if vectors <= block * most:
        block = max(32, _cuda.power_of_two(-(-vectors // most), up=True))
    elif lines < tuning.chained_lines:
        rounds = max(1, min(most, vectors * lines // (tuning.tiles * block)))
    tiles = -(-vectors // (block * rounds))
    rounds = -(-vectors // (block * tiles))
    tiles = -(-vectors // (block * rounds))
    shared = scan_tiling.staged_bytes(block, rounds, vector, sizes)
    carry = scan_tiling.carry_of(tuning, tiles, lines)
    widest = max(4, *(state_size((name,)) for name in special.states))
    state = -(-(state_size(special.states) + 4) // widest) * widest  # with a flag
    numbers = _cuda.Numbers()
    ahead = scan_tiling.tiles_ahead(tuning, special, carry, block * rounds * vector)
    lengths = {"lines": lines, "low": merged.low, "n": n, "segments": work.segments, "tiles": tiles, "ahead": ahead}
    launch = _cuda.Launch(
        special.source("_primitives/segments/by_offsets/scan_segments.cu", accesses),
        "scan_segments",
        (block, rounds, vector, carry, work.reverse, shared, state, "Scan"),
        (
            *work.parameters(numbers, merged, n),
            _cuda.Pointer("status", "ulonglong2"),
            *(numbers(name, value) for name, value in lengths.items()),
        ),
        lines * tiles,
        block,
        shared_bytes=shared,
        resident_blocks=next(blocks for most_bytes, blocks in _RESIDENT if state <= most_bytes) if block == 256 else 0,
    )
    status = look_back_bytes(lines, tiles, state) if carry != "ALONE" else 0
    return work.plan(launch, numbers, work.shape, status_bytes=status)


_NODE = 2048
"""The elements of a node of a reduction in the canonical grouping, as in reduce_blocks.cu."""
_FEW_SEGMENTS = 4096
"""Up to this number of segments, several warps combine the nodes of each."""


def plan_reduce_in_blocks(work: Work) -> _cuda.Plan | None:
    """Return the launches of a reduction in the canonical grouping, or None if the layouts have none."""
    special, segments = work.special, work.segments
    result = (*work.shape[: work.axis], segments, *work.shape[work.axis + 1 :])
    merged = work.lines(result)
    if merged is None:
        return None
    inputs = len(special.inputs)
    reads = [work.access(merged, index, work.n, 1) for index in range(inputs)]
    accesses = (*reads, *["STRIDED"] * len(special.outputs))
    lines, nodes, warps = merged.high * merged.low, segments + work.n // _NODE, 8
    numbers = _cuda.Numbers()
    lengths = {"lines": lines, "low": merged.low, "n": work.n, "segments": segments, "nodes": nodes}
    parameters = (
        *work.parameters(numbers, merged, segments),
        _cuda.Pointer("scratch", "unsigned"),
        *(numbers(name, value) for name, value in lengths.items()),
    )
    source = special.source("_primitives/segments/by_offsets/reduce_blocks.cu", accesses, stages_outputs=False)
    several = warps if lines * segments <= _FEW_SEGMENTS else 1
    reduce = _cuda.Launch(source, "reduce_blocks", (warps, "Scan"), parameters, -(-lines * nodes // warps), 32 * warps)
    finish = _cuda.Launch(
        source, "finish_segments", (several, bool(special.starts), "Scan"), parameters, lines * segments, 32 * several
    )
    scratch = lines * nodes * state_size(special.states)
    return dataclasses.replace(work.plan(reduce, numbers, result, scratch_bytes=scratch), launches=(reduce, finish))


def plan_scan_in_blocks(work: Work, tuning: scan_tiling.Tuning) -> _cuda.Plan | None:
    """Return the launch of a scan in the canonical grouping, or None if the layouts have none.

    A tile has a block of elements of a segment. Lines have a tile for each segment, and one for each whole block.
    """
    special, merged = work.special, work.lines(work.shape)
    if merged is None:
        return None
    accesses = tuple([work.access(merged, index, work.n, 1) for index in range(work.arrays)])
    block = block_elements(sum(map(dtype_bits, special.states)) // 8)
    threads, shared = scan_tiling.block_threads(special, tuning, special.places(accesses)[1], 1)
    lines, tiles = merged.high * merged.low, work.segments + work.n // block
    numbers = _cuda.Numbers()
    lengths = {"lines": lines, "low": merged.low, "n": work.n, "segments": work.segments, "tiles": tiles}
    launch = _cuda.Launch(
        special.source("_primitives/scan/kernels/scan_blocks.cu", accesses),
        "scan_segment_blocks",
        (block, special.adds, work.reverse, shared, "Scan"),
        (
            *work.parameters(numbers, merged, work.n),
            _cuda.Pointer("status", "ulonglong2"),
            *(numbers(name, value) for name, value in lengths.items()),
        ),
        lines * tiles,
        threads,
        shared_bytes=shared,
    )
    return work.plan(
        launch, numbers, work.shape, status_bytes=look_back_bytes(lines, tiles, state_size(special.states))
    )


# ---- The method -------------------------------------------------------------------------------------------------


def as_scan(xp: Namespace, c: Segmented) -> Scan | Recurrence:
    """Return the scan of one segment. The reduction of a segment is its last result."""
    arrays = (*c.arrays[: c.count], *c.starts)
    shape = tuple(arrays[0].shape)
    if c.operation == "recurrence":
        return Recurrence(arrays=arrays, shape=shape, axis=c.axis, reverse=c.reverse, dtype=c.dtypes[0])
    working = working_dtypes(xp, c.op, c.dtypes)
    begins = (c.exclusive or c.reduces) and not c.starts
    return Scan(
        arrays=arrays,
        shape=shape,
        single=c.single,
        op=c.op,
        operation=c.operation,
        axis=c.axis,
        exclusive=c.exclusive,
        reverse=c.reverse,
        identity=c.op.identity(*map(dtype_name, working)) if begins else None,
        n=shape[c.axis],
        working=working,
        dtypes=c.dtypes,
    )


def is_readable(dtype: Any, to: Any) -> bool:
    """Return whether the kernel casts elements itself: the cast needs no intermediate dtype."""
    if dtype == to:
        return True
    integers = ("bool", "int", "uint")
    return dtype_kind(dtype) in integers and dtype_kind(to) in integers[1:] and dtype_bits(to) >= dtype_bits(dtype)


def on_cast(
    xp: Namespace, c: Segmented, prepared: Callable[[Namespace, Segmented], Callable[..., tuple[Array, ...]]]
) -> Callable[..., Array]:
    """Return a function of the arrays of a call that returns the only result of the runner ``prepared(xp, call)``.

    Elements that the kernel does not cast itself are cast before.
    """
    x, *others = c.arrays
    dtype = c.dtypes[0]
    if is_readable(x.dtype, dtype):
        return _cuda.only(prepared(xp, c))
    run = _cuda.only(prepared(xp, c.on(cast(xp, x, dtype), *others)))
    return lambda x, *others: run(cast(xp, x, dtype), *others)


def _converter(xp: Namespace, c: Segmented) -> Callable[..., tuple[Array, ...]] | None:
    """Return the function that converts the call's arrays to the kernel's, or None if no conversion is needed."""
    count, behind, axis, dtypes, offsets = c.count, c.behind, c.axis, c.dtypes, c.arrays[c.count]
    own = c.own
    readable = [is_readable(x.dtype, to) for x, to in zip(c.arrays[:count], dtypes, strict=True)]
    direct = dtype_name(offsets.dtype) in ("int32", "int64")
    adjacent = _cuda.layout(xp, offsets)[0] == (1,)
    if all(readable) and direct and adjacent and not c.starts:
        return None

    def convert(*arrays: Array) -> tuple[Array, ...]:
        casts = zip(arrays[:count], dtypes, readable, strict=True)
        xs = [x if is_unchanged else cast(xp, x, to) for x, to, is_unchanged in casts]
        offsets = arrays[count] if direct else cast(xp, arrays[count], index_dtype(xp))
        starts = [x if own else xp.expand_dims(x, axis=axis) for x in arrays[behind:]]
        return (*xs, _cuda.contiguous(xp, offsets), *arrays[count + 1 : behind], *starts)

    return convert


def refusal(xp: Namespace, c: Segmented) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    reason = _cuda.refusal(xp, c.arrays)
    if reason is not None:
        return reason
    try:
        special = specialised(xp, as_scan(xp, c))
    except Untraceable as reason:
        return str(reason)
    if c.reduces:
        return too_wide(_cuda.tuned_for(TUNING, xp, c.arrays[0]), special)
    return scan_tiling.too_wide(
        _cuda.tuned_for(scan_tiling.TUNING, xp, c.arrays[0]), special, in_blocks=c.scanned_in_blocks
    )


def prepare(xp: Namespace, c: Segmented, array: Callable[[Namespace, Segmented], Any]) -> Callable[..., Any]:
    """Return a function of the arrays that computes a call by one launch; ``array`` computes it by operations."""
    convert = _converter(xp, c)
    if convert is None:
        run = _prepared(xp, c, array)
        return _cuda.only(run) if c.single else run
    run = _prepared(xp, c.on(*convert(*c.arrays)), array)
    launch = _cuda.only(run) if c.single else run
    return lambda *arrays: launch(*convert(*arrays))


def _prepared(xp: Namespace, c: Segmented, array: Callable[[Namespace, Segmented], Any]) -> _cuda.Run:
    """Return the runner for arrays that the kernel can read: starts have the axis."""
    special = specialised(xp, as_scan(xp, c))
    return _cuda.on_readable(
        xp,
        c.arrays,
        lambda arrays: _runner(xp, special, c.on(*arrays), array),
        _on_copies(xp, special, c, array),
    )


def _runner(
    xp: Namespace, special: Specialisation, c: Segmented, array: Callable[[Namespace, Segmented], Any]
) -> _cuda.Run | None:
    """Return a function that launches the kernel on arrays of these layouts, or None if there is no plan for them."""
    count, behind, axis, offsets = c.count, c.behind, c.axis, c.arrays[c.count]
    others = (*c.arrays[:count], *c.arrays[behind:])
    layouts = tuple([_cuda.layout(xp, x) for x in others])
    shapes = tuple([tuple(x.shape) for x in others])

    def plan() -> _cuda.Plan | None:
        work = Work(
            special=special,
            shape=shapes[0],
            axis=axis,
            segments=c.segments,
            offsets=dtype_name(offsets.dtype),
            shapes=shapes,
            layouts=layouts,
            reverse=c.reverse,
        )
        if c.reduced_in_blocks:
            return plan_reduce_in_blocks(work)
        if c.reduces:
            lines = None if c.ordered else plan_reduce(work, _cuda.tuned_for(TUNING, xp, others[0]))
            rows = _cuda.tuned_for(segment_rows.TUNING, xp, others[0])
            return lines or segment_rows.make_plan(work, rows, ordered=c.ordered)
        tuning = _cuda.tuned_for(scan_tiling.TUNING, xp, others[0])
        return (plan_scan_in_blocks if c.scanned_in_blocks else plan_scan)(work, tuning)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        bare = c.on(*(None,) * len(c.arrays))

        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            starts = [x if bare.own else xp.squeeze(x, axis=axis) for x in arrays[behind:]]
            result = array(xp, bare.on(*arrays[:behind], *starts))
            return result if isinstance(result, tuple) else (result,)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            size = max(x.shape[0] for x in arrays)
            if any(x.shape[0] > 1 for x in arrays[count:behind]):  # each line has its own segments
                return _cuda.row_by_row(otherwise)(*arrays)
            xs = [xp.broadcast_to(x, (size, *x.shape[1:])) for x in arrays[:count]]
            results = tuple([((size, *shape), dtype) for shape, dtype in bare.results])
            more = dataclasses.replace(bare, axis=axis + 1, results=results)
            inputs = (*xs, *(x[0] for x in arrays[count:behind]), *arrays[behind:])
            return _prepared(xp, more.on(*inputs), array)(*inputs)

        return otherwise, batched

    names = c.reduces, c.ordered, c.single, c.operation == "recurrence", dtype_name(offsets.dtype)
    options = axis, c.exclusive, c.reverse, c.segments, c.scanned_in_blocks, c.reduced_in_blocks
    key = ("segments", special.like or special, *names, *options, shapes, layouts)
    return _cuda.ready(xp, others[0], key, plan=plan, in_program=in_program, captured=special.captured)


def _on_copies(
    xp: Namespace, special: Specialisation, c: Segmented, array: Callable[[Namespace, Segmented], Any]
) -> _cuda.Run:
    """Return a runner that copies its arrays so that their lines are contiguous.

    With an order of rows, it copies them so that columns are adjacent.
    """
    count, behind, ndim, axis = c.count, c.behind, len(c.results[0][0]), c.axis
    to = axis if c.ordered else ndim - 1
    last, back = list(range(ndim)), list(range(ndim))
    last.insert(to, last.pop(axis))
    back.insert(axis, back.pop(to))
    results = tuple([(tuple([shape[index] for index in last]), dtype) for shape, dtype in c.results])
    bare = dataclasses.replace(c.on(*(None,) * len(c.arrays)), axis=to, results=results, key=None)

    def run(*arrays: Array) -> tuple[Array, ...]:
        moved = [
            x if count <= number < behind else _cuda.contiguous(xp, xp.permute_dims(_cuda.plain(xp, x), tuple(last)))
            for number, x in enumerate(arrays)
        ]
        launch = _runner(xp, special, bare.on(*moved), array)
        assert launch is not None
        return tuple([_cuda.contiguous(xp, xp.permute_dims(y, tuple(back))) for y in launch(*moved)])

    return run


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------

# Rows of vectors, of single elements and of one vector. Groups of threads share segments, or have separate segments.
_ROWS: tuple[tuple[tuple[int, ...], int, int], ...] = (
    ((1 << 20, 64), 0, 1000),
    ((1 << 20, 3), 0, 100_000),
    ((4096, 300, 4), 1, 20),
)

# Lines of one warp, and lines that blocks share; lines of one tile, and of tiles that are chained or look back.
_REDUCED = (((1 << 16, 300), 1, 20), ((64, 1 << 14), 1, 300), ((1 << 28,), 0, 10_000_000))
_SCANNED = (((1 << 16, 300), 1, 20), ((512, 20_000), 1, 300), ((1 << 28,), 0, 10_000_000))


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of a call for every kind of kernel."""
    return map(_planned, _cases())


@dataclasses.dataclass(frozen=True)
class _Case:
    """A call to compile. ``start`` gives it an initial element."""

    op: str | Operator
    dtypes: tuple[str, ...]
    reduces: bool
    shape: tuple[int, ...]
    axis: int
    segments: int
    _: dataclasses.KW_ONLY
    offsets: str = "int64"
    exclusive: bool = False
    reverse: bool = False
    start: bool = False
    unaligned: bool = False
    ordered: bool = False
    in_blocks: bool = False


def _cases() -> Iterator[_Case]:
    for reduces, layouts in ((True, _REDUCED), (False, _SCANNED)):
        for layout in layouts:
            for dtype in ("int8", "float32", "complex128"):
                yield _Case("add", (dtype,), reduces, *layout)
            yield _Case("add", ("float32",), reduces, *layout, offsets="int32")
            yield _Case("maximum", ("float32",), reduces, *layout, start=True)
            yield _Case(capturing(0.5), ("float32",), reduces, *layout)
            if not reduces:
                yield _Case("add", ("float32",), reduces, *layout, exclusive=True)
                yield _Case("add", ("float32",), reduces, *layout, reverse=True)
                yield _Case("recurrence", ("float32",) * 2, reduces, *layout)
        for dtype in C_TYPES:
            yield _Case("add", (dtype,), reduces, *layouts[-1])
        yield _Case("add", ("float32",), reduces, *layouts[-1], unaligned=True)
        yield _Case("add", ("float32",), reduces, (1,), 0, 1)  # the input is one element
        for op, dtypes in (
            ("maximum", ("float16",)),
            ("logaddexp", ("float32",)),
            ("affine", ("float32",) * 2),
            ("argmax", ("float32", "int64")),
            ("welford", ("float64",) * 3),
        ):
            yield _Case(op, dtypes, reduces, *layouts[-1], start=BUILT_IN[op].identity(*dtypes) is None)
    for rows in _ROWS:
        for ordered in (False, True):
            yield _Case("add", ("float32",), True, *rows, offsets="int32", ordered=ordered)
        yield _Case("maximum", ("float32",), True, *rows, start=True)
        yield _Case(capturing(0.5), ("float32",), True, *rows)
    for dtype in C_TYPES:
        yield _Case("add", (dtype,), True, *_ROWS[0], ordered=dtype == "float16")
    for op, dtypes in (("affine", ("float32",) * 2), ("argmax", ("float32", "int64")), ("welford", ("float64",) * 3)):
        yield _Case(op, dtypes, True, *_ROWS[0])
    for op, dtypes in (("add", ("float32",)), ("recurrence", ("float64",) * 2), ("multiply", ("complex64",))):
        for options in ({}, {"reverse": True, "start": True}, {"exclusive": op != "recurrence", "offsets": "int32"}):
            yield _Case(op, dtypes, False, *_SCANNED[1], **options, in_blocks=True)
    for op, dtypes in (("add", ("float32",)), ("affine", ("float64",) * 2), ("multiply", ("complex64",))):
        for layout in (*_REDUCED[::2], ((1 << 24,), 0, 20)):
            yield _Case(op, dtypes, True, *layout, in_blocks=True)
            yield _Case(op, dtypes, True, *layout, start=True, offsets="int32", in_blocks=True)
    for dtype in ("float16", "float64", "complex64", "complex128", "int32"):
        yield _Case("recurrence", (dtype,) * 2, False, *_SCANNED[-1], reverse=True, start=True)


def _planned(case: _Case) -> tuple[str, _cuda.Plan]:
    from array_api_compat import numpy as xp

    op, dtypes, shape, axis = case.op, case.dtypes, case.shape, case.axis
    starts = dtypes[op == "recurrence" :] * case.start
    begins = (case.reduces or case.exclusive) and not case.start
    call = without_arrays(op, dtypes, shape, axis, begins=begins, exclusive=case.exclusive, reverse=case.reverse)
    shapes = (*[shape] * len(dtypes), *[(*shape[:axis], 1, *shape[axis + 1 :])] * len(starts))
    work = Work(
        special=specialisation(xp, call, dtypes, starts),
        shape=shape,
        axis=axis,
        segments=case.segments,
        offsets=case.offsets,
        shapes=shapes,
        layouts=tuple([(row_major(shape), 4 if case.unaligned else 0) for shape in shapes]),
        reverse=case.reverse,
    )
    scan = plan_scan_in_blocks if case.in_blocks else plan_scan
    if case.reduces:
        plan = plan_reduce_in_blocks(work) if case.in_blocks else plan_reduce(work, TUNING[90])
    else:
        plan = scan(work, scan_tiling.TUNING[90])
    if plan is None:
        plan = segment_rows.make_plan(work, segment_rows.TUNING[90], ordered=case.ordered)
    assert plan is not None
    names = ("exclusive", "reverse", "start", "unaligned", "ordered", "in_blocks")
    options = [name for name in names if getattr(case, name)]
    name = op if isinstance(op, str) else op.name
    return " ".join(("segments", name, ",".join(dtypes), case.offsets, *options)), plan

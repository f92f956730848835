"""Reductions of segments by a CUDA kernel: the division of work, and the launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from parprims import _cuda
from parprims._arrays import Array, Namespace, cast, dtype_bits, dtype_kind, dtype_name
from parprims._layout import Layout, access, broadcast_strides, lines_along, row_major
from parprims._operators import BUILT_IN, Operator
from parprims._scan_array import Scan, result_dtypes, working_dtypes
from parprims._scan_special import Specialisation, specialisation, specialised
from parprims._sorting import index_dtype
from parprims._trace import C_TYPES, Dtype, Untraceable, state_size

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
    """The most bytes of shared memory that a lane has for two runs of elements and for the states of one."""
    shared_bytes: int
    """Shared memory of a multiprocessor."""
    resident: tuple[tuple[int, int], ...]
    """The most blocks of a multiprocessor that run together, by the most bytes of a state."""
    runs: int
    """The fewest runs of elements of a warp, where several warps share a line."""


TUNING = {
    90: Tuning(
        record="",
        multiprocessors=132,
        warps=4,
        lane_bytes=320,
        shared_bytes=228 << 10,
        resident=((8, 6), (1 << 30, 3)),
        runs=4,
    ),
}
"""By compute capability; `_cuda.tuned` tells what other devices have."""

# ---- Plan -------------------------------------------------------------------------------------------------------


def make_plan(
    special: Specialisation,
    tuning: Tuning,
    shape: tuple[int, ...],
    axis: int,
    segments: int,
    offsets: str,
    shapes: Sequence[tuple[int, ...]],
    layouts: Sequence[Layout],
) -> _cuda.Plan | None:
    """Return the launch for inputs, offsets of this dtype, then starts, of which shapes and layouts are given.

    None if lines are adjacent in memory, or arrays cannot be seen as (high, low, n, 1) with one stride each.
    """
    inputs, n = len(special.inputs), shape[axis]
    result = (*shape[:axis], segments, *shape[axis + 1 :])
    arrays = inputs + len(special.outputs)
    strides = [broadcast_strides(steps, one, len(shape)) for one, (steps, _) in zip(shapes, layouts, strict=True)]
    strides[inputs:inputs] = [row_major(result)] * len(special.outputs)
    merged = lines_along(shape, axis, strides)
    if merged is None or merged.inner > 1:
        return None
    lines = merged.high * merged.low
    vector = max(1, 16 // max(special.itemsizes[:inputs]))

    def accessed(at: int) -> str:
        if at >= inputs:
            return "ASCENDING" if merged.along[at] == 1 else "STRIDED"
        step = merged.along[at]
        address = layouts[at][1] - (vector - 1) * special.itemsizes[at] * (step == -1)
        return access(step, address, (merged.upward[at], merged.downward[at]), vector, special.itemsizes[at])

    accesses = tuple(map(accessed, range(arrays)))
    if "STRIDED" in accesses[:inputs]:  # then it is best if adjacent lanes load adjacent elements
        vector = 1
        accesses = tuple(map(accessed, range(arrays)))
    _, sizes = special.places(accesses[:inputs])
    state = state_size(special.states)
    # An odd number of vectors for a lane, so that lanes read them without bank conflicts.
    most = min(32 // vector, max(1, (tuning.lane_bytes - 2 * state) // (vector * (2 * sum(sizes) + state))))
    rounds = most - (most % 2 == 0)
    each = rounds * vector
    staged = sum(-(-32 * each * size // 16) * 16 for size in sizes) or 16
    run_bytes = 2 * staged + sum(-(-32 * states * state // 16) * 16 for states in (each | 1, 1)) + 128
    items = n + segments
    part_bytes = -(-(2 * state + 48) // 8) * 8
    wide = tuning.warps * max(run_bytes, 32 * part_bytes)
    resident = next(blocks for most_bytes, blocks in tuning.resident if state <= most_bytes)
    resident = min(resident, tuning.shared_bytes // (wide + 1024))
    most_blocks = resident * tuning.multiprocessors  # no more than run together, with equal shares
    blocks = max(1, min(most_blocks // lines, -(-items // (tuning.warps * tuning.runs * 32 * each))))
    alone = blocks == 1 and (items <= tuning.runs * 32 * each or lines * tuning.warps >= most_blocks)
    share = -(-items // (blocks * tuning.warps))
    shared = tuning.warps * run_bytes if alone else wide

    numbers = _cuda.Numbers()

    def view(at: int, memory: str, dtype: str) -> _cuda.Struct:
        return _cuda.Struct(
            _cuda.Pointer(memory, dtype),
            numbers("high_stride", merged.upward[at]),
            numbers("low_stride", merged.downward[at]),
            numbers("stride", merged.along[at]),
            numbers("inner_stride", 0),
        )

    reads = [view(at, f"in{at}", f"const {C_TYPES[name]}") for at, name in enumerate(special.inputs)]
    writes = [view(inputs + at, f"out{at}", C_TYPES[name]) for at, name in enumerate(special.outputs)]
    starts = [
        view(arrays + at, f"in{inputs + 1 + at}", f"const {C_TYPES[name]}") for at, name in enumerate(special.starts)
    ]
    lengths = {"lines": lines, "low": merged.low, "n": n, "segments": segments, "share": share, "blocks": blocks}
    launch = _cuda.Launch(
        special.source(accesses, "_ticket.cuh", "_segments.cuh", "_segments.cu"),
        "reduce_segments",
        (tuning.warps, rounds, vector, alone, bool(starts), shared, "Scan"),
        (
            _cuda.Struct(*reads, type="Inputs"),
            _cuda.Struct(*writes, type="Outputs"),
            _cuda.Struct(*starts, type="Starts"),
            _cuda.Pointer(f"in{inputs}", f"const {C_TYPES[offsets]}"),
            _cuda.Pointer("zeroed", "unsigned"),
            _cuda.Pointer("scratch", "unsigned"),
            *(numbers(name, value) for name, value in lengths.items()),
        ),
        -(-lines // tuning.warps) if alone else lines * blocks,
        32 * tuning.warps,
        shared_bytes=shared,
        resident_blocks=resident,
    )
    return _cuda.Plan(
        (launch,),
        inputs + 1 + len(special.starts),
        tuple([(result, name) for name in special.outputs]),
        numbers.all(),
        zeroed_bytes=4 * lines if blocks > 1 else 0,
        scratch_bytes=lines * blocks * part_bytes if blocks > 1 else 0,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def _as_scan(xp: Namespace, c: Any) -> Scan:
    """Return the scan whose last results are those of segments, on the elements and the initial element."""
    working = working_dtypes(xp, c.op, c.dtypes)
    xs = c.arrays[: c.count]
    return Scan(
        arrays=(*xs, *c.starts),
        shape=tuple(xs[0].shape),
        single=c.single,
        op=c.op,
        operation=c.operation,
        axis=c.axis,
        identity=None if c.starts else c.op.identity(*map(dtype_name, working)),
        n=xs[0].shape[c.axis],
        working=working,
        dtypes=c.dtypes,
    )


def _is_readable(dtype: Any, to: Any) -> bool:
    """Return whether the kernel casts elements by itself: where no dtype between matters."""
    if dtype == to:
        return True
    whole = ("bool", "int", "uint")
    return dtype_kind(dtype) in whole and dtype_kind(to) in whole[1:] and dtype_bits(to) >= dtype_bits(dtype)


def _given(xp: Namespace, c: Any) -> Callable[..., tuple[Array, ...]] | None:
    """Return what makes arrays of a call to those that the kernel reads, or None where they are these."""
    count, axis, dtypes, offsets = c.count, c.axis, c.dtypes, c.arrays[c.count]
    kept = [_is_readable(x.dtype, to) for x, to in zip(c.arrays[:count], dtypes, strict=True)]
    direct = dtype_name(offsets.dtype) in ("int32", "int64")
    adjacent = _cuda.layout(xp, offsets)[0] == (1,)
    if all(kept) and direct and adjacent and not c.starts:
        return None

    def made(*arrays: Array) -> tuple[Array, ...]:
        xs = [x if same else cast(xp, x, to) for x, to, same in zip(arrays[:count], dtypes, kept, strict=True)]
        offsets = arrays[count] if direct else cast(xp, arrays[count], index_dtype(xp))
        starts = [xp.expand_dims(one, axis=axis) for one in arrays[count + 1 :]]
        return (*xs, _cuda.contiguous(xp, offsets), *starts)

    return made


def refusal(xp: Namespace, c: Any) -> str | None:
    """Return the sentence why the kernel cannot serve the call, or None."""
    reason = _cuda.refusal(xp, c.arrays)
    if reason is not None:
        return reason
    try:
        specialised(xp, _as_scan(xp, c))
    except Untraceable as reason:
        return str(reason)
    return None


def prepare(xp: Namespace, c: Any, array: Callable[[Namespace, Any], Any]) -> Callable[..., Any]:
    """Return a function of the arrays that reduces by one launch. ``array`` computes the same by operations."""
    made = _given(xp, c)
    run = _prepared(xp, c.on(*(c.arrays if made is None else made(*c.arrays))), array)
    found = _cuda.only(run) if c.single else run
    return found if made is None else lambda *arrays: found(*made(*arrays))


def _prepared(xp: Namespace, c: Any, array: Callable[[Namespace, Any], Any]) -> _cuda.Run:
    """Return the same for arrays as the kernel reads them: starts have length 1 along the axis."""
    special = specialised(xp, _as_scan(xp, c))
    return _cuda.on_readable(
        xp,
        c.arrays,
        lambda arrays: _runner(xp, special, c.on(*arrays), array),
        _on_copies(xp, special, c, array),
    )


def _runner(xp: Namespace, special: Specialisation, c: Any, array: Callable[[Namespace, Any], Any]) -> _cuda.Run | None:
    """Return a function that launches the kernel on arrays of these layouts, or None if there is no plan for them."""
    count, axis, offsets = c.count, c.axis, c.arrays[c.count]
    others = (*c.arrays[:count], *c.arrays[count + 1 :])
    layouts = tuple([_cuda.layout(xp, x) for x in others])
    shapes = tuple([tuple(x.shape) for x in others])

    def plan() -> _cuda.Plan | None:
        tuning = _cuda.tuned_for(TUNING, xp, others[0])
        return make_plan(special, tuning, shapes[0], axis, c.segments, dtype_name(offsets.dtype), shapes, layouts)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        bare = c.on(*(None,) * len(c.arrays))

        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            starts = [xp.squeeze(one, axis=axis) for one in arrays[count + 1 :]]
            found = array(xp, bare.on(*arrays[: count + 1], *starts))
            return found if isinstance(found, tuple) else (found,)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            size = max(x.shape[0] for x in arrays)
            if arrays[count].shape[0] > 1:  # every line has segments of its own
                import jax

                whole = tuple([xp.broadcast_to(x, (size, *x.shape[1:])) for x in arrays])
                return tuple(jax.lax.map(lambda rows: otherwise(*rows), whole))
            xs = [xp.broadcast_to(x, (size, *x.shape[1:])) for x in arrays[:count]]
            results = tuple([((size, *shape), dtype) for shape, dtype in bare.results])
            more = dataclasses.replace(bare, axis=axis + 1, results=results)
            return _prepared(xp, more.on(*xs, arrays[count][0], *arrays[count + 1 :]), array)(
                *xs, arrays[count][0], *arrays[count + 1 :]
            )

        return otherwise, batched

    key = ("reduce by offsets", special, c.single, axis, c.segments, dtype_name(offsets.dtype), shapes, layouts)
    return _cuda.ready(xp, others[0], key, plan, in_program)


def _on_copies(xp: Namespace, special: Specialisation, c: Any, array: Callable[[Namespace, Any], Any]) -> _cuda.Run:
    """Return the same for arrays whose lines do not lie one after another: it copies them so that they do."""
    count, ndim, at = c.count, len(c.results[0][0]), c.axis
    last = (*(one for one in range(ndim) if one != at), at)
    back = (*range(at), ndim - 1, *range(at, ndim - 1))
    results = tuple([(tuple([shape[one] for one in last]), dtype) for shape, dtype in c.results])
    bare = dataclasses.replace(c.on(*(None,) * len(c.arrays)), axis=ndim - 1, results=results, key=None)

    def run(*arrays: Array) -> tuple[Array, ...]:
        moved = [
            x if number == count else _cuda.contiguous(xp, xp.permute_dims(_cuda.plain(xp, x), last))
            for number, x in enumerate(arrays)
        ]
        launch = _runner(xp, special, bare.on(*moved), array)
        assert launch is not None
        return tuple([_cuda.contiguous(xp, xp.permute_dims(y, back)) for y in launch(*moved)])

    return run


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------

# Lines that warps have by themselves, and lines that blocks share.
_LAYOUTS = (((1 << 16, 300), 1, 20), ((64, 1 << 14), 1, 300), ((1 << 28,), 0, 10_000_000))


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of every kind of kernel that calls can ask for."""
    for shape, axis, segments in _LAYOUTS:
        for dtype in ("int8", "float32", "complex128"):
            yield _case("add", (dtype,), shape, axis, segments)
        yield _case("add", ("float32",), shape, axis, segments, offsets="int32")
        yield _case("maximum", ("float32",), shape, axis, segments, start=True)
    shape, axis, segments = _LAYOUTS[-1]
    for dtype in C_TYPES:
        yield _case("add", (dtype,), shape, axis, segments)
    yield _case("add", ("float32",), shape, axis, segments, unaligned=True)
    for op, dtypes in (
        ("maximum", ("float16",)),
        ("logaddexp", ("float32",)),
        ("affine", ("float32",) * 2),
        ("argmax", ("float32", "int64")),
        ("welford", ("float64",) * 3),
    ):
        yield _case(op, dtypes, shape, axis, segments, start=BUILT_IN[op].identity(*dtypes) is None)


def _case(
    op: str,
    dtypes: tuple[str, ...],
    shape: tuple[int, ...],
    axis: int,
    segments: int,
    *,
    offsets: str = "int64",
    start: bool = False,
    unaligned: bool = False,
) -> tuple[str, _cuda.Plan]:
    from array_api_compat import numpy as xp

    operator: Operator = BUILT_IN[op]
    results = result_dtypes(xp, operator, tuple([Dtype(one) for one in dtypes]))
    working = working_dtypes(xp, operator, results)
    call = Scan(
        arrays=(),
        shape=shape,
        single=len(dtypes) == 1,
        op=operator,
        axis=axis,
        identity=None if start else operator.identity(*map(dtype_name, working)),
        n=shape[axis],
        working=working,
        dtypes=results,
    )
    starts = dtypes * start
    shapes = [shape] * len(dtypes) + [(*shape[:axis], 1, *shape[axis + 1 :])] * len(starts)
    layouts = [(row_major(one), 4 if unaligned else 0) for one in shapes]
    special = specialisation(xp, call, dtypes, starts)
    plan = make_plan(special, TUNING[90], shape, axis, segments, offsets, shapes, layouts)
    assert plan is not None
    options = {"start": start, "unaligned": unaligned}
    names = ("segments", op, ",".join(dtypes), offsets, *(option for option, is_set in options.items() if is_set))
    return " ".join(names), plan

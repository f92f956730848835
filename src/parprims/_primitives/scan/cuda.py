"""Scans, linear recurrences and their derivatives by a CUDA kernel: views of the arrays, and the launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from parprims import _cuda
from parprims._core.arrays import Array, Namespace
from parprims._core.layout import Layout, Lines, access, broadcast_strides, lines_along, row_major, skew
from parprims._cuda.look_back import look_back_bytes
from parprims._dispatch import derivative_rules
from parprims._dispatch.dispatch import directly
from parprims._operators.languages import C_TYPES
from parprims._operators.operator import Operator, capturing, segmented
from parprims._operators.tracing import Untraceable, state_size
from parprims._primitives.recurrence import array as recurrence_array
from parprims._primitives.recurrence.call import Recurrence
from parprims._primitives.reduce.call import refused_shapes
from parprims._primitives.scan import array as scan_array
from parprims._primitives.scan import tiling
from parprims._primitives.scan.call import Scan
from parprims._primitives.scan.source import Adjoint, Call, Specialisation, specialisation, specialised, without_arrays
from parprims._primitives.scan.tiling import (
    MOST_STRIPS,
    Extents,
    Tuning,
    columns_fit,
    cut_blocks,
    cut_columns,
    cut_rows,
    cut_strips,
    fits,
    too_wide,
)

# ---- Plan -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Geometry:
    """The shapes and layouts of the arrays of a call.

    Parameters
    ----------
    shape : tuple of int
        The shape that the inputs broadcast to.
    axis, reverse : int, bool
        The axis to scan along, and whether the scan starts at its end.
    n : int
        The length of the outputs along the axis.
    shapes, layouts : tuple
        The shapes and layouts of the inputs, then of the starts.
    in_blocks : bool
        Whether elements are grouped canonically.
    """

    shape: tuple[int, ...]
    axis: int
    reverse: bool
    n: int
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout, ...]
    in_blocks: bool = False


def make_plan(
    special: Specialisation, tuning: Tuning, geometry: Geometry, *, by_columns: bool = True
) -> _cuda.Plan | None:
    """Return the launch for arrays of a geometry.

    Without ``by_columns`` lines that are adjacent in memory are divided as other lines are. Return None if the arrays
    cannot be viewed as (high, low, n, inner) with one stride each.
    """
    shape, axis, reverse, n = geometry.shape, geometry.axis, geometry.reverse, geometry.n
    shapes, layouts = geometry.shapes, geometry.layouts
    inputs, read = len(special.inputs), shape[axis]
    result = (*shape[:axis], n, *shape[axis + 1 :])
    arrays = inputs + len(special.outputs)
    addresses = [address for _, address in layouts[:inputs]] + [0] * len(special.outputs)
    strides = [
        broadcast_strides(steps, input_shape, len(shape))
        for input_shape, (steps, _) in zip(shapes, layouts, strict=True)
    ]
    strides[inputs:inputs] = [row_major(result)] * len(special.outputs)
    merged = lines_along(shape, axis, strides)
    if merged is None:
        return None
    if merged.inner > 1 and not by_columns:
        if merged.high > 1:
            return None
        merged = Lines(
            high=merged.low,
            low=merged.inner,
            inner=1,
            upward=merged.downward,
            downward=merged.across,
            along=merged.along,
            across=(0,) * len(strides),
        )
    outer, low, inner = merged.high * merged.low, merged.low, merged.inner
    along, across = merged.along, merged.across
    columns = inner > 1
    lasts = [((n if inputs <= index < arrays else read) - 1) * along[index] for index in range(len(strides))]
    # The stride along a line, and the address of its first element.
    steps = [-along[index] if reverse else along[index] for index in range(arrays)]
    firsts = [addresses[index] + (lasts[index] if reverse else 0) * special.itemsizes[index] for index in range(arrays)]

    def accesses_of(vector: int) -> tuple[str, ...]:
        return tuple([_access(index, vector) for index in range(arrays)])

    def _access(index: int, vector: int) -> str:
        itemsize, others = special.itemsizes[index], [merged.upward[index], merged.downward[index]]
        if columns:
            strides = [*others, along[index]]
            return access(across[index], addresses[index], strides, vector=vector, itemsize=itemsize, backward=False)
        lowest = firsts[index] - (vector - 1 if steps[index] == -1 else 0) * itemsize
        return access(steps[index], lowest, others, vector=vector, itemsize=itemsize)

    vector = max(1, 16 // max(special.itemsizes))
    if columns and geometry.in_blocks:
        vector = 1
    elif columns:
        vector = min(vector, _cuda.power_of_two(max(1, tuning.column_state_bytes // special.state_bytes)))
    accesses = accesses_of(vector)
    # Without vectors, outputs and columns are accessed best if adjacent threads access adjacent elements.
    unaligned = "STRIDED" in (accesses if columns else accesses[inputs:])
    # Long lines that begin within a vector have skewed vectors, if the skew is equal in all arrays.
    skewed = None
    if not columns and "STRIDED" in accesses and n >= tuning.skewed_elements and not geometry.in_blocks:
        skewed = _skewed_accesses(special, merged, steps, firsts, vector=vector)
    if skewed is not None:
        accesses = skewed
    elif unaligned:
        vector = 1
        accesses = accesses_of(vector)
    strips, extents = None, Extents(outer, low, read=read, n=n, inner=inner)
    stages_outputs, file = True, "_primitives/scan/kernels/scan.cu"
    if geometry.in_blocks:
        blocks = cut_blocks(special, tuning, extents, vector=vector, accesses=accesses, across=columns)
        if blocks is None:  # a gap of one element behind each part takes less than one of a vector
            vector = 1
            accesses = accesses_of(vector)
            blocks = cut_blocks(special, tuning, extents, vector=vector, accesses=accesses, across=columns)
        assert blocks is not None, "see `refusal`"
        work, stages_outputs, file = blocks, not columns, "_primitives/scan/kernels/scan_blocks.cu"
    elif columns:
        adjacent = tuning.columns * (min(4, max(1, 16 // max(special.itemsizes))) if unaligned else 1)
        work = cut_columns(special, tuning, extents, vector=vector, least=adjacent)
        # With aligned vectors, columns are slower than strips if their tiles look back, or if tiles are not full.
        width = tuning.columns * vector
        if n == read and (unaligned or "LOOK_BACK" in work.arguments or inner < 0.8 * width * -(-inner // width)):
            least = tuning.tiles * (1 if unaligned else MOST_STRIPS)
            strips = cut_strips(special, tuning, merged, addresses, reverse=reverse, n=n, least_tiles=least)
        if strips is None and not columns_fit(work, special):
            return make_plan(special, tuning, geometry, by_columns=False)
        work, stages_outputs = strips or work, strips is None or strips.whole
    else:
        most_skew = 0 if skewed is None else vector - 1
        work = cut_rows(special, tuning, extents, vector=vector, accesses=accesses, skew=most_skew)
        if vector > 1 and not fits(tuning, special, work.block, work.shared_bytes):
            vector, skewed = 1, None
            accesses = accesses_of(vector)
            work = cut_rows(special, tuning, extents, vector=vector, accesses=accesses)

    numbers = _cuda.Numbers()

    def view(index: int, memory: str, dtype: str) -> _cuda.Struct:
        as_one_line = work.whole and index < arrays
        backward = reverse and index < arrays and not as_one_line
        return _cuda.Struct(
            _cuda.Pointer(memory, dtype, elements=numbers("begin", lasts[index] if backward else 0)),
            numbers("high_stride", merged.upward[index]),
            numbers("low_stride", merged.downward[index]),
            numbers("stride", across[index] if as_one_line else -along[index] if reverse else along[index]),
            numbers("inner_stride", across[index]),
        )

    reads = [view(index, f"in{index}", f"const {C_TYPES[name]}") for index, name in enumerate(special.inputs)]
    writes = [view(inputs + index, f"out{index}", C_TYPES[name]) for index, name in enumerate(special.outputs)]
    starts = [
        view(arrays + index, f"in{inputs + index}", f"const {C_TYPES[name]}")
        for index, name in enumerate(special.starts)
    ]
    launch = _cuda.Launch(
        special.source(
            file,
            accesses,
            stages_outputs=stages_outputs,
            skewed=skewed is not None,
        ),
        work.template,
        (*work.arguments, "Scan"),
        (
            _cuda.Struct(*reads, type="Inputs"),
            _cuda.Struct(*writes, type="Outputs"),
            _cuda.Struct(*starts, type="Starts"),
            _cuda.Pointer("status", "ulonglong2"),
            *(numbers(name, value) for name, value in work.lengths),
        ),
        work.grid,
        work.block,
        shared_bytes=work.shared_bytes,
        resident_blocks=work.resident_blocks,
    )
    return _cuda.Plan(
        (launch,),
        inputs + len(special.starts),
        tuple([(result, name) for name in special.outputs]),
        numbers.all(),
        status_bytes=look_back_bytes(work.slots, work.tiles, state_size(special.states)) if work.waits else 0,
        captured=special.captured,
    )


def _skewed_accesses(
    special: Specialisation, lines: Lines, steps: Sequence[int], firsts: Sequence[int], *, vector: int
) -> tuple[str, ...] | None:
    """Return the accesses by skewed vectors, or None if the skew of lines differs between the arrays."""
    names = {0: "CONSTANT", 1: "ASCENDING", -1: "DESCENDING"}
    if not names.keys() >= set(steps):
        return None
    skews = {
        skew(
            step,
            firsts[index],
            (lines.upward[index], lines.downward[index]),
            vector=vector,
            itemsize=special.itemsizes[index],
        )
        for index, step in enumerate(steps)
        if step
    }
    return tuple([names[step] for step in steps]) if len(skews) == 1 else None


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, call: Call) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    arrays = call.arrays
    if isinstance(call, Recurrence):  # the dispatch adds its derivative
        arrays = tuple([derivative_rules.detached(x) for x in arrays])
    reason = _cuda.refusal(xp, arrays) or refused_shapes(call)
    if reason is not None:
        return reason
    try:
        special = specialised(xp, call)
    except Untraceable as reason:
        return str(reason)
    return too_wide(_cuda.tuned_for(tiling.TUNING, xp, call.arrays[0]), special, in_blocks=call.in_blocks)


def prepare(xp: Namespace, call: Call) -> Callable[..., Any]:
    """Return a function of the arrays that computes the result by one launch."""
    if 0 in call.shape:
        return directly(_array_form(call))(xp, call)
    special = specialised(xp, call)
    run = _prepare_outputs(xp, special, call)
    single = call.single if isinstance(call, Scan) else len(special.outputs) == 1
    return _cuda.only(run) if single else run


def _array_form(call: Call) -> Callable[..., Any]:
    assert isinstance(call, Scan | Recurrence), "JAX derives adjoints itself"
    return scan_array.array if isinstance(call, Scan) else recurrence_array.array


def _prepare_outputs(xp: Namespace, special: Specialisation, call: Call) -> _cuda.Run:
    """Return a function from the arrays of a call to the outputs of the kernel."""
    return _cuda.on_readable(
        xp, call.arrays, lambda arrays: _runner(xp, special, call.on(*arrays)), _on_copies(xp, special, call)
    )


def _runner(xp: Namespace, special: Specialisation, call: Call) -> _cuda.Run | None:
    """Return a function that launches the kernel on arrays of these layouts, or None if there is no plan for them."""
    ndim, axis = len(call.shape), call.axis
    geometry = Geometry(
        shape=call.shape,
        axis=axis,
        reverse=call.reverse,
        n=call.n,
        shapes=tuple([tuple(x.shape) for x in call.arrays]),
        layouts=tuple([_cuda.layout(xp, x) for x in call.arrays]),
        in_blocks=call.in_blocks,
    )

    def plan() -> _cuda.Plan | None:
        return make_plan(special, _cuda.tuned_for(tiling.TUNING, xp, call.arrays[0]), geometry)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        bare = dataclasses.replace(call, arrays=(None,) * len(call.arrays), key=None)

        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            # An array that is not batched has length 1 along the axis of the batch, and starts along the axis of
            # the scan.
            lengths = [x.shape[axis - ndim] if x.ndim >= ndim - axis else 1 for x in arrays]
            shapes = [(*bare.shape[:axis], length, *bare.shape[axis + 1 :]) for length in lengths]
            broadcast = [xp.broadcast_to(x, shape) for x, shape in zip(arrays, shapes, strict=True)]
            result = _array_form(bare)(xp, bare.on(*broadcast))
            return result if isinstance(result, tuple) else (result,)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            size = max(x.shape[0] for x in arrays)
            arrays = tuple([xp.reshape(x, (x.shape[0], *(1,) * (ndim + 1 - x.ndim), *x.shape[1:])) for x in arrays])
            more = dataclasses.replace(bare, arrays=arrays, shape=(size, *bare.shape), axis=axis + 1)
            return _prepare_outputs(xp, special, more)(*arrays)

        return otherwise, batched

    key = special.like or special, geometry
    return _cuda.ready(xp, call.arrays[0], key, plan=plan, in_program=in_program, captured=special.captured)


def _on_copies(xp: Namespace, special: Specialisation, call: Call) -> _cuda.Run:
    """Return a runner that copies its arrays: they cannot be viewed as (high, low, n, inner) with one stride each."""
    count, bare = len(call.inputs), call.on(*(None,) * len(call.arrays))

    def run(*arrays: Array) -> tuple[Array, ...]:
        arrays = tuple([_cuda.plain(xp, x) for x in arrays])
        broadcast = [xp.broadcast_to(x, call_shape) for x in arrays[:count]]
        copies = tuple([_cuda.contiguous(xp, x) for x in (*broadcast, *arrays[count:])])
        launch = _runner(xp, special, bare.on(*copies))
        assert launch is not None
        return launch(*copies)

    call_shape = call.shape
    return run


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------

# Shapes and axes that together reach every kernel. Rows: of one thread, a few threads, a warp, and a block; in tiles
# that look back, and in parts that a block scans serially. Columns: in one tile, narrow and wide; in tiles that are
# chained or look back; in strips.
_LAYOUTS = (
    ((1 << 16, 3), 1),
    ((1 << 16, 40), 1),
    ((1 << 16, 500), 1),
    ((64, 4000), 1),
    ((512, 20_000), 1),
    ((1 << 24,), 0),
    ((4096, 9, 7), 1),
    ((4096, 2, 64), 1),
    ((4096, 100, 30), 1),
    ((1 << 14, 1 << 14), 0),
    ((1 << 14, 128), 0),
    ((2048, 40_000), 1),
    ((999_983, 67), 0),
    ((65_536, 1001), 0),
    ((1 << 24, 16), 0),
    ((2048, 16_384), 1),
    ((1 << 16, 67), 1),
    ((1 << 16, 1001), 1),
    ((4096, 8191), 1),
    ((4096, 40_001), 1),
    ((8, 1_000_001), 1),
)

# The same for the canonical grouping: rows alone, chained, and looking back; columns alone, and in tiles.
_IN_BLOCKS = (
    ((1 << 16, 40), 1),
    ((512, 20_000), 1),
    ((1 << 24,), 0),
    ((4096, 100, 30), 1),
    ((1 << 14, 128), 0),
    ((1 << 20, 3), 0),
)


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of scans, recurrences and adjoints that reach every branch of the templates."""
    return map(_planned, _cases())


@dataclasses.dataclass(frozen=True)
class _Case:
    """A call to compile. ``start`` gives it an initial element, and ``constant`` a first input of one element."""

    op: str | Operator
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]
    axis: int
    _: dataclasses.KW_ONLY
    exclusive: bool = False
    reverse: bool = False
    start: bool = False
    constant: bool = False
    unaligned: bool = False
    in_blocks: bool = False


def _cases() -> Iterator[_Case]:
    for shape, axis in _LAYOUTS:
        for dtype in ("int8", "float32"):
            yield _Case("add", (dtype,), shape, axis)
        for dtype in ("float32", "bfloat16", "complex128"):
            yield _Case("recurrence", (dtype,) * 2, shape, axis)
        yield _Case("adjoint", ("float32",) * 3, shape, axis)
    for shape, axis in (_LAYOUTS[5], _LAYOUTS[9], _LAYOUTS[11], _LAYOUTS[14]):
        for dtype in C_TYPES:
            yield _Case("add", (dtype,), shape, axis)
        for dtype in ("float16", "float64", "complex64", "int32"):
            yield _Case("recurrence", (dtype,) * 2, shape, axis)
        for dtype in ("bfloat16", "float64", "complex64", "complex128"):
            yield _Case("adjoint", (dtype,) * 3, shape, axis)
        yield _Case("adjoint", ("float32",) * 2, shape, axis)
        for op, dtypes in (
            ("maximum", ("float16",)),
            ("multiply", ("complex64",)),
            ("affine", ("float32",) * 2),
            ("argmax", ("float32", "int64")),
            ("welford", ("float64",) * 3),
            (segmented("add"), ("bool", "float32")),
        ):
            yield _Case(op, dtypes, shape, axis)
    for shape, axis in _LAYOUTS:
        yield _Case(capturing(0.5), ("float32",), shape, axis, exclusive=True)
    for shape, axis in (_LAYOUTS[2], _LAYOUTS[4], _LAYOUTS[5], _LAYOUTS[9]):
        yield _Case("add", ("float32",), shape, axis, exclusive=True)
        yield _Case("add", ("float32",), shape, axis, reverse=True)
        yield _Case("add", ("float32",), shape, axis, unaligned=True)
        yield _Case("affine", ("int32",) * 2, shape, axis, exclusive=True, reverse=True, start=True)
        yield _Case("recurrence", ("float32",) * 2, shape, axis, constant=True)
        yield _Case("recurrence", ("float32",) * 2, shape, axis, reverse=True, start=True)
    for shape, axis in _IN_BLOCKS:
        for op, dtypes in (
            ("add", ("float32",)),
            ("add", ("float64",)),
            ("multiply", ("float16",)),
            ("recurrence", ("float32",) * 2),
            ("recurrence", ("complex128",) * 2),
        ):
            yield _Case(op, dtypes, shape, axis, in_blocks=True)
        yield _Case("add", ("float32",), shape, axis, exclusive=True, reverse=True, unaligned=True, in_blocks=True)
        yield _Case("welford", ("float64",) * 3, shape, axis, exclusive=True, start=True, in_blocks=True)


def _planned(case: _Case) -> tuple[str, _cuda.Plan]:
    from array_api_compat import numpy as xp

    op, dtypes, shape, axis = case.op, case.dtypes, case.shape, case.axis
    starts = dtypes[op == "recurrence" :] * case.start
    shapes = [(1,) * len(shape) if case.constant else shape, *[shape] * (len(dtypes) - 1)]
    if op == "adjoint":
        call: Call = Adjoint(arrays=(), shape=shape, axis=axis, reverse=True)
    else:
        begins = case.exclusive and not case.start
        call = without_arrays(op, dtypes, shape, axis, begins=begins, exclusive=case.exclusive, reverse=case.reverse)
    shapes += [(*shape[:axis], 1, *shape[axis + 1 :])] * len(starts)
    geometry = Geometry(
        shape=shape,
        axis=axis,
        reverse=call.reverse,
        n=call.n,
        shapes=tuple(shapes),
        layouts=tuple([(row_major(shape), 4 if case.unaligned else 0) for shape in shapes]),
        in_blocks=case.in_blocks,
    )
    plan = make_plan(specialisation(xp, call, dtypes, starts), tiling.TUNING[90], geometry)
    assert plan is not None
    names = ("exclusive", "reverse", "start", "constant", "unaligned", "in_blocks")
    options = [name for name in names if getattr(case, name)]
    return " ".join((op if isinstance(op, str) else op.name, ",".join(dtypes), *options)), plan

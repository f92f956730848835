"""Scans, linear recurrences and their derivatives by a CUDA kernel: the division of work, and the launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from parprims import _cuda, _derivatives, _recurrence_array, _scan_array
from parprims._arrays import Array, Namespace
from parprims._block import look_back_bytes
from parprims._dispatch import directly
from parprims._layout import Layout, Lines, access, broadcast_strides, is_aligned, lines_along, row_major
from parprims._operators import Operator, segmented
from parprims._recurrence_array import Recurrence
from parprims._scan_array import Scan
from parprims._scan_special import Adjoint, Call, Specialisation, specialisation, specialised, without_arrays
from parprims._trace import C_TYPES, Untraceable, state_size

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernels divide their work on devices of one compute capability.

    All fields but the last determine how elements are grouped, so the bits of results depend on them. They depend on
    the compute capability alone: devices of one kind give the same bits, however many multiprocessors they have.
    """

    threads: int
    """Threads of a block; a block that holds a whole line in registers may have twice as many."""
    line_bytes: int
    """Bytes of elements and their prefixes that a thread keeps in registers, if that is enough for a whole line."""
    long_line_bytes: int
    """The same for longer lines, if that is enough for one."""
    shared_bytes: int
    """Bytes that a thread keeps in shared memory."""
    column_bytes: int
    """Bytes of elements that a thread keeps in registers, for lines that are adjacent in memory."""
    columns_bytes: int
    """The same where there are several inputs, or where tiles are chained."""
    columns: int
    """Adjacent threads across lines that are adjacent in memory: with vectors of 16 bytes, they load 128 bytes. Where
    lines are such that vectors are not aligned, there are up to four times as many."""
    strip_threads: int
    """Threads of a block for lines that are adjacent in memory, if their vectors are not aligned or if they are few."""
    strip_bytes: int
    """The shared memory of a multiprocessor that such blocks have, `_MOST_STRIPS` of them, or fewer if tiles would be
    too small."""
    column_state_bytes: int
    """The most bytes of states that a thread keeps for adjacent lines."""
    tiles: int
    """A single line is divided further until it has this many tiles, so that every multiprocessor has one."""
    chained_lines: int
    """From this number of lines on, if they are adjacent in memory or have segments, tiles are chained: they are drawn
    across the lines, and a tile waits for the one before it alone."""
    serial_lines: int
    """From this number of lines on, where there are more inputs than outputs, a block goes along a part of a line. It
    loads a tile while it works on the last one. Otherwise tiles that look back are faster."""
    serial_parts: int
    """Lines are divided until there are about so many parts in all."""
    serial_tiles: int
    """The least number of tiles of a part, if the line has so many."""
    serial_threads: int
    """Threads of such a block."""
    serial_bytes: int
    """Bytes of each tile that a thread of such a block keeps in shared memory."""
    serial_resident: int
    """The number of such blocks that are to fit on a multiprocessor."""
    ahead_bytes: int
    """How many bytes of tiles before a tile its elements are brought into the L2 cache, where tiles look back. No bits
    depend on it. Where tiles are chained it does not pay."""

    scaled = ("ahead_bytes",)
    counted = ("tiles", "serial_parts")
    prefetched = ("ahead_bytes",)

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, where two blocks with tiles in shared memory are to fit."""
        most = (device.room() - _TOTALS_BYTES) // 16
        return dataclasses.replace(
            super().fitted(measured, device),
            shared_bytes=min(self.shared_bytes, most // self.threads * 16),
            serial_bytes=min(self.serial_bytes, most // (2 * self.serial_threads) * 16),
            strip_bytes=min(self.strip_bytes, _MOST_STRIPS * device.room(_MOST_STRIPS)),
        )


_TOTALS_BYTES = 2 << 10
"""The most shared memory that a block has besides, for flags of segments and for what its warps exchange."""

_MOST_STRIPS = 4
"""The most blocks with strips of lines that are to fit on a multiprocessor."""


TUNING = {
    90: Tuning(
        record="benches/results/nvidia-h200.json",
        multiprocessors=132,
        threads=256,
        line_bytes=160,
        long_line_bytes=320,
        shared_bytes=160,
        column_bytes=320,
        columns_bytes=256,
        columns=8,
        strip_threads=256,
        strip_bytes=_MOST_STRIPS * 55 << 10,
        column_state_bytes=32,
        tiles=132,
        chained_lines=128,
        serial_lines=256,
        serial_parts=40 * 132,
        serial_tiles=3,
        serial_threads=192,
        serial_bytes=144,
        serial_resident=4,
        ahead_bytes=10 << 20,
    ),
}
"""By compute capability; `_cuda.tuned` tells what other devices have."""

# ---- Plan -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Work:
    """How the work of a launch is divided.

    Parameters
    ----------
    template, arguments :
        The function template, and its arguments before the types.
    lengths : tuple of (str, int)
        The numbers it is given after the arrays.
    grid, block, shared_bytes, resident_blocks : int
        As in `Launch`.
    tiles : int
        The tiles of a line.
    slots : int
        The lines whose tiles wait for each other.
    waits : bool
        Whether tiles do.
    whole : bool
        Whether views are of the memory of lines that are adjacent, as one line.
    """

    template: str
    arguments: tuple[_cuda.Argument, ...]
    lengths: tuple[tuple[str, int], ...]
    grid: int
    block: int
    slots: int
    tiles: int
    waits: bool
    shared_bytes: int = 0
    resident_blocks: int = 0
    whole: bool = False


def make_plan(
    special: Specialisation,
    tuning: Tuning,
    shape: tuple[int, ...],
    axis: int,
    reverse: bool,
    n: int,
    shapes: Sequence[tuple[int, ...]],
    layouts: Sequence[Layout],
) -> _cuda.Plan | None:
    """Return the launch for inputs, then starts, of these shapes and layouts.

    ``shape`` is that of the inputs, broadcast; the outputs have length ``n`` along the axis. None if the arrays cannot
    be seen as (high, low, n, inner) with one stride each.
    """
    inputs, read = len(special.inputs), shape[axis]
    result = (*shape[:axis], n, *shape[axis + 1 :])
    arrays = inputs + len(special.outputs)
    addresses = [address for _, address in layouts[:inputs]] + [0] * len(special.outputs)
    strides = [broadcast_strides(steps, one, len(shape)) for one, (steps, _) in zip(shapes, layouts, strict=True)]
    strides[inputs:inputs] = [row_major(result)] * len(special.outputs)
    merged = lines_along(shape, axis, strides)
    if merged is None:
        return None
    outer, low, inner = merged.high * merged.low, merged.low, merged.inner
    along, across = merged.along, merged.across
    columns = inner > 1
    lasts = [((n if inputs <= at < arrays else read) - 1) * along[at] for at in range(len(strides))]

    def accesses_of(vector: int) -> tuple[str, ...]:
        return tuple([_access(at, vector) for at in range(arrays)])

    def _access(at: int, vector: int) -> str:
        itemsize, others = special.itemsizes[at], [merged.upward[at], merged.downward[at]]
        if columns:
            return access(across[at], addresses[at], [*others, along[at]], vector, itemsize, backward=False)
        step, begin = (-along[at], lasts[at]) if reverse else (along[at], 0)
        first = addresses[at] + (begin - (vector - 1 if step == -1 else 0)) * itemsize
        return access(step, first, others, vector, itemsize)

    vector = max(1, 16 // max(special.itemsizes))
    if columns:
        vector = min(vector, _cuda.power_of_two(max(1, tuning.column_state_bytes // special.state_bytes)))
    accesses = accesses_of(vector)
    # Without vectors, of outputs or in columns, memory access is best if adjacent threads access adjacent elements.
    unaligned = "STRIDED" in (accesses if columns else accesses[inputs:])
    if unaligned:
        vector = 1
        accesses = accesses_of(vector)
    strips = None
    if columns:
        adjacent = tuning.columns * (min(4, max(1, 16 // max(special.itemsizes))) if unaligned else 1)
        work = _cut_columns(special, tuning, vector, adjacent, outer, low, read, n, inner)
        # Where vectors are aligned, columns are slower if their tiles look back, or if strips of them are not full.
        width = tuning.columns * vector
        if n == read and (unaligned or "LOOK_BACK" in work.arguments or inner < 0.8 * width * -(-inner // width)):
            least = tuning.tiles * (1 if unaligned else _MOST_STRIPS)
            strips = _cut_strips(special, tuning, merged, addresses, reverse, n, least)
        work = strips or work
    else:
        work = _cut_rows(special, tuning, vector, accesses, outer, low, read, n)

    numbers = _cuda.Numbers()

    def view(at: int, memory: str, dtype: str) -> _cuda.Struct:
        whole = work.whole and at < arrays
        backward = reverse and at < arrays and not whole
        return _cuda.Struct(
            _cuda.Pointer(memory, dtype, elements=numbers("begin", lasts[at] if backward else 0)),
            numbers("high_stride", merged.upward[at]),
            numbers("low_stride", merged.downward[at]),
            numbers("stride", across[at] if whole else -along[at] if reverse else along[at]),
            numbers("inner_stride", across[at]),
        )

    reads = [view(at, f"in{at}", f"const {C_TYPES[name]}") for at, name in enumerate(special.inputs)]
    writes = [view(inputs + at, f"out{at}", C_TYPES[name]) for at, name in enumerate(special.outputs)]
    starts = [view(arrays + at, f"in{inputs + at}", f"const {C_TYPES[name]}") for at, name in enumerate(special.starts)]
    launch = _cuda.Launch(
        special.source(accesses, stages_outputs=strips is None or strips.whole),
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
    )


def _cut_columns(
    special: Specialisation,
    tuning: Tuning,
    vector: int,
    least: int,
    lines: int,
    low: int,
    read: int,
    n: int,
    inner: int,
) -> _Work:
    """Return the division of work for lines that are adjacent in memory, ``lines`` times ``inner`` of them.

    ``least`` threads, if there are lines enough, are across lines.
    """
    block = 256

    def cut(most: int, kept: int) -> tuple[int, int, int, int, int, str]:
        """Return the division by the most rows and bytes of a thread: width, groups, rounds, tiles, blocks, carry."""
        most = max(1, min(most, kept // (vector * special.raw_bytes)))
        groups = _cuda.power_of_two(-(-n // most), up=True)
        width = max(least, block // min(groups, 32))
        width = min(width, _cuda.power_of_two(-(-inner // vector), up=True), block)
        groups = min(groups, block // width)
        if n > groups * most:
            groups = block // width
        tiles = -(-n // (groups * most))
        rounds = -(-n // (tiles * groups))
        blocks = -(-lines // (block // (width * groups))) * -(-inner // (width * vector))
        return width, groups, rounds, tiles, blocks, carry_of(tuning, tiles, blocks)

    kept = tuning.column_bytes if len(special.inputs) == 1 else tuning.columns_bytes
    width, groups, rounds, tiles, blocks, carry = cut(20, kept)
    if carry == "CHAINED":
        width, groups, rounds, tiles, blocks, carry = cut(16, tuning.columns_bytes)
    rows = block // width * rounds
    ahead = tiles_ahead(tuning, special, carry, rows * width * vector)
    lengths = {"lines": lines, "low": low, "read": read, "n": n, "inner": inner, "tiles": tiles, "ahead": ahead}
    return _Work(
        "scan_columns",
        (width, groups, rounds, vector, carry),
        tuple(lengths.items()),
        grid=blocks * tiles,
        block=block,
        slots=blocks * width * vector,
        tiles=tiles,
        waits=tiles > 1,
        # With more registers than two blocks can have, one block would be alone on a multiprocessor.
        resident_blocks=2 if carry == "CHAINED" else 0,
    )


def _cut_strips(
    special: Specialisation,
    tuning: Tuning,
    lines: Lines,
    addresses: Sequence[int],
    reverse: bool,
    n: int,
    least_tiles: int,
) -> _Work | None:
    """Return the division of work for lines that are adjacent in memory, and whose vectors need not be aligned.

    None if lines are not adjacent, or if they are too short to fill a tile or make too few of these.
    """
    block, arrays, inputs = tuning.strip_threads, len(special.itemsizes), len(special.inputs)
    along, across, outer, inner = lines.along[:arrays], lines.across[:arrays], lines.high * lines.low, lines.inner
    accesses = ["CONSTANT" if (step, one) == (0, 0) else "ASCENDING" for step, one in zip(along, across, strict=True)]
    moving = [at for at in range(arrays) if accesses[at] != "CONSTANT"]
    if any(across[at] != 1 for at in moving) or moving[0] >= inputs:
        return None
    state = state_size(special.states)
    # The states of 32 tiles take at most 3 % of the bytes of their results, or 4 % where tiles are contiguous.
    states = look_back_bytes(1, 32, state) - look_back_bytes(0, 32, state)
    least = -(-100 * states // (3 * 32 * sum(special.itemsizes[inputs:])))

    def cut(whole: bool) -> tuple[int, int, int, int]:
        """Return the resident blocks, the elements that one holds, the adjacent lines of a strip, the rows of each."""
        _, sizes = special.places(accesses if whole else accesses[:inputs])
        # As many blocks as have room for 32 lines of the least rows, at least two.
        for resident in range(_MOST_STRIPS, 1, -1):
            elements = (tuning.strip_bytes // resident - 16 - 2 * block * state) // sum(sizes) // 16 * 16
            if elements >= 32 * least:
                break
        # A thread adds at most 81 elements, one after another.
        rows = [min(elements // width, 81 * (block // width)) for width in range(1, block // 2 + 1)]
        if whole:
            width = min(inner, len(rows))
        else:
            widths = range(1, min(inner, block // 4) + 1)
            width = max(widths, key=lambda width: (rows[width - 1] >= least, used(width), width))
        return resident, elements, width, rows[width - 1]

    def used(width: int) -> float:
        """Return what part of strips, threads and cache lines strips of a width put to use."""
        line = max(1, 128 // min(special.itemsizes))
        whole = -(-inner // width) * width * block * (-(-width // line) * line)
        return inner * (block // width * width) * width / whole

    vector, whole = 1, all(along[at] == inner for at in moving)
    resident, elements, width, rows = cut(whole)
    if whole and (width < inner or 4 * rows < 3 * least):
        whole = False
        resident, elements, width, rows = cut(whole)
    if whole:
        steps = [(lines.upward[at], lines.downward[at]) for at in range(arrays)]
        vector = 16 // max(special.itemsizes)
        while not all(is_aligned(addresses[at], steps[at], vector, special.itemsizes[at]) for at in moving):
            vector //= 2
    strips, most = outer * -(-inner // width), max(0, rows) // vector * vector
    if most == 0 or width < min(inner, 16) or strips * width >= 2**31:
        return None
    if 2 * n < most or strips * -(-n // most) < least_tiles:
        return None
    rows = -(-n // (-(-n // most) * vector)) * vector
    tiles = -(-n // rows)
    carry = carry_of(tuning, tiles, strips)
    ahead = tiles_ahead(tuning, special, carry, rows * width)
    # So many tiles wait for each other's totals; with many lines as few as have 256 rows, for the rounding errors.
    span = 32 if carry == "LOOK_BACK" else -(-256 // rows)
    shared = tuning.strip_bytes // resident // 16 * 16
    lengths = {"outer": outer, "low": lines.low, "n": n, "inner": inner, "width": width, "rows": rows, "tiles": tiles}
    return _Work(
        "scan_strips",
        (block, vector, elements, whole, shared),
        (*lengths.items(), ("span", span), ("ahead", ahead), ("backward", int(whole and reverse))),
        grid=strips * tiles,
        block=block,
        slots=strips * width,
        tiles=tiles,
        waits=True,
        shared_bytes=shared,
        resident_blocks=resident,
        whole=whole,
    )


def _cut_rows(
    special: Specialisation,
    tuning: Tuning,
    vector: int,
    accesses: tuple[str, ...],
    lines: int,
    low: int,
    read: int,
    n: int,
) -> _Work:
    """Return the division of work for lines along which adjacent threads are placed."""
    _, sizes = special.places(accesses)
    vectors, staged = -(-n // vector), vector * sum(sizes)
    # Narrow elements would be unpacked in registers, and elements of strided arrays are loaded one by one.
    direct = min(special.itemsizes[: len(special.inputs)]) >= 4 and "STRIDED" not in accesses
    kept_bytes = vector * special.raw_bytes + special.state_bytes
    waiting = rounds_in(tuning.shared_bytes, staged)
    few, most = (max(1, nbytes // kept_bytes) for nbytes in (tuning.line_bytes, tuning.long_line_bytes))
    if not direct:
        few = most = waiting
    block, lanes, tiles, carry = tuning.threads, 32, 1, "ALONE"
    widest = (2 if direct else 1) * block
    if vectors <= 32 * few:
        enough = (one for one in (32, 16, 8, 4, 2, 1) if vectors <= one * few)
        lanes = min(enough, key=lambda one: one * -(-vectors // one))
    elif vectors <= widest * most:
        wanted = _cuda.power_of_two(-(-vectors // (few if vectors <= widest * few else most)), up=True)
        if wanted > 32:
            lanes = block = wanted
    else:
        direct = False
        if len(special.inputs) > len(special.outputs) and lines >= tuning.serial_lines:
            carry, block = "SERIAL", tuning.serial_threads
            rounds = (rounds_in(tuning.serial_bytes, staged) - 1) | 1  # an odd number, which needs no gaps
        else:
            carry = "LOOK_BACK"
            rounds = max(1, min(waiting, vectors * lines // (tuning.tiles * block)))
        lanes, tiles = block, -(-vectors // (block * rounds))
    rounds = -(-vectors // (lanes * tiles))
    tiles = -(-vectors // (lanes * rounds))
    shared = 0 if direct else staged_bytes(block, rounds, vector, sizes, tiles=2 if carry == "SERIAL" else 1)
    ahead = tiles_ahead(tuning, special, carry, block * rounds * vector)
    if carry == "SERIAL":  # from here on, parts of a line
        tiles = -(-tiles // min(tiles, max(tuning.serial_tiles, lines * tiles // tuning.serial_parts)))
    return _Work(
        "scan_rows",
        (block, lanes, rounds, vector, carry, direct, shared),
        (("lines", lines), ("low", low), ("read", read), ("n", n), ("tiles", tiles), ("ahead", ahead)),
        grid=-(-lines * lanes // block) if carry == "ALONE" else lines * tiles,
        block=block,
        slots=lines,
        tiles=tiles,
        waits=carry != "ALONE",
        shared_bytes=shared,
        resident_blocks=tuning.serial_resident if carry == "SERIAL" else 0,
    )


def tiles_ahead(tuning: Tuning, special: Specialisation, carry: str, elements: int) -> int:
    """Return how many tiles before a tile, of so many elements, these are brought into the L2 cache."""
    return -(-tuning.ahead_bytes // (elements * sum(special.itemsizes))) if carry == "LOOK_BACK" else 0


def rounds_in(nbytes: int, vector_bytes: int) -> int:
    """Return how many vectors of a thread fit in shared memory. An even number takes an eighth more, for the gaps."""
    most = max(1, nbytes // vector_bytes)
    return most - 1 if most > 1 and most % 2 == 0 and most * vector_bytes * 9 // 8 > nbytes else most


def staged_bytes(block: int, rounds: int, vector: int, sizes: Sequence[int], tiles: int = 1) -> int:
    """Return the bytes of shared memory in which tiles are staged, given the itemsizes of their places."""
    places, shared = block * rounds + (block * rounds // 8 if rounds % 2 == 0 else 1), 0
    for size in sizes:  # each begins where its vectors are aligned
        shared = -(-shared // (vector * size)) * vector * size + places * vector * size
    return tiles * -(-shared // 16) * 16


def carry_of(tuning: Tuning, tiles: int, lines: int) -> str:
    """Return how a tile gets its prefix, by the names of `Carry` in _scan.cu."""
    return "ALONE" if tiles == 1 else "CHAINED" if lines >= tuning.chained_lines else "LOOK_BACK"


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, call: Call) -> str | None:
    """Return the sentence why the kernel cannot serve the call, or None."""
    arrays = call.arrays
    if isinstance(call, Recurrence):  # the dispatch adds its derivative
        arrays = tuple([_derivatives.detached(x) for x in arrays])
    reason = _cuda.refusal(xp, arrays)
    if reason is not None:
        return reason
    try:
        specialised(xp, call)
    except Untraceable as reason:
        return str(reason)
    return None


def prepare(xp: Namespace, call: Call) -> Callable[..., Any]:
    """Return a function of the arrays that computes the result by one launch."""
    if 0 in call.shape:
        return directly(_array_form(call))(xp, call)
    special = specialised(xp, call)
    run = _prepare_outputs(xp, special, call)
    single = call.single if isinstance(call, Scan) else len(special.outputs) == 1
    return _cuda.only(run) if single else run


def _array_form(call: Call) -> Callable[..., Any]:
    assert not isinstance(call, Adjoint), "JAX derives adjoints itself"
    return _scan_array.array if isinstance(call, Scan) else _recurrence_array.array


def _prepare_outputs(xp: Namespace, special: Specialisation, call: Call) -> _cuda.Run:
    """Return a function of arrays like those of the call: the outputs of the kernel."""
    return _cuda.on_readable(
        xp, call.arrays, lambda arrays: _runner(xp, special, call.on(*arrays)), _on_copies(xp, special, call)
    )


def _runner(xp: Namespace, special: Specialisation, call: Call) -> _cuda.Run | None:
    """Return a function that launches the kernel on arrays of these layouts, or None if there is no plan for them."""
    layouts = tuple([_cuda.layout(xp, x) for x in call.arrays])
    shapes = tuple([tuple(x.shape) for x in call.arrays])
    ndim, axis = len(call.shape), call.axis

    def plan() -> _cuda.Plan | None:
        tuning = _cuda.tuned_for(TUNING, xp, call.arrays[0])
        return make_plan(special, tuning, call.shape, axis, call.reverse, call.n, shapes, layouts)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        bare = dataclasses.replace(call, arrays=(None,) * len(call.arrays), key=None)

        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            # An array that is the same for the whole batch has length 1 along its axis; so have starts along the
            # scan's.
            lengths = [x.shape[axis - ndim] if x.ndim >= ndim - axis else 1 for x in arrays]
            shapes = [(*bare.shape[:axis], length, *bare.shape[axis + 1 :]) for length in lengths]
            whole = [xp.broadcast_to(x, one) for x, one in zip(arrays, shapes, strict=True)]
            found = _array_form(bare)(xp, bare.on(*whole))
            return found if isinstance(found, tuple) else (found,)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            size = max(x.shape[0] for x in arrays)
            arrays = tuple([xp.reshape(x, (x.shape[0], *(1,) * (ndim + 1 - x.ndim), *x.shape[1:])) for x in arrays])
            more = dataclasses.replace(bare, arrays=arrays, shape=(size, *bare.shape), axis=axis + 1)
            return _prepare_outputs(xp, special, more)(*arrays)

        return otherwise, batched

    key = (special, call.shape, axis, call.reverse, call.n, shapes, layouts)
    return _cuda.ready(xp, call.arrays[0], key, plan, in_program)


def _on_copies(xp: Namespace, special: Specialisation, call: Call) -> _cuda.Run:
    """Return the same for arrays that cannot be seen as (high, low, n, inner) with one stride each: it copies them."""
    count, bare = len(call.inputs), call.on(*(None,) * len(call.arrays))

    def run(*arrays: Array) -> tuple[Array, ...]:
        arrays = tuple([_cuda.plain(xp, x) for x in arrays])
        whole = [xp.broadcast_to(x, call_shape) for x in arrays[:count]]
        copies = tuple([_cuda.contiguous(xp, x) for x in (*whole, *arrays[count:])])
        launch = _runner(xp, special, bare.on(*copies))
        assert launch is not None
        return launch(*copies)

    call_shape = call.shape
    return run


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------

# Shapes and axes that together reach every kernel: rows of one thread, of a few threads, of a warp, and of a block;
# rows in tiles that look back, and in parts that a block goes along; columns alone, narrow and wide, and in tiles that
# are chained or look back; strips of columns.
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
)


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of scans, recurrences and adjoints that reach every branch of the two templates."""
    for shape, axis in _LAYOUTS:
        for dtype in ("int8", "float32"):
            yield _case("add", (dtype,), shape, axis)
        for dtype in ("float32", "bfloat16", "complex128"):
            yield _case("recurrence", (dtype,) * 2, shape, axis)
        yield _case("adjoint", ("float32",) * 3, shape, axis)
    for shape, axis in (_LAYOUTS[5], _LAYOUTS[9], _LAYOUTS[11], _LAYOUTS[14]):
        for dtype in C_TYPES:
            yield _case("add", (dtype,), shape, axis)
        for dtype in ("float16", "float64", "complex64", "int32"):
            yield _case("recurrence", (dtype,) * 2, shape, axis)
        for dtype in ("bfloat16", "float64", "complex64", "complex128"):
            yield _case("adjoint", (dtype,) * 3, shape, axis)
        yield _case("adjoint", ("float32",) * 2, shape, axis)
        for op, dtypes in (
            ("maximum", ("float16",)),
            ("multiply", ("complex64",)),
            ("affine", ("float32",) * 2),
            ("argmax", ("float32", "int64")),
            ("welford", ("float64",) * 3),
            (segmented("add"), ("bool", "float32")),
        ):
            yield _case(op, dtypes, shape, axis)
    for shape, axis in (_LAYOUTS[2], _LAYOUTS[4], _LAYOUTS[5], _LAYOUTS[9]):
        yield _case("add", ("float32",), shape, axis, exclusive=True)
        yield _case("add", ("float32",), shape, axis, reverse=True)
        yield _case("add", ("float32",), shape, axis, unaligned=True)
        yield _case("affine", ("int32",) * 2, shape, axis, exclusive=True, reverse=True, start=True)
        yield _case("recurrence", ("float32",) * 2, shape, axis, constant=True)
        yield _case("recurrence", ("float32",) * 2, shape, axis, reverse=True, start=True)


def _case(
    op: str | Operator,
    dtypes: tuple[str, ...],
    shape: tuple[int, ...],
    axis: int,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    start: bool = False,
    constant: bool = False,
    unaligned: bool = False,
) -> tuple[str, _cuda.Plan]:
    from array_api_compat import numpy as xp

    name = op if isinstance(op, str) else op.name
    starts = dtypes[op == "recurrence" :] * start
    shapes = [(1,) * len(shape) if constant else shape, *[shape] * (len(dtypes) - 1)]
    if op == "adjoint":
        call: Call = Adjoint(arrays=(), shape=shape, axis=axis, reverse=True)
    else:
        begins = exclusive and not start
        call = without_arrays(op, dtypes, shape, axis, begins=begins, exclusive=exclusive, reverse=reverse)
    shapes += [(*shape[:axis], 1, *shape[axis + 1 :])] * len(starts)
    layouts = [(row_major(one), 4 if unaligned else 0) for one in shapes]
    special = specialisation(xp, call, dtypes, starts)
    plan = make_plan(special, TUNING[90], shape, axis, call.reverse, call.n, shapes, layouts)
    assert plan is not None
    options = {"exclusive": exclusive, "reverse": reverse, "start": start, "constant": constant, "unaligned": unaligned}
    return " ".join((name, ",".join(dtypes), *(option for option, is_set in options.items() if is_set))), plan

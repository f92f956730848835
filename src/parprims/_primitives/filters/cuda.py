"""Filters by CUDA kernels: the division of lines into tiles and of cascades into launches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, dtype_bits, dtype_kind, dtype_name, mode, move_axis
from parprims._cuda.look_back import look_back_bytes
from parprims._dispatch import derivative_rules
from parprims._dispatch.dispatch import directly
from parprims._operators.languages import C_TYPES
from parprims._primitives.filters.array import array, filtered_lines
from parprims._primitives.filters.call import Filter

MOST_ORDER = {"float": 24, "complex": 16}
"""The highest order of a filter, by the kind of its numbers. A thread keeps its states in registers."""

_INSIDE = 4
"""The highest order for which blocks may make the tables: above it, a launch before leaves the filter its registers."""


class Tile(NamedTuple):
    """The threads and samples of a block."""

    threads: int
    staged_bytes: int
    """Bytes of samples that a thread keeps in shared memory."""
    resident: int
    """Blocks to fit one multiprocessor by their registers; 0 leaves it to the compiler."""


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernels divide their work on devices of one compute capability. The bits of results depend on it."""

    few: Tile
    """For states of at most 4 numbers."""
    many: Tile
    """For larger states: their tables take more of the shared memory."""
    tiles: int
    """The fewest tiles of all lines together: lines of several tiles are divided further to reach this number."""
    chained_lines: int
    """From this number of lines on, tiles are chained (see `Carry` in _cuda/device/tile_scan.cuh)."""
    inside: int
    """The most blocks that each make the tables of powers; for more of them, a launch before does."""
    shared_bytes: int
    """The most shared memory of a block."""
    ahead_bytes: int
    """The distance, in bytes of tiles, at which samples are prefetched into the L2 cache. No bits depend on it."""

    limited = ("shared_bytes",)
    scaled = ("ahead_bytes",)
    counted = ("tiles", "inside")
    prefetched = ("ahead_bytes",)

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, where two blocks with their samples are to fit a multiprocessor."""
        tiles = {}
        for name in ("few", "many"):
            tile = getattr(self, name)
            while tile.threads * tile.staged_bytes + _TABLES_BYTES > device.room():
                tile = tile._replace(staged_bytes=tile.staged_bytes // 2)
            tiles[name] = tile
        return dataclasses.replace(super().fitted(measured, device), **tiles)


_TABLES_BYTES = 12 << 10
"""The shared memory that tables of powers take in most filters."""


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """The specialisation of a plan, besides the number and the length of lines.

    ``counts`` are the lengths of b and a, or the number of sections of order two. ``aligned`` says
    whether lines are read as vectors of 16 bytes, ``states`` whether states are given, and returned.
    """

    dtype: str
    counts: tuple[int, ...]
    states: bool
    aligned: bool

    @property
    def order(self) -> int:
        """The order of every section."""
        return 2 if len(self.counts) == 1 else max(self.counts) - 1

    @property
    def sections(self) -> int:
        """The number of sections."""
        return self.counts[0] if len(self.counts) == 1 else 1

    @property
    def lattice(self) -> bool:
        """Whether tables come from filters_lattice.cuh: for a filter b, a of any order, not for sections."""
        return len(self.counts) == 2

    @property
    def working(self) -> str:
        """The dtype of states."""
        return "complex128" if self.dtype.startswith("complex") else "float64"

    @property
    def wide_bytes(self) -> int:
        """The size of a number of a state."""
        return dtype_bits(self.working) // 8

    @property
    def together(self) -> int:
        """The most sections of a launch, whose tables and registers must fit."""
        return 4 if self.working == "float64" else 2


@dataclasses.dataclass(frozen=True)
class _Cut:
    """How a launch divides lines: template arguments of filter_rows, the tiles of a line, and the blocks."""

    tile: Tile
    lanes: int
    rounds: int
    vector: int
    carry: str
    tiles: int
    grid: int

    @property
    def warps(self) -> int:
        """The warps that share a tile of a line."""
        return max(1, self.lanes // 32)

    def table_bytes(self, kind: Kind, count: int) -> int:
        """Return the size of the tables of powers of ``count`` sections."""
        k, wide_bytes = kind.order, kind.wide_bytes
        d, items = count * k, self.rounds * self.vector
        if not kind.lattice:
            powers = 32 + self.warps + (32 if self.carry != "ALONE" else 1)
            elements = d * (d * powers + items) + count * (2 + 4 * k + k * k)
        else:
            threads = 32 * self.warps * 32 if self.carry != "ALONE" else 32 * self.warps - 1
            powers = -(-threads.bit_length() // (2 if k * wide_bytes > 128 else 1))
            elements = d * (d * (powers + 1) + items) + 2 * k + 1
        return -(-elements * wide_bytes // 16) * 16

    def spare_bytes(self, kind: Kind, count: int) -> int:
        """Return the shared memory in which tables are computed."""
        d = count * kind.order
        if not kind.lattice:
            return 2 * d * d * kind.wide_bytes
        return 2 * (4 * d * d + self.rounds * self.vector * d + 2 * (d + 1)) * kind.wide_bytes

    def shared_bytes(self, kind: Kind, count: int, size: int) -> int:
        """Return the shared memory of a block: tables, and samples of ``size`` bytes or the input of tables."""
        places = self.tile.threads * (self.rounds + (self.rounds % 2 == 0))  # one more if even, for the gaps
        spare = self.spare_bytes(kind, count) if kind.order <= _INSIDE else 0  # else a launch before makes tables
        return self.table_bytes(kind, count) + max(spare, places * self.vector * size)

    def fits(self, most: int, kind: Kind, count: int, size: int) -> bool:
        """Return whether ``most`` bytes of shared memory suffice, also for a launch that computes tables."""
        spare = self.spare_bytes(kind, count) if kind.lattice else 0
        return max(spare, self.shared_bytes(kind, count, size)) <= most


def _cut(tuning: Tuning, kind: Kind, count: int, size: int, *, lines: int, n: int) -> _Cut:
    """Return the division of lines for ``count`` sections, given the larger itemsize of samples and results.

    Where shared memory has no room for the tile, its threads have fewer samples.
    """
    tile = tuning.few if count * kind.order <= 4 else tuning.many
    if kind.order > _INSIDE:
        tile = tile._replace(resident=1)
    while True:
        cut = _divided(tuning, tile, size, kind.aligned, lines=lines, n=n)
        if cut.rounds == 1 or cut.fits(tuning.shared_bytes, kind, count, size):
            return cut
        tile = tile._replace(staged_bytes=tile.staged_bytes // 2)


def _divided(tuning: Tuning, tile: Tile, size: int, aligned: bool, *, lines: int, n: int) -> _Cut:
    """Return the division of lines into such tiles."""
    threads = tile.threads
    vector = max(1, 16 // size) if aligned else 1
    most = max(1, min(32, tile.staged_bytes // (vector * size)))
    vectors = -(-n // vector)
    lanes = _cuda.power_of_two(-(-vectors // most), up=True)
    while lanes < min(32, vectors) and lines * lanes < 32 * tuning.tiles:
        lanes *= 2
    if lanes < 32 or (lanes == 32 and lines >= tuning.tiles):
        grid = -(-lines * lanes // threads)
        return _Cut(tile, lanes, -(-vectors // lanes), vector, carry="ALONE", tiles=1, grid=grid)
    if vectors <= threads * most:
        return _Cut(tile, threads, -(-vectors // threads), vector, carry="ALONE", tiles=1, grid=lines)
    rounds = most
    while rounds > 2 and lines * -(-vectors // (threads * rounds)) < tuning.tiles:
        rounds = -(-rounds // 2)
    tiles = -(-vectors // (threads * rounds))
    carry = "ALONE" if tiles == 1 else "CHAINED" if lines >= tuning.chained_lines else "LOOK_BACK"
    return _Cut(tile, threads, rounds, vector, carry=carry, tiles=tiles, grid=lines * tiles)


def make_plan(kind: Kind, tuning: Tuning, lines: int, n: int, *, step: int) -> _cuda.Plan:
    """Return the launches for ``lines`` lines of n samples; each line begins ``step`` elements after the last.

    Inputs are the coefficients, b and a or the sections, the lines and, with states, the states (lines, sections, k).
    Outputs are the lines filtered, and the states after.
    """
    source = _cuda.device_source("_primitives/filters/filters.cu")
    numbers, k, c_type = _cuda.Numbers(), kind.order, C_TYPES[kind.dtype]
    wide, wide_bytes, itemsize = C_TYPES[kind.working], kind.wide_bytes, dtype_bits(kind.dtype) // 8
    signal = 2 if kind.lattice else 1
    line_count, length, apart = numbers("lines", lines), numbers("n", n), numbers("step", step)
    sections = numbers("sections", kind.sections)
    launches: list[_cuda.Launch] = []
    scratch_bytes = status_bytes = 0
    groups = range(0, kind.sections, kind.together)
    for first in groups:
        count, last = min(kind.together, kind.sections - first), first == groups[-1]
        size = max(itemsize if first == 0 else wide_bytes, itemsize if last else wide_bytes)
        d, cut = count * k, _cut(tuning, kind, count, size, lines=lines, n=n)
        tile, waits = cut.tile, cut.carry != "ALONE"
        table_bytes = cut.table_bytes(kind, count)
        shared_bytes = cut.shared_bytes(kind, count, size)
        tile_bytes = tile.threads * cut.rounds * cut.vector * 2 * size
        inside = cut.grid <= tuning.inside and k <= _INSIDE
        if kind.lattice:
            places = (("in0", 0), ("in1", 0)), kind.counts, 0
        else:
            places = (("in0", 6 * first), ("in0", 6 * first + 3)), (3, 3), 6
        coefficients = _cuda.Struct(
            *(_cuda.Pointer(memory, f"const {c_type}", elements=elements) for memory, elements in places[0]),
            *places[1],
            places[2],
            type=f"filters::Coefficients<{c_type}>",
        )
        shape = f"{cut.rounds * cut.vector}, {cut.warps}, {str(waits).lower()}"
        tables = f"Lattice<{wide}, {k}, {shape}>" if kind.lattice else f"Tables<{wide}, {count}, {k}, {shape}>"
        tables = f"filters::{tables}"
        tables_memory = _cuda.Pointer("scratch", wide, bytes=scratch_bytes)
        if not inside:
            launches.append(
                _cuda.Launch(
                    source,
                    "filters::make_lattice" if kind.lattice else "filters::make_tables",
                    (tables, wide),
                    (coefficients, tables_memory),
                    grid=1,
                    block=tile.threads,
                    shared_bytes=cut.spare_bytes(kind, count) + (0 if kind.lattice else table_bytes),
                )
            )
            scratch_bytes += table_bytes
        access = "ASCENDING" if kind.aligned else "STRIDED"
        reads = _cuda.Struct(
            _cuda.Pointer(f"in{signal}" if first == 0 else "temporary", f"const {c_type if first == 0 else wide}"),
            apart if first == 0 else length,
            0,
            1,
            0,
            type=f"View<const {c_type if first == 0 else wide}, {access}>",
        )
        writes = _cuda.Struct(
            _cuda.Pointer("out0" if last else "temporary", c_type if last else wide),
            length,
            0,
            1,
            0,
            type=f"View<{c_type if last else wide}, {access}>",
        )
        launches.append(
            _cuda.Launch(
                source,
                "filters::filter_rows",
                (
                    *(tables, wide, count, k, tile.threads, cut.lanes, cut.rounds, cut.vector, cut.carry, inside),
                    *(kind.states, shared_bytes),
                ),
                (
                    reads,
                    writes,
                    coefficients,
                    _cuda.Pointer(f"in{signal + 1 if kind.states else 0}", f"const {c_type}"),
                    _cuda.Pointer("out1" if kind.states else "out0", c_type),
                    None if inside else tables_memory,
                    _cuda.Pointer("status", "ulonglong2"),
                    line_count,
                    length,
                    numbers("tiles", cut.tiles),
                    numbers("ahead", -(-tuning.ahead_bytes // tile_bytes) if waits else 0),
                    sections,
                    numbers("first", first),
                ),
                grid=cut.grid,
                block=tile.threads,
                shared_bytes=shared_bytes,
                resident_blocks=tile.resident,
            )
        )
        if waits:  # a state and its number of tiles, aligned to a number
            state_bytes = d * wide_bytes + max(8, wide_bytes)
            status_bytes = max(status_bytes, look_back_bytes(lines, cut.tiles, state_bytes))
    return _cuda.Plan(
        tuple(launches),
        signal + 1 + kind.states,
        (((lines, n), kind.dtype), *((((lines, kind.sections, k), kind.dtype),) if kind.states else ())),
        numbers.all(),
        status_bytes=status_bytes,
        scratch_bytes=scratch_bytes,
        temporary_bytes=lines * n * wide_bytes if len(groups) > 1 else 0,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, f: Filter) -> str | None:
    """Return the sentence why the kernel cannot serve the call, or None."""
    most = MOST_ORDER.get(dtype_kind(f.dtype), f.order)
    if f.order > most:
        return f"there is no kernel of {dtype_name(f.dtype)} filters above order {most} for GPUs, got order {f.order}"
    if dtype_kind(f.dtype) not in ("float", "complex") or dtype_name(f.dtype) not in C_TYPES:
        return f"the kernel has no dtype {dtype_name(f.dtype)}"
    return _cuda.refusal(xp, tuple([derivative_rules.detached(x) for x in f.arrays]))


def prepare(xp: Namespace, f: Filter, with_kernel: Callable[[Namespace, Filter], Any]) -> Callable[..., Any]:
    """Return a function that filters by the kernel. PyTorch differentiates ``with_kernel``, the array form."""
    if 0 in f.shape or f.order == 0:  # a filter of order 0 is a product
        nothing: Callable[..., Any] = directly(array)(xp, f)
        return nothing
    bare = f.on(*(None,) * len(f.arrays))
    coefficients = 1 + (f.sections is None)
    axis, last = f.axis, len(f.shape) - 1
    others = (*f.shape[:axis], *f.shape[axis + 1 :])
    n = f.shape[axis]

    states, dtype = f.states, f.dtype

    def laid_out(*arrays: Array) -> tuple[Array, ...]:
        """Return the inputs of the kernel."""
        inputs = [cast(xp, _cuda.plain(xp, x), dtype) for x in arrays]
        contiguous = [_cuda.contiguous(xp, x) for x in inputs[:coefficients]]
        x = inputs[coefficients]
        rows = xp.reshape(x if axis == last else move_axis(xp, x, axis, -1), (-1, n))
        steps, _ = _cuda.layout(xp, rows)
        if steps[1] != 1 and n > 1:
            rows = _cuda.contiguous(xp, rows)
        if not states:
            return (*contiguous, rows)
        return (*contiguous, rows, _cuda.contiguous(xp, bare.states_of_lines(xp, inputs[-1])))

    run = _runner(xp, bare, laid_out(*map(derivative_rules.detached, f.arrays)))

    def computed(*arrays: Array) -> tuple[Array, ...]:
        y, *z = run(*laid_out(*arrays))
        y = xp.reshape(y, (*others, n))
        if axis != last:
            y = _cuda.contiguous(xp, move_axis(xp, y, -1, axis))
        if not states:
            return (y,)
        return y, _cuda.contiguous(xp, bare.states_as_given(xp, z[0]))

    differentiable = derivative_rules.by_operations(xp, f.arrays, computed, lambda: directly(with_kernel)(xp, f))
    return differentiable if states else lambda *arrays: differentiable(*arrays)[0]


def _runner(xp: Namespace, f: Filter, inputs: tuple[Array, ...]) -> _cuda.Run:
    """Return a function that launches the kernels on inputs like these. ``f`` holds no arrays."""
    coefficients = 1 + (f.sections is None)
    rows = inputs[coefficients]
    lines, n = rows.shape
    (step, _), address = _cuda.layout(xp, rows)
    if lines == 1:
        step = n
    vector = max(1, 128 // dtype_bits(f.dtype))
    aligned = address == 0 and (lines == 1 or (n % vector == 0 and step % vector == 0))
    counts = (f.sections,) if f.sections is not None else tuple([x.shape[0] for x in inputs[:2]])
    kind = Kind(dtype_name(f.dtype), counts, f.states, aligned)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            y, z = filtered_lines(xp, f, arrays)
            return (y, z) if f.states else (y,)

        def batched(*arrays: Array) -> tuple[Array, ...]:
            if any(x.shape[0] > 1 for x in arrays[:coefficients]):  # every line has a filter of its own
                return _cuda.row_by_row(otherwise)(*arrays)
            size = max(x.shape[0] for x in arrays)
            broadcast = [xp.broadcast_to(x, (size, *x.shape[1:])) for x in arrays[coefficients:]]
            flat = [xp.reshape(x, (size * x.shape[1], *x.shape[2:])) for x in broadcast]
            inputs = (*(x[0] for x in arrays[:coefficients]), *flat)
            results = _runner(xp, f, inputs)(*inputs)
            return tuple([xp.reshape(x, (size, -1, *x.shape[1:])) for x in results])

        return otherwise, batched

    def plan() -> _cuda.Plan:
        return make_plan(kind, _cuda.tuned_for(TUNING, xp, rows), lines, n, step=step)

    return _cuda.ready(xp, rows, ("filters", mode(xp), kind, lines, n, step), plan, in_program=in_program)


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of every kind of kernel."""
    for dtype in ("float32", "float64", "complex64", "complex128", "float16", "bfloat16"):
        for counts in ((2, 2), (4, 3), (5, 5), (2,), (4,), (5,)):
            for states in (False, True):
                yield (
                    f"filter {dtype}",
                    make_plan(Kind(dtype, counts, states, True), TUNING[90], 1, 1 << 26, step=1 << 26),
                )
    for lines, n in ((1 << 12, 1 << 14), (1 << 16, 64), (1 << 12, 4096), (3, 1000), (1000, 1000)):
        for counts, states in (((5, 5), False), ((4,), True)):
            kind = Kind("float32", counts, states, aligned=True)
            yield "filter float32", make_plan(kind, TUNING[90], lines, n, step=n)
    for dtype in ("float32", "complex128"):
        for counts in ((1, 3), (4, 2), (3,)):
            kind = Kind(dtype, counts, False, aligned=False)
            yield f"filter {dtype} unaligned", make_plan(kind, TUNING[90], 1, 1 << 26, step=1 << 26)
    for dtype in ("float32", "float64", "complex64", "complex128", "float16", "bfloat16"):
        for order in (5, 8, 12, MOST_ORDER["complex" if dtype.startswith("complex") else "float"]):
            kind = Kind(dtype, (order + 1, order + 1), order % 8 == 0, aligned=True)
            yield f"filter {dtype}", make_plan(kind, TUNING[90], 1, 1 << 26, step=1 << 26)
    for lines, n in ((1 << 12, 1 << 14), (1 << 16, 64), (1 << 12, 4096), (1, 20_000), (3, 1000)):
        for dtype, states, aligned in (("float32", False, True), ("float64", True, False), ("complex64", True, True)):
            yield f"filter {dtype}", make_plan(Kind(dtype, (7, 3), states, aligned), TUNING[90], lines, n, step=n)

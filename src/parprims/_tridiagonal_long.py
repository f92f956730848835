"""The launches for tridiagonal systems that do not fit in a block: 4 to 58, most of which may find nothing to do."""

from __future__ import annotations

import dataclasses

from parprims._cuda import Argument, Launch, Number, Parameter, Plan, Pointer, Struct, power_of_two
from parprims._tridiagonal_batch import (
    CHAIN_NUMBERS,
    INTERFACE_NUMBERS,
    SEGMENT_NUMBERS,
    SLOT_NUMBERS,
    SYSTEM_STATE_BYTES,
    Batch,
    Problem,
    Tuning,
    Workspace,
    make_batch,
    source,
)


def make_long_plan(problem: Problem, tuning: Tuning) -> Plan | None:
    """Return the launches, or None if the arrays have too many axes.

    The memory of all launches is laid out first, because a launch may be given memory that belongs to a later one.
    """
    batch = make_batch(problem)
    if batch is None:
        return None
    pivot, periodic, systems = problem.pivot, problem.periodic, problem.systems
    space = Workspace(batch.numbers)
    states = space.place("states", SYSTEM_STATE_BYTES * systems, "SystemState")
    exchanges, is_checked = pivot != "none", pivot == "auto" and not periodic
    # For systems of few unknowns, the stable solver costs little more than launches that find nothing to do.
    refines = problem.n > tuning.few_unknowns
    call = _Call(problem, tuning, batch, states)
    stages: list[_InOrder | _Exchanging | _Stable] = []
    if not periodic:
        if is_checked or not exchanges:
            stages.append(_InOrder.laid_out(call, space, is_checked))
        if exchanges:
            stages.append(_Exchanging.laid_out(call, space, is_checked, refine=False))
            if refines:
                stages.append(_Exchanging.laid_out(call, space, is_checked, refine=True))
    if exchanges or periodic:
        unsolved = 0 if periodic or not exchanges else 8 if refines else 6
        stages.append(_Stable.laid_out(call, space, exchanges, unsolved))
    second = space.place("second", problem.nbytes * problem.n * systems * exchanges, problem.type)
    launches = [launch for stage in stages for launch in stage.launches(call, second)]
    finishing = (batch.parameter, second, states)
    launches.append(Launch(source("finish"), "finish_systems", (problem.type,), finishing, tuning.few_blocks, 256))
    return Plan(
        tuple(launches),
        4,
        ((problem.whole, problem.dtype),),
        batch.numbers.all(),
        temporary_bytes=space.nbytes,
    )


@dataclasses.dataclass(frozen=True)
class _Call:
    """What all launches of a plan have in common."""

    problem: Problem
    tuning: Tuning
    batch: Batch
    states: Pointer


@dataclasses.dataclass(frozen=True)
class _Levels:
    """The reduced systems of a solver in registers, and the number of rows on the last level."""

    systems: tuple[Struct, ...]
    grids: tuple[int, ...]
    top_rows: int


def _levels(call: _Call, space: Workspace, rows: int, most: int, *, exchange: bool) -> _Levels:
    """Return the levels of reduced systems, for warps with ``rows`` rows in each thread.

    A warp leaves one row without row exchanges, and two rows with them.
    """
    problem, tuning = call.problem, call.tuning
    kind, left, numbers = ("BoundaryLevel", 2, CHAIN_NUMBERS) if exchange else ("InterfaceLevel", 1, INTERFACE_NUMBERS)
    systems: list[Struct] = []
    grids, count = [], problem.n
    while not systems or count > rows * tuning.top_threads:
        grids.append(min(most, problem.systems * -(-count // (tuning.reducing_threads * rows))))
        count = left * -(-count // (32 * rows))
        nbytes = (numbers + 1) * problem.nbytes * count * problem.systems  # including the unknowns
        place = space.place("level", nbytes, problem.type)
        length = space.number("level_rows", count)
        systems.append(Struct(place, call.batch.systems, length, type=f"{kind}<{problem.type}>"))
    return _Levels(tuple(systems), tuple(grids), count)


def _access(call: _Call, level: int) -> tuple[str, ...]:
    """Return how the rows of a level are accessed."""
    return ("STRIDED",) * 5 if level else call.batch.access


@dataclasses.dataclass(frozen=True)
class _InOrder:
    """Elimination without row exchanges, of all systems or of those that are diagonally dominant."""

    is_checked: bool
    marks: Pointer
    levels: _Levels
    blocks: Number
    """The number of blocks that mark a system."""

    @classmethod
    def laid_out(cls, call: _Call, space: Workspace, is_checked: bool) -> _InOrder:
        """Return the stage with its memory."""
        problem, tuning = call.problem, call.tuning
        rows = tuning.rows_in_order[problem.nbytes]
        blocks = -(-problem.n // (tuning.reducing_threads * rows))
        marks = space.place("marks", 4 * problem.systems * blocks * is_checked, "unsigned")
        levels = _levels(call, space, rows, tuning.long_blocks, exchange=False)
        return cls(is_checked, marks, levels, space.number("blocks", blocks))

    def launches(self, call: _Call, _: Pointer) -> list[Launch]:
        """Return the launches."""
        problem, tuning = call.problem, call.tuning
        rows, text = tuning.rows_in_order[problem.nbytes], source("in order")
        down, up = [], []
        below: Struct = call.batch.parameter
        for at, (level, grid) in enumerate(zip(self.levels.systems, self.levels.grids, strict=True)):
            sizes, access = (problem.type, rows, self.is_checked, at == 0), _access(call, at)
            threads = tuning.reducing_threads
            down.append(
                Launch(text, "reduce_in_order", (*sizes, *access[:4]), (below, level, self.marks), grid, threads)
            )
            up.append(Launch(text, "expand_in_order", (*sizes, *access), (below, level, call.states), grid, threads))
            below = level
        threads = max(32, power_of_two(-(-self.levels.top_rows // rows), up=True))
        top = Launch(
            text,
            "solve_top_in_order",
            (problem.type, rows, threads, self.is_checked),
            (below, call.states, self.marks, self.blocks),
            min(tuning.long_blocks, problem.systems),
            threads,
        )
        return [*down, top, *reversed(up)]


@dataclasses.dataclass(frozen=True)
class _Exchanging:
    """Elimination with row exchanges in registers, of systems or (refine) for the residual of their first solutions.

    Windows around rows with a large error are refined between the two.
    """

    is_checked: bool
    refine: bool
    marks: Pointer
    levels: _Levels
    each: Number | None
    """The number of windows whose marks a warp checks at once."""

    @classmethod
    def laid_out(cls, call: _Call, space: Workspace, is_checked: bool, *, refine: bool) -> _Exchanging:
        """Return the stage with its memory."""
        problem, tuning = call.problem, call.tuning
        rows = tuning.rows_exchanging[problem.nbytes]
        # For each warp two marks of 32 bits, one bit for every lane.
        marked = 0 if refine else 2 * -(-problem.n // (32 * rows))
        marks = space.place("marks", 4 * problem.systems * marked, "unsigned")
        levels = _levels(call, space, rows, cls._most(tuning, is_checked, refine), exchange=True)
        each = None if refine else space.number("each", cls._each(call))
        return cls(is_checked, refine, marks, levels, each)

    @staticmethod
    def _most(tuning: Tuning, is_checked: bool, refine: bool) -> int:
        return tuning.few_blocks if refine or is_checked else tuning.long_blocks

    @staticmethod
    def _windows(call: _Call) -> int:
        return call.problem.n // (32 * call.tuning.rows_exchanging[call.problem.nbytes]) + 2

    @classmethod
    def _each(cls, call: _Call) -> int:
        tuning = call.tuning
        warps = -(-call.problem.systems * cls._windows(call) * 32 // (tuning.reducing_threads * tuning.few_blocks))
        return min(8, power_of_two(warps, up=True))

    def launches(self, call: _Call, second: Pointer) -> list[Launch]:
        """Return the launches."""
        problem, tuning, states = call.problem, call.tuning, call.states
        rows, text = tuning.rows_exchanging[problem.nbytes], source("exchanging")
        ways = self.is_checked, self.refine
        down, up = [], []
        below: Struct = call.batch.parameter
        for at, (level, grid) in enumerate(zip(self.levels.systems, self.levels.grids, strict=True)):
            sizes = problem.type, rows, self.is_checked, at == 0, self.refine
            arguments: tuple[Argument, ...] = (*sizes, *_access(call, at))
            expanding = below, level, second, states, self.marks
            threads = tuning.reducing_threads
            down.append(Launch(text, "reduce_exchanging", arguments, (below, level, states), grid, threads))
            up.append(Launch(text, "expand_exchanging", arguments, expanding, grid, threads))
            below = level
        threads = max(32, power_of_two(-(-self.levels.top_rows // rows), up=True))
        top = Launch(
            text,
            "solve_top_exchanging",
            (problem.type, rows, threads, *ways),
            (below, states),
            min(self._most(tuning, *ways), problem.systems),
            threads,
        )
        return [*down, top, *reversed(up), *([] if self.refine else self._windows_refined(call))]

    def _windows_refined(self, call: _Call) -> list[Launch]:
        """Return the launches that refine windows: two in registers, and two by the stable solver for what is left."""
        problem, tuning, batch = call.problem, call.tuning, call.batch
        rows, threads = tuning.rows_exchanging[problem.nbytes], tuning.reducing_threads
        grid = problem.systems * -(-self._windows(call) * 32 // (threads * self._each(call)))
        in_registers = Launch(
            source("exchanging"),
            "refine_windows",
            (problem.type, rows, *batch.access),
            (batch.parameter, self.each, self.marks, call.states),
            min(tuning.few_blocks, grid),
            threads,
        )
        if problem.n <= tuning.few_unknowns:
            return [in_registers] * 2
        stable_rows = tuning.rows[problem.nbytes]
        threads = _chunk_threads(tuning, problem.nbytes, tuning.window_threads)
        stably = Launch(
            source("stable long"),
            "refine_windows_stably",
            (problem.type, stable_rows, threads, rows),
            (batch.parameter, self.marks, call.states),
            min(tuning.few_blocks, problem.systems * (problem.n // (stable_rows * threads) + 2)),
            threads,
            shared_bytes=_chunk_bytes(problem.nbytes, stable_rows, threads),
        )
        return [in_registers] * 2 + [stably] * 2


def _slot_bytes(nbytes: int, threads: int) -> int:
    """Return the shared memory for the segments of a block."""
    return nbytes * SLOT_NUMBERS * (threads + 2)


def _chunk_bytes(nbytes: int, rows: int, threads: int) -> int:
    """Return the shared memory of a block that holds a chunk of a system."""
    return nbytes * 4 * threads * (rows + 1) + _slot_bytes(nbytes, threads)


def _chunk_threads(tuning: Tuning, nbytes: int, most: int) -> int:
    """Return the threads of a block that holds a chunk: as many as its shared memory has room for, at least a warp."""
    while most > 32 and _chunk_bytes(nbytes, tuning.rows[nbytes], most) > tuning.shared_bytes:
        most //= 2
    return most


@dataclasses.dataclass(frozen=True)
class _Stable:
    """The stable solver, for all systems or for those that have a bit of ``unsolved``.

    Chunks are reduced to segments, and these are merged, level by level. Back substitution gives the unknowns.
    """

    exchanges: bool
    unsolved: int
    threads: int
    counts: tuple[int, ...]
    """The number of segments of a system on each level."""
    segments: tuple[Pointer, ...]
    ys: tuple[Pointer, ...]
    lengths: tuple[Number, ...]

    @classmethod
    def laid_out(cls, call: _Call, space: Workspace, exchanges: bool, unsolved: int) -> _Stable:
        """Return the stage with its memory."""
        problem, tuning = call.problem, call.tuning
        threads = tuning.chunk_threads
        if problem.n <= tuning.few_unknowns:
            threads = max(32, threads // 4)
        threads = _chunk_threads(tuning, problem.nbytes, threads)
        counts = [-(-problem.n // (tuning.rows[problem.nbytes] * threads))]
        while counts[-1] > tuning.chunk_threads:
            counts.append(-(-counts[-1] // tuning.chunk_threads))
        sizes = [problem.nbytes * count * problem.systems for count in counts]
        return cls(
            exchanges,
            unsolved,
            threads,
            tuple(counts),
            tuple([space.place("segments", SEGMENT_NUMBERS * size, problem.type) for size in sizes]),
            tuple([space.place("ys", 2 * size, problem.type) for size in sizes]),
            tuple([space.number("segment_count", count) for count in counts]),
        )

    def launches(self, call: _Call, second: Pointer) -> list[Launch]:
        """Return the launches. With row exchanges, a second pass solves for the residual."""
        found = self._pass(call, second, refine=False)
        return found + self._pass(call, second, refine=True) if self.exchanges else found

    def _pass(self, call: _Call, second: Pointer, *, refine: bool) -> list[Launch]:
        problem, tuning, batch, states = call.problem, call.tuning, call.batch, call.states
        most = tuning.few_blocks if refine or self.unsolved else tuning.long_blocks
        rows, text, last = tuning.rows[problem.nbytes], source("stable long"), len(self.counts) - 1
        ways = problem.type, rows, self.threads, self.exchanges, problem.periodic, self.unsolved, refine

        def chunks(template: str, *parameters: Parameter) -> Launch:
            return Launch(
                text,
                template,
                ways,
                (batch.parameter, *parameters, states),
                min(most, problem.systems * self.counts[0]),
                self.threads,
                shared_bytes=_chunk_bytes(problem.nbytes, rows, self.threads),
            )

        def merging(phase: str, level: int) -> Launch:
            threads = tuning.chunk_threads
            above = (None, None) if level == last else (self.segments[level + 1], self.ys[level + 1])
            places = self.segments[level], *above, self.ys[level], states
            return Launch(
                text,
                "merge_segments",
                (problem.type, threads, self.exchanges, self.unsolved, refine, phase),
                (*places, batch.systems, self.lengths[level]),
                min(most, problem.systems * -(-self.counts[level] // threads)),
                threads,
                shared_bytes=_slot_bytes(problem.nbytes, threads),
            )

        return [
            chunks("reduce_chunks", self.segments[0]),
            *(merging("MERGE", level) for level in range(last)),
            merging("CLOSE", last),
            *(merging("SUBSTITUTE", level) for level in reversed(range(last))),
            chunks("solve_chunks", self.ys[0], second),
        ]

"""The launches for tridiagonal systems that do not fit in a block: up to eight, some perhaps without work."""

from __future__ import annotations

import dataclasses
from typing import Any

from parprims._cuda import Argument, Launch, Number, Parameter, Plan, Pointer, Struct, power_of_two
from parprims._primitives.tridiagonal.problem import (
    CHAIN_NUMBERS,
    INTERFACE_NUMBERS,
    PHASE_COUNTER_BYTES,
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

_EVERYTHING = Struct(type="Worklist")
"""The worklist of a launch for all systems."""


def counts(*lists: Struct) -> tuple[int, ...]:
    """Return the words of zeroed scratch that count the systems on worklists; a list of all systems has none."""
    words = [field.elements for each in lists for field in each.fields[:1] if isinstance(field, Pointer)]
    return tuple([word for word in words if isinstance(word, int)])


def make_long_plan(problem: Problem, tuning: Tuning) -> Plan | None:
    """Return the launches, or None if the arrays have too many axes."""
    batch = make_batch(problem)
    if batch is None:
        return None
    call = _Call(problem, tuning, batch, Workspace(batch.numbers))
    if problem.periodic:
        launches = [call.stable(_EVERYTHING)]
    elif problem.pivot == "none":
        launches = call.in_order(None)
    else:
        is_checked = problem.pivot == "auto"
        due = call.worklist("undominated") if is_checked else _EVERYTHING
        launches = call.in_order(due) if is_checked else []
        launches += call.exchanging(due)
    return Plan(
        tuple(launches),
        4,
        ((problem.whole, problem.dtype),),
        batch.numbers.all(),
        zeroed_bytes=call.zeroed_bytes,
        temporary_bytes=call.space.nbytes,
    )


def _slot_bytes(nbytes: int, segments: int) -> int:
    """Return the shared memory for ``segments`` segments."""
    return nbytes * SLOT_NUMBERS * (segments + 2)


def _chunk_bytes(nbytes: int, rows: int, threads: int) -> int:
    """Return the shared memory of a block that holds a chunk of a system."""
    return nbytes * 4 * threads * (rows + 1) + _slot_bytes(nbytes, threads)


def _chunk_threads(tuning: Tuning, nbytes: int, rows: int, most: int) -> int:
    """Return the threads of a block that holds a chunk: the most that its shared memory allows, at least a warp."""
    while most > 32 and _chunk_bytes(nbytes, rows, most) > tuning.shared_bytes:
        most //= 2
    return most


@dataclasses.dataclass
class _Call:
    """The problem and the memory that the launches of a plan share."""

    problem: Problem
    tuning: Tuning
    batch: Batch
    space: Workspace
    zeroed_bytes: int = PHASE_COUNTER_BYTES

    def __post_init__(self) -> None:
        self._states = self.space.place("states", SYSTEM_STATE_BYTES * self.problem.systems, "SystemState")
        self._counters = Pointer("zeroed", "PhaseCounters")

    def _zeroed(self, words: int) -> Pointer:
        """Return a piece of scratch that is zero before and after the launches."""
        pointer = Pointer("zeroed", "unsigned", elements=self.zeroed_bytes // 4)
        self.zeroed_bytes += 4 * words
        return pointer

    def worklist(self, name: str) -> Struct:
        """Return an empty list of systems."""
        place = self.space.place(name, 4 * self.problem.systems, "unsigned")
        return Struct(self._zeroed(2), place, type="Worklist")

    def _levels(self, rows: int, left: int, numbers: int) -> Pointer:
        """Return memory for the reduced systems: a block with ``rows`` rows for each thread leaves ``left`` rows.

        A row has ``numbers`` numbers, the unknown included.
        """
        problem, tuning = self.problem, self.tuning
        part = tuning.reduced_rows[problem.nbytes] * tuning.reduced_threads
        parts, total = -(-problem.n // (rows * tuning.reducing_threads)), 0
        vector = 16 // problem.nbytes  # arrays have whole vectors
        while True:
            total += -(-left * parts // vector) * vector
            if left * parts <= part:
                break
            parts = -(-left * parts // part)
        return self.space.place("levels", numbers * problem.nbytes * total * problem.systems, problem.type)

    def _launch(
        self,
        solver: str,
        template: str,
        arguments: tuple[Argument, ...],
        parameters: tuple[Parameter, ...],
        *,
        grid: tuple[int, int],
        threads: int,
        **options: Any,
    ) -> Launch:
        """Return a launch of at most ``grid[0]`` blocks for ``grid[1]`` parts of each system.

        ``options`` are further fields of `Launch`.
        """
        blocks = min(grid[0], self.problem.systems * grid[1])
        types = (self.problem.type, *arguments)
        return Launch(source(solver), template, types, parameters, grid=blocks, block=threads, **options)

    def _reduced(self, rows: int, left: int) -> tuple[tuple[int, int, int], tuple[Number, Parameter], tuple[int, int]]:
        """Return arguments, parameters and grid of a launch for reduced systems; a block leaves ``left`` rows."""
        problem, tuning = self.problem, self.tuning
        below = rows * tuning.reducing_threads
        arguments = tuning.reduced_rows[problem.nbytes], tuning.reduced_threads, below
        parts = -(-left * -(-problem.n // below) // (arguments[0] * arguments[1]))
        n = self.batch.parameter.fields[-1]
        return arguments, (self.batch.systems, n), (tuning.few_blocks, parts)

    def in_order(self, left: Struct | None) -> list[Launch]:
        """Return the launches without row exchanges. They put systems that are not dominant on the list ``left``."""
        problem, tuning, access = self.problem, self.tuning, self.batch.access
        rows, threads = tuning.rows_in_order[problem.nbytes], tuning.reducing_threads
        levels, is_checked = self._levels(rows, 1, INTERFACE_NUMBERS + 1), left is not None
        lost, ticket = self.worklist("lost"), self._zeroed(2)
        undominated = self._zeroed(problem.systems) if is_checked else None
        grid = tuning.long_blocks, -(-problem.n // (rows * threads))
        sizes, lengths, few = self._reduced(rows, 1)
        parameters = self.batch.parameter, levels
        ways = rows, threads, is_checked
        return [
            self._launch(
                "in order",
                "reduce_in_order",
                (*ways, *access[:4]),
                (*parameters, undominated),
                grid=grid,
                threads=threads,
            ),
            self._launch(
                "in order",
                "solve_reduced_in_order",
                (*sizes, is_checked),
                (levels, *lengths, self._states, undominated, left or _EVERYTHING, self._counters),
                grid=few,
                threads=tuning.reduced_threads,
            ),
            self._launch(
                "in order",
                "expand_in_order",
                (*ways, *access),
                (*parameters, self._states, lost, ticket),
                grid=grid,
                threads=threads,
            ),
        ]

    def exchanging(self, due: Struct) -> list[Launch]:
        """Return the launches with row exchanges: in registers, of windows, and by the stable solver for the rest."""
        problem, tuning, access = self.problem, self.tuning, self.batch.access
        rows, threads = tuning.rows_exchanging[problem.nbytes], tuning.reducing_threads
        levels = self._levels(rows, 2, CHAIN_NUMBERS + 1)
        # For each warp two marks of 32 bits, one bit for every lane.
        warps = -(-problem.n // (32 * rows))
        marks = self.space.place("marks", 8 * problem.systems * warps, "unsigned")
        inaccurate, rest = self.worklist("inaccurate"), self.worklist("rest")
        # For systems of few unknowns, the stable solver costs little more than a launch that finds nothing to do.
        twice = problem.n > tuning.few_unknowns
        still = self.worklist("still_inaccurate") if twice else rest
        most = tuning.long_blocks if due is _EVERYTHING else 2 * tuning.few_blocks
        grid = most, -(-problem.n // (rows * threads))
        sizes, lengths, few = self._reduced(rows, 2)
        parameters = self.batch.parameter, levels
        launches = [
            self._launch(
                "exchanging long",
                "reduce_exchanging",
                (rows, threads, *access[:4]),
                (*parameters, due),
                grid=grid,
                threads=threads,
                if_any=counts(due),
            ),
            self._launch(
                "exchanging long",
                "solve_reduced_exchanging",
                sizes,
                (levels, *lengths, self._states, due, self._counters),
                grid=few,
                threads=tuning.reduced_threads,
                if_any=counts(due),
            ),
            self._launch(
                "exchanging long",
                "expand_exchanging",
                (rows, threads, *access),
                (*parameters, self._states, marks, due, inaccurate),
                grid=grid,
                threads=threads,
                resident_blocks=tuning.resident_blocks if problem.nbytes == 4 else 0,
                if_any=counts(due),
            ),
            self._windows(marks, (due, inaccurate, still, rest)),
        ]
        return [*launches, self.stable(rest, marks, still if twice else _EVERYTHING)]

    def _windows(self, marks: Pointer, lists: tuple[Struct, ...]) -> Launch:
        """Return the launch that refines windows in registers."""
        problem, tuning = self.problem, self.tuning
        rows, threads = tuning.rows_exchanging[problem.nbytes], tuning.window_threads
        windows = problem.n // (32 * rows) + 2
        each = -(-problem.systems * windows * 32 // (threads * tuning.few_blocks))
        each = min(8, power_of_two(each, up=True))
        return self._launch(
            "exchanging long",
            "refine_windows",
            (rows, *self.batch.access),
            (self.batch.parameter, self.space.number("each", each), marks, self._states, *lists, self._counters),
            grid=(tuning.few_blocks, -(-windows * 32 // (threads * each))),
            threads=threads,
            if_any=counts(*lists[:2]),  # it empties the first list and, if that has entries, reads the second
        )

    def stable(self, due: Struct, marks: Pointer | None = None, windowed: Struct = _EVERYTHING) -> Launch:
        """Return the launch of the stable solver. It first refines windows of systems on the list ``windowed``."""
        problem, tuning = self.problem, self.tuning
        rows, threads, blocks = tuning.rows[problem.nbytes], tuning.chunk_threads, tuning.long_blocks
        if problem.n <= tuning.few_unknowns:
            threads = max(32, threads // 4)
        if due is not _EVERYTHING:
            # Most calls leave it no work, but wait for its compilation. So a chunk has twice the threads, with half the
            # rows, and the loops over rows are unrolled.
            rows, threads, blocks = rows // 2, 2 * threads, -(-tuning.few_blocks // 2)
        threads = _chunk_threads(tuning, problem.nbytes, rows, threads)
        # As many threads on a multiprocessor as blocks of short systems have.
        resident = min(tuning.resident_blocks, tuning.resident_blocks * tuning.threads // threads)
        exchanges = problem.pivot != "none"
        chunks = -(-problem.n // (rows * threads))
        count = segments = chunks
        while count > threads:
            count = -(-count // threads)
            segments += count
        nbytes = problem.nbytes * problem.systems
        levels = self.space.place("segments", (SEGMENT_NUMBERS + 2) * nbytes * segments, problem.type)
        second = self.space.place("second", nbytes * problem.n * exchanges, problem.type)
        again = self.worklist("again")
        return self._launch(
            "stable long",
            "solve_stably",
            (rows, threads, tuning.rows_exchanging[problem.nbytes], bool(windowed.fields), exchanges, problem.periodic),
            (self.batch.parameter, levels, second, self._states, marks, windowed, due, again, self._counters),
            grid=(blocks, chunks),
            threads=threads,
            shared_bytes=_chunk_bytes(problem.nbytes, rows, threads),
            resident_blocks=resident if problem.nbytes == 4 else 0,
            if_any=counts(due, windowed),
        )

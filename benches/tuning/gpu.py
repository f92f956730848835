"""Search for the tuning of kernels on the machine at hand: ``python -m benches --tune reduce``.

From the entry in force it goes field by field. Every value near the present one is timed beside it, in turn, on the
cases of the comparison, after its results have passed the gate. A value is taken if it is faster by 2 % in the mean of
the cases, and once more when the two are timed again.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from benches.core import records
from benches.core.cases import Case, Problem, Scale
from benches.core.clock import Contender, interleave
from benches.core.runs import checked
from benches.tuning import entries
from examples.backends import Backend
from parprims import _cuda
from parprims._core.arrays import namespace
from parprims._core.memo import Memo

LEAST = 0.98
"""How long a value may take, of the present one's time, to be taken."""
LARGEST = 2**31 + 2**27
"""The most bytes of the inputs of a case, for all cases are kept: 2^28 elements and ids of 32 bits, and offsets."""


@dataclasses.dataclass(frozen=True)
class Search:
    """What is searched: fields of the entries of a module's table, judged by families of a bench module's cases.

    ``bench`` is the stem of that module, if it is not the primitive.
    """

    module: str
    families: tuple[str, ...]
    fields: tuple[str, ...]
    bench: str = ""


SEARCHES = {
    "reduce": Search(
        "_primitives.reduce.cuda",
        ("sum", "sum axis 0", "sum axis 1", "argmax", "welford"),
        ("bytes_in_flight", "threads", "blocks", "rounds", "column_bytes", "column_blocks"),
    ),
    "scan": Search(
        "_primitives.scan.tiling",
        ("sum", "sum of rows", "sum of columns", "sum of narrow columns", "one sequence", "batch"),
        (
            *(
                "threads",
                "tiles",
                "line_bytes",
                "long_line_bytes",
                "shared_bytes",
                "column_bytes",
                "columns_bytes",
                "columns",
            ),
            *(
                "column_state_bytes",
                "chained_lines",
                "serial_lines",
                "serial_parts",
                "serial_tiles",
                "serial_threads",
                "serial_bytes",
                "serial_resident",
                "skewed_elements",
                "ahead_bytes",
            ),
        ),
    ),
    "sort": Search(
        "_primitives.sort.cuda",
        ("sort", "sort of rows", "argsort", "key and value"),
        ("alone", "together", "rows", "few", "counters", "counting", "chunk", "each"),
    ),
    "tridiagonal": Search(
        "_primitives.tridiagonal.problem",
        ("batch of diffusion steps", "batch", "interleaved batch", "one system"),
        (
            *("rows_in_order", "threads_in_order", "rows_exchanging", "threads_exchanging", "block_exchanging"),
            *("rows", "threads", "interleaved_systems", "resident_blocks", "waiting_threads"),
            *("resident_threads_exchanging", "resident_blocks_exchanging"),
            *("reducing_threads", "reduced_rows", "reduced_threads", "chunk_threads", "window_threads"),
            *("long_blocks", "few_blocks"),
        ),
    ),
    "matmul": Search(
        "_primitives.matmul.tiles",
        ("square", "without bank conflicts", "tf32", "highest"),
        ("groups", "tensor", "conflict_free", "stages", "part", "packed", "at_once", "at_once_uneven"),
    ),
    "histogram": Search(
        "_primitives.histogram.cuda",
        ("256 bins", "65536 bins", "1000 edges", "256 bins with weights"),
        ("threads", "each", "blocks", "counters", "many_threads", "many_blocks", "sums_bytes", "runs"),
    ),
    "merge": Search("_primitives.search.merge_cuda", ("float32", "float32 and int32"), ("tiles",)),
    "segments": Search(
        "_primitives.segments.cuda",
        ("10 segments", "9942053 segments"),
        ("warps", "lane_bytes", "resident", "runs"),
    ),
    "segment_atomics": Search(
        "_primitives.segments.tables.atomics",
        ("maximum 1000 segments",),
        ("threads", "blocks", "shared_bytes", "flushed"),
        bench="segments",
    ),
    "segment_tables": Search(
        "_primitives.segments.tables.tables",
        ("1000 segments",),
        ("warps", "resident", "shared_bytes", "each", "flushed", "stored"),
        bench="segments",
    ),
    "segment_rows": Search(
        "_primitives.segments.tables.rows",
        ("2^20 rows of 64",),
        ("threads", "resident", "lanes", "state_bytes", "row_bytes", "least"),
        bench="segments",
    ),
    "sort_segments": Search(
        "_primitives.segments.by_offsets.sort_cuda", ("10 segments", "1000000 segments"), ("tiles", "blocks")
    ),
    "search": Search(
        "_primitives.search.cuda",
        ("unsorted", "unsorted 2^24 in 2^10"),
        ("threads", "each", "shared_bytes", "blocks", "resident"),
    ),
    "partition": Search("_primitives.order_statistics.partition_cuda", ("float32",), ("threads", "items")),
    "selection": Search(
        "_primitives.selection.cuda",
        (*(f"{share}% kept of size n" for share in (1, 50, 99)), "50% kept", "half", "runs up to 100"),
        ("tiles", "threads", "counters", "each"),
    ),
    "order_statistics": Search(
        "_primitives.order_statistics.cuda",
        (*(f"{most} of each row" for most in (10, 50, 64, 100, 1000)), "50 of each ascending row", "float32"),
        ("tiles", "part", "blocks", "digits", "counting", "counting_blocks"),
    ),
    "filters": Search(
        "_primitives.filters.cuda",
        ("order 4 one signal", "order 4 64 signals", "two sections", "four sections"),
        ("few", "many", "tiles", "chained_lines", "inside", "ahead_bytes"),
    ),
    "banded": Search(
        "_primitives.banded.cuda",
        ("pentadiagonal", "2 x 2 blocks", "4 x 4 blocks"),
        ("threads", "ahead_bytes"),
    ),
}


def near(value: Any) -> Iterator[Any]:
    """Yield the values that are tried beside one: integers half and double, one at a time, and lists without one."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from ({**value, key: other} for other in near(one))
    elif isinstance(value, tuple):
        make = getattr(type(value), "_make", tuple)
        for at, one in enumerate(value):
            yield from (make((*value[:at], other, *value[at + 1 :])) for other in near(one))
        if len(value) > 1 and isinstance(value[0], tuple):
            yield from (make((*value[:at], *value[at + 1 :])) for at in range(len(value)))
    elif isinstance(value, int) and value > 0:
        yield 2 * value
        if value > 1:
            yield value // 2


class InForce:
    """An entry of a table while it is in force, with what the library remembers of calls under it.

    Several can be entered in turn: what is prepared under one is not used under another.
    """

    def __init__(self, table: MutableMapping[int, Any], capability: int, entry: Any) -> None:
        self._table, self._capability, self._entry = table, capability, entry
        self._others: dict[int, Any] = {}
        self._found: dict[int, dict[Any, Any]] = {}

    def __enter__(self) -> None:
        self._others = {**self._table}
        self._table[self._capability] = self._entry
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()
        self._table.clear()
        self._table.update(self._others)

    def _swap(self) -> None:
        for memo in Memo._all:
            memo._found, self._found[id(memo)] = self._found.get(id(memo), {}), memo._found


@dataclasses.dataclass
class Candidate(Contender):
    """A contender whose calls are made under an entry."""

    in_force: InForce = dataclasses.field(kw_only=True)

    def sample(self, calls: int, whole_call: bool) -> float:
        """Return the seconds of one call."""
        with self.in_force:
            return super().sample(calls, whole_call)


@dataclasses.dataclass(frozen=True)
class Judge:
    """A case with its problem, the arrays of which are kept on the device."""

    case: Case
    problem: Problem
    arrays: tuple[Any, ...]


@dataclasses.dataclass
class Tuner:
    """The search for one primitive on one backend."""

    primitive: str
    search: Search
    backend: Backend
    judges: list[Judge]
    capability: int
    budget: float
    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def table(self) -> MutableMapping[int, Any]:
        """The table of the primitive."""
        found: MutableMapping[int, Any] = importlib.import_module(f"parprims.{self.search.module}").TUNING
        return found

    def tuned(self, start: Any) -> Any:
        """Return the best entry that is found."""
        entry = start
        for field in self.search.fields:
            values = list(near(getattr(entry, field)))
            others = [dataclasses.replace(entry, **{field: value}) for value in values]
            ratios = self.ratios(field, [entry, *others])
            if not ratios:
                continue
            best = min(ratios, key=lambda at: ratios[at])
            again = self.ratios(field, [entry, others[best - 1]]) if ratios[best] < LEAST else {}
            if again and again[1] < LEAST:
                entry = others[best - 1]
                print(f"{self.primitive}: {field}={getattr(entry, field)!r}: {again[1]:.3f} of the time", flush=True)
        return entry

    def ratios(self, field: str, entries: list[Any]) -> dict[int, float]:
        """Return the mean time of each entry but the first, as a ratio to the first one's; none of what fails."""
        in_force = [InForce(self.table, self.capability, entry) for entry in entries]
        ratios: dict[int, list[float]] = {at: [] for at in range(1, len(entries))}
        for judge in self.judges:
            label, passed, timed = f"{self.primitive}: {judge.case.name}", {}, {}
            for at, one in enumerate(in_force):
                if at and at not in ratios:  # has failed in another case
                    continue
                value = f"{field}={getattr(entries[at], field)!r}"
                call = self.backend.compile(functools.partial(judge.case.run, method="kernel"))
                candidate = Candidate(self.backend, value, call, [judge.arrays], in_force=one)
                try:
                    with one:
                        wrong = checked(candidate, judge.problem, passed)
                except Exception as error:  # whatever a kernel raises that cannot be made or launched so
                    wrong = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
                if wrong is None:
                    timed[at] = candidate
                elif at:
                    self.notes.append(f"{label}: {value} is out: {wrong}")
                    del ratios[at]
                else:
                    raise RuntimeError(f"{label}: the entry in force fails: {wrong}")
            passed.clear()
            interleave([*timed.values()], judge.case.whole_call, self.budget)
            seconds = {at: statistics.median(one.seconds) for at, one in timed.items()}
            for at, one in timed.items():
                self.records.append(self._record(judge, field, one.method, seconds[at], seconds[at] / seconds[0]))
                if at:
                    ratios[at].append(seconds[at] / seconds[0])
        return {at: statistics.geometric_mean(found) for at, found in ratios.items()}

    def _record(self, judge: Judge, field: str, value: str, seconds: float, ratio: float) -> dict[str, Any]:
        return {
            "primitive": self.primitive,
            "case": judge.case.name,
            "backend": self.backend.name,
            "method": "kernel",
            "dtype": judge.problem.inputs[0].dtype.name,
            "field": field,
            "value": value.partition("=")[2],
            "seconds": seconds,
            "ratio": round(ratio, 4),
        }


def judges(primitive: str, backend: Backend, scale: Scale) -> list[Judge]:
    """Return the cases that judge, on which the kernel is to serve."""
    found = []
    for case in importlib.import_module(f"benches.primitives.{SEARCHES[primitive].bench or primitive}").cases(scale):
        fits = backend.name.partition("-")[0] in case.libraries and "kernel" not in case.skip and not case.whole_call
        if not fits or case.name.partition(",")[0] not in SEARCHES[primitive].families:
            continue
        problem = case.make(np.random.default_rng(list(case.name.encode())))
        if math.fsum(x.nbytes for x in problem.inputs) > LARGEST:
            continue
        if all(backend.supports(x.dtype.name) for x in problem.inputs):
            found.append(Judge(case, problem, tuple(map(backend.asarray, problem.inputs))))
    return found


def tune(wanted: list[str], present: list[Backend], scale: Scale, sha: str | None) -> int:
    """Search for the entries of primitives, write them to the results and print them; return the exit status."""
    unknown = [name for name in wanted if name not in SEARCHES]
    if unknown:
        raise SystemExit(f"nothing to tune in {', '.join(unknown)}; there are {', '.join(SEARCHES)}")
    backend = next(one for one in present if one.cuda)
    head = records.header([backend], {}, sha)
    path = records.RESULTS / "tuning" / f"{records.slug(head['device'])}.json"
    for primitive in wanted:
        found = judges(primitive, backend, scale)
        if not found:
            raise SystemExit(f"no case of the comparison judges {primitive} on {backend.name}")
        xp, x = namespace(x=found[0].arrays[0]), found[0].arrays[0]
        capability = _cuda.capability(xp, x)
        tuner = Tuner(primitive, SEARCHES[primitive], backend, found, capability, budget=scale.pick(0.02, 0.05, 0.15))
        start = dataclasses.replace(
            _cuda.tuned_for(tuner.table, xp, x),
            record=path.relative_to(records.ROOT).as_posix() if path.is_relative_to(records.ROOT) else path.name,
            device=head["device"],
            multiprocessors=_cuda.multiprocessors(xp, x) or _cuda.tuned(tuner.table, capability).multiprocessors,
        )
        found_entry = tuner.tuned(start)
        entry = {"primitive": primitive, "capability": capability, "entry": entries.plain(found_entry)}
        records.write_results(path, head, [*tuner.records, entry], [primitive])
        print(*dict.fromkeys(tuner.notes), sep="\n", file=sys.stderr)
        text = entries.entry_text(capability, found_entry)
        print(f"The entry of {tuner.table.file}, of the searches in {path}:\n{text}", flush=True)
    return 0

"""The short comparison: every primitive at three sizes, the three ways beside the best peer, on one page.

Nothing is written but the page, and records to a path that is given.
"""

from __future__ import annotations

import dataclasses
import re
import statistics
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benches.core import records
from benches.core.cases import OURS, Scale
from benches.core.clock import Contender, interleave
from benches.core.progress import progress
from benches.core.runs import Outcome, run_case
from benches.page import page
from benches.page.ahead import compile_ahead
from benches.page.short_cases import CLASSES, ROWS, Row, exponents
from examples.backends import Backend

LONG, TOO_LONG = 0.3, 0.5
"""Seconds from which a call is timed once, and from which it is left out, judged by its time at the size before."""
BUDGET, ALONE = 0.04, 0.25
"""Seconds for each contender of a case, and for each of two that are timed a second time, alone."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A call at one size: the speed of each of our ways over that of the best peer.

    ``taken`` is the way that auto takes; a ``loss`` is beyond noise.
    """

    speeds: Mapping[str, float]
    taken: str
    peer: str
    loss: bool = False

    @property
    def words(self) -> list[str]:
        """What the table says: a number for each way, that of auto marked, and who the best peer is."""
        return [*(self._number(way) for way in OURS), self.peer or "-"]

    def _number(self, way: str) -> str:
        if way not in self.speeds:
            return "-"
        return number(self.speeds[way]) + ("" if way != self.taken else "!" if self.loss else "*")


def number(ratio: float) -> str:
    """Return a ratio in at most four characters."""
    if ratio < 0.01:
        return "<.01"
    return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.1f}" if ratio < 99.95 else f"{ratio:.0f}"


def slower(one: Contender, other: Contender) -> bool:
    """Return whether one takes longer than another, by more than the page allows and than each scatters."""
    beyond = statistics.median(one.seconds) > page.LOSS * statistics.median(other.seconds)
    return beyond and _quartiles(one.seconds)[0] > _quartiles(other.seconds)[1]


def _quartiles(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the times that a quarter of the samples fall below, and above."""
    ordered = sorted(seconds)
    quarter = len(ordered) // 4
    return ordered[quarter], ordered[-1 - quarter]


def judged(outcome: Outcome, backend: str, alone: Callable[[list[Contender]], None]) -> Cell | None:
    """Return what the page says of a case on one library's arrays; None where nothing was timed.

    What auto takes, if it seems slower than the best peer, is timed once more with that peer, ``alone``.
    """
    timed = {one.method: one for one in outcome.timed if one.backend.name == backend}
    if not timed:
        return None
    seconds = {name: statistics.median(one.seconds) for name, one in timed.items()}
    peers = [name for name in timed if name.startswith("peer:")]
    taken = outcome.auto.get(backend, "")
    if taken not in timed and not {taken, f"{backend} {taken}"} & set(outcome.case.skip):
        # Refused in the program that XLA compiles; there auto takes the next that is not.
        taken = next((name for name in timed if name in OURS), "")
    if not peers:
        return Cell({}, taken, "")
    best = min(peers, key=seconds.__getitem__)
    speeds = {way: seconds[best] / seconds[way] for way in OURS if way in seconds}
    loss = taken in timed and slower(timed[taken], timed[best])
    if loss:
        alone([timed[taken], timed[best]])
        loss = slower(timed[taken], timed[best])
        speeds[taken] = statistics.median(timed[best].seconds) / statistics.median(timed[taken].seconds)
    return Cell(speeds, taken, best.removeprefix("peer:"), loss)


def chosen(primitives: Iterable[str] | None, pattern: str | None) -> list[Row]:
    """Return the calls of these primitives, or of all, that have a label whose beginning matches the pattern."""
    known = {row.primitive for row in ROWS}
    unknown = set(primitives or ()) - known
    if unknown:
        raise SystemExit(f"the page has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
    found = [row for row in ROWS if not primitives or row.primitive in primitives]
    found = [row for row in found if re.match(pattern or "", row.label)]
    if not found:
        raise SystemExit(f"no call has a name that matches {pattern}")
    return found


@dataclasses.dataclass
class Line:
    """A line of the page: a call on one library's arrays, its cells by size."""

    label: str
    backend: str
    cells: list[Cell | None]


def too_long(outcome: Outcome, growth: float) -> dict[str, str]:
    """Return the contenders that would take too long at a size at which a call takes so many times as long.

    What auto takes and the fastest peer are never among them.
    """
    found = {}
    for backend in outcome.auto:
        timed = {one.method: statistics.median(one.seconds) for one in outcome.timed if one.backend.name == backend}
        peers = [name for name in timed if name.startswith("peer:")]
        kept = {outcome.auto[backend], min(peers, key=timed.__getitem__, default="")}
        for name, seconds in timed.items():
            if name not in kept and growth * seconds > TOO_LONG:
                found[f"{backend} {name.removeprefix('peer:')}"] = "it would take too long"
    return found


def measure(
    rows: Sequence[Row], present: list[Backend], scale: Scale
) -> tuple[list[Line], list[dict[str, Any]], list[str]]:
    """Return the lines of the page, the records of all that was timed, and what is wrong."""
    sizes = exponents(scale)
    budget, again = scale.pick((0.002, 0.01), (BUDGET, ALONE), (BUDGET, ALONE))
    lines = {(row.label, one.name): Line(row.label, one.name, []) for row in rows for one in present}
    found: list[dict[str, Any]] = []
    errors: list[str] = []
    skip: dict[str, str] = {}
    steps = [Step(row, size, k) for row in rows for size, k in zip(CLASSES, sizes, strict=True)]
    for step in progress(steps, "call"):
        if step.k == sizes[0]:
            skip = {}
        case = dataclasses.replace(step.row.case(step.k), skip=skip)
        try:
            outcome = run_case(case, present, {}, budget, LONG)
        except Exception as error:  # a case that breaks down must not take the others' results with it
            outcome = Outcome(case, [], {}, [f"{case.name} FAILED: {type(error).__name__}: {error}"], [])
        found += outcome.records
        errors += [f"{case.primitive}: {error}" for error in outcome.errors]
        for one in present:
            cell = judged(outcome, one.name, lambda two: interleave(two, True, again))
            lines[step.row.label, one.name].cells.append(cell)
        following = [k for k in sizes if k > step.k]
        if following:
            skip = skip | too_long(outcome, 2 ** (step.row.power * (following[0] - step.k)))
    return list(lines.values()), found, errors


@dataclasses.dataclass(frozen=True)
class Step:
    """A call at one size, as the counter names it."""

    row: Row
    size: str
    k: int

    def __str__(self) -> str:
        return f"{self.row.label}, {self.size}"


def table(lines: Sequence[Line], sizes: Sequence[int]) -> str:
    """Return the table: a call a line, under each size the speeds of our ways and the best peer's name."""
    several = len({line.backend for line in lines}) > 1
    ways = [*OURS, "peer"]
    rows = []
    for line in lines:
        cells = [cell.words if cell else ["-"] * len(ways) for cell in line.cells]
        name = f"{line.label}, {line.backend}" if several else line.label
        rows.append([name, *(word for words in cells for word in words)])
    head = ["", *ways * len(sizes)]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]

    def text(row: Sequence[str]) -> str:
        found = row[0].ljust(widths[0])
        for at in range(1, len(row)):
            first, peer = (at - 1) % len(ways) == 0, at % len(ways) == 0
            word = row[at].ljust(widths[at]) if peer else _aligned(row[at], widths[at])
            found += (" | " if first else " ") + word
        return found.rstrip()

    above = "call".ljust(widths[0])
    for at, (size, k) in enumerate(zip(CLASSES, sizes, strict=True)):
        wide = sum(widths[1 + at * len(ways) : 1 + (at + 1) * len(ways)]) + len(ways) - 1
        above += " | " + f"{size}: {2**k:,} elements".replace(",", " ").ljust(wide)
    return "\n".join((above.rstrip(), *map(text, (head, *rows))))


def _aligned(word: str, width: int) -> str:
    """Return a number to the right of its column, with room for a mark; names of columns have none."""
    return (word if word[-1] in "*!" or word.isalpha() else f"{word} ").rjust(width)


LEGEND = (
    "Every number is the speed of ours over that of the best peer in the same call: above 1 ours is faster. array, "
    "kernel and native are our three ways: array operations, our compiled kernel, and the library's own routine called "
    "through us. The peer is the fastest of all else: the library's function called directly, SciPy, or a loop "
    "compiled by Numba. * is what auto takes. ! is the same, and a loss: slower by over {loss:.0%} and beyond noise, "
    "timed twice, the second time alone. - is not timed: there is none, or it would take too long. Arrays hold "
    "float32 unless the name says more. Results are checked before they are timed; times are those of whole calls from "
    "Python."
)
TOY = "At these toy sizes only Python's overhead is measured, so that nothing follows for the speed of larger arrays."


def conclusion(lines: Sequence[Line], quick: bool) -> tuple[str, str]:
    """Return two sentences: how often auto wins, and where to prefer the peer."""
    cells = [(line, size, cell) for line in lines for size, cell in zip(CLASSES, line.cells, strict=True)]
    known = [(line, size, cell) for line, size, cell in cells if cell and cell.taken in cell.speeds]
    losses = [(line, size) for line, size, cell in known if cell.loss]
    faster = sum(cell.speeds[cell.taken] > page.LOSS for _, _, cell in known)
    medians = {
        wanted: statistics.median(found)
        for wanted in CLASSES
        if (found := [cell.speeds[cell.taken] for _, size, cell in known if size == wanted])
    }
    even = len(known) - faster - len(losses)
    median = ", ".join(f"{number(ratio)} at {size} sizes" for size, ratio in medians.items())
    margin = f"over {page.LOSS - 1:.0%}"
    first = (
        f"Left to auto, {faster} of {len(known)} calls are {margin} faster than the best peer, {len(losses)} are "
        f"{margin} slower and beyond noise, and {even} differ by less or within noise; "
        f"the median of our speed over the peer's is {median or 'not known'}."
    )
    if quick:
        return first, TOY
    at_size = {size: [line.label for line, where in losses if where == size] for size in CLASSES[1:]}
    told = "; ".join(f"at {size} sizes for {', '.join(names)}" for size, names in at_size.items() if names)
    peer = f"take the peer {told}" if told else "leave the choice to auto, which loses none of them"
    return first, f"Small calls measure only Python's overhead, so judge speed by the other sizes: {peer}."


def text(lines: Sequence[Line], head: Mapping[str, Any], scale: Scale) -> str:
    """Return the page."""
    more = page.missing(("numba", "scipy"))
    parts = [
        _title(lines, head),
        table(lines, exponents(scale)),
        _wrapped(LEGEND.format(loss=page.LOSS - 1)),
        *([_wrapped("More would be compared with " + "; ".join(more))] if more else []),
        "\n".join(map(_wrapped, conclusion(lines, scale.quick))),
    ]
    return "\n\n".join(parts)


def _wrapped(words: str) -> str:
    return textwrap.fill(words, 100, break_on_hyphens=False)


def _title(lines: Sequence[Line], head: Mapping[str, Any]) -> str:
    backends = ", ".join(dict.fromkeys(line.backend for line in lines))
    where = f"{head['device']}" + (f", {head['cpus']} threads" if "cpus" in head else "")
    names = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    return f"parprims beside the best peer, on arrays of {backends}: {where}, {head['date'][:10]}\n{names}"


def run(rows: Sequence[Row], present: list[Backend], scale: Scale, path: Path | None, sha: str | None) -> int:
    """Measure, print the page and return the exit status, 1 where a result is wrong."""
    compile_ahead(rows, scale)
    lines, found, errors = measure(rows, present, scale)
    head = records.header(present, {}, sha)
    if path:
        records.write_results(path, head, found, {(one["primitive"], one["case"]) for one in found})
    print(*(f"ERROR {error}" for error in errors), sep="\n", end="\n" if errors else "", file=sys.stderr)
    print(text(lines, head, scale))
    return 1 if errors else 0

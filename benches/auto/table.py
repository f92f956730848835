"""The table of calls on a CPU: what `auto` takes, and how long, beside the best of what people would write instead.

``python -m benches --table`` checks and times every call of `benches.auto.rows`, with all its peers in turn, and prints
the worst last.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import parprims
from benches.auto.calls import Call
from benches.auto.rows import calls
from benches.core import records
from benches.core.cases import Problem
from benches.core.clock import Contender, interleave
from benches.core.progress import progress, say
from benches.core.runs import checked, present_backends
from examples.backends import ON_CUDA, Backend, available, installed
from parprims._tools.comparison import si

LIBRARIES = ("numpy", "torch", "jax")
FACTOR, SECONDS = 1.1, 3e-6
"""How much longer than the best peer a call may take."""
FAR = 3
"""A peer that takes so many times as long as another in its first calls is not timed again."""


LOOP = "peer:numba loop"
"""The peer that stands beside the others: what people write who compile their loops."""


def excess(seconds: float, peer: float) -> float:
    """Return our time as a part of what it may be beside a peer's; more than 1 is a miss."""
    return seconds / (FACTOR * peer + SECONDS)


def best_of(peers: Mapping[str, float]) -> str:
    """Return the name of the fastest peer but the loop compiled by Numba, or that where it is the only one."""
    return min(peers, key=lambda name: (name == LOOP, peers[name]))


@dataclasses.dataclass(frozen=True)
class Line:
    """A call as it was timed: the method that auto took, and the median seconds of ours and of the peers by name."""

    call: Call
    backend: str
    method: str
    seconds: float
    peers: Mapping[str, float]

    @property
    def best(self) -> str:
        """The name of the best peer."""
        return best_of(self.peers)

    @property
    def excess(self) -> float:
        """Our time as a part of what it may be beside the best peer."""
        return excess(self.seconds, self.peers[self.best])


@dataclasses.dataclass(frozen=True)
class Entry:
    """A call on one library's arrays, as the progress bar names it."""

    call: Call
    backend: Backend

    def __str__(self) -> str:
        return f"{self.call.name} {size(self.call)} on {self.backend.name}"


def size(call: Call) -> str:
    """Return the shape in words."""
    return " x ".join(map(str, call.shape))


def in_memory(backend: Backend, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a library's arrays that calls one of NumPy's arrays, in the memory that they have."""
    if backend.name == "numpy":
        return call
    read = backend.to_numpy if backend.name == "jax" else lambda x: x.numpy()

    def run(*arrays: Any) -> Any:
        result = call(*map(read, arrays))
        if isinstance(result, tuple):
            return tuple([backend.asarray(np.asarray(one)) for one in result])
        return backend.asarray(np.asarray(result))

    return run


def peers(call: Call, backend: Backend) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the peers of a call that take arrays of a library and are installed."""
    for name, peer in call.peers.items():
        module = name.replace(" ", ".").partition(".")[0]
        if module in ("torch", "jax"):
            if module == backend.name:
                yield name, backend.compile(peer)
        elif module in ("np", "numpy", "python") or installed(module):
            yield name, in_memory(backend, peer)


def contenders(call: Call, backend: Backend) -> tuple[Problem, list[Contender]]:
    """Return the problem of a call, and ours with its peers."""
    problem = call.make(np.random.default_rng(list(f"{call.name} {size(call)}".encode())))
    inputs = [tuple(map(backend.asarray, problem.inputs))]
    ours = functools.partial(call.run, method="auto")
    found = [Contender(backend, "auto", backend.compile(ours) if call.compiled else ours, inputs)]
    return problem, [*found, *(Contender(backend, f"peer:{name}", peer, inputs) for name, peer in peers(call, backend))]


def right(call: Call, problem: Problem, entrants: list[Contender]) -> tuple[list[Contender], list[str], str]:
    """Return those whose results are right, what is wrong with the others, and the method that auto took."""
    found, errors = [], []
    with parprims.explain() as explained:
        for one in entrants:
            try:
                wrong = checked(one, problem, {})
            except Exception as error:  # one that breaks down must not take the others with it
                wrong = f"{type(error).__name__}: {error}"
            if wrong is None:
                found.append(one)
            else:
                errors.append(f"{call.name} {size(call)} {call.dtype}: {one.backend.name} {one.method}: {wrong}")
    return found, errors, explained[0].method if explained else ""


def timed(call: Call, backend: Backend, quick: bool) -> tuple[Line | None, list[str]]:
    """Check a call and its peers and time those that pass; return nothing where ours does not, and what is wrong."""
    passed, errors, method = right(call, *contenders(call, backend))
    if len(passed) < 2 or passed[0].method != "auto":
        return None, errors
    ours, *others = passed
    first = {one.method: min(one.sample(1, True) for _ in range(2)) for one in others}
    near = FAR * first[best_of(first)]
    near_ones = [ours, *(one for one in others if one.method == LOOP or first[one.method] <= near)]

    def line(budget: float) -> Line:
        interleave(near_ones, True, budget)
        seconds, *rest = (statistics.median(one.seconds) for one in near_ones)
        names = [one.method for one in near_ones[1:]]
        return Line(call, backend.name, method, seconds, dict(zip(names, rest, strict=True)))

    found = line(0.01 if quick else 0.1)
    if found.excess > 1 and not quick:  # which may be by chance
        found = line(0.3)
    return found, errors


HEAD = "call|backend|dtype|shape|axis|auto takes|time|best peer|its time|ratio|within|numba loop|ratio".split("|")


def table(lines: Iterable[Line]) -> str:
    """Return the table, the worst call last; ratios are our speed over the peer's."""
    rows = [HEAD]
    for one in sorted(lines, key=lambda one: one.excess):
        call, best = one.call, one.peers[one.best]
        words = [call.name, one.backend, call.dtype, size(call), str(call.axis), one.method, si(one.seconds, "s")]
        words += [one.best.removeprefix("peer:"), si(best, "s"), f"{best / one.seconds:.2f}"]
        words.append("no" if one.excess > 1 else "yes")
        loop = one.peers.get(LOOP)
        words += [si(loop, "s"), f"{loop / one.seconds:.2f}"] if loop else ["", ""]
        rows.append(words)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def verdict(lines: list[Line]) -> str:
    """Return how many calls take longer than they may."""
    loops = [excess(one.seconds, one.peers[LOOP]) for one in lines if LOOP in one.peers]
    missed, beside = sum(one.excess > 1 for one in lines), sum(one > 1 for one in loops)
    bound = f"{FACTOR} times as long and {si(SECONDS, 's')}"
    return (
        f"{missed} of {len(lines)} calls take more than {bound} beside the best peer, "
        f"{beside} of {len(loops)} beside a loop compiled by Numba, which is the best peer only where it is alone"
    )


def line_records(one: Line) -> list[dict[str, Any]]:
    """Return the records of a call: ours with the method that auto took, then the peers'."""
    call = one.call
    same = {"primitive": call.primitive, "case": f"{call.name}, {size(call)}", "backend": one.backend}
    kind = {"dtype": call.dtype, "shape": list(call.shape), "axis": call.axis}
    found = [{**same, "method": name, **kind, "seconds": seconds} for name, seconds in one.peers.items()]
    return [{**same, "method": "auto", **kind, "seconds": one.seconds, "took": one.method}, *found]


def entries(present: list[Backend], quick: bool, primitives: Iterable[str] | None) -> list[Entry]:
    """Return the calls on the arrays of each library, of all primitives or of those named."""
    found = [Entry(call, backend) for backend in present for call in calls(backend.name, quick)]
    known = {one.call.primitive for one in found}
    unknown = set(primitives or ()) - known
    if unknown:
        raise SystemExit(f"the table has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}")
    return [one for one in found if primitives is None or one.call.primitive in primitives]


def run_table(names: list[str] | None, quick: bool, primitives: list[str] | None, place: Path, sha: str | None) -> int:
    """Time the table, print it and write its records; return the exit status, 1 where a result is wrong.

    Records go to ``place``, a file, or a folder in which the file is named after the machine. A quick table is written
    only to a file.
    """
    if set(names or ()) & set(ON_CUDA):
        raise SystemExit("the table is one of CPUs; backends on a GPU are in the comparison")
    present = present_backends(names or [name for name in LIBRARIES if available(name)])
    lines: list[Line] = []
    errors: list[str] = []
    chosen = entries(present, quick, primitives)
    for one in progress(chosen, "call"):
        line, wrong = timed(one.call, one.backend, quick)
        errors += wrong
        if line:
            lines.append(line)
            beside = f"{line.peers[line.best] / line.seconds:.2f} of the speed of {line.best.removeprefix('peer:')}"
            say(f"{one}: {si(line.seconds, 's')} by {line.method}, {beside}", sys.stderr)
    print(table(lines))
    print(verdict(lines))
    head = records.header(present, {}, sha)
    to_file = place.suffix == ".json"
    if to_file or not quick:
        path = place if to_file else place / f"{records.slug(head['device'])}.json"
        everything = names is None and primitives is None
        before = json.loads(path.read_text())["records"] if path.exists() else []
        ran = {(one.call.primitive, f"{one.call.name}, {size(one.call)}", one.backend.name) for one in chosen}
        ran |= {one["primitive"] for one in before} if everything else set()
        records.write_results(path, head, [record for one in lines for record in line_records(one)], ran)
        print(f"results: {path}")
    print(*(f"ERROR {error}" for error in errors), sep="\n", end="\n" if errors else "", file=sys.stderr)
    return 1 if errors else 0

"""The run of a case: every method and peer that serves is made, checked, timed and put on record."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

import parprims
from benches.core.cases import LIBRARIES, OUTSIDE, Case, Problem
from benches.core.checks import equal, gate
from benches.core.clock import Contender, interleave
from benches.core.problems import cores
from benches.core.raw_kernels import launched
from examples import backends
from examples.backends import Backend, installed
from parprims._cuda import compiler


def present_backends(names: Iterable[str] | None = None) -> list[Backend]:
    """Return the backends named; without names those that are present, on the GPU where the machine has one."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if names is None:
        found = [name for name in backends.MAKERS if backends.available(name)]
        names = [name for name in found if name in backends.ON_CUDA] or found
    if installed("scipy"):
        import scipy.linalg  # noqa: F401  # now, for a first import while a thread of JAX's makes one may be a deadlock
    return [backends.make(name) for name in names]


@dataclasses.dataclass
class Outcome:
    """What a case came to: records in the file's form, the method auto takes by backend, errors and refusals.

    ``spent`` holds the seconds it took to make the problem, to compile and check, and to time. ``timed`` holds those
    who were timed.
    """

    case: Case
    records: list[dict[str, Any]]
    auto: dict[str, str]
    errors: list[str]
    notes: list[str]
    spent: tuple[float, ...] = ()
    timed: list[Contender] = dataclasses.field(default_factory=list)


def run_case(
    case: Case, present: list[Backend], ceilings: Mapping[str, float], budget: float, long: float = 2.0
) -> Outcome:
    """Make a case's problem, pass every contender through the gate and time those that get through.

    ``budget`` and ``long`` are those of `interleave`.
    """
    clock = [time.perf_counter()]
    for backend in present:
        backend.free()
    problem = case.make(np.random.default_rng(list(case.name.encode())))
    clock.append(time.perf_counter())
    outcome = Outcome(case, [], {}, [], [])
    contenders = []
    entrants = list(_contenders(case, problem, present, outcome))
    # XLA takes seconds to compile a call, on one core: all of a case are compiled while the others are checked.
    compiling = {
        id(one): cores().submit(lambda one=one: one.call.lower(*one.inputs[0]).compile())
        for one in entrants
        if hasattr(one.call, "lower")
    }
    passed: dict[str, Any] = {}
    for one in entrants:
        label = f"{case.name}: {one.backend.name} {one.method}"
        try:
            if id(one) in compiling:
                compiling[id(one)].result()
            wrong = checked(one, problem, passed)
        except parprims.MethodRefused as refusal:
            outcome.notes.append(f"{one.backend.name} {str(refusal).partition(': ')[2]}")
        except Exception as error:
            if isinstance(error, ImportError) and one.method.startswith("peer:"):  # a part of it is not installed
                outcome.notes.append(f"{label} not timed: {error}")
            else:
                outcome.errors.append(f"{label} FAILED: {type(error).__name__}: {error}")
        else:
            if wrong:
                outcome.errors.append(f"{label} WRONG: {wrong}")
            else:
                contenders.append(one)
    passed.clear()
    clock.append(time.perf_counter())
    interleave(contenders, case.whole_call, budget, long)
    outcome.timed = contenders
    clock.append(time.perf_counter())
    outcome.spent = tuple(after - before for before, after in itertools.pairwise(clock))
    outcome.records = [
        {**_record(case, problem, one, ceilings), "auto": outcome.auto[one.backend.name] == one.method}
        for one in contenders
    ]
    return outcome


def checked(one: Contender, problem: Problem, passed: dict[str, Any]) -> str | None:
    """Return what is wrong with a contender's result, or None; ``passed`` keeps one by backend that passed the gate."""
    result = one.call(*one.inputs[0])
    compiler.finish()  # a first call may leave out launches that are still being compiled
    to_numpy, name = one.backend.to_numpy, one.backend.name
    # What a GPU finds equal to a result that passed need not be copied and pass once more.
    if one.backend.cuda and name in passed and equal(result, passed[name]):
        return None
    arrays = tuple(map(to_numpy, result)) if isinstance(result, (tuple, list)) else to_numpy(result)
    wrong = gate(arrays, problem)
    if wrong is None:
        passed.setdefault(name, result)
    return wrong


def _contenders(case: Case, problem: Problem, present: list[Backend], outcome: Outcome) -> Iterator[Contender]:
    dtype = problem.inputs[0].dtype.name
    if case.raw_kernel and all(backend.name != "cupy" for backend in present):
        outcome.notes.append("rawkernel not timed, CuPy launches it and is not among the backends")
    for backend in present:
        if backend.name.partition("-")[0] not in case.libraries:
            continue
        if not all(backend.supports(x.dtype.name) for x in problem.inputs):
            outcome.notes.append(f"{backend.name} computes with no {dtype}")
            continue
        arrays = tuple(map(backend.asarray, problem.inputs))
        inputs = [arrays]
        if backend.cuda and backend.event is None and not case.whole_call:
            # Without device events the calls follow each other: they walk over copies that no cache holds together.
            copies = min(64, 2**28 // sum(x.nbytes for x in problem.inputs))
            inputs += [tuple(map(backend.asarray, problem.inputs)) for _ in range(copies)]
        try:
            methods = parprims.methods(functools.partial(case.run, method="auto"), *arrays)
        except Exception as error:
            outcome.errors.append(f"{case.name}: {backend.name} FAILED: {type(error).__name__}: {error}")
            continue
        outcome.auto[backend.name] = next(name for name, refusal in methods.items() if refusal is None)
        calls = {name: functools.partial(case.run, method=name) for name in methods}
        for peer, call in case.peers.items():
            home, module = OUTSIDE.get(peer, (backend.name, peer))
            if home != backend.name or (peer in LIBRARIES and backend.name.partition("-")[0] != peer):
                continue
            if not installed(module):
                outcome.notes.append(f"peer {peer} is not installed")
            elif peer != "numpy" or case.whole_call or methods.get("native", "absent") is not None:
                calls[f"peer:{peer}"] = functools.partial(call, backend.module)
        if case.raw_kernel and backend.name == "cupy":
            calls["rawkernel"] = functools.partial(launched, calls["kernel"])
        for name, call in calls.items():
            short = name.removeprefix("peer:")
            label = next((one for one in (short, f"{backend.name} {short}") if one in case.skip), None)
            if label:
                outcome.notes.append(f"{case.name}: {label} not timed, {case.skip[label]}")
            else:
                yield Contender(backend, name, backend.compile(call), inputs)


def _record(case: Case, problem: Problem, one: Contender, ceilings: Mapping[str, float]) -> dict[str, Any]:
    seconds = statistics.median(one.seconds)
    expected = problem.expected if isinstance(problem.expected, tuple) else (problem.expected,)
    moved = sum(np.asarray(x).nbytes for x in (*problem.inputs, *expected))
    work = moved if case.work is None else case.work
    top = ceilings.get(case.ceiling) if case.ceiling and not case.whole_call else None
    return {
        "primitive": case.primitive,
        "case": case.name,
        "backend": one.backend.name,
        "method": one.method,
        "dtype": problem.inputs[0].dtype.name,
        "shape": list(problem.inputs[0].shape),
        "seconds": seconds,
        "rate": work / seconds,
        "unit": case.unit,
        "ceiling_fraction": (work if case.unit == "FLOP/s" else moved) / seconds / top if top else None,
    }

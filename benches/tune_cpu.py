"""Search for the crossovers of kernels on the CPU at hand: ``python -m benches --tune reduce`` where no GPU is.

Every kind of call is timed at growing sizes by the kernel and by the library's own way: its routine, or operations
where it has none. The kernel is preferred from the least size on from which it saves enough, there and at all larger.
Where other programs run on the machine, OMP_NUM_THREADS=1 in the environment gives times that they disturb least.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

import parprims
from benches import records
from benches.cases import Scale
from benches.clock import Contender, interleave
from examples.backends import Backend
from parprims._cpu.threads import limit

SAVED = 1e-4
"""Seconds that a kernel must save to be preferred to a routine: in its first call a process waits for Numba."""
CHANCE = 1.05
"""The ratio of times that are taken to be equal."""

SHAPES: Mapping[str, Callable[[int], tuple[tuple[int, ...], int]]] = {
    "line": lambda n: ((max(2, n // 1000), min(n // 2, 1000)), 1),
    "single line": lambda n: ((n,), 0),
    "narrow": lambda n: ((n // 3, 3), 0),
    "columns": lambda n: ((max(2, n // 1000), min(n // 2, 1000)), 0),
}
"""The shape of so many elements, and the axis, by how the lines lie."""

Make = Callable[[int], tuple[tuple[Any, ...], Callable[..., Any]]]
"""Returns the arrays of a call of so many elements, and the call, a function of them and of ``method``."""


def _numbers(shape: tuple[int, ...], dtype: str) -> Any:
    found = np.random.default_rng(0).standard_normal(shape)
    return (found * 1000).astype(dtype) if dtype.startswith("i") else found.astype(dtype)


def _square(x: Any) -> Any:
    return x * x


def _reduction(name: str, dtype: str, lines: str) -> Make:
    def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        shape, axis = SHAPES[lines](n)
        x = _numbers(shape, dtype)
        if name == "argmax":
            return (x, np.zeros(shape, np.int64)), lambda *x, method: parprims.reduce(x, name, axis=axis, method=method)
        if name == "dot":
            return (x, x.copy()), lambda x, y, method: parprims.vecdot(x, y, axis=axis - len(shape), method=method)
        if name == "map":
            return (x,), lambda x, method: parprims.map_reduce(_square, x, op="add", axis=axis, method=method)
        if name == "logical_and":
            return (x,), lambda x, method: parprims.all(x, axis=axis, method=method)
        return (x,), lambda x, method: parprims.reduce(x, name, axis=axis, method=method)

    return make


def _scan(name: str, dtype: str, lines: str) -> Make:
    def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        shape, axis = SHAPES[lines](n)
        x = _numbers(shape, dtype)
        if name == "multiply" and dtype.startswith("f"):
            x = np.sign(x)
        xs = (x, np.zeros(shape, np.int64)) if name == "argmax" else (x,)
        return xs, lambda *x, method: parprims.scan(x if len(x) > 1 else x[0], name, axis=axis, method=method)

    return make


def _decay(earlier: Any, later: Any) -> Any:
    return earlier * 0.5 + later


def _by_operator(function: Any) -> Make:
    op = parprims.Operator(_decay)
    return lambda n: ((_numbers((n,), "float64"),), lambda x, method: function(x, op, method=method))


def _recurrence(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    return (_numbers((n,), "float64") * 0.1, _numbers((n,), "float64")), parprims.linear_recurrence


def _systems(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    several = _numbers((n // min(64, n // 2), min(64, n // 2)), "float64")
    return (several, several + 9, several, several), parprims.solve_tridiagonal


def _system(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
    one = _numbers((n,), "float64")
    return (one, one + 9, one, one), parprims.solve_tridiagonal


def kinds(primitive: str) -> Iterator[tuple[str, Make]]:
    """Yield the kinds of calls that are measured, and what makes a call of them."""
    if primitive == "tridiagonal":
        yield "system", _system
        yield "systems", _systems
        return
    if primitive == "reduce":
        yield "operator", _by_operator(parprims.reduce)
        names, make, lying = (
            ("add", "multiply", "maximum", "logical_and", "argmax", "dot", "map"),
            _reduction,
            [*SHAPES],
        )
    else:
        yield "operator", _by_operator(parprims.scan)
        yield "recurrence", _recurrence
        names, make = ("add", "multiply", "maximum", "argmax", "logaddexp"), _scan
        lying = [one for one in SHAPES if one != "single line"]
    for name in names:
        for whole, dtype in (("", "float64"), (" of integers", "int64")):
            if whole and name in ("logical_and", "logaddexp"):
                continue
            for lines in lying:
                yield f"{name}{whole}, {lines}", make(name, dtype, lines)


PRIMITIVES = ("reduce", "scan", "tridiagonal")


def saved(kind: str) -> float:
    """Return the seconds that a kernel must save in a call of a kind: those with a comma have a routine."""
    return SAVED if "," in kind else 0


def crossover(sizes: Mapping[int, tuple[float, float]], saved: float) -> int | None:
    """Return the least size from which the kernel saves so many seconds, given (its, the other way's) by size."""
    found = None
    for size in sorted(sizes, reverse=True):
        kernel, other = sizes[size]
        if kernel > CHANCE * other - saved:
            break
        found = size
    return found


def measured(backend: Backend, kind: str, make: Make, sizes: list[int], budget: float) -> dict[str, dict[int, float]]:
    """Return the seconds by method and size; of one method only where the other does not serve."""
    found: dict[str, dict[int, float]] = {}
    for size in sizes:
        arrays, call = make(size)
        given = tuple(map(backend.asarray, arrays))
        offered = parprims.methods(functools.partial(call, method="auto"), *given)
        other = "native" if offered.get("native", "") is None else "array"
        if other == "array" and "," in kind:
            return {}  # it is an operator like any other here
        entrants = []
        for method in ("kernel", other):
            try:
                call(*given, method=method)
            except parprims.MethodRefused:
                return {}
            entrants.append(Contender(backend, method, functools.partial(call, method=method), [given]))
        interleave(entrants, True, budget)
        for one in entrants:
            found.setdefault(one.method, {})[size] = min(one.seconds)  # others on the machine only add
    return found


def tune_cpu(wanted: list[str], present: list[Backend], scale: Scale, sha: str | None) -> int:
    """Measure the crossovers of primitives, write the records and print the entries; return the exit status."""
    head = {**records.header(present, {}, sha), "threads": limit()}
    path = records.RESULTS / "tuning" / f"{records.slug(head['device'])}.json"
    record = path.relative_to(records.ROOT).as_posix() if path.is_relative_to(records.ROOT) else path.name
    sizes = [2**power for power in ((8, 12) if scale.quick else range(6, 22, 2))]
    for primitive in wanted:
        lines: list[dict[str, Any]] = []
        least: dict[str, dict[str, int]] = {}
        for backend in (one for one in present if one.name in ("numpy", "torch", "jax")):
            for kind, make in kinds(primitive):
                if backend.name == "jax" and "," in kind:
                    continue  # what JAX has a routine for is part of a program
                if backend.name == "torch" and kind.startswith("map"):
                    continue  # which has the kind of its operator there
                seconds = measured(backend, kind, make, sizes, scale.pick(0.01, 0.03, 0.03))
                if len(seconds) < 2:
                    continue
                kernel, (name, other) = seconds["kernel"], next(one for one in seconds.items() if one[0] != "kernel")
                both = {size: (kernel[size], other[size]) for size in kernel if size in other}
                found = crossover(both, saved(kind))
                if found is not None:
                    least.setdefault(backend.name, {})[kind] = 0 if found == sizes[0] else found
                same = {"primitive": f"{primitive} crossovers", "case": kind, "backend": backend.name}
                lines += [{**same, "method": "kernel", "size": size, "seconds": one} for size, one in kernel.items()]
                lines += [{**same, "method": name, "size": size, "seconds": one} for size, one in other.items()]
                print(f"{primitive}: {kind} on {backend.name}: from {found} on", flush=True)
        records.write_results(path, head, lines, [f"{primitive} crossovers"])
        module = importlib.import_module(f"parprims._{primitive}_cpu").__name__
        print(f"CROSSOVERS of {module}, of the times in {path}:\n{entry_text(record, least)}", flush=True)
    return 0


def entry_text(record: str, least: Mapping[str, Mapping[str, int]]) -> str:
    """Return the table as it stands in the module of a primitive."""
    body = [f'    record="{record}",', "    least={"]
    for library, found in least.items():
        body += [
            f'        "{library}": {{',
            *(f'            "{kind}": {size},' for kind, size in found.items()),
            "        },",
        ]
    return "\n".join(("CROSSOVERS = _cpu.Crossovers(", *body, "    },", ")"))

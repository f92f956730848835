"""Search for the crossovers of kernels on the CPU at hand: ``python -m benches --tune reduce`` where no GPU is.

Every kind of call is timed at growing sizes by the kernel and by the library's own way: its routine, or operations
where it has none. The kernel is preferred from the least size on from which it saves enough, there and at all larger.
Where other programs run on the machine, OMP_NUM_THREADS=1 in the environment gives times that they disturb least.
With --in-programs, the calls are compiled by jax.jit.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

import parprims
from benches.core import records
from benches.core.cases import Scale
from benches.core.clock import Contender, interleave
from benches.tuning import entries
from examples.backends import Backend
from parprims._cpu.crossovers import IN_PROGRAMS, Crossovers
from parprims._cpu.threads import limit

SAVED = 1e-5
"""Seconds that a kernel must save to be preferred to a routine: in its first call a process waits for LLVM."""
FEWEST_IN_PROGRAMS = 1024
"""The fewest elements for a kernel inside a program: XLA compiles operations on fewer sooner than Numba a kernel."""
CHANCE = 1.05
"""The ratio of times that are taken to be equal."""

SHAPES: Mapping[str, Callable[[int], tuple[tuple[int, ...], int]]] = {
    "line": lambda n: ((max(2, n // 1000), min(n // 2, 1000)), 1),
    "short line": lambda n: ((n // 32, 32), 1),
    "single line": lambda n: ((n,), 0),
    "narrow": lambda n: ((n // 3, 3), 0),
    "few columns": lambda n: ((max(2, n // 64), min(n // 2, 64)), 0),
    "columns": lambda n: ((max(2, n // 1000), min(n // 2, 1000)), 0),
}
"""The shape of so many elements, and the axis, by how the lines lie."""

Make = Callable[[int], tuple[tuple[Any, ...], Callable[..., Any]]]
"""Returns the arrays of a call of a size, and the call, a function of them and of ``method``."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of call that is measured.

    Parameters
    ----------
    name : str
        The name in the table of crossovers of a primitive.
    make : callable
        Makes a call of a size.
    has_routine : bool
        Whether libraries have a routine for it; then the kernel must save ``SAVED`` seconds.
    sizes : sequence of int
        What the table counts: elements where its module says nothing else.
    libraries : tuple of str
        Those on whose arrays it is measured.
    compiled : float
        Seconds for which the other way is compiled once a shape, which the kernel may lose in a call.
    """

    name: str
    make: Make
    has_routine: bool = False
    sizes: Sequence[int] = tuple(2**power for power in range(6, 22, 2))
    libraries: tuple[str, ...] = ("numpy", "torch", "jax")
    compiled: float = 0

    @property
    def saved(self) -> float:
        """The seconds that the kernel must save in a call."""
        return (SAVED if self.has_routine else 0) - self.compiled


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
        if name in _WIDENED:
            return (x,), functools.partial(_WIDENED[name][0], axis=axis)
        return (x,), lambda x, method: parprims.reduce(x, name, axis=axis, method=method)

    return make


def _scan(name: str, dtype: str, lines: str) -> Make:
    def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        shape, axis = SHAPES[lines](n)
        x = _numbers(shape, dtype)
        if name == "multiply" and dtype.startswith("f"):
            x = np.sign(x)
        if name in _WIDENED:
            return (x,), functools.partial(_WIDENED[name][1], axis=axis)
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


def _tridiagonal_kinds() -> Iterator[Kind]:
    yield Kind("system", _system)
    yield Kind("systems", _systems)


_ELEMENTS = {"": "float64", " of integers": "int64"}
_WIDENED = {
    "add": (parprims.sum, parprims.cumulative_sum),
    "multiply": (parprims.prod, parprims.cumulative_prod),
}
"""By operator, the reduction and the scan whose results have more bits than narrow integers."""


def _kinds_by_operator(names: Sequence[str], make: Callable[[str, str, str], Make], lying: list[str]) -> Iterator[Kind]:
    for name in names:
        elements = {"": "float64", " of bools": "bool"} if name == "logical_and" else _ELEMENTS
        if name in _WIDENED:
            elements = {**_ELEMENTS, " of narrow integers": "int32"}
        if name == "dot":  # libraries sum products of fewer bits by wider vectors
            elements = {**_ELEMENTS, "": "float32"}
        if make is _reduction and name not in ("logical_and", "argmax"):
            elements = {**elements, " of 16-bit floats": "float16"}
        for whole, dtype in elements.items():
            if whole and name == "logaddexp":
                continue
            libraries: tuple[str, ...] = ("numpy", "torch")  # what JAX has a routine for is in a program
            if name == "argmax" and make is _reduction:  # which NumPy finds for JAX outside of programs
                libraries = (*libraries, "jax")
            for lines in lying:
                short = lines in ("short line", "few columns")
                if short and name == "argmax":
                    continue
                finer = short or whole == " of narrow integers"
                on: tuple[str, ...] = ("numpy",) if finer else libraries
                yield Kind(f"{name}{whole}, {lines}", make(name, dtype, lines), True, libraries=on)


def _reduce_kinds() -> Iterator[Kind]:
    yield Kind("operator", _by_operator(parprims.reduce))
    names = ("add", "multiply", "maximum", "logical_and", "argmax", "dot", "map")
    yield from _kinds_by_operator(names, _reduction, [*SHAPES])


def _scan_kinds() -> Iterator[Kind]:
    yield Kind("operator", _by_operator(parprims.scan))
    yield Kind("recurrence", _recurrence)
    names = ("add", "multiply", "maximum", "argmax", "logaddexp")
    yield from _kinds_by_operator(names, _scan, [one for one in SHAPES if one != "single line"])


_SORTED = 2**16
"""Elements that are sorted in lines of growing length."""
_SORTED_DTYPES = {
    "floats": "float64",
    "floats of 16 bits": "float16",
    "integers": "int64",
    "8 bits": "uint8",
    "16 bits": "int16",
}


def _sort_kinds() -> Iterator[Kind]:
    shapes: Mapping[str, Callable[[int], tuple[tuple[int, ...], int]]] = {
        "line": lambda n: ((max(1, _SORTED // n), n), 1),
        "narrow": lambda n: ((n, 3), 0),
        "columns": lambda n: ((n, max(16, _SORTED // n)), 0),
    }

    def sort_of(dtype: str, lines: str) -> Make:
        def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
            shape, axis = shapes[lines](n)
            keys = np.random.default_rng(0).integers(0, 2**15 if dtype == "float16" else 2**30, shape)
            return (keys.astype(dtype),), functools.partial(parprims.sort, axis=axis)

        return make

    def argsort(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        return (_numbers((n,), "float64"),), parprims.argsort

    def by_key(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        return (_numbers((n,), "float64"), np.arange(n)), parprims.sort_by_key

    whole = tuple(2**power for power in range(12, 22, 2))
    for name, dtype in _SORTED_DTYPES.items():
        for lines, most in (("line", 20), ("narrow", 18), ("columns", 15)):
            lengths = tuple(2**power for power in range(6, most + 1))
            yield Kind(f"{name}, {lines}", sort_of(dtype, lines), sizes=lengths)
    yield Kind("indices", argsort, sizes=whole)
    yield Kind("values", by_key, sizes=whole)


def _histogram_kinds() -> Iterator[Kind]:
    def even(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        return (_numbers((n,), "float64"),), functools.partial(parprims.histogram, bins=256, range=(-3.0, 3.0))

    def edges(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        return (_numbers((n,), "float64"), np.sort(_numbers((257,), "float64"))), parprims.histogram

    def weights(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        def call(x: Any, edges: Any, weights: Any, method: str) -> Any:
            return parprims.histogram(x, edges, weights=weights, method=method)

        return (*edges(n)[0], _numbers((n,), "float64")), call

    for name, make in (("even", even), ("edges", edges), ("weights between edges", weights)):
        yield Kind(name, make, True)


def _search_kinds() -> Iterator[Kind]:
    def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        return (np.sort(_numbers((n,), "float64")), _numbers((n,), "float64")[::-1].copy()), parprims.searchsorted

    yield Kind("any", make, True)


def _merge_kinds() -> Iterator[Kind]:
    def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        one, other = np.sort(_numbers((2, n // 2), "float64") + np.asarray([[0.0], [0.001]]))
        return (one, other), parprims.merge

    yield Kind("any", make, True)


def _matmul_kinds() -> Iterator[Kind]:
    def product(dtype: str, *operators: str) -> Callable[..., tuple[tuple[Any, ...], Callable[..., Any]]]:
        def make(m: int, k: int, n: int, *batch: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
            call = functools.partial(parprims.matmul, **dict(zip(("add", "multiply"), operators, strict=False)))
            return (_numbers((*batch, m, k), dtype), _numbers((*batch, k, n), dtype)), call

        return make

    def square(dtype: str, *operators: str, batch: tuple[int, ...] = ()) -> Make:
        return lambda products: product(dtype, *operators)(*(round(products ** (1 / 3)),) * 3, *batch)

    def long(dtype: str, products: int, *operators: str) -> Make:
        side = lambda k: max(1, round((products / k) ** 0.5))  # noqa: E731
        return lambda k: product(dtype, *operators)(side(k), k, side(k))

    def sided(dtype: str, products: int) -> Make:
        return lambda side: product(dtype)(side, products // side**2, side)

    def thin(rows: int, columns: int) -> Make:
        return lambda products: product("int64")(rows, products // (rows * columns), columns)

    cubes = tuple(side**3 for side in (4, 8, 16, 32, 64, 128))
    yield Kind("operators", square("float64", "minimum", "add"), sizes=cubes)
    yield Kind(
        "length of operators", long("float64", 2**21, "minimum", "add"), sizes=(4, 8, 16, 32, 64), libraries=("jax",)
    )
    few = tuple(side**3 for side in (4, 8, 12, 16, 20, 24, 32))  # more of them are products of floats
    yield Kind("integers", square("int64"), sizes=few, libraries=("numpy",))
    yield Kind("integers, each", square("int64", batch=(1000,)), sizes=few, libraries=("numpy", "torch"))
    several = lambda products: square("int64", batch=(8,))(products // 8)  # noqa: E731
    yield Kind("integers", several, sizes=tuple(8 * one for one in few), libraries=("torch",))
    yield Kind("integers, thin", thin(3, 64), sizes=tuple(2**power for power in range(12, 22)), libraries=("torch",))
    large = (*cubes, 256**3, 512**3)
    yield Kind("integers", square("int64"), sizes=large, libraries=("jax",))
    yield Kind("integers of 32 bits", square("int32"), sizes=large, libraries=("jax",))
    yield Kind("side of integers", sided("int64", 2**21), sizes=(4, 8, 16, 32, 64, 128), libraries=("jax",))


def _filters_kinds() -> Iterator[Kind]:
    def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        b, a = np.asarray([0.1, 0.2, 0.1]), np.asarray([1.0, -1.6, 0.8])
        return (b, a, _numbers((n,), "float64")), parprims.lfilter

    yield Kind("any", make)


def _banded_kinds() -> Iterator[Kind]:
    def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        bands = _numbers((5, n), "float64")
        bands[2] += 9
        return (bands, _numbers((n,), "float64")), lambda *x, method: parprims.solve_banded((2, 2), *x, method=method)

    def blocks(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
        length = min(16, n // 2)  # in short systems the array form waits least
        lower, diag, upper = (_numbers((n // (2 * length), length, 2, 2), "float64") for _ in range(3))
        diag = diag + 9 * np.eye(2)
        return (
            lower,
            diag,
            upper,
            _numbers((n // (2 * length), length, 2), "float64"),
        ), parprims.solve_block_tridiagonal

    yield Kind("with a routine", make, sizes=tuple(2**power for power in range(6, 16)), libraries=("numpy", "torch"))
    sizes = tuple(2**power for power in range(3, 16))
    yield Kind("others", blocks, sizes=sizes, libraries=("numpy", "torch"))
    yield Kind("others", blocks, sizes=sizes, libraries=("jax",), compiled=1)


def _segments_kinds() -> Iterator[Kind]:
    def reduce_by(op: Any) -> Make:
        def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
            ids = np.random.default_rng(0).integers(0, max(1, n // 1000), n)
            call = functools.partial(parprims.segment_reduce, num_segments=max(1, n // 1000), op=op)
            return (_numbers((n,), "float64"), ids), call

        return make

    yield Kind("direct", reduce_by("add"), True, libraries=("numpy", "torch"))
    yield Kind("operator", reduce_by(parprims.Operator(_decay, identity=0.0)))


def _offsets_kinds() -> Iterator[Kind]:
    def reduce_by(op: Any) -> Make:
        def make(n: int) -> tuple[tuple[Any, ...], Callable[..., Any]]:
            inner = np.sort(np.random.default_rng(0).integers(0, n, max(1, n // 1000)))
            offsets = np.concatenate(([0], inner, [n]))
            x = np.sign(_numbers((n,), "float64")) if op == "multiply" else _numbers((n,), "float64")
            return (x, offsets), lambda x, offsets, method: parprims.reduce(x, op, offsets=offsets, method=method)

        return make

    sizes = tuple(2**power for power in range(6, 26, 2))
    yield Kind("operator", reduce_by(parprims.Operator(_decay, identity=0.0)), sizes=sizes[:8])
    for name in ("add", "multiply", "maximum", "logaddexp"):
        yield Kind(name, reduce_by(name), True, sizes=sizes, libraries=("numpy",))


KINDS: Mapping[str, Callable[[], Iterator[Kind]]] = {
    "reduce": _reduce_kinds,
    "scan": _scan_kinds,
    "tridiagonal": _tridiagonal_kinds,
    "sort": _sort_kinds,
    "histogram": _histogram_kinds,
    "search": _search_kinds,
    "merge": _merge_kinds,
    "matmul": _matmul_kinds,
    "filters": _filters_kinds,
    "banded": _banded_kinds,
    "segments": _segments_kinds,
    "offsets": _offsets_kinds,
}
"""By primitive, the kinds of calls that its table of crossovers tells apart."""

_ONLY_IN_PROGRAMS: Mapping[str, Sequence[str]] = {"reduce": ("operator",), "matmul": ("operators",)}
"""By primitive, the only kinds that are measured in programs; XLA's own products and sums are faster there."""


def kinds_of(primitive: str, *, in_programs: bool) -> Iterator[Kind]:
    """Return the kinds of calls of a primitive, or those that are measured inside programs of JAX."""
    for kind in KINDS[primitive]():
        if not in_programs:
            yield kind
        elif kind.name in _ONLY_IN_PROGRAMS.get(primitive, (kind.name,)) and not any(
            kind.name.endswith(f", {lines}") for lines in ("short line", "few columns")
        ):
            if primitive in ("offsets", "segments") and kind.name != "operator":  # JAX has no routine for any
                continue
            if "narrow integers" not in kind.name and (primitive != "banded" or "jax" in kind.libraries):
                sizes = kind.sizes[::2] if len(kind.sizes) > 8 else kind.sizes
                if primitive not in ("sort", "matmul"):  # which count lengths and products
                    sizes = tuple(one for one in sizes if one >= FEWEST_IN_PROGRAMS)
                yield dataclasses.replace(kind, sizes=sizes, libraries=("jax",), compiled=0)


_OTHER_FILES = {"merge": "search.merges.cpu", "offsets": "segments.by_offsets.cpu"}


def module_of(primitive: str) -> ModuleType:
    """Return the module that has the table of crossovers of a primitive."""
    return importlib.import_module(f"parprims._primitives.{_OTHER_FILES.get(primitive, f'{primitive}.cpu')}")


def crossover(sizes: Mapping[int, tuple[float, float]], saved: float) -> int | None:
    """Return the least size from which the kernel saves so many seconds, given (its, the other way's) by size."""
    found = None
    for size in sorted(sizes, reverse=True):
        kernel, other = sizes[size]
        if kernel > CHANCE * other - saved:
            break
        found = size
    return found


def measured(
    backend: Backend, kind: Kind, sizes: Sequence[int], budget: float, *, in_programs: bool = False
) -> dict[str, dict[int, float]]:
    """Return the seconds by method and size; of one method only where the other does not serve."""
    found: dict[str, dict[int, float]] = {}
    compiled = backend.compile if in_programs else lambda function: function
    for size in sizes:
        arrays, call = kind.make(size)
        given = tuple(map(backend.asarray, arrays))
        other = "native"
        try:
            backend.wait(compiled(functools.partial(call, method=other))(*given))
        except (parprims.MethodRefused, ValueError):  # it refuses, or there is none
            other = "array"
        if other == "array" and kind.has_routine:
            return {}  # it is an operator like any other here
        entrants = []
        for method in ("kernel", other):
            run = compiled(functools.partial(call, method=method))
            try:
                backend.wait(run(*given))  # a call that still runs would delay the first that is timed
            except parprims.MethodRefused:
                return {}
            entrants.append(Contender(backend, method, run, [given]))
        interleave(entrants, True, budget)
        for one in entrants:
            found.setdefault(one.method, {})[size] = min(one.seconds)  # others on the machine only add
    return found


def tune_cpu(
    wanted: list[str], present: list[Backend], scale: Scale, sha: str | None, *, in_programs: bool = False
) -> int:
    """Measure the crossovers of primitives, write the records and print the entries; return the exit status."""
    unknown = [name for name in wanted if name not in KINDS]
    if unknown:
        raise SystemExit(f"nothing to tune in {', '.join(unknown)}; there are {', '.join(KINDS)}")
    head = {**records.header(present, {}, sha), "threads": limit()}
    name, title = records.slug(head["device"]), IN_PROGRAMS if in_programs else "any"
    path = records.RESULTS / "tuning" / f"{name}{'-in-programs' if in_programs else ''}.json"
    record = path.relative_to(records.ROOT).as_posix() if path.is_relative_to(records.ROOT) else path.name
    for primitive in wanted:
        lines: list[dict[str, Any]] = []
        least: dict[str, dict[str, int]] = {}
        for backend in present:
            for kind in kinds_of(primitive, in_programs=in_programs):
                if backend.name not in kind.libraries:
                    continue
                sizes = kind.sizes[1:4:2] if scale.quick else kind.sizes
                seconds = measured(backend, kind, sizes, scale.pick(0.01, 0.1, 0.1), in_programs=in_programs)
                if len(seconds) < 2:
                    continue
                kernel, (name, other) = seconds["kernel"], next(one for one in seconds.items() if one[0] != "kernel")
                both = {size: (kernel[size], other[size]) for size in kernel if size in other}
                found = crossover(both, kind.saved)
                if found is not None:
                    is_least = found == sizes[0] and not in_programs
                    least.setdefault(kind.name, {})[backend.name] = 0 if is_least else found
                same = {"primitive": f"{primitive} crossovers", "case": kind.name, "backend": backend.name}
                lines += [{**same, "method": "kernel", "size": size, "seconds": one} for size, one in kernel.items()]
                lines += [{**same, "method": name, "size": size, "seconds": one} for size, one in other.items()]
                print(f"{primitive}: {kind.name} on {backend.name}: from {found} on", flush=True)
        records.write_results(path, head, lines, [f"{primitive} crossovers"])
        entry = Crossovers(record=record, device=head["device"], least=least)
        file, text = module_of(primitive).CROSSOVERS.file, entries.entry_text(title, entry)
        print(f"The entry of {file}, of the times in {path}:\n{text}", flush=True)
    return 0

"""Sums and running sums with the same bits everywhere by CUDA kernels: all launches of a call in one plan.

A sum must know the largest magnitude of a line before it can round an element. Long lines are read once all the same: a
sample of a line makes a guess, a launch adds the elements on the grid of the guess and finds the largest magnitude too,
and only lines with a wrong guess are added again. Shorter lines are read twice. A running sum looks for the largest
magnitude first. Its scan assumes that all elements are finite, and another scan replaces it where they are not.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from parprims import _cpu, _cuda
from parprims._core.arrays import Array, Namespace, dtype_bits, dtype_name, mode, namespace_of
from parprims._core.layout import Layout, broadcast_strides, fold, row_major
from parprims._dispatch.composite import Compose
from parprims._dispatch.dispatch import Inside, Method
from parprims._dispatch.watch import unwatched
from parprims._operators.foreign.jax_programs import dtypes_of_64_bits
from parprims._operators.foreign.names import Dtype
from parprims._operators.languages import CUDA_WITH_NUMBERS
from parprims._operators.operator import BUILT_IN, Operator
from parprims._primitives.reduce import cuda as reduce_cuda
from parprims._primitives.reduce import source as reduce_source
from parprims._primitives.reduce.call import Reduction
from parprims._primitives.reproducible import call, cpu, grid
from parprims._primitives.reproducible.call import ONLY, OnGrid, Sum, on_grid, tops_of
from parprims._primitives.reproducible.grid import MAGNITUDES, Grid, Top, maps
from parprims._primitives.reproducible.running import RunningSum
from parprims._primitives.scan import cuda as scan_cuda
from parprims._primitives.scan.source import Functions, Mapped, specialisation
from parprims._primitives.scan.tiling import TUNING as SCAN_TUNING

_SAMPLED = 1 << 19
"""The fewest elements of a line for which a sample makes a guess."""

_ADJACENT = 8
"""The adjacent elements that a sample takes at a time."""

_SAMPLE = 1 << 17
"""The most elements of a sample; it has at most one in 8 of a line."""


@dataclasses.dataclass(frozen=True)
class _Read:
    """An array as a reduction reads it: its name, its dtype, its strides along lines and along a line, its address."""

    name: str
    dtype: str
    strides: tuple[int, ...]
    address: int = 0


@dataclasses.dataclass(frozen=True)
class _Lines:
    """Lines of n elements, in an array of lines of the shape ``kept``.

    Parameters
    ----------
    tuning : Tuning
        How reductions divide their work.
    kept, n
        The shape of the array of lines, and the length of a line.
    arrays : tuple of _Read
        The arrays of the call.
    """

    tuning: reduce_cuda.Tuning
    kept: tuple[int, ...]
    n: int
    arrays: tuple[_Read, ...]

    @staticmethod
    def of(
        tuning: reduce_cuda.Tuning,
        shape: tuple[int, ...],
        axes: tuple[int, ...],
        arrays: Sequence[tuple[str, tuple[int, ...], Layout]],
    ) -> _Lines | None:
        """Return the lines along axes of arrays, each given by dtype, shape and layout; None if there is no stride."""
        strides = [broadcast_strides(steps, own, len(shape)) for _, own, (steps, _) in arrays]
        kept, combined = fold(shape, axes, strides, reorder=True)
        if len(kept) > 2 or len(combined) > 1:
            return None
        n, along = combined[0] if combined else (1, (0,) * len(arrays))
        reads = [
            _Read(f"in{at}", dtype, (*[steps[at] for _, steps in kept], along[at]), address)
            for at, (dtype, _, (_, address)) in enumerate(arrays)
        ]
        return _Lines(tuning, tuple([length for length, _ in kept]), n, tuple(reads))

    def one(self, name: str, dtype: str) -> _Read:
        """Return an array that has one element for each line."""
        return _Read(name, dtype, (*row_major(self.kept), 0))

    def step(
        self,
        function: Callable[..., Any],
        op: str | Operator,
        reads: Sequence[_Read],
        outputs: Sequence[str],
        *,
        length: int = 1,
    ) -> _cuda.Step | None:
        """Return the reduction of a function of arrays along their last axis, of this length."""
        dtypes = tuple([one.dtype for one in reads])
        r = _reduction(function, op, (*self.kept, length))
        layouts = tuple([(one.strides, one.address) for one in reads])
        plan = reduce_cuda.make_plan(_special(function, op, dtypes), self.tuning, r, layouts)
        return None if plan is None else _cuda.Step(plan, tuple([one.name for one in reads]), tuple(outputs))

    def sampled(self, function: Callable[..., Any], x: _Read, output: str) -> _cuda.Step | None:
        """Return the maxima of a function of a sample of each line: one for each of the places of adjacent elements."""
        count = min(_SAMPLE, self.n // 8) // _ADJACENT
        *outward, along = x.strides
        read = dataclasses.replace(x, strides=(*outward, along, self.n // count * along))
        own = dataclasses.replace(self, kept=(*self.kept, _ADJACENT))
        return own.step(function, "maximum", [read], [output], length=count)


def _reduction(function: Callable[..., Any], op: str | Operator, shape: tuple[int, ...]) -> Reduction:
    return Reduction(
        arrays=(),
        shape=shape,
        fn=function,
        single=True,
        op=BUILT_IN[op] if isinstance(op, str) else op,
        axes=(len(shape) - 1,),
        keepdims=True,
    )


@functools.cache
def _special(function: Callable[..., Any], op: str | Operator, dtypes: tuple[str, ...]) -> reduce_source.Specialisation:
    from array_api_compat import numpy as xp

    return reduce_source.specialise(xp, _reduction(function, op, (1,)), dtypes, CUDA_WITH_NUMBERS)


def _integer(dtype: str) -> str:
    """Return the integer dtype with the width of a dtype of floats, in which kernels read bits of floats."""
    return f"int{dtype_bits(dtype)}"


@functools.cache
def _largest_and_totals(largest: int, totals: int) -> Operator:
    """Return the operator that keeps the largest of the first components, and adds the others."""

    def combine(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        xp, pairs = namespace_of(one[0]), list(zip(one, other, strict=True))
        return *[xp.maximum(*pair) for pair in pairs[:largest]], *[a + b for a, b in pairs[largest:]]

    return Operator(combine, commutative=True, name="largest and totals", components=largest + totals)


@functools.cache
def _as_tuple(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: (function(*given),)


@functools.cache
def _smallest(components: int) -> Operator:
    """Return the operator that keeps the smallest of each component."""

    def combine(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([namespace_of(a).minimum(a, b) for a, b in zip(one, other, strict=True)])

    return Operator(combine, commutative=True, name="smallest", components=components)


# ---- Sums -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Kind:
    """The grid of a sum, the dtypes of its arrays, and that of its result."""

    on: Grid
    names: tuple[str, ...]
    result: str

    @property
    def product(self) -> bool:
        """Whether the terms are products."""
        return len(self.names) == 2

    @property
    def guesses(self) -> int:
        """The number of factors of finite elements."""
        return 2 if self.on.words == 1 else self.factors

    @property
    def factors(self) -> int:
        """The number of factors of elements that may not be finite."""
        return 1 if self.on.words == 1 else 1 + len(self.names)

    @property
    def guess_dtype(self) -> str:
        """The dtype of factors of finite elements."""
        return "float32" if self.on.words == 1 and not self.product else "float64"

    def tops(self, found: Sequence[Any]) -> list[Top]:
        """Return the tops, given the bits of the largest magnitudes."""
        return tops_of(namespace_of(found[0]), tuple(found), [*map(Dtype, self.names)])

    def factors_of(self, tops: list[Top]) -> tuple[Any, ...]:
        """Return the factors of elements."""
        return on_grid(namespace_of(tops[0].exponent), self.on, (), tops, in_kernel=True)

    def guesses_of(self, tops: list[Top]) -> tuple[Any, ...]:
        """Return the factors of finite elements, which are zeros in other lines.

        No factor rises with a magnitude, and each depends on the magnitudes of one array.
        """
        if self.on.words == 2:
            return self.factors_of(tops)
        xp = namespace_of(tops[0].exponent)
        if self.product:
            first, second = tops
            each = grid.power(xp, self.on.first - first.exponent), grid.power(xp, -second.exponent)
            pairs = list(zip(tops, each, strict=True))
        else:
            (top,) = tops
            pairs = [(top, one) for one in _floats(xp, grid.halves(xp, self.on.first - top.exponent))]
        return tuple([grid.or_else(xp, top.finite, one, 0) for top, one in pairs])


def _floats(xp: Any, values: Sequence[Any]) -> list[Any]:
    return [xp.astype(one, xp.float32) for one in values]


@functools.cache
def _guesses(kind: _Kind) -> Callable[..., Any]:
    return lambda *found: kind.guesses_of(kind.tops(found))


@functools.cache
def _integers(kind: _Kind, largest: bool) -> Callable[..., Any]:
    """Return the map of elements and guessed factors to their integers, with their magnitudes before if ``largest``."""
    count = len(kind.names) * largest

    def of(*given: Any) -> tuple[Any, ...]:
        return *[abs(x) for x in given[:count]], *maps(kind.on, kind.product).finite(*given)

    return of


@functools.cache
def _all_integers(kind: _Kind) -> Callable[..., Any]:
    """Return the map of elements and factors to their integers, which are flags of elements that are not finite."""

    def of(*given: Any) -> tuple[Any, ...]:
        found = maps(kind.on, kind.product).all(*given)
        return found if isinstance(found, tuple) else (found,)

    return of


@functools.cache
def _checks(kind: _Kind, guessed: bool) -> Callable[..., Any]:
    """Return the function of magnitudes that says whether to add again, and by which factors.

    With ``guessed``, guessed factors come before the magnitudes, and lines are added again if they are wrong. Otherwise
    the function returns these factors too.
    """

    def of(*given: Any) -> tuple[Any, ...]:
        guesses, tops = given[: kind.guesses * guessed], kind.tops(given[kind.guesses * guessed :])
        xp = namespace_of(given[0])
        is_right, right = Top.of_products(tops).finite, kind.guesses_of(tops)
        for guess, factor in zip(guesses, right, strict=False):
            is_right = is_right & (guess == factor)
        return xp.astype(~is_right, xp.int32), *kind.factors_of(tops), *([] if guessed else right)

    return of


@functools.cache
def _results(kind: _Kind) -> Callable[..., Any]:
    """Return the function that makes the results of a mark, magnitudes, and two sums of each integer.

    The second ones count where the mark is not zero.
    """
    count, words = len(kind.names), kind.on.words

    def of(mark: Any, *given: Any) -> Any:
        xp, found, totals, others = namespace_of(mark), given[:count], given[count:-words], given[-words:]
        totals = tuple([xp.where(mark != 0, other, one) for one, other in zip(totals, others, strict=True)])
        return call.rounded(xp, kind.on, kind.tops(found), totals, dtype=Dtype(kind.result))

    return of


def _plan_of_sums(c: Sum, lines: _Lines) -> _cuda.Plan | None:
    """Return the plan of sums along lines."""
    kind = _Kind(c.grid, tuple([one.dtype for one in lines.arrays]), c.dtype)
    words = range(kind.on.words)
    found = [lines.one(f"largest{at}", _integer(name)) for at, name in enumerate(kind.names)]
    guesses = [lines.one(f"guess{at}", kind.guess_dtype) for at in range(kind.guesses)]
    mark, factors = lines.one("mark", "int32"), [lines.one(f"factor{at}", "float64") for at in range(kind.factors)]
    totals, again = ([lines.one(f"{name}{at}", "int64") for at in words] for name in ("total", "again"))
    patterns = [dataclasses.replace(x, dtype=_integer(x.dtype)) for x in lines.arrays]
    magnitudes = [MAGNITUDES[dtype_bits(name)] for name in kind.names]
    exact = _all_integers(kind)
    op = _largest_and_totals(0, kind.on.words)

    def names(reads: Sequence[_Read]) -> list[str]:
        return [one.name for one in reads]

    samples: list[_cuda.Step | None] = []
    if lines.n >= _SAMPLED:
        pairs = zip(magnitudes, patterns, strict=True)
        samples = [lines.sampled(each, x, f"sample{at}") for at, (each, x) in enumerate(pairs)]
    is_sampled = bool(samples) and None not in samples
    if is_sampled:
        places = row_major((*lines.kept, _ADJACENT))
        sampled = [_Read(f"sample{at}", one.dtype, places) for at, one in enumerate(found)]
        both = _largest_and_totals(len(found), kind.on.words)
        first = [
            *samples,
            lines.step(_guesses(kind), _smallest(kind.guesses), sampled, names(guesses), length=_ADJACENT),
            _with_registers(
                lines.step(
                    _integers(kind, True), both, (*lines.arrays, *guesses), names([*found, *totals]), length=lines.n
                ),
                blocks=2 if kind.on.words == 2 else 3,
            ),
            lines.step(_checks(kind, True), ONLY, (*guesses, *found), names([mark, *factors])),
        ]
    else:
        first = [
            *[
                lines.step(_as_tuple(each), _largest_and_totals(1, 0), [x], [one.name], length=lines.n)
                for each, x, one in zip(magnitudes, patterns, found, strict=True)
            ],
            lines.step(_checks(kind, False), ONLY, found, names([mark, *factors, *guesses])),
            lines.step(_integers(kind, False), op, (*lines.arrays, *guesses), names(totals), length=lines.n),
        ]
    steps = [
        *first,
        _marked(lines.step(exact, op, (*lines.arrays, *factors), names(again), length=lines.n)),
        lines.step(_results(kind), ONLY, (mark, *found, *totals, *again), ["result"]),
    ]
    ready = [step for step in steps if step is not None]
    if len(ready) < len(steps):
        return None
    ((shape, _),) = c.results
    plan = _cuda.chained(ready, names(lines.arrays), [("result", shape, c.dtype)])
    if is_sampled:
        return plan
    return _together(plan, ready, [*[False] * len(found), True, False, False, True])


def _with_registers(step: _cuda.Step | None, *, blocks: int) -> _cuda.Step | None:
    """Return a reduction of which at most so many blocks need to fit on a multiprocessor."""
    if step is None:
        return None
    launches = tuple(
        [dataclasses.replace(one, resident_blocks=min(one.resident_blocks, blocks)) for one in step.plan.launches]
    )
    return dataclasses.replace(step, plan=dataclasses.replace(step.plan, launches=launches))


def _marked(step: _cuda.Step | None) -> _cuda.Step | None:
    """Return a reduction of the lines that have a mark, in the array "mark"."""
    if step is None:
        return None
    (launch,) = step.plan.launches
    launch = dataclasses.replace(
        launch,
        source=_head() + _definitions(launch),
        template="reduce_marked_lines",
        parameters=(_cuda.Pointer(f"in{step.plan.inputs}", "const int"), *launch.parameters),
    )
    plan = dataclasses.replace(step.plan, launches=(launch,), inputs=step.plan.inputs + 1)
    return dataclasses.replace(step, plan=plan, inputs=(*step.inputs, "mark"))


# ---- One launch of several steps --------------------------------------------------------------------------------


def _head() -> str:
    """Return the text before the definitions of steps, which read the factors of lines as `ConstantInput`."""
    files = reduce_source.FILE, reduce_source.CONSTANT, "_primitives/reproducible/lines.cu"
    return _cuda.device_source(*files)


def _definitions(launch: _cuda.Launch) -> str:
    """Return the definitions of a reduction: its text behind the files."""
    heads = (
        _head(),
        _cuda.device_source(reduce_source.FILE, reduce_source.CONSTANT),
        _cuda.device_source(reduce_source.FILE),
    )
    head = next(head for head in heads if launch.source.startswith(head))
    return launch.source.removeprefix(head)


def _lines_of_block(step: _cuda.Step) -> tuple[int, int] | None:
    """Return the numbers of outer and of inner lines that a block reduces; None if several blocks share a line."""
    (launch,) = step.plan.launches
    threads, runs, lanes, columns, _, vector, _, _, across, *_ = launch.arguments
    if next(one.value for one in step.plan.numbers if one.name == "chunks") > 1:
        return None
    return int(threads) // (int(runs) * int(lanes) * int(columns)), int(columns) * (int(vector) if across else 1)


def _together(plan: _cuda.Plan, steps: Sequence[_cuda.Step], maps_lines: Sequence[bool]) -> _cuda.Plan:
    """Return a chain of steps as one launch, if every block has whole lines, and the same lines in every step.

    ``maps_lines`` flags the steps that compute on numbers of each line.
    """
    reductions = [step for step, is_map in zip(steps, maps_lines, strict=True) if not is_map]
    found = {_lines_of_block(step) for step in reductions}
    launches = [launch for launch, is_map in zip(plan.launches, maps_lines, strict=True) if not is_map]
    if len(found) > 1 or None in found or len({(one.grid, one.block) for one in launches}) > 1:
        return plan
    (of_block,) = found
    assert of_block is not None
    *_, outer, _, inner = launches[0].parameters[:7]

    def named(one: Any, at: int) -> Any:
        return _cuda.Struct(*one.fields, type=f"step{at}::{one.type}") if isinstance(one, _cuda.Struct) else one

    def made(launch: _cuda.Launch, at: int, is_map: bool) -> _cuda.Launch:
        parameters = tuple([named(one, at) for one in launch.parameters])
        arguments = (*launch.arguments[:-1], f"step{at}::Op")
        if is_map:
            arguments, parameters = (*of_block, f"step{at}::Op"), (*parameters[:2], outer, inner)
        template = "map_lines" if is_map else launch.template
        return dataclasses.replace(launch, template=template, arguments=arguments, parameters=parameters)

    each = [made(launch, at, is_map) for at, (launch, is_map) in enumerate(zip(plan.launches, maps_lines, strict=True))]
    texts = [f"namespace step{at} {{\n{_definitions(one)}\n}}" for at, one in enumerate(plan.launches)]
    residents = [one.resident_blocks for one in launches]
    first = dataclasses.replace(
        each[0],
        source="\n".join([_head(), *texts]),
        shared_bytes=max(one.shared_bytes for one in launches),
        resident_blocks=min(residents),
        then=tuple(each[1:]),
    )
    return dataclasses.replace(plan, launches=(first,))


# ---- Running sums -----------------------------------------------------------------------------------------------


def _same(x: Any) -> Any:
    return x


def _factor_dtype(on: Grid) -> str:
    return "float32" if on.words == 1 else "float64"


@functools.cache
def _factors_of_scan(kind: _Kind) -> Callable[..., Any]:
    """Return the function of the largest magnitude that says whether it is not finite, and makes the factors.

    There are two factors of elements, and two of results.
    """

    def of(found: Any) -> tuple[Any, ...]:
        xp, on = namespace_of(found), kind.on
        (top,) = kind.tops((found,))
        pairs = *grid.halves(xp, on.first - top.exponent), *grid.halves(xp, top.exponent - on.first)
        return xp.astype(~top.finite, xp.int32), *(_floats(xp, pairs) if on.words == 1 else pairs)

    return of


@functools.cache
def _functions(kind: _Kind, flags: bool) -> Functions:
    """Return the functions of the scan. With ``flags``, elements need not be finite."""
    on, name = kind.on, kind.names[0]
    integers = maps(on, False).finite

    def element(x: Any, factor: Any, factor2: Any, *_: Any) -> tuple[Any, ...]:
        xp = namespace_of(x)
        if not flags:
            return integers(x, factor, factor2)
        finite = xp.isfinite(x)
        number = xp.where(finite, x, xp.zeros_like(x))
        flag = xp.where(x > 0, xp.ones_like(x), xp.where(x < 0, xp.full_like(x, 2.0), xp.full_like(x, 3.0)))
        flag = xp.where(finite, xp.zeros_like(x), flag)
        return *integers(number, factor, factor2), xp.astype(flag, xp.int32)

    def combine(earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        words = [one + other for one, other in zip(earlier[: on.words], later[: on.words], strict=True)]
        return (*words, earlier[-1] | later[-1]) if flags else tuple(words)

    def result(*given: Any) -> tuple[Any]:
        words, factors = given[: on.words], given[-2:]
        xp = namespace_of(words[0])
        if kind.result == "float32":
            found = grid.nearest_of_floats(xp, words[0], factors)
        else:
            wide = tuple([xp.astype(one, xp.float64) for one in factors])
            found = grid.nearest_by_factors(xp, on, words, wide, dtype=Dtype(kind.result))
        if not flags:
            return (found,)
        flag = given[on.words]
        infinite = xp.where(flag == 1, xp.full_like(found, math.inf), xp.full_like(found, -math.inf))
        return (xp.where(flag == 0, found, xp.where(flag == 3, xp.full_like(found, math.nan), infinite)),)

    op, count = BUILT_IN["add"], on.words + flags
    if count > 1:
        op = Operator(combine, identity=(0,) * count, commutative=True, name="add", components=count)
    return Functions(
        op=op,
        states=(*("int64",) * on.words, *("int32",) * flags),
        inputs=("float64" if name == "float64" else "float32", *(_factor_dtype(on),) * 4),
        output=kind.result,
        element=element,
        result=result,
    )


def _plan_of_scans(
    c: RunningSum, lines: _Lines, tuning: Any, given: tuple[str, tuple[int, ...], Layout]
) -> _cuda.Plan | None:
    """Return the plan of running sums of an array, given by its dtype, shape and layout."""
    (x,), (_, shape, layout) = lines.arrays, given
    kind, count = _Kind(c.grid, (x.dtype,), c.dtype), math.prod(lines.kept)
    pattern, found = dataclasses.replace(x, dtype=_integer(x.dtype)), lines.one("largest", _integer(x.dtype))
    magnitudes = MAGNITUDES[dtype_bits(x.dtype)], grid.finite_magnitude(x.dtype)
    factors = [f"factor{at}" for at in range(4)]
    any_flag = "flag" if count == 1 else "any"

    def factored(magnitude: Callable[..., Any], flag: str, only_if: str | None) -> list[_cuda.Step | None]:
        """Return the steps to the factors for the largest of these magnitudes."""
        two = [
            lines.step(magnitude, "maximum", [pattern], [found.name], length=lines.n),
            lines.step(_factors_of_scan(kind), ONLY, [found], [flag, *factors]),
        ]
        return [None if step is None else dataclasses.replace(step, only_if=only_if) for step in two]

    def of_flags() -> _cuda.Step | None:
        """Return the step that tells whether any line has a flag."""
        one_line = dataclasses.replace(lines, kept=())
        return one_line.step(_same, "maximum", [_Read("flag", "int32", (1,))], [any_flag], length=count)

    of_lines = (*shape[: c.axis], 1, *shape[c.axis + 1 :])
    geometry = scan_cuda.Geometry(
        shape=shape,
        axis=c.axis,
        reverse=False,
        n=c.results[0][0][c.axis],
        shapes=(shape, *(of_lines,) * 4),
        layouts=(layout, *((row_major(of_lines), 0),) * 4),
    )

    def scanned(flags: bool, only_if: str | None) -> _cuda.Step | None:
        """Return the scan."""
        plan = scan_cuda.make_plan(_special_scan(kind, flags, geometry.n > shape[c.axis]), tuning, geometry)
        return None if plan is None else _cuda.Step(plan, (x.name, *factors), ("result",), only_if)

    steps = [
        *factored(magnitudes[0], "flag", None),
        scanned(False, None),
        *([of_flags()] if count > 1 else []),
        *factored(magnitudes[1], "none", any_flag),
        scanned(True, any_flag),
    ]
    ready = [step for step in steps if step is not None]
    if len(ready) < len(steps):
        return None
    return _cuda.chained(ready, [x.name], [("result", c.results[0][0], c.dtype)])


@functools.cache
def _special_scan(kind: _Kind, flags: bool, begins: bool) -> Any:
    from array_api_compat import numpy as xp

    functions = _functions(kind, flags)
    scan = Mapped(arrays=(), functions=functions, shape=(2,), axis=0, n=2 + begins)
    return specialisation(xp, scan, (kind.names[0], *(_factor_dtype(kind.on),) * 4), ())


# ---- The method -------------------------------------------------------------------------------------------------

_Prepare = Callable[[Namespace, Any], Callable[..., Any]]


def instead_of(parts: Method, compute: Compose) -> Method:
    """Return the method that computes on GPUs by one plan, and by parts elsewhere.

    Programs of JAX hold what ``compute`` does by the method ``array``, for other devices.
    """

    def is_planned(xp: Namespace, c: OnGrid) -> bool:
        return not _cpu.on_cpu(xp, c.arrays) and 0 not in _shape(c) and _cuda.refusal(xp, c.arrays) is None

    def slower(xp: Namespace, c: OnGrid) -> str | None:
        return None if is_planned(xp, c) or parts.slower is None else parts.slower(xp, c)

    def prepare(xp: Namespace, c: OnGrid) -> Callable[..., Any]:
        by_parts = parts.prepare(xp, c)
        if not is_planned(xp, c):
            return by_parts
        bare = c.on(*(None,) * len(c.arrays))

        def find(arrays: tuple[Array, ...]) -> _cuda.Run | None:
            return _runner(xp, bare, arrays, in_program=lambda: _in_program(xp, bare, compute, prepare))

        return _cuda.only(_cuda.on_readable(xp, c.arrays, find, lambda *arrays: (by_parts(*arrays),)))

    return dataclasses.replace(parts, prepare=prepare, slower=slower)


def _shape(c: OnGrid) -> tuple[int, ...]:
    """Return the shape of the terms."""
    return c.shape if isinstance(c, Sum) else tuple(c.arrays[0].shape)


def _runner(xp: Namespace, bare: Any, arrays: tuple[Array, ...], *, in_program: _cuda.InProgram) -> _cuda.Run | None:
    """Return a function that carries out the plan on arrays like these, or None if there is no plan for them."""
    layouts = tuple([_cuda.layout(xp, x) for x in arrays])
    given = tuple([(dtype_name(x.dtype), tuple(x.shape), layout) for x, layout in zip(arrays, layouts, strict=True)])

    def plan() -> _cuda.Plan | None:
        c, tuning = bare.on(*arrays), _cuda.tuned_for(reduce_cuda.TUNING, xp, arrays[0])
        axes = c.axes if isinstance(c, Sum) else (c.axis,)
        lines = _Lines.of(tuning, _shape(c), axes, given)
        if lines is None:
            return None
        if isinstance(c, Sum):
            return _plan_of_sums(c, lines)
        return _plan_of_scans(c, lines, _cuda.tuned_for(SCAN_TUNING, xp, arrays[0]), given[0])

    place = (bare.shape, bare.axes) if isinstance(bare, Sum) else bare.axis
    key = (type(bare), bare.grid, bare.results, place, given)
    return _cuda.ready(xp, arrays[0], key, plan=plan, in_program=in_program)


def _in_program(xp: Namespace, bare: Any, compute: Compose, prepare: _Prepare) -> tuple[_cuda.Run, _cuda.Run]:
    """Return the two functions that a program of JAX has in the place of the plan."""
    wide = mode(xp)  # JAX calls these functions later, perhaps in another mode

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        with unwatched(), dtypes_of_64_bits(wide):
            return (call.in_wide(compute)(xp, bare.on(*arrays), Inside("array")),)

    def of_row(*arrays: Array) -> tuple[Array, ...]:
        return (prepare(xp, bare.on(*arrays))(*arrays),)

    def batched(*arrays: Array) -> tuple[Array, ...]:
        with unwatched(), dtypes_of_64_bits(wide):
            more = cpu.batched(xp, bare, arrays)
            return _cuda.row_by_row(of_row)(*arrays) if more is None else (prepare(xp, more)(*more.arrays),)

    return otherwise, batched


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of sums, dot products and running sums, for lines of each kind."""
    shapes = (((1 << 24,), 0), ((512, 20_000), 1), ((16, 1 << 20), 1), ((1 << 16, 40), 1), ((1 << 14, 128), 0))
    for name in ("float16", "float32", "float64"):
        working = "float64" if name == "float64" else "float32"
        for shape, axis in shapes:
            given = name, shape, (row_major(shape), 0)
            kept = (*shape[:axis], *shape[axis + 1 :])
            for arrays in ((given,), (given, given)):
                lines = _Lines.of(reduce_cuda.TUNING[90], shape, (axis,), arrays)
                assert lines is not None
                c = Sum(
                    arrays=(None,) * len(arrays),
                    results=((kept, Dtype(name)),),
                    shape=shape,
                    axes=(axis,),
                    keepdims=False,
                    terms=shape[axis],
                    working=working,
                )
                plan = _plan_of_sums(c, lines)
                assert plan is not None
                yield f"{'dot product' if c.product else 'sum'} everywhere {name}", plan
            lines = _Lines.of(reduce_cuda.TUNING[90], shape, (axis,), (given,))
            assert lines is not None
            for more in (0, 1):
                longer = (*shape[:axis], shape[axis] + more, *shape[axis + 1 :])
                running = RunningSum(
                    arrays=(None,),
                    results=((longer, Dtype(name)),),
                    axis=axis,
                    include_initial=bool(more),
                    terms=shape[axis],
                    working=working,
                )
                plan = _plan_of_scans(running, lines, SCAN_TUNING[90], given)
                assert plan is not None
                yield f"running sum everywhere {name}{' include_initial' * more}", plan

"""Tridiagonal systems by kernels for CPUs: the text for a dtype and a layout, the plan, and the prepared call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, broadcast_shapes, dtype_name, is_jax, library, move_axis
from parprims._core.layout import before_and_behind, broadcast_strides, merged, row_major
from parprims._core.memo import Memo
from parprims._core.signature import signature
from parprims._cpu import threads
from parprims._dispatch.dispatch import directly
from parprims._primitives.tridiagonal.array import array, empty
from parprims._primitives.tridiagonal.call import LAPACK, System

_CHUNK = 32
"""Rows that are copied at a time where lanes are not adjacent."""
_LINE = 64
"""Bytes of a line of the cache, the width of a tile of lanes that are not adjacent."""
_TILE = 1 << 23
"""The most bytes that a tile of adjacent lanes keeps between its two sweeps; they are written and read in order."""
_WIDEST = 256
"""The most lanes of a tile: their states stay in the first cache."""
_NARROW = 32
"""The fewest lanes of a tile that is narrowed to give work to more threads."""
_LEAST = 1 << 16
"""The fewest unknowns for a thread."""
_NUMBERS = 4
"""The numbers before the numbers of views: low, n, lanes and the width of a tile."""


# ---- Specialisation ---------------------------------------------------------------------------------------------


def _arithmetic(dtype: str) -> list[str]:
    """Return the functions on numbers of a dtype."""
    function, literal = _cpu.text.function, _cpu.NUMBA.literal
    is_complex = dtype.startswith("complex")
    functions = [
        function("zero()", [f"return {literal(0, dtype)}"]),
        function("unit()", [f"return {literal(1, dtype)}"]),
        function("nan()", [f"return {literal(complex(math.nan, 0) if is_complex else math.nan, dtype)}"]),
        function("finite(x)", ["return x + (x - x)"]),
        function("numbers_of(count)", [f"return np.empty(count, np.{dtype})"]),
        function("chunk()", [f"return {_CHUNK}"]),
    ]
    if not is_complex:
        return [
            *functions,
            function("size(x)", ["return abs(x)"]),
            function("quotient(y, x)", ["return y / x"]),
        ]
    return [
        *functions,
        function("size(x)", ["return abs(x.real) + abs(x.imag)"]),
        function(  # Smith's division: it neither overflows nor branches
            "quotient(y, x)",
            [
                "steep = abs(x.real) < abs(x.imag)",
                "larger, smaller = select(steep, x.imag, x.real), select(steep, x.real, x.imag)",
                "ratio = smaller / larger",
                "size_ = smaller * ratio + larger",
                "real = (select(steep, y.real, y.imag) * ratio + select(steep, y.imag, y.real)) / size_",
                "imag = select(steep, y.imag * ratio - y.real, y.imag - y.real * ratio) / size_",
                f"return {dtype}(complex(real, imag))",
            ],
        ),
    ]


def _access(views: Sequence[_cpu.View]) -> list[str]:
    """Return the functions that read lower, diag, upper and rhs for tiles, and that write x."""
    function = _cpu.text.function
    *inputs, x = views
    functions, copies = [], []
    for at, view in enumerate(inputs):
        if view.outer[-1] in (0, 1):
            place = f"load_from(0, inputs[{at}], now[{at}]{' + j' if view.outer[-1] else ''})"
        else:
            along = "1" if view.along == 1 else f"alongs_in(numbers)[{at}]"
            place = f"load_from(8, rows, ({at * _CHUNK} + k) * width + j)"
            copies += [
                "for j in range(columns):",
                f"    begin = at[{at}] + acrosses_in(numbers)[{at}] * j + {along} * first",
                "    for i in range(count):",
                f"        x = load_from(0, inputs[{at}], begin + {along} * i)",
                f"        store_to(8, rows, ({at * _CHUNK} + i) * numbers[3] + j, x)",
            ]
        functions.append(function(f"element{at}(inputs, rows, now, k, width, j)", [f"return {place}"]))
    functions.append(function("copied(inputs, rows, at, numbers, first, count, columns)", [*copies, "return 0"]))
    if x.outer[-1] == 1:
        return [
            *functions,
            function("solutions(outputs, count)", ["return outputs[0]"]),
            function("origin(to)", ["return to[0]"]),
            function("stride(numbers)", ["return alongs_out(numbers)[0]"]),
            function("delivered(xs, outputs, to, numbers, columns)", ["return 0"]),
        ]
    along = "1" if x.along == 1 else "alongs_out(numbers)[0]"
    return [
        *functions,
        function("solutions(outputs, count)", ["return numbers_of(count)"]),
        function("origin(to)", ["return 0"]),
        function("stride(numbers)", ["return numbers[3]"]),
        function(
            "delivered(xs, outputs, to, numbers, columns)",
            [
                "wide, n = numbers[3], numbers[1]",
                "for first in range(0, n, chunk()):",
                "    count = min(chunk(), n - first)",
                "    for j in range(columns):",
                f"        begin = to[0] + acrosses_out(numbers)[0] * j + {along} * first",
                "        for i in range(count):",
                "            x = load_from(3, xs, (first + i) * wide + j)",
                f"            store_to(9, outputs[0], begin + {along} * i, x)",
                "return 0",
            ],
        ),
    ]


# ---- Plan -------------------------------------------------------------------------------------------------------


def _plan(
    s: System, shape: tuple[int, ...], axis: int, hosts: Sequence[np.ndarray[Any, Any]], columns: bool
) -> _cpu.Plan | None:
    """Return the plan for lower, diag, upper and rhs of these layouts, which broadcast to a shape.

    With ``columns`` the first axis of x is its last in memory. None if no view of the arrays has axes
    (high, low, n, lanes) with one stride each.
    """
    result_shape = (*shape[1:], shape[0]) if columns else shape
    result_strides = row_major(result_shape)
    strides = [broadcast_strides(_cpu.strides(x), x.shape, len(shape)) for x in hosts]
    strides.append((result_strides[-1], *result_strides[:-1]) if columns else result_strides)
    n, along = shape[axis], [one[axis] for one in strides]
    before, behind = before_and_behind(shape, axis % len(shape), strides)
    kept = merged(before + behind)
    shared = [] if s.periodic else [one for one in kept if not any(one[1][:3])]
    nothing = (1, (0,) * 5)
    # Adjacent lanes, else the most.
    lanes, across = max(shared or kept, key=lambda one: (one[0] >= 4 and one[1][4] == 1, one[0]), default=nothing)
    others = [one for one in kept if one != (lanes, across)]
    if len(others) > 2:
        return None
    (high, upward), (low, downward) = (nothing, nothing, *others)[-2:]
    dtype = dtype_name(s.rhs.dtype)
    views = [
        _cpu.View(dtype, first, (upward[at], downward[at], across[at]), along[at])
        for at, first in enumerate((*(_cpu.first(x) for x in hosts), 0))
    ]
    itemsize = hosts[3].dtype.itemsize
    width = _LINE // itemsize
    if s.periodic:
        name = "solve_periodic"
    elif lanes == 1:
        name = "solve_lines"
    else:
        name = "solve_shared" if shared else "solve_tiles"
        if across[3] in (0, 1) and across[4] == 1:
            fit = _TILE // ((1 if s.pivot == "none" else 3) * n * itemsize)
            width = max(width, min(_WIDEST, 1 << fit.bit_length() >> 1))
            if lanes * n >= 2 * _LEAST:
                width = min(width, max(_NARROW, lanes // threads.limit()))
    width = min(width, lanes)
    tasks = high * low * -(-lanes // width)
    text, groups = _cpu.text, (views[:4], views[4:])
    return _cpu.Plan(
        (_cpu.Launch(name, tasks, -(-_LEAST // (n * width))),),
        (
            *text.groups(["in", "out"], groups, _NUMBERS),
            *_arithmetic(dtype),
            *(_access(views) if name in ("solve_tiles", "solve_shared") else ()),
            text.loops(
                "_primitives/tridiagonal/solvers/join_parts_loops.py"
                if s.pivot == "none" and not s.periodic
                else "_primitives/tridiagonal/solvers/tridiagonal_loops.py"
            ),
        ),
        inputs=(dtype,) * 4,
        outputs=((result_shape, dtype),),
        scratch=(),
        numbers=(low, n, lanes, width, *text.numbers_of(groups)),
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, s: System) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    reason = _cpu.refusal(xp, s.arrays)
    dtype = dtype_name(s.rhs.dtype)
    if reason is None and dtype not in LAPACK:
        return f"the kernel does not compute in {dtype}"
    return reason


CROSSOVERS = _cpu.crossovers(__name__)


def slower(xp: Namespace, s: System) -> str | None:
    """Return the reason why another method is faster, or None.

    LAPACK's routine was measured on arrays without conversions; a broadcast of numbers takes longer than a solve.
    """
    plain = not s.periodic and all(x.shape == s.rhs.shape for x in s.arrays)
    kind = "system" if len(s.shape) == 1 and (plain or library(xp) == "numpy") else "systems"
    return _cpu.measured(CROSSOVERS, xp, s.arrays).slower(library(xp), kind, math.prod(s.shape))


def batched(xp: Namespace, s: System, arrays: tuple[Array, ...]) -> System:
    """Return the systems of arrays with one more leading axis."""
    # Every array gets axes of length 1 after the new axis, up to the number of axes of the solution.
    ndim = len(s.shape) + 1
    aligned = tuple([xp.reshape(x, (x.shape[0], *(1,) * (ndim - x.ndim), *x.shape[1:])) for x in arrays])
    shape: tuple[int, ...] = broadcast_shapes(*(x.shape for x in aligned))
    rows = broadcast_shapes(*(x.shape for x in aligned[:3]), (shape[s.axis], *(1,) * (-1 - s.axis)))
    found: System = dataclasses.replace(s, arrays=aligned, rows=tuple(rows), shape=tuple(shape), key=None)
    return found


_runs: Memo[Callable[..., Array]] = Memo()


def prepare(xp: Namespace, s: System) -> Callable[..., Array]:
    """Return a function of the arrays that computes the solutions; it is kept under the signature of the arrays.

    A call with numbers as coefficients has no key in the dispatch, so it comes here every time.
    """
    layouts = signature(s.arrays, gradient=True)
    if layouts is None:
        return _prepared(xp, s)
    key = (s.shape, s.rows, s.axis, s.periodic, s.pivot, layouts, threads.limit())
    return _runs.get(key) or _runs.keep(key, _prepared(xp, s))


def _prepared(xp: Namespace, s: System) -> Callable[..., Array]:
    if 0 in s.shape:
        return directly(empty)(xp, s)
    if s.periodic and s.n == 1:
        return directly(array)(xp, s)
    columns = len(s.shape) > len(s.rows) and not is_jax(xp)  # arrays of JAX have one order in memory
    plan = _plan(s, s.shape, s.axis, [_cpu.host(x) for x in s.arrays], columns=columns)
    if plan is not None:
        run = _cpu.runner(plan, s.arrays)
        if columns:
            return lambda *arrays: move_axis(xp, run(*arrays)[0], -1, 0)
        return lambda *arrays: run(*arrays)[0]
    shape, axis = s.shape, s.axis

    def copied(x: Array) -> Any:
        return _cpu.arranged(x, lambda numpy, x: numpy.moveaxis(numpy.broadcast_to(x, shape), axis, -1))

    copies = [_cpu.host(copied(x)) for x in s.arrays]
    plan = _plan(s, copies[0].shape, -1, copies, columns=False)
    assert plan is not None
    run = _cpu.runner(plan, s.arrays, [lambda x: copied(x).reshape(-1)] * 4)
    return lambda *arrays: move_axis(xp, run(*arrays)[0], -1, axis)

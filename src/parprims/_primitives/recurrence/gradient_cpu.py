"""Derivatives of linear recurrences by a kernel for CPUs, which reads and writes every array once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims import _cpu
from parprims._core.arrays import Namespace, dtype_kind, dtype_name
from parprims._core.layout import broadcast_strides, lines_along, row_major
from parprims._cpu.language import loaded
from parprims._primitives.scan.cpu import firsts, has_few_long, least_tasks, width_of_tiles
from parprims._primitives.scan.source import Adjoint


def _functions(
    views: tuple[Sequence[_cpu.View], Sequence[_cpu.View]], steps: tuple[Sequence[int], Sequence[int]]
) -> tuple[str, ...]:
    """Return the text of the functions that the loops call; ``steps`` are innermost strides of inputs and outputs."""
    inputs, outputs = views
    text, language, dtype = _cpu.text, _cpu.NUMBA, inputs[0].dtype
    state, both = _cpu.register_type(dtype), len(outputs) == 2

    def read(index: int, at: str) -> str:
        place = text.position(index, steps[0][index], at)
        return language.cast(loaded(dtype, f"load_from(0, inputs[{index}], {place})"), dtype, state)

    def conjugate(index: int, at: str) -> str:
        return language.call("conj", state, read(index, at))

    places = [text.position(at, step, "to") for at, step in enumerate(steps[1])]
    result = [f"results[{at}]" for at in range(len(outputs))]
    written = [one if state == dtype else language.cast(one, state, dtype) for one in result]
    by_a = [f"state[0] * {conjugate(2, 'at')}"] if both else []
    return (
        *(text.group(*one, 3) for one in zip(("in", "out"), views, firsts(views), strict=True)),
        text.states_in_memory([state]),
        text.function("begun(inputs, at, steps, i)", [f"return ({read(1, 'at')},)"]),
        text.function(
            "following(inputs, behind, at, steps, i, state)",
            [f"return ({read(1, 'at')} + {conjugate(0, 'behind')} * state[0],)"],
        ),
        text.function("results(inputs, at, steps, i, state)", [f"return {text.packed(['state[0]', *by_a])}"]),
        text.function("last_results(state)", [f"return {text.packed(['state[0]', f'{state}(0)'][: len(outputs)])}"]),
        text.function("write(outputs, to, steps, i, results)", text.stores([dtype] * len(outputs), written, places)),
        text.loops("_primitives/recurrence/gradient_loops.py"),
    )


def _plan(r: Adjoint) -> _cpu.Plan | None:
    """Return the plan of a call, or None if arrays cannot be viewed as (high, low, n, inner) with one stride each."""
    hosts: list[np.ndarray[Any, Any]] = [_cpu.host(x) for x in r.arrays]
    count, outputs, dtype = len(hosts), len(hosts) - 1, dtype_name(r.arrays[1].dtype)
    strides = [
        *(broadcast_strides(_cpu.strides(x), x.shape, len(r.shape)) for x in hosts),
        *[row_major(r.shape)] * outputs,
    ]
    merged = lines_along(r.shape, r.axis, strides)
    if merged is None:
        return None
    begins, along = [*map(_cpu.first, hosts), *[0] * outputs], list(merged.along)
    if r.reverse:
        begins = [begin + (r.n - 1) * step for begin, step in zip(begins, along, strict=True)]
        along = [-step for step in along]
    views = [
        _cpu.View(dtype, begin, (upward, downward, across), step)
        for begin, step, upward, downward, across in zip(
            begins, along, merged.upward, merged.downward, merged.across, strict=True
        )
    ]
    groups, columns = (views[:count], views[count:]), merged.inner > 1
    steps = merged.across if columns else along
    outer, inner = merged.high * merged.low, merged.inner
    width = width_of_tiles(outer * inner, inner, r.n)
    tasks = outer * (-(-inner // width) if columns else inner)
    return _cpu.Plan(
        (
            _cpu.Launch(
                "adjoint_columns" if columns else "adjoint_lines", tasks, least_tasks(tasks, outer * inner * r.n)
            ),
        ),
        _functions(groups, (steps[:count], steps[count:])),
        (dtype,) * count,
        ((r.shape, dtype),) * outputs,
        (),
        (merged.low, r.n, inner, width, *(number for view in views for number in view.numbers)),
    )


def refusal(xp: Namespace, r: Adjoint) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    if dtype_kind(r.arrays[0].dtype) not in ("float", "complex"):
        return "only real and complex floats have derivatives"
    if math.prod(r.shape[r.axis + 1 :]) == 1 and has_few_long(math.prod(r.shape) // r.n, r.n):
        return "a few long lines are left to linear_recurrence, which shares a line between threads"
    reason = _cpu.refusal(xp, r.arrays) or _cpu.unknown_dtype(r.arrays)
    return reason or (None if _plan(r) else "the arrays have too many axes that do not merge")


def prepare(_: Namespace, r: Adjoint) -> Callable[..., Any]:
    """Return a function of the arrays: the derivatives with respect to b and, given x, to a."""
    plan = _plan(r)
    assert plan is not None
    run = _cpu.runner(plan, r.arrays)
    return run if len(r.arrays) == 3 else lambda *arrays: run(*arrays)[0]

"""Derivatives of linear recurrences by a kernel for CPUs, which reads and writes every array once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from parprims import _cpu
from parprims._core.arrays import Namespace, dtype_kind, dtype_name
from parprims._cpu.language import loaded
from parprims._primitives.scan.cpu import NUMBERS, has_few_long, width_of_tiles
from parprims._primitives.scan.source import Adjoint


def _functions(views: Sequence[Sequence[_cpu.View]], steps: tuple[Sequence[int], Sequence[int]]) -> tuple[str, ...]:
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
        *text.groups(["in", "out"], views, NUMBERS),
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
    count, dtype = len(r.arrays), dtype_name(r.arrays[1].dtype)
    inputs, outputs = [(_cpu.host(x), dtype) for x in r.arrays], ((r.shape, dtype),) * (count - 1)
    lines = _cpu.lines_of(r.shape, r.axis, inputs, outputs, reverse=r.reverse)
    if lines is None:
        return None
    inner, columns = lines.inner, lines.inner > 1
    width = width_of_tiles(lines.count, inner, r.n)
    tasks = lines.count // inner * -(-inner // width) if columns else lines.count
    least = _cpu.threads.least_of_elements(tasks, lines.count * r.n)
    return _cpu.Plan(
        (_cpu.Launch("adjoint_columns" if columns else "adjoint_lines", tasks, least),),
        _functions(lines.groups[:2], lines.steps(columns=columns)),
        (dtype,) * count,
        outputs,
        (),
        (lines.low, r.n, inner, width, *_cpu.text.numbers_of(lines.groups)),
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

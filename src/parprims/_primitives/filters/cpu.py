"""Filters by kernels for CPUs: one line after another, and lines in parallel."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, dtype_name, library
from parprims._dispatch.derivative_rules import by_operations
from parprims._dispatch.dispatch import directly
from parprims._primitives.filters.array import array
from parprims._primitives.filters.call import Filter

_LEAST = 1 << 14
"""The fewest samples for a thread."""


_UNROLLED = 12
"""The highest order with states and coefficients in registers."""


def refusal(xp: Namespace, f: Filter) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    return _cpu.unknown_dtype(f.arrays) or _cpu.refusal(xp, f.arrays, differentiable=True)


CROSSOVERS = _cpu.crossovers(__name__)
"""Samples from which the kernel is faster than the array form."""


def slower(xp: Namespace, f: Filter) -> str | None:
    """Return the reason why another method is faster, or None."""
    return _cpu.measured(CROSSOVERS, xp, f.arrays).slower(library(xp), "any", math.prod(f.shape))


def _in_registers(k: int) -> tuple[str, list[str]]:
    """Return the head and the lines of the kernel of filters_loops.py with coefficients and states in registers."""
    each = range(k)
    setting = [f"b{i} = quotient(load(inputs[0], section * {k + 1} + {i}), first)" for i in range(k + 1)]
    setting += [f"a{i} = quotient(load(inputs[1], section * {k + 1} + {i}), first)" for i in range(1, k + 1)]
    setting += [f"z{i} = load(inputs[3], (line * sections + section) * {k} + {i})" for i in each]
    step = [f"y = b0 * x{' + z0' if k else ''}"]
    step += [f"z{i} = {f'z{i + 1} + ' if i + 1 < k else ''}b{i + 1} * x - a{i + 1} * y" for i in each]
    return (
        "filter_lines(inputs, outputs, numbers, begin, end)",
        [
            "n, sections = numbers[0], numbers[1]",
            "for line in range(begin, end):",
            "    for section in range(sections):",
            f"        first = load(inputs[1], section * {k + 1})",
            *(f"        {one}" for one in setting),
            "        for at in range(line * n, (line + 1) * n):",
            "            x = load(inputs[2], at) if section == 0 else load(outputs[0], at)",
            *(f"            {one}" for one in step),
            "            store(outputs[0], at, y)",
            *(f"        store(outputs[1], (line * sections + section) * {k} + {i}, z{i})" for i in each),
        ],
    )


def prepare(xp: Namespace, f: Filter, with_kernel: Callable[[Namespace, Filter], Any]) -> Callable[..., Any]:
    """Return a function that filters by the kernel. PyTorch differentiates ``with_kernel``, the array form."""
    if 0 in f.shape:
        nothing: Callable[..., Any] = directly(array)(xp, f)
        return nothing
    run, bare = _runner(xp, f), f.on(*(None,) * len(f.arrays))

    def computed(*arrays: Array) -> tuple[Array, ...]:
        result = bare.finished(xp, *run(*bare.on(*arrays).parts(xp)), copy=False)
        return result if bare.states else (result,)

    differentiable = by_operations(xp, f.arrays, computed, lambda: directly(with_kernel)(xp, f))
    return differentiable if f.states else lambda *arrays: differentiable(*arrays)[0]


def batched(xp: Namespace, f: Filter, arrays: tuple[Array, ...]) -> Filter | None:
    """Return the call on signals with one more leading axis, or None if coefficients or states have it elsewhere."""
    coefficients = 1 + (f.sections is None)
    if (f.states and f.sections is not None) or any(x.shape[0] > 1 for x in arrays[:coefficients]):
        return None
    size = max(x.shape[0] for x in arrays)
    signals = [xp.broadcast_to(x, (size, *x.shape[1:])) for x in arrays[coefficients:]]
    return dataclasses.replace(
        f,
        arrays=(*(x[0, ...] for x in arrays[:coefficients]), *signals),
        shape=(size, *f.shape),
        axis=f.axis + 1,
        results=tuple([((size, *shape), dtype) for shape, dtype in f.results]),
        key=None,
    )


def _runner(xp: Namespace, f: Filter) -> Callable[..., tuple[Array, ...]]:
    """Return a function of coefficients, lines and states: the lines filtered, and their states after."""
    parts = f.parts(xp)
    name, sections, k = dtype_name(f.working), f.sections or 1, f.order
    lines, n = parts[2].shape
    text = _cpu.text
    plan = _cpu.Plan(
        (
            _cpu.Launch(
                "filter_lines" if k <= _UNROLLED else "filter_long_lines", lines, max(1, _LEAST // (n * sections))
            ),
        ),
        (
            *text.arithmetic(name),
            text.loops("_primitives/filters/filters_loops.py") if k > _UNROLLED else text.function(*_in_registers(k)),
        ),
        inputs=(name,) * 4,
        outputs=(((lines, n), name), ((lines, sections, k), name)),
        scratch=(),
        numbers=(n, sections, k),
    )
    return _cpu.runner(plan, list(parts), [_cpu.reader_in_order(one) for one in parts])

"""Searches in sorted arrays by kernels for CPUs: the text for dtypes, the plan, and the prepared call."""

from __future__ import annotations

import math
from collections.abc import Callable

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, cast, dtype_name, library
from parprims._cpu.language import loaded
from parprims._dispatch.derivative_rules import asked_for, constant
from parprims._dispatch.dispatch import directly
from parprims._primitives.search.array import array
from parprims._primitives.search.call import Search
from parprims._primitives.sort.call import index_dtype, moved

_TOGETHER = 256
"""The searches of a task."""
_LEAST = 16
"""The fewest tasks for a thread."""


def _plan(c: Search, names: tuple[str, str], index: str, n: int) -> _cpu.Plan:
    """Return the plan of searches among n sorted keys, given the dtypes of both arrays and of the result."""
    dtype, shape, right = dtype_name(c.dtype), c.results[0][0], c.right
    text, language, m = _cpu.text, _cpu.NUMBA, math.prod(shape)
    one, other = (language.cast(loaded(name, f"load(inputs[{at}], i)"), name, dtype) for at, name in enumerate(names))
    texts = (
        text.function("sorted_key(inputs, i)", (f"return {one}",)),
        text.function("wanted_key(inputs, i)", (f"return {other}",)),
        text.function("is_before(key, wanted)", (f"return int64(key {'<=' if right else '<'} wanted)",)),
        text.function("keys(count)", (f"return np.empty(count, np.{_cpu.register_type(dtype)})",)),
        text.loops("_primitives/search/search_loops.py"),
    )
    tasks = -(-m // _TOGETHER)
    numbers = n, m, _TOGETHER, int(right)
    return _cpu.Plan(
        (_cpu.Launch("search", tasks, _LEAST),),
        texts,
        inputs=names,
        outputs=((shape, index),),
        scratch=(),
        numbers=numbers,
    )


def refusal(xp: Namespace, c: Search) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    return _cpu.unknown_dtype(c.arrays) or _cpu.refusal(xp, c.arrays, differentiable=True)


CROSSOVERS = _cpu.crossovers(__name__)
"""Elements of x2 from which kernels save 10 us over the library's own routine."""


def slower(xp: Namespace, c: Search) -> str | None:
    """Return the reason why another method is faster, or None."""
    return _cpu.measured(CROSSOVERS, xp, c.arrays).slower(library(xp), "any", math.prod(c.arrays[1].shape))


def prepare(xp: Namespace, c: Search) -> Callable[..., Array]:
    """Return a function that searches by the kernel."""
    if c.is_empty:
        return directly(array)(xp, c)

    def laid_out(arrays: tuple[Array, ...]) -> tuple[Array, Array]:
        x1, x2, *sorter = (constant(x) if asked_for(x) else x for x in arrays)
        if sorter:
            x1 = moved(xp, x1, lambda one: xp.take(one, cast(xp, sorter[0], index_dtype(xp)), axis=0))
        return x1, x2

    x1, x2 = laid_out(c.arrays)
    names = dtype_name(x1.dtype), dtype_name(x2.dtype)
    plan = _plan(c, names, dtype_name(index_dtype(xp)), x1.shape[0])
    run = _cpu.runner(plan, (x1, x2), [_cpu.reader_in_order(x1), _cpu.reader_in_order(x2)])
    return lambda *arrays: run(*laid_out(arrays))[0]

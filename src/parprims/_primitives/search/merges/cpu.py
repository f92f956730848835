"""Merges of two sorted arrays by kernels for CPUs: the text for dtypes, the plan, and the prepared call."""

from __future__ import annotations

import math
from collections.abc import Callable

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, dtype_name, library, move_axis
from parprims._cpu.language import loaded, stored
from parprims._dispatch.dispatch import directly
from parprims._primitives.search.merges.array import joined
from parprims._primitives.search.merges.call import Merge

_CHUNK = 1 << 14
"""Elements of a chunk of the result."""


def _plan(c: Merge) -> _cpu.Plan:
    """Return the plan of a call with rows of n and m elements."""
    text, language, each, axis = _cpu.text, _cpu.NUMBA, c.each, c.axis
    names, dtypes = tuple([dtype_name(x.dtype) for x in c.arrays]), tuple([dtype_name(one) for one in c.dtypes])
    shape = (*c.shape[:axis], *c.shape[axis + 1 :], c.shape[axis])
    n, m = (c.arrays[at].shape[axis] for at in (0, each))

    def element(at: int, index: str) -> str:
        return language.cast(loaded(names[at], f"load(inputs[{at}], {index})"), names[at], dtypes[at % each])

    def moved(at: int) -> str:
        """Return the text that chooses between two elements: by their bits if no dtype is converted."""
        if names[at] == names[each + at] == dtypes[at]:
            return f"select(takes, load(inputs[{at}], i), load(inputs[{each + at}], j))"
        return stored(dtypes[at], f"select(takes, {element(at, 'i')}, {element(each + at, 'j')})")

    texts = (
        text.function("first_key(inputs, i)", (f"return {element(0, 'i')}",)),
        text.function("second_key(inputs, j)", (f"return {element(each, 'j')}",)),
        text.function("comes_first(one, other)", (f"return one {'>=' if c.descending else '<='} other",)),
        text.function(
            "put(inputs, outputs, at, i, j, takes)",
            [f"store(outputs[{at}], at, {moved(at)})" for at in range(each)],
        ),
        text.loops("_primitives/search/merges/merge_loops.py"),
    )
    chunks = -(-(n + m) // _CHUNK)
    tasks = math.prod(shape[:-1]) * chunks
    outputs = tuple([(shape, dtype) for dtype in dtypes])
    launch = _cpu.Launch("merge", tasks, max(1, 2 * _CHUNK // (n + m)))
    return _cpu.Plan(
        (launch,), texts, inputs=names, outputs=outputs, scratch=(), numbers=(n, m, _CHUNK, chunks, int(c.descending))
    )


def refusal(xp: Namespace, c: Merge) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    return _cpu.unknown_dtype(c.arrays) or _cpu.refusal(xp, c.arrays)


CROSSOVERS = _cpu.crossovers(__name__)
"""Elements of the result from which kernels save 10 us over the library's own routine."""


def slower(xp: Namespace, c: Merge) -> str | None:
    """Return the reason why another method is faster, or None."""
    return _cpu.measured(CROSSOVERS, xp, c.arrays).slower(library(xp), "any", math.prod(c.results[0][0]))


def prepare(xp: Namespace, c: Merge) -> Callable[..., tuple[Array, ...]]:
    """Return a function that merges by the kernel."""
    axis, last = c.axis, len(c.shape) - 1
    if any(0 in x.shape for x in (c.arrays[0], c.arrays[c.each])):
        return directly(joined)(xp, c)
    plan = _plan(c)
    run = _cpu.runner(plan, c.arrays, [_cpu.reader_in_order(x, axis) for x in c.arrays])
    if axis == last:
        return run
    return lambda *arrays: tuple([move_axis(xp, y, -1, axis) for y in run(*arrays)])

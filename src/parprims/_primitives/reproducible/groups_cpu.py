"""Sums of segments and of weights with the same bits everywhere by kernels for CPUs: plans and prepared calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, dtype_name
from parprims._primitives.histogram.cpu import numbers_of
from parprims._primitives.histogram.cpu import texts_of as texts_of_histogram
from parprims._primitives.reproducible.cpu import texts_of
from parprims._primitives.reproducible.segments import SegmentSums
from parprims._primitives.reproducible.weights import Weights

_BLOCK, _BLOCKS = 1 << 14, 64
"""The fewest elements of a block, and the most blocks."""
_EACH = 32
"""The fewest rows of a block for each segment, if there is more than one block."""


# ---- Segments ---------------------------------------------------------------------------------------------------


def _texts(c: SegmentSums) -> tuple[str, ...]:
    text, inner = _cpu.text, math.prod(c.arrays[0].shape[c.axis + 1 :])
    return (
        *texts_of((dtype_name(c.arrays[0].dtype),), c.dtype, c.grid),
        text.function("place(inputs, i)", ("return int64(load(inputs[1], i))",)),
        text.function("width(numbers)", (f"return {1 if inner == 1 else 'numbers[1]'}",)),
        text.loops("_primitives/reproducible/loops/segments_loops.py"),
    )


def _plan_by_offsets(c: SegmentSums, shape: tuple[int, ...]) -> _cpu.Plan:
    """Return the plan for lines, and a result of a shape."""
    x = c.arrays[0]
    n, elements = x.shape[c.axis], math.prod(x.shape)
    tasks = elements // n * c.segments
    return _cpu.Plan(
        (_cpu.Launch("sum_segments", tasks, _cpu.threads.least_of_elements(tasks, elements)),),
        _texts(c),
        tuple([dtype_name(one.dtype) for one in c.arrays]),
        ((shape, c.dtype),),
        ((0, "int64"),),
        (n, c.segments, c.grid.first, c.grid.second),
    )


def _plan_by_ids(c: SegmentSums) -> _cpu.Plan:
    x, at, segments = c.arrays[0], c.axis, c.segments
    outer, n, inner = math.prod(x.shape[:at]), x.shape[at], math.prod(x.shape[at + 1 :])
    blocks = max(1, min(_BLOCKS, n * inner // _BLOCK, n // (_EACH * segments)))
    size = -(-n // blocks)
    blocks = -(-n // size)
    tasks, grids = outer * blocks, outer * segments * inner
    least = _cpu.threads.least_of_elements(tasks, outer * n * inner)
    least_of_lines = _cpu.threads.least_of_elements(outer, grids * blocks)
    return _cpu.Plan(
        (
            _cpu.Launch("find_tops_of_ids", tasks, least),
            _cpu.Launch("choose_grids", outer, least_of_lines, reads=0),
            _cpu.Launch("add_ids", tasks, least),
            _cpu.Launch("finish_ids", outer, least_of_lines, reads=0),
        ),
        _texts(c),
        tuple([dtype_name(one.dtype) for one in c.arrays]),
        ((c.results[0][0], c.dtype),),
        (
            *[(grids * blocks, "int64")] * 3,
            (grids * blocks, "float64"),
            *[(grids, "float64")] * 2,
            (grids, "int64"),
        ),
        (n, inner, segments, blocks, size, c.grid.first, c.grid.second),
    )


def segments(xp: Namespace, c: SegmentSums) -> Callable[..., Array]:
    """Return a function of the elements, and of their offsets or ids, that computes the sums."""
    x, ((shape, _),) = c.arrays[0], c.results
    if c.by_ids:
        run = _cpu.runner(_plan_by_ids(c), c.arrays, [_cpu.reader_in_order(one) for one in c.arrays])
        return lambda *arrays: run(*arrays)[0]
    at = c.axis
    moved = (*shape[:at], *shape[at + 1 :], shape[at])
    readers = [_cpu.reader_in_order(x, at), _cpu.reader_in_order(c.arrays[1])]
    run = _cpu.runner(_plan_by_offsets(c, moved), c.arrays, readers)
    if at == x.ndim - 1:
        return lambda *arrays: run(*arrays)[0]
    back = (*range(at), x.ndim - 1, *range(at, x.ndim - 1))
    return lambda *arrays: xp.permute_dims(run(*arrays)[0], back)


# ---- Weights ----------------------------------------------------------------------------------------------------


def weights(_: Namespace, c: Weights) -> Callable[..., tuple[Array, Array]]:
    """Return a function of the elements, the weights and any edges that computes the sums and the edges."""
    order = [0, 1] if c.even else [0, 2, 1]
    arrays = [c.arrays[at] for at in order]
    names = [dtype_name(x.dtype) for x in arrays]
    edge, numbers = (
        dtype_name(c.results[1][1]),
        numbers_of(math.prod(arrays[0].shape), c.bins, even=c.even, ends=c.ends),
    )
    _, bins, blocks, _, even, *_ = numbers
    launches = [_cpu.Launch("find_ends", blocks)] if even == 2 else []
    launches += [_cpu.Launch("find_tops_of_weights", blocks), _cpu.Launch("make_edges", 1)]
    launches += [_cpu.Launch("add_weights", blocks), _cpu.Launch("finish_bins", -(-bins // 1024), 16)]
    plan = _cpu.Plan(
        tuple(launches),
        (
            *texts_of_histogram(names[0], edge, "int64", given=None if c.even else names[1], weight=None),
            *texts_of((names[-1],), c.dtype, c.grid, first=len(names) - 1),
            _cpu.text.loops("_primitives/reproducible/loops/weights_loops.py"),
        ),
        tuple(names),
        (((bins,), c.dtype), ((bins + 1,), edge)),
        (
            (blocks * bins, "int64"),
            (2 * blocks, edge),
            (2, "float64"),
            (blocks * bins, "int64"),
            (blocks * bins, "float64"),
            (blocks, "int64"),
        ),
        (*numbers, c.grid.first, c.grid.second),
    )
    run: Callable[..., Any] = _cpu.runner(plan, arrays, [_cpu.reader_in_order(x) for x in arrays])
    return lambda *arrays: run(*[arrays[at] for at in order])

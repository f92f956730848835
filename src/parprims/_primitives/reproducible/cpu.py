"""Sums with the same bits everywhere by kernels for CPUs: the text for a dtype, the plan, and the prepared call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, dtype_bits, dtype_name
from parprims._cpu.language import loaded, stored
from parprims._primitives.reproducible.call import OnGrid, Sum
from parprims._primitives.reproducible.grid import Grid
from parprims._primitives.reproducible.running import RunningSum
from parprims._primitives.sort.call import FRACTION_BITS

Call = Sum | RunningSum

_BLOCK, _BLOCKS = 1 << 14, 64
"""The fewest elements of a block, and the most blocks of a line."""


def _texts(x: str, result: str, on: Grid) -> tuple[str, ...]:
    """Return the functions that the loops call, for elements and results of these dtypes."""
    text, width, fraction = _cpu.text, dtype_bits(x), FRACTION_BITS[x]
    fields = 2 ** (width - fraction - 1) - 1
    pattern, seen = "load(inputs[0], i)", f"uint{max(width, 32)}"
    if width > 16:
        pattern = f"as_uint{width}({pattern})"
    code = "result" if result == "float64" else "float32(result)"
    return (
        text.function("magnitude(inputs, i)", (f"return {seen}({pattern} & uint{width}({2 ** (width - 1) - 1}))",)),
        text.function("infinity()", (f"return {seen}({fields << fraction})",)),
        text.function("value(inputs, i)", (f"return float64({loaded(x, 'load(inputs[0], i)')})",)),
        text.function("exponent(top)", (f"return max(top >> {fraction}, int64(1)) - {fields // 2 - 1}",)),
        text.function("words()", (f"return {on.words}",)),
        text.function("most_bits()", (f"return {23 if dtype_bits(result) == 16 else 53}",)),
        text.function("rounds_alone()", (f"return {result == 'float32'}",)),
        text.function("finish(outputs, i, result)", (f"store_to(10, outputs[0], i, {stored(result, code)})",)),
        text.loops("_primitives/reproducible/reproducible_loops.py"),
    )


def _plan(c: Call, x: str, *, lines: int, n: int, shape: tuple[int, ...]) -> _cpu.Plan:
    """Return the plan for lines of n elements of a dtype, and a result of a shape."""
    result, threads = dtype_name(c.results[0][1]), _cpu.threads
    size = max(_BLOCK, -(-n // _BLOCKS))
    if isinstance(c, RunningSum) and threads.limit() == 1:
        size = n  # more blocks of a line are a further pass over it
    blocks = -(-n // size)
    tasks, elements = lines * blocks, lines * n
    least = threads.least_of_elements(tasks, elements)
    running = isinstance(c, RunningSum)
    launches = [_cpu.Launch("find_tops", tasks, threads.least_of_bytes(tasks, elements * _cpu.bytes_of([x])))]
    if not running or blocks > 1:
        launches.append(_cpu.Launch("add_blocks", tasks, least))
    if running:
        launches.append(_cpu.Launch("scan_blocks", tasks, least))
    else:
        launches.append(_cpu.Launch("finish_sums", lines, threads.least_of_elements(lines, tasks), reads=0))
    return _cpu.Plan(
        tuple(launches),
        _texts(x, result, c.grid),
        (x,),
        ((shape, result),),
        (*[(tasks, "int64")] * 3, (tasks, "float64")),
        (n, blocks, size, c.grid.first, c.grid.second, int(isinstance(c, RunningSum) and c.include_initial)),
    )


# ---- The method -------------------------------------------------------------------------------------------------


def serves(c: OnGrid) -> bool:
    """Return whether there is a kernel: for sums of the elements of one array, of which there are some."""
    return isinstance(c, Sum | RunningSum) and len(c.arrays) == 1 and 0 not in c.arrays[0].shape


def refusal(xp: Namespace, c: Call) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    return _cpu.refusal(xp, c.arrays, differentiable=True) or _cpu.unknown_dtype(c.arrays)


def prepare(xp: Namespace, c: Call) -> Callable[[Array], Array]:
    """Return a function of the array, which has elements, that computes the sums."""
    (x,), ((shape, _),) = c.arrays, c.results
    axes = (c.axis,) if isinstance(c, RunningSum) else c.axes
    order = (*(axis for axis in range(x.ndim) if axis not in axes), *axes)
    n = math.prod([x.shape[axis] for axis in axes])
    is_in_order = order == tuple(range(x.ndim))
    read = _cpu.reader_in_order(x) if is_in_order else lambda x: _copied(x, order)
    moved = len(shape) == x.ndim and not is_in_order and isinstance(c, RunningSum)
    made = tuple([shape[axis] for axis in order]) if moved else shape
    plan = _plan(c, dtype_name(x.dtype), lines=math.prod(x.shape) // n, n=n, shape=made)
    run = _cpu.runner(plan, (x,), [read])
    if not moved:
        return lambda x: run(x)[0]
    back = tuple([order.index(axis) for axis in range(x.ndim)])
    return lambda x: xp.permute_dims(run(x)[0], back)


def _copied(x: Array, order: tuple[int, ...]) -> Array:
    copied: Array = _cpu.arranged(x, lambda numpy, x: numpy.transpose(x, order)).reshape(-1)
    return copied


def batched(xp: Namespace, c: Call, arrays: tuple[Array, ...]) -> Call:
    """Return the call on arrays with one more leading axis."""
    del xp
    ((shape, dtype),) = c.results
    results = (((arrays[0].shape[0], *shape), dtype),)
    if isinstance(c, RunningSum):
        return dataclasses.replace(c, arrays=arrays, key=None, results=results, axis=c.axis + 1)
    axes, whole = tuple([axis + 1 for axis in c.axes]), tuple(arrays[0].shape)
    return dataclasses.replace(c, arrays=arrays, key=None, results=results, axes=axes, shape=whole)

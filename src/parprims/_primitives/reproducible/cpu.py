"""Sums with the same bits everywhere by kernels for CPUs: the text for a dtype, the plan, and the prepared call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, broadcast_shapes, dtype_bits, dtype_name
from parprims._cpu.language import loaded, stored
from parprims._primitives.reproducible.call import OnGrid, Sum
from parprims._primitives.reproducible.grid import Grid
from parprims._primitives.reproducible.running import RunningSum
from parprims._primitives.sort.call import FRACTION_BITS

Call = Sum | RunningSum

_TILE = 512
"""The most columns of a task, as in the loops."""
_BLOCK, _BLOCKS = 1 << 14, 64
"""The fewest elements of a block, and the most blocks of a line."""


_ROWS = 256
"""The fewest rows of a block of columns."""
_LEAST_COLUMNS = 16
"""The fewest neighbouring columns that are not copied into lines."""


def texts_of(names: tuple[str, ...], result: str, on: Grid, *, first: int = 0) -> tuple[str, ...]:
    """Return the functions that the loops call, for arrays of elements and results of these dtypes.

    The elements are the inputs from ``first`` on.
    """
    text, x = _cpu.text, names[0]
    width, fraction = dtype_bits(x), FRACTION_BITS[x]
    fields = 2 ** (width - fraction - 1) - 1
    seen = f"uint{max(width, 32)}"
    elements = []
    for at in range(len(names)):
        pattern, suffix = f"load_from({11 + at}, inputs[{first + at}], i)", "" if at == 0 else str(at + 1)
        bits = pattern if width == 16 else f"as_uint{width}({pattern})"
        head = f"magnitude{suffix}(inputs, i)", f"value{suffix}(inputs, i)"
        elements.append(text.function(head[0], (f"return {seen}({bits} & uint{width}({2 ** (width - 1) - 1}))",)))
        elements.append(text.function(head[1], (f"return float64({loaded(x, pattern)})",)))
    code = "result" if result == "float64" else "float32(result)"
    return (
        *elements,
        text.function("infinity()", (f"return {seen}({fields << fraction})",)),
        text.function("exponent(top)", (f"return max(top >> {fraction}, int64(1)) - {fields // 2 - 1}",)),
        text.function("is_product()", (f"return {len(names) > 1}",)),
        text.function("words()", (f"return {on.words}",)),
        text.function("most_bits()", (f"return {23 if dtype_bits(result) == 16 else 53}",)),
        text.function("rounds_alone()", (f"return {result == 'float32'}",)),
        text.function("finish(outputs, i, result)", (f"store_to(10, outputs[0], i, {stored(result, code)})",)),
        text.loops("_primitives/reproducible/loops/reproducible_loops.py"),
    )


def _plan(c: Call, names: tuple[str, ...], *, lines: int, n: int, others: int, shape: tuple[int, ...]) -> _cpu.Plan:
    """Return the plan for lines of n elements of these dtypes, and a result of a shape.

    There are ``others`` lines of a second vector.
    """
    result, threads = c.dtype, _cpu.threads
    size = max(_BLOCK, -(-n // _BLOCKS))
    if isinstance(c, RunningSum) and threads.limit() == 1:
        size = n  # more blocks of a line are a further pass over it
    blocks = -(-n // size)
    tasks, elements = lines * blocks, lines * n
    least = threads.least_of_elements(tasks, elements)
    running, product = isinstance(c, RunningSum), len(names) > 1
    bound = threads.least_of_bytes(tasks, elements * _cpu.bytes_of(list(names)))
    launches = [_cpu.Launch("find_tops_of_pairs" if product else "find_tops", tasks, bound)]
    if not running or blocks > 1:
        launches.append(_cpu.Launch("add_products" if product else "add_blocks", tasks, least))
    if running:
        launches.append(_cpu.Launch("scan_blocks", tasks, least))
    else:
        launches.append(_cpu.Launch("finish_sums", lines, threads.least_of_elements(lines, tasks), reads=0))
    initial = int(isinstance(c, RunningSum) and c.include_initial)
    return _cpu.Plan(
        tuple(launches),
        texts_of(names, result, c.grid),
        names,
        ((shape, result),),
        (*[(tasks, "int64")] * 3, (tasks, "float64"), (tasks if product else 0, "int64")),
        (n, blocks, size, c.grid.first, c.grid.second, initial, others, 1),
    )


def _plan_of_columns(c: Call, name: str, *, outer: int, n: int, inner: int) -> _cpu.Plan:
    """Return the plan for sums along the middle axis of (outer, n, inner)."""
    threads, ((shape, _),), running = _cpu.threads, c.results, isinstance(c, RunningSum)
    size = max(_ROWS, -(-_BLOCK // inner), -(-n // _BLOCKS))
    if running and threads.limit() == 1:
        size = n  # more blocks of a column are a further pass over it
    blocks = -(-n // size)
    tiles, rows = -(-inner // _TILE), outer * blocks
    tasks, elements = rows * tiles, outer * n * inner
    least = threads.least_of_elements(tasks, elements)
    columns = outer * tiles
    bound = threads.least_of_bytes(tasks, elements * _cpu.bytes_of([name]))
    least_of_columns = threads.least_of_elements(columns, rows * inner)
    launches = [_cpu.Launch("find_column_tops", tasks, bound)]
    launches.append(_cpu.Launch("scale_columns", columns, least_of_columns, reads=0))
    if not running or blocks > 1:
        launches.append(_cpu.Launch("add_columns", tasks, least))
    if running:
        launches.append(_cpu.Launch("scan_columns", tasks, least))
    else:
        launches.append(_cpu.Launch("finish_columns", columns, least_of_columns, reads=0))
    initial = int(isinstance(c, RunningSum) and c.include_initial)
    return _cpu.Plan(
        tuple(launches),
        texts_of((name,), c.dtype, c.grid),
        (name,),
        ((shape, c.dtype),),
        (*[(rows * inner, "int64")] * 3, (rows * inner, "float64"), (outer * inner, "int64")),
        (n, blocks, size, c.grid.first, c.grid.second, initial, 1, inner),
    )


# ---- The method -------------------------------------------------------------------------------------------------


def serves(c: OnGrid) -> bool:
    """Return whether there is a kernel: for calls that have elements and sums; two vectors must have one dtype."""
    if isinstance(c, Sum):
        return len({x.dtype for x in c.arrays}) == 1 and 0 not in c.shape
    return 0 not in c.arrays[0].shape and 0 not in c.results[0][0]


def _shape(c: Call) -> tuple[int, ...]:
    return c.shape if isinstance(c, Sum) else tuple(c.arrays[0].shape)


def refusal(xp: Namespace, c: OnGrid) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    return _cpu.refusal(xp, c.arrays, differentiable=True) or _cpu.unknown_dtype(c.arrays)


def prepare(xp: Namespace, c: Call) -> Callable[..., Array]:
    """Return a function of the arrays, which have elements, that computes the sums."""
    (x, *others), ((shape, _),) = c.arrays, c.results
    whole, axes = _shape(c), (c.axis,) if isinstance(c, RunningSum) else c.axes
    order = (*(axis for axis in range(len(whole)) if axis not in axes), *axes)
    n = math.prod([whole[axis] for axis in axes])
    if not others and axes and axes == tuple(range(axes[0], axes[0] + len(axes))):
        inner = math.prod(whole[axes[-1] + 1 :])
        if inner >= _LEAST_COLUMNS:
            outer = math.prod(whole[: axes[0]])
            plan = _plan_of_columns(c, dtype_name(x.dtype), outer=outer, n=n, inner=inner)
            run = _cpu.runner(plan, (x,), [_cpu.reader_in_order(x)])
            return lambda x: run(x)[0]
    is_in_order = order == tuple(range(len(whole)))
    moved = len(shape) == x.ndim and not is_in_order and isinstance(c, RunningSum)
    made = tuple([shape[axis] for axis in order]) if moved else shape
    lines = math.prod(whole) // n
    is_one = lines > 1 and any(math.prod(y.shape) == n == y.shape[axes[0] - len(whole)] for y in others)
    names = tuple([dtype_name(one.dtype) for one in c.arrays])
    plan = _plan(c, names, lines=lines, n=n, others=1 if is_one else lines, shape=made)
    readers = [_reader(x, whole, order)]
    readers += [_cpu.reader_in_order(y) if is_one else _reader(y, whole, order) for y in others]
    run = _cpu.runner(plan, c.arrays, readers)
    if not moved:
        return lambda *arrays: run(*arrays)[0]
    back = tuple([order.index(axis) for axis in range(x.ndim)])
    return lambda x: xp.permute_dims(run(x)[0], back)


def _reader(x: Array, shape: tuple[int, ...], order: tuple[int, ...]) -> Callable[[Array], Any]:
    """Return a reader of an array that broadcasts to a shape, with its axes in an order."""
    if tuple(x.shape) == shape and order == tuple(range(len(shape))):
        return _cpu.reader_in_order(x)
    return lambda x: _copied(x, shape, order)


def _copied(x: Array, shape: tuple[int, ...], order: tuple[int, ...]) -> Array:
    copied: Array = _cpu.arranged(x, lambda numpy, x: numpy.transpose(numpy.broadcast_to(x, shape), order)).reshape(-1)
    return copied


def batched(xp: Namespace, c: Call, arrays: tuple[Array, ...]) -> Call | None:
    """Return the call on arrays with one more leading axis; None for vectors of which one lacks an axis."""
    del xp
    ((shape, dtype),) = c.results
    whole = broadcast_shapes(*[tuple(x.shape) for x in arrays])
    results = (((whole[0], *shape), dtype),)
    if isinstance(c, RunningSum):
        return dataclasses.replace(c, arrays=arrays, key=None, results=results, axis=c.axis + 1)
    if any(x.ndim != 1 + len(c.shape) for x in arrays):
        return None
    axes = tuple([axis + 1 for axis in c.axes])
    return dataclasses.replace(c, arrays=arrays, key=None, results=results, axes=axes, shape=whole)

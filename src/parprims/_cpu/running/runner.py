"""The functions that run plans of kernels for CPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims._compiling.plan_capture import observed
from parprims._core.arrays import Array
from parprims._core.jax_arrays import is_traced
from parprims._cpu import memory, text, threads
from parprims._cpu.compiler import compiled
from parprims._cpu.plan import Plan
from parprims._cpu.running import xla


def runner(
    plan: Plan, like: Sequence[Array], readers: Sequence[Callable[[Array], np.ndarray[Any, Any]]] | None = None
) -> Callable[..., tuple[Array, ...]]:
    """Return a function of arrays like these that runs a plan and returns the outputs.

    ``readers`` return each array with one axis; by default `memory.reader` makes them.
    """
    observed(plan, tuple(like))
    if any(map(is_traced, like)):
        each = [memory.reader(x) for x in like] if readers is None else readers
        return lambda *arrays: xla.embedded(plan, [read(x) for read, x in zip(each, arrays, strict=True)])
    are_flat = readers is None and all(memory.is_flat(x) for x in like)
    readers = [memory.reader(x) for x in like] if readers is None else readers
    kernels = [
        (
            compiled(plan.kernel(at)),
            one.tasks,
            one.least,
            None if one.reads is None and one.writes else slice(one.reads),
            slice(0 if one.writes else len(plan.outputs), None),
        )
        for at, one in enumerate(plan.launches)
    ]
    numbers = np.array(plan.all_numbers, dtype=np.int64)
    shapes = [(shape, memory.bits_dtype(dtype)) for shape, dtype in plan.outputs]
    seen = None if plan.seen is None else [memory.bits_dtype(dtype) for dtype in plan.seen]
    scratch = [(count, np.dtype(text.numpy_type(dtype))) for count, dtype in plan.scratch]
    empty, allocate, made = (
        np.empty,
        memory.allocator(like[0]),
        memory.maker(like[0], [dtype for _, dtype in plan.outputs]),
    )
    first, tasks, least, *_ = kernels[0]
    is_single = len(kernels) == 1 and tasks < 2 * least
    unused = [empty(0, dtype) for _, dtype in scratch]  # all calls may share these
    has_scratch = any(count for count, _ in scratch)
    several = list(zip(scratch, unused, strict=True))

    def run(*arrays: Array) -> tuple[Array, ...]:
        inputs = arrays if are_flat else [read(x) for read, x in zip(readers, arrays, strict=True)]
        outputs = [allocate(shape, dtype) for shape, dtype in shapes]
        written = [output.reshape(-1) for output in outputs]
        if seen is not None:
            written = [output.view(dtype) for output, dtype in zip(written, seen, strict=True)]
        written += [empty(n, dtype) if n else none for (n, dtype), none in several] if has_scratch else unused
        everything = (*inputs, *written, numbers)
        for kernel, count, enough, reads, writes in kernels:
            arguments = everything if reads is None else (*inputs[reads], *written[writes], numbers)
            if count < 2 * enough:  # one thread does them all
                kernel(*arguments, 0, count)
            else:
                _launch(kernel, count, enough, arguments)
        return made(outputs, arrays)

    if not is_single or has_scratch or len(shapes) > 1 or seen is not None:
        return run
    ((shape, dtype),) = shapes

    def run_single(*arrays: Array) -> tuple[Array, ...]:  # `run` for one kernel on one thread, with less overhead
        output = allocate(shape, dtype)
        inputs = arrays if are_flat else [read(x) for read, x in zip(readers, arrays, strict=True)]
        first(*inputs, output if len(shape) == 1 else output.reshape(-1), *unused, numbers, 0, tasks)
        return made([output], arrays)

    return run_single


def _launch(kernel: Callable[..., None], tasks: int, least: int, arguments: tuple[Any, ...]) -> None:
    threads.run(lambda begin, end: kernel(*arguments, begin, end), tasks, least)

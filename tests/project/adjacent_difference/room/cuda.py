"""Differences of neighbours by a kernel for GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from parprims._primitives.adjacent_difference.array import array
from parprims._primitives.adjacent_difference.call import Differences

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, dtype_name, move_axis
from parprims._cuda import Launch, Numbers, Plan, Pointer
from parprims._operators.languages import C_TYPES

_THREADS = 256


def make_plan(dtype: str, shape: tuple[int, ...]) -> Plan:
    """Return the launch for contiguous lines along the last axis."""
    numbers, word, elements = Numbers(), C_TYPES[dtype], math.prod(shape)
    launch = Launch(
        source=_cuda.device_source("_primitives/adjacent_difference/adjacent_difference.cu"),
        template="adjacent::differences",
        arguments=(word,),
        parameters=(
            Pointer("in0", f"const {word}"),
            Pointer("out0", word),
            numbers("elements", elements),
            numbers("n", shape[-1]),
        ),
        grid=-(-elements // _THREADS),
        block=_THREADS,
    )
    return Plan((launch,), 1, ((shape, dtype),), numbers.all())


def refusal(xp: Namespace, c: Differences) -> str | None:
    """Return the sentence that says why the kernel cannot compute the call, or None."""
    if dtype_name(c.arrays[0].dtype) not in C_TYPES:
        return f"the kernel has no dtype {dtype_name(c.arrays[0].dtype)}"
    return _cuda.refusal(xp, c.arrays)


def prepare(xp: Namespace, c: Differences) -> Callable[..., Array]:
    """Return a function of the array that computes the call."""
    if 0 in c.shape:
        return lambda x: xp.concat([x], axis=c.axis)
    axis, last = c.axis, len(c.shape) - 1  # JAX keeps the functions below, so they hold no arrays of the call

    def rows(x: Array) -> Array:
        return _cuda.contiguous(xp, _cuda.plain(xp, x if axis == last else move_axis(xp, x, axis, -1)))

    def runner(x: Array) -> _cuda.Run:
        dtype, shape = dtype_name(x.dtype), tuple(x.shape)

        def in_program() -> tuple[_cuda.Run, _cuda.Run]:
            def otherwise(x: Array) -> tuple[Array, ...]:  # on devices without CUDA
                return (array(xp, Differences(arrays=(x,), shape=tuple(x.shape), axis=x.ndim - 1)),)

            return otherwise, lambda x: runner(x)(x)  # vmap has one more axis in front

        return _cuda.ready(xp, x, ("adjacent_difference", dtype, shape), lambda: make_plan(dtype, shape), in_program)

    run = runner(rows(c.arrays[0]))

    def computed(x: Array) -> Array:
        (y,) = run(rows(x))
        return y if axis == last else move_axis(xp, y, -1, axis)

    return computed


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield plans that reach every branch of the kernel, for a compiler without a GPU."""
    for dtype in C_TYPES:
        if dtype != "bool":
            yield f"adjacent_difference {dtype}", make_plan(dtype, (7, 1000))

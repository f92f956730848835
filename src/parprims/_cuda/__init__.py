"""All of the library that concerns CUDA: plans, the compiler, the driver, and the runners of plans.

A primitive describes what kernels do to its arrays as a `Plan`. `Runner` launches it through the CUDA driver on the
caller's current stream (CuPy arrays, PyTorch tensors). `traced` makes it part of a JAX program. Neither copies an array
or leaves the device.
"""

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from typing import overload

from parprims._core.arrays import Array, Namespace, is_jax
from parprims._core.memo import Memo
from parprims._cuda import xla
from parprims._cuda.chain import Step, chained
from parprims._cuda.compiler import CudaError
from parprims._cuda.memory import (
    arranged,
    capability,
    contiguous,
    device_index,
    layout,
    multiprocessors,
    plain,
    refusal,
)
from parprims._cuda.plan import (
    Argument,
    Launch,
    Number,
    Numbers,
    Parameter,
    Plan,
    Pointer,
    Struct,
    device_source,
    power_of_two,
)
from parprims._cuda.runner import Runner, only, returning
from parprims._cuda.tuning import Entry, Model, Tuning, model, shared_bytes, tuned, tunings
from parprims._cuda.xla import Program, jax_export_checks, row_by_row
from parprims._libraries.settings import transformed
from parprims._operators.languages import Captured

Run = Callable[..., tuple[Array, ...]]
"""Takes the inputs of a plan and returns its outputs."""

InProgram = Callable[[], tuple[Run, Run]]
"""Returns the two functions that a JAX program has in a plan's place. Neither may keep an array of the call.

The first function is computed away from CUDA devices. The second takes inputs with one more leading axis, of length 1
where an input is the same for the whole batch.
"""

_runners: Memo[Run] = Memo()


@overload
def ready(
    xp: Namespace,
    x: Array,
    key: Hashable,
    plan: Callable[[], Plan],
    in_program: InProgram,
    captured: tuple[Captured, ...] = (),
) -> Run: ...
@overload
def ready(
    xp: Namespace,
    x: Array,
    key: Hashable,
    plan: Callable[[], Plan | None],
    in_program: InProgram,
    captured: tuple[Captured, ...] = (),
) -> Run | None: ...
def ready(
    xp: Namespace,
    x: Array,
    key: Hashable,
    plan: Callable[[], Plan | None],
    in_program: InProgram,
    captured: tuple[Captured, ...] = (),
) -> Run | None:
    """Return a function that carries out a plan on arrays on the device of x, or None if there is no plan.

    The function is remembered under ``key``, which must hold all that the plan and both functions of ``in_program``
    depend on, except the namespace, the device and the ``captured`` numbers of the call's operators.
    """
    place = None if is_jax(xp) else device_index(xp, x)
    # The functions of a JAX program compute with the numbers of their own call.
    full_key = (xp, place, key, captured if place is None else ())
    found = _runners.get(full_key)
    if found is None:
        new_plan = plan()
        if new_plan is None:
            return None
        if place is None:
            found = Program(dataclasses.replace(new_plan, captured=captured), *in_program())
        else:
            found = Runner(xp, new_plan, place)
        _runners.keep(full_key, found)
    return found.with_captured(captured) if captured or place is None else found  # type: ignore[union-attr]


def has_devices() -> bool:
    """Return whether JAX has a CUDA device, for which its programs are taken to be."""
    return bool(xla.devices())


def tuned_for(table: Mapping[int, Entry], xp: Namespace, x: Array) -> Entry:
    """Return the entry of a table of tunings for the device that an array is on."""
    return tuned(table, capability(xp, x)).on(multiprocessors(xp, x))


def on_readable(
    xp: Namespace, arrays: tuple[Array, ...], find: Callable[[tuple[Array, ...]], Run | None], otherwise: Run
) -> Run:
    """Return the function that ``find`` returns for the readable forms of arrays (see `plain`), as one of such arrays.

    If ``find`` returns None, return ``otherwise``.
    """
    readable = tuple([plain(xp, x) for x in arrays])
    run = find(readable)
    if run is None:
        return otherwise
    if all(x is given for x, given in zip(readable, arrays, strict=True)):
        return run
    return lambda *given: run(*(plain(xp, x) for x in given))


__all__ = [
    "Argument",
    "CudaError",
    "Launch",
    "Model",
    "Number",
    "Numbers",
    "Parameter",
    "Plan",
    "Pointer",
    "Run",
    "Runner",
    "Step",
    "Struct",
    "Tuning",
    "arranged",
    "capability",
    "chained",
    "contiguous",
    "device_index",
    "device_source",
    "has_devices",
    "jax_export_checks",
    "layout",
    "model",
    "multiprocessors",
    "on_readable",
    "only",
    "plain",
    "power_of_two",
    "ready",
    "refusal",
    "returning",
    "row_by_row",
    "shared_bytes",
    "transformed",
    "tuned",
    "tuned_for",
    "tunings",
]

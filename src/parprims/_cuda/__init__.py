"""Everything of the library that knows CUDA: plans, the compiler, the driver, and who carries plans out.

A primitive describes what kernels do to its arrays as a `Plan`. `Runner` launches it on the caller's current stream
(CuPy arrays, PyTorch tensors) through the CUDA driver, `traced` makes it part of a JAX program. Neither copies an array
or leaves the device.
"""

from collections.abc import Callable

from parprims._arrays import Array, Namespace, is_jax
from parprims._cuda.compiler import CudaError
from parprims._cuda.libraries import transformed
from parprims._cuda.memory import capability, contiguous, device_index, layout, plain, refusal, signature
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
    tuned,
)
from parprims._cuda.runner import Runner
from parprims._cuda.xla import jax_export_checks, traced


def ready(
    xp: Namespace,
    plan: Plan,
    x: Array,
    otherwise: Callable[..., tuple[Array, ...]],
    batched: Callable[..., tuple[Array, ...]],
) -> Callable[..., tuple[Array, ...]]:
    """Return a function of a plan's inputs that gives its outputs, for arrays that are where x is.

    In a JAX program it computes ``otherwise`` away from CUDA devices, and ``batched`` takes inputs with one more
    leading axis, of length 1 where an input is the same for the whole batch.
    """
    return traced(plan, otherwise, batched) if is_jax(xp) else Runner(xp, plan, device_index(xp, x))


__all__ = [
    "Argument",
    "CudaError",
    "Launch",
    "Number",
    "Numbers",
    "Parameter",
    "Plan",
    "Pointer",
    "Runner",
    "Struct",
    "capability",
    "contiguous",
    "device_index",
    "device_source",
    "jax_export_checks",
    "layout",
    "plain",
    "power_of_two",
    "ready",
    "refusal",
    "signature",
    "traced",
    "transformed",
    "tuned",
]

"""The method ``kernel`` of a primitive that has kernels for GPUs and for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._arrays import Namespace
from parprims._dispatch import Checked, Method


def by_device(gpu: Method, cpu: Method) -> Method:
    """Return the method that is ``cpu`` where the arrays are in the memory of a CPU, and ``gpu`` elsewhere."""

    def of(xp: Namespace, call: Checked) -> Method:
        return cpu if _cpu.on_cpu(xp, call.arrays) else gpu

    def slower(xp: Namespace, call: Checked) -> str | None:
        found = of(xp, call).slower
        return None if found is None else found(xp, call)

    def refusal(xp: Namespace, call: Checked) -> str | None:
        found = of(xp, call).refusal
        return None if found is None else found(xp, call)

    def prepare(xp: Namespace, call: Checked) -> Callable[..., Any]:
        return of(xp, call).prepare(xp, call)

    assert gpu.derivative is cpu.derivative
    return Method(prepare, refusal, slower, gpu.derivative, cpu.quiet)

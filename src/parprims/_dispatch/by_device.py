"""The method ``kernel`` of a primitive that has kernels for GPUs and for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._core.arrays import Namespace
from parprims._dispatch.cpu_programs import runs_here
from parprims._dispatch.derivative_rules import asked_by_torch
from parprims._dispatch.dispatch import Checked, Method


def either_of(of: Callable[[Namespace, Any], Method], **options: Any) -> Method:
    """Return the method that ``of`` chooses for each call. ``options`` are the other fields of the result."""

    def slower(xp: Namespace, call: Checked) -> str | None:
        chosen = of(xp, call)
        return None if chosen.slower is None else chosen.slower(xp, call)

    def refusal(xp: Namespace, call: Checked) -> str | None:
        chosen = of(xp, call)
        return None if chosen.refusal is None else chosen.refusal(xp, call)

    def prepare(xp: Namespace, call: Checked) -> Callable[..., Any]:
        return of(xp, call).prepare(xp, call)

    return Method(prepare, refusal, slower, **options)


def by_device(gpu: Method, cpu: Method, program: Method | None = None) -> Method:
    """Return the method that is ``cpu`` for arrays in the memory of a CPU, and ``gpu`` for all others.

    With ``program`` (see `cpu_programs.in_programs`), it is this method inside programs of JAX for CPUs.
    """
    assert gpu.derivative is cpu.derivative

    def of(xp: Namespace, call: Checked) -> Method:
        if _cpu.on_cpu(xp, call.arrays):
            return cpu
        return program if program is not None and runs_here(xp, call.arrays) else gpu

    return either_of(
        of,
        derivative=gpu.derivative,
        quiet=cpu.quiet,
        rehearsed=gpu.rehearsed,
    )


def or_by_parts(kernel: Method, parts: Method) -> Method:
    """Return a method: ``parts``, which has a derivative, if PyTorch may request one, else ``kernel``.

    In a program of JAX, a kernel has the derivative of the operations that replace it on other devices.
    """
    return either_of(lambda _, call: parts if asked_by_torch(call.arrays) else kernel)

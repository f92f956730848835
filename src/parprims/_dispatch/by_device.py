"""The method ``kernel`` of a primitive that has kernels for GPUs and for CPUs.

Kernels for CPUs run on arrays in memory, and inside programs of JAX: jit, vmap, grad, loops, and parts of meshes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from parprims import _cpu, _cuda
from parprims._core.arrays import Array, Namespace, is_jax
from parprims._core.jax_arrays import is_sharded, is_traced, varying_alike
from parprims._cpu import compiler
from parprims._cpu.running import xla
from parprims._dispatch.derivative_rules import asked_by_torch
from parprims._dispatch.dispatch import Checked, Method, MethodRefused, exact


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

    With ``program`` (see `in_programs`), it is this method inside programs of JAX for CPUs.
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


# ---- Kernels for CPUs inside programs of JAX -------------------------------------------------------------------

Run = Callable[..., Any]
Prepare = Callable[[Namespace, Any], Run]
Batched = Callable[[Namespace, Any, tuple[Array, ...]], Checked | None]
"""Takes the namespace, a call without arrays, and its arrays with one more leading axis, of length 1 where an array is
the same for the whole batch. It returns the call on these arrays, or None if rows must be computed one by one."""


def runs_here(xp: Namespace, arrays: tuple[Array, ...]) -> bool:
    """Return whether arrays belong to a program of JAX that will run on a CPU, as far as can be known."""
    if not is_jax(xp) or not any(map(is_traced, arrays)) or _cuda.has_devices():
        return False
    import jax

    return bool(jax.default_backend() == "cpu")


def is_of_cpu(xp: Namespace, arrays: tuple[Array, ...]) -> bool:
    """Return whether a CPU computes with arrays: they are in its memory, or belong to a program for it."""
    return _cpu.on_cpu(xp, arrays) or runs_here(xp, arrays)


def in_tiles_on_gpus(name: str, xp: Namespace, call: Checked) -> str | None:
    """Say that every method but native and the kernels for GPUs groups elements canonically."""
    if name == "kernel" and not is_of_cpu(xp, call.arrays):
        return "the kernel for GPUs groups elements in tiles, whose sizes depend on the call"
    return exact(name, xp, call)


def in_programs(kernel: Method, *ways: Method, batched: Batched | None = None) -> Method:
    """Return the method ``kernel`` for calls inside programs.

    ``ways`` compute by operations of JAX. Derivatives are taken through the first that does not refuse, and programs
    hold it on other devices, and if they are exported.
    """

    def otherwise(xp: Namespace, call: Checked) -> Run:
        reason = None
        for one in ways:
            reason = None if one.refusal is None else one.refusal(xp, call)
            if reason is None:
                return one.prepare(xp, call)
        raise MethodRefused(f"no operations of JAX replace the kernel: {reason}")

    def prepare(xp: Namespace, call: Checked) -> Run:
        return _Program(kernel, otherwise, batched, xp=xp, bare=call.on(*(None,) * len(call.arrays))).run

    def refusal(xp: Namespace, call: Checked) -> str | None:
        reason = None if kernel.refusal is None else kernel.refusal(xp, call)
        return reason or (None if compiler.believed() else xla.refusal())

    def slower(xp: Namespace, call: Checked) -> str | None:
        if _may_be_divided():
            return "XLA would gather arrays that the program divides among devices"
        return None if kernel.slower is None else kernel.slower(xp, call)

    return dataclasses.replace(kernel, prepare=prepare, refusal=refusal, slower=slower)


def _may_be_divided() -> bool:
    """Return whether XLA may divide arrays of the current program: there are several devices, and no part of one."""
    import jax

    if jax.device_count() == 1:
        return False
    kinds = jax.sharding.get_abstract_mesh().axis_types
    return not kinds or any(kind.name != "Manual" for kind in kinds)


@dataclasses.dataclass(frozen=True, eq=False)
class _Program:
    """A call in programs, without its arrays. The functions take the arrays."""

    method: Method
    operations: Prepare
    batch: Batched | None
    xp: Namespace
    bare: Any

    def kernel(self, *arrays: Array) -> Any:
        call = self.bare.on(*arrays)
        return self.method.prepare(self.xp, call)(*arrays)

    def otherwise(self, *arrays: Array) -> Any:
        return self.operations(self.xp, self.bare.on(*arrays))(*arrays)

    def batched(self, *arrays: Array) -> Any:
        """Return the results of a whole batch, given arrays with one more leading axis."""
        import jax

        more = None if self.batch is None else self.batch(self.xp, self.bare, arrays)
        if more is not None:
            return dataclasses.replace(self, bare=more.on(*(None,) * len(more.arrays))).run(*more.arrays)
        return _cuda.row_by_row(lambda *rows: tuple(jax.tree.leaves(self.run(*rows))))(*arrays)

    @functools.cached_property
    def run(self) -> Run:
        """The call as a function of its arrays, with derivatives."""
        import jax

        @jax.custom_jvp  # type: ignore[untyped-decorator]
        def differentiable(*arrays: Array) -> Any:
            return _bound(self, arrays)

        @differentiable.defjvp  # type: ignore[untyped-decorator]
        def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Any:
            _, derivative = jax.jvp(self.otherwise, primals, tangents)
            return differentiable(*primals), derivative

        run: Run = jax.jit(lambda *arrays: differentiable(*varying_alike(arrays)))
        return run


@dataclasses.dataclass(frozen=True, eq=False)
class _Traced:
    """The trace of a call by the kernel, and the call."""

    program: _Program
    closed: Any
    tree: Any

    def otherwise(self, *arrays: Array) -> list[Array]:
        import jax

        leaves: list[Array] = jax.tree.leaves(self.program.otherwise(*arrays))
        return leaves


def _bound(program: _Program, arrays: tuple[Array, ...]) -> Any:
    """Return the results of a call as one operation of the program."""
    import jax

    closed, results = jax.make_jaxpr(program.kernel, return_shape=True)(*arrays)
    found = _operation().bind(*arrays, traced=_Traced(program, closed, jax.tree.structure(results)))
    return jax.tree.unflatten(jax.tree.structure(results), found)


@functools.cache
def _operation() -> Any:
    """Return the operation that is the kernel where a program runs on a CPU of this process, else operations of JAX.

    A program that is exported holds the operations: another process may have no kernels.
    """
    import jax
    from jax.extend import core
    from jax.interpreters import ad, batching, mlir

    operation = core.Primitive("parprims_kernel")
    operation.multiple_results = True
    operation.def_abstract_eval(lambda *_, traced: traced.closed.out_avals)
    operation.def_impl(lambda *arrays, traced: jax.jit(core.jaxpr_as_fun(traced.closed))(*arrays))

    def on_others(context: Any, *arrays: Any, traced: _Traced) -> Any:
        return mlir.lower_fun(traced.otherwise, multiple_results=True)(context, *arrays)

    def on_cpus(context: Any, *arrays: Any, traced: _Traced) -> Any:
        if getattr(context.module_context.lowering_parameters, "for_export", False):
            return on_others(context, *arrays, traced=traced)
        return mlir.lower_fun(core.jaxpr_as_fun(traced.closed), multiple_results=True)(context, *arrays)

    mlir.register_lowering(operation, on_others)
    mlir.register_lowering(operation, on_cpus, platform="cpu")

    def batch(arrays: tuple[Array, ...], places: tuple[int | None, ...], traced: _Traced) -> Any:
        pairs = zip(arrays, places, strict=True)
        moved = tuple(x[None] if at is None else jax.numpy.moveaxis(x, at, 0) for x, at in pairs)
        if any(is_sharded(x) for x in moved):  # the batch is sharded too, and other methods do not move it
            axes = tuple(None if at is None else 0 for at in places)
            moved = tuple(x[0] if at is None else x for x, at in zip(moved, places, strict=True))
            results = jax.vmap(traced.otherwise, axes)(*moved)
        else:
            results = jax.tree.leaves(traced.program.batched(*moved))
        return results, [0] * len(results)

    def transpose(given: Any, *arrays: Any, traced: _Traced) -> Any:
        asked = [at for at, x in enumerate(arrays) if ad.is_undefined_primal(x)]

        def linear(*xs: Array) -> list[Array]:
            known = dict(zip(asked, xs, strict=True))
            return traced.otherwise(*(known.get(at, x) for at, x in enumerate(arrays)))

        shapes = [jax.ShapeDtypeStruct(arrays[at].aval.shape, arrays[at].aval.dtype) for at in asked]
        found = jax.linear_transpose(linear, *shapes)([ad.instantiate_zeros(one) for one in given])
        by_place = dict(zip(asked, found, strict=True))
        return [by_place.get(at) for at in range(len(arrays))]

    batching.primitive_batchers[operation] = batch
    ad.primitive_transposes[operation] = transpose
    return operation

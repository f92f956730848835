"""Kernels inside the programs of JAX."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._compiling.plan_capture import observed
from parprims._core import jax_arrays
from parprims._core.arrays import Array
from parprims._core.jax_arrays import is_sharded, varying_alike
from parprims._core.memo import Memo
from parprims._cuda import compiler
from parprims._cuda.plan import Launch, Plan, Pointer
from parprims._operators.languages import Captured
from parprims._operators.program_numbers import note, told_words

TARGET = "__gpu$xla.gpu.ptx"
"""The target of XLA's calls of kernels inside a program. It is undocumented, and XLA may change it."""
OLDEST, NEWEST = (0, 10), (0, 12)
"""The releases of JAX that this target is tested with."""


def jax_export_checks() -> list[Any]:
    """Return the safety checks to disable so that ``jax.export`` takes programs that hold kernels.

    JAX guarantees no compatibility for custom calls that it does not know. The custom call that runs the kernels is
    tested with JAX 0.10 to 0.12: run programs that are exported for a GPU with these releases.

    Returns
    -------
    list of jax.export.DisabledSafetyCheck
        The value of ``disabled_checks`` for ``jax.export.export``. Programs exported for a CPU need none.

    Raises
    ------
    ImportError
        If JAX is not installed.

    See Also
    --------
    launches : List the kernels that a call would launch.

    Examples
    --------
    >>> import parprims
    >>> def exported(function, *arrays):
    ...     import jax
    ...
    ...     checks = parprims.jax_export_checks()
    ...     return jax.export.export(jax.jit(function), disabled_checks=checks)(*arrays).serialize()
    """
    import jax.export

    return [jax.export.DisabledSafetyCheck.custom_call(TARGET)]


def refusal(arrays: tuple[Array, ...]) -> str | None:
    import jax

    for x in arrays:
        if isinstance(x, jax.core.Tracer):
            continue
        places = x.devices() if isinstance(x, jax.Array) else set()  # JAX hands NumPy arrays to rules too
        if {device.platform for device in places} != {"gpu"}:
            traced = any(isinstance(one, jax.core.Tracer) for one in arrays)
            return NO_DEVICE if traced and not devices() else "the arrays are not on a CUDA device"
        if len(places) > 1:
            return "the arrays are spread over several devices"
    return platform_refusal()


NO_DEVICE = "JAX has no CUDA device, and inside jit, vmap and grad kernels run on nothing else"


def release_refusal(release: tuple[int, ...]) -> str | None:
    return jax_arrays.release_refusal("XLA's call of kernels is", OLDEST, NEWEST, release)


@functools.cache
def platform_refusal() -> str | None:
    """Return why JAX programs cannot hold our kernels, found by running a small one; or None."""
    import jax

    if not devices():
        return NO_DEVICE
    reason = release_refusal(jax.__version_info__) or compiler.refusal()
    if reason:
        return reason
    source = "template <int MORE> __device__ void add(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x] + MORE; }"
    parameters = Pointer("in0", "const int"), Pointer("out0", "int")
    plan = Plan((Launch(source, "add", (3,), parameters, 1, 4),), 1, (((4,), "int32"),), ())
    try:
        # The answer is remembered, so it must not depend on the switches of this call.
        with jax.ensure_compile_time_eval(), jax.disable_jit(False), jax.transfer_guard("allow"):
            given = jax.device_put(np.arange(4, dtype=np.int32), devices()[0])
            (result,) = jax.jit(lambda x: embedded(plan, (x,)))(given)
            works = bool((np.asarray(result) == np.arange(3, 7)).all())
    except Exception as error:  # whatever an XLA without this undocumented call target raises
        return f"this JAX cannot hold a CUDA kernel: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None if works else "this JAX holds a CUDA kernel but does not run it right"


@functools.cache
def devices() -> list[Any]:
    import jax

    try:
        return list(jax.devices("cuda"))
    except RuntimeError:  # JAX's answer where the platform is missing
        return []


def embedded(plan: Plan, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the outputs of the plan as a call inside the traced program.

    Behind the inputs of the plan, ``arrays`` has the words of its captured numbers, if there are any. XLA loads the PTX
    itself. Scratch that must start at zero is an input that the kernel updates in place.
    """
    import jax
    import jax.numpy as jnp

    capability = devices()[0].compute_capability.replace(".", "")
    # Inside shard_map, the results vary over the same axes of the mesh as the arrays.
    kind = jax.typeof(arrays[0])
    mesh = kind.sharding.mesh
    place = None if mesh.empty else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    result = functools.partial(jax.ShapeDtypeStruct, sharding=place, manual_axis_type=kind.manual_axis_type)
    results = [result(shape, getattr(jnp, name)) for shape, name in plan.outputs]
    updated = [jnp.zeros((-(-nbytes // 4),), jnp.uint32) for nbytes in plan.zeros().values() if nbytes]
    arrays_and_updated = varying_alike((*arrays, *updated))
    arrays, updated = arrays_and_updated[: len(arrays)], list(arrays_and_updated[len(arrays) :])
    results += [result((-(-nbytes // 4),), jnp.uint32) for nbytes in plan.unset().values() if nbytes]
    kept = len(results)
    places = [*range(kept, kept + len(updated))]  # the results that a launch updates
    results += [result(zero.shape, zero.dtype) for zero in updated]
    arch = f"compute_{capability}"
    sources = [(plan.text(at, static=True), one.architecture(arch)) for at, one in enumerate(plan.launches)]
    for launch, code in zip(plan.launches, compiler.compiled_together(sources), strict=True):
        aliases = {len(arrays) + given: place for given, place in enumerate(places)}
        call = jax.ffi.ffi_call(TARGET, results, input_output_aliases=aliases)
        outputs = call(
            *arrays,
            *updated,
            name="kernel",
            kernel_type="ptx",
            kernel_data=code.rstrip(b"\0").decode(),
            grid_x=np.int32(launch.grid),
            grid_y=np.int32(1),
            grid_z=np.int32(1),
            block_x=np.int32(launch.block),
            block_y=np.int32(1),
            block_z=np.int32(1),
            shared_mem_bytes=np.int32(launch.shared_bytes),
        )
        # A later launch gets scratch that starts at zero, outputs and other scratch as the launches before left them.
        places = [*range(kept, len(results)), *range(kept)]
        updated = [outputs[place] for place in places]
    return tuple(outputs[: len(plan.outputs)])


def row_by_row(run: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    """Return the ``batched`` of `traced` that runs row after row along the leading axis."""

    def batched(*arrays: Array) -> tuple[Array, ...]:
        import jax

        size = max(one.shape[0] for one in arrays)
        whole = tuple(jax.numpy.broadcast_to(one, (size, *one.shape[1:])) for one in arrays)
        return tuple(jax.lax.map(lambda rows: run(*rows), whole))

    return batched


def traced(
    plan: Plan,
    otherwise: Callable[..., tuple[Array, ...]],
    batched: Callable[..., tuple[Array, ...]],
) -> Callable[..., tuple[Array, ...]]:
    """Return the plan as a jitted JAX function of its inputs and, behind them, the words of its captured numbers.

    On a CUDA device it runs the kernel, elsewhere ``otherwise``, which computes the outputs from the inputs and has
    derivatives. ``batched`` takes the inputs with one more leading axis, of length 1 if an input is the same for
    the whole batch, and vmap calls it. Both hold the captured numbers themselves.
    """
    import jax

    inputs = plan.inputs

    @jax.custom_batching.custom_vmap  # type: ignore[untyped-decorator]
    def compute(*arrays: Array) -> tuple[Array, ...]:
        found: tuple[Array, ...] = jax.lax.platform_dependent(
            *arrays, cuda=lambda *xs: embedded(plan, xs), default=lambda *xs: otherwise(*xs[:inputs])
        )
        return found

    @compute.def_vmap  # type: ignore[untyped-decorator]
    def _(_size: int, in_batched: list[bool], *arrays: Array) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
        arrays, in_batched = tuple(jax.numpy.asarray(x) for x in arrays[:inputs]), in_batched[:inputs]
        if any(is_sharded(x) for x in arrays):  # the batch is sharded too, and other methods do not move it
            outputs = jax.vmap(otherwise, tuple(0 if own else None for own in in_batched))(*arrays)
        else:
            outputs = batched(*(x if own else x[None] for x, own in zip(arrays, in_batched, strict=True)))
        return outputs, (True,) * len(outputs)

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def differentiable(*arrays: Array) -> tuple[Array, ...]:
        found: tuple[Array, ...] = compute(*arrays)
        return found

    @differentiable.defjvp  # type: ignore[untyped-decorator]
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Any:
        _, derivative = jax.jvp(otherwise, primals[:inputs], tangents[:inputs])
        return differentiable(*primals), derivative

    compiled: Callable[..., tuple[Array, ...]] = jax.jit(lambda *arrays: differentiable(*varying_alike(arrays)))
    return compiled


_plans: Memo[Plan] = Memo()
"""Plans without the values of captured numbers: plans that differ in these alone share one text."""


class Program:
    """A plan as a function of its inputs for programs of JAX, see `traced`."""

    def __init__(
        self,
        plan: Plan,
        otherwise: Callable[..., tuple[Array, ...]],
        batched: Callable[..., tuple[Array, ...]],
    ) -> None:
        text_plan = plan.without_values
        self._text_plan = _plans.get(text_plan) or _plans.keep(text_plan, text_plan)
        self._words = tuple([word.value for word in plan.words])
        self.plan = dataclasses.replace(self._text_plan, captured=plan.captured)
        self._compiled = traced(self.plan, otherwise, batched)

    def with_captured(self, captured: tuple[Captured, ...]) -> Program:
        """Return this program, and note its captured numbers for the enclosing program."""
        assert captured == self.plan.captured
        note(self._text_plan, self._words)
        return self

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Return the outputs of the plan."""
        observed(self.plan, arrays)
        words = (told_words(self._text_plan, self._words),) if self._words else ()
        found: tuple[Array, ...] = self._compiled(*arrays, *words)
        return found

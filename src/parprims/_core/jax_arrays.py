"""Facts about arrays of JAX: whether they are traced, how devices share them, and JAX's strict modes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Any

import array_api_compat
import numpy as np

Array = Any


def is_traced(x: Array) -> bool:
    """Return whether x is a JAX array without a value: one inside jit, vmap or grad."""
    if not array_api_compat.is_jax_array(x):
        return False
    import jax

    return isinstance(x, jax.core.Tracer)


def is_jax_literal(kind: type) -> bool:
    """Return whether the type is JAX's subclass of NumPy's array for constants of programs."""
    return kind.__name__ == "TypedNdArray" and kind.__module__.startswith("jax.")


def release_refusal(tested: str, oldest: tuple[int, ...], newest: tuple[int, ...], this: tuple[int, ...]) -> str | None:
    """Return the sentence why a release of JAX is refused, or None; ``tested`` is its subject and verb."""
    if oldest <= this[:2] <= newest:
        return None
    first, last, found = (".".join(map(str, one)) for one in (oldest, newest, this))
    return f"{tested} tested with JAX {first} to {last}, and this is JAX {found}"


def explicit_sharding(x: Array) -> Any:
    """Return the sharding that is part of the type of a JAX array, or None if there is none."""
    import jax

    return getattr(jax.typeof(x), "sharding", None)


def is_sharded(x: Array) -> bool:
    """Return whether the elements of a JAX array are divided among several devices, as far as can be seen.

    The type of a traced array decides; it names only the explicit axes of a mesh. Inside shard_map, an array is the
    part of one device.
    """
    if is_traced(x):
        sharding = explicit_sharding(x)
        return sharding is not None and not sharding.is_fully_replicated
    return len(x.devices()) > 1 and not x.is_fully_replicated


def is_split(x: Any) -> bool:
    """Return whether an array, or any array of a tuple, is divided among several devices or chunks."""
    if type(x) is tuple:
        return any(map(is_split, x))
    kind = type(x)
    if kind is np.ndarray:
        return False
    home = kind.__module__.partition(".")[0]
    if kind.__name__ == "DTensor" and home == "torch":
        return True
    if home == "dask":
        return isinstance(x, getattr(sys.modules.get("dask.array"), "Array", ()))
    return home in ("jax", "jaxlib") and not is_jax_literal(kind) and hasattr(x, "shape") and is_sharded(x)


def unsplit(x: Array) -> Array:
    """Return the JAX array with a type that names no mesh axes. The given type may name axes of length 1.

    JAX's operations check the type, not the placement.
    """
    sharding = explicit_sharding(x)
    if sharding is None or all(axes is None for axes in sharding.spec):
        return x
    import jax

    mesh = sharding.mesh if is_traced(x) else x.sharding.mesh
    return jax.sharding.reshard(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()))


def is_placed_later(x: Array) -> bool:
    """Return whether XLA decides at compile time how a traced JAX array is split, over axes of type Auto."""
    if not is_traced(x):
        return False
    sharding = explicit_sharding(x)
    if sharding is None or sharding.mesh.empty:
        return False
    mesh = sharding.mesh
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return any(kind.name == "Auto" and mesh.shape[name] > 1 for name, kind in kinds)


def jax_platform(arrays: Sequence[Array]) -> str:
    """Return the platform that JAX arrays are on; for traced arrays the default platform."""
    import jax

    if any(map(is_traced, arrays)):
        return str(jax.default_backend())
    return str(next(iter(arrays[0].devices())).platform)


def varying_alike(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return JAX arrays that vary over equal mesh axes. Inside shard_map, the type of an array names these axes."""
    import jax

    axes_of_arrays = [_varying(x) for x in arrays]
    together = frozenset().union(*axes_of_arrays)
    return tuple(
        jax.lax.pcast(x, tuple(sorted(together - axes)), to="varying") if together - axes else x
        for x, axes in zip(arrays, axes_of_arrays, strict=True)
    )


def _varying(x: Array) -> frozenset[str]:
    import jax

    axes: frozenset[str] = getattr(jax.typeof(x).manual_axis_type, "varying", frozenset())
    return axes


def quiet_jax() -> contextlib.AbstractContextManager[Any]:
    import jax

    # Only a mode that is on is switched off, because modes are part of the keys of compiled JAX programs.
    config, contexts = jax.config, []
    if config.jax_numpy_rank_promotion != "allow":
        contexts.append(jax.numpy_rank_promotion("allow"))
    if config.jax_transfer_guard_host_to_device in ("disallow", "disallow_explicit"):
        contexts.append(jax.transfer_guard_host_to_device("allow"))
    if config.jax_debug_nans:
        contexts.append(jax.debug_nans(False))
    if config.jax_debug_infs:
        contexts.append(jax.debug_infs(False))
    if not contexts:
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    for context in contexts:
        stack.enter_context(context)
    return stack

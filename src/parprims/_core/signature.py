"""Signatures: the properties of arrays that the choice of a method and of a kernel can depend on."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any

Signature = Any
"""A key that is equal for arrays that every call treats alike; None if finding it would take long."""


def signature(x: Array | tuple[Array, ...], gradient: bool = False) -> Signature:
    """Return the signature of an array, of a number, of a tuple of these, or None.

    A PyTorch tensor that requires a derivative has a signature only if results carry the derivative (``gradient``).
    """
    kind = type(x)
    if kind is tuple:
        return _of_all(x, gradient)
    make = alone.get(kind) or (_learn(kind) and alone[kind])
    return None if make is None else make(x, gradient)


def _of_all(xs: tuple[Any, ...], gradient: bool) -> Signature:
    parts: list[Signature] = []
    last: Any = None
    make: _Maker = _of_all
    for x in xs:
        kind = type(x)
        if kind is not last:  # the state of the library is read once, not for each array
            first = _of_all if kind is tuple else alone.get(kind) or (_learn(kind) and alone[kind])
            if first is None:
                return None
            part, make = first(x, gradient), makers.get(kind, _of_all)
            last = kind
        else:
            part = make(x, gradient)
        if part is None:
            return None
        parts.append(part)
    return tuple(parts)


def _numpy(x: Array, _: bool) -> Signature:
    return x.dtype, x.shape, x.strides, x.flags.num


def _number(x: Any, _: bool) -> Signature:
    return type(x)


_Maker = Callable[[Array, bool], Signature]

makers: dict[type, _Maker] = {
    np.ndarray: _numpy,
    **dict.fromkeys((bool, int, float, complex), _number),
    **{kind: _number for kind in np.sctypeDict.values() if issubclass(kind, np.number | np.bool_)},
}
"""Functions, by type, that return the signature of each array after the first. A number's signature is its type."""

alone: dict[type, _Maker] = {**makers}
"""Functions, by type, that return the signature of the first array; None if the library's state forbids it."""


def _learn(kind: type) -> _Maker | None:
    """Register a new array type; return the function for its signature, or None if it has none."""
    library, _, _ = kind.__module__.partition(".")
    module: Any = sys.modules.get(library)  # None if the type only has the library's name
    if module is None:
        return None
    if library == "cupy" and kind is module.ndarray:
        makers[kind] = alone[kind] = _cupy
    elif library == "torch" and kind in (module.Tensor, module.nn.Parameter):
        makers[kind], alone[kind] = _torch_makers()
    elif library in ("jax", "jaxlib") and kind.__name__ == "ArrayImpl":  # an array with values
        makers[kind], alone[kind] = _jax_makers()
    return makers.get(kind)


def _cupy(x: Array, _: bool) -> Signature:
    memory = x.data
    return x.dtype.num, x.shape, x.strides, memory.ptr & 15, memory.device_id


def _torch_makers() -> tuple[_Maker, _Maker]:
    torch = sys.modules["torch"]
    grad_enabled = torch.is_grad_enabled

    def make(x: Array, gradient: bool) -> Signature:
        required, dtype = x.requires_grad, x.dtype
        recorded = required and grad_enabled()
        if (recorded and not gradient) or x.is_neg() or (dtype.is_complex and x.is_conj()):
            return None
        try:
            return dtype, x.shape, x.stride(), x.data_ptr() & 15, x.is_cpu or x.device, required, recorded
        except RuntimeError:  # a nested or sparse tensor has no memory of its own
            return None

    return make, _unless_observed(torch._C._is_any_autocast_enabled, make)


@functools.cache
def torch_observed() -> Callable[[], bool]:
    """Return a test of whether a transformation, a compiler or another observer records PyTorch's operations.

    Observers do not see changes of memory that no PyTorch operation makes.
    """
    ask = _unless_observed(lambda: False, lambda _, __: True)
    return lambda: ask(None, False) is None


def _unless_observed(also: Callable[[], bool], make: _Maker) -> _Maker:
    """Return ``make``, but its result is None while PyTorch's operations are observed or ``also`` returns True."""
    torch: Any = sys.modules["torch"]
    compiler, forward_ad = torch.compiler, torch.autograd.forward_ad
    if not hasattr(compiler, "_is_compiling_flag"):  # the flag that `is_compiling` returns
        compiler = _Compiler()
    transformed, tracing = torch._C._are_functorch_transforms_active, torch._C._is_tracing
    modes = torch._C._len_torch_dispatch_stack

    def first(x: Array, gradient: bool) -> Signature:  # runs before every call: further functions would take time
        if (
            also()
            or transformed()
            or forward_ad._current_level >= 0
            or compiler._is_compiling_flag
            or tracing()
            or modes() > 0
        ):
            return None
        return make(x, gradient)

    return first


class _Compiler:
    """The flag `_is_compiling_flag` for releases of PyTorch whose torch.compiler lacks it."""

    @property
    def _is_compiling_flag(self) -> bool:
        flag: bool = sys.modules["torch"].compiler.is_compiling()
        return flag


def _jax_makers() -> tuple[_Maker, _Maker]:
    import jax

    config, one_device = jax.config, jax.sharding.SingleDeviceSharding
    allowing = (None, "allow", "log", "log_explicit")

    def make(x: Array, _: bool) -> Signature:
        aval, sharding = x.aval, x.sharding  # reading them from the aval is faster than from the array
        if type(sharding) is not one_device:  # arrays with a mesh in their type are not remembered
            return None
        return aval.dtype, aval.shape, sharding

    def first(x: Array, gradient: bool) -> Signature:
        # These modes look for NaN and infinities, or are switched off by the dispatch during a call (see `quiet`).
        if (
            config.jax_debug_nans
            or config.jax_debug_infs
            or config.jax_numpy_rank_promotion != "allow"
            or config.jax_transfer_guard_host_to_device not in allowing
        ):
            return None
        part = make(x, gradient)
        return None if part is None else (part, config.jax_enable_x64)

    return make, first


def traced_signature(xs: tuple[Array, ...]) -> Signature:
    """Return the signature of JAX arrays, some of them traced; None if all have values.

    It is also None if arrays are on several devices or a length is a symbol.
    """
    import jax

    if not all(isinstance(x, jax.Array) for x in xs):  # JAX may pass NumPy arrays to a rule
        return None
    kinds = [(x.aval, isinstance(x, jax.core.Tracer)) for x in xs]
    for one, _ in kinds:
        if getattr(one, "vma", None) or not one.sharding.mesh.empty or not all(type(n) is int for n in one.shape):
            return None
    parts = [(one.dtype, one.shape, one.weak_type, traced) for one, traced in kinds]
    return (*parts, jax.config.jax_enable_x64) if any(traced for _, traced in kinds) else None

"""The arrays that kernels can read: refusals, devices, and the memory layout of elements."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, Namespace, is_jax, library
from parprims._cuda import compiler, driver, libraries, xla
from parprims._cuda.compiler import CudaError
from parprims._libraries.settings import transformed


def refusal(xp: Namespace, arrays: tuple[Array, ...]) -> str | None:
    """Return the sentence why no kernel can take these arrays, or None."""
    kind = library(xp)
    if kind == "torch":
        torch = libraries.torch()
        if arrays[0].device.type != "cuda":
            return "the arrays are not on a CUDA device"
        for x in arrays:
            if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
                return f"the arrays are of type {type(x).__name__}, whose memory the kernel cannot read"
        if transformed():
            return (
                "a transformation of torch.func or a forward derivative is under way, which the kernel does not carry"
            )
        if torch.is_grad_enabled() and any(x.requires_grad for x in arrays):
            return "a gradient is asked for, which the kernel does not carry"
        if torch.compiler.is_compiling():
            return "the call is being compiled"
    elif kind == "jax":
        reason = xla.refusal(arrays)
        if reason:
            return reason
    elif kind != "cupy":
        return "the arrays are not on a CUDA device"
    return compiler.refusal() or (None if kind == "jax" else _device_refusal(device_index(xp, arrays[0])))


@functools.cache
def _device_refusal(device: int) -> str | None:
    """Return the sentence why compiled code cannot run on a device, or None."""
    made_by = compiler.working()
    try:
        own = driver.current()
        number = int(own.architecture(device).removeprefix("sm_"))
        version = own.version()
    except (OSError, CudaError) as error:
        return f"the CUDA driver does not work: {error}"
    if number < made_by.architectures[0]:
        return compiler.too_old(number, made_by)
    # A driver runs all machine code of its major release, but only PTX that is not newer than itself.
    if version[0] < made_by.version[0] or (number not in made_by.architectures and version < made_by.version):
        return f"the driver, of {own}, is older than the compiler, {made_by}: update the one or install the other's"
    return None


def layout(xp: Namespace, x: Array) -> tuple[Any, ...]:
    """Return (strides in elements, address modulo 16) of an array. The choice of kernels depends on them."""
    kind = library(xp)
    if kind == "torch":
        return x.stride(), x.data_ptr() & 15
    if kind == "cupy":
        itemsize = x.dtype.itemsize
        return tuple(stride // itemsize for stride in x.strides), x.data.ptr & 15
    strides = []
    step = 1
    for length in reversed(x.shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides)), 0


def device_index(xp: Namespace, x: Array) -> int:
    """Return the number of the CUDA device a CuPy or PyTorch array is on."""
    index: int = x.device.index if library(xp) == "torch" else x.data.device_id
    return index


def capability(xp: Namespace, x: Array) -> int:
    """Return the compute capability of an array's device, 90 for 9.0; for JAX the capability of its first device."""
    if is_jax(xp):
        return int(xla.devices()[0].compute_capability.replace(".", ""))
    return int(driver.current().architecture(device_index(xp, x)).removeprefix("sm_"))


def multiprocessors(xp: Namespace, x: Array) -> int | None:
    """Return the number of multiprocessors of an array's device, or None if JAX does not know it."""
    if is_jax(xp):
        return getattr(xla.devices()[0], "core_count", None)
    return driver.current().multiprocessors(device_index(xp, x))


def plain(xp: Namespace, x: Array) -> Array:
    """Return the array, or a copy if kernels cannot read its memory: without lazy bits, with whole-element strides."""
    kind = library(xp)
    if kind == "torch":
        return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x
    if kind == "cupy":
        itemsize = x.dtype.itemsize
        if x.data.ptr % itemsize or any(stride % itemsize for stride in x.strides):
            return x.copy()
    return x


def arranged(
    arrange: Callable[..., tuple[Array, ...]], arrays: tuple[Array, ...]
) -> tuple[tuple[Array, ...], Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return arrays that kernels can read, and a wrapper that lets a function of them take arrays like the originals.

    If the kernels can read the originals, they can read the arrays of later calls with this key too, and the wrapper
    returns the function itself.
    """
    readable = arrange(*arrays)
    if len(readable) == len(arrays) and all(map(operator.is_, readable, arrays)):
        return readable, lambda run: run
    return readable, lambda run: lambda *originals: run(*arrange(*originals))


def contiguous(xp: Namespace, x: Array) -> Array:
    """Return the array in row-major order, copied if it is not."""
    kind = library(xp)
    if kind == "torch":
        return x.contiguous()
    return xp.ascontiguousarray(x) if kind == "cupy" else x

"""Kernels for CPUs inside the programs of JAX: the calls of XLA that run them."""

from __future__ import annotations

import ctypes
import functools
import pathlib
import re
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from parprims._core import jax_arrays
from parprims._core.arrays import Array
from parprims._core.jax_arrays import varying_alike
from parprims._cpu import limits, text
from parprims._cpu.compiler import address, symbol
from parprims._cpu.plan import Launch, Plan

TARGET = "parprims_kernels_of_cpus"
"""The name of the handler in XLA. Programs name it and the digests of their kernels, and hold no address."""
OLDEST, NEWEST = (0, 10), (0, 12)
"""The releases of JAX whose interface the handler is written for."""

MOST_KERNELS = 1 << 14
"""The most kernels of a process that programs may run. Further calls are refused: code is never unloaded."""
_LENGTH = 2 * MOST_KERNELS

_LOCK = threading.RLock()


class _Table:
    """The kernels of this process that programs may run, as templates/handler.py reads them."""

    def __init__(self) -> None:
        self.words = np.zeros(2 + 3 * _LENGTH, np.int64)  # memory that Linux provides when it is written
        self.words[:2] = _LENGTH, limits.most()
        self.known: set[str] = set()

    def add(self, name: str, digest: tuple[int, int], place: int) -> None:
        """Add a kernel, once."""
        with _LOCK:
            if name in self.known:
                return
            at = digest[0] & (_LENGTH - 1)
            while self.words[2 + 3 * at + 2]:
                at = (at + 1) & (_LENGTH - 1)
            entry = self.words[2 + 3 * at :]
            entry[:2] = digest
            entry[2] = place  # last: from now on the handler compares the digest
            self.known.add(name)


@functools.cache
def _table() -> _Table:
    """Return the table, known to the handler, and the handler known to XLA."""
    import jax

    table, handler = _Table(), _handler_text()
    place = address(handler, "_table", data=True)
    ctypes.c_int64.from_address(place).value = table.words.ctypes.data
    pointer = ctypes.c_void_p(address(handler, ""))
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(pointer), platform="cpu")
    return table


def _handler_text() -> str:
    return text.module(("entry.py", "handler.py"), f"MINOR = {_minor_version()}", "run = compiled_handler()")


@functools.cache
def _minor_version() -> int:
    """Return the minor version of the interface of this JAX, from its header."""
    import jax

    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    found = re.search(r"^#define XLA_FFI_API_MINOR (\d+)$", header.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{header} has no version")
    return int(found[1])


def release_refusal(release: tuple[int, ...]) -> str | None:
    """Return the sentence why programs of a release of JAX cannot hold kernels for CPUs, or None."""
    return jax_arrays.release_refusal("kernels for CPUs in programs are", OLDEST, NEWEST, release)


@functools.cache
def _probe_refusal() -> str | None:
    """Return why programs of this JAX cannot hold kernels for CPUs, found by running a small one; or None."""
    import jax

    reason = release_refusal(jax.__version_info__)
    if reason is not None:
        return reason
    copy = text.function(
        "copy(inputs, outputs, numbers, begin, end)",
        ["for at in range(begin, end):", "    store(outputs[0], at, load(inputs[0], at) + numbers[0])"],
    )
    plan = Plan((Launch("copy", 4),), (copy,), ("int32",), (((4,), "int32"),), (), (3,))
    try:
        # The answer is remembered, so it must not depend on the switches of this call.
        with jax.ensure_compile_time_eval(), jax.disable_jit(False), jax.transfer_guard("allow"):
            given = jax.device_put(np.arange(4, dtype=np.int32), jax.devices("cpu")[0])
            (result,) = jax.jit(lambda x: embedded(plan, (x,)))(given)
            works = bool((np.asarray(result) == np.arange(3, 7)).all())
    except Exception as error:  # whatever an XLA with another interface raises
        return f"this JAX cannot hold a kernel for CPUs: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None if works else "this JAX holds a kernel for CPUs but does not run it right"


def refusal() -> str | None:
    """Return the sentence why programs of JAX cannot hold kernels for CPUs here, or None."""
    reason = _probe_refusal()
    if reason is None and len(_table().known) >= MOST_KERNELS:
        return f"programs of this process hold {MOST_KERNELS} different kernels already"
    return reason


def _digest(name: str) -> tuple[int, int]:
    """Return the digest in the name of a kernel as two words."""
    whole = bytes.fromhex(name.rpartition("_")[2])[:16]
    first, second = np.frombuffer(whole, "<i8").tolist()
    return first, second


def words_of(plan: Plan) -> np.ndarray[Any, Any]:
    """Return a plan as the words that the handler reads, and let it find the kernels.

    They are the number of launches and of scratch arrays; for each launch its digest, its tasks, the fewest tasks of a
    thread, how many of the inputs it gets, and the first of the other arrays that it gets; the bytes of each scratch
    array; and the numbers.
    """
    words = [len(plan.launches), len(plan.scratch)]
    inputs = len(plan.inputs) + len(plan.starts or ())
    for at, launch in enumerate(plan.launches):
        kernel = plan.kernel(at)
        name = symbol(kernel)
        digest = _digest(name)
        _table().add(name, digest, address(kernel, "_in_programs"))
        read = inputs if launch.reads is None else min(launch.reads, inputs)
        words += [*digest, launch.tasks, launch.least, read, inputs + (0 if launch.writes else len(plan.outputs))]
    # Arrays begin at multiples of 64 bytes.
    words += [-(-count * np.dtype(text.numpy_type(dtype)).itemsize // 64) * 64 for count, dtype in plan.scratch]
    return np.array([*words, *plan.all_numbers], np.int64)


def embedded(plan: Plan, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Return the outputs of a plan as a call inside the traced program."""
    import jax
    import jax.numpy as jnp

    arrays = varying_alike(tuple(arrays))
    # Inside shard_map, the results vary over the same axes of the mesh as the arrays.
    kind = jax.typeof(arrays[0])
    mesh = kind.sharding.mesh
    place = None if mesh.empty else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    results = [
        jax.ShapeDtypeStruct(shape, getattr(jnp, name), sharding=place, manual_axis_type=kind.manual_axis_type)
        for shape, name in plan.outputs
    ]
    return tuple(jax.ffi.ffi_call(TARGET, results)(*arrays, plan=words_of(plan)))

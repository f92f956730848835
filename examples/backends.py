"""The array libraries, each on a CPU or on a GPU, as the examples, the comparison and the tests see them.

One table for all of them: how to make a library's arrays, wait for its results and time them.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Backend:
    """One array library on one device.

    ``library`` is the module that people import, ``xp`` its array API namespace. A CUDA backend without ``event`` is
    timed by the host's clock.
    """

    name: str
    library: Any
    xp: Any
    asarray: Callable[[np.ndarray], Any]
    to_numpy: Callable[[Any], np.ndarray]
    wait: Callable[[Any], Any] = lambda result: result
    compile: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    free: Callable[[], Any] = lambda: None
    cuda: bool = False
    event: Callable[[], Any] | None = None
    elapsed: Callable[[Any, Any], float] | None = None

    def __repr__(self) -> str:
        return self.name

    @property
    def family(self) -> str:
        """The name of the library, whatever the device."""
        return self.name.partition("-")[0]

    @property
    def module(self) -> Any:
        """The module that has the library's own routines on arrays."""
        return self.xp if self.family == "jax" else self.library

    def supports(self, dtype: str) -> bool:
        """Return whether the library has the dtype and can add numbers of it."""
        if self.family == "torch" and dtype in ("uint16", "uint32", "uint64"):
            return False
        return dtype == "bool" or hasattr(self.xp, dtype)

    def dtype(self, name: str) -> Any:
        """Return the library's dtype of a name."""
        return getattr(self.xp, name)


def _numpy() -> Backend:
    from array_api_compat import numpy as xp

    return Backend("numpy", np, xp, np.asarray, np.asarray)


def _bfloat16() -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16


def _torch(device: str, name: str) -> Backend:
    import torch
    from array_api_compat import torch as xp

    def asarray(x: np.ndarray) -> Any:
        x = np.asarray(x)
        if not (x.flags.c_contiguous and x.flags.writeable) or any(stride < 0 for stride in x.strides):
            x = np.array(x, order="C")
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(x).to(device)

    def to_numpy(x: Any) -> np.ndarray:
        x = x.detach().cpu().resolve_conj()
        return x.view(torch.int16).numpy().view(_bfloat16()) if x.dtype == torch.bfloat16 else x.numpy()

    if device == "cpu":
        return Backend(name, torch, xp, asarray, to_numpy)
    return Backend(
        name,
        torch,
        xp,
        asarray,
        to_numpy,
        wait=lambda _: torch.cuda.synchronize(),
        free=torch.cuda.empty_cache,
        cuda=True,
        event=lambda: torch.cuda.Event(enable_timing=True),
        elapsed=lambda start, end: start.elapsed_time(end),
    )


def _jax(device: str, name: str) -> Backend:
    import jax

    jax.config.update("jax_enable_x64", True)
    place = jax.devices(device)[0]

    def asarray(x: np.ndarray) -> Any:
        return jax.device_put(x, place)

    wait, cuda = jax.block_until_ready, device == "cuda"
    return Backend(name, jax, jax.numpy, asarray, np.asarray, wait=wait, compile=jax.jit, cuda=cuda)


def _cupy() -> Backend:
    import cupy
    from array_api_compat import cupy as xp

    return Backend(
        "cupy",
        cupy,
        xp,
        cupy.asarray,
        cupy.asnumpy,
        wait=lambda _: cupy.cuda.runtime.deviceSynchronize(),
        free=cupy.get_default_memory_pool().free_all_blocks,
        cuda=True,
        event=cupy.cuda.Event,
        elapsed=cupy.cuda.get_elapsed_time,
    )


MAKERS: dict[str, tuple[str, Callable[[], Backend]]] = {  # backend: (module it needs, function that makes it)
    "numpy": ("numpy", _numpy),
    "jax": ("jax", lambda: _jax("cpu", "jax")),
    "torch": ("torch", lambda: _torch("cpu", "torch")),
    "cupy": ("cupy", _cupy),
    "torch-cuda": ("torch", lambda: _torch("cuda", "torch-cuda")),
    "jax-cuda": ("jax", lambda: _jax("cuda", "jax-cuda")),
}
ON_CUDA = ("cupy", "torch-cuda", "jax-cuda")


def installed(module: str) -> bool:
    """Return whether a module can be found, without importing it or, where it has one, its package's siblings."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def _gpu(module: str) -> str | None:
    """Return the name of the CUDA device that an installed library sees, or None."""
    if module == "cupy":
        import cupy

        try:
            return str(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
        except cupy.cuda.runtime.CUDARuntimeError:
            return None
    if module == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else None
    import jax

    return next((device.device_kind for device in jax.devices() if device.platform == "gpu"), None)


def gpu_name() -> str | None:
    """Return the name of the CUDA device by the first installed library that finds one, or None."""
    first = next((module for module in ("cupy", "torch", "jax") if installed(module)), None)
    return _gpu(first) if first else None


def cpu_name() -> str:
    """Return the model of the processor; also its family and model number where a virtual machine hides its name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    told = dict(re.findall(r"^(model name|cpu family|model)\s*:\s*(.+?)\s*$", text, re.MULTILINE))
    name = told.get("model name") or platform.processor() or platform.machine() or "cpu"
    if {"cpu family", "model"} <= set(told) and not re.search(r"\d", name):
        name += f" family {told['cpu family']} model {told['model']}"
    return name


def available(name: str) -> bool:
    """Return whether a backend's library is installed and sees the device."""
    module = MAKERS[name][0]
    return installed(module) and (name not in ON_CUDA or _gpu(module) is not None)


def make(name: str) -> Backend:
    """Return a backend."""
    return MAKERS[name][1]()

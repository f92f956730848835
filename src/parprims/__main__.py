"""The report of this installation: ``python -m parprims`` prints versions, devices, compilers and missing packages.

``python -m parprims --warm`` compiles the kernels of the usual calls ahead.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import pathlib
import platform
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import parprims
from parprims._compiling import disk_cache
from parprims._cpu import compiler as cpu
from parprims._cpu import threads
from parprims._cuda import compiler as cuda
from parprims._tools import warm_up

_LIBRARIES = {
    "numpy": "",
    "cupy": 'arrays on a GPU: in the clone pip install ".[cuda13]" or ".[cuda12]"',
    "torch": 'in the clone pip install ".[torch]"',
    "jax": 'in the clone pip install ".[jax]", or ".[jax-cuda13]" for a GPU',
    "scipy": "pip install scipy: native tridiagonal systems, recurrences and filters of NumPy's arrays",
    "array_api_compat": "",
    "array_api_extra": "",
}
"""The packages to look for, and the message if one is missing: how to install it, or its purpose."""


def lines() -> Iterator[str]:
    """Yield the lines of the report."""
    machine = f"{platform.system()} {platform.machine()}"
    yield f"parprims {parprims.__version__}, Python {platform.python_version()}, {machine}"
    yield f"CPUs: {threads.limit()} to use of {os.cpu_count()}"
    yield ""
    yield "libraries"
    for name in _LIBRARIES:
        yield f"  {name:17}{_told(name)}"
    yield ""
    yield "kernels"
    yield f"  {'on CPUs':17}{_on_cpus()}"
    found = cuda.found()
    yield f"  {'on CUDA devices':17}{found if isinstance(found, str) else f'compiled by {found}'}"
    yield f"  {'kept in':17}{_kept()}"


def _on_cpus() -> str:
    """Return the compiler of kernels for CPUs, or the reason why there is none."""
    if importlib.util.find_spec("numba") is None:
        return cpu.MISSING
    return cpu.refusal() or _version("numba", "compiled by Numba")


def _told(name: str) -> str:
    """Return the version of a library and the devices that it has."""
    if importlib.util.find_spec(name) is None:
        return f"not installed ({_LIBRARIES[name]})"
    try:
        module = importlib.import_module(name)
        devices = _DEVICES.get(name)
        return f"{module.__version__}{f': {devices(module)}' if devices else ''}"
    except Exception as error:  # whatever a broken installation raises
        return f"does not work: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _cupys(cupy: Any) -> str:
    count = range(cupy.cuda.runtime.getDeviceCount())
    return ", ".join(cupy.cuda.runtime.getDeviceProperties(at)["name"].decode() for at in count)


def _torchs(torch: Any) -> str:
    count = range(torch.cuda.device_count())
    return ", ".join(("CPU", *(torch.cuda.get_device_name(at) for at in count)))


def _jaxs(jax: Any) -> str:
    return ", ".join(dict.fromkeys(str(one.device_kind) for one in jax.devices()))


_DEVICES: dict[str, Callable[[Any], str]] = {"numpy": lambda _: "CPU", "cupy": _cupys, "torch": _torchs, "jax": _jaxs}


def _version(name: str, words: str) -> str:
    return f"{words} {importlib.import_module(name).__version__}"


def _kept() -> str:
    """Return where compiled kernels are kept, and how many bytes they take."""
    place = disk_cache.folder()
    if place is None:
        return "memory only, for there is no home directory (PARPRIMS_CACHE_DIR names a folder)"
    sizes = []
    for path in pathlib.Path(place).rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # the lock of another process, which has removed it
            if path.is_file():
                sizes.append(path.stat().st_size)
    return f"{place} ({len(sizes)} files, {sum(sizes) / 1e6:.1f} MB)"


def main(arguments: list[str] | None = None) -> int:
    """Print the report, or compile ahead; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m parprims", description=__doc__)
    parser.add_argument(
        "--warm",
        nargs="*",
        metavar="NAME",
        help="compile the kernels of usual calls of these primitives, or of all",
    )
    options = parser.parse_args(arguments)
    if options.warm is None:
        print(*lines(), sep="\n")
        return 0
    unknown = [name for name in options.warm if name not in warm_up.NAMES]
    if unknown:
        parser.error(f"there is no primitive {', '.join(unknown)}")
    begin = time.monotonic()
    for like in _devices():
        parprims.warm(*options.warm, like=like, progress=lambda told: print(_elapsed(begin), told, flush=True))
    print(f"{_elapsed(begin)} all is kept in {_kept()}")
    return 0


def _devices() -> Iterator[Any]:
    """Yield an array of NumPy, and one on a GPU where CuPy or PyTorch finds one."""
    yield np.empty(0)
    for name, make in _ON_GPU.items():
        if importlib.util.find_spec(name) is None:
            continue
        try:
            found = make(importlib.import_module(name))
        except Exception:  # whatever a library raises that finds no driver
            continue
        if found is not None:
            yield found  # the kernels serve all libraries
            return


_ON_GPU: dict[str, Callable[[Any], Any]] = {
    "cupy": lambda cupy: cupy.empty(0),
    "torch": lambda torch: torch.empty(0, device="cuda") if torch.cuda.is_available() else None,
}


def _elapsed(begin: float) -> str:
    return f"{time.monotonic() - begin:6.1f} s"


if __name__ == "__main__":
    sys.exit(main())

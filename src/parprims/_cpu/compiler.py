"""Compile kernels for CPUs by Numba, and keep what comes of it on disk."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import importlib.util
import os
import pathlib
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from parprims._compiling import disk_cache
from parprims._cpu import loader
from parprims._cpu.text import Kernel

_LOCK = threading.RLock()
# A fork waits until nothing is being compiled: in the child nobody would ever finish it, and release what was locked.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


MISSING = "Numba, which compiles kernels for CPUs, is not installed: pip install numba"


def refusal() -> str | None:
    """Return the sentence why no kernel can be compiled for this machine's CPU, or None."""
    believed = _believing.get()
    if believed is None or failure.cache_info().currsize or not _is_installed():
        return failure()
    believed.append(None)
    return None


_believing: contextvars.ContextVar[list[None] | None] = contextvars.ContextVar("believing", default=None)


@contextlib.contextmanager
def believing() -> Iterator[list[None]]:
    """Let `refusal` take for granted inside the block that a Numba works which is installed.

    Numba takes a third of a second to import, and no call is to wait for that which then takes another method. The list
    has an entry where something was taken for granted: then the question is to be asked again.
    """
    believed: list[None] = []
    token = _believing.set(believed)
    try:
        yield believed
    finally:
        _believing.reset(token)


@functools.cache
def _is_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


@functools.cache
def failure() -> str | None:
    """Return the sentence why Numba compiles nothing here, or None.

    That it can be imported is noted on disk, for processes that find the very same.
    """
    found = importlib.util.find_spec("numba")
    if found is None:
        return f"the arrays are not on a CUDA device, and {MISSING}"
    works = _place(_name("numba", str(found.origin)), ".works")
    if works is None or not os.path.isdir(works):  # also where it may not be looked for
        try:
            import numba  # noqa: F401
        except Exception as error:  # whatever a Numba raises that does not know this NumPy or this Python
            return f"Numba does not work here: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if works is not None:
            with contextlib.suppress(OSError):
                works.mkdir(parents=True, exist_ok=True)  # a folder is there or not, and is no kernel
    return None


@functools.lru_cache(maxsize=4096)
def compiled(kernel: Kernel | str) -> Callable[..., None]:
    """Return a kernel, or that of a text, compiled now or found on disk where a process before has left it."""
    with _LOCK:
        return loader.load(*_kept(kernel))


_SWITCHES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT")
"""Words of the environment by which Numba makes other code."""


def _kept(kernel: Kernel | str) -> tuple[str, bytes]:
    """Return the name of a kernel and its object code, from disk where it is there whole."""
    identity = kernel if isinstance(kernel, str) else kernel.identity
    name = _name(identity, loader.processor(), *(os.environ.get(one, "") for one in _SWITCHES))
    path = _place(name, ".o")

    def make() -> bytes:
        text = kernel if isinstance(kernel, str) else kernel.text
        if path is not None:
            disk_cache.write(path.with_suffix(".py"), text.encode(), once=True)  # for whoever wants to read it
        return _object_code(name, text)

    return name, disk_cache.kept_or_made(path, make)


def _name(*parts: str) -> str:
    """Return a name for these parts and the versions of all that compiles."""
    whole = "\0".join((*parts, sys.version, np.__version__, *map(_version, ("numba", "llvmlite"))))
    return f"parprims_{hashlib.sha256(whole.encode()).hexdigest()[:40]}"


@functools.cache
def _version(package: str) -> str:
    """Return a text that identifies the version of a package, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return ""
    origin = pathlib.Path(found.origin)
    try:
        return (origin.parent / "_version.py").read_text(encoding="utf-8")
    except OSError:
        return str(origin.stat().st_mtime_ns)


def _place(name: str, suffix: str) -> pathlib.Path | None:
    folder = disk_cache.folder()
    return None if folder is None else folder / "cpu" / (name + suffix)


def _object_code(name: str, text: str) -> bytes:
    with disk_cache.compiling("CPUs"), warnings.catch_warnings():
        import numba

        _spare_scipy()
        names: dict[str, Any] = {"NAME": name, "__name__": name}
        warnings.simplefilter("ignore", numba.NumbaWarning)
        exec(compile(text, f"<{name}>", "exec"), names)
    code: bytes = names["run"]
    return code


def _spare_scipy() -> None:
    """Import the part of Numba that imports scipy.linalg, for a third of a second, only to see that it can be.

    It is told that SciPy is there if it is installed, and asks again where somebody's function needs it.
    """
    if "numba.np.arraymath" in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    from numba.np import linalg

    asks = getattr(linalg, "ensure_blas", None)
    if asks is None:  # a Numba that does it in another way
        return
    linalg.ensure_blas = lambda: None
    try:
        from numba.np import arraymath

        arraymath.ensure_blas = asks
    finally:
        linalg.ensure_blas = asks

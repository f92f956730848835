"""Compile kernels for CPUs by Numba, and keep their object code on disk."""

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
# A fork waits until no compilation is under way: no thread of the child would finish it and release the lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


MISSING = "Numba, which compiles kernels for CPUs, is not installed: pip install numba"


def refusal() -> str | None:
    """Return the sentence why no kernel can be compiled for this machine's CPU, or None."""
    if failure.cache_info().currsize or not _is_installed() or not believed():
        return failure()
    return None


def believed() -> bool:
    """Return whether a caller assumes that this Numba works, see `believing`, and let it know that it does."""
    noted = _believing.get()
    if noted is None:
        return False
    noted.append(None)
    return True


_believing: contextvars.ContextVar[list[None] | None] = contextvars.ContextVar("believing", default=None)


@contextlib.contextmanager
def believing() -> Iterator[list[None]]:
    """Let `refusal` assume inside the block that an installed Numba works.

    Numba takes a third of a second to import, and a call that then takes another method should not wait for it. The
    list gets an entry if `refusal` assumed so: then a caller that takes the kernel must ask again.
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

    A folder on disk notes that Numba can be imported, for processes that find this very Numba.
    """
    spec = importlib.util.find_spec("numba")
    if spec is None:
        return f"the arrays are not on a CUDA device, and {MISSING}"
    works = _place(_name("numba", str(spec.origin)), ".works")
    if works is None or not os.path.isdir(works):  # also if the folder must not be read
        try:
            import numba  # noqa: F401
        except Exception as error:  # a Numba that does not know this NumPy or this Python raises any error
            return f"Numba does not work here: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if works is not None:
            with contextlib.suppress(OSError):
                works.mkdir(parents=True, exist_ok=True)  # a folder is never half written, and is no kernel
    return None


@functools.lru_cache(maxsize=4096)
def compiled(kernel: Kernel | str) -> Callable[..., None]:
    """Return the function of a kernel, or of a text, compiled now or by an earlier process and kept on disk."""
    with _LOCK:
        return loader.load(*_kept(kernel))


def symbol(kernel: Kernel | str) -> str:
    """Return the name of a kernel, or of a text, in its object code: a digest that is equal in all processes."""
    return str(compiled(kernel).__name__)


def address(kernel: Kernel | str, ending: str, *, data: bool = False) -> int:
    """Return the address of a function beside the kernel's own, or with ``data`` of a variable."""
    with _LOCK:
        return loader.address(symbol(kernel) + ending, data=data)


_SWITCHES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX", "NUMBA_OPT")
"""Variables of the environment that change the code of Numba."""


def _kept(kernel: Kernel | str) -> tuple[str, bytes]:
    """Return the name of a kernel and its object code, from disk if a whole file is there."""
    identity = kernel if isinstance(kernel, str) else kernel.identity
    name = _name(identity, loader.processor(), *(os.environ.get(one, "") for one in _SWITCHES))
    path = _place(name, ".o")

    def make() -> bytes:
        text = kernel if isinstance(kernel, str) else kernel.text
        if path is not None:
            disk_cache.write(path.with_suffix(".py"), text.encode(), once=True)  # for readers
        return _object_code(name, text)

    return name, disk_cache.kept_or_made(path, make)


def _name(*parts: str) -> str:
    """Return a name for these parts and the versions of the compilers."""
    whole = "\0".join((*parts, sys.version, np.__version__, *map(_version, ("numba", "llvmlite"))))
    return f"parprims_{hashlib.sha256(whole.encode()).hexdigest()[:40]}"


@functools.cache
def _version(package: str) -> str:
    """Return a text that identifies the version of a package, without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return ""
    origin = pathlib.Path(spec.origin)
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
    """Import a part of Numba without its import of scipy.linalg, which takes a third of a second.

    That import only shows that SciPy works. Numba is made to believe so if SciPy is installed, and looks again if a
    function needs it.
    """
    if "numba.np.arraymath" in sys.modules or importlib.util.find_spec("scipy") is None:
        return
    from numba.np import linalg

    check = getattr(linalg, "ensure_blas", None)
    if check is None:  # another version of Numba
        return
    linalg.ensure_blas = lambda: None
    try:
        from numba.np import arraymath

        arraymath.ensure_blas = check
    finally:
        linalg.ensure_blas = check

"""Compile kernels for CPUs by Numba, and keep what comes of it on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import pathlib
import sys
import threading
import types
import warnings
from collections.abc import Callable
from typing import Any

from parprims import _cache

_LOCK = threading.RLock()
# A fork waits until nothing is being compiled: in the child nobody would ever finish it, and release what was locked.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


MISSING = "Numba, which compiles kernels for CPUs, is not installed: pip install numba"


@functools.cache
def refusal() -> str | None:
    """Return the sentence why no kernel can be compiled for this machine's CPU, or None."""
    if importlib.util.find_spec("numba") is None:
        return f"the arrays are not on a CUDA device, and {MISSING}"
    try:
        import numba  # noqa: F401
    except Exception as error:  # whatever a Numba raises that does not know this NumPy or this Python
        return f"Numba does not work here: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return None


@functools.lru_cache(maxsize=4096)
def compiled(text: str) -> Callable[..., Any]:
    """Return the kernel ``run`` of a text, compiled now, or found on disk where a process before has left it.

    The text is run with `CACHED` in its names, which says whether Numba can keep machine code beside it.
    """
    with _LOCK:
        module = _kept(text)
    found: Callable[..., Any] = module.run
    return found


def _kept(text: str) -> types.ModuleType:
    import numba

    key = "\0".join((text, numba.__version__, sys.version))
    name = f"parprims_{hashlib.sha256(key.encode()).hexdigest()[:40]}"
    for path in _places(name):
        # Numba knows code that it keeps by the time at which its text was written, and processes lock the file that
        # was written, so that a text is written once.
        if not path.exists():
            _cache.write(path, text.encode(), once=True)
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8") == text:
                with _cache.in_turn(path, functools.partial(_has_code, path)):
                    return _run(text, name, path, cached=True)
    return _run(text, name, pathlib.Path(f"<{name}>"), cached=False)


def _places(name: str) -> list[pathlib.Path]:
    found = _cache.folder()
    if found is None:
        return []
    place = found / "cpu"
    with contextlib.suppress(OSError):
        place.mkdir(parents=True, exist_ok=True)
    return [place / f"{name}.py"] if os.access(place, os.W_OK) else []


def _has_code(path: pathlib.Path) -> bool:
    """Return whether Numba has left machine code beside a text; then every process reads it without waiting."""
    return any((path.parent / "__pycache__").glob(f"{path.stem}*.nbc"))


def _run(text: str, name: str, path: pathlib.Path, *, cached: bool) -> types.ModuleType:
    import numba

    module = types.ModuleType(name)
    module.__dict__.update(CACHED=cached, __file__=str(path))
    sys.modules[name] = module  # where Numba looks a function of its cache up
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", numba.NumbaWarning)
            exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module

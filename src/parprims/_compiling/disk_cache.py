"""The disk cache of compiled kernels: its folder, and safe writing of files."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any


def folder() -> pathlib.Path | None:
    """Return the folder, which may not exist yet; None if there is no home directory."""
    root = os.environ.get("PARPRIMS_CACHE_DIR")
    if root:
        return pathlib.Path(root)
    try:
        return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "parprims"
    except RuntimeError:  # there is no home directory
        return None


def write(path: pathlib.Path, content: bytes, *, once: bool = False) -> None:
    """Write a whole file or nothing, even if several processes write the same file.

    With ``once``, a file that another process has written meanwhile stays as it is. If the folder cannot be written,
    the next process compiles again, and nothing else is lost.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(f"*{_UNFINISHED}"):  # from a process that ended while it wrote
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime > 3600:
                    leftover.unlink()
        handle, name = tempfile.mkstemp(_UNFINISHED, dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(content)
            if once:
                _place(name, path)
            else:
                os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def keep(path: pathlib.Path, content: bytes) -> None:
    """Write a file that `kept` reads."""
    write(path, hashlib.sha256(content).digest() + content)


def kept(path: pathlib.Path) -> bytes | None:
    """Return the content of a file, or None if there is no file or its digest does not match."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    digest, content = whole[:_DIGEST], whole[_DIGEST:]
    return content if hashlib.sha256(content).digest() == digest else None


_DIGEST = 32


def kept_or_made(path: pathlib.Path | None, make: Callable[[], bytes]) -> bytes:
    """Return the content of a file; if there is none, one of the waiting processes makes and writes it.

    Without a cache folder every process makes the content.
    """
    if path is None:
        return make()
    content = kept(path)
    if content is not None:
        return content
    turns = path.with_name(f"{path.name}.lock")
    write(turns, b"", once=True)
    try:
        with in_turn(turns, lambda: kept(path) is not None):
            content = kept(path)
            if content is None:
                content = make()
                keep(path, content)
    finally:  # a waiting process has the file open and finds the content; a new process finds the file without it
        with contextlib.suppress(OSError):
            turns.unlink()
    return content


def _place(name: str, path: pathlib.Path) -> None:
    """Give a file the name ``path`` unless a file of that name exists."""
    try:
        os.link(name, path)
    except FileExistsError:
        pass
    except OSError:  # the file system has no links
        os.replace(name, path)
        return
    os.unlink(name)


_UNFINISHED = ".tmp"


_PATIENCE = 120.0
"""Seconds that a process waits for another process, which may hang or run on a machine that is gone."""


@contextlib.contextmanager
def in_turn(path: pathlib.Path, done: Callable[[], bool]) -> Iterator[None]:
    """Let one process at a time into the block, among all processes that name this file, until the work is ``done``.

    Nothing is written to the file. The system releases the lock when a process ends. If files cannot be locked, no
    process waits.
    """
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            if not done():
                file = held.enter_context(open(path, "r+b"))
                end = time.monotonic() + _PATIENCE
                while not _locked(file) and not done() and time.monotonic() < end:
                    time.sleep(0.02)
        yield


def _locked(file: Any) -> bool:
    """Lock a file until it is closed, and return True; return False if another process has locked it.

    Raises OSError if files cannot be locked.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            file.seek(_BEHIND)  # so that others can still read the content
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


_LOGGER = logging.getLogger("parprims")
_LONG = 1.0
"""Seconds of compiling that a caller notices."""
_spent: dict[str, float] = {}


@contextlib.contextmanager
def compiling(kind: str) -> Iterator[None]:
    """Time the block; log once in a process that kernels of a kind took more than `_LONG` seconds to compile in all."""
    begun, before = time.perf_counter(), _spent.get(kind, 0.0)
    yield
    _spent[kind] = spent = before + time.perf_counter() - begun
    if before <= _LONG < spent:
        place = folder()
        found = (
            f"later processes find them in {place}" if place else "PARPRIMS_CACHE_DIR names a folder to keep them in"
        )
        ahead = "python -m parprims --warm compiles the usual ones ahead"
        _LOGGER.info("compiling kernels for %s has taken %.1f s in this process; %s; %s", kind, spent, found, ahead)


_BEHIND = 1 << 30
"""An offset behind the end of every file that is locked."""

"""Where compiled kernels are kept on disk, and how files are written there."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
import time


def folder() -> pathlib.Path | None:
    """Return the folder, which need not be there yet, or None where there is no home directory."""
    root = os.environ.get("PARPRIMS_CACHE_DIR")
    if root:
        return pathlib.Path(root)
    try:
        return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "parprims"
    except RuntimeError:  # there is no home directory
        return None


def write(path: pathlib.Path, content: bytes) -> None:
    """Write a file whole or not at all, even if several processes write the same one.

    If the folder cannot be written, the next process compiles again, and nothing else is lost.
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
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


_UNFINISHED = ".tmp"

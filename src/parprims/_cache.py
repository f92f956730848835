"""Where compiled kernels are kept on disk."""

from __future__ import annotations

import os
import pathlib


def folder() -> pathlib.Path | None:
    """Return the folder, which need not be there yet, or None where there is no home directory."""
    root = os.environ.get("PARPRIMS_CACHE_DIR")
    if root:
        return pathlib.Path(root)
    try:
        return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "parprims"
    except RuntimeError:  # there is no home directory
        return None

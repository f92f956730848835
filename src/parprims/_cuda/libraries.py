"""The array libraries that are imported only where an array of theirs is at hand."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def torch() -> Any:
    """Return PyTorch."""
    import torch

    return torch


@functools.cache
def cupy() -> Any:
    """Return CuPy."""
    import cupy

    return cupy

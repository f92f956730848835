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


def transformed() -> bool:
    """Return whether a transformation of torch.func or a forward derivative is under way."""
    found: bool = torch()._C._are_functorch_transforms_active() or torch().autograd.forward_ad._current_level >= 0
    return found

"""PyTorch's own switches, on which no result here depends: autocast, and how many bits float32 products may lose."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

from parprims._arrays import Array, Namespace

_AUTOCAST = ("cuda", "cpu", "xpu", "mps")
"""The kinds of devices that are asked for autocast."""

_ENOUGH = {"float32": ("none", "ieee"), "residues": ("none", "ieee"), "tf32": ("none", "ieee", "tf32")}
"""What PyTorch may be told of products of float32 so that they are as exact as a precision says."""


def autocast(xp: Namespace) -> tuple[str, ...]:
    """Return the kinds of devices for which PyTorch's autocast is on."""
    torch = sys.modules.get("torch")
    if torch is None or getattr(xp, "__name__", "") != "array_api_compat.torch":
        return ()
    return tuple([kind for kind in _AUTOCAST if torch.is_autocast_enabled(kind)])


def without_autocast(kinds: tuple[str, ...]) -> contextlib.ExitStack:
    """Return a context in which autocast is off for these kinds of devices."""
    import torch

    stack = contextlib.ExitStack()
    for kind in kinds:
        stack.enter_context(torch.autocast(kind, enabled=False))
    return stack


def float32_products(x: Array) -> str | None:
    """Return what PyTorch has been told of products of float32 where x is, None for arrays of other libraries."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        return None
    told: str = torch._C._get_fp32_precision_getter("cuda" if x.is_cuda else "mkldnn", "matmul")
    return told


def narrowed(x: Array, precision: str = "float32") -> bool:
    """Return whether PyTorch may form products of float32 where x is with fewer bits than a precision asks for."""
    return precision in _ENOUGH and float32_products(x) not in _ENOUGH[precision]

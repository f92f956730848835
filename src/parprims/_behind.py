"""The modules that know all primitives, each imported by the first call that needs it.

Those of the primitives need them too. So they are above these, and are reached through `_dispatch.behind`.
"""

from __future__ import annotations

from typing import Any

from parprims import _dispatch


def _nodes() -> Any:
    from parprims import _torch_ops

    return _torch_ops


def _devices() -> Any:
    from parprims import _devices

    return _devices


def _derivatives_on_torch() -> Any:
    from parprims import _derivatives_torch

    return _derivatives_torch


def _derivatives_on_jax() -> Any:
    from parprims import _derivatives_jax

    return _derivatives_jax


_dispatch.behind.update(
    {
        "nodes": _nodes,
        "devices": _devices,
        "derivatives on PyTorch": _derivatives_on_torch,
        "derivatives on JAX": _derivatives_on_jax,
    }
)

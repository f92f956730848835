"""The modules that know all primitives, each imported by the first call that needs it.

Those of the primitives need them too. So they are above these, and are reached through `dispatch.behind`.
"""

from __future__ import annotations

from typing import Any

from parprims._dispatch import dispatch


def _nodes() -> Any:
    from parprims._torch_compile import ops as torch_ops

    return torch_ops


def _devices() -> Any:
    from parprims import _devices

    return _devices


def _derivatives_on_torch() -> Any:
    from parprims._derivatives import torch_rules

    return torch_rules


def _derivatives_on_jax() -> Any:
    from parprims._derivatives import jax_rules

    return jax_rules


dispatch.behind.update(
    {
        "nodes": _nodes,
        "devices": _devices,
        "derivatives on PyTorch": _derivatives_on_torch,
        "derivatives on JAX": _derivatives_on_jax,
    }
)

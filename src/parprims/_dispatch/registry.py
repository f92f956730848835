"""The modules that know all primitives. They are in higher rooms, so the first call that needs one imports it."""

from __future__ import annotations

from typing import Any


def nodes() -> Any:
    """Return the module of the nodes of torch.compile's graph."""
    from parprims._torch_compile import ops

    return ops


def devices() -> Any:
    """Return the room of calls on arrays that several devices hold."""
    from parprims import _devices

    return _devices


def derivatives_on_torch() -> Any:
    """Return the module of the derivatives on PyTorch."""
    from parprims._derivatives import torch_rules

    return torch_rules


def derivatives_on_jax() -> Any:
    """Return the module of the derivatives on JAX."""
    from parprims._derivatives import jax_rules

    return jax_rules

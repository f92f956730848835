"""Calls on arrays that several devices hold: drivers written once, over what moves messages between the devices.

`communicator` says what a driver is and may ask for; `scans` and others hold the drivers; `work` and `calls` lay a call
out over the parts; `jax_mesh` is an engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import array_api_compat

from parprims._arrays import Array
from parprims._devices import calls
from parprims._devices.work import Engine

_CALLS: dict[str, Callable[..., Any]] = {
    "reduced": calls.reduced,
    "scanned": calls.scanned,
    "solved": calls.solved,
    "sorted": calls.sorted_,
    "tridiagonal": calls.tridiagonal,
    "product": calls.product,
    "histogram": calls.histogrammed,
}


def compute(kind: str, x: Any, axis_name: Any, *arguments: Any, **options: Any) -> Any:
    """Return what a public function asks for of arrays that are split over devices.

    Parameters
    ----------
    kind : str
        Which of the calls.
    x : array or tuple of array
        The arrays of the call, which tell who holds them.
    axis_name : optional
        What the caller named: axes of a mesh that the own part belongs to.
    *arguments, **options
        Those of the call.
    """
    return _CALLS[kind](_engine(x if isinstance(x, tuple) else (x,), axis_name), *arguments, **options)


def placed_later(*arguments: Any) -> Any:
    """Return what `jax_auto.partitioned` returns."""
    from parprims._devices.jax_auto import partitioned

    return partitioned(*arguments)


def _engine(arrays: tuple[Array, ...], axis_name: Any) -> Engine:
    if axis_name is None:
        from parprims._devices.jax_mesh import Mesh

        return Mesh.of(tuple(x for x in arrays if hasattr(x, "shape")))
    first = next((x for x in arrays if hasattr(x, "shape")), None)
    if "jax" in sys.modules and array_api_compat.is_jax_array(first):
        from parprims._devices.jax_mesh import Inside

        return Inside(axis_name if isinstance(axis_name, tuple) else (axis_name,))
    raise TypeError("axis_name names axes of a mesh, which arrays of JAX have inside jax.shard_map")

"""Calls on arrays that several devices hold: drivers written once, over what moves messages between the devices.

`communicator` says what a driver is and may ask for; `scans` and others hold the drivers; `work` and `calls` lay a call
out over the parts; `jax_mesh`, `jax_auto`, `torch_groups` and
`dask_chunks` are engines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import array_api_compat

from parprims._core.arrays import Array, is_tensor
from parprims._core.scalars import is_scalar
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
    arrays = tuple(one for one in (x if isinstance(x, tuple) else (x,)) if not is_scalar(one))
    if axis_name is None and any(type(one).__module__.startswith("dask.") for one in arrays):
        from parprims._devices.dask_chunks import Chunks

        return Chunks.call(_CALLS[kind], arguments, options, kind == "product")
    if any(is_tensor(one) for one in arrays):
        from parprims._devices.torch_groups import Distributed, Group

        if axis_name is None:
            return Distributed.call(_CALLS[kind], arguments, options)
        return _CALLS[kind](Group.of(axis_name), *arguments, **options)
    return _CALLS[kind](_engine(arrays, axis_name), *arguments, **options)


def placed_later(*arguments: Any) -> Any:
    """Return what `jax_auto.partitioned` returns."""
    from parprims._devices.jax_auto import partitioned

    return partitioned(*arguments)


def _engine(arrays: tuple[Array, ...], axis_name: Any) -> Engine:
    if axis_name is None:
        for one in arrays:
            if one is not None and not array_api_compat.is_jax_array(one):
                raise TypeError(f"arrays must all be JAX's where one is split over devices, got {type(one).__name__}")
        from parprims._devices.jax_mesh import Mesh

        return Mesh.of(tuple(one for one in arrays if one is not None))
    if "jax" in sys.modules and arrays and array_api_compat.is_jax_array(arrays[0]):
        from parprims._devices.jax_mesh import Inside

        return Inside.of(axis_name)
    raise TypeError("axis_name names axes of a mesh, which arrays of JAX have inside jax.shard_map")

"""Calls on arrays that several devices hold. Each algorithm is one driver, for every transport of messages.

`communicator` defines drivers and their messages; `scans`, `sorts`, `products` and `tridiagonals` hold the drivers;
`calls` turns a call into `work` on the parts; `jax_mesh`, `jax_auto`, `torch_groups` and `dask_chunks` are engines.
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
from parprims._dispatch.primitive import Arguments

_CALLS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("reduce", "map_reduce", "sum", "prod", "max", "min", "any", "all", "vecdot"), calls.reduced),
    **dict.fromkeys(("scan", "cumulative_sum", "cumulative_prod"), calls.scanned),
    **dict.fromkeys(("cumulative_max", "cumulative_min", "cumulative_logsumexp"), calls.scanned),
    **dict.fromkeys(("sort", "argsort", "sort_by_key"), calls.sorted_),
    "linear_recurrence": calls.solved,
    "solve_tridiagonal": calls.tridiagonal,
    "matmul": calls.product,
    "histogram": calls.histogrammed,
}


def compute(asked: Arguments) -> Any:
    """Return the result of a call on arrays that are split over devices, or that are parts of such arrays."""
    lay_out, axis_name = _CALLS[asked.name], asked.axis_name
    arrays = tuple([x for x in asked.flat if not is_scalar(x)])
    if axis_name is None and any(type(x).__module__.startswith("dask.") for x in arrays):
        from parprims._devices.dask_chunks import Chunks

        return Chunks.call(lay_out, asked)
    if any(map(is_tensor, arrays)):
        from parprims._devices.torch_groups import Distributed, Group

        if axis_name is None:
            return Distributed.call(lay_out, asked)
        return lay_out(Group.of(axis_name), asked)
    return lay_out(_engine(arrays, axis_name), asked)


def placed_later(*arguments: Any) -> Any:
    """Return `jax_auto.partitioned` of these arguments."""
    from parprims._devices.jax_auto import partitioned

    return partitioned(*arguments)


def _engine(arrays: tuple[Array, ...], axis_name: Any) -> Engine:
    if axis_name is None:
        for array in arrays:
            if array is not None and not array_api_compat.is_jax_array(array):
                raise TypeError(f"arrays must all be JAX's where one is split over devices, got {type(array).__name__}")
        from parprims._devices.jax_mesh import Mesh

        return Mesh.of(tuple(array for array in arrays if array is not None))
    if "jax" in sys.modules and arrays and array_api_compat.is_jax_array(arrays[0]):
        from parprims._devices.jax_mesh import Inside

        return Inside.of(axis_name)
    raise TypeError("axis_name names axes of a mesh, which arrays of JAX have inside jax.shard_map")

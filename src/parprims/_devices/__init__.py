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
from parprims._dispatch.primitive import Arguments, declared
from parprims._operators.operator import as_operator

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
    """Return the result of a call on arrays that are split over devices, or that are parts of such arrays.

    The arguments are checked as in a call on one device.
    """
    axis_name = asked.axis_name
    arrays = tuple([x for x in asked.flat if not is_scalar(x)])
    if axis_name is None and any(type(x).__module__.startswith("dask.") for x in arrays):
        from parprims._devices.dask_chunks import Chunks

        _check_shapes(asked)
        return Chunks.call(_of_whole, asked)
    if any(map(is_tensor, arrays)):
        from parprims._devices.torch_groups import Distributed, Group

        if axis_name is None:
            return Distributed.call(_of_parts, asked)
        return _of_parts(Group.of(axis_name), asked)
    if axis_name is not None:
        return _of_parts(_inside(arrays, axis_name), asked)
    for one in arrays:
        if one is not None and not array_api_compat.is_jax_array(one):
            raise TypeError(f"arrays must all be JAX's where one is split over devices, got {type(one).__name__}")
    from parprims._devices.jax_mesh import Mesh, check_whole

    engine = Mesh.of(tuple(one for one in arrays if one is not None))
    check_whole(declared[asked.name].check, asked)
    return _CALLS[asked.name](engine, asked)


def _check_shapes(asked: Arguments) -> None:
    """Raise ValueError if the components of elements have several shapes."""
    x = asked.arrays.get("x")
    if isinstance(x, tuple) and asked.name in ("reduce", "scan"):
        components = x[as_operator(asked["op"]).flags :]
        shapes = [tuple(getattr(one, "shape", ())) for one in components]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(
                f"x must be arrays of equal shape in chunks of Dask, got {', '.join(map(str, shapes))}: scan or reduce "
                "arrays of JAX or PyTorch"
            )


def _of_whole(engine: Engine, asked: Arguments) -> Any:
    """Return the result of a call on stand-ins for whole arrays."""
    declared[asked.name].check(asked)
    return _CALLS[asked.name](engine, asked)


def _of_parts(engine: Engine, asked: Arguments) -> Any:
    """Return the result of a call on parts, unchecked if a part is empty: the whole array may have elements."""
    if not any(0 in x.shape for x in asked.flat if not is_scalar(x)):
        declared[asked.name].check(asked)
    return _CALLS[asked.name](engine, asked)


def placed_later(*arguments: Any) -> Any:
    """Return `jax_auto.partitioned` of these arguments."""
    from parprims._devices.jax_auto import partitioned

    return partitioned(*arguments)


def _inside(arrays: tuple[Array, ...], axis_name: Any) -> Engine:
    if "jax" in sys.modules and arrays and array_api_compat.is_jax_array(arrays[0]):
        from parprims._devices.jax_mesh import Inside

        return Inside.of(axis_name)
    raise TypeError("axis_name names axes of a mesh, which arrays of JAX have inside jax.shard_map")

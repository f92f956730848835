"""The rules of torch.func.vmap for the nodes of `_torch_compile.nodes`: each calls a node with one more axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from parprims._core.arrays import Array, normalize_axes, normalize_axis
from parprims._torch_compile import parameters

_NODES = torch.ops.parprims


def _front(x: Array, dim: int | None, size: int) -> Array:
    """Return x with the axis of vmap first."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _fronts(arrays: Sequence[Array], dims: Sequence[int | None], size: int) -> list[Array]:
    """Return arrays with the axis of vmap first."""
    return [_front(x, dim, size) for x, dim in zip(arrays, dims, strict=True)]


def _padded(x: Array, ndim: int) -> Array:
    """Return x, whose first axis is that of vmap, with ``ndim`` more axes; missing axes follow the first."""
    return x.reshape(x.shape[0], *(1,) * (ndim + 1 - x.ndim), *x.shape[1:])


def _rank(x: Array | None, dim: int | None) -> int:
    """Return the number of axes without that of vmap."""
    return 0 if x is None else x.ndim - (dim is not None)


def _listed_results(results: Sequence[Array]) -> tuple[list[Array], list[int]]:
    return list(results), [0] * len(results)


def reduce(info: Any, in_dims: Any, *arguments: Any) -> Any:
    call, dims, size = parameters.Reduce(*arguments), parameters.Reduce(*in_dims), info.batch_size
    x = _fronts(call.x, dims.x, size)
    ndim = x[0].ndim - 1
    axes = normalize_axes(None if call.axis is None else tuple(call.axis), ndim)
    rank = ndim if call.keepdims else ndim - len(axes)
    initial = [_padded(start, rank) for start in _fronts(call.initial_arrays, dims.initial_arrays, size)]
    axes = tuple([axis + 1 for axis in axes])
    return _listed_results(_NODES.reduce(*call._replace(x=x, initial_arrays=initial, axis=axes)))


def vecdot(info: Any, in_dims: Any, *arguments: Any) -> Any:
    call, dims = parameters.Vecdot(*arguments), parameters.Vecdot(*in_dims)
    ranks = _rank(call.x1, dims.x1), _rank(call.x2, dims.x2)
    ndim = max(ranks)
    x1, x2 = (_padded(_front(x, dim, info.batch_size), ndim) for x, dim in ((call.x1, dims.x1), (call.x2, dims.x2)))
    trailing = normalize_axis(call.axis, min(ranks)) - min(ranks)
    return _NODES.vecdot(x1, x2, trailing, call.method), 0


def scan(info: Any, in_dims: Any, *arguments: Any) -> Any:
    call, dims, size = parameters.Scan(*arguments), parameters.Scan(*in_dims), info.batch_size
    x = _fronts(call.x, dims.x, size)
    ndim = x[0].ndim - 1
    axis = normalize_axis(-1 if call.axis is None else call.axis, ndim) + 1
    initial = [_padded(start, ndim - 1) for start in _fronts(call.initial_arrays, dims.initial_arrays, size)]
    return _listed_results(_NODES.scan(*call._replace(x=x, initial_arrays=initial, axis=axis)))


def recurrence(info: Any, in_dims: Any, *arguments: Any) -> Any:
    call, dims = parameters.Recurrence(*arguments), parameters.Recurrence(*in_dims)
    ndim = max(_rank(call.a_array, dims.a_array), _rank(call.b_array, dims.b_array))

    def padded(x: Array | None, dim: int | None, ndim: int) -> Array | None:
        return None if x is None else _padded(_front(x, dim, info.batch_size), ndim)

    call = call._replace(
        a_array=padded(call.a_array, dims.a_array, ndim),
        b_array=padded(call.b_array, dims.b_array, ndim),
        initial_array=padded(call.initial_array, dims.initial_array, ndim - 1),
        axis=normalize_axis(call.axis, ndim) + 1,
    )
    return _NODES.linear_recurrence(*call), 0


def sort(info: Any, in_dims: Any, *arguments: Any) -> Any:
    call, dims = parameters.Sort(*arguments), parameters.Sort(*in_dims)
    arrays = _fronts(call.arrays, dims.arrays, info.batch_size)
    axis = normalize_axis(call.axis, arrays[0].ndim - 1) + 1
    return _listed_results(_NODES.sort(*call._replace(arrays=arrays, axis=axis)))


def argsort(info: Any, in_dims: Any, *arguments: Any) -> Any:
    call = parameters.Argsort(*arguments)
    x = _front(call.x, parameters.Argsort(*in_dims).x, info.batch_size)
    return _NODES.argsort(*call._replace(x=x, axis=normalize_axis(call.axis, x.ndim - 1) + 1)), 0


def tridiagonal(info: Any, in_dims: Any, *arguments: Any) -> Any:
    call, dims = parameters.Tridiagonal(*arguments), parameters.Tridiagonal(*in_dims)
    diagonals = {
        "lower_array": (call.lower_array, dims.lower_array),
        "diag_array": (call.diag_array, dims.diag_array),
        "upper_array": (call.upper_array, dims.upper_array),
    }
    ndim = max(_rank(x, dim) for x, dim in diagonals.values()) or _rank(call.rhs, dims.rhs)
    # A diagonal that vmap does not split keeps length 1 along its axis.
    padded = {
        name: _padded(x.unsqueeze(0) if dim is None else x.movedim(dim, 0), ndim)
        for name, (x, dim) in diagonals.items()
        if x is not None
    }
    rhs = _padded(_front(call.rhs, dims.rhs, info.batch_size), max(ndim, _rank(call.rhs, dims.rhs)))
    trailing = normalize_axis(call.axis, ndim) - ndim
    return _listed_results(_NODES.solve_tridiagonal(*call._replace(**padded, rhs=rhs, axis=trailing)))


def call(info: Any, in_dims: Any, arrays: Sequence[Array], *options: Any) -> Any:
    arrays = _fronts(arrays, in_dims[0], info.batch_size)
    rows = [_NODES.call([x[index] for x in arrays], *options) for index in range(info.batch_size)]
    return _listed_results([torch.stack(results) for results in zip(*rows, strict=True)])


def matmul(info: Any, in_dims: Any, a: Array, b: Array, *options: Any) -> Any:
    vectors = [_rank(x, dim) == 1 for x, dim in zip((a, b), in_dims, strict=False)]
    a, b = (_front(x, dim, info.batch_size) for x, dim in zip((a, b), in_dims, strict=False))
    a, b = a.unsqueeze(-2) if vectors[0] else a, b.unsqueeze(-1) if vectors[1] else b
    rank = max(a.ndim, b.ndim) - 1
    c = _NODES.matmul(_padded(a, rank), _padded(b, rank), *options)
    c = c.squeeze(-2) if vectors[0] else c
    return c.squeeze(-1) if vectors[1] else c, 0

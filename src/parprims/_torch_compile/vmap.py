"""What torch.func.vmap makes of the nodes of `_torch_compile.nodes`: one node of another, with one more axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from parprims._core import arrays as core_arrays
from parprims._core.arrays import Array


def _front(x: Array, dim: int | None, size: int) -> Array:
    """Return x with the axis of vmap first."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _padded(x: Array, ndim: int) -> Array:
    """Return x, whose first axis is that of vmap, with so many others, those missing behind the first."""
    return x.reshape(x.shape[0], *(1,) * (ndim + 1 - x.ndim), *x.shape[1:])


def _rank(x: Array | None, dim: int | None) -> int:
    """Return the number of axes but that of vmap."""
    return 0 if x is None else x.ndim - (dim is not None)


def _listed_results(results: Sequence[Array]) -> tuple[list[Array], list[int]]:
    return list(results), [0] * len(results)


def reduce(
    info: Any, in_dims: Any, x: Any, op: str, arrays: Any, numbers: Any, dtype: Any, primitive: str, axis: Any,
    keepdims: bool, method: str,
) -> Any:  # fmt: skip
    x = [_front(one, dim, info.batch_size) for one, dim in zip(x, in_dims[0], strict=True)]
    ndim = x[0].ndim - 1
    axes = core_arrays.normalize_axes(None if axis is None else tuple(axis), ndim)
    rank = ndim if keepdims else ndim - len(axes)
    arrays = [_padded(_front(one, dim, info.batch_size), rank) for one, dim in zip(arrays, in_dims[2], strict=True)]
    axes = tuple([one + 1 for one in axes])
    options = (op, arrays, numbers, dtype, primitive, axes, keepdims, method)
    return _listed_results(torch.ops.parprims.reduce(x, *options))


def vecdot(info: Any, in_dims: Any, x1: Array, x2: Array, axis: int, method: str) -> Any:
    ranks = [_rank(x, dim) for x, dim in zip((x1, x2), in_dims, strict=False)]
    ndim = max(ranks)
    arrays = (_padded(_front(x, dim, info.batch_size), ndim) for x, dim in zip((x1, x2), in_dims, strict=False))
    at = core_arrays.normalize_axis(axis, min(ranks)) - min(ranks)
    return torch.ops.parprims.vecdot(*arrays, at, method), 0


def scan(
    info: Any, in_dims: Any, x: Any, op: str, arrays: Any, numbers: Any, dtype: Any, primitive: str, axis: Any,
    *options: Any,
) -> Any:  # fmt: skip
    x = [_front(one, dim, info.batch_size) for one, dim in zip(x, in_dims[0], strict=True)]
    ndim = x[0].ndim - 1
    at = core_arrays.normalize_axis(-1 if axis is None else axis, ndim) + 1
    arrays = [_padded(_front(one, dim, info.batch_size), ndim - 1) for one, dim in zip(arrays, in_dims[2], strict=True)]
    return _listed_results(torch.ops.parprims.scan(x, op, arrays, numbers, dtype, primitive, at, *options))


def recurrence(
    info: Any, in_dims: Any, a: Any, a_number: Any, b: Any, b_number: Any, initial: Any, number: Any, axis: int,
    *options: Any,
) -> Any:  # fmt: skip
    ndim = max(_rank(a, in_dims[0]), _rank(b, in_dims[2]))
    a, b = (
        None if x is None else _padded(_front(x, dim, info.batch_size), ndim)
        for x, dim in ((a, in_dims[0]), (b, in_dims[2]))
    )
    if initial is not None:
        initial = _padded(_front(initial, in_dims[4], info.batch_size), ndim - 1)
    at = core_arrays.normalize_axis(axis, ndim) + 1
    return torch.ops.parprims.linear_recurrence(a, a_number, b, b_number, initial, number, at, *options), 0


def sort(info: Any, in_dims: Any, arrays: Any, primitive: str, indices: bool, axis: int, *options: Any) -> Any:
    arrays = [_front(one, dim, info.batch_size) for one, dim in zip(arrays, in_dims[0], strict=True)]
    at = core_arrays.normalize_axis(axis, arrays[0].ndim - 1) + 1
    return _listed_results(torch.ops.parprims.sort(arrays, primitive, indices, at, *options))


def argsort(info: Any, in_dims: Any, x: Array, axis: int, *options: Any) -> Any:
    x = _front(x, in_dims[0], info.batch_size)
    return torch.ops.parprims.argsort(x, core_arrays.normalize_axis(axis, x.ndim - 1) + 1, *options), 0


def tridiagonal(info: Any, in_dims: Any, *inputs: Any) -> Any:
    given, rhs, (axis, *options) = inputs[:6], inputs[6], inputs[7:]
    ranks = [_rank(x, dim) for x, dim in zip(given[::2], in_dims[:6:2], strict=True)]
    ndim = max(ranks) or _rank(rhs, in_dims[6])
    coefficients = list(given)
    for at, x in enumerate(given):
        if x is not None and at % 2 == 0:
            x = x.unsqueeze(0) if in_dims[at] is None else x.movedim(in_dims[at], 0)
            coefficients[at] = _padded(x, ndim)
    rhs = _padded(_front(rhs, in_dims[6], info.batch_size), max(ndim, _rank(rhs, in_dims[6])))
    trailing = core_arrays.normalize_axis(axis, ndim) - ndim
    return _listed_results(torch.ops.parprims.solve_tridiagonal(*coefficients, rhs, trailing, *options))


def call(info: Any, in_dims: Any, arrays: Sequence[Array], *options: Any) -> Any:
    arrays = [_front(one, dim, info.batch_size) for one, dim in zip(arrays, in_dims[0], strict=True)]
    rows = [torch.ops.parprims.call([one[at] for one in arrays], *options) for at in range(info.batch_size)]
    return _listed_results([torch.stack(ones) for ones in zip(*rows, strict=True)])


def matmul(info: Any, in_dims: Any, a: Array, b: Array, *options: Any) -> Any:
    vectors = [_rank(x, dim) == 1 for x, dim in zip((a, b), in_dims, strict=False)]
    a, b = (_front(x, dim, info.batch_size) for x, dim in zip((a, b), in_dims, strict=False))
    a, b = a.unsqueeze(-2) if vectors[0] else a, b.unsqueeze(-1) if vectors[1] else b
    rank = max(a.ndim, b.ndim) - 1
    c = torch.ops.parprims.matmul(_padded(a, rank), _padded(b, rank), *options)
    c = c.squeeze(-2) if vectors[0] else c
    return c.squeeze(-1) if vectors[1] else c, 0

"""The rule of torch.func.vmap for the node of `_torch_compile.nodes`: a call becomes a call with one more axis.

A call of a primitive without a rule becomes one call for each row.
"""

from __future__ import annotations

from typing import Any

import torch

from parprims._core.arrays import Array, normalize_axes, normalize_axis
from parprims._dispatch.primitive import declared
from parprims._torch_compile.inputs import Flat, Inputs, by_name, dims_by_name, tensors

Dims = dict[str, Any]
"""The axes of vmap by parameter, None for an array without such an axis."""


def _front(x: Array, dim: int | None, size: int) -> Array:
    """Return x with the axis of vmap first."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _fronts(value: Any, dims: Any, size: int) -> tuple[Array, ...]:
    """Return the arrays of an argument with the axis of vmap first."""
    values, all_dims = (value, dims) if isinstance(value, tuple) else ((value,), (dims,))
    return tuple([_front(x, dim, size) for x, dim in zip(values, all_dims, strict=True)])


def _padded(x: Array, ndim: int) -> Array:
    """Return x with ``ndim`` axes behind the first, the axis of vmap; missing axes of length 1 follow the first."""
    return x.reshape(x.shape[0], *(1,) * (ndim + 1 - x.ndim), *x.shape[1:])


def _rank(x: Any, dim: int | None) -> int:
    """Return the number of axes without the axis of vmap; 0 for a number."""
    return x.ndim - (dim is not None) if isinstance(x, torch.Tensor) else 0


def _initial(call: Inputs, dims: Dims, size: int, rank: int) -> dict[str, Any]:
    """Return the initial element by its name; arrays get the axis of vmap and ``rank`` other axes."""
    initial = call.named.get("initial")
    if not tensors(initial):
        return {name: x for name, x in call.named.items() if name == "initial"}
    starts = tuple([_padded(start, rank) for start in _fronts(initial, dims["initial"], size)])
    return {"initial": starts if isinstance(initial, tuple) else starts[0]}


def _elements(call: Inputs, x: tuple[Array, ...]) -> Any:
    """Return elements in the form of the call: an array, or a tuple of arrays."""
    return x if isinstance(call.named["x"], tuple) else x[0]


def _reduce(call: Inputs, dims: Dims, size: int) -> list[Array]:
    x = _fronts(call.named["x"], dims["x"], size)
    ndim = x[0].ndim - 1
    axes = normalize_axes(call.option("axis"), ndim)
    named = {
        "x": _elements(call, x),
        **_initial(call, dims, size, ndim if call.option("keepdims") else ndim - len(axes)),
    }
    options = {**call.options, "axis": tuple([axis + 1 for axis in axes])}
    return call._replace(named=named, options=options).node()


def _vecdot(call: Inputs, dims: Dims, size: int) -> list[Array]:
    ranks = [_rank(x, dims[name]) for name, x in call.named.items()]
    named = {name: _padded(_front(x, dims[name], size), max(ranks)) for name, x in call.named.items()}
    axis = normalize_axis(call.option("axis"), min(ranks)) - min(ranks)
    return call._replace(named=named, options={"axis": axis}).node()


def _scan(call: Inputs, dims: Dims, size: int) -> list[Array]:
    x = _fronts(call.named["x"], dims["x"], size)
    ndim = x[0].ndim - 1
    axis = normalize_axis(-1 if call.option("axis") is None else call.option("axis"), ndim) + 1
    named = {"x": _elements(call, x), **_initial(call, dims, size, ndim - 1)}
    return call._replace(named=named, options={**call.options, "axis": axis}).node()


def _recurrence(call: Inputs, dims: Dims, size: int) -> list[Array]:
    ndim = max(_rank(call.named[name], dims[name]) for name in ("a", "b"))
    named = {
        name: _padded(_front(x, dims[name], size), ndim) if isinstance(x, torch.Tensor) else x
        for name, x in call.named.items()
    }
    named |= _initial(call, dims, size, ndim - 1)
    return call._replace(
        named=named, options={**call.options, "axis": normalize_axis(call.option("axis"), ndim) + 1}
    ).node()


def _sort(call: Inputs, dims: Dims, size: int) -> list[Array]:
    named: dict[str, Any] = {
        name: _fronts(x, dims[name], size) if isinstance(x, tuple) else _front(x, dims[name], size)
        for name, x in call.named.items()
    }
    keys: Array = next(iter(named.values()))
    options = {**call.options, "axis": normalize_axis(call.option("axis"), keys.ndim - 1) + 1}
    return call._replace(named=named, options=options).node()


def _system(call: Inputs, dims: Dims, size: int) -> list[Array]:
    rhs = call.named["rhs"]
    diagonals = {name: x for name, x in call.named.items() if name != "rhs"}
    ndim = max(_rank(x, dims[name]) for name, x in diagonals.items()) or _rank(rhs, dims["rhs"])
    # A diagonal that vmap does not split keeps length 1 along its axis.
    named = {
        name: _padded(x.unsqueeze(0) if dims[name] is None else x.movedim(dims[name], 0), ndim)
        if isinstance(x, torch.Tensor)
        else x
        for name, x in diagonals.items()
    }
    named["rhs"] = _padded(_front(rhs, dims["rhs"], size), max(ndim, _rank(rhs, dims["rhs"])))
    options = {**call.options, "axis": normalize_axis(call.option("axis"), ndim) - ndim}
    return call._replace(named=named, options=options).node()


def _product(call: Inputs, dims: Dims, size: int) -> list[Array]:
    vectors = [_rank(call.named[name], dims[name]) == 1 for name in ("a", "b")]
    a, b = (_front(call.named[name], dims[name], size) for name in ("a", "b"))
    a, b = a.unsqueeze(-2) if vectors[0] else a, b.unsqueeze(-1) if vectors[1] else b
    rank = max(a.ndim, b.ndim) - 1
    (c,) = call._replace(named={"a": _padded(a, rank), "b": _padded(b, rank)}).node()
    c = c.squeeze(-2) if vectors[0] else c
    return [c.squeeze(-1) if vectors[1] else c]


_RULES = {
    "reduction": _reduce,
    "vecdot": _vecdot,
    "scan": _scan,
    "recurrence": _recurrence,
    "sort": _sort,
    "system": _system,
    "product": _product,
}
"""The rules by their names in declarations."""


def call(info: Any, in_dims: Any, *inputs: Any) -> Any:
    """Return the results of a node for all rows, and their axes of vmap."""
    flat = Flat(*inputs)
    rule = _RULES.get(declared[flat.primitive].rules)
    if rule is not None:
        results = rule(by_name(flat), dims_by_name(flat, in_dims[0]), info.batch_size)
    else:
        arrays = _fronts(tuple(flat.arrays), tuple(in_dims[0]), info.batch_size)
        rows = [torch.ops.parprims.call([x[at] for x in arrays], *flat[1:]) for at in range(info.batch_size)]
        results = [torch.stack(ones) for ones in zip(*rows, strict=True)]
    return list(results), [0] * len(results)

"""Order statistics by the operations of any method: reductions of chunks, and sorts."""

from __future__ import annotations

import math

from parprims._core.arrays import Array, Namespace, along, device, dtype_kind, is_jax, library, move_axis
from parprims._dispatch.composite import Part, gathered
from parprims._dispatch.derivative_rules import asked_for, constant
from parprims._libraries.steps import in_programs
from parprims._primitives.order_statistics.call import Quantiles, Selection
from parprims._primitives.order_statistics.quantiles import between, rows_of, rows_to_ask_about
from parprims._primitives.reduce.public import max as largest
from parprims._primitives.reduce.public import min as smallest
from parprims._primitives.sort.call import ascending_integers, bits, index_dtype, moved
from parprims._primitives.sort.public import argsort, sort


def fixed(x: Array) -> Array:
    """Return x without a derivative: indices have none."""
    return constant(x) if asked_for(x) else x


def order_parts(xp: Namespace, c: Selection) -> list[Part]:
    del xp
    return [(argsort, (fixed(c.arrays[0]),), {"axis": c.axis, "descending": c.descending})]


def top_parts(xp: Namespace, c: Selection) -> list[Part]:
    length, x = _chunk(c), fixed(c.arrays[0])
    if not length:
        return order_parts(xp, c)
    most = min(x.shape[c.axis], c.places[0] * length)
    x = bits(xp, x) if _as_signed(xp, x) else x
    return [
        (largest if c.descending else smallest, (x,), {"axis": c.axis}),
        (argsort, (x[along(c.axis, 0, most)],), {"axis": c.axis, "descending": c.descending}),
    ]


def _chunk(c: Selection) -> int:
    """Return the length of chunks that an axis is cut into, or 0 if the whole axis is to be sorted.

    The best element of every chunk is found, then k chunks are searched: both steps cost as much at this length.
    """
    (x,), (k,) = c.arrays, c.places
    length = math.isqrt(x.shape[c.axis] // k) if k else 0
    return length if length >= 4 and 0 not in x.shape else 0


def _as_signed(xp: Namespace, x: Array) -> bool:
    """Return whether the library finds extrema of signed integers alone."""
    return dtype_kind(x.dtype) == "uint" and library(xp) == "torch"


def _first_of_all(xp: Namespace, c: Selection, method: str) -> Array:
    """Return the indices of the k first elements in order.

    An element that is one of the first k is in one of the first k chunks, in the order of their best elements: each
    chunk before its own has an element that comes before it. Only these chunks, and the rest of the axis, are sorted.
    """
    (x,), (k,), length = c.arrays, c.places, _chunk(c)
    x = fixed(x)
    if not length or (method == "array" and in_programs(xp)):  # a program with one sort instead of three
        order = argsort(x, axis=c.axis, descending=c.descending, method=method)
        return xp.concat([order[along(c.axis, 0, k)]], axis=c.axis)  # no view of all of them
    x = move_axis(xp, x, c.axis, -1)
    kind, last, n = dtype_kind(x.dtype), x.ndim - 1, x.shape[-1]
    if (kind == "float" and not c.descending) or _as_signed(xp, x):
        x = ascending_integers(xp, x)  # a smallest element would be any NaN, which here is the largest
    count = n // length
    chunks = xp.reshape(x[..., : count * length], (*x.shape[:-1], count, length))
    best = (largest if c.descending else smallest)(chunks, axis=-1, method=method)
    chosen = argsort(best, descending=c.descending, method=method)[..., :k]
    chosen = sort(xp.concat([chosen], axis=-1), method=method)
    places = xp.expand_dims(chosen * length, axis=-1) + xp.arange(length, dtype=chosen.dtype, device=device(x))
    places = xp.reshape(places, (*x.shape[:-1], k * length))
    if n % length:
        rest = xp.arange(count * length, n, dtype=chosen.dtype, device=device(x))
        places = xp.concat([places, xp.broadcast_to(rest, (*x.shape[:-1], n % length))], axis=-1)
    elements = moved(xp, x, lambda array: gathered(xp, array, places, last))
    order = argsort(elements, descending=c.descending, method=method)[..., :k]
    return move_axis(xp, gathered(xp, places, order, last), -1, c.axis)


def top(xp: Namespace, c: Selection, method: str) -> tuple[Array, Array]:
    """Return the k first elements, and their indices."""
    index = _first_of_all(xp, c, method)
    return moved(xp, c.arrays[0], lambda array: gathered(xp, array, index, c.axis)), index


def top_by_library(xp: Namespace, c: Selection, method: str) -> tuple[Array, Array]:
    """Return `top`, by JAX's own function on JAX."""
    if not is_jax(xp) or 0 in c.arrays[0].shape:
        return top(xp, c, method)
    import jax

    (x,), (k,) = c.arrays, c.places
    keys = move_axis(xp, ascending_integers(xp, fixed(x), c.descending), c.axis, -1)
    index = xp.astype(jax.lax.top_k(~keys, k)[1], index_dtype(xp))  # equal elements in the order of their indices
    index = move_axis(xp, index, -1, c.axis)
    return moved(xp, x, lambda array: gathered(xp, array, index, c.axis)), index


def sort_parts(xp: Namespace, c: Selection) -> list[Part]:
    del xp
    return [(sort, c.arrays, {"axis": c.axis})]


def partition(xp: Namespace, c: Selection, method: str) -> Array:
    del xp
    return sort(c.arrays[0], axis=c.axis, method=method)


def argpartition(xp: Namespace, c: Selection, method: str) -> Array:
    del xp
    return argsort(fixed(c.arrays[0]), axis=c.axis, method=method)


def quantile_parts(xp: Namespace, c: Quantiles) -> list[Part]:
    return [(sort, (rows_to_ask_about(xp, c),), {})]


def quantiles(xp: Namespace, c: Quantiles, method: str) -> Array:
    return between(xp, c, sort(rows_of(xp, c), method=method))

"""Matrix products by operations on JAX: a program that has a loop over tiles."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from parprims._core.arrays import Array, Namespace, cast
from parprims._libraries.steps import repeated
from parprims._primitives.reduce.array import tree


def tiles_in_a_loop(xp: Namespace, p: Any, a: Array, b: Array, lengths: tuple[int, ...], tile: list[int]) -> Array:
    """Return the product of a (..., k, m, 1) and b (..., k, 1, n) on JAX, whose program has a loop over all tiles.

    ``p`` is the record of the call (`Product`), ``lengths`` and ``tile`` those of the axes (..., k, m, n).

    The last tile along an axis ends where the axis does, and has part of the one before again. Only along k, where
    nothing is to be added twice, is the last one shorter. A derivative computes every tile again: to keep what it
    needs of them all would take k times the memory of the product.
    """
    import jax
    from jax import lax

    deep = len(lengths) - 3
    step, count = tile[deep], lengths[deep] // tile[deep]
    rest = lengths[deep] - count * step
    axes = [axis for axis in range(len(lengths)) if axis != deep]
    across = [-(-lengths[axis] // tile[axis]) for axis in axes]

    def part(a: Array, b: Array, starts: list[Any], first: Any, length: int) -> tuple[Array, ...]:
        """Return the products of a tile from a place of axis k on, so many of them, combined."""
        factors = []
        for x in (a, b):
            places = zip(x.shape, [*starts[:deep], first, *starts[deep:]], strict=True)
            sizes = zip(x.shape, [*tile[:deep], length, *tile[deep + 1 :]], strict=True)
            begins = [0 if one == 1 else start for one, start in places]
            found = lax.dynamic_slice(x, begins, [min(one, size) for one, size in sizes])
            factors.append((cast(xp, found, p.working),))
        return tree(p.multiply(*factors), p.add, deep)

    @partial(jax.checkpoint, prevent_cse=False)
    def block(a: Array, b: Array, starts: list[Any]) -> Array:
        def add(i: Any, total: tuple[Array, ...]) -> tuple[Array, ...]:
            found: tuple[Array, ...] = p.add(total, part(a, b, starts, (i + 1) * step, step))
            return found

        total = repeated(xp, count - 1, add, part(a, b, starts, 0, step))
        if rest:
            total = p.add(total, part(a, b, starts, count * step, rest))
        done = cast(xp, xp.squeeze(total[0], axis=deep), p.dtype)
        # An operator that returns one of its arguments leaves out an axis.
        return xp.broadcast_to(done, tuple([tile[axis] for axis in axes]))

    def put(i: Any, product: Array) -> Array:
        starts: list[Any] = []
        for axis, number in zip(reversed(axes), reversed(across), strict=True):
            starts.insert(0, xp.minimum(i % number * tile[axis], lengths[axis] - tile[axis]))
            i = i // number
        return lax.dynamic_update_slice(product, block(a, b, starts), starts)

    if math.prod(across) == 1:  # jaxlib 0.11 crashes where all of an array is set inside shard_map
        return block(a, b, [0] * len(axes))
    product = xp.zeros(tuple([lengths[axis] for axis in axes]), dtype=p.dtype)
    return repeated(xp, math.prod(across), put, product)

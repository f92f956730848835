"""Matrix products and histograms of arrays that are split."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import Array, Namespace, cast, device, dtype_kind, namespace_of
from parprims._devices.communicator import Gather, Place, Shift, Step, Trade
from parprims._operators.operator import Operator
from parprims._primitives.histogram.public import histogram
from parprims._primitives.reduce.public import reduce

Multiply = Callable[[Array, Array], Array]


# ---- Matrix products --------------------------------------------------------------------------------------------


def inner_product(multiply: Multiply, add: Operator, *, trades: bool) -> list[Step]:
    """Return the driver of a product of (a, b) whose contracted axis is split in both factors.

    If it ``trades``, each device adds one block of all partial products, in the order of the parts, and then gathers
    the blocks. Otherwise each device gathers and adds all partial products.
    """

    def partial(_: Place, arrays: tuple[Array, Array], __: Any) -> Any:
        return Gather((multiply(*arrays),)), None

    def total(_: Place, __: None, products: tuple[Array, ...]) -> Any:
        return None, reduce(products[0], add, axis=0, dtype=(products[0].dtype,))

    if not trades:
        return [partial, total]

    def begin(place: Place, arrays: tuple[Array, Array], _: Any) -> Any:
        product = multiply(*arrays)
        xp = namespace_of(product)
        size = math.prod(product.shape)
        block = -(-size // place.count)
        flat = xp.reshape(product, (-1,))
        if block * place.count > size:
            more = block * place.count - size
            flat = xp.concat([flat, xp.zeros((more,), dtype=flat.dtype, device=device(flat))])
        return Trade((xp.reshape(flat, (place.count, block)),)), tuple(product.shape)

    def added(_: Place, shape: tuple[int, ...], blocks: tuple[Array, ...]) -> Any:
        return Gather((reduce(blocks[0], add, axis=0, dtype=(blocks[0].dtype,)),)), shape

    def end(_: Place, shape: tuple[int, ...], sums: tuple[Array, ...]) -> Any:
        xp = namespace_of(sums[0])
        return None, xp.reshape(xp.reshape(sums[0], (-1,))[: math.prod(shape)], shape)

    return [begin, added, end]


def circulating_factor(multiply: Multiply, add: Operator, moving: int, count: int) -> list[Step]:
    """Return the driver of a product of (a, b) whose contracted axis is split in one factor only.

    The parts of factor ``moving`` pass from device to device, and each device multiplies them by the matching window of
    its part of the other factor. It so finds the part of the product that belongs to its own part.
    """
    still = 1 - moving

    def step(step_index: int) -> Step:
        def run_step(place: Place, saved: Any, reply: Any) -> Any:
            if step_index == 0:
                arrays = saved
                whole_factor, part, high, low = arrays[still], arrays[moving], None, None
            else:
                whole_factor, high, low = saved
                (part,) = reply
            axis = whole_factor.ndim - (1 if still == 0 or whole_factor.ndim == 1 else 2)
            length = part.shape[-1 if moving == 0 or part.ndim == 1 else -2]
            source = place.rank + step_index
            wrapped = source >= place.count
            source = source % place.count
            window = _window(whole_factor, source * length, length, axis)
            product = multiply(window, part) if still == 0 else multiply(part, window)
            # Parts before the local part arrive last, but are earlier in the sum.
            high, low = _joined(add, (high, low), product, wrapped, first=step_index == 0)
            if step_index + 1 < count:
                return Shift((part,), 1), (whole_factor, high, low)
            return None, high if low is None else _whole(add, high, low)

        return run_step

    return [step(at) for at in range(count)]


def _joined(add: Operator, sums: tuple[Any, Any], product: Array, wrapped: Any, *, first: bool) -> tuple[Any, Any]:
    """Return two sums with one more product: a sum of the local and later parts, and a flagged sum of earlier parts."""
    if first:
        return product, None
    high, low = sums
    if add.commutative:
        return add((high,), (product,))[0], None
    if isinstance(wrapped, bool):
        if not wrapped:
            return add((high,), (product,))[0], (None, False)
        return high, (add((low[0],), (product,))[0] if low is not None and low[1] else product, True)
    xp = namespace_of(product)
    before = product if low is None else xp.where(low[1], add((low[0],), (product,))[0], product)
    return xp.where(wrapped, high, add((high,), (product,))[0]), (before, wrapped)


def _whole(add: Operator, high: Array, low: Any) -> Array:
    before, some = low
    if isinstance(some, bool):
        return add((before,), (high,))[0] if some else high
    return namespace_of(high).where(some, add((before,), (high,))[0], high)


def _window(x: Array, start: Any, length: int, axis: int) -> Array:
    """Return the elements of a window along an axis."""
    if isinstance(start, int):
        return x[(slice(None),) * axis + (slice(start, start + length), ...)]
    import jax

    found: Array = jax.lax.dynamic_slice_in_dim(x, start, length, axis)
    return found


def circulating_columns(multiply: Multiply, count: int) -> list[Step]:
    """Return the driver of a product of split rows and split columns: parts of columns pass from device to device."""

    def step(step_index: int) -> Step:
        def run_step(place: Place, saved: Any, reply: Any) -> Any:
            a, part, *blocks = saved if step_index == 0 else (saved[0], reply[0], *saved[1:])
            blocks = [*blocks, multiply(a, part)]
            if step_index + 1 < count:
                return Shift((part,), 1), (a, *blocks)
            # The first block belongs to the local columns: rotate the blocks into the order of the parts.
            xp = namespace_of(blocks[0])
            stacked = xp.stack(blocks, axis=0)
            ordered = xp.stack([stacked[(of - place.rank) % count, ...] for of in range(count)], axis=-2)
            return None, xp.reshape(ordered, (*ordered.shape[:-2], math.prod(ordered.shape[-2:])))

        return run_step

    return [step(at) for at in range(count)]


# ---- Histograms -------------------------------------------------------------------------------------------------


def counts(
    *, bins: int, range: Any, even: bool, weighted: bool, density: bool, method: str, hollow: bool
) -> list[Step]:
    """Return the driver of a histogram of (x, weights if any, edges unless they are even).

    ``hollow`` says that x has no elements because an axis that is not split has none.
    """

    def ends(_: Place, arrays: tuple[Array, ...], __: Any) -> Any:
        return Gather(ends_of_part(arrays[0])), arrays

    def begin(place: Place, arrays: tuple[Array, ...], extrema: Any) -> Any:
        x, xp = arrays[0], namespace_of(arrays[0])
        weights = arrays[1] if weighted else None
        if not even:
            return Gather(histogram(x, arrays[-1], weights=weights, method=method)), None
        extrema = extrema if any(place.lengths) and not hollow else None
        edges, known = edges_of_all(x, extrema, bins=bins, ends=range)
        local_counts, _ = histogram(x, xp.where(known, edges, xp.zeros_like(edges)), weights=weights, method=method)
        # The edges are sent too, so that shard_map knows that all parts have equal edges.
        return Gather((xp.where(known, local_counts, xp.zeros_like(local_counts)), edges)), None

    def end(_: Place, __: None, gathered: tuple[Array, ...]) -> Any:
        edges = gathered[1][0, ...]
        xp = namespace_of(edges)
        total = reduce(gathered[0], axis=0, dtype=gathered[0].dtype)
        return None, [_density(xp, total, edges) if density else total, edges]

    return [*([ends] if even and range is None else []), begin, end]


def ends_of_part(x: Array) -> tuple[Array, Array]:
    """Return the least and the largest element."""
    return reduce(x, "minimum"), reduce(x, "maximum")


def edges_of_all(x: Array, extrema: Any, *, bins: Any, ends: Any) -> tuple[Array, Array]:
    """Return the edges of even bins, and whether they are finite.

    ``extrema`` are the least and the largest elements of all parts, or None if ``ends`` are given or there are none. If
    an element of any part is not finite, the edges are NaN. No call accepts such edges, and no element counts.
    """
    xp = namespace_of(x)
    if extrema is not None:
        edges = histogram(xp.stack([xp.min(extrema[0]), xp.max(extrema[1])]), bins)[1]
    else:
        edges = histogram(xp.reshape(x, (-1,))[:0], bins, range=ends)[1]
    return edges, xp.isfinite(edges[0])


def _density(xp: Namespace, total: Array, edges: Array) -> Array:
    wide = edges if dtype_kind(edges.dtype) == "float" else xp.astype(edges, xp.float64)
    total = cast(xp, total, wide.dtype)
    return total / xp.sum(total) / (wide[1:] - wide[:-1])

"""Matrix products by array operations, tile by tile."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from array_api_extra import at

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, as_result, cast, device, dtype_bits, is_tensor
from parprims._core.jax_arrays import is_traced
from parprims._libraries.settings import compiling
from parprims._libraries.steps import in_programs, repeated
from parprims._operators.in_place import harmless
from parprims._primitives.reduce.array import of_nodes, tree

if TYPE_CHECKING:
    from parprims._primitives.matmul.call import Product

# The default tile's products take at most 2^28 bytes, and at least 2^22 unless all products take fewer. In between
# they grow with the problem, so that it is cut into about 2^7 tiles: that bounds the length of PyTorch's programs.
_SMALLEST_BLOCK, _LARGEST_BLOCK, _TILES = 2**22, 2**28, 2**7

_SHORTEST = 2**8
"""The fewest products of a sum in a tile that is cut along k, a node of the tree of reduce/grouping.py."""

_LOOP_BLOCK = 2**20
"""The bytes of products of JAX's tiles: they stay in a core's cache."""


def tiled_product(xp: Namespace, p: Product) -> Array:
    """Return the product, tile by tile: all products of a tile's elements, summed along k by a tree."""
    a = xp.matrix_transpose(p.a if p.a.ndim > 1 else p.a[None, :])[..., None]
    b = (p.b if p.b.ndim > 1 else p.b[:, None])[..., None, :]
    # Now a is (..., k, m, 1) and b is (..., k, 1, n): the product is the sum of a b along axis k.
    lengths = (*p.batch, a.shape[-3], a.shape[-2], b.shape[-1])
    a, b = (x[(None,) * (len(lengths) - x.ndim) + (...,)] for x in (a, b))
    tile = _tile_lengths(xp, lengths, p.tile, dtype_bits(p.working) // 8)
    if in_programs(xp) and tile != list(lengths) and 0 not in lengths:
        return xp.reshape(tiles_in_a_loop(xp, p, a, b, lengths=lengths, tile=tile), p.shape)
    *outer, inner, rows, columns = (
        [slice(start, min(start + step, length)) for start in range(0, length, step)]
        for length, step in zip(lengths, tile, strict=True)
    )

    def block(where: tuple[slice, ...]) -> Array | None:
        *batch, row, column = where
        parts = []
        for k in inner:
            x, y = (cast(xp, x[_read_part(x, (*batch, k, row, column))], p.working) for x in (a, b))
            parts.append(tree(p.multiply((x,), (y,)), p.add, len(lengths) - 3)[0])
        if not parts:
            return None
        sums = parts[0] if len(parts) == 1 else of_nodes((xp.concat(parts, axis=-3),), p.add, len(lengths) - 3)[0]
        return cast(xp, xp.squeeze(sums, axis=-3), p.dtype)

    pieces = (*outer, rows, columns)
    if inner and all(pieces) and _out_of_place(p.a):
        return xp.reshape(_joined(xp, pieces, block), p.shape)
    place = None if is_traced(p.a) or is_traced(p.b) else device(p.a)
    product = xp.zeros((*p.batch, *lengths[-2:]), dtype=p.dtype, device=place)
    if not inner and not p.ring:
        product = xp.full_like(product, p.identity())
    for where in itertools.product(*pieces):
        done = block(where)
        if done is not None and in_programs(xp):  # the only block
            product = done
        elif done is not None:
            product = at(product)[where].set(done)
    return as_result(xp.reshape(product, p.shape))


def _out_of_place(x: Array) -> bool:
    """Return whether PyTorch forbids writes in place: in a transformation of torch.func, or in its compiler."""
    return is_tensor(x) and (compiling(x) or _cuda.transformed())


def _joined(
    xp: Namespace,
    pieces: Sequence[Sequence[slice]],
    block: Callable[[tuple[slice, ...]], Any],
    where: tuple[slice, ...] = (),
) -> Array:
    """Return the array joined from blocks; ``block`` computes the block at a piece of each axis."""
    if not pieces:
        # An operator that returns one of its arguments leaves out an axis, and may leave the memory of a factor.
        return xp.broadcast_to(block(where), tuple(piece.stop - piece.start for piece in where))
    return xp.concat([_joined(xp, pieces[1:], block, (*where, piece)) for piece in pieces[0]], axis=-len(pieces))


def array(xp: Namespace, p: Product) -> Array:
    """Return `tiled_product` with operators that cannot write to their arguments (see `harmless`)."""
    if p.ring:
        return tiled_product(xp, p)
    some = (cast(xp, p.a[:1, ...] if p.a.shape[0] else p.a, p.working),)
    add, multiply = (harmless(xp, op, key, some) for op, key in zip((p.add, p.multiply), p.operation, strict=True))
    return tiled_product(xp, dataclasses.replace(p, add=add, multiply=multiply))


def _read_part(x: Array, where: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the index of the part of x that a block of the broadcast product reads."""
    return tuple(slice(None) if length == 1 else part for length, part in zip(x.shape, where, strict=True))


def _tile_lengths(
    xp: Namespace, lengths: tuple[int, ...], tile: tuple[int, int, int] | None, itemsize: int
) -> list[int]:
    """Return the lengths of a tile along the axes (..., k, m, n).

    The search starts from the whole product and halves the longest axis until the products of a tile fit the limit;
    it keeps m, n and k if the caller gives ``tile``. On JAX it first halves batches, m and n, in this order, down to
    `_NARROWEST`: loops over parts of sums take up to four times as long as loops over tiles.

    Sums are those of one tree, whatever the tile: along k a tile has all products, or a power of two of them. So a row
    of a product does not depend on the other rows.
    """
    block = max(_SMALLEST_BLOCK, min(math.prod(lengths) * itemsize // _TILES, _LARGEST_BLOCK))
    if in_programs(xp):  # JAX loops over tiles; products with a vector are few
        block = _LARGEST_BLOCK if 1 in lengths[-2:] else _LOOP_BLOCK
    tile_lengths = [max(length, 1) for length in lengths]
    deep = len(tile_lengths) - 3
    least = [1] * len(tile_lengths)
    least[deep] = _SHORTEST
    if tile is not None:
        m, n, k = tile
        tile_lengths[deep:] = (min(asked, length) for asked, length in zip((k, m, n), tile_lengths[deep:], strict=True))
        least[deep:] = tile_lengths[deep:]
    narrowest = [*[(axis, 1) for axis in range(deep)], *zip((deep + 1, deep + 2), _NARROWEST, strict=True)]
    first = [(axis, fewest) for axis, fewest in narrowest if axis < deep or tile is None] if in_programs(xp) else []
    while math.prod(tile_lengths) * itemsize > block:
        free = [axis for axis, fewest in enumerate(least) if tile_lengths[axis] > fewest]
        if not free:
            break
        longest = max(free, key=lambda axis: tile_lengths[axis])
        halved = next((axis for axis, fewest in first if tile_lengths[axis] > fewest), longest)
        half = -(-tile_lengths[halved] // 2)
        tile_lengths[halved] = 1 << (half - 1).bit_length() if halved == deep else half
    return tile_lengths


_NARROWEST = (8, 128)
"""Rows and columns of JAX's tiles before sums are split into parts."""


def tiles_in_a_loop(xp: Namespace, p: Product, a: Array, b: Array, lengths: tuple[int, ...], tile: list[int]) -> Array:
    """Return the product of a (..., k, m, 1) and b (..., k, 1, n) on JAX, by a loop over all tiles.

    ``lengths`` and ``tile`` are lengths along the axes (..., k, m, n).

    The last tile along an axis ends with the axis, and may overlap the tile before. Only along k, where no product may
    be added twice, the last tile is shorter. A derivative computes every tile again: to keep the products of all tiles
    would take k times the memory of the result.
    """
    import jax
    from jax import lax

    deep = len(lengths) - 3
    step, count = tile[deep], lengths[deep] // tile[deep]
    rest = lengths[deep] - count * step
    axes = [axis for axis in range(len(lengths)) if axis != deep]
    across = [-(-lengths[axis] // tile[axis]) for axis in axes]

    def part(a: Array, b: Array, starts: list[Any], first: Any, length: int) -> tuple[Array, ...]:
        """Return the sum of ``length`` products of a tile, from index ``first`` along axis k."""
        factors = []
        for x in (a, b):
            places = zip(x.shape, [*starts[:deep], first, *starts[deep:]], strict=True)
            sizes = zip(x.shape, [*tile[:deep], length, *tile[deep + 1 :]], strict=True)
            begins = [0 if length == 1 else start for length, start in places]
            piece = lax.dynamic_slice(x, begins, [min(length, size) for length, size in sizes])
            factors.append((cast(xp, piece, p.working),))
        return tree(p.multiply(*factors), p.add, deep)

    @partial(jax.checkpoint, prevent_cse=False)
    def block(a: Array, b: Array, starts: list[Any]) -> Array:
        def sums_of(_: None, first: Any) -> tuple[None, Array]:
            return None, xp.squeeze(part(a, b, starts, first=first, length=step)[0], axis=deep)

        if count > 1:
            total = xp.moveaxis(lax.scan(sums_of, None, step * xp.arange(count))[1], 0, deep)
        else:
            total = part(a, b, starts, first=0, length=step)[0]
        if rest:
            total = xp.concat([total, part(a, b, starts, first=count * step, length=rest)[0]], axis=deep)
        done = cast(xp, xp.squeeze(of_nodes((total,), p.add, deep)[0], axis=deep), p.dtype)
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

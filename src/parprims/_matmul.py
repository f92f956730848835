"""Matrix product: c[i, j] = a[i, 0] b[0, j] + a[i, 1] b[1, j] + ..."""

from __future__ import annotations

import itertools
import math
import numbers
import operator
from typing import Any

import array_api_compat
import numpy as np
from array_api_extra import at

from parprims._arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    cast,
    check_kind,
    dtype_bits,
    dtype_name,
    is_traced,
    lacks_products,
    namespace,
    ring_dtype,
)
from parprims._dispatch import Method, Methods
from parprims._operators import BUILT_IN
from parprims._reduce import tree

# The default tile's products take at most 2^28 bytes, and no fewer than 2^22 where there are as many. In between
# they grow with the problem, so that it is cut into about 2^7 tiles: that bounds the length of a traced program.
_SMALLEST_BLOCK, _LARGEST_BLOCK, _TILES = 2**22, 2**28, 2**7


def matmul(a: Array, b: Array, /, *, tile: int | tuple[int, int, int] | None = None, method: str = "auto") -> Array:
    """Multiply matrices, c[i, j] = sum over k of a[i, k] b[k, j]: the array API standard's ``matmul``.

    Parameters
    ----------
    a, b : array
        The factors, of shapes (..., m, k) and (..., k, n) and of numeric dtypes that promote together. The other
        axes hold batches of matrices and broadcast. A one-dimensional factor is a vector of length k, and the
        result then lacks the axis of length m or n.
    tile : int or tuple of int, optional
        For ``array``, the lengths of m, n and k that are multiplied at once; one number stands for all three.
    method : {"auto", "native", "array"}
        Who computes.

    Returns
    -------
    array
        The product, of shape (..., m, n) and of the promoted dtype; zeros where k is 0.

    Raises
    ------
    TypeError
        If a factor is no array of numbers, the factors come from several libraries or their dtypes do not promote
        together, or tile does not consist of integers.
    ValueError
        If a factor has no dimensions, k differs between the factors, the batches do not broadcast, or tile is not
        positive.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: m n k products and as many sums, in ceil(log2 k) steps within a tile (array).
    Traffic and launches: array writes and reads every product about 3 times, tile after tile. Beyond the factors and
    the result it needs memory for 1.5 times a tile's products and for their sums; a compiler given the traced program
    may overlap tiles. By default a tile's products take 4 to 256 MiB, so that there are at most 256 tiles up to 2^35
    bytes of products (float32 matrices of 2048 x 2048); beyond that the tiles grow in number and not in size, and so
    does a program traced from them.
    Error: within (ceil(log2 t) + ceil(k / t)) eps sum |a| |b| by array with tiles of length t along k, within
    (k + 1) eps sum |a| |b| by native; 4 times that for complex numbers. 16-bit floats are multiplied and summed in
    float32 and rounded once. Integers wrap around.
    Reproducibility: the same input, tile included, gives the same bits, run after run, by array.
    Methods: native (no tile given; JAX multiplies at its highest precision), array.
    Reference: Golub and Van Loan, Matrix Computations, 4th ed., Johns Hopkins, 2013, chapter 1.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.matmul(np.array([[1, 2], [3, 4]]), np.array([[0, 1], [1, 0]]))
    array([[2, 1],
           [4, 3]])
    >>> parprims.matmul(np.array([[1, 2], [3, 4]]), np.array([10, 1]), tile=1)
    array([12, 34])
    """
    xp = namespace(a=a, b=b)
    for name, x in (("a", a), ("b", b)):
        check_kind(name, x, ("int", "uint", "float", "complex"))
        if x.ndim == 0:
            raise ValueError(f"{name} must have at least one dimension")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ValueError(
            f"a and b must agree in the length summed over, a's last and b's last but one, got shapes {tuple(a.shape)} "
            f"and {tuple(b.shape)}"
        )
    return _METHODS(method, xp, _Product(xp, a, b, _tile(tile)))


def _tile(tile: Any) -> tuple[int, int, int] | None:
    """Return the tile asked for as lengths of m, n and k."""
    if tile is None:
        return None
    lengths = tile if isinstance(tile, tuple) else (tile, tile, tile)
    if any(isinstance(length, bool) or not isinstance(length, numbers.Integral) for length in lengths):
        raise TypeError(f"tile must be an integer or a tuple of 3 integers, got {tile!r}")
    if len(lengths) != 3:
        raise ValueError(f"tile must have 3 lengths, of m, n and k, got {tile!r}")
    m, n, k = (int(length) for length in lengths)
    if min(m, n, k) < 1:
        raise ValueError(f"tile must be positive, got {tile!r}")
    return m, n, k


class _Product:
    """One call, checked: what every method is given.

    ``dtype`` and ``shape`` are the result's, ``batch`` is the shape that the batches of ``a`` and ``b`` broadcast to.
    """

    __slots__ = ("a", "b", "batch", "dtype", "shape", "tile")

    def __init__(self, xp: Namespace, a: Array, b: Array, tile: tuple[int, int, int] | None) -> None:
        self.a, self.b, self.tile = a, b, tile
        self.dtype = a.dtype
        if b.dtype != a.dtype:
            try:
                self.dtype = xp.result_type(a.dtype, b.dtype)
            except (TypeError, RuntimeError):
                names = f"{dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
                raise TypeError(f"a and b must have dtypes that promote together, got {names}") from None
        self.batch: tuple[int, ...] = ()
        if a.ndim > 2 or b.ndim > 2:
            try:
                self.batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
            except ValueError:
                shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
                raise ValueError(f"a and b must have batch dimensions that broadcast, got shapes {shapes}") from None
        self.shape = (*self.batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))


def _array(xp: Namespace, p: _Product) -> Array:
    """Return the product, tile by tile: all products of a tile's elements, summed along k by a tree."""
    a = xp.matrix_transpose(p.a if p.a.ndim > 1 else p.a[None, :])[..., None]
    b = (p.b if p.b.ndim > 1 else p.b[:, None])[..., None, :]
    # Now a is (..., k, m, 1) and b is (..., k, 1, n): the product is the sum of a b along axis k.
    lengths = (*p.batch, a.shape[-3], a.shape[-2], b.shape[-1])
    a, b = (x[(None,) * (len(lengths) - x.ndim) + (...,)] for x in (a, b))
    working = ring_dtype(xp, p.dtype)
    tile = _tile_lengths(lengths, p.tile, dtype_bits(working) // 8)
    *outer, inner, rows, columns = (
        [slice(start, min(start + step, length)) for start in range(0, length, step)]
        for length, step in zip(lengths, tile, strict=True)
    )
    device = None if is_traced(p.a) or is_traced(p.b) else array_api_compat.device(p.a)
    product = xp.zeros((*p.batch, *lengths[-2:]), dtype=p.dtype, device=device)
    for *batch, row, column in itertools.product(*outer, rows, columns):
        total = None
        for k in inner:
            factors = (cast(xp, x[_of(x, (*batch, k, row, column))], working) for x in (a, b))
            (part,) = tree((operator.mul(*factors),), BUILT_IN["add"], len(lengths) - 3)
            total = part if total is None else total + part
        if total is not None:
            total = cast(xp, xp.squeeze(total, axis=-3), p.dtype)
            product = at(product)[(*batch, row, column)].set(total)
    return xp.reshape(product, p.shape)


def _of(x: Array, where: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the part of x that takes part at a place of the broadcast product."""
    return tuple(slice(None) if length == 1 else part for length, part in zip(x.shape, where, strict=True))


def _tile_lengths(lengths: tuple[int, ...], tile: tuple[int, int, int] | None, itemsize: int) -> list[int]:
    """Return how much of each axis of (..., k, m, n) is multiplied at once.

    Starting from everything, the longest axis is halved until the products are few enough; m, n and k only if they
    are not asked for.
    """
    block = max(_SMALLEST_BLOCK, min(math.prod(lengths) * itemsize // _TILES, _LARGEST_BLOCK))
    found = [max(length, 1) for length in lengths]
    free = len(found)
    if tile is not None:
        free -= 3
        m, n, k = tile
        found[free:] = (min(asked, length) for asked, length in zip((k, m, n), found[free:], strict=True))
    while math.prod(found) * itemsize > block and max(found[:free], default=1) > 1:
        longest = found.index(max(found[:free]))
        found[longest] = -(-found[longest] // 2)
    return found


def _native(xp: Namespace, p: _Product) -> Array:
    """Return the product by the library's own routine."""
    working = _native_dtype(xp, p)
    precision = {"precision": "highest"} if array_api_compat.is_jax_namespace(xp) else {}
    return cast(xp, xp.matmul(cast(xp, p.a, working), cast(xp, p.b, working), **precision), p.dtype)


def _native_dtype(xp: Namespace, p: _Product) -> Any:
    """Return the dtype to hand to the library: its own where it computes as promised, else a wider one."""
    if dtype_name(p.dtype) in SIXTEEN_BIT_FLOATS:
        # NumPy has no fast routine for these, and CuPy sums a single inner product in 16 bits.
        single = math.prod(p.shape) == 1
        wide = array_api_compat.is_numpy_namespace(xp) or (array_api_compat.is_cupy_namespace(xp) and single)
        return xp.float32 if wide else p.dtype
    return ring_dtype(xp, p.dtype)


def _native_refusal(xp: Namespace, p: _Product) -> str | None:
    if p.tile is not None:
        return f"the routine of {xp.__name__} takes no tile"
    if lacks_products(xp, p.a, p.dtype):
        return "PyTorch multiplies no integer matrices on a CUDA device"
    return None


_METHODS = Methods("matmul", native=Method(_native, _native_refusal), array=Method(_array))

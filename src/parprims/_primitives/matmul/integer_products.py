"""Exact products of integer matrices by float products, for which there is BLAS.

A float64 product is exact as long as all its sums stay within 2^53. If they might not, the numbers are cut into digits
with exact products, and these are combined modulo the range of the integers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import dtype_bits, dtype_kind

_PRODUCTS, _ROWS = 2**16, 4
"""The fewest products of elements, and rows and columns of the result, for a float product and its casts.

Measured on int8, int32 and int64, squares of 8 to 512, and 1000 columns of 1000 with 1 to 16 rows.
"""
_PRODUCTS_OF_TORCH = 2**23
"""The fewest products of elements if the alternative is PyTorch's product of integers."""

_MOST = {32: 1, 64: 3}
"""By the bits of integers: the most float products of whole matrices that take no longer than compiled loops."""


def is_large(a: Any, b: Any, library: str = "numpy") -> bool:
    """Return whether a float product of two matrices, or of batches, can take less time than an integer product."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    return bool(m * k * n >= (_PRODUCTS if library == "numpy" else _PRODUCTS_OF_TORCH) and min(m, n) >= _ROWS)


def product(
    a: Any, b: Any, dtype: Any, loops: Callable[[Any, Any], Any] | None = None, *, most: int | None = None
) -> Any:
    """Return the product of integer matrices in an integer dtype, in which it wraps around.

    ``loops`` is a compiled integer product, for numbers that would take more than ``most`` float products.
    """
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    sums = (k - 1).bit_length()
    width, other = (dtype_bits(x.dtype) - (dtype_kind(x.dtype) == "int") for x in (a, b))
    if width + other + sums > 53:
        width, other = _width(a), _width(b)
    plan = _plan(width, other, sums, dtype_bits(dtype))
    if loops is not None and (plan is None or len(plan[2]) > (most or _MOST[max(32, dtype_bits(dtype))])):
        return loops(a, b)
    if plan is None or m * k * n < len(plan[2]) * _PRODUCTS or min(m, n) < len(plan[2]) * _ROWS:
        return np.matmul(a.astype(dtype, copy=False), b.astype(dtype, copy=False))
    (first, count), (second, number), pairs = plan
    floats = np.float32 if first + second + sums <= 24 else np.float64
    xs, ys = _digits(a, first, count, floats), _digits(b, second, number, floats)
    total: Any = None
    for i, j in pairs:
        part = np.matmul(xs[i], ys[j]).astype(np.int64).view(np.uint64) << np.uint64(i * first + j * second)
        total = part if total is None else np.add(total, part, out=total)
    return total.view(np.int64).astype(dtype, copy=False) if dtype != np.uint64 else total


def _width(x: Any) -> int:
    """Return the number of bits of the largest absolute value."""
    return int(max(-int(x.min()), int(x.max()))).bit_length() if x.size else 0


@functools.lru_cache(maxsize=1024)
def _plan(
    width: int, other: int, sums: int, bits: int
) -> tuple[tuple[int, int], tuple[int, int], tuple[tuple[int, int], ...]] | None:
    """Return the widths and numbers of digits of both factors, and the fewest pairs of digits for an exact product.

    Pairs with products that are multiples of 2^bits add nothing. None if no digits are exact.
    """
    best = None
    for count, number in itertools.product(range(1, 5), repeat=2):
        first, second = max(1, -(-width // count)), max(1, -(-other // number))
        if first + second + sums > 53:
            continue
        places = itertools.product(range(count), range(number))
        pairs = tuple([(i, j) for i, j in places if i * first + j * second < bits])
        if best is None or len(pairs) < len(best[2]):
            best = (first, count), (second, number), pairs
    return best


def _digits(x: Any, width: int, count: int, floats: Any) -> list[Any]:
    """Return integers as digits, factors of powers of 2^width; only the last digit may be negative."""
    if count == 1:
        return [x.astype(floats)]
    x = x.astype(np.uint64 if dtype_kind(x.dtype) == "uint" else np.int64, copy=False)
    low, kind = (1 << width) - 1, x.dtype.type
    digits = [((x >> kind(index * width)) & kind(low)).astype(floats) for index in range(count - 1)]
    return [*digits, (x >> kind((count - 1) * width)).astype(floats)]

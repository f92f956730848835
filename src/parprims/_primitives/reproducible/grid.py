"""Floats as integers on a grid, sums of which are exact, and the float nearest to a sum.

The grid of a line is a power of two, chosen by the line's largest magnitude m: with m < 2^E, an element x becomes the
integer nearest to x 2^(B - E), ties to even. So every element has at most B bits, and n of them add up to less than
2^63. B is 63 - max(20, ceil(log2 n)). Elements of float64 take a second integer for the rest.

Integers add up to the same sum in any order. All that is computed in floats is exact, but for two roundings: that of an
element to the grid, and that of the sum. See J. Demmel and H. D. Nguyen, "Parallel reproducible summation", IEEE
Transactions on Computers 64, 2015.

Elements that are not finite become flags. Where a line has such an element, all finite elements become 0, and every
plus infinity adds 1, every minus infinity 2^32, and every NaN both.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, cast, device, dtype_bits, dtype_name, namespace_of
from parprims._operators.operator import Operator
from parprims._operators.tracing import Scalar
from parprims._primitives.sort.call import FRACTION_BITS, bits, can_view, flushes

MOST_TERMS = 2**32 - 1
"""The most terms of a sum, so that flags can be counted."""

FEWEST_BITS_OF_COUNT = 20
"""The logarithm of the number of terms up to which all sums have the same grid."""

_INT64_FLAG = 2**32


def _add_words(one: Any, other: Any) -> Any:
    return one[0] + other[0], one[1] + other[1]


ADD_WORDS = Operator(_add_words, identity=(0, 0), commutative=True, name="add", components=2)
"""Sums of integers of two words."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """The integers of a sum.

    Parameters
    ----------
    words : int
        The number of integers of an element: 1, or 2 for float64.
    first : int
        The bits of the first integer.
    second : int
        The bits behind the first integer's that the second has.
    """

    words: int
    first: int
    second: int

    @staticmethod
    def of(dtype: str, n: int) -> Grid:
        """Return the grid for n terms, computed in float32 or float64."""
        count = max(FEWEST_BITS_OF_COUNT, (max(n, 1) - 1).bit_length())
        return Grid(1, 63 - count, 0) if dtype == "float32" else Grid(2, 62 - count, 63 - count)


# ---- The magnitude of a line ------------------------------------------------------------------------------------


def _magnitude16(pattern: Any) -> Any:
    return pattern & 0x7FFF


def _magnitude32(pattern: Any) -> Any:
    return pattern & 0x7FFFFFFF


def _magnitude64(pattern: Any) -> Any:
    return pattern & 0x7FFFFFFFFFFFFFFF


MAGNITUDES: dict[int, Callable[[Any], Any]] = {16: _magnitude16, 32: _magnitude32, 64: _magnitude64}
"""The maps from the bits of floats to the bits of their magnitudes, by width. Bits of magnitudes have their order."""


@functools.cache
def finite_magnitude(dtype: str) -> Callable[[Any], Any]:
    """Return the map to the bits of magnitudes that takes elements that are not finite for zeros."""
    magnitude = MAGNITUDES[dtype_bits(dtype)]
    infinity = (2 ** (dtype_bits(dtype) - FRACTION_BITS[dtype] - 1) - 1) << FRACTION_BITS[dtype]

    def of(pattern: Any) -> Any:
        found = magnitude(pattern)
        xp = namespace_of(found)
        return xp.where(found < infinity, found, xp.zeros_like(found))

    return of


@dataclasses.dataclass(frozen=True)
class Top:
    """The largest magnitudes of lines: each is less than 2^exponent, or the line is not finite."""

    exponent: Array
    finite: Array

    @staticmethod
    def of(xp: Namespace, largest: Array, dtype: Any) -> Top:
        """Return the tops, given the bits of the largest magnitudes of floats of a dtype."""
        fraction = FRACTION_BITS[dtype_name(dtype)]
        field = cast(xp, largest, xp.int64) >> fraction
        infinite = 2 ** (dtype_bits(dtype) - fraction - 1) - 1
        least = xp.where(field < 1, xp.ones_like(field), field)  # subnormal numbers have the exponent of field 1
        return Top(least - (infinite // 2 - 1), field < infinite)

    @staticmethod
    def of_products(tops: list[Top]) -> Top:
        """Return the top of the products of elements of lines."""
        first, *others = tops
        for one in others:
            first = Top(first.exponent + one.exponent, first.finite & one.finite)
        return first


@functools.cache
def _powers() -> Any:
    return np.ldexp(1.0, np.arange(-1022, 1024))


def power(xp: Namespace, exponent: Array) -> Array:
    """Return 2^exponent as float64; exponents are int64, from -1022 to 1023."""
    if can_view(exponent):
        return ((exponent + 1023) << 52).view(xp.float64)
    if isinstance(exponent, Scalar):
        return _power_by_squares(xp, exponent)
    table = xp.asarray(_powers(), dtype=xp.float64, device=device(exponent))
    return xp.reshape(xp.take(table, xp.reshape(exponent + 1022, (-1,)), axis=0), exponent.shape)


def _power_by_squares(xp: Namespace, exponent: Any) -> Any:
    """Return 2^exponent in the language of kernels, which has no views of bits. All products are exact."""
    whole, left = xp.astype(xp.ones_like(exponent), xp.float64), abs(exponent)
    for bit in range(10):
        square = xp.where(exponent < 0, xp.full_like(whole, 2.0 ** -(2**bit)), 2.0 ** (2**bit))
        whole = xp.where((left >> bit) & 1 == 1, whole * square, whole)
    return whole


def halves(xp: Namespace, exponent: Array) -> tuple[Array, Array]:
    """Return two powers of two with the product 2^exponent, which itself need not be a float64."""
    half = exponent >> 1
    return power(xp, half), power(xp, exponent - half)


def or_else(xp: Namespace, finite: Array, factor: Array, otherwise: int) -> Array:
    """Return the factor for lines that are finite, and a constant for others."""
    return xp.where(finite, factor, xp.full_like(factor, otherwise))


# ---- Where the library takes subnormal numbers for zeros --------------------------------------------------------


def rescued(xp: Namespace, x: Array, factor: Array, factor2: Array, finite: Array) -> Array:
    """Return x factor factor2 for x of float64, computed without subnormal operands; x itself in other lines.

    There a subnormal number becomes another finite number of its sign.
    """
    pattern = bits(xp, x)
    magnitude = _magnitude64(pattern)
    whole = xp.astype(xp.where(pattern < 0, -magnitude, magnitude), xp.float64)  # 2^1074 x if x is subnormal
    small = [or_else(xp, finite, one * 2.0**-537, 1) for one in (factor, factor2)]
    large = [or_else(xp, finite, one, 1) for one in (factor, factor2)]
    return xp.where(magnitude < 2**52, whole * small[0] * small[1], x * large[0] * large[1])


# ---- Elements as integers: maps of kernels ----------------------------------------------------------------------


def flags_of(xp: Any, value: Any) -> Any:
    """Return the flags of values that are not finite, and other integers for finite values."""
    return xp.astype(~(value < 0), xp.int64) + xp.astype(~(value > 0), xp.int64) * _INT64_FLAG


def _integer(xp: Any, scaled: Any) -> Any:
    """Return the integer nearest to a scaled value."""
    return xp.astype(xp.round(scaled), xp.int64)


def _word(xp: Any, value: Any, scaled: Any) -> Any:
    """Return the integer nearest to a scaled value, or the flags of a value that is not finite."""
    return xp.where(xp.isfinite(value), _integer(xp, scaled), flags_of(xp, value))


def _rest(xp: Any, value: Any, scaled: Any, second: Any) -> Any:
    """Return the second integer of a scaled value."""
    rest = _integer(xp, (scaled - xp.round(scaled)) * second)
    return xp.where(xp.isfinite(value), rest, xp.zeros_like(rest))


@dataclasses.dataclass(frozen=True)
class Maps:
    """Maps from elements and factors to integers.

    Parameters
    ----------
    each : tuple of callable
        Makes each integer alone. The first is the flags of an element that is not finite.
    all : callable
        Makes all integers.
    finite : callable
        Makes all integers of a finite element, as a tuple. For one integer it takes two factors, which are of float32
        unless elements are products.
    """

    each: tuple[Callable[..., Any], ...]
    all: Callable[..., Any]
    finite: Callable[..., tuple[Any, ...]]


@functools.cache
def maps(grid: Grid, product: bool) -> Maps:
    """Return the maps of elements, or of products of elements. The product of all factors is the scale."""
    second = 2.0**grid.second

    def one_word(x: Any, factor: Any) -> Any:
        xp = namespace_of(x)
        value = xp.astype(x, xp.float64)
        return _word(xp, value, value * factor)

    def one_word_of_product(x: Any, y: Any, factor: Any) -> Any:
        xp = namespace_of(x)
        value = xp.astype(x, xp.float64) * xp.astype(y, xp.float64)  # exact
        return _word(xp, value, value * factor)

    def finite_word(x: Any, factor: Any, factor2: Any) -> tuple[Any]:
        return (_integer(namespace_of(x), x * factor * factor2),)

    def finite_word_of_product(x: Any, y: Any, factor: Any, factor2: Any) -> tuple[Any]:
        xp = namespace_of(x)
        return (_integer(xp, xp.astype(x, xp.float64) * xp.astype(y, xp.float64) * factor * factor2),)

    def scaled(x: Any, factor: Any, factor2: Any) -> tuple[Any, Any]:
        return x, x * factor * factor2

    def scaled_product(x: Any, y: Any, factor: Any, factor2: Any, factor3: Any) -> tuple[Any, Any]:
        value = (x * factor) * (y * factor2)
        return value, value * factor3

    value_and_scaled = scaled_product if product else scaled

    def first_word(x: Any, *others: Any) -> Any:
        return _word(namespace_of(x), *value_and_scaled(x, *others))

    def second_word(x: Any, *others: Any) -> Any:
        return _rest(namespace_of(x), *value_and_scaled(x, *others), second)

    def two_words(x: Any, *others: Any) -> Any:
        xp, pair = namespace_of(x), value_and_scaled(x, *others)
        return _word(xp, *pair), _rest(xp, *pair, second)

    def two_finite_words(x: Any, *others: Any) -> tuple[Any, Any]:
        xp, (_, scaled) = namespace_of(x), value_and_scaled(x, *others)
        whole = xp.round(scaled)
        return xp.astype(whole, xp.int64), _integer(xp, (scaled - whole) * second)

    if grid.words == 2:
        return Maps((first_word, second_word), two_words, two_finite_words)
    word = one_word_of_product if product else one_word
    return Maps((word,), word, finite_word_of_product if product else finite_word)


# ---- Sums as floats ---------------------------------------------------------------------------------------------


def _odd(xp: Namespace, total: Array, *, shift: int, most_bits: int, scale: _Scale) -> tuple[Array, Array]:
    """Return integers of at most ``most_bits`` bits, and their scales, that round as the given integers do.

    Whatever is cut off makes the last bit 1. Floats with at least two bits fewer then round to the same.
    """
    power = scale.zero(xp, total)
    for _ in range(-(-(63 - most_bits) // shift)):
        long = xp.where(total < 0, ~total, total) >= 2**most_bits
        cut = (total >> shift) | xp.astype((total & (2**shift - 1)) != 0, total.dtype)
        total, power = xp.where(long, cut, total), xp.where(long, scale.raised(power, shift), power)
    return total, power


def _sum_of_words(xp: Namespace, first: Array, second: Array, *, width: int) -> Array:
    """Return the floats of 53 bits nearest to first + second 2^-width, for less than 2^62."""
    first, second = first + (second >> width), second & (2**width - 1)
    high, low = xp.astype(first >> 32, xp.float64) * 2.0**32, xp.astype(first & (2**32 - 1), xp.float64)
    whole = high + low
    # Exact: an integer of few bits, which is 0 unless the sum has more than 53, and a fraction of at most 43 bits.
    rest = (low - (whole - high)) + xp.astype(second, xp.float64) * 2.0**-width
    return whole + rest


@dataclasses.dataclass(frozen=True)
class _Scale:
    """How powers of two are kept: as their exponents, which are integers, or as floats, each of at most 2^63."""

    floats: bool

    def zero(self, xp: Namespace, like: Array) -> Array:
        """Return the power of exponent 0."""
        return xp.astype(xp.ones_like(like), xp.float64) if self.floats else xp.zeros_like(like)

    def raised(self, power: Array, by: int) -> Array:
        """Return the power with an exponent that is so much larger."""
        return power * 2.0**by if self.floats else power + by


def _rounded(xp: Namespace, grid: Grid, words: tuple[Array, ...], name: str, *, scale: _Scale) -> tuple[Array, Array]:
    """Return floats that round to a dtype as sums of integers do, in units of the first, and their scales."""
    if grid.words == 2:
        return _sum_of_words(xp, words[0], words[1], width=grid.second), scale.zero(xp, words[0])
    number, power = _odd(xp, words[0], shift=10, most_bits=53 if name == "float32" else 23, scale=scale)
    return xp.astype(number, xp.float64), power


def nearest_by_factors(
    xp: Namespace, grid: Grid, words: tuple[Array, ...], factors: tuple[Array, Array], *, dtype: Any
) -> Array:
    """Return the floats nearest to sums of integers, as `nearest` does, inside a kernel.

    The product of the two factors is a power of two, the unit of the first integer: 2^-exponent of `nearest`.
    """
    number, power = _rounded(xp, grid, words, dtype_name(dtype), scale=_Scale(floats=True))
    return _as_float(xp, number * power, factors, dtype)


def nearest_of_floats(xp: Namespace, total: Array, factors: tuple[Array, Array]) -> Array:
    """Return the float32 nearest to a sum of integers of elements of float32, inside a kernel.

    The factors are of float32. Elements are multiples of the least subnormal number, and so is their sum: where it is
    subnormal, it is exact, and elsewhere the conversion of the integer rounds it.
    """
    return xp.astype(total, xp.float32) * factors[0] * factors[1]


def nearest(xp: Namespace, grid: Grid, words: tuple[Array, ...], *, exponent: Array, dtype: Any) -> Array:
    """Return the floats of a dtype nearest to sums of integers times 2^-exponent, the unit of the first.

    A sum of zero is plus zero. 16-bit floats are rounded once too.
    """
    number, more = _rounded(xp, grid, words, dtype_name(dtype), scale=_Scale(floats=False))
    limit = xp.full_like(exponent, 1300)  # beyond it, floats are zero or infinite too
    exponent = xp.where(exponent - more > limit, limit, xp.where(exponent - more < -limit, -limit, exponent - more))
    return _as_float(xp, number, halves(xp, -exponent), dtype)


def flagged(xp: Namespace, result: Array, finite: Array, flags: Array) -> Array:
    """Return sums of floats, and where they are not finite, what the sum of flags says."""
    plus, minus = (flags & (_INT64_FLAG - 1)) != 0, (flags >> 32) != 0
    infinity = xp.full_like(result, np.inf)
    infinity = xp.where(plus, xp.where(minus, xp.full_like(result, np.nan), infinity), -infinity)
    return xp.where(finite, result, infinity)


def _as_float(xp: Namespace, number: Array, factors: tuple[Array, Array], dtype: Any) -> Array:
    """Return a product of float64 in a dtype, subnormal where it must be."""
    name = dtype_name(dtype)
    product = number * factors[0] * factors[1]
    # Libraries cast float64 to 16 bits by way of float32, which holds every number of 23 bits.
    result = (
        cast(xp, cast(xp, product, xp.float32), dtype) if name in ("float16", "bfloat16") else cast(xp, product, dtype)
    )
    if not flushes(xp, dtype):
        return result
    width, fraction = dtype_bits(dtype), FRACTION_BITS[name]
    bias = 2 ** (width - fraction - 2) - 1
    unit = bias - 1 + fraction  # the least subnormal number is 2^-unit
    whole = number * (factors[0] * 2.0 ** (unit // 2)) * (factors[1] * 2.0 ** (unit - unit // 2))
    pattern = xp.astype(xp.round(abs(whole)), getattr(xp, f"int{width}"))
    pattern = xp.where(number < 0, pattern | xp.iinfo(pattern.dtype).min, pattern)
    return xp.where(abs(whole) < 2.0**fraction, pattern.view(dtype), result)

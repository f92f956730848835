"""The record of a checked sum with the same bits everywhere, the check that makes it, and its computation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from parprims import _cpu, _cuda
from parprims._core.arrays import (
    Array,
    Namespace,
    broadcast_shapes,
    cast,
    compute_dtype,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    mode,
    namespace_of,
)
from parprims._dispatch.composite import Compose, Composed, Part, by_parts, stand_in
from parprims._dispatch.dispatch import Inside, Method
from parprims._dispatch.primitive import Arguments
from parprims._operators.foreign.jax_programs import dtypes_of_64_bits
from parprims._operators.foreign.names import Dtype
from parprims._operators.operator import BUILT_IN, Operator
from parprims._primitives.reduce.call import checked as checked_reduction
from parprims._primitives.reduce.call import checked_pair as checked_dot_product
from parprims._primitives.reduce.call import conjugate_product, result_dtypes
from parprims._primitives.reduce.public import map_reduce, sum
from parprims._primitives.reproducible import grid
from parprims._primitives.reproducible.grid import ADD_WORDS, MAGNITUDES, Grid, Top, finite_magnitude, flags_of, maps
from parprims._primitives.sort.call import bits, flushes, widened
from parprims._primitives.vecdot.public import vecdot


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OnGrid(Composed):
    """A checked call that adds integers. ``terms`` is the number of terms, ``working`` the dtype of the grid."""

    terms: int
    working: str

    @property
    def grid(self) -> Grid:
        """The integers of the terms. A program for any number of terms has no grid until it runs."""
        return Grid.of(self.working, self.terms)

    @property
    def dtype(self) -> str:
        """The name of the dtype of the sums."""
        return dtype_name(self.results[0][1])


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sum(OnGrid):
    """A checked sum of real floats: one array, or two arrays with products as terms.

    Parameters
    ----------
    shape : tuple of int
        The shape of the terms.
    axes : tuple of int
        The axes to sum over, counted from the front.
    keepdims : bool
        Whether they stay, with length 1.
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    keepdims: bool

    @property
    def product(self) -> bool:
        """Whether the terms are products."""
        return len(self.arrays) == 2

    def own_axes(self, x: Array) -> tuple[int, ...]:
        """Return the axes in an array, which may lack leading axes of the terms."""
        return tuple([axis - len(self.shape) + x.ndim for axis in self.axes])


@dataclasses.dataclass(frozen=True)
class Plain:
    """A call that is exact without further work."""

    asked: Arguments


def wide(xp: Namespace) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX has 64-bit dtypes."""
    return dtypes_of_64_bits(is_jax(xp) and not mode(xp))


# ---- Checks -----------------------------------------------------------------------------------------------------


def checked(asked: Arguments) -> tuple[Namespace, Sum | Plain]:
    """Return the namespace and the checked call."""
    xp, r = (checked_dot_product if asked.name == "vecdot" else checked_reduction)(asked)
    check_sum(r.op, asked["initial"], single=r.single or asked.name == "vecdot")
    arrays = r.arrays
    (dtype,) = result_dtypes(xp, r, (arrays[0].dtype,))
    if dtype_kind(dtype) not in ("float", "complex"):
        return xp, Plain(asked)
    working = check_real(xp, dtype)
    if r.fn is conjugate_product:
        shape = broadcast_shapes(*[tuple(x.shape) for x in arrays])
        axes = tuple([axis - arrays[0].ndim + len(shape) for axis in r.axes])
    else:
        shape, axes = r.shape, r.axes
    whole = dataclasses.replace(r, shape=shape, axes=axes)
    arrays = tuple([as_terms(xp, x, working) for x in arrays])
    check_count(whole.n)
    return xp, Sum(
        arrays=arrays,
        key=asked.key_of(*arrays),
        results=((whole.result_shape, dtype),),
        single=True,
        shape=shape,
        axes=axes,
        keepdims=r.keepdims,
        terms=whole.n,
        working=dtype_name(working),
    )


def check_sum(op: Any, initial: Any, *, single: bool) -> None:
    """Raise ValueError unless a call is a plain sum."""
    if op is not BUILT_IN["add"]:
        raise ValueError(f"reproducible must be None with op {op.name}: only sums have the same bits everywhere")
    if initial is not None:
        raise ValueError("reproducible must be None with initial: add it to the result, or make it an element of x")
    if not single:
        raise ValueError("reproducible must be None for elements of several components")


def check_real(xp: Namespace, dtype: Any) -> Any:
    """Return the dtype that sums of a floating dtype are computed in; raise TypeError if it is complex."""
    if dtype_kind(dtype) == "complex":
        raise TypeError(
            f"x must be real with reproducible, got {dtype_name(dtype)}: sum real and imaginary parts separately"
        )
    return compute_dtype(xp, dtype)


def check_count(n: int) -> None:
    """Raise ValueError if there are too many terms."""
    if type(n) is int and n > grid.MOST_TERMS:
        raise ValueError(f"x must have at most 2^32 - 1 terms in a sum with reproducible, got {n}")


def as_terms(xp: Namespace, x: Array, working: Any) -> Array:
    """Return terms in the dtype of the grid; floats of 16 bits stay as they are."""
    if dtype_kind(x.dtype) == "float" and dtype_name(working) == "float32" and dtype_name(x.dtype) != "float64":
        return x
    return widened(xp, x, working) if dtype_kind(x.dtype) == "float" else cast(xp, x, working)


# ---- Computation ------------------------------------------------------------------------------------------------


def parts(xp: Namespace, c: Sum, name: str) -> list[Part]:
    """Return the passes over the terms, which decide on the method."""
    shape = tuple([1 if axis in c.axes else n for axis, n in enumerate(c.shape)])
    factors = [stand_in(xp, c.arrays[0], shape, xp.float64)] * (1 if c.grid.words == 1 else 1 + len(c.arrays))
    given = *c.arrays, *factors
    return [(map_reduce, (one, *given), {"op": op, "axis": c.axes}) for one, op in _passes(c, name)]


def _passes(c: Sum, method: str) -> list[tuple[Callable[..., Any], Any]]:
    """Return the maps and operators of the passes over the terms: a single pass by kernel, else one for each word."""
    found = maps(c.grid, c.product)
    if c.grid.words == 2 and method == "kernel":
        return [(found.all, ADD_WORDS)]
    return [(one, "add") for one in found.each]


def compute(xp: Namespace, c: Sum, method: str) -> Array:
    """Return the sums by a method."""
    ((shape, dtype),) = c.results
    if 0 in c.shape:
        return xp.zeros(shape, dtype=dtype, device=device(c.arrays[0]))
    tops = tops_of(xp, largest(xp, c, method), [x.dtype for x in c.arrays])
    totals = integers(xp, c, tops, method)
    result = rounded(xp, c.grid, tops, totals, dtype=dtype)
    return result if tuple(result.shape) == shape else xp.reshape(result, shape)


def largest(xp: Namespace, c: Sum, method: str) -> tuple[Array, ...]:
    """Return the bits of the largest magnitudes of the lines of each array. The lines keep their axes."""
    pairs = [(x, MAGNITUDES[dtype_bits(x.dtype)]) for x in c.arrays]
    return tuple([largest_of(xp, x, magnitude, c.own_axes(x), method=method) for x, magnitude in pairs])


def largest_of(
    xp: Namespace, x: Array, magnitude: Callable[[Any], Any], axes: tuple[int, ...], *, method: str
) -> Array:
    """Return the largest bits of magnitudes along axes, zeros if there are no elements. The axes stay."""
    pattern = bits(xp, x)
    if 0 in x.shape:
        shape = tuple([1 if axis in axes else n for axis, n in enumerate(x.shape)])
        return xp.zeros(shape, dtype=pattern.dtype, device=device(x))
    found: Array = map_reduce(magnitude, pattern, op="maximum", axis=axes, keepdims=True, method=method)
    return found


def largest_finite(xp: Namespace, x: Array, axes: tuple[int, ...], method: str) -> tuple[Array, ...]:
    """Return the bits of the largest finite magnitude along axes, which stay; zeros if there are no elements."""
    return (largest_of(xp, x, finite_magnitude(dtype_name(x.dtype)), axes, method=method),)


def tops_of(xp: Namespace, found: tuple[Array, ...], dtypes: Sequence[Any]) -> list[Top]:
    """Return the tops, given the bits of the largest magnitudes of arrays of these dtypes."""
    return [Top.of(xp, one, dtype) for one, dtype in zip(found, dtypes, strict=True)]


def integers(xp: Namespace, c: Sum, tops: list[Top], method: str) -> tuple[Array, ...]:
    """Return the sums of all integers of lines, or of the flags of lines that are not finite."""
    given = on_grid(xp, c.grid, c.arrays, tops, in_kernel=method == "kernel")
    return added(_passes(c, method), given, c.axes, method)


def added(
    passes: list[tuple[Callable[..., Any], Any]], given: tuple[Array, ...], axes: tuple[int, ...], method: str
) -> tuple[Array, ...]:
    """Return the sums of the maps of terms and their factors. The axes stay."""
    totals = [map_reduce(one, *given, op=op, axis=axes, keepdims=True, method=method) for one, op in passes]
    return totals[0] if isinstance(totals[0], tuple) else tuple(totals)


def rounded(xp: Namespace, on: Grid, tops: list[Top], totals: tuple[Array, ...], *, dtype: Any) -> Array:
    """Return sums in a dtype, given the sums of integers or flags."""
    top = Top.of_products(tops)
    result = grid.nearest(xp, on, totals, exponent=on.first - top.exponent, dtype=dtype)
    return grid.flagged(xp, result, top.finite, totals[0])


def on_grid(
    xp: Namespace, on: Grid, arrays: tuple[Array, ...], tops: list[Top], *, in_kernel: bool
) -> tuple[Array, ...]:
    """Return the arguments of the maps of a grid from terms to integers.

    Outside of kernels, a library may take subnormal numbers for zeros.
    """
    top = Top.of_products(tops)
    scale = on.first - top.exponent
    if on.words == 1:
        arrays = arrays if in_kernel else tuple([widened(xp, x, xp.float64) for x in arrays])
        return *arrays, grid.or_else(xp, top.finite, grid.power(xp, scale), 0)
    # A product of elements that are scaled to less than 4 does not overflow.
    pairs = [grid.halves(xp, scale)] if len(tops) == 1 else [_below_4(xp, one) for one in tops]
    if not in_kernel and flushes(xp, arrays[0].dtype):
        triples = zip(arrays, pairs, tops, strict=True)
        arrays = tuple([grid.rescued(xp, x, *pair, one.finite) for x, pair, one in triples])
        pairs = [(xp.ones_like(one), xp.ones_like(one)) for one, _ in pairs]
    if len(tops) == 1:
        return *arrays, grid.or_else(xp, top.finite, pairs[0][0], 0), pairs[0][1]
    last = xp.full_like(pairs[0][0] * pairs[1][0], 2.0 ** (on.first - 4))
    each = [grid.or_else(xp, one.finite, factor, 1) for (factor, _), one in zip(pairs, tops, strict=True)]
    return *arrays, *each, grid.or_else(xp, top.finite, last, 0)


def _below_4(xp: Namespace, top: Top) -> tuple[Array, Array]:
    """Return two powers of two that scale elements to less than 4; the second is 1."""
    factor = grid.power(xp, 2 - top.exponent)
    return factor, xp.ones_like(factor)


# ---- Functions of elements, by one kernel -----------------------------------------------------------------------


def in_kernels(xp: Namespace, arrays: tuple[Array, ...], method: str) -> bool:
    """Return whether kernels for GPUs compute with arrays, outside of programs, by this method."""
    return method == "kernel" and not is_jax(xp) and not _cpu.on_cpu(xp, arrays) and _cuda.refusal(xp, arrays) is None


def by_one_kernel(function: Callable[..., tuple[Any, ...]], *arrays: Array) -> tuple[Array, ...]:
    """Return a function of the elements of arrays, which broadcast: a launch in place of one for each operation.

    The function is a `functools.partial` of one of this package and of plain values, so that it can be remembered.
    """
    whole = [x[..., None] for x in arrays]
    found: tuple[Array, ...] = map_reduce(function, *whole, op=ONLY, axis=-1, method=Inside("kernel"))
    return found


ONLY = Operator(lambda earlier, _: earlier, name="first")
"""The operator of lines of one element."""


def factors_of(on: Grid, dtype: str, found: Array) -> tuple[Array, ...]:
    """Return the factors of `integers_of`, given the bits of the largest magnitudes of floats of a dtype."""
    return by_one_kernel(functools.partial(_factors, dataclasses.astuple(on), dtype), found)


def integers_of(on: Grid, x: Array, factors: tuple[Array, ...], *, flags: bool = False) -> tuple[Array, ...]:
    """Return the integers of every element, which of elements that are not finite are flags.

    With ``flags`` these integers are zeros, and flags of all elements come last.
    """
    function = _integers_and_flags if flags else _integers
    return by_one_kernel(functools.partial(function, dataclasses.astuple(on)), x, *factors)


def sums_of(on: Grid, dtype: Any, found: Array, totals: tuple[Array, ...], *, of: str, flags: bool = False) -> Array:
    """Return the sums in a dtype, given the largest magnitudes of floats of the dtype ``of``, and sums of integers."""
    function = _sums_by_flags if flags else _sums
    on_and_dtypes = dataclasses.astuple(on), of, dtype_name(dtype)
    (result,) = by_one_kernel(functools.partial(function, *on_and_dtypes), found, *totals)
    return result


def _factors(on: tuple[int, ...], dtype: str, found: Any) -> tuple[Any, ...]:
    xp = namespace_of(found)
    return on_grid(xp, Grid(*on), (), tops_of(xp, (found,), [Dtype(dtype)]), in_kernel=True)


def _integers(on: tuple[int, ...], *given: Any) -> tuple[Any, ...]:
    found = maps(Grid(*on), False).all(*given)
    return found if isinstance(found, tuple) else (found,)


def _integers_and_flags(on: tuple[int, ...], x: Any, *factors: Any) -> tuple[Any, ...]:
    xp = namespace_of(x)
    finite, flags = xp.isfinite(x), flags_of(xp, x)
    words = _integers(on, xp.where(finite, x, xp.zeros_like(x)), *factors)
    return *words, xp.where(finite, xp.zeros_like(flags), flags)


def _sums(on: tuple[int, ...], of: str, dtype: str, found: Any, *totals: Any) -> tuple[Any, ...]:
    xp = namespace_of(found)
    return (rounded(xp, Grid(*on), tops_of(xp, (found,), [Dtype(of)]), totals, dtype=Dtype(dtype)),)


def _sums_by_flags(on: tuple[int, ...], of: str, dtype: str, found: Any, *totals: Any) -> tuple[Any, ...]:
    xp = namespace_of(found)
    (top,) = tops_of(xp, (found,), [Dtype(of)])
    return (each_rounded(xp, Grid(*on), top, totals, dtype=Dtype(dtype)),)


# ---- Integers of each element -----------------------------------------------------------------------------------


def each_integer(xp: Namespace, on: Grid, x: Array, top: Top) -> tuple[Array, ...]:
    """Return the integers of every element, and flags. Elements that are not finite have integers of zero.

    The top is that of the finite elements.
    """
    finite, flags = xp.isfinite(x), flags_of(xp, x)
    given = on_grid(xp, on, (xp.where(finite, x, xp.zeros_like(x)),), [top], in_kernel=False)
    return *[one(*given) for one in maps(on, False).each], xp.where(finite, xp.zeros_like(flags), flags)


def each_rounded(xp: Namespace, on: Grid, top: Top, sums: tuple[Array, ...], *, dtype: Any) -> Array:
    """Return sums in a dtype, given sums of integers and of flags."""
    *words, flags = sums
    result = grid.nearest(xp, on, tuple(words), exponent=on.first - top.exponent, dtype=dtype)
    return grid.flagged(xp, result, flags == 0, flags)


# ---- Methods ----------------------------------------------------------------------------------------------------


def in_wide(function: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a function of a namespace and other arguments that runs where JAX has 64-bit dtypes."""

    def run(xp: Namespace, *arguments: Any) -> Any:
        assert function is not None
        with wide(xp):
            return function(xp, *arguments)

    return run


def by_integers(name: str, compute: Compose, parts: Callable[[Namespace, Any, str], list[Part]]) -> Method:
    """Return the method of this name that computes by sums of integers. ``parts`` takes the name too."""
    made = by_parts(name, in_wide(compute), lambda xp, c: parts(xp, c, name))
    return dataclasses.replace(made, refusal=in_wide(made.refusal), slower=in_wide(made.slower))


def plain(c: Sum) -> Callable[..., Array]:
    """Return the sum of floats as a function of the arrays of a call, which has the derivative."""
    ((_, dtype),) = c.results
    axes, keepdims = c.axes, c.keepdims
    if c.product:
        return functools.partial(vecdot, axis=axes[0] - len(c.shape))

    def total(x: Array) -> Array:
        result: Array = sum(x, axis=axes, keepdims=keepdims, dtype=dtype)
        return result

    return total

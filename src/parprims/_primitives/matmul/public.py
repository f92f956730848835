"""Matrix product: c[i, j] = a[i, 0] b[0, j] + a[i, 1] b[1, j] + ..., by sum and product or any other two operators."""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Never

import array_api_compat
import numpy as np
from array_api_extra import at

from parprims import _cpu, _cuda
from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    admit,
    as_result,
    broadcast_shapes,
    cast,
    check_choice,
    check_kind,
    compute_dtype,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    is_split,
    is_tensor,
    is_traced,
    lacks_arithmetic,
    lacks_products,
    library,
    mode,
    ring_dtype,
    shown,
    spoken,
)
from parprims._core.options import made_plain
from parprims._core.other_words import unknown_option
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device
from parprims._dispatch.dispatch import (
    Abstract,
    Checked,
    Method,
    Methods,
    call_key,
    devices,
    directly,
    entered,
    in_graph,
    nodes,
    recalled,
)
from parprims._libraries.numpy_bridge import as_numpy, has_values, in_numpy, returned
from parprims._libraries.settings import (
    UNROUNDED_SUMS,
    compiling,
    float32_products,
    may_round_sums,
    narrowed,
    narrowed_in_cupy,
)
from parprims._libraries.steps import in_programs
from parprims._operators.function_key import lasting_key
from parprims._operators.in_place import Few, harmless, is_own
from parprims._operators.operator import BUILT_IN, Operator, as_operator, check_components
from parprims._primitives.matmul import cpu, crossover, cuda, integer_products
from parprims._primitives.matmul.tile_loop import tiles_in_a_loop
from parprims._primitives.matmul.tiles import KERNELS, Arithmetic, impossible
from parprims._primitives.reduce.array import tree

# The default tile's products take at most 2^28 bytes, and no fewer than 2^22 where there are as many. In between
# they grow with the problem, so that it is cut into about 2^7 tiles: that bounds the length of PyTorch's programs.
_SMALLEST_BLOCK, _LARGEST_BLOCK, _TILES = 2**22, 2**28, 2**7

_LOOP_BLOCK = 2**20
"""The bytes of products of JAX's tiles: they stay in a core's cache."""

_PRECISIONS = ("float32", "tf32", "highest", "residues")

_ADD, _MULTIPLY, _FLOAT32, _AUTO = "add", "multiply", "float32", "auto"
"""The defaults of `matmul`."""


@partial(entered, state=float32_products)
def matmul(
    a: Array,
    b: Array,
    /,
    *,
    add: str | Operator | Callable[..., Any] = _ADD,
    multiply: str | Operator | Callable[..., Any] = _MULTIPLY,
    precision: str = _FLOAT32,
    kernel: str | None = None,
    tile: int | tuple[int, int, int] | None = None,
    method: str = _AUTO,
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Multiply matrices, c[i, j] = sum over k of a[i, k] b[k, j]: the array API standard's ``matmul``.

    The sum and the product may be any two operators: ``matmul(a, b, add="minimum", multiply="add")`` prolongs shortest
    paths, ``add="logaddexp", multiply="add"`` multiplies probabilities given by their logarithms.

    Parameters
    ----------
    a, b : array
        The factors, of shapes (..., m, k) and (..., k, n) and of numeric dtypes that promote together (bool too where
        the operators take it). The other axes hold batches of matrices and broadcast. A one-dimensional factor is a
        vector of length k, and the result then lacks the axis of length m or n.
    add : str, Operator or callable
        What combines the products, associative, in the order of k.
    multiply : str, Operator or callable
        What makes a product of an element of a and one of b, in this order.
    precision : {"float32", "tf32", "highest", "residues"}
        How exactly float32 factors are multiplied: with errors like those of a chain of float32 products and sums; with
        factors that may be rounded, or cut, to 10 fraction bits first; or in float64, rounded once. Residues are as
        exact as the default, and faster for large matrices of float32 and float64 where integers on tensor cores are.
        Other factors have but one precision, the default.
    kernel : {"naive", "tiled", "packed", "conflict_free", "tensor"}, optional
        Which kernel is to run, by method kernel; the best for the call if not given.
    tile : int or sequence of int, optional
        The lengths of m, n and k that are multiplied at once, by ``array`` or by a block of the kernel, which for
        naive and tiled ones has m n threads; one number stands for all three.
    method : {"auto", "native", "kernel", "array"}, default "auto"
        Implementation to use; see `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map` the axes of the mesh, on PyTorch the group of processes, that
        k is split over in both factors: docs/devices.md.

    Returns
    -------
    array
        The product, of shape (..., m, n) and of the promoted dtype; where k is 0 the identity of add, zero.

    Raises
    ------
    TypeError
        If a factor is no array of numbers, the factors come from several libraries or their dtypes do not promote
        together, an operator does not work on them, or tile does not consist of integers.
    ValueError
        If a factor has no dimensions, k differs between the factors, the batches do not broadcast, an argument has an
        unknown value or one that contradicts another, tile is not positive or no block of the kernel named can have
        it, or k is 0 and add has no identity.
    MethodRefused
        If the method or kernel asked for cannot serve this call.

    Notes
    -----
    Work and depth: m n k products and sums, in ceil(log2 k) steps within a tile (array), in chains along k (kernel).
    Error: within (ceil(log2 t) + ceil(k / t)) eps sum |a| |b| by array with tiles of length t along k, within
    (k + 1) eps sum |a| |b| by native and kernel; (k + 5) where the kernel tensor multiplies float32; 4 times that for
    complex numbers; 2^-9 sum |a| |b| more with tf32; rounded once with highest. By residues, within (2 sqrt(k) + 1)
    eps sum |a| |b|, or where that cannot be told, as otherwise. Integers wrap.
    Reproducibility: the same input, tile included, gives the same bits, run after run, by array and kernel.
    Methods: native (sum and product, no tile given), kernel (operators that can be traced; CUDA arrays, and without
    kernel or tile, by Numba, those of NumPy, PyTorch and eager JAX on the CPU), array. A kernel that is named runs or
    is refused. torch.autocast changes nothing.
    Derivatives: of sum and product, by every method on PyTorch and JAX; else as the library has them.
    Memory, measured errors, reference and more: docs/matmul.md and docs/libraries.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.matmul(np.array([[1, 2], [3, 4]]), np.array([[0, 1], [1, 0]]))
    array([[2, 1],
           [4, 3]])
    >>> parprims.matmul(np.array([[1, 2], [3, 4]]), np.array([10, 1]), tile=1)
    array([12, 34])
    >>> ways = np.array([[0.0, 3.0, np.inf], [np.inf, 0.0, 1.0], [5.0, np.inf, 0.0]])
    >>> parprims.matmul(ways, ways, add="minimum", multiply="add")  # lengths of ways of at most two steps
    array([[0., 3., 4.],
           [6., 0., 1.],
           [5., 8., 0.]])
    """
    if others:
        raise unknown_option("matmul", others)
    if in_graph((a, b), method) and axis_name is None:
        return nodes().matmul(a, b, add, multiply, precision, kernel, tile, method)
    operation: tuple[Any, Any] = (add, multiply)
    options: tuple[Any, ...] = (float32_products(a),)
    is_plain = add is _ADD and multiply is _MULTIPLY and precision is _FLOAT32 and method is _AUTO
    if not is_plain or kernel is not None or tile is not None:  # small calls are mostly plain, and wait for little else
        operation = lasting_key(add), lasting_key(multiply)
        options += (*operation, precision, kernel, tile, method)
    key = None
    if None not in operation and axis_name is None:
        key = call_key("matmul", (a, b), *options, gradient=True)
        known = recalled(key)
        if known is not None:
            return known(a, b)
    plainer = made_plain(tile=tile)
    if plainer is not None:
        asked = {"add": add, "multiply": multiply, "precision": precision, "kernel": kernel, **plainer}
        return matmul(a, b, **asked, method=method, axis_name=axis_name)
    if axis_name is not None or is_split((a, b)):
        asked = {"add": add, "multiply": multiply, "precision": precision, "kernel": kernel, "tile": tile}
        return devices().compute("product", (a, b), axis_name, a, b, method, **asked)
    given = a, b
    xp, (a, b) = admit({"a": a, "b": b})
    _METHODS.check(method)
    operators = as_operators(add, multiply)
    kinds = ("int", "uint", "float", "complex") if _is_ring(operators) else ("bool", "int", "uint", "float", "complex")
    for name, x in (("a", a), ("b", b)):
        check_kind(name, x, kinds)
        if x.ndim == 0:
            raise ValueError(f"{name} must have at least one dimension")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ValueError(
            f"a and b must agree in the length summed over, a's last and b's last but one, got shapes {tuple(a.shape)} "
            f"and {tuple(b.shape)}"
        )
    key = key if a is given[0] and b is given[1] else None
    product = Product.of(xp, a, b, operators, operation, _tile(tile), precision, kernel, key=key)
    if kernel is not None:
        if method not in ("auto", "kernel"):
            raise ValueError(f"kernel names a kernel of method 'kernel', got method {method!r}")
        method = method if isinstance(method, Abstract) else "kernel"
    return _METHODS(method, xp, product)


def as_operators(add: Any, multiply: Any) -> tuple[Operator, Operator]:
    """Return both operators as such."""
    return as_operator(add, "add"), as_operator(multiply, "multiply")


def _is_ring(operators: tuple[Operator, Operator]) -> bool:
    """Return whether the operators are sum and product."""
    return operators == (BUILT_IN["add"], BUILT_IN["multiply"])


def _tile(tile: Any) -> tuple[int, int, int] | None:
    """Return the tile asked for as lengths of m, n and k."""
    if tile is None:
        return None
    lengths = tile if isinstance(tile, tuple) else (tile, tile, tile)
    if any(isinstance(length, bool) or not isinstance(length, numbers.Integral) for length in lengths):
        raise TypeError(f"tile must be an integer or a tuple of 3 integers, got {shown(tile)}")
    if len(lengths) != 3:
        raise ValueError(f"tile must have 3 lengths, of m, n and k, got {tile!r}")
    m, n, k = (int(length) for length in lengths)
    if min(m, n, k) < 1:
        raise ValueError(f"tile must be positive, got {tile!r}")
    return m, n, k


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Product(Checked):
    """One call, checked: what every method is given.

    Parameters
    ----------
    add, multiply : Operator
        The operators.
    ring : bool
        Whether they are sum and product.
    operation : tuple
        Keys of the operators, None for one that may change (see `lasting_key`).
    dtype, shape
        Those of the result.
    working : dtype
        The dtype computed in.
    batch : tuple of int
        The shape that the batches of a and b broadcast to.
    precision : str
        How exactly float32 is multiplied.
    kernel : str, optional
        The kernel asked for.
    tile : tuple of int, optional
        The tile asked for: the lengths of m, n and k.
    """

    add: Operator
    multiply: Operator
    ring: bool
    operation: tuple[Any, Any]
    dtype: Any
    working: Any
    batch: tuple[int, ...]
    shape: tuple[int, ...]
    precision: str = "float32"
    kernel: str | None = None
    tile: tuple[int, int, int] | None = None

    @property
    def lasts(self) -> bool:
        """Whether the operators can be remembered."""
        return None not in self.operation

    @staticmethod
    def of(
        xp: Namespace,
        a: Array,
        b: Array,
        operators: tuple[Operator, Operator],
        operation: tuple[Any, Any] = (None, None),
        tile: tuple[int, int, int] | None = None,
        precision: Any = "float32",
        kernel: Any = None,
        *,
        key: Any = None,
    ) -> Product:
        """Check a call and return its record."""
        add, multiply = operators
        ring = _is_ring(operators)
        dtype, batch = _dtype(xp, a, b), _batch(a, b)
        working = (ring_dtype if ring else compute_dtype)(xp, dtype)
        if not ring:
            for op in operators:
                check_components(op, (working,), "a")
        check_choice("precision", precision, _PRECISIONS)
        if kernel is not None:
            check_choice("kernel", kernel, KERNELS)
        if precision == "residues":
            if dtype_name(dtype) not in ("float32", "float64") or not ring:
                what = dtype_name(dtype) if ring else f"{add.name} of {multiply.name}"
                raise ValueError(f"precision 'residues' is for sums of products of float32 or float64, got {what}")
        elif precision != "float32":
            if dtype_name(dtype) != "float32" or not ring:
                what = dtype_name(dtype) if ring else f"{add.name} of {multiply.name}"
                raise ValueError(f"precision {precision!r} is for sums of products of float32, got {what}")
            if precision == "highest":
                if is_jax(xp) and not mode(xp):
                    raise ValueError("precision 'highest' sums in float64, which JAX has with jax_enable_x64 only")
                working = xp.float64
        p = Product(
            arrays=(a, b),
            key=key,
            add=add,
            multiply=multiply,
            ring=ring,
            operation=operation,
            dtype=dtype,
            working=working,
            batch=batch,
            shape=(*batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ())),
            precision=precision,
            kernel=kernel,
            tile=tile,
        )
        if not ring and a.shape[-1] == 0 and p.identity() is None:
            raise ValueError(f"a and b must have a length summed over of at least 1: op {add.name} has no identity")
        if kernel is not None and tile is not None:
            arithmetic = Arithmetic.of(dtype_name(dtype), dtype_name(working), ring, precision)
            reason = impossible(kernel, tile, arithmetic)
            if reason is not None:
                raise ValueError(f"tile {tile} does not fit kernel {kernel!r}: {reason}")
        return p

    @property
    def a(self) -> Array:
        """The left factor."""
        return self.arrays[0]

    @property
    def b(self) -> Array:
        """The right factor."""
        return self.arrays[1]

    def trial(self, xp: Namespace) -> str | None:
        """Return what fails where the operators combine a few elements, or None."""
        if not (is_own(self.add) or is_own(self.multiply)):
            return None
        m, n = (min(2, x.shape[at]) if x.ndim > 1 else 1 for x, at in ((self.a, -2), (self.b, -1)))
        k = min(2, self.a.shape[-1])

        def multiply(x: Array, y: Array) -> None:
            _checked_array(xp, self.of_factors(xp, x[:m, :k], y[:k, :n]))

        if 0 in (*self.shape, k):
            return None
        return Few(self.a, (2, 2), (), 0, tuple([x.dtype for x in self.arrays])).failure(xp, multiply)

    def empty(self, xp: Namespace) -> Array:
        """Return an array like the product, of which nothing is computed."""
        return xp.empty(self.shape, dtype=self.dtype, device=device(self.a))

    def identity(self) -> Any:
        """Return the identity of the sum, or None if there is none."""
        found = self.add.identity(dtype_name(self.working))
        return None if found is None else found[0]

    def of_factors(self, xp: Namespace, a: Array, b: Array) -> Product:
        """Return the same product of other factors, of other shapes perhaps."""
        operators = self.add, self.multiply
        return Product.of(xp, a, b, operators, self.operation, self.tile, self.precision, self.kernel)

    def by_library(self, xp: Namespace) -> Array:
        """Return the product by the library's own routine."""
        return _prepare_native(xp, self)(*self.arrays)

    def by_array(self, xp: Namespace) -> Array:
        """Return the product by the array form."""
        return tiled_product(xp, self)


def _dtype(xp: Namespace, a: Array, b: Array) -> Any:
    """Return the dtype that the factors promote to."""
    if a.dtype == b.dtype:
        return a.dtype
    try:
        return xp.result_type(a.dtype, b.dtype)
    except (TypeError, ValueError, RuntimeError):
        names = f"{dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
        raise TypeError(f"a and b must have dtypes that promote together, got {names}") from None


def _batch(a: Array, b: Array) -> tuple[int, ...]:
    """Return the shape that the batches of the factors broadcast to."""
    if a.ndim <= 2 and b.ndim <= 2:
        return ()
    try:
        return broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"a and b must have batch dimensions that broadcast, got shapes {shapes}") from None


# ---- The array form ---------------------------------------------------------------------------------------------


def tiled_product(xp: Namespace, p: Product) -> Array:
    """Return the product, tile by tile: all products of a tile's elements, summed along k by a tree."""
    a = xp.matrix_transpose(p.a if p.a.ndim > 1 else p.a[None, :])[..., None]
    b = (p.b if p.b.ndim > 1 else p.b[:, None])[..., None, :]
    # Now a is (..., k, m, 1) and b is (..., k, 1, n): the product is the sum of a b along axis k.
    lengths = (*p.batch, a.shape[-3], a.shape[-2], b.shape[-1])
    a, b = (x[(None,) * (len(lengths) - x.ndim) + (...,)] for x in (a, b))
    tile = _tile_lengths(xp, lengths, p.tile, dtype_bits(p.working) // 8)
    if in_programs(xp) and tile != list(lengths) and 0 not in lengths:
        return xp.reshape(tiles_in_a_loop(xp, p, a, b, lengths, tile), p.shape)
    *outer, inner, rows, columns = (
        [slice(start, min(start + step, length)) for start in range(0, length, step)]
        for length, step in zip(lengths, tile, strict=True)
    )

    def block(where: tuple[slice, ...]) -> Array | None:
        *batch, row, column = where
        total: tuple[Array, ...] | None = None
        for k in inner:
            x, y = (cast(xp, x[_of(x, (*batch, k, row, column))], p.working) for x in (a, b))
            part = tree(p.multiply((x,), (y,)), p.add, len(lengths) - 3)
            total = part if total is None else p.add(total, part)
        return None if total is None else cast(xp, xp.squeeze(total[0], axis=-3), p.dtype)

    pieces = (*outer, rows, columns)
    if inner and all(pieces) and _out_of_place(p.a):
        return xp.reshape(_joined(xp, pieces, block), p.shape)
    place = None if is_traced(p.a) or is_traced(p.b) else device(p.a)
    product = xp.zeros((*p.batch, *lengths[-2:]), dtype=p.dtype, device=place)
    if not inner and not p.ring:
        product = xp.full_like(product, p.identity())
    for where in itertools.product(*pieces):
        done = block(where)
        if done is not None and in_programs(xp):  # the only one
            product = done
        elif done is not None:
            product = at(product)[where].set(done)
    return as_result(xp.reshape(product, p.shape))


def _out_of_place(x: Array) -> bool:
    """Return whether PyTorch is to see no writing in place: in a transformation of torch.func, or its compiler."""
    return is_tensor(x) and (compiling(x) or _cuda.transformed())


def _joined(
    xp: Namespace, pieces: Sequence[Sequence[slice]], block: Callable[[tuple[slice, ...]], Any], *where: slice
) -> Array:
    """Return the blocks, one for every choice of a piece of each axis, joined along the axes."""
    if not pieces:
        # An operator that returns one of its arguments leaves out an axis, and may leave the memory of a factor.
        return xp.broadcast_to(block(where), tuple(piece.stop - piece.start for piece in where))
    return xp.concat([_joined(xp, pieces[1:], block, *where, piece) for piece in pieces[0]], axis=-len(pieces))


def _checked_array(xp: Namespace, p: Product) -> Array:
    """Return the product by `tiled_product`, by operators that are seen to leave their arguments as they are."""
    if p.ring:
        return tiled_product(xp, p)
    some = (cast(xp, p.a[:1, ...] if p.a.shape[0] else p.a, p.working),)
    add, multiply = (harmless(xp, op, key, some) for op, key in zip((p.add, p.multiply), p.operation, strict=True))
    return tiled_product(xp, dataclasses.replace(p, add=add, multiply=multiply))


def _of(x: Array, where: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the part of x that takes part at a place of the broadcast product."""
    return tuple(slice(None) if length == 1 else part for length, part in zip(x.shape, where, strict=True))


def _tile_lengths(
    xp: Namespace, lengths: tuple[int, ...], tile: tuple[int, int, int] | None, itemsize: int
) -> list[int]:
    """Return how much of each axis of (..., k, m, n) is multiplied at once.

    Starting from everything, the longest axis is halved until the products are few enough; m, n and k only if they
    are not asked for. JAX's batches, m and n are halved before, in this order, down to `_NARROWEST`: its loops over
    parts of sums take up to four times as long as those over tiles.
    """
    block = max(_SMALLEST_BLOCK, min(math.prod(lengths) * itemsize // _TILES, _LARGEST_BLOCK))
    if in_programs(xp):  # whose length no tiles add to; products with a vector are no more than a matrix has elements
        block = _LARGEST_BLOCK if 1 in lengths[-2:] else _LOOP_BLOCK
    found = [max(length, 1) for length in lengths]
    free = len(found)
    if tile is not None:
        free -= 3
        m, n, k = tile
        found[free:] = (min(asked, length) for asked, length in zip((k, m, n), found[free:], strict=True))
    deep = len(found) - 3
    narrowest = [*[(axis, 1) for axis in range(deep)], *zip((deep + 1, deep + 2), _NARROWEST, strict=True)]
    first = [(axis, least) for axis, least in narrowest if axis < free] if in_programs(xp) else []
    while math.prod(found) * itemsize > block and max(found[:free], default=1) > 1:
        longest = found.index(max(found[:free]))
        halved = next((axis for axis, least in first if found[axis] > least), longest)
        found[halved] = -(-found[halved] // 2)
    return found


_NARROWEST = (8, 128)
"""Rows and columns of JAX's tiles before sums are split into parts."""


# ---- The library's own routine ----------------------------------------------------------------------------------


def _prepare_native(xp: Namespace, p: Product) -> Callable[..., Array]:
    """Return the product of both factors by the library's own routine; of many integers by float products."""
    routine = _prepare_routine(xp, p)
    if not _by_floats(xp, p):
        return routine
    dtype = np.dtype(dtype_name(p.dtype))
    if library(xp) == "numpy":
        loops = cpu.when_called(xp, p) if cpu.refusal(xp, p) is None else None
        return partial(integer_products.product, dtype=dtype, loops=loops)

    def multiply(a: Array, b: Array) -> Array:
        def loops(*_: Any) -> Any:
            return as_numpy(routine(a, b))

        return returned(xp, integer_products.product(as_numpy(a), as_numpy(b), dtype, loops, most=1), (a, b))

    return multiply


def _prepare_routine(xp: Namespace, p: Product) -> Callable[..., Array]:
    working = p.working if p.precision == "highest" else _native_dtype(xp, p)
    routine: Callable[..., Array] = xp.matmul
    single = dtype_name(working) in ("float32", "complex64") and p.precision != "tf32"
    if single and array_api_compat.is_cupy_namespace(xp):
        routine = partial(_with_all_bits, xp)
    direct = is_tensor(p.a) and working == p.dtype == p.a.dtype == p.b.dtype
    if direct:
        import torch

        routine = torch.matmul
    if library(xp) == "numpy":
        routine = np.matmul
    if may_round_sums(p.a, working):
        routine = _with_unrounded_sums(routine)
    if direct:
        return routine
    if is_jax(xp):
        return partial(_native_jax, xp, working, p.dtype)
    if working != p.dtype or any(x.dtype != p.dtype for x in p.arrays):
        dtype = p.dtype
        return lambda a, b: as_result(cast(xp, routine(cast(xp, a, working), cast(xp, b, working)), dtype))
    if not p.shape:
        return lambda a, b: as_result(routine(a, b))
    return routine


def _with_all_bits(xp: Namespace, a: Array, b: Array) -> Array:
    """Multiply by CuPy's routine, in float64 if CuPy has been told to form products of float32 with fewer bits."""
    if not narrowed_in_cupy():
        return xp.matmul(a, b)
    wide = xp.float64 if dtype_kind(a.dtype) == "float" else xp.complex128
    return cast(xp, xp.matmul(cast(xp, a, wide), cast(xp, b, wide)), a.dtype)


def _with_unrounded_sums(routine: Callable[..., Array]) -> Callable[..., Array]:
    def multiply(a: Array, b: Array) -> Array:
        with UNROUNDED_SUMS:
            return routine(a, b)

    return multiply


def _by_floats(xp: Namespace, p: Product) -> bool:
    """Return whether integer matrices are large enough for float products; the library has no BLAS for them."""
    if not crossover.is_integer(p) or min(p.a.ndim, p.b.ndim) < 2:
        return False
    if is_jax(xp) and dtype_bits(p.dtype) == 32:  # which XLA multiplies faster
        return False
    if not (has_values if is_jax(xp) else in_numpy)(xp, p.arrays):
        return False
    return integer_products.is_large(p.a, p.b, library(xp))


def _native_jax(xp: Namespace, working: Any, dtype: Any, a: Array, b: Array) -> Array:
    product = xp.matmul(cast(xp, a, working), cast(xp, b, working), precision="highest")
    return cast(xp, product, dtype)


def _native_dtype(xp: Namespace, p: Product) -> Any:
    """Return the dtype to hand to the library: its own where it computes as promised, else a wider one."""
    if dtype_name(p.dtype) in SIXTEEN_BIT_FLOATS:
        # NumPy has no fast routine for these.
        wide = array_api_compat.is_numpy_namespace(xp)
        if array_api_compat.is_cupy_namespace(xp):
            # It sums a single inner product in 16 bits, and fails for batches of bfloat16.
            wide = math.prod(p.shape) == 1 or (max(p.a.ndim, p.b.ndim) > 2 and dtype_name(p.dtype) == "bfloat16")
        if is_jax(xp):  # XLA sums in 16 bits where a factor is a vector, or has a single row or column
            wide = min(p.a.ndim, p.b.ndim) == 1 or 1 in (p.a.shape[-2], p.b.shape[-1])
        return xp.float32 if wide else p.dtype
    if _is_narrowed(p):
        return xp.float64 if dtype_kind(p.dtype) == "float" else xp.complex128
    return p.working


def _is_narrowed(p: Product) -> bool:
    """Return whether the library has been told to form products of float32 with fewer bits than the call asks for."""
    single = dtype_name(p.dtype) in ("float32", "complex64")
    return single and is_tensor(p.a) and narrowed(p.a, p.precision)


def _native_refusal(xp: Namespace, p: Product) -> str | None:
    if not p.ring:
        return f"{spoken(xp)} has no matrix product by {p.add.name} of {p.multiply.name}"
    if p.tile is not None:
        return f"the routine of {spoken(xp)} takes no tile"
    if lacks_products(xp, p.a, p.dtype):
        return "PyTorch multiplies no integer matrices on a CUDA device"
    return None


def _array_refusal(xp: Namespace, p: Product) -> str | None:
    return lacks_arithmetic(xp, (p.working,))


def _native_slower(xp: Namespace, p: Product) -> str | None:
    """Return the sentence why the kernel is to be preferred, or None."""
    if crossover.is_integer(p) and _cpu.on_cpu(xp, p.arrays):
        kernel = not _by_floats(xp, p) and cpu.is_faster_for_integers(xp, p)
        kernel = kernel and cpu.refusal(xp, p) is None
        return f"the kernel multiplies so many integers faster than {spoken(xp)}" if kernel else None
    is_narrowed = p.precision not in ("highest", "residues") and _is_narrowed(p)
    if not (is_narrowed or crossover.may_be_faster(p)) or cuda.refusal(xp, p) is not None:
        return None
    if is_narrowed:
        return "PyTorch has been told to multiply float32 with fewer bits, so that this would take float64"
    return crossover.kernel_faster(xp, p)


_METHODS = Methods(
    "matmul",
    native=Method(
        _prepare_native, _native_refusal, _native_slower, derivative_rules.product_under_autocast, eager=_by_floats
    ),
    kernel=by_device(
        Method(cuda.prepare, cuda.refusal, derivative=derivative_rules.product),
        Method(cpu.prepare, cpu.refusal, cpu.slower, derivative_rules.product, quiet=True),
    ),
    array=Method(directly(_checked_array), _array_refusal, derivative=derivative_rules.product_under_autocast),
)

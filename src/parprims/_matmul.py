"""Matrix product: c[i, j] = a[i, 0] b[0, j] + a[i, 1] b[1, j] + ..., by sum and product or any other two operators."""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat
from array_api_extra import at

from parprims import _cuda, _derivatives
from parprims._arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    admit,
    as_result,
    broadcast_shapes,
    cast,
    check_choice,
    check_kind,
    compiling,
    compute_dtype,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_sharded,
    is_tensor,
    is_traced,
    lacks_arithmetic,
    lacks_products,
    ring_dtype,
    shown,
)
from parprims._dispatch import Abstract, Method, Methods, in_graph, watched
from parprims._operators import BUILT_IN, Operator, as_operator, check_components, harmless
from parprims._reduce import _fold, tree
from parprims._switches import autocast, narrowed
from parprims._trace import C_TYPES, Trace, Untraceable, lasting_key, literal, register_type, trace

# The default tile's products take at most 2^28 bytes, and no fewer than 2^22 where there are as many. In between
# they grow with the problem, so that it is cut into about 2^7 tiles: that bounds the length of a traced program.
_SMALLEST_BLOCK, _LARGEST_BLOCK, _TILES = 2**22, 2**28, 2**7

_KERNELS = ("naive", "tiled", "packed", "conflict_free", "tensor")
_PRECISIONS = ("float32", "tf32", "highest")


def matmul(
    a: Array,
    b: Array,
    /,
    *,
    add: str | Operator | Callable[..., Any] = "add",
    multiply: str | Operator | Callable[..., Any] = "multiply",
    precision: str = "float32",
    kernel: str | None = None,
    tile: int | tuple[int, int, int] | None = None,
    method: str = "auto",
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
    precision : {"float32", "tf32", "highest"}
        How exactly float32 factors are multiplied: with errors like those of a chain of float32 products and sums; with
        factors that may be rounded, or cut, to 10 fraction bits first; or in float64, rounded once. Other factors
        have but one precision, the default.
    kernel : {"naive", "tiled", "packed", "conflict_free", "tensor"}, optional
        Which kernel is to run, by method kernel; the best for the call if not given.
    tile : int or tuple of int, optional
        The lengths of m, n and k that are multiplied at once, by ``array`` or by a block of the kernel, which for
        naive and tiled ones has m n threads; one number stands for all three.
    method : {"auto", "native", "kernel", "array"}
        Who computes.

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
    Work and depth: m n k products and as many sums, in ceil(log2 k) steps within a tile (array); in chains of k, or of
    k / s where the kernel cuts the sum into s parts, to occupy the device with small or skinny matrices.
    Traffic and launches: kernel is one launch (packed: three) that reads a once for every tile of n and b once for
    every tile of m, from views as they are (batches that broadcast included), and writes the result once. Where
    neither of two large float32 factors lies along k in steps of 16 bytes, a launch before it copies one so. Array
    writes and reads every product about 3 times, tile after tile. Beyond the factors and the result it needs memory for
    1.5 times a tile's products and for their sums; a compiler given the traced program may overlap tiles. Native copies
    factors that it widens, NumPy's of 16 bits and all with highest, and then rounds a wide result. By default a
    tile's products take 4 to 256 MiB, so that there are at most 256 tiles up to 2^35 bytes of products (float32
    matrices of 2048 x 2048); beyond that the tiles grow in number and not in size, and so does a program traced from
    them.
    Error: within (ceil(log2 t) + ceil(k / t)) eps sum |a| |b| by array with tiles of length t along k, within
    (k + 1) eps sum |a| |b| by native and kernel; (k + 5) where the kernel tensor multiplies float32, which it is chosen
    for from k = 128 on, and of which it keeps fewer digits below 2^-126; 4 times that for complex numbers; 2^-9 sum |a|
    |b| more with tf32, for which both factors are rounded, or one of them is cut if a stride of it is 0 or negative or
    its matrices lie several strides apart; and rounded once with highest.
    16-bit floats are multiplied and summed in float32 and rounded once. Integers wrap.
    Measured on an H200, the largest of 65536 errors in units of 2^-24 sum |a| |b|, for k = 128, 4096 and 65536, by a
    chain of float32 products and sums (kernel conflict_free), float32, tf32 and highest: of normal numbers 2.8, 0.87,
    0.43; 1.8, 0.37, 0.14; 3000, 650, 160; 0.52, 0.09, 0.01. Of numbers uniform in [0, 1) 6.6, 6.7, 13; 5.5, 5.8, 6.8;
    2200, 440, 550; 1.0, 1.0, 1.0. Of normal numbers times powers of two from 2^-20 to 2^19, where few products decide a
    sum, 6.8, 5.5, 2.9; 11, 4.8, 1.8; 15000, 8100, 1900; 1.0, 0.7, 0.3.
    Reproducibility: the same input, tile included, gives the same bits, run after run, by array and kernel.
    Methods: native (sum and product, no tile given; JAX multiplies at its highest precision), kernel (CUDA arrays and
    operators that can be traced; tensor multiplies floats by sum and product, on devices of compute capability 8.0 and
    later), array. A kernel that is named runs or is refused. On devices of compute capability 9.0 auto takes the kernel
    for large matrices of float32, whose tensor cores multiply them in half the time.
    Several devices: JAX multiplies factors that are sharded, by native, where it knows how the product is to be; all
    else as for `scan`.
    Derivatives: by native and array as the library has them. By kernel, of sum and product, on PyTorch (backward, of
    any order, by the kernel) and JAX (as native has them).
    PyTorch's switches: torch.autocast changes nothing, neither dtype nor error, backward neither. Where PyTorch has
    been told to multiply float32 with fewer bits than ``precision`` asks for (torch.set_float32_matmul_precision), auto
    prefers the kernel, and native multiplies in float64, rounded once, with memory for the factors and the product in
    it. torch.compile is in the notes of `reduce`.
    Reference: Golub and Van Loan, Matrix Computations, 4th ed., Johns Hopkins, 2013, chapter 1; Ootomo and Yokota,
    Recovering single precision accuracy from Tensor Cores, IJHPCA 36(4), 2022.

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
    if in_graph((a, b), method):
        from parprims import _torch_ops

        return _torch_ops.matmul(a, b, add, multiply, precision, kernel, tile, method)
    key = None
    operation = lasting_key(add), lasting_key(multiply)
    if not watched() and None not in operation:
        signature = _cuda.signature((a, b))
        if signature is not None:
            # A call like one before goes straight to its kernel: checks and choice depend on nothing else.
            key = (operation, precision, kernel, repr(tile), method, signature)  # 2 and 2.0 would be one key
            shortcut = _cuda.recall(_shortcuts, key)
            if shortcut is not None:
                return shortcut(a, b)[0]
    xp, (a, b) = admit({"a": a, "b": b}, sharded=True)
    _METHODS.check(method)
    operators = _operators(add, multiply)
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
    product = _Product(xp, a, b, operators, operation, _tile(tile))
    product.key = key
    product.choose(xp, precision, kernel)
    if kernel is not None:
        if method not in ("auto", "kernel"):
            raise ValueError(f"kernel names a kernel of method 'kernel', got method {method!r}")
        method = method if isinstance(method, Abstract) else "kernel"
    library = method in ("native", "array") or (
        method == "auto" and not _native_refusal(xp, product) and not _prefers_kernel(xp, product)
    )
    # The library's own derivative would be taken by autocast where the backward pass is under it too.
    if library and not isinstance(method, Abstract) and not autocast(xp):
        return _METHODS(method, xp, product)
    return _derivatives.product(_METHODS, method, xp, product)


def _operators(add: Any, multiply: Any) -> tuple[Operator, Operator]:
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


_shortcuts: dict[Any, Callable[..., tuple[Array, ...]]] = {}


class _Product:
    """One call, checked: what every method is given.

    ``add`` and ``multiply`` are its operators, ``ring`` whether they are sum and product, and ``operation`` a key for
    them (see `lasting_key`). ``dtype`` and ``shape`` are the result's, ``working`` is the dtype computed in, and
    ``batch`` the shape that the batches of ``a`` and ``b`` broadcast to.
    """

    __slots__ = (
        "a", "add", "b", "batch", "dtype", "kernel", "key", "multiply", "operation", "precision", "ring", "shape",
        "tile", "working",
    )  # fmt: skip

    def __init__(
        self,
        xp: Namespace,
        a: Array,
        b: Array,
        operators: tuple[Operator, Operator],
        operation: Any,
        tile: tuple[int, int, int] | None,
    ) -> None:
        self.a, self.b, self.tile, self.operation = a, b, tile, operation
        self.add, self.multiply = operators
        self.ring = _is_ring(operators)
        self.precision = "float32"
        self.key: Any = None
        self.kernel: str | None = None
        self.dtype = a.dtype
        if b.dtype != a.dtype:
            try:
                self.dtype = xp.result_type(a.dtype, b.dtype)
            except (TypeError, ValueError, RuntimeError):
                names = f"{dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
                raise TypeError(f"a and b must have dtypes that promote together, got {names}") from None
        self.batch: tuple[int, ...] = ()
        if a.ndim > 2 or b.ndim > 2:
            try:
                self.batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
            except ValueError:
                shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
                raise ValueError(f"a and b must have batch dimensions that broadcast, got shapes {shapes}") from None
        self.shape = (*self.batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))
        self.working = (ring_dtype if self.ring else compute_dtype)(xp, self.dtype)
        if not self.ring:
            for op in operators:
                check_components(op, (self.working,), "a")
            if a.shape[-1] == 0 and self.identity() is None:
                raise ValueError(
                    f"a and b must have a length summed over of at least 1: op {self.add.name} has no identity"
                )

    def choose(self, xp: Namespace, precision: Any, kernel: Any) -> None:
        """Check how exactly, and by which kernel, is to be multiplied."""
        self.precision = check_choice("precision", precision, _PRECISIONS)
        self.kernel = None if kernel is None else check_choice("kernel", kernel, _KERNELS)
        if precision != "float32":
            if dtype_name(self.dtype) != "float32" or not self.ring:
                what = dtype_name(self.dtype) if self.ring else f"{self.add.name} of {self.multiply.name}"
                raise ValueError(f"precision {precision!r} is for sums of products of float32, got {what}")
            if precision == "highest":
                if _cuda.is_jax(xp) and not _cuda.mode(xp):
                    raise ValueError("precision 'highest' sums in float64, which JAX has with jax_enable_x64 only")
                self.working = xp.float64
        if kernel is not None and self.tile is not None:
            reason = _impossible(kernel, self.tile, _Numbers(self))
            if reason is not None:
                raise ValueError(f"tile {self.tile} does not fit kernel {kernel!r}: {reason}")

    def identity(self) -> Any:
        """Return the identity of the sum, or None if there is none."""
        found = self.add.identity(dtype_name(self.working))
        return None if found is None else found[0]


def _array(xp: Namespace, p: _Product) -> Array:
    """Return the product, tile by tile: all products of a tile's elements, summed along k by a tree."""
    a = xp.matrix_transpose(p.a if p.a.ndim > 1 else p.a[None, :])[..., None]
    b = (p.b if p.b.ndim > 1 else p.b[:, None])[..., None, :]
    # Now a is (..., k, m, 1) and b is (..., k, 1, n): the product is the sum of a b along axis k.
    lengths = (*p.batch, a.shape[-3], a.shape[-2], b.shape[-1])
    a, b = (x[(None,) * (len(lengths) - x.ndim) + (...,)] for x in (a, b))
    tile = _tile_lengths(lengths, p.tile, dtype_bits(p.working) // 8)
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
        if done is not None:
            product = at(product)[where].set(done)
    return as_result(xp.reshape(product, p.shape))


def _out_of_place(x: Array) -> bool:
    """Return whether PyTorch is to see no writing in place: in a transformation of torch.func, or its compiler."""
    return is_tensor(x) and (compiling(x) or _cuda._transformed())


def _joined(
    xp: Namespace, pieces: Sequence[Sequence[slice]], block: Callable[[tuple[slice, ...]], Any], *where: slice
) -> Array:
    """Return the blocks, one for every choice of a piece of each axis, joined along the axes."""
    if not pieces:
        # An operator that returns one of its arguments leaves out an axis, and may leave the memory of a factor.
        return xp.broadcast_to(block(where), tuple(piece.stop - piece.start for piece in where))
    return xp.concat([_joined(xp, pieces[1:], block, *where, piece) for piece in pieces[0]], axis=-len(pieces))


def _checked_array(xp: Namespace, p: _Product) -> Array:
    """Return the product by `_array`, by operators that are seen to leave their arguments as they are."""
    if not p.ring:
        some = (cast(xp, p.a[:1, ...] if p.a.shape[0] else p.a, p.working),)
        for name, key in zip(("add", "multiply"), p.operation, strict=True):
            setattr(p, name, harmless(xp, getattr(p, name), key, some))
    return _array(xp, p)


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
    working = p.working if p.precision == "highest" else _native_dtype(xp, p)
    precision = {"precision": "highest"} if _cuda.is_jax(xp) else {}
    try:
        product = xp.matmul(cast(xp, p.a, working), cast(xp, p.b, working), **precision)
    except Exception as error:
        if type(error).__name__ != "ShardingTypeError":  # JAX's, which is not public
            raise
        raise ValueError(
            "a and b are sharded over explicit axes of a mesh, and JAX does not know how their product is to be "
            f"({str(error).splitlines()[0]}): reshard one of them, or call inside jax.shard_map"
        ) from None
    return as_result(cast(xp, product, p.dtype))


def _native_dtype(xp: Namespace, p: _Product) -> Any:
    """Return the dtype to hand to the library: its own where it computes as promised, else a wider one."""
    if dtype_name(p.dtype) in SIXTEEN_BIT_FLOATS:
        # NumPy has no fast routine for these, and CuPy sums a single inner product in 16 bits.
        single = math.prod(p.shape) == 1
        wide = array_api_compat.is_numpy_namespace(xp) or (array_api_compat.is_cupy_namespace(xp) and single)
        return xp.float32 if wide else p.dtype
    if _is_narrowed(p):
        return xp.float64 if dtype_kind(p.dtype) == "float" else xp.complex128
    return p.working


def _is_narrowed(p: _Product) -> bool:
    """Return whether the library has been told to form products of float32 with fewer bits than the call asks for."""
    single = dtype_name(p.dtype) in ("float32", "complex64")
    return single and is_tensor(p.a) and narrowed(p.a, p.precision)


def _native_refusal(xp: Namespace, p: _Product) -> str | None:
    if not p.ring:
        return f"{xp.__name__} has no matrix product by {p.add.name} of {p.multiply.name}"
    if p.tile is not None:
        return f"the routine of {xp.__name__} takes no tile"
    if lacks_products(xp, p.a, p.dtype):
        return "PyTorch multiplies no integer matrices on a CUDA device"
    return None


def _array_refusal(xp: Namespace, p: _Product) -> str | None:
    if _cuda.is_jax(xp) and any(is_sharded(x) for x in (p.a, p.b)):
        return "the arrays are sharded over several devices"
    return lacks_arithmetic(xp, (p.working,))


def _native_slower(xp: Namespace, p: _Product) -> str | None:
    """Return the sentence why the kernel is to be preferred, or None."""
    if _is_narrowed(p) and p.precision != "highest" and _kernel_refusal(xp, p) is None:
        return "PyTorch has been told to multiply float32 with fewer bits, so that this would take float64"
    if not _is_large_float32(p) or _kernel_refusal(xp, p) is not None or _cuda.capability(xp, p.a) != 90:
        return None
    return "the kernel multiplies large matrices of float32 faster on this device, by tensor cores"


def _is_large_float32(p: _Product) -> bool:
    """Return whether the product is one that a kernel can be preferred for, which every call asks."""
    k = p.a.shape[-1]
    if k < _SIZES.preferred or min(p.a.ndim, p.b.ndim) < 2 or min(p.shape[-2:]) < _SIZES.preferred:
        return False
    large = math.prod(p.shape) * k >= _SIZES.preferred_products
    return large and p.precision == "float32" and dtype_name(p.dtype) == "float32"


def _prefers_kernel(xp: Namespace, p: _Product) -> bool:
    """Return whether auto takes the kernel, gradients aside, which the library's derivative of it carries."""
    if not _is_large_float32(p) and not _is_narrowed(p):
        return False
    a, b = (_derivatives.detached(x) for x in (p.a, p.b))
    return _native_slower(xp, _derivatives.changed(p, a=a, b=b)) is not None


# ---- The kernel -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """The tiles of the kernels, lengths of m, n and k, the largest first.

    Those of ``conflict_free`` go by the bytes of a number in registers, those of ``tensor`` by the kind of its
    instructions; ``groups`` are those for groups of four warps, whose m and n are the lengths of the left and the right
    factor. Tiles that would multiply twice as much beyond the edges as others are out; of the others that is taken that
    is likely to be the quickest (see `_time`) on ``multiprocessors``, sums cut in parts of at least ``part`` tiles
    along k. Up to ``stages`` tiles lie in shared memory, for groups the first of ``stages_of_groups`` that there is
    room for. 16-bit floats are copied by bulk copies from ``at_once`` products on. A factor is laid along k for groups
    if the other one has at least ``packed`` lines. Shorter sums of float32 than ``chain`` are left to ordinary
    registers, whose errors are no larger than those of a tensor core, which truncates, from there on only. From
    ``preferred`` rows, columns and length summed over, and from ``preferred_products`` on, the kernel is faster than
    the libraries' own float32.
    """

    threads: tuple[int, int, int] = (8, 32, 1)
    tiled: tuple[int, int, int] = (32, 32, 32)
    conflict_free: tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...] = (
        (4, ((128, 128, 8), (64, 64, 16), (32, 64, 16))),
        (8, ((128, 64, 16), (64, 64, 16), (32, 32, 16))),
        (16, ((64, 64, 8), (16, 32, 8))),
    )
    tensor: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...] = (
        ("HALF", ((128, 256, 64), (128, 128, 64), (64, 128, 64), (64, 64, 64), (16, 128, 64), (128, 16, 64))),
        ("TF32", ((128, 256, 32), (128, 128, 32), (64, 64, 32), (16, 128, 32), (128, 16, 32))),
        ("SPLIT", ((128, 64, 32), (64, 64, 32), (16, 128, 32), (128, 16, 32))),
        ("DOUBLE", ((128, 128, 16), (64, 64, 16), (16, 64, 16), (64, 16, 16))),
    )
    groups: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...] = (
        ("HALF", ((128, 256, 64), (128, 128, 64), (64, 128, 64), (64, 64, 64))),
        ("TF32", ((128, 256, 32), (128, 128, 32), (64, 128, 32), (64, 64, 32))),
        ("SPLIT", ((128, 96, 32), (64, 96, 32))),
        ("DOUBLE", ((128, 128, 16), (64, 128, 16))),
    )
    stages: int = 4
    stages_of_groups: tuple[int, ...] = (8, 4)  # numbers by which one divides quickly
    part: int = 4
    packed: int = 512
    at_once: int = 2**35
    chain: int = 128
    preferred: int = 256
    preferred_products: int = 2**30
    multiprocessors: int = 132


_SIZES = _Sizes()

# What a block may have in shared memory, in KiB, by compute capability; others have as much as the last of these.
_SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 120: 99, 121: 99, 90: 227}


class _Numbers:
    """What a kernel computes with: dtypes by name, their bytes, and the kind of a tensor core's instructions if any.

    ``memory`` is the dtype of the arrays and ``registers`` that of sums: integers narrower than 32 bits wrap in the
    end, so that sums of products have 32.
    """

    __slots__ = ("kind", "memory", "memory_bytes", "registers", "registers_bytes")

    def __init__(self, p: _Product) -> None:
        self.memory, self.registers = dtype_name(p.dtype), dtype_name(p.working)
        self.memory_bytes = dtype_bits(self.memory) // 8
        if p.ring and dtype_kind(self.registers) in ("int", "uint"):
            self.registers = "uint64" if self.memory_bytes == 8 else "uint32"
        self.registers_bytes = max(4, dtype_bits(self.registers) // 8)
        self.kind = None
        if p.ring and dtype_kind(self.memory) == "float":
            by_precision = {"float32": "SPLIT", "tf32": "TF32", "highest": "DOUBLE"}
            own = {"float16": "HALF", "bfloat16": "BFLOAT", "float64": "DOUBLE"}
            self.kind = own.get(self.memory) or by_precision[p.precision]

    def warp(self) -> tuple[int, int]:
        """Return the lengths of m and n of a warp's tile in the kernel conflict_free."""
        return {4: (32, 64), 8: (32, 32), 16: (16, 32)}[self.registers_bytes]

    def warp_of_tensor(self) -> tuple[int, int]:
        """Return the most that a warp's tile in the kernel tensor has of m and n."""
        return {"SPLIT": (32, 32), "DOUBLE": (64, 32)}.get(self.kind or "", (64, 64))

    def warps(self, tile: tuple[int, int, int]) -> tuple[int, int]:
        """Return how many warps stand along m and n of a tensor kernel's tile."""
        high, wide = self.warp_of_tensor()
        return max(1, tile[0] // high), max(1, tile[1] // wide)


def _impossible(kernel: str, tile: tuple[int, int, int], numbers: _Numbers, capability: int = 90) -> str | None:
    """Return why no block of a kernel can have a tile, or None."""
    m, n, k = tile
    if kernel in ("naive", "tiled", "packed"):
        if m * n > 1024:
            return f"it asks for {m * n} threads of a block, which has at most 1024"
        if kernel == "naive":
            return None
    elif kernel == "conflict_free":
        rows, columns = numbers.warp()
        if m % rows or n % columns:
            return f"m and n must be multiples of {rows} and {columns}, the tile of a warp"
        if m // rows * (n // columns) > 16:
            return f"it asks for {m // rows * (n // columns)} warps of a block, whose registers suffice for 16"
        if k & (k - 1):
            return "k must be a power of two"
    elif numbers.kind is not None:
        depth = 16 if numbers.kind in ("HALF", "BFLOAT") else 8
        if k < depth or k & (k - 1):
            return f"k must be a power of two, at least {depth}"
        for name, length, longest in zip("mn", tile[:2], numbers.warp_of_tensor(), strict=True):
            if length % 16 or (length > longest and length % longest):
                return f"{name} must be a multiple of 16, and of {longest} if it is more"
        down, across = numbers.warps(tile)
        most = 16 if numbers.kind == "SPLIT" else 8  # whose warps have smaller tiles
        if down * across > most:
            return f"it asks for {down * across} warps of a block, whose registers suffice for {most}"
    need, there = _block(kernel, tile, numbers, 0).shared_bytes, _SHARED.get(capability, 227) << 10
    if need > there:
        return f"it asks for {need} bytes of shared memory, a block has {there}"
    return None


@dataclasses.dataclass(frozen=True)
class _Block:
    """What a block of a kernel has: its tile, threads, the tiles and bytes it keeps in shared memory."""

    tile: tuple[int, int, int]
    threads: int
    stages: int
    shared_bytes: int


def _block(kernel: str, tile: tuple[int, int, int], numbers: _Numbers, most: int) -> _Block:
    """Return the block for a tile, with as many tiles in shared memory as a pipeline has and ``most`` bytes hold.

    A kernel "groups" is that for groups of four warps.
    """
    m, n, k = tile
    size = numbers.memory_bytes
    if kernel == "naive":
        return _Block(tile, m * n, 0, 0)
    if kernel in ("tiled", "packed"):
        return _Block(tile, m * n, 1, (m + n) * k * numbers.registers_bytes)
    if kernel == "conflict_free":
        rows, columns = numbers.warp()
        return _Block(tile, 32 * (m // rows) * (n // columns), 2, 2 * (m + n) * k * numbers.registers_bytes)

    def staged(length: int) -> int:
        """Return the bytes of a tile of a factor, as much as with rows along k or across: some are padded."""
        ways = ((length, k * size, 32 if size > 4 else 16), (k, length * size, 32 if size > 2 else 16))
        return max(rows * (row + pad * (row % 128 != 0)) for rows, row, pad in ways)

    if kernel == "tensor":
        threads, more, stage = 32 * math.prod(numbers.warps(tile)), 128, staged(m) + staged(n)
        stages = max(2, min(_SIZES.stages, (most - more) // stage))
    else:
        threads, more = m // 64 * 128 + 128, 1024
        left = m * k * size if size == 2 else staged(m)
        right = staged(n) if numbers.kind == "DOUBLE" else n * k * size
        stage = left + right * (2 if numbers.kind == "SPLIT" else 1)
        fits = (most - more) // stage
        stages = next((count for count in _SIZES.stages_of_groups if count <= fits), 3)
    return _Block(tile, threads, stages, more + stages * stage)


def _best(p: _Product, numbers: _Numbers, capability: int) -> tuple[str, str | None]:
    """Return the kernel for a call, and why it cannot serve, or None."""
    if p.kernel is not None:
        wanted: tuple[str, ...] = (p.kernel,)
    else:
        exact = numbers.kind != "SPLIT" or p.a.shape[-1] >= _SIZES.chain
        wanted = ("tensor",) * (numbers.kind is not None and exact and capability >= 80) + ("conflict_free", "tiled")
    for kernel in wanted:
        if kernel == "tensor" and numbers.kind is None:
            what = numbers.memory if p.ring else f"{p.add.name} of {p.multiply.name}"
            return kernel, f"the kernel 'tensor' multiplies real floats by sum and product, got {what}"
        if kernel == "tensor" and capability < 80:
            return kernel, "the kernel 'tensor' needs a device of compute capability 8.0 or later"
        reason = _impossible(kernel, p.tile, numbers, capability) if p.tile is not None else None
        if reason is None:
            return kernel, None
    return kernel, f"tile {p.tile} fits no kernel: {reason}"


def _source(p: _Product, numbers: _Numbers) -> str:
    """Return the CUDA text before the kernel, all files of the ladder included."""
    dtype = numbers.registers
    narrow = dtype_bits(dtype) < 32  # such numbers stay in registers of 32 bits between operations
    held, word = "int" if narrow else register_type(dtype), register_type(dtype)

    def traced(op: Operator, earlier: str, later: str) -> Trace:
        elements = ((dtype, earlier),), ((dtype, later),)
        immutable = array_api_compat.is_jax_array(p.a)
        found = trace(f"op {op.name}", op.combine, *elements, packed=op.components is not None, immutable=immutable)
        if found.dtypes != (dtype,):
            raise Untraceable(f"op {op.name} turns {dtype} into {', '.join(found.dtypes)}")
        return found

    product, total = traced(p.multiply, "x", "y"), traced(p.add, "earlier", "later")
    identity = literal(0 if p.ring else p.identity(), dtype)
    return "\n".join(
        (
            "#define EXTREMA_BY_INSTRUCTION",
            _cuda.device_source("_common.cuh"),
            f"using T = {C_TYPES[numbers.memory]};",
            f"using S = {held};",
            "DEVICE S load(T x) { return ops::cast<S>(value(x)); }",
            f"DEVICE T save(S x) {{ return store<T>(ops::cast<{register_type(numbers.memory)}>(x)); }}",
            f"DEVICE S identity() {{ return {identity}; }}",
            f"DEVICE {word} add({word} earlier, {word} later) {{",
            *(f"    {line}" for line in total.lines),
            f"    return {total.outputs[0]};",
            "}",
            f"DEVICE {word} multiply({word} x, {word} y) {{",
            *(f"    {line}" for line in product.lines),
            f"    return {product.outputs[0]};",
            "}",
            f"DEVICE S combine(S earlier, S later) {{ return add(({word})earlier, ({word})later); }}",
            f"DEVICE S step(S sum, S x, S y) {{ return add(({word})sum, multiply(({word})x, ({word})y)); }}",
            _cuda.device_source("_matmul.cu"),
        )
    )


@dataclasses.dataclass(frozen=True)
class _Factor:
    """How a kernel reads a factor: as lines along k, with the strides of lines and along them.

    ``vector`` elements can be read at once, along k if ``along_k``. The matrices of a batch are ``step`` apart, None if
    by several strides.
    """

    outer: int
    along: int
    vector: int
    along_k: bool
    step: int | None

    @staticmethod
    def of(
        strides: tuple[int, int], batch: tuple[int, ...], lengths: tuple[int, int], address: int, itemsize: int
    ) -> _Factor:
        """Return the factor given strides and lengths of lines and of k, those of the batch, the address modulo 16."""
        outer, along = (0 if length == 1 else stride for stride, length in zip(strides, lengths, strict=True))
        along_k = along == 1 or (outer != 1 and abs(along) <= abs(outer))
        unit, other = (along, outer) if along_k else (outer, along)
        vector = 1
        if unit == 1:
            steps = [16, address, *(itemsize * step for step in (other, *batch))]
            vector = max(1, math.gcd(*steps) // itemsize)
        return _Factor(outer, along, vector, along_k, None if len(batch) > 1 else sum(batch))

    def fits_map(self, itemsize: int) -> bool:
        """Return whether a tensor map can tell bulk copies where the factor lies."""
        pitch = self.outer if self.along_k else self.along
        if self.vector * itemsize < 16 or self.step is None:
            return False
        return 0 < pitch * itemsize < 2**40 and 0 <= self.step * itemsize < 2**40


# The factors of a product, as a kernel declares them.
_FACTORS = {"a": "a{(const T*)in0 + at_a, n3, n4, n0}", "b": "b{(const T*)in1 + at_b, n5, n6, n1}"}


def _plan(
    p: _Product,
    numbers: _Numbers,
    kernel: str,
    source: str,
    layouts: Sequence[tuple[tuple[int, ...], int]],
    capability: int,
) -> _cuda.Plan:
    """Return the launches for factors of at least two dimensions and of these layouts."""
    (strides_a, address_a), (strides_b, address_b) = layouts
    m, k, n = int(p.a.shape[-2]), int(p.a.shape[-1]), int(p.b.shape[-1])
    size, rank = numbers.memory_bytes, len(p.batch)

    def stretched(strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        own = [0 if length == 1 else stride for stride, length in zip(strides[:-2], shape[:-2], strict=True)]
        return (0,) * (rank - len(own)) + tuple(own)

    axes, _ = _fold(p.batch, (), (stretched(strides_a, p.a.shape), stretched(strides_b, p.b.shape)), reorder=False)
    # Matrices that follow each other as their rows do, and meet one b, are one matrix.
    while axes and axes[-1][1][1] == 0 and (axes[-1][1][0] == m * strides_a[-2] or m == 1):
        length, (step, _) = axes.pop()
        strides_a = (step, strides_a[-1]) if m == 1 else strides_a[-2:]
        m *= length
    a = _Factor.of((strides_a[-2], strides_a[-1]), tuple(one[0] for _, one in axes), (m, k), address_a, size)
    b = _Factor.of((strides_b[-1], strides_b[-2]), tuple(one[1] for _, one in axes), (n, k), address_b, size)
    matrices = math.prod(length for length, _ in axes)

    turned = _turned(kernel, numbers, a, b, capability)
    to_pack = None
    if turned is None and kernel == "tensor" and capability == 90 and numbers.kind in ("TF32", "SPLIT"):
        # Groups can multiply once the smaller factor has been laid along k, which is worth it for enough products.
        to_pack, other = ("b", m) if n <= m else ("a", n)
        turned = to_pack == "a" if other >= _SIZES.packed else None
    block, splits, by_groups = _blocking(p, numbers, kernel, (m, n, k), matrices, capability, turned)
    to_pack = to_pack if by_groups else None
    rows, columns, depth = block.tile
    tiles, lines = -(-m // rows) * -(-n // columns), "n0, n1"
    if by_groups and turned:  # b is the left factor
        tiles, lines = -(-n // rows) * -(-m // columns), "n1, n0"
    part = -(-k // (splits * depth)) * depth
    splits = -(-k // part)

    integers = [m, n, k, a.outer, a.along, b.outer, b.along, tiles, splits, part]
    batch = [
        "  const unsigned matrix = unit < n8 * n7 ? 0 : unit / (unsigned)(n8 * n7);",
        "  Index at_a = 0, at_b = 0;",
        "  unsigned rest = matrix;",
    ]
    for length, (step_a, step_b) in reversed(axes):
        first = len(integers)
        integers += [length, step_a, step_b]
        batch.append(
            f"  at_a += rest % (unsigned)n{first} * n{first + 1}, at_b += rest % (unsigned)n{first} * n{first + 2}, "
            f"rest /= (unsigned)n{first};"
        )
    # What a block works at is a unit: a tile of a result, or a part of its sum.
    units = tiles * splits * matrices
    if units >= 2**31:
        raise ValueError(f"a and b must make fewer than 2^31 tiles of {rows} x {columns}, got {units}")
    body = [
        "  const unsigned unit = blockIdx.x;",
        *batch,
        f"  const Factor {', '.join(_FACTORS.values())};",
        "  const Result c{(T*)out0 + matrix * n0 * n1, n0, n1};",
        f"  const Place p = place<{rows}, {columns}>(unit, matrix, {lines}, n2, (unsigned)n7, (unsigned)n8, n9);",
    ]
    outputs = ((p.shape, numbers.memory),)
    plan = _cuda.Plan(source, "", 2, outputs, tuple(integers), units, block.threads, shared_bytes=block.shared_bytes)
    if kernel in ("naive", "tiled"):
        lengths = f"{rows}, {columns}" + (f", {depth}" if kernel == "tiled" else "")
        return dataclasses.replace(plan, body="\n".join((*body, f"  multiply_{kernel}<{lengths}>(a, b, c, p);")))
    if kernel == "packed":
        return _packed(plan, body, block.tile, numbers, matrices, (m, n, k))
    cut = splits > 1
    sums_bytes = math.prod(block.tile[:2]) * numbers.registers_bytes
    plan = dataclasses.replace(
        plan,
        zeroed_bytes=4 * tiles * matrices * cut,
        temporary_bytes=units * sums_bytes * cut,
        unbound_registers=kernel == "tensor",
        resident_blocks=2 if kernel == "conflict_free" and block.threads <= 256 and numbers.registers_bytes == 4 else 0,
    )
    lengths = f"{rows}, {columns}, {depth}"
    vectors = [math.gcd(one.vector, depth if one.along_k else length) for one, length in ((a, rows), (b, columns))]
    along_k = [str(one.along_k).lower() for one in (a, b)]
    together = 16 // numbers.registers_bytes if kernel == "conflict_free" else 2  # numbers that leave a thread at once
    if by_groups and numbers.memory_bytes == 2:
        together = 8
    whole = str(n % together == 0).lower()
    flags = f"{vectors[0]}, {along_k[0]}, {vectors[1]}, {along_k[1]}, {whole}"
    memory = "temporary, zeroed"
    if kernel == "conflict_free":
        return dataclasses.replace(
            plan, body="\n".join((*body, f"  multiply_conflict_free<{lengths}, {flags}>(a, b, c, p, {memory});"))
        )
    sources = [source, _cuda.device_source("_matmul_tensor.cu")]
    if not by_groups:
        down, across = numbers.warps(block.tile)
        call = f"multiply_tensor<{numbers.kind}, {lengths}, {down}, {across}, {block.stages}, {flags}>"
        arguments = "a, b, c, p, n2"
    else:
        if to_pack:
            plan, packing, body, packed = _packed_lines(plan, body, to_pack, matrices, (m, n, k))
            a, b = (packed, b) if turned else (a, packed)
        if numbers.kind != "DOUBLE":
            sources.append(_group_instruction(numbers, columns, a, b))
        sources.append(_cuda.device_source("_matmul_groups.cu"))
        grid = min(units, _SIZES.multiprocessors)
        left, right = (b, a) if turned else (a, b)
        copying = "BY_THREADS"
        if max(m, n, k) < 2**31 and right.fits_map(size):
            if numbers.kind == "TF32":
                copying = "RIGHT_AT_ONCE"  # which rounds it, too
            elif size == 2 and left.fits_map(size) and m * n * k * matrices >= _SIZES.at_once:
                copying = "AT_ONCE"
        if numbers.kind == "DOUBLE":
            call = f"multiply_doubles_by_groups<DOUBLE, {lengths}, {block.stages}, {flags}>"
        elif numbers.memory_bytes == 2:
            options = f"{block.stages}, {copying}, {along_k[0]}, {along_k[1]}, {whole}"
            call = f"multiply_by_groups<{numbers.kind}, {lengths}, {options}>"
        else:
            ways = ", ".join(str(way).lower() for way in (left.along_k, bool(turned)))
            options = f"{block.stages}, {copying}, {left.vector}, {ways}, {whole}"
            call = f"multiply_floats_by_groups<{numbers.kind}, {lengths}, {options}>"
        # Blocks stay, as many as there is room for, and go from unit to unit.
        body = ["  const auto work = [&](unsigned unit, const auto& then) {", *body[1:], "  then(a, b, c, p);", "  };"]
        first = len(plan.integers)
        arguments = f"work, n{first}" + ", n2" * (numbers.kind in ("TF32", "SPLIT"))
        integers = [*plan.integers, units]
        if copying != "BY_THREADS":
            memory += f", Bulk{{n2, n{first + 1}, n{first + 2}, n{first + 3}, scratch}}"
            integers += [matrices, a.step or 0, b.step or 0]
            plan = dataclasses.replace(plan, scratch_bytes=256 * grid)
        plan = dataclasses.replace(plan, integers=tuple(integers), grid=grid, own_instructions=True)
    call += f"({arguments}, {memory});"
    plan = dataclasses.replace(plan, source="\n".join(sources), body="\n".join((*body, f"  {call}")))
    if not to_pack:
        return plan
    return dataclasses.replace(packing, integers=plan.integers, scratch_bytes=plan.scratch_bytes, then=(plan,))


def _turned(kernel: str, numbers: _Numbers, a: _Factor, b: _Factor, capability: int) -> bool | None:
    """Return whether groups of four warps are to multiply b and a and turn the result; None if they cannot multiply.

    Both factors are to be read 16 bytes at once where numbers have 2; where they have 4 the right one, and along k. In
    float64 they may lie in any way.
    """
    if kernel != "tensor" or capability != 90:
        return None
    if numbers.kind == "DOUBLE":
        return False
    if numbers.memory_bytes == 2:
        return False if a.vector == b.vector == 8 else None
    fits = [one.along_k and one.vector == 4 for one in (b, a)]
    return not fits[0] if any(fits) else None


def _group_instruction(numbers: _Numbers, columns: int, a: _Factor, b: _Factor) -> str:
    """Return the CUDA text of multiply_group for numbers, a width, and the way that the factors lie."""
    half = columns // 2
    sums = ", ".join(f"%{i}" for i in range(half))
    outputs = ", ".join(f'"+f"(c[{i}])' for i in range(half))
    if numbers.memory_bytes == 2:
        kind = "f16" if numbers.kind == "HALF" else "bf16"
        left, operand, inputs, at = "unsigned long long a", f"%{half}", '"l"(a)', half + 1
        name, flags = f"k16.f32.{kind}.{kind}", f", {int(not a.along_k)}, {int(not b.along_k)}"
    else:
        registers = ", ".join(f"%{half + i}" for i in range(4))
        left, operand, at = "const unsigned (&a)[4]", f"{{{registers}}}", half + 4
        inputs, name, flags = ", ".join(f'"r"(a[{i}])' for i in range(4)), "k8.f32.tf32.tf32", ""
    text = (
        f"{{ .reg .pred p; setp.ne.b32 p, %{at + 1}, 0; wgmma.mma_async.sync.aligned.m64n{columns}{name} "
        f"{{{sums}}}, {operand}, %{at}, p, 1, 1{flags}; }}"
    )
    return (
        f"DEVICE void multiply_group(float (&c)[{half}], {left}, unsigned long long b, int more) {{\n"
        f'    asm volatile("{text}" : {outputs} : {inputs}, "l"(b), "r"(more) : "memory");\n}}'
    )


def _packed_lines(
    plan: _cuda.Plan, body: Sequence[str], name: str, matrices: int, lengths: tuple[int, int, int]
) -> tuple[_cuda.Plan, _cuda.Plan, list[str], _Factor]:
    """Return the plan and the body with a factor as lines along k, the launch that lays it so, and how it lies then."""
    m, n, k = lengths
    length, side, threads = m if name == "a" else n, 64, 256
    pitch, count = -(-k // 4) * 4, -(-length // side) * -(-k // side)
    begin = -(-plan.temporary_bytes // 256) * 256
    first = len(plan.integers)
    integers = (*plan.integers, pitch, count, begin, length * pitch)
    plan = dataclasses.replace(plan, integers=integers, temporary_bytes=begin + matrices * length * pitch * 4)
    place = f"(T*)((char*)temporary + n{first + 2}) + matrix * n{first + 3}"
    own = [line.replace("n8 * n7", f"n{first + 1}") for line in body[:-2]]
    call = f"  pack_lines<{side}, {threads}>({name}, n2, n{first}, {place}, unit % (unsigned)n{first + 1});"
    packing = dataclasses.replace(
        plan,
        body="\n".join((*own, call)),
        grid=count * matrices,
        block=threads,
        shared_bytes=0,
        unbound_registers=False,
    )
    packed = f"{name}{{{place}, n{first}, 1, n{'ab'.index(name)}}}"
    body = [line.replace(_FACTORS[name], packed) for line in body]
    return plan, packing, body, _Factor(pitch, 1, 4, True, length * pitch)


def _packed(
    plan: _cuda.Plan,
    body: Sequence[str],
    tile: tuple[int, int, int],
    numbers: _Numbers,
    matrices: int,
    lengths: tuple[int, int, int],
) -> _cuda.Plan:
    """Return the launches that pack a and b and multiply what is packed."""
    rows, columns, depth = tile
    m, n, k = lengths
    deep = -(-k // depth)
    counts = -(-m // rows) * deep, -(-n // columns) * deep
    sizes = [
        count * matrices * side * depth * numbers.memory_bytes
        for count, side in zip(counts, (rows, columns), strict=True)
    ]
    second = -(-sizes[0] // 256) * 256
    first = len(plan.integers)
    integers = (*plan.integers, *counts, second)
    plan = dataclasses.replace(plan, integers=integers, temporary_bytes=second + sizes[1])
    place_a = f"(T*)temporary + matrix * (n{first} * {rows * depth})"
    place_b = f"(T*)((char*)temporary + n{first + 2}) + matrix * (n{first + 1} * {columns * depth})"
    threads = 256
    packing = []
    for name, side, count, place in (("a", rows, 0, place_a), ("b", columns, 1, place_b)):
        number = f"n{first + count}"
        # The batch of a packing block goes by the number of its own tiles.
        own = [line.replace("n8 * n7", number) for line in body[:-2]]
        call = f"  pack_tiles<{side}, {depth}, {threads}>({name}, n2, {place}, blockIdx.x % {number});"
        packing.append(
            dataclasses.replace(
                plan, body="\n".join((*own, call)), grid=counts[count] * matrices, block=threads, shared_bytes=0
            )
        )
    call = f"  multiply_packed<{rows}, {columns}, {depth}>({place_a}, {place_b}, c, p);"
    multiply = dataclasses.replace(plan, body="\n".join((*body[:2], *body[-2:], call)))
    return dataclasses.replace(packing[0], then=(packing[1], multiply))


def _blocking(
    p: _Product,
    numbers: _Numbers,
    kernel: str,
    lengths: tuple[int, int, int],
    matrices: int,
    capability: int,
    turned: bool | None,
) -> tuple[_Block, int, bool]:
    """Return the block, in how many parts the sum is cut, and whether groups of four warps multiply."""
    m, n, k = lengths
    most = _SHARED.get(capability, 227) << 10
    if kernel in ("naive", "tiled", "packed"):
        return (
            _block(kernel, p.tile or (_SIZES.threads if kernel == "naive" else _SIZES.tiled), numbers, most),
            1,
            False,
        )
    kind = (numbers.kind or "").replace("BFLOAT", "HALF") if kernel == "tensor" else ""
    choices = [("groups", one) for one in (() if turned is None else dict(_SIZES.groups)[kind])]
    if p.tile is None:
        own = dict(_SIZES.tensor)[kind] if kernel == "tensor" else dict(_SIZES.conflict_free)[numbers.registers_bytes]
        choices += [(kernel, one) for one in own if _impossible(kernel, one, numbers, capability) is None]
    else:
        asked = (p.tile[1], p.tile[0], p.tile[2]) if turned else p.tile
        choices = [one for one in choices if one[1] == asked] or [(kernel, p.tile)]

    def tiles_of(name: str, tile: tuple[int, int, int]) -> int:
        rows, columns = (tile[1], tile[0]) if turned and name == "groups" else tile[:2]
        return -(-m // rows) * -(-n // columns)

    processors = _SIZES.multiprocessors
    least = min(tiles_of(name, tile) * tile[0] * tile[1] for name, tile in choices)
    found: tuple[float, _Block, int, bool] | None = None
    for name, tile in choices:
        if tiles_of(name, tile) * tile[0] * tile[1] > 2 * least:
            continue
        block = _block(name, tile, numbers, most)
        tiles, deep = tiles_of(name, tile) * matrices, -(-k // tile[2])
        threads = 512 if kernel == "conflict_free" else 256
        resident = max(1, min(most // block.shared_bytes, threads // block.threads))
        for splits in range(1, max(1, min(resident * processors // tiles, deep // _SIZES.part)) + 1):
            units = tiles * splits
            time = -(-units // (resident * processors)) * _time(
                tile, min(resident, -(-units // processors)), deep / splits, splits, kind, name == "groups"
            )
            if found is None or time < found[0]:
                found = time, block, splits, name == "groups"
    assert found is not None
    return found[1:]


def _time(tile: tuple[int, int, int], resident: int, deep: float, splits: int, kind: str, by_groups: bool) -> float:
    """Return about how long blocks take that share a multiprocessor, in what one sum takes of a step of 16-bit floats.

    A step is a tile along k, of which there are ``deep``. As measured on an H200, each costs a block as much as 2048
    more sums, and waits as long as 8192 take unless other blocks fill the time. Besides a block takes as long as 9
    steps of 16-bit floats, and where the sum is cut as 4, and 2 for every part. Warps take twice as long as groups.
    """
    slowness = {"HALF": 1.0, "TF32": 1.0, "SPLIT": 2.5, "DOUBLE": 2.5}.get(kind, tile[2] / 4)
    besides = 9 + (4 + 2 * splits) * (splits > 1)
    sums = tile[0] * tile[1] + 2048
    return max(sums + 8192, sums * resident) * (deep * slowness + besides) * (1 if by_groups else 2)


def _kernel_refusal(xp: Namespace, p: _Product) -> str | None:
    reason = _cuda.refusal(xp, (p.a, p.b))
    if reason is not None:
        return reason
    if dtype_name(p.dtype) not in C_TYPES:
        return f"the kernel has no dtype {dtype_name(p.dtype)}"
    if not p.ring and p.identity() is None:
        return f"op {p.add.name} has no identity, from which the kernel's sums begin"
    numbers = _Numbers(p)
    reason = _best(p, numbers, _cuda.capability(xp, p.a))[1]
    if reason is not None:
        return reason
    try:
        _text(p, numbers)
    except Untraceable as untraceable:
        return str(untraceable)
    return None


_texts: dict[Any, str] = {}


def _text(p: _Product, numbers: _Numbers) -> str:
    """Return the CUDA text before the kernel, remembered where the operators last."""
    if None in p.operation:
        return _source(p, numbers)
    key = (p.operation, numbers.memory, numbers.registers, array_api_compat.is_jax_array(p.a))
    return _texts.get(key) or _cuda.remember(_texts, key, _source(p, numbers))


_runners: dict[Any, Callable[..., tuple[Array, ...]]] = {}


def _kernel(xp: Namespace, p: _Product) -> Array:
    """Return the product by a CUDA kernel."""
    if 0 in p.shape or p.a.shape[-1] == 0:
        return _array(xp, p)
    factors = (p.a if p.a.ndim > 1 else p.a[None, :], p.b if p.b.ndim > 1 else p.b[:, None])
    a, b = (_cuda.plain(xp, cast(xp, x, p.dtype)) for x in factors)
    layouts = tuple(_cuda.layout(xp, x) for x in (a, b))
    gpu = None if _cuda.is_jax(xp) else _cuda.device_index(xp, a)
    operation = p.operation
    if None in operation:
        # What they read may have changed: they are known by what they were translated into, and on JAX, which may call
        # them itself later on, by themselves too, whom the runner keeps.
        own = (id(p.add.combine), id(p.multiply.combine)) if gpu is None else ()
        operation = (_source(p, _Numbers(p)), own)
    key = (
        operation, xp, _cuda.mode(xp), p.dtype, p.working, p.shape, a.shape, b.shape, p.precision, p.kernel, p.tile,
        layouts, gpu,
    )  # fmt: skip
    runner = _runners.get(key)
    if runner is None:
        runner = _cuda.remember(_runners, key, _runner(xp, _derivatives.changed(p, a=a, b=b), layouts, gpu))
    if p.key is not None and a is p.a and b is p.b:
        _cuda.remember(_shortcuts, p.key, runner)
    (c,) = runner(a, b)
    return c


def _runner(xp: Namespace, p: _Product, layouts: Any, gpu: int | None) -> Callable[..., tuple[Array, ...]]:
    """Return a function that carries out the plan on factors of these layouts."""
    numbers, capability = _Numbers(p), _cuda.capability(xp, p.a)
    plan = _plan(p, numbers, _best(p, numbers, capability)[0], _text(p, numbers), layouts, capability)
    if gpu is not None:
        return _cuda.Runner(xp, plan, gpu)
    p = _derivatives.changed(p, a=None, b=None)  # what is remembered keeps no arrays

    def remade(a: Array, b: Array) -> _Product:
        other = _Product(xp, a, b, (p.add, p.multiply), p.operation, p.tile)
        other.choose(xp, p.precision, p.kernel)
        return other

    def otherwise(*factors: Array) -> tuple[Array, ...]:
        other = remade(*factors)
        return (xp.reshape((_native if p.ring else _array)(xp, other), p.shape),)

    def batched(*factors: Array) -> tuple[Array, ...]:
        rank = max(x.ndim for x in factors)
        other = remade(*(xp.reshape(x, (x.shape[0], *(1,) * (rank - x.ndim), *x.shape[1:])) for x in factors))
        return (xp.reshape(_kernel(xp, other), (-1, *p.shape)),)

    return _cuda.traced(plan, otherwise, batched)


_METHODS = Methods(
    "matmul",
    native=Method(_native, _native_refusal, _native_slower),
    kernel=Method(_kernel, _kernel_refusal),
    array=Method(_checked_array, _array_refusal),
)

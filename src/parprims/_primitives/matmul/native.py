"""Matrix products by the library's own routine, in a dtype in which it keeps the documented error."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    as_result,
    cast,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    is_tensor,
    lacks_products,
    library,
    library_title,
)
from parprims._libraries.numpy_bridge import as_numpy, has_values, in_numpy, returned
from parprims._libraries.settings import UNROUNDED_SUMS, may_round_sums, narrowed, narrowed_in_cupy
from parprims._primitives.matmul import cpu, crossover, integer_products
from parprims._primitives.matmul.call import Product


def prepare(xp: Namespace, p: Product) -> Callable[..., Array]:
    """Return a function of both factors: the library's own routine, or float products for large integer matrices."""
    routine = _prepare_routine(xp, p)
    if not by_floats(xp, p):
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
    """Multiply by CuPy's routine, in float64 if CuPy's settings form products of float32 with fewer bits."""
    if not narrowed_in_cupy():
        return xp.matmul(a, b)
    wide = xp.float64 if dtype_kind(a.dtype) == "float" else xp.complex128
    return cast(xp, xp.matmul(cast(xp, a, wide), cast(xp, b, wide)), a.dtype)


def _with_unrounded_sums(routine: Callable[..., Array]) -> Callable[..., Array]:
    def multiply(a: Array, b: Array) -> Array:
        with UNROUNDED_SUMS:
            return routine(a, b)

    return multiply


def by_floats(xp: Namespace, p: Product) -> bool:
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
    """Return the dtype for the library's routine: of the call, or wider to keep the documented error."""
    if dtype_name(p.dtype) in SIXTEEN_BIT_FLOATS:
        # NumPy has no fast routine for these.
        wide = array_api_compat.is_numpy_namespace(xp)
        if array_api_compat.is_cupy_namespace(xp):
            # It sums a single inner product in 16 bits, and fails for batches of bfloat16.
            wide = math.prod(p.shape) == 1 or (max(p.a.ndim, p.b.ndim) > 2 and dtype_name(p.dtype) == "bfloat16")
        if is_jax(xp):  # XLA sums in 16 bits where a factor is a vector, or has a single row or column
            wide = min(p.a.ndim, p.b.ndim) == 1 or 1 in (p.a.shape[-2], p.b.shape[-1])
        return xp.float32 if wide else p.dtype
    if is_narrowed(p):
        return xp.float64 if dtype_kind(p.dtype) == "float" else xp.complex128
    return p.working


def is_narrowed(p: Product) -> bool:
    """Return whether the library's settings form products of float32 with fewer bits than the call asks for."""
    single = dtype_name(p.dtype) in ("float32", "complex64")
    return single and is_tensor(p.a) and narrowed(p.a, p.precision)


def refusal(xp: Namespace, p: Product) -> str | None:
    if not p.ring:
        return f"{library_title(xp)} has no matrix product with add={p.add.name}, multiply={p.multiply.name}"
    if p.tile is not None:
        return f"the routine of {library_title(xp)} takes no tile"
    if lacks_products(xp, p.a, p.dtype):
        return "PyTorch multiplies no integer matrices on a CUDA device"
    return None

"""The sizes for which `auto` prefers the kernel of matrix products in CUDA memory to the library's own routine."""

from __future__ import annotations

import math

from parprims import _cuda
from parprims._core.arrays import SIXTEEN_BIT_FLOATS, Namespace, dtype_kind, dtype_name, is_jax
from parprims._libraries.numpy_bridge import carries_derivative
from parprims._libraries.settings import float32_products
from parprims._primitives.matmul.call import Product
from parprims._primitives.matmul.tiles import TUNING, Arithmetic, Sizes, Tuning, tiny_tile

_SPOKEN = {
    "float32": "large matrices of float32 faster on this device, by tensor cores",
    "float32 unaligned": "large matrices of float32 faster on this device, by tensor cores",
    "tf32": "with 10 fraction bits, by tensor cores, where the library's routine takes all 23",
    "highest": "float32 in float64 without a copy of the factors",
    "integers": "integers faster on this device",
    "16-bit unaligned": "matrices of 16-bit floats faster if rows are no multiples of 16 bytes",
}
"""The advantage of the kernel, by the family of the product."""


def may_be_faster(p: Product) -> bool:
    """Return whether the product is not empty, and the factors are of a kind for which kernels were timed."""
    ranks = p.a.ndim, p.b.ndim
    known = min(ranks) > 1 or (max(ranks) > 1 and (is_integer(p) or p.precision == "highest"))
    return known and 0 not in (*p.a.shape, *p.shape)


def kernel_faster(xp: Namespace, p: Product) -> str | None:
    """Return the sentence why the kernel is to be preferred for a checked product that it can serve, or None."""
    tuned = TUNING.get(_cuda.capability(xp, p.a))
    if tuned is None:
        return None
    k: int = p.a.shape[-1]
    m, n = p.shape[-2:] if min(p.a.ndim, p.b.ndim) > 1 else (1, p.shape[-1])
    matrices = math.prod(p.shape) // (m * n)
    if matrices >= 2**30:  # kernels number fewer than 2^31 tiles
        return None
    if p.precision == "residues":
        large = m * n * k * matrices >= tuned.residues.least[dtype_name(p.dtype)]
        return "the kernel multiplies matrices of this size faster on this device, by residues" if large else None
    family = _family(xp, p)
    least = (tuned.preferred_in_jax if is_jax(xp) else tuned.preferred).get(family)
    if least is not None and least.reached(m, n, k, matrices):
        return f"the kernel multiplies {_SPOKEN[family]}"
    called_alone = not is_jax(xp) and not carries_derivative(xp, p.arrays)  # JAX calls a program, whatever is in it
    if called_alone and _is_small(p, tuned, family, Sizes((m, n, k), matrices)):
        return "a call of the kernel takes less time for small matrices on this device"
    return None


def _family(xp: Namespace, p: Product) -> str:
    """Return the name under which `Tuning` has the least size of a product."""
    name = dtype_name(p.dtype)
    if is_integer(p):
        return "integers"
    if name in SIXTEEN_BIT_FLOATS:
        return "16-bit unaligned" if _is_unaligned(xp, p, 8) else ""
    if name != "float32":
        return ""
    if p.precision == "float32":
        return "float32 unaligned" if _is_unaligned(xp, p, 4) else "float32"
    if p.precision == "tf32" and float32_products(p.a) == "tf32":
        return ""  # PyTorch's own routine does so, too
    return str(p.precision)


def is_integer(p: Product) -> bool:
    """Return whether the factors of a checked product are of integers."""
    return dtype_kind(p.dtype) in ("int", "uint")


def _is_unaligned(xp: Namespace, p: Product, vector: int) -> bool:
    """Return whether some rows, or columns, do not begin at multiples of 16 bytes, ``vector`` elements."""
    layouts = [_cuda.layout(xp, x) for x in p.arrays]
    steps = [step for strides, _ in layouts for step in strides[-2:] if step != 1]
    return any(address for _, address in layouts) or any(step % vector for step in (*steps, p.shape[-1]))


def _is_small(p: Product, tuned: Tuning, family: str, sizes: Sizes) -> bool:
    """Return whether the call itself takes longer than the product of real numbers."""
    if dtype_kind(p.dtype) != "float":
        return False
    (m, n, k), matrices = sizes.lengths, sizes.matrices
    if max(min(m, n), k) <= 8:
        return True  # however many there are: the kernel for tiny matrices is faster by itself
    small = max(m, n, k) <= tuned.small and m * n * k * matrices <= tuned.small**3 and matrices <= tuned.small_matrices
    if not small or family != "16-bit unaligned":
        return small
    # A kernel for larger matrices of 16-bit floats copies them first if their rows are no multiples of 16 bytes.
    return tiny_tile(Arithmetic.of(dtype_name(p.dtype), "float32", p.ring, p.precision), (m, n, k)) is not None

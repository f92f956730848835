"""The record of a checked sort, and integers in the order of keys."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    cast,
    check_flag,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_tensor,
    library,
    normalize_axis,
)
from parprims._cuda import transformed
from parprims._dispatch.dispatch import Checked
from parprims._dispatch.primitive import Arguments


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sorting(Checked):
    """A call of sort, argsort or sort_by_key. Its arrays are the keys, then the values.

    Parameters
    ----------
    axis : int
        The axis to sort along, counted from the front.
    descending, stable : bool
        The options of the call.
    keyed : bool
        Whether the results begin with the sorted keys and the values.
    indices : bool
        Whether the indices that sort are the last result.
    index : str, optional
        The dtype of indices by kernels for GPUs, if not the library's own.
    """

    axis: int
    descending: bool
    stable: bool
    keyed: bool
    indices: bool
    index: str | None = None

    @property
    def keys(self) -> Array:
        """The keys."""
        return self.arrays[0]

    @property
    def values(self) -> tuple[Array, ...]:
        """The arrays that move with the keys."""
        return self.arrays[1:]

    @property
    def keys_alone(self) -> bool:
        """Whether the sorted keys are the only result."""
        return self.keyed and not self.indices and len(self.arrays) == 1


def checked(asked: Arguments) -> tuple[Namespace, Sorting]:
    """Return the namespace and the checked call."""
    name = next(iter(asked.arrays))
    values = asked.arrays.get("values") or ()
    xp, arrays = admit({name: asked[name], **{f"values[{index}]": x for index, x in enumerate(values)}}, moved=True)
    keys = arrays[0]
    descending, stable = check_flag("descending", asked["descending"]), check_flag("stable", asked["stable"])
    for index, x in enumerate(arrays[1:]):
        if x.shape != keys.shape:
            raise ValueError(f"values[{index}] must have the shape of keys, {tuple(keys.shape)}, got {tuple(x.shape)}")
    if dtype_kind(keys.dtype) not in ("bool", "int", "uint", "float") or dtype_bits(keys.dtype) not in (8, 16, 32, 64):
        raise TypeError(
            f"{name} must be of bool, or of an integer or real floating dtype of 8 to 64 bits, "
            f"got {dtype_name(keys.dtype)}"
        )
    return xp, Sorting(
        arrays=tuple(arrays),
        key=asked.key_of(*arrays),
        axis=normalize_axis(asked["axis"], keys.ndim),
        descending=descending,
        stable=stable,
        keyed=asked.name != "argsort",
        indices=asked.name == "argsort",
    )


def index_dtype(xp: Namespace) -> Any:
    """Return the library's default dtype for indices."""
    return xp.__array_namespace_info__().default_dtypes()["indexing"]


def moved(xp: Namespace, x: Array, move: Callable[[Array], Array]) -> Array:
    """Return ``move(x)``; where PyTorch would fail or change bits, the elements are moved as signed integers.

    PyTorch on GPUs moves no unsigned integers, and on CPUs it replaces every NaN of bfloat16 by one NaN.
    """
    unsigned = dtype_kind(x.dtype) == "uint" and hasattr(x, "view") and getattr(x.dtype, "isnative", True)
    if unsigned and is_tensor(x) and _cannot_view():
        return xp.astype(move(xp.astype(x, xp.int64)), x.dtype)
    if unsigned or (dtype_name(x.dtype) == "bfloat16" and is_tensor(x) and not (x.requires_grad or transformed())):
        return move(bits(xp, x)).view(x.dtype)
    return move(x)


# ---- Keys as integers -------------------------------------------------------------------------------------------

FRACTION_BITS = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


def bits(xp: Namespace, x: Array) -> Array:
    """Return the bits of numbers as integers of equal width, signed where arrays have views.

    Without views integers stay unchanged, and the bits of floats are computed, equal for all NaN.
    """
    if dtype_kind(x.dtype) == "bool":
        return xp.astype(x, xp.int8)
    if can_view(x):
        x = x.resolve_neg() if is_tensor(x) else x  # PyTorch has no view of the bits of a lazily negated tensor
        return x.view(getattr(xp, f"int{dtype_bits(x.dtype)}"))
    return computed_bits(xp, x) if dtype_kind(x.dtype) == "float" else x


def can_view(x: Array) -> bool:
    """Return whether an array has a view as another dtype of equal width."""
    return hasattr(x, "view") and getattr(x.dtype, "isnative", True) and not (is_tensor(x) and _cannot_view())


def _cannot_view() -> bool:
    """Return whether torch.func is transforming, in a PyTorch without a rule for views of bits."""
    import torch

    return bool(torch._C._are_functorch_transforms_active()) and not _has_rule_for_views()


@functools.cache
def _has_rule_for_views() -> bool:
    import torch

    try:
        torch.func.vmap(lambda x: x.view(torch.int32))(torch.zeros(1, 1))
    except RuntimeError:
        return False
    return True


def computed_bits(xp: Namespace, x: Array) -> Array:
    """Return the bits of floats by exact arithmetic: |x| = significand 2^exponent, 1 <= significand < 2.

    A subnormal has the least exponent and a significand below 1.
    """
    width, fraction = dtype_bits(x.dtype), FRACTION_BITS[dtype_name(x.dtype)]
    bias = 2 ** (width - fraction - 2) - 1
    significand = xp.where(xp.isfinite(x), abs(x), xp.zeros_like(x))
    exponent = xp.zeros_like(x, dtype=getattr(xp, f"int{width}"))
    step = (bias + 1) // 2
    while step:
        large = significand >= 2.0**step
        small = (significand < 2.0 ** (1 - step)) & (exponent - step > -bias)
        significand = xp.where(large, significand * 2.0**-step, xp.where(small, significand * 2.0**step, significand))
        exponent = xp.where(large, exponent + step, xp.where(small, exponent - step, exponent))
        step //= 2
    # The leading 1 of a normal significand adds 1 to the exponent's field.
    magnitude = (exponent + (bias - 1)) * 2**fraction + xp.astype(significand * 2.0**fraction, exponent.dtype)
    infinity = (2 * bias + 1) * 2**fraction
    magnitude = xp.where(xp.isinf(x), xp.full_like(magnitude, infinity), magnitude)
    magnitude = xp.where(xp.isnan(x), xp.full_like(magnitude, infinity + 2 ** (fraction - 1)), magnitude)
    return xp.where(xp.signbit(x), magnitude | xp.iinfo(magnitude.dtype).min, magnitude)


def ordered_integers(xp: Namespace, x: Array) -> Array:
    """Return integers in the order of x, equal where x is equal: the bits of a float, read as sign and magnitude.

    So -0 becomes 0, and every NaN the largest integer.
    """
    if dtype_kind(x.dtype) in ("int", "uint"):
        return x
    pattern = bits(xp, x)
    if dtype_kind(x.dtype) == "bool":
        return pattern
    largest = xp.iinfo(pattern.dtype).max
    infinity = largest - 2 ** FRACTION_BITS[dtype_name(x.dtype)] + 1
    magnitude = pattern & largest
    signed = xp.where(pattern < 0, -magnitude, magnitude)
    return xp.where(magnitude > infinity, xp.full_like(signed, largest), signed)


def ascending_integers(xp: Namespace, x: Array, descending: bool = False) -> Array:
    """Return integers that a library can compare, in the order of x or its reverse, equal where x is equal."""
    keys = bits(xp, ordered_integers(xp, x))
    if dtype_kind(x.dtype) == "uint" and dtype_kind(keys.dtype) == "int":
        keys = keys ^ xp.iinfo(keys.dtype).min
    return ~keys if descending else keys


# ---- Subnormal numbers ------------------------------------------------------------------------------------------


def flushes(xp: Namespace, dtype: Any) -> bool:
    """Return whether the library's own operations on a dtype may flush subnormal numbers to zero.

    XLA does so on CPUs, and CuPy in its operations on float32.
    """
    libraries = ("jax",) if dtype_name(dtype) == "float64" else ("jax", "cupy")
    return dtype_kind(dtype) == "float" and library(xp) in libraries


def comparable(xp: Namespace, x: Array) -> Array:
    """Return an array that the library orders as x: integers, NaN the largest, where it may flush subnormal numbers."""
    return ascending_integers(xp, x) if flushes(xp, x.dtype) else x


def from_comparable(xp: Namespace, keys: Array, dtype: Any) -> Array:
    """Return the numbers of a dtype from their keys by `comparable`; both zeros become 0."""
    return keys if not flushes(xp, dtype) else xp.where(keys < 0, -keys | xp.iinfo(keys.dtype).min, keys).view(dtype)


def widened(xp: Namespace, x: Array, dtype: Any) -> Array:
    """Return x in a dtype that holds its values, including subnormal numbers that the library's cast would flush."""
    if x.dtype == dtype or not flushes(xp, x.dtype):
        return cast(xp, x, dtype)
    pattern, fraction = bits(xp, x), FRACTION_BITS[dtype_name(x.dtype)]
    magnitude = pattern & xp.iinfo(pattern.dtype).max
    least = 2.0 ** (2 - 2 ** (dtype_bits(x.dtype) - fraction - 2) - fraction)
    small = xp.astype(xp.where(pattern < 0, -magnitude, magnitude), dtype) * least
    return xp.where((magnitude > 0) & (magnitude < 2**fraction), small, xp.astype(x, dtype))

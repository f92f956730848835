"""The record of a checked selection, and the checks that make it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    check_kind,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    is_tensor,
)
from parprims._core.jax_arrays import is_traced
from parprims._core.options import integer_of
from parprims._core.scalars import as_scalar
from parprims._dispatch.composite import Composed
from parprims._dispatch.primitive import Arguments
from parprims._libraries.numpy_bridge import shares_memory
from parprims._libraries.settings import compiling
from parprims._primitives.sort.call import index_dtype

NO_SIZE = "size must be given inside jit, vmap and torch.compile, where the number of results is unknown"
"""The error of a call without ``size`` in a program that is traced or compiled."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Selection(Composed):
    """A checked call. ``size`` is the length of the results; None if the call counts them."""

    size: int | None
    fill_value: Any


class Bounded(Selection):
    """A call whose results have the largest possible length at first, and are then shortened to their count."""


def check_select(asked: Arguments) -> tuple[Namespace, Selection]:
    """Return the namespace and the record of a call of `select`; raise, naming the argument, for wrong arguments."""
    xp, (x, mask) = admit(asked.arrays)
    _check_mask(x, mask)
    return xp, _sized(xp, asked, (x, mask), counted=False)


def check_partition_by(asked: Arguments) -> tuple[Namespace, Selection]:
    """Return the namespace and the record of a call of `partition_by`."""
    xp, (x, mask) = admit(asked.arrays)
    _check_mask(x, mask)
    return xp, Selection(
        arrays=(x, mask),
        key=asked.key_of(x, mask),
        results=(((math.prod(x.shape),), x.dtype), ((), index_dtype(xp))),
        size=None,
        fill_value=0,
    )


def check_run_lengths(asked: Arguments) -> tuple[Namespace, Selection]:
    """Return the namespace and the record of a call of `run_lengths`."""
    xp, (x,) = admit(asked.arrays)
    if x.ndim != 1:
        raise ValueError(f"x must have one dimension, got shape {tuple(x.shape)}")
    return xp, _sized(xp, asked, (x,), counted=True)


def check_unique(asked: Arguments) -> tuple[Namespace, Selection]:
    """Return the namespace and the record of a call of `unique`."""
    xp, (x,) = admit(asked.arrays)
    if dtype_kind(x.dtype) not in ("bool", "int", "uint", "float") or dtype_bits(x.dtype) not in (8, 16, 32, 64):
        raise TypeError(f"x must be of bool, or of an integer or real floating dtype, got {dtype_name(x.dtype)}")
    return xp, _sized(xp, asked, (x,), counted=True)


def _check_mask(x: Array, mask: Array) -> None:
    check_kind("mask", mask, ("bool",))
    if mask.shape != x.shape:
        raise ValueError(f"mask must have the shape of x, {tuple(x.shape)}, got {tuple(mask.shape)}")


def _sized(xp: Namespace, asked: Arguments, arrays: tuple[Array, ...], *, counted: bool) -> Selection:
    """Return the record of a call with a size; ``counted`` says that a result counts each element."""
    x, size, fill_value = arrays[0], asked["size"], asked["fill_value"]
    length = None if size is None else integer_of("size", size, 0, 2**31 - 1)
    if type(fill_value) is int and fill_value == 0 and dtype_kind(x.dtype) == "bool":
        fill_value = False
    fill_value = as_scalar("fill_value", fill_value, x.dtype)
    if length is None and any(map(has_no_value, arrays)):
        raise ValueError(NO_SIZE)
    # A program of JAX returns the largest possible length, so one program serves every count. NumPy needs no program.
    by_numpy = asked.method in ("auto", "native") and shares_memory(xp, arrays)
    bounded = length is None and is_jax(xp) and not by_numpy
    n, index = math.prod(x.shape), index_dtype(xp)
    shape = (n if length is None else length,)
    counts = ((shape, index),) if counted else ()
    return (Bounded if bounded else Selection)(
        arrays=arrays,
        key=None if bounded else asked.key_of(*arrays),
        results=((shape, x.dtype), *counts, ((), index)),
        size=n if bounded else length,
        fill_value=fill_value,
    )


def has_no_value(x: Array) -> bool:
    """Return whether an array belongs to a program being traced, or to a transformation, and has no values."""
    if is_tensor(x):
        import torch

        return bool(compiling(x) or torch._C._are_functorch_transforms_active())
    return is_traced(x)

"""The record of a checked matrix product, and the checks that make it."""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    broadcast_shapes,
    check_choice,
    check_kind,
    compute_dtype,
    device,
    dtype_name,
    is_jax,
    mode,
    repr_short,
    ring_dtype,
)
from parprims._dispatch.by_device import in_tiles_on_gpus
from parprims._dispatch.dispatch import Checked, exact
from parprims._dispatch.primitive import Arguments
from parprims._operators.function_key import lasting_key
from parprims._operators.in_place import Few, is_own
from parprims._operators.operator import BUILT_IN, Operator, as_operator, check_components, rounds
from parprims._primitives.matmul.array import array
from parprims._primitives.matmul.tiles import KERNELS, Arithmetic, impossible

PRECISIONS = ("float32", "tf32", "highest", "residues")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Product(Checked):
    """A checked call of `matmul`.

    Parameters
    ----------
    add, multiply : Operator
        The operators.
    ring : bool
        Whether they are sum and product.
    operation : tuple
        Keys of the operators, None for one that may change (see `lasting_key`).
    dtype, shape
        The dtype and the shape of the result.
    working : dtype
        The dtype computed in.
    batch : tuple of int
        The shape that the batches of a and b broadcast to.
    precision : str
        The precision of products of float32.
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
    def in_one_order(self) -> bool:
        """Whether the canonical order of sums is asked for, and the kernel has it: not where it sums residues."""
        return self.canonical and self.precision != "residues"

    @property
    def lasts(self) -> bool:
        """Whether the operators can be remembered."""
        return None not in self.operation

    @staticmethod
    def of(
        xp: Namespace,
        factors: tuple[Array, Array],
        operators: tuple[Operator, Operator],
        *,
        operation: tuple[Any, Any] = (None, None),
        key: Any = None,
        **options: Any,
    ) -> Product:
        """Check a call and return its record; ``options`` are its fields ``precision``, ``kernel`` and ``tile``."""
        (a, b), (add, multiply) = factors, operators
        precision, kernel, tile = options.get("precision", "float32"), options.get("kernel"), options.get("tile")
        ring = _is_ring(operators)
        dtype, batch = _dtype(xp, a, b), _batch(a, b)
        working = (ring_dtype if ring else compute_dtype)(xp, dtype)
        if not ring:
            for op in operators:
                check_components(op, (working,), "a")
        check_choice("precision", precision, PRECISIONS)
        if kernel is not None:
            check_choice("kernel", kernel, KERNELS)
        if precision == "residues":
            if dtype_name(dtype) not in ("float32", "float64") or not ring:
                what = dtype_name(dtype) if ring else f"add={add.name}, multiply={multiply.name}"
                raise ValueError(f"precision 'residues' is for sums of products of float32 or float64, got {what}")
        elif precision != "float32":
            if dtype_name(dtype) != "float32" or not ring:
                what = dtype_name(dtype) if ring else f"add={add.name}, multiply={multiply.name}"
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
        """Return the error of a trial of the operators on a few elements, or None."""
        if not (is_own(self.add) or is_own(self.multiply)):
            return None
        m, n = (min(2, x.shape[axis]) if x.ndim > 1 else 1 for x, axis in ((self.a, -2), (self.b, -1)))
        k = min(2, self.a.shape[-1])

        def multiply(x: Array, y: Array) -> None:
            array(xp, self.of_factors(xp, x[:m, :k], y[:k, :n]))

        if 0 in (*self.shape, k):
            return None
        few = Few(self.a, (2, 2), axes=(), most=0, dtypes=tuple([x.dtype for x in self.arrays]))
        return few.failure(xp, multiply)

    def empty(self, xp: Namespace) -> Array:
        """Return an uninitialised array like the product."""
        return xp.empty(self.shape, dtype=self.dtype, device=device(self.a))

    def identity(self) -> Any:
        """Return the identity of the sum, or None if there is none."""
        values = self.add.identity(dtype_name(self.working))
        return None if values is None else values[0]

    def of_factors(self, xp: Namespace, a: Array, b: Array) -> Product:
        """Return the record of the call with other factors, which may have other shapes."""
        operators = self.add, self.multiply
        options: dict[str, Any] = {"tile": self.tile, "precision": self.precision, "kernel": self.kernel}
        product = Product.of(xp, (a, b), operators, operation=self.operation, **options)
        return dataclasses.replace(product, canonical=self.canonical)


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


# ---- Checks -----------------------------------------------------------------------------------------------------


def checked(asked: Arguments) -> tuple[Namespace, Product]:
    """Return the namespace and the checked call."""
    xp, (a, b) = admit(asked.arrays)
    operators = as_operators(asked["add"], asked["multiply"])
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
    kernel = asked["kernel"]
    product = Product.of(
        xp,
        (a, b),
        operators,
        operation=(lasting_key(asked["add"]), lasting_key(asked["multiply"])),
        key=asked.key_of(a, b),
        tile=_tile(asked["tile"]),
        precision=asked["precision"],
        kernel=kernel,
    )
    if kernel is not None and asked.method not in ("auto", "canonical", "kernel"):
        raise ValueError(f"kernel names a kernel of method 'kernel', got method {asked.method!r}")
    return xp, product


def as_operators(add: Any, multiply: Any) -> tuple[Operator, Operator]:
    """Return the arguments ``add`` and ``multiply`` as operators."""
    return as_operator(add, "add"), as_operator(multiply, "multiply")


def _is_ring(operators: tuple[Operator, Operator]) -> bool:
    """Return whether the operators are sum and product."""
    return operators == (BUILT_IN["add"], BUILT_IN["multiply"])


def _tile(tile: Any) -> tuple[int, int, int] | None:
    """Return the argument ``tile`` as lengths of m, n and k."""
    if tile is None:
        return None
    lengths = tile if isinstance(tile, tuple) else (tile, tile, tile)
    if not all(
        isinstance(length, numbers.Integral) and not isinstance(length, bool | np.timedelta64) for length in lengths
    ):
        raise TypeError(f"tile must be an integer or a tuple of 3 integers, got {repr_short(tile)}")
    if len(lengths) != 3:
        raise ValueError(f"tile must have 3 lengths, of m, n and k, got {tile!r}")
    m, n, k = (int(length) for length in lengths)
    if min(m, n, k) < 1:
        raise ValueError(f"tile must be positive, got {tile!r}")
    return m, n, k


def departs(name: str, xp: Namespace, p: Product) -> str | None:
    """Return the sentence why a method does not group the terms of an element canonically, or None."""
    if not any(rounds(op, [x.dtype for x in p.arrays]) for op in (p.add, p.multiply)):
        return exact(name, xp, p)
    if name == "array" and is_jax(xp):
        return "XLA decides by the shape of a product where it rounds a b + c once"
    return exact(name, xp, p) if p.in_one_order else in_tiles_on_gpus(name, xp, p)

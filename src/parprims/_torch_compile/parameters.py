"""The inputs of the nodes by name, and the schemas of the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from parprims._core.arrays import Array


class Reduce(NamedTuple):
    """The inputs of a reduction, except a dot product."""

    x: Sequence[Array]
    op: str
    initial_arrays: Sequence[Array]
    initial: Sequence[Any] | None
    dtype: Sequence[str]
    primitive: str
    axis: Sequence[int] | None
    keepdims: bool
    method: str


class Vecdot(NamedTuple):
    """The inputs of a dot product."""

    x1: Array
    x2: Array
    axis: int
    method: str


class Scan(NamedTuple):
    """The inputs of a scan."""

    x: Sequence[Array]
    op: str
    initial_arrays: Sequence[Array]
    initial: Sequence[Any] | None
    dtype: Sequence[str]
    primitive: str
    axis: int | None
    exclusive: bool
    reverse: bool
    include_initial: bool
    method: str


class Recurrence(NamedTuple):
    """The inputs of a linear recurrence: each operand is an array or a number, and the other field is None."""

    a_array: Array | None
    a: Any
    b_array: Array | None
    b: Any
    initial_array: Array | None
    initial: Any
    axis: int
    reverse: bool
    method: str


class Sort(NamedTuple):
    """The inputs of a sort: keys, then values."""

    arrays: Sequence[Array]
    primitive: str
    indices: bool
    axis: int
    descending: bool
    stable: bool
    method: str


class Argsort(NamedTuple):
    """The inputs of `argsort`."""

    x: Array
    axis: int
    descending: bool
    stable: bool
    method: str


class Tridiagonal(NamedTuple):
    """The inputs of tridiagonal systems: each diagonal is an array or a number, and the other field is None."""

    lower_array: Array | None
    lower: Any
    diag_array: Array | None
    diag: Any
    upper_array: Array | None
    upper: Any
    rhs: Array
    axis: int
    pivot: str
    periodic: bool
    transpose: bool
    return_residual: bool
    return_status: bool
    method: str


class Call(NamedTuple):
    """The inputs of a primitive without a node of its own; ``arguments`` is the text of its names and options."""

    arrays: Sequence[Array]
    primitive: str
    arguments: str
    method: str


class Matmul(NamedTuple):
    """The inputs of a matrix product."""

    a: Array
    b: Array
    add: str
    multiply: str
    precision: str
    kernel: str | None
    tile: Sequence[int] | None
    method: str


_ELEMENTS = "Tensor[] x, str op, Tensor[] initial_arrays, Scalar[]? initial, str[] dtype, str primitive"

SCHEMAS: dict[type, str] = {
    Reduce: f"({_ELEMENTS}, int[]? axis, bool keepdims, str method) -> Tensor[]",
    Vecdot: "(Tensor x1, Tensor x2, int axis, str method) -> Tensor",
    Scan: f"({_ELEMENTS}, int? axis, bool exclusive, bool reverse, bool include_initial, str method) -> Tensor[]",
    Recurrence: "(Tensor? a_array, Scalar? a, Tensor? b_array, Scalar? b, Tensor? initial_array, Scalar? initial, "
    "int axis, bool reverse, str method) -> Tensor",
    Sort: "(Tensor[] arrays, str primitive, bool indices, int axis, bool descending, bool stable, str method) "
    "-> Tensor[]",
    Argsort: "(Tensor x, int axis, bool descending, bool stable, str method) -> Tensor",
    Tridiagonal: "(Tensor? lower_array, Scalar? lower, Tensor? diag_array, Scalar? diag, Tensor? upper_array, "
    "Scalar? upper, Tensor rhs, int axis, str pivot, bool periodic, bool transpose, bool return_residual, "
    "bool return_status, str method) -> Tensor[]",
    Call: "(Tensor[] arrays, str primitive, str arguments, str method) -> Tensor[]",
    Matmul: "(Tensor a, Tensor b, str add, str multiply, str precision, str? kernel, int[]? tile, str method) "
    "-> Tensor",
}
"""Inputs and results of every node, in PyTorch's schema language; the inputs are in the order of the fields."""

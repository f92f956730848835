"""The inputs of a node: the arrays and numbers of a call, which a program may change, and a text of everything else."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from parprims._core.arrays import Array
from parprims._core.options import made_plain
from parprims._dispatch.primitive import declared

ARRAYS = "Tensor[] arrays, Scalar[]? floats, Scalar[]? ints, str primitive, str arguments, str method"
"""The inputs in PyTorch's schema language, in the order of the fields of `Flat`."""


class Flat(NamedTuple):
    """The inputs in the form of the schema, as PyTorch passes them.

    Parameters
    ----------
    arrays : sequence of Array
        All arrays of the call.
    floats, ints : sequence, optional
        The numbers of the call, which may be symbols of a graph.
    primitive : str
        The name of the declaration in `declared`.
    arguments : str
        The `Layout` and all options, as a Python literal.
    method : str
        The requested method.
    """

    arrays: Sequence[Array]
    floats: Sequence[Any] | None
    ints: Sequence[Any] | None
    primitive: str
    arguments: str
    method: str


class Inputs(NamedTuple):
    """The inputs, by the parameters of the public function.

    Parameters
    ----------
    primitive : str
        The name of the declaration.
    named : dict
        The arguments that are arrays or numbers, or tuples of these.
    options : dict
        The other options, with operators and dtypes by name.
    method : str
        The requested method.
    """

    primitive: str
    named: dict[str, Any]
    options: dict[str, Any]
    method: str

    def option(self, name: str) -> Any:
        """Return an option, or the value that the declaration fixes for it."""
        return self.options[name] if name in self.options else declared[self.primitive].defaults[name]

    def node(self) -> list[Array]:
        """Return the results of the node."""
        results: list[Array] = torch.ops.parprims.call(*flat(*self))
        return results


Layout = list[tuple[str, bool, list[Any]]]
"""Each argument's name, whether it is a tuple, and for each entry its kind of input, or its value in a tuple."""


def flat(primitive: str, named: dict[str, Any], options: dict[str, Any], method: str) -> Flat:
    """Return the fields of `Inputs` as `Flat`; torch.compile reads this function."""
    arrays: list[Any] = []
    floats: list[Any] = []
    ints: list[Any] = []
    layout = []
    for name, value in named.items():
        several, kinds = isinstance(value, tuple), []
        for one in value if several else (value,):
            kind: Any = "array"
            if one is None or isinstance(one, bool | str):
                kind = (one,)
            elif isinstance(one, complex):
                kind = (repr(one.real), repr(one.imag))
            elif isinstance(one, int | torch.SymInt):
                kind = "int"
                ints.append(one)
            elif isinstance(one, float | torch.SymFloat):
                kind = "float"
                floats.append(one)
            else:
                arrays.append(one)
            kinds.append(kind)
        layout.append((name, several, kinds))
    text = literal(layout, options)
    return Flat(arrays, floats or None, ints or None, primitive=primitive, arguments=text, method=method)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def literal(layout: Layout, options: dict[str, Any]) -> str:
    """Return the text of the layout and the options of a call."""
    return repr((layout, made_plain(**options) or options))


@functools.lru_cache(maxsize=4096)
def read(arguments: str) -> tuple[Layout, dict[str, Any]]:
    """Return the layout and the options in a text of `literal`."""
    found: tuple[Layout, dict[str, Any]] = ast.literal_eval(arguments)
    return found


def by_name(flat: Flat) -> Inputs:
    """Return the inputs as `Inputs`."""
    layout, options = read(flat.arguments)
    return Inputs(flat.primitive, named(layout, flat.arrays, flat.floats or (), flat.ints or ()), options, flat.method)


def dims_by_name(flat: Flat, dims: Sequence[Any]) -> dict[str, Any]:
    """Return the axes of vmap by parameter, given the axis of each array."""
    layout, _ = read(flat.arguments)
    return named(layout, dims, [None] * len(flat.floats or ()), [None] * len(flat.ints or ()))


def named(layout: Layout, arrays: Sequence[Any], floats: Sequence[Any], ints: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments that a layout describes, by parameter."""
    left = {"array": iter(arrays), "float": iter(floats), "int": iter(ints)}

    def entry(kind: Any) -> Any:
        if isinstance(kind, str):
            return next(left[kind])
        return kind[0] if len(kind) == 1 else complex(*map(float, kind))

    return {
        name: tuple([entry(kind) for kind in kinds]) if several else entry(kinds[0]) for name, several, kinds in layout
    }


def tensors(value: Any) -> list[Array]:
    """Return the arrays of an argument."""
    return [one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, torch.Tensor)]

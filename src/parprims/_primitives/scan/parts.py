"""Kernels on elements of small matrices and vectors: each of their numbers is a component of the element.

A scan of arrays of shape (n, 3, 3) and (n, 3) becomes a scan of twelve arrays of shape (n,). `_operators.small`
translates the operator.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, is_jax
from parprims._core.programs import one_program
from parprims._dispatch.derivative_rules import by_operations, detached
from parprims._dispatch.dispatch import Method
from parprims._operators.in_place import is_own
from parprims._operators.operator import Operator
from parprims._operators.small import combined
from parprims._operators.tracing import Scalar
from parprims._primitives.reduce.call import refused_shapes

MOST = 128
"""The most numbers of an element, as of a kernel for GPUs."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """The division of arrays into the numbers of their trailing axes.

    Parameters
    ----------
    axes : int
        The number of axes before the trailing axes.
    shapes : tuple of tuple of int
        The trailing axes of each array.
    """

    axes: int
    shapes: tuple[tuple[int, ...], ...]

    @property
    def count(self) -> int:
        """The number of components."""
        return sum(math.prod(shape) for shape in self.shapes)

    def split(self, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """Return the components of arrays."""
        lead = (slice(None),) * self.axes
        return tuple(
            [x[(*lead, *at)] for x, shape in zip(arrays, self.shapes, strict=True) for at in np.ndindex(*shape)]
        )

    def joined(self, xp: Namespace, components: Sequence[Array]) -> tuple[Array, ...]:
        """Return the arrays of components, which may have lost axes before the trailing axes."""
        arrays, first = [], 0
        for shape in self.shapes:
            some = components[first : first + math.prod(shape)]
            first += len(some)
            whole = xp.stack(list(some), axis=-1) if shape else some[0]
            arrays.append(xp.reshape(whole, (*some[0].shape, *shape)) if len(shape) > 1 else whole)
        return tuple(arrays)

    def repeated(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return a value of each array for each of its components."""
        return tuple([one for one, shape in zip(values, self.shapes, strict=True) for _ in range(math.prod(shape))])

    def operator(self, xp: Namespace, op: Operator) -> Operator:
        """Return the operator on components."""
        packed = len(self.shapes) > 1 or op.components is not None

        def combine(earlier: Any, later: Any) -> Any:
            return op.combine(earlier, later) if packed else op.combine(earlier[0], later[0])

        def on_components(earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
            if isinstance(earlier[0], Scalar):
                return combined(combine, self.axes, self.shapes, (earlier, later))
            return self.split(op(self.joined(xp, earlier), self.joined(xp, later)))

        return Operator(on_components, commutative=op.commutative, name=op.name, components=self.count)


def parts_of(r: Any, axis: int) -> Parts | str | None:
    """Return the division of a call's arrays, the reason why there is none, or None for elements without such axes."""
    shapes = r.shapes or [r.shape] * (len(r.arrays) if not hasattr(r, "inputs") else len(r.inputs))
    trailing = tuple([tuple(shape[axis + 1 :]) for shape in shapes])
    if not is_own(r.op) and r.shapes is None:
        return None
    if not any(trailing):
        return None
    parts = Parts(axis + 1, trailing)
    if not 0 < parts.count <= MOST:
        return f"an element has {parts.count} numbers, and a kernel takes {MOST} at most" if r.shapes else None
    if any(tuple(shape[:axis]) != tuple(shapes[0][:axis]) for shape in shapes):
        return "the arrays have several shapes before the axis"
    return parts


def of_components(xp: Namespace, r: Any) -> Any:
    """Return the scan of the components, or the reason why there is none; None for elements without trailing axes."""
    parts = parts_of(r, r.axis)
    if not isinstance(parts, Parts):
        return parts
    arrays = tuple(map(detached, r.arrays))
    count = len(r.inputs)
    return dataclasses.replace(
        r,
        arrays=(*parts.split(arrays[:count]), *(parts.split(arrays[count:]) if r.starts else ())),
        key=None,
        complete=None,
        shape=tuple(r.shape[: r.axis + 1]),
        shapes=None,
        single=False,
        op=parts.operator(xp, r.op),
        operation=None if r.operation is None else ("components", r.operation, parts.axes, parts.shapes),
        identity=None if r.identity is None else parts.repeated(r.identity),
        working=parts.repeated(r.working),
        dtypes=parts.repeated(r.dtypes),
    )


def or_components(method: Method, operations: Callable[..., Callable[..., Any]]) -> Method:
    """Return a kernel method that also takes elements of small matrices.

    ``operations`` takes the namespace and the call, and returns the call in operations of the library, whose derivative
    is that of the kernel.
    """

    def refusal(xp: Namespace, r: Any) -> str | None:
        assert method.refusal is not None
        reason = method.refusal(xp, r)
        if reason is None:
            return None
        inner = of_components(xp, r)
        if inner is None or isinstance(inner, str):
            return inner or reason
        return method.refusal(xp, inner)

    def chosen(xp: Namespace, r: Any) -> Any:
        assert method.refusal is not None
        return r if refused_shapes(r) is None and method.refusal(xp, r) is None else of_components(xp, r)

    def slower(xp: Namespace, r: Any) -> str | None:
        return None if method.slower is None else method.slower(xp, chosen(xp, r))

    def prepare(xp: Namespace, r: Any) -> Callable[..., Any]:
        inner = chosen(xp, r)
        if inner is r:
            return method.prepare(xp, r)
        parts = parts_of(r, r.axis)
        assert isinstance(parts, Parts)
        compute, count, single = method.prepare(xp, inner), len(r.inputs), r.single

        def split(*arrays: Array) -> tuple[Array, ...]:
            return (*parts.split(arrays[:count]), *(parts.split(arrays[count:]) if len(arrays) > count else ()))

        def joined(*components: Array) -> tuple[Array, ...]:
            return parts.joined(xp, components)

        if is_jax(xp):
            split, joined = one_program(split), one_program(joined)

        def run(*arrays: Array) -> tuple[Array, ...]:
            return joined(*compute(*split(*arrays)))

        whole = by_operations(xp, r.arrays, run, lambda: operations(xp, dataclasses.replace(r, single=False)))
        return (lambda *arrays: whole(*arrays)[0]) if single else whole

    return dataclasses.replace(method, prepare=prepare, refusal=refusal, slower=slower)

"""Kernels on elements of small matrices and vectors: each of their numbers is a component of the element.

A scan of arrays of shape (n, 3, 3) and (n, 3) becomes a scan of twelve arrays of shape (n,). `_operators.small`
translates the operator.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import is_jax_array

from parprims._core.arrays import Array, Namespace, dtype_name, is_jax, namespace_of
from parprims._core.jax_arrays import is_traced
from parprims._core.memo import Memo
from parprims._core.programs import one_program
from parprims._dispatch.composite import stand_in
from parprims._dispatch.derivative_rules import by_operations, detached
from parprims._dispatch.dispatch import Method
from parprims._dispatch.watch import listing
from parprims._operators.in_place import is_own
from parprims._operators.operator import Operator
from parprims._operators.small.operator import combined
from parprims._operators.tracing import Scalar, Untraceable, trace_combine
from parprims._primitives.reduce.call import Reduction, Values, finish, refused_shapes
from parprims._primitives.reduce.call import result_dtypes as reduced_dtypes
from parprims._primitives.scan.call import Scan

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
        """Return the components of arrays with any number of axes before the trailing axes."""
        pairs = zip(arrays, self.shapes, strict=True)
        leads = [(x, (slice(None),) * (x.ndim - len(shape)), shape) for x, shape in pairs]
        return tuple([_entry(x, (*lead, *at), len(lead)) for x, lead, shape in leads for at in np.ndindex(*shape)])

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

    def key(self, operation: Any) -> Any:
        """Return the key of the operator on components, given that of the operator."""
        return None if operation is None else ("components", operation, self.axes, self.shapes)

    def identity(self, op: Operator) -> Callable[..., tuple[Any, ...] | None]:
        """Return the identity of the operator on components, as a function of the names of their dtypes."""

        def of(*names: str) -> tuple[Any, ...] | None:
            begins = itertools.accumulate(map(math.prod, self.shapes[:-1]), initial=0)
            found = op.identity(*[names[at] for at in begins])
            return None if found is None else self.repeated(found)

        return of

    def operator(self, xp: Namespace, op: Operator, identity: Any = None) -> Operator:
        """Return the operator on components, with an identity if it is given."""
        packed = len(self.shapes) > 1 or op.components is not None

        def combine(earlier: Any, later: Any) -> Any:
            return op.combine(earlier, later) if packed else op.combine(earlier[0], later[0])

        def on_arrays(earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
            return self.split(op(self.joined(xp, earlier), self.joined(xp, later)))

        def on_components(earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
            if isinstance(earlier[0], Scalar):
                return combined(combine, self.axes, self.shapes, (earlier, later))
            run = on_arrays
            for _ in range(earlier[0].ndim - self.axes):  # a program of JAX has an axis more for each vmap around it
                run = _vmap(run)
            return run(earlier, later)

        return Operator(
            on_components, identity=identity, commutative=op.commutative, name=op.name, components=self.count
        )


def _entry(x: Array, index: tuple[Any, ...], axes: int) -> Array:
    """Return the entries of an array at an index that leaves the first axes; a stand-in if methods are only listed."""
    if listing() and is_jax_array(x) and not is_traced(x):  # it may be a stand-in itself, without memory
        return stand_in(namespace_of(x), x, tuple(x.shape[:axes]), x.dtype)
    return x[index]


def _vmap(run: Callable[..., tuple[Array, ...]]) -> Callable[..., tuple[Array, ...]]:
    import jax

    mapped: Callable[..., tuple[Array, ...]] = jax.vmap(run)
    return mapped


def parts_of(shapes: Sequence[tuple[int, ...]], axis: int, *, differ: bool) -> Parts | str | None:
    """Return the division of arrays, the reason why there is none, or None for elements without trailing axes."""
    trailing = tuple([tuple(shape[axis + 1 :]) for shape in shapes])
    if not any(trailing):
        return None
    parts = Parts(axis + 1, trailing)
    if not 0 < parts.count <= MOST:
        return f"an element has {parts.count} numbers, and a kernel takes {MOST} at most" if differ else None
    if any(tuple(shape[:axis]) != tuple(shapes[0][:axis]) for shape in shapes):
        return "the arrays have several shapes before the axis"
    if any(0 in shape for shape in trailing):
        return "an array has no elements"
    return parts


def combines_axes(xp: Namespace, op: Operator, arrays: Sequence[Array], axis: int) -> bool:
    """Return whether an operator is known to combine axes behind an axis: it has a trace on them alone."""
    parts = parts_of([tuple(x.shape) for x in arrays], axis, differ=False)
    names = tuple([dtype_name(x.dtype) for x in arrays])
    if not is_own(op) or not isinstance(parts, Parts) or _is_traceable(op, names):
        return False
    return _is_traceable(parts.operator(xp, op), parts.repeated(names))


def _is_traceable(op: Operator, names: tuple[str, ...]) -> bool:
    try:
        trace_combine(op, names)
    except Untraceable:
        return False
    return True


Divided = tuple[Parts, Any]
"""The division of a call, and the call on the components."""


def of_scan(xp: Namespace, r: Scan) -> Divided | str | None:
    """Return the scan of the components, or the reason why there is none; None for elements without trailing axes."""
    if not is_own(r.op) and r.shapes is None:
        return None
    parts = parts_of(r.shapes or [r.shape] * len(r.inputs), r.axis, differ=r.shapes is not None)
    if not isinstance(parts, Parts):
        return parts
    arrays, count = tuple(map(detached, r.arrays)), len(r.inputs)
    return parts, dataclasses.replace(
        r,
        arrays=(*parts.split(arrays[:count]), *(parts.split(arrays[count:]) if r.starts else ())),
        key=None,
        complete=None,
        shape=tuple(r.shape[: r.axis + 1]),
        shapes=None,
        single=False,
        op=parts.operator(xp, r.op),
        operation=parts.key(r.operation),
        identity=None if r.identity is None else parts.repeated(r.identity),
        working=parts.repeated(r.working),
        dtypes=parts.repeated(r.dtypes),
    )


def _on_components(
    xp: Namespace, count: int, parts: Parts, compute: Callable[..., Any]
) -> Callable[..., tuple[Array, ...]]:
    """Return a function of ``count`` arrays, and of initial values; ``compute`` takes and returns components."""

    def split(*arrays: Array) -> tuple[Array, ...]:
        return (*parts.split(arrays[:count]), *(parts.split(arrays[count:]) if len(arrays) > count else ()))

    def joined(*components: Array) -> tuple[Array, ...]:
        return parts.joined(xp, components)

    if is_jax(xp):  # single operations of JAX take long
        split, joined = one_program(split), one_program(joined)
    return lambda *arrays: joined(*compute(*split(*arrays)))


def run_scan(xp: Namespace, r: Scan, parts: Parts, compute: Callable[..., Any]) -> Callable[..., tuple[Array, ...]]:
    """Return a function of the arrays of a scan; ``compute`` scans the components."""
    return _on_components(xp, len(r.inputs), parts, compute)


def of_reduction(xp: Namespace, r: Reduction) -> Divided | str | None:
    """Return the reduction of the components, without an initial element; or else as `of_scan` does."""
    if r.fn is not None or len(r.axes) != 1 or (not is_own(r.op) and r.shapes is None):
        return None
    parts = parts_of(r.shapes or [r.shape] * len(r.arrays), r.axes[0], differ=r.shapes is not None)
    if not isinstance(parts, Parts):
        return parts
    return parts, dataclasses.replace(
        r,
        arrays=parts.split(tuple(map(detached, r.arrays))),
        key=None,
        complete=None,
        shape=tuple(r.shape[: r.axes[0] + 1]),
        shapes=None,
        single=False,
        op=parts.operator(xp, r.op),
        operation=parts.key(r.operation),
        dtypes=None if r.dtypes is None else parts.repeated(r.dtypes),
        initial=None,
        begun=False,
    )


def run_reduction(
    xp: Namespace, r: Reduction, parts: Parts, compute: Callable[..., Any]
) -> Callable[..., tuple[Array, ...]]:
    """Return a function of the arrays of a reduction; ``compute`` reduces the components."""
    bare = r.on(*(None,) * len(r.arrays))
    reduced = _on_components(xp, len(r.arrays), parts, compute)
    dtypes = reduced_dtypes(xp, r, tuple([x.dtype for x in r.arrays]))

    def run(*arrays: Array) -> tuple[Array, ...]:
        totals = reduced(*arrays)
        if bare.initial is None:
            return totals
        values = Values(arrays, dtypes, single=False, op=bare.op, differ=True)
        found: tuple[Array, ...] = finish(xp, bare, values, totals)
        return found

    return run


LONGEST = 256
"""The most operations of an operator on numbers for which ``auto`` takes a kernel.

On an H200's compiler, products of 4 x 4 (112 operations) and Kalman filters of two states (168) compile in 8 and 17 s,
without spills. Products of 6 x 6 (396) and filters of three states (571) take 26 and 66 s, and spill over 1.5 KB.
"""


_counts: Memo[int] = Memo()
"""The numbers of operations of operators, by their keys and the dtypes of components."""


def too_long(r: Scan | Reduction) -> str | None:
    """Return the reason why ``auto`` passes over the kernel of an operator on components, or None."""
    dtypes = r.working if isinstance(r, Scan) else [x.dtype for x in r.arrays[: r.op.components]]
    names = tuple(map(dtype_name, dtypes))
    count = None if r.operation is None else _counts.get((r.operation, names))
    if count is None:
        count = len(trace_combine(r.op, names).lines)
        if r.operation is not None:
            _counts.keep((r.operation, names), count)
    if count <= LONGEST:
        return None
    return f"an operator of {count} operations on numbers takes long to compile, and more registers than a thread has"


def or_components(
    method: Method,
    divided: Callable[[Namespace, Any], Divided | str | None],
    run_divided: Callable[..., Callable[..., tuple[Array, ...]]],
    operations: Callable[[Namespace, Any], Callable[..., Any]],
) -> Method:
    """Return a kernel method that also takes elements of small matrices.

    Parameters
    ----------
    method : Method
        The method on elements of numbers.
    divided : callable
        Returns the call on components: `of_scan` or `of_reduction`.
    run_divided : callable
        Returns the function of the arrays: `run_scan` or `run_reduction`.
    operations : callable
        Takes the namespace and the call; returns the call in operations of the library. The kernel has the derivative
        of these operations.
    """
    refusal_of = method.refusal
    assert refusal_of is not None

    def refusal(xp: Namespace, r: Scan | Reduction) -> str | None:
        reason = refused_shapes(r) or refusal_of(xp, r)
        found = None if reason is None else divided(xp, r)
        return refusal_of(xp, found[1]) if isinstance(found, tuple) else found or reason

    def chosen(xp: Namespace, r: Scan | Reduction) -> Divided | None:
        """Return the divided call, or None if the method takes the call itself."""
        found = None if r.shapes is None and refusal_of(xp, r) is None else divided(xp, r)
        return found if isinstance(found, tuple) else None

    def slower(xp: Namespace, r: Scan | Reduction) -> str | None:
        found = chosen(xp, r)
        inner = r if found is None else found[1]
        reason = None if method.slower is None else method.slower(xp, inner)
        return too_long(inner) if reason is None and found is not None else reason

    def prepare(xp: Namespace, r: Scan | Reduction) -> Callable[..., Any]:
        found = chosen(xp, r)
        if found is None:
            return method.prepare(xp, r)
        if r.n == 0:  # there is nothing to combine, but there may be an initial element
            return operations(xp, r)
        parts, inner = found
        run = run_divided(xp, r, parts, method.prepare(xp, inner))
        several = dataclasses.replace(r, arrays=(None,) * len(r.arrays), key=None, single=False)
        whole = by_operations(xp, r.arrays, run, lambda: operations(xp, several))
        return (lambda *arrays: whole(*arrays)[0]) if r.single else whole

    return dataclasses.replace(method, prepare=prepare, refusal=refusal, slower=slower)


Operations = Callable[[Namespace, Any], Callable[..., Any]]


def of_scans(method: Method, operations: Operations) -> Method:
    """Return a kernel method of scans that also takes elements of small matrices (see `or_components`)."""
    return or_components(method, of_scan, run_scan, operations)


def of_reductions(method: Method, operations: Operations) -> Method:
    """Return a kernel method of reductions that also takes elements of small matrices (see `or_components`)."""
    return or_components(method, of_reduction, run_reduction, operations)

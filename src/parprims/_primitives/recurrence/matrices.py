"""Linear recurrences of vectors, x[n] = A[n] x[n-1] + b[n]: scans of maps by matrices."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import (
    Array,
    Namespace,
    along,
    broadcast_shapes,
    cast,
    check_flag,
    compute_dtype,
    device,
    lacks_arithmetic,
    move_axis,
    normalize_axis,
)
from parprims._core.promotion import promoted
from parprims._core.scalars import as_array, maker
from parprims._dispatch.by_device import in_tiles_on_gpus
from parprims._dispatch.composite import Composed, Part, by_parts, stand_in
from parprims._dispatch.derivative_rules import asked_for
from parprims._dispatch.dispatch import Method, Methods, directly
from parprims._dispatch.examples import Given, Sample, floats, lines
from parprims._dispatch.primitive import Arguments, Primitive
from parprims._operators.operator import Operator
from parprims._primitives.recurrence.call import coefficients
from parprims._primitives.scan.grouping import Scans, in_blocks
from parprims._primitives.scan.public import scan

_WIDEST = 8
"""The longest vectors, of k numbers, with maps that are scanned as elements of k (k + 1) component arrays."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Maps(Composed):
    """A checked call. ``arrays`` are A, (..., n, k, k), b, (..., n, k), and perhaps the vector before the first.

    ``shape`` is the shape of the result; n counts along its ``axis``, counted from the front.
    """

    shape: tuple[int, ...]
    axis: int
    reverse: bool
    dtype: Any
    working: Any

    def maps(self, xp: Namespace) -> tuple[Array, Array]:
        """Return all matrices and vectors in the working dtype. The first matrix is zero if no vector is before it."""
        k, n = self.shape[-1], self.shape[self.axis]
        a = xp.broadcast_to(cast(xp, self.arrays[0], self.working), (*self.shape, k))
        b = xp.broadcast_to(cast(xp, self.arrays[1], self.working), self.shape)
        if 0 in self.shape or len(self.arrays) > 2:
            return a, b
        first_entry = along(self.axis, n - 1, n) if self.reverse else along(self.axis, 0, 1)
        others = along(self.axis, 0, n - 1) if self.reverse else along(self.axis, 1, n)
        pair = xp.zeros_like(a[first_entry]), a[others]
        return xp.concat(pair[::-1] if self.reverse else pair, axis=self.axis), b

    def start(self, xp: Namespace) -> tuple[Array, ...]:
        """Return the vector before the first in the working dtype, with length 1 along the axis, if there is one."""
        return tuple([xp.expand_dims(cast(xp, x, self.working), axis=self.axis) for x in self.arrays[2:]])


def _times(xp: Namespace, a: Array, x: Array) -> Array:
    """Return matrices times vectors, in their own precision on every device."""
    return xp.sum(a * xp.expand_dims(x, axis=-2), axis=-1, dtype=a.dtype)


def _checked(asked: Arguments) -> tuple[Namespace, _Maps]:
    """Return the namespace and the checked call."""
    xp, (a, b) = coefficients(asked["a"], asked["b"])
    reverse, initial = check_flag("reverse", asked["reverse"]), asked["initial"]
    dtype = promoted(xp, {"a": a, "b": b}, ("int", "uint", "float", "complex"))
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ValueError(f"a must have shape (..., n, k, k), or (k, k), got {tuple(a.shape)}")
    if b.ndim < 2 or b.shape[-1] != a.shape[-1] or b.shape[-1] == 0:
        raise ValueError(f"b must have shape (..., n, k), with k {a.shape[-1]} as in a, got {tuple(b.shape)}")
    try:
        shape = (*broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-1])), b.shape[-1])
    except ValueError:
        shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"a and b must broadcast but for the axes of matrices, got shapes {shapes}") from None
    axis = normalize_axis(asked["axis"], len(shape) - 1)
    starts: tuple[Array, ...] = ()
    complete = None
    if initial is not None:
        argument = ("initial", initial, xp, dtype, device(b), (*shape[:axis], *shape[axis + 1 :]))
        starts, begin = (as_array(*argument),), maker(*argument)

        def complete(a: Array, b: Array, start: Any) -> tuple[Array, ...]:
            return a, b, begin(start)

    return xp, _Maps(
        arrays=(a, b, *starts),
        key=asked.key_of(a, b, *(() if initial is None else (initial,))),
        complete=complete,
        results=((shape, dtype),),
        single=True,
        shape=shape,
        axis=axis,
        reverse=reverse,
        dtype=dtype,
        working=compute_dtype(xp, dtype),
    )


# ---- By array operations ----------------------------------------------------------------------------------------


def _array(xp: Namespace, c: _Maps) -> Array:
    """Return the solution by a scan of pairs of matrix and vector."""
    # The axis stands before those of a state, so that the block of the scan does not depend on other lines.
    axis = len(c.shape) - 2
    a, b, *start = (move_axis(xp, x, c.axis, axis) for x in (*c.maps(xp), *c.start(xp)))
    if c.reverse:
        a, b = xp.flip(a, axis=axis), xp.flip(b, axis=axis)

    def compose(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        (one, x), (other, y) = earlier, later
        both = xp.sum(xp.expand_dims(other, axis=-1) * xp.expand_dims(one, axis=-3), axis=-2, dtype=one.dtype)
        return both, _times(xp, other, x) + y

    starts = tuple([y for x in start for y in (xp.zeros_like(a[along(axis, 0, 1)]), x)])
    if 0 not in c.shape and (b.shape[axis] > 1 or starts):
        _, b = in_blocks(Scans(xp, Operator(compose, components=2), axis), (a, b), starts)
    b = move_axis(xp, xp.flip(b, axis=axis) if c.reverse else b, axis, c.axis)
    return xp.astype(b, c.dtype, copy=True)


def _array_refusal(xp: Namespace, c: _Maps) -> str | None:
    return lacks_arithmetic(xp, [c.working])


# ---- By a scan of components ------------------------------------------------------------------------------------


@functools.cache
def _operator(k: int) -> Operator:
    """Return the composition of maps of vectors of k numbers, on k (k + 1) components: rows of the matrix, vector."""

    def compose(earlier: tuple[Any, ...], later: tuple[Any, ...]) -> tuple[Any, ...]:
        result = []
        for row in range(k):
            for column in range(k):
                total = later[row * k] * earlier[column]
                for at in range(1, k):
                    total = total + later[row * k + at] * earlier[at * k + column]
                result.append(total)
        for row in range(k):
            total = later[k * k + row]
            for at in range(k):
                total = total + later[row * k + at] * earlier[k * k + at]
            result.append(total)
        return tuple(result)

    return Operator(compose, name=f"maps of {k} numbers", components=k * (k + 1))


def _components(k: int, a: Array, b: Array) -> tuple[Array, ...]:
    """Return the numbers of maps by vectors of k numbers, row by row, and those of the vectors."""
    return (*(a[..., i, j] for i in range(k) for j in range(k)), *(b[..., i] for i in range(k)))


def _parts(xp: Namespace, c: _Maps) -> list[Part]:
    like = c.arrays[1] if asked_for(c.arrays[1]) else c.arrays[0]
    k = c.shape[-1]
    options: dict[str, Any] = {"axis": c.axis, "reverse": c.reverse}
    element = stand_in(xp, like, c.shape[:-1], c.working)
    if len(c.arrays) > 2:
        options["initial"] = (stand_in(xp, like, (*c.shape[: c.axis], *c.shape[c.axis + 1 : -1]), c.working),) * (
            k * (k + 1)
        )
    return [(scan, ((element,) * (k * (k + 1)), _operator(k)), options)]


def _compose(xp: Namespace, c: _Maps, method: str) -> Array:
    (a, b), k = c.maps(xp), c.shape[-1]
    initial = None
    for start in c.start(xp):
        x = xp.squeeze(start, axis=c.axis)
        zeros = xp.zeros((*x.shape[:-1], k, k), dtype=x.dtype, device=device(x))
        initial = _components(k, zeros, x)
    elements = _components(k, a, b)
    result = scan(elements, _operator(k), axis=c.axis, reverse=c.reverse, initial=initial, method=method)
    return xp.astype(xp.stack(list(result[-k:]), axis=-1), c.dtype, copy=True)


def _narrow(method: Method) -> Method:
    """Return a method that refuses long vectors, because each length would need an operator of its own."""
    of_scan: Callable[..., str | None] | None = method.refusal

    def refusal(xp: Namespace, c: _Maps) -> str | None:
        if c.shape[-1] > _WIDEST:
            return f"a matrix has more than {_WIDEST} rows"
        return None if of_scan is None else of_scan(xp, c)

    return dataclasses.replace(method, refusal=refusal)


def _example(make: Sample) -> Given:
    return (make(make.n, 2, 2) / make.of(4), make(make.n, 2)), {"matrices": True}


OF_MATRICES = Primitive(
    name="linear_recurrence",
    variant="of matrices",
    check=_checked,
    methods=Methods(
        "linear_recurrence",
        in_tiles_on_gpus,
        kernel=_narrow(by_parts("kernel", _compose, _parts)),
        native=_narrow(by_parts("native", _compose, _parts)),
        array=Method(directly(_array), _array_refusal),
    ),
    example=floats(lines(_example)),
    optional=("initial",),
    single=True,
)
"""`linear_recurrence` with ``matrices``."""

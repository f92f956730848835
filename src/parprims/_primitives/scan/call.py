"""The record of a checked scan, and the checks that make it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    check_flag,
    compute_dtype,
    device,
    dtype_name,
    normalize_axis,
    ring_dtype,
    shared_axis,
    sum_dtype,
)
from parprims._core.options import as_dtypes, check_entries
from parprims._core.promotion import check_casts
from parprims._core.scalars import as_array, as_number, maker
from parprims._dispatch.by_device import in_tiles_on_gpus
from parprims._dispatch.dispatch import Checked, exact
from parprims._dispatch.primitive import Arguments
from parprims._operators.flags import of_equal_shapes
from parprims._operators.function_key import lasting_key
from parprims._operators.in_place import Few, operator_failure
from parprims._operators.operator import Operator, as_operator, check_components, names_of_leaves, rounds
from parprims._primitives.reduce.call import SUMS, names_of_start


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scan(Checked):
    """One call of a scan, checked. Its arrays are the inputs, then the initial element if there is one.

    Parameters
    ----------
    shape : tuple of int
        The shape of every input, or of the first if they differ.
    shapes : tuple of tuple of int, optional
        The shapes of the inputs if they differ; their lengths along the axis are equal.
    single : bool
        Whether x is one array, not a tuple.
    op : Operator
        The operator.
    operation : optional
        The key of the operator (see `lasting_key`), or None.
    axis : int
        The axis to scan along, counted from the front.
    exclusive, reverse : bool
        Whether results leave their own element out, and whether the scan starts at the end.
    identity : tuple of scalar, optional
        The element before the first, where the scan needs such an element and no initial element is given. The arrays
        of an initial element have length 1 along the axis.
    n : int
        The length of the result along the axis.
    working, dtypes : tuple of dtype
        The dtypes that components are combined in, and the dtypes of the result.
    """

    shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] | None = None
    single: bool
    op: Operator
    operation: Any = None
    axis: int
    exclusive: bool = False
    reverse: bool = False
    identity: tuple[Any, ...] | None = None
    n: int
    working: tuple[Any, ...]
    dtypes: tuple[Any, ...]

    @property
    def lasts(self) -> bool:
        """Whether the operator has a key that later calls find it by."""
        return self.operation is not None

    @property
    def in_blocks(self) -> bool:
        """Whether the canonical grouping is asked for, and matters because the operator rounds."""
        return self.canonical and rounds(self.op, self.working)

    @property
    def inputs(self) -> tuple[Array, ...]:
        """The arrays that are scanned."""
        return self.arrays[: len(self.dtypes)]

    @property
    def starts(self) -> tuple[Array, ...]:
        """The arrays of the initial element, if there is one."""
        return self.arrays[len(self.dtypes) :]

    def trial(self, xp: Namespace) -> str | None:
        """Combine a few elements; return the reason why the operator fails, or None."""
        most = min(2, self.shape[self.axis] - self.exclusive + bool(self.starts) - 1)
        few = Few(
            self.arrays[0], shape=self.shape, axes=(self.axis,), most=most, dtypes=self.working, shapes=self.shapes
        )
        return operator_failure(xp, self.op, few)

    def empty(self, xp: Namespace) -> Any:
        """Return uninitialised arrays of the shape and dtypes of the result."""
        shapes = self.shapes or [self.shape] * len(self.dtypes)
        pairs = zip(
            [(*shape[: self.axis], self.n, *shape[self.axis + 1 :]) for shape in shapes], self.dtypes, strict=True
        )
        ys = tuple([xp.empty(shape, dtype=dtype, device=device(self.arrays[0])) for shape, dtype in pairs])
        return ys[0] if self.single else ys


# ---- Dtypes and initial elements --------------------------------------------------------------------------------


def result_dtypes(
    xp: Namespace, op: Operator, dtypes: tuple[Any, ...], dtype: tuple[Any, ...] | None = None
) -> tuple[Any, ...]:
    """Return the dtype of each component of the result, for the dtypes of elements and the option ``dtype``.

    Raise, naming the argument, if the operator does not take the dtypes.
    """
    if dtype is not None:
        check_entries("dtype", dtype, len(dtypes))
        check_casts(dtypes, dtype)
        dtypes = dtype
    elif op in SUMS:
        dtypes = tuple(sum_dtype(xp, dtype) for dtype in dtypes)
    check_components(op, dtypes, requested=dtype is not None)
    return dtypes


def working_dtypes(xp: Namespace, op: Operator, dtypes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the dtypes that components are combined in, for results of the given dtypes."""
    return tuple([(ring_dtype if op in SUMS else compute_dtype)(xp, dtype) for dtype in dtypes])


def start_elements(
    xp: Namespace,
    initial: tuple[Any, ...],
    like: Array,
    shapes: Sequence[tuple[int, ...]],
    dtypes: tuple[Any, ...],
    axis: int,
    names: Sequence[str] | None = None,
) -> tuple[tuple[Array, ...], Callable[..., tuple[Array, ...]]]:
    """Return the initial element as arrays, of length 1 along the axis, and a converter.

    ``shapes`` are the shapes of the components. Messages call the components' initial values by ``names``. The
    converter makes arrays of later initial elements with an equal signature.
    """
    on = device(like)
    names = ("initial",) * len(dtypes) if names is None else names
    across = [(*shape[:axis], *shape[axis + 1 :]) for shape in shapes]
    parts = zip(names, initial, dtypes, across, strict=True)
    arguments = [(name, value, xp, dtype, on, shape, axis) for name, value, dtype, shape in parts]
    arrays, makers = (
        tuple([as_array(*argument) for argument in arguments]),
        [maker(*argument) for argument in arguments],
    )
    return arrays, lambda *values: tuple([make(value) for make, value in zip(makers, values, strict=True)])


def check_identity(xp: Namespace, op: Operator, dtypes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the identity of an operator, for results of the given dtypes; raise if it has none for empty segments."""
    identity = op.identity(*(dtype_name(compute_dtype(xp, dtype)) for dtype in dtypes))
    if identity is None:
        raise ValueError(f"initial must be given: op {op.name} has no identity for empty segments")
    return identity


def starts_of_segments(
    xp: Namespace,
    entries: Sequence[tuple[str, Any]],
    like: Array,
    shapes: Sequence[tuple[int, ...]],
    dtypes: tuple[Any, ...],
    axis: int,
    segments: int,
) -> tuple[tuple[Array, ...], bool, Callable[..., tuple[Array, ...]]]:
    """Return the initial elements of segments along an axis of shapes, whether each has its own, and a converter.

    ``entries`` are the initial values of components with their names in messages, see `named_start`. If one is an array
    of as many dimensions as the shape of its component, each segment has its own: then all components have the axis,
    with the length of the segments. Otherwise they have the shape without the axis. The converter makes arrays of later
    initial elements with an equal signature.
    """
    on = device(like)
    own = [
        getattr(as_number(value), "ndim", 0) == len(shape) for (_, value), shape in zip(entries, shapes, strict=True)
    ]
    wholes = [(*shape[:axis], segments, *shape[axis + 1 :]) for shape in shapes]
    arguments = [
        (name, value, xp, dtype, on, whole if is_own else (*whole[:axis], *whole[axis + 1 :]))
        for (name, value), dtype, is_own, whole in zip(entries, dtypes, own, wholes, strict=True)
    ]

    def spread(starts: Sequence[Array]) -> tuple[Array, ...]:
        if not any(own) or all(own):
            return tuple(starts)
        return tuple(
            [
                start if is_own else xp.broadcast_to(xp.expand_dims(start, axis=axis), whole)
                for start, is_own, whole in zip(starts, own, wholes, strict=True)
            ]
        )

    starts = spread([as_array(*one) for one in arguments])
    makers = [maker(*one) for one in arguments]
    return starts, any(own), lambda *values: spread([make(value) for make, value in zip(makers, values, strict=True)])


def named_start(op: Operator, initial: Any, count: int) -> list[tuple[str, Any]]:
    """Return the parts of an initial element with their names in messages; raise unless they are ``count``."""
    entries = entries_of(initial)
    check_entries("initial", entries, count)
    return [*zip(names_of_start(op, count), entries, strict=True)]


# ---- Checks -----------------------------------------------------------------------------------------------------


def checked(asked: Arguments) -> tuple[Namespace, Scan]:
    """Return the namespace and the checked call."""
    x, initial, operator = asked["x"], asked["initial"], as_operator(asked["op"])
    single = not isinstance(x, tuple)
    inputs: tuple[Array, ...] = (x,) if single else x
    if not inputs:
        raise ValueError("x must hold at least one array")
    names = ("x",) if single else names_of_leaves(operator, len(inputs))
    xp, admitted = admit(dict(zip(names, inputs, strict=True)))
    xs = tuple(admitted)
    exclusive, reverse = check_flag("exclusive", asked["exclusive"]), check_flag("reverse", asked["reverse"])
    include_initial = check_flag("include_initial", asked["include_initial"])
    if exclusive and include_initial:
        raise ValueError("exclusive must be False where include_initial is True, which shifts results by one too")
    xs, differ = of_equal_shapes(xp, operator, xs, asked["axis"])
    shapes = tuple([tuple(x.shape) for x in xs])
    axis = shared_axis(asked["axis"], shapes, names) if differ else only_axis(asked["axis"], xs[0].ndim)
    dtypes = result_dtypes(xp, operator, tuple(x.dtype for x in xs), as_dtypes(xp, asked["dtype"]))
    working = working_dtypes(xp, operator, dtypes)
    starts: tuple[Any, ...] = ()
    complete = identity = None
    if initial is not None:
        entries = entries_of(initial)
        check_entries("initial", entries, len(xs))
        named = names_of_start(operator, len(xs))
        starts, begin = start_elements(xp, entries, like=xs[0], shapes=shapes, dtypes=dtypes, axis=axis, names=named)
        count = len(xs)

        def complete(*values: Any) -> tuple[Array, ...]:
            return *values[:count], *begin(*values[count:])

    elif exclusive or include_initial:
        identity = operator.identity(*(dtype_name(dtype) for dtype in working))
        if identity is None:
            raise ValueError(f"initial must be given for an exclusive scan: op {operator.name} has no identity")
    as_given = all(x is other for x, other in zip(xs, inputs, strict=True))
    return xp, Scan(
        arrays=(*xs, *starts),
        key=asked.key if as_given and not (exclusive and operator.flags) else None,
        complete=complete,
        shape=xs[0].shape,
        shapes=shapes if differ else None,
        single=single,
        op=operator,
        operation=lasting_key(asked["op"]),
        axis=axis,
        exclusive=exclusive,
        reverse=reverse,
        identity=identity,
        n=xs[0].shape[axis] + int(include_initial),  # PyTorch adds no bool to a symbolic length
        working=working,
        dtypes=dtypes,
    )


def only_axis(axis: Any, ndim: int) -> int:
    """Return the axis counted from the front; None is the only axis of an array of one dimension."""
    if axis is not None:
        return normalize_axis(axis, ndim)
    if ndim == 0:
        raise ValueError("x must have at least one dimension")
    if ndim > 1:
        raise ValueError(f"axis must be given for an array of {ndim} dimensions")
    return 0


def entries_of(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def departs(name: str, xp: Namespace, s: Scan) -> str | None:
    """Return the sentence why a method does not group elements canonically, or None."""
    return exact(name, xp, s) if s.canonical or not rounds(s.op, s.working) else in_tiles_on_gpus(name, xp, s)

"""Caller's functions that change their arguments, or that mistake their axes: a trial finds them.

Where a trial cannot see changes, functions receive copies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import Array, Namespace, along, device, dtype_kind, dtype_name, quiet
from parprims._dispatch.watch import unwatched
from parprims._operators.operator import Operator, with_combine

# Functions whose trial showed that they do not change their arguments: by key, or by function if there is no key.
_tried: dict[Any, None] = {}
_tried_functions: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()


def harmless(xp: Namespace, op: Operator, key: Any, xs: tuple[Array, ...], axis: int | None = None) -> Operator:
    """Return an operator safe from in-place updates: ``op``, or ``op`` on copies if purity cannot be proven.

    Raises TypeError if the operator works in place. Each operator is tried once for each dtype, on a few elements of
    xs. ``key`` identifies the operator in later calls; None if it has no key. With ``axis`` the operator need not be
    elementwise: the few elements are the first along this axis.
    """
    if op._built_in or array_api_compat.is_jax_namespace(xp):
        return op
    if _only_copies_are_safe(xp):
        combine = op.combine
        return with_combine(op, lambda earlier, later: combine(_copied(xp, earlier), _copied(xp, later)))
    packed = len(xs) > 1 or op.components is not None
    few = None if axis is None else tuple([x[along(axis, 0, min(1, x.shape[axis]))] for x in xs])
    _try_once(xp, f"op {op.name}", ElementFunction(op.combine, 2, packed), key=key, xs=xs, few=few)
    return op


def harmless_map(xp: Namespace, fn: Callable[..., Any], key: Any, arrays: tuple[Array, ...]) -> Callable[..., Any]:
    """Return a map safe from in-place updates, as `harmless` does for an operator."""
    if array_api_compat.is_jax_namespace(xp):
        return fn
    if _only_copies_are_safe(xp):
        return lambda *xs: fn(*_copied(xp, xs))
    _try_once(xp, "fn", ElementFunction(fn, 1, False), key=key, xs=arrays)
    return fn


def check_axes(xp: Namespace, op: Operator, key: Any, xs: tuple[Array, ...], axis: int) -> None:
    """Raise the error of an operator that mistakes the axis of the call for an axis behind it.

    Arrays broadcast from their last axes. So flags of shape (n,) beside matrices of shape (n, k, k) are an error,
    except that they match columns if k is n, or n is 1. The operator is tried once for each kind of elements, on a
    number of elements that is no other length. Large elements of one shape are not tried: all broadcast alike.
    """
    shapes = [tuple(x.shape) for x in xs]
    one_shape = all(shape == shapes[0] for shape in shapes)
    size = math.prod(shapes[0]) // max(1, shapes[0][axis])
    if not is_own(op) or all(len(shape) == axis + 1 for shape in shapes) or (one_shape and size > _LITTLE):
        return
    tried_shapes = [(*shape[:axis], apart(shapes, axis), *shape[axis + 1 :]) for shape in shapes]
    dtypes = [x.dtype for x in xs]
    if any(0 in shape for shape in shapes) or _capturing(xp):
        return
    with _once(op.combine, key, (type(xs[0]), *tried_shapes, *map(dtype_name, dtypes))) as first:
        if not first:
            return
        kinds = zip(tried_shapes, dtypes, strict=True)
        try:
            with quiet(xp), unwatched():
                if array_api_compat.is_jax_namespace(xp):
                    import jax

                    few = tuple([jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in kinds])
                    jax.eval_shape(op, few, few)
                else:
                    few = tuple([xp.ones(shape, dtype=dtype, device=device(xs[0])) for shape, dtype in kinds])
                    op(few, few)
        except Exception as error:
            if not _is_singular(error):
                shown = ", ".join(map(str, tried_shapes))
                error.add_note(f"Elements of shapes {shown} were tried, with another length along axis {axis}.")
                raise


def _is_singular(error: Exception) -> bool:
    """Return whether an error comes from the values of the elements that were tried, such as singular matrices."""
    return "LinAlgError" in type(error).__name__


def apart(shapes: Sequence[tuple[int, ...]], axis: int) -> int:
    """Return the least length of the axis, of two or more, that no other axis of the shapes has."""
    others = [length for shape in shapes for at, length in enumerate(shape) if at != axis]
    least = 2
    while least in others:
        least += 1
    return least


def _only_copies_are_safe(xp: Namespace) -> bool:
    """Return whether a trial cannot see changes of an array: in programs of torch.compile and torch.func."""
    if not array_api_compat.is_torch_namespace(xp):
        return False
    import torch

    compiling: bool = torch.compiler.is_compiling()
    return compiling or torch._C._are_functorch_transforms_active()


_LITTLE = 1024
"""The most elements of a trial along the axes along which no elements are combined."""


@dataclasses.dataclass(frozen=True)
class Few:
    """A few elements of the kind of a call's, on which the caller's functions are tried before the call.

    Parameters
    ----------
    like : array
        One of the arrays of the call.
    shape : tuple of int
        The shape of the array, or the broadcast shape of all arrays.
    axes : tuple of int
        The axes along which elements are combined.
    most : int
        The number of elements along these axes: more than one, because a branch on one element raises no error.
    dtypes : tuple of dtype
        The dtypes of the arrays.
    shapes : tuple of tuple of int, optional
        The shapes of the arrays if they differ. The few elements then have all of their other axes.
    """

    like: Array
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    most: int
    dtypes: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...] | None = None

    def lengths_of_all(self) -> list[tuple[int, ...]]:
        """Return the shapes of the few elements of each array."""
        if self.shapes is None:
            return [tuple(self.lengths())] * len(self.dtypes)
        (axis,) = self.axes
        return [(*x[:axis], apart(self.shapes, axis), *x[axis + 1 :]) for x in self.shapes]

    def lengths(self) -> list[int]:
        """Return the shape of the few elements."""
        longest = max(self.axes, key=lambda axis: self.shape[axis], default=None)
        few_lengths = [1 if axis in self.axes else length for axis, length in enumerate(self.shape)]
        if longest is not None:
            few_lengths[longest] = min(self.shape[longest], max(1, self.most))
        for axis in range(len(few_lengths)):
            if axis not in self.axes and math.prod(few_lengths) > _LITTLE:
                few_lengths[axis] = 1
        return few_lengths

    def failure(self, xp: Namespace, run: Callable[..., Any], *, of_none: bool = False) -> str | None:
        """Return the failure of a function on the few elements, or None. On JAX the function is only traced.

        If other axes are shorter than in the call, only TypeErrors count, because other errors may come from a length.
        ``of_none`` says whether a call without elements passes arrays without elements to the function.
        """
        if (0 in self.shape and not of_none) or _capturing(xp) or _only_copies_are_safe(xp):
            return None
        pairs = [*zip(self.lengths_of_all(), self.dtypes, strict=True)]
        try:
            with quiet(xp), unwatched():
                if array_api_compat.is_jax_namespace(xp):
                    import jax

                    jax.eval_shape(lambda *xs: run(*xs), *(jax.ShapeDtypeStruct(shape, one) for shape, one in pairs))
                else:
                    run(*(xp.ones(shape, dtype=one, device=device(self.like)) for shape, one in pairs))
        except Exception as error:  # the caller's function, or the library, may raise any error
            cut = any(pairs[0][0][at] != length for at, length in enumerate(self.shape) if at not in self.axes)
            return None if (cut and not isinstance(error, TypeError)) or _is_singular(error) else _told(error)
        return None


def _told(error: Exception) -> str:
    """Return the message of an error that a function of the caller's raised."""
    words = str(error).strip().partition("\n")[0]
    raised = re.search(r"^Raised by (.*)\.$", "\n".join(getattr(error, "__notes__", ())), re.MULTILINE)
    return words if raised is None else f"{raised[1]} raises {type(error).__name__}: {words}"


def is_own(op: Operator) -> bool:
    """Return whether an operator, or the operator that it segments, is a function of the caller's."""
    return is_own(op._segments) if op._segments is not None else not op._built_in


def operator_failure(xp: Namespace, op: Operator, few: Few) -> str | None:
    """Return the failure of an operator of the caller's on a few elements, or None."""
    if not is_own(op):
        return None

    def combine(*xs: Array) -> None:
        safe = harmless(xp, op, None, xs)
        if few.most > 0:
            safe(xs, xs)

    return few.failure(xp, combine)


def _copied(xp: Namespace, element: Any) -> Any:
    """Return an element, an array or a tuple, with copies of its arrays."""
    if isinstance(element, tuple):
        return tuple(_copied(xp, x) for x in element)
    return xp.astype(element, element.dtype, copy=True)


@dataclasses.dataclass(frozen=True)
class ElementFunction:
    """A function of the caller's and its arguments.

    Parameters
    ----------
    function : callable
        The function.
    elements : int
        The number of elements that it takes: 2 for an operator's function, 1 for a map.
    packed : bool
        Whether an operator's function takes tuples of arrays. A map always takes the arrays one by one.
    """

    function: Callable[..., Any]
    elements: int
    packed: bool

    def __call__(self, elements: tuple[tuple[Array, ...], ...]) -> None:
        """Call the function on elements, each a tuple of arrays."""
        if len(elements) == 1:
            self.function(*elements[0])
        else:
            self.function(*(elements if self.packed else [x for (x,) in elements]))


def _try_once(
    xp: Namespace,
    name: str,
    function: ElementFunction,
    *,
    key: Any,
    xs: tuple[Array, ...],
    few: tuple[Array, ...] | None = None,
) -> None:
    """Try a function on a few elements, once for each kind of arrays; raise TypeError if it changes them.

    By default the few elements are the first along all axes.
    """
    kind = (type(xs[0]), function.packed, *(dtype_name(x.dtype) for x in xs), few and tuple([x.ndim for x in xs]))
    if math.prod(xs[0].shape) == 0 or _capturing(xp):
        return
    with _once(function.function, key, kind) as first:
        if first:
            few = few or tuple(x[((slice(0, 1),) * x.ndim + (...,))] for x in xs)
            with unwatched():
                changes = changes_arguments(xp, function, few)
            if changes:
                raise TypeError(f"{name} changes its argument in place: return a new array")


@contextlib.contextmanager
def _once(function: Callable[..., Any], key: Any, kind: Any) -> Iterator[bool]:
    """Yield whether a trial of a function on arrays of this kind is due, and remember a trial that raises nothing."""
    tried: Any = _tried
    if key is None:
        try:
            tried, key = _tried_functions.setdefault(function, set()), ()
        except TypeError:  # no key and no weak reference: every call tries the function
            tried = set()
    due = (key, kind) not in tried
    yield due
    if due and isinstance(tried, set):
        tried.add((key, kind))
    elif due:
        if len(tried) >= 4096:
            tried.clear()
        tried[key, kind] = None


def _capturing(xp: Namespace) -> bool:
    """Return whether CuPy records a CUDA graph, which forbids reading values."""
    if not array_api_compat.is_cupy_namespace(xp):
        return False
    import cupy

    capturing: bool = cupy.cuda.get_current_stream().is_capturing()
    return capturing


def changes_arguments(xp: Namespace, function: ElementFunction, xs: tuple[Array, ...]) -> bool:
    """Return whether a function changes its arguments in place. It is called on copies or read-only views of xs.

    NumPy's arrays are made read-only, and PyTorch counts the changes of a tensor. Arrays of other libraries are
    compared afterwards: copies of xs, and numbers that every operation changes. Other errors of the function are
    ignored: they appear when it is called for its result.
    """
    elements = function.elements
    numpy = array_api_compat.is_numpy_namespace(xp)
    if not numpy and not array_api_compat.is_torch_namespace(xp):
        return any(
            _changes(xp, function, tuple(argument(index) for index in range(elements)))
            for argument in (
                lambda _: _copied(xp, xs),
                lambda index: tuple(_sensitive(xp, x, index) for x in xs),
            )
        )
    if numpy:
        with np.errstate(all="ignore"):
            views = tuple(tuple(x.view() for x in xs) for _ in range(elements))
            for view in (one for element in views for one in element):
                view.flags.writeable = False
            try:
                function(views)
            except Exception as error:  # only the error of a write counts
                # A compiled function may demand writable memory without ever writing.
                return "read-only" in str(error) and "buffer source" not in str(error)
        return False
    import torch

    with torch.no_grad():
        copies = tuple(tuple(x.detach().clone() for x in xs) for _ in range(elements))
        if not _changes_are_counted(copies[0][0]):
            sensitive = tuple(tuple(_sensitive(xp, x, index) for x in xs) for index in range(elements))
            return _changes(xp, function, sensitive)
        before = [x._version for element in copies for x in element]
        with contextlib.suppress(Exception):  # appears when the function is called for its result
            function(copies)
        return before != [x._version for element in copies for x in element]


def _changes_are_counted(x: Array) -> bool:
    """Return whether PyTorch counts the changes of tensors here: not in inference mode, nor in nodes of a graph."""
    if x.is_inference():
        return False
    copy = x.clone()
    before: int = copy._version
    copy.zero_()
    return before != int(copy._version)


def _changes(xp: Namespace, function: ElementFunction, elements: tuple[tuple[Array, ...], ...]) -> bool:
    """Return whether a function changes the elements."""
    before = _copied(xp, elements)
    with contextlib.suppress(Exception):  # appears when the function is called for its result
        function(elements)
    for element, old in zip(elements, before, strict=True):
        for x, y in zip(element, old, strict=True):
            if not bool(xp.all((x == y) | ((x != x) & (y != y)))):
                return True
    return False


def _sensitive(xp: Namespace, like: Array, index: int) -> Array:
    """Return elements of an array's dtype that every operation changes: index 0 and 1 give the two operands."""
    numbers, truths = ([2, 5, 3], [4, 1, 7]), ([1, 0, 1, 0], [0, 1, 1, 0])
    values = (truths if dtype_kind(like.dtype) == "bool" else numbers)[index]
    x = xp.astype(xp.asarray(values, device=device(like)), like.dtype)
    return xp.reshape(x, (1,) * (like.ndim - 1) + (-1,)) if like.ndim else x[0]

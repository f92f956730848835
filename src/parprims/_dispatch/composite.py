"""Primitives that are made of others: the record of a checked call, and the method that computes its parts."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    cast,
    device,
    dtype_kind,
    dtype_name,
    is_jax,
    is_tensor,
    library,
    offers,
    quiet,
)
from parprims._core.jax_arrays import is_traced
from parprims._dispatch.dispatch import Checked, Departs, Inside, Method, Methods, directly, reasons
from parprims._dispatch.watch import listing, unwatched
from parprims._libraries.numpy_bridge import all_returned, as_numpy, numpy_namespace, quietly, shares_memory

Compose = Callable[[Namespace, Any, str], Any]
"""Computes a checked call by one method for all parts. Takes the namespace, the call and the method."""

Part = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A call of a primitive: the function, its arguments and its options."""

Parts = Callable[[Namespace, Any], Sequence[Part]]
"""Returns the parts of a checked call that decide which methods can compute it."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Composed(Checked):
    """A checked call of a primitive that is made of others.

    Parameters
    ----------
    results : tuple of (tuple of int, dtype)
        The shapes and dtypes of the results.
    single : bool
        Whether the result is one array and no tuple.
    """

    results: tuple[tuple[tuple[int, ...], Any], ...]
    single: bool = False

    def empty(self, xp: Namespace) -> Any:
        """Return arrays like the result."""
        on = device(self.arrays[0])
        results = tuple([xp.empty(shape, dtype=dtype, device=on) for shape, dtype in self.results])
        return results[0] if self.single else results


def by_parts(name: str, compose: Compose, parts: Parts) -> Method:
    """Return the method of this name, which computes all parts.

    The method refuses a call if it refuses a part, and ``auto`` passes over it if ``auto`` passes over it for a part.
    """
    inside = Inside(name)

    def reason(xp: Namespace, call: Composed, named: bool) -> str | None:
        with quiet(xp), unwatched():
            parts_of_call = _parts_without_values(xp, call, parts)
        for function, arguments, options in parts_of_call:
            part_reason = reasons(function, *arguments, named=named, method=inside, **options)[name]
            if part_reason is not None:
                return part_reason
        return None

    def run(xp: Namespace, call: Composed) -> Any:
        with unwatched():
            return compose(xp, call, inside)

    return Method(directly(run), lambda xp, call: reason(xp, call, True), lambda xp, call: reason(xp, call, False))


def _parts_without_values(xp: Namespace, call: Composed, parts: Parts) -> Sequence[Part]:
    """Return the parts of a call. On JAX, which has no views, their arrays are not computed but stand-ins.

    Arrays of the call itself stay as they are. Initial elements of scans and reductions are zeros in memory: they are
    small, and broadcasting needs memory.
    """
    if not is_jax(xp) or any(map(is_traced, call.arrays)):
        return parts(xp, call)
    import jax

    parts_of_shapes: list[Any] = []

    def shapes(value: Any, tracers: tuple[Array, ...]) -> Any:
        if isinstance(value, tuple | list):
            return tuple([shapes(entry, tracers) for entry in value])
        for array, tracer in zip(call.arrays, tracers, strict=True):
            if value is tracer:
                return array
        return jax.ShapeDtypeStruct(value.shape, value.dtype) if is_traced(value) else value

    def arrays(value: Any, make: Callable[..., Array]) -> Any:
        if isinstance(value, tuple):
            return tuple([arrays(entry, make) for entry in value])
        if not isinstance(value, jax.ShapeDtypeStruct):
            return value
        return make(xp, call.arrays[0], tuple(value.shape), value.dtype)

    def collect(*tracers: Array) -> None:
        for function, arguments, options in parts(xp, call.on(*tracers)):
            items = shapes(tuple(options.items()), tracers)
            parts_of_shapes.append((function, shapes(arguments, tracers), items))

    def zeros(xp: Namespace, like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return xp.zeros(shape, dtype=dtype, device=device(like))

    jax.eval_shape(collect, *call.arrays)
    return [
        (
            function,
            arrays(arguments, stand_in),
            {name: arrays(value, zeros if name == "initial" else stand_in) for name, value in options},
        )
        for function, arguments, options in parts_of_shapes
    ]


def made_once(make: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function of arrays. Its first call makes the function by ``make``, for all arrays like the first."""
    functions: list[Callable[..., Any]] = []

    def run(*arrays: Array) -> Any:
        if not functions:
            functions.append(make(*arrays))
        return functions[0](*arrays)

    return run


def composed(primitive: str, departs: Departs, /, compose: Compose, parts: Parts, **own: Method) -> Methods:
    """Return the methods of a primitive that is made of others: the given methods, the others by parts."""
    names = ("kernel", "native", "array")
    return Methods(primitive, departs, **{name: own.get(name) or by_parts(name, compose, parts) for name in names})


def through_numpy(compose: Compose) -> Compose:
    """Return a version that computes in NumPy, on views of the memory of PyTorch's and JAX's CPU arrays."""

    def computed(xp: Namespace, call: Composed, method: str) -> Any:
        if not shares_memory(xp, call.arrays):
            return compose(xp, call, method)
        changes = {
            name: tuple(map(_numpy_dtype, value)) if isinstance(value, tuple) else _numpy_dtype(value)
            for name in ("dtype", "dtypes", "working")
            if (value := getattr(call, name, None)) is not None
        }
        results = tuple([(shape, _numpy_dtype(dtype)) for shape, dtype in call.results])
        numpy_call = call.on(*map(as_numpy, call.arrays))
        numpy_call.__dict__.update(results=results, **changes)  # nobody else has this copy
        with np.errstate(all="ignore"):
            result = compose(numpy_namespace(), numpy_call, method)
        arrays = [np.asarray(x) for x in (result if isinstance(result, tuple) else (result,))]
        if is_jax(xp):  # JAX may be limited to 32 bits
            arrays = [x.astype(dtype, copy=False) for x, (_, dtype) in zip(arrays, results, strict=True)]
        returned = all_returned(xp, arrays, call.arrays)
        return returned if isinstance(result, tuple) else returned[0]

    return computed


def native_by_numpy(compose: Compose, parts: Parts, alone: Callable[..., Any] | None = None) -> Method:
    """Return the native method by NumPy, for arrays in memory that NumPy reads. On JAX it runs outside of programs.

    ``alone`` takes the namespace and the call, and returns a function of the arrays that calls NumPy's routines at once
    and never warns; None for calls that need more.
    """
    method = by_parts("native", through_numpy(compose), parts)

    def prepare(xp: Namespace, call: Composed) -> Callable[..., Any]:
        by_routines: Callable[..., Any] | None = None if alone is None else alone(xp, call)
        if by_routines is not None:
            return by_routines
        run = method.prepare(xp, call)
        return quietly(run) if library(xp) == "numpy" else run

    return dataclasses.replace(
        method, prepare=prepare, quiet=True, eager=lambda xp, call: shares_memory(xp, call.arrays)
    )


@functools.cache
def _numpy_dtype(dtype: Any) -> Any:
    return np.dtype(dtype_name(dtype))


def gathered(xp: Namespace, x: Array, index: Array, axis: int) -> Array:
    """Return the elements of x at indices along an axis, as take_along_axis. The axis is counted from the front."""
    if offers(xp, "take_along_axis"):
        return xp.take_along_axis(x, index, axis=axis)
    n, shape = x.shape[axis], index.shape
    if 0 in shape:
        return xp.zeros(shape, dtype=x.dtype, device=device(x))
    rows = xp.reshape(xp.permute_dims(x, _last(x.ndim, axis)), (-1, n))
    columns = xp.reshape(xp.permute_dims(index, _last(x.ndim, axis)), (-1, shape[axis]))
    first = xp.reshape(xp.arange(rows.shape[0], dtype=index.dtype, device=device(x)) * n, (-1, 1))
    flat = xp.take(xp.reshape(rows, (-1,)), xp.reshape(columns + first, (-1,)), axis=0)
    axis_last = (*shape[:axis], *shape[axis + 1 :], shape[axis])
    order = [*range(x.ndim - 1)]
    order.insert(axis, x.ndim - 1)
    return xp.permute_dims(xp.reshape(flat, axis_last), tuple(order))


def _last(ndim: int, axis: int) -> tuple[int, ...]:
    """Return the order of axes in which one axis is last."""
    return (*(at for at in range(ndim) if at != axis), axis)


def stand_in(xp: Namespace, like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array without memory and values, of a shape and dtype, on the device of ``like``."""
    zero = xp.zeros((), dtype=dtype, device=device(like))
    if is_jax(xp) and not (is_traced(like) or is_traced(zero)) and len(like.devices()) == 1:
        kind: Any = type(zero)  # called without checks: no public function of JAX makes an array without memory
        return kind(zero.aval.update(shape=shape), zero.sharding, [zero], committed=True, _skip_checks=True)
    if is_tensor(like) and like.requires_grad and dtype_kind(dtype) in ("float", "complex"):
        # Made of an element of ``like``: inside torch.func, requires_grad cannot be set.
        element = like.sum() if 0 in like.shape else like[(0,) * like.ndim]
        real = dtype_kind(dtype) == "float" and dtype_kind(like.dtype) == "complex"
        zero = xp.astype(element.real if real else element, dtype)
    return xp.broadcast_to(zero, shape)


def fitted(xp: Namespace, x: Array, dtype: Any, shape: tuple[int, ...] | None = None) -> Array:
    """Return x in a dtype, broadcast to the shape if given; its `stand_in` if methods are only listed."""
    shape = tuple(x.shape) if shape is None else shape
    if listing() and (x.dtype != dtype or (is_jax(xp) and tuple(x.shape) != shape)):
        return stand_in(xp, x, shape, dtype)
    x = cast(xp, x, dtype)
    return x if tuple(x.shape) == shape else xp.broadcast_to(x, shape)


def positions(xp: Namespace, x: Array, axes: tuple[int, ...], dtype: Any, start: int = 0) -> Array:
    """Return the position of every element of x along axes, in row-major order from ``start``, in the shape of x."""
    shape = tuple(n if at in axes else 1 for at, n in enumerate(x.shape))
    places = xp.arange(start, start + math.prod(shape), dtype=dtype, device=device(x))
    return xp.broadcast_to(xp.reshape(places, shape), x.shape)

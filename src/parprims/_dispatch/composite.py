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
from parprims._dispatch.dispatch import Checked, Inside, Method, Methods, directly, reasons
from parprims._dispatch.watch import listing, unwatched
from parprims._libraries.numpy_bridge import all_returned, as_numpy, numpy_namespace, quietly, shares_memory

Compose = Callable[[Namespace, Any, str], Any]
"""Computes a checked call by one method for all parts. Takes the namespace, the call and the method."""

Part = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A call of a primitive: the function, its arguments and its options."""

Parts = Callable[[Namespace, Any], Sequence[Part]]
"""Returns the parts of a checked call that decide which methods serve it."""


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
        found = tuple([xp.empty(shape, dtype=dtype, device=on) for shape, dtype in self.results])
        return found[0] if self.single else found


def by_parts(name: str, compose: Compose, parts: Parts) -> Method:
    """Return the method of this name, which computes all parts.

    The method refuses a call if it refuses a part, and ``auto`` passes over it if ``auto`` passes over it for a part.
    """
    inside = Inside(name)

    def reason(xp: Namespace, call: Composed, named: bool) -> str | None:
        with quiet(xp), unwatched():
            found_parts = _to_ask_about(xp, call, parts)
        for function, arguments, options in found_parts:
            found = reasons(function, *arguments, named=named, method=inside, **options)[name]
            if found is not None:
                return found
        return None

    def run(xp: Namespace, call: Composed) -> Any:
        with unwatched():
            return compose(xp, call, inside)

    return Method(directly(run), lambda xp, call: reason(xp, call, True), lambda xp, call: reason(xp, call, False))


def _to_ask_about(xp: Namespace, call: Composed, parts: Parts) -> Sequence[Part]:
    """Return the parts of a call. On JAX, which has no views, their arrays are stand-ins and not computed.

    Arrays of the call itself stay. So do the initial elements of scans and reductions, as zeros: they are broadcast,
    which needs the memory of an array, and are small.
    """
    if not is_jax(xp) or any(map(is_traced, call.arrays)):
        return parts(xp, call)
    import jax

    found: list[Any] = []

    def shapes(value: Any, given: tuple[Array, ...]) -> Any:
        if isinstance(value, tuple | list):
            return tuple([shapes(one, given) for one in value])
        for own, traced in zip(call.arrays, given, strict=True):
            if value is traced:
                return own
        return jax.ShapeDtypeStruct(value.shape, value.dtype) if is_traced(value) else value

    def arrays(value: Any, made: Callable[..., Array]) -> Any:
        if isinstance(value, tuple):
            return tuple([arrays(one, made) for one in value])
        if not isinstance(value, jax.ShapeDtypeStruct):
            return value
        return made(xp, call.arrays[0], tuple(value.shape), value.dtype)

    def ask(*given: Array) -> None:
        for function, arguments, options in parts(xp, call.on(*given)):
            found.append((function, shapes(arguments, given), shapes(tuple(options.items()), given)))

    def zeros(xp: Namespace, like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
        return xp.zeros(shape, dtype=dtype, device=device(like))

    jax.eval_shape(ask, *call.arrays)
    return [
        (
            function,
            arrays(arguments, stand_in),
            {name: arrays(value, zeros if name == "initial" else stand_in) for name, value in options},
        )
        for function, arguments, options in found
    ]


def made_once(make: Callable[..., Callable[..., Any]]) -> Callable[..., Any]:
    """Return a function of arrays. Its first call makes it by ``make``, for these and later arrays like them."""
    made: list[Callable[..., Any]] = []

    def run(*arrays: Array) -> Any:
        if not made:
            made.append(make(*arrays))
        return made[0](*arrays)

    return run


def composed(primitive: str, compose: Compose, parts: Parts, **own: Method) -> Methods:
    """Return the methods of a primitive that is made of others: the given methods, the others by parts."""
    names = ("kernel", "native", "array")
    return Methods(primitive, **{name: own.get(name) or by_parts(name, compose, parts) for name in names})


def through_numpy(compose: Compose) -> Compose:
    """Return a version that computes in NumPy, on views of the memory of PyTorch's and JAX's CPU arrays."""

    def computed(xp: Namespace, call: Composed, method: str) -> Any:
        if not shares_memory(xp, call.arrays):
            return compose(xp, call, method)
        changes = {
            name: tuple(map(_numpy_dtype, one)) if isinstance(one, tuple) else _numpy_dtype(one)
            for name in ("dtype", "dtypes", "working")
            if (one := getattr(call, name, None)) is not None
        }
        results = tuple([(shape, _numpy_dtype(dtype)) for shape, dtype in call.results])
        own = call.on(*map(as_numpy, call.arrays))
        own.__dict__.update(results=results, **changes)  # changes a copy that nobody else has
        with np.errstate(all="ignore"):
            found = compose(numpy_namespace(), own, method)
        made = [np.asarray(one) for one in (found if isinstance(found, tuple) else (found,))]
        if is_jax(xp):  # JAX may be limited to 32 bits
            made = [one.astype(dtype, copy=False) for one, (_, dtype) in zip(made, results, strict=True)]
        back = all_returned(xp, made, call.arrays)
        return back if isinstance(found, tuple) else back[0]

    return computed


def native_by_numpy(compose: Compose, parts: Parts, alone: Callable[..., Any] | None = None) -> Method:
    """Return the native method by NumPy, for arrays in memory that NumPy reads. On JAX it runs outside of programs.

    ``alone`` takes the namespace and the call, and returns a function of the arrays that calls NumPy's routines at once
    and never warns; None for calls that need more.
    """
    method = by_parts("native", through_numpy(compose), parts)

    def prepare(xp: Namespace, call: Composed) -> Callable[..., Any]:
        found: Callable[..., Any] | None = None if alone is None else alone(xp, call)
        if found is not None:
            return found
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
    own = xp.reshape(xp.permute_dims(index, _last(x.ndim, axis)), (-1, shape[axis]))
    first = xp.reshape(xp.arange(rows.shape[0], dtype=index.dtype, device=device(x)) * n, (-1, 1))
    flat = xp.take(xp.reshape(rows, (-1,)), xp.reshape(own + first, (-1,)), axis=0)
    kept = (*shape[:axis], *shape[axis + 1 :], shape[axis])
    order = [*range(x.ndim - 1)]
    order.insert(axis, x.ndim - 1)
    return xp.permute_dims(xp.reshape(flat, kept), tuple(order))


def _last(ndim: int, axis: int) -> tuple[int, ...]:
    return (*(at for at in range(ndim) if at != axis), axis)


def stand_in(xp: Namespace, like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array without memory and values, of a shape and dtype, on the device of ``like``."""
    one = xp.zeros((), dtype=dtype, device=device(like))
    if is_jax(xp) and not (is_traced(like) or is_traced(one)) and len(like.devices()) == 1:
        kind: Any = type(one)  # called without checks, because no public function of JAX makes an array without memory
        return kind(one.aval.update(shape=shape), one.sharding, [one], committed=True, _skip_checks=True)
    if is_tensor(like) and like.requires_grad and dtype_kind(dtype) in ("float", "complex"):
        # Made of an element of ``like``: inside torch.func, requires_grad cannot be set.
        element = like.sum() if 0 in like.shape else like[(0,) * like.ndim]
        real = dtype_kind(dtype) == "float" and dtype_kind(like.dtype) == "complex"
        one = xp.astype(element.real if real else element, dtype)
    return xp.broadcast_to(one, shape)


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

"""Loops over the steps of an algorithm, such as step doubling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from parprims._core.arrays import Array, Namespace, along, device

State = TypeVar("State")


def in_programs(xp: Namespace) -> bool:
    """Return whether the library is JAX: it compiles operations into programs, for time and memory.

    The compiler of PyTorch reads this function, so it calls no function with a cache.
    """
    return getattr(xp, "__name__", "") == "jax.numpy"


def repeated(xp: Namespace, count: int, step: Callable[[Any, State], State], state: State) -> State:
    """Return the state after ``step(i, state)`` for i = 0, 1, ..., count - 1.

    The state is an array or a tuple of arrays, and no step changes its shapes and dtypes. On JAX the program holds the
    loop once, whatever ``count`` is, and i is a traced integer of weak type, which does not change the dtype of other
    integers. On other libraries i is a Python integer.
    """
    if count > 1 and in_programs(xp):
        from jax import lax

        found: State = lax.fori_loop(0, count, step, _varying_as_results(step, state))
        return found
    for i in range(count):
        state = step(i, state)
    return state


def doubled(
    xp: Namespace, xs: tuple[Array, ...], op: Callable[[Any, Any], tuple[Array, ...]], axis: int
) -> tuple[Array, ...]:
    """Return the inclusive scan along an axis counted from the front, by step doubling.

    After the step of distance d, element i combines the 2 d elements that end with element i.
    """
    n = xs[0].shape[axis]
    if n > 2 and in_programs(xp):
        return repeated(
            xp, (n - 1).bit_length(), lambda i, xs: _combined_behind(xp, xs, op, axis=axis, distance=1 << i), xs
        )
    distance = 1
    while distance < n:
        combined = op(
            tuple([x[along(axis, 0, n - distance)] for x in xs]), tuple([x[along(axis, distance, n)] for x in xs])
        )
        xs = tuple([xp.concat([x[along(axis, 0, distance)], y], axis=axis) for x, y in zip(xs, combined, strict=True)])
        distance *= 2
    return xs


def _combined_behind(
    xp: Namespace, xs: tuple[Array, ...], op: Callable[[Any, Any], tuple[Array, ...]], *, axis: int, distance: Any
) -> tuple[Array, ...]:
    """Return JAX arrays with each element i combined with element i - distance; elements before ``distance`` unchanged.

    The distance is traced, so a pair is combined for every element. Elements before ``distance`` get the first valid
    pair and the result is discarded: no other values are combined that could make a derivative NaN.
    """
    n = xs[0].shape[axis]
    place = xp.arange(n, device=device(xs[0]))
    # Components may have different numbers of axes behind the scanned axis.
    behind = [xp.reshape(place >= distance, (n, *(1,) * (x.ndim - 1 - axis))) for x in xs]
    combined = op(
        tuple([shifted(xp, x, distance, axis) for x in xs]),
        tuple([xp.where(here, x, element(x, distance, axis)) for here, x in zip(behind, xs, strict=True)]),
    )
    return tuple([xp.where(*three) for three in zip(behind, combined, xs, strict=True)])


def shifted(xp: Namespace, x: Array, distance: Any, axis: int) -> Array:
    """Return a JAX array shifted along an axis by a traced distance between 0 and the length.

    Element i is x[i - distance], or x[0] if i < distance.
    """
    from jax import lax

    n = x.shape[axis]
    before = xp.broadcast_to(x[along(axis, 0, 1)], x.shape)
    moved: Array = lax.dynamic_slice_in_dim(xp.concat([before, x], axis=axis), n - distance, n, axis)
    return moved


def element(x: Array, place: Any, axis: int) -> Array:
    """Return the element of a JAX array at a traced index of an axis. The axis remains, with length 1."""
    from jax import lax

    found: Array = lax.dynamic_slice_in_dim(x, place, 1, axis)
    return found


def _varying_as_results(step: Callable[[Any, State], State], state: State) -> State:
    """Return a JAX state that, inside shard_map, varies over all mesh axes over which the results of a step vary.

    These axes are part of the type of an array, and a loop of JAX must not change the type of its state.
    """
    import jax

    if not jax.sharding.get_abstract_mesh().manual_axes:
        return state
    while True:
        results = jax.tree.leaves(jax.eval_shape(step, 0, state))
        leaves, tree = jax.tree.flatten(state)
        missing = [
            tuple(sorted(_varying(result) - _varying(jax.typeof(x)))) for x, result in zip(leaves, results, strict=True)
        ]
        if not any(missing):
            return state
        leaves = [jax.lax.pcast(x, axes, to="varying") if axes else x for x, axes in zip(leaves, missing, strict=True)]
        state = jax.tree.unflatten(tree, leaves)


def _varying(x: Any) -> frozenset[str]:
    found: frozenset[str] = getattr(x.manual_axis_type, "varying", frozenset())
    return found

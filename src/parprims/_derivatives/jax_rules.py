"""Derivatives on JAX, forward and backward and of any order: the tangent of a scan is a linear recurrence."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from parprims._core.arrays import Array, Namespace, cast, compute_dtype, filled, is_traced, quiet, varying_alike
from parprims._core.memo import Memo
from parprims._core.programs import one_program
from parprims._dispatch import derivative_rules
from parprims._dispatch.derivative_rules import first, join, previous, rest
from parprims._dispatch.dispatch import Call, Methods, explain, listing, tell
from parprims._primitives.recurrence import public as public_recurrence
from parprims._primitives.scan import public as public_scan
from parprims._primitives.sort.call import Sorting
from parprims._primitives.tridiagonal.residual import product


def wanted(arrays: tuple[Array | None, ...]) -> bool:
    """Return whether a derivative by one of the arrays may be asked for: whether one has no value yet."""
    return any(x is not None and is_traced(x) for x in arrays)


def _in_one_program(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Compile what a rule makes of a call as one program, and its derivative as another.

    Outside of jit each would be one operation after another, which takes up to a thousand times as long.
    """

    @functools.wraps(rule)
    def call_program(methods: Methods, method: str, xp: Namespace, call: Any) -> Any:
        described = call.described()
        if described is None or listing():
            return rule(methods, method, xp, call)
        key = rule.__name__, methods.primitive, method, described
        known = _programs.get(key)
        if known is None:
            bare = call.on(*(None,) * len(call.arrays))
            known = _programs.keep(
                key, _Program(one_program(lambda *arrays: rule(methods, method, xp, bare.on(*arrays))))
            )
        with quiet(xp), explain() as calls:
            result = known.run(*call.arrays)
        if calls:  # it was traced now
            known.calls = tuple(calls)
        else:
            tell(known.calls)
        return result

    return call_program


@dataclasses.dataclass
class _Program:
    """A compiled program, and what `explain` saw when it was traced."""

    run: Callable[..., Any]
    calls: tuple[Call, ...] = ()


_programs: Memo[_Program] = Memo()


# A rule stays with the program that it is part of, after the arrays without values that the program was made with are
# no more. So rules are given their arrays and keep a record of the call without any.


@_in_one_program
def recurrence(methods: Methods, method: str, xp: Namespace, r: Any) -> Array:
    """Return the solution of a linear recurrence, with its derivative: dx[n] = a[n] dx[n-1] + da[n] x[n-1] + db[n]."""
    given, r = r.arrays, r.on(*(None,) * len(r.arrays))
    axis, reverse = r.axis, r.reverse
    wide = compute_dtype(xp, r.dtype)

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def compute(*arrays: Array) -> Array:
        found: Array = methods(method, xp, r.on(*map(_on_device, arrays)))
        return found

    def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
        x = compute(*primals)
        a, _, start = (_known(xp, one, wide) for one in (*primals, None)[:3])
        da, db, dstart = (_known(xp, one, wide) for one in (*tangents, None)[:3])
        a, da, db = (None if one is None else xp.broadcast_to(one, r.shape) for one in (a, da, db))
        by_a = None
        if da is not None:
            by_a = derivative_rules.times_previous(xp, da, cast(xp, x, wide), start, axis, reverse)
        dx = _solution(xp, a, _sum(by_a, db), dstart, x, axis, reverse, method)
        return x, cast(xp, dx, x.dtype)

    compute.defjvp(_quietly(xp, tangent), symbolic_zeros=True)
    solution: Array = compute(*given)
    return solution


@_in_one_program
def scan(methods: Methods, method: str, xp: Namespace, r: Any) -> Any:
    """Return the scan by sum, product or affine map, with its derivative.

    The derivatives of x[0] ... x[i] and of the second component of an affine map are those of recurrences with the
    coefficients x.
    """
    given, r = (r.inputs, r.starts), r.on(*(None,) * len(r.arrays))
    axis, exclusive, reverse = r.axis, r.exclusive, r.reverse
    include_initial = r.n > r.shape[axis]

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def compute(xs: tuple[Array, ...], initial: tuple[Array, ...]) -> tuple[Array, ...]:
        y = methods(method, xp, r.on(*map(_on_device, (*xs, *initial))))
        return (y,) if r.single else y

    def elements_before(y: Array, initial: Array) -> Array:
        if exclusive:
            return y
        return rest(y, axis, not reverse) if include_initial else previous(xp, y, initial, axis, reverse)

    def arranged(dy: Array, dstart: Array | None) -> Array:
        """Return the derivative of the scan asked for, given that of the inclusive one."""
        if not exclusive and not include_initial:
            return dy
        if dstart is None:
            dstart = filled(xp, 0, dy, axis)
        return previous(xp, dy, dstart, axis, reverse) if exclusive else join(xp, dstart, dy, axis, reverse)

    def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        ys = compute(*primals)
        if r.shape[axis] == 0:
            return ys, tuple(xp.zeros_like(y) for y in ys)
        wide = tuple(compute_dtype(xp, y.dtype) for y in ys)
        xs, initial, dxs, dinitial = (
            tuple(_known(xp, one, dtype) for one, dtype in zip(ones, wide, strict=False))
            for ones in (*primals, *tangents)
        )
        dys = []
        for index, (y, dtype) in enumerate(zip(ys, wide, strict=True)):
            dstart = dinitial[index] if initial else None
            if r.op.name == "add":
                rhs, a = dxs[0], None
            else:
                start = initial[index] if initial else filled(xp, 1 - index, xs[index], axis)
                before = None if dxs[0] is None else elements_before(cast(xp, y, dtype), start)
                rhs = _sum(None if before is None else dxs[0] * before, dxs[1] if index else None)
                a = xs[0]
            dy = _solution(xp, a, rhs, dstart, xs[index], axis, reverse, method)
            dys.append(cast(xp, arranged(dy, dstart), y.dtype))
        return ys, tuple(dys)

    compute.defjvp(_quietly(xp, tangent), symbolic_zeros=True)
    ys = compute(*given)
    return ys[0] if r.single else ys


@_in_one_program
def tridiagonal(methods: Methods, method: str, xp: Namespace, s: Any) -> Array:
    """Return the solution of tridiagonal systems, whose transposed systems give the derivatives."""
    s = s.on(*varying_alike(s.arrays))
    with quiet(xp):
        x: Array = jax.lax.custom_linear_solve(
            functools.partial(product, xp, s),
            s.rhs,
            lambda _, b: methods(method, xp, s.for_rhs(b)),
            lambda _, g: methods(method, xp, s.transposed(xp, g)),
        )
    return x


def linear_system(
    xp: Namespace, matrix: Any, solve: Callable[..., Array], coefficients: tuple[Array, ...], b: Array
) -> Array:
    """Return the solutions of linear systems, with their derivatives."""
    *alike, b = varying_alike((*coefficients, b))
    other, transposed = matrix.transposed(xp, tuple(alike))
    with quiet(xp):
        x: Array = jax.lax.custom_linear_solve(
            lambda x: matrix.product(xp, tuple(alike), x),
            b,
            lambda _, b: solve(xp, matrix, tuple(alike), b),
            lambda _, g: solve(xp, other, transposed, g),
        )
    return x


def constant(x: Array) -> Array:
    """Return an array by which no derivative can be asked for."""
    return _on_device(jax.lax.stop_gradient(x)) if is_traced(x) else x


@_in_one_program
def sorting(methods: Methods, method: str, xp: Namespace, s: Sorting) -> tuple[Array, ...]:
    """Return sorted keys and values, with their derivatives: tangents move as what they belong to."""
    given, s = s.arrays, dataclasses.replace(s, arrays=(), key=None)

    def rule(*, indices: bool) -> Any:
        @jax.custom_jvp  # type: ignore[untyped-decorator]
        def compute(*arrays: Array) -> tuple[Array, ...]:
            call = dataclasses.replace(s, arrays=tuple(map(_on_device, arrays)), indices=indices)
            found: tuple[Array, ...] = methods(method, xp, call)
            return found

        def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
            ys = indexed(*primals)
            *moved, order = ys
            dys = [_moved(xp, dx, y, order, s.axis) for dx, y in zip(tangents, moved, strict=True)]
            if not indices:
                return tuple(moved), tuple(dys)
            return ys, (*dys, _nothing(order))

        compute.defjvp(tangent, symbolic_zeros=True)
        return compute

    indexed = rule(indices=True)
    result: tuple[Array, ...] = rule(indices=False)(*given)
    return result


def _moved(xp: Namespace, dx: Any, y: Array, order: Array, axis: int) -> Any:
    """Return a tangent in the order of its keys; that of an integer is nothing."""
    if not xp.issubdtype(y.dtype, xp.inexact) or isinstance(dx, jax.custom_derivatives.SymbolicZero):
        return _nothing(y)
    return xp.take_along_axis(_on_device(dx), order, axis=axis, mode="promise_in_bounds")


def _nothing(y: Array) -> Any:
    """Return the tangent of an array that depends on nothing a derivative is asked by."""
    return jax.custom_derivatives.zero_from_primal(y, symbolic_zeros=True)


def _quietly(xp: Namespace, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule that minds no more of its arrays than a method does."""

    def quietly(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        with quiet(xp):
            return rule(primals, tangents)

    return quietly


def _on_device(x: Any) -> Any:
    """Return an array as one of JAX, which hands NumPy arrays to a rule if the primal was one."""
    return x if x is None or isinstance(x, jax.Array | jax.core.Tracer) else jax.numpy.asarray(x)


def _known(xp: Namespace, x: Any, dtype: Any) -> Array | None:
    """Return an array in a dtype, or None for a derivative known to be zero."""
    if x is None or isinstance(x, jax.custom_derivatives.SymbolicZero):
        return None
    return cast(xp, _on_device(x), dtype)


def _sum(one: Array | None, other: Array | None) -> Array | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _solution(
    xp: Namespace,
    a: Array | None,
    b: Array | None,
    start: Array | None,
    like: Array,
    axis: int,
    reverse: bool,
    method: str,
) -> Array:
    """Return the solution x of x[n] = a[n] x[n-1] + b[n], a linear system whose transpose runs from the other end.

    Without a, which then is 1 everywhere, it is a sum. Without b that is zero, and then shaped as another array.
    """
    if b is None:
        b = xp.zeros_like(like, dtype=compute_dtype(xp, like.dtype))
    if b.shape[axis] == 0:
        return b
    if start is not None:
        start = start if a is None else first(a, axis, reverse) * start
        b = join(xp, first(b, axis, reverse) + start, rest(b, axis, reverse), axis, reverse)

    def equations(x: Array) -> Array:
        before = rest(x, axis, not reverse)
        before = before if a is None else rest(a, axis, reverse) * before
        return join(xp, first(x, axis, reverse), rest(x, axis, reverse) - before, axis, reverse)

    def solve(_: Any, b: Array) -> Array:
        if a is None:
            return public_scan.scan(b, axis=axis, reverse=reverse, method=method)
        return public_recurrence.linear_recurrence(a, b, axis=axis, reverse=reverse, method=method)

    def solve_transposed(_: Any, g: Array) -> Array:
        if a is None:
            return public_scan.scan(g, axis=axis, reverse=not reverse, method=method)
        return derivative_rules.transposed(xp, a, g, axis, reverse, method, public_recurrence.linear_recurrence)

    x: Array = jax.lax.custom_linear_solve(equations, b, solve, solve_transposed)
    return x

"""Derivatives on JAX, forward and backward and of any order. The tangent of a scan is a linear recurrence."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax

from parprims._core.arrays import Array, Namespace, cast, compute_dtype, filled, quiet
from parprims._core.jax_arrays import is_traced, varying_alike
from parprims._core.memo import Memo
from parprims._core.programs import one_program
from parprims._dispatch.derivative_rules import Solver, Sweep
from parprims._dispatch.dispatch import Call, Checked, Methods, explain
from parprims._dispatch.watch import listing, tell, unwatched
from parprims._primitives.recurrence import public as public_recurrence
from parprims._primitives.recurrence.call import Recurrence
from parprims._primitives.scan import public as public_scan
from parprims._primitives.scan.call import Scan
from parprims._primitives.sort.call import Sorting
from parprims._primitives.tridiagonal.call import System
from parprims._primitives.tridiagonal.residual import product


def wanted(arrays: tuple[Array | None, ...]) -> bool:
    """Return whether a derivative may be requested: whether any of the arrays is traced."""
    return any(x is not None and is_traced(x) for x in arrays)


def _in_one_program(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the operations of a rule as one program, and its derivative as another.

    Outside of jit the operations would run one by one, which takes up to a thousand times as long.
    """

    @functools.wraps(rule)
    def call_program(methods: Methods, method: str, xp: Namespace, call: Checked) -> Any:
        described = call.described()
        if described is None or listing():
            return rule(methods, method, xp, call)
        key = rule.__name__, methods.primitive, method, described
        program = _programs.get(key)
        if program is None:
            bare = call.on(*(None,) * len(call.arrays))
            program = _programs.keep(
                key, _Program(one_program(lambda *arrays: rule(methods, method, xp, bare.on(*arrays))))
            )
        with quiet(xp), explain() as calls:
            result = program.run(*call.arrays)
        if calls:  # JAX traced the program just now
            program.calls = tuple(calls)
        else:
            tell(program.calls)
        return result

    return call_program


@dataclasses.dataclass
class _Program:
    """A compiled program, and the calls that `explain` recorded when JAX traced it."""

    run: Callable[..., Any]
    calls: tuple[Call, ...] = ()


_programs: Memo[_Program] = Memo()


# A rule lives as long as its program, and so longer than the tracers with which the program was made. So rules take
# arrays as arguments, and keep a record of the call without arrays.


@_in_one_program
def recurrence(methods: Methods, method: str, xp: Namespace, r: Recurrence) -> Array:
    """Return the solution of a linear recurrence, with its derivative: dx[n] = a[n] dx[n-1] + da[n] x[n-1] + db[n]."""
    arrays, r = r.arrays, r.on(*(None,) * len(r.arrays))
    sweep = Sweep(xp, r.axis, r.reverse)
    wide = compute_dtype(xp, r.dtype)

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def compute(*arrays: Array) -> Array:
        x: Array = methods(method, xp, r.on(*map(_on_device, arrays)))
        return x

    def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
        x = compute(*primals)
        a, _, start = (_known(xp, primal, wide) for primal in (*primals, None)[:3])
        da, db, dstart = (_known(xp, tangent, wide) for tangent in (*tangents, None)[:3])
        a, da, db = (None if value is None else xp.broadcast_to(value, r.shape) for value in (a, da, db))
        by_a = None if da is None else sweep.times_previous(da, cast(xp, x, wide), start)
        b = _right_side(sweep, a, _sum(by_a, db), dstart, like=x)
        return x, cast(xp, _solution(sweep, method, a, b), x.dtype)

    compute.defjvp(_quietly(xp, tangent), symbolic_zeros=True)
    solution: Array = compute(*arrays)
    return solution


def differentiated_as(run: Callable[..., Any], function: Callable[..., Any], arrays: tuple[Array, ...]) -> Any:
    """Return the results of ``run`` with the derivatives of an equivalent function."""

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def compute(*arrays: Array) -> Any:
        return run(*map(_on_device, arrays))

    @compute.defjvp  # type: ignore[untyped-decorator]
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Any, Any]:
        with unwatched():
            _, tangent = jax.jvp(function, primals, tangents)
        return compute(*primals), tangent

    return compute(*arrays)


@_in_one_program
def scan(methods: Methods, method: str, xp: Namespace, r: Scan) -> Any:
    """Return the scan by sum, product or affine map, with its derivative.

    The products x[0] ... x[i] and the second component of an affine map solve linear recurrences with the coefficients
    x, and their derivatives are the derivatives of these recurrences.
    """
    arguments, r = (r.inputs, r.starts), r.on(*(None,) * len(r.arrays))
    axis, exclusive, sweep = r.axis, r.exclusive, Sweep(xp, r.axis, r.reverse)
    include_initial = r.n > r.shape[axis]

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def compute(xs: tuple[Array, ...], initial: tuple[Array, ...]) -> tuple[Array, ...]:
        y = methods(method, xp, r.on(*map(_on_device, (*xs, *initial))))
        return (y,) if r.single else y

    def elements_before(y: Array, initial: Array) -> Array:
        if exclusive:
            return y
        return sweep.backward.rest(y) if include_initial else sweep.previous(y, initial)

    def arranged(dy: Array, dstart: Array | None) -> Array:
        """Return the derivative of the requested scan, given the derivative of the inclusive scan."""
        if not exclusive and not include_initial:
            return dy
        if dstart is None:
            dstart = filled(xp, 0, dy, axis)
        return sweep.previous(dy, dstart) if exclusive else sweep.join(dstart, dy)

    def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        ys = compute(*primals)
        if r.shape[axis] == 0:  # the results are the initial element, or there are none
            dstarts = tangents[1] if include_initial and tangents[1] else (None,) * len(ys)
            known = (_known(xp, start, y.dtype) for start, y in zip(dstarts, ys, strict=True))
            return ys, tuple(xp.zeros_like(y) if one is None else one for one, y in zip(known, ys, strict=True))
        wide = tuple(compute_dtype(xp, y.dtype) for y in ys)
        xs, initial, dxs, dinitial = (
            tuple(_known(xp, value, dtype) for value, dtype in zip(values, wide, strict=False))
            for values in (*primals, *tangents)
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
            dy = _solution(sweep, method, a, _right_side(sweep, a, rhs, dstart, like=xs[index]))
            dys.append(cast(xp, arranged(dy, dstart), y.dtype))
        return ys, tuple(dys)

    compute.defjvp(_quietly(xp, tangent), symbolic_zeros=True)
    ys = compute(*arguments)
    return ys[0] if r.single else ys


@_in_one_program
def tridiagonal(methods: Methods, method: str, xp: Namespace, s: System) -> Array:
    """Return the solution of tridiagonal systems; the transposed systems give the derivatives."""
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
    xp: Namespace, matrix: Any, solve: Callable[..., Array], *, coefficients: tuple[Array, ...], b: Array
) -> Array:
    """Return the solutions of linear systems, with their derivatives."""
    varying = varying_alike((*coefficients, b))
    coefficients, b = tuple(varying[:-1]), varying[-1]
    transpose, transposed = matrix.transposed(xp, coefficients)
    with quiet(xp):
        x: Array = jax.lax.custom_linear_solve(
            lambda x: matrix.product(xp, coefficients, x),
            b,
            lambda _, b: solve(xp, matrix, coefficients, b),
            lambda _, g: solve(xp, transpose, transposed, g),
        )
    return x


def constant(x: Array) -> Array:
    """Return the array as a constant for derivatives."""
    return _on_device(jax.lax.stop_gradient(x)) if is_traced(x) else x


@_in_one_program
def sorting(methods: Methods, method: str, xp: Namespace, s: Sorting) -> tuple[Array, ...]:
    """Return sorted keys and values, with their derivatives: a tangent moves with its primal."""
    arrays, s = s.arrays, dataclasses.replace(s, arrays=(), key=None)

    def rule(*, indices: bool) -> Any:
        @jax.custom_jvp  # type: ignore[untyped-decorator]
        def compute(*arrays: Array) -> tuple[Array, ...]:
            call = dataclasses.replace(s, arrays=tuple(map(_on_device, arrays)), indices=indices)
            results: tuple[Array, ...] = methods(method, xp, call)
            return results

        def tangent(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
            ys = indexed(*primals)
            *results, order = ys
            dys = [_moved(xp, dx, y, order, axis=s.axis) for dx, y in zip(tangents, results, strict=True)]
            if not indices:
                return tuple(results), tuple(dys)
            return ys, (*dys, _zero_tangent(order))

        compute.defjvp(tangent, symbolic_zeros=True)
        return compute

    indexed = rule(indices=True)
    result: tuple[Array, ...] = rule(indices=False)(*arrays)
    return result


def _moved(xp: Namespace, dx: Any, y: Array, order: Array, *, axis: int) -> Any:
    """Return a tangent in the order of the sorted keys; the tangent of integers is zero."""
    if not xp.issubdtype(y.dtype, xp.inexact) or isinstance(dx, jax.custom_derivatives.SymbolicZero):
        return _zero_tangent(y)
    return xp.take_along_axis(_on_device(dx), order, axis=axis, mode="promise_in_bounds")


def _zero_tangent(y: Array) -> Any:
    """Return the tangent of an array that is constant in the inputs."""
    return jax.custom_derivatives.zero_from_primal(y, symbolic_zeros=True)


def _quietly(xp: Namespace, rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule that runs under `quiet`, as a method does."""

    def quietly(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
        with quiet(xp):
            return rule(primals, tangents)

    return quietly


def _on_device(x: Any) -> Any:
    """Return x as a JAX array: JAX passes a NumPy array to a rule if the primal was a NumPy array."""
    return x if x is None or isinstance(x, jax.Array | jax.core.Tracer) else jax.numpy.asarray(x)


def _known(xp: Namespace, x: Any, dtype: Any) -> Array | None:
    """Return an array in a dtype, or None for a derivative known to be zero."""
    if x is None or isinstance(x, jax.custom_derivatives.SymbolicZero):
        return None
    return cast(xp, _on_device(x), dtype)


def _sum(x: Array | None, y: Array | None) -> Array | None:
    """Return the sum of two derivatives, either of which may be None for zero."""
    if x is None or y is None:
        return y if x is None else x
    return x + y


def _right_side(sweep: Sweep, a: Array | None, b: Array | None, start: Array | None, *, like: Array) -> Array:
    """Return b, or zeros like ``like`` if b is None, with a[0] start added to its first element.

    If ``a`` is None, it is 1 everywhere.
    """
    if b is None:
        b = sweep.xp.zeros_like(like, dtype=compute_dtype(sweep.xp, like.dtype))
    if start is None or b.shape[sweep.axis] == 0:
        return b
    start = start if a is None else sweep.first(a) * start
    return sweep.join(sweep.first(b) + start, sweep.rest(b))


def _solution(sweep: Sweep, method: str, a: Array | None, b: Array) -> Array:
    """Return the solution x of x[n] = a[n] x[n-1] + b[n], as a linear system; its transpose runs from the other end.

    If ``a`` is None, it is 1 everywhere, and the solution is a cumulative sum.
    """
    axis, reverse = sweep.axis, sweep.reverse
    if b.shape[axis] == 0:
        return b
    solver = Solver(recurrence=public_recurrence.linear_recurrence, method=method)

    def equations(x: Array) -> Array:
        before = sweep.backward.rest(x)
        before = before if a is None else sweep.rest(a) * before
        return sweep.join(sweep.first(x), sweep.rest(x) - before)

    def solve(_: Any, b: Array) -> Array:
        if a is None:
            return public_scan.scan(b, axis=axis, reverse=reverse, method=method)
        return public_recurrence.linear_recurrence(a, b, axis=axis, reverse=reverse, method=method)

    def solve_transposed(_: Any, g: Array) -> Array:
        if a is None:
            return public_scan.scan(g, axis=axis, reverse=not reverse, method=method)
        return solver.transposed(sweep, a, g)

    x: Array = jax.lax.custom_linear_solve(equations, b, solve, solve_transposed)
    return x

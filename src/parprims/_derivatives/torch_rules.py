"""Derivatives on PyTorch by autograd functions, of calls outside of torch.compile; inside see `_torch_compile`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from parprims._core.arrays import Array, Namespace
from parprims._dispatch import derivative_rules
from parprims._dispatch.dispatch import Methods, unwatched
from parprims._primitives.matmul import public as public_matmul
from parprims._primitives.recurrence import public as public_recurrence
from parprims._primitives.scan import public as public_scan
from parprims._primitives.sort.call import Sorting
from parprims._primitives.tridiagonal.call import ends_cleared


def wanted(arrays: tuple[Array | None, ...]) -> bool:
    """Return whether a derivative by one of the arrays may be asked for by autograd.

    The transformations of torch.func and forward derivatives see through the array form by themselves.
    """
    return (
        torch.is_grad_enabled()
        and any(x is not None and x.requires_grad for x in arrays)
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
    )


def solution(solve: Callable[..., Array], shape: tuple[int, ...], *options: Any) -> Callable[..., Array]:
    """Return what solves a linear recurrence of this shape, with its derivative.

    ``options`` are the namespace, the axis, whether it starts at the end, and the method for the derivative.
    """

    def run(a: Array, b: Array, *initial: Array) -> Array:
        whole = (x if x.shape == shape else x.expand(shape) for x in (a, b))
        return _Recurrence.apply(lambda _a, _b, *initial: solve(a, b, *initial), options, *whole, *initial)

    return run


def by_operations(
    run: Callable[..., tuple[Array, ...]], operations: Callable[..., Any]
) -> Callable[..., tuple[Array, ...]]:
    """Return a function of arrays with the derivative that operations have, which compute the same."""
    return lambda *arrays: _ByOperations.apply(run, operations, *arrays)


class _ByOperations(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, run: Callable[..., tuple[Array, ...]], operations: Callable[..., Any], *arrays: Array
    ) -> tuple[Array, ...]:
        ctx.save_for_backward(*arrays)
        ctx.set_materialize_grads(False)
        ctx.operations = operations
        return run(*arrays)

    @staticmethod
    def backward(ctx: Any, *gs: Array | None) -> tuple[Array | None, ...]:
        again, asked_for = torch.is_grad_enabled(), ctx.needs_input_grad[2:]
        with torch.enable_grad(), unwatched():
            arrays = [
                x if not asked else x.view_as(x) if again else x.detach().requires_grad_()
                for x, asked in zip(ctx.saved_tensors, asked_for, strict=True)
            ]
            ys = ctx.operations(*arrays)
        pairs = zip(ys if isinstance(ys, tuple) else (ys,), gs, strict=True)
        known = [(y, g) for y, g in pairs if g is not None and y.requires_grad]
        leaves = [x for x, asked in zip(arrays, asked_for, strict=True) if asked]
        by = iter(
            torch.autograd.grad(
                [y for y, _ in known], leaves, [g for _, g in known], create_graph=again, allow_unused=True
            )
            if known
            else [None] * len(leaves)
        )
        return None, None, *[next(by) if asked else None for asked in asked_for]


def extremum(methods: Methods, method: str, xp: Namespace, r: Any) -> Array:
    """Return the largest or smallest elements; those that are equal share the derivative, as in torch.amax."""
    return _Extremum.apply(methods, method, xp, r, r.arrays[0])


class _Extremum(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, methods: Methods, method: str, xp: Namespace, r: Any, x: Array) -> Array:
        y = methods(method, xp, r)
        ctx.axes, ctx.shape = r.axes, [1 if axis in r.axes else n for axis, n in enumerate(x.shape)]
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        x, y = ctx.saved_tensors
        found = (x == y.to(x.dtype).reshape(ctx.shape)).to(g.dtype)
        count = found.sum(ctx.axes, keepdim=True) if ctx.axes else found
        return None, None, None, None, (g.reshape(ctx.shape) * found / count).to(x.dtype)


def vecdot(methods: Methods, method: str, xp: Namespace, r: Any) -> Array:
    """Return the dot products, with their derivative by elementwise products."""
    return _Dot.apply(methods, method, xp, r, *r.arrays)


class _Dot(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, methods: Methods, method: str, xp: Namespace, r: Any, *arrays: Array) -> Array:
        ctx.save_for_backward(*arrays)
        ctx.axis = r.axes[0]
        return methods(method, xp, r.on(*arrays))

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        x1, x2 = ctx.saved_tensors
        g = g.unsqueeze(ctx.axis)
        return None, None, None, None, g.conj() * x2, g * x1


def scan(compute: Callable[..., Any], method: str, xp: Namespace, r: Any) -> Any:
    """Return the scan by sum, product or affine map that ``compute`` makes of the arrays, with its derivative."""
    ys = _Scan.apply(compute, method, xp, r, *r.arrays)
    return ys[0] if r.single else ys


def constant(x: Array) -> Array:
    """Return an array by which no derivative can be asked for."""
    return x.detach()


def sorting(methods: Methods, method: str, xp: Namespace, s: Sorting) -> tuple[Array, ...]:
    """Return sorted keys and values, with their derivatives."""
    result: tuple[Array, ...] = _Sorted.apply(methods, method, xp, s, *s.arrays)
    return result


class _Sorted(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, methods: Methods, method: str, xp: Namespace, s: Sorting, *arrays: Array
    ) -> tuple[Array, ...]:
        *ys, order = methods(method, xp, dataclasses.replace(s, arrays=arrays, key=None, indices=True))
        ctx.save_for_backward(order)
        ctx.set_materialize_grads(False)  # of keys and values some may go unused, and integers have none
        ctx.axis = s.axis
        return tuple(ys)

    @staticmethod
    def backward(ctx: Any, *gs: Array | None) -> tuple[Array | None, ...]:
        (order,) = ctx.saved_tensors
        parts = (None if g is None else torch.zeros_like(g).scatter(ctx.axis, order, g) for g in gs)
        return None, None, None, None, *parts


class _Recurrence(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, solve: Callable[..., Array], options: tuple[Any, ...], a: Array, b: Array, *initial: Array
    ) -> Array:
        x = solve(a, b, *initial)
        ctx.save_for_backward(a, x if ctx.needs_input_grad[2] else None, *initial)
        ctx.options = options
        return x

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        a, x, *initial = ctx.saved_tensors
        xp, *options = ctx.options
        start = initial[0] if initial else None
        parts = derivative_rules.adjoint(xp, a, x, g, start, *options, solve=_solve, fused=public_recurrence.adjoint)
        return None, None, *parts[: 2 + len(initial)]


class _Scan(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Any], method: str, xp: Namespace, r: Any, *arrays: Array
    ) -> tuple[Array, ...]:
        ys = compute(*r.arrays)
        ys = (ys,) if r.single else ys
        _save(ctx, r.op.name, r.inputs, ys, r.starts)
        ctx.set_materialize_grads(r.single)  # of several results some may go unused
        ctx.dtypes = [x.dtype for x in arrays]
        ctx.xp, ctx.options = xp, (r.axis, r.exclusive, r.reverse, r.n > r.shape[r.axis], method)
        return ys

    @staticmethod
    def backward(ctx: Any, *gs: Array | None) -> tuple[Array | None, ...]:
        saved = _saved(ctx)
        by_xs, by_initial = derivative_rules.scan_adjoint(
            ctx.xp, *saved, gs, *ctx.options, solve=_solve, sums=_sum, fused=public_recurrence.adjoint
        )
        parts = zip((*by_xs, *by_initial), ctx.dtypes, strict=True)
        return None, None, None, None, *(None if one is None else one.to(dtype) for one, dtype in parts)


def tridiagonal(methods: Methods, method: str, xp: Namespace, s: Any) -> Array:
    """Return the solution of tridiagonal systems, with its derivative."""
    return _Tridiagonal.apply(methods, method, xp, s, *s.coefficients(xp), s.rhs)


class _Tridiagonal(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, methods: Methods, method: str, xp: Namespace, s: Any, *arrays: Array) -> Array:
        x = methods(method, xp, s)
        ctx.save_for_backward(*arrays[:3], x)
        ctx.call = methods, method, xp, s.on()
        return x

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        lower, diag, upper, x = ctx.saved_tensors
        methods, method, xp, bare = ctx.call
        lower, diag, upper = (one.conj() for one in (lower, diag, upper))
        s, axis = bare.on(lower, diag, upper, g), bare.axis
        by_rhs = derivative_rules.tridiagonal(methods, method, xp, s.transposed(xp, g))
        by_lower, by_upper = (-by_rhs * x.roll(step, axis).conj() for step in (1, -1))
        if not s.periodic and g.shape[axis]:
            by_lower, by_upper = ends_cleared(xp, by_lower, by_upper, axis)
        by_diag = -by_rhs * x.conj()
        return None, None, None, None, *(by.sum_to_size(diag.shape) for by in (by_lower, by_diag, by_upper)), by_rhs


def linear_system(
    xp: Namespace, matrix: Any, solve: Callable[..., Array], coefficients: tuple[Array, ...], b: Array
) -> Array:
    """Return the solutions of linear systems, with their derivatives, those of torch.func and forward ones too."""
    if _forward_over_forward():
        return solve(xp, matrix, coefficients, b)  # whose operations have the derivatives that a rule would lose here
    x: Array = _LinearSystem.apply(xp, matrix, solve, b, *coefficients)
    return x


def _forward_over_forward() -> bool:
    """Return whether forward derivatives nest: in the rule of one PyTorch does not see the tangents of another."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return [one.key() for one in stack].count(torch._C._functorch.TransformType.Jvp) > 1


class _LinearSystem(torch.autograd.Function):  # type: ignore[misc]
    generate_vmap_rule = True

    @staticmethod
    def forward(xp: Namespace, matrix: Any, solve: Callable[..., Array], b: Array, *coefficients: Array) -> Array:
        return solve(xp, matrix, coefficients, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:
        *ctx.call, _ = inputs[:4]
        ctx.save_for_backward(output, *inputs[4:])
        ctx.save_for_forward(output, *inputs[4:])

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        x, *coefficients = ctx.saved_tensors
        xp, matrix, solve = ctx.call
        transposed, others = matrix.transposed(xp, tuple(one.conj() for one in coefficients))
        y = derivative_rules.linear_system(xp, transposed, solve, others, g)
        if not any(ctx.needs_input_grad[4:]):
            return None, None, None, y, *(None for _ in coefficients)
        parts = zip(matrix.by_coefficients(xp, -y, x.conj()), coefficients, strict=True)
        return None, None, None, y, *(by.sum_to_size(one.shape) for by, one in parts)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Array:
        x, *coefficients = ctx.saved_tensors
        xp, matrix, solve = ctx.call
        _, _, _, db, *given = tangents
        changed = tuple(torch.zeros_like(a) if da is None else da for a, da in zip(coefficients, given, strict=True))
        right = -matrix.product(xp, changed, x)
        right = right if db is None else db + right
        return derivative_rules.linear_system(xp, matrix, solve, tuple(coefficients), right)


def product(run: Callable[..., Array], **options: Any) -> Callable[..., Array]:
    """Return what multiplies two matrices, with the derivative by matmul with these options."""
    return lambda a, b: _Product.apply(run, options, a, b)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, run: Callable[..., Array], options: dict[str, Any], a: Array, b: Array) -> Array:
        ctx.save_for_backward(a, b)
        ctx.options = options
        return run(a, b)

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        a, b = ctx.saved_tensors
        by_a, by_b = product_adjoint(g, a, b, ctx.needs_input_grad[2:], partial(public_matmul.matmul, **ctx.options))
        return None, None, by_a, by_b


def product_adjoint(
    g: Array, a: Array, b: Array, wanted: Sequence[bool], multiply: Callable[[Array, Array], Array]
) -> tuple[Array | None, Array | None]:
    """Return the derivatives by the factors of a matrix product, as far as wanted, given g, that by the product."""
    rows, columns = (a if a.ndim > 1 else a[None, :]), (b if b.ndim > 1 else b[:, None])
    g = g if b.ndim > 1 else g[..., None]
    g = g if a.ndim > 1 else g[..., None, :]
    by_a = as_given(multiply(g, columns.mH), rows.shape, a.dtype).reshape(a.shape) if wanted[0] else None
    by_b = as_given(multiply(rows.mH, g), columns.shape, b.dtype).reshape(b.shape) if wanted[1] else None
    return by_a, by_b


def as_given(g: Array, shape: Sequence[int], dtype: torch.dtype) -> Array:
    """Return the derivative by an array of a shape and dtype, given that by the same array broadcast and cast."""
    g = g.sum_to_size(shape)
    return (g.real if g.is_complex() and not dtype.is_complex else g).to(dtype)


def _save(ctx: Any, op: str, xs: Sequence[Array], ys: Sequence[Array], initial: Sequence[Array]) -> None:
    """Keep what the derivative needs: for a sum neither elements nor results."""
    if op == "add":
        xs = ys = ()
    ctx.save_for_backward(*xs, *ys, *initial)
    ctx.op, ctx.components = op, len(xs)


def _saved(ctx: Any) -> tuple[str, tuple[Array, ...], tuple[Array, ...], tuple[Array, ...]]:
    n, arrays = ctx.components, ctx.saved_tensors
    return ctx.op, arrays[:n], arrays[n : 2 * n], arrays[2 * n :]


def _solve(a: Array, b: Array, *, axis: int, reverse: bool, method: str) -> Array:
    return public_recurrence.linear_recurrence(a, b, axis=axis, reverse=reverse, method=_for_recurrences(method))


def _sum(x: Array, *, axis: int, exclusive: bool, reverse: bool, method: str) -> Array:
    return public_scan.scan(x, axis=axis, exclusive=exclusive, reverse=reverse, method=method)


def _for_recurrences(method: str) -> str:
    """Return the method for the derivative of a call by a method; PyTorch itself has scans, but no recurrences."""
    return "auto" if method == "native" else method

"""Derivatives on PyTorch by autograd functions, for calls outside torch.compile (inside: see `_torch_compile`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from parprims._core.arrays import Array, Namespace
from parprims._dispatch import derivative_rules
from parprims._dispatch.derivative_rules import ScanResult, Solver, Sweep
from parprims._dispatch.dispatch import Methods
from parprims._dispatch.watch import unwatched
from parprims._primitives.matmul import public as public_matmul
from parprims._primitives.recurrence import public as public_recurrence
from parprims._primitives.reduce.call import Reduction
from parprims._primitives.scan import public as public_scan
from parprims._primitives.scan.call import Scan
from parprims._primitives.sort.call import Sorting
from parprims._primitives.tridiagonal.call import System, ends_cleared


def wanted(arrays: tuple[Array | None, ...]) -> bool:
    """Return whether autograd may request a derivative by any of the arrays.

    The transformations of torch.func and forward derivatives differentiate the operations of the array form.
    """
    return (
        torch.is_grad_enabled()
        and any(x is not None and x.requires_grad for x in arrays)
        and not torch._C._are_functorch_transforms_active()
        and torch.autograd.forward_ad._current_level < 0
    )


def solution(solve: Callable[..., Array], shape: tuple[int, ...], sweep: Sweep, method: str) -> Callable[..., Array]:
    """Return a solver of linear recurrences of this shape, with the derivative by a method."""

    def run(a: Array, b: Array, *initial: Array) -> Array:
        expanded = (x if x.shape == shape else x.expand(shape) for x in (a, b))
        backward = sweep, _solver(method)
        return _Recurrence.apply(lambda _a, _b, *initial: solve(a, b, *initial), backward, *expanded, *initial)

    return run


def by_operations(
    run: Callable[..., tuple[Array, ...]], operations: Callable[..., Any]
) -> Callable[..., tuple[Array, ...]]:
    """Return ``run``, a function of arrays, with the derivative of the equivalent function ``operations``."""
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
        twice, needed = torch.is_grad_enabled(), ctx.needs_input_grad[2:]
        with torch.enable_grad(), unwatched():
            arrays = [
                x if not need else x.view_as(x) if twice else x.detach().requires_grad_()
                for x, need in zip(ctx.saved_tensors, needed, strict=True)
            ]
            ys = ctx.operations(*arrays)
        pairs = zip(ys if isinstance(ys, tuple) else (ys,), gs, strict=True)
        differentiable = [(y, g) for y, g in pairs if g is not None and y.requires_grad]
        leaves = [x for x, need in zip(arrays, needed, strict=True) if need]
        derivatives = iter(
            torch.autograd.grad(
                [y for y, _ in differentiable],
                leaves,
                [g for _, g in differentiable],
                create_graph=twice,
                allow_unused=True,
            )
            if differentiable
            else [None] * len(leaves)
        )
        return None, None, *[next(derivatives) if need else None for need in needed]


def differentiated_as(run: Callable[..., Any], function: Callable[..., Any], arrays: tuple[Array, ...]) -> Any:
    """Return the results of ``run`` with the derivatives of an equivalent function, of every order."""
    results = run(*[x.detach() for x in arrays])
    with unwatched():
        others = function(*arrays)
    if not isinstance(results, tuple):
        return _ValueOfAnother.apply(results, others)
    return tuple([_ValueOfAnother.apply(*pair) for pair in zip(results, others, strict=True)])


class _ValueOfAnother(torch.autograd.Function):  # type: ignore[misc]
    """The first argument, with the derivative of the second."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Array, differentiable: Array) -> Array:
        del differentiable
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:
        pass

    @staticmethod
    def backward(_: Any, g: Array) -> tuple[Array | None, ...]:
        return None, g

    @staticmethod
    def jvp(_: Any, __: Any, tangent: Array) -> Array:
        return tangent.clone()


def extremum(methods: Methods, method: str, xp: Namespace, r: Reduction) -> Array:
    """Return the largest or smallest elements; equal elements share the derivative, as in torch.amax."""
    return _Extremum.apply(partial(methods, method, xp, r), r.axes, r.arrays[0])


class _Extremum(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, compute: Callable[[], Array], axes: tuple[int, ...], x: Array) -> Array:
        y = compute()
        ctx.axes, ctx.shape = axes, [1 if axis in axes else n for axis, n in enumerate(x.shape)]
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        x, y = ctx.saved_tensors
        equal = (x == y.to(x.dtype).reshape(ctx.shape)).to(g.dtype)
        count = equal.sum(ctx.axes, keepdim=True) if ctx.axes else equal
        return None, None, (g.reshape(ctx.shape) * equal / count).to(x.dtype)


def vecdot(methods: Methods, method: str, xp: Namespace, r: Reduction) -> Array:
    """Return the dot products, with their derivative by elementwise products."""

    def compute(*arrays: Array) -> Array:
        y: Array = methods(method, xp, r.on(*arrays))
        return y

    return _Dot.apply(compute, r.axes[0], *r.arrays)


class _Dot(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, compute: Callable[..., Array], axis: int, *arrays: Array) -> Array:
        ctx.save_for_backward(*arrays)
        ctx.axis = axis
        return compute(*arrays)

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        x1, x2 = ctx.saved_tensors
        g = g.unsqueeze(ctx.axis)
        return None, None, g.conj() * x2, g * x1


def scan(compute: Callable[..., Any], method: str, xp: Namespace, r: Scan) -> Any:
    """Return the scan of the arrays by ``compute``, a sum, product or affine map, with its derivative."""
    ys = _Scan.apply(compute, (Sweep(xp, r.axis, r.reverse), _solver(method)), r, *r.arrays)
    return ys[0] if r.single else ys


def constant(x: Array) -> Array:
    """Return the array as a constant for derivatives."""
    return x.detach()


def sorting(methods: Methods, method: str, xp: Namespace, s: Sorting) -> tuple[Array, ...]:
    """Return sorted keys and values, with their derivatives."""

    def compute(*arrays: Array) -> tuple[Array, ...]:
        results: tuple[Array, ...] = methods(method, xp, dataclasses.replace(s, arrays=arrays, key=None, indices=True))
        return results

    result: tuple[Array, ...] = _Sorted.apply(compute, s.axis, *s.arrays)
    return result


class _Sorted(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, compute: Callable[..., tuple[Array, ...]], axis: int, *arrays: Array) -> tuple[Array, ...]:
        *ys, order = compute(*arrays)
        ctx.save_for_backward(order)
        ctx.set_materialize_grads(False)  # some results may be unused, and integers have no derivative
        ctx.axis = axis
        return tuple(ys)

    @staticmethod
    def backward(ctx: Any, *gs: Array | None) -> tuple[Array | None, ...]:
        (order,) = ctx.saved_tensors
        parts = (None if g is None else torch.zeros_like(g).scatter(ctx.axis, order, g) for g in gs)
        return None, None, *parts


class _Recurrence(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, solve: Callable[..., Array], backward: tuple[Sweep, Solver], a: Array, b: Array, *initial: Array
    ) -> Array:
        x = solve(a, b, *initial)
        ctx.save_for_backward(a, x if ctx.needs_input_grad[2] else None, *initial)
        ctx.sweep, ctx.solver = backward
        return x

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        a, x, *initial = ctx.saved_tensors
        start = initial[0] if initial else None
        parts = derivative_rules.adjoint(ctx.sweep, ctx.solver, a, g, x=x, initial=start)
        return None, None, *parts[: 2 + len(initial)]


class _Scan(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, compute: Callable[..., Any], backward: tuple[Sweep, Solver], r: Scan, *arrays: Array
    ) -> tuple[Array, ...]:
        ys = compute(*r.arrays)
        ys = (ys,) if r.single else ys
        xs = r.inputs if r.op.name != "add" else ()  # the derivative of a sum reads neither elements nor results
        ctx.components = len(xs)
        ctx.save_for_backward(*xs, *(ys if xs else ()), *r.starts)
        ctx.set_materialize_grads(r.single)  # some of several results may be unused
        ctx.dtypes = [x.dtype for x in arrays]
        ctx.sweep, ctx.solver = backward
        include_initial = r.n > r.shape[r.axis]
        ctx.result = partial(ScanResult, op=r.op.name, exclusive=r.exclusive, include_initial=include_initial)
        return ys

    @staticmethod
    def backward(ctx: Any, *gs: Array | None) -> tuple[Array | None, ...]:
        n, saved = ctx.components, ctx.saved_tensors
        result = ctx.result(xs=saved[:n], ys=saved[n : 2 * n], initial=saved[2 * n :])
        by_xs, by_initial = derivative_rules.scan_adjoint(ctx.sweep, ctx.solver, result, gs)
        parts = zip((*by_xs, *by_initial), ctx.dtypes, strict=True)
        return None, None, None, *(None if by is None else by.to(dtype) for by, dtype in parts)


def tridiagonal(methods: Methods, method: str, xp: Namespace, s: System) -> Array:
    """Return the solution of tridiagonal systems, with its derivative."""
    return _Tridiagonal.apply((methods, method, xp), s, *s.coefficients(xp), s.rhs)


class _Tridiagonal(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, solver: tuple[Methods, str, Namespace], s: System, *arrays: Array) -> Array:
        methods, method, xp = solver
        x = methods(method, xp, s)
        ctx.save_for_backward(*arrays[:3], x)
        ctx.solver, ctx.system = solver, s.on()
        return x

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        lower, diag, upper, x = ctx.saved_tensors
        methods, method, xp = ctx.solver
        lower, diag, upper = (coefficient.conj() for coefficient in (lower, diag, upper))
        s, axis = ctx.system.on(lower, diag, upper, g), ctx.system.axis
        by_rhs = derivative_rules.tridiagonal(methods, method, xp, s.transposed(xp, g))
        by_lower, by_upper = (-by_rhs * x.roll(step, axis).conj() for step in (1, -1))
        if not s.periodic and g.shape[axis]:
            by_lower, by_upper = ends_cleared(xp, by_lower, by_upper, axis)
        by_diag = -by_rhs * x.conj()
        return None, None, *(by.sum_to_size(diag.shape) for by in (by_lower, by_diag, by_upper)), by_rhs


def linear_system(
    xp: Namespace, matrix: Any, solve: Callable[..., Array], *, coefficients: tuple[Array, ...], b: Array
) -> Array:
    """Return the solutions of linear systems, with their derivatives, also under torch.func and in forward mode."""
    if _forward_over_forward():
        return solve(xp, matrix, coefficients, b)  # here a rule would lose derivatives, which these operations keep
    x: Array = _LinearSystem.apply(_Linear(xp, matrix, solve), b, *coefficients)
    return x


def _forward_over_forward() -> bool:
    """Return whether forward derivatives nest: a rule does not see the tangents of an outer derivative."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return [level.key() for level in stack].count(torch._C._functorch.TransformType.Jvp) > 1


@dataclasses.dataclass(frozen=True)
class _Linear:
    """Linear systems without arrays. A class, because torch.func looks for arrays in tuples and named tuples."""

    xp: Namespace
    matrix: Any
    solve: Callable[..., Array]


class _LinearSystem(torch.autograd.Function):  # type: ignore[misc]
    generate_vmap_rule = True

    @staticmethod
    def forward(system: _Linear, b: Array, *coefficients: Array) -> Array:
        return system.solve(system.xp, system.matrix, coefficients, b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:
        ctx.system, _, *coefficients = inputs
        ctx.save_for_backward(output, *coefficients)
        ctx.save_for_forward(output, *coefficients)

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        x, *coefficients = ctx.saved_tensors
        xp, matrix, solve = ctx.system.xp, ctx.system.matrix, ctx.system.solve
        transpose, transposed = matrix.transposed(xp, tuple(a.conj() for a in coefficients))
        y = derivative_rules.linear_system(xp, transpose, solve, coefficients=transposed, b=g)
        if not any(ctx.needs_input_grad[2:]):
            return None, y, *(None for _ in coefficients)
        parts = zip(matrix.by_coefficients(xp, -y, x.conj()), coefficients, strict=True)
        return None, y, *(by.sum_to_size(a.shape) for by, a in parts)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Array:
        x, *coefficients = ctx.saved_tensors
        xp, matrix, solve = ctx.system.xp, ctx.system.matrix, ctx.system.solve
        _, db, *das = tangents
        das = [torch.zeros_like(a) if da is None else da for a, da in zip(coefficients, das, strict=True)]
        right = -matrix.product(xp, tuple(das), x)
        right = right if db is None else db + right
        return derivative_rules.linear_system(xp, matrix, solve, coefficients=tuple(coefficients), b=right)


def product(run: Callable[..., Array], **options: Any) -> Callable[..., Array]:
    """Return ``run``, a product of two matrices, with the derivative by matmul with these options."""
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
        multiply = partial(public_matmul.matmul, **ctx.options)
        return None, None, *product_adjoint(g, a, b, wanted=ctx.needs_input_grad[2:], multiply=multiply)


def product_adjoint(
    g: Array, a: Array, b: Array, *, wanted: Sequence[bool], multiply: Callable[[Array, Array], Array]
) -> tuple[Array | None, Array | None]:
    """Return the wanted derivatives with respect to the factors of a matrix product, given the derivative g."""
    rows, columns = (a if a.ndim > 1 else a[None, :]), (b if b.ndim > 1 else b[:, None])
    g = g if b.ndim > 1 else g[..., None]
    g = g if a.ndim > 1 else g[..., None, :]
    by_a = reduced_like(multiply(g, columns.mH), rows.shape, a.dtype).reshape(a.shape) if wanted[0] else None
    by_b = reduced_like(multiply(rows.mH, g), columns.shape, b.dtype).reshape(b.shape) if wanted[1] else None
    return by_a, by_b


def reduced_like(g: Array, shape: Sequence[int], dtype: torch.dtype) -> Array:
    """Return the derivative of an array with this shape and dtype, given the derivative g of its broadcast and cast."""
    g = g.sum_to_size(shape)
    return (g.real if g.is_complex() and not dtype.is_complex else g).to(dtype)


def _solve(a: Array, b: Array, *, axis: int, reverse: bool, method: str) -> Array:
    return public_recurrence.linear_recurrence(a, b, axis=axis, reverse=reverse, method=_for_recurrences(method))


def _sum(x: Array, *, axis: int, exclusive: bool, reverse: bool, method: str) -> Array:
    return public_scan.scan(x, axis=axis, exclusive=exclusive, reverse=reverse, method=method)


def _for_recurrences(method: str) -> str:
    """Return the method of the recurrence that differentiates a call: PyTorch has native scans, but no recurrences."""
    return "auto" if method == "native" else method


def _solver(method: str) -> Solver:
    return Solver(recurrence=_solve, sums=_sum, fused=public_recurrence.adjoint, method=method)

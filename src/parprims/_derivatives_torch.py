"""Derivatives on PyTorch: autograd functions for calls as they come, operators for calls inside torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from parprims import _derivatives, _matmul, _scan, _tridiagonal
from parprims._arrays import Array, Namespace, namespace
from parprims._dispatch import Methods
from parprims._operators import BUILT_IN, Operator


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


# ---- Calls as they come -----------------------------------------------------------------------------------------


def recurrence(methods: Methods, method: str, xp: Namespace, r: Any) -> Array:
    """Return the solution of a linear recurrence, with its derivative."""
    shape, options = r.shape, (xp, r.axis, r.reverse, method)

    def rule(solve: Callable[..., Array], a: Array, b: Array, initial: Array | None = None) -> Array:
        a, b = (x if x.shape == shape else x.expand(shape) for x in (a, b))
        return _Recurrence.apply(solve, options, a, b, initial)

    (a, b), r.rule = r.inputs, rule
    return rule(lambda *_: methods(method, xp, r), a, b, r.initial)


def scan(methods: Methods, method: str, xp: Namespace, r: Any) -> Any:
    """Return the scan by sum, product or affine map, with its derivative."""
    ys = _Scan.apply(methods, method, xp, r, *r.inputs, *r.starts())
    return ys[0] if r.single else ys


def constant(x: Array) -> Array:
    """Return an array by which no derivative can be asked for."""
    return x.detach()


def sorting(methods: Methods, method: str, xp: Namespace, s: Any) -> tuple[Array, ...]:
    """Return sorted keys and values, with their derivatives."""
    result: tuple[Array, ...] = _Sorting.apply(methods, method, xp, s, s.keys, *s.values)
    return result


class _Sorting(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any, methods: Methods, method: str, xp: Namespace, s: Any, keys: Array, *values: Array
    ) -> tuple[Array, ...]:
        *ys, order = methods(method, xp, _derivatives.changed(s, keys=keys, values=values, indices=True))
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
        ctx: Any, solve: Callable[..., Array], options: tuple[Any, ...], a: Array, b: Array, initial: Array | None
    ) -> Array:
        x = solve(a, b)
        ctx.save_for_backward(a, x if ctx.needs_input_grad[2] else None, initial)
        ctx.options = options
        return x

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        a, x, initial = ctx.saved_tensors
        xp, *options = ctx.options
        parts = _derivatives.adjoint(xp, a, x, g, initial, *options, solve=_solve, fused=_scan.adjoint)
        return None, None, *parts


class _Scan(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, methods: Methods, method: str, xp: Namespace, r: Any, *arrays: Array) -> tuple[Array, ...]:
        ys = methods(method, xp, r)
        ys = (ys,) if r.single else ys
        _save(ctx, r.op.name, r.inputs, ys, r.starts())
        ctx.set_materialize_grads(r.single)  # of several results some may go unused
        ctx.dtypes = [x.dtype for x in arrays]
        ctx.xp, ctx.options = xp, (r.axis, r.exclusive, r.reverse, r.n > r.shape[r.axis], method)
        return ys

    @staticmethod
    def backward(ctx: Any, *gs: Array | None) -> tuple[Array | None, ...]:
        saved = _saved(ctx)
        by_xs, by_initial = _derivatives.scan_adjoint(
            ctx.xp, *saved, gs, *ctx.options, solve=_solve, sums=_sum, fused=_scan.adjoint
        )
        parts = zip((*by_xs, *by_initial), ctx.dtypes, strict=True)
        return None, None, None, None, *(None if one is None else one.to(dtype) for one, dtype in parts)


def tridiagonal(methods: Methods, method: str, xp: Namespace, s: Any) -> Array:
    """Return the solution of tridiagonal systems, with its derivative."""
    return _Tridiagonal.apply(methods, method, xp, s, s.lower, s.diag, s.upper, s.rhs)


class _Tridiagonal(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, methods: Methods, method: str, xp: Namespace, s: Any, *arrays: Array) -> Array:
        x = methods(method, xp, s)
        ctx.save_for_backward(*arrays[:3], x)
        ctx.call = methods, method, xp, (s.shape, s.axis, s.periodic, s.pivot)
        return x

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        lower, diag, upper, x = ctx.saved_tensors
        methods, method, xp, (shape, axis, periodic, pivot) = ctx.call
        lower, diag, upper = (one.conj() for one in (lower, diag, upper))
        s = _tridiagonal._System(lower, diag, upper, g, shape, axis, periodic, pivot)
        by_rhs = _derivatives.tridiagonal(methods, method, xp, s.transposed(xp, g))
        by_lower, by_upper = (-by_rhs * x.roll(step, axis).conj() for step in (1, -1))
        if not periodic and g.shape[axis]:
            by_lower, by_upper = _tridiagonal.ends_cleared(xp, by_lower, by_upper, axis)
        by_diag = -by_rhs * x.conj()
        return None, None, None, None, *(by.sum_to_size(diag.shape) for by in (by_lower, by_diag, by_upper)), by_rhs


def product(methods: Methods, method: str, xp: Namespace, p: Any) -> Array:
    """Return a matrix product, with its derivative."""
    return _Product.apply(methods, method, xp, p, p.a, p.b)


class _Product(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, methods: Methods, method: str, xp: Namespace, p: Any, a: Array, b: Array) -> Array:
        ctx.save_for_backward(a, b)
        ctx.options = {"precision": p.precision, "kernel": p.kernel, "method": method}
        return methods(method, xp, p)

    @staticmethod
    def backward(ctx: Any, g: Array) -> tuple[Array | None, ...]:
        a, b = ctx.saved_tensors
        rows, columns = (a if a.ndim > 1 else a[None, :]), (b if b.ndim > 1 else b[:, None])
        g = g if b.ndim > 1 else g[..., None]
        g = g if a.ndim > 1 else g[..., None, :]
        by_a = by_b = None
        if ctx.needs_input_grad[4]:
            by_a = _as_given(_matmul.matmul(g, columns.mH, **ctx.options), rows.shape, a.dtype).reshape(a.shape)
        if ctx.needs_input_grad[5]:
            by_b = _as_given(_matmul.matmul(rows.mH, g, **ctx.options), columns.shape, b.dtype).reshape(b.shape)
        return None, None, None, None, by_a, by_b


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
    return _scan.linear_recurrence(a, b, axis=axis, reverse=reverse, method=_for_recurrences(method))


def _sum(x: Array, *, axis: int, exclusive: bool, reverse: bool, method: str) -> Array:
    return _scan.scan(x, axis=axis, exclusive=exclusive, reverse=reverse, method=method)


def _for_recurrences(method: str) -> str:
    """Return the method for the derivative of a call by a method; PyTorch itself has scans, but no recurrences."""
    return "auto" if method == "native" else method


# ---- Calls inside torch.compile ---------------------------------------------------------------------------------


def compiled_recurrence(a: Array, b: Array, axis: Any, initial: Any, reverse: bool, method: str) -> Array:
    """Return a linear recurrence as one node of the graph; its arguments are checked when the node runs."""
    array, number = (initial, None) if isinstance(initial, torch.Tensor) else (None, initial)
    return torch.ops.parprims.linear_recurrence(a, b, array, number, axis, reverse, method)


def can_compile(xs: tuple[Array, ...], op: Operator, initial: Any) -> bool:
    """Return whether a scan can be a node of the graph: a built-in operator, with its derivative if that is wanted."""
    given = initial if isinstance(initial, tuple) else (initial,)
    arrays = [isinstance(one, torch.Tensor) for one in given]
    if BUILT_IN.get(op.name) is not op or any(arrays) != all(arrays):
        return False
    if op in _derivatives.OPERATORS or not torch.is_grad_enabled():
        return True
    return not any(x.requires_grad for x in (*xs, *(given if all(arrays) else ())))


def compiled_scan(
    xs: tuple[Array, ...], single: bool, op: Operator, initial: Any, dtype: Any, options: tuple[Any, ...]
) -> Any:
    """Return a scan as one node of the graph; its arguments are checked when the node runs."""
    given = () if initial is None else initial if isinstance(initial, tuple) else (initial,)
    arrays, numbers = (given, ()) if given and isinstance(given[0], torch.Tensor) else ((), given)
    dtypes = () if dtype is None else dtype if isinstance(dtype, tuple) else (dtype,)
    ys = torch.ops.parprims.scan(list(xs), op.name, list(arrays), list(numbers), list(dtypes), *options)
    return ys[0] if single else tuple(ys)


def _run_recurrence(
    a: Array, b: Array, initial: Array | None, number: Any, axis: int, reverse: bool, method: str
) -> Array:
    start = _number(number) if initial is None else initial
    return _scan.linear_recurrence(a, b, axis=axis, initial=start, reverse=reverse, method=method).contiguous()


def _run_scan(
    xs: Sequence[Array],
    op: str,
    initial: Sequence[Array],
    numbers: Sequence[Any],
    dtypes: Sequence[torch.dtype],
    primitive: str,
    axis: int | None,
    exclusive: bool,
    reverse: bool,
    include_initial: bool,
    method: str,
) -> list[Array]:
    x = xs[0] if len(xs) == 1 else tuple(xs)
    start = (*initial, *map(_number, numbers)) or None
    dtype = tuple(dtypes) or None
    y = _scan._scan(primitive, x, op, axis, exclusive, reverse, start, dtype, include_initial, method)
    return [one.contiguous() for one in (y if isinstance(y, tuple) else (y,))]


def _number(value: Any) -> Any:
    """Return a number; that which a symbol of the graph stands for now."""
    if isinstance(value, torch.SymFloat):
        return float(value)
    return int(value) if isinstance(value, torch.SymInt) else value


def _abstract(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what an operator does where arrays have no values: check, and return empty ones."""
    return lambda *args: run(*args[:-1], _derivatives.ABSTRACT)


def _keep_recurrence(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:
    a, b, initial, *ctx.options = inputs
    ctx.save_for_backward(a, output if ctx.needs_input_grad[0] else None, initial)
    ctx.b = b.shape, b.dtype


def _recurrence_adjoint(ctx: Any, g: Array) -> tuple[Array | None, ...]:
    a, x, initial = ctx.saved_tensors
    number, axis, reverse, method = ctx.options
    xp = namespace(g=g)
    axis %= g.ndim
    start = _start(xp, initial, number, g, axis)
    wide = a.to(g.dtype).expand(g.shape)
    by_a, by_b, by_start = _derivatives.adjoint(xp, wide, x, g, start, axis, reverse, method, solve=_solve_node)
    return (
        None if x is None else _as_given(by_a, a.shape, a.dtype),
        _as_given(by_b, *ctx.b),
        _as_given(by_start.squeeze(axis), initial.shape, initial.dtype)
        if by_start is not None and initial is not None
        else None,
        *(None for _ in ctx.options),
    )


def _keep_scan(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    xs, op, initial, ctx.numbers, dtypes, _, *ctx.options = inputs
    _save(ctx, op, xs, output, initial)
    ctx.dtypes = [x.dtype for x in xs]
    ctx.shapes = [one.shape for one in initial]
    # Autograd takes an empty list for one of arrays, and asks for a list of their derivatives.
    ctx.none = [[] if one == [] else None for one in (ctx.numbers, dtypes, None, *ctx.options)]


def _scan_adjoint(ctx: Any, gs: Sequence[Array]) -> tuple[Any, ...]:
    op, xs, ys, initial = _saved(ctx)
    if BUILT_IN[op] not in _derivatives.OPERATORS:
        raise NotImplementedError(f"the operator of torch.compile for scans has no derivative for op {op}")
    axis, *options = ctx.options
    like = next(g for g in gs if g is not None)
    xp = namespace(g=like)
    axis = (-1 if axis is None else axis) % like.ndim
    starts = tuple(_start(xp, one, None, like, axis) for one in initial)
    numbers = tuple(_start(xp, None, one, like, axis) for one in ctx.numbers)
    by_xs, by_initial = _derivatives.scan_adjoint(
        xp, op, xs, ys, starts + numbers, tuple(gs), axis, *options, solve=_solve_node, sums=_sum_node
    )
    return (
        [
            None if one is None else _as_given(one, one.shape, dtype)
            for one, dtype in zip(by_xs, ctx.dtypes, strict=True)
        ],
        None,
        [
            None if one is None else _as_given(one.squeeze(axis), shape, one.dtype)
            for one, shape in zip(by_initial, ctx.shapes, strict=False)
        ],
        *ctx.none,
    )


def _start(xp: Namespace, initial: Array | None, number: Any, like: Array, axis: int) -> Array | None:
    """Return the initial element of a result, of length 1 along the axis, or None if there is none."""
    if initial is not None:
        return initial.expand((*like.shape[:axis], *like.shape[axis + 1 :])).unsqueeze(axis)
    return None if number is None else _derivatives.filled(xp, number, like, axis)


def _as_given(g: Array, shape: Sequence[int], dtype: torch.dtype) -> Array:
    """Return the derivative by an array of a shape and dtype, given that by the same array broadcast and cast."""
    g = g.sum_to_size(shape)
    return (g.real if g.is_complex() and not dtype.is_complex else g).to(dtype)


def _solve_node(a: Array, b: Array, *, axis: int, reverse: bool, method: str) -> Array:
    return torch.ops.parprims.linear_recurrence(a, b, None, None, axis, reverse, _for_recurrences(method))


def _sum_node(x: Array, *, axis: int, exclusive: bool, reverse: bool, method: str) -> Array:
    (y,) = torch.ops.parprims.scan([x], "add", [], [], [], "scan", axis, exclusive, reverse, False, method)
    return y


for _name, _schema, _run, _keep, _adjoint in (
    (
        "linear_recurrence",
        "(Tensor a, Tensor b, Tensor? initial, Scalar? number, int axis, bool reverse, str method) -> Tensor",
        _run_recurrence,
        _keep_recurrence,
        _recurrence_adjoint,
    ),
    (
        "scan",
        "(Tensor[] xs, str op, Tensor[] initial, Scalar[] numbers, ScalarType[] dtypes, str primitive, int? axis, "
        "bool exclusive, bool reverse, bool include_initial, str method) -> Tensor[]",
        _run_scan,
        _keep_scan,
        _scan_adjoint,
    ),
):
    _op = torch.library.custom_op(f"parprims::{_name}", _run, mutates_args=(), schema=_schema)
    _op.register_fake(_abstract(_run))
    _op.register_autograd(_adjoint, setup_context=_keep)

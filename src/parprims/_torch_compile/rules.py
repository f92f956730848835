"""The derivative rules of nodes. For nodes without a rule, `nodes` differentiates the operations.

A rule saves the arrays that it needs, and returns the derivatives by the arrays of the call, in their order. The
derivatives are computed by nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import array_api_compat.torch
import torch

from parprims._core.arrays import Array, Namespace, compute_dtype, filled
from parprims._derivatives.torch_rules import product_adjoint, reduced_like
from parprims._dispatch import derivative_rules
from parprims._dispatch.derivative_rules import ScanResult, Solver, Sweep
from parprims._primitives.tridiagonal.call import ends_cleared
from parprims._torch_compile.inputs import Inputs, tensors

xp: Namespace = array_api_compat.torch

Gradients = Sequence[Any]


class Rule(NamedTuple):
    """The derivative of a node.

    Parameters
    ----------
    serves : callable
        Returns whether a call has this derivative.
    keep : callable
        Saves the arrays that the derivative needs in a context, given the inputs and the results.
    pull : callable
        Returns the derivatives by the arrays, given the derivatives by the results.
    """

    serves: Callable[[Inputs], bool]
    keep: Callable[[Any, Inputs, Sequence[Array]], None]
    pull: Callable[[Any, Sequence[Array | None]], Gradients]


# ---- Recurrences --------------------------------------------------------------------------------------------------


def _keep_recurrence(ctx: Any, call: Inputs, output: Sequence[Array]) -> None:
    a, b, initial = (call.named.get(name) for name in ("a", "b", "initial"))
    first = ctx.needs_input_grad[0]  # a flag for the first array, or a list of flags for all arrays
    wanted = isinstance(a, torch.Tensor) and (first[0] if isinstance(first, list | tuple) else first)
    ctx.save_for_backward(*tensors(a), *(output if wanted else ()), *tensors(initial))
    ctx.a, ctx.start = (None if isinstance(x, torch.Tensor) else x for x in (a, initial))
    ctx.has_a, ctx.has_x, ctx.has_start = isinstance(a, torch.Tensor), wanted, isinstance(initial, torch.Tensor)
    ctx.b = (b.shape, b.dtype) if isinstance(b, torch.Tensor) else None
    ctx.call = call._replace(named={})


def _pull_recurrence(ctx: Any, gs: Sequence[Array | None]) -> Gradients:
    (g,), call, saved = gs, ctx.call, iter(ctx.saved_tensors)
    a = next(saved) if ctx.has_a else None
    x = next(saved) if ctx.has_x else None
    initial = next(saved) if ctx.has_start else None
    assert g is not None
    axis = call.option("axis") % g.ndim
    start = _start(initial, ctx.start, g, axis)
    wide = torch.full_like(g, ctx.a) if a is None else a.to(g.dtype).expand(g.shape)
    sweep = Sweep(xp, axis, call.option("reverse"))
    by_a, by_b, by_start = derivative_rules.adjoint(sweep, _solver(call.method), wide, g, x=x, initial=start)
    parts: list[Array | None] = []
    if a is not None:
        parts.append(None if x is None else reduced_like(by_a, a.shape, a.dtype))
    if ctx.b is not None:
        parts.append(reduced_like(by_b, *ctx.b))
    if initial is not None:
        by_initial = None if by_start is None else by_start.squeeze(axis)
        parts.append(None if by_initial is None else reduced_like(by_initial, initial.shape, initial.dtype))
    return parts


# ---- Scans --------------------------------------------------------------------------------------------------------

_WITH_RULES = tuple(op.name for op in derivative_rules.OPERATORS)


def _keep_scan(ctx: Any, call: Inputs, output: Sequence[Array]) -> None:
    xs, initial = tensors(call.named["x"]), call.named.get("initial", ())
    starts = tensors(initial)
    read = (
        (*xs, *output) if call.option("op") != "add" else ()
    )  # the derivative of a sum reads neither elements nor results
    ctx.components = len(read) // 2
    ctx.save_for_backward(*read, *starts)
    ctx.given = [(x.shape, x.dtype) for x in (*xs, *starts)]
    entries = initial if isinstance(initial, tuple) else (initial,)
    ctx.initial = [None if isinstance(one, torch.Tensor) else one for one in entries]
    ctx.call = call._replace(named={})


def _pull_scan(ctx: Any, gs: Sequence[Array | None]) -> Gradients:
    call, count, saved = ctx.call, ctx.components, ctx.saved_tensors
    arrays = iter(saved[2 * count :])
    like = next(g for g in gs if g is not None)
    axis = (-1 if call.option("axis") is None else call.option("axis")) % like.ndim
    starts = [_start(next(arrays) if number is None else None, number, like, axis) for number in ctx.initial]
    result = ScanResult(
        op=call.option("op"),
        xs=saved[:count],
        ys=saved[count : 2 * count],
        initial=tuple(starts),
        exclusive=call.option("exclusive"),
        include_initial=call.option("include_initial"),
    )
    sweep = Sweep(xp, axis, call.option("reverse"))
    by_x, by_initial = derivative_rules.scan_adjoint(sweep, _solver(call.method), result, tuple(gs))
    by_arrays = [by for by, number in zip(by_initial, ctx.initial, strict=False) if number is None]
    parts = [*by_x, *(None if by is None else by.squeeze(axis) for by in by_arrays)]
    return [None if by is None else reduced_like(by, *like) for by, like in zip(parts, ctx.given, strict=True)]


# ---- Sorts --------------------------------------------------------------------------------------------------------


def _keep_sort(ctx: Any, call: Inputs, output: Sequence[Array]) -> None:
    keys = next(iter(call.named.values()))
    ctx.call = call._replace(named={})
    ctx.save_for_backward(output[-1] if call.options.get("indices") else keys)


def _pull_sort(ctx: Any, gs: Sequence[Array | None]) -> Gradients:
    call, (order,) = ctx.call, ctx.saved_tensors
    options = {name: call.option(name) for name in ("axis", "descending", "stable")}
    if call.options.get("indices"):
        gs = gs[:-1]
    else:
        (order,) = Inputs("argsort", {"x": order.detach()}, options, call.method).node()
    return [None if g is None else torch.zeros_like(g).scatter(options["axis"], order, g) for g in gs]


# ---- Systems ------------------------------------------------------------------------------------------------------

_DIAGONALS = ("lower", "diag", "upper")


def pull_system(call: Inputs, x: Array, g: Array) -> Gradients:
    """Return the derivatives by the arrays of a tridiagonal system, given the derivative g by its solution x."""
    rhs = call.named["rhs"]
    wide, transpose = compute_dtype(xp, x.dtype), call.option("transpose")
    diagonals = [call.named[name] for name in _DIAGONALS]
    arrays = [one if isinstance(one, torch.Tensor) else None for one in diagonals]
    conjugates = [
        number.conjugate() if array is None else array.conj().to(wide)
        for array, number in zip(arrays, diagonals, strict=True)
    ]
    options = {**call.options, "transpose": not transpose, "return_residual": False, "return_status": False}
    system = {**dict(zip(_DIAGONALS, conjugates, strict=True)), "rhs": g.to(wide)}
    (by_rhs,) = call._replace(named=system, options=options).node()
    ndim = max(0 if array is None else array.ndim for array in arrays) or x.ndim
    axis = (
        call.option("axis") % ndim - x.ndim
    )  # several right-hand sides have one more axis, the last, than the coefficients
    y = x.conj().to(wide)
    by_lower, by_diag, by_upper = (-by_rhs * (y.roll(step, axis) if step else y) for step in (1, 0, -1))
    if not call.option("periodic") and y.shape[axis] > 0:
        by_lower, by_upper = ends_cleared(xp, by_lower, by_upper, axis)
    if transpose:
        by_lower, by_upper = by_upper.roll(1, axis), by_lower.roll(-1, axis)
    parts: list[Array | None] = []
    for by, array in zip((by_lower, by_diag, by_upper), arrays, strict=True):
        if array is not None:
            parts.append(reduced_like(by.sum(-1) if x.ndim > ndim else by, array.shape, array.dtype))
    return [*parts, reduced_like(by_rhs, rhs.shape, rhs.dtype)]


# ---- Products -----------------------------------------------------------------------------------------------------


def _keep_product(ctx: Any, call: Inputs, output: Sequence[Array]) -> None:
    del output
    ctx.save_for_backward(call.named["a"], call.named["b"])
    ctx.call = call._replace(named={})


def _pull_product(ctx: Any, gs: Sequence[Array | None]) -> Gradients:
    (g,), (a, b), call = gs, ctx.saved_tensors, ctx.call

    def multiply(a: Array, b: Array) -> Array:
        (c,) = call._replace(named={"a": a, "b": b}).node()
        return c

    return product_adjoint(g, a, b, wanted=ctx.needs_input_grad[0], multiply=multiply)


# ---- Parts of several rules ---------------------------------------------------------------------------------------


def _start(initial: Array | None, number: Any, like: Array, axis: int) -> Array | None:
    """Return the initial element of a result, of length 1 along the axis, or None if there is none."""
    if initial is not None:
        return initial.expand((*like.shape[:axis], *like.shape[axis + 1 :])).unsqueeze(axis)
    return None if number is None else filled(xp, number, like, axis)


def _solver(method: str) -> Solver:
    return Solver(recurrence=_solve, sums=_sum, method=method)


def _solve(a: Array, b: Array, *, axis: int, reverse: bool, method: str) -> Array:
    method = "auto" if method == "native" else method  # PyTorch has native scans, but no recurrences
    (x,) = Inputs("linear_recurrence", {"a": a, "b": b}, {"axis": axis, "reverse": reverse}, method).node()
    return x


def _sum(x: Array, *, axis: int, exclusive: bool, reverse: bool, method: str) -> Array:
    options = {"op": "add", "axis": axis, "exclusive": exclusive, "reverse": reverse}
    (y,) = Inputs("scan", {"x": x}, options, method).node()
    return y


RULES = {
    "recurrence": Rule(lambda _: True, _keep_recurrence, _pull_recurrence),
    "scan": Rule(lambda call: call.option("op") in _WITH_RULES, _keep_scan, _pull_scan),
    "sort": Rule(lambda _: True, _keep_sort, _pull_sort),
    "product": Rule(
        lambda call: (call.option("add"), call.option("multiply")) == ("add", "multiply"), _keep_product, _pull_product
    ),
}
"""The rules by their names in declarations."""

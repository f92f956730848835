"""The nodes of `_torch_compile.ops`: what they compute, and their derivatives.

Each is an operator of PyTorch, made at the end of this file from a row of a table.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.torch
import torch
from torch._library.autograd import Info, make_autograd_impl

from parprims._core import arrays as core_arrays
from parprims._core.arrays import Array, Namespace, compute_dtype, filled
from parprims._derivatives.torch_rules import as_given, product_adjoint
from parprims._dispatch import derivative_rules
from parprims._dispatch.dispatch import Abstract, Inside, primitives, unwatched
from parprims._dispatch.primitive import Arguments, declared
from parprims._operators.operator import segmented
from parprims._primitives.matmul import public as public_matmul
from parprims._primitives.recurrence import public as public_recurrence
from parprims._primitives.reduce import public as public_reduce
from parprims._primitives.scan import public as public_scan
from parprims._primitives.sort.public import argsort, sort
from parprims._primitives.tridiagonal import public as public_tridiagonal
from parprims._primitives.tridiagonal.call import ends_cleared
from parprims._torch_compile import vmap

xp: Namespace = array_api_compat.torch

runs: dict[str, Callable[..., Any]] = {}
"""What a node computes, by its name."""

kept: dict[str, Any] = {}
"""Operators of the caller's own, by the name under which a node has them."""


def _dtypes(names: Sequence[str]) -> tuple[Any, ...] | None:
    """Return the dtypes of these names, None if there are none; what is no name stays, to be refused."""
    return tuple([getattr(torch, name, name) for name in names]) or None


def found(name: str) -> Any:
    """Return what a node knows by a name."""
    if name.startswith("segmented(") and name.endswith(")"):
        return segmented(found(name.removeprefix("segmented(").removesuffix(")")))
    if "#" in name and name not in kept:
        raise ValueError(f"op {name} is a function of a program compiled elsewhere, and not known in this process")
    return kept.get(name, name)


# ---- Nodes: what they compute -----------------------------------------------------------------------------------


def _run_reduce(
    x: Sequence[Array],
    op: str,
    initial_arrays: Sequence[Array],
    initial: Sequence[Any] | None,
    dtype: Sequence[str],
    primitive: str,
    axis: Sequence[int] | None,
    keepdims: bool,
    method: str,
) -> list[Array]:
    axes = None if axis is None else axis[0] if len(axis) == 1 else tuple(axis)
    start = (*initial_arrays, *map(_number, initial or ())) or None
    if start is None and len(x) == 1 and primitive != "map_reduce":
        return _whole(_called(public_reduce, primitive, x[0], op, dtype, method, axis=axes, keepdims=keepdims))
    given = x[0] if len(x) == 1 else tuple(x)
    options = {"fn": None, "op": found(op), "axis": axes, "keepdims": keepdims, "dtype": _dtypes(dtype)}
    asked = Arguments(primitive, {"x": given}, {**options, "initial": start}, _inside(method))
    return _whole(declared[primitive].of(asked))


def _called(module: Any, primitive: str, x: Array, op: str, dtype: Sequence[str], method: str, **options: Any) -> Any:
    """Return what a public function returns. Those that have no option of a name are given nothing for it."""
    function = getattr(module, primitive)
    if dtype:
        options["dtype"] = getattr(torch, dtype[0], dtype[0]) if len(dtype) == 1 else _dtypes(dtype)
    if primitive in ("reduce", "scan"):
        return function(x, found(op), **options, method=_inside(method))
    return function(x, **options, method=_inside(method))


def _run_vecdot(x1: Array, x2: Array, axis: int, method: str) -> Array:
    return _whole(public_reduce.vecdot(x1, x2, axis=axis, method=_inside(method)))[0]


def _run_scan(
    x: Sequence[Array],
    op: str,
    initial_arrays: Sequence[Array],
    initial: Sequence[Any] | None,
    dtype: Sequence[str],
    primitive: str,
    axis: int | None,
    exclusive: bool,
    reverse: bool,
    include_initial: bool,
    method: str,
) -> list[Array]:
    start = (*initial_arrays, *map(_number, initial or ())) or None
    if start is None and len(x) == 1 and primitive in ("scan", "cumulative_sum", "cumulative_prod"):
        flags = {"exclusive": exclusive, "reverse": reverse, "include_initial": include_initial}
        named = {name: value for name, value in flags.items() if value is not False}
        return _whole(_called(public_scan, primitive, x[0], op, dtype, method, axis=axis, **named))
    given = {"x": x[0] if len(x) == 1 else tuple(x), "initial": start}
    options = {"op": found(op), "axis": axis, "exclusive": exclusive, "reverse": reverse, "dtype": _dtypes(dtype)}
    asked = Arguments(primitive, given, {**options, "include_initial": include_initial}, _inside(method))
    return _whole(declared[primitive].of(asked))


def _run_recurrence(
    a_array: Array | None,
    a: Any,
    b_array: Array | None,
    b: Any,
    initial_array: Array | None,
    initial: Any,
    axis: int,
    reverse: bool,
    method: str,
) -> Array:
    one, other = _given(a_array, a), _given(b_array, b)
    options = {"axis": axis, "initial": _given(initial_array, initial), "reverse": reverse, "method": _inside(method)}
    return _whole(public_recurrence.linear_recurrence(one, other, **options))[0]


def _run_sort(
    arrays: Sequence[Array], primitive: str, indices: bool, axis: int, descending: bool, stable: bool, method: str
) -> list[Array]:
    keys, *values = arrays
    if primitive == "sort" and not (values or indices):
        return _whole(sort(keys, axis=axis, descending=descending, stable=stable, method=_inside(method)))
    if indices:  # where an element comes from moves with it
        shape = [1] * keys.ndim
        at = core_arrays.normalize_axis(axis, keys.ndim)
        shape[at] = keys.shape[at]
        values.append(torch.arange(shape[at], device=keys.device).view(shape).expand(keys.shape))
    given = {"keys" if primitive == "sort_by_key" else "x": keys, "values": tuple(values)}
    options = {"axis": axis, "descending": descending, "stable": stable}
    return _whole(declared[primitive].of(Arguments(primitive, given, options, _inside(method))))


def _run_argsort(x: Array, axis: int, descending: bool, stable: bool, method: str) -> Array:
    return _whole(argsort(x, axis=axis, descending=descending, stable=stable, method=_inside(method)))[0]


def _run_tridiagonal(
    lower_array: Array | None,
    lower: Any,
    diag_array: Array | None,
    diag: Any,
    upper_array: Array | None,
    upper: Any,
    rhs: Array,
    axis: int,
    pivot: str,
    periodic: bool,
    transpose: bool,
    return_residual: bool,
    return_status: bool,
    method: str,
) -> list[Array]:
    coefficients = _given(lower_array, lower), _given(diag_array, diag), _given(upper_array, upper)
    results = public_tridiagonal.solve_tridiagonal(
        *coefficients,
        rhs,
        axis=axis,
        pivot=pivot,
        periodic=periodic,
        transpose=transpose,
        return_residual=return_residual,
        return_status=return_status,
        method=_inside(method),
    )
    return _whole(results)


def _run_matmul(
    a: Array,
    b: Array,
    add: str,
    multiply: str,
    precision: str,
    kernel: str | None,
    tile: Sequence[int] | None,
    method: str,
) -> Array:
    lengths = None if tile is None else tuple(tile)
    options: dict[str, Any] = {"precision": precision, "kernel": kernel, "tile": lengths, "method": _inside(method)}
    return _whole(public_matmul.matmul(a, b, add=found(add), multiply=found(multiply), **options))[0]


def _run_call(arrays: Sequence[Array], primitive: str, arguments: str, method: str) -> list[Array]:
    given, options = _read(arguments)
    named, function = {**dict(zip(given, arrays, strict=True)), **options}, primitives[primitive]
    first = [named.pop(name) for name in positional(function) if name in named]
    return _whole(function(*first, **named, method=_inside(method)))


@functools.lru_cache(maxsize=4096)
def _read(arguments: str) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the arrays of a call, and its options by name."""
    given, options = ast.literal_eval(arguments)
    return given, options


@functools.cache
def positional(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of a function that have no name to a caller."""
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is inspect.Parameter.POSITIONAL_ONLY]


def _pull_call(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    return _pulled(ctx, gs, "call", _run_call)


def _keep_call(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    _keep_all(ctx, inputs, output)
    ctx.set_materialize_grads(False)  # of several results some may go unused, and integers have none


def _inside(method: str) -> str:
    """Return a method for a call that is to be no node again."""
    return method if isinstance(method, Inside) else _INSIDE.get(method) or Inside(method)


_INSIDE = {name: Inside(name) for name in ("auto", "kernel", "native", "array")}


def _given(array: Array | None, number: Any) -> Any:
    return _number(number) if array is None else array


def _number(value: Any) -> Any:
    """Return a number; that which a symbol of the graph stands for now."""
    if isinstance(value, torch.SymFloat):
        return float(value)
    return int(value) if isinstance(value, torch.SymInt) else value


def _whole(results: Any) -> list[Array]:
    """Return results as what the fake node promises: arrays in row-major order."""
    return [one.contiguous() for one in (results if isinstance(results, tuple) else (results,))]


def _with_values(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a node does; not where forward derivatives are taken, for PyTorch would take its own for zero."""

    def checked(*inputs: Any) -> Any:
        if torch.autograd.forward_ad._current_level >= 0:
            raise NotImplementedError("operators of torch.ops.parprims have no forward derivatives")
        return _apart(run(*inputs), inputs)

    return checked


_shares = getattr(torch._C, "_any_output_is_alias_to_input_or_output", lambda *_: True)
"""PyTorch's own look whether results share memory; without it they are looked at here."""


def _apart(results: Any, inputs: Sequence[Any]) -> Any:
    """Return the results of a node, those copied that share their memory with an input or another result."""
    if not _shares(inputs, {}, (results,)):
        return results
    known = {x.untyped_storage().data_ptr() for one in inputs for x in _arrays_of(one)}
    apart = []
    for x in results if isinstance(results, list) else [results]:
        apart.append(x.clone() if x.untyped_storage().data_ptr() in known else x)
        known.add(apart[-1].untyped_storage().data_ptr())
    return apart if isinstance(results, list) else apart[0]


def _fake(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a node does where arrays have no values: check, and return empty ones."""
    return lambda *args: run(*args[:-1], Abstract(args[-1]))


# ---- Nodes: derivatives -----------------------------------------------------------------------------------------


def _pulled(ctx: Any, gs: Sequence[Array | None], name: str, run: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the derivatives by the inputs of a node: those of the operations by which PyTorch computes its results.

    They are a node of their own, or those operations themselves where they are to be differentiated in turn.
    ``ctx.given`` holds the inputs, with marks for arrays, which were saved in their order (`_keep_all`).
    """
    saved = iter(ctx.saved_tensors)
    inputs: list[Any] = []
    flags: list[bool] = []
    for one, asked_for in zip(ctx.given, ctx.needs_input_grad, strict=True):
        if isinstance(one, _Saved):
            wanted = asked_for if one.listed else [asked_for]
            found = [next(saved) for _ in wanted]
            inputs.append(found if one.listed else found[0])
            flags += wanted
        else:
            inputs.append(one)
    at = [index for index, g in enumerate(gs) if g is not None and (g.is_floating_point() or g.is_complex())]
    given = [gs[index] for index in at]
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        derivatives = _pull_by_operations(run, inputs, at, given, flags)
    else:
        derivatives = getattr(torch.ops.parprims, f"{name}_backward")(given, at, flags, *inputs)
    by = iter(derivatives)

    def part(asked_for: Any) -> Any:
        return [part(one) for one in asked_for] if isinstance(asked_for, list) else next(by) if asked_for else None

    return tuple(part(asked_for) for asked_for in ctx.needs_input_grad)


def _pull_by_operations(
    run: Callable[..., Any], inputs: list[Any], at: Sequence[int], gs: Sequence[Any], flags: Sequence[bool]
) -> Sequence[Array]:
    arrays, results = _function_of_arrays(run, inputs, at, flags)
    with torch.enable_grad(), unwatched():
        leaves = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in arrays]
        ys = results(*leaves)
        pairs = [(y, g) for y, g in zip(ys, gs, strict=True) if y.requires_grad]
    ones, others = [y for y, _ in pairs], [g for _, g in pairs]
    return torch.autograd.grad(ones, leaves, others, create_graph=True, materialize_grads=True) if pairs else leaves


def _function_of_arrays(
    run: Callable[..., Any], inputs: Sequence[Any], at: Sequence[int], flags: Sequence[bool]
) -> tuple[list[Array], Callable[..., tuple[Array, ...]]]:
    """Return the flagged arrays among a node's inputs, and the function of them that gives some of its results."""
    *inputs, method = inputs
    asked = iter(flags)
    arrays: list[Array] = []
    for one in inputs:
        for x in _arrays_of(one):
            if next(asked):
                arrays.append(x)

    def results(*leaves: Array) -> tuple[Array, ...]:
        asked, left = iter(flags), iter(leaves)

        def leaf(x: Array) -> Array:
            return next(left) if next(asked) else x.detach()

        whole = [
            one if not _arrays_of(one) else [leaf(x) for x in one] if isinstance(one, list) else leaf(one)
            for one in inputs
        ]
        ys = run(*whole, Inside("auto" if method == "kernel" else method))
        ys = ys if isinstance(ys, list) else [ys]
        return tuple(ys[index] for index in at)

    return arrays, results


def _arrays_of(one: Any) -> Sequence[Array]:
    """Return the arrays of an input of a node."""
    if isinstance(one, torch.Tensor):
        return (one,)
    return one if isinstance(one, list) and len(one) > 0 and isinstance(one[0], torch.Tensor) else ()


def _backward(run: Callable[..., Any]) -> Callable[..., list[Array]]:
    """Return what computes the derivatives by the flagged arrays among a node's inputs."""

    def pull(gs: Sequence[Array], at: Sequence[int], flags: Sequence[bool], *inputs: Any) -> list[Array]:
        arrays, results = _function_of_arrays(run, inputs, at, flags)
        if isinstance(inputs[-1], Abstract):
            return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in arrays]
        with unwatched():
            _, by = torch.func.vjp(results, *arrays)
            return [one.contiguous() for one in by(tuple(gs))]

    return pull


class _Saved:
    """Stands among the inputs of a node for one array that is saved, or a list of them."""

    def __init__(self, listed: bool) -> None:
        self.listed = listed


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: Any, *more: Array) -> None:
    """Keep all inputs of a node, and more arrays behind them."""
    del output
    ctx.given = []
    saved: list[Array] = []
    for one in inputs:
        arrays = _arrays_of(one)
        if arrays:
            ctx.given.append(_Saved(isinstance(one, list)))
            saved += arrays
        else:
            ctx.given.append(one)
    ctx.save_for_backward(*saved, *more)


def _pull_reduce(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    return _pulled(ctx, gs, "reduce", _run_reduce)


def _pull_vecdot(ctx: Any, g: Array) -> tuple[Any, ...]:
    return _pulled(ctx, [g], "vecdot", _run_vecdot)


def _keep_recurrence(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:
    a, ctx.a, b, _, initial, ctx.initial, *ctx.options = inputs
    ctx.save_for_backward(a, output if ctx.needs_input_grad[0] else None, initial)
    ctx.b = None if b is None else (b.shape, b.dtype)


def _pull_recurrence(ctx: Any, g: Array) -> tuple[Array | None, ...]:
    a, x, initial = ctx.saved_tensors
    axis, reverse, method = ctx.options
    axis %= g.ndim
    start = _start(initial, ctx.initial, g, axis)
    wide = torch.full_like(g, ctx.a) if a is None else a.to(g.dtype).expand(g.shape)
    by_a, by_b, by_start = derivative_rules.adjoint(xp, wide, x, g, start, axis, reverse, method, solve=_solve)
    return (
        None if x is None else as_given(by_a, a.shape, a.dtype),
        None,
        None if ctx.b is None else as_given(by_b, *ctx.b),
        None,
        None if initial is None or by_start is None else as_given(by_start.squeeze(axis), initial.shape, initial.dtype),
        *(None,) * 4,
    )


def _keep_scan(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    x, op, initial, ctx.initial, dtype, _, *ctx.options = inputs
    ctx.op = op
    ctx.set_materialize_grads(False)  # of several results some may go unused
    if op not in _WITH_RULES:
        _keep_all(ctx, inputs, output)
        return
    kept = (*x, *output) if op != "add" else ()  # a sum's derivative reads neither elements nor results
    ctx.components = len(kept) // 2
    ctx.save_for_backward(*kept, *initial)
    ctx.given = [(one.shape, one.dtype) for one in (*x, *initial)]
    # Autograd takes an empty list for one of arrays, and asks for a list of their derivatives.
    ctx.none = [[] if one == [] else None for one in (ctx.initial, dtype, None, *ctx.options)]


def _pull_scan(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    if ctx.op not in _WITH_RULES:
        return _pulled(ctx, gs, "scan", _run_scan)
    count = ctx.components
    xs, ys, initial = (ctx.saved_tensors[at] for at in _thirds(count))
    axis, *options = ctx.options
    like = next(g for g in gs if g is not None)
    axis = (-1 if axis is None else axis) % like.ndim
    starts = tuple(_start(one, None, like, axis) for one in initial)
    numbers = tuple(_start(None, one, like, axis) for one in ctx.initial or ())
    by_x, by_initial = derivative_rules.scan_adjoint(
        xp, ctx.op, xs, ys, starts + numbers, tuple(gs), axis, *options, solve=_solve, sums=_sum
    )
    parts = [*by_x, *(None if one is None else one.squeeze(axis) for one in by_initial[: len(initial)])]
    found = [None if one is None else as_given(one, *to) for one, to in zip(parts, ctx.given, strict=True)]
    return found[: len(by_x)], None, found[len(by_x) :], *ctx.none


_WITH_RULES = tuple(op.name for op in derivative_rules.OPERATORS)


def _thirds(count: int) -> tuple[slice, slice, slice]:
    return slice(count), slice(count, 2 * count), slice(2 * count, None)


def _keep_sort(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    arrays, _, indices, *ctx.options = inputs
    ctx.set_materialize_grads(False)  # of keys and values some may go unused, and integers have none
    ctx.indices = indices
    ctx.save_for_backward(output[-1] if indices else arrays[0])


def _pull_sort(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    (order,) = ctx.saved_tensors
    if ctx.indices:
        gs = gs[:-1]
    else:
        order = torch.ops.parprims.argsort(order.detach(), *ctx.options)
    axis = ctx.options[0]
    parts = [None if g is None else torch.zeros_like(g).scatter(axis, order, g) for g in gs]
    return parts, *(None,) * 6


def _keep_tridiagonal(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    _keep_all(ctx, inputs, output, output[0])
    ctx.set_materialize_grads(False)


def _pull_tridiagonal(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    if gs[0] is None or any(g is not None for g in gs[1:]):
        return _pulled(ctx, gs, "solve_tridiagonal", _run_tridiagonal)
    saved = iter(ctx.saved_tensors)
    coefficients = [(next(saved) if isinstance(ctx.given[at], _Saved) else None, ctx.given[at + 1]) for at in (0, 2, 4)]
    rhs, x = saved
    axis, pivot, periodic, transpose, *_, method = ctx.given[7:]
    wide = compute_dtype(xp, x.dtype)
    conjugates: list[Any] = []
    for array, number in coefficients:
        conjugates += (None, number.conjugate()) if array is None else (array.conj().to(wide), None)
    g = gs[0].to(wide)
    options = (axis, pivot, periodic, not transpose, False, False, method)
    (by_rhs,) = torch.ops.parprims.solve_tridiagonal(*conjugates, g, *options)
    ndim = max(0 if array is None else array.ndim for array, _ in coefficients) or x.ndim
    at = axis % ndim - x.ndim  # of several right-hand sides the coefficients have no axis, which is the last
    y = x.conj().to(wide)
    by_lower, by_diag, by_upper = (-by_rhs * (y.roll(step, at) if step else y) for step in (1, 0, -1))
    if not periodic and y.shape[at] > 0:
        by_lower, by_upper = ends_cleared(xp, by_lower, by_upper, at)
    if transpose:
        by_lower, by_upper = by_upper.roll(1, at), by_lower.roll(-1, at)
    found: list[Array | None] = []
    for by, (array, _) in zip((by_lower, by_diag, by_upper), coefficients, strict=True):
        by = by.sum(-1) if x.ndim > ndim else by
        found += (None if array is None else as_given(by, array.shape, array.dtype), None)
    return *found, as_given(by_rhs, rhs.shape, rhs.dtype), *(None,) * 7


def _pull_matmul(ctx: Any, g: Array) -> tuple[Any, ...]:
    *_, add, multiply, precision, kernel, tile, method = ctx.given
    if (add, multiply) != ("add", "multiply"):
        return _pulled(ctx, [g], "matmul", _run_matmul)
    options = (add, multiply, precision, kernel, tile, method)
    a, b = ctx.saved_tensors
    by_a, by_b = product_adjoint(g, a, b, ctx.needs_input_grad, lambda a, b: torch.ops.parprims.matmul(a, b, *options))
    return by_a, by_b, *(None,) * 6


def _start(initial: Array | None, number: Any, like: Array, axis: int) -> Array | None:
    """Return the initial element of a result, of length 1 along the axis, or None if there is none."""
    if initial is not None:
        return initial.expand((*like.shape[:axis], *like.shape[axis + 1 :])).unsqueeze(axis)
    return None if number is None else filled(xp, number, like, axis)


def _solve(a: Array, b: Array, *, axis: int, reverse: bool, method: str) -> Array:
    method = "auto" if method == "native" else method  # PyTorch itself has scans, but no recurrences
    return torch.ops.parprims.linear_recurrence(a, None, b, None, None, None, axis, reverse, method)


def _sum(x: Array, *, axis: int, exclusive: bool, reverse: bool, method: str) -> Array:
    (y,) = torch.ops.parprims.scan([x], "add", [], [], [], "scan", axis, exclusive, reverse, False, method)
    return y


# ---- The table --------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("parprims", "FRAGMENT")


def _define(name: str, schema: str, run: Callable[..., Any], pull: Callable[..., Any], keep: Any) -> None:
    """Make an operator of PyTorch, by its dispatcher itself: a custom_op takes ten times as long to come to ``run``.

    The operator hands its arguments to another, which computes. That has no derivative of its own, and is all that a
    compiled program holds, where derivatives are nodes themselves.
    """
    computes, tags = f"{name}_result", (torch.Tag.pt2_compliant_tag,)
    for one in (name, computes):
        _LIBRARY.define(one + schema, tags=tags)
        _LIBRARY.impl(one, _with_values(run), "CompositeExplicitAutograd")
        torch.library.register_fake(f"parprims::{one}", _fake(run), lib=_LIBRARY)
    _LIBRARY.impl(computes, torch.library.fallthrough_kernel, "Autograd")
    result = getattr(torch.ops.parprims, computes).default
    differentiable = make_autograd_impl(result, Info(pull, keep))
    asked, asked_by, below = torch.is_grad_enabled, torch._C._any_requires_grad, torch._C._AutoDispatchBelowAutograd

    def enter(keys: Any, *arguments: Any) -> Any:
        if asked() and asked_by(*arguments):
            return differentiable(keys, *arguments)
        with below():
            return result(*arguments)

    _LIBRARY.impl(name, enter, "Autograd", with_keyset=True)


def _has_no_derivative(ctx: Any, *gs: Any) -> Any:
    """Refuse: nodes of derivatives are differentiated by operations, and indices have none."""
    del ctx, gs
    raise RuntimeError("this operator of torch.ops.parprims has no derivative")


_ELEMENTS = "Tensor[] x, str op, Tensor[] initial_arrays, Scalar[]? initial, str[] dtype, str primitive"

for _title, _schema, _run, _kept_for, _pull, _batch in (
    (
        "reduce",
        f"({_ELEMENTS}, int[]? axis, bool keepdims, str method) -> Tensor[]",
        _run_reduce,
        _keep_all,
        _pull_reduce,
        vmap.reduce,
    ),
    (
        "vecdot",
        "(Tensor x1, Tensor x2, int axis, str method) -> Tensor",
        _run_vecdot,
        _keep_all,
        _pull_vecdot,
        vmap.vecdot,
    ),
    (
        "scan",
        f"({_ELEMENTS}, int? axis, bool exclusive, bool reverse, bool include_initial, str method) -> Tensor[]",
        _run_scan,
        _keep_scan,
        _pull_scan,
        vmap.scan,
    ),
    (
        "linear_recurrence",
        "(Tensor? a_array, Scalar? a, Tensor? b_array, Scalar? b, Tensor? initial_array, Scalar? initial, int axis, "
        "bool reverse, str method) -> Tensor",
        _run_recurrence,
        _keep_recurrence,
        _pull_recurrence,
        vmap.recurrence,
    ),
    (
        "sort",
        "(Tensor[] arrays, str primitive, bool indices, int axis, bool descending, bool stable, str method) "
        "-> Tensor[]",
        _run_sort,
        _keep_sort,
        _pull_sort,
        vmap.sort,
    ),
    (
        "argsort",
        "(Tensor x, int axis, bool descending, bool stable, str method) -> Tensor",
        _run_argsort,
        None,
        _has_no_derivative,
        vmap.argsort,
    ),
    (
        "solve_tridiagonal",
        "(Tensor? lower_array, Scalar? lower, Tensor? diag_array, Scalar? diag, Tensor? upper_array, Scalar? upper, "
        "Tensor rhs, int axis, str pivot, bool periodic, bool transpose, bool return_residual, bool return_status, "
        "str method) -> Tensor[]",
        _run_tridiagonal,
        _keep_tridiagonal,
        _pull_tridiagonal,
        vmap.tridiagonal,
    ),
    (
        "call",
        "(Tensor[] arrays, str primitive, str arguments, str method) -> Tensor[]",
        _run_call,
        _keep_call,
        _pull_call,
        vmap.call,
    ),
    (
        "matmul",
        "(Tensor a, Tensor b, str add, str multiply, str precision, str? kernel, int[]? tile, str method) -> Tensor",
        _run_matmul,
        _keep_all,
        _pull_matmul,
        vmap.matmul,
    ),
):
    runs[_title] = _run
    _define(_title, _schema, _run, _pull, _kept_for)
    torch.library.register_vmap(f"parprims::{_title}", _batch, lib=_LIBRARY)
    if _title in ("reduce", "vecdot", "scan", "solve_tridiagonal", "call", "matmul"):
        _arguments = _schema[1 : _schema.index(")")]
        _back = f"(Tensor[] gs, int[] at, bool[] flags, {_arguments}) -> Tensor[]"
        _define(f"{_title}_backward", _back, _backward(_run), _has_no_derivative, None)

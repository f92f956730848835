"""The nodes of `_torch_compile.ops`: their computation and their derivatives.

A node is an operator of PyTorch, defined at the end of this file by a row of a table.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import array_api_compat.torch
import torch
from torch._library.autograd import Info, make_autograd_impl

from parprims._core import arrays as core_arrays
from parprims._core.arrays import Array, Namespace, compute_dtype, filled
from parprims._derivatives.torch_rules import product_adjoint, reduced_like
from parprims._dispatch import derivative_rules
from parprims._dispatch.derivative_rules import ScanResult, Solver, Sweep
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
from parprims._torch_compile import parameters, vmap

xp: Namespace = array_api_compat.torch

runs: dict[str, Callable[..., Any]] = {}
"""The computations of the nodes, by the names of the nodes."""

operators: dict[str, Any] = {}
"""Operators of the caller's own, by the names that nodes know them by."""


def _dtypes(names: Sequence[str]) -> tuple[Any, ...] | None:
    """Return the dtypes of these names, or None if there are none; a name that no dtype has stays, to be refused."""
    return tuple([getattr(torch, name, name) for name in names]) or None


def operator_named(name: str) -> Any:
    """Return the operator that a node knows by a name; the name itself for a built-in operator."""
    if name.startswith("segmented(") and name.endswith(")"):
        return segmented(operator_named(name.removeprefix("segmented(").removesuffix(")")))
    if "#" in name and name not in operators:
        raise ValueError(
            f"op {name} belongs to a program compiled in another process: this process does not know its function"
        )
    return operators.get(name, name)


# ---- Nodes: computation -----------------------------------------------------------------------------------------


def _run_reduce(call: parameters.Reduce) -> list[Array]:
    axis = call.axis
    axes = None if axis is None else axis[0] if len(axis) == 1 else tuple(axis)
    start = _start_of(call)
    if start is None and len(call.x) == 1 and call.primitive != "map_reduce":
        return _row_major(_called(public_reduce, call, axis=axes, keepdims=call.keepdims))
    x = call.x[0] if len(call.x) == 1 else tuple(call.x)
    options = {
        "fn": None,
        "op": operator_named(call.op),
        "axis": axes,
        "keepdims": call.keepdims,
        "dtype": _dtypes(call.dtype),
        "initial": start,
    }
    arguments = Arguments(call.primitive, {"x": x}, options, _inside(call.method))
    return _row_major(declared[call.primitive].of(arguments))


def _start_of(call: parameters.Reduce | parameters.Scan) -> tuple[Any, ...] | None:
    """Return the initial element of a call, or None."""
    return (*call.initial_arrays, *map(_number, call.initial or ())) or None


def _called(module: Any, call: parameters.Reduce | parameters.Scan, **options: Any) -> Any:
    """Return the result of a public function for one array; a dtype that the call leaves out is left out here too."""
    function, x, dtype = getattr(module, call.primitive), call.x[0], call.dtype
    if dtype:
        options["dtype"] = getattr(torch, dtype[0], dtype[0]) if len(dtype) == 1 else _dtypes(dtype)
    if call.primitive in ("reduce", "scan"):
        return function(x, operator_named(call.op), **options, method=_inside(call.method))
    return function(x, **options, method=_inside(call.method))


def _run_vecdot(call: parameters.Vecdot) -> Array:
    return _row_major(public_reduce.vecdot(call.x1, call.x2, axis=call.axis, method=_inside(call.method)))[0]


def _run_scan(call: parameters.Scan) -> list[Array]:
    start = _start_of(call)
    flags = {"exclusive": call.exclusive, "reverse": call.reverse, "include_initial": call.include_initial}
    if start is None and len(call.x) == 1 and call.primitive in ("scan", "cumulative_sum", "cumulative_prod"):
        changed = {name: value for name, value in flags.items() if value is not False}
        return _row_major(_called(public_scan, call, axis=call.axis, **changed))
    arrays = {"x": call.x[0] if len(call.x) == 1 else tuple(call.x), "initial": start}
    options = {"op": operator_named(call.op), "axis": call.axis, "dtype": _dtypes(call.dtype), **flags}
    arguments = Arguments(call.primitive, arrays, options, _inside(call.method))
    return _row_major(declared[call.primitive].of(arguments))


def _run_recurrence(call: parameters.Recurrence) -> Array:
    a, b = _operand(call.a_array, call.a), _operand(call.b_array, call.b)
    initial = _operand(call.initial_array, call.initial)
    options = {"axis": call.axis, "initial": initial, "reverse": call.reverse, "method": _inside(call.method)}
    return _row_major(public_recurrence.linear_recurrence(a, b, **options))[0]


def _run_sort(call: parameters.Sort) -> list[Array]:
    keys, *values = call.arrays
    options: dict[str, Any] = {"axis": call.axis, "descending": call.descending, "stable": call.stable}
    if call.primitive == "sort" and not (values or call.indices):
        return _row_major(sort(keys, **options, method=_inside(call.method)))
    if call.indices:  # sorted as one more value, the index of each element gives the permutation
        axis, shape = core_arrays.normalize_axis(call.axis, keys.ndim), [1] * keys.ndim
        shape[axis] = keys.shape[axis]
        values.append(torch.arange(shape[axis], device=keys.device).view(shape).expand(keys.shape))
    arrays = {"keys" if call.primitive == "sort_by_key" else "x": keys, "values": tuple(values)}
    return _row_major(declared[call.primitive].of(Arguments(call.primitive, arrays, options, _inside(call.method))))


def _run_argsort(call: parameters.Argsort) -> Array:
    options: dict[str, Any] = {"axis": call.axis, "descending": call.descending, "stable": call.stable}
    return _row_major(argsort(call.x, **options, method=_inside(call.method)))[0]


def _run_tridiagonal(call: parameters.Tridiagonal) -> list[Array]:
    results = public_tridiagonal.solve_tridiagonal(
        _operand(call.lower_array, call.lower),
        _operand(call.diag_array, call.diag),
        _operand(call.upper_array, call.upper),
        call.rhs,
        axis=call.axis,
        pivot=call.pivot,
        periodic=call.periodic,
        transpose=call.transpose,
        return_residual=call.return_residual,
        return_status=call.return_status,
        method=_inside(call.method),
    )
    return _row_major(results)


def _run_matmul(call: parameters.Matmul) -> Array:
    options: dict[str, Any] = {
        "add": operator_named(call.add),
        "multiply": operator_named(call.multiply),
        "precision": call.precision,
        "kernel": call.kernel,
        "tile": None if call.tile is None else tuple(call.tile),
        "method": _inside(call.method),
    }
    return _row_major(public_matmul.matmul(call.a, call.b, **options))[0]


def _run_call(call: parameters.Call) -> list[Array]:
    names, options = _read(call.arguments)
    named, function = {**dict(zip(names, call.arrays, strict=True)), **options}, primitives[call.primitive]
    first = [named.pop(name) for name in positional(function) if name in named]
    return _row_major(function(*first, **named, method=_inside(call.method)))


@functools.lru_cache(maxsize=4096)
def _read(arguments: str) -> tuple[list[str], dict[str, Any]]:
    """Return the names of the arrays of a call, and its options by name."""
    names, options = ast.literal_eval(arguments)
    return names, options


@functools.cache
def positional(function: Callable[..., Any]) -> list[str]:
    """Return the positional-only parameters of a function."""
    signature = inspect.signature(function)
    return [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY]


def _pull_call(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    return _pulled(ctx, gs, "call")


def _keep_call(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    _keep_all(ctx, inputs, output)
    ctx.set_materialize_grads(False)  # some results may be unused, and integers have no derivative


def _inside(method: str) -> str:
    """Return a method for a call that must not become a node again."""
    return method if isinstance(method, Inside) else _INSIDE.get(method) or Inside(method)


_INSIDE = {name: Inside(name) for name in ("auto", "kernel", "native", "array")}


def _operand(array: Array | None, number: Any) -> Any:
    """Return an operand, which a node has as an array or as a number."""
    return _number(number) if array is None else array


def _number(value: Any) -> Any:
    """Return a number; for a symbol of the graph its present value."""
    if isinstance(value, torch.SymFloat):
        return float(value)
    return int(value) if isinstance(value, torch.SymInt) else value


def _row_major(results: Any) -> list[Array]:
    """Return the results as a list of arrays in row-major order, as the fake node promises."""
    return [y.contiguous() for y in (results if isinstance(results, tuple) else (results,))]


def _with_values(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run`` for arrays with values; it refuses forward derivatives, which PyTorch would take for zero."""

    def checked(*arguments: Any) -> Any:
        if torch.autograd.forward_ad._current_level >= 0:
            raise NotImplementedError("operators of torch.ops.parprims have no forward derivatives")
        return _apart(run(*arguments), arguments)

    return checked


_shares = getattr(torch._C, "_any_output_is_alias_to_input_or_output", lambda *_: True)
"""PyTorch's own check whether results share memory; without it `_apart` always checks."""


def _apart(results: Any, arguments: Sequence[Any]) -> Any:
    """Return the results of a node; a result that shares memory with an input or another result is copied."""
    if not _shares(arguments, {}, (results,)):
        return results
    known = {x.untyped_storage().data_ptr() for argument in arguments for x in _arrays_of(argument)}
    apart = []
    for x in results if isinstance(results, list) else [results]:
        apart.append(x.clone() if x.untyped_storage().data_ptr() in known else x)
        known.add(apart[-1].untyped_storage().data_ptr())
    return apart if isinstance(results, list) else apart[0]


def _fake(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``run`` for arrays without values: it checks the arguments and returns empty arrays."""
    return lambda *arguments: run(*arguments[:-1], Abstract(arguments[-1]))


# ---- Nodes: derivatives -----------------------------------------------------------------------------------------


def _pulled(ctx: Any, gs: Sequence[Array | None], name: str) -> tuple[Any, ...]:
    """Return the derivatives by the inputs of a node, taken through the PyTorch operations that compute its results.

    A node of its own computes them, unless they are to be differentiated in turn; then the operations themselves do.
    ``ctx.given`` holds the inputs, with marks for arrays, which were saved in their order (`_keep_all`).
    """
    saved = iter(ctx.saved_tensors)
    arguments: list[Any] = []
    flags: list[bool] = []
    for argument, needed in zip(ctx.given, ctx.needs_input_grad, strict=True):
        if isinstance(argument, _Saved):
            wanted = needed if argument.listed else [needed]
            arrays = [next(saved) for _ in wanted]
            arguments.append(arrays if argument.listed else arrays[0])
            flags += wanted
        else:
            arguments.append(argument)
    at = [index for index, g in enumerate(gs) if g is not None and (g.is_floating_point() or g.is_complex())]
    known = [gs[index] for index in at]
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        derivatives = _pull_by_operations(_Function(name, arguments, at, flags), known)
    else:
        derivatives = getattr(torch.ops.parprims, f"{name}_backward")(known, at, flags, *arguments)
    by = iter(derivatives)

    def part(needed: Any) -> Any:
        return [part(need) for need in needed] if isinstance(needed, list) else next(by) if needed else None

    return tuple(part(needed) for needed in ctx.needs_input_grad)


@dataclasses.dataclass(frozen=True)
class _Function:
    """A node as a function of some of its arrays.

    Parameters
    ----------
    name : str
        The name of the node.
    arguments : sequence
        The inputs of the node.
    at : sequence of int
        The indices of the results to return.
    flags : sequence of bool
        For each array among the inputs whether it is a variable.
    """

    name: str
    arguments: Sequence[Any]
    at: Sequence[int]
    flags: Sequence[bool]

    @property
    def variables(self) -> list[Array]:
        """The flagged arrays."""
        arrays = [x for argument in self.arguments for x in _arrays_of(argument)]
        return [x for x, flag in zip(arrays, self.flags, strict=True) if flag]

    def __call__(self, *variables: Array) -> tuple[Array, ...]:
        """Return the results, computed by operations of PyTorch."""
        *arguments, method = self.arguments
        flags, left = iter(self.flags), iter(variables)

        def leaf(x: Array) -> Array:
            return next(left) if next(flags) else x.detach()

        changed = [
            x if not _arrays_of(x) else [leaf(one) for one in x] if isinstance(x, list) else leaf(x) for x in arguments
        ]
        ys = runs[self.name](*changed, Inside("auto" if method == "kernel" else method))
        ys = ys if isinstance(ys, list) else [ys]
        return tuple(ys[index] for index in self.at)


def _pull_by_operations(function: _Function, gs: Sequence[Any]) -> Sequence[Array]:
    with torch.enable_grad(), unwatched():
        leaves = [x.view_as(x) if x.requires_grad else x.detach().requires_grad_() for x in function.variables]
        ys = function(*leaves)
        pairs = [(y, g) for y, g in zip(ys, gs, strict=True) if y.requires_grad]
    results, cotangents = [y for y, _ in pairs], [g for _, g in pairs]
    if not pairs:
        return leaves
    derivatives: Sequence[Array] = torch.autograd.grad(
        results, leaves, cotangents, create_graph=True, materialize_grads=True
    )
    return derivatives


def _arrays_of(argument: Any) -> Sequence[Array]:
    """Return the arrays of an input of a node."""
    if isinstance(argument, torch.Tensor):
        return (argument,)
    has_arrays = isinstance(argument, list) and len(argument) > 0 and isinstance(argument[0], torch.Tensor)
    return argument if has_arrays else ()


def _backward(name: str) -> Callable[..., list[Array]]:
    """Return a function that computes the derivatives by the flagged arrays among a node's inputs."""

    def pull(gs: Sequence[Array], at: Sequence[int], flags: Sequence[bool], *arguments: Any) -> list[Array]:
        function = _Function(name, arguments, at, flags)
        if isinstance(arguments[-1], Abstract):
            return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in function.variables]
        with unwatched():
            _, by = torch.func.vjp(function, *function.variables)
            return [x.contiguous() for x in by(tuple(gs))]

    return pull


class _Saved:
    """A mark among the inputs of a node for a saved array, or for a list of them."""

    def __init__(self, listed: bool) -> None:
        self.listed = listed


def _keep_all(ctx: Any, inputs: tuple[Any, ...], output: Any, *more: Array) -> None:
    """Keep all inputs of a node, and more arrays behind them."""
    del output
    ctx.given = []
    saved: list[Array] = []
    for argument in inputs:
        arrays = _arrays_of(argument)
        if arrays:
            ctx.given.append(_Saved(isinstance(argument, list)))
            saved += arrays
        else:
            ctx.given.append(argument)
    ctx.save_for_backward(*saved, *more)


def _pull_reduce(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    return _pulled(ctx, gs, "reduce")


def _pull_vecdot(ctx: Any, g: Array) -> tuple[Any, ...]:
    return _pulled(ctx, [g], "vecdot")


def _keep_recurrence(ctx: Any, inputs: tuple[Any, ...], output: Array) -> None:
    call = parameters.Recurrence(*inputs)
    ctx.save_for_backward(call.a_array, output if ctx.needs_input_grad[0] else None, call.initial_array)
    ctx.b = None if call.b_array is None else (call.b_array.shape, call.b_array.dtype)
    ctx.call = call._replace(a_array=None, b_array=None, initial_array=None)


def _pull_recurrence(ctx: Any, g: Array) -> tuple[Array | None, ...]:
    a, x, initial = ctx.saved_tensors
    call = ctx.call
    axis = call.axis % g.ndim
    start = _start(initial, call.initial, g, axis)
    wide = torch.full_like(g, call.a) if a is None else a.to(g.dtype).expand(g.shape)
    sweep = Sweep(xp, axis, call.reverse)
    by_a, by_b, by_start = derivative_rules.adjoint(sweep, _solver(call.method), wide, g, x=x, initial=start)
    return (
        None if x is None else reduced_like(by_a, a.shape, a.dtype),
        None,
        None if ctx.b is None else reduced_like(by_b, *ctx.b),
        None,
        None
        if initial is None or by_start is None
        else reduced_like(by_start.squeeze(axis), initial.shape, initial.dtype),
        *(None,) * 4,
    )


def _keep_scan(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    call = parameters.Scan(*inputs)
    ctx.set_materialize_grads(False)  # some of several results may be unused
    ctx.op = call.op
    if call.op not in _WITH_RULES:
        _keep_all(ctx, inputs, output)
        return
    read = (*call.x, *output) if call.op != "add" else ()  # the derivative of a sum reads neither elements nor results
    ctx.components = len(read) // 2
    ctx.save_for_backward(*read, *call.initial_arrays)
    ctx.given = [(x.shape, x.dtype) for x in (*call.x, *call.initial_arrays)]
    ctx.call = call._replace(x=(), initial_arrays=())
    # Autograd takes an empty list for a list of arrays, and asks for a list of their derivatives.
    ctx.none = [[] if value == [] else None for value in (call.initial, call.dtype)]


def _pull_scan(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    if ctx.op not in _WITH_RULES:
        return _pulled(ctx, gs, "scan")
    call, count, saved = ctx.call, ctx.components, ctx.saved_tensors
    initial = saved[2 * count :]
    like = next(g for g in gs if g is not None)
    axis = (-1 if call.axis is None else call.axis) % like.ndim
    starts = tuple(_start(array, None, like, axis) for array in initial)
    numbers = tuple(_start(None, number, like, axis) for number in call.initial or ())
    result = ScanResult(
        op=call.op,
        xs=saved[:count],
        ys=saved[count : 2 * count],
        initial=starts + numbers,
        exclusive=call.exclusive,
        include_initial=call.include_initial,
    )
    sweep = Sweep(xp, axis, call.reverse)
    by_x, by_initial = derivative_rules.scan_adjoint(sweep, _solver(call.method), result, tuple(gs))
    parts = [*by_x, *(None if by is None else by.squeeze(axis) for by in by_initial[: len(initial)])]
    parts = [None if by is None else reduced_like(by, *like) for by, like in zip(parts, ctx.given, strict=True)]
    return parts[: len(by_x)], None, parts[len(by_x) :], *ctx.none, *(None,) * 6


_WITH_RULES = tuple(op.name for op in derivative_rules.OPERATORS)


def _keep_sort(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    call = parameters.Sort(*inputs)
    ctx.set_materialize_grads(False)  # some results may be unused, and integers have no derivative
    ctx.call = call._replace(arrays=())
    ctx.save_for_backward(output[-1] if call.indices else call.arrays[0])


def _pull_sort(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    call, (order,) = ctx.call, ctx.saved_tensors
    if call.indices:
        gs = gs[:-1]
    else:
        order = torch.ops.parprims.argsort(order.detach(), call.axis, *call[4:])
    parts = [None if g is None else torch.zeros_like(g).scatter(call.axis, order, g) for g in gs]
    return parts, *(None,) * 6


def _keep_tridiagonal(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    _keep_all(ctx, inputs, output, output[0])
    ctx.set_materialize_grads(False)


def _pull_tridiagonal(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    if gs[0] is None or any(g is not None for g in gs[1:]):
        return _pulled(ctx, gs, "solve_tridiagonal")
    saved, call = iter(ctx.saved_tensors), parameters.Tridiagonal(*ctx.given)
    marks = (call.lower_array, call.diag_array, call.upper_array)
    arrays = [next(saved) if isinstance(mark, _Saved) else None for mark in marks]
    rhs, x = saved
    wide, transpose = compute_dtype(xp, x.dtype), call.transpose
    conjugates: list[Any] = []
    for array, number in zip(arrays, (call.lower, call.diag, call.upper), strict=True):
        conjugates += (None, number.conjugate()) if array is None else (array.conj().to(wide), None)
    options: dict[str, Any] = {"transpose": not transpose, "return_residual": False, "return_status": False}
    names = ("lower_array", "lower", "diag_array", "diag", "upper_array", "upper")
    system = call._replace(rhs=gs[0].to(wide), **dict(zip(names, conjugates, strict=True)), **options)
    (by_rhs,) = torch.ops.parprims.solve_tridiagonal(*system)
    ndim = max(0 if array is None else array.ndim for array in arrays) or x.ndim
    axis = call.axis % ndim - x.ndim  # several right-hand sides have one more axis, the last, than the coefficients
    y = x.conj().to(wide)
    by_lower, by_diag, by_upper = (-by_rhs * (y.roll(step, axis) if step else y) for step in (1, 0, -1))
    if not call.periodic and y.shape[axis] > 0:
        by_lower, by_upper = ends_cleared(xp, by_lower, by_upper, axis)
    if transpose:
        by_lower, by_upper = by_upper.roll(1, axis), by_lower.roll(-1, axis)
    parts: list[Array | None] = []
    for by, array in zip((by_lower, by_diag, by_upper), arrays, strict=True):
        by = by.sum(-1) if x.ndim > ndim else by
        parts += (None if array is None else reduced_like(by, array.shape, array.dtype), None)
    return *parts, reduced_like(by_rhs, rhs.shape, rhs.dtype), *(None,) * 7


def _pull_matmul(ctx: Any, g: Array) -> tuple[Any, ...]:
    options = ctx.given[2:]
    if tuple(options[:2]) != ("add", "multiply"):
        return _pulled(ctx, [g], "matmul")
    a, b = ctx.saved_tensors

    def multiply(a: Array, b: Array) -> Array:
        return torch.ops.parprims.matmul(a, b, *options)

    return *product_adjoint(g, a, b, wanted=ctx.needs_input_grad, multiply=multiply), *(None,) * 6


def _start(initial: Array | None, number: Any, like: Array, axis: int) -> Array | None:
    """Return the initial element of a result, of length 1 along the axis, or None if there is none."""
    if initial is not None:
        return initial.expand((*like.shape[:axis], *like.shape[axis + 1 :])).unsqueeze(axis)
    return None if number is None else filled(xp, number, like, axis)


def _solver(method: str) -> Solver:
    return Solver(recurrence=_solve, sums=_sum, method=method)


def _solve(a: Array, b: Array, *, axis: int, reverse: bool, method: str) -> Array:
    call = parameters.Recurrence(
        a_array=a,
        a=None,
        b_array=b,
        b=None,
        initial_array=None,
        initial=None,
        axis=axis,
        reverse=reverse,
        method="auto" if method == "native" else method,  # PyTorch has native scans, but no recurrences
    )
    return torch.ops.parprims.linear_recurrence(*call)


def _sum(x: Array, *, axis: int, exclusive: bool, reverse: bool, method: str) -> Array:
    call = parameters.Scan(
        x=[x],
        op="add",
        initial_arrays=[],
        initial=[],
        dtype=[],
        primitive="scan",
        axis=axis,
        exclusive=exclusive,
        reverse=reverse,
        include_initial=False,
        method=method,
    )
    (y,) = torch.ops.parprims.scan(*call)
    return y


# ---- The table --------------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("parprims", "FRAGMENT")


def _define(name: str, schema: str, run: Callable[..., Any], *, pull: Callable[..., Any], keep: Any) -> None:
    """Define an operator in PyTorch's dispatcher: a custom_op takes ten times as long to reach ``run``.

    The operator passes its arguments to a second operator, ``<name>_result``, which computes and has no derivative. A
    compiled program holds only the second, and its derivatives are nodes themselves.
    """
    computes, tags = f"{name}_result", (torch.Tag.pt2_compliant_tag,)
    for operator in (name, computes):
        _LIBRARY.define(operator + schema, tags=tags)
        _LIBRARY.impl(operator, _with_values(run), "CompositeExplicitAutograd")
        torch.library.register_fake(f"parprims::{operator}", _fake(run), lib=_LIBRARY)
    _LIBRARY.impl(computes, torch.library.fallthrough_kernel, "Autograd")
    result = getattr(torch.ops.parprims, computes).default
    differentiable = make_autograd_impl(result, Info(pull, keep))
    enabled, needed, below = torch.is_grad_enabled, torch._C._any_requires_grad, torch._C._AutoDispatchBelowAutograd

    def enter(keys: Any, *arguments: Any) -> Any:
        if enabled() and needed(*arguments):
            return differentiable(keys, *arguments)
        with below():
            return result(*arguments)

    _LIBRARY.impl(name, enter, "Autograd", with_keyset=True)


def _has_no_derivative(ctx: Any, *gs: Any) -> Any:
    """Refuse: nodes of derivatives are differentiated by operations, and indices have none."""
    del ctx, gs
    raise RuntimeError("this operator of torch.ops.parprims has no derivative")


class _Node(NamedTuple):
    """A row of the table: an operator of PyTorch.

    Parameters
    ----------
    parameters : type
        Its inputs by name; `parameters.SCHEMAS` has its schema.
    run : callable
        Computes the results from the inputs.
    keep, pull : callable
        Keeps what the derivative needs (None: nothing), and computes the derivative.
    batch : callable
        The rule of torch.func.vmap.
    """

    parameters: type
    run: Callable[..., Any]
    keep: Callable[..., None] | None
    pull: Callable[..., Any]
    batch: Callable[..., Any]


_NODES = {
    "reduce": _Node(parameters.Reduce, _run_reduce, _keep_all, _pull_reduce, vmap.reduce),
    "vecdot": _Node(parameters.Vecdot, _run_vecdot, _keep_all, _pull_vecdot, vmap.vecdot),
    "scan": _Node(parameters.Scan, _run_scan, _keep_scan, _pull_scan, vmap.scan),
    "linear_recurrence": _Node(
        parameters.Recurrence, _run_recurrence, _keep_recurrence, _pull_recurrence, vmap.recurrence
    ),
    "sort": _Node(parameters.Sort, _run_sort, _keep_sort, _pull_sort, vmap.sort),
    "argsort": _Node(parameters.Argsort, _run_argsort, None, _has_no_derivative, vmap.argsort),
    "solve_tridiagonal": _Node(
        parameters.Tridiagonal, _run_tridiagonal, _keep_tridiagonal, _pull_tridiagonal, vmap.tridiagonal
    ),
    "call": _Node(parameters.Call, _run_call, _keep_call, _pull_call, vmap.call),
    "matmul": _Node(parameters.Matmul, _run_matmul, _keep_all, _pull_matmul, vmap.matmul),
}


def _of_inputs(node: _Node) -> Callable[..., Any]:
    """Return ``run`` as a function of the inputs in their order."""
    return lambda *arguments, **named: node.run(node.parameters(*arguments, **named))


for _name, _node in _NODES.items():
    runs[_name], _schema = _of_inputs(_node), parameters.SCHEMAS[_node.parameters]
    _define(_name, _schema, runs[_name], pull=_node.pull, keep=_node.keep)
    torch.library.register_vmap(f"parprims::{_name}", _node.batch, lib=_LIBRARY)
    if _node.pull is not _has_no_derivative and _name not in ("linear_recurrence", "sort"):
        _back = f"(Tensor[] gs, int[] at, bool[] flags, {_schema[1 : _schema.index(')')]}) -> Tensor[]"
        _define(f"{_name}_backward", _back, _backward(_name), pull=_has_no_derivative, keep=None)

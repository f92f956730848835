"""The node of every call: an operator of PyTorch, its computation, and its derivative.

The module `inputs` has its arguments. Some calls have derivative rules (`rules`). For other calls a second operator,
``call_backward``, differentiates the operations that compute the results.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import array_api_compat.torch
import torch
from torch._library.autograd import Info, make_autograd_impl

from parprims._core import arrays as core_arrays
from parprims._core.arrays import Array, Namespace
from parprims._dispatch.dispatch import Abstract, Inside, primitives
from parprims._dispatch.primitive import Arguments, declared
from parprims._dispatch.watch import unwatched
from parprims._operators.operator import segmented
from parprims._torch_compile import rules, vmap
from parprims._torch_compile.inputs import ARRAYS, Flat, Layout, by_name, named, read

xp: Namespace = array_api_compat.torch

operators: dict[str, Any] = {}
"""The caller's operators, by their names in nodes."""


def _dtypes(names: Any) -> Any:
    """Return the dtypes of these names. An unknown name stays unchanged, and the public function refuses it."""
    if isinstance(names, tuple):
        return tuple([getattr(torch, name, name) for name in names])
    return names if names is None else getattr(torch, names, names)


def operator_named(name: str) -> Any:
    """Return the operator with a name in nodes; the name itself for a built-in operator."""
    if name.startswith("segmented(") and name.endswith(")"):
        return segmented(operator_named(name.removeprefix("segmented(").removesuffix(")")))
    if "#" in name and name not in operators:
        raise ValueError(
            f"op {name} belongs to a program compiled in another process: this process does not know its function"
        )
    return operators.get(name, name)


# ---- Computation ------------------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    """The parts of a call that follow from the text of its arguments.

    Parameters
    ----------
    function : callable, optional
        The public function, or None if only the declaration computes the call.
    layout : list
        The layout of the arguments.
    options : dict
        The options, with operators by name.
    operators : tuple of str
        The options that are operators without a built-in name.
    first : tuple of str
        The positional-only parameters.
    rest : str
        The parameter of all further positional arguments, empty if there is none.
    indices : bool
        Whether the index of every element is sorted as one more value.
    in_order : callable, optional
        The public function, if the arrays are its positional arguments and all options are keywords.
    """

    function: Callable[..., Any] | None
    layout: Layout
    options: dict[str, Any]
    operators: tuple[str, ...]
    first: tuple[str, ...]
    rest: str
    indices: bool
    in_order: Callable[..., Any] | None


@functools.lru_cache(maxsize=4096)
def _plan(primitive: str, arguments: str) -> _Plan:
    layout, options = read(arguments)
    one = declared[primitive]
    options = dict(options)
    indices = options.pop("indices", False)
    if "dtype" in options:
        options["dtype"] = _dtypes(options["dtype"])
    kinds = {name: one.kind for name, one in inspect.signature(primitives[one.name]).parameters.items()}
    first = tuple([name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_ONLY])
    rest = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), "")
    names = tuple([name for name, _, _ in layout])
    known = {*names, *options, *(("values",) if indices else ())} <= {*kinds}
    # The public function takes the names of built-in operators, so these need no conversion.
    operators = tuple([name for name in one.operators if {*"#("} & {*(options.get(name) or "")}])
    arrays = all(not several and found == ["array"] for _, several, found in layout) and not (indices or operators)
    function = primitives[one.name] if known and not one.variant else None
    in_order = function if arrays and names == first[: len(names)] and not {*first} & {*options} else None
    return _Plan(
        function,
        layout,
        options=options,
        operators=operators,
        first=first,
        rest=rest,
        indices=indices,
        in_order=in_order,
    )


def run(*inputs: Any) -> list[Array]:
    """Return the results of a call, if possible by the public function, which remembers similar calls."""
    arrays, floats, ints, primitive, arguments, method = inputs
    plan = _plan(primitive, arguments)
    method, options = method if isinstance(method, Inside) else _inside(method), plan.options
    if plan.in_order is not None:
        return _row_major(plan.in_order(*arrays, **options, method=method))
    given = named(plan.layout, arrays, _numbers(floats), _numbers(ints))
    if plan.operators:
        options = {**options, **{name: operator_named(options[name]) for name in plan.operators}}
    if plan.indices:
        given["values"] = (*given.get("values", ()), _indices(next(iter(given.values())), options["axis"]))
    if plan.function is None:
        one = declared[primitive]
        numbers = {name: given.pop(name, None) for name in one.numbers if name not in one.defaults}
        arrays = {**given, **{name: None for name in one.optional if name not in given}}
        asked = Arguments(one.name, arrays, {**one.defaults, **options, **numbers}, method)
        return _row_major(one.of(asked))
    given.update(options)
    first = [given.pop(name) for name in plan.first if name in given]
    if plan.rest:
        first += given.pop(plan.rest, ())
    return _row_major(plan.function(*first, **given, method=method))


def _indices(keys: Array, axis: Any) -> Array:
    """Return the index of every element along an axis: sorted as a value, it is the permutation."""
    axis, shape = core_arrays.normalize_axis(axis, keys.ndim), [1] * keys.ndim
    shape[axis] = keys.shape[axis]
    return torch.arange(shape[axis], device=keys.device).view(shape).expand(keys.shape)


def _numbers(values: Sequence[Any] | None) -> Sequence[Any]:
    """Return numbers, with the current values of symbols of a graph."""
    return [
        float(one) if isinstance(one, torch.SymFloat) else int(one) if isinstance(one, torch.SymInt) else one
        for one in values or ()
    ]


def _inside(method: str) -> str:
    """Return a method for a call that must not become a node again."""
    return _INSIDE.get(method) or Inside(method)


_INSIDE = {name: Inside(name) for name in ("auto", "canonical", "kernel", "native", "array")}


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
"""PyTorch's check of whether results share memory. Releases without it let `_apart` check every result."""


def _apart(results: Any, arguments: Sequence[Any]) -> Any:
    """Return the results of a node, with copies of results that share memory with an input or another result."""
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


def _pulled(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    """Return the derivatives by the inputs of a node, taken through the PyTorch operations that compute its results.

    The node ``call_backward`` computes them. If they are to be differentiated in turn, operations compute them instead.
    ``ctx.given`` holds the inputs, with a mark in place of each array; `_keep_all` saved the arrays in this order.
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
        derivatives = _pull_by_operations(_Function(arguments, at, flags), known)
    else:
        derivatives = torch.ops.parprims.call_backward(known, at, flags, *arguments)
    by = iter(derivatives)

    def part(needed: Any) -> Any:
        return [part(need) for need in needed] if isinstance(needed, list) else next(by) if needed else None

    return tuple(part(needed) for needed in ctx.needs_input_grad)


@dataclasses.dataclass(frozen=True)
class _Function:
    """A node as a function of some of its arrays.

    Parameters
    ----------
    arguments : sequence
        The inputs of the node.
    at : sequence of int
        The indices of the results to return.
    flags : sequence of bool
        For each array of the inputs, whether it is a variable.
    """

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
        ys = run(*changed, Inside("auto" if method == "kernel" else method))
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


def _run_backward(gs: Sequence[Array], at: Sequence[int], flags: Sequence[bool], *arguments: Any) -> list[Array]:
    """Return the derivatives by the flagged arrays among the inputs of a node."""
    function = _Function(arguments, at, flags)
    if isinstance(arguments[-1], Abstract):
        return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in function.variables]
    with unwatched():
        _, by = torch.func.vjp(function, *function.variables)
        return [x.contiguous() for x in by(tuple(gs))]


class _Saved:
    """A mark among the inputs of a node for a saved array, or for a list of them."""

    def __init__(self, listed: bool) -> None:
        self.listed = listed


def _keep_all(ctx: Any, inputs: tuple[Any, ...], *more: Array) -> None:
    """Save all inputs of a node, and then ``more`` arrays."""
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


def _keep(ctx: Any, inputs: tuple[Any, ...], output: list[Array]) -> None:
    call = by_name(Flat(*inputs))
    kind = declared[call.primitive].rules
    ctx.set_materialize_grads(False)  # some results may be unused, and integers have no derivative
    rule = rules.RULES.get(kind)
    ctx.rule = rule if rule is not None and rule.serves(call) else None
    ctx.solves = kind == "system"
    if ctx.rule is not None:
        ctx.rule.keep(ctx, call, output)
    else:
        _keep_all(ctx, inputs, *output[: ctx.solves])


def _pull(ctx: Any, gs: Sequence[Array | None]) -> tuple[Any, ...]:
    if ctx.rule is not None:
        derivatives = ctx.rule.pull(ctx, gs)
    elif ctx.solves and gs[0] is not None and all(g is None for g in gs[1:]):
        *arrays, x = ctx.saved_tensors
        call = by_name(Flat(arrays, *ctx.given[1:]))
        derivatives = rules.pull_system(call, x, gs[0])
    else:
        return _pulled(ctx, gs)
    return list(derivatives), *(None,) * 5


# ---- The operators ----------------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("parprims", "FRAGMENT")


def _define(name: str, schema: str, run: Callable[..., Any], *, pull: Callable[..., Any], keep: Any) -> None:
    """Define an operator in PyTorch's dispatcher, because a custom_op takes ten times as long to reach ``run``.

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
    """Raise: `_pulled` takes derivatives of derivatives through operations."""
    del ctx, gs
    raise RuntimeError("this operator of torch.ops.parprims has no derivative")


_define("call", f"({ARRAYS}) -> Tensor[]", run, pull=_pull, keep=_keep)
torch.library.register_vmap("parprims::call", vmap.call, lib=_LIBRARY)
_BACK = f"(Tensor[] gs, int[] at, bool[] flags, {ARRAYS}) -> Tensor[]"
_define("call_backward", _BACK, _run_backward, pull=_has_no_derivative, keep=None)

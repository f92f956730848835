"""Calls inside torch.compile and torch.export: every primitive is one node of the graph.

A node is an operator of PyTorch, made at the end of this file from a row of a table. It computes by the public function
itself, whose checks and choice of a method are those of any call; where arrays have no values it does so by a method
that computes nothing, so that a wrong argument is named when the program is compiled. Its derivative is made of nodes,
and torch.func.vmap makes one node of another.

A built-in operator stands in a node by its name. A function of the caller's own stands there by a name under which it
is kept, if it reads nothing but numbers and modules. One that captures more, such as a tensor, which may want a
derivative, is read by torch.compile itself: the call becomes the operations of the array form, and no node.
"""

from __future__ import annotations

import ast
import hashlib
import marshal
import math
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.torch
import torch

from parprims import (
    _arrays,
    _derivatives,
    _matmul,
    _recurrence,
    _reduce,
    _reduce_array,
    _scan,
    _scan_array,
    _sort,
    _tridiagonal,
)
from parprims._arrays import Array, Namespace, cast, compute_dtype, dtype_name, filled, sum_dtype
from parprims._derivatives_torch import as_given, product_adjoint
from parprims._dispatch import Abstract, Inside, MethodRefused, primitives, unwatched
from parprims._elements import is_structured
from parprims._harmless import _with as changed_operator
from parprims._lasting import lasting_key
from parprims._operators import BUILT_IN, Operator, as_operator, by_leaves, flags_broadcast, restarted, segmented
from parprims._tridiagonal_system import ends_cleared

xp: Namespace = array_api_compat.torch

# What depends on dtypes alone is found out while the program is read, not by it.
for _function in (_arrays.dtype_name, _arrays.dtype_kind, _arrays.dtype_bits):
    torch.compiler.assume_constant_result(_function)


# ---- Entries, which torch.compile reads -------------------------------------------------------------------------


def reduce(
    primitive: str, fn: Any, x: Any, op: Any, axis: Any, keepdims: Any, dtype: Any, initial: Any, method: Any
) -> Any:
    """Return what any function of `_reduce` but vecdot returns."""
    if fn is not None:  # part of the program, as what it captures may be; it may work in place
        x = fn(*[one.clone() for one in torch.broadcast_tensors(*x)])
        if is_structured(x):

            def plain(leaves: Any, op: Any, *, initial: Any, dtype: Any) -> Any:
                return reduce(primitive, None, leaves, op, axis, keepdims, dtype, initial, method)

            return by_leaves(plain, x, op, initial=initial, dtype=dtype)
    single = not isinstance(x, tuple)
    xs = (x,) if single else x
    operation = _name(op)
    if operation is None:
        return _reduced(primitive, xs, single, as_operator(op), axis, keepdims, dtype, initial, method)
    axes = axis if axis is None or isinstance(axis, tuple) else (axis,)
    arrays, numbers = _parted(initial, xs, dtype)
    ys = _node("reduce", xs, operation, arrays, numbers, _names(dtype), primitive, axes, keepdims, method)
    return ys[0] if single else tuple(ys)


def vecdot(x1: Array, x2: Array, axis: Any, method: Any) -> Array:
    """Return what `_reduce.vecdot` returns."""
    return _node("vecdot", x1, x2, axis, method)


def scan(
    primitive: str,
    x: Any,
    op: Any,
    axis: Any,
    exclusive: Any,
    reverse: Any,
    initial: Any,
    dtype: Any,
    include_initial: Any,
    method: Any,
) -> Any:
    """Return what a scan returns."""
    single = not isinstance(x, tuple)
    xs = (x,) if single else x
    operation = _name(op)
    if operation is None:
        return _scanned(primitive, xs, single, as_operator(op), axis, exclusive, reverse, initial, dtype, method)
    arrays, numbers = _parted(initial, xs, dtype)
    options = (primitive, axis, exclusive, reverse, include_initial, method)
    ys = _node("scan", xs, operation, arrays, numbers, _names(dtype), *options)
    return ys[0] if single else tuple(ys)


def linear_recurrence(a: Any, b: Any, axis: Any, initial: Any, reverse: Any, method: Any) -> Array:
    """Return what `_recurrence.linear_recurrence` returns."""
    options = (axis, reverse, method)
    return _node("linear_recurrence", *_either(a), *_either(b), *_either(initial), *options)


def sort(
    primitive: str, keys: Any, values: tuple[Any, ...] | None, axis: Any, descending: Any, stable: Any, method: Any
) -> tuple[Array, ...]:
    """Return what `_sort.run_sort` returns."""
    if values is None:
        return (_node("argsort", keys, axis, descending, stable, method),)
    arrays = (keys, *values)
    asked_for = torch.is_grad_enabled() and any(x.requires_grad for x in arrays)
    results = _node("sort", arrays, primitive, asked_for, axis, descending, stable, method)
    return tuple(results)[: len(arrays)]


def solve_tridiagonal(
    lower: Any,
    diag: Any,
    upper: Any,
    rhs: Any,
    axis: Any,
    pivot: Any,
    periodic: Any,
    transpose: Any,
    return_residual: Any,
    return_status: Any,
    method: Any,
) -> Any:
    """Return what `_tridiagonal.solve_tridiagonal` returns."""
    options = (axis, pivot, periodic, transpose, return_residual, return_status, method)
    coefficients = (*_either(lower), *_either(diag), *_either(upper))
    results = _node("solve_tridiagonal", *coefficients, rhs, *options)
    return tuple(results) if return_residual or return_status else results[0]


def matmul(a: Any, b: Any, add: Any, multiply: Any, precision: Any, kernel: Any, tile: Any, method: Any) -> Array:
    """Return what `_matmul.matmul` returns."""
    lengths = tile if tile is None or isinstance(tile, tuple) else (tile, tile, tile)
    sums, products = _name(add), _name(multiply)
    if sums is None or products is None:
        if precision != "float32" or kernel is not None:
            raise ValueError("precision and kernel are for sums of products, not for operators of your own")
        return _multiplied(a, b, as_operator(add, "add"), as_operator(multiply, "multiply"), lengths, method)
    return _node("matmul", a, b, sums, products, precision, kernel, lengths, method)


def call(primitive: str, arrays: dict[str, Any], options: dict[str, Any], method: Any) -> tuple[Array, ...]:
    """Return what a primitive without a rule for derivatives returns, a tuple of arrays, given arguments by name.

    The first of the arrays is positional; one that is None is left out. Options are numbers, texts and tuples of these.
    """
    given = [name for name, x in arrays.items() if x is not None]
    inputs = [arrays[name] for name in given]
    return tuple(torch.ops.parprims.call(inputs, primitive, _literal(given, options), method))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _literal(given: list[str], options: dict[str, Any]) -> str:
    return repr((given, options))


def _parted(initial: Any, xs: Sequence[Any], dtype: Any) -> tuple[Any, Any]:
    """Return the components of an initial element as arrays and as numbers: as numbers where all are of one type."""
    if initial is None:
        return (), None
    given = initial if isinstance(initial, tuple) else (initial,)
    if all(type(one) is type(given[0]) and not isinstance(one, torch.Tensor) for one in given):
        return (), given
    dtypes = [x.dtype for x in xs] if dtype is None else dtype if isinstance(dtype, tuple) else (dtype,)
    if len(given) == len(xs) == len(dtypes):
        parts = zip(given, dtypes, strict=True)
        given = tuple(
            [one if isinstance(one, torch.Tensor) else _filled("initial", one, to, (), xs[0]) for one, to in parts]
        )
    return given, ()


def _node(name: str, *inputs: Any) -> Any:
    """Return what a node computes, or what the operations do by which a transformation of torch.func sees through it.

    An operator of PyTorch with a rule for backward derivatives has none for forward ones, and counts as constant.
    """
    if torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0:
        return _by_operations(name, *inputs)
    return getattr(torch.ops.parprims, name)(*inputs)


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _by_operations(name: str, *inputs: Any) -> Any:
    """Return what a node computes; torch.compile does not read this, but sees the operations when it runs."""
    return _runs[name](*inputs[:-1], Inside(inputs[-1]))


_runs: dict[str, Callable[..., Any]] = {}


def _either(x: Any) -> tuple[Any, Any]:
    """Return x as an array or None, and as a number or None."""
    return (x, None) if isinstance(x, torch.Tensor) else (None, x)


def _names(dtype: Any) -> Any:
    """Return dtypes by their names, which a program can be saved with."""
    given = () if dtype is None else dtype if isinstance(dtype, tuple) else (dtype,)
    return [one if isinstance(one, str) else _text(one) for one in given]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _text(dtype: Any) -> str:
    if isinstance(dtype, type) and dtype in _arrays._BUILT_IN_DTYPES:
        return _arrays._BUILT_IN_DTYPES[dtype]
    return dtype_name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)


def _dtypes(names: Sequence[str]) -> tuple[Any, ...] | None:
    """Return the dtypes of these names, None if there are none; what is no name stays, to be refused."""
    return tuple([getattr(torch, name, name) for name in names]) or None


# ---- Operators of the caller's own, kept under a name -------------------------------------------------------------


def _name(op: Any) -> Any:
    """Return the name by which a node knows an operator, or None if torch.compile is to read it."""
    if isinstance(op, str):
        return op
    if not isinstance(op, Operator):
        return _keep(op, False, None, False, "", None) if _is_closed(op, 2) else None
    if op.name in BUILT_IN and op is BUILT_IN[op.name]:
        return op.name
    if op._segments is not None:
        inner = _name(op._segments)
        return None if inner is None else f"segmented({inner})"
    identity = op._identity
    if not _is_closed(op.combine, 2) or not (_is_plain(identity) or _is_closed(identity, None)):
        return None
    return _keep(op.combine, True, identity, op.commutative, op.name, op.components)


def _is_closed(function: Any, arguments: int | None) -> bool:
    """Return whether a function takes so many arguments and captures no variables, which might hold tensors."""
    try:
        code = function.__code__
        taken = code.co_argcount + code.co_kwonlyargcount
        return code.co_freevars == () and code.co_flags & 12 == 0 and (arguments is None or taken == arguments)
    except AttributeError:
        return False


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, (bool, int, float, complex))


_kept: dict[str, Any] = {}


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _keep(function: Any, packed: bool, identity: Any, commutative: bool, name: str, components: int | None) -> Any:
    """Return the name under which a function, or the operator that it makes, is kept; None if it may not be.

    The name tells functions of different texts apart, so that a program that was saved finds none that is another.
    """
    if lasting_key(function) is None or (callable(identity) and lasting_key(identity) is None):
        return None
    known: Any = (function, identity, commutative, components) if packed else function
    text = repr((marshal.dumps(function.__code__), function.__module__, function.__qualname__))
    if packed:
        made = marshal.dumps(identity.__code__) if callable(identity) else repr(identity)
        text = repr((text, made, commutative, components))
    if "." in function.__name__:  # torch.compile names functions of the program by their places
        function.__name__ = function.__code__.co_name
    key = f"{name or function.__name__}#{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    if packed:
        known = Operator(function, identity=identity, commutative=commutative, name=name, components=components)
    _kept[key] = known
    return key


def _found(name: str) -> Any:
    """Return what a node knows by a name."""
    if name.startswith("segmented(") and name.endswith(")"):
        return segmented(_found(name.removeprefix("segmented(").removesuffix(")")))
    if "#" in name and name not in _kept:
        raise ValueError(f"op {name} is a function of a program compiled elsewhere, and not known in this process")
    return _kept.get(name, name)


# ---- Operators of the caller's own, which torch.compile reads ---------------------------------------------------


def _own(primitive: str, method: Any, op: Operator) -> Operator:
    """Return an operator on copies, for it may work in place; refuse the methods that torch.compile cannot read."""
    if method == "kernel" or method == "native":
        raise MethodRefused(f"{primitive}: method {method!r} refused: torch.compile reads op {op.name} itself")
    if method != "auto" and method != "array":
        raise ValueError(f"method must be one of auto, kernel, native, array, got {method!r}")
    combine = op.combine
    return changed_operator(op, lambda earlier, later: combine(_copied(earlier), _copied(later)))


def _copied(element: Any) -> Any:
    """Return an element of copies, whether it is one array or a tuple."""
    return tuple([x.clone() for x in element]) if isinstance(element, tuple) else element.clone()


def _differ(xs: Sequence[Array]) -> bool:
    """Return whether arrays have several shapes."""
    return any(one.shape != xs[0].shape for one in xs[1:])


def _check_equal_shapes(xs: Sequence[Array]) -> None:
    if _differ(xs):
        raise ValueError("x must be arrays of equal shape")


def _result_dtypes(op: Operator, xs: Sequence[Array], dtype: Any) -> tuple[Any, ...]:
    """Return the dtypes of a result."""
    if dtype is not None:
        return tuple([getattr(torch, name, name) for name in _names(_entries("dtype", dtype, len(xs)))])
    if op.name in ("add", "multiply") and op is BUILT_IN[op.name]:
        return tuple([_summed(x.dtype) for x in xs])
    return tuple([x.dtype for x in xs])


def _entries(name: str, given: Any, count: int) -> tuple[Any, ...]:
    """Return an argument that has an entry for every component as a tuple of them."""
    entries = given if isinstance(given, tuple) else (given,)
    if len(entries) != count:
        raise ValueError(f"{name} must have {count} entries, one per component, got {len(entries)}")
    return entries


def _place(axis: Any, ndim: int) -> int:
    """Return an axis counted from the front."""
    if type(axis) is not int:
        raise TypeError("axis must be an integer")
    if not -ndim <= axis < ndim:
        raise IndexError(f"axis {axis} is out of range for an array of {ndim} dimensions")
    return axis % ndim


def _filled(name: str, value: Any, dtype: torch.dtype, shape: Sequence[int], like: Array) -> Array:
    """Return a number or an array as an array of a dtype and shape."""
    if isinstance(value, torch.Tensor):
        if value.dtype != dtype:
            raise TypeError(f"{name} must have dtype {dtype}, got {value.dtype}")
        return torch.broadcast_to(value, shape)
    return torch.full(shape, value, dtype=dtype, device=like.device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _working(dtype: torch.dtype) -> Any:
    """Return the dtype that elements of a dtype are combined in."""
    return compute_dtype(xp, dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _summed(dtype: torch.dtype) -> Any:
    """Return the dtype of a sum of elements of a dtype."""
    return sum_dtype(xp, dtype)


def _identity(op: Operator, dtypes: Sequence[Any], reason: str) -> tuple[Any, ...]:
    """Return the identity of an operator for the dtypes combined in."""
    identity = op.identity(*[dtype_name(one) for one in dtypes])
    if identity is None:
        raise ValueError(f"{reason} and op {op.name} has no identity: give initial")
    return identity


def _scanned(
    primitive: str,
    xs: tuple[Array, ...],
    single: bool,
    op: Operator,
    axis: Any,
    exclusive: bool,
    reverse: bool,
    initial: Any,
    dtype: Any,
    method: Any,
) -> Any:
    """Return a scan, as `_scan_array.array` does."""
    op = _own(primitive, method, op)
    xs = flags_broadcast(xp, op, xs) if _differ(xs) else xs
    _check_equal_shapes(xs)
    at, count = _place(axis, xs[0].ndim), len(xs)
    dtypes = _result_dtypes(op, xs, dtype)
    working = tuple([_working(one) for one in dtypes])
    starts = identity = None
    if initial is not None:
        shape = (*xs[0].shape[:at], *xs[0].shape[at + 1 :])
        given = zip(_entries("initial", initial, count), dtypes, strict=True)
        starts = tuple([torch.unsqueeze(_filled("initial", one, to, shape, xs[0]), at) for one, to in given])
    elif exclusive:
        identity = _identity(op, working, "initial must be given for an exclusive scan,")
    again = exclusive and op.flags > 0
    first: Any = starts  # of every segment, where an exclusive scan begins anew at flags
    if again and starts is not None:
        starts = (*[torch.zeros_like(one) for one in starts[: op.flags]], *starts[op.flags :])
    n = xs[0].shape[at]
    options = (op, at, exclusive, reverse, identity, n, working, dtypes, _scan_array.inclusive)
    ys = _scan_array.scanned(xp, xs, starts or (), *options)
    if not again:
        return ys[0] if single else ys
    if identity is not None:
        first = tuple([_arrays.filled(xp, one, y, at) for one, y in zip(identity, ys, strict=True)])
    return restarted(xp, op, xs[: op.flags], first, starts is not None, ys)


def _reduced(
    primitive: str,
    xs: tuple[Array, ...],
    single: bool,
    op: Operator,
    axis: Any,
    keepdims: bool,
    dtype: Any,
    initial: Any,
    method: Any,
) -> Any:
    """Return a reduction, as `_reduce_array.array` does."""
    op = _own(primitive, method, op)
    xs = flags_broadcast(xp, op, xs) if _differ(xs) else xs
    _check_equal_shapes(xs)
    x, count = xs[0], len(xs)
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(sorted([_place(one, x.ndim) for one in axes]))
    dtypes = _result_dtypes(op, xs, dtype)
    n = math.prod([x.shape[one] for one in axes])
    shape = [1 if at in axes else length for at, length in enumerate(x.shape) if keepdims or at not in axes]
    ys = tuple(cast(xp, one, _working(to)) for one, to in zip(xs, dtypes, strict=True))
    totals = None
    if n > 0:
        if n == 1:
            ys = tuple(one.clone() for one in ys)
        merged, at = _reduce_array.as_one_axis(xp, ys, axes)
        totals = tuple(torch.reshape(one, shape) for one in _reduce_array.tree(merged, op, at))
    if initial is not None:
        given = zip(_entries("initial", initial, count), dtypes, ys, strict=True)
        start = tuple(_filled("initial", value, to, shape, y).to(y.dtype) for value, to, y in given)
        totals = start if totals is None else op(start, totals)
    elif totals is None:
        identity = _identity(op, [y.dtype for y in ys], f"x is empty along axis {axes}")
        totals = tuple(_filled("identity", e, y.dtype, shape, y) for e, y in zip(identity, ys, strict=True))
    totals = tuple(cast(xp, total, to) for total, to in zip(totals, dtypes, strict=True))
    return totals[0] if single else totals


class _Factors:
    """What `_matmul.tiled_product` asks of a product."""

    def __init__(self, a: Array, b: Array, add: Operator, multiply: Operator, tile: Any) -> None:
        self.a, self.b, self.add, self.multiply, self.tile, self.ring = a, b, add, multiply, tile, False
        self.dtype = a.dtype if a.dtype == b.dtype else torch.promote_types(a.dtype, b.dtype)
        self.working = _working(self.dtype)
        self.batch = _arrays.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        self.shape = (*self.batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))

    def identity(self) -> Any:
        """Return the identity of the sum."""
        return _identity(self.add, (self.working,), "a and b have no length summed over")[0]


def _multiplied(a: Array, b: Array, add: Operator, multiply: Operator, tile: Any, method: Any) -> Array:
    """Return a product by two operators, as `_matmul.tiled_product` does."""
    add, multiply = _own("matmul", method, add), _own("matmul", method, multiply)
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"{'b' if a.ndim else 'a'} must have at least one dimension")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ValueError("a and b must agree in the length summed over, a's last and b's last but one")
    factors: Any = _Factors(a, b, add, multiply, tile)
    return _matmul.tiled_product(xp, factors)


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
    axes = None if axis is None else tuple(axis)
    start = (*initial_arrays, *map(_number, initial or ())) or None
    if primitive in ("any", "all"):
        function: Callable[..., Array] = getattr(_reduce, primitive)
        return _whole(function(x[0], axis=axes, keepdims=keepdims, method=_inside(method)))
    given = x[0] if len(x) == 1 else tuple(x)
    to = _dtypes(dtype)
    return _whole(_reduce.call(primitive, None, given, _found(op), axes, keepdims, to, start, _inside(method)))


def _run_vecdot(x1: Array, x2: Array, axis: int, method: str) -> Array:
    return _whole(_reduce.vecdot(x1, x2, axis=axis, method=_inside(method)))[0]


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
    given = x[0] if len(x) == 1 else tuple(x)
    start = (*initial_arrays, *map(_number, initial or ())) or None
    to = _dtypes(dtype)
    options = (axis, exclusive, reverse, start, to, include_initial, _inside(method))
    return _whole(_scan.call(primitive, given, _found(op), *options))


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
    return _whole(_recurrence.linear_recurrence(one, other, **options))[0]


def _run_sort(
    arrays: Sequence[Array], primitive: str, indices: bool, axis: int, descending: bool, stable: bool, method: str
) -> list[Array]:
    keys, *values = arrays
    if indices:  # where an element comes from moves with it
        shape = [1] * keys.ndim
        at = _arrays.normalize_axis(axis, keys.ndim)
        shape[at] = keys.shape[at]
        values.append(torch.arange(shape[at], device=keys.device).view(shape).expand(keys.shape))
    return _whole(_sort.run_sort(primitive, keys, tuple(values), axis, descending, stable, _inside(method)))


def _run_argsort(x: Array, axis: int, descending: bool, stable: bool, method: str) -> Array:
    return _whole(_sort.argsort(x, axis=axis, descending=descending, stable=stable, method=_inside(method)))[0]


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
    results = _tridiagonal.solve_tridiagonal(
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
    return _whole(_matmul.matmul(a, b, add=_found(add), multiply=_found(multiply), **options))[0]


def _run_call(arrays: Sequence[Array], primitive: str, arguments: str, method: str) -> list[Array]:
    given, options = ast.literal_eval(arguments)
    named = dict(zip(given, arrays, strict=True))
    return _whole(primitives[primitive](named.pop(given[0]), **named, **options, method=_inside(method)))


def _inside(method: str) -> str:
    """Return a method for a call that is to be no node again."""
    return method if isinstance(method, Inside) else Inside(method)


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


def _apart(results: Any, inputs: Sequence[Any]) -> Any:
    """Return the results of a node, those copied that share their memory with an input or another result."""
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
    by_a, by_b, by_start = _derivatives.adjoint(xp, wide, x, g, start, axis, reverse, method, solve=_solve)
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
    by_x, by_initial = _derivatives.scan_adjoint(
        xp, ctx.op, xs, ys, starts + numbers, tuple(gs), axis, *options, solve=_solve, sums=_sum
    )
    parts = [*by_x, *(None if one is None else one.squeeze(axis) for one in by_initial[: len(initial)])]
    found = [None if one is None else as_given(one, *to) for one, to in zip(parts, ctx.given, strict=True)]
    return found[: len(by_x)], None, found[len(by_x) :], *ctx.none


_WITH_RULES = tuple(op.name for op in _derivatives.OPERATORS)


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


# ---- Nodes: vmap ------------------------------------------------------------------------------------------------


def _front(x: Array, dim: int | None, size: int) -> Array:
    """Return x with the axis of vmap first."""
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def _padded(x: Array, ndim: int) -> Array:
    """Return x, whose first axis is that of vmap, with so many others, those missing behind the first."""
    return x.reshape(x.shape[0], *(1,) * (ndim + 1 - x.ndim), *x.shape[1:])


def _rank(x: Array | None, dim: int | None) -> int:
    """Return the number of axes but that of vmap."""
    return 0 if x is None else x.ndim - (dim is not None)


def _listed_results(results: Sequence[Array]) -> tuple[list[Array], list[int]]:
    return list(results), [0] * len(results)


def _batch_reduce(
    info: Any, in_dims: Any, x: Any, op: str, arrays: Any, numbers: Any, dtype: Any, primitive: str, axis: Any,
    keepdims: bool, method: str,
) -> Any:  # fmt: skip
    x = [_front(one, dim, info.batch_size) for one, dim in zip(x, in_dims[0], strict=True)]
    ndim = x[0].ndim - 1
    axes = _arrays.normalize_axes(None if axis is None else tuple(axis), ndim)
    rank = ndim if keepdims else ndim - len(axes)
    arrays = [_padded(_front(one, dim, info.batch_size), rank) for one, dim in zip(arrays, in_dims[2], strict=True)]
    axes = tuple([one + 1 for one in axes])
    options = (op, arrays, numbers, dtype, primitive, axes, keepdims, method)
    return _listed_results(torch.ops.parprims.reduce(x, *options))


def _batch_vecdot(info: Any, in_dims: Any, x1: Array, x2: Array, axis: int, method: str) -> Any:
    ranks = [_rank(x, dim) for x, dim in zip((x1, x2), in_dims, strict=False)]
    ndim = max(ranks)
    arrays = (_padded(_front(x, dim, info.batch_size), ndim) for x, dim in zip((x1, x2), in_dims, strict=False))
    at = _arrays.normalize_axis(axis, min(ranks)) - min(ranks)
    return torch.ops.parprims.vecdot(*arrays, at, method), 0


def _batch_scan(
    info: Any, in_dims: Any, x: Any, op: str, arrays: Any, numbers: Any, dtype: Any, primitive: str, axis: Any,
    *options: Any,
) -> Any:  # fmt: skip
    x = [_front(one, dim, info.batch_size) for one, dim in zip(x, in_dims[0], strict=True)]
    ndim = x[0].ndim - 1
    at = _arrays.normalize_axis(-1 if axis is None else axis, ndim) + 1
    arrays = [_padded(_front(one, dim, info.batch_size), ndim - 1) for one, dim in zip(arrays, in_dims[2], strict=True)]
    return _listed_results(torch.ops.parprims.scan(x, op, arrays, numbers, dtype, primitive, at, *options))


def _batch_recurrence(
    info: Any, in_dims: Any, a: Any, a_number: Any, b: Any, b_number: Any, initial: Any, number: Any, axis: int,
    *options: Any,
) -> Any:  # fmt: skip
    ndim = max(_rank(a, in_dims[0]), _rank(b, in_dims[2]))
    a, b = (
        None if x is None else _padded(_front(x, dim, info.batch_size), ndim)
        for x, dim in ((a, in_dims[0]), (b, in_dims[2]))
    )
    if initial is not None:
        initial = _padded(_front(initial, in_dims[4], info.batch_size), ndim - 1)
    at = _arrays.normalize_axis(axis, ndim) + 1
    return torch.ops.parprims.linear_recurrence(a, a_number, b, b_number, initial, number, at, *options), 0


def _batch_sort(info: Any, in_dims: Any, arrays: Any, primitive: str, indices: bool, axis: int, *options: Any) -> Any:
    arrays = [_front(one, dim, info.batch_size) for one, dim in zip(arrays, in_dims[0], strict=True)]
    at = _arrays.normalize_axis(axis, arrays[0].ndim - 1) + 1
    return _listed_results(torch.ops.parprims.sort(arrays, primitive, indices, at, *options))


def _batch_argsort(info: Any, in_dims: Any, x: Array, axis: int, *options: Any) -> Any:
    x = _front(x, in_dims[0], info.batch_size)
    return torch.ops.parprims.argsort(x, _arrays.normalize_axis(axis, x.ndim - 1) + 1, *options), 0


def _batch_tridiagonal(info: Any, in_dims: Any, *inputs: Any) -> Any:
    given, rhs, (axis, *options) = inputs[:6], inputs[6], inputs[7:]
    ranks = [_rank(x, dim) for x, dim in zip(given[::2], in_dims[:6:2], strict=True)]
    ndim = max(ranks) or _rank(rhs, in_dims[6])
    coefficients = list(given)
    for at, x in enumerate(given):
        if x is not None and at % 2 == 0:
            x = x.unsqueeze(0) if in_dims[at] is None else x.movedim(in_dims[at], 0)
            coefficients[at] = _padded(x, ndim)
    rhs = _padded(_front(rhs, in_dims[6], info.batch_size), max(ndim, _rank(rhs, in_dims[6])))
    trailing = _arrays.normalize_axis(axis, ndim) - ndim
    return _listed_results(torch.ops.parprims.solve_tridiagonal(*coefficients, rhs, trailing, *options))


def _batch_call(info: Any, in_dims: Any, arrays: Sequence[Array], *options: Any) -> Any:
    arrays = [_front(one, dim, info.batch_size) for one, dim in zip(arrays, in_dims[0], strict=True)]
    rows = [torch.ops.parprims.call([one[at] for one in arrays], *options) for at in range(info.batch_size)]
    return _listed_results([torch.stack(ones) for ones in zip(*rows, strict=True)])


def _batch_matmul(info: Any, in_dims: Any, a: Array, b: Array, *options: Any) -> Any:
    vectors = [_rank(x, dim) == 1 for x, dim in zip((a, b), in_dims, strict=False)]
    a, b = (_front(x, dim, info.batch_size) for x, dim in zip((a, b), in_dims, strict=False))
    a, b = a.unsqueeze(-2) if vectors[0] else a, b.unsqueeze(-1) if vectors[1] else b
    rank = max(a.ndim, b.ndim) - 1
    c = torch.ops.parprims.matmul(_padded(a, rank), _padded(b, rank), *options)
    c = c.squeeze(-2) if vectors[0] else c
    return c.squeeze(-1) if vectors[1] else c, 0


# ---- The table --------------------------------------------------------------------------------------------------

_ELEMENTS = "Tensor[] x, str op, Tensor[] initial_arrays, Scalar[]? initial, str[] dtype, str primitive"

for _title, _schema, _run, _kept_for, _pull, _batch in (
    (
        "reduce",
        f"({_ELEMENTS}, int[]? axis, bool keepdims, str method) -> Tensor[]",
        _run_reduce,
        _keep_all,
        _pull_reduce,
        _batch_reduce,
    ),
    (
        "vecdot",
        "(Tensor x1, Tensor x2, int axis, str method) -> Tensor",
        _run_vecdot,
        _keep_all,
        _pull_vecdot,
        _batch_vecdot,
    ),
    (
        "scan",
        f"({_ELEMENTS}, int? axis, bool exclusive, bool reverse, bool include_initial, str method) -> Tensor[]",
        _run_scan,
        _keep_scan,
        _pull_scan,
        _batch_scan,
    ),
    (
        "linear_recurrence",
        "(Tensor? a_array, Scalar? a, Tensor? b_array, Scalar? b, Tensor? initial_array, Scalar? initial, int axis, "
        "bool reverse, str method) -> Tensor",
        _run_recurrence,
        _keep_recurrence,
        _pull_recurrence,
        _batch_recurrence,
    ),
    (
        "sort",
        "(Tensor[] arrays, str primitive, bool indices, int axis, bool descending, bool stable, str method) "
        "-> Tensor[]",
        _run_sort,
        _keep_sort,
        _pull_sort,
        _batch_sort,
    ),
    (
        "argsort",
        "(Tensor x, int axis, bool descending, bool stable, str method) -> Tensor",
        _run_argsort,
        None,
        None,
        _batch_argsort,
    ),
    (
        "solve_tridiagonal",
        "(Tensor? lower_array, Scalar? lower, Tensor? diag_array, Scalar? diag, Tensor? upper_array, Scalar? upper, "
        "Tensor rhs, int axis, str pivot, bool periodic, bool transpose, bool return_residual, bool return_status, "
        "str method) -> Tensor[]",
        _run_tridiagonal,
        _keep_tridiagonal,
        _pull_tridiagonal,
        _batch_tridiagonal,
    ),
    (
        "call",
        "(Tensor[] arrays, str primitive, str arguments, str method) -> Tensor[]",
        _run_call,
        None,
        None,
        _batch_call,
    ),
    (
        "matmul",
        "(Tensor a, Tensor b, str add, str multiply, str precision, str? kernel, int[]? tile, str method) -> Tensor",
        _run_matmul,
        _keep_all,
        _pull_matmul,
        _batch_matmul,
    ),
):
    _runs[_title] = _run
    _op = torch.library.custom_op(f"parprims::{_title}", _with_values(_run), mutates_args=(), schema=_schema)
    _op.register_fake(_fake(_run))
    _op.register_vmap(_batch)
    if _pull is not None:
        _op.register_autograd(_pull, setup_context=_kept_for)
    if _title in ("reduce", "vecdot", "scan", "solve_tridiagonal", "matmul"):
        _arguments = _schema[1 : _schema.index(")")]
        _op = torch.library.custom_op(
            f"parprims::{_title}_backward",
            _with_values(_backward(_run)),
            mutates_args=(),
            schema=f"(Tensor[] gs, int[] at, bool[] flags, {_arguments}) -> Tensor[]",
        )
        _op.register_fake(_fake(_backward(_run)))

"""Calls inside torch.compile and torch.export: every primitive is one node of the graph.

A node is an operator of PyTorch (see `_torch_compile.nodes`). It computes by the public function
itself, whose checks and choice of a method are those of any call; where arrays have no values it does so by a method
that computes nothing, so that a wrong argument is named when the program is compiled. Its derivative is made of nodes,
and torch.func.vmap makes one node of another.

A built-in operator stands in a node by its name. A function of the caller's own stands there by a name under which it
is kept, if it reads nothing but numbers and modules. One that captures more, such as a tensor, which may want a
derivative, is read by torch.compile itself: the call becomes the operations of the array form, and no node.
"""

from __future__ import annotations

import functools
import hashlib
import marshal
import math
from collections.abc import Sequence
from typing import Any

import torch

from parprims._core import arrays as core_arrays
from parprims._core.arrays import Array, cast, compute_dtype, dtype_name, ring_dtype, sum_dtype
from parprims._core.elements import is_structured
from parprims._core.options import check_entries, made_plain
from parprims._core.promotion import check_casts
from parprims._dispatch.dispatch import Inside, MethodRefused
from parprims._dispatch.primitive import Arguments
from parprims._libraries.settings import transformed
from parprims._operators.function_key import lasting_key
from parprims._operators.operator import (
    BUILT_IN,
    Operator,
    as_operator,
    by_leaves,
    flags_broadcast,
    restarted,
    with_combine,
)
from parprims._primitives.matmul import array as matmul_array
from parprims._primitives.reduce import array as reduce_array
from parprims._primitives.reduce import call as reduce_call
from parprims._primitives.reduce.call import OWN_MAPS, reduced_values
from parprims._primitives.scan import array as scan_array
from parprims._torch_compile.nodes import kept, runs, xp

# What depends on dtypes alone is found out while the program is read, not by it.
for _function in (core_arrays.dtype_name, core_arrays.dtype_kind, core_arrays.dtype_bits, core_arrays.compute_dtype):
    torch.compiler.assume_constant_result(_function)
torch.compiler.assume_constant_result(reduce_call.names_once_rounded)
torch.compiler.assume_constant_result(check_casts)


# ---- Entries, which torch.compile reads -------------------------------------------------------------------------


def reduce(asked: Arguments) -> Any:
    """Return what any of the reductions but a dot product returns."""
    fn, op, dtype, initial = asked["fn"], asked["op"], asked["dtype"], asked["initial"]
    axis, keepdims, primitive, method = asked["axis"], asked["keepdims"], asked.name, asked.method
    (x,) = asked.arrays.values()
    if fn not in OWN_MAPS:  # part of the program, as what it captures may be; it may work in place
        arrays = tuple([one.clone() for one in torch.broadcast_tensors(*x)])

        def plain(x: Any, op: Any, *, initial: Any, dtype: Any) -> Any:
            options = {**asked.options, "fn": None, "op": op, "dtype": dtype, "initial": initial}
            return reduce(Arguments(primitive, {"x": x}, options, method))

        def of_values(x: Any, op: Any, dtype: Any, initial: Any) -> Any:
            run = functools.partial(by_leaves, plain) if is_structured(x) else plain
            return run(x, op, initial=initial, dtype=dtype)

        return reduced_values(of_values, fn, arrays, op, dtype, initial)
    single = not isinstance(x, tuple)
    xs = (x,) if single else x
    operation = op if isinstance(op, str) else _name(op)
    if operation is None:
        return _reduced(primitive, xs, single, as_operator(op), axis, keepdims, dtype, initial, method)
    axes = axis if axis is None or isinstance(axis, tuple) else (axis,)
    arrays, numbers = ((), None) if initial is None else _parted(initial, xs, dtype)
    names = [] if dtype is None else _names(dtype)
    ys = _node("reduce", xs, operation, arrays, numbers, names, primitive, axes, keepdims, method)
    return ys[0] if single else tuple(ys)


def vecdot(asked: Arguments) -> Array:
    """Return what `vecdot` returns."""
    return _node("vecdot", asked["x1"], asked["x2"], asked["axis"], asked.method)


def scan(asked: Arguments) -> Any:
    """Return what a scan returns."""
    x, initial, op, dtype = asked["x"], asked["initial"], asked["op"], asked["dtype"]
    axis, exclusive, reverse = asked["axis"], asked["exclusive"], asked["reverse"]
    primitive, method = asked.name, asked.method
    single = not isinstance(x, tuple)
    xs = (x,) if single else x
    operation = op if isinstance(op, str) else _name(op)
    if operation is None:
        return _scanned(primitive, xs, single, as_operator(op), axis, exclusive, reverse, initial, dtype, method)
    arrays, numbers = ((), None) if initial is None else _parted(initial, xs, dtype)
    options = (primitive, axis, exclusive, reverse, asked["include_initial"], method)
    ys = _node("scan", xs, operation, arrays, numbers, [] if dtype is None else _names(dtype), *options)
    return ys[0] if single else tuple(ys)


def linear_recurrence(asked: Arguments) -> Array:
    """Return what `linear_recurrence` returns."""
    coefficients = (*_either(asked["a"]), *_either(asked["b"]), *_either(asked["initial"]))
    return _node("linear_recurrence", *coefficients, asked["axis"], asked["reverse"], asked.method)


def sort(asked: Arguments) -> tuple[Array, ...]:
    """Return what any of the sorts returns, as a tuple."""
    options = (asked["axis"], asked["descending"], asked["stable"], asked.method)
    if asked.name == "argsort":
        return (_node("argsort", asked["x"], *options),)
    arrays = asked.flat
    asked_for = torch.is_grad_enabled() and any(x.requires_grad for x in arrays)
    results = _node("sort", arrays, asked.name, asked_for, *options)
    return tuple(results)[: len(arrays)]


def solve_tridiagonal(asked: Arguments) -> Any:
    """Return what `solve_tridiagonal` returns."""
    names = ("axis", "pivot", "periodic", "transpose", "return_residual", "return_status")
    coefficients = (*_either(asked["lower"]), *_either(asked["diag"]), *_either(asked["upper"]))
    results = _node("solve_tridiagonal", *coefficients, asked["rhs"], *[asked[name] for name in names], asked.method)
    return tuple(results) if asked["return_residual"] or asked["return_status"] else results[0]


def matmul(asked: Arguments) -> Array:
    """Return what `matmul` returns."""
    a, b, add, multiply = asked["a"], asked["b"], asked["add"], asked["multiply"]
    precision, kernel, tile, method = asked["precision"], asked["kernel"], asked["tile"], asked.method
    lengths = tile if tile is None or isinstance(tile, tuple) else (tile, tile, tile)
    sums, products = _name(add), _name(multiply)
    if sums is None or products is None:
        if precision != "float32" or kernel is not None:
            raise ValueError("precision and kernel are for sums of products, not for operators of your own")
        return _multiplied(a, b, as_operator(add, "add"), as_operator(multiply, "multiply"), lengths, method)
    return _node("matmul", a, b, sums, products, precision, kernel, lengths, method)


def call(
    primitive: str, arrays: dict[str, Any], options: dict[str, Any], method: Any, *, composed: bool = False
) -> tuple[Array, ...]:
    """Return what a primitive without a node of its own returns, a tuple of arrays, given arguments by name.

    An array that is None is left out. Options are numbers, texts and tuples of these. A transformation of torch.func
    sees through what is ``composed`` of other primitives.
    """
    given = [name for name, x in arrays.items() if x is not None]
    inputs = [arrays[name] for name in given]
    if composed:
        return tuple(_node("call", inputs, primitive, _literal(given, options), method))
    return tuple(torch.ops.parprims.call(inputs, primitive, _literal(given, options), method))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _literal(given: list[str], options: dict[str, Any]) -> str:
    return repr((given, made_plain(**options) or options))


def _parted(initial: Any, xs: Sequence[Any], dtype: Any) -> tuple[Any, Any]:
    """Return the components of an initial element as arrays and as numbers: as numbers where all are of one type."""
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
    if _transformed():
        return _by_operations(name, *inputs)
    return getattr(_OPERATORS, name)(*inputs)


_OPERATORS = torch.ops.parprims


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _transformed() -> bool:
    """Return whether a transformation is under way; a program is read anew within another."""
    return transformed()


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _by_operations(name: str, *inputs: Any) -> Any:
    """Return what a node computes; torch.compile does not read this, but sees the operations when it runs."""
    return runs[name](*inputs[:-1], Inside(inputs[-1]))


def _either(x: Any) -> tuple[Any, Any]:
    """Return x as an array or None, and as a number or None."""
    return (x, None) if isinstance(x, torch.Tensor) else (None, x)


def _names(dtype: Any) -> Any:
    """Return dtypes by their names, which a program can be saved with."""
    given = dtype if isinstance(dtype, tuple) else (dtype,)
    return [one if isinstance(one, str) else _text(one) for one in given]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _text(dtype: Any) -> str:
    if isinstance(dtype, type) and dtype in core_arrays.BUILT_IN_DTYPES:
        return core_arrays.BUILT_IN_DTYPES[dtype]
    return dtype_name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)


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
    kept[key] = known
    return key


# ---- Operators of the caller's own, which torch.compile reads ---------------------------------------------------


def _own(primitive: str, method: Any, op: Operator) -> Operator:
    """Return an operator on copies, for it may work in place; refuse the methods that torch.compile cannot read."""
    if method == "kernel" or method == "native":
        raise MethodRefused(f"{primitive}: method {method!r} refused: torch.compile reads op {op.name} itself")
    if method != "auto" and method != "array":
        raise ValueError(f"method must be one of auto, kernel, native, array, got {method!r}")
    combine = op.combine
    return with_combine(op, lambda earlier, later: combine(_copied(earlier), _copied(later)))


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
        asked = tuple([getattr(torch, name, name) for name in _names(_entries("dtype", dtype, len(xs)))])
        check_casts([x.dtype for x in xs], asked)
        return asked
    if _sums(op):
        return tuple([_summed(x.dtype) for x in xs])
    return tuple([x.dtype for x in xs])


def _entries(name: str, given: Any, count: int) -> tuple[Any, ...]:
    """Return an argument that has an entry for every component as a tuple of them."""
    entries = given if isinstance(given, tuple) else (given,)
    check_entries(name, entries, count)
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
def _working(dtype: torch.dtype, sums: bool) -> Any:
    """Return the dtype that elements of a dtype are combined in, by addition or multiplication if sums."""
    return (ring_dtype if sums else compute_dtype)(xp, dtype)


def _sums(op: Operator) -> bool:
    """Return whether an operator is one that widens integers."""
    return op.name in ("add", "multiply") and op is BUILT_IN[op.name]


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
    """Return a scan, as `scan_array.array` does."""
    op = _own(primitive, method, op)
    xs = flags_broadcast(xp, op, xs) if _differ(xs) else xs
    _check_equal_shapes(xs)
    at, count = _place(axis, xs[0].ndim), len(xs)
    dtypes = _result_dtypes(op, xs, dtype)
    working = tuple([_working(one, _sums(op)) for one in dtypes])
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
    options = scan_array.ScanOptions(op, at, exclusive, reverse, identity, n, working, dtypes)
    ys = scan_array.scanned(xp, xs, starts or (), options, inclusive=scan_array.inclusive)
    if not again:
        return ys[0] if single else ys
    if identity is not None:
        first = tuple([core_arrays.filled(xp, one, y, at) for one, y in zip(identity, ys, strict=True)])
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
    """Return a reduction, as `reduce_array.array` does."""
    op = _own(primitive, method, op)
    xs = flags_broadcast(xp, op, xs) if _differ(xs) else xs
    _check_equal_shapes(xs)
    x, count = xs[0], len(xs)
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(sorted([_place(one, x.ndim) for one in axes]))
    dtypes = _result_dtypes(op, xs, dtype)
    n = math.prod([x.shape[one] for one in axes])
    shape = [1 if at in axes else length for at, length in enumerate(x.shape) if keepdims or at not in axes]
    ys = tuple(cast(xp, one, _working(to, _sums(op))) for one, to in zip(xs, dtypes, strict=True))
    totals = None
    if n > 0:
        if n == 1:
            ys = tuple(one.clone() for one in ys)
        merged, at = reduce_array.as_one_axis(xp, ys, axes)
        totals = tuple(torch.reshape(one, shape) for one in reduce_array.tree(merged, op, at))
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
    """What `matmul.array.tiled_product` asks of a product."""

    def __init__(self, a: Array, b: Array, add: Operator, multiply: Operator, tile: Any) -> None:
        self.a, self.b, self.add, self.multiply, self.tile, self.ring = a, b, add, multiply, tile, False
        self.dtype = a.dtype if a.dtype == b.dtype else torch.promote_types(a.dtype, b.dtype)
        self.working = _working(self.dtype, sums=False)
        self.batch = core_arrays.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        self.shape = (*self.batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))

    def identity(self) -> Any:
        """Return the identity of the sum."""
        return _identity(self.add, (self.working,), "a and b have no length summed over")[0]


def _multiplied(a: Array, b: Array, add: Operator, multiply: Operator, tile: Any, method: Any) -> Array:
    """Return a product by two operators, as `matmul.array.tiled_product` does."""
    add, multiply = _own("matmul", method, add), _own("matmul", method, multiply)
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"{'b' if a.ndim else 'a'} must have at least one dimension")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ValueError("a and b must agree in the length summed over, a's last and b's last but one")
    factors: Any = _Factors(a, b, add, multiply, tile)
    return matmul_array.tiled_product(xp, factors)

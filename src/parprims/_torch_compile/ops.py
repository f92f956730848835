"""Calls inside torch.compile and torch.export: every primitive is one node of the graph.

A node is an operator of PyTorch (see `_torch_compile.nodes`). It calls the public function, with its checks and its
choice of a method. For arrays without values the method computes nothing, so that a wrong argument is named when the
program is compiled. The derivative of a node consists of nodes, and torch.func.vmap turns a node into a node.

A node holds a built-in operator by its name. It also holds a function of the caller's by a name, if the function reads
only numbers and modules. If a function captures other values, such as a tensor that may need a derivative,
torch.compile reads it: the call becomes the operations of the array form instead of a node.
"""

from __future__ import annotations

import functools
import hashlib
import marshal
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_scalar

from parprims._core import arrays as core_arrays
from parprims._core.arrays import Array, cast, compute_dtype, dtype_name, ring_dtype, sum_dtype
from parprims._core.elements import is_structured
from parprims._core.options import BUILT_IN_DTYPES, check_entries
from parprims._core.promotion import check_casts
from parprims._dispatch.dispatch import Inside, MethodRefused
from parprims._dispatch.primitive import Arguments, declared
from parprims._libraries.settings import transformed
from parprims._operators.flags import flags_broadcast, restarted
from parprims._operators.function_key import lasting_key
from parprims._operators.in_place import apart, is_own
from parprims._operators.operator import BUILT_IN, Operator, as_operator, by_leaves, with_combine
from parprims._primitives.matmul import array as matmul_array
from parprims._primitives.reduce import array as reduce_array
from parprims._primitives.reduce import call as reduce_call
from parprims._primitives.reduce.call import OWN_MAPS, reduced_values
from parprims._primitives.scan import array as scan_array
from parprims._torch_compile.inputs import flat
from parprims._torch_compile.nodes import operators, run, xp

# torch.compile calls these functions while it reads the program, and puts their results into it as constants.
for _function in (core_arrays.dtype_name, core_arrays.dtype_kind, core_arrays.dtype_bits, core_arrays.compute_dtype):
    torch.compiler.assume_constant_result(_function)
torch.compiler.assume_constant_result(reduce_call.names_once_rounded)
torch.compiler.assume_constant_result(check_casts)


# ---- Entries, which torch.compile reads -------------------------------------------------------------------------


def with_constants(asked: Arguments, numbers: tuple[str, ...]) -> Arguments:
    """Return the call with the values of options in place of symbols, so that other values compile anew.

    Options of the names ``numbers`` are inputs of the node, and stay symbols.
    """
    options = {
        name: value if name in numbers or name == "initial" else _constant(value)
        for name, value in asked.options.items()
    }
    return asked.on(asked.arrays, **options)


def _constant(value: Any) -> Any:
    """Return the value of a symbol, or of symbols in a tuple or list; anything else unchanged."""
    if isinstance(value, tuple | list):
        parts = [_constant(one) for one in value]
        return parts if isinstance(value, list) else tuple(parts)
    is_number = isinstance(value, int | float | torch.SymInt | torch.SymFloat) and not isinstance(value, bool)
    return guard_scalar(value) if is_number else value


def reduce(asked: Arguments) -> Any:
    """Return the result of any reduction except a dot product."""
    fn, op, dtype, initial = asked["fn"], asked["op"], asked["dtype"], asked["initial"]
    (x,) = asked.arrays.values()
    if fn not in OWN_MAPS:  # the map becomes part of the program with its captured arrays, and may work in place
        arrays = tuple([array.clone() for array in torch.broadcast_tensors(*x)])

        def plain(x: Any, op: Any, *, initial: Any, dtype: Any) -> Any:
            options = {**asked.options, "fn": None, "op": op, "dtype": dtype, "initial": initial}
            return reduce(Arguments(asked.name, {"x": x}, options, asked.method))

        def of_values(x: Any, op: Any, dtype: Any, initial: Any) -> Any:
            run = functools.partial(by_leaves, plain) if is_structured(x) else plain
            return run(x, op, initial=initial, dtype=dtype)

        return reduced_values(of_values, fn, arrays, op, dtype=dtype, initial=initial)
    return _combined(asked, _reduced)


def scan(asked: Arguments) -> Any:
    """Return the result of a scan."""
    return _combined(asked, _scanned)


def _combined(asked: Arguments, by_operations: Any) -> Any:
    """Return the result of a call, by ``by_operations`` if torch.compile must read the operator."""
    x, op, initial = asked["x"], asked["op"], asked["initial"]
    xs = x if isinstance(x, tuple) else (x,)
    if (not isinstance(op, str) and _name(op) is None) or _are_apart(xs, op):
        return by_operations(asked, xs, as_operator(op))
    if initial is not None:
        parted = _parted(initial, xs, asked["dtype"])
        of_array = "initial" in asked.arrays
        asked = asked.on({**asked.arrays, "initial": parted}) if of_array else asked.on(asked.arrays, initial=parted)
    return call(asked.name, asked, single=not isinstance(x, tuple))


def _are_apart(xs: Sequence[Array], op: Any) -> bool:
    """Return whether components have several shapes, flags left out. Then torch.compile reads any operator."""
    components = xs[op.flags if isinstance(op, Operator) else 0 :]
    return _differ(components)


def sort(asked: Arguments) -> tuple[Array, ...]:
    """Return the results of a sort, as a tuple. If a derivative may be requested, the node returns indices too."""
    arrays = asked.flat
    indices = torch.is_grad_enabled() and any(x.requires_grad for x in arrays)
    results: tuple[Array, ...] = call(asked.name, asked.on(asked.arrays, indices=True) if indices else asked)
    return results[: len(arrays)]


def matmul(asked: Arguments) -> Array:
    """Return the result of `matmul`."""
    add, multiply, tile, method = asked["add"], asked["multiply"], asked["tile"], asked.method
    if _name(add) is None or _name(multiply) is None:
        if asked["precision"] != "float32" or asked["kernel"] is not None:
            raise ValueError("precision and kernel are for sums of products, not for operators of your own")
        own = _own("matmul", method, as_operator(add, "add")), _own("matmul", method, as_operator(multiply, "multiply"))
        lengths = tile if tile is None or isinstance(tile, tuple) else (tile, tile, tile)
        return _multiplied(asked["a"], asked["b"], operators=own, tile=lengths)
    result: Array = call("matmul", asked, single=True)
    return result


def call(primitive: str, asked: Arguments, *, single: bool = False) -> Any:
    """Return the result of a call as a node of the graph; ``primitive`` is the name of its declaration.

    The result is an array if ``single``, otherwise a tuple. Nodes hold operators and dtypes by name; other options are
    numbers, strings and tuples of these. A transformation of torch.func sees the operations of the primitive instead of
    a node.
    """
    defaults, of_operators, of_numbers = _form(primitive)
    named, options = asked.given, {}
    for name, value in asked.options.items():
        if name in defaults:
            continue
        if name in of_numbers and value is not None:
            named[name] = value
        elif name in of_operators and value is not None:
            options[name] = _name(value)
            if options[name] is None:
                raise ValueError(
                    f"{name} must be a built-in name, or read nothing that changes, for {primitive} "
                    "inside of torch.compile"
                )
        else:
            options[name] = _names(value) if name == "dtype" and value is not None else value
    inputs = flat(primitive, named, options, asked.method)
    results = _by_operations(*inputs) if transformed_in_graph() else torch.ops.parprims.call(*inputs)
    return results[0] if single else tuple(results)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _form(primitive: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the names of the options that a declaration fixes, of its operators and of its numbers."""
    one = declared[primitive]
    return tuple(one.defaults), one.operators, one.numbers


def _parted(initial: Any, xs: Sequence[Any], dtype: Any) -> Any:
    """Return an initial element whose components are all numbers of one Python type, or all arrays."""
    values = initial if isinstance(initial, tuple) else (initial,)
    if all(type(value) is type(values[0]) and not isinstance(value, torch.Tensor) for value in values):
        return initial
    dtypes = [x.dtype for x in xs] if dtype is None else dtype if isinstance(dtype, tuple) else (dtype,)
    if len(values) == len(xs) == len(dtypes):
        pairs = zip(values, dtypes, strict=True)
        values = tuple(
            [
                value if isinstance(value, torch.Tensor) else _filled("initial", value, to, shape=(), like=xs[0])
                for value, to in pairs
            ]
        )
        return values if isinstance(initial, tuple) else values[0]
    return initial


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def transformed_in_graph() -> bool:
    """Return whether a transformation is under way; torch.compile reads a program again inside each transformation."""
    return transformed()


@torch.compiler.allow_in_graph  # type: ignore[untyped-decorator]
def _by_operations(*inputs: Any) -> Any:
    """Return the results of a node. torch.compile records the operations of this function, and does not read it.

    A node would have no forward derivative: PyTorch treats an operator with only a backward rule as constant.
    """
    return run(*inputs[:-1], Inside(inputs[-1]))


def _names(dtype: Any) -> Any:
    """Return the names of dtypes, because a saved program can hold names but not dtypes."""
    if isinstance(dtype, tuple):
        return tuple([_names(entry) for entry in dtype])
    return dtype if isinstance(dtype, str) else _text(dtype)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _text(dtype: Any) -> str:
    if isinstance(dtype, type) and dtype in BUILT_IN_DTYPES:
        return BUILT_IN_DTYPES[dtype]
    return dtype_name(dtype) if isinstance(dtype, torch.dtype) else repr(dtype)


# ---- The caller's operators that are kept under a name ------------------------------------------------------------


def _name(op: Any) -> Any:
    """Return the name of an operator in nodes, or None if torch.compile must read its function."""
    if isinstance(op, str):
        return op
    if not isinstance(op, Operator):
        return _keep_function(op) if _is_closed(op, 2) else None
    if op.name in BUILT_IN and op is BUILT_IN[op.name]:
        return op.name
    if op._segments is not None:
        inner = _name(op._segments)
        return None if inner is None else f"segmented({inner})"
    identity = op._identity
    if not _is_closed(op.combine, 2) or not (_is_plain(identity) or _is_closed(identity, None)):
        return None
    return _keep_operator(op.combine, identity, commutative=op.commutative, name=op.name, components=op.components)


def _is_closed(function: Any, arguments: int | None) -> bool:
    """Return whether a function has this number of arguments and captures no variables, which might hold tensors."""
    try:
        code = function.__code__
        taken = code.co_argcount + code.co_kwonlyargcount
        return code.co_freevars == () and code.co_flags & 12 == 0 and (arguments is None or taken == arguments)
    except AttributeError:
        return False


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(entry) for entry in value)
    return value is None or isinstance(value, (bool, int, float, complex))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _keep_function(function: Any) -> str | None:
    """Keep a function under a name and return the name, or None if the function may change."""
    if lasting_key(function) is None:
        return None
    return _keep(function, function, "", _text_of(function))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _keep_operator(function: Any, identity: Any, **options: Any) -> str | None:
    """Keep the operator made of a function under a name and return the name, or None if a function may change."""
    if lasting_key(function) is None or (callable(identity) and lasting_key(identity) is None):
        return None
    start = marshal.dumps(identity.__code__) if callable(identity) else repr(identity)
    text = repr((_text_of(function), start, options["commutative"], options["components"]))
    return _keep(Operator(function, identity=identity, **options), function, options["name"], text)


def _text_of(function: Any) -> str:
    return repr((marshal.dumps(function.__code__), function.__module__, function.__qualname__))


def _keep(op: Any, function: Any, name: str, text: str) -> str:
    """Keep an operator under a name with a digest of its text, so that a saved program finds no other operator."""
    if "." in function.__name__:  # torch.compile gives functions of the program qualified names
        function.__name__ = function.__code__.co_name
    key = f"{name or function.__name__}#{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    operators[key] = op
    return key


# ---- The caller's operators that torch.compile reads ------------------------------------------------------------


def _own(primitive: str, method: Any, op: Operator) -> Operator:
    """Return an operator on copies, since it may work in place; refuse methods that torch.compile cannot read."""
    if method == "kernel" or method == "native":
        raise MethodRefused(f"{primitive}: method {method!r} refused: torch.compile traces op {op.name} itself")
    if method != "auto" and method != "canonical" and method != "array":
        raise ValueError(f"method must be one of auto, canonical, kernel, native, array, got {method!r}")
    combine = op.combine
    return with_combine(op, lambda earlier, later: combine(_copied(earlier), _copied(later)))


def _check_axes(op: Operator, xs: tuple[Array, ...], at: int) -> None:
    """Raise the error of an operator that mistakes axes, as `in_place.check_axes` does. Nothing uses the result."""
    if is_own(op) and any(x.ndim > at + 1 for x in xs):
        count = apart([x.shape for x in xs], at)
        few = tuple(
            [torch.ones((*x.shape[:at], count, *x.shape[at + 1 :]), dtype=x.dtype, device=x.device) for x in xs]
        )
        op(few, few)


def _copied(element: Any) -> Any:
    """Return an element, an array or a tuple, with copies of its arrays."""
    return tuple([x.clone() for x in element]) if isinstance(element, tuple) else element.clone()


def _differ(xs: Sequence[Array]) -> bool:
    """Return whether arrays have several shapes."""
    return any(x.shape != xs[0].shape for x in xs[1:])


def _result_dtypes(op: Operator, xs: Sequence[Array], dtype: Any) -> tuple[Any, ...]:
    """Return the dtypes of a result."""
    if dtype is not None:
        dtypes = tuple([getattr(torch, name, name) for name in _names(_entries("dtype", dtype, len(xs)))])
        check_casts([x.dtype for x in xs], dtypes)
        return dtypes
    if _sums(op):
        return tuple([_summed(x.dtype) for x in xs])
    return tuple([x.dtype for x in xs])


def _entries(name: str, argument: Any, count: int) -> tuple[Any, ...]:
    """Return an argument with an entry for every component as a tuple."""
    entries = argument if isinstance(argument, tuple) else (argument,)
    check_entries(name, entries, count)
    return entries


def _place(axis: Any, ndim: int) -> int:
    """Return an axis counted from the front."""
    if type(axis) is not int:
        raise TypeError("axis must be an integer")
    if not -ndim <= axis < ndim:
        raise IndexError(f"axis {axis} is out of range for an array of {ndim} dimensions")
    return axis % ndim


def _filled(name: str, value: Any, dtype: torch.dtype, *, shape: Sequence[int], like: Array) -> Array:
    """Return a number or an array as an array of a dtype and shape."""
    if isinstance(value, torch.Tensor):
        if value.dtype != dtype:
            raise TypeError(f"{name} must have dtype {dtype}, got {value.dtype}")
        return torch.broadcast_to(value, shape)
    return torch.full(shape, value, dtype=dtype, device=like.device)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _working(dtype: torch.dtype, sums: bool) -> Any:
    """Return the dtype in which elements are combined; ``sums`` marks addition and multiplication."""
    return (ring_dtype if sums else compute_dtype)(xp, dtype)


def _sums(op: Operator) -> bool:
    """Return whether an operator widens integers."""
    return op.name in ("add", "multiply") and op is BUILT_IN[op.name]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _summed(dtype: torch.dtype) -> Any:
    """Return the dtype of a sum of elements of a dtype."""
    return sum_dtype(xp, dtype)


def _identity(op: Operator, dtypes: Sequence[Any], reason: str) -> tuple[Any, ...]:
    """Return the identity of an operator for these dtypes."""
    identity = op.identity(*[dtype_name(dtype) for dtype in dtypes])
    if identity is None:
        raise ValueError(f"{reason} and op {op.name} has no identity: give initial")
    return identity


def _scanned(asked: Arguments, xs: tuple[Array, ...], op: Operator) -> Any:
    """Return the result of a scan, as `scan_array.array` does."""
    exclusive, reverse, initial = asked["exclusive"], asked["reverse"], asked["initial"]
    op = _own(asked.name, asked.method, op)
    xs, at = _aligned(xs, op, asked["axis"])
    _check_axes(op, xs, at)
    count = len(xs)
    dtypes = _result_dtypes(op, xs, asked["dtype"])
    working = tuple([_working(dtype, _sums(op)) for dtype in dtypes])
    starts = identity = None
    if initial is not None:
        triples = zip(_entries("initial", initial, count), dtypes, xs, strict=True)
        filled = [
            _filled("initial", value, to, shape=(*x.shape[:at], *x.shape[at + 1 :]), like=x) for value, to, x in triples
        ]
        starts = tuple([torch.unsqueeze(start, at) for start in filled])
    elif exclusive:
        identity = _identity(op, working, "initial must be given for an exclusive scan,")
    again = exclusive and op.flags > 0
    first: Any = starts  # an exclusive scan with flags begins every segment with it
    if again and starts is not None:
        starts = (*[torch.zeros_like(start) for start in starts[: op.flags]], *starts[op.flags :])
    n = xs[0].shape[at]
    options = scan_array.ScanOptions(op, at, exclusive, reverse, identity, n, working, dtypes)
    ys = scan_array.scanned(xp, xs, starts or (), options, inclusive=scan_array.grouped)
    if not again:
        return ys if isinstance(asked["x"], tuple) else ys[0]
    if identity is not None:
        first = tuple([core_arrays.filled(xp, e, y, at) for e, y in zip(identity, ys, strict=True)])
    return restarted(xp, op, xs[: op.flags], first, has_initial=starts is not None, ys=ys)


def _broadcast(xs: tuple[Array, ...], op: Operator, axes: tuple[int, ...]) -> tuple[Array, ...]:
    """Return components of one shape with the flags broadcast to it."""
    return flags_broadcast(xp, op, xs, axes) if _differ(xs) else xs


def _aligned(xs: tuple[Array, ...], op: Operator, axis: Any) -> tuple[tuple[Array, ...], int]:
    """Return the components with flags broadcast to them, and the axis that they share, counted from the front."""
    if not _are_apart(xs, op):
        at = _place(axis, xs[-1].ndim)
        return _broadcast(xs, op, (at,)), at
    return xs, core_arrays.shared_axis(axis, [x.shape for x in xs], [f"x[{index}]" for index in range(len(xs))])


def _reduced(asked: Arguments, xs: tuple[Array, ...], op: Operator) -> Any:
    """Return the result of a reduction, as `reduce_array.array` does."""
    axis, keepdims, initial = asked["axis"], asked["keepdims"], asked["initial"]
    op = _own(asked.name, asked.method, op)
    if _are_apart(xs, op):
        xs, at = _aligned(xs, op, axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis)
        axes: tuple[int, ...] = (at,)
    else:
        ndim = xs[-1].ndim
        axes = tuple(range(ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        axes = tuple(sorted([_place(axis, ndim) for axis in axes]))
        xs = _broadcast(xs, op, axes)
    dtypes = _result_dtypes(op, xs, asked["dtype"])
    n = math.prod([xs[0].shape[axis] for axis in axes])
    shapes = [
        [1 if at in axes else length for at, length in enumerate(x.shape) if keepdims or at not in axes] for x in xs
    ]
    ys = tuple(cast(xp, x, _working(to, _sums(op))) for x, to in zip(xs, dtypes, strict=True))
    totals = None
    if n > 0:
        if n == 1:
            ys = tuple(y.clone() for y in ys)
        merged, at = reduce_array.as_one_axis(xp, ys, axes)
        _check_axes(op, merged, at)
        parts = reduce_array.tree(merged, op, at)
        totals = tuple(torch.reshape(total, shape) for total, shape in zip(parts, shapes, strict=True))
    if initial is not None:
        entries = zip(_entries("initial", initial, len(xs)), dtypes, shapes, ys, strict=True)
        start = tuple(_filled("initial", value, to, shape=shape, like=y).to(y.dtype) for value, to, shape, y in entries)
        totals = start if totals is None else _after_start(op, start, totals, axes, kept=keepdims)
    elif totals is None:
        identity = _identity(op, [y.dtype for y in ys], f"x is empty along axis {axes}")
        triples = zip(identity, shapes, ys, strict=True)
        totals = tuple(_filled("identity", e, y.dtype, shape=shape, like=y) for e, shape, y in triples)
    totals = tuple(cast(xp, total, to) for total, to in zip(totals, dtypes, strict=True))
    return totals if isinstance(asked["x"], tuple) else totals[0]


def _after_start(
    op: Operator, start: tuple[Array, ...], totals: tuple[Array, ...], axes: tuple[int, ...], *, kept: bool
) -> tuple[Array, ...]:
    """Return the combination of the initial element and totals, in which an operator sees the axis."""
    if kept or len(axes) != 1:
        return op(start, totals)
    elements = [tuple([torch.unsqueeze(x, axes[0]) for x in element]) for element in (start, totals)]
    return tuple([torch.squeeze(x, axes[0]) for x in op(*elements)])


class _Factors:
    """The fields of a product that `matmul.array.tiled_product` reads."""

    def __init__(self, a: Array, b: Array, operators: tuple[Operator, Operator], tile: Any) -> None:
        self.a, self.b, self.tile, self.ring = a, b, tile, False
        self.add, self.multiply = operators
        self.dtype = a.dtype if a.dtype == b.dtype else torch.promote_types(a.dtype, b.dtype)
        self.working = _working(self.dtype, sums=False)
        self.batch = core_arrays.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        self.shape = (*self.batch, *a.shape[-2:-1], *(b.shape[-1:] if b.ndim > 1 else ()))

    def identity(self) -> Any:
        """Return the identity of the sum."""
        return _identity(self.add, (self.working,), "a and b have no length summed over")[0]


def _multiplied(a: Array, b: Array, *, operators: tuple[Operator, Operator], tile: Any) -> Array:
    """Return a product with two operators of the caller's, as `matmul.array.tiled_product` does."""
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"{'b' if a.ndim else 'a'} must have at least one dimension")
    if a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ValueError("a and b must agree in the length summed over, a's last and b's last but one")
    factors: Any = _Factors(a, b, operators, tile)
    return matmul_array.tiled_product(xp, factors)

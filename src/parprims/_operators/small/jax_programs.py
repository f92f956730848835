"""Operators on small matrices that call JAX: JAX traces them, and small arrays compute the program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims._operators.foreign.jax_programs import INNER, LOOPS, RULES, dtypes_of_64_bits, rule_by_name
from parprims._operators.small.arrays import Lanes, Small, contracted, mapped, reduction, solved
from parprims._operators.tracing import NAMESPACE, Untraceable, function_named


class _Unused:
    """The result of a factorisation, which only the solution of a system needs."""


def by_jax(combine: Callable[[Any, Any], Any], elements: Sequence[Sequence[Small]], dtypes: Sequence[str]) -> Any:
    """Return the results of an operator that calls functions of JAX; raise Untraceable if JAX cannot trace it."""
    import jax

    sides = [[jax.ShapeDtypeStruct(x.shape, dtype) for x, dtype in zip(side, dtypes, strict=True)] for side in elements]
    wide = any("64" in name or name == "complex128" for name in dtypes)
    try:
        with dtypes_of_64_bits(wide):
            closed, shape = jax.make_jaxpr(lambda p, q: combine(tuple(p), tuple(q)), return_shape=True)(*sides)
        constants = [np.asarray(one) for one in closed.consts]
    except Exception as error:  # the caller's function may raise any error for a tracer of JAX
        raise Untraceable(f"JAX cannot trace it: {str(error).partition(chr(10))[0]}") from error
    lanes = elements[0][0]._lanes
    results = _results(lanes, closed.jaxpr, constants, [x for side in elements for x in side])
    return tuple(results) if isinstance(shape, tuple) else tuple(results[:1])


def _results(lanes: Lanes, jaxpr: Any, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
    """Return the results of a program on small arrays, and on arrays of NumPy as constants."""
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> Any:
        return np.asarray(atom.val, dtype=atom.aval.dtype) if hasattr(atom, "val") else values[atom]

    for equation in jaxpr.eqns:
        found = _of_equation(lanes, equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _of_equation(lanes: Lanes, equation: Any, operands: list[Any]) -> list[Any]:
    name, options = equation.primitive.name, equation.params
    if name == "custom_linear_solve":
        return [_of_linear_solve(lanes, options, operands)]
    inner = next((options[key] for key in INNER if key in options), None)
    rule = RULES.get(name) if inner is None else rule_by_name(equation)
    if rule is None and inner is not None and name not in LOOPS:
        constants = [np.asarray(one) for one in getattr(inner, "consts", ())]
        return _results(lanes, getattr(inner, "jaxpr", inner), constants, operands)
    if any(isinstance(one, _Unused) for one in operands):
        raise Untraceable(f"it calls {name} of jax.lax on the factors of a matrix, which has no translation")
    if name == "lu":
        return [_Unused() for _ in equation.outvars]
    if not any(isinstance(one, Small) for one in operands):
        with dtypes_of_64_bits(True):
            found = equation.primitive.bind(*operands, **options)
        return [np.asarray(one) for one in (found if equation.primitive.multiple_results else [found])]
    if name == "split":
        ends = np.cumsum(options["sizes"])[:-1]
        return [Small(lanes, part) for part in np.split(operands[0]._entries, ends, axis=options["axis"])]
    if name in _STRUCTURAL:
        return [_STRUCTURAL[name](lanes, equation, *operands)]
    if rule is None:
        raise Untraceable(f"it calls {name} of jax.lax, which has no translation")
    shape = tuple(equation.outvars[0].aval.shape)
    if any(np.ndim(one) not in (0, len(shape)) for one in operands if isinstance(one, np.ndarray)):
        raise Untraceable(f"it calls {name} of jax.lax on arrays of several shapes")
    entries = [
        one._entries
        if isinstance(one, Small)
        else one[()]
        if one.ndim == 0
        else lanes.constants(np.broadcast_to(one, shape), one.dtype.name, whole=True)
        for one in operands
    ]
    return [mapped(lanes, functools.partial(rule, NAMESPACE, equation), *entries)]


def _entries(lanes: Lanes, x: Any) -> Any:
    """Return the entries of an operand with the axes of the lanes; an array of NumPy becomes literals."""
    return x._entries if isinstance(x, Small) else lanes.constants(x, x.dtype.name, whole=True)


def _broadcast(lanes: Lanes, equation: Any, x: Small) -> Small:
    shape, places = equation.params["shape"], [int(one) for one in equation.params["broadcast_dimensions"]]
    lengths = [1] * len(shape)
    for place, length in zip(places, x.shape, strict=True):
        lengths[place] = length
    return Small(lanes, np.broadcast_to(x._entries.reshape(lengths), shape))


def _sliced(lanes: Lanes, equation: Any, x: Small) -> Small:
    options = equation.params
    steps = options["strides"] or (1,) * x.ndim
    places = zip(options["start_indices"], options["limit_indices"], steps, strict=True)
    return Small(lanes, x._entries[tuple([slice(*place) for place in places])])


def _dynamic_slice(lanes: Lanes, equation: Any, x: Small, *starts: Any) -> Small:
    if any(isinstance(one, Small) for one in starts):
        raise Untraceable("it slices an array at a place that depends on the elements")
    places = []
    for start, size, length in zip(starts, equation.params["slice_sizes"], x.shape, strict=True):
        first = min(max(int(start), 0), length - size)
        places.append(slice(first, first + size))
    return Small(lanes, x._entries[tuple(places)])


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _letters(dimension_numbers: Any, ranks: Sequence[int]) -> tuple[str, str, str]:
    """Return the axes of a product of arrays as letters: of the factors and of the result."""
    (left_sums, right_sums), (left_batch, right_batch) = dimension_numbers
    left, right = [*_LETTERS[: ranks[0]]], [*_LETTERS[ranks[0] : sum(ranks)]]
    for one, other in zip((*left_sums, *left_batch), (*right_sums, *right_batch), strict=True):
        right[other] = left[one]
    batch = [left[one] for one in left_batch]
    free = [letter for at, letter in enumerate(left) if at not in (*left_sums, *left_batch)]
    others = [letter for at, letter in enumerate(right) if at not in (*right_sums, *right_batch)]
    return "".join(left), "".join(right), "".join((*batch, *free, *others))


def _dot(_: Lanes, equation: Any, x: Any, y: Any) -> Small:
    dtypes = {atom.aval.dtype for atom in (*equation.invars, *equation.outvars)}
    if len(dtypes) > 1:
        raise Untraceable("it multiplies matrices of several dtypes")
    left, right, result = _letters(equation.params["dimension_numbers"], (x.ndim, y.ndim))
    return contracted(f"{left},{right}->{result}", x, y)


def _joined(lanes: Lanes, equation: Any, *xs: Any) -> Small:
    arrays = [_entries(lanes, one) for one in xs]
    return Small(lanes, np.concatenate(arrays, axis=equation.params["dimension"]))


def _stacked(lanes: Lanes, equation: Any, *xs: Any) -> Small:
    return Small(lanes, np.stack([_entries(lanes, one) for one in xs], axis=equation.params["axis"]))


def _reduced(combine: Callable[..., Any]) -> Callable[..., Small]:
    run = reduction(combine)
    return lambda _, equation, x: run(x, tuple(equation.params["axes"])) if equation.params["axes"] else x


def _of_linear_solve(lanes: Lanes, options: Any, operands: list[Any]) -> Small:
    """Return the solution of systems of equations. The program ``matvec`` multiplies by their matrix, its constant."""
    matvec = options["jaxprs"].matvec
    if options["const_lengths"].matvec != 1:
        raise Untraceable("it solves equations that a function defines")
    matrix, right = operands[0], operands[-1]
    products = [one for one in matvec.jaxpr.eqns if one.primitive.name == "dot_general"]
    others = {one.primitive.name for one in matvec.jaxpr.eqns} - {"dot_general", "transpose"}
    if len(products) != 1 or others:
        raise Untraceable("it solves equations that no matrix defines")
    (left_sums, right_sums), (left_batch, right_batch) = products[0].params["dimension_numbers"]
    batch = tuple(range(matrix.ndim - 2))
    known = products[0].invars[0] is matvec.jaxpr.invars[0], tuple(left_batch) == batch, tuple(right_batch) == batch
    if not all(known) or tuple(left_sums) != (matrix.ndim - 1,):
        raise Untraceable("it solves equations that no matrix defines")
    (unknowns,) = right_sums
    rows = np.moveaxis(_entries(lanes, right), unknowns, -1)
    columns = Small(lanes, np.swapaxes(rows.reshape((*rows.shape[: len(batch)], -1, rows.shape[-1])), -1, -2))
    solution = np.swapaxes(solved(Small(lanes, _entries(lanes, matrix)), columns)._entries, -1, -2)
    return Small(lanes, np.moveaxis(solution.reshape(rows.shape), -1, unknowns))


def _cholesky(lanes: Lanes, _: Any, x: Small) -> Small:
    """Return the lower factors of positive definite matrices."""
    a, n = x._entries, x.shape[-1]
    lower: list[list[Any]] = [[None] * n for _ in range(n)]
    root = function_named("sqrt")
    zero = lanes.constants(np.zeros(a.shape[len(lanes.shape) : -2]), x._name)

    def on(compute: Callable[..., Any], *parts: Any) -> Any:
        return mapped(lanes, compute, *parts)._entries

    for j in range(n):
        for i in range(n):
            if i < j:
                lower[i][j] = zero
                continue
            value = np.asarray(a[..., i, j], dtype=object)
            for k in range(j):
                value = on(lambda p, q, r: p - q * r, value, lower[i][k], lower[j][k])
            lower[i][j] = on(root, value) if i == j else on(lambda p, q: p / q, value, lower[j][j])
    return Small(lanes, np.stack([np.stack(row, axis=-1) for row in lower], axis=-2))


_STRUCTURAL: dict[str, Callable[..., Small]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": lambda lanes, equation, x: Small(lanes, x._entries.reshape(equation.params["new_sizes"])),
    "squeeze": lambda lanes, equation, x: Small(lanes, np.squeeze(x._entries, tuple(equation.params["dimensions"]))),
    "transpose": lambda lanes, equation, x: Small(lanes, np.transpose(x._entries, equation.params["permutation"])),
    "rev": lambda lanes, equation, x: Small(lanes, np.flip(x._entries, equation.params["dimensions"])),
    "slice": _sliced,
    "dynamic_slice": _dynamic_slice,
    "concatenate": _joined,
    "stack": _stacked,
    "dot_general": _dot,
    "reduce_sum": _reduced(lambda p, q: p + q),
    "reduce_prod": _reduced(lambda p, q: p * q),
    "reduce_max": _reduced(function_named("maximum")),
    "reduce_min": _reduced(function_named("minimum")),
    "cholesky": _cholesky,
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "optimization_barrier"), lambda _, __, x: x),
}
"""The operations of jax.lax that move, join or combine the numbers of small arrays."""

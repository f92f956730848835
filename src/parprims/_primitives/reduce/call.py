"""A checked reduction, and the parts that all methods share: the map, the dtypes, and the assembly of the result.

These parts are one file because they call each other: the checks evaluate the map, and its values determine the dtypes
of the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import (
    SIXTEEN_BIT_FLOATS,
    Array,
    Namespace,
    admit,
    as_result,
    broadcast_shapes,
    cast,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    dtype_kind,
    dtype_name,
    is_jax,
    is_tensor,
    lacks_arithmetic,
    namespace,
    namespace_of,
    normalize_axes,
    normalize_axis,
    quiet,
    ring_dtype,
    shared_axis,
    sum_dtype,
)
from parprims._core.elements import Structure, flat, flattened, is_structured, rebuilt
from parprims._core.jax_arrays import is_traced, jax_platform
from parprims._core.options import as_dtypes, check_entries, dtype_named, is_array
from parprims._core.promotion import check_casts
from parprims._core.scalars import as_array
from parprims._dispatch.composite import fitted, positions, stand_in
from parprims._dispatch.dispatch import Checked, exact
from parprims._dispatch.primitive import Arguments
from parprims._dispatch.watch import computing, listing, unwatched
from parprims._libraries.settings import asked_for
from parprims._operators.failures import check_result, explain_failure
from parprims._operators.flags import of_equal_shapes
from parprims._operators.foreign.calls import call_on
from parprims._operators.function_key import lasting_key
from parprims._operators.in_place import Few, harmless, harmless_map, is_own
from parprims._operators.operator import (
    BUILT_IN,
    Operator,
    as_operator,
    check_components,
    names_of_leaves,
    op_never_warns,
    restructured,
    rounds,
)

Map = Callable[..., Any]

SUMS = (BUILT_IN["add"], BUILT_IN["multiply"])
"""The operators that widen integers as the standard's ``sum`` does."""


def conjugate_product(x: Array, y: Array) -> Array:
    """Return conj(x) y, the map of vecdot."""
    if dtype_kind(x.dtype) == "complex":
        return namespace(x=x).conj(x) * y
    if is_tensor(x) and lacks_arithmetic(namespace(x=x), [x.dtype]) is not None:
        xp = namespace(x=x)
        signed = ring_dtype(xp, x.dtype)
        return cast(xp, cast(xp, x, signed) * cast(xp, y, signed), x.dtype)
    return x * y


def is_nonzero(x: Array) -> Array:
    """Return whether elements are nonzero, the map of any and all."""
    return x != 0


OWN_MAPS = (None, conjugate_product, is_nonzero)
"""No map, and the library's own maps, which need no check."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Reduction(Checked):
    """One call, checked.

    Parameters
    ----------
    shape : tuple of int
        The shape of every array, or of the first if they differ.
    shapes : tuple of tuple of int, optional
        The shapes of the arrays if they differ; their lengths along the only axis of ``axes`` are equal.
    fn : callable or None
        The map to values that are combined; None combines the elements themselves.
    single : bool
        Whether x is one array, not a tuple.
    op : Operator
        The operator, on plain tuples of arrays as soon as the structure of elements is known.
    axes : tuple of int
        The axes to combine along, counted from the front, in ascending order.
    keepdims : bool
        Whether the combined axes stay, with length 1.
    dtypes : tuple of dtype or None
        The option ``dtype``, with an entry for each component.
    initial : tuple or None
        The element before all others, one entry for each component.
    begun : bool
        Whether its entries are arrays, of the dtypes and the shape of the result.
    operation : optional
        The key by which the operator is remembered (see `lasting_key`), or None.
    positions : dtype or None
        The dtype of a last component that no array holds: the position of each element along the axes, in row-major
        order. The result is then the last component alone.
    """

    shape: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...] | None = None
    fn: Map | None = None
    single: bool
    op: Operator
    axes: tuple[int, ...]
    keepdims: bool = False
    dtypes: tuple[Any, ...] | None = None
    initial: tuple[Any, ...] | None = None
    begun: bool = False
    operation: Any = None
    positions: Any = None

    @property
    def lasts(self) -> bool:
        """Whether the operator has a key that later calls find it by."""
        return self.operation is not None

    @property
    def n(self) -> int:
        """The number of elements combined into one."""
        return math.prod([self.shape[axis] for axis in self.axes])

    @property
    def result_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self.reduced(self.shape)

    def reduced(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for a component of a shape."""
        if self.keepdims:
            return tuple([1 if axis in self.axes else length for axis, length in enumerate(shape)])
        return tuple([length for axis, length in enumerate(shape) if axis not in self.axes])

    def trial(self, xp: Namespace) -> str | None:
        """Call map and operator on a few elements; return the reason why they fail, or None."""
        if self.fn in OWN_MAPS and not is_own(self.op):
            return None

        combines = self.n + (self.initial is not None) > 1

        def combine(*xs: Array) -> None:
            values = evaluate(xp, self.of(*xs))
            operator = harmless(xp, values.op, None, values.arrays) if is_own(values.op) else values.op
            if combines:
                operator(values.arrays, values.arrays)

        most = max(1, min(2, self.n // 2)) if self.fn in OWN_MAPS else 2
        dtypes = tuple([x.dtype for x in self.arrays])
        few = Few(self.arrays[0], shape=self.shape, axes=self.axes, most=most, dtypes=dtypes, shapes=self.shapes)
        return few.failure(xp, combine, of_none=True)

    def of(self, *arrays: Array, **fields: Any) -> Reduction:
        """Return the reduction of other arrays, of any shape."""
        shapes = None if self.shapes is None else tuple([tuple(x.shape) for x in arrays])
        return dataclasses.replace(self, arrays=arrays, shape=tuple(arrays[0].shape), shapes=shapes, key=None, **fields)

    def with_positions(self, xp: Namespace) -> Reduction:
        """Return the reduction with the positions as an array; its result has all components."""
        places = positions(xp, self.arrays[0], self.axes, self.positions)
        return self.of(*self.arrays, places, positions=None, single=False)


@dataclasses.dataclass(frozen=True)
class Values:
    """The elements of a reduction after the map.

    Parameters
    ----------
    arrays : tuple of array
        The components, in the dtypes that they are combined in.
    dtypes : tuple of dtype
        The dtypes of the result.
    single : bool
        Whether the result is one array, not a tuple.
    op : Operator
        The operator on these components.
    differ : bool
        Whether the components have several shapes, or another shape than the arrays of the call.
    structure : optional
        How the result is assembled from arrays (see `_core.elements`); None for an array or a plain tuple.
    """

    arrays: tuple[Array, ...]
    dtypes: tuple[Any, ...]
    single: bool
    op: Operator
    differ: bool = False
    structure: Structure = None

    def result_shapes(self, r: Reduction) -> list[tuple[int, ...]]:
        """Return the shapes of the components of the result."""
        if not self.differ:
            return [r.result_shape] * len(self.dtypes)
        return [r.reduced(tuple(x.shape)) for x in self.arrays]

    def result(self, totals: tuple[Array, ...]) -> Any:
        """Return the components of a result as an element."""
        return assembled(totals, self.single, self.structure)


def assembled(totals: tuple[Array, ...], single: bool, structure: Structure) -> Any:
    """Return components as an element: an array, a tuple, or a structure."""
    if structure is not None:
        return rebuilt(structure, totals)
    return totals[0] if single else totals


# ---- Dtypes -----------------------------------------------------------------------------------------------------


def check_elements(r: Reduction, dtypes: tuple[Any, ...]) -> None:
    """Raise unless elements of these dtypes suit the operator, and the options suit the elements."""
    name = "x" if r.fn is None else "the result of fn"
    if r.initial is not None:
        check_entries("initial", r.initial, len(dtypes))
    if r.dtypes is not None:
        check_entries("dtype", r.dtypes, len(dtypes))
        check_casts(dtypes, r.dtypes)
        check_components(r.op, r.dtypes, name, requested=True)
    else:
        _check_summable(r.op, dtypes, name)


def _check_summable(op: Operator, dtypes: tuple[Any, ...], name: str) -> None:
    """Raise, naming the elements, unless their dtypes suit the operator; add and multiply take bool as integers."""
    if not (op in SUMS and len(dtypes) == 1 and dtype_kind(dtypes[0]) == "bool"):
        check_components(op, dtypes, name)


def check_values(op: Any, values: Any) -> None:
    """Raise, naming fn, unless the values of a map suit the operator."""
    leaves, structure = flattened(values, "the result of fn")
    _check_summable(
        restructured(as_operator(op), structure), tuple([leaf.dtype for leaf in leaves]), "the result of fn"
    )


def result_dtypes(xp: Namespace, r: Reduction, dtypes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the dtype of each component of the result, for elements of the given dtypes."""
    if r.dtypes is not None:
        return r.dtypes
    if r.op in SUMS:
        return tuple([sum_dtype(xp, dtype) for dtype in dtypes])
    return dtypes


def working_dtype(op: Operator) -> Callable[[Namespace, Any], Any]:
    """Return the function from a dtype to the dtype that elements are combined in, outside of the kernel."""
    return ring_dtype if op in SUMS else compute_dtype


# ---- Elements ---------------------------------------------------------------------------------------------------


def evaluate(xp: Namespace, r: Reduction) -> Values:
    """Return the values of the map, in the dtypes that they are combined in."""
    arrays, single, op, structure = r.arrays, r.single, r.op, None
    dtypes_of_values = tuple([x.dtype for x in arrays])
    if r.fn is conjugate_product and dtype_kind(arrays[0].dtype) == "float":  # products are not rounded to 16 bits
        r = dataclasses.replace(r, arrays=tuple([cast(xp, x, compute_dtype(xp, x.dtype)) for x in arrays]))
    if r.fn is not None:
        arrays, dtypes_of_values, single, structure = mapped(xp, r)
        op = restructured(op, structure)
        r = dataclasses.replace(r, op=op)
        check_elements(r, dtypes_of_values)
    dtypes = result_dtypes(xp, r, dtypes_of_values)
    working = working_dtype(op)
    arrays = tuple([cast(xp, x, working(xp, dtype)) for x, dtype in zip(arrays, dtypes, strict=True)])
    differ = r.shapes is not None or (r.fn is not None and any(x.shape != r.shape for x in arrays))
    return Values(arrays, dtypes, single=single, op=op, differ=differ, structure=structure)


def explain_map_failure(error: Exception, count: int) -> None:
    """Raise TypeError if the cause of a map's failure is known; else add a note to the error."""
    explain_failure("fn", error, f"as many arrays as are given, which are {count}")


def mapped(xp: Namespace, r: Reduction) -> tuple[tuple[Array, ...], tuple[Any, ...], bool, Structure]:
    """Return the values of the map, their dtypes, whether they are one array, and their structure.

    Values have the shape of the arrays, or further axes behind it. A caller's map gets 16-bit floats as float32, as in
    kernels; the dtypes are those that it returns for the original arrays.
    """
    assert r.fn is not None
    fn = r.fn
    result = fn(*r.arrays) if fn in OWN_MAPS else of_map(xp, fn, r.arrays)
    single, structure = not isinstance(result, tuple), None
    values = (result,) if single else result
    if is_structured(result):
        values, structure = flattened(result, "fn")
    if not values:
        raise TypeError("fn returned no array")
    broadcast = []
    for index, value in enumerate(values):
        if type(value) is not type(r.arrays[0]):
            check_result("fn", value, r.arrays[0], str(index) if len(values) > 1 else None)
        if value.shape != r.shape:
            try:
                value = xp.broadcast_to(value, r.shape)
            except (ValueError, RuntimeError, TypeError):  # the error differs between libraries
                if len(r.axes) == 1 and value.ndim > len(r.shape) and value.shape[: len(r.shape)] == r.shape:
                    broadcast.append(value)
                    continue
                raise ValueError(
                    f"fn returned shape {tuple(value.shape)}, which does not broadcast to that of arrays, {r.shape}"
                ) from None
        broadcast.append(value)
    dtypes = tuple([value.dtype for value in broadcast])
    if fn not in OWN_MAPS and has_sixteen_bits(r.arrays):
        with unwatched():
            dtypes = own_dtypes(xp, fn, r.arrays)
    return tuple(broadcast), dtypes, single, structure


def axis_of_pair(x1: Array, x2: Array, axis: Any) -> int:
    """Return the axis of products, counted from the front of the array of fewer dimensions."""
    for name, x in (("x1", x1), ("x2", x2)):
        check_kind(name, x, ("int", "uint", "float", "complex"))
        if x.ndim == 0:
            raise ValueError(f"{name} must have at least one dimension")
    ndim = min(x1.ndim, x2.ndim)
    index: int = normalize_axis(axis, ndim)
    if axis >= 0 and x1.ndim != x2.ndim:
        raise ValueError(f"axis must be negative for arrays of {x1.ndim} and {x2.ndim} dimensions, got {axis}")
    if x1.shape[index - ndim] != x2.shape[index - ndim]:
        raise ValueError(
            f"x1 and x2 must have equal length along axis {axis}, got {x1.shape[index - ndim]} and "
            f"{x2.shape[index - ndim]}"
        )
    return index


def of_map(xp: Namespace, fn: Map, arrays: tuple[Array, ...]) -> Any:
    """Return the values of a caller's map, which gets 16-bit floats as float32; raise with the reason if it fails."""
    inputs = widened(xp, arrays)
    fn = harmless_map(xp, fn, lasting_key(fn), inputs)
    try:
        return call_on(fn, inputs, inputs[0])
    except Exception as error:
        explain_map_failure(error, len(arrays))
        raise


def has_sixteen_bits(arrays: tuple[Array, ...]) -> bool:
    """Return whether an array is of a 16-bit floating dtype."""
    return any(dtype_name(x.dtype) in SIXTEEN_BIT_FLOATS for x in arrays)


def widened(xp: Namespace, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the arrays with 16-bit floats cast to float32, as callers' functions get them."""
    return tuple([cast(xp, x, compute_dtype(xp, x.dtype)) for x in arrays])


def own_dtypes(xp: Namespace, fn: Map, arrays: tuple[Array, ...]) -> tuple[Any, ...]:
    """Return the dtypes of a map's values for arrays of the original dtypes.

    The map is called on one element, of a shape that broadcasts with other arrays that the map may read.
    """
    if not is_tensor(arrays[0]) and is_jax(xp):
        import jax

        values = jax.eval_shape(lambda *xs: call_on(fn, xs, xs[0]), *arrays)
        return tuple([value.dtype for value in flattened(values, "fn")[0]])
    few = [x[((slice(0, 1),) * x.ndim + (...,))] for x in arrays]
    with contextlib.nullcontext() if is_tensor(few[0]) else np.errstate(all="ignore"):
        return tuple([value.dtype for value in flattened(call_on(fn, tuple(few), few[0]), "fn")[0]])


def reduced_values(
    reduce: Callable[..., Any],
    fn: Map,
    arrays: tuple[Array, ...],
    op: Any,
    dtype: Any,
    initial: Any,
    call: Callable[..., Any] | None = None,
) -> Any:
    """Return the reduction, by ``reduce(values, op, dtype, initial)``, of the stored values of a map.

    16-bit floats are computed in float32, and rounded once at the end. ``call``, if given, computes the values in
    place of ``fn``. torch.compile traces this function.
    """
    xp = namespace_of(arrays[0])
    values = fn(*widened(xp, arrays)) if call is None else call(*arrays)
    if not has_sixteen_bits(arrays):
        return reduce(values, op, dtype, initial)
    dtypes, sums = own_dtypes(xp, fn, arrays), as_operator(op) in SUMS
    computed, results = names_once_rounded(xp, dtypes, flat("dtype", dtype), sums)
    leaves, entries = flattened(initial, "initial")
    start = rebuilt(entries, [widened(xp, (leaf,))[0] if hasattr(leaf, "shape") else leaf for leaf in leaves])
    totals, structure = flattened(
        reduce(values, op, computed if isinstance(values, tuple | dict) else computed[0], start)
    )
    return rebuilt(structure, [cast(xp, total, dtype_named(xp, to)) for total, to in zip(totals, results, strict=True)])


def broadcast_to_one(arrays: tuple[Array, ...]) -> tuple[int, ...]:
    """Return the shape that the arrays of a map broadcast to; raise if there is none."""
    shapes = [tuple(x.shape) for x in arrays]
    try:
        return broadcast_shapes(*shapes)
    except ValueError:
        got = ", ".join(map(str, shapes))
        raise ValueError(f"arrays must broadcast against each other, got shapes {got}") from None


def all_values(fn: Map, *arrays: Array) -> Any:
    """Return the values of a map, or placeholders while methods are only listed."""
    xp, shape = namespace_of(arrays[0]), broadcast_to_one(arrays)
    return _placeholders(xp, fn, arrays, shape) if listing() else of_map(xp, fn, arrays)


def _placeholders(xp: Namespace, fn: Map, arrays: tuple[Array, ...], shape: tuple[int, ...]) -> Any:
    """Return placeholders of the values of a map, which is called on two elements."""
    dtypes = tuple([x.dtype for x in arrays])
    few = Few(arrays[0], shape=shape, axes=tuple(range(len(shape))), most=2, dtypes=dtypes)

    def asked(lengths: list[int]) -> Any:
        with computing(), quiet(xp):
            return of_map(xp, fn, tuple([xp.ones(tuple(lengths), dtype=x.dtype, device=device(x)) for x in arrays]))

    try:
        result = asked(few.lengths())
    except TypeError:
        raise
    except Exception:  # such as lengths that do not broadcast with other arrays that the map reads
        result = asked([1] * len(shape))
    leaves, structure = flattened(result, "fn")
    like = next((x for x in arrays if asked_for(x)), arrays[0])
    has_all_axes = [is_array(x) and x.ndim == len(shape) for x in leaves]
    placeholders = [
        stand_in(xp, like, shape, x.dtype) if is_whole else x for x, is_whole in zip(leaves, has_all_axes, strict=True)
    ]
    return rebuilt(structure, placeholders)


def names_once_rounded(
    xp: Namespace, dtypes: tuple[Any, ...], dtype: Any, sums: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the dtypes to reduce in and of the results, for the dtypes of values."""
    results = as_dtypes(xp, dtype)
    if results is None:
        results = tuple([sum_dtype(xp, dtype) for dtype in dtypes]) if sums else dtypes
    return tuple([dtype_name(compute_dtype(xp, dtype)) for dtype in results]), tuple(map(dtype_name, results))


def library_routine(xp: Namespace, name: str, arrays: tuple[Array, ...]) -> Callable[..., Array]:
    """Return the library's function of a name, such as ``max``, in a form that propagates NaN.

    XLA drops NaN in extrema of many elements on a CPU, so it gets another form.
    """
    function: Callable[..., Array] = getattr(xp, name)
    if name not in ("max", "min") or not is_jax(xp) or jax_platform(arrays) != "cpu":
        return function

    def extremum(x: Array, **options: Any) -> Array:
        result = function(x, **options)
        if dtype_kind(x.dtype) != "float":
            return result
        lost = xp.max(xp.astype(xp.isnan(x), xp.int8), **options)
        return xp.where(lost > 0, xp.full_like(result, math.nan), result)

    return extremum


def refused_shapes(r: Checked) -> str | None:
    """Return the reason why no kernel computes a scan or a reduction of arrays of several shapes, or None."""
    shapes: tuple[tuple[int, ...], ...] | None = getattr(r, "shapes", None)
    return None if shapes is None else f"the arrays have several shapes, {', '.join(map(str, shapes))}"


def with_start(xp: Namespace, r: Reduction) -> Reduction:
    """Return the call, on CPUs with its initial element as arrays; raise if there is no element to begin with."""
    if r.initial is None and r.n:
        return r
    dtypes = result_dtypes(xp, r, tuple([x.dtype for x in r.arrays]))
    if r.initial is None:
        if r.op.identity(*(dtype_name(working_dtype(r.op)(xp, dtype)) for dtype in dtypes)) is None:
            raise ValueError(_no_identity(r, r.op))
        return r
    return begun(xp, r, dtypes)


def names_of_start(op: Operator, count: int) -> tuple[str, ...]:
    """Return the names of the parts of ``initial`` in messages."""
    return ("initial",) * count if op._structure is None else names_of_leaves(op, count, "initial")


def begun(xp: Namespace, r: Reduction, dtypes: tuple[Any, ...]) -> Reduction:
    """Return the call with ``initial`` as arrays of these dtypes, if a prepared call may hold them."""
    assert r.initial is not None
    check_entries("initial", r.initial, len(dtypes))  # the number of values of a map may be known from another call
    on, shapes = device(r.arrays[0]), map(r.reduced, r.shapes or [r.shape] * len(dtypes))
    parts = zip(names_of_start(r.op, len(dtypes)), r.initial, dtypes, shapes, strict=True)
    initial = tuple([as_array(name, value, xp, dtype, device=on, shape=shape) for name, value, dtype, shape in parts])
    # A prepared call may run on another stream of a GPU, which does not wait for arrays of this stream. JAX programs
    # hold numbers.
    waits = isinstance(on, str) or getattr(on, "type", "") == "cpu"
    return dataclasses.replace(r, initial=initial, begun=True) if waits else r


def check_mapped(xp: Namespace, r: Reduction) -> None:
    """Raise the errors that a call would raise for the values of its map, from empty arrays.

    If the map itself fails, or the library lacks an operation of the map, the methods that need the map refuse (see
    `Reduction.trial`), but a kernel may compute it.
    """
    none = r.of(*(_empty_like(xp, x) for x in r.arrays)) if r.shape else r
    with computing():
        try:
            mapped(xp, none)
        except Exception:  # the caller's function may fail on empty arrays
            return
        values = evaluate(xp, none)
    with_start(xp, dataclasses.replace(r, fn=None, arrays=values.arrays, dtypes=values.dtypes, op=values.op))


def _empty_like(xp: Namespace, x: Array) -> Array:
    """Return an empty array like x; on JAX a new array, because a slice would be compiled."""
    if is_jax(xp) and not is_traced(x):
        return xp.zeros((0, *x.shape[1:]), dtype=x.dtype, device=device(x))
    return x[:0, ...]


def _no_identity(r: Reduction, op: Operator) -> str:
    return f"x is empty along axis {r.axes} and op {op.name} has no identity: give initial"


# ---- The result -------------------------------------------------------------------------------------------------


def finish(xp: Namespace, r: Reduction, values: Values, totals: tuple[Array, ...] | None) -> Any:
    """Return the result: shaped, combined with the initial element, in its dtype. No totals means no elements.

    The result shares no memory with an input, although a single element may be an input, and an operator may return
    one.
    """
    shapes, op = values.result_shapes(r), values.op
    like = values.arrays if totals is None else totals
    copied = r.n > 1 and BUILT_IN.get(op.name) is op
    if totals is not None:
        pairs = zip(totals, shapes, strict=True)
        totals = tuple([total if total.shape == shape else xp.reshape(total, shape) for total, shape in pairs])
    if totals is None and r.initial is None:
        identity = op.identity(*(dtype_name(x.dtype) for x in like))
        if identity is None:
            raise ValueError(_no_identity(r, op))
        totals = tuple(
            xp.full(shape, value, dtype=x.dtype, device=device(x))
            for value, x, shape in zip(identity, like, shapes, strict=True)
        )
    if r.initial is not None:
        start = tuple(
            [
                cast(
                    xp,
                    value if r.begun else as_array("initial", value, xp, dtype, device=device(x), shape=shape),
                    x.dtype,
                )
                for value, dtype, x, shape in zip(r.initial, values.dtypes, like, shapes, strict=True)
            ]
        )
        totals = start if totals is None else after_start(xp, r, op, start=start, totals=totals)
    assert totals is not None
    result = tuple(
        as_result(cast(xp, total, dtype) if copied else xp.astype(total, dtype, copy=True))
        for total, dtype in zip(totals, values.dtypes, strict=True)
    )
    return values.result(result)


def after_start(
    xp: Namespace, r: Reduction, op: Operator, *, start: tuple[Array, ...], totals: tuple[Array, ...]
) -> tuple[Array, ...]:
    """Return the combination of the initial element and totals, in which an operator of the caller's sees the axis."""
    if r.keepdims or len(r.axes) != 1 or not is_own(op):
        return op(start, totals)
    (axis,) = r.axes
    elements = [tuple([xp.expand_dims(x, axis=axis) for x in element]) for element in (start, totals)]
    return tuple([xp.squeeze(x, axis=axis) for x in op(*elements)])


def result_of_empty(xp: Namespace, r: Reduction) -> Any:
    """Return the result of an empty reduction: initial, or the identity."""
    return finish(xp, r, evaluate(xp, r), None)


def empty(xp: Namespace, r: Reduction) -> Any:
    """Return uninitialised arrays like the result, after the checks of every method."""
    values = evaluate(xp, r)
    if r.n == 0:
        return finish(xp, r, values, None)
    pairs = zip(values.arrays, values.result_shapes(r), strict=True)
    totals = tuple([xp.empty(shape, dtype=x.dtype, device=device(x)) for x, shape in pairs])
    return finish(xp, r, values, totals)


def never_warns(xp: Namespace, r: Reduction) -> bool:
    """Return whether NumPy's routine cannot warn."""
    del xp
    dtypes = tuple([x.dtype for x in r.arrays])
    return r.fn in (None, is_nonzero) and op_never_warns(r.op, dtypes, dtypes if r.dtypes is None else r.dtypes)


# ---- Checks -----------------------------------------------------------------------------------------------------


def checked(asked: Arguments) -> tuple[Namespace, Reduction]:
    """Return the namespace and the checked call of any reduction but a dot product."""
    fn, operator, dtype, initial = asked["fn"], as_operator(asked["op"]), asked["dtype"], asked["initial"]
    name = next(iter(asked.arrays))
    single = type(asked[name]) is not tuple
    inputs = (asked[name],) if single else asked[name]
    if not inputs:
        raise ValueError("x must hold at least one array")
    names = (name,) if single else names_of_leaves(operator, len(inputs), name)
    xp, admitted = admit(dict(zip(names, inputs, strict=True)))
    arrays, differ = tuple(admitted), False
    if fn is is_nonzero and dtype_kind(arrays[0].dtype) == "bool":
        fn = None
    if fn is None:
        arrays, differ = of_equal_shapes(xp, operator, arrays, asked["axis"])
    elif not single and any(x.shape != arrays[0].shape for x in arrays):
        shape = broadcast_to_one(arrays)
        arrays = tuple(fitted(xp, x, x.dtype, shape) for x in arrays)
    shapes, axis = tuple([tuple(x.shape) for x in arrays]), asked["axis"]
    if differ:
        axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
        axis = shared_axis(axis, shapes, names)
    axes = normalize_axes(axis, arrays[0].ndim)
    keepdims, dtypes = check_flag("keepdims", asked["keepdims"]), as_dtypes(xp, dtype)
    r = Reduction(
        arrays=arrays,
        key=asked.key_of(*arrays),
        shape=tuple(arrays[0].shape),
        shapes=shapes if differ else None,
        fn=fn,
        single=single,
        op=operator,
        axes=axes,
        keepdims=keepdims,
        dtypes=dtypes,
        initial=initial if initial is None or isinstance(initial, tuple) else (initial,),
        operation=lasting_key(asked["op"]),
    )
    if fn is None:
        check_elements(r, tuple([x.dtype for x in arrays]))
    if r.n == 0 and asked.name in ("max", "min"):
        raise ValueError(f"x must not be empty along the axes of a {asked.name}, got shape {r.shape}")
    if fn is None:
        r = with_start(xp, r)
    elif listing():
        check_mapped(xp, r)
    return xp, r


def checked_pair(asked: Arguments) -> tuple[Namespace, Reduction]:
    """Return the namespace and the checked call of a dot product."""
    xp, (x1, x2) = admit(asked.arrays)
    axis = axis_of_pair(x1, x2, asked["axis"]) - min(x1.ndim, x2.ndim)
    try:
        dtype = xp.result_type(x1, x2)
    except (TypeError, ValueError, RuntimeError):
        names = f"{dtype_name(x1.dtype)} and {dtype_name(x2.dtype)}"
        raise TypeError(f"x1 and x2 must have dtypes that promote together, got {names}") from None
    pair = tuple([fitted(xp, x, dtype) for x in (x1, x2)])
    promoted = Arguments("vecdot", {"x": pair}, {**asked.options, "axis": axis, "dtype": dtype}, asked.method)
    promoted.key = asked.key_of(*pair)
    return checked(promoted)


def departs(name: str, xp: Namespace, r: Reduction) -> str | None:
    """Return the sentence why a method does not group elements canonically, or None."""
    if name == "kernel" and r.op.commutative and rounds(r.op, [x.dtype for x in r.arrays]):
        x = r.arrays[0]
        strides = x.stride() if is_tensor(x) else getattr(x, "strides", ())
        steps = [abs(strides[axis]) for axis in r.axes if x.shape[axis] > 1] if strides else []
        if steps != sorted(steps, reverse=True):
            return "the kernel takes the axes in the order of memory, which is not row-major"
    return exact(name, xp, r)

"""Derivatives of the scans by sum, product and affine map, the linear recurrence, sorts, and matrix products.

The derivative of a scan is a linear recurrence, the derivative of a sort is its permutation, and the derivatives of a
matrix product are two products, so that methods need no derivatives of their own. `_derivatives` has the rules for
PyTorch and JAX.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import array_api_compat

from parprims._core.arrays import Array, Namespace, along, cast, compute_dtype, device, dtype_kind, filled, namespace_of
from parprims._core.memo import Memo
from parprims._dispatch import registry
from parprims._dispatch.dispatch import Abstract, Checked, Methods
from parprims._dispatch.prepared import recalled
from parprims._libraries.settings import asked_for as asked_for
from parprims._libraries.settings import autocast, forward_asked, transformed
from parprims._operators.operator import BUILT_IN, Operator
from parprims._primitives.reduce import call as reduce_call
from parprims._primitives.sort.call import Sorting, index_dtype

if TYPE_CHECKING:  # at run time these records are in a higher room
    from parprims._primitives.matmul.call import Product
    from parprims._primitives.recurrence.call import Recurrence
    from parprims._primitives.scan.call import Scan
    from parprims._primitives.tridiagonal.call import System

OPERATORS = tuple(BUILT_IN[name] for name in ("add", "multiply", "affine"))
"""The operators whose scans have rules."""


def recurrence(methods: Methods, method: str, xp: Namespace, r: Recurrence) -> Array:
    """Return the solution by a method, with its derivative if a derivative may be requested."""
    rules = _rules(xp)
    if isinstance(method, Abstract) or rules is None or not rules.wanted(r.arrays) or not _has_derivative(r.dtype):
        return methods(method, xp, r)
    if any(x.dtype != r.dtype for x in r.inputs):
        arrays = (*(cast(xp, x, r.dtype) for x in r.inputs), *r.starts)
        r = dataclasses.replace(r, arrays=arrays, key=None)
    if array_api_compat.is_torch_namespace(xp):
        return methods(method, xp, r)  # every method carries the derivative, see `solution`
    return rules.recurrence(methods, method, xp, r)


def solution(xp: Namespace, r: Recurrence, run: Callable[..., Array], method: str) -> Callable[..., Array]:
    """Return a solver of a linear recurrence, with the derivative if PyTorch may request it."""
    if array_api_compat.is_torch_namespace(xp) and _rules(xp).wanted(r.arrays) and _has_derivative(r.dtype):
        sweep = Sweep(xp, r.axis, r.reverse)
        differentiable: Callable[..., Array] = _rules(xp).solution(run, r.shape, sweep, method)
        return differentiable
    return run


def by_operations(
    xp: Namespace,
    arrays: tuple[Array, ...],
    run: Callable[..., tuple[Array, ...]],
    operations: Callable[[], Callable[..., Any]],
) -> Callable[..., tuple[Array, ...]]:
    """Return ``run``, with the derivative if PyTorch may request it for these arrays.

    The derivative is taken through the function that ``operations`` returns: the computation in library operations.
    """
    if array_api_compat.is_torch_namespace(xp) and _rules(xp).wanted(arrays):
        differentiable: Callable[..., tuple[Array, ...]] = _rules(xp).by_operations(run, operations())
        return differentiable
    return run


def differentiated_as(
    methods: Methods, method: str, xp: Namespace, call: Checked, *, function: Callable[..., Any]
) -> Any:
    """Return the result of a call by a method, with the derivative of an equivalent function of its arrays."""
    if isinstance(method, Abstract) or not any(map(asked_for, call.arrays)):
        return methods(method, xp, call)
    bare = dataclasses.replace(call, arrays=(None,) * len(call.arrays), key=None)
    return with_derivatives_of(xp, function, lambda *arrays: methods(method, xp, bare.on(*arrays)), call.arrays)


def with_derivatives_of(
    xp: Namespace, function: Callable[..., Any], run: Callable[..., Any], arrays: tuple[Array, ...]
) -> Any:
    """Return the results of ``run`` on arrays, with the derivative of an equivalent function if it may be requested."""
    rules = _rules(xp)
    if rules is None or not any(map(asked_for, arrays)):
        return run(*arrays)
    return rules.differentiated_as(run, function, arrays)


def scan(methods: Methods, method: str, xp: Namespace, r: Scan) -> Any:
    """Return the scan by a method, with its derivative if a derivative may be requested."""
    rules = _rules(xp)
    if (
        isinstance(method, Abstract)
        or rules is None
        or not rules.wanted(r.arrays)
        or r.op not in OPERATORS
        or not all(_has_derivative(dtype) for dtype in r.dtypes)
        or (_by_library_faster(xp, r.op) and _by_library(methods, method, xp, r))
    ):
        return methods(method, xp, r)
    bare = dataclasses.replace(r, arrays=(None,) * len(r.arrays), key=None, complete=None)

    def elements(arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Cast elements to the working dtypes; elements that already have the dtype of the result stay as they are."""
        pairs = zip(arrays, bare.dtypes, bare.working, strict=False)
        xs = [x if x.dtype == dtype else cast(xp, x, working) for x, dtype, working in pairs]
        return *xs, *arrays[len(xs) :]

    if not array_api_compat.is_torch_namespace(xp):
        return rules.scan(methods, method, xp, bare.on(*elements(r.arrays)))

    def run(compute: Callable[..., Any], *arrays: Array) -> Any:
        return rules.scan(compute, method, xp, bare.on(*elements(arrays)))

    inner = bare
    if r.key is not None:
        complete, inner = r.complete, dataclasses.replace(bare, key=("by a rule", r.key))
        _scans.keep(r.key, run if complete is None else lambda compute, *arrays: run(compute, *complete(*arrays)))
    return run(lambda *arrays: methods(method, xp, inner.on(*arrays)), *r.arrays)


_scans: Memo[Callable[..., Any]] = Memo()


def recalled_scan(key: Any) -> Callable[..., Any] | None:
    """Return the prepared call of a scan that a rule differentiates, or None if the key is new."""
    run = _scans.get(key)
    compute = None if run is None else recalled(("by a rule", key))
    return None if run is None or compute is None else functools.partial(run, compute)


def reduction(methods: Methods, method: str, xp: Namespace, r: reduce_call.Reduction) -> Any:
    """Return the reduction by a method.

    The operations carry the derivative. Largest and smallest elements, and dot products under autocast, have rules.
    """
    if isinstance(method, Abstract):
        return reduce_call.empty(xp, r)
    # A rule computes the call without the derivative, so it gets the call without its key, and nothing is remembered.
    if methods.primitive == "vecdot" and autocast(xp) and _rules(xp).wanted(r.arrays):
        # If the backward pass runs under autocast too, the library's own derivative would be cast.
        return _rules(xp).vecdot(methods, method, xp, dataclasses.replace(r, key=None))
    if method == "array" and r.single and r.fn is None and r.op in (BUILT_IN["maximum"], BUILT_IN["minimum"]):
        rules = _rules(xp)
        if array_api_compat.is_torch_namespace(xp) and rules.wanted(r.arrays) and r.n and r.initial is None:
            return rules.extremum(methods, method, xp, dataclasses.replace(r, key=None))
    return methods(method, xp, r)


def tridiagonal(methods: Methods, method: str, xp: Namespace, s: System) -> Array:
    """Return the solution of tridiagonal systems by a method, with its derivative if a derivative may be requested."""
    if isinstance(method, Abstract):
        return xp.empty(s.shape, dtype=s.rhs.dtype, device=device(s.rhs))
    rules = _rules(xp)
    if rules is None or not rules.wanted(s.arrays):
        return methods(method, xp, s)
    return rules.tridiagonal(methods, method, xp, s.for_rhs(xp.broadcast_to(s.rhs, s.shape)))


def linear_system(
    xp: Namespace, matrix: Any, solve: Callable[..., Array], coefficients: tuple[Array, ...], b: Array
) -> Array:
    """Return the solutions of linear systems, with derivatives of every order if a derivative may be requested.

    ``solve`` takes the namespace, a matrix, its coefficients and b. A matrix has the methods of `banded.matrix.Matrix`:
    products, its transpose and the derivatives by its coefficients.
    """
    rules = _rules(xp)
    if rules is None or not any(map(asked_for, (*coefficients, b))):
        return solve(xp, matrix, coefficients, b)
    x: Array = rules.linear_system(xp, matrix, solve, coefficients=coefficients, b=b)
    return x


def sorting(methods: Methods, method: str, xp: Namespace, s: Sorting) -> tuple[Array, ...]:
    """Return the results of a sort by a method, with their derivatives if derivatives may be requested."""
    if isinstance(method, Abstract):
        dtypes = [x.dtype for x in s.arrays] if s.keyed else [index_dtype(xp)]
        return tuple(xp.empty(s.keys.shape, dtype=dtype, device=device(s.keys)) for dtype in dtypes)
    rules = _rules(xp)
    if rules is not None and not s.keyed:
        s = s.on(rules.constant(s.keys))  # indices have no derivative
    elif rules is not None and rules.wanted(s.arrays) and not _by_library(methods, method, xp, s):
        differentiable: tuple[Array, ...] = rules.sorting(methods, method, xp, s)
        return differentiable
    result: tuple[Array, ...] = methods(method, xp, s)
    return result


def product(xp: Namespace, p: Product, run: Callable[..., Array], method: str) -> Callable[..., Array]:
    """Return a function that multiplies two matrices, with the derivative if PyTorch may request it.

    The requested method computes the derivative. On JAX the runner of the kernel carries it.
    """
    if p.ring and array_api_compat.is_torch_namespace(xp) and _rules(xp).wanted(p.arrays) and _has_derivative(p.dtype):
        differentiable: Callable[..., Array] = _rules(xp).product(
            run, precision=p.precision, kernel=p.kernel, method=method
        )
        return differentiable
    return run


def product_under_autocast(xp: Namespace, p: Product, run: Callable[..., Array], method: str) -> Callable[..., Array]:
    """Return `product` under autocast, which would cast the library's own derivative, and ``run`` otherwise."""
    return product(xp, p, run, method) if autocast(xp) else run


def detached(x: Array) -> Array:
    """Return the array without its derivative on PyTorch."""
    return x.detach() if hasattr(x, "detach") else x


def asked_by_torch(arrays: Iterable[Array]) -> bool:
    """Return whether PyTorch may request a derivative with respect to any of these arrays."""
    return any(array_api_compat.is_torch_array(x) and asked_for(x) for x in arrays)


def constant(x: Array) -> Array:
    """Return the array as a constant for derivatives."""
    rules = _rules(namespace_of(x))
    return x if rules is None else rules.constant(x)


def own_refusal(xp: Namespace, op: Operator) -> str | None:
    """Return a refusal if the derivative of a library's own routine for an operator is wrong here, else None."""
    if not array_api_compat.is_torch_namespace(xp):
        return None
    if op is BUILT_IN["multiply"] and forward_asked():
        return "forward derivatives of PyTorch's own products are wrong at zeros"
    if op is BUILT_IN["logaddexp"] and transformed():
        return (
            "under a transformation of torch.func or a forward derivative, the derivative of PyTorch's logcumsumexp is "
            "NaN after minus infinity"
        )
    return None


def _by_library_faster(xp: Namespace, op: Operator) -> bool:
    """Return whether the library's own derivative of its scan is faster than the rule. On JAX the rule is a program."""
    return op is BUILT_IN["multiply"] or array_api_compat.is_torch_namespace(xp)


def _by_library(methods: Methods, method: str, xp: Namespace, call: Checked) -> bool:
    """Return whether the method chosen for the call without derivatives is the library's own routine."""
    return methods.chosen(method, xp, call.on(*map(detached, call.arrays))) == "native"


@functools.cache
def _rules(xp: Namespace) -> Any:
    """Return the module with the rules of a library, or None if it has no derivatives."""
    if array_api_compat.is_torch_namespace(xp):
        return registry.derivatives_on_torch()
    return registry.derivatives_on_jax() if array_api_compat.is_jax_namespace(xp) else None


def _has_derivative(dtype: Any) -> bool:
    return dtype_kind(dtype) in ("float", "complex")


# ---- Elements in the order of a scan, which starts at the end if reverse ----------------------------------------


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The axis that a scan or a recurrence runs along, and its direction.

    Parameters
    ----------
    xp : namespace
        The array namespace.
    axis : int
        The axis, counted from the front.
    reverse : bool
        Whether the sweep starts at the end of the axis.
    """

    xp: Namespace
    axis: int
    reverse: bool

    @property
    def backward(self) -> Sweep:
        """The sweep in the opposite direction."""
        return Sweep(self.xp, self.axis, not self.reverse)

    def first_index(self, x: Array) -> tuple[Any, ...]:
        """Return the index of the first element, kept as an axis of length 1."""
        return along(self.axis, max(x.shape[self.axis] - 1, 0), None) if self.reverse else along(self.axis, 0, 1)

    def first(self, x: Array) -> Array:
        """Return the first element; an empty array if x is empty."""
        return x[self.first_index(x)]

    def rest(self, x: Array) -> Array:
        """Return all elements except the first."""
        axis = self.axis
        return x[along(axis, 0, max(x.shape[axis] - 1, 0)) if self.reverse else along(axis, 1, None)]

    def join(self, earlier: Array, later: Array) -> Array:
        """Return the elements of two arrays, one array after the other."""
        return self.xp.concat([later, earlier] if self.reverse else [earlier, later], axis=self.axis)

    def previous(self, x: Array, start: Array) -> Array:
        """Return the predecessor of every element: for w x y z the elements start w x y."""
        return self.join(start, self.backward.rest(x))

    def times_previous(self, c: Array, x: Array, start: Array | None) -> Array:
        """Return c[n] x[n-1] for every n, with ``start`` as x[-1]; the first product is 0 without a start.

        A first coefficient that is not read therefore has derivative 0, even if other products are infinite.
        """
        if start is not None:
            return c * self.previous(x, start)
        products = self.rest(c) * self.backward.rest(x)
        return self.join(filled(self.xp, 0, products, self.axis), products) if c.shape[self.axis] else c

    def following(self, x: Array) -> Array:
        """Return the successor of every element: for w x y z the elements x y z w."""
        if x.shape[self.axis] <= 1 or (hasattr(x, "stride") and x.stride(self.axis) == 0):
            return x
        return self.backward.join(self.first(x), self.rest(x))


# ---- Adjoints: derivatives by the inputs of a call, given the derivatives by its results ---------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Solver:
    """The functions that compute adjoints.

    Parameters
    ----------
    recurrence : callable
        A function with the signature of `linear_recurrence`.
    sums : callable, optional
        A function with the signature of `scan` that adds; only adjoints of scans need it.
    fused : callable, optional
        A function with the signature of `recurrence.public.adjoint`, which computes two derivatives in one pass.
    method : str
        The method for these functions.
    """

    recurrence: Callable[..., Array]
    sums: Callable[..., Array] | None = None
    fused: Callable[..., Any] | None = None
    method: str

    def transposed(self, sweep: Sweep, a: Array, g: Array) -> Array:
        """Return l[n] = g[n] + a[n+1] l[n+1]."""
        return self.recurrence(sweep.following(a), g, axis=sweep.axis, reverse=not sweep.reverse, method=self.method)


def adjoint(
    sweep: Sweep, solver: Solver, a: Array, g: Array, *, x: Array | None, initial: Array | None
) -> tuple[Array | None, Array, Array | None]:
    """Return the derivatives by a, b and initial of a recurrence with solution x, given the derivative g by x.

    The derivative by b is the recurrence l[n] = g[n] + conj(a[n+1]) l[n+1] from the other end, the derivative by a is
    l[n] conj(x[n-1]), and the derivative by initial is conj(a[0]) l[0]. Without x or initial, the derivative by a or
    by initial is None. 16-bit floats are computed in float32 and rounded once. Where ``solver.fused`` computes the
    derivatives by b and a together, l[0] is rounded once more before it is multiplied.
    """
    xp, axis = sweep.xp, sweep.axis
    if g.shape[axis] == 0:
        return a, g, None if initial is None else xp.zeros_like(initial)
    dtype = g.dtype
    wide = compute_dtype(xp, dtype)
    by_a = by_initial = None
    pair = None
    if solver.fused is not None:
        pair = solver.fused(xp, a, g, x, axis=axis, reverse=sweep.reverse, method=solver.method)
    if pair is not None:
        by_b, by_a = pair
        if by_a is not None and initial is not None:
            start = conj(xp, cast(xp, initial, wide))
            by_a[sweep.first_index(by_a)] = cast(xp, start * cast(xp, sweep.first(by_b), wide), dtype)
    else:
        coefficients = conj(xp, cast(xp, a, wide))
        by_b = solver.transposed(sweep, coefficients, cast(xp, g, wide))
        if x is not None:
            wide_x, start = (None if value is None else conj(xp, cast(xp, value, wide)) for value in (x, initial))
            by_a = cast(xp, sweep.times_previous(by_b, wide_x, start), dtype)
    if initial is not None:
        head = conj(xp, cast(xp, sweep.first(a), wide))
        by_initial = cast(xp, head * cast(xp, sweep.first(by_b), wide), dtype)
    return by_a, cast(xp, by_b, dtype), by_initial


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanResult:
    """A scan and its results, for its adjoint.

    Parameters
    ----------
    op : str
        The name of the operator.
    xs, ys : tuple of array
        The elements and the results. The adjoint of a sum reads neither.
    initial : tuple of array
        The components of the initial element; empty for a scan without one.
    exclusive, include_initial : bool
        As in `scan`.
    """

    op: str
    xs: tuple[Array, ...]
    ys: tuple[Array, ...]
    initial: tuple[Array, ...]
    exclusive: bool
    include_initial: bool


def scan_adjoint(
    sweep: Sweep, solver: Solver, result: ScanResult, gs: tuple[Any, ...]
) -> tuple[tuple[Array | None, ...], tuple[Array | None, ...]]:
    """Return the derivatives by the elements and by initial of a scan, given the derivatives gs by its results.

    A derivative that is zero may be None.
    """
    xp, axis = sweep.xp, sweep.axis
    xs, initial, exclusive = result.xs, result.initial, result.exclusive
    if result.op == "add":
        assert solver.sums is not None
        (g,) = gs
        wide = cast(xp, g, compute_dtype(xp, g.dtype))
        g = sweep.rest(g) if result.include_initial else g
        by_x = solver.sums(g, axis=axis, exclusive=exclusive, reverse=not sweep.reverse, method=solver.method)
        return (by_x,), tuple(cast(xp, xp.sum(wide, axis=axis, keepdims=True), g.dtype) for _ in initial)
    by_a, by_xs, by_initial = None, [], []
    for index, (y, g) in enumerate(zip(result.ys, gs, strict=True)):
        by_b = by_start = None
        if g is not None:
            wide = compute_dtype(xp, g.dtype)
            y, cotangent = cast(xp, y, wide), cast(xp, g, wide)
            head = sweep.first(cotangent)
            if result.include_initial:
                y, cotangent = sweep.rest(y), sweep.rest(cotangent)
            elif exclusive and xs[0].shape[axis]:
                # Inclusive results are the exclusive results moved by one place; the last has no derivative.
                y = sweep.following(y)
                cotangent = sweep.backward.join(xp.zeros_like(head), sweep.rest(cotangent))
            start = initial[index] if initial else None if index else filled(xp, 1, y, axis)
            part, by_b, by_start = adjoint(sweep, solver, cast(xp, xs[0], wide), cotangent, x=y, initial=start)
            by_a = part if by_a is None or part is None else by_a + part
            by_b = cast(xp, by_b, g.dtype)
            if by_start is not None and (result.include_initial or (exclusive and xs[0].shape[axis])):
                by_start = head + by_start
        by_xs.append(by_b)
        by_initial.append(None if g is None or by_start is None else cast(xp, by_start, g.dtype))
    return (by_a, *by_xs[1:]), tuple(by_initial) if initial else ()


def conj(xp: Namespace, x: Array) -> Array:
    """Return the complex conjugate; a real array itself."""
    return xp.conj(x) if dtype_kind(x.dtype) == "complex" else x

"""Derivatives of the scans by sum, product and affine map, the linear recurrence, sorts, and matrix products.

A derivative of any of these is itself a linear recurrence, of a sort its permutation, of a product two products, so a
method need not know of derivatives. PyTorch's and JAX's rules are in `_derivatives`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import array_api_compat

from parprims._core.arrays import Array, Namespace, along, cast, compute_dtype, device, dtype_kind, filled, namespace_of
from parprims._core.memo import Memo
from parprims._dispatch.dispatch import Abstract, Checked, Methods, behind, recalled
from parprims._libraries.settings import asked_for as asked_for
from parprims._libraries.settings import autocast, forward_asked, transformed
from parprims._operators.operator import BUILT_IN, Operator
from parprims._primitives.reduce import call as reduce_call
from parprims._primitives.sort.call import Sorting, index_dtype

Solve = Callable[..., Array]
"""A function with the signature of `linear_recurrence`."""

OPERATORS = tuple(BUILT_IN[name] for name in ("add", "multiply", "affine"))
"""The operators whose scans have rules."""


def recurrence(methods: Methods, method: str, xp: Namespace, r: Any) -> Array:
    """Return the solution by a method, with its derivative where one may be asked for."""
    rules = _rules(xp)
    if isinstance(method, Abstract) or rules is None or not rules.wanted(r.arrays) or not _has_derivative(r.dtype):
        return methods(method, xp, r)
    if any(x.dtype != r.dtype for x in r.inputs):
        arrays = (*(cast(xp, x, r.dtype) for x in r.inputs), *r.starts)
        r = dataclasses.replace(r, arrays=arrays, key=None)
    if array_api_compat.is_torch_namespace(xp):
        return methods(method, xp, r)  # each of which carries the derivative, see `solution`
    return rules.recurrence(methods, method, xp, r)


def solution(xp: Namespace, r: Any, run: Callable[..., Array], method: str) -> Callable[..., Array]:
    """Return what solves a linear recurrence, with the derivative on PyTorch where one may be asked for."""
    if array_api_compat.is_torch_namespace(xp) and _rules(xp).wanted(r.arrays) and _has_derivative(r.dtype):
        differentiable: Callable[..., Array] = _rules(xp).solution(run, r.shape, xp, r.axis, r.reverse, method)
        return differentiable
    return run


def by_operations(
    xp: Namespace,
    arrays: tuple[Array, ...],
    run: Callable[..., tuple[Array, ...]],
    operations: Callable[[], Callable[..., Any]],
) -> Callable[..., tuple[Array, ...]]:
    """Return a function of arrays like these, with the derivative on PyTorch where one may be asked for.

    The derivative is taken through the function that ``operations`` returns, an equivalent in library operations.
    """
    if array_api_compat.is_torch_namespace(xp) and _rules(xp).wanted(arrays):
        differentiable: Callable[..., tuple[Array, ...]] = _rules(xp).by_operations(run, operations())
        return differentiable
    return run


def scan(methods: Methods, method: str, xp: Namespace, r: Any) -> Any:
    """Return the scan by a method, with its derivative where one may be asked for."""
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
        """Cast; where no cast is asked for the method takes the elements as they are, 16 bits wide perhaps."""
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
        _scans.keep(r.key, run if complete is None else lambda compute, *given: run(compute, *complete(*given)))
    return run(lambda *arrays: methods(method, xp, inner.on(*arrays)), *r.arrays)


_scans: Memo[Callable[..., Any]] = Memo()


def recalled_scan(key: Any) -> Callable[..., Any] | None:
    """Return what computed the scan of a key before, with its derivative by a rule, or None."""
    found = _scans.get(key)
    compute = None if found is None else recalled(("by a rule", key))
    return None if found is None or compute is None else functools.partial(found, compute)


def reduction(methods: Methods, method: str, xp: Namespace, r: Any) -> Any:
    """Return the reduction by a method; its derivative is that of the operations, of a largest or smallest ours."""
    if isinstance(method, Abstract):
        return reduce_call.empty(xp, r)
    # What a rule is given computes without the derivative, and is not what the call is to find again.
    if methods.primitive == "vecdot" and autocast(xp) and _rules(xp).wanted(r.arrays):
        # Autocast would take the library's own derivative where the backward pass is under it too.
        return _rules(xp).vecdot(methods, method, xp, dataclasses.replace(r, key=None))
    if method == "array" and r.single and r.fn is None and r.op in (BUILT_IN["maximum"], BUILT_IN["minimum"]):
        rules = _rules(xp)
        if array_api_compat.is_torch_namespace(xp) and rules.wanted(r.arrays) and r.n and r.initial is None:
            return rules.extremum(methods, method, xp, dataclasses.replace(r, key=None))
    return methods(method, xp, r)


def tridiagonal(methods: Methods, method: str, xp: Namespace, s: Any) -> Array:
    """Return the solution of tridiagonal systems by a method, with its derivative where one may be asked for."""
    if isinstance(method, Abstract):
        return xp.empty(s.shape, dtype=s.rhs.dtype, device=device(s.rhs))
    rules = _rules(xp)
    if rules is None or not rules.wanted(s.arrays):
        return methods(method, xp, s)
    return rules.tridiagonal(methods, method, xp, s.for_rhs(xp.broadcast_to(s.rhs, s.shape)))


def linear_system(
    xp: Namespace, matrix: Any, solve: Callable[..., Array], coefficients: tuple[Array, ...], b: Array
) -> Array:
    """Return the solutions of linear systems, with their derivatives of every order where one may be asked for.

    ``solve`` takes the namespace, a matrix, its coefficients and b. A matrix knows its products, its transpose and the
    derivatives by its coefficients; `banded.matrix.Matrix` is one.
    """
    rules = _rules(xp)
    if rules is None or not any(map(asked_for, (*coefficients, b))):
        return solve(xp, matrix, coefficients, b)
    found: Array = rules.linear_system(xp, matrix, solve, coefficients, b)
    return found


def sorting(methods: Methods, method: str, xp: Namespace, s: Sorting) -> tuple[Array, ...]:
    """Return what a sort asks for by a method, with its derivative where one may be asked for."""
    if isinstance(method, Abstract):
        dtypes = [one.dtype for one in s.arrays] if s.keyed else [index_dtype(xp)]
        return tuple(xp.empty(s.keys.shape, dtype=dtype, device=device(s.keys)) for dtype in dtypes)
    rules = _rules(xp)
    if rules is not None and not s.keyed:
        s = s.on(rules.constant(s.keys))  # indices have no derivative
    elif rules is not None and rules.wanted(s.arrays) and not _by_library(methods, method, xp, s):
        moved: tuple[Array, ...] = rules.sorting(methods, method, xp, s)
        return moved
    result: tuple[Array, ...] = methods(method, xp, s)
    return result


def product(xp: Namespace, p: Any, run: Callable[..., Array], method: str) -> Callable[..., Array]:
    """Return what multiplies two matrices, with the derivative on PyTorch where one may be asked for.

    With JAX what runs the kernel carries it. The derivative is computed by the method that was asked for.
    """
    if p.ring and array_api_compat.is_torch_namespace(xp) and _rules(xp).wanted(p.arrays) and _has_derivative(p.dtype):
        differentiable: Callable[..., Array] = _rules(xp).product(
            run, precision=p.precision, kernel=p.kernel, method=method
        )
        return differentiable
    return run


def product_under_autocast(xp: Namespace, p: Any, run: Callable[..., Array], method: str) -> Callable[..., Array]:
    """Return the same for a way whose own derivative would be taken by autocast where the backward pass is under it."""
    return product(xp, p, run, method) if autocast(xp) else run


def detached(x: Array) -> Array:
    """Return an array by which PyTorch is asked for no derivative."""
    return x.detach() if hasattr(x, "detach") else x


def asked_by_torch(arrays: Iterable[Array]) -> bool:
    """Return whether PyTorch may ask for a derivative by one of these arrays."""
    return any(array_api_compat.is_torch_array(x) and asked_for(x) for x in arrays)


def constant(x: Array) -> Array:
    """Return an array by which no derivative is asked for."""
    rules = _rules(namespace_of(x))
    return x if rules is None else rules.constant(x)


def own_refusal(xp: Namespace, op: Operator) -> str | None:
    """Return the sentence why a library's own routine for an operator has no right derivative here, or None."""
    if not array_api_compat.is_torch_namespace(xp):
        return None
    if op is BUILT_IN["multiply"] and forward_asked():
        return "a forward derivative is under way, and those of PyTorch's own products are wrong at zeros"
    if op is BUILT_IN["logaddexp"] and transformed():
        return (
            "a transformation of torch.func or a forward derivative is under way, and the derivative of PyTorch's own "
            "logcumsumexp is NaN behind minus infinity"
        )
    return None


def _by_library_faster(xp: Namespace, op: Operator) -> bool:
    """Return whether the library's own derivative of its scan is faster than ours, which JAX has in one program."""
    return op is BUILT_IN["multiply"] or array_api_compat.is_torch_namespace(xp)


def _by_library(methods: Methods, method: str, xp: Namespace, call: Checked) -> bool:
    """Return whether the library's own routine would compute a call whose derivative is asked for by our rules."""
    return methods.chosen(method, xp, call.on(*map(detached, call.arrays))) == "native"


@functools.cache
def _rules(xp: Namespace) -> Any:
    """Return the module with the rules of a library, or None if it has no derivatives."""
    if array_api_compat.is_torch_namespace(xp):
        return behind["derivatives on PyTorch"]()
    return behind["derivatives on JAX"]() if array_api_compat.is_jax_namespace(xp) else None


def _has_derivative(dtype: Any) -> bool:
    return dtype_kind(dtype) in ("float", "complex")


# ---- Elements in the order of a scan, which starts at the end if reverse ----------------------------------------


def first(x: Array, axis: int, reverse: bool) -> Array:
    """Return the first element, or nothing of an empty array."""
    return x[_first(x, axis, reverse)]


def _first(x: Array, axis: int, reverse: bool) -> tuple[Any, ...]:
    return along(axis, max(x.shape[axis] - 1, 0), None) if reverse else along(axis, 0, 1)


def rest(x: Array, axis: int, reverse: bool) -> Array:
    """Return all elements but the first."""
    return x[along(axis, 0, max(x.shape[axis] - 1, 0)) if reverse else along(axis, 1, None)]


def join(xp: Namespace, one: Array, others: Array, axis: int, reverse: bool) -> Array:
    """Return the elements with one more before them."""
    return xp.concat([others, one] if reverse else [one, others], axis=axis)


def previous(xp: Namespace, x: Array, start: Array, axis: int, reverse: bool) -> Array:
    """Return for every element the one before it: for w x y z the elements start w x y."""
    return join(xp, start, rest(x, axis, not reverse), axis, reverse)


def times_previous(xp: Namespace, c: Array, x: Array, start: Array | None, axis: int, reverse: bool) -> Array:
    """Return for every element c times the x before it, which for the first is start, and the product 0 without one.

    So a first coefficient that is not read has no derivative, even where others are infinite.
    """
    if start is not None:
        return c * previous(xp, x, start, axis, reverse)
    products = rest(c, axis, reverse) * rest(x, axis, not reverse)
    return join(xp, filled(xp, 0, products, axis), products, axis, reverse) if c.shape[axis] else c


def following(xp: Namespace, x: Array, axis: int, reverse: bool) -> Array:
    """Return for every element the one after it: for w x y z the elements x y z w."""
    if x.shape[axis] <= 1 or (hasattr(x, "stride") and x.stride(axis) == 0):
        return x
    return join(xp, first(x, axis, reverse), rest(x, axis, reverse), axis, not reverse)


# ---- Adjoints: derivatives by what went in, given those by what came out ----------------------------------------


def adjoint(
    xp: Namespace,
    a: Array,
    x: Array | None,
    g: Array,
    initial: Array | None,
    axis: int,
    reverse: bool,
    method: str,
    *,
    solve: Solve,
    fused: Callable[..., Any] | None = None,
) -> tuple[Array | None, Array, Array | None]:
    """Return the derivatives by a, b and initial of a recurrence with solution x, given g, that by x.

    That by b is the recurrence l[n] = g[n] + conj(a[n+1]) l[n+1] from the other end, that by a is l[n] conj(x[n-1])
    and that by initial conj(a[0]) l[0]. Without x there is none by a, without initial none by initial. 16-bit floats
    are computed in float32 and rounded once, l[0] once more in what it is multiplied with where ``fused``, a function
    like `recurrence.public.adjoint`, finds the derivatives by b and a at once.
    """
    if g.shape[axis] == 0:
        return a, g, None if initial is None else xp.zeros_like(initial)
    dtype = g.dtype
    wide = compute_dtype(xp, dtype)
    by_a = by_initial = None
    found = None if fused is None else fused(xp, a, g, x, axis, reverse, method)
    if found is not None:
        by_b, by_a = found
        if by_a is not None and initial is not None:
            start = conj(xp, cast(xp, initial, wide))
            by_a[_first(by_a, axis, reverse)] = cast(xp, start * cast(xp, first(by_b, axis, reverse), wide), dtype)
    else:
        coefficients = conj(xp, cast(xp, a, wide))
        by_b = transposed(xp, coefficients, cast(xp, g, wide), axis, reverse, method, solve)
        if x is not None:
            wide_x, start = (None if one is None else conj(xp, cast(xp, one, wide)) for one in (x, initial))
            by_a = cast(xp, times_previous(xp, by_b, wide_x, start, axis, reverse), dtype)
    if initial is not None:
        head = conj(xp, cast(xp, first(a, axis, reverse), wide))
        by_initial = cast(xp, head * cast(xp, first(by_b, axis, reverse), wide), dtype)
    return by_a, cast(xp, by_b, dtype), by_initial


def transposed(xp: Namespace, a: Array, g: Array, axis: int, reverse: bool, method: str, solve: Solve) -> Array:
    """Return l[n] = g[n] + a[n+1] l[n+1]."""
    return solve(following(xp, a, axis, reverse), g, axis=axis, reverse=not reverse, method=method)


def scan_adjoint(
    xp: Namespace,
    op: str,
    xs: tuple[Array, ...],
    ys: tuple[Array, ...],
    initial: tuple[Array, ...],
    gs: tuple[Any, ...],
    axis: int,
    exclusive: bool,
    reverse: bool,
    include_initial: bool,
    method: str,
    *,
    solve: Solve,
    sums: Solve,
    fused: Callable[..., Any] | None = None,
) -> tuple[tuple[Array | None, ...], tuple[Array | None, ...]]:
    """Return the derivatives by the elements and by initial of a scan with results ys, given gs, those by ys.

    A sum has no need of xs and ys. A scan without initial has an empty one, and a g that is zero may be None.
    """
    if op == "add":
        (g,) = gs
        g = rest(g, axis, reverse) if include_initial else g
        by_x = sums(g, axis=axis, exclusive=exclusive, reverse=not reverse, method=method)
        wide = cast(xp, g, compute_dtype(xp, g.dtype))
        return (by_x,), tuple(cast(xp, xp.sum(wide, axis=axis, keepdims=True), g.dtype) for _ in initial)
    by_a, by_xs, by_initial = None, [], []
    for index, (y, g) in enumerate(zip(ys, gs, strict=True)):
        by_b = by_start = None
        if g is not None:
            wide = compute_dtype(xp, g.dtype)
            y, cotangent = cast(xp, y, wide), cast(xp, g, wide)
            head = first(cotangent, axis, reverse)
            if include_initial:
                y, cotangent = rest(y, axis, reverse), rest(cotangent, axis, reverse)
            elif exclusive and xs[0].shape[axis]:
                # As for the inclusive scan: its results are those that follow, and its last one does not count.
                y = following(xp, y, axis, reverse)
                cotangent = join(xp, xp.zeros_like(head), rest(cotangent, axis, reverse), axis, not reverse)
            start = initial[index] if initial else None if index else filled(xp, 1, y, axis)
            part, by_b, by_start = adjoint(
                xp, cast(xp, xs[0], wide), y, cotangent, start, axis, reverse, method, solve=solve, fused=fused
            )
            by_a = part if by_a is None or part is None else by_a + part
            by_b = cast(xp, by_b, g.dtype)
            if exclusive and by_start is not None and xs[0].shape[axis]:
                by_start = head + by_start
        by_xs.append(by_b)
        by_initial.append(None if g is None or by_start is None else cast(xp, by_start, g.dtype))
    return (by_a, *by_xs[1:]), tuple(by_initial) if initial else ()


def conj(xp: Namespace, x: Array) -> Array:
    """Return the complex conjugate; a real array itself."""
    return xp.conj(x) if dtype_kind(x.dtype) == "complex" else x

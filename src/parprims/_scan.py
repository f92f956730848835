"""Scan: y[i] = x[0] op x[1] op ... op x[i], in that order; and the linear recurrence, a scan of affine maps."""

from __future__ import annotations

import functools
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims import _derivatives
from parprims._arrays import (
    Array,
    Namespace,
    along,
    as_array,
    cast,
    check_kind,
    compute_dtype,
    device,
    dtype_kind,
    dtype_name,
    namespace,
    normalize_axis,
    ring_dtype,
    sum_dtype,
)
from parprims._dispatch import Method, Methods
from parprims._operators import BUILT_IN, Operator, as_operator, check_components

Inclusive = Callable[[Namespace, tuple[Array, ...], Operator, int], tuple[Array, ...]]
"""Scans two elements or more along an axis counted from the front, as `inclusive` does."""

_FEW = 8192
"""Elements up to which step doubling beats pairing on NumPy, where calls and not elements take the time.

Measured on shapes from (8192,) to (10000, 2) along either axis: what counts is the size of the whole array.
"""


def scan(
    x: Array | tuple[Array, ...],
    /,
    op: str | Operator | Callable[[Any, Any], Any] = "add",
    *,
    axis: int = -1,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    dtype: Any = None,
    method: str = "auto",
) -> Any:
    """Combine every element with all before it along an axis: y[i] = x[0] op x[1] op ... op x[i].

    Parameters
    ----------
    x : array or tuple of array
        The elements, of any shape and any dtype the operator takes. A tuple of arrays of equal shape is read as
        elements of several components.
    op : str, Operator or callable
        The operator: a built-in name (add, multiply, maximum, minimum, logical_and, logical_or, bitwise_and,
        bitwise_or, bitwise_xor, logaddexp, affine, argmax, argmin, welford), an `Operator`, or an associative
        function ``combine(earlier, later)``. It need not be commutative.
    axis : int
        The axis to scan along.
    exclusive : bool
        Whether y[i] leaves x[i] out: y[i] = x[0] op ... op x[i-1], and y[0] is ``initial`` or the identity.
    reverse : bool
        Whether the scan starts at the end: the array is flipped, scanned and flipped back, so that
        y[i] = x[n-1] op ... op x[i+1] op x[i]. The element nearer to the end is then the earlier one.
    initial : scalar, array or tuple, optional
        An element that every result begins with: y[i] = initial op x[0] op ... op x[i]. Its shape broadcasts to
        that of x without the axis.
    dtype : dtype or tuple of dtype, optional
        What elements are cast to before they are combined, one for each component. By default add and multiply
        widen integers as the standard's ``cumulative_sum`` does and every other operator keeps the dtype.
    method : {"auto", "native", "array"}
        Who computes.

    Returns
    -------
    array or tuple of array
        The combinations, of the shape of x. A tuple for a tuple.

    Raises
    ------
    TypeError
        If x is no array, arrays come from several libraries, or a dtype does not suit the operator.
    ValueError
        If shapes differ, an argument has an unknown value, or an exclusive scan has neither ``initial`` nor an
        identity to start with.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: array combines about 2n times in 2 log2 n steps; arrays of at most 8192 elements are combined
    n log2 n times in log2 n steps.
    Traffic and launches: array reads and writes about 12n elements.
    Error: within 4 log2 n units in the last place of sum |x[0..i]| for a sum by array, n units by a library that
    adds one after another; 16-bit floats are combined in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run, by array.
    Methods: native (operators the library can scan with; any operator on JAX), array.
    Derivatives: add, multiply and affine are differentiable on PyTorch (backward, of any order) and JAX (forward and
    backward, of any order) by every method, by scans and linear recurrences of the same method where it can; no
    division, so zeros are factors like others. A product by the library's own routine has the library's own
    derivative, and so have the other operators, which the kernel does not differentiate. torch.compile keeps a
    built-in operator as one node of its graph.
    Reference: Hillis and Steele, Data Parallel Algorithms, CACM 29(12), 1986; Blelloch, Prefix Sums and Their
    Applications, CMU-CS-90-190, 1990.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x = np.array([3, 1, 4, 1])
    >>> parprims.scan(x)
    array([3, 4, 8, 9])
    >>> parprims.scan(x, exclusive=True)
    array([0, 3, 4, 8])
    >>> parprims.scan(x, "maximum", reverse=True)
    array([4, 4, 4, 1])
    """
    return _scan("scan", x, op, axis, exclusive, reverse, initial, dtype, False, method)


def cumulative_sum(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
    method: str = "auto",
) -> Array:
    """Sum every element with all before it along an axis: the array API standard's ``cumulative_sum``.

    Parameters
    ----------
    x : array
        The terms, of any shape and numeric dtype; bool counts as an integer.
    axis : int or None
        The axis to sum along; None only for an array of one dimension.
    dtype : dtype, optional
        What terms are cast to first. By default integers narrower than the default integer widen to it.
    include_initial : bool
        Whether the empty sum, 0, comes first; the result is then longer by one.
    method : {"auto", "native", "array"}
        Who computes, as in `scan`, whose errors and notes apply.

    Returns
    -------
    array
        The sums, of the shape of x, or one longer along the axis.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.cumulative_sum(np.array([1, 2, 3]), include_initial=True)
    array([0, 1, 3, 6])
    """
    return _scan("cumulative_sum", _only_array(x), "add", axis, False, False, None, dtype, include_initial, method)


def cumulative_prod(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
    method: str = "auto",
) -> Array:
    """Multiply every element with all before it along an axis: the array API standard's ``cumulative_prod``.

    Parameters
    ----------
    x : array
        The factors, of any shape and numeric dtype; bool counts as an integer.
    axis : int or None
        The axis to multiply along; None only for an array of one dimension.
    dtype : dtype, optional
        What factors are cast to first. By default integers narrower than the default integer widen to it.
    include_initial : bool
        Whether the empty product, 1, comes first; the result is then longer by one.
    method : {"auto", "native", "array"}
        Who computes, as in `scan`, whose errors and notes apply.

    Returns
    -------
    array
        The products, of the shape of x, or one longer along the axis.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.cumulative_prod(np.array([1, 2, 3, 4]))
    array([ 1,  2,  6, 24])
    """
    return _scan(
        "cumulative_prod", _only_array(x), "multiply", axis, False, False, None, dtype, include_initial, method
    )


def linear_recurrence(
    a: Array,
    b: Array,
    /,
    *,
    axis: int = -1,
    initial: Any = None,
    reverse: bool = False,
    method: str = "auto",
) -> Array:
    """Solve the first-order linear recurrence x[n] = a[n] x[n-1] + b[n] along an axis.

    Parameters
    ----------
    a, b : array
        The coefficients and the right-hand side, of numeric dtypes that promote together without a change between
        integers and floats, and of shapes that broadcast against each other; ``a`` may be a constant of no
        dimension.
    axis : int
        The axis of the broadcast shape along which n counts.
    initial : scalar or array, optional
        The element x[-1] before the first, of a shape that broadcasts to that of the result without the axis.
        Without it x[0] = b[0] and a[0] is not read.
    reverse : bool
        Whether the recurrence starts at the end: x[n] = a[n] x[n+1] + b[n], ``initial`` being the element after
        the last.
    method : {"auto", "native", "array"}
        Who computes.

    Returns
    -------
    array
        The solution x, of the broadcast shape and the promoted dtype.

    Raises
    ------
    TypeError
        If an argument is no array, arrays come from several libraries, or their dtypes do not promote together.
    ValueError
        If shapes do not broadcast or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: about 4n multiplications and 3n additions in 2 log2 n steps (array).
    Traffic and launches: array reads and writes about 50n elements, far fewer where the library fuses operations.
    Error: within 2n units in the last place of the same recurrence for |a| and |b|, as in the sequential loop (three
    times that for complex numbers). 16-bit floats are computed in float32 and rounded once; integers
    are exact, modulo the range of their dtype.
    Special values: an infinity or NaN in b, or in a, makes that element and all after it infinite or NaN, as in the
    loop, though not always the same of the two. A product of consecutive coefficients that overflows is harmless
    where the next coefficient, or the element it applies to, is zero; applied to an element too small to overflow
    itself it gives an infinity or NaN where the loop stays finite. Behind an element that overflows in the loop
    nothing is promised.
    Reproducibility: the same input gives the same bits, run after run, by array.
    Methods: native (JAX; a constant ``a`` on NumPy with SciPy), array.
    Derivatives: by a, b and initial on PyTorch (backward, of any order) and JAX (forward and backward, of any order),
    by every method. With g the derivative by x, that by b is the recurrence l[n] = g[n] + conj(a[n+1]) l[n+1], by the
    same method where it can, and that by a is l[n] conj(x[n-1]); on JAX nothing is conjugated. 16-bit floats are
    computed in float32 and rounded once. torch.compile keeps the call as one node of its graph.
    Reference: Kogge and Stone, A Parallel Algorithm for the Efficient Solution of a General Class of Recurrence
    Equations, IEEE Trans. Comput. C-22(8), 1973; Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.linear_recurrence(np.array([2.0, 3.0, 0.0, 2.0]), np.array([1.0, 1.0, 5.0, 1.0]))
    array([ 1.,  4.,  5., 11.])
    >>> parprims.linear_recurrence(np.asarray(0.5), np.zeros(4), initial=16.0)
    array([8., 4., 2., 1.])
    """
    if _derivatives.compiling((a, b)):
        from parprims import _derivatives_torch

        return _derivatives_torch.compiled_recurrence(a, b, axis, initial, reverse, method)
    xp = namespace(a=a, b=b)
    dtype = _promoted(xp, a, b)
    try:
        wide_a, wide_b = xp.broadcast_arrays(a, b)
    except (ValueError, RuntimeError, TypeError):
        raise ValueError(f"a and b must broadcast against each other, got shapes {a.shape} and {b.shape}") from None
    index = normalize_axis(axis, wide_b.ndim)
    start = None if initial is None else _start(xp, initial, wide_b, dtype, index)
    recurrence = _Recurrence(wide_a, wide_b, a.ndim == 0, index, start, reverse, dtype)
    return _derivatives.recurrence(_METHODS["linear_recurrence"], method, xp, recurrence)


def _only_array(x: Array) -> Array:
    if isinstance(x, tuple):
        raise TypeError("x must be an array, got tuple")
    return x


class _Scan:
    """One call of a scan, checked: what every method is given.

    ``xs`` have one shape; ``working`` are the dtypes they are combined in, ``dtypes`` those of the result, which has
    length ``n`` along the axis. ``initial`` holds arrays of length 1 along the axis and ``identity`` scalars; one of
    them is there where a result needs something to begin with, never both.
    """

    __slots__ = ("axis", "dtypes", "exclusive", "identity", "initial", "n", "op", "reverse", "single", "working", "xs")

    def __init__(
        self,
        xs: tuple[Array, ...],
        single: bool,
        op: Operator,
        axis: int,
        exclusive: bool,
        reverse: bool,
        initial: tuple[Array, ...] | None,
        identity: tuple[Any, ...] | None,
        n: int,
        working: tuple[Any, ...],
        dtypes: tuple[Any, ...],
    ) -> None:
        self.xs, self.single, self.op, self.axis, self.exclusive, self.reverse = (
            xs,
            single,
            op,
            axis,
            exclusive,
            reverse,
        )
        self.initial, self.identity, self.n, self.working, self.dtypes = initial, identity, n, working, dtypes


def _scan(
    primitive: str,
    x: Any,
    op: Any,
    axis: Any,
    exclusive: bool,
    reverse: bool,
    initial: Any,
    dtype: Any,
    include_initial: bool,
    method: str,
) -> Any:
    """Check a call of any public scan and hand it to a method."""
    operator = as_operator(op)
    single = not isinstance(x, tuple)
    xs: tuple[Array, ...] = (x,) if single else x
    if not xs:
        raise ValueError("x must hold at least one array")
    if _derivatives.compiling(xs):
        from parprims import _derivatives_torch

        if _derivatives_torch.can_compile(xs, operator, initial):
            options = (primitive, axis, exclusive, reverse, include_initial, method)
            return _derivatives_torch.compiled_scan(xs, single, operator, initial, dtype, options)
    xp = namespace(**{"x" if single else f"x[{index}]": one for index, one in enumerate(xs)})
    if any(one.shape != xs[0].shape for one in xs):
        raise ValueError(f"x must be arrays of equal shape, got {', '.join(str(one.shape) for one in xs)}")
    if axis is None and xs[0].ndim != 1:
        raise ValueError(f"axis must be given for an array of {xs[0].ndim} dimensions")
    index = normalize_axis(-1 if axis is None else axis, xs[0].ndim)
    dtypes = _dtypes(xp, operator, tuple(one.dtype for one in xs), dtype)
    working = tuple((ring_dtype if operator in _SUMS else compute_dtype)(xp, one) for one in dtypes)
    start = identity = None
    if initial is not None:
        given = initial if isinstance(initial, tuple) else (initial,)
        _check_entries("initial", given, xs)
        start = tuple(_start(xp, value, one, to, index) for value, one, to in zip(given, xs, dtypes, strict=True))
    elif exclusive or include_initial:
        identity = operator.identity(*(dtype_name(one) for one in working))
        if identity is None:
            raise ValueError(f"initial must be given for an exclusive scan, for op {operator.name} has no identity")
    n = xs[0].shape[index] + include_initial
    r = _Scan(xs, single, operator, index, exclusive, reverse, start, identity, n, working, dtypes)
    return _derivatives.scan(_METHODS[primitive], method, xp, r)


_SUMS = (BUILT_IN["add"], BUILT_IN["multiply"])


def _check_entries(name: str, given: tuple[Any, ...], xs: tuple[Any, ...]) -> None:
    if len(given) != len(xs):
        raise ValueError(f"{name} must have {len(xs)} entries, one per component, got {len(given)}")


def _dtypes(xp: Namespace, op: Operator, dtypes: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    """Return the dtype of each component of the result; raise, naming the argument, where the operator has none."""
    if dtype is not None:
        given = dtype if isinstance(dtype, tuple) else (dtype,)
        _check_entries("dtype", given, dtypes)
        dtypes = given
    elif op in _SUMS:
        dtypes = tuple(sum_dtype(xp, one) for one in dtypes)
    check_components(op, dtypes)
    return dtypes


def _start(xp: Namespace, initial: Any, like: Array, dtype: Any, axis: int) -> Array:
    """Return the initial element as an array of the dtype, shaped like another but of length 1 along the axis."""
    shape = (*like.shape[:axis], *like.shape[axis + 1 :])
    start = as_array("initial", initial, xp, dtype, device(like), shape)
    return xp.expand_dims(start, axis=axis)


def _result(xp: Namespace, r: _Scan, inclusive: Inclusive) -> Any:
    """Return the result of a call, given what scans inclusively from the front."""
    axis = r.axis
    xs = tuple(cast(xp, x, dtype) for x, dtype in zip(r.xs, r.working, strict=True))
    if r.reverse:
        xs = tuple(xp.flip(x, axis=axis) for x in xs)
    if r.exclusive:
        xs = tuple(x[along(axis, 0, max(x.shape[axis] - 1, 0))] for x in xs)
    if r.initial is not None:
        xs = tuple(xp.concat([cast(xp, start, x.dtype), x], axis=axis) for start, x in zip(r.initial, xs, strict=True))
    # An element alone is copied, for a result never shares memory with an input.
    ys = inclusive(xp, xs, r.op, axis) if xs[0].shape[axis] > 1 else tuple(xp.concat([x], axis=axis) for x in xs)
    if r.identity is not None:
        ys = tuple(
            xp.concat([_full(xp, value, y, axis), y], axis=axis) for value, y in zip(r.identity, ys, strict=True)
        )
    # What is too much stands in front: the initial element itself, or all of an exclusive scan of nothing.
    extra = ys[0].shape[axis] - r.n
    if extra:
        ys = tuple(y[along(axis, extra, None)] for y in ys)
    if r.reverse:
        ys = tuple(xp.flip(y, axis=axis) for y in ys)
    ys = tuple(cast(xp, y, dtype) for y, dtype in zip(ys, r.dtypes, strict=True))
    return ys[0] if r.single else ys


def _full(xp: Namespace, value: Any, like: Array, axis: int) -> Array:
    """Return an array filled with a value, like another but of length 1 along the axis."""
    return xp.full((*like.shape[:axis], 1, *like.shape[axis + 1 :]), value, dtype=like.dtype, device=device(like))


def inclusive(xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the inclusive scan along an axis counted from the front, in order, by pairs.

    Neighbours are combined and the pairs scanned; that gives every second result, and the others are one
    combination more: for w x y z the pairs wx and yz scan to wx and wxyz, and wxy is wx combined with y.
    """
    n = xs[0].shape[axis]
    if n <= 2 or math.prod(xs[0].shape) <= _FEW:
        return _by_doubling(xp, xs, op, axis)
    firsts, seconds = along(axis, 0, n - 1, 2), along(axis, 1, n, 2)
    odd = inclusive(xp, op(tuple(x[firsts] for x in xs), tuple(x[seconds] for x in xs)), op, axis)
    before, rest = along(axis, 0, (n - 1) // 2), along(axis, 2, n, 2)
    even = op(tuple(y[before] for y in odd), tuple(x[rest] for x in xs))
    return tuple(_interleave(xp, x, e, o, axis) for x, e, o in zip(xs, even, odd, strict=True))


def _interleave(xp: Namespace, x: Array, even: Array, odd: Array, axis: int) -> Array:
    """Return x[0], odd[0], even[0], odd[1], even[1], ... along the axis, of the shape of x."""
    half = odd.shape[axis]
    even = xp.concat([x[along(axis, 0, 1)], even], axis=axis)
    pairs = xp.stack([even[along(axis, 0, half)], odd], axis=axis + 1)
    joined = xp.reshape(pairs, (*x.shape[:axis], 2 * half, *x.shape[axis + 1 :]))
    return xp.concat([joined, even[along(axis, half, None)]], axis=axis) if x.shape[axis] % 2 else joined


def _by_doubling(xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the inclusive scan by step doubling: after step s, element i combines the 2s that end with it."""
    n = xs[0].shape[axis]
    step = 1
    while step < n:
        combined = op(
            tuple(x[along(axis, 0, n - step)] for x in xs),
            tuple(x[along(axis, step, n)] for x in xs),
        )
        xs = tuple(xp.concat([x[along(axis, 0, step)], y], axis=axis) for x, y in zip(xs, combined, strict=True))
        step *= 2
    return xs


def _array(xp: Namespace, r: _Scan) -> Any:
    """Return the scan by pairs and step doubling."""
    return _result(xp, r, inclusive)


_TORCH = {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin", "logaddexp": "logcumsumexp"}
_JAX = {"maximum": "cummax", "minimum": "cummin", "logaddexp": "cumlogsumexp"}
_STANDARD = {"add": "cumulative_sum", "multiply": "cumulative_prod"}


def _routine(xp: Namespace, op: Operator) -> Callable[[Array, int], Array] | None:
    """Return the library's own scan of one array along an axis with the operator, or None."""
    name = op.name if BUILT_IN.get(op.name) is op and op.components is None else None
    if name is None:
        return None
    if array_api_compat.is_numpy_namespace(xp):
        ufunc = getattr(np, name)
        return lambda x, axis: ufunc.accumulate(x, axis=axis, dtype=x.dtype)
    if array_api_compat.is_torch_namespace(xp) and name in _TORCH:
        function = getattr(xp, _TORCH[name])
        if name in ("maximum", "minimum"):
            return lambda x, axis: function(x, dim=axis).values
        return lambda x, axis: function(x, dim=axis, **({} if name == "logaddexp" else {"dtype": x.dtype}))
    if array_api_compat.is_jax_namespace(xp) and name in _JAX:
        from jax import lax

        cumulative: Callable[[Array, int], Array] = getattr(lax, _JAX[name])
        return cumulative
    if name in _STANDARD and hasattr(xp, _STANDARD[name]):
        function = getattr(xp, _STANDARD[name])
        return lambda x, axis: function(x, axis=axis, dtype=x.dtype)
    return None


def _library_inclusive(xp: Namespace, xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the inclusive scan by the library's own routine: one for the operator, or JAX's for any."""
    routine = _routine(xp, op)
    if routine is not None:
        return (routine(xs[0], axis),)
    import jax

    scanned: tuple[Array, ...] = jax.lax.associative_scan(op, xs, axis=axis)
    return scanned


def _native(xp: Namespace, r: _Scan) -> Any:
    """Return the scan by the library's own routine."""
    return _result(xp, r, _library_inclusive)


def _native_refusal(xp: Namespace, r: _Scan) -> str | None:
    if array_api_compat.is_jax_namespace(xp) or _routine(xp, r.op) is not None:
        return None
    return f"{xp.__name__} has no scan with the operator {r.op.name}"


class _Recurrence:
    """One linear recurrence, checked: what every method is given.

    ``a`` and ``b`` have the shape of the result; ``initial`` has length 1 along the axis, or is None.
    """

    __slots__ = ("a", "axis", "b", "constant", "dtype", "initial", "reverse")

    def __init__(
        self, a: Array, b: Array, constant: bool, axis: int, initial: Array | None, reverse: bool, dtype: Any
    ) -> None:
        self.a, self.b, self.constant, self.axis = a, b, constant, axis
        self.initial, self.reverse, self.dtype = initial, reverse, dtype


def _promoted(xp: Namespace, a: Array, b: Array) -> Any:
    """Return the dtype of a and b together; TypeError if there is none that holds both."""
    for name, one in (("a", a), ("b", b)):
        check_kind(name, one, ("int", "uint", "float", "complex"))
    if a.dtype == b.dtype:
        return b.dtype
    kinds = (dtype_kind(a.dtype), dtype_kind(b.dtype))
    whole = tuple(kind in ("int", "uint") for kind in kinds)
    try:
        dtype = xp.result_type(a, b)
    except (TypeError, RuntimeError):
        dtype = None
    if dtype is None or whole[0] != whole[1] or dtype_kind(dtype) not in kinds:
        raise TypeError(
            f"a and b must have dtypes that promote together, got {dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
        )
    return dtype


def _solution(xp: Namespace, r: _Recurrence, solve: Callable[[Array, Array, int], Array]) -> Array:
    """Return the result of a call, given what solves from the front, without an initial element."""
    axis, n = r.axis, r.b.shape[r.axis]
    a, b = (cast(xp, one, ring_dtype(xp, r.dtype)) for one in (r.a, r.b))
    if r.reverse:
        a, b = xp.flip(a, axis=axis), xp.flip(b, axis=axis)
    if r.initial is not None and n > 0:
        first = a[along(axis, 0, 1)] * cast(xp, r.initial, b.dtype) + b[along(axis, 0, 1)]
        b = xp.concat([first, b[along(axis, 1, None)]], axis=axis)
    x = solve(a, b, axis) if n > 1 else xp.concat([b], axis=axis)
    if r.reverse:
        x = xp.flip(x, axis=axis)
    return cast(xp, x, r.dtype)


def _product(c: Array, x: Array, zero: Array) -> Array:
    """Return c x, where an overflowed c times a zero is zero."""
    xp = array_api_compat.array_namespace(c)
    product = c * x
    return xp.where((product != product) & zero, xp.zeros_like(product), product)


def _compose(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    (a, b), (c, d) = earlier, later
    return _product(c, a, (c == 0) | (a == 0)), _product(c, b, b == 0) + d


_COMPOSE = Operator(_compose, name="recurrence", components=2)


def _by_pairs(inclusive: Inclusive, xp: Namespace, a: Array, b: Array, axis: int) -> Array:
    """Return the solution of a recurrence with x[0] = b[0]: neighbours are composed by hand, the pairs scanned.

    The coefficients of pairs are products and may have overflowed, so `_compose` watches them. Those here have
    not, which spares half of the watching; one that came as an infinity or NaN is told apart from an overflow by
    making the right-hand side of its pair NaN.
    """
    n = b.shape[axis]
    one, two = along(axis, 0, 1), along(axis, 1, 2)
    evens, odds = along(axis, 2, n - 1, 2), along(axis, min(3, n), n, 2)
    c = xp.concat([a[two], a[odds] * a[evens]], axis=axis)
    nan_if_not_finite = a[evens] - a[evens]
    d = xp.concat([a[two] * b[one] + b[two], a[odds] * b[evens] + b[odds] + nan_if_not_finite], axis=axis)
    op = BUILT_IN["affine"] if dtype_kind(b.dtype) in ("int", "uint") else _COMPOSE
    odd = inclusive(xp, (c, d), op, axis)[1] if n > 3 else d
    rest = along(axis, 2, n, 2)
    even = a[rest] * odd[along(axis, 0, (n - 1) // 2)] + b[rest]
    return _interleave(xp, b, even, odd, axis)


def _array_recurrence(xp: Namespace, r: _Recurrence) -> Array:
    """Return the solution by a scan of the affine maps x -> a x + b."""
    # NumPy need not warn of products of coefficients that overflow and leave no trace in the result.
    with np.errstate(over="ignore", invalid="ignore"):
        return _solution(xp, r, functools.partial(_by_pairs, inclusive, xp))


def _native_recurrence(xp: Namespace, r: _Recurrence) -> Array:
    """Return the solution by JAX's associative scan or by SciPy's filter."""
    if array_api_compat.is_jax_namespace(xp):
        return _solution(xp, r, functools.partial(_by_pairs, _library_inclusive, xp))
    return _solution(xp, r, _filter)


def _filter(a: Array, b: Array, axis: int) -> Array:
    from scipy.signal import lfilter

    if 0 in b.shape:
        return np.empty_like(b)
    one = np.ones((), dtype=b.dtype)
    return lfilter(np.stack([one]), np.stack([one, -a[(0,) * a.ndim]]), b, axis=axis)


@functools.cache
def _has_scipy() -> bool:
    return importlib.util.find_spec("scipy") is not None


def _native_recurrence_refusal(xp: Namespace, r: _Recurrence) -> str | None:
    if array_api_compat.is_jax_namespace(xp):
        return None
    if not array_api_compat.is_numpy_namespace(xp):
        return f"{xp.__name__} has no linear recurrence"
    if not r.constant:
        return "SciPy filters only with a constant coefficient, an array a of no dimension"
    if dtype_kind(r.dtype) in ("int", "uint"):
        return f"SciPy filters only floats, not {dtype_name(r.dtype)}"
    return None if _has_scipy() else "SciPy is not installed"


_METHODS = {
    primitive: Methods(primitive, native=Method(_native, _native_refusal), array=Method(_array))
    for primitive in ("scan", "cumulative_sum", "cumulative_prod")
} | {
    "linear_recurrence": Methods(
        "linear_recurrence",
        native=Method(_native_recurrence, _native_recurrence_refusal),
        array=Method(_array_recurrence),
    )
}

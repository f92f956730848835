"""Scan: y[i] = x[0] op x[1] op ... op x[i], in that order; and the linear recurrence, a scan of affine maps."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat
import numpy as np

from parprims import _cuda, _derivatives
from parprims._arrays import (
    Array,
    Namespace,
    admit,
    along,
    as_array,
    as_dtypes,
    as_scalar,
    cast,
    check_flag,
    check_kind,
    compute_dtype,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_scalar,
    lacks_arithmetic,
    normalize_axis,
    offers,
    quiet,
    ring_dtype,
    sum_dtype,
)
from parprims._dispatch import Method, Methods, in_graph, watched
from parprims._elements import is_structured
from parprims._operators import (
    BUILT_IN,
    Operator,
    as_operator,
    by_leaves,
    check_components,
    flags_broadcast,
    harmless,
    restarted,
)
from parprims._trace import (
    C_TYPES,
    Untraceable,
    lasting_key,
    literal,
    register_type,
    state_size,
    structures,
    trace,
    trace_combine,
)

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
    x : array, or tuple, NamedTuple or dict of array
        The elements, of any shape and any dtype the operator takes. Several arrays of equal shape are read as elements
        of several components, which may be nested (the order of a dict's is that of its keys).
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
    initial : scalar, array, or a tuple of these, optional
        An element that every result begins with: y[i] = initial op x[0] op ... op x[i]. Its shape broadcasts to
        that of x without the axis. Of several components a tuple, or made as x is.
    dtype : dtype, str or tuple of these, optional
        What elements are cast to before they are combined, one for each component, or the standard's name of it. By
        default add and multiply widen integers as the standard's ``cumulative_sum`` does and every other operator keeps
        the dtype.
    method : {"auto", "kernel", "native", "array"}
        Who computes.

    Returns
    -------
    array, or tuple, NamedTuple or dict of array
        The combinations, of the shape of x and made as x is: a NamedTuple for a NamedTuple.

    Raises
    ------
    TypeError
        If x is no array, arrays come from several libraries, or a dtype does not suit the operator. If the operator
        works in place, branches on the value of an array, or returns other than it was given.
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
    n log2 n times in log2 n steps. Kernel combines about 2n times.
    Traffic and launches: kernel reads every element and writes every result once, in one launch; array reads and
    writes about 12n elements.
    Memory besides input and result, in sizes of the result in the dtype computed in: up to 4 (array) or 3 (native,
    besides what the library takes).
    Order: elements are always combined earlier with later, so the operator need not be commutative. One that is not
    associative gives results that depend on how a method groups elements: `check_associative` tells.
    Error: a term of a sum passes at most 4 log2 n additions by array, n by a library that adds one after another,
    and n / 256 + 100 by kernel (n / 2^18 + 100 along one long float32 axis), each of which owes half a unit in the
    last place of sum |x[0..i]|; 16-bit floats are combined in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array: what is grouped with what
    depends on the shape and layout alone, not on which block of the GPU came first.
    CUDA graphs: kernels on one stream share scratch, which stays theirs and takes up to 3 % of the largest result (7 %
    in recurrences of 8-bit integers down columns), up to 4 times as much where results grew from call to call. Those
    captured into a graph have as much of the graph's, until it is destroyed, so that any graphs and calls may run at
    once.
    Methods: kernel (CUDA arrays), native (operators the library can scan with; any operator on JAX), array.
    Several devices: arrays of JAX that are sharded are refused, but inside jax.shard_map each device has an array like
    others. An array in a program being traced tells of explicit axes of a mesh only: one that is sharded over axes of
    type Auto is gathered by XLA, without a word, and every device does all the work.
    Derivatives: add, multiply and affine are differentiable on PyTorch (backward, of any order) and JAX (forward and
    backward, of any order) by every method, by scans and linear recurrences of the same method where it can; no
    division, so zeros are factors like others. A product by the library's own routine has the library's own
    derivative, and so have the other operators, which the kernel does not differentiate. torch.compile and torch.export
    are in the notes of `reduce`.
    Reference: Hillis and Steele, Data Parallel Algorithms, CACM 29(12), 1986; Blelloch, Prefix Sums and Their
    Applications, CMU-CS-90-190, 1990; Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back,
    NVR-2016-002, 2016.

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
    if isinstance(x, (tuple, dict)) and is_structured(x):
        return by_leaves(
            scan, x, op, axis=axis, exclusive=exclusive, reverse=reverse, initial=initial, dtype=dtype, method=method
        )
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
    dtype : dtype or str, optional
        What terms are cast to first. By default integers narrower than the default integer widen to it.
    include_initial : bool
        Whether the empty sum, 0, comes first; the result is then longer by one.
    method : {"auto", "kernel", "native", "array"}
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
    dtype : dtype or str, optional
        What factors are cast to first. By default integers narrower than the default integer widen to it.
    include_initial : bool
        Whether the empty product, 1, comes first; the result is then longer by one.
    method : {"auto", "kernel", "native", "array"}
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
    a, b : array or number
        The coefficients and the right-hand side, of numeric dtypes that promote together without a change between
        integers and floats, and of shapes that broadcast against each other; ``a`` may be a constant of no
        dimension. One of them may be a number, which takes the dtype of the other.
    axis : int
        The axis of the broadcast shape along which n counts.
    initial : scalar or array, optional
        The element x[-1] before the first, of a shape that broadcasts to that of the result without the axis.
        Without it x[0] = b[0] and a[0] is not read.
    reverse : bool
        Whether the recurrence starts at the end: x[n] = a[n] x[n+1] + b[n], ``initial`` being the element after
        the last.
    method : {"auto", "kernel", "native", "array"}
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
    Traffic and launches: kernel reads a and b as they are given, each element once (a constant, or one coefficient for
    each channel, costs next to nothing), and writes x once, in one launch; array reads and writes about 50n elements,
    far fewer where the library fuses operations.
    Memory besides input and result, in sizes of the result in the dtype computed in: up to 6 (array) or 3 (native).
    State: the last element of x is the ``initial`` of what follows.
    Error: within 2n units in the last place of the same recurrence for |a| and |b|, as in the sequential loop (three
    times that for complex numbers). 16-bit floats are computed in float32 and rounded once; integers
    are exact, modulo the range of their dtype.
    Special values: an infinity or NaN in b, or in a, makes that element and all after it infinite or NaN, as in the
    loop, though not always the same of the two. A product of consecutive coefficients that overflows is harmless
    where the next coefficient, or the element it applies to, is zero; applied to an element too small to overflow
    itself it gives an infinity or NaN where the loop stays finite. Behind an element that overflows in the loop
    nothing is promised.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array, as for `scan`.
    Methods: kernel (CUDA arrays), native (JAX; a constant ``a`` on NumPy with SciPy), array.
    Several devices: as for `scan`.
    Derivatives: by a, b and initial on PyTorch (backward, of any order) and JAX (forward and backward, of any order),
    by every method. With g the derivative by x, that by b is the recurrence l[n] = g[n] + conj(a[n+1]) l[n+1], by the
    same method where it can, and that by a is l[n] conj(x[n-1]); on JAX nothing is conjugated. The kernel finds both in
    one launch in PyTorch's backward pass, which reads a, g and x once (not under torch.compile or where the backward
    pass is to be differentiated). 16-bit floats are computed in float32 and rounded once, l[0] twice where initial is
    given.
    Reference: Kogge and Stone, A Parallel Algorithm for the Efficient Solution of a General Class of Recurrence
    Equations, IEEE Trans. Comput. C-22(8), 1973; Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.linear_recurrence(np.array([2.0, 3.0, 0.0, 2.0]), np.array([1.0, 1.0, 5.0, 1.0]))
    array([ 1.,  4.,  5., 11.])
    >>> parprims.linear_recurrence(0.5, np.zeros(4), initial=16.0)
    array([8., 4., 2., 1.])
    """
    if in_graph((a, b), method):
        from parprims import _torch_ops

        return _torch_ops.linear_recurrence(a, b, axis, initial, reverse, method)
    key = None
    if initial is None and not watched():
        signature = _cuda.signature((a, b), gradient=True)
        if signature is not None:
            # A call like one before goes straight to its kernel: checks and choice depend on nothing else.
            key = ("linear_recurrence", axis, type(axis), reverse, type(reverse), method, signature)
            shortcut = _cuda.recall(_shortcuts, key)
            if shortcut is not None:
                return shortcut(a, b)
    xp, (a, b) = _coefficients(a, b)
    reverse = check_flag("reverse", reverse)
    _METHODS["linear_recurrence"].check(method)
    dtype = _promoted(xp, a, b)
    try:
        shape = xp.broadcast_arrays(a, b)[0].shape
    except (ValueError, RuntimeError, TypeError):
        raise ValueError(
            f"a and b must broadcast against each other, got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        ) from None
    index = normalize_axis(axis, len(shape))
    constant = a.ndim == 0
    a, b = (x if x.ndim == len(shape) else xp.reshape(x, (1,) * (len(shape) - x.ndim) + x.shape) for x in (a, b))
    start = None if initial is None else _start(xp, initial, b, shape, dtype, index)
    recurrence = _Recurrence((a, b), shape, constant, index, start, reverse, dtype)
    recurrence.key = key
    return _derivatives.recurrence(_METHODS["linear_recurrence"], method, xp, recurrence)


_shortcuts: dict[Any, Callable[..., Any]] = {}


def _coefficients(a: Any, b: Any) -> tuple[Namespace, list[Array]]:
    """Return the namespace and both coefficients as arrays; one may be a number, of the other's dtype."""
    for name, number, other, array in (("a", a, "b", b), ("b", b, "a", a)):
        if is_scalar(number) and not is_scalar(array):
            if isinstance(number, np.generic) and isinstance(array, np.ndarray):
                break  # an array of no dimension, to NumPy
            xp, (array,) = admit({other: array})
            check_kind(other, array, ("int", "uint", "float", "complex"))
            value = as_scalar(name, number, array.dtype)
            made = xp.asarray(value, dtype=array.dtype, device=device(array))
            return xp, [made, array] if name == "a" else [array, made]
    return admit({"a": a, "b": b})


def _only_array(x: Array) -> Array:
    if isinstance(x, tuple):
        raise TypeError("x must be an array, got tuple")
    return x


class _Scan:
    """One call of a scan, checked: what every method is given.

    ``inputs`` have the shape ``shape``; ``working`` are the dtypes they are combined in, ``dtypes`` those of the
    result, which has length ``n`` along the axis. ``initial`` holds arrays of length 1 along the axis and ``identity``
    scalars; one of them is there where a result needs something to begin with, never both. ``operation`` is what the
    operator can be remembered by, or None.
    """

    __slots__ = (
        "axis",
        "dtypes",
        "exclusive",
        "identity",
        "initial",
        "inputs",
        "key",
        "n",
        "op",
        "operation",
        "program",
        "reverse",
        "shape",
        "single",
        "working",
    )
    program: _Program

    def __init__(
        self,
        inputs: tuple[Array, ...],
        single: bool,
        op: Operator,
        operation: Any,
        axis: int,
        exclusive: bool,
        reverse: bool,
        initial: tuple[Array, ...] | None,
        identity: tuple[Any, ...] | None,
        n: int,
        working: tuple[Any, ...],
        dtypes: tuple[Any, ...],
    ) -> None:
        self.inputs, self.single, self.op, self.operation, self.axis = inputs, single, op, operation, axis
        self.exclusive, self.reverse, self.initial, self.identity, self.n = exclusive, reverse, initial, identity, n
        self.working, self.dtypes = working, dtypes
        self.shape: tuple[int, ...] = inputs[0].shape
        self.key: Any = None

    def starts(self) -> tuple[Array, ...]:
        """Return the arrays that hold what stands before the first elements."""
        return self.initial or ()

    def remade(self, arrays: tuple[Array, ...], axis: int) -> _Scan:
        """Return the same call on other inputs and starts."""
        count = len(self.inputs)
        other = _Scan(
            arrays[:count],
            self.single,
            self.op,
            self.operation,
            axis,
            self.exclusive,
            self.reverse,
            arrays[count:] or None,
            self.identity,
            self.n,
            self.working,
            self.dtypes,
        )
        other.program, other.shape = self.program, _joint_shape(arrays)
        return other

    def make_program(self) -> _Program:
        """Return the device functions of this call."""
        starts = self.identity if self.initial is None else tuple(dtype_name(x.dtype) for x in self.initial)
        check_components(self.op, self.working)
        return _Program(
            self.op,
            tuple(dtype_name(x.dtype) for x in self.inputs),
            tuple(dtype_name(dtype) for dtype in self.working),
            tuple((index, dtype_name(dtype)) for index, dtype in enumerate(self.dtypes)),
            starts,
            constant_start=self.initial is None,
            exclusive=self.exclusive or self.n > self.shape[self.axis],
            immutable=array_api_compat.is_jax_array(self.inputs[0]),
        )


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
    if in_graph(x, method):
        from parprims import _torch_ops

        return _torch_ops.scan(primitive, x, op, axis, exclusive, reverse, initial, dtype, include_initial, method)
    single = not isinstance(x, tuple)
    xs: tuple[Array, ...] = (x,) if single else x
    key, operation = None, lasting_key(op)
    if initial is None and operation is not None and not watched():
        signature = _cuda.signature(x)
        if signature is not None:
            kinds = type(axis), type(exclusive), type(reverse), type(include_initial)  # 1 and True would be one key
            options = axis, exclusive, reverse, include_initial, kinds, dtype, method
            key = (primitive, operation, options, type(x), signature)
            shortcut = _cuda.recall(_shortcuts, key)
            if shortcut is not None:
                return shortcut(x)
    operator = as_operator(op)
    if not xs:
        raise ValueError("x must hold at least one array")
    xp, admitted = admit({"x" if single else f"x[{index}]": one for index, one in enumerate(xs)})
    xs = tuple(admitted)
    exclusive, reverse = check_flag("exclusive", exclusive), check_flag("reverse", reverse)
    include_initial = check_flag("include_initial", include_initial)
    _METHODS[primitive].check(method)
    if any(one.shape != xs[0].shape for one in xs):
        xs, key = flags_broadcast(xp, operator, xs), None
    if any(one.shape != xs[0].shape for one in xs):
        raise ValueError(f"x must be arrays of equal shape, got {', '.join(str(tuple(one.shape)) for one in xs)}")
    if axis is None and xs[0].ndim != 1:
        raise ValueError(f"axis must be given for an array of {xs[0].ndim} dimensions")
    index = normalize_axis(-1 if axis is None else axis, xs[0].ndim)
    dtypes = _dtypes(xp, operator, tuple(one.dtype for one in xs), dtype)
    working = tuple((ring_dtype if operator in _SUMS else compute_dtype)(xp, one) for one in dtypes)
    start = identity = None
    if initial is not None:
        given = initial if isinstance(initial, tuple) else (initial,)
        _check_entries("initial", given, xs)
        start = tuple(
            _start(xp, value, one, one.shape, to, index) for value, one, to in zip(given, xs, dtypes, strict=True)
        )
    elif exclusive or include_initial:
        identity = operator.identity(*(dtype_name(one) for one in working))
        if identity is None:
            raise ValueError(f"initial must be given for an exclusive scan, for op {operator.name} has no identity")
    n = xs[0].shape[index] + int(include_initial)  # a length may be a symbol, to which PyTorch adds no bool
    call = _Scan(xs, single, operator, operation, index, exclusive, reverse, start, identity, n, working, dtypes)
    if exclusive and operator.flags:
        return _by_segments(_METHODS[primitive], method, xp, call)
    call.key = key
    return _derivatives.scan(_METHODS[primitive], method, xp, call)


def _by_segments(methods: Methods, method: str, xp: Namespace, r: _Scan) -> tuple[Array, ...]:
    """Return an exclusive scan with a segmented operator, which begins anew at every flag."""
    count, starts = r.op.flags, r.initial
    if r.initial is not None:  # no flag before the first element, so that results tell which were met
        r.initial = (*(xp.zeros_like(one) for one in r.initial[:count]), *r.initial[count:])
    ys = _derivatives.scan(methods, method, xp, r)
    if starts is None:
        assert r.identity is not None
        starts = tuple(_full(xp, value, y, r.axis) for value, y in zip(r.identity, ys, strict=True))
    return restarted(xp, r.op, r.inputs[:count], starts, r.initial is not None, ys)


_SUMS = (BUILT_IN["add"], BUILT_IN["multiply"])


def _check_entries(name: str, given: tuple[Any, ...], xs: tuple[Any, ...]) -> None:
    if len(given) != len(xs):
        raise ValueError(f"{name} must have {len(xs)} entries, one per component, got {len(given)}")


def _dtypes(xp: Namespace, op: Operator, dtypes: tuple[Any, ...], dtype: Any) -> tuple[Any, ...]:
    """Return the dtype of each component of the result; raise, naming the argument, where the operator has none."""
    given = as_dtypes(xp, dtype)
    if given is not None:
        _check_entries("dtype", given, dtypes)
        dtypes = given
    elif op in _SUMS:
        dtypes = tuple(sum_dtype(xp, one) for one in dtypes)
    check_components(op, dtypes)
    return dtypes


def _start(xp: Namespace, initial: Any, like: Array, shape: tuple[int, ...], dtype: Any, axis: int) -> Array:
    """Return the initial element as an array of the dtype, of a shape but for length 1 along the axis."""
    start = as_array("initial", initial, xp, dtype, device(like), (*shape[:axis], *shape[axis + 1 :]))
    return xp.expand_dims(start, axis=axis)


def _result(xp: Namespace, r: _Scan, inclusive: Inclusive) -> Any:
    """Return the result of a call, given what scans inclusively from the front."""
    axis = r.axis
    xs = tuple(cast(xp, x, dtype) for x, dtype in zip(r.inputs, r.working, strict=True))
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
    r.op = harmless(xp, r.op, r.operation, r.inputs)
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
    if name in _STANDARD and offers(xp, _STANDARD[name]):
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
        return _array_refusal(xp, r)
    return f"{xp.__name__} has no scan with the operator {r.op.name}"


def _array_refusal(xp: Namespace, r: _Scan) -> str | None:
    return lacks_arithmetic(xp, r.working)


class _Recurrence:
    """One linear recurrence, checked: what every method is given.

    ``inputs`` are a and b, which broadcast to ``shape`` and have as many dimensions; ``constant`` tells whether a was
    given without any. ``initial`` has length 1 along the axis, or is None. ``rule`` is what solves with a derivative,
    given what solves without and a and b, or None.
    """

    __slots__ = ("axis", "constant", "dtype", "initial", "inputs", "key", "n", "program", "reverse", "rule", "shape")
    program: _Program

    def __init__(
        self,
        inputs: tuple[Array, Array],
        shape: tuple[int, ...],
        constant: bool,
        axis: int,
        initial: Array | None,
        reverse: bool,
        dtype: Any,
    ) -> None:
        self.inputs, self.shape, self.constant, self.axis = inputs, shape, constant, axis
        self.initial, self.reverse, self.dtype = initial, reverse, dtype
        self.n = shape[axis]
        self.key: Any = None
        self.rule: Callable[..., Array] | None = None

    single = True

    def wide(self, xp: Namespace) -> tuple[Array, Array]:
        """Return a and b broadcast against each other."""
        a, b = self.inputs
        return xp.broadcast_to(a, self.shape), xp.broadcast_to(b, self.shape)

    def starts(self) -> tuple[Array, ...]:
        """Return the arrays that hold what stands before the first elements."""
        return () if self.initial is None else (self.initial,)

    def remade(self, arrays: tuple[Array, ...], axis: int) -> _Recurrence:
        """Return the same recurrence on other inputs and starts."""
        a, b, *start = arrays
        initial = start[0] if start else None
        shape = _joint_shape(arrays)
        other = _Recurrence((a, b), shape, False, axis, initial, self.reverse, self.dtype)
        other.program = self.program
        return other

    def make_program(self) -> _Program:
        """Return the device functions of this recurrence."""
        a, b = self.inputs
        whole = dtype_kind(self.dtype) in ("int", "uint")
        state = dtype_name(ring_dtype(array_api_compat.array_namespace(b), self.dtype))
        return _Program(
            BUILT_IN["affine"] if whole else _SELECT,
            (dtype_name(a.dtype), dtype_name(b.dtype)),
            (state, state),
            ((1, dtype_name(self.dtype)),),
            None if self.initial is None else (dtype_name(self.initial.dtype),),
            element=None if whole else _nan_unless_finite,
            first="raw.x0 = {};",
        )


class _Adjoint:
    """The derivatives of a linear recurrence by b and, if its solution x is given, by a.

    ``inputs`` are a, the derivative g by x, and x, of one shape. With m[n] = conj(a[n+1]) (g[n+1] + m[n+1]) from
    the other end, the first is l[n] = g[n] + m[n] and the second l[n] conj(x[n-1]), where that is zero for the first x.
    """

    __slots__ = ("axis", "inputs", "key", "n", "program", "reverse", "shape")
    program: _Program

    def __init__(self, inputs: tuple[Array, ...], axis: int, reverse: bool, key: Any = None) -> None:
        self.inputs, self.axis, self.reverse, self.key = inputs, axis, reverse, key
        self.shape = inputs[1].shape
        self.n = self.shape[axis]

    @property
    def single(self) -> bool:
        return len(self.inputs) == 2

    def starts(self) -> tuple[Array, ...]:
        return ()

    def make_program(self) -> _Program:
        """Return the device functions of these derivatives."""
        g = self.inputs[1]
        state = dtype_name(compute_dtype(array_api_compat.array_namespace(g), g.dtype))
        return _Program(
            _SELECT,
            tuple(dtype_name(x.dtype) for x in self.inputs),
            (state, state),
            tuple((at, dtype_name(g.dtype)) for at in range(len(self.inputs) - 1)),
            (1, 0),
            constant_start=True,
            exclusive=True,
            element=_adjoint_element,
            result=_adjoint_result,
            peeks=len(self.inputs) - 1,
        )


def _adjoint_element(a: Array, g: Array, *_: Array) -> tuple[Array, Array]:
    """Return the map m -> conj(a) (g + m), as `_nan_unless_finite` would have it."""
    xp = array_api_compat.array_namespace(a)
    a = xp.conj(a)
    return _nan_unless_finite(a, a * g)


def _adjoint_result(_: Array, m: Array, _a: Array, g: Array, *x_and_before: Array) -> tuple[Array, Array]:
    """Return the derivatives by b and a of one element, given the m that stands there and the x before it."""
    xp = array_api_compat.array_namespace(g)
    *_, before, exists = x_and_before
    by_b = g + m
    by_a = by_b * xp.conj(before)
    return by_b, xp.where(exists, by_a, xp.zeros_like(by_a))


def adjoint(
    xp: Namespace, a: Array, g: Array, x: Array | None, axis: int, reverse: bool, method: str
) -> tuple[Array, Array | None] | None:
    """Return the derivatives of a linear recurrence by b and, with x, by a, from one kernel; None where none serves.

    Parameters are those of `_derivatives.adjoint`; the derivative by a takes no initial element into account.
    """
    inputs = (a, g) if x is None else (a, g, x)
    if method not in ("auto", "kernel"):
        return None
    signature = None if watched() else _cuda.signature(inputs)
    key = None if signature is None else ("adjoint", axis, reverse, signature)
    shortcut = _shortcuts.get(key)
    if shortcut is not None:
        found = shortcut(*inputs)
    else:
        if 0 in g.shape or any(one.dtype != g.dtype for one in inputs):
            return None
        r = _Adjoint(inputs, axis, not reverse, key)
        if _adjoint_refusal(xp, r) is not None:
            return None
        found = _ADJOINT("kernel", xp, r)
    return (found, None) if x is None else found


def _joint_shape(arrays: tuple[Array, ...]) -> tuple[int, ...]:
    """Return what shapes of equal length, without zeros, broadcast to."""
    return tuple(max(lengths) for lengths in zip(*(x.shape for x in arrays), strict=True))


def _nan_unless_finite(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (a, b) with a NaN for b where a is not finite, by which it is told from a product that overflowed."""
    xp = array_api_compat.array_namespace(a)
    return a, xp.where(a - a == 0, b, xp.full_like(b, math.nan))


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
    except (TypeError, ValueError, RuntimeError):
        dtype = None
    if dtype is None or whole[0] != whole[1] or dtype_kind(dtype) not in kinds:
        raise TypeError(
            f"a and b must have dtypes that promote together, got {dtype_name(a.dtype)} and {dtype_name(b.dtype)}"
        )
    return dtype


def _solution(xp: Namespace, r: _Recurrence, solve: Callable[[Array, Array, int], Array]) -> Array:
    """Return the result of a call, given what solves from the front, without an initial element."""
    axis, n = r.axis, r.n
    a, b = (cast(xp, one, ring_dtype(xp, r.dtype)) for one in r.wide(xp))
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


def _select(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    """Do what _compose does with fewer operations, for a kernel, which nobody differentiates."""
    (a, b), (c, d) = earlier, later
    xp = array_api_compat.array_namespace(a)
    product = c * a
    return xp.where((a == 0) | (c == 0), xp.zeros_like(product), product), xp.where(b == 0, d, c * b + d)


_COMPOSE = Operator(_compose, name="recurrence", components=2)
_SELECT = Operator(_select, name="recurrence", components=2)


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
    with quiet(xp):  # of products of coefficients that overflow and leave no trace in the result
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


@dataclasses.dataclass(frozen=True)
class _Tile:
    """How the kernels cut their work, chosen by measurements on an H200."""

    threads: int = 256
    """Threads of a block; a block that holds a whole line in registers may have twice as many."""
    line_bytes: int = 320
    """What a thread keeps in registers, of its elements and what stands before them, where a tile is a whole line."""
    tile_bytes: int = 160
    """The same where a line has several tiles."""
    shared_bytes: int = 160
    """What a thread keeps in shared memory."""
    column_bytes: int = 256
    """What a thread keeps in registers of its elements, for lines that lie side by side."""
    columns: int = 8
    """Threads side by side across lines that lie side by side: with vectors of 16 bytes, 128 bytes."""
    column_state_bytes: int = 32
    """The most bytes of states a thread keeps for the lines it serves side by side."""
    tiles: int = 132
    """A single line is cut finer until it has this many tiles, so that every multiprocessor of a large GPU has one; a
    constant, so that the bits of a result do not depend on the GPU."""
    many_lines: int = 128
    """Lines from which on a tile waits for its neighbour alone: tiles are then drawn across the lines."""
    walkers: int = 1056
    """Lines from which on a block goes along each, and loads a tile while it works on the one before."""
    walk_threads: int = 128
    """Threads of such a block."""
    walk_bytes: int = 160
    """What each of them keeps in shared memory of each tile."""
    walk_resident: int = 4
    """Such blocks that are to fit a multiprocessor."""


_TILE = _Tile()
_BEFORE_PUBLISHING = ""
"""CUDA statements that a block runs before it tells others of its tile, whose number is ``tile``: a place for tests to
put a delay."""


class _Program:
    """The device functions of one kind of scan, and the plans made from them.

    Parameters
    ----------
    op : Operator
        Combines states.
    inputs, states : tuple of str
        Dtypes of the arrays and of the components combined.
    outputs : tuple of (int, str)
        For each output, the component it holds and its dtype.
    starts : tuple of str or tuple of scalars, optional
        What stands before the first element: the dtypes of arrays that hold it, or the element itself.
    constant_start : bool
        Whether ``starts`` is the element itself.
    exclusive : bool
        Whether a result leaves its own element out.
    element : callable, optional
        Makes the components of a state from those of the inputs.
    result : callable, optional
        Makes the results from the components of a state, those of the inputs, the input ``peeks`` of the element
        behind and whether there is one; otherwise they are components of the state.
    peeks : int
        The number of that input.
    first : str
        CUDA statements on ``raw``, the first element of a line that has no start.
    immutable : bool
        Whether arrays of the caller's library never change.
    """

    def __init__(
        self,
        op: Operator,
        inputs: tuple[str, ...],
        states: tuple[str, ...],
        outputs: tuple[tuple[int, str], ...],
        starts: tuple[Any, ...] | None,
        *,
        constant_start: bool = False,
        exclusive: bool = False,
        element: Callable[..., Any] | None = None,
        result: Callable[..., Any] | None = None,
        peeks: int = 0,
        first: str = "",
        immutable: bool = False,
    ) -> None:
        for name in (*inputs, *states, *(dtype for _, dtype in outputs)):
            if name not in C_TYPES:
                raise Untraceable(f"the kernel has no dtype {name}")
        # What operators see of elements has the dtypes of the states, the last one's where inputs are more.
        wide = (*states, *(states[-1],) * (len(inputs) - len(states)))

        def working(pattern: str, name: str, at: int) -> tuple[tuple[str, str]]:
            return ((name, f"ops::cast<{register_type(name)}>({pattern % at})"),)

        lines, values = [], [f"x{index}" for index in range(len(inputs))]
        if element is not None:
            given = [working("x%d", name, at) for at, name in enumerate(wide)]
            made = trace("element", element, *given, packed=False)
            lines, values = made.lines, list(made.outputs)
        ends, codes = [], [f"state.v{component}" for component, _ in outputs]
        if result is not None:
            given = [((name, f"state.v{at}"),) for at, name in enumerate(states)]
            given += [working("value(raw.x%d)", name, at) for at, name in enumerate(wide)]
            given += [working("value(next.peek%.0s)", wide[peeks], 0), (("bool", "next.exists"),)]
            made = trace("result", result, *given, packed=False)
            ends, codes = made.lines, [made.outputs[component] for component, _ in outputs]
        self.inputs, self.outputs = inputs, tuple(dtype for _, dtype in outputs)
        self.starts = () if constant_start or starts is None else starts
        self.state_bytes = sum(-(-dtype_bits(name) // 32) * 4 for name in states)
        self.state_words = -(-state_size(states) // 8)
        # What a thread keeps of an element: narrow ones are unpacked.
        self.raw_bytes = sum(-(-dtype_bits(name) // 32) * 4 for name in inputs)
        self.itemsizes = tuple(dtype_bits(name) // 8 for name in (*inputs, *self.outputs))
        if constant_start and starts is not None:
            start = [literal(value, name) for value, name in zip(starts, states, strict=True)]
        elif len(self.starts) == len(states):
            start = [
                f"ops::cast<{register_type(state)}>(value(s{at}.at(h, l, j).base[0]))"
                for at, state in enumerate(states)
            ]
        elif self.starts:  # a state before a recurrence: x with a coefficient that nothing reads
            start = [literal(1, states[0]), f"ops::cast<{register_type(states[1])}>(value(s0.at(h, l, j).base[0]))"]
        else:
            start = []
        results = ", ".join(f"store<{C_TYPES[dtype]}>({code})" for code, (_, dtype) in zip(codes, outputs, strict=True))
        self.function: Any = None
        self._text = "\n".join(
            (
                structures(inputs, states, lines, values, trace_combine(op, states, immutable=immutable)),
                "struct Result {",
                *(f"    {C_TYPES[name]} y{index};" for index, name in enumerate(self.outputs)),
                "};",
                f"using Peek = {C_TYPES[inputs[peeks]]};",
                f"DEVICE Peek peek(const Raw& raw) {{ return raw.x{peeks}; }}",
                "template <class Next>",
                "DEVICE Result result(const State& state, const Raw& raw, const Next& next) {",
                *(f"    {line}" for line in ends),
                f"    return {{{results}}};",
                "}",
                f"DEVICE void first(Raw& raw) {{ {first} }}",
                f"constexpr bool EXCLUSIVE = {_cpp(exclusive)}, STARTS = {_cpp(starts is not None)},"
                f" PEEKS = {_cpp(result is not None)};",
                "struct Starts {",
                *(f"    View<const {C_TYPES[name]}, STRIDED> s{index};" for index, name in enumerate(self.starts)),
                "    DEVICE State load(long long h, long long l, long long j) const {",
                f"        return {{{', '.join(start)}}};" if start else "        return State();",
                "    }",
                "};",
            )
        )
        self.runners: dict[Any, Any] = {}

    def source(self, vector: int, accesses: tuple[str, ...]) -> str:
        """Return the CUDA text before the kernel, for vectors of so many elements and the access to each array."""
        count = len(self.inputs)
        places, _ = _shared_buffers(self, accesses)
        return "\n".join(
            (
                _cuda.device_source("_common.cuh"),
                f"constexpr int VEC = {vector};",
                self._text,
                "template <int COUNT>",
                "struct Staged {",
                *(
                    f"    Word<VEC * sizeof({C_TYPES[name]})>::Type x{at}[COUNT];"
                    for at, name in enumerate(self.inputs)
                    if accesses[at] != "CONSTANT"
                ),
                *(
                    f"    Word<VEC * sizeof({C_TYPES[name]})>::Type own{at}[COUNT];"
                    for at, name in enumerate(self.outputs)
                    if places[at] is None
                ),
                *(
                    f"    DEVICE auto& y{at}() {{ return {f'own{at}' if place is None else f'x{place}'}; }}"
                    for at, place in enumerate(places)
                ),
                "};",
                *_views("Inputs", "Raw", "x", [f"const {C_TYPES[name]}" for name in self.inputs], accesses[:count]),
                *_views("Outputs", "Result", "y", [C_TYPES[name] for name in self.outputs], accesses[count:]),
                f"DEVICE void before_publishing(long long tile) {{ {_BEFORE_PUBLISHING} }}",
                _cuda.device_source("_scan.cu"),
            )
        )


def _cpp(truth: bool) -> str:
    return "true" if truth else "false"


def _views(name: str, record: str, letter: str, types: list[str], accesses: tuple[str, ...]) -> list[str]:
    """Return the lines of a struct of views, and of what they load into records or store from them."""
    fields = [f"{letter}{index}" for index in range(len(types))]
    loads = letter == "x"
    locals_ = [f"        {kind.removeprefix('const ')} t{index}[VEC];" for index, kind in enumerate(types)]
    copied = " ".join(
        f"r[k].{field} = t{at}[k];" if loads else f"t{at}[k] = r[k].{field};" for at, field in enumerate(fields)
    )
    copies = ["#pragma unroll", f"        for (int k = 0; k < VEC; ++k) {{ {copied} }}"]

    def method(head: str, call: str, *, records: bool = True, fields: list[str] = fields) -> list[str]:
        """Return the lines of a method that calls every view's; ``%s`` stands for its name."""
        moves = [f"        {field}.{call.replace('%s', field)};".replace("%t", f"t{field[1:]}") for field in fields]
        body = [*locals_, *moves, *copies] if records and loads else [*locals_, *copies, *moves] if records else moves
        return [f"    DEVICE void {head} const {{", *body, "    }"]

    moved = ", ".join(f"{field}.at(h, l, j)" for field in fields)
    text = [
        f"struct {name} {{",
        *(f"    View<{kind}, {access}> {field};" for kind, access, field in zip(types, accesses, fields, strict=True)),
        f"    DEVICE {name} at(long long h, long long l, long long j) const {{ return {{{moved}}}; }}",
    ]
    each = f"{record} (&r)[VEC]" if loads else f"const {record} (&r)[VEC]"
    way = "load" if loads else "store"
    text += method(f"{way}_across({each}, long long i)", f"{way}_across(%t, i)")
    text += method(f"{way}_along({each}, long long i, long long past)", f"{way}_along(%t, i, past)")
    shared = "S& s, int at"
    if loads:
        waiting = [field for field, access in zip(fields, accesses, strict=True) if access != "CONSTANT"]
        text += ["    template <class S>"]
        text += method(
            f"stage({shared}, long long i, long long past)",
            "template stage<VEC>(s.%s[at], i, past)",
            records=False,
            fields=waiting,
        )
        fetched = method(f"fetch({each}, {shared})", "fetch(%t, s.%s[at])")
        for field in set(fields) - set(waiting):
            fetched = [line.replace(f"s.{field}[at]", "{}") for line in fetched]
        text += ["    template <class S>", *fetched]
    else:
        text += ["    template <class S>", *method(f"put({each}, {shared})", "put(%t, s.%s()[at])")]
        text += ["    template <class S>"]
        text += method(
            f"flush({shared}, long long i, long long past)", "template flush<VEC>(s.%s()[at], i, past)", records=False
        )
    return [*text, "};"]


def _shared_buffers(program: _Program, accesses: tuple[str, ...]) -> tuple[list[int | None], list[int]]:
    """Return, for each output, the input whose place in shared memory it takes, and the itemsizes of all places.

    An output takes the place of an input of its width, and one of its own if there is none.
    """
    count = len(program.inputs)
    waiting = [at for at in range(count) if accesses[at] != "CONSTANT"]
    sizes = [program.itemsizes[at] for at in waiting]
    places: list[int | None] = []
    for size in program.itemsizes[count:]:
        place = next((at for at in waiting if program.itemsizes[at] == size), None)
        if place is None:
            sizes.append(size)
        else:
            waiting.remove(place)
        places.append(place)
    return places, sizes


def _merged(
    shape: tuple[int, ...], axis: int, strides: Sequence[tuple[int, ...]]
) -> tuple[list[tuple[int, tuple[int, ...]]], list[tuple[int, tuple[int, ...]]]]:
    """Return the axes before the scanned one and those behind it as (length, stride in each array), merged.

    Two neighbours are one axis where, in every array, a step along the earlier is as long as all of the later.
    """
    groups: tuple[list[tuple[int, tuple[int, ...]]], list[tuple[int, tuple[int, ...]]]] = ([], [])
    for at, length in enumerate(shape):
        if at == axis or length == 1:
            continue
        group, steps = groups[at > axis], tuple(stride[at] for stride in strides)
        if group and all(outer == length * inner for outer, inner in zip(group[-1][1], steps, strict=True)):
            group[-1] = (group[-1][0] * length, steps)
        else:
            group.append((length, steps))
    return groups


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))


def _plan(
    program: _Program,
    shape: tuple[int, ...],
    axis: int,
    reverse: bool,
    n: int,
    shapes: Sequence[tuple[int, ...]],
    layouts: Sequence[tuple[tuple[int, ...], int]],
) -> _cuda.Plan | None:
    """Return the launch for inputs, then starts, of these shapes and layouts (strides in elements, address modulo 16).

    ``shape`` is that of the inputs, broadcast; the outputs have length ``n`` along the axis. None if the arrays cannot
    be seen as (high, low, n, inner) with one stride each.
    """
    inputs, read = len(program.inputs), shape[axis]
    result = (*shape[:axis], n, *shape[axis + 1 :])
    addresses = [address for _, address in layouts[:inputs]] + [0] * len(program.outputs)
    strides = [
        tuple(0 if length == 1 else stride for length, stride in zip(one, steps, strict=True))
        for one, (steps, _) in zip(shapes, layouts, strict=True)
    ]
    strides[inputs:inputs] = [_row_major(result)] * len(program.outputs)
    before, behind = _merged(shape, axis, strides)
    nothing: tuple[int, tuple[int, ...]] = (1, (0,) * len(strides))
    inner, across = behind.pop() if behind else nothing
    kept = before + behind
    if len(kept) > 2:
        return None
    (high, upward), (low, downward) = (nothing, nothing, *kept)[-2:]
    along = tuple(stride[axis] for stride in strides)
    columns = inner > 1
    arrays = inputs + len(program.outputs)

    def access(at: int, vector: int) -> str:
        itemsize, step, begin = program.itemsizes[at], along[at], 0
        others, first = [upward[at], downward[at]], 0
        if columns:
            others, step = [*others, along[at]], across[at]
        else:
            if reverse:
                step, begin = -step, ((n if at >= inputs else read) - 1) * step
            first = begin - (vector - 1 if step == -1 else 0)
        if step == 0:
            return "CONSTANT"
        aligned = (addresses[at] + first * itemsize) % (vector * itemsize) == 0
        if step in ((1,) if columns else (1, -1)) and aligned and all(one % vector == 0 for one in others):
            return "ASCENDING" if step == 1 else "DESCENDING"
        return "STRIDED"

    vector = max(1, 16 // max(program.itemsizes))
    if columns:
        vector = min(vector, _cuda.power_of_two(max(1, _TILE.column_state_bytes // program.state_bytes)))
    accesses = tuple(access(at, vector) for at in range(arrays))
    # Stores that are not vectors, or columns that are not, are best where neighbouring threads take neighbours.
    if "STRIDED" in (accesses if columns else accesses[inputs:]):
        vector = 1
        accesses = tuple(access(at, vector) for at in range(arrays))
    lines, shared = high * low, 0
    if columns:
        most = max(1, min(16, _TILE.column_bytes // (vector * program.raw_bytes)))
        groups = _cuda.power_of_two(-(-n // most), up=True)
        width = max(_TILE.columns, 256 // min(groups, 32))
        width = min(width, _cuda.power_of_two(-(-inner // vector), up=True), 256)
        groups = min(groups, 256 // width)
        if n > groups * most:
            groups = 256 // width
        tiles = -(-n // (groups * most))
        rounds = -(-n // (tiles * groups))
        blocks = -(-lines // (256 // (width * groups))) * -(-inner // (width * vector))
        look, slots, block, grid = _look(tiles, blocks), blocks * width * vector, 256, blocks * tiles
        call = f"scan_columns<{width}, {groups}, {rounds}, {look}>"
        integers: tuple[int, ...] = (lines, low, read, n, inner, tiles)
    else:
        _, sizes = _shared_buffers(program, accesses)
        vectors = -(-n // vector)
        # Narrow elements would be unpacked in registers, and those of strided arrays come one by one.
        direct = min(program.itemsizes[:inputs]) >= 4 and "STRIDED" not in accesses
        kept_bytes = vector * program.raw_bytes + program.state_bytes
        waiting = _rounds(_TILE.shared_bytes, vector * sum(sizes))
        by_tile = max(1, _TILE.tile_bytes // kept_bytes) if direct else waiting
        by_line = max(1, _TILE.line_bytes // kept_bytes) if direct else waiting
        tiles, block, walks = 1, _TILE.threads, False
        if vectors <= 32 * by_tile:
            enough = (one for one in (32, 16, 8, 4, 2, 1) if vectors <= one * by_tile)
            lanes = min(enough, key=lambda one: one * -(-vectors // one))
            rounds = -(-vectors // lanes)
            grid = -(-lines * lanes // block)
        else:
            widest = (2 if direct else 1) * block
            if vectors <= widest * by_line:
                each = by_tile if vectors <= widest * by_tile else by_line
                block = _cuda.power_of_two(-(-vectors // each), up=True)
            elif lines >= _TILE.walkers:
                direct, walks, block = False, True, _TILE.walk_threads
                tiles = -(-vectors // (block * _rounds(_TILE.walk_bytes, vector * sum(sizes))))
            elif lines >= _TILE.many_lines:
                tiles = -(-vectors // (block * by_tile))
            else:
                direct = False
                rounds = max(1, min(waiting, vectors * lines // (_TILE.tiles * block)))
                tiles = -(-vectors // (block * rounds))
            rounds = -(-vectors // (block * tiles))
            tiles = -(-vectors // (block * rounds))
            lanes, grid = block, lines if walks else lines * tiles
            if lanes <= 32:
                lanes, block, grid = 32, _TILE.threads, -(-lines * 32 // _TILE.threads)
                rounds = -(-vectors // 32)
        look, slots = "WALK" if walks else _look(tiles, lines), lines
        call = f"scan_rows<{block}, {lanes}, {rounds}, {look}, {_cpp(direct)}>"
        if not direct:
            places = block * rounds + (block * rounds // 8 if rounds % 2 == 0 else 1)
            for size in sizes:  # each begins where its vectors are aligned
                shared = -(-shared // (vector * size)) * vector * size + places * vector * size
            if walks:
                shared = 2 * -(-shared // 16) * 16
        integers = (lines, low, read, n, tiles)

    numbers: list[int] = []

    def view(at: int, kind: str, name: str) -> str:
        step = along[at]
        begin = ((n if inputs <= at < arrays else read) - 1) * step if reverse and at < arrays else 0
        numbers.extend((begin, upward[at], downward[at], -step if reverse else step, across[at]))
        terms = ", ".join(f"n{len(numbers) - 4 + one}" for one in range(4))
        return f"{{({kind}*){name} + n{len(numbers) - 5}, {terms}}}"

    reads = [view(at, f"const {C_TYPES[name]}", f"in{at}") for at, name in enumerate(program.inputs)]
    writes = [view(inputs + at, C_TYPES[name], f"out{at}") for at, name in enumerate(program.outputs)]
    starts = [view(arrays + at, f"const {C_TYPES[name]}", f"in{inputs + at}") for at, name in enumerate(program.starts)]
    named = ", ".join(f"n{len(numbers) + index}" for index in range(len(integers)))
    words = 8 + slots * (tiles + -(-tiles // 32)) * program.state_words
    return _cuda.Plan(
        source=program.source(vector, accesses),
        body=f"  const Inputs in = {{{', '.join(reads)}}};\n  const Outputs out = {{{', '.join(writes)}}};\n"
        f"  const Starts starts = {{{', '.join(starts)}}};\n"
        f"  {call}(in, out, starts, (ulonglong2*)status, {named});",
        inputs=inputs + len(program.starts),
        outputs=tuple((result, name) for name in program.outputs),
        integers=(*numbers, *integers),
        grid=grid,
        block=block,
        shared_bytes=-(-shared // 16) * 16,
        status_bytes=16 * words if tiles > 1 and look != "WALK" else 0,
        resident_blocks=_TILE.walk_resident if look == "WALK" else 0,
    )


def _rounds(nbytes: int, vector_bytes: int) -> int:
    """Return how many vectors a thread may have in shared memory: if even, an eighth of the memory is left empty."""
    most = max(1, nbytes // vector_bytes)
    return most - 1 if most > 1 and most % 2 == 0 and most * vector_bytes * 9 // 8 > nbytes else most


def _look(tiles: int, lines: int) -> str:
    return "ALONE" if tiles == 1 else "NEIGHBOUR" if lines >= _TILE.many_lines else "GROUPS"


def _kernel_refusal(xp: Namespace, r: _Scan) -> str | None:
    starts = tuple([x.dtype for x in r.starts()])
    inclusive = not r.exclusive and r.n == r.shape[r.axis]
    key = (r.operation, xp, _cuda.mode(xp), _dtypes_of(r), r.working, r.dtypes, inclusive, r.identity, starts)
    return _kernel_refusal_of(xp, r, key)


def _recurrence_kernel_refusal(xp: Namespace, r: _Recurrence) -> str | None:
    return _kernel_refusal_of(xp, r, (xp, _cuda.mode(xp), _dtypes_of(r), r.dtype, r.initial is None))


def _adjoint_refusal(xp: Namespace, r: _Adjoint) -> str | None:
    return _kernel_refusal_of(xp, r, ("adjoint", xp, _cuda.mode(xp), _dtypes_of(r)))


def _dtypes_of(r: _Scan | _Recurrence | _Adjoint) -> tuple[Any, ...]:
    return tuple([x.dtype for x in r.inputs])


def _kernel_refusal_of(xp: Namespace, r: _Scan | _Recurrence | _Adjoint, key: Any) -> str | None:
    """Return why the kernel cannot serve, or None, having left its program with the call."""
    reason = _cuda.refusal(xp, (*r.inputs, *r.starts()))
    if reason is not None:
        return reason
    lasting = not isinstance(r, _Scan) or r.operation is not None
    program = _programs.get(key) if lasting else None
    if program is None:
        try:
            program = r.make_program()
        except Untraceable as reason:
            return str(reason)
        if isinstance(r, _Scan) and not lasting:
            # What it reads may have changed: it is known by what it was translated into, and on JAX, which may call
            # the function itself later on, by the function too, which the program keeps.
            program.function = r.op.combine
            key = (program._text, id(program.function) if _cuda.is_jax(xp) else 0, *key[1:])
            program = _programs.get(key, program)
        _cuda.remember(_programs, key, program)
    r.program = program
    return None


_programs: dict[Any, _Program] = {}


def _kernel(xp: Namespace, r: _Scan | _Recurrence | _Adjoint) -> Any:
    """Return the scan, or the solution, by one launch of a CUDA kernel."""
    if 0 in r.shape and not isinstance(r, _Adjoint):
        return _array_of(xp, r)
    given = (*r.inputs, *r.starts())
    arrays = tuple(_cuda.plain(xp, x) for x in given)
    runner = _runner(xp, r, arrays)
    if runner is None:  # no (high, low, n, inner) with one stride each fits: copies have it
        whole = [xp.broadcast_to(x, r.shape) for x in arrays[: len(r.inputs)]]
        arrays = tuple(_cuda.contiguous(xp, x) for x in (*whole, *arrays[len(r.inputs) :]))
        runner = _runner(xp, r, arrays)
        assert runner is not None
    ys = runner(*arrays)
    single = r.single
    if r.key is not None and all(one is other for one, other in zip(arrays, given, strict=True)):
        shortcut: Callable[..., Any] = lambda *xs: runner(*xs)[0]  # noqa: E731
        if len(given) == 1 and single and isinstance(runner, _cuda.Runner):
            shortcut = runner.one
        elif isinstance(r, _Recurrence) and r.rule is not None:
            shortcut = functools.partial(r.rule, shortcut)
        elif isinstance(r, _Scan) and not single:
            shortcut = lambda xs: runner(*xs)  # noqa: E731
        elif not single:
            shortcut = runner
        _cuda.remember(_shortcuts, r.key, shortcut)
    return ys[0] if single else ys


def _runner(
    xp: Namespace, r: _Scan | _Recurrence | _Adjoint, arrays: tuple[Array, ...]
) -> Callable[..., tuple[Array, ...]] | None:
    """Return a function that launches the kernel on inputs and starts of such layouts, or None if it has no plan."""
    layouts = tuple([_cuda.layout(xp, x) for x in arrays])
    shapes = tuple([x.shape for x in arrays])
    gpu = None if _cuda.is_jax(xp) else _cuda.device_index(xp, arrays[0])
    key = (r.shape, r.axis, r.reverse, r.n, shapes, layouts, gpu)
    runner: Callable[..., tuple[Array, ...]] | None = r.program.runners.get(key)
    if runner is not None:
        return runner
    plan = _plan(r.program, r.shape, r.axis, r.reverse, r.n, shapes, layouts)
    if plan is None:
        return None
    if gpu is not None:
        return _cuda.remember(r.program.runners, key, _cuda.Runner(xp, plan, gpu))
    assert not isinstance(r, _Adjoint), "JAX derives adjoints itself"
    axis = r.axis
    remade = _derivatives.changed(r, inputs=(None,) * len(r.inputs), initial=None).remade  # it is kept, the arrays not

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        shape = _joint_shape(arrays)
        whole = (xp.broadcast_to(x, (*shape[:axis], x.shape[axis], *shape[axis + 1 :])) for x in arrays)
        result = _array_of(xp, remade(tuple(whole), axis))
        return result if isinstance(result, tuple) else (result,)

    def batched(*arrays: Array) -> tuple[Array, ...]:
        result = _kernel(xp, remade(arrays, axis + 1))
        return result if isinstance(result, tuple) else (result,)

    return _cuda.remember(r.program.runners, key, _cuda.traced(plan, otherwise, batched))


def _array_of(xp: Namespace, r: _Scan | _Recurrence) -> Any:
    return _array(xp, r) if isinstance(r, _Scan) else _array_recurrence(xp, r)


_METHODS = {
    primitive: Methods(
        primitive,
        kernel=Method(_kernel, _kernel_refusal),
        native=Method(_native, _native_refusal),
        array=Method(_array, _array_refusal),
    )
    for primitive in ("scan", "cumulative_sum", "cumulative_prod")
} | {
    "linear_recurrence": Methods(
        "linear_recurrence",
        kernel=Method(_kernel, _recurrence_kernel_refusal),
        native=Method(_native_recurrence, _native_recurrence_refusal),
        array=Method(_array_recurrence),
    )
}
_ADJOINT = Methods("linear_recurrence", kernel=Method(_kernel, _adjoint_refusal))

"""Reduction: x[0] op x[1] op ... op x[n-1], in that order, by a tree."""

from __future__ import annotations

import builtins
import copy
import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import array_api_compat

from parprims import _cuda, _derivatives
from parprims._arrays import (
    Array,
    Namespace,
    admit,
    along,
    as_array,
    as_dtypes,
    as_result,
    cast,
    check_flag,
    check_kind,
    compiling,
    compute_dtype,
    device,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_tensor,
    lacks_arithmetic,
    lacks_products,
    move_axis,
    namespace,
    normalize_axes,
    normalize_axis,
    ring_dtype,
    sum_dtype,
)
from parprims._dispatch import Method, Methods, computing, in_graph, listing, watched
from parprims._elements import Structure, flat, flattened, is_structured, rebuilt
from parprims._operators import (
    BUILT_IN,
    Operator,
    as_operator,
    by_leaves,
    check_components,
    check_result,
    explain_failure,
    flags_broadcast,
    harmless,
    harmless_map,
    restructured,
)
from parprims._switches import narrowed
from parprims._trace import C_TYPES, Dtype, Untraceable, lasting_key, state_size, structures, trace, trace_combine

Map = Callable[..., Any]


def reduce(
    x: Array | tuple[Array, ...],
    /,
    op: str | Operator | Callable[[Any, Any], Any] = "add",
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    dtype: Any = None,
    initial: Any = None,
    method: str = "auto",
) -> Any:
    """Combine all elements along axes: x[0] op x[1] op ... op x[n-1].

    Parameters
    ----------
    x : array, or tuple, NamedTuple or dict of array
        The elements, of any shape and any dtype the operator takes. Several arrays of equal shape are read as elements
        of several components, which may be nested (the order of a dict's is that of its keys).
    op : str, Operator or callable
        The operator: a built-in name (add, multiply, maximum, minimum, logical_and, logical_or, bitwise_and,
        bitwise_or, bitwise_xor, logaddexp, affine, argmax, argmin, welford), an `Operator`, or an associative
        function ``combine(earlier, later)``.
    axis : int, tuple of int or None
        The axes to combine along; None for all. Elements are taken in row-major order over these axes.
    keepdims : bool
        Whether the combined axes stay, with length 1.
    dtype : dtype, str or tuple of these, optional
        What elements are cast to before they are combined, one for each component, or the standard's name of it. By
        default add and multiply widen integers as the standard's ``sum`` does and every other operator keeps the dtype.
    initial : scalar, array, or a tuple of these, optional
        An element combined from the left with the result; of several components a tuple, or made as the elements are.
    method : {"auto", "kernel", "native", "array"}
        Who computes.

    Returns
    -------
    array, or tuple, NamedTuple or dict of array
        The combinations, of the shape of x without the axes, or with length 1 there, and made as x is.

    Raises
    ------
    TypeError
        If x is no array, arrays come from several libraries, or a dtype does not suit the operator. If the operator
        works in place, branches on the value of an array, or returns other than it was given.
    ValueError
        If shapes differ, an argument has an unknown value, or there is nothing to combine and no identity.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: n - 1 combinations in ceil(log2 n) steps (array).
    Traffic and launches: kernel reads every element once, in one launch; array reads and writes about 3n elements.
    Memory besides input and result: array and native combine blocks, each a 128th of the elements, yet at least 4 MiB
    (256 MiB on a GPU) and at most 256 MiB, in the dtype combined in. Array takes about four of these and native three,
    or none where the library's routine takes the elements as they are. Results are held twice, and again for each
    doubling of the number of blocks along the axes. JAX and torch.compile are given everything at once, and so is an
    operator that cannot be traced as a kernel would need it. Kernel has 1 MiB of scratch, and copies elements of which
    more than two runs of axes are kept, or more than one is combined.
    Error: a term of a sum passes at most 2 ceil(log2 n) additions by array and, in any array that fits a GPU, 500 by
    kernel (64 in a row of up to 2^28), each of which owes half a unit in the last place of sum |x|; 16-bit floats are
    combined in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array.
    CUDA graphs: kernels on one stream share scratch, which stays theirs; those captured into a graph have the graph's,
    until it is destroyed, so that any graphs and calls may run at once.
    Methods: kernel (CUDA arrays; auto leaves JAX's to XLA where it has the operator), native (operators the library
    has), array.
    Several devices: as for `scan`.
    Derivatives: as the library has them, which the kernel does not carry. Equal largest or smallest elements share the
    derivative of ``max`` and ``min`` alike on PyTorch.
    PyTorch's compiler: under torch.compile and torch.export every call of a public function is one node of the graph,
    which takes any lengths, chooses its method when it runs (`explain` around the compiled call sees it; it does not go
    inside, nor does `methods`), and has the derivatives of the call. Kernels run there too. So does an operator that is
    a function or an Operator, if it captures no variables and reads nothing but numbers and modules; `segmented` keeps
    to this. One that captures variables, such as a tensor, is read by the compiler: the call becomes the operations of
    method array, without a kernel and compiled anew for every length, and asking for another method raises. The ``fn``
    of `map_reduce` is always read. In a transformation of torch.func within the program a call is the operations too.
    A program that was saved is loaded after ``import parprims._torch_ops``, which makes its nodes known; it cannot hold
    functions of the caller's own.
    PyTorch's switches: results depend neither on torch.autocast nor on the precision that PyTorch's own products of
    float32 are set to, nor on deterministic mode, default dtype or default device.
    Reference: Ladner and Fischer, Parallel Prefix Computation, J. ACM 27(4), 1980.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.reduce(np.array([[1, 5], [4, 2]]), "maximum", axis=1)
    array([5, 4])
    >>> value, index = parprims.reduce((np.array([3.0, 9.0, 9.0]), np.arange(3)), "argmax")
    >>> int(index)
    1
    """
    if isinstance(x, (tuple, dict)) and is_structured(x):
        return by_leaves(reduce, x, op, axis=axis, keepdims=keepdims, initial=initial, dtype=dtype, method=method)
    return _reduce("reduce", None, x, op, axis, keepdims, dtype, initial, method)


def map_reduce(
    fn: Map,
    /,
    *arrays: Array,
    op: str | Operator | Callable[[Any, Any], Any] = "add",
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    dtype: Any = None,
    initial: Any = None,
    method: str = "auto",
) -> Any:
    """Combine fn of the elements along axes, in one pass: fn(x[0], y[0]) op fn(x[1], y[1]) op ...

    Parameters
    ----------
    fn : callable
        Takes as many arrays as are given and returns an array, or a tuple, NamedTuple or dict of arrays, elementwise.
        It does not change its arguments. For it to run in a CUDA kernel it must be written as an `Operator`'s function
        is.
    *arrays : array
        The inputs, broadcast against each other.
    op : str, Operator or callable
        The operator, as in `reduce`.
    axis : int, tuple of int or None
        The axes of the broadcast shape to combine along; None for all.
    keepdims : bool
        Whether the combined axes stay, with length 1.
    dtype : dtype, str or tuple of these, optional
        What the values of fn are cast to before they are combined, as in `reduce`.
    initial : scalar, array, or a tuple of these, optional
        An element combined from the left with the result; of several components a tuple, or made as the elements are.
    method : {"auto", "kernel", "native", "array"}
        Who computes.

    Returns
    -------
    array, or tuple, NamedTuple or dict of array
        The combinations, as in `reduce`, made as the values of fn are.

    Raises
    ------
    TypeError
        If an argument is no array, arrays come from several libraries, or a dtype does not suit the operator.
    ValueError
        If shapes do not broadcast, an argument has an unknown value, or there is nothing to combine.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    As for `reduce`; by kernel the values of fn stay in registers, by the other methods those of a block are stored, of
    each component of 8 bytes or less as many as of elements. An fn that cannot be traced, as a kernel would need it,
    is called once with all elements, and all of its values are stored.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x, y = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    >>> float(parprims.map_reduce(lambda x, y: abs(x - y), x, y, op="maximum"))
    2.0
    """
    if not callable(fn):
        raise TypeError(f"fn must be callable, got {type(fn).__name__}")
    if not arrays:
        raise TypeError("arrays must hold at least one array")
    dtype, initial = flat("dtype", dtype), flat("initial", initial)
    return _reduce("map_reduce", fn, arrays, op, axis, keepdims, dtype, initial, method)


def sum(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    keepdims: bool = False,
    method: str = "auto",
) -> Array:
    """Sum the elements along axes: the array API standard's ``sum``.

    Parameters
    ----------
    x : array
        The terms, of any shape and numeric dtype; bool counts as an integer.
    axis : int, tuple of int or None
        The axes to sum over; None for all.
    dtype : dtype or str, optional
        What terms are cast to first. By default integers narrower than the default integer widen to it.
    keepdims : bool
        Whether the summed axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `reduce`, whose errors and notes apply.

    Returns
    -------
    array
        The sums; 0 where there are no terms.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.sum(np.array([[1, 2], [3, 4]]), axis=0)
    array([4, 6])
    """
    return _reduce("sum", None, _only_array(x), "add", axis, keepdims, dtype, None, method)


def prod(
    x: Array,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    dtype: Any = None,
    keepdims: bool = False,
    method: str = "auto",
) -> Array:
    """Multiply the elements along axes: the array API standard's ``prod``.

    Parameters
    ----------
    x : array
        The factors, of any shape and numeric dtype; bool counts as an integer.
    axis : int, tuple of int or None
        The axes to multiply over; None for all.
    dtype : dtype or str, optional
        What factors are cast to first. By default integers narrower than the default integer widen to it.
    keepdims : bool
        Whether the multiplied axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `reduce`, whose errors and notes apply.

    Returns
    -------
    array
        The products; 1 where there are no factors.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.prod(np.array([2, 3, 4])))
    24
    """
    return _reduce("prod", None, _only_array(x), "multiply", axis, keepdims, dtype, None, method)


def max(
    x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, method: str = "auto"
) -> Array:
    """Find the largest element along axes: the array API standard's ``max``.

    Parameters
    ----------
    x : array
        The elements, of any shape and real dtype. NaN counts as larger than all others.
    axis : int, tuple of int or None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `reduce`, whose errors and notes apply.

    Returns
    -------
    array
        The largest elements, of the dtype of x.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.max(np.array([3, 9, 4])))
    9
    """
    return _reduce("max", None, _only_array(x), "maximum", axis, keepdims, None, None, method)


def min(
    x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, method: str = "auto"
) -> Array:
    """Find the smallest element along axes: the array API standard's ``min``.

    Parameters
    ----------
    x : array
        The elements, of any shape and real dtype. NaN counts as smaller than all others.
    axis : int, tuple of int or None
        The axes to search; None for all. They must hold at least one element.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `reduce`, whose errors and notes apply.

    Returns
    -------
    array
        The smallest elements, of the dtype of x.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.min(np.array([3, 9, 4])))
    3
    """
    return _reduce("min", None, _only_array(x), "minimum", axis, keepdims, None, None, method)


def any(
    x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, method: str = "auto"
) -> Array:
    """Tell whether any element along axes is true: the array API standard's ``any``.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype; a number is true unless it is zero.
    axis : int, tuple of int or None
        The axes to search; None for all.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `reduce`, whose errors and notes apply.

    Returns
    -------
    array
        Of dtype bool; False where there are no elements.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.any(np.array([[0, 2], [0, 0]]), axis=1)
    array([ True, False])
    """
    return _reduce("any", *_truth(x, method), "logical_or", axis, keepdims, None, None, method)


def all(
    x: Array, /, *, axis: int | tuple[int, ...] | None = None, keepdims: bool = False, method: str = "auto"
) -> Array:
    """Tell whether all elements along axes are true: the array API standard's ``all``.

    Parameters
    ----------
    x : array
        The elements, of any shape and dtype; a number is true unless it is zero.
    axis : int, tuple of int or None
        The axes to search; None for all.
    keepdims : bool
        Whether the searched axes stay, with length 1.
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `reduce`, whose errors and notes apply.

    Returns
    -------
    array
        Of dtype bool; True where there are no elements.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.all(np.array([[1, 2], [0, 1]]), axis=1)
    array([ True, False])
    """
    return _reduce("all", *_truth(x, method), "logical_and", axis, keepdims, None, None, method)


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1, method: str = "auto") -> Array:
    """Multiply and sum along an axis, sum of conj(x1) x2: the array API standard's ``vecdot``.

    Parameters
    ----------
    x1, x2 : array
        The vectors, of numeric dtypes that promote together, of equal length along the axis and otherwise of
        shapes that broadcast. The first is conjugated. One of another dtype than the promoted is copied to that first.
    axis : int
        The axis to contract, counted from the end.
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `reduce`, whose errors and notes apply.

    Returns
    -------
    array
        The dot products, of the promoted dtype, of the broadcast shape without the axis.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> int(parprims.vecdot(np.array([1, 2, 3]), np.array([4, 5, 6])))
    32
    """
    if in_graph((x1, x2), method):
        from parprims import _torch_ops

        return _torch_ops.vecdot(x1, x2, axis, method)
    xp, (x1, x2) = admit({"x1": x1, "x2": x2})
    for name, x in (("x1", x1), ("x2", x2)):
        check_kind(name, x, ("int", "uint", "float", "complex"))
        if x.ndim == 0:
            raise ValueError(f"{name} must have at least one dimension")
    ndim = builtins.min(x1.ndim, x2.ndim)
    index = normalize_axis(axis, ndim)
    if axis >= 0 and x1.ndim != x2.ndim:
        raise ValueError(f"axis must be negative for arrays of {x1.ndim} and {x2.ndim} dimensions, got {axis}")
    if x1.shape[index - ndim] != x2.shape[index - ndim]:
        raise ValueError(
            f"x1 and x2 must have equal length along axis {axis}, got {x1.shape[index - ndim]} and "
            f"{x2.shape[index - ndim]}"
        )
    try:
        dtype = xp.result_type(x1, x2)
    except (TypeError, ValueError, RuntimeError):
        names = f"{dtype_name(x1.dtype)} and {dtype_name(x2.dtype)}"
        raise TypeError(f"x1 and x2 must have dtypes that promote together, got {names}") from None
    x1, x2 = (x if x.dtype == dtype else xp.astype(x, dtype) for x in (x1, x2))
    return _reduce("vecdot", _conjugate_product, (x1, x2), "add", index - ndim, False, dtype, None, method)


def _conjugate_product(x: Array, y: Array) -> Array:
    return (namespace(x=x).conj(x) if dtype_kind(x.dtype) == "complex" else x) * y


def _nonzero(x: Array) -> Array:
    return x != 0


def _truth(x: Array, method: str) -> tuple[Map | None, Any]:
    """Return the function and the inputs whose values are the truth of x."""
    if in_graph(x, method):
        return None, x
    (x,) = admit({"x": _only_array(x)})[1]
    return (None, x) if dtype_kind(x.dtype) == "bool" else (_nonzero, (x,))


def _only_array(x: Array) -> Array:
    if isinstance(x, tuple):
        raise TypeError("x must be an array, got tuple")
    return x


class _Reduction:
    """One call, checked: what every method is given.

    ``arrays`` have one shape, ``axes`` count from the front in ascending order, ``n`` is the number of elements
    combined into one; ``dtypes`` and ``initial`` have one entry per component, or are None. ``operation`` is what
    the operator can be remembered by, or None. ``structure`` is how the values of fn are made of arrays, None for one
    or a plain tuple of them, as soon as that is known; then ``op`` takes plain tuples.
    """

    __slots__ = (
        "arrays",
        "axes",
        "dtypes",
        "fn",
        "initial",
        "keepdims",
        "key",
        "n",
        "op",
        "operation",
        "program",
        "shape",
        "single",
        "structure",
    )
    program: _Program

    def __init__(
        self,
        fn: Map | None,
        arrays: tuple[Array, ...],
        single: bool,
        op: Operator,
        axes: tuple[int, ...],
        keepdims: bool,
        dtypes: tuple[Any, ...] | None,
        initial: tuple[Any, ...] | None,
        operation: Any = None,
    ) -> None:
        self.fn, self.arrays, self.single, self.op, self.operation = fn, arrays, single, op, operation
        self.axes, self.keepdims, self.dtypes, self.initial = axes, keepdims, dtypes, initial
        self.key: Any = None
        self.structure: Structure = None
        self.shape: tuple[int, ...] = arrays[0].shape
        self.n = math.prod(self.shape[axis] for axis in axes)

    def take(self, structure: Structure) -> None:
        """Take note of how the values of fn are made of arrays."""
        if structure is not None:
            self.structure, self.op = structure, restructured(self.op, structure)

    def result(self, totals: tuple[Array, ...], single: bool) -> Any:
        """Return the components of a result as an element."""
        if self.structure is not None:
            return rebuilt(self.structure, totals)
        return totals[0] if single else totals

    def result_shape(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        if self.keepdims:
            return tuple(1 if axis in self.axes else length for axis, length in enumerate(self.shape))
        return tuple(length for axis, length in enumerate(self.shape) if axis not in self.axes)


def _reduce(
    primitive: str,
    fn: Map | None,
    x: Any,
    op: Any,
    axis: Any,
    keepdims: bool,
    dtype: Any,
    initial: Any,
    method: str,
) -> Any:
    """Check a call of any public function here and hand it to a method."""
    if in_graph(x, method):
        from parprims import _torch_ops

        return _torch_ops.reduce(primitive, fn, x, op, axis, keepdims, dtype, initial, method)
    key = None
    signature = None if initial is not None or watched() else _cuda.signature(x)
    if signature is not None:
        # A call like one before goes straight to its kernel: checks and choice depend on nothing else.
        operation = op if type(op) is str else lasting_key(op)
        mapping = () if fn is None else lasting_key(fn)
        if operation is not None and mapping is not None:
            kinds = type(x), type(axis), type(keepdims)  # 1 and True would be one key
            key = (primitive, mapping, operation, axis, keepdims, dtype, method, kinds, signature)
            try:
                shortcut = _shortcuts.get(key)
            except TypeError:  # an unhashable argument, which the checks below will name
                key = shortcut = None
            if shortcut is not None:
                return shortcut(x)
    operator = as_operator(op)
    single = not isinstance(x, tuple)
    arrays: tuple[Array, ...] = (x,) if single else x
    if not arrays:
        raise ValueError("x must hold at least one array")
    name = "x" if fn is None else "arrays"
    xp, admitted = admit({name if single else f"{name}[{index}]": one for index, one in enumerate(arrays)})
    arrays = tuple(admitted)
    if fn is None and operator.flags and builtins.any(one.shape != arrays[0].shape for one in arrays):
        arrays, key = flags_broadcast(xp, operator, arrays), None
    if not single and builtins.any(one.shape != arrays[0].shape for one in arrays):
        shapes = ", ".join(str(one.shape) for one in arrays)
        if fn is None:
            raise ValueError(f"x must be arrays of equal shape, got {shapes}")
        try:
            arrays, key = tuple(xp.broadcast_arrays(*arrays)), None
        except (ValueError, RuntimeError, TypeError):
            raise ValueError(f"arrays must broadcast against each other, got shapes {shapes}") from None
    axes = normalize_axes(axis, arrays[0].ndim)
    keepdims, dtypes = check_flag("keepdims", keepdims), as_dtypes(xp, dtype)
    _METHODS[primitive].check(method)
    start = None if initial is None else initial if isinstance(initial, tuple) else (initial,)
    reduction = _Reduction(fn, arrays, single, operator, axes, keepdims, dtypes, start, lasting_key(op))
    if fn is None:
        _check_elements(reduction, tuple(one.dtype for one in arrays))
    if reduction.n == 0 and primitive in ("max", "min"):
        raise ValueError(f"x must not be empty along the axes of a {primitive}, got shape {tuple(arrays[0].shape)}")
    if fn is None:
        _check_start(xp, reduction)
    elif listing():
        _check_mapped(xp, reduction)
    reduction.key = key
    return _derivatives.reduction(_METHODS[primitive], method, xp, reduction)


_shortcuts: dict[Any, Callable[[Any], Any]] = {}
_SUMS = (BUILT_IN["add"], BUILT_IN["multiply"])


def _check_elements(r: _Reduction, dtypes: tuple[Any, ...]) -> None:
    if r.initial is not None and len(r.initial) != len(dtypes):
        raise ValueError(f"initial must have {len(dtypes)} entries, one per component, got {len(r.initial)}")
    if r.dtypes is not None:
        if len(r.dtypes) != len(dtypes):
            raise ValueError(f"dtype must have {len(dtypes)} entries, one per component, got {len(r.dtypes)}")
        check_components(r.op, r.dtypes)
    elif not (r.op in _SUMS and len(dtypes) == 1 and dtype_kind(dtypes[0]) == "bool"):
        check_components(r.op, dtypes)


def _check_start(xp: Namespace, r: _Reduction) -> None:
    """Raise unless initial, or an identity where there are no elements, can stand before the elements."""
    if r.initial is None and r.n:
        return
    dtypes = _element_dtypes(xp, r, tuple(one.dtype for one in r.arrays))
    if r.initial is not None:
        shape, on = r.result_shape(), device(r.arrays[0])
        pairs = zip(r.initial, dtypes, strict=True)
        r.initial = tuple(as_array("initial", value, xp, dtype, on, shape) for value, dtype in pairs)
    elif r.op.identity(*(dtype_name(_working(r.op)(xp, dtype)) for dtype in dtypes)) is None:
        raise ValueError(f"x is empty along axis {r.axes} and op {r.op.name} has no identity: give initial")


def _check_mapped(xp: Namespace, r: _Reduction) -> None:
    """Raise what a call would on the values of fn, found from arrays without elements."""
    none = tuple(xp.reshape(one, (-1,))[:0] for one in r.arrays)
    with computing():
        values, dtypes, _ = _elements(xp, _Reduction(r.fn, none, False, r.op, (0,), False, r.dtypes, r.initial))
    mapped = copy.copy(r)
    mapped.fn, mapped.arrays, mapped.dtypes = None, values, dtypes
    _check_start(xp, mapped)


def _working(op: Operator) -> Callable[[Namespace, Any], Any]:
    """Return the function that finds the dtype elements are combined in outside of the kernel."""
    return ring_dtype if op in _SUMS else compute_dtype


def _element_dtypes(xp: Namespace, r: _Reduction, dtypes: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the dtype of each component of the result, for elements of the given dtypes."""
    if r.dtypes is not None:
        return r.dtypes
    if r.op in _SUMS:
        return tuple(sum_dtype(xp, dtype) for dtype in dtypes)
    return dtypes


def _elements(xp: Namespace, r: _Reduction) -> tuple[tuple[Array, ...], tuple[Any, ...], bool]:
    """Return the elements in the dtype they are combined in, the result's dtypes, and whether it is no tuple."""
    values, single = r.arrays, r.single
    if r.fn is not None:
        values, single = _values(xp, r)
        _check_elements(r, tuple(one.dtype for one in values))
    dtypes = _element_dtypes(xp, r, tuple(one.dtype for one in values))
    working = _working(r.op)
    values = tuple(cast(xp, one, working(xp, dtype)) for one, dtype in zip(values, dtypes, strict=True))
    return values, dtypes, single


def _values(xp: Namespace, r: _Reduction) -> tuple[tuple[Array, ...], bool]:
    """Return the values of fn, broadcast to the shape of the arrays, and whether it returned no tuple."""
    assert r.fn is not None
    fn = r.fn
    if fn is not _conjugate_product and fn is not _nonzero:
        fn = harmless_map(xp, fn, lasting_key(fn), r.arrays)
    try:
        result = fn(*r.arrays)
    except Exception as error:
        explain_failure("fn", error)
        raise
    single = not isinstance(result, tuple)
    values = (result,) if single else result
    if is_structured(result):
        values, structure = flattened(result, "fn")
        r.take(structure)
    if not values:
        raise TypeError("fn returned no array")
    broadcast = []
    for index, one in enumerate(values):
        if type(one) is not type(r.arrays[0]):
            check_result("fn", one, r.arrays[0], index if len(values) > 1 else None)
        if one.shape != r.shape:
            try:
                one = xp.broadcast_to(one, r.shape)
            except (ValueError, RuntimeError, TypeError):  # the libraries differ
                raise ValueError(
                    f"fn returned shape {tuple(one.shape)}, which does not broadcast to that of arrays, {r.shape}"
                ) from None
        broadcast.append(one)
    return tuple(broadcast), single


def _finish(
    xp: Namespace, r: _Reduction, totals: tuple[Array, ...] | None, like: tuple[Array, ...], dtypes: Any, single: bool
) -> Any:
    """Return the result: shaped, combined with the initial element, in its dtype. No totals means no elements.

    It shares no memory with an input, though an element alone may be one, and what an operator returns.
    """
    shape = r.result_shape()
    copied = r.n > 1 and BUILT_IN.get(r.op.name) is r.op
    if totals is not None:
        totals = tuple(total if total.shape == shape else xp.reshape(total, shape) for total in totals)
    if totals is None and r.initial is None:
        identity = r.op.identity(*(dtype_name(one.dtype) for one in like))
        if identity is None:
            raise ValueError(f"x is empty along axis {r.axes} and op {r.op.name} has no identity: give initial")
        totals = tuple(
            xp.full(shape, value, dtype=one.dtype, device=device(one))
            for value, one in zip(identity, like, strict=True)
        )
    if r.initial is not None:
        start = tuple(
            cast(xp, as_array("initial", value, xp, dtype, device(one), shape), one.dtype)
            for value, dtype, one in zip(r.initial, dtypes, like, strict=True)
        )
        totals = start if totals is None else r.op(start, totals)
    assert totals is not None
    result = tuple(
        as_result(cast(xp, total, dtype) if copied else xp.astype(total, dtype, copy=True))
        for total, dtype in zip(totals, dtypes, strict=True)
    )
    return r.result(result, single)


def empty(xp: Namespace, r: _Reduction) -> Any:
    """Return arrays like the result, having checked what every method checks."""
    xs, dtypes, single = _elements(xp, r)
    totals = tuple(xp.empty(r.result_shape(), dtype=x.dtype, device=device(x)) for x in xs) if r.n != 0 else None
    return _finish(xp, r, totals, xs, dtypes, single)


def tree(xs: tuple[Array, ...], op: Operator, axis: int) -> tuple[Array, ...]:
    """Return the combination of all elements along an axis counted from the front, which keeps length 1.

    Neighbours are combined, then neighbours of those, ceil(log2 n) times. There must be at least one element.
    """
    n = xs[0].shape[axis]
    rest = None
    while n > 1:
        half = n // 2
        if n % 2:
            last = tuple(x[along(axis, n - 1, n)] for x in xs)
            rest = last if rest is None else op(last, rest)
        # Adjacent pairs keep the order; where that is immaterial the two halves are read in longer runs.
        if op.commutative:
            earlier, later = along(axis, 0, half), along(axis, half, 2 * half)
        else:
            earlier, later = along(axis, 0, 2 * half, 2), along(axis, 1, 2 * half, 2)
        xs = op(tuple(x[earlier] for x in xs), tuple(x[later] for x in xs))
        n = half
    return xs if rest is None else op(xs, rest)


_SMALLEST_BLOCK, _LARGEST_BLOCK, _BLOCKS = 2**22, 2**28, 2**7
"""Elements are combined as many at once as a 2^7th of their bytes is, but no fewer and no more than these."""

Totals = tuple[tuple[Array, ...], tuple[Any, ...], bool]
"""The combinations in the dtypes computed in, the dtypes of the result, and whether it is no tuple."""


def _by_blocks(xp: Namespace, r: _Reduction, combine: Callable[[Namespace, _Reduction], Totals]) -> Totals:
    """Return what ``combine`` does, with no more memory than for a block of the elements and for results.

    How elements are grouped depends on the shape and dtypes alone: the totals of blocks are combined as by a tree.
    """
    lengths = _block_lengths(xp, r)
    if lengths is None:
        return combine(xp, r)
    slices = [
        [slice(start, builtins.min(start + length, n)) for start in range(0, n, length)]
        for n, length in zip(r.shape, lengths, strict=True)
    ]
    kept = tuple(axis for axis in range(len(r.shape)) if axis not in r.axes)

    def total(where: tuple[slice, ...]) -> Totals:
        """Return the combinations for some of the kept positions, with the combined axes of length 1."""
        waiting: list[tuple[int, tuple[Array, ...]]] = []  # totals of as many blocks as two to the first number
        dtypes: tuple[Any, ...] = ()
        single = True
        for cut in itertools.product(*(slices[axis] for axis in r.axes)):
            place = {**dict(zip(kept, where, strict=True)), **dict(zip(r.axes, cut, strict=True))}
            at = tuple(place[axis] for axis in range(len(r.shape)))
            arrays = tuple(x[at] for x in r.arrays)
            part = _Reduction(r.fn, arrays, r.single, r.op, r.axes, True, r.dtypes, None, r.operation)
            totals, dtypes, single = combine(xp, part)
            r.op, r.structure = part.op, part.structure  # of the values of fn
            totals = tuple(xp.reshape(one, part.result_shape()) for one in totals)
            size = 0
            while waiting and waiting[-1][0] == size:
                totals, size = r.op(waiting.pop()[1], totals), size + 1
            waiting.append((size, totals))
        totals = waiting.pop()[1]
        while waiting:
            totals = r.op(waiting.pop()[1], totals)
        return totals, dtypes, single

    def joined(where: tuple[slice, ...]) -> Totals:
        """Return the combinations for all kept positions that begin with these."""
        if len(where) == len(kept):
            return total(where)
        axis = kept[len(where)]
        parts = [joined((*where, part)) for part in slices[axis]]
        if len(parts) == 1:
            return parts[0]
        columns = zip(*(totals for totals, *_ in parts), strict=True)
        return (tuple(xp.concat(list(column), axis=axis) for column in columns), *parts[0][1:])

    return joined(())


def _block_lengths(xp: Namespace, r: _Reduction) -> tuple[int, ...] | None:
    """Return how much of each axis is combined at once, or None for everything.

    The longest axis is halved until a block is small enough; where order counts the first axis of those combined, as
    long as it is longer than 1. A compiler is given everything, and so are functions that may see more than an element.
    """
    if _cuda.is_jax(xp) or compiling(r.arrays):
        return None
    itemsize = builtins.sum(builtins.max(8, dtype_bits(x.dtype) // 8) for x in r.arrays)
    least = _LARGEST_BLOCK if _on_gpu(xp, r.arrays[0]) else _SMALLEST_BLOCK
    size = builtins.max(least, builtins.min(math.prod(r.shape) * itemsize // _BLOCKS, _LARGEST_BLOCK))
    block = builtins.max(1, size // itemsize)
    if math.prod(r.shape) <= block or not _is_elementwise(xp, r):
        return None
    found = list(r.shape)
    while math.prod(found) > block:
        free = list(range(len(found)))
        if not r.op.commutative:
            longer = [axis for axis in r.axes if found[axis] > 1]
            free = [axis for axis in free if axis not in r.axes or axis in longer[:1]]
        longest = builtins.max(free, key=lambda axis: found[axis])
        found[longest] = -(-found[longest] // 2)
    return tuple(found)


def _on_gpu(xp: Namespace, x: Array) -> bool:
    return array_api_compat.is_cupy_namespace(xp) or bool(getattr(x, "is_cuda", False))


def _is_elementwise(xp: Namespace, r: _Reduction) -> bool:
    """Return whether fn and the operator make of each element what they make of it alone: if they can be traced."""
    if r.fn in (None, _conjugate_product, _nonzero) and BUILT_IN.get(r.op.name) is r.op:
        return True
    try:
        _Program(xp, r)
    except Untraceable:
        return False
    return True


def _array(xp: Namespace, r: _Reduction) -> Any:
    """Return the combinations by a tree."""
    if r.n == 0:
        xs, dtypes, single = _elements(xp, r)
        return _finish(xp, r, None, xs, dtypes, single)
    totals, dtypes, single = _by_blocks(xp, r, _by_tree)
    return _finish(xp, r, totals, totals, dtypes, single)


def _by_tree(xp: Namespace, r: _Reduction) -> Totals:
    xs, dtypes, single = _elements(xp, r)
    xs, axis = _one_axis(xp, xs, r.axes)
    r.op = harmless(xp, r.op, r.operation, xs)
    return tree(xs, r.op, axis), dtypes, single


def _one_axis(xp: Namespace, xs: tuple[Array, ...], axes: tuple[int, ...]) -> tuple[tuple[Array, ...], int]:
    """Return the arrays with the axes made one, in row-major order, and its position.

    Axes that are neighbours merge where they are; others are moved to the end first.
    """
    shape = xs[0].shape
    if not axes:
        return tuple(xp.expand_dims(x, axis=0) for x in xs), 0
    first, last = axes[0], axes[-1]
    if last - first + 1 != len(axes):
        kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
        xs = tuple(xp.permute_dims(x, kept + axes) for x in xs)
        shape, first, last = xs[0].shape, len(kept), len(shape) - 1
    if first != last:
        merged = (*shape[:first], math.prod(shape[first : last + 1]), *shape[last + 1 :])
        xs = tuple(xp.reshape(x, merged) for x in xs)
    return xs, first


_NATIVE = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_and": "all",
    "logical_or": "any",
}


def _native(xp: Namespace, r: _Reduction) -> Any:
    """Return the combinations by the library's own reduction."""
    if r.n == 0:
        xs, dtypes, single = _elements(xp, r)
        return _finish(xp, r, None, xs, dtypes, single)
    dtypes = _element_dtypes(xp, r, tuple(x.dtype for x in r.arrays))
    if r.fn is None and _working(r.op)(xp, dtypes[0]) == r.arrays[0].dtype:
        totals, dtypes, single = _by_routine(xp, r)  # which takes the elements as they are
    elif r.fn is None and _widens(xp, r, dtypes[0]):
        totals, single = (getattr(xp, _NATIVE[r.op.name])(r.arrays[0], axis=r.axes, dtype=dtypes[0]),), True
    else:
        totals, dtypes, single = _by_blocks(xp, r, _by_routine)
    return _finish(xp, r, totals, totals, dtypes, single)


def _widens(xp: Namespace, r: _Reduction, dtype: Any) -> bool:
    """Return whether the library widens elements of a sum or product as it goes, in whatever order: NumPy and CuPy."""
    widens = array_api_compat.is_numpy_namespace(xp) or array_api_compat.is_cupy_namespace(xp)
    kinds = [dtype_kind(one) for one in (r.arrays[0].dtype, dtype)]
    return widens and r.op in _SUMS and kinds[0] in ("bool", "int", "uint") and kinds[1] in ("int", "uint")


def _by_routine(xp: Namespace, r: _Reduction) -> Totals:
    if r.fn is _conjugate_product and not lacks_products(xp, r.arrays[0], r.arrays[0].dtype):
        assert r.dtypes is not None
        dtype = ring_dtype(xp, r.arrays[0].dtype)
        x1, x2 = (cast(xp, x, dtype) for x in r.arrays)
        axis = r.axes[0] - len(r.shape)
        if is_tensor(x1) and narrowed(x1):
            return (xp.sum(_conjugate_product(x1, x2), axis=axis, dtype=dtype),), r.dtypes, True
        if is_tensor(x1):
            # What array_api_compat does, in operations for which torch.func.vmap has rules.
            x1, x2 = (move_axis(xp, x, axis, -1) for x in (x1, x2))
            return ((xp.conj(x1[..., None, :]) @ x2[..., None])[..., 0, 0],), r.dtypes, True
        # JAX on a GPU multiplies float32 with fewer bits unless it is told not to.
        precise = {"precision": "highest"} if _cuda.is_jax(xp) else {}
        return (xp.vecdot(x1, x2, axis=axis, **precise),), r.dtypes, True
    xs, dtypes, single = _elements(xp, r)
    function = getattr(xp, _NATIVE[r.op.name])
    typed = {"dtype": xs[0].dtype} if r.op.name in ("add", "multiply") else {}
    return (function(xs[0], axis=r.axes, **typed),), dtypes, single


def _native_refusal(xp: Namespace, r: _Reduction) -> str | None:
    if BUILT_IN.get(r.op.name) is not r.op or r.op.name not in _NATIVE:
        return f"{xp.__name__} has no reduction with the operator {r.op.name}"
    return _array_refusal(xp, r)


_ON_UNSIGNED = ("add", "multiply", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "bitwise_xor")


def _array_refusal(xp: Namespace, r: _Reduction) -> str | None:
    if r.fn not in (None, _nonzero, _conjugate_product):
        return lacks_arithmetic(xp, [one.dtype for one in r.arrays])
    if BUILT_IN.get(r.op.name) is r.op and r.op.name in _ON_UNSIGNED:
        return None
    return lacks_arithmetic(xp, _element_dtypes(xp, r, tuple(one.dtype for one in r.arrays)))


@dataclasses.dataclass(frozen=True)
class _Tile:
    """How the kernels cut their work. Frozen by the runs recorded in benches/results/nvidia-h200.json."""

    threads: int = 256
    long_threads: int = 512
    """Threads of a block that makes several rounds of loads over a long row."""
    bytes_in_flight: int = 64
    """What a thread loads before it uses the first of it, over all inputs."""
    blocks: int = 528
    """A long reduction is cut finer until it has this many blocks, so that every multiprocessor of a large GPU has
    four; a constant, so that the bits of a result do not depend on the GPU."""
    rounds: int = 16
    """The most rounds of loads a block makes, as long as the partials fit their scratch."""
    column_bytes: int = 32
    """The most bytes of totals a thread keeps when it reduces columns."""
    partial_bytes: int = 1 << 19
    """Scratch for partials."""


_TILE = _Tile()


class _Program:
    """The device functions of an operator and a map for inputs of given dtypes, and the plans made from them."""

    def __init__(self, xp: Namespace, r: _Reduction) -> None:
        names = tuple(dtype_name(x.dtype) for x in r.arrays)
        for name in names:
            if name not in C_TYPES:
                raise Untraceable(f"the kernel has no dtype {name}")
        loaded = tuple((name, f"x{index}") for index, name in enumerate(names))
        immutable = _cuda.is_jax(xp)
        self.structure: Structure = None
        if r.fn is None:
            body, values, self.single = [], loaded, r.single
        else:
            mapped = trace("fn", r.fn, *((one,) for one in loaded), packed=False, immutable=immutable)
            body, self.single, self.structure = mapped.lines, mapped.single, mapped.structure
            values = tuple(zip(mapped.dtypes, mapped.outputs, strict=True))
            r.take(self.structure)
        elements = tuple(Dtype(name) for name, _ in values)
        _check_elements(r, elements)
        dtypes = _element_dtypes(xp, r, elements)
        states = tuple(dtype_name(compute_dtype(xp, dtype)) for dtype in dtypes)
        check_components(r.op, tuple(Dtype(name) for name in states))
        # With an initial element to come, results keep the dtype they are computed in.
        self.results = tuple(dtype_name(dtype) for dtype in dtypes)
        self.outputs = self.results if r.initial is None else states
        combined = trace_combine(r.op, states, immutable=immutable)
        self.itemsizes = tuple(dtype_bits(name) // 8 for name in names)
        self.state_bytes = builtins.sum(-(-dtype_bits(name) // 32) * 4 for name in states)
        self.partial_bytes = builtins.max(self.state_bytes, -(-state_size(states) // 4) * 4)
        self._types = tuple(C_TYPES[name] for name in names)
        self._text = "\n".join(
            (
                structures(names, states, body, [code for _, code in values], combined),
                f"constexpr bool COMMUTATIVE = {'true' if r.op.commutative else 'false'};",
                "struct Outputs {",
                *(f"    {C_TYPES[name]}* y{index};" for index, name in enumerate(self.outputs)),
                "    DEVICE void write(long long at, const State& state) const {",
                *(
                    f"        y{index}[at] = store<{C_TYPES[name]}>(state.v{index});"
                    for index, name in enumerate(self.outputs)
                ),
                "    }",
                "};",
            )
        )
        self.functions: Any = None
        self.runners: dict[Any, Any] = {}

    def source(self, vector: int, vectorized: tuple[bool, ...]) -> str:
        """Return the CUDA text before the kernel, for vectors of so many elements."""
        loads = []
        for name, across, index in (("load_along", "false", "i, 0"), ("load_across", "true", "i, j")):
            loads.append(
                f"    DEVICE void {name}(Raw (&raw)[VEC], long long o, long long i"
                f"{', long long j' if across == 'true' else ''}) const {{"
            )
            for at, kind in enumerate(self._types):
                loads += [
                    f"        {kind} t{at}[VEC];",
                    f"        x{at}.template load<{across}>(t{at}, o, {index});",
                    "#pragma unroll",
                    f"        for (int k = 0; k < VEC; ++k) raw[k].x{at} = t{at}[k];",
                ]
            loads.append("    }")
        ones = ", ".join(
            f"x{at}.base[o * x{at}.outer + i * x{at}.along + j * x{at}.inner]" for at in range(len(self._types))
        )
        return "\n".join(
            (
                _cuda.device_source("_common.cuh"),
                f"constexpr int VEC = {vector};",
                self._text,
                "struct Inputs {",
                *(
                    f"    Input<{kind}, {'true' if aligned else 'false'}> x{at};"
                    for at, (kind, aligned) in enumerate(zip(self._types, vectorized, strict=True))
                ),
                *loads,
                "    DEVICE Raw load_one(long long o, long long i, long long j) const {",
                f"        return {{{ones}}};",
                "    }",
                "};",
                _cuda.device_source("_reduce.cu"),
            )
        )


def _fold(
    shape: tuple[int, ...], axes: tuple[int, ...], strides: tuple[tuple[int, ...], ...], *, reorder: bool
) -> tuple[list[tuple[int, tuple[int, ...]]], list[tuple[int, tuple[int, ...]]]]:
    """Return the kept axes and the combined axes as (length, stride in each array), neighbours merged.

    Two neighbours are one axis where, in every array, a step along the earlier is as long as all of the later. With
    ``reorder`` the combined axes may be taken in any order: the order of memory, where more of them merge.
    """
    kept: list[tuple[int, tuple[int, ...]]] = []
    combined: list[tuple[int, tuple[int, ...]]] = []
    for axis, length in enumerate(shape):
        if length != 1:
            (combined if axis in axes else kept).append((length, tuple(stride[axis] for stride in strides)))
    if reorder:
        combined.sort(key=lambda one: -abs(one[1][0]))
    for group in (kept, combined):
        at = 0
        while at + 1 < len(group):
            (n, outer), (m, inner) = group[at], group[at + 1]
            if builtins.all(a == m * b for a, b in zip(outer, inner, strict=True)):
                group[at : at + 2] = [(n * m, inner)]
            else:
                at += 1
    return kept, combined


def _plan(
    program: _Program,
    r: _Reduction,
    layouts: tuple[tuple[tuple[int, ...], int], ...],
) -> _cuda.Plan | None:
    """Return the launch for arrays of these layouts (strides in elements, address modulo 16).

    None if the arrays cannot be seen as (outer, n, inner) with one stride each.
    """
    kept, combined = _fold(r.shape, r.axes, tuple(strides for strides, _ in layouts), reorder=r.op.commutative)
    if len(kept) > 2 or len(combined) > 1:
        return None
    inputs = len(layouts)
    nothing = (1, (0,) * inputs)
    n, along = combined[0] if combined else nothing
    if len(kept) == 2:
        (outer, outward), (inner, across) = kept
    elif kept and kept[0][1] != (0,) * inputs and abs(kept[0][1][0]) < abs(along[0]):
        (outer, outward), (inner, across) = nothing, kept[0]
    else:
        (outer, outward), (inner, across) = (kept[0] if kept else nothing), nothing
    columns = inner > 1
    vector = builtins.max(1, 16 // builtins.max(program.itemsizes))
    if columns:
        # A thread keeps one total per column: no more of them than fit its registers.
        vector = builtins.min(vector, _cuda.power_of_two(_TILE.column_bytes // program.state_bytes))

    def aligned(at: int) -> bool:
        itemsize = program.itemsizes[at]
        unit, others = (across[at], along[at]) if columns else (along[at], 0)
        return (
            unit == 1
            and layouts[at][1] % (vector * itemsize) == 0
            and (others % vector == 0 or n == 1)
            and (outward[at] % vector == 0 or outer == 1)
        )

    vectorized = tuple(aligned(at) for at in range(inputs))
    if columns and not builtins.all(vectorized):
        # Threads side by side read side by side: without vectors, one element each.
        vector, vectorized = 1, (False,) * inputs
    unroll = _cuda.power_of_two(_TILE.bytes_in_flight // (vector * builtins.sum(program.itemsizes)), most=8)
    source = program.source(vector, vectorized)
    strides = [stride for at in range(inputs) for stride in (outward[at], along[at], across[at])]
    reads = ", ".join(
        f"{{(const {kind}*)in{at}, n{3 * at}, n{3 * at + 1}, n{3 * at + 2}}}" for at, kind in enumerate(program._types)
    )
    writes = ", ".join(f"({C_TYPES[name]}*)out{at}" for at, name in enumerate(program.outputs))
    outputs = tuple((r.result_shape(), name) for name in program.outputs)
    first = 3 * inputs

    def plan(
        call: str,
        *arguments: str,
        integers: tuple[int, ...],
        grid: int,
        block: int = _TILE.threads,
        zeroed: int = 0,
        scratch: int = 0,
    ) -> _cuda.Plan:
        named = [f"n{first + index}" for index in range(len(integers))]
        body = (
            f"  const Inputs in = {{{reads}}};\n  const Outputs out = {{{writes}}};\n"
            f"  {call}(in, out{''.join(f', {one}' for one in (*arguments, *named))});"
        )
        return _cuda.Plan(
            source,
            body,
            inputs,
            outputs,
            (*strides, *integers),
            grid,
            block,
            zeroed_bytes=zeroed,
            scratch_bytes=scratch,
            unbound_registers=columns,
        )

    memory = ("(unsigned*)zeroed", "(unsigned*)scratch")
    if columns:
        across_threads = _cuda.power_of_two(-(-inner // vector), up=True)
        if outer * -(-inner // vector) >= 2 * _TILE.blocks * _TILE.threads:
            across_threads = builtins.min(_TILE.threads, across_threads)  # columns enough to occupy every thread
        else:
            across_threads = builtins.min(32, across_threads)
        groups = _cuda.power_of_two(n // unroll, most=_TILE.threads // across_threads)
        turns = "true" if r.op.commutative and inner <= across_threads * vector else "false"
        outers = _TILE.threads // (across_threads * groups)
        tiles = -(-outer // outers) * -(-inner // (across_threads * vector))
        slot_bytes = outers * across_threads * vector * program.partial_bytes
        most = _TILE.partial_bytes // slot_bytes // tiles
        least_rows = 4 * groups * unroll
        chunks = builtins.max(1, builtins.min(-(-n // least_rows), -(-2 * _TILE.blocks // tiles), most))
        chunk = -(-n // chunks)
        chunks = -(-n // chunk)
        return plan(
            f"reduce_columns<{across_threads}, {groups}, {unroll}, {turns}>",
            *memory,
            integers=(outer, n, inner, chunk, chunks),
            grid=tiles * chunks,
            zeroed=4 * tiles if chunks > 1 else 0,
            scratch=tiles * chunks * slot_bytes // program.state_bytes * program.partial_bytes if chunks > 1 else 0,
        )
    rows = outer
    items = vector * unroll
    if n <= 32 * items or (n <= 256 * items and rows >= 16 * _TILE.blocks):
        lanes = builtins.min(32, _cuda.power_of_two(-(-n // items), up=True))
        return plan(
            f"reduce_short_rows<{_TILE.threads}, {lanes}, {unroll}>",
            integers=(rows, n),
            grid=-(-rows * lanes // _TILE.threads),
        )
    threads = _TILE.threads
    if rows * -(-n // (threads * items)) > _TILE.blocks:
        threads = _TILE.long_threads
    piece = threads * items
    pieces = -(-n // piece)
    rounds = builtins.min(_TILE.rounds, -(-rows * pieces // _TILE.blocks))
    most = builtins.max(1, _TILE.partial_bytes // program.partial_bytes // rows)
    rounds = builtins.max(rounds, -(-pieces // most))
    chunks = -(-pieces // rounds)
    return plan(
        f"reduce_rows<{threads}, {unroll}>",
        *memory,
        integers=(n, rounds * piece, chunks),
        grid=rows * chunks,
        block=threads,
        zeroed=4 * rows if chunks > 1 else 0,
        scratch=rows * chunks * program.partial_bytes if chunks > 1 else 0,
    )


def _kernel_refusal(xp: Namespace, r: _Reduction) -> str | None:
    reason = _cuda.refusal(xp, r.arrays)
    if reason is not None:
        return reason
    op, fn = r.operation, lasting_key(r.fn)
    dtypes = tuple([x.dtype for x in r.arrays])
    key: tuple[Any, ...] = (op, fn, xp, _cuda.mode(xp), dtypes, r.single, r.dtypes, r.initial is None)
    lasting = op is not None and fn is not None
    try:
        program = _programs.get(key) if lasting else None
        if program is None:
            program = _Program(xp, r)
            if not lasting:
                # What they read may have changed: they are known by what they were translated into, and on JAX, which
                # may call them itself later on, by the functions too, which the program keeps.
                program.functions = r.fn, r.op.combine
                known = tuple(map(id, program.functions)) if _cuda.is_jax(xp) else ()
                key = (program._text, program.structure, known, program.single, *key[2:])
                program = _programs.get(key, program)
            _cuda.remember(_programs, key, program)
    except Untraceable as reason:
        return str(reason)
    r.take(program.structure)
    r.program = program
    return None


_programs: dict[Any, _Program] = {}


def _kernel_slower(xp: Namespace, r: _Reduction) -> str | None:
    if _cuda.is_jax(xp) and _native_refusal(xp, r) is None:
        return "XLA's own reduction is as fast, and fuses with what produces the arrays"
    return None


def _kernel(xp: Namespace, r: _Reduction) -> Any:
    """Return the combinations by one launch of a CUDA kernel."""
    program = r.program
    if r.n == 0 or 0 in r.result_shape():
        return _array(xp, r)
    arrays = tuple(_cuda.plain(xp, x) for x in r.arrays)
    layouts = tuple(_cuda.layout(xp, x) for x in arrays)
    gpu = None if _cuda.is_jax(xp) else _cuda.device_index(xp, arrays[0])
    key = (r.shape, r.axes, r.keepdims, layouts, gpu)
    runner: Any = program.runners.get(key)
    if runner is None:
        plan = _plan(program, r, layouts)
        if plan is None:
            return _kernel_on_copies(xp, r, arrays)
        runner = _cuda.remember(program.runners, key, _runner(xp, r, plan, gpu))
    totals = runner(*arrays)
    if r.initial is not None:
        return _finish(xp, r, totals, totals, tuple(getattr(xp, name) for name in program.results), program.single)
    if r.key is not None and builtins.all(one is other for one, other in zip(arrays, r.arrays, strict=True)):
        structure = r.structure
        if structure is not None:
            shortcut = lambda xs: rebuilt(structure, runner(*xs))  # noqa: E731
        elif program.single and r.single:
            shortcut = runner.one if gpu is not None else lambda x: runner(x)[0]
        elif program.single:
            shortcut = lambda xs: runner(*xs)[0]  # noqa: E731
        else:
            shortcut = runner if r.single else lambda xs: runner(*xs)
        _cuda.remember(_shortcuts, r.key, shortcut)
    return r.result(totals, program.single)


def _kernel_on_copies(xp: Namespace, r: _Reduction, arrays: tuple[Array, ...]) -> Any:
    """Return the combinations where no (outer, n, inner) with one stride each fits: copies have the axes last."""
    kept = tuple(axis for axis in range(len(r.shape)) if axis not in r.axes)
    moved = tuple(_cuda.contiguous(xp, xp.permute_dims(x, kept + r.axes)) for x in arrays)
    axes = tuple(range(len(kept), len(r.shape)))
    other = _Reduction(r.fn, moved, r.single, r.op, axes, False, r.dtypes, r.initial)
    other.program = r.program
    result = _kernel(xp, other)
    ones = tuple(xp.reshape(one, r.result_shape()) for one in (result if isinstance(result, tuple) else (result,)))
    return r.result(ones, not isinstance(result, tuple))


def _runner(xp: Namespace, r: _Reduction, plan: _cuda.Plan, gpu: int | None) -> Callable[..., tuple[Array, ...]]:
    """Return a function that carries out the plan on arrays of its layout."""
    if gpu is not None:
        return _cuda.Runner(xp, plan, gpu)
    fn, single, op, axes, keepdims, dtypes, program = r.fn, r.single, r.op, r.axes, r.keepdims, r.dtypes, r.program

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        ones, _ = flattened(_array(xp, _Reduction(fn, arrays, single, op, axes, keepdims, dtypes, None)))
        return tuple(xp.astype(one, getattr(xp, name)) for one, name in zip(ones, program.outputs, strict=True))

    def batched(*arrays: Array) -> tuple[Array, ...]:
        arrays = tuple(xp.broadcast_arrays(*arrays))
        more = _Reduction(fn, arrays, single, op, tuple(axis + 1 for axis in axes), keepdims, dtypes, None)
        more.program = program
        result = _kernel(xp, more)
        return result if isinstance(result, tuple) else (result,)

    return _cuda.traced(plan, otherwise, batched)


_METHODS = {
    primitive: Methods(
        primitive,
        kernel=Method(_kernel, _kernel_refusal, _kernel_slower),
        native=Method(_native, _native_refusal),
        array=Method(_array, _array_refusal),
    )
    for primitive in ("reduce", "map_reduce", "sum", "prod", "max", "min", "any", "all", "vecdot")
}

"""Scan: y[i] = x[0] op x[1] op ... op x[i], in that order.

The public functions, and the one entry behind them: it asks whether a call like this one was made before, checks the
arguments if not, and hands the checked call, a `Scan`, to a method. The methods are in `cuda` (our CUDA) and
`scan_array` (array operations, and the library's own routine).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    as_dtypes,
    check_apart,
    check_flag,
    dtype_name,
    filled,
    is_split,
    normalize_axis,
)
from parprims._core.elements import is_structured, only_array
from parprims._core.options import check_entries, made_plain
from parprims._core.other_words import unknown_option
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device
from parprims._dispatch.dispatch import (
    Method,
    Methods,
    call_key,
    devices,
    directly,
    extensions,
    in_graph,
    nodes,
    primitive,
    recalled,
)
from parprims._operators.function_key import lasting_key
from parprims._operators.operator import Operator, as_operator, by_leaves, flags_broadcast, restarted
from parprims._primitives.scan import array as scan_array
from parprims._primitives.scan import cpu, cuda
from parprims._primitives.scan.array import Scan, result_dtypes, start_elements, working_dtypes


@primitive
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
    offsets: Array | None = None,
    check: bool | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
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
    offsets : array or sequence of int, optional
        The offsets of segments, of one dimension and an integer dtype: ascending, from 0 to the length of the axis.
        Segment j is offsets[j] <= i < offsets[j + 1], and perhaps empty; each is scanned by itself, with ``initial``
        before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default those in the
        memory of a CPU do. With True others do too, which synchronises a GPU; traced programs are refused. Wrong
        offsets that are not checked give unspecified results.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map` the axes of the mesh, on PyTorch the group of processes, that the axis is split over, of
        which x is a part: docs/devices.md.

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
    Work and depth: about 2n combinations in 2 log2 n steps (array). Kernel is one launch that reads and writes once.
    Order: elements are always combined earlier with later, so the operator need not be commutative.
    Error: a term of a sum passes at most 4 log2 n additions by array, n by a library, one after another, and by kernel
    n / 2048 + 100 on a CPU and n / 256 + 100 on a GPU (n / 2^18 + 100 along one long float32 axis), each of which owes
    half a unit in the last place of sum |x[0..i]|; 16-bit floats are combined in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array.
    Methods: kernel (CUDA arrays; by Numba those of NumPy, PyTorch and eager JAX on the CPU), native (operators the
    library can scan with; any on JAX), array.
    Derivatives: of add, multiply and affine, on PyTorch and JAX, by every method that takes the arrays.
    Memory, reference and more: docs/scan.md; CUDA graphs, several devices, torch.compile: docs/libraries.md.

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
    if others:
        raise unknown_option("scan", others)
    if isinstance(x, (tuple, dict)) and is_structured(x):
        options = {"axis": axis, "exclusive": exclusive, "reverse": reverse, "method": method, "axis_name": axis_name}
        return by_leaves(scan, x, op, initial=initial, dtype=dtype, offsets=offsets, check=check, **options)
    if offsets is not None:
        check_apart(axis_name)
        return extensions["scan by offsets"](x, op, offsets, axis, exclusive, reverse, dtype, initial, check, method)
    if check is not None:
        check_flag("check", check)
    return call("scan", x, op, axis, exclusive, reverse, initial, dtype, False, method, axis_name)


@primitive
def cumulative_sum(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Sum every element with all before it along an axis: the array API standard's ``cumulative_sum``.

    Parameters
    ----------
    x : array
        The terms, of any shape and numeric dtype; bool counts as an integer.
    axis : int or None
        The axis to sum along; None only for an array of one dimension.
    dtype : dtype or str, optional
        What terms are cast to first. By default integers narrower than the default integer widen to it; unsigned stay
        unsigned. Complex terms take no real dtype.
    include_initial : bool
        Whether the empty sum, 0, comes first; the result is then longer by one.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `scan`. The errors and notes of `scan` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the axis is split over, as in `scan`.

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
    if others:
        raise unknown_option("cumulative_sum", others)
    return call(
        "cumulative_sum", only_array(x), "add", axis, False, False, None, dtype, include_initial, method, axis_name
    )


@primitive
def cumulative_prod(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Multiply every element with all before it along an axis: the array API standard's ``cumulative_prod``.

    Parameters
    ----------
    x : array
        The factors, of any shape and numeric dtype; bool counts as an integer.
    axis : int or None
        The axis to multiply along; None only for an array of one dimension.
    dtype : dtype or str, optional
        What factors are cast to first. By default integers narrower than the default integer widen to it; unsigned stay
        unsigned. Complex factors take no real dtype.
    include_initial : bool
        Whether the empty product, 1, comes first; the result is then longer by one.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `scan`. The errors and notes of `scan` apply.
    axis_name : str, tuple of str or ProcessGroup, optional
        The axes of the mesh that the axis is split over, as in `scan`.

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
    if others:
        raise unknown_option("cumulative_prod", others)
    return call(
        "cumulative_prod",
        only_array(x),
        "multiply",
        axis,
        False,
        False,
        None,
        dtype,
        include_initial,
        method,
        axis_name,
    )


def call(
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
    axis_name: Any = None,
) -> Any:
    """Compute a call of any public function here."""
    if in_graph(x, method) and axis_name is None:
        return nodes().scan(primitive, x, op, axis, exclusive, reverse, initial, dtype, include_initial, method)
    key, operation = None, lasting_key(op)
    if operation is not None and axis_name is None:
        whole = x if initial is None else (x, initial)
        key = call_key(
            primitive, whole, operation, axis, exclusive, reverse, include_initial, dtype, method, gradient=True
        )
        run = recalled(key) or derivative_rules.recalled_scan(key)
        if run is not None:
            if initial is not None:
                return run(*_entries(x), *_entries(initial))
            return run(*x) if type(x) is tuple else run(x)
    plainer = made_plain(axis=axis)
    if plainer is not None:
        flags = exclusive, reverse, initial, dtype, include_initial
        return call(primitive, x, op, plainer["axis"], *flags, method, axis_name)
    if axis_name is not None or is_split(x):
        options = axis, exclusive, reverse, initial, dtype, include_initial, method
        return devices().compute("scanned", x, axis_name, primitive, x, op, *options)
    operator = as_operator(op)
    single = not isinstance(x, tuple)
    given: tuple[Array, ...] = (x,) if single else x
    if not given:
        raise ValueError("x must hold at least one array")
    xp, admitted = admit({"x" if single else f"x[{index}]": one for index, one in enumerate(given)})
    xs = tuple(admitted)
    exclusive, reverse = check_flag("exclusive", exclusive), check_flag("reverse", reverse)
    include_initial = check_flag("include_initial", include_initial)
    _METHODS[primitive].check(method)
    if any(one.shape != xs[0].shape for one in xs):
        xs = flags_broadcast(xp, operator, xs)
    if any(one.shape != xs[0].shape for one in xs):
        raise ValueError(f"x must be arrays of equal shape, got {', '.join(str(tuple(one.shape)) for one in xs)}")
    index = only_axis(axis, xs[0].ndim)
    dtypes = result_dtypes(xp, operator, tuple(one.dtype for one in xs), as_dtypes(xp, dtype))
    working = working_dtypes(xp, operator, dtypes)
    starts: tuple[Any, ...] = ()
    complete = identity = None
    if initial is not None:
        check_entries("initial", _entries(initial), len(xs))
        starts, begin = start_elements(xp, _entries(initial), xs[0], xs[0].shape, dtypes, index)
        count = len(xs)

        def complete(*given: Any) -> tuple[Array, ...]:
            return *given[:count], *begin(*given[count:])

    elif exclusive or include_initial:
        identity = operator.identity(*(dtype_name(one) for one in working))
        if identity is None:
            raise ValueError(f"initial must be given for an exclusive scan, for op {operator.name} has no identity")
    by_segments = exclusive and operator.flags > 0
    as_given = all(one is other for one, other in zip(xs, given, strict=True))
    r = Scan(
        arrays=(*xs, *starts),
        key=key if as_given and not by_segments else None,
        complete=complete,
        shape=xs[0].shape,
        single=single,
        op=operator,
        operation=operation,
        axis=index,
        exclusive=exclusive,
        reverse=reverse,
        identity=identity,
        n=xs[0].shape[index] + int(include_initial),  # a length may be a symbol, to which PyTorch adds no bool
        working=working,
        dtypes=dtypes,
    )
    compute = _by_segments if by_segments else derivative_rules.scan
    return compute(_METHODS[primitive], method, xp, r)


def only_axis(axis: Any, ndim: int) -> int:
    """Return the axis counted from the front; None is the axis of an array that has one."""
    if axis is not None:
        return normalize_axis(axis, ndim)
    if ndim == 0:
        raise ValueError("x must have at least one dimension, for axis to be one of them")
    if ndim > 1:
        raise ValueError(f"axis must be given for an array of {ndim} dimensions")
    return 0


def _entries(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _by_segments(methods: Methods, method: str, xp: Namespace, r: Scan) -> tuple[Array, ...]:
    """Return an exclusive scan with a segmented operator, which begins anew at every flag."""
    count, starts = r.op.flags, r.starts
    if starts:  # no flag before the first element, so that results tell which were met
        r = r.on(*r.inputs, *(xp.zeros_like(one) for one in starts[:count]), *starts[count:])
    ys = derivative_rules.scan(methods, method, xp, r)
    if not starts:
        assert r.identity is not None
        starts = tuple([filled(xp, value, y, r.axis) for value, y in zip(r.identity, ys, strict=True)])
    return restarted(xp, r.op, r.inputs[:count], starts, bool(r.starts), ys)


_METHODS = {
    name: Methods(
        name,
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal),
            Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True),
        ),
        native=Method(
            scan_array.prepare_native,
            scan_array.native_refusal,
            derivative=scan_array.native_derivative,
            quiet=scan_array.never_warns,
        ),
        array=Method(directly(scan_array.array), scan_array.array_refusal),
    )
    for name in (
        "scan",
        "cumulative_sum",
        "cumulative_prod",
        "cumulative_max",
        "cumulative_min",
        "cumulative_logsumexp",
    )
}

"""Linear recurrence: x[n] = a[n] x[n-1] + b[n], a scan of affine maps.

The public function and the checks of its arguments, and the derivatives that the kernel finds in one launch. The
methods are in `scan_cuda` (our CUDA) and `recurrence_array` (array operations, and the library's own routine).
"""

from __future__ import annotations

from typing import Any, Never

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    broadcast_shapes,
    check_apart,
    check_flag,
    check_kind,
    device,
    dtype_kind,
    dtype_name,
    is_split,
    library,
    normalize_axis,
    shown,
    sum_dtype,
)
from parprims._core.options import made_plain
from parprims._core.other_words import unknown_option
from parprims._core.promotion import promoted
from parprims._core.scalars import NUMBERS, as_array, as_number, is_scalar
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device
from parprims._dispatch.composite import fitted
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
from parprims._primitives.recurrence import array as recurrence_array
from parprims._primitives.recurrence import gradient_cpu
from parprims._primitives.recurrence.array import Recurrence
from parprims._primitives.scan import cpu as scan_cpu
from parprims._primitives.scan import cuda as scan_cuda
from parprims._primitives.scan.array import start_elements
from parprims._primitives.scan.source import Adjoint


@primitive
def linear_recurrence(
    a: Array,
    b: Array,
    /,
    *,
    axis: int = -1,
    initial: Any = None,
    reverse: bool = False,
    offsets: Array | None = None,
    check: bool | None = None,
    matrices: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Solve the first-order linear recurrence x[n] = a[n] x[n-1] + b[n] along an axis.

    Parameters
    ----------
    a, b : array or number
        The coefficients and the right-hand side, of numeric dtypes that promote together without a change between
        integers and floats, and of shapes that broadcast against each other; ``a`` may be a constant of no
        dimension. One of them may be a number, or have dtype bool; both take the dtype of the other. A fraction takes
        no integers: ``linear_recurrence(0.99, counts)`` says to cast them.
    axis : int
        The axis of the broadcast shape along which n counts.
    initial : scalar or array, optional
        The element x[-1] before the first, of a shape that broadcasts to that of the result without the axis.
        Without it x[0] = b[0] and a[0] is not read.
    reverse : bool
        Whether the recurrence starts at the end: x[n] = a[n] x[n+1] + b[n], ``initial`` being the element after
        the last.
    offsets : array or sequence of int, optional
        The offsets of segments, of one dimension and an integer dtype: ascending, from 0 to the length of the axis.
        Segment j is offsets[j] <= n < offsets[j + 1], and perhaps empty; each is a recurrence of its own, with
        ``initial`` before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default those in the
        memory of a CPU do. With True others do too, which synchronises a GPU; traced programs are refused. Wrong
        offsets that are not checked give unspecified results.
    matrices : bool
        Whether x[n] are vectors of k numbers, along the last axis of b and of the result, and a[n] are k x k matrices,
        along the last two axes of a, (..., n, k, k), or one of them, (k, k). Then axis does not count these.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map` the axes of the mesh, on PyTorch the group of processes, that the axis is split over, of
        which a and b are parts: docs/devices.md.

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
    Work and depth: about 4n multiplications and 3n additions in 2 log2 n steps (array), n of both in n steps (native).
    Kernel is one launch.
    State: the last element of x is the ``initial`` of what follows.
    Error: within 2n units in the last place of the same recurrence for |a| and |b|, as in the sequential loop (three
    times that for complex numbers). 16-bit floats are computed in float32 and rounded once; integers are exact.
    Special values: an infinity or NaN in b, or in a, makes that element and all after it infinite or NaN.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array.
    Methods: kernel (CUDA arrays; by Numba those of NumPy, PyTorch and eager JAX on the CPU), native (JAX; BLAS on NumPy
    with SciPy and PyTorch's CPU, or steps along many lines side by side), array.
    Derivatives: by a, b and initial on PyTorch and JAX, by every method.
    Memory, overflow, reference and more: docs/linear_recurrence.md and docs/libraries.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.linear_recurrence(np.array([2.0, 3.0, 0.0, 2.0]), np.array([1.0, 1.0, 5.0, 1.0]))
    array([ 1.,  4.,  5., 11.])
    >>> parprims.linear_recurrence(0.5, np.zeros(4), initial=16.0)
    array([8., 4., 2., 1.])
    """
    if others:
        raise unknown_option("linear_recurrence", others)
    if matrices is not False and check_flag("matrices", matrices):
        if offsets is not None:
            raise ValueError("offsets must be None where coefficients are matrices")
        options = {"axis": axis, "initial": initial, "reverse": reverse, "method": method}
        vectors: Array = extensions["linear_recurrence of matrices"](a, b, **options)
        return vectors
    if offsets is not None:
        check_apart(axis_name)
        options = {"axis": axis, "initial": initial, "reverse": reverse, "check": check, "method": method}
        solution: Array = extensions["linear_recurrence by offsets"](a, b, offsets=offsets, **options)
        return solution
    if check is not None:
        check_flag("check", check)
    if in_graph((a, b), method) and axis_name is None:
        return nodes().linear_recurrence(a, b, axis, initial, reverse, method)
    given = (a, b) if initial is None else (a, b, initial)
    key = None
    if axis_name is None:
        key = call_key("linear_recurrence", given, axis, reverse, method, gradient=True)
    run = recalled(key)
    if run is not None:
        return run(*given)
    plainer = made_plain(axis=axis)
    if plainer is not None:
        return linear_recurrence(a, b, **plainer, initial=initial, reverse=reverse, method=method, axis_name=axis_name)
    if axis_name is not None or is_split((a, b)):
        return devices().compute("solved", (a, b), axis_name, a, b, axis, initial, reverse, method)
    xp, (a, b) = coefficients(a, b)
    reverse = check_flag("reverse", reverse)
    _METHODS.check(method)
    dtype = promoted(xp, {"a": a, "b": b}, _KINDS)
    try:
        shape = broadcast_shapes(tuple(a.shape), tuple(b.shape))
    except ValueError:
        raise ValueError(
            f"a and b must broadcast against each other, got shapes {tuple(a.shape)} and {tuple(b.shape)}"
        ) from None
    index = normalize_axis(axis, len(shape))
    starts, begin = start_elements(xp, given[2:], b, shape, (dtype,) * len(given[2:]), index)

    def complete(a: Any, b: Any, *initial: Any) -> tuple[Array, ...]:
        return *_coefficients(xp, a, b), *begin(*initial)

    as_given = a is given[0] and b is given[1]
    remembered = all(one is other or type(other) in NUMBERS for one, other in zip((a, b), given, strict=False))
    r = Recurrence(
        arrays=(a, b, *starts),
        key=key if remembered else None,
        complete=None if as_given and initial is None else complete,
        shape=shape,
        constant=a.ndim == 0,
        axis=index,
        reverse=reverse,
        dtype=dtype,
    )
    return derivative_rules.recurrence(_METHODS, method, xp, r)


def _coefficients(xp: Namespace, a: Any, b: Any) -> tuple[Array, Array]:
    """Return the coefficients of a call that is known to be right but for its numbers."""
    if type(a) in NUMBERS:
        a = _as_coefficient(xp, "a", a, b)
    elif type(b) in NUMBERS:
        b = _as_coefficient(xp, "b", b, a)
    return a, b


def _as_coefficient(xp: Namespace, name: str, number: Any, like: Array) -> Array:
    """Return a number as an array of no dimension, of the dtype of the other coefficient."""
    return as_array(name, number, xp, like.dtype, device(like), ())


def coefficients(a: Any, b: Any) -> tuple[Namespace, list[Array]]:
    """Return the namespace and both coefficients as arrays; one may be a number, or truth values, of the other's dtype.

    Truth values alone count as integers, as in sums.
    """
    for name, number, other, array in (("a", as_number(a), "b", b), ("b", as_number(b), "a", a)):
        if is_scalar(number) and not is_scalar(as_number(array)):
            xp, (array,) = admit({other: array})
            (array,) = _counted(xp, array)
            check_kind(other, array, _KINDS)
            fractional = isinstance(number, float | complex | np.inexact)
            if fractional and dtype_kind(array.dtype) in ("int", "uint"):
                to = dtype_name(array.dtype)
                raise TypeError(f"{name} must fit dtype {to}, got {shown(number)}: cast {other} to a float dtype")
            if fractional and isinstance(number, np.generic) and library(xp) == "numpy":
                made = np.asarray(number)  # which NumPy promotes by its dtype
            else:
                made = _as_coefficient(xp, name, number, array)
            return xp, [made, array] if name == "a" else [array, made]
    xp, arrays = admit({"a": a, "b": b})
    return xp, _counted(xp, *arrays)


_KINDS = ("int", "uint", "float", "complex")


def _counted(xp: Namespace, *arrays: Array) -> list[Array]:
    """Return arrays, those of truth values in the dtype of another, or where there is none in that of integers."""
    others = [x.dtype for x in arrays if dtype_kind(x.dtype) != "bool"]
    if len(others) == len(arrays):
        return list(arrays)
    dtype = others[0] if others else sum_dtype(xp, xp.bool)
    return [fitted(xp, x, dtype) if dtype_kind(x.dtype) == "bool" else x for x in arrays]


def adjoint(
    xp: Namespace, a: Array, g: Array, x: Array | None, axis: int, reverse: bool, method: str
) -> tuple[Array, Array | None] | None:
    """Return the derivatives of a linear recurrence by b and, with x, by a, from one kernel; None where none serves.

    Parameters are those of `derivative_rules.adjoint`; the derivative by a takes no initial element into account.
    """
    inputs = (a, g) if x is None else (a, g, x)
    if method not in ("auto", "kernel"):
        return None
    key = call_key("adjoint", inputs, axis, reverse)
    run = recalled(key)
    if run is not None:
        found = run(*inputs)
    else:
        if 0 in g.shape or any(one.dtype != g.dtype for one in inputs):
            return None
        r = Adjoint(arrays=inputs, key=key, shape=g.shape, axis=axis, reverse=not reverse)
        if _ADJOINT.chosen("auto", xp, r) is None:
            return None
        found = _ADJOINT("kernel", xp, r)
    return (found, None) if x is None else found


_METHODS = Methods(
    "linear_recurrence",
    kernel=by_device(
        Method(scan_cuda.prepare, scan_cuda.refusal, derivative=derivative_rules.solution),
        Method(scan_cpu.prepare, scan_cpu.refusal, scan_cpu.slower, derivative=derivative_rules.solution, quiet=True),
    ),
    native=Method(
        recurrence_array.prepare_native, recurrence_array.native_refusal, derivative=derivative_rules.solution
    ),
    array=Method(directly(recurrence_array.array), derivative=derivative_rules.solution),
)
_ADJOINT = Methods(
    "linear_recurrence",
    kernel=by_device(
        Method(scan_cuda.prepare, scan_cuda.refusal),
        Method(gradient_cpu.prepare, gradient_cpu.refusal, quiet=True),
    ),
)

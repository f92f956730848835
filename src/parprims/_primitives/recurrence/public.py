"""Linear recurrence: x[n] = a[n] x[n-1] + b[n], a scan of affine maps.

The public function, and derivatives in one launch. The kernels are shared with scans.
"""

from __future__ import annotations

from typing import Any, Never

from parprims._core.arrays import Array, Namespace, check_flag
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device, in_programs
from parprims._dispatch.dispatch import Method, Methods, directly, primitive, unordered
from parprims._dispatch.examples import of_two
from parprims._dispatch.prepared import call_key, recalled
from parprims._dispatch.primitive import Primitive
from parprims._primitives.recurrence import array as recurrence_array
from parprims._primitives.recurrence import gradient_cpu
from parprims._primitives.recurrence.call import checked, departs
from parprims._primitives.recurrence.matrices import OF_MATRICES
from parprims._primitives.scan import cpu as scan_cpu
from parprims._primitives.scan import cuda as scan_cuda
from parprims._primitives.scan.last import last_states, with_last
from parprims._primitives.scan.source import Adjoint


@primitive
def linear_recurrence(
    a: Array,
    b: Array,
    /,
    *,
    axis: int = -1,
    initial: Any = None,
    return_last: bool = False,
    reverse: bool = False,
    offsets: Array | None = None,
    check: bool | None = None,
    segment_ids: Array | None = None,
    num_segments: int | None = None,
    matrices: bool = False,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Any:
    """Solve the first-order linear recurrence x[n] = a[n] x[n-1] + b[n] along an axis.

    Parameters
    ----------
    a, b : array or number
        The coefficients and the right-hand side, of numeric dtypes that promote together, integer or floating, and of
        shapes that broadcast against each other. One of them may be a Python number, or have dtype bool, and then takes
        the dtype of the other. ``a`` may be a 0-d array, which promotes like any array: float64 and float32 give
        float64 (but a 16-bit tensor of PyTorch keeps its dtype). A fraction with integers is an error: in
        ``linear_recurrence(0.99, counts)``, cast ``counts`` to a floating dtype.
    axis : int, default -1
        The axis along which n counts, in the broadcast shape of a and b.
    initial : scalar or array, optional
        The element x[-1] before the first, of a shape that broadcasts to the shape of the result without the axis. With
        segments, an array of as many dimensions as the result has an element for each segment: its shape broadcasts to
        that of the result with the number of segments as the length of the axis. If it is not given, x[0] = b[0], and
        a[0] is not read.
    return_last : bool, default False
        Whether the last states are returned too: the last element of x, or the first if ``reverse``. A call on the
        coefficients that follow goes on from there with these states as its ``initial``.
    reverse : bool, default False
        Whether the recurrence starts at the end: x[n] = a[n] x[n+1] + b[n]. ``initial`` is then the element after the
        last.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is a recurrence of its own, with ``initial`` before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    segment_ids : array, optional
        The number of the segment of each position along the axis, in one dimension and any order. Each segment is
        solved separately, with ``initial`` before it, as with offsets. The solution is b at a position whose number is
        below 0, or num_segments or more.
    num_segments : int, optional
        The number of segments; given with segment_ids.
    matrices : bool, default False
        Whether each x[n] is a vector of k numbers, along the last axis of b and of the result, and each a[n] a k x k
        matrix, along the last two axes of a: (..., n, k, k), or (k, k) for a single matrix. ``axis`` does not count
        these axes.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the axis is split over; on PyTorch, the group of processes.
        Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array or (array, array)
        The solution x, of the broadcast shape and the promoted dtype. With return_last also the last states: of this
        shape without the axis, or with segments of this shape with the number of segments as the length of the axis.
        The last state of a segment without elements is its ``initial``.

    Raises
    ------
    TypeError
        If an argument is no array, arrays come from several libraries, or their dtypes do not promote together.
    ValueError
        If shapes do not broadcast or an argument has an unknown value. If last states of segments, or of no elements,
        are asked for without ``initial``. If offsets and segment_ids are both given, or either with matrices.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    scan : Scan with any operator, such as affine.
    lfilter : Linear filters of any order.

    Notes
    -----
    Work and depth: about 4n multiplications and 3n additions in n / 8192 + 70 steps (array [1]_ [2]_); n
    multiplications and n additions in n steps (native). The kernel is one launch.
    State: to continue a recurrence, pass the last element of x as ``initial``, or the states of ``return_last``.
    Error: within 2n units in the last place of the same recurrence for |a| and |b|, as in the sequential loop (three
    times that for complex numbers). 16-bit floats are computed in float32 and rounded once; integers are exact.
    Special values: an infinity or NaN in b, or in a, makes that element and all after it infinite or NaN.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array. By array, and by kernels
    for CPUs, a line of a batch has the same bits as the line alone, and may be continued at multiples of 8192 elements;
    by kernels for GPUs so by method canonical.
    Methods: kernel (CUDA arrays; by Numba, arrays of NumPy, PyTorch and eager JAX on the CPU), native (JAX; on NumPy
    with SciPy and on PyTorch's CPU BLAS, or steps along many lines side by side), array.
    Derivatives: by a, b and initial on PyTorch and JAX, by every method.
    Memory, overflow and more: the page "linear_recurrence" of the documentation. CUDA graphs and torch.compile: its
    page "Programs and settings of JAX, PyTorch and CuPy".

    References
    ----------
    .. [1] Kogge and Stone, A Parallel Algorithm for the Efficient Solution of a General Class of Recurrence Equations,
       IEEE Trans. Comput. C-22(8), 1973.
    .. [2] Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.linear_recurrence(np.array([2.0, 3.0, 0.0, 2.0]), np.array([1.0, 1.0, 5.0, 1.0]))
    array([ 1.,  4.,  5., 11.])
    >>> parprims.linear_recurrence(0.5, np.zeros(4), initial=16.0)
    array([8., 4., 2., 1.])

    From the end, along the first axis, and with a sequence in each segment:

    >>> parprims.linear_recurrence(0.5, np.array([0.0, 0.0, 1.0]), reverse=True)
    array([0.25, 0.5 , 1.  ])
    >>> parprims.linear_recurrence(0.5, np.ones((3, 2)), axis=0)
    array([[1.  , 1.  ],
           [1.5 , 1.5 ],
           [1.75, 1.75]])
    >>> parprims.linear_recurrence(0.5, np.ones(4), offsets=np.array([0, 2, 4]))
    array([1. , 1.5, 1. , 1.5])
    >>> parprims.linear_recurrence(0.5, np.ones(4), offsets=[0, 2, 2, 4], initial=np.array([2.0, 4.0, 6.0]))
    array([2., 2., 4., 3.])
    >>> parprims.linear_recurrence(0.5, np.ones(4), segment_ids=np.array([1, 0, 1, 0]), num_segments=2)
    array([1. , 1. , 1.5, 1.5])

    Vectors with a matrix for each step, here the Fibonacci numbers:

    >>> a = np.broadcast_to(np.array([[1, 1], [1, 0]]), (4, 2, 2))
    >>> parprims.linear_recurrence(a, np.zeros((4, 2), int), axis=0, matrices=True, initial=np.array([1, 0]))[:, 0]
    array([1, 2, 3, 5])

    Inside programs of JAX, with a derivative:

    >>> import jax
    >>> b = jax.numpy.ones(3)
    >>> jax.jit(parprims.linear_recurrence)(b / 2, b).tolist()
    [1.0, 1.5, 1.75]
    >>> jax.grad(lambda b: parprims.linear_recurrence(b / 2, b)[-1].sum())(b).tolist()
    [0.25, 0.75, 1.75]
    """
    arrays, options = {"a": a, "b": b, "initial": initial}, {"axis": axis, "reverse": reverse}
    wants_last = return_last is not False and check_flag("return_last", return_last)
    if matrices is not False and check_flag("matrices", matrices):
        for name, value in (("offsets", offsets), ("segment_ids", segment_ids), ("num_segments", num_segments)):
            if value is not None:
                raise ValueError(f"{name} must be None where coefficients are matrices")
        if wants_last:
            return last_states(
                _OF_MATRICES_WITH_LAST, others, arrays, method, axis_name=axis_name, check=check, **options
            )
        return OF_MATRICES(others, arrays, method, **options)
    segments: dict[str, Any] = {"offsets": offsets, "check": check}
    if segment_ids is not None or num_segments is not None:
        segments |= {"segment_ids": segment_ids, "num_segments": num_segments, "return_last": wants_last}
    elif wants_last:
        return last_states(_WITH_LAST, others, arrays, method, axis_name=axis_name, **segments, **options)
    return LINEAR_RECURRENCE(others, arrays, method, axis_name, **segments, **options)


def adjoint(
    xp: Namespace, a: Array, g: Array, x: Array | None, axis: int, reverse: bool, method: str
) -> tuple[Array, Array | None] | None:
    """Return the derivatives with respect to b and, given x, to a by one kernel; None if no kernel computes them.

    Parameters as in `derivative_rules.adjoint`; the derivative with respect to a ignores the initial element.
    """
    inputs = (a, g) if x is None else (a, g, x)
    if method not in ("auto", "kernel"):
        return None
    key = call_key("adjoint", inputs, axis, reverse)
    run = recalled(key)
    if run is not None:
        result = run(*inputs)
    else:
        if 0 in g.shape or any(x.dtype != g.dtype for x in inputs):
            return None
        r = Adjoint(arrays=inputs, key=key, shape=g.shape, axis=axis, reverse=not reverse)
        if _ADJOINT.chosen("auto", xp, r) is None:
            return None
        result = _ADJOINT("kernel", xp, r)
    return (result, None) if x is None else result


_ON_CPU = Method(scan_cpu.prepare, scan_cpu.refusal, scan_cpu.slower, derivative=derivative_rules.solution, quiet=True)
LINEAR_RECURRENCE = Primitive(
    name="linear_recurrence",
    check=checked,
    methods=Methods(
        "linear_recurrence",
        departs,
        kernel=by_device(
            Method(scan_cuda.prepare, scan_cuda.refusal, derivative=derivative_rules.solution),
            _ON_CPU,
            in_programs(_ON_CPU, Method(recurrence_array.prepare_native), batched=scan_cpu.batched),
        ),
        native=Method(
            recurrence_array.prepare_native, recurrence_array.native_refusal, derivative=derivative_rules.solution
        ),
        array=Method(directly(recurrence_array.array), derivative=derivative_rules.solution),
    ),
    example=of_two,
    optional=("initial",),
    compute=derivative_rules.recurrence,
    rules="recurrence",
    single=True,
    sharded=True,
)
_WITH_LAST, _OF_MATRICES_WITH_LAST = with_last(LINEAR_RECURRENCE), with_last(OF_MATRICES, behind=1)
_ADJOINT = Methods(
    "linear_recurrence",
    unordered,
    kernel=by_device(
        Method(scan_cuda.prepare, scan_cuda.refusal),
        Method(gradient_cpu.prepare, gradient_cpu.refusal, quiet=True),
    ),
)

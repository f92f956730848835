"""Scan: y[i] = x[0] op x[1] op ... op x[i], in that order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import Array, Namespace, check_flag, filled
from parprims._core.elements import is_tree, only_array
from parprims._dispatch import derivative_rules
from parprims._dispatch.by_device import by_device, in_programs
from parprims._dispatch.dispatch import Method, Methods, directly, primitive
from parprims._dispatch.examples import MakesCall, of_an_array
from parprims._dispatch.primitive import Primitive
from parprims._dispatch.registry import nodes
from parprims._operators.flags import restarted
from parprims._operators.operator import Operator, by_leaves
from parprims._primitives.scan import array, cpu, cuda
from parprims._primitives.scan.call import Scan, checked, departs
from parprims._primitives.scan.last import last_states, paired, with_last
from parprims._primitives.scan.trailing_axes.parts import of_scans


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
    return_last: bool = False,
    dtype: Any = None,
    offsets: Array | None = None,
    check: bool | None = None,
    segment_ids: Array | None = None,
    num_segments: int | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Any:
    """Combine every element with all before it along an axis: y[i] = x[0] op x[1] op ... op x[i].

    Parameters
    ----------
    x : array, or tree of array
        The elements, of any shape and any dtype that the operator takes. Several arrays, in tuples, lists, dicts or
        other trees of JAX, are the components of an element. They may have different axes behind the axis of the call.
    op : str, Operator or callable, default "add"
        The operator: a built-in name (add, multiply, maximum, minimum, logical_and, logical_or, bitwise_and,
        bitwise_or, bitwise_xor, logaddexp, affine, argmax, argmin, welford), an `Operator`, or an associative function
        ``combine(earlier, later)``. It need not be commutative.
    axis : int, default -1
        The axis to scan along.
    exclusive : bool, default False
        Whether y[i] leaves x[i] out: y[i] = x[0] op ... op x[i-1], and y[0] is ``initial`` or the identity.
    reverse : bool, default False
        Whether the scan starts at the end: the array is flipped, scanned and flipped back, so that
        y[i] = x[n-1] op ... op x[i+1] op x[i]. The element nearer to the end is then the earlier one.
    initial : scalar, array, or a tuple of these, optional
        An element that every result begins with: y[i] = initial op x[0] op ... op x[i]. Its shape broadcasts to that of
        x without the axis. With offsets, an array of as many dimensions as x has an element for each segment: its shape
        broadcasts to that of x with the number of segments as the length of the axis. For several components it is a
        tuple, or has the structure of x.
    return_last : bool, default False
        Whether the last states are returned too: the inclusive result of the last element, or of the first if
        ``reverse``. A call on the elements that follow goes on from there with these states as its ``initial``.
    dtype : dtype, str or tuple of these, optional
        The dtype that elements are cast to before they are combined, or its name in the standard; for several
        components a tuple. By default, add and multiply widen integers as the standard's ``cumulative_sum`` does, and
        every other operator keeps the dtype.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is scanned separately, with ``initial`` before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    segment_ids : array, optional
        The number of the segment of each position along the axis, in one dimension and any order. Each element is
        combined with the elements of its segment alone. An element whose number is below 0, or num_segments or more, is
        returned as it is.
    num_segments : int, optional
        The number of segments; given with segment_ids.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the axis is split over; on PyTorch, the group of processes.
        Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array, or tree of array
        The combinations, of the shape and with the structure of x: a NamedTuple for a NamedTuple. With return_last also
        the last states, with the structure of x: of the shape of x without the axis, or with offsets of the shape of x
        with the number of segments as the length of the axis. The last state without elements is ``initial``, or the
        identity.

    Raises
    ------
    TypeError
        If x is no array, arrays come from several libraries, or a dtype does not suit the operator. If the operator
        works in place, branches on the value of an array, or returns other than it was given.
    ValueError
        If lengths along the axis differ, an argument has an unknown value, or an exclusive scan has neither
        ``initial`` nor an identity to start with. If last states of segments, or of no elements, are asked for and
        there is neither. If offsets and segment_ids are both given.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine all elements.
    cumulative_sum : Sums of all elements up to each.
    linear_recurrence : Solve x[n] = a[n] x[n-1] + b[n].

    Notes
    -----
    Work and depth: about 3n combinations in n / 2048 + 60 steps (array; integers 2n in 2 log2 n [1]_ [2]_). The kernel
    is one launch, which reads and writes each element once; on GPUs its tiles look back [3]_.
    Order: the operator always gets the earlier element first, so it need not be commutative.
    Arguments: ``jax.lax.associative_scan(fn, elems)`` is ``scan(elems, fn, axis=0)``.
    Error: each term of a sum takes part in at most n / 4096 + 40 additions by array and by kernel on a CPU, or n / 2048
    + 50 for complex numbers; n / 256 + 100 by kernel on a GPU (n / 2^18 + 100 along one long float32 axis); and n by a
    library that adds one element after another. Each addition errs by at most half an ulp of sum(abs(x[:i+1])). 16-bit
    floats are combined in float32 and rounded once.
    Reproducibility: the same input gives the same bits, run after run, by kernel and array. By array, and by kernel on
    a CPU, the bits of a result depend on the elements of its line up to its own alone; by kernel on a GPU they do by
    method canonical.
    Methods: kernel (CUDA arrays; by Numba, arrays of NumPy, PyTorch and eager JAX on the CPU), native (operators that
    the library can scan with; on JAX any operator), array.
    Derivatives: of add, multiply and affine, on PyTorch and JAX, by every method that takes the arrays.
    Memory and more: the page "scan" of the documentation. CUDA graphs and torch.compile: its page
    "Programs and settings of JAX, PyTorch and CuPy".

    References
    ----------
    .. [1] Hillis and Steele, Data Parallel Algorithms, CACM 29(12), 1986.
    .. [2] Blelloch, Prefix Sums and Their Applications, CMU-CS-90-190, 1990.
    .. [3] Merrill and Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016.

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

    Along the first axis, and with an operator of your own on pairs of arrays, here maps t -> a t + b:

    >>> parprims.scan(np.array([[1, 2], [3, 4]]), axis=0)
    array([[1, 2],
           [4, 6]])
    >>> compose = lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1])
    >>> parprims.scan((np.full(3, 0.5), np.ones(3)), compose)[1]
    array([1.  , 1.5 , 1.75])

    Segments, and a scan that continues an earlier one:

    >>> parprims.scan(x, offsets=np.array([0, 1, 4]))
    array([3, 1, 5, 6])
    >>> parprims.scan(x, initial=100)
    array([103, 104, 108, 109])
    >>> parprims.scan(x, offsets=[0, 1, 1, 4], initial=np.array([100, 200, 300]), return_last=True)
    (array([103, 301, 305, 306]), array([103, 200, 306]))
    >>> parprims.scan(x, segment_ids=np.array([2, 0, 2, 0]), num_segments=3)
    array([3, 1, 7, 2])

    Inside programs of JAX, with a derivative:

    >>> import jax
    >>> jax.jit(parprims.scan)(jax.numpy.asarray(x)).tolist()
    [3, 4, 8, 9]
    >>> jax.grad(lambda x: parprims.scan(x)[-1])(jax.numpy.ones(3)).tolist()
    [1.0, 1.0, 1.0]
    """
    if (isinstance(x, tuple) or not hasattr(x, "dtype")) and is_tree(x):
        return by_leaves(
            scan, x, op, axis=axis, exclusive=exclusive, reverse=reverse, initial=initial, return_last=return_last,
            dtype=dtype, offsets=offsets, check=check, segment_ids=segment_ids, num_segments=num_segments,
            method=method, axis_name=axis_name, **others,
        )  # fmt: skip
    arrays = {"x": x, "initial": initial}
    options = {"op": op, "axis": axis, "exclusive": exclusive, "reverse": reverse, "dtype": dtype}
    wants_last = return_last is not False and check_flag("return_last", return_last)
    segments: dict[str, Any] = {"offsets": offsets, "check": check}
    if segment_ids is not None or num_segments is not None:
        segments |= {"segment_ids": segment_ids, "num_segments": num_segments}
        ys = SCAN(others, arrays, method, axis_name, **segments, return_last=wants_last, **options)
    elif wants_last:
        ys = last_states(_WITH_LAST, others, arrays, method, axis_name=axis_name, **segments, **options)
    else:
        return SCAN(others, arrays, method, axis_name, **segments, **options)
    return paired(ys, single=not isinstance(x, tuple)) if wants_last else ys


@primitive
def cumulative_sum(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: Array | None = None,
    check: bool | None = None,
    segment_ids: Array | None = None,
    num_segments: int | None = None,
    reproducible: str | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Sum every element with all before it along an axis: the array API standard's ``cumulative_sum``.

    Parameters
    ----------
    x : array
        The terms, of any shape and numeric dtype; bool counts as an integer.
    axis : int or None, default None
        The axis to sum along; None only for an array of one dimension.
    dtype : dtype or str, optional
        The dtype that terms are cast to first. By default, integers narrower than the default integer widen to it;
        unsigned integers stay unsigned. Complex terms are not cast to a real dtype.
    include_initial : bool, default False
        Whether the empty sum, 0, comes first; the result is then longer by one.
    exclusive : bool, default False
        Whether every result leaves its own element out; the first result is ``initial``, or 0.
    reverse : bool, default False
        Whether every element is combined with all behind it, from the last on, and not with all before it.
    initial : scalar or array, optional
        An element before the first, behind the last if ``reverse``. Its shape broadcasts to that of x without the axis.
        With offsets, an array of as many dimensions as x has an element for each segment: its shape broadcasts to that
        of x with the number of segments as the length of the axis.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is scanned separately, with ``initial`` before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    segment_ids : array, optional
        The number of the segment of each position along the axis, in one dimension and any order. Each element is
        combined with the elements of its segment alone. An element whose number is below 0, or num_segments or more, is
        returned as it is.
    num_segments : int, optional
        The number of segments; given with segment_ids.
    reproducible : {"everywhere"}, optional
        With "everywhere", running sums of real floats have the same bits by every library, method and device. See the
        page "reduce".
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the axis is split over; on PyTorch, the group of processes.
        Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The sums, of the shape of x, or one longer along the axis.

    Raises
    ------
    TypeError
        If x is no array, or dtype does not suit its elements.
    ValueError
        If axis is None and x has several dimensions, an argument has an unknown value, or ``include_initial`` is True
        beside ``exclusive`` or offsets.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    scan : Scan with any operator; its notes on cost, error and reproducibility apply.
    sum : The sum of all elements.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.cumulative_sum(np.array([1, 2, 3]), include_initial=True)
    array([0, 1, 3, 6])
    >>> parprims.cumulative_sum(np.array([1, 2, 3, 4]), offsets=[0, 1, 4], exclusive=True)
    array([0, 0, 2, 5])
    >>> parprims.cumulative_sum(np.array([1, 2, 3]), reverse=True, initial=10)
    array([16, 15, 13])

    Along an axis:

    >>> parprims.cumulative_sum(np.array([[1, 2], [3, 4]]), axis=0)
    array([[1, 2],
           [4, 6]])
    """
    arrays, options = {"x": only_array(x), "initial": initial}, {"axis": axis, "dtype": dtype}
    options |= {"include_initial": include_initial, "exclusive": exclusive, "reverse": reverse}
    segments = {"offsets": offsets, "check": check, "segment_ids": segment_ids, "num_segments": num_segments}
    return CUMULATIVE_SUM(others, arrays, method, axis_name, reproducible=reproducible, **segments, **options)


@primitive
def cumulative_prod(
    x: Array,
    /,
    *,
    axis: int | None = None,
    dtype: Any = None,
    include_initial: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
    initial: Any = None,
    offsets: Array | None = None,
    check: bool | None = None,
    segment_ids: Array | None = None,
    num_segments: int | None = None,
    method: str = "auto",
    axis_name: Any = None,
    **others: Never,
) -> Array:
    """Multiply every element with all before it along an axis: the array API standard's ``cumulative_prod``.

    Parameters
    ----------
    x : array
        The factors, of any shape and numeric dtype; bool counts as an integer.
    axis : int or None, default None
        The axis to multiply along; None only for an array of one dimension.
    dtype : dtype or str, optional
        The dtype that factors are cast to first. By default, integers narrower than the default integer widen to it;
        unsigned integers stay unsigned. Complex factors are not cast to a real dtype.
    include_initial : bool, default False
        Whether the empty product, 1, comes first; the result is then longer by one.
    exclusive : bool, default False
        Whether every result leaves its own element out; the first result is ``initial``, or 1.
    reverse : bool, default False
        Whether every element is combined with all behind it, from the last on, and not with all before it.
    initial : scalar or array, optional
        An element before the first, behind the last if ``reverse``. Its shape broadcasts to that of x without the axis.
        With offsets, an array of as many dimensions as x has an element for each segment: its shape broadcasts to that
        of x with the number of segments as the length of the axis.
    offsets : array or sequence of int, optional
        The offsets of segments: integers that ascend from 0 to the length of the axis, in one dimension. Segment j
        begins at offsets[j], ends before offsets[j + 1], and may be empty. A list or a NumPy array is accepted with
        every library. Each segment is scanned separately, with ``initial`` before it.
    check : bool, optional
        Whether offsets that do not ascend from 0 to the length of the axis raise ValueError. By default, offsets in CPU
        memory are checked. True checks offsets on a GPU too, which synchronises the device, and is refused in traced
        programs. False checks none. Wrong offsets that are not checked give unspecified results.
    segment_ids : array, optional
        The number of the segment of each position along the axis, in one dimension and any order. Each element is
        combined with the elements of its segment alone. An element whose number is below 0, or num_segments or more, is
        returned as it is.
    num_segments : int, optional
        The number of segments; given with segment_ids.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.
    axis_name : str, tuple of str or ProcessGroup, optional
        Inside `jax.shard_map`, the axes of the mesh that the axis is split over; on PyTorch, the group of processes.
        Each device passes its own part. See the page "Arrays that are split over devices".

    Returns
    -------
    array
        The products, of the shape of x, or one longer along the axis.

    Raises
    ------
    TypeError
        If x is no array, or dtype does not suit its elements.
    ValueError
        If axis is None and x has several dimensions, an argument has an unknown value, or ``include_initial`` is True
        beside ``exclusive`` or offsets.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    scan : Scan with any operator; its notes on cost, error and reproducibility apply.
    prod : The product of all elements.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.cumulative_prod(np.array([1, 2, 3, 4]))
    array([ 1,  2,  6, 24])
    >>> parprims.cumulative_prod(np.array([1, 2, 3, 4]), reverse=True)
    array([24, 24, 12,  4])
    >>> parprims.cumulative_prod(np.array([1, 2, 3, 4]), offsets=[0, 2, 4])
    array([ 1,  2,  3, 12])

    Along an axis:

    >>> parprims.cumulative_prod(np.array([[1, 2], [3, 4]]), axis=0)
    array([[1, 2],
           [3, 8]])
    """
    arrays, options = {"x": only_array(x), "initial": initial}, {"axis": axis, "dtype": dtype}
    options |= {"include_initial": include_initial, "exclusive": exclusive, "reverse": reverse}
    segments = {"offsets": offsets, "check": check, "segment_ids": segment_ids, "num_segments": num_segments}
    return CUMULATIVE_PROD(others, arrays, method, axis_name, **segments, **options)


# ---- Declarations -----------------------------------------------------------------------------------------------


def _computed(methods: Methods, method: str, xp: Namespace, r: Scan) -> Any:
    """Return the scan. Exclusive scans with a segmented operator restart at every flag."""
    of_shapes = Methods.__call__ if r.shapes is not None else derivative_rules.scan
    if not (r.exclusive and r.op.flags):
        return of_shapes(methods, method, xp, r)
    count, starts = r.op.flags, r.starts
    if starts:  # no flag before the first element, so that the flags of results show which flags came before
        r = r.on(*r.inputs, *(xp.zeros_like(x) for x in starts[:count]), *starts[count:])
    ys = of_shapes(methods, method, xp, r)
    if not starts:
        assert r.identity is not None
        starts = tuple([filled(xp, value, y, r.axis) for value, y in zip(r.identity, ys, strict=True)])
    return restarted(xp, r.op, r.inputs[:count], starts, bool(r.starts), ys)


def declared_scan(name: str, example: MakesCall = of_an_array, **defaults: Any) -> Primitive:
    """Return the declaration of a scan with fixed values of some options."""
    on_cpu = Method(cpu.prepare, cpu.refusal, cpu.slower, quiet=True)
    methods = Methods(
        name,
        departs,
        kernel=by_device(
            of_scans(Method(cuda.prepare, cuda.refusal), array.operations),
            of_scans(on_cpu, array.operations),
            of_scans(
                in_programs(
                    on_cpu,
                    Method(array.prepare_native, array.native_refusal),
                    Method(directly(array.array)),
                    batched=cpu.batched,
                ),
                array.operations,
            ),
        ),
        native=Method(
            array.prepare_native,
            array.native_refusal,
            derivative=array.native_derivative,
            quiet=array.never_warns,
        ),
        array=Method(directly(array.array), array.array_refusal),
    )
    return Primitive(
        name=name,
        check=checked,
        methods=methods,
        example=example,
        optional=("initial",),
        defaults=defaults,
        operators=("op",),
        recall=derivative_rules.recalled_scan,
        compute=_computed,
        node=lambda asked: nodes().scan(asked),
        rules="scan",
        sharded=True,
    )


SCAN = declared_scan("scan", lambda make: ((make(), "add"), make.along), include_initial=False)
_WITH_LAST = with_last(SCAN)
CUMULATIVE_SUM = declared_scan("cumulative_sum", op="add")
CUMULATIVE_PROD = declared_scan("cumulative_prod", op="multiply")

"""Segments of uneven length: reductions, scans, recurrences and sorts by offsets, and reductions by segment numbers.

The elements of a segment are adjacent: segment j from offsets[j] to offsets[j + 1]. A scan of all elements by an
operator that restarts at flags scans every segment, in a time that does not depend on their lengths; the last results
of segments are the reductions. A sort by keys, then stably by the number of the segment, sorts every segment. GPU
kernels have algorithms of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

from parprims._core.arrays import Array, Namespace
from parprims._core.elements import is_tree
from parprims._core.options import is_array
from parprims._dispatch.ascending import as_offsets
from parprims._dispatch.dispatch import Methods, primitive
from parprims._dispatch.examples import Given, MakesCall, Sample, lines
from parprims._dispatch.primitive import Arguments, Check, Primitive
from parprims._operators.operator import Operator, by_leaves
from parprims._primitives.recurrence.public import LINEAR_RECURRENCE
from parprims._primitives.reduce.public import REDUCE
from parprims._primitives.scan.cumulative import CUMULATIVE_LOGSUMEXP, EXTREMA
from parprims._primitives.scan.public import CUMULATIVE_PROD, CUMULATIVE_SUM, SCAN
from parprims._primitives.segments.by_ids import BY_IDS
from parprims._primitives.segments.call import (
    Segmented,
    Wider,
    checked_by_ids,
    checked_by_offsets,
    checked_recurrence,
    checked_scan_by_ids,
    checked_sort,
)
from parprims._primitives.segments.methods import METHODS
from parprims._primitives.sort.public import ARGSORT, SORT, SORT_BY_KEY


@primitive
def segment_reduce(
    x: Array | tuple[Array, ...],
    ids: Array,
    /,
    num_segments: int,
    op: str | Operator | Callable[[Any, Any], Any] = "add",
    *,
    axis: int = 0,
    indices_are_sorted: bool = False,
    dtype: Any = None,
    initial: Any = None,
    reproducible: str | None = None,
    method: str = "auto",
    **others: Never,
) -> Any:
    """Combine the elements of every segment, given the number of the segment of each element.

    Parameters
    ----------
    x : array, or tree of array
        The elements, of at least one dimension and any dtype that the operator takes. Several components are given as
        in `reduce`. They may have different axes behind the axis of the call.
    ids : array
        The number of the segment of each position along the axis, of one dimension and an integer dtype. Elements whose
        number is not from 0 to num_segments - 1 are ignored.
    num_segments : int
        The number of segments.
    op : str, Operator or callable, default "add"
        The operator, as in `reduce`. It need not be commutative: elements of a segment are combined in their order in
        x.
    axis : int, default 0
        The axis to combine along: by default the first, unlike in `scan` (the last) and `reduce` (all).
    indices_are_sorted : bool, default False
        Whether ids ascend, which saves a sort. This is not checked.
    dtype : dtype, str or tuple of these, optional
        The dtype that elements are cast to before they are combined, as in `reduce`.
    initial : scalar, array, or a tuple of these, optional
        An element combined from the left with every segment. It is the result of a segment without elements. By
        default, this result is the identity of the operator; the identity of argmax has the largest position that its
        dtype holds.
    reproducible : {"everywhere"}, optional
        With "everywhere", sums of real floats have the same bits by every library, method and device, in any order of
        the elements. Only for add, without initial. See the page "reduce".
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array, or tree of array
        The combinations, of the shape of x except for length num_segments along the axis, and with the structure of x.

    Raises
    ------
    TypeError
        If an argument is no array, ids are no integers, or a dtype does not suit the operator.
    ValueError
        If shapes do not fit, an argument has an unknown value, or the operator has no identity and initial is missing.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot compute this call.

    See Also
    --------
    reduce : Combine all elements, or with offsets the elements of each segment.
    sort_by_key : Sort keys, and move values with them.
    unique : The distinct elements, and their counts.

    Notes
    -----
    Work and depth: one combination for each element by kernel on CPUs, by native, and by kernel on GPUs in one
    dimension if the order changes no bits or segments are few. Otherwise, and for several components, kernel does a
    stable sort by ids and a `reduce` with offsets; array does an `argsort` of ids and a `scan`.
    Error: by kernel and native, a sum takes at most n additions, and each errs by at most half an ulp of the sum of
    abs(x) of its segment (NumPy adds in float64). By array the bound of `scan` holds.
    Reproducibility: the same input gives the same bits, run after run, by every method, whatever the operator.
    Methods: kernel (CPU arrays by Numba; on GPUs operators that can be translated, with few segments in one dimension,
    and all calls for which `sort_by_key` and `reduce` have a kernel), native (NumPy, PyTorch on CPUs), array.
    Derivatives: by x on PyTorch and JAX, as the library's operations have them.
    Memory and more: the page "Segments: offsets, and segment_reduce" of the documentation.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.segment_reduce(np.array([1, 2, 3, 4]), np.array([2, 0, 2, 0]), 3)
    array([6, 0, 4])

    With another operator, with an operator of your own, and along the last axis:

    >>> x, ids = np.array([1, 2, 3, 4]), np.array([2, 0, 2, 0])
    >>> parprims.segment_reduce(x, ids, 3, "maximum", initial=0)
    array([4, 0, 3])
    >>> last = parprims.Operator(lambda earlier, later: later, identity=-1)
    >>> parprims.segment_reduce(x, ids, 3, last)
    array([ 4, -1,  3])
    >>> parprims.segment_reduce(np.array([[1, 2], [3, 4]]), np.array([1, 1]), 2, axis=1)
    array([[0, 3],
           [0, 7]])

    Elements of several components: the mean of each segment.

    >>> count, mean, squares = parprims.segment_reduce((np.ones(4), 1.0 * x, np.zeros(4)), ids, 3, "welford")
    >>> mean
    array([3., 0., 2.])

    Inside a program of JAX:

    >>> import jax
    >>> sums = jax.jit(lambda x: parprims.segment_reduce(x, jax.numpy.asarray(ids), 3))
    >>> sums(jax.numpy.asarray(x)).tolist()
    [6, 0, 4]
    """
    if (isinstance(x, tuple) or not hasattr(x, "dtype")) and is_tree(x):

        def of_leaves(leaves: Any, flat_op: Any, **options: Any) -> Any:
            return segment_reduce(leaves, ids, num_segments, flat_op, **options)

        asked: dict[str, Any] = {"axis": axis, "indices_are_sorted": indices_are_sorted, "method": method, **others}
        asked["reproducible"] = reproducible
        return by_leaves(of_leaves, x, op, initial=initial, dtype=dtype, **asked)
    options = {"op": op, "axis": axis, "indices_are_sorted": indices_are_sorted, "dtype": dtype, "initial": initial}
    forms = {"num_segments": num_segments, "reproducible": reproducible}
    return SEGMENT_REDUCE(others, {"x": x, "ids": ids}, method, **forms, **options)


# ---- Declarations -----------------------------------------------------------------------------------------------


def _with_array(asked: Arguments) -> Arguments:
    """Return the call with its list of offsets as an array."""
    arrays = dict(asked.arrays)
    options = {"initial": arrays.pop("initial")} if "initial" in arrays else {}
    x = next(iter(arrays.values()))
    array = next(iter(x), None) if isinstance(x, tuple) else x
    ranks = {getattr(one, "ndim", None) for one in x} if isinstance(x, tuple) else ()
    alone = len(ranks) < 2 or (isinstance(asked["axis"], int) and asked["axis"] >= 0)  # the check names another axis
    offsets = as_offsets(asked["offsets"], array, asked["axis"], asked["check"], alone=alone)
    return asked.on({**arrays, "offsets": offsets}, **options)


def _with_initial_as_option(asked: Arguments) -> Arguments:
    arrays = dict(asked.arrays)
    return asked.on(arrays, initial=arrays.pop("initial")) if "initial" in arrays else asked


def _with_initial_last(asked: Arguments) -> Arguments:
    arrays = dict(asked.arrays)
    initial = arrays.pop("initial")
    return asked.on({**arrays, "initial": initial})


def _with_array_beside_coefficients(asked: Arguments) -> Arguments:
    a, b = asked["a"], asked["b"]
    array = b if hasattr(type(b), "shape") else a
    alone = array is a or not is_array(a) or tuple(a.shape) in ((), tuple(b.shape))
    offsets = as_offsets(asked["offsets"], array, asked["axis"], asked["check"], alone=alone)
    return asked.on({"a": a, "b": b, "offsets": offsets, "initial": asked["initial"]})


def _rounded_once(methods: Methods, method: str, xp: Namespace, call: Segmented | Wider) -> Any:
    """Return the result of a checked call; the result of a `Wider` call is rounded."""
    if not isinstance(call, Wider):
        return methods(method, xp, call)
    name = call.asked.name
    return call.computed((SEGMENT_REDUCE if name == "segment_reduce" else _BY_OFFSETS[name]).of)


def _declared(whole: Primitive, check: Check, **fields: Any) -> Primitive:
    """Return the declaration of a function for segments, and store it in the declaration for whole arrays."""

    def example(make: Sample) -> Given | None:
        arguments = whole.example(make)
        return None if arguments is None else (arguments[0], {**arguments[1], "offsets": make.offsets()})

    fields = {"name": whole.name, "methods": METHODS[whole.name], "normalize": _with_array, **fields}
    whole.by_offsets = Primitive(variant="by offsets", check=check, example=example, **fields)
    return whole.by_offsets


def _of_groups(whole: Primitive) -> MakesCall:
    """Return the example of a scan with segment_ids."""

    def example(make: Sample) -> Given | None:
        arguments = whole.example(make)
        groups = {"segment_ids": make.ids(), "num_segments": 3}
        return None if arguments is None else (arguments[0], {**arguments[1], **groups})

    return example


def _by_ids(make: Sample) -> Given:
    return (make(), make.ids(), 3), {}


_OF_ELEMENTS: dict[str, Any] = {
    "operators": ("op",), "numbers": ("initial",), "or_arrays": "initial", "compute": _rounded_once,
    "single": lambda asked: not isinstance(asked["x"], tuple),
}  # fmt: skip
SEGMENT_REDUCE = Primitive(
    name="segment_reduce",
    check=checked_by_ids,
    methods=METHODS["segment_reduce"],
    example=lines(_by_ids),
    **_OF_ELEMENTS,
)
_BY_OFFSETS = {
    "reduce": _declared(REDUCE, checked_by_offsets, **{**_OF_ELEMENTS, "operators": ("op", "fn")}),
    **{
        one.name: _declared(one, checked_by_offsets, **_OF_ELEMENTS)
        for one in (SCAN, CUMULATIVE_SUM, CUMULATIVE_PROD, *EXTREMA.values(), CUMULATIVE_LOGSUMEXP)
    },
}
for _scan in (SCAN, CUMULATIVE_SUM, CUMULATIVE_PROD, *EXTREMA.values(), CUMULATIVE_LOGSUMEXP):
    _scan.by_ids = Primitive(
        name=_scan.name,
        variant="by segment_ids",
        check=checked_scan_by_ids,
        methods=BY_IDS[_scan.name],
        example=_of_groups(_scan),
        normalize=_with_initial_as_option,
        operators=("op",),
        numbers=("initial",),
        or_arrays="initial",
        single=lambda asked: not (isinstance(asked["x"], tuple) or asked.options.get("return_last")),
    )
_declared(
    LINEAR_RECURRENCE, checked_recurrence, normalize=_with_array_beside_coefficients, optional=("initial",), single=True
)
LINEAR_RECURRENCE.by_ids = Primitive(
    name="linear_recurrence",
    variant="by segment_ids",
    check=checked_recurrence,
    methods=BY_IDS["linear_recurrence"],
    example=_of_groups(LINEAR_RECURRENCE),
    normalize=_with_initial_last,
    optional=("initial",),
    single=lambda asked: not asked.options.get("return_last"),
)
for _sorts in (SORT, ARGSORT, SORT_BY_KEY):
    _declared(_sorts, checked_sort)

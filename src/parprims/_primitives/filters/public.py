"""Digital filters: recurrences of some order with constant coefficients, alone and in cascades."""

from __future__ import annotations

from typing import Any, Never

from parprims._core.arrays import Array, Namespace
from parprims._dispatch.by_device import by_device, in_programs
from parprims._dispatch.dispatch import Method, Methods, directly, primitive
from parprims._dispatch.examples import Given, MakesCall, Sample, floats
from parprims._dispatch.primitive import Check, Primitive
from parprims._primitives.filters import cpu, cuda, native
from parprims._primitives.filters.array import array, array_refusal
from parprims._primitives.filters.call import Filter, check_lfilter, check_sosfilt, departs, with_own_coefficients


@primitive
def lfilter(
    b: Array, a: Array, x: Array, /, *, axis: int = -1, zi: Array | None = None, method: str = "auto", **others: Never
) -> Any:
    """Filter along an axis: a[0] y[n] = b[0] x[n] + ... + b[k] x[n-k] - a[1] y[n-1] - ... - a[k] y[n-k].

    The filter is a recurrence of order k with constant coefficients, in the transposed direct form II, like SciPy's
    ``lfilter``.

    Parameters
    ----------
    b : array
        The coefficients of the numerator, of one dimension and a floating dtype, real or complex.
    a : array
        The coefficients of the denominator, of one dimension like b. a[0] must not be zero; all coefficients are
        divided by it. On a GPU, and in a traced program, a[0] is not checked: if it is zero, results are not finite.
    x : array
        The signal, of at least one dimension and a floating dtype. All dtypes promote together.
    axis : int, default -1
        The axis to filter along.
    zi : array, optional
        The state before the first sample, of the shape of x except for the length along the axis: k, the larger length
        of b and a, minus one. Along other axes the length may be 1, to broadcast. The default is zero.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array or (array, array)
        The filtered signal, of the shape of x and the promoted dtype; with zi also the state after the last sample, to
        be passed as zi with the samples that follow.

    Raises
    ------
    TypeError
        If an argument is no array, or dtypes are no floats or do not promote together.
    ValueError
        If b or a has not one dimension or no coefficient, a begins with zero, zi has another shape, or an argument has
        an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    sosfilt : Cascades of sections of order two.
    linear_recurrence : Recurrences of order one with varying coefficients.

    Notes
    -----
    Work and depth: by array, a filter of one or two poles takes about 70 + 4k multiplications for a sample, in a chain
    of log2 n / 2 matrix products. With more poles it takes 200 + 3k multiplications in n / 64 steps, on JAX on a CPU
    2k + 1 in n steps. Kernel and native take 2k + 1 in n steps; kernel on a GPU takes 4k + 2 and a scan of states.
    Error: by kernel on a CPU, native and array within ten times SciPy's error in the dtype of the call. Filters are
    computed in float64 or complex128 and rounded once (in float32 by JAX without jax_enable_x64, except by kernel on
    GPUs).
    Reproducibility: the same input gives the same bits, run after run, by every method. By kernel on a CPU, and by
    native, a line of a batch has the same bits as the line alone, and a prefix the same bits as the whole.
    Methods: kernel (CUDA arrays up to order 24, complex ones up to 16; CPU arrays by Numba), native (SciPy on arrays in
    the memory of a CPU), array.
    Derivatives: by b, a, x and zi, of any order, on PyTorch and JAX, by array, and on PyTorch by kernel: a derivative
    is computed by filters too, with the method of the call.
    Memory and more: the page "lfilter" of the documentation.

    References
    ----------
    D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVR-2016-002, 2016.

    R. H. Middleton and G. C. Goodwin, "Improved Finite Word Length Characteristics in Digital Control Using Delta
    Operators", IEEE Trans. Automatic Control 31(11), 1986.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x = np.array([1.0, 0.0, 0.0, 0.0])
    >>> parprims.lfilter(np.array([1.0]), np.array([1.0, -0.5]), x)
    array([1.   , 0.5  , 0.25 , 0.125])

    Part by part: the second part begins with the state after the first.

    >>> b, a = np.array([1.0]), np.array([1.0, -0.5])
    >>> y, state = parprims.lfilter(b, a, x[:2], zi=np.zeros(1))
    >>> parprims.lfilter(b, a, x[2:], zi=state)[0]
    array([0.25 , 0.125])

    Along the first axis:

    >>> parprims.lfilter(b, a, np.ones((3, 2)), axis=0)
    array([[1.  , 1.  ],
           [1.5 , 1.5 ],
           [1.75, 1.75]])
    """
    return _LFILTER(others, {"b": b, "a": a, "x": x, "zi": zi}, method, axis=axis)


@primitive
def sosfilt(
    sos: Array, x: Array, /, *, axis: int = -1, zi: Array | None = None, method: str = "auto", **others: Never
) -> Any:
    """Filter along an axis by a cascade of sections of order two: SciPy's ``sosfilt``.

    Parameters
    ----------
    sos : array
        The sections, of shape (sections, 6) and a floating dtype, real or complex. A row holds the coefficients b[0],
        b[1], b[2], a[0], a[1], a[2] of a section, as in `lfilter`. No a[0] may be zero; the coefficients of a section
        are divided by it.
    x : array
        The signal, of at least one dimension and a floating dtype. All dtypes promote together.
    axis : int, default -1
        The axis to filter along.
    zi : array, optional
        The states before the first sample, of shape (sections, *shape of x) with length 2 along the axis. Along other
        axes of x the length may be 1, to broadcast. The default is zero.
    method : {"auto", "canonical", "kernel", "native", "array"}, default "auto"
        Implementation to use; "auto" chooses one. "canonical" takes one that groups elements by their places alone. See
        the page "Reproducibility", and `methods`.

    Returns
    -------
    array or (array, array)
        The filtered signal, of the shape of x and the promoted dtype; with zi also the states after the last sample.

    Raises
    ------
    TypeError
        If an argument is no array, or dtypes are no floats or do not promote together.
    ValueError
        If sos has another shape or an a[0] that is zero, zi has another shape, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method cannot compute this call.

    See Also
    --------
    lfilter : A single filter of any order.

    Notes
    -----
    The notes of `lfilter` apply.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> sos = np.array([[1.0, 0.0, 0.0, 1.0, -0.5, 0.0], [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]])
    >>> parprims.sosfilt(sos, np.array([1.0, 0.0, 0.0, 0.0]))
    array([1.   , 1.5  , 0.75 , 0.375])

    Along the first axis:

    >>> parprims.sosfilt(sos, np.eye(3)[:, :2], axis=0)
    array([[1.  , 0.  ],
           [1.5 , 1.  ],
           [0.75, 1.5 ]])
    """
    return _SOSFILT(others, {"sos": sos, "x": x, "zi": zi}, method, axis=axis)


# ---- Declarations -------------------------------------------------------------------------------------------------


def _solved_by_kernel(xp: Namespace, a: Array, u: Array) -> Array:
    """Return y with A y = u (see `array.solved`), computed by the kernel."""
    y: Array = lfilter(xp.ones_like(a[:1]), a, u, method="kernel")
    return y


def _with_kernel(xp: Namespace, f: Filter) -> Any:
    """Return the result by differentiable array operations that solve A y = u by the kernel."""
    return array(xp, f, _solved_by_kernel)


def _by_polynomials(make: Sample) -> Given:
    return (make.of(1.0, 0.2), make.of(1.0, -0.3, 0.1), make()), make.along


def _by_sections(make: Sample) -> Given:
    return (make.of([1.0, 0.2, 0.1, 1.0, -0.3, 0.1]), make()), make.along


def _declared(name: str, check: Check, example: MakesCall) -> Primitive:
    on_cpu = Method(lambda xp, f: cpu.prepare(xp, f, _with_kernel), cpu.refusal, cpu.slower, quiet=True)
    methods = Methods(
        name,
        departs,
        kernel=by_device(
            Method(lambda xp, f: cuda.prepare(xp, f, _with_kernel), cuda.refusal),
            on_cpu,
            in_programs(on_cpu, Method(directly(array)), batched=cpu.batched),
        ),
        native=Method(directly(native.native), native.refusal),
        array=Method(directly(array), array_refusal),
    )
    return Primitive(
        name=name,
        check=check,
        methods=methods,
        example=floats(example),
        optional=("zi",),
        plainer=with_own_coefficients,
        single=lambda asked: asked["zi"] is None,
    )


_LFILTER = _declared("lfilter", check_lfilter, _by_polynomials)
_SOSFILT = _declared("sosfilt", check_sosfilt, _by_sections)

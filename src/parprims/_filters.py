"""Digital filters: recurrences of some order with constant coefficients, alone and in cascades."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims import _derivatives, _filters_array, _filters_cpu, _filters_kernel
from parprims._arrays import (
    Array,
    Namespace,
    admit,
    broadcast_shapes,
    cast,
    device,
    dtype_name,
    lacks_arithmetic,
    library,
    move_axis,
    normalize_axis,
    spoken,
)
from parprims._composed import Composed, in_program
from parprims._dispatch import Method, Methods, call_key, directly, in_graph, primitive, recalled, unwatched
from parprims._kernels import by_device
from parprims._options import made_plain
from parprims._promotion import promoted
from parprims._through_numpy import NOT_IN_NUMPY, as_numpy, carries_derivative, in_numpy, returned


@primitive
def lfilter(b: Array, a: Array, x: Array, /, *, axis: int = -1, zi: Array | None = None, method: str = "auto") -> Any:
    """Filter along an axis: a[0] y[n] = b[0] x[n] + ... + b[k] x[n-k] - a[1] y[n-1] - ... - a[k] y[n-k].

    It is SciPy's ``lfilter``: the recurrence of order k with constant coefficients, in the transposed direct form II.

    Parameters
    ----------
    b : array
        The coefficients of the numerator, of one dimension and a floating dtype, real or complex.
    a : array
        The coefficients of the denominator, as b. The first must not be zero; all are divided by it.
    x : array
        The signal, of at least one dimension and a floating dtype. All dtypes promote together.
    axis : int
        The axis to filter along.
    zi : array, optional
        The state before the first sample, of a shape that broadcasts to that of x but for the length along the axis:
        k, the longer of b and a less one. By default it is zero.
    method : {"auto", "kernel", "native", "array"}
        Who computes.

    Returns
    -------
    array or (array, array)
        The filtered signal, of the shape of x and the promoted dtype; with zi also the state after the last sample, the
        zi of what follows.

    Raises
    ------
    TypeError
        If an argument is no array, or dtypes are no floats or do not promote together.
    ValueError
        If b or a has not one dimension or no coefficient, zi another shape, or an argument has an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: about 32 + 2k multiplications for a sample in products of matrices, of which log2 n / 5 come one
    after another, and from order 3 on 66 + 8k in twice as many (array); 2k + 1 in n steps (kernel on a CPU, native);
    4k + 2 and a scan of states, reading every sample once (kernel on a GPU).
    Error: all is computed in float64, or complex128, and rounded once (by JAX without jax_enable_x64 in float32, but
    for the kernel). With
    poles 1e-6 from the unit circle, up to order 4, float32 is within 2^-20 of the largest result of SciPy in float64
    with the same coefficients. More is in docs/filters.md.
    Reproducibility: the same input gives the same bits, run after run, by every method.
    Methods: kernel (CUDA arrays up to order 4, CPU arrays by Numba), native (SciPy on arrays in the memory of a CPU, if
    the program has imported ``scipy.signal``), array.
    Derivatives: by b, a, x and zi on PyTorch and JAX, by array, and on PyTorch by kernel.
    Memory and more: docs/filters.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x = np.array([1.0, 0.0, 0.0, 0.0])
    >>> parprims.lfilter(np.array([1.0]), np.array([1.0, -0.5]), x)
    array([1.   , 0.5  , 0.25 , 0.125])
    """
    named = {"b": b, "a": a, "x": x, **({} if zi is None else {"zi": zi})}
    return _filtered("lfilter", named, axis, method)


@primitive
def sosfilt(sos: Array, x: Array, /, *, axis: int = -1, zi: Array | None = None, method: str = "auto") -> Any:
    """Filter along an axis by a cascade of sections of order two: SciPy's ``sosfilt``.

    Parameters
    ----------
    sos : array
        The sections, of shape (sections, 6) and a floating dtype, real or complex: b[0], b[1], b[2], a[0], a[1], a[2]
        of each, as in `lfilter`. Every a[0] must not be zero; the coefficients of a section are divided by it.
    x : array
        The signal, of at least one dimension and a floating dtype. All dtypes promote together.
    axis : int
        The axis to filter along.
    zi : array, optional
        The states before the first sample, of a shape that broadcasts to (sections, *shape of x) but for the length
        along the axis, 2. By default they are zero.
    method : {"auto", "kernel", "native", "array"}
        Who computes, as in `lfilter`, whose errors and notes apply.

    Returns
    -------
    array or (array, array)
        The filtered signal, of the shape of x and the promoted dtype; with zi also the states after the last sample.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> sos = np.array([[1.0, 0.0, 0.0, 1.0, -0.5, 0.0], [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]])
    >>> parprims.sosfilt(sos, np.array([1.0, 0.0, 0.0, 0.0]))
    array([1.   , 1.5  , 0.75 , 0.375])
    """
    named = {"sos": sos, "x": x, **({} if zi is None else {"zi": zi})}
    return _filtered("sosfilt", named, axis, method)


# ---- Checks -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Filter(Composed):
    """A checked call. ``arrays`` are those of the caller, in order.

    ``sections`` are how many filters stand one after another, and None where there is one, b and a; ``order`` is k.
    ``shape`` is that of the signal, filtered along ``axis``, counted from the front. ``states`` says whether states are
    given, and returned. ``dtype`` is that of the results, ``working`` the one they are computed in: a filter with poles
    near 1 loses as many digits as it remembers samples.
    """

    sections: int | None
    order: int
    shape: tuple[int, ...]
    axis: int
    states: bool
    dtype: Any
    working: Any

    def parts(self, xp: Namespace) -> tuple[Array, Array, Array, Array]:
        """Return b and a of all sections, (sections, k + 1), the lines of the signal, and the states of each.

        All are of the dtype computed in; the coefficients are not divided yet.
        """
        *coefficients, x = self.arrays[: len(self.arrays) - self.states]
        n, k, count = self.shape[self.axis], self.order, self.sections or 1
        b, a = self.coefficients(xp, coefficients)
        rows = move_axis(xp, cast(xp, x, self.working), self.axis, -1)
        lines = math.prod(rows.shape[:-1])
        rows = xp.reshape(rows, (lines, n))
        if not self.states:
            return b, a, rows, _zeros(xp, (lines, count, k), rows)
        return b, a, rows, self.states_of_lines(xp, cast(xp, self.arrays[-1], self.working))

    def coefficients(self, xp: Namespace, given: Sequence[Array]) -> tuple[Array, Array]:
        """Return b and a of all sections, (sections, k + 1), of the dtype computed in."""
        if self.sections is None:
            b, a = (_padded(xp, cast(xp, one, self.working), self.order + 1) for one in given)
            return b, a
        sos = cast(xp, given[0], self.working)
        return sos[:, :3], sos[:, 3:]

    def states_of_lines(self, xp: Namespace, zi: Array) -> Array:
        """Return states as the caller has them as those of lines: (lines, sections, k)."""
        zi = xp.broadcast_to(zi, self.state_shape)
        zi = xp.expand_dims(zi, axis=0) if self.sections is None else zi
        order = (*(at for at in range(1, zi.ndim) if at != self.axis + 1), 0, self.axis + 1)
        return xp.reshape(xp.permute_dims(zi, order), (-1, self.sections or 1, self.order))

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The shape of the states, as the caller has them."""
        own = (*self.shape[: self.axis], self.order, *self.shape[self.axis + 1 :])
        return own if self.sections is None else (self.sections, *own)

    def finished(self, xp: Namespace, y: Array, z: Array, *, copy: bool = True) -> Any:
        """Return the results, given lines and their states; ``copy`` unless nobody else has their memory."""
        others = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        y = move_axis(xp, xp.reshape(y, (*others, self.shape[self.axis])), -1, self.axis)
        y = xp.astype(y, self.dtype, copy=copy)
        if not self.states:
            return y
        return y, xp.astype(self.states_as_given(xp, z), self.dtype, copy=copy)

    def states_as_given(self, xp: Namespace, z: Array) -> Array:
        """Return states of lines as the caller has them."""
        others = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        z = xp.reshape(z, (*others, self.sections or 1, self.order))
        at = len(others)
        order = [*range(self.axis), at + 1, *range(self.axis, at)]
        z = xp.permute_dims(z, (at, *order))
        return z if self.sections is not None else z[0, ...]


def _padded(xp: Namespace, x: Array, length: int) -> Array:
    """Return coefficients with zeros behind them, as a row."""
    missing = length - x.shape[0]
    return xp.reshape(xp.concat([x, _zeros(xp, (missing,), x)]) if missing else x, (1, length))


def _zeros(xp: Namespace, shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of the dtype of an array, where it is: in NumPy in a tenth of the time that its namespace takes."""
    if library(xp) == "numpy":
        return np.zeros(shape, like.dtype)
    return xp.zeros(shape, dtype=like.dtype, device=device(like))


def _filtered(name: str, named: dict[str, Array], axis: Any, method: str) -> Any:
    given = tuple(named.values())
    if in_graph(given, method):
        found = in_program(name, named, {"axis": axis}, method)
        return found if "zi" in named else found[0]
    key = call_key(name, given, "zi" in named, axis, method, gradient=True)
    run = recalled(key)
    if run is not None:
        return run(*given)
    plainer = made_plain(axis=axis)
    if plainer is not None:
        return _filtered(name, named, plainer["axis"], method)
    xp, arrays = admit(named)
    _METHODS[name].check(method)
    of = dict(zip(named, arrays, strict=True))
    dtype = promoted(xp, of, ("float", "complex"))
    x, sections, order = of["x"], None, 2
    if name == "sosfilt":
        if of["sos"].ndim != 2 or of["sos"].shape[1] != 6:
            raise ValueError(f"sos must have shape (sections, 6), got {tuple(of['sos'].shape)}")
        sections = of["sos"].shape[0]
        if sections == 0:
            raise ValueError("sos must hold at least one section, got none")
    else:
        for what in ("b", "a"):
            if of[what].ndim != 1 or of[what].shape[0] == 0:
                raise ValueError(
                    f"{what} must have one dimension and a coefficient at least, got shape {tuple(of[what].shape)}"
                )
        order = max(of["b"].shape[0], of["a"].shape[0]) - 1
    at = normalize_axis(axis, x.ndim)
    call = _Filter(
        arrays=tuple(arrays),
        key=key if all(one is other for one, other in zip(arrays, given, strict=True)) else None,
        results=(),
        single="zi" not in named,
        sections=sections,
        order=order,
        shape=tuple(x.shape),
        axis=at,
        states="zi" in named,
        dtype=dtype,
        working=_filters_array.widest(xp, dtype),
    )
    results = ((call.shape, dtype), *(((call.state_shape, dtype),) if call.states else ()))
    call = dataclasses.replace(call, results=results)
    if call.states:
        shape = tuple(of["zi"].shape)
        try:
            fits = broadcast_shapes(shape, call.state_shape) == call.state_shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"zi must broadcast to shape {call.state_shape}, got {shape}")
    return _METHODS[name](method, xp, call)


# ---- Methods ----------------------------------------------------------------------------------------------------


def _array(xp: Namespace, f: _Filter) -> Any:
    """Return the result by products of matrices, one section after another."""
    return f.finished(xp, *_cascade(xp, *f.parts(xp)))


def _cascade(xp: Namespace, b: Array, a: Array, x: Array, z: Array) -> tuple[Array, Array]:
    """Return the lines filtered by all sections, and the states after."""
    states = []
    for section in range(b.shape[0]):
        first = a[section, 0]
        with unwatched():
            x, end = _filters_array.filtered(xp, b[section, :] / first, a[section, :] / first, x, z[:, section, :])
        states.append(end)
    return x, xp.stack(states, axis=1)


def _array_refusal(xp: Namespace, f: _Filter) -> str | None:
    return lacks_arithmetic(xp, [f.working])


def _native(xp: Namespace, f: _Filter) -> Any:
    """Return the result by SciPy, computed in NumPy's arrays."""
    from scipy.signal import lfilter as by_scipy

    b, a, x, z = (np.asarray(as_numpy(one)) for one in f.parts(xp))
    states = np.empty_like(z)
    for section in range(f.sections or 1):
        if f.order == 0:
            x = by_scipy(b[section], a[section], x)
        else:
            x, states[:, section] = by_scipy(b[section], a[section], x, zi=np.array(z[:, section]))
    dtype = z.dtype
    return f.finished(xp, *(returned(xp, np.ascontiguousarray(one, dtype)) for one in (x, states)))


def _native_refusal(xp: Namespace, f: _Filter) -> str | None:
    if not in_numpy(xp, f.arrays):
        return f"{spoken(xp)} has no filters{NOT_IN_NUMPY.get(library(xp), '')}"
    if carries_derivative(xp, f.arrays):
        return "a gradient is asked for, which SciPy does not carry"
    if dtype_name(f.working) not in ("float32", "float64", "complex64", "complex128"):
        return f"SciPy does not filter {dtype_name(f.working)}"
    if "scipy.signal" not in sys.modules:
        return "the program has not imported scipy.signal, which takes longer than most filters"
    return None if 0 not in f.shape else "SciPy filters no empty signals"


def _lines(xp: Namespace, f: _Filter, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return lines filtered and their states after, of the dtype of results, given what the kernel for GPUs is."""
    *given, x = arrays[: len(arrays) - f.states]
    b, a = f.coefficients(xp, given)
    x = cast(xp, x, f.working)
    z = cast(xp, arrays[-1], f.working) if f.states else _zeros(xp, (x.shape[0], b.shape[0], f.order), x)
    y, z = _cascade(xp, b, a, x, z)
    return cast(xp, y, f.dtype), cast(xp, z, f.dtype)


def _prepare(xp: Namespace, f: _Filter) -> Callable[..., Any]:
    """Return what filters by the kernel for GPUs."""
    return _filters_kernel.prepare(xp, f, _array, _lines)


def _prepare_cpu(xp: Namespace, f: _Filter) -> Callable[..., Any]:
    """Return what filters by the kernel for CPUs, with the derivative of the array form."""
    if 0 in f.shape:
        nothing: Callable[..., Any] = directly(_array)(xp, f)
        return nothing
    run, bare = _filters_cpu.prepare(xp, f), f.on(*(None,) * len(f.arrays))

    def computed(*arrays: Array) -> tuple[Array, ...]:
        found = bare.finished(xp, *run(*bare.on(*arrays).parts(xp)), copy=False)
        return found if bare.states else (found,)

    differentiable = _derivatives.by_operations(xp, f.arrays, computed, lambda: directly(_array)(xp, f))
    return differentiable if f.states else lambda *arrays: differentiable(*arrays)[0]


_METHODS = {
    name: Methods(
        name,
        kernel=by_device(
            Method(_prepare, _filters_kernel.refusal),
            Method(_prepare_cpu, _filters_cpu.refusal, _filters_cpu.slower, quiet=True),
        ),
        native=Method(directly(_native), _native_refusal),
        array=Method(directly(_array), _array_refusal),
    )
    for name in ("lfilter", "sosfilt")
}

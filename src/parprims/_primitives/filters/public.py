"""Digital filters: recurrences of some order with constant coefficients, alone and in cascades."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Sequence
from typing import Any, Never

import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    cast,
    device,
    dtype_name,
    lacks_arithmetic,
    library,
    move_axis,
    normalize_axis,
    spoken,
)
from parprims._core.options import made_plain
from parprims._core.other_words import unknown_option
from parprims._core.promotion import promoted
from parprims._dispatch import derivative_rules
from parprims._dispatch.ascending import checked_values
from parprims._dispatch.by_device import by_device
from parprims._dispatch.composite import Composed, in_program
from parprims._dispatch.dispatch import Method, Methods, call_key, directly, in_graph, primitive, recalled, unwatched
from parprims._libraries.numpy_bridge import NOT_IN_NUMPY, as_numpy, carries_derivative, in_numpy, returned
from parprims._primitives.filters import array as filters_array
from parprims._primitives.filters import cpu, cuda
from parprims._primitives.filters.array import Solve


@primitive
def lfilter(
    b: Array, a: Array, x: Array, /, *, axis: int = -1, zi: Array | None = None, method: str = "auto", **others: Never
) -> Any:
    """Filter along an axis: a[0] y[n] = b[0] x[n] + ... + b[k] x[n-k] - a[1] y[n-1] - ... - a[k] y[n-k].

    It is SciPy's ``lfilter``: the recurrence of order k with constant coefficients, in the transposed direct form II.

    Parameters
    ----------
    b : array
        The coefficients of the numerator, of one dimension and a floating dtype, real or complex.
    a : array
        The coefficients of the denominator, as b. The first must not be zero; all are divided by it. On a GPU, and of
        arrays without values yet, it is not looked at: then results are not finite.
    x : array
        The signal, of at least one dimension and a floating dtype. All dtypes promote together.
    axis : int
        The axis to filter along.
    zi : array, optional
        The state before the first sample, of the shape of x but for the length along the axis: k, the longer of b and a
        less one. Along other axes the length may be 1, for channels that begin alike. By default it is zero.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use; see `methods`.

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
        If b or a has not one dimension or no coefficient, a begins with zero, zi has another shape, or an argument has
        an unknown value.
    IndexError
        If axis is out of range.
    MethodRefused
        If the method asked for cannot serve this call.

    Notes
    -----
    Work and depth: by array, one or two poles take about 70 + 4k multiplications for a sample in products of matrices,
    of which log2 n / 2 come one after another; more take 200 + 3k in n / 64 steps, by JAX on a CPU 2k + 1 in n steps.
    b is a convolution. By kernel and native 2k + 1 in n steps; by kernel on a GPU 4k + 2 and a scan of states.
    Error: by kernel on a CPU, native and array within ten times that of SciPy in the same dtype. All is computed in
    float64, or complex128, and rounded once (by JAX without jax_enable_x64 in float32, but for the kernel on a GPU).
    Reproducibility: the same input gives the same bits, run after run, by every method.
    Methods: kernel (CUDA arrays up to order 24, complex ones up to 16; CPU arrays by Numba), native (SciPy on arrays in
    the memory of a CPU), array.
    Derivatives: by b, a, x and zi, of any order, on PyTorch and JAX, by array, and on PyTorch by kernel: they are
    filters too, by the same method.
    Memory and more: docs/filters.md.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> x = np.array([1.0, 0.0, 0.0, 0.0])
    >>> parprims.lfilter(np.array([1.0]), np.array([1.0, -0.5]), x)
    array([1.   , 0.5  , 0.25 , 0.125])
    """
    if others:
        raise unknown_option("lfilter", others)
    named = {"b": b, "a": a, "x": x, **({} if zi is None else {"zi": zi})}
    return _filtered("lfilter", named, axis, method)


@primitive
def sosfilt(
    sos: Array, x: Array, /, *, axis: int = -1, zi: Array | None = None, method: str = "auto", **others: Never
) -> Any:
    """Filter along an axis by a cascade of sections of order two: SciPy's ``sosfilt``.

    Parameters
    ----------
    sos : array
        The sections, of shape (sections, 6) and a floating dtype, real or complex: b[0], b[1], b[2], a[0], a[1], a[2]
        of each, as in `lfilter`. No a[0] may be zero; the coefficients of a section are divided by it.
    x : array
        The signal, of at least one dimension and a floating dtype. All dtypes promote together.
    axis : int
        The axis to filter along.
    zi : array, optional
        The states before the first sample, of shape (sections, *shape of x) but for the length along the axis, 2. Along
        axes of channels the length may be 1. By default they are zero.
    method : {"auto", "kernel", "native", "array"}, default "auto"
        Implementation to use, as in `lfilter`. The errors and notes of `lfilter` apply.

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
    if others:
        raise unknown_option("sosfilt", others)
    named = {"sos": sos, "x": x, **({} if zi is None else {"zi": zi})}
    return _filtered("sosfilt", named, axis, method)


# ---- Checks -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Filter(Composed):
    """A checked call. ``arrays`` are those of the caller, in order.

    ``sections`` are how many filters stand one after another, and None where there is one, b and a; ``lengths`` are
    the numbers of coefficients of b and a.
    ``shape`` is that of the signal, filtered along ``axis``, counted from the front. ``states`` says whether states are
    given, and returned. ``dtype`` is that of the results, ``working`` the one they are computed in: a filter with poles
    near 1 loses as many digits as it remembers samples.
    """

    sections: int | None
    lengths: tuple[int, int]
    shape: tuple[int, ...]
    axis: int
    states: bool
    dtype: Any
    working: Any

    @property
    def order(self) -> int:
        """The number k of states of a section."""
        return max(self.lengths) - 1

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
    x, sections, lengths = of["x"], None, (3, 3)
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
        lengths = of["b"].shape[0], of["a"].shape[0]
    at = normalize_axis(axis, x.ndim)
    call = _Filter(
        arrays=tuple(arrays),
        key=key if all(one is other for one, other in zip(arrays, given, strict=True)) else None,
        results=(),
        single="zi" not in named,
        sections=sections,
        lengths=lengths,
        shape=tuple(x.shape),
        axis=at,
        states="zi" in named,
        dtype=dtype,
        working=filters_array.widest(xp, dtype),
    )
    results = ((call.shape, dtype), *(((call.state_shape, dtype),) if call.states else ()))
    place, check = (0, _check_sections) if name == "sosfilt" else (1, _check_first)
    call = dataclasses.replace(call, results=results, complete=checked_values(xp, arrays[place], place, check))
    if call.states:
        _check_states(call, tuple(of["zi"].shape))
    return _METHODS[name](method, xp, call)


def _check_states(f: _Filter, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless states have a shape that SciPy takes: others may broadcast by chance alone."""
    wanted, own = f.state_shape, {f.axis} if f.sections is None else {0, f.axis + 1}
    fits = len(shape) == len(wanted) and all(
        length == right or (length == 1 and at not in own)
        for at, (length, right) in enumerate(zip(shape, wanted, strict=True))
    )
    if not fits:
        others = ", where other lengths than " + ("k" if f.sections is None else "the sections and 2") + " may be 1"
        raise ValueError(f"zi must have shape {wanted}{others if len(wanted) > len(own) else ''}, got {shape}")


def _check_first(a: np.ndarray[Any, Any]) -> None:
    if a[0] == 0:
        raise ValueError("a must not begin with zero, by which all coefficients are divided, got a[0] = 0")


def _check_sections(sos: np.ndarray[Any, Any]) -> None:
    if (sos[:, 3] == 0).any():
        raise ValueError("sos must not have a zero in column 3: a[0] of a section, by which it is divided, is 0")


# ---- Methods ----------------------------------------------------------------------------------------------------


def _array(xp: Namespace, f: _Filter, solve: Solve = filters_array.solved) -> Any:
    """Return the result by array operations, one section after another."""
    return f.finished(xp, *_cascade(xp, f, *f.parts(xp), solve))


def _cascade(
    xp: Namespace, f: _Filter, b: Array, a: Array, x: Array, z: Array, solve: Solve = filters_array.solved
) -> tuple[Array, Array]:
    """Return the lines filtered by all sections, and the states after."""
    states = []
    for section in range(b.shape[0]):
        first, (of_b, of_a) = a[section, 0], f.lengths
        own = b[section, :of_b] / first, a[section, :of_a] / first
        with unwatched():
            x, end = filters_array.filtered(xp, *own, x, z[:, section, :], solve)
        states.append(end)
    return x, xp.stack(states, axis=1)


def _array_refusal(xp: Namespace, f: _Filter) -> str | None:
    return lacks_arithmetic(xp, [f.working])


def _solved_by_kernel(xp: Namespace, a: Array, u: Array) -> Array:
    """Return what `filters_array.solved` returns, by the kernel."""
    found: Array = lfilter(xp.ones_like(a[:1]), a, u, method="kernel")
    return found


def _with_kernel(xp: Namespace, f: _Filter) -> Any:
    """Return the result by operations with a derivative, by the kernel all the same."""
    return _array(xp, f, _solved_by_kernel)


def _native(xp: Namespace, f: _Filter) -> Any:
    """Return the result by SciPy, computed in NumPy's arrays."""
    from scipy import signal

    *coefficients, x = (as_numpy(cast(xp, one, f.working)) for one in f.arrays[: len(f.arrays) - f.states])
    options = {}
    if f.states and f.order:
        options["zi"] = np.array(np.broadcast_to(as_numpy(cast(xp, f.arrays[-1], f.working)), f.state_shape))
    if f.sections is None:
        found = signal.lfilter(*coefficients, x, f.axis, **options)
    else:
        sos = coefficients[0] / coefficients[0][:, 3:4]
        sos[:, 3] = 1  # a complex number divided by itself may be next to it
        found = signal.sosfilt(sos, x, f.axis, **options)
    results = found if options else (found, np.zeros(f.state_shape, x.dtype))
    with_dtype = [cast(xp, returned(xp, np.ascontiguousarray(one)), f.dtype) for one in results]
    return (with_dtype[0], with_dtype[1]) if f.states else with_dtype[0]


def _native_refusal(xp: Namespace, f: _Filter) -> str | None:
    if not in_numpy(xp, f.arrays):
        return f"{spoken(xp)} has no filters{NOT_IN_NUMPY.get(library(xp), '')}"
    if carries_derivative(xp, f.arrays):
        return "a gradient is asked for, which SciPy does not carry"
    if dtype_name(f.working) not in ("float32", "float64", "complex64", "complex128"):
        return f"SciPy does not filter {dtype_name(f.working)}"
    if 0 in f.shape:
        return "SciPy filters no empty signals"
    return None if importlib.util.find_spec("scipy") is not None else "SciPy is not installed"


def _lines(xp: Namespace, f: _Filter, arrays: tuple[Array, ...]) -> tuple[Array, Array]:
    """Return lines filtered and their states after, of the dtype of results, given what the kernel for GPUs is."""
    *given, x = arrays[: len(arrays) - f.states]
    b, a = f.coefficients(xp, given)
    x = cast(xp, x, f.working)
    z = cast(xp, arrays[-1], f.working) if f.states else _zeros(xp, (x.shape[0], b.shape[0], f.order), x)
    y, z = _cascade(xp, f, b, a, x, z)
    return cast(xp, y, f.dtype), cast(xp, z, f.dtype)


def _prepare(xp: Namespace, f: _Filter) -> Callable[..., Any]:
    """Return a function of the arrays that filters by the kernel for GPUs, and differentiates by it."""
    return cuda.prepare(xp, f, _with_kernel, _lines)


def _prepare_cpu(xp: Namespace, f: _Filter) -> Callable[..., Any]:
    """Return a function of the arrays that filters by the kernel for CPUs, and differentiates by it."""
    if 0 in f.shape:
        nothing: Callable[..., Any] = directly(_array)(xp, f)
        return nothing
    run, bare = cpu.prepare(xp, f), f.on(*(None,) * len(f.arrays))

    def computed(*arrays: Array) -> tuple[Array, ...]:
        found = bare.finished(xp, *run(*bare.on(*arrays).parts(xp)), copy=False)
        return found if bare.states else (found,)

    differentiable = derivative_rules.by_operations(xp, f.arrays, computed, lambda: directly(_with_kernel)(xp, f))
    return differentiable if f.states else lambda *arrays: differentiable(*arrays)[0]


_METHODS = {
    name: Methods(
        name,
        kernel=by_device(
            Method(_prepare, cuda.refusal),
            Method(_prepare_cpu, cpu.refusal, cpu.slower, quiet=True),
        ),
        native=Method(directly(_native), _native_refusal),
        array=Method(directly(_array), _array_refusal),
    )
    for name in ("lfilter", "sosfilt")
}

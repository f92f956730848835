"""Compilation ahead for the usual calls of primitives: `warm`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, device, namespace, shown

DTYPES = ("float32", "float64", "int64")
_SIZES = (100, 10_000, 1 << 20)
"""Elements of the calls: kernels differ between few and many."""

_Make = Callable[..., Array]
"""Returns an array of random elements of a shape."""

_SIMPLE = (
    "all any argmax argmin argsort cumulative_logsumexp cumulative_max cumulative_min cumulative_prod cumulative_sum "
    "max median min prod sort sum"
).split()
"""Primitives of which the usual call is that of an array and an axis."""

NAMES = (
    *_SIMPLE,
    *(
        "argpartition histogram lfilter linear_recurrence matmul merge merge_by_key partition partition_by quantile "
        "reduce run_lengths scan searchsorted segment_reduce select solve_banded solve_block_tridiagonal "
        "solve_tridiagonal sort_by_key sosfilt top_k unique vecdot"
    ).split(),
)
"""All primitives that have a usual call: the kernels of `map_reduce` hold a function of the caller's."""


def warm(
    *functions: str | Callable[..., Any],
    dtypes: Sequence[str] = DTYPES,
    like: Any = None,
    progress: Callable[[str], object] | None = None,
) -> int:
    """Compile ahead the kernels that the usual calls of primitives need, and keep them on disk.

    It makes these calls by ``auto``, on 1-d arrays and along both axes of 2-d arrays, of a hundred to a million
    elements. Use it for container images and clusters: later processes find the kernels in ``PARPRIMS_CACHE_DIR``.
    ``python -m parprims --warm`` does the same.

    Parameters
    ----------
    *functions : str or callable
        The primitives or their names, by default all. `map_reduce` has no usual call, and neither have operators that
        are functions: a call of your own compiles their kernels.
    dtypes : sequence of str
        The dtypes of the elements.
    like : array, optional
        An array of the library and on the device to compile for, by default a NumPy array.
    progress : callable, optional
        A function that is called before every call, with a short description of it.

    Returns
    -------
    int
        The number of calls made.

    Examples
    --------
    >>> import parprims
    >>> parprims.warm("merge", dtypes=["float64"])
    3
    """
    names = [_name(one) for one in functions] or [*NAMES]
    found = np.empty(0) if like is None else like
    xp, where = namespace(like=found), device(found)
    for dtype in dtypes:
        if not isinstance(dtype, str) or not hasattr(xp, dtype):
            raise ValueError(f"dtypes must be names of dtypes of the library, got {shown(dtype)}")
    count = 0
    for name in names:
        for dtype in dtypes:
            for told, call in _calls(name, dtype, xp, where):
                if progress is not None:
                    progress(f"{name}, {dtype}, {told}")
                call()
                count += 1
    return count


def _name(function: Any) -> str:
    name = function if isinstance(function, str) else getattr(function, "__name__", "")
    if name not in NAMES or (callable(function) and function is not _primitive(name)):
        raise ValueError(f"functions must be primitives of parprims or names of them, got {shown(function)}")
    return str(name)


def _primitive(name: str) -> Callable[..., Any]:
    import parprims  # which imports this module

    found: Callable[..., Any] = getattr(parprims, name)
    return found


def _calls(name: str, dtype: str, xp: Namespace, where: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the usual calls of a primitive, with what they are called on."""
    rng = np.random.default_rng(0)

    def make(*shape: int) -> Array:
        return xp.asarray((16 * rng.random(shape)).astype(dtype), device=where)

    function, floating = _primitive(name), dtype.startswith(("float", "complex"))
    for size in _SIZES:
        side = round(size**0.5)
        for shape, axis in (((size,), 0), ((side, side), 0), ((side, side), 1)):
            given = _usual(name, floating, make, shape=shape, axis=axis)
            if given is not None:
                arrays, options = given
                words = f"{' x '.join(map(str, shape))}" + (f", axis {axis}" if len(shape) > 1 else "")
                yield words, functools.partial(function, *arrays, **options)


def _usual(
    name: str, floating: bool, make: _Make, *, shape: tuple[int, ...], axis: int
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Return the arguments of the usual call along an axis of a shape, or None where there is none."""
    along = {"axis": axis}
    line, n = len(shape) == 1, shape[axis]
    if not floating and name in ("cumulative_logsumexp", "quantile"):
        return None
    if name in _SIMPLE:
        return (make(*shape),), along
    if name in ("reduce", "scan"):
        return (make(*shape), "add"), along
    if name in ("vecdot", "sort_by_key", "linear_recurrence"):
        if name == "vecdot":
            along = {"axis": axis - len(shape)}
        return (make(*shape), make(*shape)), along
    if name in ("partition", "argpartition", "top_k"):
        return (make(*shape), 5), along
    if name == "quantile":
        return (make(*shape), 0.5), along
    if name in ("lfilter", "sosfilt"):
        return _filter(name, make, shape, along) if floating else None
    if name.startswith("solve"):
        return _system(name, make, shape) if floating and axis == len(shape) - 1 else None
    if name == "matmul":
        return None if line or axis else ((make(n, n), make(n, n)), {})
    if not line:
        return None
    x = make(n)
    if name == "histogram":
        return (x, 10), {}
    if name in ("searchsorted", "merge"):
        return (_sorted(x), _sorted(make(n)) if name == "merge" else make(n)), {}
    if name == "merge_by_key":
        return (_sorted(x), make(n), _sorted(make(n)), make(n)), {}
    if name in ("select", "partition_by"):
        return (x, x > make(n)), {}
    if name in ("run_lengths", "unique"):
        return (x,), {}
    if name == "segment_reduce":
        xp = namespace(x=x)
        return (x, xp.asarray(np.arange(n) // 10, device=device(x)), n // 10 + 1), {}
    return None


def _sorted(x: Array) -> Array:
    return namespace(x=x).sort(x)


def _filter(
    name: str, make: _Make, shape: tuple[int, ...], along: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    x = make(*shape)
    xp = namespace(x=x)
    if name == "sosfilt":
        return (xp.asarray([[1.0, 0.2, 0.1, 1.0, -0.3, 0.1]], dtype=x.dtype, device=device(x)), x), along
    b, a = (xp.asarray(one, dtype=x.dtype, device=device(x)) for one in ([1.0, 0.2], [1.0, -0.3, 0.1]))
    return (b, a, x), along


def _system(name: str, make: _Make, shape: tuple[int, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return diagonals of which the main one is dominant, and right-hand sides."""
    if name == "solve_tridiagonal":
        return (make(*shape), make(*shape) + 64.0, make(*shape), make(*shape)), {}
    if name == "solve_banded":
        bands = make(*shape[:-1], 3, shape[-1])
        return ((1, 1), bands + 64.0 * _middle(bands), make(*shape)), {}
    blocks = (*shape, 2, 2)
    lower, diag, upper = make(*blocks), make(*blocks), make(*blocks)
    xp = namespace(x=diag)
    dominant = diag + 128.0 * xp.eye(2, dtype=diag.dtype, device=device(diag))
    return (lower, dominant, upper, make(*shape, 2)), {}


def _middle(bands: Array) -> Array:
    xp = namespace(x=bands)
    return xp.asarray([[0.0], [1.0], [0.0]], dtype=bands.dtype, device=device(bands))

"""Compilation ahead for the usual calls of primitives: `warm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import Namespace, device, namespace, repr_short
from parprims._dispatch.dispatch import primitives
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared

DTYPES = ("float32", "float64", "int64")
_SIZES = (100, 10_000, 1 << 20)
"""Elements of the calls: kernels differ between few and many."""

NAMES = tuple(sorted({one.name for one in declared.values()} - {"map_reduce"}))
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
    The command ``python -m parprims --warm`` calls this function.

    Parameters
    ----------
    *functions : str or callable
        The primitives or their names, by default all. `map_reduce` has no usual call, and neither have operators that
        are functions: a call of your own compiles their kernels.
    dtypes : sequence of str, default ("float32", "float64", "int64")
        The dtypes of the elements.
    like : array, optional
        An array of the library and on the device to compile for, by default a NumPy array.
    progress : callable, optional
        A function that is called before every call, with a short description of it.

    Returns
    -------
    int
        The number of calls made.

    Raises
    ------
    ValueError
        If a function is no primitive, or an entry of dtypes is no dtype of the library.
    TypeError
        If like is no array, or a primitive does not take a dtype.

    See Also
    --------
    launches : List the kernels that a call would launch.
    compare : Time the methods of a call.

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
            raise ValueError(f"dtypes must be names of dtypes of the library, got {repr_short(dtype)}")
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
    if name not in NAMES or (callable(function) and function is not primitives[name]):
        raise ValueError(f"functions must be primitives of parprims or names of them, got {repr_short(function)}")
    return str(name)


def _calls(name: str, dtype: str, xp: Namespace, where: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the usual calls of a primitive, each with a description of its arrays."""
    for size in _SIZES:
        side = round(size**0.5)
        for shape, axis in (((size,), 0), ((side, side), 0), ((side, side), 1)):
            example = declared[name].sampled(Sample(shape, axis, dtype))
            if example is not None:
                words = f"{' x '.join(map(str, shape))}" + (f", axis {axis}" if len(shape) > 1 else "")
                yield words, example.bound(*[xp.asarray(x, device=where) for x in example.arrays])

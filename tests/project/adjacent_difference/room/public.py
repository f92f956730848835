"""Differences of neighbours: y[0] = x[0], y[i] = x[i] - x[i-1]."""

from __future__ import annotations

from typing import Never

from parprims._primitives.adjacent_difference import cpu, cuda
from parprims._primitives.adjacent_difference.array import array, refusal
from parprims._primitives.adjacent_difference.call import checked

from parprims._core.arrays import Array
from parprims._dispatch.by_device import by_device
from parprims._dispatch.dispatch import Method, Methods, directly, exact, primitive
from parprims._dispatch.examples import of_an_array
from parprims._dispatch.primitive import Primitive


@primitive
def adjacent_difference(x: Array, /, *, axis: int = -1, method: str = "auto", **others: Never) -> Array:
    """Subtract from every element the one before it: y[0] = x[0], y[i] = x[i] - x[i-1].

    Parameters
    ----------
    x : array
        The elements, of any shape and numeric dtype.
    axis : int, default -1
        The axis along which elements are neighbours.
    method : {"auto", "kernel", "array"}, default "auto"
        Implementation to use; "auto" chooses one. See `methods`.

    Returns
    -------
    array
        The differences, of the shape and dtype of x. Integers wrap.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.adjacent_difference(np.array([3, 4, 8, 9]))
    array([3, 1, 4, 1])
    """
    return _ADJACENT_DIFFERENCE(others, {"x": x}, method, axis=axis)  # type: ignore[no-any-return]


_ADJACENT_DIFFERENCE = Primitive(
    name="adjacent_difference",
    check=checked,
    methods=Methods(
        "adjacent_difference",
        exact,
        kernel=by_device(
            Method(cuda.prepare, cuda.refusal),
            Method(cpu.prepare, cpu.refusal, quiet=True),
        ),
        array=Method(directly(array), refusal),
    ),
    example=of_an_array,
    single=True,
)

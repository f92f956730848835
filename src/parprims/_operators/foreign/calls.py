"""Call a function, written with the functions of any library, on arrays of any library."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import Array, dtype_name, namespace_of
from parprims._core.elements import flattened, is_structured, rebuilt
from parprims._libraries.settings import compiling
from parprims._operators.foreign.jax_programs import came_through_jax, evaluate, program
from parprims._operators.foreign.stand_ins import StandIn


def call(function: Callable[..., Any], elements: tuple[Any, ...]) -> Any:
    """Return the result of a caller's function, in arrays of the library of its arguments.

    Parameters
    ----------
    function : callable
        The caller's function, which failed on the arrays, or returned arrays of another library.
    elements : tuple
        Its arguments: arrays, or tuples, NamedTuples or dicts of arrays.

    Returns
    -------
    element
        The result, of the structure that the function returns.

    Raises
    ------
    Exception
        If the function cannot be computed on these arrays: its own error, an error of a library, or `Untranslatable`.
    """
    arrays, structure = flattened(elements)
    xp = namespace_of(arrays[0])
    try:
        leaves, result_structure = flattened(function(*rebuilt(structure, [StandIn(xp, x) for x in arrays])))
    except Exception as error:  # the caller's function may raise any error for a stand-in
        if not came_through_jax(error):
            raise
    else:
        results = [leaf.array if isinstance(leaf, StandIn) else leaf for leaf in leaves]
        if all(array_api_compat.is_array_api_obj(one) and namespace_of(one) is xp for one in results):
            return rebuilt(result_structure, results)
        if not any(map(array_api_compat.is_jax_array, results)):
            raise TypeError("the function returns no arrays of its arguments' library")
    traced, result_structure = program(function, elements, [dtype_name(x.dtype) for x in arrays])
    return rebuilt(result_structure, evaluate(traced, xp, arrays))


def call_on(function: Callable[..., Any], elements: tuple[Any, ...], like: Array) -> Any:
    """Return the result of a caller's function, which may call functions of a library other than ``like``'s.

    If no library can compute it, the error that the function raised on the elements themselves is raised.
    """
    if compiling(like):
        return function(*elements)
    try:
        result = function(*elements)
    except Exception:
        with contextlib.suppress(Exception):  # the first error tells more
            return call(function, elements)
        raise
    leaves = flattened(result)[0] if is_structured(result) else result if isinstance(result, tuple) else (result,)
    for leaf in leaves:
        if type(leaf) is not type(like) and _is_of_another_library(leaf, like):
            with contextlib.suppress(Exception):
                return call(function, elements)
    return result


def _is_of_another_library(x: Any, like: Array) -> bool:
    if isinstance(x, np.generic) or not array_api_compat.is_array_api_obj(x):
        return False
    return array_api_compat.array_namespace(x) is not array_api_compat.array_namespace(like)

"""Tests of an operator's declared properties on examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never

import array_api_compat
import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    admit,
    along,
    dtype_kind,
    dtype_name,
    quiet,
    repr_short,
    shared_axis,
)
from parprims._core.elements import flattened, is_tree
from parprims._core.other_words import by_position
from parprims._operators.flags import of_equal_shapes
from parprims._operators.function_key import lasting_key
from parprims._operators.in_place import ElementFunction, changes_arguments, check_axes
from parprims._operators.operator import as_operator, check_components, names_of_leaves, restructured


def check_associative(op: Any, examples: Any, *more: Never, rtol: float | None = None) -> bool:
    """Test on examples that an operator is associative, and that its other declared properties hold.

    Every triple of consecutive examples a, b, c is combined as (a b) c and as a (b c). The identity must change
    nothing, an operator declared ``commutative`` must give a b = b a, and no operator may change its arguments.

    Parameters
    ----------
    op : str, Operator or callable
        The operator to test.
    examples : array, or tree of array
        Elements along the first axis, at least three.
    rtol : float, optional
        Largest difference allowed, relative to the largest magnitude, by default 64 units in the last place of the
        dtype. Integers and bools must agree exactly.

    Returns
    -------
    bool
        Always True; a failed test raises.

    Raises
    ------
    ValueError
        If the two results differ, the identity changes an example, or an operator declared commutative is not. The
        message names the first such example. Also if rtol is negative.
    TypeError
        If the operator changes an argument in place, or rtol is no number. The examples themselves never change.

    See Also
    --------
    Operator : An operator of your own.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> parprims.check_associative("maximum", np.array([3.0, 1.0, 2.0]))
    True
    >>> parprims.check_associative(lambda earlier, later: earlier - later, np.array([3.0, 1.0, 2.0]))
    Traceback (most recent call last):
    ...
    ValueError: op <lambda> is not associative: examples 0 to 2 give 0.0 from the left and 4.0 from the right

    Elements of two components:

    >>> parprims.check_associative("affine", (np.array([2.0, 3.0, 4.0]), np.ones(3)))
    True
    """
    if more:
        raise by_position("check_associative", more)
    operator = as_operator(op)
    if rtol is not None and (isinstance(rtol, bool) or not isinstance(rtol, (int, float, np.integer, np.floating))):
        raise TypeError(f"rtol must be a number, got {repr_short(rtol)}")
    if rtol is not None and not rtol >= 0:
        raise ValueError(f"rtol must not be negative, got {rtol}")
    if is_tree(examples):
        examples, structure = flattened(examples, "examples")
        operator = restructured(operator, structure) if examples else operator
    xs = examples if isinstance(examples, tuple) else (examples,)
    if not xs:
        raise ValueError("examples must hold at least one array")
    names = names_of_leaves(operator, len(xs), "examples")
    xp, admitted = admit(dict(zip(names, xs, strict=True)))
    xs = tuple(admitted)
    check_components(operator, tuple(x.dtype for x in xs), "examples")
    xs, differ = of_equal_shapes(xp, operator, xs, 0)
    if differ:
        shared_axis(0, [tuple(x.shape) for x in xs], names, "examples")
    n = xs[0].shape[0] if xs[0].ndim else 0
    if n < 3:
        raise ValueError(f"examples must hold at least 3 elements along the first axis, got {n}")
    a, b, c = (tuple(x[along(0, start, n - 2 + start)] for x in xs) for start in range(3))
    packed = len(xs) > 1 or operator.components is not None
    function = ElementFunction(operator.combine, 2, packed)
    if not array_api_compat.is_jax_namespace(xp) and changes_arguments(xp, function, a):
        raise TypeError(f"op {operator.name} changes its argument in place: return a new array")
    check_axes(xp, operator, lasting_key(op), xs, axis=0)
    left = operator(operator(a, b), c)
    right = operator(a, operator(b, c))
    place = _first_difference(xp, left, right, rtol)
    if place is not None:
        index, result, expected = place
        raise ValueError(
            f"op {operator.name} is not associative: examples {index} to {index + 2} give {result} from the left "
            f"and {expected} from the right"
        )
    earlier, later = (tuple(x[along(0, start, n - 1 + start)] for x in xs) for start in range(2))
    if operator.commutative:
        place = _first_difference(xp, operator(earlier, later), operator(later, earlier), rtol)
        if place is not None:
            index, result, expected = place
            raise ValueError(
                f"op {operator.name} is declared commutative, but examples {index} and {index + 1} give {result} in "
                f"this order and {expected} in the other"
            )
    identity = operator.identity(*(dtype_name(x.dtype) for x in xs))
    if identity is not None:
        e = tuple(xp.full_like(x, value) for x, value in zip(xs, identity, strict=True))
        for combined in (operator(e, xs), operator(xs, e)):
            place = _first_difference(xp, combined, xs, rtol)
            if place is not None:
                index, result, expected = place
                raise ValueError(f"the identity of op {operator.name} turns example {index}, {expected}, into {result}")
    return True


def _first_difference(
    xp: Namespace, results: tuple[Array, ...], expected_results: tuple[Array, ...], rtol: float | None
) -> tuple[int, Any, Any] | None:
    """Return the first index along axis 0 where a component differs, with both values; None if no component differs."""
    for result, expected in zip(results, expected_results, strict=True):
        if dtype_kind(result.dtype) in ("float", "complex"):
            tolerance = 64 * float(xp.finfo(result.dtype).eps) if rtol is None else rtol
            finite = xp.isfinite(result) & xp.isfinite(expected)
            size = abs(result)
            scale = max(float(xp.max(xp.where(finite, size, xp.zeros_like(size)))), 1e-300)
            with quiet(xp):
                near = finite & (abs(result - expected) <= tolerance * scale)
            same = (result == expected) | ((result != result) & (expected != expected)) | near
        else:
            same = result == expected
        for index in range(same.shape[0]) if not xp.all(same) else ():
            if not xp.all(same[index, ...]):
                position = _first_false(xp, same[index, ...])
                at = f" at {position}" if position else ""
                value, other = (_scalar(x[(index, *position)]) for x in (result, expected))
                return index, f"{value}{at}", f"{other}{at}"
    return None


def _first_false(xp: Namespace, same: Array) -> tuple[int, ...]:
    """Return the position of the first False in an array of bools."""
    number = int(xp.argmin(xp.reshape(xp.astype(same, xp.int32), (-1,))))
    return tuple(int(index) for index in np.unravel_index(number, same.shape)) if same.ndim else ()


def _scalar(x: Array) -> Any:
    """Return a 0-d array as a Python scalar."""
    scalars: dict[str, Callable[[Array], Any]] = {"bool": bool, "int": int, "uint": int, "float": float}
    return scalars.get(dtype_kind(x.dtype), complex)(x)

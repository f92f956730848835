"""Associative operators, written once over arrays, and their translation into CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import array_api_compat

from parprims._arrays import Array, Namespace, along, dtype_bits, dtype_kind, dtype_name, namespace, quiet

Combine = Callable[[Any, Any], Any]


class Operator:
    """An associative operator: a function of two elements, and the element that changes nothing.

    An element is one array, or a tuple of arrays read side by side (its components). The function works on whole
    arrays at once, elementwise, and must be associative: ``combine(combine(a, b), c)`` equals
    ``combine(a, combine(b, c))``, up to rounding. It need not be commutative.

    Parameters
    ----------
    combine : callable
        ``combine(earlier, later)`` returns the combination of two elements in that order, with the dtypes of its
        arguments. For it to run in a CUDA kernel it must be written with Python operators and functions of the
        array API standard (from ``array_api_compat.array_namespace(x)``, or NumPy's or PyTorch's own). Its
        translation is kept with the Operator, so the variables it captures must not change.
    identity : scalar, tuple of scalars or callable, optional
        The element e with combine(e, x) = combine(x, e) = x, one scalar per component. A callable receives the
        dtype name of each component ("float32") and returns it. Without one, an empty reduction and an exclusive
        scan need ``initial``.
    commutative : bool, optional
        Whether the order of the two arguments is immaterial. True lets elements be taken in the fastest order.
    name : str, optional
        What error messages and `explain` call it; the function's own name if not given.
    components : int, optional
        How many arrays make an element; any number if not given.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> keep_last = parprims.Operator(lambda earlier, later: later)
    >>> int(parprims.reduce(np.array([3, 1, 2]), keep_last))
    2
    """

    def __init__(
        self,
        combine: Combine,
        *,
        identity: Any = None,
        commutative: bool = False,
        name: str | None = None,
        components: int | None = None,
    ) -> None:
        if not callable(combine):
            raise TypeError(f"combine must be callable, got {type(combine).__name__}")
        self.combine = combine
        self.commutative = commutative
        self.name = name or str(getattr(combine, "__name__", type(combine).__name__))
        self.components = components
        self._identity = identity

    def __repr__(self) -> str:
        return f"Operator({self.name})"

    def identity(self, *dtype_names: str) -> tuple[Any, ...] | None:
        """Return the identity element for components of the named dtypes, or None if there is none.

        Parameters
        ----------
        *dtype_names : str
            The standard's name of each component's dtype.

        Returns
        -------
        tuple of scalars or None
            One scalar per component.
        """
        identity = self._identity(*dtype_names) if callable(self._identity) else self._identity
        if identity is None:
            return None
        return identity if isinstance(identity, tuple) else (identity,)

    def __call__(self, earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
        """Combine two elements given as tuples, also where an element is one array.

        Parameters
        ----------
        earlier, later : tuple of array
            The components, of equal dtypes and broadcastable shapes.

        Returns
        -------
        tuple of array
            The components of the combination.

        Raises
        ------
        TypeError
            If the function returns other than it was given: another number of components or another dtype.
        """
        single = len(earlier) == 1 and self.components is None
        result = self.combine(earlier[0], later[0]) if single else self.combine(earlier, later)
        combined = result if isinstance(result, tuple) else (result,)
        if len(combined) != len(earlier):
            raise TypeError(f"op {self.name} returned {len(combined)} components for elements of {len(earlier)}")
        for index, (got, expected) in enumerate(zip(combined, earlier, strict=True)):
            if got.dtype != expected.dtype:
                raise TypeError(
                    f"op {self.name} returned {dtype_name(got.dtype)} for component {index}, "
                    f"which has dtype {dtype_name(expected.dtype)}"
                )
        return combined


def _lowest(name: str) -> Any:
    kind = dtype_kind(name)
    if kind == "int":
        return -(2 ** (dtype_bits(name) - 1))
    return -math.inf if kind == "float" else 0


def _highest(name: str) -> Any:
    kind = dtype_kind(name)
    if kind in ("int", "uint"):
        return 2 ** (dtype_bits(name) - (kind == "int")) - 1
    return math.inf if kind == "float" else 1


def _all_bits(name: str) -> Any:
    return _highest(name) if dtype_kind(name) in ("uint", "bool") else -1


def _logical(function: str) -> Combine:
    def combine(earlier: Array, later: Array) -> Array:
        return getattr(array_api_compat.array_namespace(earlier), function)(earlier, later)

    return combine


def _extremum(wins: str) -> Combine:
    """Return combine for (value, index): the winning value, the smallest index among equals, NaN before all."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        (value, index), (other, position) = earlier, later
        xp = array_api_compat.array_namespace(value)
        better = getattr(xp, wins)(other, value)
        equal = other == value
        if dtype_kind(value.dtype) == "float":
            nan, other_nan = value != value, other != other
            better = (better | other_nan) & ~nan
            equal = equal | (nan & other_nan)
        take = better | (equal & (position < index))
        return xp.where(take, other, value), xp.where(take, position, index)

    return combine


def _affine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    (a, b), (c, d) = earlier, later
    return c * a, c * b + d


def _welford(earlier: tuple[Array, Array, Array], later: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    (n, mean, m2), (k, other_mean, other_m2) = earlier, later
    xp = array_api_compat.array_namespace(mean)
    total = n + k
    share = xp.where(total > 0, k / xp.where(total > 0, total, n * 0 + 1), n * 0)
    delta = other_mean - mean
    return total, mean + delta * share, m2 + other_m2 + delta * delta * (n * share)


BUILT_IN: dict[str, Operator] = {
    op.name: op
    for op in (
        Operator(lambda earlier, later: earlier + later, identity=0, commutative=True, name="add"),
        Operator(lambda earlier, later: earlier * later, identity=1, commutative=True, name="multiply"),
        Operator(_logical("maximum"), identity=_lowest, commutative=True, name="maximum"),
        Operator(_logical("minimum"), identity=_highest, commutative=True, name="minimum"),
        Operator(_logical("logical_and"), identity=True, commutative=True, name="logical_and"),
        Operator(_logical("logical_or"), identity=False, commutative=True, name="logical_or"),
        Operator(_logical("bitwise_and"), identity=_all_bits, commutative=True, name="bitwise_and"),
        Operator(_logical("bitwise_or"), identity=0, commutative=True, name="bitwise_or"),
        Operator(_logical("bitwise_xor"), identity=0, commutative=True, name="bitwise_xor"),
        Operator(_logical("logaddexp"), identity=-math.inf, commutative=True, name="logaddexp"),
        Operator(_affine, identity=(1, 0), name="affine", components=2),
        Operator(
            _extremum("greater"),
            identity=lambda value, index: (_lowest(value), _highest(index)),
            commutative=True,
            name="argmax",
            components=2,
        ),
        Operator(
            _extremum("less"),
            identity=lambda value, index: (_highest(value), _highest(index)),
            commutative=True,
            name="argmin",
            components=2,
        ),
        Operator(_welford, identity=(0, 0, 0), commutative=True, name="welford", components=3),
    )
}

# The dtype kinds each built-in operator is defined for, component by component.
_NUMERIC = ("int", "uint", "float", "complex")
_REAL = ("int", "uint", "float")
_KINDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "add": (_NUMERIC,),
    "multiply": (_NUMERIC,),
    "maximum": (_REAL,),
    "minimum": (_REAL,),
    "logical_and": (("bool",),),
    "logical_or": (("bool",),),
    "bitwise_and": (("bool", "int", "uint"),),
    "bitwise_or": (("bool", "int", "uint"),),
    "bitwise_xor": (("bool", "int", "uint"),),
    "logaddexp": (("float",),),
    "affine": (_NUMERIC, _NUMERIC),
    "argmax": (_REAL, ("int", "uint")),
    "argmin": (_REAL, ("int", "uint")),
    "welford": (("float",), ("float",), ("float",)),
}


def as_operator(op: Any, name: str = "op") -> Operator:
    """Return the operator meant by a name, an Operator or a function of two elements; errors name the argument."""
    if isinstance(op, Operator):
        return op
    if isinstance(op, str):
        if op not in BUILT_IN:
            raise ValueError(f"{name} must be one of {', '.join(BUILT_IN)}, an Operator or a function, got {op!r}")
        return BUILT_IN[op]
    if not callable(op):
        raise TypeError(f"{name} must be a name, an Operator or a function of two elements, got {type(op).__name__}")
    return Operator(op)


def check_components(op: Operator, dtypes: tuple[Any, ...], name: str = "x") -> None:
    """Raise, naming the argument with the arrays, unless the operator is defined for components of these dtypes."""
    if op.components is not None and len(dtypes) != op.components:
        raise ValueError(f"op {op.name} works on tuples of {op.components} arrays, {name} has {len(dtypes)}")
    kinds = _KINDS.get(op.name) if BUILT_IN.get(op.name) is op else None
    if kinds is None:
        return
    if len(dtypes) != len(kinds):
        raise ValueError(f"op {op.name} works on a single array, {name} is a tuple of {len(dtypes)}")
    for index, (dtype, allowed) in enumerate(zip(dtypes, kinds, strict=True)):
        if dtype_kind(dtype) not in allowed:
            raise TypeError(
                f"{name} must have a dtype of kind {' or '.join(allowed)} for op {op.name}"
                f"{f' in component {index}' if len(dtypes) > 1 else ''}, got {dtype_name(dtype)}"
            )


def segmented(op: Any) -> Operator:
    """Return the operator that starts anew at every flag: a reduction or scan of each segment by itself.

    Parameters
    ----------
    op : str, Operator or callable
        The operator used inside a segment.

    Returns
    -------
    Operator
        Its elements are (flag, *components): flag, of dtype bool, is True on the first element of a segment, and
        the components are those of ``op``.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> starts = np.array([True, False, True, False])
    >>> flag, totals = parprims.scan((starts, np.array([1, 2, 3, 4])), parprims.segmented("add"))
    >>> totals
    array([1, 3, 3, 7])
    """
    inner = as_operator(op)

    def combine(earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
        (flag, *values), (starts, *others) = earlier, later
        xp = array_api_compat.array_namespace(starts)
        joined = inner(tuple(values), tuple(others))
        return (
            flag | starts,
            *(xp.where(starts, other, both) for other, both in zip(others, joined, strict=True)),
        )

    def identity(_flag: str, *rest: str) -> tuple[Any, ...] | None:
        values = inner.identity(*rest)
        return None if values is None else (False, *values)

    return Operator(
        combine,
        identity=identity,
        name=f"segmented({inner.name})",
        components=2 if inner.components is None else 1 + inner.components,
    )


def check_associative(op: Any, examples: Any, *, rtol: float | None = None) -> bool:
    """Check on examples that an operator is associative, and that its identity changes nothing.

    Every triple of consecutive examples a, b, c is combined as (a b) c and as a (b c).

    Parameters
    ----------
    op : str, Operator or callable
        The operator to test.
    examples : array or tuple of array
        Elements along the first axis, at least three.
    rtol : float, optional
        Largest difference allowed, relative to the largest magnitude met; 64 units in the last place of the dtype
        if not given. Integers and bools must agree exactly.

    Returns
    -------
    bool
        True; anything else raises.

    Raises
    ------
    ValueError
        If the two ways differ, or the identity changes an example; the message names the first such place.

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
    """
    operator = as_operator(op)
    xs = examples if isinstance(examples, tuple) else (examples,)
    xp = namespace(**{f"examples[{index}]": x for index, x in enumerate(xs)})
    check_components(operator, tuple(x.dtype for x in xs))
    n = xs[0].shape[0] if xs[0].ndim else 0
    if n < 3:
        raise ValueError(f"examples must hold at least 3 elements along the first axis, got {n}")
    a, b, c = (tuple(x[along(0, start, n - 2 + start)] for x in xs) for start in range(3))
    left = operator(operator(a, b), c)
    right = operator(a, operator(b, c))
    place = _first_difference(xp, left, right, rtol)
    if place is not None:
        index, one, other = place
        raise ValueError(
            f"op {operator.name} is not associative: examples {index} to {index + 2} give {one} from the left "
            f"and {other} from the right"
        )
    identity = operator.identity(*(dtype_name(x.dtype) for x in xs))
    if identity is not None:
        e = tuple(xp.full_like(x, value) for x, value in zip(xs, identity, strict=True))
        for combined in (operator(e, xs), operator(xs, e)):
            place = _first_difference(xp, combined, xs, rtol)
            if place is not None:
                index, one, other = place
                raise ValueError(f"the identity of op {operator.name} turns example {index}, {other}, into {one}")
    return True


def _first_difference(
    xp: Namespace, ones: tuple[Array, ...], others: tuple[Array, ...], rtol: float | None
) -> tuple[int, Any, Any] | None:
    """Return the first place along axis 0 where a component differs, with both values, or None."""
    for one, other in zip(ones, others, strict=True):
        if dtype_kind(one.dtype) in ("float", "complex"):
            tolerance = 64 * float(xp.finfo(one.dtype).eps) if rtol is None else rtol
            finite = xp.isfinite(one) & xp.isfinite(other)
            size = abs(one)
            scale = max(float(xp.max(xp.where(finite, size, xp.zeros_like(size)))), 1e-300)
            with quiet(xp):
                near = finite & (abs(one - other) <= tolerance * scale)
            same = (one == other) | ((one != one) & (other != other)) | near
        else:
            same = one == other
        for index in range(same.shape[0]) if not xp.all(same) else ():
            if not xp.all(same[index, ...]):
                return index, _shown(one[index, ...]), _shown(other[index, ...])
    return None


def _shown(x: Array) -> Any:
    """Return an array of no dimension as a Python scalar, any other as it is."""
    scalars: dict[str, Callable[[Array], Any]] = {"bool": bool, "int": int, "uint": int, "float": float}
    return x if x.ndim else scalars.get(dtype_kind(x.dtype), complex)(x)

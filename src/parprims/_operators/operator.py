"""Operators: associative functions on arrays, their built-in instances, and the checks of their arguments."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import (
    Array,
    Namespace,
    cast,
    compute_dtype,
    dtype_bits,
    dtype_kind,
    dtype_name,
    library_title,
    namespace_of,
)
from parprims._core.elements import ITS_NAMESPACE, Structure, flat, flattened, is_structured, not_array, rebuilt, shown
from parprims._libraries.settings import asked_for, compiling
from parprims._operators import foreign

Combine = Callable[[Any, Any], Any]


class Operator:
    """An associative operator: a function of two elements, and its identity.

    An element is an array, or several arrays (its components) in a tuple, a NamedTuple or a dict, nested at will. The
    function receives elements of that type. It works on whole arrays at once, elementwise, and must be associative:
    ``combine(combine(a, b), c)`` equals ``combine(a, combine(b, c))``, up to rounding. It need not be commutative.

    Parameters
    ----------
    combine : callable
        ``combine(earlier, later)`` returns the combination of two elements in that order, as new arrays with the dtypes
        of its arguments, which it must not change in place. To run in a kernel the function must consist of Python
        operators and elementwise functions: those of NumPy, PyTorch, ``jax.numpy`` or
        ``array_api_compat.array_namespace(x)``, on arrays of any library.
    identity : scalar, tuple of scalars or callable, optional
        The element e with combine(e, x) = combine(x, e) = x: a scalar per component, as a tuple or in the structure of
        the elements. A callable receives the dtype name of each component ("float32") and returns the identity.
        Without identity, an empty reduction and an exclusive scan need ``initial``.
    commutative : bool, optional
        Whether the order of the two arguments is immaterial. With True, elements are combined in the fastest order.
    name : str, optional
        The name in error messages and in `explain`, by default the function's name.
    components : int, optional
        The number of arrays of an element; any number if not given.

    See Also
    --------
    segmented : The operator that starts anew at flags.
    check_associative : Test an operator on examples.

    Notes
    -----
    Translations of the function for kernels are kept. Their key is the function's code and the values of all variables
    that it reads besides its arguments: numbers, strings, small NumPy arrays, lists and dicts, attributes of modules,
    other functions. If a value has changed since the last call, or has no key (such as an attribute of an object), the
    function is translated again, so that no call uses an old value. The contents of ``math``, NumPy, CuPy, PyTorch,
    jax.numpy and other array namespaces count as constants.
    Kernels take numbers from outside the function's code as parameters, so that a new value compiles nothing unless the
    function branches on it. Programs of JAX do so too, unless they hold a kernel for GPUs.
    Under ``jax.jit`` JAX runs the function once for each compiled program and keeps the values that it read, as for any
    function under jit. ``torch.compile`` compiles again only if its release guards these values: PyTorch 2.13 does,
    2.11 keeps the old values.

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
        if not isinstance(commutative, (bool, np.bool_)):
            raise TypeError(f"commutative must be True or False, got {commutative!r}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"name must be a string, got {type(name).__name__}")
        if components is not None and (isinstance(components, bool) or not isinstance(components, (int, np.integer))):
            raise TypeError(f"components must be an integer, got {components!r}")
        if components is not None and components < 1:
            raise ValueError(f"components must be at least 1, got {components}")
        if identity is not None and not callable(identity):
            _check_scalars("identity", flattened(identity, "identity")[0], components)
        self.combine: Combine = combine
        self.commutative: bool = bool(commutative)
        self.name: str = name or str(getattr(combine, "__name__", type(combine).__name__))
        self.components: int | None = None if components is None else int(components)
        self._identity: Any = identity
        self._built_in: bool = False
        self._segments: Operator | None = None
        self._structure: Structure = None

    def __repr__(self) -> str:
        return f"Operator({self.name})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self._built_in:
            return as_operator, (self.name,)
        return (segmented, (self._segments,)) if self._segments is not None else super().__reduce_ex__(protocol)

    @property
    def flags(self) -> int:
        """The number of components, counted from the first, that are flags of segments."""
        return 0 if self._segments is None else 1 + self._segments.flags

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

        Raises
        ------
        TypeError
            If an entry is no scalar, or its dtype cannot hold it.
        ValueError
            If there are more entries or fewer than dtypes.
        """
        declared = self._identity
        identity = declared(*dtype_names) if callable(declared) else declared
        if identity is None:
            return None
        what = f"the identity of op {self.name}"
        scalars = identity if type(identity) is tuple else (identity,)
        if is_structured(identity):
            scalars = flat(what, identity, self._structure)
        _check_scalars(what, scalars, len(dtype_names))
        for value, dtype in zip(scalars, dtype_names, strict=True):
            if not _holds(dtype, value):
                raise TypeError(f"{what} must fit {dtype}, got {value!r}")
        return scalars

    def __call__(self, earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
        """Combine two elements, given as tuples even if an element is one array.

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
            If the function branches on the value of an array, or if its result has another number of components,
            another dtype or another library, or is no array.
        ValueError
            If it returns another shape.
        """
        single = len(earlier) == 1 and self.components is None
        elements = (earlier[0], later[0]) if single else (earlier, later)
        try:
            result = call_on(self.combine, elements, earlier[0])
        except Exception as error:
            if self._segments is None:  # else the note names the inner operator, which the caller wrote
                explain_failure(f"op {self.name}", error, _TAKES)
            raise
        combined = result if isinstance(result, tuple) else (result,)
        if len(combined) != len(earlier):
            if not isinstance(result, tuple):
                check_result(f"op {self.name}", result, earlier[0])
            raise TypeError(f"op {self.name} returned {len(combined)} components for elements of {len(earlier)}")
        for index, (got, expected) in enumerate(zip(combined, earlier, strict=True)):
            if type(got) is not type(expected):
                check_result(f"op {self.name}", got, expected, index if len(earlier) > 1 else None)
            if got.dtype != expected.dtype:
                raise TypeError(
                    f"op {self.name} returned {dtype_name(got.dtype)} for component {index}, "
                    f"which has dtype {dtype_name(expected.dtype)}"
                )
            if got.shape != expected.shape:
                shape = _joint_shape(expected.shape, later[index].shape)
                if tuple(got.shape) != shape:
                    raise ValueError(
                        f"op {self.name} returned shape {tuple(got.shape)} for component {index}, which has shape "
                        f"{shape}: it must work elementwise"
                    )
        return combined


def call_on(function: Callable[..., Any], elements: tuple[Any, ...], like: Array) -> Any:
    """Return the result of a caller's function, which may be written with another library's functions than ``like``'s.

    An error is that of the function itself, on the elements themselves.
    """
    if compiling(like):
        return function(*elements)
    try:
        result = function(*elements)
    except Exception:
        with contextlib.suppress(Exception):  # the first error tells more
            return foreign.call(function, elements)
        raise
    leaves = flattened(result)[0] if is_structured(result) else result if isinstance(result, tuple) else (result,)
    for leaf in leaves:
        if type(leaf) is not type(like) and _is_of_another_library(leaf, like):
            with contextlib.suppress(Exception):
                return foreign.call(function, elements)
    return result


def _is_of_another_library(x: Any, like: Array) -> bool:
    if isinstance(x, np.generic) or not array_api_compat.is_array_api_obj(x):
        return False
    return array_api_compat.array_namespace(x) is not array_api_compat.array_namespace(like)


def _joint_shape(shape: Iterable[Any], other_shape: Iterable[Any]) -> tuple[Any, ...]:
    """Return the broadcast shape of two shapes of equal rank."""
    return tuple(m if n == 1 else n for n, m in zip(shape, other_shape, strict=True))


_BRANCHES = re.compile("truth value of an (array|empty array)|Boolean value of Tensor|bool is only allowed on arrays")
"""Words of the error that an array library raises for a branch on an array."""

_AS_NUMBER = re.compile("Python scalar|converted to Scalar|is only allowed on arrays")
"""Words of the error that an array library raises if an array of several elements is used as a number."""

_OF_ANOTHER = re.compile(
    "must be Tensor, not|ndarray or scalar arguments, got|Cannot interpret value of type|not a valid JAX array type|"
    r"Implicit conversion to a NumPy array|[Cc]an't call numpy\(\)|[Cc]an't convert .* tensor to numpy"
)
"""Words of the error that an array library raises for an array of another library."""

_ARGUMENTS = re.compile(r"positional argument|required (positional|keyword)|takes no arguments")
"""Python's messages for a call with a wrong number of arguments."""

_TAKES = "two elements, earlier and later, and elements of several arrays arrive as tuples"
"""The arguments of an operator, in messages."""


class _ExplainedError(TypeError):
    """A TypeError that explains the failure of a caller's function. Enclosing functions do not explain it again."""


_ExplainedError.__name__ = _ExplainedError.__qualname__ = "TypeError"  # callers see a TypeError
_ExplainedError.__module__ = "builtins"


def _known_reason(error: Exception, takes: str) -> str | None:
    """Return a description of the failure of a function, or None for an unknown error."""
    words, kind = str(error), type(error).__name__
    if _BRANCHES.search(words) or kind == "TracerBoolConversionError":
        return "branches on the value of an array: use where of the array library"
    if _AS_NUMBER.search(words):  # as float, int, math.exp and item do
        return "makes a number of an array: use functions of the array library"
    if kind == "TracerArrayConversionError":
        return f"gives arrays of JAX to NumPy: use functions of jax.numpy, or of {ITS_NAMESPACE}"
    if isinstance(error, TypeError) and _OF_ANOTHER.search(words):
        return f"gives arrays to functions of another library: use those of {ITS_NAMESPACE} ({words})"
    if isinstance(error, TypeError) and _ARGUMENTS.search(words) and was_not_entered(error):
        return f"must take {takes}: {words}"
    return None


def explain_failure(what: str, error: Exception, takes: str) -> None:
    """Raise TypeError with the reason if the failure of a caller's function is known; else add a note to the error.

    ``what`` is the name of the function in messages, ``takes`` its arguments.
    """
    reason = None if isinstance(error, _ExplainedError) else _known_reason(error, takes)
    if reason is not None:
        raise _ExplainedError(f"{what} {reason}") from error
    note = f"Raised by {what}."
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def was_not_entered(error: BaseException) -> bool:
    """Return whether an error comes from the call of a function itself, not from its body."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return where is not None and str(where.tb_frame.f_globals.get("__name__", "")).startswith("parprims.")


def check_result(what: str, got: Any, like: Array, component: int | None = None) -> None:
    """Raise TypeError unless the result of a caller's function is an array of the expected library."""
    place = "" if component is None else f" for component {component}"
    try:
        library = array_api_compat.array_namespace(got)
    except TypeError:
        # NumPy's operations turn 0-d arrays into scalars.
        if isinstance(got, np.generic) and isinstance(like, (np.ndarray, np.generic)):
            return
        raise TypeError(f"{what} returned {not_array(got, place)}") from None
    expected = array_api_compat.array_namespace(like) if not isinstance(like, np.generic) else library
    if library is not expected:
        raise TypeError(
            f"{what} returned an array of {library_title(library)}{place}, given arrays of {library_title(expected)}: "
            f"use functions of {library_title(expected)}, or of {ITS_NAMESPACE}"
        )


def _check_scalars(name: str, values: tuple[Any, ...], count: int | None) -> None:
    for value in values:
        if not isinstance(value, (bool, int, float, complex, np.generic)):
            got = f"{'a tuple with ' if len(values) > 1 else ''}{type(value).__name__}"
            raise TypeError(f"{name} must be a scalar, a tuple of scalars or a callable, got {got}")
    if count is not None and len(values) != count:
        entries = "1 entry" if count == 1 else f"{count} entries"
        raise ValueError(f"{name} must have {entries}, one per component, got {len(values)}")


def _holds(dtype: str, value: Any) -> bool:
    """Return whether a dtype can hold a scalar: a number of its kind, an integer in its range."""
    value = value.item() if isinstance(value, np.generic) else value
    kind = dtype_kind(dtype)
    if kind in ("int", "uint"):
        return isinstance(value, int) and (_lowest(dtype) if kind == "int" else 0) <= value <= _highest(dtype)
    if kind == "bool":
        return isinstance(value, int) and value in (0, 1)
    if kind == "float":
        return isinstance(value, (int, float))
    return isinstance(value, (int, float, complex))


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
        return getattr(namespace_of(earlier), function)(earlier, later)

    return combine


def _extremum(wins: str) -> Combine:
    """Return combine for (value, index): the winning value, NaN before all; of equal values, the smallest index."""

    def combine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
        (value, index), (other, position) = earlier, later
        xp = namespace_of(value)
        better = getattr(xp, wins)(other, value)
        equal = other == value
        if dtype_kind(value.dtype) == "float":
            nan, other_nan = value != value, other != other
            better = (better | other_nan) & ~nan
            equal = equal | (nan & other_nan)
        take = better | (equal & (position < index))
        return xp.where(take, other, value), xp.where(take, position, index)

    return combine


def _logaddexp(earlier: Array, later: Array) -> Array:
    """Return log(exp(earlier) + exp(later)), with derivatives of every order if they may be requested.

    The derivatives of the libraries' own functions are NaN if both elements are minus infinity. Here the derivative by
    an element is its share of the sum of exponentials: 0 for minus infinity. If the result is infinite, one element
    equal to it has derivative 1.
    """
    xp = namespace_of(earlier)
    if not (asked_for(earlier) or asked_for(later)):
        return xp.logaddexp(earlier, later)
    first = (earlier >= later) | (earlier != earlier)  # so that NaN counts as larger
    high, low = xp.where(first, earlier, later), xp.where(first, later, earlier)
    lowest = xp.full_like(high, -math.inf)
    gap = xp.where(xp.isinf(high), lowest, low - high)  # equal infinities have no difference
    return xp.where(high == -math.inf, lowest, high) + xp.log1p(xp.exp(gap))


def _affine(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    (a, b), (c, d) = earlier, later
    return c * a, c * b + d


def _welford(earlier: tuple[Array, Array, Array], later: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    (n, mean, m2), (k, other_mean, other_m2) = earlier, later
    xp = namespace_of(mean)
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
        Operator(_logaddexp, identity=-math.inf, commutative=True, name="logaddexp"),
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

for _op in BUILT_IN.values():
    _op._built_in = True


def op_never_warns(op: Operator, given_dtypes: Sequence[Any], dtypes: Sequence[Any]) -> bool:
    """Return whether NumPy's routine for an operator never warns: for integers, and for maximum and minimum.

    Elements of ``given_dtypes`` are combined in ``dtypes``.
    """
    if op._built_in and op.name in ("maximum", "minimum"):
        return tuple(given_dtypes) == tuple(dtypes)
    routine = op.name.startswith(("add", "multiply", "logical_", "bitwise_"))
    return op._built_in and routine and all(dtype_kind(x) in ("bool", "int", "uint") for x in (*given_dtypes, *dtypes))


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


_OTHER_NAMES = {
    "sum": "add",
    "plus": "add",
    "prod": "multiply",
    "product": "multiply",
    "max": "maximum",
    "min": "minimum",
    "all": "logical_and",
    "any": "logical_or",
}
"""Names in other libraries whose nearest spelling here would be a wrong operator."""


def nearest(name: Any, names: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or an empty string."""
    matches = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    return f": did you mean {matches[0]!r}?" if matches else ""


def as_operator(op: Any, name: str = "op") -> Operator:
    """Return the operator for a name, an Operator or a function of two elements; errors name the argument."""
    if isinstance(op, Operator):
        return op
    if isinstance(op, str):
        if op not in BUILT_IN:
            known = ", ".join(BUILT_IN)
            hint = nearest(_OTHER_NAMES.get(op, op), BUILT_IN)
            raise ValueError(f"{name} must be one of {known}, an Operator or a function, got {op!r}{hint}")
        return BUILT_IN[op]
    if not callable(op):
        arrays = name == "op" and (isinstance(op, tuple) or hasattr(op, "dtype"))
        hint = ": the arrays come before the operator" if arrays else ""
        kind = type(op).__name__
        raise TypeError(f"{name} must be a name, an Operator or a function of two elements, got {kind}{hint}")
    return Operator(op)


def capturing(number: float) -> Operator:
    """Return an operator that captures a number, for plans that are only compiled."""
    return Operator(lambda p, q: p + q + number * p * q, identity=0, commutative=True, name="captured")


def check_components(op: Operator, dtypes: tuple[Any, ...], name: str = "x", *, requested: bool = False) -> None:
    """Raise an error that names the argument unless the operator is defined for components of these dtypes.

    If the option dtype ``requested`` them, the error names this option.
    """
    if op.components is not None and len(dtypes) != op.components:
        raise ValueError(f"op {op.name} works on tuples of {op.components} arrays, {name} has {len(dtypes)}")
    _check_kinds(op, dtypes, name, requested=requested)


def _check_kinds(outer_op: Operator, dtypes: tuple[Any, ...], name: str, *, requested: bool) -> None:
    """Check the dtypes of the components, in which a segmented operator has flags before its inner operator's."""
    blamed, have = ("dtype", "be") if requested else (name, "have a dtype")
    op, first = outer_op, 0
    while op._segments is not None:
        if len(dtypes) == 1:
            raise ValueError(f"op {outer_op.name} works on flags and elements, {name} has flags only")
        if dtype_kind(dtypes[0]) != "bool":
            raise TypeError(
                f"{blamed}[{first}], {'the dtype of ' if requested else ''}the flags of op {outer_op.name}, must "
                f"{'be' if requested else 'have dtype'} bool, got {dtype_name(dtypes[0])}"
            )
        op, dtypes, first = op._segments, dtypes[1:], first + 1
    kinds = _KINDS[op.name] if op._built_in else None
    if kinds is None:
        return
    if len(dtypes) != len(kinds):
        raise ValueError(f"op {op.name} works on a single array, {name} is a tuple of {len(dtypes)}")
    for index, (dtype, allowed) in enumerate(zip(dtypes, kinds, strict=True)):
        if dtype_kind(dtype) not in allowed:
            raise TypeError(
                f"{blamed} must {have} of kind {' or '.join(allowed)} for op {op.name}"
                f"{f' in component {first + index}' if first or len(dtypes) > 1 else ''}, got {dtype_name(dtype)}"
            )


# ---- Elements of any structure ------------------------------------------------------------------------------------


def with_combine(op: Operator, combine: Combine) -> Operator:
    """Return the operator with another function."""
    new = Operator(combine, identity=op._identity, commutative=op.commutative, name=op.name, components=op.components)
    new._segments, new._structure = op._segments, op._structure
    return new


def restructured(op: Operator, structure: Structure) -> Operator:
    """Return the operator on elements of a structure as an operator on plain tuples of arrays."""
    if structure is None or op._built_in or op._structure == structure:
        return op
    kind, _, parts = structure
    if op._segments is not None:
        if kind is not tuple or len(parts) < 2 or parts[0] is not None:
            raise TypeError(f"op {op.name} works on tuples of flags and elements, got {shown(structure)}")
        rest = parts[1] if len(parts) == 2 else (tuple, None, parts[1:])
        return segmented(restructured(op._segments, rest))
    combine, name, identity = op.combine, op.name, op._identity

    def on_leaves(earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
        result = combine(rebuilt(structure, earlier), rebuilt(structure, later))
        leaves, result_structure = flattened(result, f"op {name}")
        if result_structure != structure:
            raise TypeError(f"op {name} returned {shown(result_structure)} for elements {shown(structure)}")
        return leaves

    count = len(flattened(rebuilt(structure, itertools.repeat(None)))[0])
    if op.components not in (None, count):
        raise ValueError(f"op {name} works on elements of {op.components} arrays, {shown(structure)} has {count}")
    new = Operator(on_leaves, identity=identity, commutative=op.commutative, name=name, components=count)
    new._structure = structure
    return new


def by_leaves(primitive: Callable[..., Any], x: Any, op: Any, *, initial: Any, dtype: Any, **options: Any) -> Any:
    """Return the result of a primitive for elements of any structure, as an element of that structure."""
    leaves, structure = flattened(x)
    if not leaves:
        raise ValueError("x must hold at least one array")
    flat_op = restructured(as_operator(op), structure)
    start, to = flat("initial", initial, structure), flat("dtype", dtype, structure)
    return rebuilt(structure, primitive(leaves, flat_op, initial=start, dtype=to, **options))


def segmented(op: Any) -> Operator:
    """Return the operator that starts anew at every flag, for reductions and scans of each segment.

    Parameters
    ----------
    op : str, Operator or callable
        The operator used inside a segment.

    Returns
    -------
    Operator
        Its elements are (flag, *components): flag, of dtype bool, is True on the first element of a segment, and
        the components are those of ``op``. Flags broadcast against the components.

    See Also
    --------
    Operator : An operator of your own.

    Notes
    -----
    With ``reverse`` a scan starts at the end. The flag of a segment is then on its last element in memory, and the
    segment reaches back to the element after the previous flag.
    An exclusive scan starts anew at every flag, as scans by key do: a flagged element gets ``initial``, or else the
    identity of ``op``. In an inclusive scan ``initial`` comes before the first element only, as the state of earlier
    data; it does not affect elements from the first flag on.
    The flag of a result says whether any element up to it had a flag; in an exclusive scan, any element before it.
    An exclusive scan takes one more pass over results and flags by every method. With ``initial``, this pass combines
    every element once more.

    Examples
    --------
    >>> import numpy as np
    >>> import parprims
    >>> starts = np.array([True, False, True, False])
    >>> flag, totals = parprims.scan((starts, np.array([1, 2, 3, 4])), parprims.segmented("add"))
    >>> totals
    array([1, 3, 3, 7])
    >>> flag, before = parprims.scan((starts, np.array([1, 2, 3, 4])), parprims.segmented("add"), exclusive=True)
    >>> before
    array([0, 1, 0, 3])
    """
    inner = as_operator(op)

    def combine(earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
        (flag, *values), (starts, *others) = earlier, later
        xp = namespace_of(starts)
        joined = inner(tuple(values), tuple(others))
        return (
            flag | starts,
            *(xp.where(starts, other, both) for other, both in zip(others, joined, strict=True)),
        )

    def identity(_flag: str, *rest: str) -> tuple[Any, ...] | None:
        values = inner.identity(*rest)
        return None if values is None else (False, *values)

    new = Operator(
        combine,
        identity=identity,
        name=f"segmented({inner.name})",
        components=_components_with_flag(inner),
    )
    new._segments = inner
    return new


def _components_with_flag(inner: Operator) -> int | None:
    """Return the number of arrays of a segmented element; None if the inner operator takes any number."""
    if inner.components is not None:
        return 1 + inner.components
    if inner._built_in:
        return 2
    identity = inner._identity
    return 1 + len(flattened(identity, "identity")[0]) if isinstance(identity, (tuple, dict)) else None


def flags_broadcast(xp: Namespace, op: Operator, xs: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the components of elements, with the flags of a segmented operator broadcast to the shape of the others.

    Raises ValueError if they do not broadcast. Without flags the components are returned unchanged.
    """
    count = op.flags
    if not 0 < count < len(xs):
        return xs
    shape = xs[count].shape
    flags = []
    for index, flag in enumerate(xs[:count]):
        try:
            flags.append(flag if flag.shape == shape else xp.broadcast_to(flag, shape))
        except (ValueError, RuntimeError, TypeError):  # the libraries differ
            raise ValueError(
                f"x[{index}], the flags of op {op.name}, must broadcast to the shape {tuple(shape)} of its elements, "
                f"got shape {tuple(flag.shape)}"
            ) from None
    return (*flags, *xs[count:])


def restarted(
    xp: Namespace,
    op: Operator,
    flags: tuple[Array, ...],
    starts: tuple[Array, ...],
    has_initial: bool,
    ys: tuple[Array, ...],
) -> tuple[Array, ...]:
    """Return the exclusive segmented scan, given results ``ys`` that are right except where segments begin.

    ``flags`` are the flags of the elements. Every segment begins with ``starts``. With ``has_initial``, ``starts`` is
    an initial element; in ``ys`` only the first segment begins with it, and without its flags.
    """
    count, inner = op.flags, op
    while inner._segments is not None:
        inner = inner._segments
    is_start, had_start = flags[0], ys[0]
    for flag, y in zip(flags[1:], ys[1:count], strict=True):
        is_start, had_start = is_start | flag, had_start | y
    values = ys[count:]
    if has_initial:
        first = tuple(xp.broadcast_to(start, y.shape) for start, y in zip(starts[count:], values, strict=True))
        wide = tuple(tuple(cast(xp, x, compute_dtype(xp, x.dtype)) for x in part) for part in (first, values))
        begun = (cast(xp, x, y.dtype) for x, y in zip(inner(*wide), values, strict=True))
        values = tuple(xp.where(had_start, x, y) for x, y in zip(begun, values, strict=True))
    marks, before = [ys[0] | starts[0]], flags[0]
    for index in range(1, count):
        marks.append(xp.where(before, starts[index], ys[index] | starts[index]))
        before = before | flags[index]
    return (*marks, *(xp.where(is_start, start, y) for start, y in zip(starts[count:], values, strict=True)))

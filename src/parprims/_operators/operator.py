"""Operators: associative functions on arrays, their built-in instances, and the checks of their arguments."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import Array, dtype_kind, dtype_name, namespace_of, one_of_kinds, spread
from parprims._core.elements import Structure, as_text, flat, flattened, is_structured, leaf_count, leaf_names, rebuilt
from parprims._operators.built_in import affine, all_bits, by_function, extremum, highest, logaddexp, lowest, welford
from parprims._operators.failures import check_result, explain_failure
from parprims._operators.foreign.calls import call_on

Combine = Callable[[Any, Any], Any]


class Operator:
    """An associative operator: a function of two elements, and its identity.

    An element is an array, or several arrays (its components) in a tuple, a NamedTuple, a list, a dict or a class that
    is registered with JAX or PyTorch, nested at will. The function receives elements of that type. It works on whole
    arrays at once: elementwise along the axis of the call and the axes before it, while axes behind it may be combined,
    as in products of matrices. It must be associative: ``combine(combine(a, b), c)`` equals
    ``combine(a, combine(b, c))``, up to rounding. It need not be commutative.

    Parameters
    ----------
    combine : callable
        ``combine(earlier, later)`` returns the combination of two elements in that order, as new arrays with the dtypes
        of its arguments, which it must not change in place. To run in a kernel the function must consist of Python
        operators and functions of NumPy, PyTorch, ``jax.numpy`` or ``array_api_compat.array_namespace(x)``, on arrays
        of any library. The page "Operators and tracing" lists elementwise functions and functions of small matrices.
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
            parts = identity if isinstance(identity, tuple) else (identity,)
            structured = is_structured(identity)
            _check_scalars("identity", flattened(identity, "identity")[0] if structured else parts, components)
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
        if is_structured(identity) or self._structure is not None:
            scalars = flat(what, identity, self._structure)
            scalars = scalars if type(scalars) is tuple else (scalars,)
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
                check_result(f"op {self.name}", got, expected, self._place(index) if len(earlier) > 1 else None)
            if got.dtype != expected.dtype:
                raise TypeError(
                    f"op {self.name} returned {dtype_name(got.dtype)} for component {self._place(index)}, "
                    f"which has dtype {dtype_name(expected.dtype)}"
                )
            if got.shape != expected.shape:
                shape = _joint_shape(expected.shape, later[index].shape)
                if tuple(got.shape) != shape:
                    same = all(x.shape == expected.shape for x in earlier)
                    raise ValueError(
                        f"op {self.name} returned shape {tuple(got.shape)} for component {self._place(index)}, which "
                        f"has shape {shape}: it must {'work elementwise' if same else 'keep the shapes'}"
                    )
        return combined

    def _place(self, index: int) -> str:
        """Return the name of a component in messages: its number, or its place in a tree."""
        return str(index) if self._structure is None else leaf_names(self._structure, "")[index]


def _joint_shape(shape: Iterable[Any], other_shape: Iterable[Any]) -> tuple[Any, ...]:
    """Return the broadcast shape of two shapes of equal rank."""
    return tuple(m if n == 1 else n for n, m in zip(shape, other_shape, strict=True))


_TAKES = "two elements, earlier and later, and elements of several arrays arrive as tuples"
"""The arguments of an operator, in messages."""


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
        return isinstance(value, int) and (lowest(dtype) if kind == "int" else 0) <= value <= highest(dtype)
    if kind == "bool":
        return isinstance(value, int) and value in (0, 1)
    if kind == "float":
        return isinstance(value, (int, float))
    return isinstance(value, (int, float, complex))


BUILT_IN: dict[str, Operator] = {
    op.name: op
    for op in (
        Operator(lambda earlier, later: earlier + later, identity=0, commutative=True, name="add"),
        Operator(lambda earlier, later: earlier * later, identity=1, commutative=True, name="multiply"),
        Operator(by_function("maximum"), identity=lowest, commutative=True, name="maximum"),
        Operator(by_function("minimum"), identity=highest, commutative=True, name="minimum"),
        Operator(by_function("logical_and"), identity=True, commutative=True, name="logical_and"),
        Operator(by_function("logical_or"), identity=False, commutative=True, name="logical_or"),
        Operator(by_function("bitwise_and"), identity=all_bits, commutative=True, name="bitwise_and"),
        Operator(by_function("bitwise_or"), identity=0, commutative=True, name="bitwise_or"),
        Operator(by_function("bitwise_xor"), identity=0, commutative=True, name="bitwise_xor"),
        Operator(logaddexp, identity=-math.inf, commutative=True, name="logaddexp"),
        Operator(affine, identity=(1, 0), name="affine", components=2),
        Operator(
            extremum("greater"),
            identity=lambda value, index: (lowest(value), highest(index)),
            commutative=True,
            name="argmax",
            components=2,
        ),
        Operator(
            extremum("less"),
            identity=lambda value, index: (highest(value), highest(index)),
            commutative=True,
            name="argmin",
            components=2,
        ),
        Operator(welford, identity=(0, 0, 0), commutative=True, name="welford", components=3),
    )
}

for _op in BUILT_IN.values():
    _op._built_in = True


EXACT = tuple([BUILT_IN[name] for name in ("maximum", "minimum", "argmax", "argmin")])
"""Operators without rounding errors, in any dtype."""


def rounds(op: Operator, dtypes: Sequence[Any]) -> bool:
    """Return whether results of these dtypes depend on the order in which elements are combined."""
    return op not in EXACT and any(dtype_kind(dtype) in ("float", "complex") for dtype in dtypes)


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
        hint = ": the arrays come before the operator" if arrays else f": write axis={op}" if type(op) is int else ""
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
    blamed, have = ("dtype", "be") if requested else (name, "have")
    op, first = outer_op, 0
    while op._segments is not None:
        if len(dtypes) == 1:
            raise ValueError(f"op {outer_op.name} works on flags and elements, {name} has flags only")
        if dtype_kind(dtypes[0]) != "bool":
            raise TypeError(
                f"{blamed}[{first}], {'the dtype of ' if requested else ''}the flags of op {outer_op.name}, must "
                f"{'be' if requested else 'have dtype'} bool, got {dtype_name(dtypes[0])}"
                f"{'' if requested else ': write flags != 0'}"
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
                f"{blamed} must {have} {one_of_kinds(allowed)} for op {op.name}"
                f"{f' in component {first + index}' if first or len(dtypes) > 1 else ''}, got {dtype_name(dtype)}"
                f"{f': write {name} != 0' if allowed == ('bool',) and not requested and len(dtypes) == 1 else ''}"
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
            raise TypeError(f"op {op.name} works on tuples of flags and elements, got {as_text(structure)}")
        rest = parts[1] if len(parts) == 2 else (tuple, None, parts[1:])
        return segmented(restructured(op._segments, rest))
    combine, name, identity = op.combine, op.name, op._identity

    def on_leaves(earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
        result = combine(rebuilt(structure, earlier), rebuilt(structure, later))
        leaves, result_structure = flattened(result, f"op {name}")
        if result_structure != structure:
            raise TypeError(f"op {name} returned {as_text(result_structure)} for elements {as_text(structure)}")
        return leaves

    count = leaf_count(structure)
    if op.components not in (None, count):
        raise ValueError(f"op {name} works on elements of {op.components} arrays, {as_text(structure)} has {count}")
    new = Operator(on_leaves, identity=identity, commutative=op.commutative, name=name, components=count)
    new._structure = structure
    return new


def names_of_leaves(op: Operator, count: int, name: str = "x") -> tuple[str, ...]:
    """Return the names of the arrays of an element in messages."""
    names = leaf_names(op._structure, name) if op._structure is not None else ()
    return names if len(names) == count else tuple([f"{name}[{index}]" for index in range(count)])


def by_leaves(primitive: Callable[..., Any], x: Any, op: Any, *, initial: Any, dtype: Any, **options: Any) -> Any:
    """Return the result of a primitive for elements of any structure, as an element of that structure."""
    leaves, structure = flattened(x)
    if not leaves:
        raise ValueError("x must hold at least one array")
    flat_op = restructured(as_operator(op), structure)
    start, to = flat("initial", initial, structure), flat("dtype", dtype, structure)
    found = primitive(leaves, flat_op, initial=start, dtype=to, **options)
    if options.get("return_last"):
        return tuple([rebuilt(structure, part) for part in found])
    return rebuilt(structure, found)


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
        the components are those of ``op``. Flags broadcast against the components. Flags with fewer axes have the first
        axes of the components or the last, whichever have the axis of the call.

    Raises
    ------
    ValueError
        If op is a name that no operator has.
    TypeError
        If op is no name, Operator or function.

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

    With an operator of your own:

    >>> parprims.scan((starts, np.array([1, 2, 3, 4])), parprims.segmented(lambda earlier, later: later))[1]
    array([1, 2, 3, 4])
    """
    inner = as_operator(op)

    def combine(earlier: tuple[Array, ...], later: tuple[Array, ...]) -> tuple[Array, ...]:
        (flag, *values), (starts, *others) = earlier, later
        xp = namespace_of(starts)
        joined = inner(tuple(values), tuple(others))
        return (
            flag | starts,
            *(xp.where(spread(xp, starts, other), other, both) for other, both in zip(others, joined, strict=True)),
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

"""Callers' functions that use the functions of one library on the arrays of another.

An operator may be written with ``numpy``, ``torch`` or ``jax.numpy``, whatever arrays it is given. `call` runs it on
arrays of any library:

- NumPy's and PyTorch's functions let arguments override them. They are given `_StandIn` objects, which call the
  function of the same name of the library of the arrays.
- Functions of ``jax.numpy`` take arrays of JAX alone. JAX traces the caller's function on scalars, and `evaluate` does
  the operations of that program, all elementwise, by the array API standard's functions. The trace of a kernel
  (tracing.py) uses `program` and `evaluate` too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat
import numpy as np

from parprims._core.arrays import Array, Namespace, device, dtype_name, namespace_of
from parprims._core.elements import flattened, is_structured, rebuilt
from parprims._libraries.settings import compiling


class Untranslatable(Exception):
    """A program of JAX has no translation into elementwise functions; the message says why."""


NUMPY_NAMES = {
    "true_divide": "divide",
    "div": "divide",
    "sub": "subtract",
    "mul": "multiply",
    "neg": "negative",
    "absolute": "abs",
    "power": "pow",
    "conjugate": "conj",
    "invert": "bitwise_invert",
    "bitwise_not": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arctan2": "atan2",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "rint": "round",
    "clamp": "clip",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}
"""The array API standard's names of functions that NumPy or PyTorch call otherwise."""


def _either(name: str) -> Callable[..., Any]:
    """Return PyTorch's max or min of two arrays, which with a number in place of the second reduces an axis."""

    def of_two(xp: Namespace, x: Any, y: Any) -> Any:
        if not hasattr(y, "dtype"):
            raise Untranslatable(f"it calls {name[:3]} of an axis, which is not elementwise")
        return getattr(xp, name)(x, y)

    return of_two


def _fmod(xp: Namespace, x: Any, y: Any) -> Any:
    """Return the remainder of a division rounded toward zero, by that of one rounded down."""
    if xp.isdtype((x if hasattr(x, "dtype") else y).dtype, "integral"):
        rest = xp.remainder(x, y)
        return xp.where((rest != 0) & ((x < 0) != (y < 0)), rest - y, rest)
    rest = xp.remainder(abs(x), abs(y))
    return xp.where(x < 0, -rest, rest)


def _not_nan(name: str) -> Callable[..., Any]:
    def chosen(xp: Namespace, x: Any, y: Any) -> Any:
        return xp.where(x != x, y, xp.where(y != y, x, getattr(xp, name)(x, y)))

    return chosen


COMPOSED: dict[str, Callable[..., Any]] = {
    "fmax": _not_nan("maximum"),
    "fmin": _not_nan("minimum"),
    "fmod": _fmod,
    "max": _either("maximum"),
    "min": _either("minimum"),
    "relu": lambda xp, x: xp.maximum(x, xp.zeros_like(x)),
    "rsqrt": lambda xp, x: 1.0 / xp.sqrt(x),
    "sigmoid": lambda xp, x: 1.0 / (1.0 + xp.exp(-x)),
    "silu": lambda xp, x: x / (1.0 + xp.exp(-x)),
}
"""Elementwise functions of NumPy and PyTorch that the array API standard lacks: of a namespace and the operands."""


def call(function: Callable[..., Any], elements: tuple[Any, ...]) -> Any:
    """Return the result of a caller's function of elements, in arrays of the library of its arguments.

    Parameters
    ----------
    function : callable
        The caller's function. It failed on the arrays themselves, or returned arrays of another library.
    elements : tuple
        Its arguments: arrays, or tuples, NamedTuples or dicts of arrays.

    Returns
    -------
    element
        The result, of the structure that the function returns.

    Raises
    ------
    Exception
        If the function has no meaning on these arrays: any error of its own, of a library, or `Untranslatable`.
    """
    arrays, structure = flattened(elements)
    xp = namespace_of(arrays[0])
    try:
        leaves, result_structure = flattened(function(*rebuilt(structure, [_StandIn(xp, x) for x in arrays])))
    except Exception as error:  # the caller's function may raise any error for a stand-in
        if not came_through_jax(error):
            raise
    else:
        results = [leaf._array if isinstance(leaf, _StandIn) else leaf for leaf in leaves]
        if all(array_api_compat.is_array_api_obj(one) and namespace_of(one) is xp for one in results):
            return rebuilt(result_structure, results)
        if not any(map(array_api_compat.is_jax_array, results)):
            raise TypeError("the function returns no arrays of its arguments' library")
    traced, result_structure = program(function, elements, [dtype_name(x.dtype) for x in arrays])
    return rebuilt(result_structure, evaluate(traced, xp, arrays))


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


def came_through_jax(error: BaseException) -> bool:
    """Return whether a function of JAX raised an error, or called what raised it."""
    notes = getattr(error, "__notes__", ())
    told = (str(error), *notes)  # PyTorch names the type of an operand that it does not know
    if type(error).__module__.partition(".")[0] in _OF_JAX or any("JAX has" in x or "jaxlib" in x for x in told):
        return True
    where = error.__traceback__
    while where is not None:
        if str(where.tb_frame.f_globals.get("__name__", "")).partition(".")[0] in _OF_JAX:
            return True
        where = where.tb_next
    return False


_OF_JAX = ("jax", "jaxlib")


# ---- Functions that arguments override ----------------------------------------------------------------------------


class _StandIn:
    """An array of any library in a function that calls NumPy or PyTorch: both ask it to call the function instead."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, xp: Namespace, array: Array) -> None:
        self._xp, self._array = xp, array

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols, by which other libraries would read the array
            raise AttributeError(name)
        found = getattr(self._array, name, None)
        if found is None:  # a method of the arrays of another library
            return functools.partial(_function(self._xp, name), self)
        return _on_arrays(self._xp, found) if callable(found) else _stood_for(self._xp, found)

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return _StandInNamespace(self._xp)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        return _function(self._xp, ufunc.__name__)(*inputs, **options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _function(self._xp, func.__name__)(*args, **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = next(x for x in (*args, *(kwargs or {}).values()) if isinstance(x, _StandIn))
        return _function(first._xp, func.__name__)(*args, **(kwargs or {}))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a function of NumPy asks for the values of an array")

    def __bool__(self) -> bool:
        return bool(self._array)

    def __getitem__(self, index: Any) -> Any:
        return _StandIn(self._xp, self._array[index])


def _in_place(self: _StandIn, _: Any) -> Any:
    """Refuse to change an array, but of JAX, whose arrays never change: there Python takes the operator itself."""
    if array_api_compat.is_jax_namespace(self._xp):
        return NotImplemented
    raise TypeError("the function changes its argument in place")


def _add_operators() -> None:
    def method(apply: Callable[..., Any], reflected: bool) -> Callable[..., Any]:
        def operate(self: _StandIn, *others: Any) -> Any:
            operands = (*others, self) if reflected else (self, *others)
            return _on_arrays(self._xp, apply)(*operands)

        return operate

    for name in "add sub mul truediv floordiv mod pow and or xor lshift rshift matmul".split():
        apply = getattr(operator, f"__{name}__")
        setattr(_StandIn, f"__{name}__", method(apply, reflected=False))
        setattr(_StandIn, f"__r{name}__", method(apply, reflected=True))
        setattr(_StandIn, f"__i{name}__", _in_place)
    for name in "eq ne lt le gt ge neg pos invert abs".split():
        setattr(_StandIn, f"__{name}__", method(getattr(operator, f"__{name}__"), reflected=False))


_add_operators()


class _StandInNamespace:
    """The namespace of stand-ins: that of their arrays."""

    def __init__(self, xp: Namespace) -> None:
        self._xp = xp

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._xp, name)
        return _on_arrays(self._xp, found) if callable(found) and not isinstance(found, type) else found


def _function(xp: Namespace, name: str) -> Callable[..., Any]:
    """Return the function of a library that NumPy or PyTorch knows by a name."""
    composed = COMPOSED.get(name)
    if composed is not None:
        return _on_arrays(xp, functools.partial(composed, xp))
    return _on_arrays(xp, getattr(xp, NUMPY_NAMES.get(name, name)))


def _on_arrays(xp: Namespace, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of stand-ins that calls one of arrays."""

    def run(*args: Any, **kwargs: Any) -> Any:
        arrays = [_array_of(xp, x) for x in args]
        return _stood_for(xp, function(*arrays, **{name: _array_of(xp, x) for name, x in kwargs.items()}))

    return run


def _array_of(xp: Namespace, x: Any) -> Any:
    """Return the array that a stand-in stands for; a dtype of another library is translated by its name."""
    if isinstance(x, _StandIn):
        return x._array
    if isinstance(x, tuple | list):
        return type(x)(_array_of(xp, part) for part in x)
    if isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)) or _is_torch_dtype(x):
        return getattr(xp, dtype_name(x))
    return x


def _is_torch_dtype(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.dtype)


def _stood_for(xp: Namespace, result: Any) -> Any:
    """Return stand-ins for the arrays of a result."""
    if isinstance(result, tuple | list):
        return tuple(_stood_for(xp, part) for part in result)
    is_array = array_api_compat.is_array_api_obj(result) or isinstance(result, np.generic)
    return _StandIn(xp, result) if is_array else result


# ---- Functions of JAX -----------------------------------------------------------------------------------------------


def program(function: Callable[..., Any], elements: tuple[Any, ...], dtypes: Sequence[str]) -> tuple[Any, Any]:
    """Return the program (a closed jaxpr) of a function of elementwise operations, and the structure of its result.

    JAX traces the function on arrays of the dtypes, in the structure of the elements.
    """
    import jax

    _, structure = flattened(elements)
    structures = []

    def on_leaves(*leaves: Any) -> list[Any]:
        result_leaves, result_structure = flattened(function(*rebuilt(structure, leaves)))
        structures.append(result_structure)
        return list(result_leaves)

    arrays = [jax.ShapeDtypeStruct(_SHAPE, name) for name in dtypes]
    with _dtypes_of_64_bits(any("64" in name or name == "complex128" for name in dtypes)):
        return jax.make_jaxpr(on_leaves)(*arrays), structures[0]


_SHAPE = (2, 3)
"""The shape of the arrays that JAX traces a function on: no transposition keeps it."""


def _dtypes_of_64_bits(needed: bool) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which JAX keeps numbers of 64 bits if they are needed, else what the program asks for."""
    import jax

    if not needed:
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[Any] = (
        jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()
    )
    return found


def evaluate(
    closed: Any, xp: Namespace, arrays: Sequence[Any], constant: Callable[[Any], Any] | None = None
) -> list[Any]:
    """Return the results of a program of JAX on arrays of a namespace.

    Parameters
    ----------
    closed : jax.core.ClosedJaxpr
        The program.
    xp : namespace
        The namespace of the arrays, which may be symbolic scalars.
    arrays : sequence of array
        The inputs.
    constant : callable, optional
        Makes an operand of a NumPy scalar, by default an array beside the inputs.

    Raises
    ------
    Untranslatable
        If an operation has no translation.
    """

    def array_of(number: Any) -> Array:
        kind = getattr(xp, dtype_name(number.dtype))
        return xp.asarray(number.item(), dtype=kind, device=device(arrays[0]))

    evaluation = _Evaluation(xp, array_of if constant is None else constant)
    return evaluation.results(closed.jaxpr, closed.consts, arrays)


_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The options of an operation that hold the program which it runs once."""

_LOOPS = ("cond", "while", "scan")


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """The evaluation of programs of JAX by the functions of a namespace; ``constant`` makes operands of numbers."""

    xp: Namespace
    constant: Callable[[Any], Any]

    def results(self, jaxpr: Any, constants: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Return the results of a program."""
        values: dict[Any, Any] = {}
        for variable, number in zip(jaxpr.constvars, constants, strict=True):
            if np.ndim(number):
                raise Untranslatable("it reads elements of another array")
            values[variable] = np.asarray(number)[()]
        values.update(zip(jaxpr.invars, operands, strict=True))

        def read(atom: Any) -> Any:
            return np.asarray(atom.val, dtype=atom.aval.dtype)[()] if hasattr(atom, "val") else values[atom]

        for equation in jaxpr.eqns:
            results = self._results_of(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _results_of(self, equation: Any, operands: list[Any]) -> list[Any]:
        name, options = equation.primitive.name, equation.params
        inner = next((options[key] for key in _INNER if key in options), None)
        if inner is not None and name not in _LOOPS:
            return self.results(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands)
        if not all(_is_elementwise(equation, variable) for variable in equation.outvars):
            raise Untranslatable(f"it calls {name} of jax.lax, which is not elementwise")
        if operands and all(isinstance(operand, np.generic) for operand in operands):
            with _dtypes_of_64_bits(True):
                return [np.asarray(equation.primitive.bind(*operands, **options)).flat[0]]
        rule = _RULES.get(name)
        if rule is None:
            raise Untranslatable(f"it calls {name} of jax.lax, which has no translation")
        operands = [self.constant(one) if isinstance(one, np.generic) else one for one in operands]
        return [rule(self.xp, equation, *operands)]


def _is_elementwise(equation: Any, result: Any) -> bool:
    """Return whether a result of an operation is as large as the largest operand, or is a number made an array."""
    shapes = {atom.aval.shape for atom in equation.invars}
    return result.aval.shape in shapes or (result.aval.shape == _SHAPE and shapes == {()})


_Rule = Callable[..., Any]


def _named(name: str) -> _Rule:
    return lambda xp, _, *operands: getattr(xp, name)(*operands)


def _of_bits(name: str) -> _Rule:
    """Return the rule of an operation that is logical on bools and works on the bits of integers."""

    def rule(xp: Namespace, equation: Any, *operands: Any) -> Any:
        logical = equation.outvars[0].aval.dtype == np.bool_
        return getattr(xp, f"logical_{name}" if logical else f"bitwise_{'invert' if name == 'not' else name}")(
            *operands
        )

    return rule


def _is_integer(equation: Any) -> bool:
    return bool(np.issubdtype(equation.outvars[0].aval.dtype, np.integer))


def _divide(xp: Namespace, equation: Any, x: Any, y: Any) -> Any:
    """Divide; quotients of integers are rounded toward zero."""
    if not _is_integer(equation):
        return xp.divide(x, y)
    quotient, rest = xp.floor_divide(x, y), xp.remainder(x, y)
    return xp.where((rest != 0) & ((x < 0) != (y < 0)), quotient + 1, quotient)


def _integer_power(xp: Namespace, equation: Any, x: Any) -> Any:
    exponent = equation.params["y"]
    left, factor, product = abs(exponent), x, None
    while left:
        if left % 2:
            product = factor if product is None else product * factor
        left //= 2
        factor = factor * factor if left else factor
    if product is None:
        return xp.ones_like(x)
    return 1.0 / product if exponent < 0 else product


def _power(xp: Namespace, equation: Any, x: Any, y: Any) -> Any:
    return xp.pow(x, _converted(xp, equation, y))


def _converted(xp: Namespace, equation: Any, x: Any) -> Any:
    """Return x in the dtype of the result."""
    if isinstance(x, np.generic):
        return x.astype(equation.outvars[0].aval.dtype)
    return xp.astype(x, getattr(xp, dtype_name(equation.outvars[0].aval.dtype)))


def _round(xp: Namespace, equation: Any, x: Any) -> Any:
    if int(equation.params["rounding_method"]) == 1:  # to the nearest, halves to the even neighbour
        return xp.round(x)
    whole = xp.trunc(x)
    return xp.where(xp.abs(x - whole) >= 0.5, whole + xp.sign(x), whole)


def _choose(xp: Namespace, equation: Any, which: Any, *cases: Any) -> Any:
    """Return the case that a bool or an integer chooses."""
    if equation.invars[0].aval.dtype == np.bool_:
        return xp.where(which, cases[1], cases[0])
    chosen = cases[0]
    for number, case in enumerate(cases[1:], 1):
        chosen = xp.where(which == number, case, chosen)
    return chosen


def _shift_right(xp: Namespace, equation: Any, x: Any, count: Any) -> Any:
    if np.issubdtype(equation.outvars[0].aval.dtype, np.signedinteger):
        raise Untranslatable("it shifts a signed integer to the right without its sign: use an unsigned integer")
    return xp.bitwise_right_shift(x, count)


_RULES: dict[str, _Rule] = {
    **{
        name: _named(name)
        for name in (
            "abs sign floor ceil sqrt exp expm1 log log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
            "atan2 conj real imag square"
        ).split()
    },
    **{
        name: _named(standard)
        for name, standard in {
            "add": "add",
            "add_any": "add",
            "sub": "subtract",
            "mul": "multiply",
            "neg": "negative",
            "max": "maximum",
            "min": "minimum",
            "eq": "equal",
            "ne": "not_equal",
            "lt": "less",
            "le": "less_equal",
            "gt": "greater",
            "ge": "greater_equal",
            "is_finite": "isfinite",
            "shift_left": "bitwise_left_shift",
            "shift_right_arithmetic": "bitwise_right_shift",
        }.items()
    },
    **{name: _of_bits(name) for name in ("and", "or", "xor", "not")},
    **dict.fromkeys(("copy", "copy_p", "reshape", "squeeze", "broadcast_in_dim"), lambda _, __, x: x),
    "div": _divide,
    "rem": lambda xp, _, x, y: _fmod(xp, x, y),
    "pow": _power,
    "integer_pow": _integer_power,
    "exp2": lambda xp, _, x: xp.exp2(x) if hasattr(xp, "exp2") else xp.pow(xp.full_like(x, 2), x),
    "rsqrt": lambda xp, _, x: 1.0 / xp.sqrt(x),
    "logistic": lambda xp, _, x: 1.0 / (1.0 + xp.exp(-x)),
    "clamp": lambda xp, _, low, x, high: xp.minimum(xp.maximum(x, low), high),
    "round": _round,
    "select_n": _choose,
    "convert_element_type": _converted,
    "shift_right_logical": _shift_right,
}
"""The operations of jax.lax, by functions of the standard: of a namespace, the equation and its operands."""

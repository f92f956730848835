"""Translation of elementwise Python functions on arrays into functions of kernels.

The function is called once with symbolic scalars (`Scalar`) in place of arrays. They implement Python's operators, the
functions of the array API standard (their ``array_namespace`` is `NAMESPACE`), and NumPy's and PyTorch's own functions
through their override protocols. JAX traces a function that calls functions of JAX (foreign/jax_programs.py). Every
operation appends a line to the trace, so that the finished trace is the body of a function in a `Language`: CUDA, with
the C++ functions of _cuda/device/common.cuh, or another language.

Numbers in the code of the function are literals of the trace. All other numbers, such as captured numbers, may change
from call to call, so the text can have a name for each instead: see `Captured`.

The scalars, their namespace and the trace read each other's fields, so they are one file in spite of its length.
"""

from __future__ import annotations

import contextvars
import functools
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from parprims._core.arrays import SIXTEEN_BIT_FLOATS, dtype_bits, dtype_kind, dtype_name
from parprims._core.elements import ITS_NAMESPACE, Structure, flattened, is_structured, not_array, rebuilt
from parprims._operators.constants import leaves, with_own_numbers
from parprims._operators.foreign.composed import COMPOSED, OF_TORCH, named
from parprims._operators.foreign.jax_programs import came_through_jax, evaluate, program
from parprims._operators.foreign.names import SPECIAL, Dtype, Untranslatable, number_of, standard_name
from parprims._operators.languages import C_TYPES, CUDA, Captured, Language, integer_range, register_type


class Untraceable(Exception):
    """The function cannot be translated; the message says why."""


class _InPlaceError(Exception):
    """The function changes an argument in place."""


class Lines(list[str]):
    """The lines of a trace.

    ``immutable`` says that arrays of the caller's library never change, so that ``x += y`` makes a new array. ``long``
    says that a line calls a function that the compiler replaces with dozens of instructions. ``captured`` are the
    numbers that kernels receive as arguments, and ``told`` is the beginning of their names. ``prefix`` is the beginning
    of the names of values.
    """

    language = CUDA
    immutable = False
    long = False
    told: str | None = None
    prefix = ""

    def __init__(self) -> None:
        super().__init__()
        self.captured: list[Captured] = []


_LINES: contextvars.ContextVar[Lines] = contextvars.ContextVar("_LINES")
"""The lines of the function that is traced now."""


class Scalar:
    """A symbolic value: its dtype, the expression for it, and the lines of the trace before it."""

    # Comparison for equality is a traced operation, so values cannot be keys.
    __hash__ = None  # type: ignore[assignment]
    shape: tuple[int, ...] = ()
    ndim = 0
    device = None  # numbers of a function are made where its kernel runs

    def __init__(self, lines: Lines, dtype: str, code: str, *, argument: bool = False) -> None:
        self._lines, self._dtype, self._code, self._argument = lines, dtype, code, argument

    @property
    def dtype(self) -> Dtype:
        """The dtype."""
        return Dtype(self._dtype)

    def __repr__(self) -> str:
        return f"Scalar({self._dtype} {self._code})"

    def __array_namespace__(self, api_version: str | None = None) -> Any:
        return NAMESPACE

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        for written in (*options.get("out", ()), *(inputs[:1] if method == "at" else ())):
            _written(written)
        if method != "__call__" or options:
            raise Untraceable(f"numpy.{ufunc.__name__}.{method} is not elementwise")
        return function_named(ufunc.__name__, "numpy")(*inputs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func.__name__ in ("ndim", "shape"):
            return getattr(args[0], func.__name__)
        if func.__name__ in _WRITERS:
            _written(args[0])
        _written(kwargs.get("out"))
        return function_named(func.__name__, "numpy")(*args, **kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__.endswith("_") and not func.__name__.startswith("_"):
            _written(args[0])
        _written((kwargs or {}).get("out"))
        return function_named(func.__name__, "torch")(*args, **(kwargs or {}))

    def __bool__(self) -> bool:
        raise Untraceable("it branches on the values of the arrays (use where of the array library)")

    def _no_value(self, *_args: Any) -> Any:
        raise Untraceable(
            "it asks for the value of an array element, as functions of math do (use the array library's)"
        )

    __int__ = __float__ = __complex__ = __index__ = __array__ = _no_value

    def __getitem__(self, _index: Any) -> Any:
        raise Untraceable("it indexes an array")

    __len__ = __iter__ = __getitem__

    def __setitem__(self, _index: Any, _value: Any) -> None:
        _written(self)
        raise Untraceable("it assigns to elements of an array (use where of the array library)")

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.startswith("_"):  # PyTorch's methods that work in place, and ndarray.fill
            return functools.partial(_written_by, self, name)
        if name not in _NO_METHODS and standard_name(name) in _METHODS:
            return functools.partial(function_named(name, "" if name in _OF_ARRAYS else "torch"), self)
        raise AttributeError(f"arrays have no attribute {name!r} that has a translation")

    @property
    def real(self) -> Scalar:
        """The real part."""
        return NAMESPACE._part(self, "re") if dtype_kind(self._dtype) == "complex" else self

    @property
    def imag(self) -> Scalar:
        """The imaginary part."""
        return NAMESPACE._part(self, "im")

    def fill(self, _value: Any) -> None:
        """Raise: ndarray.fill works in place."""
        _written_by(self, "fill")


_WRITERS = ("copyto", "fill_diagonal", "place", "put", "putmask", "put_along_axis")
"""NumPy's functions that write into their first argument."""


def _written(x: Any) -> None:
    """Raise _InPlaceError if x is an argument of the traced function and arrays of its library can change."""
    if isinstance(x, Scalar) and x._argument and not x._lines.immutable:
        raise _InPlaceError


def _written_by(x: Scalar, name: str, *_args: Any, **_options: Any) -> None:
    _written(x)
    raise Untraceable(f"it calls {name}, which has no translation")


def function_named(name: str, home: str = "") -> Callable[..., Any]:
    """Return the function of symbolic scalars for a name of the standard, or of a library, its home."""
    return named(NAMESPACE, name, home)


def _scalars(*values: Any, special: Callable[[Any], bool] | None = None) -> list[Any]:
    """Return the operands as Scalars of the promoted dtype. Python's numbers take the dtype of the other operands.

    ``special`` returns whether the compiler must see a number, as a literal.
    """
    values = tuple([number_of(value) for value in values])
    traced = [value for value in values if isinstance(value, Scalar)]
    typed: list[Any] = [value for value in values if isinstance(value, np.generic)]
    if not traced:
        raise Untraceable("it combines constants only")
    lines = traced[0]._lines
    dtype = traced[0]._dtype
    for value in (*traced[1:], *typed):
        dtype = _promote(dtype, dtype_name(value.dtype))
    return [
        _cast(value, dtype)
        if isinstance(value, Scalar)
        else constant(lines, value, dtype, written=special is not None and special(value))
        for value in values
    ]


def _promote(dtype: str, other_dtype: str) -> str:
    if dtype == other_dtype:
        return dtype
    kinds = {dtype_kind(dtype), dtype_kind(other_dtype)}
    if "bfloat16" in (dtype, other_dtype):
        wide = other_dtype if dtype == "bfloat16" else dtype
        if wide in ("float32", "float64"):
            return wide
    elif kinds <= {"int", "uint"} or kinds <= {"float", "complex"}:
        promoted = np.promote_types(dtype, other_dtype).name
        if dtype_kind(promoted) in kinds:
            return promoted
    raise Untraceable(
        f"it combines {dtype} with {other_dtype}, which the array API standard does not define (use astype)"
    )


def _another(x: Scalar) -> Scalar:
    """Return a copy. Changes of the copy in place do not affect x."""
    return Scalar(x._lines, x._dtype, x._code)


def _emit(lines: Lines, dtype: str, expression: str) -> Scalar:
    name = f"{lines.prefix}t{len(lines)}"
    lines.append(lines.language.assign(name, dtype, expression))
    return Scalar(lines, dtype, name)


def _cast(value: Scalar, dtype: str) -> Scalar:
    if value._dtype == dtype:
        return value
    if dtype not in C_TYPES:
        raise Untraceable(f"it casts to {dtype}, which has no translation")
    if dtype_kind(value._dtype) == "complex" and dtype_kind(dtype) != "complex":
        raise Untraceable(f"it casts {value._dtype} to {dtype}, which the array API standard does not define")
    return _emit(value._lines, dtype, value._lines.language.cast(value._code, value._dtype, dtype))


def constant(lines: Lines, value: Any, dtype: str, *, written: bool = False) -> Scalar:
    """Return a Python or NumPy scalar as a value of the dtype; refuse a scalar of a kind that the dtype cannot hold.

    The value is a literal if the number is in the function's code, if ``written`` is set, or if kernels of the language
    receive no numbers. Otherwise it is the name of a captured number.
    """
    written = written or lines.told is None or _stands_in_code(value)
    value = value.item() if isinstance(value, np.generic) else value
    kind = dtype_kind(dtype)
    allowed = {
        "bool": (bool,),
        "int": (bool, int),
        "uint": (bool, int),
        "float": (bool, int, float),
        "complex": (bool, int, float, complex),
    }
    if not isinstance(value, allowed[kind]):
        if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
            raise Untraceable(f"it combines {dtype} with an array of jaxlib")  # so JAX traces it, see came_through_jax
        raise Untraceable(f"it combines {dtype} with {value!r} of type {type(value).__name__}")
    if kind in ("int", "uint"):
        low, high = integer_range(dtype)
        if not low <= int(value.real) <= high:
            raise Untraceable(f"the constant {value} is out of the range of {dtype}")
    if written:
        return Scalar(lines, dtype, lines.language.literal(value, dtype))
    name = f"{lines.told}{len(lines.captured)}"
    lines.captured.append(Captured(name, dtype, lines.language.words(value, dtype)))
    return Scalar(lines, dtype, lines.language.captured(name, dtype))


# ---- Numbers in the caller's code -------------------------------------------------------------------------------


def _stands_in_code(number: Any) -> bool:
    """Return whether a number is a constant of a function of the caller's that is running now.

    Numbers are compared by identity. Python keeps one object for equal small integers, so a captured small integer
    counts as a constant if the code has an equal constant.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not trace.__code__:
        if frame.f_globals is not globals() and any(one is number for one in leaves(frame.f_code.co_consts)):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _is_special_in_powers(number: Any) -> bool:
    """Return whether compilers compute powers with this base or exponent in another way, with other rounding.

    They use products and roots for whole and half exponents, and powers of two for bases that are powers of two.
    """
    if not isinstance(number, int | float | np.integer | np.floating):
        return False
    number = float(number)
    return not math.isfinite(number) or number * 2 == math.floor(number * 2) or math.frexp(abs(number))[0] == 0.5


_ANY = ("bool", "int", "uint", "float", "complex")
_NUMERIC = _ANY[1:]
_REAL = ("int", "uint", "float")
_BITS = ("bool", "int", "uint")
_FLOATING = ("float", "complex")

_LONG = (
    "exp exp2 expm1 log log1p log2 log10 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "pow atan2 hypot logaddexp cbrt erf erfc gamma lgamma".split()
)

# By name, which the C++ function has too: the kinds of operands, and whether the result is bool.
_ELEMENTWISE: dict[str, tuple[tuple[str, ...], bool]] = {
    "add": (_NUMERIC, False),
    "subtract": (_NUMERIC, False),
    "multiply": (_NUMERIC, False),
    "divide": (_FLOATING, False),
    "floor_divide": (_REAL, False),
    "remainder": (_REAL, False),
    "negative": (_NUMERIC, False),
    "positive": (_NUMERIC, False),
    "maximum": (_REAL, False),
    "minimum": (_REAL, False),
    "square": (_NUMERIC, False),
    "sign": (_REAL, False),
    "reciprocal": (_FLOATING, False),
    "equal": (_ANY, True),
    "not_equal": (_ANY, True),
    "less": (_REAL, True),
    "less_equal": (_REAL, True),
    "greater": (_REAL, True),
    "greater_equal": (_REAL, True),
    "logical_and": (("bool",), True),
    "logical_or": (("bool",), True),
    "logical_xor": (("bool",), True),
    "logical_not": (("bool",), True),
    "bitwise_and": (_BITS, False),
    "bitwise_or": (_BITS, False),
    "bitwise_xor": (_BITS, False),
    "bitwise_invert": (_BITS, False),
    "bitwise_left_shift": (("int", "uint"), False),
    "bitwise_right_shift": (("int", "uint"), False),
    "isnan": (_FLOATING, True),
    "isinf": (_FLOATING, True),
    "isfinite": (_FLOATING, True),
    "signbit": (("float",), True),
    "conj": (_NUMERIC, False),
    **dict.fromkeys((*_LONG, *SPECIAL, "sqrt", "copysign"), (("float",), False)),
    **dict.fromkeys("floor ceil trunc round".split(), (_REAL, False)),
}


BINARY = frozenset(
    "add subtract multiply divide floor_divide remainder maximum minimum equal not_equal less less_equal greater "
    "greater_equal logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor bitwise_left_shift "
    "bitwise_right_shift pow atan2 hypot copysign logaddexp nextafter".split()
)
"""The elementwise functions of two operands; the others have one."""

_METHODS = frozenset((*_ELEMENTWISE, *COMPOSED, *OF_TORCH, "abs", "astype"))
"""The elementwise functions that arrays of NumPy, PyTorch or JAX have as methods too."""

_NO_METHODS = ("equal", "max", "min", "piecewise", "select", "where")
"""Names that mean another function as a method."""

_OF_ARRAYS = ("astype", "clip", "conj", "conjugate", "round")
"""Methods that NumPy's arrays have."""


def _elementwise(name: str) -> Callable[..., Any]:
    kinds, to_bool = _ELEMENTWISE[name]

    def apply(*operands: Any) -> Scalar:
        if len(operands) != 1 + (name in BINARY):
            raise Untraceable(f"it calls {name} of {len(operands)} operands")
        xs = _scalars(*operands, special=_is_special_in_powers if name == "pow" else None)
        dtype = xs[0]._dtype
        if dtype_kind(dtype) not in kinds or (name == "nextafter" and dtype in SIXTEEN_BIT_FLOATS):
            raise Untraceable(f"{name} is not defined for {dtype}")
        lines = xs[0]._lines
        lines.long |= name in _LONG
        expression = lines.language.call(name, dtype, *[x._code for x in xs])
        return _emit(lines, "bool" if to_bool else dtype, expression)

    apply.__name__ = name
    return apply


class _Info:
    """The result of finfo and iinfo."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class _Namespace:
    """The array namespace of Scalars."""

    __name__ = "parprims._operators.tracing"
    pi, e, inf, nan = math.pi, math.e, math.inf, math.nan

    def __getattr__(self, name: str) -> Any:
        if name in C_TYPES:
            return Dtype(name)
        if name in _ELEMENTWISE:
            return _elementwise(name)
        if name.startswith("__"):
            raise AttributeError(name)
        raise Untraceable(f"it calls {name}, which has no translation")

    def abs(self, x: Scalar) -> Scalar:
        real = {"complex64": "float32", "complex128": "float64"}.get(x._dtype, x._dtype)
        if real == "bool":
            raise Untraceable("abs is not defined for bool")
        return _emit(x._lines, real, x._lines.language.call("absolute", x._dtype, x._code))

    def real(self, x: Scalar) -> Scalar:
        return self._part(x, "re")

    def imag(self, x: Scalar) -> Scalar:
        return self._part(x, "im")

    def _part(self, x: Scalar, part: str) -> Scalar:
        if dtype_kind(x._dtype) != "complex":
            raise Untraceable(f"real and imag are not defined for {x._dtype}")
        real = "float32" if x._dtype == "complex64" else "float64"
        return _emit(x._lines, real, x._lines.language.part(x._code, x._dtype, part))

    def where(self, condition: Any, x: Any, y: Any, /) -> Scalar:
        if not isinstance(condition, Scalar) or condition._dtype != "bool":
            raise Untraceable("where needs a condition of dtype bool")
        x, y = number_of(x), number_of(y)
        if not isinstance(x, Scalar) and isinstance(x, np.generic):
            x = constant(condition._lines, x, dtype_name(x.dtype))
        if not isinstance(x, Scalar) and not isinstance(y, (Scalar, np.generic)):
            raise Untraceable("where needs an array in at least one branch")
        if not isinstance(x, Scalar) and isinstance(y, np.generic):
            y = constant(condition._lines, y, dtype_name(y.dtype))
        if_true, if_false = _scalars(x, y)
        chosen = condition._lines.language.choose(condition._code, if_true._code, if_false._code)
        return _emit(condition._lines, if_true._dtype, chosen)

    def asarray(self, x: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None) -> Scalar:
        del device  # numbers of a function are made where its kernel runs
        x = number_of(x)
        if isinstance(x, Scalar):
            return self.astype(x, x.dtype if dtype is None else dtype, copy=copy is not False)
        if dtype is None and not isinstance(x, np.generic):
            raise Untraceable("it makes an array of a number without a dtype (give asarray its dtype)")
        return constant(_LINES.get(), x, dtype_name(x.dtype if dtype is None else dtype))

    def clip(self, x: Scalar, min: Any = None, max: Any = None) -> Scalar:
        if min is not None:
            x = self.maximum(x, min)
        return _another(x) if max is None else self.minimum(x, max)

    def astype(self, x: Scalar, dtype: Any, /, *, copy: bool = True) -> Scalar:
        converted = _cast(x, dtype_name(dtype))
        return _another(converted) if copy else converted

    def full_like(self, x: Scalar, fill_value: Any, /, *, dtype: Any = None, device: Any = None) -> Scalar:
        del device
        fill_value = number_of(fill_value)
        if isinstance(fill_value, Scalar):
            return self.astype(fill_value, x.dtype if dtype is None else dtype)
        return self._full_like(x, fill_value, dtype)

    def zeros_like(self, x: Scalar, /, *, dtype: Any = None, device: Any = None) -> Scalar:
        del device
        return self._full_like(x, 0, dtype, written=True)

    def ones_like(self, x: Scalar, /, *, dtype: Any = None, device: Any = None) -> Scalar:
        del device
        return self._full_like(x, 1, dtype, written=True)

    def _full_like(self, x: Scalar, fill_value: Any, dtype: Any, *, written: bool = False) -> Scalar:
        return constant(x._lines, fill_value, x._dtype if dtype is None else dtype_name(dtype), written=written)

    def isdtype(self, dtype: Any, kind: Any) -> bool:
        kinds = kind if isinstance(kind, tuple) else (kind,)
        groups = {
            "bool": ("bool",),
            "signed integer": ("int",),
            "unsigned integer": ("uint",),
            "integral": ("int", "uint"),
            "real floating": ("float",),
            "complex floating": ("complex",),
            "numeric": _NUMERIC,
        }
        return any(
            dtype_kind(dtype) in groups[one] if isinstance(one, str) else dtype_name(one) == dtype_name(dtype)
            for one in kinds
        )

    def result_type(self, *values: Any) -> Dtype:
        names = [dtype_name(value.dtype if isinstance(value, Scalar) else value) for value in values]
        promoted = names[0]
        for name in names[1:]:
            promoted = _promote(promoted, name)
        return Dtype(promoted)

    def finfo(self, dtype: Any) -> _Info:
        name = dtype_name(dtype)
        if name == "bfloat16":
            return _Info(
                bits=16, eps=2.0**-7, max=3.3895313892515355e38, min=-3.3895313892515355e38, smallest_normal=2.0**-126
            )
        info = np.finfo(name)
        return _Info(
            bits=info.bits,
            eps=float(info.eps),
            max=float(info.max),
            min=float(info.min),
            smallest_normal=float(info.smallest_normal),
        )

    def iinfo(self, dtype: Any) -> _Info:
        info = np.iinfo(dtype_name(dtype))
        return _Info(bits=info.bits, max=int(info.max), min=int(info.min))


NAMESPACE = _Namespace()


def _operator(name: str, *, reflected: bool = False) -> Callable[..., Scalar]:
    apply = _elementwise(name)
    return (lambda self, other: apply(other, self)) if reflected else (lambda *operands: apply(*operands))


def _in_place(name: str) -> Callable[..., Scalar]:
    apply = _elementwise(name)

    def change(self: Scalar, other: Any) -> Scalar:
        result: Scalar = apply(self, other)
        if self._lines.immutable:
            return result
        _written(self)
        if result._dtype != self._dtype:
            raise Untraceable(f"it turns {self._dtype} into {result._dtype} in place")
        self._code = result._code
        return self

    return change


for _method, _name in {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "truediv": "divide",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pow": "pow",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}.items():
    setattr(Scalar, f"__{_method}__", _operator(_name))
    setattr(Scalar, f"__r{_method}__", _operator(_name, reflected=True))
    setattr(Scalar, f"__i{_method}__", _in_place(_name))
for _method, _name in {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "neg": "negative",
    "pos": "positive",
    "invert": "bitwise_invert",
}.items():
    setattr(Scalar, f"__{_method}__", _operator(_name))
Scalar.__abs__ = lambda self: NAMESPACE.abs(self)  # type: ignore[attr-defined]


class Trace:
    """A traced function: the lines of its body, the expressions of its results, and their structure if not a tuple.

    The lines have names for the numbers ``captured``, which a kernel receives as arguments.
    """

    __slots__ = ("captured", "dtypes", "lines", "outputs", "single", "structure")

    def __init__(
        self, lines: Lines, outputs: tuple[str, ...], dtypes: tuple[str, ...], single: bool, structure: Structure
    ) -> None:
        self.lines, self.outputs, self.dtypes, self.single = lines, outputs, dtypes, single
        self.structure = structure
        self.captured = tuple(lines.captured)


def trace(
    name: str,
    function: Callable[..., Any],
    *elements: tuple[tuple[str, str], ...],
    packed: bool,
    immutable: bool = False,
    language: Language = CUDA,
    told: str | None = None,
) -> Trace:
    """Return the trace of a function on elements, each given as the (dtype, expression) of its components.

    ``packed`` says that the function takes every element as a tuple; ``immutable`` says that arrays of the caller's
    library never change. ``language`` is the language of the expressions and of the trace. ``told`` is the beginning of
    the names of numbers that are not in the function's code; with None, all numbers are literals. Raises Untraceable,
    with the reason, if the function does anything that has no translation, and TypeError if it changes an argument in
    place.
    """
    told = told if language.tells else None

    def arguments() -> tuple[Lines, list[Any]]:
        lines = Lines()
        lines.immutable, lines.language, lines.told = immutable, language, told
        _LINES.set(lines)
        scalars = [tuple(Scalar(lines, dtype, code, argument=True) for dtype, code in element) for element in elements]
        return lines, scalars if packed else [one for (one,) in scalars]

    before = _LINES.set(Lines())
    try:
        lines, scalars = arguments()
        try:
            result = (function if told is None else with_own_numbers(function))(*scalars)
        except Exception as error:
            if not came_through_jax(error):
                raise
            lines, scalars = arguments()
            result = _by_jax(function, tuple(scalars))
            if result is None:
                raise
    except _InPlaceError:
        raise TypeError(f"{name} changes its argument in place: return a new array") from None
    except (Untraceable, Untranslatable) as reason:
        raise Untraceable(f"{name} cannot be traced: {reason}") from None
    except Exception as error:  # the caller's function may raise any error for a symbolic scalar
        raise Untraceable(f"{name} cannot be traced: {_explained(error)}") from error
    finally:
        _LINES.reset(before)
    structure = None
    single = not isinstance(result, tuple)
    outputs = (result,) if single else result
    if is_structured(result):
        outputs, structure = flattened(result, name)
    for output in outputs:
        if not isinstance(output, Scalar):
            raise Untraceable(f"{name} cannot be traced: it returns {not_array(output)}")
    codes, dtypes = tuple(one._code for one in outputs), tuple(one._dtype for one in outputs)
    return Trace(lines, codes, dtypes, single=single, structure=structure)


def _by_jax(function: Callable[..., Any], elements: tuple[Any, ...]) -> Any:
    """Return the result of a function that calls functions of JAX, by a trace of JAX; None if JAX cannot trace it."""
    scalars, _ = flattened(elements)
    try:
        closed, structure = program(function, elements, [x._dtype for x in scalars])
    except Exception:  # the caller's function may raise any error for a tracer of JAX
        return None
    return rebuilt(structure, evaluate(closed, NAMESPACE, scalars, constant=lambda number: number))


_STRANGERS = {"jax": "jax.numpy", "jaxlib": "jax.numpy", "cupy": "CuPy", "scipy": "SciPy"}
"""Packages whose functions do not take symbolic scalars, with their names in messages."""


def _explained(error: Exception) -> str:
    """Return the reason why a function cannot be traced, given the error that it raised."""
    home, where = "", error.__traceback__
    while where is not None:
        home, where = str(where.tb_frame.f_globals.get("__name__", "")).partition(".")[0], where.tb_next
    words = str(error)
    if "must be torch.dtype" in words:
        return "it gives PyTorch the dtype of an element, which has another name in kernels (use torch.full_like)"
    if home in _STRANGERS or "parprims._operators.tracing" in words:
        stranger = f"functions of {_STRANGERS[home]}" if home in _STRANGERS else "a function"
        if _STRANGERS.get(home) == "jax.numpy":
            return "it calls functions of jax.numpy in a way that is not elementwise"
        own = f"use those of {ITS_NAMESPACE}, or of NumPy, PyTorch or jax.numpy"
        return f"it calls {stranger}, which {'take' if home in _STRANGERS else 'takes'} arrays alone: {own}"
    return f"{type(error).__name__}: {words}"


def state_size(states: tuple[str, ...]) -> int:
    """Return the number of bytes of a State. Each member is at a multiple of its size."""
    size, widest = 0, 1
    for name in states:
        member = 4 if name in SIXTEEN_BIT_FLOATS else dtype_bits(name) // 8
        size, widest = -(-size // member) * member + member, max(widest, member)
    return -(-size // widest) * widest


def operator_struct(name: str, states: tuple[str, ...], combined: Trace, *, commutative: bool) -> str:
    """Return the CUDA text of an operator type: State, COMMUTATIVE and combine(earlier, later)."""
    return "\n".join(
        (
            f"struct {name} {{",
            "    struct State {",
            *(f"        {register_type(name)} v{index};" for index, name in enumerate(states)),
            "    };",
            f'    static_assert(sizeof(State) == {state_size(states)}, "state_size of tracing.py");',
            f"    static constexpr bool COMMUTATIVE = {'true' if commutative else 'false'};",
            "    static DEVICE State combine(const State& earlier, const State& later) {",
            *(f"        {line}" for line in combined.lines),
            f"        return {{{', '.join(combined.outputs)}}};",
            "    }",
            "};",
        )
    )


def trace_combine(
    op: Any, states: tuple[str, ...], *, immutable: bool = False, language: Language = CUDA, told: str = "captured_op"
) -> Trace:
    """Return the trace of an Operator on components of the named dtypes, ``earlier`` and ``later``."""
    earlier, later = (
        tuple((name, language.component(side, index)) for index, name in enumerate(states))
        for side in ("earlier", "later")
    )
    packed = len(states) > 1 or op.components is not None
    name, names = f"op {op.name}", None if op._built_in else told
    combined = trace(
        name, op.combine, earlier, later, packed=packed, immutable=immutable, language=language, told=names
    )
    if combined.dtypes != states:
        raise Untraceable(f"op {op.name} turns {', '.join(states)} into {', '.join(combined.dtypes)}")
    return combined

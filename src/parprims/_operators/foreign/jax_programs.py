"""Functions that call JAX: JAX traces them, and any library computes the operations of the program."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import Array, Namespace, device, dtype_name, is_tensor
from parprims._core.elements import flattened, rebuilt
from parprims._operators.foreign.composed import digamma, erfinv, fmod, named, polynomial, truncated_quotient
from parprims._operators.foreign.names import Untranslatable


def came_through_jax(error: BaseException) -> bool:
    """Return whether JAX raised an error, called the function that raised it, or made an operand that it names."""
    notes = getattr(error, "__notes__", ())
    told = (str(error), *notes)  # PyTorch's error names the type of an unknown operand
    if type(error).__module__.partition(".")[0] in _OF_JAX or any("JAX has" in x or "jaxlib" in x for x in told):
        return True
    where = error.__traceback__
    while where is not None:
        if str(where.tb_frame.f_globals.get("__name__", "")).partition(".")[0] in _OF_JAX:
            return True
        where = where.tb_next
    return False


_OF_JAX = ("jax", "jaxlib")


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
    with dtypes_of_64_bits(any("64" in name or name == "complex128" for name in dtypes)):
        return jax.make_jaxpr(on_leaves)(*arrays), structures[0]


_SHAPE = (2, 3)
"""The shape of the arrays that JAX traces a function on. Every transposition changes it."""


def dtypes_of_64_bits(needed: bool) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX keeps 64-bit dtypes if they are needed; otherwise a context without effect."""
    return mode_of_64_bits(True) if needed else contextlib.nullcontext()


def mode_of_64_bits(wide: bool) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which JAX keeps 64-bit dtypes, or does not."""
    import jax

    found: contextlib.AbstractContextManager[Any] = (
        jax.enable_x64(wide) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64(wide)
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
        Makes an operand of a NumPy scalar, by default an array on the device of the inputs.

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


INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
"""The options that hold the inner program of an operation that runs it once."""

LOOPS = ("cond", "while", "scan")


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
        if name in _ON_STACKS and (name == "stack" or _Stack in map(type, operands) or _is_row(equation)):
            return [_ON_STACKS[name](self, equation, *operands)]
        if _Stack in map(type, operands):
            raise Untranslatable(f"it calls {name} of jax.lax on arrays that are stacked, which is not elementwise")
        inner = next((options[key] for key in INNER if key in options), None)
        rule = RULES.get(name) if inner is None else rule_by_name(equation)
        if rule is None and inner is not None and name not in LOOPS:
            return self.results(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), operands)
        if not all(_is_elementwise(equation, variable) for variable in equation.outvars):
            raise Untranslatable(f"it calls {name} of jax.lax, which is not elementwise")
        if operands and all(isinstance(operand, np.generic) for operand in operands):
            with dtypes_of_64_bits(True):
                return [np.asarray(equation.primitive.bind(*operands, **options)).flat[0]]
        if rule is None:
            raise Untranslatable(f"it calls {name} of jax.lax, which has no translation")
        operands = [self.constant(one) if isinstance(one, np.generic) else one for one in operands]
        return [rule(self.xp, equation, *operands)]


@dataclasses.dataclass(frozen=True)
class _Stack:
    """Arrays that a program joins along a new first axis, only to find the first of them that is true."""

    rows: tuple[Any, ...]


def _is_row(equation: Any) -> bool:
    """Return whether an operation gives an array a first axis of length 1."""
    return bool(equation.outvars[0].aval.shape == (1, *_SHAPE))


def _row(_: _Evaluation, equation: Any, x: Any) -> _Stack:
    if equation.params["broadcast_dimensions"] not in ((), (1, 2)):
        raise Untranslatable("it calls broadcast_in_dim of jax.lax, which is not elementwise")
    return _Stack((x,))


def _join(_: _Evaluation, equation: Any, *stacks: Any) -> _Stack:
    if equation.params["dimension"] or any(type(one) is not _Stack for one in stacks):
        raise Untranslatable("it calls concatenate of jax.lax, which is not elementwise")
    return _Stack(tuple([row for stack in stacks for row in stack.rows]))


def _stack(_: _Evaluation, equation: Any, *rows: Any) -> _Stack:
    if equation.params["axis"]:
        raise Untranslatable("it calls stack of jax.lax, which is not elementwise")
    return _Stack(rows)


def _first_true(evaluation: _Evaluation, equation: Any, stack: _Stack) -> Any:
    """Return the number of the first row that is true, 0 if none is."""
    if equation.params["axes"] != (0,) or equation.invars[0].aval.dtype != np.bool_:
        raise Untranslatable("it calls argmax of jax.lax, which is not elementwise")
    dtype = equation.outvars[0].aval.dtype
    chosen = dtype.type(0)
    for number, row in reversed([*enumerate(stack.rows)]):
        if isinstance(row, np.generic):
            chosen = dtype.type(number) if row else chosen
        else:
            branches = [
                evaluation.constant(one) if isinstance(one, np.generic) else one for one in (dtype.type(number), chosen)
            ]
            chosen = evaluation.xp.where(row, *branches)
    return chosen


_ON_STACKS: dict[str, Callable[..., Any]] = {
    "argmax": _first_true,
    "broadcast_in_dim": _row,
    "concatenate": _join,
    "stack": _stack,
}


def _is_elementwise(equation: Any, result: Any) -> bool:
    """Return whether a result has the shape of an operand, or is a number that the operation broadcasts to an array."""
    shapes = {atom.aval.shape for atom in equation.invars}
    return result.aval.shape in shapes or (result.aval.shape == _SHAPE and shapes == {()})


_Rule = Callable[..., Any]


def _named(name: str) -> _Rule:
    return lambda xp, _, *operands: named(xp, name)(*operands)


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
    return truncated_quotient(xp, x, y)


@functools.cache
def _digamma_of_zero() -> float:
    """Return JAX's value, which is NaN until release 0.11 or so, and minus infinity later."""
    import jax

    with jax.ensure_compile_time_eval():
        return float(jax.lax.digamma(np.float32(0.0)))


def _polynomial(_: Namespace, __: Any, x: Any, *coefficients: Any) -> Any:
    """Return a0 + x (a1 + x (a2 + ...)), from the coefficients a0, a1, a2, ..."""
    return polynomial(x, coefficients[::-1])


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


def rule_by_name(equation: Any) -> _Rule | None:
    """Return the rule of a function of jax.numpy that JAX traces into operations on bits, or None."""
    if equation.params.get("name") != "signbit":
        return None
    origin = getattr(getattr(equation.params.get("jaxpr"), "jaxpr", None), "debug_info", None)
    of_jax = "/jax/_src/numpy/" in str(getattr(origin, "func_filename", "")).replace("\\", "/")
    return _named("signbit") if of_jax else None


RULES: dict[str, _Rule] = {
    **{
        name: _named(name)
        for name in (
            "abs sign floor ceil sqrt exp expm1 log log2 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
            "atanh atan2 conj real imag square cbrt erf erfc lgamma nextafter exp2 rsqrt"
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
    "rem": lambda xp, _, x, y: fmod(xp, x, y),
    "pow": _power,
    "polynomial": _polynomial,
    "one_minus_square": lambda _, __, x: 1 - x * x,
    "stop_gradient": lambda _, __, x: x.detach() if is_tensor(x) else x,
    "integer_pow": _integer_power,
    "logistic": _named("sigmoid"),
    "erf_inv": lambda xp, _, x: erfinv(xp, x),
    "digamma": lambda xp, _, x: xp.where(x == 0, _digamma_of_zero(), digamma(xp, x)),
    "clamp": lambda xp, _, low, x, high: xp.minimum(xp.maximum(x, low), high),
    "round": _round,
    "select_n": _choose,
    "convert_element_type": _converted,
    "shift_right_logical": _shift_right,
}
"""The operations of jax.lax as functions of a namespace, the equation and its operands."""

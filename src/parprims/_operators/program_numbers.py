"""Programs of JAX with parameters for the numbers that callers' functions read, so that new values compile nothing.

Each function is traced on a few elements, which takes less than a millisecond. The numbers that it reads are literals
of the trace, and the rest of the trace is a key. Programs are kept under the keys of their functions. While a program
is traced, each call of a function in it is traced too, and parameters of the program replace the numbers in its
operations. Numbers in the function's code stay literals, because XLA computes faster with constants.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from parprims._core.arrays import Array
from parprims._core.jax_arrays import is_traced
from parprims._core.memo import Memo
from parprims._core.programs import one_program
from parprims._operators.constants import leaves, with_own_numbers
from parprims._operators.function_key import lasting_key
from parprims._operators.operator import Operator, segmented, with_combine
from parprims._operators.tracing import Scalar, Untraceable


class _UnsharedError(Exception):
    """The numbers of a function cannot be parameters of a program: the program must hold them."""


# ---- Traces of functions, apart from their numbers ----------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Read:
    """A trace of a function on arrays.

    ``places`` are the positions of its numbers, as (equation, operand). ``key`` is the trace without the numbers.
    """

    traced: Any
    outputs: Any
    key: Any
    numbers: tuple[np.ndarray[Any, Any], ...]
    places: tuple[tuple[int, int], ...]

    def alike(self, other: _Read) -> bool:
        """Return whether another trace has equal numbers, to the last bit."""
        return list(map(_bits, self.numbers)) == list(map(_bits, other.numbers))

    def on(self, arguments: Sequence[Any], numbers: Sequence[Any]) -> Any:
        """Return the results of the function with these numbers."""
        import jax
        from jax.extend import core

        jaxpr = self.traced.jaxpr
        equations, names = [*jaxpr.eqns], []
        for at, place in self.places:
            operands = [*equations[at].invars]
            names.append(core.Var(operands[place].aval))
            operands[place] = names[-1]
            equations[at] = equations[at].replace(invars=operands)
        told = core.ClosedJaxpr(jaxpr.replace(constvars=names, eqns=equations), tuple(numbers))
        found = core.jaxpr_as_fun(told)(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(self.outputs), found)


def _bits(value: np.ndarray[Any, Any]) -> tuple[str, bytes]:
    return str(value.dtype), value.tobytes()


def _read(function: Callable[..., Any], arguments: Sequence[Any]) -> _Read:
    """Trace a function on arrays, or on descriptions with their shapes and dtypes."""
    import jax

    # JAX keeps traces by the identity of the function, so a new function is traced.
    try:
        traced, outputs = jax.make_jaxpr(lambda *xs: function(*xs), return_shape=True)(*arguments)
    except Exception as error:  # the function may fail on arrays of another shape
        raise _UnsharedError from error
    if traced.consts or traced.jaxpr.effects:
        raise _UnsharedError  # the function holds arrays, perhaps of an enclosing program, or prints
    own, numbers, places = [*_numbers_of(function)], [], []

    def is_told(equation: Any, value: np.ndarray[Any, Any]) -> bool:
        return equation.primitive.name != "pow" and not any(_is(value, number) for number in own)

    for at, equation in enumerate(traced.jaxpr.eqns):
        for place, one in enumerate(equation.invars):
            value = _literal(one)
            if value is not None and is_told(equation, value):
                numbers.append(value)
                places.append((at, place))
    key = _key(traced.jaxpr, frozenset(places)), jax.tree.structure(outputs)
    return _Read(traced, outputs, key, numbers=tuple(numbers), places=tuple(places))


def _literal(operand: Any) -> np.ndarray[Any, Any] | None:
    from jax.extend.core import Literal

    return np.asarray(operand.val, dtype=operand.aval.dtype) if isinstance(operand, Literal) else None


def _is(value: np.ndarray[Any, Any], number: Any) -> bool:
    """Return whether a literal equals a number of the code, perhaps in another dtype."""
    with contextlib.suppress(TypeError, ValueError, OverflowError), np.errstate(all="ignore"):
        return np.asarray(number).astype(value.dtype).tobytes() == value.tobytes()
    return False


def _numbers_of(function: Any) -> Iterator[Any]:
    """Yield the numbers in the code of a function."""
    while type(function) is functools.partial:
        function = function.func
    codes = [getattr(function, "__code__", None)]
    while codes:
        code = codes.pop()
        for constant in leaves(code.co_consts) if isinstance(code, types.CodeType) else ():
            if isinstance(constant, types.CodeType):
                codes.append(constant)
            elif isinstance(constant, int | float | complex):
                yield constant


_RULES = ("jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees")
"""Parameters of operations that only derivatives use. These programs have none."""


def _key(jaxpr: Any, told: frozenset[tuple[int, int]] = frozenset()) -> Any:
    """Return a key of a trace, without the literals at the positions ``told``."""
    names: dict[Any, int] = {one: at for at, one in enumerate((*jaxpr.constvars, *jaxpr.invars))}

    def operand(one: Any) -> Any:
        value = _literal(one)
        return names[one] if value is None else _bits(value)

    lines = []
    for at, equation in enumerate(jaxpr.eqns):
        operands = tuple(
            [str(one.aval.dtype) if (at, place) in told else operand(one) for place, one in enumerate(equation.invars)]
        )
        for one in equation.outvars:
            names[one] = len(names)
        lines.append((equation.primitive, operands, _value(equation.params)))
    return tuple(lines), tuple(map(operand, jaxpr.outvars))


def _value(value: Any) -> Any:
    """Return a key for a parameter of an operation."""
    if isinstance(value, dict):
        return tuple([(name, _value(one)) for name, one in value.items() if name not in _RULES])
    if isinstance(value, tuple | list):
        return tuple(map(_value, value))
    if hasattr(value, "consts") and len(value.consts):
        raise _UnsharedError
    if hasattr(value, "eqns"):
        return _key(getattr(value, "jaxpr", value))
    if isinstance(value, float | complex | np.generic):
        return type(value), repr(value)  # repr distinguishes 0.0 and -0.0
    try:
        hash(value)
    except TypeError:
        raise _UnsharedError from None
    return type(value), value


# ---- Functions in programs ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Telling:
    """The data of a call for its program: its functions by field, and the trace of each.

    ``prepared`` makes the function that becomes the program. ``parameters`` are the program's parameters for numbers.
    ``seen``, if given, collects the kinds of arrays on which functions are called. ``words`` are the program's
    parameters for kernels: the 32-bit words of the numbers of a kernel, by its key; None outside of the program.
    """

    functions: dict[str, Callable[..., Any]]
    reads: dict[Any, _Read] = dataclasses.field(default_factory=dict)
    kernels: tuple[Any, ...] = ()
    prepared: Callable[[], Callable[..., Any]] | None = None
    parameters: Sequence[Any] = ()
    seen: dict[Any, None] | None = None
    words: dict[Any, Any] | None = None


class _Now(threading.local):
    call: _Telling | None = None
    noted: dict[Any, tuple[int, ...] | None] | None = None


_now = _Now()


@contextlib.contextmanager
def _telling(call: _Telling) -> Iterator[None]:
    before, _now.call = _now.call, call
    try:
        yield
    finally:
        _now.call = before


def _stand_in(field: str) -> Callable[..., Any]:
    """Return a function for a program: it runs the current call's function with parameters in place of its numbers."""

    def called(*arguments: Any) -> Any:
        import jax

        call = _now.call
        assert call is not None
        arrays, tree = jax.tree.flatten(arguments)
        if any(isinstance(one, Scalar) for one in arrays):  # the call writes the text of a kernel
            return with_own_numbers(call.functions[field])(*arguments)
        sign = field, tree, tuple([(one.ndim, str(one.dtype)) for one in arrays])
        function = call.functions[field]
        if call.seen is not None:
            call.seen[sign] = None
            return function(*arguments)
        if sign not in call.reads:
            raise _UnsharedError
        read = _read(function, jax.tree.map(lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype), arguments))
        if not read.alike(call.reads[sign]):
            raise _UnsharedError
        before = itertools.takewhile(lambda one: one != sign, call.reads)
        first = sum(len(call.reads[one].numbers) for one in before)
        return read.on(arguments, call.parameters[first : first + len(read.numbers)])

    return called


# ---- Kernels in programs ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def noting() -> Iterator[dict[Any, tuple[int, ...] | None]]:
    """Collect the words that kernels receive while a call is prepared, by key; None for a key with different words."""
    before, _now.noted = _now.noted, {}
    try:
        yield _now.noted
    finally:
        _now.noted = before


def note(key: Any, words: tuple[int, ...]) -> None:
    """Collect the words that a kernel receives. ``key`` is the kernel without them."""
    if _now.noted is not None and _now.noted.setdefault(key, words) != words:
        _now.noted[key] = None


def told_words(key: Any, words: tuple[int, ...]) -> Any:
    """Return the words that a kernel receives, as an array or as a parameter of the current program."""
    call = _now.call
    if call is None or call.words is None:
        return _as_array(words)
    if key not in call.words:
        raise _UnsharedError
    return call.words[key]


def _as_array(words: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.array(words, np.int64).view(np.uint32)  # JAX may have no integers of 64 bits


def _on_few(functions: dict[str, Callable[..., Any]], sign: Any) -> _Read:
    """Trace a function on a few elements of the kinds of arrays on which it is called."""
    import jax

    field, tree, kinds = sign
    few = [jax.ShapeDtypeStruct((2,) * ndim, dtype) for ndim, dtype in kinds]
    return _read(functions[field], jax.tree.unflatten(tree, few))


def _bare(op: Operator) -> tuple[Operator, int]:
    """Return the innermost operator of nested segmented operators, and the depth of the nesting."""
    depth = 0
    while op._segments is not None:
        op, depth = op._segments, depth + 1
    return op, depth


class Call(Protocol):
    """The record of a checked call of a primitive with an operator."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays."""

    @property
    def key(self) -> Any:
        """The key of the call, or None."""

    @property
    def operation(self) -> Any:
        """The key of the operator, or a tuple of the keys of two operators."""

    def on(self, *arrays: Any) -> Any:
        """Return the call on other arrays."""


def _parts(call: Call) -> tuple[dict[str, Callable[..., Any]], tuple[Any, ...]]:
    """Return the caller's functions in a call, by field, and a key of everything else in its operators and maps."""
    functions: dict[str, Callable[..., Any]] = {}
    rest: list[Any] = []
    for field in _FIELDS:
        value = getattr(call, field, None)
        if isinstance(value, Operator):
            op, depth = _bare(value)
            identity = lasting_key(op._identity) if callable(op._identity) else repr(op._identity)
            structure = lasting_key(op._structure)
            if identity is None or structure is None:
                raise _UnsharedError
            ours = op._structure is None and _is_ours(op.combine)
            rest.append((field, depth, ours and op, op.commutative, op.components, structure, identity))
            if not ours:
                functions[field] = op.combine
        elif value is not None and _is_ours(value):
            rest.append((field, value))
        elif value is not None:
            functions[field] = value
    return functions, tuple(rest)


def _is_ours(function: Any) -> bool:
    """Return whether a function belongs to this library, so that it is its own key."""
    return str(getattr(function, "__module__", "")).startswith("parprims.")


def _with_stand_ins(call: Call, functions: dict[str, Callable[..., Any]]) -> Any:
    """Return the call with new stand-ins for its functions: JAX keeps traces by the identity of the function."""
    fields: dict[str, Any] = {}
    for field in functions:
        value = getattr(call, field)
        fields[field] = _stand_in(field)
        if isinstance(value, Operator):
            op, depth = _bare(value)
            fields[field] = with_combine(op, fields[field])
            for _ in range(depth):
                fields[field] = segmented(fields[field])
    operation = (None, None) if hasattr(call, "multiply") else None  # a product has the keys of two operators
    return dataclasses.replace(call, operation=operation, key=None, **fields)


_FIELDS = ("op", "add", "multiply", "fn")
"""The fields of checked calls that hold operators and maps."""

_signs: Memo[tuple[Any, ...]] = Memo()
_programs: Memo[Callable[..., Any]] = Memo()


def shared(
    call: Call,
    key: Any,
    prepare: Callable[[Any], Callable[..., Any]],
    hidden: Callable[[], contextlib.AbstractContextManager[None]],
    kernels: dict[Any, tuple[int, ...] | None],
) -> Callable[..., Any] | None:
    """Return a function of a call's arrays that computes the call by a program with parameters for its numbers.

    Return None if no function is the caller's, or if the program must hold the numbers. ``key`` is the call without its
    functions. ``prepare`` returns the function that becomes the program of a call. ``hidden`` hides calls that
    functions make while they are traced. ``kernels`` are the words that the kernels of the call receive, by key.
    """
    import jax

    told = {kernel: words for kernel, words in kernels.items() if words}
    if call.operation == "recurrence" or None in kernels.values():
        return None
    if any(is_traced(x) or len(x.devices()) > 1 for x in call.arrays):
        return None
    try:
        functions, rest = _parts(call)
        if not functions:
            return None
        rest_of_call, bare, lasts = (key, rest), call.on(*(None,) * len(call.arrays)), call.key is not None
        signs = _signs.get(rest_of_call)
        if signs is None:
            seen: dict[Any, None] = {}
            with _telling(_Telling(functions, seen=seen)), hidden():
                jax.eval_shape(prepare(_with_stand_ins(call, functions)), *call.arrays)
            signs = _signs.keep(rest_of_call, tuple(seen))
        with hidden():
            reads = {sign: _on_few(functions, sign) for sign in signs}
        literals = [number for one in reads.values() for number in one.numbers]
        numbers = jax.device_put((literals, [*map(_as_array, told.values())]))
        known = rest_of_call, tuple([(sign, one.key) for sign, one in reads.items()]), tuple(kernels)
        program = _programs.get(known) or _programs.keep(known, one_program(_traced))

        def run(*arrays: Array) -> Any:
            def prepared() -> Callable[..., Any]:
                try:
                    return prepare(_with_stand_ins(bare.on(*arrays), functions))
                except Untraceable:  # the kernel takes the function, but not with a traced number in a number's place
                    raise _UnsharedError from None

            if not held:
                try:
                    with _telling(_Telling(functions, reads, tuple(told), prepared)):
                        return program(numbers, *arrays)
                except _UnsharedError:
                    own = prepare(bare.on(*arrays))
                    held.append(one_program(own) if lasts else own)
            return held[0](*arrays)

        held: list[Callable[..., Any]] = []  # the program that holds the numbers, if it is needed
    except _UnsharedError:
        return None
    return run


def _traced(numbers: tuple[list[Any], list[Any]], *arrays: Array) -> Any:
    call = _now.call
    assert call is not None
    assert call.prepared is not None
    literals, words = numbers
    told = dict(zip(call.kernels, words, strict=True))
    with _telling(dataclasses.replace(call, parameters=literals, words=told)):
        return call.prepared()(*arrays)

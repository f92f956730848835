"""The text that is generated for CUDA kernels of scans, linear recurrences and their derivatives.

`specialised` returns it for a call. `scan.cuda` divides the work and launches.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from parprims import _cuda
from parprims._core.arrays import (
    Array,
    Namespace,
    compute_dtype,
    dtype_bits,
    dtype_kind,
    dtype_name,
    is_jax,
    mode,
    namespace_of,
    ring_dtype,
)
from parprims._core.memo import Memo
from parprims._dispatch.dispatch import Checked
from parprims._operators.foreign.names import Dtype
from parprims._operators.languages import C_TYPES, CUDA, Captured, captured_identity, literal, register_type
from parprims._operators.operator import BUILT_IN, Operator, check_components
from parprims._operators.tracing import Untraceable, operator_struct, state_size, trace, trace_combine
from parprims._primitives.recurrence.call import Recurrence
from parprims._primitives.scan.call import Scan, result_dtypes, working_dtypes

BEFORE_PUBLISHING = ""
"""CUDA statements that a block runs before it publishes the state of tile number ``tile``; tests insert delays."""

# ---- The derivatives of a recurrence ----------------------------------------------------------------------------


class _WithoutStarts(Checked):
    """A checked call that scans all of its arrays, without an initial element."""

    @property
    def inputs(self) -> tuple[Array, ...]:
        """All arrays."""
        return self.arrays

    @property
    def starts(self) -> tuple[Array, ...]:
        """Nothing: there is no initial element."""
        return ()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Adjoint(_WithoutStarts):
    """The derivatives of a linear recurrence with respect to b and, if its solution x is given, to a.

    The arrays are a, the derivative g with respect to x, and x, of one shape. With
    m[n] = conj(a[n+1]) (g[n+1] + m[n+1]), computed from the other end, the first derivative is l[n] = g[n] + m[n]. The
    second is l[n] conj(x[n-1]), zero for the first x.
    """

    shape: tuple[int, ...]
    axis: int
    reverse: bool

    @property
    def n(self) -> int:
        """The length along the axis."""
        return self.shape[self.axis]

    @property
    def in_blocks(self) -> bool:
        """Never: a canonical call makes its derivatives from canonical recurrences, without this kernel."""
        return False


def _adjoint_element(a: Array, g: Array, *_: Array) -> tuple[Array, Array]:
    """Return the map m -> conj(a) (g + m), in the form of `_nan_unless_finite`."""
    a = namespace_of(a).conj(a)
    return _nan_unless_finite(a, a * g)


def _adjoint_result(_: Array, m: Array, _a: Array, g: Array, *x_and_before: Array) -> tuple[Array, Array]:
    """Return the derivatives of one element with respect to b and a, given its m and the previous x."""
    xp = namespace_of(g)
    *_, before, exists = x_and_before
    by_b = g + m
    by_a = by_b * xp.conj(before)
    return by_b, xp.where(exists, by_a, xp.zeros_like(by_a))


@dataclasses.dataclass(frozen=True, eq=False)
class Functions:
    """A scan of states that are made from elements of several arrays, and of which results are made.

    Parameters
    ----------
    op : Operator
        Combines states. Its identity comes before the first element, where a result is asked for there.
    states : tuple of str
        The dtypes of the components of a state.
    inputs : tuple of str
        The dtypes in which the functions take elements of the arrays.
    output : str
        The dtype of the results.
    element : callable
        Makes the components of a state from elements of the arrays.
    result : callable
        Makes a result, as a tuple of one, from the components of a state and the elements of the arrays.
    """

    op: Operator
    states: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str
    element: Callable[..., Any]
    result: Callable[..., tuple[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Mapped(_WithoutStarts):
    """A checked scan by functions, along an axis of arrays that broadcast to a shape.

    The result has one element more than the arrays, of no elements, if ``n`` says so.
    """

    functions: Functions
    shape: tuple[int, ...]
    axis: int
    n: int
    reverse: bool = False
    in_blocks: bool = False


def _nan_unless_finite(a: Array, b: Array) -> tuple[Array, Array]:
    """Return (a, b), with NaN for b if a is not finite. This tells such an a from a product that overflowed."""
    xp = namespace_of(a)
    return a, xp.where(a - a == 0, b, xp.full_like(b, math.nan))


def _select(earlier: tuple[Array, Array], later: tuple[Array, Array]) -> tuple[Array, Array]:
    """Compose two affine maps. A product of coefficients that overflowed, times zero, counts as zero."""
    (a, b), (c, d) = earlier, later
    xp = namespace_of(a)
    product = c * a
    return xp.where((a == 0) | (c == 0), xp.zeros_like(product), product), xp.where(b == 0, d, c * b + d)


_SELECT = Operator(_select, name="recurrence", components=2)

# ---- Specialisation ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Specialisation:
    """The key of generated kernels: an operator, the dtypes of its arrays, and the text that maps elements and states.

    Parameters
    ----------
    inputs, states, outputs, starts : tuple of str
        The dtypes of the arrays read, of the components combined, of the arrays written, and of the arrays that hold
        the initial states of lines.
    definitions : str
        The CUDA text of Operator, Scan and Starts, which kernels for all layouts of the arrays share.
    captured : tuple of Captured
        The numbers of the operator that the text does not hold.
    function : callable, optional
        The operator's function, where only its identity distinguishes the specialisation.
    like : Specialisation, optional
        The specialisation that represents all those that differ in captured numbers alone.
    adds : bool
        Whether the operator is the addition of real floats.
    """

    inputs: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[str, ...]
    starts: tuple[str, ...]
    definitions: str
    captured: tuple[Captured, ...] = ()
    function: Any = None
    like: Specialisation | None = None
    adds: bool = False

    @property
    def state_bytes(self) -> int:
        """The bytes of the registers that a State takes."""
        return sum(-(-dtype_bits(name) // 32) * 4 for name in self.states)

    @property
    def raw_bytes(self) -> int:
        """The bytes of registers for one element of every input: a thread unpacks narrow ones."""
        return sum(-(-dtype_bits(name) // 32) * 4 for name in self.inputs)

    @property
    def itemsizes(self) -> tuple[int, ...]:
        """The bytes of an element of each input and output."""
        return tuple([dtype_bits(name) // 8 for name in (*self.inputs, *self.outputs)])

    def places(self, accesses: Sequence[str]) -> tuple[list[int | None], list[int]]:
        """Return the place in shared memory that stages the vectors of each array, and the itemsizes of all places.

        A constant input has no place. An output reuses the place of an input of equal width, or has a new place. If
        the accesses are those of inputs alone, so are the places.
        """
        count = len(self.inputs)
        places: list[int | None] = []
        sizes: list[int] = []
        for index, size in enumerate(self.itemsizes[: len(accesses)]):
            free = {place for place in range(len(sizes)) if place not in places[count:] and sizes[place] == size}
            if index < count and accesses[index] == "CONSTANT":
                places.append(None)
            elif index >= count and free:
                places.append(min(free))
            else:
                places.append(len(sizes))
                sizes.append(size)
        return places, sizes

    def source(self, file: str, accesses: Sequence[str], *, stages_outputs: bool = True, skewed: bool = False) -> str:
        """Return the CUDA text of the kernels of a package file, for arrays with the given accesses.

        With ``skewed``, lines of the arrays may begin within a vector.
        """
        count = len(self.inputs)
        places, sizes = self.places(accesses if stages_outputs else accesses[:count])
        places += [None] * (len(accesses) - len(places))
        return "\n".join(
            (
                _cuda.device_source(file),
                self.definitions,
                *_views(
                    "Outputs",
                    "Scan::Result",
                    types=[C_TYPES[name] for name in self.outputs],
                    accesses=accesses[count:],
                    places=places[count:],
                    skewed=skewed,
                ),
                "};",
                *_views(
                    "Inputs",
                    "Scan::Raw",
                    types=[f"const {C_TYPES[name]}" for name in self.inputs],
                    accesses=accesses[:count],
                    places=places[:count],
                    skewed=skewed,
                ),
                "    template <int VEC, int COUNT>",
                "    struct Buffers {",
                *(
                    f"        typename Word<VEC * {size}>::Type vectors{index}[COUNT];\n"
                    f"        DEVICE auto& vector(Place<{index}>, int slot) {{ return vectors{index}[slot]; }}"
                    for index, size in enumerate(sizes)
                ),
                # Constants alone stage no vector, but the compiler requires the name.
                *([] if sizes else ["        char none;\n        DEVICE char& vector(NoPlace, int) { return none; }"]),
                "    };",
                "};",
            )
        )


def _views(
    name: str,
    record: str,
    *,
    types: list[str],
    accesses: Sequence[str],
    places: Sequence[int | None],
    skewed: bool,
) -> list[str]:
    """Return the lines, except the last, of a structure of views of records (see _cuda/device/view.cuh)."""
    letter = {"Inputs": "x", "Outputs": "y"}[name]
    fields = [f"{letter}{index}" for index in range(len(types))]
    visits = (
        f"visit(views.{field}, &Record::{field}, &Vectors<N>::{field}, "
        f"{'NoPlace' if place is None else f'Place<{place}>'}());"
        for field, place in zip(fields, places, strict=True)
    )
    return [
        f"struct {name} {{",
        f"    using Record = {record};",
        f"    static constexpr bool SKEWED = {str(skewed).lower()};",
        *(
            f"    View<{kind}, {accessed}{', true' if skewed and accessed != 'CONSTANT' else ''}> {field};"
            for kind, accessed, field in zip(types, accesses, fields, strict=True)
        ),
        "    template <int N>",
        "    struct Vectors {",
        *(f"        {kind.removeprefix('const ')} {field}[N];" for kind, field in zip(types, fields, strict=True)),
        "    };",
        "    template <int N, class Views, class Visit>",
        "    static DEVICE void each(Views& views, const Visit& visit) {",
        *(f"        {visit}" for visit in visits),
        "    }",
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Definition:
    """The definition of one kind of scan, from which its CUDA text is generated.

    Parameters
    ----------
    op : Operator
        Combines states.
    inputs, states : tuple of str
        Dtypes of the arrays and of the components combined.
    outputs : tuple of (int, str)
        For each output, the component it holds and its dtype.
    starts : tuple of str or tuple of scalars, optional
        The initial state of a line: the dtypes of arrays that hold it, or the state itself.
    constant_start : bool
        Whether ``starts`` is the state itself.
    tells_start : bool
        Whether kernels take this state as parameters, if the language has parameters for numbers.
    exclusive : bool
        Whether a result leaves out its own element.
    element : callable, optional
        Makes the components of a state from elements of the inputs.
    result : callable, optional
        Makes the results from the components of a state, elements of the inputs, the next element of the input
        ``peeks``, and whether that exists. Without it, results are components of the state.
    peeks : int, optional
        The number of that input; None if results do not depend on the next element.
    computed : tuple of str, optional
        The dtypes to which elements of the inputs are cast before ``element`` and ``result`` take them. By default
        these are the dtypes of the states.
    ignores_first : bool
        Whether the first input counts as zero in the first element of a line without a start.
    immutable : bool
        Whether arrays of the library are immutable.
    """

    op: Operator
    inputs: tuple[str, ...]
    states: tuple[str, ...]
    outputs: tuple[tuple[int, str], ...]
    starts: tuple[Any, ...] | None
    constant_start: bool = False
    tells_start: bool = False
    exclusive: bool = False
    element: Callable[..., Any] | None = None
    result: Callable[..., Any] | None = None
    peeks: int | None = None
    computed: tuple[str, ...] | None = None
    ignores_first: bool = False
    immutable: bool = False


def _specialise(d: _Definition) -> Specialisation:
    """Return the specialisation of one kind of scan; raise Untraceable if it has none."""
    inputs, states, outputs, starts, peeks = d.inputs, d.states, d.outputs, d.starts, d.peeks or 0
    for name in (*inputs, *states, *(dtype for _, dtype in outputs)):
        if name not in C_TYPES:
            raise Untraceable(f"the kernel has no dtype {name}")
    # Elements are cast to the dtypes of the states; inputs beyond the states are cast to the dtype of the last state.
    wide = d.computed or (*states, *(states[-1],) * (len(inputs) - len(states)))

    def working(code: str, name: str) -> tuple[tuple[str, str]]:
        return ((name, f"ops::cast<{register_type(name)}>({code})"),)

    lines: list[str] = []
    ends: list[str] = []
    values = [f"x{index}" for index in range(len(inputs))]
    if d.element is not None:
        arguments = [working(f"x{index}", name) for index, name in enumerate(wide)]
        traced = trace("element", d.element, *arguments, packed=False)
        lines, values = traced.lines, list(traced.outputs)
    codes = [f"state.v{component}" for component, _ in outputs]
    if d.result is not None:
        arguments = [((name, f"state.v{index}"),) for index, name in enumerate(states)]
        arguments += [working(f"value(raw.x{index})", name) for index, name in enumerate(wide)]
        if d.peeks is not None:
            arguments += [working("value(next.peek)", wide[peeks]), (("bool", "next.exists"),)]
        traced = trace("result", d.result, *arguments, packed=False)
        ends, codes = traced.lines, [traced.outputs[component] for component, _ in outputs]

    def started(index: int, state: str) -> str:
        return f"ops::cast<{register_type(state)}>(value(s{index}.at(h, l, j).base[0]))"

    arrays: tuple[str, ...] = () if d.constant_start or starts is None else starts
    identity: tuple[Captured, ...] = ()
    if d.constant_start and starts is not None:
        start = [literal(value, name) for value, name in zip(starts, states, strict=True)]
        if d.tells_start and CUDA.tells:
            identity = captured_identity(CUDA, starts, states)
            start = [CUDA.captured(value.name, value.dtype) for value in identity]
    elif len(arrays) == len(states):
        start = [started(index, state) for index, state in enumerate(states)]
    elif arrays:  # the initial state of a recurrence: x, and a coefficient that is not read
        start = [literal(1, states[0]), started(0, states[1])]
    else:
        start = []
    stored = [f"store<{C_TYPES[dtype]}>({code})" for code, (_, dtype) in zip(codes, outputs, strict=True)]
    states_made = [f"ops::cast<{register_type(name)}>({code})" for name, code in zip(states, values, strict=True)]
    flags = {
        "EXCLUSIVE": d.exclusive,
        "STARTS": starts is not None,
        "PEEKS": d.peeks is not None,
        "IGNORES_FIRST": d.ignores_first,
    }
    size = state_size(states)
    combined = trace_combine(d.op, states, immutable=d.immutable)
    definitions = (
        operator_struct("Operator", states, combined, commutative=d.op.commutative),
        f'static_assert(sizeof(Operator::State) == {size}, "by which plans reserve memory for states");',
        "struct Scan {",
        "    using Op = Operator;",
        "    using State = Operator::State;",
        "    struct Raw {",
        *(f"        {C_TYPES[name]} x{index};" for index, name in enumerate(inputs)),
        "    };",
        "    struct Result {",
        *(f"        {C_TYPES[name]} y{index};" for index, (_, name) in enumerate(outputs)),
        "    };",
        f"    using Peek = {C_TYPES[inputs[peeks]]};",
        f"    static constexpr bool {', '.join(f'{name} = {str(flag).lower()}' for name, flag in flags.items())};",
        "    static DEVICE State element(const Raw& raw) {",
        *(f"        const {register_type(name)} x{index} = value(raw.x{index});" for index, name in enumerate(inputs)),
        *(f"        {line}" for line in lines),
        f"        return {{{', '.join(states_made)}}};",
        "    }",
        f"    static DEVICE Peek peek(const Raw& raw) {{ return raw.x{peeks}; }}",
        "    template <class Next>",
        "    static DEVICE Result result(const State& state, const Raw& raw, const Next& next) {",
        *(f"        {line}" for line in ends),
        f"        return {{{', '.join(stored)}}};",
        "    }",
        f"    static DEVICE void before_publishing(long long tile) {{ {BEFORE_PUBLISHING} }}",
        "};",
        "struct Starts {",
        *(f"    View<const {C_TYPES[name]}, STRIDED> s{index};" for index, name in enumerate(arrays)),
        "    DEVICE Operator::State load(long long h, long long l, long long j) const {",
        f"        return {{{', '.join(start)}}};" if start else "        return Operator::State();",
        "    }",
        "};",
    )
    captured = (*combined.captured, *identity)
    return Specialisation(
        inputs=inputs,
        states=states,
        outputs=tuple([name for _, name in outputs]),
        starts=arrays,
        definitions="\n".join(definitions),
        captured=captured,
        adds=d.op is BUILT_IN["add"] and states[0].startswith("float"),
    )


Call = Scan | Recurrence | Adjoint | Mapped


def specialisation(xp: Namespace, call: Call, inputs: tuple[str, ...], starts: tuple[str, ...]) -> Specialisation:
    """Return the specialisation of a call for the dtypes of inputs and starts."""
    if isinstance(call, Scan):
        working = tuple([dtype_name(dtype) for dtype in call.working])
        check_components(call.op, call.working)
        definition = _Definition(
            op=call.op,
            inputs=inputs,
            states=working,
            outputs=tuple([(index, dtype_name(dtype)) for index, dtype in enumerate(call.dtypes)]),
            starts=starts or call.identity,
            constant_start=not starts,
            tells_start=not call.op._built_in,
            exclusive=call.exclusive or call.n > call.shape[call.axis],
            immutable=is_jax(xp),
        )
    elif isinstance(call, Recurrence):
        is_integer = dtype_kind(call.dtype) in ("int", "uint")
        definition = _Definition(
            op=BUILT_IN["affine"] if is_integer else _SELECT,
            inputs=inputs,
            states=(dtype_name(ring_dtype(xp, call.dtype)),) * 2,
            outputs=((1, dtype_name(call.dtype)),),
            starts=starts or None,
            element=None if is_integer else _nan_unless_finite,
            ignores_first=True,
        )
    elif isinstance(call, Mapped):
        functions = call.functions
        begins = call.n > call.shape[call.axis]
        definition = _Definition(
            op=functions.op,
            inputs=inputs,
            states=functions.states,
            outputs=((0, functions.output),),
            starts=functions.op.identity(*functions.states) if begins else None,
            constant_start=begins,
            exclusive=begins,
            element=functions.element,
            result=functions.result,
            computed=functions.inputs,
        )
    else:
        definition = _Definition(
            op=_SELECT,
            inputs=inputs,
            states=(dtype_name(compute_dtype(xp, Dtype(inputs[1]))),) * 2,
            outputs=tuple([(index, inputs[1]) for index in range(len(inputs) - 1)]),
            starts=(1, 0),
            constant_start=True,
            exclusive=True,
            element=_adjoint_element,
            result=_adjoint_result,
            peeks=len(inputs) - 1,
        )
    return _specialise(definition)


def without_arrays(
    op: str | Operator,
    dtypes: tuple[str, ...],
    shape: tuple[int, ...],
    axis: int,
    *,
    begins: bool = False,
    exclusive: bool = False,
    reverse: bool = False,
) -> Scan | Recurrence:
    """Return a scan, or a "recurrence", without arrays, for plans that are compiled and not launched.

    If ``begins``, the operator's identity comes before the first element of a scan.
    """
    if op == "recurrence":
        return Recurrence(arrays=(), shape=shape, axis=axis, reverse=reverse, dtype=Dtype(dtypes[1]))
    from array_api_compat import numpy as xp

    op = BUILT_IN[op] if isinstance(op, str) else op
    results = result_dtypes(xp, op, tuple(map(Dtype, dtypes)))
    working = working_dtypes(xp, op, results)
    return Scan(
        arrays=(),
        shape=shape,
        single=len(dtypes) == 1,
        op=op,
        axis=axis,
        exclusive=exclusive,
        reverse=reverse,
        identity=op.identity(*map(dtype_name, working)) if begins else None,
        n=shape[axis],
        working=working,
        dtypes=results,
    )


_specialisations: Memo[Specialisation] = Memo()


def specialised(xp: Namespace, call: Call) -> Specialisation:
    """Return the specialisation of a call, from the cache if possible; raise Untraceable if it has none."""
    inputs, starts = (tuple([dtype_name(x.dtype) for x in arrays]) for arrays in (call.inputs, call.starts))
    rest: tuple[Any, ...] = (type(call), xp, mode(xp), inputs, starts)
    known: Any = True
    if isinstance(call, Scan):
        inclusive = not call.exclusive and call.n == call.shape[call.axis]
        rest += call.working, call.dtypes, inclusive
        known = None if call.operation is None else (call.operation, call.identity)
    elif isinstance(call, Recurrence):
        rest += (call.dtype,)
    elif isinstance(call, Mapped):
        rest += call.functions, call.n > call.shape[call.axis]
    cached = None if known is None else _specialisations.get((known, *rest))
    if cached is not None:
        return cached
    special = specialisation(xp, call, inputs, starts)
    if known is None or special.captured:
        # The operator's variables may have changed, so the key holds the translation that they gave. JAX may call the
        # operator again later, so on JAX the key also holds its id, and the specialisation keeps it alive.
        assert isinstance(call, Scan)
        special = dataclasses.replace(special, function=call.op.combine)
        key = (special.definitions, id(special.function) if is_jax(xp) else 0, *rest)
        like = _specialisations.get(key) or _specialisations.keep(key, special)
        special = like if like.captured == special.captured else dataclasses.replace(special, like=like)
    return special if known is None else _specialisations.keep((known, *rest), special)

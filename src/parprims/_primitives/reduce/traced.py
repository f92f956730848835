"""A reduction as device code: the traces of map and operator, from which kernels for GPUs and CPUs are generated."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from parprims._core.arrays import SIXTEEN_BIT_FLOATS, Array, Namespace, compute_dtype, dtype_name, is_jax
from parprims._core.elements import Structure
from parprims._core.options import dtype_named
from parprims._dispatch.watch import computing
from parprims._operators.foreign.names import Dtype
from parprims._operators.languages import C_TYPES, CUDA, Captured, Language
from parprims._operators.operator import Operator, restructured
from parprims._operators.tracing import Trace, Untraceable, trace, trace_combine
from parprims._primitives.reduce.call import (
    OWN_MAPS,
    Map,
    Reduction,
    Values,
    begun,
    check_elements,
    finish,
    result_dtypes,
)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A reduction as device code: the traces of map and operator, and all dtypes.

    Parameters
    ----------
    inputs, values, states, results : tuple of str
        The dtypes of the arrays, of the values of the map, of the states in registers, and of the result.
    lines : list of str
        Statements that compute the map from variables x0, x1, ..., one element of each input.
    codes : tuple of str
        The expressions of the map's values after these statements.
    combined : Trace
        The operator.
    op : Operator
        The operator on plain tuples.
    single, structure
        As in `Values`.
    captured : tuple of Captured
        The numbers that map and operator read and that are parameters of the kernel.
    """

    inputs: tuple[str, ...]
    values: tuple[str, ...]
    states: tuple[str, ...]
    results: tuple[str, ...]
    lines: list[str]
    codes: tuple[str, ...]
    combined: Trace
    op: Operator
    single: bool
    structure: Structure
    captured: tuple[Captured, ...]


def traced(xp: Namespace, r: Reduction, inputs: tuple[str, ...], language: Language = CUDA) -> Traced:
    """Return the traces of a reduction for the dtypes of inputs; raise Untraceable if there are none.

    Expressions of the map read an element of each input from the variables x0, x1, ...
    """
    for name in inputs:
        if name not in C_TYPES:
            raise Untraceable(f"the kernel has no dtype {name}")
    loaded = tuple([(name, f"x{index}") for index, name in enumerate(inputs)])
    immutable = is_jax(xp)
    lines: list[str]
    captured: tuple[Captured, ...] = ()
    if r.fn is None:
        lines, values, codes, single, structure = [], inputs, tuple([code for _, code in loaded]), r.single, None
        original = inputs
    else:
        mapped, original = _traced_map(r.fn, loaded, immutable, language)
        lines, values, codes = mapped.lines, mapped.dtypes, mapped.outputs
        single, structure, captured = mapped.single, mapped.structure, mapped.captured
        r = dataclasses.replace(r, op=restructured(r.op, structure))
    elements = tuple([Dtype(name) for name in original])
    check_elements(r, elements)
    dtypes = result_dtypes(xp, r, elements)
    states = tuple([dtype_name(compute_dtype(xp, dtype)) for dtype in dtypes])
    results = tuple([dtype_name(dtype) for dtype in dtypes])
    combined = trace_combine(r.op, states, immutable=immutable, language=language)
    captured += combined.captured
    return Traced(
        inputs=inputs,
        values=values,
        states=states,
        results=results,
        lines=lines,
        codes=codes,
        combined=combined,
        op=r.op,
        single=single,
        structure=structure,
        captured=captured,
    )


def _traced_map(
    fn: Map, loaded: tuple[tuple[str, str], ...], immutable: bool, language: Language
) -> tuple[Trace, tuple[str, ...]]:
    """Return the trace of a map that gets 16-bit floats as float32, and the dtypes of its values without that cast."""

    def traced_on(*elements: tuple[str, str]) -> Trace:
        with computing():  # fn may call primitives, which then trace too
            arguments, captured_name = [(element,) for element in elements], "captured_fn"
            return trace("fn", fn, *arguments, packed=False, immutable=immutable, language=language, told=captured_name)

    result = traced_on(*loaded)
    if fn in OWN_MAPS or not any(name in SIXTEEN_BIT_FLOATS for name, _ in loaded):
        return result, result.dtypes
    wide = [("float32" if name in SIXTEEN_BIT_FLOATS else name, code) for name, code in loaded]
    return traced_on(*wide), result.dtypes


def dtype_names(r: Reduction) -> tuple[str, ...]:
    """Return the names of the dtypes of the arrays, and of the positions if there are any."""
    names = [dtype_name(x.dtype) for x in r.arrays]
    if r.positions is not None:
        names.append("int32" if r.n <= 2**31 else "int64")
    return tuple(names)


def with_initial(
    xp: Namespace, r: Reduction, code: Traced, run: Callable[..., tuple[Array, ...]]
) -> Callable[..., Any]:
    """Return the function of a call's arrays that combines the results of a kernel with the initial element."""
    dtypes = tuple([dtype_named(xp, name) for name in code.results])
    bare = (r if r.begun else begun(xp, r, dtypes)).on(*(None,) * len(r.arrays))

    def combined(*arrays: Array) -> Any:
        totals = run(*arrays)
        values = Values(totals, dtypes, single=code.single, op=code.op, structure=code.structure)
        return finish(xp, bare, values, totals)

    return combined

"""Reductions by ids by kernels for CPUs: their text, the division of work, and the call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from parprims import _cpu
from parprims._core.arrays import Array, Namespace, compute_dtype, dtype_name, library
from parprims._cpu.language import loaded
from parprims._operators.in_place import is_own
from parprims._operators.tracing import Trace
from parprims._primitives.scan.cpu import code_of, identity_codes, identity_parameters
from parprims._primitives.segments.call import Segmented

_BLOCK, _BLOCKS = 1 << 14, 64
"""The fewest elements of a block, and the most blocks."""
_EACH = 32
"""The fewest rows of a block for each segment, if there is more than one block."""
_LEAST = 1 << 17
"""The fewest elements for each thread."""


def _state(xp: Namespace, c: Segmented) -> Any:
    """Return the dtype in which elements are combined."""
    return compute_dtype(xp, c.dtypes[0])


def _code(xp: Namespace, c: Segmented) -> Trace:
    """Return the trace of the operator; raise Untraceable if it has none."""
    return code_of(xp, c.op, c.operation, (_state(xp, c),))


def _identity(xp: Namespace, c: Segmented) -> tuple[Any, Any, tuple[str]]:
    """Return the operator, the identity if segments begin with it, and the dtype of states."""
    state = dtype_name(_state(xp, c))
    return c.op, None if c.starts else c.op.identity(state), (state,)


def _texts(xp: Namespace, c: Segmented, inner: int) -> tuple[str, ...]:
    """Return the text of the functions that the loops call."""
    text, language = _cpu.text, _cpu.NUMBA
    names = [dtype_name(x.dtype) for x in c.arrays]
    result, state = dtype_name(c.dtypes[0]), dtype_name(_state(xp, c))

    def as_state(code: str, name: str) -> str:
        return language.cast(language.cast(loaded(name, code), name, result), result, state)

    if c.starts:
        start = as_state("load(inputs[2], at)", names[2])
    else:
        (start,) = identity_codes(*_identity(xp, c))
    return (
        text.operator((state,), _code(xp, c)),
        text.function("segment(inputs, i)", ("return int64(load(inputs[1], i))",)),
        text.function("element(inputs, at)", (f"return ({as_state('load(inputs[0], at)', names[0])},)",)),
        text.function(
            "joined(seen, state, later)",
            ("both = combine(state, later)", "return (select(seen, both[0], later[0]),)"),
        ),
        text.function("before(inputs, at)", (f"return ({start},)",)),
        text.function("begins()", (f"return {bool(c.starts)}",)),
        text.function("width(numbers)", (f"return {1 if inner == 1 else 'numbers[1]'}",)),
        text.function("mem_of(parts)", ("return (parts[0],)",)),
        text.function(
            "finish(outputs, at, state)", text.stores([result], [_cpu.register_cast("state[0]", state, result)], ["at"])
        ),
        text.loops("_primitives/segments/segments_loops.py"),
    )


def _plan(xp: Namespace, c: Segmented) -> _cpu.Plan:
    """Return the plan for arrays in row-major order."""
    x, at, segments = c.arrays[0], c.axis, c.segments
    outer, n, inner = math.prod(x.shape[:at]), x.shape[at], math.prod(x.shape[at + 1 :])
    blocks = max(1, min(_BLOCKS, n * inner // _BLOCK, n // (_EACH * max(1, segments))))
    size = -(-n // blocks)
    blocks = -(-n // size)
    states = outer * blocks * segments
    return _cpu.Plan(
        (
            _cpu.Launch("gather_blocks", outer * blocks, -(-_LEAST // (size * inner))),
            _cpu.Launch("finish_segments", outer * segments, -(-_LEAST // (blocks * inner))),
        ),
        _texts(xp, c, inner),
        tuple([dtype_name(x.dtype) for x in c.arrays]),
        ((c.results[0][0], dtype_name(c.dtypes[0])),),
        ((states * inner, dtype_name(_state(xp, c))), (states, "uint8")),
        (n, inner, segments, blocks, size),
        captured=(*_code(xp, c).captured, *identity_parameters(*_identity(xp, c))),
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, c: Segmented) -> str | None:
    """Return the reason why the kernel cannot compute the call, or None."""
    reason = _cpu.refusal(xp, c.arrays, differentiable=True) or _cpu.unknown_dtype(c.arrays)
    return reason or _cpu.untraceable(lambda: _code(xp, c))


CROSSOVERS = _cpu.crossovers(__name__)
"""Elements from which the kernel is faster, for libraries with and without a routine that combines at ids."""


def slower(xp: Namespace, c: Segmented, direct: bool) -> str | None:
    """Return the reason why another method is faster, or None."""
    count = math.prod(c.arrays[0].shape)
    reason = _cpu.compiles_in_vain(library(xp), count) if is_own(c.op) else None
    kind = "direct" if direct else "operator"
    return reason or _cpu.measured(CROSSOVERS, xp, c.arrays).slower(library(xp), kind, count)


def prepare(xp: Namespace, c: Segmented) -> Callable[..., tuple[Array, ...]]:
    """Return a function of non-empty arrays that computes the result."""
    return _cpu.runner(_plan(xp, c), c.arrays, [_cpu.flat_in_order] * len(c.arrays))

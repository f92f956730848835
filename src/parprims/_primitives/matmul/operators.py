"""Two operators as the text of the kernels for GPUs that multiply matrices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from parprims._core.arrays import dtype_bits
from parprims._operators.languages import C_TYPES, CUDA, Captured, captured_identity, literal, register_type
from parprims._operators.operator import Operator
from parprims._operators.tracing import Trace, Untraceable, trace

if TYPE_CHECKING:
    from parprims._primitives.matmul.cuda import Problem


@dataclasses.dataclass(frozen=True)
class Semiring:
    """Two operators as device code.

    Parameters
    ----------
    text : str
        The definition of the struct ``Semiring``, which is `Op` of kernels/matmul.cu.
    captured : tuple of Captured
        The numbers of the operators that are parameters and not in the text.
    """

    text: str
    captured: tuple[Captured, ...]


def semiring(problem: Problem, *, immutable: bool) -> Semiring:
    """Return the operators of a problem as device code.

    ``immutable`` says that arrays of the library are immutable (see `trace`).
    """
    arithmetic = problem.arithmetic
    dtype, memory = arithmetic.registers, arithmetic.memory
    narrow = dtype_bits(dtype) < 32  # such numbers stay in registers of 32 bits between operations
    word = register_type(dtype)

    def traced(op: Operator, captured_name: str, earlier: str, later: str) -> Trace:
        result = trace(
            f"op {op.name}",
            op.combine,
            ((dtype, earlier),),
            ((dtype, later),),
            packed=op.components is not None,
            immutable=immutable,
            told=None if op._built_in else captured_name,
        )
        if result.dtypes != (dtype,):
            raise Untraceable(f"op {op.name} turns {dtype} into {', '.join(result.dtypes)}")
        return result

    def function(name: str, earlier: str, later: str, of: Trace) -> list[str]:
        head = f"    static DEVICE {word} {name}({word} {earlier}, {word} {later}) {{"
        return [head, *(f"        {line}" for line in of.lines), f"        return {of.outputs[0]};", "    }"]

    product = traced(problem.multiply, "captured_multiply", "x", "y")
    total = traced(problem.add, "captured_add", "earlier", "later")
    identity_value, captured = 0 if arithmetic.ring else sum_identity(problem), (*product.captured, *total.captured)
    if CUDA.tells and not problem.add._built_in:
        (number,) = captured_identity(CUDA, (identity_value,), (dtype,))
        captured, identity = (*captured, number), CUDA.captured(number.name, dtype)
    else:
        identity = literal(identity_value, dtype)
    # An unrolled loop should fit the instruction cache, and not take long to compile.
    steps = 1 if product.lines.long or total.lines.long else 16 if arithmetic.ring else 8
    text = "\n".join(
        (
            "struct Semiring {",
            f"    using Element = {C_TYPES[memory]};",
            f"    using Sum = {'int' if narrow else word};",
            "    static DEVICE Sum load(Element x) { return ops::cast<Sum>(value(x)); }",
            "    static DEVICE Element save(Sum x) {",
            f"        return store<Element>(ops::cast<{register_type(memory)}>(x));",
            "    }",
            f"    static constexpr int STEPS = {steps};",
            f"    static DEVICE Sum identity() {{ return {identity}; }}",
            *function("add", "earlier", "later", total),
            *function("multiply", "x", "y", product),
            f"    static DEVICE Sum combine(Sum earlier, Sum later) {{ return add(({word})earlier, ({word})later); }}",
            "    static DEVICE Sum step(Sum sum, Sum x, Sum y) {",
            f"        return add(({word})sum, multiply(({word})x, ({word})y));",
            "    }",
            "};",
        )
    )
    return Semiring(text, captured)


def sum_identity(problem: Problem) -> Any:
    """Return the identity of the sum, or None if it has none."""
    values = problem.add.identity(problem.arithmetic.registers)
    return None if values is None else values[0]

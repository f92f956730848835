"""Traced functions as Python that Numba compiles; they call the functions in templates/functions.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from parprims._core.arrays import SIXTEEN_BIT_FLOATS, dtype_bits, dtype_kind
from parprims._operators.languages import Language, as_float, part_of
from parprims._operators.tracing import Untraceable

_INFIX = {
    "add": "+",
    "subtract": "-",
    "multiply": "*",
    "divide": "/",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
    "logical_and": "&",
    "logical_or": "|",
    "logical_xor": "!=",
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}

_TESTS = (
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
)
"""Functions that return a bool for arguments of any dtype."""

_SAME = ("floor", "ceil", "trunc", "round", "conj")
"""Functions that return their argument: the roundings of integers, and the conjugate of real numbers."""


_NARROW = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
"""Dtypes that Numba widens in every operation."""


def register_type(dtype: str) -> str:
    """Return the Numba type of a register: float32 for 16-bit floats, else the dtype."""
    return "float32" if dtype in SIXTEEN_BIT_FLOATS else "boolean" if dtype == "bool" else dtype


def memory_type(dtype: str) -> str:
    """Return the Numba type in memory: uint16 for 16-bit floats, else the dtype."""
    return "uint16" if dtype in SIXTEEN_BIT_FLOATS else register_type(dtype)


class _Numba(Language):
    """Python for Numba. Numba widens narrow integers, so their results are cast to their dtype."""

    def assign(self, name: str, dtype: str, expression: str) -> str:
        return f"{name} = {register_type(dtype)}({expression})" if dtype in _NARROW else f"{name} = {expression}"

    def call(self, function: str, dtype: str, *codes: str) -> str:
        kind = dtype_kind(dtype)
        if kind == "bool" and function in ("bitwise_invert", "logical_not"):
            return f"(not {codes[0]})"
        if function == "bitwise_invert":
            return f"(~{codes[0]})"
        if kind == "bool" and function == "bitwise_xor":
            function = "not_equal"
        if kind == "complex" and function == "divide":
            return f"divide_complex({', '.join(codes)})"
        if kind == "complex" and function == "reciprocal":
            return f"divide_complex({dtype}(1), {codes[0]})"
        if function in _INFIX:
            return f"({codes[0]} {_INFIX[function]} {codes[1]})"
        if function == "positive" or (function in _SAME and kind in ("int", "uint")):
            return codes[0]
        if function == "conj":
            return f"{codes[0]}.conjugate()" if kind == "complex" else codes[0]
        if function == "negative":
            return f"(-{codes[0]})" if kind != "uint" else f"({register_type(dtype)}(0) - {codes[0]})"
        if function == "square":
            return f"({codes[0]} * {codes[0]})"
        if function in ("maximum", "minimum"):
            wins = f"{codes[0]} {'>' if function == 'maximum' else '<'} {codes[1]}"
            if kind == "float":
                wins = f"({codes[0]} != {codes[0]}) | ({wins})"
            return f"select({wins}, {codes[0]}, {codes[1]})"
        whole = "_of_integers" if kind in ("int", "uint") and function in ("floor_divide", "remainder") else ""
        if function in ("bitwise_left_shift", "bitwise_right_shift"):
            codes = (*codes, str(dtype_bits(dtype)))
        if function == "nextafter":
            whole = f"_of_{dtype_bits(dtype)}_bits"
        return f"{function}{whole}({', '.join(codes)})"

    def cast(self, code: str, source: str, target: str) -> str:
        if source == target and target not in SIXTEEN_BIT_FLOATS:
            return code
        if target == "bool":
            return f"({code} != 0)"
        converted = f"{register_type(target)}({code})"
        return f"{target}_value({target}_bits({converted}))" if target in SIXTEEN_BIT_FLOATS else converted

    def part(self, code: str, _dtype: str, part: str) -> str:
        return f"{code}.{'real' if part == 're' else 'imag'}"

    def choose(self, condition: str, one: str, other: str) -> str:
        return f"select({condition}, {one}, {other})"

    def literal(self, value: Any, dtype: str) -> str:
        kind = dtype_kind(dtype)
        if kind == "bool":
            return "True" if value else "False"
        if kind in ("int", "uint"):
            return f"{dtype}({int(value)})"
        if kind == "complex":
            part = part_of(dtype)
            return f"{dtype}(complex({self.literal(value.real, part)}, {self.literal(value.imag, part)}))"
        number = float(as_float(value, dtype))
        text = repr(number) if math.isfinite(number) else f"({number})"
        return f"{register_type(dtype)}({text})"

    def from_words(self, words: Sequence[str], dtype: str) -> str:
        kind = dtype_kind(dtype)
        if kind == "complex":
            return f"{dtype}(complex({', '.join(self.from_words((one,), part_of(dtype)) for one in words)}))"
        (word,) = words
        if kind == "bool":
            return f"({word} != 0)"
        if kind == "float":
            bits = register_type(dtype).removeprefix("float")
            return f"as_float{bits}(uint{bits}({word}))"
        return f"{dtype}({word})"

    def captured(self, name: str, _dtype: str, /) -> str:
        return name

    def component(self, element: str, index: int) -> str:
        return f"{element}_{index}"


NUMBA = _Numba()


def untraceable(trace: Callable[[], Any]) -> str | None:
    """Return the reason why an operator has no trace, or None; ``trace`` makes it."""
    try:
        trace()
    except Untraceable as reason:
        return str(reason)
    return None


def loaded(dtype: str, code: str) -> str:
    """Return the code that converts a value from memory to its register type."""
    return f"{dtype}_value({code})" if dtype in SIXTEEN_BIT_FLOATS else code


def register_cast(code: str, source: str, target: str) -> str:
    """Return the code that converts a register to the register type of another dtype."""
    return code if register_type(source) == register_type(target) else NUMBA.cast(code, source, target)


def stored(dtype: str, code: str) -> str:
    """Return the code that converts a register to the type that memory holds."""
    return f"{dtype}_bits({code})" if dtype in SIXTEEN_BIT_FLOATS else code

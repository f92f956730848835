"""How the trace of a function is written down: in CUDA C++, from which other languages derive."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from parprims._arrays import SIXTEEN_BIT_FLOATS, dtype_bits, dtype_kind

C_TYPES = {
    "bool": "bool",
    "int8": "signed char",
    "int16": "short",
    "int32": "int",
    "int64": "long long",
    "uint8": "unsigned char",
    "uint16": "unsigned short",
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
    "float16": "Half",
    "bfloat16": "Bfloat",
    "float32": "float",
    "float64": "double",
    "complex64": "Complex<float>",
    "complex128": "Complex<double>",
}
"""The C++ type each dtype has in memory."""


def register_type(dtype: str) -> str:
    """Return the C++ type a dtype is computed in: that in memory, but float for 16-bit floats."""
    return "float" if dtype in SIXTEEN_BIT_FLOATS else C_TYPES[dtype]


class Language:
    """How a trace is written down: in CUDA C++. Other languages derive from this.

    ``tells`` says whether kernels are told numbers that do not stand in the code of a function.
    """

    tells = False

    def assign(self, name: str, dtype: str, expression: str) -> str:
        """Return the line that gives a name to a value."""
        return f"const {register_type(dtype)} {name} = {expression};"

    def call(self, function: str, _dtype: str, *codes: str) -> str:
        """Return the call of an elementwise function, by its name in the standard, on values of a dtype."""
        return f"ops::{function}({', '.join(codes)})"

    def cast(self, code: str, _source: str, target: str) -> str:
        """Return a value of one dtype as one of another."""
        expression = f"ops::cast<{register_type(target)}>({code})"
        # A 16-bit float is kept in a float register; a cast to it rounds to what memory would hold.
        return f"value(store<{C_TYPES[target]}>({expression}))" if target in SIXTEEN_BIT_FLOATS else expression

    def part(self, code: str, _dtype: str, part: str) -> str:
        """Return the real or the imaginary part, "re" or "im", of a complex value."""
        return f"{code}.{part}"

    def choose(self, condition: str, one: str, other: str) -> str:
        """Return one value where a condition is true, and another where it is not."""
        return f"{condition} ? {one} : {other}"

    def literal(self, value: Any, dtype: str) -> str:
        """Return a Python number as a value of a dtype, exact to the last bit."""
        return literal(value, dtype)

    def words(self, value: Any, dtype: str) -> tuple[int, ...]:
        """Return the integers of 64 bits by which a kernel is told a number of a dtype."""
        raise NotImplementedError

    def component(self, element: str, index: int) -> str:
        """Return a component of an argument of an operator, which is "earlier" or "later"."""
        return f"{element}.v{index}"


CUDA = Language()


@dataclasses.dataclass(frozen=True)
class Captured:
    """A number that no text holds, for it may be another in the next call: a kernel is told it.

    Parameters
    ----------
    name : str
        What the text calls it.
    dtype : str
        Its dtype.
    words : tuple of int
        The number, as the language has it (see `Language.words`).
    """

    name: str
    dtype: str
    words: tuple[int, ...]


def integer_range(dtype: str) -> tuple[int, int]:
    """Return the least and the greatest value of an integer dtype."""
    bits = dtype_bits(dtype)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype_kind(dtype) == "int" else (0, 2**bits - 1)


def literal(value: Any, dtype: str) -> str:
    """Return the C++ expression for a Python number as a value of the dtype, exact to the last bit."""
    kind = dtype_kind(dtype)
    if kind == "bool":
        return "true" if value else "false"
    if kind in ("int", "uint"):
        return f"({C_TYPES[dtype]}){int(value) % 2**64}ULL"
    if kind == "complex":
        part = "float32" if dtype == "complex64" else "float64"
        return f"{C_TYPES[dtype]}{{{literal(value.real, part)}, {literal(value.imag, part)}}}"
    if dtype == "float64":
        return f"__longlong_as_double({int(np.float64(value).view(np.int64))}LL)"
    with np.errstate(over="ignore"):
        return f"__int_as_float({int(np.float32(value).view(np.int32))})"

"""Languages in which the trace of a function is written: CUDA C++, and others that derive from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from parprims._core.arrays import SIXTEEN_BIT_FLOATS, dtype_bits, dtype_kind
from parprims._operators.foreign.names import SPECIAL

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
"""The C++ type of each dtype in memory."""


def register_type(dtype: str) -> str:
    """Return the C++ type in which a dtype is computed: the type in memory, except float for 16-bit floats."""
    return "float" if dtype in SIXTEEN_BIT_FLOATS else C_TYPES[dtype]


class Language:
    """How a trace is written down: in CUDA C++. Other languages derive from this."""

    tells = True
    """Whether kernels are told numbers that do not stand in the code of a function. Tests compare with texts that hold
    all numbers."""

    def assign(self, name: str, dtype: str, expression: str) -> str:
        """Return the line that assigns a value to a name."""
        return f"const {register_type(dtype)} {name} = {expression};"

    def call(self, function: str, _dtype: str, *codes: str) -> str:
        """Return the call of an elementwise function, by its name in the standard, on values of a dtype."""
        if function in SPECIAL:  # functions of CUDA's mathematical library, which common.cuh does not have
            return f"::{'tgamma' if function == 'gamma' else function}({', '.join(codes)})"
        return f"ops::{function}({', '.join(codes)})"

    def cast(self, code: str, _source: str, target: str) -> str:
        """Return the cast of a value from one dtype to another."""
        expression = f"ops::cast<{register_type(target)}>({code})"
        # A 16-bit float is in a float register. A cast to its dtype rounds to a value that memory can hold.
        return f"value(store<{C_TYPES[target]}>({expression}))" if target in SIXTEEN_BIT_FLOATS else expression

    def part(self, code: str, _dtype: str, part: str) -> str:
        """Return the real or the imaginary part, "re" or "im", of a complex value."""
        return f"{code}.{part}"

    def choose(self, condition: str, one: str, other: str) -> str:
        """Return the choice between two values by a condition."""
        return f"{condition} ? {one} : {other}"

    def literal(self, value: Any, dtype: str) -> str:
        """Return a Python number as a value of a dtype, exact to the last bit."""
        return literal(value, dtype)

    def words(self, value: Any, dtype: str) -> tuple[int, ...]:
        """Return the integers of 64 bits by which a kernel is told a number of a dtype."""
        kind = dtype_kind(dtype)
        if kind == "complex":
            part = part_of(dtype)
            return *self.words(value.real, part), *self.words(value.imag, part)
        if kind == "float":
            number = as_float(value, dtype)
            return (int(number.view(f"int{8 * number.itemsize}")),)
        return ((int(value) + 2**63) % 2**64 - 2**63,)

    def from_words(self, words: Sequence[str], dtype: str) -> str:
        """Return a number of a dtype, given the integers by which a kernel is told it."""
        kind, kept = dtype_kind(dtype), register_type(dtype)
        if kind == "complex":
            return f"{kept}{{{', '.join(self.from_words((one,), part_of(dtype)) for one in words)}}}"
        (word,) = words
        if kind == "float":
            return f"__longlong_as_double({word})" if dtype == "float64" else f"__int_as_float((int){word})"
        return f"({word} != 0)" if kind == "bool" else f"({kept}){word}"

    def captured(self, name: str, dtype: str, /) -> str:
        """Return the expression for a number that a kernel is told under a name: see `word_name`."""
        count = 2 if dtype_kind(dtype) == "complex" else 1
        return self.from_words([f"{word_name(name, at)}()" for at in range(count)], dtype)

    def component(self, element: str, index: int) -> str:
        """Return a component of an argument of an operator, "earlier" or "later"."""
        return f"{element}.v{index}"


CUDA = Language()


class _WithNumbers(Language):
    tells = False


CUDA_WITH_NUMBERS = _WithNumbers()
"""CUDA C++ in texts that hold all numbers."""


def word_name(name: str, at: int) -> str:
    """Return the function of a CUDA text that returns a word of a captured number."""
    return f"{name}_{at}"


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


def captured_identity(language: Language, identity: Sequence[Any], dtypes: Sequence[str]) -> tuple[Captured, ...]:
    """Return the identity of an operator as numbers that kernels are told."""
    pairs = enumerate(zip(identity, dtypes, strict=True))
    return tuple([Captured(f"captured_identity{at}", to, language.words(one, to)) for at, (one, to) in pairs])


def part_of(dtype: str) -> str:
    """Return the dtype of the parts of complex numbers."""
    return "float32" if dtype == "complex64" else "float64"


def as_float(value: Any, dtype: str) -> Any:
    """Return a number in the precision of computations in a floating dtype."""
    with np.errstate(over="ignore"):
        return np.float64(float(value)) if dtype == "float64" else np.float32(value)


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
        part = part_of(dtype)
        return f"{C_TYPES[dtype]}{{{literal(value.real, part)}, {literal(value.imag, part)}}}"
    if dtype == "float64":
        return f"__longlong_as_double({int(as_float(value, dtype).view(np.int64))}LL)"
    return f"__int_as_float({int(as_float(value, dtype).view(np.int32))})"

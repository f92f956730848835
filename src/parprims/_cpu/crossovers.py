"""The sizes from which kernels for CPUs are preferred to a library's own way: the form of the tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from parprims._compiling.tables import Measured, Table
from parprims._core.arrays import NAMES, Array, Namespace, dtype_bits, dtype_kind, library
from parprims._core.jax_arrays import is_traced
from parprims._cpu import processor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crossovers(Measured):
    """The measurements of a primitive on a processor.

    A kernel is preferred to a library's own routine if it saves 10 us: the first kernel of a process waits for LLVM,
    and the first process on a machine waits for Numba.

    Parameters
    ----------
    least : mapping
        By kind of call, then by library: the least size, in the unit of the table.
    """

    least: Mapping[str, Mapping[str, int]]

    def of(self, library: str) -> dict[str, int]:
        """Return the least sizes for a library, by kind of call."""
        return {kind: sizes[library] for kind, sizes in self.least.items() if library in sizes}

    def slower(self, library: str, kind: str, size: int) -> str | None:
        """Return the sentence why a kernel is not preferred for a size of a kind of call, or None."""
        least = self.least.get(kind, {}).get(library)
        name = NAMES.get(library, library)
        if least is None:
            return f"{name}'s own way is preferred at any size"
        return f"{name}'s own way is preferred below {least} elements" if size < least else None


def crossovers(module: str) -> Table[str, Crossovers]:
    """Return the table of a module, by processor."""
    return Table(str, Crossovers, module)


def for_processor(table: Mapping[str, Crossovers]) -> Crossovers:
    """Return the entry of a table for the processor at hand."""
    return table[_ZEN_4 if _ZEN_4 in table and processor.compresses_slowly() else _ANY]


def in_program(xp: Namespace, arrays: Sequence[Array]) -> bool:
    """Return whether arrays belong to a program of JAX: to jit, vmap or grad."""
    return library(xp) == "jax" and any(map(is_traced, arrays))


def measured(table: Mapping[str, Crossovers], xp: Namespace, arrays: Sequence[Array]) -> Crossovers:
    """Return the entry of a table for calls on these arrays, on the processor at hand.

    Inside programs, XLA calls kernels, and fuses its own operations.
    """
    if not in_program(xp, arrays):
        return for_processor(table)
    return table[IN_PROGRAMS] if IN_PROGRAMS in table else Crossovers(record="", device="", least={})


_ZEN_4, _ANY, IN_PROGRAMS = "Zen 4", "any", "in programs"
"""The names of entries: of processors that have their own, of all other processors, and of programs of JAX."""


_FEW = 64
"""Below this number of elements no kernel is compiled for a function of the caller.

On NumPy and PyTorch `array` combines them in about 100 us, and a kernel in 10 us. Numba and LLVM compile a new kernel,
as most functions of callers need it, in a second: the time of ten thousand calls.
"""


def compiles_in_vain(library: str, size: int) -> str | None:
    """Return the sentence why no kernel is compiled for a function of the caller and this number of elements, or None.

    A kernel that is compiled already is not used either: so every process computes a call to equal bits. JAX has no
    such limit, because its programs take as long to compile.
    """
    if library == "jax" or size >= _FEW:
        return None
    return f"below {_FEW} elements array operations take less time than to compile a kernel of a function of yours"


_FAMILIES = {"minimum": "maximum", "argmin": "argmax", "logical_or": "logical_and"}


def family(operator: str) -> str:
    """Return the operator with which an operator shares its crossovers."""
    return _FAMILIES.get(operator, operator)


_NARROW, _MANY = 16, 256
"""Numbers of adjacent columns: below the first they are few, from the second on many."""
_LONG = 128
"""Elements of a long line."""


def of_columns(shape: tuple[int, ...], last: int) -> str:
    """Return the layout of lines along an axis: "line", or "narrow" or "columns" for few or many adjacent lines."""
    inner = math.prod(shape[last + 1 :])
    return "line" if inner == 1 else "narrow" if inner < _NARROW else "columns"


def of_lines(library: str, shape: tuple[int, ...], last: int, n: int) -> str:
    """Return `of_columns`, but a finer layout for NumPy: its inner loop is one line of n elements, or one row."""
    layout = of_columns(shape, last)
    if library != "numpy":
        return layout
    if layout == "line":
        return "line" if n >= _LONG else "short line"
    return "few columns" if layout == "columns" and math.prod(shape[last + 1 :]) < _MANY else layout


def of_elements(library: str, dtype: Any, result: Any) -> str:
    """Return the class of the elements; NumPy widens integers one buffer at a time if results have more bits."""
    if dtype_kind(result) in ("float", "complex"):
        return ""
    widened = library == "numpy" and dtype_bits(dtype) != dtype_bits(result)
    return " of narrow integers" if widened else " of integers"

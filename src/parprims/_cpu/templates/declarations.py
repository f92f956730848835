"""Declarations of the functions that loops of kernels for CPUs call, for readers, editors and type checkers.

A file of loops, such as scan_loops.py, is never run as a module: `_cpu/text.py` joins its functions with others, and
Numba compiles the whole. The functions of the first two sections are in functions.py; `_cpu/text.py` writes the others
for a call. Functions that only one primitive has are declared at the top of its loops.

The functions of loops have no annotations: a number has a dtype of the call, and a state as many components as the
operator, and Numba infers both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NAME = ""
"""The name of the kernel in its object code. The compiler sets it."""
MINOR = 0
"""The minor version of XLA's interface for foreign functions. `_cpu/running/xla.py` sets it."""

Number = Any
"""A number of a dtype of the call, which only the text of the kernel names."""
Memory = Any
"""An array of one axis. A kernel reads it as a pointer: an index is neither checked nor counted from the end."""
State = Any
"""A state of the operator: the tuple of its components."""
States = Any
"""Memory for states: a tuple of arrays, one for each component."""
Arrays = tuple[Memory, ...]
"""The arrays of a group: inputs, outputs or starts."""
Position = tuple[int, ...]
"""An element in all arrays of a group: its index in each array."""
Steps = tuple[int, ...]
"""The strides of all arrays of a group along one axis."""
Numbers = Sequence[int]
"""The numbers of a call: sizes, then the numbers of views."""


# ---- Memory -----------------------------------------------------------------------------------------------------


def load(array: Memory, index: int) -> Number:
    """Return an element."""
    raise NotImplementedError


def store(array: Memory, index: int, value: Number) -> None:
    """Write an element."""
    raise NotImplementedError


def load_from(region: int, array: Memory, index: int) -> Number:
    """Return an element of an array in a region of memory. Regions do not overlap."""
    raise NotImplementedError


def store_to(region: int, array: Memory, index: int, value: Number) -> None:
    """Write an element of an array in a region of memory. Regions do not overlap."""
    raise NotImplementedError


# ---- Numbers ----------------------------------------------------------------------------------------------------


def select(condition: Number, one: Number, other: Number) -> Number:
    """Return ``one`` if the condition holds, else ``other``, without a branch."""
    raise NotImplementedError


def int32(x: Number) -> Number:
    """Return a number as int32."""
    raise NotImplementedError


def int64(x: Number) -> Number:
    """Return a number as int64."""
    raise NotImplementedError


def uint8(x: Number) -> Number:
    """Return a number as uint8."""
    raise NotImplementedError


def uint16(x: Number) -> Number:
    """Return a number as uint16."""
    raise NotImplementedError


def uint64(x: Number) -> Number:
    """Return a number as uint64."""
    raise NotImplementedError


def float64(x: Number) -> Number:
    """Return a number as float64."""
    raise NotImplementedError


# ---- Groups of arrays -------------------------------------------------------------------------------------------


def place_in(numbers: Numbers, *indices: int) -> Position:
    """Return the position of an element of the inputs, given its indices along the axes that count lines."""
    raise NotImplementedError


def alongs_in(numbers: Numbers) -> Steps:
    """Return the strides of the inputs along a line."""
    raise NotImplementedError


def acrosses_in(numbers: Numbers) -> Steps:
    """Return the strides of the inputs from line to line."""
    raise NotImplementedError


def moved_in(at: Position, steps: Steps, i: int) -> Position:
    """Return the position i steps behind another in the inputs."""
    raise NotImplementedError


def place_out(numbers: Numbers, *indices: int) -> Position:
    """Return the position of an element of the outputs, given its indices along the axes that count lines."""
    raise NotImplementedError


def alongs_out(numbers: Numbers) -> Steps:
    """Return the strides of the outputs along a line."""
    raise NotImplementedError


def acrosses_out(numbers: Numbers) -> Steps:
    """Return the strides of the outputs from line to line."""
    raise NotImplementedError


def moved_out(at: Position, steps: Steps, i: int) -> Position:
    """Return the position i steps behind another in the outputs."""
    raise NotImplementedError


def place_start(numbers: Numbers, *indices: int) -> Position:
    """Return the position of an initial element, given the indices of its line."""
    raise NotImplementedError


def alongs_start(numbers: Numbers) -> Steps:
    """Return the strides of the initial elements from segment to segment."""
    raise NotImplementedError


def acrosses_start(numbers: Numbers) -> Steps:
    """Return the strides of the initial elements from line to line."""
    raise NotImplementedError


def moved_start(at: Position, steps: Steps, i: int) -> Position:
    """Return the position i steps behind another in the initial elements."""
    raise NotImplementedError


# ---- States -----------------------------------------------------------------------------------------------------


def combine(earlier: State, later: State) -> State:
    """Return the state of two by the operator."""
    raise NotImplementedError


def scratch(count: int) -> States:
    """Return memory for states."""
    raise NotImplementedError


def get(states: States, i: int) -> State:
    """Return a state in memory."""
    raise NotImplementedError


def put(states: States, i: int, state: State) -> None:
    """Write a state to memory."""
    raise NotImplementedError


# ---- Arithmetic in one dtype ------------------------------------------------------------------------------------


def numbers_of(count: int) -> Memory:
    """Return memory for numbers of the dtype of the call."""
    raise NotImplementedError


def zero() -> Number:
    """Return zero in the dtype of the call."""
    raise NotImplementedError


def quotient(a: Number, b: Number) -> Number:
    """Return a / b, without an error if b is zero."""
    raise NotImplementedError

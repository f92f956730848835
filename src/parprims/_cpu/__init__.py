"""Kernels for CPUs: their text, its compilation by Numba, and the threads that run them.

A primitive describes the work of kernels on its arrays as a `Plan`; `runner` makes a function of the arrays from it.
"""

from parprims._cpu import processor, text, threads
from parprims._cpu.crossovers import (
    compiles_in_vain,
    crossovers,
    family,
    for_processor,
    in_program,
    measured,
    of_columns,
    of_elements,
    of_lines,
)
from parprims._cpu.language import NUMBA, register_cast, register_type, untraceable
from parprims._cpu.memory import (
    arranged,
    bits_dtype,
    bytes_of,
    first,
    flat_in_order,
    host,
    in_order,
    on_cpu,
    reader,
    reader_in_order,
    refusal,
    strides,
    too_many,
    unknown_dtype,
    viewed,
    with_axis,
)
from parprims._cpu.plan import Launch, Lines, Plan, is_memory_bound, lines_of
from parprims._cpu.running.runner import runner
from parprims._cpu.text import View

__all__ = [
    "NUMBA",
    "Launch",
    "Lines",
    "Plan",
    "View",
    "arranged",
    "bits_dtype",
    "bytes_of",
    "compiles_in_vain",
    "crossovers",
    "family",
    "first",
    "flat_in_order",
    "for_processor",
    "host",
    "in_order",
    "in_program",
    "is_memory_bound",
    "lines_of",
    "measured",
    "of_columns",
    "of_elements",
    "of_lines",
    "on_cpu",
    "processor",
    "reader",
    "reader_in_order",
    "refusal",
    "register_cast",
    "register_type",
    "runner",
    "strides",
    "text",
    "threads",
    "too_many",
    "unknown_dtype",
    "untraceable",
    "viewed",
    "with_axis",
]

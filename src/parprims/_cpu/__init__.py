"""Everything of the library that knows kernels for CPUs: their text, Numba which compiles them, and threads.

A primitive describes what kernels do to its arrays as a `Plan`; `runner` makes a function of the arrays of it.
"""

from parprims._cpu import text
from parprims._cpu.language import NUMBA, register_type
from parprims._cpu.memory import first, host, on_cpu, reader, refusal, slower, strides
from parprims._cpu.plan import Launch, Plan, runner
from parprims._cpu.text import View

__all__ = [
    "NUMBA",
    "Launch",
    "Plan",
    "View",
    "first",
    "host",
    "on_cpu",
    "reader",
    "refusal",
    "register_type",
    "runner",
    "slower",
    "strides",
    "text",
]

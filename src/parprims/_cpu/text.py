"""The text of a kernel for CPUs: what is generated for an operator, and how it reaches strided arrays.

A kernel is the text of _functions.numba, the functions that are written here, and the loops of a primitive. The loops
see an element of all inputs as one thing, and a state as a tuple of its components:

- ``start(numbers)`` is the position of the first element in every input, ``moved(at, steps, i)`` another i steps on;
- ``outwards``, ``alongs`` and ``acrosses`` of ``numbers`` are the strides of the inputs along the three axes of a view;
- ``element(inputs, at, steps, i)`` is the state made of the element i steps behind a position;
- ``combine(earlier, later)`` is the state of two;
- ``scratch(count)`` is an array of states, which ``get(states, i)`` and ``put(states, i, state)`` read and write;
- ``finish(outputs, i, state)`` writes a result.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterable, Sequence

from parprims._cpu.inline import inlined
from parprims._cpu.language import loaded, memory_type, register_type, stored
from parprims._trace import Trace

HEAD = 8
"""How many of the numbers of a kernel come before those of its views."""


@functools.cache
def file(name: str) -> str:
    """Return the text of a file of the package."""
    return (importlib.resources.files("parprims") / name).read_text(encoding="utf-8")


def function(head: str, lines: Iterable[str]) -> str:
    """Return the text of a function."""
    return "\n".join((f"def {head}:", *(f"    {line}" for line in lines), ""))


def packed(codes: Iterable[str]) -> str:
    """Return a tuple of expressions."""
    return f"({', '.join(codes)},)"


def views(count: int) -> str:
    """Return the functions that know where the elements of so many inputs are: four numbers for each input."""
    at = [HEAD + 4 * index for index in range(count)]
    return "\n".join(
        (
            *(
                function(f"{name}(numbers)", (f"return {packed(f'numbers[{one + offset}]' for one in at)}",))
                for offset, name in enumerate(("start", "outwards", "alongs", "acrosses"))
            ),
            function(
                "moved(at, steps, i)", (f"return {packed(f'at[{one}] + steps[{one}] * i' for one in range(count))}",)
            ),
        )
    )


def element(inputs: Sequence[str], steps: Sequence[int | None], lines: Sequence[str], values: Iterable[str]) -> str:
    """Return the function ``element``.

    ``inputs`` are the dtypes of the arrays; ``steps`` their strides along the axis that loops follow, where compiled
    in: 0, 1, or None for any. ``lines`` make the expressions ``values`` of the variables x0, x1, ...
    """
    places = {0: "at[{0}]", 1: "at[{0}] + i", None: "at[{0}] + steps[{0}] * i"}
    body = [
        f"x{index} = {loaded(name, f'load(inputs[{index}], {places[steps[index]].format(index)})')}"
        for index, name in enumerate(inputs)
    ]
    return function("element(inputs, at, steps, i)", (*body, *lines, f"return {packed(values)}"))


def operator(states: Sequence[str], combined: Trace) -> str:
    """Return the functions on states of an operator."""
    count = range(len(states))
    return "\n".join(
        (
            function(
                "combine(earlier, later)",
                (
                    *(f"{side}_{index} = {side}[{index}]" for side in ("earlier", "later") for index in count),
                    *combined.lines,
                    f"return {packed(combined.outputs)}",
                ),
            ),
            function(
                "scratch(count)",
                (f"return {packed(f'np.empty(count, np.{numpy_type(one)})' for one in states)}",),
            ),
            function("get(states, i)", (f"return {packed(f'load(states[{index}], i)' for index in count)}",)),
            function("put(states, i, state)", (*(f"store(states[{index}], i, state[{index}])" for index in count),)),
        )
    )


def finish(outputs: Sequence[str], codes: Sequence[str]) -> str:
    """Return the function ``finish``: ``codes`` make the outputs, in registers, of state[0], state[1], ..."""
    return function(
        "finish(outputs, i, state)",
        (
            f"store(outputs[{index}], i, {stored(name, code)})"
            for index, (name, code) in enumerate(zip(outputs, codes, strict=True))
        ),
    )


def numpy_type(dtype: str) -> str:
    """Return NumPy's name of the type that a dtype is computed in."""
    return "bool_" if dtype == "bool" else register_type(dtype)


def kernel(
    name: str, texts: Sequence[str], inputs: Sequence[str], outputs: Sequence[str], scratch: Sequence[str] = ()
) -> str:
    """Return the text of a module with one kernel, the function of a name in texts, for arrays of these dtypes.

    It takes inputs, which may be read-only, outputs and memory for states, all as arrays of one axis, then numbers and
    which of its tasks to do, from begin to end.
    """
    kinds = [f"types.Array({memory_type(one)}, 1, 'C', readonly=True)" for one in inputs]
    kinds += [f"{memory_type(one)}[::1]" for one in outputs]
    kinds += [f"{register_type(one)}[::1]" for one in scratch]
    names = [f"a{index}" for index in range(len(kinds))]
    first, second = len(inputs), len(inputs) + len(outputs)
    parts = [names[:first], names[first:second], names[second:]]
    given = ", ".join(packed(part) if part else "()" for part in parts)
    entry = function(f"run({', '.join(names)}, numbers, begin, end)", (f"{name}({given}, numbers, begin, end)",))
    return "\n".join(
        (
            file("_cpu/_functions.numba"),
            f"@kernel(types.void({', '.join(kinds)}, int64[::1], int64, int64))",
            inlined((*texts, entry), "run"),
        )
    )

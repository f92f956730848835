"""The text of a kernel for CPUs: the functions of an operator and of strided arrays, joined with loops.

A kernel is the text of templates/ and of one function. That function consists of the loops of a primitive, such as
scan_loops.py, and of functions that are written for a call, each in place of its calls. templates/declarations.py lists
the functions that are written here. The loops see an element of all inputs as one state: a tuple with its components.

A group of arrays, such as the inputs, has one position: a tuple with an index for each array, moved by tuples of
strides. The names of its functions end in its own: ``place_in`` belongs to the inputs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import re
from collections.abc import Iterable, Sequence

from parprims._cpu.inline import inlined
from parprims._cpu.language import NUMBA, loaded, register_type, stored
from parprims._operators.tracing import Trace


@functools.cache
def file(name: str) -> str:
    """Return the text of a file of the package."""
    return (importlib.resources.files("parprims") / name).read_text(encoding="utf-8")


_FIRST_FUNCTION = re.compile(r"^def ", re.MULTILINE)
_PROSE = re.compile(r'^ *"""[^"]*"""\n|^ *#.*\n|  #.*$', re.MULTILINE)


@functools.cache
def loops(name: str) -> str:
    """Return the functions of a file of loops, without docstrings and comments, which change no kernel.

    Before the functions are the docstring, the imports and the declarations of the file.
    """
    text = file(name)
    first = _FIRST_FUNCTION.search(text)
    assert first is not None
    return _PROSE.sub("", text[first.start() :])


_DECLARED = re.compile(r"^from parprims\..*\n", re.MULTILINE)


@functools.cache
def _template(name: str) -> str:
    """Return the text of a module in templates/, without its imports of declarations."""
    return _DECLARED.sub("", file(f"_cpu/templates/{name}"))


def module(templates: Iterable[str], *lines: str) -> str:
    """Return the text of a module: modules in templates/, then lines."""
    return "\n".join((*map(_template, templates), *lines))


def function(head: str, lines: Iterable[str]) -> str:
    """Return the text of a function."""
    return "\n".join((f"def {head}:", *(f"    {line}" for line in lines), ""))


def packed(codes: Iterable[str]) -> str:
    """Return a tuple of expressions."""
    parts = list(codes)
    return f"({', '.join(parts)},)" if parts else "()"


@dataclasses.dataclass(frozen=True)
class View:
    """An array as a kernel sees it: the position of its first element, and its strides.

    Parameters
    ----------
    dtype : str
        The dtype of the array.
    begin : int
        The position of the first element, in elements from the lowest address.
    outer : tuple of int
        The strides along the axes that lines are counted by; the last is the stride from line to line.
    along : int
        The stride along a line.
    """

    dtype: str
    begin: int
    outer: tuple[int, ...]
    along: int

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers that kernels receive."""
        return self.begin, *self.outer, self.along


def group(name: str, views: Sequence[View], first: int, axes: int) -> str:
    """Return the functions of a group of arrays. Their numbers follow ``first`` other numbers."""
    size = axes + 2
    at = [first + size * index for index in range(len(views))]
    indices = [f"i{axis}" for axis in range(axes)]
    places = (
        " + ".join((f"numbers[{one}]", *(f"numbers[{one + 1 + axis}] * {i}" for axis, i in enumerate(indices))))
        for one in at
    )
    count = range(len(views))
    return "\n".join(
        (
            function(f"place_{name}(numbers, {', '.join(indices)})", (f"return {packed(places)}",)),
            function(f"acrosses_{name}(numbers)", (f"return {packed(f'numbers[{one + axes}]' for one in at)}",)),
            function(f"alongs_{name}(numbers)", (f"return {packed(f'numbers[{one + axes + 1}]' for one in at)}",)),
            function(
                f"moved_{name}(at, steps, i)", (f"return {packed(f'at[{one}] + steps[{one}] * i' for one in count)}",)
            ),
        )
    )


def groups(names: Sequence[str], views: Sequence[Sequence[View]], first: int, axes: int = 3) -> list[str]:
    """Return the functions of groups of arrays. Their numbers follow ``first`` other numbers, group by group."""
    begins = [first + len(numbers_of(views[:at])) for at in range(len(views))]
    return [group(*one, axes) for one in zip(names, views, begins, strict=True)]


def numbers_of(views: Sequence[Sequence[View]]) -> tuple[int, ...]:
    """Return the numbers that kernels receive for groups of arrays."""
    return tuple([number for group in views for view in group for number in view.numbers])


_READ = 0
"""The region of memory (see templates/functions.py) of inputs. No memory that is written overlaps it."""


def _region(component: int) -> int:
    """Return the region of a component of states, in all arrays of states."""
    return 1 + component % 9


def _written(output: int) -> int:
    """Return the region of an output."""
    return 10 + output % 6


def position(index: int, step: int, at: str = "at") -> str:
    """Return the position of an element of an array of a group; a step of 0 or 1 is compiled in."""
    return f"{at}[{index}]" + ("" if step == 0 else " + i" if step == 1 else f" + steps[{index}] * i")


def elements(views: Sequence[View], steps: Sequence[int]) -> list[str]:
    """Return the lines that read an element of each input into x0, x1, ..., the i-th behind a position.

    ``steps`` are the strides of the loop that counts i.
    """
    return [
        f"x{index} = {loaded(one.dtype, f'load_from({_READ}, inputs[{index}], {position(index, step)})')}"
        for index, (one, step) in enumerate(zip(views, steps, strict=True))
    ]


def operator(states: Sequence[str], combined: Trace) -> str:
    """Return the functions on states of these dtypes, with ``combine`` from the trace of an operator."""
    names = [f"{side}_{at} = {side}[{at}]" for side in ("earlier", "later") for at in range(len(states))]
    lines = (*names, *combined.lines, f"return {packed(combined.outputs)}")
    return states_in_memory(states) + "\n" + function("combine(earlier, later)", lines)


def states_in_memory(states: Sequence[str]) -> str:
    """Return the functions of arrays of states."""
    count = range(len(states))
    made = (f"np.empty(count, np.{numpy_type(one)})" for one in states)
    return "\n".join(
        (
            function("scratch(count)", (f"return {packed(made)}",)),
            function(
                "get(states, i)", (f"return {packed(f'load_from({_region(at)}, states[{at}], i)' for at in count)}",)
            ),
            function(
                "put(states, i, state)", [f"store_to({_region(at)}, states[{at}], i, state[{at}])" for at in count]
            ),
        )
    )


def arithmetic(dtype: str) -> tuple[str, ...]:
    """Return the functions on numbers of a dtype: memory for them, zero, and a quotient without an error."""
    number = register_type(dtype)
    return (
        function("numbers_of(count)", (f"return np.empty(count, np.{number})",)),
        function("zero()", (f"return {number}(0)",)),
        function("quotient(a, b)", (f"return {NUMBA.call('divide', dtype, 'a', 'b')}",)),
    )


def stores(dtypes: Sequence[str], codes: Sequence[str], places: Sequence[str]) -> list[str]:
    """Return the lines that write registers to places of the outputs."""
    return [
        f"store_to({_written(index)}, outputs[{index}], {place}, {stored(name, code)})"
        for index, (name, code, place) in enumerate(zip(dtypes, codes, places, strict=True))
    ]


def numpy_type(dtype: str) -> str:
    """Return NumPy's name of the register type of a dtype."""
    return "bool_" if dtype == "bool" else register_type(dtype)


_NUMBER = re.compile(r"\bnumbers\[(\d+)\]")
"""A number of a call. The compiler would read it again behind every store, unless it is constant."""


_EMPTY = re.compile(r"\bnp\.empty\(")
"""An allocation, for which the entry of the kernel has a function of its own."""


_FUNCTION = re.compile(r"^def (\w+).*?(?=^def |\Z)", re.DOTALL | re.MULTILINE)
_WORD = re.compile(r"\w+")


@functools.lru_cache(maxsize=1024)
def _functions(text: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Return the functions of a text by their names, each with the set of its words."""
    return {one[1]: (one[0], frozenset(_WORD.findall(one[0]))) for one in _FUNCTION.finditer(text)}


def _used(texts: Iterable[str], lines: Iterable[str]) -> list[str]:
    """Return the functions in texts that lines name, directly or through other functions, sorted by name.

    Shared texts have more functions than any kernel, and kernels do not differ by unused functions.
    """
    known = {name: function for text in texts for name, function in _functions(text).items()}
    used, left = set(), {word for line in lines for word in _WORD.findall(line)}
    while left:
        name = left.pop()
        if name in known and name not in used:
            used.add(name)
            left |= known[name][1]
    return [known[name][0] for name in sorted(used)]


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel: a function in texts.

    Its parameters are groups of arrays that it reads, groups that it writes, numbers, and the range of its tasks, from
    begin to end. Every array has one axis. Arrays that it reads may be read-only.

    Parameters
    ----------
    name : str
        The name of the function.
    texts : tuple of str
        The functions that the kernel consists of.
    read, written : tuple of tuple of str
        The types in memory of each group of arrays.
    begins : tuple of str
        The first lines of the kernel: they assign captured numbers to their names in the texts.
    """

    name: str
    texts: tuple[str, ...]
    read: tuple[tuple[str, ...], ...]
    written: tuple[tuple[str, ...], ...]
    begins: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """A text that is equal for kernels with equal text: its parts, and the modules that join them."""
        used = _used(self.texts, (self.name, *self.begins))
        return "\0".join((self.name, repr((self.read, self.written)), *self.begins, *used, *map(file, _MADE_OF)))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters of the function; the last is the memory that the kernel allocates."""
        count = sum(map(len, (*self.read, *self.written)))
        return *(f"a{index}" for index in range(count)), "numbers", "begin", "end", "memory"

    @functools.cached_property
    def text(self) -> str:
        """The text of a module with the kernel as the function ``run``."""
        kinds = [f"types.Array({one}, 1, 'C', readonly=True)" for group in self.read for one in group]
        kinds += [f"{one}[::1]" for group in self.written for one in group]
        left = iter(self.parameters)
        given = ", ".join(packed([next(left) for _ in group]) for group in (*self.read, *self.written))
        lines = (*self.begins, f"{self.name}({given}, numbers, begin, end)")
        entry = function(f"run({', '.join(self.parameters)})", lines)
        body = _NUMBER.sub(r"constant(numbers, \1)", inlined((*self.texts, entry), "run"))
        return "\n".join(
            (
                *map(_template, _TEMPLATES),
                f"@kernel(types.void({', '.join(kinds)}, int64[::1], int64, int64))",
                _EMPTY.sub("empty(memory, ", body),
            )
        )


_TEMPLATES = ("entry.py", "functions.py")
_MADE_OF = tuple(f"_cpu/{one}" for one in (*(f"templates/{one}" for one in _TEMPLATES), "text.py", "inline.py"))

"""The work of kernels as data: launches, their arguments and parameters, and the CUDA text made from these.

A kernel is a function template of a .cu file. A `Launch` names it, its template arguments and its parameters; a `Plan`
is launches in order with the arrays and the scratch that they share. The text of the kernel itself, which is
``extern "C" void kernel(...)`` and calls the template, is made in one place: `Plan.text`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import posixpath
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from parprims._operators.languages import Captured, word_name

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

# ---- Parameters -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Number:
    """An integer parameter of launches: a kernel is compiled once for all its values."""

    name: str
    value: int


class Numbers:
    """Collects the integers of a plan, in order, under unique names."""

    def __init__(self) -> None:
        self._found: dict[str, Number] = {}

    def __call__(self, name: str, value: int) -> Number:
        """Return one more integer, of this name, or of this name and a count if the name is taken."""
        unique, count = name, 1
        while unique in self._found:
            count += 1
            unique = f"{name}_{count}"
        self._found[unique] = number = Number(unique, int(value))
        return number

    def all(self) -> tuple[Number, ...]:
        """Return the integers so far."""
        return tuple(self._found.values())


@dataclasses.dataclass(frozen=True)
class Pointer:
    """An address in the memory of an array or of scratch.

    Parameters
    ----------
    memory : str
        The memory of the address: in0, in1, ... (inputs), out0, out1, ... (outputs), or a kind of scratch.
    type : str
        The C++ type of an element; void leaves it open.
    elements, bytes : Number or int, optional
        The distance of the address from the beginning, in elements or in bytes.
    """

    memory: str
    type: str = "void"
    elements: Number | int | None = None
    bytes: Number | int | None = None


@dataclasses.dataclass(frozen=True)
class Struct:
    """Parameters in one structure: a C++ aggregate. Its type can be left out if the function's signature names it."""

    fields: tuple[Parameter, ...]
    type: str = ""

    def __init__(self, *fields: Parameter, type: str = "") -> None:
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "type", type)


Parameter: TypeAlias = "Number | Pointer | Struct | bool | int | None"
"""A parameter of a function. A bool or an int is compiled in, None is a null pointer."""

Argument = bool | int | str
"""An argument of a template. A text is the name of a type or of a constant."""


def expression(one: Any) -> str:
    """Return the C++ expression of a parameter, or of an argument of a template."""
    if isinstance(one, bool):
        return "true" if one else "false"
    if one is None:
        return "nullptr"
    if isinstance(one, Number):
        return one.name
    if isinstance(one, Struct):
        return f"{one.type}{{{', '.join(map(expression, one.fields))}}}"
    if isinstance(one, Pointer):
        text = one.memory
        if one.bytes is not None:
            text = f"((char*){text} + {expression(one.bytes)})"
        if one.type != "void":
            text = f"({one.type}*){text}"
        return text if one.elements is None else f"{text} + {expression(one.elements)}"
    return str(one)


# ---- Launches ---------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Parameters
    ----------
    source : str
        The CUDA text that defines the template.
    template : str
        The name of the function template.
    arguments : tuple
        Its template arguments.
    parameters : tuple
        The parameters it is called with.
    grid, block : int
        The number of blocks, and of threads in each.
    shared_bytes : int
        The dynamic shared memory of a block.
    needs_cache : bool
        Whether loads go through the L1 cache, which gets all on-chip memory that is not needed as shared memory.
        Otherwise a kernel with dynamic shared memory gets as much of it as there is.
    unbound_registers : bool
        Whether a thread may have all the registers it can use. Otherwise the compiler weighs registers against the
        number of blocks that fit on a multiprocessor.
    resident_blocks : int
        The number of blocks that are to fit on a multiprocessor, if the device has the threads; 0 leaves it open.
    own_instructions : bool
        Whether the kernel uses instructions of this architecture alone, which no later one has, as sm_90a does.
    cluster : int
        The number of blocks in a cluster, which run at the same time and can copy to each other. It divides the grid.
    if_any : tuple of int
        The words of zeroed scratch, of 32 bits each, that say whether the launch has work: if all of these are
        zero when the launch starts, it changes no memory. Without such words, the launch always has work.
    only_if : Pointer, optional
        The address of a 32-bit word in memory. If it is zero when the launch starts, the launch ends at once.
    then : tuple of Launch
        Calls of other templates of this source, which every block makes after its own, one after another.
    """

    source: str
    template: str
    arguments: tuple[Argument, ...]
    parameters: tuple[Parameter, ...]
    grid: int
    block: int
    shared_bytes: int = 0
    needs_cache: bool = False
    unbound_registers: bool = False
    resident_blocks: int = 0
    own_instructions: bool = False
    cluster: int = 1
    if_any: tuple[int, ...] = ()
    only_if: Pointer | None = None
    then: tuple[Launch, ...] = ()

    @property
    def name(self) -> str:
        """The template with its arguments, as C++ writes it."""
        return f"{self.template}<{', '.join(map(expression, self.arguments))}>" if self.arguments else self.template

    @property
    def statements(self) -> str:
        """The body of the kernel: the call of the template, and the calls after it."""
        guard = "" if self.only_if is None else f"  if (*({expression(self.only_if)}) == 0) return;\n"
        own = f"{guard}  {self.name}({', '.join(map(expression, self.parameters))});"
        return "\n  __syncthreads();\n".join([own, *[one.statements for one in self.then]])

    def architecture(self, arch: str) -> str:
        """Return the architecture to compile for, given the device's as sm_NN or compute_NN."""
        return arch + "a" * self.own_instructions


_WAIT = """#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // until the launch before has ended and its writes are visible
#endif"""

SCRATCH = ("temporary", "zeroed", "status", "scratch")
"""The kinds of scratch, in the order in which they are passed to kernels."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Launches, one after another, with the arrays, the integers and the scratch that they share.

    Parameters
    ----------
    launches : tuple of Launch
        The launches in order. Each finds the results of earlier launches in memory.
    inputs : int
        The number of inputs.
    outputs : tuple of (shape, dtype)
        The arrays to allocate, dtypes by the standard's names.
    numbers : tuple of Number
        The integers that the launches have as parameters.
    zeroed_bytes, status_bytes, scratch_bytes : int
        The bytes of each kind of scratch. Zeroed scratch is zero, and the last launch leaves it zero. Status scratch is
        zero at first, and later holds what earlier kernels left; a count of launches in its first word tells which
        words are from this launch. Other scratch may hold anything. Launches on one stream share scratch. Launches that
        are captured into a graph have the graph's, where scratch that starts at zero is zeroed in every replay.
    temporary_bytes : int
        The bytes of the call's own memory, ``temporary`` in the kernel, from the allocator of its library.
    captured : tuple of Captured
        The numbers of operators that no text holds. Their words are parameters after the other integers, or in memory.
    """

    launches: tuple[Launch, ...]
    inputs: int
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    numbers: tuple[Number, ...]
    zeroed_bytes: int = 0
    status_bytes: int = 0
    scratch_bytes: int = 0
    temporary_bytes: int = 0
    captured: tuple[Captured, ...] = ()

    @property
    def words(self) -> tuple[Number, ...]:
        """The words of the captured numbers, under the names of the functions that return them in the texts."""
        return tuple(
            [Number(word_name(one.name, at), word) for one in self.captured for at, word in enumerate(one.words)]
        )

    @property
    def without_values(self) -> Plan:
        """The plan without the values of the captured numbers: equal for plans with equal texts and sizes."""
        return dataclasses.replace(self, captured=tuple([dataclasses.replace(one, words=()) for one in self.captured]))

    @property
    def integers(self) -> tuple[int, ...]:
        """The values of the integers, and after them the words of captured numbers."""
        return tuple([number.value for number in (*self.numbers, *self.words)])

    def zeros(self) -> dict[str, int]:
        """Return the bytes of each kind of scratch that starts at zero."""
        return {"zeroed": self.zeroed_bytes, "status": self.status_bytes}

    def unset(self) -> dict[str, int]:
        """Return the bytes of each kind of scratch that may hold anything."""
        return {"temporary": self.temporary_bytes, "scratch": self.scratch_bytes}

    def text(self, at: int = 0, *, static: bool = False) -> str:
        """Return the whole CUDA source of one launch.

        ``static`` compiles the integers in, and orders the pointers as in a call inside a JAX program: inputs, the
        words of captured numbers if there are any, scratch that starts at zero, outputs, other scratch, and again
        scratch that starts at zero. A later launch has outputs and other scratch once more before the outputs, as its
        inputs. Otherwise the integers and the words are parameters, and a later launch waits for the one before it: the
        device may start it before that one has ended.
        """
        launch = self.launches[at]
        ins = [f"const void* in{index}" for index in range(self.inputs)]
        outs = [f"void* out{index}" for index in range(len(self.outputs))]
        head: list[str] = []
        if static:
            head = _words_in_memory(self.words, len(ins))
            ins += ["const void*"] if self.words else []
            zeros = [f"void* {name}" for name, nbytes in self.zeros().items() if nbytes]
            results = [*outs, *(f"void* {name}" for name, nbytes in self.unset().items() if nbytes)]
            given = ["void*" for _ in results] if at else []
            parameters = [*ins, *zeros, *given, *results, *("void*" for _ in zeros)]
            missing = [name for name in SCRATCH if f"void* {name}" not in parameters]
            locals_ = [f"constexpr long long {one.name} = {one.value}LL;" for one in self.numbers]
            locals_ += [f"void* const {name} = nullptr;" for name in missing]
        else:
            scratch = (f"void* {name}" for name in SCRATCH)
            parameters = [*ins, *outs, *scratch, *(f"long long {one.name}" for one in self.numbers)]
            locals_ = [_WAIT] if at else []
            head = [_word(one.name, len(parameters) + place) for place, one in enumerate(self.words)]
            parameters += [f"long long {one.name}" for one in self.words]
        resident = 1 if launch.unbound_registers else launch.resident_blocks
        bounds = f"{launch.block}, {resident}" if resident else launch.block
        cluster = f"__cluster_dims__({launch.cluster}, 1, 1) " if launch.cluster > 1 else ""
        return "\n".join(
            (
                *head,
                launch.source,
                f'extern "C" __global__ void {cluster}__launch_bounds__({bounds}) kernel({", ".join(parameters)}) {{',
                *locals_,
                launch.statements,
                "}\n",
            )
        )


def _word(name: str, at: int) -> str:
    """Return the text of the function that returns a word, the parameter of the kernel at a place among them all.

    Operators are functions of their types alone, which know no variables of the kernel. The function is inlined into
    the kernel, where PTX knows the parameter by this name, and a number costs what a constant costs. A global variable
    would have to be written before the launch, and launches on other streams may read it then.
    """
    read = f'asm("ld.param.b64 %0, [kernel_param_{at}];" : "=l"(word));'
    return f"__device__ __forceinline__ long long {name}() {{ long long word; {read} return word; }}"


def _words_in_memory(words: tuple[Number, ...], at: int) -> list[str]:
    """Return the texts of the functions that return words, given the place of their address among the parameters."""
    if not words:
        return []
    read = f'asm("ld.param.b64 %0, [kernel_param_{at}];" : "=l"(address));'
    address = f"long long address; {read} return (const long long*)address;"
    return [
        f"__device__ __forceinline__ const long long* captured_words() {{ {address} }}",
        *(
            f"__device__ __forceinline__ long long {one.name}() {{ return __ldg(captured_words() + {place}); }}"
            for place, one in enumerate(words)
        ),
    ]


_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)
_HEADERS = "_cuda/device"


def included(file: str) -> tuple[str, ...]:
    """Return the package files that a package file includes: those beside it, and others in `_HEADERS`."""
    folder = importlib.resources.files("parprims")
    names = _INCLUDE.findall(folder.joinpath(file).read_text(encoding="utf-8"))
    beside = [posixpath.normpath(posixpath.join(posixpath.dirname(file), name)) for name in names]
    return tuple(
        path if folder.joinpath(path).is_file() else posixpath.join(_HEADERS, name)
        for path, name in zip(beside, names, strict=True)
    )


@functools.cache
def device_source(*files: str) -> str:
    """Return the CUDA text of package files, with each file that they include, directly or not, in it once.

    NVRTC sees one text, so that a cached result cannot be stale.
    """
    folder, seen = importlib.resources.files("parprims"), set()

    def whole(file: str) -> str:
        seen.add(file)
        headers = iter(included(file))

        def text_of(_: re.Match[str]) -> str:
            header = next(headers)
            return "" if header in seen else f"{whole(header)}\n"

        return _INCLUDE.sub(text_of, folder.joinpath(file).read_text(encoding="utf-8"))

    return "\n".join([whole(file) for file in files])


def with_include_lines(text: str) -> str:
    """Return a text with the headers that `device_source` put into it as ``#include`` lines again.

    A text whose headers were changed stays as it is.
    """
    for expanded, lines in _heads():
        text = text.replace(expanded, lines)
    return text


@functools.cache
def _heads() -> tuple[tuple[str, str], ...]:
    """Return the beginning of every ``.cu`` file, up to its last header: with the texts of headers, and as written.

    The longest comes first: it may have others in it.
    """
    folder = importlib.resources.files("parprims")
    heads = []
    for file in _kernel_files(folder, ""):
        written = folder.joinpath(file).read_text(encoding="utf-8")
        ends = [include.end() for include in _INCLUDE.finditer(written)]
        if ends:
            heads.append((device_source(file).removesuffix(written[ends[-1] :]), written[: ends[-1]]))
    return tuple(sorted(heads, key=lambda one: -len(one[0])))


def _kernel_files(folder: Traversable, path: str) -> Iterator[str]:
    """Yield the paths of the ``.cu`` files below a folder of the package."""
    for one in folder.iterdir():
        inside = posixpath.join(path, one.name)
        if one.is_dir():
            yield from _kernel_files(one, inside)
        elif one.name.endswith(".cu"):
            yield inside


def power_of_two(n: int, *, most: int = 1 << 62, up: bool = False) -> int:
    """Return the largest power of two that is at most n (or, up, the smallest at least n), from 1 to most."""
    if n <= 1:
        return 1
    return min(most, 1 << ((n - 1).bit_length() if up else n.bit_length() - 1))

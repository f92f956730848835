"""The parameters of the kernels of tridiagonal systems, the division of their work, and their memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from parprims import _cuda
from parprims._core.layout import Axis, Layout, access, before_and_behind, broadcast_strides, row_major
from parprims._cuda import Number, Numbers, Pointer, Struct, device_source, power_of_two
from parprims._operators.languages import C_TYPES

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernels divide their work on devices of one compute capability.

    Keys of mappings are the bytes of a number: 4, 8 and 16. The bits of a solution depend on the rows of a thread and
    of a block. So they depend on the fields that say so, and on nothing that differs between the devices of an entry.
    """

    shared_bytes: int
    """The most shared memory of a block. Bits depend on it: longer systems are solved in another order."""

    # Stable solver.
    rows: Mapping[int, int]
    """Rows of a thread, half as many where the stable solver is a fallback for a long system; bits depend on them."""
    threads: int
    """The most threads of a block of short systems with adjacent rows in memory."""
    interleaved_systems: int
    """The most systems of a block if systems are adjacent in memory."""
    interleaved_words: int
    """The most threads of such a block, for numbers of 4 bytes. Larger numbers have fewer threads in proportion."""
    resident_blocks: int
    """The number of blocks that are to fit on a multiprocessor, for short systems of float32."""
    blocks: int
    """The most blocks of 128 threads that take systems in turn, if an earlier launch may have left none."""

    # Elimination in order.
    rows_in_order: Mapping[int, int]
    """Rows of a thread, twice as many if a system would have too many threads; bits depend on them."""
    threads_in_order: Mapping[int, int]
    """The most threads of a system; bits depend on them."""
    interleaved_threads_in_order: int
    """Threads of a block, approximately, if systems are adjacent in memory."""

    # Elimination with row exchanges, in registers.
    rows_exchanging: Mapping[int, int]
    """Rows of a thread, twice as many if a system would have too many threads; bits depend on them."""
    threads_exchanging: Mapping[int, int]
    """The most threads of a system; bits depend on them."""
    block_exchanging: int
    """Threads of a block, approximately."""
    interleaved_block_exchanging: int
    """Threads of a block, approximately, if systems are adjacent in memory, for numbers of 4 bytes."""
    waiting_threads: Mapping[int, int]
    """The fewest threads of a system with rows that wait in shared memory. If systems are adjacent in memory, rows
    always wait."""
    resident_threads_exchanging: Mapping[int, int]
    """If rows wait, the fewest threads that must fit on a multiprocessor, half as many if threads have twice as many
    rows; 0 sets no minimum. If systems are adjacent in memory, this is for float32 alone."""
    resident_blocks_exchanging: int
    """If rows do not wait, the number of blocks of float32 that are to fit on a multiprocessor, if a system has at most
    16 threads."""

    # Long systems.
    reducing_threads: int
    """Threads of a block that reduces systems in registers; bits depend on them."""
    reduced_rows: Mapping[int, int]
    """Rows of a thread for reduced systems; bits depend on them."""
    reduced_threads: int
    """Threads of a block for reduced systems; bits depend on them."""
    chunk_threads: int
    """Threads of a block that has a chunk of a system in the stable solver, twice as many where it is a fallback; bits
    depend on them."""
    few_unknowns: int
    """If a system has no more unknowns than this, its chunks are a quarter as long, and fewer attempts are made before
    the stable solver; bits depend on it."""
    window_threads: int
    """Threads of a block that refines windows in registers."""
    long_blocks: int
    """The most blocks that take parts in turn."""
    few_blocks: int
    """The most blocks of launches that may have nothing to do."""

    scaled = ("blocks", "long_blocks", "few_blocks")
    limited = ("shared_bytes",)


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A block of short systems: rows of a thread, threads of a system, systems of the block, its shared memory."""

    rows: int
    threads: int
    systems: int
    shared_bytes: int

    @property
    def size(self) -> int:
        """The threads of the block."""
        return self.threads * self.systems


def stable_block(tuning: Tuning, nbytes: int, n: int, interleaved: bool) -> Block:
    """Return the block of the stable solver, for systems of n numbers of ``nbytes`` bytes."""
    rows = tuning.rows[nbytes]
    threads = power_of_two(-(-n // rows), up=True)
    # A block has whole warps. Adjacent systems of a block take at least 32 bytes, the unit of memory access, if they
    # fit.
    if interleaved:
        systems = min(tuning.interleaved_systems, 4 * tuning.interleaved_words // nbytes // threads)
    else:
        systems = tuning.threads // threads
    systems = max(32 // threads, systems, 1)
    while True:
        places = 4 * -(-n // rows) * (rows if interleaved else rows + 1) + SLOT_NUMBERS * threads
        shared_bytes = systems * (places * nbytes + BLOCK_STATE_BYTES) + 2 * SLOT_NUMBERS * nbytes
        if shared_bytes <= tuning.shared_bytes or threads * systems <= 32 or systems == 1:
            return Block(rows, threads, systems, shared_bytes)
        systems //= 2


def _threads_of_rows(rows: int, n: int, nbytes: int, most: int) -> tuple[int, int]:
    """Return the rows of a thread, twice as many if a warp or a block then suffices, and the threads of a system."""
    threads = power_of_two(-(-n // rows), up=True)
    return (2 * rows, threads // 2) if (nbytes == 4 and threads == 64) or threads > most else (rows, threads)


def block_in_order(tuning: Tuning, nbytes: int, n: int, interleaved: bool) -> Block:
    """Return the block for elimination without row exchanges."""
    rows, threads = _threads_of_rows(tuning.rows_in_order[nbytes], n, nbytes, tuning.threads_in_order[nbytes])
    if interleaved:
        # Adjacent systems of a block take at least 32 bytes, the unit of memory access, if they fit.
        systems = max(tuning.interleaved_threads_in_order // threads, 32 // nbytes)
        systems = min(tuning.interleaved_systems, systems, 4096 // nbytes // threads)
    else:
        systems = tuning.threads // threads
    systems = max(32 // threads, systems, 1)
    return Block(rows, threads, systems, INTERFACE_NUMBERS * nbytes * (threads + 1) * systems * interleaved)


def exchanging_block(tuning: Tuning, nbytes: int, n: int, interleaved: bool) -> Block:
    """Return the block for elimination with row exchanges in registers."""
    rows, threads = _threads_of_rows(tuning.rows_exchanging[nbytes], n, nbytes, tuning.threads_exchanging[nbytes])
    size = 4 * tuning.interleaved_block_exchanging // nbytes if interleaved else tuning.block_exchanging
    systems = max(32 // threads, min(tuning.interleaved_systems, size // threads), 1)
    # Each thread with rows that wait has a place for them, followed by a free vector of 16 bytes.
    places = -(-n // rows) * (4 * rows * nbytes + 16) * rows_wait(tuning, nbytes, threads, interleaved)
    transposed = 2 * CHAIN_NUMBERS * nbytes * (threads + 1) * interleaved
    while systems > 1 and systems * (places + transposed) > tuning.shared_bytes:
        systems //= 2
    return Block(rows, threads, systems, systems * (places + transposed * (systems > 1)))


def rows_wait(tuning: Tuning, nbytes: int, threads: int, interleaved: bool) -> bool:
    """Return whether rows wait in shared memory, because the registers of ``threads`` threads have no room."""
    return interleaved or threads >= tuning.waiting_threads[nbytes]


def fits_block(tuning: Tuning, nbytes: int, n: int) -> bool:
    """Return whether a block can hold a system."""
    block = stable_block(tuning, nbytes, max(n, 1), interleaved=False)
    return block.threads <= 1024 and block.shared_bytes <= tuning.shared_bytes


# ---- The CUDA text, and the sizes of its structures ---------------------------------------------------------------

SLOT_NUMBERS = 13
SEGMENT_NUMBERS = 10
INTERFACE_NUMBERS = 7
CHAIN_NUMBERS = 4
BLOCK_STATE_BYTES = 32
SYSTEM_STATE_BYTES = 48
PHASE_COUNTER_BYTES = 144

_STABLE = {
    "SLOT_NUMBERS": SLOT_NUMBERS,
    "sizeof(Segment<float>)": 4 * SEGMENT_NUMBERS,
    "sizeof(BlockState)": BLOCK_STATE_BYTES,
}
_STATES = {"sizeof(SystemState)": SYSTEM_STATE_BYTES, "sizeof(PhaseCounters)": PHASE_COUNTER_BYTES}
_EXCHANGING = {"sizeof(ChainEquation<float>)": 4 * CHAIN_NUMBERS, "sizeof(Boundary<float>)": 4 * CHAIN_NUMBERS}
_SOLVERS = {
    "in order": ("in_order.cu", {"sizeof(InterfaceRow<float>)": 4 * INTERFACE_NUMBERS, **_STATES}),
    "exchanging": ("exchanging.cu", _EXCHANGING),
    "exchanging long": ("exchanging_long.cu", {**_EXCHANGING, **_STATES}),
    "stable": ("stable.cu", _STABLE),
    "stable long": ("stable_long.cu", {**_STABLE, **_STATES}),
}


def source(solver: str) -> str:
    """Return the CUDA text of a solver, with assertions of the sizes that Python assumes."""
    file, sizes = _SOLVERS[solver]
    text = device_source(f"_primitives/tridiagonal/solvers/{file}")
    return "\n".join((text, *(f"static_assert({expression} == {size});" for expression, size in sizes.items())))


# ---- A batch ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Problem:
    """The specialisation of a plan.

    Parameters
    ----------
    shape : tuple of int
        The shape of the solution, without ``columns``.
    axis : int
        The axis of the unknowns, counted from the end.
    periodic, pivot, dtype
        The options and the dtype of the systems.
    columns : int
        The number of right-hand sides of each system, along an axis before those axes of ``shape`` that the
        coefficients do not have; 0 if there is no such axis.
    shapes, layouts : tuple
        The shapes and layouts of lower, diag, upper and rhs.
    """

    shape: tuple[int, ...]
    axis: int
    periodic: bool
    pivot: str
    dtype: str
    columns: int
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout, ...]

    @property
    def whole(self) -> tuple[int, ...]:
        """The shape of the solution."""
        return (self.columns, *self.shape) if self.columns else self.shape

    @property
    def n(self) -> int:
        """The unknowns of a system."""
        return self.shape[self.axis]

    @property
    def systems(self) -> int:
        """The number of systems, counted for each right-hand side."""
        return math.prod(self.whole) // self.n

    @property
    def type(self) -> str:
        """The C++ type of a number."""
        return C_TYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """The bytes of a number."""
        return np.dtype(self.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Batch:
    """The parameters of a batch for the kernels.

    Parameters
    ----------
    parameter : Struct
        A SystemBatch.
    access : tuple of str
        How the rows of lower, diag, upper, rhs and the solution are accessed, by the names of `Access`.
    interleaved : bool
        Whether systems, and not the rows of one, are adjacent in memory.
    numbers : Numbers
        The integers of the plan so far.
    systems : Number
        The number of systems among them.
    """

    parameter: Struct
    access: tuple[str, ...]
    interleaved: bool
    numbers: Numbers
    systems: Number


def make_batch(problem: Problem) -> Batch | None:
    """Return the batch for the kernels, or None if its arrays need more than three axes besides the unknowns'."""
    shape, nbytes = problem.whole, problem.nbytes
    strides = [
        broadcast_strides(steps, array_shape, len(shape))
        for array_shape, (steps, _) in zip(problem.shapes, problem.layouts, strict=True)
    ]
    strides.append(row_major(shape))
    before, behind = before_and_behind(shape, problem.axis % len(shape), strides)
    axes: list[Axis] = before + behind
    if len(axes) > 3:
        return None
    no_axis: Axis = (1, (0,) * 5)
    axes = [no_axis] * (3 - len(axes)) + axes
    numbers, arrays, kinds = Numbers(), [], []
    addresses = (*(address for _, address in problem.layouts), 0)
    for index, (name, memory) in enumerate(zip(_ARRAYS, ("in0", "in1", "in2", "in3", "out0"), strict=True)):
        steps, along = [step[index] for _, step in axes], strides[index][problem.axis]
        array_steps = [
            numbers(f"{name}_{axis}", step) for axis, step in zip(("high", "middle", "low"), steps, strict=True)
        ]
        pointer = Pointer(memory, problem.type if name == "out" else f"const {problem.type}")
        arrays.append(Struct(pointer, *array_steps, numbers(f"{name}_along", along)))
        reached = (*(step for (length, _), step in zip(axes, steps, strict=True) if length > 1), problem.n)
        kinds.append(access(along, addresses[index], reached, vector=16 // nbytes, itemsize=nbytes, backward=False))
    interleaved = axes[2][1][3] == 1 and strides[3][problem.axis] != 1
    systems = numbers("systems", problem.systems)
    lengths = systems, numbers("middles", axes[1][0]), numbers("lows", axes[2][0]), numbers("n", problem.n)
    parameter = Struct(*arrays, *lengths, type=f"SystemBatch<{problem.type}>")
    return Batch(parameter=parameter, access=tuple(kinds), interleaved=interleaved, numbers=numbers, systems=systems)


_ARRAYS = ("lower", "diag", "upper", "rhs", "out")


class Workspace:
    """The temporary memory of a plan, allocated piece by piece."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self.nbytes = 0

    def place(self, name: str, nbytes: int, type: str) -> Pointer:
        """Return a piece of ``nbytes`` bytes."""
        pointer = Pointer("temporary", type, bytes=self._numbers(name, self.nbytes))
        self.nbytes += -(-nbytes // 16) * 16
        return pointer

    def number(self, name: str, value: int) -> Number:
        """Return one more integer of the plan."""
        return self._numbers(name, value)

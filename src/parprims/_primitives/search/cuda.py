"""The CUDA kernels of searches in sorted arrays: the division of their work, and the launches of a call."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, as_result, cast, dtype_name, mode
from parprims._cuda import Launch, Numbers, Plan, Pointer
from parprims._dispatch.derivative_rules import asked_for, constant
from parprims._dispatch.dispatch import directly
from parprims._operators.languages import C_TYPES
from parprims._primitives.search.array import array
from parprims._primitives.search.call import Search
from parprims._primitives.sort.call import ascending_integers, index_dtype, moved, widened
from parprims._primitives.sort.cuda import Specialisation

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The sizes that the kernels use on devices of one compute capability. Results do not depend on them."""

    threads: int
    """The threads of a block."""
    each: tuple[int, int]
    """The keys that a thread searches for at once, if they have at most 4 bytes and if they have 8."""
    shared_bytes: int
    """The most shared memory of a block."""
    blocks: int
    """The most blocks that search by a tree."""
    resident: int
    """The blocks that are to fit on a multiprocessor."""
    few: int
    """A tree is built for at least n / ``few`` searches among n sorted keys."""
    alone: int
    """The most searches without a tree if shared memory does not hold the sorted keys."""
    alone_keys: int
    """The most sorted keys without a tree if shared memory does not hold them."""
    alone_threads: int
    """The threads of a block without a tree."""

    scaled = ("blocks", "alone")
    limited = ("shared_bytes",)


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""

_FAN_BITS = 3
"""FAN_BITS in search_sorted.cu."""


def _shift(level: int, key_bytes: int) -> int:
    """Return shift_of in search_sorted.cu."""
    return (4 if key_bytes <= 4 else 3) + _FAN_BITS * (level - 1) if level else 0


# ---- Plans ------------------------------------------------------------------------------------------------------


def plan(dtype: str, index: str, n: int, shape: tuple[int, ...], *, right: bool, vector: bool, tuning: Tuning) -> Plan:
    """Return the launches that search among n sorted keys for the elements of an array of a shape.

    ``vector`` says whether the sorted keys begin at a multiple of 16 bytes.
    """
    spec, numbers, m = (
        Specialisation(dtype, descending=False, keyed=True, values=(), index=None),
        Numbers(),
        math.prod(shape),
    )
    source = spec.source("_primitives/search/search_sorted.cu")
    inputs = Pointer("in0", f"const {spec.word}"), Pointer("in1", f"const {spec.word}")
    out, sizes = Pointer("out0", C_TYPES[index]), (numbers("n", n), numbers("m", m))
    outputs = ((shape, index),)
    nbytes, word = (4, "unsigned") if spec.key_bytes <= 4 else (8, "unsigned long long")
    held = tuning.shared_bytes // nbytes
    if m * tuning.few < n or (n > held and (m <= tuning.alone or n <= tuning.alone_keys)):
        threads = tuning.alone_threads
        launch = Launch(
            source,
            "searches::search_directly",
            (threads, right, "Order", C_TYPES[index]),
            (*inputs, out, *sizes),
            grid=-(-m // threads),
            block=threads,
        )
        return Plan((launch,), 2, outputs, numbers.all())
    threads, levels = tuning.threads, 0
    while n >> _shift(levels, spec.key_bytes) > held:
        levels += 1
    nodes, depth = Pointer("scratch", word), numbers("levels", levels)
    taken = sum(-(-(n >> _shift(level, spec.key_bytes)) // 8) * 8 for level in range(1, levels + 1))
    sample = Launch(
        source,
        "searches::sample_keys",
        (threads, "Order"),
        (inputs[0], nodes, sizes[0], depth),
        grid=-(-taken // threads),
        block=threads,
    )
    each = tuning.each[nbytes == 8]
    search = Launch(
        source,
        "searches::search_tree",
        (threads, each, right, vector, "Order", C_TYPES[index]),
        (*inputs, out, nodes if levels else None, *sizes, depth),
        grid=min(tuning.blocks, -(-m // (threads * each))),
        block=threads,
        shared_bytes=tuning.shared_bytes if levels else -(-n * nbytes // 16) * 16,
        resident_blocks=tuning.resident,
    )
    launches = (sample, search) if levels else (search,)
    return Plan(launches, 2, outputs, numbers.all(), scratch_bytes=nbytes * taken)


# ---- Calls ------------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, c: Search) -> str | None:
    """Return the sentence why the kernel cannot serve a call, or None."""
    return _cuda.refusal(xp, tuple([_fixed(x) for x in c.arrays]))


def _fixed(x: Array) -> Array:
    """Return x without a derivative: indices have none."""
    return constant(x) if asked_for(x) else x


def prepare(xp: Namespace, c: Search) -> Callable[..., Array]:
    """Return a function that searches by the kernels."""
    if c.is_empty:
        return directly(array)(xp, c)
    dtype, right = c.dtype, c.right
    side = "right" if right else "left"

    def otherwise(x1: Array, x2: Array) -> Array:
        """Search in a program of JAX without a CUDA device."""
        sorted_keys, wanted = (ascending_integers(xp, x) for x in (x1, x2))
        return cast(xp, as_result(xp.searchsorted(sorted_keys, wanted, side=side)), index_dtype(xp))

    def laid_out(*arrays: Array) -> tuple[Array, Array]:
        x1, x2, *sorter = (_fixed(x) for x in arrays)
        if sorter:
            x1 = moved(xp, x1, lambda array: xp.take(array, cast(xp, sorter[0], index_dtype(xp)), axis=0))
        x1, x2 = (_cuda.plain(xp, widened(xp, x, dtype)) for x in (x1, x2))
        return _cuda.contiguous(xp, x1), _cuda.contiguous(xp, x2) if x2.ndim else x2

    (x1, x2), arranged = _cuda.arranged(laid_out, c.arrays)
    return arranged(_cuda.only(_runner(xp, right, otherwise, (x1, x2))))


def _runner(
    xp: Namespace, right: bool, otherwise: Callable[[Array, Array], Array], arrays: tuple[Array, Array]
) -> _cuda.Run:
    """Return a function that launches the kernels on contiguous arrays of one dtype."""
    x1, x2 = arrays
    dtype, index, n, shape = dtype_name(x1.dtype), dtype_name(index_dtype(xp)), x1.shape[0], tuple(x2.shape)
    vector = _cuda.layout(xp, x1)[1] % 16 == 0

    def computed(x1: Array, x2: Array) -> tuple[Array, ...]:
        return (otherwise(x1, x2),)

    def batched(x1: Array, x2: Array) -> tuple[Array, ...]:
        if x1.shape[0] > 1:
            return _cuda.row_by_row(computed)(x1, x2)
        return _runner(xp, right, otherwise, (x1[0], x2))(x1[0], x2)

    return _cuda.ready(
        xp,
        x1,
        ("searchsorted", mode(xp), dtype, index, n, shape, right, vector),
        lambda: plan(dtype, index, n, shape, right=right, vector=vector, tuning=_cuda.tuned_for(TUNING, xp, x1)),
        in_program=lambda: (computed, batched),
    )


# ---- Kernels to compile without a GPU ---------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kind of search."""
    make = functools.partial(plan, tuning=TUNING[90])
    every = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    for dtype in (*every, "float16", "bfloat16", "float32", "float64"):
        yield f"search {dtype}", make(dtype, "int64", 1 << 28, (1 << 28,), right=False, vector=True)
        yield f"search {dtype} few", make(dtype, "int64", 1 << 28, (100,), right=False, vector=True)
    for dtype in ("uint8", "float32", "int64"):
        for index in ("int32", "int64"):
            for right in (False, True):
                for vector in (False, True):
                    yield f"search {dtype}", make(dtype, index, 1 << 28, (1 << 28,), right=right, vector=vector)
                yield f"search {dtype} few", make(dtype, index, 1 << 28, (100,), right=right, vector=True)

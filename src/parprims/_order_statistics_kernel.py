"""The CUDA kernel of order statistics: the division of its work, and the launch of a call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from parprims import _cuda
from parprims._arrays import Array, Namespace, dtype_name, mode
from parprims._cuda import Launch, Numbers, Plan, Pointer
from parprims._sort_kernel import Specialisation
from parprims._sorting import index_dtype

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The sizes that the kernel uses on devices of one compute capability. Results do not depend on them.

    Parameters
    ----------
    least : int
        Shorter rows are sorted whole.
    most : int
        The most elements that are wanted of a row; for more, rows are sorted whole.
    short : tuple of int
        For rows of at most as many elements as the first, of which at most as many are wanted as there are threads: the
        threads of a block, the elements of each in a batch, the candidates there is room for, and the blocks on a
        multiprocessor.
    tiles : tuple of (bytes, threads, items, capacity, resident)
        For other rows, by the bytes of a key, the same.
    blocks : int
        Rows are cut into parts while there are fewer blocks than this.
    part : int
        The fewest elements of a part.
    """

    least: int
    most: int
    short: tuple[int, int, int, int, int]
    tiles: tuple[tuple[int, int, int, int, int], ...]
    blocks: int
    part: int

    scaled = ("blocks",)


TUNING = {
    90: Tuning(
        record="",
        multiprocessors=132,
        least=256,
        most=1024,
        short=(8192, 128, 8, 1024, 5),
        tiles=((4, 512, 16, 4096, 2), (8, 512, 8, 2048, 2)),
        blocks=2 * 132,
        part=8192,
    ),
}
"""By compute capability; `_cuda.tuned` tells what other devices have."""

_LONGEST = 1 << 31
"""The most elements of a part, which numbers of 32 bits count."""

# ---- Plans ------------------------------------------------------------------------------------------------------

_INDICES = {"int32": "int", "int64": "long long"}


def serves(n: int, k: int, tuning: Tuning | None = None) -> bool:
    """Return whether the kernel finds k elements of rows of length n, which else are sorted."""
    sizes = tuning or TUNING[90]
    return n >= sizes.least and 0 < k <= min(n, sizes.most)


def plan(
    dtype: str, index: str, shape: tuple[int, ...], k: int, tuning: Tuning | None = None, *, descending: bool = True
) -> Plan:
    """Return the launch that finds k elements along the last axis of a contiguous array, and their positions."""
    sizes, numbers = tuning or TUNING[90], Numbers()
    spec = Specialisation(dtype, descending, True, (), index)
    n, rows = shape[-1], math.prod(shape[:-1])
    longest, *tile = sizes.short
    if n > longest or k > tile[0]:
        tile = list(next(one[1:] for one in sizes.tiles if spec.key_bytes <= one[0]))
    threads, items, capacity, resident = tile
    parts = max(1, min(sizes.blocks // rows, n // max(sizes.part, 4 * k)), -(-n // _LONGEST))
    results = (*shape[:-1], k)
    launch = Launch(
        source=spec.source("_ticket.cuh", "_top.cu"),
        template="top::find_top",
        arguments=(threads, items, capacity, "Order", _INDICES[index]),
        parameters=(
            Pointer("in0", f"const {spec.word}"),
            Pointer("out0", spec.word),
            Pointer("out1", _INDICES[index]),
            Pointer("scratch", "unsigned") if parts > 1 else None,
            Pointer("zeroed", "unsigned") if parts > 1 else None,
            numbers("n", n),
            numbers("k", k),
            numbers("parts", parts),
        ),
        grid=rows * parts,
        block=threads,
        shared_bytes=capacity * (8 if spec.key_bytes <= 4 else 16),
        resident_blocks=resident,
    )
    return Plan(
        (launch,),
        1,
        ((results, dtype), (results, index)),
        numbers.all(),
        zeroed_bytes=4 * rows if parts > 1 else 0,
        scratch_bytes=16 * rows * parts * k if parts > 1 else 0,
    )


# ---- Calls ------------------------------------------------------------------------------------------------------

Run = Callable[[Array], tuple[Array, Array]]


def prepare(xp: Namespace, x: Array, k: int, descending: bool, otherwise: Run) -> Run:
    """Return a function of contiguous arrays like x that finds k elements along the last axis, and their positions.

    ``otherwise`` is what a JAX program computes away from CUDA devices.
    """
    dtype, index, shape = dtype_name(x.dtype), dtype_name(index_dtype(xp)), tuple(x.shape)

    def made() -> Plan:
        return plan(dtype, index, shape, k, _cuda.tuned_for(TUNING, xp, x), descending=descending)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        def batched(*given: Array) -> tuple[Array, ...]:
            import jax

            found: tuple[Array, ...] = jax.vmap(otherwise)(*given)
            return found

        return otherwise, batched

    key = ("top_k", mode(xp), dtype, index, shape, k, descending)
    return _cuda.ready(xp, x, key, made, in_program)


# ---- What is compiled without a GPU -----------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kind of kernel."""
    every = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    for dtype in (*every, "float16", "bfloat16", "float32", "float64"):
        yield f"top {dtype}", plan(dtype, "int64", (1 << 28,), 100)
        if dtype in ("uint8", "int32", "float16", "float32", "float64"):
            for descending in (True, False):
                yield f"top {dtype} short", plan(dtype, "int64", (500, 1000), 10, descending=descending)
                yield f"top {dtype}", plan(dtype, "int32", (128, 1 << 16), 64, descending=descending)

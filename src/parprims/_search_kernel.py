"""Merges of two sorted arrays by a CUDA kernel: the division of work, and the launch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from parprims import _cuda
from parprims._arrays import Array, Namespace, cast, dtype_bits, dtype_name, mode
from parprims._sort_kernel import Specialisation
from parprims._trace import C_TYPES

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernel divides its work on devices of one compute capability. No bits depend on it."""

    threads: int
    """Threads of a block."""
    each: tuple[tuple[int, int], ...]
    """Elements that a thread finds, an odd number, by the most bytes of a key."""
    few: int
    """The same where there are less than two tiles of that size for each multiprocessor."""


TUNING = {90: Tuning(record="", multiprocessors=132, threads=256, each=((2, 23), (4, 15), (8, 7)), few=5)}
"""By compute capability; `_cuda.tuned` tells what other devices have."""

_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "uint4"}

# ---- Plan -------------------------------------------------------------------------------------------------------


def make_plan(
    key: str, value: str | None, descending: bool, rows: tuple[int, ...], n1: int, n2: int, tuning: Tuning
) -> _cuda.Plan:
    """Return the launch that merges the last axis of contiguous arrays, keys and perhaps values of each."""
    spec = Specialisation(key, descending, True, (), None)
    lines, n = math.prod(rows), n1 + n2
    each = next(number for most, number in tuning.each if spec.key_bytes <= most)
    if lines * n < 2 * tuning.multiprocessors * tuning.threads * each:
        each = tuning.few
    tiles = -(-n // (tuning.threads * each))
    word = "unsigned char" if value is None else _WORDS[dtype_bits(value) // 8]
    stride = 1 if value is None else 2

    def keys_at(at: int) -> _cuda.Pointer:
        return _cuda.Pointer(f"in{at * stride}", f"const {spec.word}")

    def values_at(at: int) -> _cuda.Pointer:
        return _cuda.Pointer(f"in{at * stride + 1}", f"const {word}")

    none = _cuda.Pointer("scratch", f"const {word}"), _cuda.Pointer("scratch", word)
    moved = (none[0], *none) if value is None else (values_at(0), values_at(1), _cuda.Pointer("out1", word))
    numbers = _cuda.Numbers()
    launch = _cuda.Launch(
        spec.source("_block_reduce.cuh", "_block.cuh", "_search.cuh", "_merge.cu"),
        "merge_tiles",
        (tuning.threads, each, value is not None, "Order"),
        (
            keys_at(0),
            keys_at(1),
            _cuda.Pointer("out0", spec.word),
            *moved,
            numbers("n1", n1),
            numbers("n2", n2),
            numbers("tiles", tiles),
        ),
        lines * tiles,
        tuning.threads,
    )
    outputs = tuple([((*rows, n), name) for name in (key, value) if name is not None])
    return _cuda.Plan((launch,), 2 * stride, outputs, numbers.all())


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, c: Any) -> str | None:
    """Return the sentence why the kernel cannot serve the call, or None."""
    for dtype in c.dtypes:
        if dtype_name(dtype) not in C_TYPES:
            return f"the kernel has no dtype {dtype_name(dtype)}"
    return _cuda.refusal(xp, c.arrays)


def prepare(xp: Namespace, c: Any, array: Callable[[Namespace, Any], tuple[Array, ...]]) -> Callable[..., Any]:
    """Return a function of the arrays that merges by one launch. ``array`` computes the same by operations."""
    axis, ndim, stride = c.axis, c.arrays[0].ndim, len(c.dtypes)
    n1, n2 = c.arrays[0].shape[axis], c.arrays[stride].shape[axis]
    rows = tuple([length for at, length in enumerate(c.arrays[0].shape) if at != axis])
    last = (*(at for at in range(ndim) if at != axis), axis)
    back = (*range(axis), ndim - 1, *range(axis, ndim - 1))
    results = tuple([((*rows, n1 + n2), dtype) for dtype in c.dtypes])
    bare = dataclasses.replace(c.on(*(None,) * len(c.arrays)), axis=ndim - 1, results=results, key=None)
    names = tuple(map(dtype_name, c.dtypes))

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            return array(xp, bare.on(*arrays))

        def batched(*arrays: Array) -> tuple[Array, ...]:
            size = max(x.shape[0] for x in arrays)
            whole = tuple([xp.broadcast_to(x, (size, *x.shape[1:])) for x in arrays])
            more = tuple([((size, *shape), dtype) for shape, dtype in results])
            merged = dataclasses.replace(bare, axis=ndim, results=more).on(*whole)
            found: tuple[Array, ...] = prepare(xp, merged, array)(*whole)
            return found

        return otherwise, batched

    def plan() -> _cuda.Plan:
        key, value = (*names, None)[:2]
        tuning = _cuda.tuned_for(TUNING, xp, c.arrays[0])
        assert key is not None
        return make_plan(key, value, c.descending, rows, n1, n2, tuning)

    key = "merge", mode(xp), names, c.descending, rows, n1, n2
    run = _cuda.ready(xp, c.arrays[0], key, plan, in_program)
    dtypes = c.dtypes

    def merged(*arrays: Array) -> tuple[Array, ...]:
        given = [cast(xp, x, dtypes[at % stride]) for at, x in enumerate(arrays)]
        given = [_cuda.plain(xp, x if axis == ndim - 1 else xp.permute_dims(x, last)) for x in given]
        found = run(*(_cuda.contiguous(xp, x) for x in given))
        return found if axis == ndim - 1 else tuple([_cuda.contiguous(xp, xp.permute_dims(x, back)) for x in found])

    return merged


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of every kind of kernel that calls can ask for."""
    orders = [name for name in C_TYPES if not name.startswith("complex") and name != "bool"]
    for n in (1000, 1 << 26):
        for key in orders:
            for value in (None, "float32"):
                yield f"merge {key}", make_plan(key, value, False, (), n, n + 1, TUNING[90])
        yield "merge float32 descending", make_plan("float32", None, True, (), n, n + 1, TUNING[90])
        for value in ("int8", "float16", "float64", "complex128"):
            yield "merge float32", make_plan("float32", value, False, (), n, n + 1, TUNING[90])

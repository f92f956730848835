"""Reductions by ids by atomic operations of GPUs, for results that do not depend on the order of elements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, cast, dtype_bits, dtype_kind, dtype_name, mode
from parprims._operators.languages import C_TYPES
from parprims._operators.operator import BUILT_IN
from parprims._primitives.segments.call import Segmented
from parprims._primitives.segments.cuda import on_cast

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernels divide their work on devices of one compute capability. Bits of results do not depend on it."""

    threads: int
    """Threads of a block."""
    blocks: int
    """The most blocks of a multiprocessor, limited by registers."""
    shared_bytes: int
    """The most shared memory of a block, and of a multiprocessor, for words of segments."""
    flushed: int
    """The most words that all blocks together flush to the words of segments, per element."""
    stored: int
    """The most segments for which the last block stores the results."""
    words_bytes: int
    """The most bytes of the words of all segments: beyond twice the cache, a sort of the elements is faster."""
    looked: int
    """The fewest elements of a segment, on average, for which a read of its word before the atomic operation pays."""

    limited = ("shared_bytes",)

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, with the words of all segments scaled to its cache."""
        words_bytes = self.words_bytes * device.cache_mib // measured.cache_mib
        return dataclasses.replace(super().fitted(measured, device), words_bytes=words_bytes)


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` returns the entry of other devices."""

# ---- Plan -------------------------------------------------------------------------------------------------------

_OPERATIONS = {
    "add": "ADD",
    "maximum": "MAXIMUM",
    "minimum": "MINIMUM",
    "logical_and": "AND",
    "logical_or": "OR",
    "bitwise_and": "AND",
    "bitwise_or": "OR",
    "bitwise_xor": "XOR",
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """The key of generated kernels: dtypes of elements, ids and results, the operation, and whether a start exists."""

    x: str
    ids: str
    result: str
    operation: str
    starts: bool = False

    @property
    def word(self) -> int:
        """The bytes of a word."""
        return max(4, dtype_bits(self.result) // 8)

    @property
    def looks(self) -> bool:
        """Whether an element may leave its word unchanged."""
        return self.operation not in ("ADD", "XOR")

    @property
    def is_coded(self) -> bool:
        """Whether words are codes of results, not the results themselves."""
        plain = ("ADD", "OR", "XOR") + ("MAXIMUM",) * (dtype_kind(self.result) == "uint")
        return self.operation not in plain or dtype_bits(self.result) < 32 or self.starts


def make_plan(kind: Kind, n: int, segments: int, strides: tuple[int, int], tuning: Tuning) -> _cuda.Plan:
    """Return the launches for ``n`` elements; ``strides`` are the strides of elements and of ids."""
    numbers, threads = _cuda.Numbers(), tuning.threads
    result, word = C_TYPES[kind.result], {4: "unsigned", 8: "unsigned long long"}[kind.word]
    code = f"atomics::Coded<{result}, atomics::{kind.operation}>"
    source = _cuda.device_source("_primitives/segments/tables/segment_atomics.cu")
    shared_bytes = kind.word * segments
    resident = min(tuning.blocks, tuning.shared_bytes // (shared_bytes + 1024))
    rows = 8 if kind.word == 4 else 4  # elements of a thread at once, limited by registers
    tiles = -(-n // (threads * rows))
    blocks = min(tiles, resident * tuning.multiprocessors)
    apart = min(blocks, tuning.flushed * n // segments)  # the most blocks with private words
    in_shared = apart > 0 and 4 * apart >= blocks
    if in_shared:
        blocks = apart
    else:
        blocks, shared_bytes = min(tiles, tuning.blocks * tuning.multiprocessors), 0
    looks = kind.looks and not in_shared and n >= tuning.looked * segments
    stores = segments <= tuning.stored
    count, length = numbers("segments", segments), numbers("n", n)
    in_place = 8 * kind.word == dtype_bits(kind.result)
    ticket, words = _cuda.Pointer("zeroed", "unsigned"), _cuda.Pointer("zeroed", word, bytes=16)
    if not stores:
        words = _cuda.Pointer("out0" if in_place else "temporary", word)
    start = _cuda.Pointer("in2", f"const {result}") if kind.starts else None
    results = _cuda.Pointer("out0", result)
    launches = [
        _cuda.Launch(
            source,
            "atomics::combine_elements",
            (code, C_TYPES[kind.x], C_TYPES[kind.ids], threads, rows, in_shared, looks, stores),
            (
                _cuda.Pointer("in0", f"const {C_TYPES[kind.x]}"),
                _cuda.Pointer("in1", f"const {C_TYPES[kind.ids]}"),
                start,
                results,
                ticket,
                words,
                length,
                count,
                numbers("x_stride", strides[0]),
                numbers("ids_stride", strides[1]),
            ),
            blocks,
            threads,
            shared_bytes=shared_bytes,
            resident_blocks=tuning.blocks,
        )
    ]
    if not stores:
        grid = min(tuning.blocks * tuning.multiprocessors, -(-segments // (4 * threads)))
        launches.insert(0, _cuda.Launch(source, "atomics::clear_words", (word,), (words, count), grid, threads))
        if kind.is_coded:
            parameters = words, start, results, count
            launches.append(_cuda.Launch(source, "atomics::decode_all", (code,), parameters, grid, threads))
    return _cuda.Plan(
        tuple(launches),
        2 + kind.starts,
        (((segments,), kind.result),),
        numbers.all(),
        zeroed_bytes=16 + kind.word * segments if stores else 0,
        temporary_bytes=0 if stores or in_place else kind.word * segments,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def serves(c: Segmented) -> bool:
    """Return whether atomic operations compute a call: any order, single elements, and ids that are not sorted."""
    name, result = c.op.name, c.dtypes[0]
    if BUILT_IN.get(name) is not c.op or name not in _OPERATIONS or dtype_name(result) not in C_TYPES:
        return False
    if c.segments * max(4, dtype_bits(result) // 8) > TUNING[90].words_bytes:
        return False
    kinds = ("bool", "int", "uint", "float") if name in ("maximum", "minimum") else ("bool", "int", "uint")
    return c.arrays[0].ndim == 1 and not c.in_order and dtype_kind(result) in kinds


def prepare(xp: Namespace, c: Segmented, array: Callable[[Namespace, Segmented], Any]) -> Callable[..., Array]:
    """Return a function of the arrays that launches the kernels; ``array`` computes the call by operations."""
    return on_cast(xp, c, lambda xp, c: _prepared(xp, c, array))


def _prepared(xp: Namespace, c: Segmented, array: Callable[[Namespace, Segmented], Any]) -> _cuda.Run:
    arrays, c = c.arrays, c.on(*(None,) * len(c.arrays))  # JAX keeps the functions below

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        return (array(xp, c.on(*arrays)),)

    def batched(x: Array, ids: Array, *starts: Array) -> tuple[Array, ...]:
        """Compute the rows as one array; each row has its own segments."""
        rows, count = max(array.shape[0] for array in (x, ids, *starts)), c.segments
        if rows * count >= 2**31:
            return _cuda.row_by_row(otherwise)(x, ids, *starts)
        places = xp.reshape(xp.arange(rows, dtype=xp.int32), (rows, 1)) * count
        narrow_ids = xp.where((ids >= 0) & (ids < count), cast(xp, ids, xp.int32), -1)
        flat = [
            xp.reshape(xp.broadcast_to(array, (rows, x.shape[1])), (-1,))
            for array in (x, xp.where(narrow_ids < 0, -1, narrow_ids + places))
        ]
        result = (rows * count,), c.dtypes[0]
        call = dataclasses.replace(c, arrays=tuple(flat), results=(result,), segments=rows * count, key=None)
        results = xp.reshape(_prepared(xp, call, array)(*flat)[0], (rows, count))
        if starts:
            (results,) = c.op((xp.broadcast_to(xp.reshape(starts[0], (-1, 1)), results.shape),), (results,))
        return (results,)

    def find(arrays: tuple[Array, ...]) -> _cuda.Run:
        x, ids = arrays[:2]
        names = dtype_name(x.dtype), dtype_name(ids.dtype), dtype_name(c.dtypes[0])
        kind = Kind(*names, _OPERATIONS[c.op.name], starts=len(arrays) > 2)
        n, strides = x.shape[0], (_cuda.layout(xp, x)[0][0], _cuda.layout(xp, ids)[0][0])

        def plan() -> _cuda.Plan:
            return make_plan(kind, n, c.segments, strides, tuning=_cuda.tuned_for(TUNING, xp, x))

        key = ("segments by atomics", mode(xp), c.op.name, kind, n, c.segments, strides)
        return _cuda.ready(xp, x, key, plan=plan, in_program=lambda: (otherwise, batched))

    return _cuda.on_readable(xp, arrays, find, otherwise)


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of a call for every kind of kernel."""
    numeric = [name for name in C_TYPES if dtype_kind(name) in ("int", "uint", "float")]
    kinds = [Kind(name, "int32", name, "MAXIMUM") for name in numeric]
    kinds += [Kind(name, "int32", name, "MINIMUM") for name in ("int8", "float16", "float64", "uint64")]
    kinds += [Kind(name, "int32", name, operation) for name in ("bool", "int64") for operation in ("AND", "OR")]
    kinds += [Kind("bool", "int32", "bool", "XOR"), Kind("int64", "int64", "int64", "XOR")]
    kinds += [Kind(name, "int32", "int64", "ADD") for name in ("bool", "int32")]
    kinds += [Kind("int16", "int32", "int16", "ADD"), Kind("float32", "int32", "float32", "MAXIMUM", starts=True)]
    few, many = (1 << 24, 1000), (1 << 28, 1 << 20)
    wanted = [(kind, size) for kind in kinds for size in (few, many)]
    wanted += [(Kind("int32", name, "int64", "ADD"), few) for name in numeric if dtype_kind(name) != "float"]
    # Private words that another launch stores, words without a read before, and few elements.
    others = (1 << 28, 20_000), (1 << 24, 1 << 22), (4000, 10_000)
    wanted += [
        (Kind("int64", "int64", "int64", operation), size) for operation in ("MAXIMUM", "ADD") for size in others
    ]
    for kind, (n, segments) in wanted:
        name = f"segments {kind.operation.lower()} {kind.x} {kind.ids} {kind.result}{' start' * kind.starts}"
        yield name, make_plan(kind, n, segments, (1, 1), tuning=TUNING[90])

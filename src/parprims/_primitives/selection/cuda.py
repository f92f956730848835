"""The CUDA kernels of selections: the division of their work, and the launches of a call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, dtype_name, is_jax, mode
from parprims._cuda import Launch, Number, Numbers, Parameter, Plan, Pointer, Struct
from parprims._cuda.look_back import look_back_bytes
from parprims._dispatch.by_device import is_of_cpu
from parprims._dispatch.composite import Compose
from parprims._dispatch.derivative_rules import asked_by_torch, constant
from parprims._dispatch.dispatch import directly
from parprims._dispatch.watch import unwatched
from parprims._operators.languages import C_TYPES
from parprims._primitives.selection.call import Selection
from parprims._primitives.sort.call import index_dtype

# ---- Tuning -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """The sizes that the kernels use on devices of one compute capability. Results do not depend on them.

    Parameters
    ----------
    threads : int
        The threads of a block that counts marks.
    tiles : tuple of (bytes, threads, items, resident)
        By the most bytes of an element that are staged or compared: the threads of a block, the elements of a thread,
        and the blocks on a multiprocessor.
    blocks : int
        The fewest blocks, one for each multiprocessor. Tiles shrink until there are as many.
    counters : int
        The most blocks that count marks.
    each : int
        The fewest bytes of marks for a thread that counts, as long as ``counters`` allows more blocks.
    """

    threads: int
    tiles: tuple[tuple[int, int, int, int], ...]
    blocks: int
    counters: int
    each: int

    scaled = ("blocks", "counters")

    def fitted(self, measured: _cuda.Model, device: _cuda.Model) -> Tuning:
        """Return the entry for another device, where two blocks with staged elements are to fit a multiprocessor."""
        tiles = []
        for nbytes, threads, items, resident in self.tiles:
            most = device.room() // (threads * max(4, nbytes)) // FEWEST * FEWEST
            tiles.append((nbytes, threads, max(FEWEST, min(items, most)), device.resident(resident, threads)))
        return dataclasses.replace(super().fitted(measured, device), tiles=tuple(tiles))


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""

FEWEST = 4
"""The elements of a thread are a multiple of this: the largest length of a vector."""

# ---- Plans ------------------------------------------------------------------------------------------------------

_WORDS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}
_FILE = "_primitives/selection/compact.cu"


@dataclasses.dataclass(frozen=True)
class Kind:
    """The specialisation of kernels.

    ``results`` is "values" (elements where the mask is true), "parted" (those, then all others), "places" (the indices
    of those) or "runs" (the elements and lengths of runs). ``dtype`` is the dtype of elements, ``index`` the dtype of
    counts and indices. If ``known``, the number of results is an input and not an output.
    """

    results: str
    dtype: str
    index: str
    known: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes of an element."""
        return 1 if self.dtype == "bool" else int(self.dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8

    @property
    def marks(self) -> tuple[str, Pointer, int]:
        """The type of the marks, the pointer to them, and the bytes of each."""
        if self.results == "runs":
            name = C_TYPES[self.dtype]
            return f"compaction::Changes<{name}>", Pointer("in0", f"const {name}"), self.nbytes
        memory = "in0" if self.results == "places" else "in1"
        return "compaction::Marked", Pointer(memory, "const unsigned char"), 1

    @property
    def inputs(self) -> int:
        """The number of inputs: elements, a mask, the number of results."""
        return (self.results != "places") + (self.results != "runs") + self.known


def fill_bits(value: Any, dtype: str) -> tuple[int, int, int, int]:
    """Return the bits of a number of a dtype, in four words."""
    if dtype == "bfloat16":
        (bits,) = np.array([value], dtype=np.float32).view(np.uint32).tolist()
        bits = bits + 0x7FFF + (bits >> 16 & 1) >> 16 if value == value else 0x7FC0
        return bits, 0, 0, 0
    with np.errstate(all="ignore"):
        data = np.array(value, dtype=np.dtype(dtype)).tobytes()
    one, two, three, four = np.frombuffer(data.ljust(16, b"\0"), np.uint32).tolist()
    return one, two, three, four


def count_plan(kind: Kind, n: int, tuning: Tuning) -> Plan:
    """Return the launch that counts the marks."""
    numbers = Numbers()
    launch = _count(kind, n, tuning, numbers("n", n), count=Pointer("out0", C_TYPES[kind.index]), memory="in0")
    return Plan((launch,), 1, (((), kind.index),), numbers.all(), zeroed_bytes=16)


def _count(kind: Kind, n: int, tuning: Tuning, length: Number, *, count: Pointer, memory: str) -> Launch:
    marks, pointer, nbytes = kind.marks
    return Launch(
        source=_cuda.device_source(_FILE),
        template="compaction::count_marks",
        arguments=(tuning.threads, marks, C_TYPES[kind.index]),
        parameters=(
            Struct(Pointer(memory, pointer.type), type=marks),
            count,
            Pointer("zeroed", "unsigned"),
            Pointer("zeroed", "unsigned long long", bytes=8),
            length,
        ),
        grid=max(1, min(tuning.counters, n * nbytes // (tuning.threads * tuning.each))),
        block=tuning.threads,
    )


def plan(kind: Kind, n: int, size: int, tuning: Tuning, fill: tuple[int, ...] = (0, 0, 0, 0)) -> Plan:
    """Return the launches that move the selection from n >= 1 elements into results of length ``size``."""
    numbers, count = Numbers(), C_TYPES[kind.index]
    staged = kind.nbytes if kind.results in ("values", "parted") else 4
    widest = max(staged, kind.nbytes if kind.results == "runs" else 0)
    threads, items, resident = next(entry[1:] for entry in tuning.tiles if widest <= entry[0])
    while items > FEWEST and -(-n // (threads * items)) < tuning.blocks:
        items = -(-items // (2 * FEWEST)) * FEWEST
    tiles = -(-n // (threads * items))
    length = numbers("n", n)
    marks, pointer, _ = kind.marks
    word = _WORDS[kind.nbytes] if kind.results in ("values", "parted") else C_TYPES[kind.dtype]
    element = Pointer("in0", f"const {word}")
    outputs: list[tuple[tuple[int, ...], str]] = []

    def output(type_: str, shape: tuple[int, ...], dtype: str) -> Pointer:
        outputs.append((shape, dtype))
        return Pointer(f"out{len(outputs) - 1}", type_)

    launches: list[Launch] = []
    fields: list[Parameter] = []
    if kind.results == "parted":
        fields += [element, output(word, (n,), kind.dtype), total := output(count, (), kind.index)]
        fields.append(dataclasses.replace(total, type=f"const {count}") if tiles > 1 else None)
        if tiles > 1:
            launches.append(_count(kind, n, tuning, length, count=total, memory="in1"))
    else:
        if kind.results != "places":
            fields.append(element)
            fields.append(output(word, (size,), kind.dtype))
        if kind.results != "values":
            fields.append(output(count, (size,), kind.index))
        fields.append(None if kind.known else output(count, (), kind.index))
        known = Pointer(f"in{kind.inputs - 1}", f"const {count}") if kind.known else None
        beyond = -(-max(0, size - n) // tiles)
        fields.append(
            Struct(numbers("size", size), numbers("beyond", beyond), known, type=f"compaction::Size<{count}>")
        )
        if kind.results != "places":
            words = [numbers(f"fill{index}", word) for index, word in enumerate(fill)]
            fields.append(Struct(*words, type="compaction::Bits"))
    results = f"compaction::{kind.results.capitalize()}<{count if kind.results == 'places' else f'{word}, {count}'}>"
    launches.append(
        Launch(
            source=_cuda.device_source(_FILE),
            template="compaction::compact",
            arguments=(threads, items, max(1, min(FEWEST, 16 // kind.nbytes)), marks, results),
            parameters=(
                Struct(pointer, type=marks),
                Struct(*fields, type=results),
                Pointer("status", "ulonglong2") if tiles > 1 else None,
                length,
                numbers("tiles", tiles),
            ),
            grid=tiles,
            block=threads,
            shared_bytes=-(-threads * items * staged // 16) * 16,
            resident_blocks=resident,
        )
    )
    state_bytes = 16 if kind.results == "runs" else 8
    return Plan(
        tuple(launches),
        kind.inputs,
        tuple(outputs),
        numbers.all(),
        zeroed_bytes=16 if len(launches) > 1 else 0,
        status_bytes=look_back_bytes(1, tiles, state_bytes) if tiles > 1 else 0,
    )


# ---- Calls ------------------------------------------------------------------------------------------------------

Run = Callable[..., tuple[Array, ...]]


def refusal(xp: Namespace, c: Selection) -> str | None:
    """Return the sentence why the kernels cannot serve a call, or None."""
    for x in c.arrays:
        if dtype_name(x.dtype) not in C_TYPES:
            return f"the kernel has no dtype {dtype_name(x.dtype)}"
    return _cuda.refusal(xp, tuple(map(constant, c.arrays)) if asked_by_torch(c.arrays) else c.arrays)


def launches(xp: Namespace, c: Selection, method: str) -> bool:
    """Return whether kernels of a GPU are to compute a call."""
    return method == "kernel" and 0 not in c.arrays[0].shape and not is_of_cpu(xp, c.arrays)


def prepare(results: str, compose: Compose, xp: Namespace, c: Selection) -> Run:
    """Return a function that computes a call by kernels of a GPU.

    If PyTorch asks for a derivative, kernels find the indices and PyTorch's operations move the elements.
    """
    if 0 in c.arrays[0].shape or asked_by_torch(c.arrays):
        return directly(lambda xp, call: compose(xp, call, "kernel"))(xp, c)
    bare = c.on(*(None,) * len(c.arrays))

    def otherwise(*arrays: Array) -> tuple[Array, ...]:
        with unwatched():
            selected: tuple[Array, ...] = compose(xp, bare.on(*arrays), "native")
        return selected

    if c.size == 0 and is_jax(xp):  # its kernels need a result with elements
        return otherwise
    return mover(xp, results, c.arrays, otherwise=otherwise, size=c.size, fill=c.fill_value)


def mover(
    xp: Namespace,
    results: str,
    arrays: tuple[Array, ...],
    *,
    otherwise: Run | None = None,
    size: int | None = None,
    fill: Any = 0,
) -> Run:
    """Return a function of non-empty arrays like these that launches the kernels and returns the outputs of `plan`.

    ``otherwise`` replaces the kernels in a JAX program without a CUDA device; other libraries need none. If ``size`` is
    None, the number of results is read from the device, which synchronises with it.
    """
    x, n = arrays[0], math.prod(arrays[0].shape)
    kind = Kind(results, dtype_name(x.dtype), dtype_name(index_dtype(xp)))
    exact = size is None and results != "parted"
    length = size or 1  # no array is without memory
    bits = (0, 0, 0, 0) if exact or results in ("parted", "places") else fill_bits(fill, kind.dtype)
    key = ("selection", mode(xp), kind, n, size, bits)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        assert otherwise is not None

        def batched(*inputs: Array) -> tuple[Array, ...]:
            import jax

            rows = max(x.shape[0] for x in inputs)
            outputs: tuple[Array, ...] = jax.vmap(otherwise)(
                *(xp.broadcast_to(x, (rows, *x.shape[1:])) for x in inputs)
            )
            return outputs

        return otherwise, batched

    def tuning() -> Tuning:
        return _cuda.tuned_for(TUNING, xp, x)

    if not exact:
        run = _cuda.ready(xp, x, key, lambda: plan(kind, n, length, tuning(), fill=bits), in_program=in_program)
        if size == 0:
            return lambda *inputs: _without_elements(run(*[_flat(xp, x) for x in inputs]))
        return lambda *inputs: run(*[_flat(xp, x) for x in inputs])
    known = dataclasses.replace(kind, known=True)
    move = _cuda.ready(xp, x, (*key, "known"), lambda: plan(known, n, 0, tuning()), in_program=in_program)
    count = _cuda.ready(xp, x, (*key, "count"), lambda: count_plan(kind, n, tuning()), in_program=in_program)

    def counted(*inputs: Array) -> tuple[Array, ...]:
        flat = [_flat(xp, x) for x in inputs]
        (total,) = count(flat[-1])
        return *_cuda.returning(move, int(total))(*flat, total), total

    return counted


def _without_elements(results: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the results of a call with size 0: empty arrays, and the count."""
    return *[result[:0] for result in results[:-1]], results[-1]


def _flat(xp: Namespace, x: Array) -> Array:
    """Return the elements of an array, in row-major order and of one dimension, as the kernels read them."""
    x = _cuda.plain(xp, x)
    return _cuda.contiguous(xp, x if x.ndim == 1 else xp.reshape(x, (-1,)))


# ---- Kernels to compile without a GPU ---------------------------------------------------------------------------


def cases() -> Iterator[tuple[str, Plan]]:
    """Yield the name and the plan of every kind of kernel: in one tile, in several, in tiles of full size."""
    for n in (1000, 1 << 18, 1 << 28):
        for results in ("values", "parted", "runs"):
            for dtype in ("uint8", "float16", "float32", "float64", "complex128"):
                for index in ("int32", "int64") if dtype == "float32" else ("int64",):
                    yield f"{results} {dtype} {index}", plan(Kind(results, dtype, index), n, n, TUNING[90])
        for dtype in ("bool", "int32", "uint64", "bfloat16", "complex64"):
            yield f"runs {dtype}", plan(Kind("runs", dtype, "int64"), n, n, TUNING[90])
        for known in (False, True):
            yield "places", plan(Kind("places", "bool", "int64", known), n, n, TUNING[90])
        for results in ("values", "runs"):
            kind = Kind(results, "float32", "int64", True)
            yield f"{results} known", plan(kind, n, n, TUNING[90])
            yield f"count {results}", count_plan(kind, n, TUNING[90])

"""Histograms by CUDA kernels: the division of their work, and the launches."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator

import numpy as np

from parprims import _cuda
from parprims._core.arrays import Array, Namespace, compute_dtype, dtype_bits, dtype_name, is_jax, mode
from parprims._dispatch.dispatch import Inside, directly
from parprims._dispatch.watch import unwatched
from parprims._operators.languages import C_TYPES, register_type
from parprims._primitives.histogram.array import array, bin_of, finished, parts
from parprims._primitives.histogram.call import Histogram
from parprims._primitives.histogram.native import native
from parprims._primitives.search.array import above
from parprims._primitives.segments.public import segment_reduce
from parprims._primitives.sort.call import widened


@dataclasses.dataclass(frozen=True)
class Tuning(_cuda.Tuning):
    """How the kernels cut their work on devices of one compute capability.

    The bits of sums of weights depend on ``sums_bytes`` and ``sort_bytes``, which choose the way. Where weights are not
    sorted, they depend on ``threads``, ``each``, ``runs`` and ``partial_bytes`` too; where they are, on the tuning of
    `reduce` with offsets.
    """

    threads: int
    """Threads of a block, unless it has much shared memory (see ``many_threads``)."""
    blocks: int
    """The most blocks that count, or find the range."""
    each: int
    """The fewest elements of a thread that counts, as long as ``blocks`` allows more blocks."""
    counters: int
    """The most counters of a block in shared memory, if they are words of 4 bytes."""
    shared_bytes: int
    """The most shared memory of a block for edges and counters, which are halves of words if there are more of them."""
    many_threads: int
    """The threads of a block with more shared memory than ``counters`` words, at most 1024."""
    many_blocks: int
    """The most such blocks."""
    sums_bytes: int
    """The most shared memory of a block for sums."""
    runs: int
    """The most blocks that share the elements of one range of bins."""
    partial_bytes: int
    """The most scratch for the sums of blocks, if several blocks sum a bin."""
    sort_bytes: int
    """The bytes that could be moved in the time that the calls of a sort take besides (see `is_sorted`): by a
    model, 100 us at 2.5 TB/s."""

    scaled = "blocks", "many_blocks"
    counted = ("runs",)
    limited = ("shared_bytes",)


TUNING = _cuda.tunings(Tuning, __name__)
"""By compute capability; `_cuda.tuned` gives the entry of any other device."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """The specialisation of kernels: dtypes of elements, edges and result; of weights and their sums, or None.

    ``bins`` names the source of the bins: "edges", an input; "range", two numbers; "ends", an input with two numbers;
    or "data", the range of the elements. If ``numbered``, the result is the index of the bin of every element.
    """

    x: str
    edges: str
    bins: str
    result: str = "int64"
    weights: tuple[str, str] | None = None
    numbered: bool = False


def _width(kind: Kind, bins: int, tuning: Tuning) -> int:
    """Return the number of bins for which a block sums weights."""
    assert kind.weights is not None
    return min(bins, tuning.sums_bytes // (tuning.threads // 32 * (dtype_bits(kind.weights[1]) // 8)))


def number_dtype(bins: int) -> str:
    """Return the narrowest dtype that holds the indices of bins, and one more index for elements in no bin."""
    return next(name for name in ("uint8", "uint16", "uint32") if bins <= np.iinfo(name).max)


def is_sorted(kind: Kind, n: int, bins: int, tuning: Tuning) -> bool:
    """Return whether the weights of a kind are to be sorted by the numbers of their bins, and then summed.

    The model chooses the way that moves fewer bytes. Without a sort, every group of bins reads elements and weights
    once. A sort counts the digits of the numbers, and each digit moves numbers and weights.
    """
    assert kind.weights is not None
    if bins >= 2**31 - 1:  # more than `segment_reduce` has segments
        return False
    x, weight, number = (dtype_bits(dtype) // 8 for dtype in (kind.x, kind.weights[0], number_dtype(bins)))
    groups, digits = -(-bins // _width(kind, bins, tuning)), -(-bins.bit_length() // 8)
    numbered, moved, reduced = x + number, number + 2 * digits * (number + weight), weight
    return groups * n * (x + weight) > n * (numbered + moved + reduced) + tuning.sort_bytes


def make_plan(kind: Kind, n: int, bins: int, tuning: Tuning, ends: tuple[float, float] | None = None) -> _cuda.Plan:
    """Return the launches for n elements and ``bins`` bins; ``ends`` is the range of bins of source "range"."""
    numbers, threads, way = _cuda.Numbers(), tuning.threads, "GLOBAL" if kind.bins == "edges" else "EVEN"
    source = _cuda.device_source("_primitives/histogram/histogram.cu")
    ctypes_of_inputs = C_TYPES[kind.x], C_TYPES[kind.edges]
    blocks = min(tuning.blocks, -(-n // (threads * tuning.each)))
    zeroed_bytes, nbytes = 16, dtype_bits(kind.edges) // 8  # the first word is a ticket
    launches: list[_cuda.Launch] = []
    x, count, scratch_edges = (
        _cuda.Pointer("in0", f"const {ctypes_of_inputs[0]}"),
        numbers("n", n),
        _cuda.Pointer("scratch", ctypes_of_inputs[1]),
    )
    ticket, scratch_bytes = _cuda.Pointer("zeroed", "unsigned"), 0
    low = high = 0
    inputs = 1
    bins_from: _cuda.Pointer | None = None
    if kind.bins in ("edges", "ends"):
        bins_from, inputs = _cuda.Pointer("in1", f"const {ctypes_of_inputs[1]}"), 2
    elif kind.bins == "range":
        assert ends is not None
        low, high = (int(word) for word in np.array(ends, dtype=np.float64).view(np.int64))
    else:
        partials = _cuda.Pointer("scratch", "unsigned", bytes=16)
        arguments = x, scratch_edges, partials, ticket, count
        launches.append(
            _cuda.Launch(
                source, "histogram::find_ends", (*ctypes_of_inputs, threads), arguments, grid=blocks, block=threads
            )
        )
        bins_from, scratch_bytes = scratch_edges, 16 + blocks * 2 * nbytes
    outputs = _cuda.Pointer("out0", C_TYPES[kind.result]), _cuda.Pointer("out1", ctypes_of_inputs[1])
    sizes = count, numbers("bins", bins), numbers("low", low), numbers("high", high)
    if kind.weights is None:
        edges_bytes = nbytes * (bins + 1 + bins // 32) if kind.bins == "edges" else 0
        counters, shared_bytes = "TOTALS", 0  # unless elements are counted in shared memory
        if not kind.numbered and bins <= tuning.counters:
            counters, shared_bytes = "WORDS", 4 * bins
        elif not kind.numbered and 2 * (bins + 1) + edges_bytes <= tuning.shared_bytes:
            counters, shared_bytes = "HALVES", 2 * (bins + 1)
        if edges_bytes:
            both = -(-shared_bytes // 8) * 8 + edges_bytes
            if both <= tuning.shared_bytes:
                shared_bytes, way = both, "SHARED"
        if shared_bytes > 4 * tuning.counters:
            threads = tuning.many_threads
            blocks = min(tuning.many_blocks, -(-n // (threads * tuning.each)))
        types = *ctypes_of_inputs, C_TYPES[kind.result], f"histogram::{way}"
        if kind.numbered:
            parameters = x, bins_from, *outputs, *sizes
            launch = _cuda.Launch(
                source,
                "histogram::number_bins",
                types,
                parameters,
                grid=blocks,
                block=threads,
                shared_bytes=shared_bytes,
            )
        else:
            totals, stores = _cuda.Pointer("zeroed", "unsigned long long", bytes=16), bins <= 4 * threads
            launch = _cuda.Launch(
                source,
                "histogram::count_bins",
                (*types, f"histogram::{counters}", stores),
                (x, bins_from, *outputs, ticket, totals, *sizes),
                grid=blocks,
                block=threads,
                shared_bytes=shared_bytes,
            )
            if not stores:
                launches.append(launch)
                threads, stored = tuning.threads, (outputs[0], totals, sizes[1])
                grid = min(tuning.blocks, -(-bins // (4 * threads)))
                launch = _cuda.Launch(
                    source, "histogram::store_counts", (C_TYPES[kind.result],), stored, grid=grid, block=threads
                )
            zeroed_bytes += 8 * bins
    else:
        (weights, working), result = kind.weights, kind.result
        warps, nbytes = threads // 32, dtype_bits(working) // 8
        width = _width(kind, bins, tuning)
        groups = -(-bins // width)
        runs = min(tuning.runs, -(-n // (threads * tuning.each)), tuning.partial_bytes // (bins * nbytes))
        runs = max(1, runs)
        pointers = (
            x,
            bins_from,
            _cuda.Pointer(f"in{inputs}", f"const {C_TYPES[weights]}"),
            *outputs,
            ticket,
            _cuda.Pointer("scratch", register_type(working), bytes=scratch_bytes),
        )
        launch = _cuda.Launch(
            source,
            "histogram::sum_bins",
            (*ctypes_of_inputs, C_TYPES[weights], register_type(working), C_TYPES[result], f"histogram::{way}", warps),
            (*pointers, *sizes, numbers("width", width), numbers("runs", runs)),
            grid=groups * runs,
            block=threads,
            shared_bytes=width * warps * nbytes,
        )
        inputs += 1
        zeroed_bytes += 4 * groups
        scratch_bytes += runs * bins * nbytes
    return _cuda.Plan(
        (*launches, launch),
        inputs,
        (((n if kind.numbered else bins,), kind.result), ((bins + 1,), kind.edges)),
        numbers.all(),
        zeroed_bytes=zeroed_bytes,
        scratch_bytes=scratch_bytes,
    )


# ---- The method -------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, h: Histogram) -> str | None:
    """Return the sentence why the kernels cannot serve the call, or None."""
    for x in h.arrays:
        if dtype_name(x.dtype) not in C_TYPES:
            return f"the kernel has no dtype {dtype_name(x.dtype)}"
    return _cuda.refusal(xp, h.arrays)


def prepare(xp: Namespace, h: Histogram) -> Callable[..., tuple[Array, Array]]:
    """Return a function that computes the counts and the edges by CUDA kernels."""
    if 0 in h.arrays[0].shape:
        nothing: Callable[..., tuple[Array, Array]] = directly(array)(xp, h)
        return nothing
    x, *others = h.arrays
    edges = None
    if not h.even:
        edges = others.pop()
    elif h.ends is not None and is_jax(xp):  # a compiled kernel contains its numbers
        edges = np.array(h.ends, dtype=dtype_name(h.edges))
    inputs = [x] if edges is None else [x, widened(xp, edges, h.edges)]
    bare = h.on(*(None,) * len(h.arrays))

    def by_library(*arrays: Array) -> tuple[Array, ...]:
        return native(xp, dataclasses.replace(bare, density=False).on(*arrays))

    inputs += others
    sorts = h.weighted and _sorts_weights(xp, bare, inputs)
    run = _by_sort(xp, bare, inputs) if sorts else _runner(xp, bare, inputs, by_library)

    def flat(x: Array) -> Array:
        return _cuda.contiguous(xp, _cuda.plain(xp, x if x.ndim == 1 else xp.reshape(x, (-1,))))

    def counted(x: Array, *others: Array) -> tuple[Array, Array]:
        weights, ends = others[: int(bare.weighted)], [] if edges is None else [edges]
        if not bare.even:
            ends = [flat(widened(xp, others[-1], bare.edges))]
        counts, computed_edges = run(flat(x), *ends, *map(flat, weights))
        return finished(xp, bare, counts, computed_edges)

    return counted


def _by_sort(xp: Namespace, h: Histogram, inputs: list[Array]) -> Callable[..., tuple[Array, Array]]:
    """Return a function that sorts weights by the indices of their bins, and reduces them by segments.

    ``h`` is the call without arrays, ``inputs`` are the elements, edges or ends if they are arrays, and the weights.
    """
    plain = dataclasses.replace(h, weighted=False)

    def by_library(*arrays: Array) -> tuple[Array, Array]:
        x, _, edges = parts(xp, plain.on(*arrays))
        numbers = bin_of(xp, plain, x, edges, search=functools.partial(above, xp))
        return xp.astype(numbers, getattr(xp, number_dtype(h.bins))), edges

    find = _runner(xp, plain, inputs[:-1], by_library, numbered=True)

    def summed(*arrays: Array) -> tuple[Array, Array]:
        *own, weights = arrays
        numbers, edges = find(*own)
        with unwatched():
            return segment_reduce(weights, numbers, h.bins, method=Inside("kernel")), edges

    return summed


def _kind_of(xp: Namespace, h: Histogram, inputs: list[Array]) -> Kind:
    """Return the specialisation of kernels, given the call without arrays, and the arrays that they read."""
    x, *others = inputs
    summed = None
    if h.weighted:
        summed = dtype_name(others[-1].dtype), dtype_name(compute_dtype(xp, h.result))
    bins = "data" if h.ends is None else "ends" if len(others) > h.weighted else "range"
    bins = bins if h.even else "edges"
    return Kind(dtype_name(x.dtype), dtype_name(h.edges), bins, dtype_name(h.result), weights=summed)


def _sorts_weights(xp: Namespace, h: Histogram, inputs: list[Array]) -> bool:
    """Return whether weights are to be sorted, given the call without arrays, and the arrays that kernels read."""
    x, kind = inputs[0], _kind_of(xp, h, inputs)
    return is_sorted(kind, math.prod(x.shape), h.bins, _cuda.tuned_for(TUNING, xp, x))


def _runner(
    xp: Namespace,
    h: Histogram,
    inputs: list[Array],
    by_library: Callable[..., tuple[Array, ...]],
    numbered: bool = False,
) -> _cuda.Run:
    """Return a function that launches the kernels on elements, edges or ends if they are arrays, and weights.

    ``h`` is the call without arrays; ``by_library`` takes its arrays, in a program of JAX without a CUDA device. If
    ``numbered``, both return the index of every element's bin instead of counts.
    """
    x, n = inputs[0], math.prod(inputs[0].shape)
    kind = _kind_of(xp, h, inputs)
    if numbered:
        kind = dataclasses.replace(kind, result=number_dtype(h.bins), numbered=True)

    def in_program() -> tuple[_cuda.Run, _cuda.Run]:
        def otherwise(*arrays: Array) -> tuple[Array, ...]:
            x, *others = arrays
            first = [others.pop(0)] if kind.bins in ("edges", "ends") else []
            more = first if kind.bins == "edges" else []
            return by_library(x, *others, *more)

        return otherwise, _cuda.row_by_row(otherwise)

    key = ("histogram", mode(xp), kind, n, h.bins, h.ends)

    def plan() -> _cuda.Plan:
        return make_plan(kind, n, h.bins, _cuda.tuned_for(TUNING, xp, x), ends=h.ends)

    return _cuda.ready(xp, x, key, plan, in_program=in_program)


# ---- Every kernel there is, for a compiler without a GPU ----------------------------------------------------------


def cases() -> Iterator[tuple[str, _cuda.Plan]]:
    """Yield the name and the plan of every kind of kernel."""
    sums = ("float32", "float32"), ("float64", "float64"), ("float16", "float32"), ("int32", "int64")
    for n, bins in ((1000, 10), (1 << 28, 256), (1 << 28, 20_000), (1 << 28, 50_000), (1 << 28, 200_000)):
        for way in ("data", "edges"):
            for dtype in ("float32", "float64", "float16", "bfloat16", "uint8", "int32", "int64", "uint64"):
                edges = {"float32": "float32", "float16": "float32", "bfloat16": "float32"}.get(dtype, "float64")
                for kind in (Kind(dtype, edges, way), Kind(dtype, edges, way, number_dtype(bins), numbered=True)):
                    yield f"histogram {dtype}", make_plan(kind, n, bins, TUNING[90])
            for weights, working in sums:
                result = weights if weights == "float16" else working
                kind = Kind("float32", "float32", way, result, weights=(weights, working))
                yield f"histogram float32 weights {weights}", make_plan(kind, n, bins, TUNING[90])
        kind = Kind("float32", "float32", "range")
        yield "histogram of a range", make_plan(kind, n, bins, TUNING[90], ends=(0.0, 1.0))

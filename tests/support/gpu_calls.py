"""A call of every kernel, and streams, graphs and memory, which the libraries of a GPU call differently.

A number such as "fault 17", here and in the tests that use this, is that of a fault of other libraries.
"""

import dataclasses
import functools
import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parprims
from parprims import _cuda
from tests.support.text_plans import text_plan

# ---- What the libraries call differently ----------------------------------------------------------------------------


def new_stream(gpu):
    """Return a stream that waits for what the others have begun."""
    if gpu.name == "cupy":
        import cupy

        cupy.cuda.Device().synchronize()
        return cupy.cuda.Stream(non_blocking=True)
    import torch

    torch.cuda.synchronize()
    return torch.cuda.Stream()


def on(gpu, stream):
    """Return the context in which a stream is the current one."""
    if gpu.name == "cupy":
        return stream
    import torch

    return torch.cuda.stream(stream)


def finish(gpu):
    """Wait for all work on the device."""
    if gpu.name == "cupy":
        import cupy

        cupy.cuda.Device().synchronize()
    else:
        import torch

        torch.cuda.synchronize()


def is_done(gpu, stream):
    return stream.done if gpu.name == "cupy" else stream.query()


def capture(gpu, stream, function):
    """Return a graph of what a function does on a stream, and what it returns."""
    if gpu.name == "cupy":
        with stream:
            stream.begin_capture()
            try:
                result = function()
            finally:
                graph = stream.end_capture()
        return graph, result
    import torch

    graph = torch.cuda.CUDAGraph()
    # What other libraries do in threads of their own, in this process, is none of the capture's business.
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        result = function()
    return graph, result


def launch(gpu, graph, stream):
    if gpu.name == "cupy":
        graph.launch(stream=stream)
    else:
        with on(gpu, stream):
            graph.replay()


def pinned(gpu, count):
    """Return zeros of the host that kernels can read, as an array, and their address."""
    if gpu.name == "cupy":
        import cupy

        memory = cupy.cuda.alloc_pinned_memory(4 * count)
        found = np.frombuffer(memory, np.int32, count)
        address = memory.ptr
    else:
        import torch

        memory = torch.zeros(count, dtype=torch.int32).pin_memory()
        found = memory.numpy()
        address = memory.data_ptr()
    found[:] = 0
    return found, address, memory


def release(gpu):
    """Give memory that the library keeps back to the device."""
    gc.collect()
    if gpu.name == "cupy":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()
    else:
        import torch

        torch.cuda.empty_cache()


def used(gpu):
    """Return how many bytes of arrays there are."""
    if gpu.name == "cupy":
        import cupy

        return cupy.get_default_memory_pool().used_bytes()
    import torch

    return torch.cuda.memory_allocated()


def multiprocessors(gpu):
    if gpu.name == "cupy":
        import cupy

        return cupy.cuda.Device().attributes["MultiProcessorCount"]
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count


SPIN = """
volatile int* host = (volatile int*)n0;
if (threadIdx.x == 0) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    host[2 + blockIdx.x] = 1;
    while (host[0] == 0) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - begin > (unsigned long long)n1) {
            host[1] = 1;
            break;
        }
        __nanosleep(1000);
    }
}
__syncthreads();
"""


class Spin:
    """A kernel of some blocks that runs until it is told to stop, or until seconds have passed."""

    def __init__(self, gpu, blocks=1, *, seconds=10.0, shared_bytes=0):
        self._host, address, self._memory = pinned(gpu, 2 + blocks)
        plan = text_plan(
            "", SPIN, 0, (((1,), "int32"),), (address, int(seconds * 1e9)), blocks, 1024, shared_bytes=shared_bytes
        )
        self._runner = _cuda.Runner(gpu.xp, plan, 0)
        self.stop()
        self()  # once, since a kernel that is loaded later may have to wait for one that runs
        finish(gpu)

    def __call__(self):
        return self._runner()

    def begin(self):
        self._host[:] = 0
        return self()

    def stop(self):
        self._host[0] = 1

    @property
    def has_begun(self):
        return bool(self._host[2:].all())

    @property
    def ran_out(self):
        """Whether it was not told to stop in time."""
        return bool(self._host[1])


def until(condition, seconds=10.0):
    """Wait for a condition; return whether it came."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


# ---- A call of every kernel -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A primitive with inputs that lead to one of its kernels, and what is true of its results."""

    name: str
    make: Callable[[np.random.Generator], tuple[np.ndarray, ...]]
    call: Callable[..., Any]
    check: Callable[..., None]

    def __call__(self, *arrays, method="kernel"):
        found = self.call(*arrays, method=method)
        return found if isinstance(found, tuple) else (found,)


def integers(*shape, dtype="int32", low=-99, high=100):
    return lambda rng: (rng.integers(low, high, shape).astype(dtype),)


def pairs(*shape, dtype="int32"):
    return lambda rng: tuple(rng.integers(-99, 100, shape).astype(dtype) for _ in range(2))


def maps(*shape):
    """Return a maker of affine maps that forget nothing: the slopes are odd, and integers wrap."""
    return lambda rng: (
        rng.integers(-99, 100, shape).astype("int32") | 1,
        rng.integers(-99, 100, shape).astype("int32"),
    )


def equal(reference):
    """Return a check that the results are those of a reference."""

    def check(inputs, results):
        expected = reference(*inputs)
        for one, other in zip(results, expected if isinstance(expected, tuple) else (expected,), strict=True):
            np.testing.assert_array_equal(one, other)

    return check


def affine(earlier, later):
    return earlier[0] * later[0], earlier[1] * later[0] + later[1]


def check_recurrence(inputs, results):
    (a, b), (y,) = inputs, results
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(y[..., 1:], a[..., 1:] * y[..., :-1] + b[..., 1:])
    np.testing.assert_array_equal(y[..., 0], b[..., 0])


def check_affine(inputs, results):
    (a, b), (slope, offset) = inputs, results
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(slope, np.multiply.accumulate(a, axis=-1, dtype=a.dtype))
    check_recurrence((a, b), (offset,))


def check_reduced(inputs, results):
    (a, b), (slope, offset) = inputs, results
    with np.errstate(over="ignore"):
        after = np.concatenate([np.ones(1, a.dtype), np.multiply.accumulate(a[:0:-1], dtype=a.dtype)])[::-1]
        assert int(slope) == int(np.multiply.reduce(a, dtype=a.dtype))
        assert int(offset) == int((b * after).sum(dtype=b.dtype))


def check_argsort(inputs, results):
    np.testing.assert_array_equal(results[0], np.argsort(inputs[0], axis=-1, kind="stable"))


def by_key(keys, values):
    order = np.argsort(keys, axis=-1, kind="stable")
    return np.take_along_axis(keys, order, -1), np.take_along_axis(values, order, -1)


def systems(*shape, dtype="float64", dominant=True):
    def make(rng):
        lower, diag, upper, rhs = (rng.standard_normal(shape) for _ in range(4))
        if dominant:
            diag = np.where(diag < 0, -1, 1) * (abs(lower) + abs(upper) + 1)
        return tuple(x.astype(dtype) for x in (lower, diag, upper, rhs))

    return make


def check_solution(inputs, results):
    lower, diag, upper, rhs = (x.astype(np.float64) for x in inputs)
    x, eps = results[0].astype(np.float64), np.finfo(inputs[0].dtype).eps
    before, after = np.zeros_like(x), np.zeros_like(x)
    before[..., 1:], after[..., :-1] = x[..., :-1], x[..., 1:]
    residual = abs(lower * before + diag * x + upper * after - rhs)
    size = abs(lower * before) + abs(diag * x) + abs(upper * after) + abs(rhs)
    assert np.all(residual <= 64 * eps * size.max(axis=-1, keepdims=True))


def factors(a, b, dtype="float32", low=-2, high=3):
    return lambda rng: tuple(rng.integers(low, high, shape).astype(dtype) for shape in (a, b))


def product(a, b):
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(a.dtype)


def shortest(a, b):
    return np.stack([(row[:, None] + b).min(axis=0) for row in a])


def with_offsets(n, segments):
    """Return a maker of integers and of offsets of segments of uneven length, some without elements."""

    def make(rng):
        inner = np.sort(rng.integers(0, n + 1, segments - 1))
        return rng.integers(-99, 100, n), np.concatenate([[0], inner, [n]])

    return make


def segment_sums(x, offsets):
    sums = np.concatenate([[0], np.cumsum(x)])
    return sums[offsets[1:]] - sums[offsets[:-1]]


def segment_scan(x, offsets):
    sums = np.concatenate([[0], np.cumsum(x)])
    return sums[1:] - np.repeat(sums[offsets[:-1]], np.diff(offsets))


def segment_order(x, offsets):
    return np.lexsort((x, np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))))


def sorted_and_wanted(n, m):
    """Return a maker of sorted integers, and of integers to search for."""
    return lambda rng: (np.sort(rng.integers(-(1 << 30), 1 << 30, n)), rng.integers(-(1 << 30), 1 << 30, m))


def check_partition(inputs, results):
    (x,), (y,) = inputs, results
    kth = np.sort(x)[x.size // 3]
    parts = [x[x < kth], x[x == kth], x[x > kth]]
    np.testing.assert_array_equal(y, np.concatenate(parts))


def sums_at(x, ids):
    found = np.zeros(1000, x.dtype)
    inside = (ids >= 0) & (ids < 1000)
    np.add.at(found, ids[inside], x[inside])
    return found


def signals(sections, *shape):
    """Return a maker of sections of order two, whose coefficients are those of one, and signals."""
    return lambda rng: (
        np.tile([[0.3, 0.2, 0.1, 1.0, -1.2, 0.5]], (sections, 1)),
        rng.standard_normal(shape),
    )


def check_filtered(inputs, results):
    """Hold what all sections together say of results: the sum of a[i] y[n - i] is that of b[i] x[n - i]."""
    (sos, x), y = inputs, results[0]
    sides = []
    for signal, columns in ((x, slice(0, 3)), (y, slice(3, 6))):
        total = functools.reduce(np.convolve, sos[:, columns])
        before = np.pad(signal, [*[(0, 0)] * (signal.ndim - 1), (len(total) - 1, 0)])
        n = signal.shape[-1]
        delayed = (c * before[..., len(total) - 1 - i :][..., :n] for i, c in enumerate(total))
        sides.append(sum(delayed))
    assert abs(sides[0] - sides[1]).max() <= 1e-9 * abs(sides[0]).max()


def check_blocks(inputs, results):
    lower, diag, upper, b = inputs
    x = results[0]
    found = np.einsum("bnij,bnj->bni", diag, x)
    found[:, 1:] += np.einsum("bnij,bnj->bni", lower[:, 1:], x[:, :-1])
    found[:, :-1] += np.einsum("bnij,bnj->bni", upper[:, :-1], x[:, 1:])
    assert abs(found - b).max() <= 1e-10 * abs(b).max()


def calling(function, *args, **options):
    """Return a function of arrays and a method."""
    return lambda *arrays, method: function(*arrays, *args, method=method, **options)


def solving(**options):
    return lambda *arrays, method: parprims.solve_tridiagonal(*arrays, method=method, **options)


CASES = [
    Case("sum", integers(1_234_567), calling(parprims.sum), equal(lambda x: x.sum(dtype=np.int64))),
    Case("sum of rows", integers(40, 30_001), calling(parprims.sum, axis=1), equal(lambda x: x.sum(1, dtype=np.int64))),
    Case(
        "sum of columns", integers(30_001, 40), calling(parprims.sum, axis=0), equal(lambda x: x.sum(0, dtype=np.int64))
    ),
    Case(
        "maximum of short rows",
        integers(5000, 30, dtype="int8"),
        calling(parprims.max, axis=1),
        equal(lambda x: x.max(1)),
    ),
    Case(
        "reduction by an operator",
        maps(100_003),
        lambda a, b, method: parprims.reduce((a, b), affine, method=method),
        check_reduced,
    ),
    Case("vecdot", pairs(1_000_003, dtype="float64"), calling(parprims.vecdot), equal(lambda x, y: np.asarray(x @ y))),
    Case(
        "cumulative sum",
        integers(1_234_567),
        calling(parprims.cumulative_sum),
        equal(lambda x: x.cumsum(dtype=np.int64)),
    ),
    Case(
        "scan by an operator",
        maps(300_001),
        lambda a, b, method: parprims.scan((a, b), affine, method=method),
        check_affine,
    ),
    Case(
        "scan of columns",
        integers(40_001, 24),
        calling(parprims.scan, "maximum", axis=0),
        equal(functools.partial(np.maximum.accumulate, axis=0)),
    ),
    Case(
        "reverse scan of short rows",
        integers(3000, 9),
        calling(parprims.scan, "add", axis=1, reverse=True),
        equal(lambda x: x[:, ::-1].cumsum(axis=1, dtype=np.int64)[:, ::-1]),
    ),
    Case("recurrence", maps(700_001), calling(parprims.linear_recurrence), check_recurrence),
    Case("recurrence of rows", maps(300, 3000), calling(parprims.linear_recurrence), check_recurrence),
    Case(
        "reduction of segments",
        with_offsets(1_000_003, 40_000),
        lambda x, offsets, method: parprims.reduce(x, offsets=offsets, method=method),
        equal(segment_sums),
    ),
    Case(
        "scan of segments",
        with_offsets(700_001, 9000),
        lambda x, offsets, method: parprims.scan(x, offsets=offsets, method=method),
        equal(segment_scan),
    ),
    Case(
        "reduction by numbers of segments",
        lambda rng: (rng.integers(-99, 100, 200_003), rng.integers(-1, 1001, 200_003)),
        calling(parprims.segment_reduce, 1000),
        equal(sums_at),
    ),
    Case("sort", integers(300_001, high=1 << 30), calling(parprims.sort), equal(np.sort)),
    Case("argsort", integers(100_003), calling(parprims.argsort), check_argsort),
    Case(
        "sort by key",
        lambda rng: (rng.integers(-99, 99, 200_003).astype("float32"), rng.integers(0, 1 << 40, 200_003)),
        lambda keys, values, method: parprims.sort_by_key(keys, values, method=method),
        equal(by_key),
    ),
    Case("sort of short rows", integers(501, 20), calling(parprims.sort), equal(np.sort)),
    Case("sort of rows", integers(501, 1000, high=1 << 30), calling(parprims.sort), equal(np.sort)),
    Case("sort of long rows", integers(501, 9001, dtype="int16"), calling(parprims.sort), equal(np.sort)),
    Case(
        "sort of segments",
        with_offsets(300_007, 9000),
        lambda x, offsets, method: parprims.sort(x, offsets=offsets, method=method),
        equal(lambda x, offsets: x[segment_order(x, offsets)]),
    ),
    Case(
        "argsort of segments",
        with_offsets(300_007, 9),
        lambda x, offsets, method: parprims.argsort(x, offsets=offsets, method=method),
        equal(segment_order),
    ),
    Case("search", sorted_and_wanted(200_003, 100_001), calling(parprims.searchsorted), equal(np.searchsorted)),
    Case(
        "partition",
        integers(300_001),
        lambda x, method: parprims.partition(x, x.shape[0] // 3, method=method),
        check_partition,
    ),
    Case("short systems", systems(1000, 50, dtype="float32"), solving(), check_solution),
    Case("systems", systems(30, 3000), solving(pivot="partial"), check_solution),
    Case("long system", systems(300_001), solving(pivot="none"), check_solution),
    Case("long system with exchanges", systems(200_003, dominant=False), solving(), check_solution),
    Case(
        "filter",
        signals(1, 600_002),
        lambda sos, x, method: parprims.lfilter(sos[0, :3], sos[0, 3:], x, method=method),
        check_filtered,
    ),
    Case("filters of rows", signals(6, 150, 20_002), calling(parprims.sosfilt), check_filtered),
    Case(
        "systems of blocks",
        lambda rng: (
            *(rng.standard_normal((600, 20, 2, 2)) + at * np.eye(2) for at in (0, 9, 0)),
            np.ones((600, 20, 2)),
        ),
        calling(parprims.solve_block_tridiagonal),
        check_blocks,
    ),
    Case("matmul", factors((300, 200), (200, 260)), calling(parprims.matmul), equal(product)),
    Case("matmul of long sums", factors((20, 9001), (9001, 24)), calling(parprims.matmul), equal(product)),
    Case("matmul of 16 bits", factors((512, 256), (256, 384), "float16"), calling(parprims.matmul), equal(product)),
    Case("matmul by warpgroups", factors((512, 512), (512, 512)), calling(parprims.matmul), equal(product)),
    Case(
        "matmul of other layouts",
        factors((1040, 1032), (1040, 1000)),
        lambda a, b, method: parprims.matmul(a.T, b, method=method),
        equal(lambda a, b: product(a.T, b)),
    ),
    Case(
        "shortest paths",
        factors((130, 70), (70, 90), "int32", -99, 100),
        calling(parprims.matmul, add="minimum", multiply="add"),
        equal(shortest),
    ),
]
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name.replace(" ", "_") for case in CASES])


def arrays(gpu, inputs):
    return tuple(gpu.asarray(x) for x in inputs)


def check(gpu, case, inputs, results):
    case.check(inputs, tuple(gpu.to_numpy(one) for one in results))


def copied(gpu, results):
    return tuple(gpu.xp.asarray(one, copy=True) for one in results)

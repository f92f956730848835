"""What only a GPU can show: streams, threads, graphs, memory, and sizes beyond 32 bits, for every kernel.

A number such as "fault 17" is that of a fault of other libraries which the test is for.
``PARPRIMS_STRESS=100000`` sets the number of calls of the tests marked stress, ``PARPRIMS_STRESS_SEED`` repeats those
of a failed run. Tests that need much of the device's memory take turns, in whatever process they are.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import parprims
from parprims import _cuda, _scan_kernel
from parprims._cuda import driver
from tests import emulator
from tests.texts import text_plan

CALLS = max(6000, int(os.environ.get("PARPRIMS_STRESS", "300")))
SEED = int(os.environ.get("PARPRIMS_STRESS_SEED", np.random.SeedSequence().entropy % 2**64))


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
    Case("short systems", systems(1000, 50, dtype="float32"), solving(), check_solution),
    Case("systems", systems(30, 3000), solving(pivot="partial"), check_solution),
    Case("long system", systems(300_001), solving(pivot="none"), check_solution),
    Case("long system with exchanges", systems(200_003, dominant=False), solving(), check_solution),
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


# ---- Graphs ---------------------------------------------------------------------------------------------------------


class TestGraphs:
    """A graph has scratch of its own, and keeps what its launches need."""

    @every_case
    def test_captured_and_replayed(self, streams, rng, case):
        """The first call of all may be the captured one; faults 19 and 21."""
        data = [case.make(rng) for _ in range(3)]
        waiting = [arrays(streams, one) for one in data]
        static = arrays(streams, data[0])
        stream, found = new_stream(streams), []
        graph, results = capture(streams, stream, lambda: case(*static))
        with on(streams, stream):
            for index in (1, 2, 0, 1):
                for one, other in zip(static, waiting[index], strict=True):
                    one[...] = other
                launch(streams, graph, stream)
                found.append((index, copied(streams, results)))
                found.append((index, case(*waiting[index])))
        finish(streams)
        for index, one in found:
            check(streams, case, data[index], one)

    @every_case
    def test_two_at_once(self, streams, rng, case):
        """Two graphs captured from one stream, replayed on two, and calls on the first stream, all at the same time."""
        data = [case.make(rng) for _ in range(3)]
        inputs = [arrays(streams, one) for one in data]
        source, *others = (new_stream(streams) for _ in range(3))
        graphs = [capture(streams, source, lambda one=one: case(*one)) for one in inputs[:2]]
        for _ in range(5):
            for _ in range(20):
                for (graph, _), stream in zip(graphs, others, strict=True):
                    launch(streams, graph, stream)
                with on(streams, source):
                    eager = case(*inputs[2])
            finish(streams)
            for one, (_, results) in zip(data[:2], graphs, strict=True):
                check(streams, case, one, results)
            check(streams, case, data[2], eager)

    def test_all_in_one_and_twice(self, streams, rng):
        """Every kernel in one graph, and that twice from one stream, replayed 100 times at once."""
        kept, graphs = [], []
        source, *others = (new_stream(streams) for _ in range(3))
        for _ in others:
            data = [case.make(rng) for case in CASES]
            inputs = [arrays(streams, one) for one in data]
            finish(streams)
            graphs.append(
                capture(
                    streams, source, lambda inputs=inputs: [case(*x) for case, x in zip(CASES, inputs, strict=True)]
                )
            )
            kept.append((data, inputs))
        for _ in range(100):
            for (graph, _), stream in zip(graphs, others, strict=True):
                launch(streams, graph, stream)
        finish(streams)
        for (data, _), (_, results) in zip(kept, graphs, strict=True):
            for case, one, found in zip(CASES, data, results, strict=True):
                check(streams, case, one, found)

    def test_two_branches(self, streams, rng):
        """Work that forks within a capture."""
        cases = [case for case in CASES if case.name in ("sum", "cumulative sum", "sort", "long system")]
        data = [[case.make(rng) for case in cases] for _ in range(2)]
        inputs = [[arrays(streams, one) for one in branch] for branch in data]
        main, side = new_stream(streams), new_stream(streams)

        def work(branch):
            return [case(*x) for case, x in zip(cases, branch, strict=True)]

        def both():
            side.wait_event(self.event(streams, main))
            with on(streams, side):
                there = work(inputs[1])
            here = work(inputs[0])
            main.wait_event(self.event(streams, side))
            return here, there

        graph, results = capture(streams, main, both)
        for _ in range(20):
            launch(streams, graph, main)
        finish(streams)
        for branch, found in zip(data, results, strict=True):
            for case, one, result in zip(cases, branch, found, strict=True):
                check(streams, case, one, result)

    def event(self, gpu, stream):
        if gpu.name != "cupy":
            return stream.record_event()
        import cupy

        return stream.record(cupy.cuda.Event(block=False, disable_timing=True))

    def test_scratch_grows_within_a_capture(self, streams, rng):
        """Fault 17: one capture with a sort of 2500, then of 100 000; and scans and sums alike."""
        sizes = (2500, 100_000, 40_000, 3_000_000)
        data = [rng.integers(-(1 << 20), 1 << 20, sizes[-1]).astype(np.int32) for _ in range(3)]
        static, stream = streams.asarray(data[0]), new_stream(streams)

        def work():
            return [
                function(static[:n], method="kernel")
                for n in sizes
                for function in (parprims.sort, parprims.cumulative_sum, parprims.sum)
            ]

        graph, results = capture(streams, stream, work)
        for one in (1, 2, 0):
            with on(streams, stream):
                static[...] = streams.asarray(data[one])
            finish(streams)
            launch(streams, graph, stream)
            finish(streams)
            found = iter(streams.to_numpy(result) for result in results)
            for n in sizes:
                x = data[one][:n]
                np.testing.assert_array_equal(next(found), np.sort(x))
                np.testing.assert_array_equal(next(found), np.cumsum(x, dtype=np.int64))
                assert int(next(found)) == int(x.sum(dtype=np.int64))

    @every_case
    def test_references_are_dropped(self, streams, rng, case):
        """Fault 18: what a captured call has made is dropped, its memory asked for, and the graph replayed."""
        data, stream = case.make(rng), new_stream(streams)
        static, xp = arrays(streams, data), streams.xp
        case(*static)  # what the eager call has is not the graph's
        results = [xp.zeros_like(one) for one in case(*static)]
        finish(streams)

        def work():
            copies = [xp.asarray(one, copy=True) for one in static]
            for one, other in zip(results, case(*copies), strict=True):
                one[...] = other

        graph, _ = capture(streams, stream, work)
        gc.collect()
        with on(streams, stream):
            others = [xp.full((n,), 0x55, dtype=xp.uint8, device=static[0].device) for n in (1 << 30, *[1 << 20] * 64)]
            others += [xp.full((n,), 0x55, dtype=xp.uint8, device=static[0].device) for n in (512, 4096, 1 << 16) * 16]
            for one in results:
                one[...] = 0
            for _ in range(3):
                launch(streams, graph, stream)
        finish(streams)
        check(streams, case, data, results)
        assert all(bool(xp.all(one == 0x55)) for one in others)

    def test_memory_goes_with_the_graph(self, streams, rng):
        """What a graph has is given back some time after it: with the next capture or kernel that is made ready."""
        x = streams.asarray(rng.integers(-9, 9, 3_000_000).astype(np.int32))
        stream, own = new_stream(streams), driver.current()

        def work():
            return parprims.cumulative_sum(x, method="kernel"), parprims.sort(x, method="kernel")

        graphs = [capture(streams, stream, work) for _ in range(3)]
        alive = {number: graph for number, graph in own._graphs.items() if graph.scratch}
        assert len(alive) >= 3
        for graph, _ in graphs:
            launch(streams, graph, stream)
        finish(streams)
        if streams.name == "torch-cuda":
            for graph, _ in graphs:
                graph.reset()
        del graphs, graph
        gc.collect()
        finish(streams)

        def ended():
            with own.prepares(0), own._lock:
                own._free_ended()
            return len(alive.keys() & own._graphs.keys()) <= len(alive) - 3

        assert until(ended), "the driver has not told that graphs are no more"
        assert not own._ended


# ---- Streams and threads --------------------------------------------------------------------------------------------


class TestStreams:
    @every_case
    def test_nothing_waits(self, streams, rng, case):
        """A call returns while a kernel before it on its stream still runs."""
        data, stream = case.make(rng), new_stream(streams)
        inputs = arrays(streams, data)
        with on(streams, stream):
            spin = Spin(streams)
            for _ in range(3):
                results = case(*inputs)
            finish(streams)
            spin.begin()
            try:
                with self.no_waiting(streams):
                    results = case(*inputs)
                waits = not is_done(streams, stream)
            finally:
                spin.stop()
        finish(streams)
        assert waits
        assert not spin.ran_out, "the call has waited for the kernel before it"
        check(streams, case, data, results)

    @contextlib.contextmanager
    def no_waiting(self, gpu):
        """Let PyTorch raise where it makes the host wait."""
        if gpu.name != "torch-cuda":
            yield
            return
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that it does not see everything
            torch.cuda.set_sync_debug_mode("error")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")

    @every_case
    def test_beside_a_kernel_that_holds_the_device(self, streams, rng, case):
        """Fault 20: all multiprocessors but one are held by a kernel that does not end."""
        data = case.make(rng)
        inputs, stream, other = arrays(streams, data), new_stream(streams), new_stream(streams)
        spin = Spin(streams, multiprocessors(streams) - 1, seconds=20, shared_bytes=226 << 10)
        with on(streams, stream):
            results = case(*inputs)
            results = case(*inputs)
            finish(streams)
            with on(streams, other):
                spin.begin()
            try:
                assert until(lambda: spin.has_begun)
                results = case(*inputs)
                ended = until(lambda: is_done(streams, stream))
            finally:
                spin.stop()
        finish(streams)
        assert ended, "it needs more than one multiprocessor"
        assert not spin.ran_out
        check(streams, case, data, results)

    @every_case
    def test_two_at_once_have_the_bits_of_one(self, streams, rng, case):
        """Fault 23."""
        inputs = arrays(streams, case.make(rng))
        expected = [streams.to_numpy(one).tobytes() for one in case(*inputs)]
        both, found = [new_stream(streams) for _ in range(2)], []
        for _ in range(20):
            for stream in both:
                with on(streams, stream):
                    found.append(case(*inputs))
        finish(streams)
        for results in found:
            assert [streams.to_numpy(one).tobytes() for one in results] == expected

    @pytest.mark.parametrize("threads", [1, 8])
    def test_eight_streams(self, streams, rng, threads):
        """Fault 22: the same shapes with other data on every stream, 1000 times, from one thread and from eight."""
        cases = [
            case for case in CASES if case.name in ("sum", "cumulative sum", "sort of rows", "systems", "recurrence")
        ]
        data = [[case.make(rng) for case in cases] for _ in range(8)]
        inputs = [[arrays(streams, one) for one in each] for each in data]
        each = [new_stream(streams) for _ in range(8)]
        turns = 1000 // len(cases) // (1 if CALLS > 6000 else 4)

        def work(at):
            with on(streams, each[at]):
                for _ in range(turns):
                    results = [case(*x) for case, x in zip(cases, inputs[at], strict=True)]
            return results

        if threads == 1:
            results = [None] * 8
            for _ in range(turns):
                for at, stream in enumerate(each):
                    with on(streams, stream):
                        results[at] = [case(*x) for case, x in zip(cases, inputs[at], strict=True)]
        else:
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                results = list(pool.map(work, range(8)))
        finish(streams)
        for at in range(8):
            for case, one, result in zip(cases, data[at], results[at], strict=True):
                check(streams, case, one, result)

    def test_threads_share_a_stream(self, streams, rng):
        """Launches of several threads on one stream do not get into each other's scratch."""
        cases = [
            case for case in CASES if case.name in ("sort", "sort of long rows", "long system with exchanges", "sum")
        ]
        data = [[case.make(rng) for case in cases] for _ in range(8)]
        inputs = [[arrays(streams, one) for one in each] for each in data]
        stream = new_stream(streams)

        def work(at):
            with on(streams, stream):
                return [[case(*x) for case, x in zip(cases, inputs[at], strict=True)] for _ in range(12)]

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, range(8)))
        finish(streams)
        for at in range(8):
            for turn in results[at]:
                for case, one, result in zip(cases, data[at], turn, strict=True):
                    check(streams, case, one, result)

    def test_streams_come_and_go(self, streams, rng):
        """A new stream may have the handle of one that is gone and still has work."""
        if streams.name != "cupy":
            pytest.skip("PyTorch keeps its streams")
        import cupy

        x = rng.integers(-99, 99, 1_000_003).astype(np.int32)
        array, expected, found = streams.asarray(x), np.cumsum(x, dtype=np.int64), []
        finish(streams)
        for at in range(50):
            with cupy.cuda.Stream(non_blocking=True):
                found.append((at, parprims.cumulative_sum(array[at:], method="kernel")))
                found.append((at, parprims.cumulative_sum(array[at:], method="kernel")))
        finish(streams)
        for at, result in found:
            np.testing.assert_array_equal(streams.to_numpy(result), expected[at:] - (expected[at - 1] if at else 0))


@pytest.mark.stress
class TestStress:
    def test_threads_and_streams(self, streams):
        """Calls of random size, by 8 threads on 4 streams that they share; each result is checked on the device."""
        xp, rng = streams.xp, np.random.default_rng(SEED)
        n, threads = 400_000, 8
        host = rng.integers(-999, 1000, n).astype(np.int32)
        sums = np.concatenate([[0], np.cumsum(host, dtype=np.int64)])
        whole, prefix = streams.asarray(host), streams.asarray(sums)
        odd = streams.asarray((host | 1).astype(np.int32))
        real = streams.asarray(host.astype(np.float64) / 1000)
        each = [new_stream(streams) for _ in range(4)]

        lengths = np.exp(rng.uniform(0, np.log(n // 4), 1000)).astype(int)
        sides = rng.integers(1, 150, (200, 3))

        def differs(one, other):
            return xp.sum(xp.astype(one != other, xp.int64))

        def total(place):
            begin, end, _ = place
            return differs(parprims.sum(whole[begin:end], method="kernel"), int(sums[end] - sums[begin]))

        def scan(place):
            begin, end, _ = place
            y = parprims.cumulative_sum(whole[begin:end], method="kernel")
            return differs(y, prefix[begin + 1 : end + 1] - int(sums[begin]))

        def recurrence(place):
            begin, end, _ = place
            a, b = odd[begin:end], whole[begin:end]
            y = parprims.linear_recurrence(a, b, method="kernel")
            return differs(y[1:], a[1:] * y[:-1] + b[1:]) + differs(y[:1], b[:1])

        def sort(place):
            begin, end, _ = place
            y = parprims.sort(whole[begin:end], method="kernel")
            return differs(y[1:] >= y[:-1], True) + differs(xp.sum(y, dtype=xp.int64), int(sums[end] - sums[begin]))

        def argsort(place):
            begin, end, _ = place
            x = whole[begin:end]
            order = parprims.argsort(x, method="kernel")
            y = xp.take(x, order, axis=0)
            return differs((y[1:] > y[:-1]) | ((y[1:] == y[:-1]) & (order[1:] > order[:-1])), True)

        def rows(place):
            begin, end, at = place
            columns = min(int(lengths[-1 - at]), end - begin)
            x = xp.reshape(whole[begin : begin + (end - begin) // columns * columns], (-1, columns))
            y = parprims.sort(x, method="kernel")
            across = parprims.sum(x, axis=1, method="kernel")
            down = parprims.scan(x, "maximum", axis=0, method="kernel")
            bad = differs(y[:, 1:] >= y[:, :-1], True) + differs(across, xp.sum(y, axis=1, dtype=xp.int64))
            return bad + differs(down[1:, :], xp.maximum(down[:-1, :], x[1:, :]))

        def solve(place):
            begin, end, _ = place
            rhs = real[begin:end]
            x = parprims.solve_tridiagonal(-1.0, 3.0, 0.5, rhs, method="kernel")
            residual = 3.0 * x - rhs
            residual[1:] -= x[:-1]
            residual[:-1] += 0.5 * x[1:]
            return differs(xp.abs(residual) < 1e-12, True)

        def matmul(place):
            begin, _, at = place
            m, k, columns = (int(one) for one in sides[at % len(sides)])
            begin %= n // 2
            a = xp.reshape(real[begin : begin + m * k], (m, k))
            b = xp.reshape(real[begin : begin + k * columns], (k, columns))
            c = parprims.matmul(a, b, method="kernel")
            return differs(xp.abs(xp.sum(c, axis=1) - xp.sum(a * xp.sum(b, axis=1), axis=1)) < 1e-9, True)

        functions = (total, scan, recurrence, sort, argsort, rows, solve, matmul)

        def work(thread):
            rng, wrong = np.random.default_rng([SEED, thread]), {}
            for _ in range(CALLS // threads):
                to, at = int(rng.integers(len(each))), int(rng.integers(len(lengths)))
                begin = int(rng.integers(0, n - lengths[at]))
                function = functions[rng.integers(len(functions))]
                with on(streams, each[to]):
                    found = function((begin, begin + int(lengths[at]), at))
                    key = to, function.__name__
                    wrong[key] = wrong[key] + found if key in wrong else found
            finish(streams)
            return [(SEED, thread, *key) for key, count in wrong.items() if int(count)]

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            wrong = [one for found in pool.map(work, range(threads)) for one in found]
        assert not wrong, "seed, thread, stream and primitive"

    @pytest.mark.parametrize("n", [31, 32, 33, 63, 64, 65, 1023, 1025])
    def test_edges_of_warps_again_and_again(self, streams, rng, n):
        """Fault 16: up to 10 000 repetitions of every kernel on lengths around those of warps and blocks."""
        xp = streams.xp
        x = rng.integers(-99, 100, (7, n)).astype(np.int32)
        lower, diag, upper, rhs = systems(7, n)(rng)
        a = rng.integers(-9, 9, (n, 33)).astype(np.float32)
        row, rows, matrix = streams.asarray(x[0]), streams.asarray(x), streams.asarray(a)
        system = arrays(streams, (lower, diag, upper, rhs))
        calls = {
            "sum": lambda: parprims.sum(row, method="kernel"),
            "sums": lambda: parprims.sum(rows, axis=1, method="kernel"),
            "scan": lambda: parprims.cumulative_sum(row, method="kernel"),
            "scans": lambda: parprims.scan(rows, "maximum", axis=1, method="kernel"),
            "sort": lambda: parprims.sort(row, method="kernel"),
            "sorts": lambda: parprims.sort(rows, method="kernel"),
            "solve": lambda: parprims.solve_tridiagonal(*system, method="kernel"),
            "product": lambda: parprims.matmul(matrix.T, matrix, method="kernel"),
        }
        expected = {
            "sum": x[0].sum(dtype=np.int64),
            "sums": x.sum(1, dtype=np.int64),
            "scan": x[0].cumsum(dtype=np.int64),
            "scans": np.maximum.accumulate(x, 1),
            "sort": np.sort(x[0]),
            "sorts": np.sort(x, 1),
            "product": a.T @ a,
        }
        for name, call in calls.items():
            first = call()
            if name in expected:
                np.testing.assert_array_equal(streams.to_numpy(first), expected[name])
            else:
                check_solution((lower, diag, upper, rhs), (streams.to_numpy(first),))
            wrong = xp.zeros((), dtype=xp.int64, device=row.device)
            for _ in range(min(10_000, CALLS // 10)):
                wrong += xp.sum(xp.astype(call() != first, xp.int64))
            assert int(wrong) == 0, name

    def test_memory_stays_where_it_was(self, streams, rng):
        """10 000 mixed calls, eager and captured, leave as much memory as there was."""
        cases = [(case, arrays(streams, case.make(rng))) for case in CASES]
        own = driver.current()
        x = streams.asarray(rng.integers(-9, 9, 200_000).astype(np.int32))
        stream = new_stream(streams)

        def work(count):
            for turn in range(count):
                case, inputs = cases[turn % len(cases)]
                with on(streams, stream):
                    case(*inputs)
                    parprims.cumulative_sum(x[turn % 1000 :], method="kernel")
                if turn % 250 == 0:
                    finish(streams)
                    graph, results = capture(streams, stream, lambda case=case, inputs=inputs: case(*inputs))
                    launch(streams, graph, stream)
                    finish(streams)
                    del graph, results
            gc.collect()
            finish(streams)
            release(streams)

        def held():
            with own.prepares(0), own._lock:
                own._free_ended()
            graphs = [size for graph in own._graphs.values() for _, _, size in graph.memory]
            return used(streams), sum(size for _, size in own._scratch.values()), sum(graphs)

        work(1250)
        until(lambda: held()[2] == 0, 5)
        before = held()
        work(min(5000, CALLS // 2))
        assert until(lambda: held() == before), (before, held())


# ---- Memory that is not there ---------------------------------------------------------------------------------------


class TestOutOfMemory:
    @every_case
    def test_each_allocation(self, streams, rng, case):
        """Fault 24: whichever allocation of a call fails, it raises, inputs stay, and the next call is right."""
        data = case.make(rng)
        inputs = arrays(streams, data)
        case(*inputs)
        failed = 0
        for at in range(1, 50):
            with self.failing(streams, at) as made:
                try:
                    case(*inputs)
                except Exception as error:
                    failed += 1
                    assert "memory" in str(error).lower(), error  # noqa: PT017  of several types
                    assert isinstance(error, MemoryError | RuntimeError)  # noqa: PT017  PyTorch's is the latter
            if made[0] < at:
                break
            for one, other in zip(inputs, data, strict=True):
                np.testing.assert_array_equal(streams.to_numpy(one), other)
            check(streams, case, data, case(*inputs))
        assert failed >= 1
        assert failed == at - 1

    @contextlib.contextmanager
    def failing(self, gpu, at):
        """Let the library's allocation of that number fail; give how many there were."""
        made = [0]
        if gpu.name == "cupy":
            import cupy

            usual = cupy.cuda.get_allocator()

            def allocate(nbytes):
                made[0] += 1
                if made[0] == at:
                    raise cupy.cuda.memory.OutOfMemoryError(nbytes, 0)
                return usual(nbytes)

            with cupy.cuda.using_allocator(allocate):
                yield made
            return
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                made[0] += 1
                if made[0] == at:
                    raise torch.cuda.OutOfMemoryError("CUDA out of memory")
                return function(*args, **(kwargs or {}))

        with Counting():
            yield made

    def test_nearly_full(self, streams, rng):
        """The same by the device's own refusal: ever more memory, until a large sort succeeds."""
        from tests.test_sort_kernel import limited

        keys = rng.integers(-(1 << 30), 1 << 30, 1 << 23).astype(np.int32)
        x, failed = streams.asarray(keys), 0
        expected = np.sort(keys)
        for left in range(40):
            finish(streams)
            with limited(streams, (left * 8 + 1) << 20) as error:
                try:
                    y = parprims.sort(x, method="kernel")
                except error:
                    failed += 1
                    continue
            np.testing.assert_array_equal(streams.to_numpy(y), expected)
            break
        assert failed > 1
        np.testing.assert_array_equal(streams.to_numpy(x), keys)
        np.testing.assert_array_equal(streams.to_numpy(parprims.sort(x, method="kernel")), expected)


# ---- Beyond 32 bits -------------------------------------------------------------------------------------------------


@pytest.fixture
def room(streams):
    """Return a function that waits for so much memory, which tests in other processes leave meanwhile."""
    if streams.name != "cupy":
        pytest.skip("one library is enough")
    import fcntl

    import cupy

    def wait(nbytes):
        release(streams)
        if not until(lambda: cupy.cuda.runtime.memGetInfo()[0] > nbytes + (2 << 30), 60):
            pytest.skip(f"needs {nbytes >> 30} GB of memory")
        return cupy

    with open(pathlib.Path(tempfile.gettempdir()) / "parprims-memory.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield wait
        finish(streams)
        release(streams)


RAMP = 251


def ramps(cupy, n, dtype="uint8"):
    """Return 0, 1, ..., 250, 0, ... by index arithmetic on slices, since a library's arange may err (fault 7)."""
    x = cupy.empty(n, dtype)
    whole = n // RAMP * RAMP
    x[:whole].reshape(-1, RAMP)[...] = cupy.arange(RAMP).astype(dtype)
    x[whole:] = cupy.arange(n - whole).astype(dtype)
    return x


def are_sorted_ramps(y, n):
    """Return whether these are the sorted numbers of `ramps`."""
    bounds, right = 0, True
    for value in range(RAMP):
        count = n // RAMP + (value < n % RAMP)
        right = right and bool((y[bounds : bounds + count] == value).all())
        bounds += count
    return right and bounds == n


FAR = (1 << 32) + 12_345


class TestBeyond32Bits:
    """More than 2^32 elements, or 4 GB: every primitive and axis; faults 2 to 8."""

    def test_reductions(self, room):
        cupy = room(6 << 30)
        x = ramps(cupy, FAR)
        whole, rest = divmod(FAR, RAMP)
        total = whole * (RAMP * (RAMP - 1) // 2) + rest * (rest - 1) // 2
        assert int(parprims.sum(x, method="kernel")) == total
        assert int(parprims.vecdot(x[: 1 << 20].astype("int64"), x[: 1 << 20].astype("int64"), method="kernel")) > 0
        x[...] = 0
        assert not bool(parprims.any(x, method="kernel"))
        for place in (FAR - 1, 1 << 32, (1 << 32) - 1, (1 << 31) + 1):
            x[place] = 7
            assert int(parprims.max(x, method="kernel")) == 7
            assert int(parprims.sum(x, method="kernel")) == 7
            x[place] = 0

    @pytest.mark.parametrize("shape", [(2, (1 << 31) + 1), (4_194_305, 1025), ((1 << 31) + 1, 2), (309_504, 3, 5000)])
    def test_reductions_along_an_axis(self, room, shape):
        count = int(np.prod(shape, dtype=np.int64))
        cupy = room(44 << 30)
        x = ramps(cupy, count).reshape(shape)
        for axis in range(len(shape)):
            top = parprims.max(x, axis=axis, method="kernel")
            total = parprims.sum(x, axis=axis, method="kernel")
            along = max(range(len(shape)), key=shape.__getitem__)  # pieces of so many elements are easy to be right on
            step = -(-shape[along] // (count >> 27))
            tops, sums = cupy.zeros_like(top), cupy.zeros_like(total)
            for begin in range(0, shape[along], step):
                part = x[(slice(None),) * along + (slice(begin, begin + step),)]
                if along == axis:
                    tops = cupy.maximum(tops, part.max(axis=axis))
                    sums += part.sum(axis=axis, dtype=total.dtype)
                else:
                    place = (slice(None),) * (along - (along > axis)) + (slice(begin, begin + step),)
                    assert bool((top[place] == part.max(axis=axis)).all())
                    assert bool((total[place] == part.sum(axis=axis, dtype=total.dtype)).all())
            if along == axis:
                assert bool((top == tops).all())
                assert bool((total == sums).all())
            del top, total, tops, sums

    def test_cumulative_sum(self, room):
        """Fault 2."""
        n = (1 << 31) + 7
        cupy = room(44 << 30)
        y = parprims.cumulative_sum(cupy.ones(n, "int8"), method="kernel")
        places = (0, (1 << 31) - 1, 1 << 31, (1 << 31) + 1, n - 1)
        assert [int(y[place]) for place in places] == [place + 1 for place in places]
        assert bool((y[1:] - y[:-1] == 1).all())

    def test_cumulative_sum_far(self, room):
        cupy = room(44 << 30)
        y = parprims.cumulative_sum(cupy.ones(FAR, "int8"), method="kernel")
        places = (0, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, FAR - 1)
        assert [int(y[place]) for place in places] == [place + 1 for place in places]

    @pytest.mark.parametrize("reverse", [False, True])
    def test_scan(self, room, reverse):
        cupy = room(14 << 30)
        x = cupy.zeros(FAR, "int8")
        x[(1 << 31) + 5], x[(1 << 32) + 7] = (2, 3) if not reverse else (3, 2)
        y = parprims.scan(x, "maximum", reverse=reverse, method="kernel")
        (low, high), steps = ((1 << 31) + 5, (1 << 32) + 7), (0, 2, 3)
        if reverse:
            parts = ((y[: low + 1], 3), (y[low + 1 : high + 1], 2), (y[high + 1 :], 0))
        else:
            parts = tuple(zip((y[:low], y[low:high], y[high:]), steps, strict=True))
        assert all(bool((part == value).all()) for part, value in parts)

    @pytest.mark.parametrize(
        ("shape", "axis"),
        [
            ((309_504, 1, 16_384), 1),
            ((309_504, 3, 5000), 1),
            ((2, (1 << 31) + 1), 0),
            ((2, (1 << 31) + 1), 1),
            (((1 << 31) + 1, 2), 0),
            ((4_194_305, 1025), 1),
            ((4_194_305, 1025), 0),
        ],
    )
    def test_scan_along_an_axis(self, room, shape, axis):
        """Faults 3, 4 and 5."""
        count = int(np.prod(shape, dtype=np.int64))
        cupy = room(5 * count)
        x = ramps(cupy, count).reshape(shape)
        y = parprims.scan(x, "bitwise_xor", axis=axis, method="kernel")
        assert y.dtype == x.dtype
        first = (slice(None),) * axis
        assert bool((y[(*first, slice(0, 1))] == x[(*first, slice(0, 1))]).all())
        step = max(1, count >> 30)
        for begin in range(1, shape[axis], -(-shape[axis] // step)):
            end = min(shape[axis], begin + -(-shape[axis] // step))
            here, before = (*first, slice(begin, end)), (*first, slice(begin - 1, end - 1))
            assert bool((y[here] == y[before] ^ x[here]).all())

    def test_recurrence(self, room):
        cupy = room(24 << 30)
        n = FAR // 256 * 256
        one = cupy.ones(n, "uint8")
        y = parprims.linear_recurrence(one, one, method="kernel").reshape(-1, 256)
        assert bool((y == (cupy.arange(256) + 1).astype("uint8")).all())

    def test_sort(self, room):
        cupy = room(24 << 30)
        x = ramps(cupy, FAR)
        assert are_sorted_ramps(parprims.sort(x, method="kernel"), FAR)

    @pytest.mark.parametrize(
        ("shape", "axis"), [((4_194_305, 1025), 1), ((1025, 4_194_305), 0), ((2, (1 << 31) + 1), 1)]
    )
    def test_sort_along_an_axis(self, room, shape, axis):
        count = int(np.prod(shape, dtype=np.int64))
        cupy = room(7 * count)
        x = ramps(cupy, count).reshape(shape)
        y = parprims.sort(x, axis=axis, method="kernel")
        lines = (0, shape[1 - axis] // 2, shape[1 - axis] - 1)
        step = -(-shape[0] // 8)
        for begin in range(0, shape[0], step):
            part = y[begin : begin + step + (axis == 0)]
            right = part[:, 1:] >= part[:, :-1] if axis == 1 else part[1:] >= part[:-1]
            assert bool(right.all())
        for line in lines:
            one, other = (cupy.take(z, line, axis=1 - axis) for z in (x, y))
            assert bool((cupy.bincount(one, minlength=256) == cupy.bincount(other, minlength=256)).all())

    def test_argsort(self, room):
        n = (1 << 31) + 5
        cupy = room(80 << 30)
        x = ramps(cupy, n)
        order = parprims.argsort(x, method="kernel")
        bounds = 0
        for value in range(RAMP):  # equal numbers stand RAMP apart, in their order
            count = n // RAMP + (value < n % RAMP)
            part = order[bounds : bounds + count]
            assert int(part[0]) == value
            assert bool((part[1:] - part[:-1] == RAMP).all())
            bounds += count

    def test_more_than_four_gigabytes_of_float64(self, room):
        """Fault 6."""
        n = (1 << 29) + 1
        cupy = room(26 << 30)
        y = parprims.scan(cupy.ones(n, "float64"), method="kernel")
        assert bool((y[1:] - y[:-1] == 1).all())
        assert float(y[-1]) == n
        del y
        x = (cupy.arange(n) * 40_503 % (1 << 31)).astype("float64")
        y = parprims.sort(x, method="kernel")
        assert bool((y[1:] >= y[:-1]).all())
        assert int(y.astype("int64").sum()) == int(x.astype("int64").sum())
        assert bool((y[-5000:] == cupy.sort(x[x >= y[-5000]])[-5000:]).all())

    def test_product_with_many_results(self, room):
        n = (1 << 16) + 1
        cupy = room(16 << 30)
        left, right = cupy.arange(n) % 5, cupy.arange(n) % 7
        a, b = cupy.zeros((n, 8), "float16"), cupy.zeros((8, n), "float16")
        a[:, 3], b[3] = left, right
        c = parprims.matmul(a, b, method="kernel")
        for begin in range(0, n, 8192):
            part = (left[begin : begin + 8192, None] * right[None]).astype("float16")
            assert bool((c[begin : begin + 8192] == part).all())

    def test_product_with_many_inputs(self, room):
        cupy = room(14 << 30)
        m, k = (1 << 20) + 1, 4096
        a, b = cupy.zeros((m, k), "float16"), cupy.zeros((k, 8), "float16")
        left = (cupy.arange(m) % 5).astype("float16")
        a[:, k - 1], b[k - 1] = left, cupy.arange(8)
        c = parprims.matmul(a, b, method="kernel")
        assert bool((c == left[:, None] * cupy.arange(8).astype("float16")).all())
        del a, c
        long = cupy.zeros(FAR, "float16")
        for place in (0, (1 << 31) + 3, (1 << 32) + 11, FAR - 1):
            long[place] = 3
        c = parprims.matmul(long[None, :], long[:, None], method="kernel")
        assert float(c[0, 0]) == 36.0

    def test_many_products(self, room):
        cupy = room(2 << 30)
        count = (1 << 16) + 1
        a = (ramps(cupy, count * 12) % 5).reshape(count, 3, 4).astype("float32")
        b = (ramps(cupy, count * 8) % 7).reshape(count, 4, 2).astype("float32")
        expected = (a[:, :, :, None] * b[:, None]).sum(axis=2)
        assert bool((parprims.matmul(a, b, method="kernel") == expected).all())

    @pytest.mark.parametrize(("shape", "axis"), [(((1 << 26) + 1, 64), 1), ((64, (1 << 26) + 1), 0)])
    def test_systems(self, room, shape, axis):
        cupy = room(80 << 30)
        self.solve(cupy, shape, axis)

    def test_one_system(self, room):
        cupy = room(80 << 30)
        self.solve(cupy, ((1 << 32) + 4,), 0)

    def solve(self, cupy, shape, axis):
        """Solve -x[i-1] + 3 x[i] - x[i+1] = rhs where x is 1, 2, 3, 4, 1, ... times a number for every system."""
        lines = cupy.moveaxis(cupy.empty(shape, "float32"), axis, -1)
        n = lines.shape[-1]
        pattern, found = (
            cupy.asarray([1, 2, 3, 4], "float32"),
            cupy.asarray([3 - 4 - 2, 6 - 1 - 3, 9 - 2 - 4, 12 - 3 - 1], "float32"),
        )
        scale = (
            (cupy.arange(lines.shape[0]) % 5 + 1).astype("float32")[:, None]
            if lines.ndim == 2
            else cupy.ones((), "float32")
        )
        for at in range(4):
            lines[..., at::4] = found[at] * (scale if lines.ndim == 2 else 1)
        lines[..., 0] += 4 * scale.reshape(lines.shape[:-1])
        lines[..., -1] += pattern[n % 4] * scale.reshape(lines.shape[:-1])
        rhs = cupy.moveaxis(lines, -1, axis)
        x = cupy.moveaxis(
            parprims.solve_tridiagonal(-1, 3, -1, rhs, axis=axis, pivot="none", method="kernel"), axis, -1
        )
        for at in range(4):
            part = x[..., at::4]
            part -= pattern[at] * scale
            assert float(max(part.max(), -part.min())) < 1e-4

    @pytest.mark.parametrize("columns", [524_281, 65_536 * 8 + 1])
    def test_many_right_sides(self, room, columns):
        """Fault 8."""
        cupy = room(4 << 30)
        n = 9
        rng = cupy.random.default_rng(1)
        lower, upper = (rng.standard_normal((n, 1)) for _ in range(2))
        diag = abs(lower) + abs(upper) + 1
        rhs = rng.standard_normal((n, columns))
        for rhs_, axis in ((rhs, 0), (cupy.ascontiguousarray(rhs.T), 1)):
            given = (lower, diag, upper) if axis == 0 else (lower.T, diag.T, upper.T)
            x = parprims.solve_tridiagonal(*given, rhs_, axis=axis, method="kernel")
            x = x if axis == 0 else x.T
            residual = diag * x - rhs
            residual[1:] += lower[1:] * x[:-1]
            residual[:-1] += upper[:-1] * x[1:]
            assert float(abs(residual).max()) < 1e-12

    def test_many_systems(self, room):
        cupy = room(4 << 30)
        rng = cupy.random.default_rng(2)
        for count, n in ((65_537, 9), (65_537, 700)):
            lower, upper, rhs = (rng.standard_normal((count, n)) for _ in range(3))
            diag = abs(lower) + abs(upper) + 1
            x = parprims.solve_tridiagonal(lower, diag, upper, rhs, method="kernel")
            residual = diag * x - rhs
            residual[:, 1:] += lower[:, 1:] * x[:, :-1]
            residual[:, :-1] += upper[:, :-1] * x[:, 1:]
            assert float(abs(residual).max()) < 1e-11


# ---- Layouts, and processes -----------------------------------------------------------------------------------------


def test_reverse_and_not_commutative(gpu, rng):
    """Fault 15: in the smallest shape, and around a warp, also exclusive."""
    for shape in ((2, 9), (3, 33), (2, 2049)):
        data = tuple(rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))
        for exclusive in (False, True):
            options = {"axis": 1, "reverse": True, "exclusive": exclusive}
            found = parprims.scan(arrays(gpu, data), "affine", method="kernel", **options)
            for one, other in zip(found, parprims.scan(data, "affine", method="array", **options), strict=True):
                np.testing.assert_array_equal(gpu.to_numpy(one), other)


@every_case
def test_views(streams, rng, case):
    """Fault 26: transposed, offset by one element, with gaps, negative, zero and overlapping steps, where there are."""
    data = case.make(rng)
    inputs = arrays(streams, data)
    xp = streams.xp

    def offset(x):
        room = xp.zeros((int(np.prod(x.shape)) + 1,), dtype=x.dtype, device=x.device)
        room[1:] = xp.reshape(x, (-1,))
        return xp.reshape(room[1:], x.shape)

    def gapped(x):
        room = xp.zeros((*x.shape[:-1], 3 * x.shape[-1]), dtype=x.dtype, device=x.device)
        view = room[..., 1::3]
        view[...] = x
        return view

    def turned(x):
        if x.ndim < 2:
            return x
        return x.T.contiguous().T if streams.name == "torch-cuda" else xp.ascontiguousarray(x.T).T

    def backward(x):  # PyTorch has no negative steps
        return x if streams.name == "torch-cuda" else xp.ascontiguousarray(x[..., ::-1])[..., ::-1]

    for view in (offset, gapped, turned, backward):
        check(streams, case, data, case(*(view(x) for x in inputs)))
    for one, other in zip(inputs, data, strict=True):
        np.testing.assert_array_equal(streams.to_numpy(one), other)


def test_steps_of_zero_and_overlapping(streams, rng):
    """Fault 26: elements of a view that are the same memory."""
    x = rng.integers(-99, 99, 5003).astype(np.int32)
    array = streams.asarray(x)
    for window in (1, 3, 700):
        expected = np.lib.stride_tricks.sliding_window_view(x, window)[:4000]
        if streams.name == "cupy":
            import cupy

            view = cupy.lib.stride_tricks.as_strided(array, (4000, window), (4, 4))
        else:
            view = array.as_strided((4000, window), (1, 1))
        for axis in (0, 1):
            found = (
                (parprims.sum(view, axis=axis, method="kernel"), expected.sum(axis, dtype=np.int64)),
                (parprims.cumulative_sum(view, axis=axis, method="kernel"), expected.cumsum(axis, dtype=np.int64)),
                (parprims.sort(view, axis=axis, method="kernel"), np.sort(expected, axis)),
            )
            for one, other in found:
                np.testing.assert_array_equal(streams.to_numpy(one), other)
    wide = streams.xp.broadcast_to(array[:300], (70, 300))
    expected = np.broadcast_to(x[:300], (70, 300))
    for axis in (0, 1):
        total = streams.to_numpy(parprims.cumulative_sum(wide, axis=axis, method="kernel"))
        np.testing.assert_array_equal(total, expected.cumsum(axis, dtype=np.int64))
        ordered = streams.to_numpy(parprims.sort(wide, axis=axis, method="kernel"))
        np.testing.assert_array_equal(ordered, np.sort(expected, axis))
    np.testing.assert_array_equal(streams.to_numpy(array), x)


REPLAYS = """
import numpy as np, cupy, parprims
rng = np.random.default_rng(1)
stream = cupy.cuda.Stream(non_blocking=True)
for dtype, m, k, n in (
    ("float16", 512, 512, 512), ("float16", 136, 264, 520), ("float32", 512, 512, 512), ("float32", 1040, 1040, 1000)
):
    for turned in (False, True):
        shapes = (k, m) if turned else (m, k), (k, n)
        a, b = (cupy.asarray(rng.integers(-2, 3, shape).astype(dtype)) for shape in shapes)
        a = a.T if turned else a
        expected = (a.astype("float64") @ b.astype("float64")).astype(dtype)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            c = parprims.matmul(a, b, method="kernel")
            graph = stream.end_capture()
            for _ in range(100):
                c[...] = 7
                graph.launch()
        stream.synchronize()
        assert bool((c == expected).all()), (dtype, m, k, n, turned)
print("right")
"""


def test_barriers_of_shared_memory_under_replay(streams):
    """Fault 21: 100 replays of every kernel with such barriers, in five processes at once."""
    if streams.name != "cupy":
        pytest.skip("one library is enough")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", REPLAYS], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(5)
    ]
    for process in started:
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 0, output.decode()[-3000:]


@pytest.mark.sanitize
def test_every_rest_of_a_tile(streams, rng):
    """Fault 21: a last tile of every length modulo 32."""
    for n in range(32):
        x = rng.integers(-9, 9, (2, 320 + n)).astype(np.int32)
        array = streams.asarray(x)
        np.testing.assert_array_equal(streams.to_numpy(parprims.sum(array, axis=1, method="kernel")), x.sum(1))
        np.testing.assert_array_equal(
            streams.to_numpy(parprims.cumulative_sum(array, axis=1, method="kernel")), x.cumsum(1)
        )
        np.testing.assert_array_equal(streams.to_numpy(parprims.sort(array, method="kernel")), np.sort(x))


@pytest.mark.sanitize
@pytest.mark.parametrize("way", ["CHAINED", "SERIAL"])
def test_ways_of_many_long_lines(streams, rng, monkeypatch, way):
    """Tiles that wait for the one before alone, and blocks that go along a line each, here of few lines."""
    taken, begin = [], _cuda.Runner.__init__

    def noted(self, xp, plan, device):
        taken.append(plan.launches[0].name)
        begin(self, xp, plan, device)

    changed = {"CHAINED": {"chained_lines": 2}, "SERIAL": {"serial_lines": 2}}[way]
    monkeypatch.setattr(_scan_kernel, "TUNING", {90: dataclasses.replace(_scan_kernel.TUNING[90], **changed)})
    emulator.forget(monkeypatch)
    monkeypatch.setattr(_cuda.Runner, "__init__", noted)
    for shape, axis in (((3, 100_001), 1), ((5001, 33), 0)) if way == "CHAINED" else (((3, 100_001), 1),):
        for dtype in ("int8", "int32"):
            a, b = (x.astype(dtype) for x in maps(*shape)(rng))
            first, second = arrays(streams, (a, b))
            y = parprims.scan(second, "maximum", axis=axis, method="kernel")
            np.testing.assert_array_equal(streams.to_numpy(y), np.maximum.accumulate(b, axis))
            y = streams.to_numpy(parprims.linear_recurrence(first, second, axis=axis, method="kernel"))
            check_recurrence([np.moveaxis(x, axis, -1) for x in (a, b)], [np.moveaxis(y, axis, -1)])
    assert len(taken) >= 4
    assert all(way in body for body in taken)

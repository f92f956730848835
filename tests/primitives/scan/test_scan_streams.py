"""The kernel of scans on streams, in graphs and in programs of PyTorch and JAX, and its memory."""

import concurrent.futures
import functools

import numpy as np
import pytest
from array_api_compat import device

import parprims
from parprims._primitives.recurrence import public as public_recurrence
from tests.primitives.scan.test_scan import affine
from tests.primitives.scan.test_scan_kernel import reference
from tests.support.contract import compare, eps, random


def other_stream(backend):
    """Return a new stream, and the context in which it is the current one."""
    if backend.name == "cupy":
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)
        return stream, stream
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.default_stream())
    return stream, torch.cuda.stream(stream)


def wait(backend):
    """Wait for all work on the device."""
    if backend.name == "cupy":
        import cupy

        cupy.cuda.Device().synchronize()
    elif backend.name == "torch-cuda":
        import torch

        torch.cuda.synchronize()


class TestReproducible:
    """The same input gives the same bits."""

    @pytest.mark.parametrize(
        ("shape", "axis"),
        [((5_000_007,), 0), ((7, 300_001), 1), ((1000, 5000), 1), ((100_003, 33), 0), ((9, 3001, 40), 1)],
    )
    def test_same_bits(self, gpu, run, rng, shape, axis):
        x = gpu.asarray(rng.standard_normal(shape, np.float32))
        a = gpu.asarray(np.exp(rng.standard_normal(shape, np.float32) / 64))
        count, zero = gpu.asarray(np.ones(shape, np.float32)), gpu.asarray(np.zeros(shape, np.float32))
        calls = (
            functools.partial(run, parprims.scan, x),
            functools.partial(run, parprims.scan, (a, x), "affine"),
            functools.partial(run, parprims.scan, (count, x, zero), "welford"),
            functools.partial(run, parprims.linear_recurrence, a, x),
        )
        for call in calls:
            found = set()
            for turn in range(20):
                if turn == 10 and gpu.streams:
                    wait(gpu)
                    stream, current = other_stream(gpu)
                    with current:  # from here on the device has other work beside
                        y = x
                        for _ in range(200):
                            y = y * 0.5 + 1.0
                result = call(axis=axis, method="kernel")
                ones = result if isinstance(result, tuple) else (result,)
                found.add(b"".join(gpu.to_numpy(one).tobytes() for one in ones))
            if gpu.streams:
                stream.synchronize()
            assert len(found) == 1


class TestStreams:
    """Streams, threads, graphs and devices."""

    def test_streams_and_threads(self, streams):
        rng = np.random.default_rng(4)
        a, b = (random(rng, (400_009,), "int32") for _ in range(2))
        arrays = tuple(streams.asarray(x) for x in (a, b))
        flat = streams.asarray(b[:400_000].reshape(4000, 100))

        def work(index):
            stream, current = other_stream(streams)
            with current:
                results = [
                    (
                        parprims.scan(arrays[1][index:], method="kernel"),
                        parprims.linear_recurrence(arrays[0][index:], arrays[1][index:], method="kernel"),
                        parprims.scan(flat, axis=index % 2, method="kernel"),
                    )
                    for _ in range(25)
                ]
            stream.synchronize()
            return results

        wait(streams)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for index, results in enumerate(pool.map(work, range(8))):
                expected = (
                    np.cumsum(b[index:], dtype=np.int64),
                    reference(affine, (a[index:], b[index:]))[1],
                    np.cumsum(b[:400_000].reshape(4000, 100), axis=index % 2, dtype=np.int64),
                )
                for result in results:
                    compare(streams, result, expected)

    def test_captured_into_a_graph(self, streams):
        rng = np.random.default_rng(5)
        data = [tuple(random(rng, (1_234_567,), "int32") for _ in range(2)) for _ in range(4)]
        a, b = (streams.asarray(x) for x in data[0])
        waiting = [tuple(streams.asarray(x) for x in pair) for pair in data]

        def captured():
            return parprims.scan(b, method="kernel"), parprims.linear_recurrence(a, b, method="kernel")

        def eager(index):
            rows = streams.xp.reshape(waiting[index][1][:1_200_000], (1200, 1000))
            return parprims.scan(waiting[index][1][5:], method="kernel"), parprims.scan(rows, axis=0, method="kernel")

        checks = []

        def replay(launch):
            for index in (1, 2, 3, 1):
                a[...], b[...] = waiting[index]
                first = eager(index)
                launch()
                launch()
                last = eager(index)
                checks.append((index, tuple(streams.xp.asarray(y, copy=True) for y in results), first, last))

        if streams.name == "cupy":
            wait(streams)
            stream, current = other_stream(streams)
            with current:
                kept = captured()  # CuPy takes no memory from the device while it captures
                del kept
                stream.begin_capture()
                results = captured()
                graph = stream.end_capture()
                replay(graph.launch)
            stream.synchronize()
        else:
            import torch

            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                results = captured()
            replay(graph.replay)
        for index, found, *others in checks:
            one, other = data[index]
            sums = np.cumsum(other, dtype=np.int64)
            compare(streams, found, (sums, reference(affine, (one, other))[1]))
            rows = np.cumsum(other[:1_200_000].reshape(1200, 1000), axis=0, dtype=np.int64)
            for pair in others:
                compare(streams, pair, (sums[5:] - sums[4], rows))

    def test_another_device_than_the_current(self, gpu, rng):
        x = random(rng, (1_234_567,), "int32")
        if gpu.name == "cupy":
            import cupy

            if cupy.cuda.runtime.getDeviceCount() < 2:
                pytest.skip("needs two GPUs")
            with cupy.cuda.Device(1):
                there = cupy.asarray(x)
        elif gpu.name == "torch-cuda":
            import torch

            if torch.cuda.device_count() < 2:
                pytest.skip("needs two GPUs")
            there = torch.from_numpy(x).to("cuda:1")
        else:
            import jax

            if len(jax.devices("cuda")) < 2:
                pytest.skip("needs two GPUs")
            there = jax.device_put(x, jax.devices("cuda")[1])
        here = gpu.asarray(x)
        for array in (there, here, there):
            for part in (array, array[1:], array[:100]):
                sums = parprims.scan(part, method="kernel")
                assert device(sums) == device(array)
                compare(gpu, sums, np.cumsum(gpu.to_numpy(part), dtype=np.int64))
        assert device(gpu.asarray(x)) == device(here)  # the current device is what it was


class TestTorch:
    """Calls like one before, which go straight to their kernel."""

    def test_transformations(self, tensors, rng):
        import torch
        from torch.autograd import forward_ad

        x = tensors.asarray(rng.standard_normal((3, 50)))
        for function in (lambda x: parprims.linear_recurrence(x, x), parprims.scan):
            for _ in range(3):
                y = function(x)
            torch.testing.assert_close(torch.func.vmap(function)(x), y)
            with forward_ad.dual_level():
                found = forward_ad.unpack_dual(function(forward_ad.make_dual(x, torch.ones_like(x))))
            torch.testing.assert_close(found.primal, y)
            assert found.tangent is not None

    @pytest.mark.parametrize("shape", [(3, 50, 4), (50, 1), (1, 1), ()])
    @pytest.mark.parametrize("reverse", [False, True])
    def test_backward(self, tensors, rng, subtests, monkeypatch, shape, reverse):
        import torch

        def derivatives(a, b, g, method, **options):
            x = parprims.linear_recurrence(a, b, axis=1, reverse=reverse, method=method)
            return [x, *torch.autograd.grad(x, [one for one in (a, b) if one.requires_grad], g, **options)]

        def twice(a, b, g, method):
            ones = derivatives(a, b, g, method, create_graph=True)[1:]
            return torch.autograd.grad(sum((one * one).sum().real for one in ones), a) if a.requires_grad else ones

        for asked_for in ((True, True), (True, False), (False, True)):
            for dtype in ("float64", "complex128", "float32"):
                with subtests.test(asked_for=asked_for, dtype=dtype):
                    calls = []
                    for _ in range(4):
                        shapes = (shape, (3, 50, 4), (3, 50, 4))
                        a, b, g = (tensors.asarray(random(rng, one, dtype) / 4) for one in shapes)
                        a.requires_grad_(asked_for[0]), b.requires_grad_(asked_for[1])
                        calls.append((a, b, g, derivatives(a, b, g, "array")))
                    for at, (a, b, g, expected) in enumerate(calls):
                        with monkeypatch.context() as patch:
                            if at == 3:  # nothing is left to choose
                                patch.setattr(public_recurrence.LINEAR_RECURRENCE, "methods", None)
                                patch.setattr(public_recurrence, "_ADJOINT", None)
                            found = derivatives(a, b, g, "kernel")
                        torch.testing.assert_close(found, expected)
                    with parprims.explain() as told:
                        derivatives(a, b, g, "kernel")
                    assert told[0].method == "kernel"
                    with torch.no_grad():
                        plain = parprims.linear_recurrence(a, b, axis=1, reverse=reverse, method="kernel")
                    assert not plain.requires_grad
                    found, expected = twice(a, b, g, "auto"), twice(a, b, g, "array")
                    if shape == () and dtype == "float32":  # a sum of all: 2n units of that of absolute values, each
                        positive = [abs(one.detach()).requires_grad_(one.requires_grad) for one in (a, b)]
                        for one, other, size in zip(found, expected, twice(*positive, abs(g), "array"), strict=True):
                            assert bool((abs(one - other) <= 2 * 2 * 50 * 2.0**-23 * size).all())
                    else:
                        torch.testing.assert_close(found, expected)


class TestMemory:
    """What the kernel reads, writes and takes."""

    def test_outputs_are_all_written(self, streams, run, rng):
        xp = streams.xp
        for shape, axis in (
            ((1_000_003,), 0),
            ((1000, 1000), 0),
            ((1000, 1000), 1),
            ((100_000, 7), 1),
            ((7, 100_001), 1),
        ):
            x = random(rng, shape, "float64")
            array = streams.asarray(x)
            poison = [xp.full(shape, np.nan, dtype=array.dtype, device=device(array)) for _ in range(2)]
            del poison
            expected = np.cumsum(x, axis=axis)
            bound = shape[axis] * eps("float64") * np.cumsum(abs(x), axis=axis)
            compare(streams, run(parprims.scan, array, axis=axis, method="kernel"), expected, bound)
            start = random(rng, (), "float64").item()
            result = run(parprims.scan, array, axis=axis, exclusive=True, initial=start, method="kernel")
            expected = start + expected - x
            compare(streams, result, expected, 4 * (bound + eps("float64") * (1 + abs(x)) * shape[axis]))

    def test_out_of_memory_leaves_the_library_usable(self, streams):
        xp = streams.xp
        one = xp.ones((1,), dtype=xp.float64, device=device(streams.asarray(np.zeros(1))))
        vast = xp.broadcast_to(one, (1 << 36, 2))  # its sums would take a terabyte
        for axis in (0, 1):
            with pytest.raises(Exception, match=r"(?i)out of memory"):
                parprims.scan(vast, axis=axis, method="kernel")
        compare(streams, parprims.scan(one, method="kernel"), np.ones(1))

    def test_result_is_not_the_input(self, streams, run):
        for n in (1, 2, 3, 9000):
            x = streams.asarray(np.arange(float(n)))
            run(parprims.scan, x, method="kernel")[...] = 7.0
            run(parprims.linear_recurrence, x, x, method="kernel")[...] = 7.0
            compare(streams, x, np.arange(float(n)))

    def test_repeated_calls_see_new_data_and_captures(self, gpu, rng):
        state = {"mask": 1}
        for _ in range(3):
            x = random(rng, (40, 3000), "int32")
            array = gpu.asarray(x)
            compare(gpu, parprims.scan(array, method="kernel"), np.cumsum(x, axis=1, dtype=np.int64))
            compare(gpu, parprims.scan(array, axis=0, method="kernel"), np.cumsum(x, axis=0, dtype=np.int64))
            compare(gpu, parprims.scan(array[:, 1:], method="kernel"), np.cumsum(x[:, 1:], axis=1, dtype=np.int64))
            start = random(rng, (40,), "int64")
            result = parprims.scan(array, initial=gpu.asarray(start), method="kernel")
            compare(gpu, result, start[:, None] + np.cumsum(x, axis=1, dtype=np.int64))
            first = int(rng.integers(100))
            result = parprims.scan(array, initial=first, exclusive=True, method="kernel")
            compare(gpu, result, first + np.cumsum(x, axis=1, dtype=np.int64) - x)
            result = parprims.linear_recurrence(array, array, initial=first, method="kernel")
            compare(gpu, result, reference(affine, (x, x), start=(1, first))[1])
            state["mask"] = 2 * state["mask"] + 1
            result = parprims.scan(array, lambda e, f: (e ^ f) & state["mask"], method="kernel")
            # The first element of a row has met no mask yet.
            expected = np.bitwise_xor.accumulate(x, axis=1)
            compare(gpu, result[:, 1:], expected[:, 1:] & state["mask"])
            compare(gpu, result[:, :1], x[:, :1])


class TestJax:
    """The kernel inside JAX programs."""

    @pytest.fixture
    def jax(self, gpu):
        if gpu.name != "jax-cuda":
            pytest.skip("needs JAX on a GPU")
        import jax

        return jax

    def test_jit(self, jax, gpu, run, rng):
        a, b = (random(rng, (3, 5000), "int32") for _ in range(2))

        @jax.jit
        def program(a, b):
            sums = run(parprims.scan, 2 * b, method="kernel")
            x = run(parprims.linear_recurrence, a + 1, b, reverse=True, method="kernel")
            return sums[:, 1:] + 1, x * 3

        for _ in range(2):
            sums, x = program(gpu.asarray(a), gpu.asarray(b))
            compare(gpu, sums, np.cumsum(2 * b, axis=1, dtype=np.int64)[:, 1:] + 1)
            compare(gpu, x, 3 * reference(affine, (a + 1, b), reverse=True)[1])

    @pytest.mark.parametrize("axis", [0, 1])
    def test_vmap(self, jax, gpu, run, rng, axis):
        a, b = (random(rng, (6, 7, 500), "int32") for _ in range(2))
        arrays = tuple(gpu.asarray(x) for x in (a, b))

        def solve(a, b):
            return run(parprims.linear_recurrence, a, b, axis=axis, method="kernel")

        def expected(a, b):
            return reference(affine, (a, b), axis=axis + 1)[1]

        compare(gpu, jax.vmap(solve)(*arrays), expected(a, b))
        compare(gpu, jax.jit(jax.vmap(solve))(*arrays), expected(a, b))
        one = jax.vmap(solve, in_axes=(0, None))(arrays[0], arrays[1][2])
        compare(gpu, one, expected(a, np.broadcast_to(b[2], b.shape)))
        moved = jax.vmap(solve, in_axes=(2, 0))(gpu.asarray(a.transpose(1, 2, 0)), arrays[1])
        compare(gpu, moved, expected(a, b))
        out = jax.vmap(solve, out_axes=1)(*arrays)
        compare(gpu, out, expected(a, b).transpose(1, 0, 2))
        nested = jax.vmap(jax.vmap(lambda row: run(parprims.scan, row, method="kernel")))(arrays[1])
        compare(gpu, nested, np.cumsum(b, axis=2, dtype=np.int64))

    def test_inside_a_loop(self, jax, gpu, run, rng):
        x = random(rng, (5, 3000), "int32")

        def step(carry, row):
            sums = run(parprims.scan, row + carry, method="kernel", dtype=row.dtype)
            return sums, sums[-1]

        last, ends = jax.lax.scan(step, gpu.asarray(np.zeros(3000, np.int32)), gpu.asarray(x))
        carry, totals = np.zeros(3000, np.int32), []
        for row in x:
            carry = np.cumsum(row + carry, dtype=np.int32)
            totals.append(carry[-1])
        compare(gpu, last, carry)
        compare(gpu, ends, np.array(totals))

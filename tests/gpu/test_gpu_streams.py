"""Every kernel on several streams and from several threads, and again and again.

``PARPRIMS_STRESS=100000`` sets the number of calls of the tests marked stress, ``PARPRIMS_STRESS_SEED`` repeats those
of a failed run.
"""

import concurrent.futures
import contextlib
import gc
import os
import warnings

import numpy as np
import pytest

import parprims
from parprims._cuda import compiler, driver
from tests.support.gpu_calls import (
    CASES,
    Spin,
    arrays,
    capture,
    check,
    check_solution,
    every_case,
    finish,
    is_done,
    launch,
    multiprocessors,
    new_stream,
    on,
    release,
    systems,
    until,
    used,
)

CALLS = max(6000, int(os.environ.get("PARPRIMS_STRESS", "300")))
SEED = int(os.environ.get("PARPRIMS_STRESS_SEED", np.random.SeedSequence().entropy % 2**64))


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
                compiler.finish()  # calls before that look whether to wait for a kernel
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

    def test_a_number_first_seen_behind_other_work(self, streams, rng):
        """The array of an initial number is made in the order of the stream that reads it."""
        x = rng.integers(-99, 99, 1003).astype(np.int64)
        array, busy, other = streams.asarray(x), new_stream(streams), new_stream(streams)
        calls = (
            lambda number: parprims.reduce(array, initial=number, method="kernel"),
            lambda number: parprims.scan(array, initial=number, method="kernel")[-1],
        )
        spin = Spin(streams)
        with on(streams, busy):
            for call in calls:  # a kernel that is loaded later may have to wait for one that runs
                call(5)
            finish(streams)
            spin.begin()
            try:
                for call in calls:
                    call(77_777)
                with on(streams, other):
                    results = [call(77_777) for call in calls]
                    ended = until(lambda: is_done(streams, other))
                    found = [int(one) for one in results]
            finally:
                spin.stop()
        finish(streams)
        assert ended
        assert not spin.ran_out
        assert found == [x.sum() + 77_777] * 2

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

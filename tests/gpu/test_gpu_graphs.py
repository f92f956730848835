"""Every kernel captured into CUDA graphs."""

import gc

import numpy as np

import parprims
from parprims._cuda import driver
from tests.support.gpu_calls import (
    CASES,
    arrays,
    capture,
    check,
    copied,
    every_case,
    finish,
    launch,
    new_stream,
    on,
    until,
)


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

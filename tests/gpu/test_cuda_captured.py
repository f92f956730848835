"""The CUDA runtime without a GPU: what carries out one plan with several captured numbers."""

import threading
import time

import pytest

from parprims import _cuda
from parprims._operators.languages import Captured
from tests.bookkeeping import Graph
from tests.gpu import test_cuda
from tests.texts import text_plan

library = test_cuda.library


def captured(number):
    return Captured("captured", "int64", (number,))


class TestCaptured:
    """What carries out one plan with several captured numbers: each launch has the numbers of its call."""

    @staticmethod
    def runners(library, numbers, **sizes):
        library.nbytes = 64
        outputs = (((1,), "int64"),)
        one = text_plan("", "shift", 1, outputs, (), 1, 32, captured=(captured(numbers[0]),), **sizes)
        runner = _cuda.Runner(None, one, 0)
        return [runner.telling((captured(number),)) for number in numbers]

    @pytest.mark.parametrize("sizes", [{}, {"zeroed_bytes": 64}], ids=["alone", "with scratch"])
    def test_each_call_has_its_own(self, library, sizes):
        driver, library.stream = library.driver, 7
        runners = self.runners(library, (10, 200, -3), **sizes)
        x, found = library.of(5), []
        for runner in (*runners, *reversed(runners)):
            found += [runner(x)[0], runner.one(x)]
        driver.run()
        assert [y.value for y in found] == [15, 15, 205, 205, 2, 2, 2, 2, 205, 205, 15, 15]
        assert len(driver.kinds) == 1  # one text

    def test_graphs_keep_theirs(self, library):
        driver, library.stream = library.driver, 7
        runners = self.runners(library, (10, 200))
        x = library.of(5)
        runners[0](x)
        graphs, ys = [], []
        for runner in runners:
            with Graph(driver, 7) as graph:
                ys.append(runner(x)[0])
            graphs.append(graph)
        eager = runners[1](x)[0]
        for graph in graphs:
            graph.launch(7)
        driver.run()
        assert [y.value for y in (*ys, eager)] == [15, 205, 205]

    def test_threads(self, library):
        driver, library.stream = library.driver, 7
        runners = self.runners(library, tuple(range(0, 400, 100)), zeroed_bytes=64)
        driver.before = lambda name: time.sleep(0.0005) if name == "cuLaunchKernelEx" else None
        x, ys = library.of(5), [[] for _ in runners]

        def work(at):
            driver.current.value = 0xC0DE
            ys[at] += [runners[at](x)[0] for _ in range(10)]

        threads = [threading.Thread(target=work, args=(at,)) for at in range(len(runners))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        driver.run()
        assert [[y.value for y in results] for results in ys] == [[100 * at + 5] * 10 for at in range(len(runners))]

    def test_texts_hold_none(self):
        outputs = (((1,), "int64"),)
        one, other = (text_plan("", "shift", 1, outputs, (4,), 1, 32, captured=(captured(k),)) for k in (1, 2))
        assert one.text() == other.text()
        assert (one.integers, other.integers) == ((4, 1), (4, 2))
        assert 'long long captured_0() { long long word; asm("ld.param.b64 %0, [kernel_param_7];"' in one.text()
        assert one.text().partition("kernel(")[2].partition(")")[0].split(", ")[7] == "long long captured_0"

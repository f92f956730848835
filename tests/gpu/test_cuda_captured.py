"""The CUDA runtime without a GPU: what carries out one plan with several captured numbers."""

import re
import threading
import time

import numpy as np
import pytest

from parprims import _cuda
from parprims._cuda import compiler, xla
from parprims._operators.languages import Captured
from parprims._operators.operator import capturing
from parprims._primitives.scan import cuda as scan_cuda
from parprims._primitives.scan import source as scan_source
from parprims._primitives.scan import tiling
from tests.emulation import emulator
from tests.gpu import test_cuda
from tests.support.fake_driver import Graph
from tests.support.text_plans import text_plan, with_body

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
        return [runner.with_captured((captured(number),)) for number in numbers]

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


class TestInPrograms:
    """Kernels inside programs of JAX read the words of captured numbers from memory, behind their inputs."""

    SHIFTS = "if (threadIdx.x == 0) ((long long*)out0)[0] = ((const long long*)in0)[0] + captured_0()"
    OUTPUTS = (((1,), "int64"),)

    def plan(self, number, *bodies, **sizes):
        one = text_plan("", f"{self.SHIFTS};", 1, self.OUTPUTS, (4,), 1, 32, captured=(captured(number),), **sizes)
        return with_body(one, *bodies) if bodies else one

    def test_texts_hold_none(self):
        one, other = self.plan(1), self.plan(2)
        assert one.text(static=True) == other.text(static=True)
        assert one.without_values == other.without_values
        assert one.without_values != self.plan(1, zeroed_bytes=4).without_values
        text = one.text(static=True)
        assert 'asm("ld.param.b64 %0, [kernel_param_1];" : "=l"(address))' in text
        assert "captured_0() { return __ldg(captured_words() + 0); }" in text
        signature = "const void* in0, const void*, void* out0"
        assert text.partition("kernel(")[2].partition(")")[0] == signature

    def test_texts_without_are_as_before(self):
        plain = text_plan("source", "body;", 1, self.OUTPUTS, (4,), 1, 32, zeroed_bytes=4, scratch_bytes=8)
        assert plain.text(static=True) == (
            'source\nextern "C" __global__ void __launch_bounds__(32) '
            "kernel(const void* in0, void* zeroed, void* out0, void* scratch, void*) {\n"
            "constexpr long long n0 = 4LL;\nvoid* const temporary = nullptr;\n"
            "void* const status = nullptr;\nbody;\n}\n"
        )

    @pytest.mark.parametrize("scratch", [False, True], ids=["alone", "with scratch"])
    @pytest.mark.parametrize("launches", [1, 3])
    def test_several_launches(self, monkeypatch, scratch, launches):
        """Each launch has the words in the same place, and scratch and outputs as the launches before left them."""
        jax = pytest.importorskip("jax")
        if emulator.compiler() is None:
            pytest.skip("needs a C++ compiler")
        emulator.install_in_programs(monkeypatch)
        counts = "++((unsigned*)zeroed)[0]; ((unsigned*)status)[0] += 2; " if scratch else ""
        total = " + 100 * ((unsigned*)zeroed)[0] + 1000 * ((unsigned*)status)[0]" if scratch else ""
        first = f"if (threadIdx.x == 0) {{ {counts}{self.SHIFTS.partition(') ')[2]}; }}"
        later = (
            f"if (threadIdx.x == 0) {{ {counts}((long long*)out0)[0] = ((long long*)out0)[0] * captured_0(){total}; }}"
        )
        sizes = {"zeroed_bytes": 64, "status_bytes": 64, "scratch_bytes": 64} if scratch else {}
        numbers, texts = (3, -5, 2**40, 3), set()
        with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
            for number in numbers:
                plan = self.plan(number, first, *[later] * (launches - 1), **sizes)
                texts.add(tuple(plan.text(at, static=True) for at in range(launches)))
                run = xla.Program(plan, otherwise=None, batched=None)
                (y,) = run(jax.numpy.asarray(np.array([7], np.int64)))
                expected = 7 + number
                for at in range(1, launches):
                    expected = expected * number + (100 * (at + 1) + 2000 * (at + 1) if scratch else 0)
                assert int(y[0]) == (expected + 2**63) % 2**64 - 2**63
        assert len(texts) == 1

    def test_one_program_for_all_numbers(self, monkeypatch):
        """A program that takes the words as an argument is compiled once; others hold them."""
        jax = pytest.importorskip("jax")
        emulator.install_for_jax(monkeypatch)
        with jax.enable_x64(True):
            x = np.array([7], np.int64)
            programs = []
            for number in (3, -5):
                run = xla.Program(self.plan(number), otherwise=lambda x: (x,), batched=None)
                lowered = jax.jit(run).trace(x).lower(lowering_platforms=("cuda",)).as_text()
                programs.append(re.sub(r"dense<.*?>", "", lowered))
                assert f"dense<[{number % 2**32}, {(number >> 32) % 2**32}]> : tensor<2xui32>" in lowered
            assert programs[0] == programs[1]

    @pytest.mark.parametrize("arch", ["compute_75", "compute_90"])
    def test_they_compile(self, arch):
        """The text reads the address of the words from the parameter behind the inputs."""
        if compiler.refusal():
            pytest.skip("needs NVRTC")
        call = scan_source.without_arrays(capturing(0.5), ("float32",), (1000,), 0)
        special = scan_source.specialisation(np, call, ("float32",), ())
        geometry = scan_cuda.Geometry(
            shape=(1000,), axis=0, reverse=False, n=1000, shapes=((1000,),), layouts=(((1,), 0),)
        )
        plan = scan_cuda.make_plan(special, tiling.TUNING[90], geometry)
        code, _ = compiler.compile_source(plan.text(static=True), arch)
        assert "[kernel_param_1]" in code.decode()
        assert re.findall(r"\.param \S+( \S+)* kernel_param_(\d+)", code.decode())[-1][1] == "2"  # the output

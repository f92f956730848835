"""The CUDA runtime without a GPU, on a driver that keeps books: graphs, failures, streams and refusals."""

# ruff: noqa: ARG001, ARG005  names and arguments are the driver's

import ctypes
import gc
import os
import re
import subprocess
import sys
import threading
import time

import pytest

from parprims import _cuda
from parprims._cuda import compiler as compiler_module
from parprims._cuda import driver as driver_module
from parprims._cuda import libraries, memory
from parprims._cuda import runner as runner_module
from tests.gpu import test_cuda_compiler
from tests.support.fake_driver import Driver, Graph, Library
from tests.support.text_plans import text_plan, with_body

compiler = test_cuda_compiler.compiler


def plan(nbytes=64, *, several=False, scratch=True, temporary=0):
    sizes = (nbytes, nbytes, nbytes) if scratch else (0, 0, 0)
    common = dict(zip(("zeroed_bytes", "status_bytes", "scratch_bytes"), sizes, strict=True))
    one = text_plan(
        "", "double" if scratch else "plain", 1, (((1,), "int64"),), (), 1, 32, temporary_bytes=temporary, **common
    )
    if not several:
        return one
    return with_body(one, "first", "middle", "middle", "last")


@pytest.fixture(params=["cupy", "torch"])
def library(request, monkeypatch):
    """An array library on a driver that keeps books."""
    fake = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_: fake)
    driver = driver_module.Driver()
    monkeypatch.undo()
    found = Library(fake, request.param)
    cupy, torch = found.cupy(), found.torch()
    monkeypatch.setattr(driver_module, "current", lambda: driver)
    monkeypatch.setattr(runner_module, "library", lambda _: request.param)
    monkeypatch.setattr(libraries, "cupy", lambda: cupy)
    monkeypatch.setattr(libraries, "torch", lambda: torch)
    monkeypatch.setattr(driver_module.End, "_idle", [])

    def loaded(device, code, shared_bytes, needs_cache):
        return driver.load(code, shared_bytes, needs_cache=needs_cache)

    monkeypatch.setattr(runner_module, "loaded", loaded)

    def compiled(text, arch):
        body = text.partition("{\n")[2].partition("\n}")[0].partition("#endif\n")
        parameters = text.partition("kernel(")[2].partition(")")[0].split(", ")
        code = f"{body[2] or body[0]}\n{len(fake.kinds)}"
        nbytes = found.nbytes
        fake.kinds[code] = {
            "names": [one.split()[-1].strip("*") for one in parameters],
            "at": max(nbytes - 8, 0),
            "waits": "griddepcontrol.wait" in body[0],
        }
        return code.encode()

    monkeypatch.setattr(compiler_module, "compiled", compiled)

    def runner(**options):
        found.nbytes = options.get("nbytes", 64)
        one = _cuda.Runner(None, plan(**options), 0)
        with driver.prepares(0):
            one._load()
        return one

    found.runner, found.own = runner, driver
    return found


def expected(runner, value):
    return 4 * value if len(runner.plan.launches) > 1 else 2 * value


class TestOverlap:
    """A later launch of a plan may start before the one before it has ended, where it can wait for that one."""

    @pytest.mark.parametrize(
        ("capability", "release", "overlaps"),
        [((7, 5), 13000, False), ((9, 0), 13000, True), ((9, 0), 12020, False), ((12, 0), 13000, False)],
    )
    def test_later_launches(self, library, capability, release, overlaps):
        library.driver.capability, library.driver.release = capability, release
        x = library.of(3)
        for several in (False, True):
            runner = library.runner(several=several)
            library.driver.overlapping.clear()
            (y,) = runner(x)
            library.driver.run()
            assert y.value == expected(runner, 3)
            later = len(runner.plan.launches) - 1
            assert library.driver.overlapping == [False, *[overlaps] * later]

    def test_texts(self):
        several = plan(several=True)
        waits = ["griddepcontrol.wait" in several.text(at) for at in range(len(several.launches))]
        assert waits == [False, *[True] * (len(waits) - 1)]
        # XLA launches them one after another.
        assert not any("griddepcontrol" in several.text(at, static=True) for at in range(len(waits)))


# ---- Graphs ---------------------------------------------------------------------------------------------------------


class TestGraphs:
    def test_two_at_once(self, library):
        """Two graphs captured from one stream, and calls on that stream, all at the same time."""
        driver, library.stream = library.driver, 7
        runners = [library.runner(), library.runner(several=True), library.runner(nbytes=4096)]
        warm = [one(library.of(3))[0] for one in runners]
        driver.run()
        assert [x.value for x in warm] == [expected(one, 3) for one in runners]
        graphs, xs, ys = [], [], []
        for number in (11, 22):
            x = library.of(number)
            with Graph(driver, 7) as graph:
                ys.append([one(x)[0] for one in (*runners, *runners)])
            graphs.append(graph)
            xs.append(x)
        for turn in range(3):
            xs[0].value, xs[1].value, eager = 5 + turn, 60 + turn, library.of(700 + turn)
            graphs[0].launch(100)
            graphs[1].launch(200)
            found = [one(eager)[0] for one in runners]
            driver.run(100, 200, 7)
            assert [y.value for y in found] == [expected(one, 700 + turn) for one in runners]
            for x, results in zip(xs, ys, strict=True):
                assert [y.value for y in results] == [expected(one, x.value) for one in runners] * 2

    def test_the_shortcut(self, library):
        driver, library.stream = library.driver, 7
        runner = library.runner()
        x, eager = library.of(4), library.of(90)
        runner(x)
        driver.run()
        graphs, ys = [], []
        for _ in range(2):
            with Graph(driver, 7) as graph:
                ys.append(runner.one(x))
            graphs.append(graph)
        graphs[0].launch(100)
        graphs[1].launch(200)
        y = runner.one(eager)
        driver.run(100, 200, 7)
        assert [y.value for y in ys] == [8, 8]
        assert y.value == 180

    def test_two_branches(self, library):
        driver = library.driver
        runner, xs, ys = library.runner(), [library.of(1), library.of(2)], []
        with Graph(driver, 7, 8) as graph:
            for stream, x in zip((7, 8), xs, strict=True):
                library.stream = stream
                ys.append(runner(x)[0])
        graph.launch(100, 200)
        driver.run()
        assert [y.value for y in ys] == [2, 4]

    def test_scratch_grows(self, library):
        """Scratch that a later launch of the capture needs larger, replayed with other data (field.md E.2, 17)."""
        driver, library.stream = library.driver, 7
        runners = [library.runner(nbytes=nbytes) for nbytes in (2500 // 8 * 8, 100_000, 4096)]
        x = library.of(0)
        with Graph(driver, 7) as graph:
            ys = [one(x)[0] for one in runners]
        for number in (3, 50, 9):
            x.value = number
            graph.launch(100)
            driver.run()
            assert [y.value for y in ys] == [2 * number] * 3

    def test_a_graph_zeroes_once(self, library):
        """Launches that follow each other share what the graph has zeroed before the first."""
        driver, library.stream = library.driver, 7
        runner, x = library.runner(), library.of(1)
        with Graph(driver, 7) as graph:
            for _ in range(5):
                runner(x)
        assert [name for name, _ in graph.nodes[7]] == ["zero"] * 2 + ["double"] * 5

    def test_nothing_to_share(self, library):
        """A plan without scratch has none; PyTorch is not even asked whether the stream is being captured."""
        driver, library.stream = library.driver, 7
        runner, x = library.runner(scratch=False), library.of(6)
        before, asked = len(driver.memory), []
        driver.before = asked.append
        with Graph(driver, 7) as graph:
            y = runner(x)[0]
        runner(x)
        graph.launch(100)
        driver.run()
        assert y.value == 12
        assert [name for name, _ in graph.nodes[7]] == ["plain"]
        assert len(driver.memory) == before
        assert ("cuStreamIsCapturing" in asked) == (library.kind == "cupy")

    def test_what_is_dropped(self, library):
        """Arrays that nobody holds any more are still the graph's alone (field.md E.2, 18)."""
        if library.kind != "cupy":
            pytest.skip("PyTorch keeps the memory of a graph itself")
        driver, library.stream = library.driver, 7
        runner = library.runner(temporary=256)
        with Graph(driver, 7) as graph:
            x = library.of(21)  # as a copy that a function makes of its argument
            y = runner(runner(x)[0])[0]
            again = runner(y)[0]
        place, kept = x.data.ptr, again
        del x, y, again
        gc.collect()
        others = [library.Array((n,), "int64") for n in (1, 1, 1, 1, 32, 32, 32)]
        for one in others:
            one.value = -1
        graph.launch(7)
        driver.run()
        assert kept.value == 8 * 21
        assert [one.value for one in others] == [-1] * len(others)
        assert place not in [one.data.ptr for one in others]

    def test_a_graph_uses_again_what_is_dropped(self, library):
        if library.kind != "cupy":
            pytest.skip("PyTorch keeps the memory of a graph itself")
        driver, library.stream = library.driver, 7
        runner, x = library.runner(), library.of(1)
        with Graph(driver, 7):
            for _ in range(50):
                x = runner(x)[0]
        assert library.allocations <= 4

    def test_memory_goes_with_the_graph(self, library):
        driver, library.stream = library.driver, 7
        runner, x = library.runner(nbytes=4096), library.of(1)
        runner(x)
        driver.run()
        before = set(driver.memory)
        with Graph(driver, 7) as graph:
            y = runner(x)[0]
        own = set(driver.memory) - before
        assert own
        with Graph(driver, 7) as other:
            runner(x)
        assert len(set(driver.memory) - before) == 2 * len(own), "a graph that lives keeps what it has"
        driver.destroy(graph)
        with Graph(driver, 7) as third:  # has what the first had, and frees nothing while it is captured
            y = runner(x)[0]
        assert len(set(driver.memory) - before) == 2 * len(own)
        for one, stream in ((other, 100), (third, 200)):
            one.launch(stream)
        driver.run()
        assert y.value == 2
        driver.destroy(other)
        driver.destroy(third)
        larger = library.runner(nbytes=1 << 20)(x)[0]
        driver.run()
        assert larger.value == 2
        assert not own & set(driver.memory)
        assert len(set(driver.memory) - before) == 3, "what the new runner needs and no more"

    def test_a_stream_may_not_tell(self, library):
        """No stream asks the driver on the default one, which cannot be captured."""
        asked = []
        runner, x = library.runner(), library.of(1)
        library.driver.before = asked.append
        for library.stream in (0, 1):
            runner(x)
            runner.one(x)
        assert "cuStreamIsCapturing" not in asked
        library.stream = 7
        runner(x)
        assert asked.count("cuStreamIsCapturing") == 1


# ---- Failures -------------------------------------------------------------------------------------------------------


class TestFailures:
    @pytest.mark.parametrize("several", [False, True])
    def test_each_allocation(self, library, several):
        """Whichever allocation fails, the call raises, and the next is right (field.md E.2, 24)."""
        driver, library.stream = library.driver, 7
        failed = 0
        for at in range(20):
            runner = library.runner(nbytes=(1 << 20) * (at + 1), several=several, temporary=8)
            x = library.of(5)
            driver.fails = {"cuMemAlloc_v2": (at, 2)}
            try:
                runner(x)
            except MemoryError:
                failed += 1
            else:
                break
            finally:
                driver.fails = {}
            y = runner(x)[0]
            driver.run()
            assert (x.value, y.value) == (5, expected(runner, 5))
        assert failed >= 2 + (not several)
        failed = 0
        for at in range(1, 20):
            runner, x = library.runner(several=several, temporary=8), library.of(5)
            runner(x)
            driver.run()
            library.default.__self__.free.clear()
            library.fails_at = library.allocations + at
            try:
                runner(x)
            except MemoryError:
                failed += 1
            else:
                break
            finally:
                library.fails_at = -1
            assert [len(one) for one in runner._packets.values()] == [1]
            y = runner(x)[0]
            driver.run()
            assert (x.value, y.value) == (5, expected(runner, 5))
        assert failed == 2

    @pytest.mark.parametrize("name", ["cuMemsetD8Async", "cuStreamCreate", "cuStreamSynchronize"])
    def test_scratch_that_cannot_be_cleared(self, library, name):
        driver, runner, x = library.driver, library.runner(), library.of(5)
        before = len(driver.memory)
        driver.fails = {name: (0, 2)}
        with pytest.raises(MemoryError, match=name):
            runner(x)
        assert len(driver.memory) == before
        driver.fails = {}
        y = runner(x)[0]
        driver.run()
        assert y.value == 10

    @pytest.mark.parametrize("at", range(4))
    @pytest.mark.parametrize("status", [2, 719])
    def test_each_launch(self, library, at, status):
        """Where one of several launches fails, the next call finds its scratch as it must be."""
        driver, library.stream = library.driver, 7
        runner, x = library.runner(several=True), library.of(5)
        runner(x)
        driver.run()
        driver.fails = {"cuLaunchKernelEx": (at, status)}
        with pytest.raises(MemoryError if status == 2 else _cuda.CudaError, match="cuLaunchKernelEx"):
            runner(x)
        driver.fails = {}
        assert [len(one) for one in runner._packets.values()] == [1]
        y = runner(x)[0]
        driver.run()
        assert (x.value, y.value) == (5, expected(runner, 5))

    @pytest.mark.parametrize("at", range(4))
    def test_the_user_interrupts(self, library, at):
        driver, library.stream = library.driver, 7
        runner, x = library.runner(several=True), library.of(5)
        runner(x)
        driver.run()
        left = [at]

        def before(name):
            if name == "cuLaunchKernelEx":
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt

        driver.before = before
        with pytest.raises(KeyboardInterrupt):
            runner(x)
        driver.before = lambda name: None
        assert [len(one) for one in runner._packets.values()] == [1]
        y = runner(x)[0]
        driver.run()
        assert y.value == expected(runner, 5)

    def test_a_thread_without_a_context(self, library):
        driver, runner, x = library.driver, library.runner(several=True), library.of(5)
        runner(x)
        driver.run()
        driver.current.value = None
        tried = []

        def before(name):
            if name == "cuLaunchKernelEx" and getattr(driver.current, "value", None) is None:
                tried.append(name)
                driver.fails = {"cuLaunchKernelEx": (0, 201)}
            else:
                driver.fails = {}

        driver.before = before
        y = runner(x)[0]
        driver.before = lambda name: None
        driver.run()
        assert len(tried) == 4
        assert y.value == expected(runner, 5)

    def test_scratch_is_bounded(self, library):
        """Calls that grow one after another leave at most four times what the largest needs."""
        driver, most = library.driver, 0
        before = set(driver.memory)
        for n in range(1, 120):
            most = 8 * n * 40_000
            with library.own.prepares(0):
                library.own.scratch(0, 0, "scratch", most)
        sizes = [len(one) for address, one in driver.memory.items() if address not in before]
        assert most <= sum(sizes) <= 4 * most

    def test_threads_on_one_stream(self, library):
        """Several launches that share scratch are not mixed with those of another thread (field.md E.2, 22)."""
        driver, library.stream = library.driver, 7
        runners = [library.runner(several=True) for _ in range(4)]
        xs = [library.of(number) for number in range(1, 5)]
        for runner, x in zip(runners, xs, strict=True):
            runner(x)
        driver.run()
        driver.log.clear()
        driver.before = lambda name: time.sleep(0.0005) if name == "cuLaunchKernelEx" else None
        ys = [[] for _ in xs]

        def work(at):
            driver.current.value = 0xC0DE
            for _ in range(10):
                ys[at].append(runners[at](xs[at])[0])

        threads = [threading.Thread(target=work, args=(at,)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        driver.run()
        for at, results in enumerate(ys):
            assert [y.value for y in results] == [expected(runners[at], at + 1)] * 10
        names = [name for _, name in driver.log]
        assert names == ["first", "middle", "middle", "last"] * 40

    def test_several_launches_and_one(self, library):
        """A kernel of one launch that comes between two of another plan has scratch of its own."""
        driver, library.stream = library.driver, 7
        several, single = library.runner(several=True), library.runner()
        x = library.of(5)
        several(x), single(x)
        driver.run()
        between = []

        def before(name):
            if name == "cuLaunchKernelEx" and not between and driver.log and driver.log[-1][1] == "first":
                between.append(None)
                between.append(single(library.of(40))[0])

        driver.before = before
        y = several(x)[0]
        driver.run()
        assert between[1].value == 80
        assert y.value == expected(several, 5)


class TestStreams:
    @pytest.mark.parametrize("several", [False, True])
    def test_the_handle_of_one_that_is_gone(self, library, several):
        """Work of a stream that is gone goes on beside that of a new one, which has its handle."""
        driver, library.stream, found = library.driver, 7, []
        runner = library.runner(several=several)
        for value in range(1, 6):
            x = library.of(value)
            found.append((x, runner(x)[0], runner(x)[0], runner(x)[0] if several else runner.one(x)))
            driver.replace(7)
        driver.run()
        for value, (_, *results) in enumerate(found, 1):
            assert [y.value for y in results] == [expected(runner, value)] * 3

    def test_what_they_had_is_freed(self, library):
        """Streams that come and go, with calls that grow, leave a bounded number of pieces of memory."""
        driver, library.stream = library.driver, 7
        before, freed = len(driver.memory), len(driver.freed)
        small, large = library.runner(), library.runner(nbytes=1 << 20)
        for _ in range(100):
            library.nbytes = 64
            small(library.of(5))
            library.nbytes = 1 << 20
            large(library.of(5))
            driver.run()
            driver.replace(7)
            assert len(driver.memory) - before <= 2 * 3 + 32 + 6
        assert len(driver.freed) - freed > 500
        assert len(small._packets) <= 256

    def test_a_stream_of_every_thread(self, library):
        """The handle 2 means another stream in every thread."""
        driver, library.stream = library.driver, 2
        runner, found = library.runner(), []

        def work(number):
            driver.current.value = 0xC0DE
            x = library.of(number)
            found.append((x, runner(x)[0]))

        for number in (3, 4):
            thread = threading.Thread(target=work, args=(number,))
            thread.start()
            thread.join()
            driver.queues[number] = driver.queues.pop(2)
        driver.run()
        assert [y.value for _, y in found] == [6, 8]

    def test_a_driver_that_does_not_number_streams(self, library, monkeypatch):
        """Before CUDA 12 handles tell streams apart."""
        driver, library.stream = library.driver, 7
        library.own._numbering = None
        runner = library.runner()
        for stream in (7, 8):
            library.stream = stream
            y = runner(library.of(stream))[0]
        driver.run()
        assert y.value == 16
        assert library.own.number(2) == -threading.get_ident()


class TestRefusals:
    @pytest.fixture(autouse=True)
    def _each_anew(self):
        memory._device_refusal.cache_clear()
        yield
        memory._device_refusal.cache_clear()

    @pytest.mark.parametrize(
        ("capability", "release", "reason"),
        [
            ((9, 0), 13000, None),
            ((9, 0), 13020, None),
            ((12, 0), 13000, None),
            ((13, 0), 13000, None),  # PTX of the same release
            ((13, 0), 14000, None),
            ((9, 0), 12080, r"the driver, of CUDA 12\.8, is older than the compiler, NVRTC 13\.0"),
            ((13, 0), 12080, r"the driver, of CUDA 12\.8, is older than the compiler, NVRTC 13\.0"),
            ((7, 0), 13000, r"the GPU has compute capability 7\.0, and NVRTC 13\.0 makes code for 7\.5 and later"),
        ],
    )
    def test_devices(self, library, compiler, capability, release, reason):
        library.driver.capability, library.driver.release = capability, release
        type(library.own).architecture.cache_clear()
        found = memory._device_refusal(0)
        assert (found is None) == (reason is None)
        assert reason is None or re.match(reason, found)

    def test_multiprocessors(self, library):
        assert library.own.multiprocessors(0) == 78
        assert library.own.architecture(0) == "sm_90"

    def test_machine_code_of_a_later_minor_release(self, library, monkeypatch):
        """Runs, as CUDA promises within a major release; its PTX does not."""
        later = compiler_module.Compiler(lambda *_, **__: (b"", ""), (13, 2), (75, 90))
        monkeypatch.setattr(compiler_module, "found", lambda: later)
        type(library.own).architecture.cache_clear()
        assert memory._device_refusal(0) is None
        library.driver.capability = (10, 0)
        type(library.own).architecture.cache_clear()
        assert "older than the compiler, NVRTC 13.2" in memory._device_refusal(1)

    def test_no_driver(self, compiler, monkeypatch):
        def missing(*_):
            raise OSError("libcuda.so.1: cannot open shared object file: No such file or directory")

        monkeypatch.setattr(driver_module, "current", missing)
        assert memory._device_refusal(0).startswith("the CUDA driver does not work: libcuda.so.1: cannot open")

    def test_no_device(self, compiler, monkeypatch):
        fake = Driver()
        fake.fails = {"cuInit": (0, 100)}
        monkeypatch.setattr(driver_module, "current", driver_module.Driver)
        monkeypatch.setattr(ctypes, "CDLL", lambda *_: fake)
        assert memory._device_refusal(0) == "the CUDA driver does not work: cuInit: an error (CUDA error 100)"

    def test_code_that_the_driver_does_not_load(self, library, compiler):
        for status in (200, 209, 218, 222):
            library.driver.fails = {"cuModuleLoadData": (0, status)}
            with pytest.raises(
                _cuda.CudaError, match=r"code of NVRTC 13\.0 may need a newer driver than .* CUDA 13\.0"
            ):
                library.own.load(b"code", 0)

    def test_a_module_that_cannot_be_used_is_not_kept(self, library):
        unloaded = []
        library.driver.before = lambda name: unloaded.append(name) if name == "cuModuleUnload" else None
        library.driver.fails = {"cuFuncSetAttribute": (0, 1)}
        with pytest.raises(_cuda.CudaError, match="cuFuncSetAttribute"):
            library.own.load(b"code", 1 << 20)
        assert unloaded == ["cuModuleUnload"]


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
sys.modules["numba"] = None  # without which no kernel serves
import cupy, numpy as np, parprims
try:
    cupy.cuda.runtime.getDeviceCount()
except cupy.cuda.runtime.CUDARuntimeError:
    pass
x = np.arange(5.0)
assert float(parprims.sum(x)) == 10.0
try:
    parprims.sort(x, method="kernel")
except parprims.MethodRefused as error:
    print(error)
"""
CUPY = """
from types import SimpleNamespace
class CUDARuntimeError(RuntimeError):
    pass
def getDeviceCount():
    raise CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient for CUDA runtime version")
class ndarray:
    pass
cuda = SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=getDeviceCount, CUDARuntimeError=CUDARuntimeError))
"""


def test_cupy_without_a_gpu(tmp_path):
    """CuPy can be imported and has no device: other libraries are served as ever, and one sentence says why."""
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text(CUPY)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert "the arrays are not on a CUDA device" in done.stdout

"""The CUDA runtime without a GPU: a driver that keeps books, in whose place of memory the host's serves.

Work waits on a stream until it is run, by steps of several streams in turn. Kernels are Python functions here, each in
two steps between which what others do to its scratch shows.
"""

# ruff: noqa: ARG001, ARG005, N802  names and arguments are the driver's

import collections
import ctypes
import gc
import importlib.util
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import types

import numpy as np
import pytest

from parprims import _cuda
from parprims._cuda import compiler as compiler_module
from parprims._cuda import driver as driver_module
from parprims._cuda import libraries, memory
from parprims._cuda import runner as runner_module
from tests.texts import text_plan, with_body

COMPILED = compiler_module.compiled

# ---- A driver, and kernels for it -----------------------------------------------------------------------------------


def word(address):
    return ctypes.c_longlong.from_address(address)


def double(names, kind):
    """The only launch of a plan: in0 is added to what must be 0; the result is twice in0."""
    at = kind["at"]
    word(names["zeroed"] + at).value += word(names["in0"]).value
    count = word(names["status"]).value + 1
    word(names["status"] + 8).value = count << 32 | word(names["in0"]).value
    word(names["scratch"] + at).value = word(names["in0"]).value
    yield
    found = word(names["status"] + 8).value
    assert found >> 32 == count, "another launch wrote to the status"
    assert found & 0xFFFFFFFF == word(names["scratch"] + at).value, "another launch wrote to the scratch"
    word(names["out0"]).value = word(names["zeroed"] + at).value + word(names["scratch"] + at).value
    word(names["zeroed"] + at).value = 0
    word(names["status"]).value = count


def first(names, kind):
    """The first of several launches."""
    word(names["zeroed"]).value += word(names["in0"]).value
    yield
    if names["temporary"]:
        word(names["temporary"]).value = word(names["zeroed"]).value


def middle(names, kind):
    word(names["zeroed"]).value *= 2
    yield


def last(names, kind):
    yield
    word(names["out0"]).value = word(names["zeroed"]).value
    word(names["zeroed"]).value = 0


def plain(names, kind):
    """A launch without scratch."""
    yield
    word(names["out0"]).value = 2 * word(names["in0"]).value


KERNELS = {"double": double, "plain": plain, "first": first, "middle": middle, "last": last}


class Driver:
    """What libcuda is to `parprims._cuda.driver.Driver`."""

    def __init__(self):
        self.memory = {}
        self.freed = []
        self.queues = collections.defaultdict(collections.deque)
        self.captures = {}  # stream: graph
        self.modules, self.log = [], []
        self.current = threading.local()
        self.mode = threading.local()
        self.fails = {}  # name: how many calls succeed before all fail, and with what
        self.before = lambda name: None
        self.capability, self.release = (9, 0), 13000
        self.kinds = {}
        self.numbers, self.unused = {}, itertools.count(1)  # of streams, by handle

    def __getattr__(self, name):
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = getattr(type(self), f"_{name}", lambda *_: 0)

        def call(*args):
            self.before(name)
            left, status = self.fails.get(name, (1, 0))
            if name in self.fails:
                self.fails[name] = left - 1, status
                if left <= 0:
                    return status
            return function(self, *args) or 0

        self.__dict__[name] = call
        return call

    def _cuGetErrorString(self, status, text):
        text._obj.value = b"an error"

    def _cuDriverGetVersion(self, number):
        number._obj.value = self.release

    def _cuDeviceGetAttribute(self, number, attribute, handle):
        number._obj.value = {75: self.capability[0], 76: self.capability[1], 16: 78}[attribute]

    def _cuDevicePrimaryCtxRetain(self, context, handle):
        context._obj.value = 0xC0DE

    def _cuCtxGetCurrent(self, context):
        context._obj.value = getattr(self.current, "value", None)

    def _cuCtxPushCurrent_v2(self, context):
        self.current.value = context.value

    def _cuCtxPopCurrent_v2(self, context):
        self.current.value = None

    def _cuThreadExchangeStreamCaptureMode(self, mode):
        old = getattr(self.mode, "value", 0)
        self.mode.value, mode._obj.value = mode._obj.value, old

    def _cuModuleLoadData(self, module, code):
        if code == b"damaged":
            return 200
        self.modules.append(code.decode())
        module._obj.value = len(self.modules)
        return 0

    def _cuModuleGetFunction(self, function, module, name):
        function._obj.value = module.value

    def _cuMemAlloc_v2(self, pointer, size):
        if self.captures:
            assert getattr(self.mode, "value", 0) == 2, "no memory while a stream is captured, unless relaxed"
        buffer = ctypes.create_string_buffer(b"\xcb" * size.value, size.value)
        pointer._obj.value = ctypes.addressof(buffer)
        self.memory[ctypes.addressof(buffer)] = buffer

    def _cuMemFree_v2(self, pointer):
        assert not self.captures, "memory is freed while a stream is captured"
        self.freed.append(self.memory.pop(pointer.value))

    def _cuStreamCreate(self, stream, flags):
        stream._obj.value = 0x5000

    def _cuStreamSynchronize(self, stream):
        self.run(stream.value)

    def _cuStreamGetId(self, stream, place):
        assert stream not in self.captures, "the capture has ended, for it cannot take this call"
        numbers = self.current.__dict__ if stream == 2 else self.numbers  # 2 means another one in every thread
        if stream not in numbers:
            numbers[stream] = next(self.unused)
        ctypes.c_ulonglong.from_address(place).value = numbers[stream]

    def _cuMemsetD8Async(self, pointer, byte, size, stream):
        def zero():
            ctypes.memset(pointer.value, byte.value, size.value)
            yield

        self._enqueue(stream.value or 0, "zero", zero)

    def _cuLaunchKernelEx(self, config, function, _, extra):
        fields = runner_module.Config.from_address(config)
        places = (ctypes.c_void_p * 5).from_address(extra)
        count = ctypes.c_size_t.from_address(places[3]).value // 8
        values = list((ctypes.c_longlong * count).from_address(places[1]))
        name = self.modules[function - 1].partition("\n")[0]
        kind = self.kinds[self.modules[function - 1]]
        names = dict(zip(kind["names"], values, strict=False))

        def kernel():
            yield from KERNELS[name](names, kind)

        self._enqueue(fields.stream or 0, name, kernel)

    def _enqueue(self, stream, name, work):
        self.log.append((stream, name))
        if stream in self.captures:
            self.captures[stream].nodes.setdefault(stream, []).append((name, work))
        else:
            self.queues[stream].append(work())

    def _cuStreamIsCapturing(self, stream, place):
        ctypes.c_int.from_address(place).value = stream in self.captures

    def _cuStreamGetCaptureInfo_v2(self, stream, status, number, graph, *_):
        found = self.captures[stream.value]
        status._obj.value, number._obj.value, graph._obj.value = 1, found.number, found.number

    def _cuUserObjectCreate(self, tie, pointer, destructor, count, flags):
        assert (count.value, flags.value) == (1, 1)
        tie._obj.value = 1
        self.tied = pointer.value, destructor.value

    def _cuGraphRetainUserObject(self, graph, tie, count, flags):
        assert (count.value, flags.value) == (1, 1)
        (found,) = {one.number: one for one in self.captures.values() if one.number == graph.value}.values()
        found.ties.append(self.tied)

    # What a program does.

    def run(self, *streams):
        """Run the work of streams, a step of each in turn."""
        waiting = [self.queues[stream] for stream in streams or [*self.queues]]
        while any(waiting):
            for queue in waiting:
                if queue:
                    try:
                        next(queue[0])
                    except StopIteration:
                        queue.popleft()

    def replace(self, stream):
        """End a stream and begin another, to which the driver gives the same handle; work goes on where it waits."""
        self.queues[stream, self.numbers.pop(stream)] = self.queues.pop(stream)

    def destroy(self, graph):
        """End a graph: destructors run on a thread of the driver."""
        for pointer, destructor in graph.ties:
            thread = threading.Thread(target=ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destructor), args=(pointer,))
            thread.start()
            thread.join()


class Graph:
    numbers = iter(range(1, 10**6))

    def __init__(self, driver, *streams):
        self.driver, self.streams = driver, streams
        self.number, self.nodes, self.ties = next(self.numbers), {}, []

    def __enter__(self):
        self.driver.captures |= dict.fromkeys(self.streams, self)
        return self

    def __exit__(self, *_):
        for stream in self.streams:
            del self.driver.captures[stream]

    def launch(self, *streams):
        """Let the branches of the graph wait on streams."""
        for stream, nodes in zip(streams, self.nodes.values(), strict=True):
            self.driver.queues[stream].extend(work() for _, work in nodes)


# ---- Array libraries ------------------------------------------------------------------------------------------------


class Library:
    """CuPy, or PyTorch, as far as `_cuda` asks: arrays, allocators and a current stream."""

    def __init__(self, driver, kind):
        self.driver, self.kind, self.stream = driver, kind, 0
        self.allocations, self.fails_at = 0, -1
        self.default = self.allocator = Pool(self, self.memory).malloc
        library = self

        class Array:
            def __init__(self, shape, dtype):
                nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
                pointer = library.allocator(nbytes)
                self.shape, self.data = shape, pointer
                self.dtype = np.dtype(dtype)

            @property
            def value(self):
                return word(self.data.ptr).value

            @value.setter
            def value(self, number):
                word(self.data.ptr).value = number

            def data_ptr(self):
                return self.data.ptr

        self.Array = Array

    def memory(self, nbytes):
        """Return new memory of the device, as cudaMalloc does."""
        self.allocations += 1
        if self.allocations == self.fails_at:
            raise MemoryError("out of memory")
        return types.SimpleNamespace(mem=Block(nbytes))

    def of(self, value):
        x = self.Array((1,), "int64")
        x.value = value
        return x

    def cupy(self):
        library = self

        class Using:
            def __init__(self, allocator):
                self.new = allocator

            def __enter__(self):
                self.old, library.allocator = library.allocator, self.new

            def __exit__(self, *_):
                library.allocator = self.old

        def memory(nbytes):
            return library.memory(nbytes).mem

        cuda = types.SimpleNamespace(
            get_current_stream=lambda: types.SimpleNamespace(ptr=self.stream),
            runtime=types.SimpleNamespace(getDevice=lambda: 0),
            Memory=memory,
            MemoryPointer=lambda memory, offset: types.SimpleNamespace(mem=memory, ptr=memory.ptr),
            MemoryPool=lambda allocate: Pool(library, allocate),
            using_allocator=Using,
        )
        return types.SimpleNamespace(ndarray=self.Array, cuda=cuda)

    def torch(self):
        return types.SimpleNamespace(
            device=lambda *_: None,
            empty=lambda shape, *, dtype, device: self.Array(shape, dtype),
            int64="int64",
            uint8="uint8",
            Tensor=self.Array,
            nn=types.SimpleNamespace(Parameter=type("Parameter", (self.Array,), {})),
            _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda _: self.stream),
        )


class Block:
    def __init__(self, nbytes):
        self.buffer = ctypes.create_string_buffer(max(nbytes, 1))
        self.size, self.ptr = nbytes, ctypes.addressof(self.buffer)


class Pool:
    """CuPy's memory pool: what is dropped goes to the next who asks on the same stream."""

    def __init__(self, library, allocate):
        self.library, self.allocate, self.free = library, allocate, []

    def malloc(self, nbytes):
        stream = self.library.stream
        found = next((one for one in self.free if one[0] == stream and one[1].size >= nbytes), None)
        if found:
            self.free.remove(found)
        block = found[1] if found else self.allocate(nbytes).mem
        return types.SimpleNamespace(mem=Pooled(self, stream, block), ptr=block.ptr)

    def free_all_blocks(self):
        self.free.clear()


class Pooled:
    def __init__(self, pool, stream, block):
        self.pool, self.stream, self.block, self.ptr = pool, stream, block, block.ptr

    def __del__(self):
        self.pool.free.append((self.stream, self.block))


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

    def loaded(device, code, shared_bytes):
        return driver.load(code, shared_bytes)

    monkeypatch.setattr(runner_module, "loaded", loaded)

    def compiled(text, arch):
        body = text.partition("{\n")[2].partition("\n}")[0]
        parameters = text.partition("kernel(")[2].partition(")")[0].split(", ")
        code = f"{body}\n{len(fake.kinds)}"
        nbytes = found.nbytes
        fake.kinds[code] = {"names": [one.split()[-1].strip("*") for one in parameters], "at": max(nbytes - 8, 0)}
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


# ---- Compiling ------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that counts what it compiles, and an empty cache."""
    texts = []

    def compile(text, options, *, ptx):
        texts.append((text, options[0].partition("=")[2], ptx))
        return f"code of {text}".encode() * 100, ""

    found = compiler_module.Compiler(compile, (13, 0), (75, 80, 90, 100, 120))
    monkeypatch.setattr(compiler_module, "found", lambda: found)
    monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path / "cache"))
    COMPILED.cache_clear()
    yield types.SimpleNamespace(texts=texts, folder=tmp_path / "cache")
    COMPILED.cache_clear()


def again(text="text", arch="sm_90"):
    """Return what a new process gets."""
    COMPILED.cache_clear()
    return COMPILED(text, arch)


class TestCache:
    def test_kept(self, compiler):
        code = again()
        assert again() == code == b"code of text" * 100
        assert len(compiler.texts) == 1
        assert again("other") != code
        assert again(arch="sm_80") == code
        assert len(compiler.texts) == 3
        assert len([*compiler.folder.iterdir()]) == 3

    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: b"",
            lambda content: content[:20],
            lambda content: content[:32],
            lambda content: content[:-1],
            lambda content: content + b"\0",
            lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
            lambda content: bytes([content[0] ^ 1]) + content[1:],
            lambda content: bytes(len(content)),
            lambda content: content[32:],  # as it was kept before there was a digest
        ],
    )
    def test_damaged(self, compiler, damage):
        code = again()
        (path,) = compiler.folder.iterdir()
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        assert again() == code
        assert len(compiler.texts) == 2
        assert path.read_bytes() == whole
        assert again() == code
        assert len(compiler.texts) == 2

    def test_a_folder_in_its_place(self, compiler):
        code = again()
        (path,) = compiler.folder.iterdir()
        path.unlink()
        path.mkdir()
        assert again() == code
        assert [*compiler.folder.iterdir()] == [path]

    def test_read_only(self, compiler, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError("read-only file system")

        monkeypatch.setattr(tempfile, "mkstemp", refuse)
        assert again() == again()
        assert len(compiler.texts) == 2
        monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
        monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
        assert again() == b"code of text" * 100

    @pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
    def test_no_permission(self, compiler):
        compiler.folder.mkdir()
        for mode in (0o500, 0o000):
            compiler.folder.chmod(mode)
            assert again() == b"code of text" * 100
        compiler.folder.chmod(0o700)

    def test_a_file_in_the_way(self, compiler):
        compiler.folder.write_text("not a folder")
        assert again() == again()
        assert len(compiler.texts) == 2

    def test_no_home(self, compiler, monkeypatch):
        monkeypatch.delenv("PARPRIMS_CACHE_DIR")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

        def home():
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(pathlib.Path, "home", home)
        assert again() == again()
        assert len(compiler.texts) == 2

    def test_the_disk_is_full(self, compiler, monkeypatch):
        def replace(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(compiler_module.os, "replace", replace)
            again()
        assert [*compiler.folder.iterdir()] == []

    def test_leftovers(self, compiler):
        compiler.folder.mkdir()
        old, new = compiler.folder / "abc.tmp", compiler.folder / "def.tmp"
        for path in (old, new):
            path.write_bytes(b"unfinished")
        os.utime(old, (time.time() - 7200,) * 2)
        again()
        assert not old.exists()
        assert new.exists()  # another process may still write it
        assert len([*compiler.folder.iterdir()]) == 2


class TestTogether:
    def test_at_once(self, monkeypatch):
        """All of a plan's kernels compile at the same time, each once."""
        texts, both = [], threading.Barrier(2, timeout=60)

        def compiled(text, arch):
            texts.append(text)
            both.wait()
            return f"{text} for {arch}".encode()

        monkeypatch.setattr(compiler_module, "compiled", compiled)
        monkeypatch.setattr(compiler_module.os, "cpu_count", lambda: 2)
        sources = [(text, "sm_90") for text in "abab"]
        assert compiler_module.compiled_together(sources) == [b"a for sm_90", b"b for sm_90"] * 2
        assert sorted(texts) == ["a", "b"]

    def test_an_error(self, compiler):
        with pytest.raises(_cuda.CudaError, match="makes code for 7"):
            compiler_module.compiled_together([("a", "sm_90"), ("b", "sm_70")])

    def test_the_real_compiler(self, monkeypatch, tmp_path):
        """Several programs compiled at once are those compiled one after another."""
        if compiler_module.refusal():
            pytest.skip(compiler_module.refusal())
        monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path))
        texts = [f'extern "C" __global__ void kernel(int* x) {{ *x = {at}; }}' for at in range(4)]
        together = compiler_module.compiled_together([(text, "sm_90") for text in texts])
        COMPILED.cache_clear()
        assert together == [compiler_module.compile_source(text, "sm_90")[0] for text in texts]


class TestArchitectures:
    def test_newer_than_the_compiler(self, compiler):
        again(arch="sm_90")
        again(arch="sm_130")
        again(arch="sm_103")
        again(arch="compute_130")
        found = [(arch, ptx) for _, arch, ptx in compiler.texts]
        assert found == [("sm_90", False), ("compute_120", True), ("compute_100", True)]

    def test_older_than_the_compiler(self, compiler):
        with pytest.raises(_cuda.CudaError, match=r"capability 7\.0, and NVRTC 13\.0 makes code for 7\.5 and later"):
            again(arch="sm_70")

    def test_the_real_compiler(self, monkeypatch, tmp_path):
        if compiler_module.refusal():
            pytest.skip(compiler_module.refusal())
        monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path))
        text = 'extern "C" __global__ void kernel(int* x) { *x = 1; }'
        assert again(text, "sm_999").startswith(b"//")  # PTX, which begins with a comment
        assert again(text, "sm_90")[:4] == b"\x7fELF"
        assert all(path.suffix in (".ptx", ".cubin") for path in tmp_path.iterdir())
        COMPILED.cache_clear()


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


class TestCompilers:
    """Which NVRTC is taken, and what is said where none works."""

    @pytest.fixture
    def packages(self, monkeypatch):
        found = {}

        def find_spec(name, *_):
            return found.get(name)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        compiler_module.found.cache_clear()
        yield found, monkeypatch
        compiler_module.found.cache_clear()

    def put(self, packages, name, module):
        found, patch = packages
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            found[".".join(parts[:end])] = True
            patch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        patch.setitem(sys.modules, name, module)
        patch.setattr(sys.modules[".".join(parts[:-1])], parts[-1], module, raising=False)

    def test_none(self, packages):
        assert compiler_module.refusal() == (
            "no CUDA compiler is installed: install CuPy, or cuda-core with nvidia-cuda-nvrtc"
        )
        with pytest.raises(_cuda.CudaError, match="no CUDA compiler is installed"):
            compiler_module.compile_source("", "sm_90")

    def test_cupy_without_its_library(self, packages):
        def missing():
            raise RuntimeError("CuPy failed to load libnvrtc.so.13: OSError: libnvrtc.so.13: cannot open\nmore")

        module = types.SimpleNamespace(getVersion=missing, getSupportedArchs=missing)
        self.put(packages, "cupy_backends.cuda.libs.nvrtc", module)
        assert compiler_module.refusal() == (
            "no CUDA compiler works here: that of cupy_backends fails: RuntimeError: CuPy failed to load "
            "libnvrtc.so.13: OSError: libnvrtc.so.13: cannot open"
        )

    def test_the_second_works(self, packages):
        def missing():
            raise OSError("libnvrtc.so.13: cannot open")

        self.put(packages, "cuda.bindings.nvrtc", types.SimpleNamespace(nvrtcVersion=missing))
        module = types.SimpleNamespace(getVersion=lambda: (12, 9), getSupportedArchs=lambda: (90, 50, 120))
        self.put(packages, "cupy_backends.cuda.libs.nvrtc", module)
        assert compiler_module.refusal() is None
        assert compiler_module.found().version == (12, 9)
        assert compiler_module.found().architectures == (50, 90, 120)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
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

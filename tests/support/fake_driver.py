"""A fake CUDA driver in host memory that records allocations and launches, and array libraries on it.

Work waits on its stream until the driver runs it; the streams take turns, step by step. A kernel is a Python function
in two steps, so that a test sees another kernel change its scratch between them.
"""

# ruff: noqa: ARG001, ARG005, N802  names and arguments are the driver's

import collections
import ctypes
import itertools
import threading
import types

import numpy as np

from parprims._cuda import runner as runner_module

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


def shift(names, kind):
    """A launch that adds a captured number."""
    yield
    word(names["out0"]).value = word(names["in0"]).value + names["captured_0"]


def half_word(address):
    return ctypes.c_uint.from_address(address)


def check(names, kind):
    """A first launch that leaves to later ones what is negative."""
    yield
    word(names["out0"]).value = word(names["in0"]).value
    half_word(names["zeroed"] + 4).value = word(names["in0"]).value < 0


def negate(names, kind):
    """Does what word 1 of the zeroed scratch says is left, and leaves what is over 100 by word 3."""
    yield
    if half_word(names["zeroed"] + 4).value:
        word(names["out0"]).value *= -1
        half_word(names["zeroed"] + 12).value = word(names["out0"]).value > 100
        half_word(names["zeroed"] + 4).value = 0


def halve(names, kind):
    """Does what word 3 of the zeroed scratch says is left."""
    yield
    if half_word(names["zeroed"] + 12).value:
        word(names["out0"]).value //= 2
        half_word(names["zeroed"] + 12).value = 0


_ALL = (double, plain, shift, first, middle, last, check, negate, halve)
KERNELS = {one.__name__: one for one in _ALL}


class Driver:
    """What libcuda is to `parprims._cuda.driver.Driver`."""

    def __init__(self):
        self.memory = {}
        self.freed = []
        self.queues = collections.defaultdict(collections.deque)
        self.captures = {}  # stream: graph
        self.modules, self.log, self.overlapping = [], [], []
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
        assert stream.value not in self.captures, "a stream is waited for that is being captured"
        self.run(stream.value or 0)

    def _cuMemcpyDtoHAsync_v2(self, place, pointer, size, stream):
        def copy():
            ctypes.memmove(place, pointer.value, size.value)
            yield

        self._enqueue(stream.value or 0, "copy", copy)

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
        self.overlapping.append(bool(fields.attribute_count))  # whether it may start before the last one has ended
        assert kind.get("waits") or not fields.attribute_count, "it would not wait for the launch before it"
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
                self.dtype, self.nbytes = np.dtype(dtype), nbytes

            @property
            def value(self):
                return word(self.data.ptr).value

            @value.setter
            def value(self, number):
                word(self.data.ptr).value = number

            def data_ptr(self):
                return self.data.ptr

            def expand(self, shape):
                return types.SimpleNamespace(shape=shape, dtype=self.dtype, is_contiguous=lambda: False)

            def is_contiguous(self):
                return True

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
            empty=lambda shape, *, dtype, device=None: self.Array(shape, dtype),
            empty_like=lambda like: self.Array(like.shape, like.dtype),
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

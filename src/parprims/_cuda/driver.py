"""The CUDA driver, called directly: scratch that launches share, and the resources of graphs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from parprims._core.arrays import Array
from parprims._cuda import compiler, libraries
from parprims._cuda.compiler import CudaError


class Driver:
    """The few functions of the CUDA driver that launches need, called directly: a call costs a microsecond."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        self.launch = self._library.cuLaunchKernelEx
        self.launch.argtypes = (ctypes.c_void_p,) * 4
        self._current = self._library.cuCtxGetCurrent
        self._capturing = self._library.cuStreamIsCapturing
        self._capturing.argtypes = (ctypes.c_void_p,) * 2
        self._numbering = getattr(self._library, "cuStreamGetId", None)  # since CUDA 12
        if self._numbering is not None:
            self._numbering.argtypes = (ctypes.c_void_p,) * 2
        self._contexts: dict[int, int] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._scratch: dict[tuple[int, int, str], tuple[int, int]] = {}
        self._outgrown: dict[tuple[int, int], list[int]] = {}
        self._unused: list[tuple[int, int]] = []
        self._turns: dict[tuple[int, int], threading.Lock] = {}
        self._graphs: dict[int, Graph] = {}
        self._ended: list[Graph] = []
        self._lock = threading.Lock()
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any) -> None:
        """Call a driver function; raise CudaError if it fails."""
        status = getattr(self._library, name)(*args)
        if status:
            raise self.error(name, status)

    def error(self, name: str, status: int) -> Exception:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        meaning = text.value.decode() if text.value else "unknown error"
        message = f"{name}: {meaning} (CUDA error {status})"
        if status in _UNREADABLE_CODE:
            message += f"; code of {compiler.found()} may need a newer driver than this one, of {self}"
        return MemoryError(message) if status == _OUT_OF_MEMORY else CudaError(message)

    def __str__(self) -> str:
        return "CUDA {}.{}".format(*self.version())

    def version(self) -> tuple[int, int]:
        """Return the release of CUDA that the driver came with."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def context(self, device: int) -> int:
        """Return the context that the libraries share on a device."""
        if device not in self._contexts:
            handle, context = ctypes.c_int(), ctypes.c_void_p()
            self.call("cuDeviceGet", ctypes.byref(handle), device)
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
            self._contexts[device] = context.value or 0
        return self._contexts[device]

    def enter(self, device: int) -> bool:
        """Make a device's context current. Return whether it was not: then `leave` must be called later."""
        context, current = self.context(device), ctypes.c_void_p()
        self._current(ctypes.byref(current))
        if current.value == context:
            return False
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        return True

    def leave(self) -> None:
        """Undo an `enter` that returned True."""
        self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    @contextlib.contextmanager
    def prepares(self, device: int) -> Iterator[None]:
        """Make a device's context current, and allow loading and allocation while a stream is being captured."""
        entered = self.enter(device)
        mode = ctypes.c_int(2)  # relaxed
        try:
            self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield
            finally:
                self.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        finally:
            if entered:
                self.leave()

    @functools.cache  # noqa: B019  the driver lives as long as the process
    def architecture(self, device: int) -> str:
        """Return the device's compute capability as NVRTC's sm_NN."""
        major, minor = self._attributes(device, 75, 76)
        return f"sm_{major}{minor}"

    @functools.cache  # noqa: B019  the driver lives as long as the process
    def overlaps(self, device: int) -> bool:
        """Return whether a launch may start before the previous launch has ended (programmatic dependent launch).

        The device may start the later launch before the writes of the earlier launch are flushed; the later launch
        waits for the flush itself. Measured only on devices of compute capability 9.0. Graphs can hold such
        launches since CUDA 12.3.
        """
        return self.architecture(device) == "sm_90" and self.version() >= (12, 3)

    @functools.cache  # noqa: B019  the driver lives as long as the process
    def multiprocessors(self, device: int) -> int:
        """Return the number of multiprocessors of the device."""
        (count,) = self._attributes(device, 16)
        return count

    def _attributes(self, device: int, *attributes: int) -> list[int]:
        handle, numbers = ctypes.c_int(), [ctypes.c_int() for _ in attributes]
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        for number, attribute in zip(numbers, attributes, strict=True):
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, handle)
        return [number.value for number in numbers]

    def load(self, code: bytes, shared_bytes: int, *, needs_cache: bool = False) -> int:
        """Return the handle of the function ``kernel`` in a module of the current context (see `Launch`)."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        try:
            self.call("cuModuleGetFunction", ctypes.byref(function), module, b"kernel")
            if shared_bytes:
                # The most dynamic shared memory that a block may have, and the percentage of on-chip memory that is
                # shared memory.
                self.call("cuFuncSetAttribute", function, 8, shared_bytes)
                if not needs_cache:
                    self.call("cuFuncSetAttribute", function, 9, 100)
        except CudaError:
            self._library.cuModuleUnload(module)
            raise
        return function.value or 0

    # ---- Scratch. A thread may only ask for it inside `prepares`.

    def scratch(self, device: int, stream: int, kind: str, nbytes: int) -> int:
        """Return scratch of one kind for kernels on one stream of the current context.

        Kernels on a stream follow each other, so they share scratch; each kind has memory of its own. Memory that has
        become too small is kept, because kernels in flight may use it; its replacement is at least twice as large. So
        all scratch of one kind and stream has at most four times the size that its largest launch needs. Scratch of
        destroyed streams is kept too, because kernels may still use it. Once there are 32 such pieces, all of them are
        freed together, and CUDA waits for all work on the device.
        """
        if not nbytes:
            return 0
        with self._lock:
            self._free_ended()
            number = self._number_now(device, stream)
            key = device, number, kind
            address, size = self._scratch.get(key, (0, 0))
            if size < nbytes:
                outgrown = [address] if address else []
                address, size = self._allocate(nbytes, max(2 * size, _LEAST_SCRATCH))
                if _starts_at_zero(kind):
                    try:
                        self._clear(address, size)
                    except BaseException:
                        self._library.cuMemFree_v2(ctypes.c_void_p(address))
                        raise
                self._scratch[key] = address, size
                self._outgrown.setdefault((device, number), []).extend(outgrown)
            return address

    def number(self, stream: int) -> int:
        """Return a number that no other stream has. The driver may reuse the handle of a destroyed stream.

        It must not be called for a stream that is being captured, because that ends the capture.

        Drivers before CUDA 12 do not number streams. The result is then the handle, except for handle 2, which means
        another stream in every thread.
        """
        found = ctypes.c_ulonglong()
        if stream < 2 or self._numbering is None or self._numbering(stream, ctypes.addressof(found)):
            return stream if stream != 2 else -threading.get_ident()
        return found.value + 2  # 0 and 1 are the handles of the default stream

    def _number_now(self, device: int, stream: int) -> int:
        """Return the number of a stream. If its handle had an earlier number, that stream's scratch becomes unused."""
        number, place = self.number(stream), _place(device, stream)
        gone = self._numbers.get(place, number)
        self._numbers[place] = number
        if gone != number:
            for key in [key for key in self._scratch if key[:2] == (device, gone)]:
                self._unused.append((device, self._scratch.pop(key)[0]))
            self._unused += [(device, address) for address in self._outgrown.pop((device, gone), [])]
            self._turns.pop((device, gone), None)
        if len(self._unused) >= 32:
            unused, self._unused = self._unused, []
            self._free(unused)
        return number

    def _free(self, memory: Iterable[tuple[int, int]]) -> None:
        """Free memory, given devices and addresses."""
        for device, address in memory:
            entered = self.enter(device)
            self._library.cuMemFree_v2(ctypes.c_void_p(address))
            if entered:
                self.leave()

    def _allocate(self, nbytes: int, wanted: int) -> tuple[int, int]:
        """Return new memory and its size: ``wanted`` bytes, or ``nbytes`` if that is more or the allocation fails."""
        pointer = ctypes.c_void_p()
        size = max(nbytes, wanted)
        if self._library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
            size = nbytes
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value or 0, size

    def _clear(self, address: int, size: int) -> None:
        """Zero memory on a new stream, which no capture sees, and wait for it."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        try:
            self.zero(address, size, stream.value or 0)
            self.call("cuStreamSynchronize", stream)
        finally:
            self._library.cuStreamDestroy_v2(stream)

    def zero(self, address: int, size: int, stream: int) -> None:
        """Zero memory before later work on a stream. On a stream that is being captured, the graph zeros it."""
        given = ctypes.c_void_p(address), ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        self.call("cuMemsetD8Async", *given)

    def any_set(self, addresses: Iterable[int], stream: int) -> bool:
        """Wait for the work on a stream, and return whether any of these 32-bit words is then not zero."""
        places, at = [*addresses], ctypes.c_void_p(stream)
        words = (ctypes.c_uint * len(places))()
        for word, place in enumerate(places):
            self.call("cuMemcpyDtoHAsync_v2", ctypes.byref(words, 4 * word), ctypes.c_void_p(place), _WORD, at)
        self.call("cuStreamSynchronize", at)
        return any(words)

    def turn(self, device: int, stream: int) -> threading.Lock:
        """Return the lock that a thread holds while its launches use the scratch of a stream."""
        return self._turns.setdefault((device, self.number(stream)), threading.Lock())

    # ---- Graphs.

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured into a graph. The default stream, 0 or 1, never is."""
        status = ctypes.c_int()
        self._capturing(stream, ctypes.addressof(status))
        return status.value == 1

    def graph(self, stream: int) -> Graph:
        """Return the resources of the graph into which a stream is being captured."""
        status, number, graph = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_void_p()
        places = (ctypes.byref(one) for one in (status, number, graph))
        self.call("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), *places, None, None)
        with self._lock:
            if number.value not in self._graphs:
                self._find_ended()
                end = End.of(self, graph)
                begun = self._ended.pop() if self._ended else Graph()
                begun.end = end
                self._graphs[number.value] = begun
            return self._graphs[number.value]

    def graph_scratch(self, graph: Graph, device: int, stream: int, kind: str, nbytes: int) -> int:
        """Return scratch of one kind for kernels that are captured into a graph on one stream.

        These kernels follow each other in the graph too. Scratch that must start at zero is zeroed by the graph, before
        the first of them. All scratch of a kind and stream is at most four times the scratch of the largest launch.
        """
        if not nbytes:
            return 0
        key = (*_place(device, stream), kind)
        with self._lock:
            address, size = graph.scratch.get(key, (0, 0))
            if size < nbytes:
                found = [one for one in graph.spare if one[0] == device and one[2] >= nbytes]
                if found:
                    least = min(found, key=lambda one: one[2])
                    graph.spare.remove(least)
                    _, address, size = least
                else:
                    address, size = self._allocate(nbytes, 2 * size)
                    graph.memory.append((device, address, size))
                if _starts_at_zero(kind):
                    self.zero(address, size, stream)
                graph.scratch[key] = address, size
            return address

    def _find_ended(self) -> None:
        """Find the graphs that no longer exist. The next graph gets their memory: a capture should free no memory."""
        for number, graph in [*self._graphs.items()]:
            if graph.end is not None and graph.end.has_come():
                del self._graphs[number]
                graph.rest()
                self._ended.append(graph)

    def _free_ended(self) -> None:
        """Free the resources of graphs that do not exist any more."""
        self._find_ended()
        while self._ended:
            self._free([(device, address) for device, address, _ in self._ended.pop().memory])


def _place(device: int, stream: int) -> tuple[int, int, int]:
    """Return a key that tells existing streams apart: the handle 2 means another stream in every thread."""
    return device, stream, threading.get_ident() if stream == 2 else 0


def _starts_at_zero(kind: str) -> bool:
    return not kind.startswith("scratch")


class Graph:
    """The resources of a graph, kept as long as it exists.

    They are the scratch of its launches and, with CuPy, which does not handle graphs, the memory of all arrays that
    its launches read and write. Arrays that launches write come from a pool of the graph. PyTorch has such pools.
    """

    def __init__(self) -> None:
        self.end: End | None = None
        self.turn = threading.Lock()  # held by a thread while its launches use scratch of the graph
        self.scratch: dict[tuple[Any, ...], tuple[int, int]] = {}  # addresses and sizes
        self.memory: list[tuple[int, int, int]] = []  # devices, addresses and sizes
        self.spare: list[tuple[int, int, int]] = []  # memory from an earlier graph, in this form
        self._pool: Any = None
        self._blocks: list[Any] = []
        self._written: set[int] = set()
        self._read: dict[int, Any] = {}

    def allocator(self) -> Callable[[int], Any]:
        """Return CuPy's allocator for arrays that launches write.

        Released memory serves only later launches that the graph has on this stream.
        """
        cupy = libraries.cupy()
        blocks, written = self._blocks, self._written
        if self._pool is None:

            def block(nbytes: int) -> Any:
                memory = cupy.cuda.Memory(nbytes)
                blocks.append(memory)  # otherwise a pool short of memory frees blocks that the graph still uses
                return cupy.cuda.MemoryPointer(memory, 0)

            self._pool = cupy.cuda.MemoryPool(block)
        pool = self._pool

        def allocate(nbytes: int) -> Any:
            pointer = pool.malloc(nbytes)
            written.add(pointer.mem.ptr)
            return pointer

        return allocate

    def keep(self, array: Array) -> None:
        """Keep the memory of a CuPy array that a launch reads, unless it comes from the pool."""
        memory = array.data.mem
        if memory.ptr not in self._written:
            self._read[id(memory)] = memory

    def rest(self) -> None:
        """Release the memory of arrays, which nothing else uses. Keep scratch for another graph."""
        self.scratch.clear()
        self.spare = [*self.memory]
        if self._pool is not None:
            self._pool.free_all_blocks()
            self._pool = None
        self._blocks, self._written, self._read = [], set(), {}


class End:
    """Tells when a graph does not exist any more.

    When the driver is done with a graph and all that was made from it, it calls a destructor, in a thread of its own
    and maybe after the end of Python. This destructor releases a lock of Python's C library, which needs neither the
    interpreter nor CUDA.
    """

    _idle: ClassVar[list[int]] = []

    def __init__(self, lock: int) -> None:
        self._lock = lock

    @classmethod
    def of(cls, driver: Driver, graph: ctypes.c_void_p) -> End:
        """Return the end of a graph that is being captured."""
        python, pointer = ctypes.pythonapi, ctypes.c_void_p
        opens = ctypes.cast(python.PyThread_release_lock, pointer)
        if cls._idle:
            lock = cls._idle.pop()
        else:
            lock = ctypes.PYFUNCTYPE(pointer)(("PyThread_allocate_lock", python))()
            cls._try(lock)
        tie = pointer()
        one = ctypes.c_uint(1)  # the count of references, and flags: do not wait; the graph takes the reference over
        driver.call("cuUserObjectCreate", ctypes.byref(tie), pointer(lock), opens, one, one)
        driver.call("cuGraphRetainUserObject", graph, tie, one, one)
        return cls(lock)

    def has_come(self) -> bool:
        """Return whether the graph does not exist any more. True only once, for its lock is then reused."""
        if not self._try(self._lock):
            return False
        self._idle.append(self._lock)
        return True

    @staticmethod
    def _try(lock: int) -> bool:
        take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
        return bool(take(("PyThread_acquire_lock", ctypes.pythonapi))(lock, 0))


_LEAST_SCRATCH = 1 << 19
_OUT_OF_MEMORY = 2
_WORD = ctypes.c_size_t(4)
# Invalid image, no binary for the GPU, invalid PTX, and PTX of a version that the driver does not know.
_UNREADABLE_CODE = (200, 209, 218, 222)


@functools.cache
def current() -> Driver:
    return Driver()

"""The only module that knows CUDA: compile, cache, borrow arrays, launch, check.

A primitive describes what a kernel does to its arrays as a `Plan`. Two runners take plans: `Runner` launches on the
caller's current stream (CuPy arrays, PyTorch tensors) through the CUDA driver, `traced` turns the launch into a call
inside a JAX program. Neither copies an array or leaves the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import importlib.resources
import importlib.util
import operator
import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import array_api_compat
import numpy as np

from parprims._arrays import Array, Namespace, is_sharded, varying_alike


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one launch does, as data; or several, one after another.

    The kernel is ``extern "C" void kernel(...)`` with the body given. In it, inputs are ``in0``, ``in1``, ...,
    outputs ``out0``, ..., scratch ``temporary``, ``zeroed``, ``status`` and ``scratch``, all of type ``void*``, and the
    integers ``n0``, ``n1``, ... of type ``long long``.

    Parameters
    ----------
    source : str
        The CUDA text before the kernel.
    body : str
        The kernel's statements.
    inputs : int
        The number of inputs.
    outputs : tuple of (shape, dtype)
        What is to be allocated, dtypes by the standard's names.
    integers : tuple of int
        The values of n0, n1, ...
    grid, block : int
        The number of blocks, and of threads in each.
    shared_bytes : int
        The dynamic shared memory of a block.
    zeroed_bytes, status_bytes, scratch_bytes : int
        How much scratch of each kind the kernel needs. Zeroed scratch is zero and the kernel leaves it so. Status
        scratch holds what kernels that use it left there, or zeros at first: they tell by a count of launches in its
        first word what is theirs. The rest may hold anything. Launches on one stream share it; those captured into a
        graph have the graph's, which every replay begins with zeros.
    unbound_registers : bool
        Whether a thread may have all the registers it can use; otherwise the compiler weighs them against the
        number of blocks that fit a multiprocessor.
    resident_blocks : int
        The number of blocks that are to fit a multiprocessor, where the device has the threads; 0 leaves it open.
    temporary_bytes : int
        How much memory, ``temporary`` in the kernel, the call has for itself, from the allocator of its library.
    own_instructions : bool
        Whether the kernel has instructions of the device's very architecture, which no later one has: sm_90a.
    then : tuple of Plan
        The launches after this one, with the same arrays, integers and scratch, in which they find what it left.
    """

    source: str
    body: str
    inputs: int
    outputs: tuple[tuple[tuple[int, ...], str], ...]
    integers: tuple[int, ...]
    grid: int
    block: int
    shared_bytes: int = 0
    zeroed_bytes: int = 0
    status_bytes: int = 0
    scratch_bytes: int = 0
    unbound_registers: bool = False
    resident_blocks: int = 0
    temporary_bytes: int = 0
    own_instructions: bool = False
    then: tuple[Plan, ...] = ()

    def text(self, *, static: bool, later: bool = False) -> str:
        """Return the whole CUDA source.

        ``static`` compiles the integers in and orders the pointers as a call inside a JAX program has them: inputs,
        scratch that starts at zero, outputs, other scratch, and once more what starts at zero. Before the outputs a
        ``later`` launch has outputs and other scratch once more, as what it is given. Otherwise the integers are
        parameters.
        """
        ins = [f"const void* in{index}" for index in range(self.inputs)]
        outs = [f"void* out{index}" for index in range(len(self.outputs))]
        if static:
            zeros = [f"void* {name}" for name, nbytes in self.zeros().items() if nbytes]
            results = [*outs, *(f"void* {name}" for name, nbytes in self.unset().items() if nbytes)]
            given = ["void*" for _ in results] if later else []
            parameters = [*ins, *zeros, *given, *results, *("void*" for _ in zeros)]
            missing = [name for name in _SCRATCH if f"void* {name}" not in parameters]
            locals_ = [f"constexpr long long n{index} = {n}LL;" for index, n in enumerate(self.integers)]
            locals_ += [f"void* const {name} = nullptr;" for name in missing]
        else:
            scratch = (f"void* {name}" for name in _SCRATCH)
            parameters = [*ins, *outs, *scratch, *(f"long long n{index}" for index in range(len(self.integers)))]
            locals_ = []
        resident = 1 if self.unbound_registers else self.resident_blocks
        bounds = f"{self.block}, {resident}" if resident else self.block
        return "\n".join(
            (
                self.source,
                f'extern "C" __global__ void __launch_bounds__({bounds}) kernel({", ".join(parameters)}) {{',
                *locals_,
                self.body,
                "}\n",
            )
        )

    def zeros(self) -> dict[str, int]:
        """Return the bytes of each kind of scratch that starts at zero."""
        return {"zeroed": self.zeroed_bytes, "status": self.status_bytes}

    def unset(self) -> dict[str, int]:
        """Return the bytes of each kind of scratch that may hold anything."""
        return {"temporary": self.temporary_bytes, "scratch": self.scratch_bytes}

    def architecture(self, arch: str) -> str:
        """Return what to compile for, given the device's architecture as sm_NN or compute_NN."""
        return arch + "a" * self.own_instructions

    def launches(self) -> tuple[Plan, ...]:
        """Return this plan and those after it."""
        return (self, *self.then)


_SCRATCH = ("temporary", "zeroed", "status", "scratch")


@functools.cache
def device_source(*files: str) -> str:
    """Return the CUDA text of package files, joined: NVRTC sees one text, so that a cached result cannot be stale."""
    folder = importlib.resources.files("parprims")
    return "\n".join((folder / file).read_text(encoding="utf-8") for file in files)


# ---- Compiling ------------------------------------------------------------------------------------------------


class CudaError(RuntimeError):
    """CUDA refused a request; the message has its name and meaning."""


@dataclasses.dataclass(frozen=True)
class _Compiler:
    """An NVRTC that works: how it is called, its version, and the architectures it makes code for, in order."""

    compile: Callable[..., tuple[bytes, str]]
    version: tuple[int, int]
    architectures: tuple[int, ...]

    def __str__(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"


@functools.cache
def _compiler() -> _Compiler | str:
    """Return the compiler of the CUDA bindings, else CuPy's, else the sentence why none works."""
    reasons = []
    for package, found in (("cuda.bindings", _compiler_of_bindings), ("cupy_backends", _compiler_of_cupy)):
        if not importlib.util.find_spec(package.partition(".")[0]) or not importlib.util.find_spec(package):
            continue
        try:
            return found()
        except Exception as error:  # whatever a package raises that cannot load its library
            first_line = str(error).strip().partition("\n")[0]
            reasons.append(f"that of {package} fails: {type(error).__name__}: {first_line}")
    if reasons:
        return f"no CUDA compiler works here: {'; '.join(reasons)}"
    return "no CUDA compiler is installed: install CuPy, or cuda-core with nvidia-cuda-nvrtc"


def compiler_refusal() -> str | None:
    """Return the sentence why CUDA text cannot be compiled here, or None."""
    compiler = _compiler()
    return compiler if isinstance(compiler, str) else None


def _working_compiler() -> _Compiler:
    compiler = _compiler()
    if isinstance(compiler, str):
        raise CudaError(compiler)
    return compiler


def _options(arch: str) -> tuple[str, ...]:
    # Subnormal numbers stay what they are: no -ftz. -default-device keeps the text free of host code.
    return (f"--gpu-architecture={arch}", "-std=c++17", "-default-device")


def compile_source(text: str, arch: str, *, report: bool = False) -> tuple[bytes, str]:
    """Return machine code for sm_NN, or PTX for compute_NN, and the compiler's log.

    ``report`` asks the log for registers, spills and shared memory.
    """
    options = _options(arch) + (("--ptxas-options=-v",) if report else ())
    return _working_compiler().compile(text, options, ptx=arch.startswith("compute"))


def _compiler_of_bindings() -> _Compiler:
    from cuda.bindings import nvrtc

    version, architectures = nvrtc.nvrtcVersion(), nvrtc.nvrtcGetSupportedArchs()
    if version[0] or architectures[0]:
        raise CudaError("it does not tell its version")
    return _Compiler(_compile_with_bindings, version[1:], tuple(sorted(architectures[1])))


def _compiler_of_cupy() -> _Compiler:
    from cupy_backends.cuda.libs import nvrtc

    return _Compiler(_compile_with_cupy, tuple(nvrtc.getVersion()), tuple(sorted(nvrtc.getSupportedArchs())))


def _compile_with_bindings(text: str, options: Sequence[str], *, ptx: bool) -> tuple[bytes, str]:
    from cuda.bindings import nvrtc

    def checked(result: Any) -> Any:
        status, *values = result
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CudaError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status)[1].decode()}")
        return values[0] if values else None

    program = checked(nvrtc.nvrtcCreateProgram(text.encode(), b"parprims.cu", 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        log = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        message = bytes(log).rstrip(b"\0").decode(errors="replace")
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CudaError(f"a kernel does not compile:\n{message}")
        size, get = (
            (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX) if ptx else (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        )
        code = bytearray(checked(size(program)))
        checked(get(program, code))
        return bytes(code), message
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _compile_with_cupy(text: str, options: Sequence[str], *, ptx: bool) -> tuple[bytes, str]:
    from cupy_backends.cuda.libs import nvrtc

    program = nvrtc.createProgram(text, "parprims.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, tuple(options))
        except nvrtc.NVRTCError:
            raise CudaError(f"a kernel does not compile:\n{nvrtc.getProgramLog(program)}") from None
        code = nvrtc.getPTX(program) if ptx else nvrtc.getCUBIN(program)
        return code, nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


def _made_for(arch: str) -> str:
    """Return what is compiled for sm_NN or compute_NN.

    For a GPU that is newer than the compiler it is the newest PTX before it, of which the driver makes machine code.
    """
    compiler, number = _working_compiler(), arch.partition("_")[2]
    if not number.isdecimal() or int(number) in compiler.architectures:
        return arch
    older = [known for known in compiler.architectures if known < int(number)]
    if not older:
        raise CudaError(_too_old(int(number), compiler))
    return f"compute_{older[-1]}"


def _too_old(number: int, compiler: _Compiler) -> str:
    ours, least = (f"{one // 10}.{one % 10}" for one in (number, compiler.architectures[0]))
    return f"the GPU has compute capability {ours}, and {compiler} makes code for {least} and later"


def _cache_folder() -> pathlib.Path | None:
    root = os.environ.get("PARPRIMS_CACHE_DIR")
    if root:
        return pathlib.Path(root)
    try:
        return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "parprims"
    except RuntimeError:  # there is no home directory
        return None


@functools.cache
def compiled(text: str, arch: str) -> bytes:
    """Return the machine code or PTX of a source, from memory, from disk, or compiled now and kept on disk."""
    arch, folder = _made_for(arch), _cache_folder()
    key = "\0".join(("checked", text, *_options(arch), str(_working_compiler())))
    name = f"{hashlib.sha256(key.encode()).hexdigest()}.{'ptx' if arch[0] == 'c' else 'cubin'}"
    code = _from_disk(folder / name) if folder else None
    if code is None:
        code, _ = compile_source(text, arch)
        if folder:
            _to_disk(folder / name, code)
    return code


def _from_disk(path: pathlib.Path) -> bytes | None:
    """Return what is kept in a file, behind its digest, or None if there is no such file or it is not what was kept."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    code = content[_DIGEST:]
    return code if hashlib.sha256(code).digest() == content[:_DIGEST] else None


def _to_disk(path: pathlib.Path, code: bytes) -> None:
    """Keep code in a file: whole or not at all, also for processes that compile the same."""
    # A folder that cannot be written costs the next process a compilation, nothing else.
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in path.parent.glob(f"*{_UNFINISHED}"):  # of a process that was ended while it wrote
            with contextlib.suppress(OSError):
                if time.time() - leftover.stat().st_mtime > 3600:
                    leftover.unlink()
        handle, name = tempfile.mkstemp(_UNFINISHED, dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


_DIGEST, _UNFINISHED = 32, ".tmp"


# ---- The driver -----------------------------------------------------------------------------------------------


class _Driver:
    """The few functions of the CUDA driver that launching takes, called directly: each costs a microsecond."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        self.launch = self._library.cuLaunchKernelEx
        self.launch.argtypes = (ctypes.c_void_p,) * 4
        self._current = self._library.cuCtxGetCurrent
        self._capturing = self._library.cuStreamIsCapturing
        self._capturing.argtypes = (ctypes.c_void_p,) * 2
        self._contexts: dict[int, int] = {}
        self._scratch: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._turns: dict[tuple[int, ...], threading.Lock] = {}
        self._graphs: dict[int, _Graph] = {}
        self._ended: list[_Graph] = []
        self._lock = threading.Lock()
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any) -> None:
        """Call a driver function; CudaError if it fails."""
        status = getattr(self._library, name)(*args)
        if status:
            raise self.error(name, status)

    def error(self, name: str, status: int) -> Exception:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(status, ctypes.byref(text))
        meaning = text.value.decode() if text.value else "unknown error"
        message = f"{name}: {meaning} (CUDA error {status})"
        if status in _UNREADABLE_CODE:
            message += f"; code of {_compiler()} may need a newer driver than this one, of {self}"
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
        """Make a device's context current; return whether it was not, so that `leave` is due."""
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
        """Make a device's context current, and let code and memory be had while a stream is being captured."""
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
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), device)
        digits = ""
        for attribute in (75, 76):  # compute capability, major and minor
            number = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, handle)
            digits += str(number.value)
        return f"sm_{digits}"

    def load(self, code: bytes, shared_bytes: int) -> int:
        """Return the handle of the function ``kernel`` in a module of the current context."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        try:
            self.call("cuModuleGetFunction", ctypes.byref(function), module, b"kernel")
            if shared_bytes:
                # The most dynamic shared memory a block may have, and the share of the on-chip memory that is to be
                # shared.
                self.call("cuFuncSetAttribute", function, 8, shared_bytes)
                self.call("cuFuncSetAttribute", function, 9, 100)
        except CudaError:
            self._library.cuModuleUnload(module)
            raise
        return function.value or 0

    # ---- Scratch, which a thread that `prepares` may ask for.

    def scratch(self, device: int, stream: int, kind: str, nbytes: int) -> int:
        """Return memory of one kind for kernels on one stream of the current context.

        They follow each other and can share it; each kind is kept apart. What is too small is kept, since kernels in
        flight may use it, and what replaces it is at least twice as large: all of one kind and stream is at most four
        times what its largest launch needs.
        """
        if not nbytes:
            return 0
        key = (*_place(device, stream), kind)
        with self._lock:
            self._free_ended()
            address, size = self._scratch.get(key, (0, 0))
            if size < nbytes:
                address, size = self._allocate(nbytes, max(2 * size, _LEAST_SCRATCH))
                if _starts_at_zero(kind):
                    try:
                        self._clear(address, size)
                    except BaseException:
                        self._library.cuMemFree_v2(ctypes.c_void_p(address))
                        raise
                self._scratch[key] = address, size
            return address

    def _allocate(self, nbytes: int, wanted: int) -> tuple[int, int]:
        """Return new memory and its size: as much as is wanted, or else as is needed."""
        pointer = ctypes.c_void_p()
        size = max(nbytes, wanted)
        if self._library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)):
            size = nbytes
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value or 0, size

    def _clear(self, address: int, size: int) -> None:
        """Zero memory, on a stream of its own that no capture can see, and wait for it."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        try:
            self.zero(address, size, stream.value or 0)
            self.call("cuStreamSynchronize", stream)
        finally:
            self._library.cuStreamDestroy_v2(stream)

    def zero(self, address: int, size: int, stream: int) -> None:
        """Zero memory before what comes later on a stream; on one that is being captured, whenever the graph runs."""
        given = ctypes.c_void_p(address), ctypes.c_ubyte(0), ctypes.c_size_t(size), ctypes.c_void_p(stream)
        self.call("cuMemsetD8Async", *given)

    def turn(self, device: int, stream: int) -> threading.Lock:
        """Return the lock of the thread whose launches, one after another, have the scratch of a stream."""
        return self._turns.setdefault(_place(device, stream), threading.Lock())

    # ---- Graphs.

    def is_capturing(self, stream: int) -> bool:
        """Return whether a stream is being captured into a graph. The default one, 0 or 1, never is."""
        status = ctypes.c_int()
        self._capturing(stream, ctypes.addressof(status))
        return status.value == 1

    def graph(self, stream: int) -> _Graph:
        """Return what belongs to the graph into which a stream is being captured."""
        status, number, graph = ctypes.c_int(), ctypes.c_ulonglong(), ctypes.c_void_p()
        places = (ctypes.byref(one) for one in (status, number, graph))
        self.call("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), *places, None, None)
        with self._lock:
            if number.value not in self._graphs:
                self._find_ended()
                end = _End.of(self, graph)
                begun = self._ended.pop() if self._ended else _Graph()
                begun.end = end
                self._graphs[number.value] = begun
            return self._graphs[number.value]

    def graph_scratch(self, graph: _Graph, device: int, stream: int, kind: str, nbytes: int) -> int:
        """Return memory of one kind for kernels that are captured into a graph on one stream.

        They follow each other in the graph too. What must start at zero is zeroed by the graph, before the first of
        them. All of one kind and stream is at most four times what the largest launch needs.
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
        """Find the graphs that are no more; what they had is for the next one: a capture had better free nothing."""
        for number, graph in [*self._graphs.items()]:
            if graph.end is not None and graph.end.has_come():
                del self._graphs[number]
                graph.rest()
                self._ended.append(graph)

    def _free_ended(self) -> None:
        """Free what belonged to graphs that are no more."""
        self._find_ended()
        while self._ended:
            for device, address, _ in self._ended.pop().memory:
                entered = self.enter(device)
                self._library.cuMemFree_v2(ctypes.c_void_p(address))
                if entered:
                    self.leave()


def _place(device: int, stream: int) -> tuple[int, int, int]:
    """Return what tells streams apart: the handle 2 means another one in every thread."""
    return device, stream, threading.get_ident() if stream == 2 else 0


def _starts_at_zero(kind: str) -> bool:
    return not kind.startswith("scratch")


class _Graph:
    """What belongs to a graph as long as it lives.

    That is the scratch of its launches and, with CuPy, which does not know of graphs, the memory of all arrays that its
    launches read and write: from a pool of its own what they write. PyTorch has such pools itself.
    """

    def __init__(self) -> None:
        self.end: _End | None = None
        self.scratch: dict[tuple[Any, ...], tuple[int, int]] = {}  # addresses and sizes
        self.memory: list[tuple[int, int, int]] = []  # devices, addresses and sizes
        self.spare: list[tuple[int, int, int]] = []  # of these, what an earlier graph had
        self._pool: Any = None
        self._blocks: list[Any] = []
        self._written: set[int] = set()
        self._read: dict[int, Any] = {}

    def allocator(self) -> Callable[[int], Any]:
        """Return CuPy's allocator for arrays that launches write.

        What is dropped is for later launches on the same stream of the graph, and for nobody else.
        """
        cupy = _cupy()
        blocks, written = self._blocks, self._written
        if self._pool is None:

            def block(nbytes: int) -> Any:
                memory = cupy.cuda.Memory(nbytes)
                blocks.append(memory)  # a pool that is short of memory gives back what is free, which the graph uses
                return cupy.cuda.MemoryPointer(memory, 0)

            self._pool = cupy.cuda.MemoryPool(block)
        pool = self._pool

        def allocate(nbytes: int) -> Any:
            pointer = pool.malloc(nbytes)
            written.add(pointer.mem.ptr)
            return pointer

        return allocate

    def keep(self, array: Array) -> None:
        """Keep the memory of an array of CuPy that a launch reads, unless it is of the pool."""
        memory = array.data.mem
        if memory.ptr not in self._written:
            self._read[id(memory)] = memory

    def rest(self) -> None:
        """Give back the memory of arrays that nobody else has; keep scratch for another graph."""
        self.scratch.clear()
        self.spare = [*self.memory]
        if self._pool is not None:
            self._pool.free_all_blocks()
            self._pool = None
        self._blocks, self._written, self._read = [], set(), {}


class _End:
    """Tells that a graph is no more.

    When the driver is done with a graph and all that was made of it, it calls a destructor on a thread of its own,
    maybe after the end of Python. This one opens a lock of Python's C library, which needs neither the interpreter nor
    CUDA.
    """

    _idle: ClassVar[list[int]] = []

    def __init__(self, lock: int) -> None:
        self._lock = lock

    @classmethod
    def of(cls, driver: _Driver, graph: ctypes.c_void_p) -> _End:
        """Return the end of a graph that is being captured."""
        python, pointer = ctypes.pythonapi, ctypes.c_void_p
        opens = ctypes.cast(python.PyThread_release_lock, pointer)
        if cls._idle:
            lock = cls._idle.pop()
        else:
            lock = ctypes.PYFUNCTYPE(pointer)(("PyThread_allocate_lock", python))()
            cls._try(lock)
        tie = pointer()
        one = ctypes.c_uint(1)  # reference, and the flags of the calls: nobody waits, and the graph takes the reference
        driver.call("cuUserObjectCreate", ctypes.byref(tie), pointer(lock), opens, one, one)
        driver.call("cuGraphRetainUserObject", graph, tie, one, one)
        return cls(lock)

    def has_come(self) -> bool:
        """Return whether the graph is no more, once: its lock is for another graph then."""
        if not self._try(self._lock):
            return False
        self._idle.append(self._lock)
        return True

    @staticmethod
    def _try(lock: int) -> bool:
        take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
        return bool(take(("PyThread_acquire_lock", ctypes.pythonapi))(lock, 0))


class _Config(ctypes.Structure):
    """CUlaunchConfig: the grid, the block, dynamic shared memory, the stream, and attributes."""

    _fields_ = (
        *((f"{what}_{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class _Packet:
    """What the driver is handed at a launch: made once, filled in at every call. All parameters are 8 bytes wide."""

    def __init__(self, plan: Plan, stream: int, values: Sequence[int]) -> None:
        launches = plan.launches()
        self._fields = [_Config(one.grid, 1, 1, one.block, 1, 1, one.shared_bytes, stream) for one in launches]
        self.stream = stream
        self.zeroed = 0  # where the address of zeroed scratch is among the values
        self.turn: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.values = (ctypes.c_longlong * len(values))(*values)
        self._size = ctypes.c_size_t(8 * len(values))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
        self._extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(self.values), 2, ctypes.addressof(self._size), None)
        self.config, *self.later = (ctypes.addressof(fields) for fields in self._fields)
        self.extra = ctypes.addressof(self._extra)


_LEAST_SCRATCH = 1 << 19
_OUT_OF_MEMORY, _INVALID_CONTEXT, _INVALID_HANDLE = 2, 201, 400
# Invalid image, no binary for the GPU, invalid PTX, and PTX of another version than the driver knows.
_UNREADABLE_CODE = (200, 209, 218, 222)


Found = TypeVar("Found")


@functools.cache
def _driver() -> _Driver:
    return _Driver()


# ---- Arrays ---------------------------------------------------------------------------------------------------


def refusal(xp: Namespace, arrays: tuple[Array, ...]) -> str | None:
    """Return the sentence why no kernel can take these arrays, or None."""
    kind = _library(xp)
    if kind == "torch":
        torch = _torch()
        if arrays[0].device.type != "cuda":
            return "the arrays are not on a CUDA device"
        for x in arrays:
            if type(x) is not torch.Tensor and type(x) is not torch.nn.Parameter:
                return f"the arrays are of type {type(x).__name__}, whose memory the kernel cannot read"
        if _transformed():
            return (
                "a transformation of torch.func or a forward derivative is under way, which the kernel does not carry"
            )
        if torch.is_grad_enabled() and any(x.requires_grad for x in arrays):
            return "a gradient is asked for, which the kernel does not carry"
        if torch.compiler.is_compiling():
            return "the call is being compiled"
    elif kind == "jax":
        reason = _jax_refusal(arrays)
        if reason:
            return reason
    elif kind != "cupy":
        return "the arrays are not on a CUDA device"
    return compiler_refusal() or (None if kind == "jax" else _device_refusal(device_index(xp, arrays[0])))


@functools.cache
def _device_refusal(device: int) -> str | None:
    """Return the sentence why what the compiler makes does not run on a device, or None."""
    compiler = _working_compiler()
    try:
        driver = _driver()
        number = int(driver.architecture(device).removeprefix("sm_"))
        version = driver.version()
    except (OSError, CudaError) as error:
        return f"the CUDA driver does not work: {error}"
    if number < compiler.architectures[0]:
        return _too_old(number, compiler)
    # Of one major release the driver runs all machine code, but of PTX only what its own release can.
    if version[0] < compiler.version[0] or (number not in compiler.architectures and version < compiler.version):
        return f"the driver, of {driver}, is older than the compiler, {compiler}: update the one or install the other's"
    return None


def _transformed() -> bool:
    """Return whether a transformation of torch.func or a forward derivative is under way."""
    torch = _torch()
    found: bool = torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
    return found


@functools.cache
def _library(xp: Namespace) -> str:
    for name in ("numpy", "cupy", "torch", "jax"):
        if getattr(array_api_compat, f"is_{name}_namespace")(xp):
            return name
    return "other"


def layout(xp: Namespace, x: Array) -> tuple[Any, ...]:
    """Return (strides in elements, address modulo 16) of an array, by which kernels are chosen."""
    kind = _library(xp)
    if kind == "torch":
        return x.stride(), x.data_ptr() & 15
    if kind == "cupy":
        itemsize = x.dtype.itemsize
        return tuple(stride // itemsize for stride in x.strides), x.data.ptr & 15
    strides = []
    step = 1
    for length in reversed(x.shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides)), 0


def device_index(xp: Namespace, x: Array) -> int:
    """Return the number of the CUDA device a CuPy or PyTorch array is on."""
    index: int = x.device.index if _library(xp) == "torch" else x.data.device_id
    return index


def capability(xp: Namespace, x: Array) -> int:
    """Return the compute capability of the device an array is on, 90 for 9.0; with JAX that of its first device."""
    if is_jax(xp):
        return int(_jax_cuda_devices()[0].compute_capability.replace(".", ""))
    return int(_driver().architecture(device_index(xp, x)).removeprefix("sm_"))


def signature(x: Array | tuple[Array, ...], gradient: bool = False) -> tuple[Any, ...] | None:
    """Return all that the choice of a method and a kernel can depend on, or None if that is not known cheaply.

    Calls of equal signatures and equal options take the same way, so that the second can go straight to it. Where
    PyTorch is asked for a derivative there is one only for a caller whose ways carry it, ``gradient``.
    """
    kind = _KNOWN_TYPES.get(type(x))
    if kind == "cupy":
        memory = x.data  # type: ignore[union-attr]
        return x.dtype.num, x.shape, x.strides, memory.ptr & 15, memory.device_id  # type: ignore[union-attr]
    if kind == "torch":
        return _torch_signature(x, gradient)
    if kind == "jax":
        sharding = x.sharding  # type: ignore[union-attr]
        if type(sharding) is not _one_device():  # what has a mesh in its type takes the longer way
            return None
        return x.dtype, x.shape, sharding, _wide_jax()  # type: ignore[union-attr]
    if type(x) is tuple:
        parts = tuple([signature(one, gradient) for one in x])
        return None if None in parts else parts
    return None


def _torch_signature(x: Array, gradient: bool) -> tuple[Any, ...] | None:
    torch = _torch()
    asked_for = x.requires_grad and torch.is_grad_enabled()
    if (asked_for and not gradient) or x.is_conj() or x.is_neg() or torch.compiler.is_compiling() or _transformed():
        return None
    return x.dtype, x.shape, x.stride(), x.data_ptr() & 15, x.device, asked_for


_KNOWN_TYPES: dict[type, str] = {}


def plain(xp: Namespace, x: Array) -> Array:
    """Return the array if a kernel can read its memory as it is, else a copy: resolved and whole-element strides."""
    kind = _library(xp)
    if kind == "torch":
        return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x
    if kind == "cupy":
        itemsize = x.dtype.itemsize
        if x.data.ptr % itemsize or any(stride % itemsize for stride in x.strides):
            return x.copy()
    return x


def contiguous(xp: Namespace, x: Array) -> Array:
    """Return the array in row-major order, copied if it is not."""
    kind = _library(xp)
    if kind == "torch":
        return x.contiguous()
    return xp.ascontiguousarray(x) if kind == "cupy" else x


class Runner:
    """A plan made ready for repeated launches: what does not depend on the arrays' addresses is done once."""

    def __init__(self, xp: Namespace, plan: Plan, device: int) -> None:
        self.plan = plan
        self._device = device
        self._function = 0
        self._later: tuple[int, ...] = ()
        self._packets: dict[int, list[_Packet]] = {}
        self._launch = _driver().launch
        torch = _torch() if _library(xp) == "torch" else None
        if torch is not None:
            place = torch.device("cuda", device)
            self._outputs = tuple(
                functools.partial(torch.empty, shape, dtype=getattr(torch, name), device=place)
                for shape, name in plan.outputs
            )
            self._stream = _torch_stream(device)
            self._address = torch.Tensor.data_ptr
            _KNOWN_TYPES[torch.Tensor] = _KNOWN_TYPES[torch.nn.Parameter] = "torch"
        else:
            cupy = _cupy()
            self._outputs = tuple(
                functools.partial(cupy.ndarray, shape, np.dtype(name)) for shape, name in plan.outputs
            )
            current_stream = cupy.cuda.get_current_stream
            self._stream = lambda: current_stream().ptr
            self._address = operator.attrgetter("data.ptr")
            _KNOWN_TYPES[cupy.ndarray] = "cupy"
        self._current_device = None if torch is not None else _cupy().cuda.runtime.getDevice
        # What is the call's own is allocated as one output more, and dropped when all is launched: the libraries give
        # memory only to what comes later on the stream.
        if plan.temporary_bytes:
            shape = (plan.temporary_bytes,)
            own = (
                functools.partial(torch.empty, shape, dtype=torch.uint8, device=place)
                if torch is not None
                else functools.partial(_cupy().ndarray, shape, np.dtype("uint8"))
            )
            self._outputs += (own,)
        # Scratch is shared along a stream. Several launches of a plan leave it to each other, so it is not that of
        # others, and one thread has it at a time.
        shared = {**plan.zeros(), "scratch": plan.scratch_bytes}
        self._scratch = {f"{kind} of several" if plan.then else kind: nbytes for kind, nbytes in shared.items()}
        self._in_turns = bool(plan.then) and any(shared.values())
        # A graph has scratch of its own, and memory of CuPy's, which PyTorch gives it itself.
        self._asks_for_graphs = torch is None or any(shared.values())
        self._is_capturing = _driver().is_capturing

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Launch on the caller's current stream and return the outputs; nothing waits."""
        if self._current_device is not None and self._current_device() != self._device:
            with _cupy().cuda.Device(self._device):
                return self(*arrays)
        stream = self._stream()
        if self._asks_for_graphs and stream > 1 and self._is_capturing(stream):
            return self._captured(stream, arrays)
        outputs = tuple([output() for output in self._outputs])
        # The handle 2 means another stream, with other scratch, in every thread.
        key = stream if stream != 2 else -threading.get_ident()
        packets = self._packets.get(key)
        try:
            packet = packets.pop()  # type: ignore[union-attr]  # one thread has it until it is put back
        except (AttributeError, IndexError):
            packet = self._packet(stream)
            packets = self._packets.setdefault(key, [])
        try:
            values, address = packet.values, self._address
            for at, array in enumerate((*arrays, *outputs)):
                values[at] = address(array)
            if self._later:
                status = self._launch_all(packet)
            else:
                status = self._launch(packet.config, self._function, None, packet.extra)
                if status:
                    status = self._launch_again(packet, packet.config, self._function, status)
        finally:
            packets.append(packet)  # type: ignore[union-attr]
        if status:
            raise _driver().error("cuLaunchKernelEx", status)
        return outputs[:-1] if self.plan.temporary_bytes else outputs

    def one(self, x: Array) -> Array:
        """Return what a call returns for one input, output and launch, sooner: small arrays wait for little else."""
        stream = self._stream()
        packets = self._packets.get(stream)
        if (
            packets
            and (self._current_device is None or self._current_device() == self._device)
            and not (self._asks_for_graphs and stream > 1 and self._is_capturing(stream))
        ):
            output = self._outputs[0]()
            try:
                packet = packets.pop()
            except IndexError:  # another thread was quicker
                return self(x)[0]
            try:
                packet.values[0] = self._address(x)
                packet.values[1] = self._address(output)
                status = self._launch(packet.config, self._function, None, packet.extra)
            finally:
                packets.append(packet)
            if not status:
                return output
        return self(x)[0]  # the first call on this stream, or one that needs another device to be current

    def _launch_again(self, packet: _Packet, config: int, function: int, status: int) -> int:
        """Launch where it failed because this thread has not used the device, or uses another; return the status."""
        driver = _driver()
        if status not in (_INVALID_CONTEXT, _INVALID_HANDLE) or not driver.enter(self._device):
            return status
        try:
            again: int = self._launch(config, function, None, packet.extra)
            return again
        finally:
            driver.leave()

    def _launch_all(self, packet: _Packet) -> int:
        """Launch one after another, with no other thread's between that have this scratch; return the status."""
        with packet.turn:
            status, done = 0, False
            try:
                functions = self._function, *self._later
                for config, function in zip((packet.config, *packet.later), functions, strict=True):
                    status = self._launch(config, function, None, packet.extra)
                    if status:
                        status = self._launch_again(packet, config, function, status)
                    if status:
                        return status
                done = True
            finally:
                # Where a launch failed, or the user stopped between two, those before have left it as it must not be.
                if not done and self.plan.zeroed_bytes:
                    with contextlib.suppress(CudaError, MemoryError), _driver().prepares(self._device):
                        _driver().zero(packet.values[packet.zeroed], self.plan.zeroed_bytes, packet.stream)
        return status

    def _captured(self, stream: int, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Launch into the graph that the stream is being captured into; return the outputs.

        It need not be fast, and so is the same for all: scratch is the graph's, and a packet is for one call.
        """
        driver = _driver()
        with driver.prepares(self._device):
            self._load()
            graph = driver.graph(stream)
            if self._current_device is None:
                outputs = tuple([output() for output in self._outputs])
            else:
                with _cupy().cuda.using_allocator(graph.allocator()):
                    outputs = tuple([output() for output in self._outputs])
                for array in arrays:
                    graph.keep(array)
            scratch = [
                driver.graph_scratch(graph, self._device, stream, kind, nbytes)
                for kind, nbytes in self._scratch.items()
            ]
            packet = self._filled(stream, scratch)
            for at, array in enumerate((*arrays, *outputs)):
                packet.values[at] = self._address(array)
            status = self._launch_all(packet)
        if status:
            raise driver.error("cuLaunchKernelEx", status)
        return outputs[:-1] if self.plan.temporary_bytes else outputs

    def _packet(self, stream: int) -> _Packet:
        """Return a packet for a stream with all but the arrays' addresses filled in."""
        driver = _driver()
        with driver.prepares(self._device):
            self._load()
            scratch = [driver.scratch(self._device, stream, kind, nbytes) for kind, nbytes in self._scratch.items()]
        return self._filled(stream, scratch)

    def _filled(self, stream: int, scratch: Sequence[int]) -> _Packet:
        plan = self.plan
        addresses = (0,) * (plan.inputs + len(plan.outputs) + 1)  # the last is what is temporary
        packet = _Packet(plan, stream, (*addresses, *scratch, *plan.integers))
        packet.zeroed = len(addresses)
        if self._in_turns:
            packet.turn = _driver().turn(self._device, stream)
        return packet

    def _load(self) -> None:
        """Load the kernels, if they are not."""
        if self._function:
            return
        arch = _driver().architecture(self._device)
        functions = [
            _loaded(self._device, compiled(one.text(static=False), one.architecture(arch)), one.shared_bytes)
            for one in self.plan.launches()
        ]
        self._later, self._function = tuple(functions[1:]), functions[0]


@functools.cache
def _loaded(device: int, code: bytes, shared_bytes: int) -> int:
    del device  # it is the current one; modules of two devices are two
    return _driver().load(code, shared_bytes)


def _torch_stream(device: int) -> Callable[[], int]:
    """Return a function that gives the handle of the device's current stream, without an object around it if it can."""
    torch = _torch()
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return functools.partial(raw, device)
    return lambda: torch.cuda.current_stream(device).cuda_stream


@functools.cache
def _torch() -> Any:
    import torch

    return torch


@functools.cache
def _cupy() -> Any:
    import cupy

    return cupy


def power_of_two(n: int, *, most: int = 1 << 62, up: bool = False) -> int:
    """Return the largest power of two that is at most n (or, up, the smallest at least n), from 1 to most."""
    if n <= 1:
        return 1
    return min(most, 1 << ((n - 1).bit_length() if up else n.bit_length() - 1))


def remember(memory: dict[Any, Any], key: Any, found: Found) -> Found:
    """Keep what was found, for at most 4096 keys, and return it."""
    if len(memory) >= 4096:
        memory.clear()
    memory[key] = found
    return found


def recall(memory: dict[Any, Found], key: Any) -> Found | None:
    """Return what was kept for a key, or None; also for one with an unhashable argument, which the checks will name."""
    try:
        return memory.get(key)
    except TypeError:
        return None


# ---- JAX ------------------------------------------------------------------------------------------------------


_JAX_TARGET = "__gpu$xla.gpu.ptx"
"""What XLA calls a kernel by that a program brings along: undocumented, and its own to change."""
_JAX_OLDEST, _JAX_NEWEST = (0, 10), (0, 12)
"""The releases of JAX that this target is tested with."""


def jax_export_checks() -> list[Any]:
    """Return the safety checks to disable so that ``jax.export`` takes programs that hold kernels.

    JAX promises nothing for a target of a call that it does not know. The one by which XLA runs the kernels is tested
    with JAX 0.10 to 0.12: what is exported for a GPU is to be run by these releases.

    Returns
    -------
    list of jax.export.DisabledSafetyCheck
        What ``jax.export.export`` takes as ``disabled_checks``. Programs exported for a CPU need none.

    Examples
    --------
    >>> import parprims
    >>> def exported(function, *arrays):
    ...     import jax
    ...
    ...     checks = parprims.jax_export_checks()
    ...     return jax.export.export(jax.jit(function), disabled_checks=checks)(*arrays).serialize()
    """
    import jax.export

    return [jax.export.DisabledSafetyCheck.custom_call(_JAX_TARGET)]


def _jax_refusal(arrays: tuple[Array, ...]) -> str | None:
    import jax

    for x in arrays:
        if isinstance(x, jax.core.Tracer):
            continue
        devices = x.devices() if isinstance(x, jax.Array) else set()  # rules are handed NumPy's too
        if {device.platform for device in devices} != {"gpu"}:
            return "the arrays are not on a CUDA device"
        if len(devices) > 1:
            return "the arrays are spread over several devices"
    return _jax_platform_refusal()


def _jax_release_refusal(release: tuple[int, ...]) -> str | None:
    if _JAX_OLDEST <= release[:2] <= _JAX_NEWEST:
        return None
    oldest, newest, this = (".".join(map(str, one)) for one in (_JAX_OLDEST, _JAX_NEWEST, release))
    return f"XLA's call of kernels is tested with JAX {oldest} to {newest}, and this is JAX {this}"


@functools.cache
def _jax_platform_refusal() -> str | None:
    """Return why JAX programs cannot hold our kernels, found by running a small one; or None."""
    import jax

    if not _jax_cuda_devices():
        return "JAX has no CUDA device"
    reason = _jax_release_refusal(jax.__version_info__) or compiler_refusal()
    if reason:
        return reason
    plan = Plan(
        source="",
        body="((int*)out0)[threadIdx.x] = ((const int*)in0)[threadIdx.x] + (int)n0;",
        inputs=1,
        outputs=(((4,), "int32"),),
        integers=(3,),
        grid=1,
        block=4,
    )
    try:
        # What is found is remembered, so it must not depend on the switches of this call.
        with jax.ensure_compile_time_eval(), jax.disable_jit(False), jax.transfer_guard("allow"):
            given = jax.device_put(np.arange(4, dtype=np.int32), _jax_cuda_devices()[0])
            _KNOWN_TYPES[type(given)] = "jax"  # that of arrays with values; tracers are of other types
            (result,) = jax.jit(lambda x: _embedded(plan, (x,)))(given)
            works = bool((np.asarray(result) == np.arange(3, 7)).all())
    except Exception as error:  # whatever an XLA without this undocumented call target raises
        return f"this JAX cannot hold a CUDA kernel: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None if works else "this JAX holds a CUDA kernel but does not run it right"


@functools.cache
def _one_device() -> Any:
    import jax

    return jax.sharding.SingleDeviceSharding


@functools.cache
def _jax_cuda_devices() -> list[Any]:
    import jax

    try:
        return list(jax.devices("cuda"))
    except RuntimeError:  # JAX's answer where the platform is missing
        return []


def _embedded(plan: Plan, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the outputs of the plan as a call inside the traced program.

    XLA loads the PTX itself. Scratch that must start at zero is an input that the kernel updates in place.
    """
    import jax
    import jax.numpy as jnp

    capability = _jax_cuda_devices()[0].compute_capability.replace(".", "")
    # Inside shard_map what the call returns varies over the axes of the mesh that its arrays do.
    kind = jax.typeof(arrays[0])
    mesh = kind.sharding.mesh
    place = None if mesh.empty else jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    result = functools.partial(jax.ShapeDtypeStruct, sharding=place, manual_axis_type=kind.manual_axis_type)
    results = [result(shape, getattr(jnp, name)) for shape, name in plan.outputs]
    updated = [jnp.zeros((-(-nbytes // 4),), jnp.uint32) for nbytes in plan.zeros().values() if nbytes]
    arrays_and_updated = varying_alike((*arrays, *updated))
    arrays, updated = arrays_and_updated[: len(arrays)], list(arrays_and_updated[len(arrays) :])
    results += [result((-(-nbytes // 4),), jnp.uint32) for nbytes in plan.unset().values() if nbytes]
    kept = len(results)
    places = [*range(kept, kept + len(updated))]  # among the results, of what a launch updates
    results += [result(zero.shape, zero.dtype) for zero in updated]
    for at, launch in enumerate(plan.launches()):
        text = launch.text(static=True, later=at > 0)
        aliases = {plan.inputs + given: place for given, place in enumerate(places)}
        call = jax.ffi.ffi_call(_JAX_TARGET, results, input_output_aliases=aliases)
        outputs = call(
            *arrays,
            *updated,
            name="kernel",
            kernel_type="ptx",
            kernel_data=compiled(text, launch.architecture(f"compute_{capability}")).rstrip(b"\0").decode(),
            grid_x=np.int32(launch.grid),
            grid_y=np.int32(1),
            grid_z=np.int32(1),
            block_x=np.int32(launch.block),
            block_y=np.int32(1),
            block_z=np.int32(1),
            shared_mem_bytes=np.int32(launch.shared_bytes),
        )
        # A later launch has what starts at zero, outputs and other scratch as those before it left them.
        places = [*range(kept, len(results)), *range(kept)]
        updated = [outputs[place] for place in places]
    return tuple(outputs[: len(plan.outputs)])


def traced(
    plan: Plan,
    otherwise: Callable[..., tuple[Array, ...]],
    batched: Callable[..., tuple[Array, ...]],
) -> Callable[..., tuple[Array, ...]]:
    """Return the plan as a jitted JAX function of its inputs.

    On a CUDA device it is the kernel, elsewhere ``otherwise``, which computes the same from the same arrays and also
    carries derivatives. ``batched`` takes the inputs with one more leading axis, of length 1 where an input is the same
    for the whole batch, and vmap becomes a call of it.
    """
    import jax

    @jax.custom_batching.custom_vmap  # type: ignore[untyped-decorator]
    def compute(*arrays: Array) -> tuple[Array, ...]:
        found: tuple[Array, ...] = jax.lax.platform_dependent(
            *arrays, cuda=lambda *xs: _embedded(plan, xs), default=otherwise
        )
        return found

    @compute.def_vmap  # type: ignore[untyped-decorator]
    def _(_size: int, in_batched: list[bool], *arrays: Array) -> tuple[tuple[Array, ...], tuple[bool, ...]]:
        arrays = tuple(jax.numpy.asarray(x) for x in arrays)
        if any(is_sharded(x) for x in arrays):  # the batch is, which the other methods leave where it is
            outputs = jax.vmap(otherwise, tuple(0 if own else None for own in in_batched))(*arrays)
        else:
            outputs = batched(*(x if own else x[None] for x, own in zip(arrays, in_batched, strict=True)))
        return outputs, (True,) * len(outputs)

    @jax.custom_jvp  # type: ignore[untyped-decorator]
    def differentiable(*arrays: Array) -> tuple[Array, ...]:
        found: tuple[Array, ...] = compute(*arrays)
        return found

    @differentiable.defjvp  # type: ignore[untyped-decorator]
    def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> Any:
        _, derivative = jax.jvp(otherwise, primals, tangents)
        return differentiable(*primals), derivative

    function: Callable[..., tuple[Array, ...]] = jax.jit(lambda *arrays: differentiable(*varying_alike(arrays)))
    return function


def mode(xp: Namespace) -> bool:
    """Return whatever setting of the library decides its dtypes: whether JAX has 64-bit ones."""
    return is_jax(xp) and _wide_jax()


def _wide_jax() -> bool:
    import jax

    wide: bool = jax.config.jax_enable_x64
    return wide


def is_jax(xp: Namespace) -> bool:
    """Return whether arrays of this namespace are JAX's."""
    return _library(xp) == "jax"

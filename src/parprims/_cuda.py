"""The only module that knows CUDA: compile, cache, borrow arrays, launch, check.

A primitive describes what a kernel does to its arrays as a `Plan`. Two runners take plans: `Runner` launches on the
caller's current stream (CuPy arrays, PyTorch tensors) through the CUDA driver, `traced` turns the launch into a call
inside a JAX program. Neither copies an array or leaves the device.
"""

from __future__ import annotations

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
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import array_api_compat
import numpy as np

from parprims._arrays import Array, Namespace


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
        first word what is theirs. The rest may hold anything.
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


@functools.cache
def _has_bindings() -> bool:
    return bool(importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"))


def compiler_refusal() -> str | None:
    """Return the sentence why CUDA text cannot be compiled here, or None."""
    if _has_bindings() or importlib.util.find_spec("cupy_backends"):
        return None
    return "no CUDA compiler is installed: install CuPy, or cuda-core with nvidia-cuda-nvrtc"


def _options(arch: str) -> tuple[str, ...]:
    # Subnormal numbers stay what they are: no -ftz. -default-device keeps the text free of host code.
    return (f"--gpu-architecture={arch}", "-std=c++17", "-default-device")


def compile_source(text: str, arch: str, *, report: bool = False) -> tuple[bytes, str]:
    """Return machine code for sm_NN, or PTX for compute_NN, and the compiler's log.

    ``report`` asks the log for registers, spills and shared memory.
    """
    options = _options(arch) + (("--ptxas-options=-v",) if report else ())
    if _has_bindings():
        return _compile_with_bindings(text, options, ptx=arch.startswith("compute"))
    return _compile_with_cupy(text, options, ptx=arch.startswith("compute"))


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


@functools.cache
def _compiler_version() -> str:
    if _has_bindings():
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
        return f"{major}.{minor}"
    from cupy_backends.cuda.libs import nvrtc

    major, minor = nvrtc.getVersion()
    return f"{major}.{minor}"


def _cache_folder() -> pathlib.Path:
    root = os.environ.get("PARPRIMS_CACHE_DIR")
    if root:
        return pathlib.Path(root)
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "parprims"


@functools.cache
def compiled(text: str, arch: str) -> bytes:
    """Return the machine code or PTX of a source, from memory, from disk, or compiled now and kept on disk."""
    key = "\0".join((text, *_options(arch), _compiler_version()))
    path = _cache_folder() / f"{hashlib.sha256(key.encode()).hexdigest()}.{'ptx' if arch[0] == 'c' else 'cubin'}"
    if path.exists():
        return path.read_bytes()
    code, _ = compile_source(text, arch)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(code)
        os.replace(file.name, path)  # whole or not at all, also for processes that compile the same
    except OSError:
        pass  # a folder that cannot be written costs the next process a compilation, nothing else
    return code


# ---- The driver -----------------------------------------------------------------------------------------------


class _Driver:
    """The few functions of the CUDA driver that launching takes, called directly: each costs a microsecond."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
        self.launch = self._library.cuLaunchKernelEx
        self.launch.argtypes = (ctypes.c_void_p,) * 4
        self._current = self._library.cuCtxGetCurrent
        self._contexts: dict[int, int] = {}
        self._scratch: dict[tuple[Any, ...], tuple[int, int]] = {}
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
        return MemoryError(message) if status == 2 else CudaError(message)

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
        self.call("cuModuleGetFunction", ctypes.byref(function), module, b"kernel")
        if shared_bytes:
            # The most dynamic shared memory a block may have, and the share of the on-chip memory that is to be shared.
            self.call("cuFuncSetAttribute", function, 8, shared_bytes)
            self.call("cuFuncSetAttribute", function, 9, 100)
        return function.value or 0

    def scratch(self, device: int, stream: int, kind: str, nbytes: int) -> int:
        """Return memory of one kind for kernels on one stream of the current context.

        They follow each other and can share it; each kind (see `Plan`) is kept apart. The handle 2 means another
        stream in every thread.
        """
        if not nbytes:
            return 0
        key = (device, stream, threading.get_ident() if stream == 2 else 0, kind)
        address, size = self._scratch.get(key, (0, 0))
        if size >= nbytes:
            return address
        size = max(nbytes, _LEAST_SCRATCH)
        with self._lock:
            pointer = ctypes.c_void_p()
            # The buffer before stays: kernels in flight, or in a captured graph, may still use it.
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
            if kind != "scratch":
                self._clear(pointer, size)
            self._scratch[key] = (pointer.value or 0, size)
        return pointer.value or 0

    def _clear(self, pointer: ctypes.c_void_p, size: int) -> None:
        """Zero memory, on a stream of its own that no capture can see, and wait for it."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        self.call("cuMemsetD8Async", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size), stream)
        self.call("cuStreamSynchronize", stream)
        self.call("cuStreamDestroy_v2", stream)


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
        self.values = (ctypes.c_longlong * len(values))(*values)
        self._size = ctypes.c_size_t(8 * len(values))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
        self._extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(self.values), 2, ctypes.addressof(self._size), None)
        self.config, *self.later = (ctypes.addressof(fields) for fields in self._fields)
        self.extra = ctypes.addressof(self._extra)


_LEAST_SCRATCH = 1 << 19
_INVALID_CONTEXT, _INVALID_HANDLE = 201, 400


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
    return _compiler_refusal()


_compiler_refusal = functools.cache(compiler_refusal)


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
        return x.dtype, x.shape, x.sharding, _wide_jax()  # type: ignore[union-attr]
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
    if kind != "cupy":
        return x
    copy = xp.ascontiguousarray(x)
    if copy is not x:
        _keep_if_captured(copy, _cupy().cuda.get_current_stream().ptr)
    return copy


_captured: list[Array] = []


def _keep_if_captured(own: Array, stream: int) -> None:
    """Keep an array of CuPy that nobody else holds, if the stream is being captured: a graph may need it at any time.

    PyTorch keeps the memory of a graph by itself.
    """
    if _cupy().cuda.runtime.streamIsCapturing(stream):
        _captured.append(own)


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
        self._may_be_captured = torch is None and plan.temporary_bytes > 0

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Launch on the caller's current stream and return the outputs; nothing waits."""
        if self._current_device is not None and self._current_device() != self._device:
            with _cupy().cuda.Device(self._device):
                return self(*arrays)
        stream = self._stream()
        outputs = tuple([output() for output in self._outputs])
        # The handle 2 means another stream, with other scratch, in every thread.
        key = stream if stream != 2 else -threading.get_ident()
        packets = self._packets.get(key)
        try:
            packet = packets.pop()  # type: ignore[union-attr]  # one thread has it until it is put back
        except (AttributeError, IndexError):
            packet = self._packet(stream)
            packets = self._packets.setdefault(key, [])
        values, address = packet.values, self._address
        for at, array in enumerate((*arrays, *outputs)):
            values[at] = address(array)
        status = self._launch(packet.config, self._function, None, packet.extra)
        if status:
            status = self._launch_again(packet, packet.config, self._function, status)
        for config, function in zip(packet.later, self._later, strict=True):
            status = status or self._launch(config, function, None, packet.extra)
            if status:
                status = self._launch_again(packet, config, function, status)
        packets.append(packet)  # type: ignore[union-attr]
        if status:
            raise _driver().error("cuLaunchKernelEx", status)
        if self._may_be_captured:
            _keep_if_captured(outputs[-1], stream)
        return outputs[:-1] if self.plan.temporary_bytes else outputs

    def one(self, x: Array) -> Array:
        """Return what a call returns for one input, output and launch, sooner: small arrays wait for little else."""
        packets = self._packets.get(self._stream())
        if packets and (self._current_device is None or self._current_device() == self._device):
            output = self._outputs[0]()
            try:
                packet = packets.pop()
            except IndexError:  # another thread was quicker
                return self(x)[0]
            packet.values[0] = self._address(x)
            packet.values[1] = self._address(output)
            status = self._launch(packet.config, self._function, None, packet.extra)
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

    def _packet(self, stream: int) -> _Packet:
        """Return a packet for a stream with all but the arrays' addresses filled in."""
        plan = self.plan
        scratch = self._prepare(stream)
        addresses = (0,) * (plan.inputs + len(self._outputs))
        if not plan.temporary_bytes:
            addresses += (0,)
        return _Packet(plan, stream, (*addresses, *scratch, *plan.integers))

    def _prepare(self, stream: int) -> tuple[int, ...]:
        """Load the kernel and return the addresses of its scratch, kind by kind, for a stream."""
        driver, plan = _driver(), self.plan
        entered = driver.enter(self._device)
        mode = ctypes.c_int(2)  # relaxed: code and memory may be had while a stream is being captured into a graph
        driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        try:
            if not self._function:
                arch = driver.architecture(self._device)
                functions = [
                    _loaded(self._device, compiled(one.text(static=False), one.architecture(arch)), one.shared_bytes)
                    for one in plan.launches()
                ]
                self._later, self._function = tuple(functions[1:]), functions[0]
            sizes = {**plan.zeros(), "scratch": plan.scratch_bytes}
            scratch = tuple(driver.scratch(self._device, stream, kind, nbytes) for kind, nbytes in sizes.items())
        finally:
            driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            if entered:
                driver.leave()
        return scratch


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


def _jax_refusal(arrays: tuple[Array, ...]) -> str | None:
    import jax

    for x in arrays:
        if not isinstance(x, jax.core.Tracer) and {device.platform for device in x.devices()} != {"gpu"}:
            return "the arrays are not on a CUDA device"
        if not isinstance(x, jax.core.Tracer) and len(x.devices()) > 1:
            return "the arrays are spread over several devices"
    return _jax_platform_refusal()


@functools.cache
def _jax_platform_refusal() -> str | None:
    """Return why JAX programs cannot hold our kernels, found by running a small one; or None."""
    import jax

    if not _jax_cuda_devices():
        return "JAX has no CUDA device"
    reason = compiler_refusal()
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
        with jax.ensure_compile_time_eval():
            given = jax.device_put(np.arange(4, dtype=np.int32), _jax_cuda_devices()[0])
            _KNOWN_TYPES[type(given)] = "jax"  # that of arrays with values; tracers are of other types
            (result,) = jax.jit(lambda x: _embedded(plan, (x,)))(given)
            works = bool((np.asarray(result) == np.arange(3, 7)).all())
    except Exception as error:  # whatever an XLA without this undocumented call target raises
        return f"this JAX cannot hold a CUDA kernel: {type(error).__name__}: {str(error).splitlines()[0]}"
    return None if works else "this JAX holds a CUDA kernel but does not run it right"


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
    results = [jax.ShapeDtypeStruct(shape, getattr(jnp, name)) for shape, name in plan.outputs]
    updated = [jnp.zeros((-(-nbytes // 4),), jnp.uint32) for nbytes in plan.zeros().values() if nbytes]
    results += [jax.ShapeDtypeStruct((-(-nbytes // 4),), jnp.uint32) for nbytes in plan.unset().values() if nbytes]
    kept = len(results)
    places = [*range(kept, kept + len(updated))]  # among the results, of what a launch updates
    results += [jax.ShapeDtypeStruct(zero.shape, zero.dtype) for zero in updated]
    for at, launch in enumerate(plan.launches()):
        text = launch.text(static=True, later=at > 0)
        aliases = {plan.inputs + given: place for given, place in enumerate(places)}
        call = jax.ffi.ffi_call("__gpu$xla.gpu.ptx", results, input_output_aliases=aliases)
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

    function: Callable[..., tuple[Array, ...]] = jax.jit(differentiable)
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

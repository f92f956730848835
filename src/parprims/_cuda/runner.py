"""Launch the kernels of a plan on the caller's stream, on arrays of CuPy and PyTorch."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from parprims._compiling import first_call
from parprims._compiling.plan_capture import is_observing, observed
from parprims._core.arrays import Array, Namespace, library
from parprims._cuda import compiler, driver, libraries
from parprims._cuda.compiler import CudaError
from parprims._cuda.plan import Plan
from parprims._operators.languages import Captured


class Config(ctypes.Structure):
    """CUlaunchConfig: the grid, the block, dynamic shared memory, the stream, and attributes."""

    _fields_ = (
        *((f"{unit}_{axis}", ctypes.c_uint) for unit in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


class Attribute(ctypes.Structure):
    """CUlaunchAttribute. Its value has 64 bytes; here it is a flag."""

    _fields_ = (("kind", ctypes.c_int), ("gap", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_int * 15))


_OVERLAPS = Attribute(kind=6, value=1)  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION


class Packet:
    """The arguments of all launches of a plan in the driver's form, 8 bytes each. Every call fills in the addresses.

    With ``overlaps``, a launch may start before the previous launch of the plan has ended.
    """

    def __init__(self, plan: Plan, stream: int, values: Sequence[int], *, overlaps: bool) -> None:
        flag = (ctypes.addressof(_OVERLAPS), 1) if overlaps else ()
        self._fields = [
            Config(one.grid, 1, 1, one.block, 1, 1, one.shared_bytes, stream, *(flag if at else ()))
            for at, one in enumerate(plan.launches)
        ]
        self.stream = stream
        self.functions: tuple[int, ...] = ()  # the loaded kernels, or none
        self.zeroed = 0  # the index of the address of zeroed scratch among the values
        self.turn: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.values = (ctypes.c_longlong * len(values))(*values)
        self._size = ctypes.c_size_t(8 * len(values))
        # CU_LAUNCH_PARAM_BUFFER_POINTER, CU_LAUNCH_PARAM_BUFFER_SIZE, CU_LAUNCH_PARAM_END
        self._extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(self.values), 2, ctypes.addressof(self._size), None)
        self.config, *self.later = (ctypes.addressof(fields) for fields in self._fields)
        self.extra = ctypes.addressof(self._extra)


class Runner:
    """A plan prepared for repeated launches: a call only fills in the addresses of its arrays."""

    def __init__(self, xp: Namespace, plan: Plan, device: int) -> None:
        self.plan = plan
        self._words: list[Any] = [word.value for word in plan.words]
        self._device = device
        self._functions: tuple[int, ...] = ()  # the kernels, when they are loaded
        self._begun: list[Future[bytes]] | None = None  # the kernels that are being compiled
        self._packets: dict[int, list[Packet]] = {}
        self._driver = driver.current()
        self._launch = self._driver.launch
        # The call's own memory is allocated as one more output, and released when all is launched: the libraries reuse
        # memory only for later work on the stream.
        own = (((plan.temporary_bytes,), "uint8"),) if plan.temporary_bytes else ()
        outputs = (*plan.outputs, *own)
        torch = libraries.torch() if library(xp) == "torch" else None
        if torch is not None:
            self._outputs = tuple([_torch_allocator(shape, name, device) for shape, name in outputs])
            self._stream = _torch_stream(device)
            self._address = torch.Tensor.data_ptr
        else:
            cupy = libraries.cupy()
            self._outputs = tuple([_cupy_allocator(shape, name) for shape, name in outputs])
            current_stream = cupy.cuda.get_current_stream
            self._stream = lambda: current_stream().ptr
            self._address = operator.attrgetter("data.ptr")
        self._current_device = None if torch is not None else libraries.cupy().cuda.runtime.getDevice
        # Launches on a stream share scratch. If a plan has several launches, they leave data in scratch for each other.
        # So this scratch is not that of other plans, and one thread has it at a time.
        several = len(plan.launches) > 1
        shared = {**plan.zeros(), "scratch": plan.scratch_bytes}
        self._scratch = {f"{kind} of several" if several else kind: nbytes for kind, nbytes in shared.items()}
        self._shares = any(shared.values())
        self._in_turns = several and self._shares
        # In a graph, scratch is that of the graph, and so is the memory of CuPy's arrays. PyTorch provides its own.
        self._asks_for_graphs = torch is None or self._shares
        self._is_capturing, self._number = self._driver.is_capturing, self._driver.number

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        """Launch on the caller's current stream and return the outputs; nothing waits."""
        observed(self.plan, arrays)
        if self._current_device is not None and self._current_device() != self._device:
            with libraries.cupy().cuda.Device(self._device):
                return self(*arrays)
        stream = self._stream()
        if self._asks_for_graphs and stream > 1 and self._is_capturing(stream):
            return self._captured(stream, arrays)
        outputs = tuple([output() for output in self._outputs])
        # To ask for the number of a stream that is being captured would end the capture.
        number = self._number(stream) if self._shares and stream > 1 else stream
        packets = self._packets.get(number)
        try:
            packet = packets.pop()  # type: ignore[union-attr]  # only this thread has it until it is put back
        except (AttributeError, IndexError):
            if first_call.under_way():
                return self._rehearsed(stream)
            self._rehearse(stream)
            packet = self._packet(stream, wait=False)
            if not self._functions:
                return self._while_compiling(packet, arrays, outputs)
            if len(self._packets) >= 256:  # most are for destroyed streams
                self._packets.clear()
            packets = self._packets.setdefault(number, [])
        try:
            values, address = packet.values, self._address
            for at, array in enumerate((*arrays, *outputs)):
                values[at] = address(array)
            if self._words:
                values[-len(self._words) :] = self._words
            if packet.later:
                status = self._launch_all(packet)
            else:
                status = self._launch(packet.config, packet.functions[0], None, packet.extra)
                if status:
                    status = self._launch_again(packet, packet.config, packet.functions[0], status)
        finally:
            packets.append(packet)  # type: ignore[union-attr]
        if status:
            raise self._driver.error("cuLaunchKernelEx", status)
        return outputs[:-1] if self.plan.temporary_bytes else outputs

    def one(self, *arrays: Array) -> Array:
        """Return the only output of a plan with one launch; small arrays need its smaller overhead."""
        stream = self._stream()
        if self._asks_for_graphs and stream > 1 and self._is_capturing(stream):
            return self(*arrays)[0]
        packets = self._packets.get(self._number(stream) if self._shares and stream > 1 else stream)
        if packets and (self._current_device is None or self._current_device() == self._device):
            output = self._outputs[0]()
            try:
                packet = packets.pop()
            except IndexError:  # another thread has taken the last packet
                return self(*arrays)[0]
            try:
                values, address, at = packet.values, self._address, 0
                for array in arrays:
                    values[at] = address(array)
                    at += 1
                values[at] = address(output)
                if self._words:
                    values[-len(self._words) :] = self._words
                status = self._launch(packet.config, packet.functions[0], None, packet.extra)
            finally:
                packets.append(packet)
            if not status:
                return output
        return self(*arrays)[0]  # the first call on this stream, or one that needs another device to be current

    def returning(self, length: int) -> Runner:
        """Return a runner of this plan whose outputs have one dimension and this length.

        It is for kernels that read the length of their results from an input.
        """
        if not self._functions and not first_call.under_way():
            with self._driver.prepares(self._device):
                self._load()
        runner = copy.copy(self)
        outputs = tuple([((length,), name) for _, name in self.plan.outputs])
        runner.plan = dataclasses.replace(self.plan, outputs=outputs)
        temporary = self._outputs[len(outputs) :]
        runner._outputs = (*(self._empty(length, name) for _, name in outputs), *temporary)
        return runner

    def with_captured(self, captured: tuple[Captured, ...]) -> Runner:
        """Return a runner of this plan with other captured numbers. It shares the packets of this runner."""
        if captured == self.plan.captured:
            return self
        runner = copy.copy(self)
        runner.plan = dataclasses.replace(self.plan, captured=captured)
        runner._words = [word.value for word in runner.plan.words]
        return runner

    def _empty(self, length: int, name: str) -> Callable[[], Array]:
        """Return a function that allocates an array of one dimension once. `_torch_allocator` pays only if repeated."""
        if self._current_device is not None:
            return _cupy_allocator((length,), name)
        torch = libraries.torch()
        return functools.partial(torch.empty, length, dtype=getattr(torch, name), device=self._device)

    def _launch_again(self, packet: Packet, config: int, function: int, status: int) -> int:
        """Launch again if the launch failed because another device is current, or no device; return the status."""
        if status not in (_INVALID_CONTEXT, _INVALID_HANDLE) or not self._driver.enter(self._device):
            return status
        try:
            new_status: int = self._launch(config, function, None, packet.extra)
            return new_status
        finally:
            self._driver.leave()

    def _launch_all(self, packet: Packet, launches: Iterable[tuple[int, int]] | None = None) -> int:
        """Launch in order, while no other thread launches with this scratch; return the status.

        ``launches`` are pairs of a configuration and a function, by default all of the plan.
        """
        with packet.turn:
            status, done = 0, False
            try:
                configs = packet.config, *packet.later
                for config, function in launches or zip(configs, packet.functions, strict=True):
                    status = self._launch(config, function, None, packet.extra)
                    if status:
                        status = self._launch_again(packet, config, function, status)
                    if status:
                        return status
                done = True
            finally:
                # After a failed launch, or an interrupt between launches, scratch is not zero.
                if not done and self.plan.zeroed_bytes:
                    with contextlib.suppress(CudaError, MemoryError), self._driver.prepares(self._device):
                        self._driver.zero(packet.values[packet.zeroed], self.plan.zeroed_bytes, packet.stream)
        return status

    def _rehearse(self, stream: int) -> None:
        """Begin to compile the kernels, and rehearse the call with this step, unless an earlier call has done so."""
        if self._functions or self._begun is not None or (stream > 1 and self._is_capturing(stream)):
            return
        with self._driver.prepares(self._device):
            self._begin()
        first_call.rehearse()

    def _rehearsed(self, stream: int) -> tuple[Array, ...]:
        """Return outputs that are zero, and begin to compile the kernels."""
        outputs = tuple([output() for output in self._outputs[: len(self.plan.outputs)]])
        with self._driver.prepares(self._device):
            if not self._functions:
                self._begin()
            for output in outputs:
                if output.nbytes:
                    self._driver.zero(self._address(output), output.nbytes, stream)
        return outputs

    def _while_compiling(
        self, packet: Packet, arrays: tuple[Array, ...], outputs: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        """Launch each kernel that has work as soon as it is compiled; return the outputs.

        No other call uses the packet.
        """
        with self._driver.prepares(self._device):
            return self._carried_out(packet, arrays, outputs, self._launches_with_work(packet, self._begin()))

    def _carried_out(
        self,
        packet: Packet,
        arrays: tuple[Array, ...],
        outputs: tuple[Array, ...],
        launches: Iterable[tuple[int, int]] | None = None,
    ) -> tuple[Array, ...]:
        """Launch on arrays by `_launch_all`, with a packet that no other call uses; return the outputs."""
        for at, array in enumerate((*arrays, *outputs)):
            packet.values[at] = self._address(array)
        status = self._launch_all(packet, launches)
        if status:
            raise self._driver.error("cuLaunchKernelEx", status)
        return outputs[:-1] if self.plan.temporary_bytes else outputs

    def _launches_with_work(self, packet: Packet, begun: list[Future[bytes]]) -> Iterator[tuple[int, int]]:
        """Yield the configuration and the function of each launch that has work, as soon as it is compiled.

        The words that say whether a launch has work are read after the earlier launches.
        """
        zeroed = packet.values[packet.zeroed]
        for at, config in enumerate((packet.config, *packet.later)):
            words = [zeroed + 4 * word for word in self.plan.launches[at].if_any]
            if not words or self._driver.any_set(words, packet.stream):
                yield config, self._loaded(at, begun)

    def _captured(self, stream: int, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
        """Launch into the graph that the stream is being captured into; return the outputs.

        This need not be fast, so all plans use scratch of the graph, and a packet for each call.
        """
        with self._driver.prepares(self._device):
            self._load()
            graph = self._driver.graph(stream)
            if self._current_device is None:
                outputs = tuple([output() for output in self._outputs])
            else:
                with libraries.cupy().cuda.using_allocator(graph.allocator()):
                    outputs = tuple([output() for output in self._outputs])
                for array in arrays:
                    graph.keep(array)
            scratch = [
                self._driver.graph_scratch(graph, self._device, stream, kind, nbytes)
                for kind, nbytes in self._scratch.items()
            ]
            packet = self._filled(stream, scratch)
            packet.turn = graph.turn
            return self._carried_out(packet, arrays, outputs)

    def _packet(self, stream: int, *, wait: bool = True) -> Packet:
        """Return a packet for a stream, complete except for the addresses of arrays."""
        with self._driver.prepares(self._device):
            self._load(wait=wait)
            scratch = [
                self._driver.scratch(self._device, stream, kind, nbytes) for kind, nbytes in self._scratch.items()
            ]
        packet = self._filled(stream, scratch)
        if self._in_turns:
            packet.turn = self._driver.turn(self._device, stream)
        return packet

    def _filled(self, stream: int, scratch: Sequence[int]) -> Packet:
        plan = self.plan
        addresses = (0,) * (plan.inputs + len(plan.outputs) + 1)  # the last is for temporary memory
        values = (*addresses, *scratch, *plan.integers)
        packet = Packet(plan, stream, values, overlaps=self._driver.overlaps(self._device))
        packet.zeroed = len(addresses)
        packet.functions = self._functions
        return packet

    def _load(self, *, wait: bool = True) -> None:
        """Load the kernels. Without ``wait``, do nothing while kernels compile that may have no work."""
        if self._functions:
            return
        begun = self._begin()
        if wait or not any(one.if_any for one in self.plan.launches) or all(one.done() for one in begun):
            self._functions = tuple([self._loaded(at, begun) for at in range(len(begun))])
            self._begun = None

    def _begin(self) -> list[Future[bytes]]:
        """Begin to compile the kernels, unless a call has begun; the kernels that always have work come first."""
        begun = self._begun
        if begun is None:
            plan, arch = self.plan, self._driver.architecture(self._device)
            sources = [(plan.text(at), one.architecture(arch)) for at, one in enumerate(plan.launches)]
            rare = [source for source, one in zip(sources, plan.launches, strict=True) if one.if_any]
            futures = compiler.compiling([source for source in sources if source not in rare], rare)
            self._begun = begun = [futures[source] for source in sources]
        return begun

    def _loaded(self, at: int, begun: list[Future[bytes]]) -> int:
        """Return the function of a launch, when it is compiled."""
        try:
            launch = self.plan.launches[at]
            return loaded(self._device, begun[at].result(), launch.shared_bytes, launch.needs_cache)
        except Exception:
            self._begun = None  # the next call compiles again
            raise


@functools.cache
def loaded(device: int, code: bytes, shared_bytes: int, needs_cache: bool) -> int:
    """Return the handle of a kernel on a device, which must be current: a module belongs to one device."""
    del device
    return driver.current().load(code, shared_bytes, needs_cache=needs_cache)


def only(run: Callable[..., tuple[Array, ...]]) -> Callable[..., Array]:
    """Return a function that runs a plan with one output, and returns the array instead of a tuple."""
    quick = isinstance(run, Runner) and len(run.plan.launches) == 1 and not run.plan.temporary_bytes
    if quick and not is_observing():  # `Runner.one` reports to no observer
        return run.one  # type: ignore[no-any-return, attr-defined]
    return lambda *arrays: run(*arrays)[0]


def returning(run: Callable[..., tuple[Array, ...]], length: int) -> Callable[..., tuple[Array, ...]]:
    """Return a function that runs the plan of a `Runner` with outputs of this length."""
    runner: Callable[..., tuple[Array, ...]] = run.returning(length)  # type: ignore[attr-defined]
    return runner


def _cupy_allocator(shape: tuple[int, ...], name: str) -> Callable[[], Array]:
    """Return a function that allocates an array of CuPy on the current device."""
    return functools.partial(libraries.cupy().ndarray, shape, np.dtype(name))


def _torch_allocator(shape: tuple[int, ...], name: str, device: int) -> Callable[[], Array]:
    """Return a function that allocates a tensor.

    ``torch.empty`` takes twice as long to read its arguments as ``torch.empty_like``. So the function makes a tensor
    like one of this shape with a single element of memory, if that gives row-major strides. A small tensor shows
    whether it does; a tensor without memory would make PyTorch import SymPy, which takes two seconds.
    """
    torch = libraries.torch()
    dtype, place = getattr(torch, name), torch.device("cuda", device)
    if torch.empty_like(torch.empty((), dtype=dtype).expand([min(n, 2) for n in shape])).is_contiguous():
        return functools.partial(torch.empty_like, torch.empty((), dtype=dtype, device=place).expand(shape))
    return functools.partial(torch.empty, shape, dtype=dtype, device=place)


def _torch_stream(device: int) -> Callable[[], int]:
    """Return a function that returns the handle of the current stream, if possible without making an object."""
    torch = libraries.torch()
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if raw is not None:
        return functools.partial(raw, device)
    return lambda: torch.cuda.current_stream(device).cuda_stream


_INVALID_CONTEXT, _INVALID_HANDLE = 201, 400

"""Compile CUDA text by NVRTC, and cache the results on disk."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from parprims._compiling import disk_cache


class CudaError(RuntimeError):
    """CUDA refused a request; the message has its name and meaning."""


@dataclasses.dataclass(frozen=True)
class Compiler:
    """A working NVRTC: the function that calls it, its version, and the architectures it supports, in order."""

    compile: Callable[..., tuple[bytes, str]]
    version: tuple[int, int]
    architectures: tuple[int, ...]

    def __str__(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"


@functools.cache
def found() -> Compiler | str:
    """Return the compiler of the CUDA bindings, else CuPy's, else the sentence why neither works."""
    reasons = []
    for package, make in (("cuda.bindings", _compiler_of_bindings), ("cupy_backends", _compiler_of_cupy)):
        if not importlib.util.find_spec(package.partition(".")[0]) or not importlib.util.find_spec(package):
            continue
        try:
            return make()
        except Exception as error:  # whatever a package raises that cannot load its library
            first_line = str(error).strip().partition("\n")[0]
            reasons.append(f"that of {package} fails: {type(error).__name__}: {first_line}")
    if reasons:
        return f"no CUDA compiler works here: {'; '.join(reasons)}"
    return "no CUDA compiler is installed: install CuPy, or cuda-core with nvidia-cuda-nvrtc"


def refusal() -> str | None:
    """Return the sentence why CUDA text cannot be compiled here, or None."""
    compiler = found()
    return compiler if isinstance(compiler, str) else None


def working() -> Compiler:
    compiler = found()
    if isinstance(compiler, str):
        raise CudaError(compiler)
    return compiler


def _options(text: str, arch: str) -> tuple[str, ...]:
    # Without -ftz, subnormal numbers are kept. -default-device makes all code device code.
    options = f"--gpu-architecture={arch}", "-std=c++17", "-default-device"
    return (*options, *([_ROUNDS_PRODUCTS] if _ROUNDS_PRODUCTS in text else []))


_ROUNDS_PRODUCTS = "--fmad=false"
"""With this option, products are rounded before they are added, as on CPUs. A text that needs it says so."""


def compile_source(text: str, arch: str, *, report: bool = False) -> tuple[bytes, str]:
    """Return machine code for sm_NN, or PTX for compute_NN, and the compiler's log.

    ``report`` asks the log for registers, spills and shared memory.
    """
    options = _options(text, arch) + (("--ptxas-options=-v",) if report else ())
    return working().compile(text, options, ptx=arch.startswith("compute"))


def _compiler_of_bindings() -> Compiler:
    from cuda.bindings import nvrtc

    version, architectures = nvrtc.nvrtcVersion(), nvrtc.nvrtcGetSupportedArchs()
    if version[0] or architectures[0]:
        raise CudaError("it does not tell its version")
    return Compiler(_compile_with_bindings, version[1:], tuple(sorted(architectures[1])))


def _compiler_of_cupy() -> Compiler:
    from cupy_backends.cuda.libs import nvrtc

    return Compiler(_compile_with_cupy, tuple(nvrtc.getVersion()), tuple(sorted(nvrtc.getSupportedArchs())))


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
    """Return the architecture to compile for, given sm_NN or compute_NN.

    For a GPU that is newer than the compiler, it is the newest PTX that the compiler makes, and the driver compiles it.
    """
    compiler, number = working(), arch.partition("_")[2]
    if not number.isdecimal() or int(number) in compiler.architectures:
        return arch
    older = [known for known in compiler.architectures if known < int(number)]
    if not older:
        raise CudaError(too_old(int(number), compiler))
    return f"compute_{older[-1]}"


def too_old(number: int, compiler: Compiler) -> str:
    ours, least = (f"{one // 10}.{one % 10}" for one in (number, compiler.architectures[0]))
    return f"the GPU has compute capability {ours}, and {compiler} makes code for {least} and later"


def identity(text: str, arch: str) -> str:
    """Return the source, the options and the compiler of a text's machine code as one text."""
    return "\0".join(("checked", text, *_options(text, arch), str(working())))


@functools.cache
def compiled(text: str, arch: str) -> bytes:
    """Return the machine code or PTX of a source: from memory, from disk, or compiled now and then kept on disk."""
    arch, folder = _made_for(arch), disk_cache.folder()
    name = f"{hashlib.sha256(identity(text, arch).encode()).hexdigest()}.{'ptx' if arch[0] == 'c' else 'cubin'}"
    return disk_cache.kept_or_made(None if folder is None else folder / name, lambda: _compiled_now(text, arch))


def _compiled_now(text: str, arch: str) -> bytes:
    with disk_cache.compiling("GPUs"):
        return compile_source(text, arch)[0]


Source: TypeAlias = tuple[str, str]
"""A text, and the architecture to compile it for."""

_under_way: dict[Source, Future[bytes]] = {}


def compiled_together(sources: Iterable[Source]) -> list[bytes]:
    """Return the result of `compiled` for each source, compiled on all cores."""
    sources = list(sources)
    if len({*sources}) == 1:
        return [compiled(*sources[0])] * len(sources)
    begun = compiling(sources)
    return [begun[one].result() for one in sources]


def compiling(sources: Iterable[Source], later: Iterable[Source] = ()) -> dict[Source, Future[bytes]]:
    """Begin to compile ``sources``, and after them ``later``; return the futures of the results of `compiled`.

    NVRTC compiles several programs at once, and the bindings release the interpreter meanwhile, but it parses one
    program after another. So the longest of ``sources`` is first, because it mostly takes longest after its parse;
    ``later`` keep their order. A source that another call has begun is not begun again. A process that ends waits for
    all that it has begun, and the next process finds the results on disk.
    """
    ordered = dict.fromkeys((*sorted(sources, key=lambda one: len(one[0]), reverse=True), *later))
    under_way = {**_under_way}
    begun = {one: under_way[one] for one in ordered if one in under_way}
    if len(begun) < len(ordered):
        pool = concurrent.futures.ThreadPoolExecutor(min(len(ordered) - len(begun), os.cpu_count() or 1))
        for one in [one for one in ordered if one not in begun]:
            begun[one] = _under_way[one] = pool.submit(compiled, *one)
            begun[one].add_done_callback(lambda _, one=one: _under_way.pop(one, None))  # type: ignore[misc]
        pool.shutdown(wait=False)  # its threads end when all is compiled
    return begun


def finish() -> None:
    """Wait for all that is being compiled."""
    concurrent.futures.wait([*_under_way.values()])

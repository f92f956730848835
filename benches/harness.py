"""What every comparison shares: cases, backends, clock, gate, ceilings, records, table, plot.

A bench module declares `Case`s as data; everything that measures or prints is here. Each contender's first result
passes the gate before it is timed, and the contenders of a case are timed in turn, round after round, so that
whatever the machine does meanwhile happens to all of them.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import datetime
import functools
import importlib.metadata
import importlib.util
import itertools
import json
import math
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import parprims

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benches" / "results"
OURS = ("array", "kernel", "native")


@dataclasses.dataclass(frozen=True)
class Scale:
    """How large the cases may be: what the machine has, and whether the run is to be short."""

    gpu: bool
    quick: bool

    def pick(self, quick: Any, cpu: Any, gpu: Any) -> Any:
        """Return the first for a quick run, else the second or the third for the machine."""
        return quick if self.quick else gpu if self.gpu else cpu


@dataclasses.dataclass(frozen=True)
class Problem:
    """Inputs and the answer to them, found without the library and given in the result's dtype.

    A result may be off by ``allowed``, elementwise.
    """

    inputs: tuple[np.ndarray, ...]
    expected: Any
    allowed: Any = 0.0


LIBRARIES = ("numpy", "cupy", "torch", "jax")


@dataclasses.dataclass(frozen=True)
class Case:
    """One line of the comparison.

    ``name`` is "family, size"; the README shows the largest of a family. ``run(*arrays, method=...)`` calls the
    primitive. ``peers`` maps a name of `LIBRARIES` or `OUTSIDE` to a function of the library's module and the
    arrays. ``work`` is counted in ``unit``; for B/s it is the bytes of inputs and outputs. ``ceiling`` names the
    entry of `ceilings` that bounds the case. With ``whole_call`` the time is that of the call as Python sees it,
    and not only the device's. ``libraries`` are those whose arrays the case is for. ``skip`` maps a method or peer,
    or one of a backend ("jax-cuda array"), to the reason why it is not timed. With ``raw_kernel`` the kernels of the
    call are also timed as CuPy launches them, without the library, under the name rawkernel.
    """

    primitive: str
    name: str
    make: Callable[[np.random.Generator], Problem]
    run: Callable[..., Any]
    peers: Mapping[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)
    unit: str = "B/s"
    work: float | None = None
    ceiling: str | None = "copy"
    whole_call: bool = False
    libraries: tuple[str, ...] = LIBRARIES
    skip: Mapping[str, str] = dataclasses.field(default_factory=dict)
    raw_kernel: bool = False


OUTSIDE = {  # peer: (backend whose arrays it takes, module)
    "numba": ("numpy", "numba"),
    "scipy": ("numpy", "scipy"),
    "cuda.compute": ("cupy", "cuda.compute"),
    "cublas": ("cupy", "cupy"),
    "cusparse": ("cupy", "cupy"),
    "accelerated-scan": ("torch-cuda", "accelerated_scan"),
}


def library(call: Callable[..., Any], **peers: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the peers that are one call in every library, apart from those given by name."""
    return {**dict.fromkeys(LIBRARIES, call), **peers}


@dataclasses.dataclass(frozen=True)
class Backend:
    """One array library on one device. A CUDA backend without ``event`` is timed by the host's clock."""

    name: str
    module: Any
    asarray: Callable[[np.ndarray], Any]
    to_numpy: Callable[[Any], np.ndarray]
    wait: Callable[[Any], Any] = lambda result: result
    compile: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda function: function
    free: Callable[[], Any] = lambda: None
    cuda: bool = False
    event: Callable[[], Any] | None = None
    elapsed: Callable[[Any, Any], float] | None = None

    def supports(self, dtype: str) -> bool:
        """Return whether the library computes with the dtype."""
        if self.module.__name__ == "torch" and dtype in ("uint16", "uint32", "uint64"):
            return False
        return dtype == "bool" or hasattr(self.module, dtype)

    @functools.cached_property
    def cache_flush(self) -> Callable[[], Any]:
        """Read 1 GiB: the caches then hold nothing of the inputs, and the host has time to queue the next call."""
        return self.asarray(np.zeros(2**28, np.float32)).sum


def _numpy() -> Backend:
    if installed("scipy"):
        import scipy.linalg  # noqa: F401  # now, for a first import while a thread of JAX's makes one may be a deadlock
    return Backend("numpy", np, np.asarray, np.asarray)


def _torch(device: str, name: str) -> Backend:
    import torch

    def asarray(x: np.ndarray) -> Any:
        if x.dtype.name == "bfloat16":
            return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.from_numpy(x).to(device)

    def to_numpy(x: Any) -> np.ndarray:
        return (x.float() if x.dtype == torch.bfloat16 else x).cpu().numpy()

    if device == "cpu":
        return Backend(name, torch, asarray, to_numpy)
    return Backend(
        name,
        torch,
        asarray,
        to_numpy,
        wait=lambda _: torch.cuda.synchronize(),
        free=torch.cuda.empty_cache,
        cuda=True,
        event=lambda: torch.cuda.Event(enable_timing=True),
        elapsed=lambda start, end: start.elapsed_time(end),
    )


def _jax(device: str, name: str) -> Backend:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    jax.config.update("jax_enable_x64", True)
    place = jax.devices(device)[0]
    return Backend(
        name,
        jax.numpy,
        lambda x: jax.device_put(x, place),
        np.asarray,
        wait=jax.block_until_ready,
        compile=jax.jit,
        cuda=device == "cuda",
    )


def _cupy() -> Backend:
    import cupy

    return Backend(
        "cupy",
        cupy,
        cupy.asarray,
        cupy.asnumpy,
        wait=lambda _: cupy.cuda.runtime.deviceSynchronize(),
        free=cupy.get_default_memory_pool().free_all_blocks,
        cuda=True,
        event=cupy.cuda.Event,
        elapsed=cupy.cuda.get_elapsed_time,
    )


_MAKERS: dict[str, tuple[str, Callable[[], Backend]]] = {
    "numpy": ("numpy", _numpy),
    "torch": ("torch", lambda: _torch("cpu", "torch")),
    "jax": ("jax", lambda: _jax("cpu", "jax")),
    "cupy": ("cupy", _cupy),
    "torch-cuda": ("torch", lambda: _torch("cuda", "torch-cuda")),
    "jax-cuda": ("jax", lambda: _jax("cuda", "jax-cuda")),
}
BACKENDS = tuple(_MAKERS)


def installed(module: str) -> bool:
    """Return whether a module can be found, without importing it or, where it has one, its package's siblings."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


@functools.cache
def gpu_name() -> str | None:
    """Return the name of the CUDA device that an installed library sees, or None."""
    if installed("cupy"):
        import cupy

        try:
            return str(cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())
        except cupy.cuda.runtime.CUDARuntimeError:
            return None
    if installed("torch"):
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else None
    if installed("jax"):
        import jax

        return next((device.device_kind for device in jax.devices() if device.platform == "gpu"), None)
    return None


def backends(names: Iterable[str] | None = None) -> list[Backend]:
    """Return the backends named; without names those that are present, on the GPU where the machine has one."""
    if names is None:
        names = ("cupy", "torch-cuda", "jax-cuda") if gpu_name() else ("numpy", "torch", "jax")
        names = [name for name in names if installed(_MAKERS[name][0])]
    return [_MAKERS[name][1]() for name in names]


@functools.cache
def cores() -> concurrent.futures.ThreadPoolExecutor:
    """Return a thread for every core: on one, NumPy would take longer than all that is timed on a GPU."""
    return concurrent.futures.ThreadPoolExecutor(os.cpu_count())


PIECE = 2**20


def computed(shape: Any, dtype: Any, call: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    """Return an array filled on all cores: ``call(*pieces)`` gives a piece's elements from pieces of other arrays."""
    found = np.empty(shape, dtype)
    flat, others = found.reshape(-1), [x.reshape(-1) for x in arrays]

    def fill(start: int) -> None:
        flat[start : start + PIECE] = call(*(x[start : start + PIECE] for x in others))

    list(cores().map(fill, range(0, flat.size, PIECE)))
    return found


def drawn(rng: np.random.Generator, shape: Any, dtype: Any, draw: Callable[..., Any]) -> np.ndarray:
    """Return an array filled on all cores: ``draw(rng, length)`` gives a piece, with a generator of its own."""
    found = np.empty(shape, dtype)
    flat = found.reshape(-1)
    starts = range(0, flat.size, PIECE)

    def fill(start: int, own: np.random.Generator) -> None:
        part = flat[start : start + PIECE]
        part[...] = draw(own, part.size)

    list(cores().map(fill, starts, rng.spawn(len(starts))))
    return found


def copied(x: np.ndarray, times: int, dtype: Any, change: Callable[..., Any] = lambda x, _: x) -> np.ndarray:
    """Return copies of an array one after another along axis 0, the k-th of them ``change(x, k)``."""
    found = np.empty((times, *x.shape), dtype)

    def fill(k: int) -> None:
        found[k] = change(x, k)

    list(cores().map(fill, range(times)))
    return found.reshape(times * x.shape[0], *x.shape[1:])


def gate(result: Any, problem: Problem) -> str | None:
    """Return what is wrong with a result, given as NumPy arrays, or None. NaN is always wrong."""
    ones = result if isinstance(result, tuple) else (result,)
    expected = problem.expected if isinstance(problem.expected, tuple) else (problem.expected,)
    allowed = problem.allowed if isinstance(problem.allowed, tuple) else (problem.allowed,) * len(expected)
    if len(ones) != len(expected):
        return f"{len(ones)} arrays instead of {len(expected)}"
    for one, other, bound in zip(ones, map(np.asarray, expected), allowed, strict=True):
        if one.size != other.size:
            return f"shape {one.shape} instead of {other.shape}"
        shape, starts = other.shape, range(0, max(1, other.size), PIECE)
        one, other = one.reshape(-1), other.reshape(-1)
        bound = np.broadcast_to(bound, shape).reshape(-1) if np.ndim(bound) else bound
        wrong = np.concatenate(list(cores().map(functools.partial(_wrong, one, other, bound), starts)))
        if wrong.size:
            first = wrong[0]
            return (
                f"{wrong.size} of {one.size} elements are wrong, the first is "
                f"{first}: {one[first]} instead of {other[first]}"
            )
    return None


def _wrong(one: np.ndarray, other: np.ndarray, bound: Any, start: int) -> np.ndarray:
    """Return the indices of a piece's elements that are wrong."""
    piece = slice(start, start + PIECE)
    one, other = one[piece], other[piece]
    if np.array_equal(one, other):
        return np.empty(0, np.int64)
    bound = bound[piece] if np.ndim(bound) else bound
    with np.errstate(all="ignore"):
        near = abs(one.astype(np.float64) - other.astype(np.float64)) <= bound
        return start + np.flatnonzero(~near if np.any(bound) else one != other)


def equal(result: Any, other: Any) -> bool:
    """Return whether results are the same arrays, found where they are, without a copy. NaN is equal to nothing."""
    ones, others = (x if isinstance(x, (tuple, list)) else (x,) for x in (result, other))
    return len(ones) == len(others) and all(
        x.shape == y.shape and x.dtype == y.dtype and bool((x == y).all()) for x, y in zip(ones, others, strict=True)
    )


_launched: dict[tuple[int, ...], Callable[[], Any]] = {}  # of the arrays that were launched on last


def launched(call: Callable[..., Any], *arrays: Any) -> Any:
    """Return the outputs of a call's kernels, launched as ``cupy.RawKernel``; they are made for the arrays once."""
    key = (id(call), *map(id, arrays))
    if key not in _launched:
        _launched.clear()
        _launched[key] = _raw_kernels(call, arrays)
    return _launched[key]()


def _raw_kernels(call: Callable[..., Any], arrays: tuple[Any, ...]) -> Callable[[], Any]:
    found = parprims.launches(call, *arrays)
    if not found:
        raise ValueError("the call launches no kernel")
    ready = [(one.raw_kernel(), (one.grid,), (one.block,), one.arguments, one.shared_bytes) for one in found]
    named = dict(zip(found[0].parameters, found[0].arguments, strict=True))
    outputs = tuple(value for name, value in named.items() if re.fullmatch(r"out\d+", name))

    def run() -> Any:
        for kernel, grid, block, arguments, shared_bytes in ready:
            kernel(grid, block, arguments, shared_mem=shared_bytes)
        return outputs if len(outputs) > 1 else outputs[0]

    return run


@dataclasses.dataclass
class Contender:
    """One backend and method (or peer) in one case, with its inputs and the times taken so far."""

    backend: Backend
    method: str
    call: Callable[..., Any]
    inputs: list[tuple[Any, ...]]
    seconds: list[float] = dataclasses.field(default_factory=list)

    def timed_by_events(self, whole_call: bool) -> bool:
        """Return whether device events time the calls, and not the host's clock."""
        return self.backend.event is not None and not whole_call

    def sample(self, calls: int, whole_call: bool) -> float:
        """Return the seconds of one call: the mean of several by the host's clock, or one by device events."""
        backend = self.backend
        if self.timed_by_events(whole_call):
            start, end = backend.event(), backend.event()
            backend.cache_flush()
            start.record()
            self.call(*self.inputs[0])
            end.record()
            end.synchronize()
            return backend.elapsed(start, end) / 1e3
        inputs = list(itertools.islice(itertools.cycle(self.inputs), calls))
        began = time.perf_counter()
        for arrays in inputs:
            result = self.call(*arrays)
            if not backend.cuda:  # a CPU would run several at a time
                backend.wait(result)
        backend.wait(result)
        return (time.perf_counter() - began) / calls


def interleave(contenders: list[Contender], whole_call: bool, budget: float) -> None:
    """Time contenders in turn, each for about ``budget`` seconds in all: 3 to 30 times, once if a call takes 2 s."""
    plans = []
    for one in contenders:
        # The first call may wait for much that the others do not, and short calls are timed by several in a row.
        first = one.sample(1, whole_call)
        first = first if first > 0.1 else min(first, one.sample(1, whole_call), one.sample(1, whole_call))
        # Enough calls between two looks at the clock to make waiting for the device a small part of the time.
        least = 0.02 if one.backend.cuda and not whole_call else 0.005
        calls = 1 if one.timed_by_events(whole_call) else math.ceil(min(1000, least / max(first, 1e-7)))
        turns = 1 if first > 2 else min(30, max(3, int(budget / max(calls * first, 1e-7))))
        plans.append((one, calls, turns))
        one.seconds = [first] if calls == 1 else []
    for _ in range(30):
        for one, calls, turns in plans:
            if len(one.seconds) < turns:
                one.seconds.append(one.sample(calls, whole_call))


@dataclasses.dataclass
class Outcome:
    """What a case came to: records in the file's form, the method auto takes by backend, errors and refusals.

    ``spent`` holds the seconds it took to make the problem, to compile and check, and to time.
    """

    case: Case
    records: list[dict[str, Any]]
    auto: dict[str, str]
    errors: list[str]
    notes: list[str]
    spent: tuple[float, ...] = ()


def run_case(case: Case, present: list[Backend], ceilings: Mapping[str, float], budget: float) -> Outcome:
    """Make a case's problem, pass every contender through the gate and time those that get through."""
    clock = [time.perf_counter()]
    for backend in present:
        backend.free()
    problem = case.make(np.random.default_rng(list(case.name.encode())))
    clock.append(time.perf_counter())
    outcome = Outcome(case, [], {}, [], [])
    contenders = []
    entrants = list(_contenders(case, problem, present, outcome))
    # XLA takes seconds to compile a call, on one core: all of a case are compiled while the others are checked.
    compiling = {
        id(one): cores().submit(lambda one=one: one.call.lower(*one.inputs[0]).compile())
        for one in entrants
        if hasattr(one.call, "lower")
    }
    passed: dict[str, Any] = {}
    for one in entrants:
        label = f"{case.name}: {one.backend.name} {one.method}"
        try:
            if id(one) in compiling:
                compiling[id(one)].result()
            wrong = checked(one, problem, passed)
        except parprims.MethodRefused as refusal:
            outcome.notes.append(f"{one.backend.name} {str(refusal).partition(': ')[2]}")
        except Exception as error:
            if isinstance(error, ImportError) and one.method.startswith("peer:"):  # a part of it is not installed
                outcome.notes.append(f"{label} not timed: {error}")
            else:
                outcome.errors.append(f"{label} FAILED: {type(error).__name__}: {error}")
        else:
            if wrong:
                outcome.errors.append(f"{label} WRONG: {wrong}")
            else:
                contenders.append(one)
    passed.clear()
    clock.append(time.perf_counter())
    interleave(contenders, case.whole_call, budget)
    clock.append(time.perf_counter())
    outcome.spent = tuple(after - before for before, after in itertools.pairwise(clock))
    outcome.records = [_record(case, problem, one, ceilings) for one in contenders]
    return outcome


def checked(one: Contender, problem: Problem, passed: dict[str, Any]) -> str | None:
    """Return what is wrong with a contender's result, or None; ``passed`` keeps one by backend that passed the gate."""
    result = one.call(*one.inputs[0])
    to_numpy, name = one.backend.to_numpy, one.backend.name
    # What a GPU finds equal to a result that passed need not be copied and pass once more.
    if one.backend.cuda and name in passed and equal(result, passed[name]):
        return None
    arrays = tuple(map(to_numpy, result)) if isinstance(result, (tuple, list)) else to_numpy(result)
    wrong = gate(arrays, problem)
    if wrong is None:
        passed.setdefault(name, result)
    return wrong


def _contenders(case: Case, problem: Problem, present: list[Backend], outcome: Outcome) -> Iterator[Contender]:
    dtype = problem.inputs[0].dtype.name
    if case.raw_kernel and all(backend.name != "cupy" for backend in present):
        outcome.notes.append("rawkernel not timed, CuPy launches it and is not among the backends")
    for backend in present:
        if backend.name.partition("-")[0] not in case.libraries:
            continue
        if not all(backend.supports(x.dtype.name) for x in problem.inputs):
            outcome.notes.append(f"{backend.name} computes with no {dtype}")
            continue
        arrays = tuple(map(backend.asarray, problem.inputs))
        inputs = [arrays]
        if backend.cuda and backend.event is None and not case.whole_call:
            # Without device events the calls follow each other: they walk over copies that no cache holds together.
            copies = min(64, 2**28 // sum(x.nbytes for x in problem.inputs))
            inputs += [tuple(map(backend.asarray, problem.inputs)) for _ in range(copies)]
        try:
            methods = parprims.methods(functools.partial(case.run, method="auto"), *arrays)
        except Exception as error:
            outcome.errors.append(f"{case.name}: {backend.name} FAILED: {type(error).__name__}: {error}")
            continue
        outcome.auto[backend.name] = next(name for name, refusal in methods.items() if refusal is None)
        calls = {name: functools.partial(case.run, method=name) for name in methods}
        for peer, call in case.peers.items():
            home, module = OUTSIDE.get(peer, (backend.name, peer))
            if home != backend.name or (peer in LIBRARIES and backend.name.partition("-")[0] != peer):
                continue
            if not installed(module):
                outcome.notes.append(f"peer {peer} is not installed")
            elif peer != "numpy" or case.whole_call or methods.get("native", "absent") is not None:
                calls[f"peer:{peer}"] = functools.partial(call, backend.module)
        if case.raw_kernel and backend.name == "cupy":
            calls["rawkernel"] = functools.partial(launched, calls["kernel"])
        for name, call in calls.items():
            short = name.removeprefix("peer:")
            label = next((one for one in (short, f"{backend.name} {short}") if one in case.skip), None)
            if label:
                outcome.notes.append(f"{case.name}: {label} not timed, {case.skip[label]}")
            else:
                yield Contender(backend, name, backend.compile(call), inputs)


def _record(case: Case, problem: Problem, one: Contender, ceilings: Mapping[str, float]) -> dict[str, Any]:
    seconds = statistics.median(one.seconds)
    expected = problem.expected if isinstance(problem.expected, tuple) else (problem.expected,)
    moved = sum(np.asarray(x).nbytes for x in (*problem.inputs, *expected))
    work = moved if case.work is None else case.work
    top = ceilings.get(case.ceiling) if case.ceiling and not case.whole_call else None
    return {
        "primitive": case.primitive,
        "case": case.name,
        "backend": one.backend.name,
        "method": one.method,
        "dtype": problem.inputs[0].dtype.name,
        "shape": list(problem.inputs[0].shape),
        "seconds": seconds,
        "rate": work / seconds,
        "unit": case.unit,
        "ceiling_fraction": (work if case.unit == "FLOP/s" else moved) / seconds / top if top else None,
    }


def measure_ceilings(present: list[Backend], scale: Scale) -> dict[str, float]:
    """Return what the machine reaches at most: copy and read in B/s, products by dtype in FLOP/s.

    Each is the best of the libraries present.
    """
    found: dict[str, float] = {}
    size, n = scale.pick((2**24, 1024), (2**26, 2048), (2**30, 8192))
    rng = np.random.default_rng(0)
    numbers = drawn(rng, size, np.float32, lambda own, length: own.random(length, np.float32))
    matrices = drawn(rng, (2, n, n), np.float32, lambda own, length: own.standard_normal(length, np.float32))

    def best(name: str, backend: Backend, work: float, call: Callable[..., Any], *arrays: Any) -> None:
        one = Contender(backend, name, call, [arrays])
        interleave([one], False, 0.1 if scale.quick else 0.5)
        found[name] = max(found.get(name, 0.0), work / statistics.median(one.seconds))

    for backend in present:
        if backend.name.startswith("jax") and len(present) > 1:
            continue
        is_torch = backend.name.startswith("torch")
        x, out = backend.asarray(numbers), backend.asarray(numbers.copy())  # a CPU's arrays share the memory given
        copy = backend.module.Tensor.copy_ if is_torch else getattr(backend.module, "copyto", lambda _, x: x.copy())
        best("copy", backend, 8 * size, backend.compile(copy), out, x)
        for reduction in ("sum", "max"):
            best("read", backend, 4 * size, backend.compile(getattr(backend.module, reduction)), x)
        del x, out
        product = backend.module.matmul
        if backend.name.startswith("jax"):  # whose float32 are rounded to tf32 otherwise
            product = functools.partial(product, precision="highest")
        for dtype in ("float32", "float64", *(("float16", "bfloat16") if backend.cuda else ())):
            if backend.supports(dtype):
                a, b = map(backend.asarray, matrices)
                cast = getattr(backend.module, dtype)
                a, b = (m.to(cast) if is_torch else m.astype(cast) for m in (a, b))
                best(f"matmul {dtype}", backend, 2 * n**3, backend.compile(product), a, b)
        backend.free()
    return found


def device_name(present: list[Backend]) -> str:
    """Return the name of the GPU the backends compute on, or of the processor."""
    if any(backend.cuda for backend in present):
        return gpu_name() or "gpu"
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or "cpu"


def slug(device: str) -> str:
    """Return a device's name as a file name: "NVIDIA H200" becomes "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "cpu"


def commit() -> str:
    """Return the checked-out commit, with "-dirty" if the code differs from it, or "unknown" without git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "--", "src", "benches", ":!benches/results").strip()
        return git("rev-parse", "HEAD").strip() + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def versions(cuda: bool) -> dict[str, str]:
    """Return the versions of Python and of the packages that were, or could have been, timed."""
    found = {"python": platform.python_version()}
    for package in "parprims numpy scipy cupy-cuda12x cupy-cuda13x torch triton jax cuda-cccl accelerated-scan".split():
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if cuda and installed("cupy"):
        import cupy

        found["cuda driver"] = str(cupy.cuda.runtime.driverGetVersion())
    return found


def header(present: list[Backend], ceilings: Mapping[str, float], sha: str | None = None) -> dict[str, Any]:
    """Return what a results file says of the run."""
    return {
        "device": device_name(present),
        "versions": versions(any(backend.cuda for backend in present)),
        "commit": sha or commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ceilings": dict(ceilings),
    }


def write_results(
    path: Path, head: Mapping[str, Any], records: list[dict[str, Any]], ran: Iterable[str | tuple[str, str]]
) -> None:
    """Write a results file, each record with its commit; those of what did not run now are kept.

    ``ran`` holds the primitives of which all cases ran, and of other cases the primitive and the name.
    """
    ran = set(ran)
    kept = json.loads(path.read_text())["records"] if path.exists() else []
    kept = [one for one in kept if not ran & {one["primitive"], (one["primitive"], one.get("case"))}]
    found = [*kept, *({"commit": head["commit"], **one} for one in records)]
    order = list(dict.fromkeys(one["primitive"] for one in found))
    lines = [json.dumps(one) for one in sorted(found, key=lambda one: order.index(one["primitive"]))]
    path.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n    ".join(lines)
    path.write_text(
        f'{{\n  "header": {json.dumps(head, indent=2).replace(chr(10), chr(10) + "  ")},\n'
        f'  "records": [\n    {body}\n  ]\n}}\n'
    )


IDENTITY = ("primitive", "case", "backend", "method", "dtype", "shape")
LOST = 1.05


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How the records of one commit stand beside those of another, in lines to print.

    ``lost`` names our rows that take more than `LOST` times as long, or are gone; ``gained`` those that take so much
    less. ``machine`` is the median ratio of the peers' times: above 1 the machine itself was slower.
    """

    compared: int
    lost: list[str]
    gained: list[str]
    machine: float | None


def verdict(now: Mapping[str, Any], before: Mapping[str, Any]) -> Verdict:
    """Compare two results files of one device, row by row."""
    if now["header"]["device"] != before["header"]["device"]:
        raise ValueError(f"{now['header']['device']} cannot be held against {before['header']['device']}")

    def rows(file: Mapping[str, Any]) -> dict[tuple[str, ...], float]:
        return {tuple(str(one[name]) for name in IDENTITY): one["seconds"] for one in file["records"]}

    new, old = rows(now), rows(before)
    ratios = {row: new[row] / old[row] for row in old if row in new}
    ours = {row: ratio for row, ratio in ratios.items() if row[3] in OURS}
    peers = [ratio for row, ratio in ratios.items() if row[3].startswith("peer:")]

    def line(row: tuple[str, ...]) -> str:
        primitive, case, backend, method, dtype, _ = row
        return f"{primitive}: {case} {dtype}: {backend} {method}: {si(old[row], 's')}"

    def lines(chosen: Iterable[tuple[str, ...]]) -> list[str]:
        return [f"{line(row)} before, {si(new[row], 's')} now: {ratios[row]:.2f}x" for row in chosen]

    slower = sorted((row for row, ratio in ours.items() if ratio > LOST), key=lambda row: -ours[row])
    faster = sorted((row for row, ratio in ours.items() if ratio < 1 / LOST), key=lambda row: ours[row])
    gone = [f"{line(row)} before, not measured now" for row in old if row[3] in OURS and row not in new]
    return Verdict(len(ours), lines(slower) + gone, lines(faster), statistics.median(peers) if peers else None)


def results_at(revision: str, path: Path) -> dict[str, Any]:
    """Return the results file as it is in a commit."""
    where = f"{revision}:{path.resolve().relative_to(ROOT).as_posix()}"
    shown = subprocess.run(["git", "-C", str(ROOT), "show", where], capture_output=True, text=True)
    if shown.returncode:
        raise SystemExit(f"--against {revision} is neither a file nor a commit that has one: {shown.stderr.strip()}")
    return dict(json.loads(shown.stdout))


def si(value: float, unit: str) -> str:
    """Return a number with three digits and the SI prefix that suits it."""
    if value <= 0:
        return f"0 {unit}"
    power = min(4, max(-3, math.floor(math.log10(value * 1.0005) / 3)))
    scaled = value / 1000.0**power
    digits = max(0, 2 - math.floor(math.log10(scaled * 1.0005)))
    return f"{scaled:.{digits}f} {['n', 'u', 'm', '', 'k', 'M', 'G', 'T'][power + 3]}{unit}"


def _commits(records: Iterable[dict[str, Any]]) -> str:
    """Return the commits that were measured."""
    return ", ".join(dict.fromkeys(one["commit"][:12] for one in records))


def _groups(records: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the records of each case together, in the order in which the cases come.

    Where no ceiling bounds a case its time is the library's own overhead: there every backend is a case.
    """
    groups: dict[Any, list[dict[str, Any]]] = {}
    for one in records:
        backend = one["backend"] if one["ceiling_fraction"] is None else ""
        groups.setdefault((one["primitive"], one["case"], one["dtype"], backend), []).append(one)
    return list(groups.values())


def _fastest(records: Iterable[dict[str, Any]], prefix: str) -> dict[str, Any] | None:
    return min((one for one in records if one["method"].startswith(prefix)), key=lambda r: r["seconds"], default=None)


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.0f} %"


def table(outcome: Outcome) -> str:
    """Return a case's lines: for each contender time, rate, share of the ceiling and speed beside others.

    The method that auto takes is marked with a star. Ratios above 1 say that the line's contender is faster.
    """
    if not outcome.records:
        return "\n".join([f"{outcome.case.primitive}: {outcome.case.name}", *outcome.errors])
    first = outcome.records[0]
    shape = " x ".join(map(str, first["shape"]))
    lines = [f"{first['primitive']}: {first['case']}   {first['dtype']}   {shape}"]
    peer = _fastest(outcome.records, "peer:")
    for one in outcome.records:
        native = _fastest((r for r in outcome.records if r["backend"] == one["backend"]), "native")
        star = "*" if outcome.auto[one["backend"]] == one["method"] else " "
        ratios = "".join(
            f"  {other['seconds'] / one['seconds']:6.2f}x {name}"
            for name, other in (("native", native), ("best peer", peer))
            if other and other is not one
        )
        lines.append(
            f"  {one['backend']:<11}{one['method'] + star:<23}{si(one['seconds'], 's'):>9}"
            f"{si(one['rate'], one['unit']):>14}{_percent(one['ceiling_fraction']):>7}{ratios}"
        )
    return "\n".join([*lines, *(f"  {error}" for error in outcome.errors)])


COLUMNS = ["case", "dtype", "backend", *OURS, "best peer", "ours is", "of ceiling"]
LEGEND = (
    "Each figure is that of the fastest backend. Ours is the kernel where there is one, else the faster of array and "
    "native; it stands beside the best peer (2x: in half the time), on the backend named."
)


def _row(group: list[dict[str, Any]], show: Callable[[dict[str, Any]], str]) -> list[str]:
    """Return a case's entries under `COLUMNS`."""
    methods = [_fastest(group, method) for method in OURS]
    timed = [one for one in methods if one]
    ours = _fastest(group, "kernel") or min(timed, key=lambda one: one["seconds"], default=None)
    peer = _fastest(group, "peer:")
    return [
        group[0]["case"],
        group[0]["dtype"],
        ours["backend"] if ours else "",
        *(show(one) if one else "" for one in methods),
        f"{show(peer)} {peer['method'].removeprefix('peer:')}" if peer else "",
        f"{peer['seconds'] / ours['seconds']:.2f}x" if peer and ours else "",
        _percent(ours["ceiling_fraction"]) if ours else "",
    ]


def summary(records: Iterable[dict[str, Any]]) -> str:
    """Return one line per case, narrow enough for a terminal."""
    rows = [COLUMNS, *(_row(group, lambda one: si(one["seconds"], "s")) for group in _groups(records))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


BEGIN, END = "<!-- measured table: begin -->", "<!-- measured table: end -->"


def readme_table(folder: Path = RESULTS) -> str:
    """Return the README's table, in Markdown, from the result files: the largest case of every family."""
    parts = []
    for path in sorted(folder.glob("*.json")):
        file = json.loads(path.read_text())
        head = file["header"]
        tops = ", ".join(
            f"{name} {si(rate, 'FLOP/s' if name.startswith('matmul') else 'B/s')}"
            for name, rate in head["ceilings"].items()
        )
        names = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
        largest: dict[Any, list[dict[str, Any]]] = {}
        for group in _groups(file["records"]):
            one = group[0]
            backend = one["backend"] if one["ceiling_fraction"] is None else ""
            family = (one["primitive"], one["case"].partition(",")[0], one["dtype"], backend)
            if family not in largest or math.prod(one["shape"]) > math.prod(largest[family][0]["shape"]):
                largest[family] = group
        parts += [
            f"**{head['device']}**, {head['date'][:10]}, commit {_commits(file['records'])}; {names}.",
            f"Measured ceilings: {tops}. {LEGEND}",
            "",
            f"| primitive | {' | '.join(COLUMNS)} |",
            "|---" * (1 + len(COLUMNS)) + "|",
        ]
        for group in largest.values():
            row = _row(
                group,
                lambda r: si(r["seconds"], "s") if r["ceiling_fraction"] is None else si(r["rate"], r["unit"]),
            )
            parts.append(f"| `{group[0]['primitive']}` | {' | '.join(row)} |")
        parts.append("")
    return "\n".join(parts).rstrip() + "\n"


def readme_with_table(text: str, folder: Path = RESULTS) -> str:
    """Return the README's text with what stands between its markers replaced by the table."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the README has no lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{readme_table(folder)}{END}{after}"


def plot(path: Path, head: Mapping[str, Any], records: list[dict[str, Any]]) -> str:
    """Draw rate against size, one panel per primitive with the family that has most sizes; return what was done."""
    if not installed("matplotlib"):
        return "no plot: matplotlib is not installed"
    import matplotlib
    from matplotlib.figure import Figure

    panels: dict[str, dict[Any, list[dict[str, Any]]]] = {}
    for one in records:
        family = (one["ceiling_fraction"] is not None, one["case"].partition(",")[0], one["dtype"])
        panels.setdefault(one["primitive"], {}).setdefault(family, []).append(one)
    columns = min(3, len(panels)) or 1
    rows = math.ceil(len(panels) / columns) or 1
    figure = Figure(figsize=(7 * columns, 5 * rows), layout="constrained")
    figure.suptitle(f"{head['device']}, commit {_commits(records)}")
    for index, (primitive, families) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_prop_cycle(color=matplotlib.colormaps["tab20"].colors)
        family, chosen = max(families.items(), key=lambda item: (item[0][0], len({one["case"] for one in item[1]})))
        lines: dict[str, list[tuple[int, float]]] = {}
        for one in chosen:
            lines.setdefault(f"{one['backend']} {one['method']}", []).append((math.prod(one["shape"]), one["rate"]))
        axes.set_title(f"{primitive}: {', '.join(family[1:])}")
        if len({one["case"] for one in chosen}) == 1:
            axes.barh(list(lines), [points[0][1] for points in lines.values()])
            axes.invert_yaxis()
            axes.set_xlabel(chosen[0]["unit"])
            continue
        for label, points in lines.items():
            axes.loglog(*zip(*sorted(points), strict=True), marker=".", label=label, ls=":" if "peer" in label else "-")
        axes.set(xlabel="elements", ylabel=chosen[0]["unit"])
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=110)
    return f"plot: {path}"

"""The backends and methods every test runs over, and what a skipped one means.

``--backend numpy --backend jax`` runs only those (default: every one that can be imported, but for ``emulated``:
NumPy arrays whose kernels run on the CPU, see emulator.py). ``--promise jax`` or
``--promise kernel`` says that the machine has it: there a missing backend, or a kernel that refuses, is a failure
and not a skip. ``--promise ways`` says that the tests chosen reach every way of the kernels on the emulator.
"""

import contextlib
import ctypes
import dataclasses
import functools
import gc
import importlib
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import parprims
from examples import backends
from parprims._core.memo import Memo
from tests.emulation import emulator, ways
from tests.support import covering, devices
from tests.trust import recorder

# Compiling takes most of the time on JAX, and the same programs come again: by another method, in another process.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


@dataclasses.dataclass(frozen=True, repr=False)
class Backend(backends.Backend):
    """One array library on one device, as the tests see it."""

    @property
    def negative_strides(self) -> bool:
        """Return whether arrays can run backwards through memory."""
        return self.family != "torch"

    @property
    def streams(self) -> bool:
        """Return whether the library has streams, graphs and an allocator to play with."""
        return self.name in ("cupy", "torch-cuda")

    @property
    def kernels(self) -> bool:
        """Return whether a kernel can be made of an operator: for a GPU, or by Numba for arrays of the CPU."""
        return self.cuda or (self.name in ("numpy", "torch", "jax") and importlib.util.find_spec("numba") is not None)


@functools.cache
def _backend(name: str) -> Backend:
    """Return a library, which examples and benches may have too, or one that stands for another here."""
    if name == "array-api-strict":
        import array_api_strict as xp

        return Backend(name, xp, xp, xp.asarray, np.asarray)
    known = backends.make("numpy" if name == "emulated" else name)
    return Backend(**{**vars(known), "name": name, "cuda": known.cuda or name == "emulated"})


BACKENDS = ("numpy", "array-api-strict", *(name for name in backends.MAKERS if name != "numpy"), "emulated")


def available(name: str) -> bool:
    """Return whether tests can run over a backend."""
    if name == "emulated":
        return emulator.compiler() is not None
    return backends.installed("array_api_strict") if name == "array-api-strict" else backends.available(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-errors", metavar="FILE", help="record errors beside their bounds, see recorder.py")
    parser.addoption("--record-releases", action="store_true", help="if all pass, add the releases to docs/releases.py")
    parser.addoption("--as-gpu", action="store_true", help="take the CPU of PyTorch and JAX for a GPU, see emulator.py")
    parser.addoption("--backend", action="append", choices=BACKENDS, help="run only on this backend")
    parser.addoption("--all", action="store_true", help="run every case, not a covering design, see covering.py")
    parser.addoption("--seed", type=int, default=1, help="the seed of the covering design")
    parser.addoption("--every", type=int, default=1, metavar="N", help="run one of N cases, and of each test the first")
    parser.addoption(
        "--promise", action="append", default=[], choices=[*BACKENDS, "kernel", "ways"], help="its absence is a failure"
    )


@functools.cache
def _has_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None


def pytest_configure(config: pytest.Config) -> None:
    """Let the processes of pytest-xdist share a machine: a thread each, and a GPU to begin with, in turn."""
    # Compilers make many objects and few circles of them: looking for these at every 700 takes a twentieth of the time.
    gc.set_threshold(100_000, 20, 100)
    config.pluginmanager.register(ways)
    if config.getoption("--record-errors"):
        config.pluginmanager.register(recorder.Recorder(config))
    has_gpu = _has_gpu()
    if config.getoption("numprocesses", None):  # they inherit what is set before they start
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(name, "1")
        if has_gpu:
            os.environ.setdefault("XLA_FLAGS", "--xla_gpu_force_compilation_parallelism=1")
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and has_gpu and "CUDA_VISIBLE_DEVICES" not in os.environ:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
        count, first = listed.count("UUID: GPU-"), int(worker.removeprefix("gw"))
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str((first + at) % count) for at in range(count))


_seen: list[pathlib.Path] = []
"""The file of the test before, of this process."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin a file anew, and leave tests to the run that has them, where runs are of one backend each.

    Tests of the emulator are of that of the emulated backend; those marked ``once``, of that of NumPy.
    """
    if _seen != [item.path]:
        _seen[:] = [item.path]
        _forget()
    # NaN and infinity are legitimate inputs here; NumPy need not announce them.
    np.seterr(all="ignore")
    asked_for = item.config.getoption("--backend")
    if not asked_for:
        return
    if "emulated" not in asked_for and item.get_closest_marker("emulator"):
        pytest.skip("the emulated backend is not asked for")
    if "numpy" not in asked_for and item.get_closest_marker("once") and "backend" not in item.fixturenames:
        pytest.skip("the run of NumPy has it")


def _forget() -> None:
    """Forget what the tests of another file have left, and have the garbage collector pass over what is still there.

    Otherwise a process has 10 GB of programs and kernels in the end, and one collection takes 10 seconds.
    """
    jax = sys.modules.get("jax")
    if jax is not None:
        jax.clear_caches()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # a C library that keeps no memory back
        ctypes.CDLL(None).malloc_trim(0)
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    config = metafunc.config
    if "backend" in metafunc.fixturenames:
        promised = [name for name in config.getoption("--promise") if name in BACKENDS]
        missing = [name for name in promised if not available(name)]
        if missing:
            pytest.exit(f"promised backends are missing: {', '.join(missing)}", returncode=1)
        usual = (name for name in BACKENDS if name != "emulated")
        names = config.getoption("--backend") or [name for name in usual if available(name)]
        metafunc.parametrize("backend", _fit_for(metafunc.fixturenames, names), indirect=True, scope="session")
    if "method" in metafunc.fixturenames:
        metafunc.parametrize("method", ("auto", *metafunc.cls.methods))


ON_GPU = (*backends.ON_CUDA, "emulated")
"""The libraries on a GPU, or what stands for one."""

_FIT_FOR = {"gpu": ON_GPU, "streams": ON_GPU, "tensors": ON_GPU, "jax": ("jax", "jax-cuda")}
"""The libraries that fixtures of these names do not skip."""


def _fit_for(fixtures: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Return the libraries that the fixtures of a test do not skip, or one of them all to say why it is skipped.

    A quarter of all tests is for GPUs: on a CPU each would be skipped once for every library.
    """
    for fixture, fit in _FIT_FOR.items():
        if fixture in fixtures:
            names = [name for name in names if name in fit] or names[:1]
    return names


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if not config.getoption("--all"):
        seed = config.getoption("--seed")
        terminalreporter.write_line(f"A covering design of the cases, --seed {seed}; --all runs every case.")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Record the releases that a run passed with, once for all its processes."""
    config = session.config
    if config.getoption("--record-releases") and not hasattr(config, "workerinput") and not exitstatus:
        from docs import releases

        releases.record(config.getoption("--backend") or [name for name in BACKENDS if available(name)])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the cases of a covering design, file after file, and in each library after library.

    The libraries of a CPU share kernels and programs. Processes that have files of their own rarely compile the same.
    A case that is asked for by its name is run.
    """
    every, kept = config.getoption("--every"), list(items)
    if not config.getoption("--all") and not any("[" in one for one in config.args):
        kept = covering.chosen(items, config.getoption("--seed"), config.getoption("--as-gpu"))
    if every > 1:
        kept = covering.some(kept, every)
    config.hook.pytest_deselected(items=list({*items} - {*kept}))
    items[:] = kept
    places = {path: at for at, path in enumerate(dict.fromkeys(item.path for item in items))}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """The array library under test."""
    return _backend(request.param)


@pytest.fixture
def gpu(backend: Backend) -> Backend:
    """The array library under test, where it is one on a GPU, or acts as one."""
    if not backend.cuda:
        pytest.skip("needs a CUDA device")
    return backend


@pytest.fixture
def tensors(gpu: Backend, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """PyTorch: on a GPU, or on the emulator, which is handed the memory of its tensors."""
    if gpu.name == "emulated":
        pytest.importorskip("torch")
        emulator.install_for_torch(monkeypatch)
        return _backend("torch")
    if gpu.name != "torch-cuda":
        pytest.skip("needs PyTorch")
    return gpu


@pytest.fixture
def streams(gpu: Backend) -> Backend:
    """The array library under test, where it has streams, graphs and an allocator to play with."""
    if not gpu.streams:
        pytest.skip("needs streams")
    return gpu


@pytest.fixture(autouse=True)
def _as_the_library_needs(request: pytest.FixtureRequest) -> None:
    """Set up what a test needs of its array library: one fixture, for each takes its time in every test."""
    why = covering.left_out(request.node)
    if why:
        pytest.skip(why)
    names = request.fixturenames
    name = request.getfixturevalue("backend").name if "backend" in names else ""
    _emulate(request, name)
    _take_first_gpu(name)
    _compile_quickly(request, name == "jax" or "jax" in names)
    _leave_room_to_remember()


def _leave_room_to_remember() -> None:
    """Empty what is half full, so that nothing is forgotten in the midst of a test that counts on it."""
    for memo in Memo._all:
        if len(memo) > 2048:
            memo._found.clear()


def _emulate(request: pytest.FixtureRequest, name: str) -> None:
    """Let kernels take NumPy arrays while a test of the emulated backend runs, and by an option those of others."""
    if name == "emulated":
        emulator.install(request.getfixturevalue("monkeypatch"))
    elif request.config.getoption("--as-gpu") and name == "torch":
        emulator.install(request.getfixturevalue("monkeypatch"))
        emulator.install_for_torch(request.getfixturevalue("monkeypatch"))
    elif request.config.getoption("--as-gpu") and (name == "jax" or "jax" in request.fixturenames):
        emulator.install_for_jax(request.getfixturevalue("monkeypatch"))


def _take_first_gpu(name: str) -> None:
    """Make the first GPU the current one, which XLA's last program may have been on another than."""
    if name == "cupy":
        import cupy

        cupy.cuda.runtime.setDevice(0)
    elif name == "torch-cuda":
        import torch

        torch.cuda.set_device(0)


def _compile_quickly(request: pytest.FixtureRequest, on_jax: bool) -> None:
    """Let XLA leave out its optimisations for a CPU, which take most of the time, where no test asks for them.

    They change how numbers are rounded, for they join products and sums: tests of that are marked ``optimised``.
    """
    if on_jax and "jax" not in sys.modules and importlib.util.find_spec("jax"):
        importlib.import_module("jax")
    jax = sys.modules.get("jax")
    if jax is not None and not _has_gpu():
        devices.teach_to_compile_quickly()
        quickly = request.node.get_closest_marker("optimised") is None
        jax.config.update("jax_disable_most_optimizations", quickly)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that are another stream in every test and the same in every run."""
    name = request.node.nodeid.rpartition("/")[2]  # without folders: a file that moves keeps its numbers
    return np.random.default_rng(list(f"tests/{name}".encode()))


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Call a primitive by a method and assert that this method ran; skip, or fail where promised, if it refuses.

    A promise is about kernels that there are.

    Its attribute ``method`` is the method that ran last.
    """
    promised = "kernel" in request.config.getoption("--promise")

    def call(function: Callable[..., Any], *args: Any, method: str, **options: Any) -> Any:
        with parprims.explain() as calls:
            try:
                result = function(*args, method=method, **options)
            except parprims.MethodRefused as refusal:
                on_gpu = any(word in request.node.name for word in ("cuda", "cupy", "emulated"))
                there_is_one = "there is no kernel of " not in str(refusal)
                if promised and there_is_one and method == "kernel" and on_gpu:
                    pytest.fail(f"a promised kernel refused: {refusal}")
                pytest.skip(str(refusal))
        assert calls, f"{function.__name__} did not say which method ran"
        assert method == "auto" or calls[0].method == method
        call.method = calls[0].method
        recorder.errors.ran(calls[0], result)
        return result

    return call

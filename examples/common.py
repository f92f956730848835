"""Common parts of the examples: the command line, the backend, the clock, the checks, the progress bar, the plot."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import gc
import importlib
import io
import json
import math
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import backends
import numpy as np

import parprims

BACKENDS = ("numpy", "jax", "cupy", "torch")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The problem size taken for ``--size small``, and without the option on a CPU and on a GPU."""

    small: int
    cpu: int
    cuda: int


class Run:
    """One run of an example: the place of its arrays, its size, and its reports so far."""

    def __init__(self, backend: str, device: str | None = None, size: int = 0, plot: str | None = None) -> None:
        if (backend, device) == ("numpy", "cuda"):
            raise SystemExit("NumPy has no arrays on a GPU")
        if (backend, device) == ("cupy", "cpu"):
            raise SystemExit("CuPy has no arrays on a CPU")
        name = backend
        if backend in ("torch", "jax"):
            on_gpu = device == "cuda" if device else backends.available(f"{backend}-cuda")
            name += "-cuda" if on_gpu else ""
        self.backend, self.size, self._plot, self._own = backend, size, plot, backends.make(name)
        self.library, self.xp, self.cuda = self._own.library, self._own.xp, self._own.cuda
        self.asarray, self.to_numpy = self._own.asarray, self._own.to_numpy
        self.rows: list[dict[str, Any]] = []
        self._refusals: set[str] = set()

    def device_name(self) -> str:
        """Return the name of the GPU, or of the processor."""
        return backends.gpu_name() if self.cuda else f"{backends.cpu_name()}, {os.cpu_count()} cores"

    def compile(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call as users would make it often: under ``jit`` on JAX."""
        return self._own.compile(call)

    def compile_now(self, calls: Iterable[Callable[..., Any]], *arrays: Any) -> None:
        """Compile a result of `compile` for arrays: XLA takes seconds for each, on one core."""

        def one(call: Callable[..., Any]) -> None:
            with contextlib.suppress(parprims.MethodRefused):  # whoever calls it will hear
                call.lower(*arrays).compile()

        if self.backend == "jax":
            list(cores().map(one, calls))

    @property
    def shown_already(self) -> tuple[str, ...]:
        """Return the methods to skip in a row like an earlier one: XLA compiles the array form slowly for a GPU."""
        return ("array",) if self.backend == "jax" and self.cuda else ()

    def wait(self, result: Any = None) -> None:
        """Wait until the device has computed the result."""
        self._own.wait(result)

    def free(self) -> None:
        """Give memory that nothing uses back to the device."""
        gc.collect()
        self._own.free()

    def times(self, *calls: Callable[[], Any]) -> list[float]:
        """Return the median seconds of each call. All are warmed up, then take turns."""
        plans = []
        for call in calls:
            self.wait(call())
            seconds = self._seconds(call, 1)
            plans.append((call, math.ceil(min(100, 2e-3 / max(seconds, 1e-7))), [seconds] if seconds > 1 else []))
        for _ in range(5):
            for call, often, taken in plans:
                if not (taken and taken[0] > 1):
                    taken.append(self._seconds(call, often))
        return [statistics.median(taken) for _, _, taken in plans]

    def _seconds(self, call: Callable[[], Any], often: int) -> float:
        began = time.perf_counter()
        for _ in range(often):
            result = call()
        self.wait(result)
        return (time.perf_counter() - began) / often

    def report(
        self,
        row: str,
        result: str,
        difference: Any,
        allowed: Any,
        *,
        seconds: float | None = None,
        reported: str = "",
        vendor: float | None = None,
    ) -> None:
        """Print one row and keep it. It passes if the difference is at most the allowed one; NaN never passes.

        ``reported`` is the result of the problem's source, ``vendor`` the seconds of the library's own routine.
        """
        difference, allowed = float(difference), float(allowed)
        one = {
            "row": row,
            "backend": self._own.name,
            "result": result,
            "check": f"{difference:.2g} <= {allowed:.2g}",
            "passed": difference <= allowed,
            "time": "" if seconds is None else f"{seconds * 1e3:.4g} ms",
            "reported": reported,
            "vendor": "" if seconds is None or vendor is None else f"{vendor / seconds:.2f}x",
        }
        self.rows.append(one)
        fields = [f"difference {one['check']} {'pass' if one['passed'] else 'FAIL'}", one["time"]]
        fields += [f"source {reported}" if reported else "", f"{one['vendor']} of vendor" if one["vendor"] else ""]
        print(f"{row}: {result}; {'; '.join(filter(None, fields))}")

    def compare(
        self,
        row: str,
        call: Callable[..., Any],
        arrays: tuple[Any, ...],
        check: Callable[[Any, str], tuple[str, Any, Any]],
        *,
        reported: str = "",
        vendor: Callable[..., Any] | None = None,
        skip: tuple[str, ...] = (),
    ) -> None:
        """Report ``call(*arrays, method=...)`` by every method that can compute it and is not skipped.

        ``check(result, method)`` returns the text of a result, its difference and the allowed difference. Without a
        ``vendor`` of the same arrays the method native, the library's own routine, takes its part.
        """
        listed = parprims.methods(functools.partial(call, method="auto"), *arrays)
        compiled = {name: self.compile(functools.partial(call, method=name)) for name in listed if name not in skip}
        for method in skip:
            print(f"{row}: method {method!r} is left out, it would take too long")
        self.compile_now([one for name, one in compiled.items() if listed[name] is None], *arrays)
        calls, found = {}, {}
        for method, one in compiled.items():
            one = functools.partial(one, *arrays)
            try:
                found[method], calls[method] = one(), one
            except parprims.MethodRefused as refusal:
                if str(refusal) not in self._refusals:
                    print(f"{row}: {refusal}")
                self._refusals.add(str(refusal))
        if vendor is not None:
            calls["vendor"] = functools.partial(self.compile(vendor), *arrays)
        seconds = dict(zip(calls, self.times(*calls.values()), strict=True))
        rival = seconds.get("vendor", seconds.get("native"))
        for method, result in found.items():
            text, difference, allowed = check(result, method)
            own = vendor is None and method == "native"
            ratio = None if own else rival
            self.report(
                f"{row}, {method}", text, difference, allowed, seconds=seconds[method], reported=reported, vendor=ratio
            )

    def normals(self, seed: int, shape: tuple[int, ...], dtype: str = "float32") -> Any:
        """Return standard normal numbers from the library's own generator."""
        if self.backend == "torch":
            generator = self.library.Generator(device="cuda" if self.cuda else "cpu").manual_seed(seed)
            options = {"dtype": getattr(self.xp, dtype), "device": generator.device}
            return self.library.randn(shape, generator=generator, **options)
        if self.backend == "jax":
            return self.library.random.normal(self.library.random.key(seed), shape, dtype)
        return self.library.random.default_rng(seed).standard_normal(shape, dtype=dtype)

    def progress(self, what: str, steps: Iterable[Any], total: int) -> Iterator[Any]:
        """Yield the steps; on a terminal, draw a progress bar after a second."""
        began = time.perf_counter()
        for done, step in enumerate(steps):
            if sys.stderr.isatty() and done and time.perf_counter() - began > 1:
                bar = "#" * (40 * done // total)
                print(f"\r{what} [{bar:40}] {done}/{total}", end="", file=sys.stderr)
            yield step
        if sys.stderr.isatty() and time.perf_counter() - began > 1:
            print("\r" + " " * 80, end="\r", file=sys.stderr)

    def plot(self, draw: Callable[[Any], Any]) -> None:
        """Draw on the axes of a figure and save it, if ``--plot`` names a file."""
        if self._plot:
            from matplotlib.figure import Figure

            figure = Figure(layout="constrained")
            draw(figure.add_subplot())
            figure.savefig(self._plot)
            print(f"plot: {self._plot}")


@functools.cache
def cores() -> concurrent.futures.ThreadPoolExecutor:
    """Return a thread for every core. NumPy alone would use one, and take longer than a GPU many times over."""
    return concurrent.futures.ThreadPoolExecutor(os.cpu_count())


def by_pieces(call: Callable[..., Any], *arrays: np.ndarray) -> list[Any]:
    """Return ``call(*pieces)`` for every 2^20 elements of arrays of one length along their first axis, on all cores."""
    rows = max(1, 2**20 * len(arrays[0]) // max(1, arrays[0].size))
    starts = range(0, len(arrays[0]), rows)
    return list(cores().map(lambda start: call(*(x[start : start + rows] for x in arrays)), starts))


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest distance between two arrays' elements; NaN if there is one."""
    return float(np.max(by_pieces(lambda one, other: np.max(abs(one - other)), found, expected)))


@contextlib.contextmanager
def raises(run: Run, row: str, *errors: type[BaseException]) -> Iterator[None]:
    """Report whether the block raised one of these errors, as it must, and print its message."""
    try:
        yield
    except errors as error:
        run.report(row, f"raised {type(error).__name__}: {error}", 0, 0)
    else:
        run.report(row, "raised nothing", math.inf, 0)


def main(example: Callable[[Run], None], sizes: Sizes, argv: list[str] | None = None) -> int:
    """Run an example by its command line; return 0 if every check passed, else 1.

    An example for some of the libraries names them in ``BACKENDS``; the first is the default.
    """
    libraries = example.__globals__.get("BACKENDS", BACKENDS)
    parser = argparse.ArgumentParser(
        description=example.__globals__["__doc__"], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", choices=libraries, default=libraries[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default a GPU where the library sees one")
    parser.add_argument(
        "--size", help=f"a number, or 'small' ({sizes.small}); {sizes.cpu} on a CPU, {sizes.cuda} on a GPU"
    )
    parser.add_argument("--plot", metavar="FILE", help="save the picture, where the result is one")
    parser.add_argument("--json", metavar="FILE", help="save the rows")
    options = parser.parse_args(argv)
    run = Run(options.backend, options.device, plot=options.plot)
    if options.size is None:
        run.size = sizes.cuda if run.cuda else sizes.cpu
    else:
        run.size = sizes.small if options.size == "small" else int(options.size)
    if run.size < 1:
        parser.error(f"--size must be positive, got {run.size}")
    try:
        example(run)
    finally:
        run.free()
        if options.json:
            version = f"{run.library.__name__} {run.library.__version__}"
            facts = {"device": run.device_name(), "version": version, "rows": run.rows}
            pathlib.Path(options.json).write_text(json.dumps(facts))
    failed = sum(not row["passed"] for row in run.rows)
    print(f"{len(run.rows) - failed} checks passed, {failed} failed")
    return 1 if failed or not run.rows else 0


def serve(pipe: Any) -> None:
    """Run examples by names and options from a pipe, and answer with the results and output of each.

    The answer is the facts that ``--json`` saves, whether all passed, and the text.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever sends the names kills this process
        signal.signal(number, signal.SIG_IGN)
    while True:
        name, options = pipe.recv()
        passed, facts, text = False, {"rows": []}, io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(text):
            path = pathlib.Path(folder) / "rows.json"
            try:
                module = importlib.import_module(name)
                passed = main(module.example, module.SIZES, [*options, "--json", str(path)]) == 0
            except BaseException:
                print(traceback.format_exc())
            if path.exists():
                facts = json.loads(path.read_text())
        pipe.send((facts, passed, text.getvalue()))

"""Checks that run where JAX takes the CPU for several devices: one process for all checks of a file."""

import functools
import gc
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@functools.cache
def teach_to_compile_quickly() -> None:
    """Let JAX, while it leaves out optimisations, have XLA take its older code generator, and one part for a program.

    Where a release has both, that takes less than half the time. JAX has no public switch for every program.
    """
    jax = importlib.import_module("jax")

    def known(name: str, value: Any) -> bool:
        try:
            jax.jit(lambda: 0, compiler_options={name: value})()
        except jax.errors.JaxRuntimeError:  # this release has no such option
            return False
        return True

    quick = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
    quick = {name: value for name, value in quick.items() if known(name, value)}
    compiler = importlib.import_module("jax._src.compiler")
    make = compiler.get_compile_options

    def get_compile_options(*args: Any, **options: Any) -> Any:
        made = make(*args, **options)
        if made.executable_build_options.debug_options.xla_backend_optimization_level == 0:
            made.env_option_overrides = [*made.env_option_overrides, *quick.items()]
        return made

    compiler.get_compile_options = get_compile_options


def checks(names):
    """Return the checks among the names of a module, in order."""
    return [name for name, value in names.items() if name.startswith("check_") and callable(value)]


def run_all(names, *, stop=False):
    """Run every check and print what each raised; the last line is read by `outcomes`.

    ``stop`` is for one of several processes: it ends the process, as failed, after a check that raised.
    """
    if "jax" in sys.modules and os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") == "1":
        teach_to_compile_quickly()
    gc.set_threshold(100_000, 20, 100)  # as in conftest.py
    found = {}
    for name in checks(names):
        try:
            names[name]()
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
            if stop:
                break
    print(json.dumps(found), flush=True)
    if stop and any(found.values()):
        os._exit(1)


def outcomes(module, count=8, **environment):
    """Return what each check of a module raised, in a process with so many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    paths = os.pathsep.join((str(ROOT), *sys.path))
    given = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module],
        capture_output=True, text=True, env=os.environ | given | environment, timeout=240, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def outcomes_of_processes(module, count, *words):
    """Return what each check of a module raised in any of so many processes, which find each other by the words.

    Each process is given its number, the count, and the words.
    """
    if not hasattr(os, "fork"):
        pytest.skip("needs processes that fork")
    paths = os.pathsep.join((str(ROOT), *sys.path))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        arguments = [module, folder, str(count), *map(str, words)]
        command = [sys.executable, "-W", "error", "-m", "tests.support.devices", *arguments]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=ROOT
        ) as process:
            said, _ = process.communicate()
        written = [[pathlib.Path(folder, f"{rank}.{one}") for one in ("out", "err")] for rank in range(count)]
        printed = [[path.read_text() if path.exists() else "" for path in paths] for paths in written]
    found = {}
    for rank, (out, _) in enumerate(printed):
        for name, raised in json.loads(out.splitlines()[-1] if out else "{}").items():
            found[name] = found.get(name, "") + (f"process {rank}: {raised}" if raised else "")
    if process.returncode and not any(found.values()):
        found["end"] = said + "".join(f"process {rank}: {err}" for rank, (_, err) in enumerate(printed))
    return found


def fork(module, folder, count, *words):
    """Run the main function of a module in so many processes, which write to files; return whether all succeeded.

    They have in common what the module says that it needs, so that one process alone imports it.
    """
    found = importlib.import_module(module)
    for name in found.NEEDS:
        importlib.import_module(name)
    gc.freeze()
    running = {_forked(found.main, folder, rank, count, words) for rank in range(count)}
    ended, end = [], time.monotonic() + 300
    while running and time.monotonic() < end:
        time.sleep(0.05)
        for one in {*running}:
            pid, status = os.waitpid(one, os.WNOHANG)
            if pid:
                running.remove(one)
                ended.append(status)
                if status:
                    end = min(end, time.monotonic() + 2)  # the others wait for it
    for one in running:
        os.kill(one, signal.SIGKILL)
        os.waitpid(one, 0)
    return not running and not any(ended)


def _forked(main, folder, rank, count, words):
    """Start a process that ends after the function, and return its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads, which libraries start
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        for name, stream in (("out", sys.stdout), ("err", sys.stderr)):
            with open(f"{folder}/{rank}.{name}", "wb") as file:
                os.dup2(file.fileno(), stream.fileno())
        main(rank, count, *words)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def hold(module, subtests, count=8, **environment):
    """Fail for every check of a module that raised, in a process with so many devices."""
    for name, raised in outcomes(module, count, **environment).items():
        with subtests.test(check=name):
            assert not raised, raised


if __name__ == "__main__":
    sys.exit(0 if fork(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]) else 1)

"""Checks that run where JAX takes the CPU for several devices: one process for all checks of a file."""

import functools
import gc
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]


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


def outcomes_of_processes(module, count, folder, *words):
    """Return what each check of a module raised in any of so many processes, which find each other by a file.

    Each process is given its number, the count, the folder, and the words.
    """
    paths = os.pathsep.join((str(ROOT), *sys.path))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    command = [sys.executable, "-W", "error", "-m", module]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(count), str(folder), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT,
        )
        for rank in range(count)
    ]  # fmt: skip
    found, end = {}, time.monotonic() + 300
    try:
        while any(one.poll() is None for one in started) and time.monotonic() < end:
            time.sleep(0.1)
            if any(one.returncode for one in started):
                end = min(end, time.monotonic() + 2)  # the others wait for it
    finally:
        for one in started:
            one.kill()
    for rank, one in enumerate(started):
        out, err = one.communicate()
        for name, raised in json.loads(out.splitlines()[-1] if out else "{}").items():
            found[name] = found.get(name, "") + (f"process {rank}: {raised}" if raised else "")
        if one.returncode and not any(found.values()):
            found["end"] = f"process {rank}: {err}"
    return found


def hold(module, subtests, count=8, **environment):
    """Fail for every check of a module that raised, in a process with so many devices."""
    for name, raised in outcomes(module, count, **environment).items():
        with subtests.test(check=name):
            assert not raised, raised

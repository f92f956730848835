"""Checks that run where JAX takes the CPU for several devices: one process for all checks of a file."""

import json
import os
import pathlib
import subprocess
import sys
import traceback

ROOT = pathlib.Path(__file__).parents[1]


def checks(names):
    """Return the checks among the names of a module, in order."""
    return [name for name, value in names.items() if name.startswith("check_") and callable(value)]


def run_all(names):
    """Run every check and print what each raised; the last line is read by `outcomes`."""
    found = {}
    for name in checks(names):
        try:
            names[name]()
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
    print(json.dumps(found))


def outcomes(module, count=8, **environment):
    """Return what each check of a module raised, in a process with so many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    paths = os.pathsep.join((str(ROOT), *sys.path))
    given = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", module],
        capture_output=True, text=True, env=os.environ | given | environment, timeout=600, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def hold(module, subtests, count=8, **environment):
    """Fail for every check of a module that raised, in a process with so many devices."""
    for name, raised in outcomes(module, count, **environment).items():
        with subtests.test(check=name):
            assert not raised, raised

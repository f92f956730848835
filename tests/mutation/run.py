"""Change the kernels in one place each, and see that the tests on the emulator notice.

``python -m tests.mutation`` applies every mutation of `MUTATIONS` to a temporary copy of the package, runs the tests
that must catch it there, and prints which are caught and which survive. It fails if one survives that is not said to be
equivalent, if the text that a mutation replaces is not in its file exactly once, and if the tests fail without one.
``--match fence`` keeps to those in whose name an expression is found, ``--some 5 --seed 1`` to a few of them.
"""

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

from tests.mutation.mutations import MUTATIONS, Mutation

ROOT = pathlib.Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What came of a mutation."""

    caught: bool
    seconds: float
    error: str = ""


def _copy(folder: pathlib.Path) -> pathlib.Path:
    """Copy what the tests need to a folder; compiled kernels are shared by all copies."""
    for name in ("src", "tests", "examples"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    emulator = folder / "tests" / "emulation" / "emulator.py"
    text = emulator.read_text()
    assert text.count("seconds = 120.0") == 1
    emulator.write_text(text.replace("seconds = 120.0", "seconds = 20.0"))  # for kernels that wait for ever
    kept = folder.parent / "kernels"
    kept.mkdir(exist_ok=True)
    (folder / ".pytest_cache").mkdir()
    (folder / ".pytest_cache" / "emulator").symlink_to(kept, target_is_directory=True)
    return folder


def _tests(folder: pathlib.Path, names: list[str]) -> tuple[int, str]:
    """Run tests in a copy, up to the first that fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "--backend",
        "emulated",
        "--promise",
        "emulated",
        "--promise",
        "kernel",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([*command, *names], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def _tried(folder: pathlib.Path, mutation: Mutation) -> Verdict:
    """Apply a mutation in a copy, run its tests, and take it back."""
    path = folder / "src" / "parprims" / mutation.file
    text = path.read_text()
    begin = time.perf_counter()
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        code, output = _tests(folder, [mutation.tests])
    finally:
        path.write_text(text)
    error = ""
    if code > 1:
        error = f"pytest ended with {code}:\n{output[-2000:]}"
    elif "CalledProcessError" in output:
        error = "the mutated text does not compile: " + " ".join(re.findall(r"error: .*", output)[:3])
    return Verdict(code != 0, time.perf_counter() - begin, error)


def misfits() -> list[str]:
    """Return the mutations whose text is not in its file once."""
    found = []
    for one in MUTATIONS:
        count = (ROOT / "src" / "parprims" / one.file).read_text().count(one.old)
        if count != 1:
            found.append(f"{count} times in its file: {one.name}")
    return found


def main() -> int:
    """Try the mutations asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--match", default="", help="only mutations whose name this expression is found in")
    parser.add_argument("--some", type=int, help="only so many of them, drawn by the seed")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="which (default: others every time)")
    parser.add_argument("-n", type=int, default=2, help="how many processes (default: 2)")
    options = parser.parse_args()
    wrong = misfits()
    for line in wrong:
        print(f"ERROR    {line}")
    if wrong:
        return 1
    mutations = [one for one in MUTATIONS if re.search(options.match, one.name)]
    if options.some is not None:
        mutations = random.Random(options.seed).sample(mutations, min(options.some, len(mutations)))
        print(f"--seed {options.seed}")
    begin, counts = time.perf_counter(), {"caught": 0, "survived": 0, "equivalent": 0, "error": 0}
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(options.n) as pool:
        copies = [_copy(pathlib.Path(name) / f"copy{at}") for at in range(options.n)]
        tests = sorted({one.tests for one in mutations})
        controls = [pool.submit(_tests, copies[at], tests[at :: options.n]) for at in range(min(options.n, len(tests)))]
        for control in controls:
            code, output = control.result()
            if code:
                print(f"{output[-5000:]}\nERROR    the tests fail without a mutation")
                return 1
        print(f"{len(tests)} tests pass without a mutation, in {time.perf_counter() - begin:.0f} s", flush=True)

        def tried(one: Mutation) -> Verdict:
            folder = copies.pop()
            try:
                return _tried(folder, one)
            finally:
                copies.append(folder)

        for one, verdict in zip(mutations, pool.map(tried, mutations), strict=True):
            outcome = "error" if verdict.error else "caught" if verdict.caught else "survived"
            if one.equivalent and not verdict.error:
                outcome = "survived" if verdict.caught else "equivalent"
            counts[outcome] += 1
            said = {"equivalent": f" ({one.equivalent})", "error": f"\n{verdict.error}"}.get(outcome, "")
            if one.equivalent and verdict.caught:
                said = " (was caught, and is said to be equivalent)"
            print(f"{outcome.upper():10} {verdict.seconds:4.0f} s  {one.name}{said}", flush=True)
    print(
        ", ".join(f"{count} {outcome}" for outcome, count in counts.items()), f"in {time.perf_counter() - begin:.0f} s"
    )
    return 1 if counts["survived"] or counts["error"] else 0

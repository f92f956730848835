"""The recipe of CONTRIBUTING, followed: a new primitive is a room, an import and a name."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import parprims

HERE = Path(__file__).parent
PACKAGE = Path(parprims.__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The library with one primitive more, `adjacent_difference`."""
    package = tmp_path_factory.mktemp("library") / "parprims"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(HERE / "adjacent_difference" / "room", package / "_primitives" / "adjacent_difference")
    top = package / "__init__.py"
    text = top.read_text()
    line = "from parprims._primitives.adjacent_difference.public import adjacent_difference\n"
    before = "from parprims._primitives.banded.public"
    assert before in text
    assert "__all__ = [\n" in text
    text = text.replace(before, line + before, 1).replace(
        "__all__ = [\n", '__all__ = [\n    "adjacent_difference",\n', 1
    )
    top.write_text(text)
    return package.parent


def hold(library, *options, suites=("project/adjacent_difference/laws.py",)):
    """Run the laws, or other suites, with the library, and return what pytest prints."""
    found = "-o", f"pythonpath={library} {HERE.parents[1]}"
    paths = [f"tests/{one}" for one in suites]
    return run(library, "-m", "pytest", "-q", "-p", "no:cacheprovider", *found, *paths, *options)


def run(library, *arguments):
    """Run Python with the library and return its output; a run that fails is a failure that shows its output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(library), str(HERE.parents[1])))}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.once
class TestNewPrimitive:
    @pytest.mark.parametrize("name", ["numpy", "torch", "array-api-strict"])
    def test_keeps_the_laws(self, library, name):
        pytest.importorskip(name.replace("-", "_"))
        assert " passed" in hold(library, "--backend", name)

    @pytest.mark.sanitize
    def test_its_kernel_for_gpus_keeps_them(self, library):
        if shutil.which("g++") is None:
            pytest.skip("the emulator needs a C++ compiler")
        options = ("--backend", "emulated", "--promise", "emulated", "-k", "length or axis or view")
        assert " passed" in hold(library, *options)

    @pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
    def test_its_example_is_called_by_suites(self, library, name):
        """They find it in the declaration."""
        pytest.importorskip(name)
        suites = ["dispatch/test_dispatch.py", "dispatch/test_small_calls.py"]
        suites += ["on_jax/test_jax.py"] if name == "jax" else []
        chosen = "adjacent_difference and not few_functions"  # the most functions that a call enters are counted ones
        told = hold(library, "--backend", name, "-k", chosen, "--all", suites=suites)
        assert int(re.search(r"(\d+) passed", told)[1]) >= 4

    def test_is_known_to_all_that_goes_over_primitives(self, library):
        program = """
        import numpy as np, parprims
        x = np.array([3, 4, 8, 9])
        assert list(parprims.adjacent_difference(x)) == [3, 1, 4, 1]
        assert list(parprims.methods(parprims.adjacent_difference, x)) == ["kernel", "array"]
        with parprims.explain() as calls:
            parprims.adjacent_difference(x, method="array")
        assert (calls[0].primitive, calls[0].method) == ("adjacent_difference", "array")
        assert parprims.warm("adjacent_difference", dtypes=["float32"]) == 9
        assert "adjacent_difference(int64[4])" in str(parprims.compare(parprims.adjacent_difference, x))
        from tests.checks import stub
        heads = [line for line in stub.text().splitlines() if "adjacent" in line]
        assert heads == [
            '    "adjacent_difference",',
            'def adjacent_difference(x: _A, /, *, axis: int = -1, method: _Method = "auto") -> _A: ...',
        ]
        for wrong, error in (({"axis": 1}, IndexError), ({"dim": 0}, TypeError), ({"method": "native"}, ValueError)):
            try:
                parprims.adjacent_difference(x, **wrong)
            except error as raised:
                assert next(iter(wrong)) in str(raised), raised
            else:
                raise AssertionError(wrong)
        """
        lines = [line[8:] for line in program.splitlines()]
        run(library, "-c", "\n".join(lines))

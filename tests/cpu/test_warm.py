"""Kernels that are compiled ahead of the calls that need them."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import parprims
from parprims import __main__ as report
from parprims._tools import warm_up
from tests.core import test_door


class TestWarm:
    """Kernels are compiled ahead of the calls that need them."""

    PROGRAM = """
    import numpy as np, parprims, sys
    from parprims._cpu import compiler

    made, make = [], compiler._object_code
    compiler._object_code = lambda name, text: made.append(name) or make(name, text)
    if "warm" in sys.argv:
        told = []
        assert parprims.warm(parprims.scan, dtypes=["float64"], progress=told.append) == len(told) == 9
        assert told[0] == "scan, float64, 100"
    else:
        parprims.scan(np.arange(5000.0), "add", method="auto")
    print(len(made))
    """

    def test_later_processes_compile_nothing(self, tmp_path):
        pytest.importorskip("numba")

        def compiled(*arguments):
            program = textwrap.dedent(self.PROGRAM)
            environment = {**os.environ, "PARPRIMS_CACHE_DIR": str(tmp_path)}
            command = [sys.executable, "-c", program, *arguments]
            return int(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)

        assert compiled("warm") > 0
        assert compiled() == 0

    @pytest.mark.parametrize("name", warm_up.NAMES)
    def test_every_primitive_has_usual_calls(self, monkeypatch, name):
        monkeypatch.setattr(warm_up, "_SIZES", (64,))
        assert parprims.warm(name, dtypes=["float32"]) > 0

    def test_every_primitive_is_here(self):
        assert {*warm_up.NAMES, "map_reduce", "check_associative"} == {*test_door.FUNCTIONS}

    def test_what_is_refused(self):
        with pytest.raises(ValueError, match=r"^functions must be primitives of parprims or names of them, got 'sun'"):
            parprims.warm("sun")
        with pytest.raises(ValueError, match=r"^functions must be primitives of parprims"):
            parprims.warm(np.sum)
        with pytest.raises(ValueError, match=r"^dtypes must be names of dtypes of the library, got 'float63'"):
            parprims.warm("sum", dtypes=["float63"])
        with pytest.raises(SystemExit):
            report.main(["--warm", "sun"])

    def test_the_command_says_what_it_does(self, monkeypatch, capsys):
        monkeypatch.setattr(warm_up, "_SIZES", (64,))
        monkeypatch.setattr(report, "_ON_GPU", {})
        assert report.main(["--warm", "merge"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(" s ")[2] for line in lines[:-1]] == [f"merge, {one}, 64" for one in warm_up.DTYPES]
        assert " s all is kept in " in lines[-1]

"""The table of what auto takes on a CPU: which calls it has, what is right in it, and what it says."""

import dataclasses
import json
import math

import numpy as np
import pytest

import parprims
from benches import __main__ as command
from benches.auto import rows
from benches.auto import table as auto
from benches.auto.calls_reduce import sum_call
from benches.core import records
from benches.core.cases import Problem
from benches.core.runs import present_backends
from examples.backends import installed

pytestmark = pytest.mark.once


def test_calls_of_the_table():
    every = {family: rows.calls(family, quick=False) for family in auto.LIBRARIES}
    assert len(every["numpy"]) >= 60
    for family, found in every.items():
        names = [(one.primitive, one.name, one.dtype, one.shape, one.axis) for one in found]
        assert len(set(names)) == len(names), family
        assert all(hasattr(parprims, one.primitive) for one in found)
        assert {"sum", "cumulative_sum", "linear_recurrence", "sort"} <= {one.primitive for one in found}
    sizes = [math.prod(one.shape) for one in every["numpy"]]
    assert (min(sizes), max(sizes)) == (100, 2**24)
    assert len({one.dtype for one in every["numpy"]}) >= 5
    three = [one for one in every["numpy"] if len(one.shape) == 3]
    assert {one.axis for one in three} == {0, 1, 2}


SIMPLE = sum_call((100,), 0, "float32")


@pytest.fixture
def numpy_only():
    (backend,) = present_backends(["numpy"])
    return backend


def test_peers_give_what_auto_does(backend):
    """Calls of every library with all their peers, of which none is timed: it would show nothing here."""
    if backend.name not in auto.LIBRARIES:
        pytest.skip("the table has no such arrays")
    wanted = [one for one in rows.calls(backend.name, quick=True) if one.primitive in ("sum", "scan", "vecdot")]
    for call in wanted:
        problem, contenders = auto.contenders(call, backend)
        assert len(contenders) > 1 or not installed("numba")  # some peers are loops that Numba compiles
        passed, errors, method = auto.right(call, problem, contenders)
        assert errors == []
        assert passed == contenders
        assert method in ("array", "kernel", "native")


def line(seconds, name="sum", **peers):
    """Return a line of the table; peers are given by the first word of their names."""
    call = dataclasses.replace(SIMPLE, name=name)
    names = {"numpy": "peer:np.sum", "loop": auto.LOOP}
    return auto.Line(call, "numpy", "native", seconds, {names[key]: value for key, value in peers.items()})


def test_worst_comes_last():
    lines = [
        line(5e-3, "five", numpy=1e-3),
        line(5e-6, "small", numpy=2e-6),  # within 3 us
        line(1.09e-3, "near", numpy=1e-3, loop=1e-6),  # whatever Numba takes
        line(2e-3, "two", loop=1e-3),  # there is nothing else to stand beside
    ]
    head, *rows = auto.table(lines).splitlines()
    assert head.split()[:3] == ["call", "backend", "dtype"]
    assert [row.split()[0] for row in rows] == ["small", "near", "two", "five"]
    assert [" yes " in f"{row} " for row in rows] == [True, True, False, False]
    assert rows[1].split()[-1] == "0.00"
    assert rows[3].split()[-3:] == ["ms", "0.20", "no"]
    assert auto.verdict(lines).startswith("2 of 4 calls take more than 1.1 times as long and 3.00 us beside the best")
    assert "2 of 2 beside a loop compiled by Numba" in auto.verdict(lines)


def test_wrong_results_are_not_timed(numpy_only):
    def make(_):
        return Problem((np.ones(100, np.float32),), np.float32(100))

    one = dataclasses.replace(
        SIMPLE, make=make, peers={"np.sum": np.sum, "np.wrong": lambda x: x.sum() + 1, "python loop": lambda _: 1 / 0}
    )
    found, errors = auto.timed(one, numpy_only, quick=True)
    assert set(found.peers) == {"peer:np.sum"}
    assert [error.partition("peer:")[2] for error in errors] == [
        "np.wrong: 1 of 1 elements are wrong, the first is 0: 101.0 instead of 100.0",
        "python loop: ZeroDivisionError: division by zero",
    ]
    nothing, errors = auto.timed(dataclasses.replace(one, run=lambda x, **_: x.sum() + 1), numpy_only, quick=True)
    assert nothing is None
    assert "numpy auto: 1 of 1" in errors[0]


def test_far_peers_are_left_out_and_a_miss_is_timed_again(numpy_only, monkeypatch):
    def sample(contender, *_):
        return {"auto": 1e-3, "peer:np.sum": 0.5e-3, "peer:np.far": 2e-3, auto.LOOP: 1e-9}[contender.method]

    budgets = []
    monkeypatch.setattr(auto.Contender, "sample", sample)

    def interleave(contenders, _, budget):
        budgets.append(budget)
        for one in contenders:
            one.seconds = [one.sample()]

    monkeypatch.setattr(auto, "interleave", interleave)
    one = dataclasses.replace(SIMPLE, peers=dict.fromkeys(("np.sum", "np.far", "numba loop"), np.sum))
    found, errors = auto.timed(one, numpy_only, quick=False)
    loop = {auto.LOOP: 1e-9} if installed("numba") else {}
    assert (found.peers, found.best, errors) == ({"peer:np.sum": 0.5e-3, **loop}, "peer:np.sum", [])
    assert len(budgets) == 2
    assert budgets[0] < budgets[1]


def test_table_end_to_end(tmp_path, capsys, monkeypatch):
    path = tmp_path / "auto" / "cpu.json"
    options = ["--table", "--quick", "--backend", "numpy", "--device-results", str(path)]
    assert command.main([*options, "--primitive", "vecdot", "all"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[0].split() == " ".join(auto.HEAD).split()
    assert f"results: {path}" in printed.out
    assert "vecdot 100 on numpy: " in printed.err
    file = json.loads(path.read_text())
    assert set(file["header"]) == {"device", "versions", "commit", "date", "ceilings", "cpus"}
    first = file["records"]
    assert {one["primitive"] for one in first} == {"vecdot", "all"}
    ours = [one for one in first if one["method"] == "auto"]
    assert len(ours) == 3
    for one in first:
        expected = {"commit", "primitive", "case", "backend", "method", "dtype", "shape", "axis", "seconds"}
        assert set(one) - {"took"} == expected
        assert ("took" in one) == (one["method"] == "auto")
    # What did not run is kept.
    assert command.main([*options, "--primitive", "max"]) == 0
    kept = json.loads(path.read_text())["records"]
    assert [one for one in kept if one["primitive"] != "max"] == first
    assert any(one["primitive"] == "max" for one in kept)
    # Without a path a quick table is not written, for it would take the place of a whole one.
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    assert command.main([*options[:-2], "--primitive", "max"]) == 0
    assert not (tmp_path / "none").exists()


def test_what_the_table_has_not():
    with pytest.raises(SystemExit, match="the table has no bogus; it has all, argsort"):
        command.main(["--table", "--quick", "--backend", "numpy", "--primitive", "bogus"])
    with pytest.raises(SystemExit, match="is one of CPUs"):
        command.main(["--table", "--backend", "cupy"])

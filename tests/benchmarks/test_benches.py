"""The comparison's machinery: the gate, the clock, the results file and the tables made of it."""

import dataclasses
import importlib.util
import json
import math
import re
import shutil

import numpy as np
import pytest

import parprims
from benches import __main__ as command
from benches.core import ceilings, checks, clock, problems, raw_kernels, records
from benches.core.cases import LIBRARIES, OURS, OUTSIDE, Case, Problem, Scale
from benches.core.clock import Contender
from benches.core.one_thread import on_one_thread
from benches.core.problems import PIECE
from benches.core.runs import present_backends, run_case
from benches.overhead import first_calls, small_calls
from benches.page import against, page, plots, tables
from benches.primitives import sort as bench_sort
from examples.backends import installed

pytestmark = pytest.mark.once

NUMBA = importlib.util.find_spec("numba") is not None
METHODS = {"array", "native"} | ({"kernel"} if NUMBA else set())
"""The methods of a sum on NumPy."""

FIELDS = {
    "commit": str,
    "primitive": str,
    "case": str,
    "backend": str,
    "method": str,
    "dtype": str,
    "shape": list,
    "seconds": float,
    "rate": float,
    "unit": str,
    "ceiling_fraction": (float, type(None)),
    "auto": bool,
}


def record(**changes):
    """Return a record as a results file holds it."""
    one = {
        "primitive": "sum",
        "case": "sum, 2^20",
        "backend": "numpy",
        "method": "array",
        "dtype": "float32",
        "shape": [2**20],
        "seconds": 1e-3,
        "rate": 4e9,
        "unit": "B/s",
        "ceiling_fraction": 0.25,
    }
    return {**one, **changes}


HEAD = {
    "device": "Some Device",
    "versions": {"numpy": "2.4"},
    "commit": "0123456789abcdef",
    "date": "2026-01-02T03:04:05+00:00",
    "ceilings": {"copy": 8e9, "read": 16e9, "matmul float32": 1e11},
}


def problem():
    x = np.arange(1000, dtype=np.float32) % 7
    return Problem((x,), np.float32(x.sum(dtype=np.float64)))


def case(**changes):
    """Return a small, exact case of a sum."""
    one = Case("sum", "sum, 1000", lambda _: problem(), parprims.sum, {"numpy": lambda np, x: np.sum(x)})
    return dataclasses.replace(one, **changes)


@pytest.fixture
def numpy_only():
    return present_backends(["numpy"])


def test_quick_comparison_end_to_end(tmp_path, capsys):
    path = tmp_path / "device.json"
    status = command.main(
        ["--full", "--quick", "--backend", "numpy", "--primitive", "sum", "map_reduce", "--device-results", str(path)]
    )
    printed = capsys.readouterr().out
    assert status == 0, printed
    file = json.loads(path.read_text())
    assert set(file) == {"header", "records"}
    assert set(file["header"]) == {"device", "cpus", "versions", "commit", "date", "ceilings"}
    assert {"copy", "read", "matmul float32", "matmul float64"} <= set(file["header"]["ceilings"])
    assert all(rate > 0 for rate in file["header"]["ceilings"].values())
    assert file["header"]["ceilings"]["copy"] < 20 * file["header"]["ceilings"]["read"]  # something was copied
    found = file["records"]
    assert {one["primitive"] for one in found} == {"sum", "map_reduce"}
    assert {"array", "native", "peer:numpy"} <= {one["method"] for one in found}
    for one in found:
        assert list(one) == list(FIELDS)
        assert all(isinstance(one[name], kind) for name, kind in FIELDS.items())
        assert one["seconds"] > 0
        assert math.isfinite(one["rate"])
    (call, *_) = (one for one in found if "call" in one["case"])
    assert call["ceiling_fraction"] is None
    assert call["rate"] * call["seconds"] == pytest.approx(4 * call["shape"][0] + 4)
    # What cannot run is said with its reason, not left out.
    every = path.with_suffix(".txt").read_text()
    assert ("numpy method 'kernel' refused" in every) != NUMBA
    assert tables.LEGEND in every
    assert page.LEGEND in printed
    assert "At these toy sizes only Python's overhead is measured" in printed
    assert len(printed.splitlines()) < 30
    report = path.with_suffix(".html").read_text()
    assert page.LEGEND in report
    assert ("data:image/png;base64," in report) == installed("matplotlib")
    assert path.with_suffix(".png").exists() == installed("matplotlib")


def test_wrong_result_gets_no_time_and_fails_the_run(tmp_path, capsys, monkeypatch):
    wrong = case(peers={"numpy": lambda np, x: np.sum(x[1:]), "scipy": lambda *_: 1 / 0}, whole_call=True)
    monkeypatch.setattr(command, "cases", lambda *_: [wrong])
    monkeypatch.setitem(OUTSIDE, "scipy", ("numpy", "numpy"))
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda *_: {"copy": 1e9})
    monkeypatch.setattr(plots, "plot", lambda *_: "no plot")
    path = tmp_path / "device.json"
    # The first element is 0: leaving it out is no error, and the gate must not invent one.
    assert command.main(["--full", "--quick", "--backend", "numpy", "--device-results", str(path)]) == 1
    assert {one["method"] for one in json.loads(path.read_text())["records"]} == {*METHODS, "peer:numpy"}
    wrong = case(peers={"numpy": lambda np, x: np.sum(x[2:])}, whole_call=True)
    assert command.main(["--full", "--quick", "--backend", "numpy", "--device-results", str(path)]) == 1
    assert {one["method"] for one in json.loads(path.read_text())["records"]} == METHODS
    printed = capsys.readouterr().out
    assert "ERROR sum: sum, 1000: numpy peer:scipy FAILED: ZeroDivisionError" in printed
    assert "ERROR sum: sum, 1000: numpy peer:numpy WRONG: 1 of 1 elements are wrong" in printed


def test_results_of_a_run_are_kept_for_a_commit_only_if_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "cases", lambda *_: [case()])
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda *_: {"copy": 1e9})
    monkeypatch.setattr(plots, "plot", lambda *_: "no plot")
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    asked = ["--full", "--quick", "--backend", "numpy"]
    for options, folder in ((asked, tmp_path / "local"), ([*asked, "--record"], tmp_path)):
        assert not list(folder.glob("*.json"))
        assert command.main(options) == 0
        assert len(list(folder.glob("*.json"))) == 1


def test_case_that_breaks_down_leaves_the_others(tmp_path, capsys, monkeypatch):
    broken = case(name="broken, 1", make=lambda _: 1 / 0)
    monkeypatch.setattr(command, "cases", lambda *_: [broken, case()])
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda *_: {"copy": 1e9})
    monkeypatch.setattr(plots, "plot", lambda *_: "no plot")
    path = tmp_path / "device.json"
    assert command.main(["--full", "--quick", "--backend", "numpy", "--device-results", str(path)]) == 1
    assert {one["case"] for one in json.loads(path.read_text())["records"]} == {"sum, 1000"}
    assert "ERROR sum: broken, 1 FAILED: ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (np.array([1.0, 2.0, 3.0]), None),
        (np.array([[1.0, 2.0, 3.05]]), None),
        (np.array([1.0, 2.0, 3.2]), "1 of 3 elements are wrong, the first is 2"),
        (np.array([1.0, np.nan, 3.0]), "the first is 1: nan"),
        (np.array([np.inf, 2.0, 3.0]), "the first is 0: inf"),
        (np.array([1.0, 2.0]), "shape"),
        ((np.array([1.0, 2.0, 3.0]),) * 2, "2 arrays instead of 1"),
    ],
)
def test_gate(result, message):
    found = checks.gate(result, Problem((), np.array([1.0, 2.0, 3.0]), 0.1))
    assert found is None if message is None else message in found


def test_gate_is_exact_without_an_allowance():
    expected = (np.array([2**53 + 1, 5]), np.float32(7))
    exact = Problem((), expected)
    assert checks.gate((np.array([2**53 + 1, 5]), np.array(7.0)), exact) is None
    assert "the first is 0" in checks.gate((np.array([2**53, 5]), np.array(7.0)), exact)
    assert "the first is 0" in checks.gate((np.array([2**53 + 1, 5]), np.array(np.nextafter(7.0, 8.0))), exact)


def test_gate_sees_every_piece():
    n = 2 * PIECE + 7
    expected = np.arange(n)
    for bound in (0, 0.5, np.full(n, 0.5)):
        problem = Problem((), expected, (bound,))
        assert checks.gate(expected.copy(), problem) is None
        wrong = expected.copy()
        wrong[[PIECE, n - 1]] += 1
        assert f"2 of {n} elements are wrong, the first is {PIECE}:" in checks.gate(wrong, problem)


def test_equal_results_are_equal_in_every_element_and_dtype():
    x = np.arange(5.0)
    assert checks.equal(x, x.copy())
    assert checks.equal((x, x + 1), [x, x + 1])
    assert not checks.equal(x, (x, x))
    assert not checks.equal(x, x[None])
    assert not checks.equal(x, x.astype(np.float32))
    assert not checks.equal(x, np.where(x == 4, 5, x))
    assert not checks.equal(x * np.nan, x * np.nan)


def test_problems_made_on_all_cores():
    n = 2 * PIECE + 7
    one, other = (bench_sort.keys(np.random.default_rng(1), n, "int32") for _ in range(2))
    assert np.array_equal(one, other)
    assert len(np.unique(one[::PIECE])) == 3
    for x in (one, one % 10, one.astype(np.uint8), one[:PIECE].reshape(-1, 256), 0 * one):
        assert np.array_equal(bench_sort.sort(x), np.sort(x))
        assert np.array_equal(bench_sort.argsort(x.reshape(-1)), np.argsort(x.reshape(-1), kind="stable"))
    assert np.array_equal(problems.computed(n, "int64", np.subtract, one, other), np.zeros(n))
    assert np.array_equal(
        problems.copied(one[:2], 3, "int64", lambda x, k: x + k), [v + k for k in range(3) for v in one[:2].tolist()]
    )


def test_skipped_and_refused_methods_are_noted(numpy_only):
    skipping = case(skip={"array": "it would take too long"})
    outcome = run_case(skipping, numpy_only, {"copy": 1e9}, 0.001)
    assert {one["method"] for one in outcome.records} == METHODS - {"array"}
    assert "sum, 1000: array not timed, it would take too long" in outcome.notes
    assert outcome.auto == {"numpy": "native"}
    assert "native*" in tables.table(outcome)


class Launched:
    """What a kernel that sums is in `parprims.launches`, on NumPy arrays."""

    grid, block, shared_bytes, parameters = 3, 64, 16, ("in0", "out0", "n")

    def __init__(self, wrong):
        self.arguments, self.wrong, self.calls = (), wrong, []

    def raw_kernel(self):
        def kernel(grid, block, arguments, *, shared_mem):
            self.calls.append((grid, block, shared_mem))
            x, out, n = arguments
            assert x.size == n
            out[...] = x.sum() + self.wrong

        return kernel


@pytest.mark.parametrize("wrong", [0, 1])
def test_kernels_launched_by_hand(numpy_only, monkeypatch, wrong):
    one = Launched(wrong)

    def launches(call, x):
        assert call.keywords["method"] == "kernel"
        one.arguments = x, np.empty((), x.dtype), x.size
        return [one]

    monkeypatch.setattr(parprims, "launches", launches)
    monkeypatch.setattr(raw_kernels, "_launched", {})
    as_cupy = [dataclasses.replace(numpy_only[0], name="cupy")]
    outcome = run_case(case(raw_kernel=True), as_cupy, {"copy": 1e9}, 0.001)
    methods = [record["method"] for record in outcome.records]
    assert ("rawkernel" in methods) is not wrong
    assert set(one.calls) == {((3,), (64,), 16)}
    if wrong:
        assert len(one.calls) == 1  # it is not timed
        assert "cupy rawkernel WRONG: 1 of 1 elements are wrong" in outcome.errors[0]
    else:
        assert outcome.errors == []
        assert "rawkernel" in tables.table(outcome)
        assert "rawkernel" not in tables.summary(outcome.records)  # it is ours and no peer


def test_without_cupy_no_kernel_is_launched_by_hand(numpy_only):
    outcome = run_case(case(raw_kernel=True), numpy_only, {"copy": 1e9}, 0.001)
    assert "rawkernel not timed, CuPy launches it and is not among the backends" in outcome.notes
    assert "rawkernel" not in {record["method"] for record in outcome.records}


def test_case_for_other_libraries_only(numpy_only):
    outcome = run_case(case(libraries=("torch",)), numpy_only, {"copy": 1e9}, 0.001)
    assert (outcome.records, outcome.auto, outcome.errors) == ([], {}, [])


def test_median_of_interleaved_rounds(numpy_only):
    turns = []
    contenders = [
        Contender(numpy_only[0], name, lambda _, name=name: turns.append(name), [(np.zeros(3),)])
        for name in ("one", "other")
    ]
    clock.interleave(contenders, False, 0.0)
    assert [len(one.seconds) for one in contenders] == [3, 3]
    rounds = [name for name, previous in zip(turns, [None, *turns[:-1]], strict=True) if name != previous]
    assert rounds == ["one", "other"] * 4


def test_every_case_is_well_formed():
    for scale in (Scale(gpu, quick) for gpu in (False, True) for quick in (False, True)):
        cases = command.cases(scale)
        assert len({(one.primitive, one.name, str(one.make), str(one.run)) for one in cases}) == len(cases)
        for one in cases:
            assert hasattr(parprims, one.primitive)
            assert one.name.count(",") == 1
            assert set(one.peers) <= {*LIBRARIES, *OUTSIDE}
            assert set(one.libraries) <= set(LIBRARIES)
            assert one.unit in ("B/s", "key/s", "FLOP/s", "op/s")
            assert (one.work is None) == (one.unit == "B/s")
            assert one.ceiling in (None, "copy", "read") or one.ceiling.startswith("matmul ")


def test_cases_by_module_and_by_primitive():
    scale = Scale(gpu=False, quick=True)
    assert {"sum", "reduce", "vecdot"} <= {one.primitive for one in command.cases(scale, ["reduce"])}
    assert {one.primitive for one in command.cases(scale, ["max"])} == {"max"}
    with pytest.raises(SystemExit, match="unknown primitive bogus"):
        command.cases(scale, ["bogus"])


def test_partial_run_replaces_only_its_primitives(tmp_path):
    path = tmp_path / "results" / "device.json"
    old = [record(), record(method="native"), record(primitive="max", case="max, 2^20")]
    records.write_results(path, HEAD, old, {"sum", "max"})
    new = [record(seconds=2e-3)]
    records.write_results(path, {**HEAD, "commit": "fedcba"}, new, {"sum"})
    file = json.loads(path.read_text())
    assert file["records"] == [{"commit": HEAD["commit"], **old[2]}, {"commit": "fedcba", **new[0]}]
    assert file["header"]["commit"] == "fedcba"
    other = record(primitive="max", case="max, 2^10")
    records.write_results(path, HEAD, [other], {("max", "max, 2^10"), ("sum", "sum, 2^20")})
    assert [(one["primitive"], one["case"]) for one in json.loads(path.read_text())["records"]] == [
        ("max", "max, 2^20"),
        ("max", "max, 2^10"),
    ]
    records.write_results(path, HEAD, [], {"sum", "max"})
    assert json.loads(path.read_text())["records"] == []


def test_a_run_on_some_backends_keeps_the_records_of_others(tmp_path):
    path = tmp_path / "device.json"
    of_all = records.replaced("sum", "sum, 2^20") | records.replaced("max", "max, 2^20", whole=False)
    assert of_all == {"sum", ("max", "max, 2^20")}
    records.write_results(path, HEAD, [record(), record(backend="jax", seconds=3.0)], of_all)
    records.write_results(path, HEAD, [record(seconds=2.0)], records.replaced("sum", "sum, 2^20", ["numpy", "torch"]))
    assert [(one["backend"], one["seconds"]) for one in json.loads(path.read_text())["records"]] == [
        ("jax", 3.0),
        ("numpy", 2.0),
    ]


def results(path, *records, **head):
    path.write_text(json.dumps({"header": {**HEAD, **head}, "records": [{"commit": "abc", **one} for one in records]}))
    return str(path)


def test_a_row_may_not_lose_more_than_a_twentieth(tmp_path, capsys):
    peer = record(method="peer:torch")
    rows = [record(), record(dtype="int8"), record(backend="cupy", method="kernel"), peer]
    before = results(tmp_path / "before.json", *rows, {**peer, "case": "sum, 2^21"})

    def status(*changed):
        """Return the exit status, and what is printed, where these rows have replaced those before."""
        now = results(tmp_path / "now.json", *changed)
        return command.main(["--against", before, "--device-results", now]), capsys.readouterr().out

    same, printed = status(*rows)  # that a peer's row is gone is not our loss
    assert same == 0
    assert "3 rows compared, 0 lost, 0 gained" in printed
    assert status(record(seconds=1.049e-3), *rows[1:])[0] == 0
    lost, printed = status(record(seconds=1.051e-3), *rows[1:])
    assert lost == 1
    assert "LOST sum: sum, 2^20 float32: numpy array: 1.00 ms before, 1.05 ms now: 1.05x" in printed
    # Each row counts, whatever others gain; the largest loss comes first, and a machine that was slower is named.
    lost, printed = status(
        record(seconds=1e-4),
        record(dtype="int8", seconds=2e-3),
        {**rows[2], "seconds": 3e-3},
        {**peer, "seconds": 2e-3},
    )
    assert lost == 1
    assert printed.index("LOST sum: sum, 2^20 float32: cupy kernel") < printed.index("LOST sum: sum, 2^20 int8: numpy")
    assert "3 rows compared, 2 lost, 1 gained" in printed
    assert "its peers take 2.00x as long" in printed
    # A peer that became slower is no loss, a row of ours that is no longer measured is one.
    assert status(*rows[:3], {**peer, "seconds": 9.0})[0] == 0
    gone, printed = status(*rows[1:])
    assert gone == 1
    assert "LOST sum: sum, 2^20 float32: numpy array: 1.00 ms before, not measured now" in printed
    with pytest.raises(ValueError, match="cannot be held against Some Device"):
        command.main(["--against", before, "--device-results", results(tmp_path / "now.json", device="Other")])
    with pytest.raises(SystemExit, match="needs --device-results"):
        command.main(["--against", before])


def test_results_of_a_commit():
    if shutil.which("git") is None or not (records.ROOT / ".git").exists():
        pytest.skip("not in a clone")
    path = str(records.RESULTS / "nvidia-h200.json")
    head = against.results_at("HEAD", records.RESULTS / "nvidia-h200.json")
    found = against.verdict(head, head)
    assert (found.lost, found.gained, found.machine) == ([], [], 1)
    # No two rows go by the same name, which would hide one of them.
    assert found.compared == sum(one["method"] in OURS for one in head["records"])
    with pytest.raises(SystemExit, match="neither a file nor a commit"):
        command.main(["--against", "no-such-commit", "--device-results", path])


def test_commit_is_named():
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", records.commit())


def test_slug():
    assert records.slug("NVIDIA H200") == "nvidia-h200"
    assert records.slug("Intel(R) Xeon(R) CPU @ 2.20GHz") == "intel-r-xeon-r-cpu-2-20ghz"
    assert records.slug("") == "cpu"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (3.2e-9, "3.20 ns"),
        (9.996e-7, "1.00 us"),
        (0.0123, "12.3 ms"),
        (1.5, "1.50 s"),
        (4.38e12, "4.38 Ts"),
    ],
)
def test_si(value, text):
    assert tables.si(value, "s") == text


def test_results_table_shows_the_largest_of_each_family(tmp_path):
    found = [
        record(case="sum, 2^20"),
        record(case="sum, 2^24", shape=[2**24], rate=5e9),
        record(case="sum, 2^24", shape=[2**24], method="kernel", backend="cupy", seconds=5e-4, rate=8e9),
        record(case="sum, 2^24", shape=[2**24], method="peer:torch", backend="torch", seconds=1e-3, rate=4e9),
        record(case="sum call, 2^10", shape=[2**10], seconds=2e-6, ceiling_fraction=None),
        record(case="sum call, 2^10", shape=[2**10], seconds=3e-6, ceiling_fraction=None, backend="jax"),
    ]
    records.write_results(tmp_path / "device.json", HEAD, found, {"sum"})
    text = tables.results_table(tmp_path.glob("*.json"))
    assert text.startswith(f"## {HEAD['device']}\n")
    assert text.count("\n### ") == text.count("\n### sum\n") == 1
    rows = [line for line in text.splitlines() if line.startswith("|") and "---" not in line]
    assert rows[1:] == [
        "| sum, 2^24 | float32 | cupy | 5.00 GB/s | 8.00 GB/s |  | 4.00 GB/s torch | 2.00x | 25 % |",
        "| sum call, 2^10 | float32 | numpy | 2.00 us |  |  |  |  |  |",
        "| sum call, 2^10 | float32 | jax | 3.00 us |  |  |  |  |  |",
    ]
    few = tables.few_rows(found, [("sum", "sum, 2^24", "float32"), ("sum", "sum call, 2^10", "float32")])
    assert few.splitlines()[2:] == [
        "| `sum` | sum, 2^24 | float32 | 8.00 GB/s | 4.00 GB/s torch | 2.00x | 25 % |",
        "| `sum` | sum call, 2^10 | float32 | 2.00 us |  |  |  |",
    ]


def test_generated_part_of_a_page():
    begin, end = tables.between("a table")
    text = f"# Title\n\n{begin}\nold\n{end}\n\nRest\n"
    once = tables.with_part(text, "a table", "new\n")
    assert once == f"# Title\n\n{begin}\nnew\n{end}\n\nRest\n"
    with pytest.raises(ValueError, match="the page has no"):
        tables.with_part("# Title\n", "a table", "new\n")


def test_cases_on_one_thread():
    """Ours has one thread while it is called, and no longer; nothing but the kernel and Numba is timed."""
    from parprims._cpu import threads

    seen, before = [], threads.limit()

    def run(x, *, method):
        seen.append((threads.limit(), method))
        return x.sum()

    alone = on_one_thread(case(run=run, peers={"numpy": lambda np, x: np.sum(x), "numba": lambda _, x: x.sum()}))
    assert alone.name == "sum on one thread, 1000"
    assert (set(alone.peers), alone.libraries) == ({"numba"}, ("numpy",))
    assert alone.run(np.ones(3), method="kernel") == 3
    assert seen == [(1, "kernel")]
    assert threads.limit() == before
    cases = command.cases(Scale(gpu=False, quick=True), ["reduce", "scan", "tridiagonal", "matmul"])
    primitives = {one.primitive for one in cases if " on one thread, " in one.name}
    assert primitives >= {"sum", "reduce", "map_reduce", "cumulative_sum", "scan"}
    assert primitives >= {"linear_recurrence", "solve_tridiagonal", "matmul"}
    assert not any("thread, " in one.name for one in command.cases(Scale(gpu=True, quick=True)))


@pytest.mark.once
@pytest.mark.parametrize("module", [first_calls, small_calls], ids=lambda one: one.__name__)
def test_rows_of_overhead_are_named(module, capsys):
    with pytest.raises(SystemExit):
        module.main(["sum", "nosuch"])
    assert "there is no row 'nosuch': rows are " in capsys.readouterr().err

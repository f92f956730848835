"""The short comparison: what its page says and how, and what counts as a loss."""

import dataclasses
import re
import types

import numpy as np
import pytest

import parprims
from benches import __main__ as command
from benches.core import checks, progress, records
from benches.core.cases import LIBRARIES, OURS, OUTSIDE, Problem, Scale
from benches.core.clock import Contender
from benches.core.runs import Outcome, present_backends
from benches.page import ahead, short, short_cases

pytestmark = pytest.mark.once

TOY, CPU = Scale(gpu=False, quick=True), Scale(gpu=False, quick=False)
HEAD = {"device": "a machine", "cpus": 2, "date": "2026-01-02T03:04:05+00:00", "versions": {"numpy": "2.4"}}

WON = short.Cell({"array": 0.004, "kernel": 12.3, "native": 0.75}, "kernel", "numpy")
LOST = short.Cell({"array": 0.5, "native": 0.8}, "native", "scipy", loss=True)
LINES = [short.Line("sum", "numpy", [LOST, WON, WON]), short.Line("sort of rows", "numpy", [WON, None, LOST])]


def tables_of(text):
    """Return the tables of a page: runs of lines with columns."""
    return [part for part in text.split("\n\n") if " | " in part]


def last_words(text):
    """Return the sentences of the last paragraph."""
    return re.split(r"(?<=[.])\s+(?=[A-Z])", " ".join(text.split("\n\n")[-1].split()))


def test_one_page():
    """One table, in one convention that is said; losses are marked, and two sentences of conclusion come last."""
    text = short.text(LINES, HEAD, CPU)
    (table,) = tables_of(text)
    head, ways, one, other = table.splitlines()
    assert [part.split(":")[0].strip() for part in head.split("|")] == ["call", *short_cases.CLASSES]
    assert ways.split("|")[1].split() == [*OURS, "peer"]
    assert [part.split() for part in one.split("|")[1:]] == [
        ["0.50", "-", "0.80!", "scipy"],
        *[["<.01", "12.3*", "0.75", "numpy"]] * 2,
    ]
    assert other.split("|")[2].split() == ["-"] * 4
    assert "speed of ours over that of the best peer in the same call: above 1 ours is faster" in " ".join(text.split())
    first, second = last_words(text)
    assert first.startswith("Left to auto, 3 of 5 calls are over 10% faster than the best peer, 2 are over 10% slower")
    assert "0.80 at large sizes" not in first  # the median of 12.3 and 0.8
    assert second.endswith("judge speed by the other sizes: take the peer at large sizes for sort of rows.")
    assert "overhead" in second
    assert len(text.splitlines()) < 30 + len(LINES)
    assert max(map(len, text.splitlines())) <= 120


def test_nothing_lost():
    won = [short.Line("sum", "numpy", [LOST, WON, WON])]
    assert last_words(short.text(won, HEAD, CPU))[1].endswith("leave the choice to auto, which loses none of them.")


def test_toy_sizes_say_that_they_are():
    assert last_words(short.text(LINES, HEAD, TOY))[1].startswith("At these toy sizes only Python's overhead")


def test_page_end_to_end(tmp_path, capsys):
    """The command prints the page alone and writes nothing, but records to a path that is given."""

    def written():
        return {(path, path.stat().st_mtime_ns) for path in records.RESULTS.rglob("*")}

    before = written()
    options = ["--quick", "--primitive", "sum", "searchsorted"]
    assert command.main(options) == 0
    printed = capsys.readouterr()
    assert written() == before
    (table,) = tables_of(printed.out)
    assert [line.split()[0] for line in table.splitlines()[2:]] == ["sum", "searchsorted"]
    assert len(last_words(printed.out)) == 2
    assert "[call 1 of 6] sum, small" in printed.err
    path = tmp_path / "found.json"
    assert command.main([*options[:-1], "--device-results", str(path)]) == 0
    assert '"case": "sum, 2^8"' in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_what_the_page_has_not():
    with pytest.raises(SystemExit, match="the page has no bogus; it has argmax"):
        command.main(["--primitive", "bogus"])
    with pytest.raises(SystemExit, match="no call has a name that matches bogus"):
        command.main(["--case", "bogus"])


@pytest.mark.parametrize("row", short_cases.ROWS, ids=lambda row: row.label)
def test_calls_of_the_page(row):
    """Each call has known peers and a name, and the answers to it are those that the array form gives."""
    assert hasattr(parprims, row.primitive)
    assert row.label.startswith(row.primitive)
    assert "," not in row.label
    assert set(row.peers) <= {*LIBRARIES, *OUTSIDE}
    for k in short_cases.exponents(TOY):
        case = row.case(k)
        problem = case.make(np.random.default_rng(k))
        result = case.run(*problem.inputs, method="array")
        assert checks.gate(tuple(result) if isinstance(result, tuple) else result, problem) is None


def test_every_library_has_a_peer_somewhere():
    for name in LIBRARIES:
        assert sum(name in row.peers and name in row.libraries for row in short_cases.ROWS) > 10


@pytest.fixture
def numpy_only():
    return present_backends(["numpy"])


def outcome(numpy_only, **seconds):
    """Return the outcome of a case in which auto takes the kernel."""
    timed = [
        Contender(numpy_only[0], name.replace("_", ":"), None, [], list(samples)) for name, samples in seconds.items()
    ]
    return Outcome(short_cases.ROWS[0].case(4), [], {"numpy": "kernel"}, [], [], timed=timed)


@pytest.mark.parametrize(
    ("first", "second", "loss", "speed"),
    [
        ([2.0] * 4, [2.0] * 4, True, 0.5),
        ([2.0] * 4, [1.0] * 4, False, 1.0),  # it was noise, and the second time counts
        ([2.0] * 4, [0.9, 0.9, 2.0, 2.0, 2.0, 2.0], False, 0.5),  # slower in the middle, but it scatters
        ([1.05] * 4, None, False, 1 / 1.05),  # too little to be timed again
    ],
)
def test_a_loss_is_timed_twice(numpy_only, first, second, loss, speed):
    alone = []

    def again(two):
        assert second is not None
        alone.append([one.method for one in two])
        two[0].seconds, two[1].seconds = list(second), [1.0] * 4

    found = short.judged(outcome(numpy_only, kernel=first, peer_numpy=[1.0] * 4, peer_numba=[3.0]), "numpy", again)
    assert found.loss is loss
    assert found.peer == "numpy"
    assert found.speeds["kernel"] == pytest.approx(speed)
    assert alone == ([["kernel", "peer:numpy"]] if second else [])


def test_what_auto_takes_is_what_runs(numpy_only):
    """A way refused in a compiled program is not what auto takes there; left out, it is, and has no number."""
    found = outcome(numpy_only, array=[3.0], native=[1.0], peer_numpy=[1.0])
    assert short.judged(found, "numpy", lambda _: None).taken == "array"
    found.case = dataclasses.replace(found.case, skip={"numpy kernel": "it would take too long"})
    assert short.judged(found, "numpy", None).taken == "kernel"


def test_without_a_peer_there_is_no_number(numpy_only):
    assert short.judged(outcome(numpy_only, kernel=[1.0]), "numpy", None).words == ["-"] * 4
    assert short.judged(outcome(numpy_only), "numpy", None) is None


def test_what_would_take_too_long_is_left_out(numpy_only):
    """What auto takes and the best peer stay, however long they take."""
    found = outcome(numpy_only, kernel=[1.0], array=[0.1], native=[0.01], peer_numpy=[0.3], peer_numba=[0.4])
    assert set(short.too_long(found, 20)) == {"numpy array", "numpy numba"}


def test_a_wrong_result_fails_the_run_and_has_no_number(numpy_only, capsys):
    def make(rng, n):
        (x,) = short_cases.sum_problem(rng, n).inputs
        return Problem((x,), x.sum() + 1)

    row = dataclasses.replace(short_cases.ROWS[0], make=make)
    assert short.run([row], numpy_only, TOY, None, None) == 1
    printed = capsys.readouterr()
    assert "ERROR sum: sum, 2^4: numpy array WRONG" in printed.err
    (table,) = tables_of(printed.out)
    assert table.splitlines()[2].split("|")[1].split()[:3] == ["-"] * 3


def test_compiled_ahead(monkeypatch):
    """Compiling ahead calls each case at every size and ignores errors; at toy sizes no process is started."""
    called = []

    def run(x, *, method):
        called.append((method, x.size))
        raise parprims.MethodRefused("no kernel")

    loop = {"numba": lambda _, x: called.append(("numba", x.size)), "numpy": None}
    row = dataclasses.replace(short_cases.ROWS[0], run=run, peers=loop)
    monkeypatch.setattr(ahead, "ROWS", (row,))
    ahead.call_once(0, (4, 5))
    assert called == [("kernel", 16), ("numba", 16), ("kernel", 32), ("numba", 32)]
    monkeypatch.setattr(ahead.concurrent.futures, "ProcessPoolExecutor", None)
    ahead.compile_ahead([row, row], TOY)


def test_counter(capsys, monkeypatch):
    """A terminal sees one line that changes; elsewhere a line comes now and then."""
    items = ["a", "b", "c"]
    assert list(progress.progress(items, "call")) == items
    assert capsys.readouterr().err == "[call 1 of 3] a\n"
    monkeypatch.setattr(progress.sys, "stderr", types.SimpleNamespace(isatty=lambda: True, write=print, flush=print))
    assert list(progress.progress(items, "call")) == items
    shown = capsys.readouterr().out
    assert "[call 3 of 3] c" in shown
    assert shown.rstrip().endswith(progress.CLEAR.strip())

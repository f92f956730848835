"""The page of promises, docs/trust.md: its tests exist, its figures are those recorded, its bounds those documented."""

import inspect
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

import parprims
from tests.primitives.matmul import test_matmul
from tests.primitives.recurrence import test_recurrence
from tests.primitives.reduce import test_reduce
from tests.primitives.scan import test_scan
from tests.primitives.sort import test_sort
from tests.primitives.tridiagonal import test_tridiagonal
from tests.support.contract import eps, random
from tests.trust import page, recorder

pytestmark = pytest.mark.once


def plain(text):
    """Return a text in one line, without the marks of Markdown that its words may be set in."""
    return " ".join(text.replace("**", "").split())


@pytest.mark.parametrize("promise", page.PROMISES, ids=lambda promise: promise.sentence.split(":")[0])
def test_promise_is_made_and_kept(promise):
    assert promise.tests
    assert [test for test in promise.tests if not page.exists(test)] == []
    if promise.file:
        assert plain(promise.words) in plain((page.ROOT / promise.file).read_text())


def test_every_fault_has_a_test_or_a_reason():
    assert list(page.FAULTS) == list(range(1, 30))
    for number, fault in page.FAULTS.items():
        assert bool(fault.tests) != bool(fault.why_not), number
        assert [test for test in fault.tests if not page.exists(test)] == [], number


def test_a_missing_test_is_noticed():
    assert page.exists("tests/project/test_promises.py::test_a_missing_test_is_noticed")
    assert page.exists("tests/support/contract.py::Contract::test_axis")
    assert not page.exists("tests/project/test_promises.py::test_nothing")
    assert not page.exists("tests/support/contract.py::test_axis")
    assert not page.exists("tests/test_nothing.py::test_axis")


def test_every_primitive_inherits_the_laws_or_has_its_own():
    assert set(page.keepers()) >= {
        f"tests/primitives/{name}/test_{name}.py" for name in ("recurrence", "reduce", "scan", "sort", "tridiagonal")
    }
    contract = page.functions("tests/support/contract.py")
    laws = {name.removeprefix("Contract::") for name in contract if "::test_" in name}
    own = {name.removeprefix("TestMatmul::") for name in page.functions("tests/primitives/matmul/test_matmul.py")}
    elsewhere = {"test_axis", "test_unknown_method_named", "test_bad_axis_named", "test_no_array_named", "test_jit"}
    assert laws - own - elsewhere == {"test_mixed_namespaces_named"}  # which TestArguments has


def test_page_is_up_to_date():
    if not page.PAGE.exists():
        pytest.skip("not in a clone")
    assert page.PAGE.read_text() == page.text(), "run python -m tests.trust"


@pytest.mark.parametrize("name", page.recorded())
def test_no_error_exceeds_its_bound(name):
    rows = page.recorded()[name]["records"]
    assert [row for row in rows if not row["ratio"] <= 1] == []
    public = [(one, getattr(parprims, one)) for one in parprims.__all__]
    takes_methods = {
        one for one, it in public if inspect.isfunction(it) and "method" in inspect.signature(it).parameters
    }
    if name == "cpu":  # a GPU's record may be older than a primitive
        missing = takes_methods - {row["primitive"] for row in rows}
        assert not missing, "pytest tests/primitives/<name> --record-errors FILE && python -m tests.trust --add FILE"


def test_a_new_primitive_is_added_to_a_record(tmp_path, monkeypatch):
    """What is on record stays; rows of a primitive that is not are taken over, and the page says from which commit."""
    monkeypatch.setattr(page, "RECORDS", tmp_path)
    monkeypatch.setattr(page, "PAGE", tmp_path / "trust.md")

    def row(primitive, ratio):
        return {**dict(zip(recorder.KEY, (primitive, "float32", "array", "numpy"), strict=True)), "ratio": ratio}

    def file(name, commit, *rows):
        body = {"header": {"device": "CPU", "versions": {"numpy": "2"}, "commit": commit, "date": "2026-01-01"}}
        body["records"] = [{**one, "checks": 1, "exact": 0, "test": ""} for one in rows]
        (tmp_path / name).write_text(json.dumps(body))
        return str(tmp_path / name)

    page.main([file("first", "aaa", row("sum", 0.5))])
    page.main(["--add", file("second", "bbb", row("sum", 0.25), row("mean", 0.75))])
    ((head, rows),) = [(one["header"], one["records"]) for one in page.recorded().values()]
    assert [(one["primitive"], one["ratio"]) for one in rows] == [("mean", 0.75), ("sum", 0.5)]
    assert (head["commit"], head["added"]) == ("aaa", {"mean": "bbb"})
    assert "commit aaa (`mean`: bbb); numpy 2." in page.PAGE.read_text()


def roundings(dtype):
    """Return eps of the dtype computed in, and what rounding the result once more costs, for a result of size 1."""
    working = "float32" if dtype in ("float16", "bfloat16") else dtype
    return eps(working), eps(dtype) / 2 if working != dtype else 0.0


def documented_sum(_, x):
    unit, once = roundings(x.dtype.name)
    additions = 2 * math.ceil(math.log2(x.shape[-1]))
    return (additions * unit / 2 + once) * abs(x.astype(complex)).sum(axis=-1)


def documented_scan(method, x):
    n, (unit, once) = x.shape[-1], roundings(x.dtype.name)
    additions = {
        "array": n / 2048 + 50 if x.dtype.kind == "c" else n / 4096 + 40,
        "native": n,
        "kernel": n / 256 + 100,
    }[method]
    return (additions * unit / 2 + once) * np.cumsum(abs(x.astype(complex)), axis=-1)


def documented_recurrence(_, a, b):
    unit, once = roundings(a.dtype.name)
    steps = 2 * a.shape[-1] * (3 if a.dtype.kind == "c" else 1)
    sizes = (abs(one.astype(complex)).astype(np.longdouble) for one in (a, b))
    return (steps * unit + once) * test_scan.recur(*sizes, axis=-1)


def documented_product(method, a, b, tile=None):
    k, (unit, once) = a.shape[-1], roundings(a.dtype.name)
    steps = math.ceil(math.log2(tile)) + math.ceil(k / tile) if method == "array" else k + 1
    steps += 4 * (method == "kernel" and a.dtype.name == "float32")
    size = abs(a.astype(complex)) @ abs(b.astype(complex))
    return ((4 if a.dtype.kind == "c" else 1) * steps * unit + once) * size


def documented_dominant(_, lower, diag, upper, x):
    t = np.max((abs(lower) + abs(upper)) / abs(diag), axis=-1, keepdims=True)
    unit = eps(diag.dtype.name)
    return 8 * math.ceil(math.log2(x.shape[-1])) / (1 - t) * unit * np.max(abs(x), axis=-1, keepdims=True)


def contract(test_class):
    def bound(method, *inputs):
        one = test_class()
        one.ran = method
        return one.bound(*inputs, axis=-1)

    return bound


def dominant_bound(_, lower, diag, upper, x):
    return test_tridiagonal.dominant_bound(lower, diag, upper, x, -1)


# The function, words of its docstring, the formula that they are, the bound that the tests hold results against, the
# methods it is for, and the shapes and number of inputs.
BOUNDS = {
    "sum": (
        parprims.reduce,
        "each term of a sum takes part in at most ceil(log2 n) additions by array and by kernel. Each addition errs by "
        "at most "
        "half an ulp of sum(abs(x)). 16-bit floats are combined in float32 and rounded once",
        documented_sum,
        contract(test_reduce.TestSum),
        ("array", "kernel"),
        1,
    ),
    "scan": (
        parprims.scan,
        "each term of a sum takes part in at most n / 4096 + 40 additions by array and by kernel on a CPU, or n / 2048 "
        "+ 50 for complex numbers; n / 256 + 100 by kernel on a GPU (n / 2^18 + 100 along one long float32 axis); and "
        "n by a library that adds one element after another. Each addition errs by at most half an ulp of "
        "sum(abs(x[:i+1])). 16-bit floats are combined in float32 and rounded once",
        documented_scan,
        contract(test_scan.TestCumulativeSum),
        ("array", "native", "kernel"),
        1,
    ),
    "linear_recurrence": (
        parprims.linear_recurrence,
        "within 2n units in the last place of the same recurrence for |a| and |b|, as in the sequential loop (three "
        "times that for complex numbers). 16-bit floats are computed in float32 and rounded once",
        documented_recurrence,
        contract(test_recurrence.TestLinearRecurrence),
        ("array", "native", "kernel"),
        2,
    ),
    "matmul": (
        parprims.matmul,
        "in units of eps sum |a| |b|: ceil(log2 k) + 1 by array, one more if tile is given; k + 1 by native and "
        "kernel, but k + 5 if the kernel tensor multiplies float32",
        documented_product,
        test_matmul.bound,
        ("array", "native", "kernel"),
        2,
    ),
    "solve_tridiagonal": (
        parprims.solve_tridiagonal,
        "then x is within about 8 ceil(log2 n) / (1 - t) units in the last place of max |x|",
        documented_dominant,
        dominant_bound,
        ("array", "native", "kernel"),
        4,
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds_are_those_documented(name, rng):
    """What tests allow is at most what the docstring says, formula for formula."""
    function, words, documented, bound, methods, count = BOUNDS[name]
    assert words in plain(function.__doc__)
    for dtype in ("float32", "float64", "complex64", "float16", "bfloat16"):
        if name == "solve_tridiagonal" and dtype.endswith("float16"):
            continue  # the docstring's figure is for the precision computed in
        if dtype == "bfloat16":
            pytest.importorskip("ml_dtypes")
        for method in methods:
            for n in (2, 3, 33, 1000):
                shapes = [(3, n), (n, 5)] if name == "matmul" else [(2, n)] * count
                inputs = [random(rng, shape, dtype) for shape in shapes]
                if count == 4:
                    inputs = [*test_tridiagonal.dominant(rng, (2, n), dtype)[:3], inputs[3]]
                tile = {"tile": 16} if name == "matmul" and method == "array" and n >= 16 else {}
                if name == "matmul" and not tile and method == "array":
                    tile = {"tile": n}
                allowed = np.asarray(bound(method, *inputs, **tile), np.float64)
                stated = np.asarray(documented(method, *inputs, **tile), np.float64)
                smallest = 1e-7 if dtype.endswith("float16") else 1e-37  # bounds allow this for what underflows
                assert np.all(allowed <= (1 + 1e-6) * stated + smallest), (dtype, method, n, np.max(allowed / stated))
                assert np.all(allowed > 0)


def test_sorts_are_exact():
    assert "Error: none; elements are moved unchanged" in plain(parprims.sort.__doc__)
    assert test_sort.Sorting().bound() == 0


def test_recorded_errors(tmp_path):
    """Record a run of two tests in two processes, one of which needs more than its bound."""
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(
        "import numpy as np, parprims, pytest\n"
        "from tests.support.contract import compare\n"
        "@pytest.mark.parametrize('off', [1, 2, 4])\n"
        "def test_sum(backend, run, off):\n"
        "    x = np.ones((2, 4), np.float32)\n"
        "    result = run(parprims.sum, x, axis=1, method='array')\n"
        "    compare(backend, result, np.array([4.0, 4.0 + off]), np.array([0.0, 3.0]))\n"
        "def test_max(backend, run):\n"
        "    x = np.arange(4)\n"
        "    run(parprims.min, x, method='native')\n"
        "    compare(backend, run(parprims.max, x, method='native'), np.int64(3))\n"
        "def test_part(backend, run):\n"
        "    compare(backend, run(parprims.scan, np.ones(9), method='array')[:2], np.array([1.0, 2.5]), 1)\n"
    )
    path = tmp_path / "errors.json"
    words = ["-q", "-n", "2", "--backend", "numpy", "--record-errors", str(path), "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(tmp_path), "--rootdir", str(page.ROOT), *words],
        cwd=page.ROOT,
        capture_output=True,
        text=True,
    )
    assert "1 failed, 4 passed" in run.stdout, run.stdout + run.stderr
    rows = {(row["primitive"], row["method"]): row for row in json.loads(path.read_text())["records"]}
    assert set(rows) == {("sum", "array"), ("max", "native"), ("scan", "array")}
    found = rows["sum", "array"]
    assert (found["checks"], found["exact"], found["dtype"], found["backend"]) == (3, 0, "float32", "numpy")
    assert found["ratio"] == pytest.approx(4 / 3)
    assert found["test"].endswith("test_sum[numpy-4]")
    assert (rows["max", "native"]["exact"], rows["max", "native"]["ratio"]) == (1, 0)
    assert rows["scan", "array"]["ratio"] == 0.5
    assert "| `sum` | float32 | 1.3 numpy |  |  | 3 |" in list(page.table(rows.values()))
    assert "| `max` | int64 |  | exact |  | 1 |" in list(page.table(rows.values()))


def test_records_are_merged():
    one, other = recorder.Errors(), recorder.Errors()
    one.on = other.on = True
    one.add("sum", "array", "float32", "numpy", [0.5, 0.0], [1.0, 0.0])
    other.add("sum", "array", "float32", "numpy", 0.75, 1.0)
    other.add("sum", "array", "float32", "torch", 0.0, 0.0)
    one.join(other.records())
    assert [(row["backend"], row["ratio"], row["checks"], row["exact"]) for row in one.records()] == [
        ("numpy", 0.75, 2, 0),
        ("torch", 0.0, 1, 1),
    ]
    one.add("sum", "array", "float32", "torch", 1e-9, 0.0)  # an exact result was asked for
    assert one.records()[1]["ratio"] == math.inf


def test_suite_starts_beside_a_plugin_that_warns(tmp_path):
    """As pytest-benchmark does where pytest-xdist is used."""
    (tmp_path / "warns.py").write_text(
        "import warnings\ndef pytest_configure(config):\n    warnings.warn('benchmarks are disabled')\n"
    )
    described = tmp_path / "pytest_benchmark-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-benchmark\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[pytest11]\nbenchmark = warns\n")
    run = subprocess.run(
        [sys.executable, *"-m pytest --collect-only -q -p no:cacheprovider tests/dispatch/test_dispatch.py".split()],
        cwd=page.ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), *sys.path))},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr

"""The times of all methods of a caller's call."""

import re

import numpy as np
import pytest

import parprims
from parprims._dispatch.dispatch import Checked, Method, Methods, directly, exact
from parprims._tools import comparison


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Take few samples."""
    monkeypatch.setattr(comparison, "_SAMPLE", 1e-5)
    monkeypatch.setattr(comparison, "_BUDGET", 1e-4)


def test_every_method_is_timed_or_refuses(backend):
    x = backend.asarray(np.arange(30, dtype=np.float32))
    calls = (
        (parprims.sum, (x,), {}),
        (parprims.scan, ((x, x), "affine"), {"axis": 0}),
        (parprims.linear_recurrence, (0.5, x), {"initial": 1.0}),
        (parprims.sort_by_key, (x, x), {"descending": True}),
    )
    for function, args, options in calls:
        found = parprims.compare(function, *args, **options)
        listed = parprims.methods(function, *args, **options)
        assert {*found.seconds, *found.refusals} == {*listed}
        assert found.auto == next(name for name, reason in listed.items() if reason is None)
        assert all(0 < one < 60 for one in found.seconds.values())
        assert found.seconds[found.best] == min(found.seconds.values())
        for name in found.refusals:
            with pytest.raises(parprims.MethodRefused, match=re.escape(found.refusals[name])):
                function(*args, method=name, **options)


def test_printed():
    text = str(parprims.compare(parprims.sum, np.ones((2, 3)), axis=1))
    first, head, *rows = text.splitlines()
    assert first == "sum(float64[2, 3]) of numpy"
    assert head.split() == ["method", "time", "over", "the", "best"]
    assert sum("taken by auto" in row for row in rows) == 1
    assert rows[0].split()[0] in ("kernel", "native", "array")
    assert rows[0].split()[3] == "1.00"
    assert repr(parprims.compare(parprims.sum, np.ones(3))).startswith("sum(float64[3])")


def test_a_method_that_raises_is_told(monkeypatch):
    from parprims._dispatch.primitive import declared

    def fails(*_):
        raise MemoryError("no room for it\nat all")

    own = declared["sum"].methods
    broken = Methods("sum", own.departs, **{**own._methods, "array": Method(directly(fails))})
    monkeypatch.setattr(declared["sum"], "methods", broken)
    found = parprims.compare(parprims.sum, np.ones(7))
    assert found.refusals["array"] == "raised MemoryError: no room for it"
    assert "array refuses: raised MemoryError" in str(found)


def test_a_loss_shows():
    """What auto takes is marked wherever it comes."""
    found = comparison.Comparison("call", {"native": 2e-6, "array": 1.5e-3}, {"kernel": "no GPU"}, "array")
    assert str(found).splitlines()[1:] == [
        "method  time     over the best",
        "native  2.00 us  1.00",
        "array   1.50 ms  750.00         taken by auto",
        "kernel refuses: no GPU",
    ]


def test_wrong_calls():
    with pytest.raises(TypeError, match=r"^function must be a primitive of parprims"):
        parprims.compare(np.add, np.ones(3), np.ones(3))
    with pytest.raises(TypeError, match=r"^method must not be given"):
        parprims.compare(parprims.sum, np.ones(3), method="array")
    with pytest.raises(IndexError, match="axis"):
        parprims.compare(parprims.sum, np.ones(3), axis=7)


def test_a_call_that_nothing_serves_raises():
    methods = Methods("toy", exact, only=Method(directly(lambda *_: None), lambda *_: "it is a toy"))

    def toy(x, method="auto"):
        return methods(method, np, Checked(arrays=(x,)))

    with pytest.raises(parprims.MethodRefused, match="it is a toy"):
        parprims.compare(toy, np.ones(3))

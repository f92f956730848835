"""The fuzz finds faults, by the line that it prints, and finds none here."""

import inspect

import pytest

import parprims
from tests import conftest
from tests.fuzz import run as fuzz
from tests.fuzz.judge import leaves, snapshot

BACKENDS = ("numpy", "array-api-strict")


def test_no_violation():
    found = fuzz.run(list(BACKENDS), 300, seed=7, log=None)
    assert not found, fuzz.report(found)


def spoiled_sum(original):
    def sum(x, /, **options):
        result = original(x, **options)
        return result + result.dtype.type(1)

    return sum


FAULTS = {
    "wrong result": ("sum", spoiled_sum),
    "a result shares memory with an input": ("sort", lambda _: lambda x, **_options: x),
    "an error names no argument": ("max", lambda original: nameless(original)),
    "an error of another kind": ("scan", lambda original: lambda *args, **options: original(*args, **options).missing),
    "a hostile call is served": ("any", lambda original: lambda x, **options: forgiving(original, x, options)),
}


def nameless(original):
    def max(x, /, *, axis=None, keepdims=False, method="auto"):
        try:
            return original(x, axis=axis, keepdims=keepdims, method=method)
        except TypeError:
            raise TypeError("something is wrong") from None

    return max


def forgiving(original, x, options):
    try:
        return original(x, **options)
    except (TypeError, ValueError):
        return None


@pytest.mark.parametrize("violation", FAULTS)
def test_a_fault_is_found_and_told(violation, monkeypatch, capsys):
    name, fault = FAULTS[violation]
    original = getattr(parprims, name)
    broken = fault(original)
    broken.__signature__ = inspect.signature(original)
    monkeypatch.setattr(parprims, name, broken)
    monkeypatch.setattr(fuzz, "FUNCTIONS", (name,))
    assert fuzz.main(["--backend", "numpy", "--calls", "60", "--seed", "3"]) == 1
    told = capsys.readouterr().out
    assert f"{violation}: " in told
    assert "python -m tests.fuzz --backend numpy --seed 3 --call " in told


def test_the_same_seed_makes_the_same_calls(tmp_path):
    backend = conftest._backend("numpy")
    for number in range(40):
        one, other = (fuzz.single_call(backend, 5, number, str(tmp_path)) for _ in range(2))
        assert one.text() == other.text()
        first, second = ([snapshot(backend, x) for x in leaves(call.args)] for call in (one, other))
        assert first == second

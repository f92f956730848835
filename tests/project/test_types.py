"""The stub of the public types is made from what is there; what the check of types tells."""

import inspect

import pytest

from parprims._dispatch.dispatch import primitives
from tests.checks import public_types, stub

pytestmark = pytest.mark.once


def test_the_stub_is_that_of_the_signatures():
    assert stub.STUB.read_text() == stub.text(), "run python -m tests.checks.stub"


def test_what_the_stub_is_told_is_needed():
    """No type stays behind when its function or parameter is gone."""
    assert {*stub.FORMS, *stub.OWN_PARAMETERS} <= {*primitives}
    known = {name for one in primitives.values() for name in inspect.signature(one).parameters}
    assert {*stub.PARAMETERS} <= known


def test_what_differs_is_told():
    """An error that is not expected, and one that is missing, are both told."""
    text = "right\ncall()  # wrong\ncall()  # wrong\n"
    assert public_types.expected(text) == {2, 3}
    file = f"tests/checks/{public_types.USES.name}"
    printed = f"{file}:1: error: no such name  [x]\n{file}:3: error: y\n"
    assert public_types.differences("mypy", public_types.by_mypy(printed), {2, 3}) == [
        "mypy: line 1: no such name  [x]",
        "mypy: line 2: no error",
    ]
    report = '{"generalDiagnostics": [{"severity": "error", "message": "m", "range": {"start": {"line": 1}}}]}'
    assert public_types.by_pyright(report) == {2: "m"}

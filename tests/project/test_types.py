"""The stub of the public types says what is there: the same functions, parameters, defaults and names."""

import ast
import inspect
from pathlib import Path
from typing import Any

import pytest

import parprims
from parprims._operators.operator import BUILT_IN
from parprims._primitives.matmul import call as call_matmul
from parprims._primitives.matmul import tiles as matmul_tiles
from parprims._primitives.order_statistics.call import INTERPOLATIONS
from parprims._primitives.tridiagonal import call as call_tridiagonal
from parprims._primitives.tridiagonal import public as public_tridiagonal
from tests import check_types

pytestmark = pytest.mark.once

STUB = ast.parse(Path(parprims.__file__).with_suffix(".pyi").read_text())
FUNCTIONS: dict[str, list[ast.FunctionDef]] = {}
for _node in STUB.body:
    if isinstance(_node, ast.FunctionDef):
        FUNCTIONS.setdefault(_node.name, []).append(_node)


def literals(text: str) -> list[tuple[str, ...]]:
    """Return the names in every Literal that begins with this one."""
    found = [one for one in ast.walk(STUB) if isinstance(one, ast.Subscript) and ast.unparse(one.value) == "Literal"]
    names = [tuple(entry.value for entry in ast.walk(one.slice) if isinstance(entry, ast.Constant)) for one in found]
    return [one for one in names if one[0] == text]


def test_all_names():
    imported = {name.name for node in STUB.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert set(parprims.__all__) <= imported | set(FUNCTIONS)
    (listed,) = (
        node.value for node in STUB.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert ast.literal_eval(listed) == parprims.__all__


def parameters(node: ast.FunctionDef) -> list[tuple[str, Any, str]]:
    """Return the name, the kind and the default of every parameter in the stub."""
    kinds, found = inspect.Parameter, []
    positional = [*node.args.posonlyargs, *node.args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(node.args.defaults)) + [*node.args.defaults]
    for at, (one, default) in enumerate(zip(positional, defaults, strict=True)):
        only = at < len(node.args.posonlyargs)
        found.append((one.arg, kinds.POSITIONAL_ONLY if only else kinds.POSITIONAL_OR_KEYWORD, default))
    if node.args.vararg:
        found.append((node.args.vararg.arg, kinds.VAR_POSITIONAL, None))
    found += [
        (one.arg, kinds.KEYWORD_ONLY, default)
        for one, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    ]
    return [(name, kind, "" if default is None else repr(ast.literal_eval(default))) for name, kind, default in found]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_signature(name):
    """The last form of an overloaded function has all defaults; the others may ask for what it has."""
    signature = inspect.signature(getattr(parprims, name)).parameters.values()
    empty = inspect.Parameter.empty
    real = [(one.name, one.kind, "" if one.default is empty else repr(one.default)) for one in signature]
    forms = [parameters(node) for node in FUNCTIONS[name]]
    own = [form for form in forms if [one[:2] for one in form] == [one[:2] for one in real]]
    assert own, forms
    assert real in own or len(forms) > 1
    for form in own:
        for (option, _, default), (_, _, wanted) in zip(form, real, strict=True):
            assert default in ("", wanted), option
    assert any(all(default == wanted for (*_, default), (*_, wanted) in zip(form, real, strict=True)) for form in own)


@pytest.mark.parametrize(
    "names",
    [
        ("auto", *public_tridiagonal._SOLVE_TRIDIAGONAL.methods._methods),
        call_tridiagonal.PIVOTS,
        call_matmul.PRECISIONS,
        matmul_tiles.KERNELS,
        INTERPOLATIONS,
        tuple(BUILT_IN),
    ],
    ids=lambda names: names[-1],
)
def test_names_of_options(names):
    found = [one for one in literals(names[0]) if set(one) == set(names)]
    assert found


def test_what_differs_is_told():
    """An error that is not expected, and one that is missing, are both told."""
    text = "right\ncall()  # wrong\ncall()  # wrong\n"
    assert check_types.expected(text) == {2, 3}
    printed = f"tests/{check_types.USES.name}:1: error: no such name  [x]\ntests/{check_types.USES.name}:3: error: y\n"
    assert check_types.differences("mypy", check_types.by_mypy(printed), {2, 3}) == [
        "mypy: line 1: no such name  [x]",
        "mypy: line 2: no error",
    ]
    report = '{"generalDiagnostics": [{"severity": "error", "message": "m", "range": {"start": {"line": 1}}}]}'
    assert check_types.by_pyright(report) == {2: "m"}

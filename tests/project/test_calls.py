"""A call is data: what travels together is a record, and long lists of arguments have names.

The texts of kernels for CPUs are left out: calls in loops are inlined, and templates call functions of Numba.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import parprims

SOURCE = Path(parprims.__file__).parent
FILES = [one for one in SOURCE.rglob("*.py") if not one.name.endswith("_loops.py") and one.parent.name != "templates"]
TREES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in FILES}
RECORDS = {
    "Launch", "Plan", "Struct", "_Node", "Arguments", "Lines", "Config", "ScanOptions", "_Case",  # a row of fields
    "zip", "reduce", "restarted",  # arguments of one kind
    "info", "nvrtcCreateProgram", "c_void_p * 5", "call", "graph_scratch", "first",  # of other libraries
}  # fmt: skip
"""What may be given more than four arguments by their places."""
MOST_PARAMETERS, MOST_PLACES = 7, 4

pytestmark = pytest.mark.once


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path, tree in TREES.items():
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def parameters(node: ast.FunctionDef) -> list[ast.arg]:
    given = node.args
    return [one for one in (*given.posonlyargs, *given.args, *given.kwonlyargs) if one.arg not in ("self", "cls")]


def test_few_parameters():
    long = {f"{path}: {node.name}" for path, node in functions() if len(parameters(node)) > MOST_PARAMETERS}
    assert {one for one in long if one.partition(": ")[2] not in parprims.__all__} == set()


def test_few_arguments_by_place():
    long = {
        (path, name)
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and len(node.args) > MOST_PLACES
        if (name := ast.unparse(node.func).rpartition(".")[2]) not in RECORDS and not name.startswith("scope[")
    }
    assert long == set()


def test_records_have_types():
    """A checked call, named by a letter or as `call`, has the type of its record."""
    names = ("c", "p", "s", "h", "f", "r", "call")
    untyped = {
        f"{path}: {node.name}"
        for path, node in functions()
        for one in parameters(node)
        if one.arg in names and one.annotation is not None and ast.unparse(one.annotation) == "Any"
    }
    assert untyped == set()

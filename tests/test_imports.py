"""Who imports whom: no circle, no private name of another module, and late imports only where they are explained."""

import ast
import graphlib
from pathlib import Path

import pytest

import parprims

SOURCE = Path(parprims.__file__).parent
FILES = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}

pytestmark = pytest.mark.once


def imports(tree: ast.AST) -> set[tuple[str, str]]:
    """Return (module, name) of every import of this package in a tree, the name empty for that of a whole module."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "parprims":
            for one in node.names:
                whole = f"{node.module}.{one.name}"
                found.add((whole, "") if whole in FILES or f"{whole}.__init__" in FILES else (node.module, one.name))
        elif isinstance(node, ast.Import):
            found |= {(one.name, "") for one in node.names if one.name.partition(".")[0] == "parprims"}
    return found


def parsed(path: Path) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return what a file imports when it is imported, and what only later."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = set().union(*(imports(one) for one in functions)) if functions else set()
    return imports(tree) - late, late


def test_no_circle():
    """Nor one by imports that functions make."""
    graph = {}
    for name, path in FILES.items():
        at_once, late = parsed(path)
        graph[name.removesuffix(".__init__")] = {module for module, _ in at_once | late if module != "parprims"}
    assert sum(map(len, graph.values())) > 100
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


def test_no_private_name():
    private = [
        (name, module, one)
        for name, path in FILES.items()
        for module, one in set().union(*parsed(path))
        if one.startswith("_") and not one.startswith("__")
    ]
    assert not private


def test_late_imports():
    """Modules that know all primitives are imported by functions of one module above them, engines by their package.

    What compiles ahead calls all that is public.
    """
    late = {(name.removeprefix("parprims."), module) for name, path in FILES.items() for module, _ in parsed(path)[1]}
    assert late == {
        ("_behind", "parprims._torch_compile.ops"),
        ("_behind", "parprims._devices"),
        ("_behind", "parprims._derivatives.torch_rules"),
        ("_behind", "parprims._derivatives.jax_rules"),
        ("_devices.__init__", "parprims._devices.dask_chunks"),
        ("_devices.__init__", "parprims._devices.jax_mesh"),
        ("_devices.__init__", "parprims._devices.torch_groups"),
        ("_devices.__init__", "parprims._devices.jax_auto"),
        ("_warm", "parprims"),
    }

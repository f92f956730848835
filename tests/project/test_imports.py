"""Who imports whom: no circle, no private name of another module, and late imports only where they are explained."""

import ast
import functools
import graphlib
from pathlib import Path

import pytest

import parprims

SOURCE = Path(parprims.__file__).parent
FILES = {".".join(path.relative_to(SOURCE.parent).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}

pytestmark = pytest.mark.once


def imports(tree: ast.AST) -> set[tuple[str, str]]:
    """Return (module, name) of every import of this package in a tree, the name empty for that of a whole module.

    Imports that only type checkers make are none.
    """
    found = set()
    checkers = [one for one in ast.walk(tree) if isinstance(one, ast.If) and ast.unparse(one.test) == "TYPE_CHECKING"]
    unseen = {node for one in checkers for node in ast.walk(one)}
    for node in ast.walk(tree):
        if node in unseen:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "parprims":
            for one in node.names:
                whole = f"{node.module}.{one.name}"
                found.add((whole, "") if whole in FILES or f"{whole}.__init__" in FILES else (node.module, one.name))
        elif isinstance(node, ast.Import):
            found |= {(one.name, "") for one in node.names if one.name.partition(".")[0] == "parprims"}
    return found


@functools.cache
def parsed(path: Path) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return what a file imports when it is imported, and what only later."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = set().union(*(imports(one) for one in functions)) if functions else set()
    return imports(tree) - late, late


def test_no_circle():
    """Nor one by imports that functions make, but for those of the module that imports higher rooms."""
    graph = {}
    for name, path in FILES.items():
        at_once, late = parsed(path)
        late = set() if name == "parprims._dispatch.registry" else late
        graph[name.removesuffix(".__init__")] = {module for module, _ in at_once | late if module != "parprims"}
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
        ("_dispatch.registry", "parprims._torch_compile.ops"),
        ("_dispatch.registry", "parprims._devices"),
        ("_dispatch.registry", "parprims._derivatives.torch_rules"),
        ("_dispatch.registry", "parprims._derivatives.jax_rules"),
        ("_devices.__init__", "parprims._devices.dask_chunks"),
        ("_devices.__init__", "parprims._devices.jax_mesh"),
        ("_devices.__init__", "parprims._devices.torch_groups"),
        ("_devices.__init__", "parprims._devices.jax_auto"),
    }


ROOMS = (
    "_core",
    "_libraries",
    "_compiling",
    "_operators",
    "_cuda",
    "_cpu",
    "_dispatch",
    "_primitives",
    "_derivatives",
    "_torch_compile",
    "_devices",
    "_tools",
)
"""The folders of the package, from the lowest: a module imports from its own room and from lower ones."""

UPWARD = {
    ("_dispatch.registry", "_derivatives"),  # the one module that imports higher rooms, by functions
    ("_dispatch.registry", "_torch_compile"),
    ("_dispatch.registry", "_devices"),
    ("_dispatch.derivative_rules", "_primitives"),  # the records of reductions and sorts
    ("_operators.in_place", "_dispatch"),  # a call that nobody watches
}
"""The only imports of a higher room: (module, room)."""

MOST_FILES = 12
"""The most files in a folder."""


def room_of(module: str) -> str:
    """Return the room of a module of the package, empty for the package itself."""
    return [*module.removeprefix("parprims").split("."), "", ""][1]


def test_rooms_import_lower_rooms():
    """A module at the top of the package may import from all rooms."""
    upward = {
        (name.removeprefix("parprims."), room_of(module))
        for name, path in FILES.items()
        for module, _ in set().union(*parsed(path))
        if room_of(name) in ROOMS and (room_of(module) or room_of(f"{module}.")) in ROOMS
        if ROOMS.index(room_of(module)) > ROOMS.index(room_of(name))
    }
    assert upward == UPWARD


def test_loops_are_read_as_text():
    """The loops of kernels for CPUs import declarations and other loops; no module that Python runs imports either."""
    read = {name for name in FILES if name.endswith("_loops")}
    readers = read | {f"parprims._cpu.templates.{name}" for name in ("entry", "handler")}
    importers = {name: {module for module, _ in set().union(*parsed(path))} for name, path in FILES.items()}
    only_read = {*read, "parprims._cpu.templates.declarations"}
    assert {name for name, modules in importers.items() if modules & only_read} <= readers
    assert all(importers[name] <= only_read for name in read)


def test_every_module_has_a_room():
    assert {room_of(name) for name in FILES} == {*ROOMS, "__init__", "__main__"}


@pytest.mark.parametrize("top", [SOURCE, Path(__file__).parents[1]], ids=["src", "tests"])
def test_rooms_are_small(top):
    folders = [path for path in top.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    full = {path.name: len([one for one in path.iterdir() if one.is_file()]) for path in folders}
    assert not {name: files for name, files in full.items() if files > MOST_FILES}

"""The tables in data files: each names its source and its unit, is read once, and no module has such a table itself."""

import ast
import dataclasses
import importlib
import json
import subprocess
import sys
import typing
from pathlib import Path
from typing import NamedTuple

import pytest

import parprims
from benches.core import records
from benches.tuning import entries
from parprims import _cuda
from parprims._compiling import tables
from parprims._compiling.tables import Measured, Table, typed
from parprims._cpu.crossovers import Crossovers

pytestmark = pytest.mark.once

SOURCE = Path(parprims.__file__).parent
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("data/*.json"))
MODULES = {path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def table_of(file: str) -> Table:
    """Return the table of a data file, which is that of the module with its name."""
    room, _, name = file.rpartition("/data/")
    module = importlib.import_module(f"parprims.{room.replace('/', '.')}.{name.removesuffix('.json')}")
    (found,) = (one for one in vars(module).values() if isinstance(one, Table) and one.file == file)
    return found


def module_of(path: str) -> str:
    return f"parprims.{path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"


def test_every_table_has_its_file():
    made = [
        f"{path.rpartition('/')[0]}/data/{path.rpartition('/')[2].removesuffix('.py')}.json"
        for path, tree in MODULES.items()
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).endswith("__name__)")
        if isinstance(vars(importlib.import_module(module_of(path))).get(ast.unparse(node.targets[0])), Table)
    ]
    assert sorted(made) == FILES


@pytest.mark.parametrize("file", FILES)
def test_source_and_unit(file):
    written, table = (SOURCE / file).read_text(), table_of(file)
    content = json.loads(written)
    assert content["unit"]
    assert table
    for entry in table.values():
        assert entry.device
        if isinstance(entry, Measured):
            assert json.loads((records.ROOT / entry.record).read_text())["header"]["device"] == entry.device
        else:
            assert content["source"]
    assert {*content} <= {"unit", "source", "entries"}
    assert written == entries.text({**content, "entries": entries.plain(table)}) + "\n"


def test_texts_of_rows():
    value = {"a": {"one": 1, "two": [[1, 2], [3, 4]]}, "b": [{"c": 1}, {"c": 2}], "d": []}
    assert entries.text(value).split("\n") == [
        "{",
        '  "a": {',
        '    "one": 1,',
        '    "two": [[1, 2], [3, 4]]',
        "  },",
        '  "b": [',
        '    {"c": 1},',
        '    {"c": 2}',
        "  ],",
        '  "d": []',
        "}",
    ]


def test_tables_are_read_once_and_late(monkeypatch):
    """No table is read before an entry is asked for."""
    read: list = []
    own = tables.read
    monkeypatch.setattr(tables, "read", lambda file: read.append(file) or own(file))
    table = Table(str, Crossovers, "parprims._primitives.scan.cpu")
    assert not read
    assert [len(table), *table] == [2, "any", "in programs"]
    assert table["any"] is table["any"]
    assert read == ["_primitives/scan/data/cpu.json"]
    table["other"] = table["any"]
    del table["any"]
    assert [*table] == ["in programs", "other"]
    code = """if True:
        import gc, parprims
        from parprims._compiling.tables import Table
        tables = [one for one in gc.get_objects() if isinstance(one, Table)]
        print(len(tables) > 10, any("_entries" in vars(one) for one in tables))
    """
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True False\n"


class Pair(NamedTuple):
    a: int
    b: bool = True


@dataclasses.dataclass(frozen=True)
class Some:
    size: int
    pairs: tuple[Pair, ...]
    by: dict[int, float]
    two: tuple[int, str]


def test_types_of_entries():
    right = {"size": 1, "pairs": [{"a": 1}, {"a": 2, "b": False}], "by": {"4": 0.5}, "two": [1, "x"]}
    assert typed(Some, right) == Some(1, (Pair(1), Pair(2, False)), {4: 0.5}, (1, "x"))
    for wrong in (
        {"size": 1.0},
        {"size": True},
        {"pairs": [{"a": "1"}]},
        {"pairs": {"a": 1}},
        {"pairs": [{"a": 1, "c": 2}]},
        {"by": {"4": 1}},
        {"by": [1]},
        {"two": [1, 2]},
        {"more": 1},
    ):
        with pytest.raises(TypeError):
            typed(Some, {**right, **wrong})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'size'"):
        typed(Some, {name: one for name, one in right.items() if name != "size"})
    with pytest.raises(ValueError, match="zip"):
        typed(Some, {**right, "two": [1]})


LAYOUTS = {
    "_primitives/reduce/cuda.py": {"_LAYOUTS"},
    "_primitives/scan/cuda.py": {"_IN_BLOCKS", "_LAYOUTS"},
    "_primitives/tridiagonal/cuda.py": {"_SHAPES"},
}
"""Shapes of calls for which kernels are compiled, which nobody measured."""
MOST_NUMBERS = 16
"""The most numbers in a constant of a module."""


def test_no_module_has_a_table_itself():
    """Entries are made by the reader alone, and what modules write down has few numbers."""
    kinds = {type(entry).__name__ for file in FILES for entry in table_of(file).values()}
    kinds |= {"Crossovers", "Costs", "Least", "Residues"}
    assert {"Tuning", "Model"} <= kinds
    many: dict = {}
    for path, tree in MODULES.items():
        for node in tree.body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            inside = [*ast.walk(node.value)]
            made = {ast.unparse(one.func).rpartition(".")[2] for one in inside if isinstance(one, ast.Call)}
            assert not made & kinds, (path, node.lineno)
            if sum(isinstance(one, ast.Constant) and type(one.value) in (int, float) for one in inside) > MOST_NUMBERS:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                many.setdefault(path, set()).update(map(ast.unparse, targets))
    assert many == LAYOUTS


TUNINGS = [file for file in FILES if isinstance(next(iter(table_of(file).values())), _cuda.Tuning)]


@pytest.mark.parametrize("file", TUNINGS)
def test_every_field_is_used(file):
    """The room of a tuning reads each field of its entries, and of the rows in them."""
    kinds, seen = [type(entry) for entry in table_of(file).values()], set()
    while kinds:
        kind = kinds.pop()
        kinds += [one for one in typing.get_args(kind) if one is not Ellipsis]
        if isinstance(kind, type) and "__annotations__" in vars(kind) and kind not in seen:
            seen.add(kind)
            kinds += typing.get_type_hints(kind).values()
    fields = {name for kind in seen for name in vars(kind)["__annotations__"]}
    assert len(fields) >= 2
    room = "/".join(file.split("/")[:2])
    trees = [tree for path, tree in MODULES.items() if path.startswith(f"{room}/")]
    inside = [node for tree in trees for node in ast.walk(tree)]
    assert fields <= {one.attr for one in inside if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Load)}

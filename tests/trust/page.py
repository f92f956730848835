"""The page docs/trust.md: promises, the tests that keep them, and recorded errors over their bounds.

``python -m tests.trust`` writes it from `promises.py`, `faults.py` and the records in ``tests/trust/records/``, one
for each device. Files of ``pytest --record-errors FILE`` that it is given replace the records of their devices first.
``tests/project/test_promises.py`` compares the page with the tests.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.trust.faults import FAULTS
from tests.trust.promises import PROMISES
from tests.trust.recorder import Errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "trust.md"
RECORDS = ROOT / "tests" / "trust" / "records"
METHODS = ("array", "native", "kernel")


@functools.cache
def functions(file: str) -> frozenset[str]:
    """Return the functions of a file, and the methods of its classes as Class::method, without importing it."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return frozenset(found)


def exists(test: str) -> bool:
    """Return whether a test, ``file::function`` or ``file::Class::function``, is written down where it says."""
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name in functions(file)


def keepers() -> dict[str, list[str]]:
    """Return, by file, the test classes that inherit the laws of `Contract`, found without importing them."""
    parents: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        file = path.relative_to(ROOT).as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                parents[file, node.name] = [(file, base) for base in bases]
    found: dict[str, list[str]] = {}

    def inherits(one: tuple[str, str]) -> bool:
        return one[1] == "Contract" or any(map(inherits, parents.get(one, [])))

    for (file, name), bases in parents.items():
        if name.startswith("Test") and any(map(inherits, bases)):
            found.setdefault(file, []).append(name)
    return found


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[`{file.removeprefix('tests/')}::{name}`](../{file})"


def _links(tests: Iterable[str]) -> str:
    return "<br>".join(map(_link, tests))


def _promises() -> Iterator[str]:
    yield "|  | promise | made in |"
    yield "|---|---|---|"
    for number, one in enumerate(PROMISES, 1):
        made = f"[{one.file}](../{one.file})" if one.file else ""
        yield f"| {number} | {one.sentence} | {made} |"


def _promise_tests() -> Iterator[str]:
    for number, one in enumerate(PROMISES, 1):
        yield f"{number}. {one.sentence}"
        yield from (f"    - {_link(test)}" for test in one.tests)
    yield ""
    yield "The laws of `contract.py` are inherited by these classes, and run over every library and every method:"
    yield ""
    for file, names in keepers().items():
        yield f"- [`{file.removeprefix('tests/')}`](../{file}): {', '.join(f'`{name}`' for name in names)}"


def _faults() -> Iterator[str]:
    yield "|  | fault | kept out by |"
    yield "|---|---|---|"
    for number, one in sorted(FAULTS.items()):
        yield f"| {number} | {one.what} | {_links(one.tests) or one.why_not} |"


def _figure(rows: list[dict[str, Any]]) -> str:
    """Return a cell: the largest ratio and whose it is, "exact" where every check asked for the exact result."""
    if not rows:
        return ""
    if all(one["exact"] == one["checks"] and one["ratio"] == 0 for one in rows):
        return "exact"
    worst = max(rows, key=lambda one: one["ratio"])
    return f"{worst['ratio']:.2g} {worst['backend']}"


def table(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a table of ratios: a line for a primitive and dtype, a column for a method."""
    yield f"| primitive | dtype | {' | '.join(METHODS)} | checks |"
    yield "|---" * (len(METHODS) + 3) + "|"
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in rows:
        groups.setdefault((one["primitive"], one["dtype"]), []).append(one)
    for (primitive, dtype), group in sorted(groups.items()):
        cells = [_figure([one for one in group if one["method"] == method]) for method in METHODS]
        yield f"| `{primitive}` | {dtype} | {' | '.join(cells)} | {sum(one['checks'] for one in group)} |"


def recorded() -> dict[str, dict[str, Any]]:
    """Return the committed records: for the name of each file, its header and rows."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(RECORDS.glob("*.json"))}


def _errors() -> Iterator[str]:
    for file in recorded().values():
        head = file["header"]
        names = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
        added = ", ".join(f"`{name}`: {commit[:12]}" for name, commit in head.get("added", {}).items())
        commits = f"{head['commit'][:12]}{f' ({added})' if added else ''}"
        yield f"**{head['device']}**, {head['date']}, commit {commits}; {names}."
        yield ""
        yield from table(file["records"])
        yield ""


def text() -> str:
    """Return the text of docs/trust.md."""
    return "\n".join(
        [
            "# What you can rely on",
            "",
            "Every promise of the library beside the tests that keep it; the largest recorded share of each error "
            "bound; and faults of similar libraries beside the tests that prevent them here. `python -m tests.trust` "
            "writes this page, and `tests/project/test_promises.py` compares it with the tests. Do not edit the page.",
            "",
            "## Promises",
            "",
            *_promises(),
            "",
            "## The tests of each promise",
            "",
            *_promise_tests(),
            "",
            "## Errors over their bounds",
            "",
            "The largest error found by any check of the suite, divided by its bound, by primitive and dtype of the "
            "result; 1 would be all of the bound. The bound is the docstring's, if it states one (`test_promises.py` "
            "compares them), and otherwise the test's. The named backend is the worst. "
            '"exact" means that every check asked for the exact result. `emulated` is the CUDA kernel\'s text run on '
            "a CPU. Derivatives count with their primitive.",
            "",
            *_errors(),
            "## Faults of others",
            "",
            *_faults(),
            "",
        ]
    )


def _added(file: dict[str, Any], head: Mapping[str, Any], rows: list[dict[str, Any]]) -> tuple[dict[str, Any], Errors]:
    """Return the header and rows of a committed record, with those of primitives that it does not have."""
    known, found = {one["primitive"] for one in file["records"]}, Errors()
    new = [one for one in rows if one["primitive"] not in known]
    found.join([*file["records"], *new])
    added = {one["primitive"]: head["commit"] for one in new}
    return {**file["header"], "added": {**file["header"].get("added", {}), **added}}, found


def main(arguments: list[str] | None = None) -> int:
    """Merge records, if any are given, and write the page; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.trust", description=__doc__)
    parser.add_argument("records", nargs="*", type=Path, help="files of pytest --record-errors, of any devices")
    parser.add_argument("--add", action="store_true", help="take over only primitives that are not on record yet")
    options = parser.parse_args(arguments)
    merged: dict[str, tuple[dict[str, Any], Errors]] = {}
    for path in options.records:
        file = json.loads(path.read_text())
        head, found = merged.setdefault(file["header"]["device"], (file["header"], Errors()))
        head["versions"] |= file["header"]["versions"]
        found.join(file["records"])
    for device, (head, found) in merged.items():
        from benches.core import records

        path = RECORDS / f"{records.slug(device)}.json"
        if options.add and path.exists():
            head, found = _added(json.loads(path.read_text()), head, found.records())
        found.write(path, head)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text())
    return 0

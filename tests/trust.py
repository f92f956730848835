"""What the library promises, the tests that keep it, and how much of its bounds it uses: ``python -m tests.trust``.

``pytest --record-errors FILE`` writes, for every primitive, dtype, method and backend, the largest error that a check
found over the bound it was held against. This module merges such files, one for each device, into ``tests/errors/``
and writes ``docs/trust.md`` from them, `promises.py` and `faults.py`.
``tests/project/test_promises.py`` holds the page to all.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults import FAULTS
from tests.promises import PROMISES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "trust.md"
ERRORS = ROOT / "tests" / "errors"
METHODS = ("array", "native", "kernel")
KEY = ("primitive", "dtype", "method", "backend")


class Errors:
    """The largest errors of the checks of a run, over their bounds, where a run is asked to record them.

    A check knows the arrays it compares and `run` knows which call they came from; what a test derives from its
    results (a part of one, a gradient) goes to the account of the one primitive and method that the test called.
    """

    def __init__(self) -> None:
        self.on = False
        self._rows: dict[tuple[str, ...], dict[str, Any]] = {}
        self._results: list[tuple[Any, tuple[str, str]]] = []
        self._calls: set[tuple[str, str]] = set()
        self._test = ""

    def begin(self, test: str) -> None:
        """Forget the calls of the test before."""
        self._results, self._calls, self._test = [], set(), test

    def ran(self, call: Any, result: Any) -> None:
        """Remember which primitive and method a result came from."""
        if not self.on:
            return
        who = (call.primitive, call.method)
        self._calls.add(who)
        ones = result if isinstance(result, tuple) else (result,)
        for one in ones:
            try:  # a result is not kept alive: tests of memory count what is
                self._results.append((weakref.ref(one), who))
            except TypeError:
                if isinstance(one, np.generic):
                    self._results.append((lambda one=one: one, who))

    def note(self, backend: Any, result: Any, dtype: str, error: Any = 0.0, bound: Any = 0.0) -> None:
        """Record the error of a check beside its bound; a bound of 0 asks for the exact result."""
        if not self.on:
            return
        who = next((who for one, who in reversed(self._results) if one() is result), None)
        if who is None and len(self._calls) == 1:
            (who,) = self._calls
        if who is not None:
            self.add(*who, dtype, backend.name, error, bound)

    def add(self, primitive: str, method: str, dtype: str, backend: str, error: Any, bound: Any) -> None:
        """Record an error and its bound, elementwise, under the names given."""
        if not self.on:
            return
        error, bound = np.broadcast_arrays(np.asarray(error, np.float64), np.asarray(bound, np.float64))
        with np.errstate(all="ignore"):
            ratios = np.where(error == 0, 0.0, error / bound)  # infinite where an exact result is not
        row = {
            **dict(zip(KEY, (primitive, dtype, method, backend), strict=True)),
            "checks": 1,
            "exact": int(not np.any(bound > 0)),
            "ratio": float(np.max(ratios, initial=0.0)),
            "test": self._test,
        }
        self.join([row])

    def join(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take over rows recorded elsewhere."""
        for row in rows:
            key = tuple(row[name] for name in KEY)
            known = self._rows.setdefault(key, {**row, "checks": 0, "exact": 0})
            worst = row if row["ratio"] > known["ratio"] else known
            counts = {name: known[name] + row[name] for name in ("checks", "exact")}
            self._rows[key] = {**worst, **counts}

    def records(self) -> list[dict[str, Any]]:
        """Return the rows, sorted."""
        return [self._rows[key] for key in sorted(self._rows)]

    def write(self, path: Path, header: Mapping[str, Any] | None = None) -> None:
        """Write the rows, one to a line, with what ran them."""
        rows = self.records()
        lines = ",\n    ".join(json.dumps(one) for one in rows)
        head = json.dumps(header or _header({one["backend"] for one in rows}))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{\n  "header": {head},\n  "records": [\n    {lines}\n  ]\n}}\n')


errors = Errors()


class Recorder:
    """The plugin of pytest that records a run's errors, in one process or in those of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        errors.on = True

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        errors.begin(item.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        errors.join(getattr(node, "workeroutput", {}).get("errors", []))

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["errors"] = errors.records()
        else:
            errors.write(Path(self._config.getoption("--record-errors")))


def _header(backends: set[str]) -> dict[str, Any]:
    """Return the device, versions, commit and date of a run on these backends."""
    import datetime

    from benches.core import records
    from examples.backends import gpu_name

    cuda = bool(backends & {"cupy", "torch-cuda", "jax-cuda"})
    return {
        "device": gpu_name() if cuda else "CPU",
        "versions": records.versions(cuda),
        "commit": records.commit(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


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
    return {path.stem: json.loads(path.read_text()) for path in sorted(ERRORS.glob("*.json"))}


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


def page() -> str:
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

        path = ERRORS / f"{records.slug(device)}.json"
        if options.add and path.exists():
            head, found = _added(json.loads(path.read_text()), head, found.records())
        found.write(path, head)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The package as a whole: what importing it costs, what it names, and whether its examples are true."""

import ast
import doctest
import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import parprims

ROOT = Path(__file__).parents[2]
MODULES = ["parprims", *(module.name for module in pkgutil.walk_packages(parprims.__path__, "parprims."))]
DOCUMENTS = [
    path
    for folder in (ROOT, ROOT / "docs")
    for path in sorted(folder.glob("*.md"))
    if "\n```python\n" in path.read_text(encoding="utf-8")
]


def python(program: str) -> str:
    """Return what a program prints in a fresh interpreter that finds the package where this one did."""
    source = Path(parprims.__file__).parents[1]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(source)!r}); {program}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_import_loads_no_array_library():
    loaded = python("import parprims; print(*sys.modules)").split()
    assert "parprims" in loaded
    assert {"torch", "jax", "cupy", "scipy", "array_api_strict"}.isdisjoint(loaded)


@pytest.mark.once
def test_a_type_that_says_it_is_of_a_library(subtests):
    """Is refused as any other that is no array, where the library is not there."""
    for module in ("torch", "jaxlib", "cupy"):
        with subtests.test(module=module):
            program = f"import parprims; x = type('ndarray', (), dict(__module__={module!r}))(); print(refused(x))"
            refused = "def refused(x):\n try: parprims.sum(x)\n except TypeError as error: return error"
            assert "x must be an array, got ndarray" in python(f"exec({refused!r}, globals()); {program}")


@pytest.mark.once
def test_import_is_quick(tmp_path, monkeypatch):
    """An import takes less than three times that of NumPy, which is imported in any case."""
    # Processor time, because the machine may be busy, of packages whose bytecode is there, as from the second time on.
    # The least of several, because what else the machine does only adds.
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # others take as long to start as all else in NumPy
    program = (
        "import time; start = time.process_time(); import numpy, array_api_compat; between = time.process_time(); "
        "import parprims; print(between - start, time.process_time() - between)"
    )
    before, own = zip(*(map(float, python(program).split()) for _ in range(7)), strict=True)
    assert min(own) < 3 * min(before)


def test_public_names():
    assert sorted(parprims.__all__) == parprims.__all__
    assert {name for name in vars(parprims) if not name.startswith("_")} == {"CANONICAL_BLOCK", *parprims.__all__}


@pytest.mark.once
def test_report(tmp_path, monkeypatch):
    """``python -m parprims`` tells versions, devices and compilers, also of a library that does not work."""
    (tmp_path / "cupy.py").write_text("raise RuntimeError('no driver')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(parprims.__file__).parents[1]), str(tmp_path))))
    monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "parprims"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert told.startswith(f"parprims {parprims.__version__}, Python {sys.version_info.major}.")
    assert re.search(rf"^  numpy +{re.escape(np.__version__)}: CPU$", told, re.MULTILINE)
    assert re.search(r"^  cupy +does not work: RuntimeError: no driver$", told, re.MULTILINE)
    assert re.search(r"^  on CPUs +\S", told, re.MULTILINE)
    assert re.search(r"^  on CUDA devices +\S", told, re.MULTILINE)
    assert f"{tmp_path / 'cache'} (0 files, 0.0 MB)" in told


@pytest.mark.once
def test_one_version():
    """The package, its citation and the changelog speak of the same release."""
    assert f"\nversion: {parprims.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {parprims.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.once
def test_workflows_call_nox_and_nothing_else():
    sessions = set(re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = path.read_text()
        assert set(re.findall(r"- run: (.*)", text)) == {"pip install nox", "nox -s ${{ matrix.session }}"}
        listed = re.search(r"session: \[(.*)\]", text)[1].split(", ") + re.findall(r"session: (\w+)}", text)
        assert {one.strip('"').partition(" ")[0] for one in listed} <= sessions


@pytest.mark.once
def test_no_file_is_long():
    suffixes = (".py", ".cu", ".cuh", ".cpp", ".hpp")
    files = [path for folder in ("src", "tests", "benches", "examples") for path in (ROOT / folder).rglob("*.*")]
    lines = {path: len(path.read_bytes().splitlines()) for path in files if path.suffix in suffixes}
    long = {path.relative_to(ROOT).as_posix() for path, count in lines.items() if count > 720}
    assert not long


@pytest.mark.parametrize("name", parprims.__all__)
def test_public_docstring(name):
    text = inspect.getdoc(getattr(parprims, name))
    sections = re.findall(r"^(\w[\w ]*)\n-+$", text, re.MULTILINE)
    known = ["Parameters", "Returns", "Yields", "Raises", "See Also", "Notes", "References", "Examples"]
    assert sections == [section for section in known if section in sections]
    assert sections[-1] == "Examples"
    assert not re.search(r"\S +-{4,}", text), "a section's name and its line are on one line"
    assert ">>> " in text


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples(module):
    runner = doctest.DocTestRunner()
    for found in doctest.DocTestFinder().find(pytest.importorskip(module)):  # rules for a library need it
        if importlib.util.find_spec("jax") or "import jax" not in found.docstring:
            runner.run(found)
    assert runner.summarize().failed == 0


def run_examples(text: str, name: str) -> int:
    """Run the Python blocks of a Markdown text, in order and in one namespace; return how many there are.

    Where an expression has a comment after it, the comment is its value.
    """
    names: dict[str, Any] = {}
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    for block in blocks:
        lines = block[1].splitlines()
        before = text.count("\n", 0, block.start(1))
        for node in ast.parse(block[1]).body:
            comment = lines[node.end_lineno - 1].partition("  # ")[2]
            ast.increment_lineno(node, before)
            if isinstance(node, ast.Expr) and comment:
                value = eval(compile(ast.Expression(node.value), name, "eval"), names)
                assert repr(value) == comment, f"{name}, line {node.end_lineno}"
            else:
                exec(compile(ast.Module([node], []), name, "exec"), names)
    return len(blocks)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_document_examples(path):
    if path.name == "devices.md":
        pytest.skip("it needs eight devices: test_devices_scans.py runs it")
    text = path.read_text(encoding="utf-8")
    imports = " ".join(re.findall(r"^(?:import|from) .*", text, re.MULTILINE))
    for library in re.findall(r"\b(jax|torch|scipy|dask)\b", imports):
        pytest.importorskip(library)
    assert run_examples(text, path.name)


def test_a_wrong_document_example_fails():
    assert run_examples("text\n```python\nx = 1\n```\n\n```python\nx + 1  # 2\n```\n", "a.md") == 2
    with pytest.raises(AssertionError, match=r"a\.md, line 3"):
        run_examples("text\n```python\n1 + 1  # 3\n```\n", "a.md")
    with pytest.raises(NameError):
        run_examples("```python\nmissing\n```\n", "a.md")

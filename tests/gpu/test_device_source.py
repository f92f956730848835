"""What the texts of kernels include: each names the headers that it uses, and no others."""

import functools
import graphlib
import re
from pathlib import Path

import pytest

import parprims
from parprims._cuda.look_back import COUNTER_WORDS
from parprims._cuda.plan import device_source, included, with_include_lines

SOURCE = Path(parprims.__file__).parent
FILES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.cu*"))

pytestmark = pytest.mark.once


def _code(text: str) -> str:
    """Return a text without comments and strings."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.DOTALL)


def _of_file(code: str) -> str:
    """Return a text without what is in braces, but for enumerations and what is in namespaces."""
    kept, opened = [], [True]
    for piece in re.split(r"([{}])", code):
        if piece == "}":
            opened.pop()
        elif piece == "{":
            before = kept[-1] if kept else ""
            opened.append(opened[-1] and bool(re.search(r"\b(namespace|enum)\s+\w+\s*$", before)))
            kept.append(" ; " if opened[-2] and not opened[-1] else "")
        elif opened[-1]:
            kept.append(piece)
    assert opened == [True]
    return "".join(kept)


@functools.cache
def declared(file: str) -> frozenset[str]:
    """Return the names that a file declares outside of functions and structures."""
    code = (SOURCE / file).read_text()
    found = {*re.findall(r"^#define (\w+)", code, re.MULTILINE)}
    code = _of_file(_code(re.sub(r"^#.*(\\\n.*)*", "", code, flags=re.MULTILINE)))
    code = re.sub(r"[<>]=", " ", code)
    code = re.sub(r"\btemplate\s*<(?:[^<>]|<[^<>]*>)*>", " ", code)
    for statement in code.split(";"):
        words = re.sub(r"\balignas\((?:[^()]|\([^()]*\))*\)", "", statement)
        if function := re.search(r"\bDEVICE\b[^(]*?(\w+)\s*\(", words):
            found.add(function[1])
        elif structure := re.search(r"\b(?:struct|class|enum|using)\s+(\w+)", words):
            found.add(structure[1])
            found |= {*re.findall(r"\w+", words)} if re.search(r"\benum\b", words) else set()
        elif re.search(r"\bconstexpr\b", words):
            found |= {*re.findall(r"(\w+)\s*=", words)}
    return frozenset(found - {"enum", "namespace"})


@functools.cache
def used(file: str) -> frozenset[str]:
    """Return the words of a file that are not members of something, nor declared in it, in a function or a template."""
    code = _code((SOURCE / file).read_text())
    own = re.findall(r"\b(?:using|class|bool|int|struct) (\w+)(?= =|[,>])", code)
    return frozenset(re.findall(r"(?<![.>\w])[A-Za-z_]\w*", code)) - declared(file) - {*own}


def _in_python(file: str) -> set[str]:
    """Return the words of the Python files beside a file: what they write ends up in one text with its kernels."""
    return {word for path in (SOURCE / file).parent.glob("*.py") for word in re.findall(r"\w+", path.read_text())}


def reached(file: str) -> set[str]:
    """Return all that a file includes, directly or not."""
    return {header for one in included(file) for header in (one, *reached(one))}


def test_no_circle():
    graph = {file: included(file) for file in FILES}
    assert sum(map(len, graph.values())) > 100
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


ADDS_TO = {"_primitives/reproducible/lines.cu": "_primitives/reduce/kernels/reduce.cu"}
"""Files of kernels that add templates to those of another file, which they include."""


@pytest.mark.parametrize("file", FILES)
def test_includes(file):
    headers = included(file)
    assert all(one.endswith(".cuh") or one == ADDS_TO.get(file) for one in headers)
    assert len({*headers}) == len(headers)
    assert [*headers] == sorted(headers, key=lambda one: one.rpartition("/")[2])
    words = used(file) | (_in_python(file) if file.endswith(".cu") else set())
    unused = [one for one in headers if not words & declared(one)]
    assert not unused
    direct = frozenset().union(*(declared(one) for one in headers))
    missing = {one: names for one in reached(file) - {*headers} if (names := (used(file) & declared(one)) - direct)}
    assert not missing


def test_every_header_is_included():
    assert {one for one in FILES if one.endswith(".cuh")} - {one for file in FILES for one in included(file)} == set()


def test_once():
    """A text has what it includes once, before what uses it."""
    text = device_source("_primitives/sort/sort_tiles.cu")
    assert "#include" not in text
    assert text.count("#define DEVICE ") == text.count("struct LastKey {") == text.count("namespace digits {") == 1
    assert text.index("#define DEVICE ") < text.index("struct LastKey {") < text.index("DEVICE void sort_tiles(")


@pytest.mark.parametrize("file", [one for one in FILES if one.endswith(".cu")])
def test_include_lines_return(file):
    """A text to read has the file as it is written, between the parts that a call writes."""
    parts = "#define BEFORE\n", "\nstruct After {};\n"
    assert with_include_lines(device_source(file).join(parts)) == (SOURCE / file).read_text().join(parts)


def test_look_back():
    """Plans reserve as many words for the tile counter as kernels leave out."""
    assert f"constexpr int COUNTER_WORDS = {COUNTER_WORDS};" in device_source("_cuda/device/look_back.cuh")

"""The documentation: what is generated from records is up to date, and every public name and picture has its page."""

import functools
import inspect
import json
import re
import tomllib

import pytest

import parprims
from docs import check_site, conf, generate, losses, parameters, plots, support, words
from examples.backends import make

pytestmark = pytest.mark.once

ROOT = generate.ROOT
PAGES = sorted((ROOT / "docs").glob("*.md"))

if not (ROOT / "benches" / "results").exists():
    pytest.skip("not in a clone", allow_module_level=True)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return the results that are committed; a comparison just run here may have left others."""
    return generate.committed(generate.RESULTS, tmp_path_factory.mktemp("results"))


def test_generated_parts_are_up_to_date(results):
    for path, name, part in generate.parts(results):
        text = path.read_text()
        assert generate.tables.with_part(text, name, part) == text, f"{path.name}: run python -m docs.generate"


def test_pictures_show_the_records(results):
    numbers = json.loads((plots.FOLDER / "figures.json").read_text())
    assert numbers.pop("drawn by") == plots.drawn_by(), "run python -m docs.generate"
    assert numbers == plots.figures(*plots.read(results)), "run python -m docs.generate"


def test_ratios_are_of_the_largest_case_and_the_fastest_of_each_side():
    def one(case, method, seconds, n=8, ceiling=0.5):
        names = {"primitive": "sum", "case": case, "method": method, "dtype": "float32", "shape": [n]}
        return {**names, "seconds": seconds, "ceiling_fraction": ceiling}

    found = [
        one("sum, 4", "kernel", 1.0, n=4),
        one("sum, 4", "peer:cupy", 9.0, n=4),
        one("sum, 8", "kernel", 2.0),
        one("sum, 8", "native", 1.0),
        one("sum, 8", "peer:cupy", 5.0),
        one("sum, 8", "peer:torch", 3.0),
        one("sum call, 8", "kernel", 1.0, ceiling=None),
        one("sum call, 8", "peer:cupy", 7.0, ceiling=None),
        one("naive by hand, 8", "kernel", 1.0),
        one("naive by hand, 8", "peer:cupy", 7.0),
    ]
    assert plots.ratios(found) == {"sum": [3.0]}
    calls = [
        {**one("sum, 8", method, seconds), "axis": 0, "backend": "numpy"}
        for method, seconds in (("auto", 2.0), ("peer:numba loop", 1.0), ("peer:numpy", 3.0))
    ]
    assert plots.auto_ratios(calls) == {"sum": [1.5]}
    assert plots.auto_ratios(calls[:2]) == {"sum": [0.5]}
    assert plots.middle([0.5, 2.0]) == pytest.approx(1.0)


def test_support_of_numpy_is_as_recorded():
    recorded = support.records()["numpy"]["primitives"]
    on = make("numpy")
    for name in support.EXAMPLES:
        dtypes = list(support.dtypes(on, functools.partial(support.example, name), "array"))
        assert dtypes == recorded[name]["auto"], f"{name}: run python -m docs.support --backend numpy"


def test_what_does_not_work_is_seen():
    on = make("numpy")

    def broken(dtype):
        return support.Example(lambda x, **_: 1 / 0 if x.dtype == "int8" else x, (support.np.ones(3, dtype),), {})

    assert "int8" not in list(support.dtypes(on, broken, "array"))
    assert "int16" in list(support.dtypes(on, broken, "array"))
    assert not support.works(on, lambda x: x + 1, [on.asarray(support.np.ones(3))], [1.0])


def test_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= 10_000


def computing_functions():
    """Return the names of the public functions that take a method."""
    public = [(name, getattr(parprims, name)) for name in parprims.__all__]
    return {name for name, one in public if inspect.isfunction(one) and "method" in inspect.signature(one).parameters}


def test_every_primitive_has_a_page():
    titles = conf.titles()
    assert computing_functions() <= set(titles)
    assert all(f"\nparprims.{name}\n" in conf.reference() for name in parprims.__all__)
    assert all(f"../{page}\n" in conf.primitives() for page in set(titles.values()))
    assert ".. autofunction:: scan\n" in conf.entry("scan")
    assert ".. autoexception:: MethodRefused\n" in conf.entry("MethodRefused")
    assert ".. autoclass:: Operator\n" in conf.entry("Operator")


def test_readme_and_start_lead_everywhere():
    """Both link a page for each primitive, start.md names all functions that compute, and the examples are counted."""
    readme, start = ((ROOT / name).read_text() for name in ("README.md", "docs/start.md"))
    computing = computing_functions()
    assert [name for name in computing if not re.search(rf"`{name}`|pp\.{name}\(", start)] == []
    pages = {conf.titles()[name] for name in computing}
    assert [page for page in pages if f"](docs/{page}.md)" not in readme] == []
    assert [page for page in pages if f"]({page}.md)" not in start] == []
    assert conf.ordered(["matmul", "scan", "none"]) == ["scan", "matmul", "none"]
    listed = re.search(r"EXAMPLES = \((.*?)\)", (ROOT / "examples" / "__main__.py").read_text(), re.DOTALL)[1]
    assert len(re.findall(r"\w+", listed)) == 24
    assert "[Twenty-four worked examples]" in readme


def test_versions_are_those_required():
    project = tomllib.loads((generate.ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(one for ones in project["optional-dependencies"].values() for one in ones)]
    page = (generate.ROOT / "docs" / "start.md").read_text()
    named = {
        "numpy": "NumPy",
        "numba": "Numba",
        "jax": "JAX",
        "torch": "PyTorch",
        "cupy-cuda13x": "CuPy",
        "dask": "Dask",
    }
    for one in asked:
        name, _, oldest = one.partition(",")[0].partition(">=")
        name = name.partition("[")[0]
        if name in named:
            assert f"| {named[name]} | {oldest} |" in page, one
    assert f"| Python | {project['requires-python'].removeprefix('>=')} |" in page


def test_what_is_not_measured_is_said():
    """The page of plots names every function that no record of a GPU has."""
    measured = {one["primitive"] for one in plots.read()[0]["records"]}
    _, _, newer = (ROOT / "docs" / "performance.md").read_text().partition("\n## Newer primitives\n")
    newer, _, _ = newer.partition("\n## ")
    listed = [line for line in newer.splitlines() if line.startswith("- ")]
    assert set(re.findall(r"`(\w+)`", " ".join(listed))) - {"sum", "max", "cumulative_sum"} == (
        computing_functions() - measured
    )


def test_every_primitive_is_tried():
    tried = {name.partition(" ")[0] for name in support.EXAMPLES}.union(*support.ALIKE.values())
    assert computing_functions() == tried, "docs/support.py needs an entry"
    assert set(support.ALIKE) <= set(support.EXAMPLES)


def test_statements_of_notes_are_paragraphs():
    lines = [".. rubric:: Notes", "", "Work and depth: n (array),", "1 (kernel).", "Error: none."]
    assert conf.labelled([*lines, ".. rubric:: Examples", "Error: no"]) == [
        *(".. rubric:: Notes", "", "", "**Work and depth:** n (array),", "1 (kernel).", "", "**Error:** none."),
        *(".. rubric:: Examples", "Error: no"),
    ]


@pytest.mark.parametrize("name", parprims.__all__)
def test_docstrings_name_pages_by_title(name):
    """A wheel has no docs/, and the title is what a reader can look for on the site."""
    text = inspect.getdoc(getattr(parprims, name))
    assert "docs/" not in text
    titles = [" ".join(title.split()) for _, title in conf.PAGE.findall(text)]
    assert [title for title in titles if title not in conf.page_titles()] == []
    assert conf.with_links(text).count(":doc:`") == len(titles)


def test_links_to_pages_by_title():
    text = 'the page "Arrays that are\n    split over devices", and the page "scan" of'
    links = "the page :doc:`Arrays that are\n    split over devices </devices>`, and the page :doc:`scan </scan>` of"
    assert conf.with_links(text) == links
    with pytest.raises(KeyError):
        conf.with_links('the page "No such title"')


def test_shared_parameters_are_as_written_once():
    different = [path.name for path, source, text in parameters.changes() if source != text]
    assert not different, "run python -m docs.parameters"


def test_every_function_has_the_shared_parameters():
    """A public function with one of these parameters has its description from the table."""
    shared = {}
    for entry in parameters.SHARED:
        shared.setdefault(entry.name, set()).update(entry.texts())
    for name in ("method", "check", "offsets", "axis_name", "keepdims"):
        assert shared[name] == set(parameters.functions_with(name)), f"docs/parameters.py: {name}"


def test_parameters_are_written_into_docstrings():
    source = '''
def f(x, axis):
    """Do.

    Parameters
    ----------
    x : array
        Elements.
    axis : int
        Old words,
        in two lines.
    """

def g(axis):
    """Leave.

    axis : int
        Words.
    """
'''
    written = parameters.with_parameters(source, {"f": {"axis": ("int or None", "New " + "words " * 20)}})
    lines = written.splitlines()
    assert lines[8] == "    axis : int or None"
    assert [len(line) <= 120 for line in lines] == [True] * len(lines)
    assert " ".join(written.split()).count("New " + " ".join(["words"] * 20) + ' """ def g') == 1
    assert written.endswith(source[source.index("def g") :])
    with pytest.raises(ValueError, match=r"line 3: .* one entry for y"):
        parameters.with_parameters(source, {"f": {"y": ("int", "Words.")}})


def test_no_page_takes_the_name_of_one_of_sphinx():
    assert {"search", "genindex", "modindex"}.isdisjoint(path.stem for path in PAGES)


def test_every_picture_is_shown():
    text = "".join(path.read_text() for path in [ROOT / "README.md", *PAGES])
    shown = set(re.findall(r"!\[[^]]*\]\((?:docs/)?pictures/([^)]*)\)", text))
    assert shown == {path.name for path in plots.FOLDER.glob("*.svg")}


def test_wrong_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="b.html#here"></a><a href="#top"></a><a href="c"></a>')
    (tmp_path / "b.html").write_text('<a href="a.html#no"></a><a href="https://example.org/"></a>')
    assert check_site.faults(tmp_path) == [
        "a.html names b.html#here, a place that the page does not have",
        "a.html names c, which is not there",
        "b.html names a.html#no, a place that the page does not have",
    ]
    (tmp_path / "b.html").write_text('<p id="here"></p><script src="https://example.org/x.js"></script>')
    (tmp_path / "c").touch()
    assert check_site.faults(tmp_path) == ["b.html loads https://example.org/x.js"]
    assert check_site.main([str(tmp_path)]) == 1
    assert check_site.faults(tmp_path / "nothing") == [f"{tmp_path / 'nothing'} has no pages"]


def test_study_lists_files_that_are_there():
    """Listings and tables of the page for students name files, functions and comments of the library."""
    text = (ROOT / "docs" / "study.md").read_text()
    listings = re.findall(r"```\{literalinclude\} (\S+)\n(.*?)```", text, re.DOTALL)
    assert len(listings) >= 4
    for file, options in listings:
        source = (ROOT / "docs" / file).resolve().read_text()
        for kind, named in re.findall(r"^:(pyobject|start-at|end-before): (.*)$", options, re.MULTILINE):
            assert (f"\ndef {named}(" if kind == "pyobject" else named) in source, f"{file} has no {named}"
    named = re.findall(r"`(\w+/[\w/]+\.\w+)`", text)
    assert len(named) >= 16
    assert [one for one in named if not (ROOT / "src" / "parprims" / "_primitives" / one).exists()] == []


def test_words_counts_habits_of_prose_alone():
    text = "What stands here? Arrays whose `what` is code.\n\n```python\nwhat = 'which'\n```\n[a](which.md) the same.\n"
    length, found = words.counts(text)
    assert length == 10
    assert found == {**dict.fromkeys(words.HABITS, 0), "what": 1, "whose": 1, "the same": 1, "pointers": 1}
    code = ROOT / "docs" / "words.py"
    assert words.written(code).startswith("Count habits of prose")
    assert "HABITS = {" not in words.written(code)
    assert words.files([ROOT / "README.md", ROOT / "docs" / "notebooks"])[0] == ROOT / "README.md"
    rows = words.table([ROOT / "README.md", ROOT / "docs" / "which.md"])
    assert len(rows) == 4
    assert rows[-1].endswith("together")


def test_no_command_is_broken():
    """Code within a sentence begins and ends on one line, so that it can be copied."""
    broken = [
        f"{path.name}: {line}"
        for path in words.pages()
        for line in re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE).splitlines()
        if not line.startswith("    ") and len(re.findall("`+", line)) % 2
    ]
    assert broken == []


def test_losses_are_the_worst_of_each_family():
    def one(case, method, seconds, backend="cupy", *, auto=False):
        names = {"primitive": "sum", "case": case, "method": method, "dtype": "float32", "backend": backend}
        return {**names, "seconds": seconds, "auto": auto}

    found = [
        one("sum call, 4", "kernel", 1.2, auto=True),
        one("sum call, 4", "peer:cupy", 1.0),
        one("sum call, 8", "kernel", 4.0, auto=True),
        one("sum call, 8", "peer:cupy", 3.0),
        one("sum call, 8", "peer:cub", 2.0),
        one("sum call, 16", "kernel", 1.09, auto=True),
        one("sum call, 16", "peer:cupy", 1.0),
        one("sum call, 8", "kernel", 9.0, "torch-cuda"),
        one("sum call, 8", "native", 1.0, "torch-cuda", auto=True),
        one("sum call, 8", "peer:torch", 1.0, "torch-cuda"),
        one("naive by hand, 8", "kernel", 9.0, auto=True),
        one("naive by hand, 8", "peer:cupy", 1.0),
    ]
    _, _, *rows = losses.by_auto(found).splitlines()
    short = losses.SHORT_CALL
    assert rows == [f"| `sum` | sum call, 8 | float32 | CuPy | 2 of 3 | 4.00 s | 2.00 s cub | 0.50x | {short} |"]
    _, _, *rows = losses.by_kernels(found).splitlines()
    assert rows == ["| `sum` | sum call, 8 | float32 | PyTorch | 1 of 1 | 9.00 s | 1.00 s torch | 0.11x |"]
    lost = one("of nothing, 4", "kernel", 2.0, auto=True)
    with pytest.raises(KeyError, match="no reason for sum: of nothing, 4"):
        losses.by_auto([lost, one("of nothing, 4", "peer:cupy", 1.0)])


def test_every_reason_of_a_loss_is_shown():
    table = losses.by_auto(plots.read()[0]["records"])
    assert [text for *_, text in losses.REASONS if f" {text} |" not in table] == []

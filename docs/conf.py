"""The documentation's settings. ``nox -s docs`` builds it, offline and with every warning an error."""

import importlib
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER.parent / "src"), str(FOLDER.parent)]

import parprims  # noqa: E402

project = "parprims"
author = "the parprims developers"
copyright = "the parprims developers"
extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
nitpicky = True

html_theme = "pydata_sphinx_theme"
version = release = parprims.__version__
html_title = f"parprims {version}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {"index": [], "start": []}  # which have no pages below them
html_theme_options = {
    "logo": {"text": "parprims"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
# Where a page shows what Python says, it is run: here for notebooks, else by tests/project/test_package.py.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

default_role = "py:obj"
# A docstring's single backticks name parameters, too.
nitpick_ignore_regex = [("py:.*", ".*")]
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
doctest_global_setup = "import numpy as np\nimport parprims"
# The tests run those in JAX and PyTorch; here each docstring's examples run as they stand on the page.
doctest_test_doctest_blocks = "default"


ABOUT = {
    "parprims._operators.associativity": "operators",
    "parprims._cuda.xla": "transformations",
    "parprims._tools.comparison": "methods",
    "parprims._tools.warm_up": "cpus",
    "parprims._dispatch.dispatch": "methods",
    "parprims._tools.launches": "gpus",
    "parprims._operators.operator": "operators",
}
"""The page about a module whose names stand in no page's title."""


def titles() -> dict[str, str]:
    """Return the page that has a public name in its title."""
    found = {}
    for path in sorted(FOLDER.glob("*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        found |= {name: path.stem for name in re.split(",? and |, |: ", title) if name in parprims.__all__}
    return found


def summary(name: str) -> str:
    """Return the first line of a name's docstring, in Markdown."""
    return (inspect.getdoc(getattr(parprims, name)) or "").partition("\n")[0].replace("``", "`")


def ordered(pages: Iterable[str]) -> list[str]:
    """Return pages in the README's order; pages that it does not name come last."""
    listed = re.findall(r"\]\(docs/(\w+)\.md\)", (FOLDER.parent / "README.md").read_text(encoding="utf-8"))
    places = {page: at for at, page in enumerate(dict.fromkeys(listed))}
    return sorted(dict.fromkeys(pages), key=lambda page: (places.get(page, len(places)), page))


def reference() -> str:
    """Return the page of all public names, in the groups of the modules that define them."""
    page_of = titles()
    groups: dict[str, list[str]] = {}
    for name in parprims.__all__:
        groups.setdefault(getattr(parprims, name).__module__, []).append(name)
    lines = ["# API reference", "", "Every public name, by subject.", ""]
    page_of_group = {
        module: next((page_of[name] for name in names if name in page_of), ABOUT.get(module, ""))
        for module, names in groups.items()
    }
    places = {page: at for at, page in enumerate([*ordered(page_of.values()), *dict.fromkeys(ABOUT.values()), ""])}
    rank = [*page_of, *parprims.__all__]  # of the groups of a page, that of the name that its title has first is first
    by_place = sorted(groups.items(), key=lambda item: (places[page_of_group[item[0]]], min(map(rank.index, item[1]))))
    for module, names in by_place:
        about = inspect.getdoc(importlib.import_module(module)) or ""
        title = re.split(r"[.:](?:\s|$)", about)[0]
        page = page_of_group[module]
        lines += [f"## {title}", "", "| name | summary |", "|---|---|"]
        lines += [f"| [`{name}`](parprims.{name}.md) | {summary(name)} |" for name in names]
        lines += ["", *([f"More: {{doc}}`../{page}`.", ""] if page else [])]
    every = "\n".join(f"parprims.{name}" for name in parprims.__all__)
    return "\n".join([*lines, "```{toctree}", ":hidden:", every, "```", ""])


def entry(name: str) -> str:
    """Return the page of a public name."""
    one = getattr(parprims, name)
    kind = "function"
    if inspect.isclass(one):
        kind = "exception" if issubclass(one, Exception) else "class"
    members = "" if kind == "function" else "\n   :members:"
    return f"# {name}\n\n```{{eval-rst}}\n.. currentmodule:: parprims\n.. auto{kind}:: {name}{members}\n```\n"


def primitives() -> str:
    """Return the page that lists the primitives' pages: those that have public functions in their titles."""
    pages = ordered(titles().values())
    return f"""# Primitives

A page for each primitive, or for a few that are computed alike: an example, options, promises, methods, the algorithm,
GPUs, CPUs, memory, and the papers. The {{doc}}`API reference <api>` has the arguments and results.

```{{toctree}}
:maxdepth: 1
{"".join(f"../{page}{chr(10)}" for page in pages)}```
"""


def write_pages(*_: Any) -> None:
    """Write the pages that are found, before Sphinx reads any; one that has not changed stays as it is."""
    entries = {f"parprims.{name}": entry(name) for name in parprims.__all__}
    for name, text in {"api": reference(), "primitives": primitives(), **entries}.items():
        path = FOLDER / "generated" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


SITE = {
    "../README.md": "index.md",
    "../CHANGELOG.md": "changelog.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../SECURITY.md": "security.md",
}
"""The site's pages in place of files that are read in a clone."""


def link_site(_app: Any, page: str, source: list[str]) -> None:
    """Turn links to the clone's own documents into links to the site's pages, and link primitives to their entries."""
    for file, other in SITE.items():
        source[0] = source[0].replace(f"]({file})", f"]({other})")
    names = [name for name, about in titles().items() if about == page]
    if names:
        title, _, rest = source[0].partition("\n")
        links = ", ".join(f"[`{name}`](generated/parprims.{name}.md)" for name in names)
        source[0] = f"{title}\n\nArguments and results: {links}.\n{rest}"


PAGE = re.compile(r'(page\s+)"([^"]+)"')
"""The title of a page in a docstring, which may be broken over two lines: a whole title, or a public name in it."""


def page_titles() -> dict[str, str]:
    """Return the page of every title, and of every public name that a title has."""
    heads = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in FOLDER.glob("*.md")}
    return {head.removeprefix("# "): page for page, head in heads.items() if head.startswith("# ")} | titles()


def with_links(text: str) -> str:
    """Return the text of a docstring in which every page that it names by its title is a link."""
    page_of = page_titles()
    return PAGE.sub(lambda named: f"{named[1]}:doc:`{named[2]} </{page_of[' '.join(named[2].split())]}>`", text)


def as_written(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """Keep the bars and stars of a docstring's formulas, which are marks of reST, and link the pages it names."""
    for index, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            line = re.sub(r"(?<!\\)\|", r"\\|", line)
            line = re.sub(r"(?<![\\*\w])\*(?=\w)", r"\\*", line)
        lines[index] = line
    lines[:] = labelled(with_links("\n".join(lines)).split("\n"))


LABEL = re.compile(r"([A-Z][\w ]*): (?=\S)")
"""What begins a statement of a docstring's Notes: Error, Methods, Derivatives and others."""


def labelled(lines: list[str]) -> list[str]:
    """Return the lines of a docstring with every statement of its Notes as a paragraph, its label in bold."""
    found, inside = [], False
    for line in lines:
        if line.startswith(".. rubric::"):
            inside = line.endswith(" Notes")
        if inside and LABEL.match(line):
            found.append("")
            line = LABEL.sub(r"**\1:** ", line, count=1)
        found.append(line)
    return found


def setup(app: Any) -> None:
    """Connect the functions of this file to Sphinx."""
    app.connect("config-inited", write_pages)
    app.connect("source-read", link_site)
    app.connect("autodoc-process-docstring", as_written)

"""Count habits of prose that cost a second reading: ``python -m docs.words``, or with files or folders to count in.

Without arguments it reads the pages. Of Python's files it reads docstrings and comments, of kernels comments. It is a
help for writers and no gate: some sentences need the word "which". Code, generated parts, links' addresses and the
tables of results are left out.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

HABITS = {
    "what": r"\bwhat\b",
    "which": r"\bwhich\b",
    "whose": r"\bwhose\b",
    "those of": r"\b(?:those|that|these) of\b",
    "the same": r"\bthe same\b(?! \w)",
    "so do": r"\bso (?:do|does|is|are|was|it is|they are)\b",
    "pointers": r"\b(?:tells?|minds?|stands?|serves?)\b",
}
"""The words counted. "The same" counts where no noun follows: there a reader must look for the thing that is meant."""

LEFT_OUT = (
    r"^---\n.*?^---\n",
    r"^```.*?^```",
    r"<!-- (\w[\w ]*): begin -->.*?<!-- \1: end -->",
    r"`[^`]*`",
    r"\]\([^)]*\)",
)
GENERATED = {"trust.md", "results.md", "results_others.md", "support.md"}


def pages() -> list[Path]:
    """Return the pages that people write."""
    own = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    found = [*own, *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "notebooks").glob("*.md"))]
    return [path for path in found if path.name not in GENERATED]


def written(path: Path) -> str:
    """Return the prose of a file: a page, or the docstrings and comments of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        comments = [token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT]
        nodes = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
        strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        return "\n".join((*strings, *comments))
    if path.suffix in (".cu", ".cuh"):
        return "\n".join(re.findall(r"//\s*(.*)", text))
    return text


def files(places: Iterable[Path]) -> list[Path]:
    """Return the files of prose or code among files and in folders."""
    return [path for place in places for path in ([place] if place.is_file() else _inside(place))]


def _inside(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in (".md", ".py", ".cu", ".cuh"))


def prose(text: str) -> str:
    """Return a page's text without code, generated parts and addresses of links."""
    for pattern in LEFT_OUT:
        text = re.sub(pattern, " ", text, flags=re.DOTALL | re.MULTILINE)
    return text


def counts(text: str) -> tuple[int, dict[str, int]]:
    """Return the number of words in a page, and the number of times that it has each habit."""
    plain = prose(text)
    found = {name: len(re.findall(pattern, plain, re.IGNORECASE)) for name, pattern in HABITS.items()}
    return len(re.findall(r"[A-Za-z]+", plain)), found


def table(paths: Iterable[Path]) -> list[str]:
    """Return the lines of a table: each file's habits per 1000 words, most first, and all files together."""
    rows = []
    words, every = 0, dict.fromkeys(HABITS, 0)
    for path in paths:
        length, found = counts(written(path))
        words += length
        every = {name: every[name] + number for name, number in found.items()}
        rows.append((1000 * sum(found.values()) / max(length, 1), length, found, path.name))
    rows.sort(key=lambda row: -row[0])
    rows.append((1000 * sum(every.values()) / max(words, 1), words, every, "together"))
    lines = ["per 1000   words  " + "".join(f"{name:>10}" for name in HABITS) + "  file"]
    for rate, length, found, name in rows:
        lines.append(f"{rate:8.1f}{length:8d}  " + "".join(f"{number:10d}" for number in found.values()) + f"  {name}")
    return lines


if __name__ == "__main__":
    print(*table(files(map(Path, sys.argv[1:])) or pages()), sep="\n")

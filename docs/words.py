"""Count habits of prose that cost a second reading: ``python -m docs.words``, or with Markdown files to count in.

A help for those who write these pages, and no gate: some sentences need the word "which". Code, generated parts, links'
addresses and the tables of results are left out.
"""

from __future__ import annotations

import re
import sys
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
        length, found = counts(path.read_text(encoding="utf-8"))
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
    print(*table([Path(name) for name in sys.argv[1:]] or pages()), sep="\n")

"""Check a built site: ``python docs/check_site.py docs/_build/html`` fails if the target of a link is missing.

Sphinx reports references that it cannot resolve. This command reads the pages that Sphinx wrote: all links, anchors,
pictures and styles must have targets, and no page may load files from other sites.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src")}
"""What a browser fetches by itself when it shows a page."""


class Page(HTMLParser):
    """The targets that a page names, its anchors, and the files that it loads from other sites."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.foreign: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        for name in ("href", "src"):
            value = found.get(name)
            if not value:
                continue
            parts = urlsplit(value)
            if parts.scheme in ("http", "https") or parts.netloc:
                self.foreign += [value] if (tag, name) in LOADS else []
            elif not parts.scheme:
                self.targets.append(value)


def faults(folder: Path) -> list[str]:
    """Return a sentence for everything that a page of the site names and that is not there."""
    pages = {path: Page(path) for path in sorted(folder.rglob("*.html")) if folder / "_static" not in path.parents}
    found = [] if pages else [f"{folder} has no pages"]
    for path, page in pages.items():
        name = path.relative_to(folder)
        found += [f"{name} loads {one}" for one in page.foreign]
        for target in page.targets:
            parts = urlsplit(target)
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.exists():
                found.append(f"{name} names {target}, which is not there")
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors:
                found.append(f"{name} names {target}, a place that the page does not have")
    return found


def main(arguments: list[str]) -> int:
    """Print the faults of the site in a folder; return 1 if there are any."""
    found = faults(Path(arguments[0]).resolve())
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The comparison as people read it: one line a primitive, and a report in HTML with the plots and the long table."""

from __future__ import annotations

import base64
import html
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.backends import available, installed
from parprims._tools.comparison import si

LOSS = 1.1
"""How many times as long as the best peer auto may take before the page calls it a loss."""

SIZES = (("up to 2^12", 0, 2**12), ("up to 2^18", 2**12, 2**18), ("larger", 2**18, math.inf))
"""The columns of winners, by the elements of a case's first input."""

HEAD = ("primitive", "arrays", "cases", *(f"fastest {name}" for name, _, _ in SIZES), "auto over peer", "least", "at")
LEGEND = (
    "Fastest: who wins most cases of a size, and how many of them; kernel, native and array are ours, other names are "
    "peers on the same arrays. auto over peer: the speed of what auto takes over that of the best peer, an outside one "
    "or the routine of the library itself, above 1 ours is faster; the median over the cases, then the least and its "
    f"case, a LOSS below {1 / LOSS:.2f}."
)
COLOURS = "Blue is our kernel, orange our array form, green our native, and grey are the peers. More is better."
_CEILINGS = {
    "copy": "bytes read and written by a copy of a large array",
    "read": "bytes read by the sum of a large array",
    "matmul": "operations of the library's own product",
}
_EXTRAS = {"cupy": "cuda13", "torch": "torch", "jax": "jax", "numba": "cpu", "scipy": "bench", "matplotlib": "bench"}
"""What more can be compared, and the extra of this package that installs it."""


def rows(records: Iterable[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Return the page's lines under `HEAD`: one for each primitive on each library's arrays."""
    groups: dict[tuple[str, str], dict[tuple[str, str], list[Mapping[str, Any]]]] = {}
    for one in records:
        cases = groups.setdefault((one["primitive"], one["backend"]), {})
        cases.setdefault((one["case"], one["dtype"]), []).append(one)
    found = []
    for (primitive, backend), cases in groups.items():
        ratios = {name: ratio for (name, _), group in cases.items() if (ratio := _over_peer(group)) is not None}
        worst = min(ratios, key=ratios.__getitem__, default="")
        told = f"{ratios[worst]:.2f}" if ratios else ""
        found.append(
            (
                *(primitive, backend, str(len(cases))),
                *(_winner(cases.values(), low, high) for _, low, high in SIZES),
                f"{statistics.median(ratios.values()):.2f}" if ratios else "",
                f"LOSS {told}" if ratios and ratios[worst] < 1 / LOSS else told,
                worst if ratios and ratios[worst] < 1 else "",
            )
        )
    return found


def _over_peer(group: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the speed of what auto takes in a case over that of the best peer; None where one was not timed."""
    taken = [one["seconds"] for one in group if one.get("auto")]
    peers = [one["seconds"] for one in group if one["method"] == "native" or one["method"].startswith("peer:")]
    return min(peers) / taken[0] if taken and peers else None


def _winner(groups: Iterable[Sequence[Mapping[str, Any]]], low: float, high: float) -> str:
    """Return who is fastest most often among the cases of a size, and how often."""
    inside = [group for group in groups if low < max(1, math.prod(group[0]["shape"])) <= high]
    if not inside:
        return ""
    names = Counter(min(group, key=lambda one: one["seconds"])["method"].removeprefix("peer:") for group in inside)
    ((name, count),) = names.most_common(1)
    return f"{name} {count}/{len(inside)}"


def ceilings(head: Mapping[str, Any]) -> list[str]:
    """Return what bounds the rates on this machine, a line each."""
    found = []
    for name, rate in head["ceilings"].items():
        what = next(words for start, words in _CEILINGS.items() if name.startswith(start))
        found.append(f"{name}: {si(rate, 'FLOP/s' if name.startswith('matmul') else 'B/s')}, {what}")
    return found


def missing(names: Iterable[str] = tuple(_EXTRAS)) -> list[str]:
    """Return what more would be compared if it were installed, of some packages, a line each."""
    extras: dict[str, list[str]] = {}
    for name in names:
        if not (available(name) if name in ("cupy", "torch", "jax") else installed(name)):
            extras.setdefault(_EXTRAS[name], []).append(name)
    return [f'{", ".join(names)}: pip install -e ".[{extra}]"' for extra, names in extras.items()]


def page(records: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> str:
    """Return the page as text."""
    lines = [HEAD, *rows(records)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    more = missing()
    parts = [
        title(records, head),
        "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines),
        LEGEND,
        "\n".join(("Ceilings of this machine, which a rate cannot pass by much:", *ceilings(head))),
    ]
    if more:
        parts.append("\n".join(("More would be compared with", *more)))
    return "\n\n".join(parts)


def title(records: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> str:
    """Return what was compared, where, and with which versions."""
    names = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
    cases = len({(one["primitive"], one["case"], one["dtype"]) for one in records})
    return f"{cases} cases on {head['device']}, {head['date'][:10]}, every result checked: {names}"


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; }
.loss { color: #b00020; color: light-dark(#b00020, #ff8a80); font-weight: 600; white-space: nowrap; }
.picture { overflow-x: auto; }
img { width: 100%; min-width: 56rem; background: white; }
pre { overflow-x: auto; font-size: 12px; }
:root { color-scheme: light dark; }
@media (prefers-color-scheme: dark) { img { filter: invert(.92) hue-rotate(180deg) brightness(1.15) saturate(1.1); } }
"""


def report(records: Sequence[Mapping[str, Any]], head: Mapping[str, Any], long: str, picture: Path | None) -> str:
    """Return the page in HTML, with the plots and the long table."""
    lines = [_row("th", HEAD), *(_row("td", row) for row in rows(records))]
    image = ""
    if picture is not None and picture.exists():
        image = (
            f"<h2>Rates by size</h2>\n<p>{html.escape(COLOURS)}</p>\n"
            f'<div class="picture"><img alt="rates by size" src="data:image/png;base64,{_bytes(picture)}"></div>'
        )
    bounds = "".join(f"<li>{html.escape(one)}</li>" for one in ceilings(head))
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">\n<title>parprims: the comparison</title>',
            f"<style>{_STYLE}</style>\n<h1>parprims: the comparison</h1>",
            f"<p>{html.escape(title(records, head))}.</p>",
            "<table>\n" + "\n".join(lines) + "\n</table>",
            f"<p>{html.escape(LEGEND)}</p>\n<p>Ceilings of this machine:</p>\n<ul>{bounds}</ul>",
            image,
            "<h2>Every case</h2>",
            f"<details><summary>The long table</summary>\n<pre>{html.escape(long)}</pre></details>",
            "</html>\n",
        )
    )


def _row(tag: str, cells: Iterable[str]) -> str:
    def cell(text: str) -> str:
        loss = ' class="loss"' if text.startswith("LOSS") else ""
        return f"<{tag}{loss}>{html.escape(text)}</{tag}>"

    return f"<tr>{''.join(map(cell, cells))}</tr>"


def _bytes(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()

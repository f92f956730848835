"""Tables of records: a case's lines, the summary, the table of all results, and the rows that the README shows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benches.core.cases import OURS
from benches.core.runs import Outcome
from parprims._tools.comparison import si


def commits(records: Iterable[dict[str, Any]]) -> str:
    """Return the commits that were measured."""
    return ", ".join(dict.fromkeys(one["commit"][:12] for one in records))


def _groups(records: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the records of each case together, in the order in which the cases come.

    Where no ceiling bounds a case its time is the library's own overhead: there every backend is a case.
    """
    groups: dict[Any, list[dict[str, Any]]] = {}
    for one in records:
        backend = one["backend"] if one["ceiling_fraction"] is None else ""
        groups.setdefault((one["primitive"], one["case"], one["dtype"], backend), []).append(one)
    return list(groups.values())


def _fastest(records: Iterable[dict[str, Any]], prefix: str) -> dict[str, Any] | None:
    return min((one for one in records if one["method"].startswith(prefix)), key=lambda r: r["seconds"], default=None)


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.0f} %"


def table(outcome: Outcome) -> str:
    """Return a case's lines: for each contender time, rate, share of the ceiling and speed beside others.

    The method that auto takes is marked with a star. Ratios above 1 say that the line's contender is faster.
    """
    if not outcome.records:
        return "\n".join([f"{outcome.case.primitive}: {outcome.case.name}", *outcome.errors])
    first = outcome.records[0]
    shape = " x ".join(map(str, first["shape"]))
    lines = [f"{first['primitive']}: {first['case']}   {first['dtype']}   {shape}"]
    peer = _fastest(outcome.records, "peer:")
    for one in outcome.records:
        native = _fastest((r for r in outcome.records if r["backend"] == one["backend"]), "native")
        star = "*" if outcome.auto[one["backend"]] == one["method"] else " "
        ratios = "".join(
            f"  {other['seconds'] / one['seconds']:6.2f}x {name}"
            for name, other in (("native", native), ("best peer", peer))
            if other and other is not one
        )
        lines.append(
            f"  {one['backend']:<11}{one['method'] + star:<23}{si(one['seconds'], 's'):>9}"
            f"{si(one['rate'], one['unit']):>14}{_percent(one['ceiling_fraction']):>7}{ratios}"
        )
    return "\n".join([*lines, *(f"  {error}" for error in outcome.errors)])


COLUMNS = ["case", "dtype", "backend", *OURS, "best peer", "ours is", "of ceiling"]
LEGEND = (
    "Each figure is that of the fastest backend. Ours is the kernel where there is one, else the faster of array and "
    "native; it stands beside the best peer (2x: in half the time), on the backend named."
)


def _row(group: list[dict[str, Any]], show: Callable[[dict[str, Any]], str]) -> list[str]:
    """Return a case's entries under `COLUMNS`."""
    methods = [_fastest(group, method) for method in OURS]
    timed = [one for one in methods if one]
    ours = _fastest(group, "kernel") or min(timed, key=lambda one: one["seconds"], default=None)
    peer = _fastest(group, "peer:")
    return [
        group[0]["case"],
        group[0]["dtype"],
        ours["backend"] if ours else "",
        *(show(one) if one else "" for one in methods),
        f"{show(peer)} {peer['method'].removeprefix('peer:')}" if peer else "",
        f"{peer['seconds'] / ours['seconds']:.2f}x" if peer and ours else "",
        _percent(ours["ceiling_fraction"]) if ours else "",
    ]


def summary(records: Iterable[dict[str, Any]]) -> str:
    """Return one line per case, narrow enough for a terminal."""
    rows = [COLUMNS, *(_row(group, lambda one: si(one["seconds"], "s")) for group in _groups(records))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _figure(one: dict[str, Any]) -> str:
    """Return a rate, or the time where that is the library's own overhead."""
    return si(one["seconds"], "s") if one["ceiling_fraction"] is None else si(one["rate"], one["unit"])


def results_table(paths: Iterable[Path]) -> str:
    """Return the tables of results files, in Markdown: the largest case of every family."""
    parts = []
    files = [json.loads(path.read_text()) for path in sorted(paths)]
    for file in sorted(files, key=lambda file: -len(file["records"])):  # the widest comparison first
        head = file["header"]
        tops = ", ".join(
            f"{name} {si(rate, 'FLOP/s' if name.startswith('matmul') else 'B/s')}"
            for name, rate in head["ceilings"].items()
        )
        names = ", ".join(f"{name} {version}" for name, version in head["versions"].items())
        largest: dict[Any, list[dict[str, Any]]] = {}
        for group in _groups(file["records"]):
            one = group[0]
            backend = one["backend"] if one["ceiling_fraction"] is None else ""
            family = (one["primitive"], one["case"].partition(",")[0], one["dtype"], backend)
            if family not in largest or math.prod(one["shape"]) > math.prod(largest[family][0]["shape"]):
                largest[family] = group
        parts += [
            f"## {head['device']}{f', {threads} threads' if (threads := head.get('cpus')) else ''}",
            "",
            f"{head['date'][:10]}, commit {commits(file['records'])}; {names}.",
            f"Measured ceilings: {tops}. {LEGEND}",
            "",
        ]
        by_primitive: dict[str, list[str]] = {}
        for group in largest.values():
            by_primitive.setdefault(group[0]["primitive"], []).append(f"| {' | '.join(_row(group, _figure))} |")
        for primitive, rows in by_primitive.items():
            heading = f"### {primitive}"
            parts += [heading, "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *rows, ""]
    return "\n".join(parts).rstrip() + "\n"


def few_rows(records: Iterable[dict[str, Any]], wanted: Iterable[tuple[str, str, str]]) -> str:
    """Return a short table, in Markdown: ours and the best peer's figure for cases named by primitive, case, dtype."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in records:
        groups.setdefault((one["primitive"], one["case"], one["dtype"]), []).append(one)
    shown = ["| primitive | case | dtype | ours | best peer | ours is | of ceiling |", "|---|---|---|---|---|---|---|"]
    for key in wanted:
        case, dtype, _, array, kernel, native, peer, ratio, share = _row(groups[key], _figure)
        ours = kernel or native or array
        shown.append(f"| `{key[0]}` | {' | '.join((case, dtype, ours, peer, ratio, share))} |")
    return "\n".join(shown) + "\n"


def between(name: str) -> tuple[str, str]:
    """Return the lines of Markdown between which a generated part of a page stands."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def with_part(text: str, name: str, part: str) -> str:
    """Return a page's text with the generated part of a name replaced."""
    begin, end = between(name)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no lines {begin} and {end}")
    return f"{before}{begin}\n{part}{end}{after}"

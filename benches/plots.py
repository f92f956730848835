"""The picture of a results file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benches.tables import commits
from examples.backends import installed


def plot(path: Path, head: Mapping[str, Any], records: list[dict[str, Any]]) -> str:
    """Draw rate against size, one panel per primitive with the family that has most sizes; return what was done."""
    if not installed("matplotlib"):
        return "no plot: matplotlib is not installed"
    import matplotlib
    from matplotlib.figure import Figure

    panels: dict[str, dict[Any, list[dict[str, Any]]]] = {}
    for one in records:
        family = (one["ceiling_fraction"] is not None, one["case"].partition(",")[0], one["dtype"])
        panels.setdefault(one["primitive"], {}).setdefault(family, []).append(one)
    columns = min(3, len(panels)) or 1
    rows = math.ceil(len(panels) / columns) or 1
    figure = Figure(figsize=(7 * columns, 5 * rows), layout="constrained")
    figure.suptitle(f"{head['device']}, commit {commits(records)}")
    for index, (primitive, families) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_prop_cycle(color=matplotlib.colormaps["tab20"].colors)
        family, chosen = max(families.items(), key=lambda item: (item[0][0], len({one["case"] for one in item[1]})))
        lines: dict[str, list[tuple[int, float]]] = {}
        for one in chosen:
            lines.setdefault(f"{one['backend']} {one['method']}", []).append((math.prod(one["shape"]), one["rate"]))
        axes.set_title(f"{primitive}: {', '.join(family[1:])}")
        if len({one["case"] for one in chosen}) == 1:
            axes.barh(list(lines), [points[0][1] for points in lines.values()])
            axes.invert_yaxis()
            axes.set_xlabel(chosen[0]["unit"])
            continue
        for label, points in lines.items():
            axes.loglog(*zip(*sorted(points), strict=True), marker=".", label=label, ls=":" if "peer" in label else "-")
        axes.set(xlabel="elements", ylabel=chosen[0]["unit"])
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=110)
    return f"plot: {path}"

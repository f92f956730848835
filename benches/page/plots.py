"""The picture of a results file, and the colours and styles of all pictures of results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benches.page.tables import commits
from examples.backends import installed

COLOURS = {"kernel": "#0072b2", "array": "#e69f00", "native": "#009e73", "peer": "#555555"}
"""A method has one colour in every picture."""

STYLES = {"cupy": "-", "torch-cuda": "--", "jax-cuda": ":", "numpy": "-", "torch": "--", "jax": ":"}
"""A library has one line style."""

NAMES = {"cupy": "CuPy", "torch-cuda": "PyTorch", "jax-cuda": "JAX", "numpy": "NumPy", "torch": "PyTorch", "jax": "JAX"}
MARKERS = {"cuda.compute": "s", "cublas": "s", "cusparse": "s", "accelerated-scan": "D"}
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def kind(method: str) -> str:
    """Return what the colour of a method goes by: its name, or peer."""
    return method.partition(":")[0] if method.partition(":")[0] in COLOURS else "peer"


def marker(method: str) -> str:
    """Return the mark of a method: a dot of ours, one of others by who they are."""
    return MARKERS.get(method.removeprefix("peer:"), "^" if kind(method) == "peer" else "o")


def unit(rates: Iterable[float], name: str) -> tuple[float, str]:
    """Return what to divide rates by, and the unit that they then have: the prefix is that of the largest."""
    largest = max(rates, default=0)
    scale, prefix = next(((size, letter) for size, letter in PREFIXES if largest >= size), (1.0, ""))
    return scale, prefix + name.replace("keys/s", "key/s")


def plot(path: Path, head: Mapping[str, Any], records: list[dict[str, Any]]) -> str:
    """Draw rate against size, one panel per primitive with the family that has most sizes; return what was done."""
    if not installed("matplotlib"):
        return "no plot: matplotlib is not installed"
    from matplotlib.figure import Figure

    panels: dict[str, dict[Any, list[dict[str, Any]]]] = {}
    for one in records:
        family = (one["ceiling_fraction"] is not None, one["case"].partition(",")[0], one["dtype"])
        panels.setdefault(one["primitive"], {}).setdefault(family, []).append(one)
    columns = min(3, len(panels)) or 1
    rows = math.ceil(len(panels) / columns) or 1
    figure = Figure(figsize=(4.6 * columns, 3.1 * rows), layout="constrained")
    figure.suptitle(f"{head['device']}, commit {commits(records)}", fontsize=10)
    for index, (primitive, families) in enumerate(panels.items()):
        axes = figure.add_subplot(rows, columns, index + 1)
        family, chosen = max(families.items(), key=lambda item: (item[0][0], _sizes(item[1])))
        axes.set_title(f"{primitive}: {', '.join(family[1:])}", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        _panel(axes, chosen)
    figure.savefig(path, dpi=110)
    return f"plot: {path}"


def _sizes(records: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of sizes that are one length, as 2^20 is: a line may join them, but not those of any shape."""
    sizes = {one["case"].partition(", ")[2] for one in records}
    return sum(" x " not in size for size in sizes)


def _panel(axes: Any, records: list[dict[str, Any]]) -> None:
    """Draw the rates of a family of cases: bars of one size, else lines by size."""
    scale, name = unit((one["rate"] for one in records), records[0]["unit"])
    several = len({one["backend"] for one in records}) > 1
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for one in records:
        points = lines.setdefault((one["backend"], one["method"]), [])
        points.append((math.prod(one["shape"]), one["rate"] / scale))
    labels = {key: _label(*key, several=several) for key in lines}
    if len({one["case"] for one in records}) == 1:
        colours = [COLOURS[kind(method)] for _, method in lines]
        axes.barh(list(labels.values()), [points[0][1] for points in lines.values()], color=colours, height=0.6)
        axes.invert_yaxis()
        axes.set_xlabel(f"{name}, {records[0]['case'].partition(', ')[2] or 'one size'}")
        axes.grid(visible=True, axis="x", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        return
    for (backend, method), points in lines.items():
        axes.loglog(
            *zip(*sorted(points), strict=True),
            color=COLOURS[kind(method)],
            linestyle=STYLES.get(backend, "-."),
            marker=marker(method),
            markersize=4,
            linewidth=1.4,
            label=labels[backend, method],
        )
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="elements", ylabel=name)
    axes.legend(fontsize=7, frameon=False, handlelength=3)


def _label(backend: str, method: str, *, several: bool) -> str:
    """Return what a method is called in a picture, with the library where there are several."""
    own, library = method.removeprefix("peer:"), NAMES.get(backend, backend)
    return f"{own}, {library}" if several and own.lower() != library.lower() else own

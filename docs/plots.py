"""The plots of the README and of the site, drawn from the records in benches/results: ``python -m docs.plots``.

A method has one colour and a library one line style, in every plot. What is drawn is kept as numbers beside the
pictures, in figures.json, so that a test can tell whether the pictures are those of the records.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benches.auto.table import best_of
from benches.core.records import RESULTS
from benches.page.plots import COLOURS, MARKERS, NAMES, STYLES, kind, marker

FOLDER = Path(__file__).resolve().parent / "pictures"
DEVICE = "nvidia-h200"
"""The results file of the plots."""

NEWER = "newer-primitives-cpu"
"""The results file of primitives that were measured on a CPU only."""

UNITS = {"B/s": (1e12, "TB/s"), "FLOP/s": (1e12, "TFLOP/s"), "key/s": (1e9, "Gkey/s"), "keys/s": (1e9, "Gkey/s")}

RUNGS = re.compile(r"[a-z -]+ by hand")
"""Cases of one rung of the ladder to the fast matrix product, there to be studied."""

PANELS = {
    "reduce": ("sum", "sum", "float32"),
    "scan": ("cumulative_sum", "sum", "float32"),
    "linear_recurrence": ("linear_recurrence", "one sequence", "float32"),
    "sort": ("sort_by_key", "key and value", "int32"),
    "solve_tridiagonal": ("solve_tridiagonal", "one system", "float32"),
    "matmul": ("matmul", "square", "float32"),
    "histogram": ("histogram", "256 bins", "float32"),
}
"""The family of cases that a primitive's page shows: primitive, name, dtype."""

WIDEST = 16
"""How far the bars reach."""

DARK = {"#e69f00": "#8f5f00", "#009e73": "#007a59", "#cc79a7": "#a3487c"}
"""The colours of words, for colours in which words on white are hard to read."""

Lines = dict[str, list[list[float]]]


def read(folder: Path = RESULTS) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    """Return the results file of the plots, those of calls on CPUs, and that of newer primitives on a CPU."""
    on_cpus = [json.loads(path.read_text()) for path in sorted((folder / "auto").glob("*.json"))]
    file, newer = (json.loads((folder / f"{name}.json").read_text()) for name in (DEVICE, NEWER))
    return file, on_cpus, newer


def family(record: Mapping[str, Any]) -> str:
    """Return the name of a case without its size."""
    return record["case"].partition(",")[0]


def lines(records: Iterable[Mapping[str, Any]], primitive: str, name: str, dtype: str) -> Lines:
    """Return for each "backend method" of a family of cases the points (elements, rate), by size."""
    found: Lines = {}
    for one in records:
        if (one["primitive"], family(one), one["dtype"]) == (primitive, name, dtype):
            found.setdefault(f"{one['backend']} {one['method']}", []).append([math.prod(one["shape"]), one["rate"]])
    return {label: sorted(points) for label, points in found.items()}


def ratios(records: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return for each primitive the best peer's time over our best, of the largest case of every family, in order.

    Left out are cases without a peer, those that time a call's overhead, and the ladder's rungs.
    """
    largest: dict[Any, list[dict[str, Any]]] = {}
    for one in records:
        if one["ceiling_fraction"] is None or RUNGS.match(one["case"]):
            continue
        group = largest.setdefault((one["primitive"], family(one), one["dtype"]), [])
        if group and math.prod(one["shape"]) > math.prod(group[0]["shape"]):
            group.clear()
        if not group or one["case"] == group[0]["case"]:
            group.append(one)
    found: dict[str, list[float]] = {}
    for (primitive, *_), group in largest.items():
        peers = [one["seconds"] for one in group if one["method"].startswith("peer:")]
        ours = [one["seconds"] for one in group if one["method"] in ("kernel", "array", "native")]
        if peers and ours:
            found.setdefault(primitive, []).append(round(min(peers) / min(ours), 3))
    return {primitive: sorted(values) for primitive, values in found.items()}


def auto_ratios(records: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the same of calls that were timed on a CPU by ``auto``: a loop compiled by Numba counts where alone."""
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for one in records:
        groups.setdefault((one["case"], one["backend"], one["dtype"], one["axis"]), []).append(one)
    found: dict[str, list[float]] = {}
    for group in groups.values():
        ours = next(one["seconds"] for one in group if one["method"] == "auto")
        peers = {one["method"]: one["seconds"] for one in group if one["method"].startswith("peer:")}
        found.setdefault(group[0]["primitive"], []).append(round(peers[best_of(peers)] / ours, 3))
    return {primitive: sorted(values) for primitive, values in found.items()}


def middle(values: list[float]) -> float:
    """Return the median of ratios, between two of them their geometric mean."""
    return math.exp(statistics.median(map(math.log, values)))


def over_best(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return for each backend and case the time of every method over that of the fastest there."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for one in records:
        case = f"{one['primitive']}: {one['case']}"
        found.setdefault(one["backend"], {}).setdefault(case, {})[one["method"]] = one["seconds"]
    return {
        backend: {
            case: {method: round(seconds / min(times.values()), 3) for method, seconds in times.items()}
            for case, times in cases.items()
        }
        for backend, cases in found.items()
    }


def figures(file: Mapping[str, Any], on_cpus: Iterable[Mapping[str, Any]], newer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of all plots, of the results file of a GPU and those of calls on CPUs."""
    records = file["records"]
    device = file["header"]["device"]
    return {
        "device": device,
        "copy": file["header"]["ceilings"]["copy"],
        "newer on": f"{newer['header']['device']}, {newer['header']['cpus']} threads",
        "newer": over_best(newer["records"]),
        **{name: lines(records, *one) for name, one in PANELS.items()},
        "ratios": {
            device: ratios(records),
            **{
                f"{one['header']['device']}, {one['header']['cpus']} threads": auto_ratios(one["records"])
                for one in on_cpus
            },
        },
    }


def _unit(records: Iterable[Mapping[str, Any]], primitive: str) -> tuple[float, str]:
    return UNITS[next(one["unit"] for one in records if one["primitive"] == primitive and "call" not in one["case"])]


def _label(backend: str, method: str) -> str:
    name = method.removeprefix("peer:")
    if not method.startswith("peer:"):
        return f"{method}, {NAMES[backend]}"
    return name if name in MARKERS else f"{NAMES[backend]}'s own"


def _draw(axes: Any, shown: Lines, scale: float, words: Mapping[str, str] | None = None) -> None:
    """Draw lines of rates against sizes."""
    for label, points in shown.items():
        backend, _, method = label.partition(" ")
        sizes, rates = zip(*points, strict=True)
        axes.loglog(
            sizes,
            [rate / scale for rate in rates],
            color=COLOURS[kind(method)],
            linestyle=STYLES[backend],
            marker=marker(method),
            markersize=4,
            linewidth=1.6,
            label=(words or {}).get(label, _label(backend, method)),
        )
    axes.grid(visible=True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlabel("elements")


def words_in(colour: str) -> str:
    """Return a colour for words that explain lines or boxes of this colour."""
    return DARK.get(colour, colour)


def _ceiling(axes: Any, value: float, name: str) -> None:
    axes.axhline(value, color="#bbbbbb", linewidth=1, zorder=0)
    axes.annotate(name, (0.01, value), xycoords=("axes fraction", "data"), va="bottom", fontsize=8, color="#777777")


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def recurrence_plot(numbers: Mapping[str, Any]) -> Any:
    """Return the plot of a recurrence by all that can compute it, with a label at the end of each line."""
    shown = {label: one for label, one in numbers["linear_recurrence"].items() if label != "cupy array"}
    words = {"jax-cuda peer:jax": "jax.lax.associative_scan", "jax-cuda native": "native, JAX"}
    words = {label: words.get(label, _label(*label.split(" ", 1))) for label in shown}
    for label in list(shown):  # a line under another one would be hidden
        twin = next((other for other in shown if other < label and _alike(shown[other], shown[label])), None)
        if twin is not None:
            words[twin] += f" and {words[label].rpartition(', ')[2]}"
            del shown[label]
    figure = _figure(8.4, 4.2)
    axes = figure.subplots()
    _draw(axes, shown, 1e12)
    _ceiling(axes, numbers["copy"] / 1e12, "a copy of the memory")
    highest, place = math.inf, 0.0
    for label, points in sorted(shown.items(), key=lambda item: -item[1][-1][1]):
        size, rate = points[-1]
        place = min(rate / 1e12, highest / _APART)
        colour = words_in(COLOURS[kind(label.partition(" ")[2])])
        axes.annotate(words[label], (size * 1.25, place), va="center", fontsize=9, color=colour, annotation_clip=False)
        highest = place
    axes.set_xlim(right=axes.get_xlim()[1] * 12)  # room for the labels
    axes.set_ylabel("TB/s")
    axes.set_title(f"linear_recurrence, one sequence of float32, {numbers['device']}", fontsize=10)
    return figure


_APART = 1.5
"""The least ratio of the heights of two labels."""


def _alike(points: list[list[float]], others: list[list[float]]) -> bool:
    """Return whether the rates of two lines differ by less than 8 % at every size."""
    return len(points) == len(others) and all(
        size == other_size and abs(math.log(rate / other)) < 0.08
        for (size, rate), (other_size, other) in zip(points, others, strict=True)
    )


SHORT = (
    "sum reduce scan cumulative_sum linear_recurrence sort argsort histogram searchsorted solve_tridiagonal matmul "
    "vecdot"
).split()
"""The primitives of the README's picture."""

PEERS = {
    "gpu": "the best of CUB, cuBLAS, cuSPARSE, accelerated-scan and the library's own",
    "cpu": "the best of NumPy, SciPy, PyTorch, JAX and a loop by Numba",
}
"""The peers of the panels, in the labels of their axes."""


def short_ratio_plot(numbers: Mapping[str, Any]) -> Any:
    """Return the README's picture: a panel of a GPU above one of a CPU, of the primitives of `SHORT`.

    It is narrow, so that a phone shows its words at their size.
    """
    devices = numbers["ratios"]
    figure = _figure(5.4, 7.2)
    shown = list(devices.items())[:2]
    for axes, (device, found), peers in zip(figure.subplots(2, 1), shown, PEERS.values(), strict=True):
        _ratio_panel(axes, {name: found[name] for name in SHORT if name in found}, device)
        axes.set_xlabel(f"times as fast as\n{peers}", fontsize=8)
    figure.suptitle("median of a primitive's cases (bars), each case (marks)\nright of the line is faster", fontsize=9)
    return figure


def ratio_plot(numbers: Mapping[str, Any]) -> Any:
    """Return the bars of every device, a panel each: the medians of the best peer's time over ours."""
    devices = numbers["ratios"]
    first, *others = devices  # the first stands beside the others, which stand below one another
    rows = max(len(devices[first]), sum([len(devices[one]) + 3 for one in others]))
    figure = _figure(8.4, 0.9 + 0.27 * rows)
    panels = figure.subplot_mosaic([[first, one] for one in others] or [[first]])
    for device, found in devices.items():
        _ratio_panel(panels[device], found, device)
        panels[device].set_xlabel("times as fast as the best peer", fontsize=8)
    figure.suptitle("median of a primitive's cases (bars), and each case (marks)", fontsize=10)
    return figure


def _ratio_panel(axes: Any, found: Mapping[str, list[float]], title: str) -> None:
    """Draw a bar for each primitive, from the line of equal speed to the median, and a mark for each case."""
    ordered = sorted(found.items(), key=lambda item: middle(item[1]))
    lowest = min(min(values) for values in found.values())
    least = next(bound for bound in (0.5, 0.25, 1 / 16) if bound < lowest or bound == 1 / 16)
    for place, (_, values) in enumerate(ordered):
        half, inside = middle(values), [min(max(value, least), WIDEST) for value in values]
        axes.barh(place, min(half, WIDEST) - 1, left=1, color=COLOURS["kernel"], height=0.6)
        axes.plot([inside[0], inside[-1]], [place, place], color="#222222", linewidth=1)
        axes.plot(inside, [place] * len(inside), "|", color="#222222", markersize=6)
        words = _times(half) + (f", up to {_times(values[-1])}" if values[-1] > WIDEST else "")
        axes.annotate(words, (1.03, place), xycoords=("axes fraction", "data"), va="center", fontsize=8)
    axes.set_xscale("log")
    ticks = {1 / 16: "1/16", 0.25: "1/4", 1: "equal", 4: "4x", 16: "16x"}
    if least > 1 / 16:
        ticks |= {0.5: "1/2", 2: "2x"}
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize=9)
    axes.set_xlim(least, WIDEST)
    axes.minorticks_off()
    axes.set_yticks(range(len(ordered)), [name for name, _ in ordered], fontsize=9)
    axes.axvline(1, color="#222222", linewidth=0.8)
    axes.grid(visible=True, axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title(title, fontsize=10)


def _times(ratio: float) -> str:
    """Return a ratio in at most three digits."""
    return f"{ratio:.2f}x" if ratio < 1 else f"{ratio:.1f}x" if ratio < 10 else f"{ratio:.0f}x"


def primitive_plot(name: str, numbers: Mapping[str, Any], records: list[dict[str, Any]]) -> Any:
    """Return the plot of a primitive's page: a panel for each library."""
    primitive, case, dtype = PANELS[name]
    scale, unit = _unit(records, primitive)
    backends = [
        one for one in ("cupy", "torch-cuda", "jax-cuda") if any(label.startswith(one) for label in numbers[name])
    ]
    figure = _figure(8.4, 3.3)
    every = figure.subplots(1, len(backends), sharey=True, sharex=True, squeeze=False)[0]
    for axes, backend in zip(every, backends, strict=True):
        _draw(axes, {label: one for label, one in numbers[name].items() if label.startswith(backend + " ")}, scale)
        axes.set_title(NAMES[backend], fontsize=10)
        if unit == "TB/s":
            _ceiling(axes, numbers["copy"] / scale, "a copy of the memory")
        axes.legend(fontsize=7.5, framealpha=0.85, edgecolor="none", loc="lower right", handlelength=3)
    every[0].set_ylabel(unit)
    figure.suptitle(f"{primitive}: {case}, {dtype}, {numbers['device']}", fontsize=10)
    return figure


def newer_plot(numbers: Mapping[str, Any]) -> Any:
    """Return the times of newer primitives on a CPU, over that of the fastest: a panel for each library."""
    found = numbers["newer"]
    backends = [one for one in NAMES if one in found]
    cases = list(dict.fromkeys(case for backend in backends for case in found[backend]))[::-1]
    figure = _figure(8.4, 0.9 + 0.24 * len(cases))
    panels = figure.subplots(1, len(backends), sharey=True, sharex=True, squeeze=False)[0]
    shown: dict[str, Any] = {}
    for axes, backend in zip(panels, backends, strict=True):
        for case, times in found[backend].items():
            for method, ratio in times.items():
                style = {"color": COLOURS[kind(method)], "marker": marker(method), "linestyle": "none"}
                (shown[kind(method)],) = axes.plot([ratio], [cases.index(case)], markersize=5, alpha=0.85, **style)
        axes.set_xscale("log")
        axes.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1000"], fontsize=8)
        axes.minorticks_off()
        axes.grid(visible=True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_title(NAMES[backend], fontsize=10)
    panels[0].set_yticks(range(len(cases)), cases, fontsize=8)
    names = [name for name in COLOURS if name in shown]
    panels[-1].legend([shown[one] for one in names], names, fontsize=8, loc="lower right")
    figure.supxlabel("time over that of the fastest", fontsize=9)
    figure.suptitle(numbers["newer on"], fontsize=10)
    return figure


def save(figure: Any, path: Path) -> None:
    """Write a picture whose bytes depend on what it shows alone."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.stem, "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None})
    text = path.read_text()
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")


def drawn_by() -> str:
    """Return a digest of the code that draws, so that a test can tell pictures that are older than it."""
    texts = [
        (FOLDER.parents[1] / f"{name}.py").read_text() for name in ("docs/diagrams", "docs/plots", "benches/page/plots")
    ]
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


def main(results: Path = RESULTS) -> int:
    """Draw all plots of a folder of results and write their numbers; return the exit status."""
    file, on_cpus, newer = read(results)
    numbers = figures(file, on_cpus, newer)
    FOLDER.mkdir(exist_ok=True)
    save(recurrence_plot(numbers), FOLDER / "recurrence.svg")
    save(short_ratio_plot(numbers), FOLDER / "ratios.svg")
    save(ratio_plot(numbers), FOLDER / "ratios_of_all.svg")
    save(newer_plot(numbers), FOLDER / "newer.svg")
    for name in PANELS:
        save(primitive_plot(name, numbers, file["records"]), FOLDER / f"measured_{name}.svg")
    (FOLDER / "figures.json").write_text(json.dumps({"drawn by": drawn_by(), **numbers}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

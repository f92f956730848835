"""The pictures of the algorithms, drawn by code: ``python -m docs.diagrams``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from docs.plots import COLOURS, FOLDER, save, words_in

BLUE, ORANGE, GREEN, GREY = COLOURS["kernel"], COLOURS["array"], COLOURS["native"], "#9a9a9a"
PALE = {BLUE: "#d6e8f4", ORANGE: "#fbe9c6", GREEN: "#d3efe5", GREY: "#eeeeee"}
PINK = "#cc79a7"
DIGITS = (BLUE, ORANGE, GREEN, PINK)


def canvas(width: float, height: float, across: float, down: float, panels: int = 1) -> tuple[Any, list[Any]]:
    """Return a figure with panels of so many units across and down, the origin at the top left."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    found = list(figure.subplots(1, panels, squeeze=False)[0])
    for axes in found:
        axes.set(xlim=(0, across), ylim=(down, 0))
        axes.axis("off")
    return figure, found


def box(
    axes: Any, x: float, y: float, w: float, h: float, text: str = "", colour: str = GREY, *, full: bool = False
) -> None:
    """Draw a rectangle with a word in it."""
    from matplotlib.patches import Rectangle

    face = colour if full else PALE.get(colour, "white")
    axes.add_patch(Rectangle((x, y), w, h, facecolor=face, edgecolor=colour, linewidth=1.2))
    say(axes, x + w / 2, y + h / 2, text, colour="white" if full and colour != ORANGE else "#222222")


def say(axes: Any, x: float, y: float, text: str, *, colour: str = "#222222", size: float = 8, **more: Any) -> None:
    """Write words, in the middle of a place unless told otherwise."""
    axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": size, "color": colour, **more})


def arrow(
    axes: Any, start: tuple[float, float], end: tuple[float, float], colour: str = "#444444", bend: float = 0
) -> None:
    """Draw an arrow."""
    way = {"arrowstyle": "-|>", "color": colour, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**way, "connectionstyle": f"arc3,rad={bend}"})


def step_doubling() -> Any:
    """Return the scan by step doubling of eight elements."""
    n, gap, figure_height = 8, 1.5, 3.6
    figure, (axes,) = canvas(8.2, figure_height, 11.2, 3 * gap + 1.1)
    for row in range(4):
        y = 0.4 + row * gap
        step = 2 ** (row - 1) if row else 0
        words = "the elements" if not row else f"step {row}: combine with the one {step} before"
        say(axes, 8.5, y, words, ha="left")
        for i in range(n):
            first = max(0, i - 2**row + 1)
            label = f"{i}" if first == i else f"{first}..{i}"
            done = first == 0
            box(axes, i + 0.08, y - 0.24, 0.84, 0.48, label, BLUE if done else GREY)
            if row:
                above = y - gap + 0.24
                arrow(axes, (i + 0.5, above), (i + 0.5, y - 0.24), GREY)
                if i >= step:
                    arrow(axes, (i + 0.5 - step, above), (i + 0.42, y - 0.24), ORANGE)
    return figure


def look_back() -> Any:
    """Return how a tile gets its prefix from the tiles before it."""
    figure, (axes,) = canvas(8.2, 3.3, 11.2, 4.3)
    states = ("prefix", "prefix", "sum", "sum", "sum", "looks back")
    for i, state in enumerate(states):
        colour = {"prefix": BLUE, "sum": ORANGE}.get(state, GREEN)
        box(axes, i * 1.85 + 0.1, 1.75, 1.6, 0.6, f"tile {i}", GREY)
        box(axes, i * 1.85 + 0.1, 2.35, 1.6, 0.5, state, colour, full=state == "prefix")
    for i in (4, 3, 2, 1):
        middle = i * 1.85 + 0.9
        arrow(axes, (5 * 1.85 + 0.9, 1.7), (middle, 1.7), BLUE if i == 1 else ORANGE, bend=0.28 + 0.02 * (5 - i))
    say(axes, 5 * 1.85 + 0.9, 0.75, "adds from right\nto left until it\nmeets a prefix", size=7.5)
    steps = (
        "1  read the tile once, combine it, publish its sum",
        "2  look back: add sums of earlier tiles, stop at the first prefix",
        "3  publish the own prefix, for all tiles after it",
        "4  scan the tile, which is still in registers, from the prefix on; write it once",
    )
    say(axes, 0.1, 3.65, "\n".join(steps), ha="left", linespacing=1.5)
    return figure


def one_sweep() -> Any:
    """Return one pass of the radix sort over twelve keys in three tiles."""
    keys = [2, 0, 3, 0, 1, 2, 0, 3, 1, 0, 2, 1]
    starts = [sum(key < digit for key in keys) for digit in range(4)]
    figure, (axes,) = canvas(8.2, 4.0, 14.4, 6.2)
    places = {}
    seen = [0] * 4
    for i, key in enumerate(keys):
        places[i] = starts[key] + seen[key]
        seen[key] += 1

    def across(i: int) -> float:
        return i + 0.25 * (i // 4) + 0.1

    say(axes, 12.9, 0.65, "keys, by tiles;\nthe digit of this pass", ha="left", size=7.5)
    say(axes, 12.9, 5.55, "keys in the order\nof the digit", ha="left", size=7.5)
    for i, key in enumerate(keys):
        box(axes, across(i), 0.4, 0.85, 0.55, str(key), DIGITS[key], full=True)
        box(axes, places[i] + 0.35, 5.3, 0.85, 0.55, str(key), DIGITS[key], full=True)
        axes.plot([across(i) + 0.42, places[i] + 0.77], [2.85, 5.25], color=DIGITS[key], linewidth=1.1)
        axes.plot([across(i) + 0.42] * 2, [0.95, 1.15], color=DIGITS[key], linewidth=1.1)
        axes.plot([across(i) + 0.42] * 2, [2.65, 2.85], color=DIGITS[key], linewidth=1.1)
    before = list(starts)
    for tile in range(3):
        part = keys[4 * tile : 4 * tile + 4]
        box(axes, across(4 * tile) - 0.05, 1.15, 3.95, 1.5, "", GREY)
        for digit in range(4):
            count, x = part.count(digit), across(4 * tile) + 0.45 + digit
            say(axes, x, 1.5, f"{count} x {digit}", colour=words_in(DIGITS[digit]))
            say(axes, x, 2.25, f"to {before[digit]}" if count else "", colour=words_in(DIGITS[digit]), size=7)
            before[digit] += count
        if tile:
            arrow(axes, (across(4 * tile) - 0.05, 1.88), (across(4 * tile) - 0.42, 1.88), ORANGE)
    say(
        axes,
        12.9,
        1.9,
        "each tile counts its\ndigits, and looks back\nto find from which\nplace on they go",
        ha="left",
        size=7.5,
    )
    say(axes, 12.9, 3.9, "every key is read and\nwritten once a pass", ha="left", size=7.5)
    return figure


def cyclic_reduction() -> Any:
    """Return the two orders in which unknowns are eliminated: all at once, and down a tree with exchanges."""
    figure, (left, right) = canvas(8.6, 4.9, 8.6, 7.4, panels=2)
    say(left, 4.3, 0.2, "without exchanges: every row eliminates its neighbours", size=9)
    for step in range(4):
        reach, y = 2**step, 1.2 + 1.75 * step
        words = f"row i knows x[i-{reach}], x[i], x[i+{reach}]" if reach < 8 else "row i knows x[i] alone: solved"
        say(left, 4.3, y + 0.52, words, size=7.5)
        for i in range(8):
            box(left, i + 0.48, y - 0.24, 0.64, 0.48, str(i), BLUE if reach >= 8 else GREY)
        for j in (3 - reach, 3 + reach):
            if 0 <= j < 8:
                arrow(left, (j + 0.8, y - 0.26), (3.8, y - 0.26), ORANGE, bend=0.35 if j > 3 else -0.35)
    say(right, 4.3, 0.2, "with exchanges: segments merge down a tree", size=9)
    for level in range(4):
        width, y = 2**level, 1.0 + 1.75 * level
        for s in range(8 // width):
            x0 = s * width + 0.36
            box(
                right,
                x0,
                y,
                width - 0.12,
                0.55,
                f"rows {s * width}..{s * width + width - 1}" if width > 1 else str(s),
                BLUE,
            )
            if level:
                half = width / 2
                for part in (0, 1):
                    arrow(right, (x0 - 0.06 + half * (part + 0.5), y - 0.62), (x0 - 0.06 + width / 2, y), GREY)
        words = (
            "a row is a segment: two equations between its end pairs",
            "two segments: four equations; the one with the\nlargest coefficient eliminates what they share",
            "the same again",
            "one segment: solved for its ends, then back up the tree",
        )[level]
        say(right, 4.3, y + 0.83, words, size=7.5)
    return figure


def tiles() -> Any:
    """Return the tiles of a matrix product."""
    figure, (axes,) = canvas(8.2, 3.7, 15.2, 6.9)

    def matrix(x: float, y: float, name: str) -> None:
        for i in range(4):
            for j in range(4):
                box(axes, x + j * 0.9, y + i * 0.9, 0.9, 0.9, "", GREY)
        say(axes, x + 1.8, y + 3.9, name)

    matrix(0.3, 2.6, "a, m x k")
    matrix(4.7, 2.6, "b, k x n")
    matrix(9.1, 2.6, "c, m x n")
    for step in range(4):
        box(axes, 0.3 + step * 0.9, 2.6 + 0.9, 0.9, 0.9, str(step + 1), BLUE, full=step == 1)
        box(axes, 4.7 + 2 * 0.9, 2.6 + step * 0.9, 0.9, 0.9, str(step + 1), ORANGE, full=step == 1)
    box(axes, 9.1 + 2 * 0.9, 2.6 + 0.9, 0.9, 0.9, "sum", GREEN, full=True)
    box(axes, 2.4, 0.35, 4.9, 1.2, "", GREY)
    say(axes, 4.85, 0.62, "shared memory: the two tiles of step 2", size=7.5)
    box(axes, 3.3, 0.85, 1.2, 0.55, "of a", BLUE, full=True)
    box(axes, 5.2, 0.85, 1.2, 0.55, "of b", ORANGE, full=True)
    arrow(axes, (1.65, 3.5), (3.3, 1.2), BLUE)
    arrow(axes, (6.95, 3.5), (6.0, 1.45), ORANGE)
    arrow(axes, (7.3, 0.95), (11.35, 3.45), GREEN, bend=-0.2)
    words = (
        "A block owns one tile of c.\nIt goes along k: while it\nmultiplies one pair of tiles,\n"
        "the next pair is loaded.\nThe sums stay in registers\nand are written once."
    )
    say(axes, 12.9, 1.6, words, ha="left", size=7.5, va="center")
    return figure


PICTURES: Sequence[Callable[[], Any]] = (step_doubling, look_back, one_sweep, cyclic_reduction, tiles)


def main() -> int:
    """Draw all pictures; return the exit status."""
    FOLDER.mkdir(exist_ok=True)
    for picture in PICTURES:
        save(picture(), FOLDER / f"{picture.__name__}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())

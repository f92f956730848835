"""The table of docs/sources.md: each problem with the time in its source, and the result of the example here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benches.core.records import RESULTS
from docs.plots import NAMES

EXAMPLES = "examples-nvidia-h200"
"""The results of the examples."""


class Row(NamedTuple):
    """A problem: its number, its words, the time in its source, and the beginning of its rows in the record."""

    number: str
    words: str
    reported: str
    begins: str


ROWS = (
    Row(
        "A1",
        "product of 4096 x 4096 float32, one thread for each element",
        "184.7 ms, copies included",
        "A 4096 x 4096 naive",
    ),
    Row(
        "A2",
        "product of 4096 x 4096 float32, tiles in shared memory",
        "164.0 ms, copies included",
        "A 4096 x 4096 tiled",
    ),
    Row("A", "product of 4096 x 4096 float32, best kernel", "1 400 s on a CPU", "A 4096 x 4096 float32, kernel"),
    Row("B1", "sum of two vectors; too large a launch raises an error", "", "B1 vector addition"),
    Row("B2", "Monte Carlo, normals read along the steps", "17.6 ms", "B2 steps first"),
    Row("B2", "Monte Carlo, normals read with a stride", "47.7 ms", "B2 paths first"),
    Row("B2", "Monte Carlo, normals drawn inside the kernel", "78.7 ms", "B2 drawn inside"),
    Row("B3", "mean of a quadratic of 1.28e9 normals, partial sums", "231.9 ms", "B3 partial sums"),
    Row("B3", "mean of a quadratic, all terms added to one cell", "1735.3 ms", "B3 one cell"),
    Row("B3", "mean of a quadratic, transform and reduction in one pass", "11.1 ms", "B3 transform-reduce"),
    Row("B3", "mean of a quadratic, on a CPU", "2783.1 ms", "B3 CPU"),
    Row("B4", "Laplace, 512^3, ten iterations, in columns", "41.3 ms", "B4 columns in CUDA, 512"),
    Row("B4", "Laplace, 512^3, ten iterations, in boxes", "19.8 ms", "B4 boxes in CUDA, 512"),
    Row("B4", "Laplace, 512^3, ten iterations, four at once", "", "B4 4 sweeps at once in CUDA, 512"),
    Row("B4", "Laplace, 1024^3, in columns", "228.1 ms", "B4 columns in CUDA, 1024"),
    Row("B4", "Laplace, 1024^3, in boxes", "156.3 ms", "B4 boxes in CUDA, 1024"),
    Row("B5", "sum of 260 817 numbers by a tree", "", "B5 many blocks"),
    Row("B6", "product of 275 x 275 float32", "", "B6 sgemm"),
    Row("B6", "convolution of a signal, directly", "", "B6 convolution, direct"),
    Row("B7", "the 8 smallest of 2^26, a list in registers", "", "B7 the 8 smallest"),
    Row("B8", "implicit diffusion, N = 128, two steps", "", "B8 source's"),
    Row("B8", "implicit diffusion, 1536 systems at once", "left undone", "B8 1536 systems"),
    Row("B8", "implicit diffusion in three dimensions, alternating directions", "left undone", "B8 alternating"),
    Row("B9", "exclusive prefix sum of 1e8 float64", "500 ms shared, 360 ms shuffles", "B9 float64"),
    Row("B10", "linear recurrence of 100 terms", "", "B10 the source's"),
    Row("B11", "radix sort of one block", "", "B11 one block"),
    Row("B11", "radix sort of 67 108 864 keys", "left undone", "B11 many blocks"),
    Row("B12", "occurrences of seven words in 268 million letters", "left undone", "B12 7 words"),
    Row("C1", "float64 product, packed tiles", "0.84x of cuBLAS", "C1"),
    Row("C2", "float64 product, cooperative fetching", "0.67x of cuBLAS", "C2"),
    Row("C3", "float64 product, without bank conflicts", "1.01x of cuBLAS", "C3"),
    Row("C4", "float64 product, tensor cores", "0.42x of cuBLAS", "C4"),
    Row("D1", "product of 8192 x 8192 float32, one thread for each element", "1574 ms", "D1 8192"),
    Row("D2", "product of 8192 x 8192, eight workers, bands of rows", "1189.7 ms", "D2 8192 x 8192, bands of rows: 8"),
    Row(
        "D3",
        "product of 8192 x 8192, eight workers, bands of columns, sums added",
        "6059 ms",
        "D3 8192 x 8192, bands of columns: 8",
    ),
    Row("D4", "product of 8192 x 8192, best kernel", "581 ms, the vendor's", "D4 8192"),
    Row("E1", "dot product of 1024 numbers, exact", "", "E1 dot product, 1024"),
    Row("E2", "product of 4 x 4, whole and in tiles of 2", "", "E2"),
)


def found(text: str) -> Iterator[dict[str, str]]:
    """Yield the rows of an examples' table, by the names of its columns."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    names = [name.strip() for name in lines[0].strip("|").split("|")]
    for line in lines[1:]:
        yield dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")), strict=True))


def table(results: Path = RESULTS) -> str:
    """Return the table: for each problem its fastest row in the record, and the number of checks that passed."""
    rows = list(found((results / f"{EXAMPLES}.md").read_text()))
    lines = [
        "| row | problem | time in the source | fastest here | library | speed to vendor's routine | checks passed |",
        "|---" * 7 + "|",
    ]
    for one in ROWS:
        about = [row for row in rows if row["row"].startswith(one.begins)]
        passed = sum(row["check"].endswith("pass") for row in about)
        timed = [row for row in about if re.fullmatch(r"[\d.e+-]+ ms", row["time"])]
        best = min(timed, key=lambda row: float(row["time"].split()[0]), default=None)
        here = (best["time"], NAMES[best["backend"]], best["speed to vendor's"]) if best else ("", "", "")
        lines.append(f"| {one.number} | {one.words} | {one.reported} | {' | '.join(here)} | {passed} of {len(about)} |")
    return "\n".join(lines) + "\n"

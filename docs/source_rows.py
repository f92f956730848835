"""The table of docs/sources.md: what the source of each problem reported, and what the examples found here."""

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
    """A problem: its number, words, what the source reported, and what its rows in the examples' record begin with."""

    number: str
    words: str
    reported: str
    begins: str


ROWS = (
    Row(
        "A1", "product of 4096 x 4096 float32, a thread an element", "184.7 ms, copies included", "A 4096 x 4096 naive"
    ),
    Row("A2", "the same from tiles in shared memory", "164.0 ms, copies included", "A 4096 x 4096 tiled"),
    Row("A", "the same by the best kernel", "1 400 s on a CPU", "A 4096 x 4096 float32, kernel"),
    Row("B1", "sum of two vectors; a launch that is too large raises", "", "B1 vector addition"),
    Row("B2", "Monte Carlo, normals read along steps", "17.6 ms", "B2 steps first"),
    Row("B2", "normals read across, with a stride", "47.7 ms", "B2 paths first"),
    Row("B2", "normals drawn inside the kernel", "78.7 ms", "B2 drawn inside"),
    Row("B3", "mean of a quadratic of 1.28e9 normals, partial sums", "231.9 ms", "B3 partial sums"),
    Row("B3", "all into one cell", "1735.3 ms", "B3 one cell"),
    Row("B3", "transform and reduce in one pass", "11.1 ms", "B3 transform-reduce"),
    Row("B3", "on a CPU", "2783.1 ms", "B3 CPU"),
    Row("B4", "Laplace, 512^3, ten iterations, columns that march", "41.3 ms", "B4 columns in CUDA, 512"),
    Row("B4", "the same in boxes", "19.8 ms", "B4 boxes in CUDA, 512"),
    Row("B4", "the same, four iterations at once", "", "B4 4 sweeps at once in CUDA, 512"),
    Row("B4", "1024^3, columns that march", "228.1 ms", "B4 columns in CUDA, 1024"),
    Row("B4", "1024^3, boxes", "156.3 ms", "B4 boxes in CUDA, 1024"),
    Row("B5", "sum of 260 817 numbers by a tree", "", "B5 many blocks"),
    Row("B6", "sgemm of 275 x 275 beside the vendor's", "", "B6 sgemm"),
    Row("B6", "convolution of a signal by FFT and directly", "", "B6 convolution, direct"),
    Row("B7", "the 8 smallest of 2^26, a list in registers", "", "B7 the 8 smallest"),
    Row("B8", "implicit diffusion, N = 128, two steps", "", "B8 source's"),
    Row("B8", "1536 systems at once", "left undone", "B8 1536 systems"),
    Row("B8", "three dimensions by alternating directions", "left undone", "B8 alternating"),
    Row("B9", "exclusive prefix sum of 1e8 float64", "500 ms shared, 360 ms shuffles", "B9 float64"),
    Row("B10", "linear recurrence of 100 terms", "", "B10 the source's"),
    Row("B11", "radix sort of one block", "", "B11 one block"),
    Row("B11", "radix sort of 67 108 864 keys", "left undone", "B11 many blocks"),
    Row("B12", "occurrences of seven words in 268 million letters", "left undone", "B12 7 words"),
    Row("C1", "float64 product, packed tiles", "0.84x of cuBLAS", "C1"),
    Row("C2", "cooperative fetching", "0.67x of cuBLAS", "C2"),
    Row("C3", "without bank conflicts", "1.01x of cuBLAS", "C3"),
    Row("C4", "tensor cores", "0.42x of cuBLAS", "C4"),
    Row("D1", "product of 8192 x 8192 float32, a thread an element", "1574 ms", "D1 8192"),
    Row("D2", "eight workers, bands of rows", "1189.7 ms", "D2 8192 x 8192, bands of rows: 8"),
    Row("D3", "eight workers, bands of columns, added", "6059 ms", "D3 8192 x 8192, bands of columns: 8"),
    Row("D4", "beside the vendor's product", "581 ms, the vendor's", "D4 8192"),
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
    """Return the table: for each problem the fastest of the record's rows that are about it, and what was checked."""
    rows = list(found((results / f"{EXAMPLES}.md").read_text()))
    lines = [
        "| | problem | its source reported | here, the fastest | by | beside the vendor's | checks |",
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

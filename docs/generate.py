"""Write the parts of the documentation that are made by code, tables and pictures: ``python -m docs.generate``.

Nothing is measured. tests/project/test_docs.py fails where a record has changed and this was not run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benches.core.records import RESULTS, ROOT
from benches.devices import larger
from benches.devices import split as bench_devices
from benches.page import tables
from docs import diagrams, losses, plots, releases, source_rows, support

ROWS = (
    ("sum", "sum, 2^30", "float32"),
    ("scan", "maximum, 2^26", "float32"),
    ("linear_recurrence", "one sequence, 2^28", "float32"),
    ("linear_recurrence", "forward and backward, 8 x 1536 x 16384", "float32"),
    ("sort", "sort, 2^28", "uint32"),
    ("solve_tridiagonal", "batch, 4096 x 4096", "float32"),
    ("histogram", "65536 bins, 2^26", "float32"),
    ("reduce", "argmax, 2^26", "float32"),
)
"""The cases that the README shows, a loss among them."""

DEVICES, LARGER = "two-nvidia-h200", "larger-two-nvidia-h100-80gb-hbm3"
"""The results of two devices beside one, of ``python -m benches.devices.split --json``, and of arrays that are larger
than one device, of ``python -m benches.devices.larger --json``.
"""


def laws_table(*, gpu: bool) -> str:
    """Return a table of the laws of bits, of the record that ``python -m tests.trust.laws`` writes."""
    record = json.loads((ROOT / "docs" / "laws.json").read_text())
    columns = (record["gpu"] if gpu else record)["columns"]
    words = {True: "yes", False: "**no**", None: "-"}
    lines = [f"| law | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    for law in next(iter(columns.values())):
        lines.append(f"| {law} | {' | '.join(words[column[law]] for column in columns.values())} |")
    return "\n".join(lines) + "\n"


def committed(folder: Path, to: Path) -> Path:
    """Copy the files of a folder that git knows, and return the copy: a run may have left others beside them.

    Outside of a clone the folder itself is returned.
    """
    listing = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", str(folder)]
    try:
        names = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return folder
    if not names:
        return folder
    for name in filter(None, names.split("\0")):
        source = ROOT / name
        if source.exists():
            target = to / source.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return to


def parts(results: Path = RESULTS) -> Iterator[tuple[Path, str, str]]:
    """Yield every generated part: the page, the part's name and its text."""
    file, *_ = plots.read(results)
    head = file["header"]
    about = f"{head['device']}, {head['date'][:10]}; the commit of each figure is in its record.\n\n"
    yield ROOT / "README.md", "figures", about + tables.few_rows(file["records"], ROWS)
    yield ROOT / "README.md", "support", support.short_table()
    yield ROOT / "docs" / "performance.md", "losses", losses.by_auto(file["records"])
    yield ROOT / "docs" / "performance.md", "losses of kernels", losses.by_kernels(file["records"])
    yield ROOT / "docs" / "support.md", "support", support.long_table()
    yield ROOT / "docs" / "reproducibility.md", "laws", laws_table(gpu=False)
    yield ROOT / "docs" / "reproducibility.md", "laws on a GPU", laws_table(gpu=True)
    yield ROOT / "docs" / "start.md", "releases", releases.table()
    yield ROOT / "docs" / "sources.md", "sources", source_rows.table(results)
    devices = json.loads((results / "devices" / f"{DEVICES}.json").read_text())
    yield ROOT / "docs" / "devices.md", "measured", bench_devices.table(devices)
    beyond = json.loads((results / "devices" / f"{LARGER}.json").read_text())
    yield ROOT / "docs" / "devices.md", "larger", larger.table(beyond)
    plotted = results / f"{plots.DEVICE}.json"
    yield ROOT / "docs" / "results.md", "results", tables.results_table([plotted])
    others = {*results.glob("*.json")} - {plotted}
    yield ROOT / "docs" / "results_others.md", "results", tables.results_table(others)


def main() -> int:
    """Write all parts and draw all pictures; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        results = committed(RESULTS, Path(folder))
        for path, name, part in parts(results):
            path.write_text(tables.with_part(path.read_text(), name, part))
        plots.main(results)
    return diagrams.main()


if __name__ == "__main__":
    sys.exit(main())

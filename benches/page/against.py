"""Results held against those of another commit, row by row."""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benches.core import records
from benches.core.cases import OURS
from benches.core.records import ROOT
from parprims._tools.comparison import si

IDENTITY = ("primitive", "case", "backend", "method", "dtype", "shape")
LOST = 1.05


@dataclasses.dataclass(frozen=True)
class Verdict:
    """How the records of one commit stand beside those of another, in lines to print.

    ``lost`` names our rows that take more than `LOST` times as long, or are gone; ``gained`` those that take so much
    less. ``machine`` is the median ratio of the peers' times: above 1 the machine itself was slower.
    """

    compared: int
    lost: list[str]
    gained: list[str]
    machine: float | None


def verdict(now: Mapping[str, Any], before: Mapping[str, Any]) -> Verdict:
    """Compare two results files of one device, row by row."""
    if now["header"]["device"] != before["header"]["device"]:
        raise ValueError(f"{now['header']['device']} cannot be held against {before['header']['device']}")

    def rows(file: Mapping[str, Any]) -> dict[tuple[str, ...], float]:
        return {tuple(str(one[name]) for name in IDENTITY): one["seconds"] for one in file["records"]}

    new, old = rows(now), rows(before)
    ratios = {row: new[row] / old[row] for row in old if row in new}
    ours = {row: ratio for row, ratio in ratios.items() if row[3] in OURS}
    peers = [ratio for row, ratio in ratios.items() if row[3].startswith("peer:")]

    def line(row: tuple[str, ...]) -> str:
        primitive, case, backend, method, dtype, _ = row
        return f"{primitive}: {case} {dtype}: {backend} {method}: {si(old[row], 's')}"

    def lines(chosen: Iterable[tuple[str, ...]]) -> list[str]:
        return [f"{line(row)} before, {si(new[row], 's')} now: {ratios[row]:.2f}x" for row in chosen]

    slower = sorted((row for row, ratio in ours.items() if ratio > LOST), key=lambda row: -ours[row])
    faster = sorted((row for row, ratio in ours.items() if ratio < 1 / LOST), key=lambda row: ours[row])
    gone = [f"{line(row)} before, not measured now" for row in old if row[3] in OURS and row not in new]
    return Verdict(len(ours), lines(slower) + gone, lines(faster), statistics.median(peers) if peers else None)


def results_at(revision: str, path: Path) -> dict[str, Any]:
    """Return the results file as it is in a commit."""
    where = f"{revision}:{path.resolve().relative_to(ROOT).as_posix()}"
    shown = subprocess.run(["git", "-C", str(ROOT), "show", where], capture_output=True, text=True)
    if shown.returncode:
        raise SystemExit(f"--against {revision} is neither a file nor a commit that has one: {shown.stderr.strip()}")
    return dict(json.loads(shown.stdout))


def against(before: str, path: Path | None) -> int:
    """Hold results files against those of a commit, or one file against another; return the exit status."""
    if Path(before).is_file() and path is None:
        raise SystemExit("--against FILE needs --device-results PATH, the file to hold against it")
    status = 0
    for now in [path] if path else sorted(records.RESULTS.glob("*.json")):
        old = json.loads(Path(before).read_text()) if Path(before).is_file() else results_at(before, now)
        found = verdict(json.loads(now.read_text()), old)
        print(f"{now.name}: {found.compared} rows compared, {len(found.lost)} lost, {len(found.gained)} gained")
        if found.machine:
            print(f"the machine itself: its peers take {found.machine:.2f}x as long, in the median")
        print(*(f"LOST {one}" for one in found.lost), sep="\n", end="\n" if found.lost else "")
        print(*(f"gained {one}" for one in found.gained), sep="\n", end="\n" if found.gained else "")
        status |= bool(found.lost)
    return int(status)

"""Records: the results file of a device, and what it says of the run."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from examples.backends import Backend, cpu_name, gpu_name, installed

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benches" / "results"


def device_name(present: list[Backend]) -> str:
    """Return the name of the GPU the backends compute on, or of the processor."""
    return gpu_name() or "gpu" if any(backend.cuda for backend in present) else cpu_name()


def slug(device: str) -> str:
    """Return a device's name as a file name: "NVIDIA H200" becomes "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "cpu"


def commit() -> str:
    """Return the checked-out commit, with "-dirty" if the code differs from it, or "unknown" without git."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout

    try:
        changed = git("status", "--porcelain", "--", "src", "benches", ":!benches/results").strip()
        return git("rev-parse", "HEAD").strip() + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


PACKAGES = (
    "parprims numpy scipy numba pandas cupy-cuda12x cupy-cuda13x torch triton jax cuda-cccl accelerated-scan"
).split()


def versions(cuda: bool) -> dict[str, str]:
    """Return the versions of Python and of the packages that were, or could have been, timed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if cuda and installed("cupy"):
        import cupy

        found["cuda driver"] = str(cupy.cuda.runtime.driverGetVersion())
    return found


def header(present: list[Backend], ceilings: Mapping[str, float], sha: str | None = None) -> dict[str, Any]:
    """Return what a results file says of the run."""
    cuda = any(backend.cuda for backend in present)
    return {
        "device": device_name(present),
        **({} if cuda else {"cpus": len(os.sched_getaffinity(0))}),
        "versions": versions(cuda),
        "commit": sha or commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ceilings": dict(ceilings),
    }


def replaced(
    primitive: str, case: str, backends: Iterable[str] | None = None, *, whole: bool = True
) -> set[str | tuple[str, ...]]:
    """Return what a run of a case replaces in a results file, as `write_results` takes it.

    That is the case on the ``backends`` asked for. Without them it is the ``whole`` primitive, or the case alone.
    """
    if backends:
        return {(primitive, case, name) for name in backends}
    return {primitive if whole else (primitive, case)}


def write_results(
    path: Path, head: Mapping[str, Any], records: list[dict[str, Any]], ran: Iterable[str | tuple[str, ...]]
) -> None:
    """Write a results file, each record with its commit; those of what did not run now are kept.

    ``ran`` holds the primitives of which all cases ran, and of other cases the primitive and the name, and the backend
    where not all of them ran.
    """
    ran = set(ran)
    kept = json.loads(path.read_text())["records"] if path.exists() else []
    names = [(one["primitive"], one.get("case"), one.get("backend")) for one in kept]
    kept = [one for one, name in zip(kept, names, strict=True) if not ran & {name[0], name[:2], name}]
    found = [*kept, *({"commit": head["commit"], **one} for one in records)]
    order = list(dict.fromkeys(one["primitive"] for one in found))
    lines = [json.dumps(one) for one in sorted(found, key=lambda one: order.index(one["primitive"]))]
    path.parent.mkdir(parents=True, exist_ok=True)
    body = ",\n    ".join(lines)
    path.write_text(
        f'{{\n  "header": {json.dumps(head, indent=2).replace(chr(10), chr(10) + "  ")},\n'
        f'  "records": [\n    {body}\n  ]\n}}\n'
    )

"""The releases that tests have passed with: ``pytest --record-releases`` writes them, and start.md has their table.

A run that passes adds the installed release of Python and of each package that it tested, by the session of nox as by
pytest alone: ``nox -s tests -- --record-releases``.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import tomllib
from collections.abc import Collection
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RECORD = FOLDER / "releases.json"

PACKAGES = {
    "NumPy": ("numpy",),
    "array-api-compat": ("array-api-compat",),
    "array-api-extra": ("array-api-extra",),
    "Numba": ("numba",),
    "JAX": ("jax",),
    "PyTorch": ("torch",),
    "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "Dask": ("dask",),
}
"""The rows of the table after Python, each with the names of its distributions."""

NEEDS = {"JAX": ("jax", "jax-cuda"), "PyTorch": ("torch", "torch-cuda"), "CuPy": ("cupy",)}
"""The backends of tests, one of which a run must have for the package to count as tested. Others always count."""


def installed(backends: Collection[str]) -> dict[str, str]:
    """Return the release of Python, and of each package that tests of the backends use."""
    found = {"Python": ".".join(platform.python_version_tuple()[:2])}
    for package, names in PACKAGES.items():
        if package in NEEDS and not {*NEEDS[package]} & {*backends}:
            continue
        for name in names:
            try:
                found[package] = importlib.metadata.version(name).partition("+")[0]
            except importlib.metadata.PackageNotFoundError:
                continue
            break
    return found


def record(backends: Collection[str], path: Path = RECORD) -> None:
    """Add the installed releases to the record."""
    known: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    for package, release in installed(backends).items():
        known[package] = sorted({*known.get(package, ()), release}, key=_numbers)
    rows = ",\n".join(f"  {json.dumps(package)}: {json.dumps(known[package])}" for package in sorted(known))
    path.write_text(f"{{\n{rows}\n}}\n")


def _numbers(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]


def oldest() -> dict[str, str]:
    """Return the oldest release of each that pyproject.toml accepts."""
    project = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for group in project["optional-dependencies"].values() for one in group)]
    bounds = dict(re.match(r"([\w-]+)(?:\[.*\])?>=([\d.]+)", one).groups() for one in wanted)  # type: ignore[union-attr]
    found = {"Python": project["requires-python"].removeprefix(">=")}
    return found | {package: next(bounds[n] for n in names if n in bounds) for package, names in PACKAGES.items()}


def table(path: Path = RECORD) -> str:
    """Return the table of start.md. The releases of `docs.support`, which tries every function, count too."""
    known = json.loads(path.read_text())
    for one in (json.loads(file.read_text()) for file in (FOLDER / "support").glob("*.json")):
        package = next(package for package, names in PACKAGES.items() if one["library"] in names)
        known[package] = sorted({*known.get(package, ()), one["version"]}, key=_numbers)
    lines = ["| | from | tested with |", "|---|---|---|"]
    for package, least in oldest().items():
        lines.append(f"| {package} | {least} | {', '.join(known.get(package, ('none',)))} |")
    return "\n".join(lines) + "\n"

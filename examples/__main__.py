"""Run the worked examples, each in a process of its own, and print one table of what they found.

``python examples`` runs all of them on every array library that is installed; names and options choose.
"""

import argparse
import datetime
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from common import BACKENDS

FOLDER = pathlib.Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "benches" / "results"
EXAMPLES = (
    "dot_product reduction mean_of_quadratic prefix_sum recurrence radix_sort backward_euler gemm_ladder gemm_workers "
    "vendor_libraries templates monte_carlo laplace3d pattern_matching device_facts discounted_returns kalman_filter "
    "state_space_model"
).split()
COLUMNS = ("row", "backend", "result", "check", "time", "source's time", "speed to vendor's")
BEGIN, END = "<!-- examples table: begin -->", "<!-- examples table: end -->"


def installed() -> list[str]:
    """Return the backends there are; CuPy counts if it sees a GPU."""
    found = [name for name in BACKENDS if importlib.util.find_spec(name)]
    if "cupy" in found:
        import cupy

        try:
            cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError:
            found.remove("cupy")
    return found


def run(name: str, backend: str, options: list[str]) -> tuple[dict, str]:
    """Return what an example recorded, and why it failed or ""."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "rows.json"
        command = [sys.executable, str(FOLDER / f"{name}.py"), "--backend", backend, "--json", str(path), *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        facts = json.loads(path.read_text()) if path.exists() else {"rows": []}
    return facts, "" if done.returncode == 0 else f"{name} on {backend} failed:\n{done.stdout[-2000:]}"


def table(rows: list[dict]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for one in rows:
        check = f"{one['check']} {'pass' if one['passed'] else 'FAIL'}"
        cells = (one["row"], one["backend"], one["result"], check, one["time"], one["reported"], one["vendor"])
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def save(device: str, versions: list[str], rows: list[dict], commit: str | None) -> None:
    """Write the table to benches/results, and to the README the rows that the source has times for."""
    if commit is None:
        describe = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty", "--abbrev=12"]
        commit = subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    head = f"**{device}**, {datetime.date.today()}, commit {commit}; {', '.join(versions)}."
    (RESULTS / f"examples-{slug}.md").write_text(f"{head}\n\n{table(rows)}\n")
    readme = FOLDER.parent / "README.md"
    before, _, rest = readme.read_text().partition(BEGIN)
    shown = table([one for one in rows if one["reported"]])
    readme.write_text(f"{before}{BEGIN}\n{head}\n\n{shown}\n{END}{rest.partition(END)[2]}")


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for; return 0 if all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=", ".join(EXAMPLES))
    parser.add_argument("--backend", action="append", choices=BACKENDS, help="only this one")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--size", help="a number, or 'small'")
    parser.add_argument("--save", action="store_true", help="write the table to benches/results and the README")
    parser.add_argument("--commit", metavar="SHA", help="the commit saved, where there is no git to ask")
    options = parser.parse_args(argv)
    unknown = set(options.examples) - set(EXAMPLES)
    if unknown:
        parser.error(f"there is no example {', '.join(sorted(unknown))}")
    passed_on = [f"--{name}={value}" for name in ("device", "size") if (value := getattr(options, name))]
    rows, failures, devices, versions = [], [], [], []
    for name in options.examples or EXAMPLES:
        for backend in options.backend or installed():
            print(f"{name} on {backend} ...", file=sys.stderr, flush=True)
            facts, failure = run(name, backend, passed_on)
            rows += facts["rows"]
            devices.append(facts.get("device", "unknown device"))
            versions.append(facts.get("version", backend))
            failures += [failure] if failure else []
    print(table(rows))
    print("\n".join(failures))
    print(f"{sum(one['passed'] for one in rows)} of {len(rows)} checks passed; {len(failures)} examples failed")
    if options.save and not failures:
        save(devices[0], sorted(set(versions)), rows, options.commit)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run the worked examples, each backend's in a process of its own, and print one table of the results.

``python examples`` runs all of them on every installed array library; names and options choose. On a GPU, only one of
several similar rows has JAX's array form, since XLA takes long to compile it; an example that runs by itself names the
rows that it skips.
"""

import argparse
import datetime
import multiprocessing
import pathlib
import re
import signal
import subprocess
import sys
import time

import backends
import common

FOLDER = pathlib.Path(__file__).resolve().parent
RESULTS = FOLDER.parent / "benches" / "results"
EXAMPLES = (
    "dot_product reduction mean_of_quadratic prefix_sum recurrence radix_sort backward_euler gemm_ladder gemm_workers "
    "vendor_libraries templates monte_carlo monte_carlo_everywhere laplace3d pattern_matching device_facts "
    "discounted_returns kalman_filter state_space_model chunked_rollout audio_filters ragged_events two_species "
    "ssm_layer gae_training"
).split()
ON_TORCH = ("ssm_layer", "gae_training")
"""The examples of PyTorch's modules and training loops."""
COLUMNS = ("row", "backend", "result", "check", "time", "source's time", "speed to vendor's")
BEGIN, END = "<!-- examples table: begin -->", "<!-- examples table: end -->"


def installed() -> list[str]:
    """Return the libraries there are; CuPy counts if it sees a GPU."""
    return [name for name in common.BACKENDS if backends.available(name)]


class Worker:
    """A process that runs the examples of one backend, one after another: importing a library takes seconds."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=common.serve, args=(other,), daemon=True)
        self.process.start()
        other.close()

    def run(self, name: str, backend: str, options: list[str]) -> tuple[dict, str]:
        """Return the facts that an example recorded, and the reason of its failure or ""."""
        self.pipe.send((name, ["--backend", backend, *options]))
        try:
            facts, passed, text = self.pipe.recv()
        except EOFError:
            self.process.join()
            facts, passed, text = {"rows": []}, False, f"the process ended with {self.process.exitcode}"
        return facts, "" if passed else f"{name} on {backend} failed:\n{text[-2000:]}"


def run_all(names: list[str], chosen: list[str], options: list[str], found: dict, failures: list[str]) -> None:
    """Run examples on backends; keep the facts of each and the failures."""
    for backend in chosen:
        worker, name = Worker(), names[0]
        try:
            for name in names:
                if name in ON_TORCH and backend != "torch":
                    continue
                print(f"{name} on {backend} ...", end=" ", file=sys.stderr, flush=True)
                began = time.perf_counter()
                found[name, backend], failure = worker.run(name, backend, options)
                print(f"{time.perf_counter() - began:.1f} s", file=sys.stderr, flush=True)
                failures += [failure] if failure else []
                if not worker.process.is_alive():
                    worker = Worker()
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):  # a second interrupt must not lose the results so far
                signal.signal(number, signal.SIG_IGN)
            failures.append(f"{name} on {backend} was cut off, and what follows it has not run")
            return
        finally:
            worker.process.kill()
            worker.process.join()  # so that its memory on the device is free for the next


def table(rows: list[dict]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for one in rows:
        check = f"{one['check']} {'pass' if one['passed'] else 'FAIL'}"
        cells = (one["row"], one["backend"], one["result"], check, one["time"], one["reported"], one["vendor"])
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines)


def save(device: str, versions: list[str], rows: list[dict], commit: str | None, failures: list[str]) -> None:
    """Write the table to benches/results, and to docs/sources.md the rows that the source has times for."""
    if commit is None:
        describe = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty", "--abbrev=12"]
        commit = subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    head = f"**{device}**, {datetime.date.today()}, commit {commit}; {', '.join(versions)}."
    if failures:
        head += f" Not complete: {'; '.join(failure.partition(':')[0] for failure in failures)}."
    (RESULTS / f"examples-{slug}.md").write_text(f"{head}\n\n{table(rows)}\n")
    page = FOLDER.parent / "docs" / "sources.md"
    before, _, rest = page.read_text().partition(BEGIN)
    shown = table([one for one in rows if one["reported"]])
    page.write_text(f"{before}{BEGIN}\n{head}\n\n{shown}\n{END}{rest.partition(END)[2]}")


def main(argv: list[str] | None = None) -> int:
    """Run what the command line asks for; return 0 if all passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=", ".join(EXAMPLES))
    parser.add_argument("--backend", action="append", choices=common.BACKENDS, help="only this one")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--size", help="a number, or 'small'")
    parser.add_argument("--save", action="store_true", help="write the table to benches/results and docs/sources.md")
    parser.add_argument("--commit", metavar="SHA", help="the commit saved, where there is no git to ask")
    options = parser.parse_args(argv)
    unknown = set(options.examples) - set(EXAMPLES)
    if unknown:
        parser.error(f"there is no example {', '.join(sorted(unknown))}")
    passed_on = [f"--{name}={value}" for name in ("device", "size") if (value := getattr(options, name))]
    names, chosen = options.examples or EXAMPLES, options.backend or installed()
    found: dict[tuple[str, str], dict] = {}
    failures: list[str] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the results so far are printed and saved
    run_all(names, chosen, passed_on, found, failures)
    facts = [found[name, backend] for name in names for backend in chosen if (name, backend) in found]
    rows = [row for one in facts for row in one["rows"]]
    print(table(rows))
    print("\n".join(failures))
    print(f"{sum(one['passed'] for one in rows)} of {len(rows)} checks passed; {len(failures)} examples failed")
    if options.save and rows:
        known = [one for one in facts if "device" in one]
        save(known[0]["device"], sorted({one["version"] for one in known}), rows, options.commit, failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

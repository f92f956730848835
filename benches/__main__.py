"""Run the comparison: ``python -m benches [--quick] [--primitive sort] [--backend numpy]``, or tune kernels."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import benches
from benches import harness
from benches.tune import tune


def cases(scale: harness.Scale, wanted: Iterable[str] | None = None) -> list[harness.Case]:
    """Return the cases of every bench module; ``wanted`` names modules (reduce) or primitives (sum)."""
    found = []
    names = sorted(module.name for module in pkgutil.iter_modules(benches.__path__))
    stems = [name.removeprefix("bench_") for name in names if name.startswith("bench_")]
    for stem in stems:
        found += [(stem, case) for case in importlib.import_module(f"benches.bench_{stem}").cases(scale)]
    if wanted is None:
        return [case for _, case in found]
    known = {*stems, *(case.primitive for _, case in found)}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"unknown primitive {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [
        case for stem, case in found if stem in wanted or (case.primitive in wanted and case.primitive not in stems)
    ]


def progress(items: list[harness.Case]) -> Iterator[harness.Case]:
    """Yield the cases, showing on a terminal's standard error how far the run is."""
    if harness.installed("tqdm"):
        from tqdm import tqdm

        yield from tqdm(items, unit="case", leave=False, disable=None)
        return
    for index, case in enumerate(items):
        if sys.stderr.isatty():
            print(f"[{index + 1}/{len(items)}] {case.primitive}: {case.name}", file=sys.stderr)
        yield case


def say(text: str) -> None:
    """Print a text, clear of the progress bar."""
    if harness.installed("tqdm"):
        from tqdm import tqdm

        tqdm.write(text)
    else:
        print(text, flush=True)


def against(before: str, path: Path | None) -> int:
    """Hold results files against those of a commit, or one file against another; return the exit status."""
    if Path(before).is_file() and path is None:
        raise SystemExit("--against FILE needs --device-results PATH, the file to hold against it")
    status = 0
    for now in [path] if path else sorted(harness.RESULTS.glob("*.json")):
        old = json.loads(Path(before).read_text()) if Path(before).is_file() else harness.results_at(before, now)
        found = harness.verdict(json.loads(now.read_text()), old)
        print(f"{now.name}: {found.compared} rows compared, {len(found.lost)} lost, {len(found.gained)} gained")
        if found.machine:
            print(f"the machine itself: its peers take {found.machine:.2f}x as long, in the median")
        print(*(f"LOST {one}" for one in found.lost), sep="\n", end="\n" if found.lost else "")
        print(*(f"gained {one}" for one in found.gained), sep="\n", end="\n" if found.gained else "")
        status |= bool(found.lost)
    return int(status)


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison, compare results, rewrite the README's table, or tune; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats: a check of the machinery")
    parser.add_argument("--primitive", nargs="+", metavar="NAME", help="only these primitives or modules")
    parser.add_argument("--case", metavar="REGEX", help="only cases whose name matches from its beginning")
    parser.add_argument("--backend", nargs="+", choices=harness.BACKENDS, help="only these; default: all present")
    parser.add_argument("--device-results", type=Path, metavar="PATH", help="file to write or merge into")
    parser.add_argument("--commit", metavar="SHA", help="the commit measured, where there is no git to ask")
    parser.add_argument("--summary", action="store_true", help="print only the summary, the errors and the notes")
    parser.add_argument(
        "--against",
        metavar="REV-or-FILE",
        help="measure nothing: fail if a row of the results is over 5 %% slower than in this commit or file",
    )
    parser.add_argument("--readme", action="store_true", help="measure nothing: rewrite the README's table")
    parser.add_argument(
        "--tune", nargs="+", metavar="MODULE", help="compare nothing: search for the kernels' tuning on this machine"
    )
    options = parser.parse_args(arguments)

    if options.readme:
        readme = harness.ROOT / "README.md"
        readme.write_text(harness.readme_with_table(readme.read_text()))
        return 0

    if options.against:
        return against(options.against, options.device_results)

    present = harness.backends(options.backend)
    scale = harness.Scale(gpu=any(backend.cuda for backend in present), quick=options.quick)
    if options.tune:
        return tune(options.tune, present, scale, options.commit)
    selected = [case for case in cases(scale, options.primitive) if re.match(options.case or "", case.name)]
    if not selected:
        raise SystemExit(f"no case has a name that matches {options.case}")
    ceilings = harness.measure_ceilings(present, scale)
    head = harness.header(present, ceilings, options.commit)
    path = options.device_results or harness.RESULTS / f"{harness.slug(head['device'])}.json"
    records: list[dict[str, Any]] = []
    errors: list[str] = []
    notes: dict[str, None] = {}
    measured: set[str | tuple[str, str]] = set()
    for case in progress(selected):
        measured.add((case.primitive, case.name) if options.case else case.primitive)
        try:
            outcome = harness.run_case(case, present, ceilings, budget=scale.pick(0.05, 0.3, 0.15))
        except KeyboardInterrupt:
            errors.append(f"interrupted at {case.primitive}: {case.name}; the cases before it are written")
            break
        except Exception as error:  # a case that breaks down must not take the others' results with it
            errors.append(f"{case.primitive}: {case.name} FAILED: {type(error).__name__}: {error}")
            continue
        records += outcome.records
        errors += outcome.errors
        notes |= dict.fromkeys(outcome.notes)
        made, checked, timed = outcome.spent
        spent = f"made in {made:.1f} s, checked in {checked:.1f} s, timed in {timed:.1f} s"
        print(f"{case.primitive}: {case.name}: {spent}", file=sys.stderr, flush=True)
        if not options.summary:
            say(harness.table(outcome))

    harness.write_results(path, head, records, measured)
    everything = json.loads(path.read_text())["records"]
    print(f"\n{harness.summary(records)}\n")
    print(f"{harness.LEGEND} In the long table * marks what auto takes.")
    print(*(f"- {note}" for note in notes), sep="\n")
    print(*(f"{name} {harness.si(rate, '')}" for name, rate in ceilings.items()), sep="; ")
    print(f"results: {path}")
    print(harness.plot(path.with_suffix(".png"), head, everything))
    print(*(f"ERROR {error}" for error in errors), sep="\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

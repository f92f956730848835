"""Compare our ways with the best peers: ``python -m benches`` prints one page; ``--full`` times every case.

With other options it holds results against those of a commit, times calls by auto, or tunes kernels.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benches import primitives
from benches.auto.table import run_table
from benches.core import ceilings, records
from benches.core.cases import Case, Scale
from benches.core.progress import progress, say
from benches.core.runs import present_backends, run_case
from benches.page import page, plots, short, tables
from benches.page.against import against
from benches.tuning import cpu as tune_cpu
from benches.tuning.gpu import tune
from examples.backends import MAKERS, Backend


def cases(scale: Scale, wanted: Iterable[str] | None = None) -> list[Case]:
    """Return the cases of every bench module; ``wanted`` names modules (reduce) or primitives (sum)."""
    found = []
    stems = sorted(module.name for module in pkgutil.iter_modules(primitives.__path__))
    for stem in stems:
        found += [(stem, case) for case in importlib.import_module(f"benches.primitives.{stem}").cases(scale)]
    if wanted is None:
        return [case for _, case in found]
    known = {*stems, *(case.primitive for _, case in found)}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"unknown primitive {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    return [
        case for stem, case in found if stem in wanted or (case.primitive in wanted and case.primitive not in stems)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the comparison, compare results, rewrite the documentation's tables, or tune; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches", description=__doc__)
    parser.add_argument("--full", action="store_true", help="every case, also on one thread: takes much longer")
    parser.add_argument("--quick", action="store_true", help="toy sizes, few repeats: a check of the machinery")
    parser.add_argument("--primitive", nargs="+", metavar="NAME", help="only these primitives, or modules of --full")
    parser.add_argument("--case", metavar="REGEX", help="only cases whose name matches from its beginning")
    parser.add_argument(
        "--backend", nargs="+", choices=tuple(MAKERS), help="arrays of these; default: NumPy, of --full all present"
    )
    parser.add_argument("--device-results", type=Path, metavar="PATH", help="file to write or merge records into")
    parser.add_argument(
        "--record",
        action="store_true",
        help="write the records of --full or --table where they are kept for a commit; "
        "default: benches/results/local, which git ignores",
    )
    parser.add_argument("--commit", metavar="SHA", help="the commit measured, where there is no git to ask")
    parser.add_argument("--long", action="store_true", help="with --full: print every case too, as its file has it")
    parser.add_argument(
        "--against",
        metavar="REV-or-FILE",
        help="measure nothing: fail if a row of the results is over 5 %% slower than in this commit or file",
    )
    parser.add_argument("--readme", action="store_true", help="measure nothing: rewrite tables and plots in the docs")
    parser.add_argument(
        "--tune", nargs="+", metavar="MODULE", help="compare nothing: search for the kernels' tuning on this machine"
    )
    parser.add_argument(
        "--in-programs", action="store_true", help="with --tune on a CPU: the crossovers inside programs of JAX"
    )
    parser.add_argument(
        "--table", action="store_true", help="compare auto on this CPU with the best of the peers, call by call"
    )
    options = parser.parse_args(arguments)

    if options.readme:
        from docs import generate

        return generate.main()

    if options.against:
        return against(options.against, options.device_results)

    results = records.RESULTS if options.record else records.RESULTS / "local"
    if options.table:
        place = options.device_results or results / "auto"
        return run_table(options.backend, options.quick, options.primitive, place, options.commit)

    short_one = not (options.full or options.tune)
    present = present_backends(options.backend or (["numpy"] if short_one else None))
    scale = Scale(gpu=any(backend.cuda for backend in present), quick=options.quick)
    if short_one:
        rows = short.chosen(options.primitive, options.case)
        return short.run(rows, present, scale, options.device_results, options.commit)
    if options.tune and not scale.gpu:
        return tune_cpu.tune_cpu(options.tune, present, scale, options.commit, in_programs=options.in_programs)
    if options.tune:
        return tune(options.tune, present, scale, options.commit)
    selected = [case for case in cases(scale, options.primitive) if re.match(options.case or "", case.name)]
    if not selected:
        raise SystemExit(f"no case has a name that matches {options.case}")
    return run_all(selected, present, scale, results, options)


def run_all(
    selected: list[Case], present: list[Backend], scale: Scale, results: Path, options: argparse.Namespace
) -> int:
    """Check and time cases, write their records, tables and plots, and print their page; return the exit status."""
    tops = ceilings.measure_ceilings(present, scale)
    head = records.header(present, tops, options.commit)
    path = options.device_results or results / f"{records.slug(head['device'])}.json"
    found: list[dict[str, Any]] = []
    errors: list[str] = []
    notes: dict[str, None] = {}
    measured: set[str | tuple[str, ...]] = set()
    long: list[str] = []
    for case in progress(selected, "case"):
        measured |= records.replaced(case.primitive, case.name, options.backend, whole=not options.case)
        try:
            outcome = run_case(case, present, tops, budget=scale.pick(0.05, 0.3, 0.15))
        except KeyboardInterrupt:
            errors.append(f"interrupted at {case.primitive}: {case.name}; the cases before it are written")
            break
        except Exception as error:  # a case that breaks down must not take the others' results with it
            errors.append(f"{case.primitive}: {case.name} FAILED: {type(error).__name__}: {error}")
            continue
        found += outcome.records
        errors += [f"{case.primitive}: {error}" for error in outcome.errors]
        notes |= dict.fromkeys(outcome.notes)
        made, checked, timed = outcome.spent
        spent = f"made in {made:.1f} s, checked in {checked:.1f} s, timed in {timed:.1f} s"
        print(f"{case.primitive}: {case.name}: {spent}", file=sys.stderr, flush=True)
        long.append(tables.table(outcome))
        if options.long:
            say(long[-1])

    records.write_results(path, head, found, measured)
    everything = json.loads(path.read_text())["records"]
    drawn = plots.plot(path.with_suffix(".png"), head, everything)
    told = (tables.summary(found), f"{tables.LEGEND} * marks what auto takes.", *(f"- {note}" for note in notes))
    whole = "\n".join((*long, "", *told)) + "\n"
    path.with_suffix(".txt").write_text(whole)
    path.with_suffix(".html").write_text(page.report(found, head, whole, path.with_suffix(".png")))
    print(f"\n{page.page(found, head)}\n")
    if scale.quick:
        print(f"{short.TOY}\n")
    print(f"records: {path}\nevery case: {path.with_suffix('.txt')}\nreport: {path.with_suffix('.html')}\n{drawn}")
    print(*(f"ERROR {error}" for error in errors), sep="\n")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())

"""Draw calls, make them, and tell what is wrong."""

import argparse
import collections
import contextlib
import importlib
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from parprims._dispatch.dispatch import primitives
from tests import conftest
from tests.fuzz.calls import DRAWS, draw_call
from tests.fuzz.draw import Draw
from tests.fuzz.hostile import WRONG_OPTIONS, spoil
from tests.fuzz.judge import violations
from tests.fuzz.values import Call

FUNCTIONS: tuple[str, ...] = (
    "all", "any", "argsort", "check_associative", "cumulative_prod", "cumulative_sum", "linear_recurrence",
    "map_reduce", "matmul", "max", "min", "prod", "reduce", "scan", "solve_tridiagonal", "sort", "sort_by_key", "sum",
    "vecdot",
)  # fmt: skip
TESTS = pathlib.Path(__file__).parents[1]
WEIGHTS = {"numpy": 10, "array-api-strict": 2, "jax": 1, "torch": 4}
"""How often a backend is drawn; others as often as PyTorch."""


def discover() -> None:
    """Take over ``draw`` and ``WRONG_OPTIONS`` from the test file of each primitive's room, test_<room>.py."""
    global FUNCTIONS
    for name in sorted({*primitives} - {*FUNCTIONS}):
        stem = primitives[name].__module__.removesuffix(".public").rpartition(".")[2]
        (path,) = TESTS.rglob(f"test_{stem}.py")
        module = importlib.import_module(".".join(("tests", *path.relative_to(TESTS).with_suffix("").parts)))
        FUNCTIONS += (name,)
        DRAWS[name] = module.draw
        WRONG_OPTIONS.update(getattr(module, "WRONG_OPTIONS", {}))


discover()


def single_call(backend: Any, seed: int, number: int, folder: str, functions: Sequence[str] = ()) -> Call:
    """Return the call of a number, of one of these functions if there are any."""
    words = [seed, number, *backend.name.encode()]
    d = Draw(backend, np.random.default_rng(words), folder)
    call = draw_call(d, d.one(functions or FUNCTIONS))
    if d.chance(0.45) and not call.wrong:
        spoil(d, call)
        if d.chance(0.1):
            spoil(d, call)
    return call


def run(
    backends: list[str],
    calls: int,
    seed: int,
    only: int | None = None,
    log: Any = sys.stderr,
    functions: Sequence[str] = (),
) -> dict[Any, Any]:
    """Make calls; return how often each violation came, its first call, and what happened there."""
    found: dict[tuple[str, str, str], list[Any]] = {}
    counts: collections.Counter[str] = collections.Counter()
    chooser = np.random.default_rng([seed, 0])
    weights = np.array([WEIGHTS.get(name, 4) for name in backends], dtype=float)
    chosen = chooser.choice(len(backends), calls, p=weights / weights.sum())
    start = last = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        ready = {name: prepared(name, stack) for name in backends}
        for number in range(calls) if only is None else (only,):
            name = backends[int(chosen[number])] if only is None else backends[0]
            backend = ready[name]
            call = single_call(backend, seed, number, folder, functions)
            if only is not None:
                print(call.text(), file=log)
            counts["valid" if not call.wrong else "hostile"] += 1
            counts[name] += 1
            for violation, detail in violations(backend, call):
                key = (violation, call.function, re.sub(r"\d+", "n", detail)[:70])
                chosen_of = "".join(f" --function {one}" for one in functions)
                repro = f"python -m tests.fuzz --backend {name} --seed {seed} --call {number}{chosen_of}"
                found.setdefault(key, [0, repro, call.text(), detail])[0] += 1
            if log and time.monotonic() - last > 10:
                last = time.monotonic()
                many = sum(one[0] for one in found.values())
                print(f"{number + 1}/{calls} calls, {many} violations, {last - start:.0f} s", file=log, flush=True)
    print(f"{dict(counts)}, seed {seed}, {time.monotonic() - start:.0f} s", file=log)
    return found


def prepared(name: str, stack: contextlib.ExitStack) -> Any:
    """Return a backend, the emulator installed where it is that."""
    if name == "emulated":
        import pytest

        from tests.emulation import emulator

        emulator.install(stack.enter_context(pytest.MonkeyPatch.context()))
    return conftest._backend(name)


def report(found: dict[Any, Any]) -> str:
    """Return the violations by kind, the commonest first."""
    lines = []
    for violation in dict.fromkeys(key[0] for key in found):
        group = {key: one for key, one in found.items() if key[0] == violation}
        lines.append(f"{violation}: {sum(one[0] for one in group.values())} in {len(group)} groups")
        for (_, function, _), (count, repro, text, detail) in sorted(group.items(), key=lambda one: -one[1][0]):
            lines += [f"  {count} x {function}: {detail[:300]}", f"      {text}", f"      {repro}"]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the calls asked for; return how many violations there were, at most 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Random calls, valid and hostile.")
    parser.add_argument("--calls", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=None, help="drawn if not given")
    parser.add_argument("--call", type=int, default=None, help="only the call of this number")
    parser.add_argument("--backend", action="append", choices=conftest.BACKENDS, help="any but emulated if not given")
    parser.add_argument("--function", action="append", choices=FUNCTIONS, default=[], help="any if not given")
    parser.add_argument("--without-numba", action="store_true", help="as where it is not installed")
    options = parser.parse_args(argv)
    if options.without_numba:
        sys.modules["numba"] = None  # type: ignore[assignment]  # so that it cannot be found
    seed = options.seed if options.seed is not None else int(np.random.SeedSequence().entropy % 2**31)  # type: ignore[operator]
    usual = [name for name in conftest.BACKENDS if name != "emulated" and conftest.available(name)]
    backends = options.backend or usual
    print(f"{options.calls} calls on {', '.join(backends)}, seed {seed}", file=sys.stderr)
    found = run(backends, options.calls, seed, options.call, functions=options.function)
    if found:
        print(report(found))
    print(f"{sum(one[0] for one in found.values())} violations in {len(found)} groups, seed {seed}")
    return int(bool(found))

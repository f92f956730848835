"""The cost of small calls: ``python -m benches.overhead.small_calls [names] [--backend torch-cuda]``.

Every row calls a primitive by `auto` on 100 elements, and the library's own function beside it, in turns; a time is the
least of many. With PyTorch the call is timed inside a program of torch.compile too, and beside that a program of one
operation of PyTorch, for that is what any program takes.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benches.overhead import parsed, parser
from examples import backends

N, SIDE, K = 100, 10, 5


@dataclasses.dataclass(frozen=True)
class Row:
    """A call: what is called on the arrays named, and what each library has in its place, given its namespace.

    A program can hold it unless it has as many results as there are values of some kind.
    """

    call: Callable[..., Any]
    arrays: tuple[str, ...]
    own: dict[str, Callable[..., Any]]
    fits_programs: bool = True


def _own(both: Callable[..., Any] | None = None, **others: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the function of each library, of which NumPy's and JAX's are mostly written alike."""
    found = {} if both is None else {"numpy": both, "jax": both}
    return found | others


def rows() -> dict[str, Row]:
    """Return the calls by name; each is written as the library's own call beside it is, without an axis."""
    import parprims as pp

    def by_key(np: Any, x: Any, y: Any) -> Any:
        order = np.argsort(x, stable=True)
        return x[order], y[order]

    def matmul(xp: Any, a: Any, b: Any) -> Any:
        return xp.matmul(a, b)

    line, two, square, table = ("x",), ("x", "y"), ("square", "square"), ("ordered", "x")
    simple = {
        "sum": _own(lambda np, x: np.sum(x), torch=lambda torch, x: torch.sum(x)),
        "prod": _own(lambda np, x: np.prod(x), torch=lambda torch, x: torch.prod(x)),
        "max": _own(lambda np, x: np.max(x), torch=lambda torch, x: torch.amax(x)),
        "argmax": _own(lambda np, x: np.argmax(x), torch=lambda torch, x: torch.argmax(x)),
        "cumulative_sum": _own(lambda np, x: np.cumsum(x), torch=lambda torch, x: torch.cumsum(x, 0)),
        "cumulative_prod": _own(lambda np, x: np.cumprod(x), torch=lambda torch, x: torch.cumprod(x, 0)),
        "sort": _own(lambda np, x: np.sort(x), torch=lambda torch, x: torch.sort(x, stable=True)),
        "argsort": _own(lambda np, x: np.argsort(x), torch=lambda torch, x: torch.argsort(x, stable=True)),
        "median": _own(lambda np, x: np.median(x)),
    }
    return {name: Row(getattr(pp, name), line, own) for name, own in simple.items()} | {
        "all": Row(pp.all, ("mask",), _own(lambda np, x: np.all(x), torch=lambda torch, x: torch.all(x))),
        "vecdot": Row(
            pp.vecdot, two, _own(lambda np, x, y: np.vecdot(x, y), torch=lambda torch, x, y: torch.vdot(x, y))
        ),
        "matmul": Row(
            pp.matmul, square, _own(lambda np, a, b: np.matmul(a, b), torch=lambda torch, a, b: torch.matmul(a, b))
        ),
        "scan by maximum": Row(
            functools.partial(pp.scan, op="maximum"),
            line,
            _own(
                numpy=lambda np, x: np.maximum.accumulate(x),
                torch=lambda torch, x: torch.cummax(x, 0),
                jax=lambda _, x: _lax().cummax(x),
            ),
        ),
        "top_k": Row(
            lambda x: pp.top_k(x, K),
            line,
            _own(torch=lambda torch, x: torch.topk(x, K), jax=lambda _, x: _lax().top_k(x, K)),
        ),
        "partition": Row(lambda x: pp.partition(x, K), line, _own(lambda np, x: np.partition(x, K))),
        "sort_by_key": Row(pp.sort_by_key, two, _own(by_key)),
        "searchsorted": Row(
            pp.searchsorted,
            table,
            _own(lambda np, x, y: np.searchsorted(x, y), torch=lambda torch, x, y: torch.searchsorted(x, y)),
        ),
        "select": Row(pp.select, ("x", "mask"), _own(numpy=lambda _, x, m: x[m], torch=lambda _, x, m: x[m]), False),
        "unique": Row(pp.unique, line, _own(lambda np, x: np.unique(x)), False),
        "linear_recurrence": Row(pp.linear_recurrence, two, {}),
        "solve_tridiagonal": Row(pp.solve_tridiagonal, ("x", "dominant", "x", "y"), {}),
    }


def _lax() -> Any:
    import jax

    return jax.lax


def arrays() -> dict[str, np.ndarray]:
    """Return the arrays by name."""
    rng = np.random.default_rng(1)
    x, y = rng.random(N, dtype=np.float32), rng.random(N, dtype=np.float32)
    return {
        "x": x, "y": y, "dominant": y + 4, "ordered": np.sort(x), "mask": x > 0.5,
        "square": rng.random((SIDE, SIDE), dtype=np.float32),
    }  # fmt: skip


def least(functions: Sequence[Callable[[], Any]], repeats: int, wait: Callable[[Any], Any]) -> list[float]:
    """Return the least microseconds of calls, which are timed in turns, in runs of 50."""
    for function in functions:
        for _ in range(20):
            wait(function())
    found = [float("inf")] * len(functions)
    for _ in range(repeats):
        for at, function in enumerate(functions):
            before = time.perf_counter()
            for _ in range(50):
                result = function()
            wait(result)
            found[at] = min(found[at], (time.perf_counter() - before) * 1e6 / 50)
    return found


def measure(name: str, backend: str, repeats: int = 200) -> dict[str, float]:
    """Return the microseconds of a call: ours, the library's own, and inside of torch.compile."""
    made, row, named = backends.make(backend), rows()[name], arrays()
    library, xp = made.family, made.module
    given = [made.asarray(named[one]) for one in row.arrays]
    functions = {"ours": functools.partial(row.call, *given)}
    if library in row.own:
        functions["own"] = functools.partial(row.own[library], xp, *given)
    if library == "torch" and row.fits_programs:
        xp._dynamo.reset()
        call = row.call
        functions["compiled"] = functools.partial(xp.compile(lambda *xs: call(*xs), fullgraph=True), *given)
        functions["empty program"] = functools.partial(xp.compile(lambda x: x + 1, fullgraph=True), given[0])
    return dict(zip(functions, least([*functions.values()], repeats, made.wait), strict=True))


def main(arguments: list[str] | None = None) -> int:
    """Print a row for every call; return the exit status."""
    command = parser("small_calls", __doc__)
    command.add_argument("--backend", default="numpy", choices=(*backends.MAKERS,), help="whose arrays")
    command.add_argument("--repeats", type=int, default=200, help="runs of 50 calls; the fastest run counts")
    options = parsed(command, arguments, rows())
    more = f" {'compiled':>9} {'program':>8}" if options.backend.startswith("torch") else ""
    print(f"{'call, microseconds':20} {'ours':>7} {'own':>7} {'more':>7} {'ratio':>6}{more}  {options.backend}")
    for name in options.names or rows():
        one = measure(name, options.backend, options.repeats)
        beside = " ".join(["      -", "      -", "     -"])
        if "own" in one:
            beside = f"{one['own']:7.2f} {one['ours'] - one['own']:+7.2f} {one['ours'] / one['own']:6.2f}"
        more = f" {one['compiled']:9.2f} {one['empty program']:8.2f}" if "compiled" in one else ""
        print(f"{name:20} {one['ours']:7.2f} {beside}{more}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

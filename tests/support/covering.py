"""A covering design of the suite: few of its cases, in which every two choices that can meet do so once.

The cases of a test are a product: of libraries, methods, dtypes, layouts, sizes, options. A fault mostly takes one
value of a parameter, or two that meet (Kuhn, Wallace and Gallo, "Software fault interactions and implications for
software testing", IEEE Transactions on Software Engineering 30, 2004). The function of a test and the class that
it runs in are two such choices: classes of primitives inherit the same laws. So of each file those cases are run that
have

- every test of every class;
- every function of a test, and every class, with every value of each of its parameters;
- every two values of two parameters that meet in any test of the file;
- every class with every method on every library.

They are found greedily: the next case is the one with the most pairs that none before it has, for the time that it
takes. Among equals, a seed chooses. In the end, those are left out whose pairs other cases have as well.
``pytest --all`` runs the product.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import random
import zlib
from collections.abc import Hashable, Iterable, Sequence, Set
from typing import Any

import pytest

from tests.mutation.mutations import MUTATIONS

Choice = tuple[str, Hashable]
"""A parameter and a value of it."""


_PLAIN = (str, int, float, complex, type(None))


def _value(test: str, value: Any) -> Hashable:
    """Return what tells a value from others of its parameter; an object is one only within its test."""
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, tuple) and all(isinstance(one, _PLAIN) for one in value):
        return repr(value)
    name = getattr(value, "__qualname__", "<")
    if "<" not in name:  # a function or a class of a module
        return value.__module__, name
    return test, id(value)  # pytest gives the same object to every case of a test


def _choices(item: pytest.Item) -> tuple[Choice, ...]:
    """Return the function and the class of the test of a case, and a value for each of its parameters."""
    test = item.nodeid.partition("[")[0]
    function: Any = item.function  # type: ignore[attr-defined]
    values = ((name, _value(test, value)) for name, value in sorted(given(item).items()))
    return ("function", (function.__module__, function.__qualname__)), ("class", _class(item)), *values


def _class(item: pytest.Item) -> str:
    return getattr(getattr(item, "cls", None), "__qualname__", "")


def pairs(choices: Sequence[Choice]) -> set[Hashable]:
    """Return every pair of choices, or of a single one that."""
    return {*itertools.combinations(choices, 2)} or {*choices}


def _covers(item: pytest.Item) -> set[Hashable]:
    """Return what a case covers: its pairs of choices, and its class with the method and the library."""
    found, values = pairs(_choices(item)), given(item)
    if "method" in values and "backend" in values:
        found.add((_class(item), values["method"], values["backend"]))
    return found


def cover(
    cases: Sequence[Set[Hashable]], seed: int, given: Iterable[int] = (), costs: Sequence[float] | None = None
) -> list[int]:
    """Return the numbers of few cases that cover all that any of them does, in order; those given are among them.

    Cases of high costs are taken where others do not cover the same.
    """
    costs = [1.0] * len(cases) if costs is None else costs
    named = {*given}
    chosen = {*named}
    left = set().union(*cases).difference(*(cases[case] for case in chosen))
    order = random.Random(seed).sample(range(len(cases)), len(cases))
    heap = [(-len(cases[case]) / costs[case], place, case) for place, case in enumerate(order)]
    heapq.heapify(heap)
    while left:
        most, place, case = heapq.heappop(heap)
        new = cases[case] & left
        worth = -len(new) / costs[case]
        if new and worth > most:
            heapq.heappush(heap, (worth, place, case))  # its turn is after those that are worth more
        elif new:
            chosen.add(case)
            left -= new
    times = collections.Counter(one for case in chosen for one in cases[case])
    for case in sorted(chosen - named, key=lambda case: (-costs[case], case)):
        if all(times[one] > 1 for one in cases[case]):
            chosen.remove(case)
            times.subtract(cases[case])
    return sorted(chosen)


def given(item: pytest.Item) -> dict[str, Any]:
    """Return the parameters of a case."""
    call = getattr(item, "callspec", None)
    return {} if call is None else call.params


def left_out(item: pytest.Item) -> str:
    """Return the sentence why a case is skipped, where its class or its module knows before it runs, or nothing.

    They tell by a function ``left_out(test, given)`` of the name of the test and the parameters of the case.
    """
    for owner in (getattr(item, "cls", None), getattr(item, "module", None)):
        asked: Any = getattr(owner, "left_out", None)
        why: str = asked(item.function.__name__, given(item)) if asked is not None else ""
        if why:
            return why
    return ""


def _refuses(item: pytest.Item, as_gpu: bool) -> bool:
    """Return whether a case can only be refused on a CPU, as the class or the module of its test says.

    They tell by a function ``only_refused(test, given)``, as by `left_out`. No compiler of kernels takes the arrays of
    array-api-strict. What JAX refuses on a CPU it need not where that stands for a GPU.
    """
    values = given(item)
    if values.get("backend") == "array-api-strict" and values.get("method") == "kernel":
        return True
    if as_gpu and values.get("backend") == "jax":
        return False
    owners = (getattr(item, "cls", None), getattr(item, "module", None))
    asked: list[Any] = [one.only_refused for one in owners if hasattr(one, "only_refused")]
    return any(one(item.function.__name__, values) for one in asked)  # type: ignore[attr-defined]


_MISSING = {
    "array-api-strict": ("float16", "bfloat16"),
    "numpy": ("bfloat16",),
    "torch": ("uint16", "uint32", "uint64"),
}


def lacks_dtype(given: dict[str, Any]) -> bool:
    """Return whether the library of a case has no numbers of its dtype."""
    return given.get("dtype") in _MISSING.get(given.get("backend", ""), ())


def _cost(item: pytest.Item) -> float:
    """Return about how many times as long as others a case takes: Numba compiles a kernel for it, or XLA programs."""
    method = given(item).get("method")
    if method in ("kernel", "auto"):
        return 20.0 if method == "kernel" else 10.0
    return 6.0 if given(item).get("backend") == "jax" else 1.0


def chosen(items: Iterable[pytest.Item], seed: int, as_gpu: bool = False) -> list[pytest.Item]:
    """Return the cases to run, in order: a covering design of each file.

    They include the cases that are known to notice a mutation of a kernel.
    """
    files: dict[Any, list[pytest.Item]] = {}
    for item in items:
        if not _refuses(item, as_gpu) and not left_out(item):
            files.setdefault(item.path, []).append(item)
    notice = {one.tests for one in MUTATIONS}
    kept = []
    for found in files.values():
        named = [at for at, item in enumerate(found) if item.nodeid in notice]
        design = cover([_covers(item) for item in found], seed, named, [_cost(item) for item in found])
        kept += [found[at] for at in design]
    return kept


def some(items: Iterable[pytest.Item], every: int) -> list[pytest.Item]:
    """Return one of so many cases, and the first of each test."""
    kept, tests = [], set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        # By a digest: every N-th in order might always have the same method.
        if test not in tests or zlib.crc32(item.nodeid.encode()) % every == 0:
            kept.append(item)
        tests.add(test)
    return kept

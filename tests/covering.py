"""A covering design of the suite: few of its cases, in which every two choices that can meet do so once.

The cases of a test are a product: of libraries, methods, dtypes, layouts, sizes, options. A fault mostly takes one
value of a parameter, or two that meet (Kuhn, Wallace and Gallo, "Software fault interactions and implications for
software testing", IEEE Transactions on Software Engineering 30, 2004). So of each file those cases are run that have

- every test, with every value of each of its parameters;
- every two values of two parameters that meet in any test of the file.

They are found greedily: the next case is the one with the most pairs that none before it has. Among equals, a seed
chooses. ``pytest --all`` runs the product.
"""

from __future__ import annotations

import heapq
import itertools
import random
import zlib
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import pytest

from tests.mutations import MUTATIONS

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
    """Return the test of a case, as a choice among those of its file, and a value for each of its parameters."""
    test = item.nodeid.partition("[")[0]
    return ("", test), *((name, _value(test, value)) for name, value in sorted(given(item).items()))


def cover(cases: Sequence[Sequence[Choice]], seed: int, given: Iterable[int] = ()) -> list[int]:
    """Return the numbers of few cases that have every pair of choices, in order; those given are among them."""
    pairs = [{*itertools.combinations(case, 2)} or {tuple(case)} for case in cases]
    chosen = [*given]
    left = set().union(*pairs).difference(*(pairs[case] for case in chosen))
    order = random.Random(seed).sample(range(len(cases)), len(cases))
    heap = [(-len(pairs[case]), place, case) for place, case in enumerate(order)]
    heapq.heapify(heap)
    while left:
        most, place, case = heapq.heappop(heap)
        new = pairs[case] & left
        if new and len(new) < -most:
            heapq.heappush(heap, (-len(new), place, case))  # its turn is after those that have more
        elif new:
            chosen.append(case)
            left -= new
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


def _refuses(item: pytest.Item) -> bool:
    """Return whether a case can only be refused: no compiler of kernels takes the arrays of array-api-strict."""
    return given(item).get("backend") == "array-api-strict" and given(item).get("method") == "kernel"


def chosen(items: Iterable[pytest.Item], seed: int) -> list[pytest.Item]:
    """Return the cases to run, in order: a covering design of each file.

    They include the cases that are known to notice a mutation of a kernel.
    """
    files: dict[Any, list[pytest.Item]] = {}
    for item in items:
        if not _refuses(item) and not left_out(item):
            files.setdefault(item.path, []).append(item)
    notice = {one.tests for one in MUTATIONS}
    kept = []
    for found in files.values():
        named = [at for at, item in enumerate(found) if item.nodeid in notice]
        kept += [found[at] for at in cover([_choices(item) for item in found], seed, named)]
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

"""The covering design of the suite."""

import itertools
import random

import pytest

from tests import covering

pytestmark = pytest.mark.once


def _product(test, **parameters):
    return [(("", test), *zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values())]


def _pairs(cases):
    return {pair for case in cases for pair in itertools.combinations(case, 2)}


@pytest.mark.parametrize("seed", range(5))
def test_every_pair_is_there(seed):
    """Of random tests, alone or with parameters in common: what is left out has no pair that is not elsewhere."""
    values = random.Random(seed)
    names = {name: range(values.randint(1, 6)) for name in ("backend", "dtype", "method", "n", "op")}
    tests = [dict(values.sample(sorted(names.items()), values.randint(1, 4))) for _ in range(8)]
    cases = [case for at, one in enumerate(tests) for case in _product(f"test_{at}", **one)]
    found = covering.cover(cases, seed)
    assert found == sorted({*found}) == covering.cover(cases, seed)
    assert _pairs(cases[at] for at in found) == _pairs(cases)


def test_few_cases():
    """Of a test, little more than the product of the two longest parameters; of another like it, one for each value."""
    one = _product("one", backend=range(4), method=range(4), dtype=range(6), reverse=range(2))
    assert len(one) == 192
    assert 24 <= len(covering.cover(one, 1)) <= 32
    both = one + _product("other", backend=range(4), method=range(4), dtype=range(6), reverse=range(2))
    assert len(covering.cover(both, 1)) <= 38


def test_a_test_without_parameters():
    assert covering.cover([(("", "one"),), (("", "other"),)], 1) == [0, 1]


def test_seeds_choose_other_cases():
    cases = _product("one", backend=range(4), method=range(4), dtype=range(6))
    assert len({tuple(covering.cover(cases, seed)) for seed in range(5)}) == 5


def test_cases_that_notice_a_mutation_are_kept():
    cases = _product("one", backend=range(4), method=range(4), dtype=range(6))
    given = [5, 6, 7, 80]
    found = covering.cover(cases, 1, given)
    assert {*given} < {*found}
    assert _pairs(cases[at] for at in found) == _pairs(cases)

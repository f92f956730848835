"""The covering design of the suite."""

import itertools
import random
import types

import pytest

from tests.support import covering

pytestmark = pytest.mark.once


def _product(test, **parameters):
    return [
        covering.pairs([("", test), *zip(parameters, values, strict=True)])
        for values in itertools.product(*parameters.values())
    ]


def _all(cases):
    return set().union(*cases)


@pytest.mark.parametrize("seed", range(5))
def test_every_pair_is_there(seed):
    """Of random tests, alone or with parameters in common: what is left out has no pair that is not elsewhere."""
    values = random.Random(seed)
    names = {name: range(values.randint(1, 6)) for name in ("backend", "dtype", "method", "n", "op")}
    tests = [dict(values.sample(sorted(names.items()), values.randint(1, 4))) for _ in range(8)]
    cases = [case for at, one in enumerate(tests) for case in _product(f"test_{at}", **one)]
    found = covering.cover(cases, seed)
    assert found == sorted({*found}) == covering.cover(cases, seed)
    assert _all(cases[at] for at in found) == _all(cases)


def test_few_cases():
    """Of a test, little more than the product of the two longest parameters; of another like it, one for each value."""
    one = _product("one", backend=range(4), method=range(4), dtype=range(6), reverse=range(2))
    assert len(one) == 192
    assert 24 <= len(covering.cover(one, 1)) <= 32
    both = one + _product("other", backend=range(4), method=range(4), dtype=range(6), reverse=range(2))
    assert len(covering.cover(both, 1)) <= 38


def test_a_test_without_parameters():
    assert covering.cover([covering.pairs([("", one)]) for one in ("one", "other")], 1) == [0, 1]


def test_seeds_choose_other_cases():
    cases = _product("one", backend=range(4), method=range(4), dtype=range(6))
    assert len({tuple(covering.cover(cases, seed)) for seed in range(5)}) == 5


class Laws:
    """A test that a method of a library can only skip."""

    @classmethod
    def left_out(cls, _test, given):
        return "none" if (given["backend"], given["method"]) == ("b", "y") else ""

    def law(self):
        pass


def _items(cls, **parameters):
    """Return cases as pytest makes them of a method: with the same objects in all."""
    return [
        types.SimpleNamespace(
            nodeid=f"file.py::{cls.__name__}::law[{values}]",
            path="file.py",
            cls=cls,
            module=None,
            function=cls.law,
            callspec=types.SimpleNamespace(params=dict(zip(parameters, values, strict=True))),
        )
        for values in itertools.product(*parameters.values())
    ]


def test_objects_and_what_is_left_out():
    """An object is one value in all cases, and what can only be skipped covers nothing."""
    items = _items(Laws, backend="abcd", method="wxyz", value=[object() for _ in range(4)])
    assert [covering.left_out(one) for one in items].count("none") == 4
    found = covering.chosen(items, 1)
    choices = [dict(covering._choices(one)) for one in found]
    pairs = {(one.callspec.params["backend"], one.callspec.params["method"]) for one in found}
    assert pairs == {*itertools.product("abcd", "wxyz")} - {("b", "y")}
    assert len({(one["method"], one["value"]) for one in choices}) == 16
    assert len(found) <= 24


def test_dear_cases_are_few():
    """Of two that cover the same the cheap is taken, and a dear one for what no cheap one covers."""
    cases = _product("one", backend=range(4), method=range(4), dtype=range(6))
    dear = [10.0 if dict(one for pair in case for one in pair)["method"] == 3 else 1.0 for case in cases]
    found = covering.cover(cases, 1, (), dear)
    assert _all(cases[at] for at in found) == _all(cases)
    assert [dear[at] for at in found].count(10.0) == 6  # each dtype once
    plain = covering.cover(cases, 1)
    assert [dear[at] for at in plain].count(10.0) >= 6
    assert len({*found}) < len(cases)


def test_what_others_cover_is_left_out():
    """Whatever was chosen first, no case stays that the others make superfluous."""
    cases = [{1, 2, 3, 4}, {1, 2, 5}, {3, 4, 6}]
    assert covering.cover(cases, 1) == [1, 2]
    assert covering.cover(cases, 1, [0]) == [0, 1, 2]


class Refusing(Laws):
    """A class whose law a method of a library can only refuse."""

    @staticmethod
    def only_refused(_test, given):
        return given["backend"] == "jax" and given["method"] == "x"


@pytest.mark.parametrize("as_gpu", [False, True])
def test_what_can_only_be_refused(as_gpu):
    """It covers nothing, but for JAX where its CPU stands for a GPU."""
    items = _items(Refusing, backend=["jax", "b"], method="wx", n=range(3))
    params = [one.callspec.params for one in covering.chosen(items, 1, as_gpu)]
    assert (("jax", "x") in {(one["backend"], one["method"]) for one in params}) == as_gpu
    assert {(one["method"], one["n"]) for one in params if one["method"] == "x"} == {("x", n) for n in range(3)}


class Others(Laws):
    """A class that inherits the law."""


def test_laws_that_classes_inherit():
    """The law meets each value once, in any class; each class meets each method on each library."""
    names = {"backend": "abcd", "method": "wxyz", "n": range(12)}
    items = [one for cls in (Laws, Others) for one in _items(cls, **names)]
    found = covering.chosen(items, 1)
    assert len(found) <= 60 < 2 * 48
    for cls in (Laws, Others):
        params = [one.callspec.params for one in found if one.cls is cls]
        pairs = {(one["backend"], one["method"]) for one in params}
        assert pairs == {*itertools.product("abcd", "wxyz")} - {("b", "y")}
        assert {one["n"] for one in params} == {*range(12)}


def test_cases_that_notice_a_mutation_are_kept():
    cases = _product("one", backend=range(4), method=range(4), dtype=range(6))
    given = [5, 6, 7, 80]
    found = covering.cover(cases, 1, given)
    assert {*given} < {*found}
    assert _all(cases[at] for at in found) == _all(cases)

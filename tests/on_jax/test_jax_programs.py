"""Programs of JAX: how large they are, how large they grow, and that those which are not used again are let go."""

import dataclasses
import functools
import importlib
import pathlib

import numpy as np
import pytest

import parprims
from benches.overhead import programs
from parprims._core import programs as core_programs
from parprims._dispatch.examples import Sample
from parprims._dispatch.primitive import declared
from parprims._primitives.segments.methods import SCANS


def sampled(name, n, dtype):
    """Return the example call of a primitive in a program, on n elements."""
    return declared[name].sampled(Sample((n,), dtype=dtype, fixed=True))


def with_weights(n, dtype):
    """Return a histogram of weighted elements."""
    counted, pair = sampled("histogram", n, dtype), sampled("vecdot", n, dtype)
    return dataclasses.replace(counted, options={"weights": pair.arrays[1]})


def descending(n, dtype):
    """Return a sort in descending order."""
    return dataclasses.replace(sampled("sort", n, dtype), options={"descending": True})


PROGRAMS = {
    name: functools.partial(sampled, name)
    for name in (
        "sort", "argsort", "sort_by_key", "median", "quantile", "top_k", "partition", "argpartition", "searchsorted",
        "merge", "merge_by_key", "select", "partition_by", "run_lengths", "unique", "cumulative_max with indices",
        "scan by offsets", "reduce by offsets", "sort by offsets", "histogram", "segment_reduce",
    )
}  # fmt: skip
"""The calls that are made of sorts, scans and searches, by functions of a length and a dtype."""
PROGRAMS |= {"sort, descending": descending, "histogram, weights": with_weights}


MORE_MAPS = {"sort by offsets": 64, "unique": 64, "histogram": 80, "histogram, weights": 100, "segment_reduce": 100}
"""The functions made of several sorts, scans and searches, whose programs are that much larger."""
MORE_MAPS_OF_A_CALL = {"histogram": 48, "histogram, weights": 56, "segment_reduce": 56}
"""The same where the call is the whole program."""


def equations(jaxpr):
    """Count the equations of a program, with those inside of others."""
    count = 0
    for one in jaxpr.eqns:
        for value in one.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                count += equations(inner) if hasattr(inner, "eqns") else 0
        count += 1
    return count


def maps():
    return len(pathlib.Path("/proc/self/maps").read_text().splitlines())


@pytest.fixture
def jax(backend):
    if not backend.name.startswith("jax") or backend.cuda:
        pytest.skip("needs JAX on a CPU")
    return importlib.import_module("jax")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_size_does_not_grow(jax, name):
    def size(n, dtype):
        call = PROGRAMS[name](n, dtype)
        return equations(jax.make_jaxpr(functools.partial(call, method="array"))(*call.arrays).jaxpr)

    few, many = size(2**8, "int32"), size(2**15, "int32")
    assert size(2**18, "int32") <= many
    assert many <= few + 60  # scans of 8192 elements and more go by lanes
    assert abs(size(2**8, "int8") - few) <= 12  # casts
    assert many <= 360


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_maps(jax, name):
    grown = []
    for n in (301, 302):
        call = PROGRAMS[name](n, "float32")
        program = jax.jit(functools.partial(call, method="array")).lower(*call.arrays)
        before = maps()
        kept = program.compile()
        grown.append(maps() - before)
        del kept
    assert min(grown) <= MORE_MAPS.get(name, 40)


LARGER = {
    "argmax": (45, 1.0),
    "linear_recurrence": (45, 1.0),
    "unique": (50, 1.0),
    "sort by offsets": (55, 1.0),
    **{f"{name} by segment_ids": (75, 1.0) for name in (*SCANS, "linear_recurrence")},
    "histogram": (65, 1.0),
    "histogram with weights": (85, 1.2),
    "segment_reduce": (85, 1.2),
    "segment_reduce everywhere": (70, 1.0),
    "reduce by offsets everywhere": (70, 1.0),
    "histogram everywhere": (85, 1.2),
    "solve_tridiagonal, no exchanges": (45, 1.0),
    "solve_tridiagonal": (215, 3.5),
    "solve_tridiagonal, periodic": (205, 3.5),
    "solve_block_tridiagonal": (160, 3.0),
    "solve_banded": (170, 3.0),
    "lfilter": (115, 1.5),
    "sosfilt": (145, 1.8),
}
"""Memory maps and seconds of processors of programs that have more than 40 or take over a second.

XLA compiles every piece that it fuses by itself, for some 30 ms and 4 maps. These are several sorts, scans and
searches, or loops of many pieces: 48 in the three loops of a tridiagonal system, and its residual.
"""


@pytest.mark.parametrize("name", programs.rows())
def test_the_cost_of_a_first_call(jax, name):
    jax.block_until_ready(jax.numpy.linalg.qr(jax.numpy.eye(3)))  # LAPACK has maps of its own
    jax.block_until_ready(jax.lax.linalg.triangular_solve(jax.numpy.eye(3), jax.numpy.eye(3)))
    _, seconds, kept = programs.cost(*programs.rows()[name])
    most_kept, most_seconds = LARGER.get(name, (40, 1.0))
    assert kept <= most_kept
    assert seconds <= most_seconds


def test_every_function_has_a_row():
    """Every function of arrays that has the method array."""
    functions = {name for name in parprims.__all__ if name.islower() and callable(getattr(parprims, name))}
    others = {
        "check_associative",
        "compare",
        "explain",
        "jax_export_checks",
        "launches",
        "methods",
        "segmented",
        "warm",
    }
    assert functions - others == {name.replace(",", "").split()[0] for name in programs.rows()}


def test_programs_with_many_maps_are_let_go(jax, monkeypatch):
    """Before the process has all maps that it may have, however few programs there are."""
    import gc

    def sort(n):
        jax.block_until_ready(parprims.sort(jax.numpy.arange(n), method="array"))

    monkeypatch.setattr(core_programs, "FEWEST_PROGRAMS", 2)
    monkeypatch.setattr(core_programs, "_most_maps", lambda: 0)
    for n in range(600, 603):
        sort(n)
    assert len(core_programs._programs) <= 3  # all others are gone
    gc.collect()
    limit = maps() + 100
    monkeypatch.setattr(core_programs, "_most_maps", lambda: 2 * limit)
    for n in range(610, 630):
        sort(n)
    gc.collect()
    assert len(core_programs._programs) > 2
    assert maps() <= limit + 40  # and those of the last one


def test_programs_are_let_go(jax, monkeypatch):
    """The maps of many shapes are those of the programs that are kept."""
    import gc

    monkeypatch.setattr(core_programs, "MOST_PROGRAMS", 3)

    def sort(n):
        x = np.arange(n, dtype=np.float32)[::-1]
        found = parprims.sort(jax.numpy.asarray(x), method="array")
        np.testing.assert_array_equal(np.asarray(found), x[::-1])

    for n in range(500, 504):
        sort(n)
    gc.collect()
    before = maps()
    for n in range(510, 522):
        sort(n)
    gc.collect()
    assert maps() - before <= 3 * 40
    sort(500)  # compiled again
    assert len(core_programs._programs) <= 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_memory_maps_of_a_call(jax, name):
    """A call outside of a program is a program by itself, which XLA compiles with fewer and larger parts."""
    grown = []
    for n in (303, 304):
        call = PROGRAMS[name](n, "float32")
        arrays = list(map(jax.numpy.asarray, call.arrays))
        before = maps()
        jax.block_until_ready(call(*arrays, method="array"))
        grown.append(maps() - before)
    assert min(grown) <= MORE_MAPS_OF_A_CALL.get(name, 40)


def test_arrays_with_values_while_others_are_traced(jax):
    """They are part of the program that is traced, in which JAX allows no options."""
    double = core_programs.one_program(lambda x: x + x)
    known = jax.numpy.float32(2.0)
    for transform in (jax.jit, jax.grad, jax.vmap):
        x = jax.numpy.ones(3, "float32") if transform is jax.vmap else jax.numpy.float32(1.0)
        assert np.all(np.asarray(transform(lambda x: x * double(known))(x)) == 4.0)
    assert float(double(known)) == 4.0
    assert double._alone is not double._inside


def test_releases_without_the_options(jax, monkeypatch):
    """An XLA that has other options compiles without any."""
    monkeypatch.setattr(core_programs, "_OPTIONS", {"xla_cpu_option_of_old": True})
    double = core_programs.one_program(lambda x: x + x)
    assert [float(double(jax.numpy.float32(value))) for value in (1.0, 2.0)] == [2.0, 4.0]
    assert double._alone is double._inside

    def fails(_):
        raise RuntimeError("no sum")

    with pytest.raises(RuntimeError, match="no sum"):
        core_programs.one_program(fails)(jax.numpy.float32(1.0))

"""The tables of what measurements chose: their form, and what of a plan depends on the device at hand."""

import dataclasses
import functools
import importlib
import itertools
import json
import re
import types

import numpy as np
import pytest

import parprims
from benches import __main__ as command
from benches.core import records
from benches.core.cases import Case, Problem, Scale
from benches.core.clock import Contender
from benches.primitives import reduce as bench_reduce
from benches.tuning import entries
from benches.tuning import gpu as tune
from examples import backends
from parprims import _cuda
from parprims._compiling.tables import typed
from parprims._cuda import memory, xla
from parprims._primitives.histogram import cuda as histogram_cuda
from parprims._primitives.matmul import cuda as matmul_cuda
from parprims._primitives.reduce import cuda as reduce_cuda
from parprims._primitives.sort import cuda as sort_cuda
from parprims._primitives.tridiagonal import cuda as tridiagonal_cuda
from tests.emulation import emulator
from tests.primitives.filters.test_filters import loop as filtered
from tests.support.tuning_tables import NAMES, TABLES, of_device

STEMS = {stem for stem, search in tune.SEARCHES.items() if search.module in TABLES}
ENTRIES = [entry for table in TABLES.values() for entry in table.values()]


@pytest.mark.once
@pytest.mark.parametrize("name", TABLES)
def test_table(name):
    for capability, entry in TABLES[name].items():
        assert isinstance(capability, int)
        assert isinstance(entry, _cuda.Tuning)
        assert type(entry).__name__ == "Tuning"
        file = json.loads((records.ROOT / entry.record).read_text())
        assert file["header"]["device"] == entry.device
        assert any(one.get("method") == "kernel" for one in file["records"])


@pytest.mark.once
def test_tables_of_all_primitives_with_a_kernel():
    newer = {"segments", "sort_segments", "search", "merge", "selection", "order_statistics", "partition"}
    newer |= {"filters", "banded", "segment_atomics", "segment_rows", "segment_tables"}
    assert {"reduce", "scan", "sort", "tridiagonal", "matmul", "histogram", *newer} == STEMS


@pytest.mark.once
def test_devices_without_an_entry():
    old, new = (dataclasses.replace(histogram_cuda.TUNING[90], each=each, shared_bytes=1024) for each in (1, 2))
    table = {80: old, 90: new}
    found = {capability: _cuda.tuned(table, capability) for capability in (75, 80, 86, 90, 100, 120)}
    assert [entry.each for entry in found.values()] == [1, 1, 1, 2, 2, 2]
    assert found[80] is old
    assert found[90] is new
    for capability, entry in found.items():
        device = _cuda.model(capability)
        if capability not in table:
            assert entry.multiprocessors == device.multiprocessors
            assert entry.blocks == 8 * device.multiprocessors  # no bits depend on them
            assert entry.runs == 2 * device.multiprocessors  # and on these they do
        assert entry.on(33).runs == entry.runs


@pytest.mark.once
def test_shared_memory_where_there_is_no_entry():
    """A block takes half of a multiprocessor's where two fit on the device measured, else what a block can have."""
    half, whole = 96 << 10, 224 << 10
    for capability, of_two, of_one in ((75, 30, 62), (80, 80, 162), (86, 48, 98), (100, 96, 224), (120, 48, 98)):
        for nbytes, most in ((half, of_two), (whole, of_one), (1 << 10, 1)):
            table = {90: dataclasses.replace(histogram_cuda.TUNING[90], shared_bytes=nbytes)}
            assert _cuda.tuned(table, capability).shared_bytes == most << 10


@pytest.mark.once
@pytest.mark.parametrize("capability", [75, 80, 86, 89, 100, 103, 120, 121])
def test_bytes_ahead_where_there_is_no_entry(capability):
    """What is brought into the L2 cache stays there until it is read, as long as on the device measured."""
    device, measured = _cuda.model(capability), _cuda.model(90)
    tables = [table for table in TABLES.values() if table[90].prefetched]
    assert len(tables) == 3
    for table in tables:
        entry, ahead = _cuda.tuned(table, capability), table[90].ahead_bytes * device.bandwidth // measured.bandwidth
        assert entry.ahead_bytes == min(ahead, (device.cache_mib << 20) // 3)
        assert entry.on(device.multiprocessors // 2).ahead_bytes == entry.ahead_bytes // 2
    large = dataclasses.replace(tables[0][90], ahead_bytes=1 << 30)
    assert 3 * _cuda.tuned({90: large}, capability).ahead_bytes <= device.cache_mib << 20


@pytest.mark.once
@pytest.mark.parametrize("capability", [75, 80, 86, 89, 90, 100, 103, 120, 121])
def test_blocks_fit_every_device(capability):
    """Plans of products ask for the device themselves: see test_matmul_plan."""
    device = _cuda.model(capability)
    with of_device(capability):
        for name in NAMES:
            stem = re.sub("(tiles|problem|tiling)$", "cuda", name).replace("tables.rows", "cuda")
            module = importlib.import_module(f"parprims.{stem}")
            if module is matmul_cuda:
                continue
            for label, plan in module.cases():
                for launch in plan.launches:
                    assert launch.shared_bytes <= _cuda.shared_bytes(capability), (label, launch.name)
                    if launch.name.startswith(IN_PAIRS):
                        assert 2 * (launch.shared_bytes + 1024) <= device.shared_kib << 10, (label, launch.name)
                        assert 2 * launch.block <= device.threads


IN_PAIRS = ("scan_rows<", "scan_strips<", "scan_segments<", "sort_tiles<", "sort_pieces<", "reduce_segments<")
"""Kernels of which two blocks, with their shared memory and threads, fit a multiprocessor of every device."""


@pytest.mark.emulator
@pytest.mark.parametrize("capability", [75, 86])
def test_results_by_the_tiles_of_other_devices(gpu, rng, monkeypatch, capability, subtests):
    """Lengths are around one and two tiles of these devices."""
    if gpu.name != "emulated" and not gpu.streams:
        pytest.skip("JAX has sizes in its programs")
    emulator.forget(monkeypatch)

    def same(found, expected, rtol=0.0):
        np.testing.assert_allclose(gpu.to_numpy(found), expected, rtol=rtol, atol=rtol)

    with of_device(capability):
        by_size = [(size, threads * items) for size, threads, items, _ in sort_cuda.TUNING[90].alone[2:]]
        for size, tile in by_size:
            for n in (tile, tile + 1, 2 * tile - 1):
                with subtests.test(f"sort, {size} bytes", n=n):
                    keys = rng.integers(-(2**20), 2**20, n).astype(f"int{8 * size}")
                    same(parprims.sort(gpu.asarray(keys), method="kernel"), np.sort(keys))
                    by = parprims.sort_by_key(gpu.asarray(keys), gpu.asarray(np.arange(n)), method="kernel")
                    same(by[1], np.argsort(keys, kind="stable"))
        for n in (3000, 9000, 20001):
            with subtests.test("scan and select", n=n):
                x = rng.integers(-9, 9, n).astype(np.float32)
                same(parprims.scan(gpu.asarray(x), method="kernel"), np.cumsum(x))
                offsets = np.array([0, 1, n // 2, n // 2, n])
                ordered = parprims.sort(gpu.asarray(x), offsets=gpu.asarray(offsets), method="kernel")
                whole = parprims.scan(gpu.asarray(x), offsets=gpu.asarray(offsets), method="kernel")
                for first, last in itertools.pairwise(offsets.tolist()):
                    same(ordered[first:last], np.sort(x[first:last]))
                    same(whole[first:last], np.cumsum(x[first:last]))
                moved, count = parprims.select(gpu.asarray(x), gpu.asarray(x > 2), method="kernel")
                same(moved[: int(count)], x[x > 2])
        for shape in ((600, 17), (40, 1000), (3, 5000)):
            with subtests.test("columns, filters and segments", shape=shape):
                x = rng.integers(-9, 9, shape).astype(np.float32)
                same(parprims.scan(gpu.asarray(x), axis=0, method="kernel"), np.cumsum(x, axis=0))
                b, a = np.array([1.0, 0.5, 0.25], np.float32), np.array([1.0, -0.5, 0.125], np.float32)
                found = parprims.lfilter(gpu.asarray(b), gpu.asarray(a), gpu.asarray(x), method="kernel")
                same(found, filtered(b, a, x.T, 0)[0].T, 1e-4)
                ids = np.sort(rng.integers(0, 7, shape[0]))
                sums = parprims.segment_reduce(
                    gpu.asarray(x), gpu.asarray(ids), 7, indices_are_sorted=True, method="kernel"
                )
                same(sums, np.array([x[ids == one].sum(axis=0) for one in range(7)]))


@pytest.mark.once
def test_fields_of_a_model_are_fields():
    for entry in ENTRIES:
        fields = {field.name for field in dataclasses.fields(entry)}
        assert {*entry.scaled, *entry.counted, *entry.limited, *entry.prefetched} <= fields
        assert not {*entry.scaled} & {*entry.counted}


@pytest.mark.once
def test_other_devices_of_a_capability():
    for entry in ENTRIES:
        assert entry.on(None) is entry.on(entry.multiprocessors) is entry
        half = entry.on(entry.multiprocessors // 2)
        for field in dataclasses.fields(entry):
            before, now = getattr(entry, field.name), getattr(half, field.name)
            assert now == (before // 2 if field.name in entry.scaled else before)
        assert all(getattr(entry.on(1), name) >= 1 for name in entry.scaled)


@pytest.mark.once
@pytest.mark.parametrize("told", [{}, {"core_count": 78}])
def test_multiprocessors_in_jax_programs(monkeypatch, told):
    """JAX may not tell how many the device has."""
    devices = [types.SimpleNamespace(compute_capability="9.0", **told)]
    monkeypatch.setattr(xla, "devices", lambda: devices)
    monkeypatch.setattr(memory, "is_jax", lambda _: True)
    assert _cuda.multiprocessors(None, None) == told.get("core_count")
    found = _cuda.tuned_for(histogram_cuda.TUNING, None, None)
    assert found.blocks == 8 * told.get("core_count", 132)


@pytest.mark.once
def test_grids_are_the_device_s(monkeypatch):
    """What does not change bits follows the device, and the kernels' text is the same."""
    for module, made in (
        (
            histogram_cuda,
            lambda: histogram_cuda.make_plan(histogram_cuda.Kind("float32", "float32", True), 1 << 26, 64, tuning()),
        ),
        (sort_cuda, lambda: sort_cuda.plan(SORT, (((1 << 26,), "int32"),), (1 << 26,), 0, tuning())),
        (tridiagonal_cuda, lambda: tridiagonal_cuda.make_plan(SYSTEM, tuning())),
    ):

        def tuning(module=module):
            return _cuda.tuned_for(module.TUNING, None, None)

        monkeypatch.setattr(_cuda, "capability", lambda *_: 90)
        plans = []
        for count in (132, 66):
            monkeypatch.setattr(_cuda, "multiprocessors", lambda *_, count=count: count)
            plans.append(made())
        whole, half = ([(one.name, one.block, one.grid) for one in plan.launches] for plan in plans)
        assert [one[:2] for one in whole] == [one[:2] for one in half]
        assert sum(one[2] == 2 * other[2] for one, other in zip(whole, half, strict=True)) >= 1


@pytest.mark.once
def test_blocks_that_multiply_are_the_device_s(monkeypatch):
    whole = matmul_cuda._Case("tensor", "float16").plan()
    monkeypatch.setattr(matmul_cuda, "make_plan", functools.partial(matmul_cuda.make_plan, multiprocessors=66))
    half = matmul_cuda._Case("tensor", "float16").plan()
    assert (whole.launches[-1].grid, half.launches[-1].grid) == (132, 66)
    assert whole.text() == half.text()


@pytest.mark.once
def test_fields_that_are_searched():
    assert {search.module for search in tune.SEARCHES.values()} == {*TABLES}
    for primitive, search in tune.SEARCHES.items():
        module = importlib.import_module(f"parprims.{search.module}")
        (entry, *_) = module.TUNING.values()
        text = entries.entry_text(90, entry)
        assert typed(dict[int, module.Tuning], json.loads(f"{{{text}}}")) == {90: entry}
        for field in search.fields:
            values = [*tune.near(getattr(entry, field))]
            assert values, field
            assert all(type(value) is type(getattr(entry, field)) for value in values)
            assert getattr(entry, field) not in values
        cases = importlib.import_module(f"benches.primitives.{search.bench or primitive}").cases(
            Scale(gpu=True, quick=False)
        )
        assert set(search.families) <= {case.name.partition(",")[0] for case in cases}


@pytest.mark.once
def test_near():
    assert [*tune.near(1)] == [2]
    assert [*tune.near(12)] == [24, 6]
    assert [*tune.near({4: 8})] == [{4: 16}, {4: 4}]
    tile = sort_cuda.RowTile(128, 32, 128, digit=5, valued=0)
    assert all(isinstance(one, sort_cuda.RowTile) for one in tune.near(tile))
    assert [*tune.near(((4, 1), (2, 1)))] == [
        *(((8, 1), (2, 1)), ((2, 1), (2, 1)), ((4, 2), (2, 1))),
        *(((4, 1), (4, 1)), ((4, 1), (1, 1)), ((4, 1), (2, 2))),
        *(((2, 1),), ((4, 1),)),
    ]


def tuned_on(monkeypatch, tmp_path, capability, multiprocessors):
    """Tune reductions as on a GPU, with arrays of NumPy, and return the file with the results."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    on_gpu = dataclasses.replace(backends.make("numpy"), cuda=True)
    monkeypatch.setattr(command, "present_backends", lambda _: [on_gpu])
    monkeypatch.setattr(_cuda, "capability", lambda *_: capability)
    monkeypatch.setattr(_cuda, "multiprocessors", lambda *_: multiprocessors)
    assert command.main(["--tune", "reduce", "--quick", "--backend", "numpy"]) == 0
    (path,) = (tmp_path / "tuning").iterdir()
    return path


@pytest.mark.once
def test_search(monkeypatch, tmp_path, capsys):
    """With a clock of its own: the quickest of the right ones is taken, unless it was quick by chance."""
    module, x = reduce_cuda, np.arange(1000.0)
    before = {**module.TUNING}
    taken = []

    def run(x, *, method):
        assert method == "kernel"
        if module.TUNING[90].blocks > 500:
            raise _cuda.CudaError("too many blocks\nand more")
        return x.sum() + (module.TUNING[90].rounds == 8)

    def sample(*_):
        entry = module.TUNING[90]
        taken.append((entry.rounds, entry.blocks))
        lucky = entry.threads == 128 and sum(one.startswith("threads=128") for one in seen) == 1
        return (0.1 if entry.rounds == 8 else 1.0) * 16 / entry.rounds * (0.5 if lucky else 1.0)

    def ratios(self, field, entries):
        seen.extend(f"{field}={getattr(one, field)}" for one in entries)
        return original(self, field, entries)

    seen, original = [], tune.Tuner.ratios
    case = Case("sum", "sum, 1000", lambda _: Problem((x,), x.sum()), run)
    monkeypatch.setattr(tune.Tuner, "ratios", ratios)
    monkeypatch.setattr(Contender, "sample", sample)
    monkeypatch.setattr(bench_reduce, "cases", lambda _: [case, dataclasses.replace(case, name="other, 1")])
    monkeypatch.setitem(
        tune.SEARCHES, "reduce", tune.Search("_primitives.reduce.cuda", ("sum",), ("rounds", "threads", "blocks"))
    )
    path = tuned_on(monkeypatch, tmp_path, 90, 66)
    printed = capsys.readouterr()
    file = json.loads(path.read_text())
    expected = dataclasses.replace(
        before[90].on(66), rounds=32, record=path.name, device=file["header"]["device"], multiprocessors=66
    )
    *steps, entry = file["records"]
    assert typed(module.Tuning, entry["entry"]) == expected
    assert "The entry of _primitives/reduce/data/cuda.json, of the searches in" in printed.out
    assert entries.entry_text(90, expected) in printed.out
    assert "reduce: rounds=32: 0.500 of the time" in printed.out
    assert "reduce: sum, 1000: rounds=8 is out: 1 of 1 elements are wrong" in printed.err
    assert "blocks=528 is out: CudaError: too many blocks\n" in printed.err
    assert {(one["field"], one["value"]) for one in steps} >= {("rounds", "16"), ("rounds", "32"), ("threads", "128")}
    assert not any(one["value"] in ("8", "528") for one in steps)
    assert {one["ratio"] for one in steps if one["value"] == "32"} == {0.5}
    assert (8, 264) not in taken  # wrong results are not timed
    assert before == module.TUNING


@pytest.mark.once
def test_search_where_there_is_no_entry(monkeypatch, tmp_path, capsys):
    """It begins with what the model of the device gives, and stays with that if nothing is quicker."""
    case = Case("sum", "sum, 1000", lambda _: Problem((x,), x.sum()), lambda x, **_: x.sum())
    x, before = np.arange(1000.0), {**reduce_cuda.TUNING}
    monkeypatch.setattr(Contender, "sample", lambda *_: 1.0)
    monkeypatch.setattr(bench_reduce, "cases", lambda _: [case])
    monkeypatch.setitem(tune.SEARCHES, "reduce", tune.Search("_primitives.reduce.cuda", ("sum",), ("blocks",)))
    path = tuned_on(monkeypatch, tmp_path, 86, 82)
    start = dataclasses.replace(before[90].fitted(_cuda.model(90), _cuda.model(86)).on(82), multiprocessors=82)
    assert start.blocks == 4 * 82
    file = json.loads(path.read_text())
    expected = dataclasses.replace(start, record=path.name, device=file["header"]["device"])
    assert typed(reduce_cuda.Tuning, file["records"][-1]["entry"]) == expected
    assert entries.entry_text(86, expected) in capsys.readouterr().out
    assert before == reduce_cuda.TUNING


@pytest.mark.once
def test_without_a_case_that_judges(monkeypatch):
    monkeypatch.setattr(tune, "judges", lambda *_: [])
    monkeypatch.setattr(command, "present_backends", lambda _: [dataclasses.replace(backends.make("numpy"), cuda=True)])
    with pytest.raises(SystemExit, match="no case of the comparison judges sort on numpy"):
        command.main(["--tune", "sort", "--quick", "--backend", "numpy"])


@pytest.mark.once
def test_names_to_tune():
    """On a CPU primitives with a table of crossovers, on a GPU those whose kernels have sizes."""
    with pytest.raises(SystemExit, match=r"nothing to tune in sum; there are reduce, scan, .*, filters"):
        command.main(["--tune", "sum", "--backend", "numpy"])
    with pytest.raises(SystemExit, match=r"nothing to tune in sum; there are reduce, scan, .*, banded"):
        tune.tune(["sum"], [], Scale(gpu=True, quick=True), None)


@pytest.mark.emulator
@pytest.mark.parametrize("way", ["called", "listed"])
def test_entries_in_force(gpu, rng, way):
    """What is prepared under an entry is used under no other, though the calls are the same."""
    if gpu.name != "emulated" and not gpu.streams:
        pytest.skip("JAX has them in its programs")
    numbers = rng.integers(0, 9, 5000).astype(np.float32)
    table, x = reduce_cuda.TUNING, gpu.asarray(numbers)
    entries = [dataclasses.replace(table[90], threads=threads, blocks=1) for threads in (128, 256)]
    in_force = [tune.InForce(table, _cuda.capability(gpu.xp, x), entry) for entry in entries]
    outside = parprims.launches(parprims.sum, x, method="kernel")[0].block
    for _ in range(2):
        for one, entry in zip(in_force, entries, strict=True):
            with one:
                if way == "called":
                    assert float(parprims.sum(x, method="kernel")) == numbers.sum()
                (launch,) = parprims.launches(parprims.sum, x, method="kernel")
                assert launch.block == entry.threads
    assert parprims.launches(parprims.sum, x, method="kernel")[0].block == outside


SORT = sort_cuda.Specialisation("int32", False, True, (), None)
SYSTEM = tridiagonal_cuda.Problem(
    (1 << 20, 128), -1, False, "auto", "float32", 0, ((1 << 20, 128),) * 4, (((128, 1), 0),) * 4
)

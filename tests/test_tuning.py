"""The tables of what measurements chose: their form, and what of a plan depends on the device at hand."""

import dataclasses
import functools
import importlib
import json
import pathlib

import pytest

import parprims
from parprims import _cuda, _histogram, _matmul_kernel, _sort_kernel, _tridiagonal_kernel

pytestmark = pytest.mark.once

FILES = pathlib.Path(parprims.__file__).parent.glob("_*.py")
NAMES = sorted(path.stem for path in FILES if "\nTUNING = {" in path.read_text(encoding="utf-8"))
TABLES = {name: importlib.import_module(f"parprims.{name}").TUNING for name in NAMES}
ENTRIES = [entry for table in TABLES.values() for entry in table.values()]


@pytest.mark.parametrize("name", TABLES)
def test_table(name):
    for capability, entry in TABLES[name].items():
        assert isinstance(capability, int)
        assert isinstance(entry, _cuda.Tuning)
        assert type(entry).__name__ == "Tuning"
        assert set(entry.scaled) <= {field.name for field in dataclasses.fields(entry)}
        if entry.record:
            file = json.loads((pathlib.Path(__file__).parents[1] / entry.record).read_text())
            assert file["header"]["device"]
            assert any(one["method"] == "kernel" for one in file["records"])


def test_tables_of_all_primitives_with_a_kernel():
    stems = {name.split("_")[1] for name in TABLES}
    assert stems == {"reduce", "scan", "sort", "tridiagonal", "matmul", "histogram"}


def test_devices_without_an_entry():
    old, new = (dataclasses.replace(_histogram.TUNING[90], each=each) for each in (1, 2))
    table = {80: old, 90: new}
    found = {capability: _cuda.tuned(table, capability) for capability in (75, 80, 86, 90, 100, 120)}
    assert found == {75: old, 80: old, 86: old, 90: new, 100: new, 120: new}


def test_other_devices_of_a_capability():
    for entry in ENTRIES:
        assert entry.on(None) is entry.on(entry.multiprocessors) is entry
        half = entry.on(entry.multiprocessors // 2)
        for field in dataclasses.fields(entry):
            before, now = getattr(entry, field.name), getattr(half, field.name)
            assert now == (before // 2 if field.name in entry.scaled else before)
        assert all(getattr(entry.on(1), name) >= 1 for name in entry.scaled)


def test_grids_are_the_device_s(monkeypatch):
    """What does not change bits follows the device, and the kernels' text is the same."""
    for module, made in (
        (_histogram, lambda: _histogram._plan(_histogram._Kind("float32", "float32", True), 1 << 26, 64, tuning())),
        (_sort_kernel, lambda: _sort_kernel.plan(SORT, (((1 << 26,), "int32"),), (1 << 26,), 0, tuning())),
        (_tridiagonal_kernel, lambda: _tridiagonal_kernel.make_plan(SYSTEM, tuning())),
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


def test_blocks_that_multiply_are_the_device_s(monkeypatch):
    _, whole = _matmul_kernel._case("tensor", "float16")
    monkeypatch.setattr(_matmul_kernel, "make_plan", functools.partial(_matmul_kernel.make_plan, multiprocessors=66))
    _, half = _matmul_kernel._case("tensor", "float16")
    assert (whole.launches[-1].grid, half.launches[-1].grid) == (132, 66)
    assert whole.text() == half.text()


SORT = _sort_kernel.Specialisation("int32", False, True, (), None)
SYSTEM = _tridiagonal_kernel.Problem(
    (1 << 20, 128), -1, False, "auto", "float32", 0, ((1 << 20, 128),) * 4, (((128, 1), 0),) * 4
)

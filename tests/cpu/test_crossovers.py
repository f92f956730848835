"""The crossovers of `auto` on CPUs: the tables, what they decide, and how they are measured."""

import dataclasses
import importlib
import json
import time

import numpy as np
import pytest

import parprims
from benches import __main__ as command
from benches.core import records
from benches.tuning import cpu as tune_cpu
from benches.tuning import entries
from examples import backends
from parprims import _cpu
from parprims._compiling.tables import typed
from parprims._cpu.crossovers import IN_PROGRAMS, Crossovers
from tests.emulation import emulator

pytestmark = pytest.mark.once

TABLES = {name: tune_cpu.module_of(name).CROSSOVERS for name in tune_cpu.KINDS}
ENTRIES = [(name, processor) for name, table in TABLES.items() for processor in table]


def test_every_entry_has_its_record(subtests):
    """What a table says of a kind of call follows from the seconds in its results file."""
    for name, processor in ENTRIES:
        with subtests.test(name=name, processor=processor):
            _check_record(name, processor)


def _check_record(name, processor):
    table = TABLES[name][processor]
    assert isinstance(table, Crossovers)
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.record = ""
    seconds: dict = {}
    for one in json.loads((records.ROOT / table.record).read_text())["records"]:
        if one["primitive"] == f"{name} crossovers":
            of_size = seconds.setdefault((one["backend"], one["case"]), {}).setdefault(one["size"], {})
            of_size["kernel" if one["method"] == "kernel" else "other"] = one["seconds"]
    least = {
        (library, kind): least or min(seconds[library, kind])
        for kind, found in table.least.items()
        for library, least in found.items()
    }
    kinds = tune_cpu.kinds_of(name, in_programs=processor == IN_PROGRAMS)
    saved = {(library, kind.name): kind.saved for kind in kinds for library in kind.libraries}
    for one, sizes in seconds.items():
        both = {size: (times["kernel"], times["other"]) for size, times in sizes.items()}
        assert tune_cpu.crossover(both, saved[one]) == least.pop(one, None), one
    assert not least


def test_reading_of_a_table():
    table = Crossovers(record="", device="", least={"operator": {"numpy": 0}, "add, line": {"numpy": 100}})
    assert table.slower("numpy", "operator", 0) is None
    assert table.slower("numpy", "add, line", 100) is None
    assert table.slower("numpy", "add, line", 99) == "NumPy's own way is preferred below 100 elements"
    assert table.slower("numpy", "add, columns", 10**9) == "NumPy's own way is preferred at any size"
    assert table.slower("torch", "operator", 10**9) == "PyTorch's own way is preferred at any size"
    assert table.of("numpy") == {"operator": 0, "add, line": 100}
    assert table.of("torch") == {}


@pytest.mark.parametrize(("slow", "processor"), [(False, "any"), (True, "Zen 4")])
def test_entry_of_the_processor(monkeypatch, slow, processor):
    monkeypatch.setattr(_cpu.processor, "compresses_slowly", lambda: slow)
    assert {*TABLES["sort"]} == {"any", "Zen 4", IN_PROGRAMS}
    assert _cpu.for_processor(TABLES["sort"]) is TABLES["sort"][processor]
    assert {*TABLES["scan"]} == {"any", IN_PROGRAMS}
    assert _cpu.for_processor(TABLES["scan"]) is TABLES["scan"]["any"]


@pytest.mark.parametrize(
    ("shape", "axis", "lines"),
    [
        ((5,), 0, "line"),
        ((3, 5), 1, "line"),
        ((5, 15), 0, "narrow"),
        ((5, 16), 0, "columns"),
        ((5, 4, 4), 0, "columns"),
    ],
)
def test_how_lines_lie(shape, axis, lines):
    assert _cpu.of_columns(shape, axis) == lines


@pytest.mark.parametrize(
    ("shape", "axis", "lines"),
    [
        ((2, 127), 1, "short line"),
        ((2, 128), 1, "line"),
        ((5, 15), 0, "narrow"),
        ((5, 16), 0, "few columns"),
        ((5, 5, 51), 0, "few columns"),
        ((5, 4, 64), 0, "columns"),
    ],
)
def test_how_short_lines_lie(shape, axis, lines):
    """NumPy's routines begin anew with each line or row, those of others do not."""
    assert _cpu.of_lines("numpy", shape, axis, shape[axis]) == lines
    assert _cpu.of_lines("torch", shape, axis, shape[axis]) == _cpu.of_columns(shape, axis)


def test_what_is_widened():
    assert _cpu.of_elements("numpy", np.int32, np.int64) == " of narrow integers"
    assert _cpu.of_elements("numpy", np.int64, np.int64) == " of integers"
    assert _cpu.of_elements("torch", np.int32, np.int64) == " of integers"
    assert _cpu.of_elements("numpy", np.float32, np.float64) == ""


def test_choice_for_short_lines_and_narrow_integers():
    """Where NumPy begins anew for every few elements, or widens them first, fewer of them are worth a kernel."""
    pytest.importorskip("numba")

    def chosen(function, *args, **options):
        return next(name for name, reason in parprims.methods(function, *args, **options).items() if reason is None)

    for axis in (0, 1):
        assert chosen(parprims.sum, np.ones((2**11, 64)), axis=axis) == "kernel"
        assert chosen(parprims.sum, np.ones((64, 2**9)), axis=axis) == "native"
    assert chosen(parprims.sum, np.ones(2**17, np.uint8)) == "kernel"
    assert chosen(parprims.sum, np.ones(2**17, np.uint64)) == "native"
    assert chosen(parprims.cumulative_sum, np.ones(2**15, np.uint8)) == "kernel"
    assert chosen(parprims.cumulative_sum, np.ones(2**15, np.uint64)) == "native"


def test_choice_of_auto():
    """Large calls for which NumPy's routine is slow are the kernel's; small ones and others stay NumPy's."""
    pytest.importorskip("numba")

    def chosen(function, *args, **options):
        return next(name for name, reason in parprims.methods(function, *args, **options).items() if reason is None)

    narrow, line = np.ones((2**18, 3)), np.ones(2**18)
    assert chosen(parprims.max, narrow, axis=0) == "kernel"
    assert chosen(parprims.max, narrow[:100], axis=0) == "native"
    assert chosen(parprims.max, line) == "native"
    assert chosen(parprims.cumulative_sum, line) == "kernel"
    assert chosen(parprims.cumulative_sum, line[:100]) == "native"
    assert chosen(parprims.vecdot, line, line) == "native"
    own = parprims.Operator(lambda e, _: e)
    for function in (parprims.reduce, parprims.scan):
        assert [chosen(function, line[:n], own) for n in (3, 63, 64)] == ["array", "array", "kernel"]
    assert "take less time than to compile" in parprims.methods(parprims.reduce, line[:3], own)["kernel"]
    offsets = np.array([0, 1, 3])
    assert chosen(parprims.reduce, line[:3], own, offsets=offsets, initial=0.0) == "array"
    assert chosen(parprims.scan, line[:3], own, offsets=offsets) == "array"
    assert chosen(parprims.linear_recurrence, line[:3], line[:3]) == "kernel"
    assert chosen(parprims.linear_recurrence, line[:3], line[:3]) == "kernel"


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("name", ["numpy", "torch", "jax.numpy"])
def test_unique_is_by_what_the_sort_is(name, dtype):
    """Most of the time is that of the sort: what is quickest for it is quickest for both."""
    pytest.importorskip("numba")
    xp = pytest.importorskip(name)
    for n in (5, 300, 3000, 30_000, 300_000):
        for shape in ((n,), (n // 5, 5)):
            x = xp.asarray(np.arange(n).reshape(shape).astype(dtype))
            with parprims.explain() as seen:
                parprims.unique(x)
                parprims.sort(xp.reshape(x, (-1,)))
            assert seen[0].method == seen[1].method, (n, shape)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax.numpy"])
def test_unique_takes_no_longer_than_the_library(name, rng):
    """By `auto`, where that is the kernel: it takes a third of the time, of which little is spent around the sort."""
    pytest.importorskip("numba")
    xp = pytest.importorskip(name)
    for n in (50_000, 400_000):
        x = xp.asarray(rng.integers(0, 1000, n).astype(np.int32))
        with parprims.explain() as calls:
            parprims.unique(x)
        if calls[0].method != "kernel":
            pytest.skip(f"here {calls[0].refusals['kernel']}")
        times: dict = {"auto": [], "native": []}
        for _ in range(12):
            for method, taken in times.items():
                begin = time.perf_counter()
                parprims.unique(x, method=method)
                taken.append(time.perf_counter() - begin)
        assert min(times["auto"]) < min(times["native"]), n


@pytest.mark.parametrize("n", [1, 2, 3, 17, 300, 1023, 5000, 20001])
@pytest.mark.parametrize("name", ["solve_banded", "solve_block_tridiagonal", "solve_tridiagonal"])
def test_nothing_is_compiled_for_systems_on_eager_jax(name, n):
    """What compiles for seconds with every shape is passed by while a kernel or a routine serves."""
    pytest.importorskip("numba")
    jnp = pytest.importorskip("jax.numpy")
    ones, blocks = jnp.ones(n), jnp.broadcast_to(jnp.eye(2), (n, 2, 2))
    calls = {
        "solve_banded": [
            (((below, above), jnp.ones((below + above + 1, n)).at[above].set(9.0), ones), {})
            for below, above in ((0, 0), (1, 1), (2, 2), (3, 1))
            if n > max(below, above)
        ],
        "solve_block_tridiagonal": [((blocks, 9 * blocks, blocks, jnp.ones((n, 2))), {})],
        "solve_tridiagonal": [
            ((ones, 9 * ones, ones, ones), {"pivot": pivot, "periodic": periodic})
            for pivot in ("auto", "partial", "none")
            for periodic in (False, True)
            if n > 1  # a periodic system of 1 unknown is divided
        ],
    }[name]
    for given, options in calls:
        with parprims.explain() as seen:
            getattr(parprims, name)(*given, **options)
        allowed = ("kernel", "native") if name == "solve_tridiagonal" else ("kernel",)
        assert seen[0].method in allowed, (given[0], options)


def test_choice_where_memory_is_what_takes_time():
    """Large results of scans on PyTorch are those of the kernel, for which NumPy allocates, but for slow operators."""
    pytest.importorskip("numba")
    torch = pytest.importorskip("torch")
    for count, dtype in ((2**23, torch.float32), (2**22, torch.float64), (2**22, torch.int64)):
        large = torch.empty(count, dtype=dtype)
        assert parprims.methods(parprims.cumulative_sum, large)["kernel"] is None
        if dtype.is_floating_point:
            assert "own way" in parprims.methods(parprims.cumulative_sum, large[:-1])["kernel"]
            assert "own way" in parprims.methods(parprims.scan, large, "logaddexp")["kernel"]


def test_choice_for_long_lines_of_positions():
    """NumPy searches them, whatever library has the memory; many columns and many 16-bit floats the kernel."""
    pytest.importorskip("numba")
    x = np.zeros((256, 2**12), np.float32)
    arrays = [x, *(backends.make(name).asarray(x) for name in ("torch", "jax") if backends.available(name))]
    for one in arrays:
        for axis in (None, 1):
            assert "contiguous lines" in parprims.methods(parprims.argmax, one, axis=axis)["kernel"]
        with parprims.explain() as calls:
            parprims.argmax(one)
        assert calls[0].method == "native"
    for one, axis in ((x, 0), (x.astype(np.float16), 0), (x.astype(np.float16), 1)):
        assert parprims.methods(parprims.argmax, one, axis=axis)["kernel"] is None
    for one, axis in ((x.reshape(-1, 16), 1), (x[:, :16], 0), (x[:2].astype(np.float16), 1)):
        assert "write an array of positions" in parprims.methods(parprims.argmax, one, axis=axis)["kernel"]


@pytest.mark.parametrize(
    ("sizes", "saved", "expected"),
    [
        ({10: (1.0, 2.0), 20: (1.0, 3.0)}, 0, 10),
        ({10: (2.0, 1.0), 20: (1.0, 3.0)}, 0, 20),
        ({10: (1.0, 2.0), 20: (3.0, 1.0)}, 0, None),
        ({10: (1.0, 1.5), 20: (1.0, 3.0)}, 1, 20),
        ({}, 0, None),
    ],
)
def test_crossover_of_times(sizes, saved, expected):
    assert tune_cpu.crossover(sizes, saved) == expected


def test_text_of_an_entry():
    entry = Crossovers(
        record="some.json", device="some", least={"operator": {"numpy": 0, "jax": 65536}, "add, line": {"numpy": 4096}}
    )
    text = entries.entry_text("any", entry)
    assert typed(dict[str, Crossovers], json.loads(f"{{{text}}}")) == {"any": entry}
    assert '        "operator": {"numpy": 0, "jax": 65536},\n' in text


def test_measuring(monkeypatch, tmp_path, capsys):
    """The command measures on a CPU, and its records give the entry that it prints."""
    pytest.importorskip("numba")
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    assert command.main(["--quick", "--backend", "numpy", "--tune", "tridiagonal"]) == 0
    printed = capsys.readouterr().out
    (path,) = (tmp_path / "tuning").iterdir()
    found = json.loads(path.read_text())["records"]
    assert {(one["method"], one["size"]) for one in found} >= {("kernel", 256), ("kernel", 4096)}
    assert "The entry of _primitives/tridiagonal/data/cpu.json, of the times in" in printed
    entry = printed[printed.index('    "any"') :]
    read = typed(dict[str, Crossovers], json.loads(f"{{{entry}}}"))
    assert read["any"].record == path.name
    assert read["any"].device == json.loads(path.read_text())["header"]["device"]


def test_measuring_in_programs(monkeypatch, tmp_path, capsys):
    """Calls are compiled, of a thousand elements and more, and the entry and the file have names of their own."""
    pytest.importorskip("numba")
    pytest.importorskip("jax")
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    assert command.main(["--quick", "--backend", "jax", "--in-programs", "--tune", "filters"]) == 0
    (path,) = (tmp_path / "tuning").iterdir()
    assert path.name.endswith("-in-programs.json")
    found = json.loads(path.read_text())["records"]
    assert {one["method"] for one in found} == {"kernel", "array"}
    assert min(one["size"] for one in found) >= tune_cpu.FEWEST_IN_PROGRAMS
    assert '    "in programs": {' in capsys.readouterr().out


@pytest.mark.parametrize("primitive", tune_cpu.KINDS)
def test_kinds_are_those_of_calls(primitive):
    """Every kind that is measured is the one that the choice of a method finds in such a call."""
    backend = backends.make("numpy")
    module = tune_cpu.module_of(primitive)
    names = {kind.name for kind in tune_cpu.KINDS[primitive]()}
    assert names >= {name for entry in TABLES[primitive].values() for name in entry.least}
    if not hasattr(module, "kind"):
        return
    pytest.importorskip("numba")
    seen = []
    own = module.kind
    for kind in tune_cpu.KINDS[primitive]():
        arrays, call = kind.make(2**12)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "kind", lambda *given: seen.append(own(*given)) or seen[-1])
            parprims.methods(lambda *x, call=call: call(*x, method="auto"), *map(backend.asarray, arrays))
        assert seen.pop() in (kind.name, "operator")


class Asked(Crossovers):
    """An entry that keeps the rows that it is asked for, by library and kind."""

    def slower(self, library, kind, size):
        ROWS.add((library, kind))
        return super().slower(library, kind, size)

    def of(self, library):
        class Sizes(dict):
            def __getitem__(self, kind):
                ROWS.add((library, kind))
                return super().__getitem__(kind)

            def get(self, kind, default=None):
                ROWS.add((library, kind))
                return super().get(kind, default)

        return Sizes(super().of(library))


ROWS: set = set()


@pytest.mark.parametrize(("name", "processor"), ENTRIES, ids=map(" on ".join, ENTRIES))
def test_every_row_is_used(monkeypatch, name, processor):
    """Calls of the kinds that are measured ask for each row of the table, on the arrays of its library."""
    pytest.importorskip("numba")
    emulator.forget(monkeypatch)
    ROWS.clear()
    entry = TABLES[name][processor]
    asked = Asked(**{field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)})
    own, in_programs = _cpu.measured, processor == IN_PROGRAMS
    monkeypatch.setattr(_cpu, "measured", lambda table, *of: asked if table is TABLES[name] else own(table, *of))
    monkeypatch.setattr(_cpu, "for_processor", lambda table: asked if table is TABLES[name] else table["any"])
    present = [one for one in ("numpy", "torch", "jax") if backends.available(one)]
    for library in present:
        backend = backends.make(library)
        shaped = importlib.import_module("jax").eval_shape if in_programs else None
        for kind in tune_cpu.kinds_of(name, in_programs=in_programs):
            for size in (2**12, kind.sizes[len(kind.sizes) // 2]) if library in kind.libraries else ():
                arrays, call = kind.make(size)
                given = tuple(map(backend.asarray, arrays))

                def listed(*x, call=call):
                    parprims.methods(lambda *x: call(*x, method="auto"), *x)

                shaped(listed, *given) if shaped else listed(*given)
    rows = {(library, kind) for kind, found in entry.least.items() for library in found if library in present}
    assert not rows - ROWS

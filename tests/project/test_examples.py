"""The worked examples: every one passes at small size on every backend, and fails where a primitive errs."""

import dataclasses
import functools
import importlib
import importlib.util
import json
import math
import pathlib
import re
import runpy
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import parprims
from parprims._cuda import compiler
from tests.checks.compile_kernels import stencil_plan
from tests.emulation import emulator

FOLDER = pathlib.Path(__file__).parents[2] / "examples"

# What to spoil so that each example fails: the attributes of parprims, or of the example itself, that it calls.
SPOILED = {
    "audio_filters": ["sosfilt", "linear_recurrence"],
    "backward_euler": ["solve_tridiagonal"],
    "chunked_rollout": ["linear_recurrence"],
    "device_facts": ["matmul"],
    "discounted_returns": ["linear_recurrence", "scan"],
    "dot_product": ["vecdot", "matmul"],
    "gae_training": ["linear_recurrence"],
    "gemm_ladder": ["matmul"],
    "gemm_workers": ["matmul", "map_reduce"],
    "kalman_filter": ["scan"],
    "laplace3d": ["update"],
    "mean_of_quadratic": ["map_reduce"],
    "monte_carlo": ["map_reduce"],
    "monte_carlo_everywhere": ["sum"],
    "pattern_matching": ["map_reduce"],
    "prefix_sum": ["scan"],
    "radix_sort": ["sort", "argsort", "sort_by_key"],
    "ragged_events": ["reduce", "scan", "sort"],
    "recurrence": ["linear_recurrence"],
    "reduction": ["sum", "reduce"],
    "ssm_layer": ["linear_recurrence"],
    "state_space_model": ["linear_recurrence"],
    "templates": ["map_reduce"],
    "two_species": ["solve_block_tridiagonal"],
    "vendor_libraries": ["matmul"],
}


ON_TORCH = ("gae_training", "ssm_layer")
REDUCTIONS_AND_SCANS = {"linear_recurrence", "map_reduce", "reduce", "scan", "sum", "vecdot"}


@pytest.fixture
def load(monkeypatch):
    """Import a module of the examples as a script beside it does; modules of such plain names do not stay behind."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module
    for path in FOLDER.glob("[!_]*.py"):
        sys.modules.pop(path.stem, None)


def run(module, *options):
    """Run an example by its command line; return its exit code and its rows."""
    return module.common.main(module.example, module.SIZES, list(options))


def test_every_example_is_listed_and_short(load):
    files = {path.stem for path in FOLDER.glob("*.py")} - {
        *("__init__", "__main__", "backends", "common", "philox", "laplace3d_cuda")
    }
    load("common")
    lists = runpy.run_path(str(FOLDER / "__main__.py"))
    assert sorted(lists["EXAMPLES"]) == sorted(files) == sorted(SPOILED)
    assert sorted(lists["ON_TORCH"]) == sorted(ON_TORCH)
    for path in (*FOLDER.glob("*.py"), *FOLDER.glob("*.cu")):
        text = path.read_text()
        assert len(text.splitlines()) < 150 or path.stem in ("backends", "common"), path.name
        assert text.startswith(('"""', "// ")), path.name


@pytest.mark.parametrize("name", SPOILED)
def test_example_passes(name, backend, load, capsys, tmp_path, monkeypatch):
    if backend.name == "array-api-strict":
        pytest.skip("the examples are for libraries that people compute with")
    library, _, place = backend.name.partition("-")
    if name in ON_TORCH and library != "torch":
        pytest.skip("the example is a module of PyTorch")
    options = ["--device", place or "cpu"] if library in ("torch", "jax") else []
    library = "numpy" if backend.name == "emulated" else library
    path = tmp_path / "rows.json"
    if library == "jax":  # compiles the array form of a row like one before for seconds, and every step by itself
        monkeypatch.setattr(load("common").Run, "shown_already", ("array",))
        if name == "two_species":
            monkeypatch.setattr(load(name), "STEPS", 1)
    with parprims.explain() as calls:
        code = run(load(name), "--backend", library, *options, "--size", "small", "--json", str(path))
    assert code == 0, capsys.readouterr().out
    facts = json.loads(path.read_text())
    assert facts["device"]
    assert facts["rows"]
    assert all(row["passed"] for row in facts["rows"])
    if backend.name == "emulated" and name != "chunked_rollout" and set(SPOILED[name]) & REDUCTIONS_AND_SCANS:
        assert "kernel" in {call.method for call in calls}


def spoiled(result):
    """Return a result with its last element changed."""
    if hasattr(result, "detach"):
        changed = result.clone()
        changed[(-1,) * result.ndim] = 1.1 * result[(-1,) * result.ndim] + 0.1
        return changed
    if isinstance(result, tuple):
        parts = map(spoiled, result)
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    changed = np.array(result)
    last = changed.reshape(-1)[-1:]
    last[...] = ~last if changed.dtype == bool else last + 1 if changed.dtype.kind in "iu" else 1.1 * last + 0.1
    return changed


@pytest.mark.once
@pytest.mark.parametrize(("name", "attribute"), [(name, one) for name, ones in SPOILED.items() for one in ones])
def test_example_fails_where_a_result_is_wrong(name, attribute, load, capsys, monkeypatch):
    if name in ON_TORCH:
        pytest.importorskip("torch")
    module = load(name)
    owner = parprims if hasattr(parprims, attribute) else module
    right = getattr(owner, attribute)

    @functools.wraps(right)
    def wrong(*args, **options):
        if name == "device_facts":
            return np.zeros(1)
        return spoiled(right(*args, **options))

    monkeypatch.setattr(owner, attribute, wrong)
    assert run(module, "--size", "small") == 1
    printed = capsys.readouterr().out
    assert "FAIL" in printed
    assert re.search(r"[1-9]\d* failed", printed)


def test_nan_never_passes_and_nothing_checked_is_a_failure(load, capsys):
    common = load("common")
    one = common.Run("numpy")
    one.report("row", "", math.nan, math.inf)
    one.report("row", "", 1, 1)
    assert [row["passed"] for row in one.rows] == [False, True]
    sizes = common.Sizes(1, 1, 1)
    assert common.main(lambda _: None, sizes, []) == 1
    assert common.main(lambda run: run.report("row", "", 0, 0), sizes, []) == 0
    assert common.main(lambda run: run.report("row", "", 1, 0), sizes, []) == 1
    with common.raises(one, "row", ValueError):
        pass
    assert one.rows[-1]["passed"] is False
    with pytest.raises(SystemExit):
        common.main(lambda _: None, sizes, ["--size", "0"])
    with pytest.raises(SystemExit, match="no arrays on a GPU"):
        common.main(lambda _: None, sizes, ["--device", "cuda"])
    capsys.readouterr()


@pytest.mark.once
def test_command_lines(tmp_path):
    plot = tmp_path / "plot.png"
    one = [sys.executable, str(FOLDER / "state_space_model.py"), "--size", "small"]
    if importlib.util.find_spec("matplotlib"):
        one += ["--plot", str(plot)]
    done = subprocess.run(one, check=True, capture_output=True, text=True)
    # One for training, and one for each method that serves: array, kernel by Numba, native by SciPy.
    checks = 2 + sum(importlib.util.find_spec(name) is not None for name in ("numba", "scipy"))
    assert f"{checks} checks passed, 0 failed" in done.stdout
    assert plot.exists() == ("--plot" in one)
    every = [sys.executable, str(FOLDER), "dot_product", "--backend", "numpy"]
    done = subprocess.run([*every, "--size", "small"], check=True, capture_output=True, text=True)
    assert "| E1 dot product, 1024 float32, array | numpy | 1047552 | 0 <= 0 pass |" in done.stdout
    done = subprocess.run([*every, "--size", str(10**9)], capture_output=True, text=True)
    assert done.returncode == 1
    assert "float64 does not hold the answer" in done.stdout
    assert re.search(r"dot_product on numpy \.\.\. \d+\.\d s", done.stderr)


@pytest.mark.once
def test_rows_found_are_saved_when_others_fail_or_are_cut_off(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "examples")
    (tmp_path / "benches" / "results").mkdir(parents=True)
    page = tmp_path / "docs" / "sources.md"
    page.parent.mkdir()
    page.write_text("text\n<!-- examples table: begin -->\n<!-- examples table: end -->\nmore\n")
    (tmp_path / "examples" / "templates.py").write_text("import os\nos._exit(3)\n")
    (tmp_path / "examples" / "recurrence.py").write_text("import time\ntime.sleep(100)\n")
    names = ["templates", "dot_product", "recurrence", "reduction"]
    options = ["--backend", "numpy", "--size", "small", "--save", "--commit", "abc"]
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "examples"), *names, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        begun = ""
        while not begun.endswith("recurrence on numpy ... "):
            letter = process.stderr.read(1)
            assert letter, begun  # it has ended
            begun += letter
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate()
    assert process.returncode == 1
    assert "the process ended with 3" in printed
    (table,) = (tmp_path / "benches" / "results").iterdir()
    assert "Not complete: templates on numpy failed; recurrence on numpy was cut off, and" in table.read_text()
    assert "| E1 dot product, 1024 float32, array | numpy |" in table.read_text()
    assert "Not complete" in page.read_text()
    assert page.read_text().endswith("<!-- examples table: end -->\nmore\n")


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_words_its_authors_published(counter, key, expected, backend, load):
    words = load("philox").words(tuple(backend.asarray(np.array([one])) for one in counter), key)
    assert " ".join(f"{int(word[0]):08x}" for word in words) == expected


def test_normals_are_normal(load, backend):
    index, stream = backend.asarray(np.arange(50_000)), backend.asarray(np.array([[0], [2**33]]))
    normals = np.stack([backend.to_numpy(one) for one in load("philox").normals(2**40 + 1, index, stream)])
    assert normals.shape == (4, 2, 50_000)
    assert normals.dtype == np.float32
    flat = normals.reshape(8, -1).astype(np.float64)
    n = flat.shape[1]
    # Each within 5 standard deviations: the moments of each stream, and their correlations.
    moments = [np.mean(flat**power, axis=1) for power in (1, 2, 3, 4)]
    for found, expected, variance in zip(moments, (0, 1, 0, 3), (1, 2, 15, 96), strict=True):
        assert np.max(abs(found - expected)) < 5 * math.sqrt(variance / n)
    assert np.max(abs(np.corrcoef(flat) - np.eye(8))) < 5 / math.sqrt(n)
    assert np.max(abs(flat)) < 6.8


@pytest.mark.emulator
@pytest.mark.skipif(emulator.compiler() is None, reason="no C++ compiler is installed")
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1),
        (9, 11, 13),
        (7, 30, 61),
        (3, 3, 4),
        (2, 64, 128),  # tiles of one size
        (1, 61, 132),  # one more than tiles of another
        (7, 65, 136),
        (5, 33, 252),  # two tiles and a little
        (4, 125, 368),  # three tiles
    ],
)
def test_laplace_kernels_sweep_as_arrays_do(shape, load, rng):
    from array_api_compat import numpy as xp

    module = load("laplace3d")
    u = rng.standard_normal(shape, np.float32)
    forms = [form for form in module.laplace3d_cuda.FORMS if form.fits(shape)]
    assert (shape[2] % 4 == 0) == any(form.vector == 4 for form in forms)
    for form in forms:
        # Pieces of all planes, of half, and of few, which overlap most.
        depths = {form.cells[0]} if form.kind == "boxes" else {shape[0], -(-shape[0] // 2), 3}
        for planes in sorted(depths):
            one = dataclasses.replace(form, cells=(planes, *form.cells[1:]))
            runner = emulator.Runner(None, stencil_plan(module.laplace3d_cuda.TEXT, one, shape), 0)
            runner.races = "sweep_times" not in form.name  # which reads any value for what turns stale
            (v,) = runner(u)
            expected = u
            for _ in range(one.sweeps):
                expected = module.plain(xp, expected)
            assert v.tobytes() == expected.tobytes(), (one.name, planes)


def test_texts_for_cupy_compile(load):
    if compiler.refusal() or not importlib.util.find_spec("cuda.core"):
        pytest.skip("no CUDA compiler is installed")
    forms = {(form.kind, form.name.partition("<")[0]): form for form in load("laplace3d_cuda").FORMS}
    assert len(forms) == 6
    for text in (load("device_facts").ADD, *(form.text() for form in forms.values())):
        compiler.compile_source(text, "sm_90")

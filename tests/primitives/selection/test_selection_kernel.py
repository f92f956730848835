"""The kernels of selections: every way they cut their work, every size of elements, and what a GPU brings.

They run on machines with a GPU, and on the emulator (``--backend emulated``).
"""

import dataclasses

import numpy as np
import pytest

import parprims
from parprims._primitives.selection import cuda as selection_cuda
from tests.emulation import emulator
from tests.primitives.selection.test_selection import fitted
from tests.support.contract import compare, random, strided, unaligned

SIZES = selection_cuda.TUNING[90]
TILE = SIZES.tiles[1][1] * selection_cuda.FEWEST  # of elements of 4 bytes
WIDTHS = ("bool", "float16", "float32", "int64", "complex128")  # of every size that is moved


def marks(rng, n, share):
    return rng.random(n) < share


def check_select(backend, run, x, mask, size=None, fill=0):
    options = {} if size is None else {"size": size, "fill_value": fill}
    found = run(parprims.select, backend.asarray(x), backend.asarray(mask), method="kernel", **options)
    compare(backend, found, (*fitted((x[mask],), size, (fill,)), np.asarray(mask.sum())))


def check_partition(backend, run, x, mask):
    found = run(parprims.partition_by, backend.asarray(x), backend.asarray(mask), method="kernel")
    compare(backend, found, (np.concatenate([x[mask], x[~mask]]), np.asarray(mask.sum())))


def quick_runs(x, size=None, fill=0):
    """Return the runs of integers by NumPy."""
    begins = np.flatnonzero(np.concatenate([[True], x[1:] != x[:-1]]))
    rows = x[begins], np.diff(np.append(begins, len(x)))
    return *fitted(rows, size, (fill, 0)), np.asarray(len(begins))


def check_runs(backend, run, x, size=None, fill=0):
    options = {} if size is None else {"size": size, "fill_value": fill}
    compare(
        backend, run(parprims.run_lengths, backend.asarray(x), method="kernel", **options), quick_runs(x, size, fill)
    )


class TestEdges:
    """Lengths beside those of a warp, a block and a tile, of one tile and of more than a group of 32."""

    LENGTHS = (1, 31, 33, 255, TILE - 1, TILE, TILE + 1, 2 * TILE, 3 * TILE + 7, 33 * TILE + 5)

    def test_select(self, gpu, run, rng, subtests):
        for n in self.LENGTHS[: 3 if gpu.name == "jax-cuda" else None]:
            for share in (0, 0.03, 0.5, 1):
                with subtests.test(n=n, share=share):
                    x, mask = random(rng, (n,), "float32"), marks(rng, n, share)
                    check_select(gpu, run, x, mask)
                    check_select(gpu, run, x, mask, int(rng.integers(0, n + 1)), 7)
                    check_select(gpu, run, x, mask, n + int(rng.integers(0, 2000)), -1)
                    check_partition(gpu, run, x, mask)

    def test_runs(self, gpu, run, rng, subtests):
        for n in self.LENGTHS[: 3 if gpu.name == "jax-cuda" else None]:
            for distinct in (1, 2, 1 << 30):
                with subtests.test(n=n, distinct=distinct):
                    x = rng.integers(0, distinct, n).astype(np.int32)
                    check_runs(gpu, run, x)
                    check_runs(gpu, run, x, int(rng.integers(0, n + 2)), 7)
                    check_runs(gpu, run, np.sort(x // 3), n + 9, -1)

    @pytest.mark.parametrize("dtype", WIDTHS)
    def test_widths(self, gpu, run, rng, dtype):
        if dtype != "bool" and not gpu.supports(dtype):
            pytest.skip(f"{gpu.name} has no {dtype}")
        n = 2 * TILE + 100
        x, mask = random(rng, (n,), dtype), marks(rng, n, 0.4)
        fill = {"bool": True, "complex128": 1 - 2j}.get(dtype, 3)
        check_select(gpu, run, x, mask)
        check_select(gpu, run, x, mask, n, fill)
        check_partition(gpu, run, x, mask)

    @pytest.mark.sanitize
    def test_small(self, gpu, run, rng):
        n = TILE + 40
        x, mask = random(rng, (n,), "float32"), marks(rng, n, 0.5)
        check_select(gpu, run, x, mask)
        check_select(gpu, run, x, mask, n + 5, 1)
        check_partition(gpu, run, x, mask)
        x = rng.integers(0, 3, n).astype(np.int32)
        check_runs(gpu, run, x)
        check_runs(gpu, run, x, n + 5, 1)


def test_whole_tiles(gpu, run, rng, monkeypatch):
    """Tiles of the size that long arrays have."""
    emulator.changing(monkeypatch, selection_cuda)(TUNING={90: dataclasses.replace(SIZES, blocks=1)})
    for dtype in WIDTHS if gpu.name != "jax-cuda" else ("float32",):
        if dtype != "bool" and not gpu.supports(dtype):
            continue
        x, mask = random(rng, (20000,), dtype), marks(rng, 20000, 0.5)
        check_select(gpu, run, x, mask, 20001)
        check_partition(gpu, run, x, mask)
    check_runs(gpu, run, rng.integers(0, 2, 20000).astype(np.int32), 20001)


def test_narrow_indices(gpu, rng, monkeypatch):
    """Counts and places of 32 bits, which JAX asks for."""
    if gpu.name != "emulated":
        pytest.skip("other libraries than JAX have places of 64 bits")
    emulator.forget(monkeypatch)
    monkeypatch.setattr(selection_cuda, "index_dtype", lambda _: np.dtype("int32"))
    x, mask = random(rng, (TILE + 3,), "float32"), marks(rng, TILE + 3, 0.5)
    for size in (None, TILE):
        found = parprims.select(x, mask, size=size, method="kernel")
        assert found[1].dtype == np.int32
        np.testing.assert_array_equal(found[0], fitted((x[mask],), size, (0,))[0])
    found = parprims.partition_by(x, mask, method="kernel")
    np.testing.assert_array_equal(found[0], np.concatenate([x[mask], x[~mask]]))
    assert found[1] == mask.sum()
    found = parprims.run_lengths(np.repeat(x[:9], 5), method="kernel")
    assert found[1].dtype == np.int32
    assert found[1].tolist() == [5] * 9


def test_layouts(gpu, run, rng):
    """Views with gaps, and those that begin at no multiple of 16 bytes."""
    if gpu.family == "jax":
        pytest.skip("JAX has no views")
    x, mask = random(rng, (2 * TILE + 3,), "float32"), marks(rng, 2 * TILE + 3, 0.5)
    for one, other in ((unaligned, unaligned), (strided, unaligned), (unaligned, strided)):
        arrays = one(gpu, x), other(gpu, mask)
        for size in (None, 2 * TILE):
            found = run(parprims.select, *arrays, size=size, method="kernel")
            compare(gpu, found, (*fitted((x[mask],), size, (0,)), np.asarray(mask.sum())))
        found = run(parprims.partition_by, *arrays, method="kernel")
        compare(gpu, found, (np.concatenate([x[mask], x[~mask]]), np.asarray(mask.sum())))


def test_derivative(tensors, rng):
    """On PyTorch kernels find what is to be moved, and PyTorch moves it, where a derivative is asked for."""
    import torch

    n = TILE + 9
    mask, x = tensors.asarray(marks(rng, n, 0.5)), tensors.asarray(rng.standard_normal(n)).requires_grad_()
    each = torch.arange(n, dtype=torch.float64, device=x.device)
    for size in (None, n):
        values, count = parprims.select(x, mask, size=size, method="kernel")
        (got,) = torch.autograd.grad((values * (each[: len(values)] + 1)).sum(), x)
        assert int(count) == mask.sum()
        torch.testing.assert_close(got, mask * torch.cumsum(mask, 0).double(), rtol=0, atol=0)
    values, count = parprims.partition_by(x, mask, method="kernel")
    (got,) = torch.autograd.grad((values * each).sum(), x)
    places = torch.where(mask, torch.cumsum(mask, 0) - 1, count + torch.cumsum(~mask, 0) - 1)
    torch.testing.assert_close(got, places.double(), rtol=0, atol=0)
    values, lengths, count = parprims.run_lengths(x, method="kernel")
    (got,) = torch.autograd.grad(values.sum(), x)
    assert int(count) == n
    assert bool((got == 1).all())
    assert bool((lengths == 1).all())
    with torch.no_grad(), parprims.explain() as calls:
        torch.testing.assert_close(parprims.select(x, mask)[0], x[mask], rtol=0, atol=0)
    assert calls[0].method == "kernel"


def test_programs(rng, monkeypatch):
    """What JAX programs hold: the kernel, which here is one of a GPU, and the library's way elsewhere."""
    jax = pytest.importorskip("jax")
    x, mask = random(rng, (2, 40), "float32"), marks(rng, (2, 40), 0.5)
    calls = [
        lambda x, mask: parprims.select(x, mask, size=50, fill_value=2, method="kernel"),
        lambda x, mask: parprims.partition_by(x, mask, method="kernel"),
        lambda x, _: parprims.run_lengths(x, size=50, method="kernel"),
    ]
    expected = [
        [call(*row) for row in zip(x, mask, strict=True)]
        for call in (
            lambda x, mask: parprims.select(x, mask, size=50, fill_value=2, method="array"),
            lambda x, mask: parprims.partition_by(x, mask, method="array"),
            lambda x, _: parprims.run_lengths(x, size=50, method="array"),
        )
    ]
    if jax.default_backend() != "cpu":
        pytest.skip("takes the CPU for a GPU")
    emulator.install_for_jax(monkeypatch)
    for call, other in zip(calls, expected, strict=True):
        found = jax.vmap(call)(x, mask)
        for at, row in enumerate(other):
            for got, wanted in zip(found, row, strict=True):
                np.testing.assert_array_equal(np.asarray(got[at]), wanted)
        text = jax.jit(call).trace(x[0], mask[0]).lower(lowering_platforms=("cuda",)).as_text()
        assert "xla.gpu.ptx" in text

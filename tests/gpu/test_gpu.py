"""What only a GPU can show of every kernel: layouts, processes, and the ways of many long lines."""

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest

import parprims
from parprims import _cuda
from parprims._primitives.scan import tiling as scan_tiling
from tests.emulation import emulator
from tests.support.gpu_calls import arrays, check, check_recurrence, every_case, maps


def test_reverse_and_not_commutative(gpu, rng):
    """Fault 15: in the smallest shape, and around a warp, also exclusive."""
    for shape in ((2, 9), (3, 33), (2, 2049)):
        data = tuple(rng.integers(-9, 9, shape).astype(np.int32) for _ in range(2))
        for exclusive in (False, True):
            options = {"axis": 1, "reverse": True, "exclusive": exclusive}
            found = parprims.scan(arrays(gpu, data), "affine", method="kernel", **options)
            for one, other in zip(found, parprims.scan(data, "affine", method="array", **options), strict=True):
                np.testing.assert_array_equal(gpu.to_numpy(one), other)


@every_case
def test_views(streams, rng, case):
    """Fault 26: transposed, offset by one element, with gaps, negative, zero and overlapping steps, where there are."""
    data = case.make(rng)
    inputs = arrays(streams, data)
    xp = streams.xp

    def offset(x):
        room = xp.zeros((int(np.prod(x.shape)) + 1,), dtype=x.dtype, device=x.device)
        room[1:] = xp.reshape(x, (-1,))
        return xp.reshape(room[1:], x.shape)

    def gapped(x):
        room = xp.zeros((*x.shape[:-1], 3 * x.shape[-1]), dtype=x.dtype, device=x.device)
        view = room[..., 1::3]
        view[...] = x
        return view

    def turned(x):
        if x.ndim < 2:
            return x
        if streams.name == "torch-cuda":
            axes = range(x.ndim)[::-1]
            return x.permute(*axes).contiguous().permute(*axes)
        return xp.ascontiguousarray(x.T).T

    def backward(x):  # PyTorch has no negative steps
        return x if streams.name == "torch-cuda" else xp.ascontiguousarray(x[..., ::-1])[..., ::-1]

    for view in (offset, gapped, turned, backward):
        check(streams, case, data, case(*(view(x) for x in inputs)))
    for one, other in zip(inputs, data, strict=True):
        np.testing.assert_array_equal(streams.to_numpy(one), other)


def test_steps_of_zero_and_overlapping(streams, rng):
    """Fault 26: elements of a view that are the same memory."""
    x = rng.integers(-99, 99, 5003).astype(np.int32)
    array = streams.asarray(x)
    for window in (1, 3, 700):
        expected = np.lib.stride_tricks.sliding_window_view(x, window)[:4000]
        if streams.name == "cupy":
            import cupy

            view = cupy.lib.stride_tricks.as_strided(array, (4000, window), (4, 4))
        else:
            view = array.as_strided((4000, window), (1, 1))
        for axis in (0, 1):
            found = (
                (parprims.sum(view, axis=axis, method="kernel"), expected.sum(axis, dtype=np.int64)),
                (parprims.cumulative_sum(view, axis=axis, method="kernel"), expected.cumsum(axis, dtype=np.int64)),
                (parprims.sort(view, axis=axis, method="kernel"), np.sort(expected, axis)),
            )
            for one, other in found:
                np.testing.assert_array_equal(streams.to_numpy(one), other)
    wide = streams.xp.broadcast_to(array[:300], (70, 300))
    expected = np.broadcast_to(x[:300], (70, 300))
    for axis in (0, 1):
        total = streams.to_numpy(parprims.cumulative_sum(wide, axis=axis, method="kernel"))
        np.testing.assert_array_equal(total, expected.cumsum(axis, dtype=np.int64))
        ordered = streams.to_numpy(parprims.sort(wide, axis=axis, method="kernel"))
        np.testing.assert_array_equal(ordered, np.sort(expected, axis))
    np.testing.assert_array_equal(streams.to_numpy(array), x)


REPLAYS = """
import numpy as np, cupy, parprims
rng = np.random.default_rng(1)
stream = cupy.cuda.Stream(non_blocking=True)
for dtype, m, k, n in (
    ("float16", 512, 512, 512), ("float16", 136, 264, 520), ("float32", 512, 512, 512), ("float32", 1040, 1040, 1000)
):
    for turned in (False, True):
        shapes = (k, m) if turned else (m, k), (k, n)
        a, b = (cupy.asarray(rng.integers(-2, 3, shape).astype(dtype)) for shape in shapes)
        a = a.T if turned else a
        expected = (a.astype("float64") @ b.astype("float64")).astype(dtype)
        cupy.cuda.Device().synchronize()
        with stream:
            stream.begin_capture()
            c = parprims.matmul(a, b, method="kernel")
            graph = stream.end_capture()
            for _ in range(100):
                c[...] = 7
                graph.launch()
        stream.synchronize()
        assert bool((c == expected).all()), (dtype, m, k, n, turned)
print("right")
"""


def test_barriers_of_shared_memory_under_replay(streams):
    """Fault 21: 100 replays of every kernel with such barriers, in five processes at once."""
    if streams.name != "cupy":
        pytest.skip("one library is enough")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", REPLAYS], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(5)
    ]
    for process in started:
        try:
            output, _ = process.communicate(timeout=120)
        finally:
            process.kill()
        assert process.returncode == 0, output.decode()[-3000:]


@pytest.mark.sanitize
def test_every_rest_of_a_tile(streams, rng):
    """Fault 21: a last tile of every length modulo 32."""
    for n in range(32):
        x = rng.integers(-9, 9, (2, 320 + n)).astype(np.int32)
        array = streams.asarray(x)
        np.testing.assert_array_equal(streams.to_numpy(parprims.sum(array, axis=1, method="kernel")), x.sum(1))
        np.testing.assert_array_equal(
            streams.to_numpy(parprims.cumulative_sum(array, axis=1, method="kernel")), x.cumsum(1)
        )
        np.testing.assert_array_equal(streams.to_numpy(parprims.sort(array, method="kernel")), np.sort(x))


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("way", "shape", "axis", "changed"),
    [
        ("CHAINED", (5001, 33), 0, {"chained_lines": 2}),
        ("SERIAL", (3, 100_001), 1, {"serial_lines": 2}),
        ("SERIAL", (3, 100_001), 1, {"serial_lines": 2, "serial_parts": 1}),
    ],
)
def test_ways_of_many_long_lines(streams, rng, monkeypatch, way, shape, axis, changed):
    """Tiles that wait for the one before alone, and blocks that go along a line or a part of it, here of few lines."""
    taken, begin = [], _cuda.Runner.__init__

    def noted(self, xp, plan, device):
        taken.append(plan.launches[0].name)
        begin(self, xp, plan, device)

    monkeypatch.setattr(scan_tiling, "TUNING", {90: dataclasses.replace(scan_tiling.TUNING[90], **changed)})
    emulator.forget(monkeypatch)
    monkeypatch.setattr(_cuda.Runner, "__init__", noted)
    for dtype in ("int8", "int32"):
        a, b = (x.astype(dtype) for x in maps(*shape)(rng))
        first, second = arrays(streams, (a, b))
        y = parprims.scan(second, "maximum", axis=axis, method="kernel")
        np.testing.assert_array_equal(streams.to_numpy(y), np.maximum.accumulate(b, axis))
        if way == "SERIAL":  # a block goes along lines only where there are more inputs than outputs
            assert not any(way in body for body in taken)
            taken.clear()
        y = streams.to_numpy(parprims.linear_recurrence(first, second, axis=axis, method="kernel"))
        check_recurrence([np.moveaxis(x, axis, -1) for x in (a, b)], [np.moveaxis(y, axis, -1)])
        assert taken
        assert all(way in body for body in taken)
        taken.clear()

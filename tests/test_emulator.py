"""The emulator itself: that it shows what is wrong with a kernel, and computes what a GPU does."""

import dataclasses

import numpy as np
import pytest

from parprims import _cuda
from tests import emulator

pytestmark = pytest.mark.skipif(emulator.compiler() is None, reason="needs a C++ compiler")

SUM = """
const float* from = (const float*)in0;
__shared__ float shared[64];
float mine = from[blockIdx.x * 64 + threadIdx.x];
for (int distance = 16; distance > 0; distance /= 2) mine += __shfl_down_sync(0xffffffffu, mine, distance);
if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
__syncthreads();
if (threadIdx.x == 0) ((float*)out0)[blockIdx.x] = shared[0] + shared[1];
"""


def plan(body: str, **options) -> _cuda.Plan:
    """Return a plan of 5 blocks of 64 threads with one input and five results."""
    given = {"outputs": (((5,), "float32"),), "integers": (), "grid": 5, "block": 64}
    return _cuda.Plan(source=_cuda.device_source("_common.cuh"), body=body, inputs=1, **(given | options))


def launch(one: _cuda.Plan, x: np.ndarray) -> np.ndarray:
    runner = emulator.Runner(np, one, 0)
    runner.seconds = 5.0
    return runner(x)[0]


@pytest.fixture
def x(rng):
    return rng.integers(1, 9, 320).astype(np.float32)


class TestFinds:
    def test_nothing_in_a_right_kernel(self, x):
        np.testing.assert_array_equal(launch(plan(SUM), x), x.reshape(5, 64).sum(axis=1))

    def test_missing_barrier(self, x):
        broken = launch(plan(SUM.replace("__syncthreads();", "")), x)
        assert (broken != x.reshape(5, 64).sum(axis=1)).any()

    def test_missing_wait_for_copies(self, x):
        body = """
        __shared__ float shared[64];
        copy_async(shared[threadIdx.x], ((const float*)in0)[threadIdx.x]);
        wait_for_staged();
        __syncthreads();
        if (threadIdx.x == 0) ((float*)out0)[blockIdx.x] = shared[63];
        """
        assert (launch(plan(body), x) == x[63]).all()
        with pytest.raises(RuntimeError, match="without waiting for its asynchronous copies"):
            launch(plan(body.replace("wait_for_staged();", "")), x)

    @pytest.mark.parametrize("at", [-1, 5])
    def test_write_out_of_bounds(self, x, at):
        with pytest.raises(AssertionError, match="wrote outside output 0"):
            launch(plan(f"((float*)out0)[{at}] = 1.0f;"), x)

    def test_write_to_an_input(self, x):
        with pytest.raises(AssertionError, match="wrote to an input"):
            launch(plan("((float*)in0)[3] = -1.0f;"), x)

    def test_unwritten_output(self, x):
        result = launch(plan("if (threadIdx.x < 4) ((float*)out0)[threadIdx.x] = 0.0f;"), x)
        assert (result[:4] == 0).all()
        assert result[4] != 0

    def test_zeroed_scratch_left_behind(self, x):
        body = "((int*)zeroed)[0] = %d;"
        launch(plan(body % 0, zeroed_bytes=4), x)
        with pytest.raises(AssertionError, match="left zeroed scratch"):
            launch(plan(body % 1, zeroed_bytes=4), x)
        emulator._kept.clear()

    def test_deadlock_of_a_block(self, x):
        with pytest.raises(RuntimeError, match="deadlock"):
            launch(plan("if (threadIdx.x % 32 < 8) __syncwarp(); else __syncthreads();"), x)

    def test_lanes_outside_a_mask(self, x):
        with pytest.raises(RuntimeError, match="leaves it out"):
            launch(plan("__syncwarp(0xffffu);"), x)

    def test_wait_that_never_ends(self, x):
        with pytest.raises(RuntimeError, match="no progress"):
            launch(plan("while (atomicAdd((int*)scratch, 0) != 1) __nanosleep(100);", scratch_bytes=4), x)

    def test_misaligned_vector(self, x):
        with pytest.raises(RuntimeError, match="not aligned"):
            launch(plan("__ldg((const uint4*)((const char*)in0 + 4));"), x)

    def test_impossible_launch(self, x):
        with pytest.raises(AssertionError, match="impossible block"):
            launch(dataclasses.replace(plan(SUM), block=2048), x)

    def test_unknown_ptx(self, x):
        with pytest.raises(KeyError, match=r"bar\.warp\.sync"):
            launch(plan('asm volatile("bar.warp.sync 1;");'), x)


class TestComputes:
    def test_blocks_wait_for_blocks_before_them(self, x):
        body = """
        volatile int* flags = (volatile int*)zeroed;
        if (threadIdx.x == 0) {
            const int turn = atomicAdd((int*)zeroed, 1);
            while (atomicAdd((int*)zeroed + 1, 0) != turn) __nanosleep(1);
            ((float*)out0)[turn] = turn;
            __threadfence();
            if (turn == 4) flags[0] = flags[1] = 0;
            else atomicAdd((int*)zeroed + 1, 1);
        }
        """
        for _ in range(5):
            assert launch(plan(body, zeroed_bytes=8), x).tolist() == [0, 1, 2, 3, 4]

    def test_half_precision(self):
        halves = np.arange(1 << 16, dtype=np.uint16)
        body = """
        for (int at = threadIdx.x; at < 65536; at += 64) ((float*)out0)[at] = value(((const Half*)in0)[at]);
        """
        floats = launch(plan(body, outputs=(((1 << 16,), "float32"),), grid=1), halves)
        np.testing.assert_array_equal(floats, halves.view(np.float16).astype(np.float32))

        rng = np.random.default_rng(0)
        nearby = np.concatenate([floats, np.nextafter(floats, np.float32(0)), np.nextafter(floats, np.float32(9e9))])
        ties = (floats[:-1] + floats[1:]) / 2
        wild = rng.integers(0, 1 << 32, 1 << 16).astype(np.uint32).view(np.float32)
        given = np.concatenate([nearby, ties, wild, np.float32([0.0, -0.0, 65519.9, 65520.0, 1e-8, -1e-8])])
        body = """
        for (int at = threadIdx.x; at < n0; at += 64) ((Half*)out0)[at] = store<Half>(((const float*)in0)[at]);
        """
        with np.errstate(all="ignore"):
            expected = given.astype(np.float16)
        shape = ((given.size,), "float16")
        got = launch(plan(body, outputs=(shape,), integers=(given.size,), grid=1), given)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(got.view(np.uint16)[numbers], expected.view(np.uint16)[numbers])

    def test_votes_matches_and_reductions(self, rng):
        x = rng.integers(0, 4, 32).astype(np.uint32)
        body = """
        const unsigned mine = ((const unsigned*)in0)[threadIdx.x];
        unsigned* out = (unsigned*)out0 + 6 * threadIdx.x;
        out[0] = __ballot_sync(0xffffffffu, mine == 2);
        out[1] = __match_any_sync(0xffffffffu, mine);
        out[2] = __reduce_add_sync(0xffffffffu, mine);
        out[3] = __shfl_xor_sync(0xffffffffu, mine, 5);
        out[4] = __shfl_up_sync(0xffffffffu, mine, 3, 8);
        out[5] = __shfl_sync(0xffffffffu, mine, 1, 4);
        """
        got = launch(plan(body, outputs=(((32, 6), "uint32"),), grid=1, block=32), x)
        lanes = np.arange(32)
        bits = np.uint32(1) << lanes.astype(np.uint32)
        assert (got[:, 0] == bits[x == 2].sum()).all()
        assert (got[:, 1] == [bits[x == one].sum() for one in x]).all()
        assert (got[:, 2] == x.sum()).all()
        assert (got[:, 3] == x[lanes ^ 5]).all()
        assert (got[:, 4] == np.where(lanes % 8 < 3, x, x[lanes - 3])).all()
        assert (got[:, 5] == x[lanes // 4 * 4 + 1]).all()

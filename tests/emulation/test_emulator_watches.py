"""The emulator shows what is wrong with accesses to memory: races, missing fences, places out of bounds."""

import re

import numpy as np
import pytest

from parprims import _cuda
from tests.emulation import emulator, test_emulator
from tests.emulation.test_emulator import elements, factors, launch, plan, wgmma
from tests.support.text_plans import body_of, with_body, with_integer

pytestmark = test_emulator.pytestmark
x = test_emulator.x


# What 64 threads do to places in shared memory, an int for each and more.
RACES = {
    "write, read": "at[threadIdx.x] = 1; put(at[threadIdx.x ^ 1]);",
    "read, write": "put(at[threadIdx.x ^ 1]); at[threadIdx.x] = 1;",
    "write, write": "at[threadIdx.x / 2] = threadIdx.x;",
    "warps, barrier of a warp": "at[threadIdx.x] = 1; __syncwarp(); put(at[threadIdx.x ^ 32]);",
    "shuffle": "at[threadIdx.x] = 1; put(__shfl_sync(~0u, at[threadIdx.x], 3)); put(at[threadIdx.x ^ 1]);",
    "vote": "at[threadIdx.x] = 1; __any_sync(~0u, 1); put(at[threadIdx.x ^ 1]);",
    "atomic, read": "atomicAdd(&at[0], 1); put(at[0]);",
    "read, atomic": "put(at[0]); atomicAdd(&at[0], 1);",
    "write, atomic": "if (threadIdx.x == 0) at[0] = 5; atomicAdd(&at[0], 1);",
    "vector, number": "((uint4*)at)[threadIdx.x % 4] = uint4{threadIdx.x}; put(at[threadIdx.x]);",
    "bytes": "((char*)at)[threadIdx.x] = 1; put(((char*)at)[threadIdx.x ^ 1]);",
    "copy": "memcpy(at + 3 * threadIdx.x, zeros, 12); put(at[3 * threadIdx.x + 3]);",
    "asynchronous copy": "copy_async(at[threadIdx.x], *(int*)in0); put(at[threadIdx.x ^ 1]); wait_for_staged();",
    "barriers of two names": "at[threadIdx.x] = 1; if (threadIdx.x < 32) named(32); put(at[threadIdx.x ^ 32]);",
    "reads of several, write": "put(at[0]); __syncwarp(); if (threadIdx.x == 40) at[0] = 1;",
}
ORDERED = {
    "barrier": "at[threadIdx.x] = 1; __syncthreads(); put(at[threadIdx.x ^ 33]);",
    "barrier that counts": "at[threadIdx.x] = 1; __syncthreads_or(0); put(at[threadIdx.x ^ 33]);",
    "barrier of a warp": "at[threadIdx.x] = 1; __syncwarp(); put(at[threadIdx.x ^ 1]);",
    "named barrier": "at[threadIdx.x] = 1; named(64); put(at[threadIdx.x ^ 33]);",
    "its own": "at[threadIdx.x] = 1; put(at[threadIdx.x]); at[threadIdx.x] = 2;",
    "all write the same": "at[0] = 1; __syncthreads(); put(at[0]);",
    "all write the same vector twice": "for (int k = 0; k < 2; ++k) ((uint4*)at)[0] = uint4{1, 2, 3, 4};",
    "atomic operations": "atomicAdd(&at[0], 1); __syncthreads(); put(at[0]);",
    "all read": "put(at[5]);",
    "neighbouring bytes": "((char*)at)[threadIdx.x] = 1; ((char*)at)[threadIdx.x] += 1;",
    "bytes, then all of them": "((char*)at)[threadIdx.x] = 1; __syncthreads(); put(at[0]);",
    "a thread that is gone": "at[threadIdx.x] = 1; if (threadIdx.x == 9) return; __syncthreads(); put(at[9]);",
}
BEYOND = {"before": "at[-1] = 1;", "behind": "at[256] = 1;"}


class TestSharedMemory:
    """What the threads of a block do to each other there."""

    @pytest.mark.parametrize(
        "declared", ["__shared__ float kept;", "extern __shared__ float all[]; float& kept = all[3];"]
    )
    def test_poison(self, x, declared):
        """It is NaN when a block begins, whatever the block before left there."""
        body = f"{declared} if (threadIdx.x == 0) {{ ((float*)out0)[blockIdx.x] = kept; kept = 1.0f; }}"
        assert np.isnan(launch(plan(body, shared_bytes=16), x)).all()

    def test_poison_of_instances(self, x):
        """Every instance of a template has its own variables."""
        source = (
            _cuda.device_source("_cuda/device/common.cuh")
            + """
        template <int N>
        DEVICE int* place() {
            __shared__ int kept[N];
            return kept;
        }
        """
        )
        body = """
        if (threadIdx.x > 0) return;
        int* const places[] = {place<1>(), place<2>() + 1, place<3>() + 2};
        bool poison = true;
        for (int* const one : places) {
            poison = poison && (*one == -1 || *one == 0x7fff7fff);
            *one = 1;
        }
        ((float*)out0)[blockIdx.x] = poison;
        """
        assert launch(plan(body, source=source), x).tolist() == [1] * 5

    @pytest.mark.parametrize("name", RACES)
    def test_race(self, x, name):
        with pytest.raises(RuntimeError, match="race: thread"):
            self.launch(x, name)

    @pytest.mark.parametrize("name", ORDERED)
    def test_no_race(self, x, name):
        self.launch(x, name)

    def launch(self, x, name):
        launch(with_integer(self.PLAN, [*RACES, *ORDERED, *BEYOND].index(name)), x)

    # One kernel, which is told what to do.
    PLAN = plan(
        """
        extern __shared__ int at[];
        const int zeros[4] = {};
        const auto put = [&](int x) { ((int*)temporary)[blockIdx.x * 64 + threadIdx.x] = x; };
        const auto named = [](int threads) { asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory"); };
        switch (n0) {
        """
        + "".join(
            f"case {number}: {{ {body} }} break;\n" for number, body in enumerate((RACES | ORDERED | BEYOND).values())
        )
        + "}",
        integers=(0,),
        shared_bytes=1024,
        temporary_bytes=4 * 5 * 64,
    )

    def test_beyond(self, x):
        for name in BEYOND:
            with pytest.raises(RuntimeError, match="beyond the shared memory"):
                self.launch(x, name)

    def test_not_shown_to_tensor_cores(self, rng):
        a, b, c = factors(rng, "f16", 16)
        one = wgmma("f16", "k", "k", 16)
        fence = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'
        assert fence in body_of(one)
        with pytest.raises(RuntimeError, match="not shown to it"):
            launch(with_body(one, body_of(one).replace(fence, "")), elements(a, "f16"), elements(b, "f16"), c)


class TestFences:
    """Blocks leave what they have found in scratch, the last of them reads it."""

    PLAN = plan(
        """
        __shared__ bool last;
        float* const found = (float*)scratch;
        found[blockIdx.x * 64 + threadIdx.x] = ((const float*)in0)[blockIdx.x * 64 + threadIdx.x];
        if (n0 != 1) __threadfence();
        if (n0 != 2) __syncthreads();
        if (threadIdx.x == 0) last = atomicInc((unsigned*)zeroed, 4u) == 4u;
        if (n0 != 3) __syncthreads();
        if (!last) return;
        if (n0 != 4) __threadfence();
        if (threadIdx.x < 5) {
            float sum = 0;
            for (int at = 0; at < 64; ++at) sum += found[threadIdx.x * 64 + at];
            ((float*)out0)[threadIdx.x] = sum;
        }
        """,
        integers=(0,),
        scratch_bytes=4 * 320,
        zeroed_bytes=4,
    )

    def test_both(self, x):
        np.testing.assert_array_equal(launch(self.PLAN, x), x.reshape(5, 64).sum(axis=1))

    @pytest.mark.parametrize("missing", range(1, 5))
    def test_one_is_missing(self, x, missing):
        with pytest.raises(RuntimeError, match="race: "):
            launch(with_integer(self.PLAN, missing), x)


RING = """
__shared__ unsigned long long full[3], empty[3];
__shared__ float ring[3][32];
const auto address = [](unsigned long long& one) { return (unsigned)__cvta_generic_to_shared(&one); };
const auto begin = [&](unsigned long long& one) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(one)), "r"(32) : "memory");
};
const auto arrive = [&](unsigned long long& one) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(one)) : "memory");
};
const auto wait = [&](unsigned long long& one, int parity) {
    unsigned ended = 0;
    while (!ended)
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ended) : "r"(address(one)), "r"(parity) : "memory");
};
if (threadIdx.x < 3) begin(full[threadIdx.x]), begin(empty[threadIdx.x]);
__syncthreads();
const int lane = threadIdx.x % 32;
for (int at = 0; at < 10; ++at) {
    if (threadIdx.x < 32) {
        WAIT_EMPTY;
        ring[at % 3][lane] = ((const float*)in0)[at * 32 + lane];
        arrive(full[at % 3]);
    } else {
        WAIT_FULL;
        ((float*)out0)[at * 32 + lane] = ring[at % 3][31 - lane];
        arrive(empty[at % 3]);
    }
}
"""
WAITS = {"WAIT_EMPTY": "wait(empty[at % 3], 1 - at / 3 % 2)", "WAIT_FULL": "wait(full[at % 3], at / 3 % 2)"}


class TestBarriersInSharedMemory:
    """One warp hands rows to another through a ring of three."""

    def launch(self, x, *, seconds=5.0, **waits):
        body = RING
        for name, text in (WAITS | waits).items():
            body = body.replace(name, text)
        return launch(plan(body, outputs=((x.shape, "float32"),), grid=1), x, seconds=seconds)

    def test_ring(self, rng):
        x = rng.standard_normal((10, 32)).astype(np.float32)
        np.testing.assert_array_equal(self.launch(x), x[:, ::-1])

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("WAIT_EMPTY", ""),
            ("WAIT_FULL", ""),
            ("WAIT_EMPTY", "wait(empty[at % 3], at / 3 % 2)"),
            ("WAIT_FULL", "wait(full[at % 3], 1 - at / 3 % 2)"),
        ],
    )
    def test_wrong_wait(self, rng, name, text):
        # Phases that one passes unseen are what the other waits for, if it has not yet met the other in the ring.
        with pytest.raises(RuntimeError, match=r"no progress|race: thread"):
            self.launch(rng.standard_normal((10, 32)).astype(np.float32), seconds=0.5, **{name: text})


DESCRIBE = next(ptx for ptx in emulator.PTX if ptx.startswith("tensormap.replace"))
BULK_COPY = f"""
struct alignas(128) Map {{ unsigned words[32]; }};
__shared__ Map shared;
__shared__ unsigned long long barrier;
extern __shared__ uint4 memory[];
const auto address = [](const void* one) {{ return (unsigned)__cvta_generic_to_shared(one); }};
unsigned* const tile = (unsigned*)((char*)memory + -address(memory) % 1024);
ZERO;
__syncwarp();
if (threadIdx.x == 0) {{
    asm volatile("{DESCRIBE}" ::"r"(address(&shared)), "l"(in0), "r"(LENGTH), "r"(5), "r"(3), "l"(PITCH),
                 "l"(5 * 144ll), "r"(128 / SIZE), "r"(8), "r"(1), "n"(TYPE) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&barrier)), "r"(1) : "memory");
}}
__syncwarp();
asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned "
             "[%0], [%1], 128;" ::"l"(scratch), "r"(address(&shared)) : "memory");
if (threadIdx.x == 0) {{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&barrier)), "r"(1024)
                 : "memory");
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {{%2, %3, %4}}], [%5];" ::"r"(address(tile) + OFF), "l"(scratch), "r"(X), "r"(-2), "r"(1),
                 "r"(address(&barrier)) : "memory");
}}
unsigned ended = 0;
WAIT
    asm volatile("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }}"
                 : "=r"(ended) : "r"(address(&barrier)), "r"(0) : "memory");
for (int at = threadIdx.x; at < 256; at += 32) ((unsigned*)out0)[at] = tile[at];
"""


class TestBulkCopies:
    """A box of 8 rows, two of them before the first, of the second of three matrices with 5 rows of 144 bytes."""

    def launch(self, x, **words):
        zero = "shared.words[threadIdx.x] = 0"
        size = x.dtype.itemsize
        words = {"ZERO": zero, "PITCH": "144ll", "OFF": 0, "WAIT": "while (!ended)", "X": 24 // size, **words}
        words |= {"SIZE": size, "LENGTH": 140 // size, "TYPE": {2: 10, 4: 11}[size]}
        body = re.sub("|".join(words), lambda found: str(words[found[0]]), BULK_COPY)
        one = plan(body, outputs=(((8, 8, 16), "uint8"),), grid=1, block=32, scratch_bytes=128, shared_bytes=2048)
        return launch(one, x)

    @pytest.mark.parametrize("dtype", ["uint16", "float32"])
    def test_box(self, rng, dtype):
        x = rng.standard_normal((3, 5, 144 // np.dtype(dtype).itemsize)).astype(np.float32)
        x = x.astype(np.float32) if dtype == "float32" else rng.integers(0, 2**16, x.shape).astype(dtype)
        rows = np.zeros((8, 128 // x.itemsize), dtype)
        rows[2:7, : 116 // x.itemsize] = x[1, :, 24 // x.itemsize : 140 // x.itemsize]
        if dtype == "float32":
            word = rows.view(np.uint32)
            rows = (word + 0xFFF + (word >> 13 & 1) & ~np.uint32(0x1FFF)).view(dtype)
        parts = rows.view(np.uint8).reshape(8, 8, 16)
        expected = np.stack([parts[row, np.arange(8) ^ row] for row in range(8)])
        np.testing.assert_array_equal(self.launch(x), expected)

    @pytest.mark.parametrize(
        ("match", "words"),
        [
            ("begin as 128 aligned zeros", {"ZERO": "shared.words[threadIdx.x] = 1"}),
            ("pitch is impossible", {"PITCH": "140ll"}),
            ("copy is not aligned", {"OFF": 128}),
            ("without waiting for its bulk copies", {"WAIT": "if (threadIdx.x < 32) return; while (!ended)"}),
        ],
    )
    def test_mistakes(self, rng, match, words):
        with pytest.raises(RuntimeError, match=match):
            self.launch(rng.integers(0, 2**16, (3, 5, 72)).astype(np.uint16), **words)

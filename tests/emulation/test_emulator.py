"""The emulator itself: that it shows what is wrong with a kernel, and computes what a GPU does."""

import dataclasses

import numpy as np
import pytest

from parprims import _cuda
from parprims._cuda.plan import Plan
from tests.emulation import emulator
from tests.mutation.run import misfits
from tests.support.text_plans import body_of, text_plan, with_body, with_integer

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(emulator.compiler() is None, reason="needs a C++ compiler"),
]


SUM = """
const float* from = (const float*)in0;
__shared__ float shared[64];
float mine = from[blockIdx.x * 64 + threadIdx.x];
for (int distance = 16; distance > 0; distance /= 2) mine += __shfl_down_sync(0xffffffffu, mine, distance);
if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
__syncthreads();
if (threadIdx.x == 0) ((float*)out0)[blockIdx.x] = shared[0] + shared[1];
"""


def plan(body: str, **options) -> Plan:
    """Return a plan of 5 blocks of 64 threads with one input and five results."""
    given = {"outputs": (((5,), "float32"),), "inputs": 1, "integers": (), "grid": 5, "block": 64}
    return text_plan(body=body, **({"source": _cuda.device_source("_cuda/device/common.cuh")} | given | options))


def launch(one: Plan, *arrays: np.ndarray, seconds: float = 5.0) -> np.ndarray:
    runner = emulator.Runner(np, one, 0)
    runner.seconds = seconds
    return runner(*arrays)[0]


def warp(body: str, inputs: int, shape: tuple[int, ...], dtype: str, **options) -> Plan:
    """Return a plan of one warp with one output."""
    given = {"source": "", "inputs": inputs, "outputs": ((shape, dtype),), "grid": 1, "block": 32}
    return plan(body, **(given | options))


def truncated(x: np.ndarray) -> np.ndarray:
    """Return doubles as the floats next to them towards zero."""
    y = x.astype(np.float32)
    return np.where(np.abs(y.astype(np.float64)) > np.abs(x), np.nextafter(y, np.float32(0)), y)


def exact(rng, shape: tuple[int, ...]) -> np.ndarray:
    """Return numbers that every type of matrix element holds, of which all products and sums are exact in doubles."""
    return rng.integers(-128, 128, shape) * 2.0 ** rng.integers(-6, 4, shape)


def elements(x: np.ndarray, types: str) -> np.ndarray:
    """Return numbers as matrix elements."""
    if types == "f16":
        return x.astype(np.float16)
    words = x.astype(np.float32).view(np.uint32)
    if types == "bf16":
        return (words >> 16).astype(np.uint16)
    return words | np.uint32(0x1ABC)  # the last bits have no effect


MMA = """
asm volatile("mma.sync.aligned.%s {%%0, %%1, %%2, %%3}, {%%4, %%5, %%6, %%7}, {%%8, %%9}, {%%0, %%1, %%2, %%3};"
             : "+%s"(d[0]), "+%s"(d[1]), "+%s"(d[2]), "+%s"(d[3])
             : "%s"(x[0]), "%s"(x[1]), "%s"(x[2]), "%s"(x[3]), "%s"(y[0]), "%s"(y[1]));
"""

# What lane 4 g + t of a warp holds of A (rows `first` on) and B, and of the result.
PAIRS = """
const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
const auto pair = [](const void* from, int at, int step) {
    const unsigned short* const x = (const unsigned short*)from;
    return (unsigned)x[at] | (unsigned)x[at + step] << 16;
};
const auto from_a = [&](unsigned* x, int first, int width, int k) {
    x[0] = pair(in0, (first + g) * width + k + 2 * t, 1);
    x[1] = pair(in0, (first + g + 8) * width + k + 2 * t, 1);
    x[2] = pair(in0, (first + g) * width + k + 2 * t + 8, 1);
    x[3] = pair(in0, (first + g + 8) * width + k + 2 * t + 8, 1);
};
const auto from_b = [&](unsigned* y) {
    y[0] = pair(in1, 2 * t * 8 + g, 8);
    y[1] = pair(in1, (2 * t + 8) * 8 + g, 8);
};
"""
SINGLES = """
const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
const auto from_a = [&](ELEMENT* x, int first, int width, int k) {
    const ELEMENT* const a = (const ELEMENT*)in0;
    x[0] = a[(first + g) * width + k + t];
    x[1] = a[(first + g + 8) * width + k + t];
    x[2] = a[(first + g) * width + k + t + 4];
    x[3] = a[(first + g + 8) * width + k + t + 4];
};
const auto from_b = [&](ELEMENT* y) {
    const ELEMENT* const b = (const ELEMENT*)in1;
    y[0] = b[t * 8 + g];
    y[1] = b[(t + 4) * 8 + g];
};
"""


def mma(types: str) -> str:
    """Return the body of a kernel that multiplies matrices of 16 rows and 8 columns and adds in2."""
    element, sum, in_, out = ("double", "double", "d", "d") if types == "f64" else ("unsigned", "float", "r", "f")
    name = f"m16n8k{16 if '16' in types else 8}.row.col.{sum.replace('float', 'f32').replace('double', 'f64')}"
    name += f".{types}.{types}.{'f64' if types == 'f64' else 'f32'}"
    return f"""
    {(PAIRS if "16" in types else SINGLES).replace("ELEMENT", element)}
    {element} x[4], y[2];
    from_a(x, 0, {16 if "16" in types else 8}, 0);
    from_b(y);
    const {sum}* c = (const {sum}*)in2;
    {sum} d[4] = {{c[8 * g + 2 * t], c[8 * g + 2 * t + 1], c[8 * g + 64 + 2 * t], c[8 * g + 65 + 2 * t]}};
    {MMA % (name, *out * 4, *in_ * 6)}
    for (int at = 0; at < 4; ++at) (({sum}*)out0)[8 * (g + at / 2 * 8) + 2 * t + at % 2] = d[at];
    """


LDMATRIX = """
__shared__ __align__(16) unsigned short tiles[4][8][8];
for (int at = threadIdx.x; at < 256; at += 32) (&tiles[0][0][0])[at] = ((const unsigned short*)in0)[at];
__syncwarp();
unsigned x[4];
const unsigned row = (unsigned)__cvta_generic_to_shared(tiles[threadIdx.x / 8][threadIdx.x % 8]);
asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
             : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
             : "r"(row)
             : "memory");
for (int at = 0; at < 4; ++at) ((unsigned*)out0)[32 * at + threadIdx.x] = x[at];
"""

# Layouts of operands in shared memory, all of 128 bytes of k or of 64 r: where an element lies, leading and stride byte
# offset, the distance of 32 bytes of k or of 16 k, and the swizzle.
LAYOUTS = {
    "k": ("r * 128 + ((k * SIZE / 16) ^ (r % 8)) * 16 + k * SIZE % 16", 16, 1024, 32, 1),
    "r": ("(r / 64 * 8 + k / 8) * 1024 + k % 8 * 128 + ((r % 64 / 8) ^ (k % 8)) * 16 + r % 8 * 2", 8192, 1024, 2048, 1),
    "plain k": ("r / 8 * 1024 + k * SIZE / 16 * 128 + r % 8 * 16 + k * SIZE % 16", 128, 1024, 256, 0),
    "plain r": ("r / 8 * 1024 + k / 8 * 128 + k % 8 * 16 + r % 8 * 2", 128, 1024, 256, 0),
}
WAIT = 'asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(0) : "memory");'


def wgmma(types: str, a: str, b: str, columns: int, *, wait: str = WAIT, after: str = "") -> Plan:
    """Return a plan of two warpgroups, each of which multiplies 64 rows with all columns and adds in2 if n0.

    ``a`` and ``b`` are layouts, or ``a`` is "registers". The first half of the products is one group, the second
    another.
    """
    size = 4 if types == "tf32" else 2
    k = 32 // size
    half = columns // 2
    d = ", ".join(f"%{at}" for at in range(half))
    if a == "registers":
        left = "{" + ", ".join(f"%{half + at}" for at in range(4)) + "}"
        given = ", ".join(f'"r"(x[{at}])' for at in range(4))
    else:
        left, given = f"%{half}", f'"l"(describe(0, 8192 * group, {", ".join(map(str, LAYOUTS[a][1:]))}, step))'
    right = half + given.count("(x[") + ("describe" in given)
    flags = "" if types == "tf32" else "".join(f", {int('r' in one)}" for one in (a, b) if one != "registers")
    bottom = ", ".join(map(str, LAYOUTS[b][1:]))
    body = f"""
    extern __shared__ __align__(1024) char shared[];
    constexpr int SIZE = {size}, WIDTH = 128 / SIZE;
    const int group = threadIdx.x / 128, first = threadIdx.x / 32 * 16;
    const auto put = [&](char* to, const void* from, int at) {{
        if (SIZE == 2) *(unsigned short*)to = ((const unsigned short*)from)[at];
        else *(unsigned*)to = ((const unsigned*)from)[at];
    }};
    for (int at = threadIdx.x; at < 128 * WIDTH; at += 256) {{
        const int r = at / WIDTH % 64, k = at % WIDTH;
        put(shared + at / WIDTH / 64 * 8192 + ({LAYOUTS["k" if a == "registers" else a][0]}), in0, at);
    }}
    for (int at = threadIdx.x; at < {columns} * WIDTH; at += 256) {{
        const int r = at / WIDTH, k = at % WIDTH;
        put(shared + 16384 + ({LAYOUTS[b][0]}), in1, at);
    }}
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const auto describe = [&](int begin, int more, int leading, int stride, int far, int swizzle, int step) {{
        const unsigned start = (unsigned)__cvta_generic_to_shared(shared) + begin + more + step * far;
        return (unsigned long long)((start & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
               (unsigned long long)(stride >> 4) << 32 | (unsigned long long)swizzle << 62;
    }};
    {(PAIRS if size == 2 else SINGLES).replace("ELEMENT", "unsigned")}
    float d[{half}];
    const auto place = [&](int at) {{
        return (first + g + at / 2 % 2 * 8) * {columns} + at / 4 * 8 + 2 * t + at % 2;
    }};
    for (int at = 0; at < {half}; ++at) d[at] = ((const float*)in2)[place(at)];
    unsigned x[4];
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < 4; ++step) {{
        {"from_a(x, first, WIDTH, step * (WIDTH / 4));" if a == "registers" else ""}
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        const int add = step > 0 || n0;
        asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{right + 1}, 0; "
                     "wgmma.mma_async.sync.aligned.m64n{columns}k{k}.f32.{types}.{types} "
                     "{{{d}}}, {left}, %{right}, p, 1, 1{flags}; }}"
                     : {", ".join(f'"+f"(d[{at}])' for at in range(half))}
                     : {given}, "l"(describe(16384, 0, {bottom}, step)), "r"(add)
                     : "memory");
        if (step % 2) asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }}
    {wait}
    for (int at = 0; at < {half}; ++at) ((float*)out0)[place(at)] = d[at];
    {after}
    """
    outputs = (((128, columns), "float32"),)
    shared = 16384 + 128 * columns
    return plan(body, source="", inputs=3, outputs=outputs, integers=(1,), grid=1, block=256, shared_bytes=shared)


def factors(rng, types: str, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return A and B in turn for `wgmma`, as numbers, and what is added."""
    width = 32 if types == "tf32" else 64
    c = rng.standard_normal((128, columns)).astype(np.float32)
    return exact(rng, (128, width)), exact(rng, (columns, width)), c


def in_steps(c: np.ndarray, a: np.ndarray, b: np.ndarray, steps: int) -> np.ndarray:
    """Return c + a b in so many steps of a quarter of k, each truncated."""
    for step in range(steps):
        part = slice(step * a.shape[1] // 4, (step + 1) * a.shape[1] // 4)
        c = truncated(c + a[:, part] @ b[:, part].T)
    return c


@pytest.fixture
def x(rng):
    return rng.integers(1, 9, 320).astype(np.float32)


class TestFinds:
    def test_nothing_in_a_right_kernel(self, x):
        np.testing.assert_array_equal(launch(plan(SUM), x), x.reshape(5, 64).sum(axis=1))

    def test_missing_barrier(self, x):
        with pytest.raises(RuntimeError, match="race: thread"):
            launch(plan(SUM.replace("__syncthreads();", "")), x)

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
        with pytest.raises(RuntimeError, match="wrote outside output 0"):
            launch(plan(f"((float*)out0)[{at}] = 1.0f;"), x)

    @pytest.mark.parametrize("at", [-1, 320])
    def test_read_out_of_bounds(self, x, at):
        body = f"const float y = ((const float*)in0)[{at}]; if (y == 9.5f) ((float*)out0)[0] = y;"
        with pytest.raises(RuntimeError, match="read outside input 0"):
            launch(plan(body), x)

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

    @pytest.mark.parametrize("written", ["out0", "temporary"])
    def test_nothing_to_do(self, x, written):
        """A launch changes memory only if one of the words is not zero that tell whether it has something to do."""
        several = with_body(
            plan("", zeroed_bytes=16, temporary_bytes=16),
            "if (threadIdx.x == 0 && blockIdx.x == 0) ((int*)zeroed)[2] = ((const float*)in0)[0] < 0;",
            f"if (threadIdx.x == 0) ((int*){written})[0] = 1, ((int*)zeroed)[2] = 0;",
        )
        check, work = several.launches
        several = dataclasses.replace(several, launches=(check, dataclasses.replace(work, grid=1, if_any=(0, 2))))
        launch(several, -1 - abs(x))
        with pytest.raises(AssertionError, match="has nothing to do and changed memory"):
            launch(several, abs(x))

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

    def test_misaligned_row_of_a_matrix(self, rng):
        body = LDMATRIX.replace("threadIdx.x % 8]", "threadIdx.x % 8] + 4")
        with pytest.raises(RuntimeError, match="row of a matrix is not aligned"):
            launch(warp(body, 1, (4, 32), "uint32"), rng.integers(0, 9, 256).astype(np.uint16))

    def test_missing_lanes_of_a_warp(self, rng):
        x = exact(rng, (16, 16))
        one = warp("if (threadIdx.x == 5) return;" + mma("f16"), 3, (16, 8), "float32")
        with pytest.raises(RuntimeError, match="misses a lane"):
            launch(one, elements(x, "f16"), elements(x[:, :8], "f16"), x.astype(np.float32))

    def test_products_that_are_not_waited_for(self, rng):
        a, b, c = factors(rng, "f16", 16)
        given = elements(a, "f16"), elements(b, "f16"), c
        expected = in_steps(c, a, b, 4)
        np.testing.assert_array_equal(launch(wgmma("f16", "k", "k", 16), *given), expected)

        with pytest.raises(RuntimeError, match="without waiting for its asynchronous products"):
            launch(wgmma("f16", "k", "k", 16, wait=""), *given)
        early = wgmma("f16", "k", "k", 16, wait=WAIT.replace("(0)", "(1)"), after=WAIT)
        np.testing.assert_array_equal(launch(early, *given), in_steps(c, a, b, 2))
        np.testing.assert_array_equal(launch(wgmma("f16", "k", "k", 16, wait="", after=WAIT), *given), c)

        fence = 'asm volatile("wgmma.fence.sync.aligned;" ::: "memory");'
        one = wgmma("f16", "k", "k", 16)
        with pytest.raises(RuntimeError, match="no fence has shown"):
            launch(with_body(one, body_of(one).replace(fence, "")), *given)

        overwrite = "if (threadIdx.x == 0) for (int at = 0; at < 1024; ++at) shared[%d + at] = 0;"
        for at in (0, 16384):
            one = wgmma("f16", "k", "k", 16, wait=f"__syncthreads(); {overwrite % at} __syncthreads(); {WAIT}")
            assert (launch(one, *given) != expected).any()
            one = wgmma("f16", "k", "k", 16, wait=f"{WAIT} __syncthreads(); {overwrite % at}")
            np.testing.assert_array_equal(launch(one, *given), expected)

    def test_matrix_outside_shared_memory(self, rng):
        a, b, c = factors(rng, "f16", 16)
        one = wgmma("f16", "k", "k", 16)
        one = with_body(one, body_of(one).replace("describe(16384, 0,", "describe(16384 + 128 * 16, 0,"))
        with pytest.raises(RuntimeError, match="lies outside shared memory"):
            launch(one, elements(a, "f16"), elements(b, "f16"), c)

    def test_impossible_launch(self, x):
        with pytest.raises(AssertionError, match="impossible block"):
            launch(plan(SUM, block=2048), x)

    def test_unknown_ptx(self, x):
        with pytest.raises(KeyError, match=r"bar\.warp\.sync"):
            launch(plan('asm volatile("bar.warp.sync 1;");'), x)


def test_mutations_fit():
    """What they change stands in the kernels once."""
    assert misfits() == []


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

    @pytest.mark.parametrize("size", [4, 8, 16])
    def test_copies_filled_with_zeros(self, rng, size):
        x = rng.integers(1, 256, 32 * size).astype(np.uint8)
        name, given = ("ca", f'"n"({size}), ') if size < 16 else ("cg", "")
        operands = "%2, %3" if size < 16 else "16, %2"
        body = f"""
        constexpr int SIZE = {size};
        __shared__ __align__(16) char shared[32 * SIZE];
        const unsigned to = (unsigned)__cvta_generic_to_shared(shared + threadIdx.x * SIZE);
        const int bytes = threadIdx.x % (SIZE + 1);
        const void* from = bytes ? (const char*)in0 + threadIdx.x * SIZE : (const char*)1;
        asm volatile("cp.async.{name}.shared.global [%0], [%1], {operands};"
                     ::"r"(to), "l"(from), {given}"r"(bytes) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group %0;" ::"n"(0) : "memory");
        __syncwarp();
        for (int at = threadIdx.x; at < 32 * SIZE; at += 32) ((char*)out0)[at] = shared[at];
        """
        got = launch(warp(body, 1, (32, size), "uint8"), x)
        kept = np.arange(size) < (np.arange(32) % (size + 1))[:, None]
        np.testing.assert_array_equal(got, np.where(kept, x.reshape(32, size), 0))

    @pytest.mark.parametrize("ties_to", ["rna", "rn"])
    def test_rounding_to_tf32(self, rng, ties_to):
        words = rng.integers(0, 1 << 32, 1 << 14).astype(np.uint32)
        ties = words & ~np.uint32(0x1FFF) | np.uint32(0x1000)
        special = np.uint32(
            [0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC00000, 0x7F7FFFFF, 0xFF7FEFFF, 0x1000, 1]
        )
        x = np.concatenate([words, ties, ties - np.uint32(1), special]).view(np.float32)
        body = """
        for (int at = threadIdx.x; at < n0; at += 32)
            asm("cvt.{ties_to}.tf32.f32 %0, %1;" : "=r"(((unsigned*)out0)[at]) : "f"(((const float*)in0)[at]));
        """.replace("{ties_to}", ties_to)
        got = launch(warp(body, 1, (x.size,), "float32", integers=(x.size,)), x)
        exponent = np.maximum(np.frexp(x.astype(np.float64))[1] - 11, -136)  # of the last place kept
        last = np.ldexp(1.0, np.where(np.isfinite(x), exponent, 0))
        parts = np.abs(x.astype(np.float64)) / last
        whole = np.rint(parts) if ties_to == "rn" else np.floor(parts + 0.5)
        expected = (np.copysign(whole, x) * last).astype(np.float32)
        np.testing.assert_array_equal(got, expected)
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(x[numbers]))

    @pytest.mark.parametrize("transposed", [False, True])
    def test_matrices_from_shared_memory(self, rng, transposed):
        x = rng.integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
        body = LDMATRIX.replace(".x4.", ".x4.trans.") if transposed else LDMATRIX
        got = launch(warp(body, 1, (4, 32), "uint32"), x)
        rows = (x.transpose(0, 2, 1) if transposed else x).reshape(4, 32, 2).astype(np.uint32)
        np.testing.assert_array_equal(got, rows[..., 0] | rows[..., 1] << 16)

    @pytest.mark.parametrize("types", ["f16", "bf16", "tf32"])
    def test_products_of_a_warp(self, rng, types):
        one = warp(mma(types), 3, (16, 8), "float32")
        k = 8 if types == "tf32" else 16
        a, b, c = exact(rng, (16, k)), exact(rng, (k, 8)), rng.standard_normal((16, 8)).astype(np.float32)
        got = launch(one, elements(a, types), elements(b, types), c)
        np.testing.assert_array_equal(got, truncated(c + a @ b))

        a[0, 0], a[1, 1], b[2, 2] = np.inf, np.nan, -np.inf
        c[5, 5], c[6] = np.inf, np.finfo(np.float32).max
        got = launch(one, elements(a, types), elements(b, types), c)
        np.testing.assert_array_equal(got, truncated(c + a @ b))

    def test_products_of_doubles(self, rng):
        a, b, c = exact(rng, (16, 8)), exact(rng, (8, 8)), exact(rng, (16, 8))
        np.testing.assert_array_equal(launch(warp(mma("f64"), 3, (16, 8), "float64"), a, b, c), c + a @ b)

        body = """
        const int g = threadIdx.x / 4, t = threadIdx.x % 4;
        double d[2] = {((const double*)in2)[8 * g + 2 * t], ((const double*)in2)[8 * g + 2 * t + 1]};
        asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                     : "+d"(d[0]), "+d"(d[1])
                     : "d"(((const double*)in0)[4 * g + t]), "d"(((const double*)in1)[8 * t + g]));
        ((double*)out0)[8 * g + 2 * t] = d[0];
        ((double*)out0)[8 * g + 2 * t + 1] = d[1];
        """
        a, b, c = exact(rng, (8, 4)), exact(rng, (4, 8)), exact(rng, (8, 8))
        np.testing.assert_array_equal(launch(warp(body, 3, (8, 8), "float64"), a, b, c), c + a @ b)

    @pytest.mark.parametrize(
        ("types", "a", "b", "columns"),
        [
            ("f16", "k", "k", 64),
            ("bf16", "r", "r", 128),
            ("f16", "k", "r", 192),
            ("bf16", "r", "k", 8),
            ("f16", "registers", "r", 128),
            ("bf16", "registers", "k", 256),
            ("tf32", "k", "k", 128),
            ("tf32", "registers", "k", 32),
            ("f16", "plain k", "plain r", 64),
            ("bf16", "plain r", "plain k", 24),
        ],
    )
    def test_products_of_a_warpgroup(self, rng, types, a, b, columns):
        one = wgmma(types, a, b, columns)
        left, right, c = factors(rng, types, columns)
        for add in (0, 1):
            got = launch(with_integer(one, add), elements(left, types), elements(right, types), c)
            np.testing.assert_array_equal(got, in_steps(c * np.float32(add), left, right, 4))

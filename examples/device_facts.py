"""Facts of the device, the addition of two vectors, and the error of an impossible launch.

The source printed a GPU's limits, added two vectors in a kernel, and checked for an error after every launch: one with
more threads than a block may have does nothing, and a program that does not check reads zeros. Here such a launch must
raise, and so must impossible calls of parprims: a method that cannot compute, a tile of width 0. It gave no times.
"""

import importlib.util
import os
import platform
import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=1000, cpu=10_000_000, cuda=2**26)
ADD = r"""
extern "C" __global__ void add(const float* x, const float* y, float* sum, long long n) {
    const long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) sum[at] = x[at] + y[at];
}
"""


def facts(run: common.Run) -> dict[str, object]:
    """Return the facts of the device and the library."""
    info = run.xp.__array_namespace_info__()
    found = {"library": f"{run.library.__name__} {run.library.__version__}", "default dtypes": info.default_dtypes()}
    if not run.cuda:
        return {**found, "machine": platform.machine(), "processors": os.cpu_count()}
    if importlib.util.find_spec("cupy"):
        import cupy

        limits = cupy.cuda.Device().attributes
        names = ("MaxThreadsPerBlock", "MaxBlocksPerMultiprocessor", "MultiProcessorCount", "MaxSharedMemoryPerBlock")
        found["compute capability"] = cupy.cuda.Device().compute_capability
        return {**found, **{name: limits.get(name, "unknown") for name in names}}
    return found


def launches(run: common.Run, n: int, x: np.ndarray, y: np.ndarray) -> None:
    """Add in a kernel of our own, and ask for more threads than a block may have."""
    import cupy

    add = cupy.RawKernel(ADD, "add", options=("-std=c++17",))
    a, b = cupy.asarray(x), cupy.asarray(y)
    result = cupy.zeros_like(a)
    most = cupy.cuda.Device().attributes["MaxThreadsPerBlock"]
    with common.raises(run, f"B1 launch of {2 * most} threads per block", cupy.cuda.driver.CUDADriverError):
        add((1,), (2 * most,), (a, b, result, n))
    run.report("B1 sum after it", "zeros, and the error is known", float(abs(result).max()), 0)
    add((-(-n // 256),), (256,), (a, b, result, n))
    difference = np.max(abs(cupy.asnumpy(result) - (x + y)))
    run.report("B1 vector addition in a kernel", f"{n} sums", difference, 0)


def example(run: common.Run) -> None:
    for name, fact in facts(run).items():
        print(f"{name}: {fact}")
    n = run.size
    rng = np.random.default_rng(1)
    x, y = rng.random(n, np.float32), rng.random(n, np.float32)
    a, b = run.asarray(x), run.asarray(y)
    add = run.compile(lambda a, b: a + b)
    (seconds,) = run.times(lambda: add(a, b))
    rate = 12 * n / seconds / 1e9
    # One rounding by IEEE 754's rule, which leaves no choice: the sums are equal.
    difference = np.max(abs(run.to_numpy(add(a, b)) - (x + y)))
    run.report("B1 vector addition", f"{n} sums, {rate:.0f} GB/s", difference, 0, seconds=seconds)

    if run.cuda and importlib.util.find_spec("cupy"):
        launches(run, n, x, y)
    with common.raises(run, "B1 method that does not serve", parprims.MethodRefused):
        parprims.matmul(a[None, :1], b[:1, None], add="minimum", multiply="add", method="native")
    with common.raises(run, "B1 tile of no width", ValueError):
        parprims.matmul(a[None, :1], b[:1, None], tile=0)
    with common.raises(run, "B1 axis that is not there", IndexError):
        parprims.sum(a, axis=1)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

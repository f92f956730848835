"""A matrix product by 1, 2, 4 and 8 workers: each takes a band of A's rows, or a band of A's columns and B's rows.

Rows: every worker has its own rows of the result, and nothing is added. Columns: every worker has a whole partial
product, and these are added. In the source that sum dominated (4395, 3099, 3961 and 6059 ms with 1, 2, 4 and 8
workers, against 1574.8, 1638.7, 1335.4 and 1189.7 ms by rows and 581 ms by the vendor, for 8192). Here the sum is
one map_reduce over the partial products, along no axis, which reads every number once: from 512 on it must take
less than half of the time. Workers are threads, devices with JAX (several on a CPU with
XLA_FLAGS=--xla_force_host_platform_device_count=8), or CUDA streams. The matrices hold small integers, so the
difference must be 0.
"""

import concurrent.futures
import functools
import itertools
import operator
import sys
import time

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=64, cpu=1024, cuda=8192)
ROWS = {1: "1574.8 ms", 2: "1638.7 ms", 4: "1335.4 ms", 8: "1189.7 ms"}
COLUMNS = {1: "4395 ms", 2: "3099 ms", 4: "3961 ms", 8: "6059 ms"}


def add(*parts):
    """Return the sum of arrays."""
    return functools.reduce(operator.add, parts)


class Workers:
    """Multiplies pairs of matrices, each pair by a worker of its own."""

    def __init__(self, run: common.Run, count: int) -> None:
        self.run, self.threads = run, concurrent.futures.ThreadPoolExecutor(count)
        if run.backend == "jax":
            devices = run.library.devices("gpu" if run.cuda else "cpu")
            self.devices = [devices[at % len(devices)] for at in range(count)]
        elif run.cuda:
            self.streams = [run.library.cuda.Stream() for _ in range(count)]

    def place(self, bands: list) -> list:
        """Return the bands where their workers are."""
        if self.run.backend != "jax":
            return bands
        return [self.run.library.device_put(band, device) for band, device in zip(bands, self.devices, strict=True)]

    def multiply(self, lefts: list, rights: list) -> list:
        """Return the products, computed."""
        if self.run.cuda and self.run.backend != "jax":
            products = []
            for stream, left, right in zip(self.streams, lefts, rights, strict=True):
                with stream if self.run.backend == "cupy" else self.run.library.cuda.stream(stream):
                    products.append(parprims.matmul(left, right))
        elif self.run.backend == "jax":  # the call returns before it has computed
            products = list(map(parprims.matmul, lefts, rights))
        else:
            products = list(self.threads.map(parprims.matmul, lefts, rights))
        self.run.wait(products)
        return products

    def timed(self, lefts: list, rights: list, join) -> tuple:
        """Return the products joined in one place, and the median seconds of multiplying and of joining."""
        rounds = []
        for _ in range(4):
            began = time.perf_counter()
            products = self.multiply(lefts, rights)
            multiplied = time.perf_counter()
            result = join([self.run.asarray(one) for one in products] if self.run.backend == "jax" else products)
            self.run.wait(result)
            rounds.append((multiplied - began, time.perf_counter() - multiplied))
        return result, np.median(rounds[1:], axis=0)  # the first is a warm-up


def example(run: common.Run) -> None:
    n, xp = run.size, run.xp
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-9, 10, (n, n)).astype(np.float32) for _ in range(2))
    expected = a.astype(np.float64) @ b
    a, b = run.asarray(a), run.asarray(b)
    total = run.compile(lambda *parts: parprims.map_reduce(add, *parts, axis=()))
    whole = run.times(lambda: parprims.matmul(a, b))[0]

    for count in (1, 2, 4, 8):
        workers = Workers(run, count)
        ends = [n * at // count for at in range(count + 1)]
        bands = [slice(*pair) for pair in itertools.pairwise(ends)]
        forms = {
            "D2 {} x {}, bands of rows: {}": (
                ([a[band] for band in bands], [b] * count),
                xp.concat,
                ROWS,
            ),
            "D3 {} x {}, bands of columns: {}": (
                ([a[:, band] for band in bands], [b[band] for band in bands]),
                lambda products: total(*products),
                COLUMNS,
            ),
        }
        for row, (factors, join, times) in forms.items():
            lefts, rights = map(workers.place, factors)
            result, (multiplied, joined) = workers.timed(lefts, rights, join)
            row = row.format(n, n, count)
            options = {"seconds": multiplied + joined, "reported": times[count] if n == 8192 else "", "vendor": whole}
            corner = f"corner {float(result[-1, -1]):.0f}"
            run.report(row, corner, common.distance(run.to_numpy(result), expected), 0, **options)
            share = joined / (multiplied + joined)
            if join is not xp.concat:
                run.report(f"{row}, share of the sum", f"{share:.0%}", share, 0.5 if n >= 512 else 1)
        workers.threads.shutdown()


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

"""Tree reduction: the sum of integers 0 to 9 as float32, by a warp, a block, any length, many blocks.

A tree adds neighbours, then pairs of neighbours: log2 n steps. One call replaces the source's four forms; on a GPU
the kernel takes a few threads, a block or many blocks for a row by its length, and shuffles within a warp. All sums
stay below 2^24, where float32 holds every integer, so the difference must be 0. The source took 260817 numbers and
gave no times.
"""

import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=2000, cpu=260_817, cuda=260_817)


def example(run: common.Run) -> None:
    if run.size > 1_800_000:
        raise SystemExit(f"--size must be at most 1800000, or float32 may not hold the sum; got {run.size}")
    digits = np.random.default_rng(5).integers(0, 10, run.size)
    forms = {"one warp": 32, "one block": 512, "any length": 1000, "many blocks": run.size}
    for form, n in forms.items():
        n = min(n, run.size)

        def check(result, _, n=n):
            return f"{float(result):.0f}", abs(float(result) - int(digits[:n].sum())), 0

        run.compare(f"B5 {form}, {n}", parprims.sum, (run.asarray(digits[:n].astype(np.float32)),), check)

    # The tree keeps the order of its operands, so an operator need not commute: the last digit that is not 0.
    last = parprims.Operator(lambda earlier, later: later + earlier * (later == 0), identity=0)
    found = parprims.reduce(run.asarray(digits), last)
    run.report("B5 last nonzero", str(int(found)), abs(int(found) - int(digits[digits != 0][-1])), 0)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

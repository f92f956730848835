"""Radix sort, the least significant digit first, with positions from a scan: a warp's keys, a block's, many blocks'.

The source sorted within a warp by ballots and within a block bit by bit, and left many blocks unfinished; it gave no
times. Here they are one call. Sorting keys, finding the indices, and moving values with their keys must equal NumPy's
stable sort exactly, equal keys in their order included; NaN goes last whatever its sign, and -0 equals +0.
"""

import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=3000, cpu=300_000, cuda=2**26)


def example(run: common.Run) -> None:
    rng = np.random.default_rng(11)
    for form, n in {"one warp": 32, "one block": 1024, "many blocks": run.size}.items():
        keys = rng.integers(-(2**31), 2**31, n, dtype=np.int32)

        def check(result, _, keys=keys):
            return f"least {int(result[0])}", np.count_nonzero(run.to_numpy(result) != np.sort(keys)), 0

        run.compare(f"B11 {form}, {n} keys", parprims.sort, (run.asarray(keys),), check)

    few = rng.integers(0, 100, run.size, dtype=np.int32)  # so that most keys are equal and order among them shows
    order = np.argsort(few, kind="stable")

    def check_indices(result, _):
        return f"first {int(result[0])}", np.count_nonzero(run.to_numpy(result) != order), 0

    run.compare(f"B11 indices, {run.size}", parprims.argsort, (run.asarray(few),), check_indices)

    def check_pairs(result, _):
        keys, values = map(run.to_numpy, result)
        wrong = np.count_nonzero(keys != few[order]) + np.count_nonzero(values != order)
        return f"{len(keys)} pairs", wrong, 0

    pairs = (run.asarray(few), run.asarray(np.arange(run.size)))
    run.compare(f"B11 keys and values, {run.size}", parprims.sort_by_key, pairs, check_pairs)

    special = np.array([0.0, np.nan, -np.inf, -0.0, -1.5, -np.nan, np.inf, 2.5], np.float32)
    found = run.to_numpy(parprims.argsort(run.asarray(special)))
    wrong = np.count_nonzero(found != [2, 4, 0, 3, 7, 6, 1, 5])
    run.report("B11 order of NaN, infinities and zeros", str(special[found]), wrong, 0)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

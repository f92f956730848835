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


def by_numpy(keys: np.ndarray) -> np.ndarray:
    """Return the keys sorted: pieces on all cores, then a stable sort, which merges sorted pieces."""
    pieces = np.array_split(keys, 16)
    return np.sort(np.concatenate(list(common.cores().map(np.sort, pieces))), kind="stable")


def wrong(found: np.ndarray, expected: np.ndarray) -> int:
    """Return how many elements differ."""
    return sum(common.by_pieces(lambda one, other: np.count_nonzero(one != other), found, expected))


def example(run: common.Run) -> None:
    rng = np.random.default_rng(11)
    for form, n in {"one warp": 32, "one block": 1024, "many blocks": run.size}.items():
        keys = rng.integers(-(2**31), 2**31, n, dtype=np.int32)
        expected = by_numpy(keys)

        def check(result, _, expected=expected):
            return f"least {int(result[0])}", wrong(run.to_numpy(result), expected), 0

        skip = () if form == "one warp" else run.shown_already
        run.compare(f"B11 {form}, {n} keys", parprims.sort, (run.asarray(keys),), check, skip=skip)

    few = rng.integers(0, 100, run.size, dtype=np.uint8)  # so that most keys are equal and order among them shows
    order = np.argsort(few, kind="stable")
    few = few.astype(np.int32)
    ascending = few[order]

    def check_indices(result, _):
        return f"first {int(result[0])}", wrong(run.to_numpy(result), order), 0

    row = f"B11 indices, {run.size}"
    run.compare(row, parprims.argsort, (run.asarray(few),), check_indices, skip=run.shown_already)

    def check_pairs(result, _):
        keys, values = map(run.to_numpy, result)
        return f"{len(keys)} pairs", wrong(keys, ascending) + wrong(values, order), 0

    pairs = (run.asarray(few), run.asarray(np.arange(run.size)))
    row = f"B11 keys and values, {run.size}"
    run.compare(row, parprims.sort_by_key, pairs, check_pairs, skip=run.shown_already)

    special = np.array([0.0, np.nan, -np.inf, -0.0, -1.5, -np.nan, np.inf, 2.5], np.float32)
    found = run.to_numpy(parprims.argsort(run.asarray(special)))
    count = wrong(found, np.array([2, 4, 0, 3, 7, 6, 1, 5]))
    run.report("B11 order of NaN, infinities and zeros", str(special[found]), count, 0)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

"""A state-space model with the same bits in training and in a rollout: in a batch, alone, in chunks, from a cache.

Training computes the states h[t] = a[t] h[t-1] + b[t] of whole sequences, in a batch. A rollout computes one sequence,
in chunks, and keeps a single state between them; a server computes a common prefix once, and goes on from its state for
every user. If the bits differ, a probability is not the one that the model was trained with, and an importance ratio of
1 is not 1. With ``method="canonical"`` the place of an element in its sequence alone decides how it is combined. So all
of these calls have the same bits, if chunks end at multiples of `parprims.CANONICAL_BLOCK`.

The rows count the numbers that differ in a bit, which must be none. The first row holds the states against a loop in
float64: every step errs by two roundings of its result at most, and its error decays as the state does; four times that
is allowed. (Blelloch, Prefix sums and their applications, 1990, for recurrences as scans.)
"""

import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=2, cpu=16, cuda=256)
CHUNKS, SEQUENCES = 3, 4


def states(a, b, start=None):
    """Return the states of every sequence: arrays of shape (sequences, time), from a state for each of them."""
    return parprims.linear_recurrence(a, b, initial=start, method="canonical")


def different(run: common.Run, one, other) -> int:
    """Return how many numbers of two arrays of float32 differ in a bit."""
    one, other = (np.ascontiguousarray(run.to_numpy(x)).view(np.uint32) for x in (one, other))
    return int(np.count_nonzero(one != other))


def by_loop(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the states in float64, and the bound of their errors in float32."""
    state = size = error = np.zeros(len(a))
    states, errors = np.empty(a.shape), np.empty(a.shape)
    for t in range(a.shape[1]):
        state, size = a[:, t] * state + b[:, t], a[:, t] * size + abs(b[:, t])
        error = a[:, t] * error + 2 * 2.0**-24 * size
        states[:, t], errors[:, t] = state, 4 * error
    return states, errors


def example(run: common.Run) -> None:
    block = parprims.CANONICAL_BLOCK
    sequences, n = SEQUENCES * run.size // 2, CHUNKS * block + 1000
    rng = np.random.default_rng(17)
    decay = rng.uniform(0.5, 0.999, (sequences, n)).astype(np.float32)
    drive = rng.standard_normal((sequences, n)).astype(np.float32)
    a, b = run.asarray(decay), run.asarray(drive)

    with parprims.explain() as calls:
        trained = states(a, b)
    expected, allowed = by_loop(decay[:2].astype(float), drive[:2].astype(float))
    worst = np.max(abs(run.to_numpy(trained)[:2] - expected) / allowed)
    run.report(f"training, {sequences} x {n}, {calls[0].method}", "states against a loop", worst, 1)

    alone = states(a[1:2, :], b[1:2, :])
    run.report("a sequence alone", "numbers that differ", different(run, alone, trained[1:2, :]), 0)

    state, count = None, 0
    for first in range(0, n, block):
        chunk = states(a[:, first : first + block], b[:, first : first + block], state)
        count += different(run, chunk, trained[:, first : first + block])
        state = chunk[:, -1]
    run.report(f"a rollout in chunks of {block}", "numbers that differ", count, 0)

    cached, count = trained[0:1, block - 1], 0
    for user in range(sequences):  # the first sequence's prefix, and each user's own continuation
        rest = states(a[user : user + 1, block:], b[user : user + 1, block:], cached)
        joined = (run.xp.concat([x[0:1, :block], x[user : user + 1, block:]], axis=1) for x in (a, b))
        count += different(run, rest, states(*joined)[:, block:])
    run.report(f"{sequences} continuations of one prefix", "numbers that differ", count, 0)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

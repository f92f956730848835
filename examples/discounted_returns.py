"""Generalised advantage estimation over episodes of uneven length, in one call and without padding.

The advantage is A[t] = delta[t] + gamma lambda A[t+1] with delta[t] = r[t] + gamma V[t+1] - V[t], without the steps
after the last step of an episode. That is a linear recurrence from the end, with a coefficient of 0 where an episode
ends, or a segmented scan of affine maps that starts anew at every end. Users write a loop over time for it, or pad
all episodes to one length.

A coefficient 0 cuts off, exactly, all that comes after, so a term passes through one episode at most: twice its length
in roundings of a unit in the last place each, of the recurrence with |delta| for delta. The loop errs by as much again.
(Schulman, Moritz, Levine, Jordan and Abbeel, High-Dimensional Continuous Control Using Generalized Advantage
Estimation, ICLR 2016.)
"""

import sys
import time

import common
import numpy as np
from array_api_compat import array_namespace

import parprims

SIZES = common.Sizes(small=2000, cpu=300_000, cuda=10_000_000)
GAMMA, LAMBDA = 0.99, 0.95


def by_loop(decay: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Return the advantages, found from the last to the first, by Python's floats: an array's elements cost more."""
    advantage, following = [], 0.0
    for factor, term in zip(reversed(decay.tolist()), reversed(delta.tolist()), strict=True):
        following = term + factor * following
        advantage.append(following)
    return np.array(advantage[::-1])


def temporal_differences(reward, value, done):
    """Return delta; ``value`` has one element more than there are steps."""
    return reward + GAMMA * value[1:] * array_namespace(done).astype(~done, reward.dtype) - value[:-1]


def by_recurrence(reward, value, done, /, *, method: str = "auto"):
    """Return the advantages by a linear recurrence from the end."""
    decay = GAMMA * LAMBDA * array_namespace(done).astype(~done, reward.dtype)
    delta = temporal_differences(reward, value, done)
    return parprims.linear_recurrence(decay, delta, reverse=True, method=method)


def by_segments(reward, value, done, /, *, method: str = "auto"):
    """Return the advantages by a scan of affine maps from the end, segmented at the ends of episodes."""
    delta = temporal_differences(reward, value, done)
    decay = array_namespace(done).full_like(delta, GAMMA * LAMBDA)
    return parprims.scan((done, decay, delta), parprims.segmented("affine"), reverse=True, method=method)[2]


def example(run: common.Run) -> None:
    rng = np.random.default_rng(13)
    n = run.size
    reward, value = rng.standard_normal(n), rng.standard_normal(n + 1)
    done = np.zeros(n, bool)
    lengths = rng.geometric(1 / 50, n // 20 + 1)
    ends = np.cumsum(lengths)
    done[ends[ends <= n] - 1] = True
    longest = np.max(np.diff(np.flatnonzero(np.concatenate([[True], done, [True]]))))

    decay, delta = GAMMA * LAMBDA * ~done, temporal_differences(reward, value, done)
    began = time.perf_counter()
    expected = by_loop(decay, delta)
    looped = time.perf_counter() - began
    allowed = 4 * longest * 2.0**-52 * by_loop(decay, abs(reward) + GAMMA * abs(value[1:]) + abs(value[:-1]))

    def check(result, _):
        # Relative to the bound of each element, so that 1 is allowed.
        errors = common.by_pieces(
            lambda one, other, bound: np.max(abs(one - other) / bound), run.to_numpy(result), expected, allowed
        )
        return f"{done.sum()} episodes", np.max(errors), 1

    arrays = tuple(map(run.asarray, (reward, value, done)))
    for name, call in {"recurrence": by_recurrence, "segmented scan": by_segments}.items():
        run.compare(f"advantages, {n} steps, {name}", call, arrays, check)
    print(f"the loop in Python took {looped * 1e3:.4g} ms")


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

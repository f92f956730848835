"""Monte Carlo: the price of a digital option on a basket of two assets, from normals read or drawn inside.

An asset follows s *= 1 + r dt + sigma sqrt(dt) y over 100 steps, so its path is a product along an axis, and all paths
are one map_reduce: the factors are computed from the normals as they are read. The option pays exp(-r T) if both
assets end within 0.1 of 1. The normals are stored with the steps first, where neighbouring threads read neighbours,
or with the paths first, which made the source's kernel slow; here threads share a row's steps. Or they are drawn
where they are needed, by a counter of path and step: nothing is read, and a seed gives the same numbers however
the paths are cut into pieces.

The source found 0.41793859 with a standard error of 0.00015237 from 9600000 paths, in 17.6 ms, 47.7 ms with the slow
layout and 78.7 ms drawn inside. An answer passes within 3 standard errors, of both together.
"""

import functools
import math
import sys
import time

import common
import numpy as np
import philox

import parprims

SIZES = common.Sizes(small=2000, cpu=100_000, cuda=9_600_000)
SOURCE = {"steps first": "17.6 ms", "paths first": "47.7 ms", "drawn inside": "78.7 ms"}
ANSWER, STANDARD_ERROR = 0.41793859, 0.00015237
STEPS, R, SIGMA, RHO, SEED = 100, 0.05, 0.1, 0.5, 2026
ALPHA, PAYOFF = math.sqrt(1 - RHO**2), math.exp(-R)
DRIFT, SPREAD = 1 + R / STEPS, math.sqrt(1 / STEPS) * SIGMA

pair = parprims.Operator(lambda s, t: (s[0] * t[0], s[1] * t[1]), identity=(1, 1), commutative=True, components=2)


def factors(z1, z2) -> tuple:
    """Return the factors of the two assets in a step."""
    return DRIFT + SPREAD * z1, DRIFT + SPREAD * (RHO * z1 + ALPHA * z2)


def drawn(path, two_steps) -> tuple:
    """Return the factors of the assets in two steps of a path: a counter gives four normals."""
    z = philox.normals(SEED, path, two_steps)
    return pair(factors(z[0], z[1]), factors(z[2], z[3]))


def pays(s1, s2):
    """Return whether each path ends where the option pays."""
    return (abs(s1 - 1) < 0.1) & (abs(s2 - 1) < 0.1)


def ends(form: str, x, y) -> tuple:
    """Return where the assets end."""
    if form == "drawn inside":
        return parprims.map_reduce(drawn, x[None, :], y[:, None], op=pair, axis=0)
    return parprims.map_reduce(factors, x, y, op=pair, axis=0 if form == "steps first" else 1)


def count(xp, form: str, x, y):
    """Return how many paths pay."""
    return parprims.map_reduce(pays, *ends(form, x, y), op="add", dtype=xp.int64)


def sum_of_words(path, two_steps):
    """Return the sum of a random word of every path and step, exact in whatever order it is formed."""
    draw = lambda path, step: philox.words((path, path * 0, step, step * 0), (SEED, 0))[0]  # noqa: E731
    return parprims.map_reduce(draw, path[None, :], two_steps[:, None])


def example(run: common.Run) -> None:
    xp = run.xp
    two_steps = run.asarray(np.arange(STEPS // 2))
    chunk = min(run.size, 2**20 if run.cuda else 2**13)
    chunks = [(start, min(start + chunk, run.size)) for start in range(0, run.size, chunk)]

    def inputs(form, start, stop):
        if form == "drawn inside":
            return run.asarray(np.arange(start, stop)), two_steps
        z = run.normals(SEED + start, (2, STEPS, stop - start))
        if form == "paths first":  # z1 and z2 of a step side by side, a path's steps after each other
            # To reshape puts the numbers into this order, while permute_dims alone may leave them where they are.
            z = xp.reshape(xp.reshape(xp.permute_dims(z, (2, 1, 0)), (-1,)), (-1, STEPS, 2))
            return z[..., 0], z[..., 1]
        return z[0], z[1]

    for form, reported in SOURCE.items():
        call = run.compile(functools.partial(count, xp, form))
        paid, seconds = 0, 0.0
        for start, stop in run.progress(form, chunks, len(chunks)):
            x, y = inputs(form, start, stop)
            if start == 0 or stop - start != chunk:
                call(x, y)  # compiles
            run.wait((x, y))
            began = time.perf_counter()
            paid += int(call(x, y))
            seconds += time.perf_counter() - began
        share = paid / run.size
        mean, error = PAYOFF * share, PAYOFF * math.sqrt(share * (1 - share) / run.size)
        text = f"{mean:.6f}, standard error {error:.6f}"
        allowed = 3 * math.hypot(error, STANDARD_ERROR)
        options = {"seconds": seconds, "reported": reported if run.size == 9_600_000 else ""}
        run.report(f"B2 {form}, {run.size} paths", text, abs(mean - ANSWER), allowed, **options)

    few = min(run.size, 3000)
    pieces = [slice(at, at + 700) for at in range(0, few, 700)]
    path = run.asarray(np.arange(few))
    ended = [run.to_numpy(one) for one in ends("drawn inside", path, two_steps)]
    parts = [[run.to_numpy(one) for one in ends("drawn inside", path[piece], two_steps)] for piece in pieces]
    parts = [np.concatenate(one) for one in zip(*parts, strict=True)]
    # The same numbers, multiplied in another order: 100 roundings by half of 2^-23 in each of the two.
    difference = max(np.max(abs(one - other) / one) for one, other in zip(ended, parts, strict=True))
    run.report(f"B2 {few} paths at once and 700 at a time", f"first {ended[0][0]:.6f}", difference, 200 * 2.0**-24)
    whole = int(sum_of_words(path, two_steps))
    difference = abs(whole - sum(int(sum_of_words(path[piece], two_steps)) for piece in pieces))
    run.report(f"B2 random words of {few} paths at once and 700 at a time", f"sum {whole}", difference, 0)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

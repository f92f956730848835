"""Linear recurrence v[n] = s[n] v[n-1] + u[n], growing and shrinking, parallel in n.

It is a scan: the pair (s, u) is the map v -> s v + u, and applying one map after another is associative. Steps of
doubling need log2 n of them: s'[n] = s[n] s[n-k], u'[n] = s[n] u[n-k] + u[n] for k = 1, 2, 4, ... The source tested
100 values with s and u uniform in [0, 2) and gave no times; here are also one that grows and one that shrinks.

Every number is positive, so nothing cancels: each of the at most 2n roundings of a term is a relative error of at
most one unit in the last place, 2^-52. The reference loop runs in extended precision where NumPy has it.
"""

import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=3000, cpu=1_000_000, cuda=5_000_000)


def by_loop(s: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Return v by the definition."""
    v, last = np.empty(len(u), np.longdouble), np.longdouble(0)
    for n, (factor, term) in enumerate(zip(s.astype(np.longdouble), u.astype(np.longdouble), strict=True)):
        last = v[n] = factor * last + term
    return v


def example(run: common.Run) -> None:
    rng = np.random.default_rng(10)
    growing = min(run.size, 1000)
    problems = {
        "the source's": (rng.uniform(0, 2, 100), rng.uniform(0, 2, 100)),
        "growing": (rng.uniform(1, 1.5, growing), rng.uniform(0, 2, growing)),
        "shrinking": (rng.uniform(0.5, 1, run.size), rng.uniform(0, 2, run.size)),
    }
    for name, (s, u) in problems.items():
        expected = by_loop(s, u)

        def check(result, _, expected=expected):
            v = run.to_numpy(result)
            errors = common.by_pieces(lambda one, other: np.max(abs(one - other) / other), v, expected)
            bound = 2 * len(v) * (2.0**-52 + float(np.finfo(np.longdouble).eps))
            return f"last {v[-1]:.6g}", np.max(errors), bound

        arrays, skip = (run.asarray(s), run.asarray(u)), run.shown_already if name == "growing" else ()
        run.compare(f"B10 {name}, {len(s)}", parprims.linear_recurrence, arrays, check, skip=skip)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

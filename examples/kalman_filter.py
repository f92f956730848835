"""Kalman filtering, parallel in time: a scan whose elements are small matrices.

A point moves along a line with random accelerations; its position is measured with noise. The filter is a recurrence
over time, but its steps are associative too. An element (A, b, C, eta, J) has two parts: given an earlier state x, the
state is normal with mean A x + b and covariance C; eta and J give the likelihood of x under the measurements in
between. Elements of two states have 14 distinct numbers; the operator below is written once, over arrays, and on a GPU
it becomes part of the kernel. (Sarkka and Garcia-Fernandez, Temporal Parallelization of Bayesian Smoothers, IEEE Trans.
Automatic Control 66(1), 2021.)

The sequential filter runs in extended precision where NumPy has it. An entry passes through at most 4 log2 n
combinations of at most 100 roundings each, and a combination enlarges an error by the inverse of I + C J, no more than
(1 + |C| |J|)^2. C is largest in the filter itself, J over the longest stretch of time.
"""

import math
import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=20, cpu=500, cuda=200_000)
STEP, JERK, NOISE = 0.1, 0.5, 0.3
F = np.array([[1, STEP], [0, 1]])
Q = JERK * np.array([[STEP**3 / 3, STEP**2 / 2], [STEP**2 / 2, STEP]])
R = NOISE**2


# 2 x 2 matrices as tuples (m11, m12, m21, m22) of arrays, symmetric ones as (m11, m12, m22), vectors as (v1, v2).
def product(m, n):
    return m[0] * n[0] + m[1] * n[2], m[0] * n[1] + m[1] * n[3], m[2] * n[0] + m[3] * n[2], m[2] * n[1] + m[3] * n[3]


def transposed(m):
    return m[0], m[2], m[1], m[3]


def full(s):
    return s[0], s[1], s[1], s[2]


def half(m):
    return m[0], 0.5 * (m[1] + m[2]), m[3]


def applied(m, v):
    return m[0] * v[0] + m[1] * v[1], m[2] * v[0] + m[3] * v[1]


def plus(u, v):
    return tuple(one + other for one, other in zip(u, v, strict=True))


def combine(earlier, later):
    """Return the element of the earlier and the later stretch of time together."""
    a, b, c, eta, j = earlier[:4], earlier[4:6], full(earlier[6:9]), earlier[9:11], full(earlier[11:])
    a2, b2, c2, eta2, j2 = later[:4], later[4:6], full(later[6:9]), later[9:11], full(later[11:])
    cj = product(c, j2)
    m = (1 + cj[0], cj[1], cj[2], 1 + cj[3])
    det = m[0] * m[3] - m[1] * m[2]
    inverse = (m[3] / det, -m[1] / det, -m[2] / det, m[0] / det)  # of I + C J2; its transpose is that of I + J2 C
    forward = product(a2, inverse)
    backward = product(transposed(a), transposed(inverse))
    jb = applied(j2, b)
    return (
        *product(forward, a),
        *plus(applied(forward, plus(b, applied(c, eta2))), b2),
        *half(plus(product(product(forward, c), transposed(a2)), c2)),
        *plus(applied(backward, (eta2[0] - jb[0], eta2[1] - jb[1])), eta),
        *half(plus(product(product(backward, j2), a), j)),
    )


def elements(y: np.ndarray) -> list[np.ndarray]:
    """Return the element of every measurement; the first starts from state 0 with covariance I."""
    s = Q[0, 0] + R
    gain = Q[:, 0] / s
    kept = np.array([[1 - gain[0], 0], [-gain[1], 1]])
    a, c = kept @ F, kept @ Q
    h = F[0] / s
    j = np.outer(h, F[0])
    ones = [*a.flat, gain[0] * y, gain[1] * y, c[0, 0], c[0, 1], c[1, 1], h[0] * y, h[1] * y, j[0, 0], j[0, 1], j[1, 1]]
    ones = [np.array(np.broadcast_to(one, y.shape)) for one in ones]
    mean, covariance = sequential(y[:1])
    first = (*[0.0] * 4, *mean[0], covariance[0, 0, 0], covariance[0, 0, 1], covariance[0, 1, 1], *[0.0] * 5)
    for one, start in zip(ones, first, strict=True):
        one[0] = start
    return ones


def sequential(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the means and covariances of the states by the textbook's filter."""
    wide = np.longdouble
    f, q = F.astype(wide), Q.astype(wide)
    mean, covariance = np.zeros(2, wide), np.eye(2, dtype=wide)
    means, covariances = np.empty((len(y), 2), wide), np.empty((len(y), 2, 2), wide)
    for at, measured in enumerate(y):
        mean, covariance = f @ mean, f @ covariance @ f.T + q
        s = covariance[0, 0] + wide(R)
        gain = covariance[:, 0] / s
        mean = mean + gain * (measured - mean[0])
        covariance = covariance - np.outer(gain, gain) * s
        means[at], covariances[at] = mean, covariance
    return means, covariances


def example(run: common.Run) -> None:
    rng = np.random.default_rng(14)
    n = run.size
    noise = rng.standard_normal((n, 2)) @ np.linalg.cholesky(Q).T
    speed = np.cumsum(noise[:, 1])
    place = np.cumsum(STEP * np.concatenate([[0], speed[:-1]]) + noise[:, 0])
    y = place + NOISE * rng.standard_normal(n)
    means, covariances = sequential(y)

    op = parprims.Operator(combine, identity=(1, 0, 0, 1, *[0] * 10), components=14, name="kalman")
    xs = elements(y)
    parprims.check_associative(op, tuple(x[:50] for x in xs), rtol=1e-12)
    j = parprims.reduce(tuple(x[1:] for x in xs), op)[11:]
    condition = (1 + float(np.max(covariances)) * max(abs(float(one)) for one in j)) ** 2
    allowed = 100 * 4 * math.log2(max(n, 2)) * condition * 2.0**-52
    places = []

    def check(result, _):
        found = np.array([run.to_numpy(one) for one in result[4:9]])
        expected = np.array([*means.T, covariances[:, 0, 0], covariances[:, 0, 1], covariances[:, 1, 1]])
        # A mean beside the largest mean, a covariance beside the largest covariance.
        sizes = [np.max(abs(means))] * 2 + [np.max(covariances)] * 3
        places[:] = found[0]
        text = f"deviation {np.std(found[0] - place):.3f}, measured {NOISE}"
        return text, max(np.max(abs(found - expected), axis=1) / sizes), allowed

    # XLA compiles every step of doubling by itself, which takes minutes for the sizes of a GPU.
    skip = ("native", "array") if run.backend == "jax" and n > 5000 else ()
    filtering = lambda *xs, method: parprims.scan(xs, op, method=method)  # noqa: E731
    arrays = tuple(map(run.asarray, xs))
    run.compare(f"Kalman filter, {n} steps", filtering, arrays, check, skip=skip)
    run.plot(lambda axes: (axes.plot(y, "."), axes.plot(places), axes.set(xlabel="step", ylabel="position")))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

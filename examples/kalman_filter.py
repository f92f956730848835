"""Kalman filtering, parallel in time: a scan whose elements are small matrices.

A point moves along a line with random accelerations; its position is measured with noise. The filter is a recurrence
over time, but its steps are associative too. An element (A, b, C, eta, J) has two parts: given an earlier state x, the
state is normal with mean A x + b and covariance C; eta and J give the likelihood of x under the measurements in
between. The operator below is written once, with products of matrices, for every array library; the 16 numbers of an
element become registers of the kernel. (Sarkka and Garcia-Fernandez, Temporal Parallelization of Bayesian Smoothers,
IEEE Trans. Automatic Control 66(1), 2021.)

The sequential filter runs in extended precision where NumPy has it. An entry passes through at most 4 log2 n
combinations of at most 100 roundings each, and a combination enlarges an error by the inverse of I + C J, no more than
(1 + |C| |J|)^2. C is largest in the filter itself, J over the longest stretch of time.
"""

import math
import sys
from typing import Any, NamedTuple

import common
import numpy as np
from array_api_compat import array_namespace, device

import parprims

SIZES = common.Sizes(small=20, cpu=500, cuda=200_000)
STEP, JERK, NOISE = 0.1, 0.5, 0.3
F = np.array([[1, STEP], [0, 1]])
Q = JERK * np.array([[STEP**3 / 3, STEP**2 / 2], [STEP**2 / 2, STEP]])
R = NOISE**2


class Element(NamedTuple):
    """Elements along the first axis: matrices of 2 x 2 and vectors of 2."""

    a: Any
    b: Any
    c: Any
    eta: Any
    j: Any


def combine(earlier: Element, later: Element) -> Element:
    """Return the element of the earlier and the later stretch of time together."""
    xp = array_namespace(earlier.b)
    turned = earlier.c @ later.j + xp.eye(2, dtype=earlier.b.dtype, device=device(earlier.b))
    forward = xp.matrix_transpose(xp.linalg.solve(xp.matrix_transpose(turned), xp.matrix_transpose(later.a)))
    backward = xp.matrix_transpose(xp.linalg.solve(turned, earlier.a))

    def applied(matrix, vector):
        return (matrix @ vector[..., None])[..., 0]

    return Element(
        a=forward @ earlier.a,
        b=applied(forward, earlier.b + applied(earlier.c, later.eta)) + later.b,
        c=forward @ earlier.c @ xp.matrix_transpose(later.a) + later.c,
        eta=applied(backward, later.eta - applied(later.j, earlier.b)) + earlier.eta,
        j=backward @ later.j @ earlier.a + earlier.j,
    )


def elements(y: np.ndarray) -> Element:
    """Return the element of every measurement; the first starts from state 0 with covariance I."""
    s = Q[0, 0] + R
    gain = Q[:, 0] / s
    kept = np.array([[1 - gain[0], 0], [-gain[1], 1]])
    h = F[0] / s
    parts = Element(kept @ F, y[:, None] * gain, kept @ Q, y[:, None] * h, np.outer(h, F[0]))
    mean, covariance = sequential(y[:1])
    shapes = Element((2, 2), (2,), (2, 2), (2,), (2, 2))
    whole = Element(*(np.array(np.broadcast_to(x, (len(y), *shape))) for x, shape in zip(parts, shapes, strict=True)))
    for x, first in zip(whole, (0, mean[0], covariance[0], 0, 0), strict=True):
        x[0] = first
    return whole


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

    xs = elements(y)
    parprims.check_associative(combine, Element(*(x[:50] for x in xs)), rtol=1e-12)
    j = parprims.reduce(Element(*(x[1:] for x in xs)), combine, axis=0).j
    condition = (1 + float(np.max(covariances)) * float(np.max(abs(j)))) ** 2
    allowed = 100 * 4 * math.log2(max(n, 2)) * condition * 2.0**-52
    places = []

    def check(result, _):
        mean, covariance = run.to_numpy(result.b), run.to_numpy(result.c)
        # A mean beside the largest mean, a covariance beside the largest covariance.
        errors = (
            np.max(abs(mean - means)) / np.max(abs(means)),
            np.max(abs(covariance - covariances)) / np.max(covariances),
        )
        places[:] = mean[:, 0]
        return f"deviation {np.std(mean[:, 0] - place):.3f}, measured {NOISE}", max(errors), allowed

    # XLA compiles every step of doubling by itself, which takes minutes for the sizes of a GPU.
    skip = ("native", "array") if run.backend == "jax" and n > 5000 else ()
    filtering = lambda *xs, method: parprims.scan(Element(*xs), combine, axis=0, method=method)  # noqa: E731
    arrays = tuple(map(run.asarray, xs))
    run.compare(f"Kalman filter, {n} steps", filtering, arrays, check, skip=skip)
    run.plot(lambda axes: (axes.plot(y, "."), axes.plot(places), axes.set(xlabel="step", ylabel="position")))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

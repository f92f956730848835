"""Filters: every sample read once and written once, so what counts is the copy rate."""

from __future__ import annotations

import functools

import numpy as np

import parprims
from benches.core.cases import Case, Problem, Scale
from benches.core.problems import drawn

LOW = (
    np.array([0.0048, 0.0193, 0.0289, 0.0193, 0.0048], np.float32),
    np.array([1.0, -2.3695, 2.3140, -1.0547, 0.1874], np.float32),
)
"""A low pass of order four."""
IN_TURN = "blocks of 64 samples come one after another"
SECTIONS = np.array([[0.1, 0.2, 0.1, 1.0, -1.2, 0.4], [1.0, 2.0, 1.0, 1.0, -1.5, 0.7]], np.float32)


def problem(rng, shape, coefficients, filtered):
    """Return coefficients and signals, and SciPy's result in float64."""
    from scipy import signal

    x = drawn(rng, shape, np.dtype("float32"), lambda own, length: own.standard_normal(length, np.float32))
    y = getattr(signal, filtered)(*(one.astype(np.float64) for one in (*coefficients, x)))
    return Problem((*coefficients, x), y.astype(np.float32), 2.0**-12 * (abs(y).max() + 1))


def by_scipy(name):
    def call(_, *arrays):
        from scipy import signal

        return getattr(signal, name)(*arrays)

    return call


def by_cupyx(name):
    def call(_, *arrays):
        from cupyx.scipy import signal

        return getattr(signal, name)(*arrays)

    return call


def by_torchaudio(_, b, a, x):
    from torchaudio.functional import lfilter

    return lfilter(x, a, b, clamp=False)


def cases(scale: Scale) -> list[Case]:
    """Return the cases of this module."""
    found = []
    k = scale.pick(12, 20, 26)
    skip = {f"{name} array": IN_TURN for name in ("cupy", "torch-cuda", "jax-cuda")}
    of_lfilter, of_sosfilt = ({"scipy": by_scipy(name), "cupyx": by_cupyx(name)} for name in ("lfilter", "sosfilt"))
    for name, shape, peers in (
        (f"one signal, 2^{k}", (2**k,), of_lfilter),  # by torchaudio one thread would go along it
        (f"64 signals, 2^{k}", (64, 2 ** (k - 6)), {**of_lfilter, "torchaudio": by_torchaudio}),
    ):
        make = functools.partial(problem, shape=shape, coefficients=LOW, filtered="lfilter")
        found.append(Case("lfilter", f"order 4 {name}", make, parprims.lfilter, peers, skip=skip))
    for sections, name in ((SECTIONS, "two sections"), (np.tile(SECTIONS, (2, 1)), "four sections")):
        make = functools.partial(problem, shape=(2**k,), coefficients=(sections,), filtered="sosfilt")
        found.append(Case("sosfilt", f"{name}, 2^{k}", make, parprims.sosfilt, of_sosfilt))
    return found

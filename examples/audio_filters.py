"""A second of sound through an equaliser and a room: filters whose loops over the samples are gone.

The equaliser is a cascade of three sections of order two (Robert Bristow-Johnson's cookbook), which `sosfilt` filters
as SciPy's does; users of GPU libraries report that it is 100 to 1000 times slower there than on a CPU. The room is
Schroeder's: four echoes side by side, y[n] = x[n] + g y[n-D]. Samples D apart make a recurrence of order one, so all D
recurrences are one call of `linear_recurrence` on an array of rows of D samples.

Every step rounds once or twice, and later steps filter this error like a sample. So the error is within n roundings of
the largest output times the sum of all |h|, where h is the response to a unit impulse; the check allows a fourth.
(Schroeder, Natural Sounding Artificial Reverberation, J. Audio Eng. Soc. 10(3), 1962.)
"""

import math
import sys

import common
import numpy as np
from array_api_compat import array_namespace

import parprims

SIZES = common.Sizes(small=4464, cpu=48_000, cuda=4_800_000)
ROOM = {1116: 0.84, 1188: 0.82, 1277: 0.80, 1356: 0.78}
"""Samples after which an echo returns, and how much of it."""


def peak(frequency: float, gain: float, width: float) -> list[float]:
    """Return a section that raises a band by so many decibels; frequencies are shares of the sampling rate."""
    turn, a = 2 * math.pi * frequency, 10 ** (gain / 40)
    alpha = math.sin(turn) / (2 * width)
    b = [1 + alpha * a, -2 * math.cos(turn), 1 - alpha * a]
    return [*b, 1 + alpha / a, -2 * math.cos(turn), 1 - alpha / a]


SECTIONS = np.array([peak(0.002, 4, 0.7), peak(0.03, -6, 1.4), peak(0.2, 3, 0.7)])


def equalised(sections, x, /, *, method: str = "auto"):
    """Return the sound with some bands raised and others lowered."""
    return parprims.sosfilt(sections, x, method=method)


def echoed(x, delay: int, share: float, *, method: str = "auto"):
    """Return the sound with an echo, and the echo's echo, and so on."""
    xp, n = array_namespace(x), x.shape[0]
    rows = xp.concat([x, xp.zeros_like(x[: -n % delay])])
    y = parprims.linear_recurrence(share, xp.reshape(rows, (-1, delay)), axis=0, method=method)
    return xp.reshape(y, (-1,))[:n]


def in_a_room(x, /, *, method: str = "auto"):
    """Return the mean of all echoes."""
    return sum(echoed(x, delay, share, method=method) for delay, share in ROOM.items()) / len(ROOM)


def by_loop(x: np.ndarray) -> np.ndarray:
    """Return the equalised sound by Python's floats, sample by sample."""
    samples = x.tolist()
    for b0, b1, b2, a0, a1, a2 in SECTIONS.tolist():
        z0 = z1 = 0.0
        for at, sample in enumerate(samples):
            y = (b0 * sample) / a0 + z0
            z0, z1 = (b1 * sample - a1 * y) / a0 + z1, (b2 * sample - a2 * y) / a0
            samples[at] = y
    return np.array(samples)


def by_steps(x: np.ndarray) -> np.ndarray:
    """Return the sound in the room, echo after echo."""
    total = np.zeros_like(x)
    for delay, share in ROOM.items():
        y = x.copy()
        for at in range(delay, len(x), delay):
            part = y[at : at + delay]
            part += share * y[at - delay : at - delay + len(part)]
        total += y
    return total / len(ROOM)


def example(run: common.Run) -> None:
    n = run.size
    time = np.arange(n) / 48_000
    x = np.random.default_rng(5).standard_normal(n) * np.exp(-4 * time) + 0.3 * np.sin(2 * np.pi * 440 * time)
    click = np.zeros(min(n, 20_000))
    click[0] = 1
    for name, call, reference, arrays in (
        ("equaliser", equalised, by_loop, (SECTIONS, x)),
        ("room", in_a_room, by_steps, (x,)),
    ):
        expected = reference(x)
        gain = abs(reference(click)).sum()
        allowed = n / 4 * 2.0**-52 * gain * abs(expected).max()

        def check(result, _, expected=expected, allowed=allowed):
            y = run.to_numpy(result)
            return f"loudness {np.sqrt(np.mean(y * y)):.6f}", common.distance(y, expected), allowed

        run.compare(f"{name}, {n} samples", call, tuple(map(run.asarray, arrays)), check)
    heard = run.to_numpy(in_a_room(equalised(run.asarray(SECTIONS), run.asarray(x))))
    run.plot(lambda axes: (axes.plot(time, heard), axes.set(xlabel="seconds", ylabel="sound")))


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

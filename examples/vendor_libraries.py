"""Vendor libraries beside your own code: a matrix product of 275 x 275, and a convolution by Fourier transform.

The product in float32 is compared with the plain triple loop in float64, with two of the loops as array operations
here; the source asked for a relative error below 1e-6 of the norm. The convolution of a complex signal of length 50
with a filter of length 11 is done by the library's FFT (pad to 56, transform, multiply, transform back, which divides
by 56) and by this library as a matrix product with the filter; the source asked for a relative error below 1e-5. It
gave no times.
"""

import functools
import sys

import common
import numpy as np

import parprims

SIZES = common.Sizes(small=40, cpu=275, cuda=275)
SIGNAL, FILTER = 50, 11


def triple_loop(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the product by its definition, one k after another."""
    c = np.zeros((a.shape[0], b.shape[1]))
    for k in range(a.shape[1]):
        c += a[:, k, None].astype(np.float64) * b[k]
    return c


def direct(signal: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """Return out[i] = sum over j of signal[i - j] taps[half + j], |j| <= half: the filter is centred."""
    half = len(taps) // 2
    out = np.zeros(len(signal), np.complex128)
    for i in range(len(signal)):
        for j in range(-half, half + 1):
            if 0 <= i - j < len(signal):
                out[i] += complex(signal[i - j]) * complex(taps[half + j])
    return out


def by_transform(xp, signal, taps):
    """Return `direct` by FFT: taps before the centre wrap around to the end of the padded signal."""
    half = FILTER // 2
    n = SIGNAL + FILTER - half  # 56
    gap = xp.zeros_like(signal[: n - FILTER])
    spectrum = xp.fft.fft(xp.concat([taps[half:], gap, taps[:half]]))
    padded = xp.concat([signal, xp.zeros_like(signal[: n - SIGNAL])])
    return xp.fft.ifft(xp.fft.fft(padded) * spectrum)[:SIGNAL]


def by_product(xp, signal, taps, /, *, method: str = "auto"):
    """Return `direct` as one matrix product: row i holds the stretch of the signal that reaches out[i]."""
    edge = xp.zeros_like(signal[: FILTER // 2])
    padded = xp.concat([edge, signal, edge])
    stretches = xp.stack([padded[i : i + FILTER] for i in range(SIGNAL)])
    return parprims.matmul(stretches, xp.flip(taps), method=method)


def example(run: common.Run) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.random((run.size, run.size), np.float32) for _ in range(2))
    expected = triple_loop(a, b)

    def check(result, _):
        c = run.to_numpy(result)
        return f"norm {np.linalg.norm(c):.6g}", np.linalg.norm(c - expected) / np.linalg.norm(expected), 1e-6

    run.compare(f"B6 sgemm {run.size} x {run.size}", parprims.matmul, (run.asarray(a), run.asarray(b)), check)

    signal, taps = (
        (rng.random(n, np.float32) + 1j * rng.random(n, np.float32)).astype(np.complex64) for n in (SIGNAL, FILTER)
    )
    answer = direct(signal, taps)

    def check_convolution(result, _):
        out = run.to_numpy(result)
        error = np.linalg.norm(out - answer) / np.linalg.norm(answer)
        return f"norm {np.linalg.norm(out):.6g}", error, 1e-5

    arrays = (run.asarray(signal), run.asarray(taps))
    transform = functools.partial(by_transform, run.xp)
    text, error, allowed = check_convolution(transform(*arrays), "fft")
    run.report("B6 convolution by FFT", text, error, allowed)
    by_matmul = functools.partial(by_product, run.xp)
    run.compare("B6 convolution, direct", by_matmul, arrays, check_convolution, vendor=transform)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

"""Keys whose splits over devices are hard to find, and their stable order."""

import numpy as np


def stable(x, descending=False):
    """Return the stable order of x: NaN last, or first if descending, and zeros equal."""
    value = x.astype(np.float64) if x.dtype.kind == "f" else x
    nan = value != value
    groups = {}
    for index, key in enumerate(zip(nan.tolist(), np.where(nan, 0, value).tolist(), strict=True)):
        groups.setdefault(key, []).append(index)
    return np.array([index for key in sorted(groups, reverse=descending) for index in groups[key]], np.int64)


def hostile(n, rng):
    """Return n keys of each hostile kind, by name."""
    low, high = (np.iinfo(np.int64).min, np.iinfo(np.int64).max)
    small_at_the_end = np.concat([rng.random(n - n // 4) + 1, -rng.random(n // 4)])  # all that belongs to the first
    return {
        "equal": np.full(n, -2.5, np.float32),
        "two values": rng.choice(np.array([1, 2], np.float32), n),
        "a split value": np.sort(rng.choice(np.array([0, 1, 1, 1, 1, 2], np.float32), n))[::-1].copy(),
        "sorted": np.arange(n, dtype=np.float32),
        "reversed": np.arange(n, 0, -1).astype(np.float32),
        "small at the end": small_at_the_end.astype(np.float32),
        "neighbours": np.nextafter(np.float32(1), rng.choice(np.array([0, 1, 2], np.float32), n)),
        "not finite": rng.choice(np.array([np.nan, -np.nan, np.inf, -np.inf, 0], np.float32), n),
        "only NaN": rng.choice(np.array([np.nan, -np.nan], np.float32), n),
        "zeros": rng.choice(np.array([0.0, -0.0, 1e-45, -1e-45], np.float32), n),
        "extremes": rng.choice(np.array([low, low + 1, -1, 0, 1, high - 1, high]), n),
        "unsigned extremes": rng.choice(np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 1], np.uint64), n),
        "bytes": rng.choice(np.array([-128, -127, 0, 127], np.int8), n),
        "flags": rng.random(n) < 0.9,
    }

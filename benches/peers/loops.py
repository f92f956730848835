"""Loops as people write them by hand, compiled by Numba, on one thread: peers of primitives on a CPU.

Arrays have the axes (outer, n, inner), of which the second is walked, so that one loop serves lines and columns.
"""

from __future__ import annotations

import math

import numba
import numpy as np

loop = numba.njit(error_model="numpy", cache=True, nogil=True)


@loop
def total(x, out):
    outer, n, inner = x.shape
    for o in range(outer):
        if inner == 1:
            state = out[o, 0]
            for i in range(n):
                state += x[o, i, 0]
            out[o, 0] = state
        else:
            for i in range(n):
                for j in range(inner):
                    out[o, j] += x[o, i, j]


@loop
def cumulative_sum(x, out):
    outer, n, inner = x.shape
    for o in range(outer):
        if inner == 1:
            state = out[o, 0, 0] = x[o, 0, 0]
            for i in range(1, n):
                state += x[o, i, 0]
                out[o, i, 0] = state
        else:
            for j in range(inner):
                out[o, 0, j] = x[o, 0, j]
            for i in range(1, n):
                for j in range(inner):
                    out[o, i, j] = out[o, i - 1, j] + x[o, i, j]


@loop
def maxima(x, out):
    outer, n, inner = x.shape
    for o in range(outer):
        if inner == 1:
            state = out[o, 0, 0] = x[o, 0, 0]
            for i in range(1, n):
                state = max(state, x[o, i, 0])
                out[o, i, 0] = state
        else:
            for j in range(inner):
                out[o, 0, j] = x[o, 0, j]
            for i in range(1, n):
                for j in range(inner):
                    out[o, i, j] = max(out[o, i - 1, j], x[o, i, j])


@loop
def recurrence(a, b, out):
    outer, n, inner = b.shape
    for o in range(outer):
        if inner == 1:
            state = out[o, 0, 0] = b[o, 0, 0]
            for i in range(1, n):
                state = a[o, i, 0] * state + b[o, i, 0]
                out[o, i, 0] = state
        else:
            for j in range(inner):
                out[o, 0, j] = b[o, 0, j]
            for i in range(1, n):
                for j in range(inner):
                    out[o, i, j] = a[o, i, j] * out[o, i - 1, j] + b[o, i, j]


@loop
def constant_recurrence(a, b, out):
    outer, n, inner = b.shape
    for o in range(outer):
        if inner == 1:
            state = out[o, 0, 0] = b[o, 0, 0]
            for i in range(1, n):
                state = a * state + b[o, i, 0]
                out[o, i, 0] = state
        else:
            for j in range(inner):
                out[o, 0, j] = b[o, 0, j]
            for i in range(1, n):
                for j in range(inner):
                    out[o, i, j] = a * out[o, i - 1, j] + b[o, i, j]


@loop
def recurrence_backward(a, x, g, da, db):
    """Write the derivatives of a recurrence with the solution x along g: db[n] = g[n] + a[n+1] db[n+1]."""
    outer, n, inner = x.shape
    for o in range(outer):
        for j in range(inner):
            db[o, n - 1, j] = g[o, n - 1, j]
        for i in range(n - 2, -1, -1):
            for j in range(inner):
                db[o, i, j] = g[o, i, j] + a[o, i + 1, j] * db[o, i + 1, j]
                da[o, i + 1, j] = db[o, i + 1, j] * x[o, i, j]
        for j in range(inner):
            da[o, 0, j] = 0


@loop
def argmax(x, best, index):
    outer, n, inner = x.shape
    for o in range(outer):
        for j in range(inner):
            best[o, j], index[o, j] = x[o, 0, j], 0
        for i in range(1, n):
            for j in range(inner):
                if x[o, i, j] > best[o, j]:
                    best[o, j], index[o, j] = x[o, i, j], i


@loop
def argmaxima(x, best, index):
    """Write the largest of the values so far and its index, for one line."""
    top, where = x[0], 0
    for i in range(len(x)):
        if x[i] > top:
            top, where = x[i], i
        best[i], index[i] = top, where


@loop
def maximum(x):
    top = x[0]
    for i in range(1, len(x)):
        top = max(top, x[i])
    return top


@loop
def every(x):
    for i in range(len(x)):  # noqa: SIM110
        if not x[i]:
            return False
    return True


@loop
def dot(x, y):
    state = x[0] * y[0]
    for i in range(1, len(x)):
        state += x[i] * y[i]
    return state


@loop
def fused(x, y, z):
    """Return the sum of (x - y)^2 z."""
    state = x[0] - x[0]
    for i in range(len(x)):
        difference = x[i] - y[i]
        state += difference * difference * z[i]
    return state


@loop
def welford(x):
    mean = m2 = 0.0
    for i in range(len(x)):
        delta = x[i] - mean
        mean += delta / (i + 1)
        m2 += delta * (x[i] - mean)
    return mean, m2


@loop
def welfords(x, count, means, m2s):
    """Write count, mean and sum of squared deviations of the elements so far, for one line."""
    mean = m2 = 0.0
    for i in range(len(x)):
        delta = x[i] - mean
        mean += delta / (i + 1)
        m2 += delta * (x[i] - mean)
        count[i], means[i], m2s[i] = i + 1, mean, m2


@loop
def affine(a, b):
    """Return the composition of all maps x -> a x + b, the first applied first."""
    factor, shift = a[0], b[0]
    for i in range(1, len(a)):
        factor, shift = a[i] * factor, a[i] * shift + b[i]
    return factor, shift


@loop
def log_sums(x, out):
    state = out[0] = x[0]
    for i in range(1, len(x)):
        larger, smaller = max(state, x[i]), min(state, x[i])
        state = out[i] = larger + math.log1p(math.exp(smaller - larger))


@loop
def radix_sort(keys, other):
    """Sort keys in place."""
    width = 8 * keys.itemsize
    counts = np.zeros((width // 8, 256), np.int64)
    for i in range(len(keys)):
        for digit in range(width // 8):
            counts[digit, (keys[i] >> (8 * digit)) & 255] += 1
    source, target = keys, other
    for digit in range(width // 8):
        if counts[digit].max() < len(keys):
            places = np.cumsum(counts[digit]) - counts[digit]
            for i in range(len(keys)):
                value = (source[i] >> (8 * digit)) & 255
                target[places[value]] = source[i]
                places[value] += 1
            source, target = target, source
    if source is not keys:
        keys[:] = source


@loop
def radix_argsort(keys, other, order, other_order):
    """Sort keys and what moves with them; return where the latter are then."""
    width = 8 * keys.itemsize
    counts = np.zeros((width // 8, 256), np.int64)
    for i in range(len(keys)):
        for digit in range(width // 8):
            counts[digit, (keys[i] >> (8 * digit)) & 255] += 1
    for digit in range(width // 8):
        if counts[digit].max() < len(keys):
            places = np.cumsum(counts[digit]) - counts[digit]
            for i in range(len(keys)):
                value = (keys[i] >> (8 * digit)) & 255
                place = places[value]
                other[place], other_order[place] = keys[i], order[i]
                places[value] += 1
            keys, other, order, other_order = other, keys, other_order, order
    return order


@loop
def histogram(x, low, high, counts):
    bins = len(counts)
    scale = bins / (high - low)
    for i in range(len(x)):
        if low <= x[i] <= high:
            counts[min(int((x[i] - low) * scale), bins - 1)] += 1


@loop
def weighted_histogram(x, weights, low, high, sums):
    bins = len(sums)
    scale = bins / (high - low)
    for i in range(len(x)):
        if low <= x[i] <= high:
            sums[min(int((x[i] - low) * scale), bins - 1)] += weights[i]


@loop
def searchsorted(x1, x2, places):
    for i in range(len(x2)):
        low, high = 0, len(x1)
        while low < high:
            middle = (low + high) // 2
            if x1[middle] < x2[i]:
                low = middle + 1
            else:
                high = middle
        places[i] = low


@loop
def merge(x1, x2, out):
    i = j = 0
    for k in range(len(out)):
        if j == len(x2) or (i < len(x1) and x1[i] <= x2[j]):
            out[k] = x1[i]
            i += 1
        else:
            out[k] = x2[j]
            j += 1


@loop
def thomas(lower, diag, upper, rhs, x, c):
    """Solve systems of shape (n, systems) by elimination without exchanges, a row of all of them at a time."""
    n, systems = diag.shape
    for j in range(systems):
        c[0, j], x[0, j] = upper[0, j] / diag[0, j], rhs[0, j] / diag[0, j]
    for i in range(1, n):
        for j in range(systems):
            pivot = diag[i, j] - lower[i, j] * c[i - 1, j]
            c[i, j] = upper[i, j] / pivot
            x[i, j] = (rhs[i, j] - lower[i, j] * x[i - 1, j]) / pivot
    for i in range(n - 2, -1, -1):
        for j in range(systems):
            x[i, j] -= c[i, j] * x[i + 1, j]


@loop
def thomas_lines(lower, diag, upper, rhs, x):
    """Solve systems of shape (systems, n), one after another."""
    systems, n = diag.shape
    c = np.empty(n, diag.dtype)
    for j in range(systems):
        c[0], x[j, 0] = upper[j, 0] / diag[j, 0], rhs[j, 0] / diag[j, 0]
        for i in range(1, n):
            pivot = diag[j, i] - lower[j, i] * c[i - 1]
            c[i] = upper[j, i] / pivot
            x[j, i] = (rhs[j, i] - lower[j, i] * x[j, i - 1]) / pivot
        for i in range(n - 2, -1, -1):
            x[j, i] -= c[i] * x[j, i + 1]


@loop
def product(a, b, out):
    rows, common = a.shape
    for i in range(rows):
        for k in range(common):
            factor = a[i, k]
            for j in range(b.shape[1]):
                out[i, j] += factor * b[k, j]


@loop
def shortest(a, b, out):
    """Lower out[i, j] to the minimum over k of a[i, k] + b[k, j]."""
    rows, common = a.shape
    for i in range(rows):
        for k in range(common):
            first = a[i, k]
            for j in range(b.shape[1]):
                out[i, j] = min(out[i, j], first + b[k, j])

"""Sums with the same bits everywhere: equal to a reference in whole numbers, by every library, method and order."""

import fractions
import math

import numpy as np
import pytest

import parprims

Fraction = fractions.Fraction
METHODS = ("auto", "kernel", "native", "array")
EVERYWHERE = {"reproducible": "everywhere"}
BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
LEAST = {"float16": -24, "bfloat16": -133, "float32": -149, "float64": -1074}
LARGEST = {"float16": 16, "bfloat16": 128, "float32": 128, "float64": 1024}


def dtype_of(name):
    if name != "bfloat16":
        return np.dtype(name)
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)


def nearest(exact, name):
    """Return the float nearest to a fraction, ties to even."""
    if not exact:
        return 0.0
    exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    exponent += abs(exact) >= Fraction(2) ** exponent
    unit = Fraction(2) ** max(exponent - BITS[name], LEAST[name])
    rounded = round(exact / unit) * unit
    if abs(rounded) >= Fraction(2) ** LARGEST[name]:
        return math.inf if rounded > 0 else -math.inf
    return float(rounded)


def exponent_of(x, name):
    """Return the least exponent of which the power of two is larger than all magnitudes, as for normal numbers."""
    largest = max(abs(float(one)) for one in x)
    return max(math.frexp(largest)[1], LEAST[name] + BITS[name])


def on_grid(term, working, n, exponent):
    """Return a term, rounded to the grid."""
    count = max(20, (n - 1).bit_length())
    first = Fraction(2) ** (exponent - (63 if working == "float32" else 62) + count)
    rounded = round(term / first) * first
    if working == "float64":
        second = first / 2 ** (63 - count)
        rounded += round((term - rounded) / second) * second
    return rounded


def reference(x, name, n=None):
    """Return the sum of numbers of a dtype."""
    x = [float(one) for one in x]
    if not all(map(math.isfinite, x)):
        return math.nan if math.inf in x and -math.inf in x else sum(one for one in x if not math.isfinite(one))
    if not x:
        return 0.0
    working, exponent = "float64" if name == "float64" else "float32", exponent_of(x, name)
    return nearest(sum(on_grid(Fraction(one), working, n or len(x), exponent) for one in x), name)


def terms(kind, name, n, rng):
    """Return terms of a kind."""
    dtype, spread = dtype_of(name), 10 if name == "float16" else 60
    x = rng.normal(size=n)
    if kind == "wide":
        x = np.ldexp(x, rng.integers(-spread, spread // 3, n))
    elif kind == "tiny":  # most of them subnormal
        x = np.ldexp(x, LEAST[name] + rng.integers(0, BITS[name] + 2, n))
    elif kind == "huge":
        x = np.ldexp(np.clip(x, -0.99, 0.99), LARGEST[name] - rng.integers(0, 4, n))
    elif kind == "cancelling":
        x = np.concatenate([x[: n // 2], -x[: n // 2], x[: n % 2] * 2.0 ** -BITS[name]])
    elif kind == "whole":  # ties of the grid and of the result
        x = np.ldexp(rng.integers(-9, 9, n) + 0.5, rng.integers(-48, -40, n)) + (rng.random(n) < 0.1)
    elif kind == "zeros":
        x = np.where(rng.random(n) < 0.5, 0.0, -0.0)
    elif kind != "normal":
        odd = {"plus": [math.inf], "minus": [-math.inf], "both": [math.inf, -math.inf], "nan": [math.nan, math.inf]}
        x[rng.permutation(n)[: len(odd[kind])]] = odd[kind][:n]
    with np.errstate(all="ignore"):
        return x.astype(dtype)


KINDS = ("normal", "wide", "tiny", "huge", "cancelling", "whole", "zeros", "plus", "minus", "both", "nan")


def bits_of(x):
    """Return the bits of floats, equal for all NaN."""
    x = np.asarray(x)
    return np.where(np.isnan(x), -1, x.view(f"i{x.itemsize}").astype(np.int64)).tolist()


def arrays(backend, x):
    if not backend.supports(np.asarray(x).dtype.name):
        pytest.skip("the library lacks the dtype")
    return backend.asarray(x)


def agree(got, expected):
    """Assert that two results have equal bits."""
    expected = np.asarray(expected)
    assert np.asarray(got).dtype == expected.dtype
    assert bits_of(got) == bits_of(expected)


def left_out(_test, given):
    """Return the sentence why a case is not tested, or nothing."""
    if (given.get("backend"), given.get("by")) == ("array-api-strict", "kernel"):
        return "no compiler of kernels takes these arrays"
    lacks = {"numpy": {"bfloat16"}, "array-api-strict": {"bfloat16", "float16"}}
    if lacks.get(given.get("backend"), set()) & {given.get(one) for one in ("name", "source", "target")}:
        return "the library lacks the dtype"
    return ""


@pytest.mark.optimised
@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 7, 300])
def test_equals_whole_numbers(backend, run, rng, kind, name, n, by):
    x = terms(kind, name, n, rng)
    got = run(parprims.sum, arrays(backend, x), method=by, **EVERYWHERE)
    agree(backend.to_numpy(got), np.asarray(reference(x, name), dtype_of(name)))


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("n", [5, 1000, 70_001])
def test_does_not_depend_on_order_or_company(backend, run, rng, name, n, by):
    """Permuted, reversed, as a row of a batch, along other axes, and in strided memory."""
    x = terms("wide", name, n, rng)
    expected = np.asarray(reference(x, name) if n < 2000 else parprims.sum(x, method="array", **EVERYWHERE), name)
    batch = np.stack([terms("huge", name, n, rng), x, rng.permutation(x)])
    spaced = np.zeros((n, 2), x.dtype)
    spaced[:, 0] = x[::-1]
    options = {"method": by, **EVERYWHERE}
    for got, axis in ((batch, 1), (np.ascontiguousarray(batch.T), 0)):
        rows = backend.to_numpy(run(parprims.sum, arrays(backend, got), axis=axis, **options))
        agree(rows[1], expected)
        agree(rows[2], expected)
    agree(backend.to_numpy(run(parprims.sum, arrays(backend, spaced)[:, 0], **options)), expected)
    agree(backend.to_numpy(run(parprims.reduce, arrays(backend, rng.permutation(x)), **options)), expected)
    folded = np.append(x, np.zeros(-n % 6, x.dtype)).reshape(2, -1, 3)
    whole = backend.to_numpy(run(parprims.sum, arrays(backend, folded), axis=(0, 1, 2), keepdims=True, **options))
    agree(whole.reshape(()), expected)  # zeros change nothing up to 2^20 terms


@pytest.mark.optimised
@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_dot_products(backend, run, rng, kind, name, by):
    x, y = terms(kind, name, 40, rng), terms("normal" if kind == "huge" else kind, name, 40, rng)
    if kind in ("tiny", "whole"):
        y = np.abs(terms("huge" if kind == "tiny" else "normal", name, 40, rng))
    got = run(parprims.vecdot, arrays(backend, x[None]), arrays(backend, y), method=by, **EVERYWHERE)
    agree(backend.to_numpy(got), np.asarray([dot_product(x, y, name)], name))


def dot_product(x, y, name):
    """Return a dot product: products of float32 are exact, products of float64 are rounded once, to 53 bits."""
    finite = np.isfinite(x).all() and np.isfinite(y).all()
    with np.errstate(all="ignore"):
        odd = [p for p in (x.astype(float) * y).tolist() if not math.isfinite(p)]
    if not finite:
        return math.nan if math.inf in odd and -math.inf in odd else sum(odd)
    exponents = [exponent_of(one, name) for one in (x, y)]
    if name == "float64":
        x, y = (np.ldexp(one, 2 - exponent) for one, exponent in zip((x, y), exponents, strict=True))
        products = [Fraction(p) * Fraction(2) ** (sum(exponents) - 4) for p in (x * y).tolist()]
    else:
        products = [Fraction(float(p)) * Fraction(float(q)) for p, q in zip(x, y, strict=True)]
    return nearest(sum(on_grid(p, name, len(x), sum(exponents)) for p in products), name)


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("source", ["float16", "float32", "float64", "int64", "bool"])
@pytest.mark.parametrize("target", ["float16", "float32", "float64"])
def test_dtype(backend, run, rng, source, target, by):
    """Terms are cast as in other sums, except that a wider term is not rounded to 16 bits first."""
    x = (1000 * rng.normal(size=50)).astype(source)
    options = {"dtype": backend.dtype(target), "method": by, **EVERYWHERE}
    got = backend.to_numpy(run(parprims.sum, arrays(backend, x), **options))
    working = "float64" if target == "float64" else "float32"
    y = x.astype(working)
    exponent = exponent_of(y, source if source in BITS and y.itemsize > x.itemsize and source != "float32" else working)
    total = sum(on_grid(Fraction(float(one)), working, 50, exponent) for one in y)
    agree(got, np.asarray(nearest(total, target), target))


@pytest.mark.parametrize("by", METHODS)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0)])
def test_empty(backend, run, shape, by):
    x = backend.asarray(np.zeros(shape, np.float32))
    got = backend.to_numpy(run(parprims.sum, x, axis=0, method=by, **EVERYWHERE))
    agree(got, np.zeros(shape[1:], np.float32))


@pytest.mark.parametrize("name", ["int8", "int32", "bool"])
def test_integers_are_exact_already(backend, rng, name):
    x = backend.asarray(rng.integers(0, 2, 50).astype(name))
    got, expected = parprims.sum(x, **EVERYWHERE), parprims.sum(x)
    assert got.dtype == expected.dtype
    assert backend.to_numpy(got) == backend.to_numpy(expected)


@pytest.mark.once
@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("n", [10, 1000, 30_000])
def test_error(rng, name, n):
    """At most n 2^-43 of the largest term (2^-85 for float64), and half a unit of the last place of the sum."""
    for kind in ("normal", "wide", "cancelling"):
        x = terms(kind, name, n, rng)
        exact = sum(map(Fraction, x.astype(float).tolist()))
        got = Fraction(float(parprims.sum(x, method="array", **EVERYWHERE)))
        largest = Fraction(float(abs(x).max()))
        rounding = Fraction(float(np.spacing(np.asarray(float(abs(exact)), name)))) / 2
        assert abs(got - exact) <= n * largest / 2 ** (43 if name == "float32" else 85) + rounding


WRONG = [
    ({"reproducible": "always"}, ValueError, "reproducible must be None or 'everywhere', got 'always'"),
    ({"reproducible": True}, ValueError, "reproducible must be None or 'everywhere', got True"),
    ({**EVERYWHERE, "op": "maximum"}, ValueError, "reproducible must be None with op maximum"),
    ({**EVERYWHERE, "initial": 1.0}, ValueError, "reproducible must be None with initial"),
    ({**EVERYWHERE, "axis_name": "i"}, (TypeError, ValueError), "axis_name (names|must)"),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG, ids=str)
def test_wrong(backend, options, error, message):
    options = {"op": "add", **options}
    with pytest.raises(error, match=message):
        parprims.reduce(backend.asarray(np.ones(3, np.float32)), options.pop("op"), **options)


def test_refused_elements(backend):
    x = backend.asarray(np.ones(3, np.complex64))
    with pytest.raises(TypeError, match="x must be real with reproducible, got complex64"):
        parprims.sum(x, **EVERYWHERE)
    pair = (backend.asarray(np.ones(3)), backend.asarray(np.ones(3)))
    with pytest.raises((TypeError, ValueError)):
        parprims.reduce(pair, **EVERYWHERE)


def test_methods_and_explain(backend):
    x = backend.asarray(np.ones(100, np.float32))
    listed = parprims.methods(parprims.sum, x, **EVERYWHERE)
    for name, reason in listed.items():
        if reason is None:
            with parprims.explain() as calls:
                parprims.sum(x, method=name, **EVERYWHERE)
            assert [(one.primitive, one.method) for one in calls] == [("sum", name)]
    assert None in listed.values()

"""Laws of the bits of scans: a result depends on the elements up to its own, and on no other.

Kernels for CPUs and ``array`` keep them, and kernels for GPUs by method canonical.
"""

import itertools

import numpy as np
import pytest

import parprims
from parprims._primitives.scan.grouping import LARGEST_BLOCK, block_elements
from tests.support.contract import random
from tests.support.laws import by_kernel, mixed, require_bits

LENGTHS = (1, 3, 31, 33, 100, 257, 1000, 2049, 5000, 8193, 20000)


OPERATORS = {"add": "add", "multiply": "multiply", "logaddexp": "logaddexp", "mixed": mixed, "affine": "affine"}


def scanned(backend, op, x, **options):
    """Return the scan of an array of NumPy, in bits; of pairs the second component."""
    options = {"axis": -1, **options}
    if op == "affine":
        if "initial" in options:  # the second component does not depend on the first of the state before
            options["initial"] = tuple(backend.asarray(one) for one in (0 * options["initial"], options["initial"]))
        given = (backend.asarray(0.5 + x * 0), backend.asarray(x))
        return backend.to_numpy(parprims.scan(given, op, **options)[1])
    if "initial" in options:
        options["initial"] = backend.asarray(options["initial"])
    return backend.to_numpy(parprims.scan(backend.asarray(x), OPERATORS[op], **options))


@pytest.fixture(params=["kernel", "array"])
def by(request, backend):
    return by_kernel(backend) if request.param == "kernel" else request.param


@pytest.fixture
def lines(rng):
    """A function that returns a few lines of random numbers of an operator."""

    def draw(op, n, dtype, count=3):
        x = random(rng, (count, n), dtype)
        return (1 + x / 64 if op == "multiply" else x).astype(dtype)

    return draw


CASES = pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("add", "float16"),
        ("add", "float32"),
        ("add", "float64"),
        ("logaddexp", "float64"),
        ("multiply", "float32"),
        ("multiply", "complex64"),
        ("mixed", "float32"),
        ("affine", "float64"),
    ],
)


@CASES
class TestLaws:
    @pytest.fixture(autouse=True)
    def supported(self, backend, op, dtype):
        if not backend.supports(dtype):
            pytest.skip("has no such dtype")

    def test_a_line_is_alone_in_any_company(self, backend, lines, op, dtype, by):
        require_bits(backend, by, op, dtype)
        for n in LENGTHS:
            x = lines(op, n, dtype)
            alone = np.stack([scanned(backend, op, line, method=by) for line in x])
            np.testing.assert_array_equal(scanned(backend, op, x, method=by), alone)
            np.testing.assert_array_equal(scanned(backend, op, np.ascontiguousarray(x.T), axis=0, method=by).T, alone)
            np.testing.assert_array_equal(scanned(backend, op, np.repeat(x, 2, 1)[:, ::2], method=by), alone)
            np.testing.assert_array_equal(scanned(backend, op, x[:, ::-1], reverse=True, method=by)[:, ::-1], alone)

    def test_a_segment_is_a_line(self, backend, lines, op, dtype, rng):
        kernel = by_kernel(backend)
        if kernel == "canonical" and backend.name.startswith("jax"):
            pytest.skip("compiles a program for every length")
        cuts = np.sort(rng.integers(0, 20001, 6))
        (x,) = lines(op, 20000, dtype, 1)
        for offsets in ([0, *cuts, 20000], [0, 0, 1, 1, 33, 8225, 8226, 20000, 20000]):
            found = scanned(backend, op, x, offsets=[*map(int, offsets)], method=kernel)
            for first, behind in itertools.pairwise(offsets):
                if first < behind:
                    alone = scanned(backend, op, x[first:behind], method=kernel)
                    np.testing.assert_array_equal(found[first:behind], alone)

    def test_a_prefix_does_not_see_what_follows(self, backend, lines, op, dtype, rng, by):
        require_bits(backend, by, op, dtype)
        x = lines(op, 20000, dtype)
        whole = scanned(backend, op, x, method=by)
        for n in (*LENGTHS, int(rng.integers(1, 20000))):
            np.testing.assert_array_equal(scanned(backend, op, x[:, :n], method=by), whole[:, :n])
            np.testing.assert_array_equal(scanned(backend, op, x[:2, :n].T.copy(), axis=0, method=by).T, whole[:2, :n])

    def test_a_line_goes_on_from_its_state(self, backend, lines, op, dtype, by):
        require_bits(backend, by, op, dtype)
        if dtype == "float16":
            pytest.skip("a result is its state rounded")
        x = lines(op, 3 * LARGEST_BLOCK + 100, dtype)
        whole = scanned(backend, op, x, method=by)
        for cut in (LARGEST_BLOCK, 2 * LARGEST_BLOCK):
            rest = scanned(backend, op, x[:, cut:], initial=whole[:, cut - 1], method=by)
            np.testing.assert_array_equal(rest, whole[:, cut:])

    def test_an_exclusive_scan_is_one_element_behind(self, backend, lines, op, dtype, by):
        require_bits(backend, by, op, dtype)
        identity = {"multiply": 1.0, "logaddexp": -np.inf}.get(op, 0.0)
        if op == "affine":
            pytest.skip("has a state of two components")
        operator = parprims.Operator(mixed, identity=identity) if op == "mixed" else OPERATORS[op]
        for n in LENGTHS:
            x = lines(op, n, dtype)
            whole = scanned(backend, op, x, method=by)
            given = backend.asarray(x)
            behind = backend.to_numpy(parprims.scan(given, operator, axis=-1, exclusive=True, method=by))
            np.testing.assert_array_equal(behind[:, 1:], whole[:, :-1])
            assert np.all(behind[:, 0] == identity)


@CASES
@pytest.mark.parametrize("n", [1, 33, 300, 5000, 8193, 300001])
def test_array_has_the_bits_of_the_kernel(backend, lines, op, dtype, n):
    """Also after an initial element, exclusive, and in reverse, and where `array` scans stretch by stretch."""
    kernel = by_kernel(backend)
    require_bits(backend, "array", op, dtype)
    if backend.cuda and op == "logaddexp":
        pytest.skip("the library has other exponentials")
    if not backend.supports(dtype):
        pytest.skip("has no such dtype")
    x = lines(op, n, dtype, 2)
    start = x[:, 0] / 2
    for options in ({}, {"exclusive": True, "initial": start}, {"reverse": True, "initial": start}):
        found = scanned(backend, op, x, method="array", **options)
        np.testing.assert_array_equal(found, scanned(backend, op, x, method=kernel, **options))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_terms_of_one_sign_have_one_direction(backend, rng, dtype, axis, by):
    if not backend.supports(dtype):
        pytest.skip("has no such dtype")
    for n in (100, 3000, 60000):
        x = (np.abs(random(rng, (3, n), "float64")) * 10.0 ** rng.integers(-6, 1, (3, n)) / n).astype(dtype)
        x = x if axis else np.ascontiguousarray(x.T)
        up = backend.to_numpy(parprims.cumulative_sum(backend.asarray(x), axis=axis, method=by))
        down = backend.to_numpy(parprims.cumulative_sum(backend.asarray(-x), axis=axis, method=by))
        assert np.all(np.diff(up, axis=axis) >= 0)
        assert np.all(np.diff(down, axis=axis) <= 0)


@pytest.mark.parametrize("state_bytes", [1, 4, 8, 12, 16, 40, 200, 4096])
def test_blocks_divide_the_largest(state_bytes):
    block = block_elements(state_bytes)
    assert LARGEST_BLOCK % block == 0
    assert block == 256 or (block * state_bytes <= 4 * LARGEST_BLOCK and block & (block - 1) == 0)


OUTER, INNER = (1, 2, 7, 40), (1, 3, 5, 40)
"""The numbers of lines before and behind the axis."""


@pytest.mark.sanitize
@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_any_layout_has_the_bits_of_array(backend, rng, outer, inner, dtype):
    """Arrays of three dimensions, scanned along the second, also in reverse, exclusive, and with an initial element."""
    kernel = by_kernel(backend)
    if not backend.supports(dtype):
        pytest.skip("has no such dtype")
    for n in (1, 8, 31, 32, 65, 256, 257, 2100, 8192, 9000, 20000)[: 11 if outer * inner < 100 else 8]:
        x = random(rng, (outer, n, inner), dtype)
        form = int(rng.integers(3))
        if form == 1:  # lines begin anywhere in memory
            x = np.concatenate([x, x[:, :1]], axis=1)[:, 1:]
        elif form == 2:
            x = np.asfortranarray(x)
        options = {"reverse": bool(rng.integers(2)), "exclusive": bool(rng.integers(2))}
        if rng.integers(2):
            options["initial"] = backend.asarray(random(rng, (outer, inner), dtype))
        given = backend.asarray(x)
        for call in (
            lambda by, given=given, options=options: parprims.scan(given, "add", axis=1, method=by, **options),
            lambda by, given=given: parprims.cumulative_sum(given, axis=1, include_initial=True, method=by),
        ):
            found, expected = (backend.to_numpy(call(by)) for by in (kernel, "array"))
            np.testing.assert_array_equal(found, expected, err_msg=f"{n=} {form=} {options}")


@pytest.mark.sanitize
@pytest.mark.parametrize("outer", [1, 3])
@pytest.mark.parametrize("inner", [1, 4])
def test_a_segment_of_any_layout_is_a_line(backend, rng, outer, inner):
    """Scanned along the second of three axes, also in reverse, exclusive, and with an initial element of each line or
    of each segment.
    """
    kernel = by_kernel(backend)
    if kernel == "canonical" and backend.name.startswith("jax"):
        pytest.skip("compiles a program for every length")
    offsets = [0, 0, 5, 40, 300, 300, 8500, 17000]
    x, start = random(rng, (outer, offsets[-1], inner), "float32"), random(rng, (outer, inner), "float32")
    own = random(rng, (outer, len(offsets) - 1, inner), "float32")
    for form in ({}, {"reverse": True}, {"exclusive": True}, {"reverse": True, "exclusive": True}):
        for more in ({}, {"initial": start}, {"initial": own}):
            options, given = {"axis": 1, "method": kernel, **form}, {k: backend.asarray(v) for k, v in more.items()}
            with parprims.explain() as calls:
                found = parprims.scan(backend.asarray(x), "add", offsets=offsets, **options, **given)
            assert (calls[0].method, calls[0].canonical) == ("kernel", True)
            found = backend.to_numpy(found)
            for at, (first, behind) in enumerate(itertools.pairwise(offsets)):
                if first < behind:
                    if more.get("initial") is own:
                        given = {"initial": backend.asarray(own[:, at].copy())}
                    line = backend.asarray(x[:, first:behind].copy())
                    alone = backend.to_numpy(parprims.scan(line, "add", **options, **given))
                    np.testing.assert_array_equal(found[:, first:behind], alone)


def test_elements_of_a_segment_are_a_line(backend, rng):
    """Segments by ids, in any order; an element without a segment stays as it is."""
    kernel = by_kernel(backend)
    x, ids = random(rng, (9000,), "float32"), rng.integers(-1, 3, 9000).astype(np.int32)
    options = {"segment_ids": backend.asarray(ids), "num_segments": 3, "method": kernel}
    with parprims.explain() as calls:
        found = backend.to_numpy(parprims.scan(backend.asarray(x), "add", **options))
    assert (calls[0].method, calls[0].canonical) == ("kernel", True)
    for segment in range(3):
        alone = backend.to_numpy(parprims.scan(backend.asarray(x[ids == segment]), "add", method=kernel))
        np.testing.assert_array_equal(found[ids == segment], alone)
    np.testing.assert_array_equal(found[ids < 0], x[ids < 0])


def test_wrong_offsets_end(backend, rng):
    """A kernel waits for no tile that never comes, whatever unchecked offsets are."""
    x = backend.asarray(random(rng, (20000,), "float32"))
    for offsets in ([5, 9000, 100, 20000], [-7, 30000, -3, 20000], [20000, 0, 20000], [0, 10]):
        on_device = backend.asarray(np.asarray(offsets))
        options = {"offsets": on_device, "check": False}
        y = parprims.scan(x, "add", method=by_kernel(backend), **options)
        assert y.shape == x.shape
        backend.to_numpy(y)


def test_canonical_takes_the_kernel_on_a_gpu(backend, rng):
    if not backend.cuda:
        pytest.skip("is of GPUs")
    x = backend.asarray(random(rng, (3, 1000), "float32"))
    wide = tuple([x] * 300)
    calls = {
        "kernel": [
            lambda **given: parprims.scan(x, "add", axis=1, **given),
            lambda **given: parprims.scan(x, mixed, axis=0, **given),
            lambda **given: parprims.cumulative_sum(x, axis=1, **given),
            lambda **given: parprims.linear_recurrence(x / 4, x, axis=1, **given),
        ],
        # So many arrays do not fit in the memory of a block.
        "array": [
            lambda **given: parprims.scan(wide, lambda a, b: tuple(map(lambda c, d: c + d, a, b)), axis=1, **given)
        ],
    }
    for method, functions in calls.items():
        for function in functions:
            with parprims.explain() as done:
                function(method="canonical")
                function(method=method)
            assert [(call.method, call.canonical) for call in done] == [(method, True), (method, method == "array")]

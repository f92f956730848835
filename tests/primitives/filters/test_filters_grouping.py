"""Laws of the bits of filters by kernels for CPUs and by SciPy: a result depends on the samples up to its own."""

import numpy as np
import pytest

import parprims
from tests.support.contract import random
from tests.support.laws import require_kernels_for_cpus

POLES = {1: [0.9], 2: [0.99, 0.98], 4: [0.9, 0.9, 0.5, -0.7], 14: list(np.linspace(-0.6, 0.6, 14))}


@pytest.fixture(params=["kernel", "native"])
def by(request, backend):
    require_kernels_for_cpus(backend)
    if request.param == "native" and backend.name.startswith("jax"):
        pytest.skip("inside of JAX's programs SciPy does not filter")
    return request.param


@pytest.fixture(params=["sections", *POLES], ids=str)
def filtered(request, backend, rng, by):
    """A function that filters an array of NumPy; with states, it returns these too."""
    if request.param == "sections":
        sections = np.array([[1.0, 0.2, 0.1, 1.0, -1.2, 0.4], [0.5, 0.1, 0.3, 2.0, 0.1, 0.3]])
        coefficients, call, shape = [sections], parprims.sosfilt, (2, 2)
    else:
        poles = POLES[request.param]
        coefficients = [rng.standard_normal(len(poles) + 1), np.poly(poles)]
        call, shape = parprims.lfilter, (len(poles),)

    def run(x, axis=-1, zi=None):
        kind = "float32" if x.dtype == np.float32 else "float64"
        given = [backend.asarray(one.astype(kind)) for one in coefficients]
        options = {"axis": axis, "method": by} | ({} if zi is None else {"zi": backend.asarray(zi)})
        found = call(*given, backend.asarray(x), **options)
        return backend.to_numpy(found) if zi is None else tuple(backend.to_numpy(one) for one in found)

    def states(x):
        rows = x.shape[:-1]
        return np.zeros((*shape[:-1], *rows, shape[-1]), x.dtype)

    run.states = states
    return run


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
class TestLaws:
    @pytest.fixture(autouse=True)
    def supported(self, backend, dtype):
        if not backend.supports(dtype):
            pytest.skip("has no such dtype")

    def test_a_line_is_alone_in_any_company(self, filtered, rng, dtype):
        for n in (1, 3, 33, 1000, 20_000):
            x = random(rng, (5, n), dtype)
            alone = np.stack([filtered(line) for line in x])
            np.testing.assert_array_equal(filtered(x), alone)
            np.testing.assert_array_equal(filtered(np.ascontiguousarray(x.T), axis=0).T, alone)
            np.testing.assert_array_equal(filtered(np.repeat(x, 2, 1)[:, ::2]), alone)

    def test_a_prefix_does_not_see_what_follows(self, filtered, rng, dtype):
        x = random(rng, (3, 20_000), dtype)
        whole = filtered(x)
        for n in (1, 2, 31, 33, 1000, int(rng.integers(1, 20_000))):
            np.testing.assert_array_equal(filtered(x[:, :n]), whole[:, :n])

    def test_a_line_goes_on_from_its_state(self, filtered, rng, dtype):
        """At every cut; a state of float32 is rounded."""
        if dtype == "float32":
            pytest.skip("a state of float32 is rounded")
        x = random(rng, (3, 20_000), dtype)
        whole = filtered(x)
        for cut in (1, 100, 8192, int(rng.integers(1, 20_000))):
            head, state = filtered(x[:, :cut], zi=filtered.states(x))
            rest, _ = filtered(x[:, cut:], zi=state)
            np.testing.assert_array_equal(np.concatenate([head, rest], axis=1), whole)

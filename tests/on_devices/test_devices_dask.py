"""Arrays of Dask, chunk by chunk, against the same calls on whole arrays."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import parprims
from tests.support import devices
from tests.support.sort_keys import hostile, stable

RNG = np.random.default_rng(28)
X, Y = RNG.standard_normal((2, 40))
KEYS = RNG.integers(-3, 4, 40)
TABLE, OTHER = RNG.standard_normal((12, 8)), RNG.standard_normal((8, 6))
EVERYWHERE = {"reproducible": "everywhere"}
STEPS = np.arange(40) % 7 == 0


def joined(x, y):
    return x + y + x * y


# Not the examples of the declarations: each option, dtype or axis here makes Dask compute chunks by another way.
CALLS = {
    "sum": (lambda x: parprims.sum(x), (X,)),
    "max": (lambda x: parprims.max(x, axis=0, keepdims=True), (TABLE,)),
    "sum of all": (lambda x: parprims.sum(x), (TABLE,)),
    "reduce": (lambda x: parprims.reduce(x, joined), (X,)),
    "map_reduce": (lambda x, y: parprims.map_reduce(np.multiply, x, y), (X, Y)),
    "half": (lambda x: parprims.sum(x), (X.astype(np.float16),)),
    "scan": (lambda x: parprims.scan(x, axis=0), (TABLE,)),
    "scan back": (lambda x: parprims.scan(x, joined, reverse=True, initial=0.5), (X,)),
    "scan of segments": (lambda f, x: parprims.scan((f, x), parprims.segmented("add"))[1], (STEPS, X)),
    "recurrence": (lambda a, b: parprims.linear_recurrence(a, b), (Y, X)),
    "recurrence of a constant": (lambda b: parprims.linear_recurrence(0.5, b, initial=2.0, reverse=True), (X,)),
    "sort": (lambda x: parprims.sort(x, axis=0), (TABLE,)),
    "argsort": (lambda x: parprims.argsort(x, descending=True), (KEYS,)),
    "sort_by_key": (lambda k, x: parprims.sort_by_key(k, x)[1], (KEYS, X)),
    "tridiagonal": (lambda d, b: parprims.solve_tridiagonal(1.0, d, -1.0, b), (X, Y)),
    "status": (lambda d, b: parprims.solve_tridiagonal(1.0, d, -1.0, b, return_status=True)[1], (X, Y)),
    "matmul": (lambda a, b: parprims.matmul(a, b), (TABLE, OTHER)),
    "paths": (lambda a, b: parprims.matmul(a, b, add="minimum", multiply="add"), (TABLE, OTHER)),
    "histogram": (lambda x: parprims.histogram(x, 5)[0], (X,)),
    "edges": (lambda x: parprims.histogram(x, 5)[1], (X,)),
    "weights": (lambda x, y: parprims.histogram(x, 5, weights=y)[0], (X, Y)),
    "sum everywhere": (lambda x: parprims.sum(x, **EVERYWHERE), (TABLE,)),
    "running sum everywhere": (lambda x: parprims.cumulative_sum(x, axis=0, **EVERYWHERE), (TABLE,)),
    "vecdot everywhere": (lambda x, y: parprims.vecdot(x, y, **EVERYWHERE), (X, Y)),
    "weights everywhere": (lambda x, y: parprims.histogram(x, 5, weights=y, **EVERYWHERE)[0], (X, Y)),
}


def chunked(x):
    """Return an array in chunks, cut unlike any other along the same axis."""
    dask = pytest.importorskip("dask.array")
    if x.ndim == 1:
        return dask.from_array(x, chunks=((10, 7, 23) if x is not Y else (20, 20),))
    return dask.from_array(x, chunks=(5, 3))


def same(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 if found.dtype != np.float16 else 2e-3)


def spoiled(x, odd):
    """Return an array with an element that is not finite, if it has floats."""
    if x.dtype.kind != "f":
        return x
    x = x.copy()
    x.reshape(-1)[17] = odd
    return x


@pytest.mark.once
@pytest.mark.parametrize("name", CALLS)
def test_call(name):
    call, arrays = CALLS[name]
    found = call(*map(chunked, arrays))
    expected = call(*arrays)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    for scheduler in ("sync", "threads"):
        same(found.compute(scheduler=scheduler), expected)


@pytest.mark.once
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_call_with_an_element_that_is_not_finite(name, odd):
    call, arrays = CALLS[name]
    arrays = [spoiled(x, odd) for x in arrays]
    same(call(*map(chunked, arrays)).compute(scheduler="sync"), call(*arrays))


ARRAYS = {
    **{name: (100 * X).astype(name) for name in ("int8", "uint64", "float16", "float32", "float64")},
    "bool": X > 0,
    "complex128": X + 1j,
    "not finite": np.where(X > 1, np.nan, np.where(X < -1, np.inf, X)),
    "zeros": np.where(X > 0, -0.0, 0.0),
    "one": X[:1],
    "table": TABLE,
    "empty": X[:0],
    "empty rows": TABLE[:, :0],
    "no rows": TABLE[:0],
    "number": np.asarray(3.0),
}

OF_ONE = {
    "sum": parprims.sum,
    "sum of rows": lambda x: parprims.sum(x, axis=0, keepdims=True),
    "sum everywhere": lambda x: parprims.sum(x, **EVERYWHERE),
    "running sum everywhere": lambda x: parprims.cumulative_sum(x, axis=-1, **EVERYWHERE),
    "weights everywhere": lambda x: parprims.histogram(x, 3, weights=x, **EVERYWHERE)[0],
    "max": parprims.max,
    "all": parprims.all,
    "vecdot": lambda x: parprims.vecdot(x, x),
    "map_reduce": lambda x: parprims.map_reduce(lambda v: v * v, x),
    "logaddexp": lambda x: parprims.reduce(x, "logaddexp"),
    "a dtype": lambda x: parprims.scan(x, dtype=np.float64),
    "cumulative_prod": lambda x: parprims.cumulative_prod(x, axis=-1),
    "cumulative_max": lambda x: parprims.cumulative_max(x, axis=0),
    "cumulative_logsumexp": lambda x: parprims.cumulative_logsumexp(x, axis=0),
    "scan back": lambda x: parprims.scan(x, reverse=True, exclusive=True),
    "scan with initial": lambda x: parprims.scan(x, initial=2),
    "scan with a float": lambda x: parprims.scan(x, "maximum", initial=2.5),
    "recurrence": lambda x: parprims.linear_recurrence(0.5, x),
    "recurrence back": lambda x: parprims.linear_recurrence(2, x, reverse=True, initial=1.0),
    "sort": parprims.sort,
    "argsort": lambda x: parprims.argsort(x, axis=0, descending=True),
    "sort_by_key": lambda x: parprims.sort_by_key(x, x),
    "tridiagonal": lambda x: parprims.solve_tridiagonal(1.0, x * x + 100, 1.0, x),
    "matmul": lambda x: parprims.matmul(x, x.T),
    "histogram": lambda x: parprims.histogram(x, 4),
    "range": lambda x: parprims.histogram(x, 4, range=(-1, 1)),
    "density": lambda x: parprims.histogram(x, 4, density=True),
    "list of edges": lambda x: parprims.histogram(x, [-1.0, 0, 0.5, 2]),
    "edges that descend": lambda x: parprims.histogram(x, [0.0, -1.0]),
}


def outcome(call, x):
    """Return the results of a call in a list, or its error."""
    try:
        found = call(x)
    except (TypeError, ValueError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    found = found if isinstance(found, tuple) else (found,)
    return [one.compute(scheduler="sync") if hasattr(one, "compute") else one for one in found]


@pytest.mark.once
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OF_ONE)
def test_chunks_are_refused_as_whole_arrays_are(name, subtests):
    """A call on chunks gives the result or the error, word for word, of the call on the whole array."""
    dask = pytest.importorskip("dask.array")
    for kind, x in ARRAYS.items():
        with subtests.test(kind):
            expected = outcome(OF_ONE[name], x)
            chunks = tuple(max(1, n // 3) for n in x.shape)
            found = outcome(OF_ONE[name], dask.from_array(x, chunks=chunks))
            if (name, kind) == ("tridiagonal", "float16"):
                assert "cast 16-bit floats to float32" in found
            elif isinstance(expected, str):
                assert found == expected
            else:
                for one, other in zip(found, expected, strict=True):
                    other = np.asarray(other)
                    assert (one.dtype, one.shape) == (other.dtype, other.shape)
                    rtol = 2e-3 if other.dtype == np.float16 else 1e-5 if other.dtype == np.float32 else 1e-12
                    np.testing.assert_allclose(one, other, rtol=rtol, atol=100 * rtol)


@pytest.mark.once
def test_the_number_of_tasks_is_linear():
    dask = pytest.importorskip("dask.array")
    calls = {
        "scan": lambda x: parprims.scan(x),
        "recurrence": lambda x: parprims.linear_recurrence(0.5, x),
        "sum": lambda x: parprims.sum(x),
        "tridiagonal": lambda x: parprims.solve_tridiagonal(1.0, x, 1.0, x),
        "histogram": lambda x: parprims.histogram(x)[0],
        "batches": lambda x: parprims.sort(dask.stack([x, x]).T, axis=1),
        "sort": lambda x: parprims.sort(x),
    }
    for name, call in calls.items():
        eight, sixteen = (len(dict(call(dask.ones(160, chunks=160 // n)).__dask_graph__())) for n in (8, 16))
        if name == "sort":
            assert sixteen < 4 * eight
            assert sixteen <= 16 * 16 + 16 * 60
        else:
            assert sixteen <= 2 * eight, name


@pytest.mark.once
@pytest.mark.parametrize("seed", range(2))
def test_splits_of_hostile_keys(seed):
    """In chunks of any lengths, so many that they gather the counts beside the cuts, or trade them."""
    core, dask = pytest.importorskip("dask"), pytest.importorskip("dask.array")
    rng = np.random.default_rng(seed)
    for name, x in hostile(60, rng).items():
        cuts = np.sort(rng.integers(0, len(x) + 1, rng.choice([1, 5, 20])))
        chunks = tuple(np.diff([0, *cuts, len(x)]).tolist())
        descending = bool(rng.integers(2))
        order = stable(x, descending)
        given = (dask.from_array(one, chunks=(chunks,)) for one in (x, np.arange(len(x))))
        keys, index = parprims.sort_by_key(*given, descending=descending)
        assert keys.chunks == index.chunks == (tuple(filter(None, chunks)),)
        keys, index = core.compute(keys, index, scheduler="sync")
        assert index.tolist() == order.tolist(), (name, chunks)
        assert keys.tobytes() == x[order].tobytes(), (name, chunks)


@pytest.mark.once
def test_what_is_told_and_refused():
    dask = pytest.importorskip("dask.array")
    x = dask.ones(40, chunks=10)
    with parprims.explain() as calls:
        y = parprims.scan(x)
    assert [(one.primitive, one.devices, [step.nbytes for step in one.steps]) for one in calls] == [("scan", 4, [24])]
    assert parprims.methods(parprims.scan, x)["array"] is None
    assert y.chunks == x.chunks
    with pytest.raises(ValueError, match="lengths of their chunks"):
        parprims.sum(x[x > 0])
    with pytest.raises(IndexError, match="axis 1"):
        parprims.scan(x, axis=1)
    with pytest.raises(TypeError, match="Dask"):
        parprims.linear_recurrence(x, X)
    rows = parprims.scan(dask.ones((40, 3), chunks=(10, 3)), axis=1)
    assert (rows.compute(scheduler="sync")[:, -1] == 3).all()


TOLD = {
    # A call of arrays of Dask of two axes in chunks of 500 x 300, four along each, the same of one chunk, and the bytes
    # that a chunk sends in each message, where the algorithm says how many these are.
    "scan": (lambda x: parprims.scan(x, axis=0), [("gather", 300 * 8 * 3)]),
    "sum": (lambda x: parprims.sum(x, axis=0), [("gather", 300 * 8 * 3)]),
    "recurrence": (lambda x: parprims.linear_recurrence(x, x, axis=0), [("gather", 2 * 300 * 8 * 3)]),
    "sort": (lambda x: parprims.sort(x, axis=1), [("exchange", 500 * 300 * 8 * 3 // 4)]),
    "tridiagonal": (lambda x: parprims.solve_tridiagonal(x, x, x, x), None),
    "whole axis": (lambda x: parprims.scan(x.rechunk((500, -1)) if hasattr(x, "rechunk") else x, axis=1), None),
}


@pytest.mark.once
@pytest.mark.parametrize("name", TOLD)
def test_tells_of_chunks_of_the_real_size(name):
    dask = pytest.importorskip("dask.array")
    call, expected = TOLD[name]
    with parprims.explain() as told:
        call(dask.ones((2000, 1200), chunks=(500, 300)))
    chunk = np.ones((500, 1200 if name == "whole axis" else 300))
    with parprims.explain() as own:
        call(chunk)
    assert [(one.primitive, one.method, one.refusals) for one in told] == [
        (one.primitive, one.method, one.refusals) for one in own
    ]
    steps = [(step.name, step.nbytes) for step in told[0].steps]
    assert expected is None or steps[-len(expected) :] == expected
    assert all(nbytes > 0 for _, nbytes in steps)


ROW, SQUARE, BLOCKS = X[:8], np.eye(8) + 1, np.ones((8, 2, 2)) + 4 * np.eye(2)

FUNCTIONS = {
    # A call of every public function, on arrays of 8 elements or rows each of which is split in two.
    **dict.fromkeys(("all", "any"), (ROW > 0,)),
    **dict.fromkeys(
        "argmax argmin argsort cumulative_logsumexp cumulative_max cumulative_min cumulative_prod cumulative_sum "
        "max median min prod reduce run_lengths scan sort sum unique".split(),
        (ROW,),
    ),
    **dict.fromkeys(("argpartition", "histogram", "partition", "top_k"), (ROW, 3)),
    **dict.fromkeys(("linear_recurrence", "merge", "searchsorted", "sort_by_key", "vecdot"), (ROW, ROW)),
    **dict.fromkeys(("partition_by", "select"), (ROW, ROW > 0)),
    "lfilter": (ROW, ROW, ROW),
    "map_reduce": (lambda x: x * x, ROW),
    "matmul": (SQUARE, SQUARE),
    "merge_by_key": (ROW,) * 4,
    "quantile": (ROW, 0.3),
    "segment_reduce": (ROW, np.arange(8) // 2, 4),
    "solve_banded": ((0, 1), np.ones((2, 8)), ROW),
    "solve_block_tridiagonal": (BLOCKS, 4 * BLOCKS, BLOCKS, np.ones((8, 2))),
    "solve_tridiagonal": (ROW, ROW, ROW, ROW),
    "sosfilt": (np.ones((1, 6)), ROW),
}


@pytest.mark.once
def test_docs_list_the_functions_that_serve_chunks():
    dask = pytest.importorskip("dask.array")
    page = (Path(__file__).parents[2] / "docs" / "devices.md").read_text()
    rows = re.findall(r"^\| (taken|refused) \|(.*)$", page, re.MULTILINE)
    listed = {kind: set(re.findall(r"`(\w+)=?`", row)) for kind, row in rows}
    public = [getattr(parprims, name) for name in parprims.__all__]
    computing = {
        one.__name__ for one in public if inspect.isfunction(one) and "method" in inspect.signature(one).parameters
    }
    assert computing == FUNCTIONS.keys() == listed["taken"] | (listed["refused"] - {"offsets", "return_indices"})

    def halves(x):
        return dask.from_array(x, chunks=tuple(max(n // 2, 1) for n in x.shape))

    for name, arguments in FUNCTIONS.items():
        given = [halves(one) if isinstance(one, np.ndarray) else one for one in arguments]
        if name in listed["taken"]:
            range_ = {"range": (0.0, 1.0)} if name == "histogram" else {}
            getattr(parprims, name)(*given, **range_)
        else:
            with pytest.raises(TypeError, match="no driver for chunks"):
                getattr(parprims, name)(*given)


@pytest.mark.once
def test_on_a_cluster(subtests):
    pytest.importorskip("dask.array")
    pytest.importorskip("distributed")
    for name, raised in devices.outcomes("tests.on_devices.test_devices_dask", 1).items():
        with subtests.test(check=name):
            assert not raised, raised


# ---- In a process of its own, with workers in others ----------------------------------------------------------------

LIMIT = 640 * 2**20
"""The memory that the worker may use, in bytes; less than half of it is taken by the libraries."""


def check_calls_on_a_cluster():
    import distributed

    settings = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**settings) as cluster, distributed.Client(cluster):
        for name in ("scan", "recurrence", "argsort", "tridiagonal", "matmul"):
            call, arrays = CALLS[name]
            same(call(*map(chunked, arrays)).compute(), call(*arrays))


def check_four_times_the_memory_of_the_worker():
    import dask.array
    import distributed

    n, count = 4 * LIMIT // 8, 64
    settings = {"threads_per_worker": 1, "memory_limit": LIMIT, "dashboard_address": None}
    with distributed.LocalCluster(1, **settings) as cluster, distributed.Client(cluster):
        x = dask.array.ones(n // count * count, chunks=n // count)
        y = parprims.scan(x)
        assert x.nbytes >= 4 * LIMIT * 0.99
        assert float(parprims.max(y).compute()) == x.size


if __name__ == "__main__":
    devices.run_all(globals())

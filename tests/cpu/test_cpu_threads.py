"""The threads of kernels for CPUs: how many there may be, and that they are shared."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import parprims
from parprims._cpu import limits, threads
from parprims._primitives.reduce import cpu as reduce_cpu
from tests.emulation import emulator
from tests.support.recurrences import in_blocks

pytestmark = pytest.mark.once


@pytest.fixture
def four_cpus(monkeypatch):
    monkeypatch.setattr(limits, "_cpus", lambda: 4)
    monkeypatch.setattr(limits, "quota", lambda: None)
    for name in ("OMP_NUM_THREADS", "PARPRIMS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    limits._in_environment.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    limits._in_environment.cache_clear()


def set_in_environment(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    limits._in_environment.cache_clear()


def run(program, *paths):
    """Return what a program prints, in a process of its own."""
    code = textwrap.dedent(program)
    given = os.environ | {"PYTHONPATH": os.pathsep.join([*map(str, paths), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=given, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_limits_of_the_environment(four_cpus):
    assert limits.limit() == 4
    set_in_environment(four_cpus, "OMP_NUM_THREADS", "3,1")
    assert limits.limit() == 3
    set_in_environment(four_cpus, "PARPRIMS_NUM_THREADS", "2")
    assert limits.limit() == 2
    set_in_environment(four_cpus, "PARPRIMS_NUM_THREADS", "99")
    assert limits.limit() == 4
    four_cpus.setattr(limits, "quota", lambda: 2)
    assert limits.limit() == 2


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs Linux")
def test_the_affinity_of_now_is_followed(four_cpus):
    four_cpus.undo()
    four_cpus.delenv("OMP_NUM_THREADS", raising=False)
    limits._in_environment.cache_clear()
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert limits.limit() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert limits.limit() == min(len(before), limits.quota() or len(before))


@pytest.mark.parametrize(
    ("line", "files", "expected"),
    [
        ("0::/", {"cpu.max": "250000 100000\n"}, 3),
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/", {"cpu.max": "1000 100000\n"}, 1),
        ("0::/a/b", {"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000\n"}, 2),
        ("0::/not/seen/here", {"cpu.max": "150000 50000\n"}, 3),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "400000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 4),
        ("4:cpu,cpuacct:/a", {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None),
        ("4:memory:/a", {"cpu/a/cpu.cfs_quota_us": "400000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, None),
        ("0::/", {"cpu.max": "unheard of"}, None),
        ("0::/", {}, None),
    ],
)
def test_quota_of_control_groups(tmp_path, line, files, expected):
    groups, folder = tmp_path / "groups", tmp_path / "fs"
    groups.write_text(f"{line}\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    assert limits.quota.__wrapped__(str(groups), str(folder)) == expected
    assert limits.quota.__wrapped__(str(tmp_path / "missing"), str(folder)) is None


LIKE_THREADPOOLCTL = """
    class LibController:
        pass
    controllers = []
    def register(controller):
        controllers.append(controller)
"""


def test_what_threadpoolctl_is_told(tmp_path):
    """The controller as threadpoolctl calls it, which need not be installed here."""
    (tmp_path / "threadpoolctl.py").write_text(textwrap.dedent(LIKE_THREADPOOLCTL))
    found = run(
        """
        import threading
        import parprims, threadpoolctl
        from parprims._cpu import limits
        limits._cpus, limits.quota, limits._in_environment = lambda: 4, lambda: None, lambda: None
        (kind,) = threadpoolctl.controllers
        one = kind()
        def elsewhere():
            found = []
            thread = threading.Thread(target=lambda: found.append(limits.limit()))
            thread.start()
            thread.join()
            return found[0]
        before = one.get_num_threads()
        one.set_num_threads(2)
        print(before, limits.limit(), one.get_num_threads(), elsewhere())
        one.set_num_threads(before)
        limits._cpus = lambda: 6
        print(limits.limit())
        """,
        tmp_path,
    )
    assert found.split() == ["4", "2", "2", "4", "6"]


@pytest.mark.usefixtures("four_cpus")
def test_limits_of_threadpoolctl():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    with threadpoolctl.threadpool_limits(1):
        assert limits.limit() == 1
        with threadpoolctl.threadpool_limits({"parprims": 3}):
            assert limits.limit() == 3
        assert limits.limit() == 1
        with threadpoolctl.threadpool_limits(2, user_api="blas"):
            assert limits.limit() == 1
    assert limits.limit() == 4


def test_a_broken_threadpoolctl_is_left_alone(tmp_path):
    (tmp_path / "threadpoolctl.py").write_text("raise RuntimeError")
    assert run("import parprims; print(1)", tmp_path).split() == ["1"]
    (tmp_path / "threadpoolctl.py").write_text("")  # one so old that nothing can be registered
    assert run("import parprims; print(1)", tmp_path).split() == ["1"]


def test_tasks_are_done_once(monkeypatch):
    monkeypatch.setattr(threads, "_pool", None)
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        done = np.zeros(1001, dtype=int)

        def task(begin, end, done=done):
            done[begin:end] += 1

        threads.run(task, len(done), 10)
        assert (done == 1).all()
    assert threads._active == 0


@pytest.mark.parametrize("where", ["the caller", "a helper"])
def test_errors_of_tasks(monkeypatch, where):
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threads, "limit", lambda: 3)
    caller = threading.get_ident()
    failed = threading.Event()

    def fails(*_):
        if (threading.get_ident() == caller) == (where == "the caller"):
            failed.set()
            raise ArithmeticError(where)
        failed.wait(10)  # so that the other comes to it too

    with pytest.raises(ArithmeticError, match=where):
        threads.run(fails, 1000, 10)
    assert threads._active == 0


def most_at_once(callers, limit, monkeypatch):
    """Return how many tasks run at the same time at most, from when all callers are at one."""
    monkeypatch.setattr(threads, "_pool", None)
    monkeypatch.setattr(threads, "limit", lambda: limit)
    lock, all_came, settled = threading.Lock(), threading.Barrier(callers), threading.Event()
    calling, came, running, seen = set(), set(), set(), []

    def task(*_):
        me = threading.get_ident()
        if me in calling - came:
            came.add(me)
            all_came.wait(10)
            time.sleep(0.05)  # in which helpers that are too many come to the end of their range
            settled.set()
        with lock:
            running.add(me)
            if settled.is_set():
                seen.append(len(running))
        time.sleep(0.02)  # of the 16 ranges helpers have not done all by the time that the caller has settled
        with lock:
            running.discard(me)

    def call():
        calling.add(threading.get_ident())
        threads.run(task, 40, 1)

    others = [threading.Thread(target=call) for _ in range(callers)]
    for one in others:
        one.start()
    for one in others:
        one.join()
    return max(seen)


def test_callers_share_the_limit(monkeypatch):
    for callers, most in ((1, 4), (5, 5)):
        # On a busy machine not all come in time at once: the greatest number of several rounds is the limit.
        assert max(most_at_once(callers, 4, monkeypatch) for _ in range(5)) == most
    assert threads._active == 0


def test_a_larger_limit_gets_more_threads(monkeypatch):
    monkeypatch.setattr(threads, "_pool", None)
    for count in (2, 5):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        met = threading.Barrier(count)
        # Ranges of which so many at once need as many threads.
        threads.run(lambda *_, met=met: met.wait(10), count * (count - 1), 1)


def test_threads_have_enough_to_do(monkeypatch):
    """Small calls wake few threads of many: each costs as much as the least work for one."""
    monkeypatch.setattr(threads, "limit", lambda: 16)
    woken = []
    monkeypatch.setattr(threads, "_submitted", lambda _, count, __: woken.append(count) or [])
    for work, expected in ((1, None), (2, 2), (5, 2), (6, 3), (32, 6), (239, 15), (240, 16), (10**6, 16)):
        woken.clear()
        threads.run(lambda *_: None, 100 * work, 100)
        assert woken == ([] if expected is None else [expected - 1])


def test_calls_while_python_ends():
    """No thread can be started any more: the caller does all."""
    pytest.importorskip("numba")
    found = run("""
        import atexit
        import numpy as np, parprims
        from parprims._cpu import threads
        threads.limit = lambda: 3
        x = np.ones((4, 200_000))
        parprims.cumulative_sum(x, axis=1, method="kernel")
        atexit.register(lambda: print(parprims.cumulative_sum(x, axis=1, method="kernel")[:, -1].sum()))
    """)
    assert float(found) == 800_000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_while_another_thread_compiles():
    """The child can compile: it begins when what was being compiled is done."""
    pytest.importorskip("numba")
    found = run("""
        import os, threading, time, warnings
        warnings.simplefilter("ignore")
        import numpy as np, parprims
        from parprims._cpu import compiler
        os.environ["PARPRIMS_CACHE_DIR"] = ""
        parprims.scan(np.ones(5), lambda e, l: e * 0.5 + l, method="kernel")
        begun, kept = threading.Event(), compiler._kept
        def slowly(text):
            begun.set()
            time.sleep(0.3)
            return kept(text)
        compiler._kept = slowly
        other = threading.Thread(target=lambda: parprims.scan(np.ones(5), lambda e, l: e * 0.25 + l, method="kernel"))
        other.start()
        begun.wait()
        child = os.fork()
        if not child:
            found = parprims.scan(np.ones(5), lambda e, l: e * 2 + l, method="kernel")
            os._exit(0 if found[-1] == 31 else 1)
        for _ in range(600):
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                break
            time.sleep(0.1)
        else:
            os.kill(child, 9)
            status = 1
        other.join()
        print(status)
    """)
    assert found.strip() == "0"


def test_limits_hold_for_kernels(monkeypatch):
    """A kernel of one thread has one, and the bits are those of seven."""
    pytest.importorskip("numba")
    x = np.random.default_rng(2).standard_normal((3, 200_000))
    found = []
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        monkeypatch.setattr(threads, "_pool", None)
        found.append(parprims.cumulative_sum(x, axis=1, method="kernel"))
        assert (threads._pool is None) == (count == 1)
    for one in found[1:]:
        np.testing.assert_array_equal(found[0], one)


@pytest.mark.parametrize("function", [parprims.sum, parprims.cumulative_sum, parprims.max])
def test_memory_is_read_by_one_thread_while_that_takes_no_longer(monkeypatch, function):
    """Another thread is woken from some bytes on that are moved, and for much to compute from fewer elements on."""
    pytest.importorskip("numba")
    each = 16 if function is parprims.cumulative_sum else 8  # read, and written too
    monkeypatch.setattr(threads, "limit", lambda: 2)
    for elements, several in ((2**22 // each - 2**14, False), (2**22 // each, True)):
        emulator.forget(monkeypatch)
        monkeypatch.setattr(threads, "_pool", None)
        function(np.ones((16, elements // 16)), axis=1, method="kernel")
        assert (threads._pool is not None) == several
    monkeypatch.setattr(threads, "_pool", None)
    parprims.scan(np.ones((16, 2**13)), "logaddexp", axis=1, method="kernel")
    assert threads._pool is not None


def coefficients(rng, kind, shape, dtype):
    """Return the coefficients of a recurrence that decays, or not, or does so in parts."""
    a = np.ones(shape, dtype)
    if kind == "decays":
        a[:] = rng.uniform(-1, 1, shape)
    elif kind == "decays slowly":
        a[:] = 0.9995
    elif kind == "in parts":  # across bounds of what the threads begin with
        a[..., 90_000:170_000] = 0.5
        a[..., 200_000:] = -0.9
    elif kind == "grows":
        a[:] = -1.001
    elif kind == "turns":
        a[:] = np.exp(1j * rng.uniform(0, 6, shape)) * 0.99 if a.dtype.kind == "c" else -1
    return a


def many_threads(monkeypatch):
    """Have threads share lines of 2^18 elements, and forget calls that were made ready before."""
    from parprims._primitives.scan import cpu as scan_cpu

    emulator.forget(monkeypatch)
    monkeypatch.setattr(scan_cpu, "_LEAST", 1 << 14)
    monkeypatch.setattr(threads, "ELEMENTS", 1 << 14)


@pytest.mark.parametrize("kind", ["decays", "decays slowly", "in parts", "keeps", "grows", "turns"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex64"])
@pytest.mark.parametrize("lines", [(), (3,)])
@pytest.mark.parametrize("option", ["none", "reverse", "initial"])
def test_threads_that_share_a_line(monkeypatch, kind, dtype, lines, option):
    """A long recurrence has the bits of one thread."""
    pytest.importorskip("numba")
    many_threads(monkeypatch)
    rng = np.random.default_rng(len(kind))
    shape = (*lines, 2**18 + 4321)
    a, b = coefficients(rng, kind, shape, dtype), rng.standard_normal(shape).astype(dtype)
    b[..., 100_000:100_400] = 0  # of both signs
    b[..., 100_100:100_200] *= -1
    b[..., 230_000] = np.inf if lines else 0
    start = rng.standard_normal(lines).astype(dtype)
    options = {"none": {}, "reverse": {"reverse": True}, "initial": {"initial": start}}[option]
    found = []
    for count in (1, 2, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        found.append(parprims.linear_recurrence(a, b, method="kernel", **options))
    bits = [one.view(f"u{one.real.itemsize}") for one in found]
    np.testing.assert_array_equal(bits[0], bits[1])
    np.testing.assert_array_equal(bits[0], bits[2])


def test_a_long_line_that_decays_is_that_of_a_loop(monkeypatch):
    pytest.importorskip("numba")
    rng = np.random.default_rng(6)
    a = coefficients(rng, "decays", (1, 2**18 + 4321), "float64")
    b = rng.standard_normal(a.shape)
    emulator.forget(monkeypatch)
    found = parprims.linear_recurrence(a, b, method="kernel")[0]
    np.testing.assert_array_equal(found, in_a_loop(a[0], b[0]))


def in_a_loop(a, b, x=0.0):
    """Return the solution of a recurrence that follows x."""
    found = []
    for c, d in zip(a.tolist(), b.tolist(), strict=True):
        x = c * x + d
        found.append(x)
    return np.array(found)


@pytest.mark.parametrize("kind", ["keeps", "resets", "shrinks and grows", "overflows", "is lost", "has NaN", "grows"])
@pytest.mark.parametrize("n", [2**17, 2**17 + 1, 2**17 + 1023, 2**17 + 1025])
def test_parts_of_a_line_that_does_not_decay(monkeypatch, kind, n):
    """Parts that are composed leave what a loop does, up to its bound; those that cannot be composed are walked."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(n)
    a, b = rng.choice([-1.0, 1.0], n) * rng.uniform(0.999, 1.001, n), rng.standard_normal(n)
    if kind == "resets":
        a[rng.integers(2000, n, 20)] = 0
    elif kind == "shrinks and grows":  # the factor is lost on the way, or is infinite, and the state is not
        a[5000:5004] = 1e-200, 1e-200, 1e200, 1e200
        b[4990:5010] = 0
        a[7000:7004] = 1e-250, 1e250, 1e250, 1e-250
        b[6990:7010] = 0
    elif kind == "overflows":  # only where it begins with 0
        a[:], b[5000] = 1, 1.5e308
        b[9000:9002] = -1e308, -1e308
        b[9002:9004] = 1e308
    elif kind == "is lost":  # but for what a factor below all bounds leaves of it
        b[:] = 0
        b[0], a[5000:5128] = 1e300, 1e-3
    elif kind == "has NaN":
        b[9000], b[9500], a[100_000] = np.inf, -np.inf, np.nan
    elif kind == "grows":
        a *= 1.02
    with np.errstate(all="ignore"):
        expected, sizes = in_a_loop(a, b), in_a_loop(abs(a), abs(b))
        found = []
        for count in (1, 2, 7):
            monkeypatch.setattr(threads, "limit", lambda count=count: count)
            found.append(parprims.linear_recurrence(a, b, method="kernel"))
        np.testing.assert_array_equal(found[0].view("u8"), found[1].view("u8"))
        np.testing.assert_array_equal(found[0].view("u8"), found[2].view("u8"))
        np.testing.assert_array_equal(np.isfinite(found[0]), np.isfinite(expected))
        np.testing.assert_array_equal(np.isnan(found[0]), np.isnan(expected))
        far = abs(found[0] - expected) > 2.0**-53 * 4 * np.arange(1, n + 1) * sizes
    assert not far[np.isfinite(expected) & np.isfinite(sizes)].any()


@pytest.mark.parametrize("kind", ["decays", "decays slowly", "keeps", "grows"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_two_places_at_once(monkeypatch, kind, dtype):
    """Halves of a line, and pairs of lines, that one thread walks side by side have the bits of blocks in order."""
    pytest.importorskip("numba")
    rng = np.random.default_rng(len(kind))
    for shape in ((8191,), (8192,), (8193,), (3, 9001), (20_001,), (70_000,), (4, 300), (5, 300), (7, 1), (65, 2500)):
        a, b = coefficients(rng, kind, shape, dtype), rng.standard_normal(shape).astype(dtype)
        expected = in_blocks(a, b)
        for count in (1, 3):
            monkeypatch.setattr(threads, "limit", lambda count=count: count)
            found = parprims.linear_recurrence(a, b, method="kernel")
            np.testing.assert_array_equal(found.view(f"u{b.itemsize}"), expected.view(f"u{b.itemsize}"))


def test_constant_coefficients_of_a_shared_line(monkeypatch):
    pytest.importorskip("numba")
    many_threads(monkeypatch)
    b = np.random.default_rng(4).standard_normal((2**18 + 99, 2))
    for a in (0.9, 1.0):
        found = []
        for count in (1, 2, 7):
            monkeypatch.setattr(threads, "limit", lambda count=count: count)
            found.append(parprims.linear_recurrence(np.array(a), b, axis=0, method="kernel"))
        np.testing.assert_array_equal(found[0].view("u8"), found[1].view("u8"))
        np.testing.assert_array_equal(found[0].view("u8"), found[2].view("u8"))


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"exclusive": True}, {"initial": 3}], ids=str)
@pytest.mark.parametrize("n", [2**18, 2**18 + 1, 2**18 + 33, 2**18 + 2049])
def test_threads_that_share_a_line_of_a_scan(monkeypatch, options, n):
    """Of floats, whose pieces are in groups, and of integers, which are exact: with the bits of one thread."""
    pytest.importorskip("numba")
    many_threads(monkeypatch)
    rng = np.random.default_rng(n)
    x, two = rng.standard_normal(n, np.float32), rng.integers(-100, 100, (2, n), np.int64)
    sums = []
    for count in (1, 2, 3, 7):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        with parprims.explain() as told:
            sums.append([parprims.scan(one, "add", axis=-1, method="kernel", **options) for one in (x, two)])
        assert [one.method for one in told] == ["kernel"] * 2
    for floats, integers in sums[1:]:
        assert floats.tobytes() == sums[0][0].tobytes()
        assert integers.tobytes() == sums[0][1].tobytes()
    way = slice(None, None, -1) if options.get("reverse") else slice(None)
    wanted = np.cumsum(two[:, way], axis=1)
    wanted = (wanted - two[:, way] if options.get("exclusive") else wanted + options.get("initial", 0))[:, way]
    np.testing.assert_array_equal(sums[-1][1], wanted)


def counts_of_tasks(monkeypatch):
    """Return a list to which every call of `threads.run` from now on adds the number of its tasks."""
    found, run = [], threads.run
    monkeypatch.setattr(threads, "run", lambda *task: (found.append(task[1]), run(*task))[1])
    return found


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"exclusive": True}], ids=str)
@pytest.mark.parametrize("n", [2**19, 2**19 + 1, 2**19 + 2050])
def test_threads_share_a_line_of_a_scan_by_any_operator(monkeypatch, options, n):
    """Two do too, where an operator takes longer than memory: one scans the front while the other weighs the rest."""
    pytest.importorskip("numba")
    many_threads(monkeypatch)
    rng = np.random.default_rng(n)
    a, b = rng.uniform(-1, 1, n), rng.standard_normal(n)
    op = parprims.Operator(lambda f, g: (f[0] * g[0], f[1] * g[0] + g[1]), identity=(1.0, 0.0))
    found, launched = [], counts_of_tasks(monkeypatch)
    for count in (1, 2, 3, 100):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        launched.clear()
        found.append(parprims.scan((a, b), op, method="kernel", **options))
        assert (len(launched) > 1) == (count > 1)
    for others in found[1:]:
        for one, other in zip(found[0], others, strict=True):
            assert one.tobytes() == other.tobytes()
    several = parprims.scan(b, "logaddexp", method="kernel", **options)
    monkeypatch.setattr(threads, "limit", lambda: 1)
    assert parprims.scan(b, "logaddexp", method="kernel", **options).tobytes() == several.tobytes()


def test_a_line_is_not_shared_where_others_have_the_threads(monkeypatch):
    """To share one takes more work, which no other thread would do."""
    pytest.importorskip("numba")
    many_threads(monkeypatch)
    monkeypatch.setattr(threads, "limit", lambda: 2)
    x, launched = np.random.default_rng(8).standard_normal(2**19), counts_of_tasks(monkeypatch)
    shared = parprims.scan(x, "logaddexp", method="kernel")
    count = len(launched)
    monkeypatch.setattr(threads, "_active", 1)
    alone = parprims.scan(x, "logaddexp", method="kernel")
    assert count > 1
    assert len(launched) - count <= 1
    assert alone.tobytes() == shared.tobytes()


def test_running_maxima(monkeypatch):
    """Elements that change nothing are passed by, and the results are those of one after another on any threads."""
    pytest.importorskip("numba")
    many_threads(monkeypatch)
    n = 2**17 + 77
    noise = np.random.default_rng(6).standard_normal(n).astype(np.float32)
    rising = np.trunc(np.linspace(-40, 40, n)).astype(np.float32)  # with zeros of both signs
    broken = noise.copy()
    broken[[n // 2, n - 5]] = np.nan
    for x in (noise, rising, broken, noise[:33], rising[:31], noise[:1]):
        index = np.arange(x.size)
        largest = np.maximum.accumulate(x)
        wins = np.append(True, (x[1:] > largest[:-1]) | (np.isnan(x[1:]) & ~np.isnan(largest[:-1])))
        places = np.maximum.accumulate(np.where(wins, index, 0))
        for count in (1, 7):
            monkeypatch.setattr(threads, "limit", lambda count=count: count)
            value, place = parprims.scan((x, index), "argmax", method="kernel")
            assert value.tobytes() == x[places].tobytes()
            np.testing.assert_array_equal(place, places)


def test_few_columns(monkeypatch):
    """Many threads share adjacent lines where they are long, and few walk them side by side: with the same bits."""
    pytest.importorskip("numba")
    many_threads(monkeypatch)
    x = np.random.default_rng(7).standard_normal((2**17 + 99, 3)).astype(np.float32)
    found = []
    for count in (1, 3, 9):
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        sums = parprims.scan(x, axis=0, method="kernel")
        totals = parprims.scan(x, axis=0, exclusive=True, reverse=True, method="kernel")
        solution = parprims.linear_recurrence(x * np.float32(0.3), x, axis=0, method="kernel")
        found.append([one.tobytes() for one in (sums, totals, solution)])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("op", ["add", "maximum", "logaddexp"])
@pytest.mark.parametrize("shape", [(3, 9000), (600, 3001), (257, 513), (2, 300, 1000)])
def test_tiles_of_columns(monkeypatch, op, shape):
    """More threads have narrower tiles of columns, with the same bits as one column at a time."""
    pytest.importorskip("numba")
    x = np.random.default_rng(8).standard_normal(shape).astype(np.float32)
    found, widths = [], set()
    for count in (1, 2, 7, 100):
        emulator.forget(monkeypatch)
        monkeypatch.setattr(threads, "limit", lambda count=count: count)
        found.append(parprims.reduce(x, op, axis=-2, method="kernel"))
        (launch, *_) = parprims.launches(parprims.reduce, x, op, axis=-2, method="kernel")
        assert launch.name == "reduce_columns"
        widths.add(launch.grid)
    emulator.forget(monkeypatch)
    monkeypatch.setattr(threads, "limit", lambda: 1)
    monkeypatch.setattr(reduce_cpu, "_COLUMNS", 16)
    monkeypatch.setattr(reduce_cpu, "_MOST_COLUMNS", 16)
    found.append(parprims.reduce(x, op, axis=-2, method="kernel"))
    for one in found[1:]:
        np.testing.assert_array_equal(found[0], one)
    assert len(widths) > 1

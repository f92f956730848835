"""First calls: launches that find nothing to do are left out while they compile."""

import dataclasses
import functools
import os
import subprocess
import sys
import threading
import time
import types
from typing import ClassVar

import numpy as np
import pytest

import parprims
from parprims import _cuda
from parprims._compiling import first_call
from parprims._cuda import compiler as compiler_module
from parprims._cuda import runner as runner_module
from tests.emulation import emulator
from tests.gpu import test_cuda, test_cuda_compiler
from tests.primitives.histogram.test_histogram_weights import ALWAYS, sort_bytes
from tests.primitives.tridiagonal.test_tridiagonal import backward_error, gtsv
from tests.primitives.tridiagonal.test_tridiagonal_kernel import solved
from tests.support.fake_driver import Graph
from tests.support.text_plans import text_plan, with_body

compiler, library = test_cuda_compiler.compiler, test_cuda.library


def plan():
    """Return a plan that leaves numbers over 100 as they are, negates those below 0, and halves those below -100."""
    one = text_plan("", "", 1, (((1,), "int64"),), (), 1, 32, zeroed_bytes=16)
    several = with_body(one, "check", "negate", "halve")
    check, negate, halve = several.launches
    launches = check, dataclasses.replace(negate, if_any=(1,)), dataclasses.replace(halve, if_any=(1, 3))
    return dataclasses.replace(several, launches=launches)


def expected(number):
    return number if number >= 0 else -number // 2 if number < -100 else -number


def gated(library, monkeypatch, *names):
    """Let kernels of these names compile when the test says so."""
    kept = compiler_module.compiled
    gates = {name: threading.Event() for name in names}
    begun, errors = [], {}

    def compiled(text, arch):
        (name,) = [one for one in gates if f"\n{one}\n}}" in text]
        begun.append(name)
        assert gates[name].wait(60)
        if name in errors:
            raise errors.pop(name)
        return kept(text, arch)

    monkeypatch.setattr(compiler_module, "compiled", compiled)
    monkeypatch.setattr(compiler_module.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(compiler_module, "_under_way", {})
    library.nbytes, library.stream = 16, 7
    return types.SimpleNamespace(library=library, driver=library.driver, gates=gates, begun=begun, errors=errors)


@pytest.fixture
def first(library, monkeypatch):
    """A plan's runner whose kernels compile when the test says so."""
    made = gated(library, monkeypatch, "check", "negate", "halve")
    made.runner = _cuda.Runner(None, plan(), 0)
    yield made
    for gate in made.gates.values():
        gate.set()


def compiled(first, *names):
    """Let kernels compile, and wait until they have."""
    for name in names:
        first.gates[name].set()
    end = time.monotonic() + 60
    while any(f"\n{name}\n}}" in text for text, _ in [*compiler_module._under_way] for name in names):
        assert time.monotonic() < end
        time.sleep(0.001)


def launched(first):
    """Return the kernels that have been launched since this was asked."""
    names = [name for _, name in first.driver.log if name in first.gates]
    first.driver.log.clear()
    return names


def called(first, number, kernel=None):
    """Return what a call gives."""
    x = first.library.of(number)
    (y,) = (kernel or first.runner)(x)
    first.driver.run()
    assert x.value == number
    assert all(not any(bytes(one)[:16]) for one in scratch(first)), "zeroed scratch is not zero"
    return y.value


def scratch(first):
    return [first.driver.memory[address] for address, _ in first.library.own._scratch.values()]


class TestLeftOut:
    def test_nothing_is_left(self, first):
        """The call does not wait for what would do nothing, nor does the next."""
        first.gates["check"].set()
        assert called(first, 5) == 5
        assert called(first, 6) == 6
        assert launched(first) == ["check", "check"]
        assert not first.runner._packets
        compiled(first, "negate", "halve")
        assert [called(first, number) for number in (7, -7, -700)] == [7, 7, 350]
        assert launched(first) == ["check", "negate", "halve"] * 3
        assert sorted(first.begun) == ["check", "halve", "negate"]

    @pytest.mark.parametrize("number", [5, -5, -500])
    @pytest.mark.parametrize("ready", [(), ("negate",), ("halve",), ("negate", "halve")])
    def test_something_is_left(self, first, number, ready):
        """The call waits for as much as it needs, whatever has been compiled before."""
        with first.library.own.prepares(0):
            first.runner._begin()
        compiled(first, "check", *ready)
        wanted = {"negate"} if number < 0 else set()
        wanted |= {"halve"} if number < -100 else set()
        waiting = [name for name in wanted if name not in ready]
        threading.Timer(0.05, lambda: [first.gates[name].set() for name in waiting]).start()
        assert called(first, number) == expected(number)
        assert set(launched(first)) == {"check", *(first.gates if len(ready) == 2 else wanted)}
        assert all(first.gates[name].is_set() == (name in ready or name in wanted) for name in ("negate", "halve"))
        compiled(first, "negate", "halve")
        assert [called(first, number) for number in (5, -5, -500)] == [5, 5, 250]

    def test_later_calls_do_not_look(self, first):
        """Once all is compiled, a call waits for nothing."""
        first.gates["check"].set()
        called(first, 5)
        compiled(first, "check", "negate", "halve")
        called(first, 5)
        asked = []
        first.driver.before = asked.append
        first.runner(first.library.of(5))
        assert set(asked) <= {"cuLaunchKernelEx", "cuStreamIsCapturing", "cuStreamGetId"}
        assert asked.count("cuLaunchKernelEx") == 3

    def test_what_is_needed_first_begins_first(self, first, monkeypatch):
        monkeypatch.setattr(compiler_module.os, "cpu_count", lambda: 1)
        for gate in first.gates.values():
            gate.set()
        called(first, -500)
        assert first.begun == ["check", "negate", "halve"]

    def test_another_runner(self, first):
        """What one has begun to compile, another does not begin again."""
        first.gates["check"].set()
        assert called(first, 5) == 5
        other = _cuda.Runner(None, plan(), 0)
        assert called(first, 6, other) == 6
        compiled(first, "negate", "halve")
        assert called(first, -6, other) == 6
        assert called(first, -5) == 5
        assert sorted(one for one in first.begun if one != "check") == ["halve", "negate"]

    def test_a_second_thread(self, first):
        """Two threads call at the same time, on one stream: one has something to do, the other nothing."""
        found = {}

        def work(number):
            first.driver.current.value = 0xC0DE
            x = first.library.of(number)
            found[number] = x, first.runner(x)[0]

        threads = [threading.Thread(target=work, args=(number,)) for number in (5, -500, 6, -7)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        first.gates["check"].set()
        time.sleep(0.05)
        first.gates["halve"].set()
        time.sleep(0.05)
        first.gates["negate"].set()
        for thread in threads:
            thread.join(60)
        first.driver.run()
        assert {number: y.value for number, (_, y) in found.items()} == {5: 5, -500: 250, 6: 6, -7: 7}
        assert called(first, -500) == 250

    def test_captured(self, first):
        """A graph has every launch, for another replay may need it."""
        threading.Timer(0.05, lambda: [gate.set() for gate in first.gates.values()]).start()
        x = first.library.of(5)
        with Graph(first.driver, 7) as graph:
            (y,) = first.runner(x)
        assert launched(first) == ["check", "negate", "halve"]
        for number in (5, -5, -500):
            x.value = number
            graph.launch(100)
            first.driver.run()
            assert y.value == expected(number)

    def test_a_plan_that_needs_all(self, first):
        """Where every launch has something to do, none begins before all are compiled."""
        launches = [dataclasses.replace(one, if_any=()) for one in plan().launches]
        runner = _cuda.Runner(None, dataclasses.replace(plan(), launches=tuple(launches)), 0)
        first.gates["check"].set()
        thread = threading.Timer(0.05, lambda: (found.append(launched(first)), compiled(first, "negate", "halve")))
        found = []
        thread.start()
        assert called(first, 5, runner) == 5
        thread.join()
        assert found == [[]]


class TestErrors:
    def test_of_what_is_needed(self, first):
        """The call that needs the kernel raises. It leaves scratch zero, and the next call compiles anew."""
        first.gates["check"].set()
        first.errors["negate"] = _cuda.CudaError("a kernel does not compile")
        first.gates["halve"].set()
        threading.Timer(0.05, first.gates["negate"].set).start()
        with pytest.raises(_cuda.CudaError, match="a kernel does not compile"):
            first.runner(first.library.of(-500))
        first.driver.run()
        assert not any(any(bytes(one)[:16]) for one in scratch(first))
        assert called(first, -500) == 250
        assert called(first, -5) == 5

    def test_of_what_was_left_out(self, first):
        """The call is right; the next one raises, and the one after it compiles anew."""
        first.gates["check"].set()
        first.errors["halve"] = _cuda.CudaError("a kernel does not compile")
        assert called(first, 5) == 5
        compiled(first, "negate", "halve")
        with pytest.raises(_cuda.CudaError, match="a kernel does not compile"):
            first.runner(first.library.of(5))
        first.driver.run()
        assert called(first, -500) == 250

    @pytest.mark.parametrize("name", ["cuMemcpyDtoHAsync_v2", "cuStreamSynchronize"])
    def test_of_the_look(self, first, name):
        """A kernel that failed shows where the call waits for it."""
        first.gates["check"].set()
        with first.library.own.prepares(0):
            first.library.own.scratch(0, 7, "zeroed of several", 16)
        first.driver.fails = {name: (0, 719)}
        with pytest.raises(_cuda.CudaError, match=name):
            first.runner(first.library.of(-5))
        first.driver.fails = {}
        first.driver.run()
        assert not any(any(bytes(one)[:16]) for one in scratch(first))
        compiled(first, "negate", "halve")
        assert called(first, -5) == 5

    def test_the_user_interrupts(self, first, monkeypatch):
        """Scratch is zero, and the next call is right."""
        first.gates["check"].set()

        def interrupted(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(first.library.own, "any_set", interrupted)
            with pytest.raises(KeyboardInterrupt):
                first.runner(first.library.of(-5))
        first.driver.run()
        assert not any(any(bytes(one)[:16]) for one in scratch(first))
        compiled(first, "negate", "halve")
        assert called(first, -5) == 5


@pytest.fixture
def steps(library, monkeypatch):
    """A call of two steps, each of which doubles; ``calls`` are the numbers that its first step was given."""
    made = gated(library, monkeypatch, "plain", "double")
    one = text_plan("", "", 1, (((1,), "int64"),), (), 1, 32)
    scratch = {"zeroed_bytes": 16, "status_bytes": 16, "scratch_bytes": 16}
    made.plain = _cuda.Runner(None, with_body(one, "plain"), 0)
    made.double = _cuda.Runner(None, dataclasses.replace(with_body(one, "double"), **scratch), 0)
    made.calls, made.found = [], lambda _: None

    def run(x):
        made.calls.append(x.value)
        (y,) = made.plain(x)
        made.driver.run()
        made.found(y)
        return made.double(y)[0]

    made.run = functools.partial(first_call.rehearsed, run)
    yield made
    for gate in made.gates.values():
        gate.set()


def open_later(steps, names=("plain", "double"), begun=2):
    """Let kernels compile when so many have begun; return the thread that does."""

    def wait():
        end = time.monotonic() + 30
        while len(steps.begun) < begun:
            if time.monotonic() > end:
                return  # and the call fails
            time.sleep(0.001)
        for name in names:
            steps.gates[name].set()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def result(steps, y):
    steps.driver.run()
    return y.value


class TestRehearsal:
    def test_all_begin(self, steps):
        """All kernels have begun to compile before one is there, and none is launched in the rehearsal."""
        thread = open_later(steps)
        assert result(steps, steps.run(steps.library.of(5))) == 20
        thread.join()
        assert steps.begun == ["plain", "double"]
        assert steps.calls == [5, 5]
        assert [name for _, name in steps.driver.log][:3] == ["zero", "zero", "plain"]

    def test_once(self, steps):
        """Later calls are not gone through twice, nor are those of whose kernels all are there."""
        open_later(steps).join(0)
        assert result(steps, steps.run(steps.library.of(5))) == 20
        assert result(steps, steps.run(steps.library.of(6))) == 24
        assert result(steps, steps.run(steps.library.of(7))) == 28
        assert steps.calls == [5, 5, 6, 7]

    def test_a_later_step(self, steps):
        """The first step is there: it is launched, in the rehearsal too."""
        steps.gates["plain"].set()
        steps.plain(steps.library.of(1))
        seen = []
        steps.found = lambda y: seen.append(y.value)
        steps.gates["double"].set()
        assert result(steps, steps.run(steps.library.of(5))) == 20
        assert seen == [10, 10]
        assert [name for _, name in steps.driver.log].count("plain") == 3

    def test_a_step_of_another(self, steps):
        """What is made of others is rehearsed whole, and its steps are not again."""
        thread = open_later(steps)
        inner, calls = steps.run, []

        def run(x):
            calls.append(x.value)
            return inner(inner(x))

        assert result(steps, first_call.rehearsed(run, steps.library.of(5))) == 80
        thread.join()
        assert calls == [5, 5]
        assert len(steps.calls) == 4

    def test_an_error(self, steps):
        """Zeros that a step does not take are no error of the call."""

        def found(y):
            if y.value == 0:
                raise ValueError("zero")

        steps.found = found
        open_later(steps, begun=1).join(0)
        assert result(steps, steps.run(steps.library.of(5))) == 20
        with pytest.raises(ValueError, match="zero"):
            steps.run(steps.library.of(0))

    def test_an_error_of_the_compiler(self, steps):
        steps.errors["double"] = _cuda.CudaError("a kernel does not compile")
        open_later(steps).join(0)
        with pytest.raises(_cuda.CudaError, match="a kernel does not compile"):
            steps.run(steps.library.of(5))
        assert result(steps, steps.run(steps.library.of(5))) == 20

    def test_results_of_a_length(self, steps):
        """A length that a step finds is not waited for."""
        thread = open_later(steps)

        def run(x):
            (y,) = steps.plain(x)
            steps.driver.run()
            return _cuda.returning(steps.double, y.value)(y)[0]

        y = first_call.rehearsed(run, steps.library.of(5))
        thread.join()
        assert result(steps, y) == 20
        assert y.nbytes == 80

    def test_captured(self, steps):
        """A graph has no rehearsal."""
        open_later(steps, begun=0).join()
        x = steps.library.of(5)
        with Graph(steps.driver, 7) as graph:
            (y,) = first_call.rehearsed(steps.plain, x)
        assert [name for name, _ in graph.nodes[7]] == ["plain"]
        graph.launch(100)
        assert result(steps, y) == 10

    def test_another_thread(self, steps):
        """While a call is rehearsed, those of other threads are computed."""
        steps.gates["plain"].set()
        steps.plain(steps.library.of(1))
        seen = []

        def other():
            steps.driver.current.value = 0xC0DE
            x = steps.library.of(50)
            seen.append((x, steps.plain.one(x)))

        def found(_):
            if not seen:
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()

        steps.found = found
        steps.gates["double"].set()
        assert result(steps, steps.run(steps.library.of(5))) == 20
        assert [result(steps, y) for _, y in seen] == [100]


class Rehearsing(emulator.Runner):
    """A runner on the emulator, that must have begun to compile all before anything is launched."""

    begun: ClassVar[list] = []
    launched: ClassVar[list] = []

    def __call__(self, *arrays):
        texts = [self.plan.text(at) for at in range(len(self.plan.launches))]
        if not first_call.under_way():
            if not self.launched:
                first_call.rehearse()
            self.launched.extend(texts)
            return super().__call__(*arrays)
        assert not self.launched
        self.begun.extend(texts)
        return tuple(np.zeros(shape, emulator.numpy_dtype(name)) for shape, name in self.plan.outputs)


def _composed(name, *args, **options):
    return getattr(parprims, name)(*args, **options, method="kernel")


COMPOSITIONS = {
    "segment_reduce": lambda x, ids: _composed("segment_reduce", x[0], ids, 20_000),
    "segment_reduce of several": lambda x, ids: _composed(
        "segment_reduce", (x[0], x[1]), ids, 10, lambda a, b: (a[0] + b[0], a[1] + b[1]), initial=(0, 0)
    ),
    "segment_reduce of rows": lambda x, ids: _composed("segment_reduce", x, ids, 10, axis=1),
    "segment_reduce in order": lambda x, ids: _composed(
        "segment_reduce", x[0], np.sort(ids), 10, indices_are_sorted=True
    ),
    "histogram": lambda x, _: _composed("histogram", x[0], 3000, range=(-3, 3), weights=x[1]),
    "unique": lambda _, ids: _composed("unique", ids),
    "unique of a size": lambda _, ids: _composed("unique", ids, size=20),
    "run_lengths": lambda _, ids: _composed("run_lengths", ids),
    "select": lambda x, _: _composed("select", x, x > 0),
    "top_k": lambda x, _: _composed("top_k", np.tile(x[0], 27), 2000),
    "partition": lambda x, _: _composed("partition", np.tile(x[0], 27), 700),
    "argpartition": lambda x, _: _composed("argpartition", np.tile(x[0], 27), 700),
    "median": lambda x, _: _composed("median", x, axis=-1),
    "quantile": lambda x, _: _composed("quantile", x, (0.1, 0.2, 0.3, 0.9), axis=0),
}


class TestRehearsals:
    @pytest.mark.emulator
    @pytest.mark.parametrize("name", COMPOSITIONS)
    def test_of_compositions(self, rng, monkeypatch, name):
        """All kernels of a call have begun to compile when the first is launched; the result is as without."""
        emulator.install(monkeypatch)
        sort_bytes(monkeypatch, ALWAYS)
        emulator.forget(monkeypatch)
        arrays = rng.standard_normal((2, 5000)).astype(np.float32), rng.integers(-1, 12, 5000)
        expected = COMPOSITIONS[name](*arrays)
        emulator.forget(monkeypatch)
        monkeypatch.setattr(_cuda, "Runner", Rehearsing)
        monkeypatch.setattr(Rehearsing, "begun", [])
        monkeypatch.setattr(Rehearsing, "launched", [])
        found = COMPOSITIONS[name](*arrays)
        assert set(Rehearsing.launched) == set(Rehearsing.begun)
        assert len(set(Rehearsing.launched)) >= 1 + (name not in ("median", "quantile"))
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for one, other in pairs:
            np.testing.assert_array_equal(one, other)


class TestCompiling:
    def test_order(self, compiler, monkeypatch):
        """The longest text first of those that are needed at once, then the others in their order; each once."""
        monkeypatch.setattr(compiler_module.os, "cpu_count", lambda: 1)
        arch = "sm_90"
        begun = compiler_module.compiling(
            [("a", arch), ("bbb", arch), ("a", arch)], [("cc", arch), ("dddd", arch), ("a", arch)]
        )
        assert {one: future.result() for one, future in begun.items()} == {
            (text, arch): f"code of {text}".encode() * 100 for text in ("a", "bbb", "cc", "dddd")
        }
        assert [text for text, _, _ in compiler.texts] == ["bbb", "a", "cc", "dddd"]

    def test_one(self, compiler, monkeypatch):
        """A single text is compiled in the thread of the call, whose errors it has."""
        with pytest.raises(_cuda.CudaError, match="makes code for 7"):
            compiler_module.compiled_together([("a", "sm_70")])
        monkeypatch.setattr(compiler_module, "compiled", lambda *_: threading.get_ident())
        assert compiler_module.compiled_together([("a", "sm_90")] * 2) == [threading.get_ident()] * 2

    @pytest.mark.parametrize("fails", [False, True])
    def test_the_process_ends(self, tmp_path, fails):
        """It prints nothing, and what it has begun is on disk."""
        program = f"""
import time
from parprims._cuda import compiler
def compile(text, options, *, ptx):
    time.sleep(0.2)
    if {fails}:
        raise compiler.CudaError("a kernel does not compile")
    return text.encode(), ""
compiler.found = lambda: compiler.Compiler(compile, (13, 0), (90,))
begun = compiler.compiling([(text, "sm_90") for text in "abcd"])
"""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PARPRIMS_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert len([*tmp_path.iterdir()]) == 4 * (not fails)


class TestSystems:
    """Tridiagonal systems, whose launches with row exchanges mostly find nothing to do."""

    GIVEN = ("dominant", "random", "zeros", "singular", "nan")

    def rows(self, rng, n, name):
        """Return rows that are dominant, random, with zeros on the diagonal, a row of zeros, or a NaN."""
        rows = rng.standard_normal((4, n)).astype(np.float32)
        if name == "dominant":
            rows[1] = abs(rows[1]) + abs(rows[0]) + abs(rows[2])
        elif name == "zeros":
            rows[1, ::7] = 0
        elif name == "singular":
            rows[:3, n // 2] = 0
        elif name == "nan":
            rows[1, n // 3] = np.nan
        return rows

    @pytest.mark.parametrize("given", GIVEN)
    @pytest.mark.parametrize("n", [3000, 100_000, 1 << 20])
    def test_a_fresh_cache(self, streams, rng, monkeypatch, tmp_path, n, given):
        """The first call, those that come while kernels compile, and those after give the same bits, and right ones."""
        monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path))
        emulator.forget(monkeypatch)
        compiler_module.compiled.cache_clear()
        runner_module.loaded.cache_clear()
        systems = {name: self.rows(rng, n, name) for name in self.GIVEN}
        early = [(name, solved(streams, systems[name])) for name in (given, *self.GIVEN)]
        for future in [*compiler_module._under_way.values()]:
            future.result()
        late = {name: solved(streams, rows) for name, rows in systems.items()}
        for name, x in early:
            np.testing.assert_array_equal(x, late[name], err_msg=name)
        for name, x in late.items():
            if name in ("singular", "nan"):
                assert np.isnan(x).all(), name
            else:
                allowed = 10 * max(backward_error(*systems[name], gtsv(*systems[name])), np.finfo(np.float32).eps)
                assert backward_error(*systems[name], x) <= allowed, name

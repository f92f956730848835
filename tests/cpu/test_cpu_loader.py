"""Kernels for CPUs on disk: what the next process finds there without Numba, and does where that is spoiled."""

import os
import subprocess
import sys
import textwrap
import threading
import tracemalloc

import numpy as np
import pytest

import parprims

pytestmark = pytest.mark.once
numba = pytest.importorskip("numba")

from parprims._cpu import compiler, loader, text  # noqa: E402

PROGRAM = """
    import sys
    import numpy as np, parprims
    op = parprims.Operator(lambda e, l: e * 0.3 + l, name="decay")
    x = np.random.default_rng(0).standard_normal(9000)
    results = parprims.scan(x, op, method="kernel"), parprims.sort(x, method="kernel")
    print("numba" in sys.modules, *(one.tobytes().hex() for one in results))
"""


def run(program, folder):
    """Return the words that a program prints, in a process of its own that keeps kernels in a folder."""
    given = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PARPRIMS_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, env=given, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def files(folder):
    """Return the object code that is kept, by path."""
    return {path: path.read_bytes() for path in (folder / "cpu").glob("*.o")}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with the kernels of the program, and what that printed when it compiled them."""
    folder = tmp_path_factory.mktemp("kept")
    return folder, run(PROGRAM, folder)


needs_elf = pytest.mark.skipif(sys.platform != "linux", reason="where object code is not ELF, Numba loads it")


@needs_elf
def test_the_next_process_needs_no_numba(kept):
    """It runs the same instructions: the results agree in all bits."""
    folder, first = kept
    code = files(folder)
    assert len(code) >= 2
    found = run(PROGRAM, folder)
    assert (first[0], found[0]) == ("True", "False")
    assert found[1:] == first[1:]
    assert files(folder) == code


@needs_elf
def test_a_kernel_on_disk_is_not_inlined_again(kept):
    spoiled = """
    import parprims._cpu.text as text
    def never(*_): raise AssertionError("inlined")
    text.inlined = never
    """
    assert run(spoiled + PROGRAM, kept[0]) == ["False", *kept[1][1:]]


@needs_elf
def test_a_folder_that_cannot_be_written(kept, tmp_path):
    """What is in it is found, and what is not there is compiled."""
    closed = """
    import tempfile
    from parprims._compiling import disk_cache
    def closed(*_, **__): raise PermissionError(13, "Permission denied")
    disk_cache.tempfile.mkstemp = closed
    """
    assert run(closed + PROGRAM, kept[0]) == ["False", *kept[1][1:]]
    assert run(closed + PROGRAM, tmp_path) == kept[1]
    assert not files(tmp_path)


def test_a_folder_that_cannot_be_looked_for(kept):
    """Its name is longer than the system allows: a process compiles for itself."""
    assert run(PROGRAM, "folder" * 1000) == kept[1]


SPOIL = {
    "empty": lambda _: b"",
    "no digest": lambda whole: whole[:20],
    "short": lambda whole: whole[:-1],
    "one bit": lambda whole: whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:],
    "long": lambda whole: whole + b"\0",
}


MANY_KERNELS = """
    import sys
    import numpy as np, parprims
    x = np.random.default_rng(0).standard_normal(9000)
    results = [
        parprims.scan(x, parprims.Operator(combine, name="own"), method="kernel")
        for combine in (
            lambda e, l: e + l, lambda e, l: e * 0.3 + l, lambda e, l: e - l, lambda e, l: l - e, lambda e, l: e * 0 + l
        )
    ]
    print("numba" in sys.modules, *(one.tobytes().hex() for one in results))
"""


@needs_elf
def test_spoiled_files(tmp_path):
    """Their kernels are compiled anew, and are whole for the next process. Each file is spoiled in another way."""
    first = run(MANY_KERNELS, tmp_path)
    whole = files(tmp_path)
    assert len(whole) == len(SPOIL)
    for (path, code), spoil in zip(whole.items(), SPOIL.values(), strict=True):
        assert spoil(code) != code
        path.write_bytes(spoil(code))
    assert run(MANY_KERNELS, tmp_path) == first
    assert files(tmp_path).keys() == whole.keys()
    assert run(MANY_KERNELS, tmp_path) == ["False", *first[1:]]


@needs_elf
def test_names_that_only_numba_knows(kept):
    """Numba is imported where the code of a kernel may want something of it, and the kernel found all the same."""
    for wanted in ("None", "['numba_unpickle']"):
        program = f"""
    from parprims._cpu import loader
    loader._undefined = lambda code: {wanted}
    """
        assert run(program + PROGRAM, kept[0]) == kept[1]


@needs_elf
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_finds_kernels_too(kept):
    """After a fork what was loaded before serves on, and more is loaded."""
    forked = """
    import os
    import numpy as np, parprims
    x = np.random.default_rng(0).standard_normal(9000)
    first = parprims.sort(x, method="kernel")
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    np.testing.assert_array_equal(parprims.sort(x, method="kernel"), first)
    """
    assert run(forked + PROGRAM + "    sys.stdout.flush()", kept[0]) == ["False", *kept[1][1:]]


def test_functions_that_a_kernel_does_not_use_do_not_tell_it_from_others():
    """Not where they stand, nor if they have its name; those count that its first lines or its functions name."""
    shared = "def value(x):\n    return x + {}\n\n\ndef other(x):\n    return x * {}\n"
    loop = "def loop(read, numbers, begin, end):\n    value(begin)\n"

    def kernel(*given, begins=()):
        return text.Kernel("loop", given, (("float64",),), (), begins)

    one = kernel(shared.format(1, 1), loop)
    for same in (
        kernel(shared.format(1, 2), loop),
        kernel(loop, shared.format(1, 1)),
        kernel("def value(): pass", *one.texts),
    ):
        assert (same.identity, same.text) == (one.identity, one.text)
    for another in (kernel(shared.format(2, 1), loop), kernel(*one.texts, begins=("other(1)",))):
        assert another.identity != one.identity
        assert another.text != one.text
    assert (
        kernel(shared.format(1, 2), loop, begins=("other(1)",)).identity
        != kernel(*one.texts, begins=("other(1)",)).identity
    )


def test_names_of_what_is_kept(monkeypatch):
    """Code of another processor, another text, another Numba, NumPy or Python has another name."""
    one = text.Kernel("loop", ("def loop(read, numbers, begin, end):\n    pass\n",), (("float64",),), ())
    others = [
        text.Kernel("loop", ("def loop(read, numbers, begin, end):\n    return\n",), (("float64",),), ()),
        text.Kernel("loop", one.texts, (("float32",),), ()),
        text.Kernel("loop", one.texts, (), (("float64",),)),
    ]
    monkeypatch.setattr(compiler, "_object_code", lambda *_: b"")
    monkeypatch.setattr(compiler, "_place", lambda *_: None)
    names = {compiler._kept(kernel)[0] for kernel in (one, *others)}
    for change in (
        lambda patch: patch.setattr(loader, "processor", lambda: "another"),
        lambda patch: patch.setattr(compiler, "_version", lambda _: "0.0"),
        lambda patch: patch.setattr(sys, "version", "3.99"),
        lambda patch: patch.setattr(np, "__version__", "9.9"),
        lambda patch: patch.setenv("NUMBA_CPU_NAME", "generic"),
        lambda patch: patch.setattr(text, "file", lambda name: "another " + name),
    ):
        with monkeypatch.context() as patch:
            change(patch)
            names.add(compiler._kept(one)[0])
    assert len(names) == 4 + 6
    assert compiler._kept(one)[0] in names


@needs_elf
def test_calls_without_a_kernel_need_no_numba(tmp_path):
    """The first process looks whether Numba works; the next ones find that on disk."""
    program = """
    import sys
    import numpy as np, parprims
    x = np.ones(100)
    parprims.sum(x), parprims.sort(x), parprims.cumulative_sum(x)
    print(parprims.methods(parprims.scan, x, lambda e, l: e + l)["kernel"], "numba" in sys.modules)
    """
    assert [run(program, tmp_path)[-1] for _ in range(3)] == ["True", "False", "False"]
    (note,) = (tmp_path / "cpu").iterdir()
    note.rmdir()
    assert run(program, tmp_path) == ["None", "True"]


def test_a_numba_that_does_not_work_is_asked_again(monkeypatch, tmp_path):
    """That one does not work is not kept, nor is it believed of another."""
    monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path))
    compiler.failure.cache_clear()
    try:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "numba", None)
            patch.setattr(compiler.importlib.util, "find_spec", lambda _: numba.__spec__)
            assert compiler.refusal().startswith("Numba does not work here: ModuleNotFoundError: import of numba")
        compiler.failure.cache_clear()
        assert compiler.refusal() is None
        assert len([*(tmp_path / "cpu").iterdir()]) == 1
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "numba", None)
            patch.setattr(compiler.importlib.util, "find_spec", lambda _: numba.__spec__)
            patch.setattr(np, "__version__", "9.9")
            compiler.failure.cache_clear()
            assert compiler.refusal() is not None
    finally:
        compiler.failure.cache_clear()


ROOM = """
def loop(outputs, numbers, begin, end):
    small, large = np.empty(numbers[0], np.float64), np.empty(numbers[1], np.int32)
    for i in range(begin, end):
        store(small, i, 2.0 * i)
        store(large, i, int32(3))
    for i in range(begin, end):
        store(outputs[0], i, load(small, i) + load(large, i))
"""


def test_memory_of_a_kernel():
    """It is given back at the end, also where there is too little, which is an error."""
    kernel = compiler.compiled(text.Kernel("loop", (ROOM,), (), (("float64",),)))
    result = np.zeros(9)
    tracemalloc.start()
    try:
        numbers = [np.array([1_000_000, count]) for count in (9, 0, 1 << 56, 1 << 62, -1 << 40)]
        before = tracemalloc.get_traced_memory()[0]
        kernel(result, numbers[0], 0, 9)
        np.testing.assert_array_equal(result, 2.0 * np.arange(9) + 3)
        kernel(result, numbers[1], 0, 0)
        for one in numbers[2:]:
            with pytest.raises(MemoryError):
                kernel(result, one, 0, 9)
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
        assert tracemalloc.get_traced_memory()[1] - before > 8_000_000
    finally:
        tracemalloc.stop()


def test_a_kernel_lets_other_threads_run():
    """One that runs for long holds nobody up."""
    body = "def loop(outputs, numbers, begin, end):\n    for i in range(begin, end):\n"
    lines = "        store(outputs[0], 0, load(outputs[0], 0) * 0.999999 + i)\n"
    kernel = compiler.compiled(text.Kernel("loop", (body + lines,), (), (("float64",),)))
    thread = threading.Thread(target=kernel, args=(np.zeros(1), np.zeros(1, np.int64), 0, 300_000_000))
    thread.start()
    counted = 0
    while thread.is_alive():
        counted += 1
    assert counted > 1000


def test_results_are_none_and_counted():
    """What a kernel returns is None, whose references stay what they were."""
    kernel = compiler.compiled(text.Kernel("loop", (ROOM,), (), (("float64",),)))
    result, numbers = np.zeros(9), np.array([9, 9])
    before = [sys.getrefcount(one) for one in (None, result, numbers, kernel)]
    for _ in range(1000):
        assert kernel(result, numbers, 0, 9) is None
    after = [sys.getrefcount(one) for one in (None, result, numbers, kernel)]
    assert all(abs(one - other) < 100 for one, other in zip(before, after, strict=True))


def test_a_kernel_serves_until_python_ends(kept):
    """Also where what loaded it is gone before."""
    late = """
    import atexit, sys
    import numpy as np, parprims
    from parprims._cpu import compiler, text
    source = "def loop(outputs, numbers, begin, end):\\n    store(outputs[0], 0, 5.0)\\n"
    class Late:
        kernel, x = compiler.compiled(text.Kernel("loop", (source,), (), (("float64",),))), np.zeros(1)
        numbers = np.zeros(1, np.int64)
        def __del__(self, write=sys.stdout.write):
            self.kernel(self.x, self.numbers, 0, 1)
            write(str(self.x[0]))
    compiler.compiled.cache_clear()
    sys.late = Late()
    """
    assert run(late, kept[0]) == ["5.0"]


def test_arrays_are_read_in_place():
    """Arrays that are read-only, of a class derived from NumPy's, or views are taken as they are."""
    op = parprims.Operator(lambda earlier, later: earlier * 0.5 + later, name="halves")
    x = np.arange(12.0)
    fixed = x.copy()
    fixed.flags.writeable = False
    expected = parprims.scan(x, op, method="kernel")
    for one in (fixed, np.repeat(x, 2)[::2], x[::-1][::-1], np.frombuffer(x.tobytes())):
        np.testing.assert_array_equal(parprims.scan(one, op, method="kernel"), expected)

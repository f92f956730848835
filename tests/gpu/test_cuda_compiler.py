"""The compiler of kernels without a GPU: its cache, who waits for whom, and architectures."""

# ruff: noqa: ARG005  names and arguments are the driver's

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import types

import pytest

from parprims import _cuda
from parprims._cuda import compiler as compiler_module

COMPILED = compiler_module.compiled


@pytest.fixture
def compiler(monkeypatch, tmp_path):
    """A compiler that counts what it compiles, and an empty cache."""
    texts = []

    def compile(text, options, *, ptx):
        texts.append((text, options[0].partition("=")[2], ptx))
        return f"code of {text}".encode() * 100, ""

    found = compiler_module.Compiler(compile, (13, 0), (75, 80, 90, 100, 120))
    monkeypatch.setattr(compiler_module, "found", lambda: found)
    monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path / "cache"))
    COMPILED.cache_clear()
    yield types.SimpleNamespace(texts=texts, folder=tmp_path / "cache")
    COMPILED.cache_clear()


def again(text="text", arch="sm_90"):
    """Return what a new process gets."""
    COMPILED.cache_clear()
    return COMPILED(text, arch)


class TestCache:
    def test_kept(self, compiler):
        code = again()
        assert again() == code == b"code of text" * 100
        assert len(compiler.texts) == 1
        assert again("other") != code
        assert again(arch="sm_80") == code
        assert len(compiler.texts) == 3
        assert len([*compiler.folder.iterdir()]) == 3

    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: b"",
            lambda content: content[:20],
            lambda content: content[:32],
            lambda content: content[:-1],
            lambda content: content + b"\0",
            lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
            lambda content: bytes([content[0] ^ 1]) + content[1:],
            lambda content: bytes(len(content)),
            lambda content: content[32:],  # as it was kept before there was a digest
        ],
    )
    def test_damaged(self, compiler, damage):
        code = again()
        (path,) = compiler.folder.iterdir()
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        assert again() == code
        assert len(compiler.texts) == 2
        assert path.read_bytes() == whole
        assert again() == code
        assert len(compiler.texts) == 2

    def test_a_folder_in_its_place(self, compiler):
        code = again()
        (path,) = compiler.folder.iterdir()
        path.unlink()
        path.mkdir()
        assert again() == code
        assert [*compiler.folder.iterdir()] == [path]

    def test_read_only(self, compiler, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError("read-only file system")

        monkeypatch.setattr(tempfile, "mkstemp", refuse)
        assert again() == again()
        assert len(compiler.texts) == 2
        monkeypatch.setattr(pathlib.Path, "mkdir", refuse)
        monkeypatch.setattr(pathlib.Path, "read_bytes", refuse)
        assert again() == b"code of text" * 100

    @pytest.mark.skipif(os.name == "nt" or not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
    def test_no_permission(self, compiler):
        compiler.folder.mkdir()
        for mode in (0o500, 0o000):
            compiler.folder.chmod(mode)
            assert again() == b"code of text" * 100
        compiler.folder.chmod(0o700)

    def test_a_file_in_the_way(self, compiler):
        compiler.folder.write_text("not a folder")
        assert again() == again()
        assert len(compiler.texts) == 2

    def test_no_home(self, compiler, monkeypatch):
        monkeypatch.delenv("PARPRIMS_CACHE_DIR")
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

        def home():
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.setattr(pathlib.Path, "home", home)
        assert again() == again()
        assert len(compiler.texts) == 2

    def test_the_disk_is_full(self, compiler, monkeypatch):
        def replace(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(compiler_module.os, "replace", replace)
            again()
        assert [*compiler.folder.iterdir()] == []

    def test_leftovers(self, compiler):
        compiler.folder.mkdir()
        old, new = compiler.folder / "abc.tmp", compiler.folder / "def.tmp"
        for path in (old, new):
            path.write_bytes(b"unfinished")
        os.utime(old, (time.time() - 7200,) * 2)
        again()
        assert not old.exists()
        assert new.exists()  # another process may still write it
        assert len([*compiler.folder.iterdir()]) == 2


class TestTurns:
    """Of all processes that need a kernel one compiles it."""

    PROGRAM = """
    import os, pathlib, sys, time
    from parprims._cuda import compiler

    folder = pathlib.Path(os.environ["PARPRIMS_CACHE_DIR"]).parent

    def compile(text, options, *, ptx):
        with open(folder / "compiled", "a") as file:
            file.write("x")
        if "dies" in sys.argv:
            print("holds", flush=True)
            time.sleep(600)
        time.sleep(0.5)
        return b"code", ""

    found = compiler.Compiler(compile, (13, 0), (90,))
    compiler.found = lambda: found
    print(compiler.compiled("text", "sm_90").decode())
    """

    def start(self, tmp_path, *arguments):
        program = textwrap.dedent(self.PROGRAM)
        found = {"PYTHONPATH": os.pathsep.join(sys.path), "PARPRIMS_CACHE_DIR": str(tmp_path / "cache")}
        environment = os.environ | found
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    def test_one_process_compiles(self, tmp_path):
        processes = [self.start(tmp_path) for _ in range(3)]
        assert [one.communicate(timeout=100)[0].strip() for one in processes] == ["code"] * 3
        assert (tmp_path / "compiled").read_text() == "x"
        assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".cubin"]

    @pytest.mark.skipif(sys.platform == "win32", reason="kills a process as POSIX has it")
    def test_a_process_that_is_killed_keeps_nobody(self, tmp_path):
        holder = self.start(tmp_path, "dies")
        assert holder.stdout.readline() == "holds\n"
        waiting = self.start(tmp_path)
        holder.kill()
        holder.communicate()
        assert waiting.communicate(timeout=100)[0].strip() == "code"
        assert (tmp_path / "compiled").read_text() == "xx"


class TestTogether:
    def test_at_once(self, monkeypatch):
        """All of a plan's kernels compile at the same time, each once."""
        texts, both = [], threading.Barrier(2, timeout=60)

        def compiled(text, arch):
            texts.append(text)
            both.wait()
            return f"{text} for {arch}".encode()

        monkeypatch.setattr(compiler_module, "compiled", compiled)
        monkeypatch.setattr(compiler_module.os, "cpu_count", lambda: 2)
        sources = [(text, "sm_90") for text in "abab"]
        assert compiler_module.compiled_together(sources) == [b"a for sm_90", b"b for sm_90"] * 2
        assert sorted(texts) == ["a", "b"]

    def test_longest_first(self, monkeypatch):
        """What takes longest begins first, and results come in the order of the texts all the same."""
        texts = []

        def compiled(text, arch):
            texts.append(text)
            return f"{text} for {arch}".encode()

        monkeypatch.setattr(compiler_module, "compiled", compiled)
        monkeypatch.setattr(compiler_module.os, "cpu_count", lambda: 1)
        sources = [(text, "sm_90") for text in ("bb", "a", "dddd", "ccc")]
        assert compiler_module.compiled_together(sources) == [f"{text} for sm_90".encode() for text, _ in sources]
        assert texts == ["dddd", "ccc", "bb", "a"]

    def test_an_error(self, compiler):
        with pytest.raises(_cuda.CudaError, match="makes code for 7"):
            compiler_module.compiled_together([("a", "sm_90"), ("b", "sm_70")])

    def test_the_real_compiler(self, monkeypatch, tmp_path):
        """Several programs compiled at once are those compiled one after another."""
        if compiler_module.refusal():
            pytest.skip(compiler_module.refusal())
        monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path))
        texts = [f'extern "C" __global__ void kernel(int* x) {{ *x = {at}; }}' for at in range(4)]
        together = compiler_module.compiled_together([(text, "sm_90") for text in texts])
        COMPILED.cache_clear()
        assert together == [compiler_module.compile_source(text, "sm_90")[0] for text in texts]


class TestArchitectures:
    def test_newer_than_the_compiler(self, compiler):
        again(arch="sm_90")
        again(arch="sm_130")
        again(arch="sm_103")
        again(arch="compute_130")
        found = [(arch, ptx) for _, arch, ptx in compiler.texts]
        assert found == [("sm_90", False), ("compute_120", True), ("compute_100", True)]

    def test_older_than_the_compiler(self, compiler):
        with pytest.raises(_cuda.CudaError, match=r"capability 7\.0, and NVRTC 13\.0 makes code for 7\.5 and later"):
            again(arch="sm_70")

    def test_the_real_compiler(self, monkeypatch, tmp_path):
        if compiler_module.refusal():
            pytest.skip(compiler_module.refusal())
        monkeypatch.setenv("PARPRIMS_CACHE_DIR", str(tmp_path))
        text = 'extern "C" __global__ void kernel(int* x) { *x = 1; }'
        assert again(text, "sm_999").startswith(b"//")  # PTX, which begins with a comment
        assert again(text, "sm_90")[:4] == b"\x7fELF"
        assert all(path.suffix in (".ptx", ".cubin") for path in tmp_path.iterdir())
        COMPILED.cache_clear()


class TestCompilers:
    """Which NVRTC is taken, and what is said where none works."""

    @pytest.fixture
    def packages(self, monkeypatch):
        found = {}

        def find_spec(name, *_):
            return found.get(name)

        monkeypatch.setattr(importlib.util, "find_spec", find_spec)
        compiler_module.found.cache_clear()
        yield found, monkeypatch
        compiler_module.found.cache_clear()

    def put(self, packages, name, module):
        found, patch = packages
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            found[".".join(parts[:end])] = True
            patch.setitem(sys.modules, ".".join(parts[:end]), types.ModuleType(".".join(parts[:end])))
        patch.setitem(sys.modules, name, module)
        patch.setattr(sys.modules[".".join(parts[:-1])], parts[-1], module, raising=False)

    def test_none(self, packages):
        assert compiler_module.refusal() == (
            "no CUDA compiler is installed: install CuPy, or cuda-core with nvidia-cuda-nvrtc"
        )
        with pytest.raises(_cuda.CudaError, match="no CUDA compiler is installed"):
            compiler_module.compile_source("", "sm_90")

    def test_cupy_without_its_library(self, packages):
        def missing():
            raise RuntimeError("CuPy failed to load libnvrtc.so.13: OSError: libnvrtc.so.13: cannot open\nmore")

        module = types.SimpleNamespace(getVersion=missing, getSupportedArchs=missing)
        self.put(packages, "cupy_backends.cuda.libs.nvrtc", module)
        assert compiler_module.refusal() == (
            "no CUDA compiler works here: that of cupy_backends fails: RuntimeError: CuPy failed to load "
            "libnvrtc.so.13: OSError: libnvrtc.so.13: cannot open"
        )

    def test_the_second_works(self, packages):
        def missing():
            raise OSError("libnvrtc.so.13: cannot open")

        self.put(packages, "cuda.bindings.nvrtc", types.SimpleNamespace(nvrtcVersion=missing))
        module = types.SimpleNamespace(getVersion=lambda: (12, 9), getSupportedArchs=lambda: (90, 50, 120))
        self.put(packages, "cupy_backends.cuda.libs.nvrtc", module)
        assert compiler_module.refusal() is None
        assert compiler_module.found().version == (12, 9)
        assert compiler_module.found().architectures == (50, 90, 120)

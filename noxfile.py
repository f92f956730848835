"""Every developer verb; CI runs these. ``nox --list`` shows them, ``nox -s NAME -- OPTIONS`` passes options on."""

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_venv = "yes"

# Tests start many processes, which import much: what one of them has compiled is kept for the others.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PROJECT = nox.project.load_toml("pyproject.toml")

# The array libraries of a CPU are tested in one environment; those of a GPU install the package in one each.
CPU_BACKENDS = ("numpy", "array-api-strict", "jax", "torch")
GPU_BACKENDS = {"cupy": ".[cuda13]", "torch-cuda": ".[torch]", "jax-cuda": ".[jax-cuda13]"}
PLACES = ("cpu", *(GPU_BACKENDS if shutil.which("nvidia-smi") else ()))

# One process for each core, and one thread of BLAS in each: more of them wait for each other by spinning, which takes
# up to thirty times as long. No test reads logs, which take pytest a tenth of its own time.
PARALLEL = ["-n", "auto", "--dist", "worksteal", "-p", "no:logging"]
ALONE = {"OPENBLAS_NUM_THREADS": "1"}


def _group(name: str) -> tuple[str, ...]:
    return nox.project.dependency_groups(PROJECT, name)


def _install_for_cpu(session: nox.Session) -> None:
    session.install("-e", ".[jax,cpu]", *_group("test"), *_group("torch-cpu"))


def _python(environment: Path) -> str:
    return str(environment.absolute() / ("Scripts" if os.name == "nt" else "bin") / "python")


def _backends(session: nox.Session) -> list[str]:
    """Return the options that ask for all libraries of a CPU, or only promise those that the session asks for."""
    asked_for = [name for name in CPU_BACKENDS if name in session.posargs]
    ask = [] if asked_for else [word for name in CPU_BACKENDS for word in ("--backend", name)]
    return [*ask, *(word for name in asked_for or CPU_BACKENDS for word in ("--promise", name))]


@nox.session
@nox.parametrize("place", [nox.param(name, id=name) for name in PLACES])
def tests(session: nox.Session, place: str) -> None:
    """Run the suite: on the libraries of a CPU, or of those on ``--backend NAME``; on a GPU on one after another.

    It runs a covering design of its cases, ``--all`` all of them.
    """
    if place == "cpu":
        _install_for_cpu(session)
        session.run("pytest", "-q", *_backends(session), *PARALLEL, *session.posargs, env=ALONE)
        return
    session.install("-e", GPU_BACKENDS[place], *_group("test"))
    # One process alone on a GPU, and there no kernel may refuse.
    promises = ["--promise", "kernel", "--promise", place]
    session.run("pytest", "-q", "--backend", place, *promises, *session.posargs, env=ALONE)


@nox.session(venv_backend="none")
def fuzz(session: nox.Session) -> None:
    """Make 20 000 random calls, valid and hostile, of every function on every backend; options follow tests.fuzz."""
    python = "python"
    if not shutil.which("nvidia-smi"):
        # The calls need what the tests need, which takes half a minute to install.
        session.run(sys.executable, "-m", "nox", "--session", "tests(cpu)", "--install-only")
        python = _python(session.cache_dir.parent / "tests-cpu")
    session.run(python, "-m", "tests.fuzz", "--calls", "20000", *session.posargs)


@nox.session
def lowest(session: nox.Session) -> None:
    """Run the suite on NumPy with the lowest release of every requirement that pyproject.toml allows."""
    requirements = [one.replace(">=", "==") for one in PROJECT["project"]["dependencies"]]
    session.install("-e", ".", *_group("test"), *requirements)
    session.run("pytest", "-q", "--backend", "numpy", "--promise", "numpy", *PARALLEL, *session.posargs, env=ALONE)


@nox.session
def newest(session: nox.Session) -> None:
    """Run a third of the cases on NumPy, and derivatives on JAX, with the releases that this Python gets."""
    session.install("-e", ".[jax]", *_group("test"))
    derivatives = ["tests/derivatives/test_derivatives.py"]
    for backend, suite in (("numpy", ["-m", "not once", "--every", "3"]), ("jax", derivatives)):
        suite += session.posargs
        session.run("pytest", "-q", "--backend", backend, "--promise", backend, *PARALLEL, *suite, env=ALONE)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format with ruff, every public docstring with numpydoc, and the parameters that they share."""
    session.install("-e", ".", *_group("lint"))
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("python", "-m", "tests.checks.docstrings")
    session.run("python", "-m", "docs.parameters", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the library, strictly, and what checkers say of calls right and wrong."""
    session.install("-e", ".", *_group("types"))
    session.run("mypy", *session.posargs)
    session.run("python", "-m", "tests.checks.public_types")


@nox.session
def kernels(session: nox.Session) -> None:
    """Compile every CUDA kernel that is not on record yet, for every architecture, without a GPU."""
    session.install("-e", ".", *_group("kernels"))
    session.run("python", "-m", "tests.checks.compile_kernels", *session.posargs)


@nox.session
def emulate(session: nox.Session) -> None:
    """Run kernels on the CPU by tests marked sanitize, and the emulator's own, or others. Needs a C++ compiler."""
    session.install("-e", ".", *_group("test"))
    promises = ["--promise", "emulated", "--promise", "kernel"]
    suite = session.posargs or ["-m", "sanitize or emulator"]
    session.run("pytest", "-q", *PARALLEL, "--backend", "emulated", *promises, *suite, env=ALONE)


@nox.session
def mutate(session: nox.Session) -> None:
    """Change kernels one line at a time and expect tests of the emulator to notice; options follow tests.mutation."""
    session.install("-e", ".", *_group("test"))
    session.run("python", "-m", "tests.mutation", *session.posargs)


@nox.session
def trust(session: nox.Session) -> None:
    """Run the suite on the CPU with its errors on record, and write docs/trust.md from them."""
    _install_for_cpu(session)
    tmp = Path(session.create_tmp()).absolute()
    usual = [word for name in CPU_BACKENDS for word in ("--backend", name)]
    for name, words in (("cpu", usual), ("emulated", ["--backend", "emulated", "-m", "sanitize or emulator"])):
        session.run(
            "pytest", "-q", "--all", *PARALLEL, *words, "--record-errors", str(tmp / name), *session.posargs, env=ALONE
        )
    session.run("python", "-m", "tests.trust", str(tmp / "cpu"), str(tmp / "emulated"))


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run the suite with the packages this GPU machine has: a missing backend or a refusing kernel is a failure."""
    promises = [word for name in (*GPU_BACKENDS, "kernel") for word in ("--promise", name)]
    session.run("python", "-m", "pytest", "-q", *promises, *session.posargs)


@nox.session(venv_backend="none")
@nox.parametrize("tool", [nox.param(tool, id=tool) for tool in ("memcheck", "racecheck", "initcheck", "synccheck")])
def sanitize(session: nox.Session, tool: str) -> None:
    """Run the tests marked sanitize under one tool of compute-sanitizer, with the packages this GPU machine has."""
    suite = ["python", "-m", "pytest", "-q", "-m", "sanitize", "--backend", "cupy", "--promise", "kernel"]
    session.run("compute-sanitizer", "--tool", tool, "--error-exitcode", "1", *suite, *session.posargs)


@nox.session
def compare(session: nox.Session) -> None:
    """Compare array form, kernel, the library's own routine and outside peers, on one page; all cases with --full."""
    session.install("-e", ".[bench]")
    session.run("python", "-m", "benches", *session.posargs)


# On a GPU with the packages the machine has, as in the session gpu.
@nox.session(venv_backend="none" if shutil.which("nvidia-smi") else None)
def examples(session: nox.Session) -> None:
    """Run every worked example on every backend and print one table; names of examples and options choose."""
    if not shutil.which("nvidia-smi"):
        session.install("-e", ".[jax,bench]", *_group("torch-cpu"))
    session.run("python", "examples", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation offline, into docs/_build: warnings are errors; notebooks, doctests and links are run."""
    session.install("-e", ".[jax,cpu]", *_group("docs"))
    build = ["python", "-m", "sphinx", "-q", "-W", "--keep-going", "-d", "docs/_build/pages"]
    session.run(*build, "-b", "html", "docs", "docs/_build/html", *session.posargs)
    session.run(*build, "-b", "doctest", "docs", "docs/_build/doctest", silent=True)
    session.run("python", "docs/check_site.py", "docs/_build/html")


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel and the sdist, check them, install the wheel in a clean environment and call it."""
    session.install(*_group("build"))
    tmp = Path(session.create_tmp()).absolute()
    shutil.rmtree(tmp / "dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(tmp / "dist"))
    session.run("twine", "check", "--strict", *map(str, (tmp / "dist").iterdir()))

    (wheel,) = (tmp / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("parprims/")}
    files = {path.relative_to("src").as_posix() for path in Path("src").rglob("*.*") if path.suffix != ".pyc"}
    if packed != files:
        session.error(f"the wheel and src/ differ in {', '.join(sorted(packed ^ files))}")

    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        broken = re.findall(r"\]\((?!https?://)[^)]*\)", archive.read(metadata).decode())
    if broken:
        session.error(f"the page of a package index would have broken links: {', '.join(broken)}")

    session.run("python", "-m", "venv", "--clear", str(tmp / "clean"))
    python = _python(tmp / "clean")
    session.run(python, "-m", "pip", "install", "--quiet", str(wheel), external=True)
    call = (
        "import numpy, parprims; assert parprims.sum(numpy.arange(5), method='array') == 10; print(parprims.__file__)"
    )
    with session.chdir(tmp):
        session.run(python, "-c", call, external=True)

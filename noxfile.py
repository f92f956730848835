"""Every developer verb; CI runs these. ``nox --list`` shows them, ``nox -s NAME -- OPTIONS`` passes options on."""

import os
import shutil
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.2.9"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_venv = "yes"

PROJECT = nox.project.load_toml("pyproject.toml")

# What the tests of a backend install beyond the test group.
BACKENDS: dict[str, list[str]] = {
    "numpy": ["."],
    "array-api-strict": ["."],
    "jax": [".[jax]"],
    "torch": [".", *nox.project.dependency_groups(PROJECT, "torch-cpu")],
}
GPU_BACKENDS: dict[str, list[str]] = {"cupy": [".[cuda13]"], "torch-cuda": [".[torch]"], "jax-cuda": [".[jax-cuda13]"]}
if shutil.which("nvidia-smi"):
    BACKENDS |= GPU_BACKENDS


def _install(session: nox.Session, group: str, *requirements: str) -> None:
    """Install a dependency group and, editable, the package where it is among the requirements."""
    editable = [word for one in requirements for word in (["-e", one] if one.startswith(".") else [one])]
    session.install(*editable, *nox.project.dependency_groups(PROJECT, group))


@nox.session
@nox.parametrize("backend", [nox.param(name, id=name) for name in BACKENDS])
def tests(session: nox.Session, backend: str) -> None:
    """Run the suite on one backend, which then must not be missing; on a GPU every kernel is promised as well."""
    _install(session, "test", *BACKENDS[backend])
    promises = [backend, "kernel"] if backend in GPU_BACKENDS else [backend]
    session.run(*_pytest(promises), "-n", "auto", "--backend", backend, *session.posargs)


def _pytest(promises: list[str]) -> list[str]:
    return ["python", "-m", "pytest", "-q", *(word for one in promises for word in ("--promise", one))]


@nox.session
def lowest(session: nox.Session) -> None:
    """Run the suite on NumPy with the lowest release of every dependency that pyproject.toml allows."""
    session.install(*nox.project.dependency_groups(PROJECT, "test"))
    session.install(*(one.replace(">=", "==") for one in PROJECT["project"]["dependencies"]))
    session.run(*_pytest(["numpy"]), "--backend", "numpy", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format with ruff, and every public docstring with numpydoc."""
    _install(session, "lint", ".")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("python", "-m", "tests.check_docstrings")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the library, strictly."""
    _install(session, "types", ".")
    session.run("mypy", *session.posargs)


@nox.session
def kernels(session: nox.Session) -> None:
    """Compile every CUDA kernel the library can ask for, for every architecture, without a GPU."""
    _install(session, "kernels", ".")
    session.run("python", "-m", "tests.compile_kernels", *session.posargs)


@nox.session(venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run the suite with the packages this GPU machine has: a missing backend or a refusing kernel is a failure."""
    session.run(*_pytest([*GPU_BACKENDS, "kernel"]), *session.posargs)


@nox.session(venv_backend="none")
@nox.parametrize("tool", [nox.param(tool, id=tool) for tool in ("memcheck", "racecheck", "initcheck", "synccheck")])
def sanitize(session: nox.Session, tool: str) -> None:
    """Run the tests marked sanitize under one tool of compute-sanitizer, with the packages this GPU machine has."""
    sanitizer = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1"]
    session.run(*sanitizer, *_pytest(["cupy", "kernel"]), "-m", "sanitize", "--backend", "cupy", *session.posargs)


@nox.session
def compare(session: nox.Session) -> None:
    """Compare algorithm, kernel, the backend's own routine and outside peers: the main job."""
    session.install("-e", ".[bench]")
    session.run("python", "-m", "benches", *session.posargs)


@nox.session
def build(session: nox.Session) -> None:
    """Build the wheel and the sdist, check them, install the wheel in a clean environment and call it."""
    _install(session, "build")
    tmp = Path(session.create_tmp()).absolute()
    shutil.rmtree(tmp / "dist", ignore_errors=True)
    session.run("python", "-m", "build", "--outdir", str(tmp / "dist"))
    session.run("twine", "check", "--strict", *map(str, (tmp / "dist").iterdir()))

    (wheel,) = (tmp / "dist").glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("parprims/")}
    files = {path.relative_to("src").as_posix() for path in Path("src").rglob("*.*") if path.suffix != ".pyc"}
    if packed != files:
        session.error(f"the wheel and src/ differ in {', '.join(sorted(packed ^ files))}")

    session.run("python", "-m", "venv", "--clear", str(tmp / "clean"))
    python = str(tmp / "clean" / ("Scripts" if os.name == "nt" else "bin") / "python")
    session.run(python, "-m", "pip", "install", "--quiet", str(wheel), external=True)
    call = (
        "import numpy, parprims; assert parprims.sum(numpy.arange(5), method='array') == 10; print(parprims.__file__)"
    )
    with session.chdir(tmp):
        session.run(python, "-c", call, external=True)

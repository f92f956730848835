"""All tables of tunings, and their entries for a device that a test names."""

import contextlib
import importlib
import pathlib
from collections.abc import Iterator

import parprims
from parprims import _cuda

_FOLDER = pathlib.Path(parprims.__file__).parent
_FILES = [path for path in _FOLDER.rglob("*.py") if "\nTUNING = " in path.read_text(encoding="utf-8")]
NAMES = sorted(".".join(path.relative_to(_FOLDER).with_suffix("").parts) for path in _FILES)
TABLES = {name: importlib.import_module(f"parprims.{name}").TUNING for name in NAMES}


@contextlib.contextmanager
def of_device(capability: int) -> Iterator[None]:
    """Let plans, which ask for compute capability 9.0 where there is no GPU, be those of another one."""
    before = {name: table[90] for name, table in TABLES.items()}
    try:
        for table in TABLES.values():
            table[90] = _cuda.tuned(table, capability)
        yield
    finally:
        for name, entry in before.items():
            TABLES[name][90] = entry

"""The tables of losses on the page of performance, made from the records of a GPU: ``python -m docs.generate``.

The first table has the calls that `auto` loses, with the reason of each. The second has the kernels that lose where
`auto` takes another method. Both compare with the best peer on arrays of the same library.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benches.auto.table import FACTOR
from benches.page.plots import NAMES
from docs.plots import RUNGS, family
from parprims._tools.comparison import si

Record = Mapping[str, Any]

SHORT_CALL = "a short call: the time is mostly Python's"
SHORTER_CALL = "`auto` counts the whole call, which is shorter by the kernel; this is the device's time"
BY_XLA = "XLA's product on both sides: JAX's short calls vary"

REASONS = (
    ("sum", "sum call", "", SHORT_CALL),
    ("sum", "same bits everywhere", "", "it also looks for the largest magnitude; the peer's bits depend on the order"),
    ("segment_reduce", "same bits everywhere", "", "three calls on integers; the peer's bits depend on the order"),
    ("cumulative_sum", "sum call", "", SHORT_CALL),
    ("vecdot", "vecdot call", "", SHORT_CALL),
    ("sort", "call", "", SHORT_CALL),
    ("segment_reduce", "call", "", SHORT_CALL),
    ("matmul", "call", "", SHORT_CALL),
    ("matmul", "", "jax-cuda", BY_XLA),
    ("matmul", "square", "float16", "PyTorch's setting against rounded sums is switched around the product, in Python"),
    ("matmul", "", "", SHORTER_CALL),
    ("argmax", "of all", "jax-cuda", "JAX's program adds to the time of the kernel, which is faster on CuPy"),
    ("reduce", "argmax", "", "reads an array of positions, which the peers count; our `argmax` counts them too"),
    ("segment_reduce", "2^20 rows of 64", "jax-cuda", "JAX adds atomically, in any order"),
)
"""The reasons of losses: primitive, family of cases, and a backend or dtype; "" is any. The first that fits counts."""

CONFLICT_FREE = "without bank conflicts"
"""A rung of the ladder to the fast matrix product that is not named "by hand"."""


@dataclasses.dataclass(frozen=True)
class Loss:
    """A case in which this library takes longer than the best peer on arrays of one library."""

    ours: Record
    peer: Record

    @property
    def ratio(self) -> float:
        """The peer's time over ours: the speed of this library over the peer's."""
        return float(self.peer["seconds"] / self.ours["seconds"])


def losses(records: Iterable[Record], is_ours: Callable[[Record], bool]) -> list[tuple[Loss, int, int]]:
    """Return the worst loss of each family of cases on one library, the number of losses there, and of cases.

    ``is_ours`` says which records are compared with peers. A loss takes more than `FACTOR` times the peer's time: less
    is within the noise. The rungs of the ladder to the fast matrix product are left out.
    """
    families: dict[Any, dict[str, list[Record]]] = {}
    for one in records:
        if not RUNGS.match(one["case"]) and family(one) != CONFLICT_FREE:
            key = one["primitive"], family(one), one["dtype"], one["backend"]
            families.setdefault(key, {}).setdefault(one["case"], []).append(one)
    found = []
    for cases in families.values():
        compared = []
        for group in cases.values():
            ours = min(filter(is_ours, group), key=_seconds, default=None)
            peer = min((one for one in group if one["method"].startswith("peer:")), key=_seconds, default=None)
            if ours and peer:
                compared.append(Loss(ours, peer))
        lost = [one for one in compared if one.ratio < 1 / FACTOR]
        if lost:
            found.append((min(lost, key=lambda one: one.ratio), len(lost), len(compared)))
    return found


def _seconds(one: Record) -> float:
    return float(one["seconds"])


def reason(one: Record) -> str:
    """Return the reason of a loss."""
    for primitive, name, special, text in REASONS:
        kinds = "", one["backend"], one["dtype"]
        if one["primitive"] == primitive and name in ("", family(one)) and special in kinds:
            return text
    raise KeyError(f"REASONS has no reason for {one['primitive']}: {one['case']}, {one['dtype']}, {one['backend']}")


def by_auto(records: Iterable[Record]) -> str:
    """Return the table of the calls that `auto` loses, in Markdown."""
    found = losses(records, lambda one: bool(one.get("auto")))
    columns = ("primitive", "worst case", "dtype", "arrays", "losses", "this library", "best peer", "ours is", "why")
    return _table(columns, ((*_cells(*one), reason(one[0].ours)) for one in found))


def by_kernels(records: Iterable[Record]) -> str:
    """Return the table of the kernels that lose where `auto` takes another method, in Markdown."""
    found = losses(records, lambda one: one["method"] == "kernel" and not one.get("auto"))
    columns = ("primitive", "worst case", "dtype", "arrays", "losses", "kernel", "best peer", "ours is")
    return _table(columns, (_cells(*one) for one in found))


def _cells(loss: Loss, lost: int, of: int) -> tuple[str, ...]:
    ours, peer = loss.ours, loss.peer
    method = "" if ours["method"] == "kernel" else f" {ours['method']}"
    return (
        f"`{ours['primitive']}`",
        ours["case"],
        ours["dtype"],
        NAMES[ours["backend"]],
        f"{lost} of {of}",
        f"{si(ours['seconds'], 's')}{method}",
        f"{si(peer['seconds'], 's')} {peer['method'].removeprefix('peer:')}",
        f"{loss.ratio:.2f}x",
    )


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = list(columns)
    lines = (names, *map(list, rows))
    head, *body = [f"| {' | '.join(line)} |\n" for line in lines]
    return "".join((head, f"{'|---' * len(names)}|\n", *body))

"""What `explain` says moves between devices, against the programs that XLA compiles for 2 to 64 of them."""

import math
import pathlib
import re

import numpy as np
import pytest

import parprims
from benches.devices import model
from parprims._devices.sorts import digits, search_bytes
from tests.on_devices.test_devices_scans import mesh_of, put
from tests.on_jax import test_jax
from tests.support import devices

jax = test_jax.jax

SIZES = {
    "pred": 1,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "f16": 2,
    "f32": 4,
    "s32": 4,
    "u32": 4,
    "f64": 8,
    "s64": 8,
    "u64": 8,
}


@pytest.mark.usefixtures("jax")
def test_on_up_to_sixty_four_devices(backend, subtests):
    if backend.cuda:
        pytest.skip("is of a CPU")
    devices.hold("tests.on_devices.test_devices_model", subtests, 64)


def nbytes(shapes):
    """Return the bytes of all arrays whose shapes a text of XLA names."""
    found = re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    return sum(SIZES[kind] * math.prod(map(int, filter(None, lengths.split(",")))) for kind, lengths in found)


def collectives(text):
    """Return for each kind of collective operation of a program the bytes of its results on one device."""
    found = {}
    for line in text.splitlines():
        match = re.search(r"= (.*?) (all-gather|all-to-all|collective-permute|all-reduce)(?:-start)?\(", line)
        if match:
            found.setdefault(match[2], []).append(nbytes(match[1]))
    return found


# ---- In the process with 64 devices -----------------------------------------------------------------------------

ROWS = 3
# Each call with the numbers of its messages and of the bytes that one device sends to another.
CALLS = {
    "sum": (lambda x: parprims.sum(x, axis=1), 1, ROWS * 4),
    "scan": (lambda x: parprims.scan(x, axis=1), 1, ROWS * 4),
    "recurrence": (lambda x: parprims.linear_recurrence(x, x, axis=1), 1, ROWS * 2 * 4),
    # Two equations of four coefficients and a right-hand side, another right-hand side, two errors, and a flag.
    "tridiagonal": (lambda x: parprims.solve_tridiagonal(x, x + 4, x, x), 4, ROWS * ((8 + 2 + 2 + 2) * 4 + 1)),
}


def check_states_alone_are_gathered():
    import jax

    for count in (8, 16, 32, 64):
        x = put(np.ones((ROWS, 10 * count), np.float32), mesh_of(count), None, "i")
        for name, (call, messages, state) in CALLS.items():
            if name == "tridiagonal" and count not in (8, 64):
                continue
            with parprims.explain() as calls:
                text = jax.jit(lambda x, call=call: call(x)).lower(x).compile().as_text()
            told = [step for one in calls for step in one.steps]
            assert len(told) == messages, (name, told)
            assert sum(step.nbytes for step in told) == state * (count - 1), (name, count, told)
            found = collectives(text)
            assert set(found) == {"all-gather"}, (name, found)
            assert sum(found["all-gather"]) == state * count, (name, count, found)


def check_a_sort_sends_what_belongs_elsewhere():
    import jax

    for count, length in ((2, 256), (4, 256), (8, 256), (64, 64)):
        x = put(np.ones(length * count, np.int16), mesh_of(count), "i")
        with parprims.explain() as calls:
            text = jax.jit(lambda x: parprims.sort(x)).lower(x).compile().as_text()
        (one,) = calls
        found = collectives(text)
        # A block of one round has a sixteenth more than random elements need, and a little.
        *traded, block = sorted(found["all-to-all"])
        assert length * 2 <= block <= (-(-length * 17 // (16 * count)) + 4 * math.isqrt(length)) * count * 2
        *search, exchange = one.steps
        assert exchange.nbytes == length * 2 * (count - 1) // count
        shares = {"gather": sum(found["all-gather"]), "reduce": 2 * sum(found["all-reduce"]), "exchange": sum(traded)}
        for name, nbytes in shares.items():
            told = [step.nbytes for step in search if step.name == name]
            assert abs(sum(told) - nbytes * (count - 1) // count) <= len(told), (count, name, told, nbytes)
        lengths = (length,) * count
        total = sum(step.nbytes for step in search)
        assert total <= search_bytes(digits(16, 1, lengths), 1, lengths) <= total + len(search)


# By the number of devices: from 2 to this power keys of a row on a device, the search for the cuts sends at most a
# hundredth of the bytes of the exchange.
LARGE = {2: 20, 4: 20, 8: 20, 16: 20, 17: 20, 64: 20, 128: 20, 256: 21, 512: 23, 1024: 24}


def check_a_search_sends_a_hundredth_of_the_keys():
    import jax

    for count in (2, 4, 8, 64):
        for dtype in (np.uint16, np.float32):
            spec = put(np.zeros(count, dtype), mesh_of(count), "i").sharding
            with parprims.explain() as calls:
                jax.eval_shape(parprims.sort, jax.ShapeDtypeStruct((count << LARGE[count],), dtype, sharding=spec))
            *search, exchange = calls[0].steps
            assert 100 * sum(step.nbytes for step in search) <= exchange.nbytes, (count, dtype)


@pytest.mark.once
@pytest.mark.parametrize("width", [16, 32, 64])
@pytest.mark.parametrize("count", LARGE)
def test_a_search_sends_a_hundredth_of_the_keys(count, width):
    for length in (2 ** LARGE[count], 3 * 2 ** LARGE[count], 2**28):
        for rows in (1, 8):
            lengths = (length,) * count
            exchanged = rows * length * width // 8 * (count - 1) // count
            sizes = digits(width, rows, lengths)
            assert sum(sizes) == width
            sent = search_bytes(sizes, rows, lengths)
            assert 100 * sent <= exchanged
            total = 4 if length * count < 2**31 else 8
            beside_cuts = 8 * (count**2 - 1) if count <= 16 else 24 * (count - 1)
            totals = 2 * (count - 1) ** 2 * rows * total * (sum(2**size for size in sizes) - len(sizes)) // count
            assert sent == totals + rows * beside_cuts  # the formula of docs/devices.md


@pytest.mark.once
def test_the_docs_have_what_the_model_prints():
    text = (pathlib.Path(__file__).parents[2] / "docs" / "devices.md").read_text()
    for table in (model.table(), model.searches()):
        assert "\n".join(table) in text


if __name__ == "__main__":
    devices.run_all(globals())

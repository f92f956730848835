"""Calls inside programs of JAX by which `auto` is judged on a CPU, and what people would write in such programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

import parprims
from benches.auto import calls_scan, calls_solve, calls_sort
from benches.auto.calls import Call, line, small_integers
from benches.core.cases import Problem
from benches.primitives import filters as bench_filters


def in_program(call: Call) -> Call:
    """Return a call compiled by JAX, beside the peers that JAX compiles."""
    peers = {name: peer for name, peer in call.peers.items() if name.startswith("jax")}
    return dataclasses.replace(call, name=f"{call.name}, in jit", peers=peers, compiled=True)


def _joined(earlier, later):
    """Return the larger of numbers, less the distance to it; it is associative, and no library has it."""
    return (earlier + later + abs(earlier - later)) / 2


def operator_call(n: int) -> Call:
    def make(rng, n):
        x = small_integers(rng, (n,), "float64") + np.arange(n) // 64
        return Problem((x,), np.maximum.accumulate(x))

    def by_associative_scan(x):
        import jax

        return jax.lax.associative_scan(_joined, x)

    def run(x, *, method):
        return parprims.scan(x, parprims.Operator(_joined), method=method)

    return line(
        "scan", "scan, own operator", "float64", n, make, run, {"jax.lax.associative_scan": by_associative_scan}
    )


def lfilter_call(n: int) -> Call:
    def make(rng, n):
        return bench_filters.problem(rng, (n,), bench_filters.LOW, "lfilter")

    def by_steps(b, a, x):
        import jax

        def step(z, now):
            y = b[0] * now + z[0]
            return jax.numpy.append(z[1:], 0) + b[1:] * now - a[1:] * y, y

        return jax.lax.scan(step, jax.numpy.zeros(4, x.dtype), x)[1]

    return line("lfilter", "lfilter, order 4", "float32", n, make, parprims.lfilter, {"jax.lax.scan": by_steps})


def calls(quick: bool) -> Iterator[Call]:
    """Yield the calls in programs."""
    long, square = (2**12, (64, 256)) if quick else (2**20, (64, 2**14))
    few, many = (64, 16) if quick else (2048, 64)
    found = [
        *(of((long,), 0, "float32") for of in (calls_sort.sort_call, calls_scan.cumulative_sum_call)),
        *(of(square, 1, "float64") for of in (calls_sort.sort_call, calls_scan.cumulative_sum_call)),
        *(of(square, 0, "float64") for of in (calls_sort.sort_call, calls_scan.cumulative_sum_call)),
        calls_sort.argsort_call((long,), 0, "float32"),
        calls_sort.sort_by_key_call(long // 4),
        calls_scan.maximum_call((long,), 0, "float64"),
        calls_scan.recurrence_call((long,), 0, "float32"),
        calls_scan.recurrence_call((few, many), 0, "float32"),
        calls_scan.recurrence_call((many, few), 1, "float32"),
        operator_call(long),
        lfilter_call(long // 16),
        calls_sort.searchsorted_call(long),
        calls_solve.tridiagonal_call((2**12 if not quick else 32, 128), 1, "float64"),
    ]
    yield from map(in_program, found)

"""The first k elements of rows on CPUs, in an order of the sort.

numbers: n, k, flip, slack, room, rounds, parts of a row.

Candidates are kept in memory: k elements, and behind them all later ones that are before the last of the k. When there
are 2 k, the first k of them stay. The i-th element of a row in random order is a candidate with probability k / i, so
most are not: whole blocks are compared with the limit, as vectors and with one branch. A long row takes its first limit
from a sample, every 16th block: so few elements are candidates even if the best come last. Candidates have the order of
the row, and all that chooses and sorts them is stable: of equal elements the first are kept. Only one order is stable,
so neither how a row is cut nor which thread reads which part changes a result.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parprims._cpu.templates.declarations import get, int64, load, put, scratch, select, uint64
from parprims._primitives.sort.sort_loops import sort_part

if TYPE_CHECKING:  # functions that are written for a call
    from parprims._primitives.sort.sort_loops import as_key, as_state, deliver, encoded, fill, low_bit, mem_of

    def block() -> int:
        """Return the number of elements that are compared with the limit at once."""


def narrow_down(mem, count, k, room, rounds):
    """Bring the first k of some states to the front; return k, or if rounds ran out, the count of states with them.

    A round takes the median of three keys as pivot, and parts the states with lesser, equal and larger keys, each in
    their order. No step branches.
    """
    low, high = 0, count  # states before low are among the first k, states from high on are not
    while (low < k) & (high > k) & (rounds > 0):
        one, other, last = load(mem[0], low), load(mem[0], (low + high) >> 1), load(mem[0], high - 1)
        lesser, larger = select(one < other, one, other), select(one < other, other, one)
        larger = select(larger < last, larger, last)
        pivot = select(lesser < larger, larger, lesser)
        less, equal, more = low, room, 2 * room
        for j in range(low, high):
            state = get(mem, j)
            put(mem, less, state)
            put(mem, equal, state)
            put(mem, more, state)
            less += int64(state[0] < pivot)
            equal += int64(state[0] == pivot)
            more += int64(state[0] > pivot)
        if less >= k:
            high = less
        else:
            for j in range(equal - room):
                put(mem, less + j, get(mem, room + j))
            low = less + equal - room
            if low < k:
                for j in range(more - 2 * room):
                    put(mem, low + j, get(mem, 2 * room + j))
        rounds -= 1
    return select((low < k) & (high > k), high, k)


def gather(inputs, mem, table, start, first, last, numbers):
    """Leave the first k of the elements first ... last of a row sorted at the beginning of memory."""
    k, flip, slack, room, rounds = numbers[1], as_key(uint64(numbers[2])), numbers[3], numbers[4], numbers[5]
    count, i, limited, limit = 0, first, 0, as_key(0)
    sampling = int64(last - first >= 16 * max(2 * k, 4 * block()))
    first_block = select(sampling == 1, block(), max(2 * k, 8))
    while i < last:
        stop = min(i + select(limited == 0, first_block, block()), last)
        enters = int64((limited == 0) | (stop - i < block()))
        if enters == 0:
            for j in range(block()):
                enters |= int64(as_key(encoded(inputs, (start + i + j,)) ^ flip) < limit)
        if enters != 0:
            for at in range(i, stop):
                key = as_key(encoded(inputs, (start + at,)) ^ flip)
                fill(mem, count, key, at)
                count += int64((limited == 0) | (key < limit))
        i = select(sampling == 1, i + 16 * block(), stop)
        if (count >= 2 * k) | (i >= last):
            count = narrow_down(mem, count, k, room, rounds)
            if (count > k) | ((i >= last) & (sampling == 0)):
                found = sort_part(mem, table, 0, room, count, slack)
                if found != 0:
                    for j in range(k):
                        put(mem, j, get(mem, found + j))
            count, limited, limit = k, 1, as_key(0)
            for j in range(k):
                key = as_key(load(mem[0], j) >> as_state(low_bit()))
                limit = select(key > limit, key, limit)
            if (i >= last) & (sampling == 1):  # at least k elements of the row are no later than the last of the sample
                count, i, sampling, limit = 0, first, 0, as_key(limit + as_key(1))
                limited = int64(limit != as_key(0))  # the largest key is no limit


def top_of_rows(inputs, outputs, numbers, begin, end):
    """Find the first elements of the rows begin ... end."""
    n, k, flip = numbers[0], numbers[1], as_key(uint64(numbers[2]))
    mem, table = scratch(3 * numbers[4]), np.empty(512, np.int64)
    for row in range(begin, end):
        gather(inputs, mem, table, row * n, 0, n, numbers)
        for j in range(k):
            deliver(inputs, outputs, mem, j, (row * n,), (1,), (row * k + j, row * k + j), flip)


def top_of_parts(inputs, outputs, founds, numbers, begin, end):
    """Find the first elements of parts of rows; a task is a part. Parts of a row lie side by side, with room behind."""
    n, k, parts, whole = numbers[0], numbers[1], numbers[6], mem_of(founds)
    mem, table = scratch(3 * numbers[4]), np.empty(512, np.int64)
    for task in range(begin, end):
        row = task // parts
        part = task - row * parts
        gather(inputs, mem, table, row * n, n * part // parts, n * (part + 1) // parts, numbers)
        for j in range(k):
            put(whole, (row * parts + task) * k + j, get(mem, j))


def top_of_all_parts(inputs, outputs, founds, numbers, begin, end):
    """Find the first elements of the rows begin ... end among the first elements of their parts."""
    n, k, flip, slack, count = numbers[0], numbers[1], as_key(uint64(numbers[2])), numbers[3], numbers[6] * numbers[1]
    whole, table = mem_of(founds), np.empty(512, np.int64)
    for row in range(begin, end):
        found = sort_part(whole, table, 2 * row * count, (2 * row + 1) * count, count, slack)
        for j in range(k):
            deliver(inputs, outputs, whole, found + j, (row * n,), (1,), (row * k + j, row * k + j), flip)

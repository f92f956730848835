"""Matrix products on CPUs.

numbers: rows, columns, k, height, width, depth; the steps of the result across rows, columns and matrices; the number
of axes of the batch; the place where the left factor begins, its steps across rows and along k; the place where the
right factor begins, its steps along k and across columns; then for every axis of the batch its length and the steps of
both factors.

Every result is a chain along k that begins with the first product, whatever the tiles and the threads are.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

from typing import TYPE_CHECKING

from parprims._cpu.templates.declarations import (
    Arrays,
    Memory,
    Number,
    Numbers,
    combine,
    int64,
    load,
    load_from,
    scratch,
    store,
    store_to,
)

if TYPE_CHECKING:  # functions that are written for a call

    def left_of(inputs: Arrays, at: int) -> Number:
        """Return an element of the left factor, in the dtype of the products."""

    def right_of(inputs: Arrays, at: int) -> Number:
        """Return an element of the right factor, in the dtype of the products."""

    def times(earlier: Number, later: Number) -> Number:
        """Return a product."""

    def rows_at_once() -> int:
        """Return the number of rows of a step."""

    def deep_at_once() -> int:
        """Return the number of products that a step adds to each sum."""

    def step(inputs, left, right, sums, at, spot, to, depth, pitch, width, w):
        """Add products to the sums of some rows and all columns of a tile."""

    def calm_of(
        inputs: Arrays, left: Memory, right: Memory, depth: int, padded: int, d: int, at: int, pitch: int, w: int
    ) -> bool:
        """Return whether no product of a piece can be NaN."""

    def panel(inputs: Arrays, right: Memory) -> Memory:
        """Return the array from which the innermost loops read the right factor."""

    def panel_size(width: int, depth: int) -> int:
        """Return the number of elements of a copy of a piece of the right factor."""

    def panel_at(at: int) -> int:
        """Return the place where a piece begins in the panel."""

    def panel_pitch(numbers: Numbers) -> int:
        """Return the distance from row to row in the panel."""

    def copy_right(inputs: Arrays, right: Memory, numbers: Numbers, at: int, width: int, d: int, w: int) -> None:
        """Copy a piece of the right factor to the panel, by `copy_of_right`, or by `copy_in_place`."""

    def along_left(numbers: Numbers) -> int:
        """Return the step of the left factor along k."""

    def across_result(numbers: Numbers) -> int:
        """Return the step of the result across columns."""

    def finish(outputs: Arrays, at: int, total: Number) -> None:
        """Write a result."""


def offset(numbers, matrix, factor):
    """Return the distance from the first matrix of a batch to another in factor 1 or 2."""
    found, rest = 0, matrix
    for axis in range(numbers[9]):
        found += rest % numbers[16 + 3 * axis] * numbers[16 + 3 * axis + factor]
        rest //= numbers[16 + 3 * axis]
    return found


def copy_left(inputs, left, numbers, at, depth, h, padded, d):
    """Copy a piece of the left factor, row by row; rows behind the last repeat the last."""
    for i in range(padded):
        row = at + min(i, h - 1) * numbers[11]
        for p in range(d):
            store(left, i * depth + p, left_of(inputs, row + p * along_left(numbers)))


def copy_of_right(inputs, right, numbers, at, width, d, w):
    """Copy a piece of the right factor, row by row, or eight rows at once where its columns are not adjacent."""
    if numbers[15] == 1:
        for p in range(d):
            for j in range(w):
                store(right, p * width + j, right_of(inputs, at + p * numbers[14] + j))
    else:
        for some in range(0, d, 8):
            for j in range(w):
                for p in range(some, min(some + 8, d)):
                    store(right, p * width + j, right_of(inputs, at + p * numbers[14] + j * numbers[15]))


def copy_in_place(inputs, right, numbers, at, width, d, w):
    """Copy nothing: the innermost loops read the factor where it is."""
    return 0


def multiply_tiles(inputs, outputs, numbers, begin, end):
    """Compute the tiles `begin` ... `end` of the products, each of at most `height` rows and `width` columns.

    A tile is computed in pieces of `depth` products. `left` and `right` hold the parts of both factors of a piece, so
    that the innermost loops run over adjacent columns. `sums` holds the sums of earlier pieces.
    """
    rows, columns, k, height, width, depth = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    down, across = -(-rows // height), -(-columns // width)
    left, right, sums = scratch(height * depth), scratch(panel_size(width, depth)), scratch(height * width)
    pitch = panel_pitch(numbers)
    for task in range(begin, end):
        matrix = task // (down * across)
        top, first = (task % down) * height, (task // down % across) * width
        h, w = min(height, rows - top), min(width, columns - first)
        padded = -(-h // rows_at_once()) * rows_at_once()
        from_left = numbers[10] + offset(numbers, matrix, 1) + top * numbers[11]
        from_right = numbers[13] + offset(numbers, matrix, 2) + first * numbers[15]
        to = matrix * numbers[8] + top * numbers[6] + first * numbers[7]
        calm = True
        for passed in range(0, k, depth):
            d = min(depth, k - passed)
            copy_left(inputs, left, numbers, from_left + passed * numbers[12], depth, h, padded, d)
            copy_right(inputs, right, numbers, from_right + passed * numbers[14], width, d, w)
            at = panel_at(from_right + passed * numbers[14])
            calm = calm and calm_of(inputs, left, right, depth, padded, d, at, pitch, w)
            done = int64(passed == 0)
            whole = done + ((d - done) // deep_at_once() * deep_at_once() if calm else 0)
            # Some rows are finished while their sums are in the nearest cache.
            for some in range(0, padded, rows_at_once()):
                if passed == 0:
                    for i in range(some, some + rows_at_once()):
                        x = load(left, i * depth)
                        for j in range(w):
                            store_to(1, sums, i * width + j, times(x, load_from(0, panel(inputs, right), at + j)))
                for p in range(done, whole, deep_at_once()):
                    step(
                        inputs,
                        left,
                        right,
                        sums,
                        some * depth + p,
                        at + p * pitch,
                        some * width,
                        depth,
                        pitch,
                        width,
                        w,
                    )
                for i in range(some, some + rows_at_once()):
                    for p in range(whole, d):
                        x = load(left, i * depth + p)
                        for j in range(w):
                            product = times(x, load_from(0, panel(inputs, right), at + p * pitch + j))
                            store_to(1, sums, i * width + j, combine(load_from(1, sums, i * width + j), product))
                if passed + d == k:
                    for i in range(some, min(some + rows_at_once(), h)):
                        row, beside = to + i * numbers[6], across_result(numbers)
                        for j in range(w):
                            finish(outputs, row + j * beside, load_from(1, sums, i * width + j))


def multiply_rows(inputs, outputs, numbers, begin, end):
    """Compute products with few columns: a task is `height` rows, and four rows at once hide latencies."""
    rows, columns, k, height = numbers[0], numbers[1], numbers[2], numbers[3]
    down = -(-rows // height)
    along = numbers[14]
    for task in range(begin, end):
        matrix = task // down
        top = (task % down) * height
        h = min(height, rows - top)
        from_left = numbers[10] + offset(numbers, matrix, 1) + top * numbers[11]
        from_right = numbers[13] + offset(numbers, matrix, 2)
        to = matrix * numbers[8] + top * numbers[6]
        for i in range(0, h, 4):
            # Rows behind the last repeat the last.
            i1, i2, i3 = min(i + 1, h - 1), min(i + 2, h - 1), min(i + 3, h - 1)
            row, row1 = from_left + i * numbers[11], from_left + i1 * numbers[11]
            row2, row3 = from_left + i2 * numbers[11], from_left + i3 * numbers[11]
            for j in range(columns):
                column = from_right + j * numbers[15]
                y = right_of(inputs, column)
                total = times(left_of(inputs, row), y)
                total1 = times(left_of(inputs, row1), y)
                total2 = times(left_of(inputs, row2), y)
                total3 = times(left_of(inputs, row3), y)
                for p in range(1, k):
                    y = right_of(inputs, column + p * along)
                    total = combine(total, times(left_of(inputs, row + p * along_left(numbers)), y))
                    total1 = combine(total1, times(left_of(inputs, row1 + p * along_left(numbers)), y))
                    total2 = combine(total2, times(left_of(inputs, row2 + p * along_left(numbers)), y))
                    total3 = combine(total3, times(left_of(inputs, row3 + p * along_left(numbers)), y))
                finish(outputs, to + i * numbers[6] + j * numbers[7], total)
                finish(outputs, to + i1 * numbers[6] + j * numbers[7], total1)
                finish(outputs, to + i2 * numbers[6] + j * numbers[7], total2)
                finish(outputs, to + i3 * numbers[6] + j * numbers[7], total3)

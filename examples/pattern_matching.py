"""Pattern matching: how often each of a list of words occurs in a long text, all of them in one pass.

A word occurs where every letter of it does. So the text is read beside itself, shifted by 0, 1, 2, ... letters; a
function of these letters gives 1 or 0 for every word, and one map_reduce adds them up. The source only named the
problem. Occurrences may overlap ("abab" occurs twice in "ababab"), which Python's count does not see: where a word
can overlap itself the reference is a search from one letter after every match, elsewhere it is count itself. Counts
are exact.
"""

import functools
import sys
import time

import common
import numpy as np
from array_api_compat import array_namespace

import parprims

SIZES = common.Sizes(small=30_000, cpu=4_000_000, cuda=2**28)
WORDS = (b"the", b"scan", b"parallel", b"abab", b"aa", b"e t", b"never")
VOCABULARY = b"the scan of parallel sums ababab over aaa threads and blocks in the end is the answer to".split()
LONGEST = max(map(len, WORDS))

total = parprims.Operator(
    lambda earlier, later: tuple(one + other for one, other in zip(earlier, later, strict=True)),
    identity=(0,) * len(WORDS),
    commutative=True,
    components=len(WORDS),
)


def matches(*letters) -> tuple:
    """Return for each word 1 where it begins: ``letters`` holds the text's first, second, ... letter from there."""
    xp = array_namespace(*letters)
    found = (
        functools.reduce(xp.logical_and, (text == letter for text, letter in zip(letters, word, strict=False)))
        for word in WORDS
    )
    return tuple(xp.astype(one, xp.int32) for one in found)


def counts(text) -> tuple:
    """Return how often each word begins in a text, but for the last letters, which only end words."""
    n = text.shape[0] - LONGEST + 1
    return parprims.map_reduce(matches, *(text[shift : shift + n] for shift in range(LONGEST)), op=total)


def overlapping(text: bytes, word: bytes) -> int:
    """Return how often a word occurs, by a search from every match on."""
    found, at = 0, text.find(word)
    while at >= 0:
        found, at = found + 1, text.find(word, at + 1)
    return found


def example(run: common.Run) -> None:
    n = run.size
    rng = np.random.default_rng(12)
    length = min(n, 2**24)
    block = b" ".join(VOCABULARY[at] for at in rng.integers(0, len(VOCABULARY), length // 3))[:length]
    turns = rng.integers(0, length, -(-n // length))
    text = b"".join(block[turn:] + block[:turn] for turn in turns)[:n]

    # Pieces of one length, each with the letters that end the words that begin in it; 0 is in no word.
    chunk = min(n, 2**28 if run.cuda else 2**18)
    pieces = -(-n // chunk)
    padded = np.zeros(pieces * chunk + LONGEST - 1, np.uint8)
    padded[:n] = np.frombuffer(text, np.uint8)
    call = run.compile(counts)
    found, seconds = np.zeros(len(WORDS), np.int64), 0.0
    for piece in run.progress("pattern matching", range(pieces), pieces):
        letters = run.asarray(padded[piece * chunk : (piece + 1) * chunk + LONGEST - 1])
        if piece == 0:
            call(letters)  # compiles
        run.wait(letters)
        began = time.perf_counter()
        result = call(letters)
        found += [int(one) for one in result]
        seconds += time.perf_counter() - began

    began = time.perf_counter()
    by_python = [text.count(word) for word in WORDS]
    vendor = time.perf_counter() - began
    wrong = 0
    for word, count, counted in zip(WORDS, found, by_python, strict=True):
        overlaps = any(word.startswith(word[at:]) for at in range(1, len(word)))
        difference = abs(int(count) - (overlapping(text, word) if overlaps else counted))
        wrong += difference
        note = f", without overlaps {counted}" if overlaps else ""
        run.report(f"B12 {word.decode()!r} in {n} letters", f"{count}{note}", difference, 0)
    run.report(f"B12 {len(WORDS)} words", f"{found.sum()}", wrong, 0, seconds=seconds, vendor=vendor)


if __name__ == "__main__":
    sys.exit(common.main(example, SIZES))

"""Random numbers by a counter: Philox 4x32 with 10 rounds, over arrays, so that any library draws the same numbers.

A number depends on the seed and on the place of its use, and on nothing else: there is no state, and neither threads
nor their order matter. Used as the function of parprims.map_reduce it becomes part of the CUDA kernel, and the numbers
never reach memory. The words are kept in int64, which every library multiplies; a product of two words of 32 bits wraps
around there, but keeps its bits. (Salmon, Moraes, Dror and Shaw, Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.)

It is an example and no part of parprims: it is elementwise and needs nothing of the library, and a public generator
would have to promise streams, distributions and tests of randomness, the work of another library.
"""

import math

from array_api_compat import array_namespace

MULTIPLIERS, WEYL, MASK = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85), 0xFFFFFFFF


def words(counter: tuple, key: tuple[int, int]) -> tuple:
    """Return 4 random words for counters of 4 words each, in arrays of int64 that broadcast, all below 2^32."""
    c, k = counter, key
    for _ in range(10):
        first, second = MULTIPLIERS[0] * c[0], MULTIPLIERS[1] * c[2]
        c = (
            ((second >> 32) & MASK) ^ c[1] ^ k[0],
            second & MASK,
            ((first >> 32) & MASK) ^ c[3] ^ k[1],
            first & MASK,
        )
        k = ((k[0] + WEYL[0]) & MASK, (k[1] + WEYL[1]) & MASK)
    return c


def normals(seed: int, index, stream) -> tuple:
    """Return 4 arrays of standard normals of float32 for each index and stream, numbers from 0 in arrays of int64.

    By Box and Muller's transform of uniform numbers in (0, 1]: the tails end at 6.7.
    """
    xp = array_namespace(index)
    counter = (index & MASK, index >> 32, stream & MASK, stream >> 32)
    u = [(xp.astype(word, xp.float32) + 0.5) * 2.0**-32 for word in words(counter, (seed & MASK, seed >> 32))]
    found = []
    for one, other in ((u[0], u[1]), (u[2], u[3])):
        radius, angle = xp.sqrt(-2 * xp.log(one)), 2 * math.pi * other
        found += [radius * xp.cos(angle), radius * xp.sin(angle)]
    return tuple(found)

// Stable sort of the segments of every row. Offsets bound the segments, and are the same in all rows.
//
// Two kernels. Tiles of SIZE elements do not respect segments: most segments lie in one tile, some cross its ends.
//   sort_pieces   A block sorts a tile by (segment, key) in registers and shared memory: a stable radix sort by the
//                 digits of the keys, then by the digits of the segment's number within the tile. So segments that lie
//                 in the tile are done, and the piece in the tile of every other segment is in order.
//   merge_pieces  Runs of 2^level tiles become runs of twice as many tiles. Two such runs meet at one place, which at
//                 most one segment crosses. Only elements of that segment move. A block goes through tiles of the
//                 result, and merges the elements of a tile: they belong to at most two segments, which cross the ends
//                 of the tile.
//
// A segment from tile s to tile t is in order after L = bit_length(s xor t) levels: only then all its tiles are in one
// run. Its elements move at each of these levels, even where a level has nothing to merge. So all elements of a segment
// are always in one of two buffers, and sort_pieces writes to the buffer from which L moves lead to the result.
// Levels after L skip the tiles of the segment. The number of levels depends on the length of rows alone, so the host
// launches them without knowing the offsets.
//
// Traffic: sort_pieces reads and writes an element once, and so does every level of its segment: no level if the
// segment lies in a tile, else about log2 of its length in tiles. Offsets are read once. Time does not depend on the
// number of segments.
//
// Template parameters besides those in sort.cu:
//   Offset    the integer type of offsets
//   Moved...  the arrays that move with the keys, any number of Moving<V> and Places<Result, Place>
//
// S. Baxter, moderngpu: segmented sort, 2013. O. Green, R. McColl and D. A. Bader, GPU Merge Path, ICS 2012.

#include "common.cuh"
#include "digits.cuh"
#include "key_order.cuh"
#include "merge_path.cuh"
#include "search.cuh"

namespace sorting {

using namespace digits;

// The keys: where they are read, another copy, and the result. If `keyless`, the keys are not returned, though the last
// level reads them from there.
template <class Key>
struct Buffers {
    const Key* in;
    Key* own;
    Key* out;
    bool keyless;
};

// Elements that move with their keys: where they are read, another copy, and the result.
template <class V>
struct Moving {
    const V* in;
    V* own;
    V* out;

    DEVICE V given(Index row, Index begin, int at) const { return (in + row + begin)[at]; }
};

// The positions of the keys in their row, which are numbers of type Place in the other copy.
template <class Result, class Place>
struct Places {
    Place* own;
    Result* out;

    DEVICE Result given(Index, Index begin, int at) const { return (Result)(begin + at); }
};

// Rows of n elements in `tiles` tiles, and `count` offsets. Offsets that do not ascend from 0 to n give unspecified
// results, but no accesses outside the arrays.
template <class Offset>
struct Bounds {
    const Offset* offsets;
    Index count, n, tiles;
};

// The segments of the first and of the last element of a tile, and the number of levels that have been merged.
struct Pieces {
    Index first_begin, first_end, last_begin, last_end, level;
};
static_assert(sizeof(Pieces) == 40, "sort_cuda.py reserves memory for them");

// Returns the number of levels that merge a segment that is not empty.
template <int SIZE>
DEVICE int levels_of(Index begin, Index end) {
    const unsigned long long differing = (unsigned long long)(begin / SIZE ^ (end - 1) / SIZE);
    return 64 - __clzll((long long)differing);
}

template <class To, class V>
DEVICE void store_as(To* to, V x) {
    *to = (To)x;
}

// A tile that is sorted by (segment, key).
template <int THREADS, int ITEMS, class Order>
struct SortedPieces {
    using Key = typename Order::Key;
    static constexpr int SIZE = THREADS * ITEMS, BITS = 8, RADIX = 1 << BITS, WARPS = THREADS / WARP_SIZE;
    // Words with one bit for each element.
    static constexpr int WORDS = (SIZE + WARP_SIZE * WARP_SIZE - 1) / (WARP_SIZE * WARP_SIZE) * WARP_SIZE;
    static_assert(WORDS <= THREADS && SIZE <= 1 << 16, "a thread for each word, and 16 bits for a place");
    struct Shared {
        Key keys[SIZE];
        unsigned short sources[SIZE];
        alignas(16) unsigned counts[WARPS][RADIX];
        unsigned sums[RADIX / WARP_SIZE + 1], needed;
        unsigned heads[WORDS], before[WORDS];  // bits: a segment begins; how many do before each word
        Index found[2];
        Pieces pieces;
    };

    Shared& shared;
    Key keys[ITEMS];
    unsigned short sources[ITEMS];
    int length;

    template <class Offset>
    DEVICE SortedPieces(Shared& memory, const Key* in, Bounds<Offset> bounds, Index begin) : shared(memory) {
        length = (int)min((Index)SIZE, bounds.n - begin);
        if (threadIdx.x == 0) shared.needed = 0;
        // All keys are loaded before the first is used, so that no load waits for another. Past the end, the first key
        // is loaded.
        const Key first = ordered<Order>(in[0]);
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int at = in_tile<ITEMS>(threadIdx.x, i);
            keys[i] = in[at < length ? at : 0];
            sources[i] = (unsigned short)at;
        }
        Key differing = 0;
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) differing |= ordered<Order>(keys[i]) ^ first;
        const unsigned segments = number(bounds, begin);
        unsigned needed = 0;  // a bit for each digit in which keys of the tile differ
#pragma unroll
        for (int shift = 0; shift < Order::WIDTH; shift += BITS)
            needed |= (unsigned)(__any_sync(ALL_LANES, (differing >> shift & (RADIX - 1)) != 0) != 0) << shift / BITS;
        if (threadIdx.x % WARP_SIZE == 0) atomicOr(&shared.needed, needed);
        __syncthreads();  // separates the additions from the read
        needed = shared.needed;
        for (; needed; needed &= needed - 1) {
            const int shift = (__ffs(needed) - 1) * BITS;
            sort_by([&](int i) { return digit_of<Order, BITS>(keys[i], shift); });
        }
        for (int shift = 0; segments >> shift; shift += BITS)
            sort_by([&](int i) { return number_of(sources[i]) >> shift & (RADIX - 1); });
    }

    // Marks where segments begin, and finds the segments at the ends of the tile. Returns the largest number of a
    // segment.
    template <class Offset>
    DEVICE unsigned number(Bounds<Offset> bounds, Index begin) {
        const Offset* const offsets = bounds.offsets;
        const Index count = bounds.count, n = bounds.n, end = begin + length;
        if (threadIdx.x < WORDS) shared.heads[threadIdx.x] = 0;
        if (threadIdx.x < WARP_SIZE) {
            const Index wanted = threadIdx.x < HALF_WARP ? begin : end - 1;
            const Index found = count_before(count, [&](Index at) { return (Index)offsets[at] <= wanted; });
            if (threadIdx.x % HALF_WARP == 0) shared.found[threadIdx.x / HALF_WARP] = found;
        }
        __syncthreads();  // separates the zeros, and what is found, from their uses
        const Index first = shared.found[0], last = max(first, shared.found[1]);
        const auto mark = [&](Index at) {
            if (at > 0 && at < length) atomicOr(&shared.heads[at / WARP_SIZE], 1u << at % WARP_SIZE);
        };
        if (last - first <= 8 * SIZE) {
            for (Index at = first + threadIdx.x; at < last; at += THREADS) mark((Index)offsets[at] - begin);
        } else {  // where many segments are empty, a search for each element takes less time
            for (int place = threadIdx.x; place < length; place += THREADS) {
                const Index own = first_not_before(first, last, [&](Index at) { return (Index)offsets[at] < begin + place; });
                if (own < last && (Index)offsets[own] == begin + place) mark(place);
            }
        }
        if (threadIdx.x == 0) {
            Pieces& own = shared.pieces;
            own.first_begin = first > 0 ? clamped(offsets[first - 1], 0, begin) : 0;
            own.first_end = first < count ? clamped(offsets[first], begin + 1, n) : n;
            own.last_begin = last > 0 ? clamped(offsets[last - 1], 0, end - 1) : 0;
            own.last_end = last < count ? clamped(offsets[last], end, n) : n;
            own.level = 0;
        }
        __syncthreads();  // separates the marks from their reads
        const unsigned heads = threadIdx.x < WORDS ? __popc(shared.heads[threadIdx.x]) : 0;
        const unsigned before = exclusive_scan<THREADS, WORDS>(heads, threadIdx.x, shared.sums);
        if (threadIdx.x < WORDS) shared.before[threadIdx.x] = before;
        __syncthreads();  // separates the writes of the numbers from their reads
        return number_of(length - 1);
    }

    DEVICE static Index clamped(Index x, Index low, Index high) { return max(low, min(x, high)); }

    // Returns the number of the segment of an element, counted from the segment of the tile's first element.
    DEVICE unsigned number_of(int at) const {
        return shared.before[at / WARP_SIZE] +
               __popc(shared.heads[at / WARP_SIZE] & ALL_LANES >> (WARP_SIZE - 1 - at % WARP_SIZE));
    }

    template <class Digit>
    DEVICE void sort_by(Digit digit) {
        unsigned digits[ITEMS];
        // Elements past the end have the largest digit and come last, so they stay there.
#pragma unroll
        for (int i = 0; i < ITEMS; ++i)
            digits[i] = in_tile<ITEMS>(threadIdx.x, i) < length ? digit(i) : RADIX - 1;
        unsigned(&own)[RADIX] = shared.counts[threadIdx.x / WARP_SIZE];
        count_in_warp<BITS>(digits, own);
        place_digits<THREADS, RADIX>(shared.counts, threadIdx.x, shared.sums, [](unsigned) {});
        rank_in_warp<BITS>(digits, own, [&](int i, unsigned next) {
            shared.keys[next - 1] = keys[i];
            shared.sources[next - 1] = sources[i];
        });
        __syncthreads();  // separates the writes of keys from their reads
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            keys[i] = shared.keys[in_tile<ITEMS>(threadIdx.x, i)];
            sources[i] = shared.sources[in_tile<ITEMS>(threadIdx.x, i)];
        }
    }
};

// Sorts a tile of a row in each block, which has SHARED_BYTES of dynamic shared memory.
template <int THREADS, int ITEMS, int SHARED_BYTES, class Order, class Offset, class... Moved>
DEVICE void sort_pieces(Buffers<typename Order::Key> keys, Bounds<Offset> bounds, Pieces* pieces, Moved... moved) {
    using Tile = SortedPieces<THREADS, ITEMS, Order>;
    static_assert(sizeof(typename Tile::Shared) <= SHARED_BYTES);
    extern __shared__ uint4 dynamic[];
    typename Tile::Shared& shared = *reinterpret_cast<typename Tile::Shared*>(dynamic);
    const unsigned row_number = blockIdx.x / (unsigned)bounds.tiles;
    const Index begin = (Index)(blockIdx.x - row_number * (unsigned)bounds.tiles) * Tile::SIZE;
    const Index row = row_number * bounds.n;
    const Tile sorted(shared, keys.in + row + begin, bounds, begin);

    const Pieces own = shared.pieces;
    if (threadIdx.x == 0 && pieces) pieces[blockIdx.x] = own;
    const int first_levels = levels_of<Tile::SIZE>(own.first_begin, own.first_end);
    const int last_levels = levels_of<Tile::SIZE>(own.last_begin, own.last_end);
    const int first_end = (int)min(own.first_end - begin, (Index)sorted.length);
    const int last_begin = (int)max(own.last_begin - begin, (Index)first_end);
    const Index place = row + begin;
    // Calls write(i, at, levels) for the elements of this thread: `at` is the place in the tile.
    const auto each = [&](auto write) {
        asm volatile("" ::: "memory");  // else the compiler computes the addresses of all arrays first: more registers
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            const int at = in_tile<ITEMS>(threadIdx.x, i);
            const int levels = at < first_end ? first_levels : at >= last_begin ? last_levels : 0;
            if (at < sorted.length) write(i, at, levels);
        }
    };
    each([&](int i, int at, int levels) {
        if (levels % 2)
            keys.own[place + at] = sorted.keys[i];
        else if (levels || !keys.keyless)
            keys.out[place + at] = sorted.keys[i];
    });
    const auto move = [&](auto array) {
        each([&](int i, int at, int levels) {
            const auto one = array.given(row, begin, sorted.sources[i]);
            if (levels % 2)
                store_as(array.own + place + at, one);
            else
                array.out[place + at] = one;
        });
    };
    (move(moved), ...);
}

// Merges the pieces in a tile, by one level. All threads of a block call it.
template <int THREADS, int ITEMS, class Order, class... Moved>
DEVICE void merge_tile(Buffers<typename Order::Key> keys, Index n, Index tiles, Index number, const Pieces& own,
                       Moved... moved) {
    using Key = typename Order::Key;
    constexpr int SIZE = THREADS * ITEMS;
    constexpr bool MOVES = sizeof...(Moved) > 0;
    static_assert(THREADS >= 2 * WARP_SIZE, "two warps search for the ends of a tile");
    __shared__ Key held[SIZE + 1];
    __shared__ unsigned short places[MOVES ? SIZE : 1];
    __shared__ Index ends[2];

    const int level = (int)own.level - 1;  // counted already
    const unsigned row_number = (unsigned)number / (unsigned)tiles;
    const Index tile = (unsigned)number - row_number * (unsigned)tiles, row = row_number * n;
    const Index pair = (tile >> level >> 1 << 1 << level) * SIZE, width = (Index)SIZE << level;

    for (int which = 0; which < 2; ++which) {
        if (which == 1 && own.last_begin == own.first_begin) break;  // one segment
        const Index segment_begin = which ? own.last_begin : own.first_begin;
        const Index segment_end = which ? own.last_end : own.first_end;
        const int left = levels_of<SIZE>(segment_begin, segment_end) - level;
        if (left <= 0) continue;
        // The two runs, and the part of the result in this tile.
        const Index low = max(segment_begin, pair), high = min(segment_end, min(n, pair + 2 * width));
        const Index middle = max(low, min(pair + width, high)), first_n = middle - low, second_n = high - middle;
        const Index begin = max(segment_begin, tile * SIZE);
        const int length = (int)(min(high, (tile + 1) * SIZE) - begin);
        const bool from_own = left % 2;
        const Key* const first = (from_own ? keys.own : keys.out) + row + low;
        const Key* const second = first + first_n;
        if (threadIdx.x < 2 * WARP_SIZE) {
            const int end = threadIdx.x / WARP_SIZE;
            const Index diagonal = begin - low + end * length;
            const Index found = merge_path<Order>(first, first_n, second, second_n, diagonal);
            if (threadIdx.x % WARP_SIZE == 0) ends[end] = found;
        }
        __syncthreads();  // separates the write of the ends from their reads
        const Index first_begin = ends[0], second_begin = begin - low - first_begin;
        // Offsets that do not ascend make runs that are not in order, but cause no access outside these runs.
        const int first_length = (int)max((Index)0, min(ends[1] - first_begin, (Index)length));

        merge_tile_of_runs<ITEMS, MOVES, Order>(held, places, first + first_begin, second + second_begin, first_length,
                                                length);

        Key* const to = (from_own ? keys.out : keys.own) + row + begin;
        if (left > 1 || !keys.keyless)
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) {
                const int at = k * THREADS + threadIdx.x;
                if (at < length) to[at] = held[at];
            }
        const auto move = [&](const auto& array) {
#pragma unroll 2  // more loads at a time would take too many registers
            for (int k = 0; k < ITEMS; ++k) {
                const int at = k * THREADS + threadIdx.x;
                if (at >= length) break;
                const int place = places[at];
                const Index source =
                    row + low +
                    (place < first_length ? first_begin + place : first_n + second_begin + (place - first_length));
                if (from_own)
                    store_as(array.out + row + begin + at, array.own[source]);
                else
                    store_as(array.own + row + begin + at, array.out[source]);
            }
        };
        (move(moved), ...);
        __syncthreads();  // separates the reads of this segment from the writes of the next
    }
}

// Merges all pieces by one level. The blocks share `count` tiles evenly, to within one. The threads of a block look at
// a tile each, and the block then goes through the tiles with something to merge.
template <int THREADS, int ITEMS, class Order, class... Moved>
DEVICE void merge_pieces(Buffers<typename Order::Key> keys, Index n, Index tiles, Index count, Pieces* pieces,
                         Moved... moved) {
    constexpr int SIZE = THREADS * ITEMS;
    __shared__ int waiting[THREADS], length;
    for (Index begin = blockIdx.x; begin < count; begin += (Index)gridDim.x * THREADS) {
        const Index mine = begin + (Index)threadIdx.x * gridDim.x;
        if (threadIdx.x == 0) length = 0;
        __syncthreads();  // separates the zero from the additions
        if (mine < count) {
            const Pieces own = pieces[mine];
            pieces[mine].level = own.level + 1;
            if (levels_of<SIZE>(own.first_begin, own.first_end) > own.level ||
                levels_of<SIZE>(own.last_begin, own.last_end) > own.level)
                waiting[atomicAdd(&length, 1)] = threadIdx.x;
        }
        __syncthreads();  // separates the writes of the list, and of levels, from their reads
        const int some = length;
        for (int at = 0; at < some; ++at) {
            const Index number = begin + (Index)waiting[at] * gridDim.x;
            merge_tile<THREADS, ITEMS, Order>(keys, n, tiles, number, pieces[number], moved...);
        }
        __syncthreads();  // separates the reads of the list from its next writes
    }
}

}  // namespace sorting

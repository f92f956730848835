// Stable radix sort of rows that are too long for a block, least significant digit first (see sort.cu).
//
// count_digits counts the digits of all keys. Then each launch of sort_tiles sorts by one digit. The first launch reads
// the input. Launches write to a temporary array and to the output alternately, the last one to the output.
// count_digits also finds out whether all rows are in order already, or all in reverse order. Then one launch of
// sort_tiles is enough, and the others have nothing to do. It copies keys alone. If something moves with the keys, it
// reads rows in reverse order from their ends, and sorts by the highest digit that differs, which keeps the order.
//
// Template parameters besides those in sort.cu:
//   Count     an integer that can count the keys of a row, with 2 bits to spare
//   Place     an integer that can number the keys of a row
//
// Phases of sort_tiles:
//   1. A block draws a ticket, which determines its launch and its tile. (Tickets are counted through all launches.) So
//      a tile only waits for tiles that have started. The launch determines the digit. Only digits in which keys of one
//      row differ are sorted by; a launch without such a digit ends at once. The host is not asked.
//   2. Each warp counts its digits. The block sums the counts of its warps for every digit and publishes them, before
//      later tiles look for them. A scan over the digits gives their places in the tile.
//   3. Each warp ranks its keys among those with equal digits: a ballot for every bit leaves the mask of lanes with the
//      same digit, and the last of those lanes advances the place of the digit.
//   4. Keys go to their places in shared memory, while earlier tiles finish.
//   5. One thread for each digit looks back: it adds up the aggregates of the previous tiles, until it comes to a tile
//      that has published its inclusive prefix. The first tile of a row starts from the scan of the row's digit counts.
//   6. Keys, then values, are stored from shared memory, in runs of equal digits by adjacent threads.
// If the counts of all rows would take too much memory, rows are sorted in batches: the same launches are repeated for
// the next rows. The ticket determines the batch.
//
// This look-back is apart from that of look_back.cuh: a thread looks back for each digit, and a count and its status
// share 4 bytes, where a slot there takes 16.
// Look-back words: 2 bits are the status of a word, AGGREGATE (the count of the tile) or PREFIX (the inclusive prefix:
// the count of all tiles up to it). The other bits are the count. Both arrive together, so no fence is needed. The
// highest bit is inverted in every other launch. Then the last word that a tile published in the previous launch reads
// as not published, and words are zeroed once (by count_digits), not for every digit.
// A look-back word has 32 bits. If a row is too long for them, its tiles are divided into segments, and Count has 64
// bits. The first tile of a segment then starts from 0, and a word of 64 bits for each digit is the exclusive prefix of
// the segment. The last tile of the previous segment publishes it, or for the first segment the first tile of the row.
//
// A. Adinets and D. Merrill, Onesweep: A Faster Least Significant Digit Radix Sort for GPUs, arXiv:2206.01784, 2022.

#include "common.cuh"
#include "digits.cuh"
#include "key_order.cuh"
#include "sort_results.cuh"

namespace sorting {

using namespace digits;

// The scratch that is zero between calls begins with this word. Its low bits count the tickets drawn. Two bits say that
// a row is not in order, and that a row is not in reverse order. The bits from NEEDED on are a set of digits: those in
// which keys of one row differ.
struct alignas(16) Control {
    unsigned long long word;
};
static_assert(sizeof(Control) == 16, "cuda.py computes the offsets of what follows");
constexpr int NEEDED = 56;
constexpr unsigned long long NOT_IN_ORDER = 1ull << 54, NOT_REVERSED = 1ull << 55, TICKETS = NOT_IN_ORDER - 1;

// Rows of n keys, in `tiles` tiles each. A batch of `together` rows is sorted at a time. A block of sort_tiles
// prefetches the keys of the tile that is `ahead` tiles after its own into the L2 cache, unless `ahead` is 0.
struct Extent {
    Index rows, together, n, tiles, ahead;
};

// Scratch that the launches share: `counts` of the digits of every row, which are zero between calls if several blocks
// count a row, and the look-back `words` of the tiles.
template <class Count>
struct Scratch {
    Control* control;
    Count* counts;
    unsigned* words;
};

// The digits by which long rows are sorted.
template <class Order>
struct RadixPasses {
    static constexpr int DIGIT = Order::WIDTH < 8 ? Order::WIDTH : 8;  // bits
    static constexpr int RADIX = 1 << DIGIT, PASSES = (Order::WIDTH + 7) / 8;
};

// Returns the counts of the values of one digit of a row.
template <class Order, class Count>
DEVICE Count* counts_of(Count* counts, Index row, int pass) {
    return counts + (row * RadixPasses<Order>::PASSES + pass) * RadixPasses<Order>::RADIX;
}

// Returns the first row of the batch that a ticket belongs to, and makes the ticket its number in that batch. A batch
// has `tickets` tickets and `together` rows.
DEVICE Index first_together(Index& ticket, Index tickets, Index together) {
    Index first = 0;
    for (; ticket >= tickets; ticket -= tickets) first += together;
    return first;
}

// Whether neighbours in a row are in order, and whether they are in reverse order. Equal keys are in reverse order only
// if they have equal bits, and never with MOVES, which says that values or indices move with the keys.
template <class Order, bool MOVES>
struct Ordering {
    using Key = typename Order::Key;
    bool forward = true, reverse = true;

    // Compares keys that adjacent threads of a warp have loaded. The result is the same for the whole warp.
    template <int N>
    DEVICE void add_warp(const Key (&keys)[N]) {
#pragma unroll
        for (int k = 0; k + 1 < N; ++k) add(keys[k], keys[k + 1]);
        const Key next = (Key)__shfl_down_sync(ALL_LANES, keys[0], 1);
        if (threadIdx.x % WARP_SIZE < WARP_SIZE - 1) add(keys[N - 1], next);
        forward = __all_sync(ALL_LANES, forward);
        reverse = __all_sync(ALL_LANES, reverse);
    }

    DEVICE void add(Key bits, Key next_bits) {
        const Key key = ordered<Order>(bits), next = ordered<Order>(next_bits);
        forward &= key <= next;
        reverse &= key > next || (!MOVES && bits == next_bits);
    }
    DEVICE bool any() const { return forward || reverse; }
    DEVICE unsigned long long bits() const { return (forward ? 0 : NOT_IN_ORDER) | (reverse ? 0 : NOT_REVERSED); }
};

// Counts the digits of all keys of a batch, and finds out whether they are in order. Each row has `chunks` blocks, and
// each of them counts `chunk` keys. Also zeros `vectors` times 16 bytes of look-back words. A thread loads VECTOR keys
// as one vector. MOVES says that values or indices move with the keys.
template <int THREADS, int VECTOR, bool MOVES, class Order, class Count>
DEVICE void count_digits(const typename Order::Key* in, Scratch<Count> scratch, Extent extent, Index chunk,
                         Index chunks, Index vectors) {
    using Key = typename Order::Key;
    constexpr int WIDTH = Order::WIDTH, RADIX = RadixPasses<Order>::RADIX, PASSES = RadixPasses<Order>::PASSES;
    constexpr int WORDS = (PASSES + 3) / 4, DIGITS = PASSES / WORDS;  // words of 32 bits in a key, digits in a word
    using Counts = digits::DigitCounts<DIGITS, RADIX>;
    const Index rows = extent.rows, together = extent.together, n = extent.n;
    extern __shared__ uint4 dynamic[];
    unsigned* counts = reinterpret_cast<unsigned*>(dynamic);  // [WORDS][Counts::COUNTS]
    Index ticket = (Index)(read_current(&scratch.control->word) & TICKETS);
    for (Index at = (Index)blockIdx.x * THREADS + threadIdx.x; at < vectors; at += (Index)gridDim.x * THREADS)
        reinterpret_cast<uint4*>(scratch.words)[at] = uint4{};
    for (int at = threadIdx.x; at < WORDS * Counts::COUNTS / 4; at += THREADS) dynamic[at] = uint4{};
    __syncthreads();  // separates the zeros from what is added to them

    const Index first_row = first_together(ticket, together * extent.tiles * PASSES, together);
    const unsigned row = blockIdx.x / (unsigned)chunks;
    if (first_row + row >= rows) return;
    const Index begin = (blockIdx.x - row * chunks) * chunk;
    const Index end = min(begin + chunk, n);
    const Key* keys = in + (first_row + row) * n;
    const Key first = ordered<Order>(keys[0]);
    const int lane = threadIdx.x % WARP_SIZE;
    const Counts counter;
    // Adds `number` to the counts of all digits in one word of a key.
    const auto add = [&](Key key, int word, unsigned number) {
        counter.add(counts, word, (unsigned)(key >> word * 32 % WIDTH), number);
    };
    unsigned like_first = 0;  // keys that have the upper word of the first key and are not yet counted by it
    const auto count = [&](Key bits, bool together) {
        const Key key = ordered<Order>(bits);
        add(key, 0, 1);
        if (WORDS == 1) return;
        if (together && !__any_sync(ALL_LANES, (unsigned)((key ^ first) >> 32 % WIDTH) != 0))
            ++like_first;
        else
            add(key, 1, 1);
    };
    Ordering<Order, MOVES> ordering;  // of the neighbours that a warp has loaded together
    constexpr int AHEAD = 4;  // loads of a thread in flight
    Index at = begin + (Index)threadIdx.x * VECTOR;
    const auto more = [&] { return at + (AHEAD * THREADS - (int)threadIdx.x) * VECTOR <= end; };  // uniform in a block
    const auto count_vectors = [&](auto checked) {
        using Vector = typename Word<VECTOR * sizeof(Key)>::Type;
        Vector vectors[AHEAD];
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ++ahead)
            vectors[ahead] = __ldg(reinterpret_cast<const Vector*>(keys + at + ahead * THREADS * VECTOR));
#pragma unroll
        for (int ahead = 0; ahead < AHEAD; ++ahead) {
            Key loaded[VECTOR];
            memcpy(loaded, &vectors[ahead], sizeof(Vector));
#pragma unroll
            for (int k = 0; k < VECTOR; ++k) count(loaded[k], true);
            if constexpr (checked.value) ordering.add_warp(loaded);
        }
        at += AHEAD * THREADS * VECTOR;
    };
    // Neighbours are compared as long as the neighbours that this warp has loaded may be in an order.
    while (more() && ordering.any()) count_vectors(Flag<true>());
    while (more()) count_vectors(Flag<false>());
    const Index tail = at - threadIdx.x * VECTOR;
    for (; at < end; at += THREADS * VECTOR)
        for (Index k = at; k < min(at + VECTOR, end); ++k) count(keys[k], false);
    if (like_first) add(first, 1, like_first);
    if (__syncthreads_or(ordering.any())) {  // separates the additions to the counts from the reads
        // The other neighbours: between warps, between chunks, and those of the last keys.
        constexpr int LOADED = WARP_SIZE * VECTOR;
        for (Index k = begin + (Index)threadIdx.x * LOADED; k < tail; k += THREADS * LOADED)
            if (k > 0) ordering.add(keys[k - 1], keys[k]);
        for (Index k = tail + threadIdx.x; k < end; k += THREADS)
            if (k > 0) ordering.add(keys[k - 1], keys[k]);
    }
    const bool forward = __syncthreads_and(ordering.forward), reverse = __syncthreads_and(ordering.reverse);

    if (threadIdx.x < WARP_SIZE) {  // a lane for each digit, which is needed unless all keys are alike in it
        const unsigned first_digit = (unsigned)(first >> min(lane, PASSES - 1) * 8) & (RADIX - 1);
        const bool differs =
            lane < PASSES && Counts::sum(counts, lane / DIGITS, first_digit, lane % DIGITS) != (unsigned)(end - begin);
        const unsigned long long found = (unsigned long long)__ballot_sync(ALL_LANES, differs) << NEEDED |
                                         Ordering<Order, MOVES>{forward, reverse}.bits();
        if (lane == 0 && found) atomicOr(&scratch.control->word, found);
    }
    for (int at = threadIdx.x; at < PASSES * RADIX; at += THREADS) {  // in the order of shared memory
        const int word = at / (RADIX * DIGITS), value = at / DIGITS % RADIX, digit = at % DIGITS;
        const Count number = Counts::sum(counts, word, value, digit);
        Count* to = counts_of<Order>(scratch.counts, row, word * DIGITS + digit) + value;
        if (chunks == 1)
            *to = number;
        else if (number)
            atomicAdd(to, number);
    }
}

// Where the launches read and write the keys of long rows. They write to `temporary` and to `out` alternately, the last
// one to `out`. Every element of the rows in `out` takes `apart` bytes more than a key. If `keyless`, the result has no
// keys, and the last launch does not write them. If `through` is given, `out` is used for the original positions of the
// keys instead: no launch writes keys there, and the next launch gathers them from the input through these positions.
template <class Key, class Place>
struct KeyBuffers {
    const Key* in;
    Key* temporary;
    Key* out;
    int apart;
    bool keyless;
    const Place* through;
};

// One tile of a row, in one launch.
template <int THREADS, int ITEMS, bool MOVES, class Order, class Count, class Place>
struct SortedTile {
    using Key = typename Order::Key;
    static constexpr int DIGIT = RadixPasses<Order>::DIGIT, RADIX = RadixPasses<Order>::RADIX;
    static constexpr int PASSES = RadixPasses<Order>::PASSES;
    static constexpr int SIZE = THREADS * ITEMS, WARPS = THREADS / WARP_SIZE;
    static constexpr bool SEGMENTS = sizeof(Count) > sizeof(unsigned);
    static constexpr unsigned AGGREGATE = 1u << 30, PREFIX = 2u << 30;   // 0: not published
    static constexpr Count KNOWN = (Count)1 << (8 * sizeof(Count) - 1);  // set in a published prefix of a segment
    static_assert(RADIX <= THREADS && SIZE < 1 << 16, "a thread for each digit, and 16 bits for a place");

    struct Drawn {
        Index row, tile, begin;  // the row in the batch, the tile in the row, its first element in the array
        Index behind;            // the number of elements of the row behind that one
        int length, shift;
        bool first, last, into_out, odd;
        bool in_order, reversed;  // whether all rows are in order, or all in reverse order
    };

    unsigned places[(ITEMS + 1) / 2];  // 1 + the place in the tile of each element that this thread read, two to a word
    unsigned bins[(ITEMS + 3) / 4];    // the digits of the elements that it writes, four to a word
    const Count* bases;                // in shared memory: the number to add to a place in the tile, for each digit
    const Drawn* drawn;                // in shared memory
    bool left, full;

    // Draws a tile and moves its keys. Sets `left` to whether there was anything left to do. A segment has `segment`
    // tiles.
    DEVICE SortedTile(KeyBuffers<Key, Place> moving, Scratch<Count> scratch, Extent extent, unsigned segment) {
        const Index together = extent.together;
        const unsigned tiles = (unsigned)extent.tiles;
        __shared__ Drawn shared;
        __shared__ unsigned counts[WARPS][RADIX];
        __shared__ Count offsets[RADIX], sums[RADIX / WARP_SIZE + 1];
        extern __shared__ uint4 dynamic[];
        if (threadIdx.x == 0) shared = draw(scratch.control->word, extent.rows, together, tiles, extent.n);
        __syncthreads();  // separates the write of what is drawn from its reads
        bases = offsets, drawn = &shared;
        left = shared.shift >= 0, full = shared.length == SIZE;
        if (!left) return;

        Key* const out = shifted(moving.out, row_begin() * moving.apart);
        Key keys[ITEMS];
        if constexpr (!MOVES)
            if (shared.in_order || shared.reversed) {
                if (shared.tile == 0 && threadIdx.x < RADIX) take(scratch.counts);
                copy(moving.in, moving.out);
                return;
            }
        if (moving.through && !shared.first && !shared.into_out)
            gather(keys, moving.in, moving.through);
        else
            load(keys, shared.first ? moving.in : shared.into_out ? moving.temporary : out);
        if constexpr (!MOVES)
            if (extent.ahead && shared.tile + extent.ahead < tiles - 1)
                prefetch(shared.first ? moving.in : shared.into_out ? moving.temporary : out, (int)extent.ahead);
        const int shift = shared.shift;
        unsigned digits[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) digits[i] = digit_of<Order, DIGIT>(keys[i], shift);
        if (!full)  // elements past the end have the largest digit and come after all others
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (place_of(i) >= shared.length) digits[i] = RADIX - 1;
        unsigned(&own)[RADIX] = counts[threadIdx.x / WARP_SIZE];
        count_in_warp<DIGIT>(digits, own);

        // In launches of odd number, the highest bit of a word is inverted.
        const unsigned flip = shared.odd ? PREFIX : 0;
        const Count flip_base = shared.odd ? KNOWN : 0;
        const unsigned tile = (unsigned)shared.tile, in_segment = SEGMENTS ? tile % segment : tile;
        unsigned* mine = scratch.words + (shared.row * tiles + tile) * RADIX + threadIdx.x;
        Count* base = nullptr;  // the prefix of the segment; these words follow those of all tiles
        if (SEGMENTS)
            base = reinterpret_cast<Count*>(scratch.words + together * tiles * RADIX) +
                   (shared.row * ((tiles - 1) / segment + 1) + tile / segment) * RADIX + threadIdx.x;
        unsigned count = 0;
        const unsigned start =
            place_digits<THREADS, RADIX>(counts, threadIdx.x, (unsigned*)sums, [&](unsigned number) {
                count = number - (threadIdx.x == RADIX - 1 ? SIZE - shared.length : 0);
                if (in_segment > 0)
                    publish_word(mine, (count | AGGREGATE) ^ flip);
                else if (SEGMENTS)
                    publish_word(mine, (count | PREFIX) ^ flip);
            });
        Count before = 0;  // the number of the row's keys before the tile's keys with this thread's digit
        if (tile == 0) {
            const Count all = threadIdx.x < RADIX ? take(scratch.counts) : 0;
            before = exclusive_scan<THREADS, RADIX>(all, threadIdx.x, sums);
            if (threadIdx.x < RADIX) {
                if (SEGMENTS)
                    publish_word(base, (before | KNOWN) ^ flip_base);
                else
                    publish_word(mine, (((unsigned)before + count) | PREFIX) ^ flip);
            }
        }

        Key* exchange = reinterpret_cast<Key*>(dynamic);
        rank_in_warp<DIGIT>(digits, own, [&](int i, unsigned next) {
            exchange[next - 1] = keys[i];
            places[i / 2] = i % 2 ? places[i / 2] | next << 16 : next;
            asm("" : "+r"(places[i / 2]));  // else the compiler keeps each place in a register of its own
        });
        if (threadIdx.x < RADIX) {
            Count known = SEGMENTS && tile > 0 ? read_current(base) : 0;
            if (in_segment > 0) {
                const unsigned seen = look_back(mine - RADIX, (int)in_segment, flip);
                publish_word(mine, ((seen + count) | PREFIX) ^ flip);
                before = seen;
            }
            if (SEGMENTS && tile > 0) {
                while ((known ^ flip_base) < KNOWN) known = read_current(base);
                before += (known ^ flip_base) - KNOWN;
            }
            if (SEGMENTS && in_segment == segment - 1 && tile < tiles - 1)
                publish_word(base + RADIX, ((before + count) | KNOWN) ^ flip_base);
            offsets[threadIdx.x] = before - start;  // may wrap around
        }
        __syncthreads();  // separates the writes of keys and offsets from their reads

#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            keys[k] = exchange[k * THREADS + threadIdx.x];
            digits[k] = digit_of<Order, DIGIT>(keys[k], shift);
            bins[k / 4] = k % 4 ? bins[k / 4] | digits[k] << k % 4 * 8 : digits[k];
            asm("" : "+r"(bins[k / 4]));  // else the compiler keeps each digit in a register of its own
        }
        if (moving.keyless && (shared.last || (moving.through && shared.into_out))) return;
        write(keys, shared.into_out ? out : moving.temporary, [&](int k) { return digits[k]; });
    }

    DEVICE Index row_begin() const { return drawn->begin - drawn->tile * SIZE; }
    DEVICE static int place_of(int i) { return in_tile<ITEMS>(threadIdx.x, i); }

    template <class V>
    DEVICE static V* shifted(V* array, Index nbytes) {
        return reinterpret_cast<V*>(reinterpret_cast<char*>(array) + nbytes);
    }

    template <class V>
    DEVICE void load(V (&to)[ITEMS], const V* from) const {
        const int length = drawn->length - place_of(0);
        if (MOVES && drawn->reversed) {
            from += row_begin() + drawn->behind - place_of(0);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (i * WARP_SIZE < length) to[i] = from[-i * WARP_SIZE];
            return;
        }
        from += drawn->begin + place_of(0);
        if (full)
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) to[i] = from[i * WARP_SIZE];
        else
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (i * WARP_SIZE < length) to[i] = from[i * WARP_SIZE];
    }

    // Prefetches the keys of a later, full tile of the row into the L2 cache.
    DEVICE void prefetch(const Key* from, int ahead) const {
        const char* const begin = reinterpret_cast<const char*>(from + drawn->begin + (Index)ahead * SIZE);
        for (int at = threadIdx.x * 128; at < SIZE * (int)sizeof(Key); at += THREADS * 128) prefetch_line(begin + at);
    }
    // Gathers keys from the input through their positions. The positions are loaded into the registers of the keys if
    // they fit.
    DEVICE void gather(Key (&to)[ITEMS], const Key* from, const Place* through) const {
        from += row_begin();
        if constexpr (sizeof(Place) == sizeof(Key)) {
            load(to, reinterpret_cast<const Key*>(through));
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (place_of(i) < drawn->length) to[i] = from[to[i]];
        } else {
            Place places[ITEMS];
            load(places, through);
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (place_of(i) < drawn->length) to[i] = from[places[i]];
        }
    }

    DEVICE static Drawn draw(unsigned long long& control, Index rows, Index together, unsigned tiles,
                             Index n) {
        const unsigned long long word = atomicAdd(&control, 1ull);
        const Index blocks = together * tiles;
        Index ticket = word & TICKETS;
        const Index first = first_together(ticket, blocks * PASSES, together);
        if (ticket == blocks * PASSES - 1)  // the last of this batch; the next comes after more digits are counted
            control = first + together < rows ? (word & TICKETS) + 1 : 0;
        int launch = 0;
        for (; ticket >= blocks; ticket -= blocks) ++launch;
        const unsigned block = (unsigned)ticket, row = blocks > tiles ? block / tiles : 0;
        unsigned needed = max(1u, (unsigned)(word >> NEEDED));  // one launch moves keys that need no sorting
        const bool in_order = !(word & NOT_IN_ORDER), reversed = !in_order && !(word & NOT_REVERSED);
        if (in_order || reversed) needed = 1u << (31 - __clz((int)needed));
        const int wanted = __popc(needed);
        Drawn drawn;
        drawn.row = row, drawn.tile = block - row * tiles;
        drawn.begin = (first + row) * n + drawn.tile * SIZE;
        drawn.length = (int)min(n - drawn.tile * SIZE, (Index)SIZE);
        drawn.first = launch == 0, drawn.last = launch == wanted - 1, drawn.odd = launch % 2;
        drawn.into_out = (wanted - 1 - launch) % 2 == 0;
        unsigned rest = needed;
        for (int before = 0; before < launch; ++before) rest &= rest - 1;
        drawn.shift = rest && first + row < rows ? (__ffs(rest) - 1) * 8 : -1;
        drawn.behind = n - 1 - drawn.tile * SIZE;
        drawn.in_order = in_order, drawn.reversed = reversed;
        return drawn;
    }

    // Returns the number of keys of a row with this thread's digit, and zeros the count. The last launch also zeros the
    // counts of digits that were not sorted by.
    DEVICE Count take(Count* totals) const {
        Count* counts = counts_of<Order>(totals, drawn->row, drawn->shift / 8) + threadIdx.x;
        const Count count = *counts;
        *counts = 0;
        if (drawn->last)
            for (int pass = 0; pass < PASSES; ++pass) counts_of<Order>(totals, drawn->row, pass)[threadIdx.x] = 0;
        return count;
    }

    // Returns the number of keys of the previous `tiles` tiles with this thread's digit, given the word of the last of
    // these tiles. Their first tile publishes a prefix at once, so that no word before it is used.
    DEVICE static unsigned look_back(const unsigned* word, int tiles, unsigned flip) {
        constexpr int AHEAD = 8;  // loads in flight
        unsigned sum = 0;
        while (true) {
            unsigned seen[AHEAD];
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ++ahead)
                seen[ahead] = read_current(word - min(ahead, tiles - 1) * RADIX) ^ flip;
            int taken = 0;
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ++ahead) {
                if (taken < ahead || seen[ahead] < AGGREGATE) continue;
                sum += seen[ahead] & (AGGREGATE - 1);
                if (seen[ahead] >= PREFIX) return sum;
                ++taken;
            }
            word -= taken * RADIX, tiles -= taken;
        }
    }

    template <class V>
    DEVICE void answer(Move<V> array) const {
        V held[ITEMS];
        load(held, drawn->first ? array.in : drawn->into_out ? array.own : array.out);
        rearrange(held, drawn->into_out ? array.out : array.own);
    }

    template <class Result>
    DEVICE void answer(Indices<Result, Place> indices) const {
        Place* const aside = shifted(indices.aside, row_begin() * indices.apart);
        Place held[ITEMS];
        if (drawn->first) {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                held[i] = (Place)(drawn->reversed ? drawn->behind - place_of(i) : drawn->tile * SIZE + place_of(i));
        } else {
            load(held, drawn->into_out ? indices.own : aside);
        }
        if (drawn->last)
            rearrange(held, indices.out);
        else
            rearrange(held, drawn->into_out ? aside : indices.own);
    }

    // Stores elements that belong to the keys that this thread writes, whose digits are given.
    template <class V, class To, class Digit>
    DEVICE void write(const V (&held)[ITEMS], To* to, Digit digit) const {
        Index start = row_begin() * (Index)sizeof(To);
        asm("" : "+l"(start));  // else the compiler multiplies for every element
        to = reinterpret_cast<To*>(reinterpret_cast<char*>(to) + start);
        const int length = drawn->length - (int)threadIdx.x;
        const auto one = [&](int k) {
            const Count target = bases[digit(k)] + (Count)(k * THREADS + threadIdx.x);
            to[target] = (To)held[k];
        };
        if (full)
#pragma unroll
            for (int k = 0; k < ITEMS; ++k) one(k);
        else
#pragma unroll
            for (int k = 0; k < ITEMS; ++k)
                if (k * THREADS < length) one(k);
    }

    // Copies the keys of a tile. A thread loads TOGETHER of them before it stores them.
    DEVICE void copy(const Key* from, Key* to) const {
        constexpr int TOGETHER = sizeof(Key) < 8 ? 8 : 4;
        const int step = drawn->reversed ? -1 : 1;
        from += drawn->begin;
        to += drawn->reversed ? row_begin() + drawn->behind : drawn->begin;
#pragma unroll 1
        for (int at = threadIdx.x; at < drawn->length; at += TOGETHER * THREADS) {
            Key held[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i)
                if (at + i * THREADS < drawn->length) held[i] = from[at + i * THREADS];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i)
                if (at + i * THREADS < drawn->length) to[step * (at + i * THREADS)] = held[i];
        }
    }

    // Moves elements of the keys that this thread read to the threads that write these keys, and stores them.
    template <class V, class To>
    DEVICE void rearrange(V (&held)[ITEMS], To* to) const {
        extern __shared__ uint4 dynamic[];
        V* exchange = reinterpret_cast<V*>(dynamic);
        __syncthreads();  // separates the reads of what was exchanged before from these writes
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) exchange[(places[i / 2] >> i % 2 * 16 & 0xffff) - 1] = held[i];
        __syncthreads();  // separates the writes from the reads
#pragma unroll
        for (int k = 0; k < ITEMS; ++k) held[k] = exchange[k * THREADS + threadIdx.x];
        write(held, to, [&](int k) { return bins[k / 4] >> k % 4 * 8 & 255; });
    }
};

// Sorts the rows of a batch by one digit. Each block has one tile.
template <int THREADS, int ITEMS, class Order, class Count, class Place, class... Asked>
DEVICE void sort_tiles(KeyBuffers<typename Order::Key, Place> keys, Scratch<Count> scratch, Extent extent,
                       unsigned segment, Asked... asked) {
    const SortedTile<THREADS, ITEMS, (sizeof...(Asked) > 0), Order, Count, Place> sorted(keys, scratch, extent, segment);
    if (!sorted.left) return;
    (sorted.answer(asked), ...);
}

}  // namespace sorting

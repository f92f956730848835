// Stable sort of rows that are too long for a block, by the least significant digit first (see _sort.cu).
//
// count_digits counts the digits of all keys. Then each launch of sort_tiles sorts by one digit. Keys go from the input
// to the output by way of a temporary array, in turn.
//
// Template parameters besides those in _sort.cu:
//   Count     an integer that counts the keys of a row, with 2 bits to spare.
//   Place     an integer that numbers the keys of a row.
//
// Phases of sort_tiles:
//   1. A block draws a ticket, which gives the launch (tickets are counted through all launches) and the tile. So a
//      tile only ever waits for tiles that have been begun. The launch gives the digit: of all digits those that are
//      not the same in a whole row are sorted by, and launches that are left over end here. Nobody asks the host.
//   2. Each warp counts its digits. The block sums the warps' counts digit by digit and publishes them, so that they
//      are there when later tiles look for them; a scan over digits gives places in the tile.
//   3. Each warp ranks its keys among its equal digits: ballots for every bit leave the lanes with the same digit,
//      whose last counts the place of the digit on.
//   4. Keys go to their places in shared memory, and meanwhile the tiles before finish.
//   5. A thread for each digit looks back over the tiles before: it adds up what they have counted, until one has
//      published the sum of all tiles up to itself. The first tile of a row starts from the scan of the row's digits.
//   6. Keys, then values, leave shared memory in runs of equal digits, side by side.
// Many rows whose counts would take more memory than there is for them are sorted in turns: the same launches once more
// for the next rows, which the tickets tell.
//
// Words between blocks: 2 bits say what a word is, the counts of the tile (AGGREGATE) or those of all tiles up to it
// (PREFIX). The rest counts, so that no fence is needed. Launches in turn give
// the 2 bits another meaning, under which the last word of every tile of the launch before reads as not there yet;
// therefore the words are zeroed once (by count_digits) and not for every digit.
// A word has 32 bits. The tiles of rows that are longer than it can count are divided into segments (Count has 64 bits
// then), whose first tiles start from 0, and a word of 64 bits for each digit says what goes before a segment. The last
// tile of the segment before publishes it, as the first tile of the row does for the first segment.
//
// A. Adinets and D. Merrill, Onesweep: A Faster Least Significant Digit Radix Sort for GPUs, arXiv:2206.01784, 2022.

namespace sorting {

// The scratch that is zero between calls begins with this word: the tickets drawn in its low bits, and above them the
// digits that are not the same in a whole row. The counts of digits follow where several blocks count a row.
struct alignas(16) Control {
    unsigned long long word;
};
static_assert(sizeof(Control) == 16, "_sort_kernel.py places what follows");
constexpr int NEEDED = 56;
constexpr unsigned long long TICKETS = (1ull << NEEDED) - 1;

// Rows of n keys in `tiles` tiles each; so many of them are sorted `together`, in turn with others.
struct Extent {
    Position rows, together, n, tiles;
};

// What launches tell each other by: `counts` of the digits of every row, which are zero between calls where several
// blocks count a row, and `words` between the tiles.
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

// Returns where it stands how many keys of a row have each value of a digit.
template <class Order, class Count>
DEVICE Count* counts_of(Count* counts, Position row, int pass) {
    return counts + (row * RadixPasses<Order>::PASSES + pass) * RadixPasses<Order>::RADIX;
}

DEVICE void publish_word(unsigned* to, unsigned word) {
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
DEVICE void publish_word(unsigned long long* to, unsigned long long word) {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
DEVICE unsigned read_word(const unsigned* from) {
    unsigned word;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}
DEVICE unsigned long long read_word(const unsigned long long* from) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}

// Returns the first of the rows that are sorted together, in turn with others, and takes from a ticket those of the
// launches for the rows before.
DEVICE Position first_together(Position& ticket, Position tickets, Position together) {
    Position first = 0;
    for (; ticket >= tickets; ticket -= tickets) first += together;
    return first;
}

// Counts the digits of all keys of the rows sorted together, `chunk` of a row in each of its `chunks` blocks, and
// zeroes `vectors` times 16 bytes of words. Keys are loaded VECTOR at a time.
template <int THREADS, int VECTOR, class Order, class Count>
DEVICE void count_digits(const typename Order::Key* in, Scratch<Count> scratch, Extent extent, Position chunk,
                         Position chunks, Position vectors) {
    using Key = typename Order::Key;
    constexpr int WIDTH = Order::WIDTH, RADIX = RadixPasses<Order>::RADIX, PASSES = RadixPasses<Order>::PASSES;
    constexpr int WORDS = (PASSES + 3) / 4, DIGITS = PASSES / WORDS;  // 32 bits of a key, and the digits of those
    using Counts = digits::DigitCounts<DIGITS, RADIX>;
    const Position rows = extent.rows, together = extent.together, n = extent.n;
    extern __shared__ uint4 dynamic[];
    unsigned* counts = reinterpret_cast<unsigned*>(dynamic);  // [WORDS][Counts::COUNTS]
    Position ticket = (Position)(read_word(&scratch.control->word) & TICKETS);
    for (Position at = (Position)blockIdx.x * THREADS + threadIdx.x; at < vectors; at += (Position)gridDim.x * THREADS)
        reinterpret_cast<uint4*>(scratch.words)[at] = uint4{};
    for (int at = threadIdx.x; at < WORDS * Counts::COUNTS / 4; at += THREADS) dynamic[at] = uint4{};
    __syncthreads();  // separates the zeros from what is added to them

    const Position first_row = first_together(ticket, together * extent.tiles * PASSES, together);
    const unsigned row = blockIdx.x / (unsigned)chunks;
    if (first_row + row >= rows) return;
    const Position begin = (blockIdx.x - row * chunks) * chunk;
    const Position end = min(begin + chunk, n);
    const Key* keys = in + (first_row + row) * n;
    const Key first = ordered<Order>(keys[0]);
    const int lane = threadIdx.x % WARP;
    const Counts counter;
    // Adds a number of keys to the counts of the digits that a key has in one of its words.
    const auto add = [&](Key key, int word, unsigned number) {
        counter.add(counts, word, (unsigned)(key >> word * 32 % WIDTH), number);
    };
    unsigned like_first = 0;  // how many keys with the first one's upper word are not yet counted there
    const auto count = [&](Key bits, bool together) {
        const Key key = ordered<Order>(bits);
        add(key, 0, 1);
        if (WORDS == 1) return;
        if (together && !__any_sync(ALL_LANES, (unsigned)((key ^ first) >> 32 % WIDTH) != 0))
            ++like_first;
        else
            add(key, 1, 1);
    };
    constexpr int AHEAD = 4;  // loads of a thread under way
    Position at = begin + (Position)threadIdx.x * VECTOR;
    for (; at + (AHEAD * THREADS - (int)threadIdx.x) * VECTOR <= end; at += AHEAD * THREADS * VECTOR) {  // all threads
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
        }
    }
    for (; at < end; at += THREADS * VECTOR)
        for (Position k = at; k < min(at + VECTOR, end); ++k) count(keys[k], false);
    if (like_first) add(first, 1, like_first);
    __syncthreads();  // separates the additions from the reads

    if (threadIdx.x < WARP) {  // a lane for each digit that may be needed: not all keys have the first one's
        const unsigned its = (unsigned)(first >> min(lane, PASSES - 1) * 8) & (RADIX - 1);
        const bool differs =
            lane < PASSES && Counts::sum(counts, lane / DIGITS, its, lane % DIGITS) != (unsigned)(end - begin);
        const unsigned long long needed = __ballot_sync(ALL_LANES, differs);
        if (lane == 0 && needed) atomicOr(&scratch.control->word, needed << NEEDED);
    }
    for (int at = threadIdx.x; at < PASSES * RADIX; at += THREADS) {  // side by side in shared memory
        const int word = at / (RADIX * DIGITS), value = at / DIGITS % RADIX, digit = at % DIGITS;
        const Count number = Counts::sum(counts, word, value, digit);
        Count* to = counts_of<Order>(scratch.counts, row, word * DIGITS + digit) + value;
        if (chunks == 1)
            *to = number;
        else if (number)
            atomicAdd(to, number);
    }
}

// The keys of long rows on their way. Launches write them in turn to `temporary` and to the side of the result, `out`,
// the last one there; rows in `out` are `apart` bytes an element longer than their keys. If `keyless` the result has no
// keys, and the last launch leaves them out. So does every launch to the side of the result where `through` is given,
// which is where the places of keys wait on that side: the next launch reads the keys of the input through them.
template <class Key, class Place>
struct KeysOnTheWay {
    const Key* in;
    Key* temporary;
    Key* out;
    int apart;
    bool keyless;
    const Place* through;
};

// One tile of a row, in one launch.
template <int THREADS, int ITEMS, class Order, class Count, class Place>
struct SortedTile {
    using Key = typename Order::Key;
    static constexpr int DIGIT = RadixPasses<Order>::DIGIT, RADIX = RadixPasses<Order>::RADIX;
    static constexpr int PASSES = RadixPasses<Order>::PASSES;
    static constexpr int SIZE = THREADS * ITEMS, WARPS = THREADS / WARP;
    static constexpr bool SEGMENTS = sizeof(Count) > sizeof(unsigned);
    static constexpr unsigned AGGREGATE = 1u << 30, PREFIX = 2u << 30;   // 0: not there yet
    static constexpr Count KNOWN = (Count)1 << (8 * sizeof(Count) - 1);  // what goes before a segment
    static_assert(RADIX <= THREADS && SIZE < 1 << 16, "a thread for each digit, and 16 bits for a place");

    struct Drawn {
        Position row, tile, begin;  // the row of those sorted together, the tile in it, its first element in the array
        int length, shift;
        bool first, last, into_out, odd;
    };

    unsigned places[(ITEMS + 1) / 2];  // + 1, in the tile, of what this thread has read, two to a word
    unsigned bins[(ITEMS + 3) / 4];    // the digits of what it writes, four to a word
    const Count* bases;                // for each digit, what is to be added to a place in the tile
    const Drawn* drawn;                // these two in shared memory
    bool left, full;

    // Draws a tile and moves its keys; `left` tells whether there was a digit left to sort by. A `segment` has so many
    // tiles.
    DEVICE SortedTile(KeysOnTheWay<Key, Place> moving, Scratch<Count> scratch, Extent extent, unsigned segment) {
        const Position together = extent.together;
        const unsigned tiles = (unsigned)extent.tiles;
        __shared__ Drawn shared;
        __shared__ unsigned counts[WARPS][RADIX];
        __shared__ Count offsets[RADIX], sums[RADIX / WARP + 1];
        extern __shared__ uint4 dynamic[];
        if (threadIdx.x == 0) shared = draw(scratch.control->word, extent.rows, together, tiles, extent.n);
        __syncthreads();  // separates the write of what is drawn from its reads
        bases = offsets, drawn = &shared;
        left = shared.shift >= 0, full = shared.length == SIZE;
        if (!left) return;

        Key* const out = shifted(moving.out, row_begin() * moving.apart);
        Key keys[ITEMS];
        if (moving.through && !shared.first && !shared.into_out)
            gather(keys, moving.in, moving.through);
        else
            load(keys, shared.first ? moving.in : shared.into_out ? moving.temporary : out);
        const int shift = shared.shift;
        unsigned digits[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) digits[i] = digit_of<Order, DIGIT>(keys[i], shift);
        if (!full)  // elements past the end have the largest digit and stand behind all others
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (place_of(i) >= shared.length) digits[i] = RADIX - 1;
        unsigned(&own)[RADIX] = counts[threadIdx.x / WARP];
        count_in_warp<DIGIT>(digits, own);

        // What a word means in launches of odd number differs by its highest bit.
        const unsigned flip = shared.odd ? PREFIX : 0;
        const Count flip_base = shared.odd ? KNOWN : 0;
        const unsigned tile = (unsigned)shared.tile, in_segment = SEGMENTS ? tile % segment : tile;
        unsigned* mine = scratch.words + (shared.row * tiles + tile) * RADIX + threadIdx.x;
        Count* base = nullptr;  // that of the segment, behind the words of all tiles
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
        Count before = 0;  // of the row's keys, those that go before the tile's with this thread's digit
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
            asm("" : "+r"(places[i / 2]));  // else the compiler keeps each in a register
        });
        if (threadIdx.x < RADIX) {
            Count known = SEGMENTS && tile > 0 ? read_word(base) : 0;
            if (in_segment > 0) {
                const unsigned seen = look_back(mine - RADIX, (int)in_segment, flip);
                publish_word(mine, ((seen + count) | PREFIX) ^ flip);
                before = seen;
            }
            if (SEGMENTS && tile > 0) {
                while ((known ^ flip_base) < KNOWN) known = read_word(base);
                before += (known ^ flip_base) - KNOWN;
            }
            if (SEGMENTS && in_segment == segment - 1 && tile < tiles - 1)
                publish_word(base + RADIX, ((before + count) | KNOWN) ^ flip_base);
            offsets[threadIdx.x] = before - start;  // modulo the range of Count
        }
        __syncthreads();  // separates the writes of keys and offsets from their reads

#pragma unroll
        for (int k = 0; k < ITEMS; ++k) {
            keys[k] = exchange[k * THREADS + threadIdx.x];
            digits[k] = digit_of<Order, DIGIT>(keys[k], shift);
            bins[k / 4] = k % 4 ? bins[k / 4] | digits[k] << k % 4 * 8 : digits[k];
            asm("" : "+r"(bins[k / 4]));  // else the compiler keeps each in a register
        }
        if (moving.keyless && (shared.last || (moving.through && shared.into_out))) return;
        write(keys, shared.into_out ? out : moving.temporary, [&](int k) { return digits[k]; });
    }

    DEVICE Position row_begin() const { return drawn->begin - drawn->tile * SIZE; }
    DEVICE static int place_of(int i) { return in_tile<ITEMS>(threadIdx.x, i); }

    template <class V>
    DEVICE static V* shifted(V* array, Position nbytes) {
        return reinterpret_cast<V*>(reinterpret_cast<char*>(array) + nbytes);
    }

    template <class V>
    DEVICE void load(V (&to)[ITEMS], const V* from) const {
        from += drawn->begin + place_of(0);
        const int length = drawn->length - place_of(0);
        if (full)
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) to[i] = from[i * WARP];
        else
#pragma unroll
            for (int i = 0; i < ITEMS; ++i)
                if (i * WARP < length) to[i] = from[i * WARP];
    }

    // Loads keys through the places they have in the row, which wait in the registers of the keys if they fit.
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

    DEVICE static Drawn draw(unsigned long long& control, Position rows, Position together, unsigned tiles,
                             Position n) {
        const unsigned long long word = atomicAdd(&control, 1ull);
        const Position blocks = together * tiles;
        Position ticket = word & TICKETS;
        const Position first = first_together(ticket, blocks * PASSES, together);
        if (ticket == blocks * PASSES - 1)  // nobody will draw any more, or not before more digits are counted
            control = first + together < rows ? (word & TICKETS) + 1 : 0;
        int launch = 0;
        for (; ticket >= blocks; ticket -= blocks) ++launch;
        const unsigned block = (unsigned)ticket, row = blocks > tiles ? block / tiles : 0;
        const unsigned needed = max(1u, (unsigned)(word >> NEEDED));  // one launch moves what is in order already
        const int wanted = __popc(needed);
        Drawn drawn;
        drawn.row = row, drawn.tile = block - row * tiles;
        drawn.begin = (first + row) * n + drawn.tile * SIZE;
        drawn.length = (int)min(n - drawn.tile * SIZE, (Position)SIZE);
        drawn.first = launch == 0, drawn.last = launch == wanted - 1, drawn.odd = launch % 2;
        drawn.into_out = (wanted - 1 - launch) % 2 == 0;
        unsigned rest = needed;
        for (int before = 0; before < launch; ++before) rest &= rest - 1;
        drawn.shift = rest && first + row < rows ? (__ffs(rest) - 1) * 8 : -1;
        return drawn;
    }

    // Returns how many of a row's keys have this thread's digit, and leaves zero in its place, in the last launch also
    // in those of digits that were not sorted by.
    DEVICE Count take(Count* totals) const {
        Count* counts = counts_of<Order>(totals, drawn->row, drawn->shift / 8) + threadIdx.x;
        const Count count = *counts;
        *counts = 0;
        if (drawn->last)
            for (int pass = 0; pass < PASSES; ++pass) counts_of<Order>(totals, drawn->row, pass)[threadIdx.x] = 0;
        return count;
    }

    // Returns how many keys go before a tile's with this thread's digit, given its word in the tile before and how many
    // tiles there are before. The first of them says all, so that nothing is read before it.
    DEVICE static unsigned look_back(const unsigned* word, int tiles, unsigned flip) {
        constexpr int AHEAD = 8;  // words asked for together
        unsigned sum = 0;
        while (true) {
            unsigned seen[AHEAD];
#pragma unroll
            for (int ahead = 0; ahead < AHEAD; ++ahead)
                seen[ahead] = read_word(word - min(ahead, tiles - 1) * RADIX) ^ flip;
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

    template <class Index>
    DEVICE void answer(Indices<Index, Place> indices) const {
        Place* const aside = shifted(indices.aside, row_begin() * indices.apart);
        Place held[ITEMS];
        if (drawn->first) {
#pragma unroll
            for (int i = 0; i < ITEMS; ++i) held[i] = (Place)(drawn->tile * SIZE + place_of(i));
        } else {
            load(held, drawn->into_out ? indices.own : aside);
        }
        if (drawn->last)
            rearrange(held, indices.out);
        else
            rearrange(held, drawn->into_out ? aside : indices.own);
    }

    // Writes what belongs to the keys that this thread writes, given their digits.
    template <class V, class To, class Digit>
    DEVICE void write(const V (&held)[ITEMS], To* to, Digit digit) const {
        Position start = row_begin() * (Position)sizeof(To);
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

    // Writes what belongs to the keys that this thread has read.
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

// Sorts the tiles of all rows that are sorted together by one digit.
template <int THREADS, int ITEMS, class Order, class Count, class Place, class... Asked>
DEVICE void sort_tiles(KeysOnTheWay<typename Order::Key, Place> keys, Scratch<Count> scratch, Extent extent,
                       unsigned segment, Asked... asked) {
    const SortedTile<THREADS, ITEMS, Order, Count, Place> sorted(keys, scratch, extent, segment);
    if (!sorted.left) return;
    (sorted.answer(asked), ...);
}

}  // namespace sorting

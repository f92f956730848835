// Scan along one axis, in the canonical grouping: results depend on the places of elements in their own line alone, not
// on the layout, on other lines, or on what follows. The grouping is that of grouping.py, which CPUs have too, and
// which describes it: blocks of BLOCK elements, in them parts of 2048, 256 and 32 elements, and leaves of 4 in sums.
//
// The head of scan.cu describes the template parameters Scan, Inputs, Outputs and Starts. Results here do not depend on
// the next element: Scan::PEEKS is false. The other template parameters are
//     BLOCK      elements of a block of the grouping, a power of two from 256 on
//     SUMS       whether the operator is the addition of real floats
//     VEC        elements that are copied as one vector; 1 with ACROSS
//     ACROSS     whether adjacent threads copy elements of adjacent lines, or else of one line
//     CARRY      how a tile gets the state before it (see Carry in tile_scan.cuh); not SERIAL
//
// A thread has 32 consecutive elements of a line in shared memory, a part. A tile has `outer_lines` times `strip` lines,
// `strip` of them adjacent in memory, and `parts_of_tile` parts of each. If lines have several tiles, a tile along a line
// is one block. A tile across lines has 256 or 2048 elements of each of its lines, so that it is wide.
//
// Phases:
//   1. The threads of a block copy the elements of their tile to shared memory. Then every thread combines the elements
//      of its own part.
//   2. Threads combine the parts before their own in the same 256 elements, then the groups of 256 in the same 2048, and
//      then the groups of 2048 in the same block. If a block has several tiles, each publishes its state, or that of
//      the group that ends with it, and waits for those before it.
//   3. The state before the block comes from the block before (CHAINED), or from earlier ones (LOOK_BACK, see below).
//      States of blocks are combined from left to right.
//   4. Every thread goes over its elements again and writes the results.
// Where nothing comes before, nothing is combined. Sums of floats combine -0.0 instead, which changes no bit.
// Exclusive results are inclusive results, one element later.
// It is compiled with --fmad=false: otherwise copies of one operator may round a b + c in different places.
// Progress: a block draws its tile's number from a counter when it starts (see draw_ticket).
//
// D. Merrill and M. Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, NVR-2016-002, 2016.

#include "block.cuh"
#include "common.cuh"
#include "look_back.cuh"
#include "search.cuh"
#include "tile_scan.cuh"
#include "view.cuh"

constexpr int PART = 32, LEAF = 4, RADIX = 8;

// Returns the combination, from left to right, of `count` states that are `step` apart.
template <class Op>
DEVICE Optional<typename Op::State> fold(const typename Op::State* states, int count, int step = 1) {
    Optional<typename Op::State> all;
    all.valid = count > 0;
    if (count > 0) all.state = states[0];
    for (int i = 1; i < count; ++i) all.state = Op::combine(all.state, states[i * step]);
    return all;
}

template <class Op>
DEVICE Optional<typename Op::State> combine(const Optional<typename Op::State>& earlier,
                                            const Optional<typename Op::State>& later) {
    if (!earlier.valid) return later;
    return {later.valid ? Op::combine(earlier.state, later.state) : earlier.state, true};
}

// Decoupled look-back that combines strictly from left to right: returns the state before tile `number` of a line to
// warp 0. The arguments are as for look_back in look_back.cuh. `window` is shared memory for 32 states of each of
// looking_warps(WARPS) warps.
//
// Tiles are in groups of 32. The last tile of a group publishes the state behind the group. Warp w waits for the totals
// of the w-th group before this tile's, warp 0 for the earlier ones of this tile's group. Then warp 0 begins with the
// state behind the latest group that has arrived, and appends the totals after it one by one. So the bits do not depend
// on which state has arrived.
template <class Op, int WARPS>
DEVICE Optional<typename Op::State> look_back_in_order(const TileStates<typename Op::State>& states, Index line,
                                                       unsigned number, const typename Op::State& total,
                                                       Optional<typename Op::State> start,
                                                       typename Op::State* window) {
    using State = typename Op::State;
    constexpr int LOOKING = looking_warps(WARPS);
    const int lane = threadIdx.x % WARP_SIZE, warp = WARPS == 1 ? 0 : threadIdx.x / WARP_SIZE;
    const int place = number % WARP_SIZE;
    const unsigned group = number / WARP_SIZE;
    const bool last = number + 1 == states.tiles, closes = place == WARP_SIZE - 1 && !last;
    const auto totals = states.of_tiles(line), behind = states.of_groups(line);
    const bool looks = warp == 0 && lane < LOOKING && (unsigned)lane < group;
    bool seen = false;
    State found = total;
    if (warp < LOOKING && (unsigned)warp <= group) {
        State mine = total;
        bool arrived = warp == 0 && lane >= place;
        do {
            if (!arrived) arrived = totals.at((Index)(group - warp) * WARP_SIZE + lane).poll(mine);
            if (looks && !seen) seen = behind.at((Index)group - 1 - lane).poll(found);
        } while (!__all_sync(ALL_LANES, arrived));
        window[warp * WARP_SIZE + lane] = mine;
    }
    __syncthreads();  // separates the writes of window from their reads
    if (warp == 0) {
        int since = 0;
        if (group > 0) {
            unsigned there;
            while ((there = __ballot_sync(ALL_LANES, seen)) == 0)
                if (looks) seen = behind.at((Index)group - 1 - lane).poll(found);
            since = __ffs(there) - 1;
            start = {shuffle(found, since), true};
        }
        for (int at = since; at >= 0; --at) {
            const int count = at > 0 ? WARP_SIZE : place;
#pragma unroll 8
            for (int i = 0; i < count; ++i) append<Op>(start, window[at * WARP_SIZE + i]);
        }
        if (closes && lane == 0) behind.at(group).publish(start.valid ? Op::combine(start.state, total) : total);
    }
    return start;
}

// The tiles of segments: `offsets` are where segments begin and end. A tile is a block of a segment, and lines have a
// tile for each segment and one for each BLOCK elements: as many as needed, and some without elements.
template <class Offset, bool REVERSE>
struct Segments {
    const Offset* offsets;
    Index count;

    // The end of a segment, and the beginning of the next, along the axis as the scan runs.
    DEVICE Index boundary(Index at, Index n) const {
        return max((Index)0, min(n, REVERSE ? n - (Index)offsets[count - at] : (Index)offsets[at]));
    }
    // The number of a segment of the scan along the axis. There is a segment, since there are elements.
    DEVICE Index number(Index at) const { return max((Index)0, min(count - 1, REVERSE ? count - 1 - at : at)); }
};
struct NoSegments {};

template <class T>
constexpr bool ARE_SEGMENTS = true;
template <>
constexpr bool ARE_SEGMENTS<NoSegments> = false;

template <int BLOCK, bool SUMS, int VEC, bool ACROSS, Carry CARRY, int SHARED_BYTES, class Scan, class Inputs,
          class Outputs, class Starts, class Parts>
DEVICE void scan_tile(const Inputs& in, const Outputs& out, const Starts& starts, const Parts& segments,
                      ulonglong2* scratch, Index outer, Index low, Index length, Index outputs, Index inner, int strip,
                      int parts_of_tile, int outer_lines, unsigned tiles, unsigned ahead) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    using Raw = typename Scan::Raw;
    using Result = typename Scan::Result;
    using Peek = typename Scan::Peek;
    constexpr int PARTS = BLOCK / PART, THREADS = PARTS < WARP_SIZE ? WARP_SIZE : PARTS, WARPS = THREADS / WARP_SIZE;
    constexpr int VECTORS = PART / VEC, STRIDE = VECTORS + 1;  // a gap behind each part, for the banks of memory
    constexpr int SECONDS = RADIX, THIRDS = RADIX * RADIX;     // parts of a group of 256, and of one of 2048
    static_assert(!Scan::PEEKS && (!Scan::EXCLUSIVE || Scan::STARTS) && (!ACROSS || VEC == 1) && CARRY != SERIAL && !(ACROSS && CARRY == LOOK_BACK),
                  "see above");
    constexpr bool IN_TILES = ACROSS && CARRY == CHAINED;  // whether a block may have several tiles
    extern __shared__ uint4 shared[];
    using Buffers = typename Inputs::template Buffers<VEC, PARTS * STRIDE>;
    constexpr int WORDS = (sizeof(Buffers) + 15) / 16;
    static_assert(16 * WORDS + 4 * THREADS * sizeof(State) <= SHARED_BYTES, "see tiling.py");
    auto& buffers = *reinterpret_cast<Buffers*>(shared);
    State* const totals = reinterpret_cast<State*>(shared + WORDS);  // of each part
    State* const seconds = totals + THREADS;                         // of each group of 256 elements
    State* const thirds = seconds + THREADS;                         // of each group of 2048 elements
    State* const befores = thirds + THREADS;                         // the states before blocks

    // What the compiler can know of the tile.
    const int width = ACROSS ? strip : 1, parts = ACROSS || CARRY == ALONE ? parts_of_tile : PARTS;
    const int outers = CARRY == ALONE ? outer_lines : 1;

    // The thread's part of a line. Threads that are too many follow the last line, and write nothing.
    const int column = threadIdx.x % width, part = threadIdx.x / width % parts;
    const int own_place = threadIdx.x / (width * parts), place = min(own_place, outers - 1);
    const unsigned strips = ACROSS ? (unsigned)((inner + width - 1) / width) : 1;
    const unsigned lines = (unsigned)((outer + outers - 1) / outers) * strips;
    __shared__ unsigned long long drawn;
    const auto tile = draw_tile<State, CARRY>(scratch, lines, tiles, drawn);
    // The number of the tile in its line or segment, where this begins and where elements and results end, and whether a
    // tile follows.
    unsigned tile_number = tile.number;
    Index origin = 0, read = length, n = outputs;
    Index from_start = 0;  // the number of the initial element, of a line or a segment
    bool more = tile.number + 1 < tiles;
    if constexpr (ARE_SEGMENTS<Parts>) {
        __shared__ Index bounds[4];
        const auto first_tile = [&](Index at) { return at + segments.boundary(at, length) / BLOCK; };
        if (threadIdx.x < WARP_SIZE) {
            const Index at = count_before(segments.count + 1, [&](Index at) { return first_tile(at) <= tile.number; });
            const Index segment = max((Index)1, at) - 1;
            if (threadIdx.x == 0) {
                bounds[0] = segments.boundary(segment, length);
                bounds[1] = segment < segments.count ? segments.boundary(segment + 1, length) : bounds[0];
                bounds[2] = tile.number - first_tile(segment);
                bounds[3] = segments.number(segment);
            }
        }
        __syncthreads();  // separates the writes of bounds from their reads
        origin = bounds[0], read = n = bounds[1], tile_number = (unsigned)bounds[2], from_start = bounds[3];
        const Index past = origin + (Index)tile_number * BLOCK;
        more = past + BLOCK < read;
        if (bounds[2] < 0 || past >= read) {  // every tile publishes a state, so that none waits for wrong offsets
            if (threadIdx.x == 0) tile.slots.at((Index)tile.line * tiles + tile.number).publish(State());
            return;
        }
    }
    const Index first_outer = (Index)(tile.line / strips) * outers, o = first_outer + place;
    const Index j = (Index)(tile.line % strips) * width + column;
    const bool exists = own_place == place && o < outer && j < inner;
    if (!ARE_SEGMENTS<Parts> && exists) from_start = j;
    const auto [h, l] = line_index(exists ? o : first_outer, low);
    const Inputs from = views_at(in, h, l, exists ? j : 0);
    const Index first = origin + (Index)tile_number * parts * PART;
    const int count = (int)min((Index)parts * PART, read - first);
    const int mine = exists ? max(0, min(PART, count - part * PART)) : 0;
    const bool full = mine == PART;
    const auto slot = [&](int v) { return ((place * parts + part) * STRIDE + v) * width + column; };

    // Calls copy(views, slot, i) for each vector of the tile along its lines.
    const auto each_along = [&](const auto& views, const auto& copy) {
        const int vectors = (count + VEC - 1) / VEC;
        if (outers == 1 || vectors > WARP_SIZE) {  // a line is copied by the block, or by a warp
            const int lanes = outers == 1 ? THREADS : WARP_SIZE;
            for (int line = threadIdx.x / lanes; line < outers && first_outer + line < outer; line += THREADS / lanes) {
                const auto [high_at, low_at] = line_index(first_outer + line, low);
                const auto there = views_at(views, high_at, low_at, 0);
#pragma unroll 4
                for (int v = threadIdx.x % lanes; v < vectors; v += lanes)
                    copy(there, line * parts * STRIDE + v + v / VECTORS, first + (Index)v * VEC);
            }
        } else {
#pragma unroll 1
            for (int at = threadIdx.x; at < vectors * outers; at += THREADS) {
                const int line = at / vectors, v = at - line * vectors;
                if (first_outer + line >= outer) break;
                const auto [high_at, low_at] = line_index(first_outer + line, low);
                copy(views_at(views, high_at, low_at, 0), line * parts * STRIDE + v + v / VECTORS, (Index)v * VEC);
            }
        }
    };
    if constexpr (ACROSS) {
#pragma unroll 4
        for (int u = 0; u < mine; ++u) stage_across(from, buffers, slot(u), first + part * PART + u);
    } else {
        each_along(in, [&](const auto& views, int to, Index i) {
            stage_vectors<VEC>(views, buffers, to, i, read);
        });
    }
    if constexpr (CARRY == LOOK_BACK)
        visit_later_tile<CARRY>(tile, ahead, lines, tiles, [&](unsigned line, unsigned number) {
            const Index begin = (Index)number * BLOCK;
            prefetch_along<THREADS>(in, line, low, begin, min(read, begin + BLOCK));
        });
    wait_for_staged();
    __syncthreads();  // separates the threads' copies from each other's reads

    // Calls visit(u, element, raw, vector) for the thread's elements in their order, and done(vector) behind a vector.
    const auto walk = [&](int end, const auto& visit, const auto& done) {
        constexpr int STEP = SUMS && VEC < LEAF ? LEAF : VEC;
#pragma unroll 2
        for (int begin = 0; begin < end; begin += STEP)
#pragma unroll
            for (int v = 0; v < STEP; v += VEC) {
                Raw found[VEC];
                if (STEP > VEC && v > 0 && begin + v >= end) break;
                fetch_vectors(from, found, buffers, slot(begin / VEC + v / VEC));
                if (!Scan::STARTS && tile_number == 0 && part == 0 && begin + v == 0) read_as_first<Scan>(found[0]);
#pragma unroll
                for (int k = 0; k < VEC; ++k) visit(begin, v + k, Scan::element(found[k]), found[k], k);
                done(begin / VEC + v / VEC);
            }
    };
    State total;
    {
        State leaf;
        if (full)
            walk(
                PART,
                [&](int begin, int u, const State& one, const Raw&, int) {
                    if constexpr (SUMS) {
                        leaf = u % LEAF == 0 ? one : Op::combine(leaf, one);
                        if (u % LEAF == LEAF - 1) total = begin + u >= LEAF ? Op::combine(total, leaf) : leaf;
                    } else {
                        total = begin + u > 0 ? Op::combine(total, one) : one;
                    }
                },
                [](int) {});
        if (full) totals[threadIdx.x] = total;
    }
    __syncthreads();  // separates the writes of totals from their reads

    // The numbers of the thread's group of 256 in its group of 2048, and of this one in its block.
    const int of_block = IN_TILES ? tile.number % (PARTS / parts) : 0, number = (of_block * parts + part) / SECONDS;
    const int second = number % RADIX, third = number / RADIX;
    const StateSlots<State> slots = tile.slots.at((Index)tile.line * width + column);
    const auto slot_of = [&](unsigned at) { return slots.at((Index)at * lines * width); };
    if (IN_TILES && threadIdx.x == 0) Scan::before_publishing(tile.number);
    const Optional<State> by_parts = fold<Op>(totals + threadIdx.x - part % RADIX * width, part % RADIX, width);
    Optional<State> by_seconds, by_thirds;
    by_seconds.valid = by_thirds.valid = false;
    if (IN_TILES || parts > SECONDS) {
        const int held = IN_TILES ? RADIX : (parts + SECONDS - 1) / SECONDS;
        State* const own = seconds + place * held * width + column;
        Optional<State> all;
        const bool ends_second = full && part % RADIX == RADIX - 1;
        if (ends_second) {
            all = combine<Op>(by_parts, {total, true});
            own[(IN_TILES ? second : number) * width] = all.state;
            if (IN_TILES && parts == SECONDS && second < RADIX - 1 && more) slot_of(tile.number).publish(all.state);
        }
        if (IN_TILES && parts == SECONDS && exists && part < second) {
            State found;
            slot_of(tile.number - second + part).wait(found);
            own[part * width] = found;
        }
        __syncthreads();  // separates the writes of seconds from their reads
        by_seconds = fold<Op>(own + (IN_TILES ? 0 : third * RADIX) * width, second, width);
        if (IN_TILES || parts > THIRDS) {
            const int kept = IN_TILES ? PARTS / THIRDS : (parts + THIRDS - 1) / THIRDS;
            State* const large = thirds + place * kept * width + column;
            if (ends_second && second == RADIX - 1) {
                all = combine<Op>(by_seconds, all);
                large[third * width] = all.state;
                if (IN_TILES && (of_block + 1) * parts < PARTS && more) slot_of(tile.number).publish(all.state);
            }
            if (IN_TILES && exists && part < third) {
                State found;
                slot_of(tile.number - of_block + (part + 1) * (THIRDS / parts) - 1).wait(found);
                large[part * width] = found;
            }
            __syncthreads();  // separates the writes of thirds from their reads
            by_thirds = fold<Op>(large, third, width);
        }
    }

    // The state before the part in its block, and with the part. In sums the states stay apart.
    const Optional<State> before = combine<Op>(by_thirds, combine<Op>(by_seconds, by_parts));
    const auto or_zero = [](const Optional<State>& state) {
        if constexpr (SUMS)
            return state.valid ? state.state : State{-0.0f};
        else
            return state.state;
    };
    const auto in_block = [&](const State& of_part) {
        if constexpr (SUMS)
            return Op::combine(or_zero(by_thirds), Op::combine(or_zero(by_seconds), Op::combine(or_zero(by_parts), of_part)));
        else
            return before.valid ? Op::combine(before.state, of_part) : of_part;
    };
    const bool ends_block = full && (of_block * parts + part) == PARTS - 1;

    // The state before the block.
    const bool follows = CARRY != ALONE && tile_number >= (IN_TILES ? (unsigned)(PARTS / parts) : 1u);
    Optional<State> start;
    start.valid = Scan::STARTS || follows;
    if (Scan::STARTS && !follows) start.state = starts.load(h, l, from_start);
    if constexpr (IN_TILES) {
        if (follows) {
            if (exists && part == 0) slot_of(tile.number - of_block - 1).wait(befores[column]);
            __syncthreads();  // separates the writes of befores from their reads
            start.state = befores[column];
        }
        if (ends_block && more) {
            const State all = in_block(total);
            slot_of(tile.number).publish(start.valid ? Op::combine(start.state, all) : all);
        }
    } else if constexpr (CARRY != ALONE) {
        const TileStates<State> states = {tile.slots, lines, tiles};
        const bool leads = more ? ends_block : threadIdx.x == 0;
        Optional<State> of_line = {start.state, Scan::STARTS};
        State all = total;
        if (leads) {
            if (more) all = in_block(total);
            Scan::before_publishing(tile.number);
        }
        if constexpr (CARRY == LOOK_BACK) {
            if (leads) {
                befores[1] = all;
                states.publish(tile.line, tile.number, all);
            }
            __syncthreads();  // separates the write of the total, and the reads of totals, from what follows
            if (Scan::STARTS) of_line.state = starts.load(h, l, ARE_SEGMENTS<Parts> ? from_start : 0);
            of_line = look_back_in_order<Op, WARPS>(states, tile.line, tile.number, befores[1], of_line, totals);
            if (threadIdx.x == 0 && of_line.valid) befores[0] = of_line.state;
        } else if (leads) {
            if (Scan::STARTS) of_line.state = starts.load(h, l, ARE_SEGMENTS<Parts> ? from_start : 0);
            if constexpr (ARE_SEGMENTS<Parts>)
                of_line = chain<Op>({tile.slots.at((Index)tile.line * tiles + tile.number - tile_number), 1, tile_number + 2},
                                    0, tile_number, all, of_line);
            else
                of_line = chain<Op>(states, tile.line, tile.number, all, of_line);
            if (of_line.valid) befores[0] = of_line.state;
        }
        __syncthreads();  // separates the write of the state from its reads
        if (start.valid) start.state = befores[0];
    }

    // The results.
    const Outputs to = views_at(out, h, l, exists ? j : 0);
    State previous;  // exclusive results: the last inclusive one
    if constexpr (Scan::EXCLUSIVE) {
        __syncthreads();  // separates the reads of befores and totals from the writes here
        State* const lasts = totals;
        if (full) lasts[threadIdx.x] = in_block(total);
        __syncthreads();  // separates the writes of lasts from their reads
        previous = part > 0 ? Op::combine(start.state, lasts[threadIdx.x - width]) : start.state;
    }
    // Exclusive results of other tiles than the first of a block begin with the second element: see `beyond`.
    const int skipped = Scan::EXCLUSIVE && IN_TILES && of_block > 0 && part == 0;
    const State parts_before = or_zero(by_parts), seconds_before = or_zero(by_seconds);
    const State thirds_before = or_zero(by_thirds), block_before = or_zero(start);
    State leaf, leaves = or_zero({State(), false});
    Result results[VEC];
    walk(
        mine,
        [&](int begin, int u, const State& one, const Raw& raw, int k) {
            State state;
            if constexpr (SUMS) {
                leaf = u % LEAF == 0 ? one : Op::combine(leaf, one);
                const State in_part = Op::combine(leaves, leaf);
                if (u % LEAF == LEAF - 1) leaves = in_part;
                state = Op::combine(thirds_before, Op::combine(seconds_before, Op::combine(parts_before, in_part)));
                state = Op::combine(block_before, state);
            } else {
                leaf = begin + u > 0 ? Op::combine(leaf, one) : one;
                state = before.valid ? Op::combine(before.state, leaf) : leaf;
                if (start.valid) state = Op::combine(start.state, state);
            }
            results[k] = Scan::result(Scan::EXCLUSIVE ? previous : state, raw, Next<Peek>());
            if (begin + u < mine) previous = state;
        },
        [&](int v) {
            if constexpr (ACROSS) {
                if (v >= skipped) store_across(to, results, first + part * PART + v);
            } else {
                put_vectors(to, results, buffers, slot(v));  // only this thread reads these slots
            }
        });
    if constexpr (Scan::EXCLUSIVE) {
        // The result behind the tile's elements, unless it is the first of a block.
        const Index end = first + part * PART + mine;
        const bool beyond = mine > 0 && part * PART + mine == count && end < n;
        if (beyond && (end == read || (IN_TILES && !ends_block))) {
            const Result last[1] = {Scan::result(previous, Raw(), Next<Peek>())};
            store_across(to, last, end);
        }
    }
    if constexpr (!ACROSS) {
        __syncthreads();  // separates the threads' results from each other's stores
        each_along(out, [&](const auto& views, int at, Index i) {
            flush_vectors<VEC>(views, buffers, at, i, read);
        });
    }
}

template <int BLOCK, bool SUMS, int VEC, bool ACROSS, Carry CARRY, int SHARED_BYTES, class Scan, class Inputs,
          class Outputs, class Starts>
DEVICE void scan_blocks(const Inputs& in, const Outputs& out, const Starts& starts, ulonglong2* scratch, Index outer,
                        Index low, Index read, Index n, Index inner, int strip, int parts, int outer_lines,
                        unsigned tiles, unsigned ahead) {
    scan_tile<BLOCK, SUMS, VEC, ACROSS, CARRY, SHARED_BYTES, Scan>(in, out, starts, NoSegments(), scratch, outer, low, read,
                                                                   n, inner, strip, parts, outer_lines, tiles, ahead);
}

// The scan of every segment along lines, which are not adjacent in memory.
template <int BLOCK, bool SUMS, bool REVERSE, int SHARED_BYTES, class Scan, class Offset, class Inputs, class Outputs,
          class Starts>
DEVICE void scan_segment_blocks(const Inputs& in, const Outputs& out, const Starts& starts, const Offset* offsets,
                                ulonglong2* scratch, Index lines, Index low, Index n, Index segments, unsigned tiles) {
    const Segments<Offset, REVERSE> parts = {offsets, segments};
    scan_tile<BLOCK, SUMS, 1, false, CHAINED, SHARED_BYTES, Scan>(in, out, starts, parts, scratch, lines, low, n, n, 1, 1,
                                                                  BLOCK / PART, 1, tiles, 0);
}

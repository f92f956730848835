// Reduction of segments along one axis: y[o, s, j] = x[o, offsets[s], j] op ... op x[o, offsets[s + 1] - 1, j]. Every
// element is read once and every result written once, in one launch, and the time does not depend on how long segments
// are.
//
// A "line" is one (o, :, j). Elements and ends of segments of a line form its "path": all elements of a segment, then
// its end, then the next segment. The elements before the first offset are a segment too, number 0, without a result;
// segment s of the result is number s + 1 here, and ends at offsets[s + 1]. The elements after the last offset are a
// segment without an end. The path is cut into equal shares, one for each warp. Template parameters:
//     WARPS      warps of a block
//     ROUNDS     vectors that a lane takes of a run of elements
//     VEC        adjacent elements that a lane loads as one vector
//     ALONE      whether a warp has a line by itself; otherwise `blocks` blocks share one
//     JOINS      whether an initial element is before each segment; otherwise Starts holds the result of an empty
//                segment
//     Scan       the operator and the elements (see scan.cu): Op, Raw, Result, element(raw), result(state, raw, next)
//     Offset     the type of offsets
//     Inputs, Outputs, Starts    the arrays (see scan.cu)
//
// Phases:
//   1. A warp finds the first element and the first segment of its share by a search of the offsets.
//   2. It goes along its elements in runs of 32 lanes x ROUNDS x VEC, and copies a run to shared memory while it works
//      on the previous one. In a run where no segment ends, lanes combine all elements. Otherwise the warp marks in
//      shared memory where segments end, lanes combine their own consecutive elements anew from every mark on, and a
//      scan over the lanes gives each lane the prefix of its elements. The result of a segment is then read at its last
//      element. If no segment ends in many consecutive runs, lanes load and combine them without shared memory.
//   3. A share may hold only parts of its first and of its last segment. The block combines the parts of its own shares.
//      The last block of the line to arrive (see ticket.cuh) combines the parts of all blocks.
// Operands stay in order: the operator need not be commutative. It is applied to elements of the line only, and needs no
// identity. The grouping depends on offsets and shape alone, so the same input gives the same bits.
// Wrong offsets give wrong results, but never accesses outside the arrays.
//
// D. Merrill and M. Garland, Merge-based Parallel Sparse Matrix-Vector Multiplication, SC 2016.

#include "block.cuh"
#include "common.cuh"
#include "search.cuh"
#include "tables/segment_parts.cuh"
#include "ticket.cuh"
#include "view.cuh"

// Returns the combination of the elements of `count` runs from element `begin` on, in every lane.
template <int ROUNDS, int VEC, class Scan, class Inputs>
DEVICE typename Scan::Op::State reduce_runs(const Inputs& from, Index begin, Index count, int lane) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    constexpr int STEP = WARP_SIZE * VEC;
    State total;
    for (Index run = 0; run < count; ++run) {
        typename Scan::Raw raw[ROUNDS][VEC];
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            const Index at = begin + (run * ROUNDS + r) * STEP + lane * VEC;
            load_along(from, raw[r], at, at + VEC);
        }
        State folded[ROUNDS];
#pragma unroll
        for (int r = 0; r < ROUNDS; ++r) {
            State s[VEC];
#pragma unroll
            for (int k = 0; k < VEC; ++k) s[k] = Scan::element(raw[r][k]);
            folded[r] = reduce_items<Op>(s);
            if (!Op::COMMUTATIVE) folded[r] = reduce_lanes<Op, WARP_SIZE>({folded[r], true}).state;
        }
        const State whole = reduce_items<Op>(folded);
        total = run > 0 ? Op::combine(total, whole) : whole;
    }
    if (Op::COMMUTATIVE) total = reduce_lanes<Op, WARP_SIZE>({total, true}).state;
    return shuffle(total, 0);
}

// The shared memory of a warp.
template <class Buffers, class State, int EACH>
struct RunOfWarp {
    static constexpr int STRIDE = EACH | 1;  // odd, which avoids bank conflicts

    Buffers staged[2];
    State states[WARP_SIZE * STRIDE];  // combinations of a lane's elements since the last mark, up to each element
    State prefixes[WARP_SIZE];         // the prefix of a lane's first element, if its segment begins before
    unsigned marks[WARP_SIZE];         // a bit for each element of a lane: whether a segment ends before it
};

template <int WARPS, int ROUNDS, int VEC, bool ALONE, bool JOINS, int SHARED_BYTES, class Scan, class Offset,
          class Inputs, class Outputs, class Starts>
DEVICE void reduce_segments(const Inputs& in, const Outputs& out, const Starts& starts, const Offset* offsets,
                            unsigned* tickets, unsigned* partials, Index lines, Index low, Index n, Index segments,
                            Index share, unsigned blocks) {
    using Op = typename Scan::Op;
    using State = typename Op::State;
    using Raw = typename Scan::Raw;
    using Result = typename Scan::Result;
    constexpr int THREADS = WARPS * WARP_SIZE, ROW = WARP_SIZE * VEC, EACH = ROUNDS * VEC,
                  RUN = WARP_SIZE * EACH;
    constexpr int MANY = 3;  // runs without an end of a segment from which on it pays not to use shared memory
    using Run = RunOfWarp<typename Inputs::template Buffers<VEC, WARP_SIZE * ROUNDS>, State, EACH>;
    static_assert(EACH <= 32, "a lane has a word of marks");
    static_assert(WARPS * sizeof(Run) <= SHARED_BYTES && (ALONE || THREADS * sizeof(Part<State>) <= SHARED_BYTES) &&
                      sizeof(Part<State>) <= 2 * sizeof(State) + 48,
                  "see cuda.py");
    extern __shared__ uint4 shared[];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    Run& run = reinterpret_cast<Run*>(shared)[warp];
    const Index line = ALONE ? (Index)blockIdx.x * WARPS + warp : blockIdx.x / blocks;
    if (ALONE && line >= lines) return;
    const auto [h, l] = line_index(line, low);
    const Inputs from = views_at(in, h, l, 0);
    const Outputs to = views_at(out, h, l, 0);
    const State start = starts.load(h, l, 0);
    const auto finish = [&](Index segment, const Optional<State>& found) {
        if (segment == 0) return;
        State state = found.valid ? found.state : start;
        if (JOINS && found.valid) state = Op::combine(start, found.state);
        const Result results[1] = {Scan::result(state, Raw(), 0)};
        store_along(to, results, segment - 1, segments);
    };

    // The share: elements from `begin` to `past`, ends of segments from `first` to `end`.
    Index first = 0, end = segments + 1, begin = 0, past = n;
    if (!ALONE) {
        const Index items = n + segments + 1;
        const Index one = min(items, ((Index)(blockIdx.x % blocks) * WARPS + warp) * share), other = min(items, one + share);
        const Index item = lane < HALF_WARP ? one : other;
        const Index ended = count_before(min(item, end), [&](Index s) { return (Index)offsets[s] + s < item; });
        first = shuffle(ended, 0);
        end = max(first, shuffle(ended, HALF_WARP));
        begin = min(n, max((Index)0, one - first));
        past = min(n, max(begin, other - end));
    }
    const auto end_of = [&](Index segment) { return segment < end ? (Index)offsets[segment] : 2 * n + RUN; };

    Index base = begin / ROW * ROW;  // the first element of the run
    const Index readable = min(n, (max(past, (Index)1) + VEC - 1) / VEC * VEC);
    const auto stage = [&](int turn, Index from_here) {
        each_vector<ROUNDS, WARP_SIZE, VEC>(lane, from_here, readable, [&](int r, Index i, Index past) {
            // Elements after the share are not needed. If all warps read them at one place, they would wait for each
            // other.
            const Index at = i < past ? i : max((Index)0, past / VEC * VEC - VEC);
            stage_vectors<VEC>(from, run.staged[turn], r * WARP_SIZE + lane, at, past);
        });
        end_group_of_staged();
    };
    // The number of whole runs from an element on before the end of its segment, without the last run of the share.
    const auto runs_before = [&](Index ends_at, Index from_here) { return (min(ends_at, past) - from_here - 1) / RUN; };
    int lead = (int)(begin - base);  // places at the front of the run that are not in the share
    Index next = first;              // the first segment that has not ended
    Index window = end_of(next + lane);
    Optional<State> total, kept;  // of segment `next` before the run; of the first segment, in lane 0
    total.valid = kept.valid = false;
    bool is_staged = false;  // whether the copy of the run has begun
    for (int turn = 0;; turn ^= 1) {
        if (!is_staged) {
            const Index together = lead > 0 ? 0 : runs_before(shuffle(window, 0), base);
            if (together >= MANY) {
                append<Op>(total, reduce_runs<ROUNDS, VEC, Scan>(from, base, together, lane));
                base += together * RUN;
            }
            stage(turn, base);
        }
        const bool is_final = base + RUN >= past;
        const int last = is_final ? (int)(past - base) : RUN;
        const auto place_of = [&](Index ends_at) { return (int)min(max(ends_at - base, (Index)lead), (Index)RUN + 1); };
        run.marks[lane] = lead > 0 && lane == lead / EACH ? 1u << lead % EACH : 0;
        __syncwarp();  // separates the marks that are cleared from those that are set
        Index behind = next, ends = window;  // the first segment that does not end in the run or at its end
        int place = place_of(ends), count;
        do {
            const bool here = place <= last;
            if (here && place < RUN) atomicOr(&run.marks[place / EACH], 1u << place % EACH);
            count = __popc(__ballot_sync(ALL_LANES, here));
            behind += count;
            if (count == WARP_SIZE) {
                ends = end_of(behind + lane);
                place = place_of(ends);
            }
        } while (count == WARP_SIZE);
        is_staged = !is_final && runs_before(shuffle(ends, count), base + RUN) < MANY;
        if (is_staged)
            stage(turn ^ 1, base + RUN);
        else
            end_group_of_staged();
        const Index window_behind = behind > next ? end_of(behind + lane) : window;
        wait_for_earlier_groups();
        __syncwarp();  // separates the lanes' copies and marks from each other's reads
        const auto fetch = [&](int r, Raw(&raw)[VEC]) {
            fetch_vectors(from, raw, run.staged[turn], lane * ROUNDS + r);
        };
        if (behind == next && lead == 0 && last == RUN) {
            State mine;
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                Raw raw[VEC];
                fetch(r, raw);
                State s[VEC];
#pragma unroll
                for (int k = 0; k < VEC; ++k) s[k] = Scan::element(raw[k]);
                const State folded = reduce_items<Op>(s);
                mine = r > 0 ? Op::combine(mine, folded) : folded;
            }
#pragma unroll
            for (int distance = 1; distance < WARP_SIZE; distance *= 2)
                mine = Op::combine(mine, shuffle_down(mine, distance));
            append<Op>(total, shuffle(mine, 0));
        } else {
            const unsigned marks = run.marks[lane];
            State mine;
#pragma unroll
            for (int r = 0; r < ROUNDS; ++r) {
                Raw raw[VEC];
                fetch(r, raw);
#pragma unroll
                for (int k = 0; k < VEC; ++k) {
                    const int at = r * VEC + k;
                    const State one = Scan::element(raw[k]);
                    mine = at == 0 || (marks >> at & 1) != 0 ? one : Op::combine(mine, one);
                    run.states[lane * Run::STRIDE + at] = mine;
                }
            }
            const unsigned heads = __ballot_sync(ALL_LANES, marks != 0);
            const unsigned heads_so_far = heads & ALL_LANES >> (WARP_SIZE - 1 - lane);
            const int head = heads_so_far ? WARP_SIZE - 1 - __clz(heads_so_far) : 0;
#pragma unroll
            for (int distance = 1; distance < WARP_SIZE; distance *= 2) {
                const State before = shuffle_up(mine, distance);
                if (lane - distance >= head) mine = Op::combine(before, mine);
            }
            State before = shuffle_up(mine, 1);
            if (total.valid && (heads & ((1u << lane) - 1)) == 0)
                before = lane > 0 ? Op::combine(total.state, before) : total.state;
            run.prefixes[lane] = before;
            __syncwarp();  // separates the lanes' states and prefixes from each other's reads
            // The combination of the elements of a segment up to a place.
            const auto up_to = [&](int at) {
                const int owner = at / EACH, own = at % EACH;
                const State state = run.states[owner * Run::STRIDE + own];
                const bool is_whole = (run.marks[owner] & ((2u << own) - 1)) != 0 || (owner == 0 && !total.valid);
                return is_whole ? state : Op::combine(run.prefixes[owner], state);
            };
            int before_batch = lead, latest = -1;  // where the segment begins; where the last one ends
            for (Index batch = next; batch < behind; batch += WARP_SIZE) {
                const Index segment = batch + lane;
                place = min(last, place_of(batch == next ? window : end_of(segment)));
                int begins = __shfl_up_sync(ALL_LANES, place, 1);
                if (lane == 0) begins = before_batch;
                before_batch = __shfl_sync(ALL_LANES, place, WARP_SIZE - 1);
                latest = __shfl_sync(ALL_LANES, place, (int)min((Index)WARP_SIZE, behind - batch) - 1);
                if (segment < behind) {
                    Optional<State> found;
                    found.valid = place > begins || (segment == next && total.valid);
                    if (found.valid) found.state = place > begins ? up_to(place - 1) : total.state;
                    if (segment == first && !ALONE)
                        kept = found;
                    else
                        finish(segment, found);
                }
            }
            if (latest == last)
                total.valid = false;
            else if (last > lead)
                total = {up_to(last - 1), true};
            window = window_behind;
            next = behind;
        }
        if (is_final) break;
        __syncwarp();  // separates the reads of the run from the next copies and marks
        base += RUN;
        lead = 0;
    }
    if (ALONE) return;

    Part<State>* const parts = reinterpret_cast<Part<State>*>(shared);
    const auto share_of = [&](int at) { return parts[at]; };
    Part<State> mine = {kept, total, first, next > first};
    __syncthreads();  // separates the reads of the runs from the parts, which take their place
    if (lane == 0) parts[warp] = mine;
    __syncthreads();  // separates the writes of parts from their reads
    if (threadIdx.x == 0) mine = fold_parts<Op>(WARPS, blocks == 1, share_of, finish);
    if (blocks == 1) return;
    if (threadIdx.x == 0) store_for_others(partials, blockIdx.x, mine);
    if (!is_last_to_arrive(tickets + line, blocks)) return;
    const int each = ((int)blocks + THREADS - 1) / THREADS;
    const int from_block = min((int)blocks, (int)threadIdx.x * each);
    const int number = min((int)blocks, from_block + each) - from_block;
    const auto block_of = [&](int at) {
        return load_of_others<Part<State>>(partials, line * blocks + from_block + at);
    };
    parts[threadIdx.x] = fold_parts<Op>(number, false, block_of, finish);
    __syncthreads();  // separates the writes of the threads' parts from their reads
    const auto thread_of = [&](int at) { return parts[threadIdx.x + at]; };
    if (lane == 0) mine = fold_parts<Op>(WARP_SIZE, false, thread_of, finish);
    __syncthreads();  // separates these reads from the warps' parts
    if (lane == 0) parts[warp] = mine;
    __syncthreads();  // separates the writes of the warps' parts from their reads
    if (threadIdx.x == 0) fold_parts<Op>(WARPS, true, share_of, finish);
}

// Reduction along one axis: y[o, j] = element(o, 0, j) op element(o, 1, j) op ... op element(o, n - 1, j).
//
// Inputs are seen as (outer, n, inner). A "line" is one (o, :, j). Template parameters:
//     Op         the operator: State, combine(earlier, later) (see block.cuh) and COMMUTATIVE
//     Inputs     the input arrays (see strided.cuh), with Inputs::element(raw), which maps raw elements to a State
//     Outputs    the output arrays, with out.each(visit), which calls visit(pointer, member of State) for every array
//     THREADS    threads of a block
//     RUNS       groups of threads of a block that share a line; each takes one run of it
//     LANES      threads that share a run, in one warp
//     COLUMNS    adjacent threads that take adjacent columns
//     LOADS      vectors that a thread loads if a line is a single unit, otherwise 0
//     VEC        adjacent elements that a thread loads as one vector
//     DEPTH      the eights of places in a unit
//     WHOLE      whether a line that is a single unit has all elements of one
//     ACROSS     whether vectors have elements of adjacent lines; otherwise they have elements of one line
//     ROLLED     whether a thread loads its elements one after another, for states that take many registers
//     EXACT      whether the operator commutes and never rounds, so that no grouping shows in a result
//
// Grouping: the tree of grouping.py, for every shape, layout and division of the work. In a whole group of 256 elements
// the first three levels of the tree combine 8 rows of 32 elements, if the operator is commutative.
// Phases:
//   1. The threads of a run combine one "unit" after another: 8 DEPTH vectors of each thread. A unit is a node of the tree.
//      If ACROSS, runs are adjacent parts of a line, and nodes without a neighbour wait in shared memory, one for each
//      level; in the end runs are combined as nodes. Otherwise runs take units in turn, so that a block reads adjacent
//      memory. Then shared memory holds the units of a "batch", which one warp combines.
//   2. If several blocks share a line, one for each "chunk" of it, each stores its partial result and takes a ticket.
//      The block with the last ticket combines all partial results by the tree (see ticket.cuh).
// The operator is applied only to elements of the line, and needs no identity.
//
// N. J. Higham, The Accuracy of Floating Point Summation, SIAM J. Sci. Comput. 14(4), 1993: pairwise summation.
// M. Harris, Optimizing Parallel Reduction in CUDA, 2007.

#include "block.cuh"
#include "common.cuh"
#include "strided.cuh"
#include "ticket.cuh"

namespace ops {
// Products are rounded before they are added, as on CPUs. Of a product and a sum the compiler may otherwise make one
// instruction that rounds once, in one place and not in another.
DEVICE float multiply(float a, float b) { return __fmul_rn(a, b); }
DEVICE double multiply(double a, double b) { return __dmul_rn(a, b); }
template <class T>
DEVICE Complex<T> rounded_product(Complex<T> a, Complex<T> b) {
    return {multiply(a.re, b.re) - multiply(a.im, b.im), multiply(a.re, b.im) + multiply(a.im, b.re)};
}
DEVICE Complex<float> multiply(Complex<float> a, Complex<float> b) { return rounded_product(a, b); }
DEVICE Complex<double> multiply(Complex<double> a, Complex<double> b) { return rounded_product(a, b); }
DEVICE float square(float a) { return multiply(a, a); }
DEVICE double square(double a) { return multiply(a, a); }
}  // namespace ops

constexpr int GROUP_COLUMNS = 32, GROUP = 8 * GROUP_COLUMNS;  // see grouping.py

// Returns one of two structures. A conditional expression would choose between their addresses, so that they would lie
// in memory and not in registers.
template <class T>
DEVICE T choose(bool first, const T& one, const T& other) {
    constexpr int WORDS = WORDS_OF<T>;
    unsigned words[WORDS] = {}, others[WORDS] = {};
    memcpy(words, &one, sizeof(T));
    memcpy(others, &other, sizeof(T));
#pragma unroll
    for (int word = 0; word < WORDS; ++word) words[word] = first ? words[word] : others[word];
    T chosen;
    memcpy(&chosen, words, sizeof(T));
    return chosen;
}

// Combines the "parts" of LANES lanes, which have N each: lane l has parts l, LANES + l, 2 LANES + l, and so on. Lane 0
// returns the result; results of others are meaningless. Parts from number `parts` on do not exist, unless WHOLE. `lane`
// is the caller's number. Adjacent lanes are APART lanes of the warp from each other. Overwrites s.
// In each of the first steps two lanes exchange half of their states. So 8 states take 4 + 2 + 1 shuffles in place of
// 3 x 8.
template <bool WHOLE, class Op, int LANES, int APART, int N>
DEVICE typename Op::State combine_parts(typename Op::State (&s)[N], int lane, int parts) {
    using State = typename Op::State;
    constexpr int BOTH = N < LANES ? N : LANES;
    const auto join = [&](const State& earlier, const State& later, int begin_of_later) {
        return WHOLE || begin_of_later < parts ? Op::combine(earlier, later) : earlier;
    };
    int first = 0;  // the lane has states of the rounds first, first + 1, ...
#pragma unroll
    for (int distance = 1; distance < BOTH; distance *= 2) {
        const int half = N / (2 * distance);
        const bool is_later = lane & distance;
        if (is_later) first += half;
#pragma unroll
        for (int u = 0; u < half; ++u) {
            const State kept = choose(is_later, s[u + half], s[u]), sent = choose(is_later, s[u], s[u + half]);
            const State got = shuffle(sent, (threadIdx.x % WARP_SIZE) ^ (distance * APART));
            s[u] = join(choose(is_later, got, kept), choose(is_later, kept, got),
                        (first + u) * LANES + (lane & -2 * distance) + distance);
        }
    }
#pragma unroll
    for (int distance = BOTH; distance < LANES; distance *= 2)
        s[0] = join(s[0], shuffle_down(s[0], distance * APART), first * LANES + (lane & -2 * distance) + distance);
#pragma unroll
    for (int stride = 1; stride < N / BOTH; stride *= 2)
#pragma unroll
        for (int u = 0; u + stride < N / BOTH; u += 2 * stride)
            s[u] = join(s[u], s[u + stride], (first + u + stride) * LANES);
#pragma unroll
    for (int distance = BOTH / 2; distance > 0; distance /= 2) {
        const int half = N / (2 * distance);
        s[0] = join(s[0], shuffle_down(s[0], distance * APART), ((first & -2 * half) + half) * LANES);
    }
    return s[0];
}

// Returns next(0) op next(1) op ... op next(COUNT - 1) by a tree, with a few states in registers. exists(u) tells
// whether there is a state u. COUNT is 1, 2, 4 or 8.
template <class Op, int COUNT, class Next, class Exists>
DEVICE typename Op::State combine_in_turn(const Next& next, const Exists& exists) {
    typename Op::State one, pair, four, now;
#pragma unroll 1
    for (int u = 0; u < COUNT; ++u) {
        now = next(u);
        if (u % 2 == 0) {
            one = now;
            continue;
        }
        now = exists(u) ? Op::combine(one, now) : one;
        if (u % 4 == 1) {
            pair = now;
            continue;
        }
        now = exists(u - 1) ? Op::combine(pair, now) : pair;
        if (u % 8 == 3)
            four = now;
        else
            now = exists(u - 3) ? Op::combine(four, now) : four;
    }
    return now;
}

// Combines 8 LANES parts, which load(u) returns for the places u = 0 ... 7 of a lane (see combine_parts).
template <bool ROLLED, class Op, int LANES, int APART, class Load>
DEVICE typename Op::State combine_loaded(const Load& load, int lane, int parts) {
    using State = typename Op::State;
    if constexpr (ROLLED) {
        const auto next = [&](int u) {
            State one[1] = {load(u)};
            return combine_parts<false, Op, LANES, APART>(one, lane, parts - u * LANES);
        };
        return combine_in_turn<Op, 8>(next, [&](int u) { return u * LANES < parts; });
    } else {
        State s[8];
#pragma unroll
        for (int u = 0; u < 8; ++u) s[u] = load(u);
        return combine_parts<false, Op, LANES, APART>(s, lane, parts);
    }
}

// Adjacent lines, as one of the LANES threads sees them that share them.
template <int LANES, int COLUMNS, int VEC, int DEPTH, bool ACROSS, bool ROLLED, bool EXACT, class Op, class Inputs>
struct Lines {
    using State = typename Op::State;
    using Raw = typename Inputs::Raw;
    // Lines of a thread, adjacent elements of a line in a vector, and in the vectors of all lanes.
    static constexpr int WIDTH = ACROSS ? VEC : 1, ALONG = ACROSS ? 1 : VEC, SPAN = LANES * ALONG;
    static constexpr int LOADS = 8 * DEPTH, UNIT = LOADS * SPAN;
    static constexpr bool GROUPS = Op::COMMUTATIVE && !EXACT;  // whether the grouping has groups
    static_assert(!ROLLED || VEC * DEPTH == 1, "see cuda.py");

    const Inputs& in;
    Index o, j, n;
    int lane;

    // Loads a vector, or those of its elements that exist.
    template <bool WHOLE>
    DEVICE void load(Raw (&raw)[VEC], Index i) const {
        if (WHOLE || i + ALONG <= n) {
            load_vectors<ACROSS>(in, raw, o, i, j);
        } else {
#pragma unroll
            for (int k = 0; k < VEC; ++k) {
                if (ALONG > 1 && i + k < n)
                    raw[k] = load_one(in, o, i + k, j);
                else
                    raw[k] = Raw();
            }
        }
    }

    // Combines the elements of a vector in one line, or the first `count` of them.
    template <bool WHOLE>
    static DEVICE State combine_vector(const Raw (&raw)[VEC], int column, int count) {
        State s[ALONG];
#pragma unroll
        for (int k = 0; k < ALONG; ++k) s[k] = Inputs::element(raw[ACROSS ? column : k]);
#pragma unroll
        for (int stride = 1; stride < ALONG; stride *= 2)
#pragma unroll
            for (int k = 0; k + stride < ALONG; k += 2 * stride)
                if (WHOLE || k + stride < count) s[k] = Op::combine(s[k], s[k + stride]);
        return s[0];
    }

    // Loads COUNT vectors that are SPAN elements from each other, or those of their elements that exist.
    template <bool WHOLE, int COUNT>
    DEVICE void load_adjacent(Raw (&raw)[COUNT][VEC], Index at) const {
#pragma unroll
        for (int u = 0; u < COUNT; ++u) load<WHOLE>(raw[u], at + lane * ALONG + u * SPAN);
    }

    // Combines the COUNT x SPAN adjacent elements from `at` on, or those of them that exist, of which `raw` has the
    // lane's vectors.
    template <bool WHOLE, int COUNT>
    DEVICE void combine_adjacent(const Raw (&raw)[COUNT][VEC], Index at, State (&total)[WIDTH]) const {
        const int left = WHOLE ? COUNT * SPAN : (int)min(n - at, (Index)COUNT * SPAN);
#pragma unroll
        for (int column = 0; column < WIDTH; ++column) {
            State s[COUNT];
#pragma unroll
            for (int u = 0; u < COUNT; ++u)
                s[u] = combine_vector<WHOLE>(raw[u], column, left - lane * ALONG - u * SPAN);
            const State found = combine_parts<WHOLE, Op, LANES, COLUMNS>(s, lane, (left + ALONG - 1) / ALONG);
            total[column] = found;
        }
    }

    // Loads and combines COUNT x SPAN adjacent elements, or those of them that exist.
    template <bool WHOLE, int COUNT>
    DEVICE void combine_adjacent(Index at, State (&total)[WIDTH]) const {
        if constexpr (ROLLED) {
            const int parts = WHOLE ? COUNT * SPAN : (int)min(n - at, (Index)COUNT * SPAN);
            const auto next = [&](int u) {
                Raw raw[1];
                load<WHOLE>(raw, at + lane + u * SPAN);
                State one[1] = {Inputs::element(raw[0])};
                return combine_parts<WHOLE, Op, LANES, COLUMNS>(one, lane, parts - u * LANES);
            };
            total[0] = combine_in_turn<Op, COUNT>(next, [&](int u) { return WHOLE || u * LANES < parts; });
        } else {
            Raw raw[COUNT][VEC];
            load_adjacent<WHOLE>(raw, at);
            combine_adjacent<WHOLE>(raw, at, total);
        }
    }

    // Loads the lane's vectors of 8 rows of groups, in COUNT vectors of columns that are SPAN columns from each other.
    // Columns of groups are numbered throughout a line. For exact operators rows may be any elements of the unit, and
    // are its adjacent parts, for longer reads.
    template <int COUNT>
    DEVICE void load_rows(Raw (&raw)[8 * COUNT][VEC], Index column_of_group) const {
#pragma unroll
        for (int u = 0; u < COUNT; ++u) {
            const Index at = column_of_group + u * SPAN;
            const Index first = EXACT ? column_of_group * 8 - 7 * lane * ALONG + u * 8 * SPAN
                                      : (at / GROUP_COLUMNS) * GROUP + at % GROUP_COLUMNS;
#pragma unroll
            for (int row = 0; row < 8; ++row)
                load<true>(raw[8 * u + row], first + row * (EXACT ? SPAN : GROUP_COLUMNS));
        }
    }

    // Loads and combines, in each line, the 8 rows in each column of a group, and then the columns of each vector.
    template <int COUNT>
    DEVICE void combine_rows(Index column_of_group, State (&total)[WIDTH][COUNT]) const {
        if constexpr (ROLLED) {
            const Index first = (column_of_group / GROUP_COLUMNS) * GROUP + column_of_group % GROUP_COLUMNS;
            const auto next = [&](int row) {
                Raw raw[1];
                load<true>(raw, first + row * GROUP_COLUMNS);
                return Inputs::element(raw[0]);
            };
            total[0][0] = combine_in_turn<Op, 8>(next, [](int) { return true; });
        } else {
            Raw raw[8 * COUNT][VEC];
            load_rows<COUNT>(raw, column_of_group);
#pragma unroll
            for (int column = 0; column < WIDTH; ++column)
#pragma unroll
                for (int u = 0; u < COUNT; ++u) {
                    State s[ALONG];
#pragma unroll
                    for (int k = 0; k < ALONG; ++k) {
                        State rows[8];
#pragma unroll
                        for (int row = 0; row < 8; ++row)
                            rows[row] = Inputs::element(raw[8 * u + row][ACROSS ? column : k]);
                        s[k] = reduce_items<Op>(rows);
                    }
                    total[column][u] = reduce_items<Op>(s);
                }
        }
    }

    // Combines units [begin, end), every `step`-th, and calls add(unit, total) for each. ROWS tells whether a unit is
    // combined by rows of groups; otherwise its elements are adjacent.
    template <bool ROWS, class Add>
    DEVICE void combine_units(Index begin, Index end, int step, const Add& add) const {
        for (Index unit = begin; unit < end; unit += step) {
            State total[WIDTH];
            if constexpr (ROWS) {
                State s[WIDTH][DEPTH];
                combine_rows<DEPTH>(unit * DEPTH * SPAN + lane * ALONG, s);
#pragma unroll
                for (int column = 0; column < WIDTH; ++column) {
                    const State found = combine_parts<true, Op, LANES, COLUMNS>(s[column], lane, DEPTH * LANES);
                    total[column] = found;
                }
            } else {
                combine_adjacent<true, LOADS>(unit * UNIT, total);
            }
            add(unit, total);
        }
    }

    // Combines the elements from `at` on to the end, fewer than a unit: whole groups, and adjacent elements after them.
    DEVICE void combine_rest(Index at, State (&total)[1]) const {
        static_assert(!ACROSS && LANES == WARP_SIZE && COLUMNS == 1 && (VEC == 1 || DEPTH == 1), "see cuda.py");
        constexpr int EACH = GROUP_COLUMNS / VEC;  // lanes of a group
        const int groups = (int)((n - at) / GROUP), rest = (int)((n - at) % GROUP);
        const Index column = at / GROUP * GROUP_COLUMNS;
        State after[1], mine[1][1], s[DEPTH];
        if (rest > 0) {
            const Lines<LANES, 1, 1, 1, false, ROLLED, EXACT, Op, Inputs> one_by_one = {in, o, j, n, lane};
            one_by_one.template combine_adjacent<false, 8>(at + groups * GROUP, after);
            after[0] = shuffle(after[0], 0);
        }
        if constexpr (DEPTH == 1) {
            if (groups > 0) {
                combine_rows<1>(column + min(lane / EACH, groups - 1) * GROUP_COLUMNS + lane % EACH * VEC, mine);
                mine[0][0] = combine_parts<true, Op, EACH, 1>(mine[0], lane % EACH, EACH);
            }
            if (lane / EACH >= groups) mine[0][0] = after[0];
            const State found = combine_parts<false, Op, VEC, EACH>(mine[0], lane / EACH, groups + (rest > 0));
            total[0] = found;
        } else {
#pragma unroll
            for (int u = 0; u < DEPTH; ++u) {
                s[u] = after[0];
                if (u < groups) {
                    combine_rows<1>(column + u * GROUP_COLUMNS + lane, mine);
                    s[u] = combine_parts<true, Op, LANES, 1>(mine[0], lane, LANES);
                }
            }
            const State found = combine_parts<false, Op, 1, 1>(s, 0, groups + (rest > 0));
            total[0] = found;
        }
    }

    // As combine_units, for all units of a line.
    template <class Add>
    DEVICE void combine_line(Index begin, Index end, int step, const Add& add) const {
        const auto after = [&](Index units) { return begin + max((Index)0, (units - begin + step - 1) / step) * step; };
        Index unit = begin;
        if constexpr (GROUPS || EXACT) {
            const Index whole = min(end, EXACT ? n / UNIT : n / GROUP * GROUP / UNIT);
            combine_units<true>(unit, whole, step, add);
            unit = after(whole);
        }
        constexpr bool RESTS = GROUPS && UNIT > GROUP;
        if constexpr (!RESTS && !EXACT) {
            const Index whole = min(end, n / UNIT);
            combine_units<false>(unit, whole, step, add);
            unit = after(whole);
        }
        if (unit < end) {
            State total[WIDTH];
            if constexpr (RESTS)
                combine_rest(unit * UNIT, total);
            else
                combine_adjacent<false, LOADS>(unit * UNIT, total);
            add(unit, total);
        }
    }
};

// Nodes of the trees of WIDTH lines, one for each level, that wait for their neighbours. Nodes of adjacent levels are
// `apart` states from each other in shared memory.
template <class Op, int WIDTH>
struct Nodes {
    using State = typename Op::State;
    State* slots;
    int apart;

    // Adds a node behind `count` others of the lowest level.
    DEVICE void add(State (&node)[WIDTH], Index count) const {
        State* slot = slots;
        for (; count % 2 != 0; count /= 2, slot += apart)
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) node[k] = Op::combine(slot[k], node[k]);
#pragma unroll
        for (int k = 0; k < WIDTH; ++k) slot[k] = node[k];
    }

    // Combines all `count` nodes. The last node of a level moves up as it is if it has no neighbour.
    DEVICE void combine(State (&total)[WIDTH], Index count) const {
        const State* slot = slots;
        bool begun = false;
        for (; count > 0; count /= 2, slot += apart)
            if (count % 2 != 0) {
#pragma unroll
                for (int k = 0; k < WIDTH; ++k) total[k] = begun ? Op::combine(slot[k], total[k]) : slot[k];
                begun = true;
            }
    }
};

template <int THREADS, int RUNS, int LANES, int COLUMNS, int LOADS, int VEC, int DEPTH, bool WHOLE, bool ACROSS,
          bool ROLLED, bool EXACT, class Op, class Inputs, class Outputs>
DEVICE void reduce_lines(const Inputs& in, const Outputs& out, unsigned* tickets, unsigned* partials, Index outer,
                         Index n, Index inner, Index run, Index chunks, Index levels, Index most) {
    using State = typename Op::State;
    using Part = Lines<LANES, COLUMNS, VEC, DEPTH, ACROSS, ROLLED, EXACT, Op, Inputs>;
    constexpr bool ALONE = LOADS > 0;              // whether a line is a single unit
    constexpr bool IN_TURN = !ACROSS && RUNS > 1;  // whether runs take units in turn
    constexpr int WIDTH = Part::WIDTH, UNIT = Part::UNIT, LEADERS = THREADS / LANES;
    constexpr int OUTERS = THREADS / (RUNS * LANES * COLUMNS), SLOTS = OUTERS * COLUMNS * WIDTH;
    static_assert(RUNS == 1 || LANES == 1 || LANES * COLUMNS % WARP_SIZE == 0, "the lanes of a warp shuffle together");
    const int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS % LANES;
    const int own = threadIdx.x / (COLUMNS * LANES) % RUNS, outer_in_block = threadIdx.x / (COLUMNS * LANES * RUNS);
    const unsigned across = (unsigned)((inner + COLUMNS * WIDTH - 1) / (COLUMNS * WIDTH));
    const unsigned tile = blockIdx.x / (unsigned)chunks, tile_row = tile / across;
    const Index o = (Index)tile_row * OUTERS + outer_in_block;
    const Index j = ((Index)(tile - tile_row * across) * COLUMNS + column) * WIDTH;
    // Threads without a line repeat one, so that whole warps shuffle. They store nothing.
    const Part line = {in, min(o, outer - 1), min(j, inner - WIDTH), n, lane};
    State total[WIDTH];
    if constexpr (ALONE) {
        line.template combine_adjacent<WHOLE, LOADS>(0, total);
    } else {
        extern __shared__ uint4 shared[];
        State* const slots = reinterpret_cast<State*>(shared);
        const int leader = IN_TURN ? outer_in_block : (outer_in_block * RUNS + own) * COLUMNS + column;
        const Nodes<Op, WIDTH> nodes = {slots + leader * WIDTH, (IN_TURN ? OUTERS : LEADERS) * WIDTH};
        // Combines the parts [first, past) of a line to `total` of lane 0 of run 0. combine(begin, end, step, add) calls
        // add(part, its state) for every step-th part.
        const auto combine_all = [&](Index first, Index past, Index run, const auto& combine) {
            if constexpr (IN_TURN) {
                const int batch = (int)min(run * RUNS, most);
                State* const parts = slots + levels * OUTERS + outer_in_block * most;
                Index batches = 0;
                for (; first < past; first += batch, ++batches) {
                    const int count = (int)min(past - first, (Index)batch);
                    __syncthreads();  // separates the reads of the batch before from the writes here
                    combine(first + own, first + count, RUNS, [&](Index part, State(&state)[WIDTH]) {
                        if (lane == 0) parts[part - first] = state[0];
                    });
                    __syncthreads();  // separates the writes above from the reads below
                    if (own > 0) continue;
                    const auto load = [&](int u) { return parts[min(u * LANES + lane, count - 1)]; };
                    const State found = combine_loaded<ROLLED, Op, LANES, 1>(load, lane, count);
                    total[0] = found;
                    if (lane == 0) nodes.add(total, batches);
                }
                if (own == 0 && lane == 0) nodes.combine(total, batches);
            } else {
                const Index begin = min(past, first + own * run), end = min(past, begin + run);
                combine(begin, end, 1, [&](Index part, State(&state)[WIDTH]) {
                    if (lane == 0) nodes.add(state, part - begin);
                });
                if (lane == 0) nodes.combine(total, end - begin);
                __shared__ State states[RUNS > 1 ? THREADS : 1][WIDTH];
                __shared__ bool is_valid[RUNS > 1 ? THREADS : 1];
                if constexpr (RUNS > 1)
                    reduce_groups<Op, LANES * COLUMNS, RUNS>(total, own, begin < end, states, is_valid);
            }
        };
        const Index first = (Index)(blockIdx.x - tile * (unsigned)chunks) * RUNS * run;
        combine_all(first, min((n + UNIT - 1) / UNIT, first + RUNS * run), run,
                    [&](Index begin, Index end, int step, const auto& add) {
                        line.combine_line(begin, end, step, add);
                    });
        if (chunks > 1) {
            const int slot = (outer_in_block * COLUMNS + column) * WIDTH;
            if (lane == 0 && own == 0) {
#pragma unroll
                for (int k = 0; k < WIDTH; ++k)
                    store_for_others(partials, (Index)blockIdx.x * SLOTS + slot + k, State(total[k]));
            }
            if (!is_last_to_arrive(tickets + tile, chunks)) return;
            constexpr int EACH = 8 * LANES;  // chunks of a part
            const Index parts = (chunks + EACH - 1) / EACH;
            Index share = 1;
            while (share * RUNS < parts) share *= 2;
            combine_all(0, parts, share, [&](Index begin, Index end, int step, const auto& add) {
                for (Index part = begin; part < end; part += step) {
                    const int count = (int)min(chunks - part * EACH, (Index)EACH);
                    State state[WIDTH];
#pragma unroll
                    for (int k = 0; k < WIDTH; ++k) {
                        const auto load = [&](int u) {
                            const Index chunk = part * EACH + min(u * LANES + lane, count - 1);
                            return load_of_others<State>(partials, (tile * chunks + chunk) * SLOTS + slot + k);
                        };
                        const State found = combine_loaded<ROLLED, Op, LANES, COLUMNS>(load, lane, count);
                        state[k] = found;
                    }
                    add(part, state);
                }
            });
        }
    }
    if (lane == 0 && own == 0 && o < outer && j < inner) {
#pragma unroll
        for (int k = 0; k < WIDTH; ++k)
            out.each([&](auto* y, auto member) { store_to(y[o * inner + j + k], total[k].*member); });
    }
}

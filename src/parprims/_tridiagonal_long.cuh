// Shared by the kernels for long tridiagonal systems, which do not fit in one block. Several launches solve them. Each
// launch looks up in the state of a system what is left to do. Its blocks take parts of systems in turn, and return at
// once if nothing is left.

// What the launches record about a system.
struct SystemState {
    // The largest backward errors of the first and the second solution, as bits.
    unsigned long long errors[2];
    // Whether the system is not diagonally dominant, is to be refined, and has unknowns that are not finite.
    unsigned exchange, refine, not_finite;
    // Bits: 1, the first solution has too large an error; 2, refining windows in registers did not fix it; 4, refining
    // windows by the stable solver did not fix it; 8, a second solution for the residual did not fix it.
    unsigned unsolved;
    // How many blocks have begun to refine windows, in registers and by the stable solver. Those of the first system
    // count for all.
    unsigned refining_blocks[2];
    // How many parts have many rows with a large error; how many windows the first and the second launch did not fix.
    unsigned failures[3];
};

// Calls each(system, part) for the parts that this block has, of the systems that are due. A system has `parts` parts.
template <class Due, class Each>
DEVICE void for_each_part(Index systems, Index parts, Due due, Each each) {
#pragma unroll 1
    for (Index number = blockIdx.x; number < systems * parts; number += gridDim.x) {
        const Index system = quotient(number, parts);
        if (due(system))
            each(system, number - system * parts);
        else  // go to this block's last part of the system
            number += ((system + 1) * parts - 1 - number) / gridDim.x * gridDim.x;
    }
}

// The part of a system that a warp has: its number, the number of parts, and the first row and number of rows of this
// lane. A lane has ROWS rows.
template <int ROWS>
struct WarpRows {
    static constexpr int ALL = 32 * ROWS;
    Index number, parts, begin;
    int count;

    // Returns the number of blocks for a system, with one part for each warp.
    static DEVICE Index count_blocks(Index rows) { return (rows + blockDim.x * ROWS - 1) / (blockDim.x * ROWS); }

    DEVICE WarpRows(Index rows, Index block) {
        number = block * (blockDim.x / 32) + threadIdx.x / 32, parts = (rows + ALL - 1) / ALL;
        begin = number * ALL + threadIdx.x % 32 * ROWS;
        count = (int)max((Index)0, min((Index)ROWS, rows - begin));
    }
};

// A window of a system: adjacent rows that are refined together, while all other rows stay as they are. Window 0 ends
// and window 1 begins near row `shift`.
struct Window {
    Index low, high;    // its rows
    Index middle, end;  // the range of rows that are at least `far` rows from an end, unless the system ends there too

    DEVICE Window(Index rows, Index at, Index length, Index shift, int granularity, int far) {
        low = at > 0 ? shift + (at - 1) * length : 0, high = at > 0 ? low + length : shift / granularity * granularity;
        middle = low > 0 ? low + far : 0, end = high < rows ? high - far : rows;
        high = min(high, rows);
    }
    static DEVICE Index count(Index rows, Index length, Index shift) {
        return 1 + (max((Index)0, rows - shift) + length - 1) / length;
    }
    // Returns whether all rows of a thread are in the middle.
    DEVICE bool is_in_middle(Index begin, int count) const {
        return count > 0 && begin >= middle && begin + count <= end;
    }
};

// Returns to all threads the number, from 0, of this launch among those that refine windows in the same way.
DEVICE Index launch_number(unsigned* refining_blocks) {
    const Index launch = *refining_blocks / gridDim.x;
    __syncthreads();  // all threads have read the number
    if (threadIdx.x == 0) atomicAdd(refining_blocks, 1u);
    return launch;
}

// Returns whether one of the first launches found so many errors that refining windows does not pay. Then also marks
// the system as not solved by it.
DEVICE bool has_many_failures(SystemState& state, int launches, Index rows) {
    bool many = false;
    for (int k = 0; k < launches; ++k) many = many || state.failures[k] > 8 + rows / 16384;
    if (many) atomicOr(&state.unsolved, 4u);
    return many;
}

// Copies second solutions to the result if they are better. Fills a solution with NaN if an unknown is not finite.
template <class T>
DEVICE void finish_systems(SystemBatch<T> s, const T* second, const SystemState* states) {
    // Several blocks for a system, or several systems for a block.
    const Index each = max((Index)1, gridDim.x / s.systems);
#pragma unroll 1
    for (Index system = blockIdx.x / each; system < s.systems; system += gridDim.x / each) {
        const SystemState state = states[system];
        const bool use_second = state.unsolved == 7 || (state.refine && state.errors[1] < state.errors[0]);
        if (!state.not_finite && !use_second) continue;
        T* to = s.out.system(s.index(system));
        const T nan = from_real<T>(infinity(Real<T>()) - infinity(Real<T>()));
        for (Index row = blockIdx.x % each * blockDim.x + threadIdx.x; row < s.rows; row += each * blockDim.x)
            to[row * s.out.along] = use_second ? second[system * s.rows + row] : nan;
    }
}

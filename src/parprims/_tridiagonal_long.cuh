// What the kernels of long tridiagonal systems share: those that no block holds. Several launches solve them, each of
// which finds in the states of the systems what there is left to do. The blocks of a launch take parts of systems in
// turn, and return at once where there is nothing to do.

// What the launches know of a system.
struct SystemState {
    // The bits of the largest backward errors of both solutions.
    unsigned long long errors[2];
    // Whether the system is not dominant, is to be refined, and has unknowns that are not finite.
    unsigned exchange, refine, not_finite;
    // Bits: 1, its first solution has too large an error; 2, refinement of windows in registers did not mend that;
    // 4, nor did the stable one; 8, nor did a second solution for the residual.
    unsigned unsolved;
    // How many blocks have begun to refine windows, in registers and stably. The first system's count for all.
    unsigned refining_blocks[2];
    // How many parts have many rows with a large error; how many windows the first and the second launch did not mend.
    unsigned failures[3];
};

// Calls `each` for the systems that are due and for those of their `parts` that this block has.
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

// The part of a system that a warp has, of how many parts; the first row of this lane and how many it has.
template <int ROWS>
struct WarpRows {
    static constexpr int ALL = 32 * ROWS;
    Index number, parts, begin;
    int count;

    // Returns how many blocks a system takes, with one part to each warp.
    static DEVICE Index count_blocks(Index rows) { return (rows + blockDim.x * ROWS - 1) / (blockDim.x * ROWS); }

    DEVICE WarpRows(Index rows, Index block) {
        number = block * (blockDim.x / 32) + threadIdx.x / 32, parts = (rows + ALL - 1) / ALL;
        begin = number * ALL + threadIdx.x % 32 * ROWS;
        count = (int)max((Index)0, min((Index)ROWS, rows - begin));
    }
};

// A window of a system: adjacent rows that are refined together, while the rows beyond stay as they are. Windows are
// numbered; the first ends and the second begins near row `shift`.
struct Window {
    Index low, high;    // its rows
    Index middle, end;  // those of them at least `far` rows from an end that is not the system's

    DEVICE Window(Index rows, Index at, Index length, Index shift, int granularity, int far) {
        low = at > 0 ? shift + (at - 1) * length : 0, high = at > 0 ? low + length : shift / granularity * granularity;
        middle = low > 0 ? low + far : 0, end = high < rows ? high - far : rows;
        high = min(high, rows);
    }
    static DEVICE Index count(Index rows, Index length, Index shift) {
        return 1 + (max((Index)0, rows - shift) + length - 1) / length;
    }
    // Returns whether a thread's rows lie in the middle.
    DEVICE bool has_amid(Index begin, int count) const { return count > 0 && begin >= middle && begin + count <= end; }
};

// Returns the number of this launch among those that refine windows in the same way, the same to all threads.
DEVICE Index launch_number(unsigned* refining_blocks) {
    const Index launch = *refining_blocks / gridDim.x;
    __syncthreads();  // all threads have read the number
    if (threadIdx.x == 0) atomicAdd(refining_blocks, 1u);
    return launch;
}

// Returns whether one of the first launches found so many errors that refining windows does not pay.
DEVICE bool has_many_failures(SystemState& state, int launches, Index rows) {
    bool many = false;
    for (int k = 0; k < launches; ++k) many = many || state.failures[k] > 8 + rows / 16384;
    if (many) atomicOr(&state.unsolved, 4u);
    return many;
}

// Takes second solutions where they are better. Makes solutions NaN throughout that are not finite in one unknown.
template <class T>
DEVICE void finish_systems(SystemBatch<T> s, const T* second, const SystemState* states) {
    // Several blocks to a system, or several systems to a block.
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

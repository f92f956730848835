// One array with one element for a whole line, which a thread loads once.

#include "common.cuh"

template <class T>
struct ConstantInput {
    const T* base;
    long long outer, along, inner;  // along is 0

    DEVICE T at(long long o, long long, long long j) const { return base[o * outer + j * inner]; }

    // As StridedInput::load. Addresses do not depend on i, so that the compiler keeps the element of an earlier load.
    template <bool ACROSS, int N, class Raw>
    DEVICE void load(Raw (&to)[N], T Raw::*member, long long o, long long, long long j) const {
#pragma unroll
        for (int k = 0; k < N; ++k) to[k].*member = at(o, 0, ACROSS ? j + k : j);
    }
};

// Strided input arrays of shape (outer, n, inner), positions that are read like an array, and several arrays read
// together.

#include "common.cuh"

// One array, with its strides in elements. VECTOR promises that the elements of a vector are adjacent in memory, and
// that every vector is aligned to its size.
template <class T, bool VECTOR>
struct StridedInput {
    const T* base;
    long long outer, along, inner;

    DEVICE T at(long long o, long long i, long long j) const { return base[o * outer + i * along + j * inner]; }

    // Loads N elements from (o, i, j) on, along the axis n or, if ACROSS, along the axis inner.
    template <bool ACROSS, int N>
    DEVICE void load(T (&to)[N], long long o, long long i, long long j) const {
        if constexpr (VECTOR) {
            load_vector(to, base + o * outer + (ACROSS ? i * along + j : i + j * inner));
        } else {
            const T* from = base + o * outer + i * along + j * inner;
#pragma unroll
            for (int k = 0; k < N; ++k) to[k] = from[k * (ACROSS ? inner : along)];
        }
    }

    // Loads N elements into one member of N structures.
    template <bool ACROSS, int N, class Raw>
    DEVICE void load(Raw (&to)[N], T Raw::*member, long long o, long long i, long long j) const {
        T loaded[N];
        load<ACROSS>(loaded, o, i, j);
#pragma unroll
        for (int k = 0; k < N; ++k) to[k].*member = loaded[k];
    }
};

// The positions of elements along the axis n, as an array that takes no memory.
template <class T>
struct Positions {
    DEVICE T at(long long, long long i, long long) const { return (T)i; }

    template <bool ACROSS, int N, class Raw>
    DEVICE void load(Raw (&to)[N], T Raw::*member, long long, long long i, long long) const {
#pragma unroll
        for (int k = 0; k < N; ++k) to[k].*member = (T)(ACROSS ? i : i + k);
    }
};

// Several arrays form a structure `Inputs`. Inputs::Raw has a member for an element of every array, of its type in
// memory. in.each(visit) calls visit(array, pointer to that member) for every array.

// Loads N elements of every array, along the axis n or, if ACROSS, along the axis inner.
template <bool ACROSS, class Inputs, int N>
DEVICE void load_vectors(const Inputs& in, typename Inputs::Raw (&raw)[N], long long o, long long i, long long j) {
    in.each([&](const auto& array, auto member) { array.template load<ACROSS>(raw, member, o, i, j); });
}

// Loads one element of every array.
template <class Inputs>
DEVICE typename Inputs::Raw load_one(const Inputs& in, long long o, long long i, long long j) {
    typename Inputs::Raw raw;
    in.each([&](const auto& array, auto member) { raw.*member = array.at(o, i, j); });
    return raw;
}

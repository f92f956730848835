// Views of strided arrays: how threads load and store vectors of elements, in registers or through shared memory.
// Several arrays can be handled together, as one array of records.

#include "common.cuh"

template <class T>
struct Unconst {
    using Type = T;
};
template <class T>
struct Unconst<const T> {
    using Type = T;
};

// An array of shape (high, low, n, inner), with its strides in elements. `base` is the address of its first element,
// and ACCESS says how vectors of its elements are accessed. The methods below handle the line that `base` begins:
// at(h, l, j) is the view of the line (h, l, :, j).
// With SKEWED, lines need not begin where a vector does. Vectors are aligned in memory, and the first one begins at
// element -skew<N>() of the line. Its elements before the line are neither read nor written.
template <class T, Access ACCESS, bool SKEWED = false>
struct View {
    using Element = typename Unconst<T>::Type;
    T* base;
    long long high, low, along, inner;

    DEVICE View at(long long h, long long l, long long j) const {
        return {base + h * high + l * low + j * inner, high, low, along, inner};
    }

    // A vector of N elements as it is staged in shared memory.
    template <int N>
    using Staged = typename Word<N * sizeof(T)>::Type;

    template <int N>
    DEVICE int skew() const {
        const int at = (int)(reinterpret_cast<unsigned long long>(base) / sizeof(T) % N);
        return !SKEWED ? 0 : ACCESS == ASCENDING ? at : N - 1 - at;
    }

    // Whether the line has all elements of the vector that begins with element i.
    template <int N>
    DEVICE bool has_vector(long long i, long long past) const {
        return (!SKEWED || i >= 0) && i + N <= past;
    }

    // Element i, or the line's first or last element if i is outside the line.
    DEVICE const T& nearest(long long i, long long past) const {
        return base[(SKEWED ? max(0ll, min(i, past - 1)) : min(i, past - 1)) * along];
    }

    // The first element of the vector that is loaded for the vector at i, which may begin at or after `past`.
    template <int N>
    DEVICE long long loaded_at(long long i, long long past) const {
        if (i >= past && past >= (SKEWED ? 2 : 1) * N) i = SKEWED ? i % N : 0;
        return i;
    }

    // Loads elements i, i + 1, ... Outside the line, that is before it and from `past` on, other elements of the line
    // are loaded instead.
    template <class S, int N>
    DEVICE void load_along(S (&to)[N], long long i, long long past) const {
        i = loaded_at<N>(i, past);
        if ((ACCESS == ASCENDING || ACCESS == DESCENDING) && has_vector<N>(i, past)) {
            fetch(to, __ldg(reinterpret_cast<const Staged<N>*>(ACCESS == ASCENDING ? base + i : base - i - (N - 1))));
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) to[k] = ACCESS == CONSTANT ? *base : nearest(i + k, past);
        }
    }

    // Stores elements i, i + 1, ..., except those before the line and from `past` on.
    template <int N>
    DEVICE void store_along(const T (&from)[N], long long i, long long past) const {
        Staged<N> vector;
        put(from, vector);
        flush<N>(vector, i, past);
    }

    // Begins to copy elements i, i + 1, ... to shared memory, in memory order. Outside the line, other elements of the
    // line are copied instead. wait_for_staged completes the copy.
    template <int N>
    DEVICE void stage(Staged<N>& to, long long i, long long past) const {
        i = loaded_at<N>(i, past);
        if (ACCESS != STRIDED && has_vector<N>(i, past)) {
            copy_async(to, *reinterpret_cast<const Staged<N>*>(ACCESS == ASCENDING ? base + i : base - i - (N - 1)));
        } else {
            Element loaded[N];
#pragma unroll
            for (int k = 0; k < N; ++k)
                loaded[ACCESS == DESCENDING ? N - 1 - k : k] = nearest(i + k, past);
            memcpy(&to, loaded, sizeof(to));
        }
    }

    // Reads the elements i, i + 1, ... from the staged vector.
    template <class S, int N>
    DEVICE void fetch(S (&to)[N], const Staged<N>& from) const {
        S loaded[N];
        memcpy(loaded, &from, sizeof(from));
#pragma unroll
        for (int k = 0; k < N; ++k) to[k] = loaded[ACCESS == DESCENDING ? N - 1 - k : k];
    }

    // Prefetches the elements from `begin` to before `end` into the L2 cache, by the THREADS threads of a block, if
    // elements are adjacent in memory.
    template <int THREADS>
    DEVICE void prefetch(long long begin, long long end) const {
        if (ACCESS == STRIDED || ACCESS == CONSTANT) return;
        const char* const from = reinterpret_cast<const char*>(ACCESS == ASCENDING ? base + begin : base - end + 1);
        const int bytes = (int)((end - begin) * (long long)sizeof(T));
        for (int at = threadIdx.x * 128; at < bytes; at += THREADS * 128)
            prefetch_line(from + at);
    }

    // Fills an array with the one element of a CONSTANT view.
    template <class S, int N>
    DEVICE void repeat(S (&to)[N]) const {
#pragma unroll
        for (int k = 0; k < N; ++k) to[k] = *base;
    }

    // Loads element i of N adjacent lines.
    template <class S, int N>
    DEVICE void load_across(S (&to)[N], long long i) const {
        const T* from = base + i * along;
        if constexpr (ACCESS == ASCENDING) {
            load_vector<S>(to, from);
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) to[k] = ACCESS == CONSTANT ? *from : from[k * inner];
        }
    }

    // Writes N elements to a staged vector, in memory order.
    template <int N>
    DEVICE void put(const T (&from)[N], Staged<N>& to) const {
        T ordered[N];
#pragma unroll
        for (int k = 0; k < N; ++k) ordered[ACCESS == DESCENDING ? N - 1 - k : k] = from[k];
        memcpy(&to, ordered, sizeof(to));
    }

    // Stores the vector that `put` wrote as elements i, i + 1, ..., except those before the line and from `past` on.
    template <int N>
    DEVICE void flush(const Staged<N>& from, long long i, long long past) const {
        if (ACCESS != STRIDED && has_vector<N>(i, past)) {
            *reinterpret_cast<Staged<N>*>(ACCESS == ASCENDING ? base + i : base - i - (N - 1)) = from;
        } else {
            T ordered[N];
            memcpy(ordered, &from, sizeof(from));
#pragma unroll
            for (int k = 0; k < N; ++k)
                if ((!SKEWED || i + k >= 0) && i + k < past) base[(i + k) * along] = ordered[ACCESS == DESCENDING ? N - 1 - k : k];
        }
    }

    // Begins to copy element i to shared memory.
    DEVICE void stage_across(Staged<1>& to, long long i) const {
        copy_async(to, *reinterpret_cast<const Staged<1>*>(base + i * along));
    }

    // Prefetches element i of this line and the next `count` - 1 adjacent lines into the L2 cache. Skips memory that
    // element i - 1 shares.
    DEVICE void prefetch_row(long long i, int count) const {
        const char* const from = reinterpret_cast<const char*>(base + i * along);
        if (reinterpret_cast<unsigned long long>(from) % 128 >= (along < 0 ? -along : along) * sizeof(T)) return;
        for (int at = 0; at < count * (int)sizeof(T); at += 128) prefetch_line(from + at);
    }

    // Prefetches the 128 bytes at element i into the L2 cache. `at` is the number of this line among adjacent lines. Of
    // the lines and elements that share these bytes, only the first line and the first element issue the prefetch.
    DEVICE void prefetch_across(long long i, int at) const {
        if (ACCESS != ASCENDING || at * (int)sizeof(T) % 128 != 0) return;
        const T* const from = base + i * along;
        if (reinterpret_cast<unsigned long long>(from) % 128 < (along < 0 ? -along : along) * sizeof(T))
            prefetch_line(from);
    }

    template <int N>
    DEVICE void store_across(const T (&from)[N], long long i) const {
        if constexpr (ACCESS == ASCENDING) {
            store_vector(base + i * along, from);
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) base[i * along + k * inner] = from[k];
        }
    }
};

// The indices along high and low of a line.
struct LineIndex {
    long long high, low;
};

// Returns the indices of line number `line` among the lines of (high, low), given the length of low.
DEVICE LineIndex line_index(long long line, long long low) {
    const long long h = low == 1 ? line : line / low;
    return {h, low == 1 ? 0 : line - h * low};
}

// ---- Several arrays together ----------------------------------------------------------------------------------

// Arrays that are read or written together form a structure `Views` of views with
//     Views::Record                   one element of every array, a plain structure
//     Views::Vectors<N>               a structure of arrays: N elements of every array
//     Views::SKEWED                   whether views are skewed, all by one number of elements, except constant ones
//     Views::each<N>(views, visit)    static; calls visit(view, member of Record, member of Vectors<N>, place) for
//                                     every array; the members are given as pointers to members
// The place says where the array is staged in shared memory: buffers.vector(Place<P>(), slot) is a vector of the P-th
// staged array. NoPlace belongs to a CONSTANT view, which is not staged.
template <int AT>
struct Place {
    static constexpr bool WAITS = true;
};
struct NoPlace {
    static constexpr bool WAITS = false;
};

// Calls load(view, elements, place) for N elements of every array, and transposes them to N records.
template <class Views, int N, class Load>
DEVICE void load_records(const Views& views, typename Views::Record (&to)[N], const Load& load) {
    typename Views::template Vectors<N> loaded;
    Views::template each<N>(views, [&](const auto& view, auto, auto elements, auto place) {
        load(view, loaded.*elements, place);
    });
#pragma unroll
    for (int k = 0; k < N; ++k)
        Views::template each<N>(views, [&](const auto&, auto member, auto elements, auto) {
            to[k].*member = (loaded.*elements)[k];
        });
}

// Transposes N records to N elements of every array, and calls store(view, elements, place) for every array.
template <class Views, int N, class Store>
DEVICE void store_records(const Views& views, const typename Views::Record (&from)[N], const Store& store) {
    typename Views::template Vectors<N> stored;
#pragma unroll
    for (int k = 0; k < N; ++k)
        Views::template each<N>(views, [&](const auto&, auto member, auto elements, auto) {
            (stored.*elements)[k] = from[k].*member;
        });
    Views::template each<N>(views, [&](const auto& view, auto, auto elements, auto place) {
        store(view, stored.*elements, place);
    });
}

// Each function below applies the View method it is named after to every array.
template <class Views>
DEVICE Views views_at(Views views, long long h, long long l, long long j) {
    Views::template each<1>(views, [&](auto& view, auto, auto, auto) { view = view.at(h, l, j); });
    return views;
}

// The skew of a line for vectors of N elements. All arrays have one skew, except constant ones.
template <int N, class Views>
DEVICE int skew_of(const Views& views) {
    int skew = 0;
    Views::template each<N>(views, [&](const auto& view, auto, auto, auto) { skew = max(skew, view.template skew<N>()); });
    return skew;
}

template <class Views, int N>
DEVICE void load_along(const Views& views, typename Views::Record (&to)[N], long long i, long long past) {
    load_records(views, to, [&](const auto& view, auto& loaded, auto) { view.load_along(loaded, i, past); });
}

// `line` is the number of the line among the (high, low) lines; `low` lines have one index along high.
template <int THREADS, class Views>
DEVICE void prefetch_along(const Views& views, long long line, long long low, long long begin, long long end) {
    const LineIndex at = line_index(line, low);
    Views::template each<1>(views, [&](const auto& view, auto, auto, auto) {
        view.at(at.high, at.low, 0).template prefetch<THREADS>(begin, end);
    });
}

template <class Views, int N>
DEVICE void load_across(const Views& views, typename Views::Record (&to)[N], long long i) {
    load_records(views, to, [&](const auto& view, auto& loaded, auto) { view.load_across(loaded, i); });
}

template <int N, class Views, class Buffers>
DEVICE void stage_vectors(const Views& views, Buffers& buffers, int slot, long long i, long long past) {
    Views::template each<N>(views, [&](const auto& view, auto, auto, auto place) {
        if constexpr (decltype(place)::WAITS) view.template stage<N>(buffers.vector(place, slot), i, past);
    });
}

template <class Views, int N, class Buffers>
DEVICE void fetch_vectors(const Views& views, typename Views::Record (&to)[N], Buffers& buffers, int slot) {
    load_records(views, to, [&](const auto& view, auto& loaded, auto place) {
        if constexpr (decltype(place)::WAITS)
            view.fetch(loaded, buffers.vector(place, slot));
        else
            view.repeat(loaded);
    });
}

template <class Views, int N, class Buffers>
DEVICE void put_vectors(const Views& views, const typename Views::Record (&from)[N], Buffers& buffers, int slot) {
    store_records(views, from, [&](const auto& view, const auto& stored, auto place) {
        view.put(stored, buffers.vector(place, slot));
    });
}

template <int N, class Views, class Buffers>
DEVICE void flush_vectors(const Views& views, Buffers& buffers, int slot, long long i, long long past) {
    Views::template each<N>(views, [&](const auto& view, auto, auto, auto place) {
        view.template flush<N>(buffers.vector(place, slot), i, past);
    });
}

template <class Views, int N>
DEVICE void store_along(const Views& views, const typename Views::Record (&from)[N], long long i, long long past) {
    store_records(views, from, [&](const auto& view, const auto& stored, auto) { view.store_along(stored, i, past); });
}

template <class Views, int N>
DEVICE void store_across(const Views& views, const typename Views::Record (&from)[N], long long i) {
    store_records(views, from, [&](const auto& view, const auto& stored, auto) { view.store_across(stored, i); });
}

// Element `at` of a staged array, as a word. `first` is its first vector; there are no gaps between vectors.
template <class View, class Vector>
DEVICE auto& staged_word(const View&, Vector& first, int at) {
    return reinterpret_cast<typename View::template Staged<1>*>(&first)[at];
}

template <class Views, class Buffers>
DEVICE typename Views::Record fetch_element(const Views& views, Buffers& buffers, int at) {
    typename Views::Record record;
    Views::template each<1>(views, [&](const auto& view, auto member, auto, auto place) {
        if constexpr (decltype(place)::WAITS)
            memcpy(&(record.*member), &staged_word(view, buffers.vector(place, 0), at), sizeof(record.*member));
        else
            record.*member = *view.base;
    });
    return record;
}

template <class Views, class Buffers>
DEVICE void put_element(const Views& views, const typename Views::Record& record, Buffers& buffers, int at) {
    Views::template each<1>(views, [&](const auto& view, auto member, auto, auto place) {
        memcpy(&staged_word(view, buffers.vector(place, 0), at), &(record.*member), sizeof(record.*member));
    });
}

template <class Views, class Buffers>
DEVICE void stage_across(const Views& views, Buffers& buffers, int at, long long i) {
    Views::template each<1>(views, [&](const auto& view, auto, auto, auto place) {
        if constexpr (decltype(place)::WAITS) view.stage_across(staged_word(view, buffers.vector(place, 0), at), i);
    });
}

// ---- Vectors that lanes copy for each other -------------------------------------------------------------------

// WIDTH lanes copy ROUNDS x WIDTH adjacent vectors of VEC elements through shared memory. There each lane then has
// ROUNDS adjacent vectors. A lane copies every WIDTH-th vector, so that adjacent lanes access adjacent memory.

// Calls copy(r, i, past) for the vector that a lane copies in each round r, which begins with element i. If all
// elements from `begin` on are before the end, `past` is the end of the vector: the compiler leaves out the test for
// the end.
template <int ROUNDS, int WIDTH, int VEC, class Copy>
DEVICE void each_vector(int lane, long long begin, long long past, const Copy& copy) {
    const long long first = begin + lane * VEC;
    if (begin + ROUNDS * WIDTH * VEC <= past) {
#pragma unroll 4
        for (int r = 0; r < ROUNDS; ++r) copy(r, first + r * WIDTH * VEC, first + r * WIDTH * VEC + VEC);
    } else {
#pragma unroll 1
        for (int r = 0; r < ROUNDS; ++r) copy(r, first + r * WIDTH * VEC, past);
    }
}

// Slots of these vectors in shared memory. Adjacent lanes read slots that are ROUNDS apart. If ROUNDS is even, an empty
// slot after every GAP slots avoids bank conflicts.
template <int ROUNDS, int WIDTH, int GAP>
struct Slots {
    static constexpr bool GAPS = ROUNDS % 2 == 0;
    unsigned first, lane;  // the first vector of the WIDTH lanes, a multiple of WIDTH x ROUNDS

    static constexpr int count(int vectors) { return GAPS ? vectors + vectors / GAP : vectors; }
    static DEVICE int slot(unsigned vector) { return GAPS ? vector + vector / GAP : vector; }

    // `copied` is the slot of the vector that the lane copies in round r, `own` the slot of its own vector r. Where
    // possible, the steps from round to round are constants.
    DEVICE int copied(int r) const {
        if (!GAPS || WIDTH % GAP == 0) return slot(first + lane) + r * (GAPS ? WIDTH + WIDTH / GAP : WIDTH);
        return slot(first + r * WIDTH + lane);
    }
    DEVICE int own(int r) const {
        if (!GAPS || ROUNDS % GAP == 0) return slot(first + lane * ROUNDS) + r + (GAPS ? r / GAP : 0);
        return slot(first + lane * ROUNDS + r);
    }
};

// Views of strided arrays: how threads load and store vectors of their elements, in registers or by shared memory, one
// array at a time or several arrays together as one array of records. Follows _common.cuh.

template <class T>
struct Unconst {
    using Type = T;
};
template <class T>
struct Unconst<const T> {
    using Type = T;
};

// An array seen as (high, low, n, inner), with its strides in elements; the base is that of the first element.
template <class T, Access ACCESS>
struct View {
    using Element = typename Unconst<T>::Type;
    T* base;
    long long high, low, along, inner;

    DEVICE View at(long long h, long long l, long long j) const {
        return {base + h * high + l * low + j * inner, high, low, along, inner};
    }

    // Where N elements wait in shared memory.
    template <int N>
    using Staged = typename Word<N * sizeof(T)>::Type;

    // Loads elements i, i + 1, ..., and others of the line in place of those from `past` on.
    template <class S, int N>
    DEVICE void load_along(S (&to)[N], long long i, long long past) const {
        if (i >= past && past >= N) i = 0;
        if ((ACCESS == ASCENDING || ACCESS == DESCENDING) && i + N <= past) {
            fetch(to, __ldg(reinterpret_cast<const Staged<N>*>(ACCESS == ASCENDING ? base + i : base - i - (N - 1))));
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) to[k] = ACCESS == CONSTANT ? *base : base[min(i + k, past - 1) * along];
        }
    }

    // Stores elements i, i + 1, ..., but for those from `past` on.
    template <int N>
    DEVICE void store_along(const T (&from)[N], long long i, long long past) const {
        Staged<N> vector;
        put(from, vector);
        flush<N>(vector, i, past);
    }

    // Begins to copy elements i, i + 1, ... to shared memory, in the order memory has them, and others of the line in
    // place of those from `past` on; wait_for_staged ends it.
    template <int N>
    DEVICE void stage(Staged<N>& to, long long i, long long past) const {
        if (i >= past && past >= N) i = 0;
        if (ACCESS != STRIDED && i + N <= past) {
            copy_async(to, *reinterpret_cast<const Staged<N>*>(ACCESS == ASCENDING ? base + i : base - i - (N - 1)));
        } else {
            Element loaded[N];
#pragma unroll
            for (int k = 0; k < N; ++k)
                loaded[ACCESS == DESCENDING ? N - 1 - k : k] = base[min(i + k, past - 1) * along];
            memcpy(&to, loaded, sizeof(to));
        }
    }

    // Takes what waits in shared memory as elements i, i + 1, ...
    template <class S, int N>
    DEVICE void fetch(S (&to)[N], const Staged<N>& from) const {
        S loaded[N];
        memcpy(loaded, &from, sizeof(from));
#pragma unroll
        for (int k = 0; k < N; ++k) to[k] = loaded[ACCESS == DESCENDING ? N - 1 - k : k];
    }

    // Takes the one element of a constant N times.
    template <class S, int N>
    DEVICE void repeat(S (&to)[N]) const {
#pragma unroll
        for (int k = 0; k < N; ++k) to[k] = *base;
    }

    // Loads element i of inner lines side by side.
    template <class S, int N>
    DEVICE void load_across(S (&to)[N], long long i) const {
        const T* from = base + i * along;
        if constexpr (ACCESS == ASCENDING) {
            using Vector = typename Word<N * sizeof(T)>::Type;
            const Vector vector = __ldg(reinterpret_cast<const Vector*>(from));
            memcpy(to, &vector, sizeof(Vector));
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) to[k] = ACCESS == CONSTANT ? *from : from[k * inner];
        }
    }

    // Puts N results into shared memory, in the order memory is to have them.
    template <int N>
    DEVICE void put(const T (&from)[N], Staged<N>& to) const {
        T ordered[N];
#pragma unroll
        for (int k = 0; k < N; ++k) ordered[ACCESS == DESCENDING ? N - 1 - k : k] = from[k];
        memcpy(&to, ordered, sizeof(to));
    }

    // Stores what `put` put as elements i, i + 1, ..., and leaves out those from `past` on.
    template <int N>
    DEVICE void flush(const Staged<N>& from, long long i, long long past) const {
        if (ACCESS != STRIDED && i + N <= past) {
            *reinterpret_cast<Staged<N>*>(ACCESS == ASCENDING ? base + i : base - i - (N - 1)) = from;
        } else {
            T ordered[N];
            memcpy(ordered, &from, sizeof(from));
#pragma unroll
            for (int k = 0; k < N; ++k)
                if (i + k < past) base[(i + k) * along] = ordered[ACCESS == DESCENDING ? N - 1 - k : k];
        }
    }

    template <int N>
    DEVICE void store_across(const T (&from)[N], long long i) const {
        if constexpr (ACCESS == ASCENDING) {
            using Vector = typename Word<N * sizeof(T)>::Type;
            Vector vector;
            memcpy(&vector, from, sizeof(Vector));
            *reinterpret_cast<Vector*>(base + i * along) = vector;
        } else {
#pragma unroll
            for (int k = 0; k < N; ++k) base[i * along + k * inner] = from[k];
        }
    }
};

// ---- Several arrays together ----------------------------------------------------------------------------------

// Arrays that are read or written together are a structure `Views` of views with
//     Views::Record                   one element of every array, a plain structure
//     Views::Vectors<N>               N elements of every array, each array's side by side
//     Views::each<N>(views, visit)    static; calls visit(view, member of Record, member of Vectors<N>, Place) for every
//                                     array
// Place<P> is the P-th array of vectors in shared memory, where those of the view wait: buffers.vector(Place<P>(), slot)
// is one of them. Elements of a CONSTANT do not wait.
template <int AT>
struct Place {
    static constexpr bool WAITS = true;
};
struct NoPlace {
    static constexpr bool WAITS = false;
};

// Calls load(view, elements, place) for N elements of every array, and makes records of them.
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

// Calls store(view, elements, place) for every array with its elements of N records.
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

// The functions below do for all arrays what the methods of these names do for one.
template <class Views>
DEVICE Views views_at(Views views, long long h, long long l, long long j) {
    Views::template each<1>(views, [&](auto& view, auto, auto, auto) { view = view.at(h, l, j); });
    return views;
}

template <class Views, int N>
DEVICE void load_along(const Views& views, typename Views::Record (&to)[N], long long i, long long past) {
    load_records(views, to, [&](const auto& view, auto& loaded, auto) { view.load_along(loaded, i, past); });
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

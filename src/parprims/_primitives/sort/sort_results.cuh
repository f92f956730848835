// The results that a sort can be asked for.

namespace sorting {

// The sorted keys.
template <class Key>
struct Keys {
    Key* out;
};

// Elements that move with their keys. The launches for long rows use `own`, temporary memory of the same size.
template <class V>
struct Move {
    const V* in;
    V* own;
    V* out;
};

// The original positions of the sorted keys. For long rows they are numbers of type Place between launches, alternately
// in temporary memory, `own`, and in `aside`. Every element of the rows in `aside` takes `apart` bytes more than a
// Place.
template <class Result, class Place = Result>
struct Indices {
    Place* own;
    Place* aside;
    Result* out;
    int apart;
};

}  // namespace sorting

// What shares of a path of elements and ends of segments leave of segments that they do not hold whole, and how that is
// combined.

#include "block_reduce.cuh"
#include "common.cuh"

// What a part of the path, one share or several, has of segments that it does not hold whole.
template <class State>
struct Part {
    Optional<State> first;  // of the first segment that ends in the part
    Optional<State> rest;   // of the segment that does not end in it
    Index segment;          // the number of the first
    bool ends;              // whether one ends in it
};

template <class Op>
DEVICE void append(Optional<typename Op::State>& total, const Optional<typename Op::State>& later) {
    if (later.valid) append<Op>(total, later.state);
}

// Returns the part that `count` parts in a row are. Calls finish(segment, state) for every segment that begins and ends in
// them; if they are `all` parts of the line, also for the first.
template <class Op, class Get, class Finish>
DEVICE Part<typename Op::State> fold_parts(int count, bool all, const Get& get, const Finish& finish) {
    Part<typename Op::State> whole;
    whole.first.valid = whole.rest.valid = whole.ends = false;
    whole.segment = 0;
    for (int at = 0; at < count; ++at) {
        const Part<typename Op::State> one = get(at);
        if (one.ends) {
            append<Op>(whole.rest, one.first);
            if (all || whole.ends) {
                finish(one.segment, whole.rest);
            } else {
                whole.first = whole.rest;
                whole.segment = one.segment;
            }
            whole.ends = true;
            whole.rest = one.rest;
        } else {
            append<Op>(whole.rest, one.rest);
        }
    }
    return whole;
}

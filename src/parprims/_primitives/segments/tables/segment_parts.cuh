// The segments that a share of a path holds only in part, and the combination of adjacent shares. A path has the
// elements of a line and the ends of its segments (see segments.cu).

#include "block.cuh"
#include "common.cuh"

// The incomplete segments of a part of the path, which is one share or several.
template <class State>
struct Part {
    Optional<State> first;  // the elements of the first segment that ends in the part
    Optional<State> rest;   // the elements of the segment that does not end in the part
    Index segment;          // the number of the first segment that ends in the part
    bool ends;              // whether a segment ends in the part
};

template <class Op>
DEVICE void append(Optional<typename Op::State>& total, const Optional<typename Op::State>& later) {
    if (later.valid) append<Op>(total, later.state);
}

// Returns `count` adjacent parts as one part. Calls finish(segment, state) for every segment that begins and ends in
// them; if they are `all` parts of the line, also for the first segment.
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

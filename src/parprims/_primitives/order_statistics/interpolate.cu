// Quantiles, given rows with the elements that are needed, and the last element, in the places of sorted rows.
//
// A quantile lies between two elements of a row, at a fraction of the way from the first. Products and sums are rounded
// separately, as by the operations of array libraries. If the last element of a row is NaN, all quantiles of the row
// are NaN.

#include "common.cuh"

namespace between {

DEVICE float product(float a, float b) { return __fmul_rn(a, b); }
DEVICE double product(double a, double b) { return __dmul_rn(a, b); }
DEVICE float sum(float a, float b) { return __fadd_rn(a, b); }
DEVICE double sum(double a, double b) { return __dadd_rn(a, b); }

// The places in a row of two elements, and the fraction as the bits of a double: 0 if only the first element counts.
struct Step {
    Index low, high, part;
};

template <int COUNT>
struct Steps {
    Step each[COUNT];
};

// Only numbers of equal sign are subtracted, so that no difference overflows.
template <class T>
DEVICE T on_the_line(T one, T other, double part) {
    if (one == other) return one;
    const T near = (T)part, far = (T)(1 - part);
    if (one >= 0) return sum(one, product(sum(other, -one), near));
    if (other <= 0) return sum(other, product(sum(one, -other), far));
    return sum(product(one, far), product(other, near));
}

// Writes, for each step, the quantile of every row. A row has `length` elements of type T, and the largest is the last.
template <class T, class Result, int COUNT>
DEVICE void interpolate(const T* x, Result* out, Index rows, Index length, Steps<COUNT> steps) {
    using Working = decltype(value(Result()));
    const Index row = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const T* const from = x + row * length;
    const auto last = value(from[length - 1]);
#pragma unroll 1
    for (int at = 0; at < COUNT; ++at) {
        const Step step = steps.each[at];
        const double part = __longlong_as_double(step.part);
        Working found = (Working)value(from[step.low]);
        if (part != 0) found = on_the_line(found, (Working)value(from[step.high]), part);
        if (last != last) found = (Working)last;
        out[at * rows + row] = store<Result>(found);
    }
}

}  // namespace between

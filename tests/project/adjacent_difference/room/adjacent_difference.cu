// Differences of neighbours: y[0] = x[0], y[i] = x[i] - x[i-1]. A thread computes one of them.

#include "common.cuh"

namespace adjacent {

template <class T>
DEVICE void differences(const T* x, T* y, Index elements, Index n) {
    const Index at = (Index)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= elements) return;
    const auto one = value(x[at]);
    y[at] = store<T>(at % n == 0 ? one : one - value(x[at - 1]));
}

}  // namespace adjacent

// Keys as selections compare them: in the order of a sort, in the width of a register. Needs common.cuh, digits.cuh
// and sort.cu.

namespace sorting {

// Keys of at most 32 bits are compared as 32 bits, others as 64.
template <class Key, bool NARROW = sizeof(Key) <= 4>
struct Compared {
    using Type = unsigned;
};
template <class Key>
struct Compared<Key, false> {
    using Type = unsigned long long;
};

template <class Order>
DEVICE typename Compared<typename Order::Key>::Type compared(typename Order::Key bits) {
    return ordered<Order>(bits);
}

}  // namespace sorting

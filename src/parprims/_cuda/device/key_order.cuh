// Keys in the order of a sort, as unsigned integers; and the integers, as wide as a register, that selections compare.
//
// `Order` describes the keys and their order: Key (an unsigned integer as wide as a key), KIND, INFINITE (the bits of
// infinity), DESCENDING (whether the largest key comes first), WIDTH (how many bits of ordered(key) can differ).

#include "common.cuh"

namespace sorting {

enum Kind { BOOL, SIGNED, UNSIGNED, FLOATING };

// Returns the unsigned integer that a key is compared by, in the order asked for. Equal keys have equal integers. NaN
// has the largest integer, or if DESCENDING the smallest.
template <class Order>
DEVICE typename Order::Key ordered(typename Order::Key bits) {
    using Key = typename Order::Key;
    constexpr Key SIGN = (Key)1 << (8 * sizeof(Key) - 1);
    Key key = bits;
    if (Order::KIND == BOOL) key = bits != 0;
    if (Order::KIND == SIGNED) key = bits ^ SIGN;
    if (Order::KIND == FLOATING && sizeof(Key) == 4) {
        // Adding 0 turns -0 into +0, and every NaN into the canonical NaN, with all bits set but the sign.
        key = (Key)__float_as_uint(__fadd_rn(__uint_as_float((unsigned)bits), 0.0f));
        key ^= (Key)((int)key >> 31) | SIGN;
    } else if (Order::KIND == FLOATING) {
        // Converts sign and magnitude to a number counted from -infinity. NaN of either sign is above +infinity, where
        // the minimum makes all NaN equal.
        const Key negative = bits & SIGN ? (Key)~(Key)0 : (Key)0;
        key = (Key)((bits ^ (negative | SIGN)) - negative - (Key)(SIGN - Order::INFINITE));
        key = min(key, (Key)(2 * Order::INFINITE + 1));
    }
    return Order::DESCENDING ? (Key)~key : key;
}

// The bits of the key that comes last. ALL_ARE_SET tells whether `ordered` of this key has all bits set: then each of
// its digits is the largest.
template <class Order>
struct LastKey {
    using Key = typename Order::Key;
    static constexpr Key SIGN = (Key)1 << (8 * sizeof(Key) - 1);
    static constexpr bool ALL_ARE_SET = Order::KIND != FLOATING || (sizeof(Key) == 4 && !Order::DESCENDING);

    static DEVICE Key bits() {
        if (Order::KIND == BOOL) return !Order::DESCENDING;
        if (Order::KIND == FLOATING)  // -infinity or NaN
            return Order::DESCENDING ? (Key)(SIGN | Order::INFINITE) : (Key)(SIGN - 1);
        return ordered<Order>((Key)~(Key)0);  // for integers, ordered(ordered(key)) is the key
    }
};

template <class Order, int BITS>
DEVICE unsigned digit_of(typename Order::Key bits, int shift) {
    return (unsigned)(ordered<Order>(bits) >> shift) & ((1u << BITS) - 1);
}

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

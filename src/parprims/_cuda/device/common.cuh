// Device functions shared by all kernels: 16-bit floats, complex numbers, the elementwise functions that traced
// operators call, warp shuffles of structures, and asynchronous copies to shared memory.

#define DEVICE __device__ __forceinline__

using Index = long long;

constexpr int WARP_SIZE = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;  // the mask of a whole warp

// ---- Element types that C++ does not have ---------------------------------------------------------------------

struct Half {
    unsigned short bits;
};

struct Bfloat {
    unsigned short bits;
};

template <class T>
struct alignas(2 * sizeof(T)) Complex {
    T re, im;
};

// Converts an element from its type in memory to the type it is computed in: 16-bit floats to float, others unchanged.
DEVICE float value(Half x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE float value(Bfloat x) { return __uint_as_float((unsigned)x.bits << 16); }
template <class T>
DEVICE T value(T x) {
    return x;
}

// Converts a computed value to its type in memory. 16-bit floats round to nearest, ties to even.
template <class T>
struct Store {
    template <class S>
    static DEVICE T from(S x) {
        return x;
    }
};
template <>
struct Store<Half> {
    static DEVICE Half from(float x) {
        Half y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
    }
};
template <>
struct Store<Bfloat> {
    static DEVICE Bfloat from(float x) {
#if __CUDA_ARCH__ >= 800
        Bfloat y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
        return y;
#else
        const unsigned bits = __float_as_uint(x);
        const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
        const unsigned rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        return {(unsigned short)(nan ? 0x7fffu : rounded)};
#endif
    }
};
template <class T, class S>
DEVICE T store(S x) {
    return Store<T>::from(x);
}
template <class T, class S>
DEVICE void store_to(T& to, S x) {
    to = store<T>(x);
}

// ---- Elementwise functions, named as in the array API standard ------------------------------------------------

namespace ops {

template <class T>
struct Traits {
    static constexpr bool INTEGER = true;
    static constexpr bool SIGNED = (T)-1 < (T)1;
};
template <>
struct Traits<float> {
    static constexpr bool INTEGER = false, SIGNED = true;
};
template <>
struct Traits<double> {
    static constexpr bool INTEGER = false, SIGNED = true;
};

// Integers wrap modulo 2^n. They are computed as unsigned numbers, because signed overflow is undefined.
#define ARITHMETIC(name, symbol)                                                        \
    template <class T>                                                                  \
    DEVICE T name(T a, T b) {                                                           \
        if constexpr (Traits<T>::INTEGER)                                               \
            return (T)((unsigned long long)a symbol (unsigned long long)b);             \
        else                                                                            \
            return a symbol b;                                                          \
    }
ARITHMETIC(add, +)
ARITHMETIC(subtract, -)
ARITHMETIC(multiply, *)
#undef ARITHMETIC

#define COMPARISON(name, symbol)       \
    template <class T>                 \
    DEVICE bool name(T a, T b) {       \
        return a symbol b;             \
    }
COMPARISON(equal, ==)
COMPARISON(not_equal, !=)
COMPARISON(less, <)
COMPARISON(less_equal, <=)
COMPARISON(greater, >)
COMPARISON(greater_equal, >=)
#undef COMPARISON

template <class T>
DEVICE T divide(T a, T b) {
    return a / b;
}
template <class T>
DEVICE T reciprocal(T a) {
    return (T)1 / a;
}
template <class T>
DEVICE T negative(T a) {
    return subtract(T(), a);
}
DEVICE float negative(float a) { return -a; }
DEVICE double negative(double a) { return -a; }
template <class T>
DEVICE T positive(T a) {
    return a;
}
template <class T>
DEVICE T square(T a) {
    return multiply(a, a);
}
template <class T>
DEVICE T conj(T a) {
    return a;
}
template <class T>
DEVICE T absolute(T a) {
    if constexpr (Traits<T>::INTEGER)
        return Traits<T>::SIGNED && a < (T)0 ? negative(a) : a;
    else
        return ::fabs(a);
}

// If either argument is NaN, the result is NaN, as the array API standard requires.
template <class T>
DEVICE T maximum(T a, T b) {
    return a != a || a > b ? a : b;
}
template <class T>
DEVICE T minimum(T a, T b) {
    return a != a || a < b ? a : b;
}

#if defined(EXTREMA_BY_INSTRUCTION) && __CUDA_ARCH__ >= 800
// Maximum in one instruction, for kernels that spend most of their time in it. Here -0 is less than +0, and every NaN
// becomes the canonical NaN.
DEVICE float maximum(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
DEVICE float minimum(float a, float b) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
#endif

// Rounds the quotient toward minus infinity. An integer divided by zero is zero, as in NumPy.
template <class T>
DEVICE T floor_divide(T a, T b) {
    if constexpr (!Traits<T>::INTEGER) {
        if (b == (T)0 || a != a || b != b) return a / b;
        const T remainder = ::fmod(a, b);
        T quotient = (a - remainder) / b;
        if (remainder != (T)0 && (remainder < (T)0) != (b < (T)0)) quotient -= (T)1;
        if (quotient == (T)0) return ::copysign((T)0, a / b);
        const T whole = ::floor(quotient);
        return quotient - whole > (T)0.5 ? whole + (T)1 : whole;
    } else {
        if (b == (T)0) return (T)0;
        if (Traits<T>::SIGNED && b == (T)-1) return negative(a);
        const T quotient = a / b;
        return a % b != (T)0 && (a < (T)0) != (b < (T)0) ? quotient - (T)1 : quotient;
    }
}
template <class T>
DEVICE T remainder(T a, T b) {
    if constexpr (!Traits<T>::INTEGER) {
        const T rest = ::fmod(a, b);
        if (rest == (T)0) return ::copysign((T)0, b);
        return (rest < (T)0) != (b < (T)0) ? rest + b : rest;
    } else {
        if (b == (T)0 || (Traits<T>::SIGNED && b == (T)-1)) return (T)0;
        const T rest = a % b;
        return rest != (T)0 && (rest < (T)0) != (b < (T)0) ? rest + b : rest;
    }
}
template <class T>
DEVICE T sign(T a) {
    if constexpr (Traits<T>::INTEGER)
        return (T)(a > (T)0) - (T)(a < (T)0);
    else
        return a != a ? a : (T)(a > (T)0) - (T)(a < (T)0);
}

DEVICE bool logical_and(bool a, bool b) { return a && b; }
DEVICE bool logical_or(bool a, bool b) { return a || b; }
DEVICE bool logical_xor(bool a, bool b) { return a != b; }
DEVICE bool logical_not(bool a) { return !a; }
template <class T>
DEVICE T bitwise_and(T a, T b) {
    return a & b;
}
template <class T>
DEVICE T bitwise_or(T a, T b) {
    return a | b;
}
template <class T>
DEVICE T bitwise_xor(T a, T b) {
    return a ^ b;
}
template <class T>
DEVICE T bitwise_invert(T a) {
    return ~a;
}
DEVICE bool bitwise_invert(bool a) { return !a; }
// A shift by the width or more, or by a negative number, shifts out all bits: the result is 0, or -1 if a negative
// number is shifted to the right.
template <class T>
DEVICE T bitwise_left_shift(T a, T b) {
    return b < (T)0 || b >= (T)(8 * sizeof(T)) ? (T)0 : (T)((unsigned long long)a << b);
}
template <class T>
DEVICE T bitwise_right_shift(T a, T b) {
    return b < (T)0 || b >= (T)(8 * sizeof(T)) ? (a < (T)0 ? (T)-1 : (T)0) : (T)(a >> b);
}

template <class T>
DEVICE bool isnan(T a) {
    return a != a;
}
template <class T>
DEVICE bool isfinite(T a) {
    return a - a == T();
}
template <class T>
DEVICE bool isinf(T a) {
    return a == a && !isfinite(a);
}
DEVICE bool signbit(float a) { return __float_as_int(a) < 0; }
DEVICE bool signbit(double a) { return __double_as_longlong(a) < 0; }

#define FLOATING(name)        \
    template <class T>        \
    DEVICE T name(T a) {      \
        return ::name(a);     \
    }
FLOATING(sqrt)
FLOATING(exp)
FLOATING(exp2)
FLOATING(expm1)
FLOATING(log)
FLOATING(log1p)
FLOATING(log2)
FLOATING(log10)
FLOATING(sin)
FLOATING(cos)
FLOATING(tan)
FLOATING(asin)
FLOATING(acos)
FLOATING(atan)
FLOATING(sinh)
FLOATING(cosh)
FLOATING(tanh)
FLOATING(asinh)
FLOATING(acosh)
FLOATING(atanh)
#undef FLOATING

#define ROUNDING(name, function)                  \
    template <class T>                            \
    DEVICE T name(T a) {                          \
        if constexpr (Traits<T>::INTEGER)         \
            return a;                             \
        else                                      \
            return ::function(a);                 \
    }
ROUNDING(floor, floor)
ROUNDING(ceil, ceil)
ROUNDING(trunc, trunc)
ROUNDING(round, rint)
#undef ROUNDING

template <class T>
DEVICE T pow(T a, T b) {
    return ::pow(a, b);
}
template <class T>
DEVICE T atan2(T a, T b) {
    return ::atan2(a, b);
}
template <class T>
DEVICE T hypot(T a, T b) {
    return ::hypot(a, b);
}
template <class T>
DEVICE T copysign(T a, T b) {
    return ::copysign(a, b);
}
// log(exp(a) + exp(b)) without overflow. Equal arguments are handled apart, because inf - inf is NaN.
template <class T>
DEVICE T logaddexp(T a, T b) {
    return a == b ? a + (T)0.69314718055994530942 : maximum(a, b) + ::log1p(::exp(-::fabs(a - b)));
}

template <class T>
DEVICE Complex<T> add(Complex<T> a, Complex<T> b) {
    return {a.re + b.re, a.im + b.im};
}
template <class T>
DEVICE Complex<T> subtract(Complex<T> a, Complex<T> b) {
    return {a.re - b.re, a.im - b.im};
}
template <class T>
DEVICE Complex<T> multiply(Complex<T> a, Complex<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// Divides by the larger part of b first, so that no intermediate result overflows early.
// R. L. Smith, Algorithm 116: Complex division, CACM 5(8), 1962.
template <class T>
DEVICE Complex<T> divide(Complex<T> a, Complex<T> b) {
    if (::fabs(b.re) >= ::fabs(b.im)) {
        const T ratio = b.im / b.re, scale = (T)1 / (b.re + b.im * ratio);
        return {(a.re + a.im * ratio) * scale, (a.im - a.re * ratio) * scale};
    }
    const T ratio = b.re / b.im, scale = (T)1 / (b.re * ratio + b.im);
    return {(a.re * ratio + a.im) * scale, (a.im * ratio - a.re) * scale};
}
template <class T>
DEVICE Complex<T> reciprocal(Complex<T> a) {
    return divide(Complex<T>{(T)1, (T)0}, a);
}
template <class T>
DEVICE Complex<T> negative(Complex<T> a) {
    return {-a.re, -a.im};
}
template <class T>
DEVICE Complex<T> square(Complex<T> a) {
    return multiply(a, a);
}
template <class T>
DEVICE Complex<T> conj(Complex<T> a) {
    return {a.re, -a.im};
}
template <class T>
DEVICE T absolute(Complex<T> a) {
    return ::hypot(a.re, a.im);
}
template <class T>
DEVICE bool equal(Complex<T> a, Complex<T> b) {
    return a.re == b.re && a.im == b.im;
}
template <class T>
DEVICE bool not_equal(Complex<T> a, Complex<T> b) {
    return !equal(a, b);
}
template <class T>
DEVICE bool isnan(Complex<T> a) {
    return isnan(a.re) || isnan(a.im);
}
template <class T>
DEVICE bool isfinite(Complex<T> a) {
    return isfinite(a.re) && isfinite(a.im);
}
template <class T>
DEVICE bool isinf(Complex<T> a) {
    return isinf(a.re) || isinf(a.im);
}

template <class T>
struct Cast {
    template <class S>
    static DEVICE T from(S x) {
        return (T)x;
    }
};
template <class T>
struct Cast<Complex<T>> {
    template <class S>
    static DEVICE Complex<T> from(S x) {
        return {(T)x, (T)0};
    }
    template <class S>
    static DEVICE Complex<T> from(Complex<S> x) {
        return {(T)x.re, (T)x.im};
    }
};
template <>
struct Cast<bool> {
    template <class S>
    static DEVICE bool from(S x) {
        return x != (S)0;
    }
    template <class S>
    static DEVICE bool from(Complex<S> x) {
        return x.re != (S)0 || x.im != (S)0;
    }
};
template <class T, class S>
DEVICE T cast(S x) {
    return Cast<T>::from(x);
}

}  // namespace ops

// ---- Warp shuffles of structures ------------------------------------------------------------------------------

// Moves a structure between lanes by moving its words: move(word) is a shuffle.
template <class T, class Move>
DEVICE T shuffle_words(const T& mine, const Move& move) {
    constexpr int WORDS = (sizeof(T) + 3) / 4;
    unsigned words[WORDS] = {};
    memcpy(words, &mine, sizeof(T));
#pragma unroll
    for (int word = 0; word < WORDS; ++word) words[word] = move(words[word]);
    T theirs;
    memcpy(&theirs, words, sizeof(T));
    return theirs;
}

// Returns the structure that the lane `distance` above holds. A lane without such a lane gets its own.
template <class T>
DEVICE T shuffle_down(const T& mine, int distance) {
    return shuffle_words(mine, [&](unsigned word) { return __shfl_down_sync(ALL_LANES, word, distance); });
}

// Returns the structure that the lane `distance` below holds. A lane without such a lane gets its own.
template <class T>
DEVICE T shuffle_up(const T& mine, int distance) {
    return shuffle_words(mine, [&](unsigned word) { return __shfl_up_sync(ALL_LANES, word, distance); });
}

// Returns the structure that the given lane holds.
template <class T>
DEVICE T shuffle(const T& mine, int lane) {
    return shuffle_words(mine, [&](unsigned word) { return __shfl_sync(ALL_LANES, word, lane); });
}

// A bool known at compile time, as an argument.
template <bool VALUE>
struct Flag {
    static constexpr bool value = VALUE;
};

// ---- Loads and stores -----------------------------------------------------------------------------------------

// Prefetches the 128 bytes around an address into the L2 cache.
DEVICE void prefetch_line(const void* address) { asm volatile("prefetch.global.L2 [%0];" ::"l"(address)); }

// Writes a word that other blocks may be reading. It arrives whole, in no order with other words.
DEVICE void publish_word(unsigned* to, unsigned word) {
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
DEVICE void publish_word(unsigned long long* to, unsigned long long word) {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Returns a word that other blocks may be writing.
DEVICE unsigned long long read_current(const unsigned long long* from) {
    unsigned long long word;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    return word;
}
DEVICE unsigned read_current(const unsigned* from) {
    unsigned word;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}

template <int BYTES>
struct Word;
template <>
struct Word<1> {
    using Type = unsigned char;
};
template <>
struct Word<2> {
    using Type = unsigned short;
};
template <>
struct Word<4> {
    using Type = unsigned int;
};
template <>
struct Word<8> {
    using Type = uint2;
};
template <>
struct Word<16> {
    using Type = uint4;
};

// Loads, and stores, N adjacent elements as one vector, to whose size `from` and `to` are aligned.
template <class T, int N>
DEVICE void load_vector(T (&to)[N], const T* from) {
    using Vector = typename Word<N * sizeof(T)>::Type;
    const Vector vector = __ldg(reinterpret_cast<const Vector*>(from));
    memcpy(to, &vector, sizeof(Vector));
}
template <class T, int N>
DEVICE void store_vector(T* to, const T (&from)[N]) {
    using Vector = typename Word<N * sizeof(T)>::Type;
    Vector vector;
    memcpy(&vector, from, sizeof(Vector));
    *reinterpret_cast<Vector*>(to) = vector;
}

// How a thread accesses N consecutive elements along an axis:
//     STRIDED       one by one
//     ASCENDING     as one aligned vector of ascending addresses
//     DESCENDING    as one aligned vector of descending addresses
//     CONSTANT      as one element that stands for all of them
enum Access { STRIDED, ASCENDING, DESCENDING, CONSTANT };

// Begins to copy from global to shared memory without using registers (cp.async). Where the architecture or the size
// does not allow that, copies at once.
template <class V>
DEVICE void copy_async(V& to, const V& from) {
#if __CUDA_ARCH__ >= 800
    if constexpr (sizeof(V) >= 4) {
        const unsigned address = (unsigned)__cvta_generic_to_shared(&to);
        if constexpr (sizeof(V) == 16)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(&from) : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(&from), "n"(sizeof(V))
                         : "memory");
        return;
    }
#endif
    to = from;
}

// Waits until this thread's asynchronous copies have arrived. Only this thread may then read them without a barrier.
DEVICE void wait_for_staged() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Commits this thread's asynchronous copies since the last commit as one group.
DEVICE void end_group_of_staged() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits for all of this thread's groups of copies but the latest.
DEVICE void wait_for_earlier_groups() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group 1;" ::: "memory");
#endif
}

// What a CUDA kernel's text needs to run on a CPU, as the text sees it; emulator.cpp, which is compiled once, carries
// it out, and says how. The text is compiled with calls before every access to memory (-fsanitize=thread), which are
// emulator.cpp's too: what is in this file is watched like the text itself.

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#define __CUDA_ARCH__ 900
#define __device__
#define __global__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __shared__ static thread_local  // emulator.cpp finds them, a block being a thread of the operating system
#define __align__(bytes) __attribute__((aligned(bytes)))  // stands where alignas may not

// ---- Vector types ---------------------------------------------------------------------------------------------

#define VECTORS(name, type)                                                                           \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; };                                          \
    struct name##3 { type x, y, z; };                                                                 \
    struct alignas(4 * sizeof(type) < 16 ? 4 * sizeof(type) : 16) name##4 { type x, y, z, w; };       \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                  \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                       \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
VECTORS(char, signed char)
VECTORS(uchar, unsigned char)
VECTORS(short, short)
VECTORS(ushort, unsigned short)
VECTORS(int, int)
VECTORS(uint, unsigned)
VECTORS(longlong, long long)
VECTORS(ulonglong, unsigned long long)
VECTORS(float, float)
VECTORS(double, double)
#undef VECTORS
using dim3 = uint3;
namespace emulated {

// Some memory that a launch is given, by its name.
struct Given {
    char* begin;
    long long bytes;
    const char* name;
};

// A launch: blocks, threads of each, blocks of a cluster, bytes of dynamic shared memory, and blocks at once, which start
// in the order of the seed; whether races in shared memory are errors; the memory that it is given, of which the last two are scratch
// by which blocks tell each other of their work.
struct Launch {
    long long grid, threads, cluster, dynamic_bytes, in_flight, seed, races;
    double seconds;
    const Given* given;
    long long count;
};
int run(const Launch& launch, void (*start)(void*), char* (*one_static)(), void* arguments, char* message, size_t size);

// The same throughout a thread, which `const` says: the compiler may ask once.
#define FIXED __attribute__((const))
FIXED uint3 thread_index();
FIXED uint3 block_index();
FIXED uint3 block_size();
FIXED uint3 grid_size();
FIXED char* dynamic_memory();
FIXED long long parameter(int at);

[[noreturn]] void refuse(const char* text);
void pause();
void wait_block(unsigned named = 0, int width = 0);
int count_block(int predicate);
void wait_warp(unsigned mask);
void fence();
long long clock();
size_t to_shared(const void* pointer);

// What the lanes of a warp give each other, of at most 8 bytes.
uint64_t from_lane(unsigned mask, uint64_t mine, int lane);
unsigned ballot(unsigned mask, bool mine);
unsigned lanes_alike(unsigned mask, uint64_t mine);
const uint64_t* from_all(unsigned mask, uint64_t mine);

// Atomic operations on 4 or 8 bytes: the number there; a new one, if there still is what was before.
uint64_t atomic_load(const void* at, size_t size);
bool atomic_replace(void* at, uint64_t& before, uint64_t after, size_t size);
void after_atomic();

// ---- Numbers --------------------------------------------------------------------------------------------------

template <class To, class From>
To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

inline float from_half(unsigned short half) {
    const unsigned sign = (unsigned)(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return bits<float>(sign | 0x7f800000u | fraction << 13);
    return bits<float>(sign | exponent << 23 | fraction << 13) * 0x1p112f;  // also right for subnormal numbers
}

inline unsigned short to_half(float x) {
    const unsigned word = bits<unsigned>(x), sign = word >> 16 & 0x8000;
    if (x != x) return 0x7fff;
    const double magnitude = fabs((double)x);
    if (magnitude >= 65520.) return (unsigned short)(sign | 0x7c00);
    if (magnitude == 0) return (unsigned short)sign;
    int exponent;
    frexp(magnitude, &exponent);
    const int last = std::max(exponent - 11, -24);  // the exponent of the last place kept
    const unsigned units = (unsigned)nearbyint(ldexp(magnitude, -last));
    if (last == -24) return (unsigned short)(sign | units);  // subnormal, or the smallest normal numbers
    return (unsigned short)(sign | (((unsigned)(last + 24) << 10) + units));
}

inline unsigned short to_bfloat(float x) {
    const unsigned word = bits<unsigned>(x);
    return x != x ? 0x7fff : (unsigned short)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

// Ties go away from zero, or to even numbers.
template <bool EVEN>
unsigned to_tf32(float x) {
    const unsigned word = bits<unsigned>(x);
    if (x != x) return 0x7fffffff;
    const unsigned half = EVEN ? 0xfff + (word >> 13 & 1) : 0x1000;
    return (word + half) & ~0x1fffu;  // what carries into the exponent is right, up to infinity, which stays
}

template <class T>
uint64_t word(T x) {
    static_assert(sizeof(T) <= 8);
    uint64_t word = 0;
    memcpy(&word, &x, sizeof(T));
    return word;
}
template <class T>
T from_word(uint64_t word) {
    T x;
    memcpy(&x, &word, sizeof(T));
    return x;
}

// ---- What PTX does --------------------------------------------------------------------------------------------

void copy_async(unsigned to, const void* from, size_t size, size_t bytes);
void end_copies();
void wait_copies(int left);
void begin_barrier(unsigned address, int count);
void arrive(unsigned address, unsigned bytes = 0);
void arrive_when_copied(unsigned address);
bool has_ended(unsigned address, int parity);
void show();
void describe(unsigned address, const void* from, std::initializer_list<long long> lengths,
              std::initializer_list<long long> pitches, std::initializer_list<long long> box, int type);
void publish(void* to, unsigned from);
void copy_bytes(unsigned to, const void* from, int bytes, unsigned barrier);
void copy_box(unsigned to, const void* map, int x, int y, int z, unsigned barrier);
void copy_box(unsigned to, const void* map, int x, int y, int z, unsigned barrier, unsigned ranks);
void arrive_in_cluster(unsigned address, unsigned rank);
void store_in_cluster(unsigned to, unsigned barrier, std::initializer_list<float> numbers, unsigned rank);
void wait_cluster();
void store16(void* to, unsigned long long low, unsigned long long high);
void load16(const void* from, unsigned long long& low, unsigned long long& high);
void store(void* to, unsigned value);
void store(void* to, unsigned long long value);
template <class T>
T load(const void* from);
template <>
unsigned load(const void* from);
template <>
unsigned long long load(const void* from);

template <bool TRANSPOSED>
void load_matrices(unsigned row, unsigned& a, unsigned& b, unsigned& c, unsigned& d);

// The types of matrix elements: what a register holds, how many of them, what they are, and a sum to which is added.
struct Half {
    using Register = unsigned;
    using Sum = float;
    static constexpr int PACKED = 2;
    static double number(unsigned word, int at) { return from_half((unsigned short)(word >> 16 * at)); }
};
struct Bfloat {
    using Register = unsigned;
    using Sum = float;
    static constexpr int PACKED = 2;
    static double number(unsigned word, int at) { return bits<float>(word >> 16 * at << 16); }
};
struct Tf32 {
    using Register = unsigned;
    using Sum = float;
    static constexpr int PACKED = 1;
    static double number(unsigned word, int) { return bits<float>(word & ~0x1fffu); }
};
struct Double {
    using Register = double;
    using Sum = double;
    static constexpr int PACKED = 1;
    static double number(double word, int) { return word; }
};
struct Byte {
    using Register = unsigned;
    using Sum = int;
    static constexpr int PACKED = 4;
    static double number(unsigned word, int at) { return (signed char)(word >> 8 * at); }
};
template <class T>
void multiply(const typename T::Register (&a)[4], const typename T::Register (&b)[2], typename T::Sum& d0,
              typename T::Sum& d1, typename T::Sum& d2, typename T::Sum& d3);
void multiply4(double a, double b, double& d0, double& d1);
template <class T>
void multiply_later(std::initializer_list<typename T::Sum*> d, unsigned long long a, unsigned long long b, bool add,
                    bool a_transposed = false, bool b_transposed = false);
template <class T>
void multiply_later(std::initializer_list<float*> d, const unsigned (&a)[4], unsigned long long b, bool add,
                    bool b_transposed = false);
void begin_products();
void end_products();
void wait_products(int left);

void copy_watched(void* to, const void* from, size_t size);

}  // namespace emulated

// The compiler makes copies of some sizes single accesses, which it lets be watched; it leaves others to the library.
inline void emulated_memcpy(void* to, const void* from, size_t size) {
    if (__builtin_constant_p(size) && (size & (size - 1)) == 0 && size <= 16)
        __builtin_memcpy(to, from, size);
    else
        emulated::copy_watched(to, from, size);
}

// ---- CUDA's functions -----------------------------------------------------------------------------------------

#define threadIdx emulated::thread_index()
#define blockIdx emulated::block_index()
#define blockDim emulated::block_size()
#define gridDim emulated::grid_size()
constexpr int warpSize = 32;

inline void __syncthreads() { emulated::wait_block(); }
inline void __syncwarp(unsigned mask = ~0u) { emulated::wait_warp(mask); }
inline void __threadfence() { emulated::fence(); }
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) { emulated::pause(); }
inline void __trap() { emulated::refuse("the kernel trapped"); }
inline size_t __cvta_generic_to_shared(const void* pointer) { return emulated::to_shared(pointer); }
inline long long clock64() { return emulated::clock(); }

inline int __syncthreads_count(int predicate) { return emulated::count_block(predicate); }
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate) == (int)blockDim.x; }

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    const int mine = threadIdx.x % 32, from = (mine & ~(width - 1)) | (lane & (width - 1));
    return emulated::from_word<T>(emulated::from_lane(mask, emulated::word(value), from));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int mine = threadIdx.x % 32, lane = mine - (int)distance, from = lane < (mine & ~(width - 1)) ? mine : lane;
    return emulated::from_word<T>(emulated::from_lane(mask, emulated::word(value), from));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int mine = threadIdx.x % 32, lane = mine + (int)distance, from = lane > (mine | (width - 1)) ? mine : lane;
    return emulated::from_word<T>(emulated::from_lane(mask, emulated::word(value), from));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    const int mine = threadIdx.x % 32, lane = mine ^ lanes, from = lane > (mine | (width - 1)) ? mine : lane;
    return emulated::from_word<T>(emulated::from_lane(mask, emulated::word(value), from));
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return emulated::ballot(mask, predicate != 0); }
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
    return emulated::lanes_alike(mask, emulated::word(value));
}
#define REDUCE(name, type, expression)                                            \
    inline type __reduce_##name##_sync(unsigned mask, type value) {               \
        const uint64_t* const words = emulated::from_all(mask, emulated::word(value)); \
        type a = value;                                                           \
        for (int lane = 0; lane < 32; ++lane)                                     \
            if (mask >> lane & 1 && lane != (int)(threadIdx.x % 32)) {            \
                const type b = emulated::from_word<type>(words[lane]);            \
                a = expression;                                                   \
            }                                                                     \
        return a;                                                                 \
    }
REDUCE(add, unsigned, a + b)
REDUCE(add, int, a + b)
REDUCE(min, unsigned, std::min(a, b))
REDUCE(min, int, std::min(a, b))
REDUCE(max, unsigned, std::max(a, b))
REDUCE(max, int, std::max(a, b))
REDUCE(and, unsigned, a& b)
REDUCE(or, unsigned, a | b)
REDUCE(xor, unsigned, a ^ b)
#undef REDUCE

namespace emulated {
template <class T, class Change>
T atomic(T* at, Change change) {
    uint64_t before = atomic_load(at, sizeof(T));
    while (!atomic_replace(at, before, word<T>(change(from_word<T>(before))), sizeof(T))) {
    }
    after_atomic();
    return from_word<T>(before);
}
template <class T>
struct Same {
    using Type = T;
};
}  // namespace emulated
#define ATOMIC(name, expression)                                                              \
    template <class T>                                                                        \
    T atomic##name(T* at, typename emulated::Same<T>::Type b) {                               \
        return emulated::atomic(at, [&](T a) { return (T)(expression); });                    \
    }                                                                                         \
    template <class T>                                                                        \
    T atomic##name##_block(T* at, typename emulated::Same<T>::Type b) {                       \
        return atomic##name(at, b);                                                           \
    }
ATOMIC(Add, a + b)
ATOMIC(Sub, a - b)
ATOMIC(Min, std::min(a, b))
ATOMIC(Max, std::max(a, b))
ATOMIC(And, a& b)
ATOMIC(Or, a | b)
ATOMIC(Xor, a ^ b)
ATOMIC(Exch, ((void)a, b))
ATOMIC(Inc, a >= b ? 0 : a + 1)
ATOMIC(Dec, a == 0 || a > b ? b : a - 1)
#undef ATOMIC
template <class T>
T atomicCAS(T* at, typename emulated::Same<T>::Type compare, typename emulated::Same<T>::Type b) {
    return emulated::atomic(at, [&](T a) { return a == compare ? b : a; });
}

template <class T>
T __ldg(const T* from) {
    if ((uintptr_t)from % alignof(T)) emulated::refuse("a load is not aligned");
    return *from;
}
template <class T>
T __ldcs(const T* from) { return __ldg(from); }
template <class T>
T __ldcg(const T* from) { return __ldg(from); }
template <class T>
void __stcs(T* to, T value) { *to = value; }
template <class T>
void __stcg(T* to, T value) { *to = value; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int bit = 0; bit < 32; ++bit) y |= (x >> bit & 1) << (31 - bit);
    return y;
}
inline int __dp4a(int a, int b, int c) {
    for (int at = 0; at < 32; at += 8) c = (int)((unsigned)c + (unsigned)((signed char)(a >> at) * (signed char)(b >> at)));
    return c;
}
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
    const unsigned long long both = (unsigned long long)high << 32 | low;
    unsigned all = 0;
    for (int at = 0; at < 4; ++at) all |= (unsigned)(both >> (which >> 4 * at & 7) * 8 & 0xff) << 8 * at;
    return all;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) << (n & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned n) {
    return (unsigned)(((unsigned long long)high << 32 | low) >> (n & 31));
}
inline unsigned __float_as_uint(float x) { return emulated::bits<unsigned>(x); }
inline int __float_as_int(float x) { return emulated::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return emulated::bits<float>(x); }
inline float __fadd_rn(float a, float b) { return a + b == a + b ? a + b : __uint_as_float(0x7fffffff); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline float __int_as_float(int x) { return emulated::bits<float>(x); }
inline long long __double2ll_rn(double x) { return llrint(x); }
inline long long __double_as_longlong(double x) { return emulated::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated::bits<double>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.f / a; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return ::fma(a, b, c); }
inline float rsqrtf(float a) { return 1.f / sqrtf(a); }

// CUDA's min and max take mixed integers.
template <class A, class B>
inline std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B>
inline std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return (T)a < (T)b ? (T)b : (T)a;
}

#define memcpy emulated_memcpy

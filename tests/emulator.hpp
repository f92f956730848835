// What a CUDA kernel's text needs to run on a CPU: the threads of a block are fibers, each block in flight is a thread
// of the operating system. Fibers run in random order until they wait for each other, so that a barrier that is missing
// shows; blocks start in random order. Asynchronous copies arrive, and products of a warpgroup are carried out, when
// they are waited for, not before.
//
// Not emulated: the weak order of memory operations, what fences are for, bank conflicts, timing.

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#define __CUDA_ARCH__ 900
#define __device__
#define __global__
#define __host__
#define __constant__ const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local
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

// ---- Fibers ---------------------------------------------------------------------------------------------------

constexpr int WARP = 32;
constexpr size_t STACK = 256 << 10;

struct Copy {
    void* to;
    const void* from;
    size_t size, bytes;  // what is written, and how much of it is read: the rest is zeros
    int group;
};

struct Product {  // of a warpgroup's matrices, as far as one thread has to do with it
    void (*carry_out)(const Product&);
    float* d;
    int columns;
    bool add, a_in_shared, a_transposed, b_transposed;
    unsigned long long a, b;  // descriptors
    double rows[2][16];       // of A, if not in shared memory
    int group;
};

// A bulk copy of a box, whose rows have 128 bytes, to shared memory.
struct TensorMap {
    const char* from;
    long long lengths[3], pitches[2], box[3];  // numbers; pitches are of bytes
    int type;

    int size() const { return type == 11 ? 4 : 2; }
};

struct Box {
    unsigned to, barrier;
    TensorMap map;
    int at[3];
};

enum Wait { READY, AT_BLOCK, AT_WARP, DONE };

struct Fiber {
    ucontext_t begin;       // where it starts
    jmp_buf at;             // where it goes on
    bool begun;
    std::unique_ptr<char[]> stack{new char[STACK]};
    Wait wait;
    unsigned mask, named;   // the lanes it waits for, the barrier of the block it waits at
    bool vote;
    uint64_t given;         // to the other lanes of its warp
    int width;              // of the barrier it waits at, in threads
    std::vector<Copy> copies;
    int groups;  // of copies that have been ended
    std::vector<Product> products;
    int product_groups;
};

struct Shared {  // by the blocks of a launch
    std::atomic<bool> stop{false};
    std::string message;
    std::atomic_flag once = ATOMIC_FLAG_INIT;
    std::chrono::steady_clock::time_point deadline;
    void fail(const std::string& text) {
        if (!once.test_and_set()) {
            message = text;
            stop = true;
        }
    }
};

struct Stopped {};

struct Block {
    std::vector<Fiber>* fibers;
    jmp_buf scheduler;
    int now = 0;
    std::mt19937 random;
    Shared* shared;
    char* dynamic;
    size_t dynamic_bytes;
    void (*start)(void*);
    void* arguments;
    std::vector<Box> boxes;                 // under way
    std::map<unsigned, long long> awaited;  // by barrier: bytes of bulk copies to come
};

inline thread_local Block* block = nullptr;

inline Fiber& self() { return (*block->fibers)[block->now]; }

}  // namespace emulated

inline thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace emulated {

// A jump costs a fraction of what swapcontext does, which asks the operating system about signals.
inline void to_scheduler() {
    if (!_setjmp(self().at)) _longjmp(block->scheduler, 1);
    if (block->shared->stop) throw Stopped{};
}

__attribute__((noinline)) inline void to_fiber(Fiber& fiber) {
    if (_setjmp(block->scheduler)) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.begin);
}

// Lets other fibers and blocks go on; every wait for memory to change passes here.
inline void pause() { to_scheduler(); }

inline void wait_block(unsigned named = 0, int width = 0) {
    Fiber& me = self();
    me.wait = AT_BLOCK;
    me.named = named;
    me.width = width ? width : (int)block->fibers->size();
    to_scheduler();
}

inline void wait_warp(unsigned mask) {
    Fiber& me = self();
    if (!(mask >> (threadIdx.x % WARP) & 1)) {
        block->shared->fail("a lane calls a warp intrinsic whose mask leaves it out");
        throw Stopped{};
    }
    me.wait = AT_WARP;
    me.mask = mask;
    to_scheduler();
}

// Gives a value to the other lanes and calls `take` with all lanes' values before any of them can give the next.
template <class T, class Take>
auto exchange(unsigned mask, T value, Take take) {
    static_assert(sizeof(T) <= 8);
    memcpy(&self().given, &value, sizeof(T));
    wait_warp(mask);
    const int warp = block->now / WARP * WARP;
    const auto lane = [&](int at) {
        T theirs{};
        if (warp + at < (int)block->fibers->size()) memcpy(&theirs, &(*block->fibers)[warp + at].given, sizeof(T));
        if constexpr (std::is_pointer_v<T>)
            if (!theirs) throw std::runtime_error("a warp's instruction misses a lane");
        return theirs;
    };
    auto result = take(lane);
    wait_warp(mask);
    return result;
}

inline void fiber_main() {
    try {
        block->start(block->arguments);
    } catch (const Stopped&) {
    } catch (const std::exception& error) {
        block->shared->fail(error.what());
    }
    Fiber& me = self();
    if (!me.copies.empty()) block->shared->fail("a thread ends without waiting for its asynchronous copies");
    if (!me.products.empty()) block->shared->fail("a thread ends without waiting for its asynchronous products");
    me.given = 0;
    me.wait = DONE;
    _longjmp(block->scheduler, 1);
}

// Lets fibers pass whose companions have all arrived.
inline void release(std::vector<Fiber>& fibers) {
    const int threads = (int)fibers.size();
    for (int warp = 0; warp < threads; warp += WARP) {
        const int lanes = std::min(WARP, threads - warp);
        for (int lane = 0; lane < lanes; ++lane) {
            if (fibers[warp + lane].wait != AT_WARP) continue;
            const unsigned mask = fibers[warp + lane].mask & (lanes == WARP ? ~0u : (1u << lanes) - 1);
            bool all = true;
            for (int other = 0; other < lanes; ++other) {
                const Fiber& one = fibers[warp + other];
                if (mask >> other & 1)
                    all = all && (one.wait == DONE || (one.wait == AT_WARP && one.mask == fibers[warp + lane].mask));
            }
            for (int other = 0; all && other < lanes; ++other)
                if (mask >> other & 1 && fibers[warp + other].wait != DONE) fibers[warp + other].wait = READY;
        }
    }
    int arrived[16] = {}, gone = 0;
    for (auto& one : fibers) {
        if (one.wait == AT_BLOCK) ++arrived[one.named];
        gone += one.wait == DONE;
    }
    for (auto& one : fibers)
        if (one.wait == AT_BLOCK && arrived[one.named] >= std::min(one.width, threads - gone)) one.wait = READY;
}

inline void run_block(Block& mine) {
    block = &mine;
    auto& fibers = *mine.fibers;
    const int threads = (int)fibers.size();
    for (auto& fiber : fibers) {
        getcontext(&fiber.begin);
        fiber.begin.uc_stack.ss_sp = fiber.stack.get();
        fiber.begin.uc_stack.ss_size = STACK;
        fiber.begin.uc_link = nullptr;
        makecontext(&fiber.begin, fiber_main, 0);
        fiber.begun = false;
        fiber.wait = READY;
        fiber.copies.clear();
        fiber.groups = 0;
        fiber.products.clear();
        fiber.product_groups = 0;
    }
    std::vector<int> order(threads);
    for (int at = 0; at < threads; ++at) order[at] = at;
    for (int done = 0; done < threads;) {
        std::shuffle(order.begin(), order.end(), mine.random);
        bool ran = false, spins = true;
        for (int at : order) {
            if (fibers[at].wait != READY) continue;
            ran = true;
            mine.now = at;
            threadIdx = {(unsigned)at, 0, 0};
            to_fiber(fibers[at]);
            spins = spins && fibers[at].wait == READY;
            done += fibers[at].wait == DONE;
        }
        release(fibers);
        if (!ran && done < threads) {
            bool any = false;
            for (auto& fiber : fibers) any = any || fiber.wait == READY;
            if (!any) {
                if (!mine.shared->stop)
                    mine.shared->fail("deadlock: threads of a block wait at different barriers, or for lanes that are gone");
                for (auto& fiber : fibers)
                    if (fiber.wait != DONE) fiber.wait = READY;  // to be told to stop
            }
        }
        if (std::chrono::steady_clock::now() > mine.shared->deadline) mine.shared->fail("no progress in the time allowed");
        if (spins) sched_yield();  // other blocks have to go on first
    }
}

struct Launch {
    long long grid, threads, dynamic_bytes, in_flight, seed;
    double seconds;
};

// Runs a launch; returns an empty message, or why it failed.
inline std::string run(const Launch& launch, void (*start)(void*), void* arguments) {
    Shared shared;
    shared.deadline = std::chrono::steady_clock::now() + std::chrono::microseconds((long long)(launch.seconds * 1e6));
    std::mt19937 random(launch.seed);
    std::vector<long long> order(launch.grid);
    for (long long at = 0; at < launch.grid; ++at) order[at] = at;
    // The device may start blocks in any order, though it starts those of low numbers early.
    for (long long at = 0; at < launch.grid; at += 8)
        std::shuffle(order.begin() + at, order.begin() + std::min(at + 8, launch.grid), random);
    std::atomic<long long> next{0};
    const auto worker = [&](int number) {
        std::vector<Fiber> fibers(launch.threads);
        std::vector<char> memory(launch.dynamic_bytes + 1024);
        Block mine;
        mine.fibers = &fibers;
        mine.random.seed(launch.seed * 1000 + number);
        mine.shared = &shared;
        mine.dynamic = (char*)(((uintptr_t)memory.data() + 1023) & ~(uintptr_t)1023);
        mine.dynamic_bytes = launch.dynamic_bytes;
        mine.start = start;
        mine.arguments = arguments;
        blockDim = {(unsigned)launch.threads, 1, 1};
        gridDim = {(unsigned)launch.grid, 1, 1};
        for (long long at; !shared.stop && (at = next++) < launch.grid;) {
            blockIdx = {(unsigned)order[at], 0, 0};
            for (auto& byte : memory) byte = (char)0xcb;
            run_block(mine);
            if (!mine.boxes.empty()) shared.fail("a block ends without waiting for its bulk copies");
            mine.boxes.clear();
            mine.awaited.clear();
        }
    };
    std::vector<std::thread> workers;
    for (int number = 0; number < std::min(launch.in_flight, launch.grid); ++number) workers.emplace_back(worker, number);
    for (auto& one : workers) one.join();
    return shared.message;
}

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

inline float truncated(double x) {
    const float y = (float)x;
    if (!(fabs(x) < 0x1p128)) return y;
    return fabs((double)y) > fabs(x) ? bits<float>(bits<unsigned>(y) - 1) : y;
}

// ---- Shared memory by 32-bit addresses ------------------------------------------------------------------------

// An address is the number of a stretch of 1 MiB that has been asked for before, and the place in it.
inline thread_local std::vector<uintptr_t> stretches;

inline size_t to_shared(const void* pointer) {
    const uintptr_t stretch = (uintptr_t)pointer >> 20;
    auto found = std::find(stretches.begin(), stretches.end(), stretch);
    const size_t number = found - stretches.begin();
    if (found == stretches.end()) stretches.push_back(stretch);
    return number << 20 | ((uintptr_t)pointer & 0xfffff);
}

inline void* from_shared(unsigned address) {
    return (void*)(stretches.at(address >> 20) << 20 | (address & 0xfffff));
}

// ---- What PTX does --------------------------------------------------------------------------------------------

inline void copy_async(unsigned to, const void* from, size_t size, size_t bytes) {
    if (bytes > size) throw std::runtime_error("an asynchronous copy reads more than it writes");
    if ((bytes && (uintptr_t)from % size) || to % size)
        throw std::runtime_error("an asynchronous copy is not aligned");
    self().copies.push_back({from_shared(to), from, size, bytes, self().groups});
}

// Waits for the copies of all groups but the last `left`; those of no group yet count as one more.
inline void wait_copies(int left) {
    Fiber& me = self();
    std::vector<Copy> later;
    for (const auto& copy : me.copies) {
        if (copy.group >= me.groups - left) {
            later.push_back(copy);
            continue;
        }
        if (copy.bytes) memcpy(copy.to, copy.from, copy.bytes);
        memset((char*)copy.to + copy.bytes, 0, copy.size - copy.bytes);
    }
    me.copies = later;
}

// A barrier in shared memory: how many arrivals end its phase, how many are missing, and the phase's parity.
struct Barrier {
    int count : 31, parity : 1;
    unsigned missing;
};

inline Barrier& barrier(unsigned address) {
    if (address % 8) throw std::runtime_error("a barrier is not aligned");
    return *(Barrier*)from_shared(address);
}

inline void begin_barrier(unsigned address, int count) { barrier(address) = {count, 0, (unsigned)count}; }

inline void end_phase(unsigned address) {
    Barrier& one = barrier(address);
    if (one.missing || block->awaited[address]) return;
    one.missing = one.count;
    one.parity = ~one.parity;
}

inline void arrive(unsigned address, unsigned bytes = 0) {
    block->awaited[address] += bytes;
    --barrier(address).missing;
    end_phase(address);
}

inline void describe(unsigned address, const void* from, std::initializer_list<long long> lengths,
                     std::initializer_list<long long> pitches, std::initializer_list<long long> box, int type) {
    const unsigned* words = (const unsigned*)from_shared(address);
    if (address % 128 || std::any_of(words, words + 32, [](unsigned word) { return word != 0; }))
        throw std::runtime_error("a tensor map does not begin as 128 aligned zeros");
    TensorMap map;
    static_assert(sizeof(map) <= 128);
    map.from = (const char*)from, map.type = type;
    std::copy(lengths.begin(), lengths.end(), map.lengths);
    std::copy(pitches.begin(), pitches.end(), map.pitches);
    std::copy(box.begin(), box.end(), map.box);
    for (const long long pitch : {(long long)from, map.pitches[0], map.pitches[1]})
        if (pitch % 16 || pitch < 16) throw std::runtime_error("a tensor map's address or pitch is impossible");
    if (map.box[0] * map.size() != 128 || map.box[1] < 1 || map.box[1] > 256 || map.box[2] != 1)
        throw std::runtime_error("a tensor map's box is impossible");
    memcpy(from_shared(address), &map, sizeof(map));
}

inline void publish(void* to, unsigned from) { memcpy(to, from_shared(from), sizeof(TensorMap)); }

inline void copy_box(unsigned to, const void* map, int x, int y, int z, unsigned barrier) {
    if (to % 1024) throw std::runtime_error("a bulk copy is not aligned");
    block->boxes.push_back({to, barrier, *(const TensorMap*)map, {x, y, z}});
}

inline void carry_out(const Box& one) {
    const TensorMap& map = one.map;
    char* const to = (char*)from_shared(one.to);
    for (long long row = 0; row < map.box[1]; ++row)
        for (long long column = 0; column < map.box[0]; ++column) {
            const long long at[] = {one.at[0] + column, one.at[1] + row, one.at[2]};
            bool inside = true;
            for (int axis = 0; axis < 3; ++axis) inside = inside && at[axis] >= 0 && at[axis] < map.lengths[axis];
            unsigned word = 0;
            if (inside)
                memcpy(&word, map.from + at[2] * map.pitches[1] + at[1] * map.pitches[0] + at[0] * map.size(), map.size());
            if (map.type == 11) word = to_tf32<true>(bits<float>(word));
            memcpy(to + row * 128 + (column * map.size() ^ row % 8 * 16), &word, map.size());
        }
    block->awaited[one.barrier] -= map.box[1] * 128;
}

// As if the copies of the thread had come at once.
inline void arrive_when_copied(unsigned address) {
    wait_copies(-1);
    arrive(address);
}

inline bool has_ended(unsigned address, int parity) {
    pause();
    auto& boxes = block->boxes;
    for (size_t at = boxes.size(); at-- > 0;)
        if (boxes[at].barrier == address && block->random() % 2) {
            carry_out(boxes[at]);
            boxes.erase(boxes.begin() + at);
            end_phase(address);
        }
    return (barrier(address).parity & 1) != parity;
}

using Word16 = unsigned __int128;

inline void store16(void* to, unsigned long long low, unsigned long long high) {
    // One store that is seen whole: SSE's aligned stores are, on every processor with AVX.
    typedef long long Vector __attribute__((vector_size(16)));
    *(volatile Vector*)to = Vector{(long long)low, (long long)high};
}

inline void load16(const void* from, unsigned long long& low, unsigned long long& high) {
    typedef long long Vector __attribute__((vector_size(16)));
    const Vector word = *(const volatile Vector*)from;
    low = (unsigned long long)word[0];
    high = (unsigned long long)word[1];
    pause();
}

template <class T>
void store(T* to, T value) {
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
}

template <class T>
T load(const void* from) {
    const T value = __atomic_load_n((const T*)from, __ATOMIC_ACQUIRE);
    pause();
    return value;
}

// ---- Matrices of a warp ---------------------------------------------------------------------------------------

// Lane 8 i + r gives the address of row r of matrix i. Of each matrix, lane 4 r + c gets two neighbours of row r, or of
// column r if transposed.
template <bool TRANSPOSED>
void load_matrices(unsigned row, unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
    if (row % 16) throw std::runtime_error("a row of a matrix is not aligned");
    unsigned* const to[] = {&a, &b, &c, &d};
    const int first = threadIdx.x % WARP / 4, second = threadIdx.x % 4 * 2;
    exchange(~0u, row, [&](auto of) {
        for (int matrix = 0; matrix < 4; ++matrix) {
            const auto element = [&](int r, int c) {
                return (unsigned)((const unsigned short*)from_shared(of(8 * matrix + r)))[c];
            };
            const unsigned low = TRANSPOSED ? element(second, first) : element(first, second);
            const unsigned high = TRANSPOSED ? element(second + 1, first) : element(first, second + 1);
            *to[matrix] = low | high << 16;
        }
        return 0;
    });
}

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

// Products of two floats are exact and their sum is nearly so before it is truncated, which is what tensor cores seem
// to do but for the last bits; doubles are added up one by one.
inline float sum(float c, const double* a, const double* b, int k) {
    double all = c;
    for (int at = 0; at < k; ++at) all += a[at] * b[at];
    return truncated(all);
}
inline double sum(double c, const double* a, const double* b, int k) {
    for (int at = 0; at < k; ++at) c = ::fma(a[at], b[at], c);
    return c;
}

// The numbers that lane 4 g + t holds of rows g and g + 8 of A, in turn, and of column g of B: PACKED of each stretch
// of 4 PACKED.
template <int REGISTERS, int PACKED>
struct Numbers {
    double a[2 * REGISTERS][PACKED], b[REGISTERS][PACKED];
};

template <int REGISTERS, int PACKED, class Of>
void row(double* to, int g, int half, Of of) {
    for (int t = 0; t < 4; ++t) {
        const Numbers<REGISTERS, PACKED>& theirs = *of(4 * g + t);
        for (int at = 0; at < REGISTERS; ++at)
            for (int one = 0; one < PACKED; ++one) to[(4 * at + t) * PACKED + one] = theirs.a[2 * at + half][one];
    }
}

template <int REGISTERS, int PACKED, class Of>
void column(double* to, int g, Of of) {
    for (int t = 0; t < 4; ++t) {
        const Numbers<REGISTERS, PACKED>& theirs = *of(4 * g + t);
        for (int at = 0; at < REGISTERS; ++at)
            for (int one = 0; one < PACKED; ++one) to[(4 * at + t) * PACKED + one] = theirs.b[at][one];
    }
}

template <class T>
Numbers<2, T::PACKED> numbers(const typename T::Register* a, const typename T::Register* b) {
    Numbers<2, T::PACKED> all;
    for (int at = 0; at < 4; ++at)
        for (int one = 0; one < T::PACKED; ++one) all.a[at][one] = T::number(a[at], one);
    for (int at = 0; at < 2; ++at)
        for (int one = 0; one < T::PACKED; ++one) all.b[at][one] = T::number(b[at], one);
    return all;
}

// D += A B of 16 x 8 numbers: the warp's lanes give what they hold to each other.
template <class T>
void multiply(const typename T::Register (&a)[4], const typename T::Register (&b)[2], typename T::Sum& d0,
              typename T::Sum& d1, typename T::Sum& d2, typename T::Sum& d3) {
    constexpr int P = T::PACKED, K = 8 * P;
    const auto mine = numbers<T>(a, b);
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    exchange(~0u, &mine, [&](auto of) {
        double rows[2][K], columns[2][K];
        for (int half = 0; half < 2; ++half) {
            row<2, P>(rows[half], g, half, of);
            column<2, P>(columns[half], 2 * t + half, of);
        }
        d0 = sum(d0, rows[0], columns[0], K);
        d1 = sum(d1, rows[0], columns[1], K);
        d2 = sum(d2, rows[1], columns[0], K);
        d3 = sum(d3, rows[1], columns[1], K);
        return 0;
    });
}

// D += A B of 8 x 4 and 4 x 8 doubles.
inline void multiply4(double a, double b, double& d0, double& d1) {
    const Numbers<1, 1> mine{{{a}}, {{b}}};
    const int g = threadIdx.x % WARP / 4, t = threadIdx.x % 4;
    exchange(~0u, &mine, [&](auto of) {
        double rows[4], columns[2][4];
        row<1, 1>(rows, g, 0, of);
        for (int half = 0; half < 2; ++half) column<1, 1>(columns[half], 2 * t + half, of);
        d0 = sum(d0, rows, columns[0], 4);
        d1 = sum(d1, rows, columns[1], 4);
        return 0;
    });
}

// ---- Matrices of a warpgroup ----------------------------------------------------------------------------------

// Row r of A or column r of B, by a descriptor of where it lies in dynamic shared memory.
template <class T>
void read(double* to, unsigned long long descriptor, bool transposed, int r) {
    constexpr int SIZE = 4 / T::PACKED;
    const auto field = [&](int bit) { return (size_t)(descriptor >> bit & 0x3fff) << 4; };
    const size_t start = field(0), leading = field(16), stride = field(32);
    const bool swizzled = descriptor >> 62;
    for (int k = 0; k < 8 * T::PACKED; ++k) {
        size_t at = start;
        if (swizzled && transposed)
            at += r / 64 * leading + r % 64 * SIZE + k / 8 * stride + k % 8 * 128;
        else if (swizzled)
            at += r / 8 * stride + r % 8 * 128 + k * SIZE;
        else if (transposed)
            at += r / 8 * stride + r % 8 * SIZE + k / 8 * leading + k % 8 * 16;
        else
            at += r / 8 * stride + r % 8 * 16 + k * SIZE / 16 * leading + k * SIZE % 16;
        if (swizzled) at ^= at >> 3 & 0x70;
        const size_t place = (at - (uintptr_t)block->dynamic) & 0x3ffff;  // a descriptor has the last 18 bits
        if (place + SIZE > block->dynamic_bytes) throw std::runtime_error("a matrix lies outside shared memory");
        unsigned word = 0;
        memcpy(&word, block->dynamic + place, SIZE);
        to[k] = T::number(word, 0);
    }
}

template <class T>
void carry_out(const Product& one) {
    constexpr int K = 8 * T::PACKED;
    const int thread = threadIdx.x % 128, g = thread % WARP / 4, t = thread % 4;
    double rows[2][K];
    for (int half = 0; half < 2; ++half)
        if (one.a_in_shared)
            read<T>(rows[half], one.a, one.a_transposed, thread / WARP * 16 + 8 * half + g);
        else
            std::copy_n(one.rows[half], K, rows[half]);
    for (int at = 0; at < one.columns / 2; at += 4)
        for (int next = 0; next < 2; ++next) {
            double column[K];
            read<T>(column, one.b, one.b_transposed, 2 * at + 2 * t + next);
            for (int half = 0; half < 2; ++half) {
                float& d = one.d[at + 2 * half + next];
                d = sum(one.add ? d : 0.f, rows[half], column, K);
            }
        }
}

// D = A B, or D += A B, of 64 x 8 PACKED and 8 PACKED x N numbers, once it is waited for: shared memory is read then,
// and the accumulators stay what they are until then.
inline void check_descriptor(unsigned long long descriptor) {
    if (descriptor >> 62 > 1 || descriptor >> 49 & 7) throw std::runtime_error("a swizzle that is not emulated");
}

template <class T>
Product& new_product(std::initializer_list<float*> d, unsigned long long b, bool add, bool b_transposed) {
    float* const first = *d.begin();
    for (size_t at = 0; at < d.size(); ++at)
        if (d.begin()[at] != first + at) throw std::runtime_error("accumulators do not lie side by side");
    Product one{carry_out<T>, first, 2 * (int)d.size(), add};
    one.b = b;
    one.b_transposed = b_transposed;
    one.group = self().product_groups;
    check_descriptor(b);
    self().products.push_back(one);
    return self().products.back();
}

template <class T>
void multiply_later(std::initializer_list<float*> d, unsigned long long a, unsigned long long b, bool add,
                    bool a_transposed = false, bool b_transposed = false) {
    check_descriptor(a);
    Product& one = new_product<T>(d, b, add, b_transposed);
    one.a_in_shared = true;
    one.a = a;
    one.a_transposed = a_transposed;
}

template <class T>
void multiply_later(std::initializer_list<float*> d, const unsigned (&a)[4], unsigned long long b, bool add,
                    bool b_transposed = false) {
    Product& one = new_product<T>(d, b, add, b_transposed);
    const unsigned none[2] = {};
    const auto mine = numbers<T>(a, none);
    exchange(~0u, &mine, [&](auto of) {
        for (int half = 0; half < 2; ++half) row<2, T::PACKED>(one.rows[half], threadIdx.x % WARP / 4, half, of);
        return 0;
    });
}

// Waits for the products of all groups but the last `left`.
inline void wait_products(int left) {
    Fiber& me = self();
    std::vector<Product> later;
    for (const auto& one : me.products)
        if (one.group < me.product_groups - left)
            one.carry_out(one);
        else
            later.push_back(one);
    me.products = later;
}

}  // namespace emulated

// ---- CUDA's functions -----------------------------------------------------------------------------------------

inline void __syncthreads() { emulated::wait_block(); }
inline void __syncwarp(unsigned mask = ~0u) { emulated::wait_warp(mask); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { __threadfence(); }
inline void __nanosleep(unsigned) { emulated::pause(); }
inline void __trap() { throw std::runtime_error("the kernel trapped"); }
inline size_t __cvta_generic_to_shared(const void* pointer) { return emulated::to_shared(pointer); }
inline long long clock64() { return std::chrono::steady_clock::now().time_since_epoch().count() + (emulated::pause(), 0); }

inline int __syncthreads_count(int predicate) {
    emulated::self().vote = predicate != 0;
    __syncthreads();
    int count = 0;
    for (auto& fiber : *emulated::block->fibers) count += fiber.vote;
    __syncthreads();
    return count;
}
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(predicate) == (int)blockDim.x; }

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
    const int mine = threadIdx.x % 32;
    return emulated::exchange(mask, value, [&](auto of) { return of((mine & ~(width - 1)) | (lane & (width - 1))); });
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int mine = threadIdx.x % 32, from = mine - (int)distance;
    return emulated::exchange(mask, value, [&](auto of) { return from < (mine & ~(width - 1)) ? value : of(from); });
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int mine = threadIdx.x % 32, from = mine + (int)distance;
    return emulated::exchange(mask, value, [&](auto of) { return from > (mine | (width - 1)) ? value : of(from); });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
    const int mine = threadIdx.x % 32, from = mine ^ lanes;
    return emulated::exchange(mask, value, [&](auto of) { return from > (mine | (width - 1)) ? value : of(from); });
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulated::exchange(mask, predicate != 0, [&](auto of) {
        unsigned votes = 0;
        for (int lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1 && of(lane)) votes |= 1u << lane;
        return votes;
    });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }
template <class T>
unsigned __match_any_sync(unsigned mask, T value) {
    return emulated::exchange(mask, value, [&](auto of) {
        unsigned same = 0;
        for (int lane = 0; lane < 32; ++lane)
            if (mask >> lane & 1 && of(lane) == value) same |= 1u << lane;
        return same;
    });
}
#define REDUCE(name, type, expression)                                        \
    inline type __reduce_##name##_sync(unsigned mask, type value) {           \
        return emulated::exchange(mask, value, [&](auto of) {                 \
            type a = value;                                                   \
            for (int lane = 0; lane < 32; ++lane)                             \
                if (mask >> lane & 1 && lane != (int)(threadIdx.x % 32)) {    \
                    const type b = of(lane);                                  \
                    a = expression;                                           \
                }                                                             \
            return a;                                                         \
        });                                                                   \
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
    T before, after;
    __atomic_load(at, &before, __ATOMIC_SEQ_CST);
    do {
        after = change(before);
    } while (!__atomic_compare_exchange(at, &before, &after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (block->random() % 8 == 0) pause();
    return before;
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
    if ((uintptr_t)from % alignof(T)) throw std::runtime_error("a load is not aligned");
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
inline float __int_as_float(int x) { return emulated::bits<float>(x); }
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

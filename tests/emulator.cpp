// How a CUDA kernel's text runs on a CPU: the threads of a block are fibers, each block in flight is a thread of the
// operating system. Fibers run in random order until they wait for each other; blocks start in random order.
// Asynchronous copies arrive, and products of a warpgroup are carried out, when they are waited for, not before.
//
// What is watched, for the compiler calls this file before every access to memory:
//   Shared memory, the static variables too, is poison when a block begins. Two accesses to it, one of them a write, by
//   different threads between which nothing puts an order are a race, whoever came first: barriers of a block or a warp
//   do, and those in shared memory; what a warp's lanes give each other does not. A write that changes nothing is none,
//   nor are two atomic operations. What tensor cores read must have been shown to them. What a block does to scratch
//   that is zero between launches is watched in the same way.
//   Scratch by which blocks tell each other what they have found: between a write and a read by another block there
//   must be a fence and an atomic operation on the one side, an atomic operation and a fence on the other.
//   Other memory: what lies right before or behind what a launch is given is not to be touched.
//
// Not emulated: the weak order of other operations on memory, bank conflicts, timing.
//
// C. Flanagan and S. N. Freund, FastTrack: Efficient and Precise Dynamic Race Detection, PLDI 2009.

#include <link.h>
#include <sched.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "emulator.hpp"

#undef memcpy
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace emulated {

constexpr int WARP = 32;

// ---- What is known of memory ----------------------------------------------------------------------------------

// When something happened in a block: a count that goes on where threads have waited for each other.
using Time = uint32_t;

enum Kind : uint8_t { READ, WRITE, ATOMIC, SHOWN };  // SHOWN: a write that the tensor cores and bulk copies see

// Who wrote a place last, and some of those who have read it since.
struct Cell {
    Time written;
    uint16_t writer;
    Kind kind;
    struct Reader {
        Time time;
        uint16_t thread;
    } readers[3];
};

// Shared memory: a cell for every 4 bytes, and for every single one where less is accessed.
struct Region {
    char* begin = nullptr;
    size_t bytes = 0;
    std::vector<Cell> cells, fine;
    std::vector<bool> split;

    void set(char* from, size_t size) {
        begin = from, bytes = size;
        cells.resize(size / 4 + 1), split.resize(size / 4 + 1);
    }
};

// Who wrote 4 bytes of scratch last: the block + 1, the thread, and how many fences it had passed.
using Writer = uint64_t;

// ---- Fibers ---------------------------------------------------------------------------------------------------

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
    int thread;  // that has begun it, and when
    Time time;
};

enum Wait { READY, AT_BLOCK, AT_WARP, FOR_LANES, DONE };

struct Fiber {
    ucontext_t begin;       // where it starts
    jmp_buf at;             // where it goes on
    bool begun;
    std::unique_ptr<char[]> stack{new char[STACK]};
    Wait wait;
    unsigned mask, named;   // the lanes it waits for, the barrier of the block it waits at
    bool vote;
    int width;              // of the barrier it waits at, in threads
    std::vector<Copy> copies;
    int groups;  // of copies that have been ended
    std::vector<Product> products;
    int product_groups;
    bool may_multiply;  // its registers have been shown since it waited for products
    std::vector<Time> known, shown;  // of each thread, up to when its accesses come before; were shown to tensor cores
    unsigned fences;                 // passed; those of the block when it last passed a barrier are in `fences_known`
    long long fenced;                // the number of the block's atomic operations at the last fence
};

struct Launched {  // what the blocks of a launch share
    std::atomic<bool> stop{false};
    std::string message;
    std::atomic_flag once = ATOMIC_FLAG_INIT;
    std::chrono::steady_clock::time_point deadline;
    struct Scratch {
        char* begin;
        std::vector<std::atomic<Writer>> writers;
    } scratch[2];
    const Launch* launch;
    std::mutex lock;
    std::map<long long, std::vector<unsigned>> released;  // by block: the fences before its last atomic operation
    void fail(const std::string& text) {
        if (!once.test_and_set()) {
            message = text;
            stop = true;
        }
    }
};

struct Stopped {};

struct Order {  // that a barrier in shared memory puts
    std::vector<Time> coming, known, coming_shown, shown;  // of the phase under way, of those that have ended
};

struct Block {
    std::vector<Fiber>* fibers;
    jmp_buf scheduler;
    int now = 0;
    uint3 thread, number, threads, blocks;
    std::mt19937 random;
    Launched* shared;
    char* dynamic;
    size_t dynamic_bytes;
    void (*start)(void*);
    void* arguments;
    std::vector<uint64_t> given, taken;     // to the other lanes of a warp; when all had come
    int votes;                              // for a condition, when all had come
    std::vector<Box> boxes;                 // under way
    std::map<unsigned, long long> awaited;  // by barrier: bytes of bulk copies to come
    std::vector<uintptr_t> stretches;

    Region regions[3];  // dynamic shared memory, static, scratch that is zero between launches
    Time time = 1, floor = 1;
    std::vector<Time> warp_floors;    // what a warp did before comes before
    std::map<unsigned, Order> orders;  // by barrier in shared memory
    std::vector<unsigned> fences_known;
    long long atomics = 0;
    // The access under way; and a write of which it turns out later whether it changes anything.
    char* place;
    size_t size;
    struct {
        char* at;
        size_t size = 0;
        char before[256];
        std::string text;
    } suspect;
};

static __thread Block* block = nullptr;

static Fiber& self() { return (*block->fibers)[block->now]; }

uint3 thread_index() { return block->thread; }
uint3 block_index() { return block->number; }
uint3 block_size() { return block->threads; }
uint3 grid_size() { return block->blocks; }
char* dynamic_memory() { return block->dynamic; }

void refuse(const char* text) { throw std::runtime_error(text); }

// ---- Races ----------------------------------------------------------------------------------------------------

// Returns whether what a thread did comes before what this one does now.
static bool ordered(const Block& mine, int thread, Time time) {
    if (time < mine.floor || thread == mine.now) return true;
    if (thread / WARP == mine.now / WARP && time < mine.warp_floors[thread / WARP]) return true;
    const auto& known = (*mine.fibers)[mine.now].known;
    return !known.empty() && time <= known[thread];
}

static void clear_suspect() {
    auto& one = block->suspect;
    if (one.size && memcmp(one.at, one.before, one.size) != 0) block->shared->fail(one.text);
    one.size = 0;
}

static std::string race(const char* doing, const char* done, int other, const Region& region, size_t at) {
    const char* const names[] = {"dynamic shared memory", "static shared memory", "zeroed scratch"};
    return "race: thread " + std::to_string(block->now) + " " + doing + " what thread " + std::to_string(other) + " " +
           done + ", at byte " + std::to_string(at) + " of " + names[&region - block->regions] +
           ", and no barrier is between them";
}

// Reports a race unless the write that is under way changes nothing.
static void suspect(const std::string& text) {
    auto& one = block->suspect;
    if (block->size > sizeof(one.before)) return block->shared->fail(text);
    if (one.size) return;  // by another part of the same write
    one.at = block->place, one.size = block->size, one.text = text;
    memcpy(one.before, one.at, one.size);
}

static void touch(Region& region, Cell& cell, size_t at, Kind kind) {
    Block& mine = *block;
    const bool after = ordered(mine, cell.writer, cell.written);
    if (kind == READ) {
        if (!after) return mine.shared->fail(race("reads", "writes", cell.writer, region, at));
        Cell::Reader* free = nullptr;
        for (auto& one : cell.readers)
            if (one.thread == mine.now || ordered(mine, one.thread, one.time)) free = &one;
        if (!free) free = &cell.readers[mine.random() % 3];
        *free = {mine.time, (uint16_t)mine.now};
        return;
    }
    if (!after && !(kind == ATOMIC && cell.kind == ATOMIC))
        suspect(race("writes", "writes", cell.writer, region, at));
    for (auto& one : cell.readers) {
        if (!ordered(mine, one.thread, one.time)) suspect(race("writes", "reads", one.thread, region, at));
        one.time = 0;
    }
    cell.written = mine.time, cell.writer = (uint16_t)mine.now, cell.kind = kind;
}

template <class Each>
static void each_cell(Region& region, size_t at, size_t size, Each each) {
    for (size_t four = at / 4; four <= (at + size - 1) / 4; ++four) {
        const size_t begin = std::max(at, 4 * four), end = std::min(at + size, 4 * four + 4);
        if (end - begin == 4 && !region.split[four]) {
            each(region.cells[four], begin);
            continue;
        }
        if (region.fine.empty()) region.fine.resize(4 * region.cells.size());
        if (!region.split[four]) std::fill_n(&region.fine[4 * four], 4, region.cells[four]);
        region.split[four] = true;
        for (size_t one = begin; one < end; ++one) each(region.fine[one], one);
    }
}

static Region* region_of(const void* place, size_t& at) {
    for (auto& region : block->regions)
        if ((at = (char*)place - region.begin) < region.bytes) return &region;
    return nullptr;
}

static void watch_scratch(const void* place, size_t size, Kind kind) {
    for (auto& scratch : block->shared->scratch) {
        const size_t at = (char*)place - scratch.begin;
        if (at / 4 >= scratch.writers.size()) continue;
        const unsigned me = block->number.x + 1;
        const Fiber& fiber = self();
        for (size_t four = at / 4; four <= (at + size - 1) / 4 && four < scratch.writers.size(); ++four) {
            if (kind == WRITE) {
                scratch.writers[four].store((Writer)me << 32 | (Writer)block->now << 20 | (fiber.fences & 0xfffff),
                                            std::memory_order_relaxed);
                continue;
            }
            const Writer writer = scratch.writers[four].load(std::memory_order_relaxed);
            const unsigned other = writer >> 32, thread = writer >> 20 & 0xfff, fences = writer & 0xfffff;
            if (other == 0 || other == me) continue;
            bool released;
            {
                const std::lock_guard<std::mutex> guard(block->shared->lock);
                const auto found = block->shared->released.find(other);
                released = found != block->shared->released.end() && found->second[thread] > fences;
            }
            const std::string text = "race: a block reads scratch that another has written, and no fence is between ";
            if (!released)
                block->shared->fail(text + "the write and an atomic operation");
            else if (block->atomics == 0 || fiber.fenced != block->atomics)
                block->shared->fail(text + "an atomic operation and the read");
        }
    }
}

// Ends the thread before an access that might end the process.
[[noreturn]] static void fail_at_once(const std::string& text) {
    block->shared->fail(text);
    self().wait = DONE;
    _longjmp(block->scheduler, 1);
}

// How far from what a launch is given another access is an error; the tests leave at least as much between arrays.
constexpr size_t NEAR = 256;

// Ends the thread unless what an instruction accesses is given to the launch.
static void check_given(const void* place, size_t size) {
    const Launch& launch = *block->shared->launch;
    for (const Given* one = launch.given; one < launch.given + launch.count; ++one)
        if ((size_t)((char*)place - one->begin) + size <= (size_t)one->bytes) return;
    fail_at_once("a relaxed access outside of what the launch is given");
}

static void watch_given(const void* place, size_t size, Kind kind) {
    const Launch& launch = *block->shared->launch;
    const Given* close = nullptr;
    for (const Given* one = launch.given; one < launch.given + launch.count; ++one) {
        const size_t at = (char*)place - one->begin, bytes = one->bytes;
        if (at < bytes && size <= bytes - at) {
            if (one >= launch.given + launch.count - 2) watch_scratch(place, size, kind == READ ? READ : WRITE);
            return;
        }
        if (bytes && at + NEAR < bytes + 2 * NEAR) close = one;
    }
    if (close) fail_at_once(std::string("the kernel ") + (kind == READ ? "read" : "wrote") + " outside " + close->name);
}

static void watch(const void* place, size_t size, Kind kind) {
    if (!block || (size_t)((char*)place - self().stack.get()) < STACK) return;
    size_t at;
    Region* const region = region_of(place, at);
    if (block->suspect.size) clear_suspect();
    if (region) {
        block->place = region->begin + at, block->size = size = std::min(size, region->bytes - at);
        if (block->shared->launch->races)
            each_cell(*region, at, size, [&](Cell& cell, size_t one) { touch(*region, cell, one, kind); });
    } else if ((at = (char*)place - block->dynamic + 1024) < block->dynamic_bytes + 2048) {
        fail_at_once("an access beyond the shared memory of the launch");
    } else {
        watch_given(place, size, kind);
    }
}

// Notes a read of a tensor core.
static void watch_product(const void* place, size_t size) {
    size_t at;
    Region* const region = region_of(place, at);
    if (!region) return;
    each_cell(*region, at, size, [&](Cell& cell, size_t one) {
        touch(*region, cell, one, READ);
        const auto& shown = self().shown;
        if (cell.kind != SHOWN && cell.written && (shown.empty() || cell.written > shown[cell.writer]))
            block->shared->fail("a tensor core reads shared memory that was written and not shown to it");
    });
}

// Of all threads, up to when their accesses come before what this one does now.
static void put_known(std::vector<Time>& known) {
    const Block& mine = *block;
    const auto& before = (*mine.fibers)[mine.now].known;
    known.resize(mine.fibers->size());
    for (size_t thread = 0; thread < known.size(); ++thread) {
        Time time = mine.floor - 1;
        if ((int)thread / WARP == mine.now / WARP) time = std::max(time, mine.warp_floors[thread / WARP] - 1);
        if (!before.empty()) time = std::max(time, before[thread]);
        if ((int)thread == mine.now) time = mine.time;
        known[thread] = std::max(known[thread], time);
    }
}

static void join(std::vector<Time>& to, const std::vector<Time>& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t at = 0; at < from.size(); ++at) to[at] = std::max(to[at], from[at]);
}

// Lets all of some threads know what one of them does.
static void join_all(std::vector<Fiber>& fibers, int first, int count, Wait wait, unsigned named) {
    std::vector<Time> known, shown;
    for (int at = first; at < first + count; ++at) {
        const Fiber& one = fibers[at];
        if (one.wait != wait || (wait == AT_BLOCK && one.named != named)) continue;
        join(known, one.known), join(shown, one.shown);
        if (wait == AT_BLOCK && named) {
            known.resize(fibers.size());
            known[at] = block->time;
        }
    }
    if (!known.empty() || !shown.empty())
        for (int at = first; at < first + count; ++at)
            if (fibers[at].wait == wait && (wait != AT_BLOCK || fibers[at].named == named))
                join(fibers[at].known, known), join(fibers[at].shown, shown);
}

void show() {
    put_known(self().shown);
    ++block->time;
}

void fence() {
    ++self().fences;
    self().fenced = block->atomics;
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

// ---- Waiting --------------------------------------------------------------------------------------------------

// A jump costs a fraction of what swapcontext does, which asks the operating system about signals.
static void to_scheduler() {
    if (block->suspect.size) clear_suspect();
    if (!_setjmp(self().at)) _longjmp(block->scheduler, 1);
    if (block->shared->stop) throw Stopped{};
}

__attribute__((noinline)) static void to_fiber(Fiber& fiber) {
    if (_setjmp(block->scheduler)) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.begin);
}

// Lets other fibers and blocks go on; every wait for memory to change passes here.
void pause() { to_scheduler(); }

long long clock() {
    pause();
    return std::chrono::steady_clock::now().time_since_epoch().count();
}

void wait_block(unsigned named, int width) {
    Fiber& me = self();
    me.wait = AT_BLOCK;
    me.named = named;
    me.width = width ? width : (int)block->fibers->size();
    to_scheduler();
}

int count_block(int predicate) {
    self().vote = predicate != 0;
    wait_block();
    return block->votes;
}

static void wait_lanes(unsigned mask, Wait wait) {
    Fiber& me = self();
    if (!(mask >> (block->now % WARP) & 1)) {
        block->shared->fail("a lane calls a warp intrinsic whose mask leaves it out");
        throw Stopped{};
    }
    me.wait = wait;
    me.mask = mask;
    to_scheduler();
}

void wait_warp(unsigned mask) { wait_lanes(mask, AT_WARP); }

// Gives a number to the other lanes, and returns those of all, which stay until this thread waits again.
const uint64_t* from_all(unsigned mask, uint64_t mine) {
    block->given[block->now] = mine;
    wait_lanes(mask, FOR_LANES);
    return &block->taken[block->now / WARP * WARP];
}

uint64_t from_lane(unsigned mask, uint64_t mine, int lane) { return from_all(mask, mine)[lane]; }

unsigned ballot(unsigned mask, bool mine) {
    const uint64_t* const words = from_all(mask, mine);
    unsigned votes = 0;
    for (int lane = 0; lane < WARP; ++lane) votes |= (unsigned)(words[lane] != 0) << lane;
    return votes & mask;
}

unsigned lanes_alike(unsigned mask, uint64_t mine) {
    const uint64_t* const words = from_all(mask, mine);
    unsigned same = 0;
    for (int lane = 0; lane < WARP; ++lane) same |= (unsigned)(words[lane] == mine) << lane;
    return same & mask;
}

// Gives a place to the other lanes and calls `take` with a function that returns those of all of them.
template <class T, class Take>
static void exchange(unsigned mask, const T* place, Take take) {
    const uint64_t* const words = from_all(mask, (uintptr_t)place);
    take([&](int lane) {
        if (!words[lane]) throw std::runtime_error("a warp's instruction misses a lane");
        return (const T*)(uintptr_t)words[lane];
    });
    wait_lanes(mask, FOR_LANES);  // the places are there until all have taken from them
}

static void fiber_main() {
    try {
        block->start(block->arguments);
    } catch (const Stopped&) {
    } catch (const std::exception& error) {
        block->shared->fail(error.what());
    }
    Fiber& me = self();
    if (block->suspect.size) clear_suspect();
    if (!me.copies.empty()) block->shared->fail("a thread ends without waiting for its asynchronous copies");
    if (!me.products.empty()) block->shared->fail("a thread ends without waiting for its asynchronous products");
    block->given[block->now] = 0;
    me.wait = DONE;
    _longjmp(block->scheduler, 1);
}

// Lets fibers pass whose companions have all arrived.
static void release(Block& mine) {
    auto& fibers = *mine.fibers;
    const int threads = (int)fibers.size();
    for (int warp = 0; warp < threads; warp += WARP) {
        const int lanes = std::min(WARP, threads - warp);
        for (int lane = 0; lane < lanes; ++lane) {
            const Wait wait = fibers[warp + lane].wait;
            if (wait != AT_WARP && wait != FOR_LANES) continue;
            const unsigned mask = fibers[warp + lane].mask & (lanes == WARP ? ~0u : (1u << lanes) - 1);
            bool all = true;
            for (int other = 0; other < lanes; ++other) {
                const Fiber& one = fibers[warp + other];
                if (mask >> other & 1)
                    all = all && (one.wait == DONE || (one.wait == wait && one.mask == fibers[warp + lane].mask));
            }
            if (!all) continue;
            if (wait == AT_WARP) {
                join_all(fibers, warp, lanes, AT_WARP, 0);
                mine.warp_floors[warp / WARP] = ++mine.time;
            }
            for (int other = 0; other < lanes; ++other)
                if (mask >> other & 1) {
                    mine.taken[warp + other] = mine.given[warp + other];
                    if (fibers[warp + other].wait != DONE) fibers[warp + other].wait = READY;
                }
        }
    }
    int arrived[16] = {}, gone = 0;
    for (auto& one : fibers) {
        if (one.wait == AT_BLOCK) ++arrived[one.named];
        gone += one.wait == DONE;
    }
    for (unsigned named = 0; named < 16; ++named) {
        if (!arrived[named]) continue;
        const bool passes = std::any_of(fibers.begin(), fibers.end(), [&](const Fiber& one) {
            return one.wait == AT_BLOCK && one.named == named && arrived[named] >= std::min(one.width, threads - gone);
        });
        if (!passes) continue;
        join_all(fibers, 0, threads, AT_BLOCK, named);
        ++mine.time;
        if (arrived[named] + gone == threads) mine.floor = mine.time;
        mine.votes = 0;
        for (int at = 0; at < threads; ++at) {
            Fiber& one = fibers[at];
            if (one.wait == AT_BLOCK && one.named == named) {
                one.wait = READY;
                mine.votes += one.vote;
                mine.fences_known[at] = one.fences;
            }
        }
    }
}

static void run_block(Block& mine) {
    block = &mine;
    auto& fibers = *mine.fibers;
    const int threads = (int)fibers.size();
    mine.floor = ++mine.time;
    mine.atomics = 0;
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
        fiber.may_multiply = false;
        fiber.vote = false;
        fiber.fences = 0;
        fiber.fenced = -1;
    }
    std::fill(mine.fences_known.begin(), mine.fences_known.end(), 0);
    std::vector<int> order(threads);
    for (int at = 0; at < threads; ++at) order[at] = at;
    for (int done = 0; done < threads;) {
        std::shuffle(order.begin(), order.end(), mine.random);
        bool ran = false, spins = true;
        for (int at : order) {
            if (fibers[at].wait != READY) continue;
            ran = true;
            mine.now = at;
            mine.thread = {(unsigned)at, 0, 0};
            to_fiber(fibers[at]);
            spins = spins && fibers[at].wait == READY;
            done += fibers[at].wait == DONE;
        }
        release(mine);
        if (!ran && done < threads) {
            bool any = false;
            for (auto& fiber : fibers) any = any || fiber.wait == READY;
            if (!any) {
                if (!mine.shared->stop)
                    mine.shared->fail(
                        "deadlock: threads of a block wait at different barriers, or for lanes that are gone");
                for (auto& fiber : fibers)
                    if (fiber.wait != DONE) fiber.wait = READY;  // to be told to stop
            }
        }
        if (std::chrono::steady_clock::now() > mine.shared->deadline)
            mine.shared->fail("no progress in the time allowed");
        if (spins) sched_yield();  // other blocks have to go on first
    }
}

// ---- Launches -------------------------------------------------------------------------------------------------

// Finds the static variables of this library that belong to the calling thread: all that are thread_local. That of this
// file is `block`.
static int find_statics(dl_phdr_info* info, size_t, void* found) {
    for (int at = 0; at < info->dlpi_phnum; ++at) {
        const auto& part = info->dlpi_phdr[at];
        const size_t offset = (char*)&block - (char*)info->dlpi_tls_data;
        if (part.p_type == PT_TLS && info->dlpi_tls_data && offset < part.p_memsz) {
            static_cast<Region*>(found)->set((char*)info->dlpi_tls_data, part.p_memsz);
            return 1;
        }
    }
    return 0;
}

// Poison: NaN in every type of floats, of either sign, large or negative integers.
static void poison(Region& region, unsigned word) {
    for (size_t at = 0; at < region.bytes; ++at) region.begin[at] = (char)(word >> at % 2 * 8);
}

int run(const Launch& launch, void (*start)(void*), void* arguments, char* message, size_t size) {
    Launched shared;
    const auto allowed = std::chrono::microseconds((long long)(launch.seconds * 1e6));
    shared.deadline = std::chrono::steady_clock::now() + allowed;
    shared.launch = &launch;
    for (int at = 0; at < 2; ++at) {
        const Given& scratch = launch.given[launch.count - 2 + at];
        shared.scratch[at].begin = scratch.begin;
        shared.scratch[at].writers = std::vector<std::atomic<Writer>>(launch.grid > 1 ? scratch.bytes / 4 : 0);
    }
    std::mt19937 random(launch.seed);
    std::vector<long long> order(launch.grid);
    for (long long at = 0; at < launch.grid; ++at) order[at] = at;
    // The device may start blocks in any order, though it starts those of low numbers early.
    for (long long at = 0; at < launch.grid; at += 8)
        std::shuffle(order.begin() + at, order.begin() + std::min(at + 8, launch.grid), random);
    std::atomic<long long> next{0};
    const auto worker = [&](int number) {
        std::vector<Fiber> fibers(launch.threads);
        std::vector<char> memory(launch.dynamic_bytes + 4096);
        Block mine;
        block = &mine;
        mine.fibers = &fibers;
        mine.random.seed(launch.seed * 1000 + number);
        mine.shared = &shared;
        mine.dynamic = (char*)(((uintptr_t)memory.data() + 2047) & ~(uintptr_t)1023);
        mine.dynamic_bytes = launch.dynamic_bytes;
        mine.start = start;
        mine.arguments = arguments;
        mine.threads = {(unsigned)launch.threads, 1, 1};
        mine.blocks = {(unsigned)launch.grid, 1, 1};
        mine.given.resize((launch.threads + WARP - 1) / WARP * WARP);
        mine.taken.resize(mine.given.size());
        mine.warp_floors.resize(mine.given.size() / WARP);
        mine.fences_known.resize(launch.threads);
        mine.regions[0].set(mine.dynamic, launch.dynamic_bytes);
        dl_iterate_phdr(find_statics, &mine.regions[1]);
        for (const Given* one = launch.given; one < launch.given + launch.count; ++one)
            if (!strcmp(one->name, "zeroed")) mine.regions[2].set(one->begin, one->bytes);
        for (long long at; !shared.stop && (at = next++) < launch.grid;) {
            mine.number = {(unsigned)order[at], 0, 0};
            for (int at = 0; at < 2; ++at) poison(mine.regions[at], mine.random() % 2 ? 0x7fff : 0xffff);
            block = &mine;
            run_block(mine);
            if (!mine.boxes.empty()) shared.fail("a block ends without waiting for its bulk copies");
            mine.boxes.clear();
            mine.awaited.clear();
        }
        block = nullptr;
    };
    std::vector<std::thread> workers;
    const int in_flight = (int)std::min(launch.in_flight, launch.grid);
    for (int number = 0; number < in_flight; ++number) workers.emplace_back(worker, number);
    for (auto& one : workers) one.join();
    snprintf(message, size, "%s", shared.message.c_str());
    return !shared.message.empty();
}

// ---- Atomic operations ----------------------------------------------------------------------------------------

template <class T>
static bool replace(T* at, uint64_t& before, T after) {
    T expected = (T)before;
    const bool done = __atomic_compare_exchange_n(at, &expected, after, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    before = expected;
    return done;
}

uint64_t atomic_load(const void* at, size_t size) {
    size_t place;
    Region* const region = region_of(at, place);
    if (region) watch(at, size, ATOMIC);
    if (!region || region == &block->regions[2]) {
        ++block->atomics;
        if (block->shared->scratch[0].writers.size() + block->shared->scratch[1].writers.size()) {
            auto known = block->fences_known;
            known[block->now] = self().fences;
            const std::lock_guard<std::mutex> guard(block->shared->lock);
            block->shared->released[block->number.x + 1] = known;
        }
    }
    if (size == 4) return __atomic_load_n((const uint32_t*)at, __ATOMIC_SEQ_CST);
    return __atomic_load_n((const uint64_t*)at, __ATOMIC_SEQ_CST);
}

bool atomic_replace(void* at, uint64_t& before, uint64_t after, size_t size) {
    if (size == 4) return replace((uint32_t*)at, before, (uint32_t)after);
    return replace((uint64_t*)at, before, after);
}

void after_atomic() {
    if (block->random() % 8 == 0) pause();
}

// ---- Shared memory by 32-bit addresses ------------------------------------------------------------------------

// An address is the number of a stretch of 1 MiB that has been asked for before, and the place in it.
size_t to_shared(const void* pointer) {
    auto& stretches = block->stretches;
    const uintptr_t stretch = (uintptr_t)pointer >> 20;
    auto found = std::find(stretches.begin(), stretches.end(), stretch);
    const size_t number = found - stretches.begin();
    if (found == stretches.end()) stretches.push_back(stretch);
    return number << 20 | ((uintptr_t)pointer & 0xfffff);
}

static void* from_shared(unsigned address) {
    return (void*)(block->stretches.at(address >> 20) << 20 | (address & 0xfffff));
}

// ---- What PTX does --------------------------------------------------------------------------------------------

void copy_watched(void* to, const void* from, size_t size) {
    watch(from, size, READ);
    watch(to, size, WRITE);
    memcpy(to, from, size);
}

// What is copied to may be read no more from here on, and not before the copy has been waited for.
void copy_async(unsigned to, const void* from, size_t size, size_t bytes) {
    if (bytes > size) throw std::runtime_error("an asynchronous copy reads more than it writes");
    if ((bytes && (uintptr_t)from % size) || to % size)
        throw std::runtime_error("an asynchronous copy is not aligned");
    void* const place = from_shared(to);
    if (bytes) watch(from, bytes, READ);
    watch(place, size, WRITE);
    if (block->suspect.size) block->shared->fail(block->suspect.text);
    self().copies.push_back({place, from, size, bytes, self().groups});
}

void end_copies() { ++self().groups; }

// Waits for the copies of all groups but the last `left`; those of no group yet count as one more.
void wait_copies(int left) {
    Fiber& me = self();
    std::vector<Copy> later;
    for (const auto& copy : me.copies) {
        if (copy.group >= me.groups - left) {
            later.push_back(copy);
            continue;
        }
        watch(copy.to, copy.size, WRITE);
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

static Barrier& barrier(unsigned address) {
    if (address % 8) throw std::runtime_error("a barrier is not aligned");
    return *(Barrier*)from_shared(address);
}

void begin_barrier(unsigned address, int count) {
    Barrier& one = barrier(address);
    watch(&one, sizeof(one), WRITE);
    one = {count, 0, (unsigned)count};
    block->orders[address] = {};
}

static void end_phase(unsigned address) {
    Barrier& one = barrier(address);
    if (one.missing || block->awaited[address]) return;
    one.missing = one.count;
    one.parity = ~one.parity;
    Order& order = block->orders[address];
    join(order.known, order.coming), join(order.shown, order.coming_shown);
}

void arrive(unsigned address, unsigned bytes) {
    Barrier& one = barrier(address);
    watch(&one, sizeof(one), READ);  // which has to have begun
    Order& order = block->orders[address];
    put_known(order.coming), join(order.coming_shown, self().shown);
    ++block->time;
    block->awaited[address] += bytes;
    --one.missing;
    end_phase(address);
}

void describe(unsigned address, const void* from, std::initializer_list<long long> lengths,
              std::initializer_list<long long> pitches, std::initializer_list<long long> box, int type) {
    const unsigned* words = (const unsigned*)from_shared(address);
    watch(words, 128, READ);
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
    watch(words, 128, WRITE);
    memcpy(from_shared(address), &map, sizeof(map));
}

// All lanes of a warp do, one after the other: what is there is the same.
void publish(void* to, unsigned from) {
    watch(from_shared(from), sizeof(TensorMap), READ);
    memcpy(to, from_shared(from), sizeof(TensorMap));
}

void copy_box(unsigned to, const void* from, int x, int y, int z, unsigned barrier) {
    if (to % 1024) throw std::runtime_error("a bulk copy is not aligned");
    const TensorMap& map = *(const TensorMap*)from;
    watch(from_shared(to), map.box[1] * 128, SHOWN);
    if (block->suspect.size) block->shared->fail(block->suspect.text);
    block->boxes.push_back({to, barrier, map, {x, y, z}, block->now, block->time});
}

static void carry_out(const Box& one) {
    const TensorMap& map = one.map;
    char* const to = (char*)from_shared(one.to);
    for (long long row = 0; row < map.box[1]; ++row)
        for (long long column = 0; column < map.box[0]; ++column) {
            const long long at[] = {one.at[0] + column, one.at[1] + row, one.at[2]};
            bool inside = true;
            for (int axis = 0; axis < 3; ++axis) inside = inside && at[axis] >= 0 && at[axis] < map.lengths[axis];
            unsigned word = 0;
            if (inside)
                memcpy(&word, map.from + at[2] * map.pitches[1] + at[1] * map.pitches[0] + at[0] * map.size(),
                       map.size());
            if (map.type == 11) word = to_tf32<true>(bits<float>(word));
            memcpy(to + row * 128 + (column * map.size() ^ row % 8 * 16), &word, map.size());
        }
    block->awaited[one.barrier] -= map.box[1] * 128;
    auto& coming = block->orders[one.barrier].coming;
    coming.resize(block->fibers->size());
    coming[one.thread] = std::max(coming[one.thread], one.time);
}

// As if the copies of the thread had come at once.
void arrive_when_copied(unsigned address) {
    wait_copies(-1);
    arrive(address);
}

bool has_ended(unsigned address, int parity) {
    pause();
    auto& boxes = block->boxes;
    for (size_t at = boxes.size(); at-- > 0;)
        if (boxes[at].barrier == address && block->random() % 2) {
            carry_out(boxes[at]);
            boxes.erase(boxes.begin() + at);
            end_phase(address);
        }
    const Barrier& one = barrier(address);
    watch(&one, sizeof(one), READ);
    if ((one.parity & 1) == parity) return false;
    const Order& order = block->orders[address];
    join(self().known, order.known), join(self().shown, order.shown);
    return true;
}

void store16(void* to, unsigned long long low, unsigned long long high) {
    check_given(to, 16);
    // One store that is seen whole: SSE's aligned stores are, on every processor with AVX.
    typedef long long Vector __attribute__((vector_size(16)));
    *(volatile Vector*)to = Vector{(long long)low, (long long)high};
}

void load16(const void* from, unsigned long long& low, unsigned long long& high) {
    typedef long long Vector __attribute__((vector_size(16)));
    check_given(from, 16);
    const Vector word = *(const volatile Vector*)from;
    low = (unsigned long long)word[0];
    high = (unsigned long long)word[1];
    pause();
}

template <class T>
static void stored(void* to, T value) {
    check_given(to, sizeof(T));
    __atomic_store_n((T*)to, value, __ATOMIC_RELEASE);
}
void store(void* to, unsigned value) { stored(to, value); }
void store(void* to, unsigned long long value) { stored(to, value); }

template <class T>
static T loaded(const void* from) {
    check_given(from, sizeof(T));
    const T value = __atomic_load_n((const T*)from, __ATOMIC_ACQUIRE);
    pause();
    return value;
}
template <>
unsigned load(const void* from) {
    return loaded<unsigned>(from);
}
template <>
unsigned long long load(const void* from) {
    return loaded<unsigned long long>(from);
}

// ---- Matrices of a warp ---------------------------------------------------------------------------------------

// Lane 8 i + r gives the address of row r of matrix i. Of each matrix, lane 4 r + c gets two neighbours of row r, or of
// column r if transposed.
template <bool TRANSPOSED>
void load_matrices(unsigned row, unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
    if (row % 16) throw std::runtime_error("a row of a matrix is not aligned");
    unsigned* const to[] = {&a, &b, &c, &d};
    const int first = block->now % WARP / 4, second = block->now % 4 * 2;
    const uint64_t* const rows = from_all(~0u, row);
    for (int matrix = 0; matrix < 4; ++matrix) {
        const auto element = [&](int r, int c) {
            const auto* const from = (const unsigned short*)from_shared((unsigned)rows[8 * matrix + r]) + c;
            watch(from, 2, READ);
            return (unsigned)*from;
        };
        const unsigned low = TRANSPOSED ? element(second, first) : element(first, second);
        const unsigned high = TRANSPOSED ? element(second + 1, first) : element(first, second + 1);
        *to[matrix] = low | high << 16;
    }
}
template void load_matrices<false>(unsigned, unsigned&, unsigned&, unsigned&, unsigned&);
template void load_matrices<true>(unsigned, unsigned&, unsigned&, unsigned&, unsigned&);

static float truncated(double x) {
    const float y = (float)x;
    if (!(fabs(x) < 0x1p128)) return y;
    return fabs((double)y) > fabs(x) ? bits<float>(bits<unsigned>(y) - 1) : y;
}

// Products of two floats are exact and their sum is nearly so before it is truncated, which is what tensor cores seem
// to do but for the last bits; doubles are added up one by one.
static float sum(float c, const double* a, const double* b, int k) {
    double all = c;
    for (int at = 0; at < k; ++at) all += a[at] * b[at];
    return truncated(all);
}
static double sum(double c, const double* a, const double* b, int k) {
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
static void row(double* to, int g, int half, Of of) {
    for (int t = 0; t < 4; ++t) {
        const Numbers<REGISTERS, PACKED>& theirs = *of(4 * g + t);
        for (int at = 0; at < REGISTERS; ++at)
            for (int one = 0; one < PACKED; ++one) to[(4 * at + t) * PACKED + one] = theirs.a[2 * at + half][one];
    }
}

template <int REGISTERS, int PACKED, class Of>
static void column(double* to, int g, Of of) {
    for (int t = 0; t < 4; ++t) {
        const Numbers<REGISTERS, PACKED>& theirs = *of(4 * g + t);
        for (int at = 0; at < REGISTERS; ++at)
            for (int one = 0; one < PACKED; ++one) to[(4 * at + t) * PACKED + one] = theirs.b[at][one];
    }
}

template <class T>
static Numbers<2, T::PACKED> numbers(const typename T::Register* a, const typename T::Register* b) {
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
    const int g = block->now % WARP / 4, t = block->now % 4;
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
    });
}

#define INSTANCE(type)                                                                                        \
    template void multiply<type>(const type::Register(&)[4], const type::Register(&)[2], type::Sum&, type::Sum&, \
                                 type::Sum&, type::Sum&);
INSTANCE(Half)
INSTANCE(Bfloat)
INSTANCE(Tf32)
INSTANCE(Double)
#undef INSTANCE

// D += A B of 8 x 4 and 4 x 8 doubles.
void multiply4(double a, double b, double& d0, double& d1) {
    const Numbers<1, 1> mine{{{a}}, {{b}}};
    const int g = block->now % WARP / 4, t = block->now % 4;
    exchange(~0u, &mine, [&](auto of) {
        double rows[4], columns[2][4];
        row<1, 1>(rows, g, 0, of);
        for (int half = 0; half < 2; ++half) column<1, 1>(columns[half], 2 * t + half, of);
        d0 = sum(d0, rows, columns[0], 4);
        d1 = sum(d1, rows, columns[1], 4);
    });
}

// ---- Matrices of a warpgroup ----------------------------------------------------------------------------------

// Row r of A or column r of B, by a descriptor of where it lies in dynamic shared memory.
template <class T>
static void read(double* to, unsigned long long descriptor, bool transposed, int r) {
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
        watch_product(block->dynamic + place, SIZE);
        unsigned word = 0;
        memcpy(&word, block->dynamic + place, SIZE);
        to[k] = T::number(word, 0);
    }
}

template <class T>
static void carry_out(const Product& one) {
    constexpr int K = 8 * T::PACKED;
    const int thread = block->now % 128, g = thread % WARP / 4, t = thread % 4;
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
static void check_descriptor(unsigned long long descriptor) {
    if (descriptor >> 62 > 1 || descriptor >> 49 & 7) throw std::runtime_error("a swizzle that is not emulated");
}

template <class T>
static Product& new_product(std::initializer_list<float*> d, unsigned long long b, bool add, bool b_transposed) {
    if (!self().may_multiply)
        throw std::runtime_error("products of a warpgroup use registers that no fence has shown them");
    float* const first = *d.begin();
    for (size_t at = 0; at < d.size(); ++at)
        if (d.begin()[at] != first + at) throw std::runtime_error("accumulators do not lie side by side");
    Product one = {};
    one.carry_out = carry_out<T>, one.d = first, one.columns = 2 * (int)d.size(), one.add = add;
    one.b = b;
    one.b_transposed = b_transposed;
    one.group = self().product_groups;
    check_descriptor(b);
    self().products.push_back(one);
    return self().products.back();
}

template <class T>
void multiply_later(std::initializer_list<float*> d, unsigned long long a, unsigned long long b, bool add,
                    bool a_transposed, bool b_transposed) {
    check_descriptor(a);
    Product& one = new_product<T>(d, b, add, b_transposed);
    one.a_in_shared = true;
    one.a = a;
    one.a_transposed = a_transposed;
}

template <class T>
void multiply_later(std::initializer_list<float*> d, const unsigned (&a)[4], unsigned long long b, bool add,
                    bool b_transposed) {
    Product& one = new_product<T>(d, b, add, b_transposed);
    const unsigned none[2] = {};
    const auto mine = numbers<T>(a, none);
    exchange(~0u, &mine, [&](auto of) {
        for (int half = 0; half < 2; ++half) row<2, T::PACKED>(one.rows[half], block->now % WARP / 4, half, of);
    });
}

#define INSTANCES(type)                                                                                          \
    template void multiply_later<type>(std::initializer_list<float*>, unsigned long long, unsigned long long, bool, \
                                       bool, bool);                                                              \
    template void multiply_later<type>(std::initializer_list<float*>, const unsigned(&)[4], unsigned long long,  \
                                       bool, bool);
INSTANCES(Half)
INSTANCES(Bfloat)
INSTANCES(Tf32)
#undef INSTANCES

void begin_products() { self().may_multiply = true; }
void end_products() { ++self().product_groups; }

// Waits for the products of all groups but the last `left`.
void wait_products(int left) {
    Fiber& me = self();
    me.may_multiply = false;
    std::vector<Product> later;
    for (const auto& one : me.products)
        if (one.group < me.product_groups - left)
            one.carry_out(one);
        else
            later.push_back(one);
    me.products = later;
}

}  // namespace emulated

// ---- What the compiler calls ----------------------------------------------------------------------------------

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
#define ACCESSES(size)                                                                             \
    void __tsan_read##size(void* place) { emulated::watch(place, size, emulated::READ); }          \
    void __tsan_write##size(void* place) { emulated::watch(place, size, emulated::WRITE); }        \
    void __tsan_unaligned_read##size(void* place) { emulated::watch(place, size, emulated::READ); } \
    void __tsan_unaligned_write##size(void* place) { emulated::watch(place, size, emulated::WRITE); } \
    void __tsan_volatile_read##size(void* place) { emulated::watch(place, size, emulated::READ); } \
    void __tsan_volatile_write##size(void* place) { emulated::watch(place, size, emulated::WRITE); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(void* place, size_t size) { emulated::watch(place, size, emulated::READ); }
void __tsan_write_range(void* place, size_t size) { emulated::watch(place, size, emulated::WRITE); }
void* __tsan_memcpy(void* to, const void* from, size_t size) {
    emulated::copy_watched(to, from, size);
    return to;
}
void* __tsan_memset(void* to, int value, size_t size) {
    emulated::watch(to, size, emulated::WRITE);
    return memset(to, value, size);
}
}

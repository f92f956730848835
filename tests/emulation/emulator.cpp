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

#include "emulator_watch.hpp"

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
    mine.floor = mine.begun = ++mine.time;
    mine.acquired = 0;
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
        fiber.acquired = 0;
        fiber.at_cluster = false;
        fiber.others.clear();
    }
    std::fill(mine.fences_known.begin(), mine.fences_known.end(), 0);
    std::vector<int> order;
    for (int done = 0; done < threads;) {
        order.clear();
        for (int at = 0; at < threads; ++at)
            if (fibers[at].wait == READY) order.push_back(at);
        std::shuffle(order.begin(), order.end(), mine.random);
        bool spins = true;
        for (int at : order) {
            mine.now = at;
            mine.thread = {(unsigned)at, 0, 0};
            to_fiber(fibers[at]);
            spins = spins && fibers[at].wait == READY;
            done += fibers[at].wait == DONE;
        }
        release(mine);
        if (mine.gang->size > 1) {
            bool all = done < threads;
            for (auto& fiber : fibers) all = all && (fiber.wait == DONE || fiber.at_cluster);
            mine.gang->note(mine.rank, all, done == threads);
        }
        if (order.empty() && done < threads) {
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

// Finds the static variables of the text's library that belong to the calling thread: all that are thread_local. One of
// them is where the region begins.
static int find_statics(dl_phdr_info* info, size_t, void* found) {
    for (int at = 0; at < info->dlpi_phnum; ++at) {
        const auto& part = info->dlpi_phdr[at];
        const size_t offset = static_cast<Region*>(found)->begin - (char*)info->dlpi_tls_data;
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

int run(const Launch& launch, void (*start)(void*), char* (*one_static)(), void* arguments, char* message, size_t size) {
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
    const long long cluster = launch.cluster, clusters = launch.grid / cluster;
    std::vector<long long> order(clusters);
    for (long long at = 0; at < clusters; ++at) order[at] = at;
    // The device may start blocks in any order, though it starts those of low numbers early.
    for (long long at = 0; at < clusters; at += 8)
        std::shuffle(order.begin() + at, order.begin() + std::min(at + 8, clusters), random);
    std::atomic<long long> next{0};
    const long long gang_count = (std::min(launch.in_flight, launch.grid) + cluster - 1) / cluster;
    std::vector<std::unique_ptr<Gang>> gangs;
    for (long long at = 0; at < gang_count; ++at) gangs.emplace_back(new Gang((int)cluster));
    const auto worker = [&](int number) {
        std::vector<Fiber> fibers(launch.threads);
        std::vector<char> memory(launch.dynamic_bytes + 4096);
        Block mine;
        block = &mine;
        mine.fibers = &fibers;
        Gang& gang = *gangs[number / cluster];
        mine.gang = &gang, mine.rank = number % (int)cluster;
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
        mine.regions[1].begin = one_static();  // for which this thread gets them all, where it has none yet
        dl_iterate_phdr(find_statics, &mine.regions[1]);
        for (const Given* one = launch.given; one < launch.given + launch.count; ++one)
            if (!strcmp(one->name, "zeroed")) mine.regions[2].set(one->begin, one->bytes);
        for (;;) {
            if (mine.rank == 0) {
                gang.cluster = shared.stop ? clusters : next++;
                gang.ended.assign(cluster, false);
            }
            gang.meet();
            const long long at = gang.cluster;
            if (at >= clusters) break;
            mine.number = {(unsigned)(order[at] * cluster + mine.rank), 0, 0};
            for (int at = 0; at < 2; ++at) poison(mine.regions[at], mine.random() % 2 ? 0x7fff : 0xffff);
            block = &mine;
            run_block(mine);
            gang.meet();
            for (const auto& one : gang.inbox[mine.rank])
                if (one.what != Message::ARRIVES) shared.fail("a block ends without waiting for what other blocks copy to it");
            gang.inbox[mine.rank].clear();
            if (!mine.boxes.empty()) shared.fail("a block ends without waiting for its bulk copies");
            mine.boxes.clear();
            mine.awaited.clear();
        }
        block = nullptr;
    };
    std::vector<std::thread> workers;
    for (int number = 0; number < gang_count * cluster; ++number) workers.emplace_back(worker, number);
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

// Notes which releases an atomic operation of this block may have seen.
static void acquire() {
    const std::lock_guard<std::mutex> guard(block->shared->lock);
    block->acquired = block->shared->releases;
}

uint64_t atomic_load(const void* at, size_t size) {
    size_t place;
    Region* const region = region_of(at, place);
    if (region) watch(at, size, ATOMIC);
    const bool between_blocks = !region || region == &block->regions[2];
    if (between_blocks) {
        auto known = block->fences_known;
        known[block->now] = self().fences;
        const std::lock_guard<std::mutex> guard(block->shared->lock);
        auto& before = block->shared->released[block->number.x + 1];
        if (before.empty() || before.back().fences != known) before.push_back({++block->shared->releases, known});
    }
    const uint64_t found = size == 4 ? __atomic_load_n((const uint32_t*)at, __ATOMIC_SEQ_CST)
                                     : __atomic_load_n((const uint64_t*)at, __ATOMIC_SEQ_CST);
    if (between_blocks) acquire();
    return found;
}

bool atomic_replace(void* at, uint64_t& before, uint64_t after, size_t size) {
    if (size == 4) return replace((uint32_t*)at, before, (uint32_t)after);
    return replace((uint64_t*)at, before, after);
}

void after_atomic() {
    acquire();
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

#include "emulator_ptx.hpp"

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

// What the emulator knows of memory and of the threads of a block, and the races that it finds: a part of emulator.cpp.

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

// Random numbers: PCG-XSH-RR, of M. E. O'Neill, for fibers are shuffled whenever all of them wait.
struct Random {
    using result_type = uint32_t;
    uint64_t state = 0;

    static constexpr uint32_t min() { return 0; }
    static constexpr uint32_t max() { return ~0u; }
    void seed(uint64_t number) { state = number, (*this)(); }
    uint32_t operator()() {
        const uint64_t before = state;
        state = before * 6364136223846793005u + 1442695040888963407u;
        const uint32_t word = (uint32_t)((before >> 18 ^ before) >> 27);
        return word >> (before >> 59) | word << (-(before >> 59) & 31);
    }
};

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
    double rows[2][32];       // of A, if not in shared memory
    int group;
};

// A bulk copy to shared memory: of a box, whose rows have 128 bytes, or of contiguous bytes.
struct TensorMap {
    const char* from;
    long long lengths[3], pitches[2], box[3];  // numbers; pitches are of bytes
    int type, bytes;  // bytes is 0 for a box, otherwise so many follow each other

    int size() const { return type == 11 ? 4 : 2; }
    int shared_bytes() const { return bytes ? bytes : (int)box[1] * 128; }
};

struct Box {
    unsigned to, barrier;
    TensorMap map;
    int at[3];
    int thread;  // that has begun it, and when
    Time time;
};

// What a block of a cluster does in another, or in itself: it arrives at a barrier, copies a box, or stores a vector.
// Addresses differ between blocks, so places are given by region and offset. `known` tells of which accesses of the other
// block's threads it knows: all that come before what it does.
struct Place {
    int region;
    size_t offset;
};
struct Message {
    enum { ARRIVES, COPIES, STORES } what;
    int from;  // the rank of the block
    Place barrier, to;
    TensorMap map;
    int at[3];
    std::vector<Time> known;
    std::vector<float> numbers;
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
    std::vector<std::vector<Time>> others;  // the same of the threads of the other blocks of the cluster, by rank
    bool at_cluster;                 // it waits for all threads of the cluster
    unsigned fences;                 // passed; those of the block when it last passed a barrier are in `fences_known`
    unsigned long long acquired;     // the number of releases, by all blocks, that its last fence puts before it
};

// An atomic operation by a block whose threads have passed more fences than at the one before.
struct Release {
    unsigned long long number;
    std::vector<unsigned> fences;
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
    std::map<long long, std::vector<Release>> released;  // by block
    unsigned long long releases = 0;
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
    std::vector<std::vector<Time>> coming_others, others;  // by rank, what arrivals from other blocks know of themselves
};

// The blocks of a cluster, which run at the same time.
struct Gang {
    const int size;
    std::mutex lock;
    std::vector<std::vector<Message>> inbox;  // by the rank of the receiver
    std::vector<bool> ended, waits;           // by rank: the block has ended; all its threads wait for the cluster
    std::atomic<unsigned> phase{0};           // of the barrier of the cluster
    std::atomic<long long> cluster{0};
    std::atomic<int> met{0};
    std::atomic<unsigned> turn{0};

    explicit Gang(int size) : size(size), inbox(size), ended(size), waits(size) {}

    // Waits for the other workers.
    void meet() {
        const unsigned now = turn;
        if (++met == size)
            met = 0, ++turn;
        else
            while (turn == now) sched_yield();
    }

    // Notes whether all threads of a block wait for the cluster. If those of all blocks do, they may go on.
    void note(int rank, bool all, bool done) {
        const std::lock_guard<std::mutex> guard(lock);
        waits[rank] = all, ended[rank] = done;
        bool passes = false;
        for (int one = 0; one < size; ++one) {
            if (!waits[one] && !ended[one]) return;
            passes = passes || waits[one];
        }
        if (!passes) return;
        std::fill(waits.begin(), waits.end(), false);
        ++phase;
    }
};

struct Block {
    std::vector<Fiber>* fibers;
    jmp_buf scheduler;
    int now = 0;
    uint3 thread, number, threads, blocks;
    Random random;
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
    Gang* gang;
    int rank = 0;      // in the cluster
    int outside = -1;  // the rank of the block of the cluster whose access is under way, and what it knows
    std::vector<Time> outside_known;
    Time time = 1, floor = 1, begun = 1;
    Time met = 0;        // when its threads last passed the barrier of the cluster, and the phase of that
    unsigned phase = 0;
    std::vector<Time> warp_floors;    // what a warp did before comes before
    std::map<unsigned, Order> orders;  // by barrier in shared memory
    std::vector<unsigned> fences_known;
    unsigned long long acquired = 0;  // the releases, by all blocks, before its last atomic operation
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

// Every access to memory asks for it: it lies where that takes no call.
static __thread Block* block __attribute__((tls_model("initial-exec"))) = nullptr;

// The number of threads, and of blocks of the cluster, which count as threads.
static size_t actors(const Block& mine) { return mine.fibers->size() + mine.gang->size; }

static int actor(const Block& mine) { return mine.outside < 0 ? mine.now : (int)mine.fibers->size() + mine.outside; }

static Fiber& self() { return (*block->fibers)[block->now]; }

uint3 thread_index() { return block->thread; }
long long parameter(int at) { return static_cast<const long long*>(block->arguments)[at]; }
uint3 block_index() { return block->number; }
uint3 block_size() { return block->threads; }
uint3 grid_size() { return block->blocks; }
char* dynamic_memory() { return block->dynamic; }

void refuse(const char* text) { throw std::runtime_error(text); }

// ---- Races ----------------------------------------------------------------------------------------------------

// Returns whether what a thread did comes before what this one does now.
static bool ordered(const Block& mine, int thread, Time time) {
    if (time < mine.begun || thread == actor(mine)) return true;
    if (mine.outside < 0) {
        if (time < mine.floor) return true;
        if (thread / WARP == mine.now / WARP && time < mine.warp_floors[thread / WARP]) return true;
    }
    const auto& known = mine.outside < 0 ? (*mine.fibers)[mine.now].known : mine.outside_known;
    return (size_t)thread < known.size() && time <= known[thread];
}

static void clear_suspect() {
    auto& one = block->suspect;
    if (one.size && memcmp(one.at, one.before, one.size) != 0) block->shared->fail(one.text);
    one.size = 0;
}

static std::string race(const char* doing, const char* done, int other, const Region& region, size_t at) {
    const char* const names[] = {"dynamic shared memory", "static shared memory", "zeroed scratch"};
    return "race: thread " + std::to_string(actor(*block)) + " " + doing + " what thread " + std::to_string(other) + " " +
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
            if (one.thread == actor(mine) || ordered(mine, one.thread, one.time)) free = &one;
        if (!free) free = &cell.readers[mine.random() % 3];
        *free = {mine.time, (uint16_t)actor(mine)};
        return;
    }
    if (!after && !(kind == ATOMIC && cell.kind == ATOMIC))
        suspect(race("writes", "writes", cell.writer, region, at));
    for (auto& one : cell.readers) {
        if (!ordered(mine, one.thread, one.time)) suspect(race("writes", "reads", one.thread, region, at));
        one.time = 0;
    }
    cell.written = mine.time, cell.writer = (uint16_t)actor(mine), cell.kind = kind;
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
            unsigned long long released = 0;  // the number of the first release after the write
            {
                const std::lock_guard<std::mutex> guard(block->shared->lock);
                for (const Release& one : block->shared->released[other])
                    if (!released && one.fences[thread] > fences) released = one.number;
            }
            const std::string text = "race: a block reads scratch that another has written, and no fence is between ";
            if (!released)
                block->shared->fail(text + "the write and an atomic operation");
            else if (released > fiber.acquired)
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
    known.resize(actors(mine));
    for (size_t thread = 0; thread < known.size(); ++thread) {
        Time time = mine.floor - 1;
        if ((int)thread / WARP == mine.now / WARP) time = std::max(time, mine.warp_floors[mine.now / WARP] - 1);
        if (thread < before.size()) time = std::max(time, before[thread]);
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
            known.resize(actors(*block));
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
    self().acquired = block->acquired;
    std::atomic_thread_fence(std::memory_order_seq_cst);
}

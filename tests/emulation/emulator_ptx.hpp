// What PTX's instructions do, on the emulator: a part of emulator.cpp.

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
    order.others.resize(block->gang->size), order.coming_others.resize(block->gang->size);
    for (int rank = 0; rank < block->gang->size; ++rank) join(order.others[rank], order.coming_others[rank]);
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
    TensorMap map = {};
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

static void begin_box(unsigned to, unsigned barrier, const TensorMap& map, int x, int y, int z) {
    if (to % (map.bytes ? 16 : 1024)) throw std::runtime_error("a bulk copy is not aligned");
    watch(from_shared(to), map.shared_bytes(), SHOWN);
    if (block->suspect.size) block->shared->fail(block->suspect.text);
    block->boxes.push_back({to, barrier, map, {x, y, z}, actor(*block), block->time});
}

void copy_box(unsigned to, const void* from, int x, int y, int z, unsigned barrier) {
    begin_box(to, barrier, *(const TensorMap*)from, x, y, z);
}

static TensorMap contiguous(const void* from, int bytes) {
    if ((uintptr_t)from % 16 || bytes % 16) throw std::runtime_error("a bulk copy is not aligned");
    watch(from, bytes, READ);
    TensorMap map = {};
    map.from = (const char*)from, map.bytes = bytes;
    return map;
}

void copy_bytes(unsigned to, const void* from, int bytes, unsigned barrier) {
    begin_box(to, barrier, contiguous(from, bytes), 0, 0, 0);
}

// ---- Clusters -------------------------------------------------------------------------------------------------

static Place place_of(unsigned address) {
    size_t at;
    Region* const region = region_of(from_shared(address), at);
    if (!region || region == &block->regions[2]) throw std::runtime_error("an address outside of shared memory");
    return {(int)(region - block->regions), at};
}

static unsigned address_of(const Place& place) {
    return (unsigned)to_shared(block->regions[place.region].begin + place.offset);
}

static void send(unsigned rank, const Message& message) {
    Gang& gang = *block->gang;
    const std::lock_guard<std::mutex> guard(gang.lock);
    if (rank >= (unsigned)gang.size || gang.ended[rank])
        throw std::runtime_error("a block of a cluster reaches for shared memory of one that has ended");
    gang.inbox[rank].push_back(message);
}

// Notes that bytes have come for which a barrier waits, when and by whom they were sent.
static void has_come(unsigned barrier, int thread, Time time, size_t bytes) {
    block->awaited[barrier] -= (long long)bytes;
    auto& coming = block->orders[barrier].coming;
    coming.resize(actors(*block));
    coming[thread] = std::max(coming[thread], time);
}

void arrive_in_cluster(unsigned address, unsigned rank) {
    if ((int)rank == block->rank) return arrive(address);
    Message message = {};
    message.from = block->rank, message.barrier = place_of(address);
    put_known(message.known);
    ++block->time;
    send(rank, message);
}

void copy_box(unsigned to, const void* from, int x, int y, int z, unsigned barrier, unsigned ranks) {
    const TensorMap map = *(const TensorMap*)from;
    for (int rank = 0; rank < 16; ++rank) {
        if (!(ranks >> rank & 1)) continue;
        if (rank == block->rank) {
            begin_box(to, barrier, map, x, y, z);
            continue;
        }
        Message message = {Message::COPIES, block->rank, place_of(barrier), place_of(to), map, {x, y, z}, {}, {}};
        const auto& others = self().others;
        if ((size_t)rank < others.size()) message.known = others[rank];
        send(rank, message);
    }
}

void store_in_cluster(unsigned to, unsigned barrier, std::initializer_list<float> numbers, unsigned rank) {
    if (to % (4 * numbers.size())) throw std::runtime_error("a vector is not aligned");
    send(rank, {Message::STORES, block->rank, place_of(barrier), place_of(to), {}, {}, {}, numbers});
}

// Carries out what other blocks of the cluster do in this one.
static void receive() {
    std::vector<Message> messages;
    {
        const std::lock_guard<std::mutex> guard(block->gang->lock);
        messages.swap(block->gang->inbox[block->rank]);
    }
    for (const auto& one : messages) {
        const unsigned address = address_of(one.barrier);
        if (one.what == Message::COPIES) {
            block->outside = one.from, block->outside_known = one.known;
            begin_box(address_of(one.to), address, one.map, one.at[0], one.at[1], one.at[2]);
            block->outside = -1;
        } else if (one.what == Message::STORES) {
            // It comes after all that the block did before the barrier of the cluster.
            const size_t bytes = one.numbers.size() * sizeof(float);
            block->outside = one.from, block->outside_known.assign(actors(*block), block->met);
            watch(from_shared(address_of(one.to)), bytes, WRITE);
            memcpy(from_shared(address_of(one.to)), one.numbers.data(), bytes);
            has_come(address, actor(*block), block->time, bytes);
            block->outside = -1;
            end_phase(address);
        } else {
            Order& order = block->orders[address];
            order.coming_others.resize(block->gang->size);
            join(order.coming_others[one.from], one.known);
            --barrier(address).missing;
            end_phase(address);
        }
    }
}

void wait_cluster() {
    const unsigned phase = block->gang->phase;
    self().at_cluster = true;
    while (block->gang->phase == phase) pause();
    self().at_cluster = false;
    if (block->phase != block->gang->phase) block->met = block->time++;  // the first to go on
    block->phase = block->gang->phase;
}

static void carry_out(const Box& one) {
    const TensorMap& map = one.map;
    char* const to = (char*)from_shared(one.to);
    if (map.bytes) memcpy(to, map.from, map.bytes);
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
    has_come(one.barrier, one.thread, one.time, map.shared_bytes());
}

// As if the copies of the thread had come at once.
void arrive_when_copied(unsigned address) {
    wait_copies(-1);
    arrive(address);
}

bool has_ended(unsigned address, int parity) {
    pause();
    receive();
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
    self().others.resize(order.others.size());
    for (size_t rank = 0; rank < order.others.size(); ++rank) join(self().others[rank], order.others[rank]);
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
    acquire();
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

static int sum(int c, const double* a, const double* b, int k) {
    for (int at = 0; at < k; ++at) c = (int)((unsigned)c + (unsigned)(int)(a[at] * b[at]));
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

// Row r of A or column r of B, by a descriptor of where it lies in dynamic shared memory: in vectors of 16 bytes along k,
// or number by number if it is transposed.
template <class T>
static void read(double* to, unsigned long long descriptor, bool transposed, int r, bool watched = true) {
    constexpr int SIZE = 4 / T::PACKED, VECTOR = 16 / SIZE;
    const auto field = [&](int bit) { return (size_t)(descriptor >> bit & 0x3fff) << 4; };
    const size_t start = field(0), leading = field(16), stride = field(32);
    const bool swizzled = descriptor >> 62;
    const int count = transposed ? 1 : VECTOR;
    for (int k = 0; k < 8 * T::PACKED; k += count) {
        size_t at = start;
        if (swizzled && transposed)
            at += r / 64 * leading + r % 64 * SIZE + k / 8 * stride + k % 8 * 128;
        else if (swizzled)
            at += r / 8 * stride + r % 8 * 128 + k * SIZE;
        else if (transposed)
            at += r / 8 * stride + r % 8 * SIZE + k / 8 * leading + k % 8 * 16;
        else
            at += r / 8 * stride + r % 8 * 16 + k / VECTOR * leading;
        if (swizzled) at ^= at >> 3 & 0x70;
        const size_t place = (at - (uintptr_t)block->dynamic) & 0x3ffff;  // a descriptor has the last 18 bits
        if (place + count * SIZE > block->dynamic_bytes) throw std::runtime_error("a matrix lies outside shared memory");
        if (watched) watch_product(block->dynamic + place, count * SIZE);
        for (int one = 0; one < count; ++one) {
            unsigned word = 0;
            memcpy(&word, block->dynamic + place + one * SIZE, SIZE);
            to[k + one] = T::number(word, 0);
        }
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
            // Eight lanes of a warp have to do with each column: one of them, each with others, reads it for all.
            read<T>(column, one.b, one.b_transposed, 2 * at + 2 * t + next, at / 4 % 8 == g);
            for (int half = 0; half < 2; ++half) {
                typename T::Sum& d = ((typename T::Sum*)one.d)[at + 2 * half + next];
                d = sum(one.add ? d : typename T::Sum(), rows[half], column, K);
            }
        }
}

// D = A B, or D += A B, of 64 x 8 PACKED and 8 PACKED x N numbers, once it is waited for: shared memory is read then,
// and the accumulators stay what they are until then.
static void check_descriptor(unsigned long long descriptor) {
    if (descriptor >> 62 > 1 || descriptor >> 49 & 7) throw std::runtime_error("a swizzle that is not emulated");
}

template <class T>
static Product& new_product(std::initializer_list<typename T::Sum*> d, unsigned long long b, bool add, bool b_transposed) {
    if (!self().may_multiply)
        throw std::runtime_error("products of a warpgroup use registers that no fence has shown them");
    auto* const first = *d.begin();
    for (size_t at = 0; at < d.size(); ++at)
        if (d.begin()[at] != first + at) throw std::runtime_error("accumulators do not lie side by side");
    Product one = {};
    one.carry_out = carry_out<T>, one.d = (float*)first, one.columns = 2 * (int)d.size(), one.add = add;
    one.b = b;
    one.b_transposed = b_transposed;
    one.group = self().product_groups;
    check_descriptor(b);
    self().products.push_back(one);
    return self().products.back();
}

template <class T>
void multiply_later(std::initializer_list<typename T::Sum*> d, unsigned long long a, unsigned long long b, bool add,
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
template void multiply_later<Byte>(std::initializer_list<int*>, unsigned long long, unsigned long long, bool, bool, bool);

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

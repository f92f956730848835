// Words in global memory that one block writes while others read them. Each arrives whole, in no order with other words.

#include "common.cuh"

// Writes what other blocks may be reading.
DEVICE void publish_word(unsigned* to, unsigned word) {
    asm volatile("st.relaxed.gpu.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
DEVICE void publish_word(unsigned long long* to, unsigned long long word) {
    asm volatile("st.relaxed.gpu.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}

// Returns what other blocks may be writing.
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

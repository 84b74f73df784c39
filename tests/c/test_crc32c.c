/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "fabric.h"
#include "wire/crc32c.h"

#define MOST 9000u

static const char *const names[] = {"vpclmul512", "instruction", "table"};

/* As slow and as plain as possible. */
static uint32_t divide(uint32_t state, const uint8_t *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        state ^= p[i];
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (state & 1 ? 0x82F63B78u : 0);
    }
    return state;
}

static uint8_t source[MOST + 64], copy[MOST + 64];

static bool is_tried(uint32_t n) { return n < 600 || n % 97 == 0 || (n & (n - 1)) == 0 || ((n + 1) & n) == 0; }

static void each_implementation(void (*test)(void)) {
    const char *before = crc32c_name();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        check_note("%s", names[i]);
        if (!crc32c_use(names[i]))
            test();
    }
    CHECK_EQ(crc32c_use("none such"), -1);
    CHECK_EQ(crc32c_use(before), 0);
}

/* RFC 3720, B.4 */
static void examples(void) {
    uint8_t bytes[32] = {0};
    CHECK_EQ((uint32_t)~crc32c_update(CRC32C_INIT, bytes, 32), 0x8A9136AAu);
    memset(bytes, 0xFF, 32);
    CHECK_EQ((uint32_t)~crc32c_update(CRC32C_INIT, bytes, 32), 0x62A8AB43u);
    for (int i = 0; i < 32; i++)
        bytes[i] = (uint8_t)i;
    CHECK_EQ((uint32_t)~crc32c_update(CRC32C_INIT, bytes, 32), 0x46DD794Eu);
    CHECK_EQ((uint32_t)~crc32c_update(CRC32C_INIT, "123456789", 9), 0xE3069283u);
    CHECK_EQ(crc32c_update(0x12345678, bytes, 0), 0x12345678u);
}

static void lengths_and_alignments(void) {
    for (uint32_t at = 0; at < 64; at += at < 9 ? 1 : 11) {
        uint32_t state = 0xDEADBEEFu + at;
        for (uint32_t n = 0; n <= MOST; state = divide(state, source + at + n++, 1)) {
            if (!is_tried(n))
                continue;
            uint32_t to = (at * 7 + n) % 64;
            memset(copy, 0xA5, sizeof copy);
            CHECK_EQ(crc32c_update(0xDEADBEEFu + at, source + at, n), state);
            CHECK_EQ(crc32c_copy(0xDEADBEEFu + at, copy + to, source + at, n), state);
            CHECK(!memcmp(copy + to, source + at, n));
            CHECK(to + n >= sizeof copy || copy[to + n] == 0xA5);
            CHECK(!to || copy[to - 1] == 0xA5);
        }
    }
}

static void in_pieces(void) {
    uint32_t whole = divide(CRC32C_INIT, source, 5000);
    for (uint32_t cut = 0; cut <= 5000; cut += 1 + cut / 9) {
        uint32_t state = crc32c_update(CRC32C_INIT, source, cut);
        CHECK_EQ(crc32c_copy(state, copy, source + cut, 5000 - cut), whole);
    }
}

/* Nothing beyond the bytes is read: the page behind them is not there. */
static void up_to_the_end_of_a_page(void) {
    uint8_t *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    CHECK_EQ(munmap(page + 4096, 4096), 0);
    memcpy(page, source, 4096);
    for (uint32_t n = 0; n <= 4096; n += n < 300 ? 1 : 61) {
        uint32_t state = divide(CRC32C_INIT, page + 4096 - n, n);
        CHECK_EQ(crc32c_update(CRC32C_INIT, page + 4096 - n, n), state);
        CHECK_EQ(crc32c_copy(CRC32C_INIT, copy, page + 4096 - n, n), state);
        memset(page + 4096 - n, 0, n);
        CHECK_EQ(crc32c_copy(CRC32C_INIT, page + 4096 - n, copy, n), state);
        CHECK(!memcmp(page + 4096 - n, copy, n));
        memcpy(page, source, 4096);
    }
    munmap(page, 4096);
}

static void the_examples_of_rfc_3720(void) { each_implementation(examples); }
static void every_length_and_alignment(void) { each_implementation(lengths_and_alignments); }
static void a_message_in_pieces(void) { each_implementation(in_pieces); }
static void nothing_outside_is_touched(void) { each_implementation(up_to_the_end_of_a_page); }

int main(void) {
    fill(source, sizeof source, 42);
    RUN(the_examples_of_rfc_3720);
    RUN(every_length_and_alignment);
    RUN(a_message_in_pieces);
    RUN(nothing_outside_is_touched);
    return check_done();
}

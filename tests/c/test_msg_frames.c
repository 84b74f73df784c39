/* SPDX-License-Identifier: Apache-2.0
 *
 * SENDs of src/msg, byte by byte: what they are, and what a peer may not send.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "talk.h"

/* The example of docs/endpoint-protocol.md, and what is not in it. */
static void frames_have_the_bytes_of_the_protocol(void) {
    static const uint8_t array[] = {0, 3, 0, 0, 0, 0, 0, 0, '<', 'f', '4'};
    struct msg_region region = {.id = 1,
                                .rkey = 0x1234abcd,
                                .access = 2,
                                .addr = 0x7f0000001000,
                                .length = 65536,
                                .array = array,
                                .array_bytes = sizeof array};
    struct msg_offer offer = {7, 0x1234abcd, 0x10000, 0x7f0000001000, 0};
    uint8_t f[64];
#define IS(n, ...)                                                                                                     \
    do {                                                                                                               \
        static const uint8_t want[] = {__VA_ARGS__};                                                                   \
        memset(f, 0xEE, sizeof f);                                                                                     \
        CHECK_EQ(n, sizeof want);                                                                                      \
        CHECK(!memcmp(f, want, sizeof want) && f[sizeof want] == 0xEE);                                                \
    } while (0)
    IS(msg_frame_put_message(f, 0, 0, 5, 0, true), 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5);
    IS(msg_frame_put_message(f, 3, 1, 5, 9, false), 1, 2, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0,
       9);
    IS(msg_frame_put(f, FRAME_CREDIT, 0, 3, 0), 3, 0, 0, 3, 0, 0, 0, 0);
    IS(msg_frame_put_region(f, 1, &region, false), 4, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0,
       1, 0, 0, 0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 2);
    IS(msg_frame_put_region(f, 1, &region, true), 4, 4, 0, 1, 0, 0, 0, 1, 0, 0, 0x7f, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0,
       1, 0, 0, 0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, '<', 'f', '4');
    IS(msg_frame_put_offer(f, 2, &offer), 9, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x7f, 0, 0, 0, 0x10, 0,
       0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 0);
    offer.tag = 4;
    IS(msg_frame_put_offer(f, 2, &offer), 9, 2, 0, 2, 0, 0, 0, 7, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0x7f, 0, 0, 0, 0x10, 0,
       0x12, 0x34, 0xab, 0xcd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4);
    IS(msg_frame_put_abort(f, 64, 3, "too long"), 8, 0, 0, 0, 0, 0, 0, 3, 't', 'o', 'o', ' ', 'l', 'o', 'n', 'g');
    IS(msg_frame_put_abort(f, 11, 3, "a\xc3\xa9\xc3\xa9"), 8, 0, 0, 0, 0, 0, 0, 3, 'a', 0xc3, 0xa9);
    IS(msg_frame_put_abort(f, 12, 3, "a\xc3\xa9\xc3\xa9"), 8, 0, 0, 0, 0, 0, 0, 3, 'a', 0xc3, 0xa9);
#undef IS
}

/* docs/endpoint-protocol.md, "The header" and "Every SEND". */
static void each_version_has_its_types_and_flags(void) {
    enum { ANY = -1 };
    static const struct {
        int flags[3]; /* in version 1 and 2; ANY: there is no such type */
        bool has_body;
    } types[] = {
        {{0, ANY, ANY}, false}, {{0, 1, 3}, true},      {{0, 1, 1}, true},    {{0, 0, 0}, false},
        {{0, 0, 4}, true},      {{0, 0, 0}, false},     {{0, 0, 0}, false},   {{0, 0, 0}, false},
        {{0, 0, 0}, true},      {{0, ANY, 2}, true},    {{0, ANY, 0}, false}, {{0, ANY, 0}, false},
        {{0, ANY, ANY}, false}, {{0, ANY, ANY}, false},
    };
    struct frame f;
    struct msg_error why;
    for (int version = 1; version <= 2; version++) {
        for (uint8_t type = 0; type < sizeof types / sizeof *types; type++) {
            for (int flags = 0; flags < 256; flags++) {
                check_note("version %d, type %d, flags 0x%02x", version, type, flags);
                const uint8_t bytes[9] = {type, (uint8_t)flags, 1, 2, 3, 4, 5, 6};
                int has = types[type].flags[version];
                bool well = has != ANY && !(flags & ~has);
                CHECK_EQ(msg_frame_parse(bytes, 8, version, &f, &why), well ? 0 : -EPROTO);
                CHECK(!well || (f.type == type && f.flags == flags && f.credits == 0x0102 && f.id == 0x03040506));
                CHECK_EQ(msg_frame_parse(bytes, 9, version, &f, &why), well && types[type].has_body ? 0 : -EPROTO);
                CHECK_EQ(msg_frame_parse(bytes, 7, version, &f, &why), -EPROTO);
            }
        }
    }
}

static void put64(uint8_t *to, uint64_t value) {
    for (int i = 0; i < 8; i++)
        to[i] = (uint8_t)(value >> (56 - 8 * i));
}

static void memory_may_end_where_the_address_space_does(void) {
    uint8_t body[FRAME_OFFER] = {[23] = RNIC_ACCESS_REMOTE_READ};
    struct frame f = {.type = FRAME_SHARE, .body = body, .bytes = sizeof body};
    struct msg_region region;
    struct msg_offer offer;
    struct msg_error why;
    for (uint64_t bytes = 4095; bytes <= 4097; bytes++) {
        put64(body, -4096ull);
        put64(body + 8, bytes);
        CHECK_EQ(msg_frame_parse_region(&f, &region, &why), bytes <= 4096 ? 0 : -EPROTO);
        CHECK(bytes > 4096 || (region.addr == -4096ull && region.length == bytes));
        put64(body, bytes);
        put64(body + 8, -4096ull);
        CHECK_EQ(msg_frame_parse_offer(&f, &offer, &why), bytes <= 4096 ? 0 : -EPROTO);
    }
    put64(body, UINT64_MAX);
    put64(body + 8, 0); /* in keys that count from 0, all lengths can be */
    CHECK_EQ(msg_frame_parse_offer(&f, &offer, &why), 0);
}

static void an_array_has_the_bytes_that_it_says(void) {
    uint8_t body[FRAME_REGION + 100] = {[23] = RNIC_ACCESS_REMOTE_READ}, *array = body + FRAME_REGION;
    struct frame f = {.type = FRAME_SHARE, .flags = FRAME_DESCRIBED, .body = body};
    struct msg_region region;
    struct msg_error why;
    for (uint8_t dimensions = 0; dimensions < 3; dimensions++) {
        for (uint8_t type = 0; type < 4; type++) {
            uint32_t right = FRAME_ARRAY + 8u * dimensions + type;
            memset(array, '4', 100);
            array[0] = dimensions;
            array[1] = type;
            for (uint32_t bytes = 0; bytes < 40; bytes++) {
                check_note("%u dimensions, a type of %u, %u bytes", dimensions, type, bytes);
                f.bytes = FRAME_REGION + bytes;
                CHECK_EQ(msg_frame_parse_region(&f, &region, &why), type && bytes == right ? 0 : -EPROTO);
            }
        }
    }
    f.bytes = FRAME_REGION + FRAME_ARRAY + 3;
    memset(array, 0, FRAME_ARRAY);
    array[1] = 3;
    for (int letter = 0; letter < 256; letter++) {
        for (uint32_t at = 0; at < 3; at++) {
            memset(array + FRAME_ARRAY, 'f', 3);
            array[FRAME_ARRAY + at] = (uint8_t)letter;
            bool reads = letter >= ' ' && letter <= '~';
            CHECK_EQ(msg_frame_parse_region(&f, &region, &why), reads ? 0 : -EPROTO);
        }
    }
}

static void a_text_is_cut_between_two_characters(void) {
    static const uint8_t cut[] = {0, 1, 2, 2, 2, 5, 6, 6}; /* bytes of the text below */
    uint8_t to[200];
    char text[200];
    memset(text, 'x', sizeof text);
    for (uint32_t n = 0; n < 150; n++) {
        for (uint32_t room = FRAME_HEADER; room < 160; room += 5) {
            uint32_t most = room - FRAME_HEADER < 140 ? room - FRAME_HEADER : 140;
            text[n] = 0;
            CHECK_EQ(msg_frame_put_abort(to, room, 1, text), FRAME_HEADER + (n < most ? n : most));
            text[n] = 'x';
        }
    }
    memcpy(text, "ab\xe2\x82\xac!", 7);
    for (uint32_t most = 0; most < sizeof cut; most++)
        CHECK_EQ(msg_frame_put_abort(to, FRAME_HEADER + most, 1, text), FRAME_HEADER + cut[most]);
}

/* ---------------------------------------------------------------- what a peer may not send */

static void inject(const void *bytes, uint32_t n) {
    memcpy(a.end->mem + MEMORY / 2, bytes, n);
    post(&p.a,
         (struct rnic_send_wr){.wr_id = UINT64_MAX / 4 * 4 + 3, .opcode = RNIC_WR_SEND, SGL(SGE(&p.a, MEMORY / 2, n))});
    fabric_settle(&p.f);
    talk_pump(&b);
}

static void a_frame_that_may_not_come_ends_the_connection(void) {
    static const struct {
        uint8_t bytes[48];
        uint32_t n, reason;
        const char *text;
    } wrong[] = {
        {{0}, 3, MSG_VIOLATION, "a SEND of 3 bytes has no room for the header of 8"},
        {{0, 0, 0, 0, 0, 0, 0, 0}, 8, MSG_VIOLATION, "there is no SEND of type 0"},
        {{12, 0, 0, 0, 0, 0, 0, 0}, 8, MSG_VIOLATION, "there is no SEND of type 12"},
        {{1, 4, 0, 0, 0, 0, 0, 0}, 16, MSG_VIOLATION, "MESSAGE has the flags 0x04"},
        {{1, 1, 0, 0, 0, 0, 0, 0}, 15, MSG_VIOLATION, "MESSAGE has 7 bytes after its header, 8 are needed"},
        {{1, 1, 0, 0, 0, 0, 0, 1}, 16, MSG_VIOLATION, "MESSAGE of message 1, where 0 is due"},
        {{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
         16,
         MSG_VIOLATION,
         "MESSAGE of message 0 is empty, the message is not"},
        {{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
         18,
         MSG_VIOLATION,
         "message 0 has 1 bytes, and a fragment goes to 2"},
        {{1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
         17,
         MSG_VIOLATION,
         "MESSAGE of message 0 does not say LAST at 1 of 1 bytes"},
        {{1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2},
         17,
         MSG_VIOLATION,
         "MESSAGE of message 0 says LAST at 1 of 2 bytes"},
        {{1, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0, 0, 0, 0, 0, 0, 0},
         17,
         MSG_TOO_LONG,
         "message 0 of 18374686479671623680 bytes is longer than 1048576, the most we take"},
        {{2, 1, 0, 0, 0, 0, 0, 0}, 9, MSG_VIOLATION, "MORE of message 0, which was not begun"},
        {{3, 0, 0, 1}, 8, MSG_CREDIT, "1 credits returned where 0 of 8 were in use"},
        {{3, 0, 0, 0}, 8, MSG_CREDIT, "CREDIT returns 0, it must be two or more"},
        {{3, 0, 0, 0}, 9, MSG_VIOLATION, "CREDIT has 1 bytes after its header, not 0"},
        {{4, 0}, 31, MSG_VIOLATION, "SHARE has 23 bytes after its header, not 24"},
        {{4, 0}, 33, MSG_VIOLATION, "SHARE has 25 bytes after its header, not 24"},
        {{4, 4}, 31, MSG_VIOLATION, "SHARE has 23 bytes after its header, not 24"},
        {{4, 0, 0, 0, 0, 0, 0, 5}, 32, MSG_VIOLATION, "region 5 is shared with the access 0x0"},
        {{4, 0, 0, 0, 0, 0, 0, 5, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 2},
         32,
         MSG_VIOLATION,
         "region 5 ends beyond the address space"},
        {{4, 4, 0, 0, 0, 0, 0, 5, [31] = 4},
         39,
         MSG_VIOLATION,
         "SHARE has 7 bytes for the array of its region, which cannot be"},
        {{4, 4, 0, 0, 0, 0, 0, 5, [31] = 4, [33] = 1},
         41,
         MSG_VIOLATION,
         "SHARE has a type of elements that nobody can read"},
        {{5, 0, 0, 0, 0, 0, 0, 1}, 8, MSG_REGION, "region 1 is withdrawn, and was not shared"},
        {{6, 0, 0, 0, 0, 0, 0, 1}, 8, MSG_REGION, "RELEASE says 1, after 0 and with 0 to come"},
        {{6, 0, 0, 0, 0, 0, 0, 0}, 8, MSG_REGION, "RELEASE says 0, after 0 and with 0 to come"},
        {{7, 0, 0, 0, 0, 0, 0, 1}, 8, MSG_VIOLATION, "GOODBYE after 1 messages, 0 have come"},
        {{9, 0}, 31, MSG_VIOLATION, "ANNOUNCE has 23 bytes after its header, not 24"},
        {{9, 0}, 32, MSG_VIOLATION, "ANNOUNCE of 0 bytes at 0x0, which cannot be"},
        {{9, 0, 0, 0, 0, 0, 0, 2, [15] = 1}, 32, MSG_VIOLATION, "ANNOUNCE of message 2, where 0 is due"},
        {{9, 0, [13] = 0x10, [15] = 1},
         32,
         MSG_TOO_LONG,
         "message 0 of 1048577 bytes is longer than 1048576, the most we take"},
        {{10, 0}, 8, MSG_VIOLATION, "TAKEN of message 0, which waits for none"},
        {{11, 0}, 8, MSG_VIOLATION, "STOP of message 0, which was not begun"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_note("frame %d", (int)i);
        talk_open_both(&(struct how){0}, &(struct how){0});
        inject(wrong[i].bytes, wrong[i].n);
        const struct msg_error *e = msg_error(b.m);
        if (strcmp(e->text, wrong[i].text))
            check_fail(__FILE__, __LINE__, "\"%s\", not \"%s\"", e->text, wrong[i].text);
        CHECK_EQ(e->kind, MSG_PROTOCOL);
        CHECK_EQ(e->reason, wrong[i].reason);
        talk_settle();
        CHECK_EQ(msg_state(b.m), MSG_FAILED);
        CHECK(!strncmp(msg_error(a.m)->text, "the peer aborted the connection: ", 33));
        talk_close();
    }
}

#define BEGUN {1, 0, [15] = 2, [16] = 9}, 17     /* one byte of two */
#define ANNOUNCED {9, 0, [13] = 0x10, [16] = 1}, 32 /* more than the backlog has room for */
#define LEFT {7}, 8

static void a_frame_that_may_not_follow_ends_the_connection(void) {
    static const struct {
        uint8_t first[48];
        uint32_t first_n;
        uint8_t bytes[48];
        uint32_t n;
        const char *text;
    } wrong[] = {
        {BEGUN, {1, 1, [15] = 1}, 17, "MESSAGE 0 came before message 0 was complete"},
        {BEGUN, {2, 1}, 8, "MORE of message 0 is empty"},
        {BEGUN, {2, 1}, 10, "message 0 has 2 bytes, and a fragment goes to 3"},
        {BEGUN, {2, 0}, 9, "MORE of message 0 does not say LAST at 2 of 2 bytes"},
        {BEGUN, {2, 1, [7] = 1}, 9, "MORE of message 1, where 0 is due"},
        {BEGUN, {7}, 8, "GOODBYE inside of message 0"},
        {BEGUN, {9, [15] = 1}, 32, "ANNOUNCE inside of message 0"},
        {BEGUN, {11, [7] = 1}, 8, "STOP of message 1, which was not begun"},
        {ANNOUNCED, {1, 1, [15] = 1}, 17, "MESSAGE came before message 0 was taken"},
        {ANNOUNCED, {9, [15] = 1}, 32, "ANNOUNCE came before message 0 was taken"},
        {ANNOUNCED, {7}, 8, "GOODBYE came before message 0 was taken"},
        {{4, [7] = 5, [31] = 4}, 32, {4, [7] = 5, [31] = 4}, 32, "region 5 is shared twice"},
        {LEFT, {1, 1, 0, 9}, 16, "MESSAGE after GOODBYE"},
        {LEFT, {2, 1}, 9, "MORE after GOODBYE"},
        {LEFT, {4, [31] = 4}, 32, "SHARE after GOODBYE"},
        {LEFT, {5}, 8, "WITHDRAW after GOODBYE"},
        {LEFT, {7}, 8, "GOODBYE after GOODBYE"},
        {LEFT, {9, [15] = 1}, 32, "ANNOUNCE after GOODBYE"},
        {LEFT, {11}, 8, "STOP after GOODBYE"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_note("frame %d", (int)i);
        talk_open_both(&(struct how){0}, &(struct how){0});
        inject(wrong[i].first, wrong[i].first_n);
        CHECK_EQ(msg_error(b.m)->kind, MSG_WELL);
        inject(wrong[i].bytes, wrong[i].n);
        const struct msg_error *e = msg_error(b.m);
        if (strcmp(e->text, wrong[i].text))
            check_fail(__FILE__, __LINE__, "\"%s\", not \"%s\"", e->text, wrong[i].text);
        struct msg_statistics s;
        msg_count(b.m, &s);
        CHECK_EQ(s.partial, 0);
        talk_close();
    }
}

static void what_needs_no_program_may_follow_the_goodbye(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = {.access = RNIC_ACCESS_REMOTE_READ, .length = 1};
    CHECK_EQ(msg_share(b.m, &r), 0);
    CHECK_EQ(msg_withdraw(b.m, r.id), 0);
    talk_settle();
    CHECK_EQ(msg_released(b.m), 1);
    CHECK_EQ(msg_share(b.m, &r), 0);
    CHECK_EQ(msg_withdraw(b.m, r.id), 0);
    talk_pump(&b);
    inject((uint8_t[]){7, 0, 0, 0, 0, 0, 0, 0}, 8);
    inject((uint8_t[]){6, 0, 0, 2, 0, 0, 0, 2}, 8);
    CHECK_EQ(msg_error(b.m)->kind, MSG_WELL);
    CHECK_EQ(msg_released(b.m), 2);
    talk_close();
}

static void only_what_was_withdrawn_and_spent_comes_back(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    struct msg_region r = {.access = RNIC_ACCESS_REMOTE_READ, .length = 1};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(msg_share(b.m, &r), 0);
        CHECK_EQ(msg_withdraw(b.m, r.id), 0);
    }
    talk_settle();
    CHECK_EQ(msg_released(b.m), 2);
    inject((uint8_t[]){6, 0, 0, 0, 0, 0, 0, 3}, 8);
    CHECK(!strcmp(msg_error(b.m)->text, "RELEASE says 3, after 2 and with 0 to come"));
    talk_close();
    talk_open_both(&(struct how){0}, &(struct how){0});
    for (int i = 0; i < 4; i++)
        free(say(&b, 10, 0, 1, 0));
    talk_settle();
    CHECK(b.m->credits.spent == 4 && b.m->credits.returned == 4);
    inject((uint8_t[]){3, 0, 0, 2, 0, 0, 0, 0}, 8);
    CHECK(!strcmp(msg_error(b.m)->text, "2 credits returned where 0 of 8 were in use"));
    talk_close();
}

static void a_send_longer_than_a_receive_fails(void) {
    static uint8_t bytes[1025] = {FRAME_MESSAGE};
    talk_open_both(&(struct how){0}, &(struct how){0});
    inject(bytes, sizeof bytes);
    CHECK(msg_failed(b.m) && msg_failed(b.m)->status == RNIC_WC_LOC_LEN_ERR);
    talk_close();
}

static void a_taken_is_of_the_message_that_was_announced(void) {
    static const struct {
        uint64_t announce;
        bool silent; /* what is queued has not begun */
        uint8_t number;
    } wrong[] = {{0, false, 0}, {5000, false, 1}, {5000, true, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_note("%d", (int)i);
        talk_open_both(&(struct how){0}, &(struct how){.announce = wrong[i].announce});
        b.m->established = !wrong[i].silent;
        uint8_t *data = say(&b, 20000, 0, 1, 1);
        CHECK_EQ(b.m->out.first->begun, !wrong[i].silent);
        inject((uint8_t[8]){FRAME_TAKEN, [7] = wrong[i].number}, 8);
        CHECK(!strncmp(msg_error(b.m)->text, "TAKEN of message", 16));
        CHECK_EQ(msg_error(b.m)->reason, MSG_VIOLATION);
        free(data);
        talk_close();
    }
}

static void more_regions_than_were_agreed_end_the_connection(void) {
    talk_open_both(&(struct how){0}, &(struct how){.regions = 1});
    inject((uint8_t[32]){4, [7] = 5, [31] = 4}, 32);
    CHECK_EQ(msg_error(b.m)->kind, MSG_WELL);
    inject((uint8_t[32]){4, [7] = 6, [31] = 4}, 32);
    CHECK_EQ(msg_error(b.m)->reason, MSG_REGION);
    talk_close();
}

static void a_send_without_a_credit_ends_the_connection(void) {
    static const uint8_t empty[][16] = {{1, 1, 0, 0, 0, 0, 0, 0}, {1, 1, 0, 0, 0, 0, 0, 1}, {1, 1, 0, 0, 0, 0, 0, 2}};
    talk_open_both(&(struct how){0}, &(struct how){.receives = 3, .backlog = 1});
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(msg_state(b.m), MSG_OPEN);
        inject(empty[i], 16);
    }
    CHECK_EQ(msg_error(b.m)->reason, MSG_CREDIT);
    talk_close();
}

int main(void) {
    RUN(frames_have_the_bytes_of_the_protocol);
    RUN(each_version_has_its_types_and_flags);
    RUN(memory_may_end_where_the_address_space_does);
    RUN(an_array_has_the_bytes_that_it_says);
    RUN(a_text_is_cut_between_two_characters);
    RUN(a_frame_that_may_not_come_ends_the_connection);
    RUN(a_frame_that_may_not_follow_ends_the_connection);
    RUN(what_needs_no_program_may_follow_the_goodbye);
    RUN(only_what_was_withdrawn_and_spent_comes_back);
    RUN(a_taken_is_of_the_message_that_was_announced);
    RUN(a_send_longer_than_a_receive_fails);
    RUN(more_regions_than_were_agreed_end_the_connection);
    RUN(a_send_without_a_credit_ends_the_connection);
    return check_done();
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * SENDs of src/msg, byte by byte: what they are, and what a peer may not send.
 */
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
        {{7, 0, 0, 0, 0, 0, 0, 1}, 8, MSG_VIOLATION, "GOODBYE after 1 messages, 0 have come"},
        {{9, 0}, 31, MSG_VIOLATION, "ANNOUNCE has 23 bytes after its header, not 24"},
        {{9, 0}, 32, MSG_VIOLATION, "ANNOUNCE of 0 bytes at 0x0, which cannot be"},
        {{9, 0, 0, 0, 0, 0, 0, 2, [15] = 1}, 32, MSG_VIOLATION, "ANNOUNCE of message 2, where 0 is due"},
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
    RUN(a_frame_that_may_not_come_ends_the_connection);
    RUN(a_frame_that_may_not_follow_ends_the_connection);
    RUN(what_needs_no_program_may_follow_the_goodbye);
    RUN(more_regions_than_were_agreed_end_the_connection);
    RUN(a_send_without_a_credit_ends_the_connection);
    return check_done();
}

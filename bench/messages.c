/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages and their echoes between two ends of src/msg over the fabric of tests/c, whose time is virtual: for callgrind.
 *
 *   messages [count=100] [size=8]       count: of messages, every other one an echo
 */
#include "check.h"
#include "loops.h"
#include "talk.h"

static uint32_t count, size;

static void pass(const struct side *from, const struct side *to) {
    static const uint8_t data[MEMORY];
    uint64_t handle;
    CHECK(msg_send(from->m, data, size, 0, &handle) >= 0);
    msg_want(to->m, true, false);
    talk_settle();
    struct msg_in *in = msg_find(to->m, MSG_ANY);
    CHECK(in && in->bytes == size);
    msg_take(to->m, in);
    msg_drop(to->m, in);
}

/* callgrind counts what happens in here. */
__attribute__((noinline)) void counted_echoes(void) {
    for (uint32_t i = 0; i < count; i += 2) {
        pass(&a, &b);
        pass(&b, &a);
    }
}

static void echoes(void) {
    talk_open_both(&(struct how){0}, &(struct how){0});
    counted_echoes();
    talk_goodbye();
    talk_close();
}

int main(int argc, char **argv) {
    (void)argc;
    count = option_number(argv, "count", 100);
    size = option_number(argv, "size", 8);
    if (size > MEMORY)
        return 2;
    RUN(echoes);
    return check_done();
}
